/* The sort of group and of unique: a stable radix sort of 32-bit keys with 32-bit values, least
 * significant digit first ("onesweep": Adinets and Merrill, 2022).
 *
 * One kernel counts the digits of all passes.  Then each pass reads and writes the pairs once: a
 * block takes the next tile, sorts it by the digit in shared memory, and learns where each digit's
 * pairs begin in the output from the tiles before it (decoupled look-back), which publish their
 * counts as soon as they know them.  Pairs leave shared memory in the order of the output, so that
 * neighbours are written together.  Bound by bytes where there are many pairs, else by the latency
 * of launches; one tile of pairs is sorted by one block, in one launch. */
#include "cuda/core/kernel.cuh"

/* Shared memory of a block, with 8 warps: 32 KB of pairs, 8 KB of counts, 1 KB of places.
 *
 * Microseconds on an H200 (2026-11-17), 20 bits, 10^4, 10^6 and 10^7 pairs: 20, 46, 273 with 16
 * pairs a thread, 18, 51, 283 with 12, 21, 47, 267 with 18; 25, 58, 360 with match.any instead of
 * ballots; CUB of CUDA 13.0 takes 37, 56, 270. */
enum {
    RADIX_THREADS = 256,
    RADIX_WARPS = RADIX_THREADS / WARP,
    RADIX_ITEMS = 16, /* pairs of a thread */
    RADIX_FEW = 4,    /* where there are at most 1024 */
    RADIX_TILE = RADIX_THREADS * RADIX_ITEMS,
    RADIX_BITS = 8, /* of a digit, at most */
    RADIX_DIGITS = 1 << RADIX_BITS,
    RADIX_PASSES = 32 / RADIX_BITS, /* at most */
};
static_assert(RADIX_THREADS == RADIX_DIGITS, "thread d of a block owns digit d");

/* What a tile publishes for a digit: a count, and of which tiles; 0 before that. */
#define RADIX_OF_TILE   (1u << 30) /* of this tile */
#define RADIX_OF_ALL    (2u << 30) /* of this tile and all before it */
#define RADIX_COUNT     (RADIX_OF_TILE - 1)
#define RADIX_ALL_LANES 0xffffffffu

/* The layout of the scratch memory; what comes before keys is set to zeros first. */
typedef struct sort_room {
    uint32_t *totals;        /* (n_passes, RADIX_DIGITS): keys with a digit */
    uint32_t *n_taken;       /* (RADIX_PASSES): tiles that blocks have taken */
    uint32_t *published;     /* (n_passes, n_tiles, RADIX_DIGITS) */
    uint32_t *keys, *values; /* (n) each: the pairs between passes */
} sort_room;

/* Where the digit of a pass is in a key. */
typedef struct sort_digit {
    int shift;
    uint32_t mask;
} sort_digit;

/* A pass: from where to where it moves the pairs. */
typedef struct sort_pass {
    int n;
    sort_digit digit;
    const uint32_t *keys, *values;
    uint32_t *sorted_keys, *sorted_values;
    const uint32_t *totals;
    uint32_t *n_taken, *published;
} sort_pass;

typedef struct sort_shared {
    uint2 pairs[RADIX_TILE];
    uint32_t counts[RADIX_WARPS][RADIX_DIGITS];
    uint32_t place[RADIX_DIGITS]; /* where a digit begins in the output, less where in the tile */
    unsigned long long sums[RADIX_WARPS];
    int tile;
} sort_shared;

/* The passes share the bits evenly: short digits give long runs in the output. */
__host__ __device__ static inline sort_digit sort_digit_of(int pass, int n_passes, int bits) {
    int each = (bits + n_passes - 1) / n_passes, shift = pass * each;
    return {shift, (1u << min(each, bits - shift)) - 1};
}

__device__ static inline uint32_t sort_cut(uint32_t key, sort_digit digit) {
    return key >> digit.shift & digit.mask;
}

/* The place in the tile of item j of a thread that has ITEMS: a warp's items are neighbours, in the
 * order in which sort_tile goes over them. */
template <int ITEMS> __device__ static inline int sort_item(int j) {
    int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
    return (warp * ITEMS + j) * WARP + lane;
}

