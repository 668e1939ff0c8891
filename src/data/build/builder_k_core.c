#include "data/build/builder_int.h"

/* A pass looks at every event: if its user or its item has too few, the event is dropped and both
 * counts go down at once, so that later events of the same pass see it.  The k-core of a data set
 * is unique, whatever the order of the drops; so threads may race for the counts.  Passes run
 * forwards and backwards in turn: a chain of drops in the order of the file then takes one pass,
 * not one per link. */
typedef struct peel_job {
    write_job *job;
    bool is_backward;
    uint64_t n_dropped;
} peel_job;

static bool is_rare(const uint32_t *count, uint32_t i, uint32_t minimum) {
    return __atomic_load_n(&count[i], __ATOMIC_RELAXED) < minimum;
}

static status peel_block(void *ctx, int64_t chunk, int worker) {
    peel_job *p = ctx;
    const builder *b = p->job->b;
    uint32_t *users = p->job->users.count, *items = p->job->items.count;
    uint64_t n_dropped = 0;
    (void)worker;
    if (p->is_backward) chunk = (int64_t)b->n_blocks - 1 - chunk;
    event_block *block = b->blocks[chunk];
    for (uint64_t k = 0; k < block->n; k++) {
        uint64_t i = p->is_backward ? block->n - 1 - k : k;
        uint32_t user = block->user[i], item = block->item[i];
        if (user == DROPPED || (!is_rare(users, user, b->options.min_user_events) &&
                                !is_rare(items, item, b->options.min_item_events)))
            continue;
        __atomic_fetch_sub(&users[user], 1, __ATOMIC_RELAXED);
        __atomic_fetch_sub(&items[item], 1, __ATOMIC_RELAXED);
        block->user[i] = DROPPED;
        n_dropped++;
    }
    __atomic_fetch_add(&p->n_dropped, n_dropped, __ATOMIC_RELAXED);
    return OK;
}

status builder_k_core(write_job *job) {
    peel_job p = {.job = job};
    do {
        p.n_dropped = 0;
        TRY(pool_run(job->b->workers, (int64_t)job->b->n_blocks, peel_block, &p));
        p.is_backward = !p.is_backward;
    } while (p.n_dropped > 0);
    return OK;
}
