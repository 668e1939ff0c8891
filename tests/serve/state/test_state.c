#include "serve/state/state.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/thread.h"
#include "disk_fault.h"
#include "oom.h"
#include "serve/state/state_tools.h"
#include "test.h"

#if defined(HSTU_HAS_SQLITE)
#include <sqlite3.h>
#endif

/* What opening reads. */
typedef struct seen {
    int n_users, n_events, n_erased;
    char last[400];
    bool has[4096]; /* by the time of the event */
} seen;

static status see_user(void *ctx, int64_t id, const char *name, size_t n) {
    CHECK(id > 0 && n > 0 && name[n] == '\0');
    ((seen *)ctx)->n_users++;
    return OK;
}

static status see_event(void *ctx, size_t nth_user, const engine_event *e) {
    seen *s = ctx;
    s->n_events++;
    if (e->time >= 0 && e->time < 4096) s->has[e->time] = true;
    snprintf(s->last, sizeof s->last, "%zu %lld.%u %d %.*s %.*s", 1 + nth_user, (long long)e->time,
             e->time_ns, e->action, (int)e->item.n, e->item.text, (int)e->id.n,
             e->id.text != NULL ? e->id.text : "");
    return OK;
}

static status see_erased(void *ctx, uint64_t salt, uint64_t key) {
    (void)salt, (void)key;
    ((seen *)ctx)->n_erased++;
    return OK;
}

static const char *folder(void) {
    static char path[4200];
    snprintf(path, sizeof path, "%s/state", test_folder());
    return path;
}

static const char *file_of(const char *name) {
    static char path[2][4300];
    static int turn;
    turn = !turn;
    snprintf(path[turn], sizeof path[turn], "%s/%s", folder(), name);
    return path[turn];
}

static void need_sqlite(void) {
    if (state_library_version() == NULL) SKIP_TEST("this build has no SQLite");
}

static status open_state(state **out, seen *s) {
    state_reader r = {.ctx = s, .user = see_user, .event = see_event, .erased = see_erased};
    *s = (seen){0};
    return state_open(out, folder(), 1000000, &r);
}

static void reopen(state **st, seen *s) {
    state_close(*st);
    CHECK_OK(open_state(st, s));
}

static engine_event event(const char *item, const char *id, int64_t time) {
    return (engine_event){.has_time = true,
                          .time = time,
                          .time_ns = 5,
                          .action = 3,
                          .item = {.text = item, .n = strlen(item)},
                          .id = {.text = id, .n = id != NULL ? strlen(id) : 0}};
}

/* One transaction with one event. */
static status add(state *st, int64_t user, const char *item, const char *id, int64_t time) {
    engine_event e = event(item, id, time);
    status code = state_begin(st);
    if (code == OK) code = state_add_event(st, user, &e);
    if (code == OK) code = state_commit(st);
    if (code != OK) state_rollback(st);
    return code;
}

static int64_t add_user(state *st, const char *name) {
    int64_t id;
    CHECK_OK(state_begin(st));
    CHECK_OK(state_add_user(st, name, strlen(name), &id));
    CHECK_OK(state_commit(st));
    return id;
}

static void erase(state *st, int64_t id, const char *name) {
    CHECK_OK(state_begin(st));
    CHECK_OK(state_erase_user(st, id, name, strlen(name)));
    CHECK_OK(state_commit(st));
}

TEST(state_keeps_what_was_committed) {
    state *st = NULL;
    seen s;
    struct stat file;
    need_sqlite();
    CHECK_OK(open_state(&st, &s));
    CHECK(s.n_users == 0 && s.n_events == 0);
    int64_t ann = add_user(st, "ann"), seven = add_user(st, "7"), odd = add_user(st, "007");
    CHECK(ann > 0 && seven > ann && odd > seven);
    CHECK_OK(add(st, ann, "12", "order 'x'", -3));
    reopen(&st, &s);
    CHECK(s.n_users == 3 && s.n_events == 1);
    CHECK_STR(s.last, "1 -3.5 3 12 order 'x'");
    CHECK_OK(add(st, seven, "-9223372036854775808", NULL, 9));
    CHECK_OK(add(st, odd, "+7", "08", 10));
    reopen(&st, &s);
    CHECK_EQ(s.n_events, 3);
    CHECK_STR(s.last, "3 10.5 3 +7 08");
    /* What is not committed is not there; a failed transaction does not stop the next. */
    engine_event e = event("13", NULL, 11);
    CHECK_OK(state_begin(st));
    CHECK_OK(state_add_event(st, ann, &e));
    state_rollback(st);
    CHECK_OK(add(st, ann, "14", NULL, 12));
    reopen(&st, &s);
    CHECK(s.n_events == 4 && !s.has[11] && s.has[12]);
    CHECK(stat(file_of("state.db"), &file) == 0 && (file.st_mode & 0777) == 0600);
    state_close(st);
}

