/* hstu bench masks: options and tables; bench/masks.h measures. */
#include "cli/bench/masks.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/bench/bench.h"
#include "cli/cli.h"
#include "cli/output.h"
#include "cli/work.h"

typedef struct bench_args {
    const char *device, *dtype, *kernel;
    mask_filter filter;
    bool is_json, is_deterministic;
    backend *be;
    double log_ratio; /* sums over the rows that have a peer */
    int n_ratios;
    bool has_head; /* printed */
} bench_args;

/* Ordered as mask_kernel. */
static const char *const kernel_names[] = {"chosen", "block-wise", "row-wise", "any-card"};
enum { N_KERNELS = sizeof kernel_names / sizeof *kernel_names };

static double best_of(const double seconds[N_TIMINGS]) {
    return isnan(seconds[TIMED_REPLAY]) ? seconds[TIMED_PLAIN] : seconds[TIMED_REPLAY];
}

static const char *kernel_of(const bench_args *a, const mask_row *r, int pass) {
    if (r->by_rows[pass]) return "row-wise";
    return a->filter.kernel == MASK_ANY_CARD ? "block-wise, any card" : "block-wise";
}

static status print_json(void *ctx, const mask_row *r) {
    const bench_args *a = ctx;
    static const char *const keys[N_PASSES][N_TIMINGS] = {{"fwd_ms", "fwd_replay_ms"},
                                                          {"bwd_ms", "bwd_replay_ms"}};
    json_line line;
    json_writer *w = json_line_open(&line);
    json_key_string(w, "bench", "masks");
    json_key_string(w, "device", a->be->name);
    if (a->be->card != NULL) json_key_string(w, "gpu", a->be->card);
    json_key_string(w, "dtype", bench_act_name(a->be->act));
    json_key_string(w, "mask", r->mask);
    if (r->is_silu) json_key_bool(w, "silu", true);
    json_key_string(w, "kernel", kernel_of(a, r, PASS_FORWARD));
    json_key_string(w, "backward_kernel", kernel_of(a, r, PASS_BACKWARD));
    json_key_double(w, "pairs_a_tile", r->tile_pairs);
    if (a->is_deterministic) json_key_bool(w, "deterministic", true);
    json_key_int(w, "sequences", r->n_sequences);
    json_key_int(w, "length", r->length);
    json_key_int(w, "heads", r->n_heads);
    json_key_int(w, "dim", r->dim);
    json_key_double(w, "density", r->density);
    json_key_double(w, "full_tiles", r->n_full);
    json_key_double(w, "partial_tiles", r->n_partial);
    json_key_double(w, "error", r->error);
    for (int pass = 0; pass < N_PASSES; pass++)
        for (int how = 0; how < N_TIMINGS; how++)
            if (!isnan(r->seconds[pass][how]))
                json_key_double(w, keys[pass][how], r->seconds[pass][how] * 1e3);
    json_key_double(w, "fwd_tflops", r->flops / best_of(r->seconds[PASS_FORWARD]) / 1e12);
    json_key_double(w, "bwd_tflops", 2.5 * r->flops / best_of(r->seconds[PASS_BACKWARD]) / 1e12);
    json_key_double(w, "fwd_gb_per_s", r->bytes / best_of(r->seconds[PASS_FORWARD]) / 1e9);
    if (!isnan(r->peer)) json_key_double(w, "peer_fwd_replay_ms", r->peer);
    TRY(json_line_print(&line));
    (void)fflush(stdout);
    return OK;
}

/* Before the first row: a wrong mask gets no table. */
static void print_head(bench_args *a) {
    show_style style = show_stdout_style();
    if (a->has_head) return;
    a->has_head = true;
    printf("%s attention under masks on %s in %s; kernels: %s%s\n\n",
           a->filter.is_silu ? "SiLU" : "Softmax", a->be->card != NULL ? a->be->card : a->be->name,
           bench_act_name(a->be->act), kernel_names[a->filter.kernel],
           a->is_deterministic ? ", deterministic" : "");
    printf("%s%-31s %3s %5s %7s %6s %6s %9s %9s %9s %9s %8s %7s %8s %10s %6s%s\n", style.bold,
           "mask", "B", "n", "density", "full", "part", "fwd ms", "replay", "bwd ms", "replay",
           "TFLOP/s", "GB/s", "error", "by", "x peer", style.plain);
}

static void print_ms(double seconds) {
    if (isnan(seconds))
        printf(" %9s", "-");
    else
        printf(" %9.4f", seconds * 1e3);
}

