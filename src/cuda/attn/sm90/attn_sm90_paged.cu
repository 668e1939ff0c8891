/* HSTU attention, forward, on Hopper over keys in pages, and for few queries and many keys
 * (contract: attn_args in ops/ops.h): the kernel of attn_sm90_fwd.cuh with another producer and
 * another scheduler, which calls it takes, and how the work of a call is cut.
 *
 * A tile of keys is a page of 64, which TMA loads from where the page table says, or 64 rows of k
 * and v.  Columns of scores count the pages' rows first, to the end of the last page, and then the
 * rows of k and v, so that no tile has keys of both; columns without a key (fwd_unit.pad) are
 * masked.  The rows of a page after the last key must hold finite numbers, which are multiplied by
 * 0.
 *
 * One block a multiprocessor.  Where there are fewer tiles of queries than would fill the GPU, the
 * work is cut along the keys (attn_sm90_paged.cuh).  The parts of a sum go to memory, rounded
 * like results, and are added in float32 in the order of their keys by a second kernel:
 * HSTU's attention has no softmax, so nothing else is needed.
 *
 * A list that a previous layer has made lets a block load its first pages before the previous
 * kernel is complete.
 *
 * Bound by the tensor cores or, for few queries, by the bytes of the keys. */
#include "cuda/attn/sm90/attn_sm90_paged.cuh"

/* Boxes are all columns of a head: 64 rows, or a page. */
typedef struct paged_maps {
    CUtensorMap q, k, v, pages_k, pages_v;
    CUtensorMap u; /* of the gate, if there is one */
} paged_maps;

/* Whether there is a kernel with the gate inside: where it was measured. */
template <typename S> constexpr bool PAGED_CAN_GATE = S::D == 256 && S::BUFFERS == 1;

/* Announces a unit; by a warp, which then waits for the previous kernel, if it has not yet. */
template <typename S>
__device__ static inline void paged_tell(const fwd_unit &u, fwd_room<S> *room, unsigned n_told) {
    if (threadIdx.x % 32 == 0) {
        room->units[n_told % S::UNITS] = u;
        barrier_arrive(&room->told);
    }
    if (n_told == 0) grid_wait();
}

/* Waits until the next unit is wanted. */
template <typename S>
__device__ static inline void paged_wait_wanted(fwd_room<S> *room, unsigned &n_told) {
    barrier_wait(&room->wanted, n_told++ % 2);
}

template <typename S>
__device__ static inline void paged_tell_end(fwd_room<S> *room, unsigned n_told) {
    if (threadIdx.x % 32 != 0) return;
    room->units[n_told % S::UNITS].s.b = -1;
    barrier_arrive(&room->told);
}

/* Units with all their keys, dequeued from a counter. */
template <typename S>
__device__ static void paged_find_whole(const attn_args &a, const attn_tiles &tiles,
                                        const paged_plan &plan, fwd_room<S> *room) {
    int n_units = tiles_count(tiles), n = (int)blockIdx.x, lane = (int)threadIdx.x % 32;
    bool is_shared = n_units > (int)gridDim.x;
    unsigned n_told = 0;
    while (n < n_units) {
        tiles_unit tile = tiles_find(tiles, n);
        fwd_unit u;
        paged_sequence(a, plan, tile.b, u);
        if (tile.row0 < u.s.len_q) {
            paged_rows<S>(a, tile.row0, tile.head, 0, INT32_MAX, u);
            u.part = -1;
            paged_first_pages<S>(a, u);
            paged_tell<S>(u, room, n_told);
            paged_wait_wanted<S>(room, n_told);
        }
        n = n_units;
        if (n_told == 0) grid_wait(); /* the counter is zero only then */
        if (is_shared && lane == 0) n = tiles_take(tiles);
        n = __shfl_sync(0xffffffffu, n, 0);
    }
    grid_wait();
    paged_tell_end<S>(room, n_told);
    if (lane == 0 && is_shared) tiles_done(tiles);
}

enum { PAGED_WORDS = sizeof(fwd_unit) / 4 };
static_assert(PAGED_WORDS <= 32 && sizeof(fwd_unit) % 4 == 0, "a word a lane");

/* A lane's word of the block's first unit, if lists are there already. */
__device__ static inline int paged_first_word(const paged_plan &plan) {
    int lane = (int)threadIdx.x % 32;
    if (!plan.is_early || lane >= PAGED_WORDS) return 0;
    return __ldcg((const int *)(plan.units + (int64_t)blockIdx.x * plan.n_list) + lane);
}

