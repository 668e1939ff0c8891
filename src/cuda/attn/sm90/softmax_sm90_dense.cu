/* The forward kernel of the softmax attention on Hopper for masks that are one span of keys a row
 * and hide little, head dimension 64, long sequences (contract: softmax_attn_args in ops/ops.h).
 *
 * A block owns GROUPS x 64 queries of one sequence and head, 64 for each of its warpgroups
 * (softmax_sm90_turns.cuh), and walks over their keys.  A producer warp loads keys and values by
 * TMA into a ring of stages that all warpgroups share.
 *
 * Measured with 12 heads, float16, 16 x 2048, no mask, us by replay (H200, 2026-11-16): 444;
 * without turns 478; two warpgroups of 240 registers 531, without turns 546; with every eighth or
 * fourth exponential as a polynomial 459 and 473; the kernel of softmax_sm90_fwd.cuh 581. */
#include "cuda/attn/sm90/softmax_sm90_turns.cuh"

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
        registers_lower<dense90::FEW_REGISTERS>();
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
    CUDA_TRY(CUDA_ALLOW_SHARED(softmax_attn_fwd_dense_sm90_kernel<T>, dense90::BYTES));
    CUDA_TRY(sm90a_launch_early(softmax_attn_fwd_dense_sm90_kernel<T>,
                                soft_count_blocks(a, &job.order), dense90::THREADS, dense90::BYTES,
                                cuda_of(be)->stream, job));
    return cuda_launched("the softmax attention");
}

status cuda_softmax_sm90_dense(backend *be, const softmax_attn_args *a) {
    if (be->act == ACT_BF16) return launch_dense<__nv_bfloat16>(be, a);
    return launch_dense<__half>(be, a);
}