/* The sum of x over the threads of the block before this one. */
__device__ static inline unsigned long long sort_prefix(unsigned long long x, sort_shared *s) {
    int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
    unsigned long long sum = x;
#pragma unroll
    for (int step = 1; step < WARP; step *= 2) {
        unsigned long long left = __shfl_up_sync(RADIX_ALL_LANES, sum, step);
        if (lane >= step) sum += left;
    }
    if (lane == WARP - 1) s->sums[warp] = sum;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < RADIX_WARPS; w++)
        if (w < warp) sum += s->sums[w];
    return sum - x;
}

/* Counts the digits of the tile by warp; thread d gets the number of digit d in the tile, and
 * counts[w][d] becomes the number of it in the warps before w. */
template <int ITEMS>
__device__ static inline uint32_t sort_count(const uint32_t (&key)[ITEMS], sort_digit digit,
                                             sort_shared *s) {
    uint32_t *mine = s->counts[threadIdx.x / WARP], sum = 0;
#pragma unroll
    for (int i = 0; i < RADIX_DIGITS / WARP; i++)
        mine[i * WARP + threadIdx.x % WARP] = 0;
    __syncwarp();
#pragma unroll
    for (int j = 0; j < ITEMS; j++)
        atomicAdd(&mine[sort_cut(key[j], digit)], 1u);
    __syncthreads();
#pragma unroll
    for (int w = 0; w < RADIX_WARPS; w++) {
        uint32_t count = s->counts[w][threadIdx.x];
        s->counts[w][threadIdx.x] = sum;
        sum += count;
    }
    return sum;
}

/* Writes the pairs to shared memory in the order of their digits; thread d gives `begin`, where
 * digit d begins in the tile.  A warp goes over its items in order, and counts[warp][d] is where
 * its next pair of digit d goes. */
template <int ITEMS>
__device__ static inline void sort_tile(const uint32_t (&key)[ITEMS],
                                        const uint32_t (&value)[ITEMS], uint32_t begin,
                                        sort_digit digit, sort_shared *s) {
    uint32_t *next = s->counts[threadIdx.x / WARP];
    unsigned lane = threadIdx.x % WARP, before = (1u << lane) - 1;
#pragma unroll
    for (int w = 0; w < RADIX_WARPS; w++)
        s->counts[w][threadIdx.x] += begin;
    __syncthreads();
#pragma unroll
    for (int j = 0; j < ITEMS; j++) {
        uint32_t mine = sort_cut(key[j], digit), peers = RADIX_ALL_LANES;
#pragma unroll
        for (int b = 0; b < RADIX_BITS; b++) {
            bool bit = mine >> b & 1;
            unsigned those = __ballot_sync(RADIX_ALL_LANES, bit);
            peers &= bit ? those : ~those;
        }
        uint32_t first = next[mine], rank = (uint32_t)__popc(peers & before);
        __syncwarp();
        if (rank == 0) next[mine] = first + (uint32_t)__popc(peers);
        __syncwarp();
        s->pairs[first + rank] = make_uint2(key[j], value[j]);
    }
}

/* The number of digit `threadIdx.x` in the tiles before `tile`, which has `count` of it itself. */
__device__ static inline uint32_t sort_look_back(uint32_t *published, int tile, uint32_t count) {
    uint32_t *mine = published + (int64_t)tile * RADIX_DIGITS + threadIdx.x, sum = 0;
    const volatile uint32_t *left = mine;
    for (bool is_all = tile == 0; !is_all;) {
        left -= RADIX_DIGITS;
        uint32_t x;
        do
            x = *left;
        while (x == 0);
        sum += x & RADIX_COUNT;
        is_all = (x & RADIX_OF_ALL) != 0;
    }
    *(volatile uint32_t *)mine = RADIX_OF_ALL | (sum + count);
    return sum;
}

/* Pairs beyond the end have the largest key.  They are the last of the last tile and stay it, so
 * they are sorted with the others and not written. */
template <int ITEMS>
__device__ static inline void sort_load(uint32_t (&x)[ITEMS], const uint32_t *from, int n,
                                        uint32_t other) {
#pragma unroll
    for (int j = 0; j < ITEMS; j++)
        x[j] = sort_item<ITEMS>(j) < n ? from[sort_item<ITEMS>(j)] : other;
}

