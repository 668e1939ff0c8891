#include <signal.h>

#include "cli/cli.h"
#include "cli/serve/serve.h"
#include "cli/work.h"
#include "dist/ranks.h"
#include "dist/shm.h"
#include "serve/engine/tensor_group.h"
#include "serve/http/access_log.h"
#include "serve/http/server.h"

const char *const kv_args_dtypes[] = {"model", "fp8", NULL};
const char *const kv_args_loads[] = {"cost", "always", NULL};

void kv_args_tell(const engine_model_info *m) {
    if (m->has_fp8_kv)
        log_info("model %s: keys and values in 8 bits change results by up to %.2g of the largest "
                 "one (tried on a made-up history of full length)",
                 m->name, m->fp8_error);
    if (m->n_host_pages == 0) return;
    log_info("model %s: %lld KV pages of %.1f KiB in host memory", m->name,
             (long long)m->n_host_pages, (double)m->page_bytes / 1024);
    if (m->load_us_token == 0) return;
    log_info("model %s: measured, a token is loaded in %.3g us and computed in %.3g (half way "
             "through the longest history)",
             m->name, m->load_us_token, m->compute_us_token);
    if (m->load_from_tokens < 0)
        log_info("model %s: computing is always faster, so nothing is kept in host memory",
                 m->name);
    else
        log_info("model %s: histories of %d tokens or more are loaded, shorter ones computed",
                 m->name, m->load_from_tokens);
}

/* hstu serve: recommendations over HTTP. */

/* LOST_MS: how long a server that has lost a rank answers 503, before it ends. */
enum { NAME_BYTES = 64, CHECK_MS = 20, LOST_MS = 1000 };

typedef struct serve_args {
    const char *path[ENGINE_MAX_MODELS];
    int n_paths;
    server_config c;
    const char *access_log, *split;
    arg_list names, shadows, allow_hosts;
    access_log *log; /* NULL: none */
    int log_fd;      /* 0: stdout's, or none */
    int64_t queue_mib, deadline_ms, drain_delay_s, drain_timeout_s, erase_within_s;
    int64_t max_body_mib, max_buffered_mib, tensor_parallel;
    transport *ranks; /* with tensor_parallel above 1, else NULL */
    char name[ENGINE_MAX_MODELS][NAME_BYTES];
    server_model model[ENGINE_MAX_MODELS];
} serve_args;

/* Where the access log goes.  By default to stdout if that is a file: a pipe or a terminal has a
 * reader who may not have asked for it. */
static status open_log(serve_args *a) {
    struct stat out;
    const char *path = a->access_log;
    bool is_file = fstat(STDOUT_FILENO, &out) == 0 && S_ISREG(out.st_mode);
    if (path == NULL) path = is_file ? "-" : "off";
    if (strcmp(path, "off") == 0) return OK;
    bool is_stdout = strcmp(path, "-") == 0;
    int fd =
        is_stdout ? STDOUT_FILENO : open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0) return fail_errno("--access-log %s", path);
    status st = access_log_open(&a->log, fd);
    if (st == OK && !is_stdout) a->log_fd = fd;
    if (st != OK && !is_stdout) close(fd);
    return st;
}

static void close_log(serve_args *a) {
    uint64_t n = access_log_close(a->log);
    if (n > 0)
        log_warn("%llu lines of the access log were dropped: its reader was too slow, or gone",
                 (unsigned long long)n);
    if (a->log_fd > 0) close(a->log_fd);
}

static bool is_good_name(const char *name) {
    size_t n = strlen(name);
    for (size_t i = 0; i < n; i++)
        if (!isalnum((unsigned char)name[i]) && strchr("._-", name[i]) == NULL) return false;
    return n > 0 && n < NAME_BYTES;
}

/* The last part of a path, with what a name cannot have replaced. */
static void name_of_path(const char *path, char name[NAME_BYTES]) {
    size_t end = strlen(path);
    while (end > 0 && path[end - 1] == '/')
        end--;
    size_t begin = end;
    while (begin > 0 && path[begin - 1] != '/')
        begin--;
    size_t n = end - begin < NAME_BYTES - 1 ? end - begin : NAME_BYTES - 1;
    for (size_t i = 0; i < n; i++) {
        char c = path[begin + i];
        name[i] = isalnum((unsigned char)c) || c == '.' || c == '_' || c == '-' ? c : '_';
    }
    name[n] = '\0';
    if (n == 0) strcpy(name, "model");
}

