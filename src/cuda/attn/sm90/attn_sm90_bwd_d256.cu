/* HSTU attention, backward, on Hopper: head dimension 256.
 *
 * A block computes with 64 keys.  Their dk and dv fill the registers of a warpgroup each, so the
 * work is divided by result: one consumer warpgroup makes scores and weights, keeps dv, and leaves
 * the slopes in shared memory; the other makes dp, multiplies it by the slopes, and keeps dk.  Both
 * have two products a tile, so neither waits long.
 *
 * Gradients of scores go to memory as they are multiplied, 8 KB a tile of 64 keys by 64 queries,
 * and a second kernel multiplies them with the keys: dq, each sum by one owner, so that the bits
 * are the same in every run.  For a sequence of one tile the first kernel does it at once.  Five
 * products in all; where the gradients of one head would take more than BWD_KEPT_MOST, and in
 * deterministic mode, where the way must not depend on the batch, dq is recomputed instead
 * (attn_sm90_bwd_dq.cu), which takes seven.  Heads are worked on in as many groups as the gradients
 * need.  Both kernels are bound by L2 bandwidth. */
#include "cuda/attn/sm90/attn_sm90_bwd.cuh"

typedef struct wide_shape {
    static constexpr bool IS_WHOLE = false;
    static constexpr int D = 256, KEYS = 64, STAGES = 2, OWNS = 1, WARPS = 8;
} wide_shape;

enum { D = wide_shape::D, KEYS = wide_shape::KEYS, STAGES = wide_shape::STAGES };
enum { WARPS = wide_shape::WARPS, THREADS = 3 * GROUP };
enum { ASKING = 40, COMPUTING = 232 }; /* registers */
enum { OWN = KEYS * D * 2, TILE = QUERIES * D * 2, SLOPES = KEYS * QUERIES * 2 };
enum { DS = KEYS * DS_ROW, BYTES = 2 * OWN + 2 * STAGES * TILE + 2 * SLOPES + 2 * DS };

typedef struct wide_end {
    walk_end<wide_shape> walk;
    uint64_t slopes[2], slopes_free[2];
} wide_end;

typedef struct wide_room {
    walk_room<wide_shape> walk;
    char *slopes, *ds; /* two of each */
    wide_end *end;
} wide_room;

/* The word that describes tile n, once its queries have arrived. */
__device__ static inline int wide_word(const wide_room &room, int n) {
    walk_end<wide_shape> *e = room.walk.end;
    barrier_wait(&e->queries[n % STAGES], (uint32_t)(n / STAGES) & 1);
    return e->tiles[n % KEPT];
}

__device__ static inline uint32_t wide_mask(const attn_args &a, const bwd_keys &w, int word) {
    if (word & 1) return 0xffffffffu;
    return bwd_mask(a, w.pair.s, w.key0 + row_of_thread(), word / TILE_NUMBER * QUERIES);
}

/* The place in memory of the gradients of a tile of queries, by its first row, and of keys. */
__device__ static inline char *kept_tile(const bwd_job &job, const bwd_pair &p, int row, int key0) {
    int64_t tile = p.s.row_q / QUERIES + p.s.b + row / QUERIES;
    int64_t n = (tile * job.a.n_heads + p.head) * job.kept_keys + key0 / KEYS;
    return (char *)job.sums + n * DS;
}

/* Whether a sequence is one tile. */
__device__ static inline bool is_alone(const attn_sequence &s) {
    return s.len_q <= QUERIES && s.len_k <= KEYS;
}

/* Writes the gradients of tile n to shared memory and, unless it is alone, copies them to memory;
 * each warp those of its 16 keys. */
__device__ static inline void wide_keep(const bwd_job &job, const wide_room &room, int n, int row,
                                        const uint32_t (&ds)[4][4]) {
    const bwd_keys &w = room.walk.end->records[0];
    int at = (int)threadIdx.x % GROUP / 32 * (DS / 4);
    char *from = room.ds + n % 2 * DS;
    if (threadIdx.x % 32 == 0) bulk_wait_read();
    __syncwarp();
    bwd_put(from, 0, ds);
    if (threadIdx.x % 32 == 0 && !is_alone(w.pair.s))
        bulk_store(kept_tile(job, w.pair, row, w.key0) + at, from + at, DS / 4);
}

