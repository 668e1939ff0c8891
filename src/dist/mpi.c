#include "dist/mpi.h"

#include <dlfcn.h>
#include <sched.h>

#include "dist/mpi_plugin.h"
#include "dist/watch.h"

enum { PATH_BYTES = 4096 };

/* hstu-mpi.so beside the program, or where `make install` puts it. */
static status find_plugin(char path[PATH_BYTES]) {
    static const char *const places[] = {"hstu-mpi.so", "../hstu-mpi.so",
                                         "../lib/hstu/hstu-mpi.so"};
    char program[PATH_BYTES];
    ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    if (n <= 0) return fail_errno("/proc/self/exe");
    program[n] = '\0';
    char *end = strrchr(program, '/');
    if (end != NULL) *end = '\0';
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        if (path_join(path, PATH_BYTES, program, places[i]) == OK && file_exists(path)) return OK;
    return fail(ERR_UNSUPPORTED,
                "this build has no MPI plugin (hstu-mpi.so beside the program): install an MPI "
                "('apt-get install libopenmpi-dev') and run make again, or start ranks of one "
                "machine with --ranks");
}

/* The library stays loaded: MPI does not survive a second start in a process anyway. */
static status load_plugin(const mpi_plugin **out) {
    char path[PATH_BYTES];
    TRY(find_plugin(path));
    /* Open MPI loads libraries of its own, which look for its symbols: RTLD_GLOBAL. */
    void *library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    if (library == NULL)
        return fail(ERR_UNSUPPORTED, "%s: cannot be loaded: %.400s", path, dlerror());
    const mpi_plugin *p = dlsym(library, MPI_PLUGIN_SYMBOL);
    if (p == NULL || p->version != MPI_PLUGIN_VERSION)
        return fail(ERR_UNSUPPORTED, "%s belongs to another version of hstu; run make again", path);
    *out = p;
    return OK;
}

const char *mpi_library(char *why, size_t n) {
    const mpi_plugin *p;
    why[0] = '\0';
    if (load_plugin(&p) == OK) return p->library();
    snprintf(why, n, "%s", status_reason());
    return NULL;
}

typedef struct mpi_state {
    const mpi_plugin *p;
    watch *w; /* or NULL */
} mpi_state;

/* What a call to MPI returned; the watch may know better why. */
static status check(mpi_state *s, int code, const char *text) {
    if (code == 0) return OK;
    TRY(watch_check(s->w));
    return fail(ERR_IO, "%s", text);
}

static status mpi_exchange(transport *t, const exchange_args *a) {
    mpi_state *s = t->state;
    char text[MPI_PLUGIN_TEXT_BYTES] = "";
    transport_copy_own(t, a);
    wait_kind before = waits_begin(WAIT_RANKS);
    int code = s->p->exchange(a->from, a->n_from, a->to, a->n_to, text);
    waits_end(before);
    return check(s, code, text);
}

static status mpi_barrier(transport *t) {
    mpi_state *s = t->state;
    char text[MPI_PLUGIN_TEXT_BYTES] = "";
    wait_kind before = waits_begin(WAIT_RANKS);
    int code = s->p->barrier(text);
    waits_end(before);
    return check(s, code, text);
}

static int has_ended(void *w) {
    return watch_check(w) != OK;
}

static void mpi_note_step(transport *t, uint64_t step) {
    mpi_state *s = t->state;
    if (s->w != NULL) watch_note_step(s->w, step);
}

/* A rank that failed must not meet the others in MPI_Finalize: it ends without, and mpirun ends the
 * job. */
static status mpi_leave(transport *t, status st) {
    mpi_state *s = t->state;
    bool is_failure = st != OK && st != ERR_INTERRUPTED;
    st = watch_leave(s->w, t->rank, st);
    if (!is_failure) s->p->end();
    transport_free(t);
    return st;
}

static const transport_ops mpi_ops = {.name = "mpi",
                                      .exchange = mpi_exchange,
                                      .barrier = mpi_barrier,
                                      .note_step = mpi_note_step,
                                      .leave = mpi_leave};

/* mpirun binds each of two ranks to one core unless told otherwise, and threads would share it. One
 * rank of a machine warns. */
static void widen_affinity(int local_size, bool warns) {
    cpu_set_t now, all;
    long n_cores = sysconf(_SC_NPROCESSORS_CONF);
    if (sched_getaffinity(0, sizeof now, &now) != 0) return;
    CPU_ZERO(&all);
    for (long i = 0; i < n_cores && i < CPU_SETSIZE; i++)
        CPU_SET((size_t)i, &all);
    int n_now = CPU_COUNT(&now), share = (int)(sysconf(_SC_NPROCESSORS_ONLN) / local_size);
    if (n_now >= share || sched_setaffinity(0, sizeof all, &all) != 0) return;
    sched_getaffinity(0, sizeof all, &all);
    if (!warns || CPU_COUNT(&all) <= n_now) return;
    log_warn("mpirun had bound this rank to %d core%s; its share of the machine is %d, so the "
             "binding was removed (mpirun --bind-to none avoids it)",
             n_now, n_now == 1 ? "" : "s", share);
}

status mpi_create(transport **out) {
    const mpi_plugin *p;
    int rank, size, local_rank, local_size;
    char text[MPI_PLUGIN_TEXT_BYTES] = "";
    *out = NULL;
    TRY(load_plugin(&p));
    if (p->begin(&rank, &size, &local_rank, &local_size, text) != 0)
        return fail(ERR_IO, "%s", text);
    if (rank > 0) transport_silence();
    widen_affinity(local_size, local_rank == 0);
    if (size == 1) {
        p->end();
        return OK;
    }
    transport *t;
    TRY(transport_new(&t, &mpi_ops, sizeof(mpi_state)));
    mpi_state *s = t->state;
    s->p = p;
    t->rank = rank;
    t->size = size;
    t->local_rank = local_rank;
    t->local_size = local_size;
    *out = t;
    TRY(watch_create_over(&s->w, t));
    if (s->w != NULL) p->set_ended(has_ended, s->w);
    return OK;
}
