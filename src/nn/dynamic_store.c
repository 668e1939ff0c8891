/* The store of a dynamic table on disk, for the duration of a run, and prefetching from it.
 *
 * A checkpoint holds the rows of the store too, so the store need not outlive the model: it has a
 * folder of its own, which is removed with the model.  The next process removes the files of a
 * killed one. */
#include "base/log.h"
#include "nn/dynamic_int.h"

/* The folder may be on another machine, where the model was trained. */
static status make_folder(dynamic_table *t) {
    status st = scratch_folder_create(&t->folder, t->config->store_folder, "hstu-table-");
    if (st == OK) return OK;
    return fail_prefix(st,
                       "the store_folder of the table '%s' cannot be used; make it, or a link of "
                       "its name to a folder that can",
                       t->config->table_name);
}

status dynamic_open_store(dynamic_table *t, int32_t n_floats, bool reads_ahead, int64_t max_ahead) {
    bool is_log = t->config->store == STORE_LOG;
    if (t->config->store_folder == NULL) return OK;
    TRY(make_folder(t));
    TRY((is_log ? embed_store_open_log
                : embed_store_open_rocks)(&t->store, scratch_folder_path(t->folder), n_floats));
    log_info("table '%s': rows beyond that go to %s (%s)%s", t->config->table_name,
             scratch_folder_path(t->folder), t->store->name,
             reads_ahead ? ", and are read ahead" : "");
    return reads_ahead ? embed_store_open_ahead(&t->ahead, t->store, max_ahead) : OK;
}

void dynamic_close_store(dynamic_table *t) {
    embed_store_destroy(t->ahead);
    embed_store_destroy(t->store);
    scratch_folder_destroy(t->folder);
}

bool dynamic_reads_ahead(const dynamic_tables *d) {
    for (int i = 0; i < d->n; i++)
        if (d->item[i].ahead != NULL) return true;
    return false;
}

/* Lists the distinct ids of a batch that a rank holds (-1: all), ascending, in t->coming, which has
 * room for those of any batch of known ids and size; returns their number.  Leaves `seen` all 0. */
static int64_t list_coming(dynamic_table *t, const id_list *l, int rank) {
    int64_t n = 0;
    for (int64_t i = 0; i < l->n; i++) {
        uint32_t id = l->from[i * l->stride];
        t->seen[id / DYNAMIC_WORD_BITS] |= 1ull << id % DYNAMIC_WORD_BITS;
    }
    for (int64_t word = 0; word <= t->last / DYNAMIC_WORD_BITS; word++) {
        for (uint64_t bits = t->seen[word]; bits != 0; bits &= bits - 1) {
            uint64_t id = (uint64_t)(word * DYNAMIC_WORD_BITS + __builtin_ctzll(bits)) | t->key_tag;
            if (rank < 0 || embed_rank_of(t->table, id) == rank) t->coming[n++] = id;
        }
        t->seen[word] = 0;
    }
    return n;
}

status dynamic_announce(dynamic_tables *d, const batch *b) {
    TRY(dynamic_check_size(d, b));
    for (int i = 0; i < d->n; i++) {
        dynamic_table *t = &d->item[i];
        id_list l = dynamic_list_of(d, t, b);
        if (t->owner->ahead == NULL) continue;
        TRY(dynamic_check_ids(t, &l));
        TRY(embed_prefetch(t->table, list_coming(t, &l, d->comm != NULL ? d->comm->rank : -1),
                           t->coming));
    }
    return OK;
}
