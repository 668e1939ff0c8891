/* Softmax attention, forward, on Hopper for dense masks at head dimension 64 (contract:
 * softmax_attn_args in ops/ops.h): two kernels, for masks that are one span of keys a row and hide
 * little, and for no mask at all.
 *
 * Three warpgroups of 64 queries each walk over keys in steps of 128 and take turns at the tensor
 * cores.  A warpgroup issues the next step's scores before it adds the current step's values, and
 * computes exponentials while both products run.  The bounds are close to each other: a step of a
 * warpgroup is 512 clocks of products, 512 of exponentials (16 a clock and multiprocessor) and
 * about 400 of other instructions. */
#include "cuda/attn/sm90/softmax_sm90_fwd.cuh"

struct turns90 {
    static constexpr int D = 64, KEYS = 128, GROUPS = 3;
    static constexpr int THREADS = (GROUPS + 1) * GROUP;
    static constexpr int REGISTERS = 160, SMALL_REGISTERS = 32;                     /* a thread */
    static constexpr int Q_TILE = MASK_TILE * PART_BYTES, TILE = KEYS * PART_BYTES; /* bytes */
};

/* The first of a warpgroup's numbered barriers. */
enum { TURNS90_TAIL = 1, TURNS90_TURN = TURNS90_TAIL + turns90::GROUPS };

/* What larger scores may exceed the largest by before the sums are rescaled: weights are then at
 * most 2^8, which 16 bits hold as precisely as 1. */
#define TURNS90_SLACK 8.0f

/* Scores become weights 2^(scale score - shift); shift is the largest scaled score at the time when
 * it was set last.  Returns whether any factor of the warp's rows is not 1. */
__device__ static inline bool turns90_softmax(float (&x)[turns90::KEYS / 2], soft90_rows *rows,
                                              float scale) {
    bool is_larger = false;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float a = x[2 * r], b = x[2 * r + 1];
#pragma unroll
        for (int c = 2; c < turns90::KEYS / 4; c += 2) {
            a = fmaxf(a, x[c / 2 * 4 + 2 * r]);
            b = fmaxf(b, x[c / 2 * 4 + 2 * r + 1]);
        }
        a = fmaxf(a, b);
        a = fmaxf(a, __shfl_xor_sync(0xffffffffu, a, 1));
        a = fmaxf(a, __shfl_xor_sync(0xffffffffu, a, 2));
        a *= scale;
        rows->factor[r] = 1.0f;
        if (a > rows->largest[r] + TURNS90_SLACK) {
            rows->factor[r] = ex2_approx(rows->largest[r] - a);
            rows->largest[r] = a;
            is_larger = true;
        }
        float shift = rows->largest[r] == -INFINITY ? 0.0f : rows->largest[r];
        float sum[2] = {0.0f, 0.0f};
#pragma unroll
        for (int c = 0; c < turns90::KEYS / 4; c++) {
            float *y = &x[c / 2 * 4 + 2 * r + c % 2];
            *y = ex2_approx(fmaf(*y, scale, -shift));
            sum[c % 2] += *y;
        }
        rows->sum[r] = fmaf(rows->sum[r], rows->factor[r], sum[0] + sum[1]);
    }
    return __any_sync(0xffffffffu, is_larger);
}

