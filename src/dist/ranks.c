#include "dist/ranks.h"

#include "dist/mpi.h"
#include "dist/nccl.h"
#include "dist/shm.h"
#include "dist/tcp.h"
#include "hstu.h"

/* Only the first rank prints. */
static status join_by_tcp(transport **out) {
    env_torchrun e;
    TRY(env_read_torchrun(&e));
    if (e.rank > 0) transport_silence();
    tcp_start start = {.rank = e.rank,
                       .size = e.size,
                       .local_rank = e.local_rank,
                       .local_size = e.local_size,
                       .address = e.address,
                       .port = e.port,
                       .secret = env_job_secret()};
    status st = tcp_create(out, &start);
    return st != OK && e.rank > 0 ? fail_prefix(st, "rank %d", e.rank) : st;
}

status ranks_start(transport **out, int n, bool *is_over) {
    env_launcher launcher = env_launched_by();
    *out = NULL;
    *is_over = false;
    if (launcher != LAUNCHER_NONE && n > 1)
        return fail(ERR_USAGE,
                    "--ranks %d starts ranks by itself; %s has started some already: leave one of "
                    "them out",
                    n, launcher == LAUNCHER_MPI ? "mpirun" : "torchrun (WORLD_SIZE, RANK)");
    if (launcher == LAUNCHER_TORCHRUN) return join_by_tcp(out);
    if (launcher == LAUNCHER_MPI) return mpi_create(out);
    if (n <= 1) return OK;
    status st = ranks_fork(out, n, RANKS_PATIENCE_MS);
    *is_over = *out == NULL;
    return st;
}

status ranks_leave(transport *t, status st) {
    return t != NULL ? t->ops->leave(t, st) : st;
}

rank_facts rank_facts_here(void) {
    rank_facts f = {.clock_s = (int64_t)time(NULL)};
    snprintf(f.version, sizeof f.version, "%s", HSTU_VERSION);
    gethostname(f.host, sizeof f.host - 1);
    return f;
}

static status compare(const rank_facts *all, int r) {
    const rank_facts *a = &all[0], *b = &all[r];
    if (strncmp(a->version, b->version, AGREE_TEXT_BYTES) != 0)
        return fail(ERR_CONFIG, "rank %d on %.63s has hstu %.63s, rank 0 on %.63s has %.63s", r,
                    b->host, b->version, a->host, a->version);
    if (a->config != b->config)
        return fail(
            ERR_CONFIG,
            "rank %d on %.63s uses a different config or different options than rank 0 on %.63s", r,
            b->host, a->host);
    if (a->data != b->data)
        return fail(ERR_CONFIG, "rank %d on %.63s uses different data than rank 0 on %.63s", r,
                    b->host, a->host);
    int64_t ahead = b->clock_s - a->clock_s;
    if (ahead > AGREE_CLOCK_S || ahead < -AGREE_CLOCK_S)
        return fail(ERR_CONFIG,
                    "the clock of rank %d on %.63s is %lld s %s that of rank 0 on %.63s: set it "
                    "right (NTP)",
                    r, b->host, (long long)(ahead > 0 ? ahead : -ahead),
                    ahead > 0 ? "ahead of" : "behind", a->host);
    return OK;
}

status ranks_agree(transport *t, const rank_facts *own) {
    rank_facts *all;
    if (t == NULL) return OK;
    TRY(MEM_NEW(&all, (size_t)t->size));
    status st = transport_gather(t, own, sizeof *own, all);
    for (int r = 1; r < t->size && st == OK; r++)
        st = compare(all, r);
    mem_free(all);
    return st;
}

/* Several ranks on one GPU: from this version by a setting of its own. */
enum { MULTI_RANK_VERSION = 23003 };

/* What ranks tell each other. */
typedef struct rank_gpu {
    uint64_t gpu;    /* hash of the machine and its GPU; 0: the CPU */
    int64_t version; /* of NCCL; 0: not found */
} rank_gpu;

/* Ranks with another list of visible GPUs may mean another one by the same name. */
static uint64_t gpu_of(const backend *be) {
    char text[1024], host[256] = "";
    if (be->is_host) return 0;
    gethostname(host, sizeof host - 1);
    const char *visible = env_visible_gpus();
    int n = snprintf(text, sizeof text, "%s|%s|%s", host, visible != NULL ? visible : "", be->name);
    uint64_t hash = hash64(text, n < (int)sizeof text ? (size_t)n : sizeof text - 1, 0);
    return hash | 1;
}

/* The most ranks that share a GPU; 0: a rank is on the CPU. */
static int most_on_gpu(const rank_gpu *all, int size) {
    int most = 0;
    for (int r = 0; r < size; r++) {
        int n = 0;
        for (int q = 0; q < size; q++)
            n += all[q].gpu == all[r].gpu;
        if (all[r].gpu == 0) return 0;
        if (n > most) most = n;
    }
    return most;
}

