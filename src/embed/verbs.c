/* Single verbs (table.h): find, import, erase, clear, each of which splits its keys into pieces of
 * at most a batch; and visits of all rows: export, sizes, expiry, keys that left. */
#include "embed/table_int.h"

typedef status (*piece_fn)(embed_table *t, int64_t first, int64_t n, void *ctx);

static status in_pieces(embed_table *t, int64_t n, piece_fn fn, void *ctx) {
    for (int64_t first = 0; first < n; first += t->n_room)
        TRY(fn(t, first, n - first < t->n_room ? n - first : t->n_room, ctx));
    return OK;
}

/* The rows of this rank: fn gets them as *piece.  Rows are cut into pieces before those of other
 * ranks are left out, so that a row meets the same others of its bucket on any number of ranks. */
static status in_own_pieces(embed_table *t, const embed_rows *rows, const embed_rows **piece,
                            piece_fn fn, void *ctx) {
    for (int64_t first = 0; first < rows->n; first += t->n_room) {
        embed_rows cut = embed_rows_part(rows, first, t->n_room), own;
        void *memory;
        TRY(embed_keep_own(t, &cut, &own, &memory));
        *piece = &own;
        status st = own.n > 0 ? fn(t, 0, own.n, ctx) : OK;
        mem_free(memory);
        TRY(st);
    }
    return OK;
}

/* Makes a batch of rows first .. first + n - 1, whose keys must be distinct; sets h.inverse and, in
 * the order of the batch, h.given_scores and h.given_stamps. */
static status take_piece(embed_table *t, int64_t first, int64_t n, const embed_rows *rows) {
    embed_host *h = &t->h;
    TRY(embed_dedup(t, n, rows->keys + first));
    if (t->batch.n_unique != n)
        return fail(ERR_USAGE, "%lld keys of %lld are given more than once to a dynamic table",
                    (long long)(n - t->batch.n_unique), (long long)n);
    TRY(EMBED_OUT(t, h->inverse, t->d.inverse, n));
    for (int64_t i = 0; i < n; i++) {
        h->given_scores[h->inverse[i]] = rows->scores[first + i];
        h->given_stamps[h->inverse[i]] = rows->stamps[first + i] & ~TABLE_CLEAN;
    }
    return OK;
}

typedef struct find_ctx {
    const uint64_t *keys;
    int32_t n_floats;
    float *rows;
    uint8_t *is_found;
} find_ctx;

static bool is_there(const embed_table *t, int64_t u) {
    return t->h.where[u] <= IN_STORE;
}

/* Reads h.out_rows (U, n_floats) from a level, with one transfer; keys without a slot there read as
 * zeros. */
static status read_level(embed_table *t, int level, int32_t n_floats) {
    int64_t n = t->batch.n_unique;
    table_rows_args read = embed_rows_args(n, t->d.slot[level], n_floats, t->d.moved);
    TRY(EMBED_IN(t, t->d.slot[level], t->h.slot[level], n));
    TRY(t->v->read(t->be, &t->level[level], &read));
    return EMBED_OUT(t, t->h.out_rows, t->d.moved, n * n_floats);
}

/* Reads h.out_rows (U, n_floats).  Rows of level 1 are put into h.store_rows too, from its end:
 * together with the store's rows they are at most U. */
static status collect(embed_table *t, int32_t n_floats) {
    embed_host *h = &t->h;
    size_t row = (size_t)n_floats * sizeof(float), stride = (size_t)t->n_floats;
    int32_t end = (int32_t)t->n_room;
    if (t->n_levels > 1) TRY(read_level(t, 1, n_floats));
    for (int64_t u = 0; u < t->batch.n_unique; u++) {
        if (h->where[u] != IN_LEVEL1) continue;
        h->at[u] = --end;
        memcpy(h->store_rows + (size_t)end * stride, h->out_rows + u * n_floats, row);
    }
    TRY(read_level(t, 0, n_floats));
    for (int64_t u = 0; u < t->batch.n_unique; u++)
        if (h->where[u] == IN_LEVEL1 || h->where[u] == IN_STORE)
            memcpy(h->out_rows + u * n_floats, h->store_rows + (size_t)h->at[u] * stride, row);
    return OK;
}

