/* The gate after the attention (ops.h): y = dropped(u * norm(o)), on the rows of norm_row.cuh.
 * Bound by bytes: the forward pass moves 3 rows of activations, the backward pass 5; the dropout
 * mask is drawn again there, one draw for four columns, which overlaps with the memory traffic. The
 * forward kernels start early, which depends on __CUDA_ARCH__.
 *
 * Where rows are cut over ranks (gate_cut of ops.h) each pass has two halves: the forward pass then
 * reads o twice, the backward pass o, u and dy, because g is computed again rather than kept in 16
 * bits between the halves. */
#include "cuda/ops/norm_row.cuh"

/* What a pass reads of a row; mean, rstd and dy only in the backward pass. */
template <typename T, typename R> struct gate_input {
    row_packs<T, R> o, u, dy;
    float mean, rstd;
    uint32_t user, position;
};

template <typename T, typename R>
__device__ static inline void input_load(gate_input<T, R> &in, const gate_args &a, int64_t i,
                                         bool is_backward) {
    row_load<T, R>(in.o, (const T *)a.o + i * a.dim, a.dim);
    row_load<T, R>(in.u, (const T *)a.u + i * a.stride_u, a.dim);
    if (a.drop.rate > 0) {
        in.user = a.drop.user[i];
        in.position = a.drop.position[i];
    }
    if (!is_backward) return;
    row_load<T, R>(in.dy, (const T *)a.dy + i * a.dim, a.dim);
    in.mean = a.mean[i];
    in.rstd = a.rstd[i];
}

/* Part p of row i; the dropout counts columns from `first`.  With g = dropped(dy): du = g *
 * norm(o), and the gradient of the norm is g * u, left in d. */
template <typename T, typename R>
__device__ static inline void
backward_part(const gate_args &a, int64_t i, int p, const gate_input<T, R> &in,
              const drop_row &drop, const row_affine<R> &affine, int first, float (&d)[R::V]) {
    int c = row_column<R>(p);
    float du[R::V];
#pragma unroll
    for (int j = 0; j < R::V; j++)
        d[j] = column(in.dy.part[p], j);
    if (c >= a.dim) return;
    drop_columns(drop, first + c, d);
    norm_row_apply<R>(in.o.part[p], p, in.mean, in.rstd, affine, du);
#pragma unroll
    for (int j = 0; j < R::V; j++) {
        du[j] *= d[j];
        d[j] *= column(in.u.part[p], j);
    }
    store_columns<R::IS_PACKED>((T *)a.du + i * a.stride_u, c, a.dim, du);
}

template <typename T> static bool is_packed(const gate_args *a, bool is_backward) {
    const int v = columns_of<T>::PACKED;
    bool is = can_pack(a->o, a->dim, a->dim, sizeof(T), v) &&
              can_pack(a->u, a->stride_u, a->dim, sizeof(T), v) &&
              can_pack(a->weight, a->dim, a->dim, sizeof(float), v) &&
              can_pack(a->bias, a->dim, a->dim, sizeof(float), v);
    if (!is_backward) return is && can_pack(a->y, a->dim, a->dim, sizeof(T), v);
    return is && can_pack(a->dy, a->dim, a->dim, sizeof(T), v) &&
           can_pack(a->d_o, a->dim, a->dim, sizeof(T), v) &&
           can_pack(a->du, a->stride_u, a->dim, sizeof(T), v);
}

