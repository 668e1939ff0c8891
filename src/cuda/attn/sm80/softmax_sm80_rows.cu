/* Softmax attention of 16-bit activations under a mask with few pairs a tile, both passes, for
 * every card (contract: softmax_attn_args in ops/ops.h): row-wise.
 *
 * A warp owns one row of 256 / D heads: D / 8 lanes a head, 8 columns a lane.  From the bitmaps of
 * its row tile's list it makes a list of the keys that the row sees, and reads only those: a key of
 * all its heads is one load of 512 bytes.  Gradients of queries are computed in the same way, those
 * of keys and values by a warp that owns a key and lists the queries that see it; nothing is added
 * atomically, so results do not depend on the order of blocks.
 * Nothing is computed for pairs that are not seen, but each reads 4 D bytes from the L2 cache,
 * which block-wise kernels read once for 64 rows: it pays where tiles have few pairs
 * (ops/mask_rule.h). */
#include "cuda/attn/common/attn_mask.cuh"
#include "cuda/core/kernel.cuh"
#include "cuda/core/ptx.cuh"

/* A list has room for LIST numbers; a step appends up to EACH of every lane's word. */
enum { ROWS_WARPS = 8, ROWS_LIST = 256, ROWS_EACH = 4 };

static constexpr float LOG2_E = 1.44269504f;

/* One launch. */
typedef struct rows_job {
    softmax_attn_args a;
    int n_blocks; /* of ROWS_WARPS rows, in the longest sequence */
    int n_groups; /* of heads */
    float *delta; /* (T, H): out . dout; NULL with SiLU */
} rows_job;

/* What a warp has: row i of sequence b, and what this lane has of it. */
typedef struct rows_place {
    int b, i, len;
    int64_t row;   /* of the sequence, in the jagged arrays */
    int head;      /* clamped to the heads that there are */
    bool has_head; /* whether there is such a head; all lanes take part in shuffles */
    int column;    /* of the lane's first element */
} rows_place;

template <typename T> __device__ static inline pack<T, 8> load_eight(const T *from) {
    return *(const pack<T, 8> *)from;
}

template <typename T>
__device__ static inline void load_floats(const void *rows, int64_t stride, int64_t row, int column,
                                          float (&to)[8]) {
    pack<T, 8> own = load_eight((const T *)rows + row * stride + column);
#pragma unroll
    for (int d = 0; d < 8; d++)
        to[d] = to_float(own.v[d]);
}

template <typename T>
__device__ static inline void store_floats(void *rows, int64_t stride, const rows_place &p,
                                           const float (&from)[8], float factor) {
    pack<T, 8> own;
#pragma unroll
    for (int d = 0; d < 8; d++)
        own.v[d] = from_float<T>(from[d] * factor);
    if (p.has_head) *(pack<T, 8> *)((T *)rows + (p.row + p.i) * stride + p.column) = own;
}

/* The sum over the lanes of a head. */
template <int LANES> __device__ static inline float lanes_sum(float x) {
#pragma unroll
    for (int i = 1; i < LANES; i *= 2)
        x += __shfl_xor_sync(0xffffffffu, x, i);
    return x;
}

template <typename T, int LANES>
__device__ static inline float dot_eight(const float (&x)[8], const pack<T, 8> &y) {
    float sum = 0;
#pragma unroll
    for (int d = 0; d < 8; d++)
        sum = fmaf(x[d], to_float(y.v[d]), sum);
    return lanes_sum<LANES>(sum);
}

template <typename T>
__device__ static inline void add_eight(float (&to)[8], float weight, const pack<T, 8> &x) {
#pragma unroll
    for (int d = 0; d < 8; d++)
        to[d] = fmaf(weight, to_float(x.v[d]), to[d]);
}

__device__ static inline float sigmoid_of(float x) {
    return __fdividef(1.0f, 1.0f + __expf(-x));
}

/* A pair's weight p and the gradient of its score, without alpha, from the gradient dp of p: x is
 * alpha q . k, log_sum and delta are the query's. */
