#include "nn/dynamic_int.h"
#include "ops/comm.h"

enum { EXPIRIES = 16 };

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
                        id, t->name, t->first, t->last);
    }
    return OK;
}

/* Scanning a bit per id needs no sort, and clears the bits. */
int64_t dynamic_list_ids(dynamic_table *t, const id_list *l, bool is_new, int64_t n_out,
                         uint64_t *out) {
    int64_t n = 0;
    for (int64_t i = 0; i < l->n; i++) {
        uint32_t id = l->from[i * l->stride];
        if (!is_new || t->place[id] == 0)
            t->seen[id / DYNAMIC_WORD_BITS] |= 1ull << id % DYNAMIC_WORD_BITS;
    }
    for (int64_t word = 0; word <= t->last / DYNAMIC_WORD_BITS; word++) {
        for (uint64_t bits = t->seen[word]; bits != 0; bits &= bits - 1, n++)
            if (n < n_out)
                out[n] = t->key_tag | (uint64_t)(word * DYNAMIC_WORD_BITS + __builtin_ctzll(bits));
        t->seen[word] = 0;
    }
    return n;
}

/* Appends the ids that are new in this step in ascending order, like the rows of a static table. */
static status append_ids(dynamic_table *t, const id_list *l) {
    int64_t left = t->max_rows - t->n, n = dynamic_list_ids(t, l, true, left, t->ids + t->n);
    for (int64_t end = t->n + (n < left ? n : left); t->n < end; t->n++)
        t->place[(uint32_t)t->ids[t->n]] = (int32_t)t->n + 1;
    if (n <= left) return OK;
    return fail(ERR_USAGE, "more batches without an update than the model was made for");
}

static void forget_ids(dynamic_table *t) {
    for (int64_t i = 0; i < t->n; i++)
        t->place[(uint32_t)t->ids[i]] = 0;
    memset(t->has_no_row, 0, (size_t)t->n);
    t->n = t->n_missing = t->held.n = 0;
}

void dynamic_forget(dynamic_tables *d) {
    for (int i = 0; i < d->n_all; i++)
        forget_ids(&d->item[i]);
    d->n_taken = 0;
}

void dynamic_note_missing(dynamic_table *t, const embed_batch *got) {
    t->n_missing += got->n_rejected + got->n_refused;
    for (int64_t i = 0; i < got->n_rejected; i++)
        t->has_no_row[t->place[(uint32_t)got->rejected[i]] - 1] = 1;
    for (int64_t i = 0; i < got->n_refused; i++)
        t->has_no_row[t->place[(uint32_t)got->refused[i]] - 1] = 1;
}

status dynamic_check_size(const dynamic_tables *d, const batch *b) {
    if (b->n_users <= d->max_users && b->n_tokens <= d->max_tokens) return OK;
    return fail(ERR_CONFIG,
                "a batch of %d users with %d events; the model was made for %lld with %lld",
                b->n_users, b->n_tokens, (long long)d->max_users, (long long)d->max_tokens);
}

/* Starts the numbered batch as a copy: static features keep their ids. */
static void copy_ids(dynamic_tables *d, const batch *b) {
    size_t n_context = (size_t)b->n_users * (size_t)b->n_context;
    memcpy(d->items, b->item, (size_t)b->n_tokens * sizeof *d->items);
    if (n_context > 0) memcpy(d->context, b->context, n_context * sizeof *d->context);
    d->numbered = *b;
    d->numbered.item = d->items;
    d->numbered.context = d->context;
}

/* Replaces ids by their numbers; lfu counts how often each new one is used. */
static void number_ids(dynamic_table *t, const id_list *l, int64_t first) {
    if (t->uses != NULL) memset(t->uses + first, 0, (size_t)(t->n - first) * sizeof *t->uses);
    for (int64_t i = 0; i < l->n; i++) {
        int32_t place = t->place[l->from[i * l->stride]];
        l->to[i * l->stride] = (uint32_t)(t->first + place - 1);
        if (t->uses != NULL && place > first) t->uses[place - 1]++;
    }
}

/* The rows of t->ids (n), changing nothing. */
static status read_table(dynamic_tables *d, dynamic_table *t, int64_t n) {
    const embed_batch *got;
    t->n_read += n;
    if (d->comm != NULL) return dynamic_read_held(d, t, n);
    if (n == 0) return OK;
    TRY(embed_take_rows(t->table, false, n, t->ids, NULL, t->value, &got));
    t->n_absent += got->n_absent;
    return OK;
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
    if (!is_training) return read_table(d, t, n);
    if (n > 0) TRY(d->be->ops->zero(d->be, t->grad + at, bytes));
    if (n > 0 && t->marks != NULL) TRY(d->be->ops->zero(d->be, t->marks + first, (size_t)n));
    if (d->comm != NULL) return dynamic_take_held(d, t, b, first);
    if (n == 0) return OK;
    const uint64_t *uses = t->uses != NULL ? t->uses + first : NULL;
    TRY(embed_take_rows(t->table, true, n, t->ids + first, uses, t->value + at, &got));
    dynamic_note_missing(t, got);
    return OK;
}

