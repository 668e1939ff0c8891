#include "serve/run.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

enum { RANK_PART = 1024 };

/* While the jobs run. */
typedef struct run {
    served *m;
    job *const *jobs;
    int32_t n;
    run_report *report;
    arena arena; /* of this run */
} run;

int32_t run_tokens(const job *j) {
    if (!j->m->is_ranking) return j->n_tokens;
    int32_t n = j->n_candidates < j->m->max_part ? j->n_candidates : j->m->max_part;
    return j->n_tokens + n + 1;
}

static void stop_watch(uint64_t *start, uint64_t *sum) {
    uint64_t now = clock_ns();
    *sum += now - *start;
    *start = now;
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
    float *score, *rows;
    TRY(ARENA_NEW(&r->arena, &best, RANK_PART));
    TRY(ARENA_NEW(&r->arena, &score, RANK_PART));
    int32_t most = n < RANK_PART ? n : RANK_PART;
    TRY(be->ops->alloc(be, (void **)&rows, (size_t)most * (size_t)dim * sizeof *rows));
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
    be->ops->release(be, rows);
    return st;
}

static status rank_candidates(run *r, job *j, const void *query) {
    int32_t *row, *at, n = 0;
    float *score;
    TRY(ARENA_NEW(&r->arena, &row, (size_t)j->n_candidates));
    TRY(ARENA_NEW(&r->arena, &at, (size_t)j->n_candidates));
    TRY(ARENA_NEW(&r->arena, &score, (size_t)j->n_candidates));
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
    TRY(ARENA_NEW(&r->arena, &best, (size_t)j->n_allow));
    TRY(ARENA_NEW(&r->arena, &score, (size_t)j->n_allow));
    TRY(ARENA_NEW(&r->arena, &item, (size_t)j->n_allow));
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

static bool searches_all(const job *j) {
    return j->task == ENGINE_RECOMMEND && !j->has_allow;
}

/* Jobs that search the whole catalogue, one query each: which, and what they leave out. */
typedef struct search {
    int32_t n, k, n_seen;
    job **jobs;
    int32_t *query; /* (n): row of the encoded users */
    int32_t *offsets, *seen;
} search;

static status collect_searches(run *r, search *s) {
    int64_t n_seen = 0;
    TRY(ARENA_NEW(&r->arena, &s->jobs, (size_t)r->n));
    TRY(ARENA_NEW(&r->arena, &s->query, (size_t)r->n));
    TRY(ARENA_NEW(&r->arena, &s->offsets, (size_t)r->n + 1));
    for (int32_t i = 0, query = 0; i < r->n; i++) {
        job *j = r->jobs[i];
        if (j->events.n == 0) continue;
        if (searches_all(j)) {
            s->query[s->n] = query;
            s->jobs[s->n++] = j;
            s->k = j->top_k > s->k ? j->top_k : s->k;
            n_seen += j->n_seen;
        }
        query++;
    }
    if (n_seen > INT32_MAX) return fail(ERR_UNSUPPORTED, "more than 2^31 items to leave out");
    TRY(ARENA_NEW(&r->arena, &s->seen, (size_t)n_seen));
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
    TRY(ARENA_NEW(&r->arena, &item, (size_t)s->k));
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
    char *memory;
    TRY(collect_searches(r, &s));
    if (s.n == 0) return OK;
    if (s.k > t->items.n) s.k = t->items.n;
    TRY(ARENA_NEW(&r->arena, &best, (size_t)s.n * (size_t)s.k));
    TRY(ARENA_NEW(&r->arena, &score, (size_t)s.n * (size_t)s.k));
    size_t query_bytes = ((size_t)s.n * (size_t)t->dim * act_bytes(be->act) + 63) / 64 * 64;
    size_t offset_bytes = ((size_t)(s.n + 1) * sizeof *s.offsets + 63) / 64 * 64;
    size_t seen_bytes = (size_t)s.n_seen * sizeof *s.seen;
    TRY(be->ops->alloc(be, (void **)&memory, query_bytes + offset_bytes + seen_bytes));
    rank_args a = {.n_queries = s.n,
                   .dim = t->dim,
                   .n_corpus = t->items.n,
                   .query = memory,
                   .corpus = t->items.rows,
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
    be->ops->release(be, memory);
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
        else if (j->has_allow)
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

static status run_retrieval(run *r) {
    histories *h = &r->m->batch;
    const void *encoded = NULL;
    uint64_t at = clock_ns();
    histories_clear(h);
    for (int32_t i = 0; i < r->n; i++) {
        job *j = r->jobs[i];
        if (j->events.n == 0) continue;
        TRY(histories_add(h, &j->events, NULL, 0));
        j->out->tokens_computed = j->n_tokens;
        r->report->tokens_computed += j->n_tokens;
    }
    stop_watch(&at, &r->report->build_ns);
    if (h->view.n_users > 0) TRY(pass_encode(r->m->pass, &h->view, &encoded));
    TRY(r->m->compute.be->ops->sync(r->m->compute.be));
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
    int32_t first, n; /* candidates looked at */
    int32_t n_known;  /* of these, in the batch */
} unit;

/* The candidates that the model knows, from `first` on, as many as fit a unit. */
static int32_t take_known(const job *j, int32_t first, int32_t *end, uint32_t *to) {
    int32_t n = 0, i = first;
    for (; i < j->n_candidates && n < j->m->max_part; i++)
        if (j->candidate[i] != 0) to[n++] = j->candidate[i];
    *end = i;
    return n;
}

/* Writes the numbers of a batch's units.  Without candidates every event has a row of logits, and
 * the candidate is the last event of its sequence. */
static status finish_units(run *r, const unit *units, const void *scores, int64_t n_rows) {
    served *m = r->m;
    float *logits;
    int64_t row = 0;
    bool has_targets = m->s->max_targets > 0;
    TRY(ARENA_NEW(&r->arena, &logits, (size_t)(n_rows * m->columns.width)));
    TRY(backend_read_act(m->compute.be, logits, scores, (size_t)(n_rows * m->columns.width)));
    for (int32_t u = 0; u < m->batch.view.n_users; u++) {
        const unit *p = &units[u];
        if (!has_targets) row = m->batch.view.offsets[u + 1] - 1;
        for (int32_t i = p->first; i < p->first + p->n; i++) {
            if (p->j->candidate[i] == 0) continue;
            score_columns_finish(&m->columns, logits + row++ * m->columns.width,
                                 p->j->values + (int64_t)i * m->columns.n);
        }
    }
    return OK;
}

static status score_units(run *r, const unit *units, uint64_t *at) {
    const void *scores;
    int64_t n_rows;
    if (r->m->batch.view.n_users == 0) return OK;
    stop_watch(at, &r->report->build_ns);
    TRY(pass_score(r->m->pass, &r->m->batch.view, &scores, &n_rows));
    TRY(r->m->compute.be->ops->sync(r->m->compute.be));
    stop_watch(at, &r->report->layers_ns);
    TRY(finish_units(r, units, scores, n_rows));
    histories_clear(&r->m->batch);
    stop_watch(at, &r->report->head_ns);
    return OK;
}

/* Candidates in microbatches: the numbers do not depend on the cut. */
static status run_ranking(run *r) {
    served *m = r->m;
    unit *units;
    uint32_t *known;
    int32_t n_tokens = 0;
    uint64_t at = clock_ns();
    TRY(ARENA_NEW(&r->arena, &units, (size_t)m->max_batch));
    TRY(ARENA_NEW(&r->arena, &known, (size_t)m->max_part));
    histories_clear(&m->batch);
    for (int32_t i = 0; i < r->n; i++) {
        job *j = r->jobs[i];
        for (int32_t first = 0, end; first < j->n_candidates; first = end) {
            int32_t n = take_known(j, first, &end, known), tokens = j->n_tokens + n + 1;
            if (n == 0) continue;
            if (m->batch.view.n_users == m->max_batch || n_tokens + tokens > m->max_tokens) {
                TRY(score_units(r, units, &at));
                n_tokens = 0;
            }
            units[m->batch.view.n_users] = (unit){j, first, end - first, n};
            TRY(histories_add(&m->batch, &j->events, known, n));
            n_tokens += tokens;
            j->out->tokens_computed += j->n_tokens + n;
            r->report->tokens_computed += j->n_tokens + n;
        }
    }
    TRY(score_units(r, units, &at));
    for (int32_t i = 0; i < r->n; i++)
        TRY(job_answer_candidates(r->jobs[i]));
    return OK;
}

status run_jobs(served *m, job *const *jobs, int32_t n, run_report *out) {
    run r = {.m = m, .jobs = jobs, .n = n, .report = out};
    *out = (run_report){0};
    arena_init(&r.arena, 1 << 16);
    status st = m->is_ranking ? run_ranking(&r) : run_retrieval(&r);
    arena_fini(&r.arena);
    return st;
}
