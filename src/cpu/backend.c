#include <cblas.h>
#include <string.h>

#include "base/mem.h"
#include "cpu/cpu.h"
#include "cpu/table.h"

/* One block for each worker, and one more, the last, for the calling thread (CPU_SHARED).  The pad
 * keeps the slots of two workers off one cache line while both grow. */
typedef struct scratch {
    void *memory;
    size_t bytes;
    char pad[64 - sizeof(void *) - sizeof(size_t)];
} scratch;

typedef struct cpu_state {
    int n_workers;
    scratch *slots; /* (n_workers + 1) */
} cpu_state;

status cpu_scratch(backend *be, int worker, size_t bytes, void **out) {
    cpu_state *state = be->state;
    scratch *slot = &state->slots[worker == CPU_SHARED ? state->n_workers : worker];
    *out = NULL;
    if (bytes > slot->bytes || slot->memory == NULL) {
        /* The content need not survive, so the old block is freed first: less memory at the peak.
         */
        mem_free(slot->memory);
        *slot = (scratch){0};
        TRY(mem_alloc_raw(&slot->memory, bytes, 1));
        slot->bytes = bytes;
    }
    *out = slot->memory;
    return OK;
}

static status memory_alloc(backend *be, void **out, size_t bytes) {
    (void)be;
    return mem_alloc(out, bytes, 1);
}

static void memory_release(backend *be, void *memory) {
    (void)be;
    mem_free(memory);
}

static status memory_copy(backend *be, void *to, const void *from, size_t bytes) {
    (void)be;
    if (bytes > 0) memcpy(to, from, bytes);
    return OK;
}

static status memory_zero(backend *be, void *memory, size_t bytes) {
    (void)be;
    if (bytes > 0) memset(memory, 0, bytes);
    return OK;
}

static status stay_float32(backend *be, act_type act, bool is_tf32) {
    (void)be;
    (void)act;
    (void)is_tf32;
    return OK;
}

static status memory_fetch(backend *be, void *to, const void *from, size_t bytes,
                           uint64_t *ticket) {
    *ticket = 0;
    return memory_copy(be, to, from, bytes);
}

static status nothing_on_its_way(backend *be, uint64_t ticket) {
    (void)be;
    (void)ticket;
    return OK;
}

static status run_always(backend *be, uint64_t key, record_state *out) {
    (void)be;
    (void)key;
    *out = RECORD_RUN;
    return OK;
}

/* An op of this backend is done when it returns. */
static status nothing_to_wait_for(backend *be) {
    (void)be;
    return OK;
}

static const ops cpu_ops = {
    .set_precision = stay_float32,
    .alloc = memory_alloc,
    .release = memory_release,
    .copy_in = memory_copy,
    .copy_out = memory_copy,
    .fetch = memory_fetch,
    .wait = nothing_on_its_way,
    .zero = memory_zero,
    .sync = nothing_to_wait_for,
    .record = run_always,
    .record_end = nothing_to_wait_for,
    .gather = cpu_gather,
    .group = cpu_group,
    .scatter = cpu_scatter,
    .linear_fwd = cpu_linear_fwd,
    .linear_bwd = cpu_linear_bwd,
    .activate = cpu_activate,
    .norm_fwd = cpu_norm_fwd,
    .norm_bwd = cpu_norm_bwd,
    .gate_fwd = cpu_gate_fwd,
    .gate_bwd = cpu_gate_bwd,
    .dropout = cpu_dropout,
    .l2_fwd = cpu_l2_fwd,
    .l2_bwd = cpu_l2_bwd,
    .add = cpu_add,
    .attn_fwd = cpu_attn_fwd,
    .attn_bwd = cpu_attn_bwd,
    .softmax_attn_fwd = cpu_softmax_attn_fwd,
    .softmax_attn_bwd = cpu_softmax_attn_bwd,
    .negatives = cpu_negatives,
    .sampled_softmax = cpu_sampled_softmax,
    .sampled_softmax_scratch = cpu_sampled_softmax_scratch,
    .logits_loss = cpu_logits_loss,
    .mark = cpu_mark,
    .update = cpu_update,
    .grad_factor = cpu_grad_factor,
    .sum_squares = cpu_sum_squares,
    .rank = cpu_rank,
};

static void destroy(backend *be) {
    cpu_state *state = be->state;
    for (int i = 0; i <= state->n_workers; i++)
        mem_free(state->slots[i].memory);
    mem_free(state->slots);
    mem_free(state);
    mem_free(be);
}

status backend_create_cpu(backend **out, pool *workers) {
    backend *be;
    cpu_state *state = NULL;
    *out = NULL;
    TRY(MEM_NEW(&be, 1));
    status st = MEM_NEW(&state, 1);
    if (st == OK) {
        state->n_workers = workers == NULL ? 1 : pool_n_threads(workers);
        st = MEM_NEW(&state->slots, (size_t)state->n_workers + 1);
    }
    if (st != OK) {
        mem_free(state);
        mem_free(be);
        return st;
    }
    *be = (backend){.ops = &cpu_ops,
                    .tables = &cpu_table_ops,
                    .act = ACT_F32,
                    .name = "cpu",
                    .workers = workers,
                    .state = state,
                    .destroy = destroy};
    /* The threads are ours: OpenBLAS works on the thread that calls it. */
    openblas_set_num_threads(1);
    *out = be;
    return OK;
}
