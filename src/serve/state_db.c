#include "serve/state_db.h"

#if defined(HSTU_HAS_SQLITE)
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/crc32.h"
#include "base/mem.h"
#include "data/set/seq_file.h"

enum {
    MAX_ID = 255,
    APPLICATION = 0x68737475 /* "hstu" */
};

/* Each brings the database from version i to i + 1 (PRAGMA user_version). */
static const char *const migrations[] = {
    "CREATE TABLE users (id INTEGER PRIMARY KEY AUTOINCREMENT, name NOT NULL UNIQUE);"
    "CREATE TABLE events (seq INTEGER PRIMARY KEY, user INTEGER NOT NULL, time INTEGER NOT NULL,"
    " time_ns INTEGER NOT NULL, item NOT NULL, action INTEGER NOT NULL, event_id, sum INTEGER);"
    "CREATE TABLE erased (user_key INTEGER PRIMARY KEY);"
    "CREATE TABLE sweep (id INTEGER PRIMARY KEY AUTOINCREMENT, user INTEGER NOT NULL);"
    "CREATE TABLE settings (name TEXT PRIMARY KEY, value);"
    "INSERT INTO settings VALUES ('erased_salt', random());"};
enum { VERSION = sizeof migrations / sizeof *migrations };
static status code_of(int code) {
    switch (code & 0xff) {
    case SQLITE_NOMEM:
        return ERR_NOMEM;
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
        return ERR_FORMAT;
    default:
        return ERR_IO;
    }
}

status state_db_fail(sqlite3 *db, const char *path, const char *doing) {
    int code = db != NULL ? sqlite3_extended_errcode(db) : SQLITE_NOMEM;
    const char *text = db != NULL ? sqlite3_errmsg(db) : "out of memory";
    if ((code & 0xff) == SQLITE_FULL) text = "the disk is full";
    if ((code & 0xff) == SQLITE_BUSY) text = "another program holds the database";
    if (code_of(code) == ERR_FORMAT)
        return fail(ERR_FORMAT,
                    "%s: damaged (%s: %s); 'hstu state recover DIR' saves what can be "
                    "read, 'hstu state restore DIR FILE' brings a backup back",
                    path, doing, text);
    return fail(code_of(code), "%s: cannot %s: %s", path, doing, text);
}

status state_db_exec(sqlite3 *db, const char *path, const char *doing, const char *text) {
    return sqlite3_exec(db, text, NULL, NULL, NULL) == SQLITE_OK ? OK
                                                                 : state_db_fail(db, path, doing);
}

/* A number of one row. */
status state_db_int(sqlite3 *db, const char *path, const char *text, int64_t *out) {
    sqlite3_stmt *q;
    *out = 0;
    if (sqlite3_prepare_v2(db, text, -1, &q, NULL) != SQLITE_OK)
        return state_db_fail(db, path, "read it");
    int code = sqlite3_step(q);
    if (code == SQLITE_ROW) *out = sqlite3_column_int64(q, 0);
    sqlite3_finalize(q);
    return code == SQLITE_ROW || code == SQLITE_DONE ? OK : state_db_fail(db, path, "read it");
}
/* A number is stored as one. */
void state_db_bind_id(sqlite3_stmt *q, int i, const char *text, size_t n) {
    int64_t number;
    if (n == 0)
        sqlite3_bind_null(q, i);
    else if (seq_id_number(text, n, &number))
        sqlite3_bind_int64(q, i, number);
    else
        sqlite3_bind_text(q, i, text, (int)n, SQLITE_STATIC);
}
uint32_t state_db_sum(const state_event *e) {
    struct {
        int64_t user, time;
        uint32_t time_ns, action, n_item, n_id;
    } head = {e->user, e->time, e->time_ns, e->action, (uint32_t)e->n_item, (uint32_t)e->n_id};
    uint32_t crc = crc32_add(0, &head, sizeof head);
    crc = crc32_add(crc, e->item, e->n_item);
    return e->n_id > 0 ? crc32_add(crc, e->id, e->n_id) : crc;
}
static status note_damage(state_loading *l, const char *what, int64_t row) {
    char place[256];
    snprintf(place, sizeof place, "row %" PRId64 " of the table %s", row, what);
    if (l->counts.n_damaged++ == 0) memcpy(l->counts.place, place, sizeof place);
    if (l->goes_on) return OK;
    return fail(ERR_FORMAT,
                "%s: damaged at %s; 'hstu state recover DIR' saves what can be read, 'hstu state "
                "restore DIR FILE' brings a backup back",
                l->path, place);
}

