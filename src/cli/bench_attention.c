/* hstu bench attention: HSTU attention at the shapes of the field's table, forward and backward.
 *
 * Each row is checked first, on numbers and lengths drawn anew, against float64; then timed twice:
 * as plain calls, and as the replay of a recording of REPLAYED calls, which leaves the host's time
 * out.  Arrays that would stay in a GPU's cache from call to call are there several times, and
 * taken in turn.  FLOPs are counted as the field counts them: forward 4 H D sum(L^2) / 2 for a
 * causal mask (of other masks the pairs seen), backward 2.5 times that. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "cli/attn_rows.h"
#include "cli/bench.h"
#include "cli/cli.h"
#include "cli/work.h"
#include "profile/peak.h"

enum { N_HEADS = 4, REPLAYED = 20, WARM_UPS = 3, MAX_CALLS = 30, RECORD_KEY = 77 };

/* More than the second-level cache of any card (H200: 50 MB). */
static const int64_t CACHE_BYTES = 64 << 20;

/* A row is not measured where one forward pass has more FLOPs than that: on a CPU. */
static const double CPU_MAX_FLOPS = 2e10;
static const double ENOUGH_SECONDS = 0.3;

/* The field's table, and what it leaves out: very long sequences, other masks, biases. */
static const attn_shape shapes[] = {
#define ROW(D, B, S, is_jagged, mask, bias)                                                        \
    { N_HEADS, D, B, S, is_jagged, mask, bias }
#define LENGTHS(D)                                                                                 \
    ROW(D, 32, 1024, false, ATTN_CAUSAL, BIAS_NONE),                                               \
        ROW(D, 32, 4096, false, ATTN_CAUSAL, BIAS_NONE),                                           \
        ROW(D, 32, 4096, true, ATTN_CAUSAL, BIAS_NONE),                                            \
        ROW(D, 128, 512, true, ATTN_CAUSAL, BIAS_NONE),                                            \
        ROW(D, 128, 200, true, ATTN_CAUSAL, BIAS_NONE),                                            \
        ROW(D, 512, 50, true, ATTN_CAUSAL, BIAS_NONE)
#define OTHERS(D)                                                                                  \
    ROW(D, 4, 16384, false, ATTN_CAUSAL, BIAS_NONE),                                               \
        ROW(D, 32, 4096, true, ATTN_WINDOW, BIAS_NONE),                                            \
        ROW(D, 32, 4096, true, ATTN_TARGETS, BIAS_NONE),                                           \
        ROW(D, 32, 4096, true, ATTN_ARBITRARY, BIAS_NONE),                                         \
        ROW(D, 8, 1024, false, ATTN_CAUSAL, BIAS_TABLE),                                           \
        ROW(D, 32, 1024, false, ATTN_CAUSAL, BIAS_TIME),                                           \
        ROW(D, 128, 200, true, ATTN_CAUSAL, BIAS_TIME)
    LENGTHS(32), LENGTHS(64), LENGTHS(128), LENGTHS(256), OTHERS(64), OTHERS(128),
};
enum { N_SHAPES = sizeof shapes / sizeof shapes[0] };

typedef struct bench_args {
    const char *device, *dtype, *mask;
    int64_t dim, length; /* 0: all */
    bool is_any_card, is_json;
} bench_args;

/* ---- timing ---------------------------------------------------------------------------------- */

/* The i-th call takes the i-th copy, in turn. */
static status call(const attn_problem *p, int pass, int i) {
    const attn_args *a = &p->copy[i % p->n_copies];
    return pass == PASS_BACKWARD ? p->be->ops->attn_bwd(p->be, a) : p->be->ops->attn_fwd(p->be, a);
}

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *x, int n) {
    qsort(x, (size_t)n, sizeof *x, compare_doubles);
    return x[n / 2];
}

