/* What the backward kernels of the attention on Hopper share: masks, functions of scores, sums.
 *
 * A block computes with a tile of keys and visits the tiles of 64 queries that see any of them
 * (the producer warp decides which).  Scores are computed with keys as rows, so that weights
 * and their gradients go from registers into dv and dk; the gradients also pass through shared
 * memory, where they are multiplied with the keys: dq, five products in all. */
#pragma once

#include "cuda/attn/common/attn_tiles.cuh"
#include "cuda/attn/sm90/attn_sm90_bias.cuh"

enum { QUERIES = 64, DS_ROW = 2 * QUERIES }; /* rows of a tile of queries; bytes of a key's row */
enum { DQ_ROWS = 128 };        /* query rows of a tile in the kernel that recomputes dq ... */
enum { DQ_ROWS_BIAS_64 = 64 }; /* ... and with a bias, up to head dimension 64 */

typedef struct bwd_maps {
    CUtensorMap q, k, v, dout;
} bwd_maps;

/* A sequence and one of its heads. */
typedef struct bwd_pair {
    attn_sequence s;
    int head;
} bwd_pair;

/* Bits of a thread's 16 columns of a tile from lo on and before hi. */
__device__ static inline uint32_t span_bits(int lo, int hi) {
    int first = 2 * ((int)thread_index() % 4);
    return (0xffffu << attn_columns_below<8>(lo - first)) &
           ~(0xffffu << attn_columns_below<8>(hi - first)) & 0xffffu;
}

/* The queries of a tile, from i0 on, that see `key`, as bits of the tile's columns.  Windows and
 * groups are no longer than the longest sequence (bwd_prepare). */
__device__ static inline uint32_t key_bits(const attn_args &a, const attn_sequence &s, int key,
                                           int i0) {
    if (key >= s.len_k) return 0;
    int base = i0 + s.shift; /* place of column 0 among the keys */
    attn_key_mask m = attn_key_spans(&a, &s, key);
    uint32_t bits = span_bits(m.own.begin - base, m.own.end - base);
    if (m.contexts.end > base) bits |= span_bits(0, m.contexts.end - base);
    return bits;
}

/* The queries that see `key` and, in the high half, key + 8, for a func mask: its spans are given
 * by query, so pairs are tested one by one. */
__device__ static inline uint32_t func_bits(const attn_args &a, const attn_sequence &s, int key,
                                            int i0) {
    int first = i0 + 2 * ((int)threadIdx.x % 4);
    uint32_t bits = 0;
#pragma unroll 1
    for (int c = 0; c < 16; c++) {
        int row = first + c / 2 * 8 + c % 2;
        attn_row_mask mask = attn_row_spans(&a, &s, row);
        bits |= (uint32_t)attn_row_sees(&a, &s, &mask, row, key) << c;
        bits |= (uint32_t)attn_row_sees(&a, &s, &mask, row, key + 8) << (c + 16);
    }
    return bits;
}

/* Which pairs of a thread are visible: the low half of the word for row `key`, the high half for
 * row key + 8; its columns are queries from i0 on. */
__device__ static inline uint32_t bwd_mask(const attn_args &a, const attn_sequence &s, int key,
                                           int i0) {
    if (a.func != NULL) return func_bits(a, s, key, i0);
    return key_bits(a, s, key, i0) | key_bits(a, s, key + 8, i0) << 16;
}

/* A score's weight silu(alpha x), and its slope as 2 silu' - 1 = tanh h + h (1 - tanh^2 h) with
 * h = alpha x / 2. */
__device__ static inline float bwd_weight(float half, float x, float *slope) {
    float h = half * x, t = tanh_approx(h);
    *slope = fmaf(h, fmaf(-t, t, 1.0f), t);
    return fmaf(h, t, h);
}

/* Turns scores into weights, the left operand of the next product, and x into the slopes. */
template <typename T>
__device__ static inline void bwd_weights(float half, float (&x)[32], uint32_t (&left)[4][4]) {
#pragma unroll
    for (int e = 0; e < 32; e += 2) {
        float p = bwd_weight(half, x[e], &x[e]), q = bwd_weight(half, x[e + 1], &x[e + 1]);
        left[e / 8][e / 2 % 4] = cvt_pack<T>(p, q);
    }
}

/* Like the function above with slopes as float16, in half the registers: float16 has more digits
 * than the operand they are rounded to. */
