/* The head of a ranking model without training (head_args in ops/ops.h) on Hopper, bfloat16, in one
 * kernel: rows are chosen, scaled to length 1 and mapped by two dense layers.
 *
 * Eight warps each have an eighth of the first layer's sum over dim, by mma.sync; the scale of a
 * row, which needs the whole row, is applied to the finished sum.  The warps' sums are added in
 * shared memory, and 16 threads a row form the second layer.
 *
 * A cluster of four blocks owns 16 rows, each block a quarter of the columns between the layers;
 * the first block adds the parts of the second layer.  Bound by latency: so the weights, 64 KB a
 * block for 1024 x 128, are loaded into registers before the previous kernel is complete, and x
 * right after.  Only for as many rows as run at once: 256 rows of 1024 x 128 x 10 take 4.8 us after
 * the preceding product (H200, 2026-11-17), but 2048 take 22. */
#include "cuda/core/kernel.cuh"
#include "cuda/core/ptx.cuh"
#include "cuda/core/ptx_sm90.cuh"
#include "cuda/gemm/linear_f.cuh"

enum {
    HEAD_ROWS = 16,
    HEAD_WARPS = 8,
    HEAD_THREADS = 32 * HEAD_WARPS,
    HEAD_MID = 128, /* most columns between the layers */
    HEAD_OUT = 16,  /* most columns of y */
    HEAD_STEP = 32  /* of dim: a lane reads 16 bytes of a row */
};

typedef struct head_job {
    int64_t n;
    int32_t dim, n_mid, n_out;
    float eps;
    epilogue f;
    const __nv_bfloat16 *x;  /* (T, dim) */
    const int32_t *index;    /* (n) or NULL */
    const __nv_bfloat16 *w1; /* (n_mid, dim) */
    const float *bias1;      /* (n_mid) or NULL */
    const float *w2;         /* (n_out, n_mid) */
    const float *bias2;      /* (n_out) or NULL */
    __nv_bfloat16 *y;        /* (n, n_out) */
} head_job;

/* Row i of the chosen ones, or NULL: it is all zeros. */
__device__ static inline const __nv_bfloat16 *head_row(const head_job &j, int64_t i) {
    if (i >= j.n) return NULL;
    int64_t token = j.index != NULL ? j.index[i] : i;
    return token >= 0 ? j.x + token * j.dim : NULL;
}

__device__ static inline float square_sum(uint4 x) {
    const uint32_t word[4] = {x.x, x.y, x.z, x.w};
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float2 v = __bfloat1622float2(*(const __nv_bfloat162 *)&word[i]);
        sum += v.x * v.x + v.y * v.y;
    }
    return sum;
}

enum {
    HEAD_BLOCKS_OF_ROWS = 4,                   /* of a cluster */
    HEAD_OWN = HEAD_MID / HEAD_BLOCKS_OF_ROWS, /* columns of a block */
    HEAD_OWN_TILES = HEAD_OWN / 8,
    HEAD_STEPS = 4, /* at most: their operands are in registers */
    HEAD_OWN_STRIDE = HEAD_OWN + 8
};

/* 31 KB. */
typedef struct head_room {
    float sum[HEAD_WARPS][HEAD_ROWS][HEAD_OWN_STRIDE];
    float squares[HEAD_WARPS][HEAD_ROWS];
    float mid[HEAD_ROWS][HEAD_OWN + 4]; /* between the layers */
    float w2[HEAD_OUT][HEAD_OWN + 4];
    float part[HEAD_BLOCKS_OF_ROWS][HEAD_ROWS][HEAD_OUT]; /* of y, of all blocks: of the first */
} head_room;

__device__ static inline int head_rank() {
    return (int)blockIdx.x % HEAD_BLOCKS_OF_ROWS;
}

/* Lane 4 g + c holds, of rows and columns g, the eight numbers from 8 c on of every 32: two steps
 * of 16 whose order in the sum is the same for x and w1, and nothing else matters.  A warp's first
 * one of dim: */
__device__ static inline int head_first(const head_job &j) {
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    return warp * (j.dim / HEAD_WARPS) + lane % 4 * 8;
}

