#include "base/env.h"

#include <sched.h>
#include <sys/ioctl.h>

#include "base/base.h"
#include "base/machine.h"

enum { MAX_THREADS = 256 };

/* A variable, or NULL where it is not set or empty. */
static const char *get(const char *name) {
    const char *text = getenv(name);
    return text != NULL && text[0] != '\0' ? text : NULL;
}

/* *out: the number from `least` to `most` (at least 0) that a variable holds, or `missing`. */
static status get_number(const char *name, long least, long most, int missing, int *out) {
    const char *text = get(name);
    char *end;
    *out = missing;
    if (text == NULL) return OK;
    long n = strtol(text, &end, 10);
    bool is_digit = text[0] >= '0' && text[0] <= '9'; /* strtol would pass over blanks */
    if (!is_digit || *end != '\0' || n < least || n > most)
        return fail(ERR_USAGE, "%s is '%.40s'; it must be a number from %ld to %ld", name, text,
                    least, most);
    *out = (int)n;
    return OK;
}

status env_apply_log_level(void) {
    const char *name = get("HSTU_LOG");
    if (name == NULL) return OK;
    log_level level;
    status st = log_level_parse(name, &level);
    if (st != OK) return fail_prefix(st, "HSTU_LOG");
    log_set_level(level);
    return OK;
}

int env_cores(void) {
    cpu_set_t set;
    int n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set)
                                                        : (int)sysconf(_SC_NPROCESSORS_ONLN);
    double quota = cpu_quota("/proc/self/cgroup", "/sys/fs/cgroup");
    if (quota > 0 && quota < n) n = (int)quota + (quota > (int)quota); /* rounded up */
    return n < 1 ? 1 : n > MAX_THREADS ? MAX_THREADS : n;
}

status env_threads(int *out) {
    return env_threads_of(1, out);
}

status env_threads_of(int n_processes, int *out) {
    int share = env_cores() / n_processes;
    return get_number("HSTU_THREADS", 1, MAX_THREADS, share < 1 ? 1 : share, out);
}

const char *env_compiler(void) {
    return get("CC");
}

const char *env_xgboost(void) {
    return get("HSTU_XGBOOST");
}

const char *env_cupti(void) {
    return get("HSTU_CUPTI");
}

status env_cuda_sm(int *sm) {
    status st = get_number("HSTU_CUDA_SM", 80, 999, INT_MAX, sm);
    return st == OK ? OK : fail_prefix(st, "the compute capability");
}

#define INJECTION_FORMAT(i64) i64 " " i64 " " i64 " " i64 " %d %d %d"

status env_set_injection(const char *library, const injection *i) {
    char numbers[128];
    const int64_t *s = i->schedule;
    snprintf(numbers, sizeof numbers, INJECTION_FORMAT("%" PRId64), s[0], s[1], s[2], s[3],
             i->signal, i->has_unified, i->has_counters);
    if (setenv("CUDA_INJECTION64_PATH", library, 1) != 0 ||
        setenv("NVTX_INJECTION64_PATH", library, 1) != 0 ||
        setenv("HSTU_PROFILE_RECORDS", i->folder, 1) != 0 ||
        setenv("HSTU_PROFILE_STEP", i->step, 1) != 0 ||
        setenv("HSTU_PROFILE_OPTIONS", numbers, 1) != 0)
        return fail_errno("the environment");
    return OK;
}

/* Values that env_set_injection did not write count as none. */
injection env_injection(void) {
    const char *folder = getenv("HSTU_PROFILE_RECORDS"), *step = getenv("HSTU_PROFILE_STEP");
    const char *numbers = getenv("HSTU_PROFILE_OPTIONS");
    injection i = {.step = step != NULL ? step : ""};
    int64_t *s = i.schedule;
    bool is_known =
        numbers != NULL && sscanf(numbers, INJECTION_FORMAT("%" SCNd64), &s[0], &s[1], &s[2], &s[3],
                                  &i.signal, &i.has_unified, &i.has_counters) == 7;
    for (int k = 0; k < 4; k++)
        is_known = is_known && s[k] >= 0 && s[k] <= 1 << 30;
    if (is_known && folder != NULL && folder[0] == '/') i.folder = folder;
    return i;
}

const char *env_zone_folder(void) {
    const char *folder = get("TZDIR");
    return folder != NULL ? folder : "/usr/share/zoneinfo";
}

status env_set_zone(const char *file) {
    char zone[4096];
    snprintf(zone, sizeof zone, ":%s", file);
    if (setenv("TZ", zone, 1) != 0) return fail_errno("the environment");
    tzset();
    return OK;
}

const char *env_path(void) {
    return getenv("PATH");
}

