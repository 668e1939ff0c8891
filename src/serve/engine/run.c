#include "serve/engine/run.h"

#include <stdlib.h>
#include <string.h>

#include "base/thread.h"

/* A batch of so many jobs or more is worth waking the pool for what its jobs need on the host: that
 * takes 100 to 200 us on 16 cores, numbers of 256 candidates 5 to 10. */
enum { RANK_PART = 1024, LONG_LIST = 32, MANY_JOBS = 32 };

/* How often a lock that is held for a short time is asked for, before its thread sleeps. */
enum { LOCK_LOOKS = 200 };

/* While the jobs run. */
typedef struct run {
    served *m;
    job *const *jobs;
    int32_t n;
    run_report *report;
    /* Of the batch that is built: what is reused and stored of its sequences (layout_cache). */
    kv_lease *lease;              /* (max_batch) */
    int32_t *n_reused, *n_stored; /* (max_batch) */
    const int32_t **page;         /* (max_batch) */
    int32_t n_leases;
    bool has_lock; /* of the cache */
} run;

int32_t run_tokens(const job *j) {
    if (!j->m->is_ranking) return j->n_tokens;
    int32_t n = j->n_candidates < j->m->max_part ? j->n_candidates : j->m->max_part;
    return j->n_tokens + n + 1;
}

/* Tokens of a job that may be reused: retrieval needs the result of the last one. */
static int32_t max_reused(const job *j) {
    return j->m->is_ranking ? j->n_tokens : j->n_tokens - 1;
}

/* Memory of the backend until the next call; what is in it is lost where it grows. */
static status backend_room(served *m, size_t bytes, void **out) {
    backend *be = m->compute.be;
    *out = NULL;
    if (bytes > m->room_bytes) {
        if (m->room != NULL) be->ops->release(be, m->room);
        m->room = NULL;
        m->room_bytes = 0;
        TRY(be->ops->alloc(be, &m->room, bytes));
        m->room_bytes = bytes;
    }
    *out = m->room;
    return OK;
}

/* fn for each of n jobs, on all threads where they are many. */
static status each_job(run *r, int32_t n, pool_fn fn, void *ctx) {
    if (n >= MANY_JOBS) return pool_run(r->m->compute.workers, n, fn, ctx);
    for (int32_t i = 0; i < n; i++)
        TRY(fn(ctx, i, 0));
    return OK;
}

static void stop_watch(uint64_t *start, uint64_t *sum) {
    uint64_t now = clock_ns();
    *sum += now - *start;
    *start = now;
}

/* The cache. */

/* Those who look for pages have the lock for some microseconds: less than a thread takes to sleep
 * and wake. */
static void lock_cache(run *r) {
    for (int i = 0; i < LOCK_LOOKS && !r->has_lock; i++) {
        r->has_lock = pthread_rwlock_trywrlock(&r->m->cache_lock) == 0;
        if (!r->has_lock) thread_pause();
    }
    if (!r->has_lock) pthread_rwlock_wrlock(&r->m->cache_lock);
    r->has_lock = true;
}

static void unlock_cache(run *r) {
    if (r->has_lock) pthread_rwlock_unlock(&r->m->cache_lock);
    r->has_lock = false;
}

/* What one job stores must not evict what another one of the batch finds. */
static void hold_pages(run *r) {
    for (int32_t i = 0; i < r->n && r->n > 1; i++) {
        job *j = r->jobs[i];
        if (j->n_tokens > 0) kv_cache_hold(r->m->cache, j->tokens, max_reused(j), &j->path);
    }
}

static void let_pages_go(run *r) {
    for (int32_t i = 0; i < r->n; i++)
        kv_cache_let_go(r->m->cache, &r->jobs[i]->path);
}

