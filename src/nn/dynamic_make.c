/* From a config to the dynamic tables of a model: which features have one, their sizes, and their
 * stores on disk.
 *
 * A checkpoint holds the rows of the store too, so the store need not outlive the model: it has a
 * folder of its own, which is removed with the model.  The next process removes the files of a
 * killed one. */
#include "embed/snapshot.h"
#include "nn/dynamic_int.h"
#include "nn/input.h"

/* With 5 slots for 2 ids a bucket of 64 slots fills up with a probability of 6e-11 (Poisson, mean
 * 25.6): more slots would only waste memory. */
enum { SLOTS = 5, SLOTS_IDS = 2 };

/* The names of the feature that holds the items: the config's for generated data, else those of the
 * reference's data sets, and a plain one. */
static bool is_item_name(const config *c, const char *name) {
    if (c->is_benchmark) return strcmp(name, c->benchmark.item_feature) == 0;
    return strcmp(name, "movie_id") == 0 || strcmp(name, "video_id") == 0 ||
           strcmp(name, "item") == 0;
}

bool dynamic_feature_of(const config *c, const char *name, const model_limits *l, int32_t *out) {
    *out = ITEM_FEATURE;
    if (is_item_name(c, name)) return true;
    for (*out = 0; *out < l->n_context && l->context_names != NULL; ++*out)
        if (strcmp(name, l->context_names[*out]) == 0) return true;
    return false;
}

static int32_t at_most(int64_t n, int64_t most) {
    return (int32_t)(n < most ? n : most);
}

status dynamic_choose_feature(dynamic_table *t, const config *c, model_limits *l,
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
        return c->benchmark.action_feature != NULL &&
               config_has_text(&e->feature_names, c->benchmark.action_feature);
    return config_has_text(&e->feature_names, "rating") ||
           config_has_text(&e->feature_names, "action_weights");
}

static status check_table(const config *c, const config_embedding *e) {
    if (!is_action_table(c, e)) return OK;
    return fail(ERR_CONFIG,
                "%s: %.100s/DynamicEmbeddingArgs is of actions, which are few and known, and their "
                "table is not dynamic; name @%.100s/EmbeddingArgs() instead",
                c->file, e->scope, e->scope);
}

/* The features of one table that are in the data.  Each has its own keys, since the same number
 * means different things in different features. */
static status choose_features(dynamic_tables *d, const config *c, const config_embedding *e,
                              model_limits *l, int32_t *n_context_values, nn_memory *memory) {
    dynamic_table *owner = NULL;
    for (size_t i = 0; i < e->feature_names.n; i++) {
        dynamic_table *t = &d->item[d->n];
        if (!dynamic_feature_of(c, e->feature_names.item[i], l, &t->feature)) continue;
        const dynamic_table *other = dynamic_find(d, t->feature);
        if (other != NULL)
            return fail(ERR_CONFIG,
                        "%s: the tables '%s' and '%s' are of one feature; leave one out", c->file,
                        other->config->table_name, e->table_name);
        if (owner == NULL) owner = t;
        t->config = e;
        t->name = e->table_name;
        t->owner = owner;
        owner->n_features++;
        if (e->feature_names.n > 1) t->key_tag = (uint64_t)INPUT_TABLE(t->feature) << 32;
        d->n_all = ++d->n;
        TRY(dynamic_choose_feature(t, c, l, n_context_values, memory));
    }
    if (owner == NULL)
        log_info("note: %s: the data have no feature of the table '%s', so it is not made%s",
                 c->file, e->table_name,
                 config_has_text(&e->feature_names, "user_id")
                     ? "; of public data sets 'hstu prep' writes it now: prepare those again"
                     : "");
    return OK;
}

status dynamic_choose(dynamic_tables *d, const config *c, model_limits *l,
                      int32_t *n_context_values, nn_memory *memory) {
    int64_t n_most = 0;
    d->be = memory->be;
    d->is_host_memory = d->be->is_host;
    d->has_bf16_wire = l->has_bf16_wire && d->is_host_memory;
    d->reads_whole = c->task == TASK_RETRIEVAL; /* negatives are from the whole batch */
    if (l->comm != NULL && l->comm->size > 1) d->comm = l->comm;
    d->max_users = l->max_users;
    d->max_tokens = (int64_t)l->max_users * l->max_events;
    for (size_t i = 0; i < c->embeddings.n; i++)
        n_most += (int64_t)c->embeddings.item[i].feature_names.n;
    /* One is for a feature not found, and each feature may have a static table. */
    TRY(NN_NEW_HOST(memory, &d->item, n_most + 2 + l->n_context));
    for (size_t i = 0; i < c->embeddings.n; i++) {
        const config_embedding *e = &c->embeddings.item[i];
        if (!e->is_dynamic) continue;
        TRY(check_table(c, e));
        TRY(choose_features(d, c, e, l, n_context_values, memory));
    }
    TRY(dynamic_choose_static(d, c, l, n_context_values, memory));
    if (d->n_all == 0) d->comm = NULL;
    if (d->n_all == 0) return OK;
    if (d->comm != NULL) TRY(dynamic_make_ranks(d, memory));
    TRY(NN_NEW_HOST(memory, &d->items, d->max_tokens));
    return NN_NEW_HOST(memory, &d->context, d->max_users * l->n_context);
}