template <typename T, typename R>
static __global__ void __launch_bounds__(R::THREADS, R::FORWARD)
    gate_fwd_any_kernel(const gate_args a) {
    __shared__ row_room<R> room[2];
    row_affine<R> affine;
    gate_input<T, R> next;
    early_begin();
    drop_row drop = drop_begin(a.drop, 0); /* each row puts its own user and position there */
    int64_t i = row_first<R>(), step = row_step<R>();
    row_affine_load(affine, a.weight, a.bias, a.dim);
    if (i < a.n) input_load(next, a, i, false);
    for (; i < a.n; i += step) {
        gate_input<T, R> in = next;
        drop.user = in.user;
        drop.position = in.position;
        float mean, rstd;
        if (i + step < a.n) input_load(next, a, i + step, false);
        norm_row_statistics<T, R>(in.o, a.dim, a.eps, room, &mean, &rstd, a.is_rms);
#pragma unroll
        for (int p = 0; p < R::PARTS; p++) {
            int c = row_column<R>(p);
            float y[R::V];
            if (c >= a.dim) continue; /* no draws for nothing */
            norm_row_apply<R>(in.o.part[p], p, mean, rstd, affine, y);
#pragma unroll
            for (int j = 0; j < R::V; j++)
                y[j] *= column(in.u.part[p], j);
            drop_columns(drop, c, y);
            store_columns<R::IS_PACKED>((T *)a.y + i * a.dim, c, a.dim, y);
        }
        if (row_lane<R>() != 0) continue;
        a.mean[i] = mean;
        a.rstd[i] = rstd;
    }
}

/* partials: (blocks, 2, dim), or NULL where no gradient of the affine part is wanted. */
template <typename T, typename R>
static __global__ void __launch_bounds__(R::THREADS, R::BACKWARD)
    gate_bwd_any_kernel(const gate_args a, float *partials) {
    __shared__ row_room<R> room[2];
    norm_sums<R> sums;
    row_affine<R> affine;
    gate_input<T, R> next;
    int turn = 0;
    drop_row drop = drop_begin(a.drop, 0); /* each row puts its own user and position there */
    int64_t i = row_first<R>(), step = row_step<R>();
    norm_sums_clear(sums);
    row_affine_load(affine, a.weight, a.bias, a.dim);
    if (i < a.n) input_load(next, a, i, true);
    for (; i < a.n; i += step) {
        gate_input<T, R> in = next;
        drop.user = in.user;
        drop.position = in.position;
        row_floats<R> d;
        if (i + step < a.n) input_load(next, a, i + step, true);
#pragma unroll
        for (int p = 0; p < R::PARTS; p++)
            backward_part<T, R>(a, i, p, in, drop, affine, 0, d.part[p]);
        norm_row_backward<T, R>(in.o, a.dim, in.mean, in.rstd, affine, &room[turn], d, sums,
                                a.is_rms);
        turn ^= 1;
#pragma unroll
        for (int p = 0; p < R::PARTS; p++)
            store_columns<R::IS_PACKED>((T *)a.d_o + i * a.dim, row_column<R>(p), a.dim, d.part[p]);
    }
    if (partials != NULL) norm_sums_write(sums, a.dim, partials);
}

/* The first half of the forward pass: mean and variance of this rank's part. */
template <typename T, typename R>
static __global__ void __launch_bounds__(R::THREADS, R::FORWARD)
    gate_moments_any_kernel(const gate_args a, const gate_cut cut) {
    __shared__ row_room<R> room[2];
    float2 *own = (float2 *)cut.moments + a.n * cut.part;
    float share = 1.0f / (float)a.dim;
    for (int64_t i = row_first<R>(), step = row_step<R>(); i < a.n; i += step) {
        row_packs<T, R> o;
        float sum = 0, squares = 0;
        row_load<T, R>(o, (const T *)a.o + i * a.dim, a.dim);
#pragma unroll
        for (int p = 0; p < R::PARTS; p++)
#pragma unroll
            for (int j = 0; j < R::V; j++)
                sum += column(o.part[p], j);
        float mean = row_sum2<R>(make_float2(sum, 0), &room[0]).x * share;
#pragma unroll
        for (int p = 0; p < R::PARTS; p++)
#pragma unroll
            for (int j = 0; j < R::V; j++) {
                float d = column(o.part[p], j) - mean;
                if (row_column<R>(p) < a.dim) squares += d * d;
            }
        squares = row_sum2<R>(make_float2(squares, 0), &room[1]).x;
        if (row_lane<R>() == 0) own[i] = make_float2(mean, squares * share);
    }
}

/* Mean and rstd of a row from the moments of its parts: the variance of a row is the mean variance
 * of its parts and the variance of their means, so nothing cancels. */
