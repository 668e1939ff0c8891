/* The CPU as a target: kernels in C, compiled by the system's compiler into shared objects; and
 * what does not depend on the target. */
#include <dlfcn.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>

#include "base/autotune.h"
#include "base/machine.h"
#include "profile/peak.h"
#include "tune/target.h"

enum { COMPILER_BYTES = 512, IDENTITY_BYTES = 2048 };

/* Sums may be reordered, so that loops over a row are vectorised; infinities keep their meaning. */
static const char *const flags[] = {"-std=gnu11",
                                    "-O3",
                                    "-fPIC",
                                    "-shared",
                                    "-fno-math-errno",
                                    "-fno-trapping-math",
                                    "-fno-signed-zeros",
                                    "-fassociative-math",
#if defined(__aarch64__)
                                    "-mcpu=native",
#elif defined(__x86_64__)
                                    "-march=native",
#endif
                                    "-w"};
enum { N_FLAGS = sizeof flags / sizeof flags[0] };

typedef struct cpu_target {
    target base;
    pool *workers;
    kernel_cache cache;
    bool is_owner;                 /* of the backend */
    char compiler[COMPILER_BYTES]; /* words with blanks between them */
    char identity[IDENTITY_BYTES]; /* its version, the flags, this CPU */
} cpu_target;

typedef void (*cpu_entry)(const kernel_args *args, long first, long last);

struct target_kernel {
    void *library;
    cpu_entry run;
};

extern char **environ;

enum { MAX_WORDS = 48, NOT_FOUND = 127, MAX_OUTPUT = 64 << 10 };

/* Reads until the writer is gone; what is beyond the limit, or does not fit into memory, is thrown
 * away, so that the writer never waits. */
static status collect(int fd, buf *output) {
    char bytes[4096];
    status st = OK;
    for (;;) {
        ssize_t n = read(fd, bytes, sizeof bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return st;
        if (st == OK && output->n_bytes < MAX_OUTPUT) st = buf_append(output, bytes, (size_t)n);
    }
}

static status wait_for(pid_t child, int *exit_code) {
    int state;
    while (waitpid(child, &state, 0) < 0)
        if (errno != EINTR) return fail_errno("waiting for a process failed");
    *exit_code = WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state);
    return OK;
}

static int start_process(char *const *argv, int out, pid_t *child) {
    posix_spawn_file_actions_t files;
    int error = posix_spawn_file_actions_init(&files);
    if (error != 0) return error;
    if (error == 0) error = posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
    if (error == 0) error = posix_spawn_file_actions_adddup2(&files, out, 1);
    if (error == 0) error = posix_spawn_file_actions_adddup2(&files, out, 2);
    if (error == 0) error = posix_spawnp(child, argv[0], &files, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&files);
    return error;
}

/* Runs argv[0] (looked for on PATH), with nothing on its stdin, and waits for it.  Its stdout and
 * stderr are appended to `output`, the first 64 KiB of them.  *exit_code is its exit code, 128 +
 * the signal that ended it, or NOT_FOUND. */
static status run_process(char *const *argv, buf *output, int *exit_code) {
    int ends[2];
    pid_t child = -1;
    if (pipe2(ends, O_CLOEXEC) != 0) return fail_errno("no pipe for '%s'", argv[0]);
    int error = start_process(argv, ends[1], &child);
    close(ends[1]);
    status st = OK;
    if (error == ENOENT || error == EACCES) {
        *exit_code = NOT_FOUND;
    } else if (error != 0) {
        errno = error;
        st = fail_errno("cannot run '%s'", argv[0]);
    } else {
        st = collect(ends[0], output);
        status waited = wait_for(child, exit_code);
        if (st == OK) st = waited;
    }
    close(ends[0]);
    return st;
}

/* Splits the compiler's words into argv and returns their number; `words` is cut up. */
static int split_words(char *words, char **argv, int max) {
    int n = 0;
    char *rest = NULL;
    for (char *word = strtok_r(words, " \t", &rest); word != NULL && n < max;
         word = strtok_r(NULL, " \t", &rest))
        argv[n++] = word;
    return n;
}

/* The answer of "COMPILER --version"; false where it cannot be run. */
static bool ask_version(const char *compiler, buf *out) {
    char words[COMPILER_BYTES], *argv[MAX_WORDS];
    int code = -1;
    snprintf(words, sizeof words, "%s", compiler);
    int n = split_words(words, argv, MAX_WORDS - 2);
    if (n == 0) return false;
    argv[n] = "--version";
    argv[n + 1] = NULL;
    return run_process(argv, out, &code) == OK && code == 0;
}

/* CC, or the first of the usual names that answers. */
static bool find_compiler(char compiler[COMPILER_BYTES], buf *version) {
    const char *own = env_compiler();
    const char *names[] = {own, "cc", "gcc", "clang"};
    for (int i = own != NULL ? 0 : 1; i < (own != NULL ? 1 : 4); i++) {
        buf_clear(version);
        if (strlen(names[i]) >= COMPILER_BYTES || !ask_version(names[i], version)) continue;
        snprintf(compiler, COMPILER_BYTES, "%s", names[i]);
        return true;
    }
    return false;
}

