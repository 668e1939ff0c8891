/* HSTU attention in float32, backward (contract: attn_args in ops/ops.h).
 *
 * With p = dout . v and x = alpha (q . k + bias), per pair: a as in the forward pass, ds = p alpha
 * scale silu'(x); dv_j += a dout_i, dk_j += ds q_i, dq_i += ds k_j, and ds is the gradient of the
 * bias.  There are two kernels, and each owns the sums it computes, so that their order is fixed:
 * blocks of query rows sum dq and the bias, blocks of keys dk and dv.  Scores are computed twice,
 * seven products a pair; at small D bound by the arithmetic per pair.  See attn_f32.cuh for how a
 * warp works. */
#include "cuda/attn/common/attn_bias.cuh"
#include "cuda/attn/f32/attn_f32.cuh"

/* The ds of a warp's 16 rows and the columns of a tile.  They are added to the 64-bit cells of the
 * batch as integers, whose order does not matter: each diagonal is summed by one lane; for the time
 * bias each lane goes along half a row and adds the sum of each run of equal buckets to the warp's
 * own cells, which are multiples of a power of two 20 bits below the largest ds, so that 1024 of
 * them fit 32 bits. */
template <int COLUMNS> struct alignas(16) f32_strip {
    float ds[16][COLUMNS + 8];
    uint8_t bucket[16][COLUMNS + 8];
    int cell[BIAS_TIME_CELLS + 3];
};

enum { STRIP_BITS = 20, STRIP_SMALLEST = 30 }; /* below 2^-97 a strip counts as nothing */

__device__ static inline unsigned long long fixed_of(float x) {
    return (unsigned long long)__double2ll_rn((double)x * (double)(1ll << BIAS_FIXED_BITS));
}

template <int COLUMNS> __device__ static inline void strip_clear(f32_strip<COLUMNS> *t) {
    for (int i = (int)threadIdx.x % 32; i < BIAS_TIME_CELLS; i += 32)
        t->cell[i] = 0;
}

/* A square of ds whose first column is c. */
template <int COLUMNS>
__device__ static inline void strip_put(f32_strip<COLUMNS> *t, int c, const float ds[2][4],
                                        const int bucket[2][4]) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int row = lane_g() + i % 2 * 8, column = c + i / 2 * 8 + 2 * lane_t(), at = i % 2 * 2;
        *(float2 *)&t->ds[row][column] = make_float2(ds[i / 2][at], ds[i / 2][at + 1]);
        *(uchar2 *)&t->bucket[row][column] =
            make_uchar2((unsigned char)bucket[i / 2][at], (unsigned char)bucket[i / 2][at + 1]);
    }
}

/* Diagonal d starts at row 15 - d, column 0; it belongs to position cell first + d. */
template <int COLUMNS>
__device__ static inline void strip_add_positions(const f32_strip<COLUMNS> &t, int begin, int end,
                                                  unsigned long long *cells, int first) {
    for (int d = begin + (int)threadIdx.x % 32; d < end + 15; d += 32) {
        float sum = 0.0f;
#pragma unroll
        for (int r = 0; r < 16; r++) {
            int c = d + r - 15;
            if (c >= begin && c < end) sum += t.ds[r][c];
        }
        if (sum != 0.0f) atomicAdd(&cells[first + d], fixed_of(sum));
    }
}

__device__ static inline void add_run(int *cell, float sum, float per_unit) {
    if (sum != 0.0f) atomicAdd(cell, __float2int_rn(sum * per_unit));
}

/* Two lanes for each row, alternating every four columns: times ascend, so equal buckets come in
 * runs. */
template <int COLUMNS>
__device__ static inline void strip_add_runs(f32_strip<COLUMNS> *t, int begin, int end,
                                             float per_unit) {
    int row = (int)threadIdx.x % 32 / 2, bucket = 0;
    float sum = 0.0f;
    for (int c = begin + (int)threadIdx.x % 2 * 4; c < end; c += 8) {
        float4 ds = *(const float4 *)&t->ds[row][c];
        uchar4 at = *(const uchar4 *)&t->bucket[row][c];
        const float x[4] = {ds.x, ds.y, ds.z, ds.w};
        const int b[4] = {at.x, at.y, at.z, at.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (b[i] != bucket) {
                add_run(&t->cell[bucket], sum, per_unit);
                bucket = b[i];
                sum = 0.0f;
            }
            sum += x[i];
        }
    }
    add_run(&t->cell[bucket], sum, per_unit);
}