/* What a tool that was killed has left may hold users that are erased by now: it is removed. */
TEST(state_removes_what_tools_have_left) {
    static const char *const left[] = {"recovering", "importing", "recovering/state.db",
                                       "importing/state.db", "state.db.part"};
    state *st;
    seen s;
    need_sqlite();
    CHECK_OK(open_state(&st, &s));
    state_close(st);
    for (int i = 0; i < 5; i++) {
        FILE *f = i < 2 ? NULL : fopen(file_of(left[i]), "w");
        CHECK(i < 2 ? mkdir(file_of(left[i]), 0700) == 0 : f != NULL && fclose(f) == 0);
    }
    CHECK_OK(open_state(&st, &s));
    for (int i = 0; i < 5; i++)
        CHECK(access(file_of(left[i]), F_OK) != 0);
    CHECK(access(file_of("state.db"), F_OK) == 0);
    state_close(st);
}

/* The lock is the folder's, so removing files does not help a second server; and what would go to a
 * removed file is refused. */
TEST(state_has_one_owner) {
    static const char *const removed[] = {"state.db-wal", "state.db"};
    need_sqlite();
    for (int i = 0; i < 2; i++) {
        state *st, *second;
        seen s, other;
        CHECK_OK(open_state(&st, &s));
        int64_t ann = add_user(st, i == 0 ? "ann" : "ben");
        CHECK_OK(add(st, ann, "1", NULL, 1 + i));
        CHECK_FAILS(open_state(&second, &other), ERR_IO, "in use by another server");
        CHECK_EQ(unlink(file_of(removed[i])), 0);
        CHECK_FAILS(open_state(&second, &other), ERR_IO, "in use by another server");
        CHECK_FAILS(add(st, ann, "1", NULL, 3 + i), ERR_IO, "removed or replaced");
        CHECK_FAILS(add(st, ann, "1", NULL, 5), ERR_IO, "removed or replaced");
        state_close(st);
        CHECK_OK(open_state(&st, &s));
        /* What was acknowledged before the log vanished is in the database. */
        CHECK(s.has[1] == (i == 0) && !s.has[3 + i] && !s.has[5] && s.n_events == (i == 0));
        state_close(st);
    }
}

/* A child commits until the disk fails, perhaps at once, then is killed: nothing of the failed
 * transaction comes back, though its frames were written.  Later ones work again. */
static void fail_and_die(disk_fault fault, bool fails_first) {
    state *st;
    seen s;
    if (open_state(&st, &s) != OK) _exit(1);
    int64_t ann = s.n_users == 0 ? add_user(st, "ann") : 1;
    if (!fails_first && add(st, ann, "1", NULL, 100 + fault) != OK) _exit(2);
    disk_fault_set(fault, "state.db");
    if (add(st, ann, "2", NULL, 200 + fault) != ERR_IO) _exit(3);
    if (add(st, ann, "2", NULL, 210 + fault) != ERR_IO) _exit(4);
    engine_state_stats stats;
    state_get_stats(st, &stats);
    if (!stats.is_failing || stats.n_failed != 2) _exit(5);
    disk_fault_set(DISK_GOOD, "");
    if (fault == DISK_FULL && add(st, ann, "3", NULL, 300 + fault) != OK) _exit(6);
    raise(SIGKILL);
}

TEST(state_forgets_a_failed_commit) {
    need_sqlite();
    for (int round = 0; round < 8; round++) {
        disk_fault fault = round % 2 == 0 ? DISK_SYNC : DISK_FULL;
        state *st;
        seen s;
        int how;
        pid_t child = fork();
        if (child == 0) fail_and_die(fault, round > 3);
        CHECK_EQ(waitpid(child, &how, 0), child);
        if (WIFEXITED(how)) FAIL_TEST("the child ended with %d", WEXITSTATUS(how));
        CHECK_OK(open_state(&st, &s));
        CHECK(s.has[100 + fault] && !s.has[200 + fault] && !s.has[210 + fault]);
        CHECK_EQ(s.has[300 + fault], fault == DISK_FULL);
        state_close(st);
    }
}

static void copy_file(const char *from, const char *to) {
    char *bytes;
    size_t n;
    FILE *f = fopen(to, "wb");
    CHECK_OK(file_read_all(from, 1 << 24, &bytes, &n));
    CHECK(f != NULL && fwrite(bytes, 1, n, f) == n && fclose(f) == 0);
    mem_free(bytes);
}

