/* Sums over a warp and over a block, in a fixed order: the same bits every time. */
#ifndef HSTU_CUDA_CORE_REDUCE_CUH
#define HSTU_CUDA_CORE_REDUCE_CUH

enum { WARP = 32 };

/* Every lane gets the sum. */
template <typename T> __device__ static inline T warp_sum(T x) {
    for (int lane = WARP / 2; lane > 0; lane /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, lane);
    return x;
}

__device__ static inline float warp_max(float x) {
    for (int lane = WARP / 2; lane > 0; lane /= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, lane));
    return x;
}

/* Every thread of a block of whole warps gets the sum; `room` is shared memory for 32 floats, free
 * again when this returns. */
template <typename T> __device__ static inline T block_sum(T x, T *room) {
    int warp = (int)threadIdx.x / WARP, n_warps = ((int)blockDim.x + WARP - 1) / WARP;
    x = warp_sum(x);
    if (threadIdx.x % WARP == 0) room[warp] = x;
    __syncthreads();
    x = threadIdx.x % WARP < n_warps ? room[threadIdx.x % WARP] : T(0);
    x = warp_sum(x);
    __syncthreads();
    return x;
}

#endif
