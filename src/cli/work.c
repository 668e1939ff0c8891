#include "cli/work.h"
#include "data/set/batcher.h"
#include "dist/ranks.h"
#include "ops/device.h"
#include "profile/profiler.h"

enum { MAX_DEVICES = 64 };

const char *const work_dtypes[] = {
    [ACT_F32] = "float32", [ACT_BF16] = "bfloat16", [ACT_F16] = "float16", NULL};

status work_choose_gpu(const transport *ranks, const char **device, char name[32]) {
    device_info list[MAX_DEVICES];
    int n, n_usable = 0, usable[MAX_DEVICES];
    if (ranks == NULL || (strcmp(*device, "auto") != 0 && strcmp(*device, "cuda") != 0)) return OK;
    TRY(device_list(list, MAX_DEVICES, &n));
    for (int i = 0; i < n; i++)
        if (list[i].sm >= DEVICE_MIN_SM) usable[n_usable++] = i;
    if (n_usable == 0) return OK; /* backend_open says what that means */
    snprintf(name, 32, "cuda:%d", usable[ranks->local_rank % n_usable]);
    *device = name;
    return OK;
}

static status open_backend(work *w, const char *device, const work_options *options) {
    int n_threads;
    TRY(env_threads_of(options->ranks != NULL ? options->ranks->local_size : 1, &n_threads));
    TRY(pool_create(&w->workers, n_threads));
    char name[32];
    TRY(work_choose_gpu(options->ranks, &device, name));
    status st = backend_open(&w->be, w->workers, device, options->is_deterministic);
    bool is_named = st == ERR_USAGE || st == ERR_DEVICE;
    return is_named ? fail_prefix(st, "--device %.40s", device) : st;
}

status work_open_as(work *w, const char *data, const char *device, const work_options *o) {
    *w = (work){0};
    status st = open_backend(w, device, o);
    if (st == OK) st = profiler_watch(&w->be);
    rank_options how = {.nccl = o->nccl, .is_deterministic = o->is_deterministic};
    if (st == OK && o->ranks != NULL) st = comm_create_ranks(&w->comm, w->be, o->ranks, &how);
    if (st == OK && data != NULL) st = seq_file_open(&w->data, data, w->workers);
    if (st != OK) work_close(w);
    return st;
}

status work_open(work *w, const char *data, const char *device) {
    return work_open_as(w, data, device, &(work_options){0});
}

status work_join_test(work *w, const char *path, bool keeps_unknown) {
    status st = seq_file_open(&w->test, path, w->workers);
    if (st != OK) return fail_prefix(st, "--test-file");
    TRY(held_out_join(&w->joined, w->data, w->test, keeps_unknown));
    held_out_counts n = held_out_count(w->joined);
    log_info("%s: %" PRIu64 " users have a held-out event", path, n.n_targets);
    if (n.n_unknown_users > 0)
        log_info("%s: %" PRIu64 " users are not in the data and are left out", path,
                 n.n_unknown_users);
    if (n.n_unknown_items > 0)
        log_info("%s: %" PRIu64 " held-out events have items that the data does not have: %s", path,
                 n.n_unknown_items, keeps_unknown ? "never found" : "left out");
    return OK;
}

void work_warn_changed(const work *w, uint64_t trained_on) {
    if (trained_on != batcher_fingerprint(w->data))
        log_warn("%s has changed since the run was trained on it; figures of then and now are of "
                 "different events",
                 w->data->path);
}

const seq_file *work_data(const work *w) {
    return w->joined != NULL ? held_out_data(w->joined) : w->data;
}

void work_close(work *w) {
    held_out_destroy(w->joined);
    seq_file_close(w->test);
    seq_file_close(w->data);
    comm_destroy(w->comm);
    backend_destroy(w->be);
    pool_destroy(w->workers);
    *w = (work){0};
}

/* Cuts the last name off a path; false: there is none. */
static bool cut_name(char *path) {
    char *slash = strrchr(path, '/');
    if (slash == NULL) return false;
    *slash = '\0';
    return true;
}

