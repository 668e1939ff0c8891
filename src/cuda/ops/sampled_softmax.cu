/* sampled_softmax and negatives (ops.h): the draws, scores, losses and the gradient of the queries.
 *
 * A warp owns a loss row and reads each row of the table once: L lanes hold one row of it, so
 * that 32 / L rows are processed in parallel and STEPS of them are in flight; sums of exponentials
 * and the gradient of the query run along with the largest score so far, as in an online softmax.
 * What is kept is one score for each negative, which becomes the weight with which
 * sampled_softmax_table.cu adds the query to the gradient of the table.  Bound by bytes from the L2
 * cache: E floats a negative. */
#include <float.h>

#include "cuda/core/kernel.cuh"
#include "cuda/ops/sampled_softmax.cuh"

enum { SCORE_THREADS = 128, SCORE_WARPS = SCORE_THREADS / WARP, SUM_THREADS = 1024 };

#define MASKED    (-50000.0f)
#define ALL_LANES 0xffffffffu

/* One warp for each row; in double, as a row's length may be far from 1. */
static __global__ void __launch_bounds__(SCORE_THREADS)
    sampled_softmax_scale_any_kernel(softmax_job j) {
    int64_t v = (int64_t)blockIdx.x * SCORE_WARPS + threadIdx.x / WARP;
    double squares = 0;
    if (v >= j.a.n_rows) return;
    for (int c = (int)threadIdx.x % WARP; c < j.a.dim; c += WARP) {
        double x = j.a.table[v * j.a.dim + c];
        squares += x * x;
    }
    double length = sqrt(warp_sum(squares));
    bool is_short = !(length > (double)j.a.eps);
    float scale = (float)(1 / (is_short ? (double)j.a.eps : length));
    if (threadIdx.x % WARP == 0) j.scale[v] = is_short ? -scale : scale;
}

/* A lane holds L elements of a row of at most L * L: pack p has columns (p L + part) N and on.  The
 * pointer is moved to the lane's first column, after which `left` columns remain; all other offsets
 * are then constants, which need no registers. */
template <int N, int L>
__device__ static inline void load_row(const float *row, int left, float (&x)[L]) {
#pragma unroll
    for (int p = 0; p < L / N; p++) {
        pack<float, N> from = {};
        if (p * L * N < left) from = *(const pack<float, N> *)(row + p * L * N);
#pragma unroll
        for (int i = 0; i < N; i++)
            x[p * N + i] = from.v[i];
    }
}

template <typename T, int N, int L>
__device__ static inline void load_act(const T *row, int left, float (&x)[L]) {
#pragma unroll
    for (int i = 0; i < L; i++) {
        int column = i / N * L * N + i % N;
        x[i] = column < left ? to_float(row[column]) : 0;
    }
}

template <typename T, int N, int L>
__device__ static inline void store_act(T *row, int left, const float (&x)[L]) {
#pragma unroll
    for (int i = 0; i < L; i++) {
        int column = i / N * L * N + i % N;
        if (column < left) row[column] = from_float<T>(x[i]);
    }
}

template <int N, int L>
__device__ static inline void load_query(const softmax_job &j, int64_t at, int left,
                                         float (&x)[L]) {
    if (j.act == ACT_BF16)
        load_act<__nv_bfloat16, N, L>((const __nv_bfloat16 *)j.a.query + at, left, x);
    else if (j.act == ACT_F16)
        load_act<__half, N, L>((const __half *)j.a.query + at, left, x);
    else
        load_act<float, N, L>((const float *)j.a.query + at, left, x);
}

template <int N, int L>
__device__ static inline void store_dquery(const softmax_job &j, int64_t at, int left,
                                           const float (&x)[L]) {
    if (j.act == ACT_BF16)
        store_act<__nv_bfloat16, N, L>((__nv_bfloat16 *)j.a.dquery + at, left, x);
    else if (j.act == ACT_F16)
        store_act<__half, N, L>((__half *)j.a.dquery + at, left, x);
    else
        store_act<float, N, L>((float *)j.a.dquery + at, left, x);
}

