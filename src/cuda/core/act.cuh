/* Activations in kernels: float32, bfloat16 and float16 behind one interface.  Arithmetic is
 * float32 everywhere; the type only says how elements are stored. */
#ifndef HSTU_CUDA_CORE_ACT_CUH
#define HSTU_CUDA_CORE_ACT_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cuda/core/cuda.h"

__device__ static inline float to_float(float x) {
    return x;
}
__device__ static inline float to_float(__nv_bfloat16 x) {
    return __bfloat162float(x);
}
__device__ static inline float to_float(__half x) {
    return __half2float(x);
}

template <typename T> __device__ static inline T from_float(float x);
template <> __device__ inline float from_float<float>(float x) {
    return x;
}
template <> __device__ inline __nv_bfloat16 from_float<__nv_bfloat16>(float x) {
    return __float2bfloat16_rn(x);
}
template <> __device__ inline __half from_float<__half>(float x) {
    return __float2half_rn(x);
}

/* N elements that are read or written at once; their address must be a multiple of their total
 * size. */
template <typename T, int N> struct alignas(sizeof(T) * N) pack { T v[N]; };

/* Whether rows of `dim` elements of `size` bytes, `stride` elements apart, starting at p, can be
 * read in packs of n. */
static inline bool can_pack(const void *p, int64_t stride, int64_t dim, size_t size, int n) {
    return (uintptr_t)p % (size * (size_t)n) == 0 && stride % n == 0 && dim % n == 0;
}

/* Runs `...` with T as the backend's type of activations: CUDA_WITH_ACT(be, return launch<T>(a)).
 */
#define CUDA_WITH_ACT(be, ...)                                                                     \
    do {                                                                                           \
        if ((be)->act == ACT_BF16) {                                                               \
            using T = __nv_bfloat16;                                                               \
            __VA_ARGS__;                                                                           \
        } else if ((be)->act == ACT_F16) {                                                         \
            using T = __half;                                                                      \
            __VA_ARGS__;                                                                           \
        } else {                                                                                   \
            using T = float;                                                                       \
            __VA_ARGS__;                                                                           \
        }                                                                                          \
    } while (0)

static inline cudaDataType_t cuda_act_type(act_type act) {
    return act == ACT_BF16 ? CUDA_R_16BF : act == ACT_F16 ? CUDA_R_16F : CUDA_R_32F;
}

#endif