/* The folder may be on another machine, where the model was trained. */
static status make_folder(dynamic_table *t) {
    status st = scratch_folder_create(&t->folder, t->config->store_folder, "hstu-table-");
    if (st == OK) return OK;
    return fail_prefix(st,
                       "the store_folder of the table '%s' cannot be used; make it, or a link of "
                       "its name to a folder that can",
                       t->config->table_name);
}

/* Opens the store, if the config names one. */
static status open_store(dynamic_table *t, int32_t n_floats, bool reads_ahead) {
    if (t->config->store_folder == NULL) return OK;
    TRY(make_folder(t));
    TRY(embed_store_open_file(&t->store, scratch_folder_path(t->folder), n_floats));
    log_info("table '%s': rows beyond that go to %s%s", t->config->table_name,
             scratch_folder_path(t->folder), reads_ahead ? ", and are read ahead" : "");
    t->reads_ahead = reads_ahead;
    return OK;
}

static void close_store(dynamic_table *t) {
    embed_store_destroy(t->store);
    scratch_folder_destroy(t->folder);
}

dynamic_table *dynamic_find(dynamic_tables *d, int32_t feature) {
    for (int i = 0; i < d->n_all; i++)
        if (d->item[i].feature == feature) return &d->item[i];
    return NULL;
}

void dynamic_fini(dynamic_tables *d) {
    for (int i = 0; i < d->n; i++) {
        if (!dynamic_is_owner(&d->item[i])) continue;
        embed_destroy(d->item[i].table);
        close_store(&d->item[i]);
    }
    dynamic_free_buffers(d);
    *d = (dynamic_tables){0};
}

/* Rows in device memory, out of all slots: from the first of three options that is set. */
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

/* What the features of a table need together. */
typedef struct needs {
    int64_t n_ids;
    int32_t max_rows; /* of one of them */
} needs;

static needs needs_of(const dynamic_tables *d, const dynamic_table *owner) {
    needs n = {0};
    for (int i = 0; i < d->n; i++) {
        const dynamic_table *t = &d->item[i];
        if (t->owner != owner) continue;
        n.n_ids += (int64_t)t->last - t->first + 1;
        if (t->max_rows > n.max_rows) n.max_rows = t->max_rows;
    }
    return n;
}

/* Slots are made by buckets. */
static int64_t n_made(int64_t n_slots) {
    return (n_slots + TABLE_SLOTS - 1) / TABLE_SLOTS * TABLE_SLOTS;
}

/* Rounds two levels up to a common number of units of buckets, so that ranks can hold them
 * together: at least as many units as ranks may be, and few enough that rounding adds at most a
 * sixteenth to a large level. */
static void align_levels(int64_t capacity[EMBED_LEVELS]) {
    enum { MIN_UNITS = 8, ROUNDING = 16 };
    int64_t n0 = n_made(capacity[0]) / TABLE_SLOTS, n1 = n_made(capacity[1]) / TABLE_SLOTS;
    int64_t least = n0 < n1 ? n0 : n1, unit = least / ROUNDING;
    if (unit < MIN_UNITS) unit = MIN_UNITS;
    if (unit > EMBED_SHARDS) unit = EMBED_SHARDS;
    if (unit > least) unit = least;
    capacity[0] = (n0 + unit - 1) / unit * unit * TABLE_SLOTS;
    capacity[1] = (n1 + unit - 1) / unit * unit * TABLE_SLOTS;
}

static void set_levels(embed_config *out, const config_embedding *e, needs n) {
    int64_t enough = (n.n_ids * SLOTS + SLOTS_IDS - 1) / SLOTS_IDS;
    int64_t n_slots = e->capacity < enough ? e->capacity : enough;
    int64_t n_floats = out->dim + optimizer_n_state(out->opt, out->dim);
    int64_t n_device = rows_on_device(e, n_floats * (int64_t)sizeof(float));
    out->max_batch = n.max_rows;
    out->is_on_host = n_device == 0;
    out->is_sparse = n_slots > 2 * n.n_ids;
    out->capacity[0] = n_device == 0 || n_device > n_slots ? n_slots : n_device;
    out->capacity[1] = n_slots - out->capacity[0];
    if (out->capacity[1] > 0) align_levels(out->capacity);
    log_info("table '%s': dynamic, %s; %" PRId64 " slots on the %s and %" PRId64
             " below for the %" PRId64 " ids of the data (the config allows %" PRId64 ")",
             e->table_name, embed_policy_name(out->policy), n_made(out->capacity[0]),
             out->is_on_host ? "host" : "device", n_made(out->capacity[1]), n.n_ids, e->capacity);
    if (n_made(out->capacity[0]) + n_made(out->capacity[1]) < n.max_rows)
        log_info("note: table '%s': a step may have %d different ids, more than slots; those that "
                 "find no place are not trained. Raise item_vocab_size_or_capacity, or lower the "
                 "batch size",
                 e->table_name, n.max_rows);
}

