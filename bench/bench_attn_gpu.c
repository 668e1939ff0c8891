/* bench_attn_gpu: HSTU attention on the GPU, bfloat16, four heads, causal, at the shapes of the
 * peers' table: forward and backward in ms and TFLOP/s.
 *
 * FLOPs are counted as the peers count them: forward 4 H D sum(L^2) / 2, backward 2.5 times that.
 * The result is compared first with the same call on the kernels of SM 8.0 (n_rows 0 keeps the
 * newer ones out), which the unit tests hold against float64.  Best of the rounds, plain calls. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/half.h"
#include "base/mem.h"
#include "base/rng.h"
#include "ops/ops.h"

enum { H = 4, ROUNDS = 3, CALLS = 10, N_ARRAYS = 8, MAX_B = 512 };

typedef struct shape {
    int d, b, s;
    bool is_jagged;
} shape;

static const shape shapes[] = {
    {64, 32, 1024, false},  {64, 32, 4096, false},  {64, 32, 4096, true},   {64, 128, 512, true},
    {64, 128, 200, true},   {64, 512, 50, true},    {128, 32, 1024, false}, {128, 32, 4096, false},
    {128, 32, 4096, true},  {128, 128, 512, true},  {128, 128, 200, true},  {128, 512, 50, true},
    {256, 32, 1024, false}, {256, 32, 4096, false}, {256, 32, 4096, true},  {256, 128, 512, true},
    {256, 128, 200, true},  {256, 512, 50, true},
};

typedef struct problem {
    attn_args a;
    int64_t n_tokens;
    double flops;
    void *array[N_ARRAYS]; /* q, k, v, out, dout, dq, dk, dv */
    int32_t *offsets;
    uint16_t *host[2];
} problem;

static status must(status st) {
    if (st != OK) fprintf(stderr, "bench_attn_gpu: %s\n", status_reason());
    return st;
}

static uint16_t to_bf16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static void draw_lengths(problem *p, const shape *s, int32_t *offsets) {
    rng_key key = rng_make_key(clock_ns(), RNG_TEST);
    offsets[0] = 0;
    p->flops = 0;
    for (int b = 0; b < s->b; b++) {
        uint32_t word = rng_draw64(key, (uint64_t)b, 0).word[0];
        int32_t n = s->is_jagged ? 1 + (int32_t)rng_below(word, (uint32_t)s->s) : s->s;
        offsets[b + 1] = offsets[b] + n;
        p->flops += 2.0 * H * s->d * (double)n * n;
    }
    p->n_tokens = offsets[s->b];
}

static status open_problem(problem *p, backend *be, const shape *s) {
    int32_t offsets[MAX_B + 1];
    *p = (problem){0};
    draw_lengths(p, s, offsets);
    size_t n = (size_t)p->n_tokens * H * (size_t)s->d;
    TRY(be->ops->alloc(be, (void **)&p->offsets, sizeof offsets));
    TRY(be->ops->copy_in(be, p->offsets, offsets, ((size_t)s->b + 1) * sizeof *offsets));
    for (int i = 0; i < 2; i++)
        TRY(MEM_NEW_RAW(&p->host[i], n));
    for (int i = 0; i < N_ARRAYS; i++) {
        TRY(be->ops->alloc(be, &p->array[i], n * 2));
        if (i == 3 || i > 4) continue;
        for (size_t k = 0; k < n; k++)
            p->host[0][k] = to_bf16(
                2 * rng_uniform(rng_draw64(rng_make_key(9, RNG_TEST), k, (uint64_t)i).word[0]) - 1);
        TRY(be->ops->copy_in(be, p->array[i], p->host[0], n * 2));
    }
    p->a = (attn_args){.n_sequences = s->b,
                       .n_heads = H,
                       .dim_qk = s->d,
                       .dim_v = s->d,
                       .max_len_q = s->s,
                       .max_len_k = s->s,
                       .offsets_q = p->offsets,
                       .offsets_k = p->offsets,
                       .q = p->array[0],
                       .k = p->array[1],
                       .v = p->array[2],
                       .out = p->array[3],
                       .dout = p->array[4],
                       .dq = p->array[5],
                       .dk = p->array[6],
                       .dv = p->array[7],
                       .stride_q = H * s->d,
                       .stride_k = H * s->d,
                       .stride_v = H * s->d,
                       .stride_out = H * s->d,
                       .alpha = 1 / sqrtf((float)s->d),
                       .scale = 1 / (float)s->s,
                       .window_left = -1,
                       .window_right = 0,
                       .target_group = 1};
    return OK;
}

