/* A batch through the tiers (table.h): which keys are in which tier, which rows move up, which are
 * evicted to a lower tier.
 *
 * The verbs of ops/table.h do all the work on keys; this file makes lists of their results.  All
 * lists keep the order of hashes, so that a level's buckets come one after the other.  The rows of
 * evicted keys are read before new rows are written to their slots: place changes the index alone.
 */
#include "embed/table_int.h"

status embed_dedup(embed_table *t, int64_t n, const uint64_t *ids) {
    embed_device *d = &t->d;
    embed_batch *b = &t->batch;
    table_unique_args a = {n, d->ids, d->keys, d->n_unique, d->inverse, d->order, d->begin};
    TRY(embed_check_whole(t));
    t->slots_hold = t->has_below = t->is_direct = t->is_staged = false;
    *b = (embed_batch){.n = n,
                       .keys = d->keys,
                       .inverse = d->inverse,
                       .order = d->order,
                       .begin = d->begin,
                       .rows = d->staging,
                       .stride = t->stride,
                       .rejected = t->h.rejected,
                       .refused = t->h.refused};
    if (n == 0) return OK;
    TRY(EMBED_IN(t, d->ids, ids, n));
    TRY(t->v->unique(t->be, &a));
    return EMBED_OUT(t, &b->n_unique, d->n_unique, 1);
}

/* Lists the keys of the batch that are at `where`; returns their number. */
static int64_t list_keys(embed_table *t, whereabouts where) {
    embed_host *h = &t->h;
    int64_t n = 0;
    for (int64_t u = 0; u < t->batch.n_unique; u++)
        if (h->where[u] == where) {
            h->list_of[n] = (int32_t)u;
            h->list_keys[n++] = h->keys[u];
        }
    return n;
}

static status locate_level0(embed_table *t) {
    embed_host *h = &t->h;
    int64_t n = t->batch.n_unique;
    table_find_args a = {.n = n, .keys = t->d.keys, .slot = t->d.slot[0]};
    TRY(t->v->find(t->be, &t->level[0], &a));
    TRY(EMBED_OUT(t, h->slot[0], t->d.slot[0], n));
    for (int64_t u = 0; u < n; u++) {
        h->where[u] = h->slot[0][u] >= 0 ? IN_LEVEL0 : IS_ABSENT;
        h->slot[1][u] = -1;
    }
    return OK;
}

static status locate_level1(embed_table *t) {
    embed_host *h = &t->h;
    embed_device *d = &t->d;
    int64_t n = list_keys(t, IS_ABSENT);
    if (n == 0) return OK;
    table_find_args a = {.n = n,
                         .keys = d->list_keys,
                         .slot = d->list_slot,
                         .out_scores = d->list_scores,
                         .out_stamps = d->list_stamps};
    TRY(EMBED_IN(t, d->list_keys, h->list_keys, n));
    TRY(t->v->find(t->be, &t->level[1], &a));
    TRY(EMBED_OUT(t, h->list_slot, d->list_slot, n));
    TRY(EMBED_OUT(t, h->list_scores, d->list_scores, n));
    TRY(EMBED_OUT(t, h->list_stamps, d->list_stamps, n));
    for (int64_t i = 0; i < n; i++) {
        int32_t u = h->list_of[i];
        if (h->list_slot[i] < 0) continue;
        h->where[u] = IN_LEVEL1;
        h->slot[1][u] = h->list_slot[i];
        h->scores[u] = h->list_scores[i];
        h->stamps[u] = h->list_stamps[i];
    }
    return OK;
}

/* A row of the store has its clean copy there. */
static status locate_store(embed_table *t) {
    embed_host *h = &t->h;
    embed_store *store = t->config.store;
    int64_t n = list_keys(t, IS_ABSENT);
    if (n == 0) return OK;
    TRY(store->get(store, n, h->list_keys, h->flags, h->list_scores, h->list_stamps,
                   h->store_rows));
    for (int64_t i = 0; i < n; i++) {
        int32_t u = h->list_of[i];
        if (!h->flags[i]) continue;
        h->where[u] = IN_STORE;
        h->at[u] = (int32_t)i;
        h->scores[u] = h->list_scores[i];
        h->stamps[u] = h->list_stamps[i] | TABLE_CLEAN;
    }
    return OK;
}

