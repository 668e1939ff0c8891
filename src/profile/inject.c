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
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/env.h"
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
    atomic_bool has_cuda;     /* the driver is there, so CUPTI may be started */
    atomic_bool is_recording; /* CUPTI records */
    pthread_mutex_t control;  /* one starts or stops CUPTI at a time */
    uint64_t n_lost;
    unsigned records; /* of cupti_start */
    int toggle;       /* the signal that switches it; 0: none */
    int pipe[2];      /* from the handler of signals to the thread */
} injected = {
    .lock = PTHREAD_MUTEX_INITIALIZER, .control = PTHREAD_MUTEX_INITIALIZER, .pipe = {-1, -1}};

/* Asked before the lock: in a forked child nobody may be left to open it. */
static status add_record(void *ctx, const gpu_record *r) {
    (void)ctx;
    if (injected.is_done) return OK;
    pthread_mutex_lock(&injected.lock);
    status st = injected.is_done ? OK : record_writer_add(injected.writer, r);
    pthread_mutex_unlock(&injected.lock);
    return st;
}

static bool is_wanted(void) {
    return injected.is_wanted && !injected.is_done;
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

static void start_recording(void) {
    const cupti_sink sink = {NULL, NULL, add_record};
    pthread_mutex_lock(&injected.control);
    injected.is_wanted = true;
    if (injected.has_cuda && !injected.is_recording) {
        injected.is_recording = cupti_start(&sink, injected.records);
        if (!injected.is_recording) note(cupti_reason());
    }
    pthread_mutex_unlock(&injected.control);
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
    bool is_complete;
    pthread_mutex_lock(&injected.control);
    injected.is_wanted = false;
    if (injected.is_recording) {
        wait_for_gpu();
        (void)cupti_stop(&is_complete, &n_lost);
        injected.is_recording = false;
        injected.n_lost += n_lost;
    }
    pthread_mutex_unlock(&injected.control);
}

/* At exit, and after a deadly signal.  The second call does nothing. */
static void finish(void) {
    if (injected.is_done) return;
    stop_recording();
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
    if (number != injected.toggle)
        die_by(number);
    else if (injected.is_wanted)
        stop_recording();
    else
        start_recording();
}

static void *keep_writing(void *unused) {
    (void)unused;
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
    if (injected.toggle > 0) catch_signal(injected.toggle, true);
}

/* Once a process, by whoever comes first.  False where there is nothing to record into. */
static bool begin(void) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static bool is_called;
    bool has_unified;
    pthread_mutex_lock(&lock);
    const char *folder = env_injection(&injected.toggle, &has_unified);
    if (!is_called && folder != NULL) {
        is_called = true;
        injected.records = CUPTI_CALLS | (has_unified ? CUPTI_UNIFIED : 0);
        if (record_writer_create(&injected.writer, folder) == OK) {
            pthread_atfork(NULL, NULL, leave_to_parent);
            atexit(finish);
            injected.is_wanted = injected.toggle == 0;
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
    if (injected.is_wanted) start_recording();
    return 1;
}

/* Called by NVTX; 0: its functions do nothing. */
__attribute__((visibility("default"))) int InitializeInjectionNvtx2(nvtx_tables tables) {
    const nvtx_sink sink = {is_wanted, add_range};
    return begin() && nvtx_attach(tables, &sink);
}