template <typename T>
__device__ static inline void bwd_weights(float half, const float (&x)[32], uint32_t (&left)[4][4],
                                          uint32_t (&slope)[16]) {
#pragma unroll
    for (int e = 0; e < 32; e += 2) {
        float v[2];
        float p = bwd_weight(half, x[e], &v[0]), q = bwd_weight(half, x[e + 1], &v[1]);
        left[e / 8][e / 2 % 4] = cvt_pack<T>(p, q);
        slope[e / 2] = cvt_pack<__half>(v[0], v[1]);
    }
}

/* Pairs that are not visible get a score so far below zero that their weight is 0 and their slope
 * -1, which makes the gradient 0, too: one selection instead of two. */
__device__ static inline void bwd_hide(float half, uint32_t seen, float (&x)[32]) {
    if (seen == 0xffffffffu) return;
    float far = half != 0 ? __fdividef(-1e4f, half) : 0;
#pragma unroll
    for (int e = 0; e < 32; e++)
        x[e] = (seen >> (e / 2 % 2 * 16 + e / 4 * 2 + e % 2) & 1) != 0 ? x[e] : far;
}

/* Twice the gradients of the scores; the epilogue halves the sums. */
template <typename T>
__device__ static inline void bwd_gradients(const float (&slope)[32], const float (&dp)[32],
                                            uint32_t (&left)[4][4]) {
#pragma unroll
    for (int e = 0; e < 32; e += 2)
        left[e / 8][e / 2 % 4] =
            cvt_pack<T>(fmaf(dp[e], slope[e], dp[e]), fmaf(dp[e + 1], slope[e + 1], dp[e + 1]));
}

template <typename T>
__device__ static inline void bwd_gradients(const uint32_t (&slope)[16], const float (&dp)[32],
                                            uint32_t (&left)[4][4]) {
#pragma unroll
    for (int e = 0; e < 32; e += 2) {
        float2 v = __half22float2(*(const __half2 *)&slope[e / 2]);
        left[e / 8][e / 2 % 4] =
            cvt_pack<T>(fmaf(dp[e], v.x, dp[e]), fmaf(dp[e + 1], v.y, dp[e + 1]));
    }
}

/* Passes slopes from one warpgroup to another through shared memory, as float16; thread i reads
 * what thread i wrote. */
__device__ static inline void slopes_put(char *slopes, const float (&x)[32]) {
    uint4 *to = (uint4 *)slopes + threadIdx.x % GROUP;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const float *v = &x[8 * j];
        to[j * GROUP] = make_uint4(cvt_pack<__half>(v[0], v[1]), cvt_pack<__half>(v[2], v[3]),
                                   cvt_pack<__half>(v[4], v[5]), cvt_pack<__half>(v[6], v[7]));
    }
    __syncwarp();
}

/* Twice the gradients of a tile's scores, from the slopes of another warpgroup, as the left operand
 * of a product. */
template <typename T>
__device__ static inline void slopes_apply(const char *slopes, const float (&dp)[32],
                                           uint32_t (&ds)[4][4]) {
    const uint4 *from = (const uint4 *)slopes + threadIdx.x % GROUP;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        uint4 four = from[j * GROUP];
        uint32_t pair[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float2 v = __half22float2(*(__half2 *)&pair[i]);
            const float *d = &dp[8 * j + 2 * i];
            ds[j][i] = cvt_pack<T>(fmaf(d[0], v.x, d[0]), fmaf(d[1], v.y, d[1]));
        }
    }
}

/* A warpgroup's gradients of scores, 64 keys by 64 queries, as rows of 128 bytes from `row` of a
 * tile on, swizzled like TMA. */
__device__ static inline void bwd_put(char *tile, int row, const uint32_t (&left)[4][4]) {
    int thread = (int)thread_index(), lane = thread % 32;
    row += thread % GROUP / 32 * 16 + lane % 16;
    uint32_t at = shared_address(tile) + (uint32_t)(row * DS_ROW);
#pragma unroll
    for (int k = 0; k < 4; k++)
        stmatrix_x4(at + (uint32_t)(((2 * k + lane / 16) ^ (row & 7)) << 4), left[k]);
    shared_fence();
    __syncwarp();
}

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

