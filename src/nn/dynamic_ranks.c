/* Tables that ranks hold together (dynamic.h): rows on their way between ranks, and the static
 * tables among them.  Of these every id has a row, and a rank has the rows of its shards as a
 * parameter, with gradient and optimizer state like any other.
 *
 * In a training step every rank knows the ids of the whole batch and which rank has which user, so
 * it can tell what each other rank needs and will send: rows travel without a word about them, each
 * once to each rank that reads it.  Ranks are few (MAX_LEAVES of dist/leaves.h): a set of them is a
 * word. */
#include "base/half.h"
#include "nn/dynamic_int.h"
#include "ops/comm.h"
#include "ops/row_moves.h"

enum { MAX_RANKS = DYNAMIC_MAX_RANKS };

static status reserve(dynamic_buffer *b, size_t bytes) {
    if (bytes <= b->bytes && b->memory != NULL) return OK;
    mem_free(b->memory);
    *b = (dynamic_buffer){0};
    TRY(mem_alloc_raw(&b->memory, bytes, 1));
    b->bytes = bytes;
    return OK;
}

/* The same in memory of the backend; what was there is gone. */
static status reserve_rows(dynamic_tables *d, dynamic_buffer *b, size_t bytes) {
    if (bytes <= b->bytes && b->memory != NULL) return OK;
    d->be->ops->release(d->be, b->memory);
    *b = (dynamic_buffer){0};
    TRY(d->be->ops->alloc(d->be, &b->memory, bytes + bytes / 4));
    b->bytes = bytes + bytes / 4;
    return OK;
}

void dynamic_free_buffers(dynamic_tables *d) {
    if (d->be == NULL) return;
    d->be->ops->release(d->be, d->out.memory);
    d->be->ops->release(d->be, d->in.memory);
    d->be->ops->release(d->be, d->index.memory);
    MEM_FREE(d->ids.memory, d->in_ids.memory, d->list.memory);
}

status dynamic_make_ranks(dynamic_tables *d, nn_memory *memory) {
    if (d->comm->size > MAX_RANKS)
        return fail(ERR_USAGE, "%d ranks; dynamic tables can be held by at most %d", d->comm->size,
                    MAX_RANKS);
    TRY(NN_NEW_HOST(memory, &d->n_send, d->comm->size));
    return NN_NEW_HOST(memory, &d->n_receive, d->comm->size);
}

status dynamic_make_holders(dynamic_table *t, nn_memory *memory) {
    dynamic_holders *h = &t->held;
    TRY(NN_NEW_HOST(memory, &h->rank, t->max_rows));
    TRY(NN_NEW_HOST(memory, &h->has, t->max_rows));
    TRY(NN_NEW_HOST(memory, &h->reads, t->max_rows));
    TRY(NN_NEW_HOST(memory, &h->own, t->max_rows));
    TRY(NN_NEW_HOST(memory, &h->ids, t->max_rows));
    if (t->uses != NULL) TRY(NN_NEW_HOST(memory, &h->uses, t->max_rows));
    return NN_NEW(memory, &h->rows, (int64_t)t->max_rows * t->dim);
}

static int64_t sum_of(const int64_t *n, int size) {
    int64_t sum = 0;
    for (int r = 0; r < size; r++)
        sum += n[r];
    return sum;
}

/* n_send rows to each rank, n_receive of each: from d->out to d->in, or on the host from d->ids to
 * d->in_ids. */
static status exchange(dynamic_tables *d, int64_t row_bytes, bool is_on_host) {
    all_to_all_args a = {.row_bytes = row_bytes,
                         .n_send = d->n_send,
                         .n_receive = d->n_receive,
                         .from = is_on_host ? d->ids.memory : d->out.memory,
                         .to = is_on_host ? d->in_ids.memory : d->in.memory};
    return is_on_host ? comm_host_exchange(d->comm, &a) : d->comm->ops->all_to_all(d->comm, &a);
}