/* Half of the columns of dq of a sequence of one tile, n, by each warpgroup. */
template <typename T>
__device__ static inline void wide_dq_alone(const attn_args &a, const wide_room &room, int n,
                                            int group) {
    const bwd_pair &p = room.walk.end->records[0].pair;
    float dq[D / 4];
    int column = group * D / 2;
    named_barrier(1, 2 * GROUP); /* all gradients are there */
    wgmma_fence();
    dq_product<T, KEYS, D / 2>(dq, room.ds + n % 2 * DS, room.walk.keys + column * KEYS * 2);
    wgmma_wait<0>();
    T *to = (T *)a.dq + (int64_t)p.s.row_q * a.stride_q + p.head * D + column;
    store_wide<T, D / 2>(to, a.stride_q, row_of_thread(), p.s.len_q, 0.5f * a.alpha * a.scale, dq);
}

/* dv of a tile of keys, over tiles of queries from n on.  Returns the first tile after them. */
template <typename T>
__device__ static inline int wide_tiles_dv(const attn_args &a, const wide_room &room, int n,
                                           float (&dv)[D / 2]) {
    const bwd_keys &w = room.walk.end->records[0];
    wide_end *e = room.end;
    for (int word = 0; (word & TILE_FINAL) == 0; n++) {
        int stage = n % STAGES;
        uint32_t weights[4][4];
        float x[32];
        word = wide_word(room, n);
        uint32_t seen = wide_mask(a, w, word);
        wgmma_fence();
        product_of_rows<T, D, KEYS, 64>(x, room.walk.keys, room.walk.queries + stage * TILE);
        wgmma_commit();
        wgmma_wait<0>();
        bwd_hide(0.5f * a.alpha, seen, x);
        bwd_weights<T>(0.5f * a.alpha, x, weights);
        barrier_wait(&e->slopes_free[n % 2], (uint32_t)(n / 2 + 1) & 1);
        slopes_put(room.slopes + n % 2 * SLOPES, x);
        release(&e->slopes[n % 2]);
        barrier_wait(&e->walk.douts[stage], (uint32_t)(n / STAGES) & 1);
        wgmma_fence();
        add_tile<T, D>(dv, weights, room.walk.douts + stage * TILE);
        wgmma_wait<0>();
        release(&e->walk.free[stage]);
    }
    return n;
}

template <typename T>
__device__ static inline int wide_tiles_dk(const bwd_job &job, const wide_room &room, int n,
                                           float (&dk)[D / 2]) {
    wide_end *e = room.end;
    for (int word = 0; (word & TILE_FINAL) == 0; n++) {
        int stage = n % STAGES;
        uint32_t ds[4][4];
        float dp[32];
        word = wide_word(room, n);
        barrier_wait(&e->walk.douts[stage], (uint32_t)(n / STAGES) & 1);
        wgmma_fence();
        product_of_rows<T, D, KEYS, 64>(dp, room.walk.values, room.walk.douts + stage * TILE);
        wgmma_commit();
        wgmma_wait<0>();
        barrier_wait(&e->slopes[n % 2], (uint32_t)(n / 2) & 1);
        slopes_apply<T>(room.slopes + n % 2 * SLOPES, dp, ds);
        __syncwarp();
        release(&e->slopes_free[n % 2]);
        wgmma_fence();
        add_tile<T, D>(dk, ds, room.walk.queries + stage * TILE);
        if (job.kept_keys > 0) wide_keep(job, room, n, word / TILE_NUMBER * QUERIES, ds);
        wgmma_wait<0>();
        release(&e->walk.free[stage]);
    }
    return n;
}

