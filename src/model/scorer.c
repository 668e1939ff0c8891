#include "model/scorer.h"

#include <math.h>

#include "base/mem.h"
#include "model/item_table.h"
#include "model/score_columns.h"

enum { MAX_NUMBERS = 1 << 22, RANK_PART = 1024 };

/* Candidates first .. first + n - 1 of a user, as one sequence of a pass. */
typedef struct part {
    int32_t user, first, n;
} part;

struct scorer {
    session *s;
    scorer_config c;
    pass *pass;
    histories batch;
    score_columns columns;
    int32_t max_group; /* users whose results fit */
    user_events *user; /* (max_group) */
    int32_t n_users;
    float *out; /* (max_group, n_candidates, n_columns) */
    /* ranking */
    part *parts;   /* (max_users): of the batch */
    float *logits; /* host: of the batch */
    /* retrieval */
    item_table table; /* of the candidates */
    int32_t *best;    /* (max_users, RANK_PART) */
    float *best_score;
    float *by_row; /* (max_users, rows of the table) */
};

/* Rows of logits of the largest batch. */
static status make_ranking(scorer *r) {
    session *s = r->s;
    int32_t most = s->max_targets > 0 ? s->max_targets : 1;
    if (r->c.max_part < 1 || r->c.max_part > most) r->c.max_part = most;
    int64_t rows = s->max_targets > 0 ? s->max_targets : s->limits.max_events;
    TRY(MEM_NEW(&r->parts, (size_t)r->c.max_users));
    return MEM_NEW_RAW(&r->logits, (size_t)(rows * r->c.max_users * r->columns.width));
}

static status keep_candidates(scorer *r) {
    uint8_t *is_kept;
    TRY(MEM_NEW(&is_kept, (size_t)r->table.n_items + 1));
    for (int32_t i = 0; i < r->c.n_candidates; i++)
        is_kept[r->c.candidate[i]] = 1;
    status st = item_table_keep(&r->table, is_kept);
    mem_free(is_kept);
    return st;
}

static status make_retrieval(scorer *r) {
    size_t n = (size_t)r->c.max_users;
    TRY(item_table_init(&r->table, r->s->model));
    TRY(keep_candidates(r));
    TRY(MEM_NEW(&r->best, n * RANK_PART));
    TRY(MEM_NEW(&r->best_score, n * RANK_PART));
    return MEM_NEW_RAW(&r->by_row, n * (size_t)r->table.items.n);
}

static status make(scorer *r) {
    session *s = r->s;
    int64_t n = (int64_t)r->c.n_candidates;
    TRY(score_columns_init(&r->columns, s));
    n *= r->columns.n;
    r->max_group = n > MAX_NUMBERS / r->c.max_users ? (int32_t)(MAX_NUMBERS / n) : r->c.max_users;
    if (r->max_group < 1) r->max_group = 1;
    TRY(MEM_NEW(&r->user, (size_t)r->max_group));
    TRY(MEM_NEW_RAW(&r->out, (size_t)r->max_group * (size_t)n));
    TRY(histories_init(&r->batch, s, r->c.max_users));
    TRY(pass_create(&r->pass, s->model, &(pass_config){.max_users = r->c.max_users}));
    return s->config->task == TASK_RANKING ? make_ranking(r) : make_retrieval(r);
}

static status check(const session *s, const scorer_config *c) {
    if (c->n_candidates < 1) return fail(ERR_USAGE, "there is no candidate to score");
    for (int32_t i = 0; i < c->n_candidates; i++)
        if (c->candidate[i] < 1 || c->candidate[i] > s->data->n_items)
            return fail(ERR_USAGE, "candidate %d is not an item of the model", i + 1);
    return OK;
}

status scorer_create(scorer **out, session *s, const scorer_config *c) {
    scorer *r;
    *out = NULL;
    TRY(check(s, c));
    TRY(MEM_NEW(&r, 1));
    r->s = s;
    r->c = *c;
    status st = make(r);
    if (st != OK) {
        scorer_destroy(r);
        return st;
    }
    *out = r;
    return OK;
}

void scorer_destroy(scorer *r) {
    if (r == NULL) return;
    pass_destroy(r->pass);
    item_table_fini(&r->table);
    histories_fini(&r->batch);
    score_columns_fini(&r->columns);
    mem_free(r->user);
    mem_free(r->out);
    mem_free(r->parts);
    mem_free(r->logits);
    mem_free(r->best);
    mem_free(r->best_score);
    mem_free(r->by_row);
    mem_free(r);
}

int scorer_n_columns(const scorer *r) {
    return r->columns.n;
}

const char *const *scorer_columns(const scorer *r) {
    return r->columns.names;
}

bool scorer_fits(const scorer *r) {
    return r->n_users < r->max_group;
}

int32_t scorer_n_users(const scorer *r) {
    return r->n_users;
}

