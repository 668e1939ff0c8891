#include "model/infer.h"

#include "base/half.h"

/* Rows that op `rank` orders at once; lists shorter than LONG_LIST, on a CPU also than this part of
 * the catalogue, are gathered, longer ones are bits that a search of the catalogue looks at. */
enum { RANK_PART = INFER_MAX_K, LONG_LIST = 32, SHORT_PART = 128 };

static backend *backend_of(const infer *f) {
    return f->s->be;
}

/* Bytes of an encoded user. */
static size_t query_bytes(const infer *f) {
    return (size_t)f->table.dim * act_bytes(backend_of(f)->act);
}

/* Bytes of a candidate's logits. */
static size_t logit_bytes(const infer *f) {
    return (size_t)f->columns.width * act_bytes(backend_of(f)->act);
}

static status init_leases(infer *f) {
    size_t n = (size_t)f->max_users;
    if (f->store == NULL) return OK;
    TRY(MEM_NEW(&f->n_reused, n));
    TRY(MEM_NEW(&f->n_stored, n));
    return MEM_NEW(&f->page, n);
}

static status init_table(infer *f, const infer_config *c) {
    TRY(item_table_init(&f->table, f->s->model));
    filter_cache_init(&f->filters, f->s->data, f->table.items.item, f->table.items.n);
    if (f->is_ranking || f->s->config->retrieval.similarity == SIMILARITY_MOL) return OK;
    if (c->is_serving) TRY(item_table_narrow(&f->table));
    return c->has_int8_items ? item_table_shrink(&f->table) : OK;
}

status infer_init(infer *f, session *s, const infer_config *c) {
    /* Where the model has no candidates, one is an event like others. */
    bool has_targets = s->config->task == TASK_RANKING && s->max_targets > 0;
    *f = (infer){.s = s,
                 .is_ranking = s->config->task == TASK_RANKING,
                 .n_context = s->limits.n_context,
                 .has_first = !has_targets && s->config->network.has_first_loss,
                 .max_users = c->max_users,
                 .max_tokens = c->max_tokens > 0 ? c->max_tokens : INT32_MAX,
                 .max_part = !has_targets      ? 1
                             : c->max_part > 0 ? c->max_part
                                               : s->max_targets,
                 .store = c->store};
    int32_t max_targets = has_targets ? f->max_part : 0;
    int64_t max_rows = (int64_t)c->max_users * (s->max_history + max_targets);
    f->per_event = f->is_ranking ? 2 : 1;
    arena_init(&f->scratch, 1 << 16);
    TRY(score_columns_init(&f->columns, s));
    TRY(init_table(f, c));
    TRY(init_leases(f));
    if (c->max_tokens > 0) max_rows = c->max_tokens;
    TRY(histories_init_bounded(&f->batch, s, c->max_users, max_targets, max_rows));
    pass_config p = {.max_users = c->max_users,
                     .max_tokens = c->max_tokens,
                     .max_targets = max_targets,
                     .has_cache = c->store != NULL,
                     .is_recorded = c->is_serving};
    TRY(pass_create(&f->pass, s->model, &p));
    pass_set_fp8_kv(f->pass, c->has_fp8_kv);
    if (c->stages.mean == 0 && c->stages.pair == 0) return OK;
    return pass_index(f->pass, &c->stages, &f->table.items, c->n_measured);
}

void infer_fini(infer *f) {
    if (f->room != NULL) backend_of(f)->ops->release(backend_of(f), f->room);
    pass_destroy(f->pass);
    histories_fini(&f->batch);
    filter_cache_fini(&f->filters);
    item_table_fini(&f->table);
    score_columns_fini(&f->columns);
    arena_fini(&f->scratch);
    MEM_FREE(f->n_reused, f->n_stored, f->page);
    *f = (infer){0};
}

/* Memory of the backend until the next call; what is in it is lost where it grows. */
static status backend_room(infer *f, size_t bytes, void **out) {
    backend *be = backend_of(f);
    *out = NULL;
    if (bytes > f->room_bytes) {
        if (f->room != NULL) be->ops->release(be, f->room);
        f->room = NULL;
        f->room_bytes = 0;
        TRY(be->ops->alloc(be, &f->room, bytes));
        f->room_bytes = bytes;
    }
    *out = f->room;
    return OK;
}

