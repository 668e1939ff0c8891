#include "model/user_group.h"

/* Numbers of a group's results, and events that its users have had, at most, unless one user alone
 * has more. */
enum { MAX_NUMBERS = 1 << 22, MAX_SEEN = 1 << 24 };

struct user_group {
    infer infer;
    user_group_config c;
    int32_t max_users, n_users;
    infer_query *query; /* (max_users) */
    infer_query **run;  /* (max_users): pointers to them */
    arena memory;       /* of the arrays */
    arena seen;         /* rows that users have had, and other lists of a run */
    item_rules rules;
    arena rules_memory;
    seen_rule hides;
    uint64_t n_seen;
    uint32_t *item;        /* (max_users, k) */
    float *score;          /* (max_users, k) */
    float *values;         /* (max_users, n_candidates, columns) */
    char *logits;          /* (max_users, n_candidates, width) act: of a ranking model */
    float *wide;           /* (n_candidates, width) */
    popular_item *popular; /* (n_popular): made when the first user without events comes */
    size_t n_popular;
};

/* Bytes of a user's logits. */
static size_t logit_bytes(const user_group *g) {
    size_t width = (size_t)g->infer.columns.width * act_bytes(g->infer.s->be->act);
    return (size_t)g->c.n_candidates * width;
}

static status check_recommending(const session *s, const user_group_config *c) {
    if (s->config->task != TASK_RETRIEVAL)
        return fail(ERR_UNSUPPORTED, "this model ranks given candidates: 'hstu score' does that; "
                                     "recommending needs a retrieval model");
    if (c->k < 1 || c->k > INFER_MAX_K)
        return fail(ERR_USAGE, "%d items for a user; it must be from 1 to %d", c->k, INFER_MAX_K);
    return OK;
}

static status check_candidates(const session *s, const user_group_config *c) {
    if (c->n_candidates < 1) return fail(ERR_USAGE, "there is no candidate to score");
    for (int32_t i = 0; i < c->n_candidates; i++)
        if (c->candidate[i] < 1 || c->candidate[i] > s->data->n_items)
            return fail(ERR_USAGE, "candidate %d is not an item of the model", i + 1);
    return OK;
}

/* Flags of items as bits of rows, together with those of the rules. */
static status keep_allowed(user_group *g, const uint8_t *is_allowed) {
    const model_items *items = &g->infer.table.items;
    uint64_t *bits, n = 0;
    TRY(ARENA_NEW(&g->rules_memory, &bits, (size_t)items->n / 64 + 1));
    for (int32_t row = 0; row < items->n; row++) {
        n += is_allowed[items->item[row]] == 1;
        bits[row / 64] |= (uint64_t)(is_allowed[items->item[row]] == 1) << row % 64;
    }
    for (int32_t i = 0; i < g->rules.n_pins; i++)
        if (is_allowed[items->item[g->rules.pin[i]]] == ITEM_DENIED)
            return fail(ERR_USAGE, "pin: item %d of the list is denied", i + 1);
    for (int32_t w = 0; w <= items->n / 64 && g->rules.allowed != NULL; w++)
        bits[w] &= g->rules.allowed[w];
    g->rules.allowed = bits;
    if (n > 0) return OK;
    for (uint64_t i = 1; i <= g->infer.s->data->n_items; i++)
        n += is_allowed[i] == 1;
    return fail(ERR_USAGE, "there is no item to recommend: %s",
                n > 0 ? "those that the filter and the lists allow have no row in the model's "
                        "table; train on events of them"
                      : "the filter and the lists allow none that the model knows; items that came "
                        "to the data after it was trained are not known: train again");
}

status user_group_set_rules(user_group *g, const uint8_t *is_allowed, const char *rules) {
    infer *f = &g->infer;
    size_t n_unknown = 0;
    arena_clear(&g->rules_memory);
    g->rules = (item_rules){0};
    if (rules != NULL)
        TRY(item_rules_read_text(&g->rules, &g->rules_memory, &f->filters, f->table.items.row,
                                 g->c.k, rules, &n_unknown));
    if (n_unknown > 0)
        log_warn("rules: %zu ids are no items of the model; they are left out", n_unknown);
    return is_allowed != NULL ? keep_allowed(g, is_allowed) : OK;
}

static status make_recommending(user_group *g) {
    int32_t n_items = g->infer.table.items.n;
    if (g->c.k > n_items) g->c.k = n_items;
    TRY(user_group_set_rules(g, g->c.is_allowed, g->c.rules));
    TRY(ARENA_NEW(&g->memory, &g->item, (size_t)g->max_users * (size_t)g->c.k));
    return ARENA_NEW(&g->memory, &g->score, (size_t)g->max_users * (size_t)g->c.k);
}

static status make_scoring(user_group *g) {
    size_t n = (size_t)g->c.n_candidates, numbers = n * (size_t)g->infer.columns.n;
    size_t most = MAX_NUMBERS / numbers;
    if (most < (size_t)g->max_users) g->max_users = most > 0 ? (int32_t)most : 1;
    TRY(ARENA_NEW_RAW(&g->memory, &g->values, (size_t)g->max_users * numbers));
    if (!g->infer.is_ranking) return OK;
    TRY(ARENA_NEW_RAW(&g->memory, &g->logits, (size_t)g->max_users * logit_bytes(g)));
    if (g->infer.s->be->act == ACT_F32) return OK;
    return ARENA_NEW_RAW(&g->memory, &g->wide, n * (size_t)g->infer.columns.width);
}

