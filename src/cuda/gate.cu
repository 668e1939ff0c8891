/* The gate behind the attention (ops.h): y = dropped(u * norm(o)) in one pass over the rows, laid
 * out as in norm_row.cuh.  The mask is drawn again in the backward pass, one draw for four columns,
 * which hides behind the bytes: 3 rows of activations forward, 5 backward. */
#include "cuda/norm_row.cuh"

template <typename T, typename R>
static __global__ void __launch_bounds__(R::THREADS) forward_kernel(const gate_args a) {
    __shared__ row_room<R> room[2];
    int64_t i = (int64_t)blockIdx.x * R::ROWS + (int)threadIdx.x / R::LANES;
    if (i >= a.n) return; /* all lanes of a row together */
    row_packs<T, R> o, u;
    float mean, rstd;
    row_load<T, R>(o, (const T *)a.o + i * a.dim, a.dim);
    row_load<T, R>(u, (const T *)a.u + i * a.stride_u, a.dim);
    drop_row drop = drop_begin(a.drop, i);
    norm_row_statistics<T, R>(o, a.dim, a.eps, room, &mean, &rstd);
#pragma unroll
    for (int p = 0; p < R::PARTS; p++) {
        int c = row_column<R>(p);
        if (c >= a.dim) continue; /* no draws for nothing */
        float y[R::V];
        norm_row_apply<R>(o.part[p], c, a.dim, mean, rstd, a.weight, a.bias, y);
#pragma unroll
        for (int j = 0; j < R::V; j++)
            y[j] *= to_float(u.part[p].v[j]);
        drop_columns(drop, c, y);
        store_columns<R::IS_PACKED>((T *)a.y + i * a.dim, c, a.dim, y);
    }
    if (row_lane<R>() == 0) {
        a.mean[i] = mean;
        a.rstd[i] = rstd;
    }
}

/* One part of a row.  With g = dropped(dy): du = g * norm(o), and the gradient of the norm is g *
 * u, left in d. */
template <typename T, typename R>
__device__ static inline void backward_part(const gate_args &a, int64_t i, int c,
                                            const drop_row &drop, float mean, float rstd,
                                            const pack<T, R::V> &o, const pack<T, R::V> &u,
                                            const pack<T, R::V> &dy, float (&d)[R::V]) {
    float du[R::V];
#pragma unroll
    for (int j = 0; j < R::V; j++)
        d[j] = to_float(dy.v[j]);
    if (c >= a.dim) return;
    drop_columns(drop, c, d);
    norm_row_apply<R>(o, c, a.dim, mean, rstd, a.weight, a.bias, du);
#pragma unroll
    for (int j = 0; j < R::V; j++) {
        du[j] *= d[j];
        d[j] *= to_float(u.v[j]);
    }
    store_columns<R::IS_PACKED>((T *)a.du + i * a.stride_u, c, a.dim, du);
}

/* partials: (blocks, 2, dim), or NULL where no gradient of the affine part is wanted. */
template <typename T, typename R>
static __global__ void __launch_bounds__(R::THREADS, R::BLOCKS)
    backward_kernel(const gate_args a, float *partials) {
    __shared__ row_room<R> room[2];
    int turn = 0;
    norm_sums<R> sums;
    norm_sums_clear(sums);
    int64_t i = (int64_t)blockIdx.x * R::ROWS + (int)threadIdx.x / R::LANES;
    for (; i < a.n; i += (int64_t)gridDim.x * R::ROWS) {
        row_packs<T, R> o, u, dy;
        row_load<T, R>(o, (const T *)a.o + i * a.dim, a.dim);
        row_load<T, R>(u, (const T *)a.u + i * a.stride_u, a.dim);
        row_load<T, R>(dy, (const T *)a.dy + i * a.dim, a.dim);
        drop_row drop = drop_begin(a.drop, i);
        float mean = a.mean[i], rstd = a.rstd[i];
        row_floats<R> d;
#pragma unroll
        for (int p = 0; p < R::PARTS; p++)
            backward_part<T, R>(a, i, row_column<R>(p), drop, mean, rstd, o.part[p], u.part[p],
                                dy.part[p], d.part[p]);
        norm_row_backward<T, R>(o, a.dim, mean, rstd, a.weight, &room[turn], d, sums);
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

template <typename T, typename R> static status forward(backend *be, const gate_args *a) {
    unsigned n_blocks = (unsigned)cuda_div_up(a->n, R::ROWS);
    forward_kernel<T, R><<<n_blocks, R::THREADS, 0, cuda_of(be)->stream>>>(*a);
    return cuda_launched("gate_fwd");
}

template <typename T, typename R> static status backward(backend *be, const gate_args *a) {
    int64_t n_blocks = norm_backward_blocks<R>(be, a->n);
    void *partials = NULL;
    if (a->dweight != NULL || a->dbias != NULL)
        TRY(cuda_scratch(be, (size_t)(n_blocks * 2 * a->dim) * sizeof(float), &partials));
    backward_kernel<T, R>
        <<<(unsigned)n_blocks, R::THREADS, 0, cuda_of(be)->stream>>>(*a, (float *)partials);
    TRY(cuda_launched("gate_bwd"));
    if (partials == NULL) return OK;
    return cuda_norm_add_partials(be, (const float *)partials, n_blocks, a->dim, a->dweight,
                                  a->dbias);
}

status cuda_gate_fwd(backend *be, const gate_args *a) {
    if (a->n == 0 || a->dim == 0) return OK;
    TRY(norm_check_dim(a->dim));
    CUDA_WITH_ACT(be,
                  NORM_WITH_TILE(T, a->dim, is_packed<T>(a, false), return forward<T, R>(be, a)));
}

status cuda_gate_bwd(backend *be, const gate_args *a) {
    if (a->n == 0 || a->dim == 0) return OK;
    TRY(norm_check_dim(a->dim));
    CUDA_WITH_ACT(be,
                  NORM_WITH_TILE(T, a->dim, is_packed<T>(a, true), return backward<T, R>(be, a)));
}
