#include "serve/state/state_db.h"

#include "data/set/seq_file.h"
#include "serve/state/users.h"

enum { MAGIC = 0x377f0682, MAX_PAGE = 65536, MIN_PAGE = 512, HEAD_SUMMED = 24, FRAME_SUMMED = 8 };

/* Where things are in a frame's head. */
enum { FRAME_COMMIT = 4, FRAME_SALT = 8, FRAME_SUM = 16 };

typedef struct wal_sum {
    uint32_t a, b;
} wal_sum;

static uint32_t big_endian(const unsigned char *p) {
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static uint32_t little_endian(const unsigned char *p) {
    return (uint32_t)p[3] << 24 | (uint32_t)p[2] << 16 | (uint32_t)p[1] << 8 | p[0];
}

/* n is a multiple of 8. */
static wal_sum add_bytes(wal_sum s, const unsigned char *p, size_t n, bool is_big) {
    for (size_t i = 0; i < n; i += 8) {
        s.a += (is_big ? big_endian(p + i) : little_endian(p + i)) + s.b;
        s.b += (is_big ? big_endian(p + i + 4) : little_endian(p + i + 4)) + s.a;
    }
    return s;
}

static bool is_wal_sum(wal_sum s, const unsigned char *p) {
    return s.a == big_endian(p) && s.b == big_endian(p + 4);
}

/* Whether a frame has a salt of this log; those of the log's last round have others.  One of the
 * two is enough: a flipped bit hits one. */
static bool is_of_log(const unsigned char *head, const unsigned char *frame) {
    const unsigned char *own = head + WAL_SALT_AT, *its = frame + FRAME_SALT;
    return memcmp(own, its, 4) == 0 || memcmp(own + 4, its + 4, 4) == 0;
}

wal_end wal_inspect(const unsigned char *bytes, size_t n) {
    wal_end end = {.damaged = 0};
    if (n < WAL_HEADER_BYTES) return end; /* a crash at its first byte: no frame yet */
    uint32_t page = big_endian(bytes + 8);
    bool is_big = (big_endian(bytes) & 1) != 0;
    wal_sum sum = add_bytes((wal_sum){0, 0}, bytes, HEAD_SUMMED, is_big);
    if ((big_endian(bytes) & ~1u) != MAGIC || !is_wal_sum(sum, bytes + HEAD_SUMMED) ||
        page < MIN_PAGE || page > MAX_PAGE) {
        end.is_damaged = n > WAL_HEADER_BYTES; /* SQLite drops all of it */
        return end;
    }
    size_t frame = WAL_FRAME_BYTES + page, at = WAL_HEADER_BYTES;
    end.n_good = at;
    bool is_whole = true;
    for (; at + frame <= n; at += frame) {
        const unsigned char *f = bytes + at;
        sum = add_bytes(sum, f, FRAME_SUMMED, is_big);
        sum = add_bytes(sum, f + WAL_FRAME_BYTES, page, is_big);
        is_whole = is_whole && memcmp(bytes + WAL_SALT_AT, f + FRAME_SALT, WAL_SALT_BYTES) == 0 &&
                   is_wal_sum(sum, f + FRAME_SUM);
        if (is_whole && big_endian(f + FRAME_COMMIT) != 0) end.n_good = at + frame;
        if (is_whole || end.is_damaged || !is_of_log(bytes, f)) continue;
        end.is_damaged = true;
        end.damaged = at;
    }
    return end;
}

#if defined(HSTU_HAS_SQLITE)

enum {
    MAX_ID = 255,
    APPLICATION = 0x68737475 /* "hstu" */
};

/* Each brings the database from version i to i + 1 (PRAGMA user_version).  No row of users or
 * events is ever deleted or changes its size: SQLite then never moves one, and leaves no copy of it
 * behind. */
static const char *const migrations[] = {
    "CREATE TABLE users (id INTEGER PRIMARY KEY, name TEXT NOT NULL, sum INTEGER);"
    "CREATE TABLE events (seq INTEGER PRIMARY KEY, user INTEGER NOT NULL, time INTEGER NOT NULL,"
    " time_ns INTEGER NOT NULL, item NOT NULL, action INTEGER NOT NULL, event_id, sum INTEGER);"
    "CREATE TABLE erased (user_key INTEGER PRIMARY KEY, times INTEGER NOT NULL, sum INTEGER);"
    "CREATE TABLE sweep (id INTEGER PRIMARY KEY AUTOINCREMENT, user INTEGER NOT NULL);"
    "CREATE TABLE settings (name TEXT PRIMARY KEY, value, sum INTEGER);"};
enum { VERSION = sizeof migrations / sizeof *migrations };

#define REMEDY                                                                                     \
    "'hstu state recover DIR' saves what can be read, 'hstu state restore DIR FILE' restores a "   \
    "backup"

static status code_of(int code) {
    code &= 0xff;
    if (code == SQLITE_NOMEM) return ERR_NOMEM;
    return code == SQLITE_CORRUPT || code == SQLITE_NOTADB ? ERR_FORMAT : ERR_IO;
}

status state_db_fail(sqlite3 *db, const char *path, const char *doing) {
    int code = db != NULL ? sqlite3_extended_errcode(db) : SQLITE_NOMEM;
    const char *text = db != NULL ? sqlite3_errmsg(db) : "out of memory";
    if ((code & 0xff) == SQLITE_FULL) text = "the disk is full";
    if ((code & 0xff) == SQLITE_BUSY) text = "another program holds the database";
    if (code_of(code) == ERR_FORMAT)
        return fail(ERR_FORMAT, "%s: damaged (%s: %s); " REMEDY, path, doing, text);
    return fail(code_of(code), "%s: cannot %s: %s", path, doing, text);
}

status state_db_exec(sqlite3 *db, const char *path, const char *doing, const char *text) {
    return sqlite3_exec(db, text, NULL, NULL, NULL) == SQLITE_OK ? OK
                                                                 : state_db_fail(db, path, doing);
}

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

void state_db_bind_id(sqlite3_stmt *q, int i, const engine_id *id) {
    int64_t number;
    if (id->n == 0)
        sqlite3_bind_null(q, i);
    else if (seq_id_number(id->text, id->n, &number))
        sqlite3_bind_int64(q, i, number);
    else
        sqlite3_bind_text(q, i, id->text, (int)id->n, SQLITE_STATIC);
}

/* In a row all sums take the same room. */
static int64_t wide(uint32_t crc) {
    return (int64_t)1 << 40 | crc;
}

int64_t state_db_sum(int64_t user, const engine_event *e) {
    struct {
        int64_t user, time;
        uint32_t time_ns, action, n_item, n_id;
    } head = {user, e->time, e->time_ns, e->action, (uint32_t)e->item.n, (uint32_t)e->id.n};
    uint32_t crc = crc32_add(0, &head, sizeof head);
    crc = crc32_add(crc, e->item.text, e->item.n);
    return wide(e->id.n > 0 ? crc32_add(crc, e->id.text, e->id.n) : crc);
}

int64_t state_db_sum_of(const void *bytes, size_t n) {
    return wide(crc32_add(0, bytes, n));
}

/* blank(x): a value without content that takes the same room in a row. */
static void blank(sqlite3_context *c, int n, sqlite3_value **x) {
    static const int64_t filler[] = {2, 200, 40000, 10000000, 5000000000, 1000000000000000};
    static const int64_t limit[] = {127, 32767, 8388607, 2147483647, 140737488355327};
    static const char nothing[MAX_ID + 1];
    if (sqlite3_value_type(x[0]) == SQLITE_TEXT) {
        int bytes = sqlite3_value_bytes(x[0]);
        sqlite3_result_text(c, nothing, bytes < MAX_ID ? bytes : MAX_ID, SQLITE_STATIC);
        return;
    }
    int64_t v = sqlite3_value_int64(x[0]);
    int size = 0;
    while (size < 5 && (v < -limit[size] - 1 || v > limit[size]))
        size++;
    if (sqlite3_value_type(x[0]) != SQLITE_INTEGER)
        sqlite3_result_null(c);
    else
        sqlite3_result_int64(c, v == 0 || v == 1 ? v : filler[size]);
}

static status note_damage(state_loading *l, const char *what, int64_t row) {
    char place[256];
    snprintf(place, sizeof place, "row %" PRId64 " of the table %s", row, what);
    if (l->counts.n_damaged++ == 0) memcpy(l->counts.place, place, sizeof place);
    if (l->goes_on) return OK;
    return fail(ERR_FORMAT, "%s: damaged at %s; " REMEDY, l->path, place);
}

/* An id as text; digits: of a number, which SQLite would write in more time than all else of a row
 * takes. */
static const char *column_id(sqlite3_stmt *q, int i, char digits[ID_DIGITS], size_t *n) {
    if (sqlite3_column_type(q, i) == SQLITE_INTEGER) {
        *n = id_digits(digits, sqlite3_column_int64(q, i));
        return digits;
    }
    const char *text = (const char *)sqlite3_column_text(q, i);
    *n = text != NULL ? (size_t)sqlite3_column_bytes(q, i) : 0;
    return text;
}

static size_t find_id(const int64_t *ids, size_t n, int64_t id) {
    size_t low = 0, high = n;
    BISECT(low, high, ids[middle] < id);
    return low < n && ids[low] == id ? low : SIZE_MAX;
}

static status add_id(state_ids *ids, int64_t id) {
    TRY(MEM_RESERVE(&ids->id, &ids->capacity, ids->n + 1));
    ids->id[ids->n++] = id;
    return OK;
}

static bool is_sum(sqlite3_stmt *q, int i, int64_t sum) {
    /* Rows that somebody added by hand have none. */
    return sqlite3_column_type(q, i) == SQLITE_NULL || sqlite3_column_int64(q, i) == sum;
}

static status read_user(state_loading *l, sqlite3_stmt *q) {
    char digits[ID_DIGITS];
    size_t n;
    int64_t id = sqlite3_column_int64(q, 0);
    const char *name = column_id(q, 1, digits, &n);
    if (n > 0 && name[0] == '\0') return add_id(&l->gone, id); /* erased */
    if (n == 0 || n > MAX_ID || memchr(name, '\0', n) != NULL ||
        !is_sum(q, 2, state_db_sum_of(name, n)))
        return note_damage(l, "users", id);
    TRY(add_id(&l->users, id));
    l->counts.n_users++;
    return l->reader != NULL ? l->reader->user(l->reader->ctx, id, name, n) : OK;
}

static status read_event(state_loading *l, sqlite3_stmt *q) {
    int64_t user = sqlite3_column_int64(q, 1), ns = sqlite3_column_int64(q, 3);
    int64_t action = sqlite3_column_int64(q, 5);
    engine_event e = {.has_time = true, .time = sqlite3_column_int64(q, 2)};
    char digits[2][ID_DIGITS];
    size_t nth = find_id(l->users.id, l->users.n, user);
    if (nth == SIZE_MAX && find_id(l->gone.id, l->gone.n, user) != SIZE_MAX) return OK;
    e.item.text = column_id(q, 4, digits[0], &e.item.n);
    e.id.text = column_id(q, 6, digits[1], &e.id.n);
    bool is_bad = nth == SIZE_MAX || ns < 0 || ns >= 1000000000 || action < 0 ||
                  action > UINT16_MAX || e.item.n == 0 || e.item.n > MAX_ID || e.id.n > MAX_ID ||
                  memchr(e.item.text, '\0', e.item.n) != NULL;
    e.time_ns = (uint32_t)ns;
    e.action = (uint16_t)action;
    is_bad = is_bad || !is_sum(q, 7, state_db_sum(user, &e));
    if (is_bad) return note_damage(l, "events", sqlite3_column_int64(q, 0));
    l->counts.n_events++;
    return l->reader != NULL ? l->reader->event(l->reader->ctx, nth, &e) : OK;
}

static status read_erased(state_loading *l, sqlite3_stmt *q) {
    int64_t key = sqlite3_column_int64(q, 0);
    if (!is_sum(q, 1, state_db_sum_of(&key, sizeof key))) return note_damage(l, "erased", key);
    l->counts.n_erased++;
    if (l->reader == NULL || l->reader->erased == NULL) return OK;
    return l->reader->erased(l->reader->ctx, l->salt, (uint64_t)key);
}

/* Calls fn for the rows of a query, which has ?1 for the first id to read.  After a damaged page
 * reading continues at the next id that can be read: one by one, then in longer and longer steps.
 */
static status read_rows(state_loading *l, const char *table, int64_t least, const char *text,
                        status (*fn)(state_loading *l, sqlite3_stmt *q)) {
    enum { ONE_BY_ONE = 4096 };
    sqlite3_stmt *q;
    int64_t next = INT64_MIN, step = 1;
    int n_tries = 0;
    status st = OK;
    if (sqlite3_prepare_v2(l->db, text, -1, &q, NULL) != SQLITE_OK)
        return state_db_fail(l->db, l->path, "read it");
    for (;;) {
        int code = SQLITE_DONE;
        sqlite3_bind_int64(q, 1, next);
        while (st == OK && (code = sqlite3_step(q)) == SQLITE_ROW) {
            int64_t id = sqlite3_column_int64(q, 0);
            n_tries = 0;
            step = 1;
            st = fn(l, q);
            if (id == INT64_MAX) break;
            next = id + 1;
        }
        if (st != OK || code == SQLITE_DONE || code == SQLITE_ROW) break;
        if (code_of(code) != ERR_FORMAT) st = state_db_fail(l->db, l->path, "read it");
        if (next < least) next = least;
        if (st == OK && n_tries == 0) st = note_damage(l, table, next);
        sqlite3_reset(q);
        if (n_tries++ > ONE_BY_ONE) step *= 2;
        if (st != OK || next > INT64_MAX - step || step > INT64_MAX / 2) break;
        next += step;
    }
    sqlite3_finalize(q);
    return st;
}

/* Events of erased users are left out. */
static status read_tables(state_loading *l) {
    TRY(read_rows(l, "erased", INT64_MIN,
                  "SELECT user_key, sum FROM erased WHERE user_key >= ?1 ORDER BY user_key",
                  read_erased));
    TRY(read_rows(l, "users", 1, "SELECT id, name, sum FROM users WHERE id >= ?1 ORDER BY id",
                  read_user));
    return read_rows(l, "events", 1,
                     "SELECT seq, user, time, time_ns, item, action, event_id, sum FROM events"
                     " WHERE seq >= ?1 ORDER BY seq",
                     read_event);
}

status state_db_read(state_loading *l) {
    int64_t n = 0;
    status st = read_tables(l);
    if (st == OK && state_db_int(l->db, l->path, "SELECT count(*) FROM sweep", &n) != OK)
        st = note_damage(l, "sweep", 1);
    l->counts.n_unswept = (uint64_t)n;
    MEM_FREE(l->users.id, l->gone.id);
    l->users = l->gone = (state_ids){0};
    return st;
}

status state_db_salt(sqlite3 *db, const char *path, int64_t *out) {
    int64_t sum;
    TRY(state_db_int(db, path, "SELECT value FROM settings WHERE name = 'erased_salt'", out));
    TRY(state_db_int(db, path, "SELECT sum FROM settings WHERE name = 'erased_salt'", &sum));
    if (sum == state_db_sum_of(out, sizeof *out)) return OK;
    return fail(
        ERR_FORMAT,
        "%s: damaged in the table settings, so erased users cannot be told from others; " REMEDY,
        path);
}

status state_db_open(sqlite3 **out, const char *path) {
    int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX;
    char plain[STATE_PATH_BYTES + 2];
    /* "file:..." is a folder here, not an address. */
    snprintf(plain, sizeof plain, "%s%s", strncmp(path, "file:", 5) == 0 ? "./" : "", path);
    if (sqlite3_open_v2(plain, out, flags, NULL) != SQLITE_OK ||
        sqlite3_create_function(*out, "blank", 1, SQLITE_UTF8, NULL, blank, NULL, NULL) !=
            SQLITE_OK) {
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

/* ERR_FORMAT: it is of a later program. */
static status read_version(sqlite3 *db, const char *path, int64_t *version) {
    TRY(state_db_int(db, path, "PRAGMA user_version", version));
    if (*version <= VERSION) return OK;
    return fail(ERR_FORMAT,
                "%s: written by a later version (schema %" PRId64 ", this one reads %d)", path,
                *version, VERSION);
}

static status add_salt(sqlite3 *db, const char *path) {
    char text[160];
    int64_t salt;
    TRY(state_db_int(db, path, "SELECT random()", &salt));
    snprintf(text, sizeof text,
             "INSERT INTO settings VALUES ('erased_salt', %" PRId64 ", %" PRId64 ")", salt,
             state_db_sum_of(&salt, sizeof salt));
    return state_db_exec(db, path, "make its tables", text);
}

status state_db_migrate(sqlite3 *db, const char *path) {
    char text[64];
    int64_t version, application, n_tables;
    TRY(read_version(db, path, &version));
    TRY(state_db_int(db, path, "PRAGMA application_id", &application));
    TRY(state_db_int(db, path, "SELECT count(*) FROM sqlite_master", &n_tables));
    if (n_tables > 0 && application != APPLICATION)
        return fail(ERR_FORMAT, "%s: not a state of 'hstu serve'; give another folder", path);
    if (version == VERSION) return OK;
    TRY(state_db_exec(db, path, "begin a transaction", "BEGIN IMMEDIATE"));
    status st = OK;
    for (; version < VERSION && st == OK; version++)
        st = state_db_exec(db, path, "make its tables", migrations[version]);
    if (st == OK && n_tables == 0) st = add_salt(db, path);
    snprintf(text, sizeof text, "PRAGMA user_version=%d; PRAGMA application_id=%d", VERSION,
             APPLICATION);
    if (st == OK) st = state_db_exec(db, path, "make its tables", text);
    if (st == OK) return state_db_exec(db, path, "make its tables", "COMMIT");
    sqlite3_exec(db, "ROLLBACK", NULL, NULL, NULL);
    return st;
}

status state_db_open_existing(sqlite3 **db, const char *path) {
    int64_t application, version;
    *db = NULL;
    if (access(path, F_OK) != 0)
        return fail(ERR_IO, "%s does not exist; 'hstu serve --state DIR' creates it", path);
    TRY(state_db_open(db, path));
    status st = state_db_int(*db, path, "PRAGMA application_id", &application);
    if (st == OK && application != APPLICATION)
        st = fail(ERR_FORMAT, "%s: not a state of 'hstu serve'", path);
    if (st == OK) st = read_version(*db, path, &version);
    return st;
}

static status write_copy(const char *path, const file_map *log) {
    out_file *f;
    TRY(out_file_create(&f, path));
    status st = out_file_set_private(f);
    if (st == OK) st = out_file_write(f, log->bytes, log->n_bytes);
    return out_file_end(f, st);
}

status state_keep_damaged_log(const char *wal_path, char *warning, size_t n) {
    file_map log;
    char kept[STATE_PATH_BYTES + 32];
    struct stat file;
    if (stat(wal_path, &file) != 0 || file.st_size == 0) return OK;
    TRY(file_map_open(&log, wal_path));
    wal_end end = wal_inspect(log.bytes, log.n_bytes);
    status st = OK;
    if (end.is_damaged) {
        snprintf(kept, sizeof kept, "%s.damaged-%lld", wal_path, (long long)time(NULL));
        st = write_copy(kept, &log);
        snprintf(warning, n,
                 "%.200s: damaged at byte %" PRIu64 " of %zu; transactions up to byte %" PRIu64
                 " are used. Either the server was killed during a commit, or acknowledged events "
                 "are missing. The file is kept as %.300s",
                 wal_path, end.damaged, log.n_bytes, end.n_good, kept);
    }
    file_map_close(&log);
    return st;
}
#endif