/* x . y for every lane of a row. */
template <int L> __device__ static inline float dot(const float (&x)[L], const float (&y)[L]) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < L; i++)
        sum = fmaf(x[i], y[i], sum);
#pragma unroll
    for (int lane = L / 2; lane > 0; lane /= 2)
        sum += __shfl_xor_sync(ALL_LANES, sum, lane);
    return sum;
}

/* The online softmax of the negatives that the lanes of one row have processed: the largest score,
 * the sum of exp(score - top), and the sum of exp(score - top) l2(row). */
template <int L> struct tally { float top, sum, row[L]; };

template <int L> __device__ static inline void tally_lift(tally<L> *t, float top) {
    float shrink = expf(t->top - top);
    t->top = top;
    t->sum *= shrink;
#pragma unroll
    for (int i = 0; i < L; i++)
        t->row[i] *= shrink;
}

/* Every lane gets the tally over all lanes of its warp, relative to at least `floor`. */
template <int L> __device__ static inline void tally_merge(tally<L> *t, float floor) {
    float top = fmaxf(t->top, floor);
#pragma unroll
    for (int lane = L; lane < WARP; lane *= 2)
        top = fmaxf(top, __shfl_xor_sync(ALL_LANES, top, lane));
    tally_lift(t, top);
#pragma unroll
    for (int lane = L; lane < WARP; lane *= 2) {
        t->sum += __shfl_xor_sync(ALL_LANES, t->sum, lane);
#pragma unroll
        for (int i = 0; i < L; i++)
            t->row[i] += __shfl_xor_sync(ALL_LANES, t->row[i], lane);
    }
}

/* Up to 32 negatives of a loss row, one a lane. */
typedef struct batch32 {
    int32_t row;   /* of the table */
    float scale;   /* that makes it l2(row) */
    float log_q;   /* what its score is corrected by */
    unsigned hits; /* bit i: that of lane i is the positive */
    int n;
} batch32;

__device__ static inline int32_t row_name(const softmax_job &j, int32_t row) {
    return j.a.row_id != NULL ? j.a.row_id[row] : row;
}

__device__ static inline batch32 batch32_take(const softmax_job &j, int64_t m, int32_t first,
                                              int32_t positive) {
    int lane = (int)threadIdx.x % WARP, n = j.a.n_negatives - first;
    batch32 b = {positive, 0, 0, 0, n < WARP ? n : (int)WARP};
    bool is_hit = false;
    if (lane < b.n) {
        b.row = j.a.negative[m * j.a.n_negatives + first + lane];
        b.scale = row_scale(j, b.row);
        is_hit = j.a.kind != PAIRS_GBCE && row_name(j, b.row) == row_name(j, positive);
        if (j.a.log_q != NULL) b.log_q = j.a.log_q[b.row];
    }
    b.hits = __ballot_sync(ALL_LANES, is_hit);
    return b;
}

/* Adds STEPS * GROUPS negatives, from number `from` on, to the tally, and writes their scores to
 * `scores` (NULL: not kept); a masked score is -infinity, as it gets no weight.  Of the binary
 * losses the tally sums the losses, and the sigmoids times the rows; its top stays 0. */
template <int N, int L, bool IS_PLAIN>
__device__ static inline void meet(const softmax_job &j, const batch32 &b, int from,
                                   const float (&q)[L], float sharpness, tally<L> *t,
                                   float *scores) {
    constexpr int GROUPS = WARP / L, STEPS = WARP / L;
    int part = (int)threadIdx.x % L, group = (int)threadIdx.x % WARP / L;
    int left = j.a.dim - part * N;
    bool is_binary = !IS_PLAIN && j.a.kind != PAIRS_SOFTMAX;
    const float *table = j.a.table + part * N;
    float row[STEPS][L], score[STEPS], scale[STEPS], top = t->top;
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
        int who = from + s * GROUPS + group;
        int64_t v = __shfl_sync(ALL_LANES, b.row, who);
        load_row<N, L>(table + v * j.a.dim, left, row[s]);
    }
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
        int who = from + s * GROUPS + group;
        bool is_hit = b.hits >> who & 1;
        scale[s] = __shfl_sync(ALL_LANES, b.scale, who);
        score[s] = dot<L>(q, row[s]) * scale[s] * sharpness;
        if constexpr (!IS_PLAIN) score[s] -= __shfl_sync(ALL_LANES, b.log_q, who);
        if (is_hit) score[s] = MASKED, scale[s] = 0;
        if (who >= b.n) score[s] = -FLT_MAX;
        if (scores != NULL && part == 0 && who < b.n) scores[who] = is_hit ? -INFINITY : score[s];
        top = fmaxf(top, score[s]);
    }
    if (!is_binary) tally_lift(t, top);
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
        float share = 0;
        if (from + s * GROUPS + group < b.n)
            share = is_binary ? pairs_sigmoid(score[s]) : expf(score[s] - top);
        t->sum += is_binary ? pairs_softplus(score[s]) : share;
