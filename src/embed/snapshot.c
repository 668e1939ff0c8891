/* Writing a snapshot (snapshot.h): all ranks that hold the table write their rows to the files at
 * the same time, then the first one writes the manifest with their checksums.  Where one fails, all
 * fail, with its number and its words. */
#include "embed/snapshot.h"

#include "embed/table_int.h"
#include "format/manifest.h"
#include "format/safetensors.h"
#include "ops/comm.h"

/* Most rows and bytes of a file, and of what is in memory at a time. */
enum { FILE_ROWS = 1 << 20, FILE_BYTES = 1 << 26, MEMORY_BYTES = 1 << 22 };

static const char *const policy_names[] = {"none", "lru", "lfu", "step"};
static const char *const opt_names[] = {"sgd", "adam", "adagrad", "rowwise_adagrad"};

const char *embed_policy_name(embed_policy policy) {
    return policy_names[policy];
}

const char *embed_opt_name(opt_kind opt) {
    return opt_names[opt];
}

status embed_policy_parse(const char *name, embed_policy *out) {
    for (int i = POLICY_NONE; i <= POLICY_STEP; i++) {
        *out = (embed_policy)i;
        if (strcmp(name, policy_names[i]) == 0) return OK;
    }
    return fail(ERR_FORMAT, "'%.40s' is no eviction policy", name);
}

status embed_opt_parse(const char *name, opt_kind *out) {
    for (int i = OPT_SGD; i <= OPT_ROWWISE_ADAGRAD; i++) {
        *out = (opt_kind)i;
        if (strcmp(name, opt_names[i]) == 0) return OK;
    }
    return fail(ERR_FORMAT, "'%.40s' is no optimizer of rows", name);
}

void snapshot_rows_name(char name[32], int file) {
    snprintf(name, 32, "rows-%05d.safetensors", file);
}

/* Rows to be written.  A file has `capacity` of them, the last one the rest.  Rows have numbers:
 * those of level 0, of all ranks one after the other, then those of level 1 and of the store, so
 * the place of a row in the files does not depend on the number of ranks, and each rank writes its
 * own. */
typedef struct writer {
    embed_table *t;
    const char *folder;       /* the temporary one */
    int64_t capacity, n_rows; /* of all ranks */
    int n_files;
    int64_t first[EMBED_TIERS]; /* number of this rank's first row of each tier */
    int64_t n, max_n, at;       /* rows in memory, and the number of the first of them */
    uint64_t *keys, *scores;    /* (max_n) */
    uint32_t *stamps;
    float *values, *state; /* (max_n, dim), (max_n, n_state) */
    part_file *file;       /* number `open`, whose rows' data begins at byte `begin` */
    int open;
    uint64_t begin;
    json_writer json; /* of the manifest, in its list of files */
} writer;

static status write_tensors(writer *w, const char *name, const st_tensor *tensors, size_t n) {
    char path[SNAPSHOT_PATH_BYTES];
    int64_t bytes;
    TRY(path_join(path, sizeof path, w->folder, name));
    TRY(st_write(path, tensors, n, NULL, 0));
    return manifest_add_file(&w->json, w->folder, name, &bytes);
}

static int64_t rows_of_file(const writer *w, int file) {
    int64_t left = w->n_rows - file * w->capacity;
    return left < w->capacity ? left : w->capacity;
}

/* The beginning of a file of rows; *bytes: the whole of it. */
static status describe_rows(const writer *w, int file, buf *header, uint64_t *bytes) {
    int64_t dim = w->t->config.dim, n_state = w->t->n_floats - dim, n = rows_of_file(w, file);
    const st_tensor tensors[] = {
        {"keys", ST_I64, 1, {n}, n, .data = NULL},
        {"scores", ST_I64, 1, {n}, n, .data = NULL},
        {"values", ST_F32, 2, {n, dim}, n * dim, .data = NULL},
        {"state", ST_F32, 2, {n, n_state}, n * n_state, .data = NULL},
        {"stamps", ST_I32, 1, {n}, n, .data = NULL},
    };
    TRY(st_header(header, tensors, sizeof tensors / sizeof *tensors, NULL, 0));
    *bytes = header->n_bytes + (uint64_t)n * (20 + 4 * (uint64_t)w->t->n_floats);
    return OK;
}

static status make_files(const writer *w) {
    status st = OK;
    for (int i = 0; i < w->n_files && st == OK; i++) {
        char path[SNAPSHOT_PATH_BYTES], name[32];
        uint64_t bytes;
        buf header = {0};
        snapshot_rows_name(name, i);
        st = path_join(path, sizeof path, w->folder, name);
        if (st == OK) st = describe_rows(w, i, &header, &bytes);
        if (st == OK) st = part_file_make(path, &header, bytes);
        buf_fini(&header);
    }
    return st;
}