static void flip_byte(const char *path, long from_end) {
    FILE *f = fopen(path, "r+b");
    CHECK(f != NULL && fseek(f, -from_end, SEEK_END) == 0);
    int c = fgetc(f);
    CHECK(fseek(f, -from_end, SEEK_END) == 0 && fputc(c ^ 1, f) != EOF && fclose(f) == 0);
}

/* A state as a crash leaves it: the files of an open one. */
static void crash(state *st) {
    char db[4300], wal[4300];
    snprintf(db, sizeof db, "%s/kept.db", test_folder());
    snprintf(wal, sizeof wal, "%s/kept.wal", test_folder());
    copy_file(file_of("state.db"), db);
    copy_file(file_of("state.db-wal"), wal);
    state_close(st);
    CHECK_EQ(rename(db, file_of("state.db")), 0);
    CHECK_EQ(rename(wal, file_of("state.db-wal")), 0);
}

static int count_files(const char *part) {
    DIR *d = opendir(folder());
    int n = 0;
    for (struct dirent *e; (e = readdir(d)) != NULL;)
        n += strstr(e->d_name, part) != NULL;
    closedir(d);
    return n;
}

static bool has_file(const char *part) {
    return count_files(part) > 0;
}

/* A flipped bit in the last, acknowledged transaction: it is told where, and the file is kept. */
TEST(state_tells_damage_of_its_log) {
    state *st = NULL;
    state_counts counts;
    engine_state_stats stats;
    seen s;
    need_sqlite();
    for (int flips = 0; flips < 3; flips++) {
        CHECK_OK(open_state(&st, &s));
        int64_t ann = add_user(st, flips == 0 ? "ann" : flips == 1 ? "ben" : "cid");
        for (int i = 0; i < 3; i++)
            CHECK_OK(add(st, ann, "1", NULL, 10 * flips + i));
        crash(st);
        if (flips > 0) {
            flip_byte(file_of("state.db-wal"), flips == 1 ? 10 : 4096 + 24 - 9);
            CHECK_FAILS(state_check(folder(), &counts), ERR_FORMAT, "damaged at byte");
            CHECK_EQ(counts.n_damaged, 1);
        }
        CHECK_OK(open_state(&st, &s));
        state_get_stats(st, &stats);
        CHECK_EQ(has_file("state.db-wal.damaged"), flips > 0);
        CHECK(s.has[10 * flips + 1] && s.has[10 * flips + 2] == (flips == 0));
        if (flips == 0)
            CHECK_STR(stats.warning, "");
        else
            CHECK_CONTAINS(stats.warning, "damaged at byte");
        state_close(st);
    }
}

/* A flipped bit in a row, and a torn page: the place is told, what can be read is saved. */
TEST(state_recovers_what_can_be_read) {
    enum { EVENTS = 3000 };
    state *st;
    state_counts counts;
    seen s;
    char *bytes;
    size_t n, at;
    need_sqlite();
    CHECK_OK(open_state(&st, &s));
    int64_t ann = add_user(st, "ann");
    CHECK_OK(state_begin(st));
    for (int i = 0; i < EVENTS; i++) {
        engine_event e = event(i == 777 ? "marked-item" : "item", "an id that takes room", i);
        CHECK_OK(state_add_event(st, ann, &e));
    }
    CHECK_OK(state_commit(st));
    erase(st, 0, "ben");
    state_close(st);
    CHECK_OK(state_check(folder(), &counts));
    CHECK(counts.n_events == EVENTS && counts.n_users == 1 && counts.n_erased == 1);
    CHECK_OK(file_read_all(file_of("state.db"), 1 << 24, &bytes, &n));
    for (at = 0; memcmp(bytes + at, "marked-item", 11) != 0; at++)
        CHECK(at + 11 < n);
    bytes[at] = 'n';
    memset(bytes + (at / 4096 + 3) * 4096, 0x5a, 4096); /* another page */
    FILE *f = fopen(file_of("state.db"), "wb");
    CHECK(f != NULL && fwrite(bytes, 1, n, f) == n && fclose(f) == 0);
    mem_free(bytes);
    CHECK_FAILS(open_state(&st, &s), ERR_FORMAT, "row 778 of the table events");
    CHECK_FAILS(state_check(folder(), &counts), ERR_FORMAT, "hstu state recover");
    CHECK_OK(state_recover(folder(), &counts));
    CHECK(counts.n_damaged >= 2 && counts.n_events < EVENTS - 1 && counts.n_events > EVENTS - 200);
    CHECK_OK(open_state(&st, &s));
    CHECK(s.n_events == (int)counts.n_events && s.n_users == 1 && s.n_erased == 1);
    CHECK(s.has[776] && !s.has[777] && s.has[778] && s.has[EVENTS - 1]);
    CHECK(has_file("state.db.damaged-1") && !has_file("recovering"));
    state_close(st);
}