status dynamic_move_rows(dynamic_tables *d, const dynamic_table *t, int64_t n,
                         const int32_t *number, void *packed, float *rows, bool is_put) {
    row_moves a = {.n = n,
                   .row_bytes = (int64_t)t->dim * (int64_t)sizeof(float),
                   .index = number,
                   .picked = packed,
                   .rows = rows};
    if (n == 0) return OK;
    if (!d->is_host_memory) {
        size_t bytes = (size_t)n * sizeof *number;
        TRY(reserve_rows(d, &d->index, bytes));
        TRY(d->be->ops->copy_in(d->be, d->index.memory, number, bytes));
        a.index = d->index.memory;
    }
    return row_moves_run(d->be, &a, is_put);
}

/* Which rank holds a key's row. */
static int holder_of(const dynamic_tables *d, const dynamic_table *t, uint64_t key) {
    return t->own != NULL ? dynamic_rank_of_row(key, d->comm->size) : embed_rank_of(t->table, key);
}

/* t->index = where the rows of n ids that this rank holds are in its parameter. */
static const int32_t *index_rows(const dynamic_table *t, int64_t n, const uint64_t *ids) {
    for (int64_t i = 0; i < n; i++)
        t->index[i] = t->own_row[(uint32_t)ids[i]];
    return t->index;
}

/* Rows of n ids that this rank holds, to `rows` (n, dim). */
static status take_static(dynamic_tables *d, const dynamic_table *t, int64_t n, const uint64_t *ids,
                          float *rows) {
    for (int64_t at = 0, piece; at < n; at += piece) {
        piece = n - at < t->max_rows ? n - at : t->max_rows;
        TRY(dynamic_move_rows(d, t, piece, index_rows(t, piece, ids + at), rows + at * t->dim,
                              t->own->value, false));
    }
    return OK;
}

/* Bytes of a row on the wire. */
static size_t wire_bytes(const dynamic_tables *d, const dynamic_table *t) {
    return (size_t)t->dim * (d->has_bf16_wire ? sizeof(uint16_t) : sizeof(float));
}

void dynamic_pack_row(void *to, const float *row, int32_t dim, bool is_bf16) {
    uint16_t *half = to;
    if (!is_bf16) memcpy(to, row, (size_t)dim * sizeof *row);
    for (int32_t c = 0; c < dim && is_bf16; c++)
        half[c] = half_bf16_from_float(row[c]);
}

void dynamic_unpack_row(float *row, const void *from, int32_t dim, bool is_bf16) {
    const uint16_t *half = from;
    if (!is_bf16) memcpy(row, from, (size_t)dim * sizeof *row);
    for (int32_t c = 0; c < dim && is_bf16; c++)
        row[c] = half_bf16_to_float(half[c]);
}

/* Which ranks read which rows of this batch. */
static void mark_reads(const dynamic_tables *d, dynamic_table *t, const batch *b) {
    uint64_t all = UINT64_MAX >> (MAX_RANKS - d->comm->size), *reads = t->held.reads;
    bool is_item = t->feature == ITEM_FEATURE;
    memset(reads, 0, (size_t)t->n * sizeof *reads);
    for (int32_t u = 0; u < b->n_users; u++) {
        bool by_all = d->user_ranks == NULL || (is_item && d->reads_whole);
        uint64_t ranks = by_all ? all : 1ull << d->user_ranks[u];
        if (!is_item) {
            reads[t->place[b->context[(int64_t)u * b->n_context + t->feature]] - 1] |= ranks;
            continue;
        }
        for (int32_t i = b->offsets[u]; i < b->offsets[u + 1]; i++)
            reads[t->place[b->item[i]] - 1] |= ranks;
    }
}

/* rows (n, dim) of ids that this rank holds, changing nothing. */
static status read_own(dynamic_tables *d, dynamic_table *t, int64_t n, const uint64_t *ids,
                       float *rows) {
    const embed_batch *got;
    if (n == 0) return OK;
    if (t->own != NULL) return take_static(d, t, n, ids, rows);
    TRY(embed_take_rows(t->table, false, n, ids, NULL, rows, &got));
    t->n_absent += got->n_absent;
    return OK;
}

