#include "serve/state/event_log.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/crc32.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/map.h"

enum { PATH_BYTES = 4096, MAX_GROUP = 1 << 30, EVENT = 0, ERASURE = 1, AT_ONCE = 100000 };

static const char log_magic[16] = "HSTU events 1\n";
static const char group_magic[4] = {'H', 'G', 'R', 'P'};

/* Little-endian. */
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

/* The record at the start of n bytes; *size 0: there is none. */
static log_record read_record(const unsigned char *bytes, size_t n, size_t *size) {
    record_head head;
    log_record r = {0};
    *size = 0;
    if (n < sizeof head) return r;
    memcpy(&head, bytes, sizeof head);
    size_t all = sizeof head + head.n_user + head.n_item + head.n_id;
    if (n < all || head.n_user == 0 || head.kind > ERASURE ||
        (head.kind == EVENT) != (head.n_item > 0) || head.time_ns >= 1000000000u)
        return r;
    const char *text = (const char *)bytes + sizeof head;
    *size = all;
    r.user = text;
    r.n_user = head.n_user;
    r.is_erasure = head.kind == ERASURE;
    r.event = (state_event){.time = head.time,
                            .time_ns = head.time_ns,
                            .action = head.action,
                            .item = text + head.n_user,
                            .n_item = head.n_item,
                            .id = text + head.n_user + head.n_item,
                            .n_id = head.n_id};
    return r;
}

/* Whether a whole group begins at this offset. */
static bool is_group(const unsigned char *bytes, size_t n, size_t at, group_head *g) {
    if (n - at < sizeof *g || memcmp(bytes + at, group_magic, sizeof group_magic) != 0)
        return false;
    memcpy(g, bytes + at, sizeof *g);
    return g->head_crc == crc32_add(0, g, offsetof(group_head, head_crc)) && g->offset == at &&
           g->n_bytes <= MAX_GROUP && n - at - sizeof *g >= g->n_bytes &&
           crc32_add(0, bytes + at + sizeof *g, g->n_bytes) == g->crc;
}

static status read_group(const char *name, const unsigned char *bytes, size_t n, size_t at,
                         log_record_fn fn, void *ctx, log_counts *out) {
    for (size_t done = 0, size; done < n; done += size) {
        log_record r = read_record(bytes + done, n - done, &size);
        if (size == 0)
            return fail(ERR_FORMAT, "%s: the record at byte %zu is none", name, at + done);
        TRY(fn(ctx, &r));
        out->n_events += !r.is_erasure;
        out->n_erasures += r.is_erasure;
    }
    return OK;
}

/* Where the next group may begin. */
static size_t next_group(const unsigned char *bytes, size_t n, size_t at) {
    const unsigned char *next = at < n ? memchr(bytes + at, group_magic[0], n - at) : NULL;
    return next != NULL ? (size_t)(next - bytes) : n;
}

status event_log_read(const char *name, const unsigned char *bytes, size_t n, log_record_fn fn,
                      void *ctx, log_counts *out) {
    group_head g;
    size_t at = sizeof log_magic;
    *out = (log_counts){0};
    if (n < sizeof log_magic && memcmp(bytes, log_magic, n) == 0) return OK; /* a crash at once */
    if (n < sizeof log_magic || memcmp(bytes, log_magic, sizeof log_magic) != 0)
        return fail(ERR_FORMAT, "%s: not a log of events", name);
    while (at < n) {
        if (is_group(bytes, n, at, &g)) {
            TRY(read_group(name, bytes + at + sizeof g, g.n_bytes, at + sizeof g, fn, ctx, out));
            at += sizeof g + g.n_bytes;
            continue;
        }
        size_t next = next_group(bytes, n, at + 1);
        if (out->n_damaged == 0) out->damaged = at;
        out->n_damaged += next - at;
        at = next;
    }
    return OK;
}

/* Records on their way to a database. */
typedef struct importing {
    state *to;
    text_map names; /* of users */
    int64_t *row;   /* of each user; 0: none, or erased since */
    size_t row_capacity;
    uint64_t n_records;
} importing;

static status user_row(importing *m, const log_record *r, int64_t **out) {
    TRY(text_map_reserve(&m->names, 1, r->n_user));
    TRY(MEM_RESERVE(&m->row, &m->row_capacity, (size_t)m->names.n + 1));
    uint32_t n = m->names.n, at = text_map_put(&m->names, r->user, r->n_user);
    if (at == n) m->row[at] = 0;
    *out = &m->row[at];
    return OK;
}

