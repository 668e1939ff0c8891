/* HSTU attention, backward, on Hopper (contract: attn_args in ops/ops.h): the kernel that owns
 * keys, for head dimensions 32 to 128; which kernel takes a call; and the host side of all of them.
 *
 * A persistent kernel with one producer warp.  A consumer warpgroup computes with 64 keys and keeps
 * their dk and dv in registers.  For each tile of queries it makes scores and dp, weights and their
 * gradients, adds to dv and dk, and leaves the gradients in shared memory for dq.
 * - One warpgroup a block, two blocks a multiprocessor, for short sequences at head dimensions 32
 *   and 64, and for biases at these dimensions: while one block waits the other computes.
 * - Else two warpgroups: they share the tiles of queries and halve the additions to dq.  Each
 *   computes half of the columns of dq (head dimensions up to 64: every second tile), one tile
 *   later than the scores, so that neither waits for the other.
 *
 * Bound by the tensor cores, with short sequences by latency; with a bias see attn_sm90_bias.cuh.
 */
#include "cuda/attn/common/attn_bias.cuh"
#include "cuda/attn/sm90/attn_sm90_bwd.cuh"

/* Default tile sizes; a kernel's own struct overrides some of them.  D is the head dimension,
 * GROUPS the consumer warpgroups, each with 64 keys. */
struct bwd_sizes {
    static constexpr bool IS_WHOLE = false; /* true: blocks always work on whole sequences */
    static constexpr attn_bias BIAS = BIAS_NONE;
};

/* All that follows from the sizes. */
template <typename SIZES> struct bwd_shape {
    static constexpr attn_bias BIAS = SIZES::BIAS;
    static constexpr bool IS_WHOLE = SIZES::IS_WHOLE;
    static constexpr int D = SIZES::D, GROUPS = SIZES::GROUPS, KEYS = 64 * GROUPS;
    static constexpr int WARPS = 4 * GROUPS;
    /* A block that works on whole sequences changes its keys often, so the next keys are loaded
     * ahead.  A bias table takes the room of the third stage. */
    static constexpr int STAGES = (D > 64 && IS_WHOLE) || BIAS == BIAS_TABLE ? 2 : 3;
    static constexpr int OWNS = D <= 64 || IS_WHOLE ? 2 : 1;
    static constexpr int BLOCKS = 3 - GROUPS, THREADS = (GROUPS + 1) * GROUP;
    /* Registers of a producer and of a consumer thread (setmaxnreg): 64 Ki in all. */
    static constexpr bool ASKS_MORE = GROUPS == 1 ? BIAS != BIAS_NONE : D > 64 && BIAS == BIAS_TIME;
    static constexpr int COMPUTING = (D > 64 ? 232 : 216) - (ASKS_MORE ? 8 : 0);
    static constexpr int ASKING = (GROUPS > 1 && D <= 64 ? 72 : 40) + (ASKS_MORE ? 8 * GROUPS : 0);
    static_assert(GROUPS * COMPUTING + ASKING <= (GROUPS > 1 ? 504 : 256), "registers");
    static constexpr int OWN = KEYS * D * 2, TILE = QUERIES * D * 2, DS = KEYS * DS_ROW;
    static constexpr int TABLES = BIAS == BIAS_TABLE ? STAGES * GROUPS * TABLE_TILE : 0;
    static constexpr int BYTES = 2 * OWNS * OWN + 2 * STAGES * TILE + 2 * DS + TABLES;
};

template <typename SIZES> struct walk_bias<bwd_shape<SIZES>> {
    static constexpr attn_bias KIND = SIZES::BIAS;
};

/* Shared memory after the tiles. */
template <typename S> struct bwd_end {
    walk_end<S> walk;
    uint64_t ds[2], ds_free[2]; /* of two warpgroups */
};

template <typename S> struct bwd_room {
    walk_room<S> walk;
    char *ds; /* two */
    bwd_end<S> *end;
};

/* The current tile of keys: which of OWNS buffers, and which 64 keys of it are the warpgroup's.
 * Everything else is recomputed where it is needed: registers are scarce. */
template <typename S> struct bwd_own {
    int at, group;
    __device__ int bytes() const {
        return at * S::OWN + group * 64 * part<S::D>::BYTES;
    }
};

