#include "serve/state/user_writer.h"

#include <semaphore.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/rng.h"
#include "disk_fault.h"
#include "serve/state/state_tools.h"
#include "train_test.h"

static void need_sqlite(void) {
    if (state_library_version() == NULL) SKIP_TEST("this build has no SQLite");
}

/* Users with their writer, as an engine has them. */
typedef struct rig {
    users users;
    pthread_mutex_t lock;
    user_writer *writer;
} rig;

static status rig_open(rig *r, const seq_file *data, const char *folder) {
    pthread_mutex_init(&r->lock, NULL);
    r->writer = NULL;
    status st = users_init(&r->users, data, 1 << 20);
    if (st == OK) st = user_writer_create(&r->writer, &r->users, &r->lock, folder, 2000000);
    return st;
}

static void rig_close(rig *r) {
    user_writer_destroy(r->writer);
    users_fini(&r->users);
    pthread_mutex_destroy(&r->lock);
}

typedef struct waiting {
    pthread_mutex_t lock;
    pthread_cond_t wake;
    int n_left;
} waiting;

static void note_done(void *ctx, engine_change *c) {
    waiting *w = ctx;
    (void)c;
    pthread_mutex_lock(&w->lock);
    w->n_left--;
    pthread_cond_signal(&w->wake);
    pthread_mutex_unlock(&w->lock);
}

/* Submits n changes at once and waits for all. */
static void run(rig *r, engine_change *c, int n) {
    waiting w = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, n};
    for (int i = 0; i < n; i++) {
        c[i].done = note_done;
        c[i].ctx = &w;
        for (size_t u = 0; u < c[i].n_users; u++)
            c[i].added[u] = (engine_added){0};
        user_writer_submit(r->writer, &c[i]);
    }
    pthread_mutex_lock(&w.lock);
    while (w.n_left > 0)
        pthread_cond_wait(&w.wake, &w.lock);
    pthread_mutex_unlock(&w.lock);
}

/* The model: what the state must hold. */
enum { NAMES = 6, MAX_EVENTS = 400, IDS = 60, BURST = 5, PARTS = 2, PER_PART = 3 };

typedef struct model_event {
    int64_t time;
    int item, action, id; /* id -1: none */
} model_event;

typedef struct model_user {
    model_event event[MAX_EVENTS]; /* in order of time, of equal ones as they came */
    int n, n_erased;
} model_user;

typedef struct model {
    model_user user[NAMES];
} model;

static const char *const names[NAMES] = {"ann", "7",       "007", "jane.doe@example.org",
                                         "-1",  "\xc3\xa9"};
static const char *const items[] = {"1", "2", "three", "04", "hiv-test-kit", "-9"};

typedef struct campaign {
    rig r;
    model now, saved; /* saved: of the backup */
    bool has_backup;
    char folder[4200], other[4200], backup[4200];
    uint64_t n_drawn, seed;
    disk_fault fault;
    sem_t copied;
    uint64_t n_acknowledged, n_refused, n_crashes, n_restarts, n_erased, n_backups;
} campaign;

static uint32_t draw(campaign *k, uint32_t n) {
    rng_block b = rng_draw64(rng_make_key(k->seed, RNG_TEST), k->n_drawn++, 0);
    return rng_below(b.word[0], n);
}

static engine_id text_of(const char *t) {
    return (engine_id){.text = t, .n = strlen(t)};
}

/* One request: its memory, and what the model says about it. */
typedef struct post {
    engine_change change;
    engine_user_events part[PARTS];
    engine_added added[PARTS];
    engine_event event[PARTS][PER_PART];
    model_event plain[PARTS][PER_PART];
    int who[PARTS];
    char id[PARTS][PER_PART][16];
} post;

static void make_post(campaign *k, post *p) {
    int n_parts = 1 + (int)draw(k, PARTS);
    p->change = (engine_change){.users = p->part, .n_users = (size_t)n_parts, .added = p->added};
    for (int u = 0; u < n_parts; u++) {
        int n = 1 + (int)draw(k, PER_PART);
        p->who[u] = (int)draw(k, NAMES);
        p->part[u] = (engine_user_events){text_of(names[p->who[u]]), p->event[u], (size_t)n};
        for (int i = 0; i < n; i++) {
            model_event *m = &p->plain[u][i];
            *m = (model_event){.time = 1000 + draw(k, 50),
                               .item = (int)draw(k, 6),
                               .action = (int)draw(k, 3),
                               .id = draw(k, 3) == 0 ? -1 : (int)draw(k, IDS)};
            snprintf(p->id[u][i], sizeof p->id[u][i], "e%d", m->id);
            p->event[u][i] = (engine_event){.item = text_of(items[m->item]),
                                            .has_time = true,
                                            .time = m->time,
                                            .action = (uint16_t)m->action};
            if (m->id >= 0) p->event[u][i].id = text_of(p->id[u][i]);
        }
    }
}

