/* HSTU attention over keys in pages, and of few queries, on Hopper: which calls the kernels of
 * attn_sm90_paged.cuh take, and how the work of a call is cut.
 *
 * Shared memory, in KB a block: queries + keys and values
 *     D = 64: 32 + 4 x 2 x 8 = 96    D = 128: 64 + 3 x 2 x 16 = 160    D = 256: 64 + 2 x 2 x 32 =
 * 192 */
#include "cuda/attn/sm90/attn_sm90_paged.cuh"

struct paged_sizes : fwd_sizes {
    static constexpr int GROUPS = 2;
    static constexpr bool IS_PIPED = true, IS_PAGED = true;
};
struct paged_d64 : paged_sizes {
    static constexpr int D = 64, STAGES = 4;
};
struct paged_d128 : paged_sizes {
    static constexpr int D = 128, STAGES = 3;
};
struct paged_d256 : paged_sizes {
    static constexpr int D = 256, BUFFERS = 1;
};

static bool has_few_units(const backend *be, const attn_args *a) {
    int64_t n_units = (int64_t)a->n_sequences * a->n_heads * cuda_div_up(a->max_len_q, 128);
    return n_units < 2 * cuda_of(be)->n_multiprocessors;
}

/* Few queries and so many keys that cutting them pays.  Not in deterministic mode: where a sum is
 * cut depends on the batch, and ranks with parts of a batch must have the bits of one with all. */
static bool can_cut(const backend *be, const attn_args *a) {
    return a->max_len_k > 512 && has_few_units(be, a) && !cuda_of(be)->is_deterministic &&
           cuda_div_up(a->max_len_q, 128) <= PAGED_WIDEST;
}

/* Pages of 64 keys, or keys that can be cut. */
bool cuda_attn_sm90_can_page(const backend *be, const attn_args *a) {
    int d = a->dim_qk;
    const attn_pages *p = &a->pages;
    if ((d != 64 && d != 128 && d != 256) || a->bias != BIAS_NONE || a->func != NULL) return false;
    if (!cuda_attn_sm90_can_fwd(be, a)) return false;
    if (p->table == NULL) return can_cut(be, a);
    return p->page_len == PAGED_TILE && p->n_pages > 0 && is_addressable(p->k, p->stride) &&
           is_addressable(p->v, p->stride);
}

/* How the work is cut.  The blocks of a group read the same keys at the same time, which the L2
 * cache delivers faster than as many different ones: on an H200 (2026-11-16) a tile took 2.4 us in
 * groups of one block, where the keys fit the cache, and 1.7 us in groups of three, where they did
 * not. */
template <typename S> static void cut(const backend *be, const attn_args *a, paged_plan *plan) {
    int n_blocks = cuda_of(be)->n_multiprocessors;
    int n_tiles = (int)cuda_div_up(a->max_len_q, S::ROWS);
    bool are_some = (int64_t)a->n_sequences * a->n_heads * n_tiles < 4 * n_blocks;
    plan->width = 0;
    if (a->max_len_k <= 512 || n_tiles > PAGED_WIDEST) return;
    if (!has_few_units(be, a) && !(n_tiles > 1 && are_some)) return;
    plan->width = n_tiles;
    plan->n_groups = n_blocks / plan->width;
    plan->n_row_groups = (int)cuda_div_up(n_tiles, plan->width);
}

/* The tensor map of pages: a box is 64 rows x 64 columns of one. */
static status map_pages(CUtensorMap *map, const backend *be, const attn_args *a, const void *rows) {
    return sm90a_map_pages(map, be->act, rows, (int64_t)a->n_heads * a->dim_qk, PAGED_TILE,
                           a->pages.n_pages, a->pages.stride);
}

template <typename S> static status map_inputs(backend *be, const attn_args *a, paged_maps *maps) {
    memset(maps, 0, sizeof *maps);
    TRY(fwd_map_inputs<S>(be, a, &maps->rows));
    if (a->pages.table == NULL) return OK;
    TRY(map_pages(&maps->pages_k, be, a, a->pages.k));
    return map_pages(&maps->pages_v, be, a, a->pages.v);
}

/* Memory for the parts and for the list of units that have some. */
template <typename S> static status make_room(backend *be, int64_t n_units, paged_plan *plan) {
    size_t n = (size_t)(plan->n_groups * plan->width);
    size_t parts = cuda_align(n * 2 * paged_part<S>::SIZE * sizeof(float4));
    char *room = NULL;
    TRY(cuda_scratch(be, parts + (size_t)n_units * sizeof(paged_split), (void **)&room));
    plan->parts = (float4 *)room;
    plan->splits = (paged_split *)(room + parts);
    return OK;
}

template <typename T, typename S> static status launch(backend *be, const attn_args *from) {
    cuda_state *state = cuda_of(be);
    attn_args a = *from;
    paged_plan plan = {};
    paged_maps maps;
    attn_tiles tiles = {};
    plan.offsets_new = a.offsets_k;
    if (a.pages.table != NULL) a.offsets_k = a.pages.offsets; /* masks are of all keys */
    cut<S>(be, &a, &plan);
    TRY(map_inputs<S>(be, &a, &maps));
    int n_blocks = plan.width * plan.n_groups;
    int64_t n_units = (int64_t)a.n_sequences * plan.n_row_groups * plan.width * a.n_heads;
    if (plan.width > 0) {
        TRY(make_room<S>(be, n_units, &plan));
    } else {
        tiles = tiles_make(&a, a.offsets_q, a.max_len_q, a.n_rows_q, S::ROWS, a.max_len_k,
                           2 * S::D * (int)sizeof(T));
        if (tiles.n_units == 0) return OK;
        tiles.counter = state->counters;
        n_blocks = state->n_multiprocessors;
        if (n_blocks > tiles.n_units) n_blocks = tiles.n_units;
    }
    CUDA_TRY(CUDA_ALLOW_SHARED((attn_fwd_paged_sm90_kernel<T, S>), S::BYTES));
    CUDA_TRY(sm90a_launch_early(attn_fwd_paged_sm90_kernel<T, S>, dim3((unsigned)n_blocks),
                                S::THREADS, S::BYTES, state->stream, a, tiles, plan, maps));
    if (plan.width == 0) return OK;
    dim3 grid(paged_part<S>::SIZE / (SUM_THREADS * SUM_EACH), (unsigned)n_units);
    CUDA_TRY(sm90a_launch_early(attn_sum_parts_sm90_kernel<T, S>, grid, SUM_THREADS, 0,
                                state->stream, a, plan));
    return OK;
}

template <typename T> static status launch_dim(backend *be, const attn_args *a) {
    if (a->dim_qk == 64) return launch<T, fwd_shape<paged_d64>>(be, a);
    if (a->dim_qk == 128) return launch<T, fwd_shape<paged_d128>>(be, a);
    return launch<T, fwd_shape<paged_d256>>(be, a);
}

status cuda_attn_sm90_page(backend *be, const attn_args *a) {
    if (be->act == ACT_BF16) return launch_dim<__nv_bfloat16>(be, a);
    return launch_dim<__half>(be, a);
}
