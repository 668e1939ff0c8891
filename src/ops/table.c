#include "ops/table.h"

#include <math.h>

/* The sum of eight uniform integers below 2^16, doubled, has the variance 4 * 8 (2^32 - 1) / 12. */
double table_first_unit(first_kind kind, double scale) {
    if (kind == FIRST_UNIFORM) return scale / 16777216.0;
    if (kind == FIRST_NORMAL) return scale / sqrt(8 * 4294967295.0 / 3);
    return scale;
}

table_init_args table_place_init(const table_place_args *a) {
    table_init_args init = *a->init;
    init.n = a->n;
    init.n_real = a->n_real;
    init.slot = a->slot;
    init.only = a->is_new;
    init.keys = a->keys;
    return init;
}

table_rows_args table_place_write(const table_place_args *a) {
    table_rows_args write = *a->write;
    write.n = a->n;
    write.n_real = a->n_real;
    write.slot = a->slot;
    write.only = NULL;
    return write;
}
