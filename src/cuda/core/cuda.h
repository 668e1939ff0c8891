/* The CUDA backend from inside: its state, its ops (one file each, with the stem of the CPU's), and
 * what their files share.
 *
 * ops.h states what each op computes.  All work goes to one stream, in order; an op launches and
 * returns.  Sums run in a fixed order; the few that use atomic additions (they say so) have a
 * second implementation for deterministic mode. */
#pragma once

#include <cuda_runtime.h>
#include <library_types.h>

#include "ops/ops.h"

typedef struct cuda_graphs cuda_graphs;   /* recorded steps (graphs.cu) */
typedef struct cuda_matmuls cuda_matmuls; /* chosen algorithms of products (matmul.cu) */
typedef struct cuda_copies cuda_copies;   /* copies through pinned memory (copies.cu) */
typedef struct cuda_moves cuda_moves;     /* copies of pages beside the ops (copies.cu) */

/* Memory of the device that grows. */
typedef struct cuda_block {
    void *p;
    size_t bytes;
} cuda_block;

/* The second stream (op `aside`). */
typedef struct cuda_side {
    cudaStream_t stream, main; /* NULL until they are needed; main: while ops run aside */
    cudaEvent_t before, after;
    bool has_work; /* that the first stream does not wait for yet */
} cuda_side;

typedef struct cuda_state {
    int device;
    int sm; /* 90 is SM 9.0 */
    int n_multiprocessors;
    int max_block_shared; /* bytes of shared memory a block may ask for */
    bool is_tf32;         /* products may round float32 to TF32 */
    bool is_deterministic;
    char name[16]; /* "cuda:0" */
    char card[128];
    bool is_guest;       /* the stream is the caller's; copies, graphs and matmuls are NULL */
    cudaStream_t stream; /* where ops run now */
    cuda_side side;
    cuda_block scratch, mask_scratch; /* of the op that runs; see cuda_scratch */
    cuda_block lists; /* of the attention over pages, made by the call that list_key tells */
    uint64_t list_key[16];
    void *old_blocks[128]; /* a guest's outgrown blocks; sizes double, so 128 do */
    int n_old_blocks;
    const uint32_t *bucket_cells; /* the table of ops/time_bucket.h, on the device */
    unsigned *counters; /* (2) work counters of persistent kernels; zeros between kernels */
    cuda_copies *copies;
    cuda_moves *moves; /* NULL until the first move */
    cuda_graphs *graphs;
    cuda_matmuls *matmuls;
} cuda_state;

static inline cuda_state *cuda_of(const backend *be) {
    return (cuda_state *)be->state;
}

/* Turns a CUDA error into a status that names the call; out of memory says what to change. */
status cuda_failed(cudaError_t error, const char *what);