status dynamic_take_nothing(dynamic_tables *d) {
    if (d->comm == NULL) return OK;
    dynamic_forget(d);
    for (int i = 0; i < d->n_all; i++)
        TRY(read_table(d, &d->item[i], 0));
    return OK;
}

/* Events that are skipped become their user's last one. */
static void skip_events(dynamic_tables *d, const int32_t *n_skipped) {
    const batch *b = &d->numbered;
    for (int32_t u = 0; u < b->n_users; u++) {
        int32_t first = b->offsets[u], last = b->offsets[u + 1] - 1;
        for (int32_t i = first; i < first + n_skipped[u] && i < last; i++)
            d->items[i] = d->items[last];
    }
}

status dynamic_take_rest(dynamic_tables *d, const batch *b, const int32_t *n_skipped,
                         const batch **out) {
    *out = b;
    if (d->n_all == 0) return OK;
    TRY(dynamic_check_size(d, b));
    dynamic_forget(d);
    copy_ids(d, b);
    skip_events(d, n_skipped);
    batch rest = d->numbered; /* its own ids are replaced one after the other */
    for (int i = 0; i < d->n_all; i++)
        TRY(take_table(d, &d->item[i], &rest, false));
    *out = &d->numbered;
    return OK;
}

status dynamic_take(dynamic_tables *d, const batch *b, bool is_training, const batch **out) {
    *out = b;
    if (d->n_all == 0) return OK;
    TRY(dynamic_check_size(d, b));
    if (!is_training || d->n_taken == 0) dynamic_forget(d);
    copy_ids(d, b);
    for (int i = 0; i < d->n_all; i++)
        TRY(take_table(d, &d->item[i], b, is_training));
    d->n_taken += is_training;
    *out = &d->numbered;
    return OK;
}

const uint8_t *dynamic_missing_items(dynamic_tables *d) {
    dynamic_table *t = dynamic_find(d, ITEM_FEATURE);
    return t != NULL && t->n_missing > 0 ? t->has_no_row : NULL;
}

/* Finds which items from `id` on have a row: appends them to `item`, and their numbers to `row`. */
static status list_items(dynamic_tables *d, dynamic_table *t, int64_t id, int64_t n_ids,
                         int32_t *item, int32_t *row, int32_t *n) {
    uint8_t *is_found = t->has_no_row; /* its memory, until it is all 0 again */
    for (int64_t i = 0; i < n_ids; i++)
        t->ids[i] = t->key_tag | (uint64_t)(id + i);
    if (t->own != NULL)
        memset(is_found, 1, (size_t)n_ids);
    else
        TRY(embed_find(t->table, n_ids, t->ids, 0, NULL, is_found));
    if (d->comm != NULL && t->own == NULL) /* what all ranks found */
        TRY(comm_host_reduce(d->comm, COMM_U8, COMM_MAX, n_ids, is_found));
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
        n_ids = (int64_t)t->last + 1 - id;
        if (n_ids > t->max_rows) n_ids = t->max_rows;
        int32_t first = *n;
        TRY(list_items(d, t, id, n_ids, item, row, n));
        n_listed = *n - first;
        for (int64_t i = 0; i < n_listed; i++)
            t->ids[i] = t->key_tag | (uint64_t)item[first + i];
        if (d->comm != NULL)
            TRY(dynamic_gather_rows(d, t, n_listed, rows + (int64_t)first * t->dim));
        else if (n_listed > 0)
            TRY(embed_take_rows(t->table, false, n_listed, t->ids, NULL,
                                rows + (int64_t)first * t->dim, &got));
    }
    return OK;
}

void dynamic_begin_reads(dynamic_tables *d) {
    for (int i = 0; i < d->n_all; i++) {
        d->item[i].n_read = d->item[i].n_absent = 0;
        if (d->item[i].table != NULL) embed_count_absent(d->item[i].table, true);
    }
}

void dynamic_set_grad(dynamic_table *t, const param *p) {
    if (p->marks != NULL) t->marks = p->marks + t->first;
    t->grad = p->grad + (int64_t)t->first * t->dim;
}

double dynamic_row_squares(const float *row, int32_t dim) {
    double sum = 0;
    for (int32_t c = 0; c < dim; c++)
        sum += (double)row[c] * (double)row[c];
    return sum;
}