static status choose_names(serve_args *a) {
    if (a->names.n_items > 0 && (int)a->names.n_items != a->n_paths)
        return fail(ERR_USAGE, "%d models and %zu names: give --name for each model or for none",
                    a->n_paths, a->names.n_items);
    for (int i = 0; i < a->n_paths; i++) {
        if (a->names.n_items > 0) {
            if (!is_good_name(a->names.item[i]))
                return fail(ERR_USAGE, "--name %.80s: letters, digits, '.', '_' and '-' only",
                            a->names.item[i]);
            strcpy(a->name[i], a->names.item[i]);
        } else {
            name_of_path(a->path[i], a->name[i]);
        }
        for (int k = 0; k < i; k++)
            if (strcmp(a->name[k], a->name[i]) == 0)
                return fail(ERR_USAGE, "two models are called '%s': give each a --name",
                            a->name[i]);
        a->model[i] = (server_model){.name = a->name[i], .path = a->path[i]};
    }
    return OK;
}

static status read_shadows(serve_args *a) {
    for (size_t s = 0; s < a->shadows.n_items; s++) {
        int i = 0;
        while (i < a->n_paths && strcmp(a->name[i], a->shadows.item[s]) != 0)
            i++;
        if (i == a->n_paths)
            return fail(ERR_USAGE, "--shadow %.80s: there is no model of this name",
                        a->shadows.item[s]);
        if (i == 0) return fail(ERR_USAGE, "--shadow %s: the first model answers", a->name[0]);
        a->model[i].is_shadow = true;
    }
    return OK;
}

/* "90,10": the share of each model; without it the first one answers who names none. */
static status read_split(serve_args *a) {
    const char *at = a->split;
    a->model[0].share = at == NULL;
    for (int i = 0; i < a->n_paths && at != NULL; i++) {
        char *end;
        long share = strtol(at, &end, 10);
        bool is_last = i + 1 == a->n_paths;
        if (end == at || share < 0 || share > 1000000 || *end != (is_last ? '\0' : ','))
            return fail(ERR_USAGE,
                        "--split %.80s: give a whole number for each of the %d models, as in "
                        "90,10",
                        a->split, a->n_paths);
        if (share > 0 && a->model[i].is_shadow)
            return fail(ERR_USAGE, "--split: %s is a shadow and answers nobody", a->name[i]);
        a->model[i].share = (int)share;
        at = end + 1;
    }
    int total = 0;
    for (int i = 0; i < a->n_paths; i++)
        total += a->model[i].share;
    return total > 0
               ? OK
               : fail(ERR_USAGE, "--split %.80s: at least one share must be above 0", a->split);
}

static void tell_start(const serve_args *a, server *s) {
    engine_state_stats state;
    engine_get_state(server_engine(s), &state);
    for (int i = 0; i < a->n_paths; i++) {
        engine_model_info m;
        if (engine_model(server_engine(s), i, &m) != OK) continue;
        log_info("model %s: %s, %llu items, %s, loaded in %.4g s%s%s", m.name, m.task,
                 (unsigned long long)m.n_items, m.device, m.load_s,
                 m.is_cached               ? ", with KV cache"
                 : m.cache_note[0] != '\0' ? ", without KV cache: "
                                           : ", without KV cache",
                 m.is_cached ? "" : m.cache_note);
        kv_args_tell(&m);
    }
    if (a->c.engine.data == NULL)
        log_info(
            "note: without --data DIR users have no history until they send events, and a user "
            "without one gets no popular items");
    if (!state.is_durable)
        log_info("note: events are kept in memory only; --state DIR makes them durable");
    else
        log_info("events: %llu read from %s%s", (unsigned long long)state.n_restored,
                 a->c.engine.state,
                 state.n_known > 0 ? "; some are in the data, too, and count once" : "");
    if (state.warning[0] != '\0') log_warn("%s", state.warning);
    if (a->access_log == NULL && a->log == NULL)
        log_info("note: no access log, as stdout is not a file; --access-log - writes it there");
    bool is_ipv6 = strchr(a->c.http.host, ':') != NULL;
    log_info("ready: http://%s%s%s:%d/  (Ctrl-C to stop)", is_ipv6 ? "[" : "", a->c.http.host,
             is_ipv6 ? "]" : "", server_port(s));
}

/* Waits for a signal; false: the time is over. */
static bool wait_signal(const sigset_t *signals, int ms) {
    struct timespec limit = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L};
    return sigtimedwait(signals, NULL, &limit) > 0;
}