__device__ static inline void weigh_pair(const softmax_attn_args &a, float x, float dp,
                                         float log_sum, float delta, float *p, float *ds) {
    if (a.silu_scale != 0) {
        float sigmoid = sigmoid_of(x);
        *p = a.silu_scale * x * sigmoid;
        *ds = a.silu_scale * dp * sigmoid * (1 + x * (1 - sigmoid));
    } else {
        *p = ex2_approx((x - log_sum) * LOG2_E);
        *ds = *p * (dp - delta);
    }
}

/* The three passes over a row's pairs: what a warp keeps, how it starts, adds n listed pairs, and
 * ends. */
struct rows_out {
    static constexpr bool OWNS_KEY = false;
    static constexpr int BLOCKS = 3, AHEAD = 4; /* of a multiprocessor; pairs loaded at once */
    float q[8], out[8];
    float largest, sum; /* of the scores, and of exp(score - largest) */
};
struct rows_dq {
    static constexpr bool OWNS_KEY = false;
    static constexpr int BLOCKS = 2, AHEAD = 4;
    float q[8], dout[8], dq[8];
    float log_sum, delta;
};
struct rows_dkv {
    static constexpr bool OWNS_KEY = true;
    static constexpr int BLOCKS = 2, AHEAD = 3;
    float k[8], v[8], dk[8], dv[8];
};

template <typename T, int LANES>
__device__ static inline void rows_start(rows_out *s, const rows_job &job, const rows_place &p) {
    *s = {};
    s->largest = -INFINITY;
    load_floats<T>(job.a.q, job.a.stride_q, p.row + p.i, p.column, s->q);
}

template <typename T, int LANES>
__device__ static inline void rows_add(rows_out *s, const rows_job &job, const rows_place &p,
                                       const int *list, int n) {
    const softmax_attn_args &a = job.a;
    const T *k = (const T *)a.k + p.row * a.stride_k + p.column;
    const T *v = (const T *)a.v + p.row * a.stride_v + p.column;
    bool is_silu = a.silu_scale != 0;
    for (int i = 0; i < n; i += rows_out::AHEAD) {
        pack<T, 8> keys[rows_out::AHEAD], values[rows_out::AHEAD];
        float x[rows_out::AHEAD], largest = s->largest;
#pragma unroll
        for (int j = 0; j < rows_out::AHEAD; j++) {
            int64_t at = list[min(i + j, n - 1)];
            keys[j] = load_eight(k + at * a.stride_k);
            values[j] = load_eight(v + at * a.stride_v);
        }
#pragma unroll
        for (int j = 0; j < rows_out::AHEAD; j++) {
            x[j] = a.alpha * dot_eight<T, LANES>(s->q, keys[j]);
            if (i + j < n) largest = fmaxf(largest, x[j]);
        }
        if (!is_silu) {
            float factor = ex2_approx((s->largest - largest) * LOG2_E);
            s->largest = largest;
            s->sum *= factor;
#pragma unroll
            for (int d = 0; d < 8; d++)
                s->out[d] *= factor;
        }
#pragma unroll
        for (int j = 0; j < rows_out::AHEAD; j++) {
            float weight = is_silu ? a.silu_scale * x[j] * sigmoid_of(x[j])
                                   : ex2_approx((x[j] - largest) * LOG2_E);
            if (i + j >= n) weight = 0;
            s->sum += weight;
            add_eight(s->out, weight, values[j]);
        }
    }
}

template <typename T, int LANES>
__device__ static inline void rows_end(const rows_out *s, const rows_job &job,
                                       const rows_place &p) {
    const softmax_attn_args &a = job.a;
    float factor = a.silu_scale != 0 ? 1.0f : s->sum > 0 ? 1 / s->sum : 0.0f;
    store_floats<T>(a.out, a.stride_out, p, s->out, factor);
    if (a.silu_scale != 0 || a.log_sum == NULL || !p.has_head || threadIdx.x % LANES != 0) return;
    a.log_sum[(p.row + p.i) * a.n_heads + p.head] =
        s->sum > 0 ? s->largest + __logf(s->sum) : -INFINITY;
}

