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
 * work is cut along the keys: a line of all tiles of keys of all units, in equal shares, one for
 * each group of blocks; the blocks of a group work on the same keys for neighbouring tiles of
 * queries, so that one of them reads the keys from memory and the others from the L2 cache.  The
 * parts of a sum, float32, go to memory and are added in the order of their keys by a second
 * kernel: HSTU's attention has no softmax, so nothing else is needed.  Bound by the tensor cores
 * or, for few queries, by the bytes of the keys. */
#ifndef HSTU_CUDA_ATTN_SM90_ATTN_SM90_PAGED_CUH
#define HSTU_CUDA_ATTN_SM90_ATTN_SM90_PAGED_CUH

#include "cuda/attn/sm90/attn_sm90_fwd.cuh"

enum {
    PAGED_TILE = 64,   /* keys of a tile, and of a page */
    PAGED_LEAST = 3,   /* tiles of a share at least: writing and adding parts costs about as much */
    PAGED_WIDEST = 16, /* blocks of a group at most */
    SUM_THREADS = 256, /* of the kernel that adds parts; */
    SUM_EACH = 1,      /* each adds so many float4 */
    PAGED_REGISTERS = 16 /* more for the scheduler warp: see fwd_registers */
};

/* How the keys of a unit are cut: its first part is that of `block`, the others are those of the
 * next n_more groups.  A block that begins a unit writes it. */
typedef struct paged_split {
    int block, n_more;
} paged_split;

typedef struct paged_plan {
    const int32_t *offsets_new; /* (B + 1): rows of k and v */
    int width;                  /* blocks of a group; 0: units are not cut */
    int n_groups;
    int n_row_groups;    /* tiles of queries of the longest sequence, divided by width */
    float4 *parts;       /* (blocks, 2): of the unit that a block continues, of the one it begins */
    paged_split *splits; /* (B, tiles of queries, H) */
} paged_plan;

typedef struct paged_maps {
    fwd_maps rows;
    CUtensorMap pages_k, pages_v;
} paged_maps;

/* Numbers of a part, as float4. */
template <typename S> struct paged_part { static constexpr int SIZE = S::ROWS * S::D / 4; };

/* The column of a key, and the end of the columns of the keys before `key`. */
__device__ static inline int paged_begin(const fwd_unit &u, int key) {
    return key < u.n_paged ? key : key + u.pad;
}
__device__ static inline int paged_end(const fwd_unit &u, int key) {
    return key <= u.n_paged ? key : key + u.pad;
}

/* Columns that any of n query rows from row0 on may see. */
__device__ static inline attn_span paged_seen(const attn_args &a, const fwd_unit &u, int row0,
                                              int n) {
    attn_span seen = attn_keys_seen(&a, &u.s, row0, n);
    seen.begin = paged_begin(u, seen.begin);
    seen.end = paged_end(u, seen.end);
    return seen;
}

/* Sets what a unit has from its sequence. */
__device__ static inline void paged_sequence(const attn_args &a, const paged_plan &plan, int b,
                                             fwd_unit &u) {
    int first = __ldg(plan.offsets_new + b), n_new = __ldg(plan.offsets_new + b + 1) - first;
    u.s = attn_sequence_of(&a, b);
    u.n_paged = u.s.len_k - n_new;
    u.pad = -u.n_paged & (PAGED_TILE - 1);
    u.row_new = first - u.n_paged - u.pad;
}

/* Sets what it has from its rows: the columns it visits, of those from `begin` to `end`. */
template <typename S>
__device__ static inline void paged_rows(const attn_args &a, int row0, int head, int begin, int end,
                                         fwd_unit &u) {
    attn_span seen = paged_seen(a, u, row0, S::ROWS), hole = attn_keys_hole(&a, &u.s, row0);
    u.row0 = row0;
    u.head = head;
    u.begin = max(seen.begin / PAGED_TILE * PAGED_TILE, begin);
    u.end = min(seen.end, end);
    u.hole = paged_begin(u, hole.begin);
    u.hole_end = paged_end(u, hole.end);
}