/* A lane's word of the block's next unit: the next one of its own list, at `from`, or, dequeued,
 * of that of all blocks; below 0 in lane 0: there is none. */
__device__ static inline int paged_next_word(const attn_tiles &tiles, const paged_plan &plan,
                                             const int *&from) {
    int lane = (int)threadIdx.x % 32, n = INT32_MAX;
    if (plan.n_parts == 0) {
        from += PAGED_WORDS;
    } else {
        if (lane == 0 && plan.n_parts > (int)gridDim.x) n = tiles_take(tiles);
        n = __shfl_sync(0xffffffffu, n, 0);
        if (n >= plan.n_parts) return -1;
        from = (const int *)(plan.units + n);
    }
    return lane < PAGED_WORDS ? __ldcg(from + lane) : 0;
}

/* Announces the block's units, by a warp, each when it is wanted; `word`: see paged_first_word. */
template <typename S>
__device__ static void paged_find_listed(const attn_tiles &tiles, const paged_plan &plan,
                                         fwd_room<S> *room, int word) {
    int lane = (int)threadIdx.x % 32;
    const int *from = (const int *)(plan.units + (int64_t)blockIdx.x * plan.n_list);
    bool is_own = plan.n_parts == 0; /* then the next one is known before it is wanted */
    if (!plan.is_early) word = lane < PAGED_WORDS ? __ldcg(from + lane) : 0;
    for (unsigned n = 0;; n++) {
        fwd_unit *to = &room->units[n % S::UNITS];
        bool is_last = __shfl_sync(0xffffffffu, word, 0) < 0;
        if (lane < PAGED_WORDS) ((int *)to)[lane] = word;
        __syncwarp();
        if (lane == 0) barrier_arrive(&room->told);
        if (is_last) break;
        if (is_own) word = paged_next_word(tiles, plan, from);
        if (n == 0) grid_wait();
        barrier_wait(&room->wanted, n % 2);
        if (!is_own) word = paged_next_word(tiles, plan, from);
    }
    if (lane == 0 && plan.n_parts > (int)gridDim.x) {
        grid_wait(); /* the counter is zero only then */
        tiles_done(tiles);
    }
}

/* Loads the keys or values of a tile of columns from j on. */
template <typename S>
__device__ static inline void paged_load(char *to, const CUtensorMap *rows,
                                         const CUtensorMap *pages, uint64_t *barrier,
                                         const fwd_unit *u, int j, int page) {
    int head = u->head * (S::D / PART);
    barrier_expect(barrier, (uint32_t)S::TILE);
    if (page >= 0)
        tile_load_4d(to, pages, barrier, 0, 0, head, page);
    else
        tile_load_3d(to, rows, barrier, 0, u->row_new + j, head);
}

/* Queries of warpgroups group .. end - 1; rows after the last one are not stored. */
template <typename S>
__device__ static inline void paged_ask_queries(const paged_maps &maps, const fwd_unit *u,
                                                fwd_room<S> *room, char *queries,
                                                const fwd_ring<S::BUFFERS> &r, int group, int end) {
    for (; group < end; group++) {
        uint64_t *full = &room->queries[r.at][group];
        barrier_wait(&room->queries_free[r.at][group], r.parity ^ 1);
        barrier_expect(full, (uint32_t)S::QUERIES);
        tile_load_3d(queries + (r.at * S::GROUPS + group) * S::QUERIES, &maps.q, full, 0,
                     u->s.row_q + u->row0 + group * 64, u->head * (S::D / PART));
    }
}

/* The first pages of the block's first unit, before the previous kernel is complete: queries and
 * new keys are its results, pages are not.  Returns how many tiles. */
template <typename S>
__device__ static inline int paged_ask_ahead(const paged_maps &maps, const fwd_unit *u,
                                             fwd_room<S> *room, char *keys) {
    static_assert(S::STAGES >= 2, "two pages ahead");
    int n = 0;
    for (int page = u->full.begin; n < 2 && page >= 0; page = u->full.end) {
        paged_load<S>(keys + n * S::TILE, &maps.k, &maps.pages_k, &room->keys[n], u, 0, page);
        paged_load<S>(keys + (S::STAGES + n) * S::TILE, &maps.v, &maps.pages_v, &room->values[n], u,
                      0, page);
        n++;
    }
    return n;
}

