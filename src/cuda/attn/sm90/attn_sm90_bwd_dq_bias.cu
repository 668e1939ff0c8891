/* dq of the attention with a bias on Hopper, and the gradients of the bias.  Each sum has one owner
 * or is a sum of integers, whose order does not matter.
 *
 * The structure is that of the persistent forward kernel (attn_sm90_fwd.cuh): a block owns queries,
 * with the rows of dout beside them, and visits tiles of keys and values.  Scores and dp are
 * recomputed and become gradients of scores, which are multiplied with the keys: three products.
 * - A table's gradient is added to memory as it comes, 8 bytes at once.  Bound by these bytes.
 * - Position and time have few cells, to which all pairs add.  A warp adds integers to cells of its
 *   own in shared memory, in units 18 bits below its largest gradient so far (attn_bias.cuh says
 * why integers): to the cell of a time bucket when the next pair of a row has another bucket, which
 * is rare because times are sorted; to the cell of a diagonal after every two pairs.  Seven tiles
 * (1024 pairs a warp) fit 32 bits; then, and at the end of a unit of work, the sums are added to
 * 64-bit cells of the block, and at the end of the block to the cells of the batch.  Bound by
 *   instructions, about 45 a pair, and by latency: registers allow eight warps a multiprocessor. */
#include "cuda/attn/common/attn_bias.cuh"
#include "cuda/attn/sm90/attn_sm90_bwd.cuh"
#include "cuda/attn/sm90/attn_sm90_fwd.cuh"

enum { SUM_TILES = 7, SUM_DIAGONALS = 16 + 64 - 1, SUM_CELLS = 2304 };

/* Sums of a warp: four cells for each bucket, since lanes often add to the same bucket. */
typedef struct sum_warp {
    int times[BIAS_TIME_CELLS][4];
    int diagonals[SUM_DIAGONALS + 1]; /* the last one stays 0 */
    int spare[32];                    /* a lane's: not read */
} sum_warp;

/* Sums of a block: 64-bit cells in two halves, as shared memory has no 64-bit addition; position
 * cells where they fit, then time cells. */
template <typename S, attn_bias BIAS> struct sum_block {};
template <typename S> struct sum_block<S, BIAS_TIME> {
    unsigned low[SUM_CELLS + BIAS_TIME_CELLS], high[SUM_CELLS + BIAS_TIME_CELLS];
    alignas(16) sum_warp warps[S::WARPS];
};

/* A warp's unit is 2^(exponent - 144): `exponent` is the biased float exponent of its largest
 * gradient. */
typedef struct sum_state {
    int exponent, n_tiles;
} sum_state;

/* Where the sums go. */
typedef struct sum_sink {
    unsigned long long *cells; /* of the batch; NULL: nowhere */
    float factor;              /* of gradients of scores */
} sum_sink;

template <typename S> __device__ static inline int sum_positions(const attn_args &a) {
    int n = 2 * a.bias_len - 1;
    return n <= SUM_CELLS ? n : 0; /* in the block's cells */
}

/* A warp's unit, in units of the batch's cells. */
__device__ static inline double sum_unit(const sum_sink &sink, int exponent) {
    return __hiloint2double((1023 - 144 + BIAS_FIXED_BITS + exponent) << 20, 0) *
           (double)sink.factor;
}

template <typename S>
__device__ static inline void sum_add(sum_block<S, BIAS_TIME> *sums, int cell,
                                      unsigned long long x) {
    unsigned low = (unsigned)x, before = atomicAdd(&sums->low[cell], low);
    atomicAdd(&sums->high[cell], (unsigned)(x >> 32) + (before + low < low));
}

/* The warp's cells of times go to the block's. */
template <typename S>
__device__ static inline void sum_flush_times(const attn_args &a, const sum_sink &sink,
                                              sum_block<S, BIAS_TIME> *sums, sum_warp *warp,
                                              sum_state &state) {
    double unit = sum_unit(sink, state.exponent);
    __syncwarp();
    if (state.n_tiles > 0) {
        for (int i = (int)threadIdx.x % 32; i < BIAS_TIME_CELLS; i += 32) {
            int4 *four = (int4 *)warp->times[i];
            int n = four->x + four->y + four->z + four->w;
            *four = make_int4(0, 0, 0, 0);
            if (n == 0) continue;
            sum_add<S>(sums, sum_positions<S>(a) + i, (unsigned long long)__double2ll_rn(n * unit));
        }
    }
    __syncwarp();
    state.n_tiles = 0;
}

