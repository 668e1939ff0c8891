/* Writing a snapshot (snapshot.h): rows are collected into files, then the manifest with their
 * checksums is written. */
#include "embed/snapshot.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/safetensors.h"
#include "embed/snapshot_int.h"

enum { FILE_ROWS = 1 << 20, FILE_BYTES = 1 << 26 };

static const char *const policy_names[] = {"none", "lru", "lfu", "step"};
static const char *const opt_names[] = {"sgd", "adam", "adagrad", "rowwise_adagrad"};

const char *embed_policy_name(embed_policy policy) {
    return policy_names[policy];
}

const char *embed_opt_name(row_opt opt) {
    return opt_names[opt];
}

status embed_policy_parse(const char *name, embed_policy *out) {
    for (int i = POLICY_NONE; i <= POLICY_STEP; i++) {
        *out = (embed_policy)i;
        if (strcmp(name, policy_names[i]) == 0) return OK;
    }
    return fail(ERR_FORMAT, "'%.40s' is no eviction policy", name);
}

status embed_opt_parse(const char *name, row_opt *out) {
    for (int i = ROW_SGD; i <= ROW_ROWWISE_ADAGRAD; i++) {
        *out = (row_opt)i;
        if (strcmp(name, opt_names[i]) == 0) return OK;
    }
    return fail(ERR_FORMAT, "'%.40s' is no optimizer of rows", name);
}

status snapshot_check_ranks(snapshot_ranks ranks) {
    if (ranks.rank >= 0 && ranks.rank < ranks.n_ranks && ranks.n_ranks <= SNAPSHOT_MAX_RANKS)
        return OK;
    return fail(ERR_USAGE, "rank %d of %d", ranks.rank, ranks.n_ranks);
}

status snapshot_part(char path[SNAPSHOT_PATH_BYTES], const char *folder, snapshot_ranks ranks) {
    char name[64];
    snprintf(name, sizeof name, "rank-%d-of-%d", ranks.rank, ranks.n_ranks);
    return path_join(path, SNAPSHOT_PATH_BYTES, folder, name);
}

status snapshot_hash(const char *path, int64_t *bytes, char hex[17]) {
    file_map map;
    TRY(file_map_open(&map, path));
    *bytes = (int64_t)map.n_bytes;
    snprintf(hex, 17, "%016" PRIx64, hash64(map.bytes, map.n_bytes, 0));
    file_map_close(&map);
    return OK;
}

/* Rows to be written to a file. */
typedef struct writer {
    const embed_table *t;
    const char *folder; /* the temporary one */
    int64_t n, capacity, n_rows;
    int n_files;
    uint64_t *keys, *scores; /* (capacity) */
    uint32_t *stamps;
    float *values, *state; /* (capacity, dim), (capacity, n_state) */
    json_writer json;      /* of the manifest, in its list of files */
} writer;

static status list_file(writer *w, const char *name) {
    char path[SNAPSHOT_PATH_BYTES], hex[17];
    int64_t bytes = 0;
    TRY(path_join(path, sizeof path, w->folder, name));
    TRY(snapshot_hash(path, &bytes, hex));
    json_object_open(&w->json);
    json_key_string(&w->json, "name", name);
    json_key_int(&w->json, "bytes", bytes);
    json_key_string(&w->json, "xxh64", hex);
    json_object_close(&w->json);
    return OK;
}

static status write_tensors(writer *w, const char *name, const st_tensor *tensors, size_t n) {
    char path[SNAPSHOT_PATH_BYTES];
    TRY(path_join(path, sizeof path, w->folder, name));
    TRY(st_write(path, tensors, n, NULL, 0));
    return list_file(w, name);
}

static status flush_rows(writer *w) {
    char name[32];
    int64_t dim = w->t->config.dim, n_state = w->t->n_floats - dim, n = w->n;
    const st_tensor tensors[] = {
        {"keys", ST_I64, 1, {n}, n, w->keys},
        {"scores", ST_I64, 1, {n}, n, w->scores},
        {"values", ST_F32, 2, {n, dim}, n * dim, w->values},
        {"state", ST_F32, 2, {n, n_state}, n * n_state, w->state},
        {"stamps", ST_I32, 1, {n}, n, w->stamps},
    };
    if (n == 0) return OK;
    snprintf(name, sizeof name, "rows-%05d.safetensors", w->n_files++);
    w->n_rows += n;
    w->n = 0;
    return write_tensors(w, name, tensors, sizeof tensors / sizeof *tensors);
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
        if (w->n == w->capacity) TRY(flush_rows(w));
    }
    return OK;
}

static status writer_init(writer *w, const embed_table *t, const char *folder, buf *manifest) {
    size_t n_state = (size_t)(t->n_floats - t->config.dim);
    int64_t by_bytes = FILE_BYTES / (20 + 4 * (int64_t)t->n_floats);
    *w = (writer){.t = t, .folder = folder};
    w->capacity = by_bytes < 1 ? 1 : by_bytes < FILE_ROWS ? by_bytes : FILE_ROWS;
    size_t n = (size_t)w->capacity;
    json_begin(&w->json, manifest, 2);
    TRY(MEM_NEW_RAW(&w->keys, n));
    TRY(MEM_NEW_RAW(&w->scores, n));
    TRY(MEM_NEW_RAW(&w->stamps, n));
    TRY(MEM_NEW_RAW(&w->values, n * (size_t)t->config.dim));
    return MEM_NEW_RAW(&w->state, n * n_state);
}

