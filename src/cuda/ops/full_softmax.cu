/* full_softmax, as ops.h states it.
 *
 * Rows are taken in pieces and items in tiles, as on the CPU: cuBLASLt computes the scores of a
 * piece with a tile into scratch memory that stays in the L2 cache, a block for each row folds them
 * into what is known of the row, and two more products take the weights to the gradients.  A list
 * of one tile is read once: its scores are in registers between the sums and the weights.  Bound by
 * the products' FLOPs, and for narrow rows by the bytes of the scores from the L2 cache.
 *
 * The products are of float32 numbers; where activations have 16 bits, they may round them to TF32,
 * which holds those exactly. */
#include <float.h>

#include "cuda/core/kernel.cuh"

enum { FULL_THREADS = 256, FULL_WARPS = FULL_THREADS / WARP, FULL_LOSS_THREADS = 1024 };
enum { FULL_EACH = (FULL_SOFTMAX_ITEMS + FULL_THREADS - 1) / FULL_THREADS };

/* What is known of a row: the largest score, the sum of exp(score - top) over all items but the
 * positive, the sum of all scores, and the positive's score. */
typedef struct full_row {
    float top, own;
    double others, sum;
} full_row;

typedef struct full_job {
    full_softmax_args a;
    act_type act;
    int32_t width;  /* E in packs of 4 */
    int32_t stride; /* of a row of scores */
    int64_t first;  /* the piece: rows first .. first + n - 1 */
    int32_t n;
    int32_t first_item, n_items; /* the tile */
    bool is_last, is_only;       /* of the tiles */
    float *unit, *scale;         /* (C, width), (C): items, normalised; scale as in the CPU's */
    float *d_unit;               /* (C, width) */
    float *query, *d_query;      /* (rows of a piece, width) */
    float *score;                /* (rows of a piece, stride): scores, then weights */
    full_row *row;               /* (rows of a piece) */
    double *losses;              /* (n) */
} full_job;

__device__ static inline float full_act(const full_job &j, const void *x, int64_t i) {
    if (j.act == ACT_BF16) return to_float(((const __nv_bfloat16 *)x)[i]);
    if (j.act == ACT_F16) return to_float(((const __half *)x)[i]);
    return ((const float *)x)[i];
}

/* One warp for each item; in double, as a row's length may be far from 1. */
static __global__ void __launch_bounds__(FULL_THREADS) full_softmax_unit_any_kernel(full_job j) {
    int64_t c = (int64_t)blockIdx.x * FULL_WARPS + threadIdx.x / WARP;
    int lane = (int)threadIdx.x % WARP;
    double squares = 0;
    if (c >= j.a.n_items) return;
    const float *row = j.a.table + (j.a.item != NULL ? j.a.item[c] : c) * j.a.dim;
    for (int k = lane; j.a.normalises && k < j.a.dim; k += WARP)
        squares += (double)row[k] * (double)row[k];
    double length = sqrt(warp_sum(squares));
    bool is_short = !(length > (double)j.a.eps);
    float scale = !j.a.normalises ? 1 : (float)(1 / (is_short ? (double)j.a.eps : length));
    for (int k = lane; k < j.width; k += WARP)
        j.unit[c * j.width + k] = k < j.a.dim ? scale * row[k] : 0;
    if (lane == 0) j.scale[c] = is_short || !j.a.normalises ? -scale : scale;
}

/* The queries of a piece as float32, padded with zeros: a thread for each element. */
static __global__ void __launch_bounds__(FULL_THREADS) full_softmax_query_any_kernel(full_job j) {
    int64_t at = (int64_t)blockIdx.x * FULL_THREADS + threadIdx.x;
    int64_t i = at / j.width, k = at % j.width;
    if (i >= j.n) return;
    bool is_used = k < j.a.dim && j.a.positive[j.first + i] >= 0;
    j.query[at] = is_used ? full_act(j, j.a.query, (j.first + i) * j.a.dim + k) : 0;
}

/* ... and their gradients back. */
static __global__ void __launch_bounds__(FULL_THREADS) full_softmax_dquery_any_kernel(full_job j) {
    int64_t at = (int64_t)blockIdx.x * FULL_THREADS + threadIdx.x;
    int64_t i = at / j.a.dim, k = at % j.a.dim, to = j.first * j.a.dim + at;
    if (i >= j.n) return;
    float x = j.d_query[i * j.width + k];
    if (j.act == ACT_BF16)
        ((__nv_bfloat16 *)j.a.dquery)[to] = from_float<__nv_bfloat16>(x);
    else if (j.act == ACT_F16)
        ((__half *)j.a.dquery)[to] = from_float<__half>(x);
    else
        ((float *)j.a.dquery)[to] = x;
}

