/* Collectives (ops/comm.h) on a transport: ranks are threads that share memory. */
#include <pthread.h>

#include "dist/net.h"
#include "dist/ranks.h"
#include "dist/shm.h"
#include "dist/tcp.h"
#include "dist/transport.h"
#include "oom.h"
#include "ops/comm.h"
#include "test.h"

enum { MAX_RANKS = 7, N = 37 };

typedef struct member {
    shm_job *job;
    int rank;
    void (*fn)(comm *c);
    pthread_t thread;
} member;

static void *member_main(void *arg) {
    member *m = arg;
    transport *t;
    backend *be;
    comm *c;
    CHECK_OK(backend_create_cpu(&be, NULL));
    CHECK_OK(shm_create(&t, m->job, m->rank));
    CHECK_OK(comm_create_host(&c, be, t));
    CHECK(c->rank == m->rank && c->size == m->job->size && c->be == be);
    m->fn(c);
    comm_destroy(c);
    transport_destroy(t);
    backend_destroy(be);
    return NULL;
}

static void with_ranks(int size, void (*fn)(comm *c)) {
    member m[MAX_RANKS];
    shm_job *job;
    CHECK_OK(shm_job_create(&job, size, 40 * (size_t)size));
    for (int i = 0; i < size; i++) {
        m[i] = (member){.job = job, .rank = i, .fn = fn};
        CHECK(pthread_create(&m[i].thread, NULL, member_main, &m[i]) == 0);
    }
    for (int i = 0; i < size; i++)
        pthread_join(m[i].thread, NULL);
    shm_job_destroy(job);
}

static void at_all_sizes(void (*fn)(comm *c)) {
    for (int size = 1; size <= MAX_RANKS; size++)
        with_ranks(size, fn);
}

/* Values whose float sums depend on the order. */
static float value_of(int rank, int i) {
    return (float)(rank * 1.37 + i * 0.11) * (float)(i % 5 == rank % 5 ? 1e6 : 1e-3);
}

static float tree_sum(const float *x, int n) {
    float part[MAX_RANKS];
    memcpy(part, x, (size_t)n * sizeof *x);
    for (int left = n; left > 1; left = (left + 1) / 2)
        for (int i = 0; i < left; i += 2)
            part[i / 2] = i + 1 < left ? part[i] + part[i + 1] : part[i];
    return part[0];
}

static void reduce_floats(comm *c) {
    for (int n = 0; n <= N; n += n < 9 ? 1 : 14)
        for (int in_place = 0; in_place < 2; in_place++) {
            float x[N + 1], y[N + 1], all[MAX_RANKS];
            for (int i = 0; i <= N; i++)
                x[i] = value_of(c->rank, i), y[i] = -1;
            float *to = in_place ? x : y;
            all_reduce_args a = {COMM_F32, COMM_SUM, n, x, to};
            CHECK_OK(c->ops->all_reduce(c, &a));
            for (int i = 0; i < n; i++) {
                for (int r = 0; r < c->size; r++)
                    all[r] = value_of(r, i);
                float want = tree_sum(all, c->size);
                CHECK(memcmp(&to[i], &want, sizeof want) == 0);
            }
            for (int i = n; i <= N; i++)
                CHECK(to[i] == (in_place ? value_of(c->rank, i) : -1));
        }
}

TEST(host_comm_sums_floats_by_the_tree) {
    at_all_sizes(reduce_floats);
}

