/* A profile as a Chrome trace, the JSON that Kineto writes and chrome://tracing and Perfetto open:
 * ranges and ops by thread, CUDA's calls, kernels and copies by stream, and an arrow from each
 * launch to its kernel. */
#ifndef HSTU_PROFILE_TRACE_H
#define HSTU_PROFILE_TRACE_H

#include "base/status.h"
#include "profile/profiler.h"

/* Replaces the file, whole or not at all. */
status trace_write(const profile *p, const char *path);

#endif