/* The score of item c of the tile from its product. */
__device__ static inline float full_score(const full_job &j, float product, int c, int own) {
    float score = product * (1 / j.a.temperature);
    int64_t item = j.first_item + c;
    if (j.a.log_q != NULL) score -= j.a.log_q[item];
    if (j.a.log_count != NULL && c != own) score += j.a.log_count[item];
    return score;
}

/* d loss / d product of an item that is not the positive, and of the positive. */
typedef struct full_weights {
    float top, share, even, own;
} full_weights;

__device__ static inline full_weights full_weights_of(const full_job &j, const full_row &r) {
    double total = r.others + exp((double)r.own - (double)r.top);
    float factor = *j.a.grad_scale / j.a.temperature;
    float even = factor * j.a.smoothing / (float)j.a.n_items;
    float own = factor * (j.a.smoothing - (float)(r.others / total)) - even;
    return {r.top, factor * (float)(1 / total), even, own};
}

__device__ static inline float full_block_max(float x, float *room) {
    x = warp_max(x);
    if (threadIdx.x % WARP == 0) room[threadIdx.x / WARP] = x;
    __syncthreads();
    x = warp_max(room[threadIdx.x % FULL_WARPS]);
    __syncthreads();
    return x;
}

__device__ static inline void full_finish(const full_job &j, int64_t m, const full_row &r) {
    double own = (double)r.own - (double)r.top, smoothing = (double)j.a.smoothing;
    double even = smoothing > 0 ? r.sum / j.a.n_items - (double)r.own : 0;
    j.losses[m] = log(r.others + exp(own)) - own - smoothing * even;
    if (j.a.row_loss != NULL) j.a.row_loss[m] = (float)j.losses[m];
}

/* A row that only fills up. */
__device__ static inline void full_nothing(const full_job &j, int64_t m, float *score) {
    for (int c = (int)threadIdx.x; c < j.n_items; c += FULL_THREADS)
        score[c] = 0;
    if (threadIdx.x > 0) return;
    j.losses[m] = 0;
    if (j.a.row_loss != NULL) j.a.row_loss[m] = 0;
}

/* One block for each row of the piece: the scores of the tile into what is known of the row; where
 * it is the only tile, the scores become weights. */
static __global__ void __launch_bounds__(FULL_THREADS) full_softmax_fold_any_kernel(full_job j) {
    __shared__ float room[WARP];
    __shared__ double sums[WARP];
    __shared__ float own_score;
    int64_t m = j.first + blockIdx.x;
    float *score = j.score + (int64_t)blockIdx.x * j.stride, x[FULL_EACH], top = -FLT_MAX;
    int32_t positive = j.a.positive[m];
    if (positive < 0) {
        full_nothing(j, m, score);
        return;
    }
    int own = full_softmax_place(j.a.item, j.a.n_items, positive) - j.first_item;
    bool has_own = own >= 0 && own < j.n_items;
    double sum = 0, others = 0;
#pragma unroll
    for (int k = 0; k < FULL_EACH; k++) {
        int c = k * FULL_THREADS + (int)threadIdx.x;
        x[k] = -FLT_MAX;
        if (c >= j.n_items) continue;
        x[k] = full_score(j, score[c], c, own);
        top = fmaxf(top, x[k]);
        sum += (double)x[k];
        if (c == own) own_score = x[k];
    }
    full_row r = {-FLT_MAX, 0, 0, 0};
    if (j.first_item > 0) r = j.row[blockIdx.x];
    top = full_block_max(fmaxf(top, r.top), room);
    if (has_own) r.own = own_score;
#pragma unroll
    for (int k = 0; k < FULL_EACH; k++) {
        int c = k * FULL_THREADS + (int)threadIdx.x;
        x[k] = c < j.n_items && c != own ? expf(x[k] - top) : 0;
        others += (double)x[k];
    }
    r.others = r.others * exp((double)r.top - (double)top) + block_sum(others, sums);
    if (j.a.smoothing > 0) r.sum += block_sum(sum, sums);
    r.top = top;
    if (threadIdx.x == 0) {
        j.row[blockIdx.x] = r;
        if (j.is_last) full_finish(j, m, r);
    }
    if (!j.is_only || j.a.dquery == NULL) return;
    full_weights w = full_weights_of(j, r);
#pragma unroll
    for (int k = 0; k < FULL_EACH; k++) {
        int c = k * FULL_THREADS + (int)threadIdx.x;
        if (c < j.n_items) score[c] = c == own ? w.own : x[k] * w.share - w.even;
    }
}

