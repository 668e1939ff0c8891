/* The head of a ranking model as in head_sm90.cu, for few rows.
 *
 * A cluster of four blocks owns 16 rows, each block a quarter of the columns between the layers.
 * Each of its eight warps has an eighth of the sum over dim, by mma.sync; the scale of a row, which
 * needs the whole row, is applied to the finished sum.  The warps' sums meet in shared memory, 16
 * threads a row form the block's part of the second layer, and the first block adds these.  Bound
 * by latency: so the weights, 64 KB a block for 1024 x 128, are in registers before the previous
 * kernel is complete, and x is asked for at once. */
#include "cuda/attn/sm90/ptx_sm90.cuh"
#include "cuda/gemm/head_sm90.cuh"

enum {
    HEAD_BLOCKS_OF_ROWS = 4,                   /* of a cluster */
    HEAD_OWN = HEAD_MID / HEAD_BLOCKS_OF_ROWS, /* columns of a block */
    HEAD_OWN_TILES = HEAD_OWN / 8,
    HEAD_AHEAD = 4, /* steps whose operands are in registers */
    HEAD_OWN_STRIDE = HEAD_OWN + 8
};

/* 31 KB. */
typedef struct head_few_room {
    float sum[HEAD_WARPS][HEAD_ROWS][HEAD_OWN_STRIDE];
    float squares[HEAD_WARPS][HEAD_ROWS];
    float mid[HEAD_ROWS][HEAD_OWN + 4]; /* between the layers */
    float w2[HEAD_OUT][HEAD_OWN + 4];
    float part[HEAD_BLOCKS_OF_ROWS][HEAD_ROWS][HEAD_OUT]; /* of y, of all blocks: of the first */
} head_few_room;

__device__ static inline int head_few_rank() {
    return (int)blockIdx.x % HEAD_BLOCKS_OF_ROWS;
}

/* Lane 4 g + c holds, of rows and columns g, the eight numbers from 8 c on of every 32: two steps
 * of 16 whose order in the sum is the same for x and w1, and nothing else matters.  A warp's first
 * one of dim: */
__device__ static inline int head_few_first(const head_job &j) {
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    return warp * (j.dim / HEAD_WARPS) + lane % 4 * 8;
}

/* Asks for the weights of the steps from `step` on. */
__device__ static inline void head_few_load_weight(const head_job &j, int step,
                                                   uint4 (&w)[HEAD_AHEAD][HEAD_OWN_TILES]) {
    int column = head_few_rank() * HEAD_OWN + (int)threadIdx.x % 32 / 4;
    int n_steps = j.dim / (HEAD_WARPS * HEAD_STEP);
    const __nv_bfloat16 *from =
        j.w1 + (int64_t)column * j.dim + head_few_first(j) + step * HEAD_STEP;
#pragma unroll
    for (int s = 0; s < HEAD_AHEAD; s++)
#pragma unroll
        for (int t = 0; t < HEAD_OWN_TILES; t++)
            w[s][t] = step + s < n_steps && column + 8 * t < j.n_mid
                          ? __ldg((const uint4 *)(from + (int64_t)t * 8 * j.dim + s * HEAD_STEP))
                          : make_uint4(0, 0, 0, 0);
}

/* The warp's part of the sums, and of the squares of its lane's rows; w: the weights of the first
 * steps. */
__device__ static inline void head_few_multiply(const head_job &j,
                                                uint4 (&w)[HEAD_AHEAD][HEAD_OWN_TILES],
                                                float (&sum)[HEAD_OWN_TILES][4],
                                                float (&squares)[2]) {
    int64_t row = (int64_t)(blockIdx.x / HEAD_BLOCKS_OF_ROWS) * HEAD_ROWS + threadIdx.x % 32 / 4;
    int n_steps = j.dim / (HEAD_WARPS * HEAD_STEP), first = head_few_first(j);
    const __nv_bfloat16 *x[2] = {head_row(j, row), head_row(j, row + 8)};
#pragma unroll 1
    for (int step = 0; step < n_steps; step += HEAD_AHEAD) {
        uint4 a[HEAD_AHEAD][2];
#pragma unroll
        for (int s = 0; s < HEAD_AHEAD; s++)
#pragma unroll
            for (int r = 0; r < 2; r++)
                a[s][r] = x[r] != NULL && step + s < n_steps
                              ? __ldcg((const uint4 *)(x[r] + first + (step + s) * HEAD_STEP))
                              : make_uint4(0, 0, 0, 0);
        if (step > 0) head_few_load_weight(j, step, w);
#pragma unroll
        for (int s = 0; s < HEAD_AHEAD; s++) {
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
}

/* Leaves the warp's sums for the block. */
__device__ static inline void
head_few_leave(head_few_room *room, const float (&sum)[HEAD_OWN_TILES][4], float (&squares)[2]) {
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
__device__ static inline void head_few_finish(const head_job &j, head_few_room *room,
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
__device__ static inline float head_few_second(const head_few_room &room, int row, int column) {
    float y = 0;
#pragma unroll
    for (int k = 0; k < HEAD_OWN; k += 4) {
        float4 h = *(const float4 *)&room.mid[row][k], w = *(const float4 *)&room.w2[column][k];
        y += h.x * w.x + h.y * w.y + h.z * w.z + h.w * w.w;
    }
    return y;
}

static __global__ void __launch_bounds__(HEAD_THREADS) head_few_fwd_sm90_kernel(const head_job j) {
    __shared__ __align__(16) head_few_room room;
    int row = (int)threadIdx.x / 16, column = (int)threadIdx.x % 16, rank = head_few_rank();
    int64_t i = (int64_t)(blockIdx.x / HEAD_BLOCKS_OF_ROWS) * HEAD_ROWS + row;
    float sum[HEAD_OWN_TILES][4] = {}, squares[2] = {}, bias[2], bias2 = 0;
    uint4 w[HEAD_AHEAD][HEAD_OWN_TILES];
    cluster_arrive(); /* all have started: see the write to the first block */
    head_few_load_weight(j, 0, w);
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
    head_few_multiply(j, w, sum, squares);
    head_few_leave(&room, sum, squares);
    head_few_finish(j, &room, bias);
    float y = head_few_second(room, row, column);
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

/* As many rows as run at once (a cluster's multiprocessors are neighbours, and some of these are
 * left over), of the widths that were measured. */
bool cuda_head_is_few(const backend *be, const head_job *j) {
    int64_t n_clusters = cuda_of(be)->n_multiprocessors / HEAD_BLOCKS_OF_ROWS - 1;
    return j->n <= n_clusters * HEAD_ROWS && j->dim <= HEAD_AHEAD * HEAD_WARPS * HEAD_STEP;
}

status cuda_head_few(backend *be, const head_job *j) {
    cudaLaunchAttribute attributes[2] = {};
    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = 1;
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim.x = HEAD_BLOCKS_OF_ROWS;
    attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)(cuda_div_up(j->n, HEAD_ROWS) * HEAD_BLOCKS_OF_ROWS));
    config.blockDim = dim3(HEAD_THREADS);
    config.stream = cuda_of(be)->stream;
    config.attrs = attributes;
    config.numAttrs = 2;
    CUDA_TRY(cudaLaunchKernelEx(&config, head_few_fwd_sm90_kernel, *j));
    return OK;
}