__device__ static inline void head_load_weight(const head_job &j,
                                               uint4 (&w)[HEAD_STEPS][HEAD_OWN_TILES]) {
    int column = head_rank() * HEAD_OWN + (int)threadIdx.x % 32 / 4;
    int n_steps = j.dim / (HEAD_WARPS * HEAD_STEP);
    const __nv_bfloat16 *from = j.w1 + (int64_t)column * j.dim + head_first(j);
#pragma unroll
    for (int s = 0; s < HEAD_STEPS; s++)
#pragma unroll
        for (int t = 0; t < HEAD_OWN_TILES; t++)
            w[s][t] = s < n_steps && column + 8 * t < j.n_mid
                          ? __ldg((const uint4 *)(from + (int64_t)t * 8 * j.dim + s * HEAD_STEP))
                          : make_uint4(0, 0, 0, 0);
}

/* The warp's part of the sums, and of the squares of its lane's rows. */
__device__ static inline void head_multiply(const head_job &j,
                                            const uint4 (&w)[HEAD_STEPS][HEAD_OWN_TILES],
                                            float (&sum)[HEAD_OWN_TILES][4], float (&squares)[2]) {
    int64_t row = (int64_t)(blockIdx.x / HEAD_BLOCKS_OF_ROWS) * HEAD_ROWS + threadIdx.x % 32 / 4;
    int n_steps = j.dim / (HEAD_WARPS * HEAD_STEP), first = head_first(j);
    const __nv_bfloat16 *x[2] = {head_row(j, row), head_row(j, row + 8)};
    uint4 a[HEAD_STEPS][2];
#pragma unroll
    for (int s = 0; s < HEAD_STEPS; s++)
#pragma unroll
        for (int r = 0; r < 2; r++)
            a[s][r] = x[r] != NULL && s < n_steps
                          ? __ldcg((const uint4 *)(x[r] + first + s * HEAD_STEP))
                          : make_uint4(0, 0, 0, 0);
#pragma unroll
    for (int s = 0; s < HEAD_STEPS; s++) {
        const uint32_t one[4] = {a[s][0].x, a[s][1].x, a[s][0].y, a[s][1].y};
        const uint32_t two[4] = {a[s][0].z, a[s][1].z, a[s][0].w, a[s][1].w};
#pragma unroll
        for (int t = 0; t < HEAD_OWN_TILES; t++) {
            mma_m16n8k16<__nv_bfloat16>(sum[t], one, w[s][t].x, w[s][t].y);
            mma_m16n8k16<__nv_bfloat16>(sum[t], two, w[s][t].z, w[s][t].w);
        }
        squares[0] += square_sum(a[s][0]);
        squares[1] += square_sum(a[s][1]);
    }
}

/* Leaves the warp's sums for the block. */
__device__ static inline void head_leave(head_room *room, const float (&sum)[HEAD_OWN_TILES][4],
                                         float (&squares)[2]) {
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, column = lane % 4 * 2;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int row = lane / 4 + 8 * r;
        squares[r] += __shfl_xor_sync(0xffffffffu, squares[r], 1);
        squares[r] += __shfl_xor_sync(0xffffffffu, squares[r], 2);
        if (lane % 4 == 0) room->squares[warp][row] = squares[r];
#pragma unroll
        for (int t = 0; t < HEAD_OWN_TILES; t++)
            *(float2 *)&room->sum[warp][row][t * 8 + column] =
                make_float2(sum[t][2 * r], sum[t][2 * r + 1]);
    }
    __syncthreads();
}

/* What is between the layers, rounded as activations are; 16 threads a row, two columns each, whose
 * biases are given. */
__device__ static inline void head_finish(const head_job &j, head_room *room,
                                          const float (&bias)[2]) {
    int row = (int)threadIdx.x / 16;
    float squares = 0;
#pragma unroll
    for (int w = 0; w < HEAD_WARPS; w++)
        squares += room->squares[w][row];
    float scale = 1.0f / fmaxf(sqrtf(squares), j.eps);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int c = (int)threadIdx.x % 16 + 16 * i;
        float z = 0;
#pragma unroll
        for (int w = 0; w < HEAD_WARPS; w++)
            z += room->sum[w][row][c];
        pack<__nv_bfloat16, 1> h;
        h.v[0] = from_float<__nv_bfloat16>(z * scale + bias[i]);
        linear_f<__nv_bfloat16, 1>(j.f, &h);
        room->mid[row][c] = to_float(h.v[0]);
    }
    __syncthreads();
}