bool infer_knows(const infer *f, const infer_query *q) {
    bool has_features = false;
    for (int32_t i = 0; i < f->n_context; i++)
        has_features |= q->events.context[i] != 0;
    return q->events.n > 0 || f->is_ranking || (f->has_first && has_features);
}

/* While queries run. */
typedef struct run {
    infer *f;
    infer_query *const *q;
    int32_t n;
    const infer_hooks *hooks; /* or NULL */
    infer_query **batch;      /* (max_users): whose sequences are in the batch */
    uint64_t at;              /* when the stage began */
} run;

static void end_stage(run *r, uint64_t *sum) {
    uint64_t now = clock_ns();
    *sum += now - r->at;
    r->at = now;
}

/* Adds a sequence to the batch; tokens that its lease finds are not computed. */
static status add_sequence(run *r, infer_query *q, const uint32_t *candidate, int32_t n,
                           int32_t *n_reused) {
    infer *f = r->f;
    int32_t at = f->batch.view.n_users, n_tokens = infer_tokens(f, q->events.n);
    infer_lease lease = {0};
    if (f->store != NULL) {
        TRY(r->hooks->lease(r->hooks->ctx, q, n_tokens, &lease));
        f->n_reused[at] = lease.n_reused;
        f->n_stored[at] = lease.n_stored;
        f->page[at] = lease.page;
    }
    uint64_t n_skipped = (uint64_t)pass_n_skipped(f->pass, lease.n_reused);
    TRY(histories_add_rest(&f->batch, &q->events, n_skipped, candidate, n));
    r->batch[at] = q;
    q->n_computed += n_tokens + n - lease.n_reused;
    q->n_reused += lease.n_reused;
    *n_reused = lease.n_reused;
    return OK;
}

/* Waits for the batch: one wait is enough for its kernels and the copy.  The logits stay as the
 * backend has them. */
static status read_logits(infer *f, const void *scores, int64_t n_rows, char **out) {
    backend *be = backend_of(f);
    size_t bytes = (size_t)n_rows * logit_bytes(f);
    TRY(arena_alloc_raw(&f->scratch, (void **)out, bytes, 1));
    return be->ops->copy_out(be, *out, scores, bytes);
}

static status answer_users(run *r, const void *encoded);

/* The batch through the model, and the end of its leases: the answers of encoded users, or the
 * logits on the host.  A device that runs ahead of the host gets the searches of the users before
 * it has encoded them, so their time is part of the layers'. */
static status run_pass(run *r, char **logits) {
    infer *f = r->f;
    backend *be = backend_of(f);
    const infer_hooks *h = r->hooks;
    const batch *b = &f->batch.view;
    layout_cache leases = {f->n_reused, f->n_stored, f->page}, *cache = NULL;
    const void *results;
    int64_t n_rows;
    end_stage(r, &f->build_ns);
    if (f->store != NULL) {
        cache = &leases;
        h->begin(h->ctx);
    }
    status st = f->is_ranking ? pass_score_cached(f->pass, b, f->store, cache, &results, &n_rows)
                              : pass_encode_cached(f->pass, b, f->store, cache, &results);
    if (be->n_ahead == 0) end_stage(r, &f->layers_ns);
    if (st == OK && h != NULL) st = h->while_busy(h->ctx, r->batch, b->n_users);
    if (st == OK)
        st = f->is_ranking ? read_logits(f, results, n_rows, logits) : answer_users(r, results);
    if (st != OK || !f->is_ranking) {
        status waited = be->ops->sync(be);
        if (st == OK) st = waited;
    }
    if (f->store != NULL) h->end(h->ctx, st == OK);
    end_stage(r, be->n_ahead == 0 ? &f->head_ns : &f->layers_ns);
    return st;
}

/* Retrieval. */