/* u of the unit's gate, in the place of its queries, when all their products are done. */
template <typename S>
__device__ static inline void paged_ask_gate(const paged_maps &maps, const fwd_unit *u,
                                             fwd_room<S> *room, char *queries,
                                             gate_room<S::D> *gate, unsigned n_units) {
    fwd_ring<S::BUFFERS> r = fwd_buffer<S>(n_units);
    for (int group = 0; group < S::GROUPS; group++) {
        barrier_wait(&room->queries_free[r.at][group], r.parity ^ 1);
        barrier_expect(&gate[group].full, (uint32_t)S::QUERIES);
        tile_load_3d(queries + (r.at * S::GROUPS + group) * S::QUERIES, &maps.u, &gate[group].full,
                     0, u->s.row_q + u->row0 + group * 64, u->head * (S::D / PART));
    }
}

/* Loads one unit; like fwd_ask_unit. */
template <typename S>
__device__ static inline void paged_ask_unit(const attn_args &a, const paged_maps &maps,
                                             const fwd_unit *u, fwd_room<S> *room, char *queries,
                                             char *keys, fwd_place<S> &p) {
    int n_asked = 1, n_ahead = p.unit == 0 ? paged_ask_ahead<S>(maps, u, room, keys) : 0;
    bool is_wanted = false;
    char *values = keys + S::STAGES * S::TILE;
    const int32_t *table = a.pages.table + (int64_t)u->s.b * a.pages.max_pages;
    fwd_ring<S::BUFFERS> buffer = fwd_buffer<S>(p.unit);
    if (p.unit == 0) grid_wait();
    paged_ask_queries<S>(maps, u, room, queries, buffer, 0, 1);
    for (int j = fwd_next<S>(u, u->begin); j < u->end; j = fwd_next<S>(u, j + S::KEYS)) {
        int at = p.keys.at, page = j < u->n_paged ? __ldg(table + j / PAGED_TILE) : -1;
        bool is_asked = n_ahead-- > 0;
        if (!is_asked) {
            barrier_wait(&room->keys_free[at], p.keys.parity ^ 1);
            paged_load<S>(keys + at * S::TILE, &maps.k, &maps.pages_k, &room->keys[at], u, j, page);
        }
        paged_ask_queries<S>(maps, u, room, queries, buffer, n_asked, S::GROUPS);
        n_asked = S::GROUPS;
        if (!is_wanted && u->end - j <= S::AHEAD) {
            barrier_arrive(&room->wanted);
            is_wanted = true;
        }
        if (!is_asked) {
            barrier_wait(&room->values_free[at], p.keys.parity ^ 1);
            paged_load<S>(values + at * S::TILE, &maps.v, &maps.pages_v, &room->values[at], u, j,
                          page);
        }
        advance(p.keys);
    }
    paged_ask_queries<S>(maps, u, room, queries, buffer, n_asked, S::GROUPS);
    if (!is_wanted) barrier_arrive(&room->wanted);
}

template <typename S, bool HAS_GATE>
__device__ static void paged_ask(const attn_args &a, const paged_maps &maps, fwd_room<S> *room,
                                 char *queries, char *keys, gate_room<S::D> *gate) {
    fwd_place<S> p = {};
    tile_prefetch_map(&maps.q);
    tile_prefetch_map(&maps.k);
    tile_prefetch_map(&maps.v);
    if (a.pages.table != NULL) {
        tile_prefetch_map(&maps.pages_k);
        tile_prefetch_map(&maps.pages_v);
    }
    for (;; p.unit++) {
        const fwd_unit *u = &room->units[p.unit % S::UNITS];
        barrier_wait(&room->told, p.unit % 2);
        if (u->s.b < 0) break;
        paged_ask_unit<S>(a, maps, u, room, queries, keys, p);
        if constexpr (HAS_GATE)
            if (u->part == PAGED_GATED) paged_ask_gate<S>(maps, u, room, queries, gate, p.unit + 1);
    }
    grid_wait();
    fwd_ring<S::BUFFERS> buffer = fwd_buffer<S>(p.unit);
    for (int group = 0; group < S::GROUPS; group++) {
        barrier_wait(&room->queries_free[buffer.at][group], buffer.parity ^ 1);
        barrier_arrive(&room->queries[buffer.at][group]);
    }
}

/* Stores a warpgroup's part of a sum. */
template <typename T, typename S>
__device__ static inline void paged_store_part(const paged_plan &plan, int part, int row,
                                               float scale, const float (&out)[S::D / 2]) {
    int64_t first = (int64_t)part * (S::ROWS * S::D);
    if (!plan.are_floats) {
        fwd_store<T, S::D>((T *)plan.parts + first, S::D, row, S::ROWS, scale, out);
        return;
    }
    float *to = (float *)plan.parts + first + row * S::D + 2 * (threadIdx.x % 4);
#pragma unroll
    for (int e = 0; e < S::D / 2; e += 2)
        *(float2 *)(to + e / 2 % 2 * 8 * S::D + e / 4 * 8) =
            make_float2(out[e] * scale, out[e + 1] * scale);
}

