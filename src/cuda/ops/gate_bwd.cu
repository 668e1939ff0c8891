/* The gate after the attention, backward (gate.cu is the forward pass): 5 rows of activations.  The
 * dropout mask is drawn again, one draw for four columns, which overlaps with the bytes. */
#include "cuda/ops/gate_row.cuh"

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
        norm_row_backward<T, R>(in.o, a.dim, in.mean, in.rstd, affine, &room[turn], d, sums);
        turn ^= 1;
#pragma unroll
        for (int p = 0; p < R::PARTS; p++)
            store_columns<R::IS_PACKED>((T *)a.d_o + i * a.dim, row_column<R>(p), a.dim, d.part[p]);
    }
    if (partials != NULL) norm_sums_write(sums, a.dim, partials);
}

status cuda_gate_bwd(backend *be, const gate_args *a) {
    if (a->cut != NULL) return cuda_gate_cut_bwd(be, a);
    NORM_RUN(be, a, true, return norm_launch_bwd<R>(be, gate_bwd_any_kernel<T, R>, a, "gate_bwd"));
}