static status open_file(writer *w, int file) {
    char path[SNAPSHOT_PATH_BYTES], name[32];
    uint64_t bytes;
    buf header = {0};
    if (w->file != NULL && w->open == file) return OK;
    part_file *before = w->file;
    w->file = NULL; /* it is closed even where that fails */
    TRY(part_file_close(before, OK));
    status st = describe_rows(w, file, &header, &bytes);
    w->begin = header.n_bytes;
    buf_fini(&header);
    TRY(st);
    snapshot_rows_name(name, file);
    TRY(path_join(path, sizeof path, w->folder, name));
    w->open = file;
    return part_file_open(&w->file, path);
}

/* n rows of the memory, from `from` on, to row `to` of the open file. */
static status write_rows(writer *w, int64_t from, int64_t n, int64_t to) {
    size_t dim = (size_t)w->t->config.dim, n_state = (size_t)w->t->n_floats - dim;
    const struct {
        const void *data;
        size_t bytes;
    } columns[] = {{w->keys, 8},
                   {w->scores, 8},
                   {w->values, 4 * dim},
                   {w->state, 4 * n_state},
                   {w->stamps, 4}};
    uint64_t at = w->begin, n_file = (uint64_t)rows_of_file(w, w->open);
    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++) {
        size_t bytes = columns[i].bytes;
        TRY(part_file_write(w->file, at + (uint64_t)to * bytes,
                            (const char *)columns[i].data + (size_t)from * bytes,
                            (size_t)n * bytes));
        at += n_file * bytes;
    }
    return OK;
}

static status flush_rows(writer *w) {
    for (int64_t from = 0, n; from < w->n; from += n) {
        int64_t at = w->at + from, to = at % w->capacity;
        if (at >= w->n_rows)
            return fail(ERR_USAGE, "%s: rows came while it was written", w->folder);
        TRY(open_file(w, (int)(at / w->capacity)));
        n = rows_of_file(w, w->open) - to;
        if (n > w->n - from) n = w->n - from;
        TRY(write_rows(w, from, n, to));
    }
    w->at += w->n;
    w->n = 0;
    return OK;
}

/* A row with a value that is not finite is neither saved (checkpoint.h has the same rule for
 * weights) nor imported. */
static status check_row(const float *row, size_t n, uint64_t key) {
    for (size_t c = 0; c < n; c++)
        if (!isfinite(row[c]))
            return fail(ERR_NUMERIC,
                        "the row of key %" PRIu64 " holds numbers that are not finite; nothing was "
                        "saved",
                        key);
    return OK;
}

static status add_rows(void *ctx, const embed_rows *rows) {
    writer *w = ctx;
    size_t dim = (size_t)w->t->config.dim, n_floats = (size_t)rows->n_floats;
    for (int64_t i = 0; i < rows->n; i++) {
        const float *row = rows->rows + (size_t)i * n_floats;
        TRY(check_row(row, n_floats, rows->keys[i]));
        size_t at = (size_t)w->n++;
        w->keys[at] = rows->keys[i];
        w->scores[at] = rows->scores[i];
        w->stamps[at] = rows->stamps[i];
        memcpy(w->values + at * dim, row, dim * sizeof(float));
        memcpy(w->state + at * (n_floats - dim), row + dim, (n_floats - dim) * sizeof(float));
        if (w->n == w->max_n) TRY(flush_rows(w));
    }
    return OK;
}

static status writer_init(writer *w, embed_table *t, const char *folder, buf *text) {
    size_t n_state = (size_t)(t->n_floats - t->config.dim);
    int64_t row_bytes = 20 + 4 * (int64_t)t->n_floats, by_bytes = FILE_BYTES / row_bytes;
    *w = (writer){.t = t, .folder = folder};
    w->capacity = by_bytes < 1 ? 1 : by_bytes < FILE_ROWS ? by_bytes : FILE_ROWS;
    w->max_n = MEMORY_BYTES / row_bytes < 1 ? 1 : MEMORY_BYTES / row_bytes;
    if (t->file_rows > 0) w->capacity = t->file_rows;
    if (w->max_n > w->capacity) w->max_n = w->capacity;
    size_t n = (size_t)w->max_n;
    json_begin(&w->json, text, 2);
    TRY(MEM_NEW_RAW(&w->keys, n));
    TRY(MEM_NEW_RAW(&w->scores, n));
    TRY(MEM_NEW_RAW(&w->stamps, n));
    TRY(MEM_NEW_RAW(&w->values, n * (size_t)t->config.dim));
    return MEM_NEW_RAW(&w->state, n * n_state);
}

