/* The table of launches: of each kernel the grid, block, registers and memory of its longest
 * launch, the theoretical occupancy (occupancy.h), and what limits that.  A part of tables.c. */
#ifndef HSTU_PROFILE_LAUNCHES_H
#define HSTU_PROFILE_LAUNCHES_H

#include "profile/tables.h"

extern const profile_column launch_columns[];
enum { N_LAUNCH_COLUMNS = 14 };
#define LAUNCH_COLUMNS launch_columns

/* The values of a row. */
enum {
    LAUNCH_SHARE, /* of the time of all kernels, percent */
    LAUNCH_TOTAL,
    LAUNCH_COUNT,
    LAUNCH_AVERAGE,
    LAUNCH_REGISTERS,
    LAUNCH_STATIC,
    LAUNCH_DYNAMIC,
    LAUNCH_LOCAL,
    LAUNCH_WARPS,
    LAUNCH_OCCUPANCY, /* percent */
    LAUNCH_WAVES
};
enum { LAUNCH_GRID, LAUNCH_BLOCK, LAUNCH_LIMIT }; /* the texts */

status launches_fill(profile_table *t, const recorder *r);

/* Sentences where a kernel that takes much of the time has a launch that stands out. */
status launches_advice(const recorder *r, buf *out);

#endif
