/* Recorded steps: CUDA graphs, one for each key.
 *
 * A key that is seen for the first time runs without recording, so that scratch memory is
 * allocated and algorithms are chosen; the second time it is recorded; from then on it is
 * replayed with one call, which costs
 * the host microseconds instead of a launch for each of some hundred kernels. */
#include "cuda/core/cuda.h"

enum { MAX_GRAPHS = 256 };

typedef struct recorded {
    uint64_t key;
    uint64_t last_used;   /* 0: free */
    cudaGraphExec_t exec; /* NULL: seen once */
} recorded;

struct cuda_graphs {
    recorded all[MAX_GRAPHS];
    uint64_t n_uses;
    recorded *now; /* between record and record_end, or NULL */
    record_state state;
};

status cuda_graphs_create(cuda_graphs **out) {
    return MEM_NEW(out, 1);
}

static void forget(recorded *r) {
    if (r->exec != NULL) cudaGraphExecDestroy(r->exec);
    *r = recorded{};
}

void cuda_graphs_drop(cuda_graphs *g) {
    if (g == NULL) return;
    for (int i = 0; i < MAX_GRAPHS; i++)
        if (&g->all[i] != g->now) forget(&g->all[i]);
}

void cuda_graphs_destroy(cuda_graphs *g) {
    if (g == NULL) return;
    g->now = NULL;
    cuda_graphs_drop(g);
    mem_free(g);
}

/* The entry of a key: its own, or the least recently used one. */
static recorded *find(cuda_graphs *g, uint64_t key) {
    recorded *oldest = &g->all[0];
    for (int i = 0; i < MAX_GRAPHS; i++) {
        if (g->all[i].last_used > 0 && g->all[i].key == key) return &g->all[i];
        if (g->all[i].last_used < oldest->last_used) oldest = &g->all[i];
    }
    forget(oldest);
    oldest->key = key;
    return oldest;
}

status cuda_record(backend *be, uint64_t key, record_state *out) {
    cuda_state *s = cuda_of(be);
    cuda_graphs *g = s->graphs;
    TRY(cuda_enter(be));
    recorded *r = find(g, key);
    g->state = *out = r->last_used == 0 ? RECORD_RUN
                      : r->exec != NULL ? RECORD_REPLAY
                                        : RECORD_TAKE;
    g->now = r;
    r->last_used = ++g->n_uses;
    if (*out == RECORD_TAKE)
        CUDA_TRY(cudaStreamBeginCapture(s->stream, cudaStreamCaptureModeThreadLocal));
    return OK;
}

static status finish(cuda_state *s, recorded *r) {
    cudaGraph_t graph = NULL;
    CUDA_TRY(cudaStreamEndCapture(s->stream, &graph));
    cudaError_t error = cudaGraphInstantiate(&r->exec, graph, 0);
    cudaGraphDestroy(graph);
    if (error == cudaSuccess) return OK;
    r->exec = NULL;
    return cuda_failed(error, "making a recorded step runnable");
}

status cuda_record_end(backend *be) {
    cuda_state *s = cuda_of(be);
    cuda_graphs *g = s->graphs;
    recorded *r = g->now;
    g->now = NULL;
    if (g->state == RECORD_RUN) return OK;
    if (g->state == RECORD_TAKE) TRY(finish(s, r));
    CUDA_TRY(cudaGraphLaunch(r->exec, s->stream));
    return OK;
}