/* Whether the server is to end; a rank gets no signals itself. */
static bool wait_stop(const serve_args *a, const sigset_t *signals, int ms) {
    bool has_signal = wait_signal(signals, ms);
    if (a->ranks == NULL) return has_signal;
    return *a->ranks->stop || tensor_group_check(a->c.engine.group) != OK;
}

/* Until a signal; then until everything is answered, the time is over, or a second signal. */
static status wait_for_end(const serve_args *a, server *s, const sigset_t *signals,
                           bool is_ending) {
    while (!is_ending && !wait_stop(a, signals, a->ranks != NULL ? CHECK_MS : 60000))
        ;
    server_set_ready(s, false);
    status st = tensor_group_check(a->c.engine.group);
    if (st != OK) log_warn("%s; until then requests get 503", status_reason());
    if (st != OK) (void)wait_signal(signals, LOST_MS);
    TRY(st);
    log_info("draining; a second signal exits at once");
    for (int64_t ms = 0; ms < a->drain_delay_s * 1000; ms += 50)
        if (wait_signal(signals, 50)) return fail(ERR_INTERRUPTED, "ended by a second signal");
    uint64_t begin = clock_ns();
    while (!server_drain(s, 20000000)) {
        if (wait_signal(signals, 1)) return fail(ERR_INTERRUPTED, "ended by a second signal");
        if (clock_ns() - begin > (uint64_t)a->drain_timeout_s * 1000000000ull)
            return fail(ERR_INTERRUPTED, "some requests were not answered within %d s",
                        (int)a->drain_timeout_s);
    }
    return OK;
}

/* What the options of --help give in other units, or as lists. */
static void finish_config(serve_args *a) {
    server_config *c = &a->c;
    c->models = a->model;
    c->n_models = a->n_paths;
    c->allow_hosts = a->allow_hosts.item;
    c->n_allow_hosts = a->allow_hosts.n_items;
    c->log = a->log != NULL ? access_log_write : NULL;
    c->log_dropped = a->log != NULL ? access_log_dropped : NULL;
    c->log_ctx = a->log;
    /* One address has half of it, and at least one request of the largest size. */
    int64_t least = 2 * a->max_body_mib;
    int64_t buffered_mib = a->max_buffered_mib > least ? a->max_buffered_mib : least;
    c->http.max_body_bytes = (size_t)a->max_body_mib << 20;
    c->http.max_held_bytes = (size_t)buffered_mib << 20;
    c->engine.max_queue_bytes = (size_t)a->queue_mib << 20;
    c->engine.erase_within_ns = (uint64_t)a->erase_within_s * 1000000000ull;
    c->engine.deadline_ns = (uint64_t)a->deadline_ms * 1000000ull;
}

/* Engine folders are checked while the server starts; until then no answer leaves it.  *is_ending:
 * a signal came meanwhile. */
static status wait_checked(const serve_args *a, server *s, const sigset_t *signals,
                           bool *is_ending) {
    uint64_t start = clock_ns();
    for (int i = 0; i < a->n_paths; i++) {
        while (!engine_is_checked(server_engine(s), i)) {
            *is_ending = wait_stop(a, signals, CHECK_MS);
            if (*is_ending) return OK;
        }
        TRY(engine_wait_checked(server_engine(s), i));
    }
    log_info("checked: all weights match their checksums, %.2f s after the start",
             (double)(clock_ns() - start) / 1e9);
    return OK;
}

/* A signal came while weights were checked, and everything that had arrived is answered: the
 * threads that still read weights are not waited for. */
static status end_early(serve_args *a, server *s) {
    for (int i = 0; i < a->n_paths; i++) {
        if (!engine_is_checked(server_engine(s), i)) {
            close_log(a);
            log_info("ended before the weights were checked");
            _exit(0);
        }
        TRY(engine_wait_checked(server_engine(s), i));
    }
    return OK;
}

static status run(serve_args *a) {
    server *s = NULL;
    bool is_ending = false;
    sigset_t signals, before;
    if (http_library_version() == NULL)
        return fail(ERR_UNSUPPORTED, "this build has no HTTP server; install libmicrohttpd "
                                     "(apt-get install libmicrohttpd-dev), then make");
    mem_keep_freed();
    /* Before any thread starts: they all inherit it, and only this one waits for signals. */
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    pthread_sigmask(SIG_BLOCK, &signals, &before);
    status st = open_log(a);
    finish_config(a);
    if (st == OK) st = server_start(&s, &a->c);
    if (st == OK) {
        tell_start(a, s);
        st = wait_checked(a, s, &signals, &is_ending);
    }
    if (st == OK) st = wait_for_end(a, s, &signals, is_ending);
    if (st == OK && is_ending) st = end_early(a, s);
    if (st == ERR_INTERRUPTED) { /* what was acknowledged is on disk; nothing else is owed */
        log_warn("%s", status_reason());
        close_log(a);
        _exit(1);
    }
    server_stop(s);
    close_log(a);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return st;
}

