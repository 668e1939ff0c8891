/* The host side of the Hopper kernels: which calls they take, and the tensor maps that describe
 * arrays to TMA. */
#include "cuda/attn/sm90/attn_sm90_bias.cuh"

/* Tables are read tile by tile. */
static bool is_readable(const attn_args *a) {
    return a->bias != BIAS_TABLE || is_addressable(a->table, a->table_len);
}

/* dim_qk = dim_v, rows that TMA can address, a known number of rows, and no more tiles than an int
 * can count. */
static bool is_possible(const backend *be, const attn_args *a) {
    int64_t n_tiles = cuda_div_up(a->max_len_q, 64) + cuda_div_up(a->max_len_k, 64);
    return cuda_of(be)->sm == 90 && be->act != ACT_F32 && a->dim_qk == a->dim_v &&
           a->n_rows_q > 0 && a->n_rows_k > 0 && is_addressable(a->q, a->stride_q) &&
           is_addressable(a->k, a->stride_k) && is_addressable(a->v, a->stride_v) &&
           a->stride_out % 2 == 0 && (uintptr_t)a->out % 4 == 0 &&
           n_tiles * a->n_heads * a->n_sequences < (int64_t)1 << 30;
}

/* Biases are of bfloat16 alone, and of head dimensions up to 128: nobody trains others, which would
 * double the kernels to compile, and the kernels for every card have them. */
static bool can_bias(const backend *be, const attn_args *a) {
    return a->bias == BIAS_NONE || (be->act == ACT_BF16 && a->dim_qk <= 128 && is_readable(a));
}

bool cuda_attn_sm90_can_fwd(const backend *be, const attn_args *a) {
    int d = a->dim_qk;
    return (d == 32 || d == 64 || d == 128 || d == 256) && is_possible(be, a) && can_bias(be, a);
}

/* Where heads share a table, these kernels add to its gradient in an order that varies from run to
 * run, which deterministic mode forbids. */
static bool can_bias_bwd(const backend *be, const attn_args *a) {
    bool is_shared = a->bias == BIAS_TABLE && a->dtable != NULL && a->table_heads < a->n_heads;
    if (a->bias == BIAS_NONE) return true;
    return can_bias(be, a) && (uintptr_t)a->dtable % 8 == 0 &&
           !(is_shared && cuda_of(be)->is_deterministic);
}

/* float16 has the kernels of most models alone: not those for head dimension 256, nor those that
 * give a sum of dq one owner. */
static bool can_dim_bwd(const backend *be, const attn_args *a) {
    int d = a->dim_qk;
    if (be->act == ACT_F16 && (d == 256 || cuda_of(be)->is_deterministic)) return false;
    return d == 32 || d == 64 || d == 128 || d == 256;
}

bool cuda_attn_sm90_can_bwd(const backend *be, const attn_args *a) {
    return can_dim_bwd(be, a) && is_possible(be, a) && can_bias_bwd(be, a) &&
           is_addressable(a->dout, a->stride_out) && is_addressable(a->dq, a->stride_q) &&
           is_addressable(a->dk, a->stride_k) && is_addressable(a->dv, a->stride_v);
}

typedef CUresult (*encode_fn)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                              const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                              const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                              CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

/* Finds the driver's function at run time: the program must start without a driver. */
static status find_encode(encode_fn *out) {
    static encode_fn found;
    void *address = NULL;
    cudaDriverEntryPointQueryResult result;
    if (found == NULL) {
#if CUDART_VERSION >= 12050
        CUDA_TRY(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &address, 12000,
                                                  cudaEnableDefault, &result));
#else
        CUDA_TRY(cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &address, cudaEnableDefault,
                                         &result));
#endif
        if (result != cudaDriverEntryPointSuccess || address == NULL)
            return fail(ERR_DEVICE, "the driver has no cuTensorMapEncodeTiled; a newer one is "
                                    "needed for this GPU");
        found = (encode_fn)address;
    }
    *out = found;
    return OK;
}

