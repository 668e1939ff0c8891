/* NCCL's communicator on a library of our own that has NCCL's functions: ranks are threads, memory
 * is the host's, and sums are added from the last rank to the first, an order that no caller
 * counts on. */
#include <pthread.h>

#include "base/half.h"
#include "base/mem.h"
#include "dist/nccl.h"
#include "dist/ranks.h"
#include "dist/shm.h"
#include "dist/transport.h"
#include "ops/comm.h"
#include "test.h"

enum { MAX_RANKS = 8, N = 37, MAX_CALLS = 64 };

/* A message that is on its way from one rank to another. */
typedef struct mail {
    void *bytes;
    size_t n;
} mail;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static mail box[MAX_RANKS][MAX_RANKS];
static int n_sums, n_destroyed, n_aborted, error_to_come;

typedef struct fake_comm {
    int rank, size;
} fake_comm;

typedef struct call {
    void *memory;
    size_t n;
    int rank;
    bool is_receive;
    fake_comm *comm;
} call;

static _Thread_local call calls[MAX_CALLS];
static _Thread_local int n_calls;
static _Thread_local bool is_group;

static int fake_get_id(nccl_id *id) {
    memset(id, 7, sizeof *id);
    return 0;
}

static int fake_init_rank(void **peer, int size, nccl_id id, int rank) {
    fake_comm *c;
    CHECK(id.bytes[0] == 7 && id.bytes[NCCL_ID_BYTES - 1] == 7);
    CHECK_OK(MEM_NEW(&c, 1));
    *c = (fake_comm){rank, size};
    *peer = c;
    return 0;
}

static int count_and_free(void *peer, int *counter) {
    pthread_mutex_lock(&lock);
    ++*counter;
    pthread_mutex_unlock(&lock);
    mem_free(peer);
    return 0;
}

static int fake_destroy(void *peer) {
    return count_and_free(peer, &n_destroyed);
}

static int fake_abort(void *peer) {
    return count_and_free(peer, &n_aborted);
}

static int fake_async_error(void *peer, int *error) {
    (void)peer;
    *error = error_to_come;
    return 0;
}

static const char *fake_error_text(int error) {
    return error == 6 ? "remote process exited" : "other";
}

static void post(const call *c) {
    mail *m = &box[c->comm->rank][c->rank];
    while (m->bytes != NULL)
        pthread_cond_wait(&changed, &lock);
    CHECK_OK(mem_alloc(&m->bytes, c->n, 1));
    memcpy(m->bytes, c->memory, c->n);
    m->n = c->n;
    pthread_cond_broadcast(&changed);
}

static void take(const call *c) {
    mail *m = &box[c->rank][c->comm->rank];
    while (m->bytes == NULL)
        pthread_cond_wait(&changed, &lock);
    CHECK_EQ(m->n, c->n);
    memcpy(c->memory, m->bytes, c->n);
    mem_free(m->bytes);
    m->bytes = NULL;
    pthread_cond_broadcast(&changed);
}

static int fake_group_start(void) {
    CHECK(!is_group);
    is_group = true;
    return 0;
}

static int fake_group_end(void) {
    CHECK(is_group);
    pthread_mutex_lock(&lock);
    for (int i = 0; i < n_calls; i++)
        if (!calls[i].is_receive) post(&calls[i]);
    for (int i = 0; i < n_calls; i++)
        if (calls[i].is_receive) take(&calls[i]);
    pthread_mutex_unlock(&lock);
    n_calls = 0;
    is_group = false;
    return 0;
}

static int add_call(call c) {
    CHECK(is_group && n_calls < MAX_CALLS && c.n > 0 && c.rank != c.comm->rank);
    calls[n_calls++] = c;
    return 0;
}

static int fake_send(const void *from, size_t n, int type, int rank, void *peer, void *stream) {
    CHECK(type == NCCL_U8 && stream == NULL);
    return add_call((call){(void *)from, n, rank, false, peer});
}

static int fake_receive(void *to, size_t n, int type, int rank, void *peer, void *stream) {
    CHECK(type == NCCL_U8 && stream == NULL);
    return add_call((call){to, n, rank, true, peer});
}

static int fake_broadcast(const void *from, void *to, size_t n, int type, int root, void *peer,
                          void *stream) {
    fake_comm *c = peer;
    fake_group_start();
    for (int r = 0; r < c->size && c->rank == root; r++)
        if (r != root) fake_send(from, n, type, r, c, stream);
    if (c->rank != root) fake_receive(to, n, type, root, c, stream);
    return fake_group_end();
}

