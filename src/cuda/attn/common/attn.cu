/* HSTU and softmax attention (contract: attn_args and softmax_attn_args in ops/ops.h): chooses
 * between the float32 kernels, the kernels of 16-bit activations for every card, and the Hopper
 * kernels; computes the summary of a func mask by which HSTU's kernels skip empty tiles, and delta,
 * which some of the softmax attention's backward kernels need. */
#include "cuda/attn/common/attn_mask.cuh"
#include "cuda/core/kernel.cuh"
#include "ops/mask_rule.h"
#include "ops/ops.h"

enum { MASK_WARPS = 4 };

/* A warp reads the spans of one tile of query rows, two rows a lane.  Bound by the bytes of func.
 */
static __global__ void __launch_bounds__(32 * MASK_WARPS)
    attn_mask_tiles_any_kernel(const __grid_constant__ attn_args a, int n_tiles,
                               attn_func_tile *tiles) {
    static_assert(ATTN_FUNC_ROWS == 64, "two rows a lane");
    int64_t n = (int64_t)blockIdx.x * MASK_WARPS + threadIdx.x / 32;
    if (n >= (int64_t)a.n_sequences * n_tiles) return;
    int first = (int)(n % n_tiles) * ATTN_FUNC_ROWS, row = first + (int)threadIdx.x % 32;
    attn_sequence s = attn_sequence_of(&a, (int)(n / n_tiles));
    if (first >= s.len_q) return;
    attn_func_tile tile =
        attn_func_tile_join(attn_func_tile_of(&a, &s, row), attn_func_tile_of(&a, &s, row + 32));
    for (int lane = 16; lane > 0; lane /= 2) {
        attn_func_tile other;
        other.seen.begin = __shfl_xor_sync(0xffffffffu, tile.seen.begin, lane);
        other.seen.end = __shfl_xor_sync(0xffffffffu, tile.seen.end, lane);
        other.full.begin = __shfl_xor_sync(0xffffffffu, tile.full.begin, lane);
        other.full.end = __shfl_xor_sync(0xffffffffu, tile.full.end, lane);
        tile = attn_func_tile_join(tile, other);
    }
    if (threadIdx.x % 32 == 0) tiles[attn_func_tile_index(&s, first)] = tile;
}

/* The call as kernels get it: with func_tiles where the func mask may leave empty tiles. */
static status prepare(backend *be, const attn_args *from, attn_args *a) {
    *a = *from;
    a->func_tiles = NULL;
    int64_t n_tiles = cuda_div_up(a->max_len_q, ATTN_FUNC_ROWS), n = n_tiles * a->n_sequences;
    bool is_one_tile = a->max_len_q <= ATTN_FUNC_ROWS && a->max_len_k <= 64;
    if (a->func == NULL || n == 0 || is_one_tile) return OK;
    void *room = NULL;
    TRY(cuda_mask_scratch(be, (size_t)attn_func_tiles_count(a) * sizeof(attn_func_tile), &room));
    a->func_tiles = (const attn_func_tile *)room;
    return cuda_launch(be, "the tiles of the attention's mask", attn_mask_tiles_any_kernel,
                       cuda_div_up(n, MASK_WARPS), 32 * MASK_WARPS, 0, *a, (int)n_tiles,
                       (attn_func_tile *)room);
}

static status forward(backend *be, const attn_args *args) {
    attn_args a;
    if (cuda_attn_sm80_can_page(be, args)) return cuda_attn_sm80_page(be, args);
    if (args->pages.table != NULL)
        TRY(cuda_attn_collect(be, args, &a));
    else
        TRY(prepare(be, args, &a));
    if (be->act == ACT_F32) return cuda_attn_f32_fwd(be, &a);
    return cuda_attn_sm90_can_fwd(be, &a) ? cuda_attn_sm90_fwd(be, &a) : cuda_attn_sm80_fwd(be, &a);
}

status cuda_attn_fwd(backend *be, const attn_args *args) {
    TRY(attn_args_check(args));
    if (cuda_attn_sm90_can_small(be, args)) return cuda_attn_sm90_small(be, args);
    if (cuda_attn_sm90_can_page(be, args)) return cuda_attn_sm90_page(be, args);
    TRY(forward(be, args));
    return args->gate != NULL ? cuda_gate_fwd(be, args->gate) : OK;
}

status cuda_attn_bwd(backend *be, const attn_args *args) {
    attn_args a;
    TRY(attn_args_check(args));
    TRY(prepare(be, args, &a));
    if (be->act == ACT_F32) return cuda_attn_f32_bwd(be, &a);
    return cuda_attn_sm90_can_bwd(be, &a) ? cuda_attn_sm90_bwd(be, &a) : cuda_attn_sm80_bwd(be, &a);
}

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
    CUDA_WITH_ACT(be, return cuda_launch(
                          be, "the softmax attention's delta", softmax_attn_delta_any_kernel<T>,
                          cuda_div_up(n, DELTA_WARPS), 32 * DELTA_WARPS, 0, *a, n, delta));
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
