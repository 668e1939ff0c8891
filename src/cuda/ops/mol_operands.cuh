/* The operands of mol_pairs.cu: numbers and fragments, and the kernel that copies vectors, gates
 * and weights to scratch memory as the products read them. */
#pragma once

#include "cuda/core/kernel.cuh"
#include "cuda/core/ptx.cuh"
#include "cuda/gemm/linear_f.cuh"

/* A block has WARPS tiles; a query or an item has at most MOST vectors of 32 MOST_PARTS numbers. */
enum {
    WARPS = 4,
    THREADS = WARPS * WARP,
    TILE = 16,
    HIDDEN = 128,
    OWN_TILES = 2 * HIDDEN / TILE / WARPS, /* a warp's share of the two matrices' gradients */
    STRIDE = HIDDEN + 8, /* of rows of hidden values in shared memory: in other banks */
    MOST = 8,
    MOST_PARTS = 4
};

/* Of a sum that is neither 0 nor denormal, and of a number. */
template <typename T> __device__ static inline float reciprocal(float x) {
    return sizeof(T) == 4 ? 1 / x : rcp_approx(x);
}
template <typename T> __device__ static inline float log_of(float x) {
    return sizeof(T) == 4 ? logf(x) : __logf(x);
}
template <typename T> __device__ static inline float sigmoid_of(float x) {
    return sizeof(T) == 4 ? sigmoid<T>(x) : rcp_approx(1 + ex2_approx(-1.44269504f * x));
}

/* silu(x), and its slope. */
template <typename T> __device__ static inline float silu_of(float x, float *slope) {
    if constexpr (sizeof(T) == 4) {
        float s = sigmoid<T>(x), y = x * s;
        *slope = s + y * (1 - s);
        return y;
    } else { /* with h = x / 2: h (1 + tanh h), as in attn_sm80.cuh */
        float h = 0.5f * x, t = tanh_approx(h), y = fmaf(h, t, h);
        *slope = fmaf(0.5f, fmaf(-y, t, y) + t, 0.5f);
        return y;
    }
}

/* The shape of the published configs but one. */
template <typename T, int NX> constexpr bool IS_QUICK = NX == 4 && sizeof(T) == 2;

/* Two numbers of a fragment (ptx.cuh). */
template <typename T> struct mol_two { using type = uint32_t; };
template <> struct mol_two<float> { using type = float2; };
template <typename T> using two = typename mol_two<T>::type;

template <typename T> __device__ static inline two<T> make_two(float x, float y) {
    if constexpr (sizeof(T) == 4)
        return make_float2(x, y);
    else
        return cvt_pack<T>(x, y);
}

__device__ static inline float2 two_floats(float2 x) {
    return x;
}
__device__ static inline float2 two_floats(uint32_t x) {
    return __half22float2(*(const __half2 *)&x);
}

/* c += A B, of 16 x 16 and 16 x 8, as mma_m16n8k16 has them. */
template <typename T>
__device__ static inline void mma(float (&c)[4], two<T> a0, two<T> a1, two<T> a2, two<T> a3,
                                  two<T> b0, two<T> b1) {
    if constexpr (sizeof(T) == 4) {
        const float first[4] = {a0.x, a1.x, a0.y, a1.y}, second[4] = {a2.x, a3.x, a2.y, a3.y};
        mma_m16n8k8_split(c, first, b0.x, b0.y);
        mma_m16n8k8_split(c, second, b1.x, b1.y);
    } else {
        const uint32_t a[4] = {a0, a1, a2, a3};
        mma_m16n8k16<T>(c, a, b0, b1);
    }
}

/* Of an 8 x 8 matrix, of which each lane has row l / 4, columns 2 (l % 4) and the next: the same of
 * the transposed matrix. */