/* One sum for each row, by the rank that holds it, and then all in the order of the ids: the same
 * bits on any number of ranks. */
static status add_squares_by_row(dynamic_tables *d, dynamic_table *t, double *sum) {
    const dynamic_holders *h = &t->held;
    int64_t n = h->rank != NULL ? h->n : t->n;
    memset(t->squares, 0, (size_t)t->n * sizeof *t->squares);
    for (int64_t k = 0; k < n; k++) {
        int64_t i = h->rank != NULL ? h->own[k] : k;
        t->squares[i] = dynamic_row_squares(t->grad + i * t->dim, t->dim);
    }
    TRY(comm_host_reduce(d->comm, COMM_F64, COMM_SUM, t->n, t->squares));
    for (int64_t i = 0; i < t->n; i++)
        *sum += t->squares[i];
    return OK;
}

status dynamic_add_squares(dynamic_tables *d, double *sum) {
    for (int i = 0; i < d->n && d->n_taken > 0; i++) {
        dynamic_table *t = &d->item[i];
        TRY(d->is_host_memory ? add_squares_by_row(d, t, sum)
                              : d->be->ops->sum_squares(d->be, t->n * t->dim, t->grad, sum));
    }
    return OK;
}

/* The ids and gradients of this rank's rows. */
static status list_held(dynamic_tables *d, const dynamic_table *t, int64_t *n, const uint64_t **ids,
                        const float **grad) {
    const dynamic_holders *h = &t->held;
    *n = t->n, *ids = t->ids, *grad = t->grad;
    if (h->rank == NULL) return OK;
    *n = h->n, *ids = h->ids, *grad = h->rows;
    return dynamic_move_rows(d, t, h->n, h->own, h->rows, t->grad, false);
}

/* The table can update only the rows it fetched last, so the rows of several batches or features
 * are fetched again.  Rows evicted to the store meanwhile are moved up again: only rows in the
 * levels can be updated. */
static status update_table(dynamic_tables *d, dynamic_table *t, const embed_step_args *args,
                           bool is_whole) {
    const uint64_t *ids;
    const float *grad;
    int64_t n;
    if (t->n == 0) return OK;
    TRY(list_held(d, t, &n, &ids, &grad));
    if (!is_whole) TRY(embed_retake_rows(t->table, n, ids));
    if (args->step > embed_step(t->table)) TRY(embed_set_step(t->table, args->step));
    return embed_step_rows(t->table, grad, args);
}

/* Expiry visits the whole table, so it runs 16 times in the lifetime of a row, not every step. */
static status expire_rows(dynamic_table *t, int64_t step) {
    int64_t ttl = t->config->steps_to_live;
    if (ttl == 0 || !dynamic_is_owner(t) || step % (1 + ttl / EXPIRIES) != 0) return OK;
    return embed_expire(t->table, NULL);
}

status dynamic_update(dynamic_tables *d, const embed_step_args *args) {
    for (int i = 0; i < d->n && d->n_taken > 0; i++)
        TRY(update_table(d, &d->item[i], args,
                         d->n_taken == 1 && d->item[i].owner->n_features == 1));
    for (int i = 0; i < d->n; i++)
        TRY(expire_rows(&d->item[i], args->step));
    dynamic_forget(d);
    return OK;
}

status dynamic_clear(dynamic_tables *d) {
    dynamic_forget(d);
    for (int i = 0; i < d->n; i++)
        if (dynamic_is_owner(&d->item[i])) TRY(embed_clear(d->item[i].table));
    return OK;
}

/* Counts as a list of words, to subtract them and to sum those of all ranks. */
enum { COUNT_WORDS = sizeof(embed_counts) / sizeof(int64_t) };
typedef union count_words {
    embed_counts counts;
    int64_t word[COUNT_WORDS];
} count_words;

static embed_counts subtract(const embed_counts *now, const embed_counts *then) {
    count_words a = {.counts = *now}, b = {.counts = *then};
    for (int i = 0; i < COUNT_WORDS; i++)
        a.word[i] -= b.word[i];
    return a.counts;
}

status dynamic_news(dynamic_table *t, dynamic_state *out) {
    const embed_config *c = embed_config_of(t->table);
    TRY(embed_catch_up(t->table));
    *out = (dynamic_state){.since = subtract(embed_counts_of(t->table), &t->told),
                           .n_slots = embed_n_own_slots(t->table),
                           .n_ranks = 1,
                           .n_shards = embed_n_shards(t->table)};
    t->told = *embed_counts_of(t->table);
    out->has_store = c->store != NULL;
    for (int i = 0; i < EMBED_LEVELS; i++) {
        int64_t n;
        TRY(embed_tier_size(t->table, i, &n));
        out->n_rows += n;
    }
    out->n_most = out->n_rows;
    return OK;
}

