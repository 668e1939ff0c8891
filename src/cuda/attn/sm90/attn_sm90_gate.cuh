/* The gate (gate_args) of rows whose sums are in a warpgroup's registers, as the attention's
 * kernels have them: what attn_sm90_few.cuh and attn_sm90_paged.cuh share. */
#ifndef HSTU_CUDA_ATTN_SM90_ATTN_SM90_GATE_CUH
#define HSTU_CUDA_ATTN_SM90_ATTN_SM90_GATE_CUH

#include "cuda/attn/sm90/attn_sm90_paged_lists.cuh"

enum { GATE_HEADS = 8 }; /* at most */

template <typename T> __device__ static inline float2 part_pair(uint32_t v);
template <> __device__ inline float2 part_pair<__nv_bfloat16>(uint32_t v) {
    return make_float2(__uint_as_float(v << 16), __uint_as_float(v & 0xffff0000u));
}

/* The sum over the four threads that have a row. */
__device__ static inline float quad_total(float x) {
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

/* Mean, and sum of squares around it, of D columns of the thread's row r, of two, times `scale`. */
template <int D>
__device__ static inline float2 gate_moments(const float (&out)[D / 2], int r, float scale) {
    float total[4] = {}, squares[4] = {}; /* four chains, for latency */
#pragma unroll
    for (int e = 0; e < D / 4; e++)
        total[e % 4] += out[e / 2 * 4 + 2 * r + e % 2];
    float mean = quad_total(total[0] + total[1] + (total[2] + total[3])) / D;
#pragma unroll
    for (int e = 0; e < D / 4; e++) {
        float d = out[e / 2 * 4 + 2 * r + e % 2] - mean;
        squares[e % 4] += d * d;
    }
    float sum = quad_total(squares[0] + squares[1] + (squares[2] + squares[3]));
    return make_float2(mean * scale, sum * scale * scale);
}

/* Waits until the warpgroups of all heads have written the moments of the same rows, and for the
 * thread's own copies.  All blocks of a kernel start before those of a later one, so the others
 * come. The count is 0 again when every warp has left (gate_leave). */
__device__ static inline void gate_meet(unsigned *n_arrived, int n_heads, int group) {
    named_barrier(1 + group, GROUP);
    if (threadIdx.x % GROUP == 0) {
        __threadfence();
        atomicInc(n_arrived, (unsigned)(5 * n_heads - 1));
        while (*(volatile unsigned *)n_arrived < (unsigned)n_heads) {
        }
        __threadfence();
    }
    cp_async_wait_group<0>();
    named_barrier(1 + group, GROUP);
}
__device__ static inline void gate_leave(unsigned *n_arrived, int n_heads) {
    if (threadIdx.x % 32 == 0) atomicInc(n_arrived, (unsigned)(5 * n_heads - 1));
}

/* Mean and 1 / deviation of a row, of those of the heads, `stride` apart; by the four threads that
 * have it. */
template <int D>
__device__ static inline float2 gate_norm(const float2 *moments, int n_heads, int stride,
                                          float eps) {
    float2 m[2];
    float mean = 0, squares = 0;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int head = (int)threadIdx.x % 4 + 4 * i;
        m[i] = head < n_heads ? __ldcg(moments + head * stride) : make_float2(0, 0);
        mean += m[i].x;
    }
    mean = quad_total(mean) / (float)n_heads;
#pragma unroll
    for (int i = 0; i < 2; i++)
        if ((int)threadIdx.x % 4 + 4 * i < n_heads)
            squares += m[i].y + (float)D * (m[i].x - mean) * (m[i].x - mean);
    squares = quad_total(squares);
    return make_float2(mean, rsqrtf(squares / (float)(n_heads * D) + eps));
}

/* Four of the parameters of a head's norm; they arrive with the thread's copies. */
__device__ static inline void gate_ask_four(float *to, const float *from, int at, float missing) {
    if (from != NULL)
        cp_async<16>(shared_address(to), from + at, 16);
    else
        *(float4 *)to = make_float4(missing, missing, missing, missing);
}

template <int D> struct __align__(16) gate_params {
    float weight[D], bias[D];
};

/* out = u * norm(scale * out) of a unit that has all keys; `rows`: u, as TMA loads it, which `full`
 * tells.  The blocks of all heads of these rows run at the same time. */
template <typename T, typename S>
__device__ static inline void gate_whole(const paged_plan &plan, const fwd_unit *u, float scale,
                                         int n_heads, int group, const char *rows, uint64_t *full,
                                         gate_params<S::D> *params, float (&out)[S::D / 2]) {
    const paged_gate &g = plan.gate;
    int lane = (int)threadIdx.x % 32, row = (int)threadIdx.x % GROUP / 32 * 16 + lane / 4;
    int tile = u->s.b * plan.n_row_groups * plan.width + u->row0 / S::ROWS;
    int first = u->row0 + group * 64 + row;
    unsigned *n_arrived = g.n_arrived + tile * S::GROUPS + group;
    float2 *moments = (float2 *)plan.parts + (int64_t)tile * n_heads * S::ROWS + group * 64 + row;
    float by[2], less[2];
    int four = 4 * ((int)threadIdx.x % GROUP % (S::D / 4)), first_column = u->head * S::D + four;
    static_assert(2 * S::D / 4 == GROUP, "four parameters a thread");
    if ((int)threadIdx.x % GROUP < S::D / 4)
        gate_ask_four(params->weight + four, g.weight, first_column, 1);
    else
        gate_ask_four(params->bias + four, g.bias, first_column, 0);
    cp_async_commit_group();
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float2 own = gate_moments<S::D>(out, r, scale);
        if (lane % 4 == 0) __stcg(moments + u->head * S::ROWS + 8 * r, own);
    }
    gate_meet(n_arrived, n_heads, group);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float2 norm = gate_norm<S::D>(moments + 8 * r, n_heads, S::ROWS, g.eps);
        by[r] = scale * norm.y;
        less[r] = -norm.x * norm.y;
        if (u->head == 0 && lane % 4 == 0 && first + 8 * r < u->s.len_q) {
            g.mean[u->s.row_q + first + 8 * r] = norm.x;
            g.rstd[u->s.row_q + first + 8 * r] = norm.y;
        }
    }
    gate_leave(n_arrived, n_heads);
    barrier_wait(full, 0);
    rows += row * PART_BYTES + 4 * (lane % 4);
#pragma unroll
    for (int k = 0; k < S::D / 8; k++) {
        int c = 8 * k + 2 * (lane % 4);
        float2 w = *(const float2 *)(params->weight + c), b = *(const float2 *)(params->bias + c);
        const char *at = rows + k / 8 * (64 * PART_BYTES) + ((k % 8 ^ (row & 7)) << 4);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float2 gate = part_pair<T>(*(const uint32_t *)(at + r * 8 * PART_BYTES));
            float &x = out[4 * k + 2 * r], &y = out[4 * k + 2 * r + 1];
            x = gate.x * fmaf(fmaf(x, by[r], less[r]), w.x, b.x);
            y = gate.y * fmaf(fmaf(y, by[r], less[r]), w.y, b.y);
        }
    }
}

#endif
