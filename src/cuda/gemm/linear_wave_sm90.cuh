/* Dense layers over a few hundred rows on Hopper, for inference: what linear_many_sm90.cuh computes
 * (contract: linear_args in ops.h), a tile a block.
 *
 * With so few rows a block has one tile, and nothing hides how long anything takes.  So the loop
 * over stages is unrolled, with all addresses known: computing them took a warpgroup longer than
 * its products.  The moments of the rows are asked for before x, or they would come after all of it
 * that is under way, and come as one copy, into the buffers that the epilogue does not need yet. */
#ifndef HSTU_CUDA_GEMM_LINEAR_WAVE_SM90_CUH
#define HSTU_CUDA_GEMM_LINEAR_WAVE_SM90_CUH

#include "cuda/gemm/linear_many_store.cuh"
#include "cuda/gemm/wgmma_sizes.cuh"

/* Tiles of 64 G rows x N columns, G warpgroups that compute. */
template <int N_, int G_, int STAGES_> struct wave_tile {
    static constexpr int N = N_, G = G_, STAGES = STAGES_;
    static constexpr int ROWS = 64 * G, WARPS = 4 * G, THREADS = (G + 1) * GROUP;
    static constexpr int BYTES_X = ROWS * PART_BYTES, BYTES_W = N * PART_BYTES;
    static constexpr int STAGE = BYTES_X + BYTES_W;
    static constexpr int AHEAD = 3; /* stages of W before x; more would hold it up */
    static constexpr int PARTS = 1, PART_N = N;
    static constexpr int COLUMNS = N % PART == 0 ? PART : PART / 2; /* of a buffer, swizzled */
    static constexpr int CHUNKS = N / COLUMNS;
    static constexpr int BUFFER = 16 * COLUMNS * 2; /* bytes: 16 rows */
    static constexpr int BUFFERS = CHUNKS;          /* of a warp */
    static constexpr int OUT = WARPS * BUFFERS * BUFFER;
    static constexpr int SIDE = 2 * N * (int)sizeof(float) + ROWS * 24;
    static constexpr int BYTES = STAGES * STAGE + OUT + SIDE + 1024;
    static_assert(N % COLUMNS == 0, "whole buffers");
    static_assert(BYTES <= MANY_MOST, "shared memory");
};

template <typename S> struct wave_room {
    uint64_t full[S::STAGES], empty[S::STAGES];
    uint64_t moments, side;
    uint64_t residual[S::WARPS];
};

/* Bytes of the moments of the tile's rows, if they can be copied to the buffers, or 0. */
template <typename S>
__device__ static inline uint32_t wave_moments(const many_job &j, const many_place &at) {
    int64_t rows = min((int64_t)S::ROWS, j.n_rows - at.row), bytes = rows * j.n_parts * 8;
    bool is_whole = bytes % 16 == 0 && (uintptr_t)j.moments.parts % 16 == 0;
    return j.moments.width > 0 && is_whole && bytes <= S::OUT ? (uint32_t)bytes : 0;
}