/* Adds to the cells of a tile's diagonals; the first diagonal is position weight `first`.  Lanes
 * without a diagonal add 0 somewhere, so that there is no branch and all additions are in flight at
 * once. */
template <typename S>
__device__ static inline void sum_flush_diagonals(const attn_args &a, const sum_sink &sink,
                                                  sum_block<S, BIAS_TIME> *sums, sum_warp *warp,
                                                  const sum_state &state, int first) {
    constexpr int ROUNDS = (SUM_DIAGONALS + 31) / 32;
    int lane = (int)threadIdx.x % 32, n_cells = 2 * a.bias_len - 1;
    double unit = sum_unit(sink, state.exponent);
    unsigned long long x[ROUNDS];
    __syncwarp();
#pragma unroll
    for (int i = 0; i < ROUNDS; i++) {
        int cell = first + 32 * i + lane, at = min(32 * i + lane, (int)SUM_DIAGONALS);
        int n = warp->diagonals[at];
        warp->diagonals[at] = 0;
        x[i] = cell >= 0 && cell < n_cells ? (unsigned long long)__double2ll_rn(n * unit) : 0;
    }
#pragma unroll
    for (int i = 0; i < ROUNDS; i++) {
        int cell = min(max(first + 32 * i + lane, 0), n_cells - 1);
        if (sum_positions<S>(a) > 0)
            sum_add<S>(sums, cell, x[i]);
        else if (x[i] != 0)
            atomicAdd(&sink.cells[cell], x[i]);
    }
    __syncwarp();
}

/* Adds integers to the cells of their buckets, one addition for a run of equal buckets in a row.
 * Lanes whose run continues add to a dummy cell, which is faster than a branch. */
__device__ static inline void sum_add_times(sum_warp *warp, const int (&n)[32],
                                            const uint32_t (&buckets)[8]) {
    int lane = (int)thread_index() % 32;
    uint32_t to = shared_address(&warp->times[0][lane % 4]),
             spare = shared_address(&warp->spare[lane]);
#pragma unroll
    for (int side = 0; side < 2; side++) {
        uint32_t run = buckets[0] >> 16 * side & 255;
        int sum = n[2 * side];
#pragma unroll
        for (int c = 1; c < 16; c++) {
            uint32_t bucket = buckets[c / 2] >> (16 * side + c % 2 * 8) & 255;
            bool is_over = bucket != run;
            add_shared(is_over ? to + 16 * run : spare, sum);
            sum = n[c / 2 * 4 + 2 * side + c % 2] + (is_over ? 0 : sum);
            run = bucket;
        }
        add_shared(to + 16 * run, sum);
    }
}

/* Adds integers to the cells of their diagonals: row + 8 is on the same diagonal as `row`, 8
 * columns further left. */
__device__ static inline void sum_add_diagonals(sum_warp *warp, const int (&n)[32]) {
    int lane = (int)thread_index() % 32;
    uint32_t to = shared_address(warp->diagonals + 15 - lane / 4 + lane % 4 * 2);
#pragma unroll
    for (int c = 0; c < 18; c++) {
        int sum = 0;
        if (c >= 2) sum += n[(c / 2 - 1) * 4 + c % 2];
        if (c < 16) sum += n[c / 2 * 4 + 2 + c % 2];
        add_shared(to + (uint32_t)(4 * (c / 2 * 8 + c % 2 - 8)), sum);
    }
}

/* Adds a warp's score gradients y, for keys from j on, to the sums; the warp's first row is
 * `row`. */
