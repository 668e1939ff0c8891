/* Combines two arrays of a backend's memory, as collectives do: to[i] = to[i] + from[i], or the
 * greater of the two.  Has its place in the backend's order of execution, like an op. */
#ifndef HSTU_OPS_COMBINE_H
#define HSTU_OPS_COMBINE_H

#include "ops/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The arrays must not overlap. */
status combine(backend *be, comm_type type, comm_rule rule, int64_t n, const void *from, void *to);

/* The same in memory of the host, now. */
void combine_host(comm_type type, comm_rule rule, int64_t n, const void *from, void *to);

/* The same on a stream of the GPU; in a build without CUDA ERR_UNSUPPORTED. */
status combine_cuda(void *stream, comm_type type, comm_rule rule, int64_t n, const void *from,
                    void *to);

#ifdef __cplusplus
}
#endif
#endif
