/* Dense layers forward on Hopper: which calls the kernels of linear_many_sm90.cuh and
 * linear_wave_sm90.cuh take, and with which tiles. */
#include "cuda/gemm/linear_many_sm90.cuh"
#include "cuda/gemm/linear_wave_sm90.cuh"

/* Keys or values that go to pages in 16 bytes at a time. */
static bool can_keep_many(const void *rows, const void *pages, int32_t dim, int64_t stride) {
    return (uintptr_t)rows % 16 == 0 && is_addressable(pages, stride) && dim % 8 == 0;
}

/* bfloat16 (float16 has not been measured), rows that TMA can address, and an epilogue that there
 * is. */
bool cuda_linear_many_can(const backend *be, const linear_args *a) {
    const kv_put_args *p = a->put;
    if (cuda_of(be)->sm != 90 || be->act != ACT_BF16 || a->packed == NULL) return false;
    bool is_silu = a->f == EPILOGUE_SILU && a->z == NULL && a->residual == NULL;
    bool is_sum = a->f == EPILOGUE_NONE && a->residual != NULL && p == NULL;
    if (!is_silu && !is_sum) return false;
    if (p != NULL && !(can_keep_many(p->k, p->pages_k, p->dim_k, p->stride) &&
                       can_keep_many(p->v, p->pages_v, p->dim_v, p->stride)))
        return false;
    return is_addressable(a->x, a->n_in) && is_addressable(a->y, a->n_out) &&
           (uintptr_t)a->residual % 16 == 0 && a->n < (int64_t)1 << 30;
}

/* Whether the norm is part of it: the kernel that wrote its rows has left their moments. */
bool cuda_linear_many_norms(const linear_args *a) {
    const norm_args *n = a->norm;
    return n != NULL && a->f == EPILOGUE_SILU && n->moments != NULL && n->moments->width > 0 &&
           n->moments->of == n->x && is_addressable(n->x, a->n_in);
}

/* What both kinds of kernels are given. */
template <typename S, many_mode MODE>
static status many_prepare(backend *be, const linear_args *a, const void *w, many_job *j,
                           many_maps *maps) {
    const void *x = j->moments.width > 0 ? a->norm->x : a->x;
    TRY(sm90a_map_box(&maps->x, be->act, x, a->n, a->n_in, a->n_in, PART, S::ROWS));
    TRY(sm90a_map_box(&maps->w, be->act, w, a->n_out, a->n_in, a->n_in, PART, S::N));
    TRY(sm90a_map_box(&maps->y, be->act, a->y, a->n, a->n_out, a->n_out, S::COLUMNS, 16));
    if (MODE == MANY_SUM)
        TRY(sm90a_map_box(&maps->residual, be->act, a->residual, a->n, a->n_out, a->n_out,
                          S::COLUMNS, 16));
    j->n_down = (int32_t)cuda_div_up(a->n, S::ROWS);
    j->n_across = (int32_t)cuda_div_up(a->n_out, S::N);
    if (MODE == MANY_SUM && a->moments != NULL) {
        static_assert(S::N >= MOMENTS_WIDTH, "room for the moments");
        a->moments->width = S::N;
        a->moments->of = a->y;
        j->moments_y = (float2 *)a->moments->parts;
    }
    return OK;
}

template <typename T, typename S, many_mode MODE>
static status many_launch(backend *be, const linear_args *a, const void *w, const many_job *from) {
    many_job j = *from;
    many_maps maps = {};
    TRY((many_prepare<S, MODE>(be, a, w, &j, &maps)));
    int64_t n_tiles = (int64_t)j.n_down * j.n_across, n = cuda_of(be)->n_multiprocessors;
    CUDA_TRY(CUDA_ALLOW_SHARED((linear_many_sm90_kernel<T, S, MODE>), S::BYTES));
    CUDA_TRY(sm90a_launch_early(linear_many_sm90_kernel<T, S, MODE>,
                                dim3((unsigned)(n_tiles < n ? n_tiles : n)), S::THREADS, S::BYTES,
                                cuda_of(be)->stream, j, maps));
    return OK;
}

template <typename T, typename S, many_mode MODE>
static status wave_launch(backend *be, const linear_args *a, const void *w, const many_job *from) {
    many_job j = *from;
    many_maps maps = {};
    TRY((many_prepare<S, MODE>(be, a, w, &j, &maps)));
    CUDA_TRY(CUDA_ALLOW_SHARED((linear_wave_sm90_kernel<T, S, MODE>), S::BYTES));
    CUDA_TRY(sm90a_launch_early(linear_wave_sm90_kernel<T, S, MODE>,
                                dim3((unsigned)(j.n_down * j.n_across)), S::THREADS, S::BYTES,
                                cuda_of(be)->stream, j, maps));
    return OK;
}

typedef status (*many_fn)(backend *be, const linear_args *a, const void *w, const many_job *j);

/* Tiles of 64 g rows x n columns; is_wave: for calls whose tiles can all run at once. */
typedef struct many_choice {
    int n, g;
    bool is_wave;
    many_fn launch;
} many_choice;

#define MANY(N, G, MODE)                                                                           \
    { N, G, false, many_launch<__nv_bfloat16, many_tile<N, G, MODE>, MODE> }
