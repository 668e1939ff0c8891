/* Rows of different ids in their own order (table.h: embed_take_rows, embed_step_rows), as models
 * have them.
 *
 * Where a table has one level and nobody wants what is evicted, one call of place and one of init
 * do all, and the host reads nothing from the device: the steps of a GPU run ahead of the host.
 *   - The number of different keys is known, and the order of keys does not matter to place.
 *   - A key can be rejected only where more keys of the batch belong to its bucket than it has
 *     slots.  The host counts them beforehand; only if there are so many it asks and waits.
 *   - How many keys were new and evicted lies on the device, call by call, until somebody asks or
 *     the room is used up.
 * Any other table goes the way of embed_fetch. */
#include <string.h>

#include "embed/table_int.h"

static bool can_be_direct(const embed_table *t) {
    embed_policy policy = t->config.policy;
    return t->n_levels == 1 && t->config.store == NULL && !embed_has_admission(t) &&
           t->config.left == NULL && !t->config.tracks_left &&
           (policy == POLICY_LRU || policy == POLICY_LFU || policy == POLICY_STEP);
}

/* May one bucket have more of these keys than slots?  Buckets that share a counter may make this
 * true in vain, never false. */
static bool may_reject(embed_table *t, int64_t n, const uint64_t *ids) {
    int most = 0;
    if (n <= TABLE_SLOTS) return false;
    for (int64_t i = 0; i < n && most <= TABLE_SLOTS; i++) {
        int64_t bucket = table_bucket(table_hash(ids[i]), t->level[0].n_buckets);
        int have = ++t->crowd[bucket % EMBED_CROWDS];
        if (have > most) most = have;
    }
    memset(t->crowd, 0, EMBED_CROWDS);
    return most > TABLE_SLOTS;
}

status embed_catch_up(embed_table *t) {
    int64_t late[EMBED_LATE * PLACED_COUNTS], sum[PLACED_COUNTS] = {0};
    if (t->n_late == 0) return OK;
    TRY(EMBED_OUT(t, late, t->d.counts + PLACED_COUNTS, t->n_late * PLACED_COUNTS));
    for (int i = 0; i < t->n_late * PLACED_COUNTS; i++)
        sum[i % PLACED_COUNTS] += late[i];
    t->counts.n_new += sum[PLACED_NEW];
    t->counts.hits[0] += t->n_late_keys - sum[PLACED_NEW] - sum[PLACED_REJECTED];
    t->counts.n_evicted += sum[PLACED_EVICTED];
    t->counts.n_demoted[0] += sum[PLACED_EVICTED];
    t->counts.n_rejected += sum[PLACED_REJECTED];
    t->n_late = 0;
    t->n_late_keys = 0;
    return OK;
}

/* ---- making rows ----------------------------------------------------------------------------- */

/* Keys and scores to the device; the words of lfu are made of the uses. */
static status send_keys(embed_table *t, int64_t n, const uint64_t *ids, const uint64_t *uses) {
    TRY(EMBED_IN(t, t->d.keys, ids, n));
    if (uses == NULL) return OK;
    for (int64_t i = 0; i < n; i++)
        t->h.given_scores[i] = embed_lfu_score(t, uses[i]);
    return EMBED_IN(t, t->d.list_scores, t->h.given_scores, n);
}

/* The keys that found no place. */
static status list_rejected(embed_table *t, const uint64_t *ids) {
    embed_batch *b = &t->batch;
    TRY(EMBED_OUT(t, t->h.slot[0], t->d.slot[0], b->n));
    for (int64_t i = 0; i < b->n; i++)
        if (t->h.slot[0][i] < 0) t->h.rejected[b->n_rejected++] = ids[i];
    return OK;
}

/* First values for new rows, and the values of all, in one pass. */
static status fill_rows(embed_table *t, float *rows) {
    table_init_args init = {.n = t->batch.n,
                            .slot = t->d.slot[0],
                            .only = t->d.is_new,
                            .keys = t->d.keys,
                            .dim = t->config.dim,
                            .n_state = t->n_floats - t->config.dim,
                            .first = t->first,
                            .staging = rows,
                            .stride = t->config.dim};
    return t->v->init(t->be, &t->level[0], &init);
}

