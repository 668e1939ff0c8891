/* Visits all rows (table.h): export, sizes, expiry, keys that left. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "embed/table_int.h"

typedef struct walk {
    embed_table *t;
    uint32_t since;
    bool has_rows; /* the visitor looks at rows */
    embed_visit visit;
    void *ctx;
} walk;

/* The entries of some buckets of a level. */
static status walk_buckets(const walk *w, int level, int64_t first, int64_t n_buckets) {
    embed_table *t = w->t;
    embed_device *d = &t->d;
    embed_host *h = &t->h;
    embed_rows rows = {0, h->out_keys, h->out_scores, h->out_stamps, h->out_rows, t->n_floats};
    table_scan_args scan = {.first = first,
                            .n_buckets = n_buckets,
                            .max_score = UINT64_MAX,
                            .min_stamp = w->since,
                            .max_stamp = ~TABLE_CLEAN,
                            .keys = d->list_keys,
                            .scores = d->list_scores,
                            .stamps = d->list_stamps,
                            .slot = d->list_slot,
                            .n = d->n_unique};
    TRY(t->v->scan(t->be, &t->level[level], &scan));
    TRY(EMBED_OUT(t, &rows.n, d->n_unique, 1));
    TRY(EMBED_OUT(t, h->out_keys, d->list_keys, rows.n));
    TRY(EMBED_OUT(t, h->out_scores, d->list_scores, rows.n));
    TRY(EMBED_OUT(t, h->out_stamps, d->list_stamps, rows.n));
    for (int64_t i = 0; i < rows.n; i++)
        h->out_stamps[i] &= ~TABLE_CLEAN;
    if (w->has_rows) {
        table_rows_args read = {.n = rows.n,
                                .slot = d->list_slot,
                                .n_floats = t->n_floats,
                                .staging = d->moved,
                                .stride = t->n_floats};
        TRY(t->v->read(t->be, &t->level[level], &read));
        TRY(EMBED_OUT(t, h->out_rows, d->moved, rows.n * t->n_floats));
    }
    return rows.n == 0 ? OK : w->visit(w->ctx, &rows);
}

/* Rows of the store whose key is in no level; the others are older copies. */
static status walk_stored(const walk *w, const embed_rows *rows) {
    embed_table *t = w->t;
    embed_host *h = &t->h;
    size_t row = (size_t)t->n_floats;
    int64_t n = 0;
    for (int i = 0; i < t->n_levels; i++) {
        table_find_args find = {.n = rows->n, .keys = t->d.list_keys, .slot = t->d.slot[i]};
        if (i == 0) TRY(EMBED_IN(t, t->d.list_keys, rows->keys, rows->n));
        TRY(t->v->find(t->be, &t->level[i], &find));
        TRY(EMBED_OUT(t, h->slot[i], t->d.slot[i], rows->n));
    }
    for (int64_t i = 0; i < rows->n; i++) {
        bool is_copy = h->slot[0][i] >= 0 || (t->n_levels > 1 && h->slot[1][i] >= 0);
        if (is_copy || rows->stamps[i] < w->since) continue;
        h->out_keys[n] = rows->keys[i];
        h->out_scores[n] = rows->scores[i];
        h->out_stamps[n] = rows->stamps[i];
        memcpy(h->out_rows + (size_t)n * row, rows->rows + (size_t)i * row, row * sizeof(float));
        n++;
    }
    embed_rows own = {n, h->out_keys, h->out_scores, h->out_stamps, h->out_rows, t->n_floats};
    return n == 0 ? OK : w->visit(w->ctx, &own);
}

static status walk_store(void *ctx, const embed_rows *rows) {
    const walk *w = ctx;
    for (int64_t first = 0; first < rows->n; first += w->t->n_room) {
        embed_rows part = {.n = rows->n - first,
                           .keys = rows->keys + first,
                           .scores = rows->scores + first,
                           .stamps = rows->stamps + first,
                           .rows = rows->rows + first * rows->n_floats,
                           .n_floats = rows->n_floats};
        if (part.n > w->t->n_room) part.n = w->t->n_room;
        TRY(walk_stored(w, &part));
    }
    return OK;
}