static void reduce_others(comm *c) {
    int64_t x[N], most[N];
    double y[N], sum[N];
    for (int i = 0; i < N; i++)
        x[i] = (int64_t)(c->rank * 7 % 5 - i) * 0x100000001, y[i] = c->rank + i * 0.5;
    all_reduce_args a = {COMM_I64, COMM_MAX, N, x, most}, b = {COMM_F64, COMM_SUM, N, y, sum};
    CHECK_OK(c->ops->all_reduce(c, &a));
    CHECK_OK(c->ops->all_reduce(c, &b));
    for (int i = 0; i < N; i++) {
        int64_t want = INT64_MIN;
        double total = 0;
        for (int r = 0; r < c->size; r++) {
            int64_t v = (int64_t)(r * 7 % 5 - i) * 0x100000001;
            want = v > want ? v : want;
            total += r + i * 0.5;
        }
        CHECK_EQ(most[i], want);
        CHECK(sum[i] == total);
    }
    a.rule = COMM_SUM;
    CHECK_OK(c->ops->all_reduce(c, &a));
    for (int i = 0; i < N; i++) {
        int64_t want = 0;
        for (int r = 0; r < c->size; r++)
            want += (int64_t)(r * 7 % 5 - i) * 0x100000001;
        CHECK_EQ(most[i], want);
    }
}

TEST(host_comm_reduces_integers_and_doubles) {
    at_all_sizes(reduce_others);
}

/* Rank s sends (s + r) % 4 rows of 12 bytes to rank r. */
static void exchange_rows(comm *c) {
    int64_t n_send[MAX_RANKS], n_receive[MAX_RANKS], at = 0;
    int32_t from[MAX_RANKS * 9], to[MAX_RANKS * 9];
    for (int r = 0; r < c->size; r++) {
        n_send[r] = n_receive[r] = (c->rank + r) % 4;
        for (int64_t i = 0; i < n_send[r] * 3; i++)
            from[at++] = (int32_t)(c->rank * 1000 + r * 100 + i);
    }
    memset(to, 0xff, sizeof to);
    all_to_all_args a = {
        .row_bytes = 12, .n_send = n_send, .n_receive = n_receive, .from = from, .to = to};
    CHECK_OK(c->ops->all_to_all(c, &a));
    at = 0;
    for (int r = 0; r < c->size; r++)
        for (int64_t i = 0; i < n_receive[r] * 3; i++)
            CHECK_EQ(to[at++], r * 1000 + c->rank * 100 + i);
    for (; at < MAX_RANKS * 9; at++)
        CHECK_EQ(to[at], -1);
}

TEST(host_comm_exchanges_rows) {
    at_all_sizes(exchange_rows);
}

static void gather_rows(comm *c) {
    int64_t n_rows[MAX_RANKS], first = 0, n = 0;
    int64_t from[8], to[MAX_RANKS * 4];
    for (int r = 0; r < c->size; r++) {
        n_rows[r] = (r * 2 + 1) % 4;
        if (r < c->rank) first += n_rows[r];
        n += n_rows[r];
    }
    for (int in_place = 0; in_place < 2; in_place++) {
        memset(to, 0, sizeof to);
        int64_t *own = in_place ? to + first : from;
        for (int64_t i = 0; i < n_rows[c->rank]; i++)
            own[i] = c->rank * 10 + i;
        all_gather_args a = {.row_bytes = 8, .n_rows = n_rows, .from = own, .to = to};
        CHECK_OK(c->ops->all_gather(c, &a));
        int64_t at = 0;
        for (int r = 0; r < c->size; r++)
            for (int64_t i = 0; i < n_rows[r]; i++)
                CHECK_EQ(to[at++], r * 10 + i);
        CHECK_EQ(at, n);
    }
}

TEST(host_comm_gathers_rows) {
    at_all_sizes(gather_rows);
}

static void send_to_all(comm *c) {
    for (int root = 0; root < c->size; root++) {
        char text[100];
        memset(text, 'a' + c->rank, sizeof text);
        CHECK_OK(c->ops->broadcast(c, text, 99, root));
        for (int i = 0; i < 99; i++)
            CHECK_EQ(text[i], 'a' + root);
        CHECK_EQ(text[99], 'a' + c->rank);
        CHECK_OK(c->ops->broadcast(c, NULL, 0, root));
        CHECK_OK(c->ops->barrier(c));
    }
    CHECK_FAILS(c->ops->broadcast(c, NULL, 0, c->size), ERR_USAGE, "there is no rank");
    c->ops->note_step(c, 3);
}