/* Sums the strip's columns begin .. end - 1 (multiples of 16), which the calling warp has written;
 * `largest` is the lane's largest |ds|, `first` the position cell of row 15, column 0. */
template <int COLUMNS>
__device__ static inline void strip_flush(f32_strip<COLUMNS> *t, int begin, int end, float largest,
                                          unsigned long long *cells, int n_positions, int first) {
    for (int lane = 16; lane > 0; lane /= 2)
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, lane));
    int exponent = (int)(__float_as_uint(largest) >> 23); /* largest < 2^(exponent - 126) */
    if (exponent < STRIP_SMALLEST) return;
    __syncwarp();
    strip_add_positions(*t, begin, end, cells, first);
    float per_unit = __uint_as_float((unsigned)(127 + 126 + STRIP_BITS - exponent) << 23);
    strip_add_runs(t, begin, end, per_unit);
    __syncwarp();
    double unit = __longlong_as_double(
        (long long)(1023 + exponent - 126 - STRIP_BITS + BIAS_FIXED_BITS) << 52);
    for (int i = (int)threadIdx.x % 32; i < BIAS_TIME_CELLS; i += 32) {
        if (t->cell[i] == 0) continue;
        atomicAdd(&cells[n_positions + i], (unsigned long long)__double2ll_rn(t->cell[i] * unit));
        t->cell[i] = 0;
    }
    __syncwarp();
}

/* The derivative of SiLU at y. */
__device__ static inline float slope(float y, float sigmoid) {
    return sigmoid + sigmoid * (y - y * sigmoid);
}

/* At DIM = 256 there is no room for strips: pair by pair, which is slow but rare. */
static __device__ void add_bias_pairs(const float ds[2][4], const int bucket[2][4],
                                      unsigned long long *cells, int n_positions, int first) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
        float x = ds[i / 4][i % 4];
        if (x == 0.0f) continue;
        atomicAdd(&cells[first + i / 4 * 8 + i % 2 - i % 4 / 2 * 8], fixed_of(x));
        atomicAdd(&cells[n_positions + bucket[i / 4][i % 4]], fixed_of(x));
    }
}

template <int DIM> static size_t dq_shared(bool has_strips) {
    using shape = f32_shape<DIM>;
    size_t rows = 2 * shape::BWD_COLUMNS + (shape::IS_KEPT ? 0 : 2 * shape::ROWS);
    size_t strips = has_strips ? shape::WARPS * sizeof(f32_strip<shape::BWD_COLUMNS>) : 0;
    return sizeof(float) * shape::STRIDE * rows + strips;
}

/* Heads that share a table add to the same elements, so a block processes n_serial heads in
 * order. */
