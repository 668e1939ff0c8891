/* Theoretical occupancy: how many warps of a kernel a multiprocessor can hold at a time, and what
 * keeps it from holding more.  The arithmetic of NVIDIA's occupancy calculator, for SM 7.0 to 12.x.
 */
#ifndef HSTU_PROFILE_OCCUPANCY_H
#define HSTU_PROFILE_OCCUPANCY_H

#include "profile/recorder.h"

typedef enum {
    LIMIT_NONE, /* all warps that the multiprocessor can hold */
    LIMIT_REGISTERS,
    LIMIT_SHARED,
    LIMIT_BLOCKS,   /* as many blocks as there may be: they are small */
    LIMIT_BLOCK,    /* the size of a block: another one does not fit, though warps are left */
    LIMIT_TOO_LARGE /* not even one block: the facts of the GPU are not those of the launch */
} occupancy_limit;

typedef struct occupancy {
    uint32_t blocks, warps; /* of a multiprocessor */
    double share;           /* of the warps it can hold, 0 to 1 */
    double waves;           /* the grid over what the whole GPU holds at a time */
    occupancy_limit limit;
} occupancy;

occupancy occupancy_find(const gpu_facts *g, const span_launch *l);

const char *occupancy_limit_name(occupancy_limit l); /* "registers" */

#endif
