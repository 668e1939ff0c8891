#include "tune/target_peak.h"

#include "base/sort.h"
#include "profile/peak.h"

enum { ROUNDS = 7 };

/* Larger than any cache. */
static const size_t gpu_bytes = (size_t)512 << 20, cpu_bytes = (size_t)128 << 20;

typedef struct copy_job {
    target *t;
    void *from, *to;
    size_t bytes;
} copy_job;

static status run_copy(void *ctx) {
    const copy_job *j = ctx;
    return j->t->copy(j->t, j->to, j->from, j->bytes);
}

static status measure_copy(target *t, double *out) {
    copy_job j = {.t = t, .bytes = t->is_cuda ? gpu_bytes : cpu_bytes};
    double seconds[ROUNDS];
    status st = t->alloc(t, &j.from, j.bytes);
    if (st == OK) st = t->alloc(t, &j.to, j.bytes);
    if (st == OK) st = t->fill(t, j.from, 0x3c, j.bytes);
    if (st == OK) st = t->time(t, run_copy, &j, ROUNDS, seconds);
    t->release_memory(t, j.from);
    t->release_memory(t, j.to);
    if (st != OK) return st;
    *out = 2 * (double)j.bytes / median(seconds, ROUNDS);
    return OK;
}

status target_peak_measure(target *t, target_peak *out) {
    *out = (target_peak){0};
    TRY(measure_copy(t, &out->bytes_per_s));
    return t->be != NULL ? peak_measure(t->be, &out->flop_per_s) : OK;
}