template <typename S>
__device__ static inline void sum_tile(const attn_args &a, const sum_sink &sink,
                                       sum_block<S, BIAS_TIME> *sums, const attn_sequence &s,
                                       int row, int j, const float (&y)[32],
                                       const uint32_t (&buckets)[8], sum_state &state) {
    sum_warp *warp = &sums->warps[(int)thread_index() / 32];
    float largest = 0;
    int n[32];
#pragma unroll
    for (int e = 0; e < 32; e++)
        largest = fmaxf(largest, fabsf(y[e]));
    int exponent = (int)(__reduce_max_sync(0xffffffffu, __float_as_uint(largest)) >> 23);
    if (exponent < 18) return; /* nothing, or below 2^-108 */
    if (exponent > state.exponent || state.n_tiles == SUM_TILES) {
        sum_flush_times<S>(a, sink, sums, warp, state);
        state.exponent = exponent;
    }
    state.n_tiles++;
    /* Adding 1.5 2^23 leaves the integer in the low bits of the float. */
    float units = __uint_as_float((uint32_t)(127 + 144 - state.exponent) << 23);
#pragma unroll
    for (int e = 0; e < 32; e++)
        n[e] = __float_as_int(fmaf(y[e], units, 12582912.0f)) - 0x4b400000;
    sum_add_times(warp, n, buckets);
    sum_add_diagonals(warp, n);
    sum_flush_diagonals<S>(a, sink, sums, warp, state, a.bias_len - 1 + j - (row + s.shift) - 15);
}

/* Clears the sums, by all threads; a barrier must follow. */
template <typename S> __device__ static inline void sum_begin(sum_block<S, BIAS_TIME> *sums) {
    for (int i = (int)threadIdx.x; i < (int)(sizeof *sums / sizeof(int)); i += S::THREADS)
        ((int *)sums)[i] = 0;
}

/* Adds the block's cells to those of the batch; by all consumer threads. */
template <typename S>
__device__ static inline void sum_end(const attn_args &a, const sum_sink &sink,
                                      const sum_block<S, BIAS_TIME> *sums) {
    int n_near = sum_positions<S>(a), n_far = 2 * a.bias_len - 1 - n_near;
    named_barrier(1, S::WARPS * 32);
    for (int i = (int)threadIdx.x; i < n_near + BIAS_TIME_CELLS; i += S::WARPS * 32) {
        unsigned long long x = (unsigned long long)sums->high[i] << 32 | sums->low[i];
        if (x != 0) atomicAdd(&sink.cells[i + n_far], x);
    }
}

/* Pairs that are not visible have a gradient of zero, so nothing outside the table is touched. */
template <typename S>
__device__ static inline void add_to_table(const attn_args &a, const sum_sink &sink,
                                           const fwd_own<S> &own, int j, const float (&y)[32]) {
    const fwd_unit *u = own.unit;
    int64_t head = (int64_t)u->s.b * a.table_heads + (a.table_heads == 1 ? 0 : u->head);
    int64_t row = head * a.table_len + u->s.shift + own.row;
    float *to = a.dtable + row * a.table_len + j + (int)thread_index() % 4 * 2;
#pragma unroll
    for (int side = 0; side < 2; side++) {
#pragma unroll
        for (int n = 0; n < 8; n++) {
            float v = y[4 * n + 2 * side] * sink.factor, w = y[4 * n + 2 * side + 1] * sink.factor;
            if (v != 0 || w != 0) add_two(to + 8 * n, v, w);
        }
        to += 8 * (int64_t)a.table_len;
    }
}

/* y = twice the gradients of scores, from scores and dp. */
__device__ static inline void make_gradients(float half, const float (&x)[32], float (&y)[32]) {
#pragma unroll
    for (int e = 0; e < 32; e++) {
        float slope;
        bwd_weight(half, x[e], &slope);
        y[e] = fmaf(y[e], slope, y[e]);
    }
}