/* Copies rows of the catalogue or of encoded users, those that are neighbours together. */
static status gather_rows(infer *f, const void *from, size_t row_bytes, const int32_t *row,
                          int32_t n, void *to) {
    backend *be = backend_of(f);
    for (int32_t i = 0, near; i < n; i += near) {
        near = 1;
        while (i + near < n && row[i + near] == row[i] + near)
            near++;
        TRY(be->ops->copy(be, (char *)to + (size_t)i * row_bytes,
                          (const char *)from + (size_t)row[i] * row_bytes,
                          (size_t)near * row_bytes));
    }
    return OK;
}

/* Who asks: the user's number, if the data have it. */
static uint64_t user_of(const infer *f, const infer_query *q) {
    return q->events.user < f->s->data->n_users ? q->events.user : PASS_NOBODY;
}

/* The scores (n_queries, n) of some rows, where they are among the k best of RANK_PART rows: op
 * `rank` gives the very numbers that a search of the whole catalogue ranks by. */
static status score_rows(infer *f, infer_query *const *q, const void *query, int32_t n_queries,
                         const int32_t *row, int32_t n, int32_t k, float *out) {
    int32_t *best, most = n < RANK_PART ? n : RANK_PART;
    size_t n_scores = (size_t)n_queries * (size_t)most;
    uint64_t *users;
    float *score;
    void *rows;
    TRY(ARENA_NEW(&f->scratch, &users, (size_t)n_queries));
    for (int32_t i = 0; i < n_queries; i++)
        users[i] = user_of(f, q[i]);
    TRY(ARENA_NEW(&f->scratch, &best, n_scores));
    TRY(ARENA_NEW(&f->scratch, &score, n_scores));
    TRY(backend_room(f, (size_t)most * (size_t)f->table.dim * sizeof(float), &rows));
    for (int32_t first = 0; first < n; first += most) {
        int32_t count = n - first < most ? n - first : most;
        TRY(gather_rows(f, f->table.items.rows, (size_t)f->table.dim * sizeof(float), row + first,
                        count, rows));
        rank_args a = {.n_queries = n_queries,
                       .dim = f->table.dim,
                       .n_corpus = count,
                       .query = query,
                       .corpus = rows,
                       .k = count < k ? count : k,
                       .best = best,
                       .best_score = score};
        TRY(pass_search(f->pass, &a, users));
        for (int64_t i = 0; i < (int64_t)n_queries * a.k; i++)
            if (best[i] >= 0) out[i / a.k * n + first + best[i]] = score[i];
    }
    return OK;
}

/* n queries with the same candidates. */
static status score_candidates(infer *f, infer_query *const *q, int32_t n, const void *query) {
    const infer_query *first = q[0];
    size_t n_candidates = (size_t)first->n_candidates;
    int32_t *row, *at, n_rows = 0;
    float *score;
    TRY(ARENA_NEW(&f->scratch, &row, n_candidates));
    TRY(ARENA_NEW(&f->scratch, &at, n_candidates));
    for (int32_t i = 0; i < first->n_candidates; i++) {
        int32_t own = first->candidate[i] > 0 ? f->table.items.row[first->candidate[i]] : -1;
        if (own < 0) continue;
        row[n_rows] = own;
        at[n_rows++] = i;
    }
    TRY(ARENA_NEW_RAW(&f->scratch, &score, (size_t)n * (size_t)n_rows));
    for (int64_t i = 0; i < (int64_t)n * n_rows; i++)
        score[i] = NAN;
    TRY(score_rows(f, q, query, n, row, n_rows, RANK_PART, score));
    for (int32_t k = 0; k < n; k++) {
        for (int32_t i = 0; i < q[k]->n_candidates; i++)
            q[k]->values[i] = NAN;
        for (int32_t i = 0; i < n_rows; i++)
            q[k]->values[at[i]] = score[(int64_t)k * n_rows + i];
    }
    return OK;
}

/* A row and its score. */
typedef struct scored_row {
    float score;
    int32_t row;
} scored_row;

/* Highest first, of equal ones the smaller row. */
static int compare_scores(const void *a, const void *b) {
    const scored_row *x = a, *y = b;
    if (x->score != y->score) return x->score > y->score ? -1 : 1;
    return (x->row > y->row) - (x->row < y->row);
}