/* A warpgroup; stages of keys and values follow each other in the ring. */
template <typename T> struct turns90_group {
    char *ring;
    uint64_t *values_there; /* the stages' barriers */
    int group;

    /* Not complete on return. */
    __device__ inline void scores(float (&x)[turns90::KEYS / 2], const char *queries,
                                  int at) const {
        uint64_t a = tile_describe(queries, 16);
        uint64_t b = tile_describe(ring + at * 2 * turns90::TILE, 16);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < turns90::D / 16; k++)
            wgmma_ss<T, turns90::KEYS>(x, tile_move(a, k * 32), tile_move(b, k * 32), k > 0);
        wgmma_commit();
    }
    /* Values after the sequence's end are other rows', which need not be finite. */
    __device__ inline void clear_tail(char *values, int n) const {
        for (int i = n * 8 + (int)threadIdx.x % GROUP; i < turns90::KEYS * 8; i += GROUP)
            *(uint4 *)(values + i * 16) = make_uint4(0, 0, 0, 0);
        shared_fence();
        named_barrier(TURNS90_TAIL + group, GROUP);
    }
    /* acc += weights times the values of a stage that has n keys; likewise. */
    __device__ inline void add(float (&acc)[turns90::D / 2],
                               const uint32_t (&left)[turns90::KEYS / 16][4], const soft90_place &p,
                               int n) const {
        char *values = ring + p.at * 2 * turns90::TILE + turns90::TILE;
        barrier_wait(&values_there[p.at], p.parity);
        if (n < turns90::KEYS) clear_tail(values, n);
        uint64_t b = tile_describe(values, turns90::TILE);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < turns90::KEYS / 16; k++)
            wgmma_rs<T, turns90::D>(acc, left[k], tile_move(b, k * 16 * PART_BYTES), 1);
        wgmma_commit();
    }
    /* The tensor cores take the warpgroups' products in turns, so that one computes exponentials
     * while they work for another.  Group 0 has the first turn. */
    __device__ inline void first_turn() const {
        if (group == 0) named_barrier_arrive(TURNS90_TURN, 2 * GROUP);
    }
    __device__ inline void await_turn() const {
        named_barrier(TURNS90_TURN + group, 2 * GROUP);
    }
    __device__ inline void end_turn() const {
        int next = group + 1 < turns90::GROUPS ? group + 1 : 0;
        named_barrier_arrive(TURNS90_TURN + next, 2 * GROUP);
    }
};

/* The kernel for masks of one span a row, long sequences: a block owns GROUPS x 64 queries of one
 * sequence and head and walks over their keys.  A producer warp loads keys and values by TMA into a
 * ring of pipeline stages that all warpgroups share.
 *
 * Measured with 12 heads, float16, 16 x 2048, no mask, us by replay (H200, 2026-11-16): 444;
 * without turns 478; two warpgroups of 240 registers 531, without turns 546; with every eighth or
 * fourth exponential as a polynomial 459 and 473; the kernel of softmax_sm90_fwd.cuh 581. */
struct dense90 : turns90 {
    static constexpr int STAGES = 4, ROWS = GROUPS * MASK_TILE;
    static constexpr int BYTES = GROUPS * Q_TILE + 2 * STAGES * TILE + 1024; /* room to align */
};

struct dense90_room {
    uint64_t queries;
    uint64_t keys[dense90::STAGES], values[dense90::STAGES]; /* they are there */
    uint64_t free[dense90::STAGES];                          /* all warps are done with the stage */
};

/* Steps of keys. */
typedef struct dense90_steps {
    int begin, end;
} dense90_steps;

/* The steps that any of rows row0 .. row0 + n_rows - 1 sees. */
__device__ static inline dense90_steps dense90_steps_of(const mask_rule &r, int n, int row0,
                                                        int n_rows) {
    if (row0 >= n) return {0, 0};
    mask_span seen = mask_rule_seen(&r, n, row0, min(row0 + n_rows, n));
    return {seen.begin / dense90::KEYS, (seen.end + dense90::KEYS - 1) / dense90::KEYS};
}