template <int DIM, bool EXACT>
static __global__
__launch_bounds__(f32_shape<DIM>::THREADS, DIM == 32 && !EXACT ? 3 : 2) void attn_bwd_dq_f32_kernel(
    const __grid_constant__ attn_args a, const uint32_t *bucket_cells, unsigned long long *cells,
    int n_tiles, int n_serial) {
    using shape = f32_shape<DIM>;
    constexpr int ROWS = shape::ROWS, COLUMNS = shape::BWD_COLUMNS, STRIDE = shape::STRIDE;
    constexpr bool IS_STAGED = f32_buckets<DIM>::IS_STAGED;
    extern __shared__ float4 f32_tiles[];
    __shared__ f32_time_room<ROWS, COLUMNS, COLUMNS> room;
    __shared__ f32_reach reach;
    __shared__ f32_buckets<DIM> buckets;
    float *k_tile = (float *)f32_tiles, *v_tile = k_tile + COLUMNS * STRIDE;
    float *q_tile = v_tile + COLUMNS * STRIDE, *dout_tile = q_tile + ROWS * STRIDE;
    f32_strip<COLUMNS> *strip =
        (f32_strip<COLUMNS> *)(shape::IS_KEPT ? q_tile : dout_tile + ROWS * STRIDE) +
        threadIdx.x / 32;

    int n_groups = a.n_heads / n_serial, n_pairs = a.n_sequences * n_groups;
    int pair = (int)(blockIdx.x % (unsigned)n_pairs);
    int row0 = (n_tiles - 1 - (int)(blockIdx.x / (unsigned)n_pairs)) * ROWS;
    attn_sequence s = attn_sequence_of(&a, pair / n_groups);
    if (row0 >= s.len_q) return;
    const uint32_t *cell = IS_STAGED ? buckets.cell : bucket_cells;
    const float *weight = IS_STAGED ? buckets.weight : a.time_w;
    bool is_time = a.bias == BIAS_TIME;
    int64_t first = s.row_q + row0;
    int i0 = row0 + s.shift, n_positions = 2 * a.bias_len - 1;
    f32_queries rows = queries_of(a, s, row0);
    if (threadIdx.x == 0) reach = reach_of<COLUMNS>(a, s, row0, ROWS);
    __syncthreads();
    if (is_time) {
        buckets_load(&buckets, a, bucket_cells);
        if constexpr (IS_STAGED) strip_clear(strip);
    }

    for (int head = pair % n_groups * n_serial, n = 0; n < n_serial; head++, n++) {
        const float *k = (const float *)a.k + s.row_k * a.stride_k + head * a.dim_qk;
        const float *v = (const float *)a.v + s.row_k * a.stride_v + head * a.dim_v;
        int64_t table = table_begin(a, s, head);
        f32_rows<DIM, EXACT> query, dout;
        if (n > 0) __syncthreads();
        rows_load(&query, q_tile, (const float *)a.q + first * a.stride_q + head * a.dim_qk,
                  a.stride_q, a.dim_qk, s.len_q - row0);
        rows_load(&dout, dout_tile, (const float *)a.dout + first * a.stride_out + head * a.dim_v,
                  a.stride_out, a.dim_v, s.len_q - row0);

        float dq[DIM / 8][4] = {};
        for (int j0 = reach.begin; j0 < reach.end; j0 += COLUMNS) {
            if (reach_skips<COLUMNS>(reach, j0)) continue;
            __syncthreads();
            tile_begin<DIM, COLUMNS>(k_tile, k + j0 * a.stride_k, a.stride_k, a.dim_qk,
                                     s.len_k - j0);
            tile_begin<DIM, COLUMNS>(v_tile, v + j0 * a.stride_v, a.stride_v, a.dim_v,
                                     s.len_k - j0);
            if (is_time)
                time_room_tile<shape::THREADS>(&room, a, a.key_time + s.row_k + j0, s.len_k - j0,
                                               i0, j0);
            tile_end<DIM, COLUMNS, EXACT>(k_tile);
            tile_end<DIM, COLUMNS, EXACT>(v_tile);
            __syncthreads();

            int begin, end;
            float largest = 0.0f;
            queries_squares<COLUMNS>(rows, j0, &begin, &end);
            for (int c = begin; c < end; c += 16) {
                float x[2][4], p[2][4];
                int bucket[2][4];
                f32_place at = {rows.row - row0, c + 2 * lane_t()};
                unsigned seen = queries_see(a, s, rows, j0 + at.column);
                score_square<DIM, EXACT>(x, query, k_tile + c * STRIDE, a.dim_qk);
                score_square<DIM, EXACT>(p, dout, v_tile + c * STRIDE, a.dim_v);
                if (is_time)
                    add_time_bias<false>(x, bucket, room, cell, weight, rows.time, at);
                else if (a.bias == BIAS_TABLE)
                    add_table_bias<false>(x, a, (const float *)a.table + table, at, i0, j0, seen);
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    float y = a.alpha * x[i / 4][i % 4];
                    float ds =
                        p[i / 4][i % 4] * (a.alpha * a.scale) * slope(y, sigmoid_of<EXACT>(y));
                    x[i / 4][i % 4] = seen >> i & 1 ? ds : 0.0f;
                    largest = fmaxf(largest, fabsf(x[i / 4][i % 4]));
                }
                add_product<DIM, EXACT>(dq, x, k_tile + c * STRIDE, a.dim_qk);
                if (is_time) {
                    if constexpr (IS_STAGED)
                        strip_put(strip, c, x, bucket);
                    else
                        add_bias_pairs(x, bucket, cells, n_positions,
                                       a.bias_len - 1 + j0 + at.column - i0 - at.row);
                } else if (a.bias == BIAS_TABLE && a.dtable != NULL) {
                    add_table_grad(a, table, at, i0, j0, seen, x);
                }
            }
            if constexpr (IS_STAGED)
                if (is_time && begin < end)
                    strip_flush(strip, begin, end, largest, cells, n_positions,
                                a.bias_len - 1 + j0 - i0 - (int)threadIdx.x / 32 * 16 - 15);
        }
        store_rows<DIM>((float *)a.dq + first * a.stride_q + head * a.dim_qk, a.stride_q, a.dim_qk,
                        s.len_q - row0, dq);
    }
}

