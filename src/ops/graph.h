/* A bipartite graph on a backend (graph_edges of ops.h): checked, with the edges of columns beside
 * those of rows, cut into pieces.  Whoever makes one owns it; ops only read it. */
#pragma once

#include "ops/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* begin (n_rows + 1) and columns (begin[n_rows]) are host memory.  ERR_USAGE, with the row, where a
 * row does not begin where the one before ends, or its columns do not ascend within 0 .. n_columns
 * - 1.  On failure *g is zero. */
status graph_init(graph_edges *g, backend *be, int32_t n_rows, int32_t n_columns,
                  const int32_t *begin, const int32_t *columns);
void graph_fini(graph_edges *g, backend *be);

/* ERR_USAGE for arguments that no backend can take. */
status graph_attn_args_check(const graph_attn_args *a, bool is_backward);

#ifdef __cplusplus
}
#endif