/* The producer, one thread. */
__device__ static void dense90_ask(const soft90_job &job, const soft_block &t, dense90_room *room,
                                   char *queries, char *keys) {
    int row0 = t.tile * dense90::ROWS, x = t.head * dense90::D;
    int n_groups = min((t.len - row0 + MASK_TILE - 1) / MASK_TILE, dense90::GROUPS);
    dense90_steps all = dense90_steps_of(job.a.mask.rule, t.len, row0, dense90::ROWS);
    barrier_expect(&room->queries, (uint32_t)(n_groups * dense90::Q_TILE));
    for (int g = 0; g < n_groups; g++)
        tile_load(queries + g * dense90::Q_TILE, &job.q, &room->queries, x,
                  t.row + row0 + g * MASK_TILE);
    int at = 0;
    uint32_t parity = 1;
    for (int i = all.begin; i < all.end; i++) {
        char *to = keys + at * 2 * dense90::TILE;
        int y = t.row + i * dense90::KEYS;
        barrier_wait(&room->free[at], parity);
        barrier_expect(&room->keys[at], dense90::TILE);
        tile_load(to, &job.k, &room->keys[at], x, y);
        barrier_expect(&room->values[at], dense90::TILE);
        tile_load(to + dense90::TILE, &job.v, &room->values[at], x, y);
        if (++at == dense90::STAGES) {
            at = 0;
            parity ^= 1;
        }
    }
}

template <typename T> struct dense90_group : turns90_group<T> {
    const soft90_job &job;
    const soft_block &t;
    dense90_room *room;
    const char *queries; /* the warpgroup's own */
    int row0;

    __device__ inline void hide(float (&x)[dense90::KEYS / 2], const soft90_rows &rows,
                                int step) const {
        const mask_rule *r = &job.a.mask.rule;
        int key0 = step * dense90::KEYS;
        if (mask_rule_span(r, t.len, min(row0 + MASK_TILE, t.len) - 1).begin <= key0 &&
            mask_rule_span(r, t.len, row0).end >= key0 + dense90::KEYS)
            return;
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                int row = rows.row + 8 * i, first = key0 + 64 * h;
                uint64_t word = mask_word(job.a.mask, MASK_BY_RULE, t.len, row, first);
                word >>= threadIdx.x % 4 * 2;
                uint32_t half[2] = {(uint32_t)word, (uint32_t)(word >> 32)};
#pragma unroll
                for (int c = 0; c < 16; c++) {
                    bool is_seen = half[c / 8] & 1u << (c / 2 % 4 * 8 + c % 2);
                    float *score = &x[32 * h + c / 2 * 4 + 2 * i + c % 2];
                    *score = is_seen ? *score : -INFINITY;
                }
            }
    }
    __device__ inline int keys_of(int step) const { /* that there are, or more */
        return t.len - step * dense90::KEYS;
    }
    __device__ inline void skip(soft90_place *p) const {
        barrier_wait(&room->keys[p->at], p->parity);
        barrier_wait(&room->values[p->at], p->parity);
        this->await_turn();
        this->end_turn();
        __syncwarp();
        release(&room->free[p->at]);
        soft90_advance<dense90>(p);
    }
};

template <typename T>
__device__ static inline void dense90_walk(const dense90_group<T> &g, dense90_steps own,
                                           soft90_place *p, soft90_rows *rows,
                                           float (&acc)[dense90::D / 2]) {
    float x[dense90::KEYS / 2];
    uint32_t left[dense90::KEYS / 16][4];
    float scale = g.job.scale;
    barrier_wait(&g.room->keys[p->at], p->parity);
    g.await_turn();
    g.scores(x, g.queries, p->at);
    g.end_turn();
    wgmma_wait<0>();
    g.hide(x, *rows, own.begin);
    turns90_softmax(x, rows, scale);
    pack_left<T, dense90::KEYS>(left, x);
    for (int i = own.begin + 1; i < own.end; i++) {
        soft90_place last = *p;
        soft90_advance<dense90>(p);
        barrier_wait(&g.room->keys[p->at], p->parity);
        g.await_turn();
        g.scores(x, g.queries, p->at);
        g.add(acc, left, last, g.keys_of(i - 1));
        g.end_turn();
        wgmma_wait<1>();
        g.hide(x, *rows, i);
        bool is_larger = turns90_softmax(x, rows, scale);
        wgmma_wait<0>();
        release(&g.room->free[last.at]);
        if (is_larger) soft90_shrink<dense90::D>(acc, *rows);
        pack_left<T, dense90::KEYS>(left, x);
    }
    g.add(acc, left, *p, g.keys_of(own.end - 1));
    wgmma_wait<0>();
    release(&g.room->free[p->at]);
    soft90_advance<dense90>(p);
}