__device__ static inline void join_moments(const gate_args &a, const gate_cut &cut, int64_t i,
                                           float *mean, float *rstd) {
    const float2 *part = (const float2 *)cut.moments + i;
    float m = 0, variance = 0;
    for (int p = 0; p < cut.n_parts; p++)
        m += part[p * a.n].x;
    m /= (float)cut.n_parts;
    for (int p = 0; p < cut.n_parts; p++) {
        float2 x = part[p * a.n];
        variance += x.y + (x.x - m) * (x.x - m);
    }
    *mean = m;
    *rstd = 1.0f / sqrtf(variance / (float)cut.n_parts + a.eps);
}

template <typename T, typename R>
static __global__ void __launch_bounds__(R::THREADS, R::FORWARD)
    gate_cut_fwd_any_kernel(const gate_args a, const gate_cut cut) {
    row_affine<R> affine;
    drop_row drop = drop_begin(a.drop, 0);
    row_affine_load(affine, a.weight, a.bias, a.dim);
    for (int64_t i = row_first<R>(), step = row_step<R>(); i < a.n; i += step) {
        gate_input<T, R> in;
        float mean, rstd;
        input_load(in, a, i, false);
        drop.user = in.user;
        drop.position = in.position;
        join_moments(a, cut, i, &mean, &rstd);
#pragma unroll
        for (int p = 0; p < R::PARTS; p++) {
            int c = row_column<R>(p);
            float y[R::V];
            if (c >= a.dim) continue;
            norm_row_apply<R>(in.o.part[p], p, mean, rstd, affine, y);
#pragma unroll
            for (int j = 0; j < R::V; j++)
                y[j] *= column(in.u.part[p], j);
            drop_columns(drop, cut.part * a.dim + c, y);
            store_columns<R::IS_PACKED>((T *)a.y + i * a.dim, c, a.dim, y);
        }
        if (row_lane<R>() != 0) continue;
        a.mean[i] = mean;
        a.rstd[i] = rstd;
    }
}

/* The first half of the backward pass; partials as in gate_bwd_any_kernel. */
template <typename T, typename R>
static __global__ void __launch_bounds__(R::THREADS, R::BACKWARD)
    gate_cut_sums_any_kernel(const gate_args a, float *partials, const gate_cut cut) {
    __shared__ row_room<R> room[2];
    norm_sums<R> sums;
    row_affine<R> affine;
    int turn = 0;
    drop_row drop = drop_begin(a.drop, 0);
    norm_sums_clear(sums);
    row_affine_load(affine, a.weight, a.bias, a.dim);
    for (int64_t i = row_first<R>(), step = row_step<R>(); i < a.n; i += step) {
        gate_input<T, R> in;
        float sum = 0, dot = 0;
        input_load(in, a, i, true);
        drop.user = in.user;
        drop.position = in.position;
#pragma unroll
        for (int p = 0; p < R::PARTS; p++) {
            float d[R::V];
            backward_part<T, R>(a, i, p, in, drop, affine, cut.part * a.dim, d);
#pragma unroll
            for (int j = 0; j < R::V; j++) {
                float from_mean = column(in.o.part[p], j) - in.mean, g = d[j] * affine.weight[p][j];
                sums.dweight[p][j] += d[j] * (from_mean * in.rstd);
                sums.dbias[p][j] += d[j];
                sum += g;
                dot += g * from_mean;
            }
        }
        float2 total = row_sum2<R>(make_float2(sum, dot), &room[turn]);
        turn ^= 1;
        if (row_lane<R>() == 0) ((float2 *)cut.sums)[i] = total;
    }
    if (partials != NULL) norm_sums_write(sums, a.dim, partials);
}

