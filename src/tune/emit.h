/* The generator: the source text of one kernel of a plan.
 *
 * The text depends on the operators, the head count and dimension, the tile parameters, the mask
 * and the type; the number of tokens and sequences is an argument of the kernel.  A softmax that is
 * fused with a product keeps whole rows of scores, so there the longest sequence counts too.
 *
 * The text is in one vocabulary, the dialect, which dialect_c.inc and dialect_cuda.inc define.  A
 * kernel is written once, in dialect_kernels.inc, for a block of threads that owns a tile of rows;
 * what depends on its operators and sizes are macros, which emit.c defines before that text.  EACH
 * (elements over the threads), EACH_ROW (rows over the warps), EACH_LANE (columns over the lanes of
 * a warp) are loops; SYNC is a barrier of the block; SHARED declares memory of the block.  A
 * product accumulates a tile in ACC, which is spread over the threads as the tensor cores want it
 * (EACH_ACC, ACC_ROW, ACC_COL), from operands in shared memory (TILE_PRODUCT, ACC_PRODUCT).  In C a
 * block is sequential code: the loops are whole loops, barriers are nothing, and a tile is an
 * array. */
#pragma once

#include "ops/ops.h"
#include "tune/chain.h"
#include "tune/fusion_plan.h"

/* Which pairs are attended: all, j <= i, or by the bytes of a mask. */
typedef enum { ATTEND_ALL, ATTEND_CAUSAL, ATTEND_BYTES } attend_kind;

/* The choices of library.h. */
typedef enum { GENERATED, LIBRARY, LIBRARY_FAST_GELU } library_choice;

/* Tiles: tile_m rows by tile_n columns of output a block, tile_k of depth at a time; on a GPU
 * warps_m x warps_n warps. */
typedef struct tile_params {
    int16_t tile_m, tile_n, tile_k, warps_m, warps_n;
    int16_t library; /* library_choice: not generated, but an op of the backend */
    int16_t rank;    /* of its product: kernel of linear_packed_args */
} tile_params;

typedef struct kernel_spec {
    const chain *c;
    chain_shape shape;
    int first, last;
    kernel_template from; /* of plan_template; not TEMPLATE_HAND_WRITTEN */
    attend_kind attend;
    act_type act; /* ACT_F32 on the CPU */
    bool is_cuda;
    int32_t shared_limit; /* bytes of shared memory of a block; 0: no limit */
    float eps;            /* of LayerNorm */
    tile_params tile;
} kernel_spec;

/* CHAIN_EPS: the eps of random layers. */
enum { EMIT_MAX_TILES = 40, EMIT_NAME_BYTES = 64 };
#define CHAIN_EPS 1e-5f

/* The tile parameters worth trying for a kernel, the default first.  What needs more shared memory
 * than a block can have is left out. */
status emit_tiles(const kernel_spec *s, tile_params out[EMIT_MAX_TILES], int *out_n);

/* "bert_3_7": the name of the function. */
void emit_name(const kernel_spec *s, char name[EMIT_NAME_BYTES]);

/* Appends the whole source, and the bytes of dynamic shared memory to *shared_bytes. */
status emit_kernel(const kernel_spec *s, buf *out, int64_t *shared_bytes);

/* Threads of a block, and blocks of the grid for a batch. */
int emit_threads(const kernel_spec *s);
int64_t emit_blocks(const kernel_spec *s, const chain_shape *batch);

/* `args` of dialect_args.inc, for the host. */
typedef struct kernel_args {
    void *tensor[CHAIN_MAX_TENSORS];
    const int32_t *offsets;
    const int64_t *score_offsets;
    const uint8_t *mask;
    int64_t n_tokens;
    int32_t n_sequences, max_len;
} kernel_args;
