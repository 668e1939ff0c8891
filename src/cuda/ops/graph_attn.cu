/* Attention on a graph (contract: graph_attn_args in ops/ops.h): the CPU's alone, so far. */
#include "cuda/core/cuda.h"

status cuda_graph_attn_fwd(backend *be, const graph_attn_args *a) {
    (void)be, (void)a;
    return fail(ERR_UNSUPPORTED, "graph attention: not on a GPU yet; use the CPU");
}

status cuda_graph_attn_bwd(backend *be, const graph_attn_args *a) {
    return cuda_graph_attn_fwd(be, a);
}