/* A rank takes the device of its number from the list, or the only one, of GPUs in turn. */
static status choose_device(serve_args *a, char own[32], char turn[32]) {
    const char *list = a->c.engine.device, *at = list;
    int n = 1, rank = a->ranks->rank;
    for (const char *comma = list; (comma = strchr(comma, ',')) != NULL; comma++)
        if (n++ == rank) at = comma + 1;
    if ((n > 1 && n != a->ranks->size) || strncmp(at, list, 3) != 0)
        return fail(ERR_USAGE,
                    "--tensor-parallel %d: --device names %d devices; name %d of one kind, or one. "
                    "Replicas of models that ranks share need a server each",
                    a->ranks->size, n, a->ranks->size);
    snprintf(own, 32, "%.*s", (int)strcspn(at, ","), at);
    a->c.engine.device = own;
    TRY(env_threads_of(a->ranks->size, &a->c.engine.n_threads));
    return work_choose_gpu(a->ranks, &a->c.engine.device, turn);
}

/* Rank 0 is the server, and the others follow it (tensor_group.h); this process supervises them. */
static status run_ranks(serve_args *a) {
    char own[32], turn[32];
    tensor_group **group = &a->c.engine.group;
    status st = ranks_fork(&a->ranks, (int)a->tensor_parallel, RANKS_PATIENCE_MS);
    if (a->ranks == NULL) return st;
    if (st == OK) st = choose_device(a, own, turn);
    if (st == OK) st = tensor_group_create(group, a->ranks);
    if (st == OK) st = a->ranks->rank == 0 ? run(a) : tensor_group_follow(*group, &a->c.engine);
    tensor_group_destroy(*group);
    return ranks_leave(a->ranks, st);
}

static status check(serve_args *a) {
    TRY(choose_names(a));
    TRY(read_shadows(a));
    return read_split(a);
}