/* The disk fills up at any moment: recovery fails and changes nothing, or has saved everything. */
TEST(state_recovers_whole_or_not_at_all) {
    state *st;
    state_counts counts;
    seen s;
    int n_failed = 0;
    need_sqlite();
    CHECK_OK(open_state(&st, &s));
    int64_t ann = add_user(st, "ann");
    for (int i = 0; i < 5; i++)
        CHECK_OK(add(st, ann, "1", NULL, i));
    state_close(st);
    for (int n = 0; n < 100; n++) {
        disk_fault_after(n, DISK_FULL, "recovering");
        status code = state_recover(folder(), &counts);
        disk_fault_set(DISK_GOOD, "");
        n_failed += code != OK;
        if (code == OK) CHECK_EQ(counts.n_events, 5);
        CHECK_OK(open_state(&st, &s));
        CHECK(s.n_events == 5 && s.n_users == 1 && !has_file("recovering"));
        state_close(st);
    }
    CHECK(n_failed > 10 && n_failed < 100);
}

/* Nothing of an erased user is left in any file. */
static bool is_in_files(const char *text) {
    DIR *d = opendir(folder());
    bool is_there = false;
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        char *bytes;
        size_t n;
        if (e->d_type != DT_REG) continue;
        CHECK_OK(file_read_all(file_of(e->d_name), 1 << 24, &bytes, &n));
        is_there |= memmem(bytes, n, text, strlen(text)) != NULL;
        mem_free(bytes);
    }
    closedir(d);
    return is_there;
}

static void maintain(state *st) {
    uint64_t until = clock_ns() + 5000000000u;
    for (uint64_t wait; (wait = state_maintain(st)) != UINT64_MAX && clock_ns() < until;)
        usleep((useconds_t)(wait / 1000 < 1000 ? wait / 1000 : 1000));
}

TEST(state_leaves_nothing_of_the_erased) {
    state *st;
    engine_state_stats stats;
    seen s;
    need_sqlite();
    CHECK_OK(open_state(&st, &s));
    int64_t jane = add_user(st, "jane.doe"), ann = add_user(st, "ann");
    for (int i = 0; i < 50; i++) {
        CHECK_OK(add(st, jane, "private-item", "secret-order", i));
        CHECK_OK(add(st, ann, "item", NULL, 100 + i));
    }
    CHECK(is_in_files("jane.doe") && is_in_files("private-item"));
    erase(st, jane, "jane.doe");
    state_get_stats(st, &stats);
    maintain(st);
    state_get_stats(st, &stats);
    CHECK_EQ(stats.n_unswept, 0);
    CHECK(!is_in_files("jane.doe") && !is_in_files("private-item") && !is_in_files("secret-order"));
    /* Erased, and the server dies before the rows are gone: they do not come back. */
    jane = add_user(st, "jane.roe");
    CHECK_OK(add(st, jane, "private-item", NULL, 3));
    erase(st, jane, "jane.roe");
    crash(st);
    CHECK_OK(open_state(&st, &s));
    CHECK(s.n_users == 1 && s.n_events == 50 && s.n_erased == 2 && !s.has[3]);
    maintain(st);
    CHECK(!is_in_files("jane.roe") && !is_in_files("private-item"));
    /* An id is not given twice: rows of the erased would be the next one's. */
    CHECK(add_user(st, "new") > jane);
    state_close(st);
}