status embed_locate(embed_table *t) {
    TRY(EMBED_OUT(t, t->h.keys, t->d.keys, t->batch.n_unique));
    TRY(locate_level0(t));
    if (t->n_levels > 1) TRY(locate_level1(t));
    if (t->config.store != NULL) TRY(locate_store(t));
    return OK;
}

static bool is_admitted(embed_table *t, uint64_t key, uint32_t times) {
    const embed_config *c = &t->config;
    if (c->admit_count > 1 &&
        sketch_add(&t->seen, embed_shard_of(t, key), table_hash(key), times) < c->admit_count)
        return false;
    if (c->admit_rate <= 0 || c->admit_rate >= 1) return true;
    rng_block b = rng_draw64(rng_make_key(c->seed ^ 0x61646d6974ull, RNG_TABLE), key, t->clock);
    return rng_uniform(b.word[0]) < c->admit_rate;
}

bool embed_has_admission(const embed_table *t) {
    const embed_config *c = &t->config;
    return c->admit_count > 1 || (c->admit_rate > 0 && c->admit_rate < 1);
}

/* How often key u of the batch was used: the caller's count or, without one, how often it occurs
 * in the batch.  Its places are group u, which begins at h.list_of[u]. */
static uint32_t uses_of(const embed_table *t, const embed_bring *bring, int64_t u) {
    const int32_t *begin = t->h.list_of;
    int64_t end = u + 1 < t->batch.n_unique ? begin[u + 1] : t->batch.n;
    uint64_t uses = bring->uses != NULL ? bring->uses[u] : (uint64_t)(end - begin[u]);
    return uses < UINT32_MAX ? (uint32_t)uses : UINT32_MAX;
}

/* Absent keys become new or refused ones. */
static status admit(embed_table *t, const embed_bring *bring) {
    embed_host *h = &t->h;
    bool asks = embed_has_admission(t) && !bring->is_import;
    int64_t n = t->batch.n_unique;
    if (asks) TRY(EMBED_OUT(t, h->list_of, t->d.begin, n));
    for (int64_t u = 0; u < n; u++) {
        if (h->where[u] != IS_ABSENT) continue;
        bool is_in = !asks || (!t->is_retaken && is_admitted(t, h->keys[u], uses_of(t, bring, u)));
        h->where[u] = is_in ? IS_NEW : IS_REFUSED;
        if (!is_in) h->refused[t->batch.n_refused++] = h->keys[u];
    }
    return OK;
}

void embed_out_add(embed_table *t, int64_t at, const embed_rows *rows, int64_t i) {
    embed_host *h = &t->h;
    size_t row = (size_t)t->n_floats;
    h->out_keys[at] = rows->keys[i];
    h->out_scores[at] = rows->scores[i];
    h->out_stamps[at] = rows->stamps[i];
    memmove(h->out_rows + (size_t)at * row, rows->rows + (size_t)i * row, row * sizeof(float));
}

/* Writes to the store the rows that it does not have yet, packed to the front of h.out_*. */
static status write_back(embed_table *t, const embed_rows *rows) {
    int64_t n = 0;
    for (int64_t i = 0; i < rows->n; i++)
        if (!(rows->stamps[i] & TABLE_CLEAN)) embed_out_add(t, n++, rows, i);
    embed_rows dirty = embed_out_rows(t, n);
    t->counts.n_written += n;
    return n == 0 ? OK : t->config.store->put(t->config.store, &dirty);
}

/* Rows that no level holds: moves them to the store, or out of the table. */
static status spill(embed_table *t, const embed_rows *rows) {
    if (rows->n == 0) return OK;
    if (t->config.store != NULL) return write_back(t, rows);
    t->counts.n_evicted += rows->n;
    return embed_note_left(t, rows->n, rows->keys);
}

/* Moves the `n` entries of d.evicted, whose rows are in `level`, out of the levels. */
static status spill_evicted(embed_table *t, const table_level *level, int64_t n) {
    embed_host *h = &t->h;
    embed_rows rows = embed_out_rows(t, n);
    table_rows_args read = embed_rows_args(n, t->d.evicted.slot, t->n_floats, t->d.moved);
    if (n == 0) return OK;
    TRY(EMBED_OUT(t, h->out_keys, t->d.evicted.keys, n));
    TRY(EMBED_OUT(t, h->out_scores, t->d.evicted.scores, n));
    TRY(EMBED_OUT(t, h->out_stamps, t->d.evicted.stamps, n));
    if (t->config.store != NULL) {
        TRY(t->v->read(t->be, level, &read));
        TRY(EMBED_OUT(t, h->out_rows, t->d.moved, n * t->n_floats));
    }
    return spill(t, &rows);
}

