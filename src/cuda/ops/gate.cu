/* The gate after the attention (ops.h): y = dropped(u * norm(o)) in one pass over the rows, laid
 * out as in norm_row.cuh: 3 rows of activations.  The kernel starts early, which depends on
 * __CUDA_ARCH__. */
#include "cuda/ops/gate_row.cuh"

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

status cuda_gate_fwd(backend *be, const gate_args *a) {
    if (a->cut != NULL) return cuda_gate_cut_fwd(be, a);
    NORM_RUN(be, a, false, return norm_launch_fwd<R>(be, gate_fwd_any_kernel<T, R>, a, "gate_fwd"));
}