static bool model_has(const model_user *u, int id) {
    for (int i = 0; i < u->n; i++)
        if (id >= 0 && u->event[i].id == id) return true;
    return false;
}

/* Adds the events of a request; returns how many are new. */
static int model_add(model *m, const post *p) {
    int n_new = 0;
    for (size_t part = 0; part < p->change.n_users; part++) {
        model_user *u = &m->user[p->who[part]];
        int n = (int)p->part[part].n_events;
        model_event add[PER_PART];
        int n_add = 0;
        for (int i = 0; i < n; i++) {
            bool is_there = model_has(u, p->plain[part][i].id);
            for (int e = 0; e < n_add; e++)
                is_there |= p->plain[part][i].id >= 0 && add[e].id == p->plain[part][i].id;
            if (!is_there) add[n_add++] = p->plain[part][i];
        }
        for (int i = 0; i < n_add; i++) {
            int at = u->n;
            CHECK(u->n < MAX_EVENTS);
            while (at > 0 && u->event[at - 1].time > add[i].time) {
                u->event[at] = u->event[at - 1];
                at--;
            }
            u->event[at] = add[i];
            u->n++;
        }
        n_new += n_add;
    }
    return n_new;
}

static void check_user(campaign *k, int who) {
    const model_user *want = &k->now.user[who];
    users *u = &k->r.users;
    id_text id;
    engine_id given = text_of(names[who]);
    CHECK_OK(id_text_make(&id, &given, "the user"));
    pthread_mutex_lock(&k->r.lock);
    user_history h = users_history(u, &id);
    if (h.n != (size_t)want->n)
        FAIL_TEST("%s has %zu events, not %d, after %llu draws", names[who], h.n, want->n,
                  (unsigned long long)k->n_drawn);
    for (size_t i = 0; i < h.n; i++) {
        stored_event e = user_history_at(&h, i);
        engine_id item = users_item_id(u, e.item);
        int64_t s;
        uint32_t ns;
        users_time(u, e.time, &s, &ns);
        CHECK(s == want->event[i].time && ns == 0 && e.action == want->event[i].action);
        CHECK(item.n == strlen(items[want->event[i].item]) &&
              memcmp(item.text, items[want->event[i].item], item.n) == 0);
    }
    pthread_mutex_unlock(&k->r.lock);
}

static void check_all(campaign *k) {
    for (int i = 0; i < NAMES; i++)
        check_user(k, i);
}

/* Several requests at once.  All that wait are one group or more; each succeeds or fails whole, in
 * the order in which they were submitted. */
static void post_some(campaign *k) {
    static post p[BURST];
    static engine_change c[BURST];
    int n = 1 + (int)draw(k, BURST);
    for (int i = 0; i < n; i++) {
        if (i > 0 && draw(k, 4) == 0)
            p[i] = p[i - 1]; /* a retry while the first is on its way */
        else
            make_post(k, &p[i]);
    }
    for (int i = 0; i < n; i++) {
        p[i].change.users = p[i].part;
        p[i].change.added = p[i].added;
        for (int u = 0; u < PARTS; u++) {
            p[i].part[u].events = p[i].event[u];
            for (int e = 0; e < PER_PART; e++)
                if (p[i].plain[u][e].id >= 0) p[i].event[u][e].id = text_of(p[i].id[u][e]);
        }
        c[i] = p[i].change;
    }
    run(&k->r, c, n);
    for (int i = 0; i < n; i++) {
        if (c[i].st != OK) {
            CHECK(c[i].st == ERR_IO && k->fault != DISK_GOOD);
            k->n_refused++;
            continue;
        }
        int n_new = model_add(&k->now, &p[i]);
        size_t n_added = 0;
        for (size_t u = 0; u < c[i].n_users; u++)
            n_added += c[i].added[u].n_added;
        CHECK_EQ(n_added, (size_t)n_new);
        CHECK(n_new == 0 || k->fault == DISK_GOOD);
        k->n_acknowledged++;
    }
}

