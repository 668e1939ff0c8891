/* Dense layers forward on Hopper, for inference: y = silu(x W + bias) or silu(norm(x) W + bias),
 * where new keys and values also go to their pages, or x W + bias + residual (contract: linear_args
 * in ops.h).
 *
 * W is (n_out, n_in), so that both operands are read along k.  A block owns 128 or 192 rows x N
 * columns of y at a time, a warpgroup for each 64 rows, and goes from tile to tile; a producer
 * thread loads 64 columns of x and W a stage by TMA and runs ahead into the next tile.  The norm is
 * linear in x but for two numbers of each row, which the epilogue knows (linear.cu has the
 * formula).
 *
 * Kernels follow each other closely (sm90a_launch_early): the first tiles of W, which no kernel
 * before writes, are loaded before the previous kernel is complete. */
#ifndef HSTU_CUDA_GEMM_LINEAR_MANY_SM90_CUH
#define HSTU_CUDA_GEMM_LINEAR_MANY_SM90_CUH

#include "cuda/gemm/linear_many_store.cuh"
#include "cuda/gemm/wgmma_sizes.cuh"

template <typename S> struct many_room {
    uint64_t full[S::STAGES], empty[S::STAGES];
    uint64_t side_full, side_empty;
    uint64_t residual[S::WARPS];
};

/* One thread loads all stages of all tiles of the block. */
template <typename S, many_mode MODE>
__device__ static void many_ask(const many_job &j, const many_maps &maps, char *stages,
                                many_room<S> *room) {
    int n_tiles = j.n_down * j.n_across, s = 0;
    /* Before SiLU the kernel before leaves no room to start early: more of W would only hold up x.
     */
    int n_ahead = min(MODE == MANY_SILU ? 1 : (int)S::STAGES, j.n_steps);
    int tile = (int)blockIdx.x;
    uint32_t parity = 1; /* of what is free: all of it at first */
    many_place at = many_place_of<S>(j, tile);
    tile_prefetch_map(&maps.w);
    tile_prefetch_map(&maps.x);
    tile_prefetch_map(&maps.y);
    for (int i = 0; i < n_ahead && tile < n_tiles; i++) {
        barrier_expect(&room->full[i], (uint32_t)S::STAGE);
        tile_load(stages + i * S::STAGE + S::BYTES_X, &maps.w, &room->full[i], i * PART, at.column);
    }
    grid_wait();
    for (int n = 0; tile < n_tiles; tile += (int)gridDim.x) {
        at = many_place_of<S>(j, tile);
        for (int k = 0; k < j.n_steps; k++, n++) {
            char *stage = stages + s * S::STAGE;
            if (n >= n_ahead) {
                barrier_wait(&room->empty[s], parity);
                barrier_expect(&room->full[s], (uint32_t)S::STAGE);
                tile_load(stage + S::BYTES_X, &maps.w, &room->full[s], k * PART, at.column);
            }
            tile_load(stage, &maps.x, &room->full[s], k * PART, at.row);
            if (++s == S::STAGES) {
                s = 0;
                parity ^= 1;
            }
        }
    }
}

/* Three warps prepare the next epilogue; i: of their 96 threads. */
template <typename T, typename S, many_mode MODE>
__device__ static void many_aid(const many_job &j, many_room<S> *room, many_side<S> *side, int i) {
    int n_tiles = j.n_down * j.n_across, n = 0;
    for (int tile = (int)blockIdx.x; tile < n_tiles; tile += (int)gridDim.x, n++) {
        many_place at = many_place_of<S>(j, tile);
        asm volatile("" : "+r"(i)); /* addresses are computed again: registers */
        barrier_wait(&room->side_empty, n % 2 ^ 1);
#pragma unroll 1 /* registers */
        for (int k = i; k < S::N; k += MANY_AIDS) {
            bool is = at.column + k < j.n_out;
            side->shift[k] = is ? (MODE == MANY_SUM ? 1 : .5f) * j.shift[at.column + k] : 0;
            side->sum[k] = is && j.sums != NULL ? j.sums[at.column + k] : 0;
        }
#pragma unroll 1
        for (int k = i; k < S::ROWS && MODE != MANY_SUM; k += MANY_AIDS) {
            bool is_normed = j.moments.width > 0 && at.row + k < j.n_rows;
            side->norm[k] = is_normed ? many_norm_of<S>(j, at.row + k) : make_float2(0, .5f);
        }
#pragma unroll 1
        for (int k = i; k < S::ROWS && MODE != MANY_SUM && j.put.slot != NULL; k += MANY_AIDS)
            many_pages<T, S>(j, at, side, k);
        __syncwarp();
        release(&room->side_full);
    }
}

