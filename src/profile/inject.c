/* hstu-inject.so: what CUDA and NVTX load into a program that `hstu profile -- PROGRAM` starts.
 *
 * CUDA's driver loads the library that CUDA_INJECTION64_PATH names when a process first uses a GPU,
 * and calls InitializeInjection; NVTX does the same with NVTX_INJECTION64_PATH at the first range
 * (nvtx.h).  From then on CUPTI's records and ranges go into a file (record_file.h),
 * which is complete when the program ends: by exit, or by a signal that it does not catch itself. A
 * thread of ours writes what is there four times a second, so that a process that is killed, or
 * ends by _exit, loses little.  The program's own behaviour is left alone: whatever fails here is
 * noted in the file, and the program runs without records. */
#include <dlfcn.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>

#include "profile/cupti.h"
#include "profile/nvtx.h"
#include "profile/record_file.h"

int InitializeInjection(void);
int InitializeInjectionNvtx2(nvtx_tables tables);

enum { WRITE_EVERY_MS = 250 };

static struct {
    pthread_mutex_t lock; /* guards writer and is_done */
    record_writer *writer;
    atomic_bool is_done;      /* the file is complete, or not this process's */
    atomic_bool is_wanted;    /* records are; ranges have nothing to be switched on for */
    atomic_bool is_kept;      /* ... and no warm-up */
    atomic_bool has_cuda;     /* the driver is there, so CUPTI may be started */
    atomic_bool is_recording; /* CUPTI records */
    pthread_mutex_t control;  /* one starts or stops CUPTI, or ends a step, at a time */
    uint64_t n_lost;
    unsigned records; /* of cupti_start */
    injection told;
    recorder_schedule schedule; /* of told */
    int64_t step;               /* steps that have ended */
    int pipe[2];                /* from the handler of signals to the thread */
} injected = {
    .lock = PTHREAD_MUTEX_INITIALIZER, .control = PTHREAD_MUTEX_INITIALIZER, .pipe = {-1, -1}};

/* Asked before the lock: in a forked child nobody may be left to open it. */
static status add_record(void *ctx, const gpu_record *r) {
    bool is_kept = injected.is_kept || r->kind == HOST_STEP || r->kind == GPU_DEVICE;
    if (injected.is_done || !is_kept) return OK;
    pthread_mutex_lock(&injected.lock);
    status st = injected.is_done ? OK : record_writer_add(injected.writer, r);
    pthread_mutex_unlock(&injected.lock);
    return st;
}

static bool is_wanted(void) {
    return injected.is_wanted && injected.is_kept && !injected.is_done;
}

static void add_range(const gpu_record *r) {
    (void)add_record(NULL, r);
}

static void note(const char *text) {
    pthread_mutex_lock(&injected.lock);
    if (!injected.is_done) {
        (void)record_writer_note(injected.writer, text);
        (void)record_writer_flush(injected.writer);
    }
    pthread_mutex_unlock(&injected.lock);
}

/* This and the next are called with control locked. */
static void start_recording(void) {
    const cupti_sink sink = {NULL, add_record};
    injected.is_wanted = true;
    if (!injected.has_cuda || injected.is_recording) return;
    injected.is_recording = injected.told.has_counters ? cupti_counters_start(&sink)
                                                       : cupti_start(&sink, injected.records);
    if (!injected.is_recording) note(cupti_reason());
    if (injected.told.has_counters) cupti_counters_set_on(injected.is_recording);
}

/* The GPU finishes what it has first: the record of a kernel is there when it has ended. */
static void wait_for_gpu(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    if (driver == NULL) return;
    int (*synchronize)(void);
    *(void **)&synchronize = dlsym(driver, "cuCtxSynchronize");
    if (synchronize != NULL) (void)synchronize();
    dlclose(driver);
}

static void stop_recording(void) {
    uint64_t n_lost = 0;
    injected.is_wanted = false;
    if (!injected.is_recording) return;
    wait_for_gpu();
    if (!injected.told.has_counters)
        (void)cupti_stop(&n_lost);
    else if (!cupti_counters_stop())
        note(cupti_reason());
    injected.is_recording = false;
    injected.n_lost += n_lost;
}

static void set_recording(bool is_on) {
    pthread_mutex_lock(&injected.control);
    if (is_on)
        start_recording();
    else
        stop_recording();
    pthread_mutex_unlock(&injected.control);
}

/* Whether a range's name is the one that --step says; a star at its end stands for anything. */
static bool is_step(const char *name) {
    size_t n = strlen(injected.told.step);
    bool is_prefix = n > 0 && injected.told.step[n - 1] == '*';
    return is_prefix ? strncmp(name, injected.told.step, n - 1) == 0
                     : n > 0 && strcmp(name, injected.told.step) == 0;
}

/* Recording starts with the first step that the schedule warms up or keeps, and what it has at the
 * first one to keep is dropped. */
