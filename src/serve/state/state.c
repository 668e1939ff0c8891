#include "serve/state/state.h"

#include <stdatomic.h>
#include <sys/file.h>

#include "serve/state/state_db.h"
#include "serve/state/state_tools.h"

#if defined(HSTU_HAS_SQLITE)

enum {
    CHECKPOINT_FRAMES = 1024, /* of the log, from which it is copied to the database */
    SWEEP_ROWS = 8192         /* of a transaction */
};
static const uint64_t second_ns = 1000000000ull, max_backoff_ns = 60000000000ull;

/* The statements.  SWEEP: of users whose names are blank only, since a damaged row of sweep must
 * not cost anybody's events. */
#define STATEMENTS(X)                                                                              \
    X(BEGIN, "BEGIN IMMEDIATE")                                                                    \
    X(COMMIT, "COMMIT")                                                                            \
    X(ROLLBACK, "ROLLBACK")                                                                        \
    X(DATA_VERSION, "PRAGMA data_version")                                                         \
    X(ADD_USER, "INSERT INTO users (name, sum) VALUES (?1, ?2)")                                   \
    X(ADD_EVENT, "INSERT INTO events (user, time, time_ns, item, action, event_id, sum)"           \
                 " VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)")                                           \
    X(REMOVE_USER, "UPDATE users SET name = blank(name) WHERE id = ?1")                            \
    X(ADD_ERASED,                                                                                  \
      "INSERT INTO erased VALUES (?1, 1, ?2) ON CONFLICT DO UPDATE SET times = times + 1")         \
    X(ADD_SWEEP, "INSERT INTO sweep (user) VALUES (?1)")                                           \
    X(SWEEP, "UPDATE events SET time = blank(time), time_ns = blank(time_ns), item = blank(item)," \
             " action = blank(action), event_id = blank(event_id), sum = blank(sum)"               \
             " WHERE seq >= ?1 AND seq <= ?2 AND user IN (SELECT user FROM sweep JOIN users ON"    \
             " users.id = sweep.user WHERE substr(CAST(name AS BLOB), 1, 1) = x'00')")             \
    X(SWEEP_END, "SELECT max(seq) FROM"                                                            \
                 " (SELECT seq FROM events WHERE seq >= ?1 ORDER BY seq LIMIT ?2)")                \
    X(END_SWEEP, "DELETE FROM sweep WHERE id <= ?1")

#define SQL_ENUM(name, text) SQL_##name,
#define SQL_TEXT(name, text) text,
typedef enum { STATEMENTS(SQL_ENUM) N_SQL } sql;
static const char *const sql_text[N_SQL] = {STATEMENTS(SQL_TEXT)};

/* A pass over the events that removes those of the erased. */
typedef struct sweeping {
    bool is_going;
    int64_t at, end; /* rows still to look at */
    int64_t last;    /* of the table sweep, that this pass covers */
    uint64_t due_ns; /* by clock_ns: when the next pass begins; UINT64_MAX: there is no need */
} sweeping;

struct state {
    char path[STATE_PATH_BYTES], wal_path[STATE_PATH_BYTES];
    int folder; /* its lock is the state's */
    sqlite3 *db;
    sqlite3_stmt *stmt[N_SQL];
    uint64_t salt;
    uint64_t erase_within_ns;
    sweeping sweep;
    bool wants_truncation;         /* of the log: it has bytes of the erased */
    bool wants_end;                /* of the pass */
    uint64_t retry_ns, backoff_ns; /* of maintenance that failed, */
    uint64_t n_failures;           /* so often in a row */
    /* The log as of the last commit, to take a failed one out of it. */
    int wal;
    struct stat db_file, wal_file;
    uint64_t wal_frames, page_bytes;
    int64_t data_version; /* changes when another program commits */
    bool has_begun;       /* a transaction of ours may have frames in the log */
    bool must_cut;        /* one that failed has, and they could not be cut off */
    unsigned char wal_salt[WAL_SALT_BYTES];
    bool is_lost;  /* a file was removed or replaced: nothing more can be promised */
    bool is_saved; /* then: all that was committed is in the database */
    /* Copies the log to the database beside the writer. */
    sqlite3 *side;
    pthread_t copier;
    bool has_copier;
    atomic_bool is_ending, wants_copy; /* the writer is to finish the copy */
    pthread_mutex_t lock;              /* of what follows */
    pthread_cond_t wake;
    uint64_t n_frames; /* of the log */
    engine_state_stats stats;
};