template <typename S>
__device__ static inline const bwd_keys &bwd_record(const bwd_room<S> &room,
                                                    const bwd_own<S> &own) {
    return room.walk.end->records[own.at];
}
template <typename S>
__device__ static inline int bwd_key(const bwd_room<S> &room, const bwd_own<S> &own) {
    return bwd_record<S>(room, own).key0 + own.group * 64 + row_of_thread();
}

/* The word that describes tile n, once its queries have arrived. */
template <typename S> __device__ static inline int bwd_word(const bwd_room<S> &room, int n) {
    walk_end<S> *e = room.walk.end;
    barrier_wait(&e->queries[n % S::STAGES], (uint32_t)(n / S::STAGES) & 1);
    return e->tiles[n % KEPT];
}

/* Adds the bias of tile n. */
template <typename S>
__device__ static inline void bwd_add_bias(const attn_args &a, const bwd_room<S> &room,
                                           const bwd_own<S> &own, int n, int word, float (&x)[32]) {
    if constexpr (S::BIAS != BIAS_NONE) {
        int stage = n % S::STAGES, row = own.group * 64 + row_of_thread();
        walk_biases<S, S::BIAS> &bias = room.walk.end->bias;
        barrier_wait(&bias.there[stage], (uint32_t)(n / S::STAGES) & 1);
        if constexpr (S::BIAS == BIAS_TABLE) {
            table_add<true>(room.walk.tables + (stage * S::GROUPS + own.group) * TABLE_TILE, x);
        } else {
            const bwd_keys &w = bwd_record<S>(room, own);
            const attn_sequence &s = w.pair.s;
            const time_tile<S::KEYS, QUERIES> *tile = &bias.tiles[stage];
            const int *times = bias.times[own.at] + row;
            time_rows rows = {{times[0], times[8]}, bias.are_wide[own.at] != 0};
            uint32_t buckets[8];
            if (rows.is_wide || tile->is_wide)
                time_add_wide(&bias.tables, tile, a.key_time + s.row_k, w.key0, s.len_k,
                              a.query_time + s.row_q, word / TILE_NUMBER * QUERIES, s.len_q, row, x,
                              buckets);
            else
                time_add(&bias.tables, tile, rows, row, x, buckets);
        }
    }
}

/* Scores, weights and gradients of tile n: adds to dv, and returns the gradients as the left
 * operand of a product. */
template <typename T, typename S>
__device__ static inline void bwd_tile(const attn_args &a, const bwd_room<S> &room,
                                       const bwd_own<S> &own, int n, int word,
                                       float (&dv)[S::D / 2], uint32_t (&ds)[4][4]) {
    int stage = n % S::STAGES;
    uint32_t weights[4][4], seen = 0xffffffffu, parity = (uint32_t)(n / S::STAGES) & 1;
    const char *keys = room.walk.keys + own.bytes(), *values = room.walk.values + own.bytes();
    const char *queries = room.walk.queries + stage * S::TILE;
    const char *douts = room.walk.douts + stage * S::TILE;
    float x[32];
    if ((word >> own.group & 1) == 0)
        seen = bwd_mask(a, bwd_record<S>(room, own).pair.s, bwd_key<S>(room, own),
                        word / TILE_NUMBER * QUERIES);
    wgmma_fence();
    product_of_rows<T, S::D, S::KEYS, 64>(x, keys, queries);
    wgmma_commit();
    barrier_wait(&room.walk.end->douts[stage], parity);
    if constexpr (S::D <= 64) {
        float dp[32];
        wgmma_fence();
        product_of_rows<T, S::D, S::KEYS, 64>(dp, values, douts);
        wgmma_commit();
        wgmma_wait<1>();
        bwd_add_bias<S>(a, room, own, n, word, x);
        bwd_hide(0.5f * a.alpha, seen, x);
        bwd_weights<T>(0.5f * a.alpha, x, weights);
        wgmma_fence();
        add_tile<T, S::D>(dv, weights, douts);
        wgmma_wait<1>();
        bwd_gradients<T>(x, dp, ds);
    } else { /* registers are scarce: dp reuses the registers of the scores */
        uint32_t slope[16];
        wgmma_wait<0>();
        bwd_add_bias<S>(a, room, own, n, word, x);
        bwd_hide(0.5f * a.alpha, seen, x);
        bwd_weights<T>(0.5f * a.alpha, x, weights, slope);
        wgmma_fence();
        product_of_rows<T, S::D, S::KEYS, 64>(x, values, douts);
        wgmma_commit();
        add_tile<T, S::D>(dv, weights, douts);
        wgmma_wait<1>();
        bwd_gradients<T>(slope, x, ds);
    }
}