template <typename T>
__device__ static void dense90_compute(const soft90_job &job, const soft_block &t,
                                       dense90_room *room, const char *queries, char *keys) {
    int group = __shfl_sync(0xffffffffu, (int)threadIdx.x / GROUP, 0); /* known to be uniform */
    int row0 = t.tile * dense90::ROWS + group * MASK_TILE;
    dense90_group<T> g = {{keys, room->values, group},       job, t, room,
                          queries + group * dense90::Q_TILE, row0};
    const mask_rule &rule = job.a.mask.rule;
    dense90_steps all = dense90_steps_of(rule, t.len, t.tile * dense90::ROWS, dense90::ROWS);
    dense90_steps own = dense90_steps_of(rule, t.len, row0, MASK_TILE);
    if (own.begin == own.end) own.begin = own.end = all.end;
    soft90_place p = {0, 0};
    soft90_rows rows = {};
    rows.row = t.tile * dense90::ROWS + (int)threadIdx.x / 32 * 16 + (int)threadIdx.x % 32 / 4;
    rows.largest[0] = rows.largest[1] = -INFINITY;
    float acc[dense90::D / 2];
#pragma unroll
    for (int i = 0; i < dense90::D / 2; i++)
        acc[i] = 0.0f;
    g.first_turn();
    barrier_wait(&room->queries, 0);
    for (int i = all.begin; i < own.begin; i++)
        g.skip(&p);
    if (own.begin < own.end) dense90_walk<T>(g, own, &p, &rows, acc);
    for (int i = own.end; i < all.end; i++)
        g.skip(&p);
#pragma unroll
    for (int r = 0; r < 2; r++)
        rows.largest[r] /= job.scale; /* soft90_store's are before alpha */
    soft90_store<T, dense90::D, false>(job.a, t, rows, acc);
}

template <typename T>
__global__ void __launch_bounds__(dense90::THREADS, 1)
    softmax_attn_fwd_dense_sm90_kernel(const __grid_constant__ soft90_job job) {
    extern __shared__ char shared[];
    __shared__ dense90_room room;
    char *queries = shared + (1024 - shared_address(shared) % 1024) % 1024;
    char *keys = queries + dense90::GROUPS * dense90::Q_TILE;
    bool is_asker = threadIdx.x == dense90::GROUPS * GROUP;
    soft_block t = soft_block_find(job.a, job.order);
    if (is_asker) {
        tile_prefetch_map(&job.q);
        tile_prefetch_map(&job.k);
        tile_prefetch_map(&job.v);
        barrier_init(&room.queries, 1);
        for (int i = 0; i < dense90::STAGES; i++) {
            barrier_init(&room.keys[i], 1);
            barrier_init(&room.values[i], 1);
            barrier_init(&room.free[i], dense90::GROUPS * GROUP / 32);
        }
        barrier_init_done();
    }
    __syncthreads();
    grid_launch_next();
    grid_wait();
    soft_block_place(job.a, &t);
    if (t.tile * dense90::ROWS >= t.len) return;
    if (threadIdx.x >= dense90::GROUPS * GROUP) {
        registers_lower<dense90::SMALL_REGISTERS>();
        if (is_asker) dense90_ask(job, t, &room, queries, keys);
    } else {
        registers_raise<dense90::REGISTERS>();
        dense90_compute<T>(job, t, &room, queries, keys);
    }
}