/* Announces a unit and waits until the next one is wanted; by a warp. */
template <typename S>
__device__ static inline void paged_tell(const fwd_unit &u, fwd_room<S> *room, unsigned &n_told) {
    if (threadIdx.x % 32 == 0) {
        room->units[n_told % S::UNITS] = u;
        barrier_arrive(&room->told);
    }
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
            paged_tell<S>(u, room, n_told);
        }
        n = n_units;
        if (is_shared && lane == 0) n = tiles_take(tiles);
        n = __shfl_sync(0xffffffffu, n, 0);
    }
    paged_tell_end<S>(room, n_told);
    if (lane == 0 && is_shared) tiles_done(tiles);
}

/* Item i is `width` neighbouring tiles of queries of a sequence.  Returns the tiles of columns from
 * the first to the last that any of their rows sees, at least 1; 0: there are no such rows. */
template <typename S>
__device__ static inline int paged_tiles(const attn_args &a, const paged_plan &plan, int i,
                                         int &begin) {
    int b = i / plan.n_row_groups, n_rows = plan.width * S::ROWS;
    int row0 = i % plan.n_row_groups * n_rows;
    begin = 0;
    if (b >= a.n_sequences) return 0;
    fwd_unit u;
    paged_sequence(a, plan, b, u);
    if (row0 >= u.s.len_q) return 0;
    attn_span seen = paged_seen(a, u, row0, n_rows);
    begin = seen.begin / PAGED_TILE * PAGED_TILE;
    return max((seen.end - begin + PAGED_TILE - 1) / PAGED_TILE, 1);
}

__device__ static inline int warp_total(int x) {
    for (int lane = 16; lane > 0; lane /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, lane);
    return x;
}

/* The block's share of the line of all tiles of keys: item by item, head by head. */
template <typename S>
__device__ static void paged_find_share(const attn_args &a, const paged_plan &plan,
                                        fwd_room<S> *room) {
    int lane = (int)threadIdx.x % 32, n_items = a.n_sequences * plan.n_row_groups, total = 0, from;
    int group = (int)blockIdx.x / plan.width, member = (int)blockIdx.x % plan.width;
    int own = paged_tiles<S>(a, plan, lane, from), own_from = from; /* of the first 32 items */
    total = own;
    for (int i = 32; i < n_items; i += 32)
        total += paged_tiles<S>(a, plan, i + lane, from);
    from = own_from;
    total = warp_total(total) * a.n_heads;
    int share = max((total + plan.n_groups - 1) / plan.n_groups, (int)PAGED_LEAST);
    int first = group * share, end = min(first + share, total), start = 0;
    unsigned n_told = 0;
#pragma unroll 1
    for (int i = 0; i < n_items && start < end; i += 32) {
        if (i > 0) own = paged_tiles<S>(a, plan, i + lane, from);
#pragma unroll 1
        for (int l = 0; l < 32 && start < end; l++) {
            int n = __shfl_sync(0xffffffffu, own, l), begin = __shfl_sync(0xffffffffu, from, l);
            int at = start; /* of a head */
            start += n * a.n_heads;
            if (n == 0 || start <= first) continue;
            int b = (i + l) / plan.n_row_groups;
            int row0 = ((i + l) % plan.n_row_groups * plan.width + member) * S::ROWS;
            fwd_unit u;
            paged_sequence(a, plan, b, u);
            if (row0 >= u.s.len_q) continue;
#pragma unroll 1
            for (int head = 0; head < a.n_heads; head++, at += n) {
                int i0 = max(first - at, 0), i1 = min(end - at, n); /* this block's tiles */
                if (i0 >= i1) continue;
                paged_rows<S>(a, row0, head, begin + i0 * PAGED_TILE, begin + i1 * PAGED_TILE, u);
                u.part = i0 == 0 && i1 == n ? -1 : 2 * (int)blockIdx.x + (i0 == 0);
                if (i0 == 0 && lane == 0)
                    plan.splits[((i + l) * plan.width + member) * a.n_heads + head] = {
                        (int)blockIdx.x, (at + n - 1) / share - group};
                paged_tell<S>(u, room, n_told);
            }
        }
    }
    paged_tell_end<S>(room, n_told);
}

/* Loads the keys or values of a tile of columns from j on. */
template <typename S>
__device__ static inline void paged_load(char *to, const CUtensorMap *rows,
                                         const CUtensorMap *pages, uint64_t *barrier,
                                         const fwd_unit *u, int j, int page) {
    int x = u->head * S::D;
    barrier_expect(barrier, (uint32_t)S::TILE);
#pragma unroll
    for (int c = 0; c < S::D; c += PART) {
        if (page >= 0)
            tile_load_3d(to + c * PAGED_TILE * 2, pages, barrier, x + c, 0, page);
        else
            tile_load(to + c * PAGED_TILE * 2, rows, barrier, x + c, u->row_new + j);
    }
}