/* The warp also computes its row's delta, for the pass that owns keys. */
template <typename T, int LANES>
__device__ static inline void rows_start(rows_dq *s, const rows_job &job, const rows_place &p) {
    const softmax_attn_args &a = job.a;
    *s = {};
    load_floats<T>(a.q, a.stride_q, p.row + p.i, p.column, s->q);
    load_floats<T>(a.dout, a.stride_out, p.row + p.i, p.column, s->dout);
    if (a.silu_scale != 0) return;
    int64_t at = (p.row + p.i) * a.n_heads + p.head;
    s->delta = dot_eight<T, LANES>(
        s->dout, load_eight((const T *)a.out + (p.row + p.i) * a.stride_out + p.column));
    s->log_sum = a.log_sum[at];
    if (p.has_head && threadIdx.x % LANES == 0) job.delta[at] = s->delta;
}

template <typename T, int LANES>
__device__ static inline void rows_add(rows_dq *s, const rows_job &job, const rows_place &p,
                                       const int *list, int n) {
    const softmax_attn_args &a = job.a;
    const T *k = (const T *)a.k + p.row * a.stride_k + p.column;
    const T *v = (const T *)a.v + p.row * a.stride_v + p.column;
    for (int i = 0; i < n; i += rows_dq::AHEAD) {
        pack<T, 8> keys[rows_dq::AHEAD], values[rows_dq::AHEAD];
#pragma unroll
        for (int j = 0; j < rows_dq::AHEAD; j++) {
            int64_t at = list[min(i + j, n - 1)];
            keys[j] = load_eight(k + at * a.stride_k);
            values[j] = load_eight(v + at * a.stride_v);
        }
#pragma unroll
        for (int j = 0; j < rows_dq::AHEAD; j++) {
            float x = a.alpha * dot_eight<T, LANES>(s->q, keys[j]), weight, ds;
            float dp = dot_eight<T, LANES>(s->dout, values[j]);
            weigh_pair(a, x, dp, s->log_sum, s->delta, &weight, &ds);
            add_eight(s->dq, i + j < n ? ds : 0.0f, keys[j]);
        }
    }
}

template <typename T, int LANES>
__device__ static inline void rows_end(const rows_dq *s, const rows_job &job, const rows_place &p) {
    store_floats<T>(job.a.dq, job.a.stride_q, p, s->dq, job.a.alpha);
}

template <typename T, int LANES>
__device__ static inline void rows_start(rows_dkv *s, const rows_job &job, const rows_place &p) {
    *s = {};
    load_floats<T>(job.a.k, job.a.stride_k, p.row + p.i, p.column, s->k);
    load_floats<T>(job.a.v, job.a.stride_v, p.row + p.i, p.column, s->v);
}

template <typename T, int LANES>
__device__ static inline void rows_add(rows_dkv *s, const rows_job &job, const rows_place &p,
                                       const int *list, int n) {
    const softmax_attn_args &a = job.a;
    const T *q = (const T *)a.q + p.row * a.stride_q + p.column;
    const T *dout = (const T *)a.dout + p.row * a.stride_out + p.column;
    for (int i = 0; i < n; i += rows_dkv::AHEAD) {
        pack<T, 8> queries[rows_dkv::AHEAD], douts[rows_dkv::AHEAD];
        float log_sum[rows_dkv::AHEAD] = {}, delta[rows_dkv::AHEAD] = {};
#pragma unroll
        for (int j = 0; j < rows_dkv::AHEAD; j++) {
            int64_t at = list[min(i + j, n - 1)];
            queries[j] = load_eight(q + at * a.stride_q);
            douts[j] = load_eight(dout + at * a.stride_out);
            if (a.silu_scale != 0) continue;
            log_sum[j] = __ldg(a.log_sum + (p.row + at) * a.n_heads + p.head);
            delta[j] = __ldg(job.delta + (p.row + at) * a.n_heads + p.head);
        }
#pragma unroll
        for (int j = 0; j < rows_dkv::AHEAD; j++) {
            float x = a.alpha * dot_eight<T, LANES>(s->k, queries[j]), weight, ds;
            float dp = dot_eight<T, LANES>(s->v, douts[j]);
            weigh_pair(a, x, dp, log_sum[j], delta[j], &weight, &ds);
            add_eight(s->dk, i + j < n ? ds : 0.0f, queries[j]);
            add_eight(s->dv, i + j < n ? weight : 0.0f, douts[j]);
        }
    }
}

