/* HSTU attention of few rows on Hopper: which calls the kernels of attn_sm90_few.cuh take, and into
 * how many parts keys are cut.
 *
 * Times of 8 layers that set both, in ms (H200, 2026-11-17; bfloat16, 4 heads of dimension 256, 256
 * candidates a user, 128 new tokens; users x history):
 *     parts                   1      2      3      5      8     11   other kernels
 *     1 x 128             .2415  .1895  .1855  .1888      -      -           .2336
 *     1 x 1024                -      -      -  .2282  .2258  .2294           .2388
 *     1 x 4096                -      -      -      -  .2970  .2851           .2949
 *     8 x 128             .5655      -      -      -      -      -    .574 to .581
 *     8 x 1024            .7575      -      -      -      -      -            .7200 */
#include "cuda/attn/sm90/attn_sm90_few.cuh"

/* Whether the gate can be inside. */
static bool few_can_gate(const attn_args *a) {
    const gate_args *g = a->gate;
    return g != NULL && g->drop.rate == 0 && g->cut == NULL && g->dim == a->n_heads * a->dim_v &&
           is_addressable(g->u, g->stride_u) && is_addressable(g->y, g->dim) &&
           (uintptr_t)g->weight % 16 == 0 && (uintptr_t)g->bias % 16 == 0;
}

static int64_t count_units(const attn_args *a) {
    return (int64_t)a->n_sequences * a->n_heads * cuda_div_up(a->max_len_q, 64);
}

/* Parts of the keys: of five half tiles each, as many as fit the GPU. */
static int64_t parts_of(const backend *be, const attn_args *a) {
    int64_t room = 2 * cuda_of(be)->n_multiprocessors / count_units(a);
    int64_t n = cuda_div_up(cuda_div_up(a->max_len_k, 32), 5);
    if (n > room) n = room;
    if (n > FEW_PARTS) n = FEW_PARTS;
    return n < 1 ? 1 : n;
}

/* Where it was measured: few tiles of queries that can be cut, or more of them with few keys.  In
 * parts of many half tiles the other kernels' loop makes up for their later start, unless the
 * blocks fill the GPU: us of a layer (H200, 2026-11-17; users x history / new tokens):
 *                     1 x 4096/256   1 x 4096/384   2 x 4096/128   2 x 3072/256   2 x 4096/256
 *     half tiles a part         17             23             28             26             34
 *     few                     35.8           44.4           48.5           52.1           57.6
 *     other kernels           37.4           45.5           51.4           53.2           59.0 */
static bool is_few(const backend *be, const attn_args *a) {
    int n = cuda_of(be)->n_multiprocessors;
    int64_t n_units = count_units(a), n_halves = cuda_div_up(a->max_len_k, 32);
    if (n_units == 0 || n_units > 2 * n) return false;
    if (n_halves > FEW_PLACES) return false;
    if (2 * n_units > n) return n_halves <= 16; /* attn_sm90_paged.cu cuts more keys into parts */
    int64_t n_parts = parts_of(be, a), most = 10 * n_units * n_parts >= 18 * n ? 34 : 14;
    return n_parts > 1 && (n_halves <= 48 || n_halves <= most * n_parts);
}

/* bfloat16 (float16 has not been measured).  Not in deterministic mode: which kernel runs, and
 * where a sum is cut, depend on the batch. */
bool cuda_attn_sm90_can_few(const backend *be, const attn_args *a) {
    const attn_pages *p = &a->pages;
    if (a->dim_qk != 256 || a->bias != BIAS_NONE || a->func != NULL) return false;
    if (be->act != ACT_BF16 || cuda_of(be)->is_deterministic) return false;
    if (!cuda_attn_sm90_can_fwd(be, a)) return false;
    if (a->n_heads > FEW_HEADS || !few_can_gate(a)) return false;
    if (p->table != NULL && !(p->page_len == PAGED_TILE && p->n_pages > 0 &&
                              is_addressable(p->k, p->stride) && is_addressable(p->v, p->stride)))
        return false;
    return is_few(be, a);
}

static status few_map_pages(CUtensorMap *map, const backend *be, const attn_args *a,
                            const void *rows) {
    return sm90a_map_pages(map, be->act, rows, (int64_t)a->n_heads * a->dim_qk, PAGED_TILE,
                           a->pages.n_pages, a->pages.stride, 32, a->dim_qk);
}