status dynamic_news_of_all(dynamic_tables *d, dynamic_table *t, dynamic_state *out) {
    enum { OTHERS = 4 };
    TRY(dynamic_news(t, out));
    for (int i = 0; i < d->n; i++) {
        dynamic_traffic *moved = &d->item[i].held.traffic;
        if (d->item[i].owner != t) continue;
        out->traffic.sent += moved->sent;
        out->traffic.least += moved->least;
        *moved = (dynamic_traffic){0};
    }
    if (d->comm == NULL) return OK;
    count_words since = {.counts = out->since};
    int64_t words[COUNT_WORDS + OTHERS] = {out->n_rows, out->n_slots, out->traffic.sent,
                                           out->traffic.least};
    memcpy(words + OTHERS, since.word, sizeof since);
    TRY(comm_host_reduce(d->comm, COMM_I64, COMM_SUM, COUNT_WORDS + OTHERS, words));
    TRY(comm_host_reduce(d->comm, COMM_I64, COMM_MAX, 1, &out->n_most));
    memcpy(since.word, words + OTHERS, sizeof since);
    out->since = since.counts;
    out->n_rows = words[0];
    out->n_slots = words[1];
    out->traffic = (dynamic_traffic){words[2], words[3]};
    out->n_ranks = d->comm->size;
    return OK;
}

uint64_t dynamic_bytes(const dynamic_tables *d) {
    uint64_t n = 0;
    for (int i = 0; i < d->n; i++) {
        const embed_table *t = d->item[i].table;
        if (!dynamic_is_owner(&d->item[i])) continue;
        n += (uint64_t)embed_n_own_slots(t) * (uint64_t)embed_n_floats(t);
    }
    return n * sizeof(float);
}

/* The bank whose rows a feature's are, as passes read them. */
static bank *bank_of(input *in, const dynamic_table *t) {
    return t->feature == ITEM_FEATURE || in->is_merged ? &in->events : &in->contexts;
}

/* Adds the arrays of all tables to their banks; false: not all can be read so. */
static bool add_arrays(dynamic_tables *d, input *in, int32_t *first) {
    for (int i = 0; i < d->n_all; i++) {
        const dynamic_table *t = &d->item[i];
        embed_array array;
        if (t->table == NULL || !embed_is_array(t->table, &array)) return false;
        if (!input_add_far(bank_of(in, t), array.rows, array.n_slots, array.stride, &first[i]))
            return false;
    }
    return true;
}

/* The row of each id of a feature, whose table's slot 0 is row `first`. */
static status list_rows(dynamic_table *t, int32_t first, nn_memory *memory, layout_rows *out) {
    int32_t *row, n = t->last + 1;
    int64_t *slot;
    TRY(NN_NEW_HOST(memory, &row, n));
    TRY(MEM_NEW(&slot, (size_t)t->max_rows));
    status st = OK;
    if (t->first > 0) row[0] = -1;
    for (int32_t id = t->first, piece; id < n && st == OK; id += piece) {
        piece = n - id < t->max_rows ? n - id : t->max_rows;
        for (int32_t i = 0; i < piece; i++)
            t->ids[i] = t->key_tag | (uint64_t)(id + i);
        st = embed_list_slots(t->table, piece, t->ids, slot);
        for (int32_t i = 0; i < piece; i++)
            row[id + i] = slot[i] < 0 ? -1 : first + (int32_t)slot[i];
    }
    mem_free(slot);
    *out = (layout_rows){n, row};
    return st;
}

status dynamic_freeze(dynamic_tables *d, input *in, nn_memory *memory, layout_rows *items,
                      const layout_rows **contexts) {
    int32_t *first, n_context = in->config.n_context;
    layout_rows *rows, *of_contexts;
    if (d->n_all == 0 || d->comm != NULL) return OK;
    TRY(NN_NEW_HOST(memory, &first, d->n_all));
    TRY(NN_NEW_HOST(memory, &rows, n_context + 1));
    of_contexts = rows + 1;
    if (!add_arrays(d, in, first)) return OK;
    dynamic_forget(d); /* `ids` has room for others now */
    for (int i = 0; i < d->n_all; i++) {
        dynamic_table *t = &d->item[i];
        layout_rows *to = t->feature == ITEM_FEATURE ? rows : &of_contexts[t->feature];
        TRY(list_rows(t, first[i], memory, to));
    }
    *items = rows[0];
    *contexts = of_contexts;
    return OK;
}
