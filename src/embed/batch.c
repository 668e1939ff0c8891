/* The training interface (table.h): fetch and update of a batch. */
#include <string.h>

#include "embed/table_int.h"

table_level embed_staging_level(const embed_table *t) {
    return (table_level){.rows = (unsigned char *)t->d.staging,
                         .row_bytes = (int64_t)t->stride * (int64_t)sizeof(float)};
}

/* Lists the keys of the batch that have no place in level 0 and that `wants` selects; d.list_slot
 * are their rows of staging.  Returns the number. */
static status list_rows(embed_table *t, bool (*wants)(const embed_table *, int64_t), int64_t *out) {
    embed_host *h = &t->h;
    int64_t n = 0;
    for (int64_t u = 0; u < t->batch.n_unique; u++) {
        if (h->where[u] == IN_LEVEL0 || !wants(t, u)) continue;
        h->list_of[n] = (int32_t)u;
        h->list_keys[n] = h->keys[u];
        h->list_slot[n++] = u;
    }
    *out = n;
    if (n == 0) return OK;
    TRY(EMBED_IN(t, t->d.list_keys, h->list_keys, n));
    return EMBED_IN(t, t->d.list_slot, h->list_slot, n);
}

static bool is_in_level1(const embed_table *t, int64_t u) {
    return t->h.slot[0][u] < 0 && t->h.slot[1][u] >= 0;
}

static bool is_in_store_only(const embed_table *t, int64_t u) {
    return t->h.where[u] == IN_STORE && t->h.slot[0][u] < 0 && t->h.slot[1][u] < 0;
}

static bool has_no_row(const embed_table *t, int64_t u) {
    whereabouts where = (whereabouts)t->h.where[u];
    return where == IS_REFUSED || where == IS_REJECTED || where == IS_ABSENT;
}

/* d.moved (n, dim) to the listed rows of staging. */
static status stage_moved(embed_table *t, int64_t n) {
    table_level staging = embed_staging_level(t);
    table_rows_args write = {.n = n,
                             .slot = t->d.list_slot,
                             .n_floats = t->config.dim,
                             .staging = t->d.moved,
                             .stride = t->config.dim};
    return t->v->write(t->be, &staging, &write);
}

static status stage_level1(embed_table *t) {
    embed_host *h = &t->h;
    int64_t n;
    TRY(list_rows(t, is_in_level1, &n));
    if (n == 0) return OK;
    table_rows_args read = {.n = n,
                            .slot = t->d.list_slot,
                            .n_floats = t->config.dim,
                            .staging = t->d.moved,
                            .stride = t->config.dim};
    for (int64_t i = 0; i < n; i++)
        h->list_slot[i] = h->slot[1][h->list_of[i]];
    TRY(EMBED_IN(t, t->d.list_slot, h->list_slot, n));
    TRY(t->v->read(t->be, &t->level[1], &read));
    for (int64_t i = 0; i < n; i++)
        h->list_slot[i] = h->list_of[i];
    TRY(EMBED_IN(t, t->d.list_slot, h->list_slot, n));
    return stage_moved(t, n);
}

static status stage_store(embed_table *t) {
    embed_host *h = &t->h;
    size_t dim = (size_t)t->config.dim;
    int64_t n;
    TRY(list_rows(t, is_in_store_only, &n));
    if (n == 0) return OK;
    for (int64_t i = 0; i < n; i++)
        memcpy(h->out_rows + (size_t)i * dim,
               h->store_rows + (size_t)h->at[h->list_of[i]] * (size_t)t->n_floats,
               dim * sizeof(float));
    TRY(EMBED_IN(t, t->d.moved, h->out_rows, n * t->config.dim));
    return stage_moved(t, n);
}

static status stage_first(embed_table *t) {
    table_level staging = embed_staging_level(t);
    int64_t n;
    TRY(list_rows(t, has_no_row, &n));
    if (n == 0) return OK;
    table_init_args init = {.n = n,
                            .slot = t->d.list_slot,
                            .keys = t->d.list_keys,
                            .dim = t->config.dim,
                            .first = t->first};
    return t->v->init(t->be, &staging, &init);
}

/* Fills staging from wherever the rows are. */
static status stage(embed_table *t, fetch_mode mode) {
    table_rows_args read = {.n = t->batch.n_unique,
                            .slot = t->d.slot[0],
                            .n_floats = t->config.dim,
                            .staging = t->d.staging,
                            .stride = t->stride};
    if (!t->is_staged) TRY(t->v->read(t->be, &t->level[0], &read));
    TRY(stage_level1(t));
    TRY(stage_store(t));
    return mode == FETCH_ZERO || mode == FETCH_INSERT_ZERO ? OK : stage_first(t);
}

uint64_t embed_lfu_score(const embed_table *t, uint64_t n_uses) {
    return (n_uses < UINT32_MAX ? n_uses : UINT32_MAX) << 32 | (t->clock & 0xffffffffu);
}

/* Adds up the uses over the repeats of each key, and sets the LFU scores of the keys from the
 * sums. */
static status count_uses(embed_table *t, const uint64_t *uses, embed_bring *bring) {
    embed_host *h = &t->h;
    memset(h->given_uses, 0, (size_t)t->batch.n_unique * sizeof *h->given_uses);
    TRY(EMBED_OUT(t, h->inverse, t->d.inverse, t->batch.n));
    for (int64_t i = 0; i < t->batch.n; i++)
        h->given_uses[h->inverse[i]] += uses[i];
    bring->uses = h->given_uses;
    if (t->config.policy != POLICY_LFU) return OK;
    for (int64_t u = 0; u < t->batch.n_unique; u++)
        h->given_scores[u] = embed_lfu_score(t, h->given_uses[u]);
    bring->scores = h->given_scores;
    return OK;
}