template <typename T> static status launch_dense(backend *be, const softmax_attn_args *a) {
    soft90_job job = {};
    int64_t columns = (int64_t)a->n_heads * dense90::D;
    job.a = *a;
    job.scale = a->alpha * 1.44269504f;
    job.order = soft_order_of(be, a, dense90::ROWS, 1);
    TRY(sm90a_map(&job.q, be->act, a->q, a->n_rows, columns, a->stride_q));
    TRY(sm90a_map_box(&job.k, be->act, a->k, a->n_rows, columns, a->stride_k, PART, dense90::KEYS));
    TRY(sm90a_map_box(&job.v, be->act, a->v, a->n_rows, columns, a->stride_v, PART, dense90::KEYS));
    return cuda_launch_early(be, "the softmax attention", softmax_attn_fwd_dense_sm90_kernel<T>,
                             soft_count_blocks(a, &job.order), dense90::THREADS, dense90::BYTES,
                             job);
}

status cuda_softmax_sm90_dense(backend *be, const softmax_attn_args *a) {
    if (be->act == ACT_BF16) return launch_dense<__nv_bfloat16>(be, a);
    return launch_dense<__half>(be, a);
}

/* The kernel for sequences without a mask: the row tiles of all sequences and heads form one list,
 * of which an item is GROUPS neighbours, one for each warpgroup of a block: no warpgroup is without
 * work where the tiles of a sequence are not a multiple of GROUPS.  An item may have tiles of two
 * neighbouring pairs of sequence and head: keys of both are then loaded in turns, and a warpgroup
 * uses its own. A producer warp loads queries, keys and values by TMA, of the next item while the
 * last one is computed: where sequences are of one length the kernel is persistent, else the
 * hardware balances blocks of one item.
 *
 * 12 heads, float16, us by replay (H200, 2026-11-16), this kernel and the one that was fastest
 * before: 8 x 512 19.6 and 25.2, 8 x 1024 59 and 74, 16 x 2048 439 and 444; blocks of one item 24.4
 * at 8 x 512. */

struct whole90 : turns90 {
    static constexpr int STAGES = 5, Q_STAGES = 2;
    static constexpr int BYTES = Q_STAGES * GROUPS * Q_TILE + 2 * STAGES * TILE + 1024;
};

/* An item as the producer tells it to the warpgroups. */
typedef struct whole90_item {
    int n_a, n_b; /* steps of keys: of its first tile's pair, and of the next pair */
    soft_block t[whole90::GROUPS]; /* the tile of each warpgroup */
    bool is_b[whole90::GROUPS];    /* it is of the next pair */
} whole90_item;

struct whole90_room {
    uint64_t queries[whole90::Q_STAGES], queries_free[whole90::Q_STAGES];
    uint64_t keys[whole90::STAGES], values[whole90::STAGES]; /* they are there */
    uint64_t free[whole90::STAGES];                          /* all warps are done with the stage */
    whole90_item items[whole90::Q_STAGES];                   /* they are there with the queries */
};

typedef struct whole90_job {
    soft90_job soft;
    unsigned n_items, n_tiles; /* row tiles of the longest sequence: at least GROUPS */
} whole90_job;

/* Where a row tile of the list is; of length 0 if there is none. */
__device__ static inline soft_block whole90_tile(const whole90_job &job, unsigned at) {
    unsigned pair = at / job.n_tiles, n_heads = (unsigned)job.soft.a.n_heads;
    soft_block t = {};
    t.b = (int)(pair / n_heads);
    t.head = (int)(pair % n_heads);
    t.tile = (int)(at % job.n_tiles);
    if (t.b < job.soft.a.n_sequences) soft_block_place(job.soft.a, &t);
    return t;
}

__device__ static inline bool whole90_is_there(const soft_block &t) {
    return t.tile * MASK_TILE < t.len;
}

struct whole90_queries { /* the ring of soft90_advance */
    static constexpr int STAGES = whole90::Q_STAGES;
};