/* One block for each row: the scores of one of several tiles, computed again, to weights. */
static __global__ void __launch_bounds__(FULL_THREADS) full_softmax_weigh_any_kernel(full_job j) {
    int64_t m = j.first + blockIdx.x;
    float *score = j.score + (int64_t)blockIdx.x * j.stride;
    int32_t positive = j.a.positive[m];
    if (positive < 0) {
        full_nothing(j, m, score);
        return;
    }
    int own = full_softmax_place(j.a.item, j.a.n_items, positive) - j.first_item;
    full_weights w = full_weights_of(j, j.row[blockIdx.x]);
    for (int c = (int)threadIdx.x; c < j.n_items; c += FULL_THREADS) {
        float share = expf(full_score(j, score[c], c, own) - w.top) * w.share;
        score[c] = c == own ? w.own : share - w.even;
    }
}

/* *loss += the rows' losses, by one block in a fixed order. */
static __global__ void __launch_bounds__(FULL_LOSS_THREADS)
    full_softmax_loss_any_kernel(full_job j) {
    __shared__ double room[WARP];
    double sum = 0;
    for (int64_t m = threadIdx.x; m < j.a.n; m += FULL_LOSS_THREADS)
        sum += j.losses[m];
    sum = block_sum(sum, room);
    if (threadIdx.x == 0) *j.a.loss += sum;
}

/* One warp for each item: dtable += d l2(row) / d row applied to g, which is (g - u (u . g)) /
 * |row|, or g / eps below eps. */
static __global__ void __launch_bounds__(FULL_THREADS) full_softmax_table_any_kernel(full_job j) {
    int64_t c = (int64_t)blockIdx.x * FULL_WARPS + threadIdx.x / WARP;
    int lane = (int)threadIdx.x % WARP;
    if (c >= j.a.n_items) return;
    float *to = j.a.dtable + (j.a.item != NULL ? j.a.item[c] : c) * j.a.dim;
    const float *g = j.d_unit + c * j.width, *unit = j.unit + c * j.width;
    float scale = j.scale[c];
    double along = 0;
    for (int k = lane; scale > 0 && k < j.a.dim; k += WARP)
        along += (double)unit[k] * (double)g[k];
    along = warp_sum(along);
    for (int k = lane; k < j.a.dim; k += WARP)
        to[k] += fabsf(scale) * (g[k] - (float)along * unit[k]);
}

static const char *const WHAT = "a softmax over all items";

static int32_t full_smaller(int64_t x, int64_t y) {
    return (int32_t)(x < y ? x : y);
}

/* Lays out the scratch memory from `memory` on; returns its bytes. */
static size_t full_lay_out(full_job *j, char *memory) {
    char *at = memory;
    size_t rows = (size_t)full_smaller(j->a.n, FULL_SOFTMAX_ROWS), items = (size_t)j->a.n_items;
    j->width = (j->a.dim + 3) / 4 * 4;
    j->stride = (full_smaller(j->a.n_items, FULL_SOFTMAX_ITEMS) + 3) / 4 * 4;
    size_t width = (size_t)j->width;
    cuda_cut(&at, items * width, &j->unit);
    cuda_cut(&at, items, &j->scale);
    cuda_cut(&at, items * width, &j->d_unit);
    cuda_cut(&at, rows * width, &j->query);
    cuda_cut(&at, rows * width, &j->d_query);
    cuda_cut(&at, rows * (size_t)j->stride, &j->score);
    cuda_cut(&at, rows, &j->row);
    cuda_cut(&at, (size_t)j->a.n, &j->losses);
    return (size_t)(at - memory);
}

size_t cuda_full_softmax_scratch(backend *be, int64_t max_n, int32_t n_items, int32_t dim) {
    full_job j = {};
    (void)be;
    j.a.n = max_n, j.a.n_items = n_items, j.a.dim = dim;
    return full_lay_out(&j, NULL);
}

