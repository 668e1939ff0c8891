/* HSTU attention, forward, of few rows on Hopper, with the gate inside (contract: attn_args in
 * ops/ops.h).
 *
 * A block is one warpgroup with 64 query rows of one head, which stay in registers.  It takes half
 * a multiprocessor, so that it starts while the previous kernel still runs and has its parameters,
 * its page table and its first pages when that kernel is complete.  Pipeline stages are 32 keys,
 * half a tile of attn_sm90_paged.cu; what a block needs to know of each is in shared memory before
 * the first (looked up in the loop, it cost 600 of 1,650 clocks a stage).  The warps share the
 * start, which takes as long as its longest chain of loads: one plans and loads keys, one loads
 * queries, two write the masks.
 *
 * Either the blocks of a cluster are the heads of the same rows, and exchange two floats a row,
 * from which the gate's norm is computed; or the keys are cut into parts, which go to memory,
 * rounded like results, and a second kernel adds them and computes the gate.
 *
 * Bound by latency: of the start, of the first loads, and of the cluster's barrier. */
#include "cuda/attn/sm90/attn_sm90_paged.cuh"

enum { SMALL_HEADS = GATE_HEADS, SMALL_PARTS = SUM_AHEAD, SMALL_PLACES = 256 }; /* at most */

/* Boxes are all columns of a head: 64 rows of q, 32 rows of k and v or of a page. */
typedef struct small_maps {
    CUtensorMap q, k, v, pages_k, pages_v;
} small_maps;

/* What the kernel needs, and no more: a parameter that is not in the cache costs most of a
 * microsecond. */
typedef struct small_job {
    const int32_t *offsets_q, *offsets_k, *offsets_new; /* (B + 1); k: of all keys */
    const int32_t *n_contexts, *n_targets, *table;      /* or NULL */
    int32_t max_pages;
    int32_t window_left, window_right, target_group;
    int32_t n_tiles; /* of queries of the longest sequence */
    int32_t n_heads, n_parts;
    bool is_early; /* see attn_args.is_repeated */
    float half, scale;
    void *parts; /* (units, n_parts) tiles of sums, or NULL: n_parts is 1, and then the gate: */
    const void *u;
    int64_t stride_u;
    const float *weight, *bias; /* or NULL */
    void *y;
    float *mean, *rstd;
    float eps;
} small_job;

/* Shared memory: three stages of 16 + 16 KB at D = 256.  Queries arrive in the place of the last
 * one and stay in registers. */
template <int DIM> struct small_shape {
    static constexpr int D = DIM, ROWS = 64, KEYS = 32, STAGES = 3;
    static constexpr int QUERIES = ROWS * D * 2, STAGE = 2 * KEYS * D * 2; /* bytes */
    static constexpr int BYTES = STAGES * STAGE + 1024;                    /* room to align */
    static_assert(QUERIES == STAGE, "queries in the place of a stage");
};

/* What a block does: half tiles i .. end - 1 of those that its rows visit. */
struct small_unit {
    fwd_unit u; /* part: where its sums go in job.parts */
    paged_line line;
    int i, end;
};

/* Where the keys of a half tile are, and how they are masked. */
struct __align__(16) small_place {
    int page, row; /* page -1: rows of k and v */
    int key;       /* the number of the first key; -1: all rows see all keys */
    int n_keys;    /* columns that hold keys */
};

template <typename S> struct small_room {
    uint64_t queries, keys[S::STAGES], values[S::STAGES]; /* they are there */
    alignas(16) float weight[S::D], bias[S::D];           /* of the gate */
    float2 moments[SMALL_HEADS][S::ROWS]; /* of a row and head: mean, sum of squares around it */
    /* Here because the registers belong to queries and sums. */
    small_unit unit;
    small_place places[SMALL_PLACES]; /* of the block's half tiles */
    int pages[SMALL_PLACES / 2];      /* of the sequence */
    attn_row_mask rows[S::ROWS];
};

/* The masks' arguments. */
__device__ static inline attn_args small_rules(const small_job &j) {
    attn_args a = {};
    a.offsets_q = j.offsets_q, a.offsets_k = j.offsets_k;
    a.n_contexts = j.n_contexts, a.n_targets = j.n_targets;
    a.window_left = j.window_left, a.window_right = j.window_right;
    a.target_group = j.target_group;
    return a;
}

/* The rows and the part of the keys that the block has. */
struct small_share {
    int b, tile, head, part;
};

