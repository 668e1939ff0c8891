/* The gate (gate_args) of rows whose sums are in a warpgroup's registers, as the attention's
 * kernels have them: what attn_sm90_few.cuh and attn_sm90_paged.cuh share, and how the blocks of
 * the latter meet. */
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

/* How far the warpgroups of all heads are with the same rows: three fields of a word
 * (paged_gate.words), so that one atomic operation changes and reads them together.  Nothing resets
 * the two counts between the layers of a pass: each layer adds n_heads to both. */
enum { GATE_STARTED = 28, GATE_LEFT = 56 }; /* first bits; the lowest 28 bits count arrivals */

__device__ static inline unsigned gate_arrived(uint64_t word) {
    return (unsigned)word & ((1u << GATE_STARTED) - 1);
}
__device__ static inline unsigned gate_started(uint64_t word) {
    return gate_arrived(word >> GATE_STARTED);
}
/* The count of a layer's end, for a warpgroup that has not arrived. */
__device__ static inline unsigned gate_target(uint64_t word, int n_heads) {
    return (gate_arrived(word) / (unsigned)n_heads + 1) * (unsigned)n_heads;
}
__device__ static inline uint64_t gate_read(const uint64_t *word) {
    return *(const volatile uint64_t *)word;
}
__device__ static inline uint64_t gate_add(uint64_t *word, uint64_t n) {
    return atomicAdd((unsigned long long *)word, (unsigned long long)n);
}

/* What a warpgroup's threads know of the meeting of all heads. */
typedef struct gate_meeting {
    bool is_left;   /* its sums are in memory for the last one, */
    bool is_last;   /* which it is, */
    unsigned heads; /* and of which it has these to do */
} gate_meeting;

/* Tells the other heads that the moments are in memory, and waits for theirs, by one thread.
 *
 * It cannot wait forever.  A warpgroup waits for those only that had started when it came
 * (otherwise is_left); they are on a multiprocessor, need nothing of other blocks before they
 * arrive, and arrive before they wait.  So it does not matter whether the blocks of a launch fit
 * the GPU at once, which nobody promises: other streams and processes have kernels there, too. */
