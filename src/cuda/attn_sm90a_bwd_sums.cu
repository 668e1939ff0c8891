/* The sums of dq behind the attention's backward kernels on Hopper: scratch memory set to zero
 * before, rounded into dq after.  Bound by the bytes of the sums: 4 + 4 + 2 a number. */
#include "cuda/attn_sm90a_bwd.cuh"

/* Tiles of 64 queries that sequences may have; see dq_add. */
static int64_t count_tiles(const attn_args *a) {
    return a->n_rows_q / QUERIES + a->n_sequences;
}

/* Where one block of keys covers every sequence nothing is summed.  Sequences without keys have no
 * block that writes their dq, so there the sums, which are zero, do. */
static bool has_sums(const attn_args *a, int n_keys) {
    return a->max_len_k > n_keys || a->offsets_q != a->offsets_k;
}

status bwd_prepare(backend *be, const attn_args *a, int n_keys, bwd_job *job) {
    int64_t columns = (int64_t)a->n_heads * a->dim_qk;
    size_t n_blocks = (size_t)(count_tiles(a) * a->n_heads * (a->dim_qk / 64));
    size_t bytes = n_blocks * 64 * QUERIES * sizeof(float);
    void *room = NULL;
    job->a = *a;
    job->sums = NULL;
    job->has_dq = !cuda_of(be)->is_deterministic;
    job->n_keys = n_keys;
    job->n_tiles = (int)cuda_div_up(a->max_len_k, n_keys);
    TRY(sm90a_map(&job->maps.q, be->act, a->q, a->n_rows_q, columns, a->stride_q));
    TRY(sm90a_map(&job->maps.k, be->act, a->k, a->n_rows_k, columns, a->stride_k));
    TRY(sm90a_map(&job->maps.v, be->act, a->v, a->n_rows_k, columns, a->stride_v));
    TRY(sm90a_map(&job->maps.dout, be->act, a->dout, a->n_rows_q, columns, a->stride_out));
    if (!job->has_dq || !has_sums(a, n_keys)) return OK;
    TRY(cuda_scratch(be, bytes, &room));
    CUDA_TRY(cudaMemsetAsync(room, 0, bytes, cuda_of(be)->stream));
    job->sums = (float *)room;
    return OK;
}

/* The last sequence whose tiles start at `tile` or before, by a warp: 32 of them at a time. */
__device__ static inline int find_sequence(const int32_t *offsets, int n, int tile) {
    int first = 0, lane = (int)threadIdx.x % 32;
    while (n > 1) {
        int step = (n + 31) / 32, b = first + lane * step;
        bool is_before = lane * step < n && offsets[b] / QUERIES + b <= tile;
        int k = __popc(__ballot_sync(0xffffffffu, is_before)) - 1;
        n = min(step, n - k * step);
        first += k * step;
    }
    return first;
}

/* One block of 64 columns of a tile; a warpgroup reads it as another left it. */
template <typename T>
__global__ void __launch_bounds__(GROUP) round_kernel(const __grid_constant__ bwd_job job) {
    const attn_args &a = job.a;
    int n_columns = a.dim_qk / 64, column = (int)(blockIdx.x % (unsigned)n_columns);
    int head = (int)(blockIdx.x / (unsigned)n_columns % (unsigned)a.n_heads);
    int tile = (int)(blockIdx.x / (unsigned)n_columns / (unsigned)a.n_heads);
    int b = find_sequence(a.offsets_q, a.n_sequences, tile);
    int row_q = a.offsets_q[b], len_q = a.offsets_q[b + 1] - row_q;
    int len_k = a.offsets_k[b + 1] - a.offsets_k[b];
    int i = (tile - row_q / QUERIES - b) * QUERIES;
    bool is_alone = len_k > 0 && len_k <= job.n_keys;
    if (i >= len_q || is_alone) return;
    const float4 *from = (const float4 *)job.sums + (int64_t)blockIdx.x * 16 * QUERIES;
    float dq[32];
#pragma unroll
    for (int j = 0; j < 8; j++)
        *(float4 *)&dq[4 * j] = from[j * GROUP + threadIdx.x];
    T *to = (T *)a.dq + (int64_t)row_q * a.stride_q + head * a.dim_qk + column * 64;
    store_wide<T, 64>(to, a.stride_q, i + row_of_thread(), len_q, 0.5f * a.alpha * a.scale, dq);
}

status bwd_finish(backend *be, const bwd_job *job) {
    int64_t n_blocks = count_tiles(&job->a) * job->a.n_heads * (job->a.dim_qk / 64);
    cudaStream_t stream = cuda_of(be)->stream;
    if (!job->has_dq) return bwd_queries(be, job);
    if (job->sums == NULL || n_blocks == 0) return OK;
    if (be->act == ACT_BF16)
        round_kernel<__nv_bfloat16><<<(unsigned)n_blocks, GROUP, 0, stream>>>(*job);
    else
        round_kernel<__half><<<(unsigned)n_blocks, GROUP, 0, stream>>>(*job);
    return cuda_launched("the gradient of the attention's queries");
}
