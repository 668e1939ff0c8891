#include "cli/machine/plan_args.h"

#include <stdlib.h>
#include <string.h>

#include "base/env.h"
#include "base/log.h"
#include "cli/bench/bench.h"

static status read_dtype(const char *text, act_type *out) {
    for (int i = ACT_F32; i <= ACT_F16; i++) {
        *out = (act_type)i;
        if (strcmp(text, bench_act_name(*out)) == 0) return OK;
    }
    return fail(ERR_USAGE, "--dtype %.40s: the types are float32, bfloat16 and float16", text);
}

/* -1: the CPU; else the number of the GPU. */
static status read_device(const char *text, int *out) {
    char *end;
    *out = strcmp(text, "cpu") == 0 ? -1 : 0;
    if (*out == -1 || strcmp(text, "auto") == 0 || strcmp(text, "cuda") == 0) return OK;
    if (strncmp(text, "cuda:", 5) == 0 && text[5] >= '0' && text[5] <= '9') {
        long n = strtol(text + 5, &end, 10);
        *out = (int)n;
        if (*end == '\0' && n < 1024) return OK;
    }
    return fail(ERR_USAGE, "--device %.60s: the devices are auto, cpu, cuda and cuda:N", text);
}

/* auto: a GPU if one can be used, else the CPU. */
static status open_target(plan_rig *g, const plan_args *a, const kernel_cache *cache) {
    act_type act = ACT_F16;
    int device;
    bool is_auto = strcmp(a->device, "auto") == 0;
    TRY(read_device(a->device, &device));
    if (a->dtype != NULL) TRY(read_dtype(a->dtype, &act));
    if (device >= 0) {
        status st = target_create_cuda(&g->t, device, act, cache);
        if (st == OK || !is_auto || st == ERR_NOMEM) return st;
    }
    if (a->dtype != NULL && act != ACT_F32)
        log_info("the CPU computes in float32, whatever --dtype says");
    return target_create_cpu(&g->t, g->workers, cache);
}

status plan_rig_open(plan_rig *g, const plan_args *a) {
    kernel_cache cache;
    const chain *c;
    int n_threads;
    problem_options o = {.n_sequences = a->batch,
                         .max_len = a->length,
                         .n_heads = a->heads,
                         .dim_head = a->dim,
                         .dim_ffn = a->ffn == 4 * a->heads * a->dim ? 0 : a->ffn,
                         .avg_len = a->avg_len,
                         .seed = (uint64_t)a->seed};
    *g = (plan_rig){0};
    TRY(chain_find(a->layer, &c));
    TRY(mask_create(&g->rule, a->mask));
    o.rule = g->rule;
    TRY(chain_problem_check(c, &o)); /* first: wrong usage is told whatever the device does */
    TRY(env_threads(&n_threads));
    TRY(pool_create(&g->workers, n_threads));
    TRY(kernel_cache_open(&cache, a->cache));
    TRY(open_target(g, a, &cache));
    o.act = g->t->act;
    TRY(chain_problem_create(&g->p, c, &o));
    return plan_runner_create(&g->r, g->p, g->t, g->workers);
}

void plan_rig_close(plan_rig *g) {
    plan_runner_destroy(g->r);
    chain_problem_destroy(g->p);
    target_destroy(g->t);
    mask_destroy(g->rule);
    pool_destroy(g->workers);
    *g = (plan_rig){0};
}

status plan_rig_text(const plan_rig *g, const plan_args *a, buf *out) {
    const chain_shape *s = &g->p->shape;
    TRY(buf_printf(out, "%s on %s in %s: batch %d, length %d, %lld tokens, %d x %d", g->p->c->name,
                   g->t->name, bench_act_name(g->t->act), s->n_sequences, s->max_len,
                   (long long)s->n_tokens, s->n_heads, s->dim_head));
    if (s->dim_ffn > 0) TRY(buf_printf(out, ", FFN %d", s->dim_ffn));
    return buf_printf(out, ", mask %s", a->mask);
}
