/* Stores of fragments of a warp's products (their register layout: ptx.cuh). */
#ifndef HSTU_CUDA_ATTN_COMMON_ATTN_FRAGMENT_CUH
#define HSTU_CUDA_ATTN_COMMON_ATTN_FRAGMENT_CUH

#include <stdint.h>

/* Transposes the 4 x 4 words that four neighbouring lanes hold: word s of lane t becomes word t of
 * lane s.  A row of a fragment is spread over four lanes, 4 bytes each; afterwards each lane has 16
 * contiguous bytes of the row, one store. */
__device__ static inline void transpose_quad(uint32_t (&v)[4]) {
    bool is_odd = threadIdx.x & 1, is_high = threadIdx.x & 2;
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        uint32_t other = __shfl_xor_sync(0xffffffffu, is_odd ? v[i] : v[i + 1], 1);
        if (is_odd)
            v[i] = other;
        else
            v[i + 1] = other;
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint32_t other = __shfl_xor_sync(0xffffffffu, is_high ? v[i] : v[i + 2], 2);
        if (is_high)
            v[i] = other;
        else
            v[i + 2] = other;
    }
}

#endif