/* The block's part of a number of the second layer; columns beyond n_mid have weights of 0. */
__device__ static inline float head_second(const head_room &room, int row, int column) {
    float y = 0;
#pragma unroll
    for (int k = 0; k < HEAD_OWN; k += 4) {
        float4 h = *(const float4 *)&room.mid[row][k], w = *(const float4 *)&room.w2[column][k];
        y += h.x * w.x + h.y * w.y + h.z * w.z + h.w * w.w;
    }
    return y;
}

static __global__ void __launch_bounds__(HEAD_THREADS) head_fwd_sm90_kernel(const head_job j) {
    __shared__ __align__(16) head_room room;
    int row = (int)threadIdx.x / 16, column = (int)threadIdx.x % 16, rank = head_rank();
    int64_t i = (int64_t)(blockIdx.x / HEAD_BLOCKS_OF_ROWS) * HEAD_ROWS + row;
    float sum[HEAD_OWN_TILES][4] = {}, squares[2] = {}, bias[2], bias2 = 0;
    uint4 w[HEAD_STEPS][HEAD_OWN_TILES];
    cluster_arrive(); /* all have started: see the write to the first block */
    head_load_weight(j, w);
    for (int k = (int)threadIdx.x; k < HEAD_OUT * HEAD_OWN; k += HEAD_THREADS) {
        int out = k / HEAD_OWN, c = rank * HEAD_OWN + k % HEAD_OWN;
        bool is = out < j.n_out && c < j.n_mid;
        room.w2[out][k % HEAD_OWN] =
            is ? to_float(from_float<__nv_bfloat16>(j.w2[(int64_t)out * j.n_mid + c])) : 0;
    }
#pragma unroll
    for (int k = 0; k < 2; k++) {
        int c = rank * HEAD_OWN + column + 16 * k;
        bias[k] = j.bias1 != NULL && c < j.n_mid ? j.bias1[c] : 0;
    }
    if (j.bias2 != NULL && column < j.n_out) bias2 = j.bias2[column];
    early_begin();
    head_multiply(j, w, sum, squares);
    head_leave(&room, sum, squares);
    head_finish(j, &room, bias);
    float y = head_second(room, row, column);
    cluster_wait();
    *cluster_map(&room.part[rank][row][column], 0) = y;
    cluster_arrive();
    cluster_wait();
    if (rank > 0 || i >= j.n || column >= j.n_out) return;
    y = bias2;
#pragma unroll
    for (int b = 0; b < HEAD_BLOCKS_OF_ROWS; b++)
        y += room.part[b][row][column];
    j.y[i * j.n_out + column] = from_float<__nv_bfloat16>(y);
}

bool cuda_head_can(const backend *be, const head_args *a) {
    const linear_args *one = &a->one.layer, *two = &a->two.layer;
    /* Rows that run at once: a cluster's multiprocessors are neighbours; some are left over. */
    int64_t most = (cuda_of(be)->n_multiprocessors / HEAD_BLOCKS_OF_ROWS - 1) * HEAD_ROWS;
    if (cuda_of(be)->sm != 90 || be->act != ACT_BF16) return false;
    return a->n <= most && a->dim % (HEAD_WARPS * HEAD_STEP) == 0 &&
           a->dim <= HEAD_STEPS * HEAD_WARPS * HEAD_STEP && one->n_out % 8 == 0 &&
           one->n_out <= HEAD_MID && two->n_out <= HEAD_OUT && two->is_transposed &&
           two->f == EPILOGUE_NONE && (uintptr_t)a->x % 16 == 0 &&
           (uintptr_t)a->one.packed % 16 == 0;
}

status cuda_head(backend *be, const head_args *a) {
    const linear_args *one = &a->one.layer, *two = &a->two.layer;
    head_job j = {a->n,
                  a->dim,
                  one->n_out,
                  two->n_out,
                  a->eps,
                  one->f,
                  (const __nv_bfloat16 *)a->x,
                  a->index,
                  (const __nv_bfloat16 *)a->one.packed,
                  one->bias,
                  two->w,
                  two->bias,
                  (__nv_bfloat16 *)two->y};
    return cuda_launch_clusters(
        be, "the head of a ranking model", HEAD_BLOCKS_OF_ROWS, head_fwd_sm90_kernel,
        cuda_div_up(j.n, HEAD_ROWS) * HEAD_BLOCKS_OF_ROWS, HEAD_THREADS, 0, j);
}
