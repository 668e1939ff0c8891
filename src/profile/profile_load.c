#include "profile/profile_load.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "profile/nesting.h"
#include "profile/record_file.h"

enum { PATH_BYTES = 4096 };

/* Correlation numbers begin again in each process, so each gets a range of its own. */
typedef struct loader {
    profile *p;
    uint32_t base, top;
    int n_processes;
    size_t first_lane, last_lane, capacity; /* of this process; the one found last */
    bool has_gpu;
} loader;

enum { MAX_LANES = 4096 }; /* the threads after that share the last one's */

/* The number of a thread's lane. */
static status find_lane(loader *l, uint32_t thread, bool may_overlap, uint32_t *out) {
    profile *p = l->p;
    size_t at = l->last_lane;
    if (at >= p->n_lanes || p->lanes[at].thread != thread ||
        p->lanes[at].may_overlap != may_overlap)
        for (at = l->first_lane; at < p->n_lanes; at++)
            if (p->lanes[at].thread == thread && p->lanes[at].may_overlap == may_overlap) break;
    if (at == p->n_lanes && at >= MAX_LANES) at--;
    if (at == p->n_lanes) {
        TRY(MEM_RESERVE(&p->lanes, &l->capacity, at + 1));
        p->lanes[p->n_lanes++] = (profile_lane){0, thread, may_overlap};
    }
    l->last_lane = at;
    *out = (uint32_t)at;
    return OK;
}

static void widen(profile *p, uint64_t start_ns, uint64_t end_ns) {
    if (start_ns == 0 || end_ns == 0) return; /* not known */
    if (p->start_ns == 0 || start_ns < p->start_ns) p->start_ns = start_ns;
    if (end_ns > p->end_ns) p->end_ns = end_ns;
}

static status add(void *ctx, const gpu_record *r) {
    loader *l = ctx;
    gpu_record moved = *r;
    if (r->correlation > 0) moved.correlation += l->base;
    if (moved.correlation > l->top) l->top = moved.correlation;
    widen(l->p, r->start_ns, r->end_ns);
    if (r->kind == GPU_CALL || r->kind == HOST_RANGE)
        TRY(find_lane(l, r->thread, r->kind == HOST_RANGE && r->stream == 1, &moved.thread));
    if (r->kind != HOST_RANGE && r->kind != GPU_DEVICE) l->has_gpu = true;
    return profile_add(l->p, &moved);
}

static status describe(const record_summary *s, buf *text) {
    TRY(buf_printf(text, "process %" PRId64 " (%s): %" PRIu64 " records", s->pid, s->command,
                   s->n_records));
    if (s->n_lost > 0) TRY(buf_printf(text, ", %" PRIu64 " dropped by CUPTI", s->n_lost));
    if (s->note[0] != '\0') TRY(buf_printf(text, "; %s", s->note));
    if (!s->is_whole)
        TRY(buf_text(text, "; it did not end in order, so the last of them may be missing"));
    return buf_char(text, '\n');
}

static status load_file(loader *l, const char *path, buf *text) {
    record_summary s;
    l->has_gpu = false;
    l->first_lane = l->last_lane = l->p->n_lanes;
    TRY(record_file_read(path, add, l, &s));
    for (size_t i = l->first_lane; i < l->p->n_lanes; i++)
        l->p->lanes[i].pid = s.pid;
    l->base = l->top;
    l->n_processes++;
    l->p->n_gpu_lost += s.n_lost;
    l->p->has_gpu = l->p->has_gpu || l->has_gpu;
    if (s.note[0] != '\0') snprintf(l->p->gpu_reason, sizeof l->p->gpu_reason, "%s", s.note);
    return describe(&s, text);
}

static bool is_record_file(const char *name) {
    size_t n = strlen(name);
    return n > 8 && strcmp(name + n - 8, ".records") == 0;
}

static status load_all(loader *l, const char *folder, buf *text) {
    char path[PATH_BYTES];
    DIR *dir = opendir(folder);
    if (dir == NULL) return fail_errno("%s", folder);
    status st = OK;
    for (struct dirent *e = readdir(dir); st == OK && e != NULL; e = readdir(dir)) {
        if (!is_record_file(e->d_name)) continue;
        st = path_join(path, sizeof path, folder, e->d_name);
        if (st == OK) st = load_file(l, path, text);
    }
    closedir(dir);
    return st;
}

status profile_load(profile *p, const char *folder, buf *out_text) {
    const recorder_schedule all = {0};
    loader l = {.p = p};
    *p = (profile){0};
    memory_log_init(&p->memory);
    TRY(recorder_init(&p->recorder, &all));
    TRY(load_all(&l, folder, out_text));
    if (!p->has_gpu && p->gpu_reason[0] == '\0')
        snprintf(p->gpu_reason, sizeof p->gpu_reason,
                 "no process of the program used CUDA's driver (or CUDA_INJECTION64_PATH was "
                 "removed from its environment)");
    if (p->recorder.n_gpus > 0)
        snprintf(p->device, sizeof p->device, "cuda, %s", p->recorder.gpus[0].name);
    TRY(profile_link(p));
    return ranges_nest(&p->recorder);
}
