/* Rows of different ids in their own order (table.h: embed_take_rows, embed_step_rows), as models
 * have them.
 *
 * Where a table has no store and does not track the keys that leave, the host reads nothing from
 * the device, so that it can launch further steps while the GPU works:
 *   - The number of different keys is known, and the order of keys does not matter to place.
 *   - A key can be rejected only where more keys of the batch belong to its bucket of level 0 than
 *     it has slots.  The host counts keys per bucket beforehand, and waits for the device only in
 * that case.
 *   - The verbs read the number of entries that level 0 evicts on the device.
 *   - The counts of new and evicted keys stay on the device, call by call, until they are requested
 * or the buffer is full.  Any other table uses embed_fetch. */
#include "embed/table_int.h"

static bool can_be_direct(const embed_table *t) {
    return t->config.store == NULL && !embed_has_admission(t) && !t->config.tracks_left &&
           t->config.policy != POLICY_NONE;
}

/* Whether one bucket may have more of these keys than slots. Buckets share counters, so the answer
 * may be a false yes, never a false no. */
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

/* Sums the counts of some calls over n_keys keys.  Entries that level 1 evicts or rejects leave the
 * table; a key that moved up is new to level 0 only. */
static void add_counts(embed_table *t, const int64_t *sum, int64_t n_keys) {
    const int64_t *level0 = sum + LATE_LEVEL0, *level1 = sum + LATE_LEVEL1;
    int64_t n_lifted = sum[LATE_LIFTED], n_gone = level0[PLACED_EVICTED];
    embed_counts *c = &t->counts;
    if (t->n_levels > 1) n_gone = level1[PLACED_EVICTED] + level1[PLACED_REJECTED];
    c->n_evicted += n_gone;
    c->hits[0] += n_keys - level0[PLACED_NEW] - level0[PLACED_REJECTED];
    c->hits[1] += n_lifted;
    c->n_new += level0[PLACED_NEW] - n_lifted;
    c->n_rejected += level0[PLACED_REJECTED];
}

status embed_catch_up(embed_table *t) {
    int64_t late[EMBED_LATE * LATE_COUNTS], sum[LATE_COUNTS] = {0};
    if (t->n_late == 0) return OK;
    TRY(EMBED_OUT(t, late, t->d.late, t->n_late * LATE_COUNTS));
    for (int i = 0; i < t->n_late * LATE_COUNTS; i++)
        sum[i % LATE_COUNTS] += late[i];
    add_counts(t, sum, t->n_late_keys);
    t->n_late = 0;
    t->n_late_keys = 0;
    return OK;
}

/* Copies keys to the device, and the LFU scores made of the uses to `words`. */
static status send_keys(embed_table *t, const uint64_t *ids, const uint64_t *uses,
                        uint64_t *words) {
    int64_t n = t->batch.n;
    TRY(EMBED_IN(t, t->d.keys, ids, n));
    if (uses == NULL) return OK;
    for (int64_t i = 0; i < n; i++)
        t->h.given_scores[i] = embed_lfu_score(t, uses[i]);
    return EMBED_IN(t, words, t->h.given_scores, n);
}

/* Places the keys of the batch in level 0.  From here on the table is torn, until the rows are in
 * their slots; with `init` not NULL they are there at once, and evicted rows are lost. */
static status place_keys(embed_table *t, const embed_bring *bring, const uint64_t *scores,
                         const uint32_t *stamps, const table_init_args *init, int64_t *counts) {
    embed_device *d = &t->d;
    table_place_args place = {.n = t->batch.n,
                              .keys = d->keys,
                              .rule = bring->rule,
                              .score = bring->score,
                              .scores = scores,
                              .stamp = (uint32_t)t->step,
                              .stamps = stamps,
                              .evict = embed_evict_of(t, bring),
                              .slot = d->slot[0],
                              .is_new = d->is_new,
                              .counts = counts,
                              .init = init};
    if (init == NULL) place.evicted = d->evicted;
    TRY(t->v->place(t->be, &t->level[0], &place));
    t->is_torn = true;
    return OK;
}

/* Writes first values to new rows and reads the values of all rows, in one pass; rows may be
 * NULL. */
static table_init_args first_rows(const embed_table *t, float *rows) {
    table_init_args init = embed_init_args(t, t->batch.n, t->d.slot[0], t->d.keys);
    init.only = t->d.is_new;
    init.staging = rows;
    init.stride = t->config.dim;
    return init;
}

/* Reads the current values of the batch's keys; rows may be NULL. */
static status read_rows(embed_table *t, float *rows) {
    table_rows_args read = embed_rows_args(t->batch.n, t->d.slot[0], t->config.dim, rows);
    return rows != NULL ? t->v->read(t->be, &t->level[0], &read) : OK;
}

static status make_in_one(embed_table *t, const embed_bring *bring, const uint64_t *ids,
                          const uint64_t *uses, float *rows, int64_t *counts) {
    uint64_t *words = t->d.list_scores;
    TRY(send_keys(t, ids, uses, words));
    table_init_args init = first_rows(t, rows);
    return place_keys(t, bring, uses != NULL ? words : NULL, NULL, &init, counts + LATE_LEVEL0);
}