bool target_compiler_version(char *text, size_t n) {
    char compiler[COMPILER_BYTES];
    buf version = {0};
    bool is_found = find_compiler(compiler, &version);
    if (is_found)
        snprintf(text, n, "%.*s", (int)strcspn(buf_str(&version), "\n"), buf_str(&version));
    buf_fini(&version);
    return is_found;
}

static status identify(cpu_target *t) {
    machine host;
    buf version = {0};
    bool is_found = find_compiler(t->compiler, &version);
    if (is_found) {
        machine_ask(&host);
        int n =
            snprintf(t->identity, sizeof t->identity, "%s %s %s", host.cpu, host.simd, t->compiler);
        for (int i = 0; i < N_FLAGS && n < (int)sizeof t->identity; i++)
            n += snprintf(t->identity + n, sizeof t->identity - (size_t)n, " %s", flags[i]);
        if (n < (int)sizeof t->identity)
            snprintf(t->identity + n, sizeof t->identity - (size_t)n, " %s", buf_str(&version));
    }
    buf_fini(&version);
    if (is_found) return OK;
    const char *own = env_compiler();
    if (own != NULL)
        return fail(ERR_UNSUPPORTED,
                    "CC is '%.100s', which does not run; plans on the CPU need a C compiler", own);
    return fail(ERR_UNSUPPORTED,
                "plans on the CPU need a C compiler, but there is no cc, gcc or clang on PATH: "
                "install one with 'apt-get install gcc libc6-dev', or set CC");
}

static status call_compiler(const cpu_target *t, const char *source, const char *object) {
    char words[COMPILER_BYTES], *argv[MAX_WORDS];
    int code = -1;
    buf output = {0};
    snprintf(words, sizeof words, "%s", t->compiler);
    int n = split_words(words, argv, MAX_WORDS - N_FLAGS - 5);
    for (int i = 0; i < N_FLAGS; i++)
        argv[n++] = (char *)flags[i];
    argv[n++] = (char *)source;
    argv[n++] = "-o";
    argv[n++] = (char *)object;
    argv[n++] = "-lm";
    argv[n] = NULL;
    status st = run_process(argv, &output, &code);
    /* Ctrl-C reaches the compiler too, often before us. */
    if (st == OK && (code == 128 + SIGINT || code == 128 + SIGTERM))
        st = fail(ERR_INTERRUPTED, "interrupted while a kernel was compiled");
    if (st == OK && code != 0 && strstr(buf_str(&output), "No space left on device") != NULL)
        st = fail(ERR_IO, "the disk of %s, or that of the compiler's temporary files, is full",
                  t->cache.folder);
    if (st == OK && code != 0)
        st = fail(ERR_UNSUPPORTED,
                  "'%.60s' cannot compile a generated kernel (exit code %d): %.600s", t->compiler,
                  code, buf_str(&output));
    buf_fini(&output);
    return st;
}

/* Compiles in a folder of its own and puts the result into the cache. */
static status build_in(const cpu_target *t, const char *folder, const buf *source,
                       const kernel_key *key) {
    char c_file[4096], object[4096], *bytes = NULL;
    size_t n = 0;
    TRY(path_join(c_file, sizeof c_file, folder, "kernel.c"));
    TRY(path_join(object, sizeof object, folder, "kernel.so"));
    status st = file_write(c_file, buf_str(source), source->n_bytes);
    if (st == OK) st = call_compiler(t, c_file, object);
    if (st == OK) st = file_read_all(object, 64 << 20, &bytes, &n);
    if (st == OK) st = kernel_cache_store(&t->cache, key, "so", bytes, n);
    mem_free(bytes);
    return st;
}

static status build(const cpu_target *t, const buf *source, const kernel_key *key) {
    scratch_folder *folder = NULL;
    status st = scratch_folder_create(&folder, t->cache.folder, "build-");
    if (st == OK) st = build_in(t, scratch_folder_path(folder), source, key);
    scratch_folder_destroy(folder);
    if (st != ERR_IO) return st;
    return fail_prefix(st, "compiling a kernel (--cache chooses another folder)");
}

static status load(const char *path, const char *name, target_kernel **out) {
    target_kernel *k;
    TRY(MEM_NEW(&k, 1));
    k->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (k->library != NULL) *(void **)&k->run = dlsym(k->library, name);
    if (k->library != NULL && k->run != NULL) {
        *out = k;
        return OK;
    }
    const char *why = dlerror();
    status st =
        fail(ERR_IO, "a compiled kernel cannot be loaded: %.400s", why != NULL ? why : path);
    if (k->library != NULL) dlclose(k->library);
    mem_free(k);
    return st;
}