static status map_inputs(backend *be, const attn_args *a, few_maps *maps) {
    int64_t columns = (int64_t)a->n_heads * a->dim_qk;
    memset(maps, 0, sizeof *maps);
    TRY(sm90a_map_heads(&maps->q, be->act, a->q, a->n_rows_q, columns, a->stride_q, PART, 64,
                        a->dim_qk));
    TRY(sm90a_map_heads(&maps->k, be->act, a->k, a->n_rows_k, columns, a->stride_k, PART, 32,
                        a->dim_qk));
    TRY(sm90a_map_heads(&maps->v, be->act, a->v, a->n_rows_k, columns, a->stride_v, PART, 32,
                        a->dim_qk));
    if (a->pages.table == NULL) return OK;
    TRY(few_map_pages(&maps->pages_k, be, a, a->pages.k));
    return few_map_pages(&maps->pages_v, be, a, a->pages.v);
}

static few_job job_of(const attn_args *a) {
    const gate_args *g = a->gate;
    few_job j = {};
    j.offsets_q = a->offsets_q, j.offsets_k = j.offsets_new = a->offsets_k;
    if (a->pages.table != NULL) j.offsets_k = a->pages.offsets;
    j.n_contexts = a->n_contexts, j.n_targets = a->n_targets, j.table = a->pages.table;
    j.max_pages = a->pages.max_pages;
    j.window_left = a->window_left, j.window_right = a->window_right;
    j.target_group = a->target_group, j.n_heads = a->n_heads;
    j.is_early = a->is_repeated, j.half = 0.5f * a->alpha, j.scale = a->scale;
    j.n_tiles = (int32_t)cuda_div_up(a->max_len_q, 64);
    j.u = g->u, j.stride_u = g->stride_u, j.weight = g->weight, j.bias = g->bias;
    j.y = g->y, j.mean = g->mean, j.rstd = g->rstd, j.eps = g->eps;
    return j;
}

/* One part: a cluster for the heads of each tile of queries. */
template <typename T, typename S>
static status launch_heads(backend *be, const few_job &j, const few_maps &maps, int64_t n_blocks) {
    cudaLaunchAttribute attributes[2] = {};
    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = 1;
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim.x = (unsigned)j.n_heads;
    attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)n_blocks);
    config.blockDim = dim3(GROUP);
    config.dynamicSmemBytes = S::BYTES;
    config.stream = cuda_of(be)->stream;
    config.attrs = attributes;
    config.numAttrs = 2;
    CUDA_TRY(CUDA_ALLOW_SHARED((attn_fwd_few_sm90_kernel<T, S>), S::BYTES));
    CUDA_TRY(cudaLaunchKernelEx(&config, attn_fwd_few_sm90_kernel<T, S>, j, maps));
    return OK;
}

/* The keys in parts, and their sum. */
template <typename T, typename S>
static status launch_parts(backend *be, few_job &j, const few_maps &maps, const attn_args *a,
                           int64_t n_blocks) {
    cudaStream_t stream = cuda_of(be)->stream;
    sum_job s = {};
    TRY(cuda_scratch(be, (size_t)n_blocks * S::ROWS * S::D * sizeof(T), &j.parts));
    CUDA_TRY(CUDA_ALLOW_SHARED((attn_fwd_few_sm90_kernel<T, S>), S::BYTES));
    CUDA_TRY(sm90a_launch_early(attn_fwd_few_sm90_kernel<T, S>, dim3((unsigned)n_blocks), GROUP,
                                S::BYTES, stream, j, maps));
    s.parts = j.parts, s.is_early = j.is_early, s.offsets_q = j.offsets_q;
    s.n_heads = j.n_heads, s.n_tiles = j.n_tiles, s.dim = j.n_heads * S::D;
    s.eps = j.eps, s.u = j.u, s.stride_u = j.stride_u, s.weight = j.weight, s.bias = j.bias;
    s.y = j.y, s.mean = j.mean, s.rstd = j.rstd;
    CUDA_TRY(sm90a_launch_early(attn_sum_few_sm90_kernel<T, S>,
                                dim3((unsigned)(a->n_sequences * j.n_tiles * S::ROWS)),
                                s.dim / SUM_COLUMNS, 0, stream, s, j.n_parts));
    return OK;
}

template <typename T> static status few_launch(backend *be, const attn_args *a) {
    using S = few_shape<256>;
    few_job j = job_of(a);
    few_maps maps;
    TRY(map_inputs(be, a, &maps));
    int64_t n_units = count_units(a);
    j.n_parts = 2 * n_units <= cuda_of(be)->n_multiprocessors ? (int32_t)parts_of(be, a) : 1;
    if (j.n_parts > 1) return launch_parts<T, S>(be, j, maps, a, n_units * j.n_parts);
    return launch_heads<T, S>(be, j, maps, n_units);
}

status cuda_attn_sm90_few(backend *be, const attn_args *a) {
    return few_launch<__nv_bfloat16>(be, a);
}
