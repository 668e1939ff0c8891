#include "serve/journal.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/crc32.h"
#include "base/file.h"
#include "base/mem.h"

enum {
    PATH_BYTES = 4096,
    GROUP_BYTES = 1 << 20,    /* records of a group that compaction writes */
    MAX_GROUP = 1 << 30,      /* a longer one is not ours */
    COMPACT_BYTES = 16 << 20, /* shorter logs are left alone */
    MAX_RECORD = 32 + 3 * (ENGINE_ID_BYTES + 1)
};

static const char log_magic[16] = "HSTU events 1\n";
static const char group_magic[4] = {'H', 'G', 'R', 'P'};

/* Little-endian, as all our files. */
typedef struct group_head {
    char magic[4];
    uint32_t n_bytes; /* of the records that follow */
    uint64_t offset;  /* of this head in the file */
    uint32_t crc;     /* of the records */
    uint32_t head_crc;
} group_head;

/* A record: this, then the bytes of user, item and event id. */
typedef struct record_head {
    int64_t time;
    uint32_t time_ns;
    uint16_t action;
    uint8_t kind, n_user, n_item, n_id;
    uint8_t zero[6];
} record_head;

struct journal {
    char path[PATH_BYTES];
    int folder_lock, file;
    pthread_mutex_t lock;
    pthread_cond_t synced;
    buf waiting;        /* appended, not yet written */
    uint64_t appended;  /* the last ticket given */
    uint64_t durable;   /* everything up to this ticket is on disk */
    bool is_writing;    /* a thread writes, without the lock */
    bool is_compacting; /* `since` has what is appended meanwhile */
    buf since;
    bool is_broken; /* fdatasync failed: nothing is acknowledged any more */
    failure why;
    journal_stats stats;
};

static status append_record(buf *out, const engine_record *r) {
    record_head head = {.kind = (uint8_t)r->kind, .n_user = (uint8_t)r->user.n};
    if (r->kind == ENGINE_RECORD_EVENT) {
        head.time = r->event.time;
        head.time_ns = r->event.time_ns;
        head.action = r->event.action;
        head.n_item = (uint8_t)r->event.item.n;
        head.n_id = (uint8_t)r->event.id.n;
    }
    TRY(buf_reserve(out, MAX_RECORD));
    TRY(buf_append(out, &head, sizeof head));
    TRY(buf_append(out, r->user.text, head.n_user));
    if (head.n_item > 0) TRY(buf_append(out, r->event.item.text, head.n_item));
    if (head.n_id > 0) TRY(buf_append(out, r->event.id.text, head.n_id));
    return OK;
}

/* The record at the start of n bytes; *size 0: there is none. */
static engine_record read_record(const unsigned char *bytes, size_t n, size_t *size) {
    record_head head;
    engine_record r = {0};
    *size = 0;
    if (n < sizeof head) return r;
    memcpy(&head, bytes, sizeof head);
    size_t all = sizeof head + head.n_user + head.n_item + head.n_id;
    bool is_event = head.kind == ENGINE_RECORD_EVENT;
    if (n < all || head.n_user == 0 || head.kind > ENGINE_RECORD_ERASE ||
        is_event != (head.n_item > 0) || head.time_ns >= 1000000000u)
        return r;
    const char *text = (const char *)bytes + sizeof head;
    *size = all;
    r.kind = head.kind;
    r.user = (engine_id){.text = text, .n = head.n_user};
    if (!is_event) return r;
    r.event = (engine_event){.item = {.text = text + head.n_user, .n = head.n_item},
                             .has_time = true,
                             .time = head.time,
                             .time_ns = head.time_ns,
                             .action = head.action};
    if (head.n_id > 0)
        r.event.id = (engine_id){.text = text + head.n_user + head.n_item, .n = head.n_id};
    return r;
}

static uint32_t head_checksum(const group_head *g) {
    return crc32_add(0, g, offsetof(group_head, head_crc));
}

static group_head make_head(const buf *records, uint64_t offset) {
    group_head g = {.n_bytes = (uint32_t)records->n_bytes, .offset = offset};
    memcpy(g.magic, group_magic, sizeof g.magic);
    g.crc = crc32_add(0, records->data, records->n_bytes);
    g.head_crc = head_checksum(&g);
    return g;
}