static status make_group(user_group *g, session *s) {
    const user_group_config *c = &g->c;
    infer_config f = {.max_users = c->max_users,
                      .max_part = c->max_part,
                      .stages = c->stages,
                      .n_measured = c->n_measured};
    if (f.max_part > s->max_targets) f.max_part = 0;
    TRY(infer_init(&g->infer, s, &f));
    TRY(c->n_candidates > 0 ? make_scoring(g) : make_recommending(g));
    TRY(ARENA_NEW(&g->memory, &g->query, (size_t)g->max_users));
    TRY(ARENA_NEW(&g->memory, &g->run, (size_t)g->max_users));
    for (int32_t i = 0; i < g->max_users; i++)
        g->run[i] = &g->query[i];
    return OK;
}

status user_group_create(user_group **out, session *s, const user_group_config *c) {
    user_group *g;
    *out = NULL;
    TRY(c->candidate != NULL ? check_candidates(s, c) : check_recommending(s, c));
    TRY(MEM_NEW(&g, 1));
    g->c = *c;
    g->max_users = c->max_users;
    arena_init(&g->seen, 1 << 16);
    status st = session_seen(s, c->keeps_seen ? "none" : c->exclude_seen, &g->hides);
    if (st == OK) st = make_group(g, s);
    return CREATED(st, out, g, user_group_destroy);
}

void user_group_destroy(user_group *g) {
    if (g == NULL) return;
    infer_fini(&g->infer);
    arena_fini(&g->seen);
    arena_fini(&g->rules_memory);
    arena_fini(&g->memory);
    mem_free(g);
}

bool user_group_fits(const user_group *g, const user_events *u) {
    if (g->n_users == 0) return true;
    return g->n_users < g->max_users && g->n_seen + u->n <= MAX_SEEN;
}

static status leave_out_seen(user_group *g, infer_query *q) {
    const user_events *u = &q->events;
    int32_t *rows;
    if (g->hides.keeps_all || u->n == 0) return OK;
    if (u->n > INT32_MAX)
        return fail(ERR_UNSUPPORTED, "a history of %llu events; at most %d can be left out",
                    (unsigned long long)u->n, INT32_MAX);
    TRY(ARENA_NEW_RAW(&g->seen, &rows, (size_t)u->n));
    for (uint64_t i = 0; i < u->n; i++) {
        int32_t row = g->infer.table.items.row[u->item[i]];
        if (row >= 0 && seen_hides(&g->hides, u->action[i])) rows[q->n_seen++] = row;
    }
    q->seen = rows;
    g->n_seen += u->n;
    return infer_distinct(&g->infer, &g->seen, rows, &q->n_seen);
}

status user_group_add(user_group *g, const user_events *u) {
    int64_t i = g->n_users;
    if (!user_group_fits(g, u))
        return fail(ERR_CONFIG, "a group of at most %d users is full", g->max_users);
    infer_query *q = &g->query[i];
    *q = (infer_query){.events = *u, .candidate = g->c.candidate};
    q->n_candidates = g->c.n_candidates;
    if (q->n_candidates > 0) {
        q->values = g->values + i * q->n_candidates * g->infer.columns.n;
        if (g->logits != NULL) q->logits = g->logits + (size_t)i * logit_bytes(g);
    } else {
        q->k = g->c.k;
        q->item = g->item + i * q->k;
        q->score = g->score + i * q->k;
        TRY(leave_out_seen(g, q));
        TRY(infer_use_rules(&g->infer, &g->seen, &g->rules, q));
    }
    g->n_users++;
    return OK;
}

bool user_group_recall(const user_group *g, double *recall, int32_t *n_users) {
    return pass_recall(g->infer.pass, recall, n_users);
}

int32_t user_group_n_users(const user_group *g) {
    return g->n_users;
}

/* Items without an event are not popular. */
static status find_popular(user_group *g) {
    const seq_file *data = g->infer.s->data;
    const model_items *items = &g->infer.table.items;
    TRY(ARENA_NEW(&g->memory, &g->popular, (size_t)items->n));
    for (int32_t i = 0; i < items->n; i++)
        g->popular[i].item = (uint32_t)items->item[i];
    for (uint64_t i = 0; i < data->n_events; i++) {
        int32_t row = items->row[data->item[i]];
        if (row >= 0) g->popular[row].n_events++;
    }
    popular_sort(g->popular, (size_t)items->n);
    while (g->n_popular < (size_t)items->n && g->popular[g->n_popular].n_events > 0)
        g->n_popular++;
    return OK;
}

status user_group_run(user_group *g) {
    TRY(infer_run(&g->infer, g->run, g->n_users, NULL));
    for (int32_t i = 0; i < g->n_users; i++) {
        infer_query *q = &g->query[i];
        if (q->logits != NULL) infer_finish(&g->infer, q, g->wide);
        if (q->events.n > 0 || (!g->infer.is_ranking && infer_knows(&g->infer, q))) continue;
        for (int32_t k = 0; k < q->n_candidates && q->logits == NULL; k++)
            q->values[k] = NAN;
        if (q->k == 0) continue;
        if (g->popular == NULL) TRY(find_popular(g));
        TRY(infer_popular(&g->infer, &g->seen, q, g->popular, g->n_popular));
    }
    return OK;
}

void user_group_clear(user_group *g) {
    arena_clear(&g->seen);
    g->n_seen = 0;
    g->n_users = 0;
}

recommendation user_group_best(const user_group *g, int32_t user) {
    const infer_query *q = &g->query[user];
    return (recommendation){.n = q->n_best,
                            .item = q->item,
                            .score = q->score,
                            .is_popular = !infer_knows(&g->infer, q)};
}

const float *user_group_values(const user_group *g, int32_t user) {
    return g->query[user].values;
}

const score_columns *user_group_columns(const user_group *g) {
    return &g->infer.columns;
}