const char *state_library_version(void) {
    return sqlite3_libversion();
}

/* Runs a statement that gives no rows. */
static status run(state *s, sql which, const char *doing) {
    int code = sqlite3_step(s->stmt[which]);
    status st = code == SQLITE_DONE ? OK : state_db_fail(s->db, s->path, doing);
    sqlite3_reset(s->stmt[which]);
    return st;
}

static status run_with(state *s, sql which, int64_t id, const char *doing) {
    sqlite3_bind_int64(s->stmt[which], 1, id);
    return run(s, which, doing);
}

status state_add_user(state *s, const char *name, size_t n, int64_t *id) {
    sqlite3_bind_text(s->stmt[SQL_ADD_USER], 1, name, (int)n, SQLITE_STATIC);
    sqlite3_bind_int64(s->stmt[SQL_ADD_USER], 2, state_db_sum_of(name, n));
    TRY(run(s, SQL_ADD_USER, "add a user"));
    *id = sqlite3_last_insert_rowid(s->db);
    return OK;
}

status state_add_event(state *s, int64_t user, const engine_event *e) {
    sqlite3_stmt *q = s->stmt[SQL_ADD_EVENT];
    sqlite3_bind_int64(q, 1, user);
    sqlite3_bind_int64(q, 2, e->time);
    sqlite3_bind_int64(q, 3, e->time_ns);
    state_db_bind_id(q, 4, &e->item);
    sqlite3_bind_int64(q, 5, e->action);
    state_db_bind_id(q, 6, &e->id);
    sqlite3_bind_int64(q, 7, state_db_sum(user, e));
    return run(s, SQL_ADD_EVENT, "add an event");
}

status state_erase_user(state *s, int64_t id, const char *name, size_t n) {
    TRY(state_add_erased(s, state_user_key(s->salt, name, n)));
    if (id == 0) return OK;
    TRY(run_with(s, SQL_ADD_SWEEP, id, "erase a user"));
    TRY(run_with(s, SQL_REMOVE_USER, id, "erase a user"));
    uint64_t due = clock_ns() + s->erase_within_ns / 4;
    if (s->sweep.due_ns > due) s->sweep.due_ns = due;
    return OK;
}

status state_add_erased(state *s, uint64_t key) {
    int64_t id = (int64_t)key;
    sqlite3_bind_int64(s->stmt[SQL_ADD_ERASED], 2, state_db_sum_of(&id, sizeof id));
    return run_with(s, SQL_ADD_ERASED, id, "erase a user");
}

status state_set_salt(state *s, int64_t salt) {
    char text[160];
    snprintf(text, sizeof text,
             "UPDATE settings SET value = %" PRId64 ", sum = %" PRId64
             " WHERE name = 'erased_salt'",
             salt, state_db_sum_of(&salt, sizeof salt));
    s->salt = (uint64_t)salt;
    return state_db_exec(s->db, s->path, "write to it", text);
}