__device__ static inline void whole90_ask_keys(const soft90_job &job, whole90_room *room,
                                               char *keys, soft90_place *p, int head, int row) {
    char *to = keys + p->at * 2 * whole90::TILE;
    barrier_wait(&room->free[p->at], p->parity ^ 1);
    barrier_expect(&room->keys[p->at], whole90::TILE);
    tile_load(to, &job.k, &room->keys[p->at], head * whole90::D, row);
    barrier_expect(&room->values[p->at], whole90::TILE);
    tile_load(to + whole90::TILE, &job.v, &room->values[p->at], head * whole90::D, row);
    soft90_advance<whole90>(p);
}

/* Loads the queries of an item, and says what it is. */
__device__ static inline void whole90_ask_queries(const whole90_job &job, whole90_room *room,
                                                  char *queries, unsigned id,
                                                  const soft90_place &q) {
    whole90_item *item = &room->items[q.at];
    unsigned first = id * whole90::GROUPS;
    uint32_t bytes = 0;
    barrier_wait(&room->queries_free[q.at], q.parity ^ 1);
    item->n_a = item->n_b = 0;
#pragma unroll
    for (int g = 0; g < whole90::GROUPS; g++) {
        soft_block t = whole90_tile(job, first + g);
        bool is_b = (first + g) / job.n_tiles > first / job.n_tiles;
        int n = (t.len + whole90::KEYS - 1) / whole90::KEYS;
        item->t[g] = t;
        item->is_b[g] = is_b;
        if (!whole90_is_there(t)) continue;
        *(is_b ? &item->n_b : &item->n_a) = n;
        bytes += whole90::Q_TILE;
    }
    barrier_expect(&room->queries[q.at], bytes);
#pragma unroll
    for (int g = 0; g < whole90::GROUPS; g++) {
        soft_block t = item->t[g];
        if (whole90_is_there(t))
            tile_load(queries + (q.at * whole90::GROUPS + g) * whole90::Q_TILE, &job.soft.q,
                      &room->queries[q.at], t.head * whole90::D, t.row + t.tile * MASK_TILE);
    }
}

/* The producer, one thread. */
__device__ static void whole90_ask(const whole90_job &job, whole90_room *room, char *queries,
                                   char *keys) {
    soft90_place q = {0, 0}, p = {0, 0};
    for (unsigned id = blockIdx.x; id < job.n_items; id += gridDim.x) {
        whole90_ask_queries(job, room, queries, id, q);
        const whole90_item *item = &room->items[q.at];
        int n_a = item->n_a, n_b = item->n_b;
        int head_a = item->t[0].head, row_a = item->t[0].row;
        int head_b = item->t[whole90::GROUPS - 1].head, row_b = item->t[whole90::GROUPS - 1].row;
        soft90_advance<whole90_queries>(&q);
        for (int s = 0; s < n_a || s < n_b; s++) {
            if (s < n_a)
                whole90_ask_keys(job.soft, room, keys, &p, head_a, row_a + s * whole90::KEYS);
            if (s < n_b)
                whole90_ask_keys(job.soft, room, keys, &p, head_b, row_b + s * whole90::KEYS);
        }
    }
}

template <typename T> struct whole90_group : turns90_group<T> {
    whole90_room *room;
    float scale;

    /* n: keys of the step that there are. */
    __device__ inline void hide(float (&x)[whole90::KEYS / 2], int n) const {
        if (n >= whole90::KEYS) return;
        int first = (int)threadIdx.x % 4 * 2;
#pragma unroll
        for (int c = 0; c < whole90::KEYS / 4; c++) {
            if (first + c / 2 * 8 + c % 2 < n) continue;
            x[c / 2 * 4 + c % 2] = x[c / 2 * 4 + 2 + c % 2] = -INFINITY;
        }
    }
    /* A stage whose keys are another warpgroup's. */
    __device__ inline void pass(const soft90_place &p) const {
        barrier_wait(&room->keys[p.at], p.parity);
        __syncwarp();
        release(&room->free[p.at]);
    }
};