status cmd_serve(int argc, char **argv) {
    serve_args a = {
        .c = {.http = http_default_settings(), .engine = {.device = "auto", .kv_pages = -1}},
        .drain_timeout_s = 30,
        .erase_within_s = 60,
        .max_body_mib = 8,
        .max_buffered_mib = 256};
    http_settings *http = &a.c.http;
    engine_config *e = &a.c.engine;
    const arg_option options[] = {
        OPT_TEXT("--data", &e->data, "DIR",
                 "Prepared data with initial user histories; items are matched by id."),
        OPT_TEXT("--state", &e->state, "DIR",
                 "Keep users' events in this folder; acknowledged events survive a crash. Without "
                 "it they are kept in memory."),
        OPT_INT(
            "--erase-within", &a.erase_within_s, "S", 1, 86400,
            "Remove erased users from the files of --state within this many seconds (default 60)."),
        OPT_TEXT("--device", &e->device, "DEVICE,...",
                 "Device: auto (default), cpu, cuda or cuda:N. Several, as in cuda:0,cuda:1: a "
                 "replica of each model on each, and each user's requests go to one of them."),
        OPT_INT("--tensor-parallel", &a.tensor_parallel, "T", 1, SHM_MAX_RANKS,
                "Processes that share the layers of each model, for models too large for one GPU "
                "(default 1). Each has a GPU of its own, or that of --device, and 1/T of the "
                "attention heads; T must divide them. NVIDIA-style HSTU models only."),
        OPT_GROUP("Network"),
        OPT_TEXT("--host", &http->host, "HOST",
                 "Address to listen on (default 127.0.0.1: this machine only). There is no TLS: "
                 "put a proxy such as nginx in front of a public server."),
        OPT_INT("--port", &http->port, "PORT", 0, 65535, "Port (default 8080; 0: any free one)."),
        OPT_TEXT("--keys", &a.c.keys, "FILE",
                 "File of API keys, one per line: KEY NAME REQUESTS_PER_SECOND ROLES. 0 means no "
                 "limit; roles: read, events, admin."),
        OPT_LIST("--allow-host", &a.allow_hosts, "NAME",
                 "Accept requests with this Host header; '*' accepts any (default without --keys: "
                 "IP addresses, localhost, this machine's name and --host)."),
        OPT_INT("--connections", &http->max_connections, "N", 1, 1000000,
                "Maximum number of connections (default 4096)."),
        OPT_INT("--connections-per-address", &http->max_per_address, "N", 1, 1000000,
                "Maximum number per address (default 1024)."),
        OPT_INT("--max-body", &a.max_body_mib, "MIB", 1, 1024,
                "Largest request body, in MiB (default 8)."),
        OPT_INT("--max-buffered", &a.max_buffered_mib, "MIB", 1, 1 << 20,
                "Memory for bodies and answers over 64 KiB, in MiB (default 256); one address may "
                "use half of it."),
        OPT_GROUP("Several models"),
        OPT_LIST("--name", &a.names, "NAME",
                 "Name of a model, in the order of the paths (default: the folder's name)."),
        OPT_TEXT("--split", &a.split, "A,B,...",
                 "Share of the users per model, assigned by a hash of the user id (default: the "
                 "first model answers unless a request names another)."),
        OPT_LIST("--shadow", &a.shadows, "NAME",
                 "Also send requests to this model and only log its answers."),
        OPT_TEXT("--reload-from", &a.c.reload_from, "DIR",
                 "Let reload requests name runs and data in this folder (default: a reload opens "
                 "the same paths again)."),
        OPT_GROUP("Requests"),
        OPT_INT("--deadline", &a.deadline_ms, "MS", 1, 600000,
                "Reject requests that cannot be answered within this time, unless they name their "
                "own deadline (default: none; a request is rejected if it would wait longer than "
                "250 ms, or ten times the normal p99)."),
        OPT_INT("--max-batch", &e->max_batch, "N", 1, 4096,
                "Requests per batch (default: the engine's, otherwise 64)."),
        OPT_INT("--max-tokens", &e->max_tokens, "N", 1, 1 << 24,
                "Computed tokens per batch (default: the engine's, otherwise 8192)."),
        OPT_INT("--max-queue", &e->max_queue, "N", 1, 1 << 20,
                "Maximum number of waiting requests (default 1024)."),
        OPT_INT("--max-queue-mib", &a.queue_mib, "MIB", 1, 1 << 20,
                "Memory for waiting requests, in MiB (default 1024)."),
        OPT_INT("--kv-pages", &e->kv_pages, "N", 0, INT32_MAX,
                "Pages of 64 tokens in the KV cache of each model; 0: no cache (default: the "
                "engine's, otherwise by memory)."),
        OPT_INT("--kv-host-pages", &e->kv_host_pages, "N", 0, INT32_MAX, KV_HOST_PAGES),
        OPT_CHOICE("--kv-load", &e->loads_always, "RULE", kv_args_loads, KV_LOADS),
        OPT_CHOICE("--kv-dtype", &e->has_fp8_kv, "TYPE", kv_args_dtypes, KV_DTYPES),
        OPT_FLAG("--int8-items", &e->has_int8_items,
                 "On the CPU: rule out most items by 8-bit numbers before reading their float32 "
                 "rows; the answers are the same (default: as in the engine)."),
        OPT_TEXT("--search", &e->search, "HOW",
                 "Of a mixture of logits: exact (default), or two stages, as in 'hstu recommend'; "
                 "no list is then longer than the candidates."),
        OPT_GROUP("Logging and shutdown"),
        OPT_TEXT("--access-log", &a.access_log, "FILE",
                 "Log each request as a JSON line; - is stdout, off disables it (default: stdout "
                 "if it is a file, otherwise off)."),
        OPT_INT("--drain-delay", &a.drain_delay_s, "S", 0, 3600,
                "After SIGTERM, report not ready and keep serving for this long (default 0)."),
        OPT_INT("--drain-timeout", &a.drain_timeout_s, "S", 0, 3600,
                "Then wait at most this long for pending answers (default 30)."),
        {0},
    };
    const arg_spec spec = {
        .usage = "hstu serve RUN|ENGINE... [--data DIR] [--port 8080] [--state DIR]",
        .summary =
            "Serve trained models over HTTP: recommendations, ranking, users' events, KServe v2, "
            "Prometheus metrics, and a web page at /. docs/server.md lists the routes.",
        .options = options,
        .min_positional = 1,
        .max_positional = ENGINE_MAX_MODELS,
        .notes = "SIGTERM or Ctrl-C finishes pending requests and exits; a second one exits at "
                 "once.\n  curl localhost:8080/v1/recommend -d '{\"user\": 7, \"top_k\": 5}'\n"};
    ARGS_PARSE(&spec, a.path, &a.n_paths);
    TRY(check(&a));
    return a.tensor_parallel > 1 ? run_ranks(&a) : run(&a);
}
