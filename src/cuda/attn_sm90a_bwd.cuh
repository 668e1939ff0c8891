/* What the backward kernels of the attention on Hopper share.
 *
 * A block owns keys and walks over tiles of 64 queries.  Scores are computed with keys as rows, so
 * that weights and their gradients go from registers into dv and dk; the gradients also pass
 * through shared memory, where they meet the keys: dq, five products in all.  A block sees only its
 * keys' part of dq.  Where these are all keys of the sequence it writes dq itself; else it adds to
 * float32 sums in scratch memory, which the blocks of a sequence share and a last kernel rounds.
 *
 * The order of these additions is not the same every time.  In deterministic mode the blocks leave
 * dq alone, and a kernel that owns queries computes it anew: seven products. */
#ifndef HSTU_CUDA_ATTN_SM90A_BWD_CUH
#define HSTU_CUDA_ATTN_SM90A_BWD_CUH

#include "cuda/attn_sm90a.cuh"

enum { QUERIES = 64, DS_ROW = 2 * QUERIES }; /* rows of a tile of queries; bytes of a key's row */
enum { KEPT = 8 };                           /* descriptions of tiles: more than are under way */

typedef struct bwd_maps {
    CUtensorMap q, k, v, dout;
} bwd_maps;

/* One block's part of the work. */
typedef struct bwd_work {
    attn_seq s;
    int head, key0, n_keys; /* n_keys: of a block */
    int begin, end;         /* rows of queries outside of which none sees a key */
    bool is_alone;          /* its keys are all there are */
    bool has_dq;            /* dq is asked of it */
    float *sums;            /* of dq, those of the sequence's first tile; see dq_add */
    int64_t sums_step;      /* and from tile to tile */
} bwd_work;

__device__ static inline bool bwd_is_empty(const attn_args &a, const bwd_work &w, int i, int key0) {
    return attn_tile_is_empty(a, w.s, i, i + QUERIES, key0, key0 + w.n_keys);
}

/* The first row of the next tile of queries that sees any of the keys, from i on; not less than
 * w.end if there is none.  A block alone looks at every tile, since it has to write its dq. */
__device__ static inline int next_queries(const attn_args &a, const bwd_work &w, int i) {
    while (!w.is_alone && i < w.end && bwd_is_empty(a, w, i, w.key0))
        i += QUERIES;
    return i;
}

/* ---- masks ----------------------------------------------------------------------------------- */

/* The bits of a thread's pairs in columns lo .. hi - 1 of a tile, of the first of its two rows. */
__device__ static inline uint32_t span_bits(int lo, int hi) {
    int t = 2 * ((int)threadIdx.x % 4);
    uint32_t bits = 0;
#pragma unroll
    for (int odd = 0; odd < 2; odd++) {
        int first = min(max(lo - t - odd + 7, 0) / 8, 8),
            end = min(max(hi - t - odd + 7, 0) / 8, 8);
        uint32_t from = (uint32_t)(0x11111111ull << 4 * first);
        bits |= (from & ~(uint32_t)(0x11111111ull << 4 * end)) << odd;
    }
    return bits;
}

/* The queries of a tile that see a key, as columns of the tile.  Those who see it by the window and
 * the groups of targets are neighbours, and so are the contexts before them (attn_mask_of says the
 * same, row by row). */
__device__ static inline uint32_t key_bits(const attn_args &a, const attn_seq &s, int key, int i0) {
    if (key >= s.len_k) return 0;
    int base = i0 + s.shift; /* place of column 0 among the keys */
    long long lo = a.window_right < 0 ? 0 : (long long)key - a.window_right;
    long long hi = s.len_q + s.shift;
    if (a.window_left >= 0) hi = min(hi, (long long)key + a.window_left + 1);
    if (key >= s.history)
        hi = min(hi, (long long)s.history +
                         ((key - s.history) / a.target_group + 1ll) * a.target_group);
    int last = (int)min(max(hi - base, 0ll), (long long)QUERIES);
    uint32_t bits = span_bits((int)min(max(lo - base, 0ll), (long long)QUERIES), last);
    if (key < s.history && s.n_contexts > base)
        bits |= span_bits(0, min(s.n_contexts - base, last));
    return bits;
}