/* An id as text; room: for the digits of a number, which SQLite would write in more time than all
 * else of a row takes. */
static const char *column_id(sqlite3_stmt *q, int i, char room[24], size_t *n) {
    if (sqlite3_column_type(q, i) == SQLITE_INTEGER) {
        int64_t number = sqlite3_column_int64(q, i);
        uint64_t left = number < 0 ? 0 - (uint64_t)number : (uint64_t)number;
        char *at = room + 23;
        *at = '\0';
        do
            *--at = (char)('0' + left % 10);
        while ((left /= 10) > 0);
        if (number < 0) *--at = '-';
        *n = (size_t)(room + 23 - at);
        return at;
    }
    const char *text = (const char *)sqlite3_column_text(q, i);
    *n = text != NULL ? (size_t)sqlite3_column_bytes(q, i) : 0;
    return text;
}

static size_t find_id(const int64_t *ids, size_t n, int64_t id) {
    size_t low = 0, high = n;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (ids[middle] < id)
            low = middle + 1;
        else
            high = middle;
    }
    return low < n && ids[low] == id ? low : SIZE_MAX;
}

static status add_id(state_ids *ids, int64_t id) {
    TRY(MEM_RESERVE(&ids->id, &ids->capacity, ids->n + 1));
    ids->id[ids->n++] = id;
    return OK;
}

static status read_swept(state_loading *l, sqlite3_stmt *q) {
    l->counts.n_unswept++;
    return add_id(&l->swept, sqlite3_column_int64(q, 0));
}

static status read_user(state_loading *l, sqlite3_stmt *q) {
    size_t n;
    char digits[24];
    int64_t id = sqlite3_column_int64(q, 0);
    const char *name = column_id(q, 1, digits, &n);
    if (n == 0 || n > MAX_ID || memchr(name, '\0', n) != NULL) return note_damage(l, "users", id);
    TRY(add_id(&l->users, id));
    l->counts.n_users++;
    return l->reader != NULL ? l->reader->user(l->reader->ctx, l->s, id, name, n) : OK;
}

static status read_event(state_loading *l, sqlite3_stmt *q) {
    int64_t ns = sqlite3_column_int64(q, 3), action = sqlite3_column_int64(q, 5);
    state_event e = {.user = sqlite3_column_int64(q, 1), .time = sqlite3_column_int64(q, 2)};
    char digits[2][24];
    e.nth_user = find_id(l->users.id, l->users.n, e.user);
    if (e.nth_user == SIZE_MAX && find_id(l->swept.id, l->swept.n, e.user) != SIZE_MAX) return OK;
    e.item = column_id(q, 4, digits[0], &e.n_item);
    e.id = column_id(q, 6, digits[1], &e.n_id);
    bool is_bad = e.nth_user == SIZE_MAX || ns < 0 || ns >= 1000000000 || action < 0 ||
                  action > UINT16_MAX || e.n_item == 0 || e.n_item > MAX_ID || e.n_id > MAX_ID ||
                  memchr(e.item, '\0', e.n_item) != NULL;
    e.time_ns = (uint32_t)ns;
    e.action = (uint16_t)action;
    /* Rows that somebody added by hand have no sum. */
    if (!is_bad && sqlite3_column_type(q, 7) != SQLITE_NULL)
        is_bad = sqlite3_column_int64(q, 7) != state_db_sum(&e);
    if (is_bad) return note_damage(l, "events", sqlite3_column_int64(q, 0));
    l->counts.n_events++;
    return l->reader != NULL ? l->reader->event(l->reader->ctx, &e) : OK;
}

static status read_erased(state_loading *l, sqlite3_stmt *q) {
    l->counts.n_erased++;
    if (l->reader == NULL || l->reader->erased == NULL) return OK;
    return l->reader->erased(l->reader->ctx, (uint64_t)sqlite3_column_int64(q, 0));
}

/* Calls fn for the rows of a query, which has ?1 for the first id to read.  After a damaged page
 * reading goes on at a later id, which is tried in longer and longer steps. */