template <typename T> __device__ static inline two<T> turn(two<T> x) {
    if constexpr (sizeof(T) == 4) {
        int lane = (int)threadIdx.x % WARP, from = lane % 4 * 8 + lane / 8;
        float2 a =
            make_float2(__shfl_sync(0xffffffffu, x.x, from), __shfl_sync(0xffffffffu, x.y, from));
        float2 b = make_float2(__shfl_sync(0xffffffffu, x.x, from + 4),
                               __shfl_sync(0xffffffffu, x.y, from + 4));
        return lane / 4 % 2 == 0 ? make_float2(a.x, b.x) : make_float2(a.y, b.y);
    } else {
        return movmatrix_trans(x);
    }
}

/* Eight numbers that a lane reads at once. */
template <typename T> struct alignas(16) eight { two<T> v[4]; };

template <typename T> __device__ static inline eight<T> load_eight(const void *from, int64_t at) {
    return *(const eight<T> *)((const T *)from + at);
}

/* Operands in scratch memory, of type T.  Vectors are padded to `width`, a multiple of 32; an item
 * has NX of them, a query MOST.  Gates, and gradients of pairs, are in the order in which a
 * quad of lanes has them: number (t NX + r) 2 + e is logit p = 2 t + e of component r.  Row n_items
 * of items and gates is zero. */
typedef struct mol_operands {
    void *query, *query_gate;
    void *turned; /* (n, 32 lanes, width / 8 pairs of numbers): as the items' gradients read them */
    void *items, *item_gate;
    void *weights; /* W1 and W2 of the forward pass, W2 and W1 of the backward pass: fragments */
    float *bias;   /* (HIDDEN), (8 NX) */
    void *ds, *dg; /* (n, n_each, 8 NX) */
    float *parts;  /* (blocks, N_PARTS) */
} mol_operands;

typedef struct mol_job {
    mol_args a;
    mol_operands o;
    int32_t width, n_blocks; /* of the backward pass */
} mol_job;

/* Sums of a block: the gradients of W1 and of W2 transposed, both (HIDDEN, 8 NX), and of the
 * biases. */
template <int NX> constexpr int N_PARTS = HIDDEN *(2 * 8 * NX + 1) + 8 * NX;

template <typename T> __device__ static inline float scale_of(const mol_args &a) {
    return sizeof(T) == 2 && *a.grad_scale > 0 ? *a.grad_scale : 1;
}

/* The place of logit number k in rows of P, or -1. */
__device__ static inline int logit_of(const mol_args &a, int k) {
    int r = k / 8, p = k % 8;
    return r < a.n_item && p < a.n_query ? p * a.n_item + r : -1;
}

/* Element k of a matrix of fragments: pairs of them lie next to each other, 8 numbers a lane. */
template <int NX> __device__ static inline float weight_at(const mol_args &a, int which, int k) {
    int lane = k / 8 % WARP, f = k / 256 * 2 + k / 4 % 2, hidden, logit;
    int deep = lane % 4 * 2 + k % 2 + k / 2 % 2 * 8, across = lane / 4;
    if (which % 2 == 0) { /* sums over logits: fragment (hidden / 8, logits / 16) */
        hidden = f / (NX / 2) * 8 + across;
        logit = logit_of(a, f % (NX / 2) * 16 + deep);
    } else { /* sums over hidden values: fragment (hidden / 16, logits / 8) */
        hidden = f / NX * 16 + deep;
        logit = logit_of(a, f % NX * 8 + across);
    }
    int n = a.n_query * a.n_item;
    if (hidden >= a.pair_hidden || logit < 0) return 0;
    return which == 0 || which == 3 ? a.pair_w[0][hidden * n + logit]
                                    : a.pair_w[1][logit * a.pair_hidden + hidden];
}

template <typename S>
__device__ static inline float query_at(const mol_args &a, int64_t i, int p, int c) {
    int n_own = a.n_query - a.n_user;
    if (p >= a.n_query || c >= a.dim) return 0;
    return to_float(p < n_own ? ((const S *)a.query)[(i * n_own + p) * a.dim + c]
                              : ((const S *)a.user)[((p - n_own) * a.user_stride + i) * a.dim + c]);
}