TEST(state_is_backed_up_while_it_is_used) {
    state *st;
    state_counts counts;
    seen s;
    char backup[4300];
    need_sqlite();
    snprintf(backup, sizeof backup, "%s/backup.db", test_folder());
    CHECK_OK(open_state(&st, &s));
    int64_t ann = add_user(st, "ann"), ben = add_user(st, "ben");
    CHECK_OK(add(st, ann, "1", NULL, 1));
    CHECK_OK(add(st, ben, "private-item", NULL, 2));
    erase(st, ben, "ben");
    CHECK_OK(state_backup(folder(), backup, &counts));
    CHECK(counts.n_users == 1 && counts.n_events == 1 && counts.n_unswept == 0);
    CHECK_OK(add(st, ann, "1", NULL, 3));
    CHECK_OK(state_check(folder(), &counts));
    CHECK(counts.n_events == 2 && counts.n_unswept == 1);
    CHECK_FAILS(state_restore(folder(), backup, &counts), ERR_IO, "stop the server first");
    CHECK_FAILS(state_recover(folder(), &counts), ERR_IO, "stop the server first");
    state_close(st);
    CHECK_OK(state_restore(folder(), backup, &counts));
    CHECK_EQ(counts.n_events, 1);
    CHECK_OK(open_state(&st, &s));
    CHECK(s.has[1] && !s.has[3] && s.n_erased == 1);
    CHECK(has_file("state.db.before-1"));
    /* Who is erased after the backup stays so. */
    erase(st, ann, "ann");
    int64_t cid = add_user(st, "cid");
    CHECK_OK(add(st, cid, "1", NULL, 4));
    state_close(st);
    CHECK_OK(state_restore(folder(), backup, &counts));
    CHECK(counts.n_events == 0 && counts.n_users == 0 && counts.n_erased == 2);
    CHECK_OK(open_state(&st, &s));
    cid = add_user(st, "dan");
    CHECK_OK(add(st, cid, "1", NULL, 1));
    state_close(st);
    flip_byte(backup, 100);
    copy_file(file_of("state.db"), backup);
    FILE *f = fopen(backup, "r+b");
    CHECK(f != NULL && fseek(f, 4096, SEEK_SET) == 0 && fputs("garbage", f) >= 0 && fclose(f) == 0);
    CHECK_FAILS(state_restore(folder(), backup, &counts), ERR_FORMAT, "damaged");
    CHECK_OK(open_state(&st, &s));
    CHECK(s.has[1]);
    state_close(st);
}

TEST(state_refuses_other_files) {
    state *st;
    seen s;
    need_sqlite();
    CHECK_OK(folder_create(folder(), NULL));
    FILE *f = fopen(file_of("events.log"), "w");
    CHECK(f != NULL && fputs("HSTU events 1\n", f) >= 0 && fclose(f) == 0);
    CHECK_FAILS(open_state(&st, &s), ERR_FORMAT, "hstu state import");
    CHECK_EQ(unlink(file_of("events.log")), 0);
    f = fopen(file_of("state.db"), "w");
    CHECK(f != NULL && fputs("this is not a database, is it", f) >= 0 && fclose(f) == 0);
    CHECK_FAILS(open_state(&st, &s), ERR_FORMAT, "damaged");
    CHECK_EQ(unlink(file_of("state.db")), 0);
    CHECK_OK(open_state(&st, &s));
    state_close(st);
}

/* A child acknowledges events to a pipe until it is killed: every acknowledged one is there. */
static void write_until_killed(int first, int acknowledge) {
    state *st;
    seen s;
    if (open_state(&st, &s) != OK) _exit(1);
    int64_t user = s.n_users > 0 ? 1 : add_user(st, "user");
    for (int i = first; i < first + 200; i++)
        if (add(st, user, "item", NULL, i) != OK || write(acknowledge, &i, sizeof i) != sizeof i)
            _exit(1);
    for (;;)
        pause();
}

TEST(state_loses_nothing_to_kill) {
    state *st;
    seen s;
    bool is_acknowledged[4096] = {0};
    int n = 0;
    need_sqlite();
    for (int round = 0; round < 20; round++) {
        int ends[2], number;
        CHECK_EQ(pipe(ends), 0);
        pid_t child = fork();
        if (child == 0) write_until_killed(round * 200, ends[1]);
        close(ends[1]);
        if (round % 4 != 0 && read(ends[0], &number, sizeof number) == sizeof number) {
            is_acknowledged[number] = true; /* however slow the machine is, some are */
            n++;
        }
        usleep((useconds_t)(round * 1700 % 23000) + 3000);
        kill(child, SIGKILL);
        CHECK_EQ(waitpid(child, NULL, 0), child);
        while (read(ends[0], &number, sizeof number) == sizeof number) {
            is_acknowledged[number] = true;
            n++;
        }
        close(ends[0]);
    }
    CHECK_OK(open_state(&st, &s));
    for (int i = 0; i < 4096; i++)
        if (is_acknowledged[i] && !s.has[i]) FAIL_TEST("event %d is lost", i);
    CHECK(n > 0 && s.n_events >= n);
    state_close(st);
}

#if defined(HSTU_HAS_SQLITE)
static sqlite3 *other_program(void) {
    sqlite3 *db;
    CHECK_EQ(sqlite3_open(file_of("state.db"), &db), SQLITE_OK);
    return db;
}

static void other_runs(sqlite3 *db, const char *text) {
    if (sqlite3_exec(db, text, NULL, NULL, NULL) != SQLITE_OK)
        FAIL_TEST("%s: %s", text, sqlite3_errmsg(db));
}