/* Computes dq of tile n, one part of its columns after another: registers are scarce. */
template <typename T, typename S>
__device__ static inline void bwd_dq_now(const bwd_job &job, const bwd_room<S> &room,
                                         const bwd_own<S> &own, int n, int word,
                                         float (&dk)[S::D / 2], const uint32_t (&ds)[4][4]) {
    constexpr int N = part<S::D>::COLUMNS;
    char *gradients = room.ds + n % 2 * S::DS;
    if (job.has_dq) {
        bwd_put(gradients, 0, ds);
        named_barrier(1, GROUP); /* and all warps are done with the previous tile's gradients */
    }
    wgmma_fence();
    add_tile<T, S::D>(dk, ds, room.walk.queries + n % S::STAGES * S::TILE);
    if (!job.has_dq) return;
#pragma unroll
    for (int c = 0; c < S::D; c += N) {
        float dq[N / 2];
        wgmma_fence();
        dq_product<T, S::KEYS, N>(dq, gradients, room.walk.keys + own.bytes() + c * S::KEYS * 2);
        wgmma_wait<0>();
        dq_end<T, S::D, N>(job.a, bwd_record<S>(room, own), word, c, dq);
    }
}

template <typename T, typename S>
__device__ static inline int bwd_tiles_alone(const bwd_job &job, const bwd_room<S> &room,
                                             const bwd_own<S> &own, int n, float (&dk)[S::D / 2],
                                             float (&dv)[S::D / 2]) {
    for (int word = 0; (word & TILE_FINAL) == 0; n++) {
        uint32_t ds[4][4];
        word = bwd_word<S>(room, n);
        bwd_tile<T, S>(job.a, room, own, n, word, dv, ds);
        bwd_dq_now<T, S>(job, room, own, n, word, dk, ds);
        wgmma_wait<0>();
        release(&room.walk.end->free[n % S::STAGES]);
    }
    return n;
}

/* The warpgroup's columns of dq of tile n. */
template <typename T, typename S>
__device__ static inline void bwd_dq_late(const attn_args &a, const bwd_room<S> &room,
                                          const bwd_own<S> &own, int n) {
    constexpr int N = part<S::D>::COLUMNS;
    int column = S::D > N ? own.group * N : 0, word = room.walk.end->tiles[n % KEPT];
    const char *keys = room.walk.keys + own.at * S::OWN + column * S::KEYS * 2;
    float dq[N / 2];
    if (S::D == N && n % 2 != own.group) return; /* the warpgroups take turns */
    barrier_wait(&room.end->ds[n % 2], (uint32_t)(n / 2) & 1);
    wgmma_fence();
    dq_product<T, S::KEYS, N>(dq, room.ds + n % 2 * S::DS, keys);
    wgmma_wait<0>();
    release(&room.end->ds_free[n % 2]);
    dq_end<T, S::D, N>(a, bwd_record<S>(room, own), word, column, dq);
}

template <typename T, typename S>
__device__ static inline int bwd_tiles_together(const bwd_job &job, const bwd_room<S> &room,
                                                const bwd_own<S> &own, int n, float (&dk)[S::D / 2],
                                                float (&dv)[S::D / 2]) {
    bool is_first = true;
    for (int word = 0; (word & TILE_FINAL) == 0; n++) {
        int stage = n % S::STAGES;
        uint32_t ds[4][4];
        word = bwd_word<S>(room, n);
        bwd_tile<T, S>(job.a, room, own, n, word, dv, ds);
        if (S::IS_WHOLE || job.has_dq) {
            barrier_wait(&room.end->ds_free[n % 2], (uint32_t)(n / 2 + 1) & 1);
            bwd_put(room.ds + n % 2 * S::DS, own.group * 64, ds);
            release(&room.end->ds[n % 2]);
        }
        wgmma_fence();
        add_tile<T, S::D>(dk, ds, room.walk.queries + stage * S::TILE);
        if (!is_first && (S::IS_WHOLE || job.has_dq)) bwd_dq_late<T, S>(job.a, room, own, n - 1);
        wgmma_wait<0>();
        release(&room.walk.end->free[stage]);
        is_first = false;
    }
    if (S::IS_WHOLE || job.has_dq) bwd_dq_late<T, S>(job.a, room, own, n - 1);
    return n;
}