/* Like fwd_compute. */
template <typename T, typename S, bool HAS_GATE>
__device__ static void paged_compute(const attn_args &a, const paged_plan &plan, fwd_room<S> *room,
                                     const char *queries, const char *keys, gate_room<S::D> *gate) {
    int group = __shfl_sync(0xffffffffu, (int)threadIdx.x / GROUP, 0); /* known to be uniform */
    fwd_place<S> p = {};
    fwd_own<S> own;
    own.half = 0.5f * a.alpha;
    for (;;) {
        fwd_ring<S::BUFFERS> buffer = fwd_buffer<S>(p.unit);
        barrier_wait(&room->queries[buffer.at][group], buffer.parity);
        const fwd_unit *u = own.unit = &room->units[p.unit % S::UNITS];
        if (u->s.b < 0) break;
        if (HAS_GATE && u->part == PAGED_GATED) gate_start<S::GROUPS>(plan, u->head, group);
        int first = u->row0 + group * 64;
        attn_span seen = paged_seen(a, *u, first, 64);
        own.row = first + (int)threadIdx.x % GROUP / 32 * 16 + (int)threadIdx.x % 32 / 4;
        own.full = attn_keys_full(&a, &u->s, first, 64);
        own.queries = queries + (buffer.at * S::GROUPS + group) * S::QUERIES;
        own.queries_free = &room->queries_free[buffer.at][group];
        float out[S::D / 2];
#pragma unroll
        for (int i = 0; i < S::D / 2; i++)
            out[i] = 0;
        int j = fwd_next<S>(u, u->begin);
        j = fwd_skip<S>(u, j, seen.begin, room, p.keys);
        own.end = min(u->end, seen.end);
        if (j >= own.end) {
            __syncwarp();
            release(own.queries_free);
        } else {
            j = fwd_sum_piped<T, S>(a, own, j, room, keys, p.keys, out);
        }
        if (u->part >= 0) {
            paged_store_part<T, S>(plan, u->part, own.row - u->row0, a.scale, out);
        } else if (u->part == PAGED_GATED) {
            if constexpr (HAS_GATE) {
                /* Before the gate, whose u is loaded after all keys: the other warpgroup may need
                 * the stages of those that this one does not see. */
                j = fwd_skip<S>(u, j, INT32_MAX, room, p.keys);
                gate_whole<T, S>(plan, u, a.scale, a.n_heads, group, own.queries, &gate[group],
                                 out);
            }
        } else {
            T *to = (T *)a.out + (int64_t)u->s.row_q * a.stride_out + u->head * S::D;
            fwd_store<T, S::D>(to, a.stride_out, own.row, u->s.len_q, a.scale, out);
        }
        fwd_skip<S>(u, j, INT32_MAX, room, p.keys);
        p.unit++;
    }
}

/* HAS_GATE: units may be PAGED_GATED. */
template <typename T, typename S, bool HAS_GATE>
__global__ void __launch_bounds__(S::THREADS, 1)
    attn_fwd_paged_sm90_kernel(const __grid_constant__ attn_args a,
                               const __grid_constant__ attn_tiles tiles,
                               const __grid_constant__ paged_plan plan,
                               const __grid_constant__ paged_maps maps) {
    using registers = fwd_registers<S::GROUPS, 1, PAGED_REGISTERS>;
    extern __shared__ char shared[];
    __shared__ fwd_room<S> room;
    __shared__ gate_room<S::D> gate[S::GROUPS];
    char *queries = shared + (1024 - shared_address(shared) % 1024) % 1024;
    char *keys = queries + S::BUFFERS * S::GROUPS * S::QUERIES;
    if (HAS_GATE && threadIdx.x < S::GROUPS) {
        barrier_init(&gate[threadIdx.x].full, 1);
        barrier_init_done();
    }
    int word = threadIdx.x >= S::THREADS - 32 ? paged_first_word(plan) : 0;
    fwd_begin<S>(&room, keys);
    if (plan.is_early)
        grid_launch_next(); /* else a later kernel could read unfinished lists */
    else
        grid_wait();
    if (threadIdx.x >= S::GROUPS * GROUP) {
        registers_lower<registers::LOWERED>();
        if (threadIdx.x == S::GROUPS * GROUP) {
            paged_ask<S, HAS_GATE>(a, maps, &room, queries, keys, gate);
        } else if (threadIdx.x >= S::THREADS - 32) {
            if (plan.units != NULL)
                paged_find_listed<S>(tiles, plan, &room, word);
            else
                paged_find_whole<S>(a, tiles, plan, &room);
            grid_wait();
        } else {
            grid_wait();
        }
    } else {
        registers_raise<registers::RAISED>();
        grid_wait();
        paged_compute<T, S, HAS_GATE>(a, plan, &room, queries, keys, gate);
    }
}