/* The median of up to MAX_CALLS plain calls, each waited for; the first ones warm up. */
static status time_plain(const attn_problem *p, int pass, double *out) {
    double took[MAX_CALLS], sum = 0;
    int n = 0;
    for (int i = 0; i < (p->be->n_ahead > 0 ? WARM_UPS : 1); i++)
        TRY(call(p, pass, i));
    TRY(p->be->ops->sync(p->be));
    for (; n < MAX_CALLS && (n < 3 || sum < ENOUGH_SECONDS); n++) {
        uint64_t start = clock_ns();
        TRY(call(p, pass, WARM_UPS + n));
        TRY(p->be->ops->sync(p->be));
        took[n] = (double)(clock_ns() - start) / 1e9;
        sum += took[n];
    }
    *out = median(took, n);
    return OK;
}

static status record_once(const attn_problem *p, int pass, record_state *state) {
    status st = OK;
    TRY(p->be->ops->record(p->be, RECORD_KEY + (uint64_t)pass, state));
    for (int i = 0; i < REPLAYED && *state != RECORD_REPLAY && st == OK; i++)
        st = call(p, pass, i);
    status end = p->be->ops->record_end(p->be);
    return st != OK ? st : end;
}

/* Run, recorded, then replayed: the last are timed.  A backend that does not record has no replay.
 */
static status time_replay(const attn_problem *p, int pass, double *out) {
    double took[MAX_CALLS], sum = 0;
    record_state state;
    int n = 0;
    *out = NAN;
    if (p->be->token_bucket == 0) return OK;
    for (int i = 0; i < 3; i++)
        TRY(record_once(p, pass, &state));
    TRY(p->be->ops->sync(p->be));
    for (; n < MAX_CALLS && (n < 3 || sum < ENOUGH_SECONDS); n++) {
        uint64_t start = clock_ns();
        TRY(record_once(p, pass, &state));
        TRY(p->be->ops->sync(p->be));
        took[n] = (double)(clock_ns() - start) / 1e9 / REPLAYED;
        sum += took[n] * REPLAYED;
    }
    *out = median(took, n);
    return OK;
}

/* ---- running --------------------------------------------------------------------------------- */

/* Well above what naive code of the type is off by, well below what a wrong index makes. */
static double allowed_error(act_type act) {
    return act == ACT_F32 ? 1e-3 : act == ACT_F16 ? 5e-3 : 3e-2;
}

static status measure(attn_problem *p, attn_rows *table) {
    attn_row r = {.p = p};
    char label[ATTN_LABEL_BYTES];
    for (int c = 0; c < p->n_copies && table->is_any_card; c++)
        p->copy[c].n_rows_q = p->copy[c].n_rows_k = 0;
    TRY(attn_problem_check(p, &r.error));
    if (!(r.error <= allowed_error(p->be->act)))
        return fail(ERR_NUMERIC,
                    "heads of %d numbers, sequences of %d, %s: the result is off by %.2g of its "
                    "largest number; nothing was timed",
                    p->shape.dim, p->shape.max_len, attn_shape_label(&p->shape, label), r.error);
    for (int pass = 0; pass < N_PASSES; pass++) {
        TRY(time_plain(p, pass, &r.seconds[pass][TIMED_PLAIN]));
        TRY(time_replay(p, pass, &r.seconds[pass][TIMED_REPLAY]));
    }
    return attn_rows_add(table, &r);
}

/* What a forward pass costs at most, before anything is drawn. */
static double bound_flops(const attn_shape *s) {
    return 4.0 * s->n_heads * s->dim * s->n_sequences * (double)s->max_len * s->max_len / 2;
}

static bool is_wanted(const bench_args *a, const attn_shape *s) {
    char label[ATTN_LABEL_BYTES];
    if (a->dim != 0 && a->dim != s->dim) return false;
    if (a->length != 0 && a->length != s->max_len) return false;
    return a->mask == NULL || strstr(attn_shape_label(s, label), a->mask) != NULL;
}

static status run_shape(attn_rows *table, backend *be, const attn_shape *s) {
    attn_problem p;
    /* A recording knows nothing of other problems' memory. */
    TRY(be->ops->set_precision(be, be->act, false));
    status st = attn_problem_open(&p, be, s, clock_ns(), be->n_ahead > 0 ? CACHE_BYTES : 0);
    if (st == OK) st = measure(&p, table);
    attn_problem_close(&p);
    return st;
}

