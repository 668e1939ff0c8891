#include "serve/state/state_tools.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/map.h"
#include "base/mem.h"
#include "serve/state/state_db.h"

/* The event log of versions before 0.1. */

enum { MAX_GROUP = 1 << 30, EVENT = 0, ERASURE = 1 };

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
        if (size == 0) return fail(ERR_FORMAT, "%s: invalid record at byte %zu", name, at + done);
        if (fn != NULL) TRY(fn(ctx, &r));
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
        return fail(ERR_FORMAT, "%s: not an event log", name);
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

#if defined(HSTU_HAS_SQLITE)

/* The folder's lock where no server has it: only then may files be touched. */
typedef struct visit {
    char path[STATE_PATH_BYTES], wal_path[STATE_PATH_BYTES];
    int folder;
    bool is_locked;
} visit;

static status begin_visit(visit *v, const char *folder, bool needs_lock) {
    v->is_locked = false;
    v->folder = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (v->folder < 0) return fail_errno("%s", folder);
    v->is_locked = flock(v->folder, LOCK_EX | LOCK_NB) == 0;
    status st = path_join(v->path, sizeof v->path, folder, "state.db");
    if (st == OK) st = path_join(v->wal_path, sizeof v->wal_path, folder, "state.db-wal");
    if (st == OK && needs_lock && !v->is_locked)
        st = fail(ERR_IO, "%s: in use by a server; stop the server first", folder);
    return st;
}

static void end_visit(visit *v) {
    if (v->folder >= 0) close(v->folder);
}

/* SQLite's own check: of pages, cells and indices. */
static status check_structure(sqlite3 *db, const char *path, state_counts *out) {
    sqlite3_stmt *q;
    if (sqlite3_prepare_v2(db, "PRAGMA integrity_check(1)", -1, &q, NULL) != SQLITE_OK)
        return state_db_fail(db, path, "check it");
    int code = sqlite3_step(q);
    if (code != SQLITE_ROW && (code & 0xff) != SQLITE_CORRUPT) {
        sqlite3_finalize(q);
        return state_db_fail(db, path, "check it");
    }
    const char *text = code == SQLITE_ROW ? (const char *)sqlite3_column_text(q, 0) : NULL;
    if ((text == NULL || strcmp(text, "ok") != 0) && out->n_damaged++ == 0)
        snprintf(out->place, sizeof out->place, "%.250s", text != NULL ? text : sqlite3_errmsg(db));
    sqlite3_finalize(q);
    return OK;
}

static status fail_damaged(const char *path, const state_counts *c) {
    return fail(ERR_FORMAT,
                "%s: damaged in %" PRIu64 " places, the first one: %s; 'hstu state recover DIR' "
                "saves what can be read",
                path, c->n_damaged, c->place);
}

/* Counts and checks all rows. */
static status check_db(sqlite3 *db, const char *path, state_counts *out) {
    state_loading l = {.db = db, .path = path, .goes_on = true};
    int64_t salt;
    TRY(state_db_exec(db, path, "read it", "BEGIN")); /* one snapshot: a server may write */
    status st = state_db_read(&l);
    *out = l.counts;
    if (st == OK) st = check_structure(db, path, out);
    if (st == OK) st = state_db_salt(db, path, &salt);
    sqlite3_exec(db, "ROLLBACK", NULL, NULL, NULL);
    if (st == OK && out->n_damaged > 0) st = fail_damaged(path, out);
    return st;
}

/* A log that SQLite would shorten: it must be looked at before anybody opens the database. */
static status check_log(const visit *v, state_counts *out) {
    file_map log;
    struct stat file;
    if (stat(v->wal_path, &file) != 0 || file.st_size == 0) return OK;
    TRY(file_map_open(&log, v->wal_path));
    wal_end end = wal_inspect(log.bytes, log.n_bytes);
    file_map_close(&log);
    if (!end.is_damaged) return OK;
    out->n_damaged = 1;
    snprintf(out->place, sizeof out->place, "byte %" PRIu64 " of %.200s", end.damaged,
             "state.db-wal");
    return fail(ERR_FORMAT,
                "%s: damaged at byte %" PRIu64 ": the end of a crash during a commit, or "
                "acknowledged events are lost; 'hstu serve' uses what is before it and keeps the "
                "file",
                v->wal_path, end.damaged);
}

status state_check(const char *folder, state_counts *out) {
    visit v;
    sqlite3 *db = NULL;
    *out = (state_counts){0};
    status st = begin_visit(&v, folder, false);
    if (st == OK && v.is_locked) st = check_log(&v, out);
    if (st == OK) st = state_db_open_existing(&db, v.path);
    if (st == OK) st = check_db(db, v.path, out);
    sqlite3_close(db);
    end_visit(&v);
    return st;
}