/* Part `part` of the products of a step, for the rows of the warpgroup. */
template <typename T, typename S>
__device__ static inline void many_multiply(float (&d)[S::PARTS][S::PART_N / 2], int part,
                                            const char *stage, int group, bool adds) {
    uint64_t x = tile_describe(stage + group * 64 * PART_BYTES, 16);
    uint64_t w = tile_describe(stage + S::BYTES_X + part * S::PART_N * PART_BYTES, 16);
#pragma unroll
    for (int i = 0; i < PART / 16; i++)
        wgmma_ss<T, S::PART_N>(d[part], tile_move(x, i * 32), tile_move(w, i * 32), adds || i > 0);
}

/* The ring of stages as a consumer sees it. */
template <typename S> struct many_ring {
    int at;
    uint32_t parity; /* of the stages; of tiles: 2, in one register */
    __device__ uint32_t of_stages() const {
        return parity & 1;
    }
    __device__ uint32_t of_tiles() const {
        return parity >> 1;
    }
    __device__ void advance() {
        if (++at < S::STAGES) return;
        at = 0;
        parity ^= 1;
    }
};

/* The last two steps of a tile of two parts, and its epilogue: all of the first part's products,
 * then the second's, so that the first half of the epilogue runs beside these.  last: the stage
 * before. */
template <typename T, typename S, many_mode MODE>
__device__ static inline void
many_end(const many_job &j, const many_maps &maps, const char *stages, many_room<S> *room,
         const many_side<S> *side, const many_place &at, int group, int last, char *buffers,
         many_ring<S> &ring, many_sums (&sums)[2], float (&d)[S::PARTS][S::PART_N / 2]) {
    int first = (int)threadIdx.x / 32 * 16, one = ring.at;
    barrier_wait(&room->full[one], ring.of_stages());
    wgmma_fence();
    many_multiply<T, S>(d, 0, stages + one * S::STAGE, group, true);
    wgmma_commit();
    wgmma_wait<1>();
    release(&room->empty[last]);
    ring.advance();
    int two = ring.at;
    barrier_wait(&room->full[two], ring.of_stages());
    ring.advance();
    wgmma_fence();
    many_multiply<T, S>(d, 0, stages + two * S::STAGE, group, true);
    wgmma_commit();
    many_multiply<T, S>(d, 1, stages + one * S::STAGE, group, true);
    many_multiply<T, S>(d, 1, stages + two * S::STAGE, group, true);
    wgmma_commit();
    barrier_wait(&room->side_full, ring.of_tiles());
    if constexpr (MODE == MANY_SUM) barrier_wait(&room->residual[first / 16], ring.of_tiles());
    wgmma_wait<1>();
    many_store<T, S, MODE, 0, S::CHUNKS / 2>(j, maps, at, first, d, *side, sums, buffers);
    wgmma_wait<0>();
    release(&room->empty[one]);
    release(&room->empty[two]);
    many_store<T, S, MODE, S::CHUNKS / 2, S::CHUNKS>(j, maps, at, first, d, *side, sums, buffers);
}

