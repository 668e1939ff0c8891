/* The head of a ranking model without training (head_args in ops/ops.h) on Hopper, bfloat16, in one
 * kernel: rows are chosen, scaled to length 1 and mapped by two dense layers.
 *
 * A block of eight warps owns 16 rows and all columns.  Each warp has an eighth of the first
 * layer's sum over dim, for all n_mid columns, by mma.sync; the scale of a row, which needs the
 * whole row, is applied to the finished sum.  The warps' sums meet in shared memory, and 16 threads
 * a row form the second layer.  The limit is the first layer's weight, which each block reads whole
 * from the L2 cache: 256 KB for 1024 x 128, 2.5 us; so blocks ask for it before they wait for the
 * previous kernel.  Few rows are those of head_few_sm90.cu: us after the product before, on an H200
 * (2026-11-17), 1024 x 128 x 10,
 *     rows              256   2048
 *     here               16     16
 *     head_few_sm90.cu  4.8     22 */
#include "cuda/gemm/head_sm90.cuh"

enum {
    HEAD_TILES = HEAD_MID / 8,
    HEAD_STRIDE = HEAD_MID + 4,
    HEAD_MOST = 1 << 14 /* rows: with more the products of linear_fwd are faster */
};

/* 38 KB: sums of four warps, of which the first becomes what is between the layers. */
typedef struct head_room {
    float sum[HEAD_WARPS / 2][HEAD_ROWS][HEAD_STRIDE];
    float w2[HEAD_OUT][HEAD_STRIDE];
    float squares[HEAD_WARPS][HEAD_ROWS];
} head_room;

/* The block's share of the first weight into the L2 cache: all blocks read all of it soon. */
__device__ static inline void head_ask_for_weight(const head_job &j) {
    int64_t n_lines = (int64_t)j.n_mid * j.dim * (int64_t)sizeof *j.w1 / 128;
    for (int64_t i = (int64_t)blockIdx.x * HEAD_THREADS + threadIdx.x; i < n_lines;
         i += (int64_t)gridDim.x * HEAD_THREADS)
        asm volatile("prefetch.global.L2 [%0];" ::"l"((const char *)j.w1 + i * 128));
}

/* The warp's part of the sums, and of the squares of its lane's rows.  Lane 4 g + c holds, of rows
 * and columns g, the eight numbers from 8 c on of every 32: two steps of 16 whose order in the sum
 * is the same for x and w1, and nothing else matters. */
__device__ static inline void head_multiply(const head_job &j, float (&sum)[HEAD_TILES][4],
                                            float (&squares)[2]) {
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, group = lane / 4;
    int64_t row = (int64_t)blockIdx.x * HEAD_ROWS + group;
    int length = j.dim / HEAD_WARPS, first = warp * length + lane % 4 * 8, n_tiles = j.n_mid / 8;
    const __nv_bfloat16 *x[2] = {head_row(j, row), head_row(j, row + 8)};
    const __nv_bfloat16 *w = j.w1 + (int64_t)group * j.dim + first;
#pragma unroll 1
    for (int k = 0; k < length; k += HEAD_STEP) {
        uint4 a[2], b[HEAD_TILES];
#pragma unroll
        for (int t = 0; t < HEAD_TILES; t++)
            if (t < n_tiles) b[t] = __ldg((const uint4 *)(w + (int64_t)t * 8 * j.dim + k));
#pragma unroll
        for (int r = 0; r < 2; r++) {
            a[r] =
                x[r] != NULL ? __ldcg((const uint4 *)(x[r] + first + k)) : make_uint4(0, 0, 0, 0);
            squares[r] += square_sum(a[r]);
        }
        const uint32_t one[4] = {a[0].x, a[1].x, a[0].y, a[1].y};
        const uint32_t two[4] = {a[0].z, a[1].z, a[0].w, a[1].w};
#pragma unroll
        for (int t = 0; t < HEAD_TILES; t++) {
            if (t >= n_tiles) continue;
            mma_m16n8k16<__nv_bfloat16>(sum[t], one, b[t].x, b[t].y);
            mma_m16n8k16<__nv_bfloat16>(sum[t], two, b[t].z, b[t].w);
        }
    }
}

/* Writes the warp's sums to its place, or adds what is there to them. */
template <bool IS_STORE>
__device__ static inline void head_exchange(head_room *room, int place,
                                            float (&sum)[HEAD_TILES][4]) {
    int lane = (int)threadIdx.x % 32, group = lane / 4, column = lane % 4 * 2;
#pragma unroll
    for (int t = 0; t < HEAD_TILES; t++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float2 *at = (float2 *)&room->sum[place][group + 8 * r][t * 8 + column];
            if (IS_STORE) {
                *at = make_float2(sum[t][2 * r], sum[t][2 * r + 1]);
            } else {
                sum[t][2 * r] += at->x;
                sum[t][2 * r + 1] += at->y;
            }
        }
}

