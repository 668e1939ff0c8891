#include "model/recommender.h"

#include <stdlib.h>

#include "base/mem.h"

/* Seen items of an average user: a batch has memory for this many a user, and fewer users where
 * histories are longer. */
enum { MEAN_SEEN = 1024 };

struct recommender {
    session *s;
    pass *pass;
    item_table table;
    int32_t k, max_users;
    bool keeps_seen;
    histories known;       /* the users that have a history */
    int32_t n_users;       /* added */
    int32_t *place;        /* (max_users): in `known`; -1: nothing is known of the user */
    int32_t *seen_offsets; /* (max_users + 1) of the users in `known` */
    int32_t *seen;         /* (max_seen): rows of the table */
    int64_t max_seen;
    int32_t *best;        /* (max_users, k) */
    float *score;         /* (max_users, k) */
    int32_t *popular;     /* (k): made when the first user without a history comes */
    float *popular_score; /* (k) */
    int32_t n_popular;    /* -1: not made yet */
};

static uint64_t longest_history(const seq_file *data) {
    uint64_t longest = 0;
    for (uint64_t u = 0; u < data->n_users; u++)
        if (seq_length(data, u) > longest) longest = seq_length(data, u);
    return longest;
}

/* Any one user fits, and a full batch of ordinary ones. */
static status choose_room(recommender *r, uint64_t max_events) {
    uint64_t longest = longest_history(r->s->data), n = (uint64_t)r->max_users * MEAN_SEEN;
    if (max_events > longest) longest = max_events;
    if (longest > n) n = longest;
    if (n > INT32_MAX)
        return fail(ERR_UNSUPPORTED, "a history of %llu events; at most %d can be left out",
                    (unsigned long long)longest, INT32_MAX);
    r->max_seen = r->keeps_seen ? 0 : (int64_t)n;
    return OK;
}

static status alloc_all(recommender *r) {
    size_t n = (size_t)r->max_users, k = (size_t)r->k;
    TRY(MEM_NEW(&r->place, n));
    TRY(MEM_NEW(&r->seen_offsets, n + 1));
    TRY(MEM_NEW_RAW(&r->seen, (size_t)r->max_seen));
    TRY(MEM_NEW(&r->best, n * k));
    TRY(MEM_NEW(&r->score, n * k));
    TRY(MEM_NEW(&r->popular, k));
    return MEM_NEW(&r->popular_score, k);
}

static status make(recommender *r, const recommender_config *c) {
    session *s = r->s;
    pass_config p = {.max_users = c->max_users};
    TRY(item_table_init(&r->table, s->model));
    if (c->is_allowed != NULL) TRY(item_table_keep(&r->table, c->is_allowed));
    if (r->table.items.n == 0)
        return fail(ERR_USAGE, "there is no item to recommend: none that is allowed has a row in "
                               "the model");
    r->k = c->k < r->table.items.n ? c->k : r->table.items.n;
    TRY(choose_room(r, c->max_events));
    TRY(alloc_all(r));
    TRY(histories_init(&r->known, s, c->max_users));
    p.max_seen = r->max_seen;
    return pass_create(&r->pass, s->model, &p);
}

status recommender_create(recommender **out, session *s, const recommender_config *c) {
    recommender *r;
    *out = NULL;
    if (s->config->task != TASK_RETRIEVAL)
        return fail(ERR_UNSUPPORTED, "this model ranks given candidates: 'hstu score' does that; "
                                     "recommending needs a retrieval model");
    if (c->k < 1 || c->k > RECOMMEND_MAX_K)
        return fail(ERR_USAGE, "%d items for a user; it must be from 1 to %d", c->k,
                    RECOMMEND_MAX_K);
    TRY(MEM_NEW(&r, 1));
    *r = (recommender){
        .s = s, .max_users = c->max_users, .keeps_seen = c->keeps_seen, .n_popular = -1};
    status st = make(r, c);
    if (st != OK) {
        recommender_destroy(r);
        return st;
    }
    *out = r;
    return OK;
}