/* Tile sizes.  Shared memory, in KB a block: queries + keys and values
 *     D = 64: 32 + 4 x 2 x 8 = 96    D = 128: 64 + 3 x 2 x 16 = 160    D = 256: 64 + 2 x 2 x 32 =
 * 192
 */
struct paged_sizes : fwd_sizes {
    static constexpr int GROUPS = 2;
    static constexpr bool IS_PIPED = true, IS_PAGED = true;
};
struct paged_d64 : paged_sizes {
    static constexpr int D = 64, STAGES = 4;
};
struct paged_d128 : paged_sizes {
    static constexpr int D = 128, STAGES = 3;
};
struct paged_d256 : paged_sizes {
    static constexpr int D = 256, BUFFERS = 1;
};

static bool has_few_units(const backend *be, const attn_args *a) {
    int64_t n_units = (int64_t)a->n_sequences * a->n_heads * cuda_div_up(a->max_len_q, 128);
    return n_units < 2 * cuda_of(be)->n_multiprocessors;
}

/* Whether there is a kernel that adds parts: a block has a row. */
static bool can_add(const attn_args *a) {
    return a->n_heads * a->dim_v <= 32 * SUM_WARPS * SUM_COLUMNS &&
           is_addressable(a->out, a->stride_out);
}

/* Parts at most of units that are cut each by itself, or 0: so few that each has two parts at least
 * or, where the last tiles of queries see many more keys than the first, as many as leave something
 * to balance (measured at head dimension 256).
 *
 * us of a layer (H200, 2026-11-17; bfloat16, 4 heads of dimension 256, one user, all new but for
 * 256 candidates; "whole": attn_sm90_fwd.cuh, 2,048 rows and less the line of attn_sm90_small.cu or
 * of groups):
 *     rows            1026   1282   1538   2050   2306   2818   3330   3842   4352
 *     whole           51.8   62.1   52.2   89.6  102.7  112.5  133.6  156.6  173.4
 *     a part a block  39.6   46.9   52.5   67.4   81.6   97.9      -      -      -
 *     two                -      -      -   71.5   82.5   96.0  110.9  132.5  148.5 */
static int paged_parts_of(const backend *be, const attn_args *a) {
    int n_blocks = cuda_of(be)->n_multiprocessors, n_tiles = (int)cuda_div_up(a->max_len_q, 128);
    int64_t n_units = (int64_t)a->n_sequences * a->n_heads * n_tiles;
    bool is_tall = a->dim_qk == 256 && n_tiles >= PAGED_TALL;
    if (n_units > PAGED_EVEN) return 0;
    if (2 * n_units <= n_blocks) return n_blocks;
    return is_tall && 2 * n_units <= 3 * n_blocks ? 2 * n_blocks : 0;
}

/* Whether cutting the keys pays where no gate follows and no lists are left by the layer before:
 * lists and sums take 20 us and 1.2 a sequence more than the block with the most keys would take
 * alone, at the times below for 64 keys (us, H200, 2026-11-18, 104 shapes drawn at random; tiles of
 * queries see half of the keys on average). */
static bool pays(const backend *be, const attn_args *a) {
    if (a->gate != NULL || a->is_repeated) return true;
    double tile = a->dim_qk == 64 ? 0.7 : a->dim_qk == 128 ? 0.9 : 1.3;
    double whole = tile * a->max_len_k / 64;
    double n_units = (double)(a->n_rows_q / 128 + a->n_sequences) * a->n_heads;
    return whole * (1 - n_units / (2 * cuda_of(be)->n_multiprocessors)) > 20 + 1.2 * a->n_sequences;
}

/* Few queries and so many keys that cutting them pays.  Not in deterministic mode: where a sum is
 * cut depends on the batch, and ranks with parts of a batch must have the bits of one with all. */