/* A warpgroup's sums over all tiles of keys: dv or, in the second warpgroup, dk. */
template <typename T, bool IS_DK>
__device__ static void wide_compute(const bwd_job &job, const wide_room &room) {
    const attn_args &a = job.a;
    walk_end<wide_shape> *e = room.walk.end;
    for (int m = 0, n = 0;; m++) {
        float sum[D / 2];
        barrier_wait(&e->keys[0], (uint32_t)m & 1);
        if (e->records[0].pair.head < 0) break;
        barrier_wait(&e->values[0], (uint32_t)m & 1);
        clear(sum);
        if (e->records[0].has_tiles)
            n = IS_DK ? wide_tiles_dk<T>(job, room, n, sum) : wide_tiles_dv<T>(a, room, n, sum);
        if (e->records[0].has_tiles && job.kept_keys > 0 && is_alone(e->records[0].pair.s))
            wide_dq_alone<T>(a, room, n - 1, IS_DK);
        int64_t row0 = e->records[0].pair.s.row_k, column = e->records[0].pair.head * D;
        int key = e->records[0].key0 + row_of_thread(), len_k = e->records[0].pair.s.len_k;
        __syncwarp();
        release(&e->own_free[0]);
        if (IS_DK)
            store_wide<T, D>((T *)a.dk + row0 * a.stride_k + column, a.stride_k, key, len_k,
                             0.5f * a.alpha * a.scale, sum);
        else
            store_wide<T, D>((T *)a.dv + row0 * a.stride_v + column, a.stride_v, key, len_k,
                             a.scale, sum);
    }
    if (IS_DK && threadIdx.x % 32 == 0) bulk_wait_stored();
}

__device__ static inline void wide_barriers_init(wide_end *e) {
    for (int i = 0; i < 2; i++) {
        barrier_init(&e->slopes[i], WARPS / 2);
        barrier_init(&e->slopes_free[i], WARPS / 2);
    }
    walk_barriers_init<wide_shape>(&e->walk);
}

template <typename T>
__global__ void __launch_bounds__(THREADS, 1)
    attn_bwd_d256_sm90_kernel(const __grid_constant__ bwd_job job) {
    extern __shared__ __align__(1024) char shared[];
    wide_room room;
    room.walk.keys = shared;
    room.walk.values = room.walk.keys + OWN;
    room.walk.queries = room.walk.values + OWN;
    room.walk.douts = room.walk.queries + STAGES * TILE;
    room.slopes = room.walk.douts + STAGES * TILE;
    room.ds = room.slopes + 2 * SLOPES;
    room.end = (wide_end *)(shared + BYTES);
    room.walk.end = &room.end->walk;
    if (threadIdx.x == 0) wide_barriers_init(room.end);
    __syncthreads();
    grid_launch_next();
    grid_wait();
    if (threadIdx.x >= 2 * GROUP) {
        registers_lower<ASKING>();
        if (threadIdx.x < 2 * GROUP + 32) walk<wide_shape>(job, room.walk);
    } else {
        registers_raise<COMPUTING>();
        if (threadIdx.x < GROUP)
            wide_compute<T, false>(job, room);
        else
            wide_compute<T, true>(job, room);
    }
}

/* dq from kept gradients.  A block owns 128 queries, 64 a warpgroup, and sums over the keys in
 * their order.  The producer warp finds the block's next queries and runs ahead of the consumers,
 * across their ends. */
enum {
    DQ_KEPT_STAGES = 4,
    DQ_KEPT_STAGE = TILE + 2 * DS,
    DQ_KEPT_BYTES = DQ_KEPT_STAGES * DQ_KEPT_STAGE
};
/* Flags of a step: bit g, warpgroup g has gradients; the sum is complete; there are no more. */
enum { STEP_HAS = 1, STEP_STORE = 4, STEP_END = 8 };

typedef struct dq_step {
    bwd_pair pair;
    int row0, flags;
} dq_step;

typedef struct dq_room {
    uint64_t full[DQ_KEPT_STAGES], free[DQ_KEPT_STAGES];
    dq_step steps[DQ_KEPT_STAGES];
} dq_room;

/* Whether the first kernel has kept gradients of 64 queries from `row` on and of keys. */
__device__ static inline bool dq_has(const attn_args &a, const attn_sequence &s, int row,
                                     int key0) {
    if (row >= s.len_q || key0 >= s.len_k) return false;
    if (s.len_k <= KEYS) return true;
    attn_span rows = attn_queries_seeing(&a, &s, key0, KEYS);
    return row / QUERIES >= rows.begin / QUERIES && row < rows.end &&
           !walk_is_empty(a, s, row, key0, KEYS);
}