TEST(host_comm_broadcasts) {
    at_all_sizes(send_to_all);
}

/* After a failure nothing else is tried. */
TEST(host_comm_fails_for_good) {
    shm_job *job;
    transport *t;
    backend *be;
    comm *c;
    float x = 1;
    all_reduce_args a = {COMM_F32, COMM_SUM, 1, &x, &x};
    CHECK_OK(shm_job_create(&job, 2, 0));
    CHECK_OK(backend_create_cpu(&be, NULL));
    CHECK_OK(shm_create(&t, job, 0));
    CHECK_OK(comm_create_host(&c, be, t));
    CHECK(shm_job_fail(job, 1));
    CHECK_FAILS(c->ops->all_reduce(c, &a), ERR_IO, "rank 1 failed");
    CHECK_FAILS(c->ops->all_reduce(c, &a), ERR_IO, "lost their connection");
    CHECK_FAILS(c->ops->barrier(c), ERR_IO, "lost their connection");
    comm_destroy(c);
    transport_destroy(t);
    backend_destroy(be);
    shm_job_destroy(job);
}

static status refuse_alloc(backend *be, void **out, size_t bytes) {
    (void)be;
    *out = NULL;
    return fail(ERR_NOMEM, "%zu bytes of a GPU that is full", bytes);
}

static status refuse_copy(backend *be, void *to, const void *from, size_t bytes) {
    (void)be, (void)to, (void)from;
    return fail(ERR_DEVICE, "%zu bytes are not copied", bytes);
}

/* Numbers of the host do not go through memory of a GPU. */
static void *gpu_member(void *arg) {
    member *m = arg;
    transport *t;
    backend *be;
    comm *c;
    int64_t value = m->rank + 1, all[3] = {0}, one[3] = {1, 1, 1}, own[3], got[3] = {0};
    CHECK_OK(backend_create_cpu(&be, NULL));
    ops full = *be->ops;
    backend gpu = *be;
    full.alloc = refuse_alloc;
    full.copy_in = refuse_copy;
    full.copy_out = refuse_copy;
    gpu.ops = &full;
    gpu.name = "cuda:0";
    gpu.is_host = false;
    CHECK_OK(shm_create(&t, m->job, m->rank));
    CHECK_OK(comm_create_host(&c, &gpu, t));
    CHECK_OK(comm_host_reduce(c, COMM_I64, COMM_SUM, 1, &value));
    CHECK_EQ(value, 6);
    for (int r = 0; r < 3; r++)
        own[r] = 10 * m->rank + r;
    CHECK_OK(comm_host_gather(c, &(all_gather_args){sizeof *own, one, own, all}));
    CHECK_OK(comm_host_exchange(c, &(all_to_all_args){sizeof *own, one, one, own, got}));
    for (int r = 0; r < 3; r++)
        CHECK(all[r] == 10 * r && got[r] == 10 * r + m->rank);
    CHECK_OK(comm_host_broadcast(c, &value, sizeof value, 1));
    /* What is on the GPU cannot be read: no call after it waits for the others. */
    all_reduce_args a = {COMM_I64, COMM_SUM, 1, &value, &value};
    CHECK_FAILS(c->ops->all_reduce(c, &a), ERR_DEVICE, "8 bytes are not copied");
    CHECK_FAILS(c->ops->all_reduce(c, &a), ERR_DEVICE, "8 bytes are not copied");
    CHECK_FAILS(c->ops->barrier(c), ERR_IO, "lost their connection earlier");
    CHECK_FAILS(comm_host_agree(c, OK), ERR_IO, "lost their connection earlier");
    comm_destroy(c);
    transport_destroy(t);
    backend_destroy(be);
    return NULL;
}

