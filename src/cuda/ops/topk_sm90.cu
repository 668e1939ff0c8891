/* The scan of topk.cuh for SM 9.0a.
 *
 * One persistent block a multiprocessor: a producer warp loads tiles of 128 rows by TMA, 64 columns
 * a pipeline stage, and two warpgroups multiply them by 64 queries, both operands in shared memory.
 * With up to 64 queries the warpgroups take turns at the tiles; with more, each has its own 64
 * queries and all tiles, so that the corpus is read once.  Bound by the bytes of the corpus.
 *
 * Shared memory, in KB: a stage 16, 8 of them in flight where they fit, else 4; 64 queries 8 for
 * each 64 columns; buffers 18. */
#include "cuda/attn/sm90/attn_sm90.cuh"
#include "cuda/ops/topk.cuh"

enum {
    TILE = 128, /* rows */
    CONSUMERS = 2,
    TOPK_THREADS = CONSUMERS * 128 + 32,
    STAGE_BYTES = TILE * TOPK_COLUMNS * 2,
    QUERY_BYTES = TOPK_QUERIES * TOPK_COLUMNS * 2, /* of a chunk */
    MOST_BITS = 3,
    MOST_STAGES = 1 << MOST_BITS,
    ALIGNMENT = 1024, /* of swizzled tiles */
    GROUPS = 4        /* of a thread's rows, in a sample */
};

typedef struct scan_plan {
    int stage_bits; /* there are 2^bits stages */
    int n_sides;    /* sets of 64 queries: 1 or 2 */
} scan_plan;

typedef struct scan_control {
    uint64_t full[MOST_STAGES], empty[MOST_STAGES], queries;
    topk_buffer buffers[CONSUMERS * 4];
} scan_control;

__device__ static inline void produce(const topk_job &j, const scan_plan &plan,
                                      const CUtensorMap *rows, const CUtensorMap *queries,
                                      scan_control *control, char *query_tiles, char *stages) {
    int n_chunks = j.a.dim / TOPK_COLUMNS;
    barrier_expect(&control->queries, (uint32_t)(plan.n_sides * n_chunks * QUERY_BYTES));
    for (int side = 0; side < plan.n_sides; side++)
        for (int c = 0; c < n_chunks; c++)
            tile_load(query_tiles + (side * n_chunks + c) * QUERY_BYTES, queries, &control->queries,
                      c * TOPK_COLUMNS, side * TOPK_QUERIES);
    unsigned at = 0;
    for (int64_t i = blockIdx.x; i < j.n_tiles; i += gridDim.x) {
        for (int c = 0; c < n_chunks; c++, at++) {
            unsigned slot = at & ((1u << plan.stage_bits) - 1), round = at >> plan.stage_bits;
            barrier_wait(&control->empty[slot], (round & 1) ^ 1);
            barrier_expect(&control->full[slot], STAGE_BYTES);
            tile_load(stages + slot * STAGE_BYTES, rows, &control->full[slot], c * TOPK_COLUMNS,
                      (int)(topk_tile(j, i) * TILE));
        }
    }
}

/* The product of a tile; `at` is the number of its first stage. */
template <typename T>
__device__ static inline void multiply(const topk_job &j, const scan_plan &plan,
                                       scan_control *control, const char *query_tiles,
                                       const char *stages, unsigned at, float (&d)[TILE / 2]) {
    for (int c = 0; c < j.a.dim / TOPK_COLUMNS; c++, at++) {
        unsigned slot = at & ((1u << plan.stage_bits) - 1), round = at >> plan.stage_bits;
        uint64_t left = tile_describe(query_tiles + c * QUERY_BYTES, 16);
        uint64_t right = tile_describe(stages + slot * STAGE_BYTES, 16);
        barrier_wait(&control->full[slot], round & 1);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < TOPK_COLUMNS / 16; k++)
            wgmma_ss<T, TILE>(d, tile_move(left, k * 32), tile_move(right, k * 32), c + k > 0);
        wgmma_commit();
        wgmma_wait<0>();
        release(&control->empty[slot]);
    }
}

template <typename T, bool IS_SAMPLE>
__device__ static inline void consume(const topk_job &j, const scan_plan &plan,
                                      scan_control *control, const char *query_tiles,
                                      const char *stages) {
    int group = (int)threadIdx.x / 128, warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    int n_chunks = j.a.dim / TOPK_COLUMNS, side = plan.n_sides == 2 ? group : 0;
    int query = side * TOPK_QUERIES + warp % 4 * 16 + lane / 4; /* the thread's first */
    int first = plan.n_sides == 2 ? 0 : group, step = plan.n_sides == 2 ? 1 : CONSUMERS;
    topk_buffer *buffer = &control->buffers[warp];
    topk_best<GROUPS> best[2];
    topk_best_init(best[0]);
    topk_best_init(best[1]);
    float least_0 = IS_SAMPLE ? 0 : topk_least(j, query);
    float least_8 = IS_SAMPLE ? 0 : topk_least(j, query + 8);
    barrier_wait(&control->queries, 0);
    query_tiles += side * n_chunks * QUERY_BYTES;
    int64_t i = blockIdx.x + (int64_t)first * gridDim.x;
    for (unsigned n = (unsigned)first; i < j.n_tiles;
         i += (int64_t)step * gridDim.x, n += (unsigned)step) {
        int64_t row = topk_tile(j, i) * TILE + lane % 4 * 2;
        float d[TILE / 2];
        multiply<T>(j, plan, control, query_tiles, stages, n * (unsigned)n_chunks, d);
        if (IS_SAMPLE)
            topk_keep_best(best, row, d);
        else
            topk_collect(j, buffer, query, row, d, least_0, least_8);
    }
    if (!IS_SAMPLE) {
        topk_flush(j, buffer);
        return;
    }
    int place = (plan.n_sides == 2 ? (int)blockIdx.x : (int)blockIdx.x * CONSUMERS + group) * 4;
    topk_store_best(j, best[0], query, (place + lane % 4) * GROUPS);
    topk_store_best(j, best[1], query + 8, (place + lane % 4) * GROUPS);
}

