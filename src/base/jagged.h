/* Jagged offsets: B sequences stored one after the other.  Sequence b is rows offsets[b] ..
 * offsets[b + 1] - 1; offsets[0] = 0; T = offsets[B].  A batch uses 32-bit offsets, a file 64-bit.
 */
#ifndef HSTU_BASE_JAGGED_H
#define HSTU_BASE_JAGGED_H

#include <stdint.h>

#include "base/status.h"

/* OK if the offsets start at 0, never decrease, and end at n_rows; else ERR_FORMAT naming the first
 * bad one. */
status jagged_check(const uint64_t *offsets, uint64_t n_sequences, uint64_t n_rows);

#endif