/* One thread loads all stages. */
template <typename S, many_mode MODE>
__device__ static void wave_ask(const many_job &j, const many_maps &maps, const many_place &at,
                                char *stages, char *buffers, wave_room<S> *room) {
    int s = 0, n_ahead = min(S::AHEAD, j.n_steps);
    uint32_t parity = 1; /* of what is free: all of it at first */
    tile_prefetch_map(&maps.w);
    tile_prefetch_map(&maps.x);
    tile_prefetch_map(&maps.y);
    for (int i = 0; i < n_ahead; i++) {
        barrier_expect(&room->full[i], (uint32_t)S::STAGE);
        tile_load(stages + i * S::STAGE + S::BYTES_X, &maps.w, &room->full[i], i * PART, at.column);
    }
    grid_wait();
    uint32_t bytes = MODE == MANY_SILU ? wave_moments<S>(j, at) : 0;
    if (bytes > 0) {
        barrier_expect(&room->moments, bytes);
        bulk_load(buffers, (const float2 *)j.moments.parts + (int64_t)at.row * j.n_parts, bytes,
                  &room->moments);
    }
    for (int k = 0; k < j.n_steps; k++) {
        char *stage = stages + s * S::STAGE;
        if (k >= n_ahead) {
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

/* Mean and half of 1 / deviation of a row of x, of the moments of its parts, which are summed
 * around the mean of one of them in one pass, from part `at` on, so that threads with other rows
 * read other banks of shared memory. */
__device__ static inline float2 wave_norm_of(const many_job &j, const float2 *parts, int at) {
    constexpr int AT_ONCE = 8;
    float width = (float)j.moments.width, share = 1 / width, all = (float)j.n_in;
    float last = (float)(j.n_in - (j.n_parts - 1) * j.moments.width), last_share = 1 / last;
    float middle = 0, sum = 0, square = 0;
#pragma unroll 1
    for (int first = 0; first < j.n_parts; first += AT_ONCE) {
        float2 part[AT_ONCE];
        int next = at;
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            if (first + i < j.n_parts) part[i] = parts[next];
            if (++next == j.n_parts) next = 0;
        }
        if (first == 0) middle = part[0].x * (at + 1 < j.n_parts ? share : last_share);
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            if (first + i >= j.n_parts) break;
            bool is_last = at + 1 == j.n_parts;
            /* the difference of the means, as often as there are numbers */
            float apart = fmaf(is_last ? -last : -width, middle, part[i].x);
            sum += apart;
            square += fmaf(apart * apart, is_last ? last_share : share, part[i].y);
            if (++at == j.n_parts) at = 0;
        }
    }
    float apart = sum / all;
    return make_float2(middle + apart, .5f * rsqrtf((square - sum * apart) / all + j.eps));
}

/* Three warps prepare the epilogue; i: of their 96 threads. */
template <typename T, typename S, many_mode MODE>
__device__ static void wave_aid(const many_job &j, const many_place &at, const char *buffers,
                                wave_room<S> *room, many_side<S> *side, int i) {
    for (int k = i; k < S::N; k += MANY_AIDS) { /* no kernel before writes them */
        bool is = at.column + k < j.n_out;
        side->shift[k] = is ? (MODE == MANY_SUM ? 1 : .5f) * j.shift[at.column + k] : 0;
        side->sum[k] = is && j.sums != NULL ? j.sums[at.column + k] : 0;
    }
    grid_wait();
    if constexpr (MODE == MANY_SILU) {
        for (int k = i; k < S::ROWS && j.put.slot != NULL; k += MANY_AIDS)
            many_pages<T, S>(j, at, side, k);
        uint32_t bytes = wave_moments<S>(j, at);
        const float2 *parts = (const float2 *)j.moments.parts + (int64_t)at.row * j.n_parts;
        if (bytes > 0) barrier_wait(&room->moments, 0);
        for (int k = i; k < S::ROWS; k += MANY_AIDS) {
            bool is_normed = j.moments.width > 0 && at.row + k < j.n_rows;
            const float2 *own = (bytes > 0 ? (const float2 *)buffers : parts) + k * j.n_parts;
            side->norm[k] = is_normed ? wave_norm_of(j, own, k % j.n_parts) : make_float2(0, .5f);
        }
    }
    __syncwarp();
    release(&room->side);
}

/* The sums of a warpgroup. */
template <typename T, typename S>
__device__ static inline void wave_multiply(const many_job &j, const char *stages, int group,
                                            wave_room<S> *room, float (&d)[S::N / 2]) {
    uint64_t x = tile_describe(stages + group * 64 * PART_BYTES, 16);
    uint64_t w = tile_describe(stages + S::BYTES_X, 16);
    uint32_t parity = 0;
    for (int first = 0; first < j.n_steps; first += S::STAGES, parity ^= 1) {
#pragma unroll
        for (int s = 0; s < S::STAGES; s++) {
            if (first + s >= j.n_steps) break;
            barrier_wait(&room->full[s], parity);
            wgmma_fence();
#pragma unroll
            for (int i = 0; i < PART / 16; i++)
                wgmma_ss<T, S::N>(d, tile_move(x, s * S::STAGE + i * 32),
                                  tile_move(w, s * S::STAGE + i * 32), first + s + i > 0);
            wgmma_commit();
            wgmma_wait<1>();
            if (first + s > 0) release(&room->empty[(s + S::STAGES - 1) % S::STAGES]);
        }
    }
    wgmma_wait<0>();
}

template <typename T, typename S, many_mode MODE>
__device__ static void wave_compute(const many_job &j, const many_maps &maps, const many_place &at,
                                    const char *stages, char *buffers, wave_room<S> *room,
                                    const many_side<S> *side) {
    int warp = (int)threadIdx.x / 32;
    int group = S::G == 1 ? 0 : __shfl_sync(0xffffffffu, (int)threadIdx.x / GROUP, 0);
    float d[1][S::N / 2];
    many_sums sums[2];
    buffers += warp * S::BUFFERS * S::BUFFER;
    if constexpr (MODE == MANY_SUM) {
        many_fetch<S>(maps, at, at.row + warp * 16, buffers, &room->residual[warp]);
        __syncwarp();
    }
    wave_multiply<T, S>(j, stages, group, room, d[0]);
    barrier_wait(&room->side, 0);
    if constexpr (MODE == MANY_SUM) barrier_wait(&room->residual[warp], 0);
    many_store<T, S, MODE, 0, S::CHUNKS>(j, maps, at, warp * 16, d, *side, sums, buffers);
    if (threadIdx.x % 32 == 0) tile_stores_wait<0>();
}

template <typename T, typename S, many_mode MODE>
__global__ void __launch_bounds__(S::THREADS, 1)
    linear_wave_sm90_kernel(const __grid_constant__ many_job j,
                            const __grid_constant__ many_maps maps) {
    extern __shared__ char shared[];
    __shared__ wave_room<S> room;
    char *stages = shared + (1024 - shared_address(shared) % 1024) % 1024;
    char *buffers = stages + S::STAGES * S::STAGE;
    many_side<S> *side = (many_side<S> *)(buffers + S::OUT);
    many_place at = many_place_of<S>(j, (int)blockIdx.x);
    int other = (int)threadIdx.x - S::G * GROUP, aid = other - (GROUP - MANY_AIDS);
    if (threadIdx.x == 0) {
        for (int i = 0; i < S::STAGES; i++) {
            barrier_init(&room.full[i], 1);
            barrier_init(&room.empty[i], S::WARPS);
        }
        for (int i = 0; i < S::WARPS; i++)
            barrier_init(&room.residual[i], 1);
        barrier_init(&room.moments, 1);
        barrier_init(&room.side, MANY_AIDS / 32);
        barrier_init_done();
    }
    __syncthreads();
    grid_launch_next();
    if (other == 0) {
        wave_ask<S, MODE>(j, maps, at, stages, buffers, &room);
    } else if (aid >= 0) {
        wave_aid<T, S, MODE>(j, at, buffers, &room, side, aid);
    } else {
        grid_wait();
        if (other < 0) wave_compute<T, S, MODE>(j, maps, at, stages, buffers, &room, side);
    }
}

#endif