/* Whether a whole group begins at this offset. */
static bool is_group(const unsigned char *bytes, size_t n, size_t at, group_head *g) {
    if (n - at < sizeof *g || memcmp(bytes + at, group_magic, sizeof group_magic) != 0)
        return false;
    memcpy(g, bytes + at, sizeof *g);
    return g->head_crc == head_checksum(g) && g->offset == at && g->n_bytes <= MAX_GROUP &&
           n - at - sizeof *g >= g->n_bytes &&
           crc32_add(0, bytes + at + sizeof *g, g->n_bytes) == g->crc;
}

/* An incomplete end holds no whole group; where one follows, something before it was changed. */
static bool has_group_after(const unsigned char *bytes, size_t n, size_t at) {
    group_head g;
    for (at++; at + sizeof g <= n; at++) {
        const unsigned char *next = memchr(bytes + at, group_magic[0], n - at);
        if (next == NULL) return false;
        at = (size_t)(next - bytes);
        if (is_group(bytes, n, at, &g)) return true;
    }
    return false;
}

static status scan_group(const char *name, const unsigned char *bytes, size_t n, size_t at,
                         engine_record_fn fn, void *ctx) {
    for (size_t done = 0, size; done < n; done += size) {
        engine_record r = read_record(bytes + done, n - done, &size);
        if (size == 0)
            return fail(ERR_FORMAT, "%s: the record at byte %zu is none", name, at + done);
        TRY(fn(ctx, &r));
    }
    return OK;
}

status journal_scan(const char *name, const unsigned char *bytes, size_t n, engine_record_fn fn,
                    void *ctx, size_t *n_good) {
    group_head g;
    size_t at = sizeof log_magic;
    *n_good = 0;
    if (n < sizeof log_magic && memcmp(bytes, log_magic, n) == 0) return OK; /* a crash at once */
    if (n < sizeof log_magic || memcmp(bytes, log_magic, sizeof log_magic) != 0)
        return fail(ERR_FORMAT, "%s: not a log of events; give another folder as --state", name);
    while (at < n && is_group(bytes, n, at, &g)) {
        TRY(scan_group(name, bytes + at + sizeof g, g.n_bytes, at + sizeof g, fn, ctx));
        at += sizeof g + g.n_bytes;
    }
    if (at < n && has_group_after(bytes, n, at))
        return fail(ERR_FORMAT,
                    "%s: damaged at byte %zu, with events after it; restore a copy of the file, or "
                    "move it away to start without its events",
                    name, at);
    *n_good = at;
    return OK;
}

static status write_at(journal *j, const void *bytes, size_t n, uint64_t at) {
    for (size_t done = 0; done < n;) {
        ssize_t put = pwrite(j->file, (const char *)bytes + done, n - done, (off_t)(at + done));
        if (put < 0 && errno == EINTR) continue;
        if (put <= 0) return fail_errno("%s: cannot write; is the disk full?", j->path);
        done += (size_t)put;
    }
    return OK;
}

/* Writes a group at the end of the log.  A failed write is taken back, and may be tried again;
 * after a failed fdatasync nobody knows what is on disk. */
static status write_group(journal *j, const buf *records, uint64_t end, bool *is_broken) {
    group_head head = make_head(records, end);
    *is_broken = false;
    status st = write_at(j, &head, sizeof head, end);
    if (st == OK) st = write_at(j, records->data, records->n_bytes, end + sizeof head);
    if (st != OK) {
        failure f;
        failure_save(&f, st);
        if (ftruncate(j->file, (off_t)end) != 0) *is_broken = true;
        return failure_restore(&f);
    }
    if (fdatasync(j->file) == 0) return OK;
    *is_broken = true;
    return fail_errno("%s: fdatasync failed; the server must be started again", j->path);
}

/* All of them or none. */
static status append_all(buf *out, const engine_record *r, size_t n) {
    size_t before = out->n_bytes;
    status st = OK;
    for (size_t i = 0; i < n && st == OK; i++)
        st = append_record(out, &r[i]);
    if (st != OK) out->n_bytes = before;
    return st;
}

static status append(void *context, const engine_record *r, size_t n, uint64_t *ticket) {
    journal *j = context;
    pthread_mutex_lock(&j->lock);
    size_t before = j->waiting.n_bytes;
    status st = j->is_broken ? failure_restore(&j->why) : append_all(&j->waiting, r, n);
    if (st == OK && j->is_compacting) {
        st = append_all(&j->since, r, n);
        if (st != OK) j->waiting.n_bytes = before;
    }
    if (st == OK) {
        j->appended += n;
        j->stats.n_records += n;
    }
    *ticket = j->appended;
    pthread_mutex_unlock(&j->lock);
    return st;
}

