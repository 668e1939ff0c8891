/* Readable kernel names.
 *
 * Of the C++ ABI's mangling it understands what our own kernels use, a name, perhaps in namespaces,
 * and template arguments that are types with a name, numbers and flags: for
 * "_Z19gate_fwd_any_kernelI6__halfLi8EEvPT_" it writes "gate_fwd_any_kernel<__half, 8>", without
 * namespaces and parameters.  Other names go through the C++ runtime's demangler where there is
 * one. One thread at a time. */
#pragma once

#include "base/base.h"

/* A name that nobody can read is copied; all are cut to size bytes, the NUL included. */
void kernel_name(const char *mangled, char *out, size_t size);
