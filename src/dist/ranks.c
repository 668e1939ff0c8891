#include "dist/ranks.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/env.h"
#include "base/range.h"
#include "dist/shm.h"

/* Times are counted in turns of the watching loop and not read from a clock: while the machine or
 * the whole job sleeps (Ctrl-Z), no time passes. */
enum { TURN_MS = 10, STALL_SECONDS = 30 };

/* What the signal handler of the watching process sets. */
static shm_job *the_job;

typedef struct rank_process {
    pid_t pid;
    bool is_running;
    int n_stopped; /* turns since it was stopped; 0: it runs */
    uint64_t wait; /* its word of base/range.h in the turn before */
} rank_process;

typedef struct watch {
    shm_job *job;
    int n, n_running;
    int patience;   /* turns */
    int n_standing; /* turns in which all ranks have waited, and none went on */
    int most_standing;
    rank_process rank[SHM_MAX_RANKS];
    int n_leaving; /* turns since the job was ended; 0: it goes on */
    status st;     /* how it ended */
} watch;

static void ask_to_stop(int number) {
    (void)number;
    if (the_job != NULL) the_job->stop = 1;
}

/* The first signal asks the ranks to stop, a second one ends the watching process, and the ranks
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

static void end_job(watch *w, int rank) {
    (void)shm_job_fail(w->job, rank);
    if (w->n_leaving == 0) w->n_leaving = 1;
}

/* " at step 12", or " before its first step". */
static const char *last_step(const watch *w, int rank, char text[48]) {
    uint64_t step = atomic_load(&w->job->rank[rank].step);
    if (step == 0)
        snprintf(text, 48, " before its first step");
    else
        snprintf(text, 48, " at step %" PRIu64, step - 1);
    return text;
}

/* A rank that failed by itself has said why; one that was killed cannot. */
static void note_end(watch *w, int r, int how) {
    char at[48];
    bool is_first = w->st == OK, said = atomic_load(&w->job->failed) == r + 1;
    w->rank[r].is_running = false;
    w->n_running--;
    atomic_fetch_add(&w->job->n_ended, 1);
    if (WIFEXITED(how) && WEXITSTATUS(how) == 0) return;
    if (!is_first) return;
    if (WIFSIGNALED(how) && w->n_leaving == 0)
        w->st = fail(ERR_IO, "rank %d was killed by signal %d (%s)%s; all ranks were ended", r,
                     WTERMSIG(how), strsignal(WTERMSIG(how)), last_step(w, r, at));
    else if (WIFEXITED(how) && (said || w->job->stop))
        w->st = fail(WEXITSTATUS(how) == 2 ? ERR_CONFIG : ERR_IO, "%s", "");
    else if (WIFEXITED(how) && atomic_load(&w->job->failed) == 0)
        w->st = fail(ERR_IO, "rank %d ended with exit code %d%s; all ranks were ended", r,
                     WEXITSTATUS(how), last_step(w, r, at));
    end_job(w, r);
}

static void note_stopped(watch *w, int r) {
    char at[48];
    if (++w->rank[r].n_stopped < w->patience || w->n_leaving > 0) return;
    w->st = fail(ERR_IO,
                 "rank %d (process %d) is stopped%s and does not answer; all ranks were "
                 "ended",
                 r, (int)w->rank[r].pid, last_step(w, r, at));
    end_job(w, r);
    kill(w->rank[r].pid, SIGKILL); /* it cannot leave by itself */
}

static void look_at(watch *w, int r) {
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
static void say_waits(const watch *w, char *text, size_t room) {
    size_t n = 0;
    for (int r = 0; r < w->n && n < room; r++) {
        char at[48];
        if (!w->rank[r].is_running) continue;
        n += (size_t)snprintf(text + n, room - n, "%srank %d waits for %s%s", n > 0 ? ", " : "", r,
                              waits_name(waits_kind(w->rank[r].wait)), last_step(w, r, at));
    }
}

/* Ranks that all wait, each in one and the same wait, wait for each other. */
static void look_at_waits(watch *w) {
    bool stand = true;
    for (int r = 0; r < w->n; r++) {
        rank_process *p = &w->rank[r];
        uint64_t wait = waits_read(&w->job->rank[r].wait);
        if (p->is_running && (waits_kind(wait) == WAIT_NONE || wait != p->wait)) stand = false;
        p->wait = wait;
    }
    w->n_standing = stand ? w->n_standing + 1 : 0;
    if (w->n_standing < w->most_standing || w->n_leaving > 0 || w->most_standing == 0) return;
    char text[512];
    say_waits(w, text, sizeof text);
    w->st = fail(ERR_IO, "no rank went on for %d s: %s; all ranks were ended",
                 w->most_standing * TURN_MS / 1000, text);
    end_job(w, 0);
}

static void kill_all(const watch *w) {
    for (int r = 0; r < w->n; r++)
        if (w->rank[r].is_running) kill(w->rank[r].pid, SIGKILL);
}

static status supervise(watch *w) {
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
    watch w = {.n = n, .patience = patience_ms / TURN_MS};
    struct sigaction old[2];
    pid_t parent = getpid();
    int seconds;
    *out = NULL;
    TRY(env_stall_seconds(STALL_SECONDS, &seconds));
    w.most_standing = seconds * (1000 / TURN_MS);
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
