/* Reading snapshots (snapshot.h).  Every number is checked before it is used, and all checksums
 * before the table changes. */
#include "embed/table_int.h"
#include "format/manifest.h"
#include "format/safetensors.h"

/* No count is larger. */
#define COUNT_MAX ((int64_t)1 << 46)

enum { MANIFEST_MAX_BYTES = 1 << 26, PIECE = 4096 };

static const char remedy[] = "this snapshot is damaged, use another one";

static status damaged(const char *path, const char *what) {
    return fail(ERR_FORMAT, "%s: %s; %s", path, what, remedy);
}

static status member_in(const json_value *root, const char *key, int64_t low, int64_t high,
                        int64_t *out) {
    TRY(json_member_int(root, key, out));
    if (*out >= low && *out <= high) return OK;
    return fail(ERR_FORMAT, "%s is %lld", key, (long long)*out);
}

static status copy_word(const json_value *root, const char *key, char to[32]) {
    const char *text;
    TRY(json_member_string(root, key, &text));
    if (strlen(text) >= 32) return fail(ERR_FORMAT, "a long %s", key);
    memcpy(to, text, strlen(text) + 1);
    return OK;
}

static status read_tiers(const json_value *root, snapshot_info *out) {
    TRY(member_in(root, "level0_slots", 1, COUNT_MAX, &out->slots[0]));
    TRY(member_in(root, "level1_slots", 0, COUNT_MAX, &out->slots[1]));
    TRY(member_in(root, "level0_rows", 0, COUNT_MAX, &out->tier_rows[0]));
    TRY(member_in(root, "level1_rows", 0, COUNT_MAX, &out->tier_rows[1]));
    return member_in(root, "store_rows", 0, COUNT_MAX, &out->tier_rows[2]);
}

static status read_info(const json_value *root, snapshot_info *out) {
    const char *format;
    int64_t rank, n_ranks, dim, floats, clock, seen, n_files;
    TRY(json_member_string(root, "format", &format));
    if (strcmp(format, SNAPSHOT_FORMAT) != 0)
        return fail(ERR_UNSUPPORTED, "'%.60s' is a format this version does not know", format);
    TRY(member_in(root, "step", 1, INT32_MAX, &out->step));
    TRY(member_in(root, "since", 0, INT32_MAX, &out->since));
    TRY(member_in(root, "clock", 0, INT64_MAX, &clock));
    TRY(member_in(root, "seen", 0, INT64_MAX, &seen));
    TRY(member_in(root, "dim", 1, 65536, &dim));
    TRY(member_in(root, "floats", dim, 4 * dim, &floats));
    TRY(member_in(root, "rank", 0, 0, &rank));
    TRY(member_in(root, "ranks", 1, 1, &n_ranks));
    TRY(member_in(root, "row_files", 0, 1 << 24, &n_files));
    TRY(member_in(root, "rows", 0, COUNT_MAX, &out->n_rows));
    TRY(member_in(root, "gone", 0, COUNT_MAX, &out->n_gone));
    TRY(read_tiers(root, out));
    TRY(copy_word(root, "optimizer", out->optimizer));
    TRY(copy_word(root, "policy", out->policy));
    out->dim = (int32_t)dim;
    out->n_floats = (int32_t)floats;
    out->clock = (uint64_t)clock;
    out->n_seen = (uint64_t)seen;
    out->n_files = (int)n_files;
    return OK;
}

/* All files that change the table must be listed, since only listed files have checksums. */
static status verify_list(const manifest *m, const snapshot_info *info) {
    const json_value *e;
    int n_rows = 0;
    int64_t row_bytes = 0;
    bool has_gone = info->since == 0;
    TRY(manifest_check_names(m, NULL, 0, &e));
    for (; e != NULL; e = e->next) {
        manifest_file f;
        char want[32];
        TRY(manifest_read_file(m, e, &f));
        TRY(manifest_check_file(m, &f));
        snapshot_rows_name(want, n_rows);
        bool is_rows = strcmp(f.name, want) == 0;
        n_rows += is_rows;
        has_gone = has_gone || strcmp(f.name, "gone.safetensors") == 0;
        if (is_rows) row_bytes += f.bytes;
    }
    /* Whoever reads them makes room for that many. */
    if (info->n_rows > row_bytes / (20 + 4 * (int64_t)info->n_floats))
        return manifest_damaged(m, m->path, "it counts more rows than its files have");
    return n_rows == info->n_files && has_gone
               ? OK
               : manifest_damaged(m, m->path, "it does not list all files");
}

bool embed_is_snapshot(const char *folder) {
    char part[SNAPSHOT_PATH_BYTES];
    return path_join(part, sizeof part, folder, SNAPSHOT_PART) == OK && folder_exists(part);
}