TEST(host_comm_of_gpus_keeps_numbers_on_the_host) {
    member m[3];
    shm_job *job;
    CHECK_OK(shm_job_create(&job, 3, 0));
    for (int i = 0; i < 3; i++) {
        m[i] = (member){.job = job, .rank = i};
        CHECK(pthread_create(&m[i].thread, NULL, gpu_member, &m[i]) == 0);
    }
    for (int i = 0; i < 3; i++)
        pthread_join(m[i].thread, NULL);
    shm_job_destroy(job);
}

/* A rank that has given up waits for nobody. */
TEST(host_comm_gives_up) {
    shm_job *job;
    transport *t;
    backend *be;
    comm *c;
    int64_t x = 1;
    CHECK_OK(shm_job_create(&job, 2, 0));
    CHECK_OK(backend_create_cpu(&be, NULL));
    CHECK_OK(shm_create(&t, job, 0));
    CHECK_OK(comm_create_host(&c, be, t));
    comm_give_up(c);
    CHECK_FAILS(comm_host_reduce(c, COMM_I64, COMM_MAX, 1, &x), ERR_IO,
                "lost their connection earlier");
    comm_destroy(c);
    comm_give_up(NULL);
    transport_destroy(t);
    backend_destroy(be);
    shm_job_destroy(job);
}

static status create(void *ctx) {
    transport *t = ctx;
    backend *be = NULL;
    comm *c = NULL;
    status st = backend_create_cpu(&be, NULL);
    if (st == OK) st = comm_create_host(&c, be, t);
    CHECK((st == OK) == (c != NULL));
    comm_destroy(c);
    backend_destroy(be);
    return st;
}

TEST(host_comm_out_of_memory) {
    shm_job *job;
    transport *t;
    CHECK_OK(shm_job_create(&job, 1, 0));
    CHECK_OK(shm_create(&t, job, 0));
    CHECK(oom_at_each_allocation(create, t) >= 6);
    transport_destroy(t);
    shm_job_destroy(job);
}

/* Groups of ranks that exchange among themselves, over shared memory and over TCP. */

enum { MOST_IN_GROUPS = 6, N_VALUES = 300 };

typedef struct grid_member {
    shm_job *job; /* or NULL: by TCP */
    int rank, size, port, tensor;
    pthread_t thread;
} grid_member;

/* x[i] of each rank, summed over the ranks of a group. */
static void reduce(comm *c, const rank_group *g) {
    int64_t x[N_VALUES];
    for (int i = 0; i < N_VALUES; i++)
        x[i] = 1000 * rank_of_group(g, c->rank) + i;
    all_reduce_args a = {COMM_I64, COMM_SUM, N_VALUES, x, x};
    CHECK_OK(c->ops->all_reduce(c, &a));
    for (int i = 0; i < N_VALUES; i++) {
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

static void *group_member_main(void *arg) {
    const grid_member *m = arg;
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

static void with_groups(int size, int tensor, bool is_tcp) {
    grid_member m[MOST_IN_GROUPS];
    shm_job *job = NULL;
    int fd, port = 0;
    if (is_tcp) {
        CHECK_OK(net_listen(&fd, "127.0.0.1", 0, &port));
        net_close(&fd);
    } else {
        CHECK_OK(shm_job_create(&job, size, 40 * (size_t)size)); /* messages take many rounds */
    }
    for (int i = 0; i < size; i++) {
        m[i] = (grid_member){.job = job, .rank = i, .size = size, .port = port, .tensor = tensor};
        CHECK(pthread_create(&m[i].thread, NULL, group_member_main, &m[i]) == 0);
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
        with_groups(2, 2, is_tcp);
        with_groups(4, 2, is_tcp);
        with_groups(6, 2, is_tcp);
        with_groups(6, 3, is_tcp);
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
    CHECK_FAILS(transport_group(&again, g, &(rank_group){0, 1, 1}), ERR_USAGE,
                "cannot be divided again");
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
    grid_member *m = ctx;
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
    grid_member m = {0};
    CHECK_OK(shm_job_create(&m.job, 4, 0));
    CHECK(oom_at_each_allocation(make_grid, &m) > 8);
    shm_job_destroy(m.job);
}