__device__ static inline small_share small_share_of(const small_job &j) {
    int n = (int)blockIdx.x;
    if (j.parts == NULL) /* a cluster has all heads of a tile */
        return {n / j.n_heads / j.n_tiles, n / j.n_heads % j.n_tiles, n % j.n_heads, 0};
    small_share s; /* neighbours have the same keys */
    s.tile = n % j.n_tiles;
    s.head = n / j.n_tiles % j.n_heads;
    n = n / j.n_tiles / j.n_heads;
    s.part = n % j.n_parts;
    s.b = n / j.n_parts;
    return s;
}

template <typename S>
__device__ static inline small_unit small_find(const small_job &j, const small_share &own) {
    small_unit f;
    paged_plan plan = {};
    attn_args a = small_rules(j);
    plan.offsets_new = j.offsets_new;
    paged_sequence(a, plan, own.b, f.u);
    paged_rows<S>(a, own.tile * S::ROWS, own.head, 0, INT32_MAX, f.u);
    f.line = paged_line_make(f.u);
    int n = 2 * f.line.n;
    if (n > 0 && f.line.end - paged_column(f.line, f.line.n - 1) <= S::KEYS) n--;
    f.i = own.part * n / j.n_parts;
    f.end = (own.part + 1) * n / j.n_parts;
    if (f.u.row0 >= f.u.s.len_q) f.end = f.i; /* there are no rows */
    f.u.part = ((own.b * j.n_tiles + own.tile) * j.n_heads + own.head) * j.n_parts + own.part;
    return f;
}

template <typename S> __device__ static inline int small_column(const small_unit &f, int i) {
    return paged_column(f.line, i / 2) + i % 2 * S::KEYS;
}

template <typename S>
__device__ static inline small_place small_place_of(const small_room<S> *room, const small_unit &f,
                                                    const attn_span &full, int i) {
    int column = small_column<S>(f, i), n_paged = f.u.n_paged;
    small_place p = {-1, f.u.row_new + column, column, S::KEYS};
    if (column < n_paged + f.u.pad) {
        p.page = room->pages[column / PAGED_TILE];
        p.row = i % 2 * S::KEYS;
        p.n_keys = min(n_paged - column, (int)S::KEYS);
    } else {
        p.key -= f.u.pad;
    }
    bool is_full = p.key >= full.begin && p.key + S::KEYS <= full.end;
    if (is_full && p.n_keys == S::KEYS) p.key = -1;
    return p;
}

/* Loads the keys or values of a half tile; by one thread. */
template <typename S>
__device__ static inline void small_load(char *to, const CUtensorMap *rows,
                                         const CUtensorMap *pages, uint64_t *barrier, int head,
                                         const small_place &p) {
    barrier_expect(barrier, (uint32_t)S::STAGE / 2);
    if (p.page >= 0)
        tile_load_4d(to, pages, barrier, 0, p.row, head * (S::D / PART), p.page);
    else
        tile_load_3d(to, rows, barrier, 0, p.row, head * (S::D / PART));
}

/* Loads the keys, and the values, of the block's half tile n into its stage, if there is one. */
template <typename S>
__device__ static inline void small_ask_keys(const small_maps &maps, small_room<S> *room,
                                             char *stages, int at, int n) {
    if (room->unit.i + n >= room->unit.end) return;
    small_load<S>(stages + at * S::STAGE, &maps.k, &maps.pages_k, &room->keys[at],
                  room->unit.u.head, room->places[n]);
}
template <typename S>
__device__ static inline void small_ask_values(const small_maps &maps, small_room<S> *room,
                                               char *stages, int at, int n) {
    if (room->unit.i + n >= room->unit.end) return;
    small_load<S>(stages + at * S::STAGE + S::STAGE / 2, &maps.v, &maps.pages_v, &room->values[at],
                  room->unit.u.head, room->places[n]);
}

/* The first warp writes what the block does to shared memory, and loads the first two stages, those
 * of pages before the previous kernel is complete.  It reads the whole page table of the sequence
 * together with the lengths, which tell what of it is needed. */