/* Reads the manifest and checks the files against it. */
status embed_snapshot_info(const char *folder, snapshot_info *out) {
    char part[SNAPSHOT_PATH_BYTES], path[SNAPSHOT_PATH_BYTES];
    manifest m;
    *out = (snapshot_info){0};
    if (!embed_is_snapshot(folder))
        return fail(ERR_FORMAT, "%s: no snapshot of a dynamic table (no " SNAPSHOT_PART " folder)",
                    folder);
    TRY(path_join(part, sizeof part, folder, SNAPSHOT_PART));
    TRY(path_join(path, sizeof path, part, "manifest.json"));
    if (!file_exists(path)) return damaged(path, "the file is missing");
    status st = manifest_open(&m, part, "manifest.json", MANIFEST_MAX_BYTES, remedy);
    if (st == OK) st = read_info(m.root, out);
    if (st == OK && !m.is_sealed)
        st = manifest_damaged(&m, path, "the content does not fit its checksum");
    if (st == OK) st = verify_list(&m, out);
    return manifest_close(&m, st);
}

status embed_snapshot_seal(const char *folder, uint64_t *out) {
    char path[SNAPSHOT_PATH_BYTES], *text;
    size_t n;
    *out = 0;
    TRY(path_join(path, sizeof path, folder, SNAPSHOT_PART "/manifest.json"));
    TRY(file_read_all(path, MANIFEST_MAX_BYTES, &text, &n));
    *out = hash64(text, n, 0);
    mem_free(text);
    return OK;
}

/* The tensors of a file of rows, with consistent shapes. */
typedef struct row_file {
    st_file *file;
    int64_t n;
    int32_t dim, n_state;
    const st_tensor *keys, *scores, *stamps, *values, *state;
} row_file;

static status fits(const row_file *f, const st_tensor *t, int64_t width) {
    bool is_right = t->n_dims == (width < 0 ? 1 : 2) && t->shape[0] == f->n &&
                    (width < 0 || t->shape[1] == width);
    if (is_right) return OK;
    return fail(ERR_FORMAT, "%s: the shape of %s does not fit the others", f->file->path, t->name);
}

static status row_file_check(row_file *f, const snapshot_info *info) {
    TRY(st_get(f->file, "keys", ST_I64, &f->keys));
    TRY(st_get(f->file, "scores", ST_I64, &f->scores));
    TRY(st_get(f->file, "stamps", ST_I32, &f->stamps));
    TRY(st_get(f->file, "values", ST_F32, &f->values));
    TRY(st_get(f->file, "state", ST_F32, &f->state));
    f->n = f->keys->n;
    f->dim = info->dim;
    f->n_state = info->n_floats - info->dim;
    TRY(fits(f, f->keys, -1));
    TRY(fits(f, f->scores, -1));
    TRY(fits(f, f->stamps, -1));
    TRY(fits(f, f->values, f->dim));
    return fits(f, f->state, f->n_state);
}

/* Rows of a piece, packed. */
typedef struct piece {
    uint64_t keys[PIECE], scores[PIECE];
    uint32_t stamps[PIECE];
    float *rows; /* (PIECE, n_floats) */
} piece;

/* What is done with the rows of a snapshot. */
typedef struct reader {
    embed_visit visit;
    void *ctx;
    piece *p;
} reader;

/* The bytes may be unaligned in the file. */
static void take_row(const row_file *f, int64_t i, piece *p, int64_t at) {
    size_t dim = (size_t)f->dim, n_state = (size_t)f->n_state, n_floats = dim + n_state;
    memcpy(&p->scores[at], (const char *)f->scores->data + 8 * i, 8);
    memcpy(&p->stamps[at], (const char *)f->stamps->data + 4 * i, 4);
    p->stamps[at] &= ~TABLE_CLEAN;
    memcpy(p->rows + (size_t)at * n_floats, (const char *)f->values->data + (size_t)i * dim * 4,
           dim * 4);
    memcpy(p->rows + (size_t)at * n_floats + dim,
           (const char *)f->state->data + (size_t)i * n_state * 4, n_state * 4);
}

static status visit_file(const reader *r, const row_file *f) {
    piece *p = r->p;
    int64_t n = 0;
    for (int64_t i = 0; i < f->n; i++) {
        memcpy(&p->keys[n], (const char *)f->keys->data + 8 * i, 8);
        take_row(f, i, p, n++);
        if (n == PIECE || i + 1 == f->n) {
            embed_rows rows = {n, p->keys, p->scores, p->stamps, p->rows, f->dim + f->n_state};
            TRY(r->visit(r->ctx, &rows));
            n = 0;
        }
    }
    return OK;
}