static bool can_cut(const backend *be, const attn_args *a) {
    bool are_few = has_few_units(be, a) && cuda_div_up(a->max_len_q, 128) <= PAGED_WIDEST;
    return a->max_len_k > 512 && can_add(a) && !cuda_of(be)->is_deterministic &&
           (are_few || paged_parts_of(be, a) > 0) && pays(be, a);
}

/* Pages of 64 keys, or keys that can be cut.  In float16 the keys of pages are copied first. */
bool cuda_attn_sm90_can_page(const backend *be, const attn_args *a) {
    int d = a->dim_qk;
    const attn_pages *p = &a->pages;
    if (be->act != ACT_BF16 || (d != 64 && d != 128 && d != 256)) return false;
    if (a->bias != BIAS_NONE || a->func != NULL) return false;
    if (!cuda_attn_sm90_can_fwd(be, a)) return false;
    if (p->table == NULL) return can_cut(be, a);
    return p->page_len == PAGED_TILE && p->n_pages > 0 && is_addressable(p->k, p->stride) &&
           is_addressable(p->v, p->stride);
}

/* How the work is cut.  The blocks of a group read the same keys at the same time, which the L2
 * cache delivers faster than as many different ones: on an H200 (2026-11-16) a tile took 2.4 us in
 * groups of one block, where the keys fit the cache, and 1.7 us in groups of three, where they did
 * not. */
template <typename S> static void cut(const backend *be, const attn_args *a, paged_plan *plan) {
    int n_blocks = cuda_of(be)->n_multiprocessors;
    int n_tiles = (int)cuda_div_up(a->max_len_q, S::ROWS);
    bool are_some = (int64_t)a->n_sequences * a->n_heads * n_tiles < 4 * n_blocks;
    plan->width = 0;
    if (a->max_len_k <= 512 || !can_add(a)) return;
    plan->n_parts = paged_parts_of(be, a);
    if (plan->n_parts > 0) {
        plan->width = 1;
        plan->n_groups = n_blocks;
        plan->n_row_groups = n_tiles;
        return;
    }
    if (n_tiles > PAGED_WIDEST) return;
    if (!has_few_units(be, a) && !(n_tiles > 1 && are_some)) return;
    plan->width = n_tiles;
    plan->n_groups = n_blocks / plan->width;
    plan->n_row_groups = (int)cuda_div_up(n_tiles, plan->width);
}

/* Whether the kernel that adds parts can be the gate, too. */
static bool can_gate(const attn_args *a) {
    const gate_args *g = a->gate;
    return g != NULL && g->drop.rate == 0 && g->cut == NULL && g->dim == a->n_heads * a->dim_v &&
           g->dim % (32 * SUM_COLUMNS) == 0 && g->o == a->out && a->stride_out == g->dim &&
           is_addressable(g->u, g->stride_u) && is_addressable(g->y, g->dim) &&
           (uintptr_t)g->weight % 16 == 0 && (uintptr_t)g->bias % 16 == 0;
}

/* The tensor map of pages: a box is all columns of a head in one. */
static status map_pages(CUtensorMap *map, const backend *be, const attn_args *a, const void *rows) {
    return sm90a_map_pages(map, be->act, rows, (int64_t)a->n_heads * a->dim_qk, PAGED_TILE,
                           a->pages.n_pages, a->pages.stride, PAGED_TILE, a->dim_qk);
}

template <typename S> static status map_inputs(backend *be, const attn_args *a, paged_maps *maps) {
    memset(maps, 0, sizeof *maps);
    int64_t columns = (int64_t)a->n_heads * S::D;
    TRY(sm90a_map_heads(&maps->q, be->act, a->q, a->n_rows_q, columns, a->stride_q, PART, 64,
                        S::D));
    TRY(sm90a_map_heads(&maps->k, be->act, a->k, a->n_rows_k, columns, a->stride_k, PART,
                        PAGED_TILE, S::D));
    TRY(sm90a_map_heads(&maps->v, be->act, a->v, a->n_rows_k, columns, a->stride_v, PART,
                        PAGED_TILE, S::D));
    if (can_gate(a))
        TRY(sm90a_map_heads(&maps->u, be->act, a->gate->u, a->n_rows_q, columns, a->gate->stride_u,
                            PART, 64, S::D));
    if (a->pages.table == NULL) return OK;
    TRY(map_pages(&maps->pages_k, be, a, a->pages.k));
    return map_pages(&maps->pages_v, be, a, a->pages.v);
}

