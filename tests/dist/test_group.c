/* Groups of ranks that exchange among themselves, over shared memory and over TCP. */
#include "dist/group.h"

#include <pthread.h>

#include "dist/net.h"
#include "dist/shm.h"
#include "dist/tcp.h"
#include "oom.h"
#include "test.h"

enum { MAX_RANKS = 6, N = 300 };

typedef struct member {
    shm_job *job; /* or NULL: by TCP */
    int rank, size, port, tensor;
    pthread_t thread;
} member;

/* x[i] of each rank, summed over the ranks of a group. */
static void reduce(comm *c, const rank_group *g) {
    int64_t x[N];
    for (int i = 0; i < N; i++)
        x[i] = 1000 * rank_of_group(g, c->rank) + i;
    all_reduce_args a = {COMM_I64, COMM_SUM, N, x, x};
    CHECK_OK(c->ops->all_reduce(c, &a));
    for (int i = 0; i < N; i++) {
        int64_t want = 0;
        for (int r = 0; r < g->size; r++)
            want += 1000 * rank_of_group(g, r) + i;
        CHECK_EQ(x[i], want);
    }
}

/* Groups make different numbers of calls between the calls of all. */
static void work(transport *t, int tensor) {
    backend *be;
    comm *all;
    rank_grid g;
    rank_group near = {t->rank / tensor * tensor, 1, tensor};
    rank_group far = {t->rank % tensor, tensor, t->size / tensor};
    rank_group whole = {0, 1, t->size};
    CHECK_OK(backend_create_cpu(&be, NULL));
    CHECK_OK(comm_create_host(&all, be, t));
    CHECK_OK(rank_grid_create(&g, t, be, NULL, tensor));
    CHECK(g.group->rank == t->rank % tensor && g.group->size == tensor);
    CHECK((g.data == NULL) == (t->size == tensor));
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 1 + near.first + round; i++)
            reduce(g.group, &near);
        CHECK_OK(g.group->ops->barrier(g.group));
        for (int i = 0; i < 2 + far.first && g.data != NULL; i++)
            reduce(g.data, &far);
        if (g.data != NULL) CHECK_OK(g.data->ops->barrier(g.data));
        reduce(all, &whole);
        g.group->ops->note_step(g.group, (uint64_t)round);
    }
    CHECK_OK(all->ops->barrier(all));
    rank_grid_destroy(&g);
    comm_destroy(all);
    backend_destroy(be);
}

static void *member_main(void *arg) {
    const member *m = arg;
    tcp_start start = {.rank = m->rank,
                       .size = m->size,
                       .local_rank = -1,
                       .local_size = -1,
                       .address = "127.0.0.1",
                       .port = m->port,
                       .timeout_ms = 60000,
                       .is_patient = true};
    transport *t;
    CHECK_OK(m->job != NULL ? shm_create(&t, m->job, m->rank) : tcp_create(&t, &start));
    work(t, m->tensor);
    CHECK_OK(t->ops->leave(t, OK));
    return NULL;
}

static void with_ranks(int size, int tensor, bool is_tcp) {
    member m[MAX_RANKS];
    shm_job *job = NULL;
    int fd, port = 0;
    if (is_tcp) {
        CHECK_OK(net_listen(&fd, "127.0.0.1", 0, &port));
        net_close(&fd);
    } else {
        CHECK_OK(shm_job_create(&job, size, 40 * (size_t)size)); /* messages take many rounds */
    }
    for (int i = 0; i < size; i++) {
        m[i] = (member){.job = job, .rank = i, .size = size, .port = port, .tensor = tensor};
        CHECK(pthread_create(&m[i].thread, NULL, member_main, &m[i]) == 0);
    }
    for (int i = 0; i < size; i++)
        pthread_join(m[i].thread, NULL);
    if (job != NULL)
        for (int i = 0; i < size; i++)
            CHECK_EQ(atomic_load(&job->rank[i].step), 3);
    shm_job_destroy(job);
}

TEST(group_calls_of_some_ranks) {
    for (int is_tcp = 0; is_tcp < 2; is_tcp++) {
        with_ranks(2, 2, is_tcp);
        with_ranks(4, 2, is_tcp);
        with_ranks(6, 2, is_tcp);
        with_ranks(6, 3, is_tcp);
    }
}

TEST(group_refuses_what_is_none) {
    shm_job *job;
    transport *t, *g, *again;
    rank_grid grid;
    backend *be;
    CHECK_OK(backend_create_cpu(&be, NULL));
    CHECK_OK(shm_job_create(&job, 3, 0));
    CHECK_OK(shm_create(&t, job, 1));
    CHECK_FAILS(transport_group(&g, t, &(rank_group){0, 2, 2}), ERR_USAGE, "not in the group");
    CHECK_FAILS(transport_group(&g, t, &(rank_group){2, 1, 1}), ERR_USAGE, "not in the group");
    CHECK_FAILS(transport_group(&g, t, &(rank_group){0, 1, 1}), ERR_USAGE, "not in the group");
    CHECK_FAILS(transport_group(&g, t, &(rank_group){1, 1, 3}), ERR_USAGE, "no group of 3 ranks");
    CHECK_FAILS(transport_group(&g, t, &(rank_group){-1, 1, 3}), ERR_USAGE, "no group of 3 ranks");
    CHECK_FAILS(rank_grid_create(&grid, t, be, NULL, 2), ERR_USAGE, "3 ranks cannot be divided");
    CHECK_FAILS(rank_grid_create(&grid, t, be, NULL, 1), ERR_USAGE, "groups of 1");
    CHECK(g == NULL && grid.group == NULL);
    CHECK_OK(transport_group(&g, t, &(rank_group){1, 1, 2}));
    CHECK_FAILS(transport_group(&again, g, &(rank_group){0, 1, 1}), ERR_USAGE, "not divided again");
    transport_destroy(g);
    /* A rank that fails ends the waiting of a group, too. */
    CHECK_OK(transport_group(&g, t, &(rank_group){1, 1, 2}));
    CHECK(shm_job_fail(job, 0));
    CHECK_FAILS(g->ops->barrier(g), ERR_IO, "rank 0 failed");
    transport_destroy(g);
    transport_destroy(t);
    shm_job_destroy(job);
    backend_destroy(be);
}

static status make_grid(void *ctx) {
    rank_grid g;
    member *m = ctx;
    transport *t;
    backend *be;
    TRY(backend_create_cpu(&be, NULL));
    status st = shm_create(&t, m->job, 1);
    if (st == OK) {
        st = rank_grid_create(&g, t, be, NULL, 2);
        rank_grid_destroy(&g);
        transport_destroy(t);
    }
    backend_destroy(be);
    return st;
}

TEST(group_out_of_memory) {
    member m = {0};
    CHECK_OK(shm_job_create(&m.job, 4, 0));
    CHECK(oom_at_each_allocation(make_grid, &m) > 8);
    shm_job_destroy(m.job);
}