/* Why NCCL is not used, in words; NULL: it is. */
static const char *why_not(const rank_gpu *all, int size, bool shares_gpu, char text[160]) {
    for (int r = 0; r < size; r++)
        if (all[r].version == 0) {
            snprintf(text, 160, "rank %d did not find NCCL", r);
            return text;
        }
    for (int r = 1; r < size; r++)
        if (all[r].version != all[0].version) {
            snprintf(text, 160, "rank %d has another version of NCCL than rank 0", r);
            return text;
        }
    return shares_gpu ? "several ranks share a GPU, where NCCL needs the MPS daemon (--nccl on)"
                      : NULL;
}

static bool is_word(const char *text) {
    return strcmp(text, "auto") == 0 || strcmp(text, "on") == 0 || strcmp(text, "off") == 0;
}

/* NCCL, which stays loaded.  Ranks may be threads of one process, and others may be at work with
 * it: it is loaded once for each path. */
static status find_nccl(const nccl_lib **out, const char *path) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static nccl_lib lib;
    static char asked[PATH_MAX];
    const char *name = path != NULL ? path : "libnccl.so.2";
    pthread_mutex_lock(&lock);
    status st = strcmp(asked, name) == 0 ? OK : nccl_lib_load(&lib, path);
    snprintf(asked, sizeof asked, "%s", st == OK ? name : "");
    pthread_mutex_unlock(&lock);
    *out = &lib;
    return st;
}

static status choose(comm **out, backend *be, transport *t, const rank_options *o, rank_gpu *all) {
    const nccl_lib *lib = NULL;
    const char *choice = o->nccl != NULL ? o->nccl : "auto";
    bool is_asked = strcmp(choice, "auto") != 0;
    char text[160], reason[1024] = "";
    rank_gpu own = {.gpu = gpu_of(be)};
    if (own.gpu != 0 && strcmp(choice, "off") != 0) {
        if (find_nccl(&lib, is_word(choice) ? NULL : choice) == OK)
            own.version = lib->version;
        else
            snprintf(reason, sizeof reason, "%s", status_reason());
    }
    TRY(transport_gather(t, &own, sizeof own, all));
    int most = most_on_gpu(all, t->size);
    if (strcmp(choice, "off") == 0 || most == 0) return comm_create_host(out, be, t);
    const char *why = why_not(all, t->size, most > 1 && !is_asked, text);
    if (why != NULL && is_asked)
        return fail(ERR_UNSUPPORTED, "--nccl %.200s: %s", choice, reason[0] != '\0' ? reason : why);
    if (why != NULL) {
        log_info("ranks exchange gradients through host memory: %s",
                 reason[0] != '\0' ? reason : why);
        return comm_create_host(out, be, t);
    }
    bool is_shared = most > 1;
    if (is_shared) env_share_gpu(t->rank, most, lib->version >= MULTI_RANK_VERSION);
    log_info("NCCL %d.%d.%d (%s) connects %d ranks%s", lib->version / 10000,
             lib->version / 100 % 100, lib->version % 100, lib->path, t->size,
             is_shared ? ", several on a GPU" : "");
    return comm_create_nccl(out, be, t, lib, o->is_deterministic);
}

status comm_create_ranks(comm **out, backend *be, transport *t, const rank_options *o) {
    rank_gpu *all;
    *out = NULL;
    TRY(MEM_NEW(&all, (size_t)t->size));
    status st = choose(out, be, t, o, all);
    mem_free(all);
    return st;
}

/* All members must end with the same bits, so that what they have in common stays the same: sums
 * have a fixed order. */
static status make_comm(transport **t, comm **c, transport *ranks, backend *be, const comm *world,
                        rank_group g) {
    if (g.size == 1) return OK;
    TRY(transport_group(t, ranks, &g));
    return comm_is_nccl(world) ? comm_create_nccl_group(c, world, *t) : comm_create_host(c, be, *t);
}

status rank_grid_create(rank_grid *g, transport *ranks, backend *be, const comm *world, int size) {
    int n = ranks->size;
    *g = (rank_grid){0};
    if (size < 2 || n % size != 0)
        return fail(ERR_USAGE, "%d ranks cannot be divided into groups of %d", n, size);
    rank_group near = {ranks->rank / size * size, 1, size};
    rank_group far = {ranks->rank % size, size, n / size};
    status st = make_comm(&g->near, &g->group, ranks, be, world, near);
    if (st == OK) st = make_comm(&g->far, &g->data, ranks, be, world, far);
    if (st != OK) rank_grid_destroy(g);
    return st;
}

void rank_grid_give_up(rank_grid *g) {
    comm_give_up(g->group);
    comm_give_up(g->data);
}

void rank_grid_destroy(rank_grid *g) {
    comm_destroy(g->group);
    comm_destroy(g->data);
    transport_destroy(g->near);
    transport_destroy(g->far);
    *g = (rank_grid){0};
}
