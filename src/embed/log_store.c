/* A store that is one log file (store.h): each call is appended as a record with a checksum, and a
 * map in memory has the offset of the newest row of each key.
 *
 * Opening reads the log from the start and truncates it at the first torn record: a record that a
 * crash left half-written never counts. A flush appends a mark, which says that everything before
 * it is on disk: a torn record before a mark is damage, not a crash, and the log is refused, so
 * that flushed rows are never dropped silently.  When most of the log is replaced rows, the live
 * rows are written to a new log, which is renamed over the old one.  A row costs about
 * 50 bytes of memory. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/map.h"
#include "base/mem.h"
#include "embed/store.h"

enum { PATH_BYTES = 4096, EACH_ROWS = 1024, KEPT_GARBAGE = 1 << 22 };

typedef enum { RECORD_ROWS = 1, RECORD_ERASE = 2, RECORD_MARK = 3 } record_kind;

typedef struct log_head {
    char magic[8];
    uint32_t n_floats;
    uint32_t crc; /* of what is above */
} log_head;

/* After it: keys (n) uint64; a record of rows also has scores (n) uint64, rows (n, n_floats),
 * stamps (n) uint32.  A mark has no data; n and crc are the halves of its own offset. */
typedef struct record {
    uint32_t kind, n;
    uint32_t crc;      /* of the data that follows */
    uint32_t head_crc; /* of what is above */
} record;

/* The newest row of a key. */
typedef struct live_row {
    uint64_t at; /* its offset in the log */
    uint64_t score;
    uint32_t stamp;
} live_row;

typedef struct log_store {
    embed_store base; /* first: a store is a log_store */
    char path[PATH_BYTES];
    int file;
    uint64_t end;        /* of the log */
    uint64_t marked;     /* everything before this offset is before a mark, or is the mark */
    uint64_t live_bytes; /* of rows that count */
    uint64_t compact_at; /* no compaction before the log is this long: the last attempt failed */
    map keys;
    live_row *live; /* (keys.n) */
    size_t live_capacity;
    unsigned char *buffer; /* one record */
    size_t buffer_capacity;
} log_store;

static const char log_magic[8] = "HSTULOG";

static size_t rows_bytes(const log_store *s, size_t n) {
    return n * (20 + (size_t)s->base.n_floats * sizeof(float));
}

static status read_at(const log_store *s, void *to, size_t n, uint64_t at) {
    for (size_t done = 0; done < n;) {
        ssize_t got = pread(s->file, (char *)to + done, n - done, (off_t)(at + done));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return fail_errno("%s: cannot read", s->path);
        if (got == 0) return fail(ERR_FORMAT, "%s: ends at %zu bytes", s->path, (size_t)at + done);
        done += (size_t)got;
    }
    return OK;
}

/* Appends all of it, or leaves the log as it was. */
static status append(log_store *s, const void *bytes, size_t n) {
    for (size_t done = 0; done < n;) {
        ssize_t put = pwrite(s->file, (const char *)bytes + done, n - done, (off_t)(s->end + done));
        if (put < 0 && errno == EINTR) continue;
        if (put <= 0) {
            /* A record truncated here would be torn when the log is opened again. */
            status st = fail_errno("%s: cannot write; is the disk full?", s->path);
            (void)!ftruncate(s->file, (off_t)s->end);
            return st;
        }
        done += (size_t)put;
    }
    s->end += n;
    return OK;
}

static status room(log_store *s, size_t bytes) {
    return mem_reserve((void **)&s->buffer, &s->buffer_capacity, bytes, 1);
}

static record make_record(record_kind kind, size_t n, const void *payload, size_t bytes) {
    record r = {.kind = kind, .n = (uint32_t)n, .crc = crc32_add(0, payload, bytes)};
    r.head_crc = crc32_add(0, &r, offsetof(record, head_crc));
    return r;
}

/* Room for keys in the map: learning their rows cannot fail. */
static status reserve_keys(log_store *s, const uint64_t *keys, size_t n) {
    TRY(map_reserve(&s->keys, keys, n));
    return MEM_RESERVE(&s->live, &s->live_capacity, s->keys.n + n);
}

