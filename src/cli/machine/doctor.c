#include <sys/resource.h>
#include <sys/statvfs.h>

#include "cli/machine/doctor.h"
#include "cli/output.h"

void finding_add(findings *f, found_state state, const char *name, unsigned unfit_for,
                 const char *remedy, const char *fmt, ...) {
    finding *out = &f->all[f->n < MAX_FINDINGS ? f->n++ : MAX_FINDINGS - 1];
    va_list args;
    *out = (finding){.section = f->section, .state = state, .unfit_for = unfit_for};
    snprintf(out->name, sizeof out->name, "%s", name);
    snprintf(out->remedy, sizeof out->remedy, "%s", remedy != NULL ? remedy : "");
    va_start(args, fmt);
    vsnprintf(out->text, sizeof out->text, fmt, args);
    va_end(args);
}

/* The first line of a small file; "" where there is none. */
static const char *first_line(const char *path) {
    char *text;
    size_t n_bytes;
    if (file_read_all(path, 1 << 16, &text, &n_bytes) != OK) return "";
    const char *line = show_printf("%.*s", (int)strcspn(text, "\n"), text);
    mem_free(text);
    return line;
}

const char *doctor_chosen_word(const char *text) {
    const char *open = strchr(text, '['), *close = open != NULL ? strchr(open, ']') : NULL;
    return close != NULL ? show_printf("%.*s", (int)(close - open - 1), open + 1) : "";
}

static void ask_huge_pages(findings *f) {
    const char *mode =
        doctor_chosen_word(first_line("/sys/kernel/mm/transparent_hugepage/enabled"));
    if (mode[0] == '\0')
        FINDING(f, FOUND_LACK, "huge pages", "the system does not tell");
    else if (strcmp(mode, "never") == 0)
        finding_add(f, FOUND_LACK, "huge pages", 0,
                    "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled",
                    "never: random reads of large tables are slower");
    else
        FINDING(f, FOUND_OK, "huge pages", "%s", mode);
}

enum { FEW_FILES = 256, MANY_FILES = 4096 };

/* A server has a descriptor for each connection. */
static void ask_descriptors(findings *f) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
    bool is_few = limit.rlim_cur < FEW_FILES, is_many = limit.rlim_cur >= MANY_FILES;
    finding_add(f,
                is_few    ? FOUND_TROUBLE
                : is_many ? FOUND_OK
                          : FOUND_LACK,
                "open files", is_few ? FOR_SERVE | FOR_RANKS : 0,
                is_many ? NULL
                        : "ulimit -n 4096 (a server with many connections needs one for each)",
                "%llu at a time, at most %llu", (unsigned long long)limit.rlim_cur,
                (unsigned long long)limit.rlim_max);
}

enum { DISK_PIECE = 1 << 20, DISK_PIECES = 32, DISK_MS = 500, MIN_FREE_MIB = 256 };

/* Writes for half a second at most; returns MB a second, or 0. */
static double write_speed(int fd) {
    void *piece;
    uint64_t start = clock_ns(), n = 0;
    if (mem_alloc((void **)&piece, DISK_PIECE, 1) != OK) return 0;
    while (n < DISK_PIECES && clock_ns() - start < DISK_MS * 1000000ull &&
           write(fd, piece, DISK_PIECE) == DISK_PIECE)
        n++;
    mem_free(piece);
    if (n == 0 || file_sync(fd) != 0) return 0;
    return (double)n * DISK_PIECE / 1e6 / ((double)(clock_ns() - start) / 1e9);
}