static status run_shapes(const bench_args *a, work *w) {
    const char *card = w->be->card;
    attn_rows table = {
        .be = w->be, .dtype = a->dtype, .is_any_card = a->is_any_card, .is_json = a->is_json};
    int n_wanted = 0, n_left_out = 0;
    table.has_peers = w->be->act == ACT_BF16 && card != NULL && strstr(card, "H200") != NULL;
    for (int i = 0; i < N_SHAPES; i++)
        n_wanted += is_wanted(a, &shapes[i]);
    if (n_wanted == 0)
        return fail(ERR_USAGE,
                    "no row has this --dim, --length and --mask; without them all %d "
                    "rows are measured",
                    (int)N_SHAPES);
    TRY(peak_measure(w->be, &table.peak));
    attn_rows_begin(&table);
    for (int i = 0; i < N_SHAPES; i++) {
        bool is_long = w->be->n_ahead == 0 && bound_flops(&shapes[i]) > CPU_MAX_FLOPS;
        if (!is_wanted(a, &shapes[i])) continue;
        n_left_out += is_long;
        if (!is_long) TRY(run_shape(&table, w->be, &shapes[i]));
    }
    attn_rows_end(&table);
    if (n_left_out > 0 && !a->is_json)
        printf("\n%d rows are for a GPU: they would take minutes here.\n", n_left_out);
    return OK;
}

static status find_dtype(const char *name, act_type *out) {
    static const char *const names[] = {
        [ACT_F32] = "float32", [ACT_BF16] = "bfloat16", [ACT_F16] = "float16"};
    for (int i = ACT_F32; i <= ACT_F16; i++) {
        if (strcmp(name, names[i]) != 0) continue;
        *out = (act_type)i;
        return OK;
    }
    return fail(ERR_USAGE, "--dtype %.40s: the types are float32, bfloat16 and float16", name);
}

static status run(bench_args *a) {
    work w;
    act_type act = ACT_F32;
    TRY(find_dtype(a->dtype, &act));
    TRY(work_open(&w, NULL, a->device));
    status st = w.be->ops->set_precision(w.be, act, false);
    if (w.be->act == ACT_F32) a->dtype = "float32";
    if (st == OK) st = run_shapes(a, &w);
    work_close(&w);
    return st;
}

status bench_attention(int argc, char **argv) {
    bench_args a = {.device = "auto", .dtype = "bfloat16"};
    bool is_help;
    const arg_option options[] = {
        {"--device", ARG_TEXT, &a.device, "DEVICE", WORK_DEVICES, 0, 0},
        {"--dtype", ARG_TEXT, &a.dtype, "TYPE",
         "bfloat16 (default), float16 or float32; a CPU computes in float32.", 0, 0},
        {"--dim", ARG_INT, &a.dim, "D", "Only rows with heads of D numbers: 32, 64, 128 or 256.", 1,
         65536},
        {"--length", ARG_INT, &a.length, "S",
         "Only rows with sequences of up to S: 50, 200, 512, 1024, 4096 or 16384.", 1, 1 << 24},
        {"--mask", ARG_TEXT, &a.mask, "TEXT",
         "Only rows whose mask has TEXT in it: causal, window, target, arbitrary, bias.", 0, 0},
        {"--any-card", ARG_FLAG, &a.is_any_card, NULL,
         "On a GPU: the kernels for any card, not those for the one there is; peer is the kernel "
         "for Ampere.",
         0, 0},
        {"--json", ARG_FLAG, &a.is_json, NULL, "Print one JSON object a row.", 0, 0},
        {0},
    };
    const arg_spec spec = {"hstu bench attention [options]",
                           "Measures HSTU attention, forward and backward, at the shapes of the "
                           "field's table, after checking each against float64.",
                           options,
                           0,
                           0,
                           "On an H200 in bfloat16, rows that NVIDIA's kernels were measured at "
                           "show the ratio to the better of them."};
    status st = args_parse(&spec, argc, argv, NULL, NULL, &is_help);
    if (st == OK && !is_help) st = run(&a);
    return st;
}