#define CUDA_TRY(call)                                                                             \
    do {                                                                                           \
        cudaError_t error_ = (call);                                                               \
        if (error_ != cudaSuccess) return cuda_failed(error_, #call);                              \
    } while (0)

/* The status of the launch just made. */
static inline status cuda_launched(const char *what) {
    cudaError_t error = cudaGetLastError();
    return error == cudaSuccess ? OK : cuda_failed(error, what);
}

/* Makes the backend's device the calling thread's: CUDA remembers a device per thread, and a
 * backend may be used by one thread after another (a server's worker and its callers, say).  Called
 * by every op that can be the first of a batch or of a slot_call.  A guest's caller has set the
 * device. */
static inline status cuda_enter(const backend *be) {
    const cuda_state *s = cuda_of(be);
    int device;
    if (s->is_guest) return OK;
    CUDA_TRY(cudaGetDevice(&device)); /* some nanoseconds: it does not ask the driver */
    if (device != s->device) CUDA_TRY(cudaSetDevice(s->device));
    return OK;
}

/* Waits for the GPU that the watchdog of a job of ranks sees (base/range.h). */
static inline cudaError_t cuda_wait_stream(cudaStream_t stream) {
    wait_kind before = waits_begin(WAIT_GPU);
    cudaError_t error = cudaStreamSynchronize(stream);
    waits_end(before);
    return error;
}

static inline cudaError_t cuda_wait_event(cudaEvent_t event) {
    wait_kind before = waits_begin(WAIT_GPU);
    cudaError_t error = cudaEventSynchronize(event);
    waits_end(before);
    return error;
}

/* A daemon that shares the GPU among processes can leave one waiting for its memory. */
static inline cudaError_t cuda_wait_malloc(void **out, size_t bytes) {
    wait_kind before = waits_begin(WAIT_GPU);
    cudaError_t error = cudaMalloc(out, bytes);
    waits_end(before);
    return error;
}

/* Scratch memory of at least `bytes`, 256-byte aligned, owned by the calling op until it returns
 * (the stream orders the next op after this one).  One call in each op: the next may move the
 * block.  It grows when a request is larger than all before, which drops the recorded steps. */
status cuda_scratch(backend *be, size_t bytes, void **out);

/* A second block like cuda_scratch, for the summary of a func mask, or for keys and values from
 * pages, which must outlive the attention's own use of cuda_scratch. */
status cuda_mask_scratch(backend *be, size_t bytes, void **out);

/* A block whose contents stay from op to op. */
status cuda_list_scratch(backend *be, size_t bytes, void **out);

/* *a = the call with the keys and values of its pages and of k and v in one array. */
status cuda_attn_collect(backend *be, const attn_args *from, attn_args *a);

static inline size_t cuda_align(size_t bytes) {
    return (bytes + 255) & ~(size_t)255;
}

static inline int64_t cuda_div_up(int64_t n, int64_t size) {
    return (n + size - 1) / size;
}

/* Op update of one weight with a list of rows. */
status cuda_update_listed(backend *be, const update_args *a);

/* Sorts n pairs (key, value) by the lowest `bits` bits of the key, stably; n is at most
 * 2^30 - 2.  With room = NULL it only sets *room_bytes, how much scratch memory it needs. */
status cuda_sort_pairs(backend *be, void *room, size_t *room_bytes, const uint32_t *keys,
                       uint32_t *sorted_keys, const uint32_t *values, uint32_t *sorted_values,
                       int n, int bits);

status cuda_graphs_create(cuda_graphs **out);
void cuda_graphs_destroy(cuda_graphs *g);
void cuda_graphs_drop(cuda_graphs *g); /* what they were recorded on has moved */

status cuda_copies_create(cuda_copies **out);
void cuda_copies_destroy(cuda_copies *c);
void cuda_moves_destroy(cuda_moves *m);

/* d = a b (+ c) (+ bias, a row added to each row of d), row-major, with the shapes after
 * transposition: a (m, k), b (k, n), c and d (m, n), k > 0.  Types are CUDA_R_32F, _16BF or _16F; a
 * and b have one type; d has that type or float32; c and the bias have the type of d.  Sums are
 * float32. */
typedef struct cuda_product {
    int64_t m, n, k;
    const void *a, *b;
    bool is_a_transposed, is_b_transposed; /* stored (k, m), (n, k) */
    int64_t row_a, row_b, row_d;           /* elements between stored rows; c as d */
    cudaDataType_t type, type_d;
    const void *c; /* may be d: added to; or NULL */
    void *d;
    const void *bias; /* (n) or NULL */
    epilogue f;       /* of d, after c and bias: NONE, RELU or GELU_TANH, which cuBLASLt has */
    int32_t kernel;   /* of linear_packed_args */
    bool is_rounded;  /* float32 operands may be rounded to TF32, whatever the precision says */
} cuda_product;

status cuda_matmuls_create(cuda_matmuls **out);
void cuda_matmuls_destroy(cuda_matmuls *m);
status cuda_matmul(backend *be, const cuda_product *p);

/* Every op `name` is cuda_name. */
#define OP(result, name, parameters, arguments, test) result cuda_##name parameters;
#include "ops/ops.def"

extern const struct table_ops cuda_table_ops; /* table.cu: dynamic tables */

/* The families of attention kernels, between which attn.cu chooses.  The SM 9.0a family takes the
 * calls for which cuda_attn_sm90_can_fwd and _can_bwd are true. */
status cuda_attn_sm80_fwd(backend *be, const attn_args *a);
bool cuda_attn_sm80_can_page(const backend *be, const attn_args *a);
status cuda_attn_sm80_page(backend *be, const attn_args *a);
status cuda_attn_sm80_bwd(backend *be, const attn_args *a);
status cuda_attn_f32_fwd(backend *be, const attn_args *a);
status cuda_attn_f32_bwd(backend *be, const attn_args *a);
bool cuda_attn_sm90_can_fwd(const backend *be, const attn_args *a);
bool cuda_attn_sm90_can_small(const backend *be, const attn_args *a);
status cuda_attn_sm90_small(backend *be, const attn_args *a);
bool cuda_attn_sm90_can_page(const backend *be, const attn_args *a);
status cuda_attn_sm90_page(backend *be, const attn_args *a);
bool cuda_attn_sm90_can_bwd(const backend *be, const attn_args *a);
status cuda_attn_sm90_fwd(backend *be, const attn_args *a);
status cuda_attn_sm90_bwd(backend *be, const attn_args *a);

/* The families of softmax attention kernels, between which attn.cu chooses; delta (T, H) =
 * out . dout.  Those of 16-bit activations (SM 8.0, 9.0a) know no dropout and need alpha > 0.  The
 * SM 9.0a family takes the calls for which cuda_softmax_sm90_can_fwd or _bwd is true, and computes
 * delta itself; so does the row-wise one with cuda_softmax_sm80_rows_can, on every card. */
bool cuda_softmax_sm80_rows_can(const backend *be, const softmax_attn_args *a, bool is_backward);
status cuda_softmax_sm80_rows_fwd(backend *be, const softmax_attn_args *a);
status cuda_softmax_sm80_rows_bwd(backend *be, const softmax_attn_args *a);
status cuda_softmax_f32_fwd(backend *be, const softmax_attn_args *a);
status cuda_softmax_f32_bwd(backend *be, const softmax_attn_args *a, const float *delta);
bool cuda_softmax_sm90_can_fwd(const backend *be, const softmax_attn_args *a);
status cuda_softmax_sm90_fwd(backend *be, const softmax_attn_args *a);
bool cuda_softmax_sm90_can_bwd(const backend *be, const softmax_attn_args *a);
status cuda_softmax_sm90_bwd(backend *be, const softmax_attn_args *a);
status cuda_softmax_sm80_fwd(backend *be, const softmax_attn_args *a);
/* The same with head dimension 64 where rows are one long span of keys, and where there is no mask
 * and max_len is at least MASK_WHOLE_LENGTH. */
status cuda_softmax_sm90_dense(backend *be, const softmax_attn_args *a);
status cuda_softmax_sm90_whole(backend *be, const softmax_attn_args *a);
bool cuda_softmax_sm80_can_bwd(const backend *be, const softmax_attn_args *a);
status cuda_softmax_sm80_bwd(backend *be, const softmax_attn_args *a, const float *delta);
status cuda_softmax_sm80_dq(backend *be, const softmax_attn_args *a, const float *delta);

/* A kernel for Hopper beside the one for every card: it takes the calls for which _can is true. */
bool cuda_residual_norm_sm90_can(const backend *be, const residual_norm_args *a);
status cuda_residual_norm_sm90(backend *be, const residual_norm_args *a);

/* Likewise for dense layers with SiLU, pages or a residual; the weight is packed, (n_out, n_in),
 * and a norm may be part of it (linear.cu). */
typedef struct linear_parts {
    void *w, *bias;
    float *sums, *shift;
    size_t bytes;
    uint8_t *codes; /* (n_out, n_in): W in 8 bits, after the rest, with is_fp8 */
    float *scales;  /* (n_out) */
} linear_parts;
bool cuda_linear_large_can(const backend *be, const linear_packed_args *a);
bool cuda_linear_large_norms(const linear_packed_args *a);
status cuda_linear_large(backend *be, const linear_packed_args *a, const linear_parts *p);

/* Likewise for products in 8 bits; pack makes codes and scales of p->w. */
bool cuda_linear_fp8_can(const backend *be, const linear_packed_args *a);
status cuda_linear_fp8(backend *be, const linear_packed_args *a, const linear_parts *p);
status cuda_linear_fp8_pack(backend *be, const linear_args *a, const linear_parts *p);

/* Likewise for dense layers over few rows. */
bool cuda_linear_small_can(const backend *be, const linear_packed_args *a);
status cuda_linear_small(backend *be, const linear_packed_args *a);
bool cuda_linear_norm_small_can(const backend *be, const linear_norm_args *a);
status cuda_linear_norm_small(backend *be, const linear_norm_args *a);

/* Likewise for rows of tables with their moments. */
bool cuda_gather_moments_can(const backend *be, const gather_args *a);
status cuda_gather_moments(backend *be, const gather_args *a);

/* Likewise for the head of a ranking model. */
bool cuda_head_can(const backend *be, const head_args *a);
status cuda_head(backend *be, const head_args *a);
