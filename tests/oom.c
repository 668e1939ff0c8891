#include "oom.h"

#include <stdatomic.h>

#include "base/mem.h"
#include "test.h"

static _Atomic long until_failure, n_live;
static bool lasts; /* no allocation succeeds after the first failing one */

static bool is_next_failing(void) {
    long left = atomic_fetch_sub(&until_failure, 1);
    return lasts ? left <= 1 : left == 1;
}

static void *failing_alloc(void *ctx, size_t bytes) {
    (void)ctx;
    void *block = NULL;
    if (is_next_failing()) return NULL;
    if (posix_memalign(&block, 64, bytes) != 0) return NULL;
    n_live++;
    return block;
}

static void *failing_resize(void *ctx, void *block, size_t bytes) {
    if (block == NULL) return failing_alloc(ctx, bytes);
    return is_next_failing() ? NULL : (realloc)(block, bytes);
}

static void plain_release(void *ctx, void *block) {
    (void)ctx;
    n_live -= block != NULL;
    (free)(block);
}

/* The number of failing runs. */
static int fail_each_in_turn(status (*run)(void *ctx), void *ctx, bool is_lasting) {
    const char *how = is_lasting ? "and all later ones" : "alone";
    /* Under a sanitizer every second of many: the other builds have them all. */
    for (int k = 1;; k += test_is_brief() && k > 300 ? 2 : 1) {
        long before = n_live;
        lasts = is_lasting;
        until_failure = k;
        status st = run(ctx);
        if (st == OK && until_failure >= 1) return k - 1;
        if (n_live != before)
            FAIL_TEST("allocation %d (%s) failing leaves %ld blocks behind", k, how,
                      n_live - before);
        if (st == OK) continue; /* An allocation that may fail without harm: trimming, say. */
        if (st != ERR_NOMEM)
            FAIL_TEST("allocation %d (%s) failing gave %s: %s", k, how, status_name(st),
                      status_reason());
        if (k > 100000) FAIL_TEST("still failing at allocation %d", k);
    }
}

static int with_failures(status (*run)(void *ctx), void *ctx, bool is_lasting) {
    const mem_allocator failing = {failing_alloc, failing_resize, plain_release, NULL};
    mem_set_allocator(&failing);
    int n = fail_each_in_turn(run, ctx, is_lasting);
    mem_set_allocator(NULL);
    return n;
}

int oom_at_one_allocation(status (*run)(void *ctx), void *ctx) {
    return with_failures(run, ctx, false);
}

int oom_from_one_allocation_on(status (*run)(void *ctx), void *ctx) {
    return with_failures(run, ctx, true);
}

int oom_at_each_allocation(status (*run)(void *ctx), void *ctx) {
    int n = oom_at_one_allocation(run, ctx);
    (void)oom_from_one_allocation_on(run, ctx);
    return n;
}
