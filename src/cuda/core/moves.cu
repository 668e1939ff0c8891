/* Copies of pages between device and host memory, on a stream of their own (kv_move_args in ops.h):
 * they begin when the ops that were called before are done, and run beside those called later,
 * until kv_wait orders these after them.  So the pages of a layer are copied while the layers
 * before it are computed.  The limit is the bus. */
#include "base/mem.h"
#include "cuda/core/cuda.h"

struct cuda_moves {
    cudaStream_t stream;
    cudaEvent_t before;               /* of the ops' stream */
    cudaEvent_t done[KV_MOVE_STAGES]; /* of the copies of a stage */
};

void cuda_moves_destroy(cuda_moves *m) {
    if (m == NULL) return;
    if (m->stream != NULL) cudaStreamSynchronize(m->stream);
    if (m->before != NULL) cudaEventDestroy(m->before);
    for (int i = 0; i < KV_MOVE_STAGES; i++)
        if (m->done[i] != NULL) cudaEventDestroy(m->done[i]);
    if (m->stream != NULL) cudaStreamDestroy(m->stream);
    mem_free(m);
}

/* What a failure leaves half made is destroyed with the backend. */
static status moves_of(cuda_state *s, cuda_moves **out) {
    *out = s->moves;
    if (s->moves != NULL) return OK;
    TRY(MEM_NEW(&s->moves, 1));
    cuda_moves *m = *out = s->moves;
    CUDA_TRY(cudaStreamCreateWithFlags(&m->stream, cudaStreamNonBlocking));
    CUDA_TRY(cudaEventCreateWithFlags(&m->before, cudaEventDisableTiming));
    for (int i = 0; i < KV_MOVE_STAGES; i++)
        CUDA_TRY(cudaEventCreateWithFlags(&m->done[i], cudaEventDisableTiming));
    return OK;
}

status cuda_kv_move(backend *be, const kv_move_args *a) {
    cuda_state *s = cuda_of(be);
    cuda_moves *m;
    char *device = (char *)a->device, *host = (char *)a->host;
    TRY(moves_of(s, &m));
    if (a->stage == 0) {
        CUDA_TRY(cudaEventRecord(m->before, s->stream));
        CUDA_TRY(cudaStreamWaitEvent(m->stream, m->before, 0));
    }
    for (int32_t i = 0; i < a->n_out; i++)
        CUDA_TRY(cudaMemcpyAsync(host + (size_t)a->out[i].host * a->page_bytes,
                                 device + (size_t)a->out[i].device * a->page_bytes, a->page_bytes,
                                 cudaMemcpyDeviceToHost, m->stream));
    for (int32_t i = 0; i < a->n_in; i++)
        CUDA_TRY(cudaMemcpyAsync(device + (size_t)a->in[i].device * a->page_bytes,
                                 host + (size_t)a->in[i].host * a->page_bytes, a->page_bytes,
                                 cudaMemcpyHostToDevice, m->stream));
    CUDA_TRY(cudaEventRecord(m->done[a->stage], m->stream));
    return OK;
}

status cuda_kv_wait(backend *be, int stage) {
    cuda_state *s = cuda_of(be);
    if (s->moves == NULL) return OK;
    if (stage >= 0)
        CUDA_TRY(cudaStreamWaitEvent(s->stream, s->moves->done[stage], 0));
    else
        CUDA_TRY(cudaStreamSynchronize(s->moves->stream));
    return OK;
}
