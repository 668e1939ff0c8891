/* Columns of heads packed for an exchange (ops/head_parts.h): a thread moves 16 bytes, or 2 where
 * widths and addresses do not allow that; the limit is bytes. */
#include "ops/row_moves.h"

#include "cuda/core/cuda.h"

enum { HEAD_PARTS_THREADS = 256 };
static const int64_t HEAD_PARTS_BLOCKS = 1 << 16;

/* Widths, strides and places of `a` count elements of P. */
template <typename P>
static __global__ void __launch_bounds__(HEAD_PARTS_THREADS)
    head_parts_any_kernel(const __grid_constant__ head_parts a, int64_t row, bool is_back) {
    P *packed = (P *)a.packed, *whole = (P *)a.whole;
    int64_t n = a.n * a.n_parts * row, step = (int64_t)gridDim.x * HEAD_PARTS_THREADS;
    for (int64_t at = (int64_t)blockIdx.x * HEAD_PARTS_THREADS + threadIdx.x; at < n; at += step) {
        int64_t column = at % row, i = at / row % a.n, part = at / row / a.n, to = 0;
#pragma unroll
        for (int b = 0; b < HEAD_BLOCKS; b++) {
            int64_t width = b < a.n_blocks ? a.width[b] : 0;
            if (column >= 0 && column < width) to = a.first[b] + part * width + column;
            column -= width;
        }
        P *there = whole + i * a.stride + to;
        if (is_back)
            *there = packed[at];
        else
            packed[at] = *there;
    }
}

template <typename P> static status run(cudaStream_t stream, head_parts a, bool is_back) {
    const int64_t size = (int64_t)sizeof(P);
    for (int b = 0; b < a.n_blocks; b++) {
        a.first[b] /= size;
        a.width[b] /= size;
    }
    a.stride /= size;
    int64_t row = head_parts_row(&a),
            blocks = cuda_div_up(a.n * a.n_parts * row, HEAD_PARTS_THREADS);
    if (blocks == 0) return OK;
    head_parts_any_kernel<P><<<(unsigned)(blocks < HEAD_PARTS_BLOCKS ? blocks : HEAD_PARTS_BLOCKS),
                               HEAD_PARTS_THREADS, 0, stream>>>(a, row, is_back);
    return cuda_launched("columns of heads");
}

extern "C" status head_parts_cuda(void *stream, const head_parts *a, bool is_back) {
    uint64_t all =
        (uint64_t)(uintptr_t)a->whole | (uint64_t)(uintptr_t)a->packed | (uint64_t)a->stride;
    for (int b = 0; b < a->n_blocks; b++)
        all |= (uint64_t)(a->first[b] | a->width[b]);
    if (all % 16 == 0) return run<uint4>((cudaStream_t)stream, *a, is_back);
    return run<uint16_t>((cudaStream_t)stream, *a, is_back);
}