/* dq of a unit over its tiles of keys from j on; returns the first tile after them. */
template <typename T, typename S>
__device__ static inline int dq_sum(const attn_args &a, const sum_sink &sink, const fwd_own<S> &own,
                                    int j, fwd_room<S> *room, sum_block<S, S::BIAS> *sums,
                                    const char *keys, fwd_ring<S::STAGES> &r,
                                    float (&out)[S::D / 2]) {
    const char *values = keys + S::STAGES * S::TILE, *tables = values + S::STAGES * S::TILE;
    sum_state state = {0, 0};
    int row = own.row - (int)thread_index() % 32 / 4; /* the warp's first */
    while (j < own.end) {
        float x[32], y[32];
        uint32_t left[4][4], buckets[8];
        int next = fwd_next<S>(own.unit, j + S::KEYS);
        barrier_wait(&room->keys[r.at], r.parity);
        wgmma_fence();
        product_of_rows<T, S::D, 64, S::KEYS>(x, own.queries, keys + r.at * S::TILE);
        wgmma_commit();
        barrier_wait(&room->values[r.at], r.parity);
        wgmma_fence();
        product_of_rows<T, S::D, 64, S::KEYS>(y, own.queries + S::QUERIES, values + r.at * S::TILE);
        wgmma_commit();
        wgmma_wait<1>();
        fwd_add_bias<S>(a, own, j, room, tables, r, x, buckets);
        wgmma_wait<0>();
        if (next >= own.end) release(own.queries_free);
        make_gradients(own.half, x, y);
        release(&room->values_free[r.at]);
        fwd_mask_tile<S>(a, own, j, y);
        pack_left<T, S::KEYS>(left, y);
        wgmma_fence();
        uint64_t b = fwd_describe_values<S>(keys + r.at * S::TILE);
#pragma unroll
        for (int k = 0; k < S::KEYS / 16; k++)
            fwd_add<T, S>(out, left[k], b, k);
        wgmma_commit();
        if constexpr (S::BIAS == BIAS_TIME) {
            if (sink.cells != NULL)
                sum_tile<S>(a, sink, sums, own.unit->s, row, j, y, buckets, state);
        } else if (a.dtable != NULL) {
            add_to_table<S>(a, sink, own, j, y);
        }
        wgmma_wait<0>();
        release(&room->keys_free[r.at]);
        advance(r);
        j = next;
    }
    if constexpr (S::BIAS == BIAS_TIME)
        sum_flush_times<S>(a, sink, sums, &sums->warps[(int)thread_index() / 32], state);
    return j;
}

template <typename T, typename S>
__device__ static void dq_compute(const attn_args &a, const sum_sink &sink, fwd_room<S> *room,
                                  sum_block<S, S::BIAS> *sums, const char *queries,
                                  const char *keys) {
    int group = __shfl_sync(0xffffffffu, (int)threadIdx.x / GROUP, 0); /* known to be uniform */
    fwd_place<S> p = {};
    fwd_own<S> own;
    own.half = 0.5f * a.alpha;
    for (;; p.unit++) {
        fwd_ring<S::BUFFERS> buffer = fwd_buffer<S>(p.unit);
        barrier_wait(&room->queries[buffer.at][group], buffer.parity);
        const fwd_unit *u = own.unit = &room->units[p.unit % S::UNITS];
        if (u->s.b < 0) break;
        int first = u->row0 + group * 64;
        attn_span seen = fwd_seen<S>(a, u, first);
        own.row = first + row_of_thread();
        own.full = fwd_full<S>(a, u, first);
        if (first + 64 > u->s.len_q) own.full.end = -1; /* rows beyond the end add to no sum */
        own.queries = queries + (buffer.at * S::GROUPS + group) * S::OWNS * S::QUERIES;
        own.queries_free = &room->queries_free[buffer.at][group];
        if constexpr (S::BIAS == BIAS_TIME)
            own.times =
                time_rows_of(a.query_time + u->s.row_q, own.row, u->s.len_q, time_base(a, u->s));
        float out[S::D / 2];
        clear(out);
        int j = fwd_skip<S>(u, fwd_next<S>(u, u->begin), seen.begin, room, p.keys);
        own.end = min(u->end, seen.end);
        if (j >= own.end) {
            __syncwarp();
            release(own.queries_free);
        } else {
            j = dq_sum<T, S>(a, sink, own, j, room, sums, keys, p.keys, out);
        }
        T *to = (T *)a.dq + (int64_t)u->s.row_q * a.stride_q + u->head * S::D;
        fwd_store<T, S::D>(to, a.stride_q, own.row, u->s.len_q, sink.factor, out);
        fwd_skip<S>(u, j, INT32_MAX, room, p.keys);
    }
    if constexpr (S::BIAS == BIAS_TIME)
        if (sink.cells != NULL) sum_end<S>(a, sink, sums);
}