static status print_text(void *ctx, const mask_row *r) {
    bench_args *a = ctx;
    double forward = best_of(r->seconds[PASS_FORWARD]);
    print_head(a);
    printf("%-31s %3d %5d %7.4f %6.3f %6.3f", r->mask, r->n_sequences, r->length, r->density,
           r->n_full, r->n_partial);
    for (int pass = 0; pass < N_PASSES; pass++)
        for (int how = 0; how < N_TIMINGS; how++)
            print_ms(r->seconds[pass][how]);
    printf(" %8.3g %7.0f %8.1e %10s", r->flops / forward / 1e12, r->bytes / forward / 1e9, r->error,
           r->by_rows[PASS_BACKWARD]  ? "rows"
           : r->by_rows[PASS_FORWARD] ? "rows/tiles"
                                      : "tiles");
    if (isnan(r->peer)) {
        printf(" %6s\n", "-");
    } else {
        double ratio = r->peer / 1e3 / forward;
        printf(" %6.2f\n", ratio);
        a->log_ratio += log(ratio);
        a->n_ratios++;
    }
    (void)fflush(stdout);
    return OK;
}

static status run_on(bench_args *a) {
    int n_left_out;
    if (a->is_json) return mask_bench_run(a->be, &a->filter, print_json, a, &n_left_out);
    TRY(mask_bench_run(a->be, &a->filter, print_text, a, &n_left_out));
    print_head(a);
    printf("\nTFLOP/s: of the attended pairs, forward; GB/s: q, k, v and out, once.\n");
    if (a->n_ratios > 0)
        printf("x peer: time of the best of FlexAttention, SDPA and (causal) cuDNN / time, "
               "forward, replayed; geometric mean %.2f over %d rows.\n",
               exp(a->log_ratio / a->n_ratios), a->n_ratios);
    if (n_left_out > 0)
        printf("%d rows are for a GPU: they would take minutes here.\n", n_left_out);
    return OK;
}

static status find_kernel(const char *name, mask_kernel *out) {
    for (int i = 0; i < N_KERNELS; i++)
        if (strcmp(name, kernel_names[i]) == 0) {
            *out = (mask_kernel)i;
            return OK;
        }
    return fail(ERR_USAGE, "--kernel %s: it is chosen, block-wise, row-wise or any-card", name);
}

static status run(bench_args *a) {
    work w;
    act_type act = ACT_F32;
    const work_options how = {.is_deterministic = a->is_deterministic};
    TRY(find_kernel(a->kernel, &a->filter.kernel));
    TRY(bench_find_act(a->dtype, &act));
    TRY(work_open_as(&w, NULL, a->device, &how));
    a->be = w.be;
    status st = a->be->ops->set_precision(a->be, act, false);
    if (st == OK) st = run_on(a);
    work_close(&w);
    return st;
}

status bench_masks(int argc, char **argv) {
    bench_args a = {.device = "auto", .dtype = "bfloat16", .kernel = kernel_names[0]};
    bool is_help;
    const arg_option options[] = {
        OPT_TEXT("--device", &a.device, "DEVICE", WORK_DEVICES),
        OPT_TEXT("--dtype", &a.dtype, "TYPE",
                 "bfloat16 (default), float16 or float32; a CPU computes in float32."),
        OPT_TEXT("--mask", &a.filter.mask, "MASK",
                 "Only rows of the table whose mask has this in it; or any mask, as 'hstu mask "
                 "show' takes it."),
        OPT_INT("--sequences", &a.filter.n_sequences, "B", 1, 65536, "Sequences of a batch."),
        OPT_INT("--length", &a.filter.length, "N", 1, 1 << 17, "Tokens of a sequence."),
        OPT_INT("--heads", &a.filter.n_heads, "H", 1, 1024, "Heads (12)."),
        OPT_INT("--dim", &a.filter.dim, "D", 1, 256, "Head dimension (64)."),
        OPT_FLAG("--silu", &a.filter.is_silu,
                 "Weights are silu(score) / N, as HSTU's, instead of the softmax."),
        OPT_TEXT("--kernel", &a.kernel, "KERNEL",
                 "On a GPU in 16 bits: chosen (by the mask, default), block-wise, row-wise, or "
                 "any-card: those of SM 8.0."),
        OPT_FLAG("--deterministic", &a.is_deterministic, "On a GPU: with sums of a fixed order."),
        OPT_FLAG("--curve", &a.filter.is_curve,
                 "Instead of the table: sliding windows of densities from .01 to 1, and pairs "
                 "scattered at random (16 sequences of 4096 unless told)."),
        OPT_INT("--seed", &a.filter.seed, "S", 1, INT64_MAX,
                "Draws inputs from this seed; without it every run draws others."),
        OPT_FLAG("--json", &a.is_json, "Print one JSON object a row."),
        {0},
    };
    const arg_spec spec = {
        .usage = "hstu bench masks [options]",
        .summary = "Measures softmax attention under masks, forward and backward, at the shapes of "
                   "the field's table or any other, after checking each against float64.",
        .options = options,
        .notes = "On an H200 in bfloat16, rows of the table show the ratio to the best of "
                 "FlexAttention, SDPA and cuDNN."};
    status st = args_parse(&spec, argc, argv, NULL, NULL, &is_help);
    if (st == OK && !is_help) st = run(&a);
    return st;
}