template <typename S>
__device__ static inline void small_start_keys(const small_job &j, const small_maps &maps,
                                               small_room<S> *room, char *stages) {
    constexpr int PAGES = SMALL_PLACES / 2 / 32; /* of a lane */
    int lane = (int)threadIdx.x, page[PAGES];
    small_share own = small_share_of(j);
#pragma unroll
    for (int i = 0; i < PAGES; i++) {
        int at = 32 * i + lane;
        page[i] = j.table != NULL && at < j.max_pages
                      ? __ldg(j.table + (int64_t)own.b * j.max_pages + at)
                      : -1;
    }
    if (lane == 0) {
        for (int s = 0; s < S::STAGES; s++) {
            barrier_init(&room->keys[s], 1);
            barrier_init(&room->values[s], 1);
        }
        barrier_init_done();
    }
    small_unit f = small_find<S>(j, own);
    attn_args a = small_rules(j);
    attn_span full = attn_keys_full(&a, &f.u.s, f.u.row0, S::ROWS);
#pragma unroll
    for (int i = 0; i < PAGES; i++)
        room->pages[32 * i + lane] = page[i];
    if (lane == 0) room->unit = f;
    __syncwarp();
    for (int n = lane; f.i + n < f.end; n += 32)
        room->places[n] = small_place_of<S>(room, f, full, f.i + n);
    __syncwarp();
    for (int is_late = !j.is_early; is_late < 2; is_late++) {
        if (is_late) grid_wait();
        if (lane > 1) continue;
        for (int n = 0; n < 2 && f.i + n < f.end; n++) {
            if (j.is_early && (room->places[n].page >= 0) == is_late) continue;
            if (lane == 0) small_ask_keys<S>(maps, room, stages, n, n);
            if (lane == 1) small_ask_values<S>(maps, room, stages, n, n);
        }
    }
}

/* One thread loads the queries; also where there are no keys, as it need not know. */
template <typename S>
__device__ static inline void small_start_queries(const small_job &j, const small_maps &maps,
                                                  small_room<S> *room, char *stages) {
    small_share own = small_share_of(j);
    int row_q = __ldg(j.offsets_q + own.b);
    if (j.table != NULL) {
        tile_prefetch_map(&maps.pages_k);
        tile_prefetch_map(&maps.pages_v);
    }
    tile_prefetch_map(&maps.q);
    tile_prefetch_map(&maps.k);
    tile_prefetch_map(&maps.v);
    barrier_init(&room->queries, 1);
    barrier_init_done();
    barrier_expect(&room->queries, (uint32_t)S::QUERIES);
    grid_wait();
    tile_load_3d(stages + 2 * S::STAGE, &maps.q, &room->queries, 0, row_q + own.tile * S::ROWS,
                 own.head * (S::D / PART));
}

/* Asks for the parameters of the gate's norm, which nobody waits for before the gate, and writes
 * what each row sees; n: of 64 threads. */
template <typename S>
__device__ static inline void small_start_rows(const small_job &j, small_room<S> *room, int n) {
    small_share own = small_share_of(j);
    attn_args a = small_rules(j);
    static_assert(S::ROWS == 64 && S::D == 256, "a row and four columns a thread");
    if (j.parts == NULL) {
        gate_ask_four(room->weight + 4 * n, j.weight, own.head * S::D + 4 * n, 1);
        gate_ask_four(room->bias + 4 * n, j.bias, own.head * S::D + 4 * n, 0);
        cp_async_commit_group();
    }
    attn_sequence s = attn_sequence_of(&a, own.b);
    room->rows[n] = attn_row_spans(&a, &s, own.tile * S::ROWS + n);
}

/* The warp's 16 rows of queries as left operands, from a tile as TMA loads it. */
template <typename S>
__device__ static inline void small_queries(const char *tile, uint32_t (&q)[S::D / 16][4]) {
    int lane = (int)threadIdx.x % 32;
    uint32_t at =
        shared_address(tile) + ((uint32_t)threadIdx.x / 32 * 16 + (uint32_t)lane % 16) * PART_BYTES;
#pragma unroll
    for (int k = 0; k < S::D / 16; k++)
        ldmatrix_x4(q[k], at + (uint32_t)(k / 4 * S::ROWS * PART_BYTES) +
                              (uint32_t)(((2 * (k % 4) + lane / 16) ^ (lane & 7)) << 4));
}

/* Sets scores outside of a row's spans to 0; side: which of the thread's two rows. */
template <int KEYS>
__device__ static inline void small_mask_row(const attn_row_mask &m, int side, int column,
                                             float (&x)[KEYS / 2]) {
    unsigned at0 = (unsigned)(column - m.first0), n0 = (unsigned)max(m.end0 - m.first0, 0);
    unsigned at1 = (unsigned)(column - m.first1), n1 = (unsigned)max(m.end1 - m.first1, 0);
#pragma unroll
    for (int c = 0; c < KEYS / 4; c++)
        if (at0 + c / 2 * 8 + c % 2 >= n0 && at1 + c / 2 * 8 + c % 2 >= n1)
            x[c / 2 * 4 + side * 2 + c % 2] = 0;
}