template <typename T, typename S>
__global__ void __launch_bounds__(S::THREADS, S::BLOCKS)
    attn_bwd_dq_bias_sm90_kernel(const __grid_constant__ attn_args a,
                                 const __grid_constant__ attn_tiles tiles,
                                 const __grid_constant__ fwd_maps maps, sum_sink sink) {
    typedef fwd_registers<S::GROUPS, S::BLOCKS, S::BIAS == BIAS_TIME && S::GROUPS == 2 ? 16 : 0>
        registers;
    extern __shared__ char shared[];
    __shared__ fwd_room<S> room;
    __shared__ sum_block<S, S::BIAS> sums;
    char *queries = shared + (1024 - shared_address(shared) % 1024) % 1024;
    char *keys = queries + S::BUFFERS * S::GROUPS * S::OWNS * S::QUERIES;
    if constexpr (S::BIAS == BIAS_TIME) {
        time_tables_load(a, maps.bias.buckets, &room.times.tables);
        sum_begin<S>(&sums);
    }
    fwd_begin<S>(&room, keys);
    if (threadIdx.x >= S::GROUPS * GROUP) {
        constexpr int ASKERS = S::BIAS == BIAS_TIME ? 32 : 1;
        registers_lower<registers::LOWERED>();
        if (threadIdx.x < S::GROUPS * GROUP + ASKERS)
            fwd_ask<S>(a, maps, &room, queries, keys);
        else if (threadIdx.x >= S::THREADS - 32)
            fwd_find<S>(a, tiles, &room);
    } else {
        registers_raise<registers::RAISED>();
        dq_compute<T, S>(a, sink, &room, &sums, queries, keys);
    }
}

template <typename T, typename S> static status launch(backend *be, const bwd_job *job) {
    cuda_state *state = cuda_of(be);
    const attn_args *a = &job->a;
    int64_t columns = (int64_t)a->n_heads * S::D;
    attn_tiles tiles = job->query_tiles;
    sum_sink sink = {job->cells, 0.5f * a->alpha * a->scale};
    fwd_maps maps;
    constexpr int ROOM = (int)(sizeof(fwd_room<S>) + sizeof(sum_block<S, S::BIAS>));
    static_assert((S::BYTES + ROOM + 1024 + 256) * S::BLOCKS <= 228 * 1024, "shared memory");
    if (tiles.n_units == 0) return OK;
    tiles.counter = state->counters;
    TRY(fwd_map_inputs<S>(be, a, &maps));
    TRY(sm90a_map_box(&maps.dout, be->act, a->dout, a->n_rows_q, columns, a->stride_out, S::COLUMNS,
                      S::BOX_Q));
    maps.bias = job->bias;
    int n_blocks = S::BLOCKS * state->n_multiprocessors;
    if (n_blocks > tiles.n_units) n_blocks = tiles.n_units;
    return cuda_launch(be, "the gradient of the attention's queries",
                       attn_bwd_dq_bias_sm90_kernel<T, S>, n_blocks, S::THREADS, S::BYTES, *a,
                       tiles, maps, sink);
}

/* Shared memory, in KB a block: queries and dout + keys and values + a table
 *     D = 32:   2 x 8 + 2 x 2 x 4 + 2 x 8 = 48, two blocks a multiprocessor
 *     D = 64:   2 x 16 + 2 x 2 x 8 + 2 x 8 = 80, two blocks a multiprocessor
 *     D = 128:  2 x 32 + 2 x 2 x 16 + 2 x 2 x 8 = 160 */
template <attn_bias BIAS_, int D_> struct dq_bias_sizes : fwd_sizes {
    static constexpr attn_bias BIAS = BIAS_;
    static constexpr int D = D_, BOX = 16, OWNS = 2;
    static constexpr int BLOCKS = D < 128 ? 2 : fwd_sizes::BLOCKS;
    static constexpr int GROUPS = D < 128 ? fwd_sizes::GROUPS : 2;
    static constexpr int BUFFERS = D < 128 ? fwd_sizes::BUFFERS : 1;
};

template <attn_bias BIAS> static status choose(backend *be, const bwd_job *job) {
    using T = __nv_bfloat16;
    using low = fwd_shape<dq_bias_sizes<BIAS, 64>>;
    using high = fwd_shape<dq_bias_sizes<BIAS, 128>>;
    static_assert(low::ROWS == DQ_ROWS_BIAS_64 && high::ROWS == DQ_ROWS, "tiles of bwd_prepare");
    if (job->a.dim_qk == 32) return launch<T, fwd_shape<dq_bias_sizes<BIAS, 32>>>(be, job);
    return job->a.dim_qk == 64 ? launch<T, low>(be, job) : launch<T, high>(be, job);
}

status bwd_queries_bias(backend *be, const bwd_job *job) {
    TRY(job->a.bias == BIAS_TABLE ? choose<BIAS_TABLE>(be, job) : choose<BIAS_TIME>(be, job));
    return job->cells != NULL ? bias_finish(be, &job->a, job->cells) : OK;
}