static status visit_files(const reader *r, const char *folder, const snapshot_info *info) {
    char part[SNAPSHOT_PATH_BYTES], path[SNAPSHOT_PATH_BYTES], name[32];
    TRY(path_join(part, sizeof part, folder, SNAPSHOT_PART));
    for (int i = 0; i < info->n_files; i++) {
        row_file f = {0};
        snapshot_rows_name(name, i);
        TRY(path_join(path, sizeof path, part, name));
        TRY(st_open(&f.file, path));
        status st = row_file_check(&f, info);
        if (st == OK) st = visit_file(r, &f);
        st_close(f.file);
        TRY(st);
    }
    return OK;
}

static status visit_snapshot(reader *r, const char *folder, const snapshot_info *info) {
    TRY(MEM_NEW(&r->p, 1));
    status st = mem_alloc((void **)&r->p->rows, (size_t)PIECE * (size_t)info->n_floats, 4);
    if (st == OK) st = visit_files(r, folder, info);
    MEM_FREE(r->p->rows, r->p);
    return st;
}

status embed_snapshot_each(const char *folder, embed_visit visit, void *ctx) {
    reader r = {.visit = visit, .ctx = ctx};
    snapshot_info info;
    TRY(embed_snapshot_info(folder, &info));
    return visit_snapshot(&r, folder, &info);
}

typedef struct restore {
    embed_table *t;
    int64_t n_rejected;
    /* A table of the same shape gets its rows back in the level where they were, or what is evicted
     * later would not be the same.  The files hold level 0 first. */
    bool keeps_levels;
    int64_t left[EMBED_LEVELS]; /* rows of each level that are still to come */
} restore;

static bool has_shape(const embed_table *t, const snapshot_info *info) {
    bool is_same = t->n_levels == EMBED_LEVELS && t->config.store == NULL && info->since == 0 &&
                   info->tier_rows[0] + info->tier_rows[1] == info->n_rows;
    for (int i = 0; i < EMBED_LEVELS; i++)
        is_same = is_same && info->slots[i] == t->level[i].n_buckets * TABLE_SLOTS;
    return is_same;
}

static status restore_rows(void *ctx, const embed_rows *rows) {
    restore *r = ctx;
    embed_rows rest = *rows;
    int64_t n_rejected;
    for (int i = 0; r->keeps_levels && i < EMBED_LEVELS; i++) {
        embed_rows head = embed_rows_part(&rest, 0, r->left[i]);
        rest = embed_rows_part(&rest, head.n, rest.n);
        TRY(embed_restore(r->t, i, &head, &n_rejected));
        r->n_rejected += n_rejected;
        r->left[i] -= head.n;
    }
    TRY(embed_import(r->t, &rest, &n_rejected));
    r->n_rejected += n_rejected;
    return OK;
}

/* Keys that left between the snapshots: erasing a missing key does no harm. */
static status erase_gone(embed_table *t, const char *folder) {
    char path[SNAPSHOT_PATH_BYTES];
    const st_tensor *keys;
    uint64_t *copy = NULL;
    st_file *f;
    TRY(path_join(path, sizeof path, folder, SNAPSHOT_PART "/gone.safetensors"));
    TRY(st_open(&f, path));
    status st = st_get(f, "keys", ST_I64, &keys);
    if (st == OK) st = MEM_NEW_RAW(&copy, (size_t)keys->n);
    if (st == OK && keys->n > 0) memcpy(copy, keys->data, (size_t)keys->n * sizeof *copy);
    if (st == OK) st = embed_erase(t, keys->n, copy, NULL);
    mem_free(copy);
    st_close(f);
    return st;
}

/* This rank's shards of a sketch with the same shards. */
static void take_seen(sketch *s, int n_shards, const st_tensor *counters, const st_tensor *uses) {
    int64_t width = (int64_t)s->mask + 1;
    size_t part = sketch_part_n(s) * sizeof *s->counter;
    if (counters->n_dims != 3 || counters->shape[0] != n_shards ||
        counters->shape[1] != SKETCH_ROWS || counters->shape[2] != width || uses->n != n_shards)
        return;
    memcpy(s->counter, (const char *)counters->data + (size_t)s->first * part, (size_t)s->n * part);
    memcpy(s->n_seen, (const char *)uses->data + (size_t)s->first * sizeof *s->n_seen,
           (size_t)s->n * sizeof *s->n_seen);
}

/* The sketch, where it has the same size; else counting starts again. */
static status restore_seen(embed_table *t, const char *folder) {
    char path[SNAPSHOT_PATH_BYTES];
    const st_tensor *counters, *uses;
    st_file *f;
    TRY(path_join(path, sizeof path, folder, SNAPSHOT_PART "/seen.safetensors"));
    if (t->seen.counter == NULL || !file_exists(path)) return OK;
    TRY(st_open(&f, path));
    status st = OK;
    if (st_find(f, "uses") != NULL) { /* before there were shards, there was one list of counters */
        st = st_get(f, "counters", ST_I16, &counters);
        if (st == OK) st = st_get(f, "uses", ST_I64, &uses);
        if (st == OK) take_seen(&t->seen, t->shards.n, counters, uses);
    }
    st_close(f);
    return st;
}