/* Handles entries of the list that level 1 rejected too; the batch's own keys among them stay in
 * the store. */
static status spill_rejected(embed_table *t, int64_t n) {
    embed_host *h = &t->h;
    embed_rows list = {n, h->list_keys, h->list_scores, h->list_stamps, h->out_rows, t->n_floats};
    int64_t n_out = 0;
    if (t->config.store != NULL) TRY(EMBED_OUT(t, h->out_rows, t->d.pushed, n * t->n_floats));
    for (int64_t i = 0; i < n; i++)
        if (h->list_slot[i] < 0 && h->list_of[i] < 0) embed_out_add(t, n_out++, &list, i);
    embed_rows rows = embed_out_rows(t, n_out);
    return spill(t, &rows);
}

/* The host's list of keys, scores and stamps to the device. */
static status send_list(embed_table *t, int64_t n) {
    TRY(EMBED_IN(t, t->d.list_keys, t->h.list_keys, n));
    TRY(EMBED_IN(t, t->d.list_scores, t->h.list_scores, n));
    return EMBED_IN(t, t->d.list_stamps, t->h.list_stamps, n);
}

/* Places rows in the level below the one that evicted them; rows that this level evicts are
 * spilled.  The lists are h.list_* (n), their rows d.pushed. */
static status demote(embed_table *t, int64_t n, score_rule rule) {
    embed_host *h = &t->h;
    embed_device *d = &t->d;
    int64_t counts[PLACED_COUNTS];
    if (n == 0) return OK;
    TRY(send_list(t, n));
    table_place_args place = {.n = n,
                              .keys = d->list_keys,
                              .rule = rule,
                              .scores = d->list_scores,
                              .stamps = d->list_stamps,
                              .evict = EVICT_LOWER,
                              .slot = d->list_slot,
                              .is_new = d->is_new,
                              .evicted = d->evicted,
                              .counts = d->counts};
    table_rows_args write = {.n = n,
                             .slot = d->list_slot,
                             .only = d->is_new,
                             .n_floats = t->n_floats,
                             .staging = d->pushed,
                             .stride = t->n_floats};
    TRY(t->v->place(t->be, &t->level[1], &place));
    TRY(EMBED_OUT(t, counts, d->counts, PLACED_COUNTS));
    TRY(EMBED_OUT(t, h->list_slot, d->list_slot, n));
    TRY(spill_evicted(t, &t->level[1], counts[PLACED_EVICTED]));
    TRY(t->v->write(t->be, &t->level[1], &write));
    if (counts[PLACED_REJECTED] > 0) TRY(spill_rejected(t, n));
    for (int64_t i = 0; i < n; i++) {
        int32_t u = h->list_of[i];
        if (u < 0) continue;
        h->slot[1][u] = h->list_slot[i];
        t->has_below = t->has_below || h->list_slot[i] >= 0;
    }
    return OK;
}

static uint32_t new_stamp(const embed_table *t, const embed_bring *bring, int64_t u) {
    return bring->stamps != NULL ? bring->stamps[u] : (uint32_t)t->step;
}

/* Fills the lists with the scores and stamps that place is to write for each admitted key; returns
 * their number. */
static int64_t list_wanted(embed_table *t, const embed_bring *bring) {
    embed_host *h = &t->h;
    int64_t n = 0;
    for (int64_t u = 0; u < t->batch.n_unique; u++) {
        if (h->where[u] == IS_REFUSED) continue;
        bool is_below = h->where[u] == IN_LEVEL1 || h->where[u] == IN_STORE;
        uint64_t w = bring->scores != NULL ? bring->scores[u] : bring->score;
        h->list_of[n] = (int32_t)u;
        h->list_keys[n] = h->keys[u];
        h->list_scores[n] = is_below ? table_touched(bring->rule, h->scores[u], w) : w;
        h->list_stamps[n] = is_below ? h->stamps[u] : new_stamp(t, bring, u);
        n++;
    }
    return n;
}

