/* HSTU attention (contract: attn_args in ops/ops.h): chooses between the float32 kernels, the
 * kernels of 16-bit activations for every card, and the Hopper kernels; and computes the summary of
 * a func mask by which all of them skip empty tiles. */
#include "cuda/attn/common/attn_mask.cuh"
#include "cuda/core/cuda.h"
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
    attn_mask_tiles_any_kernel<<<(unsigned)cuda_div_up(n, MASK_WARPS), 32 * MASK_WARPS, 0,
                                 cuda_of(be)->stream>>>(*a, (int)n_tiles, (attn_func_tile *)room);
    a->func_tiles = (const attn_func_tile *)room;
    return cuda_launched("the tiles of the attention's mask");
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
    if (cuda_attn_sm90_can_few(be, args)) return cuda_attn_sm90_few(be, args);
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