/* For the batch's keys in level 1: the scores and stamps that place will write to d.list_*, their
 * rows to d.moved; d.is_below says which keys they are. words (n) or NULL: LFU scores. */
static status take_along(embed_table *t, const embed_bring *bring, const uint64_t *words) {
    embed_device *d = &t->d;
    table_find_args find = {.n = t->batch.n,
                            .keys = d->keys,
                            .slot = d->slot[1],
                            .out_scores = d->list_scores,
                            .out_stamps = d->list_stamps};
    table_carry_args carry = {.n = t->batch.n,
                              .slot = d->slot[1],
                              .rule = bring->rule,
                              .score = bring->score,
                              .given = words,
                              .stamp = (uint32_t)t->step,
                              .scores = d->list_scores,
                              .stamps = d->list_stamps,
                              .is_below = d->is_below};
    table_rows_args read = embed_rows_args(t->batch.n, d->slot[1], t->n_floats, d->moved);
    TRY(t->v->find(t->be, &t->level[1], &find));
    TRY(t->v->carry(t->be, &carry));
    return t->v->read(t->be, &t->level[1], &read);
}

/* Moves the entries that level 0 evicted, whose rows are in d.pushed, to level 1; only the device
 * knows their number.  Entries without a place there leave the table. */
static status push_down(embed_table *t, const int64_t *n_pushed, int64_t *counts) {
    embed_device *d = &t->d;
    table_place_args place = {.n = t->batch.n,
                              .n_real = n_pushed,
                              .keys = d->evicted.keys,
                              .rule = SCORE_SET,
                              .scores = d->evicted.scores,
                              .stamps = d->evicted.stamps,
                              .evict = EVICT_LOWER,
                              .slot = d->list_slot,
                              .is_new = d->is_new,
                              .counts = counts};
    table_rows_args write = embed_rows_args(t->batch.n, d->list_slot, t->n_floats, d->pushed);
    write.n_real = n_pushed;
    write.only = d->is_new;
    TRY(t->v->place(t->be, &t->level[1], &place));
    return t->v->write(t->be, &t->level[1], &write);
}

/* Rows are read from a slot before anything is written there.  Every key has a place in level 0, so
 * all that were in level 1 leave level 1. */
static status make_in_two(embed_table *t, const embed_bring *bring, const uint64_t *ids,
                          const uint64_t *uses, float *rows, int64_t *counts) {
    embed_device *d = &t->d;
    const int64_t *n_pushed = counts + LATE_LEVEL0 + PLACED_EVICTED;
    table_init_args init = first_rows(t, NULL);
    table_rows_args pushed = embed_rows_args(t->batch.n, d->evicted.slot, t->n_floats, d->pushed);
    table_rows_args lifted = embed_rows_args(t->batch.n, d->slot[0], t->n_floats, d->moved);
    table_erase_args erase = {.n = t->batch.n, .keys = d->keys, .n_erased = counts + LATE_LIFTED};
    pushed.n_real = n_pushed;
    lifted.only = d->is_below;
    TRY(send_keys(t, ids, uses, d->ahead));
    TRY(take_along(t, bring, uses != NULL ? d->ahead : NULL));
    TRY(place_keys(t, bring, d->list_scores, d->list_stamps, NULL, counts + LATE_LEVEL0));
    TRY(t->v->read(t->be, &t->level[0], &pushed));
    TRY(t->v->init(t->be, &t->level[0], &init));
    TRY(t->v->write(t->be, &t->level[0], &lifted));
    TRY(read_rows(t, rows));
    TRY(t->v->erase(t->be, &t->level[1], &erase));
    return push_down(t, n_pushed, counts + LATE_LEVEL1);
}

/* The keys that found no place. */
static status list_rejected(embed_table *t, const uint64_t *ids) {
    embed_batch *b = &t->batch;
    TRY(EMBED_OUT(t, t->h.slot[0], t->d.slot[0], b->n));
    for (int64_t i = 0; i < b->n; i++)
        if (t->h.slot[0][i] < 0) t->h.rejected[b->n_rejected++] = ids[i];
    return OK;
}

static status make_directly(embed_table *t, const uint64_t *ids, const uint64_t *uses, float *rows,
                            bool waits) {
    if (t->n_late == EMBED_LATE) TRY(embed_catch_up(t));
    int64_t *counts = t->d.late + (int64_t)t->n_late * LATE_COUNTS;
    embed_bring bring = embed_bring_of(t);
    TRY((t->n_levels > 1 ? make_in_two : make_in_one)(t, &bring, ids, uses, rows, counts));
    t->is_torn = false;
    t->n_late++;
    t->n_late_keys += t->batch.n;
    if (!waits) return OK;
    TRY(list_rejected(t, ids));
    return embed_catch_up(t);
}

