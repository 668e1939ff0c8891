/* How well kernels use a GPU: the theoretical occupancy of their launches, and the work of ops
 * against the peaks of the device.  Both are tables of tables.h, with advice beside them. */
#pragma once

#include "profile/recorder.h"
#include "profile/tables.h"

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

/* How many warps of a kernel a multiprocessor can hold at a time, and what keeps it from holding
 * more: the arithmetic of NVIDIA's occupancy calculator, for SM 7.0 to 12.x. */
occupancy occupancy_find(const gpu_facts *g, const span_launch *l);

const char *occupancy_limit_name(occupancy_limit l); /* "registers" */

/* The values of a row of launches. */
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

/* REPORT_LAUNCHES: of each kernel the grid, block, registers and memory of its longest launch, the
 * occupancy, and what limits that. */
status launches_fill(profile_table *t, const recorder *r);

/* Sentences where a kernel that takes much of the time has a launch that stands out. */
status launches_advice(const recorder *r, buf *out);

/* The values of a row of work. */
enum {
    ROOF_SHARE, /* of the time of all these ops, percent */
    ROOF_TOTAL, /* ns */
    ROOF_COUNT,
    ROOF_FLOP,      /* TFLOP a second */
    ROOF_BYTES,     /* GB a second */
    ROOF_INTENSITY, /* FLOP a byte */
    ROOF_OF_FLOP,   /* percent of the measured peaks; 0 where there are none */
    ROOF_OF_BYTES
};

/* REPORT_WORK: FLOP and bytes a second of each op.  The time of an op is that of its kernels on a
 * GPU, and its own on the CPU; the work is what work.h counts. */
status roofline_fill(profile_table *t, const recorder *r);

/* The roof and a circle for each op that has FLOP, as SVG; nothing where no op has any, or the
 * peaks are not known. */
status roofline_svg(const recorder *r, buf *out);

/* Sentences where an op that takes much of the time is far below the roof. */
status roofline_advice(const recorder *r, buf *out);