/* The same where spans are given by query: one by one. */
__device__ static inline uint32_t func_bits(const attn_args &a, const attn_seq &s, int key,
                                            int i0) {
    int first = i0 + 2 * ((int)threadIdx.x % 4);
    uint32_t bits = 0;
#pragma unroll 1
    for (int c = 0; c < 16; c++) {
        int row = first + c / 2 * 8 + c % 2;
        attn_row_mask mask = attn_mask_of(a, s, row);
        bits |= (uint32_t)attn_sees(a, s, mask, row, key) << (c / 2 * 4 + c % 2);
    }
    return bits;
}

/* Bit e: pair e of the thread is seen.  Its rows are key and key + 8; its columns are queries from
 * i0 on. */
__device__ static inline uint32_t bwd_mask(const attn_args &a, const attn_seq &s, int key, int i0) {
    if (a.func != NULL) return func_bits(a, s, key, i0) | func_bits(a, s, key + 8, i0) << 2;
    return key_bits(a, s, key, i0) | key_bits(a, s, key + 8, i0) << 2;
}

/* What the warp that asks tells of a tile of queries: its first row, a multiple of 64, and in bit g
 * whether warpgroup g's 64 keys are seen by all of them (-1 is told where there are no more).  Done
 * by those who compute, these few tests took a quarter of their time.  Short sequences are not
 * looked at: few of their tiles are, and the looking would be waited for. */
__device__ static inline int bwd_describe(const attn_args &a, const bwd_work &w, int i) {
    int at = i;
    if (w.is_alone) return at;
    for (int g = 0; g < w.n_keys / 64; g++) {
        int key = w.key0 + 64 * g;
        at |= (int)attn_tile_is_full(a, w.s, i, i + QUERIES, key, key + 64) << g;
    }
    return at;
}

/* Unseen scores and gradients become zero: then weights and gradients are. */
__device__ static inline void bwd_hide(uint32_t seen, float (&x)[32]) {
    if (seen == 0xffffffffu) return;
#pragma unroll
    for (int e = 0; e < 32; e++)
        x[e] = (seen >> e & 1) != 0 ? x[e] : 0;
}

/* ---- functions of scores --------------------------------------------------------------------- */

/* Scores to weights silu(alpha x), on the left of the next product, and in x what is left of the
 * slope: 2 silu' - 1 = tanh h + h (1 - tanh^2 h) with h = alpha x / 2. */
template <typename T>
__device__ static inline void bwd_weights(float half, float (&x)[32], uint32_t (&left)[4][4]) {
#pragma unroll
    for (int e = 0; e < 32; e += 2) {
        float p[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float h = half * x[e + i], t = tanh_approx(h);
            p[i] = fmaf(h, t, h);
            x[e + i] = fmaf(h, fmaf(-t, t, 1.0f), t);
        }
        left[e / 8][e / 2 % 4] = pack_two<T>(p[0], p[1]);
    }
}

/* Twice the gradients of the scores; the sums are halved at the end. */
template <typename T>
__device__ static inline void bwd_gradients(const float (&slope)[32], const float (&dp)[32],
                                            uint32_t (&left)[4][4]) {
#pragma unroll
    for (int e = 0; e < 32; e += 2)
        left[e / 8][e / 2 % 4] =
            pack_two<T>(fmaf(dp[e], slope[e], dp[e]), fmaf(dp[e + 1], slope[e + 1], dp[e + 1]));
}

/* A warpgroup's gradients of scores, 64 keys by 64 queries, as rows of 128 bytes from `row` of a
 * tile on, swizzled as the copy engine does it. */
__device__ static inline void bwd_put(char *tile, int row, const uint32_t (&left)[4][4]) {
    int lane = (int)threadIdx.x % 32;
    row += (int)threadIdx.x % GROUP / 32 * 16 + lane % 16;
    uint32_t at = shared_address(tile) + (uint32_t)(row * DS_ROW);
#pragma unroll
    for (int k = 0; k < 4; k++)
        stmatrix_x4(at + (uint32_t)(((2 * k + lane / 16) ^ (row & 7)) << 4), left[k]);
    shared_fence();
    __syncwarp();
}

/* ---- sums ------------------------------------------------------------------------------------ */

template <int N> __device__ static inline void clear(float (&x)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++)
        x[i] = 0;
}

/* sum (64, D) += left (64, 64 queries) times a tile of queries. */
template <typename T, int D>
__device__ static inline void add_tile(float (&sum)[D / 2], const uint32_t (&left)[4][4],
                                       const char *tile) {
    product_with_rows<T, D, QUERIES>(sum, left, tile);
    wgmma_commit();
}