static void erase_one(campaign *k) {
    int who = (int)draw(k, NAMES);
    engine_change c = {.user = text_of(names[who])};
    run(&k->r, &c, 1);
    bool was_there = k->now.user[who].n > 0;
    if (k->fault != DISK_GOOD && was_there) {
        CHECK_EQ(c.st, ERR_IO);
        k->n_refused++;
        return;
    }
    CHECK(c.st == OK && c.existed == was_there);
    k->now.user[who].n = 0;
    k->now.user[who].n_erased += was_there;
    k->n_erased += was_there;
}

static void set_fault(campaign *k, disk_fault f) {
    k->fault = f;
    disk_fault_set(f, "state.db");
}

static void restart(campaign *k) {
    rig_close(&k->r);
    CHECK_OK(rig_open(&k->r, NULL, k->folder));
    k->n_restarts++;
}

static void copy_file(const char *from, const char *to, const char *name) {
    char path[2][4300], *bytes;
    size_t n;
    snprintf(path[0], sizeof path[0], "%s/%s", from, name);
    snprintf(path[1], sizeof path[1], "%s/%s", to, name);
    unlink(path[1]);
    if (access(path[0], F_OK) != 0) return;
    CHECK_OK(file_read_all(path[0], 1 << 28, &bytes, &n));
    FILE *f = fopen(path[1], "wb");
    CHECK(f != NULL && fwrite(bytes, 1, n, f) == n && fclose(f) == 0);
    mem_free(bytes);
}

/* On the writer's thread, so that it writes nothing meanwhile. */
static void copy_there(void *ctx, engine_change *c) {
    campaign *k = ctx;
    copy_file(k->folder, k->other, "state.db");
    copy_file(k->folder, k->other, "state.db-wal");
    (void)c;
    sem_post(&k->copied);
}

/* As kill -9 leaves it: the files of the running writer, copied between two changes. */
static void crash(campaign *k) {
    engine_change nothing = {.user = text_of("nobody"), .done = copy_there, .ctx = k};
    CHECK(mkdir(k->other, 0700) == 0 || access(k->other, F_OK) == 0);
    user_writer_submit(k->r.writer, &nothing);
    while (sem_wait(&k->copied) != 0)
        ;
    rig_close(&k->r);
    copy_file(k->other, k->folder, "state.db");
    copy_file(k->other, k->folder, "state.db-wal");
    CHECK_OK(rig_open(&k->r, NULL, k->folder));
    engine_state_stats s;
    user_writer_stats(k->r.writer, &s);
    CHECK_STR(s.warning, "");
    k->n_crashes++;
}

static void back_up(campaign *k) {
    state_counts counts;
    CHECK_OK(state_backup(k->folder, k->backup, &counts));
    uint64_t n = 0;
    for (int i = 0; i < NAMES; i++)
        n += (uint64_t)k->now.user[i].n;
    CHECK(counts.n_events == n && counts.n_damaged == 0 && counts.n_unswept == 0);
    k->saved = k->now;
    k->has_backup = true;
    k->n_backups++;
}

static void restore(campaign *k) {
    state_counts counts;
    char kept[4300];
    rig_close(&k->r);
    CHECK_OK(state_restore(k->folder, k->backup, &counts));
    snprintf(kept, sizeof kept, "%s/state.db.before-1", k->folder);
    CHECK_EQ(unlink(kept), 0);
    CHECK_OK(rig_open(&k->r, NULL, k->folder));
    /* Who was erased since the backup stays so. */
    for (int i = 0; i < NAMES; i++) {
        int n_erased = k->now.user[i].n_erased;
        k->now.user[i] = k->saved.user[i];
        if (n_erased > k->saved.user[i].n_erased) k->now.user[i].n = 0;
        k->now.user[i].n_erased = n_erased;
    }
}

/* Long histories are erased, so that the model's arrays are large enough. */
static void keep_small(campaign *k) {
    for (int i = 0; i < NAMES; i++) {
        engine_change c = {.user = text_of(names[i])};
        if (k->now.user[i].n < MAX_EVENTS / 2) continue;
        set_fault(k, DISK_GOOD);
        run(&k->r, &c, 1);
        CHECK(c.st == OK && c.existed);
        k->now.user[i].n = 0;
        k->now.user[i].n_erased++;
    }
}

static void step(campaign *k) {
    uint32_t what = draw(k, 1000);
    keep_small(k);
    /* With even seeds the writer lives long, so that its log is copied and begun again. */
    if (k->seed % 2 == 0 && what >= 960 && draw(k, 30) != 0) what = 0;
    if (what < 850) {
        post_some(k);
        check_user(k, (int)draw(k, NAMES));
    } else if (what < 900) {
        erase_one(k);
    } else if (what < 960) {
        set_fault(k, (disk_fault)draw(k, 3));
    } else {
        set_fault(k, DISK_GOOD);
        if (what < 980)
            restart(k);
        else if (what < 995)
            crash(k);
        else if (what < 998 || !k->has_backup)
            back_up(k);
        else
            restore(k);
        check_all(k);
    }
}

