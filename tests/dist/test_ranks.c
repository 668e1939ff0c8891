/* A rank with another program, config, data or clock is named by all; and when ranks use NCCL. */
#include "dist/ranks.h"

#include <pthread.h>

#include "base/log.h"
#include "base/range.h"
#include "base/thread.h"
#include "dist/nccl.h"
#include "dist/shm.h"
#include "test.h"

typedef struct member {
    shm_job *job;
    int rank;
    rank_facts facts;
    status st;
    char reason[512];
    pthread_t thread;
} member;

static void *member_main(void *arg) {
    member *m = arg;
    transport *t;
    CHECK_OK(shm_create(&t, m->job, m->rank));
    m->st = ranks_agree(t, &m->facts);
    snprintf(m->reason, sizeof m->reason, "%s", m->st != OK ? status_reason() : "");
    transport_destroy(t);
    return NULL;
}

/* Rank 2 of 3 differs by what `change` does. */
static void check(void (*change)(rank_facts *f), const char *want) {
    member m[3];
    shm_job *job;
    CHECK_OK(shm_job_create(&job, 3, 0));
    for (int r = 0; r < 3; r++) {
        m[r] = (member){.job = job, .rank = r, .facts = rank_facts_here()};
        if (r == 2) change(&m[r].facts);
        CHECK(pthread_create(&m[r].thread, NULL, member_main, &m[r]) == 0);
    }
    for (int r = 0; r < 3; r++) {
        pthread_join(m[r].thread, NULL);
        CHECK_EQ(m[r].st, want == NULL ? OK : ERR_CONFIG);
        if (want != NULL) CHECK_CONTAINS(m[r].reason, want);
    }
    shm_job_destroy(job);
}

static void change_nothing(rank_facts *f) {
    f->clock_s += AGREE_CLOCK_S / 2;
}

static void change_version(rank_facts *f) {
    snprintf(f->version, sizeof f->version, "9.9.9");
    snprintf(f->host, sizeof f->host, "node7");
}

static void change_config(rank_facts *f) {
    f->config = 1;
}

static void change_data(rank_facts *f) {
    f->data = 1;
}

static void change_clock(rank_facts *f) {
    f->clock_s -= 1000;
}

static void change_clock_ahead(rank_facts *f) {
    f->clock_s += 1000;
}

TEST(agree_names_the_rank_that_differs) {
    check(change_nothing, NULL);
    check(change_version, "rank 2 on node7 has hstu 9.9.9, rank 0 on ");
    check(change_config, "uses a different config or different options than rank 0");
    check(change_data, "uses different data than rank 0");
    check(change_clock, "behind that of rank 0");
    check(change_clock_ahead, "ahead of that of rank 0");
    CHECK_OK(ranks_agree(NULL, NULL));
}

/* What ranks tell each other of their GPU and NCCL; rank 1 says `other`. */
typedef struct said {
    uint64_t gpu;
    int64_t version;
} said;

static said own, other;

static status exchange_with_other(transport *t, const exchange_args *a) {
    for (int r = 0; r < t->size; r++)
        memcpy(a->to[r], a->from[r], (size_t)a->n_from[r]);
    if (a->n_from[0] != sizeof own) return OK; /* NCCL's number of the job */
    memcpy(&own, a->from[0], sizeof own);
    if (other.gpu == 2) other.gpu = own.gpu;
    memcpy(a->to[1], &other, sizeof other);
    return OK;
}

/* A library with NCCL's functions, of version 2.20.5, which do nothing. */
static const char *fake_nccl(void) {
    static char path[4096];
    snprintf(path, sizeof path, "%s/libnccl.so.2", test_folder());
    if (test_command(NULL, "command -v cc") != 0) SKIP_TEST("no C compiler");
    CHECK_EQ(test_command(NULL,
                          "cd '%s' && { echo 'int ncclGetVersion(int *v) { *v = 22005; return 0; }"
                          " int ncclGetUniqueId(char *id) { *id = 7; return 0; }'; for f in "
                          "CommInitRank CommDestroy CommAbort "
                          "CommGetAsyncError GetErrorString AllReduce Broadcast Send Recv "
                          "GroupStart GroupEnd; do echo \"int nccl$f() { return 0; }\"; done; } "
                          ">n.c && cc -w -shared -fPIC n.c -o libnccl.so.2",
                          test_folder()),
             0);
    return path;
}

TEST(ranks_use_nccl_where_all_can) {
    const char *path = fake_nccl();
    const struct {
        const char *nccl;
        bool is_host;
        said other; /* gpu 2: rank 0's */
        const char *fails;
        bool is_nccl;
    } cases[] = {{path, false, {1, 22005}, NULL, true},
                 {test_folder(), false, {1, 22005}, NULL, true},
                 {path, false, {2, 22005}, NULL, true}, /* shared, but asked for */
                 {path, false, {1, 0}, "rank 1 did not find NCCL", false},
                 {path, false, {1, 22006}, "rank 1 has another version of NCCL than rank 0", false},
                 {path, false, {0, 0}, NULL, false}, /* a rank on the CPU */
                 {path, true, {1, 22005}, NULL, false},
                 {"off", false, {1, 22005}, NULL, false},
                 {"/nowhere", false, {1, 22005}, "--nccl /nowhere: /nowhere: cannot open", false}};
    const transport_ops alone = {.exchange = exchange_with_other};
    log_set_level(LOG_QUIET);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        transport t = {.ops = &alone, .size = 2};
        rank_options o = {.nccl = cases[i].nccl};
        backend *be;
        comm *c;
        CHECK_OK(backend_create_cpu(&be, NULL));
        be->is_host = cases[i].is_host;
        other = cases[i].other;
        status st = comm_create_ranks(&c, be, &t, &o);
        be->is_host = true;
        if (cases[i].fails != NULL) CHECK_FAILS(st, ERR_UNSUPPORTED, cases[i].fails);
        if (cases[i].fails == NULL && (st != OK || comm_is_nccl(c) != cases[i].is_nccl))
            FAIL_TEST("case %zu: %s", i, st != OK ? status_reason() : "the other communicator");
        bool asks = !cases[i].is_host && cases[i].nccl == path;
        CHECK(own.version == (asks || cases[i].nccl == test_folder() ? 22005 : 0));
        CHECK_EQ(own.gpu == 0, cases[i].is_host);
        comm_destroy(c);
        backend_destroy(be);
    }
}