static status find_piece(embed_table *t, int64_t first, int64_t n, void *ctx) {
    const find_ctx *f = ctx;
    size_t row = (size_t)f->n_floats;
    TRY(embed_dedup(t, n, f->keys + first));
    TRY(EMBED_OUT(t, t->h.inverse, t->d.inverse, n));
    TRY(embed_locate(t));
    if (f->rows != NULL) TRY(collect(t, f->n_floats));
    for (int64_t i = 0; i < n; i++) {
        int32_t u = t->h.inverse[i];
        if (f->is_found != NULL) f->is_found[first + i] = is_there(t, u);
        if (f->rows != NULL)
            memcpy(f->rows + (size_t)(first + i) * row, t->h.out_rows + (size_t)u * row,
                   row * sizeof(float));
    }
    return OK;
}

static status check_floats(const embed_table *t, int32_t n_floats) {
    if (n_floats >= 0 && n_floats <= t->n_floats) return OK;
    return fail(ERR_USAGE, "%d floats of a row that has %d", n_floats, t->n_floats);
}

/* Where some keys may be other ranks': those of this rank are found, the others are absent. */
static status find_own(embed_table *t, int64_t n, const find_ctx *f) {
    size_t row = (size_t)f->n_floats;
    int64_t n_own = 0, at = 0;
    uint64_t *keys = NULL;
    float *rows = NULL;
    uint8_t *is_found = NULL;
    for (int64_t i = 0; i < n; i++)
        n_own += embed_is_own(t, f->keys[i]);
    status st = MEM_NEW(&keys, (size_t)n_own);
    if (st == OK) st = MEM_NEW(&is_found, (size_t)n_own);
    if (st == OK && f->rows != NULL) st = MEM_NEW(&rows, (size_t)n_own * row);
    for (int64_t i = 0; i < n && st == OK; i++)
        if (embed_is_own(t, f->keys[i])) keys[at++] = f->keys[i];
    find_ctx own = {keys, f->n_floats, rows, is_found};
    if (st == OK) st = in_pieces(t, n_own, find_piece, &own);
    at = 0;
    for (int64_t i = 0; i < n && st == OK; i++) {
        bool is_own = embed_is_own(t, f->keys[i]);
        if (f->is_found != NULL) f->is_found[i] = is_own && is_found[at];
        if (f->rows != NULL && is_own)
            memcpy(f->rows + (size_t)i * row, rows + (size_t)at * row, row * sizeof(float));
        if (f->rows != NULL && !is_own) memset(f->rows + (size_t)i * row, 0, row * sizeof(float));
        at += is_own;
    }
    MEM_FREE(keys, rows, is_found);
    return st;
}

status embed_find(embed_table *t, int64_t n, const uint64_t *keys, int32_t n_floats, float *rows,
                  uint8_t *is_found) {
    find_ctx f = {keys, n_floats, rows, is_found};
    TRY(check_floats(t, n_floats));
    return t->shards.size > 1 ? find_own(t, n, &f) : in_pieces(t, n, find_piece, &f);
}

/* Sends the rows of a piece to d.moved, by h.out_rows, in the order of the batch. */
static status send_piece(embed_table *t, int64_t first, int64_t n, const embed_rows *rows) {
    size_t row = (size_t)t->n_floats;
    for (int64_t i = 0; i < n; i++)
        memcpy(t->h.out_rows + (size_t)t->h.inverse[i] * row,
               rows->rows + (size_t)(first + i) * row, row * sizeof(float));
    TRY(EMBED_IN(t, t->d.moved, t->h.out_rows, n * t->n_floats));
    return EMBED_IN(t, t->d.list_stamps, t->h.given_stamps, n);
}