template <typename T, typename S, many_mode MODE>
__device__ static void many_compute(const many_job &j, const many_maps &maps, char *stages,
                                    many_room<S> *room, const many_side<S> *side) {
    int group = __shfl_sync(0xffffffffu, (int)threadIdx.x / GROUP, 0); /* known to be uniform */
    int warp = (int)threadIdx.x / 32, n_tiles = j.n_down * j.n_across;
    int n_steps = S::PARTS == 1 ? j.n_steps : j.n_steps - 2; /* of many_end */
    many_ring<S> ring = {0, 0};
    char *buffers = stages + S::STAGES * S::STAGE + warp * S::BUFFERS * S::BUFFER;
    for (int tile = (int)blockIdx.x; tile < n_tiles; tile += (int)gridDim.x) {
        many_place at = many_place_of<S>(j, tile);
        float d[S::PARTS][S::PART_N / 2];
        many_sums sums[2];
        int last = -1;
        if constexpr (MODE == MANY_SUM) {
            many_fetch<S>(maps, at, at.row + warp * 16, buffers, &room->residual[warp]);
            __syncwarp();
        }
        for (int k = 0; k < n_steps; k++) {
            barrier_wait(&room->full[ring.at], ring.of_stages());
            wgmma_fence();
#pragma unroll
            for (int part = 0; part < S::PARTS; part++)
                many_multiply<T, S>(d, part, stages + ring.at * S::STAGE, group, k > 0);
            wgmma_commit();
            if (k > 0) {
                wgmma_wait<1>();
                release(&room->empty[last]);
            }
            last = ring.at;
            ring.advance();
        }
        if constexpr (S::PARTS > 1) {
            many_end<T, S, MODE>(j, maps, stages, room, side, at, group, last, buffers, ring, sums,
                                 d);
        } else {
            wgmma_wait<0>();
            release(&room->empty[last]);
            barrier_wait(&room->side_full, ring.of_tiles());
            if constexpr (MODE == MANY_SUM) barrier_wait(&room->residual[warp], ring.of_tiles());
            many_store<T, S, MODE, 0, S::CHUNKS>(j, maps, at, warp * 16, d, *side, sums, buffers);
        }
        __syncwarp();
        release(&room->side_empty);
        ring.parity ^= 2;
    }
    if (threadIdx.x % 32 == 0) tile_stores_wait<0>();
}

template <typename T, typename S, many_mode MODE>
__global__ void __launch_bounds__(S::THREADS, 1)
    linear_many_sm90_kernel(const __grid_constant__ many_job j,
                            const __grid_constant__ many_maps maps) {
    extern __shared__ char shared[];
    __shared__ many_room<S> room;
    char *stages = shared + (1024 - shared_address(shared) % 1024) % 1024;
    many_side<S> *side = (many_side<S> *)(stages + S::STAGES * S::STAGE + S::OUT);
    if (threadIdx.x == 0) {
        for (int i = 0; i < S::STAGES; i++) {
            barrier_init(&room.full[i], 1);
            barrier_init(&room.empty[i], S::WARPS);
        }
        for (int i = 0; i < S::WARPS; i++)
            barrier_init(&room.residual[i], 1);
        barrier_init(&room.side_full, MANY_AIDS / 32);
        barrier_init(&room.side_empty, S::WARPS);
        barrier_init_done();
    }
    __syncthreads();
    grid_launch_next();
    if (threadIdx.x >= S::G * GROUP) {
        registers_lower<S::SPARE>();
        if (threadIdx.x == S::G * GROUP) {
            many_ask<S, MODE>(j, maps, stages, &room);
        } else {
            int i = (int)threadIdx.x - (S::THREADS - MANY_AIDS);
            grid_wait();
            if (i >= 0) many_aid<T, S, MODE>(j, &room, side, i);
        }
    } else {
        registers_raise<S::REGISTERS>();
        grid_wait();
        many_compute<T, S, MODE>(j, maps, stages, &room, side);
    }
}

#endif
