/* Softmax attention on Hopper, backward: which calls it takes, with which tile sizes, and what
 * comes before and after the kernel that owns keys.
 *
 * Before: delta = out . dout, the logarithms of the sums in the order in which tiles of queries
 * load them, and zeros for the float32 sums of dq.  After: the sums are rounded into dq.  Both are
 * bound by bytes: 2 + 2 + 4 and 4 + 2 for each element.
 *
 * Times that set the sizes, in us (H200, 2026-11-16; bfloat16, all of the backward pass, by replay;
 * sm80: the kernels for every card, which compute two products twice):
 *                     causal                       sliding 64         longformer 32, 32
 *               1 x 128  8 x 1024  16 x 4096    8 x 1024  16 x 4096    8 x 1024  16 x 4096
 *     sm80         14.5       246       6068         103        689         167       1262
 *     GROUPS = 1   10.9       132       2853          71        530         142       1159
 *     GROUPS = 2   12.4       130       2651          69        499         144       1040
 * (12 heads of 64).  Without dq the last column is 575, causal at 16 x 4096 1820: additions to its
 * sums take as long as memory gives them, 3 TB/s.  Heads of 128, 6 of them, 8 x 4096 without a
 * mask: 2087 beside 5397. */
#include "cuda/attn/sm90/softmax_sm90_bwd.cuh"
#include "ops/mask_rule.h"

struct bwd_short_d64 : soft90_bwd_sizes {
    static constexpr int D = 64, GROUPS = 1, BLOCKS = 2, COMPUTING = 184, ASKING = 72;
};
struct bwd_long_d64 : soft90_bwd_sizes {
    static constexpr int D = 64;
};
struct bwd_d128 : soft90_bwd_sizes {
    static constexpr int D = 128, OWNS = 1, COMPUTING = 224, ASKING = 56;
    static constexpr bool LOOKS_AHEAD = false;
};

struct bwd_silu_d64 : bwd_long_d64 {
    static constexpr bool IS_SILU = true;
};
struct bwd_silu_d128 : bwd_d128 {
    static constexpr bool IS_SILU = true;
};

/* Slots of tiles of queries. */
static int64_t count_slots(const softmax_attn_args *a) {
    return a->n_rows / QUERIES + a->n_sequences;
}

bool cuda_softmax_sm90_can_bwd(const backend *be, const softmax_attn_args *a) {
    int64_t n_tiles = cuda_div_up(a->max_len, QUERIES) * a->n_sequences * a->n_heads;
    if (a->silu_scale != 0 && cuda_of(be)->is_deterministic) return false;
    return cuda_of(be)->sm == 90 && be->act != ACT_F32 && (a->dim == 64 || a->dim == 128) &&
           a->n_rows > 0 && is_addressable(a->q, a->stride_q) &&
           is_addressable(a->k, a->stride_k) && is_addressable(a->v, a->stride_v) &&
           is_addressable(a->out, a->stride_out) && is_addressable(a->dout, a->stride_out) &&
           is_addressable(a->dq, a->stride_q) && is_addressable(a->dk, a->stride_k) &&
           is_addressable(a->dv, a->stride_v) && (uintptr_t)a->mask.bits % 16 == 0 &&
           n_tiles < (int64_t)1 << 30 && count_slots(a) * a->n_heads < (int64_t)1 << 30;
}

/* A tile of queries that there is. */
typedef struct slot_place {
    int head, row, i0, n; /* the sequence's first row, the tile's first query, queries of it */
    int64_t at;           /* of slot and head */
} slot_place;

/* The tile of (slot, head) `id`; n <= 0: none. */
__device__ static inline slot_place slot_find(const softmax_attn_args &a, unsigned id) {
    slot_place p;
    int slot = (int)(id / (unsigned)a.n_heads);
    int b = tiles_search(a.offsets, QUERIES, a.n_sequences, slot);
    p.head = (int)(id % (unsigned)a.n_heads);
    p.row = __ldg(a.offsets + b);
    p.i0 = (slot - p.row / QUERIES - b) * QUERIES;
    p.n = min(__ldg(a.offsets + b + 1) - p.row - p.i0, (int)QUERIES);
    p.at = id;
    return p;
}