/* Writes d.moved (U, n_floats) and stamps (U) to where the batch's keys are in the levels. */
static status write_levels(embed_table *t, const uint32_t *stamps) {
    int64_t n = t->batch.n_unique;
    for (int i = 0; i < t->n_levels; i++) {
        table_rows_args write = embed_rows_args(n, t->d.slot[i], t->n_floats, t->d.moved);
        table_stamp_args stamp = {.n = n, .slot = t->d.slot[i], .stamps = stamps};
        TRY(t->v->write(t->be, &t->level[i], &write));
        TRY(t->v->stamp(t->be, &t->level[i], &stamp));
    }
    return OK;
}

typedef struct import_ctx {
    const embed_rows *rows;
    int64_t n_rejected;
} import_ctx;

/* Rows of the piece that no level admitted: a store takes them. */
static status import_rest(embed_table *t, import_ctx *c) {
    const embed_host *h = &t->h;
    embed_rows all = {t->batch.n_unique, h->keys,     h->given_scores,
                      h->given_stamps,   h->out_rows, t->n_floats};
    int64_t n = 0;
    for (int64_t u = 0; u < all.n; u++)
        if (h->slot[0][u] < 0 && h->slot[1][u] < 0) embed_out_add(t, n++, &all, u);
    embed_rows rest = embed_out_rows(t, n);
    if (n == 0) return OK;
    if (t->config.store != NULL) {
        t->counts.n_rejected -= n;
        return t->config.store->put(t->config.store, &rest);
    }
    c->n_rejected += n;
    return OK;
}

static status import_piece(embed_table *t, int64_t first, int64_t n, void *ctx) {
    import_ctx *c = ctx;
    embed_host *h = &t->h;
    TRY(take_piece(t, first, n, c->rows));
    embed_bring bring = {
        .rule = SCORE_SET, .scores = h->given_scores, .stamps = h->given_stamps, .is_import = true};
    TRY(embed_settle(t, &bring));
    TRY(send_piece(t, first, n, c->rows));
    TRY(write_levels(t, t->d.list_stamps));
    return import_rest(t, c);
}

status embed_import(embed_table *t, const embed_rows *rows, int64_t *n_rejected) {
    import_ctx c = {rows, 0};
    embed_counts before = t->counts;
    if (rows->n_floats != t->n_floats)
        return fail(ERR_FORMAT, "rows of %d floats for a dynamic table of rows of %d",
                    rows->n_floats, t->n_floats);
    status st = in_own_pieces(t, rows, &c.rows, import_piece, &c);
    /* An import is not a visit: it does not count in hit rates. */
    memcpy(t->counts.hits, before.hits, sizeof before.hits);
    t->counts.n_new = before.n_new;
    if (n_rejected != NULL) *n_rejected = c.n_rejected;
    return st;
}

status embed_insert(embed_table *t, int64_t n, const uint64_t *keys, const float *values,
                    int64_t *n_rejected) {
    size_t row = (size_t)t->n_floats, dim = (size_t)t->config.dim, count = (size_t)n;
    uint64_t *scores = NULL;
    uint32_t *stamps = NULL;
    float *rows = NULL;
    t->clock++;
    uint64_t score = embed_bring_of(t).score;
    status st = MEM_NEW(&scores, count);
    if (st == OK) st = MEM_NEW(&stamps, count);
    if (st == OK) st = MEM_NEW(&rows, count * row);
    for (size_t i = 0; i < count && st == OK; i++) {
        scores[i] = score;
        stamps[i] = (uint32_t)t->step;
        memcpy(rows + i * row, values + i * dim, dim * sizeof(float));
        for (size_t c = dim; c < row; c++)
            rows[i * row + c] = t->config.first_state;
    }
    embed_rows given = {n, keys, scores, stamps, rows, t->n_floats};
    if (st == OK) st = embed_import(t, &given, n_rejected);
    MEM_FREE(scores, stamps, rows);
    return st;
}

typedef struct restore_ctx {
    const embed_rows *rows;
    int level;
    int64_t n_rejected;
} restore_ctx;