/* dq (64 queries, N) = ds (KEYS, 64 queries) transposed times N columns of the keys; adds: +=. */
template <typename T, int KEYS, int N>
__device__ static inline void dq_product(float (&dq)[N / 2], const char *ds, const char *keys,
                                         bool adds = false) {
    uint64_t desc_a = tile_describe(ds, 16), desc_b = part_describe<N>(keys, KEYS * PART_BYTES);
#pragma unroll
    for (int k = 0; k < KEYS / 16; k++)
        wgmma_tt<T, N>(dq, tile_move(desc_a, k * 16 * DS_ROW),
                       tile_move(desc_b, k * 16 * part<N>::BYTES), adds || k > 0);
    wgmma_commit();
}

/* The thread's first row of a warpgroup's tile; its other row is 8 further. */
__device__ static inline int row_of_thread() {
    int thread = (int)thread_index();
    return thread % GROUP / 32 * 16 + thread % 32 / 4;
}

/* Stores dk and dv of the thread's keys, key and key + 8, of its warpgroup's keys. */
template <typename T, int D>
__device__ static inline void bwd_store(const attn_args &a, const attn_sequence &s, int head,
                                        int key, const float (&dk)[D / 2],
                                        const float (&dv)[D / 2]) {
    int64_t column = (int64_t)head * D;
    store_wide<T, D>((T *)a.dv + (int64_t)s.row_k * a.stride_v + column, a.stride_v, key, s.len_k,
                     a.scale, dv);
    store_wide<T, D>((T *)a.dk + (int64_t)s.row_k * a.stride_k + column, a.stride_k, key, s.len_k,
                     0.5f * a.alpha * a.scale, dk);
}

/* The arguments of every backward kernel here. */
typedef struct bwd_job {
    attn_args a;
    bwd_maps maps;
    bias_source bias;
    bool is_whole; /* blocks work on whole sequences, not on tiles of keys */
    bool has_dq;
    attn_tiles tiles; /* schedule of tiles of keys; is_whole: only the order of the sequences */
    attn_tiles query_tiles;    /* where dq is recomputed */
    float *sums;               /* float32 sums of dq; see bwd_keys.  Head dimension 256: score
                                  gradients, see attn_sm90_bwd_d256.cu */
    int kept_keys;             /* tiles of keys whose score gradients are kept; 0: none are */
    unsigned long long *cells; /* gradient sums of attn_bias.cuh; NULL if they are not wanted */
    int n_tiles, n_pairs; /* tiles of queries in the longest sequence; pairs of sequence and head */
    int n_keys;           /* of a tile */
    /* Queries are cut into parts of part_rows, and a block takes one part of a tile of keys.  Tiles
     * that queries of several parts see are cut: their dk and dv are float32 sums, too. */
    int n_parts, part_rows;
    float *dk_sums, *dv_sums; /* in the order of the sums of dq; NULL with one part */
} bwd_job;

/* Tensor maps whose boxes have `rows` rows of 64 columns, or of all 32 of a head. */
status bwd_make_maps(backend *be, const attn_args *a, int rows, bwd_maps *maps);
/* The arguments with windows and target groups clipped to the longest sequence: the mask stays
 * the same, and sums with them cannot overflow. */
attn_args bwd_shorten(const attn_args *a);
/* Whether a block works on whole sequences: bfloat16, head dimensions up to 128, and they are
 * short, and enough of them. */
bool bwd_is_whole(backend *be, const attn_args *a);
/* Makes tensor maps, the schedule, and scratch memory for sums of dq. n_blocks: in, the blocks that
 * the card can hold at once; out, the blocks to launch. */
status bwd_prepare(backend *be, const attn_args *a, int n_keys, int64_t *n_blocks, bwd_job *job);
/* Head dimension 256: bytes of scratch memory for the score gradients of all heads; no more than
 * BWD_KEPT_MOST are kept. */
#define BWD_KEPT_MOST ((int64_t)2 << 30)
int64_t bwd_gradients_bytes(const attn_args *a);
/* Rounds the float32 sums into dq, or recomputes dq. */
status bwd_finish(backend *be, const bwd_job *job);
/* dq by blocks that own queries (attn_sm90_bwd_dq.cu); with a bias, its gradients as well
 * (attn_sm90_bwd_dq_bias.cu). */
status bwd_queries(backend *be, const bwd_job *job);
status bwd_queries_bias(backend *be, const bwd_job *job);