/* Registers hold the sums of both dk and dv, except at DIM = 256, where each has its own launch:
 * is_dk is the one of dk. */
template <int DIM> static size_t dkv_shared(bool is_dk) {
    using shape = f32_shape<DIM>;
    size_t own = shape::IS_KEPT ? 0 : DIM == 256 && !is_dk ? shape::ROWS : 2 * shape::ROWS;
    return sizeof(float) * shape::STRIDE * (2 * shape::BWD_COLUMNS + own);
}

/* Blocks of a multiprocessor. */
template <int DIM, bool EXACT> static constexpr int dkv_blocks = DIM == 32 && !EXACT ? 4 : 2;

template <int DIM, bool EXACT>
static __global__ void __launch_bounds__(f32_shape<DIM>::THREADS, (dkv_blocks<DIM, EXACT>))
    attn_bwd_dkv_f32_kernel(const __grid_constant__ attn_args a, const uint32_t *bucket_cells,
                            bool is_dk) {
    using shape = f32_shape<DIM>;
    constexpr int ROWS = shape::ROWS, COLUMNS = shape::BWD_COLUMNS, STRIDE = shape::STRIDE;
    constexpr bool HAS_BOTH = DIM < 256;
    constexpr bool IS_STAGED = f32_buckets<DIM>::IS_STAGED;
    extern __shared__ float4 f32_tiles[];
    __shared__ f32_time_room<COLUMNS, ROWS, COLUMNS> room;
    __shared__ f32_buckets<DIM> buckets;
    __shared__ f32_masks<COLUMNS> masks;
    float *q_tile = (float *)f32_tiles, *dout_tile = q_tile + COLUMNS * STRIDE;
    float *k_tile = dout_tile + COLUMNS * STRIDE, *v_tile = k_tile + ROWS * STRIDE;

    int n_pairs = a.n_sequences * a.n_heads, pair = (int)(blockIdx.x % (unsigned)n_pairs);
    int j0 = (int)(blockIdx.x / (unsigned)n_pairs) * ROWS, head = pair % a.n_heads;
    attn_sequence s = attn_sequence_of(&a, pair / a.n_heads);
    if (j0 >= s.len_k) return;
    const float *q = (const float *)a.q + s.row_q * a.stride_q + head * a.dim_qk;
    const float *dout = (const float *)a.dout + s.row_q * a.stride_out + head * a.dim_v;
    const float *table = (const float *)a.table + table_begin(a, s, head);
    int64_t first = s.row_k + j0;
    f32_rows<DIM, EXACT> key, value;
    rows_load(&key, k_tile, (const float *)a.k + first * a.stride_k + head * a.dim_qk, a.stride_k,
              a.dim_qk, s.len_k - j0);
    if (HAS_BOTH || is_dk)
        rows_load(&value, v_tile, (const float *)a.v + first * a.stride_v + head * a.dim_v,
                  a.stride_v, a.dim_v, s.len_k - j0);

    const uint32_t *cell = IS_STAGED ? buckets.cell : bucket_cells;
    const float *weight = IS_STAGED ? buckets.weight : a.time_w;
    int warp_row = (int)threadIdx.x / 32 * 16, row = warp_row + lane_g();
    int64_t time[2] = {0, 0};
    if (a.bias == BIAS_TIME) {
        buckets_load(&buckets, a, bucket_cells);
        if (j0 + row < s.len_k) time[0] = a.key_time[first + row];
        if (j0 + row + 8 < s.len_k) time[1] = a.key_time[first + row + 8];
    }

    float dk[HAS_BOTH ? DIM / 8 : 1][4] = {}, dv[DIM / 8][4] = {}; /* dv: the only sum */
    for (int row0 = 0; row0 < s.len_q; row0 += COLUMNS) {
        if (tile_is_empty(a, s, row0, row0 + COLUMNS, j0, j0 + ROWS)) continue;
        int i0 = row0 + s.shift, n_rows = s.len_q - row0;
        __syncthreads();
        tile_begin<DIM, COLUMNS>(q_tile, q + row0 * a.stride_q, a.stride_q, a.dim_qk, n_rows);
        tile_begin<DIM, COLUMNS>(dout_tile, dout + row0 * a.stride_out, a.stride_out, a.dim_v,
                                 n_rows);
        masks_load(&masks, a, s, row0);
        if (a.bias == BIAS_TIME)
            time_room_tile<shape::THREADS>(&room, a, a.query_time + s.row_q + row0, n_rows, i0, j0);
        tile_end<DIM, COLUMNS, EXACT>(q_tile);
        tile_end<DIM, COLUMNS, EXACT>(dout_tile);
        __syncthreads();

        for (int c = 0; c < COLUMNS; c += 16) {
            int key0 = j0 + warp_row;
            if (masks.begin[c / 16] >= key0 + 16 || masks.end[c / 16] <= key0) continue;
            float x[2][4], p[2][4] = {};
            int bucket[2][4];
            f32_place at = {row, c + 2 * lane_t()};
            unsigned seen = masks_see(a, s, masks, at, row0 + at.column, j0 + row);
            score_square<DIM, EXACT>(x, key, q_tile + c * STRIDE, a.dim_qk);
            if (HAS_BOTH || is_dk)
                score_square<DIM, EXACT>(p, value, dout_tile + c * STRIDE, a.dim_v);
            if (a.bias == BIAS_TIME)
                add_time_bias<true>(x, bucket, room, cell, weight, time, at);
            else if (a.bias == BIAS_TABLE)
                add_table_bias<true>(x, a, table, at, i0, j0, seen);
#pragma unroll
            for (int i = 0; i < 8; i++) {
                float y = a.alpha * x[i / 4][i % 4], sigmoid = sigmoid_of<EXACT>(y);
                bool is_seen = seen >> i & 1;
                x[i / 4][i % 4] = is_seen ? y * sigmoid * a.scale : 0.0f;
                float ds = p[i / 4][i % 4] * (a.alpha * a.scale) * slope(y, sigmoid);
                p[i / 4][i % 4] = is_seen ? ds : 0.0f;
                if (!HAS_BOTH && is_dk) x[i / 4][i % 4] = p[i / 4][i % 4];
            }
            if constexpr (HAS_BOTH) {
                add_product<DIM, EXACT>(dv, x, dout_tile + c * STRIDE, a.dim_v);
                add_product<DIM, EXACT>(dk, p, q_tile + c * STRIDE, a.dim_qk);
            } else {
                add_product<DIM, EXACT>(dv, x, (is_dk ? q_tile : dout_tile) + c * STRIDE,
                                        is_dk ? a.dim_qk : a.dim_v);
            }
        }
    }
    constexpr bool IS_TIGHT = DIM == 32 && !EXACT;
    if constexpr (HAS_BOTH)
        store_rows<DIM, IS_TIGHT>((float *)a.dk + first * a.stride_k + head * a.dim_qk, a.stride_k,
                                  a.dim_qk, s.len_k - j0, dk);
    bool is_other = !HAS_BOTH && is_dk;
    float *to = (float *)(is_other ? a.dk : a.dv);
    int64_t stride = is_other ? a.stride_k : a.stride_v;
    int dim = is_other ? a.dim_qk : a.dim_v;
    store_rows<DIM, IS_TIGHT>(to + first * stride + head * dim, stride, dim, s.len_k - j0, dv);
}