static status open_wal(state *s) {
    if (s->wal >= 0) return OK;
    s->wal = open(s->wal_path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (s->wal < 0 || fstat(s->wal, &s->wal_file) != 0) return fail_errno("%s", s->wal_path);
    return OK;
}

static bool is_same_file(const struct stat *a, const char *path) {
    struct stat now;
    return stat(path, &now) == 0 && now.st_ino == a->st_ino && now.st_dev == a->st_dev;
}

/* A commit to a file that has been unlinked is lost with the process. */
static status check_files(state *s) {
    if (!s->is_lost && is_same_file(&s->db_file, s->path) &&
        is_same_file(&s->wal_file, s->wal_path))
        return OK;
    /* What was committed before is copied to the database, if that still has its name. */
    if (!s->is_lost)
        s->is_saved = sqlite3_wal_checkpoint_v2(s->db, NULL, SQLITE_CHECKPOINT_FULL, NULL, NULL) ==
                          SQLITE_OK &&
                      is_same_file(&s->db_file, s->path);
    s->is_lost = true;
    return fail(ERR_IO,
                "%s or its -wal file was removed or replaced while the server ran; nothing more is "
                "stored until the server is started again",
                s->path);
}

/* SQLite forgets a transaction whose fsync failed, but its frames are in the log and would be read
 * after a crash: they are cut off. */
static void cut_failed_commit(state *s) {
    unsigned char salt[WAL_SALT_BYTES];
    uint64_t end = WAL_HEADER_BYTES;
    struct stat file;
    if ((!s->has_begun && !s->must_cut) || open_wal(s) != OK) return; /* nothing was written */
    s->has_begun = s->must_cut = false;
    if (pread(s->wal, salt, sizeof salt, WAL_SALT_AT) == sizeof salt &&
        memcmp(salt, s->wal_salt, sizeof salt) == 0)
        end += s->wal_frames * (WAL_FRAME_BYTES + s->page_bytes);
    if (fstat(s->wal, &file) == 0 && (uint64_t)file.st_size <= end) return;
    s->must_cut = ftruncate(s->wal, (off_t)end) != 0;
    if (s->must_cut || file_sync(s->wal) != 0)
        log_warn("%s: a failed transaction could not be removed for good: a crash now may bring it "
                 "back",
                 s->wal_path);
}

/* After each commit: where the log ends, and which round of it this is. */
static int note_frames(void *context, sqlite3 *db, const char *name, int n_frames) {
    state *s = context;
    s->wal_frames = (uint64_t)n_frames;
    if (open_wal(s) != OK ||
        pread(s->wal, s->wal_salt, sizeof s->wal_salt, WAL_SALT_AT) != sizeof s->wal_salt)
        s->is_lost = true;
    return SQLITE_OK;
}

static void note_log(state *s) {
    pthread_mutex_lock(&s->lock);
    s->n_frames = s->wal_frames;
    s->stats.log_bytes = s->wal_frames * (WAL_FRAME_BYTES + s->page_bytes);
    if (s->n_frames >= CHECKPOINT_FRAMES) pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->lock);
}

static void note_result(state *s, bool is_ok) {
    note_log(s);
    pthread_mutex_lock(&s->lock);
    s->stats.n_commits += is_ok;
    s->stats.n_failed += !is_ok;
    s->stats.is_failing = !is_ok;
    if (!is_ok) snprintf(s->stats.why, sizeof s->stats.why, "%s", status_reason());
    pthread_mutex_unlock(&s->lock);
}

/* The log as an earlier process, the making of the tables or another program has left it.  What
 * follows the last commit is cut off: with later frames before it, it would look like damage. */
static status read_log(state *s) {
    file_map map;
    struct stat file;
    if (stat(s->wal_path, &file) != 0 || file.st_size < WAL_HEADER_BYTES) return OK;
    TRY(open_wal(s));
    TRY(file_map_open(&map, s->wal_path));
    wal_end end = wal_inspect(map.bytes, map.n_bytes);
    size_t n = map.n_bytes;
    memcpy(s->wal_salt, map.bytes + WAL_SALT_AT, sizeof s->wal_salt);
    s->wal_frames = 0;
    if (end.n_good > WAL_HEADER_BYTES)
        s->wal_frames = (end.n_good - WAL_HEADER_BYTES) / (WAL_FRAME_BYTES + s->page_bytes);
    file_map_close(&map);
    if (end.n_good >= WAL_HEADER_BYTES && end.n_good < n &&
        ftruncate(s->wal, (off_t)end.n_good) != 0)
        return fail_errno("%s", s->wal_path);
    return OK;
}