/* An import brings its own scores: the best rows stay in the upper tiers, whatever came first. */
evict_rule embed_evict_of(const embed_table *t, const embed_bring *bring) {
    if (t->config.policy == POLICY_NONE) return EVICT_NEVER;
    return bring->is_import ? EVICT_LOWER : EVICT_SMALLEST;
}

/* Places the wanted keys in level 0; d.evicted are the entries that it evicted. */
static status place_wanted(embed_table *t, const embed_bring *bring, int64_t *n_evicted) {
    embed_host *h = &t->h;
    embed_device *d = &t->d;
    int64_t counts[PLACED_COUNTS], n = list_wanted(t, bring);
    table_place_args place = {.n = n,
                              .keys = d->list_keys,
                              .is_ordered = true,
                              .rule = bring->rule,
                              .scores = d->list_scores,
                              .stamps = d->list_stamps,
                              .evict = embed_evict_of(t, bring),
                              .slot = d->list_slot,
                              .is_new = d->is_new,
                              .evicted = d->evicted,
                              .counts = d->counts};
    *n_evicted = 0;
    for (int64_t u = 0; u < t->batch.n_unique; u++)
        h->slot[0][u] = -1;
    if (n == 0) return OK; /* all were refused */
    TRY(send_list(t, n));
    TRY(t->v->place(t->be, &t->level[0], &place));
    t->is_torn = true; /* until the rows are in their places */
    TRY(EMBED_OUT(t, counts, d->counts, PLACED_COUNTS));
    TRY(EMBED_OUT(t, h->list_slot, d->list_slot, n));
    for (int64_t i = 0; i < n; i++)
        h->slot[0][h->list_of[i]] = h->list_slot[i];
    *n_evicted = counts[PLACED_EVICTED];
    return OK;
}

/* h.list_slot = slots of the listed keys in `level`; later steps skip keys without a slot. */
static status upload_slots(embed_table *t, int level, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        t->h.list_slot[i] = t->h.slot[level][t->h.list_of[i]];
    return EMBED_IN(t, t->d.list_slot, t->h.list_slot, n);
}

/* Writes the rows in d.moved, one for each listed key, to their slots in level 0. */
static status write_moved(embed_table *t, int64_t n) {
    table_rows_args write = embed_rows_args(n, t->d.list_slot, t->n_floats, t->d.moved);
    TRY(upload_slots(t, 0, n));
    return t->v->write(t->be, &t->level[0], &write);
}

/* Rows of level 1 whose key now has a place in level 0. */
static status lift_level1(embed_table *t) {
    embed_host *h = &t->h;
    int64_t n = list_keys(t, IN_LEVEL1), n_lifted = 0;
    if (n == 0) return OK;
    table_rows_args read = embed_rows_args(n, t->d.list_slot, t->n_floats, t->d.moved);
    TRY(upload_slots(t, 1, n));
    TRY(t->v->read(t->be, &t->level[1], &read));
    TRY(write_moved(t, n));
    for (int64_t i = 0; i < n; i++)
        if (h->slot[0][h->list_of[i]] >= 0) {
            h->slot[1][h->list_of[i]] = -1;
            h->list_keys[n_lifted++] = h->list_keys[i];
        }
    table_erase_args erase = {.n = n_lifted, .keys = t->d.list_keys};
    TRY(EMBED_IN(t, t->d.list_keys, h->list_keys, n_lifted));
    return t->v->erase(t->be, &t->level[1], &erase);
}

static status lift_store(embed_table *t) {
    embed_host *h = &t->h;
    size_t row = (size_t)t->n_floats;
    int64_t n = list_keys(t, IN_STORE);
    if (n == 0) return OK;
    for (int64_t i = 0; i < n; i++)
        memcpy(h->out_rows + (size_t)i * row, h->store_rows + (size_t)h->at[h->list_of[i]] * row,
               row * sizeof(float));
    TRY(EMBED_IN(t, t->d.moved, h->out_rows, n * t->n_floats));
    return write_moved(t, n);
}

/* First values for the new keys that have a place in this level. */
static status make_new(embed_table *t, int level) {
    int64_t n = list_keys(t, IS_NEW);
    if (n == 0) return OK;
    table_init_args init = embed_init_args(t, n, t->d.list_slot, t->d.list_keys);
    TRY(EMBED_IN(t, t->d.list_keys, t->h.list_keys, n));
    TRY(upload_slots(t, level, n));
    return t->v->init(t->be, &t->level[level], &init);
}