/* Whether a file of this name is there or came with the program. */
static bool find_file(const char *program, const char *name, char path[CONFIG_PATH_BYTES]) {
    /* Below the first, second and third folder above the program: beside it, as installed, and in
     * the source tree of build/release/hstu. */
    static const char *const below[] = {"", "share/hstu/", ""};
    char folder[CONFIG_PATH_BYTES];
    snprintf(path, CONFIG_PATH_BYTES, "%s", name);
    if (name[0] == '/' || file_exists(name)) return file_exists(name);
    snprintf(folder, sizeof folder, "%s", program);
    for (int i = 0; i < 3 && cut_name(folder); i++) {
        int n = snprintf(path, CONFIG_PATH_BYTES, "%s/%s%s", folder, below[i], name);
        if (n < CONFIG_PATH_BYTES && file_exists(path)) return true; /* else too long to be there */
    }
    snprintf(path, CONFIG_PATH_BYTES, "%s", name);
    return false;
}

status work_own_path(char path[CONFIG_PATH_BYTES]) {
    ssize_t n = readlink("/proc/self/exe", path, CONFIG_PATH_BYTES - 1);
    path[n > 0 ? n : 0] = '\0';
    return n > 0 ? OK : fail_errno("/proc/self/exe");
}

bool work_find_file(const char *name, char path[CONFIG_PATH_BYTES]) {
    char program[CONFIG_PATH_BYTES];
    return work_own_path(program) == OK && find_file(program, name, path);
}

void config_path_find_for(const char *program, const char *name, char path[CONFIG_PATH_BYTES]) {
    if (find_file(program, name, path) && strcmp(path, name) != 0)
        log_info("note: the config is %s", path);
}

void config_path_find(const char *name, char path[CONFIG_PATH_BYTES]) {
    char program[CONFIG_PATH_BYTES];
    (void)work_own_path(program); /* "": only a file that is here is found */
    config_path_find_for(program, name, path);
}

bool split_args_given(const split_args *a) {
    return a->split != NULL || a->time_cut != NULL || a->test_file != NULL;
}

/* Absolute, so that the run finds it from any folder; a path that leads nowhere stays as it is, and
 * fails when it is opened. */
static status read_test_file(const split_args *a, split_record *out) {
    char absolute[SPLIT_PATH_BYTES];
    const char *path = realpath(a->test_file, absolute) != NULL ? absolute : a->test_file;
    if (a->split != NULL || a->time_cut != NULL)
        return fail(ERR_USAGE, "--test-file holds its own events out; leave --split and --time-cut "
                               "out");
    if (strlen(path) >= sizeof out->test_file)
        return fail(ERR_USAGE, "--test-file: the path is too long");
    out->rule = split_rule_of(SPLIT_TEST_FILE);
    memcpy(out->test_file, path, strlen(path) + 1);
    return OK;
}

static status read_kind(const split_args *a, split_rule *out) {
    split_kind kind = SPLIT_TIME; /* a cut alone says enough */
    if (a->split != NULL) TRY(split_kind_parse(a->split, &kind));
    *out = split_rule_of(kind);
    if (kind == SPLIT_TIME && a->time_cut == NULL)
        return fail(ERR_USAGE, "--split time needs a date, as in --time-cut 2024-01-31; 'hstu "
                               "info' shows the range of the "
                               "data");
    if (kind != SPLIT_TIME && a->time_cut != NULL)
        return fail(ERR_USAGE, "--time-cut belongs to --split time, not to %s", a->split);
    if (a->time_cut == NULL) return OK;
    status st = split_time_parse(a->time_cut, &out->time_cut);
    return st == OK ? OK : fail_prefix(st, "--time-cut");
}

status split_args_read(const split_args *a, split_record *out) {
    *out = (split_record){0};
    if (a->test_file != NULL)
        TRY(read_test_file(a, out));
    else
        TRY(read_kind(a, &out->rule));
    if (!a->has_validation) return OK;
    if (out->rule.kind == SPLIT_NONE)
        return fail(ERR_USAGE, "--split none holds nothing out: leave --validate out");
    if (out->rule.kind == SPLIT_LEAVE_ONE_OUT)
        return fail(ERR_USAGE, "--validate needs a second event of each user: use --split "
                               "leave-two-out");
    out->rule.has_validation = true;
    return OK;
}