#pragma unroll
        for (int i = 0; i < L; i++)
            t->row[i] = fmaf(share * scale[s], row[s][i], t->row[i]);
    }
}

/* A loss row that only fills up. */
__device__ static inline void write_nothing(const softmax_job &j, int64_t m) {
    int lane = (int)threadIdx.x % WARP;
    for (int c = lane; j.a.dquery != NULL && c < j.a.dim; c += WARP)
        act_set(j.a.dquery, j.act, m * j.a.dim + c, 0);
    if (lane > 0) return;
    j.losses[m] = 0;
    if (j.a.row_loss != NULL) j.a.row_loss[m] = 0;
}

/* Scores to weights: factor * share of each negative; the lanes read what others wrote. */
__device__ static inline void weigh(const softmax_job &j, float *weight, float top, float factor,
                                    float positive_weight, bool is_binary) {
    int lane = (int)threadIdx.x % WARP;
    __syncwarp();
    for (int32_t r = lane; r < j.a.n_negatives; r += WARP)
        weight[r] = factor * (is_binary ? pairs_sigmoid(weight[r]) : expf(weight[r] - top));
    if (lane == 0) weight[j.a.n_negatives] = positive_weight;
}

/* What the tally of a row comes to: its loss, the factor of the negatives' shares, and the weight
 * of the positive. */
typedef struct verdict {
    double loss;
    float factor, own;
} verdict;

/* The positive's derivative, p - 1, is computed as minus the sum of the others: exact also where
 * p rounds to 1; and the loss is computed in double, which can hold 1 + a small number. */
__device__ static inline verdict softmax_verdict(float others_sum, float below_top, float factor) {
    double others = others_sum, below = below_top, total = others + exp(below);
    return {log(total) - below, factor * (float)(1 / total), -factor * (float)(others / total)};
}

__device__ static inline verdict binary_verdict(const softmax_job &j, float sum, float own_score,
                                                float factor) {
    float share = 1 / (float)(j.a.n_negatives + 1);
    double loss = (double)j.a.beta * pairs_softplus(-own_score) + (double)sum;
    return {loss / (j.a.n_negatives + 1), factor * share,
            -factor * share * j.a.beta * pairs_sigmoid(-own_score)};
}

/* Blocks on a multiprocessor: as many as the registers for a lane's rows allow. */
static constexpr int min_blocks(int lanes, bool is_plain) {
    return lanes == 8 ? (is_plain ? 5 : 4) : lanes == 16 ? 4 : 3;
}

