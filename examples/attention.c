/* HSTU attention on a GPU through libhstu, forward and backward: two sequences of 100 and 28
 * tokens, four heads of dimension 64, causal, bfloat16.  `make examples` builds it where CUDA is.
 */
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>

#include "hstu.h"

enum { TOKENS = 128, HEADS = 4, DIM = 64, NUMBERS = TOKENS * HEADS * DIM };

static void need(int is_good, const char *what, const char *why) {
    if (is_good) return;
    fprintf(stderr, "%s: %s\n", what, why);
    exit(1);
}

/* An array on the GPU; `from` may be NULL. */
static void *on_gpu(const void *from, size_t bytes) {
    void *memory = NULL;
    cudaError_t error = cudaMalloc(&memory, bytes);
    if (error == cudaSuccess && from != NULL)
        error = cudaMemcpy(memory, from, bytes, cudaMemcpyHostToDevice);
    need(error == cudaSuccess, "memory", cudaGetErrorString(error));
    return memory;
}

int main(void) {
    static uint16_t host[NUMBERS]; /* bfloat16: the upper half of a float; 0x3f00 is 0.5 */
    const int32_t offsets[] = {0, 100, TOKENS};
    hstu_attn *attn = NULL;
    hstu_attn_varlen_args a;
    cudaStream_t stream;
    need(hstu_attn_create(&attn, 0) == HSTU_OK, "hstu_attn_create", hstu_error());
    need(cudaStreamCreate(&stream) == cudaSuccess, "cudaStreamCreate", "failed");

    for (int i = 0; i < NUMBERS; i++)
        host[i] = (uint16_t)(0x3e80 + i % 128); /* 0.25 to 0.5 */
    hstu_attn_varlen_defaults(&a);
    a.batch_size = 2;
    a.num_heads = HEADS;
    a.dim_qk = a.dim_v = DIM;
    a.total_q = a.total_k = TOKENS;
    a.max_seqlen_q = a.max_seqlen_k = 100;
    a.cu_seqlens_q = a.cu_seqlens_k = on_gpu(offsets, sizeof offsets);
    a.window_right = 0; /* causal */
    a.alpha = 0.125f;
    a.q = on_gpu(host, sizeof host);
    a.k = on_gpu(host, sizeof host);
    a.v = on_gpu(host, sizeof host);
    a.dout = on_gpu(host, sizeof host);
    a.out = on_gpu(NULL, sizeof host);
    a.dq = on_gpu(NULL, sizeof host);
    a.dk = on_gpu(NULL, sizeof host);
    a.dv = on_gpu(NULL, sizeof host);

    need(hstu_attn_varlen_fwd(attn, &a, stream) == HSTU_OK, "forward", hstu_error());
    need(hstu_attn_varlen_bwd(attn, &a, stream) == HSTU_OK, "backward", hstu_error());
    need(cudaStreamSynchronize(stream) == cudaSuccess, "the GPU", "failed");

    double sum = 0;
    need(cudaMemcpy(host, a.out, sizeof host, cudaMemcpyDeviceToHost) == cudaSuccess, "out", "?");
    for (int i = 0; i < NUMBERS; i++) {
        union {
            uint32_t bits;
            float value;
        } number = {(uint32_t)host[i] << 16};
        sum += number.value;
    }
    printf("the mean of out is %.6f\n", sum / NUMBERS);
    hstu_attn_destroy(attn);
    return 0; /* the rest ends with the process */
}