/* Another program commits, then holds the write lock until we give up: what we cut off the log
 * after that is neither its transaction nor one of ours. */
TEST(state_cuts_off_nothing_of_others) {
    state *st;
    seen s;
    need_sqlite();
    CHECK_OK(open_state(&st, &s));
    int64_t ann = add_user(st, "ann");
    for (int i = 0; i < 3; i++)
        CHECK_OK(add(st, ann, "1", NULL, i));
    sqlite3 *other = other_program();
    other_runs(other, "INSERT INTO settings VALUES ('other', 1, NULL)");
    other_runs(other, "BEGIN IMMEDIATE");
    CHECK_FAILS(add(st, ann, "1", NULL, 100), ERR_IO, "another program holds the database");
    other_runs(other, "ROLLBACK");
    for (int i = 3; i < 6; i++)
        CHECK_OK(add(st, ann, "1", NULL, i));
    other_runs(other, "INSERT INTO settings VALUES ('another', 1, NULL)");
    disk_fault_set(DISK_SYNC, "state.db");
    CHECK_FAILS(add(st, ann, "1", NULL, 101), ERR_IO, "commit");
    disk_fault_set(DISK_GOOD, "");
    crash(st);
    sqlite3_close(other);
    CHECK_OK(open_state(&st, &s));
    CHECK(s.n_events == 6 && !s.has[100] && !s.has[101]);
    other = other_program();
    sqlite3_stmt *q;
    CHECK_EQ(
        sqlite3_prepare_v2(other, "SELECT count(*) FROM settings WHERE value = 1", -1, &q, NULL),
        SQLITE_OK);
    CHECK(sqlite3_step(q) == SQLITE_ROW && sqlite3_column_int(q, 0) == 2);
    sqlite3_finalize(q);
    sqlite3_close(other);
    state_close(st);
}

/* A transaction of more frames than the log has when it is copied. */
enum { MANY = 10000, MANY_BYTES = MANY * 500 };

static void add_many(state *st, int64_t user, int64_t time) {
    char text[256];
    memset(text, 'x', 255);
    text[255] = '\0';
    CHECK_OK(state_begin(st));
    for (int i = 0; i < MANY; i++) {
        engine_event e = event(text, text, time + i % 80);
        CHECK_OK(state_add_event(st, user, &e));
    }
    CHECK_OK(state_commit(st));
}

static uint64_t log_bytes(state *st) {
    engine_state_stats stats;
    state_get_stats(st, &stats);
    return stats.log_bytes;
}

static void count_warning(void *ctx, log_level level, const char *line) {
    if (level == LOG_WARN && strstr(line, "the log cannot be copied") != NULL)
        atomic_fetch_add((atomic_int *)ctx, 1);
}

/* The time to remove an erased user from the files counts from the first erasure: later ones do not
 * put it off. */
TEST(state_does_not_put_erasures_off) {
    const uint64_t within = 4000000000000u, pause = 20000000;
    state_reader none = {.user = see_user, .event = see_event, .erased = see_erased};
    seen s = {0};
    state *st;
    none.ctx = &s;
    CHECK_OK(state_open(&st, folder(), within, &none));
    CHECK_EQ(state_maintain(st), UINT64_MAX);
    int64_t jane = add_user(st, "jane.doe"), john = add_user(st, "john.roe");
    erase(st, jane, "jane.doe");
    uint64_t wait = state_maintain(st);
    CHECK(wait <= within / 4 && wait > within / 5);
    usleep((useconds_t)(pause / 1000));
    erase(st, john, "john.roe");
    CHECK(state_maintain(st) <= wait - pause);
    state_hurry(st);
    while (state_maintain(st) == 0)
        ;
    CHECK(!is_in_files("jane.doe") && !is_in_files("john.roe"));
    CHECK_EQ(state_maintain(st), UINT64_MAX);
    state_close(st);
}

/* A long log is copied to the database and begins again, while the server writes on.  If it cannot
 * be copied, that is told once; nothing is lost. */