#define ONCE(N, G, MODE)                                                                           \
    { N, G, true, many_launch<__nv_bfloat16, many_tile<N, G, MODE>, MODE> }
#define WAVE(N, G, STAGES, MODE)                                                                   \
    { N, G, true, wave_launch<__nv_bfloat16, wave_tile<N, G, STAGES>, MODE> }
static const many_choice silu_tiles[] = {WAVE(96, 2, 7, MANY_SILU), WAVE(128, 2, 5, MANY_SILU),
                                         MANY(160, 3, MANY_SILU),   MANY(192, 3, MANY_SILU),
                                         MANY(256, 2, MANY_SILU),   MANY(256, 3, MANY_SILU)};
static const many_choice sum_tiles[] = {WAVE(64, 1, 12, MANY_SUM), WAVE(128, 1, 8, MANY_SUM),
                                        WAVE(128, 2, 5, MANY_SUM), ONCE(192, 2, MANY_SUM),
                                        ONCE(256, 2, MANY_SUM),    MANY(96, 2, MANY_SUM),
                                        MANY(128, 3, MANY_SUM)};
enum {
    N_SILU = sizeof silu_tiles / sizeof *silu_tiles,
    N_SUM = sizeof sum_tiles / sizeof *sum_tiles
};

/* The products of 256 columns need three steps along k (many_end). */
static bool has_steps(const linear_args *a, const many_choice *t) {
    return t->n < 256 || a->n_in > 2 * PART;
}

/* The time of a call, up to a factor: as often as a block computes a tile, which takes as long as
 * its products and what a tile costs besides: with a residual and moments more than the rest of an
 * epilogue, which is nearly proportional to the products.
 *
 * Microseconds of a layer that set it (H200, 2026-11-17; bfloat16, one user, width 1024, all with
 * the same attention; columns x rows of a tile, "-": more than a wave; sums: 514 rows, not 512):
 *     rows             512    770   1026   1282   1538   2050   2562   3074   3586   4098   4354
 *     silu 128 x 128  30.3      -      -      -      -      -      -      -      -      -      -
 *          160 x 192  34.2   37.0   58.2   64.6   57.1   95.2  106.7  134.9  147.1  169.5  176.5
 *          192 x 192  36.2   36.4   50.8   68.1   60.4   88.1  112.9  130.6  154.0  165.5  173.0
 *          256 x 192  39.7   40.2   55.5   61.6   68.2   96.2  108.9  141.4  154.0  165.4  171.5
 *          96 x 128   37.1   39.7   56.6   67.8   62.6   99.5  116.6  141.2  160.4  178.9  190.4
 *     sum  128 x 64   30.6   37.8      -      -      -      -      -      -      -      -      -
 *          128 x 128  32.3   39.5   56.9   61.9   59.6      -      -      -      -      -      -
 *          96 x 128   33.5   39.7   56.6   61.7   64.6   99.1  117.5  141.7  160.9  165.0  173.2
 *          192 x 128     -      -   60.0   65.5   62.2   97.2  114.8  142.1  159.3  168.7  174.8
 *          128 x 192     -      -   59.3   64.5   62.6   99.5  116.5  142.0  161.7  166.6  172.7
 *          256 x 128     -      -   62.6   68.5   64.5   98.5  115.8  134.2  152.7  162.4  179.3 */
static int64_t many_cost(const backend *be, const linear_args *a, const many_choice *t) {
    int64_t n_tiles = cuda_div_up(a->n, 64 * t->g) * cuda_div_up(a->n_out, t->n);
    int64_t n_waves = cuda_div_up(n_tiles, cuda_of(be)->n_multiprocessors);
    if (!has_steps(a, t) || (t->is_wave && n_waves > 1)) return INT64_MAX;
    int besides = a->f != EPILOGUE_SILU     ? (t->is_wave ? 64 : 96)
                  : t->is_wave || t->g == 3 ? 32
                                            : 78;
    return n_waves * (besides + t->g * t->n);
}

status cuda_linear_many(backend *be, const linear_args *a, const linear_packed *p) {
    bool is_silu = a->f == EPILOGUE_SILU;
    const many_choice *all = is_silu ? silu_tiles : sum_tiles, *best = all;
    many_job j = {};
    j.n_rows = a->n;
    j.n_out = a->n_out;
    j.n_in = a->n_in;
    j.n_steps = (int32_t)cuda_div_up(a->n_in, PART);
    j.shift = p->shift;
    if (cuda_linear_many_norms(a)) {
        j.sums = p->sums;
        j.moments = *a->norm->moments;
        j.n_parts = (int32_t)cuda_div_up(a->n_in, j.moments.width);
        j.eps = a->norm->eps;
    }
    if (a->put != NULL) {
        size_t size = act_bytes(be->act);
        j.put = *a->put;
        j.column_k = (int32_t)((size_t)((const char *)a->put->k - (const char *)a->y) / size);
        j.column_v = (int32_t)((size_t)((const char *)a->put->v - (const char *)a->y) / size);
    }
    int n = is_silu ? N_SILU : N_SUM, asked = (a->rank < n ? a->rank : n) - 1;
    for (int i = 1; i < n; i++)
        if (many_cost(be, a, &all[i]) < many_cost(be, a, best)) best = &all[i];
    if (asked >= 0 && has_steps(a, &all[asked])) best = &all[asked];
    return best->launch(be, a, p->w, &j);
}
