
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/log.h"
#include "nn/dynamic_int.h"
#include "nn/input.h"

/* Where no more ids than a quarter of the slots can come, no bucket fills up: slots beyond that
 * would only take memory. */
enum { SLOTS_PER_ID = 4 };

/* ---- which ----------------------------------------------------------------------------------- */

static bool has_feature(const config_embedding *e, const char *name) {
    for (size_t i = 0; i < e->feature_names.n; i++)
        if (strcmp(e->feature_names.item[i], name) == 0) return true;
    return false;
}

/* The names of the feature that holds the items: the config's for generated data, else those of the
 * reference's data sets, and a plain one. */
static bool is_item_table(const config *c, const config_embedding *e) {
    if (c->is_benchmark) return has_feature(e, c->benchmark.item_feature);
    return has_feature(e, "movie_id") || has_feature(e, "video_id") || has_feature(e, "item");
}

/* The feature of a table; false: the data have none of that name. */
static bool feature_of(const config *c, const config_embedding *e, const model_limits *l,
                       int32_t *out) {
    *out = ITEM_FEATURE;
    if (is_item_table(c, e)) return true;
    for (*out = 0; *out < l->n_context && l->context_names != NULL; ++*out)
        if (has_feature(e, l->context_names[*out])) return true;
    return false;
}

static int32_t at_most(int64_t n, int64_t most) {
    return (int32_t)(n < most ? n : most);
}

static status choose_table(dynamic_table *t, const config *c, model_limits *l,
                           int32_t *n_context_values, nn_memory *memory) {
    bool is_item = t->feature == ITEM_FEATURE;
    int64_t n_micro = c->trainer.accumulation_steps > 1 ? c->trainer.accumulation_steps : 1;
    int64_t n_users = n_micro * l->max_users;
    int32_t *n = is_item ? &l->n_items : &n_context_values[t->feature];
    t->first = is_item ? 1 : 0;
    t->last = is_item ? *n : *n - 1;
    t->max_rows = at_most(*n, is_item ? n_users * l->max_events : n_users);
    *n = t->max_rows;
    TRY(NN_NEW_HOST(memory, &t->seen, t->last / DYNAMIC_WORD_BITS + 1));
    TRY(NN_NEW_HOST(memory, &t->place, (int64_t)t->last + 1));
    TRY(NN_NEW_HOST(memory, &t->has_no_row, t->max_rows));
    return NN_NEW_HOST(memory, &t->ids, t->max_rows);
}

static bool is_action_table(const config *c, const config_embedding *e) {
    if (c->is_benchmark)
        return c->benchmark.action_feature != NULL && has_feature(e, c->benchmark.action_feature);
    return has_feature(e, "rating") || has_feature(e, "action_weights");
}

static status check_table(const config *c, const config_embedding *e) {
    if (!is_action_table(c, e)) return OK;
    return fail(ERR_CONFIG,
                "%s: %.100s/DynamicEmbeddingArgs is of actions, which are few and known, and their "
                "table is not dynamic; name @%.100s/EmbeddingArgs() instead",
                c->file, e->scope, e->scope);
}

status dynamic_choose(dynamic_tables *d, const config *c, model_limits *l,
                      int32_t *n_context_values, nn_memory *memory) {
    d->be = memory->be;
    d->max_users = l->max_users;
    d->max_tokens = (int64_t)l->max_users * l->max_events;
    TRY(NN_NEW_HOST(memory, &d->item, (int64_t)c->embeddings.n));
    for (size_t i = 0; i < c->embeddings.n; i++) {
        const config_embedding *e = &c->embeddings.item[i];
        dynamic_table *t = &d->item[d->n];
        if (!e->is_dynamic) continue;
        TRY(check_table(c, e));
        if (!feature_of(c, e, l, &t->feature)) {
            log_info("note: %s: the data have no feature of the table '%s', so it is not made",
                     c->file, e->table_name);
            continue;
        }
        if (dynamic_find(d, t->feature) != NULL)
            return fail(ERR_CONFIG,
                        "%s: the tables '%s' and '%s' are of one feature; leave one out", c->file,
                        dynamic_find(d, t->feature)->config->table_name, e->table_name);
        t->config = e;
        d->n++;
        TRY(choose_table(t, c, l, n_context_values, memory));
    }
    if (d->n == 0) return OK;
    TRY(NN_NEW_HOST(memory, &d->items, d->max_tokens));
    return NN_NEW_HOST(memory, &d->context, d->max_users * l->n_context);
}