/* Sequences of at most 64 queries and keys, head dimensions up to 128. */
status cuda_attn_sm90_bwd_single_tile(backend *be, const attn_args *a);
/* Head dimension 256. */
status cuda_attn_sm90_bwd_d256(backend *be, const attn_args *a);

/* The producer warp, which schedules the work of its block, and the sums of dq.
 *
 * Kernels are persistent.  The producer warp of a block finds
 * the next tile of keys and loads it, its values, and the queries and dout of the tiles that see
 * any of it, ahead of the consumer warps.  It also decides which tiles of queries a tile of keys is
 * paired with: each lane tests one tile of queries.
 *
 * Short sequences, if there are enough of them, are worked on whole: one block processes all keys
 * of a pair of sequence and head.  Then the same threads sum all parts of dq: the part of the first
 * keys is written to scratch memory, the next parts are added, and with the last part the sum is
 * rounded and stored; nothing is set to zero before or rounded after, and the bits are the same in
 * every run. Long sequences are split (split-K over the keys): a block dequeues tiles of keys and
 * adds its part of dq to float32 sums that blocks share and a last kernel rounds.  The order of
 * these additions varies from run to run; in deterministic mode, and at head dimension 256, where
 * the additions would take longer than the products, a kernel that owns queries recomputes dq
 * instead. */

enum { KEPT = 8 };   /* words of tiles: more than there are pipeline stages */
enum { LISTED = 8 }; /* pairs that a block looks up at once */

/* The word that describes a tile of queries: its number times 32, plus flags. Bit g: all pairs of
 * warpgroup g are visible. TILE_FIRST: it sees no keys before the current tile of keys; TILE_LAST:
 * none after it; TILE_FINAL: it is the last tile of queries that sees the current keys. */
enum { TILE_FIRST = 4, TILE_LAST = 8, TILE_FINAL = 16, TILE_NUMBER = 32 };

/* A tile of keys.  For each tile of queries, the sums of dq are D / 64 blocks of 64 columns in a
 * warpgroup's register order, so that its additions fill whole cache lines. */
typedef struct bwd_keys {
    bwd_pair pair; /* head < 0: there are no more */
    int key0;
    bool has_tiles; /* some queries see them */
    bool is_cut;    /* blocks share the sums of dk and dv */
    float *sums;    /* of the sequence's first tile of queries */
    int64_t step;   /* and from tile to tile */
} bwd_keys;

/* The kind of bias that a shape supports; a shape with a bias specialises this. */
template <typename S> struct walk_bias { static constexpr attn_bias KIND = BIAS_NONE; };

/* Shared memory of the bias: rows are keys, columns queries (attn_sm90_bias.cuh). */
template <typename S, attn_bias BIAS> struct walk_biases {};
template <typename S> struct walk_biases<S, BIAS_TABLE> {
    uint64_t there[S::STAGES]; /* free with the queries */
};
template <typename S> struct walk_biases<S, BIAS_TIME> {
    uint64_t there[S::STAGES];
    time_tables tables;
    time_tile<S::KEYS, QUERIES> tiles[S::STAGES];
    int times[S::OWNS][S::KEYS]; /* of keys */
    int are_wide[S::OWNS];
};

/* Shared memory of producer and consumers.  A shape S names D, the head dimension; IS_WHOLE:
 * sequences are always worked on whole; KEYS of a tile; STAGES pipeline stages of queries and
 * dout; OWNS buffers of keys and values; WARPS, the number of consumer warps. */
template <typename S> struct walk_end {
    uint64_t keys[S::OWNS], values[S::OWNS], own_free[S::OWNS];
    uint64_t queries[S::STAGES], douts[S::STAGES], free[S::STAGES];
    bwd_keys records[S::OWNS];
    int tiles[KEPT]; /* tile n at n % KEPT */
    bwd_pair pairs[LISTED];
    walk_biases<S, walk_bias<S>::KIND> bias;
};

template <typename S> struct walk_room {
    char *keys, *values, *queries, *douts;
    char *tables; /* of a bias: for each stage and 64 keys a tile */
    walk_end<S> *end;
};

/* Counts of the tiles of keys and of queries loaded so far. */
typedef struct walk_place {
    int keys, queries;
} walk_place;

template <typename S> __device__ static inline bool walk_is_whole(const bwd_job &job) {
    return S::IS_WHOLE || job.is_whole;
}

