/* Any bytes as a log of events: what is replayed has a user and, for an event, an item, and a log
 * that was cut where it says scans to the same records. */
#include <stdint.h>
#include <stdlib.h>

#include "serve/journal.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

static status check(void *context, const engine_record *r) {
    size_t *n_records = context;
    if (r->user.n == 0 || r->user.n > ENGINE_ID_BYTES) abort();
    if (r->kind == ENGINE_RECORD_EVENT && (r->event.item.n == 0 || !r->event.has_time)) abort();
    ++*n_records;
    return OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n) {
    size_t n_good, n_again, n_records = 0, n_records_again = 0;
    if (journal_scan("fuzz", bytes, n, check, &n_records, &n_good) != OK) return 0;
    if (n_good > n) abort();
    if (journal_scan("fuzz", bytes, n_good, check, &n_records_again, &n_again) != OK) abort();
    if (n_good > 0 && (n_again != n_good || n_records_again != n_records)) abort();
    return 0;
}
