/* What the attention over pages (attn_sm90_paged.cu) and that of few rows (attn_sm90_small.cu)
 * share: the lists of work, the gate of rows whose sums are in registers, and the kernel that adds
 * the parts of sums.
 *
 * The units of work of each block are listed by a kernel of its own, once for all layers of a pass
 * (attn_args.is_repeated).
 *
 * Where there are fewer tiles of queries than would fill the GPU, the work is cut along the keys.
 * Few units are cut each by itself, into equal parts, which blocks dequeue, the largest first.
 * Otherwise there is a line of all tiles of keys of all units, in equal shares, one for each group
 * of blocks; the blocks of a group work on the same keys for neighbouring tiles of queries, so that
 * one of them reads the keys from memory and the others from the L2 cache. */
#pragma once

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
    bool are_floats;            /* parts are float32; else, where a gate follows, rounded */
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
 * sent by the host, so that it starts while the previous kernel still runs; it writes after that
 * kernel, as others may read the lists of the previous pass. */
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

/* The gate (gate_args) of rows whose sums are in a warpgroup's registers, and how the blocks of
 * attn_sm90_paged.cu exchange what it needs. */

enum { GATE_HEADS = 8 }; /* at most */

template <typename T> __device__ static inline float2 part_pair(uint32_t v);
template <> __device__ inline float2 part_pair<__nv_bfloat16>(uint32_t v) {
    return make_float2(__uint_as_float(v << 16), __uint_as_float(v & 0xffff0000u));
}

/* The sum over the four threads that have a row. */
__device__ static inline float quad_total(float x) {
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

/* Mean, and sum of squares around it, of D columns of the thread's row r, of two, times `scale`. */
template <int D>
__device__ static inline float2 gate_moments(const float (&out)[D / 2], int r, float scale) {
    float total[4] = {}, squares[4] = {}; /* four chains, for latency */
#pragma unroll
    for (int e = 0; e < D / 4; e++)
        total[e % 4] += out[e / 2 * 4 + 2 * r + e % 2];
    float mean = quad_total(total[0] + total[1] + (total[2] + total[3])) / D;
#pragma unroll
    for (int e = 0; e < D / 4; e++) {
        float d = out[e / 2 * 4 + 2 * r + e % 2] - mean;
        squares[e % 4] += d * d;
    }
    float sum = quad_total(squares[0] + squares[1] + (squares[2] + squares[3]));
    return make_float2(mean * scale, sum * scale * scale);
}

/* How far the warpgroups of all heads are with the same rows: three fields of a word
 * (paged_gate.words), so that one atomic operation changes and reads them together.  Nothing resets
 * the two counts between the layers of a pass: each layer adds n_heads to both. */
enum { GATE_STARTED = 28, GATE_LEFT = 56 }; /* first bits; the lowest 28 bits count arrivals */

__device__ static inline unsigned gate_arrived(uint64_t word) {
    return (unsigned)word & ((1u << GATE_STARTED) - 1);
}
__device__ static inline unsigned gate_started(uint64_t word) {
    return gate_arrived(word >> GATE_STARTED);
}
/* The count of a layer's end, for a warpgroup that has not arrived. */
__device__ static inline unsigned gate_target(uint64_t word, int n_heads) {
    return (gate_arrived(word) / (unsigned)n_heads + 1) * (unsigned)n_heads;
}
__device__ static inline uint64_t gate_read(const uint64_t *word) {
    return *(const volatile uint64_t *)word;
}
__device__ static inline uint64_t gate_add(uint64_t *word, uint64_t n) {
    return atomicAdd((unsigned long long *)word, (unsigned long long)n);
}

/* What a warpgroup's threads know of the meeting of all heads. */
typedef struct gate_meeting {
    bool is_left;   /* its sums are in memory for the last one, */
    bool is_last;   /* which it is, */
    unsigned heads; /* and of which it has these to do */
} gate_meeting;

/* Tells the other heads that the moments are in memory, and waits for theirs, by one thread.
 *
 * It cannot wait forever.  A warpgroup waits for those only that had started when it came
 * (otherwise is_left); they are on a multiprocessor, need nothing of other blocks before they
 * arrive, and arrive before they wait.  So it does not matter whether the blocks of a launch fit
 * the GPU at once, which nobody promises: other streams and processes have kernels there, too. */
__device__ static inline void gate_meet(uint64_t *word, int n_heads, int head, gate_meeting *m) {
    uint64_t left = m->is_left ? (uint64_t)1 << (GATE_LEFT + head) : 0;
    __threadfence();
    uint64_t before = gate_add(word, left + 1);
    unsigned target = gate_target(before, n_heads);
    m->is_last = gate_arrived(before) + 1 == target;
    m->heads = m->is_last ? (unsigned)(before >> GATE_LEFT) : 0;
    if (m->is_last) {
        left += before >> GATE_LEFT << GATE_LEFT;
        if (left != 0) gate_add(word, 0 - left);
    } else if (!m->is_left) {
        while (gate_arrived(gate_read(word)) < target) {
        }
    }
    __threadfence();
}

/* Mean and 1 / deviation of a row, of those of the heads, `stride` apart; by the four threads that
 * have it. */
template <int D>
__device__ static inline float2 gate_norm(const float2 *moments, int n_heads, int stride,
                                          float eps) {
    float2 m[2];
    float mean = 0, squares = 0;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int head = (int)threadIdx.x % 4 + 4 * i;
        m[i] = head < n_heads ? __ldcg(moments + head * stride) : make_float2(0, 0);
        mean += m[i].x;
    }
    mean = quad_total(mean) / (float)n_heads;
#pragma unroll
    for (int i = 0; i < 2; i++)
        if ((int)threadIdx.x % 4 + 4 * i < n_heads)
            squares += m[i].y + (float)D * (m[i].x - mean) * (m[i].x - mean);
    squares = quad_total(squares);
    return make_float2(mean, rsqrtf(squares / (float)(n_heads * D) + eps));
}