status scorer_add(scorer *r, const user_events *u) {
    if (!scorer_fits(r))
        return fail(ERR_CONFIG, "a group of at most %d users is full", r->max_group);
    r->user[r->n_users++] = *u;
    return OK;
}

static float *place_of(const scorer *r, int32_t user, int32_t candidate) {
    return r->out + ((int64_t)user * r->c.n_candidates + candidate) * r->columns.n;
}

/* The first row of a part's logits; without candidates every event has a row, and the candidate is
 * the last event of its sequence. */
static int64_t first_row(const scorer *r, int32_t sequence, int64_t row) {
    return r->s->max_targets > 0 ? row : r->batch.view.offsets[sequence + 1] - 1;
}

static status score_parts(scorer *r) {
    const void *scores;
    int64_t n_rows, row = 0;
    backend *be = r->s->be;
    TRY(pass_score(r->pass, &r->batch.view, &scores, &n_rows));
    TRY(backend_read_act(be, r->logits, scores, (size_t)(n_rows * r->columns.width)));
    for (int32_t i = 0; i < r->batch.view.n_users; i++) {
        const part *p = &r->parts[i];
        row = first_row(r, i, row);
        for (int32_t k = 0; k < p->n; k++, row++)
            score_columns_finish(&r->columns, 1, r->logits + row * r->columns.width,
                                 place_of(r, p->user, p->first + k));
    }
    histories_clear(&r->batch);
    return OK;
}

static status run_ranking(scorer *r) {
    for (int32_t u = 0; u < r->n_users; u++) {
        for (int32_t first = 0; first < r->c.n_candidates; first += r->c.max_part) {
            int32_t left = r->c.n_candidates - first,
                    n = left < r->c.max_part ? left : r->c.max_part;
            if (r->batch.view.n_users == r->c.max_users) TRY(score_parts(r));
            r->parts[r->batch.view.n_users] = (part){u, first, n};
            TRY(histories_add(&r->batch, &r->user[u], r->c.candidate + first, n));
        }
    }
    return r->batch.view.n_users > 0 ? score_parts(r) : OK;
}

/* The k best of k rows are all of them: op `rank` gives the very scores that recommending ranks
 * by. */
static status score_rows(scorer *r, const void *query, int32_t n_users) {
    backend *be = r->s->be;
    int32_t n_rows = r->table.items.n;
    for (int32_t first = 0; first < n_rows; first += RANK_PART) {
        int32_t n = n_rows - first < RANK_PART ? n_rows - first : RANK_PART;
        rank_args a = {.n_queries = n_users,
                       .dim = r->table.dim,
                       .n_corpus = n,
                       .query = query,
                       .corpus = r->table.items.rows + (int64_t)first * r->table.dim,
                       .k = n,
                       .best = r->best,
                       .best_score = r->best_score};
        TRY(be->ops->rank(be, &a));
        for (int64_t i = 0; i < (int64_t)n_users * n; i++)
            if (r->best[i] >= 0) r->by_row[i / n * n_rows + first + r->best[i]] = r->best_score[i];
    }
    return OK;
}

/* Users first .. of the group that have a history, as many as a pass takes; *end: the next one. */
static void collect_users(scorer *r, int32_t first, int32_t *end, status *st) {
    int32_t u = first;
    histories_clear(&r->batch);
    for (; u < r->n_users && r->batch.view.n_users < r->c.max_users && *st == OK; u++)
        if (r->user[u].n > 0) *st = histories_add(&r->batch, &r->user[u], NULL, 0);
    *end = u;
}

static void put_scores(scorer *r, int32_t user, const float *by_row) {
    for (int32_t i = 0; i < r->c.n_candidates; i++) {
        int32_t row = r->table.items.row[r->c.candidate[i]];
        *place_of(r, user, i) = by_row != NULL && row >= 0 ? by_row[row] : NAN;
    }
}

static status run_retrieval(scorer *r) {
    int32_t n_rows = r->table.items.n, end = 0;
    status st = OK;
    for (int32_t first = 0; first < r->n_users && st == OK; first = end) {
        const void *query;
        collect_users(r, first, &end, &st);
        int32_t n = r->batch.view.n_users, at = 0;
        for (int64_t i = 0; i < (int64_t)n * n_rows; i++)
            r->by_row[i] = NAN;
        if (st == OK && n > 0) st = pass_encode(r->pass, &r->batch.view, &query);
        if (st == OK && n > 0) st = score_rows(r, query, n);
        for (int32_t u = first; u < end; u++) {
            const float *own = r->by_row + (int64_t)at * n_rows;
            at += r->user[u].n > 0;
            put_scores(r, u, r->user[u].n > 0 ? own : NULL);
        }
    }
    return st;
}

status scorer_run(scorer *r) {
    histories_clear(&r->batch);
    return r->s->config->task == TASK_RANKING ? run_ranking(r) : run_retrieval(r);
}

const float *scorer_result(const scorer *r, int32_t user) {
    return place_of(r, user, 0);
}

void scorer_clear(scorer *r) {
    r->n_users = 0;
}