/* dq (64 queries, N) = ds (KEYS, 64 queries) transposed times N columns of the keys. */
template <typename T, int KEYS, int N>
__device__ static inline void dq_product(float (&dq)[N / 2], const char *ds, const char *keys) {
    uint64_t desc_a = tile_describe(ds, 16), desc_b = tile_describe(keys, KEYS * PART_BYTES);
#pragma unroll
    for (int k = 0; k < KEYS / 16; k++)
        wgmma_tt<T, N>(dq, tile_move(desc_a, k * 16 * DS_ROW),
                       tile_move(desc_b, k * 16 * PART_BYTES), k > 0);
    wgmma_commit();
}

/* The row of a warpgroup's tile that is the thread's, with the one 8 further. */
__device__ static inline int row_of_thread() {
    return (int)threadIdx.x % GROUP / 32 * 16 + (int)threadIdx.x % 32 / 4;
}

/* ---- dq -------------------------------------------------------------------------------------- */

/* A warpgroup's part of dq: N columns from `column` on of the tile of queries from i on.
 *
 * The sums are, for each tile of queries and head, D / 64 blocks of 64 columns, in the order in
 * which a warpgroup holds them, so that its additions are whole lines of memory.  A sequence's
 * tiles start at offsets_q[b] / 64 + b, which leaves room for its last, partial one. */
template <typename T, int D, int N>
__device__ static inline void dq_add(const attn_args &a, const bwd_work &w, int i, int column,
                                     const float (&dq)[N / 2]) {
    if (w.is_alone) {
        T *to = (T *)a.dq + (int64_t)w.s.row_q * a.stride_q + w.head * D + column;
        store_wide<T, N>(to, a.stride_q, i + row_of_thread(), w.s.len_q, 0.5f * a.alpha * a.scale,
                         dq);
        return;
    }
    float *to = w.sums + i / QUERIES * w.sums_step + column * QUERIES + threadIdx.x % GROUP * 4;
#pragma unroll
    for (int j = 0; j < N / 8; j++)
        add_four(to + j * GROUP * 4, dq[4 * j], dq[4 * j + 1], dq[4 * j + 2], dq[4 * j + 3]);
}

/* ---- the host's side ------------------------------------------------------------------------- */

/* What the kernels of all sizes are launched with. */
typedef struct bwd_job {
    attn_args a;
    bwd_maps maps;
    float *sums; /* of dq; NULL: none are needed */
    bool has_dq;
    int n_tiles, n_keys; /* tiles of keys in the longest sequence, keys of a tile */
} bwd_job;

/* Where the mask is a window, the queries that see a block's keys are known without looking. */
__device__ static inline void bwd_bounds(const attn_args &a, bwd_work *w) {
    long long begin = 0, end = w->s.len_q;
    if (a.func == NULL && !w->is_alone) {
        long long key0 = w->key0 - w->s.shift;
        if (a.window_right >= 0 && w->s.n_contexts <= 0) begin = key0 - a.window_right;
        if (a.window_left >= 0) end = min(end, key0 + w->n_keys + a.window_left);
    }
    w->begin = (int)max(begin, 0ll) / QUERIES * QUERIES;
    w->end = (int)max(end, 0ll);
}

/* Block number `block`'s work; there is none where key0 is beyond the keys.  Tiles of one sequence
 * and head follow each other, so that its queries are read from memory once; the first keys are
 * seen most and come first. */
__device__ static inline void bwd_find(const bwd_job &job, int n_keys, int block, bwd_work *w) {
    int place = block / job.n_tiles;
    w->s = attn_seq_of(job.a, place / job.a.n_heads);
    w->head = place % job.a.n_heads;
    w->key0 = block % job.n_tiles * n_keys;
    w->n_keys = n_keys;
    w->is_alone = w->s.len_k <= n_keys;
    bwd_bounds(job.a, w);
    w->has_dq = job.has_dq;
    w->sums_step = (int64_t)job.a.n_heads * job.a.dim_qk * QUERIES;
    w->sums = job.sums + (w->s.row_q / QUERIES + w->s.b) * w->sums_step +
              (int64_t)w->head * job.a.dim_qk * QUERIES;
}

/* Maps, sums set to zero; n_keys is that of a block. */
status bwd_prepare(backend *be, const attn_args *a, int n_keys, bwd_job *job);
/* Rounds the sums into dq, or computes it anew. */
status bwd_finish(backend *be, const bwd_job *job);
/* dq by blocks that own queries (attn_sm90a_bwd_q.cu). */
status bwd_queries(backend *be, const bwd_job *job);

status cuda_attn_sm90a_bwd_256(backend *be, const attn_args *a);

#endif