/* Only a few items are allowed. */
static status search_allowed(infer *f, infer_query *q, const void *query) {
    scored_row *best;
    float *score;
    size_t n = 0;
    TRY(ARENA_NEW(&f->scratch, &best, (size_t)q->n_allow));
    TRY(ARENA_NEW(&f->scratch, &score, (size_t)q->n_allow));
    for (int32_t i = 0; i < q->n_allow; i++)
        score[i] = -INFINITY;
    TRY(score_rows(f, &q, query, 1, q->allow, q->n_allow, q->k, score));
    for (int32_t i = 0; i < q->n_allow; i++)
        if (score[i] > -INFINITY) best[n++] = (scored_row){score[i], q->allow[i]};
    qsort(best, n, sizeof *best, compare_scores);
    q->n_best = (size_t)q->k < n ? q->k : (int32_t)n;
    for (int32_t i = 0; i < q->n_best; i++) {
        q->item[i] = (uint32_t)f->table.items.item[best[i].row];
        q->score[i] = best[i].score;
    }
    return OK;
}

static bool is_short(const infer *f, int64_t n) {
    return n < LONG_LIST || (backend_of(f)->is_host && n < f->table.items.n / SHORT_PART);
}

/* Bits of the rows that a query may find. */
static status eligible_rows(const infer *f, arena *a, const infer_query *q, uint64_t **out) {
    int64_t n = f->table.items.n, n_words = n / 64 + 1;
    TRY(ARENA_NEW_RAW(a, out, (size_t)n_words));
    for (int64_t w = 0; w < n_words; w++)
        (*out)[w] = q->allowed != NULL ? q->allowed[w]
                    : w < n / 64       ? UINT64_MAX
                                       : ((uint64_t)1 << n % 64) - 1;
    for (int32_t i = 0; i < q->n_seen; i++)
        (*out)[q->seen[i] / 64] &= ~((uint64_t)1 << (q->seen[i] % 64));
    return OK;
}

/* Queries that search the whole catalogue, and what they leave out. */
typedef struct search {
    int32_t n, k, n_lists;
    infer_query **q;
    int32_t *place;  /* (n): row of the encoded users */
    uint64_t *users; /* (n): user_of */
    /* (n_lists): offsets (n + 1), then the rows that are left out; padded, as the backend copies
     * whole 16 bytes fastest. */
    int32_t *lists, *seen;
    const uint64_t **allowed; /* (n): bits of the rows, NULL: all; or NULL */
} search;

static status list_seen(arena *scratch, search *s) {
    enum { PAD = 16 };
    int64_t n = (s->n + PAD) / PAD * PAD, n_seen = 0;
    for (int32_t i = 0; i < s->n; i++)
        n_seen += s->q[i]->n_seen;
    int64_t n_lists = n + (n_seen + PAD - 1) / PAD * PAD;
    if (n_lists > INT32_MAX) return fail(ERR_UNSUPPORTED, "more than 2^31 items to leave out");
    TRY(ARENA_NEW_RAW(scratch, &s->lists, (size_t)n_lists));
    s->n_lists = (int32_t)n_lists;
    s->seen = s->lists + n;
    s->lists[0] = 0;
    for (int32_t i = 0; i < s->n; i++) {
        const infer_query *q = s->q[i];
        int32_t *to = s->seen + s->lists[i];
        if (q->n_seen > 0) memcpy(to, q->seen, (size_t)q->n_seen * sizeof *to);
        s->lists[i + 1] = s->lists[i] + q->n_seen;
    }
    return OK;
}

static status collect_searches(run *r, search *s) {
    arena *scratch = &r->f->scratch;
    size_t n = (size_t)r->f->batch.view.n_users;
    const uint64_t **allowed;
    TRY(ARENA_NEW(scratch, &s->q, n));
    TRY(ARENA_NEW(scratch, &s->place, n));
    TRY(ARENA_NEW(scratch, &s->users, n));
    TRY(ARENA_NEW(scratch, &allowed, n));
    for (int32_t i = 0; i < (int32_t)n; i++) {
        infer_query *q = r->batch[i];
        if (q->k == 0 || q->rules != NULL || q->allow != NULL) continue;
        if (q->allowed != NULL) s->allowed = allowed;
        allowed[s->n] = q->allowed;
        s->place[s->n] = i;
        s->users[s->n] = user_of(r->f, q);
        s->q[s->n++] = q;
        s->k = q->k > s->k ? q->k : s->k;
    }
    if (s->k > r->f->table.items.n) s->k = r->f->table.items.n;
    return list_seen(scratch, s);
}