static void run_campaign(uint64_t seed, uint64_t n_steps) {
    static campaign k;
    k = (campaign){.seed = seed};
    snprintf(k.folder, sizeof k.folder, "%s/state-%llu", test_folder(), (unsigned long long)seed);
    snprintf(k.other, sizeof k.other, "%s/crashed-%llu", test_folder(), (unsigned long long)seed);
    snprintf(k.backup, sizeof k.backup, "%s/backup-%llu", test_folder(), (unsigned long long)seed);
    log_set_level(LOG_QUIET); /* faults are told */
    CHECK_EQ(sem_init(&k.copied, 0, 0), 0);
    CHECK_OK(rig_open(&k.r, NULL, k.folder));
    for (uint64_t i = 0; i < n_steps; i++)
        step(&k);
    set_fault(&k, DISK_GOOD);
    restart(&k);
    check_all(&k);
    printf(
        "state campaign: %llu steps, %llu requests acknowledged, %llu refused, %llu erased, %llu "
        "crashes, %llu restarts, %llu backups\n",
        (unsigned long long)n_steps, (unsigned long long)k.n_acknowledged,
        (unsigned long long)k.n_refused, (unsigned long long)k.n_erased,
        (unsigned long long)k.n_crashes, (unsigned long long)k.n_restarts,
        (unsigned long long)k.n_backups);
    CHECK(k.n_acknowledged > 0 && k.n_refused > 0);
    rig_close(&k.r);
}

/* Every acknowledged event is there once, no refused one ever is.  HSTU_STATE_STEPS: tools/state.sh
 * runs a million. */
TEST(user_writer_is_what_the_model_says) {
    const char *steps = getenv("HSTU_STATE_STEPS"), *seed = getenv("HSTU_STATE_SEED");
    uint64_t first = seed != NULL ? strtoull(seed, NULL, 10) : 1;
    need_sqlite();
    for (uint64_t i = first; i < first + 2; i++)
        run_campaign(i, steps != NULL ? strtoull(steps, NULL, 10) / 2 : 3000);
}

/* Events that newer data has, too, count once; who was erased stays so in data that comes later. */
TEST(user_writer_counts_events_of_newer_data_once) {
    rig r;
    seq_file *data;
    char folder[4200], who[32];
    need_sqlite();
    snprintf(folder, sizeof folder, "%s/state", test_folder());
    CHECK_OK(seq_file_open(&data, synth_folder(), NULL));
    snprintf(who, sizeof who, "%lld", (long long)data->user_id[3]);
    /* Without the data: the server is sent what tomorrow's data has. */
    CHECK_OK(rig_open(&r, NULL, folder));
    uint64_t row = data->offsets[3];
    engine_event e[2] = {{.item = {.number = data->item_id[data->item[row]]},
                          .has_time = true,
                          .time = data->time[row] / data->time_per_second,
                          .action = data->action[row]},
                         {.item = {.number = data->item_id[data->item[row]]},
                          .has_time = true,
                          .time = data->time[row] / data->time_per_second + 1000000,
                          .action = data->action[row]}};
    engine_user_events part[2] = {{text_of(who), e, 2}, {text_of("other"), e, 1}};
    engine_added added[2];
    engine_change c = {.users = part, .n_users = 2, .added = added};
    run(&r, &c, 1);
    CHECK(c.st == OK && added[0].n_added == 2 && added[1].n_added == 1);
    snprintf(who, sizeof who, "%lld", (long long)data->user_id[4]);
    engine_change erasure = {.user = text_of(who)};
    part[0].user = text_of(who);
    run(&r, &c, 1);
    run(&r, &erasure, 1);
    CHECK(erasure.st == OK && erasure.existed);
    rig_close(&r);
    CHECK_OK(rig_open(&r, data, folder));
    engine_state_stats s;
    user_writer_stats(r.writer, &s);
    CHECK(s.n_restored == 4 && s.n_known == 1 && s.is_durable);
    id_text id;
    engine_id erased = text_of(who);
    CHECK_OK(id_text_make(&id, &erased, "the user"));
    CHECK(!users_history(&r.users, &id).is_known); /* nor its events of the data */
    CHECK_EQ(r.users.n_known, data->n_users - 1 + 1);
    snprintf(who, sizeof who, "%lld", (long long)data->user_id[3]);
    erased = text_of(who);
    CHECK_OK(id_text_make(&id, &erased, "the user"));
    CHECK_EQ(users_history(&r.users, &id).n, seq_length(data, 3) + 1);
    rig_close(&r);
    seq_file_close(data);
}

