/* The host side before and after the attention's backward kernels on Hopper: the schedule and,
 * where blocks share float32 sums of dq (split-K over the keys), scratch memory that is set to zero
 * before and rounded into dq after.  The rounding is bound by bytes: 4 + 4 + 2 for each element. */
#include "cuda/attn/common/attn_bias.cuh"
#include "cuda/attn/sm90/attn_sm90_bwd.cuh"

/* Number of slots for the tiles of 64 queries of all sequences; see walk_ask_keys. */
static int64_t count_tiles(const attn_args *a) {
    return a->n_rows_q / QUERIES + a->n_sequences;
}

int64_t bwd_kept_bytes(const attn_args *a) {
    int64_t n = cuda_div_up(a->max_len_q, QUERIES) * cuda_div_up(a->max_len_k, 64);
    return n > 1 && a->dim_qk == 256 ? n * 64 * DS_ROW : 0;
}

bool bwd_is_whole(backend *be, const attn_args *a) {
    enum { SHORT = 256, LONGEST = 512, MOST = 32 }; /* MOST: bits of the walk's words */
    enum { KEPT_MOST = 64 * 64 * DS_ROW };
    int64_t n_pairs = (int64_t)a->n_sequences * a->n_heads;
    if (be->act != ACT_BF16 || a->bias != BIAS_NONE) return false;
    if (a->max_len_q > MOST * QUERIES || a->max_len_k > LONGEST) return false;
    if (bwd_kept_bytes(a) > KEPT_MOST) return false;
    return a->max_len_k <= SHORT || n_pairs >= 2 * cuda_of(be)->n_multiprocessors;
}

status bwd_make_maps(backend *be, const attn_args *a, int rows, bwd_maps *maps) {
    int64_t n = (int64_t)a->n_heads * a->dim_qk, n_q = a->n_rows_q, n_k = a->n_rows_k;
    int part = a->dim_qk < PART ? a->dim_qk : (int)PART;
    TRY(sm90a_map_box(&maps->q, be->act, a->q, n_q, n, a->stride_q, part, rows));
    TRY(sm90a_map_box(&maps->k, be->act, a->k, n_k, n, a->stride_k, part, rows));
    TRY(sm90a_map_box(&maps->v, be->act, a->v, n_k, n, a->stride_v, part, rows));
    return sm90a_map_box(&maps->dout, be->act, a->dout, n_q, n, a->stride_out, part, rows);
}

attn_args bwd_shorten(const attn_args *a) {
    attn_args b = *a;
    int32_t longest = a->max_len_k > a->max_len_q ? a->max_len_k : a->max_len_q;
    if (b.window_left > longest) b.window_left = longest;
    if (b.window_right > longest) b.window_right = longest;
    if (b.target_group > longest && longest > 0) b.target_group = longest;
    return b;
}

/* Whether the bias has gradients. */
static bool bwd_has_bias_gradient(const attn_args *a) {
    return (a->bias == BIAS_TIME && a->dposition_w != NULL) ||
           (a->bias == BIAS_TABLE && a->dtable != NULL);
}

/* The schedule: whole sequences, sorted by length where lengths differ; or tiles of keys, first
 * those that the most queries see. */
static bool plan_work(backend *be, const attn_args *a, bwd_job *job, int64_t *n_blocks) {
    attn_tiles *t = &job->tiles;
    int64_t n_units = job->n_pairs;
    bool is_jagged = a->n_rows_k < (int64_t)a->n_sequences * a->max_len_k / 16 * 15;
    if (job->is_whole) {
        t->offsets = a->offsets_k;
        t->n_sequences = a->n_sequences;
        t->counter = cuda_of(be)->counters;
        is_jagged &= a->max_len_k > job->n_keys && a->n_sequences <= TILES_PLAN_SEQUENCES;
    } else {
        int row_bytes = 2 * a->dim_qk * 2 + a->dim_qk * (int)sizeof(float); /* q, dout, sums */
        *t = tiles_make(a, a->offsets_k, a->max_len_k, a->n_rows_k, job->n_keys, a->max_len_q,
                        row_bytes);
        t->is_keys = true;
        t->counter = cuda_of(be)->counters;
        n_units = t->n_units;
        is_jagged = tiles_wants_plan(t, a->max_len_k, a->n_rows_k);
    }
    if (*n_blocks > n_units) *n_blocks = n_units;
    return is_jagged;
}

/* Scratch memory for float32 sums of dq: for each block of a launch, or for each tile of queries.
 * Head dimension 256: for the score gradients of two sequences in each block. */
static size_t sums_bytes(const bwd_job *job, int64_t n_blocks) {
    const attn_args *a = &job->a;
    if (a->dim_qk == 256) return cuda_align((size_t)(n_blocks * 2 * bwd_kept_bytes(a)));
    int64_t n_sums = job->is_whole ? n_blocks * job->n_tiles : count_tiles(a) * a->n_heads;
    return cuda_align((size_t)(n_sums * a->dim_qk * QUERIES) * sizeof(float));
}

