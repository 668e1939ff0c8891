/* What the blocks of attn_sm90_paged.cuh have to do: the units of each, listed by a kernel of its
 * own once for all layers of a pass (attn_args.is_repeated).
 *
 * Where there are fewer tiles of queries than would fill the GPU, the work is cut along the keys.
 * Few units are cut each by itself, into equal parts, which blocks dequeue, the largest first.
 * Otherwise there is a line of all tiles of keys of all units, in equal shares, one for each group
 * of blocks; the blocks of a group work on the same keys for neighbouring tiles of queries, so that
 * one of them reads the keys from memory and the others from the L2 cache. */
#ifndef HSTU_CUDA_ATTN_SM90_ATTN_SM90_PAGED_LISTS_CUH
#define HSTU_CUDA_ATTN_SM90_ATTN_SM90_PAGED_LISTS_CUH

#include "cuda/attn/sm90/attn_sm90_fwd.cuh"

enum {
    PAGED_TILE = 64,   /* keys of a tile, and of a page */
    PAGED_LEAST = 3,   /* tiles of a share at least: writing and adding parts costs about as much */
    PAGED_WIDEST = 16, /* blocks of a group at most */
    PAGED_EVEN = 256,  /* units at most that are cut by themselves */
    PAGED_TALL = 8,    /* tiles of queries from which on the last see many more keys */
    PAGED_LONG = 12,   /* tiles for each block from which on it has two parts */
    PAGED_MORE = 4,    /* tiles that whole units may take longer than parts, which must be added */
    PAGED_WHOLE = -1,  /* fwd_unit.part: the unit has all its keys, */
    PAGED_GATED = -2,  /* and its gate is computed, too */
    SUM_WARPS = 16,    /* at most, of the kernel that adds parts */
    SUM_COLUMNS = 8,   /* of a thread of it, */
    SUM_AHEAD = 12,    /* which loads so many parts at once, */
    SUM_FEWER = 4,     /* or so many, where rows are many: that takes fewer registers */
    SUM_ROWS = 4,      /* for each multiprocessor are many */
    SUM_THREADS = 1024,  /* of a multiprocessor are under way then */
    PAGED_REGISTERS = 16 /* more for the scheduler warp: see fwd_registers */
};

/* Where the parts of a unit's sums are: the first one, and n_more others, `step` apart, from `next`
 * on.  n_more -1: the unit has all its keys, and the kernel of the attention computes its gate. */
typedef struct paged_split {
    int first, next, n_more, step;
} paged_split;

/* The gate, if the kernel of the attention may compute it. */
typedef struct paged_gate {
    uint64_t *words; /* (blocks, 2): see gate_meet; NULL: it may not */
    float2 *moments; /* (blocks, rows of a tile) */
    const void *u;
    int64_t stride_u;
    const float *weight, *bias;
    void *y;
    float *mean, *rstd;
    float eps;
} paged_gate;

typedef struct paged_plan {
    const int32_t *offsets_new; /* (B + 1): rows of k and v */
    int width;                  /* blocks of a group; 0: units are not cut */
    int n_parts;  /* each unit is cut by itself, into so many parts of all at most; 0: it is not */
    int n_groups; /* of blocks */
    int n_row_groups; /* tiles of queries of the longest sequence, divided by width */
    fwd_unit *units;  /* (blocks, n_list): what each block has to do, or (n_parts): what all have to
                         do, the largest first; NULL: there is no list */
    int n_list;
    bool is_early; /* lists, lengths, and keys in pages were there before the last kernel */
    void *parts; /* tiles of results: (n_parts), or (blocks, 2), of the unit that a block continues
                    and of the one that it begins; or (blocks) tiles of float32, see gate_whole */
    paged_gate gate;
    paged_split *splits; /* (B, tiles of queries, H) */
} paged_plan;

/* Whether so many units may each have a group of blocks to themselves: few blocks have none. */
__host__ __device__ static inline bool paged_fills(int64_t n_units, int n_groups) {
    return 4 * n_units >= 3 * n_groups;
}

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

/* Notes the first two pages of a unit in `full`, which has no other use here, so that the producer
 * need not wait for the table. */
