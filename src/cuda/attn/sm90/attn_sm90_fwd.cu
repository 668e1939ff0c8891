/* HSTU attention, forward, on Hopper (contract: attn_args in ops/ops.h): which kernel and which
 * tile sizes for which head dimensions and lengths.  The kernels are in attn_sm90_fwd.cuh
 * (persistent) and attn_sm90_fwd_short.cuh.
 *
 * Shared memory, in KB a block: queries + keys and values
 *     D = 32:   large 2 x 12 + 2 x 2 x 8 = 56                                        short 15 + 200
 *     D = 64:   large 2 x 24 + 2 x 2 x 16 = 112    small 2 x 8 + 2 x 2 x 8 = 48      short 30 + 184
 *     D = 128:  large 2 x 32 + 2 x 2 x 32 = 192    tall 2 x 48 + 3 x 2 x 16 = 192    short 44 + 168
 *     D = 256:  large 64 + 2 x 2 x 32 = 192        small 32 + 2 x 32 = 96            short 56 + 152
 *
 * Times that set the switch points, in us (H200, 2026-11-15; 4 heads, causal, bfloat16; lengths
 * from 1 to the number named, "full": all of that length).  For the persistent kernel they are the
 * better of two older versions, which dequeued tiles earlier than the current one.
 *                                 4096 full   1024 full   512     200     50
 *     D = 32    large                   501        58.5    44.5    23.5   39.7
 *     D = 64    large                   585        63.6    45.6    23.6   41.2
 *               small                   706        59.8    42.0    16.9   17.1
 *     D = 128   large                   927        80.0    69.5    33.0   46.4
 *               tall                    944        86.5    63.7    29.4   44.2
 *     D = 256   large                  1823       149.6   114.7    43.1   50.7
 *               small                  2388       172     129      39.5   35.9
 * The kernel for short sequences and its competitor, in one run (sequences x longest; at D = 32 and
 * 128 a third kernel, since removed):
 *                      128 x 512   128 x 200   512 x 50   2048 x 20   64 x 256 full   32 x 200
 *     D = 32    before      40.7        15.7       13.4        38.7            17.7        8.5
 *               short       33.0        10.4        9.9        25.5            16.5        7.1
 *     D = 64    small       32.7        15.2       17.1        49.8            15.9        8.0
 *               short       37.5        12.4       10.8        29.4            20.7        8.4
 *     D = 128   before      49.8        27.3       23.2        70.4            32.4       12.4
 *               short       64.1        21.3       19.5        33.5            28.3       15.5
 *     D = 256   small       86.5        37.3       35.2       121.2            45.6       18.4
 *               short      153.8        39.2       34.7        59.5            64.0       24.3 */
#include "cuda/attn/sm90/attn_sm90_fwd.cuh"
#include "cuda/attn/sm90/attn_sm90_fwd_short.cuh"

/* One pipelined block for each multiprocessor; at D = 128 there are two kinds: 128 rows by 128 keys
 * or, tall, 192 rows by 64 keys, which wastes less at the end of the keys. */
struct large_sizes : fwd_sizes {
    static constexpr bool IS_PIPED = true;
};
struct large_d32 : large_sizes {
    static constexpr int D = 32, GROUPS = 3, KEYS = 128;
};
struct large_d64 : large_sizes {
    static constexpr int D = 64, GROUPS = 3, KEYS = 128;
};
struct large_d128 : large_sizes {
    static constexpr int D = 128, GROUPS = 2, KEYS = 128;
};
struct tall_d128 : large_sizes {
    static constexpr int D = 128, GROUPS = 3, STAGES = 3;
};
struct large_d256 : large_sizes {
    static constexpr int D = 256, GROUPS = 2, BUFFERS = 1;
};

/* Several blocks of 64 rows a multiprocessor. */
struct small_d64 : fwd_sizes {
    static constexpr int D = 64, BOX = 16, BLOCKS = 3;
};
struct small_d256 : fwd_sizes {
    static constexpr int D = 256, STAGES = 1, BUFFERS = 1, BOX = 16, BLOCKS = 2;
};

