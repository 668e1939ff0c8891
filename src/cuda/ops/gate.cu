/* The gate after the attention (ops.h): y = dropped(u * norm(o)) in one pass over the rows, laid
 * out as in norm_row.cuh.  The backward pass draws the dropout mask again, one draw for four
 * columns, which overlaps with the bytes: 3 rows of activations forward, 5 backward. */
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

template <typename T, typename R>
static __global__ void __launch_bounds__(R::THREADS, R::FORWARD)
    gate_fwd_any_kernel(const gate_args a) {
    __shared__ row_room<R> room[2];
    row_affine<R> affine;
    gate_input<T, R> next;
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
        norm_row_statistics<T, R>(in.o, a.dim, a.eps, room, &mean, &rstd);
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

/* Part p of row i.  With g = dropped(dy): du = g * norm(o), and the gradient of the norm is g * u,
 * left in d. */
template <typename T, typename R>
__device__ static inline void backward_part(const gate_args &a, int64_t i, int p,
                                            const gate_input<T, R> &in, const drop_row &drop,
                                            const row_affine<R> &affine, float (&d)[R::V]) {
    int c = row_column<R>(p);
    float du[R::V];
#pragma unroll
    for (int j = 0; j < R::V; j++)
        d[j] = column(in.dy.part[p], j);
    if (c >= a.dim) return;
    drop_columns(drop, c, d);
    norm_row_apply<R>(in.o.part[p], p, in.mean, in.rstd, affine, du);
#pragma unroll
    for (int j = 0; j < R::V; j++) {
        du[j] *= d[j];
        d[j] *= column(in.u.part[p], j);
    }
    store_columns<R::IS_PACKED>((T *)a.du + i * a.stride_u, c, a.dim, du);
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
            backward_part<T, R>(a, i, p, in, drop, affine, d.part[p]);
        norm_row_backward<T, R>(in.o, a.dim, in.mean, in.rstd, affine, &room[turn], d, sums);
        turn ^= 1;
#pragma unroll
        for (int p = 0; p < R::PARTS; p++)
            store_columns<R::IS_PACKED>((T *)a.d_o + i * a.dim, row_column<R>(p), a.dim, d.part[p]);
    }
    if (partials != NULL) norm_sums_write(sums, a.dim, partials);
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

static status check_whole(const gate_args *a) {
    if (a->cut == NULL) return OK;
    return fail(ERR_UNSUPPORTED, "a GPU cannot cut layers over ranks yet");
}

status cuda_gate_fwd(backend *be, const gate_args *a) {
    TRY(check_whole(a));
    NORM_RUN(be, a, false, return norm_launch_fwd<R>(be, gate_fwd_any_kernel<T, R>, a, "gate_fwd"));
}

status cuda_gate_bwd(backend *be, const gate_args *a) {
    TRY(check_whole(a));
    NORM_RUN(be, a, true, return norm_launch_bwd<R>(be, gate_bwd_any_kernel<T, R>, a, "gate_bwd"));
}