static status make_directly(embed_table *t, const uint64_t *ids, const uint64_t *uses,
                            float *rows) {
    embed_device *d = &t->d;
    if (t->n_late == EMBED_LATE) TRY(embed_catch_up(t));
    int64_t n = t->batch.n, *counts = d->counts + (1 + t->n_late) * PLACED_COUNTS;
    bool waits = may_reject(t, n, ids);
    embed_bring bring = embed_bring_of(t, NULL);
    TRY(send_keys(t, n, ids, uses));
    table_place_args place = {.n = n,
                              .keys = d->keys,
                              .rule = bring.rule,
                              .score = bring.score,
                              .scores = uses != NULL ? d->list_scores : NULL,
                              .stamp = (uint32_t)t->step,
                              .evict = embed_evict_of(t, &bring),
                              .slot = d->slot[0],
                              .is_new = d->is_new,
                              .evicted = d->evicted,
                              .counts = counts};
    TRY(t->v->place(t->be, &t->level[0], &place));
    t->is_torn = true; /* until the rows are in their places */
    t->n_late++;
    t->n_late_keys += n;
    TRY(fill_rows(t, rows));
    t->is_torn = false;
    if (!waits) return OK;
    TRY(list_rejected(t, ids));
    return embed_catch_up(t);
}

/* ---- only finding ---------------------------------------------------------------------------- */

static status find_directly(embed_table *t, const uint64_t *ids, float *rows) {
    embed_batch *b = &t->batch;
    table_find_args find = {.n = b->n, .keys = t->d.keys, .slot = t->d.slot[0]};
    table_rows_args read = {.n = b->n,
                            .slot = t->d.slot[0],
                            .n_floats = t->config.dim,
                            .staging = rows,
                            .stride = t->config.dim};
    TRY(EMBED_IN(t, t->d.keys, ids, b->n));
    TRY(t->v->find(t->be, &t->level[0], &find));
    if (rows == NULL) return OK;
    TRY(t->v->read(t->be, &t->level[0], &read));
    TRY(EMBED_OUT(t, t->h.slot[0], t->d.slot[0], b->n));
    for (int64_t i = 0; i < b->n; i++)
        b->n_absent += t->h.slot[0][i] < 0;
    return OK;
}

/* ---- both ------------------------------------------------------------------------------------ */

static status take_directly(embed_table *t, bool makes_rows, int64_t n, const uint64_t *ids,
                            const uint64_t *uses, float *rows) {
    TRY(embed_check_whole(t));
    t->batch = (embed_batch){.n = n, .n_unique = n, .keys = t->d.keys, .rejected = t->h.rejected};
    t->has_below = false;
    t->is_direct = t->slots_hold = true;
    t->clock += makes_rows;
    if (n == 0) return OK;
    return makes_rows ? make_directly(t, ids, uses, rows) : find_directly(t, ids, rows);
}

status embed_take_rows(embed_table *t, bool makes_rows, int64_t n, const uint64_t *ids,
                       const uint64_t *scores, float *rows, const embed_batch **out) {
    bool has_uses = t->config.policy == POLICY_LFU;
    *out = NULL;
    if (can_be_direct(t) && n >= 0 && n <= t->config.max_batch && (scores == NULL || has_uses)) {
        TRY(take_directly(t, makes_rows, n, ids, scores, rows));
    } else {
        TRY(embed_fetch(t, makes_rows ? FETCH_INSERT_ZERO : FETCH_ZERO, n, ids, scores, out));
        if (rows != NULL) TRY(embed_pool(t, POOL_NONE, n, NULL, NULL, rows));
    }
    *out = &t->batch;
    return OK;
}

status embed_step_rows(embed_table *t, const float *grad, const embed_step_args *args) {
    if (t->is_direct) return embed_update(t, grad, args);
    float *by_key = t->d.moved; /* it has room for (U, n_floats) */
    TRY(embed_pool_grad(t, POOL_NONE, t->batch.n, NULL, NULL, grad, by_key));
    return embed_update(t, by_key, args);
}