/* Four of the parameters of a head's norm; they arrive with the thread's copies. */
__device__ static inline void gate_ask_four(float *to, const float *from, int at, float missing) {
    if (from != NULL)
        cp_async<16>(shared_address(to), from + at, 16);
    else
        *(float4 *)to = make_float4(missing, missing, missing, missing);
}

/* Sums of a warpgroup in memory, (64, D). */
template <int D> __device__ static inline void gate_put(float *to, const float (&out)[D / 2]) {
    int lane = (int)threadIdx.x % 32, row = (int)threadIdx.x % GROUP / 32 * 16 + lane / 4;
#pragma unroll
    for (int k = 0; k < D / 8; k++)
#pragma unroll
        for (int r = 0; r < 2; r++)
            __stcg((float2 *)(to + (row + 8 * r) * D + 8 * k + 2 * (lane % 4)),
                   make_float2(out[4 * k + 2 * r], out[4 * k + 2 * r + 1]));
}

/* The gate of a head whose sums are in memory; by a warpgroup, two columns a thread. */
template <typename T, int D>
__device__ static inline void gate_rows(const paged_gate &g, const float *sums, int head,
                                        int64_t row0, int n_rows, int64_t dim, float scale) {
    int column = 2 * ((int)threadIdx.x % GROUP), at = head * D + column;
    static_assert(D == 2 * GROUP, "two columns a thread");
    float2 w = g.weight != NULL ? *(const float2 *)(g.weight + at) : make_float2(1, 1);
    float2 b = g.bias != NULL ? *(const float2 *)(g.bias + at) : make_float2(0, 0);
#pragma unroll 4
    for (int i = 0; i < n_rows; i++) {
        float2 x = __ldcg((const float2 *)(sums + i * D + column));
        float mean = __ldcg(g.mean + row0 + i), rstd = __ldcg(g.rstd + row0 + i);
        float by = scale * rstd, less = -mean * rstd;
        float2 u = part_pair<T>(*(const uint32_t *)((const T *)g.u + (row0 + i) * g.stride_u + at));
        x.x = u.x * fmaf(fmaf(x.x, by, less), w.x, b.x);
        x.y = u.y * fmaf(fmaf(x.y, by, less), w.y, b.y);
        *(uint32_t *)((T *)g.y + (row0 + i) * dim + at) = cvt_pack<T>(x.x, x.y);
    }
}

