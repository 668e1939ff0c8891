#include "serve/engine/warm.h"

#include "base/clock.h"

/* Users of a recorded batch, at most, and how often histories are shortened to an eighth. */
enum { WARM_USERS = 16, WARM_LENGTHS = 3 };

/* An invented history as long as the model reads. */
typedef struct rehearsal {
    served *m;
    uint32_t *item, *candidate;
    uint16_t *action;
    int64_t *time;
    int32_t *zeros; /* pages */
    user_events events;
} rehearsal;

static void rehearsal_end(rehearsal *r) {
    mem_free(r->item);
    mem_free(r->candidate);
    mem_free(r->action);
    mem_free(r->time);
    mem_free(r->zeros);
}

static status rehearsal_make(rehearsal *r, served *m) {
    size_t n = (size_t)m->s->max_history, n_candidates = (size_t)m->infer.max_part;
    *r = (rehearsal){.m = m};
    TRY(MEM_NEW(&r->item, n));
    TRY(MEM_NEW(&r->action, n));
    TRY(MEM_NEW(&r->time, n));
    TRY(MEM_NEW(&r->candidate, n_candidates));
    TRY(MEM_NEW(&r->zeros, (size_t)(m->max_tokens / KV_PAGE + 1)));
    for (size_t i = 0; i < n; i++)
        r->item[i] = 1 + (uint32_t)(i % m->names->n_items);
    for (size_t i = 0; i < n_candidates; i++)
        r->candidate[i] = 1 + (uint32_t)(i % m->names->n_items);
    r->events = (user_events){.n = n, .item = r->item, .action = r->action, .time = r->time};
    return OK;
}

/* n_users users with the first n_events events and some candidates; n_reused tokens of each are
 * read from page 0, whatever is there, and none is stored. */
static status run_batch(rehearsal *r, int32_t n_users, int32_t n_events, int32_t n_candidates,
                        int32_t n_reused) {
    served *m = r->m;
    user_events u = r->events;
    const void *out;
    int64_t n_rows;
    int32_t reused[WARM_USERS];
    const int32_t *page[WARM_USERS];
    u.n = (uint64_t)n_events;
    histories_clear(&m->infer.batch);
    for (int32_t i = 0; i < n_users; i++) {
        TRY(histories_add(&m->infer.batch, &u, r->candidate, n_candidates));
        reused[i] = n_reused;
        page[i] = r->zeros;
    }
    plan_cache c = {reused, reused, page};
    kv_store *store = n_reused > 0 ? &m->store : NULL;
    const plan_cache *cache = n_reused > 0 ? &c : NULL;
    if (m->is_ranking)
        TRY(pass_score_cached(m->infer.pass, &m->infer.batch.view, store, cache, &out, &n_rows));
    else
        TRY(pass_encode_cached(m->infer.pass, &m->infer.batch.view, store, cache, &out));
    return m->compute.be->ops->sync(m->compute.be);
}

/* A full history, twice: the second run is timed. */
static status learn_rate(rehearsal *r) {
    served *m = r->m;
    int32_t n = m->s->max_history;
    for (int round = 0; round < 2; round++) {
        uint64_t start = clock_ns();
        TRY(run_batch(r, 1, n, m->is_ranking, 0));
        int32_t n_tokens = m->infer.n_context + m->infer.per_event * n + m->is_ranking;
        double flops = served_flops(m, n_tokens, m->is_ranking, 0) - m->flops_head;
        m->flop_s = flops > 0 ? (double)(clock_ns() - start) / 1e9 / flops : 0;
    }
    return OK;
}

/* Users who come back with one more event, by their number and the length of their histories.  A
 * shape is recorded when it runs the second time. */
static status record_shapes(rehearsal *r) {
    served *m = r->m;
    int32_t n_candidates = m->is_ranking ? m->infer.max_part : 0, n_events = m->s->max_history;
    for (int i = 0; i < WARM_LENGTHS && n_events > 1; i++, n_events = (n_events + 7) / 8)
        for (int32_t n = 1; n <= WARM_USERS && n <= m->max_batch; n *= 2) {
            int32_t n_history = m->infer.n_context + m->infer.per_event * n_events;
            int32_t n_tokens = n * (m->infer.per_event + n_candidates + 1);
            if (n_tokens > m->max_tokens || n_tokens > PLAN_ROUND_MOST ||
                (int64_t)n * (n_events + n_candidates) > m->max_tokens)
                break;
            for (int round = 0; round < 2; round++)
                TRY(run_batch(r, n, n_events, n_candidates, n_history - m->infer.per_event));
        }
    return OK;
}

status warm_up(served *m) {
    rehearsal r;
    status st = rehearsal_make(&r, m);
    if (st == OK) st = learn_rate(&r);
    if (st == OK && m->cache != NULL && m->compute.be->token_bucket > 0) st = record_shapes(&r);
    histories_clear(&m->infer.batch);
    rehearsal_end(&r);
    return st;
}
