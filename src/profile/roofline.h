/* The work of ops against the peaks of the device: FLOP and bytes a second of each op, and the
 * roofline picture.  The time of an op is that of its kernels on a GPU, and its own on the CPU; the
 * work is what work.h counts.  A part of tables.c. */
#ifndef HSTU_PROFILE_ROOFLINE_H
#define HSTU_PROFILE_ROOFLINE_H

#include "profile/tables.h"

extern const profile_column roofline_columns[];
enum { N_ROOFLINE_COLUMNS = 9 };

/* The values of a row. */
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

status roofline_fill(profile_table *t, const recorder *r);

/* The roof and a circle for each op that has FLOP, as SVG; nothing where no op has any, or the
 * peaks are not known. */
status roofline_svg(const recorder *r, buf *out);

/* Sentences where an op that takes much of the time is far below the roof. */
status roofline_advice(const recorder *r, buf *out);

#endif