/* A key may be in one level only. */
static status check_absent_above(embed_table *t, int level, int64_t n) {
    table_find_args find = {.n = n, .keys = t->d.keys, .slot = t->d.slot[0]};
    if (level == 0) return OK;
    TRY(t->v->find(t->be, &t->level[0], &find));
    TRY(EMBED_OUT(t, t->h.slot[0], t->d.slot[0], n));
    for (int64_t u = 0; u < n; u++)
        if (t->h.slot[0][u] >= 0)
            return fail(ERR_FORMAT, "a key is given more than once to a dynamic table");
    return OK;
}

/* Keys, scores, stamps and rows of the piece into free slots of the level. */
static status restore_piece(embed_table *t, int64_t first, int64_t n, void *ctx) {
    restore_ctx *c = ctx;
    embed_device *d = &t->d;
    int64_t counts[PLACED_COUNTS];
    table_place_args place = {.n = n,
                              .keys = d->keys,
                              .is_ordered = true,
                              .rule = SCORE_SET,
                              .scores = d->list_scores,
                              .stamps = d->list_stamps,
                              .evict = EVICT_NEVER,
                              .slot = d->slot[c->level],
                              .is_new = d->is_new,
                              .counts = d->counts};
    table_rows_args write = embed_rows_args(n, d->slot[c->level], t->n_floats, d->moved);
    TRY(take_piece(t, first, n, c->rows));
    TRY(check_absent_above(t, c->level, n));
    TRY(EMBED_IN(t, d->list_scores, t->h.given_scores, n));
    TRY(send_piece(t, first, n, c->rows));
    t->is_torn = true; /* until the rows are in their places */
    TRY(t->v->place(t->be, &t->level[c->level], &place));
    TRY(t->v->write(t->be, &t->level[c->level], &write));
    TRY(EMBED_OUT(t, counts, d->counts, PLACED_COUNTS));
    t->is_torn = false;
    c->n_rejected += counts[PLACED_REJECTED];
    return OK;
}

status embed_restore(embed_table *t, int level, const embed_rows *rows, int64_t *n_rejected) {
    restore_ctx c = {rows, level, 0};
    if (rows->n_floats != t->n_floats)
        return fail(ERR_FORMAT, "rows of %d floats for a dynamic table of rows of %d",
                    rows->n_floats, t->n_floats);
    status st = in_own_pieces(t, rows, &c.rows, restore_piece, &c);
    *n_rejected = c.n_rejected;
    return st;
}

typedef struct erase_ctx {
    const uint64_t *keys;
    int64_t n_erased;
} erase_ctx;

/* Steps that can fail come first: otherwise an old copy left in the store would reappear. */
static status erase_piece(embed_table *t, int64_t first, int64_t n, void *ctx) {
    erase_ctx *e = ctx;
    embed_host *h = &t->h;
    int64_t n_there = 0;
    TRY(embed_dedup(t, n, e->keys + first));
    TRY(embed_locate(t));
    n = t->batch.n_unique;
    for (int64_t u = 0; u < n; u++)
        if (is_there(t, u)) h->list_keys[n_there++] = h->keys[u];
    TRY(embed_note_left(t, n_there, h->list_keys));
    if (t->config.store != NULL) TRY(t->config.store->erase(t->config.store, n, h->keys));
    for (int i = 0; i < t->n_levels; i++) {
        table_erase_args erase = {.n = n, .keys = t->d.keys};
        TRY(t->v->erase(t->be, &t->level[i], &erase));
    }
    e->n_erased += n_there;
    return OK;
}

status embed_erase(embed_table *t, int64_t n, const uint64_t *keys, int64_t *n_erased) {
    erase_ctx e = {keys, 0};
    embed_rows given = {.n = n, .keys = keys}, own;
    void *memory;
    TRY(embed_keep_own(t, &given, &own, &memory));
    e.keys = own.keys;
    status st = in_pieces(t, own.n, erase_piece, &e);
    mem_free(memory);
    TRY(st);
    if (n_erased != NULL) *n_erased = e.n_erased;
    return OK;
}

