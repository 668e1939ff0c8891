/* Import of dynamicemb's raw dumps (snapshot.h): little-endian arrays without a header, a file for
 * each of keys, values, scores and optimizer values, and for each rank that wrote. */
#include "embed/table_int.h"

enum { DUMP_PIECE = 4096, DUMP_MAX_RANKS = 8192 };

/* Who wrote a file. */
typedef struct dump_rank {
    int rank, n_ranks;
} dump_rank;

typedef struct dump {
    file_map keys, values, scores, opt;
    int64_t n;
    int64_t n_opt; /* floats of optimizer state in a row of the file; 0: none */
    uint64_t max_age;
    bool has_ages;
} dump;

static status dump_path(char path[SNAPSHOT_PATH_BYTES], const char *folder, const char *name,
                        const char *item, dump_rank writer) {
    char file[1024];
    int n = snprintf(file, sizeof file, "%s_emb_%s.rank_%d.world_size_%d", name, item, writer.rank,
                     writer.n_ranks);
    if (n < 0 || (size_t)n >= sizeof file)
        return fail(ERR_USAGE, "a table's name of %zu bytes", strlen(name));
    return path_join(path, SNAPSHOT_PATH_BYTES, folder, file);
}

/* Maps a file; an optional file may be missing. */
static status open_item(file_map *out, const char *folder, const char *name, const char *item,
                        dump_rank writer, bool is_needed) {
    char path[SNAPSHOT_PATH_BYTES];
    TRY(dump_path(path, folder, name, item, writer));
    if (!is_needed && !file_exists(path)) return OK;
    return file_map_open(out, path);
}

static status check_sizes(dump *d, const embed_table *t, const char *folder, const char *name) {
    size_t n = d->keys.n_bytes / 8, dim = (size_t)t->config.dim;
    size_t n_state = (size_t)t->n_floats - dim;
    d->n = (int64_t)n;
    if (d->keys.n_bytes % 8 != 0 || d->values.n_bytes / dim != n * 4 ||
        d->values.n_bytes % dim != 0)
        return fail(ERR_FORMAT, "%s/%s: %zu bytes of keys and %zu of values are no rows of %zu",
                    folder, name, d->keys.n_bytes, d->values.n_bytes, dim);
    if (d->scores.bytes != NULL && d->scores.n_bytes != n * 8)
        return fail(ERR_FORMAT, "%s/%s: %zu bytes of scores for %zu keys", folder, name,
                    d->scores.n_bytes, n);
    d->n_opt = n == 0 ? 0 : (int64_t)(d->opt.n_bytes / n / 4);
    bool is_padded = t->config.opt == OPT_ROWWISE_ADAGRAD && d->n_opt > 1;
    if (d->opt.n_bytes != n * 4 * (size_t)d->n_opt ||
        (d->n_opt > 0 && d->n_opt != (int64_t)n_state && !is_padded))
        return fail(ERR_FORMAT, "%s/%s: %zu bytes of optimizer values for %zu rows of %s", folder,
                    name, d->opt.n_bytes, n, embed_opt_name(t->config.opt));
    return OK;
}

static status dump_open(dump *d, const embed_table *t, const char *folder, const char *name,
                        dump_rank writer) {
    TRY(open_item(&d->keys, folder, name, "keys", writer, true));
    TRY(open_item(&d->values, folder, name, "values", writer, true));
    TRY(open_item(&d->scores, folder, name, "scores", writer, false));
    TRY(open_item(&d->opt, folder, name, "opt_values", writer, false));
    return check_sizes(d, t, folder, name);
}

static void dump_close(dump *d) {
    file_map *const maps[] = {&d->keys, &d->values, &d->scores, &d->opt};
    for (int i = 0; i < 4; i++)
        if (maps[i]->bytes != NULL) file_map_close(maps[i]);
}

static uint64_t word_at(const file_map *map, int64_t i) {
    uint64_t x;
    memcpy(&x, map->bytes + 8 * i, 8);
    return x;
}