/* Step n, by one thread. */
__device__ static inline void dq_ask(const bwd_job &job, char *room, dq_room *e, const bwd_pair &p,
                                     int row0, int key0, int flags, int n) {
    int stage = n % DQ_KEPT_STAGES;
    char *to = room + stage * DQ_KEPT_STAGE;
    uint64_t *full = &e->full[stage];
    barrier_wait(&e->free[stage], (uint32_t)(n / DQ_KEPT_STAGES + 1) & 1);
    e->steps[stage].pair = p;
    e->steps[stage].row0 = row0;
    e->steps[stage].flags = flags;
    int n_tiles = (flags & STEP_HAS) + (flags >> 1 & STEP_HAS);
    barrier_expect(full, (uint32_t)(n_tiles > 0 ? TILE + n_tiles * DS : 0));
    if (n_tiles == 0) return;
    load_rows<D, KEYS>(to, &job.maps.k, full, p.head * D, p.s.row_k + key0);
    for (int g = 0; g < 2; g++)
        if (flags >> g & STEP_HAS)
            bulk_load(to + TILE + g * DS, kept_tile(job, p, row0 + g * QUERIES, key0), DS, full);
}

/* The producer warp. */
__device__ static void dq_ask_all(const bwd_job &job, char *room, dq_room *e) {
    const attn_tiles &t = job.query_tiles;
    int lane = (int)threadIdx.x % 32, unit = (int)blockIdx.x, next = 0, n = 0;
    bwd_pair p = {};
    for (int count = tiles_count(t); unit < count; unit = __shfl_sync(0xffffffffu, next, 0)) {
        if (lane == 0) next = tiles_take(t);
        tiles_unit u = tiles_find(t, unit);
        p.s = attn_sequence_of(&job.a, u.b);
        p.head = u.head;
        if (u.row0 >= p.s.len_q || is_alone(p.s)) continue;
        for (int base = 0; base < p.s.len_k; base += 32 * KEYS) {
            int key0 = base + lane * KEYS;
            uint32_t has0 = __ballot_sync(0xffffffffu, dq_has(job.a, p.s, u.row0, key0));
            uint32_t has1 = __ballot_sync(0xffffffffu, dq_has(job.a, p.s, u.row0 + QUERIES, key0));
            for (uint32_t left = has0 | has1; left != 0; left &= left - 1, n++) {
                int i = __ffs((int)left) - 1;
                int flags = (int)(has0 >> i & 1) + 2 * (int)(has1 >> i & 1);
                if (lane == 0) dq_ask(job, room, e, p, u.row0, base + i * KEYS, flags, n);
            }
        }
        if (lane == 0) dq_ask(job, room, e, p, u.row0, 0, STEP_STORE, n);
        n++;
        __syncwarp();
    }
    if (lane > 0) return;
    dq_ask(job, room, e, p, 0, 0, STEP_END, n);
    tiles_done(t);
}

template <typename T>
__device__ static void dq_compute(const attn_args &a, const char *room, dq_room *e, int group) {
    float sum[D / 2];
    clear(sum);
    for (int n = 0;; n++) {
        int stage = n % DQ_KEPT_STAGES;
        const char *keys = room + stage * DQ_KEPT_STAGE;
        barrier_wait(&e->full[stage], (uint32_t)(n / DQ_KEPT_STAGES) & 1);
        int flags = e->steps[stage].flags;
        if (flags & STEP_END) return;
        if (flags >> group & STEP_HAS) {
            wgmma_fence();
            dq_product<T, KEYS, D>(sum, keys + TILE + group * DS, keys, true);
            wgmma_wait<0>();
        }
        if (flags & STEP_STORE) {
            const dq_step &w = e->steps[stage];
            T *to = (T *)a.dq + (int64_t)w.pair.s.row_q * a.stride_q + w.pair.head * D;
            store_wide<T, D>(to, a.stride_q, w.row0 + group * QUERIES + row_of_thread(),
                             w.pair.s.len_q, 0.5f * a.alpha * a.scale, sum);
            clear(sum);
        }
        __syncwarp();
        release(&e->free[stage]);
    }
}

