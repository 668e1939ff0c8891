#include "cpu/cpu.h"
#include "cpu/table.h"

/* One block for each worker, and one more, at the end, for the calling thread (CPU_SHARED).  The
 * padding keeps the slots of two workers on different cache lines while both grow. */
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

typedef struct each_job {
    backend *be;
    const void *ctx;
    int64_t n, size;
    cpu_rows_fn *fn;
} each_job;

static status each_chunk(void *ctx, int64_t chunk, int worker) {
    const each_job *job = ctx;
    cpu_range range = cpu_chunk(chunk, job->size, job->n);
    cpu_rows w = {job->be, job->ctx, range.first, range.end, chunk, worker};
    return job->fn(&w);
}

status cpu_each(backend *be, int64_t n, int64_t size, cpu_rows_fn *fn, const void *ctx) {
    each_job job = {be, ctx, n, size, fn};
    return pool_run(be->workers, cpu_n_chunks(n, size), each_chunk, &job);
}

status cpu_each_row(backend *be, int64_t n, int32_t dim, cpu_rows_fn *fn, const void *ctx) {
    return cpu_each(be, n, cpu_rows_per_chunk(n, dim), fn, ctx);
}

status cpu_alloc(backend *be, void **out, size_t bytes) {
    return mem_alloc(out, bytes, 1);
}

void cpu_release(backend *be, void *memory) {
    mem_free(memory);
}

status cpu_host_alloc(backend *be, void **out, size_t bytes) {
    return mem_alloc_raw(out, bytes, 1);
}

void cpu_host_release(backend *be, void *memory) {
    mem_free(memory);
}

status cpu_copy(backend *be, void *to, const void *from, size_t bytes) {
    if (bytes > 0) memcpy(to, from, bytes);
    return OK;
}

status cpu_copy_in(backend *be, void *to, const void *from_host, size_t bytes) {
    return cpu_copy(be, to, from_host, bytes);
}

status cpu_copy_out(backend *be, void *to_host, const void *from, size_t bytes) {
    return cpu_copy(be, to_host, from, bytes);
}

status cpu_zero(backend *be, void *memory, size_t bytes) {
    if (bytes > 0) memset(memory, 0, bytes);
    return OK;
}

status cpu_set_precision(backend *be, act_type act, bool is_tf32) {
    return OK;
}

status cpu_fetch(backend *be, void *to_host, const void *from, size_t bytes, uint64_t *ticket) {
    *ticket = 0;
    return cpu_copy(be, to_host, from, bytes);
}

status cpu_wait(backend *be, uint64_t ticket) {
    return OK;
}

status cpu_record(backend *be, uint64_t key, record_state *out) {
    *out = RECORD_RUN;
    return OK;
}

status cpu_record_end(backend *be) {
    return OK;
}

/* An op of this backend is done when it returns. */
status cpu_sync(backend *be) {
    return OK;
}

void *cpu_stream(backend *be) {
    return NULL;
}

status cpu_aside(backend *be, bool is_on) {
    return OK;
}

status cpu_rejoin(backend *be) {
    return OK;
}

static const ops cpu_ops = {
#define OP(result, name, parameters, arguments, test) .name = cpu_##name,
#include "ops/ops.def"
};

static void destroy(backend *be) {
    cpu_state *state = be->state;
    for (int i = 0; i <= state->n_workers; i++)
        mem_free(state->slots[i].memory);
    MEM_FREE(state->slots, state, be);
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
        MEM_FREE(state, be);
        return st;
    }
    *be = (backend){.ops = &cpu_ops,
                    .tables = &cpu_table_ops,
                    .act = ACT_F32,
                    .is_host = true,
                    .name = "cpu",
                    .workers = workers,
                    .state = state,
                    .destroy = destroy};
    *out = be;
    return OK;
}