void recommender_destroy(recommender *r) {
    if (r == NULL) return;
    pass_destroy(r->pass);
    item_table_fini(&r->table);
    histories_fini(&r->known);
    mem_free(r->place);
    mem_free(r->seen_offsets);
    mem_free(r->seen);
    mem_free(r->best);
    mem_free(r->score);
    mem_free(r->popular);
    mem_free(r->popular_score);
    mem_free(r);
}

int32_t recommender_n_users(const recommender *r) {
    return r->n_users;
}

bool recommender_fits(const recommender *r, const user_events *u) {
    if (r->n_users == r->max_users) return false;
    uint64_t n = (uint64_t)r->seen_offsets[r->known.view.n_users] + u->n;
    return r->keeps_seen || n <= (uint64_t)r->max_seen;
}

static void leave_out(recommender *r, const user_events *u, int32_t place) {
    int32_t first = r->seen_offsets[place], n = 0;
    for (uint64_t i = 0; i < u->n && !r->keeps_seen; i++) {
        int32_t row = r->table.items.row[u->item[i]];
        if (row >= 0) r->seen[first + n++] = row;
    }
    r->seen_offsets[place + 1] = first + pass_distinct_rows(r->seen + first, n);
}

status recommender_add(recommender *r, const user_events *u) {
    if (!recommender_fits(r, u))
        return fail(ERR_CONFIG, "a batch of at most %d users is full", r->max_users);
    int32_t place = u->n > 0 ? r->known.view.n_users : -1;
    r->place[r->n_users++] = place;
    if (place < 0) return OK;
    TRY(histories_add(&r->known, u, NULL, 0));
    leave_out(r, u, place);
    return OK;
}

/* An item and its events. */
typedef struct popular_item {
    uint64_t n_events;
    int32_t item;
} popular_item;

static int compare_popular(const void *a, const void *b) {
    const popular_item *x = a, *y = b;
    if (x->n_events != y->n_events) return x->n_events < y->n_events ? 1 : -1;
    return (x->item > y->item) - (x->item < y->item);
}

/* Items without an event are not popular, and not listed. */
static status find_popular(recommender *r) {
    const seq_file *data = r->s->data;
    const model_items *items = &r->table.items;
    popular_item *all;
    TRY(MEM_NEW(&all, (size_t)items->n));
    for (int32_t i = 0; i < items->n; i++)
        all[i].item = items->item[i];
    for (uint64_t i = 0; i < data->n_events; i++) {
        int32_t row = items->row[data->item[i]];
        if (row >= 0) all[row].n_events++;
    }
    qsort(all, (size_t)items->n, sizeof *all, compare_popular);
    r->n_popular = 0;
    for (int32_t i = 0; i < r->k && all[i].n_events > 0; i++, r->n_popular++) {
        r->popular[i] = all[i].item;
        r->popular_score[i] = (float)all[i].n_events;
    }
    mem_free(all);
    return OK;
}

status recommender_run(recommender *r) {
    rank_query q = {.corpus = &r->table.items,
                    .seen_offsets = r->seen_offsets,
                    .seen = r->seen,
                    .k = r->k,
                    .best = r->best,
                    .score = r->score};
    if (r->known.view.n_users < r->n_users && r->n_popular < 0) TRY(find_popular(r));
    return r->known.view.n_users > 0 ? pass_rank(r->pass, &r->known.view, &q) : OK;
}

recommendation recommender_result(const recommender *r, int32_t user) {
    int32_t place = r->place[user], n = 0;
    if (place < 0)
        return (recommendation){
            .n = r->n_popular, .item = r->popular, .score = r->popular_score, .is_popular = true};
    const int32_t *item = r->best + (int64_t)place * r->k;
    while (n < r->k && item[n] >= 0)
        n++;
    return (recommendation){.n = n, .item = item, .score = r->score + (int64_t)place * r->k};
}

void recommender_clear(recommender *r) {
    histories_clear(&r->known);
    r->n_users = 0;
}