/* IS_PLAIN: the softmax without corrections; binary losses and log_q are the other kernel's. */
template <int N, int L, bool IS_PLAIN>
static __global__ void __launch_bounds__(SCORE_THREADS, min_blocks(L, IS_PLAIN))
    sampled_softmax_score_any_kernel(softmax_job j) {
    int64_t m = (int64_t)blockIdx.x * SCORE_WARPS + threadIdx.x / WARP;
    int part = (int)threadIdx.x % L, group = (int)threadIdx.x % WARP / L;
    int left = j.a.dim - part * N, n_hits = 0;
    bool is_binary = !IS_PLAIN && j.a.kind != PAIRS_SOFTMAX;
    if (m >= j.a.n) return;
    int32_t positive = j.a.positive[m];
    if (positive < 0) {
        write_nothing(j, m);
        return;
    }
    float q[L], own[L];
    tally<L> t = {is_binary ? 0 : -FLT_MAX, 0, {}};
    float *weight = j.a.dquery != NULL ? j.weight + m * ((int64_t)j.a.n_negatives + 1) : NULL;
    load_query<N, L>(j, m * j.a.dim + part * N, left, q);
    const float *own_row = j.a.table + (int64_t)positive * j.a.dim + part * N;
    load_row<N, L>(own_row, left, own);
    float own_scale = row_scale(j, positive), sharpness = 1 / j.a.temperature;
    float own_score = dot<L>(q, own) * own_scale * sharpness;
    if (!IS_PLAIN && j.a.log_q != NULL && j.a.corrects_positive) own_score -= j.a.log_q[positive];
#pragma unroll 1
    for (int32_t first = 0; first < j.a.n_negatives; first += WARP) {
        batch32 b = batch32_take(j, m, first, positive);
        if (!IS_PLAIN) n_hits += __popc(b.hits);
#pragma unroll 1
        for (int from = 0; from < b.n; from += WARP / L * (WARP / L))
            meet<N, L, IS_PLAIN>(j, b, from, q, sharpness, &t,
                                 weight != NULL ? weight + first : NULL);
    }
    tally_merge(&t, is_binary ? 0 : own_score);
    float factor = *j.a.grad_scale / j.a.temperature;
    verdict v = is_binary ? binary_verdict(j, t.sum, own_score, factor)
                          : softmax_verdict(t.sum, own_score - t.top, factor);
    if (is_binary && n_hits > 0 && n_hits == j.a.n_negatives) v = {0, 0, 0};
    if (threadIdx.x % WARP == 0) {
        j.losses[m] = v.loss;
        if (j.a.row_loss != NULL) j.a.row_loss[m] = (float)j.losses[m];
    }
    if (weight == NULL) return;
    load_row<N, L>(own_row, left, own);
#pragma unroll
    for (int i = 0; i < L; i++)
        t.row[i] = fmaf(v.own * own_scale, own[i], v.factor * t.row[i]);
    if (group == 0) store_dquery<N, L>(j, m * j.a.dim + part * N, left, t.row);
    weigh(j, weight, t.top, v.factor, v.own, is_binary);
}

/* *loss += the rows' losses, by one block in a fixed order. */
static __global__ void __launch_bounds__(SUM_THREADS)
    sampled_softmax_loss_any_kernel(softmax_job j) {
    __shared__ double room[WARP];
    double sum = 0;
#pragma unroll 4
    for (int64_t m = threadIdx.x; m < j.a.n; m += SUM_THREADS)
        sum += j.losses[m];
    sum = block_sum(sum, room);
    if (threadIdx.x == 0) *j.a.loss += sum;
}

/* Packs of 2 are for short rows alone, such as 50 numbers. */
template <int N, bool IS_PLAIN> static void (*score_kernel(const softmax_job &j))(softmax_job) {
    bool is_packed_2 = can_pack(j.a.table, j.a.dim, j.a.dim, sizeof(float), 2);
    if (j.a.dim <= 8 * 8 && N == 1 && is_packed_2)
        return sampled_softmax_score_any_kernel<2, 8, IS_PLAIN>;
    if (j.a.dim <= 8 * 8) return sampled_softmax_score_any_kernel<N, 8, IS_PLAIN>;
    if (j.a.dim <= 16 * 16) return sampled_softmax_score_any_kernel<N, 16, IS_PLAIN>;
    return sampled_softmax_score_any_kernel<N, 32, IS_PLAIN>;
}

template <bool IS_PLAIN> static void (*packed_kernel(const softmax_job &j))(softmax_job) {
    bool is_packed = can_pack(j.a.table, j.a.dim, j.a.dim, sizeof(float), 4);
    return is_packed ? score_kernel<4, IS_PLAIN>(j) : score_kernel<1, IS_PLAIN>(j);
}