/* A warpgroup's walk over the stages of an item: in turn s those of pair a, then of pair b. */
typedef struct whole90_walk {
    soft90_place p; /* the next stage */
    soft90_place own, other;
    bool has_other;
    int s, n_a, n_b;
    bool is_b;

    __device__ inline void next() {
        soft90_place a = p, b;
        bool has_a = s < n_a, has_b = s < n_b;
        if (has_a) soft90_advance<whole90>(&p);
        b = p;
        if (has_b) soft90_advance<whole90>(&p);
        own = is_b ? b : a;
        other = is_b ? a : b;
        has_other = is_b ? has_a : has_b;
        s++;
    }
} whole90_walk;

template <typename T>
__device__ static inline void whole90_own(const whole90_group<T> &g, const char *queries, int len,
                                          whole90_walk *w, soft90_rows *rows,
                                          float (&acc)[whole90::D / 2]) {
    float x[whole90::KEYS / 2];
    uint32_t left[whole90::KEYS / 16][4];
    w->next();
    barrier_wait(&g.room->keys[w->own.at], w->own.parity);
    g.await_turn();
    g.scores(x, queries, w->own.at);
    g.end_turn();
    wgmma_wait<0>();
    g.hide(x, len);
    turns90_softmax(x, rows, g.scale);
    pack_left<T, whole90::KEYS>(left, x);
    if (w->has_other) g.pass(w->other);
    for (int left_keys = len - whole90::KEYS; left_keys > 0; left_keys -= whole90::KEYS) {
        soft90_place last = w->own;
        w->next();
        barrier_wait(&g.room->keys[w->own.at], w->own.parity);
        g.await_turn();
        g.scores(x, queries, w->own.at);
        g.add(acc, left, last, whole90::KEYS);
        g.end_turn();
        wgmma_wait<1>();
        g.hide(x, left_keys);
        bool is_larger = turns90_softmax(x, rows, g.scale);
        wgmma_wait<0>();
        release(&g.room->free[last.at]);
        if (w->has_other) g.pass(w->other);
        if (is_larger) soft90_shrink<whole90::D>(acc, *rows);
        pack_left<T, whole90::KEYS>(left, x);
    }
    g.add(acc, left, w->own, (len - 1) % whole90::KEYS + 1);
    wgmma_wait<0>();
    release(&g.room->free[w->own.at]);
}

template <typename T>
__device__ static void whole90_compute(const whole90_job &job, whole90_room *room,
                                       const char *queries, char *keys) {
    int group = __shfl_sync(0xffffffffu, (int)threadIdx.x / GROUP, 0); /* known to be uniform */
    whole90_group<T> g = {{keys, room->values, group}, room, job.soft.scale};
    soft90_place q = {0, 0};
    whole90_walk w = {};
    g.first_turn();
    for (unsigned id = blockIdx.x; id < job.n_items; id += gridDim.x) {
        const whole90_item *item = &room->items[q.at];
        soft90_rows rows = {};
        rows.largest[0] = rows.largest[1] = -INFINITY;
        float acc[whole90::D / 2];
#pragma unroll
        for (int i = 0; i < whole90::D / 2; i++)
            acc[i] = 0.0f;
        barrier_wait(&room->queries[q.at], q.parity);
        w.is_b = item->is_b[group];
        w.n_a = item->n_a;
        w.n_b = item->n_b;
        w.s = 0;
        bool is_there = whole90_is_there(item->t[group]);
        if (is_there)
            whole90_own<T>(g, queries + (q.at * whole90::GROUPS + group) * whole90::Q_TILE,
                           item->t[group].len, &w, &rows, acc);
        soft_block t = item->t[group];
        __syncwarp();
        release(&room->queries_free[q.at]);
        soft90_advance<whole90_queries>(&q);
        while (w.s < w.n_a || w.s < w.n_b) { /* others' */
            bool has_own = w.s < (w.is_b ? w.n_b : w.n_a);
            w.next();
            g.await_turn();
            g.end_turn();
            if (has_own) g.pass(w.own);
            if (w.has_other) g.pass(w.other);
        }
        if (!is_there) continue;
        rows.row =
            t.tile * MASK_TILE + (int)threadIdx.x % GROUP / 32 * 16 + (int)threadIdx.x % 32 / 4;
#pragma unroll
        for (int r = 0; r < 2; r++)
            rows.largest[r] /= job.soft.scale; /* soft90_store's are before alpha */
        soft90_store<T, whole90::D, false>(job.soft.a, t, rows, acc);
    }
}