/* Sets the scores of half tile n that count for nothing to 0. */
template <typename S>
__device__ static inline void small_mask(const small_room<S> *room, int n,
                                         float (&x)[S::KEYS / 2]) {
    small_place p = room->places[n];
    if (p.key < 0) return;
    int column = p.key + 2 * ((int)threadIdx.x % 4);
    int row = (int)threadIdx.x / 32 * 16 + (int)threadIdx.x % 32 / 4;
    fwd_cut<S::KEYS>(p.n_keys, x);
    small_mask_row<S::KEYS>(room->rows[row], 0, column, x);
    small_mask_row<S::KEYS>(room->rows[row + 8], 1, column, x);
}

/* x (64, 32) = queries times keys. */
template <typename T, typename S>
__device__ static inline void small_scores(float (&x)[S::KEYS / 2],
                                           const uint32_t (&q)[S::D / 16][4], const char *keys) {
    uint64_t b = tile_describe(keys, 16);
#pragma unroll
    for (int k = 0; k < S::D / 16; k++)
        wgmma_rk(x, q[k], tile_move(b, k / 4 * S::KEYS * PART_BYTES + k % 4 * 32), k > 0);
}

/* The weights of scores. */
template <typename S>
__device__ static inline void small_weigh(const small_room<S> *room, float half, int n,
                                          float (&x)[S::KEYS / 2]) {
    small_mask<S>(room, n, x);
#pragma unroll
    for (int e = 0; e < S::KEYS / 2; e++)
        x[e] = fwd_silu(half, x[e]);
}

/* Asks for the warp's 16 rows of u, swizzled, into its quarter of a stage. */
template <typename T, typename S>
__device__ static inline void small_ask_gate(const small_job &j, const small_unit &f, char *to) {
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, row0 = f.u.row0 + warp * 16;
    const T *from = (const T *)j.u + (int64_t)f.u.s.row_q * j.stride_u + f.u.head * S::D + 8 * lane;
    uint32_t at = shared_address(to) + (uint32_t)(warp * 16 * S::D * 2);
    static_assert(S::D == 256, "a row a warp");
#pragma unroll
    for (int r = 0; r < 16; r++)
        cp_async<16>(at + (uint32_t)(r * S::D * 2 + ((lane ^ (r & 7)) << 4)),
                     from + min(row0 + r, f.u.s.len_q - 1) * j.stride_u, 16);
    cp_async_commit_group();
}

/* out (64, D) += the weights of the block's keys times their values.  The scores of the next keys
 * are computed while the current weights are multiplied by the values.  Returns a stage's place
 * that is free, after all warps are done with it. */
template <typename T, typename S>
__device__ static inline char *small_sum(const small_job &j, const small_maps &maps,
                                         small_room<S> *room, char *stages,
                                         float (&out)[S::D / 2]) {
    int n = 0, n_all = room->unit.end - room->unit.i;
    fwd_ring<S::STAGES> r = {};
    uint32_t q[S::D / 16][4], left[S::KEYS / 16][4];
    float x[S::KEYS / 2];
    barrier_wait(&room->queries, 0);
    small_queries<S>(stages + 2 * S::STAGE, q);
    __syncthreads();
    if (threadIdx.x == 0) small_ask_keys<S>(maps, room, stages, 2, 2);
    if (threadIdx.x == 32) small_ask_values<S>(maps, room, stages, 2, 2);
    barrier_wait(&room->keys[0], 0);
    wgmma_fence();
    small_scores<T, S>(x, q, stages);
    wgmma_commit();
    wgmma_wait<0>();
    __syncthreads(); /* all are done with keys 0 */
    if (threadIdx.x == 0) small_ask_keys<S>(maps, room, stages, 0, 3);
    small_weigh<S>(room, j.half, 0, x);
    pack_left<T, S::KEYS>(left, x);
#pragma unroll 1
    for (; n + 1 < n_all; n++) {
        fwd_ring<S::STAGES> now = r;
        advance(r);
        barrier_wait(&room->keys[r.at], r.parity);
        wgmma_fence();
        small_scores<T, S>(x, q, stages + r.at * S::STAGE);
        wgmma_commit();
        barrier_wait(&room->values[now.at], now.parity);
        wgmma_fence();
        product_with_rows<T, S::D, S::KEYS>(out, left, stages + now.at * S::STAGE + S::STAGE / 2);
        wgmma_commit();
        wgmma_wait<1>();
        __syncthreads(); /* all are done with keys n + 1 and values n - 1 */
        if (threadIdx.x == 0) small_ask_keys<S>(maps, room, stages, r.at, n + 4);
        if (threadIdx.x == 32 && n > 0)
            small_ask_values<S>(maps, room, stages, now.at == 0 ? 2 : now.at - 1, n + 2);
        small_weigh<S>(room, j.half, n + 1, x);
        barrier_wait(&room->values[now.at], now.parity); /* as in fwd_sum_piped */
        wgmma_wait<0>();
        pack_left<T, S::KEYS>(left, x);
    }
    barrier_wait(&room->values[r.at], r.parity);
    wgmma_fence();
    product_with_rows<T, S::D, S::KEYS>(out, left, stages + r.at * S::STAGE + S::STAGE / 2);
    wgmma_commit();
    char *free = stages + (r.at == 2 ? 0 : r.at + 1) * S::STAGE;
    if (j.parts == NULL) small_ask_gate<T, S>(j, room->unit, free);
    wgmma_wait<0>();
    return free;
}