/* Adds the warpgroup's dk and dv to the sums of 64 keys; see bwd_keys for their order.  There are
 * none for keys beyond the sequence's last 64. */
template <int D>
__device__ static inline void bwd_add(const bwd_job &job, const bwd_pair &p, int key,
                                      const float (&dk)[D / 2], const float (&dv)[D / 2]) {
    int64_t tile = p.s.row_k / QUERIES + p.s.b + key / QUERIES;
    int64_t at = (tile * job.a.n_heads + p.head) * (QUERIES * D) + (int)thread_index() % GROUP * 4;
    if (key / QUERIES * QUERIES >= p.s.len_k) return;
#pragma unroll
    for (int j = 0; j < D / 8; j++) {
        int64_t to = at + j * (GROUP * 4);
        add_four(job.dk_sums + to, dk[4 * j], dk[4 * j + 1], dk[4 * j + 2], dk[4 * j + 3]);
        add_four(job.dv_sums + to, dv[4 * j], dv[4 * j + 1], dv[4 * j + 2], dv[4 * j + 3]);
    }
}

/* Consumes tiles of keys until there are no more.  The buffer of the keys is released before the
 * epilogue stores their gradients. */
template <typename T, typename S>
__device__ static void bwd_compute(const bwd_job &job, const bwd_room<S> &room, int group) {
    walk_end<S> *e = room.walk.end;
    for (int m = 0, n = 0;; m++) {
        bwd_own<S> own = {m % S::OWNS, group};
        uint32_t parity = (uint32_t)(m / S::OWNS) & 1;
        float dk[S::D / 2], dv[S::D / 2];
        barrier_wait(&e->keys[own.at], parity);
        if (e->records[own.at].pair.head < 0) return;
        barrier_wait(&e->values[own.at], parity);
        clear(dk);
        clear(dv);
        if (e->records[own.at].has_tiles) {
            if constexpr (S::GROUPS == 1)
                n = bwd_tiles_alone<T, S>(job, room, own, n, dk, dv);
            else
                n = bwd_tiles_together<T, S>(job, room, own, n, dk, dv);
        }
        bwd_pair p = bwd_record<S>(room, own).pair;
        int key = bwd_key<S>(room, own);
        bool is_cut = bwd_record<S>(room, own).is_cut;
        __syncwarp();
        release(&e->own_free[own.at]);
        if (is_cut)
            bwd_add<S::D>(job, p, key, dk, dv);
        else
            bwd_store<T, S::D>(job.a, p.s, p.head, key, dk, dv);
    }
}

template <typename S> __device__ static inline void bwd_barriers_init(bwd_end<S> *e) {
    for (int i = 0; i < 2; i++) {
        barrier_init(&e->ds[i], S::WARPS);
        barrier_init(&e->ds_free[i], S::D > PART ? S::WARPS : 4);
    }
    walk_barriers_init<S>(&e->walk);
}

template <typename T, typename S>
__global__ void __launch_bounds__(S::THREADS, S::BLOCKS)
    attn_bwd_sm90_kernel(const __grid_constant__ bwd_job job) {
    extern __shared__ __align__(1024) char shared[];
    bwd_room<S> room;
    room.walk.keys = shared;
    room.walk.values = room.walk.keys + S::OWNS * S::OWN;
    room.walk.queries = room.walk.values + S::OWNS * S::OWN;
    room.walk.douts = room.walk.queries + S::STAGES * S::TILE;
    room.ds = room.walk.douts + S::STAGES * S::TILE;
    room.walk.tables = room.ds + 2 * S::DS;
    room.end = (bwd_end<S> *)(shared + S::BYTES);
    room.walk.end = &room.end->walk;
    if (threadIdx.x == 0) bwd_barriers_init<S>(room.end);
    __syncthreads();
    grid_wait();
    if constexpr (S::BIAS == BIAS_TIME) {
        time_tables_load(job.a, job.bias.buckets, &room.walk.end->bias.tables);
        __syncthreads();
    }
    if (threadIdx.x >= S::GROUPS * GROUP) {
        registers_lower<S::ASKING>();
        if (threadIdx.x < S::GROUPS * GROUP + 32) walk<S>(job, room.walk);
    } else {
        registers_raise<S::COMPUTING>();
        bwd_compute<T, S>(job, room, (int)threadIdx.x / GROUP);
    }
}

