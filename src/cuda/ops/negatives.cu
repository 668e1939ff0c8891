/* negatives, as ops.h states it.  A thread draws one Philox block, which gives four negatives;
 * bound by the draws, about a hundred instructions each. */
#include "cuda/core/kernel.cuh"

static __global__ void __launch_bounds__(256) negatives_draw_any_kernel(const negatives_args a) {
    int64_t m = row_grid_row();
    if (m >= a.n) return;
    uint32_t position = a.position[m], user = a.user[m], step = *a.step;
    int32_t *index = a.index + m * a.n_negatives;
    for (int r = (int)threadIdx.x * 4; r < a.n_negatives; r += (int)blockDim.x * 4) {
        rng_block b = rng_draw(a.key, position, user, step, (uint32_t)r / 4);
#pragma unroll
        for (int w = 0; w < 4; w++) {
            uint32_t i = rng_below(b.word[w], (uint32_t)a.n_pool);
            if (r + w < a.n_negatives) index[r + w] = a.pool != NULL ? a.pool[i] : (int32_t)i;
        }
    }
}

status cuda_negatives(backend *be, const negatives_args *a) {
    if (a->n == 0 || a->n_negatives == 0) return OK;
    if (a->n_pool < 1)
        return fail(ERR_CONFIG, "there is nothing to draw negatives from; give the model at least "
                                "one item");
    row_grid g = row_grid_of(a->n, a->n_negatives, 4);
    negatives_draw_any_kernel<<<g.blocks, g.threads, 0, cuda_of(be)->stream>>>(*a);
    return cuda_launched("negatives");
}