status state_read(const char *folder, const state_reader *reader, state_counts *out) {
    visit v;
    state_loading l = {.path = v.path, .reader = reader};
    *out = (state_counts){0};
    status st = begin_visit(&v, folder, false);
    if (st == OK && v.is_locked) st = check_log(&v, out);
    if (st == OK) st = state_db_open_existing(&l.db, v.path);
    if (st == OK) st = state_db_exec(l.db, v.path, "read it", "BEGIN");
    if (st == OK) st = state_db_salt(l.db, v.path, (int64_t *)&l.salt);
    end_visit(&v); /* the snapshot is taken: a server may start meanwhile */
    if (st == OK) st = state_db_read(&l);
    *out = l.counts;
    sqlite3_close(l.db);
    return st;
}

static status sync_file(const char *path) {
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return fail_errno("%s", path);
    bool is_ok = file_sync(fd) == 0;
    close(fd);
    return is_ok ? OK : fail_errno("%s", path);
}

/* Removes the rows of the erased from a copy, and makes it small. */
static status clean_copy(const char *path, state_counts *out) {
    sqlite3 *db;
    TRY(state_db_open(&db, path));
    status st = state_db_exec(db, path, "clean it",
                              "PRAGMA journal_mode=MEMORY; PRAGMA secure_delete=ON;"
                              "DELETE FROM events WHERE user IN (SELECT user FROM sweep);"
                              "DELETE FROM sweep");
    if (st == OK) st = check_db(db, path, out);
    sqlite3_close(db);
    return st;
}

static status copy_db(sqlite3 *db, const char *path, const char *copy) {
    char *text = sqlite3_mprintf("VACUUM INTO %Q", copy);
    if (text == NULL) return fail(ERR_NOMEM, "out of memory");
    status st = state_db_exec(db, path, "copy it", text);
    sqlite3_free(text);
    return st;
}

status state_backup(const char *folder, const char *file, state_counts *out) {
    visit v;
    sqlite3 *db = NULL;
    char copy[STATE_PATH_BYTES];
    *out = (state_counts){0};
    if (snprintf(copy, sizeof copy, "%s.part-%d", file, (int)getpid()) >= (int)sizeof copy)
        return fail(ERR_USAGE, "the name of the backup is too long");
    status st = begin_visit(&v, folder, false);
    if (st == OK && file_is_same(file, v.path))
        st = fail(ERR_USAGE, "%s is the state itself; give another file", file);
    if (st == OK && v.is_locked) st = check_log(&v, out);
    if (st == OK) st = state_db_open_existing(&db, v.path);
    if (st == OK) st = state_db_make_file(copy);
    if (st == OK) st = copy_db(db, v.path, copy);
    if (st == OK) st = clean_copy(copy, out);
    if (st == OK) st = sync_file(copy);
    if (st == OK && rename(copy, file) != 0) st = fail_errno("%s: cannot be put in place", file);
    if (st == OK) folder_sync_of(file);
    if (st != OK) unlink(copy);
    sqlite3_close(db);
    end_visit(&v);
    return st;
}

/* A damaged log is kept before anybody opens the database. */
static status keep_log(const visit *v) {
    char warning[1024] = "";
    TRY(state_keep_damaged_log(v->wal_path, warning, sizeof warning));
    if (warning[0] != '\0') log_warn("%s", warning);
    return OK;
}

/* The name under which a file is kept. */
static status keep_name(char *out, const char *path, const char *why) {
    for (int i = 1; i < 1000; i++) {
        if (snprintf(out, STATE_PATH_BYTES, "%s.%s-%d", path, why, i) >= STATE_PATH_BYTES) break;
        if (!file_exists(out)) return OK;
    }
    return fail(ERR_IO, "%s: too many kept files beside it; remove some", path);
}

/* Puts a checked file in place of the database; the old one is kept.  Its log goes first: beside
 * another database it would be read as that one's. */
static status replace_db(const visit *v, const char *file, const char *why) {
    char kept[STATE_PATH_BYTES], kept_wal[STATE_PATH_BYTES + 8];
    TRY(keep_name(kept, v->path, why));
    snprintf(kept_wal, sizeof kept_wal, "%s-wal", kept);
    if (file_exists(v->wal_path) && rename(v->wal_path, kept_wal) != 0)
        return fail_errno("%s: cannot be renamed", v->wal_path);
    if (file_exists(v->path) && link(v->path, kept) != 0)
        return fail_errno("%s: cannot be kept as %s", v->path, kept);
    TRY(sync_file(file));
    if (rename(file, v->path) != 0) return fail_errno("%s: cannot be put in place", v->path);
    if (file_sync(v->folder) != 0) return fail_errno("%s", v->path);
    return OK;
}

