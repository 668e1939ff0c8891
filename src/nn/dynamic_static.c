/* Static tables that ranks hold together (dynamic.h): every id has a row, and a rank has the rows
 * of its shards as a parameter, with gradient and optimizer state like any other.  The rows of a
 * batch travel as those of dynamic tables do. */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "nn/dynamic_int.h"
#include "ops/comm.h"
#include "ops/row_moves.h"

/* A table that the config does not mention is held in shards from this size on. */
enum { LARGE_BYTES = 64 << 20 };

/* The config's static table of a feature, or NULL. */
static const config_embedding *find_config(const config *c, const model_limits *l,
                                           int32_t feature) {
    for (size_t i = 0; i < c->embeddings.n; i++) {
        const config_embedding *e = &c->embeddings.item[i];
        for (size_t k = 0; k < e->feature_names.n && !e->is_dynamic; k++) {
            int32_t found;
            if (dynamic_feature_of(c, e->feature_names.item[k], l, &found) && found == feature)
                return e;
        }
    }
    return NULL;
}

static int64_t width_of(const config *c, int32_t feature) {
    int64_t own = feature == ITEM_FEATURE ? c->network.item_dim : c->network.contextual_dim;
    return own > 0 ? own : c->network.hidden_size;
}

/* What needs all rows of a table on every rank: negatives from the whole catalogue; in-batch
 * negatives of several batches a step, which are drawn in the order of the ids; the norm of a
 * gradient that has all rows; a run that starts from another. */
static bool needs_copies(const config *c, int32_t feature) {
    bool is_dense = c->family == FAMILY_META;
    bool has_start = c->trainer.resume_folder != NULL && c->trainer.resume_folder[0] != '\0';
    if (has_start || (is_dense && c->trainer.clip_grad > 0)) return true;
    if (c->task != TASK_RETRIEVAL || feature != ITEM_FEATURE) return false;
    return c->retrieval.negatives != NEGATIVES_IN_BATCH || c->trainer.accumulation_steps > 1;
}

static bool is_in_shards(const config *c, const model_limits *l, int32_t feature, int64_t n_rows) {
    const config_embedding *e = find_config(c, l, feature);
    int64_t bytes = n_rows * width_of(c, feature) * (int64_t)sizeof(float);
    bool is_asked = e != NULL ? e->sharding == SHARDING_MODEL_PARALLEL : bytes >= LARGE_BYTES;
    if (!is_asked) return false;
    if (!needs_copies(c, feature)) return true;
    log_info("note: every rank has a copy of the %s table: %s",
             feature == ITEM_FEATURE ? "item" : "contextual",
             c->trainer.resume_folder != NULL && c->trainer.resume_folder[0] != '\0'
                 ? "the run starts from another"
                 : "its negatives, or the norm of its gradient, need all rows");
    return false;
}

static const char *name_of(const config *c, const model_limits *l, int32_t feature) {
    const config_embedding *e = find_config(c, l, feature);
    if (e != NULL) return e->table_name;
    if (feature == ITEM_FEATURE) return "item";
    return l->context_names != NULL ? l->context_names[feature] : "context";
}

/* The rows of this rank, and where each is. */
static status list_rows(const dynamic_tables *d, dynamic_table *t, nn_memory *memory) {
    int64_t n = 0;
    for (int64_t id = 0; id <= t->last; id++)
        n += dynamic_rank_of_row((uint64_t)id, d->comm->size) == d->comm->rank;
    TRY(NN_NEW_HOST(memory, &t->rows, n));
    TRY(NN_NEW_HOST(memory, &t->own_row, (int64_t)t->last + 1));
    t->n_own = 0;
    for (int32_t id = 0; id <= t->last; id++) {
        t->own_row[id] = -1;
        if (dynamic_rank_of_row((uint64_t)id, d->comm->size) != d->comm->rank) continue;
        t->own_row[id] = (int32_t)t->n_own;
        t->rows[t->n_own++] = id;
    }
    return NN_NEW_HOST(memory, &t->index, t->max_rows);
}

/* Tables that are asked to be in shards, but have neither items nor a contextual feature: those of
 * actions, which are few. */
static void tell_others(const config *c, const model_limits *l) {
    for (size_t i = 0; i < c->embeddings.n; i++) {
        const config_embedding *e = &c->embeddings.item[i];
        bool is_asked = !e->is_dynamic && e->sharding == SHARDING_MODEL_PARALLEL, is_used = false;
        for (size_t k = 0; k < e->feature_names.n && is_asked; k++) {
            int32_t found;
            is_used = is_used || dynamic_feature_of(c, e->feature_names.item[k], l, &found);
        }
        if (is_asked && !is_used)
            log_info("note: every rank has a copy of the %.100s table: only tables of items and of "
                     "contextual features can be divided by sharding_type = 'model_parallel'",
                     e->table_name);
    }
}

status dynamic_choose_static(dynamic_tables *d, const config *c, model_limits *l,
                             int32_t *n_context_values, nn_memory *memory) {
    d->n_all = d->n;
    if (d->comm != NULL) tell_others(c, l);
    for (int32_t f = ITEM_FEATURE; f < l->n_context && d->comm != NULL; f++) {
        int64_t n_rows = f == ITEM_FEATURE ? (int64_t)l->n_items + 1 : n_context_values[f];
        if (dynamic_find(d, f) != NULL || !is_in_shards(c, l, f, n_rows)) continue;
        dynamic_table *t = &d->item[d->n_all++];
        t->feature = f;
        t->owner = t;
        t->n_features = 1;
        t->name = name_of(c, l, f);
        TRY(dynamic_choose_feature(t, c, l, n_context_values, memory));
        TRY(list_rows(d, t, memory));
    }
    return OK;
}