template <typename T, int LANES>
__device__ static inline void rows_end(const rows_dkv *s, const rows_job &job,
                                       const rows_place &p) {
    store_floats<T>(job.a.dk, job.a.stride_k, p, s->dk, job.a.alpha);
    store_floats<T>(job.a.dv, job.a.stride_v, p, s->dv, 1.0f);
}

/* The queries of a tile that see key j, as bits; the whole warp computes it. */
__device__ static inline uint64_t queries_word(const mask_view &m, int bits, int n, int j) {
    int lane = (int)threadIdx.x % 32;
    if (bits == MASK_FULL) return ~(uint64_t)0;
    const uint64_t *words = m.bits + (int64_t)bits * MASK_TILE;
    uint64_t low = __ldg((const unsigned long long *)words + lane) >> (j % MASK_TILE);
    uint64_t high = __ldg((const unsigned long long *)words + lane + 32) >> (j % MASK_TILE);
    uint32_t first = __ballot_sync(0xffffffffu, low & 1);
    return first | (uint64_t)__ballot_sync(0xffffffffu, high & 1) << 32;
}

/* Each lane's word of the entries at .. at + 31, of which `end` is the end, and its first row. */
template <bool OWNS_KEY>
__device__ static inline uint64_t word_of(const mask_view &m, const rows_place &p, int at, int end,
                                          int *first) {
    int lane = (int)threadIdx.x % 32;
    mask_tile tile = {0, 0};
    const mask_tile *list = OWNS_KEY ? m.col_tiles : m.row_tiles;
    if (at + lane < end) tile = mask_tile_at(m, list, at + lane);
    *first = tile.tile * MASK_TILE;
    if (!OWNS_KEY)
        return at + lane < end ? mask_word(m, tile.bits, p.len, p.i, *first) : (uint64_t)0;
    uint64_t own = 0;
#pragma unroll 4
    for (int e = 0; e < min(32, end - at); e++) {
        uint64_t word = queries_word(m, __shfl_sync(0xffffffffu, tile.bits, e), p.len, p.i);
        if (lane == e) own = word;
    }
    return own;
}

/* Appends up to ROWS_EACH numbers of each lane's word to a list of n, and takes them from the word;
 * returns how many there are then. */
__device__ static inline int take_bits(uint64_t *word, int first, int *list, int n) {
    int lane = (int)threadIdx.x % 32, count = min(__popcll(*word), (int)ROWS_EACH), end = count;
#pragma unroll
    for (int i = 1; i < 32; i *= 2) {
        int before = __shfl_up_sync(0xffffffffu, end, i);
        if (lane >= i) end += before;
    }
    for (int i = n + end - count; i < n + end; i++) {
        list[i] = first + __ffsll((long long)*word) - 1;
        *word &= *word - 1;
    }
    __syncwarp();
    return n + __shfl_sync(0xffffffffu, end, 31);
}

/* Where a warp is in the list of its row tile. */
typedef struct rows_walk {
    int at, end;
    int first;     /* row of this lane's entry */
    uint64_t word; /* of it: what has not been listed yet */
} rows_walk;

/* Lists rows until there is no room for a step, or none is left; returns how many there are. */
template <bool OWNS_KEY>
__device__ static inline int fill_list(rows_walk *w, const mask_view &m, const rows_place &p,
                                       int *list) {
    int n = 0;
    while (n <= ROWS_LIST - 32 * ROWS_EACH) {
        if (__any_sync(0xffffffffu, w->word != 0)) {
            n = take_bits(&w->word, w->first, list, n);
        } else {
            if (w->at >= w->end) break;
            w->word = word_of<OWNS_KEY>(m, p, w->at, w->end, &w->first);
            w->at += 32;
        }
    }
    return n;
}