static comm_type type_of(int type) {
    return type == NCCL_F32   ? COMM_F32
           : type == NCCL_F64 ? COMM_F64
           : type == NCCL_I64 ? COMM_I64
                              : COMM_U8;
}

static int fake_all_reduce(const void *from, void *to, size_t n, int type, int rule, void *peer,
                           void *stream) {
    fake_comm *c = peer;
    size_t bytes = n * comm_type_bytes(type_of(type));
    char *all;
    CHECK_OK(mem_alloc((void **)&all, bytes * (size_t)c->size, 1));
    fake_group_start();
    for (int r = 0; r < c->size; r++) {
        if (r == c->rank) continue;
        fake_send(from, bytes, NCCL_U8, r, c, stream);
        fake_receive(all + (size_t)r * bytes, bytes, NCCL_U8, r, c, stream);
    }
    fake_group_end();
    memcpy(all + (size_t)c->rank * bytes, from, bytes);
    memcpy(to, all + (size_t)(c->size - 1) * bytes, bytes);
    for (int r = c->size - 2; r >= 0; r--)
        combine_host(type_of(type), rule == NCCL_SUM ? COMM_SUM : COMM_MAX, (int64_t)n,
                     all + (size_t)r * bytes, to);
    mem_free(all);
    pthread_mutex_lock(&lock);
    n_sums++;
    pthread_mutex_unlock(&lock);
    return 0;
}

static const nccl_lib fake = {.version = 23003,
                              .path = "a test",
                              .get_id = fake_get_id,
                              .init_rank = fake_init_rank,
                              .destroy = fake_destroy,
                              .abort = fake_abort,
                              .async_error = fake_async_error,
                              .error_text = fake_error_text,
                              .all_reduce = fake_all_reduce,
                              .broadcast = fake_broadcast,
                              .send = fake_send,
                              .receive = fake_receive,
                              .group_start = fake_group_start,
                              .group_end = fake_group_end};

typedef struct member {
    shm_job *job;
    int rank;
    bool is_fixed;
    void (*fn)(comm *c, bool is_fixed);
    pthread_t thread;
} member;

static void *member_main(void *arg) {
    member *m = arg;
    transport *t;
    backend *be;
    comm *c;
    CHECK_OK(backend_create_cpu(&be, NULL));
    CHECK_OK(shm_create(&t, m->job, m->rank));
    CHECK_OK(comm_create_nccl(&c, be, t, &fake, m->is_fixed));
    CHECK(c->rank == m->rank && c->size == m->job->size);
    m->fn(c, m->is_fixed);
    comm_destroy(c);
    transport_destroy(t);
    backend_destroy(be);
    return NULL;
}

static void with_ranks(int size, bool is_fixed, void (*fn)(comm *c, bool is_fixed)) {
    member m[MAX_RANKS];
    shm_job *job;
    n_sums = n_destroyed = n_aborted = error_to_come = 0;
    CHECK_OK(shm_job_create(&job, size, 0));
    for (int i = 0; i < size; i++) {
        m[i] = (member){.job = job, .rank = i, .is_fixed = is_fixed, .fn = fn};
        CHECK(pthread_create(&m[i].thread, NULL, member_main, &m[i]) == 0);
    }
    for (int i = 0; i < size; i++)
        pthread_join(m[i].thread, NULL);
    shm_job_destroy(job);
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

static float sum_backwards(const float *x, int n) {
    float sum = x[n - 1];
    for (int i = n - 2; i >= 0; i--)
        sum += x[i];
    return sum;
}

static void reduce_floats(comm *c, bool is_fixed) {
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
                float want = is_fixed ? tree_sum(all, c->size) : sum_backwards(all, c->size);
                CHECK(memcmp(&to[i], &want, sizeof want) == 0);
            }
            for (int i = n; i <= N; i++)
                CHECK(to[i] == (in_place ? value_of(c->rank, i) : -1));
        }
}

TEST(nccl_sums_floats_by_the_tree_or_as_the_library_does) {
    for (int size = 1; size <= MAX_RANKS; size++) {
        with_ranks(size, true, reduce_floats);
        CHECK_EQ(n_sums, 0);
        CHECK_EQ(n_destroyed, size);
        with_ranks(size, false, reduce_floats);
        CHECK(n_sums > 0);
        CHECK_EQ(n_aborted, 0);
    }
}