/* The second half: d_o = rstd (g - mean(g) - (o - mean) rstd^2 mean(g (o - mean))). */
template <typename T, typename R>
static __global__ void __launch_bounds__(R::THREADS, R::BACKWARD)
    gate_cut_bwd_any_kernel(const gate_args a, const gate_cut cut) {
    row_affine<R> affine;
    drop_row drop = drop_begin(a.drop, 0);
    float share = 1.0f / ((float)a.dim * (float)cut.n_parts);
    row_affine_load(affine, a.weight, a.bias, a.dim);
    for (int64_t i = row_first<R>(), step = row_step<R>(); i < a.n; i += step) {
        gate_input<T, R> in;
        float2 total = ((const float2 *)cut.sums)[i];
        input_load(in, a, i, true);
        drop.user = in.user;
        drop.position = in.position;
        float level = total.x * share, slope = total.y * share * in.rstd * in.rstd;
#pragma unroll
        for (int p = 0; p < R::PARTS; p++) {
            int c = row_column<R>(p);
            float d[R::V];
            if (c >= a.dim) continue;
#pragma unroll
            for (int j = 0; j < R::V; j++)
                d[j] = column(in.dy.part[p], j);
            drop_columns(drop, cut.part * a.dim + c, d);
#pragma unroll
            for (int j = 0; j < R::V; j++) {
                float g = d[j] * column(in.u.part[p], j) * affine.weight[p][j];
                d[j] = in.rstd * (g - level - (column(in.o.part[p], j) - in.mean) * slope);
            }
            store_columns<R::IS_PACKED>((T *)a.d_o + i * a.dim, c, a.dim, d);
        }
    }
}

template <typename R>
static status cut_launch(backend *be, void (*kernel)(gate_args, gate_cut), const gate_args *a,
                         const char *what) {
    int64_t n_blocks = 0;
    TRY(norm_blocks<R>(be, kernel, a->n, &n_blocks));
    return cuda_launch(be, what, kernel, n_blocks, R::THREADS, 0, *a, *a->cut);
}

/* The tiles of NORM_WITH_TILE whose rows are packed, without the one for the shortest: layers are
 * cut because they are large. */
#define CUT_RUN(be, a, ...)                                                                        \
    do {                                                                                           \
        if ((a)->n == 0 || (a)->dim == 0) return OK;                                               \
        TRY(norm_check_dim((a)->dim));                                                             \
        CUDA_WITH_ACT(                                                                             \
            be, constexpr int V_ = columns_of<T>::PACKED; if ((a)->dim <= 1024) {                  \
                using R = row_tile<128, V_, true>;                                                 \
                __VA_ARGS__;                                                                       \
            } else {                                                                               \
                using R = row_tile<512, V_, true>;                                                 \
                __VA_ARGS__;                                                                       \
            });                                                                                    \
    } while (0)

static status check_packed(const backend *be, const gate_args *a, bool is_backward) {
    bool is = be->act == ACT_F32    ? is_packed<float>(a, is_backward)
              : be->act == ACT_BF16 ? is_packed<__nv_bfloat16>(a, is_backward)
                                    : is_packed<__half>(a, is_backward);
    if (is || a->n == 0) return OK;
    return fail(ERR_UNSUPPORTED,
                "%d columns of a layer's heads on a rank: a GPU cuts layers where they are a "
                "multiple of 8",
                a->dim);
}

static status cut_fwd(backend *be, const gate_args *a) {
    TRY(check_packed(be, a, false));
    if (!a->cut->is_second)
        CUT_RUN(be, a,
                return cut_launch<R>(be, gate_moments_any_kernel<T, R>, a, "gate's moments"));
    CUT_RUN(be, a,
            return cut_launch<R>(be, gate_cut_fwd_any_kernel<T, R>, a, "gate_fwd of cut rows"));
}

static status cut_bwd(backend *be, const gate_args *a) {
    const char *what = "gate_bwd of cut rows";
    TRY(check_packed(be, a, true));
    if (!a->cut->is_second)
        CUT_RUN(be, a,
                return norm_launch_bwd<R>(be, gate_cut_sums_any_kernel<T, R>, a, what, *a->cut));
    CUT_RUN(be, a, return cut_launch<R>(be, gate_cut_bwd_any_kernel<T, R>, a, what));
}

status cuda_gate_fwd(backend *be, const gate_args *a) {
    if (a->cut != NULL) return cut_fwd(be, a);
    NORM_RUN(be, a, false, return norm_launch_fwd<R>(be, gate_fwd_any_kernel<T, R>, a, "gate_fwd"));
}

status cuda_gate_bwd(backend *be, const gate_args *a) {
    if (a->cut != NULL) return cut_bwd(be, a);
    NORM_RUN(be, a, true, return norm_launch_bwd<R>(be, gate_bwd_any_kernel<T, R>, a, "gate_bwd"));
}
