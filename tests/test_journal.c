#include "serve/journal.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "oom.h"
#include "test.h"

/* What a replay brings: the number of each event, by its id "u:n". */
typedef struct seen {
    char last[300];
    int n_events, n_erased;
    bool has[4096];
} seen;

static status note(void *context, const engine_record *r) {
    seen *s = context;
    snprintf(s->last, sizeof s->last, "%d %.*s", r->kind, (int)r->user.n, r->user.text);
    if (r->kind == ENGINE_RECORD_ERASE) {
        s->n_erased++;
        return OK;
    }
    snprintf(s->last, sizeof s->last, "%.*s %.*s %.*s %lld.%u %d", (int)r->user.n, r->user.text,
             (int)r->event.item.n, r->event.item.text, (int)r->event.id.n,
             r->event.id.n > 0 ? r->event.id.text : "", (long long)r->event.time, r->event.time_ns,
             r->event.action);
    int number = (int)r->event.time;
    if (number >= 0 && number < 4096) s->has[number] = true;
    s->n_events++;
    return OK;
}

static engine_id text_id(const char *text) {
    return (engine_id){.text = text, .n = strlen(text)};
}

static engine_record event(const char *user, const char *item, const char *id, int64_t time) {
    engine_record r = {.kind = ENGINE_RECORD_EVENT, .user = text_id(user)};
    r.event.item = text_id(item);
    r.event.id = text_id(id);
    r.event.has_time = true;
    r.event.time = time;
    r.event.time_ns = 5;
    r.event.action = 3;
    return r;
}

static status add(journal *j, const engine_record *r) {
    uint64_t ticket;
    engine_journal hooks = journal_hooks(j);
    TRY(hooks.append(hooks.ctx, r, 1, &ticket));
    return hooks.commit(hooks.ctx, ticket);
}

static const char *state(void) {
    static char path[4200];
    snprintf(path, sizeof path, "%s/state", test_folder());
    return path;
}

static const char *log_path(void) {
    static char path[4200];
    snprintf(path, sizeof path, "%s/state/events.log", test_folder());
    return path;
}

static void reopen(journal **j, seen *s) {
    *s = (seen){0};
    journal_close(*j);
    CHECK_OK(journal_open(j, state(), note, s));
}

TEST(journal_keeps_what_was_committed) {
    journal *j = NULL;
    seen s;
    reopen(&j, &s);
    CHECK_EQ(s.n_events, 0);
    engine_record one = event("user 7", "item \"12\"", "e1", 1900000000), two = one;
    two.event.id = (engine_id){0};
    two.event.time = -4;
    CHECK_OK(add(j, &one));
    CHECK_OK(add(j, &two));
    reopen(&j, &s);
    CHECK_EQ(s.n_events, 2);
    CHECK_STR(s.last, "user 7 item \"12\"  -4.5 3");
    engine_record erase = {.kind = ENGINE_RECORD_ERASE, .user = text_id("user 7")};
    CHECK_OK(add(j, &erase));
    reopen(&j, &s);
    CHECK_EQ(s.n_erased, 1);
    CHECK_STR(s.last, "1 user 7");
    CHECK_EQ(journal_get_stats(j).n_records, 3);
    journal_close(j);
}

TEST(journal_has_one_owner) {
    journal *j = NULL, *other;
    seen s;
    reopen(&j, &s);
    CHECK_FAILS(journal_open(&other, state(), note, &s), ERR_IO, "another server has it");
    journal_close(j);
}

/* Cut anywhere within the last group, only that group is lost; a changed byte before a whole group
 * is refused. */
TEST(journal_cuts_a_torn_end_and_refuses_damage) {
    journal *j = NULL;
    seen s;
    char *whole;
    size_t n, n_first, n_good;
    reopen(&j, &s);
    engine_record r = event("u", "i", "a", 1);
    CHECK_OK(add(j, &r));
    n_first = journal_get_stats(j).n_bytes;
    CHECK_OK(add(j, &r));
    journal_close(j);
    CHECK_OK(file_read_all(log_path(), 1 << 20, &whole, &n));
    for (size_t cut = 0; cut <= n; cut++) {
        s = (seen){0};
        CHECK_OK(journal_scan("log", (unsigned char *)whole, cut, note, &s, &n_good));
        CHECK_EQ(s.n_events, (cut >= n_first) + (cut == n));
        CHECK_EQ(n_good, cut == n ? n : cut >= n_first ? n_first : cut >= 16 ? 16 : 0);
    }
    for (size_t at = 0; at < n; at++) {
        whole[at] ^= 4;
        s = (seen){0};
        status st = journal_scan("log", (unsigned char *)whole, n, note, &s, &n_good);
        CHECK_EQ(st, at < n_first ? ERR_FORMAT : OK);
        CHECK_EQ(s.n_events, at < n_first ? 0 : 1);
        whole[at] ^= 4;
    }
    CHECK_EQ(truncate(log_path(), (off_t)n - 1), 0);
    j = NULL;
    reopen(&j, &s);
    CHECK_EQ(s.n_events, 1);
    CHECK_EQ(journal_get_stats(j).n_cut, n - 1 - n_first);
    CHECK_OK(add(j, &r));
    reopen(&j, &s);
    CHECK_EQ(s.n_events, 2);
    journal_close(j);
    mem_free(whole);
}

