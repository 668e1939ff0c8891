#include "cli/attn_rows.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "cli/show.h"

static const char *const pass_names[N_PASSES] = {"forward", "backward"};

const char *attn_shape_label(const attn_shape *s, char text[ATTN_LABEL_BYTES]) {
    static const char *const biases[] = {"", " + bias table", " + time bias"};
    snprintf(text, ATTN_LABEL_BYTES, "%s%s", attn_mask_kind_name(s->mask), biases[s->bias]);
    return text;
}

static double tflops(const attn_row *r, int pass, int how) {
    return (pass == PASS_FORWARD ? 1 : 2.5) * r->p->flops / r->seconds[pass][how] / 1e12;
}

/* Ours over theirs; NAN without a figure. */
static double ratio(const attn_rows *t, const attn_row *r, int pass, int how) {
    if (!t->has_peers) return NAN;
    return tflops(r, pass, how) /
           attn_peer_best(&r->p->shape, t->is_any_card, (attn_timing)how, (attn_pass)pass);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

/* A number with a composed key, left out where it is not known. */
static void write_number(json_writer *j, const char *pass, const char *name, double value) {
    char key[40];
    if (isnan(value)) return;
    snprintf(key, sizeof key, "%s_%s", pass, name);
    json_key_double(j, key, value);
}

static void write_pass(json_writer *j, const attn_rows *t, const attn_row *r, int pass) {
    static const char *const keys[N_PASSES] = {"fwd", "bwd"};
    const double *seconds = r->seconds[pass];
    write_number(j, keys[pass], "ms", seconds[TIMED_PLAIN] * 1e3);
    write_number(j, keys[pass], "tflops", tflops(r, pass, TIMED_PLAIN));
    write_number(j, keys[pass], "ratio", ratio(t, r, pass, TIMED_PLAIN));
    write_number(j, keys[pass], "replay_us", seconds[TIMED_REPLAY] * 1e6);
    write_number(j, keys[pass], "replay_tflops", tflops(r, pass, TIMED_REPLAY));
    write_number(j, keys[pass], "replay_ratio", ratio(t, r, pass, TIMED_REPLAY));
}

static status print_json(const attn_rows *t, const attn_row *r) {
    static const char *const biases[] = {"none", "table", "time"};
    const attn_shape *s = &r->p->shape;
    json_writer j;
    buf text;
    buf_init(&text);
    json_begin(&j, &text, 0);
    json_object_open(&j);
    json_key_string(&j, "bench", "attention");
    json_key_string(&j, "device", t->be->name);
    if (t->be->card != NULL) json_key_string(&j, "gpu", t->be->card);
    json_key_string(&j, "dtype", t->dtype);
    json_key_bool(&j, "any_card", t->is_any_card);
    json_key_string(&j, "mask", attn_mask_kind_name(s->mask));
    json_key_string(&j, "bias", biases[s->bias]);
    json_key_int(&j, "heads", s->n_heads);
    json_key_int(&j, "dim", s->dim);
    json_key_int(&j, "sequences", s->n_sequences);
    json_key_int(&j, "length", s->max_len);
    json_key_bool(&j, "jagged", s->is_jagged);
    json_key_int(&j, "tokens", r->p->n_tokens);
    json_key_double(&j, "fwd_gflop", r->p->flops / 1e9);
    json_key_int(&j, "copies", r->p->n_copies);
    json_key_double(&j, "error", r->error);
    json_key_double(&j, "peak_tflops", t->peak / 1e12);
    for (int pass = 0; pass < N_PASSES; pass++)
        write_pass(&j, t, r, pass);
    json_object_close(&j);
    status st = json_finish(&j);
    if (st == OK) printf("%s\n", buf_str(&text));
    buf_fini(&text);
    return st;
}

/* ---- the table ------------------------------------------------------------------------------- */

static bool has_replay(const attn_rows *t) {
    return t->be->token_bucket > 0;
}

void attn_rows_begin(attn_rows *t) {
    show_style style = show_stdout_style();
    const char *x_peer = t->has_peers ? "  x peer" : "";
    if (t->is_json) return;
    printf("HSTU attention on %s in %s, 4 heads%s; a large product here: %.3g TFLOP/s\n\n",
           t->be->card != NULL ? t->be->card : t->be->name, t->dtype,
           t->is_any_card ? ", kernels for any card" : "", t->peak / 1e12);
    printf("%s%4s %4s %8s  %-21s%7s  %-8s %10s %8s %6s%s", style.bold, "D", "B", "S", "mask",
           "tokens", "", "plain ms", "TFLOP/s", "%", x_peer);
    if (has_replay(t)) printf("  %10s %8s %6s%s", "replay us", "TFLOP/s", "%", x_peer);
    printf("  %8s%s\n", "error", style.plain);
}

/* Digits behind the point that make three or so. */
static int digits_of(double x) {
    return x < 1 ? 3 : x < 10 ? 2 : x < 100 ? 1 : 0;
}

static void print_timing(const attn_rows *t, const attn_row *r, int pass, int how) {
    double speed = tflops(r, pass, how), times = ratio(t, r, pass, how);
    double seconds = r->seconds[pass][how];
    printf(how == TIMED_PLAIN ? " %10.3f" : "  %10.1f", seconds * (how == TIMED_PLAIN ? 1e3 : 1e6));
    printf(" %8.*f %6.1f", digits_of(speed), speed, 1e14 * speed / t->peak);
    if (t->has_peers && !isnan(times)) printf("  %6.2f", times);
    if (t->has_peers && isnan(times)) printf("  %6s", "-");
}

/* Two lines: a pass each. */
static void print_text(const attn_rows *t, const attn_row *r) {
    const attn_shape *s = &r->p->shape;
    char label[ATTN_LABEL_BYTES], length[16];
    snprintf(length, sizeof length, s->is_jagged ? "1-%d" : "%d", s->max_len);
    printf("%4d %4d %8s  %-21s%7lld", s->dim, s->n_sequences, length, attn_shape_label(s, label),
           (long long)r->p->n_tokens);
    for (int pass = 0; pass < N_PASSES; pass++) {
        if (pass > 0) printf("%48s", "");
        printf("  %-8s", pass_names[pass]);
        print_timing(t, r, pass, TIMED_PLAIN);
        if (has_replay(t)) print_timing(t, r, pass, TIMED_REPLAY);
        if (pass == 0) printf("  %8.1e", r->error);
        printf("\n");
    }
    (void)fflush(stdout);
}

status attn_rows_add(attn_rows *t, const attn_row *r) {
    for (int pass = 0; pass < N_PASSES; pass++)
        for (int how = 0; how < N_TIMINGS; how++) {
            double times = ratio(t, r, pass, how);
            if (isnan(times)) continue;
            t->log_ratio[pass][how] += log(times);
            t->n_ratios[pass][how]++;
        }
    if (t->is_json) return print_json(t, r);
    print_text(t, r);
    return OK;
}

/* ---- the means ------------------------------------------------------------------------------- */

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

void attn_rows_end(const attn_rows *t) {
    double log_ratio[N_TIMINGS] = {0};
    int n[N_TIMINGS] = {0}, n_all = 0;
    for (int pass = 0; pass < N_PASSES; pass++)
        for (int how = 0; how < N_TIMINGS; how++) {
            log_ratio[how] += t->log_ratio[pass][how];
            n[how] += t->n_ratios[pass][how];
            n_all += t->n_ratios[pass][how];
        }
    if (t->is_json) return;
    if (has_replay(t))
        printf("\nplain: one call, waited for; replay: one of a recording of calls, without the "
               "host's time.\n");
    if (n_all == 0) return;
    printf("x peer: TFLOP/s over those of %s kernel on an H200; above 1 is faster.\n"
           "Geometric means (rows):\n\n  %-9s %9s %5s %9s\n",
           t->is_any_card ? "NVIDIA's Ampere" : "the better NVIDIA", "", "plain", "", "replay");
    for (int pass = 0; pass < N_PASSES; pass++)
        print_mean(pass_names[pass], t->log_ratio[pass], t->n_ratios[pass]);
    print_mean("both", log_ratio, n);
}