/* Converts a dumped score to ours: ages count backwards, a count goes to the high word. */
static uint64_t score_at(const dump *d, const embed_table *t, int64_t i) {
    if (d->scores.bytes == NULL) return 0;
    uint64_t score = word_at(&d->scores, i);
    if (d->has_ages) return d->max_age - score;
    if (t->config.policy != POLICY_LFU) return score;
    return (score > 0xffffffffu ? 0xffffffffu : score) << 32;
}

static void row_at(const dump *d, const embed_table *t, int64_t i, float *row) {
    size_t dim = (size_t)t->config.dim, n_state = (size_t)t->n_floats - dim;
    memcpy(row, d->values.bytes + (size_t)i * dim * 4, dim * 4);
    for (size_t c = 0; c < n_state && d->n_opt == 0; c++)
        row[dim + c] = t->first.state;
    if (d->n_opt > 0) memcpy(row + dim, d->opt.bytes + (size_t)(i * d->n_opt) * 4, n_state * 4);
}

static status import_rows(dump *d, embed_table *t, float *rows, int64_t *n_imported) {
    uint64_t keys[DUMP_PIECE], scores[DUMP_PIECE];
    uint32_t stamps[DUMP_PIECE];
    int64_t n = 0, n_rejected;
    for (int64_t i = 0; i < d->n; i++) {
        keys[n] = word_at(&d->keys, i);
        scores[n] = score_at(d, t, i);
        if (t->config.policy == POLICY_LRU && scores[n] > INT64_MAX)
            return fail(ERR_FORMAT, "a time of use of %llu; are these scores ages?",
                        (unsigned long long)scores[n]);
        stamps[n] = (uint32_t)t->step;
        row_at(d, t, i, rows + n * t->n_floats);
        if (t->config.policy == POLICY_LRU && scores[n] > t->clock) t->clock = scores[n];
        n++;
        if (n < DUMP_PIECE && i + 1 < d->n) continue;
        embed_rows piece = {n, keys, scores, stamps, rows, t->n_floats};
        TRY(embed_import(t, &piece, &n_rejected));
        *n_imported += n - n_rejected;
        n = 0;
    }
    return OK;
}

/* The oldest row of all ranks, so that ages in different files can be compared. */
static status find_max_age(const embed_table *t, const char *folder, const char *name, int n_ranks,
                           uint64_t *out) {
    *out = 0;
    for (int rank = 0; rank < n_ranks; rank++) {
        dump d = {0};
        status st = dump_open(&d, t, folder, name, (dump_rank){rank, n_ranks});
        for (int64_t i = 0; st == OK && d.scores.bytes != NULL && i < d.n; i++)
            if (word_at(&d.scores, i) > *out) *out = word_at(&d.scores, i);
        dump_close(&d);
        TRY(st);
    }
    return OK;
}

static status find_ranks(const char *folder, const char *name, int *out) {
    char path[SNAPSHOT_PATH_BYTES];
    for (int n = 1; n <= DUMP_MAX_RANKS; n++) {
        TRY(dump_path(path, folder, name, "keys", (dump_rank){0, n}));
        *out = n;
        if (file_exists(path)) return OK;
    }
    return fail(ERR_IO, "%s: no %s_emb_keys.rank_0.world_size_N", folder, name);
}

status embed_import_dump(embed_table *t, const char *folder, const char *name, bool has_ages,
                         int64_t *n_imported) {
    int n_ranks;
    uint64_t max_age = 0;
    float *rows;
    *n_imported = 0;
    TRY(find_ranks(folder, name, &n_ranks));
    if (has_ages) TRY(find_max_age(t, folder, name, n_ranks, &max_age));
    TRY(mem_alloc((void **)&rows, DUMP_PIECE * (size_t)t->n_floats, sizeof *rows));
    status st = OK;
    for (int rank = 0; st == OK && rank < n_ranks; rank++) {
        dump d = {.has_ages = has_ages, .max_age = max_age};
        st = dump_open(&d, t, folder, name, (dump_rank){rank, n_ranks});
        if (st == OK) st = import_rows(&d, t, rows, n_imported);
        dump_close(&d);
    }
    mem_free(rows);
    return st;
}