/* The gate of units that have all their keys, where that can happen: see paged_list_share. */
template <typename S> static paged_gate gate_of(const attn_args *a, const paged_plan *plan) {
    paged_gate g = {};
    if (!PAGED_CAN_GATE<S> || a->n_heads > GATE_HEADS || !can_gate(a) || plan->n_parts > 0)
        return g;
    int64_t n_most = (int64_t)a->n_sequences * plan->n_row_groups * a->n_heads;
    if (!paged_fills(n_most, plan->n_groups)) return g;
    g.u = a->gate->u, g.stride_u = a->gate->stride_u;
    g.weight = a->gate->weight, g.bias = a->gate->bias, g.y = a->gate->y;
    g.mean = a->gate->mean, g.rstd = a->gate->rstd, g.eps = a->gate->eps;
    return g;
}

/* Memory for the parts, and for the moments of rows. */
template <typename S> static status make_room(backend *be, int n_blocks, paged_plan *plan) {
    size_t n = (size_t)(plan->n_parts > 0 ? plan->n_parts : 2 * n_blocks);
    size_t size = plan->are_floats ? sizeof(float) : act_bytes(be->act);
    size_t bytes = cuda_align(n * S::ROWS * S::D * size);
    size_t more = (size_t)n_blocks * S::ROWS * sizeof *plan->gate.moments;
    TRY(cuda_scratch(be, bytes + more, &plan->parts));
    plan->gate.moments = (float2 *)((char *)plan->parts + bytes);
    return OK;
}

/* All that lists depend on. */
static void list_key(const attn_args *a, const paged_plan *plan, int n_blocks,
                     uint64_t (&key)[16]) {
    const uint64_t all[16] = {(uint64_t)a->n_sequences << 32 | (uint32_t)a->n_heads,
                              (uint64_t)a->dim_qk << 32 | (uint32_t)n_blocks,
                              (uint64_t)a->max_len_q << 32 | (uint32_t)a->max_len_k,
                              (uint64_t)(uintptr_t)a->offsets_q,
                              (uint64_t)(uintptr_t)a->offsets_k,
                              (uint64_t)(uintptr_t)plan->offsets_new,
                              (uint64_t)(uintptr_t)a->n_contexts,
                              (uint64_t)(uintptr_t)a->n_targets,
                              (uint64_t)a->window_left << 32 | (uint32_t)a->window_right,
                              (uint64_t)a->target_group,
                              (uint64_t)a->n_rows_q,
                              (uint64_t)(uintptr_t)a->pages.table,
                              (uint64_t)a->pages.max_pages,
                              (uint64_t)plan->width << 32 | (uint32_t)plan->n_list,
                              (uint64_t)(plan->gate.y != NULL) << 32 | (uint32_t)plan->n_parts};
    memcpy(key, all, sizeof all);
}

/* The lists of units of all blocks: those of the last call where nothing has changed. */
template <typename S>
static status make_lists(backend *be, const attn_args *a, int n_blocks, int64_t n_units,
                         paged_plan *plan) {
    cuda_state *state = cuda_of(be);
    uint64_t key[16];
    int n_lists = plan->n_parts > 0 ? plan->n_parts : n_blocks;
    plan->n_list = plan->n_parts > 0 ? 1 : a->n_sequences * plan->n_row_groups * a->n_heads + 1;
    size_t bytes = cuda_align((size_t)n_lists * (size_t)plan->n_list * sizeof(fwd_unit));
    size_t more = cuda_align((size_t)n_units * sizeof(paged_split));
    size_t words = (size_t)(n_blocks * S::GROUPS) * sizeof *plan->gate.words;
    list_key(a, plan, n_blocks, key);
    TRY(cuda_list_scratch(be, bytes + more + words, (void **)&plan->units));
    plan->splits = (paged_split *)((char *)plan->units + bytes);
    if (plan->gate.y != NULL) plan->gate.words = (uint64_t *)((char *)plan->units + bytes + more);
    plan->is_early = a->is_repeated && memcmp(key, state->list_key, sizeof key) == 0;
    if (plan->is_early) return OK;
    memcpy(state->list_key, key, sizeof key);
    using any = fwd_shape<paged_d64>; /* one kernel for all head dimensions */
    static_assert(S::ROWS == any::ROWS && S::KEYS == any::KEYS, "tiles of the same size");
    return cuda_launch_early(be, "the lists of the attention over pages",
                             attn_list_sm90_kernel<any>, n_lists, 32, 0, *a, *plan);
}