/* Stores in the map where the rows of a record are; its payload begins at `at`. */
static status learn_rows(log_store *s, size_t n, const unsigned char *payload, uint64_t at) {
    size_t row = (size_t)s->base.n_floats * sizeof(float);
    const unsigned char *scores = payload + 8 * n, *stamps = payload + n * (16 + row);
    for (size_t i = 0; i < n; i++) {
        live_row r = {.at = at + 16 * n + i * row};
        uint64_t key;
        uint32_t number, n_before = s->keys.n;
        memcpy(&key, payload + 8 * i, 8);
        memcpy(&r.score, scores + 8 * i, 8);
        memcpy(&r.stamp, stamps + 4 * i, 4);
        TRY(reserve_keys(s, &key, 1));
        TRY(map_put(&s->keys, key, &number));
        s->live[number] = r;
        if (s->keys.n > n_before) s->live_bytes += rows_bytes(s, 1);
    }
    return OK;
}

static void learn_erased(log_store *s, size_t n, const unsigned char *payload) {
    for (size_t i = 0; i < n; i++) {
        uint64_t key;
        memcpy(&key, payload + 8 * i, 8);
        uint32_t number = map_remove(&s->keys, key);
        if (number == MAP_NONE) continue;
        s->live[number] = s->live[s->keys.n];
        s->live_bytes -= rows_bytes(s, 1);
    }
}

/* Writes one record of rows: payload and header in one piece, so that a torn record is detected.
 * Room in the map is reserved before anything is written, so that either all rows of a record are
 * in the map or none. */
static status append_rows(log_store *s, const embed_rows *rows) {
    size_t n = (size_t)rows->n, row = (size_t)s->base.n_floats * sizeof(float);
    size_t bytes = rows_bytes(s, n);
    TRY(room(s, sizeof(record) + bytes));
    TRY(reserve_keys(s, rows->keys, n));
    unsigned char *payload = s->buffer + sizeof(record);
    memcpy(payload, rows->keys, 8 * n);
    memcpy(payload + 8 * n, rows->scores, 8 * n);
    memcpy(payload + 16 * n, rows->rows, n * row);
    memcpy(payload + n * (16 + row), rows->stamps, 4 * n);
    record r = make_record(RECORD_ROWS, n, payload, bytes);
    memcpy(s->buffer, &r, sizeof r);
    uint64_t at = s->end + sizeof r;
    TRY(append(s, s->buffer, sizeof r + bytes));
    return learn_rows(s, n, payload, at);
}

static record make_mark(uint64_t at) {
    record r = {.kind = RECORD_MARK, .n = (uint32_t)(at >> 32), .crc = (uint32_t)at};
    r.head_crc = crc32_add(0, &r, offsetof(record, head_crc));
    return r;
}

static bool is_mark(const void *bytes, uint64_t at) {
    record r = make_mark(at);
    return memcmp(bytes, &r, sizeof r) == 0;
}

/* Whether a mark follows the torn record at s->end. */
static status look_for_mark(const log_store *s, uint64_t file_bytes, bool *is_there) {
    unsigned char piece[1 << 14];
    *is_there = false;
    for (uint64_t at = s->end + 1; at + sizeof(record) <= file_bytes && !*is_there;) {
        uint64_t left = file_bytes - at;
        size_t n = left < sizeof piece ? (size_t)left : sizeof piece;
        size_t n_places = n - sizeof(record) + 1;
        TRY(read_at(s, piece, n, at));
        for (size_t i = 0; i < n_places && !*is_there; i++)
            *is_there = piece[i] == RECORD_MARK && is_mark(piece + i, at + i);
        at += n_places;
    }
    return OK;
}

/* *is_whole: the record at s->end is complete and was added to the map. */
static status learn_record(log_store *s, uint64_t file_bytes, bool *is_whole) {
    record r;
    *is_whole = false;
    if (file_bytes - s->end < sizeof r) return OK;
    TRY(read_at(s, &r, sizeof r, s->end));
    if (is_mark(&r, s->end)) {
        s->marked = s->end += sizeof r;
        *is_whole = true;
        return OK;
    }
    bool is_rows = r.kind == RECORD_ROWS;
    size_t bytes = is_rows ? rows_bytes(s, r.n) : 8 * (size_t)r.n;
    if (r.head_crc != crc32_add(0, &r, offsetof(record, head_crc)) ||
        (!is_rows && r.kind != RECORD_ERASE) || file_bytes - s->end - sizeof r < bytes)
        return OK;
    TRY(room(s, bytes + 1));
    TRY(read_at(s, s->buffer, bytes, s->end + sizeof r));
    if (crc32_add(0, s->buffer, bytes) != r.crc) return OK;
    if (is_rows)
        TRY(learn_rows(s, r.n, s->buffer, s->end + sizeof r));
    else
        learn_erased(s, r.n, s->buffer);
    s->end += sizeof r + bytes;
    *is_whole = true;
    return OK;
}