template <typename T, typename S> static status bwd_launch(backend *be, const attn_args *a) {
    constexpr int BYTES = S::BYTES + (int)sizeof(bwd_end<S>);
    static_assert((BYTES + 1024) * S::BLOCKS <= 228 * 1024, "shared memory");
    int64_t n_blocks = (int64_t)S::BLOCKS * cuda_of(be)->n_multiprocessors;
    bwd_job job;
    TRY(bwd_prepare(be, a, S::KEYS, &n_blocks, &job));
    if (n_blocks > 0)
        TRY((cuda_launch_early(be, "the gradient of the attention", attn_bwd_sm90_kernel<T, S>,
                               n_blocks, S::THREADS, BYTES, job)));
    return bwd_finish(be, &job);
}

/* Blocks that work on whole sequences or, up to head dimension 64, on few tiles of keys; and blocks
 * that work on tiles of keys, which float16 always does. */
template <int D_> struct whole : bwd_sizes {
    static constexpr int D = D_, GROUPS = D < 128 ? 1 : 2;
    static constexpr bool IS_WHOLE = D == 128;
};
template <int D_> struct tiled : bwd_sizes { static constexpr int D = D_, GROUPS = 2; };

/* With a bias there is one choice of tile sizes for each head dimension, so that there are few
 * kernels to compile.  One warpgroup a block takes 0.81 to 0.98 of the time of two (H200,
 * 2026-11-15; head dimensions 32 and 64, sequences up to 200, 512 and 1024).  The gradients of a
 * bias are computed by another kernel (attn_sm90_bwd_dq_bias.cu); where they are wanted, the kernel
 * that owns keys computes only dk and dv. */
template <attn_bias BIAS_, int D_> struct bwd_bias : bwd_sizes {
    static constexpr attn_bias BIAS = BIAS_;
    static constexpr int D = D_, GROUPS = D < 128 ? 1 : 2;
};
template <int D> struct with_table : bwd_bias<BIAS_TABLE, D> {};
template <int D> struct with_time : bwd_bias<BIAS_TIME, D> {};

template <typename T, template <int> class SIZES>
static status choose(backend *be, const attn_args *a) {
    if (a->dim_qk == 32) return bwd_launch<T, bwd_shape<SIZES<32>>>(be, a);
    if (a->dim_qk == 64) return bwd_launch<T, bwd_shape<SIZES<64>>>(be, a);
    return bwd_launch<T, bwd_shape<SIZES<128>>>(be, a);
}

/* Number of slots for the tiles of 64 queries of all sequences; see walk_ask_keys. */
static int64_t count_tiles(const attn_args *a) {
    return a->n_rows_q / QUERIES + a->n_sequences;
}

status cuda_attn_sm90_bwd(backend *be, const attn_args *a) {
    using T = __nv_bfloat16;
    int n_blocks = cuda_of(be)->n_multiprocessors;
    if (a->bias == BIAS_TABLE) return choose<T, with_table>(be, a);
    if (a->bias == BIAS_TIME) return choose<T, with_time>(be, a);
    if (be->act == ACT_F16) return choose<__half, tiled>(be, a);
    if (a->dim_qk == 256) return cuda_attn_sm90_bwd_d256(be, a);
    if (a->max_len_q <= 64 && a->max_len_k <= 64) return cuda_attn_sm90_bwd_single_tile(be, a);
    bool are_few = a->dim_qk <= 64 && !cuda_of(be)->is_deterministic &&
                   count_tiles(a) * a->n_heads <= (a->max_len_q <= 1024 ? 8 : 1) * n_blocks;
    return bwd_is_whole(be, a) || are_few ? choose<T, whole>(be, a) : choose<T, tiled>(be, a);
}

/* Before and after the backward kernels: the schedule and, where blocks share float32 sums of dq
 * (split-K over the keys), scratch memory that is set to zero before and rounded into dq after. The
 * rounding is bound by bytes: 4 + 4 + 2 for each element. */

int64_t bwd_gradients_bytes(const attn_args *a) {
    return count_tiles(a) * a->n_heads * cuda_div_up(a->max_len_k, 64) * 64 * DS_ROW;
}

