#include "profile/profile_load.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "profile/record_file.h"

enum { PATH_BYTES = 4096 };

/* Correlation numbers begin again in each process, so each gets a range of its own. */
typedef struct loader {
    profile *p;
    uint32_t base, top;
    int n_processes;
} loader;

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
    TRY(record_file_read(path, add, l, &s));
    l->base = l->top;
    l->n_processes++;
    l->p->n_gpu_lost += s.n_lost;
    l->p->has_gpu = l->p->has_gpu || s.n_records > 0;
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
    if (l.n_processes == 0)
        snprintf(p->gpu_reason, sizeof p->gpu_reason,
                 "no process of the program used CUDA's driver (or CUDA_INJECTION64_PATH was "
                 "removed from its environment)");
    if (p->recorder.n_gpus > 0)
        snprintf(p->device, sizeof p->device, "cuda, %s", p->recorder.gpus[0].name);
    return profile_link(p);
}