/* Under the write lock: what another program has committed is not ours to cut off. */
static status follow_log(state *s) {
    sqlite3_stmt *q = s->stmt[SQL_DATA_VERSION];
    int64_t version = sqlite3_step(q) == SQLITE_ROW ? sqlite3_column_int64(q, 0) : -1;
    sqlite3_reset(q);
    if (version == s->data_version) return OK;
    s->data_version = version;
    return read_log(s);
}

status state_begin(state *s) {
    TRY(check_files(s));
    if (s->must_cut) cut_failed_commit(s);
    if (s->must_cut) return fail(ERR_IO, "%s: cannot be written", s->wal_path);
    if (atomic_exchange(&s->wants_copy, false))
        sqlite3_wal_checkpoint_v2(s->db, NULL, SQLITE_CHECKPOINT_PASSIVE, NULL, NULL);
    TRY(run(s, SQL_BEGIN, "begin a transaction"));
    TRY(follow_log(s));
    s->has_begun = true;
    return OK;
}

/* Nothing of a transaction stays, in the database or in the log. */
static void undo(state *s) {
    if (!sqlite3_get_autocommit(s->db)) (void)sqlite3_step(s->stmt[SQL_ROLLBACK]);
    sqlite3_reset(s->stmt[SQL_ROLLBACK]);
    if (!s->is_lost) cut_failed_commit(s);
}

status state_commit(state *s) {
    TRY(run(s, SQL_COMMIT, "commit"));
    s->has_begun = false;
    /* Its file may have vanished since it began; in the database it is safe, too. */
    status st = check_files(s);
    if (st != OK && !s->is_saved) return st;
    note_result(s, true);
    return OK;
}

void state_rollback(state *s) {
    note_result(s, false);
    undo(s);
}

/* Copies the log to the database while the writer writes on; what it cannot finish, because more
 * came meanwhile, the writer finishes between two transactions. */