static status run_scores(backend *be, const softmax_job &j) {
    const char *what = "the scores of a sampled softmax";
    bool is_plain = j.a.kind == PAIRS_SOFTMAX && j.a.log_q == NULL;
    if (j.a.normalises && j.a.n_rows > 0)
        TRY(cuda_launch(be, what, sampled_softmax_scale_any_kernel,
                        cuda_div_up(j.a.n_rows, SCORE_WARPS), SCORE_THREADS, 0, j));
    TRY(cuda_launch(be, what, is_plain ? packed_kernel<true>(j) : packed_kernel<false>(j),
                    cuda_div_up(j.a.n, SCORE_WARPS), SCORE_THREADS, 0, j));
    return cuda_launch(be, what, sampled_softmax_loss_any_kernel, 1, SUM_THREADS, 0, j);
}

/* Lays out the scratch memory from `memory` on (j->a has the sizes); returns its bytes. */
static size_t lay_out(softmax_job *j, char *memory) {
    char *at = memory, *sum;
    size_t n = (size_t)j->a.n, n_rows = (size_t)j->a.n_rows;
    cuda_cut(&at, n_rows, &j->scale);
    cuda_cut(&at, n * ((size_t)j->a.n_negatives + 1), &j->weight);
    cuda_cut(&at, n, &j->losses);
    cuda_cut(&at, 1, &j->largest);
    cuda_cut(&at, n_rows * (size_t)j->width * (j->is_fixed ? sizeof(int64_t) : sizeof(float)),
             &sum);
    j->sum = sum;
    return (size_t)(at - memory);
}

static softmax_job job_make(const backend *be, const sampled_softmax_args *a) {
    softmax_job j = {};
    j.a = *a;
    j.act = be->act;
    j.width = (a->dim + 3) / 4 * 4;
    j.is_fixed = cuda_of(be)->is_deterministic;
    lay_out(&j, (char *)a->scratch);
    return j;
}

size_t cuda_sampled_softmax_scratch(backend *be, int64_t max_n, int32_t n_negatives, int32_t dim,
                                    int32_t n_rows) {
    sampled_softmax_args a = {};
    a.n = max_n, a.n_negatives = n_negatives, a.dim = dim, a.n_rows = n_rows;
    softmax_job j = job_make(be, &a);
    return lay_out(&j, NULL);
}

status cuda_sampled_softmax(backend *be, const sampled_softmax_args *a) {
    if (a->n == 0) return OK;
    if (a->dim > SOFTMAX_MAX_DIM)
        return fail(ERR_UNSUPPORTED,
                    "a sampled softmax over rows of %d columns; a GPU supports at most %d", a->dim,
                    SOFTMAX_MAX_DIM);
    softmax_job j = job_make(be, a);
    TRY(run_scores(be, j));
    return a->dquery != NULL ? softmax_table_gradient(be, &j) : OK;
}

/* negatives (ops.h): a thread draws one Philox block, which gives four negatives; bound by the
 * draws, about a hundred instructions each. */
static __global__ void __launch_bounds__(256) negatives_draw_any_kernel(const negatives_args a) {
    int64_t m = row_grid_row();
    if (m >= a.n) return;
    uint32_t position = a.position[m], user = a.user[m], step = *a.step;
    int32_t *index = a.index + m * a.n_negatives;
    for (int r = (int)threadIdx.x * 4; r < a.n_negatives; r += (int)blockDim.x * 4) {
        rng_block b = rng_draw(a.key, position, user, step, (uint32_t)r / 4);
#pragma unroll
        for (int w = 0; w < 4; w++) {
            uint32_t i = rng_below(b.word[w], (uint32_t)a.n_pool);
            if (r + w < a.n_negatives) index[r + w] = a.pool != NULL ? a.pool[i] : (int32_t)i;
        }
    }
}

status cuda_negatives(backend *be, const negatives_args *a) {
    if (a->n == 0 || a->n_negatives == 0) return OK;
    if (a->n_pool < 1)
        return fail(ERR_CONFIG, "there is nothing to draw negatives from; give the model at least "
                                "one item");
    row_grid g = row_grid_of(a->n, a->n_negatives, 4);
    return cuda_launch(be, "negatives", negatives_draw_any_kernel, g.blocks, g.threads, 0, *a);
}