status env_cache_folder(char *text, size_t n, const char *name) {
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    bool has_cache = cache != NULL && cache[0] == '/';
    if (!has_cache && (home == NULL || home[0] != '/'))
        return fail(ERR_IO, "neither XDG_CACHE_HOME nor HOME is an absolute path; say --cache DIR");
    int length = has_cache ? snprintf(text, n, "%s/hstu/%s", cache, name)
                           : snprintf(text, n, "%s/.cache/hstu/%s", home, name);
    return (size_t)length < n ? OK : fail(ERR_IO, "the path of the cache is too long; say --cache");
}

/* A variable that says how many processes there are, and says more than one. */
static bool is_above_one(const char *name) {
    const char *text = getenv(name);
    return text != NULL && atoi(text) > 1;
}

env_launcher env_launched_by(void) {
    if (is_above_one("OMPI_COMM_WORLD_SIZE") || is_above_one("PMI_SIZE")) return LAUNCHER_MPI;
    /* Two of the three mean a job, so that ranks with a variable forgotten do not train alone, all
     * of them in the same folder. */
    const char *size = getenv("WORLD_SIZE");
    bool has_rank = getenv("RANK") != NULL, has_address = getenv("MASTER_ADDR") != NULL;
    if (is_above_one("WORLD_SIZE"))
        return has_rank || has_address ? LAUNCHER_TORCHRUN : LAUNCHER_NONE;
    bool is_alone = size != NULL && strcmp(size, "1") == 0;
    return has_rank && has_address && !is_alone ? LAUNCHER_TORCHRUN : LAUNCHER_NONE;
}

static status require(const char *name, const char *what) {
    if (get(name) != NULL) return OK;
    return fail(ERR_USAGE,
                "%s is not set: %s.  RANK, WORLD_SIZE and MASTER_ADDR make this process one of "
                "several ranks; to train alone, unset them",
                name, what);
}

status env_read_torchrun(env_torchrun *out) {
    const char *store = getenv("TORCHELASTIC_USE_AGENT_STORE");
    TRY(require("WORLD_SIZE", "how many ranks there are"));
    TRY(require("RANK", "the number of this one, from 0"));
    TRY(require("MASTER_ADDR", "the address of rank 0"));
    TRY(get_number("WORLD_SIZE", 1, 1 << 20, 1, &out->size));
    TRY(get_number("RANK", 0, out->size - 1, 0, &out->rank));
    TRY(get_number("LOCAL_RANK", 0, out->size - 1, -1, &out->local_rank));
    TRY(get_number("LOCAL_WORLD_SIZE", 1, out->size, -1, &out->local_size));
    TRY(get_number("MASTER_PORT", 1, 65534, 29500, &out->port));
    out->address = getenv("MASTER_ADDR");
    if (store != NULL && strcmp(store, "True") == 0) out->port++;
    return OK;
}

const char *env_python_folder(void) {
    const char *text = getenv("VIRTUAL_ENV");
    return text != NULL ? text : getenv("CONDA_PREFIX");
}

const char *env_home(void) {
    return getenv("HOME");
}

const char *env_job_secret(void) {
    const char *text = getenv("HSTU_JOB_SECRET");
    return text != NULL ? text : "";
}

const char *env_visible_gpus(void) {
    return getenv("CUDA_VISIBLE_DEVICES");
}

/* Blocks of NCCL's kernels on a GPU that ranks share: small GPUs have 40 multiprocessors. */
enum { SHARED_GPU_BLOCKS = 32, MOST_STALL_SECONDS = 86400 };

void env_share_gpu(int rank, int n, bool has_setting) {
    const char *nodes = getenv("HSTU_NCCL_NODES");
    char name[32], most[16];
    snprintf(most, sizeof most, "%d", n < SHARED_GPU_BLOCKS ? SHARED_GPU_BLOCKS / n : 1);
    setenv("NCCL_MAX_CTAS", most, 0);
    snprintf(name, sizeof name, "hstu-rank-%d", rank);
    if (has_setting && (nodes == NULL || strcmp(nodes, "1") != 0))
        setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 0);
    else
        setenv("NCCL_HOSTID", name, 0);
}

status env_stall_seconds(int otherwise, int *out) {
    return get_number("HSTU_STALL_SECONDS", 0, MOST_STALL_SECONDS, otherwise, out);
}

bool env_sums_early(void) {
    const char *text = getenv("HSTU_NCCL_OVERLAP");
    return text == NULL || strcmp(text, "0") != 0;
}

bool env_wants_colour(int fd) {
    const char *term = getenv("TERM");
    return getenv("NO_COLOR") == NULL && isatty(fd) && term != NULL && strcmp(term, "dumb") != 0;
}

int env_columns(int fd) {
    struct winsize size;
    const char *text = getenv("COLUMNS");
    int n = text != NULL ? atoi(text) : 0;
    if (n <= 0 && ioctl(fd, TIOCGWINSZ, &size) == 0) n = size.ws_col;
    return n < 20 ? 80 : n > 400 ? 400 : n;
}