template <typename S> __device__ static inline void walk_barriers_init(walk_end<S> *e) {
    for (int i = 0; i < S::OWNS; i++) {
        barrier_init(&e->keys[i], 2); /* the copy and the record */
        barrier_init(&e->values[i], 1);
        barrier_init(&e->own_free[i], S::WARPS);
    }
    for (int i = 0; i < S::STAGES; i++) {
        barrier_init(&e->queries[i], 2); /* the copy and the word */
        barrier_init(&e->douts[i], 1);
        barrier_init(&e->free[i], S::WARPS);
        if constexpr (walk_bias<S>::KIND != BIAS_NONE) barrier_init(&e->bias.there[i], 1);
    }
    barrier_init_done();
}

/* The lanes that take part in a load: one or, with a time bias, the whole warp. */
template <typename S> __device__ static inline bool walk_comes() {
    return walk_bias<S>::KIND == BIAS_TIME || threadIdx.x % 32 == 0;
}

/* Writes the times of a tile of keys, by the whole warp. */
template <typename S>
__device__ static inline void walk_put_times(const attn_args &a, const attn_sequence &s, int key0,
                                             int own, walk_biases<S, BIAS_TIME> *bias) {
    int lane = (int)threadIdx.x % 32;
    int64_t base = time_base(a, s);
    bool is_wide = false;
#pragma unroll
    for (int i = 0; i < S::KEYS; i += 32) {
        int key = max(min(key0 + i + lane, s.len_k - 1), 0);
        int64_t time = s.len_k > 0 ? __ldg(a.key_time + s.row_k + key) : 0;
        bias->times[own][i + lane] = time_short(time, base, &is_wide);
    }
    is_wide = __any_sync(0xffffffffu, is_wide);
    if (lane == 0) bias->are_wide[own] = is_wide;
    __syncwarp();
}

/* Loads the bias table's tile for queries from i0 on and the current keys into a free stage. */
template <typename S>
__device__ static inline void walk_ask_table(const bwd_job &job, const walk_room<S> &room,
                                             const bwd_pair &p, int key0, int i0, int stage) {
    uint64_t *there = &room.end->bias.there[stage];
    int n_boxes = table_boxes(p.s.len_q - i0) * (S::KEYS / 64);
    barrier_expect(there, (uint32_t)(n_boxes * TABLE_BOX * PART_BYTES));
    for (int g = 0; g < S::KEYS / 64; g++)
        table_load(room.tables + (stage * (S::KEYS / 64) + g) * TABLE_TILE, &job.bias.table, there,
                   job.a, p.s, p.head, i0, key0 + 64 * g);
}

template <typename S>
__device__ static inline void walk_ask_keys(const bwd_job &job, const walk_room<S> &room,
                                            const bwd_pair &p, int key0, bool has_tiles,
                                            bool is_cut, int n) {
    constexpr int OWN = S::KEYS * S::D * 2;
    walk_end<S> *e = room.end;
    int own = n % S::OWNS, x = p.head * S::D, y = p.s.row_k + key0;
    barrier_wait(&e->own_free[own], (uint32_t)(n / S::OWNS + 1) & 1);
    if constexpr (walk_bias<S>::KIND == BIAS_TIME) {
        walk_put_times<S>(job.a, p.s, key0, own, &e->bias);
        if (threadIdx.x % 32 != 0) return;
    }
    barrier_expect(&e->keys[own], OWN);
    load_rows<S::D, S::KEYS>(room.keys + own * OWN, &job.maps.k, &e->keys[own], x, y);
    barrier_expect(&e->values[own], OWN);
    load_rows<S::D, S::KEYS>(room.values + own * OWN, &job.maps.v, &e->values[own], x, y);
    bwd_keys *w = &e->records[own];
    w->pair = p;
    w->key0 = key0;
    w->has_tiles = has_tiles;
    w->is_cut = is_cut;
    w->step = QUERIES * S::D;
    int64_t first = (int64_t)blockIdx.x * job.n_tiles;
    if (!walk_is_whole<S>(job)) { /* a sequence's tiles start at offsets_q[b] / 64 + b: room for a
                                     partial last tile */
        w->step *= job.a.n_heads;
        first = (int64_t)(p.s.row_q / QUERIES + p.s.b) * job.a.n_heads + p.head;
    }
    w->sums = job.sums + first * (QUERIES * S::D);
    barrier_arrive(&e->keys[own]);
}