/* An intact old database takes its log in before it is set aside. */
static status close_old(const visit *v) {
    sqlite3 *db;
    TRY(keep_log(v));
    if (state_db_open_existing(&db, v->path) == OK)
        sqlite3_wal_checkpoint_v2(db, NULL, SQLITE_CHECKPOINT_TRUNCATE, NULL, NULL);
    sqlite3_close(db);
    return OK;
}

static void user_key(sqlite3_context *c, int n, sqlite3_value **x) {
    const uint64_t *salt = sqlite3_user_data(c);
    (void)n;
    sqlite3_result_int64(
        c, (int64_t)hash64(sqlite3_value_text(x[0]), (size_t)sqlite3_value_bytes(x[0]), *salt));
}

/* Users erased since the backup was made stay erased.  Keys of another database mean nothing. */
static status erase_again(const visit *v, const char *copy) {
    sqlite3 *now = NULL, *db = NULL;
    int64_t salt = 0, other = 0;
    bool is_same =
        state_db_open_existing(&now, v->path) == OK && state_db_salt(now, v->path, &salt) == OK;
    sqlite3_close(now);
    TRY(state_db_open(&db, copy));
    is_same = is_same && state_db_salt(db, copy, &other) == OK && salt == other;
    char *text =
        sqlite3_mprintf("ATTACH %Q AS now;"
                        "CREATE TEMP TABLE fresh AS SELECT * FROM now.erased AS e WHERE times >"
                        " coalesce((SELECT times FROM main.erased WHERE user_key ="
                        " e.user_key), 0);"
                        "INSERT OR REPLACE INTO main.erased SELECT * FROM fresh;"
                        "UPDATE users SET name = blank(name) WHERE user_key(name) IN"
                        " (SELECT user_key FROM fresh)",
                        v->path);
    status st = text == NULL ? fail(ERR_NOMEM, "out of memory") : OK;
    if (st == OK && is_same) {
        sqlite3_create_function(db, "user_key", 1, SQLITE_UTF8, &salt, user_key, NULL, NULL);
        st = state_db_exec(db, copy, "erase users again", text);
    }
    sqlite3_free(text);
    sqlite3_close(db);
    return st;
}

status state_restore(const char *folder, const char *file, state_counts *out) {
    visit v;
    sqlite3 *db = NULL;
    char copy[STATE_PATH_BYTES];
    *out = (state_counts){0};
    TRY(folder_create(folder, NULL));
    status st = begin_visit(&v, folder, true);
    if (st == OK) st = path_join(copy, sizeof copy, folder, "state.db.part");
    if (st == OK) st = state_db_open_existing(&db, file);
    if (st == OK) {
        unlink(copy);
        st = state_db_make_file(copy);
    }
    if (st == OK) st = copy_db(db, file, copy);
    sqlite3_close(db);
    if (st == OK && file_exists(v.path)) st = close_old(&v);
    if (st == OK && file_exists(v.path)) st = erase_again(&v, copy);
    if (st == OK) st = clean_copy(copy, out);
    if (st == OK) st = replace_db(&v, copy, "before");
    if (st != OK && v.is_locked) unlink(copy);
    end_visit(&v);
    return st;
}

/* Rows on their way from a damaged database to a new one. */
typedef struct saving {
    state *to;
    int64_t *id; /* of users in the new one, as they were read */
    size_t n, id_capacity;
    uint64_t n_rows;
} saving;

/* A database that is made from something else is committed now and then. */
static status commit_some(state *to, uint64_t n_rows) {
    enum { ROWS_AT_ONCE = 100000 };
    if (n_rows % ROWS_AT_ONCE != 0) return OK;
    TRY(state_commit(to));
    return state_begin(to);
}

/* Closes it, whole unless st is a failure already. */
static status close_made(state *to, status st) {
    if (st == OK) return state_close_whole(to);
    state_close(to);
    return st;
}

static status save_user(void *context, int64_t id, const char *name, size_t n) {
    saving *w = context;
    (void)id;
    TRY(MEM_RESERVE(&w->id, &w->id_capacity, w->n + 1));
    TRY(state_add_user(w->to, name, n, &w->id[w->n]));
    w->n++;
    return commit_some(w->to, ++w->n_rows);
}

static status save_event(void *context, const state_event *e) {
    saving *w = context;
    state_event moved = *e;
    moved.user = w->id[e->nth_user];
    TRY(state_add_event(w->to, &moved));
    return commit_some(w->to, ++w->n_rows);
}

static status save_erased(void *context, uint64_t salt, uint64_t key) {
    saving *w = context;
    (void)salt;
    TRY(state_add_erased(w->to, key));
    return commit_some(w->to, ++w->n_rows);
}