__device__ static inline void gate_meet(uint64_t *word, int n_heads, int head, gate_meeting *m) {
    uint64_t left = m->is_left ? (uint64_t)1 << (GATE_LEFT + head) : 0;
    __threadfence();
    uint64_t before = gate_add(word, left + 1);
    unsigned target = gate_target(before, n_heads);
    m->is_last = gate_arrived(before) + 1 == target;
    m->heads = m->is_last ? (unsigned)(before >> GATE_LEFT) : 0;
    if (m->is_last) {
        left += before >> GATE_LEFT << GATE_LEFT;
        if (left != 0) gate_add(word, 0 - left);
    } else if (!m->is_left) {
        while (gate_arrived(gate_read(word)) < target) {
        }
    }
    __threadfence();
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

/* Sums of a warpgroup in memory, (64, D). */
template <int D> __device__ static inline void gate_put(float *to, const float (&out)[D / 2]) {
    int lane = (int)threadIdx.x % 32, row = (int)threadIdx.x % GROUP / 32 * 16 + lane / 4;
#pragma unroll
    for (int k = 0; k < D / 8; k++)
#pragma unroll
        for (int r = 0; r < 2; r++)
            __stcg((float2 *)(to + (row + 8 * r) * D + 8 * k + 2 * (lane % 4)),
                   make_float2(out[4 * k + 2 * r], out[4 * k + 2 * r + 1]));
}

/* The gate of a head whose sums are in memory; by a warpgroup, two columns a thread. */
template <typename T, int D>
__device__ static inline void gate_rows(const paged_gate &g, const float *sums, int head,
                                        int64_t row0, int n_rows, int64_t dim, float scale) {
    int column = 2 * ((int)threadIdx.x % GROUP), at = head * D + column;
    static_assert(D == 2 * GROUP, "two columns a thread");
    float2 w = g.weight != NULL ? *(const float2 *)(g.weight + at) : make_float2(1, 1);
    float2 b = g.bias != NULL ? *(const float2 *)(g.bias + at) : make_float2(0, 0);
#pragma unroll 4
    for (int i = 0; i < n_rows; i++) {
        float2 x = __ldcg((const float2 *)(sums + i * D + column));
        float mean = __ldcg(g.mean + row0 + i), rstd = __ldcg(g.rstd + row0 + i);
        float by = scale * rstd, less = -mean * rstd;
        float2 u = part_pair<T>(*(const uint32_t *)((const T *)g.u + (row0 + i) * g.stride_u + at));
        x.x = u.x * fmaf(fmaf(x.x, by, less), w.x, b.x);
        x.y = u.y * fmaf(fmaf(x.y, by, less), w.y, b.y);
        *(uint32_t *)((T *)g.y + (row0 + i) * dim + at) = cvt_pack<T>(x.x, x.y);
    }
}

/* Of a warpgroup, in shared memory. */
template <int D> struct __align__(16) gate_room {
    float weight[D], bias[D];
    uint64_t full; /* u is there */
    gate_meeting meeting;
};

/* The word and the numbers of a unit: a block has one, those of the heads of the same rows are
 * plan.width blocks apart. */
template <int GROUPS>
__device__ static inline uint64_t *gate_word(const paged_plan &plan, int head, int group) {
    return plan.gate.words + ((int)blockIdx.x - head * plan.width) * GROUPS + group;
}

/* Before anything else of a unit that gate_whole ends; by each thread of a warpgroup. */
template <int GROUPS>
__device__ static inline void gate_start(const paged_plan &plan, int head, int group) {
    if (threadIdx.x % GROUP == 0)
        gate_add(gate_word<GROUPS>(plan, head, group), (uint64_t)1 << GATE_STARTED);
}

/* y = u * norm(scale * out) of a unit that has all keys; `rows`: u, as TMA loads it, which
 * room->full tells.  A row's norm needs all heads: either all have started, and the warpgroup waits
 * for their moments; or it leaves its sums in memory, and the warpgroup that comes last computes
 * the gate of those, too, with the same bits. */
template <typename T, typename S>
__device__ static inline void gate_whole(const paged_plan &plan, const fwd_unit *u, float scale,
                                         int n_heads, int group, const char *rows,
                                         gate_room<S::D> *room, float (&out)[S::D / 2]) {
    const paged_gate &g = plan.gate;
    int lane = (int)threadIdx.x % 32, row = (int)threadIdx.x % GROUP / 32 * 16 + lane / 4;
    int first = u->row0 + group * 64, block = (int)blockIdx.x - u->head * plan.width;
    int64_t dim = n_heads * S::D, row_q = u->s.row_q;
    uint64_t *word = gate_word<S::GROUPS>(plan, u->head, group), seen = 0;
    float *sums = (float *)plan.parts + group * (64 * S::D);
    float2 *moments = g.moments + block * S::ROWS + group * 64 + row;
    float by[2], less[2];
    bool is_one = threadIdx.x % GROUP == 0;
    int four = 4 * ((int)threadIdx.x % GROUP % (S::D / 4)), first_column = u->head * S::D + four;
    static_assert(2 * S::D / 4 == GROUP, "four parameters a thread");
    if (is_one) seen = gate_read(word);
    if ((int)threadIdx.x % GROUP < S::D / 4)
        gate_ask_four(room->weight + four, g.weight, first_column, 1);
    else
        gate_ask_four(room->bias + four, g.bias, first_column, 0);
    cp_async_commit_group();
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float2 own = gate_moments<S::D>(out, r, scale);
        if (lane % 4 == 0) __stcg(moments + u->head * plan.width * S::ROWS + 8 * r, own);
    }
    if (is_one) room->meeting.is_left = gate_started(seen) < gate_target(seen, n_heads);
    named_barrier(1 + group, GROUP);
    bool is_left = room->meeting.is_left;
    if (is_left) {
        gate_put<S::D>(sums + (int64_t)blockIdx.x * (S::ROWS * S::D), out);
        named_barrier(1 + group, GROUP);
    }
    if (is_one) gate_meet(word, n_heads, u->head, &room->meeting);
    cp_async_wait_group<0>();
    named_barrier(1 + group, GROUP);
    barrier_wait(&room->full, 0);
    bool is_last = room->meeting.is_last;
    if (is_left && !is_last) return;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float2 norm = gate_norm<S::D>(moments + 8 * r, n_heads, plan.width * S::ROWS, g.eps);
        by[r] = scale * norm.y;
        less[r] = -norm.x * norm.y;
        if (is_last && lane % 4 == 0 && first + row + 8 * r < u->s.len_q) {
            g.mean[row_q + first + row + 8 * r] = norm.x;
            g.rstd[row_q + first + row + 8 * r] = norm.y;
        }
    }
    rows += row * PART_BYTES + 4 * (lane % 4);
#pragma unroll
    for (int k = 0; k < S::D / 8; k++) {
        int c = 8 * k + 2 * (lane % 4);
        float2 w = *(const float2 *)(room->weight + c), b = *(const float2 *)(room->bias + c);
        const char *at = rows + k / 8 * (64 * PART_BYTES) + ((k % 8 ^ (row & 7)) << 4);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float2 gate = part_pair<T>(*(const uint32_t *)(at + r * 8 * PART_BYTES));
            float &x = out[4 * k + 2 * r], &y = out[4 * k + 2 * r + 1];
            x = gate.x * fmaf(fmaf(x, by[r], less[r]), w.x, b.x);
            y = gate.y * fmaf(fmaf(y, by[r], less[r]), w.y, b.y);
        }
    }
    fwd_store<T, S::D>((T *)g.y + row_q * dim + u->head * S::D, dim, first + row, u->s.len_q, 1,
                       out);
    unsigned heads = room->meeting.heads;
    if (heads == 0) return;
    named_barrier(1 + group, GROUP); /* mean and 1 / deviation are there */
#pragma unroll 1
    for (int head = 0; head < n_heads; head++)
        if (heads >> head & 1)
            gate_rows<T, S::D>(g, sums + (int64_t)(block + head * plan.width) * (S::ROWS * S::D),
                               head, row_q + first, min(u->s.len_q - first, 64), dim, scale);
}

#endif
