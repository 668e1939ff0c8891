#include "oom.h"

#include <stdatomic.h>

#include "base/mem.h"
#include "test.h"

static _Atomic long until_failure, n_live;

static void *failing_alloc(void *ctx, size_t bytes) {
    (void)ctx;
    void *block = NULL;
    if (atomic_fetch_sub(&until_failure, 1) == 1) return NULL;
    if (posix_memalign(&block, 64, bytes) != 0) return NULL;
    n_live++;
    return block;
}

static void *failing_resize(void *ctx, void *block, size_t bytes) {
    if (block == NULL) return failing_alloc(ctx, bytes);
    return atomic_fetch_sub(&until_failure, 1) == 1 ? NULL : (realloc)(block, bytes);
}

static void plain_release(void *ctx, void *block) {
    (void)ctx;
    n_live -= block != NULL;
    (free)(block);
}

int oom_at_each_allocation(status (*run)(void *ctx), void *ctx) {
    const mem_allocator failing = {failing_alloc, failing_resize, plain_release, NULL};
    mem_set_allocator(&failing);
    int k = 1;
    for (;; k++) {
        until_failure = k;
        long before = n_live;
        status st = run(ctx);
        if (st == OK && until_failure >= 1) break;
        if (st == OK) continue; /* An allocation that may fail without harm: trimming, say. */
        if (st != ERR_NOMEM)
            FAIL_TEST("allocation %d failing gave %s: %s", k, status_name(st), status_reason());
        if (n_live != before)
            FAIL_TEST("allocation %d failing leaves %ld blocks behind", k, n_live - before);
        if (k > 100000) FAIL_TEST("still failing at allocation %d", k);
    }
    mem_set_allocator(NULL);
    return k - 1;
}