TEST(state_copies_its_log) {
    state *st;
    seen s;
    struct stat file = {0};
    atomic_int n_warnings = 0;
    need_sqlite();
    log_set_sink(count_warning, &n_warnings);
    CHECK_OK(open_state(&st, &s));
    int64_t ann = add_user(st, "ann");
    add_many(st, ann, 0);
    CHECK(log_bytes(st) > MANY_BYTES);
    for (int i = 0; file.st_size < MANY_BYTES && i < 1000; i++) {
        usleep(5000);
        CHECK_EQ(stat(file_of("state.db"), &file), 0);
    }
    CHECK(file.st_size > MANY_BYTES);
    for (int i = 80; i < 90 && log_bytes(st) > 100000; i++) {
        usleep(20000);
        CHECK_OK(add(st, ann, "1", NULL, i));
    }
    CHECK(log_bytes(st) < 100000);
    /* A reader keeps the log from being copied, which is no failure; a full disk is one. */
    sqlite3 *other = other_program();
    other_runs(other, "BEGIN; SELECT count(*) FROM events");
    add_many(st, ann, 100);
    usleep(150000);
    CHECK_EQ(n_warnings, 0);
    disk_fault_set(DISK_FULL, "state.db");
    other_runs(other, "ROLLBACK");
    for (int i = 0; n_warnings == 0 && i < 100; i++) {
        CHECK_FAILS(add(st, ann, "1", NULL, 190), ERR_IO, "");
        usleep(10000);
    }
    CHECK_EQ(n_warnings, 1);
    disk_fault_set(DISK_GOOD, "");
    CHECK_OK(add(st, ann, "1", NULL, 191));
    log_set_sink(NULL, NULL);
    sqlite3_close(other);
    reopen(&st, &s);
    CHECK(s.n_events >= 2 * MANY + 2 && s.has[0] && s.has[179] && !s.has[190] && s.has[191]);
    state_close(st);
}

/* A reader that takes its time keeps bytes of the erased in the log, but nobody waits for it. */
TEST(state_does_not_wait_for_readers) {
    state *st;
    state_counts counts;
    seen s;
    need_sqlite();
    CHECK_OK(open_state(&st, &s));
    int64_t jane = add_user(st, "jane.doe");
    CHECK_OK(add(st, jane, "private-item", NULL, 1));
    sqlite3 *other = other_program();
    other_runs(other, "BEGIN; SELECT * FROM events");
    erase(st, jane, "jane.doe");
    uint64_t begin = clock_ns();
    while (clock_ns() - begin < 300000000u)
        (void)state_maintain(st);
    CHECK(clock_ns() - begin < 2000000000u);
    CHECK_OK(add(st, add_user(st, "ann"), "1", NULL, 2));
    CHECK_OK(state_check(folder(), &counts));
    other_runs(other, "ROLLBACK");
    sqlite3_close(other);
    usleep(1100000);
    maintain(st);
    CHECK(!is_in_files("jane.doe") && !is_in_files("private-item"));
    state_close(st);
}
#endif

/* SQLite leaves copies of cells behind when it splits or merges pages: no row is ever moved. */
TEST(state_leaves_no_copies_of_names) {
    enum { USERS = 1500 };
    state *st;
    seen s;
    char name[32], item[32];
    int64_t id[USERS];
    need_sqlite();
    CHECK_OK(open_state(&st, &s));
    for (int round = 0; round < 2; round++) {
        CHECK_OK(state_begin(st));
        for (int i = 0; i < USERS; i++) {
            snprintf(name, sizeof name, "%c%08x-name", 'a' + round, i * 2654435761u);
            snprintf(item, sizeof item, "%c%08x-item", 'a' + round, i * 2246822519u);
            CHECK_OK(state_add_user(st, name, strlen(name), &id[i]));
            engine_event e = event(i % 3 == 0 ? "77" : item, i % 2 == 0 ? item : NULL, i);
            CHECK_OK(state_add_event(st, id[i], &e));
        }
        CHECK_OK(state_commit(st));
        for (int i = round; i < USERS; i += 2) {
            snprintf(name, sizeof name, "%c%08x-name", 'a' + round, i * 2654435761u);
            erase(st, id[i], name);
        }
        maintain(st);
    }
    size_t n;
    char *bytes;
    CHECK_OK(file_read_all(file_of("state.db"), 1 << 24, &bytes, &n));
    for (int round = 0; round < 2; round++)
        for (int i = 0; i < USERS; i++) {
            bool is_erased = i % 2 == round;
            snprintf(name, sizeof name, "%c%08x-name", 'a' + round, i * 2654435761u);
            snprintf(item, sizeof item, "%c%08x-item", 'a' + round, i * 2246822519u);
            if (is_erased && (memmem(bytes, n, name, strlen(name)) != NULL ||
                              memmem(bytes, n, item, strlen(item)) != NULL))
                FAIL_TEST("%s or %s is still there", name, item);
        }
    mem_free(bytes);
    state_counts counts;
    CHECK_OK(state_check(folder(), &counts));
    CHECK(counts.n_users == USERS && counts.n_events == USERS && counts.n_erased == USERS);
    reopen(&st, &s);
    CHECK(s.n_users == USERS && s.n_events == USERS);
    state_close(st);
}