bool bwd_is_whole(backend *be, const attn_args *a) {
    enum {
        ALWAYS = 128,
        SHORT = 256,
        LONGEST = 512,
        MOST = 32
    }; /* MOST: bits of the walk's words */
    int64_t n_pairs = (int64_t)a->n_sequences * a->n_heads;
    if (be->act != ACT_BF16 || a->bias != BIAS_NONE || a->dim_qk == 256) return false;
    if (a->max_len_q > MOST * QUERIES || a->max_len_k > LONGEST) return false;
    int n_blocks = cuda_of(be)->n_multiprocessors;
    if (cuda_of(be)->is_deterministic) return a->max_len_k <= SHORT; /* whatever the batch */
    return a->max_len_k <= ALWAYS || n_pairs >= (a->max_len_k <= SHORT ? n_blocks : 2 * n_blocks);
}

status bwd_make_maps(backend *be, const attn_args *a, int rows, bwd_maps *maps) {
    int64_t n = (int64_t)a->n_heads * a->dim_qk, n_q = a->n_rows_q, n_k = a->n_rows_k;
    int part = a->dim_qk < PART ? a->dim_qk : (int)PART;
    TRY(sm90a_map_box(&maps->q, be->act, a->q, n_q, n, a->stride_q, part, rows));
    TRY(sm90a_map_box(&maps->k, be->act, a->k, n_k, n, a->stride_k, part, rows));
    TRY(sm90a_map_box(&maps->v, be->act, a->v, n_k, n, a->stride_v, part, rows));
    return sm90a_map_box(&maps->dout, be->act, a->dout, n_q, n, a->stride_out, part, rows);
}

attn_args bwd_shorten(const attn_args *a) {
    attn_args b = *a;
    int32_t longest = a->max_len_k > a->max_len_q ? a->max_len_k : a->max_len_q;
    if (b.window_left > longest) b.window_left = longest;
    if (b.window_right > longest) b.window_right = longest;
    if (b.target_group > longest && longest > 0) b.target_group = longest;
    return b;
}

/* Whether the bias has gradients. */
static bool bwd_has_bias_gradient(const attn_args *a) {
    return (a->bias == BIAS_TIME && a->dposition_w != NULL) ||
           (a->bias == BIAS_TABLE && a->dtable != NULL);
}

/* Longer sequences are worth a plan: a unit takes longer than the kernel that makes it. */
enum { SLOTS_MOST = 256 };

/* The schedule: whole sequences, sorted by length where lengths differ; or tiles of keys, first
 * those that the most queries see. */
static bool plan_work(backend *be, const attn_args *a, bwd_job *job, int64_t *n_blocks) {
    attn_tiles *t = &job->tiles;
    int64_t n_units = job->n_pairs;
    bool is_jagged = a->n_rows_k < (int64_t)a->n_sequences * a->max_len_k / 16 * 15;
    if (job->is_whole) {
        t->offsets = a->offsets_k;
        t->n_sequences = a->n_sequences;
        t->counter = cuda_of(be)->counters;
        is_jagged &= a->max_len_k > job->n_keys && a->n_sequences <= TILES_PLAN_SEQUENCES;
    } else {
        int row_bytes = 2 * a->dim_qk * 2 + a->dim_qk * (int)sizeof(float); /* q, dout, sums */
        *t = tiles_make(a, a->offsets_k, a->max_len_k, a->n_rows_k, job->n_keys, a->max_len_q,
                        row_bytes, SLOTS_MOST);
        t->is_keys = true;
        t->counter = cuda_of(be)->counters;
        n_units = (int64_t)t->n_units * job->n_parts;
        is_jagged = tiles_wants_plan(t, a->max_len_k, a->n_rows_k);
    }
    if (*n_blocks > n_units) *n_blocks = n_units;
    return is_jagged;
}

/* A tile of keys that all queries see takes max_len_q / 64 steps, one after the other.  Where a
 * block has less to do on average, queries are cut into parts of half the average (the sums of a
 * part's dk and dv cost as much as four steps), unless most parts of so many tiles would be empty.
 * One sequence has the longest length, the others share the rest of the rows. */
