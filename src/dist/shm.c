#include "dist/shm.h"

#include <limits.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/range.h"

enum { WINDOW_BYTES = 1 << 20, N_SPINS = 2000, WAIT_NS = 50000000 };

typedef struct shm_state {
    shm_job *job;
    shm_circle circle;
    rank_group group;
    shm_meeting *meeting;
    unsigned round; /* rounds of exchanges so far: its parity chooses the window */
    bool may_spin;  /* there is a core for every rank */
} shm_state;

status shm_job_create(shm_job **out, int size, size_t window_bytes) {
    *out = NULL;
    if (size < 1 || size > SHM_MAX_RANKS)
        return fail(ERR_USAGE, "%d ranks; one machine can have 1 to %d", size, SHM_MAX_RANKS);
    if (window_bytes == 0) window_bytes = WINDOW_BYTES;
    if (window_bytes < (size_t)size) window_bytes = (size_t)size;
    /* Windows that nothing is written to take no memory. */
    size_t bytes = sizeof(shm_job) + SHM_CIRCLES * 2 * (size_t)size * window_bytes;
    shm_job *job = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (job == MAP_FAILED) return fail_errno("memory that %d ranks share", size);
    job->bytes = bytes;
    job->window_bytes = window_bytes;
    job->size = size;
    *out = job;
    return OK;
}

void shm_job_destroy(shm_job *job) {
    if (job != NULL) munmap(job, job->bytes);
}