static __global__ void __launch_bounds__(RADIX_THREADS) sort_pass_any_kernel(const sort_pass p) {
    __shared__ sort_shared s;
    uint32_t key[RADIX_ITEMS], value[RADIX_ITEMS];
    if (threadIdx.x == 0) s.tile = (int)atomicAdd(p.n_taken, 1u);
    __syncthreads();
    int tile = s.tile, first = tile * RADIX_TILE, n = min(p.n - first, RADIX_TILE);
    sort_load(key, p.keys + first, n, ~0u);
    sort_load(value, p.values + first, n, 0);
    uint32_t count = sort_count(key, p.digit, &s);
    uint32_t *mine = p.published + (int64_t)tile * RADIX_DIGITS + threadIdx.x;
    if (tile > 0) *(volatile uint32_t *)mine = RADIX_OF_TILE | count;
    /* Two sums at once: of all tiles above, of this tile below. */
    unsigned long long begins =
        sort_prefix((unsigned long long)p.totals[threadIdx.x] << 32 | count, &s);
    uint32_t begin = (uint32_t)begins;
    sort_tile(key, value, begin, p.digit, &s);
    s.place[threadIdx.x] =
        (uint32_t)(begins >> 32) + sort_look_back(p.published, tile, count) - begin;
    __syncthreads();
#pragma unroll
    for (int j = 0; j < RADIX_ITEMS; j++) {
        int i = j * RADIX_THREADS + (int)threadIdx.x;
        if (i >= n) break;
        uint2 pair = s.pairs[i];
        uint32_t to = s.place[sort_cut(pair.x, p.digit)] + (uint32_t)i;
        p.sorted_keys[to] = pair.x;
        p.sorted_values[to] = pair.y;
    }
}

/* All passes over one tile of at most ITEMS pairs a thread. */
template <int ITEMS>
static __global__ void __launch_bounds__(RADIX_THREADS)
    sort_one_tile_any_kernel(const sort_pass p, int n_passes, int bits) {
    __shared__ sort_shared s;
    uint32_t key[ITEMS], value[ITEMS];
    sort_load(key, p.keys, p.n, ~0u);
    sort_load(value, p.values, p.n, 0);
    for (int pass = 0; pass < n_passes; pass++) {
        sort_digit digit = sort_digit_of(pass, n_passes, bits);
        uint32_t count = sort_count(key, digit, &s);
        sort_tile(key, value, (uint32_t)sort_prefix(count, &s), digit, &s);
        __syncthreads();
#pragma unroll
        for (int j = 0; j < ITEMS; j++) {
            key[j] = s.pairs[sort_item<ITEMS>(j)].x;
            value[j] = s.pairs[sort_item<ITEMS>(j)].y;
        }
        __syncthreads();
    }
#pragma unroll
    for (int j = 0; j < ITEMS; j++) {
        if (sort_item<ITEMS>(j) >= p.n) break;
        p.sorted_keys[sort_item<ITEMS>(j)] = key[j];
        p.sorted_values[sort_item<ITEMS>(j)] = value[j];
    }
}

/* The digits of all passes, counted in shared memory by each block over its share of the keys. */
static __global__ void __launch_bounds__(RADIX_THREADS)
    sort_totals_any_kernel(const sort_pass p, int n_passes, int bits, uint32_t *totals) {
    __shared__ uint32_t counts[RADIX_PASSES][RADIX_DIGITS];
    for (int pass = 0; pass < n_passes; pass++)
        counts[pass][threadIdx.x] = 0;
    __syncthreads();
    for (int64_t first = (int64_t)blockIdx.x * RADIX_TILE; first < p.n;
         first += (int64_t)gridDim.x * RADIX_TILE) {
        uint32_t key[RADIX_ITEMS];
        int n = (int)min(p.n - first, (int64_t)RADIX_TILE);
        sort_load(key, p.keys + first, n, 0);
        for (int pass = 0; pass < n_passes; pass++) {
            sort_digit digit = sort_digit_of(pass, n_passes, bits);
#pragma unroll
            for (int j = 0; j < RADIX_ITEMS; j++)
                if (sort_item<RADIX_ITEMS>(j) < n)
                    atomicAdd(&counts[pass][sort_cut(key[j], digit)], 1u);
        }
    }
    __syncthreads();
    for (int pass = 0; pass < n_passes; pass++)
        if (counts[pass][threadIdx.x] > 0)
            atomicAdd(&totals[pass * RADIX_DIGITS + (int)threadIdx.x], counts[pass][threadIdx.x]);
}