/* Loads one unit; like fwd_ask_unit. */
template <typename S>
__device__ static inline void paged_ask_unit(const attn_args &a, const paged_maps &maps,
                                             const fwd_unit *u, fwd_room<S> *room, char *queries,
                                             char *keys, fwd_place<S> &p) {
    int n_asked = 1;
    bool is_wanted = false;
    char *values = keys + S::STAGES * S::TILE;
    const int32_t *table = a.pages.table + (int64_t)u->s.b * a.pages.max_pages;
    fwd_ring<S::BUFFERS> buffer = fwd_buffer<S>(p.unit);
    fwd_ask_queries<S>(maps.rows, u, room, queries, buffer, 0, 1);
    for (int j = fwd_next<S>(u, u->begin); j < u->end; j = fwd_next<S>(u, j + S::KEYS)) {
        int at = p.keys.at, page = j < u->n_paged ? __ldg(table + j / PAGED_TILE) : -1;
        barrier_wait(&room->keys_free[at], p.keys.parity ^ 1);
        paged_load<S>(keys + at * S::TILE, &maps.rows.k, &maps.pages_k, &room->keys[at], u, j,
                      page);
        fwd_ask_queries<S>(maps.rows, u, room, queries, buffer, n_asked, S::GROUPS);
        n_asked = S::GROUPS;
        if (!is_wanted && u->end - j <= S::AHEAD) {
            barrier_arrive(&room->wanted);
            is_wanted = true;
        }
        barrier_wait(&room->values_free[at], p.keys.parity ^ 1);
        paged_load<S>(values + at * S::TILE, &maps.rows.v, &maps.pages_v, &room->values[at], u, j,
                      page);
        advance(p.keys);
    }
    fwd_ask_queries<S>(maps.rows, u, room, queries, buffer, n_asked, S::GROUPS);
    if (!is_wanted) barrier_arrive(&room->wanted);
}

template <typename S>
__device__ static void paged_ask(const attn_args &a, const paged_maps &maps, fwd_room<S> *room,
                                 char *queries, char *keys) {
    fwd_place<S> p = {};
    tile_prefetch_map(&maps.rows.q);
    if (a.pages.table != NULL) {
        tile_prefetch_map(&maps.pages_k);
        tile_prefetch_map(&maps.pages_v);
    }
    for (;; p.unit++) {
        const fwd_unit *u = &room->units[p.unit % S::UNITS];
        barrier_wait(&room->told, p.unit % 2);
        if (u->s.b < 0) break;
        paged_ask_unit<S>(a, maps, u, room, queries, keys, p);
    }
    fwd_ring<S::BUFFERS> buffer = fwd_buffer<S>(p.unit);
    for (int group = 0; group < S::GROUPS; group++) {
        barrier_wait(&room->queries_free[buffer.at][group], buffer.parity ^ 1);
        barrier_arrive(&room->queries[buffer.at][group]);
    }
}

/* Stores a warpgroup's part of a sum as it is in registers. */
template <typename S>
__device__ static inline void paged_store_part(float4 *to, const float (&d)[S::D / 2]) {
#pragma unroll
    for (int j = 0; j < S::D / 8; j++)
        to[j * GROUP] = make_float4(d[4 * j], d[4 * j + 1], d[4 * j + 2], d[4 * j + 3]);
}

/* Like fwd_compute. */
template <typename T, typename S>
__device__ static void paged_compute(const attn_args &a, const paged_plan &plan, fwd_room<S> *room,
                                     const char *queries, const char *keys) {
    int group = __shfl_sync(0xffffffffu, (int)threadIdx.x / GROUP, 0); /* known to be uniform */
    fwd_place<S> p = {};
    fwd_own<S> own;
    own.half = 0.5f * a.alpha;
    for (;;) {
        fwd_ring<S::BUFFERS> buffer = fwd_buffer<S>(p.unit);
        barrier_wait(&room->queries[buffer.at][group], buffer.parity);
        const fwd_unit *u = own.unit = &room->units[p.unit % S::UNITS];
        if (u->s.b < 0) break;
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
            paged_store_part<S>(plan.parts + (int64_t)u->part * paged_part<S>::SIZE +
                                    group * (S::D / 8 * GROUP) + threadIdx.x % GROUP,
                                out);
        } else {
            T *to = (T *)a.out + (int64_t)u->s.row_q * a.stride_out + u->head * S::D;
            fwd_store<T, S::D>(to, a.stride_out, own.row, u->s.len_q, a.scale, out);
        }
        fwd_skip<S>(u, j, INT32_MAX, room, p.keys);
        p.unit++;
    }
}

