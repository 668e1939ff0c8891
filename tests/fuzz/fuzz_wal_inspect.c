/* Any bytes as a write-ahead log: what counts as good lies in it, and damage lies after it. */
#include <stdint.h>
#include <stdlib.h>

#include "serve/state/state_db.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n) {
    wal_end end = wal_inspect(bytes, n);
    if (end.n_good > n || end.damaged > n) abort();
    if (end.is_damaged && end.n_good > WAL_HEADER_BYTES && end.damaged < end.n_good) abort();
    return 0;
}