status dynamic_attach_static(dynamic_tables *d, dynamic_table *t, const param *p, param *own,
                             nn_memory *memory) {
    t->dim = (int32_t)p->shape[1];
    t->value = p->value + (int64_t)t->first * t->dim;
    t->own = own;
    if (d->is_host_memory) TRY(NN_NEW_HOST(memory, &t->squares, t->max_rows));
    TRY(NN_NEW(memory, &t->own_marks, t->max_rows));
    return dynamic_make_holders(t, memory);
}

/* t->index = where the rows of n ids that this rank holds are in its parameter. */
static const int32_t *index_rows(const dynamic_table *t, int64_t n, const uint64_t *ids) {
    for (int64_t i = 0; i < n; i++)
        t->index[i] = t->own_row[(uint32_t)ids[i]];
    return t->index;
}

status dynamic_take_static(dynamic_tables *d, const dynamic_table *t, int64_t n,
                           const uint64_t *ids, float *rows) {
    for (int64_t at = 0, piece; at < n; at += piece) {
        piece = n - at < t->max_rows ? n - at : t->max_rows;
        TRY(dynamic_move_rows(d, t, piece, index_rows(t, piece, ids + at), rows + at * t->dim,
                              t->own->value, false));
    }
    return OK;
}

/* Bytes by the list that the rows were moved by last. */
static status move_marks(dynamic_tables *d, int64_t n, const int32_t *number, uint8_t *packed,
                         uint8_t *marks, bool is_put) {
    row_moves a = {.n = n,
                   .row_bytes = 1,
                   .index = d->is_host_memory ? number : d->index.memory,
                   .picked = packed,
                   .rows = marks};
    return is_put ? row_moves_put(d->be, &a) : row_moves_pick(d->be, &a);
}

/* Gradients and marks of this rank's rows of the step, from the batch's memory to the parameter's,
 * which is zero there.  Rows without a mark are zeros on both sides; so nothing needs to be known
 * here, and a GPU need not be waited for. */
static status put_grads(dynamic_tables *d, dynamic_table *t) {
    const dynamic_holders *h = &t->held;
    bool has_marks = t->marks != NULL && t->own->marks != NULL;
    if (h->n == 0) return OK;
    TRY(dynamic_move_rows(d, t, h->n, h->own, h->rows, t->grad, false));
    if (has_marks) TRY(move_marks(d, h->n, h->own, t->own_marks, t->marks, false));
    const int32_t *places = index_rows(t, h->n, h->ids);
    TRY(dynamic_move_rows(d, t, h->n, places, h->rows, t->own->grad, true));
    return has_marks ? move_marks(d, h->n, places, t->own_marks, t->own->marks, true) : OK;
}

status dynamic_put_grads(dynamic_tables *d) {
    for (int i = d->n; i < d->n_all && d->n_taken > 0; i++)
        TRY(put_grads(d, &d->item[i]));
    return OK;
}

typedef struct id_square {
    uint64_t id;
    double square;
} id_square;

static int by_id(const void *a, const void *b) {
    uint64_t x = ((const id_square *)a)->id, y = ((const id_square *)b)->id;
    return x < y ? -1 : x > y;
}

/* In the order of the ids, as in a table that is whole; several batches of a step each have their
 * own order. */
static status add_sorted(dynamic_tables *d, const dynamic_table *t, double *sum) {
    id_square *list;
    TRY(MEM_NEW_RAW(&list, (size_t)t->n));
    for (int64_t i = 0; i < t->n; i++)
        list[i] = (id_square){t->ids[i], t->squares[i]};
    if (d->n_taken > 1) qsort(list, (size_t)t->n, sizeof *list, by_id);
    for (int64_t i = 0; i < t->n; i++)
        *sum += list[i].square;
    mem_free(list);
    return OK;
}

status dynamic_add_static_squares(dynamic_tables *d, const param *own, double *sum) {
    for (int i = d->n; i < d->n_all && d->n_taken > 0; i++) {
        dynamic_table *t = &d->item[i];
        const dynamic_holders *h = &t->held;
        if (t->own != own) continue;
        if (!d->is_host_memory) return d->be->ops->sum_squares(d->be, t->n * t->dim, t->grad, sum);
        memset(t->squares, 0, (size_t)t->n * sizeof *t->squares);
        for (int64_t k = 0; k < h->n; k++) {
            const float *row = own->grad + (int64_t)t->own_row[(uint32_t)h->ids[k]] * t->dim;
            t->squares[h->own[k]] = dynamic_row_squares(row, t->dim);
        }
        TRY(comm_host_reduce(d->comm, COMM_F64, COMM_SUM, t->n, t->squares));
        return add_sorted(d, t, sum);
    }
    return OK;
}

status dynamic_static_state(dynamic_tables *d, dynamic_table *t, dynamic_state *out) {
    *out = (dynamic_state){.n_rows = (int64_t)t->last + 1,
                           .n_slots = (int64_t)t->last + 1,
                           .n_ranks = d->comm->size,
                           .n_shards = EMBED_SHARDS,
                           .n_most = t->n_own,
                           .traffic = t->held.traffic};
    t->held.traffic = (dynamic_traffic){0};
    int64_t words[] = {out->traffic.sent, out->traffic.least};
    TRY(comm_host_reduce(d->comm, COMM_I64, COMM_SUM, 2, words));
    out->traffic = (dynamic_traffic){words[0], words[1]};
    return comm_host_reduce(d->comm, COMM_I64, COMM_MAX, 1, &out->n_most);
}