dynamic_table *dynamic_find(dynamic_tables *d, int32_t feature) {
    for (int i = 0; i < d->n; i++)
        if (d->item[i].feature == feature) return &d->item[i];
    return NULL;
}

void dynamic_fini(dynamic_tables *d) {
    for (int i = 0; i < d->n; i++) {
        embed_destroy(d->item[i].table);
        dynamic_close_store(&d->item[i]);
    }
    *d = (dynamic_tables){0};
}

/* ---- making ---------------------------------------------------------------------------------- */

/* Rows in memory of the device, of all slots: the first of three options that is bound. */
static int64_t rows_on_device(const config_embedding *e, int64_t row_bytes) {
    double n = (double)e->capacity;
    if (e->hbm_bytes != CONFIG_NONE)
        n = (double)(e->hbm_bytes / row_bytes);
    else if (!isnan(e->gpu_capacity))
        n = e->gpu_capacity;
    else if (!isnan(e->gpu_capacity_ratio))
        n *= e->gpu_capacity_ratio;
    return n < (double)e->capacity ? (int64_t)n : e->capacity;
}

static void set_levels(embed_config *out, const dynamic_table *t) {
    const config_embedding *e = t->config;
    int64_t n_ids = (int64_t)t->last - t->first + 1, enough = n_ids * SLOTS_PER_ID;
    int64_t n_slots = e->capacity < enough ? e->capacity : enough;
    int64_t n_floats = t->dim + table_n_state(out->opt, t->dim);
    int64_t n_device = rows_on_device(e, n_floats * (int64_t)sizeof(float));
    out->is_on_host = n_device == 0;
    out->capacity[0] = n_device == 0 || n_device > n_slots ? n_slots : n_device;
    out->capacity[1] = n_slots - out->capacity[0];
    log_info("table '%s': dynamic, %s; %" PRId64 " slots on the %s and %" PRId64
             " below for the %" PRId64 " ids of the data (the config allows %" PRId64 ")",
             e->table_name, e->evict == EVICT_LRU ? "lru" : "lfu", out->capacity[0],
             out->is_on_host ? "host" : "device", out->capacity[1], n_ids, e->capacity);
    if (n_slots < t->max_rows)
        log_info("note: table '%s': a step may have %d different ids, more than slots; those that "
                 "find no place are not trained. Raise item_vocab_size_or_capacity, or lower the "
                 "batch size",
                 e->table_name, t->max_rows);
}

status dynamic_attach(dynamic_tables *d, dynamic_table *t, const config *c, const param *p,
                      nn_memory *memory) {
    static const row_opt opts[] = {[OPTIMIZER_ADAM] = ROW_ADAM,
                                   [OPTIMIZER_SGD] = ROW_SGD,
                                   [OPTIMIZER_ROW_WISE_ADAGRAD] = ROW_ROWWISE_ADAGRAD};
    t->dim = (int32_t)p->shape[1];
    t->value = p->value + (int64_t)t->first * t->dim;
    t->grad = p->grad + (int64_t)t->first * t->dim;
    if (t->config->evict == EVICT_LFU) TRY(NN_NEW_HOST(memory, &t->uses, t->max_rows));
    embed_config e = {.dim = t->dim,
                      .opt = opts[c->optimizer.kind],
                      .policy = t->config->evict == EVICT_LFU ? POLICY_LFU : POLICY_LRU,
                      .max_batch = t->max_rows,
                      .seed = init_table_seed((uint64_t)c->trainer.seed, INPUT_TABLE(t->feature)),
                      .first = FIRST_UNIFORM,
                      .first_scale = INPUT_TABLE_SCALE};
    set_levels(&e, t);
    TRY(dynamic_open_store(t, t->dim + table_n_state(e.opt, t->dim),
                           c->trainer.pipeline == PIPELINE_PREFETCH, memory));
    e.store = t->ahead != NULL ? t->ahead : t->store;
    return embed_create(&t->table, d->be, &e);
}

