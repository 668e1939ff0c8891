/* HSTU attention, backward, on Hopper: sequences of at most 64 queries and keys, head dimensions up
 * to 128.
 *
 * A sequence and head has one tile each of queries, keys, values and dout, so nothing is summed
 * over tiles: a block computes scores and gradients, then dv, dk and dq one after the other, and
 * stores them.  Its first thread issues the loads of the next pair of sequence and head as soon as
 * the last product is done.  Three blocks a multiprocessor hide each other's latency: bound by
 * latency and bytes. */
#include "cuda/attn/sm90/attn_sm90_bwd.cuh"

template <int D_> struct one_shape {
    static constexpr int D = D_, THREADS = GROUP, BOX = 16, BLOCKS = 3, N = part<D>::COLUMNS;
    static constexpr int TILE = 64 * D * 2, DS = 64 * DS_ROW, PAIRS = 32;
    static constexpr int BYTES = 4 * TILE + DS;
};

template <typename S> struct one_end {
    uint64_t scores, values; /* queries and keys are there; values and dout */
    int n_pairs;
    bwd_pair pairs[S::PAIRS];
};

typedef struct one_room {
    char *queries, *keys, *values, *douts, *ds;
} one_room;

/* Lists the block's pairs of sequence and head, PAIRS at most.  The first warp calls
 * this. */
template <typename S>
__device__ static inline void one_list(const attn_args &a, int n_pairs, one_end<S> *e) {
    int lane = (int)threadIdx.x, n = (int)blockIdx.x + lane * (int)gridDim.x;
    bool is_there = n < n_pairs;
    if (is_there) {
        e->pairs[lane].s = attn_sequence_of(&a, n / a.n_heads);
        e->pairs[lane].head = n % a.n_heads;
    }
    unsigned all = __ballot_sync(0xffffffffu, is_there);
    if (lane == 0) e->n_pairs = __popc(all);
    __syncwarp();
}

/* Only rows that are there, by boxes of 16. */
template <typename S>
__device__ static inline void one_load(char *to, const CUtensorMap *map, uint64_t *barrier, int x,
                                       int y, int n) {
    for (int r = 0; r < n; r += S::BOX) {
#pragma unroll
        for (int c = 0; c < S::D / S::N; c++)
            tile_load(to + (c * 64 + r) * S::N * 2, map, barrier, x + c * S::N, y + r);
    }
}

template <typename S>
__device__ static inline void one_ask(const bwd_maps &maps, const one_room &room, one_end<S> *e,
                                      int i) {
    const bwd_pair &p = e->pairs[i];
    int x = p.head * S::D;
    uint32_t boxes =
        (uint32_t)((p.s.len_q + S::BOX - 1) / S::BOX + (p.s.len_k + S::BOX - 1) / S::BOX);
    barrier_expect(&e->scores, boxes * (uint32_t)(S::BOX * S::D * 2));
    one_load<S>(room.keys, &maps.k, &e->scores, x, p.s.row_k, p.s.len_k);
    one_load<S>(room.queries, &maps.q, &e->scores, x, p.s.row_q, p.s.len_q);
    barrier_expect(&e->values, boxes * (uint32_t)(S::BOX * S::D * 2));
    one_load<S>(room.values, &maps.v, &e->values, x, p.s.row_k, p.s.len_k);
    one_load<S>(room.douts, &maps.dout, &e->values, x, p.s.row_q, p.s.len_q);
}

/* Weights and gradients of a pair of sequence and head, as left operands of products; the gradients
 * also go to shared memory. */
template <typename T, typename S>
__device__ static inline void one_scores(const attn_args &a, const one_room &room, one_end<S> *e,
                                         int i, uint32_t (&weights)[4][4], uint32_t (&ds)[4][4]) {
    float x[32], dp[32], half = 0.5f * a.alpha;
    uint32_t parity = (uint32_t)i & 1, seen = bwd_mask(a, e->pairs[i].s, row_of_thread(), 0);
    barrier_wait(&e->scores, parity);
    wgmma_fence();
    product_of_rows<T, S::D, 64, 64>(x, room.keys, room.queries);
    wgmma_commit();
    barrier_wait(&e->values, parity);
    wgmma_fence();
    product_of_rows<T, S::D, 64, 64>(dp, room.values, room.douts);
    wgmma_commit();
    wgmma_wait<1>();
    bwd_hide(half, seen, x);
    bwd_weights<T>(half, x, weights);
    wgmma_wait<0>();
    bwd_gradients<T>(x, dp, ds);
    bwd_put(room.ds, 0, ds);
    __syncthreads();
}

/* sum (64, N) = left (64, 64 queries) times N columns of a tile of queries or dout. */
template <typename T, int N>
__device__ static inline void one_product(float (&sum)[N / 2], const uint32_t (&left)[4][4],
                                          const char *columns) {
    uint64_t b = part_describe<N>(columns, 64 * PART_BYTES);
#pragma unroll
    for (int k = 0; k < 4; k++)
        wgmma_rs<T, N>(sum, left[k], tile_move(b, k * 16 * N * 2), k > 0);
    wgmma_commit();
}

