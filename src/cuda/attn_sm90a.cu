/* The host's side of the Hopper kernels: which calls they take, and how the copy engine is told of
 * an array. */
#include "cuda/attn_sm90a.cuh"

static bool is_addressable(const void *rows, int64_t stride) {
    return (uintptr_t)rows % 16 == 0 && stride % 8 == 0 && stride > 0;
}

/* No bias, heads of 128 or 256 numbers, rows the copy engine can address and whose number is known.
 */
bool cuda_attn_sm90a_can(const backend *be, const attn_args *a) {
    bool is_size = a->dim_qk == a->dim_v && (a->dim_qk == 128 || a->dim_qk == 256);
    return cuda_of(be)->sm == 90 && be->act != ACT_F32 && a->bias == BIAS_NONE && is_size &&
           a->n_rows_q > 0 && a->n_rows_k > 0 && is_addressable(a->q, a->stride_q) &&
           is_addressable(a->k, a->stride_k) && is_addressable(a->v, a->stride_v) &&
           a->stride_out % 2 == 0 && (uintptr_t)a->out % 4 == 0;
}

typedef CUresult (*encode_fn)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                              const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                              const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                              CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

/* The driver's function, asked for at run time: the program must start without a driver. */
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

status sm90a_map(CUtensorMap *map, act_type act, const void *rows, int64_t n_rows,
                 int64_t n_columns, int64_t stride) {
    encode_fn encode = NULL;
    TRY(find_encode(&encode));
    cuuint64_t size[2] = {(cuuint64_t)n_columns, (cuuint64_t)n_rows};
    cuuint64_t step[1] = {(cuuint64_t)stride * 2};
    cuuint32_t box[2] = {PART, 64}, unit[2] = {1, 1};
    CUresult error = encode(
        map, act == ACT_BF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
        2, (void *)rows, size, step, box, unit, CU_TENSOR_MAP_INTERLEAVE_NONE,
        CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (error == CUDA_SUCCESS) return OK;
    return fail(ERR_DEVICE, "the copy engine cannot address %lld rows of %lld numbers (error %d)",
                (long long)n_rows, (long long)n_columns, (int)error);
}