template <typename T, typename S>
static status add_parts(backend *be, const attn_args &a, const paged_plan &plan, int64_t n_units) {
    int64_t n_rows = n_units / a.n_heads * S::ROWS;
    int n_threads = a.n_heads * S::D / SUM_COLUMNS;
    sum_job j = {};
    j.splits = plan.splits, j.parts = plan.parts, j.is_early = plan.is_early;
    j.offsets_q = a.offsets_q, j.out = a.out, j.stride_out = a.stride_out;
    j.n_heads = a.n_heads, j.n_tiles = plan.n_row_groups * plan.width, j.dim_head = S::D;
    static_assert(S::ROWS == 128, "rows of a tile in the kernel");
    if (can_gate(&a)) {
        const gate_args *g = a.gate;
        j.eps = g->eps, j.dim = g->dim, j.u = g->u, j.stride_u = g->stride_u;
        j.weight = g->weight, j.bias = g->bias, j.y = g->y, j.mean = g->mean, j.rstd = g->rstd;
        /* Where nothing may be left to add, no more blocks than the GPU has room for: the others
         * would have to start and end after the attention, for 4 us of 8 users x 512 rows. */
        int64_t n_most = cuda_of(be)->n_multiprocessors * (SUM_THREADS / n_threads);
        if (plan.gate.words != NULL && n_rows > n_most)
            return cuda_launch_early(be, "the sums of the attention",
                                     attn_sum_rows_sm90_kernel<T, SUM_FEWER>, n_most, n_threads, 0,
                                     j, (int)n_rows);
        bool is_many = a.n_rows_q > SUM_ROWS * cuda_of(be)->n_multiprocessors;
        return cuda_launch_early(be, "the sums of the attention",
                                 is_many ? attn_sum_parts_sm90_kernel<T, true, SUM_FEWER>
                                         : attn_sum_parts_sm90_kernel<T, true, SUM_AHEAD>,
                                 n_rows, n_threads, 0, j);
    }
    TRY((cuda_launch_early(be, "the sums of the attention",
                           attn_sum_parts_sm90_kernel<T, false, SUM_FEWER>, n_rows, n_threads, 0,
                           j)));
    return a.gate != NULL ? cuda_gate_fwd(be, a.gate) : OK;
}

template <typename T, typename S> static status launch(backend *be, const attn_args *from) {
    cuda_state *state = cuda_of(be);
    attn_args a = *from;
    paged_plan plan = {};
    paged_maps maps;
    attn_tiles tiles = {};
    plan.offsets_new = a.offsets_k;
    if (a.pages.table != NULL) a.offsets_k = a.pages.offsets; /* masks are of all keys */
    cut<S>(be, &a, &plan);
    TRY(map_inputs<S>(be, &a, &maps));
    int n_blocks = plan.width * plan.n_groups;
    int64_t n_units = (int64_t)a.n_sequences * plan.n_row_groups * plan.width * a.n_heads;
    if (plan.width > 0) {
        plan.gate = gate_of<S>(&a, &plan);
        plan.are_floats = !can_gate(&a);
        TRY(make_room<S>(be, n_blocks, &plan));
        TRY(make_lists<S>(be, &a, n_blocks, n_units, &plan));
        tiles.counter = state->counters;
    } else {
        tiles = tiles_make(&a, a.offsets_q, a.max_len_q, a.n_rows_q, S::ROWS, a.max_len_k,
                           2 * S::D * (int)sizeof(T));
        if (tiles.n_units == 0) return a.gate != NULL ? cuda_gate_fwd(be, a.gate) : OK;
        tiles.counter = state->counters;
        n_blocks = state->n_multiprocessors;
        if (n_blocks > tiles.n_units) n_blocks = tiles.n_units;
    }
    auto kernel = plan.gate.y != NULL ? attn_fwd_paged_sm90_kernel<T, S, PAGED_CAN_GATE<S>>
                                      : attn_fwd_paged_sm90_kernel<T, S, false>;
    TRY(cuda_launch_early(be, "the attention over pages", kernel, n_blocks, S::THREADS, S::BYTES, a,
                          tiles, plan, maps));
    if (plan.width > 0) return add_parts<T, S>(be, a, plan, n_units);
    return a.gate != NULL ? cuda_gate_fwd(be, a.gate) : OK;
}

status cuda_attn_sm90_page(backend *be, const attn_args *a) {
    using T = __nv_bfloat16;
    if (a->dim_qk == 64) return launch<T, fwd_shape<paged_d64>>(be, a);
    if (a->dim_qk == 128) return launch<T, fwd_shape<paged_d128>>(be, a);
    return launch<T, fwd_shape<paged_d256>>(be, a);
}