/* Puts records that could not be written before those that came since. */
static void take_back(journal *j, buf *records) {
    if (j->waiting.n_bytes > 0 && buf_append(records, j->waiting.data, j->waiting.n_bytes) != OK) {
        j->is_broken = true;
        failure_save(&j->why, ERR_NOMEM);
    }
    buf_fini(&j->waiting);
    j->waiting = *records;
    buf_init(records);
}

/* Under the lock, which is released while it writes.  The caller has seen is_writing false. */
static status flush(journal *j) {
    buf records = j->waiting;
    uint64_t upto = j->appended, end = j->stats.n_bytes;
    bool is_broken;
    if (records.n_bytes == 0) {
        j->durable = upto;
        return OK;
    }
    buf_init(&j->waiting);
    j->is_writing = true;
    pthread_mutex_unlock(&j->lock);
    status st = write_group(j, &records, end, &is_broken);
    pthread_mutex_lock(&j->lock);
    j->is_writing = false;
    j->stats.n_syncs++;
    if (st == OK) {
        j->stats.n_bytes = end + sizeof(group_head) + records.n_bytes;
        j->durable = upto;
    } else {
        if (is_broken && !j->is_broken) failure_save(&j->why, st);
        j->is_broken |= is_broken;
        take_back(j, &records);
    }
    buf_fini(&records);
    pthread_cond_broadcast(&j->synced);
    return st;
}

static status commit(void *context, uint64_t ticket) {
    journal *j = context;
    status st = OK;
    pthread_mutex_lock(&j->lock);
    while (st == OK && j->durable < ticket) {
        if (j->is_broken)
            st = failure_restore(&j->why);
        else if (j->is_writing)
            pthread_cond_wait(&j->synced, &j->lock);
        else
            st = flush(j);
    }
    pthread_mutex_unlock(&j->lock);
    return st;
}

engine_journal journal_hooks(journal *j) {
    return (engine_journal){.ctx = j, .append = append, .commit = commit};
}

static status lock_folder(journal *j, const char *folder) {
    char path[PATH_BYTES];
    TRY(path_join(path, sizeof path, folder, "lock"));
    j->folder_lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (j->folder_lock < 0) return fail_errno("%s", path);
    if (flock(j->folder_lock, LOCK_EX | LOCK_NB) == 0) return OK;
    return fail(ERR_IO, "%s: another server has it; give each its own --state", folder);
}

/* A new log with its header alone. */
static status make_log(const journal *j) {
    out_file *f;
    TRY(out_file_create(&f, j->path));
    status st = out_file_write(f, log_magic, sizeof log_magic);
    if (st == OK) return out_file_commit(f);
    out_file_abandon(f);
    return st;
}

static status count_record(void *context, const engine_record *r) {
    (void)r;
    (*(uint64_t *)context)++;
    return OK;
}

static status replay(journal *j, engine_record_fn fn, void *ctx) {
    file_map map;
    size_t n_good, n_bytes;
    TRY(file_map_open(&map, j->path));
    /* First without effect: a damaged log must not be applied in part. */
    status st =
        journal_scan(j->path, map.bytes, map.n_bytes, count_record, &j->stats.n_records, &n_good);
    if (st == OK && n_good > 0)
        st = journal_scan(j->path, map.bytes, map.n_bytes, fn, ctx, &n_good);
    n_bytes = map.n_bytes;
    file_map_close(&map);
    if (st != OK) return st;
    if (n_good == 0) {
        TRY(make_log(j));
        n_good = sizeof log_magic;
    } else if (n_good < n_bytes && truncate(j->path, (off_t)n_good) != 0) {
        return fail_errno("%s: the incomplete end cannot be cut off", j->path);
    }
    j->stats.n_cut = n_bytes > n_good ? n_bytes - n_good : 0;
    j->stats.n_bytes = j->stats.compacted_bytes = n_good;
    return OK;
}