/* Of a warpgroup, in shared memory. */
template <int D> struct __align__(16) gate_room {
    float weight[D], bias[D];
    uint64_t full; /* u is there */
    gate_meeting meeting;
};

/* The word and the numbers of a unit: a block has one, those of the heads of the same rows are
 * plan.width blocks apart. */
template <int GROUPS>
__device__ static inline uint64_t *gate_word(const paged_plan &plan, int head, int group) {
    return plan.gate.words + ((int)blockIdx.x - head * plan.width) * GROUPS + group;
}

/* Before anything else of a unit that gate_whole ends; by each thread of a warpgroup. */
template <int GROUPS>
__device__ static inline void gate_start(const paged_plan &plan, int head, int group) {
    if (threadIdx.x % GROUP == 0)
        gate_add(gate_word<GROUPS>(plan, head, group), (uint64_t)1 << GATE_STARTED);
}

/* y = u * norm(scale * out) of a unit that has all keys; `rows`: u, as TMA loads it, which
 * room->full tells.  A row's norm needs all heads: either all have started, and the warpgroup waits
 * for their moments; or it leaves its sums in memory, and the warpgroup that comes last computes
 * the gate of those, too, with the same bits. */
template <typename T, typename S>
__device__ static inline void gate_whole(const paged_plan &plan, const fwd_unit *u, float scale,
                                         int n_heads, int group, const char *rows,
                                         gate_room<S::D> *room, float (&out)[S::D / 2]) {
    const paged_gate &g = plan.gate;
    int lane = (int)threadIdx.x % 32, row = (int)threadIdx.x % GROUP / 32 * 16 + lane / 4;
    int first = u->row0 + group * 64, block = (int)blockIdx.x - u->head * plan.width;
    int64_t dim = n_heads * S::D, row_q = u->s.row_q;
    uint64_t *word = gate_word<S::GROUPS>(plan, u->head, group), seen = 0;
    float *sums = (float *)plan.parts + group * (64 * S::D);
    float2 *moments = g.moments + block * S::ROWS + group * 64 + row;
    float by[2], less[2];
    bool is_one = threadIdx.x % GROUP == 0;
    int four = 4 * ((int)threadIdx.x % GROUP % (S::D / 4)), first_column = u->head * S::D + four;
    static_assert(2 * S::D / 4 == GROUP, "four parameters a thread");
    if (is_one) seen = gate_read(word);
    if ((int)threadIdx.x % GROUP < S::D / 4)
        gate_ask_four(room->weight + four, g.weight, first_column, 1);
    else
        gate_ask_four(room->bias + four, g.bias, first_column, 0);
    cp_async_commit_group();
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float2 own = gate_moments<S::D>(out, r, scale);
        if (lane % 4 == 0) __stcg(moments + u->head * plan.width * S::ROWS + 8 * r, own);
    }
    if (is_one) room->meeting.is_left = gate_started(seen) < gate_target(seen, n_heads);
    named_barrier(1 + group, GROUP);
    bool is_left = room->meeting.is_left;
    if (is_left) {
        gate_put<S::D>(sums + (int64_t)blockIdx.x * (S::ROWS * S::D), out);
        named_barrier(1 + group, GROUP);
    }
    if (is_one) gate_meet(word, n_heads, u->head, &room->meeting);
    cp_async_wait_group<0>();
    named_barrier(1 + group, GROUP);
    barrier_wait(&room->full, 0);
    bool is_last = room->meeting.is_last;
    if (is_left && !is_last) return;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float2 norm = gate_norm<S::D>(moments + 8 * r, n_heads, plan.width * S::ROWS, g.eps);
        by[r] = scale * norm.y;
        less[r] = -norm.x * norm.y;
        if (is_last && lane % 4 == 0 && first + row + 8 * r < u->s.len_q) {
            g.mean[row_q + first + row + 8 * r] = norm.x;
            g.rstd[row_q + first + row + 8 * r] = norm.y;
        }
    }
    rows += row * PART_BYTES + 4 * (lane % 4);
