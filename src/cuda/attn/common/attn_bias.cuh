/* Gradients of the position and time bias: sums over all pairs of a batch into a few hundred cells.
 *
 * They are sums of integers, so their order does not matter and the bits are the same every time.
 * The gradients of a tile of pairs are rounded to multiples of a power of two, 18 bits below the
 * largest one, so that a sum of 4096 of them fits 32 bits, which shared memory adds natively; the
 * tile's cells are then added to 64-bit cells of the whole batch, multiples of 2^-46. */
#pragma once

#include "cuda/core/kernel.cuh"

enum { BIAS_TIME_CELLS = ATTN_TIME_BUCKETS + 1, BIAS_FIXED_BITS = 46, BIAS_TILE_BITS = 18 };

/* The cells of one tile of at most 4096 pairs, in shared memory.  `position` has a cell for each
 * diagonal of the tile: the caller numbers them from 0. */
template <int DIAGONALS> struct bias_tile {
    int time[BIAS_TIME_CELLS];
    int position[DIAGONALS];
    unsigned largest; /* bits of the largest |gradient|: non-negative floats compare like ints */
};

template <int D> __device__ static inline void bias_tile_clear(bias_tile<D> *t) {
    for (int i = (int)threadIdx.x; i < BIAS_TIME_CELLS; i += (int)blockDim.x)
        t->time[i] = 0;
    for (int i = (int)threadIdx.x; i < D; i += (int)blockDim.x)
        t->position[i] = 0;
    if (threadIdx.x == 0) t->largest = 0;
}

/* First every thread reports the largest value it is going to add (a barrier follows) ... */
template <int D> __device__ static inline void bias_tile_see(bias_tile<D> *t, float largest) {
    largest = fabsf(largest);
    for (int lane = 16; lane > 0; lane /= 2)
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, lane));
    if (threadIdx.x % 32 == 0) atomicMax(&t->largest, __float_as_uint(largest));
}

/* ... then all threads know the exponent e of the tile's unit, 2^e ... */
template <int D> __device__ static inline int bias_tile_exponent(const bias_tile<D> *t) {
    return (int)(t->largest >> 23) - 126 - BIAS_TILE_BITS;
}

/* ... and add; x is in units of 2^e: __float2int_rn(ldexp(ds, -e)). */
template <int D>
__device__ static inline void bias_tile_add(bias_tile<D> *t, int x, int bucket, int diagonal) {
    atomicAdd(&t->time[bucket], x);
    atomicAdd(&t->position[diagonal], x);
}

/* After a barrier the whole block adds the tile to the batch: diagonal 0 belongs to position cell
 * `first`. cells: 2 bias_len - 1 position cells, then BIAS_TIME_CELLS.  Diagonals outside are
 * skipped. */
template <int D>
__device__ static inline void bias_tile_flush(const bias_tile<D> *t, unsigned long long *cells,
                                              int bias_len, int first) {
    if (t->largest == 0) return;
    double unit = ldexp(1.0, bias_tile_exponent(t) + BIAS_FIXED_BITS);
    int n_positions = 2 * bias_len - 1;
    for (int i = (int)threadIdx.x; i < BIAS_TIME_CELLS; i += (int)blockDim.x)
        if (t->time[i] != 0)
            atomicAdd(&cells[n_positions + i],
                      (unsigned long long)__double2ll_rn(t->time[i] * unit));
    for (int i = (int)threadIdx.x; i < D; i += (int)blockDim.x)
        if (t->position[i] != 0 && first + i >= 0 && first + i < n_positions)
            atomicAdd(&cells[first + i], (unsigned long long)__double2ll_rn(t->position[i] * unit));
}

/* Bytes of the cells of a batch; zero the cells before the kernels, call finish after them. */
static inline size_t bias_cells_bytes(const attn_args *a) {
    return (size_t)(2 * a->bias_len - 1 + BIAS_TIME_CELLS) * sizeof(unsigned long long);
}

static __global__ void attn_bwd_bias_sums_any_kernel(const unsigned long long *cells,
                                                     int n_positions, float *dposition_w,
                                                     float *dtime_w) {
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= n_positions + BIAS_TIME_CELLS) return;
    float sum = (float)ldexp((double)(long long)cells[i], -BIAS_FIXED_BITS);
    if (i < n_positions)
        dposition_w[i] += sum;
    else
        dtime_w[i - n_positions] += sum;
}

/* Adds the cells to the gradients of the biases. */
static inline status bias_finish(backend *be, const attn_args *a, const unsigned long long *cells) {
    int n = 2 * a->bias_len - 1 + BIAS_TIME_CELLS;
    return cuda_launch(be, "the sums of the attention's bias", attn_bwd_bias_sums_any_kernel,
                       cuda_div_up(n, 256), 256, 0, cells, 2 * a->bias_len - 1, a->dposition_w,
                       a->dtime_w);
}