/* ---- a batch --------------------------------------------------------------------------------- */

id_list dynamic_list_of(const dynamic_tables *d, const dynamic_table *t, const batch *b) {
    if (t->feature == ITEM_FEATURE) return (id_list){b->item, d->items, b->n_tokens, 1};
    return (id_list){b->context + t->feature, d->context + t->feature, b->n_users, b->n_context};
}

status dynamic_check_ids(const dynamic_table *t, const id_list *l) {
    for (int64_t i = 0; i < l->n; i++) {
        uint32_t id = l->from[i * l->stride];
        if (id < (uint32_t)t->first || id > (uint32_t)t->last)
            return fail(ERR_FORMAT,
                        "the data have the id %u for the table '%s', but the model knows %d..%d: "
                        "these are not the data it was made for",
                        id, t->config->table_name, t->first, t->last);
    }
    return OK;
}

/* Appends the ids that are new in this step in ascending order, so that what depends on their order
 * is as with a static table.  Walking over the bits of all ids needs no sort and leaves them 0. */
static status append_ids(dynamic_table *t, const id_list *l) {
    status st = OK;
    for (int64_t i = 0; i < l->n; i++) {
        uint32_t id = l->from[i * l->stride];
        if (t->place[id] == 0) t->seen[id / DYNAMIC_WORD_BITS] |= 1ull << id % DYNAMIC_WORD_BITS;
    }
    for (int64_t word = 0; word <= t->last / DYNAMIC_WORD_BITS; word++) {
        for (uint64_t bits = t->seen[word]; bits != 0; bits &= bits - 1) {
            int64_t id = word * DYNAMIC_WORD_BITS + __builtin_ctzll(bits);
            if (t->n == t->max_rows) {
                st = fail(ERR_USAGE, "more batches without an update than the model was made for");
                break;
            }
            t->ids[t->n++] = (uint64_t)id;
            t->place[id] = (int32_t)t->n;
        }
        t->seen[word] = 0;
    }
    return st;
}

static void forget_ids(dynamic_table *t) {
    for (int64_t i = 0; i < t->n; i++)
        t->place[t->ids[i]] = 0;
    memset(t->has_no_row, 0, (size_t)t->n);
    t->n = t->n_rejected = 0;
}

void dynamic_forget(dynamic_tables *d) {
    for (int i = 0; i < d->n; i++)
        forget_ids(&d->item[i]);
    d->n_taken = 0;
}

/* Notes which of the ids of a batch for training have no row, and counts those of another. */
static void note_missing(dynamic_table *t, const embed_batch *got, bool is_training, int64_t n) {
    if (!is_training) {
        t->n_read += n;
        t->n_absent += got->n_absent;
        return;
    }
    t->n_rejected += got->n_rejected;
    for (int64_t i = 0; i < got->n_rejected; i++)
        t->has_no_row[t->place[got->rejected[i]] - 1] = 1;
}

status dynamic_check_size(const dynamic_tables *d, const batch *b) {
    if (b->n_users <= d->max_users && b->n_tokens <= d->max_tokens) return OK;
    return fail(ERR_CONFIG,
                "a batch of %d users with %d events; the model was made for %lld with %lld",
                b->n_users, b->n_tokens, (long long)d->max_users, (long long)d->max_tokens);
}