/* A product whose shapes the caller sets, of float32 numbers. */
static cuda_product full_product(const full_job &j, int64_t m, int64_t n, int64_t k) {
    cuda_product p = {};
    p.m = m, p.n = n, p.k = k;
    p.type = p.type_d = CUDA_R_32F;
    p.is_rounded = j.act != ACT_F32;
    return p;
}

/* The scores of the piece with the tile. */
static status full_scores(backend *be, const full_job &j) {
    cuda_product p = full_product(j, j.n, j.n_items, j.width);
    p.a = j.query, p.row_a = j.width;
    p.b = j.unit + (int64_t)j.first_item * j.width, p.row_b = j.width;
    p.is_b_transposed = true;
    p.d = j.score, p.row_d = j.stride;
    return cuda_matmul(be, &p);
}

/* Weights to the gradients of the piece's queries and of the tile's items. */
static status full_gradients(backend *be, const full_job &j) {
    int64_t at = (int64_t)j.first_item * j.width;
    cuda_product p = full_product(j, j.n, j.width, j.n_items);
    p.a = j.score, p.row_a = j.stride;
    p.b = j.unit + at, p.row_b = j.width;
    p.c = j.first_item > 0 ? j.d_query : NULL;
    p.d = j.d_query, p.row_d = j.width;
    TRY(cuda_matmul(be, &p));
    p = full_product(j, j.n_items, j.width, j.n);
    p.a = j.score, p.row_a = j.stride, p.is_a_transposed = true;
    p.b = j.query, p.row_b = j.width;
    p.c = j.first > 0 ? j.d_unit + at : NULL;
    p.d = j.d_unit + at, p.row_d = j.width;
    return cuda_matmul(be, &p);
}

static void full_set_tile(full_job *j, int32_t first_item) {
    int32_t left = j->a.n_items - first_item;
    j->first_item = first_item;
    j->n_items = full_smaller(left, FULL_SOFTMAX_ITEMS);
    j->is_last = left <= FULL_SOFTMAX_ITEMS;
    j->is_only = j->is_last && first_item == 0;
}

static status full_run_piece(backend *be, full_job *j) {
    int64_t n_query = cuda_div_up((int64_t)j->n * j->width, FULL_THREADS);
    TRY(cuda_launch(be, WHAT, full_softmax_query_any_kernel, n_query, FULL_THREADS, 0, *j));
    for (int32_t i = 0; i < j->a.n_items; i += FULL_SOFTMAX_ITEMS) {
        full_set_tile(j, i);
        TRY(full_scores(be, *j));
        TRY(cuda_launch(be, WHAT, full_softmax_fold_any_kernel, j->n, FULL_THREADS, 0, *j));
    }
    if (j->a.dquery == NULL) return OK;
    for (int32_t i = 0; i < j->a.n_items; i += FULL_SOFTMAX_ITEMS) {
        full_set_tile(j, i);
        if (!j->is_only) {
            TRY(full_scores(be, *j));
            TRY(cuda_launch(be, WHAT, full_softmax_weigh_any_kernel, j->n, FULL_THREADS, 0, *j));
        }
        TRY(full_gradients(be, *j));
    }
    int64_t n_dquery = cuda_div_up((int64_t)j->n * j->a.dim, FULL_THREADS);
    return cuda_launch(be, WHAT, full_softmax_dquery_any_kernel, n_dquery, FULL_THREADS, 0, *j);
}

status cuda_full_softmax(backend *be, const full_softmax_args *a) {
    full_job j = {};
    if (a->n == 0 || a->n_items == 0) return OK;
    j.a = *a;
    j.act = be->act;
    full_lay_out(&j, (char *)a->scratch);
    int64_t n_blocks = cuda_div_up(a->n_items, FULL_WARPS);
    TRY(cuda_launch(be, WHAT, full_softmax_unit_any_kernel, n_blocks, FULL_THREADS, 0, j));
    for (j.first = 0; j.first < a->n; j.first += j.n) {
        j.n = full_smaller(a->n - j.first, FULL_SOFTMAX_ROWS);
        TRY(full_run_piece(be, &j));
    }
    TRY(cuda_launch(be, WHAT, full_softmax_loss_any_kernel, 1, FULL_LOSS_THREADS, 0, j));
    if (a->dquery == NULL) return OK;
    return cuda_launch(be, WHAT, full_softmax_table_any_kernel, n_blocks, FULL_THREADS, 0, j);
}
