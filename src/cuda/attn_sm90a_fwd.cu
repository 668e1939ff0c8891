/* HSTU attention, forward, on Hopper (contract: attn_args in ops/ops.h): which kernel and which
 * tiles for which heads and lengths.  The kernels are in attn_sm90a_fwd.cuh (its blocks stay) and
 * attn_sm90a_light.cuh.
 *
 * Shared memory, in KB a block: queries + keys and values
 *     D = 32:   large 2 x 12 + 2 x 2 x 8 = 56      light 4 + 8 = 12
 *     D = 64:   large 2 x 24 + 2 x 2 x 16 = 112    small 2 x 8 + 2 x 2 x 8 = 48
 *     D = 128:  large 2 x 32 + 2 x 2 x 32 = 192    tall 2 x 48 + 3 x 2 x 16 = 192    light 16 + 32
 *     D = 256:  large 64 + 2 x 2 x 32 = 192        small 32 + 2 x 32 = 96
 *
 * Times that set the switch points, in us (H200, 2026-11-15; 4 heads, causal, bfloat16; lengths
 * from 1 to the number named, "full": all of that length).  Those of the kernel that stays are the
 * better ones of two versions, both from before it took tiles as late as it does now.
 *                                 4096 full   1024 full   512     200     50
 *     D = 32    large                   501        58.5    44.5    23.5   39.7
 *               light                     -        71      44.5    16.5   13.8
 *     D = 64    large                   585        63.6    45.6    23.6   41.2
 *               small                   706        59.8    42.0    16.9   17.1
 *     D = 128   large                   927        80.0    69.5    33.0   46.4
 *               tall                    944        86.5    63.7    29.4   44.2
 *               light                     -       129.8    79.9    28.4   23.7
 *     D = 256   large                  1823       149.6   114.7    43.1   50.7
 *               small                  2388       172     129      39.5   35.9 */
#include "cuda/attn_sm90a_fwd.cuh"
#include "cuda/attn_sm90a_light.cuh"

/* One block a multiprocessor; at D = 128 there are two: 128 rows meet 128 keys, or, tall, 192 rows
 * meet 64, which wastes less of the last keys. */
typedef fwd_shape<32, 3, 128, 2, 2, 0, 1, true> large_32;
typedef fwd_shape<64, 3, 128, 2, 2, 0, 1, true> large_64;
typedef fwd_shape<128, 2, 128, 2, 2, 0, 1, true> large_128;
typedef fwd_shape<128, 3, 64, 3, 2, 0, 1, true> tall_128;
typedef fwd_shape<256, 2, 64, 2, 1, 0, 1, true> large_256;

/* Several blocks of 64 rows a multiprocessor. */
typedef light_shape<32, 5> light_32;
typedef fwd_shape<64, 1, 64, 2, 2, 16, 3, false> small_64;
typedef light_shape<128, 3> light_128;
typedef fwd_shape<256, 1, 64, 1, 1, 16, 2, false> small_256;

template <typename T> static status launch_32(backend *be, const attn_args *a) {
    if (a->max_len_q <= 512) return light_launch<T, light_32>(be, a);
    return fwd_launch<T, large_32>(be, a);
}
template <typename T> static status launch_64(backend *be, const attn_args *a) {
    if (a->max_len_q <= 1024) return fwd_launch<T, small_64>(be, a);
    return fwd_launch<T, large_64>(be, a);
}
template <typename T> static status launch_128(backend *be, const attn_args *a) {
    if (a->max_len_q <= 256) return light_launch<T, light_128>(be, a);
    if (a->max_len_q <= 512) return fwd_launch<T, tall_128>(be, a);
    return fwd_launch<T, large_128>(be, a);
}
template <typename T> static status launch_256(backend *be, const attn_args *a) {
    if (a->max_len_q <= 256) return fwd_launch<T, small_256>(be, a);
    return fwd_launch<T, large_256>(be, a);
}

template <typename T> static status launch(backend *be, const attn_args *a) {
    switch (a->dim_qk) {
    case 32:
        return launch_32<T>(be, a);
    case 64:
        return launch_64<T>(be, a);
    case 128:
        return launch_128<T>(be, a);
    default:
        return launch_256<T>(be, a);
    }
}

status cuda_attn_sm90a_fwd(backend *be, const attn_args *a) {
    if (be->act == ACT_BF16) return launch<__nv_bfloat16>(be, a);
    return launch<__half>(be, a);
}