static status note_all(void *ctx, const embed_rows *rows) {
    return embed_note_left(ctx, rows->n, rows->keys);
}

status embed_clear(embed_table *t) {
    bool was_torn = t->is_torn;
    t->slots_hold = t->is_torn = false; /* keys can be told even then */
    status st = t->config.tracks_left ? embed_export(t, 0, note_all, t) : OK;
    t->is_torn = was_torn;
    if (st == OK && t->config.store != NULL) st = t->config.store->clear(t->config.store);
    TRY(st);
    for (int i = 0; i < t->n_levels; i++)
        TRY(t->be->ops->zero(t->be, t->memory[i][0],
                             (size_t)t->shards.n_buckets[i] * TABLE_BUCKET_BYTES));
    t->is_torn = false;
    sketch_clear(&t->seen);
    return OK;
}

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
    embed_rows rows = embed_out_rows(t, 0);
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
        table_rows_args read = embed_rows_args(rows.n, d->list_slot, t->n_floats, d->moved);
        TRY(t->v->read(t->be, &t->level[level], &read));
        TRY(EMBED_OUT(t, h->out_rows, d->moved, rows.n * t->n_floats));
    }
    return rows.n == 0 ? OK : w->visit(w->ctx, &rows);
}

/* Rows of the store whose key is in no level; the others are older copies. */
static status walk_stored(const walk *w, const embed_rows *rows) {
    embed_table *t = w->t;
    embed_host *h = &t->h;
    int64_t n = 0;
    for (int i = 0; i < t->n_levels; i++) {
        table_find_args find = {.n = rows->n, .keys = t->d.list_keys, .slot = t->d.slot[i]};
        if (i == 0) TRY(EMBED_IN(t, t->d.list_keys, rows->keys, rows->n));
        TRY(t->v->find(t->be, &t->level[i], &find));
        TRY(EMBED_OUT(t, h->slot[i], t->d.slot[i], rows->n));
    }
    for (int64_t i = 0; i < rows->n; i++) {
        bool is_copy = h->slot[0][i] >= 0 || (t->n_levels > 1 && h->slot[1][i] >= 0);
        if (!is_copy && rows->stamps[i] >= w->since) embed_out_add(t, n++, rows, i);
    }
    embed_rows own = embed_out_rows(t, n);
    return n == 0 ? OK : w->visit(w->ctx, &own);
}

static status walk_store(void *ctx, const embed_rows *rows) {
    const walk *w = ctx;
    for (int64_t first = 0; first < rows->n; first += w->t->n_room) {
        embed_rows part = embed_rows_part(rows, first, w->t->n_room);
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

static status walk_all(walk *w) {
    for (int tier = 0; tier < EMBED_TIERS; tier++)
        TRY(walk_tier(w, tier));
    return OK;
}

status embed_walk_tier(embed_table *t, int tier, int64_t since, embed_visit visit, void *ctx) {
    walk w = {t, since < 0 ? 0 : (uint32_t)since, true, visit, ctx};
    return walk_tier(&w, tier);
}

status embed_export(embed_table *t, int64_t since, embed_visit visit, void *ctx) {
    walk w = {t, since < 0 ? 0 : (uint32_t)since, true, visit, ctx};
    return walk_all(&w);
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
    return walk_all(&w);
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
    status st = walk_all(&w);
    if (st == OK) st = embed_erase(t, (int64_t)old.n, old.keys, &n);
    t->counts.n_expired += n;
    if (n_expired != NULL) *n_expired = n;
    mem_free(old.keys);
    return st;
}

/* Sorts the keys, removes duplicates and keys that are in the table; returns how many remain. */
static status keep_absent(embed_table *t, uint64_t *keys, int64_t n, int64_t *out) {
    int64_t n_different = 0;
    uint8_t *is_found;
    *out = 0;
    sort_uint64(keys, (size_t)n);
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
