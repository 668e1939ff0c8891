/* What is done for a job before its batch begins. */
#include "serve/run.h"

int32_t run_max_reused(const job *j) {
    return j->m->is_ranking ? j->n_tokens : j->n_tokens - 1;
}

void run_hold(job *j) {
    if (j->n_tokens > 0) kv_cache_hold(j->m->cache, j->tokens, run_max_reused(j), &j->path);
}

static void prefetch(const void *memory, size_t bytes) {
    enum { MOST = 4096, LINE = 64 };
    for (size_t i = 0; i < bytes && i < MOST; i += LINE)
        __builtin_prefetch((const char *)memory + i);
}

/* What is probably read of a job, its candidates and what no page has of its history, is in the
 * caches of its caller: it is asked for before it is needed. */
static void expect_job(const job *j) {
    int32_t n_found = j->path.n_whole * KV_PAGE, n_new = j->n_tokens - n_found;
    size_t n_events = (size_t)(n_new / j->m->per_event), n = (size_t)j->events.n;
    size_t first = n_events < n ? n - n_events : 0, size = served_token_bytes(j->m);
    prefetch(j->path.page, (size_t)j->path.n_whole * sizeof *j->path.page);
    prefetch((const char *)j->tokens + (size_t)n_found * size, (size_t)n_new * size);
    prefetch(j->events.item + first, (n - first) * sizeof *j->events.item);
    prefetch(j->events.action + first, (n - first) * sizeof *j->events.action);
    prefetch(j->candidate, (size_t)j->n_candidates * sizeof *j->candidate);
}

/* Beside callers that look for their pages, so that neither waits for the other. */
void run_expect(job *j) {
    served *m = j->m;
    if (m->cache == NULL) return;
    expect_job(j);
    if (pthread_rwlock_tryrdlock(&m->cache_lock) != 0) return;
    kv_cache_hold_found(m->cache, run_max_reused(j), &j->path);
    int32_t n_pages = j->n_tokens / KV_PAGE + 1 - j->path.n_held;
    kv_cache_expect_room(m->cache, m->n_expected, n_pages);
    m->n_expected += n_pages;
    pthread_rwlock_unlock(&m->cache_lock);
}

void run_expect_none(job *j) {
    if (j->m->cache == NULL || j->path.n_held == 0) return;
    pthread_rwlock_wrlock(&j->m->cache_lock);
    kv_cache_let_go(j->m->cache, &j->path);
    pthread_rwlock_unlock(&j->m->cache_lock);
}