/* Columns of contextual values that keep their ids, and items where they do. */
static void copy_ids(dynamic_tables *d, const batch *b) {
    size_t n_context = (size_t)b->n_users * (size_t)b->n_context;
    memcpy(d->items, b->item, (size_t)b->n_tokens * sizeof *d->items);
    if (n_context > 0) memcpy(d->context, b->context, n_context * sizeof *d->context);
    d->numbered = *b;
    d->numbered.item = d->items;
    d->numbered.context = d->context;
}

/* The ids' numbers for the passes; lfu counts how often each new one is used. */
static void number_ids(dynamic_table *t, const id_list *l, int64_t first) {
    if (t->uses != NULL) memset(t->uses + first, 0, (size_t)(t->n - first) * sizeof *t->uses);
    for (int64_t i = 0; i < l->n; i++) {
        int32_t place = t->place[l->from[i * l->stride]];
        l->to[i * l->stride] = (uint32_t)(t->first + place - 1);
        if (t->uses != NULL && place > first) t->uses[place - 1]++;
    }
}

static status take_table(dynamic_tables *d, dynamic_table *t, const batch *b, bool is_training) {
    const embed_batch *got;
    id_list l = dynamic_list_of(d, t, b);
    int64_t first = t->n;
    TRY(dynamic_check_ids(t, &l));
    TRY(append_ids(t, &l));
    number_ids(t, &l, first);
    int64_t n = t->n - first, at = first * t->dim;
    size_t bytes = (size_t)n * (size_t)t->dim * sizeof *t->grad;
    if (n == 0) return OK;
    const uint64_t *uses = t->uses != NULL && is_training ? t->uses + first : NULL;
    TRY(embed_take_rows(t->table, is_training, n, t->ids + first, uses, t->value + at, &got));
    note_missing(t, got, is_training, n);
    if (!is_training) return OK;
    return d->be->ops->zero(d->be, t->grad + at, bytes);
}

status dynamic_take(dynamic_tables *d, const batch *b, bool is_training, const batch **out) {
    *out = b;
    if (d->n == 0) return OK;
    TRY(dynamic_check_size(d, b));
    if (!is_training || d->n_taken == 0) dynamic_forget(d);
    copy_ids(d, b);
    for (int i = 0; i < d->n; i++)
        TRY(take_table(d, &d->item[i], b, is_training));
    d->n_taken += is_training;
    *out = &d->numbered;
    return OK;
}

const uint8_t *dynamic_missing_items(dynamic_tables *d) {
    dynamic_table *t = dynamic_find(d, ITEM_FEATURE);
    return t != NULL && t->n_rejected > 0 ? t->has_no_row : NULL;
}

/* Which of the items from `id` on have a row: appends them to `item`, numbers them in `row`. */
static status list_items(dynamic_table *t, int64_t id, int64_t n_ids, int32_t *item, int32_t *row,
                         int32_t *n) {
    uint8_t *is_found = t->has_no_row; /* its memory, until it is all 0 again */
    for (int64_t i = 0; i < n_ids; i++)
        t->ids[i] = (uint64_t)(id + i);
    TRY(embed_find(t->table, n_ids, t->ids, 0, NULL, is_found));
    for (int64_t i = 0; i < n_ids; i++) {
        row[id + i] = is_found[i] ? *n : -1;
        if (is_found[i]) item[(*n)++] = (int32_t)(id + i);
    }
    memset(is_found, 0, (size_t)n_ids);
    return OK;
}

status dynamic_read_items(dynamic_tables *d, float *rows, int32_t *item, int32_t *row, int32_t *n) {
    dynamic_table *t = dynamic_find(d, ITEM_FEATURE);
    const embed_batch *got;
    int64_t n_ids, n_listed;
    dynamic_forget(d); /* `ids` has room for others now */
    *n = 0;
    row[0] = -1;
    for (int64_t id = t->first; id <= t->last; id += n_ids) {
        n_ids = at_most((int64_t)t->last + 1 - id, t->max_rows);
        int32_t first = *n;
        TRY(list_items(t, id, n_ids, item, row, n));
        n_listed = *n - first;
        for (int64_t i = 0; i < n_listed; i++)
            t->ids[i] = (uint64_t)item[first + i];
        if (n_listed > 0)
            TRY(embed_take_rows(t->table, false, n_listed, t->ids, NULL,
                                rows + (int64_t)first * t->dim, &got));
    }
    return OK;
}