#if defined(HSTU_HAS_SQLITE)
/* What somebody changed by hand, or a bit that flipped, in each table: told, or harmless. */
TEST(state_notices_changes_of_any_table) {
    static const struct {
        const char *text, *why;
    } changes[] = {
        {"UPDATE users SET name = 'bob' WHERE name = 'ben'", "row 2 of the table users"},
        {"UPDATE events SET user = 1 WHERE seq = 2", "row 2 of the table events"},
        {"UPDATE events SET user = 99 WHERE seq = 2", "row 2 of the table events"},
        {"UPDATE erased SET user_key = user_key + 1", "the table erased"},
        {"UPDATE settings SET value = value + 1", "the table settings"},
        {"DELETE FROM settings", "the table settings"},
        {"PRAGMA user_version = 7", "later version"},
        {"INSERT INTO sweep (user) VALUES (1)", NULL},
        {"INSERT INTO events VALUES (1000000000000000, 1, 7, 0, 'x', 0, NULL, NULL)", NULL}};
    state *st;
    seen s;
    state_counts counts;
    need_sqlite();
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        folder_remove(folder(), 1);
        CHECK_OK(open_state(&st, &s));
        int64_t ann = add_user(st, "ann"), ben = add_user(st, "ben"), cid = add_user(st, "cid");
        CHECK_OK(add(st, ann, "1", NULL, 1));
        CHECK_OK(add(st, ben, "1", NULL, 2));
        CHECK_OK(add(st, cid, "1", NULL, 3));
        erase(st, cid, "cid");
        state_close(st);
        sqlite3 *db = other_program();
        other_runs(db, changes[i].text);
        sqlite3_close(db);
        if (changes[i].why != NULL) {
            CHECK_FAILS(open_state(&st, &s), ERR_FORMAT, changes[i].why);
            CHECK_FAILS(state_check(folder(), &counts), ERR_FORMAT,
                        strstr(changes[i].why, "row") != NULL ? "damaged" : "");
            continue;
        }
        CHECK_OK(open_state(&st, &s));
        CHECK(s.has[1] && s.has[2] && !s.has[3]);
        erase(st, ben, "ben");
        maintain(st);
        reopen(&st, &s);
        CHECK(s.has[1] && !s.has[2] && s.n_users == 1);
        state_close(st);
    }
}
#endif

static void *add_users(void *context) {
    state *st = context;
    for (int i = 0; i < 300; i++) {
        char name[16];
        snprintf(name, sizeof name, "u%d", i);
        CHECK_OK(add(st, add_user(st, name), "1", NULL, i));
    }
    return NULL;
}

/* Checks and backups see one moment of a state that is written to. */
TEST(state_is_checked_while_it_is_used) {
    state *st;
    state_counts counts, copied;
    pthread_t thread;
    seen s;
    char backup[4300];
    need_sqlite();
    snprintf(backup, sizeof backup, "%s/backup.db", test_folder());
    CHECK_OK(open_state(&st, &s));
    CHECK_EQ(pthread_create(&thread, NULL, add_users, st), 0);
    for (int i = 0; i < 8; i++) {
        CHECK_OK(state_check(folder(), &counts));
        CHECK_OK(state_backup(folder(), backup, &copied));
        CHECK(copied.n_events >= counts.n_events && copied.n_users - copied.n_events <= 1);
    }
    pthread_join(thread, NULL);
    CHECK_FAILS(state_backup(folder(), file_of("state.db"), &copied), ERR_USAGE, "itself");
    state_close(st);
}

/* A log with a damaged end is kept by every command that opens its database. */
TEST(state_tools_keep_a_damaged_log) {
    state *st;
    state_counts counts;
    seen s;
    char backup[4300];
    need_sqlite();
    snprintf(backup, sizeof backup, "%s/backup.db", test_folder());
    for (int way = 0; way < 2; way++) {
        usleep(1100000); /* the kept files are named by the second */
        CHECK_OK(open_state(&st, &s));
        int64_t user = add_user(st, way == 0 ? "ann" : "ben");
        for (int i = 0; i < 3; i++)
            CHECK_OK(add(st, user, "1", NULL, i));
        CHECK_OK(state_backup(folder(), backup, &counts));
        crash(st);
        flip_byte(file_of("state.db-wal"), 10);
        CHECK_FAILS(state_check(folder(), &counts), ERR_FORMAT, "damaged at byte");
        CHECK_OK(way == 0 ? state_recover(folder(), &counts)
                          : state_restore(folder(), backup, &counts));
        CHECK_EQ(count_files("state.db-wal.damaged-"), way + 1);
    }
}