static status walk_tier(walk *w, int tier) {
    embed_table *t = w->t;
    int64_t at_once = t->n_room / TABLE_SLOTS;
    embed_store *store = t->config.store;
    TRY(embed_check_whole(t));
    t->slots_hold = false;
    if (tier == 2) return store == NULL ? OK : store->each(store, walk_store, w);
    int64_t begin = t->shards.first_bucket[tier];
    int64_t n = tier < t->n_levels ? t->shards.n_buckets[tier] : 0;
    for (int64_t first = 0; first < n; first += at_once)
        TRY(walk_buckets(w, tier, begin + first, n - first < at_once ? n - first : at_once));
    return OK;
}

status embed_walk_tier(embed_table *t, int tier, int64_t since, embed_visit visit, void *ctx) {
    walk w = {t, since < 0 ? 0 : (uint32_t)since, true, visit, ctx};
    return walk_tier(&w, tier);
}

status embed_export(embed_table *t, int64_t since, embed_visit visit, void *ctx) {
    for (int tier = 0; tier < EMBED_TIERS; tier++)
        TRY(embed_walk_tier(t, tier, since, visit, ctx));
    return OK;
}

static status add_size(void *ctx, const embed_rows *rows) {
    *(int64_t *)ctx += rows->n;
    return OK;
}

status embed_tier_count(embed_table *t, int tier, int64_t since, int64_t *out) {
    walk w = {.t = t, .since = since < 0 ? 0 : (uint32_t)since, .visit = add_size, .ctx = out};
    *out = 0;
    return walk_tier(&w, tier);
}

status embed_tier_size(embed_table *t, int tier, int64_t *out) {
    return embed_tier_count(t, tier, 0, out);
}

status embed_size(embed_table *t, int64_t *out) {
    walk w = {.t = t, .visit = add_size, .ctx = out};
    *out = 0;
    for (int tier = 0; tier < EMBED_TIERS; tier++)
        TRY(walk_tier(&w, tier));
    return OK;
}

/* Keys of rows that expired. */
typedef struct old_keys {
    uint32_t first_kept; /* stamp: rows with a smaller one are old */
    uint64_t *keys;      /* (n) */
    size_t n, capacity;
} old_keys;

static status list_old(void *ctx, const embed_rows *rows) {
    old_keys *old = ctx;
    for (int64_t i = 0; i < rows->n; i++) {
        if (rows->stamps[i] >= old->first_kept) continue;
        TRY(MEM_RESERVE(&old->keys, &old->capacity, old->n + 1));
        old->keys[old->n++] = rows->keys[i];
    }
    return OK;
}

status embed_expire(embed_table *t, int64_t *n_expired) {
    int64_t first_kept = t->step - t->config.ttl, n = 0;
    old_keys old = {.first_kept = (uint32_t)first_kept};
    walk w = {.t = t, .visit = list_old, .ctx = &old};
    if (n_expired != NULL) *n_expired = 0;
    if (t->config.ttl == 0 || first_kept <= 0) return OK;
    status st = OK;
    for (int tier = 0; st == OK && tier < EMBED_TIERS; tier++)
        st = walk_tier(&w, tier);
    if (st == OK) st = embed_erase(t, (int64_t)old.n, old.keys, &n);
    t->counts.n_expired += n;
    if (n_expired != NULL) *n_expired = n;
    mem_free(old.keys);
    return st;
}

static int by_key(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* Sorts the keys, removes duplicates and keys that are in the table; returns how many remain. */
static status keep_absent(embed_table *t, uint64_t *keys, int64_t n, int64_t *out) {
    int64_t n_different = 0;
    uint8_t *is_found;
    *out = 0;
    qsort(keys, (size_t)n, sizeof *keys, by_key);
    for (int64_t i = 0; i < n; i++)
        if (i == 0 || keys[i] != keys[i - 1]) keys[n_different++] = keys[i];
    TRY(MEM_NEW(&is_found, (size_t)n_different));
    status st = embed_find(t, n_different, keys, 0, NULL, is_found);
    for (int64_t i = 0; st == OK && i < n_different; i++)
        if (!is_found[i]) keys[(*out)++] = keys[i];
    mem_free(is_found);
    return st;
}

status embed_left_since(embed_table *t, int64_t since, uint64_t **keys, int64_t *n) {
    int64_t n_gone = 0;
    *n = 0;
    TRY(MEM_NEW(keys, t->n_gone));
    for (size_t i = 0; i < t->n_gone; i++)
        if (t->gone[i].step >= since) (*keys)[n_gone++] = t->gone[i].key;
    status st = keep_absent(t, *keys, n_gone, n);
    if (st != OK) {
        mem_free(*keys);
        *keys = NULL;
    }
    return st;
}
