/* Dense layers forward on Hopper, for inference: y = silu(x W + bias) or silu(norm(x) W + bias),
 * where new keys and values are also written to their pages, or x W + bias + residual (contract:
 * linear_packed_args in ops.h).
 *
 * W is (n_out, n_in), so that both operands are read along k.  The large kernel is persistent: a
 * block computes one tile of y after another, 128 or 192 rows x N columns each, with a warpgroup
 * for each 64 rows; a producer thread loads 64 columns of x and W a pipeline stage by TMA and runs
 * ahead into the next tile.  The medium kernel is for calls whose tiles all run at once.  A norm
 * before the layer costs no pass over x: the product is taken of x itself, and the epilogue
 * corrects each row by the row's mean and deviation (linear.cu has the formula).
 *
 * Kernels start early (cuda_launch_early): the first tiles of W, which no previous kernel writes,
 * are loaded before the previous kernel is complete. */
#include "base/half.h"
#include "cuda/gemm/linear_epilogue_sm90.cuh"
#include "cuda/ops/norm_row.cuh"

template <typename S> struct large_room {
    uint64_t full[S::STAGES], empty[S::STAGES];
    uint64_t side_full, side_empty;
    uint64_t residual[S::WARPS];
};

/* The producer: one thread loads all stages of all tiles of the block. */
template <typename S, linear_mode MODE>
__device__ static void large_produce(const linear_job &j, const linear_maps &maps, char *stages,
                                     large_room<S> *room) {
    int n_tiles = j.n_down * j.n_across, s = 0;
    /* Before SiLU the previous kernel leaves no room to start early: more of W would only delay x.
     */
    int n_ahead = min(MODE == LINEAR_SILU ? 1 : (int)S::STAGES, j.n_steps);
    int tile = (int)blockIdx.x;
    uint32_t parity = 1; /* of what is free: all of it at first */
    linear_place at = linear_place_of<S>(j, tile);
    tile_prefetch_map(&maps.w);
    tile_prefetch_map(&maps.x);
    tile_prefetch_map(&maps.y);
    for (int i = 0; i < n_ahead && tile < n_tiles; i++) {
        barrier_expect(&room->full[i], (uint32_t)S::STAGE);
        tile_load(stages + i * S::STAGE + S::BYTES_X, &maps.w, &room->full[i], i * PART, at.column);
    }
    grid_wait();
    for (int n = 0; tile < n_tiles; tile += (int)gridDim.x) {
        at = linear_place_of<S>(j, tile);
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
template <typename T, typename S, linear_mode MODE>
__device__ static void large_prepare(const linear_job &j, large_room<S> *room, linear_side<S> *side,
                                     int i) {
    int n_tiles = j.n_down * j.n_across, n = 0;
    for (int tile = (int)blockIdx.x; tile < n_tiles; tile += (int)gridDim.x, n++) {
        linear_place at = linear_place_of<S>(j, tile);
        asm volatile("" : "+r"(i)); /* addresses are computed again: registers */
        barrier_wait(&room->side_empty, n % 2 ^ 1);
#pragma unroll 1 /* registers */
        for (int k = i; k < S::N; k += LINEAR_HELPERS) {
            bool is = at.column + k < j.n_out;
            side->shift[k] = is ? (MODE == LINEAR_SUM ? 1 : .5f) * j.shift[at.column + k] : 0;
            side->sum[k] = is && j.sums != NULL ? j.sums[at.column + k] : 0;
        }
#pragma unroll 1
        for (int k = i; k < S::ROWS && (MODE != LINEAR_SUM || S::IS_FP8); k += LINEAR_HELPERS) {
            bool is = at.row + k < j.n_rows;
            if constexpr (S::IS_FP8) {
                float scale = is ? j.scales[at.row + k] : 0;
                side->norm[k] = make_float2(0, MODE == LINEAR_SUM ? scale : .5f * scale);
            } else {
                is = is && j.moments.width > 0;
                side->norm[k] = is ? linear_norm_of<S>(j, at.row + k) : make_float2(0, .5f);
            }
        }
#pragma unroll 1
        for (int k = i; k < S::ROWS && MODE != LINEAR_SUM && j.put.slot != NULL;
             k += LINEAR_HELPERS)
            linear_pages<T, S>(j, at, side, k);
        __syncwarp();
        release(&room->side_full);
    }
}

/* Part `part` of the products of a step, for the rows of the warpgroup. */
template <typename S>
__device__ static inline void large_multiply(float (&d)[S::PART_N / 2], int part, const char *stage,
                                             int group, bool adds) {
    uint64_t x = tile_describe(stage + group * 64 * PART_BYTES, 16);
    uint64_t w = tile_describe(stage + S::BYTES_X + part * S::PART_N * PART_BYTES, 16);
#pragma unroll
    for (int i = 0; i < PART / 16; i++)
        wgmma_ss<typename S::OPERAND, S::PART_N>(d, tile_move(x, i * 32), tile_move(w, i * 32),
                                                 adds || i > 0);
}

/* The ring of stages as a consumer sees it. */
template <typename S> struct large_ring {
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
template <typename T, typename S, linear_mode MODE>
__device__ static inline void
large_end(const linear_job &j, const linear_maps &maps, const char *stages, large_room<S> *room,
          const linear_side<S> *side, const linear_place &at, int group, int last, char *buffers,
          large_ring<S> &ring, linear_sums (&sums)[2], float (&d)[S::PARTS][S::PART_N / 2]) {
    int first = (int)threadIdx.x / 32 * 16, one = ring.at;
    barrier_wait(&room->full[one], ring.of_stages());
    wgmma_fence();
    large_multiply<S>(d[0], 0, stages + one * S::STAGE, group, true);
    wgmma_commit();
    wgmma_wait<1>();
    release(&room->empty[last]);
    ring.advance();
    int two = ring.at;
    barrier_wait(&room->full[two], ring.of_stages());
    ring.advance();
    wgmma_fence();
    large_multiply<S>(d[0], 0, stages + two * S::STAGE, group, true);
    wgmma_commit();
    large_multiply<S>(d[1], 1, stages + one * S::STAGE, group, true);
    large_multiply<S>(d[1], 1, stages + two * S::STAGE, group, true);
    wgmma_commit();
    barrier_wait(&room->side_full, ring.of_tiles());
    if constexpr (MODE == LINEAR_SUM) barrier_wait(&room->residual[first / 16], ring.of_tiles());
    wgmma_wait<1>();
    linear_store<T, S, MODE, 0, S::CHUNKS / 2>(j, maps, at, first, d, *side, sums, buffers);
    wgmma_wait<0>();
    release(&room->empty[one]);
    release(&room->empty[two]);
    linear_store<T, S, MODE, S::CHUNKS / 2, S::CHUNKS>(j, maps, at, first, d, *side, sums, buffers);
}

/* All products of a tile in 8 bits.  The tensor cores keep too few bits of long sums, so each
 * step's is added to d in float32; the other warpgroup multiplies meanwhile. */
template <typename S>
__device__ static inline void large_sums_fp8(const linear_job &j, const char *stages,
                                             large_room<S> *room, int group, large_ring<S> &ring,
                                             float (&d)[S::PARTS][S::PART_N / 2]) {
#pragma unroll
    for (int i = 0; i < S::N / 2; i++)
        d[i / (S::PART_N / 2)][i % (S::PART_N / 2)] = 0;
    for (int k = 0; k < j.n_steps; k++) {
        barrier_wait(&room->full[ring.at], ring.of_stages());
#pragma unroll
        for (int part = 0; part < S::PARTS; part++) {
            float step[S::PART_N / 2];
            wgmma_fence();
            large_multiply<S>(step, part, stages + ring.at * S::STAGE, group, false);
            wgmma_commit();
            wgmma_wait<0>();
            wgmma_sums(step);
            if (part == S::PARTS - 1) release(&room->empty[ring.at]);
#pragma unroll
            for (int i = 0; i < S::PART_N / 2; i++)
                d[part][i] += step[i];
        }
        ring.advance();
    }
}

template <typename T, typename S, linear_mode MODE>
__device__ static void large_compute(const linear_job &j, const linear_maps &maps, char *stages,
                                     large_room<S> *room, const linear_side<S> *side) {
    int group = __shfl_sync(0xffffffffu, (int)threadIdx.x / GROUP, 0); /* known to be uniform */
    int warp = (int)threadIdx.x / 32, n_tiles = j.n_down * j.n_across;
    int n_steps = S::PARTS == 1 ? j.n_steps : j.n_steps - 2; /* of large_end */
    large_ring<S> ring = {0, 0};
    char *buffers = stages + S::STAGES * S::STAGE + warp * S::BUFFERS * S::BUFFER;
    for (int tile = (int)blockIdx.x; tile < n_tiles; tile += (int)gridDim.x) {
        linear_place at = linear_place_of<S>(j, tile);
        float d[S::PARTS][S::PART_N / 2];
        linear_sums sums[2];
        int last = -1;
        if constexpr (MODE == LINEAR_SUM) {
            linear_fetch<S>(maps, at, at.row + warp * 16, buffers, &room->residual[warp]);
            __syncwarp();
        }
        for (int k = 0; k < n_steps && !S::IS_FP8; k++) {
            barrier_wait(&room->full[ring.at], ring.of_stages());
            wgmma_fence();
#pragma unroll
            for (int part = 0; part < S::PARTS; part++)
                large_multiply<S>(d[part], part, stages + ring.at * S::STAGE, group, k > 0);
            wgmma_commit();
            if (k > 0) {
                wgmma_wait<1>();
                release(&room->empty[last]);
            }
            last = ring.at;
            ring.advance();
        }
        if constexpr (S::PARTS > 1 && !S::IS_FP8) {
            large_end<T, S, MODE>(j, maps, stages, room, side, at, group, last, buffers, ring, sums,
                                  d);
        } else {
            if constexpr (S::IS_FP8) {
                large_sums_fp8<S>(j, stages, room, group, ring, d);
            } else {
                wgmma_wait<0>();
                release(&room->empty[last]);
            }
            barrier_wait(&room->side_full, ring.of_tiles());
            if constexpr (MODE == LINEAR_SUM) barrier_wait(&room->residual[warp], ring.of_tiles());
            linear_store<T, S, MODE, 0, S::CHUNKS>(j, maps, at, warp * 16, d, *side, sums, buffers);
        }
        __syncwarp();
        release(&room->side_empty);
        ring.parity ^= 2;
    }
    if (threadIdx.x % 32 == 0) tile_stores_wait<0>();
}

template <typename T, typename S, linear_mode MODE>
__global__ void __launch_bounds__(S::THREADS, 1)
    linear_large_sm90_kernel(const __grid_constant__ linear_job j,
                             const __grid_constant__ linear_maps maps) {
    extern __shared__ char shared[];
    __shared__ large_room<S> room;
    char *stages = shared + (1024 - shared_address(shared) % 1024) % 1024;
    linear_side<S> *side = (linear_side<S> *)(stages + S::STAGES * S::STAGE + S::OUT);
    if (threadIdx.x == 0) {
        for (int i = 0; i < S::STAGES; i++) {
            barrier_init(&room.full[i], 1);
            barrier_init(&room.empty[i], S::WARPS);
        }
        for (int i = 0; i < S::WARPS; i++)
            barrier_init(&room.residual[i], 1);
        barrier_init(&room.side_full, LINEAR_HELPERS / 32);
        barrier_init(&room.side_empty, S::WARPS);
        barrier_init_done();
    }
    __syncthreads();
    grid_launch_next();
    if (threadIdx.x >= S::G * GROUP) {
        registers_lower<S::SPARE>();
        if (threadIdx.x == S::G * GROUP) {
            large_produce<S, MODE>(j, maps, stages, &room);
        } else {
            int i = (int)threadIdx.x - (S::THREADS - LINEAR_HELPERS);
            grid_wait();
            if (i >= 0) large_prepare<T, S, MODE>(j, &room, side, i);
        }
    } else {
        registers_raise<S::REGISTERS>();
        grid_wait();
        large_compute<T, S, MODE>(j, maps, stages, &room, side);
    }
}

/* The medium kernel, for a few hundred rows: one tile a block.
 *
 * With one tile a block no latency is hidden.  So the loop over pipeline stages is unrolled with
 * constant addresses: computing these took a warpgroup longer than its products.  The moments of
 * the rows are loaded before x, or they would arrive after all of the x that is in flight, by one
 * copy into the buffers that the epilogue does not need yet. */
/* Tiles of 64 G rows x N columns, G warpgroups that compute. */
template <int N_, int G_, int STAGES_> struct medium_tile {
    static constexpr bool IS_FP8 = false;
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
    static_assert(BYTES <= LINEAR_SHARED, "shared memory");
};

template <typename S> struct medium_room {
    uint64_t full[S::STAGES], empty[S::STAGES];
    uint64_t moments, side;
    uint64_t residual[S::WARPS];
};

/* Bytes of the moments of the tile's rows, if they can be copied to the buffers, or 0. */
template <typename S>
__device__ static inline uint32_t medium_moments(const linear_job &j, const linear_place &at) {
    int64_t rows = min((int64_t)S::ROWS, j.n_rows - at.row), bytes = rows * j.n_parts * 8;
    bool is_whole = bytes % 16 == 0 && (uintptr_t)j.moments.parts % 16 == 0;
    return j.moments.width > 0 && is_whole && bytes <= S::OUT ? (uint32_t)bytes : 0;
}

/* The producer: one thread loads all stages. */
template <typename S, linear_mode MODE>
__device__ static void medium_produce(const linear_job &j, const linear_maps &maps,
                                      const linear_place &at, char *stages, char *buffers,
                                      medium_room<S> *room) {
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
    uint32_t bytes = MODE == LINEAR_SILU ? medium_moments<S>(j, at) : 0;
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
__device__ static inline float2 medium_norm_of(const linear_job &j, const float2 *parts, int at) {
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
template <typename T, typename S, linear_mode MODE>
__device__ static void medium_prepare(const linear_job &j, const linear_place &at,
                                      const char *buffers, medium_room<S> *room,
                                      linear_side<S> *side, int i) {
    for (int k = i; k < S::N; k += LINEAR_HELPERS) { /* no kernel before writes them */
        bool is = at.column + k < j.n_out;
        side->shift[k] = is ? (MODE == LINEAR_SUM ? 1 : .5f) * j.shift[at.column + k] : 0;
        side->sum[k] = is && j.sums != NULL ? j.sums[at.column + k] : 0;
    }
    grid_wait();
    if constexpr (MODE == LINEAR_SILU) {
        for (int k = i; k < S::ROWS && j.put.slot != NULL; k += LINEAR_HELPERS)
            linear_pages<T, S>(j, at, side, k);
        uint32_t bytes = medium_moments<S>(j, at);
        const float2 *parts = (const float2 *)j.moments.parts + (int64_t)at.row * j.n_parts;
        if (bytes > 0) barrier_wait(&room->moments, 0);
        for (int k = i; k < S::ROWS; k += LINEAR_HELPERS) {
            bool is_normed = j.moments.width > 0 && at.row + k < j.n_rows;
            const float2 *own = (bytes > 0 ? (const float2 *)buffers : parts) + k * j.n_parts;
            side->norm[k] = is_normed ? medium_norm_of(j, own, k % j.n_parts) : make_float2(0, .5f);
        }
    }
    __syncwarp();
    release(&room->side);
}

/* The sums of a warpgroup. */
template <typename T, typename S>
__device__ static inline void medium_multiply(const linear_job &j, const char *stages, int group,
                                              medium_room<S> *room, float (&d)[S::N / 2]) {
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

template <typename T, typename S, linear_mode MODE>
__device__ static void medium_compute(const linear_job &j, const linear_maps &maps,
                                      const linear_place &at, const char *stages, char *buffers,
                                      medium_room<S> *room, const linear_side<S> *side) {
    int warp = (int)threadIdx.x / 32;
    int group = S::G == 1 ? 0 : __shfl_sync(0xffffffffu, (int)threadIdx.x / GROUP, 0);
    float d[1][S::N / 2];
    linear_sums sums[2];
    buffers += warp * S::BUFFERS * S::BUFFER;
    if constexpr (MODE == LINEAR_SUM) {
        linear_fetch<S>(maps, at, at.row + warp * 16, buffers, &room->residual[warp]);
        __syncwarp();
    }
    medium_multiply<T, S>(j, stages, group, room, d[0]);
    barrier_wait(&room->side, 0);
    if constexpr (MODE == LINEAR_SUM) barrier_wait(&room->residual[warp], 0);
    linear_store<T, S, MODE, 0, S::CHUNKS>(j, maps, at, warp * 16, d, *side, sums, buffers);
    if (threadIdx.x % 32 == 0) tile_stores_wait<0>();
}

template <typename T, typename S, linear_mode MODE>
__global__ void __launch_bounds__(S::THREADS, 1)
    linear_medium_sm90_kernel(const __grid_constant__ linear_job j,
                              const __grid_constant__ linear_maps maps) {
    extern __shared__ char shared[];
    __shared__ medium_room<S> room;
    char *stages = shared + (1024 - shared_address(shared) % 1024) % 1024;
    char *buffers = stages + S::STAGES * S::STAGE;
    linear_side<S> *side = (linear_side<S> *)(buffers + S::OUT);
    linear_place at = linear_place_of<S>(j, (int)blockIdx.x);
    int other = (int)threadIdx.x - S::G * GROUP, aid = other - (GROUP - LINEAR_HELPERS);
    if (threadIdx.x == 0) {
        for (int i = 0; i < S::STAGES; i++) {
            barrier_init(&room.full[i], 1);
            barrier_init(&room.empty[i], S::WARPS);
        }
        for (int i = 0; i < S::WARPS; i++)
            barrier_init(&room.residual[i], 1);
        barrier_init(&room.moments, 1);
        barrier_init(&room.side, LINEAR_HELPERS / 32);
        barrier_init_done();
    }
    __syncthreads();
    grid_launch_next();
    if (other == 0) {
        medium_produce<S, MODE>(j, maps, at, stages, buffers, &room);
    } else if (aid >= 0) {
        medium_prepare<T, S, MODE>(j, at, buffers, &room, side, aid);
    } else {
        grid_wait();
        if (other < 0) medium_compute<T, S, MODE>(j, maps, at, stages, buffers, &room, side);
    }
}

/* Keys or values that go to pages in 16 bytes at a time. */
static bool can_keep(const void *rows, const void *pages, int32_t dim, int64_t stride) {
    return (uintptr_t)rows % 16 == 0 && is_addressable(pages, stride) && dim % 8 == 0;
}

/* bfloat16 (float16 has not been measured), rows that TMA can address, and an epilogue that there
 * is. */
bool cuda_linear_large_can(const backend *be, const linear_packed_args *packed) {
    const linear_args *a = &packed->layer;
    const kv_put_args *p = packed->put;
    if (cuda_of(be)->sm != 90 || be->act != ACT_BF16) return false;
    bool is_silu = a->f == EPILOGUE_SILU && a->z == NULL && a->residual == NULL;
    bool is_sum = a->f == EPILOGUE_NONE && a->residual != NULL && p == NULL;
    if (!is_silu && !is_sum) return false;
    if (p != NULL && !(can_keep(p->k, p->pages_k, p->dim_k, p->stride) &&
                       can_keep(p->v, p->pages_v, p->dim_v, p->stride)))
        return false;
    return is_addressable(a->x, a->n_in) && is_addressable(a->y, a->n_out) &&
           (uintptr_t)a->residual % 16 == 0 && a->n < (int64_t)1 << 30;
}

/* Whether the norm is part of it: the kernel that wrote its rows has left their moments. */
bool cuda_linear_large_norms(const linear_packed_args *a) {
    const norm_args *n = a->norm;
    return n != NULL && a->layer.f == EPILOGUE_SILU && n->moments != NULL &&
           n->moments->width > 0 && n->moments->of == n->x && is_addressable(n->x, a->layer.n_in);
}

/* Rows of x and of W as TMA reads them: in words of 16 bits, so many a row; two codes of 8. */
typedef struct operands {
    const void *x, *w;
    int32_t n_words;
} operands;

/* The tensor maps and the rest of the arguments, for tiles S. */
template <typename S, linear_mode MODE>
static status tiles_prepare(backend *be, const linear_packed_args *packed, const operands *o,
                            linear_job *j, linear_maps *maps) {
    const linear_args *a = &packed->layer;
    TRY(sm90a_map_box(&maps->x, be->act, o->x, a->n, o->n_words, o->n_words, PART, S::ROWS));
    TRY(sm90a_map_box(&maps->w, be->act, o->w, a->n_out, o->n_words, o->n_words, PART, S::N));
    j->n_steps = (int32_t)cuda_div_up(o->n_words, PART);
    TRY(sm90a_map_box(&maps->y, be->act, a->y, a->n, a->n_out, a->n_out, S::COLUMNS, 16));
    if (MODE == LINEAR_SUM)
        TRY(sm90a_map_box(&maps->residual, be->act, a->residual, a->n, a->n_out, a->n_out,
                          S::COLUMNS, 16));
    j->n_down = (int32_t)cuda_div_up(a->n, S::ROWS);
    j->n_across = (int32_t)cuda_div_up(a->n_out, S::N);
    if (MODE == LINEAR_SUM && packed->moments != NULL) {
        static_assert(S::N >= MOMENTS_WIDTH, "room for the moments");
        packed->moments->width = S::N;
        packed->moments->of = a->y;
        j->moments_y = (float2 *)packed->moments->parts;
    }
    return OK;
}

typedef void (*linear_kernel)(const linear_job, const linear_maps);

/* Runs KERNEL over tiles S: a persistent kernel on all multiprocessors, else a block for each tile.
 */
template <typename S, linear_mode MODE, bool IS_PERSISTENT, linear_kernel KERNEL>
static status tiles_launch(backend *be, const linear_packed_args *a, const operands *o,
                           const linear_job *from) {
    linear_job j = *from;
    linear_maps maps = {};
    TRY((tiles_prepare<S, MODE>(be, a, o, &j, &maps)));
    int64_t n_blocks = (int64_t)j.n_down * j.n_across, n = cuda_of(be)->n_multiprocessors;
    if (IS_PERSISTENT && n_blocks > n) n_blocks = n;
    return cuda_launch_early(be, "a dense layer", KERNEL, n_blocks, S::THREADS, S::BYTES, j, maps);
}

/* Tiles of 64 g rows x n columns; is_one_wave: for calls whose tiles can all run at once. */
typedef struct large_choice {
    int n, g;
    bool is_one_wave;
    status (*launch)(backend *be, const linear_packed_args *a, const operands *o,
                     const linear_job *j);
} large_choice;

#define LARGE_(N, G, IS_ONE_WAVE, MODE, X)                                                         \
    {                                                                                              \
        N, G, IS_ONE_WAVE,                                                                         \
            tiles_launch<large_tile<N, G, MODE, X>, MODE, true,                                    \
                         linear_large_sm90_kernel<__nv_bfloat16, large_tile<N, G, MODE, X>, MODE>> \
    }
#define LARGE(N, G, MODE) LARGE_(N, G, false, MODE, __nv_bfloat16)
#define ONCE(N, G, MODE)  LARGE_(N, G, true, MODE, __nv_bfloat16)
#define FP8(N, G, MODE)   LARGE_(N, G, false, MODE, __nv_fp8_e4m3)
#define MEDIUM(N, G, STAGES, MODE)                                                                 \
    {                                                                                              \
        N, G, true,                                                                                \
            tiles_launch<                                                                          \
                medium_tile<N, G, STAGES>, MODE, false,                                            \
                linear_medium_sm90_kernel<__nv_bfloat16, medium_tile<N, G, STAGES>, MODE>>         \
    }
static const large_choice silu_tiles[] = {
    MEDIUM(96, 2, 7, LINEAR_SILU), MEDIUM(128, 2, 5, LINEAR_SILU), LARGE(160, 3, LINEAR_SILU),
    LARGE(192, 3, LINEAR_SILU),    LARGE(256, 2, LINEAR_SILU),     LARGE(256, 3, LINEAR_SILU)};
static const large_choice sum_tiles[] = {
    MEDIUM(64, 1, 12, LINEAR_SUM), MEDIUM(128, 1, 8, LINEAR_SUM), MEDIUM(128, 2, 5, LINEAR_SUM),
    ONCE(256, 2, LINEAR_SUM),      LARGE(96, 2, LINEAR_SUM),      LARGE(128, 3, LINEAR_SUM)};
enum {
    N_SILU = sizeof silu_tiles / sizeof *silu_tiles,
    N_SUM = sizeof sum_tiles / sizeof *sum_tiles
};

/* The products of 256 columns need three steps along k (large_end). */
static bool has_steps(const linear_args *a, const large_choice *t) {
    return t->n < 256 || a->n_in > 2 * PART;
}

/* The time of a call, up to a factor: as often as a block computes a tile, which takes as long as
 * its products and what a tile costs besides: with a residual and moments more than the rest of an
 * epilogue, which is nearly proportional to the products.
 *
 * Microseconds of a layer that set it (H200, 2026-11-17; bfloat16, one user, width 1024, all with
 * the same attention; columns x rows of a tile, "-": more than a wave; sums: 514 rows, not 512):
 *     rows             512    770   1026   1282   1538   2050   2562   3074   3586   4098   4354
 *     silu 128 x 128  30.3      -      -      -      -      -      -      -      -      -      -
 *          160 x 192  34.2   37.0   58.2   64.6   57.1   95.2  106.7  134.9  147.1  169.5  176.5
 *          192 x 192  36.2   36.4   50.8   68.1   60.4   88.1  112.9  130.6  154.0  165.5  173.0
 *          256 x 192  39.7   40.2   55.5   61.6   68.2   96.2  108.9  141.4  154.0  165.4  171.5
 *          96 x 128   37.1   39.7   56.6   67.8   62.6   99.5  116.6  141.2  160.4  178.9  190.4
 *     sum  128 x 64   30.6   37.8      -      -      -      -      -      -      -      -      -
 *          128 x 128  32.3   39.5   56.9   61.9   59.6      -      -      -      -      -      -
 *          96 x 128   33.5   39.7   56.6   61.7   64.6   99.1  117.5  141.7  160.9  165.0  173.2
 *          128 x 192     -      -   59.3   64.5   62.6   99.5  116.5  142.0  161.7  166.6  172.7
 *          256 x 128     -      -   62.6   68.5   64.5   98.5  115.8  134.2  152.7  162.4  179.3 */
static int64_t large_cost(const backend *be, const linear_args *a, const large_choice *t) {
    int64_t n_tiles = cuda_div_up(a->n, 64 * t->g) * cuda_div_up(a->n_out, t->n);
    int64_t n_waves = cuda_div_up(n_tiles, cuda_of(be)->n_multiprocessors);
    if (!has_steps(a, t) || (t->is_one_wave && n_waves > 1)) return INT64_MAX;
    int besides = a->f != EPILOGUE_SILU         ? (t->is_one_wave ? 64 : 96)
                  : t->is_one_wave || t->g == 3 ? 32
                                                : 78;
    return n_waves * (besides + t->g * t->n);
}

/* What both kinds of operands share. */
static linear_job job_of(const backend *be, const linear_packed_args *packed,
                         const linear_parts *p) {
    const linear_args *a = &packed->layer;
    linear_job j = {};
    j.n_rows = a->n;
    j.n_out = a->n_out;
    j.n_in = a->n_in;
    j.shift = p->shift;
    if (packed->put != NULL) {
        size_t size = act_bytes(be->act);
        j.put = *packed->put;
        j.column_k = (int32_t)((size_t)((const char *)j.put.k - (const char *)a->y) / size);
        j.column_v = (int32_t)((size_t)((const char *)j.put.v - (const char *)a->y) / size);
    }
    return j;
}

status cuda_linear_large(backend *be, const linear_packed_args *packed, const linear_parts *p) {
    const linear_args *a = &packed->layer;
    bool is_silu = a->f == EPILOGUE_SILU;
    const large_choice *all = is_silu ? silu_tiles : sum_tiles, *best = all;
    linear_job j = job_of(be, packed, p);
    operands o = {a->x, p->w, a->n_in};
    if (cuda_linear_large_norms(packed)) {
        o.x = packed->norm->x;
        j.sums = p->sums;
        j.moments = *packed->norm->moments;
        j.n_parts = (int32_t)cuda_div_up(a->n_in, j.moments.width);
        j.eps = packed->norm->eps;
    }
    int n = is_silu ? N_SILU : N_SUM, asked = (packed->kernel < n ? packed->kernel : n) - 1;
    for (int i = 1; i < n; i++)
        if (large_cost(be, a, &all[i]) < large_cost(be, a, best)) best = &all[i];
    if (asked >= 0 && has_steps(a, &all[asked])) best = &all[asked];
    return best->launch(be, packed, &o, &j);
}

/* Products in 8 bits. */

/* Rows of bfloat16, or of their norm without weight and bias, as codes of 8 bits with a scale. */
typedef struct fp8_job {
    int64_t n;
    int32_t dim;
    bool is_normed;
    float eps;
    const __nv_bfloat16 *x; /* (n, dim) */
    uint8_t *codes;         /* (n, dim) */
    float *scales;          /* (n) */
} fp8_job;

/* The largest of a row's threads; room: of two rows in turn. */
template <typename R> __device__ static inline float row_max(float x, float (&room)[R::WARPS]) {
    x = warp_max(x);
    if (threadIdx.x % WARP == 0) room[threadIdx.x / WARP] = x;
    __syncthreads();
    for (int w = 0; w < R::WARPS; w++)
        x = fmaxf(x, room[w]);
    return x;
}

/* A block owns a row and holds it in registers (norm_row.cuh).  Bound by bytes: 2 read and 1
 * written for each number. */
template <typename R>
static __global__ void __launch_bounds__(R::THREADS) linear_fp8_rows_sm90_kernel(const fp8_job j) {
    __shared__ row_room<R> room[2];
    __shared__ float most[2][R::WARPS];
    int first = row_column<R>(0), turn = 0;
    early_begin();
    for (int64_t i = row_first<R>(); i < j.n; i += row_step<R>(), turn ^= 1) {
        row_packs<__nv_bfloat16, R> x;
        float mean = 0, rstd = 1, v[R::V], largest = LINEAR_FP8_LEAST;
        row_load<__nv_bfloat16, R>(x, j.x + i * j.dim, j.dim);
        if (j.is_normed) norm_row_statistics<__nv_bfloat16, R>(x, j.dim, j.eps, room, &mean, &rstd);
#pragma unroll
        for (int c = 0; c < R::V; c++) {
            v[c] = (column(x.part[0], c) - mean) * rstd;
            if (first < j.dim) largest = fmaxf(largest, fabsf(v[c]));
        }
        largest = row_max<R>(largest, most[turn]);
        float down = __fdiv_rn(FP8_MAX, largest);
        uint32_t word[2] = {};
#pragma unroll
        for (int c = 0; c < R::V; c += 2) {
            float2 two = make_float2(v[c] * down, v[c + 1] * down);
            word[c / 4] |= (uint32_t)__nv_cvt_float2_to_fp8x2(two, __NV_SATFINITE, __NV_E4M3)
                           << c % 4 * 8;
        }
        if (first < j.dim) *(uint2 *)(j.codes + i * j.dim + first) = make_uint2(word[0], word[1]);
        if (row_lane<R>() == 0) j.scales[i] = __fdiv_rn(largest, FP8_MAX);
    }
}

static status round_rows(backend *be, const fp8_job *j) {
    typedef row_tile<128, 8, true> small;
    typedef row_tile<512, 8, true> large;
    if (j->dim <= small::COLUMNS)
        return norm_launch_fwd<small>(be, linear_fp8_rows_sm90_kernel<small>, j, "rows in 8 bits");
    return norm_launch_fwd<large>(be, linear_fp8_rows_sm90_kernel<large>, j, "rows in 8 bits");
}

/* Sides that TMA and the kernel above can address. */
static bool fits_fp8(const linear_args *a) {
    return a->n_in % 16 == 0 && a->n_in > 0 && a->n_in <= NORM_MAX_DIM && a->n_out % 8 == 0;
}

status cuda_linear_fp8_pack(backend *be, const linear_args *a, const linear_parts *p) {
    static bool is_said;
    fp8_job j = {a->n_out, a->n_in, false, 0, (const __nv_bfloat16 *)p->w, p->codes, p->scales};
    if (fits_fp8(a)) {
        TRY(round_rows(be, &j));
        return be->ops->sync(be); /* see pack_turned */
    }
    if (!is_said)
        log_info("note: products %d x %d stay in bfloat16; fp8 needs multiples of 16 x 8, and at "
                 "most %d inputs",
                 a->n_in, a->n_out, NORM_MAX_DIM);
    is_said = true;
    return OK;
}

/* Whether 8 bits are faster, by the peaks of an H200: twice 790 TFLOP/s against one more pass over
 * x, 3 bytes a number at 4.3 TB/s, and one more kernel.  A margin for what tiles leave over: the
 * sums of 8-bit products take instructions of their own. */
static bool pays_fp8(const linear_args *a) {
    const double FLOPS = 790e12, BYTES = 4.3e12, LAUNCH = 3e-6, MARGIN = 1.15;
    double numbers = (double)a->n * a->n_in, bf16 = 2 * numbers * a->n_out / FLOPS;
    return bf16 > MARGIN * (bf16 / 2 + 3 * numbers / BYTES + LAUNCH);
}

bool cuda_linear_fp8_can(const backend *be, const linear_packed_args *packed) {
    const linear_args *a = &packed->layer;
    const void *x = packed->norm != NULL ? packed->norm->x : a->x;
    return packed->is_fp8 && cuda_linear_large_can(be, packed) && fits_fp8(a) &&
           is_addressable(x, a->n_in) && (packed->kernel == LINEAR_FP8_ALWAYS || pays_fp8(a));
}

/* Wide tiles read less of x and W for each product, narrow ones leave fewer multiprocessors idle.
 * Not tuned. */
static const large_choice fp8_tiles[] = {FP8(256, 2, LINEAR_SILU), FP8(128, 2, LINEAR_SILU),
                                         FP8(128, 2, LINEAR_SUM)};

status cuda_linear_fp8(backend *be, const linear_packed_args *packed, const linear_parts *p) {
    const linear_args *a = &packed->layer;
    const norm_args *norm = packed->norm;
    const __nv_bfloat16 *x = (const __nv_bfloat16 *)(norm != NULL ? norm->x : a->x);
    size_t bytes = cuda_align((size_t)(a->n * a->n_in));
    linear_job j = job_of(be, packed, p);
    uint8_t *room;
    TRY(cuda_scratch(be, bytes + (size_t)a->n * sizeof(float), (void **)&room));
    fp8_job rows = {a->n, a->n_in, norm != NULL, 0, x, room, (float *)(room + bytes)};
    if (norm != NULL) rows.eps = norm->eps;
    TRY(round_rows(be, &rows));
    operands o = {rows.codes, p->codes, a->n_in / 2};
    j.scales = rows.scales;
    j.sums = p->scales;
    const large_choice *silu = fp8_tiles, *best = fp8_tiles + 2;
    if (a->f == EPILOGUE_SILU)
        best = silu + (large_cost(be, a, silu) > large_cost(be, a, silu + 1));
    return best->launch(be, packed, &o, &j);
}