/* Adds the eight warps' sums up to four. */
__device__ static inline void head_meet(head_room *room, float (&sum)[HEAD_TILES][4],
                                        float (&squares)[2]) {
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        squares[r] += __shfl_xor_sync(0xffffffffu, squares[r], 1);
        squares[r] += __shfl_xor_sync(0xffffffffu, squares[r], 2);
        if (lane % 4 == 0) room->squares[warp][lane / 4 + 8 * r] = squares[r];
    }
    if (warp >= HEAD_WARPS / 2) head_exchange<true>(room, warp - HEAD_WARPS / 2, sum);
    __syncthreads();
    if (warp < HEAD_WARPS / 2) {
        head_exchange<false>(room, warp, sum);
        head_exchange<true>(room, warp, sum);
    }
    __syncthreads();
}

/* sum[0] = what is between the layers, rounded as activations are. */
__device__ static inline void head_finish_first(const head_job &j, head_room *room) {
    int row = (int)threadIdx.x / 16;
    float squares = 0;
    for (int w = 0; w < HEAD_WARPS; w++)
        squares += room->squares[w][row];
    float scale = 1.0f / fmaxf(sqrtf(squares), j.eps);
    for (int c = (int)threadIdx.x % 16; c < j.n_mid; c += 16) {
        float z = 0;
        for (int w = 0; w < HEAD_WARPS / 2; w++)
            z += room->sum[w][row][c];
        pack<__nv_bfloat16, 1> h;
        h.v[0] = from_float<__nv_bfloat16>(z * scale + (j.bias1 != NULL ? j.bias1[c] : 0));
        linear_f<__nv_bfloat16, 1>(j.f, &h);
        room->sum[0][row][c] = to_float(h.v[0]);
    }
    __syncthreads();
}

static __global__ void __launch_bounds__(HEAD_THREADS) head_fwd_sm90_kernel(const head_job j) {
    __shared__ head_room room;
    float sum[HEAD_TILES][4] = {}, squares[2] = {};
    head_ask_for_weight(j);
    for (int i = (int)threadIdx.x; i < j.n_out * j.n_mid; i += HEAD_THREADS)
        room.w2[i / j.n_mid][i % j.n_mid] = to_float(from_float<__nv_bfloat16>(j.w2[i]));
    early_begin();
    head_multiply(j, sum, squares);
    head_meet(&room, sum, squares);
    head_finish_first(j, &room);
    int row = (int)threadIdx.x / 16, column = (int)threadIdx.x % 16;
    int64_t i = (int64_t)blockIdx.x * HEAD_ROWS + row;
    if (i >= j.n || column >= j.n_out) return;
    float y = j.bias2 != NULL ? j.bias2[column] : 0;
    for (int k = 0; k < j.n_mid; k += 4) {
        float4 h = *(const float4 *)&room.sum[0][row][k];
        float4 w = *(const float4 *)&room.w2[column][k];
        y += h.x * w.x + h.y * w.y + h.z * w.z + h.w * w.w;
    }
    j.y[i * j.n_out + column] = from_float<__nv_bfloat16>(y);
}

bool cuda_head_can(const backend *be, const head_args *a) {
    const linear_args *one = &a->one, *two = &a->two;
    if (cuda_of(be)->sm != 90 || be->act != ACT_BF16 || one->packed == NULL) return false;
    return a->n <= HEAD_MOST && a->dim % (HEAD_WARPS * HEAD_STEP) == 0 && one->n_out % 8 == 0 &&
           one->n_out <= HEAD_MID && two->n_out <= HEAD_OUT && two->is_transposed &&
           two->f == EPILOGUE_NONE && (uintptr_t)a->x % 16 == 0 && (uintptr_t)one->packed % 16 == 0;
}

status cuda_head(backend *be, const head_args *a) {
    const linear_args *one = &a->one, *two = &a->two;
    head_job j = {a->n,
                  a->dim,
                  one->n_out,
                  two->n_out,
                  a->eps,
                  one->f,
                  (const __nv_bfloat16 *)a->x,
                  a->index,
                  (const __nv_bfloat16 *)one->packed,
                  one->bias,
                  two->w,
                  two->bias,
                  (__nv_bfloat16 *)two->y};
    if (cuda_head_is_few(be, &j)) return cuda_head_few(be, &j);
    return early_launch(be, head_fwd_sm90_kernel, cuda_div_up(a->n, HEAD_ROWS), HEAD_THREADS, &j,
                        "the head of a ranking model");
}