static void take_best(const infer *f, const search *s, const int32_t *best, const float *score) {
    for (int32_t i = 0; i < s->n; i++) {
        infer_query *q = s->q[i];
        const int32_t *row = best + (int64_t)i * s->k;
        const float *own = score + (int64_t)i * s->k;
        for (int32_t n = 0; n < q->k && n < s->k && row[n] >= 0; q->n_best = ++n) {
            q->item[n] = (uint32_t)f->table.items.item[row[n]];
            q->score[n] = own[n];
        }
    }
}

static rank_args catalogue_args(const infer *f, int32_t n_queries, const void *query, int32_t k,
                                int32_t *best, float *score) {
    const item_table *t = &f->table;
    return (rank_args){.n_queries = n_queries,
                       .dim = t->dim,
                       .n_corpus = t->items.n,
                       .query = query,
                       .corpus = t->items.rows,
                       .corpus_act = t->narrow,
                       .corpus_int8 = t->small.rows != NULL ? &t->small : NULL,
                       .k = k,
                       .best = best,
                       .best_score = score};
}

/* One search for all of them: the best of fewer are the first of the best of more. */
static status search_catalogue(run *r, const void *encoded) {
    infer *f = r->f;
    backend *be = backend_of(f);
    search s = {0};
    int32_t *best;
    float *score;
    void *room;
    TRY(collect_searches(r, &s));
    if (s.n == 0) return OK;
    TRY(ARENA_NEW(&f->scratch, &best, (size_t)s.n * (size_t)s.k));
    TRY(ARENA_NEW(&f->scratch, &score, (size_t)s.n * (size_t)s.k));
    size_t list_bytes = (size_t)s.n_lists * sizeof *s.lists;
    TRY(backend_room(f, list_bytes + (size_t)s.n * query_bytes(f), &room));
    int32_t *lists = room, *users = lists + s.n_lists;
    TRY(be->ops->copy_in(be, lists, s.lists, list_bytes));
    bool is_all = s.n == f->batch.view.n_users; /* then they are one after the other already */
    if (!is_all) TRY(gather_rows(f, encoded, query_bytes(f), s.place, s.n, users));
    rank_args a = catalogue_args(f, s.n, is_all ? encoded : users, s.k, best, score);
    a.allowed = s.allowed;
    a.seen_offsets = lists;
    a.seen = lists + (s.seen - s.lists);
    TRY(pass_search(f->pass, &a, s.users));
    take_best(f, &s, best, score);
    return OK;
}

/* One encoded user searches for the best of each class of items. */
typedef struct class_search {
    infer *f;
    const char *encoded;
    uint64_t user;
} class_search;

static status search_classes(void *ctx, int32_t n, const uint64_t *const *allowed, int32_t k,
                             int32_t *row, float *score) {
    const class_search *c = ctx;
    backend *be = backend_of(c->f);
    size_t bytes = query_bytes(c->f);
    uint64_t *users;
    void *room;
    TRY(ARENA_NEW(&c->f->scratch, &users, (size_t)n));
    TRY(backend_room(c->f, (size_t)n * bytes, &room));
    for (int32_t i = 0; i < n; i++)
        users[i] = c->user;
    for (int32_t i = 0; i < n; i++)
        TRY(be->ops->copy(be, (char *)room + (size_t)i * bytes, c->encoded, bytes));
    rank_args a = catalogue_args(c->f, n, room, k, row, score);
    a.allowed = allowed;
    return pass_search(c->f->pass, &a, users);
}

static status follow_rules(const infer *f, arena *a, const rules_source *s, infer_query *q) {
    item_rules none = {.item = f->table.items.item, .n_rows = f->table.items.n};
    const item_rules *r = q->rules != NULL ? q->rules : &none;
    uint64_t *left;
    int32_t *row;
    TRY(eligible_rows(f, a, q, &left));
    TRY(ARENA_NEW(a, &row, (size_t)q->k));
    TRY(item_rules_run(r, a, s, left, q->k, row, q->score, &q->n_best));
    for (int32_t i = 0; i < q->n_best; i++)
        q->item[i] = (uint32_t)f->table.items.item[row[i]];
    return OK;
}