template <typename T>
__global__ void __launch_bounds__(whole90::THREADS, 1)
    softmax_attn_fwd_whole_sm90_kernel(const __grid_constant__ whole90_job job) {
    extern __shared__ char shared[];
    __shared__ whole90_room room;
    char *queries = shared + (1024 - shared_address(shared) % 1024) % 1024;
    char *keys = queries + whole90::Q_STAGES * whole90::GROUPS * whole90::Q_TILE;
    bool is_asker = threadIdx.x == whole90::GROUPS * GROUP;
    if (is_asker) {
        tile_prefetch_map(&job.soft.q);
        tile_prefetch_map(&job.soft.k);
        tile_prefetch_map(&job.soft.v);
        for (int i = 0; i < whole90::Q_STAGES; i++) {
            barrier_init(&room.queries[i], 1);
            barrier_init(&room.queries_free[i], whole90::GROUPS * GROUP / 32);
        }
        for (int i = 0; i < whole90::STAGES; i++) {
            barrier_init(&room.keys[i], 1);
            barrier_init(&room.values[i], 1);
            barrier_init(&room.free[i], whole90::GROUPS * GROUP / 32);
        }
        barrier_init_done();
    }
    __syncthreads();
    grid_launch_next();
    grid_wait();
    if (threadIdx.x >= whole90::GROUPS * GROUP) {
        registers_lower<whole90::SMALL_REGISTERS>();
        if (is_asker) whole90_ask(job, &room, queries, keys);
    } else {
        registers_raise<whole90::REGISTERS>();
        whole90_compute<T>(job, &room, queries, keys);
    }
}

template <typename T> static status launch_whole(backend *be, const softmax_attn_args *a) {
    whole90_job job = {};
    int64_t columns = (int64_t)a->n_heads * whole90::D;
    job.soft.a = *a;
    job.soft.scale = a->alpha * 1.44269504f;
    int64_t n_tiles = cuda_div_up(a->max_len, MASK_TILE);
    int64_t n_items = cuda_div_up(n_tiles * a->n_sequences * a->n_heads, whole90::GROUPS);
    job.n_tiles = (unsigned)n_tiles;
    job.n_items = (unsigned)n_items;
    TRY(sm90a_map(&job.soft.q, be->act, a->q, a->n_rows, columns, a->stride_q));
    TRY(sm90a_map_box(&job.soft.k, be->act, a->k, a->n_rows, columns, a->stride_k, PART,
                      whole90::KEYS));
    TRY(sm90a_map_box(&job.soft.v, be->act, a->v, a->n_rows, columns, a->stride_v, PART,
                      whole90::KEYS));
    /* where lengths differ, blocks of one item let the hardware balance them */
    bool is_even = a->n_rows == (int64_t)a->n_sequences * a->max_len;
    int64_t n_blocks = cuda_of(be)->n_multiprocessors;
    if (n_blocks > n_items || !is_even) n_blocks = n_items;
    return cuda_launch_early(be, "the softmax attention", softmax_attn_fwd_whole_sm90_kernel<T>,
                             n_blocks, whole90::THREADS, whole90::BYTES, job);
}

status cuda_softmax_sm90_whole(backend *be, const softmax_attn_args *a) {
    if (be->act == ACT_BF16) return launch_whole<__nv_bfloat16>(be, a);
    return launch_whole<__half>(be, a);
}