/* Beyond the bound of what waits, requests are refused before anything is stored. */
TEST(user_writer_bounds_what_waits) {
    enum { EVENTS = 20000, CHANGES = 40 };
    static engine_change c[CHANGES];
    static engine_user_events part[CHANGES];
    static engine_added added[CHANGES];
    rig r;
    engine_event *e;
    engine_state_stats s;
    char folder[4200];
    need_sqlite();
    snprintf(folder, sizeof folder, "%s/state", test_folder());
    CHECK_OK(rig_open(&r, NULL, folder));
    CHECK_OK(MEM_NEW(&e, EVENTS));
    for (int i = 0; i < EVENTS; i++)
        e[i] = (engine_event){.item = {.number = i}, .has_time = true, .time = i};
    for (int i = 0; i < CHANGES; i++) {
        part[i] = (engine_user_events){{.number = i}, e, EVENTS};
        c[i] = (engine_change){.users = &part[i], .n_users = 1, .added = &added[i]};
    }
    run(&r, c, CHANGES);
    int n_refused = 0;
    for (int i = 0; i < CHANGES; i++) {
        char who[16];
        id_text id;
        snprintf(who, sizeof who, "%d", i);
        engine_id given = text_of(who);
        CHECK_OK(id_text_make(&id, &given, "the user"));
        CHECK_EQ(users_history(&r.users, &id).n, c[i].st == OK ? EVENTS : 0);
        if (c[i].st != OK) CHECK(strstr(c[i].why.reason, "send it again") != NULL);
        n_refused += c[i].st != OK;
    }
    user_writer_stats(r.writer, &s);
    CHECK(n_refused > 0 && n_refused < CHANGES && s.n_refused == (uint64_t)n_refused);
    CHECK_EQ(s.queue_bytes, 0);
    rig_close(&r);
    mem_free(e);
}

/* Changes that wait together take effect in their order: an erasure erases what was sent before it,
 * and not what comes after. */
TEST(user_writer_keeps_the_order_of_erasures) {
    engine_event e[] = {{.item = {.number = 1}, .has_time = true, .time = 1},
                        {.item = {.number = 2}, .has_time = true, .time = 2}};
    engine_user_events other = {text_of("other"), e, 1}, before = {text_of("ann"), e, 1},
                       after = {text_of("ann"), e + 1, 1};
    engine_added added[3] = {{0}};
    engine_change c[] = {{.users = &other, .n_users = 1, .added = &added[0]},
                         {.users = &before, .n_users = 1, .added = &added[1]},
                         {.user = text_of("ann")},
                         {.users = &after, .n_users = 1, .added = &added[2]},
                         {.user = text_of("nobody")}};
    waiting w = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 5};
    char folder[4200];
    id_text id;
    rig r;
    need_sqlite();
    snprintf(folder, sizeof folder, "%s/state", test_folder());
    CHECK_OK(rig_open(&r, NULL, folder));
    pthread_mutex_lock(&r.lock); /* the writer waits here with the first one */
    for (int i = 0; i < 5; i++) {
        c[i].done = note_done;
        c[i].ctx = &w;
        user_writer_submit(r.writer, &c[i]);
        if (i == 0) usleep(20000);
    }
    pthread_mutex_unlock(&r.lock);
    pthread_mutex_lock(&w.lock);
    while (w.n_left > 0)
        pthread_cond_wait(&w.wake, &w.lock);
    pthread_mutex_unlock(&w.lock);
    for (int i = 0; i < 5; i++)
        CHECK_OK(c[i].st);
    CHECK(added[1].n_added == 1 && c[2].existed && added[2].n_added == 1 && !c[4].existed);
    CHECK_EQ(added[2].n_events, 1);
    engine_id ann = text_of("ann");
    CHECK_OK(id_text_make(&id, &ann, "the user"));
    for (int again = 0; again < 2; again++) {
        user_history h = users_history(&r.users, &id);
        CHECK(h.n == 1 && user_history_at(&h, 0).time == 2 * r.users.ticks);
        rig_close(&r);
        CHECK_OK(rig_open(&r, NULL, folder));
    }
    rig_close(&r);
}