/* Tells every head the moments of the thread's rows. */
template <typename S>
__device__ static inline void small_tell(const small_job &j, const small_unit &f,
                                         small_room<S> *room, const float (&out)[S::D / 2]) {
    int lane = (int)threadIdx.x % 32, row = (int)threadIdx.x / 32 * 16 + lane / 4;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float2 told = gate_moments<S::D>(out, r, j.scale);
#pragma unroll
        for (int head = lane % 4; head < SMALL_HEADS; head += 4)
            if (head < j.n_heads) *cluster_map(&room->moments[f.u.head][row + 8 * r], head) = told;
    }
}

/* Mean and 1 / deviation of a row, of those of the heads. */
template <typename S>
__device__ static inline float2 small_norm(const small_job &j, const small_room<S> *room, int r) {
    float mean = 0, squares = 0;
    float2 m[SMALL_HEADS];
#pragma unroll
    for (int h = 0; h < SMALL_HEADS; h++) {
        if (h < j.n_heads) m[h] = room->moments[h][r];
        if (h < j.n_heads) mean += m[h].x;
    }
    mean /= (float)j.n_heads;
#pragma unroll
    for (int h = 0; h < SMALL_HEADS; h++)
        if (h < j.n_heads) squares += m[h].y + (float)S::D * (m[h].x - mean) * (m[h].x - mean);
    return make_float2(mean, rsqrtf(squares / (float)(j.n_heads * S::D) + j.eps));
}

/* out = u * norm(out), u: the rows that small_ask_gate has loaded. */
template <typename T, typename S>
__device__ static inline void small_gate(const small_job &j, const small_unit &f,
                                         const small_room<S> *room, const char *u,
                                         float (&out)[S::D / 2]) {
    int lane = (int)threadIdx.x % 32, row = (int)threadIdx.x / 32 * 16 + lane / 4;
    float by[2], less[2];
    u += row * (S::D * 2) + 4 * (lane % 4);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float2 norm = small_norm<S>(j, room, row + 8 * r);
        int at = f.u.row0 + row + 8 * r;
        by[r] = j.scale * norm.y;
        less[r] = -norm.x * norm.y;
        if (f.u.head == 0 && lane % 4 == 0 && at < f.u.s.len_q) {
            j.mean[f.u.s.row_q + at] = norm.x;
            j.rstd[f.u.s.row_q + at] = norm.y;
        }
    }
#pragma unroll
    for (int k = 0; k < S::D / 8; k++) {
        int c = 8 * k + 2 * (lane % 4);
        float2 w = *(const float2 *)(room->weight + c), b = *(const float2 *)(room->bias + c);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float2 gate =
                part_pair<T>(*(const uint32_t *)(u + r * 8 * (S::D * 2) + ((k ^ (row & 7)) << 4)));
            float &x = out[4 * k + 2 * r], &y = out[4 * k + 2 * r + 1];
            x = gate.x * fmaf(fmaf(x, by[r], less[r]), w.x, b.x);
            y = gate.y * fmaf(fmaf(y, by[r], less[r]), w.y, b.y);
        }
    }
}

/* Like store_staged, eight rows at once, and not streaming: the next kernel reads what is stored.
 */