/* Makes the list for level 1: the n entries that level 0 evicted, and the batch's own keys that
 * level 0 rejected: keys of level 1 are listed so that they are not evicted, keys of the store so
 * that they move there.  Rows: d.pushed. */
static status list_for_level1(embed_table *t, const embed_bring *bring, int64_t n_evicted,
                              int64_t *out) {
    embed_host *h = &t->h;
    size_t row = (size_t)t->n_floats;
    int64_t n = n_evicted, n_stored = 0;
    TRY(EMBED_OUT(t, h->list_keys, t->d.evicted.keys, n));
    TRY(EMBED_OUT(t, h->list_scores, t->d.evicted.scores, n));
    TRY(EMBED_OUT(t, h->list_stamps, t->d.evicted.stamps, n));
    for (int64_t i = 0; i < n; i++)
        h->list_of[i] = -1;
    for (int64_t u = 0; u < t->batch.n_unique; u++) {
        uint64_t w = bring->scores != NULL ? bring->scores[u] : bring->score;
        bool is_in_store = h->where[u] == IN_STORE, is_new = h->where[u] == IS_NEW;
        if (h->slot[0][u] >= 0 || h->where[u] == IS_REFUSED) continue;
        h->list_of[n] = (int32_t)u;
        h->list_keys[n] = h->keys[u];
        h->list_scores[n] = is_in_store ? table_touched(bring->rule, h->scores[u], w) : w;
        h->list_stamps[n] = is_new ? new_stamp(t, bring, u) : h->stamps[u];
        /* The rows of a run of the list are contiguous in d.pushed: one transfer for all. */
        if (is_in_store)
            memcpy(h->out_rows + (size_t)(n - n_evicted) * row,
                   h->store_rows + (size_t)h->at[u] * row, row * sizeof(float));
        n_stored += is_in_store;
        n++;
    }
    *out = n;
    if (n_stored == 0) return OK;
    return EMBED_IN(t, t->d.pushed + (size_t)n_evicted * row, h->out_rows,
                    (n - n_evicted) * t->n_floats);
}

/* Handles keys without a place in any level.  A key of the store stays there; its row can be read,
 * but not updated. */
static void reject_rest(embed_table *t) {
    embed_host *h = &t->h;
    for (int64_t u = 0; u < t->batch.n_unique; u++) {
        if (h->slot[0][u] >= 0 || h->slot[1][u] >= 0 || h->where[u] == IS_REFUSED) continue;
        if (h->where[u] != IN_STORE) h->where[u] = IS_REJECTED;
        h->rejected[t->batch.n_rejected++] = h->keys[u];
    }
}

static void count_batch(embed_table *t) {
    for (int64_t u = 0; u < t->batch.n_unique; u++) {
        whereabouts where = (whereabouts)t->h.where[u];
        if (where <= IN_STORE) t->counts.hits[where]++;
        t->counts.n_new += where == IS_NEW && (t->h.slot[0][u] >= 0 || t->h.slot[1][u] >= 0);
    }
}

static status move_rows(embed_table *t, const embed_bring *bring, int64_t n_evicted) {
    int64_t n_list = 0;
    table_rows_args read = embed_rows_args(n_evicted, t->d.evicted.slot, t->n_floats, t->d.pushed);
    if (t->n_levels > 1) {
        TRY(t->v->read(t->be, &t->level[0], &read));
        TRY(lift_level1(t));
    } else {
        TRY(spill_evicted(t, &t->level[0], n_evicted));
    }
    TRY(lift_store(t));
    TRY(make_new(t, 0));
    if (t->n_levels == 1) return OK;
    TRY(list_for_level1(t, bring, n_evicted, &n_list));
    TRY(demote(t, n_list, bring->rule));
    return t->has_below ? make_new(t, 1) : OK;
}

/* One level, no store, every key admitted: place alone does all the work without lists, and the
 * same call initialises and stages new rows.  Evicted keys are listed where the table tracks them,
 * else only counted. */