/* The same for training: makes rows that are not there. */
static status fetch_own(dynamic_tables *d, dynamic_table *t, int64_t from, float *rows) {
    const dynamic_holders *h = &t->held;
    const embed_batch *got;
    if (t->own != NULL) return take_static(d, t, h->n - from, h->ids + from, rows);
    TRY(embed_take_rows(t->table, true, h->n - from, h->ids + from,
                        h->uses != NULL ? h->uses + from : NULL, rows, &got));
    dynamic_note_missing(t, got);
    return OK;
}

/* Takes the rows from number `first` on that this rank holds to its bank. */
static status take_own(dynamic_tables *d, dynamic_table *t, int64_t first) {
    dynamic_holders *h = &t->held;
    int64_t from = h->n;
    for (int64_t i = first; i < t->n; i++) {
        h->rank[i] = (uint8_t)holder_of(d, t, t->ids[i]);
        h->has[i] = 1ull << h->rank[i];
        if (h->rank[i] != d->comm->rank) continue;
        h->own[h->n] = (int32_t)i;
        h->ids[h->n] = t->ids[i];
        if (h->uses != NULL) h->uses[h->n] = t->uses[i];
        h->n++;
    }
    if (t->n == first) return OK;
    float *rows = h->rows + from * t->dim;
    TRY(fetch_own(d, t, from, rows));
    return dynamic_move_rows(d, t, h->n - from, h->own + from, rows, t->value, true);
}

/* Whether row i goes from its holder to rank r now. */
static bool travels(const dynamic_holders *h, int64_t i, int from, int to) {
    return h->rank[i] == from && (h->reads[i] & ~h->has[i]) >> to & 1;
}

static void count_rows(dynamic_tables *d, const dynamic_table *t) {
    for (int r = 0; r < d->comm->size; r++) {
        d->n_send[r] = d->n_receive[r] = 0;
        for (int64_t i = 0; i < t->n; i++) {
            d->n_send[r] += travels(&t->held, i, d->comm->rank, r);
            d->n_receive[r] += travels(&t->held, i, r, d->comm->rank);
        }
    }
}

/* d->list = the numbers of the rows that this rank sends, or gets, rank after rank. */
static status list_travels(dynamic_tables *d, const dynamic_table *t, int64_t n, bool is_send) {
    int own = d->comm->rank;
    TRY(reserve(&d->list, (size_t)n * sizeof(int32_t)));
    int32_t *to = d->list.memory;
    for (int r = 0; r < d->comm->size; r++)
        for (int64_t i = 0; i < t->n; i++)
            if (travels(&t->held, i, is_send ? own : r, is_send ? r : own)) *to++ = (int32_t)i;
    return OK;
}

/* The listed rows, packed for the wire or unpacked. */
static status move_listed(dynamic_tables *d, dynamic_table *t, int64_t n, void *packed,
                          bool is_put) {
    const int32_t *list = d->list.memory;
    if (!d->has_bf16_wire) return dynamic_move_rows(d, t, n, list, packed, t->value, is_put);
    for (int64_t k = 0; k < n; k++) {
        char *half = (char *)packed + (size_t)k * wire_bytes(d, t);
        float *row = t->value + (int64_t)list[k] * t->dim;
        if (is_put)
            dynamic_unpack_row(row, half, t->dim, true);
        else
            dynamic_pack_row(half, row, t->dim, true);
    }
    return OK;
}