embed_bring embed_bring_of(const embed_table *t) {
    embed_policy policy = t->config.policy;
    embed_bring bring = {.rule = SCORE_SET, .score = t->clock};
    if (policy == POLICY_STEP) bring.score = (uint64_t)t->step;
    if (policy == POLICY_LFU) bring.rule = SCORE_COUNT, bring.score = embed_lfu_score(t, 1);
    return bring;
}

status embed_fetch(embed_table *t, fetch_mode mode, int64_t n, const uint64_t *ids,
                   const uint64_t *uses, const embed_batch **out) {
    *out = NULL;
    if (n < 0 || n > t->config.max_batch)
        return fail(ERR_USAGE, "a batch of %lld ids for a dynamic table made for %lld",
                    (long long)n, (long long)t->config.max_batch);
    TRY(embed_dedup(t, n, ids));
    if (mode == FETCH_INSERT || mode == FETCH_INSERT_ZERO) {
        t->clock++;
        embed_bring bring = embed_bring_of(t);
        if (uses != NULL) TRY(count_uses(t, uses, &bring));
        TRY(embed_settle(t, &bring));
    } else {
        TRY(embed_locate(t));
        for (int64_t u = 0; u < t->batch.n_unique; u++)
            t->batch.n_absent += t->h.where[u] == IS_ABSENT;
    }
    TRY(stage(t, mode));
    *out = &t->batch;
    return OK;
}

/* Announces to the store the ids that are in no level; the store ignores repeats. */
status embed_prefetch(embed_table *t, int64_t n, const uint64_t *ids) {
    embed_store *store = t->config.store;
    embed_host *h = &t->h;
    if (store == NULL || store->ask == NULL || n == 0) return OK;
    if (n < 0 || n > t->config.max_batch)
        return fail(ERR_USAGE, "a batch of %lld ids for a dynamic table made for %lld",
                    (long long)n, (long long)t->config.max_batch);
    memcpy(h->ahead, ids, (size_t)n * sizeof *ids);
    for (int i = 0; i < t->n_levels && n > 0; i++) {
        table_find_args find = {.n = n, .keys = t->d.ahead, .slot = t->d.ahead_slot};
        int64_t n_absent = 0;
        TRY(EMBED_IN(t, t->d.ahead, h->ahead, n));
        TRY(t->v->find(t->be, &t->level[i], &find));
        TRY(EMBED_OUT(t, h->ahead_slot, t->d.ahead_slot, n));
        for (int64_t k = 0; k < n; k++)
            if (h->ahead_slot[k] < 0) h->ahead[n_absent++] = h->ahead[k];
        n = n_absent;
    }
    return n == 0 ? OK : store->ask(store, n, h->ahead);
}

status embed_lookup(embed_table *const *tables, int n_tables, const int64_t *begin,
                    const uint64_t *ids, float *y, uint8_t *is_found) {
    table_level levels[TABLE_MAX_PARTS];
    if (n_tables < 1 || n_tables > TABLE_MAX_PARTS)
        return fail(ERR_USAGE, "a lookup in %d tables; 1 to %d are possible", n_tables,
                    TABLE_MAX_PARTS);
    for (int k = 0; k < n_tables; k++) {
        const embed_table *t = tables[k];
        if (t->be != tables[0]->be || t->config.dim != tables[0]->config.dim)
            return fail(ERR_USAGE, "a lookup in tables of different devices or dimensions");
        TRY(embed_check_whole(t));
        if (t->n_levels > 1 || t->config.store != NULL)
            return fail(ERR_UNSUPPORTED, "a lookup in a table of several tiers; use embed_fetch");
        levels[k] = t->level[0];
    }
    table_lookup_args a = {.n_parts = n_tables,
                           .levels = levels,
                           .begin = begin,
                           .keys = ids,
                           .dim = tables[0]->config.dim,
                           .y = y,
                           .is_found = is_found};
    return tables[0]->v->lookup(tables[0]->be, &a);
}

status embed_find_slots(embed_table *t) {
    for (int i = 0; i < t->n_levels; i++) {
        table_find_args find = {.n = t->batch.n_unique, .keys = t->d.keys, .slot = t->d.slot[i]};
        TRY(t->v->find(t->be, &t->level[i], &find));
    }
    t->has_below = t->n_levels > 1;
    t->slots_hold = true;
    return OK;
}

status embed_update(embed_table *t, const float *grad, const embed_step_args *args) {
    TRY(embed_check_whole(t));
    if (!t->slots_hold) TRY(embed_find_slots(t));
    for (int i = 0; i < (t->has_below ? 2 : 1); i++) {
        table_update_args a = {.n = t->batch.n_unique,
                               .slot = t->d.slot[i],
                               .opt = t->config.opt,
                               .dim = t->config.dim,
                               .grad = grad,
                               .grad_scale = args->grad_scale,
                               .lr = args->lr,
                               .beta1 = args->beta1,
                               .beta2 = args->beta2,
                               .eps = args->eps,
                               .weight_decay = args->weight_decay,
                               .step = args->step,
                               .stamp = (uint32_t)t->step};
        TRY(t->v->update(t->be, &t->level[i], &a));
    }
    return OK;
}