static bool begin_step(const char *name) {
    if (injected.is_done || !is_step(name)) return false;
    pthread_mutex_lock(&injected.control);
    step_state state = schedule_at(&injected.schedule, injected.step);
    if (state != STEP_OFF) start_recording();
    if (state == STEP_ACTIVE && !injected.is_kept) {
        if (injected.is_recording) {
            wait_for_gpu();
            (void)cupti_flush();
        }
        injected.is_kept = true;
    }
    pthread_mutex_unlock(&injected.control);
    return true;
}

static void end_step(uint64_t start_ns, uint64_t end_ns) {
    if (injected.is_done) return;
    pthread_mutex_lock(&injected.control);
    gpu_record r = {.kind = HOST_STEP, .start_ns = start_ns, .end_ns = end_ns};
    r.mark = (uint64_t)injected.step;
    r.stream = schedule_at(&injected.schedule, injected.step) == STEP_ACTIVE;
    (void)add_record(NULL, &r);
    step_state next = schedule_at(&injected.schedule, ++injected.step);
    if (r.stream == 1 && next != STEP_ACTIVE) {
        stop_recording();
        injected.is_kept = false;
    }
    pthread_mutex_unlock(&injected.control);
}

/* At exit, and after a deadly signal.  The second call does nothing. */
static void finish(void) {
    if (injected.is_done) return;
    set_recording(false);
    pthread_mutex_lock(&injected.lock);
    if (!injected.is_done) (void)record_writer_close(injected.writer, injected.n_lost);
    injected.is_done = true;
    pthread_mutex_unlock(&injected.lock);
}

/* The file belongs to the parent, whose CUDA does not work in the child either. */
static void leave_to_parent(void) {
    injected.is_done = true;
    injected.is_recording = false;
}

static void on_signal(int number) {
    int saved = errno;
    char byte = (char)number;
    if (write(injected.pipe[1], &byte, 1) < 0) {
        /* The pipe is full of signals that nobody has answered yet: one more says nothing new. */
    }
    errno = saved;
}

/* What the signal would have done without us. */
static void die_by(int number) {
    struct sigaction plain = {.sa_handler = SIG_DFL};
    finish();
    sigaction(number, &plain, NULL);
    kill(getpid(), number);
}

static void answer(int number) {
    if (number != injected.told.signal)
        die_by(number);
    else
        set_recording(!injected.is_wanted);
}

static void *keep_writing(void *unused) {
    struct pollfd wait = {.fd = injected.pipe[0], .events = POLLIN};
    while (!injected.is_done) {
        char number;
        int n = poll(&wait, 1, WRITE_EVERY_MS);
        if (n > 0 && read(injected.pipe[0], &number, 1) == 1) answer(number);
        if (n != 0 || !injected.is_wanted) continue;
        if (injected.is_recording) cupti_flush_complete();
        pthread_mutex_lock(&injected.lock);
        if (!injected.is_done) (void)record_writer_flush(injected.writer);
        pthread_mutex_unlock(&injected.lock);
    }
    return NULL;
}

/* A handler of the program's own stays. */
static void catch_signal(int number, bool is_ours) {
    struct sigaction now, ours = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    if (sigaction(number, NULL, &now) != 0) return;
    if (is_ours || now.sa_handler == SIG_DFL) sigaction(number, &ours, NULL);
}

static void catch_signals(void) {
    sigset_t all, before;
    pthread_t thread;
    if (pipe(injected.pipe) != 0) return;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are for the program's threads */
    bool is_there = pthread_create(&thread, NULL, keep_writing, NULL) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!is_there) return;
    pthread_detach(thread);
    catch_signal(SIGTERM, false);
    catch_signal(SIGINT, false);
    catch_signal(SIGHUP, false);
    if (injected.told.signal > 0) catch_signal(injected.told.signal, true);
}

/* Once a process, by whoever comes first.  False where there is nothing to record into. */
static bool begin(void) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static bool is_called;
    pthread_mutex_lock(&lock);
    injection told = env_injection();
    if (!is_called && told.folder != NULL) {
        const int64_t *s = told.schedule;
        is_called = true;
        injected.told = told;
        injected.schedule = (recorder_schedule){s[0], s[1], s[2], s[3]};
        injected.records = CUPTI_CALLS | (told.has_unified ? CUPTI_UNIFIED : 0);
        if (record_writer_create(&injected.writer, told.folder) == OK) {
            pthread_atfork(NULL, NULL, leave_to_parent);
            atexit(finish);
            injected.is_kept = told.step[0] == '\0'; /* else steps switch it */
            injected.is_wanted = injected.is_kept && told.signal == 0;
            catch_signals();
        }
    }
    pthread_mutex_unlock(&lock);
    return injected.writer != NULL;
}

/* Called by CUDA.  1: all is well, which CUDA does not ask about. */
__attribute__((visibility("default"))) int InitializeInjection(void) {
    if (injected.has_cuda || !begin()) return 1;
    injected.has_cuda = true;
    if (injected.is_wanted) set_recording(true);
    return 1;
}

/* Called by NVTX; 0: its functions do nothing. */
__attribute__((visibility("default"))) int InitializeInjectionNvtx2(nvtx_tables tables) {
    const nvtx_sink sink = {is_wanted, add_range, begin_step, end_step};
    return begin() && nvtx_attach(tables, &sink);
}
