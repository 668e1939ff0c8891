/* Neighbouring columns of a row, V at a time: what the passes over rows share.
 *
 * Rows whose addresses and widths allow it are read in packs of 16 bytes of activations; others (50
 * columns, say) element by element, but still V neighbours a thread, because one random draw serves
 * four columns.  V is 4 or 8, and a pack begins at a column that is a multiple of V. */
#ifndef HSTU_CUDA_CORE_COLUMNS_CUH
#define HSTU_CUDA_CORE_COLUMNS_CUH

#include "cuda/core/act.cuh"
#include "cuda/ops/dropout.cuh"

/* Columns of one pack of activations, and of a thread where rows cannot be packed. */
template <typename T> struct columns_of {
    static constexpr int PACKED = 16 / (int)sizeof(T), LOOSE = 4;
};

/* V columns in their memory format.  Whole words, because the compiler splits a struct of 16-bit
 * elements wherever it is copied. */
template <typename T, int V> struct alignas(sizeof(T) * V) columns {
    uint32_t word[V * sizeof(T) / 4];
};

template <int V> __device__ static inline float column(const columns<float, V> &x, int j) {
    return __uint_as_float(x.word[j]);
}
template <int V> __device__ static inline float column(const columns<__nv_bfloat16, V> &x, int j) {
    uint32_t w = x.word[j / 2];
    return __uint_as_float(j % 2 == 0 ? w << 16 : w & 0xffff0000u);
}
template <int V> __device__ static inline float column(const columns<__half, V> &x, int j) {
    uint32_t w = x.word[j / 2];
    return __half2float(__ushort_as_half((unsigned short)(j % 2 == 0 ? w : w >> 16)));
}

__device__ static inline uint32_t column_bits(float x) {
    return __float_as_uint(x);
}
__device__ static inline uint32_t column_bits(__nv_bfloat16 x) {
    return __bfloat16_as_ushort(x);
}
__device__ static inline uint32_t column_bits(__half x) {
    return __half_as_ushort(x);
}

/* Columns c .. c + V - 1 of a row of `dim`; zeros beyond its end. */
template <bool IS_PACKED, int V, typename T>
__device__ static inline columns<T, V> load_columns(const T *row, int c, int dim) {
    constexpr int A_WORD = 4 / (int)sizeof(T);
    columns<T, V> x;
#pragma unroll
    for (int k = 0; k < V / A_WORD; k++)
        x.word[k] = 0;
    if constexpr (IS_PACKED) {
        if (c < dim) x = *(const columns<T, V> *)(row + c);
    } else {
#pragma unroll
        for (int j = 0; j < V; j++)
            if (c + j < dim) x.word[j / A_WORD] |= column_bits(row[c + j]) << 16 * (j % A_WORD);
    }
    return x;
}

/* Writes V columns; those beyond the row's end are skipped. */
template <bool IS_PACKED, int V, typename T>
__device__ static inline void store_columns(T *row, int c, int dim, const float (&y)[V]) {
    if constexpr (IS_PACKED) {
        pack<T, V> out;
#pragma unroll
        for (int j = 0; j < V; j++)
            out.v[j] = from_float<T>(y[j]);
        if (c < dim) *(pack<T, V> *)(row + c) = out;
    } else {
#pragma unroll
        for (int j = 0; j < V; j++)
            if (c + j < dim) row[c + j] = from_float<T>(y[j]);
    }
}

/* y[j] *= the dropout's factor of column c + j. */
template <int V>
__device__ static inline void drop_columns(const drop_row &drop, int c, float (&y)[V]) {
    if (!(drop.rate > 0)) return;
#pragma unroll
    for (int j = 0; j < V; j += 4) {
        float4 factor = drop_factors(drop, (uint32_t)(c + j) / 4);
        y[j] *= factor.x;
        y[j + 1] *= factor.y;
        y[j + 2] *= factor.z;
        y[j + 3] *= factor.w;
    }
}

/* Blocks of 256 threads: threadIdx.x goes over the packs of a row, threadIdx.y over rows. */
typedef struct row_grid {
    dim3 blocks, threads;
} row_grid;

static inline row_grid row_grid_of(int64_t n, int32_t dim, int v) {
    int64_t n_packs = cuda_div_up(dim, v);
    unsigned x = 8;
    while (x < n_packs && x < 256)
        x *= 2;
    unsigned y = 256 / x;
    row_grid g = {dim3((unsigned)cuda_div_up(n, y)), dim3(x, y)};
    return g;
}

__device__ static inline int64_t row_grid_row(void) {
    return (int64_t)blockIdx.x * blockDim.y + threadIdx.y;
}

#endif
