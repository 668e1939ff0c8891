/* hstu bench attention: options and tables; bench/attention.h measures. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/bench/attention.h"
#include "cli/bench/bench.h"
#include "cli/cli.h"
#include "cli/output.h"
#include "cli/work.h"

typedef struct bench_args {
    const char *device, *dtype;
    attn_filter filter;
    bool is_any_card, is_json;
} bench_args;

static const char *const pass_names[N_PASSES] = {"forward", "backward"};

/* A number whose key is composed; left out if it is not known. */
static void write_number(json_writer *w, const char *pass, const char *name, double value) {
    char key[40];
    if (isnan(value)) return;
    snprintf(key, sizeof key, "%s_%s", pass, name);
    json_key_double(w, key, value);
}

static void write_pass(json_writer *w, const attn_row *r, int pass) {
    static const char *const keys[N_PASSES] = {"fwd", "bwd"};
    const double *seconds = r->seconds[pass];
    write_number(w, keys[pass], "ms", seconds[TIMED_PLAIN] * 1e3);
    write_number(w, keys[pass], "tflops", r->tflops[pass][TIMED_PLAIN]);
    write_number(w, keys[pass], "ratio", r->ratio[pass][TIMED_PLAIN]);
    write_number(w, keys[pass], "replay_us", seconds[TIMED_REPLAY] * 1e6);
    write_number(w, keys[pass], "replay_tflops", r->tflops[pass][TIMED_REPLAY]);
    write_number(w, keys[pass], "replay_ratio", r->ratio[pass][TIMED_REPLAY]);
}

static status print_json(const attn_bench *b, const attn_row *r) {
    static const char *const biases[] = {"none", "table", "time"};
    const attn_shape *s = &r->p->shape;
    json_line line;
    json_writer *w = json_line_open(&line);
    json_key_string(w, "bench", "attention");
    json_key_string(w, "device", b->be->name);
    json_key_int(w, "seed", (int64_t)b->seed);
    if (b->be->card != NULL) json_key_string(w, "gpu", b->be->card);
    json_key_string(w, "dtype", bench_act_name(b->be->act));
    json_key_bool(w, "any_card", b->is_any_card);
    json_key_string(w, "mask", attn_mask_kind_name(s->mask));
    json_key_string(w, "bias", biases[s->bias]);
    json_key_int(w, "heads", s->n_heads);
    json_key_int(w, "dim", s->dim);
    json_key_int(w, "sequences", s->n_sequences);
    json_key_int(w, "length", s->max_len);
    json_key_bool(w, "jagged", s->is_jagged);
    json_key_int(w, "tokens", r->p->n_tokens);
    json_key_double(w, "fwd_gflop", r->p->flops / 1e9);
    json_key_int(w, "copies", r->p->n_copies);
    json_key_double(w, "error", r->error);
    json_key_double(w, "peak_tflops", b->peak / 1e12);
    for (int pass = 0; pass < N_PASSES; pass++)
        write_pass(w, r, pass);
    return json_line_print(&line);
}

static bool has_replay(const attn_bench *b) {
    return b->be->token_bucket > 0;
}

static void print_head(const attn_bench *b) {
    show_style style = show_stdout_style();
    const char *x_peer = b->has_peers ? "  x peer" : "";
    printf("HSTU attention on %s in %s, 4 heads%s; a large product here: %.3g TFLOP/s\n\n",
           b->be->card != NULL ? b->be->card : b->be->name, bench_act_name(b->be->act),
           b->is_any_card ? ", kernels for any card" : "", b->peak / 1e12);
    printf("%s%4s %4s %8s  %-21s%7s  %-8s %10s %8s %6s%s", style.bold, "D", "B", "S", "mask",
           "tokens", "", "plain ms", "TFLOP/s", "%", x_peer);
    if (has_replay(b)) printf("  %10s %8s %6s%s", "replay us", "TFLOP/s", "%", x_peer);
    printf("  %8s%s\n", "error", style.plain);
}

/* Decimals that give about three digits. */
static int digits_of(double x) {
    return x < 1 ? 3 : x < 10 ? 2 : x < 100 ? 1 : 0;
}

static void print_timing(const attn_bench *b, const attn_row *r, int pass, int how) {
    double speed = r->tflops[pass][how], times = r->ratio[pass][how];
    double seconds = r->seconds[pass][how];
    printf(how == TIMED_PLAIN ? " %10.3f" : "  %10.1f", seconds * (how == TIMED_PLAIN ? 1e3 : 1e6));
    printf(" %8.*f %6.1f", digits_of(speed), speed, 1e14 * speed / b->peak);
    if (b->has_peers && !isnan(times)) printf("  %6.2f", times);
    if (b->has_peers && isnan(times)) printf("  %6s", "-");
}

