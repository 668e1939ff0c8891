/* The communicator of a rank: all ranks agree whether they use NCCL. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/env.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "dist/nccl.h"

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

typedef struct agreement {
    int without;     /* the first rank without NCCL, or -1 */
    int other;       /* the first rank with another version than rank 0, or -1 */
    int most_on_gpu; /* ranks that share a GPU, the most of all GPUs */
    bool has_no_gpu; /* a rank is on the CPU */
} agreement;

static agreement compare(const rank_gpu *all, int size) {
    agreement a = {.without = -1, .other = -1};
    for (int r = size - 1; r >= 0; r--) {
        if (all[r].version == 0) a.without = r;
        if (all[r].version != all[0].version) a.other = r;
        a.has_no_gpu = a.has_no_gpu || all[r].gpu == 0;
        int n = 0;
        for (int q = 0; q < size; q++)
            n += all[q].gpu == all[r].gpu;
        if (n > a.most_on_gpu) a.most_on_gpu = n;
    }
    return a;
}

/* Why NCCL is not used, in words; NULL: it is. */
static const char *why_not(const agreement *a, bool is_asked, char text[160]) {
    if (a->without >= 0)
        snprintf(text, 160, "rank %d did not find NCCL", a->without);
    else if (a->other >= 0)
        snprintf(text, 160, "rank %d has another version of NCCL than rank 0", a->other);
    else if (a->most_on_gpu > 1 && !is_asked)
        snprintf(text, 160,
                 "several ranks share a GPU, where NCCL needs the MPS daemon (--nccl on)");
    else
        return NULL;
    return text;
}

static bool is_word(const char *text) {
    return strcmp(text, "auto") == 0 || strcmp(text, "on") == 0 || strcmp(text, "off") == 0;
}

static status choose(comm **out, backend *be, transport *t, const rank_options *o, rank_gpu *all) {
    static nccl_lib lib; /* stays loaded */
    const char *choice = o->nccl != NULL ? o->nccl : "auto";
    bool is_asked = strcmp(choice, "auto") != 0;
    char text[160], reason[1024] = "";
    rank_gpu own = {.gpu = gpu_of(be)};
    if (own.gpu != 0 && strcmp(choice, "off") != 0) {
        if (nccl_lib_load(&lib, is_word(choice) ? NULL : choice) == OK)
            own.version = lib.version;
        else
            snprintf(reason, sizeof reason, "%s", status_reason());
    }
    TRY(transport_gather(t, &own, sizeof own, all));
    agreement a = compare(all, t->size);
    if (strcmp(choice, "off") == 0 || a.has_no_gpu) return comm_create_host(out, be, t);
    const char *why = why_not(&a, is_asked, text);
    if (why != NULL && is_asked)
        return fail(ERR_UNSUPPORTED, "--nccl %.200s: %s", choice, reason[0] != '\0' ? reason : why);
    if (why != NULL) {
        log_info("gradients of the ranks go through memory of the host: %s",
                 reason[0] != '\0' ? reason : why);
        return comm_create_host(out, be, t);
    }
    bool is_shared = a.most_on_gpu > 1;
    if (is_shared) env_share_gpu(t->rank, a.most_on_gpu, lib.version >= MULTI_RANK_VERSION);
    log_info("NCCL %d.%d.%d (%s) connects %d ranks%s", lib.version / 10000, lib.version / 100 % 100,
             lib.version % 100, lib.path, t->size, is_shared ? ", several on a GPU" : "");
    return comm_create_nccl(out, be, t, &lib, o->is_deterministic);
}

status comm_create_ranks(comm **out, backend *be, transport *t, const rank_options *o) {
    rank_gpu *all;
    *out = NULL;
    TRY(MEM_NEW(&all, (size_t)t->size));
    status st = choose(out, be, t, o, all);
    mem_free(all);
    return st;
}