static void *copy_log(void *context) {
    state *s = context;
    uint64_t backoff = second_ns;
    pthread_mutex_lock(&s->lock);
    while (!atomic_load(&s->is_ending)) {
        int n_log = 0, n_copied = 0;
        cond_wait_until(&s->wake, &s->lock, clock_ns() + backoff);
        if (s->n_frames < CHECKPOINT_FRAMES || atomic_load(&s->is_ending)) continue;
        pthread_mutex_unlock(&s->lock);
        int code =
            sqlite3_wal_checkpoint_v2(s->side, NULL, SQLITE_CHECKPOINT_PASSIVE, &n_log, &n_copied);
        if (code == SQLITE_OK && n_log == n_copied) atomic_store(&s->wants_copy, true);
        bool is_bad = code != SQLITE_OK && code != SQLITE_BUSY;
        if (is_bad && backoff == second_ns)
            log_warn("%s: the log cannot be copied to the database, and grows: %s", s->path,
                     sqlite3_errmsg(s->side));
        backoff = !is_bad ? second_ns : backoff < max_backoff_ns ? 2 * backoff : max_backoff_ns;
        uint64_t until = clock_ns() + (is_bad ? backoff : second_ns / 20);
        pthread_mutex_lock(&s->lock);
        while (!atomic_load(&s->is_ending) && clock_ns() < until)
            cond_wait_until(&s->wake, &s->lock, until);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

static status begin_sweep(state *s) {
    TRY(state_db_int(s->db, s->path, "SELECT max(id) FROM sweep", &s->sweep.last));
    TRY(state_db_int(s->db, s->path, "SELECT max(seq) FROM events", &s->sweep.end));
    s->sweep.at = INT64_MIN;
    s->sweep.is_going = true;
    s->sweep.due_ns = UINT64_MAX;
    return OK;
}

/* The last of the next SWEEP_ROWS rows. */
static int64_t sweep_to(state *s) {
    sqlite3_stmt *q = s->stmt[SQL_SWEEP_END];
    sqlite3_bind_int64(q, 1, s->sweep.at);
    sqlite3_bind_int64(q, 2, SWEEP_ROWS);
    int64_t to = sqlite3_step(q) == SQLITE_ROW && sqlite3_column_type(q, 0) == SQLITE_INTEGER
                     ? sqlite3_column_int64(q, 0)
                     : s->sweep.end;
    sqlite3_reset(q);
    return to;
}

/* The statement of a transaction of its own, which has begun. */
static status run_sweep(state *s, sql which, int64_t id) {
    TRY(run_with(s, which, id, "remove events of erased users"));
    TRY(run(s, SQL_COMMIT, "remove events of erased users"));
    s->has_begun = false;
    note_log(s);
    return OK;
}

static status sweep_rows(state *s) {
    TRY(state_begin(s));
    int64_t to = sweep_to(s);
    sqlite3_bind_int64(s->stmt[SQL_SWEEP], 2, to);
    TRY(run_sweep(s, SQL_SWEEP, s->sweep.at));
    s->sweep.is_going = to < s->sweep.end;
    s->sweep.at = to < INT64_MAX ? to + 1 : to;
    s->wants_truncation |= !s->sweep.is_going;
    return OK;
}

/* Once nothing of them is left in any file. */
static status end_sweep(state *s) {
    TRY(state_begin(s));
    TRY(run_sweep(s, SQL_END_SWEEP, s->sweep.last));
    s->wants_end = false;
    return OK;
}

/* The log still has the bytes of rows that were there before. */
static status truncate_log(state *s) {
    sqlite3_busy_timeout(s->db, 0); /* requests wait for this thread: readers are not waited for */
    int code = sqlite3_wal_checkpoint_v2(s->db, NULL, SQLITE_CHECKPOINT_TRUNCATE, NULL, NULL);
    sqlite3_busy_timeout(s->db, STATE_BUSY_MS);
    if (code != SQLITE_OK) return state_db_fail(s->db, s->path, "empty the log");
    s->wants_truncation = false;
    s->wants_end = true;
    s->wal_frames = 0;
    note_log(s);
    return OK;
}

static status maintain(state *s) {
    if (s->wants_truncation) return truncate_log(s);
    if (!s->sweep.is_going && !s->wants_end)
        return clock_ns() >= s->sweep.due_ns ? begin_sweep(s) : OK;
    status st = s->sweep.is_going ? sweep_rows(s) : end_sweep(s);
    if (st != OK) undo(s);
    return st;
}

void state_hurry(state *s) {
    if (s->sweep.due_ns != UINT64_MAX) s->sweep.due_ns = 0;
}

static void count_unswept(state *s) {
    int64_t n = 0;
    if (state_db_int(s->db, s->path, "SELECT count(*) FROM sweep", &n) != OK) return;
    pthread_mutex_lock(&s->lock);
    s->stats.n_unswept = (uint64_t)n;
    pthread_mutex_unlock(&s->lock);
}

/* After a failure: longer and longer, but a few times within the promised time. */
static uint64_t back_off(state *s) {
    uint64_t most = s->erase_within_ns / 4;
    if (most < second_ns) most = second_ns;
    if (most > max_backoff_ns) most = max_backoff_ns;
    if (s->n_failures++ == 4) /* not for a reader that is done soon */
        log_warn("erased users: %s; tried again later", status_reason());
    s->backoff_ns = s->backoff_ns == 0 ? second_ns / 4 : 2 * s->backoff_ns;
    if (s->backoff_ns > most) s->backoff_ns = most;
    s->retry_ns = clock_ns() + s->backoff_ns;
    return s->backoff_ns;
}

uint64_t state_maintain(state *s) {
    uint64_t now = clock_ns();
    bool has_work =
        s->sweep.is_going || s->wants_truncation || s->wants_end || now >= s->sweep.due_ns;
    if (s->is_lost) return UINT64_MAX;
    if (has_work && now < s->retry_ns) return s->retry_ns - now;
    if (has_work) {
        if (maintain(s) != OK) return back_off(s);
        s->backoff_ns = 0;
        s->n_failures = 0;
        count_unswept(s);
    }
    if (s->sweep.is_going || s->wants_truncation || s->wants_end) return 0;
    if (s->sweep.due_ns == UINT64_MAX) return UINT64_MAX;
    return s->sweep.due_ns > now ? s->sweep.due_ns - now : 0;
}

void state_get_stats(state *s, engine_state_stats *out) {
    pthread_mutex_lock(&s->lock);
    *out = s->stats;
    pthread_mutex_unlock(&s->lock);
}

static status lock_folder(state *s, const char *folder) {
    s->folder = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (s->folder < 0) return fail_errno("%s", folder);
    if (flock(s->folder, LOCK_EX | LOCK_NB) == 0) return OK;
    return fail(ERR_IO, "%s: in use by another server; give each its own --state", folder);
}

/* Removes what a killed tool has left: it would still hold users that are erased later. */
static void remove_leftovers(const char *folder) {
    static const char *const folders[] = {"recovering", "importing"};
    char path[STATE_PATH_BYTES];
    for (int i = 0; i < 2; i++)
        if (path_join(path, sizeof path, folder, folders[i]) == OK) folder_remove(path, 1);
    if (path_join(path, sizeof path, folder, "state.db.part") == OK) (void)unlink(path);
}

/* A folder of a program that kept a log of its own. */
static status refuse_log(const char *folder, const char *path) {
    char log[STATE_PATH_BYTES];
    TRY(path_join(log, sizeof log, folder, "events.log"));
    if (file_exists(path) || !file_exists(log)) return OK;
    return fail(ERR_FORMAT,
                "%s is an event log of a version before 0.1; 'hstu state import %s' of hstu 0.1.0 "
                "converts it",
                log, folder);
}

static status configure(state *s) {
    int64_t page, salt;
    TRY(state_db_exec(
        s->db, s->path, "use it",
        "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA secure_delete=ON;"
        "PRAGMA temp_store=MEMORY; PRAGMA wal_autocheckpoint=0; PRAGMA foreign_keys=OFF"));
    TRY(state_db_migrate(s->db, s->path));
    TRY(state_db_int(s->db, s->path, "PRAGMA page_size", &page));
    TRY(state_db_salt(s->db, s->path, &salt));
    s->page_bytes = (uint64_t)page;
    s->salt = (uint64_t)salt;
    for (int i = 0; i < N_SQL; i++)
        if (sqlite3_prepare_v3(s->db, sql_text[i], -1, SQLITE_PREPARE_PERSISTENT, &s->stmt[i],
                               NULL) != SQLITE_OK)
            return state_db_fail(s->db, s->path, "use it");
    sqlite3_wal_hook(s->db, note_frames, s);
    return OK;
}

static status open_all(state *s, const char *folder, const state_reader *reader) {
    TRY(folder_create(folder, NULL));
    TRY(path_join(s->path, sizeof s->path, folder, "state.db"));
    TRY(path_join(s->wal_path, sizeof s->wal_path, folder, "state.db-wal"));
    TRY(lock_folder(s, folder));
    TRY(refuse_log(folder, s->path));
    remove_leftovers(folder);
    TRY(state_keep_damaged_log(s->wal_path, s->stats.warning, sizeof s->stats.warning));
    TRY(state_db_make_file(s->path));
    TRY(state_db_open(&s->db, s->path));
    TRY(configure(s));
    TRY(run(s, SQL_BEGIN, "read its log"));
    TRY(follow_log(s));
    TRY(run(s, SQL_ROLLBACK, "read its log"));
    TRY(open_wal(s));
    state_loading l = {.salt = s->salt, .db = s->db, .path = s->path, .reader = reader};
    TRY(state_db_read(&l));
    s->stats.n_unswept = l.counts.n_unswept;
    s->sweep.due_ns = l.counts.n_unswept > 0 ? 0 : UINT64_MAX;
    if (stat(s->path, &s->db_file) != 0) return fail_errno("%s", s->path);
    TRY(state_db_open(&s->side, s->path));
    /* A connection that has read nothing takes the database for one without a log. */
    TRY(state_db_exec(s->side, s->path, "use it", "PRAGMA schema_version"));
    if (pthread_create(&s->copier, NULL, copy_log, s) != 0)
        return fail(ERR_IO, "a thread cannot be started");
    s->has_copier = true;
    return OK;
}

status state_open(state **out, const char *folder, uint64_t erase_within_ns,
                  const state_reader *reader) {
    state *s;
    *out = NULL;
    TRY(MEM_NEW(&s, 1));
    s->folder = s->wal = -1;
    s->erase_within_ns = erase_within_ns;
    pthread_mutex_init(&s->lock, NULL);
    cond_init(&s->wake);
    status st = open_all(s, folder, reader);
    return CREATED(st, out, s, state_close);
}

status state_close_whole(state *s) {
    char wal[STATE_PATH_BYTES];
    memcpy(wal, s->wal_path, sizeof wal);
    state_close(s);
    if (!file_exists(wal)) return OK;
    return fail(ERR_IO, "%s: cannot be copied to its database; is the disk full?", wal);
}

void state_close(state *s) {
    if (s == NULL) return;
    if (s->has_copier) {
        pthread_mutex_lock(&s->lock);
        atomic_store(&s->is_ending, true);
        pthread_cond_broadcast(&s->wake);
        pthread_mutex_unlock(&s->lock);
        pthread_join(s->copier, NULL);
    }
    for (int i = 0; i < N_SQL; i++)
        sqlite3_finalize(s->stmt[i]);
    sqlite3_close(s->side);
    sqlite3_close(s->db); /* copies the log and removes it */
    if (s->wal >= 0) close(s->wal);
    if (s->folder >= 0) close(s->folder);
    pthread_cond_destroy(&s->wake);
    pthread_mutex_destroy(&s->lock);
    mem_free(s);
}

#else
/* A build without SQLite: nothing can be opened, so what needs an open state is never called. */
#pragma GCC diagnostic ignored "-Wunused-parameter"
#define LACKS_SQLITE(...)                                                                          \
    __VA_ARGS__ {                                                                                  \
        return fail(ERR_UNSUPPORTED,                                                               \
                    "this build cannot keep users' events: it has no SQLite; install it "          \
                    "(apt-get install libsqlite3-dev), then make");                                \
    }
#define NEVER(...)                                                                                 \
    __VA_ARGS__ {                                                                                  \
        abort();                                                                                   \
    }

const char *state_library_version(void) {
    return NULL;
}

void state_close(state *s) {
}

LACKS_SQLITE(status state_open(state **out, const char *folder, uint64_t erase_within_ns,
                               const state_reader *reader));
LACKS_SQLITE(status state_check(const char *folder, state_counts *out));
LACKS_SQLITE(status state_read(const char *folder, const state_reader *reader, state_counts *out));
LACKS_SQLITE(status state_backup(const char *folder, const char *file, state_counts *out));
LACKS_SQLITE(status state_restore(const char *folder, const char *file, state_counts *out));
LACKS_SQLITE(status state_recover(const char *folder, state_counts *out));
NEVER(status state_close_whole(state *s));
NEVER(status state_begin(state *s));
NEVER(status state_add_user(state *s, const char *name, size_t n, int64_t *id));
NEVER(status state_add_event(state *s, int64_t user, const engine_event *e));
NEVER(status state_erase_user(state *s, int64_t id, const char *name, size_t n));
NEVER(status state_commit(state *s));
NEVER(void state_rollback(state *s));
NEVER(uint64_t state_maintain(state *s));
NEVER(void state_hurry(state *s));
NEVER(void state_get_stats(state *s, engine_state_stats *out));
#endif