static status begin_leases(run *r) {
    size_t n = (size_t)r->m->max_batch;
    if (r->m->cache == NULL) return OK;
    TRY(ARENA_NEW(&r->m->scratch, &r->lease, n));
    TRY(ARENA_NEW(&r->m->scratch, &r->n_reused, n));
    TRY(ARENA_NEW(&r->m->scratch, &r->n_stored, n));
    TRY(ARENA_NEW(&r->m->scratch, &r->page, n));
    lock_cache(r);
    kv_cache_tick(r->m->cache);
    hold_pages(r);
    return OK;
}

/* Leases pages for the next sequence of the batch; *n_reused of its tokens are not computed. */
static status lease_pages(run *r, job *j, int32_t *n_reused) {
    *n_reused = 0;
    if (r->m->cache == NULL) return OK;
    kv_lease *l = &r->lease[r->n_leases];
    TRY(ARENA_NEW(&r->m->scratch, &l->page, (size_t)(j->n_tokens / KV_PAGE + 1)));
    lock_cache(r);
    kv_cache_take(r->m->cache, j->tokens, j->n_tokens, max_reused(j), &j->path, l);
    *n_reused = r->n_reused[r->n_leases] = l->n_reused;
    r->n_stored[r->n_leases] = l->n_stored;
    r->page[r->n_leases++] = l->page;
    j->out->tokens_loaded += l->n_loaded;
    r->report->tokens_loaded += l->n_loaded;
    return OK;
}

/* The pass copies between the tiers what the leases need. */
static void begin_moves(run *r) {
    if (r->m->cache == NULL) return;
    kv_moves m = kv_cache_moves(r->m->cache);
    kv_store_set_moves(&r->m->store, m.out, m.n_out, m.in, m.n_in);
    unlock_cache(r);
}

static void end_leases(run *r, bool is_written) {
    if (r->m->cache == NULL) return;
    lock_cache(r);
    for (int32_t i = 0; i < r->n_leases; i++)
        kv_cache_give(r->m->cache, &r->lease[i], is_written);
    r->n_leases = 0;
    kv_store_set_moves(&r->m->store, NULL, 0, NULL, 0);
    kv_moves m = kv_cache_moves(r->m->cache);
    if (is_written) kv_cache_moved(r->m->cache);
    if (!is_written && (m.n_out > 0 || m.n_in > 0)) {
        /* A batch failed while pages moved: nobody knows what is where. */
        (void)r->m->compute.be->ops->kv_wait(r->m->compute.be, -1);
        let_pages_go(r);
        kv_cache_forget(r->m->cache);
    }
    unlock_cache(r);
}

/* Of the whole run; also of a batch that failed before it ran. */
static void end_run(run *r) {
    end_leases(r, false);
    if (r->m->cache == NULL) return;
    lock_cache(r);
    let_pages_go(r);
    unlock_cache(r);
}

static void count_tokens(run *r, job *j, int32_t n_computed, int32_t n_reused) {
    j->out->tokens_computed += n_computed;
    j->out->tokens_reused += n_reused;
    r->report->tokens_computed += n_computed;
    r->report->tokens_reused += n_reused;
}

/* Retrieval. */

/* The best of some scores: highest first, of equal ones the smaller row. */
typedef struct scored_row {
    float score;
    int32_t row;
} scored_row;

static int compare_scores(const void *a, const void *b) {
    const scored_row *x = a, *y = b;
    if (x->score != y->score) return x->score > y->score ? -1 : 1;
    return (x->row > y->row) - (x->row < y->row);
}

/* The scores of some rows of the catalogue for one query: their k best of k are all of them, so op
 * `rank` gives the very numbers that a search of the whole catalogue ranks by. */