static status check_fit(const embed_table *t, const char *folder, const snapshot_info *info) {
    if (info->dim != t->config.dim || info->n_floats != t->n_floats ||
        strcmp(info->optimizer, embed_opt_name(t->config.opt)) != 0)
        return fail(ERR_CONFIG, "%s: rows of %d values for %s; the table has %d for %s", folder,
                    info->dim, info->optimizer, t->config.dim, embed_opt_name(t->config.opt));
    if (info->since > 0 && info->step < t->step)
        return fail(ERR_USAGE,
                    "%s: changes up to step %lld for a table at step %lld; read snapshots from the "
                    "oldest to the newest",
                    folder, (long long)info->step, (long long)t->step);
    if (info->since > t->step && info->since > 1)
        return fail(ERR_USAGE,
                    "%s: changes since step %lld for a table at step %lld; read the snapshots in "
                    "between first",
                    folder, (long long)info->since, (long long)t->step);
    return OK;
}

status embed_snapshot_read(embed_table *t, const char *folder, int64_t *n_rejected) {
    restore into = {.t = t};
    reader r = {.visit = restore_rows, .ctx = &into};
    snapshot_info info;
    if (n_rejected != NULL) *n_rejected = 0;
    TRY(embed_snapshot_info(folder, &info));
    TRY(check_fit(t, folder, &info));
    into.keeps_levels = has_shape(t, &info);
    memcpy(into.left, info.tier_rows, sizeof into.left);
    if (info.since == 0)
        TRY(embed_clear(t));
    else
        TRY(erase_gone(t, folder));
    if (info.step > t->step) TRY(embed_set_step(t, info.step));
    if (info.clock > t->clock) t->clock = info.clock;
    TRY(visit_snapshot(&r, folder, &info));
    TRY(restore_seen(t, folder));
    /* What left is in the snapshot itself. */
    embed_forget_left(t, INT64_MAX);
    if (n_rejected != NULL) *n_rejected = into.n_rejected;
    return OK;
}

/* Rows on their way to a table under other keys. */
typedef struct adoption {
    embed_table *t;
    snapshot_rename rename;
    void *ctx;
    snapshot_counts *counts;
    piece *p;
} adoption;

static status adopt_rows(void *ctx, const embed_rows *from) {
    adoption *a = ctx;
    piece *p = a->p;
    size_t n_floats = (size_t)from->n_floats;
    int64_t n = 0, n_rejected = 0;
    for (int64_t i = 0; i < from->n; i++) {
        p->keys[n] = from->keys[i];
        if (!a->rename(a->ctx, &p->keys[n])) continue;
        p->scores[n] = from->scores[i];
        p->stamps[n] = from->stamps[i];
        memcpy(p->rows + (size_t)n * n_floats, from->rows + (size_t)i * n_floats, n_floats * 4);
        n++;
    }
    embed_rows rows = {n, p->keys, p->scores, p->stamps, p->rows, from->n_floats};
    if (n > 0) TRY(embed_import(a->t, &rows, &n_rejected));
    a->counts->n_kept += n - n_rejected;
    a->counts->n_left_out += from->n - n;
    a->counts->n_rejected += n_rejected;
    return OK;
}

static status adopt(adoption *a, const char *folder, const snapshot_info *info) {
    reader r = {.visit = adopt_rows, .ctx = a};
    embed_table *t = a->t;
    TRY(mem_alloc((void **)&a->p->rows, (size_t)PIECE * (size_t)info->n_floats, 4));
    TRY(embed_clear(t));
    if (info->step > t->step) TRY(embed_set_step(t, info->step));
    if (info->clock > t->clock) t->clock = info->clock;
    TRY(visit_snapshot(&r, folder, info));
    embed_forget_left(t, INT64_MAX);
    return OK;
}

status embed_snapshot_adopt(embed_table *t, const char *folder, snapshot_rename rename, void *ctx,
                            snapshot_counts *out) {
    adoption a = {.t = t, .rename = rename, .ctx = ctx, .counts = out};
    snapshot_info info;
    *out = (snapshot_counts){0};
    TRY(embed_snapshot_info(folder, &info));
    TRY(check_fit(t, folder, &info));
    if (info.since > 0)
        return fail(ERR_USAGE, "%s: holds the changes since a step, not all rows", folder);
    TRY(MEM_NEW(&a.p, 1));
    status st = adopt(&a, folder, &info);
    MEM_FREE(a.p->rows, a.p);
    return st;
}