template <typename S>
__device__ static inline void walk_ask_queries(const bwd_job &job, const walk_room<S> &room,
                                               const bwd_pair &p, int key0, int word, int n) {
    constexpr int TILE = QUERIES * S::D * 2;
    constexpr attn_bias BIAS = walk_bias<S>::KIND;
    walk_end<S> *e = room.end;
    int stage = n % S::STAGES, i0 = word / TILE_NUMBER * QUERIES;
    int x = p.head * S::D, y = p.s.row_q + i0;
    time_share<S::KEYS, QUERIES> share;
    if constexpr (BIAS == BIAS_TIME)
        time_fetch(job.a, job.a.query_time + p.s.row_q, i0, p.s.len_q,
                   job.a.bias_len - 1 + key0 + S::KEYS - 1 - (i0 + p.s.shift), -1, share);
    barrier_wait(&e->free[stage], (uint32_t)(n / S::STAGES + 1) & 1);
    if (BIAS != BIAS_TIME || threadIdx.x % 32 == 0) {
        e->tiles[n % KEPT] = word;
        barrier_expect(&e->queries[stage], TILE);
        load_rows<S::D, QUERIES>(room.queries + stage * TILE, &job.maps.q, &e->queries[stage], x,
                                 y);
        barrier_arrive(&e->queries[stage]);
        barrier_expect(&e->douts[stage], TILE);
        load_rows<S::D, QUERIES>(room.douts + stage * TILE, &job.maps.dout, &e->douts[stage], x, y);
    }
    if constexpr (BIAS == BIAS_TABLE) walk_ask_table<S>(job, room, p, key0, i0, stage);
    if constexpr (BIAS == BIAS_TIME)
        time_put(share, time_base(job.a, p.s), &e->bias.tiles[stage], &e->bias.there[stage]);
}

/* Like attn_tile_is_empty for 64 queries from i on, which are one tile of a func mask's summary, in
 * fewer registers. */
__device__ static inline bool walk_is_empty(const attn_args &a, const attn_sequence &s, int i,
                                            int key0, int n) {
    static_assert(QUERIES == ATTN_FUNC_ROWS, "a tile of queries is one of the summary");
    if (a.func == NULL) return attn_rule_is_empty(&a, &s, i, i + QUERIES, key0, key0 + n);
    if (a.func_tiles == NULL) return false;
    attn_span seen = a.func_tiles[attn_func_tile_index(&s, i)].seen;
    return key0 + n <= seen.begin || key0 >= seen.end;
}

/* The word that describes this lane's tile of queries; -1 if it sees none of the keys. sees: for a
 * whole sequence, bits of the tiles of keys that the tile is paired with.  Where one tile holds all
 * keys it is always paired with them, since no other block writes its dq.  A func mask has its own
 * branch: the producer has few registers. */
template <typename S>
__device__ static inline int walk_look(const bwd_job &job, const attn_sequence &s, int key0,
                                       int tile, uint32_t sees) {
    int i = tile * QUERIES, word = tile * TILE_NUMBER;
    if (i >= s.len_q) return -1;
    if (walk_is_whole<S>(job)) {
        uint32_t number = (uint32_t)(key0 / S::KEYS);
        if ((sees >> number & 1) == 0) return -1;
        if ((sees & ((1u << number) - 1)) == 0) word |= TILE_FIRST;
        if (sees >> number == 1) word |= TILE_LAST;
    } else if (s.len_k <= S::KEYS) {
        word |= TILE_FIRST | TILE_LAST;
    } else if (walk_is_empty(job.a, s, i, key0, S::KEYS)) {
        return -1;
    }
    if (job.a.func != NULL) {
        if (job.a.func_tiles == NULL || i + QUERIES > s.len_q) return word;
        attn_span full = job.a.func_tiles[attn_func_tile_index(&s, i)].full;
#pragma unroll
        for (int g = 0; g < S::KEYS / 64; g++)
            word |= (int)(key0 + 64 * g >= full.begin && key0 + 64 * g + 64 <= full.end) << g;
        return word;
    }
#pragma unroll
    for (int g = 0; g < S::KEYS / 64; g++) {
        int j = key0 + 64 * g;
        word |= (int)attn_rule_is_full(&job.a, &s, i, i + QUERIES, j, j + 64) << g;
    }
    return word;
}