static void writer_fini(writer *w) {
    (void)part_file_close(w->file, ERR_IO);
    MEM_FREE(w->keys, w->scores, w->stamps, w->values, w->state);
}

/* How many rows there are, and which numbers this rank's have. */
static status number_rows(writer *w, int64_t since) {
    const embed_shards *s = &w->t->shards;
    size_t size = (size_t)s->size;
    int64_t *counts = NULL, *own = NULL;
    status st = MEM_NEW(&counts, EMBED_TIERS * size);
    if (st == OK) own = counts + (size_t)s->rank * EMBED_TIERS;
    for (int tier = 0; tier < EMBED_TIERS && st == OK; tier++)
        st = embed_tier_count(w->t, tier, since, &own[tier]);
    st = comm_host_agree(w->t->config.comm, st);
    if (st == OK)
        st = comm_host_reduce(w->t->config.comm, COMM_I64, COMM_SUM, (int64_t)(EMBED_TIERS * size),
                              counts);
    for (int tier = 0; tier < EMBED_TIERS && st == OK; tier++)
        for (int r = 0; r < s->size; r++) {
            if (r == s->rank) w->first[tier] = w->n_rows;
            w->n_rows += counts[(size_t)r * EMBED_TIERS + (size_t)tier];
        }
    mem_free(counts);
    w->n_files = (int)((w->n_rows + w->capacity - 1) / w->capacity);
    return st;
}

static status write_own_rows(writer *w, int64_t since) {
    for (int tier = 0; tier < EMBED_TIERS; tier++) {
        w->at = w->first[tier];
        TRY(embed_walk_tier(w->t, tier, since, add_rows, w));
        TRY(flush_rows(w));
    }
    part_file *file = w->file;
    w->file = NULL;
    return part_file_close(file, OK);
}

/* Ranks hash the files in turn; every rank lists them all. */
static status list_row_files(writer *w) {
    const embed_shards *s = &w->t->shards;
    int64_t *facts = NULL; /* size and hash of each */
    status st = MEM_NEW(&facts, 2 * (size_t)w->n_files);
    for (int i = s->rank; i < w->n_files && st == OK; i += s->size) {
        char path[SNAPSHOT_PATH_BYTES], name[32];
        uint64_t hash = 0;
        snapshot_rows_name(name, i);
        st = path_join(path, sizeof path, w->folder, name);
        if (st == OK) st = manifest_hash_file(path, &facts[2 * i], &hash);
        facts[2 * i + 1] = (int64_t)hash;
    }
    st = comm_host_agree(w->t->config.comm, st);
    if (st == OK)
        st =
            comm_host_reduce(w->t->config.comm, COMM_I64, COMM_SUM, 2 * (int64_t)w->n_files, facts);
    for (int i = 0; i < w->n_files && st == OK; i++) {
        char name[32];
        snapshot_rows_name(name, i);
        manifest_list_file(&w->json, name, facts[2 * i], (uint64_t)facts[2 * i + 1]);
    }
    mem_free(facts);
    return st;
}

/* All ranks: the rows of the table. */
static status write_table_rows(writer *w, int64_t since) {
    comm *c = w->t->config.comm;
    TRY(number_rows(w, since));
    TRY(comm_host_agree(c, comm_is_first(c) ? make_files(w) : OK));
    TRY(comm_host_agree(c, write_own_rows(w, since)));
    return list_row_files(w);
}

static status write_gone(const embed_totals *all, writer *w, int64_t since) {
    const st_tensor tensor = {"keys", ST_I64, 1, {all->n_gone}, all->n_gone, .data = all->gone};
    return since == 0 ? OK : write_tensors(w, "gone.safetensors", &tensor, 1);
}

static status write_seen(const embed_totals *all, writer *w) {
    int64_t n = all->seen.n, width = (int64_t)all->seen.mask + 1;
    const st_tensor tensors[] = {{"counters",
                                  ST_I16,
                                  3,
                                  {n, SKETCH_ROWS, width},
                                  n * SKETCH_ROWS * width,
                                  .data = all->seen.counter},
                                 {"uses", ST_I64, 1, {n}, n, .data = all->seen.n_seen}};
    return n == 0 ? OK : write_tensors(w, "seen.safetensors", tensors, 2);
}

