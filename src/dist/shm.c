#include "dist/shm.h"

#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "dist/watch.h"

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
    if (job == MAP_FAILED) return fail_errno("shared memory of %d ranks", size);
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
        TRY(transport_check_size(t, a, r, n));
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

static bool shm_has_failed(const transport *t) {
    const shm_job *job = ((const shm_state *)t->state)->job;
    return atomic_load(&job->failed) > 0 || atomic_load(&job->n_ended) > 0;
}

static void shm_note_step(transport *t, uint64_t step) {
    shm_state *s = t->state;
    atomic_store_explicit(&board(s, t->rank)->step, step + 1, memory_order_relaxed);
}

/* Of several ranks that fail, only the first keeps its reason; of several that were interrupted,
 * rank 0. */
static status shm_leave(transport *t, status st) {
    shm_job *job = ((shm_state *)t->state)->job;
    int rank = t->rank;
    transport_free(t);
    if (st == OK) return OK;
    bool speaks = st == ERR_INTERRUPTED ? rank == 0 : shm_job_fail(job, rank);
    if (!speaks) return fail(st, "%s", "");
    return rank == 0 ? st : fail_prefix(st, "rank %d", rank);
}

static status create(transport **out, shm_job *job, int rank, shm_circle circle,
                     const rank_group *group);

static status shm_group(transport **out, transport *t, const rank_group *g) {
    const shm_state *s = t->state;
    if (s->circle != SHM_ALL) return fail(ERR_USAGE, "a group of ranks cannot be divided again");
    return create(out, s->job, t->rank, g->stride == 1 ? SHM_NEAR : SHM_FAR, g);
}

static const transport_ops shm_ops = {.name = "shm",
                                      .group = shm_group,
                                      .exchange = shm_exchange,
                                      .barrier = shm_barrier,
                                      .has_failed = shm_has_failed,
                                      .note_step = shm_note_step,
                                      .leave = shm_leave};

static status create(transport **out, shm_job *job, int rank, shm_circle circle,
                     const rank_group *group) {
    transport *t;
    *out = NULL;
    TRY(transport_new(&t, &shm_ops, sizeof(shm_state)));
    shm_state *s = t->state;
    *s = (shm_state){.job = job,
                     .circle = circle,
                     .group = *group,
                     .meeting = &job->rank[group->first].meeting[circle],
                     .may_spin = sysconf(_SC_NPROCESSORS_ONLN) >= job->size};
    t->rank = (rank - group->first) / group->stride;
    t->size = group->size;
    t->local_rank = rank;
    t->local_size = job->size;
    t->stop = &job->stop;
    *out = t;
    return OK;
}

status shm_create(transport **out, shm_job *job, int rank) {
    return create(out, job, rank, SHM_ALL, &(rank_group){0, 1, job->size});
}

/* Times are counted in turns of the supervising loop and not read from a clock: while the machine
 * or the whole job sleeps (Ctrl-Z), no time passes. */
enum { TURN_MS = 10, STALL_SECONDS = 30 };

/* What the signal handler of the supervising process sets. */
static shm_job *the_job;

typedef struct rank_process {
    pid_t pid;
    bool is_running;
    int n_stopped; /* turns since it was stopped; 0: it runs */
    uint64_t wait; /* its word of base/range.h in the turn before */
} rank_process;

typedef struct supervisor {
    shm_job *job;
    int n, n_running;
    int patience; /* turns */
    watch_stall stall;
    rank_process rank[SHM_MAX_RANKS];
    int n_leaving; /* turns since the job was ended; 0: it goes on */
    status st;     /* how it ended */
} supervisor;

static void ask_to_stop(int number) {
    if (the_job != NULL) the_job->stop = 1;
}

/* The first signal asks the ranks to stop, a second one ends the supervising process, and the ranks
 * die with it. */
static void watch_signals(struct sigaction old[2]) {
    struct sigaction action = {.sa_handler = ask_to_stop, .sa_flags = (int)SA_RESETHAND};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, &old[0]);
    sigaction(SIGTERM, &action, &old[1]);
}

static void restore_signals(const struct sigaction old[2]) {
    sigaction(SIGINT, &old[0], NULL);
    sigaction(SIGTERM, &old[1], NULL);
    the_job = NULL;
}

static void end_job(supervisor *w, int rank) {
    (void)shm_job_fail(w->job, rank);
    if (w->n_leaving == 0) w->n_leaving = 1;
}

static const char *last_step(const supervisor *w, int rank, char text[WATCH_STEP_BYTES]) {
    return watch_step_text(atomic_load(&w->job->rank[rank].step), text);
}

