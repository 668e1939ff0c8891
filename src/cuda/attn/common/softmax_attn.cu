/* Softmax attention under any mask (contract: softmax_attn_args in ops/ops.h): chooses between the
 * float32 kernels, the kernels of 16-bit activations for every card, block-wise and row-wise, and
 * the Hopper kernels; and computes delta, which the backward passes of the first two need. */
#include "cuda/core/cuda.h"
#include "cuda/core/kernel.cuh"
#include "ops/attn_check.h"
#include "ops/mask_choice.h"

enum { DELTA_WARPS = 8 };

/* delta = out . dout: a warp for each row and head. */
template <typename T>
static __global__ void __launch_bounds__(32 * DELTA_WARPS)
    softmax_attn_delta_any_kernel(const __grid_constant__ softmax_attn_args a, int64_t n,
                                  float *delta) {
    int64_t i = (int64_t)blockIdx.x * DELTA_WARPS + threadIdx.x / 32;
    if (i >= n || i >= (int64_t)a.offsets[a.n_sequences] * a.n_heads) return;
    int64_t at = i / a.n_heads * a.stride_out + i % a.n_heads * a.dim;
    const T *out = (const T *)a.out + at, *dout = (const T *)a.dout + at;
    float sum = 0.0f;
    for (int d = (int)threadIdx.x % 32; d < a.dim; d += 32)
        sum += to_float(out[d]) * to_float(dout[d]);
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) delta[i] = sum;
}

static status launch_delta(backend *be, const softmax_attn_args *a, float *delta) {
    int64_t n = (int64_t)a->n_sequences * a->max_len * a->n_heads;
    unsigned n_blocks = (unsigned)cuda_div_up(n, DELTA_WARPS);
    cudaStream_t stream = cuda_of(be)->stream;
    if (be->act == ACT_F32)
        softmax_attn_delta_any_kernel<float>
            <<<n_blocks, 32 * DELTA_WARPS, 0, stream>>>(*a, n, delta);
    else if (be->act == ACT_BF16)
        softmax_attn_delta_any_kernel<__nv_bfloat16>
            <<<n_blocks, 32 * DELTA_WARPS, 0, stream>>>(*a, n, delta);
    else
        softmax_attn_delta_any_kernel<__half>
            <<<n_blocks, 32 * DELTA_WARPS, 0, stream>>>(*a, n, delta);
    return cuda_launched("the softmax attention's delta");
}

/* Whether the tensor cores' 16-bit kernels take the call. */
static bool is_half(const backend *be, const softmax_attn_args *a) {
    return be->act != ACT_F32 && a->alpha > 0 && !(a->drop.rate > 0);
}

static bool is_by_rows(const backend *be, const softmax_attn_args *a, bool is_backward) {
    return is_half(be, a) && mask_choice_by_rows(a->mask.n_pairs, a->mask.n_listed, is_backward) &&
           cuda_softmax_sm80_rows_can(be, a, is_backward);
}

status cuda_softmax_attn_fwd(backend *be, const softmax_attn_args *a) {
    TRY(softmax_attn_args_check(a));
    if (a->n_sequences == 0 || a->max_len == 0) return OK;
    if (is_by_rows(be, a, false)) return cuda_softmax_sm80_rows_fwd(be, a);
    if (is_half(be, a) && cuda_softmax_sm90_can_fwd(be, a)) return cuda_softmax_sm90_fwd(be, a);
    if (is_half(be, a) && a->silu_scale == 0) return cuda_softmax_sm80_fwd(be, a);
    return cuda_softmax_f32_fwd(be, a);
}

status cuda_softmax_attn_bwd(backend *be, const softmax_attn_args *a) {
    void *delta;
    TRY(softmax_attn_args_check(a));
    if (a->n_sequences == 0 || a->max_len == 0) return OK;
    if (is_by_rows(be, a, true)) return cuda_softmax_sm80_rows_bwd(be, a);
    if (is_half(be, a) && cuda_softmax_sm90_can_bwd(be, a)) return cuda_softmax_sm90_bwd(be, a);
    if (a->silu_scale != 0) return cuda_softmax_f32_bwd(be, a, NULL);
    size_t n_rows = (size_t)a->n_sequences * (size_t)a->max_len;
    TRY(cuda_scratch(be, n_rows * (size_t)a->n_heads * sizeof(float), &delta));
    TRY(launch_delta(be, a, (float *)delta));
    if (is_half(be, a) && cuda_softmax_sm80_can_bwd(be, a))
        return cuda_softmax_sm80_bwd(be, a, (const float *)delta);
    return cuda_softmax_f32_bwd(be, a, (const float *)delta);
}