/* How full the tiers are. */
static void describe_tiers(json_writer *json, const embed_table *t, const embed_totals *all) {
    static const char *const slots[] = {"level0_slots", "level1_slots"};
    static const char *const rows[] = {"level0_rows", "level1_rows", "store_rows"};
    for (int i = 0; i < EMBED_LEVELS; i++)
        json_key_int(json, slots[i], t->level[i].n_buckets * TABLE_SLOTS);
    for (int i = 0; i < EMBED_TIERS; i++)
        json_key_int(json, rows[i], all->tier_rows[i]);
}

static int64_t count_seen(const embed_totals *all) {
    uint64_t n = 0;
    for (int i = 0; i < all->seen.n; i++)
        n += all->seen.n_seen[i];
    return (int64_t)n;
}

static status seal(writer *w, const embed_totals *all, int64_t since) {
    char path[SNAPSHOT_PATH_BYTES];
    const embed_table *t = w->t;
    json_writer *json = &w->json;
    json_array_close(json);
    describe_tiers(json, t, all);
    JSON_FIELDS(json, FIELD("step", t->step), FIELD("since", since), FIELD("clock", t->clock),
                FIELD("seen", count_seen(all)), FIELD("dim", t->config.dim),
                FIELD("floats", t->n_floats), FIELD("optimizer", embed_opt_name(t->config.opt)),
                FIELD("policy", embed_policy_name(t->config.policy)), FIELD("rank", 0),
                FIELD("ranks", 1), FIELD("row_files", w->n_files), FIELD("rows", w->n_rows),
                FIELD("gone", all->n_gone));
    TRY(json_finish_sealed(json));
    TRY(path_join(path, sizeof path, w->folder, "manifest.json"));
    return file_write(path, buf_str(json->out), json->out->n_bytes);
}

/* What the first rank writes when the rows are there. */
static status finish_part(writer *w, const embed_totals *all, int64_t since) {
    TRY(write_gone(all, w, since));
    TRY(write_seen(all, w));
    return seal(w, all, since);
}

static status write_part(embed_table *t, const char *temporary, int64_t since) {
    writer w;
    buf text = {0};
    embed_totals all = {0};
    comm *c = t->config.comm;
    status st = comm_host_agree(c, writer_init(&w, t, temporary, &text));
    json_object_open(&w.json);
    json_key_string(&w.json, "format", SNAPSHOT_FORMAT);
    json_key_array(&w.json, "files");
    if (st == OK) st = write_table_rows(&w, since);
    if (st == OK) st = embed_totals_gather(&all, t, since);
    if (st == OK) st = comm_host_agree(c, comm_is_first(c) ? finish_part(&w, &all, since) : OK);
    embed_totals_fini(&all);
    writer_fini(&w);
    buf_fini(&text);
    return st;
}

/* The temporary folder of a new snapshot. */
static status begin_part(const char *folder, const char *part, const char *temporary) {
    if (folder_exists(part))
        return fail(ERR_USAGE, "%s: there is a snapshot already; choose another folder", part);
    TRY(folder_create(folder, NULL));
    folder_remove(temporary, 0);
    return folder_create(temporary, NULL);
}

/* Writing the manifest, the last file, has synced the temporary folder. */
static status end_part(const char *folder, const char *part, const char *temporary, status st) {
    if (st == OK && rename(temporary, part) != 0)
        st = fail_errno("%s: cannot be put in place", part);
    if (st == OK)
        folder_sync(folder);
    else
        folder_remove(temporary, 0);
    return st;
}

status embed_snapshot_write(embed_table *t, const char *folder, int64_t since) {
    char part[SNAPSHOT_PATH_BYTES], temporary[SNAPSHOT_PATH_BYTES];
    comm *c = t->config.comm;
    if (since < 0 || since > t->step)
        return fail(ERR_USAGE, "%s: changes since step %lld of a table that is at step %lld",
                    folder, (long long)since, (long long)t->step);
    if (since > 0 && !t->config.tracks_left)
        return fail(ERR_USAGE,
                    "%s: an incremental snapshot of a table that does not remember which "
                    "keys left it; make it with tracks_left",
                    folder);
    TRY(path_join(part, sizeof part, folder, SNAPSHOT_PART));
    TRY(path_join(temporary, sizeof temporary, folder, "." SNAPSHOT_PART ".tmp"));
    TRY(comm_host_agree(c, comm_is_first(c) ? begin_part(folder, part, temporary) : OK));
    status st = write_part(t, temporary, since);
    return comm_host_agree(c, comm_is_first(c) ? end_part(folder, part, temporary, st) : st);
}