static status score_rows(run *r, const void *query, const int32_t *row, int32_t n, float *out) {
    backend *be = r->m->compute.be;
    const item_table *t = &r->m->table;
    int32_t dim = t->dim, *best;
    float *score;
    void *room;
    TRY(ARENA_NEW(&r->m->scratch, &best, RANK_PART));
    TRY(ARENA_NEW(&r->m->scratch, &score, RANK_PART));
    int32_t most = n < RANK_PART ? n : RANK_PART;
    TRY(backend_room(r->m, (size_t)most * (size_t)dim * sizeof(float), &room));
    float *rows = room;
    status st = OK;
    for (int32_t first = 0; first < n && st == OK; first += most) {
        int32_t count = n - first < most ? n - first : most;
        for (int32_t i = 0; i < count && st == OK; i++)
            st = be->ops->copy(be, rows + (int64_t)i * dim,
                               t->items.rows + (int64_t)row[first + i] * dim,
                               (size_t)dim * sizeof *rows);
        rank_args a = {.n_queries = 1,
                       .dim = dim,
                       .n_corpus = count,
                       .query = query,
                       .corpus = rows,
                       .k = count,
                       .best = best,
                       .best_score = score};
        if (st == OK) st = be->ops->rank(be, &a);
        for (int32_t i = 0; i < count && st == OK; i++)
            if (best[i] >= 0) out[first + best[i]] = score[i];
    }
    return st;
}

static status rank_candidates(run *r, job *j, const void *query) {
    int32_t *row, *at, n = 0;
    float *score;
    TRY(job_name_candidates(j));
    TRY(ARENA_NEW(&r->m->scratch, &row, (size_t)j->n_candidates));
    TRY(ARENA_NEW(&r->m->scratch, &at, (size_t)j->n_candidates));
    TRY(ARENA_NEW(&r->m->scratch, &score, (size_t)j->n_candidates));
    for (int32_t i = 0; i < j->n_candidates; i++) {
        int32_t own = j->candidate[i] > 0 ? r->m->table.items.row[j->candidate[i]] : -1;
        if (own < 0) continue;
        row[n] = own;
        at[n++] = i;
    }
    TRY(score_rows(r, query, row, n, score));
    for (int32_t i = 0; i < n; i++)
        j->values[at[i]] = score[i];
    return OK;
}

/* Only some items are allowed. */
static status recommend_allowed(run *r, job *j, const void *query) {
    scored_row *best;
    float *score;
    uint32_t *item;
    TRY(ARENA_NEW(&r->m->scratch, &best, (size_t)j->n_allow));
    TRY(ARENA_NEW(&r->m->scratch, &score, (size_t)j->n_allow));
    TRY(ARENA_NEW(&r->m->scratch, &item, (size_t)j->n_allow));
    TRY(score_rows(r, query, j->allow, j->n_allow, score));
    for (int32_t i = 0; i < j->n_allow; i++)
        best[i] = (scored_row){score[i], j->allow[i]};
    if (j->n_allow > 1) qsort(best, (size_t)j->n_allow, sizeof *best, compare_scores);
    int32_t n = j->top_k < j->n_allow ? j->top_k : j->n_allow;
    for (int32_t i = 0; i < n; i++) {
        item[i] = (uint32_t)r->m->table.items.item[best[i].row];
        score[i] = best[i].score;
    }
    return job_answer_items(j, item, score, n);
}

/* Only a few items: their rows are gathered; many are bits that a search looks at. */
static bool is_short_list(const job *j) {
    return j->has_allow && j->n_allow < LONG_LIST;
}

static bool searches_all(const job *j) {
    return j->task == ENGINE_RECOMMEND && !is_short_list(j);
}

/* Jobs that search the whole catalogue, one query each: which, and what they leave out. */
typedef struct search {
    int32_t n, k, n_seen;
    job **jobs;
    int32_t *query; /* (n): row of the encoded users */
    int32_t *offsets, *seen;
    const uint64_t **allowed; /* (n): bits of the rows; NULL: all */
} search;

static status make_bits(run *r, const job *j, const uint64_t **out) {
    uint64_t *bits;
    if (!j->has_allow) return OK;
    TRY(ARENA_NEW(&r->m->scratch, &bits, (size_t)r->m->table.items.n / 64 + 1));
    for (int32_t i = 0; i < j->n_allow; i++)
        bits[j->allow[i] / 64] |= (uint64_t)1 << (j->allow[i] % 64);
    *out = bits;
    return OK;
}