/* Number k of the gates of row i. */
template <typename S, int NX>
__device__ static inline float gate_at(const mol_args &a, const void *gate, int64_t i, int k) {
    int logit = logit_of(a, k / 2 % NX * 8 + k / (2 * NX) * 2 + k % 2);
    return logit < 0 ? 0 : to_float(((const S *)gate)[i * a.n_query * a.n_item + logit]);
}

template <typename T>
__device__ static inline void put_eight(void *to, unsigned k, const float (&x)[8]) {
    eight<T> y;
#pragma unroll
    for (int v = 0; v < 4; v++)
        y.v[v] = make_two<T>(x[2 * v], x[2 * v + 1]);
    ((eight<T> *)to)[k] = y;
}

/* Blocks (of threads that write eight numbers, arrays): query, turned, items, gates of queries and
 * of items, weights with the biases. */
enum { COPY_THREADS = 256, COPY_ARRAYS = 6 };

template <int NX>
static __host__ __device__ inline int64_t copy_count(const mol_job &j, int array) {
    int64_t w = j.width, n_items = j.a.n_items + 1;
    if (array == 0) return j.a.n * w;
    if (array == 1) return j.o.turned != NULL ? j.a.n * w : 0;
    if (array == 2) return n_items * NX * w / 8;
    if (array == 3) return j.a.n * NX;
    return array == 4 ? n_items * NX : 4 * HIDDEN * NX + HIDDEN / 8 + NX;
}

template <typename S, typename T, int NX>
static __global__ void __launch_bounds__(COPY_THREADS) mol_operands_any_kernel(const mol_job j) {
    const mol_args &a = j.a;
    const int array = (int)blockIdx.y;
    const unsigned k = blockIdx.x * COPY_THREADS + threadIdx.x, w = (unsigned)j.width;
    if (k >= copy_count<NX>(j, array)) return;
    float x[8];
#pragma unroll
    for (int v = 0; v < 8; v++) {
        if (array == 0) {
            x[v] = query_at<S>(a, k / w, (int)(k / (w / 8) % MOST), (int)(k % (w / 8)) * 8 + v);
        } else if (array == 1) { /* four rows of two numbers; a lane has w / 8 rows */
            int lane = (int)(k / (w / 32) % WARP), row = (int)(k % (w / 32)) * 4 + v / 2;
            x[v] = query_at<S>(a, k / w, lane % 4 * 2 + v % 2, row * 8 + lane / 4);
        } else if (array == 2) {
            int item = (int)(k / (NX * w / 8)), r = (int)(k / (w / 8) % NX);
            int c = (int)(k % (w / 8)) * 8 + v;
            x[v] = item < a.n_items && r < a.n_item && c < a.dim
                       ? to_float(((const S *)a.items)[((int64_t)item * a.n_item + r) * a.dim + c])
                       : 0;
        } else if (array == 3) {
            x[v] = gate_at<S, NX>(a, a.query_gate, k / NX, (int)(k % NX) * 8 + v);
        } else if (array == 4) {
            int item = (int)(k / NX);
            x[v] =
                item < a.n_items ? gate_at<S, NX>(a, a.item_gate, item, (int)(k % NX) * 8 + v) : 0;
        } else if (k < 4 * HIDDEN * NX) {
            x[v] = weight_at<NX>(a, (int)k / (HIDDEN * NX), (int)k % (HIDDEN * NX) * 8 + v);
        } else {
            int c = ((int)k - 4 * HIDDEN * NX) * 8 + v;
            int logit = c < HIDDEN ? -1 : logit_of(a, c - HIDDEN);
            x[v] = c < a.pair_hidden && c < HIDDEN ? a.pair_b[0][c]
                   : logit >= 0                    ? a.pair_b[1][logit]
                                                   : 0;
            j.o.bias[c] = x[v];
        }
    }
    if (array < 5 || k < 4 * HIDDEN * NX)
        put_eight<T>(array == 0   ? j.o.query
                     : array == 1 ? j.o.turned
                     : array == 2 ? j.o.items
                     : array == 3 ? j.o.query_gate
                     : array == 4 ? j.o.item_gate
                                  : j.o.weights,
                     k, x);
}