status bwd_prepare(backend *be, const attn_args *a, int n_keys, int64_t *n_blocks, bwd_job *job) {
    cudaStream_t stream = cuda_of(be)->stream;
    attn_tiles *dq_tiles = &job->query_tiles;
    void *room = NULL;
    memset(job, 0, sizeof *job);
    job->a = bwd_shorten(a);
    job->is_whole = bwd_is_whole(be, a);
    job->has_dq = job->is_whole ||
                  !(cuda_of(be)->is_deterministic || a->dim_qk > 128 || bwd_has_bias_gradient(a));
    job->n_keys = n_keys;
    job->n_tiles = (int)cuda_div_up(a->max_len_q, QUERIES);
    job->n_pairs = a->n_sequences * a->n_heads;
    int rows = a->bias != BIAS_NONE && a->dim_qk <= 64 ? (int)DQ_ROWS_BIAS_64 : (int)DQ_ROWS;
    *dq_tiles = tiles_make(a, a->offsets_q, a->max_len_q, a->n_rows_q, rows, a->max_len_k,
                           2 * a->dim_qk * 2);
    TRY(bwd_make_maps(be, a, QUERIES, &job->maps));
    TRY(sm90a_bias_source(be, a, &job->bias));
    bool has_plan = plan_work(be, a, job, n_blocks);
    bool has_cells = a->bias == BIAS_TIME && a->dposition_w != NULL;
    bool has_dq_plan = !job->has_dq && tiles_wants_plan(dq_tiles, a->max_len_q, a->n_rows_q);
    size_t bytes = job->has_dq ? sums_bytes(job, *n_blocks) : 0;
    size_t plan_bytes = has_plan ? tiles_plan_bytes(&job->tiles) : 0;
    size_t dq_plan_bytes = has_dq_plan ? tiles_plan_bytes(dq_tiles) : 0;
    size_t cells_bytes = has_cells ? cuda_align(bias_cells_bytes(a)) : 0;
    TRY(cuda_scratch(be, bytes + plan_bytes + dq_plan_bytes + cells_bytes, &room));
    job->sums = (float *)room;
    if (has_cells) {
        job->cells = (unsigned long long *)((char *)room + bytes + plan_bytes + dq_plan_bytes);
        CUDA_TRY(cudaMemsetAsync(job->cells, 0, cells_bytes, stream));
    }
    if (has_plan) TRY(tiles_plan(&job->tiles, (char *)room + bytes, stream));
    if (has_dq_plan) TRY(tiles_plan(dq_tiles, (char *)room + bytes + plan_bytes, stream));
    if (!job->is_whole && bytes > 0) CUDA_TRY(cudaMemsetAsync(room, 0, bytes, stream));
    return OK;
}

/* Rounds one block of N columns of a tile; a warpgroup reads the sums in the register order in
 * which another warpgroup wrote them. */
template <typename T, int N>
__global__ void __launch_bounds__(GROUP)
    attn_bwd_dq_round_sm90_kernel(const __grid_constant__ bwd_job job) {
    const attn_args &a = job.a;
    int n_columns = a.dim_qk / N, column = (int)(blockIdx.x % (unsigned)n_columns);
    int head = (int)(blockIdx.x / (unsigned)n_columns % (unsigned)a.n_heads);
    int tile = (int)(blockIdx.x / (unsigned)n_columns / (unsigned)a.n_heads);
    int b = tiles_search(a.offsets_q, QUERIES, a.n_sequences, tile);
    int row_q = a.offsets_q[b], len_q = a.offsets_q[b + 1] - row_q;
    int len_k = a.offsets_k[b + 1] - a.offsets_k[b];
    int i = (tile - row_q / QUERIES - b) * QUERIES;
    bool is_alone = len_k > 0 && len_k <= job.n_keys;
    if (i >= len_q || is_alone) return;
    const float4 *from = (const float4 *)job.sums + (int64_t)blockIdx.x * (N / 4) * QUERIES;
    float dq[N / 2];
#pragma unroll
    for (int j = 0; j < N / 8; j++)
        *(float4 *)&dq[4 * j] = from[j * GROUP + threadIdx.x];
    T *to = (T *)a.dq + (int64_t)row_q * a.stride_q + head * a.dim_qk + column * N;
    store_wide<T, N>(to, a.stride_q, i + row_of_thread(), len_q, 0.5f * a.alpha * a.scale, dq);
}

template <typename T, int N> static status round_sums(backend *be, const bwd_job *job) {
    int64_t n_blocks = count_tiles(&job->a) * job->a.n_heads * (job->a.dim_qk / N);
    if (n_blocks == 0) return OK;
    attn_bwd_dq_round_sm90_kernel<T, N>
        <<<(unsigned)n_blocks, GROUP, 0, cuda_of(be)->stream>>>(*job);
    return cuda_launched("the gradient of the attention's queries");
}

status bwd_finish(backend *be, const bwd_job *job) {
    if (!job->has_dq && job->a.bias != BIAS_NONE) return bwd_queries_bias(be, job);
    if (!job->has_dq) return bwd_queries(be, job);
    if (job->is_whole) return OK;
    if (be->act == ACT_BF16)
        return job->a.dim_qk == 32 ? round_sums<__nv_bfloat16, 32>(be, job)
                                   : round_sums<__nv_bfloat16, 64>(be, job);
    return job->a.dim_qk == 32 ? round_sums<__half, 32>(be, job) : round_sums<__half, 64>(be, job);
}