template <typename T, int N>
__device__ static inline void one_store(void *to, int64_t stride, int row0, int n, int column,
                                        float scale, const float (&sum)[N / 2]) {
    store_wide<T, N>((T *)to + (int64_t)row0 * stride + column, stride, row_of_thread(), n, scale,
                     sum);
}

/* dv, dk and dq of pair i, 64 columns (or all 32) at a time.  Its buffers are free for the next
 * pair after the last products. */
template <typename T, typename S>
__device__ static inline void one_gradients(const attn_args &a, const bwd_maps &maps,
                                            const one_room &room, one_end<S> *e, int i) {
    uint32_t weights[4][4], ds[4][4];
    const bwd_pair &p = e->pairs[i];
    constexpr int N = S::N;
    float slope = 0.5f * a.alpha * a.scale;
    one_scores<T, S>(a, room, e, i, weights, ds);
#pragma unroll 1
    for (int c = 0; c < S::D; c += N) {
        int at = c * 64 * 2, column = p.head * S::D + c;
        float dv[N / 2], dk[N / 2], dq[N / 2];
        wgmma_fence();
        one_product<T, N>(dv, weights, room.douts + at);
        one_product<T, N>(dk, ds, room.queries + at);
        dq_product<T, 64, N>(dq, room.ds, room.keys + at);
        wgmma_wait<0>();
        if (c + N == S::D) {
            __syncthreads();
            if (threadIdx.x == 0 && i + 1 < e->n_pairs) one_ask<S>(maps, room, e, i + 1);
        }
        one_store<T, N>(a.dv, a.stride_v, p.s.row_k, p.s.len_k, column, a.scale, dv);
        one_store<T, N>(a.dk, a.stride_k, p.s.row_k, p.s.len_k, column, slope, dk);
        one_store<T, N>(a.dq, a.stride_q, p.s.row_q, p.s.len_q, column, slope, dq);
    }
}

/* Rows that no box loads are multiplied by weights of 0, but must be finite: all buffers are
 * cleared. */
template <typename S> __device__ static inline void one_clear(char *shared) {
    for (int i = (int)threadIdx.x; i < 4 * S::TILE / 16; i += S::THREADS)
        ((uint4 *)shared)[i] = make_uint4(0, 0, 0, 0);
    shared_fence();
}

template <typename T, typename S>
__global__ void __launch_bounds__(S::THREADS, S::BLOCKS)
    attn_bwd_single_tile_sm90_kernel(const __grid_constant__ attn_args a,
                                     const __grid_constant__ bwd_maps maps, int n_pairs) {
    extern __shared__ __align__(1024) char shared[];
    one_end<S> *e = (one_end<S> *)(shared + S::BYTES);
    one_room room = {shared, shared + S::TILE, shared + 2 * S::TILE, shared + 3 * S::TILE,
                     shared + 4 * S::TILE};
    if (threadIdx.x == 0) {
        barrier_init(&e->scores, 1);
        barrier_init(&e->values, 1);
        barrier_init_done();
    }
    one_clear<S>(shared);
    grid_wait();
    if (threadIdx.x < 32) one_list<S>(a, n_pairs, e);
    __syncthreads();
    if (threadIdx.x == 0 && e->n_pairs > 0) one_ask<S>(maps, room, e, 0);
    for (int i = 0; i < e->n_pairs; i++)
        one_gradients<T, S>(a, maps, room, e, i);
}

template <typename T, int D> static status launch(backend *be, const attn_args *a) {
    using S = one_shape<D>;
    constexpr int BYTES = S::BYTES + (int)sizeof(one_end<S>);
    static_assert((BYTES + 1024) * S::BLOCKS <= 228 * 1024, "shared memory");
    int64_t n_pairs = (int64_t)a->n_sequences * a->n_heads;
    int64_t n_blocks = (int64_t)S::BLOCKS * cuda_of(be)->n_multiprocessors;
    int64_t least = cuda_div_up(n_pairs, S::PAIRS);
    bwd_maps maps;
    if (n_pairs == 0) return OK;
    TRY(bwd_make_maps(be, a, S::BOX, &maps));
    if (n_blocks > n_pairs) n_blocks = n_pairs;
    if (n_blocks < least) n_blocks = least;
    attn_args b = bwd_shorten(a);
    return cuda_launch_early(be, "the gradient of the attention",
                             attn_bwd_single_tile_sm90_kernel<T, S>, n_blocks, S::THREADS, BYTES, b,
                             maps, (int)n_pairs);
}

status cuda_attn_sm90_bwd_single_tile(backend *be, const attn_args *a) {
    using T = __nv_bfloat16;
    if (a->dim_qk == 32) return launch<T, 32>(be, a);
    if (a->dim_qk == 64) return launch<T, 64>(be, a);
    return launch<T, 128>(be, a);
}