static status collect_searches(run *r, search *s) {
    int64_t n_seen = 0;
    TRY(ARENA_NEW(&r->m->scratch, &s->jobs, (size_t)r->n));
    TRY(ARENA_NEW(&r->m->scratch, &s->query, (size_t)r->n));
    TRY(ARENA_NEW(&r->m->scratch, &s->offsets, (size_t)r->n + 1));
    TRY(ARENA_NEW(&r->m->scratch, &s->allowed, (size_t)r->n));
    for (int32_t i = 0, query = 0; i < r->n; i++) {
        job *j = r->jobs[i];
        if (j->events.n == 0) continue;
        if (searches_all(j)) {
            TRY(make_bits(r, j, &s->allowed[s->n]));
            s->query[s->n] = query;
            s->jobs[s->n++] = j;
            s->k = j->top_k > s->k ? j->top_k : s->k;
            n_seen += j->n_seen;
        }
        query++;
    }
    if (n_seen > INT32_MAX) return fail(ERR_UNSUPPORTED, "more than 2^31 items to leave out");
    TRY(ARENA_NEW(&r->m->scratch, &s->seen, (size_t)n_seen));
    for (int32_t i = 0; i < s->n; i++) {
        memcpy(s->seen + s->n_seen, s->jobs[i]->seen, (size_t)s->jobs[i]->n_seen * sizeof *s->seen);
        s->n_seen += s->jobs[i]->n_seen;
        s->offsets[i + 1] = s->n_seen;
    }
    return OK;
}

/* Rows of `dim` activations after one another, for those of the queries that search. */
static status gather_queries(run *r, const search *s, const void *encoded, void *to) {
    backend *be = r->m->compute.be;
    size_t bytes = (size_t)r->m->table.dim * act_bytes(be->act);
    for (int32_t i = 0; i < s->n; i++)
        TRY(be->ops->copy(be, (char *)to + (size_t)i * bytes,
                          (const char *)encoded + (size_t)s->query[i] * bytes, bytes));
    return OK;
}

static status answer_searches(run *r, const search *s, const int32_t *best, const float *score) {
    uint32_t *item;
    TRY(ARENA_NEW(&r->m->scratch, &item, (size_t)s->k));
    for (int32_t i = 0; i < s->n; i++) {
        job *j = s->jobs[i];
        const int32_t *own = best + (int64_t)i * s->k;
        int32_t n = 0;
        for (; n < j->top_k && n < s->k && own[n] >= 0; n++)
            item[n] = (uint32_t)r->m->table.items.item[own[n]];
        TRY(job_answer_items(j, item, score + (int64_t)i * s->k, n));
    }
    return OK;
}