template <typename T, typename S>
__device__ static inline void small_store(char *room, T *to, int64_t stride, int row0, int n,
                                          float scale, const float (&out)[S::D / 2]) {
    int lane = (int)threadIdx.x % 32, row = lane % 16;
    uint32_t at = shared_address(room) + (uint32_t)(row * S::D * 2);
    static_assert(S::D == 256, "a row a warp");
#pragma unroll
    for (int k = 0; k < S::D / 16; k++) {
        uint32_t v[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            v[i] = cvt_pack<T>(out[8 * k + 2 * i] * scale, out[8 * k + 2 * i + 1] * scale);
        stmatrix_x4(at + (uint32_t)(((2 * k + lane / 16) ^ (row & 7)) << 4), v);
    }
    __syncwarp();
    to += (int64_t)row0 * stride + lane * 8;
#pragma unroll
    for (int r0 = 0; r0 < 16; r0 += 8) {
        uint4 v[8];
#pragma unroll
        for (int r = 0; r < 8; r++)
            v[r] = *(const uint4 *)(room + (r0 + r) * S::D * 2 + ((lane ^ r) << 4));
#pragma unroll
        for (int r = 0; r < 8; r++)
            if (row0 + r0 + r < n) *(uint4 *)(to + (r0 + r) * stride) = v[r];
    }
}

template <typename T, typename S>
__global__ void __launch_bounds__(GROUP, 2)
    attn_fwd_small_sm90_kernel(const __grid_constant__ small_job j,
                               const __grid_constant__ small_maps maps) {
    extern __shared__ char shared[];
    __shared__ small_room<S> room;
    char *stages = shared + (1024 - shared_address(shared) % 1024) % 1024;
    int warp = (int)threadIdx.x / 32;
    grid_launch_next();
    if (j.parts == NULL)
        cluster_arrive(); /* has started: see small_tell; waits for loads if later */
    if (!j.is_early) grid_wait();
    if (warp == 0)
        small_start_keys<S>(j, maps, &room, stages);
    else if (threadIdx.x == 32)
        small_start_queries<S>(j, maps, &room, stages);
    else if (warp > 1)
        small_start_rows<S>(j, &room, (int)threadIdx.x - 64);
    __syncthreads();
    grid_wait();
    const small_unit &f = room.unit;
    if (f.u.row0 >= f.u.s.len_q) { /* the whole cluster has no rows */
        barrier_wait(&room.queries, 0);
        cp_async_wait_group<0>();
        if (j.parts == NULL) cluster_wait();
        return;
    }
    float out[S::D / 2];
#pragma unroll
    for (int i = 0; i < S::D / 2; i++)
        out[i] = 0;
    char *u = stages;
    if (f.i < f.end) {
        u = small_sum<T, S>(j, maps, &room, stages, out);
    } else {
        barrier_wait(&room.queries, 0);
        if (j.parts == NULL) small_ask_gate<T, S>(j, f, stages);
    }
    cp_async_wait_group<1>(); /* all but small_ask_gate's: the parameters of the norm */
    __syncthreads();          /* all are done with all stages */
    char *staged = (u == stages ? stages + S::STAGE : stages) + warp * (16 * S::D * 2);
    if (j.parts != NULL) {
        small_store<T, S>(staged, (T *)j.parts + (int64_t)f.u.part * (S::ROWS * S::D), S::D,
                          warp * 16, S::ROWS, j.scale, out);
        return;
    }
    cluster_wait();
    small_tell<S>(j, f, &room, out);
    cluster_arrive();
    cluster_wait();
    cp_async_wait_group<0>();
    __syncwarp();
    small_gate<T, S>(j, f, &room, u, out);
    int64_t dim = j.n_heads * S::D;
    small_store<T, S>(staged, (T *)j.y + f.u.s.row_q * dim + f.u.head * S::D, dim,
                      f.u.row0 + warp * 16, f.u.s.len_q, 1, out);
}

/* A block adds the parts of one row and computes the gate, a thread 8 columns; job.is_early:
 * offsets can be read before the previous kernel is complete. */
template <typename T, typename S>
__global__ void __launch_bounds__(32 * SUM_WARPS)
    attn_sum_small_sm90_kernel(const __grid_constant__ sum_job j, int n_parts) {
    int tile = (int)blockIdx.x / S::ROWS, b = tile / j.n_tiles;
    int row = tile % j.n_tiles * S::ROWS + (int)blockIdx.x % S::ROWS;
    int column = SUM_COLUMNS * (int)threadIdx.x, head = column / S::D;
    constexpr int64_t SIZE = S::ROWS * S::D;
    float x[SUM_COLUMNS] = {}, weight[SUM_COLUMNS], bias[SUM_COLUMNS];
    uint4 ahead[SMALL_PARTS];
    grid_launch_next();
    load_eight(j.weight != NULL ? j.weight + column : NULL, 1, weight);
    load_eight(j.bias != NULL ? j.bias + column : NULL, 0, bias);
    if (!j.is_early) grid_wait();
    int row_q = j.offsets_q[b], len_q = j.offsets_q[b + 1] - row_q;
    grid_wait();
    if (row >= len_q) return;
    const T *part = (const T *)j.parts + (int64_t)(tile * j.n_heads + head) * n_parts * SIZE +
                    (int64_t)(blockIdx.x % S::ROWS) * S::D + column % S::D;
    uint4 u = *(const uint4 *)((const T *)j.u + (row_q + row) * j.stride_u + column);
#pragma unroll
    for (int n = 0; n < SMALL_PARTS; n++)
        if (n < n_parts) ahead[n] = *(const uint4 *)(part + n * SIZE);
#pragma unroll
    for (int n = 0; n < SMALL_PARTS; n++)
        if (n < n_parts) part_add<T>(ahead[n], x);
    gate_row<T>(j, row_q + row, column, u, weight, bias, x);
    *(uint4 *)((T *)j.y + (int64_t)(row_q + row) * j.dim + column) =
        make_uint4(cvt_pack<T>(x[0], x[1]), cvt_pack<T>(x[2], x[3]), cvt_pack<T>(x[4], x[5]),
                   cvt_pack<T>(x[6], x[7]));
}

/* Whether the gate can be inside. */
static bool small_can_gate(const attn_args *a) {
    const gate_args *g = a->gate;
    return g != NULL && g->drop.rate == 0 && g->cut == NULL && g->dim == a->n_heads * a->dim_v &&
           is_addressable(g->u, g->stride_u) && is_addressable(g->y, g->dim) &&
           (uintptr_t)g->weight % 16 == 0 && (uintptr_t)g->bias % 16 == 0;
}

static int64_t count_units(const attn_args *a) {
    return (int64_t)a->n_sequences * a->n_heads * cuda_div_up(a->max_len_q, 64);
}

/* Parts of the keys: of five half tiles each, as many as fit the GPU.
 *
 * Times of 8 layers that set both, in ms (H200, 2026-11-17; bfloat16, 4 heads of dimension 256, 256
 * candidates a user, 128 new tokens; users x history):
 *     parts                   1      2      3      5      8     11   other kernels
 *     1 x 128             .2415  .1895  .1855  .1888      -      -           .2336
 *     1 x 1024                -      -      -  .2282  .2258  .2294           .2388
 *     1 x 4096                -      -      -      -  .2970  .2851           .2949
 *     8 x 128             .5655      -      -      -      -      -    .574 to .581
 *     8 x 1024            .7575      -      -      -      -      -            .7200 */
static int64_t parts_of(const backend *be, const attn_args *a) {
    int64_t room = 2 * cuda_of(be)->n_multiprocessors / count_units(a);
    int64_t n = cuda_div_up(cuda_div_up(a->max_len_k, 32), 5);
    if (n > room) n = room;
    if (n > SMALL_PARTS) n = SMALL_PARTS;
    return n < 1 ? 1 : n;
}

/* Where it was measured: few tiles of queries that can be cut, or more of them with few keys.  In
 * parts of many half tiles the other kernels' loop makes up for their later start, unless the
 * blocks fill the GPU: us of a layer (H200, 2026-11-17; users x history / new tokens):
 *                     1 x 4096/256   1 x 4096/384   2 x 4096/128   2 x 3072/256   2 x 4096/256
 *     half tiles a part         17             23             28             26             34
 *     small                   35.8           44.4           48.5           52.1           57.6
 *     other kernels           37.4           45.5           51.4           53.2           59.0 */
static bool is_small(const backend *be, const attn_args *a) {
    int n = cuda_of(be)->n_multiprocessors;
    int64_t n_units = count_units(a), n_halves = cuda_div_up(a->max_len_k, 32);
    if (n_units == 0 || n_units > 2 * n) return false;
    if (n_halves > SMALL_PLACES) return false;
    if (2 * n_units > n) return n_halves <= 16; /* attn_sm90_paged.cu cuts more keys into parts */
    int64_t n_parts = parts_of(be, a), most = 10 * n_units * n_parts >= 18 * n ? 34 : 14;
    return n_parts > 1 && (n_halves <= 48 || n_halves <= most * n_parts);
}

/* bfloat16 (float16 has not been measured).  Not in deterministic mode: which kernel runs, and
 * where a sum is cut, depend on the batch. */
bool cuda_attn_sm90_can_small(const backend *be, const attn_args *a) {
    const attn_pages *p = &a->pages;
    if (a->dim_qk != 256 || a->bias != BIAS_NONE || a->func != NULL) return false;
    if (be->act != ACT_BF16 || cuda_of(be)->is_deterministic) return false;
    if (!cuda_attn_sm90_can_fwd(be, a)) return false;
    if (a->n_heads > SMALL_HEADS || !small_can_gate(a)) return false;
    if (p->table != NULL && !(p->page_len == PAGED_TILE && p->n_pages > 0 &&
                              is_addressable(p->k, p->stride) && is_addressable(p->v, p->stride)))
        return false;
    return is_small(be, a);
}

static status small_map_pages(CUtensorMap *map, const backend *be, const attn_args *a,
                              const void *rows) {
    return sm90a_map_pages(map, be->act, rows, (int64_t)a->n_heads * a->dim_qk, PAGED_TILE,
                           a->pages.n_pages, a->pages.stride, 32, a->dim_qk);
}

static status map_inputs(backend *be, const attn_args *a, small_maps *maps) {
    int64_t columns = (int64_t)a->n_heads * a->dim_qk;
    memset(maps, 0, sizeof *maps);
    TRY(sm90a_map_heads(&maps->q, be->act, a->q, a->n_rows_q, columns, a->stride_q, PART, 64,
                        a->dim_qk));
    TRY(sm90a_map_heads(&maps->k, be->act, a->k, a->n_rows_k, columns, a->stride_k, PART, 32,
                        a->dim_qk));
    TRY(sm90a_map_heads(&maps->v, be->act, a->v, a->n_rows_k, columns, a->stride_v, PART, 32,
                        a->dim_qk));
    if (a->pages.table == NULL) return OK;
    TRY(small_map_pages(&maps->pages_k, be, a, a->pages.k));
    return small_map_pages(&maps->pages_v, be, a, a->pages.v);
}

static small_job job_of(const attn_args *a) {
    const gate_args *g = a->gate;
    small_job j = {};
    j.offsets_q = a->offsets_q, j.offsets_k = j.offsets_new = a->offsets_k;
    if (a->pages.table != NULL) j.offsets_k = a->pages.offsets;
    j.n_contexts = a->n_contexts, j.n_targets = a->n_targets, j.table = a->pages.table;
    j.max_pages = a->pages.max_pages;
    j.window_left = a->window_left, j.window_right = a->window_right;
    j.target_group = a->target_group, j.n_heads = a->n_heads;
    j.is_early = a->is_repeated, j.half = 0.5f * a->alpha, j.scale = a->scale;
    j.n_tiles = (int32_t)cuda_div_up(a->max_len_q, 64);
    j.u = g->u, j.stride_u = g->stride_u, j.weight = g->weight, j.bias = g->bias;
    j.y = g->y, j.mean = g->mean, j.rstd = g->rstd, j.eps = g->eps;
    return j;
}

/* The keys in parts, and their sum. */
template <typename T, typename S>
static status launch_parts(backend *be, small_job &j, const small_maps &maps, const attn_args *a,
                           int64_t n_blocks) {
    sum_job s = {};
    TRY(cuda_scratch(be, (size_t)n_blocks * S::ROWS * S::D * sizeof(T), &j.parts));
    TRY((cuda_launch_early(be, "the attention of few rows", attn_fwd_small_sm90_kernel<T, S>,
                           n_blocks, GROUP, S::BYTES, j, maps)));
    s.parts = j.parts, s.is_early = j.is_early, s.offsets_q = j.offsets_q;
    s.n_heads = j.n_heads, s.n_tiles = j.n_tiles, s.dim = j.n_heads * S::D;
    s.eps = j.eps, s.u = j.u, s.stride_u = j.stride_u, s.weight = j.weight, s.bias = j.bias;
    s.y = j.y, s.mean = j.mean, s.rstd = j.rstd;
    return cuda_launch_early(be, "the sums of the attention", attn_sum_small_sm90_kernel<T, S>,
                             a->n_sequences * j.n_tiles * S::ROWS, s.dim / SUM_COLUMNS, 0, s,
                             j.n_parts);
}

template <typename T> static status small_launch(backend *be, const attn_args *a) {
    using S = small_shape<256>;
    small_job j = job_of(a);
    small_maps maps;
    TRY(map_inputs(be, a, &maps));
    int64_t n_units = count_units(a);
    j.n_parts = 2 * n_units <= cuda_of(be)->n_multiprocessors ? (int32_t)parts_of(be, a) : 1;
    if (j.n_parts > 1) return launch_parts<T, S>(be, j, maps, a, n_units * j.n_parts);
    /* One part: a cluster for the heads of each tile of queries. */
    return cuda_launch_clusters(be, "the attention of few rows", j.n_heads,
                                attn_fwd_small_sm90_kernel<T, S>, n_units, GROUP, S::BYTES, j,
                                maps);
}

status cuda_attn_sm90_small(backend *be, const attn_args *a) {
    return small_launch<__nv_bfloat16>(be, a);
}