template <typename T, bool IS_SAMPLE>
static __global__ void __launch_bounds__(TOPK_THREADS, 1)
    topk_scan_sm90_kernel(const __grid_constant__ topk_job j, const scan_plan plan,
                          const __grid_constant__ CUtensorMap rows,
                          const __grid_constant__ CUtensorMap queries) {
    extern __shared__ char shared[];
    char *stages = shared + (ALIGNMENT - shared_address(shared) % ALIGNMENT) % ALIGNMENT;
    char *query_tiles = stages + (STAGE_BYTES << plan.stage_bits);
    scan_control *control =
        (scan_control *)(query_tiles + plan.n_sides * (j.a.dim / TOPK_COLUMNS) * QUERY_BYTES);
    if (threadIdx.x == 0) {
        for (int i = 0; i < 1 << plan.stage_bits; i++) {
            barrier_init(&control->full[i], 1);
            barrier_init(&control->empty[i], 4 * plan.n_sides);
        }
        barrier_init(&control->queries, 1);
        barrier_init_done();
    }
    if (threadIdx.x < CONSUMERS * 4) control->buffers[threadIdx.x].n = 0;
    __syncthreads();
    if (threadIdx.x >= CONSUMERS * 128) {
        if (elect_one()) produce(j, plan, &rows, &queries, control, query_tiles, stages);
    } else {
        consume<T, IS_SAMPLE>(j, plan, control, query_tiles, stages);
    }
}

static size_t scan_bytes(const rank_args *a, const scan_plan *plan) {
    return ALIGNMENT + ((size_t)STAGE_BYTES << plan->stage_bits) + sizeof(scan_control) +
           (size_t)plan->n_sides * (size_t)(a->dim / TOPK_COLUMNS) * QUERY_BYTES;
}

/* As many queries at once as there are and fit, then as many stages. */
static bool make_plan(const backend *be, const rank_args *a, scan_plan *plan) {
    for (int n_sides = a->n_queries > TOPK_QUERIES ? 2 : 1; n_sides > 0; n_sides--) {
        for (int bits = MOST_BITS; bits > 1; bits--) {
            *plan = (scan_plan){bits, n_sides};
            if (scan_bytes(a, plan) <= (size_t)cuda_of(be)->max_block_shared) return true;
        }
    }
    return false;
}

template <typename T> static status scan_as(backend *be, const topk_job *j) {
    cuda_state *state = cuda_of(be);
    scan_plan plan = {};
    CUtensorMap rows, queries;
    auto kernel = j->is_sample ? topk_scan_sm90_kernel<T, true> : topk_scan_sm90_kernel<T, false>;
    make_plan(be, &j->a, &plan);
    TRY(sm90a_map_box(&rows, be->act, j->a.corpus_act, j->a.n_corpus, j->a.dim, j->a.dim,
                      TOPK_COLUMNS, TILE));
    TRY(sm90a_map_box(&queries, be->act, j->a.query, j->a.n_queries, j->a.dim, j->a.dim,
                      TOPK_COLUMNS, TOPK_QUERIES));
    return cuda_launch(be, "the search of a corpus", kernel, state->n_multiprocessors, TOPK_THREADS,
                       scan_bytes(&j->a, &plan), *j, plan, rows, queries);
}

static status scan(backend *be, const topk_job *j) {
    return be->act == ACT_BF16 ? scan_as<__nv_bfloat16>(be, j) : scan_as<__half>(be, j);
}

bool topk_can_sm90(const backend *be, const rank_args *a) {
    scan_plan plan;
    return cuda_of(be)->sm == 90 && (uintptr_t)a->query % 16 == 0 && make_plan(be, a, &plan);
}

topk_scan topk_scan_sm90(const backend *be, const rank_args *a) {
    scan_plan plan = {};
    make_plan(be, a, &plan);
    int n_threads = cuda_of(be)->n_multiprocessors * (plan.n_sides == 2 ? 1 : CONSUMERS) * 4;
    return (topk_scan){TILE, plan.n_sides * TOPK_QUERIES, n_threads * GROUPS, scan};
}