/* One search for all of them: the best of fewer are the first of the best of more. */
static status search_catalogue(run *r, const void *encoded) {
    backend *be = r->m->compute.be;
    const item_table *t = &r->m->table;
    search s = {0};
    int32_t *best;
    float *score;
    void *room;
    TRY(collect_searches(r, &s));
    if (s.n == 0) return OK;
    if (s.k > t->items.n) s.k = t->items.n;
    TRY(ARENA_NEW(&r->m->scratch, &best, (size_t)s.n * (size_t)s.k));
    TRY(ARENA_NEW(&r->m->scratch, &score, (size_t)s.n * (size_t)s.k));
    size_t query_bytes = ((size_t)s.n * (size_t)t->dim * act_bytes(be->act) + 63) / 64 * 64;
    size_t offset_bytes = ((size_t)(s.n + 1) * sizeof *s.offsets + 63) / 64 * 64;
    size_t seen_bytes = (size_t)s.n_seen * sizeof *s.seen;
    TRY(backend_room(r->m, query_bytes + offset_bytes + seen_bytes, &room));
    char *memory = room;
    rank_args a = {.n_queries = s.n,
                   .dim = t->dim,
                   .n_corpus = t->items.n,
                   .query = memory,
                   .corpus = t->items.rows,
                   .corpus_act = t->narrow,
                   .corpus_int8 = t->small.rows != NULL ? &t->small : NULL,
                   .allowed = s.allowed,
                   .seen_offsets = (int32_t *)(memory + query_bytes),
                   .seen = (int32_t *)(memory + query_bytes + offset_bytes),
                   .k = s.k,
                   .best = best,
                   .best_score = score};
    status st = gather_queries(r, &s, encoded, memory);
    if (st == OK)
        st = be->ops->copy_in(be, memory + query_bytes, s.offsets,
                              (size_t)(s.n + 1) * sizeof *s.offsets);
    if (st == OK && seen_bytes > 0)
        st = be->ops->copy_in(be, memory + query_bytes + offset_bytes, s.seen, seen_bytes);
    if (st == OK) st = be->ops->rank(be, &a);
    return st == OK ? answer_searches(r, &s, best, score) : st;
}

static status answer_vector(run *r, job *j, const char *query) {
    float *vector;
    if (!j->wants_vector) return OK;
    TRY(ARENA_NEW(j->arena, &vector, (size_t)r->m->table.dim));
    TRY(backend_read_act(r->m->compute.be, vector, query, (size_t)r->m->table.dim));
    j->out->vector = vector;
    j->out->dim = r->m->table.dim;
    return OK;
}

static status answer_encoded(run *r, const void *encoded) {
    size_t bytes = (size_t)r->m->table.dim * act_bytes(r->m->compute.be->act);
    const char *query = encoded;
    for (int32_t i = 0; i < r->n; i++) {
        job *j = r->jobs[i];
        if (j->events.n == 0) continue;
        TRY(answer_vector(r, j, query));
        if (j->task == ENGINE_RANK)
            TRY(rank_candidates(r, j, query));
        else if (is_short_list(j))
            TRY(recommend_allowed(r, j, query));
        query += bytes;
    }
    return search_catalogue(r, encoded);
}

/* Those of whom nothing is known get the popular items. */
static status answer_unknown(run *r) {
    for (int32_t i = 0; i < r->n; i++) {
        job *j = r->jobs[i];
        bool is_unknown = j->events.n == 0, is_rank = j->task == ENGINE_RANK;
        j->out->source = !is_unknown ? ENGINE_FROM_MODEL
                         : is_rank   ? ENGINE_FROM_NOTHING
                                     : ENGINE_FROM_POPULAR;
        if (is_unknown && !is_rank)
            TRY(job_answer_items(j, j->popular, j->popular_count, j->n_popular));
        if (is_rank) TRY(job_answer_candidates(j));
    }
    return OK;
}

/* The batch through the model, and the end of its leases. */
static status encode(run *r, const void **encoded) {
    served *m = r->m;
    layout_cache c = {r->n_reused, r->n_stored, r->page};
    begin_moves(r);
    status st = pass_encode_cached(m->pass, &m->batch.view, m->cache != NULL ? &m->store : NULL,
                                   m->cache != NULL ? &c : NULL, encoded);
    status waited = m->compute.be->ops->sync(m->compute.be);
    if (st == OK) st = waited;
    end_leases(r, st == OK);
    return st;
}

