/* The forward kernel of the attention on Hopper over keys in pages, and for few queries and many
 * keys: attn_sm90_fwd.cuh with another producer and another scheduler.
 *
 * A tile of keys is a page of 64, which TMA loads from where the page table says, or 64 rows of k
 * and v.  Columns of scores count the pages' rows first, to the end of the last page, and then the
 * rows of k and v, so that no tile has keys of both; columns without a key (fwd_unit.pad) are
 * masked.  The rows of a page after the last key must hold finite numbers, which are multiplied by
 * 0.
 *
 * One block a multiprocessor.  Where there are fewer tiles of queries than would fill the GPU, the
 * work is cut along the keys (attn_sm90_paged_lists.cuh).  The parts of a sum go to memory, rounded
 * like results, and are added in float32 in the order of their keys by a second kernel
 * (attn_sm90_paged_sum.cuh): HSTU's attention has no softmax, so nothing else is needed.
 *
 * A list that was there for the layer before lets a block load its first pages before the previous
 * kernel is complete.
 *
 * Bound by the tensor cores or, for few queries, by the bytes of the keys. */
#ifndef HSTU_CUDA_ATTN_SM90_ATTN_SM90_PAGED_CUH
#define HSTU_CUDA_ATTN_SM90_ATTN_SM90_PAGED_CUH

#include "cuda/attn/sm90/attn_sm90_gate.cuh"

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
            T *to = (T *)plan.parts + (int64_t)u->part * (S::ROWS * S::D);
            fwd_store<T, S::D>(to, S::D, own.row - u->row0, S::ROWS, a.scale, out);
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

#endif