/* Encodes a tensor map of `rank` dimensions: columns, rows and, at higher rank, parts of a row and
 * pages.  Rows of a box are swizzled by 128 or 64 bytes, their length. */
static status map_encode(CUtensorMap *map, act_type act, int rank, const void *rows,
                         const cuuint64_t *size, const cuuint64_t *step, const cuuint32_t *box) {
    encode_fn encode = NULL;
    TRY(find_encode(&encode));
    cuuint32_t unit[4] = {1, 1, 1, 1};
    CUresult error = encode(
        map, act == ACT_BF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
        (cuuint32_t)rank, (void *)rows, size, step, box, unit, CU_TENSOR_MAP_INTERLEAVE_NONE,
        box[0] == PART ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B,
        CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (error == CUDA_SUCCESS) return OK;
    return fail(ERR_DEVICE, "TMA cannot address %llu rows %llu elements apart (error %d)",
                (unsigned long long)size[1], (unsigned long long)(step[0] / 2), (int)error);
}

status sm90a_map_box(CUtensorMap *map, act_type act, const void *rows, int64_t n_rows,
                     int64_t n_columns, int64_t stride, int box_columns, int box_rows) {
    cuuint64_t size[2] = {(cuuint64_t)n_columns, (cuuint64_t)n_rows};
    cuuint64_t step[1] = {(cuuint64_t)stride * 2};
    cuuint32_t box[2] = {(cuuint32_t)box_columns, (cuuint32_t)box_rows};
    return map_encode(map, act, 2, rows, size, step, box);
}

status sm90a_map(CUtensorMap *map, act_type act, const void *rows, int64_t n_rows,
                 int64_t n_columns, int64_t stride) {
    return sm90a_map_box(map, act, rows, n_rows, n_columns, stride, PART, 64);
}

status sm90a_map_heads(CUtensorMap *map, act_type act, const void *rows, int64_t n_rows,
                       int64_t n_columns, int64_t stride, int box_columns, int box_rows, int dim) {
    cuuint64_t size[3] = {(cuuint64_t)box_columns, (cuuint64_t)n_rows,
                          (cuuint64_t)(n_columns / box_columns)};
    cuuint64_t step[2] = {(cuuint64_t)stride * 2, (cuuint64_t)box_columns * 2};
    cuuint32_t box[3] = {(cuuint32_t)box_columns, (cuuint32_t)box_rows,
                         (cuuint32_t)(dim / box_columns)};
    return map_encode(map, act, 3, rows, size, step, box);
}

status sm90a_map_pages(CUtensorMap *map, act_type act, const void *rows, int64_t n_columns,
                       int64_t page_rows, int64_t n_pages, int64_t stride, int box_rows, int dim) {
    cuuint64_t size[4] = {PART, (cuuint64_t)page_rows, (cuuint64_t)(n_columns / PART),
                          (cuuint64_t)n_pages};
    cuuint64_t step[3] = {(cuuint64_t)n_columns * 2, PART_BYTES, (cuuint64_t)stride * 2};
    cuuint32_t box[4] = {PART, (cuuint32_t)box_rows, (cuuint32_t)(dim / PART), 1};
    return map_encode(map, act, 4, rows, size, step, box);
}

status sm90a_bias_source(const backend *be, const attn_args *a, bias_source *out) {
    cuuint64_t n = (cuuint64_t)a->table_len;
    cuuint64_t size[3] = {n, n, (cuuint64_t)a->n_sequences * (cuuint64_t)a->table_heads};
    cuuint64_t step[2] = {n * 2, n * n * 2};
    cuuint32_t box[3] = {PART, TABLE_BOX, 1};
    memset(out, 0, sizeof *out);
    out->buckets = cuda_of(be)->bucket_cells;
    if (a->bias != BIAS_TABLE || a->n_sequences == 0) return OK;
    return map_encode(&out->table, be->act, 3, a->table, size, step, box);
}