static status run_retrieval(run *r) {
    histories *h = &r->m->batch;
    const void *encoded = NULL;
    int32_t n_reused;
    uint64_t at = clock_ns();
    histories_clear(h);
    for (int32_t i = 0; i < r->n; i++) {
        job *j = r->jobs[i];
        if (j->events.n == 0) continue;
        TRY(lease_pages(r, j, &n_reused));
        uint64_t n_skipped = (uint64_t)pass_n_skipped(r->m->pass, n_reused);
        TRY(histories_add_rest(h, &j->events, n_skipped, NULL, 0));
        count_tokens(r, j, j->n_tokens - n_reused, n_reused);
    }
    stop_watch(&at, &r->report->build_ns);
    if (h->view.n_users > 0) TRY(encode(r, &encoded));
    stop_watch(&at, &r->report->layers_ns);
    if (h->view.n_users > 0) TRY(answer_encoded(r, encoded));
    TRY(answer_unknown(r));
    stop_watch(&at, &r->report->head_ns);
    return OK;
}

/* Ranking. */

/* Some candidates of a job, as one sequence of a pass. */
typedef struct unit {
    job *j;
    int32_t n;   /* of those that the model knows */
    int64_t row; /* the first one's logits in the batch, where candidates have rows */
} unit;

/* The candidates that the model knows, from `first` on, as many as fit a unit. */
static int32_t take_known(const job *j, int32_t first, int32_t *end, uint32_t *to) {
    int32_t n = 0, i = first;
    for (; i < j->n_candidates && n < j->m->max_part; i++)
        if (j->candidate[i] != 0) to[n++] = j->candidate[i];
    *end = i;
    return n;
}

/* Waits for the batch: one wait is enough for its kernels and the copy.  The logits stay as the
 * backend has them. */
static status read_logits(run *r, const void *scores, int64_t n_rows, char **out) {
    backend *be = r->m->compute.be;
    size_t bytes = (size_t)n_rows * (size_t)r->m->columns.width * act_bytes(be->act);
    TRY(arena_alloc_raw(&r->m->scratch, (void **)out, bytes, 1));
    return be->ops->copy_out(be, *out, scores, bytes);
}

/* Gives the jobs of the batch's units their logits.  Without candidates every event has a row of
 * logits, and the candidate is the last event of its sequence. */
static void give_logits(const run *r, const unit *units, const char *logits) {
    const served *m = r->m;
    size_t row_bytes = (size_t)m->columns.width * act_bytes(m->compute.be->act);
    for (int32_t u = 0; u < m->batch.view.n_users; u++) {
        const unit *p = &units[u];
        int64_t row = m->s->max_targets > 0 ? p->row : m->batch.view.offsets[u + 1] - 1;
        memcpy((char *)p->j->logits + (size_t)p->j->n_logits * row_bytes,
               logits + (size_t)row * row_bytes, (size_t)p->n * row_bytes);
        p->j->n_logits += p->n;
    }
}

/* While the device computes: of the jobs whose items this thread makes, and of those that it names
 * for others (a CPU has computed already: they do that themselves). */
static status name_units(const run *r, const unit *units) {
    bool is_busy = r->m->compute.be->n_ahead > 0;
    job *own = NULL;
    for (int32_t i = 0; i < r->m->batch.view.n_users; i++) {
        job *j = units[i].j;
        if (!j->is_left || is_busy) TRY(job_name_candidates(j));
        if (!j->is_left) own = j;
    }
    if (own != NULL) job_rehearse(own);
    return OK;
}

static status score_units(run *r, const unit *units, uint64_t *at) {
    served *m = r->m;
    layout_cache c = {r->n_reused, r->n_stored, r->page};
    const void *scores;
    char *logits;
    int64_t n_rows;
    if (m->batch.view.n_users == 0) return OK;
    stop_watch(at, &r->report->build_ns);
    begin_moves(r);
    status st = pass_score_cached(m->pass, &m->batch.view, m->cache != NULL ? &m->store : NULL,
                                  m->cache != NULL ? &c : NULL, &scores, &n_rows);
    if (st == OK) st = name_units(r, units);
    if (st == OK) st = read_logits(r, scores, n_rows, &logits);
    if (st != OK) (void)m->compute.be->ops->sync(m->compute.be); /* else read_logits has waited */
    end_leases(r, st == OK);
    TRY(st);
    stop_watch(at, &r->report->layers_ns);
    give_logits(r, units, logits);
    histories_clear(&m->batch);
    stop_watch(at, &r->report->head_ns);
    return OK;
}