template <typename T>
__global__ void __launch_bounds__(THREADS, 1)
    attn_bwd_dq_kept_sm90_kernel(const __grid_constant__ bwd_job job) {
    extern __shared__ __align__(1024) char shared[];
    dq_room *e = (dq_room *)(shared + DQ_KEPT_BYTES);
    if (threadIdx.x == 0) {
        for (int i = 0; i < DQ_KEPT_STAGES; i++) {
            barrier_init(&e->full[i], 1);
            barrier_init(&e->free[i], WARPS);
        }
        barrier_init_done();
    }
    __syncthreads();
    grid_launch_next();
    grid_wait();
    if (threadIdx.x >= 2 * GROUP) {
        registers_lower<ASKING>();
        if (threadIdx.x < 2 * GROUP + 32) dq_ask_all(job, shared, e);
    } else {
        registers_raise<COMPUTING>();
        dq_compute<T>(job.a, shared, e, (int)threadIdx.x / GROUP);
    }
}

template <typename T> static status wide_launch_dq(backend *be, bwd_job *job) {
    constexpr int ROOM = DQ_KEPT_BYTES + (int)sizeof(dq_room);
    static_assert(ROOM <= 227 * 1024, "shared memory");
    int64_t n_blocks = cuda_of(be)->n_multiprocessors;
    bool are_alone = job->a.max_len_q <= QUERIES && job->a.max_len_k <= KEYS;
    if (n_blocks > job->query_tiles.n_units) n_blocks = job->query_tiles.n_units;
    if (n_blocks == 0 || are_alone) return OK;
    job->query_tiles.counter = cuda_of(be)->counters;
    return cuda_launch_early(be, "the gradient of the attention's queries",
                             attn_bwd_dq_kept_sm90_kernel<T>, n_blocks, THREADS, ROOM, *job);
}

template <typename T> static status wide_launch(backend *be, const attn_args *a) {
    constexpr int ROOM = BYTES + (int)sizeof(wide_end);
    static_assert(ROOM <= 227 * 1024, "shared memory");
    int64_t n_blocks = cuda_of(be)->n_multiprocessors;
    bwd_job job;
    TRY(bwd_prepare(be, a, KEYS, &n_blocks, &job));
    if (n_blocks > 0) {
        TRY((cuda_launch_early(be, "the gradient of the attention", attn_bwd_d256_sm90_kernel<T>,
                               n_blocks, THREADS, ROOM, job)));
    }
    return job.kept_keys > 0 ? wide_launch_dq<T>(be, &job) : bwd_finish(be, &job);
}

/* The call for n heads from `first` on. */
static attn_args heads_of(const attn_args *a, int first, int n) {
    attn_args part = *a;
    int64_t bytes = (int64_t)first * D * 2;
    part.n_heads = n;
    part.q = (const char *)a->q + bytes, part.k = (const char *)a->k + bytes;
    part.v = (const char *)a->v + bytes, part.dout = (const char *)a->dout + bytes;
    part.dq = (char *)a->dq + bytes, part.dk = (char *)a->dk + bytes;
    part.dv = (char *)a->dv + bytes;
    return part;
}

status cuda_attn_sm90_bwd_d256(backend *be, const attn_args *a) {
    using T = __nv_bfloat16;
    attn_args one = heads_of(a, 0, 1);
    int64_t most = BWD_KEPT_MOST / (bwd_gradients_bytes(&one) + 1); /* heads at once */
    if (most == 0 || cuda_of(be)->is_deterministic) return wide_launch<T>(be, a);
    int n = (int)cuda_div_up(a->n_heads, cuda_div_up(a->n_heads, most));
    for (int first = 0; first < a->n_heads; first += n) {
        attn_args part = heads_of(a, first, first + n <= a->n_heads ? n : a->n_heads - first);
        TRY(wide_launch<T>(be, &part));
    }
    return OK;
}