static void reduce_others(comm *c, bool is_fixed) {
    int64_t x[N];
    uint8_t marks[N];
    double sum[N];
    (void)is_fixed;
    for (int i = 0; i < N; i++) {
        x[i] = (int64_t)(c->rank * 7 % 5 - i) * 0x100000001;
        marks[i] = i % c->size == c->rank;
        sum[i] = c->rank + i * 0.5;
    }
    all_reduce_args a = {COMM_I64, COMM_MAX, N, x, x}, b = {COMM_U8, COMM_MAX, N, marks, marks},
                    d = {COMM_F64, COMM_SUM, N, sum, sum};
    CHECK_OK(c->ops->all_reduce(c, &a));
    CHECK_OK(c->ops->all_reduce(c, &b));
    CHECK_OK(c->ops->all_reduce(c, &d));
    for (int i = 0; i < N; i++) {
        int64_t most = INT64_MIN;
        double total = 0;
        for (int r = 0; r < c->size; r++) {
            int64_t v = (int64_t)(r * 7 % 5 - i) * 0x100000001;
            most = v > most ? v : most;
            total += r + i * 0.5;
        }
        CHECK_EQ(x[i], most);
        CHECK_EQ(marks[i], 1);
        CHECK(sum[i] == total);
    }
}

TEST(nccl_reduces_integers_marks_and_doubles) {
    with_ranks(3, true, reduce_others);
    with_ranks(4, false, reduce_others);
}

/* Rank s sends (s + r) % 3 rows to rank r: some send nothing. */
static void exchange(comm *c, bool is_fixed) {
    int64_t n_send[MAX_RANKS], n_receive[MAX_RANKS], from[3 * MAX_RANKS][2],
        to[3 * MAX_RANKS + 1][2];
    int n_from = 0, at = 0;
    (void)is_fixed;
    memset(to, 0xff, sizeof to);
    for (int r = 0; r < c->size; r++) {
        n_send[r] = n_receive[r] = (c->rank + r) % 3;
        for (int64_t i = 0; i < n_send[r]; i++, n_from++)
            from[n_from][0] = c->rank * 100 + r, from[n_from][1] = i;
    }
    all_to_all_args a = {sizeof from[0], n_send, n_receive, from, to};
    CHECK_OK(c->ops->all_to_all(c, &a));
    for (int r = 0; r < c->size; r++)
        for (int64_t i = 0; i < n_receive[r]; i++, at++) {
            CHECK_EQ(to[at][0], r * 100 + c->rank);
            CHECK_EQ(to[at][1], i);
        }
    CHECK_EQ(to[at][0], -1);
    for (int r = 0; r < c->size; r++)
        n_receive[r] = r % 3;
    for (int i = 0; i < 3; i++)
        from[i][0] = c->rank, from[i][1] = i;
    all_gather_args g = {sizeof from[0], n_receive, from, to};
    CHECK_OK(c->ops->all_gather(c, &g));
    at = 0;
    for (int r = 0; r < c->size; r++)
        for (int64_t i = 0; i < n_receive[r]; i++, at++)
            CHECK(to[at][0] == r && to[at][1] == i);
    for (int root = 0; root < c->size; root++) {
        int64_t word = c->rank == root ? 1000 + root : -1;
        CHECK_OK(c->ops->broadcast(c, &word, sizeof word, root));
        CHECK_EQ(word, 1000 + root);
    }
    CHECK_FAILS(c->ops->broadcast(c, from, 1, c->size), ERR_USAGE, "there is no rank");
    CHECK_OK(c->ops->barrier(c));
}

TEST(nccl_exchanges_rows) {
    for (int size = 1; size <= MAX_RANKS; size++)
        with_ranks(size, false, exchange);
}

/* What NCCL notices later fails the next call, and every call after it; then nothing waits. */
static void meet_an_error(comm *c, bool is_fixed) {
    float x = 1;
    all_reduce_args a = {COMM_F32, COMM_SUM, 1, &x, &x};
    (void)is_fixed;
    CHECK_OK(c->ops->all_reduce(c, &a));
    CHECK_OK(c->ops->barrier(c));
    error_to_come = 6;
    CHECK_FAILS(c->ops->all_reduce(c, &a), ERR_IO, "remote process exited");
    CHECK_FAILS(c->ops->all_reduce(c, &a), ERR_IO, "lost their connection earlier");
    CHECK_FAILS(c->ops->barrier(c), ERR_IO, "lost their connection earlier");
}