/* Sum of the products of two vectors of 8. */
template <typename T> __device__ static inline float dot_eight(const T *x, const T *y) {
    uint4 a = __ldg((const uint4 *)x), b = __ldg((const uint4 *)y);
    const T *u = (const T *)&a, *v = (const T *)&b;
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 8; i++)
        sum = fmaf(to_float(u[i]), to_float(v[i]), sum);
    return sum;
}

enum { BEFORE_THREADS = 4 * QUERIES }; /* four threads a row */

/* delta: (T, H) or NULL. */
template <typename T, int D>
__global__ void __launch_bounds__(BEFORE_THREADS)
    softmax_attn_bwd_before_sm90_kernel(const __grid_constant__ softmax_attn_args a,
                                        soft90_bwd_sums *sums, float *dq, float *delta,
                                        int *counter) {
    if (blockIdx.x == 0 && threadIdx.x == 0) *counter = 0;
    slot_place p = slot_find(a, blockIdx.x);
    if (p.n <= 0) return;
    int i = (int)threadIdx.x / 4, lane = (int)threadIdx.x % 4;
    float sum = 0, log_sum = 0;
    int64_t row = p.row + p.i0 + i, at = row * a.n_heads + p.head;
    if (i < p.n && a.silu_scale == 0) {
        const T *out = (const T *)a.out + row * a.stride_out + p.head * D;
        const T *dout = (const T *)a.dout + row * a.stride_out + p.head * D;
        if (lane == 0) log_sum = a.log_sum[at];
#pragma unroll
        for (int d = 0; d < D; d += 32)
            sum += dot_eight(out + d + 8 * lane, dout + d + 8 * lane);
    }
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    if (lane == 0) {
        /* the log of an empty sum is replaced, so that no NaN arises before a pair is hidden */
        sums[p.at].log_sum[i] = log_sum == -INFINITY ? 0.0f : log_sum * 1.44269504f;
        sums[p.at].delta[i] = sum;
        if (delta != NULL && i < p.n) delta[at] = sum;
    }
    if (dq == NULL) return;
    float4 *to = (float4 *)(dq + p.at * (QUERIES * D)) + threadIdx.x;
#pragma unroll
    for (int j = 0; j < QUERIES * D / 4; j += BEFORE_THREADS)
        to[j] = make_float4(0, 0, 0, 0);
}

/* Rounds 64 columns of dq of a slot and head: a warpgroup reads the sums in the register order in
 * which others added them. */
template <typename T, int D>
__global__ void __launch_bounds__(GROUP)
    softmax_attn_bwd_after_sm90_kernel(const __grid_constant__ softmax_attn_args a,
                                       const float *sums) {
    int column = (int)(blockIdx.x % (D / 64)) * 64;
    slot_place p = slot_find(a, blockIdx.x / (D / 64));
    if (p.n <= 0) return;
    const float4 *from = (const float4 *)(sums + p.at * (QUERIES * D) + column * QUERIES);
    float dq[32];
#pragma unroll
    for (int j = 0; j < 8; j++)
        *(float4 *)&dq[4 * j] = __ldcs(from + j * GROUP + threadIdx.x);
    T *to = (T *)a.dq + (p.row + p.i0) * a.stride_q + p.head * D + column;
    store_wide<T, 64>(to, a.stride_q, row_of_thread(), p.n, soft90_bwd_scale(a), dq);
}

/* The scratch memory of a call, in this order. */
typedef struct bwd_parts {
    size_t sums, dq, delta; /* bytes; the counter follows */
} bwd_parts;

static bwd_parts parts_of(const softmax_attn_args *a, bool has_dq) {
    size_t n = (size_t)(count_slots(a) * a->n_heads);
    bwd_parts p = {cuda_align(n * sizeof(soft90_bwd_sums)), 0, 0};
    if (has_dq)
        p.dq = cuda_align(n * QUERIES * (size_t)a->dim * sizeof(float));
    else
        p.delta = cuda_align((size_t)(a->n_rows * a->n_heads) * sizeof(float));
    return p;
}