#pragma unroll
    for (int k = 0; k < S::D / 8; k++) {
        int c = 8 * k + 2 * (lane % 4);
        float2 w = *(const float2 *)(room->weight + c), b = *(const float2 *)(room->bias + c);
        const char *at = rows + k / 8 * (64 * PART_BYTES) + ((k % 8 ^ (row & 7)) << 4);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float2 gate = part_pair<T>(*(const uint32_t *)(at + r * 8 * PART_BYTES));
            float &x = out[4 * k + 2 * r], &y = out[4 * k + 2 * r + 1];
            x = gate.x * fmaf(fmaf(x, by[r], less[r]), w.x, b.x);
            y = gate.y * fmaf(fmaf(y, by[r], less[r]), w.y, b.y);
        }
    }
    fwd_store<T, S::D>((T *)g.y + row_q * dim + u->head * S::D, dim, first + row, u->s.len_q, 1,
                       out);
    unsigned heads = room->meeting.heads;
    if (heads == 0) return;
    named_barrier(1 + group, GROUP); /* mean and 1 / deviation are there */
#pragma unroll 1
    for (int head = 0; head < n_heads; head++)
        if (heads >> head & 1)
            gate_rows<T, S::D>(g, sums + (int64_t)(block + head * plan.width) * (S::ROWS * S::D),
                               head, row_q + first, min(u->s.len_q - first, 64), dim, scale);
}

/* Adds the parts of sums that attn_sm90_paged.cu leaves, and computes the gate where the op
 * includes it. */

/* What the kernel needs, and no more: a parameter that is not in the cache costs most of a
 * microsecond. */
typedef struct sum_job {
    const paged_split *splits;
    const int32_t *offsets_q;
    const void *parts;
    void *out;
    int64_t stride_out;
    int32_t n_heads, n_tiles; /* tiles of queries of the longest sequence */
    int32_t dim_head;
    bool is_early; /* see paged_plan */
    /* of the gate, or zeros */
    float eps;
    int32_t dim;
    const void *u;
    int64_t stride_u;
    const float *weight, *bias;
    void *y;
    float *mean, *rstd;
} sum_job;

/* sum += 8 numbers that follow each other. */
template <typename T> __device__ static inline void part_add(uint4 x, float (&sum)[SUM_COLUMNS]) {
    uint32_t word[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int w = 0; w < 4; w++) {
        float2 pair = part_pair<T>(word[w]);
        sum[2 * w] += pair.x;
        sum[2 * w + 1] += pair.y;
    }
}

/* The sum of a number of each thread over the block, which calls it once with each `room`. */
__device__ static inline float row_total(float x, float *room) {
    int n_warps = ((int)blockDim.x + 31) / 32;
    for (int lane = 16; lane > 0; lane /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, lane);
    if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = x;
    __syncthreads();
    x = 0;
    for (int w = 0; w < n_warps; w++)
        x += room[w];
    return x;
}

__device__ static inline void load_eight(const float *from, float missing,
                                         float (&x)[SUM_COLUMNS]) {
#pragma unroll
    for (int i = 0; i < SUM_COLUMNS; i += 4) {
        float4 v = make_float4(missing, missing, missing, missing);
        if (from != NULL) v = *(const float4 *)(from + i);
        x[i] = v.x, x[i + 1] = v.y, x[i + 2] = v.z, x[i + 3] = v.w;
    }
}

