/* The mirror: a backend over host memory, in float32, that runs each op on another backend.
 *
 * Tests and golden vectors pass host memory to the ops.  The mirror knows the size and type of
 * every pointer in an op's arguments: it copies what the op reads to memory of the backend below
 * (rounding float32 to that backend's activations), calls the op there, and copies the results
 * back.  So tests written for the CPU run on a GPU in any precision.
 *
 * On the way it checks what no result can show: an op may write its results only (the memory around
 * them, guards included, keeps its bits) and must write every one of them (they hold a marked NaN
 * before).  Pointers that a pass does not use are NULL below. */
#ifndef HSTU_TESTS_MIRROR_H
#define HSTU_TESTS_MIRROR_H

#include "precision.h"

/* A mirror of `below`, whose precision is set already; with owns_below the mirror owns it, even if
 * this function fails.  Where `below` keeps float32 and p is a half precision or TF32 (the CPU),
 * activations and the weights of products are rounded to p on their way, as a GPU would at best. */
status mirror_create(backend **out, backend *below, bool owns_below, precision p);

/* Rounds activations to the numbers of the precision divided by `by`: a grid of the same density,
 * shifted.  A test can so repeat its measurement with other rounding errors. */
void mirror_shift_grid(backend *be, double by);

#endif