static status import_record(void *context, const log_record *r) {
    importing *m = context;
    state_event e = r->event;
    int64_t *row = NULL;
    TRY(user_row(m, r, &row));
    if (r->is_erasure) {
        TRY(state_erase_user(m->to, *row, r->user, r->n_user));
        *row = 0;
    } else {
        if (*row == 0) TRY(state_add_user(m->to, r->user, r->n_user, row));
        e.user = *row;
        if (e.n_id == 0) e.id = NULL;
        TRY(state_add_event(m->to, &e));
    }
    if (++m->n_records % AT_ONCE != 0) return OK;
    TRY(state_commit(m->to));
    return state_begin(m->to);
}

static status skip_record(void *context, const log_record *r) {
    (void)context;
    (void)r;
    return OK;
}

/* Rows of the erased are removed before the database is used. */
static status fill_state(const char *folder, const char *name, const file_map *log,
                         log_counts *out) {
    importing m = {.to = NULL};
    text_map_init(&m.names, 0);
    status st = state_open(&m.to, folder, 0, NULL);
    if (st == OK) st = state_begin(m.to);
    if (st == OK) st = event_log_read(name, log->bytes, log->n_bytes, import_record, &m, out);
    if (st == OK) st = state_commit(m.to);
    while (st == OK && state_maintain(m.to) == 0)
        ;
    if (st == OK)
        st = state_close_whole(m.to);
    else
        state_close(m.to);
    text_map_fini(&m.names);
    mem_free(m.row);
    return st;
}

static status import_log(const char *folder, const char *name, const file_map *log, bool recovers,
                         log_counts *out) {
    char made[PATH_BYTES], from[PATH_BYTES], to[PATH_BYTES];
    TRY(event_log_read(name, log->bytes, log->n_bytes, skip_record, NULL, out));
    if (out->n_damaged > 0 && !recovers)
        return fail(ERR_FORMAT,
                    "%s: damaged at byte %" PRIu64 " (%" PRIu64
                    " bytes; they may hold acknowledged "
                    "events, or be the end of a crash); 'hstu state import DIR --recover' imports "
                    "the rest, and keeps the file",
                    name, out->damaged, out->n_damaged);
    TRY(path_join(made, sizeof made, folder, "importing"));
    TRY(path_join(from, sizeof from, made, "state.db"));
    TRY(path_join(to, sizeof to, folder, "state.db"));
    folder_remove(made, 1);
    TRY(fill_state(made, name, log, out));
    if (rename(from, to) != 0) return fail_errno("%s: cannot be put in place", to);
    folder_remove(made, 1);
    return OK;
}

/* The lock of the program that wrote the log; *fd is to be closed. */
static status lock_log(const char *folder, int *fd) {
    char path[PATH_BYTES];
    TRY(path_join(path, sizeof path, folder, "lock"));
    *fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (*fd < 0) return fail_errno("%s", path);
    if (flock(*fd, LOCK_EX | LOCK_NB) == 0) return OK;
    return fail(ERR_IO, "%s: a server has it; stop the server first", folder);
}

/* That of this program. */
static status lock_folder(const char *folder, int *fd) {
    *fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (*fd < 0) return fail_errno("%s", folder);
    if (flock(*fd, LOCK_EX | LOCK_NB) == 0) return OK;
    close(*fd);
    return fail(ERR_IO, "%s: a server has it; stop the server first", folder);
}

status event_log_import(const char *folder, bool recovers, log_counts *out) {
    char name[PATH_BYTES], db[PATH_BYTES], kept[PATH_BYTES + 16];
    file_map log;
    int lock = -1, own = -1;
    *out = (log_counts){0};
    TRY(path_join(name, sizeof name, folder, "events.log"));
    TRY(path_join(db, sizeof db, folder, "state.db"));
    if (file_exists(db))
        return fail(ERR_USAGE, "%s is there already: the folder was imported, or is in use", db);
    if (!file_exists(name)) return fail(ERR_IO, "%s: there is none: nothing to import", name);
    TRY(lock_folder(folder, &own));
    status st = lock_log(folder, &lock);
    if (st == OK) st = file_map_open(&log, name);
    if (st == OK) {
        st = import_log(folder, name, &log, recovers, out);
        file_map_close(&log);
    }
    snprintf(kept, sizeof kept, "%s.imported", name);
    if (st == OK && rename(name, kept) != 0) st = fail_errno("%s: cannot be renamed", name);
    if (lock >= 0) close(lock);
    close(own);
    folder_sync(folder);
    return st;
}