static void cut_queries(const attn_args *a, int64_t n_blocks, bwd_job *job) {
    enum { LEAST = 12, MOST_UNITS = 4096 };
    int64_t n = a->n_sequences, rest = a->n_rows_k - a->max_len_k, steps = job->n_tiles;
    double pairs = (double)a->max_len_q * a->max_len_k;
    if (n > 1 && rest > 0) pairs += 4.0 / 3 * (double)rest * (double)rest / (double)(n - 1);
    int64_t mean = (int64_t)(pairs / 2 * a->n_heads / (QUERIES * job->n_keys) / (double)n_blocks);
    int64_t part = mean / 2 > LEAST ? mean / 2 : (int64_t)LEAST, n_parts = cuda_div_up(steps, part);
    int64_t n_units = job->n_pairs * cuda_div_up(a->max_len_k, job->n_keys) * n_parts;
    if (!job->has_dq || job->is_whole || a->bias != BIAS_NONE || n_units > MOST_UNITS) return;
    if (steps < 2 * LEAST || steps < mean + mean / 4) return;
    job->part_rows = (int)part * QUERIES;
    job->n_parts = (int)n_parts;
}

/* Floats of the sums of dk, and of dv. */
static int64_t own_sums(const bwd_job *job) {
    const attn_args *a = &job->a;
    if (job->n_parts == 1) return 0;
    return (a->n_rows_k / QUERIES + a->n_sequences) * a->n_heads * a->dim_qk * QUERIES;
}

/* Scratch memory for float32 sums of dq: for each block of a launch, or for each tile of queries.
 */
static size_t sums_bytes(const bwd_job *job, int64_t n_blocks) {
    const attn_args *a = &job->a;
    int64_t n_sums = job->is_whole ? n_blocks * job->n_tiles : count_tiles(a) * a->n_heads;
    return cuda_align((size_t)(n_sums * a->dim_qk * QUERIES + 2 * own_sums(job)) * sizeof(float));
}

status bwd_prepare(backend *be, const attn_args *a, int n_keys, int64_t *n_blocks, bwd_job *job) {
    cudaStream_t stream = cuda_of(be)->stream;
    attn_tiles *dq_tiles = &job->query_tiles;
    void *room = NULL;
    memset(job, 0, sizeof *job);
    job->a = bwd_shorten(a);
    job->is_whole = bwd_is_whole(be, a);
    job->has_dq = job->is_whole ||
                  !(cuda_of(be)->is_deterministic || a->dim_qk > 128 || bwd_has_bias_gradient(a));
    job->n_keys = n_keys;
    job->n_tiles = (int)cuda_div_up(a->max_len_q, QUERIES);
    job->n_pairs = a->n_sequences * a->n_heads;
    job->n_parts = 1;
    cut_queries(a, *n_blocks, job);
    int rows = a->bias != BIAS_NONE && a->dim_qk <= 64 ? (int)DQ_ROWS_BIAS_64 : (int)DQ_ROWS;
    *dq_tiles = tiles_make(a, a->offsets_q, a->max_len_q, a->n_rows_q, rows, a->max_len_k,
                           2 * a->dim_qk * 2, SLOTS_MOST);
    TRY(bwd_make_maps(be, a, QUERIES, &job->maps));
    TRY(sm90a_bias_source(be, a, &job->bias));
    bool has_plan = plan_work(be, a, job, n_blocks);
    bool has_cells = a->bias == BIAS_TIME && a->dposition_w != NULL;
    bool has_dq_plan = !job->has_dq && tiles_wants_plan(dq_tiles, a->max_len_q, a->n_rows_q);
    int64_t kept = job->is_whole || a->dim_qk < 256 ? 0 : bwd_gradients_bytes(a);
    if (!cuda_of(be)->is_deterministic && kept > 0 && kept <= BWD_KEPT_MOST)
        job->kept_keys = (int)cuda_div_up(a->max_len_k, 64);
    size_t bytes = job->kept_keys > 0 ? (size_t)kept : job->has_dq ? sums_bytes(job, *n_blocks) : 0;
    size_t plan_bytes = has_plan ? tiles_plan_bytes(&job->tiles) : 0;
    size_t dq_plan_bytes = has_dq_plan ? tiles_plan_bytes(dq_tiles) : 0;
    size_t cells_bytes = has_cells ? cuda_align(bias_cells_bytes(a)) : 0;
    TRY(cuda_scratch(be, bytes + plan_bytes + dq_plan_bytes + cells_bytes, &room));
    job->sums = (float *)room;
    if (job->n_parts > 1) {
        job->dk_sums = job->sums + count_tiles(a) * a->n_heads * a->dim_qk * QUERIES;
        job->dv_sums = job->dk_sums + own_sums(job);
    }
    if (has_cells) {
        job->cells = (unsigned long long *)((char *)room + bytes + plan_bytes + dq_plan_bytes);
        CUDA_TRY(cudaMemsetAsync(job->cells, 0, cells_bytes, stream));
    }
    if (has_plan) TRY(tiles_plan(&job->tiles, (char *)room + bytes, stream));
    if (has_dq_plan) TRY(tiles_plan(dq_tiles, (char *)room + bytes + plan_bytes, stream));
    if (!job->is_whole && job->has_dq) CUDA_TRY(cudaMemsetAsync(room, 0, bytes, stream));
    return OK;
}

