/* The mirror: a backend over host memory, in float32, that runs each op on another backend.
 *
 * Tests and golden vectors hand host memory to the ops.  The mirror knows the size and type of
 * every pointer in an op's arguments: it copies what the op reads to memory of the backend below
 * (rounding float32 to that backend's activations), calls the op there, and copies the results
 * back.  So what was written for the CPU runs on a GPU in any precision.
 *
 * On the way it checks what no result can show: an op may write its results only (all that lies
 * around them, guards included, keeps its bits) and must write every one of them (they hold a
 * marked NaN before).  Pointers that a pass does not use are NULL below. */
#ifndef HSTU_TESTS_MIRROR_H
#define HSTU_TESTS_MIRROR_H

#include "precision.h"

/* Over `below`, which has its precision already; with owns_below it is taken over, even where this
 * fails.  Where `below` keeps float32 and p is a half precision or TF32 (the CPU), activations and
 * the weights of products are rounded to p on their way: what a GPU does at its best, without one.
 */
status mirror_create(backend **out, backend *below, bool owns_below, precision p);

/* Where activations are rounded on their way, to the precision's numbers divided by `by`: as many
 * and as dense, but others.  So the error that is rounding's luck can be drawn again. */
void mirror_shift_grid(backend *be, double by);

#endif
