#include "base/jagged.h"

#include <inttypes.h>

status jagged_check(const uint64_t *offsets, uint64_t n_sequences, uint64_t n_rows) {
    if (offsets[0] != 0) return fail(ERR_FORMAT, "offset 0 is %" PRIu64 ", not 0", offsets[0]);
    for (uint64_t b = 0; b < n_sequences; b++) {
        if (offsets[b + 1] < offsets[b] || offsets[b + 1] > n_rows)
            return fail(ERR_FORMAT,
                        "offset %" PRIu64 " is %" PRIu64 "; it must be in %" PRIu64 "..%" PRIu64,
                        b + 1, offsets[b + 1], offsets[b], n_rows);
    }
    if (offsets[n_sequences] != n_rows)
        return fail(ERR_FORMAT, "the last offset is %" PRIu64 ", not %" PRIu64,
                    offsets[n_sequences], n_rows);
    return OK;
}