/* Wakes every rank that waits at a barrier. */
static void wake_all(shm_meeting *m) {
    syscall(SYS_futex, &m->n_passed, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

bool shm_job_fail(shm_job *job, int rank) {
    int none = 0;
    bool is_first = atomic_compare_exchange_strong(&job->failed, &none, rank + 1);
    for (int r = 0; r < job->size; r++)
        for (int i = 0; i < SHM_CIRCLES; i++)
            wake_all(&job->rank[r].meeting[i]);
    return is_first;
}

static status lost(const shm_job *job) {
    int failed = atomic_load(&job->failed);
    if (failed > 0) return fail(ERR_IO, "rank %d failed, so the job ends", failed - 1);
    return fail(ERR_IO, "a rank has left the job too early");
}

/* The time-out only bounds how late a rank notices that another one has ended. */
static status wait_for_others(shm_state *s, unsigned passed) {
    shm_job *job = s->job;
    shm_meeting *m = s->meeting;
    const struct timespec most = {.tv_nsec = WAIT_NS};
    for (int i = 0; s->may_spin && i < N_SPINS; i++)
        if (atomic_load(&m->n_passed) != passed) return OK;
    wait_kind before = waits_begin(WAIT_RANKS);
    bool is_over = false;
    while (!is_over && atomic_load(&m->n_passed) == passed) {
        syscall(SYS_futex, &m->n_passed, FUTEX_WAIT, passed, &most, NULL, 0);
        is_over = atomic_load(&job->failed) > 0 || atomic_load(&job->n_ended) > 0;
    }
    waits_end(before);
    return atomic_load(&m->n_passed) != passed ? OK : lost(job);
}

static status wait_all(shm_state *s) {
    shm_meeting *m = s->meeting;
    unsigned passed = atomic_load(&m->n_passed);
    if (atomic_load(&s->job->failed) > 0) return lost(s->job);
    if (atomic_fetch_add(&m->n_waiting, 1) + 1 < (unsigned)s->group.size)
        return wait_for_others(s, passed);
    atomic_store(&m->n_waiting, 0);
    atomic_fetch_add(&m->n_passed, 1);
    wake_all(m);
    return OK;
}

static shm_rank *board(const shm_state *s, int r) {
    return &s->job->rank[rank_of_group(&s->group, r)];
}

/* The piece of the window of `from` that holds its message to `to`. */
static char *piece(const shm_state *s, int from, int to) {
    const shm_job *job = s->job;
    size_t rank = (size_t)s->circle * (size_t)job->size + (size_t)rank_of_group(&s->group, from);
    return (char *)(s->job + 1) + (2 * rank + s->round % 2) * job->window_bytes +
           (size_t)to * (job->window_bytes / (size_t)s->group.size);
}

static int64_t at_most(int64_t n, int64_t most) {
    return n < most ? n : most;
}

static void write_pieces(const transport *t, const exchange_args *a, int64_t done, int64_t most) {
    shm_state *s = t->state;
    for (int r = 0; r < t->size; r++) {
        board(s, t->rank)->sent[s->circle][s->round % 2][r] = a->n_from[r];
        if (r == t->rank || a->n_from[r] <= done) continue;
        memcpy(piece(s, t->rank, r), (const char *)a->from[r] + done,
               (size_t)at_most(a->n_from[r] - done, most));
    }
}

static status read_pieces(const transport *t, const exchange_args *a, int64_t done, int64_t most) {
    shm_state *s = t->state;
    for (int r = 0; r < t->size; r++) {
        int64_t n = board(s, r)->sent[s->circle][s->round % 2][t->rank];
        if (n != a->n_to[r])
            return fail(ERR_USAGE,
                        "rank %d sends %lld bytes to rank %d, which expects %lld: the ranks do not "
                        "make the same calls",
                        r, (long long)n, t->rank, (long long)a->n_to[r]);
        if (r == t->rank || n <= done) continue;
        memcpy((char *)a->to[r] + done, piece(s, r, t->rank), (size_t)at_most(n - done, most));
    }
    return OK;
}

/* The longest message between any two ranks; known after the first round. */
static int64_t longest(const transport *t) {
    const shm_state *s = t->state;
    int64_t n = 0;
    for (int from = 0; from < t->size; from++)
        for (int to = 0; to < t->size; to++) {
            int64_t sent = board(s, from)->sent[s->circle][s->round % 2][to];
            if (from != to && sent > n) n = sent;
        }
    return n;
}

static status shm_exchange(transport *t, const exchange_args *a) {
    shm_state *s = t->state;
    int64_t most = (int64_t)(s->job->window_bytes / (size_t)t->size), done = 0, n;
    transport_copy_own(t, a);
    do {
        write_pieces(t, a, done, most);
        TRY(wait_all(s));
        TRY(read_pieces(t, a, done, most));
        n = longest(t);
        s->round++;
        done += most;
    } while (done < n);
    return OK;
}

static status shm_barrier(transport *t) {
    return wait_all(t->state);
}

static void shm_note_step(transport *t, uint64_t step) {
    shm_state *s = t->state;
    atomic_store_explicit(&board(s, t->rank)->step, step + 1, memory_order_relaxed);
}

static void shm_destroy(transport *t) {
    mem_free(t->state);
    mem_free(t);
}

/* Of several ranks that fail, only the first keeps its reason; of several that were interrupted,
 * rank 0. */
static status shm_leave(transport *t, status st) {
    shm_job *job = ((shm_state *)t->state)->job;
    int rank = t->rank;
    shm_destroy(t);
    if (st == OK) return OK;
    bool speaks = st == ERR_INTERRUPTED ? rank == 0 : shm_job_fail(job, rank);
    if (!speaks) return fail(st, "%s", "");
    return rank == 0 ? st : fail_prefix(st, "rank %d", rank);
}

static status create(transport **out, shm_job *job, int rank, shm_circle circle,
                     const rank_group *group);

static status shm_group(transport **out, transport *t, const rank_group *g) {
    const shm_state *s = t->state;
    if (s->circle != SHM_ALL) return fail(ERR_USAGE, "a group of ranks is not divided again");
    return create(out, s->job, t->rank, g->stride == 1 ? SHM_NEAR : SHM_FAR, g);
}

static const transport_ops shm_ops = {.name = "shm",
                                      .group = shm_group,
                                      .exchange = shm_exchange,
                                      .barrier = shm_barrier,
                                      .note_step = shm_note_step,
                                      .leave = shm_leave,
                                      .destroy = shm_destroy};

static status create(transport **out, shm_job *job, int rank, shm_circle circle,
                     const rank_group *group) {
    transport *t;
    shm_state *s;
    *out = NULL;
    TRY(MEM_NEW(&t, 1));
    status st = MEM_NEW(&s, 1);
    if (st != OK) {
        mem_free(t);
        return st;
    }
    *s = (shm_state){.job = job,
                     .circle = circle,
                     .group = *group,
                     .meeting = &job->rank[group->first].meeting[circle],
                     .may_spin = sysconf(_SC_NPROCESSORS_ONLN) >= job->size};
    *t = (transport){.ops = &shm_ops,
                     .rank = (rank - group->first) / group->stride,
                     .size = group->size,
                     .local_rank = rank,
                     .local_size = job->size,
                     .stop = &job->stop,
                     .state = s};
    *out = t;
    return OK;
}

status shm_create(transport **out, shm_job *job, int rank) {
    return create(out, job, rank, SHM_ALL, &(rank_group){0, 1, job->size});
}
