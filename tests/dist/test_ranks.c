/* A rank with another program, config, data or clock is named by all. */
#include "dist/ranks.h"

#include <pthread.h>

#include "base/range.h"
#include "base/thread.h"
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

TEST(agree_names_the_rank_that_differs) {
    check(change_nothing, NULL);
    check(change_version, "rank 2 on node7 has hstu 9.9.9, rank 0 on ");
    check(change_config, "uses a different config or different options than rank 0");
    check(change_data, "uses different data than rank 0");
    check(change_clock, "behind that of rank 0");
    CHECK_OK(ranks_agree(NULL, NULL));
}