/* The gate of a row, whose columns a block has: x = u * norm(x). */
template <typename T>
__device__ static inline void gate_row(const sum_job &g, int64_t row, int column, uint4 u,
                                       const float (&weight)[SUM_COLUMNS],
                                       const float (&bias)[SUM_COLUMNS], float (&x)[SUM_COLUMNS]) {
    __shared__ float room[2][SUM_WARPS];
    float total = 0, squares = 0, gate[SUM_COLUMNS] = {};
#pragma unroll
    for (int i = 0; i < SUM_COLUMNS; i++)
        total += x[i];
    float mean = row_total(total, room[0]) / (float)g.dim;
#pragma unroll
    for (int i = 0; i < SUM_COLUMNS; i++)
        squares += (x[i] - mean) * (x[i] - mean);
    float rstd = rsqrtf(row_total(squares, room[1]) / (float)g.dim + g.eps);
    part_add<T>(u, gate);
#pragma unroll
    for (int i = 0; i < SUM_COLUMNS; i++)
        x[i] = gate[i] * ((x[i] - mean) * rstd * weight[i] + bias[i]);
    if (threadIdx.x == 0) {
        g.mean[row] = mean;
        g.rstd[row] = rstd;
    }
}

/* sum += 8 columns of a row's parts in float32. */
__device__ static inline void part_add_floats(const sum_job &j, const paged_split &split, int row,
                                              int column, float (&sum)[SUM_COLUMNS]) {
    int64_t size = (int64_t)2 * 64 * j.dim_head;
    const float *parts = (const float *)j.parts + row * j.dim_head + column;
#pragma unroll 4
    for (int n = 0; n <= split.n_more; n++) {
        float x[SUM_COLUMNS];
        int part = n == 0 ? split.first : split.next + (n - 1) * split.step;
        load_eight(parts + part * size, 0, x);
#pragma unroll
        for (int i = 0; i < SUM_COLUMNS; i++)
            sum[i] += x[i];
    }
}

/* A block adds the parts of one row, a thread 8 columns of it, AHEAD parts at a time; HAS_GATE: and
 * computes the gate. */
template <typename T, bool HAS_GATE, int AHEAD>
__global__ void __launch_bounds__(32 * SUM_WARPS)
    attn_sum_parts_sm90_kernel(const __grid_constant__ sum_job j) {
    constexpr int ROWS = 2 * 64; /* of a tile */
    int tile = (int)blockIdx.x / ROWS, b = tile / j.n_tiles;
    int row = tile % j.n_tiles * ROWS + (int)blockIdx.x % ROWS;
    int column = SUM_COLUMNS * (int)threadIdx.x, head = column / j.dim_head;
    int64_t size = ROWS * j.dim_head;
    float x[SUM_COLUMNS] = {}, weight[SUM_COLUMNS], bias[SUM_COLUMNS];
    uint4 ahead[AHEAD], u = {};
    grid_launch_next();
    if constexpr (HAS_GATE) {
        load_eight(j.weight != NULL ? j.weight + column : NULL, 1, weight);
        load_eight(j.bias != NULL ? j.bias + column : NULL, 0, bias);
    }
    if (!j.is_early) grid_wait();
    const paged_split split = j.splits[tile * j.n_heads + head];
    int row_q = j.offsets_q[b], len_q = j.offsets_q[b + 1] - row_q;
    bool has_sum = row < len_q && split.n_more >= 0;
    /* One block waits, so that this kernel is complete after the previous one. */
    if (!has_sum && blockIdx.x > 0) return;
    grid_wait();
    if (!has_sum || (!HAS_GATE && split.n_more == 0)) return;
    T *out = (T *)j.out + (row_q + row) * j.stride_out + column;
    if constexpr (!HAS_GATE) {
        part_add_floats(j, split, (int)blockIdx.x % ROWS, column - head * j.dim_head, x);
    } else {
        const T *parts = (const T *)j.parts + (int64_t)(blockIdx.x % ROWS) * j.dim_head +
                         (column - head * j.dim_head);
        const T *first = parts + split.first * size, *next = parts + split.next * size;
        int64_t step = split.step * size;
        u = *(const uint4 *)((const T *)j.u + (row_q + row) * j.stride_u + column);
        if (split.n_more == 0) first = out;
        ahead[0] = *(const uint4 *)first;
#pragma unroll
        for (int n = 1; n < AHEAD; n++)
            if (n <= split.n_more) ahead[n] = *(const uint4 *)(next + (n - 1) * step);
#pragma unroll
        for (int n = 0; n < AHEAD; n++)
            if (n <= split.n_more) part_add<T>(ahead[n], x);
        for (int n = AHEAD; n <= split.n_more; n++)
            part_add<T>(*(const uint4 *)(next + (n - 1) * step), x);
        gate_row<T>(j, row_q + row, column, u, weight, bias, x);
        out = (T *)j.y + (int64_t)(row_q + row) * j.dim + column;
    }
    *(uint4 *)out = make_uint4(cvt_pack<T>(x[0], x[1]), cvt_pack<T>(x[2], x[3]),
                               cvt_pack<T>(x[4], x[5]), cvt_pack<T>(x[6], x[7]));
}

