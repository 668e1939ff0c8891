/* Ranks that share memory: here they are threads of one process, with windows so small that every
 * message takes several rounds. */
#include "dist/shm.h"

#include <pthread.h>

#include "base/rng.h"
#include "oom.h"
#include "test.h"

enum { MAX_RANKS = 7 };

typedef void (*rank_fn)(transport *t, void *ctx);

typedef struct rank_thread {
    shm_job *job;
    int rank;
    rank_fn fn;
    void *ctx;
    pthread_t thread;
} rank_thread;

static void *rank_main(void *arg) {
    rank_thread *r = arg;
    transport *t;
    CHECK_OK(shm_create(&t, r->job, r->rank));
    CHECK(t->rank == r->rank && t->size == r->job->size && t->stop != NULL && *t->stop == 0);
    r->fn(t, r->ctx);
    transport_destroy(t);
    return NULL;
}

static void run_ranks(int size, size_t window_bytes, rank_fn fn, void *ctx) {
    rank_thread r[MAX_RANKS];
    shm_job *job;
    CHECK_OK(shm_job_create(&job, size, window_bytes));
    for (int i = 0; i < size; i++) {
        r[i] = (rank_thread){.job = job, .rank = i, .fn = fn, .ctx = ctx};
        CHECK(pthread_create(&r[i].thread, NULL, rank_main, &r[i]) == 0);
    }
    for (int i = 0; i < size; i++)
        pthread_join(r[i].thread, NULL);
    shm_job_destroy(job);
}

/* Bytes that rank `from` sends to rank `to` in call number `call`: none, few or many. */
static int64_t message_bytes(int from, int to, int call) {
    static const int64_t sizes[] = {0, 1, 63, 64, 65, 1000};
    return sizes[(from * 3 + to * 5 + call) % 6];
}

static unsigned char message_byte(int from, int to, int call, int64_t i) {
    return (unsigned char)(from * 101 + to * 31 + call * 7 + i * 13);
}

static void exchange_all(transport *t, void *ctx) {
    static _Thread_local unsigned char in[MAX_RANKS][1000], out[MAX_RANKS][1000];
    const void *from[MAX_RANKS];
    void *to[MAX_RANKS];
    int64_t n_from[MAX_RANKS], n_to[MAX_RANKS];
    (void)ctx;
    for (int call = 0; call < 20; call++) {
        for (int r = 0; r < t->size; r++) {
            from[r] = out[r], to[r] = in[r];
            n_from[r] = message_bytes(t->rank, r, call);
            n_to[r] = message_bytes(r, t->rank, call);
            for (int64_t i = 0; i < n_from[r]; i++)
                out[r][i] = message_byte(t->rank, r, call, i);
            memset(in[r], 0xee, sizeof in[r]);
        }
        exchange_args a = {.from = from, .n_from = n_from, .to = to, .n_to = n_to};
        CHECK_OK(t->ops->exchange(t, &a));
        for (int r = 0; r < t->size; r++)
            for (int64_t i = 0; i < 1000; i++)
                CHECK_EQ(in[r][i], i < n_to[r] ? message_byte(r, t->rank, call, i) : 0xee);
        if (call % 3 == 0) CHECK_OK(t->ops->barrier(t));
    }
}

TEST(shm_exchanges_messages_of_any_size) {
    for (int size = 1; size <= MAX_RANKS; size++)
        run_ranks(size, 64 * (size_t)size, exchange_all, NULL);
    run_ranks(2, 2, exchange_all, NULL); /* a byte a round */
    run_ranks(3, 0, exchange_all, NULL);
}

/* Nobody passes a barrier that somebody has not reached. */
static void count_at_barriers(transport *t, void *ctx) {
    atomic_int *n = ctx;
    for (int i = 1; i <= 50; i++) {
        atomic_fetch_add(n, 1);
        CHECK_OK(t->ops->barrier(t));
        CHECK_EQ(atomic_load(n), i * t->size);
        CHECK_OK(t->ops->barrier(t));
    }
}

TEST(shm_barrier_waits_for_all) {
    atomic_int n = 0;
    run_ranks(4, 0, count_at_barriers, &n);
}

/* The last rank fails instead of coming to the barrier, or has gone. */
static void wait_in_vain(transport *t, void *ctx) {
    shm_job *job = *(shm_job **)ctx;
    if (t->rank < t->size - 1)
        CHECK_FAILS(t->ops->barrier(t), ERR_IO, job->n_ended > 0 ? "has left" : "rank 2 failed");
}

TEST(shm_tells_all_when_a_rank_is_lost) {
    for (int is_gone = 0; is_gone < 2; is_gone++) {
        rank_thread r[3];
        shm_job *job;
        CHECK_OK(shm_job_create(&job, 3, 0));
        if (is_gone) atomic_store(&job->n_ended, 1);
        for (int i = 0; i < 3; i++) {
            r[i] = (rank_thread){.job = job, .rank = i, .fn = wait_in_vain, .ctx = &job};
            CHECK(pthread_create(&r[i].thread, NULL, rank_main, &r[i]) == 0);
        }
        if (!is_gone) {
            CHECK(shm_job_fail(job, 2));
            CHECK(!shm_job_fail(job, 1)); /* the first one counts */
        }
        for (int i = 0; i < 3; i++)
            pthread_join(r[i].thread, NULL);
        shm_job_destroy(job);
    }
}

/* A rank that expects another number of bytes is a fault of ours, and said so. */
static void expect_too_much(transport *t, void *ctx) {
    char out[8] = "", in[2][8];
    const void *from[] = {out, out};
    void *to[] = {in[0], in[1]};
    int64_t n_from[] = {4, 4}, n_to[] = {4, 4};
    (void)ctx;
    n_to[1 - t->rank] = 4 + t->rank;
    exchange_args a = {.from = from, .n_from = n_from, .to = to, .n_to = n_to};
    if (t->rank == 0)
        CHECK_OK(t->ops->exchange(t, &a));
    else
        CHECK_FAILS(t->ops->exchange(t, &a), ERR_USAGE, "sends 4 bytes to rank 1");
}

TEST(shm_compares_the_sizes_of_both_sides) {
    run_ranks(2, 0, expect_too_much, NULL);
}

TEST(shm_remembers_the_step) {
    shm_job *job;
    transport *t;
    CHECK_OK(shm_job_create(&job, 1, 0));
    CHECK_OK(shm_create(&t, job, 0));
    CHECK_EQ(atomic_load(&job->rank[0].step), 0);
    t->ops->note_step(t, 41);
    CHECK_EQ(atomic_load(&job->rank[0].step), 42);
    transport_destroy(t);
    transport_destroy(NULL);
    shm_job_destroy(job);
    shm_job_destroy(NULL);
    CHECK_FAILS(shm_job_create(&job, 0, 0), ERR_USAGE, "0 ranks");
    CHECK_FAILS(shm_job_create(&job, SHM_MAX_RANKS + 1, 0), ERR_USAGE, "1 to 64");
    CHECK(job == NULL);
}

static status create(void *ctx) {
    transport *t;
    status st = shm_create(&t, ctx, 0);
    CHECK((st == OK) == (t != NULL));
    transport_destroy(t);
    return st;
}

TEST(shm_out_of_memory) {
    shm_job *job;
    CHECK_OK(shm_job_create(&job, 1, 0));
    CHECK_EQ(oom_at_each_allocation(create, job), 2);
    shm_job_destroy(job);
}