static status settle_simply(embed_table *t, const embed_bring *bring) {
    embed_host *h = &t->h;
    embed_device *d = &t->d;
    int64_t n = t->batch.n_unique, counts[PLACED_COUNTS];
    table_place_args place = {.n = n,
                              .keys = d->keys,
                              .is_ordered = true,
                              .rule = bring->rule,
                              .score = bring->score,
                              .stamp = (uint32_t)t->step,
                              .evict = embed_evict_of(t, bring),
                              .slot = d->slot[0],
                              .is_new = d->is_new,
                              .evicted = d->evicted,
                              .counts = d->counts};
    table_init_args init = embed_init_args(t, n, d->slot[0], d->keys);
    init.only = d->is_new;
    init.staging = d->staging;
    init.stride = t->stride;
    bool only_counts = !t->config.tracks_left;
    place.init = &init;
    if (only_counts) place.evicted = (table_evicted){NULL, NULL, NULL, NULL};
    if (bring->scores != NULL) {
        TRY(EMBED_IN(t, d->list_scores, bring->scores, n));
        place.scores = d->list_scores;
    }
    TRY(t->v->place(t->be, &t->level[0], &place));
    t->is_torn = true; /* until the rows are in their places */
    TRY(EMBED_OUT(t, counts, d->counts, PLACED_COUNTS));
    if (only_counts)
        t->counts.n_evicted += counts[PLACED_EVICTED];
    else
        TRY(spill_evicted(t, &t->level[0], counts[PLACED_EVICTED]));
    t->is_staged = true;
    t->counts.n_new += counts[PLACED_NEW];
    t->counts.hits[0] += n - counts[PLACED_NEW] - counts[PLACED_REJECTED];
    memset(h->where, IN_LEVEL0, (size_t)n);
    if (counts[PLACED_REJECTED] == 0) return OK;
    TRY(EMBED_OUT(t, h->keys, d->keys, n));
    TRY(EMBED_OUT(t, h->slot[0], d->slot[0], n));
    for (int64_t u = 0; u < n; u++)
        h->slot[1][u] = -1;
    reject_rest(t);
    return OK;
}

static status settle_tiers(embed_table *t, const embed_bring *bring) {
    int64_t n_evicted = 0;
    TRY(embed_locate(t));
    TRY(admit(t, bring));
    TRY(place_wanted(t, bring, &n_evicted));
    TRY(move_rows(t, bring, n_evicted));
    count_batch(t);
    reject_rest(t);
    TRY(EMBED_IN(t, t->d.slot[0], t->h.slot[0], t->batch.n_unique));
    return EMBED_IN(t, t->d.slot[1], t->h.slot[1], t->batch.n_unique);
}

status embed_settle(embed_table *t, const embed_bring *bring) {
    if (t->batch.n_unique == 0) return OK;
    bool is_simple =
        t->n_levels == 1 && t->config.store == NULL && !embed_has_admission(t) && !bring->is_import;
    TRY(is_simple ? settle_simply(t, bring) : settle_tiers(t, bring));
    t->is_torn = false;
    t->counts.n_rejected += t->batch.n_rejected;
    if (!t->is_retaken) t->counts.n_refused += t->batch.n_refused;
    t->slots_hold = true;
    return OK;
}

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
    table_rows_args write = embed_rows_args(n, t->d.list_slot, t->config.dim, t->d.moved);
    return t->v->write(t->be, &staging, &write);
}

static status stage_level1(embed_table *t) {
    embed_host *h = &t->h;
    int64_t n;
    TRY(list_rows(t, is_in_level1, &n));
    if (n == 0) return OK;
    table_rows_args read = embed_rows_args(n, t->d.list_slot, t->config.dim, t->d.moved);
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
    table_init_args init = embed_init_args(t, n, t->d.list_slot, t->d.list_keys);
    init.n_state = 0;
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

static status check_batch(const embed_table *t, int64_t n) {
    if (n >= 0 && n <= t->config.max_batch) return OK;
    return fail(ERR_USAGE, "a batch of %lld ids for a dynamic table made for %lld", (long long)n,
                (long long)t->config.max_batch);
}

status embed_fetch(embed_table *t, fetch_mode mode, int64_t n, const uint64_t *ids,
                   const uint64_t *uses, const embed_batch **out) {
    *out = NULL;
    TRY(check_batch(t, n));
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

/* Announces to the store the ids that are in no level. */
status embed_prefetch(embed_table *t, int64_t n, const uint64_t *ids) {
    embed_store *store = t->config.store;
    embed_host *h = &t->h;
    if (store == NULL || n == 0) return OK;
    TRY(check_batch(t, n));
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