static status exchange_rows(dynamic_tables *d, dynamic_table *t) {
    int64_t bytes = (int64_t)wire_bytes(d, t), n_send = sum_of(d->n_send, d->comm->size),
            n_receive = sum_of(d->n_receive, d->comm->size);
    TRY(reserve_rows(d, &d->out, (size_t)(n_send * bytes)));
    TRY(reserve_rows(d, &d->in, (size_t)(n_receive * bytes)));
    TRY(list_travels(d, t, n_send, true));
    TRY(move_listed(d, t, n_send, d->out.memory, false));
    TRY(exchange(d, bytes, false));
    TRY(list_travels(d, t, n_receive, false));
    t->held.traffic.sent += n_send * bytes;
    return move_listed(d, t, n_receive, d->in.memory, true);
}

/* Which of the same rows the table rejected or refused. */
static status exchange_missing(dynamic_tables *d, dynamic_table *t) {
    TRY(reserve(&d->ids, (size_t)sum_of(d->n_send, d->comm->size)));
    TRY(reserve(&d->in_ids, (size_t)sum_of(d->n_receive, d->comm->size)));
    uint8_t *out = d->ids.memory;
    const uint8_t *in = d->in_ids.memory;
    for (int r = 0; r < d->comm->size; r++)
        for (int64_t i = 0; i < t->n; i++)
            if (travels(&t->held, i, d->comm->rank, r)) *out++ = t->has_no_row[i];
    TRY(exchange(d, 1, true));
    for (int r = 0; r < d->comm->size; r++)
        for (int64_t i = 0; i < t->n; i++) {
            if (!travels(&t->held, i, r, d->comm->rank)) continue;
            t->has_no_row[i] = *in++;
            t->n_missing += t->has_no_row[i];
        }
    return OK;
}

status dynamic_take_held(dynamic_tables *d, dynamic_table *t, const batch *b, int64_t first) {
    dynamic_holders *h = &t->held;
    int64_t n_read = 0;
    TRY(take_own(d, t, first));
    mark_reads(d, t, b);
    for (int64_t i = 0; i < t->n; i++)
        n_read += h->reads[i] >> d->comm->rank & 1;
    h->traffic.least += 2 * n_read * t->dim * (int64_t)sizeof(float);
    count_rows(d, t);
    TRY(exchange_rows(d, t));
    if (d->reads_whole && t->feature == ITEM_FEATURE && t->own == NULL) TRY(exchange_missing(d, t));
    for (int64_t i = 0; i < t->n; i++)
        h->has[i] |= h->reads[i];
    return OK;
}

/* How many ids each rank asks each other for: n_send here becomes n_receive there. */
static status exchange_counts(dynamic_tables *d) {
    int64_t n_send[MAX_RANKS], one[MAX_RANKS];
    all_to_all_args a = {.row_bytes = sizeof(int64_t),
                         .n_send = one,
                         .n_receive = one,
                         .from = n_send,
                         .to = d->n_receive};
    for (int r = 0; r < d->comm->size; r++) {
        n_send[r] = d->n_send[r];
        one[r] = 1;
    }
    return comm_host_exchange(d->comm, &a);
}

/* Sends the ids to their holders; d->in_ids has what this rank is asked for. */
static status ask(dynamic_tables *d, dynamic_table *t, int64_t n) {
    int size = d->comm->size;
    TRY(reserve(&d->ids, (size_t)n * sizeof *t->ids));
    uint64_t *to = d->ids.memory;
    for (int r = 0; r < size; r++) {
        d->n_send[r] = 0;
        for (int64_t i = 0; i < n; i++) {
            if (r == 0) t->held.rank[i] = (uint8_t)holder_of(d, t, t->ids[i]);
            if (t->held.rank[i] != r) continue;
            *to++ = t->ids[i];
            d->n_send[r]++;
        }
    }
    TRY(exchange_counts(d));
    TRY(reserve(&d->in_ids, (size_t)sum_of(d->n_receive, size) * sizeof *t->ids));
    return exchange(d, sizeof *t->ids, true);
}

