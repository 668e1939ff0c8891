/* Tables that change no more (dynamic.h: dynamic_freeze). */
#include "nn/dynamic_int.h"

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
static status list_rows(dynamic_table *t, int32_t first, nn_memory *memory, plan_rows *out) {
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
    *out = (plan_rows){n, row};
    return st;
}

status dynamic_freeze(dynamic_tables *d, input *in, nn_memory *memory, plan_rows *items,
                      const plan_rows **contexts) {
    int32_t *first, n_context = in->config.n_context;
    plan_rows *rows, *of_contexts;
    if (d->n_all == 0 || d->comm != NULL) return OK;
    TRY(NN_NEW_HOST(memory, &first, d->n_all));
    TRY(NN_NEW_HOST(memory, &rows, n_context + 1));
    of_contexts = rows + 1;
    if (!add_arrays(d, in, first)) return OK;
    dynamic_forget(d); /* `ids` has room for others now */
    for (int i = 0; i < d->n_all; i++) {
        dynamic_table *t = &d->item[i];
        plan_rows *to = t->feature == ITEM_FEATURE ? rows : &of_contexts[t->feature];
        TRY(list_rows(t, first[i], memory, to));
    }
    *items = rows[0];
    *contexts = of_contexts;
    return OK;
}