static status save_all(sqlite3 *db, const visit *v, const char *folder, state_counts *out) {
    saving w = {.to = NULL};
    state_reader save = {.ctx = &w, .user = save_user, .event = save_event, .erased = save_erased};
    state_loading l = {.db = db, .path = v->path, .reader = &save, .goes_on = true};
    int64_t salt = 0;
    status st = state_open(&w.to, folder, UINT64_MAX, NULL);
    if (st == OK) st = state_begin(w.to);
    if (st == OK) st = state_db_read(&l);
    if (st == OK && state_db_salt(db, v->path, &salt) != OK) {
        l.counts.n_damaged++; /* erased users can no longer be told from others */
        snprintf(l.counts.place, sizeof l.counts.place, "the table settings");
    } else if (st == OK) {
        st = state_set_salt(w.to, salt);
    }
    if (st == OK) st = state_commit(w.to);
    *out = l.counts;
    out->n_users = w.n;
    st = close_made(w.to, st);
    mem_free(w.id);
    return st;
}

status state_recover(const char *folder, state_counts *out) {
    visit v;
    sqlite3 *db = NULL;
    char made[STATE_PATH_BYTES] = "", file[STATE_PATH_BYTES];
    *out = (state_counts){0};
    status st = begin_visit(&v, folder, true);
    if (st == OK) st = path_join(made, sizeof made, folder, "recovering");
    if (st == OK) st = path_join(file, sizeof file, made, "state.db");
    if (st == OK) folder_remove(made, 1);
    if (st == OK) st = keep_log(&v);
    if (st == OK) st = state_db_open_existing(&db, v.path);
    if (st == OK) st = save_all(db, &v, made, out);
    sqlite3_close(db);
    if (st == OK) st = replace_db(&v, file, "damaged");
    if (v.is_locked) folder_remove(made, 1);
    end_visit(&v);
    return st;
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
    return commit_some(m->to, ++m->n_records);
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
    st = close_made(m.to, st);
    text_map_fini(&m.names);
    mem_free(m.row);
    return st;
}

static status import_log(const visit *v, const char *folder, const char *name, const file_map *log,
                         bool recovers, log_counts *out) {
    char made[STATE_PATH_BYTES], from[STATE_PATH_BYTES];
    TRY(event_log_read(name, log->bytes, log->n_bytes, NULL, NULL, out));
    if (out->n_damaged > 0 && !recovers)
        return fail(ERR_FORMAT,
                    "%s: damaged at byte %" PRIu64 " (%" PRIu64
                    " bytes; they may hold acknowledged "
                    "events, or be the end of a crash); 'hstu state import DIR --recover' imports "
                    "the rest, and keeps the file",
                    name, out->damaged, out->n_damaged);
    TRY(path_join(made, sizeof made, folder, "importing"));
    TRY(path_join(from, sizeof from, made, "state.db"));
    folder_remove(made, 1);
    TRY(fill_state(made, name, log, out));
    if (rename(from, v->path) != 0) return fail_errno("%s: cannot be put in place", v->path);
    folder_remove(made, 1);
    return OK;
}

/* The lock of the program that wrote the log; *fd is to be closed. */
static status lock_log(const char *folder, int *fd) {
    char path[STATE_PATH_BYTES];
    TRY(path_join(path, sizeof path, folder, "lock"));
    *fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (*fd < 0) return fail_errno("%s", path);
    if (flock(*fd, LOCK_EX | LOCK_NB) == 0) return OK;
    return fail(ERR_IO, "%s: in use by a server; stop the server first", folder);
}

status event_log_import(const char *folder, bool recovers, log_counts *out) {
    char name[STATE_PATH_BYTES], kept[STATE_PATH_BYTES + 16];
    visit v;
    file_map log;
    int lock = -1;
    *out = (log_counts){0};
    TRY(path_join(name, sizeof name, folder, "events.log"));
    status st = begin_visit(&v, folder, true);
    if (st == OK && file_exists(v.path))
        st = fail(ERR_USAGE, "%s already exists: the folder was imported, or is in use", v.path);
    if (st == OK && !file_exists(name))
        st = fail(ERR_IO, "%s: does not exist: nothing to import", name);
    if (st == OK) st = lock_log(folder, &lock);
    if (st == OK) st = file_map_open(&log, name);
    if (st == OK) {
        st = import_log(&v, folder, name, &log, recovers, out);
        file_map_close(&log);
    }
    snprintf(kept, sizeof kept, "%s.imported", name);
    if (st == OK && rename(name, kept) != 0) st = fail_errno("%s: cannot be renamed", name);
    if (lock >= 0) close(lock);
    end_visit(&v);
    folder_sync(folder);
    return st;
}
#endif