static void close_problem(problem *p, backend *be) {
    for (int i = 0; i < N_ARRAYS; i++)
        be->ops->release(be, p->array[i]);
    be->ops->release(be, p->offsets);
    mem_free(p->host[0]);
    mem_free(p->host[1]);
}

static status call(backend *be, const attn_args *a, bool is_backward) {
    return is_backward ? be->ops->attn_bwd(be, a) : be->ops->attn_fwd(be, a);
}

static status time_calls(backend *be, const attn_args *a, bool is_backward, double *ms) {
    *ms = 1e9;
    for (int r = 0; r < ROUNDS + 1; r++) { /* the first warms up */
        uint64_t start = clock_ns();
        for (int i = 0; i < CALLS; i++)
            TRY(call(be, a, is_backward));
        TRY(be->ops->sync(be));
        double took = (double)(clock_ns() - start) / 1e6 / CALLS;
        if (r > 0 && took < *ms) *ms = took;
    }
    return OK;
}

/* The largest difference of an array between the two families, over its largest number. */
static status compare(backend *be, problem *p, const shape *s, int array, bool is_backward,
                      double *error) {
    size_t n = (size_t)p->n_tokens * H * (size_t)s->d;
    attn_args a = p->a;
    double most = 0, off = 0;
    for (int i = 0; i < 2; i++) {
        a.n_rows_q = a.n_rows_k = i == 0 ? 0 : p->n_tokens;
        TRY(call(be, &a, is_backward));
        TRY(be->ops->copy_out(be, p->host[i], p->array[array], n * 2));
    }
    for (size_t k = 0; k < n; k++) {
        double x = half_bf16_to_float(p->host[0][k]), y = half_bf16_to_float(p->host[1][k]);
        if (fabs(x) > most) most = fabs(x);
        if (!(fabs(x - y) <= off)) off = fabs(x - y);
    }
    if (off / most > *error || !(off == off)) *error = off / most;
    return OK;
}

static status run(backend *be, const shape *s) {
    problem p;
    double ms[2][2], error = 0;
    TRY(open_problem(&p, be, s));
    status st = compare(be, &p, s, 3, false, &error);
    for (int array = 5; array < 8 && st == OK; array++)
        st = compare(be, &p, s, array, true, &error);
    for (int i = 0; i < 4 && st == OK; i++) {
        attn_args a = p.a;
        a.n_rows_q = a.n_rows_k = i / 2 == 0 ? 0 : p.n_tokens;
        st = time_calls(be, &a, i % 2, &ms[i / 2][i % 2]);
    }
    if (st == OK)
        printf(
            "%4d %4d %5d %-3s %7lld   %8.3f %5.0f  %8.3f %5.0f   %8.3f %5.0f  %8.3f %5.0f   %.1e\n",
            s->d, s->b, s->s, s->is_jagged ? "yes" : "no", (long long)p.n_tokens, ms[0][0],
            p.flops / ms[0][0] / 1e9, ms[0][1], 2.5 * p.flops / ms[0][1] / 1e9, ms[1][0],
            p.flops / ms[1][0] / 1e9, ms[1][1], 2.5 * p.flops / ms[1][1] / 1e9, error);
    fflush(stdout);
    close_problem(&p, be);
    return st;
}

int main(void) {
    backend *be;
    cuda_options options = {0};
    if (must(backend_create_cuda(&be, &options)) != OK) return 1;
    status st = be->ops->set_precision(be, ACT_BF16, false);
    printf(
        "   D    B     S jag  tokens   SM 8.0: fwd ms TFLOP/s, bwd          newest: fwd, bwd       "
        "            differ\n");
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes && st == OK; i++)
        st = must(run(be, &shapes[i]));
    backend_destroy(be);
    return st != OK;
}