template <int DIM, bool EXACT>
static status launch_dq(backend *be, const attn_args *a, unsigned long long *cells) {
    bool is_shared = a->bias == BIAS_TABLE && a->dtable != NULL && a->table_heads == 1;
    int n_serial = is_shared ? a->n_heads : 1;
    int64_t n_tiles = cuda_div_up(a->max_len_q, f32_shape<DIM>::ROWS);
    int64_t n_blocks = n_tiles * a->n_sequences * (a->n_heads / n_serial);
    size_t bytes = dq_shared<DIM>(a->bias == BIAS_TIME && f32_buckets<DIM>::IS_STAGED);
    if (n_blocks == 0) return OK;
    return cuda_launch(be, "the float32 attention's dq", attn_bwd_dq_f32_kernel<DIM, EXACT>,
                       n_blocks, f32_shape<DIM>::THREADS, bytes, *a, cuda_of(be)->bucket_cells,
                       cells, (int)n_tiles, n_serial);
}

template <int DIM, bool EXACT>
static status launch_dkv(backend *be, const attn_args *a, bool is_dk) {
    int64_t n_tiles = cuda_div_up(a->max_len_k, f32_shape<DIM>::ROWS);
    int64_t n_blocks = n_tiles * a->n_sequences * a->n_heads;
    size_t bytes = dkv_shared<DIM>(is_dk);
    if (n_blocks == 0) return OK;
    return cuda_launch(be, "the float32 attention's dk and dv", attn_bwd_dkv_f32_kernel<DIM, EXACT>,
                       n_blocks, f32_shape<DIM>::THREADS, bytes, *a, cuda_of(be)->bucket_cells,
                       is_dk);
}