/* While candidates are cut into units. */
typedef struct cut {
    unit *units;     /* of the batch */
    uint32_t *known; /* of one unit */
    int32_t *next;   /* (n): first candidate of each job that no unit has */
    int32_t n_tokens;
    int64_t n_rows; /* of candidates, in the batch */
    uint64_t at;
} cut;

/* The next unit of a job joins the batch, which is computed first where it is full. */
static status add_unit(run *r, cut *c, int32_t i) {
    served *m = r->m;
    job *j = r->jobs[i];
    int32_t n_reused, n = take_known(j, c->next[i], &c->next[i], c->known);
    int32_t most = j->n_tokens + n + 1;
    if (n == 0) return OK;
    if (m->batch.view.n_users == m->max_batch || c->n_tokens + most > m->max_tokens) {
        TRY(score_units(r, c->units, &c->at));
        c->n_tokens = 0;
        c->n_rows = 0;
    }
    c->units[m->batch.view.n_users] = (unit){j, n, c->n_rows};
    c->n_rows += n;
    TRY(lease_pages(r, j, &n_reused));
    uint64_t n_skipped = (uint64_t)pass_n_skipped(m->pass, n_reused);
    TRY(histories_add_rest(&m->batch, &j->events, n_skipped, c->known, n));
    c->n_tokens += most - n_reused;
    count_tokens(r, j, j->n_tokens + n - n_reused, n_reused);
    return OK;
}

static status answer_one(void *ctx, int64_t i, int worker) {
    const run *r = ctx;
    (void)worker;
    return r->jobs[i]->is_left ? OK : job_answer_candidates(r->jobs[i]);
}

/* Candidates in microbatches: the numbers do not depend on the cut.  A round has one unit of each
 * job, so that the next one finds the history in the cache. */
static status run_ranking(run *r) {
    cut c = {.at = clock_ns()};
    bool is_done = false;
    TRY(ARENA_NEW(&r->m->scratch, &c.units, (size_t)r->m->max_batch));
    TRY(ARENA_NEW(&r->m->scratch, &c.known, (size_t)r->m->max_part));
    TRY(ARENA_NEW(&r->m->scratch, &c.next, (size_t)r->n));
    histories_clear(&r->m->batch);
    while (!is_done) {
        is_done = true;
        for (int32_t i = 0; i < r->n; i++) {
            if (c.next[i] == r->jobs[i]->n_candidates) continue;
            TRY(add_unit(r, &c, i));
            is_done = false;
        }
        if (r->m->cache == NULL && !is_done) continue;
        TRY(score_units(r, c.units, &c.at));
        c.n_tokens = 0;
        c.n_rows = 0;
    }
    status st = each_job(r, r->n, answer_one, r);
    stop_watch(&c.at, &r->report->head_ns);
    return st;
}

status run_jobs(served *m, job *const *jobs, int32_t n, run_report *out) {
    run r = {.m = m, .jobs = jobs, .n = n, .report = out};
    *out = (run_report){0};
    TRY(served_checked(m));
    kv_cache_counts before = {0};
    if (m->cache != NULL) before = kv_cache_count(m->cache);
    status st = begin_leases(&r);
    if (st == OK) st = m->is_ranking ? run_ranking(&r) : run_retrieval(&r);
    end_run(&r);
    if (m->cache != NULL) {
        kv_cache_counts after = kv_cache_count(m->cache);
        out->n_evicted = after.n_evicted - before.n_evicted;
        out->n_host_evicted = after.n_host_evicted - before.n_host_evicted;
        out->n_out = after.n_out - before.n_out;
        out->n_in = after.n_in - before.n_in;
        out->n_computed_again = after.n_computed_again - before.n_computed_again;
    }
    arena_clear(&m->scratch);
    return st;
}