/* Queries from `first` on that have its candidates. */
static int32_t count_same(const run *r, int32_t first) {
    int32_t n = 1;
    const infer_query *q = r->batch[first];
    while (first + n < r->f->batch.view.n_users && r->batch[first + n]->candidate == q->candidate &&
           r->batch[first + n]->n_candidates == q->n_candidates)
        n++;
    return n;
}

static status answer_encoded(run *r, const char *encoded) {
    infer *f = r->f;
    for (int32_t i = 0, n; i < f->batch.view.n_users;
         i += n, encoded += (size_t)n * query_bytes(f)) {
        infer_query *q = r->batch[i];
        n = q->n_candidates > 0 ? count_same(r, i) : 1;
        if (q->n_candidates > 0) TRY(score_candidates(f, r->batch + i, n, encoded));
        if (q->k > 0 && q->allow != NULL) TRY(search_allowed(f, q, encoded));
        rules_source source = {&(class_search){f, encoded, user_of(f, q)},
                               backend_of(f)->is_host ? INT32_MAX : INFER_MAX_K, search_classes};
        if (q->k > 0 && q->rules != NULL) TRY(follow_rules(f, &f->scratch, &source, q));
    }
    return OK;
}

static status read_vectors(run *r, const char *encoded) {
    for (int32_t i = 0; i < r->f->batch.view.n_users; i++, encoded += query_bytes(r->f))
        if (r->batch[i]->vector != NULL)
            TRY(backend_read_act(backend_of(r->f), r->batch[i]->vector, encoded,
                                 (size_t)r->f->table.dim));
    return OK;
}

static status answer_users(run *r, const void *encoded) {
    TRY(read_vectors(r, encoded));
    TRY(answer_encoded(r, encoded));
    return search_catalogue(r, encoded);
}

static status run_retrieval(run *r) {
    int32_t n_reused;
    for (int32_t i = 0; i < r->n; i++)
        if (infer_knows(r->f, r->q[i])) TRY(add_sequence(r, r->q[i], NULL, 0, &n_reused));
    return r->f->batch.view.n_users > 0 ? run_pass(r, NULL) : OK;
}

/* Ranking. */

/* While candidates are cut into parts, a sequence each. */
typedef struct cut {
    int32_t *n;      /* (max_users): candidates of a sequence of the batch */
    int64_t *row;    /* (max_users): the first one's logits, where candidates have rows */
    uint32_t *known; /* of one part: candidates that the model knows */
    int32_t *next;   /* (run.n): first candidate of each query that no sequence has */
    int32_t n_tokens;
    int64_t n_rows; /* of candidates, in the batch */
} cut;

/* The candidates that the model knows, from `first` on, as many as fit a sequence. */
static int32_t take_known(const infer *f, const infer_query *q, int32_t *next, uint32_t *to) {
    int32_t n = 0, i = *next;
    for (; i < q->n_candidates && n < f->max_part; i++)
        if (q->candidate[i] != 0) to[n++] = q->candidate[i];
    *next = i;
    return n;
}

/* Gives the queries of the batch their logits.  Without candidates every event has a row of logits,
 * and the candidate is the last event of its sequence. */
static void give_logits(const run *r, const cut *c, const char *logits) {
    const infer *f = r->f;
    size_t row_bytes = logit_bytes(f);
    for (int32_t i = 0; i < f->batch.view.n_users; i++) {
        infer_query *q = r->batch[i];
        int64_t row = f->s->max_targets > 0 ? c->row[i] : f->batch.view.offsets[i + 1] - 1;
        memcpy((char *)q->logits + (size_t)q->n_logits * row_bytes,
               logits + (size_t)row * row_bytes, (size_t)c->n[i] * row_bytes);
        q->n_logits += c->n[i];
    }
}