/* The queries that a tile of n_keys keys is paired with. */
__device__ static inline attn_span bwd_queries_of(const bwd_job &job, const attn_sequence &s,
                                                  int key0, int n_keys) {
    attn_span all = {0, s.len_q};
    return s.len_k > n_keys ? attn_queries_seeing(&job.a, &s, key0, n_keys) : all;
}

/* Whether they are in several parts. */
__device__ static inline bool bwd_is_cut(const bwd_job &job, attn_span rows) {
    return job.n_parts > 1 && rows.begin < rows.end &&
           rows.begin / job.part_rows != (rows.end - 1) / job.part_rows;
}

/* Loads a tile of keys and all tiles of queries paired with it, of one part.  A tile of queries is
 * loaded once it is known whether it is the last. */
template <typename S>
__device__ static inline void walk_keys(const bwd_job &job, const walk_room<S> &room,
                                        const bwd_pair &p, int key0, uint32_t sees, int part,
                                        walk_place *at) {
    int lane = (int)threadIdx.x % 32, held = -1;
    bool comes = walk_comes<S>(), is_cut = false;
    attn_span rows = {0, p.s.len_q};
    if (!walk_is_whole<S>(job)) {
        rows = bwd_queries_of(job, p.s, key0, S::KEYS);
        is_cut = bwd_is_cut(job, rows);
        if (job.n_parts > 1) {
            if (!is_cut && part != (rows.begin < rows.end ? rows.begin / job.part_rows : 0)) return;
            rows.begin = max(rows.begin, part * job.part_rows);
            rows.end = min(rows.end, (part + 1) * job.part_rows);
            if (is_cut && rows.begin >= rows.end) return;
        }
    }
    for (int base = rows.begin / QUERIES; base * QUERIES < rows.end; base += 32) {
        bool is_there = (base + lane) * QUERIES < rows.end; /* the others are of the next part */
        int word = is_there ? walk_look<S>(job, p.s, key0, base + lane, sees) : -1;
        for (uint32_t left = __ballot_sync(0xffffffffu, word >= 0); left != 0; left &= left - 1) {
            int next = __shfl_sync(0xffffffffu, word, __ffs((int)left) - 1);
            if (comes && held < 0) walk_ask_keys<S>(job, room, p, key0, true, is_cut, at->keys);
            if (comes && held >= 0) walk_ask_queries<S>(job, room, p, key0, held, at->queries);
            at->queries += held >= 0;
            held = next;
        }
    }
    if (comes && held < 0) walk_ask_keys<S>(job, room, p, key0, false, is_cut, at->keys);
    if (comes && held >= 0) walk_ask_queries<S>(job, room, p, key0, held | TILE_FINAL, at->queries);
    at->queries += held >= 0;
    at->keys++;
    __syncwarp();
}

/* Lists the block's pairs of sequence and head from the n-th on, as many as fit, and returns their
 * number.  Every second round goes through the blocks backwards, so that the block with the longest
 * pair gets the shortest one next. */
template <typename S>
__device__ static inline int walk_list(const bwd_job &job, walk_end<S> *e, int n) {
    int lane = (int)threadIdx.x % 32, round = n + lane, blocks = (int)gridDim.x;
    int place = round % 2 == 0 ? (int)blockIdx.x : blocks - 1 - (int)blockIdx.x;
    long long rank = (long long)round * blocks + place;
    bool is_there = lane < LISTED && rank < job.n_pairs;
    if (is_there) {
        int b = (int)rank / job.a.n_heads;
        if (job.tiles.order != NULL) b = job.tiles.order[b];
        e->pairs[lane].s = attn_sequence_of(&job.a, b);
        e->pairs[lane].head = (int)rank % job.a.n_heads;
    }
    __syncwarp();
    return __popc(__ballot_sync(0xffffffffu, is_there));
}

/* Lane i knows which tiles of keys queries 64 i and on see.  Queries that see no key are still
 * paired with the first keys: their dq is zero, and must be written. */
template <typename S>
__device__ static inline void walk_pair(const bwd_job &job, const walk_room<S> &room,
                                        const bwd_pair &p, walk_place *at) {
    int i = (int)threadIdx.x % 32 * QUERIES, n_keys = max(p.s.len_k, 1);
    uint32_t sees = 0;
    if (p.s.len_q == 0 && p.s.len_k == 0) return;
    for (int j = 0; j < n_keys && i < p.s.len_q; j += S::KEYS)
        if (!walk_is_empty(job.a, p.s, i, j, S::KEYS)) sees |= 1u << j / S::KEYS;
    if (sees == 0) sees = 1;
    for (int j = 0; j < n_keys; j += S::KEYS)
        walk_keys<S>(job, room, p, j, sees, 0, at);
}