static status create_table(dynamic_tables *d, dynamic_table *t, const config *c) {
    static const opt_kind opts[] = {[OPTIMIZER_ADAM] = OPT_ADAMW,
                                    [OPTIMIZER_SGD] = OPT_SGD,
                                    [OPTIMIZER_ROW_WISE_ADAGRAD] = OPT_ROWWISE_ADAGRAD,
                                    [OPTIMIZER_ADAGRAD] = OPT_ADAGRAD};
    static const embed_policy policies[] = {[STRATEGY_LRU] = POLICY_LRU,
                                            [STRATEGY_LFU] = POLICY_LFU,
                                            [STRATEGY_STEP] = POLICY_STEP,
                                            [STRATEGY_NONE] = POLICY_NONE};
    embed_config e = {.dim = t->dim,
                      .opt = opts[c->optimizer.kind],
                      .policy = policies[t->config->evict],
                      .seed = init_table_seed((uint64_t)c->trainer.seed, INPUT_TABLE(t->feature)),
                      .first = FIRST_UNIFORM,
                      .first_scale = INPUT_TABLE_SCALE,
                      .admit_count = (uint32_t)t->config->admission_threshold,
                      .admit_rate = (float)t->config->admission_probability,
                      .ttl = (uint32_t)t->config->steps_to_live,
                      .comm = d->comm};
    needs n = needs_of(d, t);
    set_levels(&e, t->config, n);
    TRY(open_store(t, t->dim + optimizer_n_state(e.opt, t->dim),
                   c->trainer.pipeline == PIPELINE_PREFETCH));
    e.store = t->store;
    status st = embed_create(&t->table, d->be, &e);
    if (st == OK) embed_count_absent(t->table, false); /* until dynamic_begin_reads */
    return st == ERR_CONFIG ? fail_prefix(st, "table '%s'", t->config->table_name) : st;
}

status dynamic_attach(dynamic_tables *d, dynamic_table *t, const config *c, const param *p,
                      nn_memory *memory) {
    t->dim = (int32_t)p->shape[1];
    t->value = p->value + (int64_t)t->first * t->dim;
    if (t->config->evict == STRATEGY_LFU || t->config->admission_threshold > 1)
        TRY(NN_NEW_HOST(memory, &t->uses, t->max_rows));
    if (d->is_host_memory) TRY(NN_NEW_HOST(memory, &t->squares, t->max_rows));
    if (d->comm != NULL) TRY(dynamic_make_holders(t, memory));
    if (dynamic_is_owner(t)) TRY(create_table(d, t, c));
    if (t->dim != t->owner->dim)
        return fail(ERR_CONFIG,
                    "%s: the features of the table '%s' are %d and %d wide; bind a table for each",
                    c->file, t->config->table_name, t->owner->dim, t->dim);
    t->table = t->owner->table;
    if (t->owner->reads_ahead) TRY(NN_NEW_HOST(memory, &t->coming, t->max_rows));
    return OK;
}

bool dynamic_reads_ahead(const dynamic_tables *d) {
    for (int i = 0; i < d->n; i++)
        if (d->item[i].reads_ahead) return true;
    return false;
}

/* t->coming = the distinct ids of a batch that a rank holds (-1: all), ascending; it has room for
 * those of any batch of known ids and size.  Returns their number. */
static int64_t list_coming(dynamic_table *t, const id_list *l, int rank) {
    int64_t n_held = 0, n = dynamic_list_ids(t, l, false, t->max_rows, t->coming);
    for (int64_t i = 0; i < n; i++)
        if (rank < 0 || embed_rank_of(t->table, t->coming[i]) == rank)
            t->coming[n_held++] = t->coming[i];
    return n_held;
}

status dynamic_announce(dynamic_tables *d, const batch *b) {
    TRY(dynamic_check_size(d, b));
    for (int i = 0; i < d->n; i++) {
        dynamic_table *t = &d->item[i];
        id_list l = dynamic_list_of(d, t, b);
        if (!t->owner->reads_ahead) continue;
        TRY(dynamic_check_ids(t, &l));
        TRY(embed_prefetch(t->table, list_coming(t, &l, d->comm != NULL ? d->comm->rank : -1),
                           t->coming));
    }
    return OK;
}
