/* bench_attn_cpu [THREADS]: the attention of one layer on a batch like ML-1M's, forward and
 * backward, on the CPU.
 *
 * 128 users, N = 211, lengths up to 200 with a mean of about 115, time and position bias; one head
 * of 50 and two of 25, and as a second kind the softmax attention of SASRec.  Prints the best of
 * the rounds, and the GFLOP/s of the products that the mask leaves (2 forward, 5 backward); then
 * the processor time of all threads together, which other programs on the machine disturb less. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/mem.h"
#include "base/rng.h"
#include "base/thread.h"
#include "ops/ops.h"

enum { N_USERS = 128, N = 211, N_ROUNDS = 21 };

typedef struct batch {
    int32_t offsets[N_USERS + 1];
    int64_t n_pairs; /* that a causal mask sees */
    int64_t *time;
    float *data[9];
    float position_w[2 * N], time_w[129], dposition_w[2 * N], dtime_w[129];
} batch;

static uint32_t n_drawn;

static uint32_t draw(void) {
    return rng_draw64(rng_make_key(1, RNG_TEST), n_drawn++, 0).word[0];
}

/* A long tail cut at 200: a third of the users have the full length. */
static int32_t draw_length(void) {
    double u = (double)rng_uniform(draw()) + 1e-9;
    double length = 20.0 - 130.0 * log(u);
    return length > 200.0 ? 200 : (int32_t)length;
}

static status make_batch(batch *m, int width) {
    for (int b = 0; b < N_USERS; b++) {
        int32_t length = draw_length();
        m->offsets[b + 1] = m->offsets[b] + length;
        m->n_pairs += (int64_t)length * (length + 1) / 2;
    }
    int64_t n_tokens = m->offsets[N_USERS];
    TRY(MEM_NEW(&m->time, (size_t)n_tokens));
    for (int64_t i = 0; i < n_tokens; i++)
        m->time[i] =
            (i > 0 ? m->time[i - 1] : 0) + (draw() % 8 == 0 ? draw() % 2000000 : draw() % 60);
    for (int r = 0; r < 9; r++) {
        TRY(MEM_NEW(&m->data[r], (size_t)(n_tokens * width)));
        for (int64_t i = 0; i < n_tokens * width; i++)
            m->data[r][i] = rng_uniform(draw()) - 0.5f;
    }
    return OK;
}

/* Of one op: the best wall and processor time of the rounds. */
typedef struct timing {
    double wall_ms, cpu_ms;
} timing;

static double cpu_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static void timing_start(timing *t) {
    *t = (timing){(double)clock_ns() * 1e-6, cpu_ms()};
}

static void timing_stop(const timing *start, timing *best) {
    double wall = (double)clock_ns() * 1e-6 - start->wall_ms, cpu = cpu_ms() - start->cpu_ms;
    if (wall < best->wall_ms) best->wall_ms = wall;
    if (cpu < best->cpu_ms) best->cpu_ms = cpu;
}

static void print_line(const char *what, int n_heads, int dim, const batch *m, timing forward,
                       timing backward) {
    double flops = 2.0 * (double)m->n_pairs * n_heads * dim;
    printf("%-8s H %d  D %2d  tokens %d  pairs %lld  forward %.1f ms (%.1f GFLOP/s)  backward %.1f "
           "ms (%.1f GFLOP/s)  both %.1f ms, processor %.1f + %.1f = %.1f ms\n",
           what, n_heads, dim, m->offsets[N_USERS], (long long)m->n_pairs, forward.wall_ms,
           2.0 * flops / forward.wall_ms * 1e-6, backward.wall_ms,
           5.0 * flops / backward.wall_ms * 1e-6, forward.wall_ms + backward.wall_ms,
           forward.cpu_ms, backward.cpu_ms, forward.cpu_ms + backward.cpu_ms);
}