static status find_directly(embed_table *t, const uint64_t *ids, float *rows) {
    embed_batch *b = &t->batch;
    TRY(EMBED_IN(t, t->d.keys, ids, b->n));
    TRY(embed_find_slots(t));
    if (rows == NULL) return OK;
    TRY(read_rows(t, rows));
    if (t->leaves_absent) return OK;
    TRY(EMBED_OUT(t, t->h.slot[0], t->d.slot[0], b->n));
    for (int64_t i = 0; i < b->n; i++)
        b->n_absent += t->h.slot[0][i] < 0;
    return OK;
}

static void begin_batch(embed_table *t, int64_t n) {
    t->batch = (embed_batch){.n = n, .n_unique = n, .keys = t->d.keys, .rejected = t->h.rejected};
    t->has_below = false;
    t->is_direct = t->slots_hold = true;
}

/* Tries the path without waiting; *is_taken: it was possible. embed_fetch also handles rows that
 * may be in two levels, and keys for which the first of two levels may have no room. */
static status take_directly(embed_table *t, bool makes_rows, int64_t n, const uint64_t *ids,
                            const uint64_t *uses, float *rows, bool *is_taken) {
    bool is_one = t->n_levels == 1, waits = makes_rows && may_reject(t, n, ids);
    *is_taken = is_one || (makes_rows ? !waits : rows == NULL);
    if (!*is_taken) return OK;
    TRY(embed_check_whole(t));
    begin_batch(t, n);
    t->clock += makes_rows;
    if (n == 0) return OK;
    return makes_rows ? make_directly(t, ids, uses, rows, waits) : find_directly(t, ids, rows);
}

/* Staging has the rows in the order of keys; writes them to `rows` in the order of the ids. */
static status copy_staged(embed_table *t, float *rows) {
    table_level staging = embed_staging_level(t);
    table_pool_args a = {.n = t->batch.n, .inverse = t->d.inverse, .dim = t->config.dim, .y = rows};
    return t->v->pool(t->be, &staging, &a);
}

/* The gradients the other way. */
static status order_by_key(embed_table *t, const float *grad, float *by_key) {
    table_pool_grad_args a = {.n = t->batch.n,
                              .order = t->d.order,
                              .begin = t->d.begin,
                              .n_groups = t->batch.n_unique,
                              .dim = t->config.dim,
                              .dy = grad,
                              .grad = by_key};
    return t->v->pool_grad(t->be, &a);
}

status embed_take_rows(embed_table *t, bool makes_rows, int64_t n, const uint64_t *ids,
                       const uint64_t *uses, float *rows, const embed_batch **out) {
    bool is_taken = false;
    *out = NULL;
    if (can_be_direct(t) && n >= 0 && n <= t->config.max_batch) {
        const uint64_t *counted = t->config.policy == POLICY_LFU ? uses : NULL;
        TRY(take_directly(t, makes_rows, n, ids, counted, rows, &is_taken));
    }
    if (!is_taken) {
        TRY(embed_fetch(t, makes_rows ? FETCH_INSERT_ZERO : FETCH_ZERO, n, ids, uses, out));
        if (rows != NULL) TRY(copy_staged(t, rows));
    }
    *out = &t->batch;
    return OK;
}

bool embed_is_array(const embed_table *t, embed_array *out) {
    const table_level *l = &t->level[0];
    *out = (embed_array){(const float *)l->rows, l->n_buckets * TABLE_SLOTS,
                         l->row_bytes / (int64_t)sizeof(float)};
    return t->n_levels == 1 && t->config.store == NULL && t->shards.size == 1 &&
           !t->config.is_on_host;
}

status embed_list_slots(embed_table *t, int64_t n, const uint64_t *keys, int64_t *slot) {
    TRY(embed_check_whole(t));
    t->slots_hold = false; /* d.slot has those of other keys now */
    for (int64_t at = 0, piece; at < n; at += piece) {
        piece = n - at < t->config.max_batch ? n - at : t->config.max_batch;
        table_find_args find = {.n = piece, .keys = t->d.keys, .slot = t->d.slot[0]};
        TRY(EMBED_IN(t, t->d.keys, keys + at, piece));
        TRY(t->v->find(t->be, &t->level[0], &find));
        TRY(EMBED_OUT(t, slot + at, t->d.slot[0], piece));
    }
    return OK;
}

void embed_count_absent(embed_table *t, bool is_counted) {
    t->leaves_absent = !is_counted;
}

/* Without a store no row can move up again, so it is enough to find the rows. */
status embed_retake_rows(embed_table *t, int64_t n, const uint64_t *ids) {
    const embed_batch *got;
    t->is_retaken = true;
    status st = embed_take_rows(t, t->config.store != NULL, n, ids, NULL, NULL, &got);
    t->is_retaken = false;
    return st;
}

status embed_step_rows(embed_table *t, const float *grad, const embed_step_args *args) {
    if (t->is_direct) return embed_update(t, grad, args);
    float *by_key = t->d.moved; /* it has room for (U, n_floats) */
    TRY(order_by_key(t, grad, by_key));
    return embed_update(t, by_key, args);
}