/* Two lines, one for each pass. */
static void print_text(const attn_bench *b, const attn_row *r) {
    const attn_shape *s = &r->p->shape;
    char label[ATTN_LABEL_BYTES], length[16];
    snprintf(length, sizeof length, s->is_jagged ? "1-%d" : "%d", s->max_len);
    printf("%4d %4d %8s  %-21s%7lld", s->dim, s->n_sequences, length, attn_shape_label(s, label),
           (long long)r->p->n_tokens);
    for (int pass = 0; pass < N_PASSES; pass++) {
        if (pass > 0) printf("%48s", "");
        printf("  %-8s", pass_names[pass]);
        print_timing(b, r, pass, TIMED_PLAIN);
        if (has_replay(b)) print_timing(b, r, pass, TIMED_REPLAY);
        if (pass == 0) printf("  %8.1e", r->error);
        printf("\n");
    }
    (void)fflush(stdout);
}

static void print_mean(const char *name, const double *log_ratio, const int *n) {
    printf("  %-9s", name);
    for (int how = 0; how < N_TIMINGS; how++) {
        if (n[how] == 0)
            printf(" %9s      ", "-");
        else
            printf(" %9.3f (%3d)", exp(log_ratio[how] / n[how]), n[how]);
    }
    printf("\n");
}

static void print_means(const attn_bench *b) {
    double log_ratio[N_TIMINGS] = {0};
    int n[N_TIMINGS] = {0}, n_all = 0;
    for (int pass = 0; pass < N_PASSES; pass++)
        for (int how = 0; how < N_TIMINGS; how++) {
            log_ratio[how] += b->log_ratio[pass][how];
            n[how] += b->n_ratios[pass][how];
            n_all += b->n_ratios[pass][how];
        }
    if (has_replay(b))
        printf("\nplain: one call, waited for; replay: one of a recording of calls, without the "
               "host's time.\n");
    if (n_all == 0) return;
    printf("x peer: TFLOP/s / TFLOP/s of %s kernel on an H200; above 1 is faster.\n"
           "Geometric means (rows):\n\n  %-9s %9s %5s %9s\n",
           b->is_any_card ? "NVIDIA's Ampere" : "the better NVIDIA", "", "plain", "", "replay");
    for (int pass = 0; pass < N_PASSES; pass++)
        print_mean(pass_names[pass], b->log_ratio[pass], b->n_ratios[pass]);
    print_mean("both", log_ratio, n);
}

static status print_row_json(void *ctx, const attn_row *r) {
    TRY(print_json(ctx, r));
    (void)fflush(stdout);
    return OK;
}

static status print_row_text(void *ctx, const attn_row *r) {
    print_text(ctx, r);
    return OK;
}

static status run_on(const bench_args *a, backend *be) {
    attn_bench b;
    TRY(attn_bench_open(&b, be, &a->filter, a->is_any_card));
    if (a->is_json) return attn_bench_run(&b, print_row_json, &b);
    print_head(&b);
    TRY(attn_bench_run(&b, print_row_text, &b));
    print_means(&b);
    if (b.n_left_out > 0)
        printf("\n%d rows are for a GPU: they would take minutes here.\n", b.n_left_out);
    return OK;
}

static status run(const bench_args *a) {
    work w;
    act_type act = ACT_F32;
    TRY(bench_find_act(a->dtype, &act));
    TRY(work_open(&w, NULL, a->device));
    status st = w.be->ops->set_precision(w.be, act, false);
    if (st == OK) st = run_on(a, w.be);
    work_close(&w);
    return st;
}

status bench_attention(int argc, char **argv) {
    bench_args a = {.device = "auto", .dtype = "bfloat16"};
    bool is_help;
    const arg_option options[] = {
        OPT_TEXT("--device", &a.device, "DEVICE", WORK_DEVICES),
        OPT_TEXT("--dtype", &a.dtype, "TYPE",
                 "bfloat16 (default), float16 or float32; a CPU computes in float32."),
        OPT_INT("--dim", &a.filter.dim, "D", 1, 65536,
                "Only rows with head dimension D: 32, 64, 128 or 256."),
        OPT_INT("--length", &a.filter.length, "S", 1, 1 << 24,
                "Only rows with sequences of up to S: 50, 200, 512, 1024, 4096 or 16384."),
        OPT_TEXT("--mask", &a.filter.mask, "TEXT",
                 "Only rows whose mask has TEXT in it: causal, window, target, arbitrary, bias."),
        OPT_INT("--seed", &a.filter.seed, "N", 1, INT64_MAX,
                "Draws lengths and inputs from this seed, to compare two builds; without it every "
                "run draws others."),
        OPT_FLAG("--any-card", &a.is_any_card,
                 "On a GPU: the kernels that run on every card, not those for this one; peer is "
                 "the kernel for Ampere."),
        OPT_FLAG("--json", &a.is_json, "Print one JSON object a row."),
        {0},
    };
    const arg_spec spec = {.usage = "hstu bench attention [options]",
                           .summary =
                               "Measures HSTU attention, forward and backward, at the shapes of "
                               "the published tables, after checking each against float64.",
                           .options = options,
                           .notes = "On an H200 in bfloat16, rows that NVIDIA's kernels were "
                                    "measured at show the ratio to the better of them."};
    status st = args_parse(&spec, argc, argv, NULL, NULL, &is_help);
    if (st == OK && !is_help) st = run(&a);
    return st;
}
