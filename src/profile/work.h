/* The work of an op: how many floating-point operations it does and how many bytes it must at least
 * read and write, each array once, from its arguments alone.
 *
 * Products and attention are counted as nn/flops.h does; of other ops the bytes are what matters,
 * and they have no FLOP.  Attention is counted by the pairs that its mask leaves (work_pairs.h): on
 * the CPU always, on a GPU where all sequences have one length, or by a question (op_work.ask).
 * What is not known is 0. */
#ifndef HSTU_PROFILE_WORK_H
#define HSTU_PROFILE_WORK_H

#include "ops/ops.h"
#include "profile/work_pairs.h"

enum { WORK_SHAPE_BYTES = 96 };

typedef struct op_work {
    double flop, bytes;
    double of_pair, pair_bytes; /* attention on a GPU: FLOP of a pair, and its bytes, where the
                                   number of pairs becomes known; else 0 */
    pairs_ask ask;              /* then: for that number */
} op_work;

/* The ops of ops.def by number. */
typedef enum {
#define OP(result, name, parameters, arguments, test) WORK_##name,
#include "ops/ops.def"
    N_WORK_OPS
} work_op;

/* Takes the arguments of the op, the backend first.  shape, where it is not NULL, gets the sizes as
 * text, "[131168, 1024] x [1024, 4096]", or "". */
op_work work_of(work_op op, char shape[WORK_SHAPE_BYTES], ...);

#endif
