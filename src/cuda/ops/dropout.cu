/* Dropout (ops.h): a thread owns V columns of a row, and one draw serves four of them.  Bound by
 * bytes, two rows of activations; the random draws overlap with the memory traffic. */
#include "cuda/core/kernel.cuh"

template <typename T, int V, bool IS_PACKED>
static __global__ void __launch_bounds__(256) dropout_rows_any_kernel(const dropout_args a) {
    int64_t i = row_grid_row();
    if (i >= a.n) return;
    drop_row drop = drop_begin(a.drop, i);
    for (int c = (int)threadIdx.x * V; c < a.dim; c += (int)blockDim.x * V) {
        columns<T, V> x = load_columns<IS_PACKED, V>((const T *)a.x + i * a.dim, c, a.dim);
        float y[V];
#pragma unroll
        for (int j = 0; j < V; j++)
            y[j] = column(x, j);
        drop_columns(drop, c, y);
        store_columns<IS_PACKED>((T *)a.y + i * a.dim, c, a.dim, y);
    }
}

template <typename T, int V, bool IS_PACKED>
static status drop_launch(backend *be, const dropout_args *a) {
    row_grid g = row_grid_of(a->n, a->dim, V);
    dropout_rows_any_kernel<T, V, IS_PACKED><<<g.blocks, g.threads, 0, cuda_of(be)->stream>>>(*a);
    return cuda_launched("dropout");
}

template <typename T> static status drop(backend *be, const dropout_args *a) {
    const int v = columns_of<T>::PACKED;
    bool is_packed = can_pack(a->x, a->dim, a->dim, sizeof(T), v) &&
                     can_pack(a->y, a->dim, a->dim, sizeof(T), v);
    return is_packed ? drop_launch<T, v, true>(be, a)
                     : drop_launch<T, columns_of<T>::LOOSE, false>(be, a);
}

status cuda_dropout(backend *be, const dropout_args *a) {
    if (a->n == 0 || a->dim == 0) return OK;
    CUDA_WITH_ACT(be, return drop<T>(be, a));
}