/* A rank that failed by itself has said why; one that was killed cannot. */
static void note_end(supervisor *w, int r, int how) {
    char at[WATCH_STEP_BYTES];
    bool is_first = w->st == OK, said = atomic_load(&w->job->failed) == r + 1;
    w->rank[r].is_running = false;
    w->n_running--;
    atomic_fetch_add(&w->job->n_ended, 1);
    if (WIFEXITED(how) && WEXITSTATUS(how) == 0) return;
    if (!is_first) return;
    if (WIFSIGNALED(how) && w->n_leaving == 0)
        w->st = fail(ERR_IO, "rank %d was killed by signal %d (%s) %s; all ranks were ended", r,
                     WTERMSIG(how), strsignal(WTERMSIG(how)), last_step(w, r, at));
    else if (WIFEXITED(how) && (said || w->job->stop))
        w->st = fail(WEXITSTATUS(how) == 2 ? ERR_CONFIG : ERR_IO, "%s", "");
    else if (WIFEXITED(how) && atomic_load(&w->job->failed) == 0)
        w->st = fail(ERR_IO, "rank %d ended with exit code %d %s; all ranks were ended", r,
                     WEXITSTATUS(how), last_step(w, r, at));
    end_job(w, r);
}

static void note_stopped(supervisor *w, int r) {
    char at[WATCH_STEP_BYTES];
    if (++w->rank[r].n_stopped < w->patience || w->n_leaving > 0) return;
    w->st = fail(ERR_IO,
                 "rank %d (process %d) is stopped %s and does not answer; all ranks were "
                 "ended",
                 r, (int)w->rank[r].pid, last_step(w, r, at));
    end_job(w, r);
    kill(w->rank[r].pid, SIGKILL); /* it cannot leave by itself */
}

static void look_at(supervisor *w, int r) {
    rank_process *p = &w->rank[r];
    int how;
    if (!p->is_running) return;
    if (waitpid(p->pid, &how, WNOHANG | WUNTRACED | WCONTINUED) == p->pid) {
        if (WIFSTOPPED(how))
            p->n_stopped = 1;
        else if (WIFCONTINUED(how))
            p->n_stopped = 0;
        else
            note_end(w, r, how);
    }
    if (p->is_running && p->n_stopped > 0) note_stopped(w, r);
}

/* Writes "rank 0 waits for the GPU at step 3, rank 1 ...", as far as there is room. */
static void list_waits(const supervisor *w, char *text, size_t room) {
    size_t n = 0;
    for (int r = 0; r < w->n && n < room; r++) {
        char at[WATCH_STEP_BYTES];
        if (!w->rank[r].is_running) continue;
        n += (size_t)snprintf(text + n, room - n, "%srank %d waits for %s %s", n > 0 ? ", " : "", r,
                              waits_name(waits_kind(w->rank[r].wait)), last_step(w, r, at));
    }
}

/* Ranks that all wait, each in one and the same wait, wait for each other. */
static void look_at_waits(supervisor *w) {
    bool has_moved = w->n_leaving > 0;
    for (int r = 0; r < w->n; r++) {
        rank_process *p = &w->rank[r];
        uint64_t wait = waits_read(&w->job->rank[r].wait);
        has_moved = has_moved || (p->is_running && watch_has_moved(p->wait, wait));
        p->wait = wait;
    }
    if (!watch_stall_add(&w->stall, has_moved, TURN_MS)) return;
    char text[512];
    list_waits(w, text, sizeof text);
    w->st = fail(ERR_IO, "no rank made progress for %d s: %s; all ranks were ended",
                 (int)(w->stall.most_ms / 1000), text);
    end_job(w, 0);
}

static void kill_all(const supervisor *w) {
    for (int r = 0; r < w->n; r++)
        if (w->rank[r].is_running) kill(w->rank[r].pid, SIGKILL);
}

static status supervise(supervisor *w) {
    const struct timespec turn = {.tv_nsec = TURN_MS * 1000000L};
    while (w->n_running > 0) {
        for (int r = 0; r < w->n; r++)
            look_at(w, r);
        if (w->n_running > 0) look_at_waits(w);
        if (w->n_leaving > 0 && ++w->n_leaving > w->patience) kill_all(w);
        if (w->n_running > 0) nanosleep(&turn, NULL);
    }
    return w->st;
}

/* What is a rank's alone.  Its output goes nowhere: rank 0 speaks for all. */
static status become_rank(transport **out, shm_job *job, int rank, pid_t parent) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) raise(SIGKILL); /* it died before the line above */
    signal(SIGINT, SIG_IGN);
    signal(SIGTERM, SIG_IGN);
    the_job = NULL;
    waits_share(&job->rank[rank].wait);
    if (rank > 0) transport_silence();
    return shm_create(out, job, rank);
}

status ranks_fork(transport **out, int n, int patience_ms) {
    supervisor w = {.n = n, .patience = patience_ms / TURN_MS};
    struct sigaction old[2];
    pid_t parent = getpid();
    *out = NULL;
    TRY(watch_stall_init(&w.stall, STALL_SECONDS));
    TRY(shm_job_create(&w.job, n, 0));
    the_job = w.job;
    watch_signals(old);
    fflush(NULL); /* or every rank would write what is still buffered */
    for (int r = 0; r < n && w.st == OK; r++) {
        pid_t pid = fork();
        if (pid == 0) return become_rank(out, w.job, r, parent);
        if (pid < 0)
            w.st = fail_errno("starting rank %d", r);
        else
            w.rank[r] = (rank_process){.pid = pid, .is_running = true};
        w.n_running += pid > 0;
    }
    if (w.st != OK) end_job(&w, 0);
    status st = supervise(&w);
    restore_signals(old);
    shm_job_destroy(w.job);
    return st;
}