static log_head make_head(int32_t n_floats) {
    log_head h = {.n_floats = (uint32_t)n_floats};
    memcpy(h.magic, log_magic, sizeof h.magic);
    h.crc = crc32_add(0, &h, offsetof(log_head, crc));
    return h;
}

static status learn_log(log_store *s) {
    struct stat about;
    log_head h, want = make_head(s->base.n_floats);
    bool is_whole = true, is_damaged = false;
    if (fstat(s->file, &about) != 0) return fail_errno("%s: cannot be looked at", s->path);
    uint64_t file_bytes = (uint64_t)about.st_size;
    if (file_bytes < sizeof h) { /* new, or torn at birth */
        if (ftruncate(s->file, 0) != 0) return fail_errno("%s: cannot be cut", s->path);
        return append(s, &want, sizeof want);
    }
    TRY(read_at(s, &h, sizeof h, 0));
    if (memcmp(h.magic, want.magic, sizeof h.magic) != 0 || h.crc != crc32_add(0, &h, 12))
        return fail(ERR_FORMAT, "%s: not a log of rows", s->path);
    if (h.n_floats != want.n_floats)
        return fail(ERR_FORMAT, "%s: holds rows of %u floats; the table's have %d", s->path,
                    h.n_floats, s->base.n_floats);
    s->end = sizeof h;
    while (is_whole)
        TRY(learn_record(s, file_bytes, &is_whole));
    TRY(look_for_mark(s, file_bytes, &is_damaged));
    if (is_damaged)
        return fail(
            ERR_FORMAT,
            "%s: damaged at byte %" PRIu64 ", before rows that were stored whole; bring back "
            "a copy of it, or cut it off there (truncate -s %" PRIu64 ") and lose what follows",
            s->path, s->end, s->end);
    if (ftruncate(s->file, (off_t)s->end) != 0) return fail_errno("%s: cannot be cut", s->path);
    return OK;
}

/* Two processes that append to one log would destroy it.  On a file system without locks this is
 * not checked. */