/* Bytes of one of the table's files, over all ranks; a missing one has none. */
static status add_bytes(const char *folder, const char *name, const char *item, int n_ranks,
                        uint64_t *out) {
    *out = 0;
    for (int rank = 0; rank < n_ranks; rank++) {
        file_map map = {0};
        TRY(open_item(&map, folder, name, item, (dump_rank){rank, n_ranks}, false));
        *out += map.n_bytes;
        if (map.bytes != NULL) file_map_close(&map);
    }
    return OK;
}

status embed_dump_shape(const char *folder, const char *name, int32_t *dim, opt_kind *opt,
                        int64_t *n_rows) {
    uint64_t keys, values, state;
    int n_ranks;
    TRY(find_ranks(folder, name, &n_ranks));
    TRY(add_bytes(folder, name, "keys", n_ranks, &keys));
    TRY(add_bytes(folder, name, "values", n_ranks, &values));
    TRY(add_bytes(folder, name, "opt_values", n_ranks, &state));
    uint64_t n = keys / 8, width = n == 0 ? 0 : values / 4 / n;
    if (width < 1 || width > 65536)
        return fail(ERR_FORMAT, "%s/%s: %llu bytes of keys and %llu of values are no rows", folder,
                    name, (unsigned long long)keys, (unsigned long long)values);
    uint64_t n_state = state / 4 / n;
    *n_rows = (int64_t)n;
    *dim = (int32_t)width;
    *opt = n_state == 0           ? OPT_SGD
           : n_state == 2 * width ? OPT_ADAMW
           : n_state == width     ? OPT_ADAGRAD
                                  : OPT_ROWWISE_ADAGRAD;
    return OK;
}

/* The keys and values that one rank wrote. */
static status each_of_rank(const char *folder, const char *name, dump_rank writer, int32_t dim,
                           embed_visit visit, void *ctx) {
    file_map keys = {0}, values = {0};
    status st = open_item(&keys, folder, name, "keys", writer, true);
    if (st == OK) st = open_item(&values, folder, name, "values", writer, true);
    size_t n = keys.n_bytes / 8, row = (size_t)dim * sizeof(float);
    if (st == OK &&
        (keys.n_bytes % 8 != 0 || values.n_bytes % row != 0 || values.n_bytes / row != n))
        st = fail(ERR_FORMAT, "%s/%s: %zu bytes of keys and %zu of values are no rows of %d",
                  folder, name, keys.n_bytes, values.n_bytes, dim);
    for (size_t i = 0; i < n && st == OK; i += DUMP_PIECE) {
        size_t count = n - i < DUMP_PIECE ? n - i : DUMP_PIECE;
        embed_rows piece = {
            (int64_t)count, (const uint64_t *)(const void *)(keys.bytes + 8 * i),  NULL,
            NULL,           (const float *)(const void *)(values.bytes + row * i), dim};
        st = visit(ctx, &piece);
    }
    if (keys.bytes != NULL) file_map_close(&keys);
    if (values.bytes != NULL) file_map_close(&values);
    return st;
}

status embed_dump_each(const char *folder, const char *name, embed_visit visit, void *ctx) {
    int32_t dim;
    opt_kind opt;
    int64_t n_rows;
    int n_ranks;
    TRY(embed_dump_shape(folder, name, &dim, &opt, &n_rows));
    TRY(find_ranks(folder, name, &n_ranks));
    for (int rank = 0; rank < n_ranks; rank++)
        TRY(each_of_rank(folder, name, (dump_rank){rank, n_ranks}, dim, visit, ctx));
    return OK;
}