template <int DIM, bool EXACT>
static status launch(backend *be, const attn_args *a, unsigned long long *cells) {
    TRY((launch_dq<DIM, EXACT>(be, a, cells)));
    TRY((launch_dkv<DIM, EXACT>(be, a, false)));
    return DIM < 256 ? OK : launch_dkv<DIM, EXACT>(be, a, true);
}

static status launch_dim(backend *be, const attn_args *a, unsigned long long *cells) {
    int dim = a->dim_qk > a->dim_v ? a->dim_qk : a->dim_v;
    bool is_tf32 = cuda_of(be)->is_tf32;
    if (dim <= 32)
        return is_tf32 ? launch<32, false>(be, a, cells) : launch<32, true>(be, a, cells);
    if (dim <= 64)
        return is_tf32 ? launch<64, false>(be, a, cells) : launch<64, true>(be, a, cells);
    if (dim <= 128) return launch<128, true>(be, a, cells);
    if (dim <= 256) return launch<256, true>(be, a, cells);
    return fail(ERR_UNSUPPORTED, "attention on a GPU: head dimension %d; at most 256", dim);
}

status cuda_attn_f32_bwd(backend *be, const attn_args *a) {
    void *cells = NULL;
    if (a->n_sequences == 0) return OK;
    if (a->bias == BIAS_TIME) {
        TRY(cuda_scratch(be, bias_cells_bytes(a), &cells));
        CUDA_TRY(cudaMemsetAsync(cells, 0, bias_cells_bytes(a), cuda_of(be)->stream));
    }
    TRY(launch_dim(be, a, (unsigned long long *)cells));
    return a->bias == BIAS_TIME ? bias_finish(be, a, (const unsigned long long *)cells) : OK;
}