typedef struct writer {
    journal *j;
    int first, n;
} writer;

static void *run_writer(void *context) {
    writer *w = context;
    for (int i = 0; i < w->n; i++) {
        engine_record r = event("u", "i", "", w->first + i);
        CHECK_OK(add(w->j, &r));
    }
    return NULL;
}

/* The state that a compaction reads, here: all events of `seen` under one lock. */
static status show_seen(void *context, engine_record_fn fn, void *fn_ctx) {
    seen *s = context;
    for (int i = 0; i < 4096; i++) {
        if (!s->has[i]) continue;
        engine_record r = event("u", "i", "", i);
        TRY(fn(fn_ctx, &r));
    }
    return OK;
}

TEST(journal_commits_for_several_threads_at_once) {
    enum { N = 8, EACH = 20 };
    journal *j = NULL;
    seen s;
    writer w[N];
    pthread_t thread[N];
    reopen(&j, &s);
    for (int i = 0; i < N; i++) {
        w[i] = (writer){j, i * EACH, EACH};
        CHECK_EQ(pthread_create(&thread[i], NULL, run_writer, &w[i]), 0);
    }
    for (int i = 0; i < N; i++)
        pthread_join(thread[i], NULL);
    CHECK(journal_get_stats(j).n_syncs <= N * EACH);
    reopen(&j, &s);
    CHECK_EQ(s.n_events, N * EACH);
    for (int i = 0; i < N * EACH; i++)
        CHECK(s.has[i]);
    journal_close(j);
}

/* What is appended while the state is read, and after it, is in the new log once. */
typedef struct busy_source {
    journal *j;
    seen *s;
} busy_source;

static status show_and_append(void *context, engine_record_fn fn, void *fn_ctx) {
    busy_source *b = context;
    engine_record before = event("u", "i", "", 1000), after = event("u", "i", "", 1001);
    uint64_t ticket;
    engine_journal hooks = journal_hooks(b->j);
    CHECK_OK(hooks.append(hooks.ctx, &before, 1, &ticket));
    b->s->has[1000] = true;
    TRY(show_seen(b->s, fn, fn_ctx));
    CHECK_OK(hooks.append(hooks.ctx, &after, 1, &ticket));
    return OK;
}

TEST(journal_compacts_while_events_arrive) {
    journal *j = NULL;
    seen s;
    reopen(&j, &s);
    engine_record erase = {.kind = ENGINE_RECORD_ERASE, .user = text_id("gone")};
    for (int i = 0; i < 50; i++)
        CHECK_OK(add(j, &erase));
    engine_record r = event("u", "i", "", 7);
    CHECK_OK(add(j, &r));
    uint64_t before = journal_get_stats(j).n_bytes;
    seen state_now = {0};
    state_now.has[7] = true;
    busy_source b = {j, &state_now};
    CHECK_OK(journal_compact(j, show_and_append, &b));
    CHECK(journal_get_stats(j).n_bytes < before / 4);
    CHECK_OK(add(j, &r));
    reopen(&j, &s);
    CHECK_EQ(s.n_erased, 0);
    CHECK_EQ(s.n_events, 4);
    CHECK(s.has[7] && s.has[1000] && s.has[1001]);
    journal_close(j);
}

/* A child acknowledges events to a pipe until it is killed: every acknowledged one is there. */
static void write_until_killed(int first, int acknowledge) {
    journal *j;
    seen s = {0};
    if (journal_open(&j, state(), note, &s) != OK) _exit(1);
    for (int i = first; i < first + 100; i++) {
        engine_record r = event("user", "item", "", i);
        if (add(j, &r) != OK || write(acknowledge, &i, sizeof i) != sizeof i) _exit(1);
    }
    for (;;)
        pause();
}

TEST(journal_loses_nothing_to_kill) {
    journal *j = NULL;
    seen s;
    bool is_acknowledged[4096] = {0};
    int n = 0;
    for (int round = 0; round < 20; round++) {
        int ends[2], number;
        CHECK_EQ(pipe(ends), 0);
        pid_t child = fork();
        if (child == 0) write_until_killed(round * 100, ends[1]);
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
    reopen(&j, &s);
    for (int i = 0; i < 4096; i++)
        if (is_acknowledged[i] && !s.has[i]) FAIL_TEST("event %d is lost", i);
    CHECK(n > 0 && s.n_events >= n);
    journal_close(j);
}

static status open_add_compact(void *context) {
    journal *j;
    seen s = {0};
    (void)context;
    unlink(log_path());
    TRY(journal_open(&j, state(), note, &s));
    engine_record r = event("u", "i", "id", 3);
    status st = add(j, &r);
    s.has[3] = true;
    if (st == OK) st = journal_compact(j, show_seen, &s);
    if (st == OK) st = add(j, &r);
    journal_close(j);
    return st;
}

TEST(journal_reports_lack_of_memory) {
    CHECK(oom_at_each_allocation(open_add_compact, NULL) > 3);
}