/* Rounds one block of N columns of a tile of dq or, in further rows of the grid, of dk and dv of
 * keys that were cut; a warpgroup reads the sums in the register order in which another wrote them.
 */
template <typename T, int N>
__global__ void __launch_bounds__(GROUP)
    attn_bwd_dq_round_sm90_kernel(const __grid_constant__ bwd_job job) {
    const attn_args &a = job.a;
    bool is_key = blockIdx.y > 0, is_dv = blockIdx.y == 2;
    const int32_t *offsets = is_key ? a.offsets_k : a.offsets_q;
    int n_columns = a.dim_qk / N, column = (int)(blockIdx.x % (unsigned)n_columns);
    int head = (int)(blockIdx.x / (unsigned)n_columns % (unsigned)a.n_heads);
    int tile = (int)(blockIdx.x / (unsigned)n_columns / (unsigned)a.n_heads);
    int b = tiles_search(offsets, QUERIES, a.n_sequences, tile);
    attn_sequence s = attn_sequence_of(&a, b);
    int row = is_key ? s.row_k : s.row_q, len = is_key ? s.len_k : s.len_q;
    int i = (tile - row / QUERIES - b) * QUERIES;
    if (i >= len) return;
    if (is_key) {
        attn_span seen = bwd_queries_of(job, s, i / job.n_keys * job.n_keys, job.n_keys);
        if (!bwd_is_cut(job, seen)) return;
    } else if (s.len_k > 0 && s.len_k <= job.n_keys) {
        return;
    }
    const float *sums = is_dv ? job.dv_sums : is_key ? job.dk_sums : job.sums;
    const float4 *from = (const float4 *)sums + (int64_t)blockIdx.x * (N / 4) * QUERIES;
    float x[N / 2];
#pragma unroll
    for (int j = 0; j < N / 8; j++)
        *(float4 *)&x[4 * j] = from[j * GROUP + threadIdx.x];
    int64_t stride = is_dv ? a.stride_v : is_key ? a.stride_k : a.stride_q;
    T *to = (T *)(is_dv ? a.dv : is_key ? a.dk : a.dq);
    to += (int64_t)row * stride + head * a.dim_qk + column * N;
    store_wide<T, N>(to, stride, i + row_of_thread(), len,
                     is_dv ? a.scale : 0.5f * a.alpha * a.scale, x);
}

template <typename T, int N> static status round_sums(backend *be, const bwd_job *job) {
    const attn_args *a = &job->a;
    bool has_own = job->n_parts > 1;
    int64_t n_tiles = count_tiles(a), n_own = a->n_rows_k / QUERIES + a->n_sequences;
    if (has_own && n_own > n_tiles) n_tiles = n_own; /* tiles beyond the last are beyond its end */
    int64_t n_blocks = n_tiles * a->n_heads * (a->dim_qk / N);
    if (n_blocks == 0) return OK;
    dim3 grid((unsigned)n_blocks, has_own ? 3 : 1);
    return cuda_launch(be, "the gradient of the attention's queries",
                       attn_bwd_dq_round_sm90_kernel<T, N>, grid, GROUP, 0, *job);
}

status bwd_finish(backend *be, const bwd_job *job) {
    if (!job->has_dq && job->a.bias != BIAS_NONE) return bwd_queries_bias(be, job);
    if (!job->has_dq) return bwd_queries(be, job);
    if (job->is_whole) return OK;
    if (be->act == ACT_BF16)
        return job->a.dim_qk == 32 ? round_sums<__nv_bfloat16, 32>(be, job)
                                   : round_sums<__nv_bfloat16, 64>(be, job);
    return job->a.dim_qk == 32 ? round_sums<__half, 32>(be, job) : round_sums<__half, 64>(be, job);
}
