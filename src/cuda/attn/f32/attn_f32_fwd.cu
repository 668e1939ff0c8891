/* HSTU attention in float32, forward (contract: attn_args in ops/ops.h).
 *
 * A block owns ROWS query rows of one sequence and head and walks over its keys; see attn_f32.cuh
 * for how a warp works.  Blocks late in a sequence have the most keys, so they start first.  Shared
 * memory: 2 * COLUMNS * STRIDE floats, 36 KB at DIM = 32, and ROWS * STRIDE more where the queries
 * are not kept in registers. */
#include "cuda/attn/f32/attn_f32.cuh"

template <int DIM> static constexpr size_t fwd_shared() {
    using shape = f32_shape<DIM>;
    return sizeof(float) * shape::STRIDE *
           (2 * shape::FWD_COLUMNS + (shape::IS_KEPT ? 0 : shape::ROWS));
}

template <int DIM, bool EXACT>
static __global__ __launch_bounds__(f32_shape<DIM>::THREADS) void attn_fwd_f32_kernel(
    const __grid_constant__ attn_args a, const uint32_t *cells, int n_tiles) {
    using shape = f32_shape<DIM>;
    constexpr int ROWS = shape::ROWS, COLUMNS = shape::FWD_COLUMNS, STRIDE = shape::STRIDE;
    extern __shared__ float4 f32_tiles[];
    __shared__ f32_time_room<ROWS, COLUMNS, COLUMNS> room;
    __shared__ f32_buckets<DIM> buckets;
    float *k_tile = (float *)f32_tiles, *v_tile = k_tile + COLUMNS * STRIDE;

    int n_pairs = a.n_sequences * a.n_heads, pair = (int)(blockIdx.x % (unsigned)n_pairs);
    int row0 = (n_tiles - 1 - (int)(blockIdx.x / (unsigned)n_pairs)) * ROWS;
    int head = pair % a.n_heads;
    attn_sequence s = attn_sequence_of(&a, pair / a.n_heads);
    if (row0 >= s.len_q) return;

    const float *k = (const float *)a.k + s.row_k * a.stride_k + head * a.dim_qk;
    const float *v = (const float *)a.v + s.row_k * a.stride_v + head * a.dim_v;
    const float *table = (const float *)a.table + table_begin(a, s, head);
    int64_t first = s.row_q + row0;
    f32_rows<DIM, EXACT> query;
    rows_load(&query, v_tile + COLUMNS * STRIDE,
              (const float *)a.q + first * a.stride_q + head * a.dim_qk, a.stride_q, a.dim_qk,
              s.len_q - row0);
    f32_queries rows = queries_of(a, s, row0);
    constexpr bool IS_STAGED = f32_buckets<DIM>::IS_STAGED;
    const uint32_t *cell = IS_STAGED ? buckets.cell : cells;
    const float *weight = IS_STAGED ? buckets.weight : a.time_w;
    if (a.bias == BIAS_TIME) buckets_load(&buckets, a, cells);

    float out[DIM / 8][4] = {};
    for (int j0 = 0; j0 < s.len_k; j0 += COLUMNS) {
        if (tile_is_empty(a, s, row0, row0 + ROWS, j0, j0 + COLUMNS)) continue;
        __syncthreads();
        tile_begin<DIM, COLUMNS>(k_tile, k + j0 * a.stride_k, a.stride_k, a.dim_qk, s.len_k - j0);
        tile_begin<DIM, COLUMNS>(v_tile, v + j0 * a.stride_v, a.stride_v, a.dim_v, s.len_k - j0);
        if (a.bias == BIAS_TIME)
            time_room_tile<shape::THREADS>(&room, a, a.key_time + s.row_k + j0, s.len_k - j0,
                                           row0 + s.shift, j0);
        tile_end<DIM, COLUMNS, EXACT>(k_tile);
        tile_end<DIM, COLUMNS, EXACT>(v_tile);
        __syncthreads();

        int begin, end;
        queries_squares<COLUMNS>(rows, j0, &begin, &end);
        for (int c = begin; c < end; c += 16) {
            float x[2][4];
            int bucket[2][4];
            f32_place at = {rows.row - row0, c + 2 * lane_t()};
            unsigned seen = queries_see(a, s, rows, j0 + at.column);
            score_square<DIM, EXACT>(x, query, k_tile + c * STRIDE, a.dim_qk);
            if (a.bias == BIAS_TIME)
                add_time_bias<false>(x, bucket, room, cell, weight, rows.time, at);
            else if (a.bias == BIAS_TABLE)
                add_table_bias<false>(x, a, table, at, row0 + s.shift, j0, seen);
#pragma unroll
            for (int i = 0; i < 8; i++) {
                float y = a.alpha * x[i / 4][i % 4];
                float p = y * sigmoid_of<EXACT>(y) * a.scale;
                x[i / 4][i % 4] = seen >> i & 1 ? p : 0.0f;
            }
            add_product<DIM, EXACT>(out, x, v_tile + c * STRIDE, a.dim_v);
        }
    }
    head = (int)(block_index() % (unsigned)n_pairs) % a.n_heads; /* not kept through the loop */
    store_rows<DIM>((float *)a.out + first * a.stride_out + head * a.dim_v, a.stride_out, a.dim_v,
                    s.len_q - row0, out);
}

template <int DIM, bool EXACT> static status launch(backend *be, const attn_args *a) {
    int64_t n_tiles = cuda_div_up(a->max_len_q, f32_shape<DIM>::ROWS);
    int64_t n_blocks = n_tiles * a->n_sequences * a->n_heads;
    if (n_blocks == 0) return OK;
    return cuda_launch(be, "the float32 attention", attn_fwd_f32_kernel<DIM, EXACT>, n_blocks,
                       f32_shape<DIM>::THREADS, fwd_shared<DIM>(), *a, cuda_of(be)->bucket_cells,
                       (int)n_tiles);
}

status cuda_attn_f32_fwd(backend *be, const attn_args *a) {
    int dim = a->dim_qk > a->dim_v ? a->dim_qk : a->dim_v;
    bool is_tf32 = cuda_of(be)->is_tf32;
    if (dim <= 32) return is_tf32 ? launch<32, false>(be, a) : launch<32, true>(be, a);
    if (dim <= 64) return is_tf32 ? launch<64, false>(be, a) : launch<64, true>(be, a);
    if (dim <= 128) return launch<128, true>(be, a);
    if (dim <= 256) return launch<256, true>(be, a);
    return fail(ERR_UNSUPPORTED, "attention on a GPU: head dimension %d; at most 256", dim);
}