template <typename T, int D, typename S>
static __global__ void __launch_bounds__(32 * ROWS_WARPS, S::BLOCKS)
    softmax_attn_rows_sm80_kernel(const __grid_constant__ rows_job job) {
    __shared__ int lists[ROWS_WARPS][ROWS_LIST];
    constexpr int LANES = D / 8, HEADS = 32 / LANES;
    unsigned id = blockIdx.x / (unsigned)job.n_groups;
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, n;
    rows_place p;
    p.b = (int)(id / (unsigned)job.n_blocks);
    p.i = (int)(id % (unsigned)job.n_blocks) * ROWS_WARPS + warp;
    p.row = __ldg(job.a.offsets + p.b);
    p.len = __ldg(job.a.offsets + p.b + 1) - (int)p.row;
    if (p.i >= p.len) return;
    p.head = (int)(blockIdx.x % (unsigned)job.n_groups) * HEADS + lane / LANES;
    p.has_head = p.head < job.a.n_heads;
    p.head = min(p.head, job.a.n_heads - 1);
    p.column = p.head * D + lane % LANES * 8;
    S state;
    rows_start<T, LANES>(&state, job, p);
    const mask_view &m = job.a.mask;
    mask_range range = S::OWNS_KEY ? mask_queries_of(m, p.b, p.len, p.i / MASK_TILE)
                                   : mask_keys_of(m, p.b, p.len, p.i / MASK_TILE);
    rows_walk walk = {range.begin, range.end, 0, 0};
    while ((n = fill_list<S::OWNS_KEY>(&walk, m, p, lists[warp])) > 0) {
        rows_add<T, LANES>(&state, job, p, lists[warp], n);
        __syncwarp();
    }
    rows_end<T, LANES>(&state, job, p);
}

static bool is_addressable(const void *rows, int64_t stride) {
    return (uintptr_t)rows % 16 == 0 && stride % 8 == 0;
}

bool cuda_softmax_sm80_rows_can(const backend *be, const softmax_attn_args *a, bool is_backward) {
    if (be->act == ACT_F32 || (a->dim != 64 && a->dim != 128) || mask_rule_is_span(&a->mask.rule))
        return false;
    bool can = is_addressable(a->q, a->stride_q) && is_addressable(a->k, a->stride_k) &&
               is_addressable(a->v, a->stride_v) && is_addressable(a->out, a->stride_out);
    if (!is_backward) return can;
    return can && is_addressable(a->dout, a->stride_out) && is_addressable(a->dq, a->stride_q) &&
           is_addressable(a->dk, a->stride_k) && is_addressable(a->dv, a->stride_v);
}

template <typename T, int D, typename S> static status launch(backend *be, rows_job *job) {
    const softmax_attn_args *a = &job->a;
    job->n_blocks = (int)cuda_div_up(a->max_len, ROWS_WARPS);
    job->n_groups = (int)cuda_div_up(a->n_heads, 256 / D);
    int64_t n = (int64_t)job->n_blocks * a->n_sequences * job->n_groups;
    if (n > INT32_MAX)
        return fail(ERR_UNSUPPORTED, "softmax attention, row-wise: more than 2^31 blocks; make the "
                                     "batch smaller");
    return cuda_launch(be, "the softmax attention, row-wise",
                       softmax_attn_rows_sm80_kernel<T, D, S>, n, 32 * ROWS_WARPS, 0, *job);
}

template <typename S> static status launch_any(backend *be, rows_job *job) {
    bool is_64 = job->a.dim == 64;
    if (be->act == ACT_BF16)
        return is_64 ? launch<__nv_bfloat16, 64, S>(be, job)
                     : launch<__nv_bfloat16, 128, S>(be, job);
    return is_64 ? launch<__half, 64, S>(be, job) : launch<__half, 128, S>(be, job);
}

status cuda_softmax_sm80_rows_fwd(backend *be, const softmax_attn_args *a) {
    rows_job job = {*a, 0, 0, NULL};
    return launch_any<rows_out>(be, &job);
}

status cuda_softmax_sm80_rows_bwd(backend *be, const softmax_attn_args *a) {
    rows_job job = {*a, 0, 0, NULL};
    size_t n_rows = (size_t)a->n_sequences * (size_t)a->max_len;
    if (a->silu_scale == 0)
        TRY(cuda_scratch(be, n_rows * (size_t)a->n_heads * sizeof(float), (void **)&job.delta));
    TRY(launch_any<rows_dq>(be, &job));
    return launch_any<rows_dkv>(be, &job);
}
