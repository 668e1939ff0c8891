/* Rows picked and put by number (ops/row_moves.h): a thread moves 16 bytes of a row, or 4 or 1
 * where widths and addresses do not allow that; the limit is bytes. */
#include "ops/row_moves.h"

#include "cuda/core/cuda.h"

enum { ROW_MOVES_THREADS = 256 };
static const int64_t ROW_MOVES_BLOCKS = 1 << 16;

/* `width` elements of P are a row. */
template <typename P>
static __global__ void __launch_bounds__(ROW_MOVES_THREADS)
    row_moves_any_kernel(const __grid_constant__ row_moves a, int64_t width, bool is_put) {
    P *picked = (P *)a.picked, *rows = (P *)a.rows;
    int64_t n = a.n * width, step = (int64_t)gridDim.x * ROW_MOVES_THREADS;
    for (int64_t at = (int64_t)blockIdx.x * ROW_MOVES_THREADS + threadIdx.x; at < n; at += step) {
        P *there = rows + a.index[at / width] * width + at % width;
        if (is_put)
            *there = picked[at];
        else
            picked[at] = *there;
    }
}

template <typename P> static status run(cudaStream_t stream, const row_moves *a, bool is_put) {
    int64_t width = a->row_bytes / (int64_t)sizeof(P),
            blocks = cuda_div_up(a->n * width, ROW_MOVES_THREADS);
    if (blocks == 0) return OK;
    row_moves_any_kernel<P><<<(unsigned)(blocks < ROW_MOVES_BLOCKS ? blocks : ROW_MOVES_BLOCKS),
                              ROW_MOVES_THREADS, 0, stream>>>(*a, width, is_put);
    return cuda_launched("rows by number");
}

extern "C" status row_moves_cuda(void *stream, const row_moves *a, bool is_put) {
    uint64_t all =
        (uint64_t)(uintptr_t)a->picked | (uint64_t)(uintptr_t)a->rows | (uint64_t)a->row_bytes;
    if (all % 16 == 0) return run<uint4>((cudaStream_t)stream, a, is_put);
    if (all % 4 == 0) return run<uint32_t>((cudaStream_t)stream, a, is_put);
    return run<uint8_t>((cudaStream_t)stream, a, is_put);
}