template <typename S>
__device__ static inline void walk_whole(const bwd_job &job, const walk_room<S> &room,
                                         walk_place *at) {
    int n = 0, listed;
    do {
        listed = walk_list<S>(job, room.end, n);
        for (int i = 0; i < listed; i++)
            walk_pair<S>(job, room, room.end->pairs[i], at);
        n += listed;
    } while (listed == LISTED);
}

template <typename S>
__device__ static inline void walk_cut(const bwd_job &job, const walk_room<S> &room,
                                       walk_place *at) {
    int lane = (int)threadIdx.x % 32, n = (int)blockIdx.x, next = 0;
    bwd_pair *p = &room.end->pairs[0];
    int count = tiles_count(job.tiles) * job.n_parts;
    for (; n < count; n = __shfl_sync(0xffffffffu, next, 0)) {
        if (lane == 0) next = tiles_take(job.tiles);
        tiles_unit u = tiles_find(job.tiles, n / job.n_parts);
        if (lane == 0) {
            p->s = attn_sequence_of(&job.a, u.b);
            p->head = u.head;
        }
        __syncwarp();
        if (u.row0 < p->s.len_k) walk_keys<S>(job, room, *p, u.row0, 0, n % job.n_parts, at);
        __syncwarp();
    }
    if (lane == 0) tiles_done(job.tiles);
}

/* The producer warp: loads all of the block's work.  A record without a head marks the end. */
template <typename S> __device__ static void walk(const bwd_job &job, const walk_room<S> &room) {
    walk_end<S> *e = room.end;
    walk_place at = {0, 0};
    if (walk_is_whole<S>(job))
        walk_whole<S>(job, room, &at);
    else
        walk_cut<S>(job, room, &at);
    if (threadIdx.x % 32 != 0) return;
    int own = at.keys % S::OWNS;
    barrier_wait(&e->own_free[own], (uint32_t)(at.keys / S::OWNS + 1) & 1);
    e->records[own].pair.head = -1;
    barrier_arrive(&e->keys[own]);
    barrier_arrive(&e->keys[own]);
}

/* Address of a thread's first four sums in a warpgroup's part of dq, from column `column` on; see
 * bwd_keys. */
__device__ static inline float4 *dq_place(const bwd_keys &w, int word, int column) {
    float *tile = w.sums + word / TILE_NUMBER * w.step;
    return (float4 *)(tile + column * QUERIES) + (int)thread_index() % GROUP;
}

/* Adds the sums so far of N columns of dq. */
template <int N> __device__ static inline void dq_sum(const float4 *from, float (&dq)[N / 2]) {
#pragma unroll
    for (int j = 0; j < N / 8; j++) {
        float4 sum = __ldcg(from + j * GROUP);
        dq[4 * j] += sum.x;
        dq[4 * j + 1] += sum.y;
        dq[4 * j + 2] += sum.z;
        dq[4 * j + 3] += sum.w;
    }
}

/* Adds the current keys' part to N columns of dq; with the last keys, rounds and stores the sum. */
template <typename T, int D, int N>
__device__ static inline void dq_end(const attn_args &a, const bwd_keys &w, int word, int column,
                                     float (&dq)[N / 2]) {
    float4 *to = dq_place(w, word, column);
    if (word & TILE_LAST) {
        if ((word & TILE_FIRST) == 0) dq_sum<N>(to, dq);
        T *end = (T *)a.dq + (int64_t)w.pair.s.row_q * a.stride_q + w.pair.head * D + column;
        store_wide<T, N>(end, a.stride_q, word / TILE_NUMBER * QUERIES + row_of_thread(),
                         w.pair.s.len_q, 0.5f * a.alpha * a.scale, dq);
        return;
    }
    if (word & TILE_FIRST) {
#pragma unroll
        for (int j = 0; j < N / 8; j++)
            __stcg(to + j * GROUP, *(const float4 *)&dq[4 * j]);
    } else {
#pragma unroll
        for (int j = 0; j < N / 8; j++)
            add_four((float *)(to + j * GROUP), dq[4 * j], dq[4 * j + 1], dq[4 * j + 2],
                     dq[4 * j + 3]);
    }
}
