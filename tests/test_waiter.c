#include "serve/waiter.h"

#include <time.h>

#include "base/clock.h"
#include "serve_test.h"
#include "test.h"

/* A caller that waits beside a thread that begins its batch and answers it. */
typedef struct rig {
    backend be;
    served m;
    slot s;
    job j;
    waiter w;
    uint64_t begin_ns, done_ns; /* when, after the wait began; begin_ns 0: never */
    uint64_t due_ns, look_ns;   /* what the batch tells, after its begin */
    atomic_bool is_done;
} rig;

static void sleep_ns(uint64_t ns) {
    struct timespec t = {.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)};
    nanosleep(&t, NULL);
}

static void *answer(void *context) {
    rig *r = context;
    if (r->begin_ns > 0) {
        sleep_ns(r->begin_ns);
        uint64_t now = clock_ns();
        r->j.look_ns = now + r->look_ns;
        atomic_store(&r->j.due_ns, now + r->due_ns);
    }
    sleep_ns(r->done_ns);
    atomic_store(&r->is_done, true);
    waiter_wake(&r->w, NULL);
    return NULL;
}

static void check_wait(uint64_t begin_ns, uint64_t due_ns, uint64_t look_ns, uint64_t done_ns,
                       int n_cores) {
    static rig r;
    pthread_t thread;
    r = (rig){.be = {.token_bucket = 1},
              .s = {.may_spin = true, .n_cores = n_cores},
              .begin_ns = begin_ns,
              .due_ns = due_ns,
              .look_ns = look_ns,
              .done_ns = done_ns};
    r.m.compute.be = &r.be;
    r.j.m = &r.m;
    waiter_init(&r.w);
    CHECK_EQ(pthread_create(&thread, NULL, answer, &r), 0);
    waiter_wait(&r.w, &r.s, &r.j);
    CHECK(atomic_load(&r.is_done));
    CHECK_EQ(atomic_load(&r.s.n_looking), 0);
    pthread_join(thread, NULL);
}

enum { US = 1000, MS = 1000000 };

/* Whatever a batch tells of its end, and whenever that comes, the caller returns after it. */
TEST(waiter_returns_when_it_is_woken) {
    static const struct {
        uint64_t begin, due, look, done;
    } tries[] = {{20 * US, 0, 10 * MS, 100 * US},      /* it looks out until the end */
                 {20 * US, 3 * MS, 10 * MS, 5 * MS},   /* it sleeps first */
                 {20 * US, 3 * MS, 10 * MS, 300 * US}, /* the end comes before it is due, */
                 {20 * US, 100 * US, 1 * MS, 10 * MS}, /* or long after */
                 {1 * MS, 0, 10 * MS, 1 * MS},         /* the batch begins late */
                 {0, 0, 0, 1 * MS},                    /* or never */
                 {0, 0, 0, 0}};
    for (int cores = 1; cores <= 4; cores += 3)
        for (size_t i = 0; i < sizeof tries / sizeof *tries; i++)
            for (int k = 0; k < 20; k++)
                check_wait(tries[i].begin, tries[i].due, tries[i].look, tries[i].done, cores);
}

/* Whoever wakes when all is done makes its items at once: there is nothing left to rehearse for. */
TEST(waiter_does_not_rehearse_when_it_is_done) {
    static rig r;
    uint32_t unknown = 0;
    float wide = 7, value;
    uint64_t keys[2];
    engine_item named;
    pthread_t thread;
    r = (rig){.be = {.token_bucket = 1},
              .m = {.compute.be = &r.be, .columns = {.n = 1, .width = 1}},
              .s = {.may_spin = true, .n_cores = 4},
              .j = {.m = &r.m,
                    .n_candidates = 1,
                    .candidate = &unknown,
                    .wide = &wide,
                    .values = &value,
                    .keys = keys,
                    .named = &named},
              .begin_ns = 1,
              .due_ns = 1000 * (uint64_t)MS};
    waiter_init(&r.w);
    CHECK_EQ(pthread_create(&thread, NULL, answer, &r), 0);
    waiter_wait(&r.w, &r.s, &r.j);
    pthread_join(thread, NULL);
    CHECK(wide == 7);
}

/* Half of the cores at most are kept busy, and none where the CPU computes. */
TEST(waiter_looks_out_where_there_are_cores) {
    static rig r;
    r.s = (slot){.may_spin = true, .n_cores = 4};
    r.be.token_bucket = 1;
    r.m.compute.be = &r.be;
    r.j.m = &r.m;
    CHECK(slot_look_begin(&r.s, &r.j) && slot_look_begin(&r.s, &r.j));
    CHECK(!slot_look_begin(&r.s, &r.j));
    slot_look_end(&r.s);
    CHECK(slot_look_begin(&r.s, &r.j));
    slot_look_end(&r.s);
    slot_look_end(&r.s);
    r.be.token_bucket = 0;
    CHECK(!slot_look_begin(&r.s, &r.j));
    r.be.token_bucket = 1;
    r.s.may_spin = false;
    CHECK(!slot_look_begin(&r.s, &r.j));
    CHECK_EQ(atomic_load(&r.s.n_looking), 0);
}