TEST(nccl_errors_of_other_ranks_end_every_call) {
    with_ranks(1, true, meet_an_error);
    CHECK_EQ(n_aborted, 1);
    CHECK_EQ(n_destroyed, 0);
}

/* Numbers of the host go by the transport; and a rank that has given up waits for nobody, at its
 * end neither. */
static void agree_and_give_up(comm *c, bool is_fixed) {
    int64_t sum = c->rank + 1;
    float x = 1;
    all_reduce_args a = {COMM_F32, COMM_SUM, 1, &x, &x};
    (void)is_fixed;
    CHECK_OK(comm_host_reduce(c, COMM_I64, COMM_SUM, 1, &sum));
    CHECK_EQ(sum, c->size * (c->size + 1) / 2);
    CHECK_OK(c->ops->barrier(c));
    if (c->rank == 1) comm_give_up(c);
    if (c->rank == 1)
        CHECK_FAILS(c->ops->all_reduce(c, &a), ERR_IO, "lost their connection earlier");
    if (c->rank == 1) CHECK_FAILS(comm_host_agree(c, OK), ERR_IO, "lost their connection earlier");
}

TEST(nccl_ranks_that_give_up_do_not_wait) {
    with_ranks(3, false, agree_and_give_up);
    CHECK_EQ(n_sums, 0);
    CHECK_EQ(n_aborted, 1);
    CHECK_EQ(n_destroyed, 2);
}

TEST(nccl_library_that_is_not_there_or_not_nccl) {
    nccl_lib lib;
    CHECK_FAILS(nccl_lib_load(&lib, "/nowhere/libnccl.so.2"), ERR_UNSUPPORTED,
                "/nowhere/libnccl.so.2");
    CHECK_FAILS(nccl_lib_load(&lib, "/proc"), ERR_UNSUPPORTED, "/proc/libnccl.so.2");
    CHECK_FAILS(nccl_lib_load(&lib, "libm.so.6"), ERR_UNSUPPORTED, "not NCCL");
}

/* The group of all ranks: a communicator of its own, whose sums of floats go by the tree, 16-bit
 * ones too, whatever the other one does. */
static void *grid_main(void *arg) {
    member *m = arg;
    transport *t;
    backend *be;
    comm *c;
    rank_grid g;
    CHECK_OK(backend_create_cpu(&be, NULL));
    CHECK_OK(shm_create(&t, m->job, m->rank));
    CHECK_OK(comm_create_nccl(&c, be, t, &fake, false));
    CHECK_OK(rank_grid_create(&g, t, be, c, 2));
    CHECK(comm_is_nccl(c) && comm_is_nccl(g.group) && g.data == NULL && !comm_is_nccl(NULL));
    CHECK(g.group != c && g.group->rank == m->rank && g.group->size == 2);
    reduce_floats(g.group, true);
    uint16_t x[3];
    for (int i = 0; i < 3; i++)
        x[i] = half_bf16_from_float((float)(i + 1) + (float)m->rank * 0.25f);
    all_reduce_args a = {COMM_BF16, COMM_SUM, 3, x, x};
    CHECK_OK(g.group->ops->all_reduce(g.group, &a));
    for (int i = 0; i < 3; i++)
        CHECK_EQ(x[i], half_bf16_from_float(2 * (float)(i + 1) + 0.25f));
    rank_grid_destroy(&g);
    comm_destroy(c);
    transport_destroy(t);
    backend_destroy(be);
    return NULL;
}

TEST(nccl_groups_have_their_own_communicators) {
    member m[2];
    shm_job *job;
    n_sums = n_destroyed = n_aborted = error_to_come = 0;
    CHECK_OK(shm_job_create(&job, 2, 0));
    for (int i = 0; i < 2; i++) {
        m[i] = (member){.job = job, .rank = i};
        CHECK(pthread_create(&m[i].thread, NULL, grid_main, &m[i]) == 0);
    }
    for (int i = 0; i < 2; i++)
        pthread_join(m[i].thread, NULL);
    CHECK_EQ(n_sums, 0);
    CHECK_EQ(n_destroyed, 4);
    shm_job_destroy(job);
}