static status score_parts(run *r, cut *c) {
    char *logits;
    if (r->f->batch.view.n_users == 0) return OK;
    TRY(run_pass(r, &logits));
    give_logits(r, c, logits);
    histories_clear(&r->f->batch);
    c->n_tokens = 0;
    c->n_rows = 0;
    end_stage(r, &r->f->head_ns);
    return OK;
}

/* The next part of a query joins the batch, which is computed first where it is full. */
static status add_part(run *r, cut *c, int32_t i) {
    infer *f = r->f;
    infer_query *q = r->q[i];
    int32_t n_reused, n = take_known(f, q, &c->next[i], c->known);
    int32_t most = infer_tokens(f, q->events.n) + n + 1;
    if (n == 0) return OK;
    if (f->batch.view.n_users == f->max_users || most > f->max_tokens - c->n_tokens)
        TRY(score_parts(r, c));
    int32_t at = f->batch.view.n_users;
    TRY(add_sequence(r, q, c->known, n, &n_reused));
    c->n[at] = n;
    c->row[at] = c->n_rows;
    c->n_rows += n;
    c->n_tokens += most - n_reused;
    return OK;
}

/* A round has one part of each query, so that the next one finds the history in the cache. */
static status run_ranking(run *r) {
    infer *f = r->f;
    cut c = {0};
    bool is_done = false;
    TRY(ARENA_NEW(&f->scratch, &c.n, (size_t)f->max_users));
    TRY(ARENA_NEW(&f->scratch, &c.row, (size_t)f->max_users));
    TRY(ARENA_NEW(&f->scratch, &c.known, (size_t)f->max_part));
    TRY(ARENA_NEW(&f->scratch, &c.next, (size_t)r->n));
    while (!is_done) {
        is_done = true;
        for (int32_t i = 0; i < r->n; i++) {
            if (c.next[i] == r->q[i]->n_candidates) continue;
            TRY(add_part(r, &c, i));
            is_done = false;
        }
        if (f->store != NULL || is_done) TRY(score_parts(r, &c));
    }
    return OK;
}

status infer_run(infer *f, infer_query *const *q, int32_t n, const infer_hooks *hooks) {
    run r = {.f = f, .q = q, .n = n, .hooks = hooks, .at = clock_ns()};
    f->build_ns = f->layers_ns = f->head_ns = 0;
    histories_clear(&f->batch);
    status st = ARENA_NEW(&f->scratch, &r.batch, (size_t)f->max_users);
    if (st == OK) st = f->is_ranking ? run_ranking(&r) : run_retrieval(&r);
    arena_clear(&f->scratch);
    return st;
}

static void finish_floats(const infer *f, infer_query *q, const float *logits) {
    const score_columns *c = &f->columns;
    for (int32_t i = 0, n; i<q->n_candidates; i += n> 0 ? n : 1) {
        n = 0;
        while (i + n < q->n_candidates && q->candidate[i + n] != 0)
            n++;
        for (int k = 0; k < c->n && n == 0; k++)
            q->values[(int64_t)i * c->n + k] = NAN;
        score_columns_finish(c, n, logits, q->values + (int64_t)i * c->n);
        logits += (int64_t)n * c->width;
    }
}

void infer_finish(const infer *f, infer_query *q, float *wide) {
    size_t n = (size_t)q->n_logits * (size_t)f->columns.width;
    act_type act = backend_of(f)->act;
    const uint16_t *from = q->logits;
    if (act == ACT_F32) {
        finish_floats(f, q, q->logits);
        return;
    }
    if (act == ACT_BF16)
#pragma omp simd
        for (size_t i = 0; i < n; i++)
            wide[i] = half_bf16_to_float(from[i]);
    else
        for (size_t i = 0; i < n; i++)
            wide[i] = half_f16_to_float(from[i]);
    finish_floats(f, q, wide);
}