static status read_rows(state_loading *l, const char *table, int64_t least, const char *text,
                        status (*fn)(state_loading *l, sqlite3_stmt *q)) {
    sqlite3_stmt *q;
    int64_t next = INT64_MIN, step = 1;
    status st = OK;
    if (sqlite3_prepare_v2(l->db, text, -1, &q, NULL) != SQLITE_OK)
        return state_db_fail(l->db, l->path, "read it");
    for (;;) {
        int code = SQLITE_DONE;
        sqlite3_bind_int64(q, 1, next);
        while (st == OK && (code = sqlite3_step(q)) == SQLITE_ROW) {
            next = sqlite3_column_int64(q, 0) + 1;
            step = 1;
            st = fn(l, q);
        }
        if (st != OK || code == SQLITE_DONE) break;
        if (code_of(code) != ERR_FORMAT) st = state_db_fail(l->db, l->path, "read it");
        if (next < least) next = least;
        if (st == OK) st = note_damage(l, table, next);
        sqlite3_reset(q);
        if (st != OK || next > INT64_MAX - step) break;
        next += step;
        step *= 2;
    }
    sqlite3_finalize(q);
    return st;
}

/* Events of users that are being swept are left out. */
static status read_tables(state_loading *l) {
    TRY(read_rows(l, "erased", INT64_MIN,
                  "SELECT user_key FROM erased WHERE user_key >= ?1 ORDER BY user_key",
                  read_erased));
    TRY(read_rows(l, "users", 1, "SELECT id, name FROM users WHERE id >= ?1 ORDER BY id",
                  read_user));
    TRY(read_rows(l, "sweep", 1, "SELECT user FROM sweep WHERE user >= ?1 ORDER BY user",
                  read_swept));
    return read_rows(l, "events", 1,
                     "SELECT seq, user, time, time_ns, item, action, event_id, sum FROM events"
                     " WHERE seq >= ?1 ORDER BY seq",
                     read_event);
}

status state_db_read(state_loading *l) {
    status st = read_tables(l);
    mem_free(l->users.id);
    mem_free(l->swept.id);
    l->users = l->swept = (state_ids){0};
    return st;
}

status state_db_open(sqlite3 **out, const char *path) {
    int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX;
    if (sqlite3_open_v2(path, out, flags, NULL) != SQLITE_OK) {
        status st = state_db_fail(*out, path, "open it");
        sqlite3_close(*out);
        *out = NULL;
        return st;
    }
    sqlite3_busy_timeout(*out, STATE_BUSY_MS);
    return OK;
}

status state_db_make_file(const char *path) {
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) return fail_errno("%s", path);
    bool is_private = fchmod(fd, 0600) == 0;
    close(fd);
    return is_private ? OK : fail_errno("%s", path);
}

status state_db_migrate(sqlite3 *db, const char *path) {
    char text[64];
    int64_t version, application, n_tables;
    TRY(state_db_int(db, path, "PRAGMA user_version", &version));
    TRY(state_db_int(db, path, "PRAGMA application_id", &application));
    TRY(state_db_int(db, path, "SELECT count(*) FROM sqlite_master", &n_tables));
    if (version > VERSION)
        return fail(ERR_FORMAT,
                    "%s: written by a later version (schema %" PRId64 ", this one reads %d)", path,
                    version, VERSION);
    if (n_tables > 0 && application != APPLICATION)
        return fail(ERR_FORMAT, "%s: not a state of 'hstu serve'; give another folder", path);
    if (version == VERSION) return OK;
    TRY(state_db_exec(db, path, "begin a transaction", "BEGIN IMMEDIATE"));
    status st = OK;
    for (; version < VERSION && st == OK; version++)
        st = state_db_exec(db, path, "make its tables", migrations[version]);
    snprintf(text, sizeof text, "PRAGMA user_version=%d; PRAGMA application_id=%d", VERSION,
             APPLICATION);
    if (st == OK) st = state_db_exec(db, path, "make its tables", text);
    if (st == OK) return state_db_exec(db, path, "make its tables", "COMMIT");
    sqlite3_exec(db, "ROLLBACK", NULL, NULL, NULL);
    return st;
}
status state_db_open_existing(sqlite3 **db, const char *path) {
    int64_t application;
    *db = NULL;
    if (access(path, F_OK) != 0)
        return fail(ERR_IO, "%s: there is none; 'hstu serve --state DIR' makes one", path);
    TRY(state_db_open(db, path));
    status st = state_db_int(*db, path, "PRAGMA application_id", &application);
    if (st == OK && application != APPLICATION)
        st = fail(ERR_FORMAT, "%s: not a state of 'hstu serve'", path);
    return st;
}

#else
typedef int state_db_is_empty; /* state_none.c has what others need */
#endif