static void writer_fini(writer *w) {
    mem_free(w->keys);
    mem_free(w->scores);
    mem_free(w->stamps);
    mem_free(w->values);
    mem_free(w->state);
}

static status write_gone(const embed_totals *all, writer *w, int64_t since) {
    const st_tensor tensor = {"keys", ST_I64, 1, {all->n_gone}, all->n_gone, all->gone};
    return since == 0 ? OK : write_tensors(w, "gone.safetensors", &tensor, 1);
}

static status write_seen(const embed_totals *all, writer *w) {
    int64_t n = all->seen.n, width = (int64_t)all->seen.mask + 1;
    const st_tensor tensors[] = {{"counters",
                                  ST_I16,
                                  3,
                                  {n, SKETCH_ROWS, width},
                                  n * SKETCH_ROWS * width,
                                  all->seen.counter},
                                 {"uses", ST_I64, 1, {n}, n, all->seen.n_seen}};
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

static status seal(writer *w, const embed_totals *all, snapshot_ranks ranks, int64_t since) {
    char path[SNAPSHOT_PATH_BYTES];
    const embed_table *t = w->t;
    json_writer *json = &w->json;
    out_file *f;
    json_array_close(json);
    describe_tiers(json, t, all);
    json_key_int(json, "step", t->step);
    json_key_int(json, "since", since);
    json_key_int(json, "clock", (int64_t)t->clock);
    json_key_int(json, "seen", count_seen(all));
    json_key_int(json, "dim", t->config.dim);
    json_key_int(json, "floats", t->n_floats);
    json_key_string(json, "optimizer", embed_opt_name(t->config.opt));
    json_key_string(json, "policy", embed_policy_name(t->config.policy));
    json_key_int(json, "rank", ranks.rank);
    json_key_int(json, "ranks", ranks.n_ranks);
    json_key_int(json, "row_files", w->n_files);
    json_key_int(json, "rows", w->n_rows);
    json_key_int(json, "gone", all->n_gone);
    TRY(json_finish_sealed(json));
    TRY(path_join(path, sizeof path, w->folder, "manifest.json"));
    TRY(out_file_create(&f, path));
    status st = out_file_write(f, buf_str(json->out), json->out->n_bytes);
    if (st == OK) return out_file_commit(f);
    out_file_abandon(f);
    return st;
}

static status write_part(embed_table *t, const char *temporary, snapshot_ranks ranks,
                         int64_t since) {
    writer w;
    buf manifest;
    embed_totals all = {0};
    buf_init(&manifest);
    status st = writer_init(&w, t, temporary, &manifest);
    json_object_open(&w.json);
    json_key_string(&w.json, "format", SNAPSHOT_FORMAT);
    json_key(&w.json, "files");
    json_array_open(&w.json);
    if (st == OK) st = embed_gather(t, since, add_rows, &w);
    if (st == OK) st = flush_rows(&w);
    if (st == OK) st = embed_totals_gather(&all, t, since);
    if (st == OK) st = write_gone(&all, &w, since);
    if (st == OK) st = write_seen(&all, &w);
    if (st == OK) st = seal(&w, &all, ranks, since);
    embed_totals_fini(&all);
    writer_fini(&w);
    buf_fini(&manifest);
    return st;
}

/* What ranks other than the first do for a snapshot. */
static status send_part(embed_table *t, int64_t since) {
    embed_totals all;
    TRY(embed_gather(t, since, NULL, NULL));
    status st = embed_totals_gather(&all, t, since);
    embed_totals_fini(&all);
    return st;
}

status embed_snapshot_write(embed_table *t, const char *folder, snapshot_ranks ranks,
                            int64_t since) {
    char part[SNAPSHOT_PATH_BYTES], temporary[SNAPSHOT_PATH_BYTES], name[64];
    TRY(snapshot_check_ranks(ranks));
    if (since < 0 || since > t->step)
        return fail(ERR_USAGE, "%s: changes since step %lld of a table that is at step %lld",
                    folder, (long long)since, (long long)t->step);
    if (since > 0 && !t->config.tracks_left)
        return fail(ERR_USAGE,
                    "%s: an incremental snapshot of a table that does not remember which "
                    "keys left it; make it with tracks_left",
                    folder);
    if (t->shards.rank > 0) return send_part(t, since);
    TRY(snapshot_part(part, folder, ranks));
    if (folder_exists(part))
        return fail(ERR_USAGE, "%s: there is a snapshot already; choose another folder", part);
    TRY(folder_create(folder, NULL));
    snprintf(name, sizeof name, ".rank-%d-of-%d.tmp", ranks.rank, ranks.n_ranks);
    TRY(path_join(temporary, sizeof temporary, folder, name));
    folder_remove(temporary, 0);
    TRY(folder_create(temporary, NULL));
    status st = write_part(t, temporary, ranks, since);
    if (st == OK) {
        folder_sync(temporary);
        if (rename(temporary, part) != 0) st = fail_errno("%s: cannot be put in place", part);
    }
    if (st != OK) {
        folder_remove(temporary, 0);
        return st;
    }
    folder_sync(folder);
    return OK;
}
