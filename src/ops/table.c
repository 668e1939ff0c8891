#include "ops/table.h"

#include <math.h>

/* The sum of eight uniform integers below 2^16, doubled, has the variance 4 * 8 (2^32 - 1) / 12. */
double table_first_unit(first_kind kind, double scale) {
    if (kind == FIRST_UNIFORM) return scale / 16777216.0;
    if (kind == FIRST_NORMAL) return scale / sqrt(8 * 4294967295.0 / 3);
    return scale;
}