void dynamic_begin_reads(dynamic_tables *d) {
    for (int i = 0; i < d->n; i++)
        d->item[i].n_read = d->item[i].n_absent = 0;
}

/* ---- updates --------------------------------------------------------------------------------- */

status dynamic_add_squares(dynamic_tables *d, double *sum) {
    for (int i = 0; i < d->n && d->n_taken > 0; i++)
        TRY(d->be->ops->sum_squares(d->be, d->item[i].n * d->item[i].dim, d->item[i].grad, sum));
    return OK;
}

/* The table updates what it took last: of several batches that is not all.  What went down to the
 * store meanwhile has to come up again, for rows are stepped in the levels alone. */
static status update_table(dynamic_table *t, const embed_step_args *args, bool is_whole) {
    const embed_batch *got;
    if (t->n == 0) return OK;
    if (!is_whole) TRY(embed_take_rows(t->table, t->store != NULL, t->n, t->ids, NULL, NULL, &got));
    if (args->step > embed_step(t->table)) TRY(embed_set_step(t->table, args->step));
    return embed_step_rows(t->table, t->grad, args);
}

status dynamic_update(dynamic_tables *d, const embed_step_args *args) {
    for (int i = 0; i < d->n && d->n_taken > 0; i++)
        TRY(update_table(&d->item[i], args, d->n_taken == 1));
    dynamic_forget(d);
    return OK;
}

status dynamic_clear(dynamic_tables *d) {
    dynamic_forget(d);
    for (int i = 0; i < d->n; i++)
        TRY(embed_clear(d->item[i].table));
    return OK;
}

/* ---- news ------------------------------------------------------------------------------------ */

static embed_counts subtract(const embed_counts *now, const embed_counts *then) {
    embed_counts c = {.n_new = now->n_new - then->n_new,
                      .n_refused = now->n_refused - then->n_refused,
                      .n_rejected = now->n_rejected - then->n_rejected,
                      .n_evicted = now->n_evicted - then->n_evicted,
                      .n_expired = now->n_expired - then->n_expired,
                      .n_written = now->n_written - then->n_written};
    for (int i = 0; i < EMBED_TIERS; i++)
        c.hits[i] = now->hits[i] - then->hits[i];
    for (int i = 0; i < EMBED_LEVELS; i++)
        c.n_demoted[i] = now->n_demoted[i] - then->n_demoted[i];
    return c;
}

status dynamic_news(dynamic_table *t, dynamic_state *out) {
    const embed_config *c = embed_config_of(t->table);
    TRY(embed_catch_up(t->table));
    *out = (dynamic_state){.since = subtract(embed_counts_of(t->table), &t->told)};
    for (int i = 0; i < EMBED_LEVELS; i++)
        out->n_slots += (c->capacity[i] + TABLE_SLOTS - 1) / TABLE_SLOTS * TABLE_SLOTS;
    t->told = *embed_counts_of(t->table);
    out->has_store = c->store != NULL;
    for (int i = 0; i < EMBED_LEVELS; i++) {
        int64_t n;
        TRY(embed_tier_size(t->table, i, &n));
        out->n_rows += n;
    }
    return OK;
}

uint64_t dynamic_bytes(const dynamic_tables *d) {
    uint64_t n = 0;
    for (int i = 0; i < d->n; i++) {
        const embed_config *c = embed_config_of(d->item[i].table);
        n += (uint64_t)(c->capacity[0] + c->capacity[1]) *
             (uint64_t)embed_n_floats(d->item[i].table);
    }
    return n * sizeof(float);
}
