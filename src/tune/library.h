/* The ops of the backend as kernels of a plan: products by cuBLASLt on a GPU and by the panels of
 * src/cpu on the CPU, with what their epilogues can take over, and LayerNorm after a bias and a
 * residual.  They are further choices beside the tile parameters of a generated kernel:
 *
 *     product, + bias, + residual, then gelu, silu or relu, then a split
 *     (+ bias) (+ residual), LayerNorm
 *     product, + bias and residual, LayerNorm
 *
 * LIBRARY_FAST_GELU is a product whose own epilogue computes gelu, by tanh: in 16 bits its
 * difference from erf is about that of rounding, and it saves a pass over memory.  Searches take it
 * only where a plan with it passes the check.  The attention op is what bit 0 of a plan asks for.
 */
#pragma once

#include "ops/mask_tiles.h"
#include "tune/chain_problem.h"
#include "tune/emit.h"
#include "tune/target.h"

/* A jagged batch as the ops of the backend see it. */
typedef struct layer_batch {
    const chain *c;
    chain_shape shape;
    attend_kind attend;
    mask_view mask; /* of ATTEND_BYTES, for the hand-written attention */
    float eps;
} layer_batch;

/* The kernel of operators first..last for such a batch; its tile is to be chosen. */
kernel_spec layer_kernel(const target *t, const layer_batch *b, int first, int last,
                         kernel_template from);

/* Weights of the products as the backend packs them, by operator; the caller's. */
typedef struct library {
    void *packed[CHAIN_OPS];
} library;

/* Kernels of a product that searches try: those that cuBLASLt recommends, and last the one that the
 * backend takes by itself (LINEAR_FASTEST), which is none of cuBLASLt's where rows are few.  One on
 * the CPU. */
enum { LIBRARY_RANKS = 11 };

/* Whether operators first..last can be that choice, on this target. */
bool library_fits(const target *t, const chain *c, int first, int last, library_choice choice);

/* What a kernel can be run as: its tile parameters worth trying, then the choices of the backend.
 * ERR_UNSUPPORTED where there is nothing. */
status layer_tiles(const target *t, const kernel_spec *s, tile_params out[EMIT_MAX_TILES], int *n);

/* Packs the weights of operator `op`, a product: w (n_out, n_in) and the bias that joins it,
 * float32 in the target's memory; bias may be NULL. */
status library_pack(library *l, target *t, const chain *c, const chain_shape *shape, int op,
                    const float *w, const float *bias);
void library_fini(library *l, target *t);

/* The tensor of the bias that the library's epilogue adds to product `op`; -1: none. */
int library_bias(const chain *c, int op);

/* Bit 0 of a plan: the attention op of the backend instead of generated kernels.  What it needs
 * besides the chain's tensors, in the target's memory. */
typedef struct hand_written {
    float *time_w;    /* (129) zeros: the chain's bias is by position only */
    int64_t *times;   /* (T) zeros */
    mask_batch *mask; /* of a softmax attention, where the mask is a list of tiles */
} hand_written;

status hand_written_create(hand_written *h, target *t, const chain_problem *p);
void hand_written_destroy(hand_written *h, target *t);

/* Whether it can run: on this target, with this mask and head dimension. */
bool hand_written_fits(const target *t, const chain_problem *p);

/* The batch of a problem. */
layer_batch hand_written_batch(const hand_written *h, const chain_problem *p);

/* Launches a kernel of a plan on the tensors of args: the hand-written attention, an op of the
 * backend, or `compiled`.  ERR_UNSUPPORTED says which mask the attention lacks. */
status layer_launch(const kernel_spec *s, const target_kernel *compiled, target *t,
                    const layer_batch *b, const kernel_args *args, const library *l,
                    const hand_written *h);