static size_t make_sort_room(sort_room *room, void *memory, int n, int n_passes) {
    size_t n_tiles = (size_t)cuda_div_up(n, RADIX_TILE);
    size_t n_words = (size_t)(n_passes * RADIX_DIGITS) * (n_tiles + 1) + RADIX_PASSES;
    size_t zeros_bytes = cuda_align(n_words * sizeof(uint32_t));
    size_t pairs_bytes = cuda_align((size_t)n * sizeof(uint32_t));
    room->n_taken = (uint32_t *)memory;
    room->totals = room->n_taken + RADIX_PASSES;
    room->published = room->totals + n_passes * RADIX_DIGITS;
    room->keys = (uint32_t *)((char *)memory + zeros_bytes);
    room->values = (uint32_t *)((char *)room->keys + pairs_bytes);
    return zeros_bytes + 2 * pairs_bytes;
}

/* The passes write to the scratch memory and to the output in turn, and the last one to the
 * output. */
static status run_passes(backend *be, const sort_room *room, sort_pass p, int n_passes, int bits) {
    uint32_t *keys = p.sorted_keys, *values = p.sorted_values;
    size_t n_tiles = (size_t)cuda_div_up(p.n, RADIX_TILE);
    for (int pass = 0; pass < n_passes; pass++) {
        bool is_out = (n_passes - pass) % 2 == 1;
        p.digit = sort_digit_of(pass, n_passes, bits);
        p.sorted_keys = is_out ? keys : room->keys;
        p.sorted_values = is_out ? values : room->values;
        p.totals = room->totals + pass * RADIX_DIGITS;
        p.n_taken = room->n_taken + pass;
        p.published = room->published + (size_t)pass * n_tiles * RADIX_DIGITS;
        sort_pass_any_kernel<<<(unsigned)n_tiles, RADIX_THREADS, 0, cuda_of(be)->stream>>>(p);
        p.keys = p.sorted_keys;
        p.values = p.sorted_values;
    }
    return cuda_launched("a pass of the sort");
}

status cuda_sort_pairs(backend *be, void *room, size_t *room_bytes, const uint32_t *keys,
                       uint32_t *sorted_keys, const uint32_t *values, uint32_t *sorted_values,
                       int n, int bits) {
    cudaStream_t stream = cuda_of(be)->stream;
    int n_passes = (int)cuda_div_up(bits, RADIX_BITS);
    sort_room cut;
    size_t bytes = make_sort_room(&cut, room, n, n_passes);
    if (n >= (int)RADIX_COUNT)
        return fail(ERR_UNSUPPORTED,
                    "a sort of %d ids; a GPU sorts at most %u; use smaller batches", n,
                    RADIX_COUNT - 1);
    if (room == NULL) {
        *room_bytes = bytes;
        return OK;
    }
    sort_pass p = {};
    p.n = n;
    p.keys = keys;
    p.values = values;
    p.sorted_keys = sorted_keys;
    p.sorted_values = sorted_values;
    if (n <= RADIX_TILE) {
        auto kernel = n <= RADIX_FEW * RADIX_THREADS ? sort_one_tile_any_kernel<RADIX_FEW>
                                                     : sort_one_tile_any_kernel<RADIX_ITEMS>;
        return cuda_launch(be, "the sort of one tile", kernel, 1, RADIX_THREADS, 0, p, n_passes,
                           bits);
    }
    int64_t n_tiles = cuda_div_up(n, RADIX_TILE), most = 4 * cuda_of(be)->n_multiprocessors;
    CUDA_TRY(cudaMemsetAsync(room, 0, (size_t)((char *)cut.keys - (char *)room), stream));
    TRY(cuda_launch(be, "the counts of the sort", sort_totals_any_kernel,
                    n_tiles < most ? n_tiles : most, RADIX_THREADS, 0, p, n_passes, bits,
                    cut.totals));
    return run_passes(be, &cut, p, n_passes, bits);
}
