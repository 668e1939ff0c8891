/* What the softmax attention's forward kernels for much work share (softmax_sm90_dense.cu,
 * softmax_sm90_whole.cu): head dimension 64, and three warpgroups of 64 queries each that walk over
 * keys in steps of 128 and take turns at the tensor cores.
 *
 * A warpgroup asks for the next step's scores before it adds the current step's values, and
 * computes exponentials while both products run.  The bounds are close to each other: a step of a
 * warpgroup is 512 clocks of products, 512 of exponentials (16 a clock and multiprocessor) and
 * about 400 of other instructions. */
#ifndef HSTU_CUDA_ATTN_SM90_SOFTMAX_SM90_TURNS_CUH
#define HSTU_CUDA_ATTN_SM90_SOFTMAX_SM90_TURNS_CUH

#include "cuda/attn/sm90/softmax_sm90_fwd.cuh"

struct turns90 {
    static constexpr int D = 64, KEYS = 128, GROUPS = 3;
    static constexpr int THREADS = (GROUPS + 1) * GROUP;
    static constexpr int REGISTERS = 160, FEW_REGISTERS = 32;                       /* a thread */
    static constexpr int Q_TILE = MASK_TILE * PART_BYTES, TILE = KEYS * PART_BYTES; /* bytes */
};

/* The first of a warpgroup's numbered barriers. */
enum { TURNS90_TAIL = 1, TURNS90_TURN = TURNS90_TAIL + turns90::GROUPS };

/* What larger scores may exceed the largest by before the sums are rescaled: weights are then at
 * most 2^8, which 16 bits hold as precisely as 1. */
#define TURNS90_SLACK 8.0f

/* Scores become weights 2^(scale score - shift); shift is the largest scaled score at the time when
 * it was set last.  Returns whether any factor of the warp's rows is not 1. */
__device__ static inline bool turns90_softmax(float (&x)[turns90::KEYS / 2], soft90_rows *rows,
                                              float scale) {
    bool is_larger = false;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float a = x[2 * r], b = x[2 * r + 1];
#pragma unroll
        for (int c = 2; c < turns90::KEYS / 4; c += 2) {
            a = fmaxf(a, x[c / 2 * 4 + 2 * r]);
            b = fmaxf(b, x[c / 2 * 4 + 2 * r + 1]);
        }
        a = fmaxf(a, b);
        a = fmaxf(a, __shfl_xor_sync(0xffffffffu, a, 1));
        a = fmaxf(a, __shfl_xor_sync(0xffffffffu, a, 2));
        a *= scale;
        rows->factor[r] = 1.0f;
        if (a > rows->largest[r] + TURNS90_SLACK) {
            rows->factor[r] = ex2_approx(rows->largest[r] - a);
            rows->largest[r] = a;
            is_larger = true;
        }
        float shift = rows->largest[r] == -INFINITY ? 0.0f : rows->largest[r];
        float sum[2] = {0.0f, 0.0f};
#pragma unroll
        for (int c = 0; c < turns90::KEYS / 4; c++) {
            float *y = &x[c / 2 * 4 + 2 * r + c % 2];
            *y = ex2_approx(fmaf(*y, scale, -shift));
            sum[c % 2] += *y;
        }
        rows->sum[r] = fmaf(rows->sum[r], rows->factor[r], sum[0] + sum[1]);
    }
    return __any_sync(0xffffffffu, is_larger);
}

/* A warpgroup; stages of keys and values follow each other in the ring. */
template <typename T> struct turns90_group {
    char *ring;
    uint64_t *values_there; /* the stages' barriers */
    int group;

    /* Not complete on return. */
    __device__ inline void scores(float (&x)[turns90::KEYS / 2], const char *queries,
                                  int at) const {
        uint64_t a = tile_describe(queries, 16);
        uint64_t b = tile_describe(ring + at * 2 * turns90::TILE, 16);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < turns90::D / 16; k++)
            wgmma_ss<T, turns90::KEYS>(x, tile_move(a, k * 32), tile_move(b, k * 32), k > 0);
        wgmma_commit();
    }
    /* Values after the sequence's end are other rows', which need not be finite. */
    __device__ inline void clear_tail(char *values, int n) const {
        for (int i = n * 8 + (int)threadIdx.x % GROUP; i < turns90::KEYS * 8; i += GROUP)
            *(uint4 *)(values + i * 16) = make_uint4(0, 0, 0, 0);
        shared_fence();
        named_barrier(TURNS90_TAIL + group, GROUP);
    }
    /* acc += weights times the values of a stage that has n keys; likewise. */
    __device__ inline void add(float (&acc)[turns90::D / 2],
                               const uint32_t (&left)[turns90::KEYS / 16][4], const soft90_place &p,
                               int n) const {
        char *values = ring + p.at * 2 * turns90::TILE + turns90::TILE;
        barrier_wait(&values_there[p.at], p.parity);
        if (n < turns90::KEYS) clear_tail(values, n);
        uint64_t b = tile_describe(values, turns90::TILE);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < turns90::KEYS / 16; k++)
            wgmma_rs<T, turns90::D>(acc, left[k], tile_move(b, k * 16 * PART_BYTES), 1);
        wgmma_commit();
    }
    /* The tensor cores take the warpgroups' products in turns, so that one computes exponentials
     * while they work for another.  Group 0 has the first turn. */
    __device__ inline void first_turn() const {
        if (group == 0) named_barrier_arrive(TURNS90_TURN, 2 * GROUP);
    }
    __device__ inline void await_turn() const {
        named_barrier(TURNS90_TURN + group, 2 * GROUP);
    }
    __device__ inline void end_turn() const {
        int next = group + 1 < turns90::GROUPS ? group + 1 : 0;
        named_barrier_arrive(TURNS90_TURN + next, 2 * GROUP);
    }
};

#endif