/* The same with the gate, where the attention may have left nothing to add: a block has rows one
 * after the other, and but for one the blocks end at once if there is nothing.  A kernel of its
 * own, since the loop makes the other one slower. */
template <typename T, int AHEAD>
__global__ void __launch_bounds__(32 * SUM_WARPS, SUM_THREADS / (32 * SUM_WARPS))
    attn_sum_rows_sm90_kernel(const __grid_constant__ sum_job j, int n_rows) {
    constexpr int ROWS = 2 * 64; /* of a tile */
    int column = SUM_COLUMNS * (int)threadIdx.x, head = column / j.dim_head;
    int size = ROWS * j.dim_head; /* of a part; all of them have less than 2^31 numbers */
    grid_launch_next();
    if (!j.is_early) grid_wait();
#pragma unroll 1
    for (int at = (int)blockIdx.x; at < n_rows; at += (int)gridDim.x) {
        asm volatile("" : "+r"(column)); /* addresses are computed again: registers */
        int tile = at / ROWS, b = tile / j.n_tiles, row = tile % j.n_tiles * ROWS + at % ROWS;
        const paged_split split = j.splits[tile * j.n_heads + head];
        int row_q = j.offsets_q[b], len_q = j.offsets_q[b + 1] - row_q;
        if (row >= len_q) continue;
        if (split.n_more < 0) break; /* then all units have their gate */
        float x[SUM_COLUMNS] = {}, weight[SUM_COLUMNS], bias[SUM_COLUMNS];
        load_eight(j.weight != NULL ? j.weight + column : NULL, 1, weight);
        load_eight(j.bias != NULL ? j.bias + column : NULL, 0, bias);
        grid_wait();
        uint4 ahead[AHEAD], u = {};
        T *out = (T *)j.out + (row_q + row) * j.stride_out + column;
        const T *parts = (const T *)j.parts + at % ROWS * j.dim_head + (column - head * j.dim_head);
        const T *first = parts + split.first * size, *next = parts + split.next * size;
        int step = split.step * size;
        u = *(const uint4 *)((const T *)j.u + (row_q + row) * j.stride_u + column);
        if (split.n_more == 0) first = out;
        ahead[0] = *(const uint4 *)first;
#pragma unroll
        for (int n = 1; n < AHEAD; n++)
            if (n <= split.n_more) ahead[n] = *(const uint4 *)(next + (n - 1) * step);
#pragma unroll
        for (int n = 0; n < AHEAD; n++)
            if (n <= split.n_more) part_add<T>(ahead[n], x);
        for (int n = AHEAD; n <= split.n_more; n++)
            part_add<T>(*(const uint4 *)(next + (n - 1) * step), x);
        gate_row<T>(j, row_q + row, column, u, weight, bias, x);
        out = (T *)j.y + (int64_t)(row_q + row) * j.dim + column;
        *(uint4 *)out = make_uint4(cvt_pack<T>(x[0], x[1]), cvt_pack<T>(x[2], x[3]),
                                   cvt_pack<T>(x[4], x[5]), cvt_pack<T>(x[6], x[7]));
    }
    /* One block waits, so that this kernel is complete after the previous one. */
    if (blockIdx.x == 0) grid_wait();
}
