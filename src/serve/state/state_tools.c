#include "serve/state/state_tools.h"

#include <sys/file.h>

#include "serve/state/state_db.h"

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

/* The new database is committed now and then. */
static status commit_some(state *to, uint64_t n_rows) {
    enum { ROWS_AT_ONCE = 100000 };
    if (n_rows % ROWS_AT_ONCE != 0) return OK;
    TRY(state_commit(to));
    return state_begin(to);
}

static status save_user(void *context, int64_t id, const char *name, size_t n) {
    saving *w = context;
    TRY(MEM_RESERVE(&w->id, &w->id_capacity, w->n + 1));
    TRY(state_add_user(w->to, name, n, &w->id[w->n]));
    w->n++;
    return commit_some(w->to, ++w->n_rows);
}

static status save_event(void *context, size_t nth_user, const engine_event *e) {
    saving *w = context;
    TRY(state_add_event(w->to, w->id[nth_user], e));
    return commit_some(w->to, ++w->n_rows);
}

static status save_erased(void *context, uint64_t salt, uint64_t key) {
    saving *w = context;
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
    if (st == OK)
        st = state_close_whole(w.to);
    else
        state_close(w.to);
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
#endif