template <typename T, typename S>
__global__ void __launch_bounds__(S::THREADS, 1)
    attn_fwd_paged_sm90_kernel(const __grid_constant__ attn_args a,
                               const __grid_constant__ attn_tiles tiles,
                               const __grid_constant__ paged_plan plan,
                               const __grid_constant__ paged_maps maps) {
    using registers = fwd_registers<S::GROUPS, 1, PAGED_REGISTERS>;
    extern __shared__ char shared[];
    __shared__ fwd_room<S> room;
    char *queries = shared + (1024 - shared_address(shared) % 1024) % 1024;
    char *keys = queries + S::BUFFERS * S::GROUPS * S::QUERIES;
    fwd_begin<S>(&room, keys);
    grid_wait();
    if (threadIdx.x >= S::GROUPS * GROUP) {
        registers_lower<registers::LOWERED>();
        if (threadIdx.x == S::GROUPS * GROUP) {
            paged_ask<S>(a, maps, &room, queries, keys);
        } else if (threadIdx.x >= S::THREADS - 32) {
            if (plan.width > 0)
                paged_find_share<S>(a, plan, &room);
            else
                paged_find_whole<S>(a, tiles, plan, &room);
        }
    } else {
        registers_raise<registers::RAISED>();
        paged_compute<T, S>(a, plan, &room, queries, keys);
    }
}

/* Adds the parts of unit blockIdx.y, in the order of their keys; each thread has SUM_EACH float4 of
 * them, which hold two columns of two rows. */
template <typename T, typename S>
__global__ void __launch_bounds__(SUM_THREADS)
    attn_sum_parts_sm90_kernel(const __grid_constant__ attn_args a,
                               const __grid_constant__ paged_plan plan) {
    int n_tiles = plan.n_row_groups * plan.width, tile = (int)blockIdx.y / a.n_heads;
    int b = tile / n_tiles, row0 = tile % n_tiles * S::ROWS, head = (int)blockIdx.y % a.n_heads;
    grid_wait();
    int row_q = a.offsets_q[b], len_q = a.offsets_q[b + 1] - row_q;
    if (row0 >= len_q) return;
    const paged_split split = plan.splits[blockIdx.y];
    if (split.n_more == 0) return;
    constexpr int64_t SIZE = paged_part<S>::SIZE;
    int first = (int)(blockIdx.x * SUM_THREADS * SUM_EACH + threadIdx.x);
    const float4 *part = plan.parts + (2 * (int64_t)split.block + 1) * SIZE + first;
    float4 sum[SUM_EACH];
#pragma unroll
    for (int e = 0; e < SUM_EACH; e++)
        sum[e] = part[e * SUM_THREADS];
    part -= SIZE;
#pragma unroll 4
    for (int i = 0; i < split.n_more; i++) {
        part += 2 * plan.width * SIZE;
#pragma unroll
        for (int e = 0; e < SUM_EACH; e++) {
            float4 x = part[e * SUM_THREADS];
            sum[e].x += x.x;
            sum[e].y += x.y;
            sum[e].z += x.z;
            sum[e].w += x.w;
        }
    }
    T *out = (T *)a.out + (int64_t)row_q * a.stride_out + head * S::D;
#pragma unroll
    for (int e = 0; e < SUM_EACH; e++) {
        int at = first + e * SUM_THREADS, thread = at % GROUP, j = at / GROUP % (S::D / 8);
        int row = row0 + at / (GROUP * S::D / 8) * 64 + thread / 32 * 16 + thread % 32 / 4;
        uint32_t *to = (uint32_t *)(out + row * a.stride_out + 8 * j + 2 * (thread % 4));
        if (row < len_q) *to = cvt_pack<T>(sum[e].x * a.scale, sum[e].y * a.scale);
        to += 4 * a.stride_out;
        if (row + 8 < len_q) *to = cvt_pack<T>(sum[e].z * a.scale, sum[e].w * a.scale);
    }
}

#endif
