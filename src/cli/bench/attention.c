#include "cli/bench/attention.h"

#include <math.h>
#include <string.h>

#include "base/thread.h"
#include "cli/bench/timing.h"
#include "profile/peak.h"

enum { N_HEADS = 4, RECORD_KEY = 77 };

/* More than the L2 cache of any GPU (H200: 50 MB). */
static const int64_t CACHE_BYTES = 64 << 20;

/* A CPU leaves out shapes whose forward pass has more FLOPs than this. */
static const double CPU_MAX_FLOPS = 2e10;

/* The published tables, and what they leave out: very long sequences, other masks, biases. */
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

/* One pass of a problem. */
typedef struct timed_pass {
    const attn_problem *p;
    int pass;
} timed_pass;

/* Call i uses the copies in turn. */
static status call(void *ctx, int i) {
    const timed_pass *t = ctx;
    backend *be = t->p->be;
    const attn_args *a = &t->p->copy[i % t->p->n_copies];
    return t->pass == PASS_BACKWARD ? be->ops->attn_bwd(be, a) : be->ops->attn_fwd(be, a);
}

/* Well above the error of naive code in this type, well below what a wrong index causes. */
static double allowed_error(act_type act) {
    return act == ACT_F32 ? 1e-3 : act == ACT_F16 ? 5e-3 : 3e-2;
}

static status check(attn_bench *b, attn_problem *p, double *error) {
    char label[ATTN_LABEL_BYTES];
    for (int c = 0; c < p->n_copies && b->is_any_card; c++)
        p->copy[c].n_rows_q = p->copy[c].n_rows_k = 0;
    TRY(attn_problem_check(p, error));
    if (*error <= allowed_error(p->be->act)) return OK;
    return fail(ERR_NUMERIC,
                "head dimension %d, sequences of %d, %s: the result differs from float64 by %.2g "
                "of its largest value; nothing was timed",
                p->shape.dim, p->shape.max_len, attn_shape_label(&p->shape, label), *error);
}

static void compare_with_peers(attn_bench *b, attn_row *r, int pass, int how) {
    r->tflops[pass][how] =
        (pass == PASS_FORWARD ? 1 : 2.5) * r->p->flops / r->seconds[pass][how] / 1e12;
    r->ratio[pass][how] = NAN;
    if (b->has_peers)
        r->ratio[pass][how] =
            r->tflops[pass][how] /
            attn_peer_best(&r->p->shape, b->is_any_card, (attn_timing)how, (attn_pass)pass);
    if (isnan(r->ratio[pass][how])) return;
    b->log_ratio[pass][how] += log(r->ratio[pass][how]);
    b->n_ratios[pass][how]++;
}

static status measure(attn_bench *b, attn_problem *p, attn_row_fn fn, void *ctx) {
    attn_row r = {.p = p};
    TRY(check(b, p, &r.error));
    for (int pass = 0; pass < N_PASSES; pass++) {
        timed_pass t = {p, pass};
        TRY(timing_plain(p->be, call, &t, &r.seconds[pass][TIMED_PLAIN]));
        TRY(timing_replay(p->be, RECORD_KEY + (uint64_t)pass, call, &t,
                          &r.seconds[pass][TIMED_REPLAY]));
        for (int how = 0; how < N_TIMINGS; how++)
            compare_with_peers(b, &r, pass, how);
    }
    return fn(ctx, &r);
}

static status run_shape(attn_bench *b, const attn_shape *s, attn_row_fn fn, void *ctx) {
    attn_problem p;
    backend *be = b->be;
    /* Drops old recordings: they use the memory of the problem before. */
    TRY(be->ops->set_precision(be, be->act, false));
    status st = attn_problem_open(&p, be, s, b->seed, be->n_ahead > 0 ? CACHE_BYTES : 0);
    if (st == OK) st = measure(b, &p, fn, ctx);
    attn_problem_close(&p);
    return st;
}

/* An upper bound of the forward pass's FLOPs, known before lengths are drawn. */
static double bound_flops(const attn_shape *s) {
    return 4.0 * s->n_heads * s->dim * s->n_sequences * (double)s->max_len * s->max_len / 2;
}

static bool is_wanted(const attn_filter *f, const attn_shape *s) {
    char label[ATTN_LABEL_BYTES];
    if (f->dim != 0 && f->dim != s->dim) return false;
    if (f->length != 0 && f->length != s->max_len) return false;
    return f->mask == NULL || strstr(attn_shape_label(s, label), f->mask) != NULL;
}

status attn_bench_open(attn_bench *b, backend *be, const attn_filter *filter, bool is_any_card) {
    int n_wanted = 0;
    *b = (attn_bench){.be = be, .filter = *filter, .is_any_card = is_any_card};
    b->seed = filter->seed != 0 ? (uint64_t)filter->seed : clock_ns();
    b->has_peers = be->act == ACT_BF16 && be->card != NULL && strstr(be->card, "H200") != NULL;
    for (int i = 0; i < N_SHAPES; i++)
        n_wanted += is_wanted(filter, &shapes[i]);
    if (n_wanted == 0)
        return fail(ERR_USAGE,
                    "no row has this --dim, --length and --mask; without them all %d "
                    "rows are measured",
                    (int)N_SHAPES);
    return peak_measure(be, &b->peak);
}

status attn_bench_run(attn_bench *b, attn_row_fn fn, void *ctx) {
    for (int i = 0; i < N_SHAPES; i++) {
        bool is_long = b->be->n_ahead == 0 && bound_flops(&shapes[i]) > CPU_MAX_FLOPS;
        if (!is_wanted(&b->filter, &shapes[i])) continue;
        b->n_left_out += is_long;
        if (!is_long) TRY(run_shape(b, &shapes[i], fn, ctx));
    }
    return OK;
}