/* d->out = the rows that this rank is asked for. */
static status answer(dynamic_tables *d, dynamic_table *t) {
    const uint64_t *ids = d->in_ids.memory;
    size_t row = (size_t)t->dim * sizeof(float);
    TRY(reserve_rows(d, &d->out, (size_t)sum_of(d->n_receive, d->comm->size) * row));
    float *rows = d->out.memory;
    for (int r = 0; r < d->comm->size; r++) {
        int64_t n = d->n_receive[r];
        TRY(read_own(d, t, n, ids, rows));
        ids += n;
        rows += n * t->dim;
    }
    return OK;
}

/* d->list = the numbers of n rows in the order of their holders. */
static status list_by_holder(dynamic_tables *d, const dynamic_table *t, int64_t n) {
    TRY(reserve(&d->list, (size_t)n * sizeof(int32_t)));
    int32_t *to = d->list.memory;
    for (int r = 0; r < d->comm->size; r++)
        for (int64_t i = 0; i < n; i++)
            if (t->held.rank[i] == r) *to++ = (int32_t)i;
    return OK;
}

/* Rows are always exact here: what is read is measured, not trained on. */
status dynamic_read_held(dynamic_tables *d, dynamic_table *t, int64_t n) {
    int64_t row = (int64_t)t->dim * (int64_t)sizeof(float);
    TRY(ask(d, t, n));
    TRY(answer(d, t));
    TRY(reserve_rows(d, &d->in, (size_t)(n * row)));
    int64_t *swapped = d->n_send;
    d->n_send = d->n_receive;
    d->n_receive = swapped;
    TRY(exchange(d, row, false));
    TRY(list_by_holder(d, t, n));
    return dynamic_move_rows(d, t, n, d->list.memory, d->in.memory, t->value, true);
}

status dynamic_gather_rows(dynamic_tables *d, dynamic_table *t, int64_t n, float *rows) {
    dynamic_holders *h = &t->held;
    size_t row = (size_t)t->dim * sizeof *rows;
    h->n = 0;
    memset(d->n_receive, 0, (size_t)d->comm->size * sizeof *d->n_receive);
    for (int64_t i = 0; i < n; i++) {
        h->rank[i] = (uint8_t)holder_of(d, t, t->ids[i]);
        d->n_receive[h->rank[i]]++;
        if (h->rank[i] == d->comm->rank) h->ids[h->n++] = t->ids[i];
    }
    int64_t n_absent = t->n_absent;
    TRY(read_own(d, t, h->n, h->ids, h->rows));
    t->n_absent = n_absent;
    h->n = 0;
    TRY(reserve_rows(d, &d->in, (size_t)n * row));
    all_gather_args a = {
        .row_bytes = (int64_t)row, .n_rows = d->n_receive, .from = h->rows, .to = d->in.memory};
    TRY(d->comm->ops->all_gather(d->comm, &a));
    TRY(list_by_holder(d, t, n));
    return dynamic_move_rows(d, t, n, d->list.memory, d->in.memory, rows, true);
}

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
 * gradient that has all rows; item features; a run that starts from another. */
static bool needs_copies(const config *c, const model_limits *l, int32_t feature) {
    if (feature == ITEM_FEATURE && l->content != NULL) return true;
    bool is_dense = !config_has_sparse_rows(c);
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
    if (!needs_copies(c, l, feature)) return true;
    log_info("note: every rank has a copy of the %s table: %s",
             feature == ITEM_FEATURE ? "item" : "contextual",
             c->trainer.resume_folder != NULL && c->trainer.resume_folder[0] != '\0'
                 ? "the run starts from another"
                 : "its negatives, the norm of its gradient, or item features need all rows");
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

/* Bytes by the list that the rows were moved by last. */
static status move_marks(dynamic_tables *d, int64_t n, const int32_t *number, uint8_t *packed,
                         uint8_t *marks, bool is_put) {
    row_moves a = {.n = n,
                   .row_bytes = 1,
                   .index = d->is_host_memory ? number : d->index.memory,
                   .picked = packed,
                   .rows = marks};
    return row_moves_run(d->be, &a, is_put);
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