static status open_log(journal *j) {
    if (j->file >= 0) close(j->file);
    j->file = open(j->path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (j->file < 0) return fail_errno("%s", j->path);
    return OK;
}

static status open_all(journal *j, const char *folder, engine_record_fn fn, void *ctx) {
    TRY(folder_create(folder, NULL));
    TRY(path_join(j->path, sizeof j->path, folder, "events.log"));
    TRY(lock_folder(j, folder));
    if (!file_exists(j->path)) TRY(make_log(j));
    TRY(replay(j, fn, ctx));
    return open_log(j);
}

status journal_open(journal **out, const char *folder, engine_record_fn fn, void *ctx) {
    journal *j;
    *out = NULL;
    TRY(MEM_NEW(&j, 1));
    j->file = j->folder_lock = -1;
    pthread_mutex_init(&j->lock, NULL);
    pthread_cond_init(&j->synced, NULL);
    status st = open_all(j, folder, fn, ctx);
    if (st != OK) {
        journal_close(j);
        return st;
    }
    *out = j;
    return OK;
}

void journal_close(journal *j) {
    if (j == NULL) return;
    if (j->file >= 0) commit(j, j->appended);
    if (j->file >= 0) close(j->file);
    if (j->folder_lock >= 0) close(j->folder_lock);
    pthread_mutex_destroy(&j->lock);
    pthread_cond_destroy(&j->synced);
    buf_fini(&j->waiting);
    buf_fini(&j->since);
    mem_free(j);
}

/* A log that is being rewritten. */
typedef struct rewriting {
    journal *j;
    out_file *file;
    buf group;
    uint64_t end;
    uint64_t n_records;
    size_t n_since; /* bytes of j->since that are in the present state already */
} rewriting;

static status write_out(rewriting *w, const buf *records) {
    if (records->n_bytes == 0) return OK;
    group_head head = make_head(records, w->end);
    TRY(out_file_write(w->file, &head, sizeof head));
    TRY(out_file_write(w->file, records->data, records->n_bytes));
    w->end += sizeof head + records->n_bytes;
    return OK;
}

/* Called by the source while nothing is appended: what was appended since the compaction began is
 * part of the state it shows. */
static status rewrite_record(void *context, const engine_record *r) {
    rewriting *w = context;
    if (w->n_records++ == 0) {
        pthread_mutex_lock(&w->j->lock);
        w->n_since = w->j->since.n_bytes;
        pthread_mutex_unlock(&w->j->lock);
    }
    TRY(append_record(&w->group, r));
    if (w->group.n_bytes < GROUP_BYTES) return OK;
    TRY(write_out(w, &w->group));
    buf_clear(&w->group);
    return OK;
}

/* Under the lock: adds what came after the source was read, and makes the new log the log. */
static status replace_log(journal *j, rewriting *w) {
    buf rest;
    buf_init(&rest);
    while (j->is_writing)
        pthread_cond_wait(&j->synced, &j->lock);
    status st = write_out(w, &w->group);
    if (st == OK && j->since.n_bytes > w->n_since)
        st = buf_append(&rest, j->since.data + w->n_since, j->since.n_bytes - w->n_since);
    if (st == OK) st = write_out(w, &rest);
    buf_fini(&rest);
    if (st == OK) {
        st = out_file_commit(w->file);
        w->file = NULL;
    }
    if (st != OK) return st;
    buf_clear(&j->waiting); /* all of it is in the new log */
    j->durable = j->appended;
    j->stats.n_bytes = j->stats.compacted_bytes = w->end;
    j->stats.n_records = w->n_records;
    st = open_log(j);
    if (st != OK && !j->is_broken) failure_save(&j->why, st);
    j->is_broken |= st != OK;
    pthread_cond_broadcast(&j->synced);
    return st;
}

static status rewrite(journal *j, rewriting *w, journal_source source, void *ctx) {
    TRY(out_file_create(&w->file, j->path));
    TRY(out_file_write(w->file, log_magic, sizeof log_magic));
    TRY(source(ctx, rewrite_record, w));
    if (w->n_records == 0) return OK; /* when it was read is not known: the old log stays */
    pthread_mutex_lock(&j->lock);
    status st = j->is_broken ? failure_restore(&j->why) : replace_log(j, w);
    pthread_mutex_unlock(&j->lock);
    return st;
}

static void set_compacting(journal *j, bool is_compacting) {
    pthread_mutex_lock(&j->lock);
    j->is_compacting = is_compacting;
    buf_fini(&j->since);
    pthread_mutex_unlock(&j->lock);
}

status journal_compact(journal *j, journal_source source, void *ctx) {
    rewriting w = {.j = j, .end = sizeof log_magic};
    set_compacting(j, true);
    status st = rewrite(j, &w, source, ctx);
    set_compacting(j, false);
    out_file_abandon(w.file);
    buf_fini(&w.group);
    return st;
}

journal_stats journal_get_stats(journal *j) {
    pthread_mutex_lock(&j->lock);
    journal_stats s = j->stats;
    pthread_mutex_unlock(&j->lock);
    return s;
}

bool journal_wants_compaction(journal *j) {
    journal_stats s = journal_get_stats(j);
    return s.n_bytes > COMPACT_BYTES && s.n_bytes / 4 > s.compacted_bytes;
}