/* Consumer warps of 16 rows each.  With the producer warp they are a multiple of four, since
 * registers are allocated to four warps at a time: 128 a thread at D = 64, 168 at 128, 255 at
 * 256. */
struct short_d32 {
    static constexpr int D = 32, WARPS = 15, KEYS = 64;
};
struct short_d64 {
    static constexpr int D = 64, WARPS = 15, KEYS = 64;
};
struct short_d128 {
    static constexpr int D = 128, WARPS = 11, KEYS = 64;
};
struct short_d256 {
    static constexpr int D = 256, WARPS = 7, KEYS = 32;
};

/* Whether the kernel for short sequences is the faster one: no sequence is longer than `most`,
 * their mean length is at most `mean`, and, where one is longer than `alone`, every
 * multiprocessor has several of them: the kernel does not split a sequence and head over
 * multiprocessors. */
static bool is_short(const backend *be, const attn_args *a, int most, int mean, int alone) {
    int64_t n_pairs = (int64_t)a->n_sequences * a->n_heads;
    bool are_enough = n_pairs >= 2 * (int64_t)cuda_of(be)->n_multiprocessors;
    return a->max_len_q <= most && a->max_len_k <= 2 * most &&
           a->n_rows_q <= (int64_t)mean * a->n_sequences && (are_enough || a->max_len_q <= alone);
}

template <typename S> static status launch(backend *be, const attn_args *a) {
    return fwd_launch<__nv_bfloat16, fwd_shape<S>>(be, a);
}
template <typename S> static status launch_short(backend *be, const attn_args *a) {
    return short_launch<__nv_bfloat16, short_shape<S>>(be, a);
}

static status launch_32(backend *be, const attn_args *a) {
    if (is_short(be, a, 512, 512, 256)) return launch_short<short_d32>(be, a);
    return launch<large_d32>(be, a);
}
static status launch_64(backend *be, const attn_args *a) {
    if (is_short(be, a, 256, 128, 64)) return launch_short<short_d64>(be, a);
    return a->max_len_q <= 1024 ? launch<small_d64>(be, a) : launch<large_d64>(be, a);
}
static status launch_128(backend *be, const attn_args *a) {
    if (is_short(be, a, 256, 256, 64)) return launch_short<short_d128>(be, a);
    return a->max_len_q <= 512 ? launch<tall_d128>(be, a) : launch<large_d128>(be, a);
}
static status launch_256(backend *be, const attn_args *a) {
    if (is_short(be, a, 256, 24, 64)) return launch_short<short_d256>(be, a);
    return a->max_len_q <= 256 ? launch<small_d256>(be, a) : launch<large_d256>(be, a);
}

/* float16 has one kernel for each head dimension, the one that suits most lengths: HSTU is trained
 * and served in bfloat16, and the other kernels would be half as many again to compile. */
static status launch_f16(backend *be, const attn_args *a) {
    if (a->dim_qk == 32) return fwd_launch<__half, fwd_shape<large_d32>>(be, a);
    if (a->dim_qk == 64) return fwd_launch<__half, fwd_shape<small_d64>>(be, a);
    if (a->dim_qk == 128) return fwd_launch<__half, fwd_shape<tall_d128>>(be, a);
    return fwd_launch<__half, fwd_shape<large_d256>>(be, a);
}

status cuda_attn_sm90_fwd(backend *be, const attn_args *a) {
    if (a->bias != BIAS_NONE) return cuda_attn_sm90_fwd_bias(be, a);
    if (be->act == ACT_F16) return launch_f16(be, a);
    switch (a->dim_qk) {
    case 32:
        return launch_32(be, a);
    case 64:
        return launch_64(be, a);
    case 128:
        return launch_128(be, a);
    default:
        return launch_256(be, a);
    }
}
