/* Any bytes as an event log of an earlier version: what is read has a user and, for an event, an
 * item, and what belongs to no group is counted. */
#include <stdint.h>
#include <stdlib.h>

#include "serve/state/state_tools.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

static status check(void *context, const log_record *r) {
    uint64_t *n_records = context;
    if (r->n_user == 0 || r->n_user > 255) abort();
    if (r->is_erasure != (r->event.n_item == 0) || r->event.time_ns >= 1000000000u) abort();
    ++*n_records;
    return OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n) {
    uint64_t n_records = 0;
    log_counts counts;
    if (event_log_read("fuzz", bytes, n, check, &n_records, &counts) != OK) return 0;
    if (counts.n_events + counts.n_erasures != n_records || counts.n_damaged > n) abort();
    return 0;
}