/* The file has no name: nothing stays behind, whatever happens. */
static void ask_disk(findings *f) {
    struct statvfs disk;
    double free_mib =
        statvfs(".", &disk) == 0 ? (double)disk.f_bavail * (double)disk.f_frsize / (1 << 20) : 0;
    char name[] = "hstu-doctor-XXXXXX";
    int fd = open(".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd < 0 && (fd = mkostemp(name, O_CLOEXEC)) >= 0) unlink(name);
    double speed = fd >= 0 ? write_speed(fd) : 0;
    if (fd >= 0) close(fd);
    if (fd < 0)
        finding_add(f, FOUND_LACK, "disk", FOR_TRAIN,
                    "work in a folder of your own: runs are written where --out says",
                    "this folder cannot be written");
    else if (free_mib < MIN_FREE_MIB)
        finding_add(f, FOUND_TROUBLE, "disk", FOR_TRAIN,
                    "checkpoints need more: free some, or work elsewhere",
                    "%.0f MiB free in this folder", free_mib);
    else if (speed == 0)
        FINDING(f, FOUND_TROUBLE, "disk", "this folder's disk cannot be written");
    else
        FINDING(f, FOUND_OK, "disk", "writes %.0f MB/s in this folder, %.1f GiB free", speed,
                free_mib / 1024);
}

enum { MIN_SHARED_MIB = 64 };

/* Ranks of one machine exchange through shared memory; Docker gives 64 MB. */
static void ask_shared_memory(findings *f) {
    struct statvfs disk;
    if (statvfs("/dev/shm", &disk) != 0) {
        finding_add(f, FOUND_TROUBLE, "/dev/shm", FOR_RANKS, "mount -t tmpfs tmpfs /dev/shm",
                    "not there");
        return;
    }
    double mib = (double)disk.f_bavail * (double)disk.f_frsize / (1 << 20);
    if (mib < MIN_SHARED_MIB)
        finding_add(f, FOUND_TROUBLE, "/dev/shm", FOR_RANKS,
                    "give the container more (docker run --shm-size=1g), or remove files there",
                    "%.0f MiB free", mib);
    else
        FINDING(f, FOUND_OK, "/dev/shm", "%.0f MiB free", mib);
}

static void ask_container(findings *f) {
    const char *line = first_line("/run/systemd/container");
    const char *pids = first_line("/sys/fs/cgroup/pids.max");
    const char *kind = file_exists("/.dockerenv")                      ? "Docker"
                       : file_exists("/run/.containerenv")             ? "Podman"
                       : file_exists("/var/run/secrets/kubernetes.io") ? "Kubernetes"
                                                                       : NULL;
    if (kind == NULL && line[0] != '\0') kind = line;
    if (kind == NULL) return;
    FINDING(f, FOUND_OK, "container", "%s%s%s; limits of cores and memory are above", kind,
            pids[0] != '\0' ? ", processes and threads: " : "", pids);
}

static void doctor_ask_host(findings *f) {
    ask_huge_pages(f);
    ask_descriptors(f);
    ask_disk(f);
    ask_shared_memory(f);
    ask_container(f);
}

#ifdef HSTU_HAS_ARCHIVE
#include <archive.h>
#endif
#ifdef HSTU_HAS_CURL
#include <curl/curl.h>
#endif
#ifdef HSTU_HAS_ZLIB
#include <zlib.h>
#endif
#ifdef HSTU_HAS_ZSTD
#include <zstd.h>
#endif

#include "base/machine.h"
#include "cli/cli.h"
#include "dist/mpi.h"
#include "dist/nccl.h"
#include "dist/ranks.h"
#include "dist/shm.h"
#include "ops/device.h"
#include "ops/ops.h"
#include "serve/http/http.h"
#include "serve/state/state.h"
#include "tune/cost_model.h"
#include "tune/target.h"

enum { MAX_DEVICES = 16, MIN_MEMORY_MIB = 512 };

/* A library this build has or lacks. */
typedef struct library {
    const char *name;
    const char *version; /* NULL: not in this build */
    const char *adds;    /* what it is for */
    const char *remedy;  /* how to get it into a build */
    bool is_run_time;    /* looked for when the program runs, not when it is built */
} library;

enum { N_LIBRARIES = 13 };

typedef struct diagnosis {
    machine host;
    device_driver driver;
    device_info device[MAX_DEVICES];
    int n_devices;
    library libraries[N_LIBRARIES];
    const char *cuda_version; /* NULL: not in this build */
    char xgboost_version[32], nvrtc_version[32], compiler_version[160];
    bool has_ranks; /* two of them have just worked together */
    const char *ranks;
    findings found;
    unsigned purposes; /* what it was asked for; 0: in general */
    bool has_memory;   /* enough of it */
    bool is_fit;
    const char *verdict;
} diagnosis;

static const char *show_version(int cuda) {
    return show_printf("%d.%d", cuda / 1000, cuda % 1000 / 10);
}

static void ask_libraries(diagnosis *d) {
    const char *archive = NULL, *curl = NULL, *cuda = NULL;
    const char *snappy = NULL, *zstd = NULL, *zlib = NULL;
#ifdef HSTU_HAS_SNAPPY
    snappy = "yes"; /* its C API does not tell the version */
#endif
#ifdef HSTU_HAS_ZSTD
    zstd = ZSTD_versionString();
#endif
#ifdef HSTU_HAS_ZLIB
    zlib = zlibVersion();
#endif
#ifdef HSTU_HAS_ARCHIVE
    archive = archive_version_string() + strlen("libarchive ");
#endif
#ifdef HSTU_HAS_CURL
    curl = curl_version_info(CURLVERSION_NOW)->version;
#endif
#ifdef HSTU_HAS_CUDA
    d->cuda_version = cuda = show_version(d->driver.runtime_version);
#endif
    const char *xgboost = NULL, *nvrtc = NULL, *compiler = NULL, *nccl_version = NULL;
    char why[512];
    nccl_lib nccl;
    if (cost_model_version(d->xgboost_version, sizeof d->xgboost_version))
        xgboost = d->xgboost_version;
    if (target_nvrtc_version(d->nvrtc_version, sizeof d->nvrtc_version)) nvrtc = d->nvrtc_version;
    if (target_compiler_version(d->compiler_version, sizeof d->compiler_version))
        compiler = d->compiler_version;
    if (nccl_lib_load(&nccl, NULL) == OK)
        nccl_version = show_printf("%d.%d.%d", nccl.version / 10000, nccl.version / 100 % 100,
                                   nccl.version % 100);
    const library all[N_LIBRARIES] = {
        {"libarchive", archive, "reading .zip, .tar.gz and .xz data sets as they are",
         DOCTOR_MAKE "apt-get install libarchive-dev, then make", false},
        {"libcurl", curl, "'hstu prep --download'",
         DOCTOR_MAKE "apt-get install libcurl4-openssl-dev, then make", false},
        {"snappy", snappy, "SNAPPY columns of 'hstu prep parquet'",
         DOCTOR_MAKE "apt-get install libsnappy-dev, then make", false},
        {"zstd", zstd, "ZSTD columns of 'hstu prep parquet'",
         DOCTOR_MAKE "apt-get install libzstd-dev, then make", false},
        {"zlib", zlib, "GZIP columns of 'hstu prep parquet'",
         DOCTOR_MAKE "apt-get install zlib1g-dev, then make", false},
        {"CUDA", cuda, "everything on a GPU",
         DOCTOR_MAKE "install NVIDIA's CUDA toolkit and g++, put nvcc on PATH, then make", false},
        {"libmicrohttpd", http_library_version(), "'hstu serve'",
         DOCTOR_MAKE "apt-get install libmicrohttpd-dev, then make", false},
        {"XGBoost", xgboost, "the cost model of 'hstu tune'",
         "apt-get install libxgboost-dev, or pip install xgboost", true},
        {"NVRTC", nvrtc, "fusion plans on a GPU", "install NVIDIA's CUDA toolkit", true},
        {"C compiler", compiler, "fusion plans on the CPU", "apt-get install gcc libc6-dev", true},
        {"MPI", mpi_library(why, sizeof why), "ranks that mpirun starts",
         DOCTOR_MAKE "apt-get install libopenmpi-dev, then make", true},
        {"NCCL", nccl_version, "ranks with GPUs, without it slower",
         "apt-get install libnccl2, or pip install nvidia-nccl-cu13", true},
        {"SQLite", state_library_version(), "'hstu serve --state'",
         DOCTOR_MAKE "apt-get install libsqlite3-dev, then make", false},
    };
    memcpy(d->libraries, all, sizeof all);
    for (const library *l = all; l < all + N_LIBRARIES; l++)
        if (l->version != NULL)
            FINDING(&d->found, FOUND_OK, l->name, "%s: %s", l->version, l->adds);
        else
            finding_add(&d->found, FOUND_LACK, l->name, 0, l->remedy, "%s; it adds %s",
                        l->is_run_time ? "not found" : "not in this build", l->adds);
}

/* The memory this process can really use. */
static uint64_t usable_memory(const machine *m) {
    return m->limit_bytes > 0 && m->limit_bytes < m->available_bytes ? m->limit_bytes
                                                                     : m->available_bytes;
}

static int n_fit_devices(const diagnosis *d) {
    int n = 0;
    for (int i = 0; i < d->n_devices; i++)
        n += d->device[i].sm >= DEVICE_MIN_SM;
    return n;
}

/* Bit i of a purpose is name i. */
static const char *const purpose_names[] = {"train", "serve", "ranks", "encode", NULL};

/* What is needed for one purpose alone, and is not a finding of its own. */
static void need(diagnosis *d) {
    findings *f = &d->found;
    if (http_library_version() == NULL && (d->purposes & FOR_SERVE) != 0) {
        f->section = SECTION_LIBRARIES;
        finding_add(f, FOUND_LACK, "serving", FOR_SERVE,
                    DOCTOR_MAKE "apt-get install libmicrohttpd-dev, then make",
                    "this build cannot: no libmicrohttpd");
    }
    if (!d->has_ranks && (d->purposes & FOR_RANKS) != 0) {
        f->section = SECTION_MACHINE;
        finding_add(f, FOUND_TROUBLE, "ranks", FOR_RANKS,
                    "see the line above; /dev/shm and permission to fork are needed",
                    "two cannot work together");
    }
}

/* The first thing that makes the machine unfit for what was asked for; or NULL. */
static const finding *find_obstacle(const diagnosis *d) {
    for (int i = 0; i < d->found.n; i++)
        if ((d->found.all[i].unfit_for & d->purposes) != 0) return &d->found.all[i];
    return NULL;
}

static void judge(diagnosis *d) {
    uint64_t memory = usable_memory(&d->host);
    int n_gpus = n_fit_devices(d);
    const finding *obstacle = find_obstacle(d);
    d->is_fit = d->has_memory && obstacle == NULL;
    d->verdict = "yes, on the CPU";
    if (obstacle != NULL)
        d->verdict =
            show_printf("no, %s: %.200s; %.200s", obstacle->name, obstacle->text, obstacle->remedy);
    else if (!d->is_fit)
        d->verdict = show_printf("no, %llu MiB of memory is too little (%d are needed)",
                                 (unsigned long long)(memory >> 20), MIN_MEMORY_MIB);
    else if (n_gpus > 0)
        d->verdict = show_printf("yes, on the CPU and on %d GPU%s", n_gpus, n_gpus > 1 ? "s" : "");
}

enum { SELF_TEST_NUMBERS = 1 << 18 };

/* What a rank of the self test does: sums numbers with the other one, and checks the sum. */
static status sum_with_other(transport *t) {
    backend *be = NULL;
    comm *c = NULL;
    float *x = NULL;
    status st = MEM_NEW(&x, SELF_TEST_NUMBERS);
    if (st == OK) st = backend_create_cpu(&be, NULL);
    if (st == OK) st = comm_create_host(&c, be, t);
    for (int i = 0; i < SELF_TEST_NUMBERS && st == OK; i++)
        x[i] = (float)(i * (t->rank + 1));
    all_reduce_args a = {COMM_F32, COMM_SUM, SELF_TEST_NUMBERS, x, x};
    if (st == OK) st = c->ops->all_reduce(c, &a);
    for (int i = 0; i < SELF_TEST_NUMBERS && st == OK; i++)
        if (x[i] != (float)(i * 3)) st = fail(ERR_IO, "a sum of two ranks is wrong");
    comm_destroy(c);
    backend_destroy(be);
    mem_free(x);
    return st;
}

/* Two ranks are started and sum a megabyte. */
static void test_ranks(diagnosis *d) {
    transport *t;
    uint64_t start = clock_ns();
    status st = ranks_fork(&t, 2, RANKS_PATIENCE_MS);
    if (t != NULL) {
        st = ranks_leave(t, st == OK ? sum_with_other(t) : st);
        _exit(status_exit_code(st));
    }
    d->has_ranks = st == OK;
    d->ranks = st == OK ? show_printf("two started and summed 1 MB in %.0f ms",
                                      (double)(clock_ns() - start) / 1e6)
                        : show_printf("two cannot work together: %s", status_reason());
}

static double gib(uint64_t bytes) {
    return (double)bytes / (1 << 30);
}

static void ask_machine(diagnosis *d) {
    const machine *m = &d->host;
    findings *f = &d->found;
    const char *quota = "", *limit = "";
    uint64_t memory = usable_memory(m);
    f->section = SECTION_MACHINE;
    d->has_memory = memory == 0 || memory >> 20 >= MIN_MEMORY_MIB;
    if (m->quota_cores > 0) quota = show_printf(", with CPU time for %.1f", m->quota_cores);
    if (m->limit_bytes > 0) limit = show_printf(", limited to %.1f GiB", gib(m->limit_bytes));
    bool has_simd = m->simd[0] != '\0';
    FINDING(f, FOUND_OK, "system", "%s", m->system);
    FINDING(f, FOUND_OK, "CPU", "%s", m->cpu[0] != '\0' ? m->cpu : "unknown");
    FINDING(f, FOUND_OK, "cores", "%d usable of %d%s", m->n_usable_cores, m->n_cores, quota);
    FINDING(f, has_simd ? FOUND_OK : FOUND_LACK, "SIMD", "%s", has_simd ? m->simd : "none known");
    FINDING(f, FOUND_OK, "kernel", "%s, for matrix products on the CPU", backend_cpu_products());
    FINDING(f, d->has_memory ? FOUND_OK : FOUND_TROUBLE, "memory", "%.1f GiB, %.1f GiB available%s",
            gib(m->total_bytes), gib(m->available_bytes), limit);
    FINDING(f, d->has_ranks ? FOUND_OK : FOUND_TROUBLE, "ranks", "%s", d->ranks);
    doctor_ask_host(f);
}

static void ask_devices(diagnosis *d) {
    findings *f = &d->found;
    const char *driver = show_version(d->driver.driver_version);
    f->section = SECTION_GPU;
    if (d->n_devices == 0 && d->cuda_version != NULL)
        FINDING(f, FOUND_LACK, "none", "built with CUDA %s, no GPU found: %s", d->cuda_version,
                d->driver.reason);
    else if (d->n_devices == 0)
        FINDING(f, FOUND_LACK, "none", "not looked for: %s", d->driver.reason);
    for (int i = 0; i < d->n_devices; i++) {
        const device_info *g = &d->device[i];
        bool is_old = g->sm < DEVICE_MIN_SM;
        FINDING(f, is_old ? FOUND_TROUBLE : FOUND_OK, show_printf("cuda:%d", i),
                "%s, SM %d.%d, %d SMs, %.1f GiB (%.1f free), driver for CUDA %s%s", g->name,
                g->sm / 10, g->sm % 10, g->n_multiprocessors, gib(g->memory_bytes),
                gib(g->free_bytes), driver, is_old ? "; too old: SM 8.0 is needed" : "");
    }
    doctor_ask_gpus(f);
}

static status examine(diagnosis *d, unsigned wanted) {
    memset(d, 0, sizeof *d);
    d->purposes = wanted;
    test_ranks(d); /* first: it forks */
    machine_ask(&d->host);
    device_driver_ask(&d->driver);
    TRY(device_list(d->device, MAX_DEVICES, &d->n_devices));
    ask_machine(d);
    d->found.section = SECTION_LIBRARIES;
    ask_libraries(d);
    ask_devices(d);
    need(d);
    judge(d);
    return OK;
}

/* A mark, the subject, its state; and a remedy under it. */
static void print_findings(const diagnosis *d, found_section section, const char *title) {
    static const char *const words[] = {"ok", "--", "!!"}, *const colours[] = {"32", "33", "31"};
    bool has_colour = env_wants_colour(STDOUT_FILENO);
    printf("\n%s\n", show_bold(title));
    for (int i = 0; i < d->found.n; i++) {
        const finding *f = &d->found.all[i];
        if (f->section != section) continue;
        if (has_colour)
            printf("  \033[%sm%s\033[0m", colours[f->state], words[f->state]);
        else
            printf("  %s", words[f->state]);
        printf("  %-12s %s\n", f->name, f->text);
        if (f->remedy[0] != '\0') printf("%19s%s\n", "", f->remedy);
    }
}

static void write_machine(json_writer *w, const machine *m) {
    JSON_FIELDS(w, FIELD("system", m->system), FIELD("cpu", m->cpu), FIELD("cores", m->n_cores),
                FIELD("usable_cores", m->n_usable_cores));
    json_key(w, "quota_cores");
    m->quota_cores > 0 ? json_double(w, m->quota_cores) : json_null(w);
    json_key_array(w, "simd");
    for (const char *word = m->simd; *word != '\0'; word += strspn(word, " ")) {
        json_string_n(w, word, strcspn(word, " "));
        word += strcspn(word, " ");
    }
    json_array_close(w);
    json_key_int(w, "memory_bytes", (int64_t)m->total_bytes);
    json_key_int(w, "available_bytes", (int64_t)m->available_bytes);
    json_key(w, "limit_bytes");
    m->limit_bytes > 0 ? json_uint(w, m->limit_bytes) : json_null(w);
}

static void write_gpus(json_writer *w, const diagnosis *d) {
    json_key_array(w, "gpus");
    for (int i = 0; i < d->n_devices; i++) {
        JSON_OBJECT(w, FIELD("name", d->device[i].name), FIELD("sm", d->device[i].sm / 10.0),
                    FIELD("multiprocessors", d->device[i].n_multiprocessors),
                    FIELD("memory_bytes", d->device[i].memory_bytes),
                    FIELD("free_bytes", d->device[i].free_bytes));
    }
    json_array_close(w);
    json_key(w, "driver_cuda");
    if (d->driver.driver_version > 0)
        json_string(w, show_version(d->driver.driver_version));
    else
        json_null(w);
    json_key_string(w, "no_gpu_reason", d->driver.reason);
}

static void write_libraries(json_writer *w, const diagnosis *d) {
    json_key_array(w, "libraries");
    for (int i = 0; i < N_LIBRARIES; i++) {
        const library *l = &d->libraries[i];
        json_object_open(w);
        json_key_string(w, "name", l->name);
        json_key(w, "version");
        l->version != NULL ? json_string(w, l->version) : json_null(w);
        json_key_string(w, "adds", l->adds);
        json_key_string(w, "remedy", l->remedy);
        json_object_close(w);
    }
    json_array_close(w);
}

static void write_findings(json_writer *w, const findings *f) {
    static const char *const sections[] = {"machine", "gpu", "libraries"};
    static const char *const states[] = {"ok", "missing", "trouble"};
    json_key_array(w, "checks");
    for (int i = 0; i < f->n; i++) {
        JSON_OBJECT(w, FIELD("section", sections[f->all[i].section]), FIELD("name", f->all[i].name),
                    FIELD("state", states[f->all[i].state]), FIELD("text", f->all[i].text),
                    FIELD("remedy", f->all[i].remedy));
    }
    json_array_close(w);
}

static status print_json(const diagnosis *d) {
    json_writer *w = json_line_open();
    write_machine(w, &d->host);
    json_key_string(w, "products", backend_cpu_products());
    write_gpus(w, d);
    write_libraries(w, d);
    write_findings(w, &d->found);
    JSON_FIELDS(w, FIELD("ranks", d->has_ranks), FIELD("fit", d->is_fit),
                FIELD("verdict", d->verdict));
    return json_line_print();
}

/* The verdict is the last line; with --for a machine that is unfit is a failure, which says it. */
static status give_verdict(const diagnosis *d, bool is_json) {
    bool is_failure = d->purposes != 0 && !d->is_fit;
    if (!is_json && !is_failure) printf("\nfit: %s\n", d->verdict);
    if (!is_failure) return OK;
    return fail(ERR_UNSUPPORTED, "this machine is not fit: %s", d->verdict + strlen("no, "));
}

status cmd_doctor(int argc, char **argv) {
    static bool is_json;
    static int wanted = -1;
    static const arg_option options[] = {
        OPT_CHOICE("--for", &wanted, "WHAT", purpose_names,
                   "train, serve, ranks or encode: exit with code 1 if this machine cannot be used "
                   "for it."),
        OPT_FLAG("--json", &is_json, "Print one JSON object instead of the table."),
        {0},
    };
    static const arg_spec spec = {
        .usage = "hstu doctor [--json] [--for WHAT]",
        .summary = "Check this machine: cores, SIMD, memory, disk, limits, GPUs (clocks, errors, "
                   "measured bandwidth) and libraries. For everything missing, say what it would "
                   "add and how to install it.",
        .options = options};
    static diagnosis d;
    ARGS_PARSE(&spec, NULL, NULL);
    TRY(examine(&d, wanted >= 0 ? 1u << wanted : 0));
    if (is_json) {
        TRY(print_json(&d));
        return give_verdict(&d, true);
    }
    print_findings(&d, SECTION_MACHINE, "Machine");
    print_findings(&d, SECTION_GPU, "GPU");
    print_findings(&d, SECTION_LIBRARIES, "Libraries");
    return give_verdict(&d, false);
}
