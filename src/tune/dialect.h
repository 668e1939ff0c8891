/* The dialect of generated kernels: one vocabulary with a definition in C and one in CUDA.
 *
 * A kernel is written once, for a block of threads that owns a tile of rows.  EACH (elements over
 * the threads), EACH_ROW (rows over the warps), EACH_LANE (columns over the lanes of a warp) are
 * loops; SYNC is a barrier of the block; SHARED declares memory of the block.  A product
 * accumulates a tile in ACC, which is spread over the threads as the tensor cores want it
 * (EACH_ACC, ACC_ROW, ACC_COL), from operands in shared memory (TILE_PRODUCT, ACC_PRODUCT).  In C a
 * block is sequential code: the loops are whole loops, barriers are nothing, and a tile is an
 * array. */
#ifndef HSTU_TUNE_DIALECT_H
#define HSTU_TUNE_DIALECT_H

#include <stdint.h>

#include "tune/chain.h"

extern const char dialect_args[], dialect_c[], dialect_cuda[];

/* `args` of dialect_args, for the host. */
typedef struct kernel_args {
    void *tensor[CHAIN_MAX_TENSORS];
    const int32_t *offsets;
    const int64_t *score_offsets;
    const uint8_t *mask;
    int64_t n_tokens;
    int32_t n_sequences, max_len;
} kernel_args;

#endif