/* Whether two column tiles share the queries they load. */
static bool shares(const softmax_attn_args *a) {
    return a->max_len > MASK_SHARED_LENGTH ||
           mask_choice_shares(&a->mask.rule, a->mask.n_tiles, a->mask.n_begins, a->max_len);
}

/* float16 has one kernel for every length, which keeps the build short. */
static bool is_short(const backend *be, const softmax_attn_args *a) {
    return be->act == ACT_BF16 && a->dim == 64 && a->silu_scale == 0 && !shares(a);
}

template <typename T, int D> static status run(backend *be, const softmax_attn_args *a) {
    soft90_bwd_job job = {};
    int64_t columns = (int64_t)a->n_heads * D;
    cudaStream_t stream = cuda_of(be)->stream;
    unsigned n_slots = (unsigned)(count_slots(a) * a->n_heads);
    char *room;
    job.a = *a;
    job.scale = a->alpha * (a->silu_scale != 0 ? 0.5f : 1.44269504f);
    job.has_dq = !cuda_of(be)->is_deterministic;
    bwd_parts parts = parts_of(a, job.has_dq);
    TRY(cuda_scratch(be, parts.sums + parts.dq + parts.delta + sizeof(int), (void **)&room));
    soft90_bwd_sums *sums = (soft90_bwd_sums *)room;
    float *delta = job.has_dq ? NULL : (float *)(room + parts.sums + parts.dq);
    job.sums = sums;
    job.dq = job.has_dq ? (float *)(room + parts.sums) : NULL;
    job.counter = (int *)(room + parts.sums + parts.dq + parts.delta);
    TRY(sm90a_map(&job.q, be->act, a->q, a->n_rows, columns, a->stride_q));
    TRY(sm90a_map(&job.k, be->act, a->k, a->n_rows, columns, a->stride_k));
    TRY(sm90a_map(&job.v, be->act, a->v, a->n_rows, columns, a->stride_v));
    TRY(sm90a_map(&job.dout, be->act, a->dout, a->n_rows, columns, a->stride_out));
    softmax_attn_bwd_before_sm90_kernel<T, D>
        <<<n_slots, BEFORE_THREADS, 0, stream>>>(*a, sums, job.dq, delta, job.counter);
    TRY(cuda_launched("the softmax attention's delta"));
    if (is_short(be, a)) {
        TRY((soft90_bwd_launch<__nv_bfloat16, soft90_bwd_shape<bwd_short_d64>>(be, &job)));
    } else if constexpr (D == 64) {
        if (a->silu_scale != 0)
            TRY((soft90_bwd_launch<T, soft90_bwd_shape<bwd_silu_d64>>(be, &job)));
        else
            TRY((soft90_bwd_launch<T, soft90_bwd_shape<bwd_long_d64>>(be, &job)));
    } else if (a->silu_scale != 0) {
        TRY((soft90_bwd_launch<T, soft90_bwd_shape<bwd_silu_d128>>(be, &job)));
    } else {
        TRY((soft90_bwd_launch<T, soft90_bwd_shape<bwd_d128>>(be, &job)));
    }
    if (!job.has_dq) return cuda_softmax_sm80_dq(be, a, delta);
    softmax_attn_bwd_after_sm90_kernel<T, D><<<n_slots *(D / 64), GROUP, 0, stream>>>(*a, job.dq);
    return cuda_launched("the softmax attention's dq");
}

status cuda_softmax_sm90_bwd(backend *be, const softmax_attn_args *a) {
    if (be->act == ACT_BF16)
        return a->dim == 64 ? run<__nv_bfloat16, 64>(be, a) : run<__nv_bfloat16, 128>(be, a);
    return a->dim == 64 ? run<__half, 64>(be, a) : run<__half, 128>(be, a);
}