template <typename S>
__device__ static inline void paged_first_pages(const attn_args &a, fwd_unit &u) {
    const int32_t *table = a.pages.table + (int64_t)u.s.b * a.pages.max_pages;
    int end = min(u.end, u.n_paged), first = fwd_next<S>(&u, u.begin);
    int second = fwd_next<S>(&u, first + PAGED_TILE);
    u.full.begin = first < end ? __ldg(table + first / PAGED_TILE) : -1;
    u.full.end = second < end ? __ldg(table + second / PAGED_TILE) : -1;
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

/* Adds a unit to the block's list. */
__device__ static inline void paged_list(const paged_plan &plan, const fwd_unit &u, int &n) {
    if (threadIdx.x == 0) plan.units[(int64_t)blockIdx.x * plan.n_list + n] = u;
    n++;
}

/* The block's share of the line of all tiles of keys: item by item, head by head. */
template <typename S>
__device__ static void paged_list_share(const attn_args &a, const paged_plan &plan, int &n_listed) {
    int lane = (int)threadIdx.x % 32, n_items = a.n_sequences * plan.n_row_groups, total = 0, from;
    int group = (int)blockIdx.x / plan.width, member = (int)blockIdx.x % plan.width;
    int own = paged_tiles<S>(a, plan, lane, from), own_from = from; /* of the first 32 items */
    int most = own, n_units = own > 0;
    total = own;
    for (int i = 32; i < n_items; i += 32) {
        int n = paged_tiles<S>(a, plan, i + lane, from);
        total += n;
        most = max(most, n);
        n_units += n > 0;
    }
    from = own_from;
    total = warp_total(total) * a.n_heads;
    n_units = warp_total(n_units) * a.n_heads;
    most = (int)__reduce_max_sync(0xffffffffu, (unsigned)most);
    int share = max((total + plan.n_groups - 1) / plan.n_groups, (int)PAGED_LEAST);
    bool is_whole = plan.gate.words != NULL && n_units <= plan.n_groups &&
                    paged_fills(n_units, plan.n_groups) && most <= share + PAGED_MORE;
    if (is_whole) { /* a group has one unit */
        share = most;
        total = n_units * most;
    }
    int first = group * share, end = min(first + share, total), start = 0;
#pragma unroll 1
    for (int i = 0; i < n_items && start < end; i += 32) {
        if (i > 0) own = paged_tiles<S>(a, plan, i + lane, from);
#pragma unroll 1
        for (int l = 0; l < 32 && start < end; l++) {
            int n = __shfl_sync(0xffffffffu, own, l), begin = __shfl_sync(0xffffffffu, from, l);
            int at = start, line = is_whole && n > 0 ? share : n; /* of a head */
            start += line * a.n_heads;
            if (n == 0 || start <= first) continue;
            int b = (i + l) / plan.n_row_groups;
            int row0 = ((i + l) % plan.n_row_groups * plan.width + member) * S::ROWS;
            fwd_unit u;
            paged_sequence(a, plan, b, u);
            if (row0 >= u.s.len_q) continue;
#pragma unroll 1
            for (int head = 0; head < a.n_heads; head++, at += line) {
                int i0 = max(first - at, 0), i1 = min(end - at, n); /* this block's tiles */
                if (i0 >= i1) continue;
                paged_rows<S>(a, row0, head, begin + i0 * PAGED_TILE, begin + i1 * PAGED_TILE, u);
                u.part = i0 == 0 && i1 == n ? PAGED_WHOLE : 2 * (int)blockIdx.x + (i0 == 0);
                if (is_whole) u.part = PAGED_GATED;
                paged_first_pages<S>(a, u);
                if (i0 == 0 && lane == 0)
                    plan.splits[((i + l) * plan.width + member) * a.n_heads + head] = {
                        2 * (int)blockIdx.x + 1, 2 * ((int)blockIdx.x + plan.width),
                        is_whole ? -1 : (at + n - 1) / share - group, 2 * plan.width};
                paged_list(plan, u, n_listed);
            }
        }
    }
}

/* The tiles of columns that a tile of query rows visits: n, of which those from `hole` on are
 * n_hole tiles further right. */
typedef struct paged_line {
    int begin, end; /* columns */
    int n, hole, n_hole;
} paged_line;

/* Of a unit whose rows are set. */
__device__ static inline paged_line paged_line_make(const fwd_unit &u) {
    paged_line line;
    int n = max((u.end - u.begin + PAGED_TILE - 1) / PAGED_TILE, 0);
    line.begin = u.begin;
    line.end = u.end;
    line.hole = max((u.hole - u.begin + PAGED_TILE - 1) / PAGED_TILE, 0);
    line.n_hole = max((u.hole_end - u.begin) / PAGED_TILE - line.hole, 0);
    if (line.hole >= n) line.n_hole = 0;
    line.n_hole = min(line.n_hole, n - line.hole);
    line.n = n - line.n_hole;
    return line;
}

/* Of item i, at least 1 tile; n = 0: there are no such rows. */
template <typename S>
__device__ static inline paged_line paged_line_of(const attn_args &a, const paged_plan &plan,
                                                  int i) {
    int b = i / plan.n_row_groups, row0 = i % plan.n_row_groups * S::ROWS;
    paged_line line = {};
    if (b >= a.n_sequences) return line;
    fwd_unit u;
    paged_sequence(a, plan, b, u);
    if (row0 >= u.s.len_q) return line;
    paged_rows<S>(a, row0, 0, 0, INT32_MAX, u);
    line = paged_line_make(u);
    line.n = max(line.n, 1);
    return line;
}

/* The column where the i-th tile that is visited begins. */
__device__ static inline int paged_column(const paged_line &line, int i) {
    return line.begin + (i < line.hole ? i : i + line.n_hole) * PAGED_TILE;
}

/* The least tiles of a part with which there are not more than `most` parts of all heads' units; as
 * many as there are units must be allowed. */
__device__ static inline int paged_share(const int *n, int n_items, int n_heads, int total,
                                         int most) {
    int lane = (int)threadIdx.x % 32;
    int share = max((total + most - 1) / most, (int)PAGED_LEAST);
    for (;; share += 32) {
        int needed = 0;
        for (int i = 0; i < n_items; i++)
            needed += (n[i] + share + lane - 1) / (share + lane);
        unsigned is_enough = __ballot_sync(0xffffffffu, needed * n_heads <= most);
        if (is_enough != 0) return share + __ffs((int)is_enough) - 1;
    }
}

/* Every unit is cut by itself, into equal parts: after a part the next one's queries are loaded,
 * and that takes as long as two tiles, so that there is a part for each block, or two where they
 * are long.  The largest come first; of parts of the same size those with the same keys are
 * neighbours. */
template <typename S>
__device__ static void paged_list_cut(const attn_args &a, const paged_plan &plan) {
    int lane = (int)threadIdx.x, n_items = a.n_sequences * plan.n_row_groups, total = 0,
        n_units = 0;
    int own = (int)blockIdx.x, item = -1, local = 0, n_parts = 1, at = 0, size = 0;
    __shared__ int all[PAGED_EVEN]; /* tiles of columns of the items */
    for (int i = lane; i < n_items; i += 32) {
        all[i] = paged_line_of<S>(a, plan, i).n;
        total += all[i];
        n_units += all[i] > 0;
    }
    __syncwarp();
    total = warp_total(total) * a.n_heads;
    n_units = warp_total(n_units) * a.n_heads;
    bool is_once = n_units <= plan.n_groups && total < PAGED_LONG * plan.n_groups;
    int share = paged_share(all, n_items, a.n_heads, total, is_once ? plan.n_groups : plan.n_parts);
    for (int i = 0; i < n_items; i++) {
        int n = all[i], parts = (n + share - 1) / share;
        int next = at + parts * a.n_heads;
        if (own >= at && own < next) {
            item = i;
            local = own - at;
            n_parts = parts;
            size = (n + parts - 1) / parts;
        }
        at = next;
    }
    int before = 0, same = 0, same_before = 0;
    for (int i = 0; i < n_items; i++) {
        int n = all[i], parts = (n + share - 1) / share;
        int is = parts > 0 ? (n + parts - 1) / parts : 0;
        if (is > size || (is == size && parts > n_parts)) before += parts * a.n_heads;
        if (is != size || parts != n_parts) continue;
        same++;
        same_before += i < item;
    }
    fwd_unit u;
    u.s.b = -1;
    if (item >= 0) {
        int head = local / n_parts, part = local % n_parts;
        paged_line line = paged_line_of<S>(a, plan, item);
        int begin = paged_column(line, part * line.n / n_parts), end = line.end;
        if (part < n_parts - 1)
            end = paged_column(line, (part + 1) * line.n / n_parts - 1) + PAGED_TILE;
        paged_sequence(a, plan, item / plan.n_row_groups, u);
        paged_rows<S>(a, item % plan.n_row_groups * S::ROWS, head, begin, end, u);
        u.part = n_parts == 1 ? PAGED_WHOLE : own;
        paged_first_pages<S>(a, u);
    }
    grid_wait();
    if (lane > 0) return;
    if (item >= 0 && local % n_parts == 0)
        plan.splits[item * a.n_heads + local / n_parts] = {own, own + 1, n_parts - 1, 1};
    plan.units[item >= 0 ? before + local * same + same_before : own] = u;
}

/* Makes the lists, a warp for each block of the attention, or for each part.  What it reads was
 * sent by the host, so that it starts while the kernel before still runs; it writes after that, as
 * other kernels may read the lists of the pass before. */
template <typename S>
__global__ void __launch_bounds__(32)
    attn_list_sm90_kernel(const __grid_constant__ attn_args a,
                          const __grid_constant__ paged_plan plan) {
    int n = 0;
    grid_launch_next();
    if (plan.n_parts > 0) {
        paged_list_cut<S>(a, plan);
        return;
    }
    grid_wait();
    if (plan.gate.words != NULL && threadIdx.x < S::GROUPS)
        plan.gate.words[blockIdx.x * S::GROUPS + threadIdx.x] = 0;
    paged_list_share<S>(a, plan, n);
    if (threadIdx.x == 0) plan.units[(int64_t)blockIdx.x * plan.n_list + n].s.b = -1;
}

#endif
