/* A row of the gate: what gate.cu, gate_bwd.cu and gate_cut.cu share. */
#ifndef HSTU_CUDA_OPS_GATE_ROW_CUH
#define HSTU_CUDA_OPS_GATE_ROW_CUH

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

/* Rows that are cut over ranks (gate_cut of ops.h); in gate_cut.cu. */
status cuda_gate_cut_fwd(backend *be, const gate_args *a);
status cuda_gate_cut_bwd(backend *be, const gate_args *a);

#endif