static status compile_source(cpu_target *t, const buf *source, const char *name,
                             target_kernel **out) {
    kernel_key key = kernel_key_of(source, t->identity);
    char path[4096];
    bool is_found;
    buf code = {0};
    status st = kernel_cache_find(&t->cache, &key, "so", &code, &is_found, path);
    buf_fini(&code);
    if (st == OK && !is_found) st = build(t, source, &key);
    return st == OK ? load(path, name, out) : st;
}

static status compile(target *base, const kernel_spec *s, target_kernel **out) {
    cpu_target *t = (cpu_target *)base;
    char name[EMIT_NAME_BYTES];
    buf source = {0};
    *out = NULL;
    emit_name(s, name);
    status st = emit_kernel(s, &source, NULL);
    if (st == OK) st = compile_source(t, &source, name, out);
    buf_fini(&source);
    return st;
}

static void release(target *t, target_kernel *k) {
    if (k == NULL) return;
    dlclose(k->library);
    mem_free(k);
}

static status no_facts(target *t, const target_kernel *k, kernel_facts *out) {
    return OK;
}

typedef struct launch_job {
    cpu_entry run;
    const kernel_args *args;
    int64_t n_blocks, per_chunk;
} launch_job;

static status run_chunk(void *ctx, int64_t chunk, int worker) {
    const launch_job *job = ctx;
    int64_t first = chunk * job->per_chunk, last = first + job->per_chunk;
    job->run(job->args, (long)first, (long)(last < job->n_blocks ? last : job->n_blocks));
    return OK;
}

static status launch(target *base, const target_kernel *k, const kernel_args *args,
                     int64_t n_blocks) {
    cpu_target *t = (cpu_target *)base;
    int64_t per_chunk = n_blocks / 64 + 1;
    launch_job job = {k->run, args, n_blocks, per_chunk};
    if (n_blocks == 0) return OK;
    return pool_run(t->workers, (n_blocks + per_chunk - 1) / per_chunk, run_chunk, &job);
}

static status alloc(target *t, void **out, size_t bytes) {
    return mem_alloc_raw(out, bytes, 1);
}

static void release_memory(target *t, void *memory) {
    mem_free(memory);
}

static status copy(target *t, void *to, const void *from, size_t bytes) {
    if (bytes > 0) memcpy(to, from, bytes);
    return OK;
}

static status fill(target *t, void *to, int byte, size_t bytes) {
    memset(to, byte, bytes);
    return OK;
}

static status wait_nothing(target *t) {
    return OK;
}

static status time_round(status (*run)(void *ctx), void *ctx, int n, double *out) {
    uint64_t start = clock_ns();
    for (int i = 0; i < n; i++)
        TRY(run(ctx));
    *out = (double)(clock_ns() - start) * 1e-9 / n;
    return OK;
}

static status time_calls(target *t, status (*run)(void *ctx), void *ctx, int rounds,
                         double *seconds) {
    double once = 0;
    TRY(time_round(run, ctx, 1, &once));
    TRY(time_round(run, ctx, 1, &once));
    int n = autotune_calls(once, TARGET_ROUND);
    for (int i = 0; i < rounds; i++)
        TRY(time_round(run, ctx, n, &seconds[i]));
    return OK;
}

static void destroy(target *base) {
    cpu_target *t = (cpu_target *)base;
    if (t->is_owner) backend_destroy(t->base.be);
    mem_free(t);
}

/* be NULL: a backend of its own. */
static status create(target **out, backend *be, pool *workers, const kernel_cache *cache) {
    cpu_target *t;
    *out = NULL;
    TRY(MEM_NEW(&t, 1));
    t->workers = workers;
    t->cache = *cache;
    t->base = (target){.name = "cpu",
                       .arch = "cpu",
                       .act = ACT_F32,
                       .compile = compile,
                       .release = release,
                       .facts = no_facts,
                       .launch = launch,
                       .alloc = alloc,
                       .release_memory = release_memory,
                       .write = copy,
                       .read = copy,
                       .fill = fill,
                       .wait = wait_nothing,
                       .time = time_calls,
                       .destroy = destroy};
    status st = identify(t);
    t->is_owner = be == NULL;
    t->base.be = be;
    if (st == OK && be == NULL) st = backend_create_cpu(&t->base.be, workers);
    if (st == OK)
        *out = &t->base;
    else
        mem_free(t);
    return st;
}

status target_create_cpu(target **out, pool *workers, const kernel_cache *cache) {
    return create(out, NULL, workers, cache);
}

status target_create_on(target **out, backend *be, pool *workers, const kernel_cache *cache) {
    if (be->ops->stream(be) != NULL) return target_create_cuda_on(out, be, cache);
    return create(out, be, workers, cache);
}

void target_destroy(target *t) {
    if (t != NULL) t->destroy(t);
}

status target_peak_measure(target *t, target_peak *out) {
    *out = (target_peak){0};
    if (t->be == NULL) return OK;
    TRY(peak_measure_bytes(t->be, &out->bytes_per_s));
    return peak_measure(t->be, &out->flop_per_s);
}