static status open_file(log_store *s) {
    s->file = open(s->path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (s->file < 0) return fail_errno("%s: cannot be opened", s->path);
    if (flock(s->file, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return OK;
    return fail(ERR_IO, "%s: another table uses this store; choose another folder", s->path);
}

static status log_get(embed_store *base, int64_t n, const uint64_t *keys, uint8_t *is_found,
                      uint64_t *scores, uint32_t *stamps, float *rows) {
    log_store *s = (log_store *)base;
    size_t row = (size_t)base->n_floats;
    for (int64_t i = 0; i < n; i++) {
        uint32_t number = map_find(&s->keys, keys[i]);
        is_found[i] = number != MAP_NONE;
        if (!is_found[i]) continue;
        scores[i] = s->live[number].score;
        stamps[i] = s->live[number].stamp;
        TRY(read_at(s, rows + (size_t)i * row, row * sizeof(float), s->live[number].at));
    }
    return OK;
}

static status log_each(embed_store *base, embed_visit visit, void *ctx) {
    log_store *s = (log_store *)base;
    size_t row = (size_t)base->n_floats;
    uint64_t scores[EACH_ROWS];
    uint32_t stamps[EACH_ROWS];
    float *rows;
    TRY(mem_alloc_raw((void **)&rows, EACH_ROWS * row, sizeof *rows));
    status st = OK;
    for (uint32_t first = 0, n; st == OK && first < s->keys.n; first += n) {
        n = s->keys.n - first < EACH_ROWS ? s->keys.n - first : EACH_ROWS;
        for (uint32_t i = 0; st == OK && i < n; i++) {
            const live_row *r = &s->live[first + i];
            scores[i] = r->score;
            stamps[i] = r->stamp;
            st = read_at(s, rows + i * row, row * sizeof(float), r->at);
        }
        embed_rows piece = {n, s->keys.key + first, scores, stamps, rows, base->n_floats};
        if (st == OK) st = visit(ctx, &piece);
    }
    mem_free(rows);
    return st;
}

/* A mark that does not fit on the disk is skipped: the rows before it are on disk all the same. */
static status log_flush(embed_store *base) {
    log_store *s = (log_store *)base;
    record mark = make_mark(s->end);
    if (file_sync(s->file) != 0) return fail_errno("%s: fsync", s->path);
    if (s->end > s->marked && append(s, &mark, sizeof mark) == OK) s->marked = s->end;
    return OK;
}

static status copy_piece(void *ctx, const embed_rows *rows) {
    return append_rows(ctx, rows);
}

static void log_destroy(embed_store *base) {
    log_store *s = (log_store *)base;
    if (s->file >= 0) close(s->file);
    map_fini(&s->keys);
    MEM_FREE(s->live, s->buffer, s);
}

/* Writes the live rows to a second log and, when it is complete, renames it over this one: durably,
 * before anything is appended to it. */
static status compact(log_store *s) {
    log_store *fresh;
    TRY(MEM_NEW(&fresh, 1));
    fresh->base = s->base;
    fresh->file = -1;
    log_head head = make_head(s->base.n_floats);
    status st = OK;
    int n = snprintf(fresh->path, sizeof fresh->path, "%s.new", s->path);
    if ((size_t)n >= sizeof fresh->path) st = fail(ERR_USAGE, "%s: too long", s->path);
    if (st == OK && unlink(fresh->path) != 0 && errno != ENOENT)
        st = fail_errno("%s: cannot be removed", fresh->path);
    if (st == OK) st = open_file(fresh);
    if (st == OK) st = append(fresh, &head, sizeof head);
    if (st == OK) st = log_each(&s->base, copy_piece, fresh);
    if (st == OK) st = log_flush(&fresh->base);
    if (st == OK && rename(fresh->path, s->path) != 0) st = fail_errno("%s: rename", s->path);
    if (st != OK && fresh->file >= 0) (void)unlink(fresh->path);
    if (st == OK) { /* The two change places; the fresh log has the old one's path now. */
        log_store old = *s;
        *s = *fresh;
        memcpy(s->path, old.path, sizeof s->path);
        *fresh = old;
        folder_sync_of(s->path);
    }
    log_destroy(&fresh->base);
    return st;
}

/* The appended rows are already valid, so a failed compaction (a second log may not fit on the
 * disk) does not fail the call: the log stays as it is, and the next attempt waits until it has
 * grown. */
static void compact_if_due(log_store *s) {
    if (s->end <= 2 * s->live_bytes + KEPT_GARBAGE || s->end < s->compact_at) return;
    s->compact_at = compact(s) == OK ? 0 : s->end + s->end / 4;
}

static status log_put(embed_store *base, const embed_rows *rows) {
    log_store *s = (log_store *)base;
    if (rows->n == 0) return OK;
    TRY(append_rows(s, rows));
    compact_if_due(s);
    return OK;
}

static status log_erase(embed_store *base, int64_t n, const uint64_t *keys) {
    log_store *s = (log_store *)base;
    size_t n_there = 0;
    TRY(room(s, sizeof(record) + 8 * (size_t)n));
    unsigned char *payload = s->buffer + sizeof(record);
    for (int64_t i = 0; i < n; i++)
        if (map_find(&s->keys, keys[i]) != MAP_NONE) memcpy(payload + 8 * n_there++, &keys[i], 8);
    if (n_there == 0) return OK;
    record r = make_record(RECORD_ERASE, n_there, payload, 8 * n_there);
    memcpy(s->buffer, &r, sizeof r);
    TRY(append(s, s->buffer, sizeof r + 8 * n_there));
    learn_erased(s, n_there, payload);
    compact_if_due(s);
    return OK;
}

static status log_clear(embed_store *base) {
    log_store *s = (log_store *)base;
    if (ftruncate(s->file, sizeof(log_head)) != 0) return fail_errno("%s: cannot be cut", s->path);
    s->end = sizeof(log_head);
    s->marked = s->live_bytes = s->compact_at = 0;
    map_fini(&s->keys);
    return OK;
}

status embed_store_open_log(embed_store **out, const char *folder, int32_t n_floats) {
    log_store *s;
    *out = NULL;
    TRY(folder_create(folder, NULL));
    TRY(MEM_NEW(&s, 1));
    s->base = (embed_store){.n_floats = n_floats,
                            .name = "log",
                            .get = log_get,
                            .put = log_put,
                            .erase = log_erase,
                            .each = log_each,
                            .clear = log_clear,
                            .flush = log_flush,
                            .destroy = log_destroy};
    s->file = -1;
    status st = path_join(s->path, sizeof s->path, folder, "rows.log");
    if (st == OK) st = open_file(s);
    if (st == OK) st = learn_log(s);
    if (st == OK) folder_sync_of(s->path);
    if (st == OK)
        *out = &s->base;
    else
        log_destroy(&s->base);
    return st;
}

void embed_store_destroy(embed_store *s) {
    if (s != NULL) s->destroy(s);
}