status infer_distinct(const infer *f, arena *scratch, int32_t *rows, int32_t *n) {
    enum { WORDS = 32 }; /* of bits that are looked at in the time it takes to sort a row */
    uint64_t *bits, n_words = (uint64_t)f->table.items.n / 64 + 1;
    int32_t kept = 0;
    if ((uint64_t)*n * WORDS < n_words) {
        *n = sort_distinct(rows, *n);
        return OK;
    }
    TRY(ARENA_NEW(scratch, &bits, n_words));
    for (int32_t i = 0; i < *n; i++)
        bits[rows[i] / 64] |= (uint64_t)1 << rows[i] % 64;
    for (uint64_t word = 0; word < n_words; word++)
        for (uint64_t left = bits[word]; left != 0; left &= left - 1)
            rows[kept++] = (int32_t)(64 * word) + __builtin_ctzll(left);
    *n = kept;
    return OK;
}

/* Popular items. */

static int compare_popular(const void *a, const void *b) {
    const popular_item *x = a, *y = b;
    if (x->n_events != y->n_events) return x->n_events < y->n_events ? 1 : -1;
    return (x->item > y->item) - (x->item < y->item);
}

void popular_sort(popular_item *all, size_t n) {
    if (n > 0) qsort(all, n, sizeof *all, compare_popular);
}

typedef struct popular_search {
    const infer *f;
    arena *a;
    const popular_item *all;
    size_t n;
} popular_search;

/* Items without an event come after the others, in their order. */
static status search_popular(void *ctx, int32_t n, const uint64_t *const *allowed, int32_t k,
                             int32_t *row, float *score) {
    const popular_search *p = ctx;
    int64_t n_rows = p->n > 0 ? p->f->table.items.n : 0; /* without events nothing is popular */
    uint64_t *is_listed;
    int32_t *count, n_full = 0;
    TRY(ARENA_NEW(p->a, &is_listed, (size_t)n_rows / 64 + 1));
    TRY(ARENA_NEW(p->a, &count, (size_t)n));
    for (int64_t i = 0; i < (int64_t)p->n + n_rows && n_full < n; i++) {
        bool has_events = i < (int64_t)p->n;
        int64_t own = has_events ? p->f->table.items.row[p->all[i].item] : i - (int64_t)p->n;
        uint64_t bit = (uint64_t)1 << own % 64;
        if (!has_events && is_listed[own / 64] & bit) continue;
        is_listed[own / 64] |= bit;
        for (int32_t c = 0; c < n; c++) {
            if (count[c] == k || (allowed[c][own / 64] & bit) == 0) continue;
            row[c * k + count[c]] = (int32_t)own;
            score[c * k + count[c]++] = has_events ? (float)p->all[i].n_events : 0;
            n_full += count[c] == k;
        }
    }
    for (int32_t c = 0; c < n; c++)
        for (; count[c] < k; count[c]++)
            row[c * k + count[c]] = -1;
    return OK;
}

status infer_popular(const infer *f, arena *a, infer_query *q, const popular_item *all, size_t n) {
    rules_source source = {&(popular_search){f, a, all, n}, INT32_MAX, search_popular};
    return follow_rules(f, a, &source, q);
}

status infer_similar(const infer *f, arena *a, infer_query *q) {
    float *direction;
    TRY(ARENA_NEW(a, &direction, (size_t)f->table.dim));
    TRY(similar_direction(&f->table, q->seen, q->n_seen, direction));
    rules_source source = {&(similar_search){&f->table, direction}, INT32_MAX, similar_rows};
    return follow_rules(f, a, &source, q);
}

status infer_use_rules(const infer *f, arena *a, const item_rules *r, infer_query *q) {
    int64_t n_words = f->table.items.n / 64 + 1, n = 0;
    uint64_t *bits;
    int32_t *allow;
    q->rules = item_rules_order(r) ? r : NULL;
    q->allowed = r->allowed;
    if (r->allowed == NULL || q->rules != NULL) return OK;
    for (int64_t w = 0; w < n_words; w++)
        n += __builtin_popcountll(r->allowed[w]);
    if (!is_short(f, n)) return OK;
    TRY(eligible_rows(f, a, q, &bits));
    TRY(ARENA_NEW_RAW(a, &allow, (size_t)n));
    for (int64_t w = 0; w < n_words; w++)
        for (uint64_t left = bits[w]; left != 0; left &= left - 1)
            allow[q->n_allow++] = (int32_t)(64 * w) + __builtin_ctzll(left);
    q->allow = allow;
    return OK;
}