static status bench_hstu(backend *be, batch *m, int n_heads, int dim, attn_bias bias) {
    attn_args a = {.n_sequences = N_USERS, .n_heads = n_heads, .dim_qk = dim, .dim_v = dim};
    timing start, forward = {1e9, 1e9}, backward = {1e9, 1e9};
    a.max_len_q = a.max_len_k = a.bias_len = N;
    a.offsets_q = a.offsets_k = m->offsets;
    a.q = m->data[0], a.k = m->data[1], a.v = m->data[2], a.dout = m->data[3];
    a.out = m->data[4], a.dq = m->data[5], a.dk = m->data[6], a.dv = m->data[7];
    a.stride_q = a.stride_k = a.stride_v = a.stride_out = n_heads * dim;
    a.alpha = 1.0f, a.scale = 1.0f / N, a.window_left = -1, a.target_group = 1;
    a.bias = bias;
    a.query_time = a.key_time = m->time;
    a.position_w = m->position_w, a.time_w = m->time_w;
    a.dposition_w = m->dposition_w, a.dtime_w = m->dtime_w;
    for (int r = 0; r < N_ROUNDS; r++) {
        timing_start(&start);
        TRY(be->ops->attn_fwd(be, &a));
        timing_stop(&start, &forward);
        timing_start(&start);
        TRY(be->ops->attn_bwd(be, &a));
        timing_stop(&start, &backward);
    }
    print_line(bias == BIAS_TIME ? "time" : "no bias", n_heads, dim, m, forward, backward);
    return OK;
}

static status bench_softmax(backend *be, batch *m, int n_heads, int dim) {
    softmax_attn_args a = {.n_sequences = N_USERS,
                           .n_heads = n_heads,
                           .dim = dim,
                           .max_len = N,
                           .mask.rule.kind = MASK_CAUSAL};
    timing start, forward = {1e9, 1e9}, backward = {1e9, 1e9};
    a.offsets = m->offsets;
    a.q = m->data[0], a.k = m->data[1], a.v = m->data[2], a.dout = m->data[3];
    a.out = m->data[4], a.dq = m->data[5], a.dk = m->data[6], a.dv = m->data[7];
    a.log_sum = m->data[8];
    a.stride_q = a.stride_k = a.stride_v = a.stride_out = n_heads * dim;
    a.alpha = 1.0f / sqrtf((float)dim);
    for (int r = 0; r < N_ROUNDS; r++) {
        timing_start(&start);
        TRY(be->ops->softmax_attn_fwd(be, &a));
        timing_stop(&start, &forward);
        timing_start(&start);
        TRY(be->ops->softmax_attn_bwd(be, &a));
        timing_stop(&start, &backward);
    }
    print_line("softmax", n_heads, dim, m, forward, backward);
    return OK;
}

static status bench_all(int n_threads) {
    static batch m;
    pool *workers = NULL;
    backend *be = NULL;
    status st = pool_create(&workers, n_threads);
    if (st == OK) st = backend_create_cpu(&be, workers);
    if (st == OK) st = make_batch(&m, 64);
    if (st == OK) st = bench_hstu(be, &m, 1, 50, BIAS_TIME);
    if (st == OK) st = bench_hstu(be, &m, 2, 25, BIAS_TIME);
    if (st == OK) st = bench_hstu(be, &m, 1, 50, BIAS_NONE);
    if (st == OK) st = bench_hstu(be, &m, 1, 64, BIAS_NONE);
    if (st == OK) st = bench_softmax(be, &m, 1, 50);
    for (int r = 0; r < 9; r++)
        mem_free(m.data[r]);
    mem_free(m.time);
    backend_destroy(be);
    pool_destroy(workers);
    return st;
}

int main(int argc, char **argv) {
    status st = bench_all(argc > 1 ? atoi(argv[1]) : 2);
    if (st != OK) fprintf(stderr, "bench_attn_cpu: %s\n", status_reason());
    return status_exit_code(st);
}
