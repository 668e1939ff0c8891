/* What the files of dynamic tables share (contract: ops/table.h): the probe of 32 keys by a warp,
 * and how a warp moves 32 embedding rows.
 *
 * A warp owns 32 keys (or slots), lane j the j-th.  Bound by random access, so the number of
 * requests in flight matters: a probe loads the digests of all 32 keys before it compares any, 4
 * lanes for each line of 64 bytes, and then the keys whose digest matched; rows are moved 16 bytes
 * a lane, ROWS_AT_ONCE loads in flight before the first result is used. */
#pragma once

#include "cuda/core/kernel.cuh"
#include "ops/table.h"

enum {
    TABLE_THREADS = 256, /* of a block: 8 warps */
    TABLE_WARPS = TABLE_THREADS / 32,
    PROBE_LANES = 4,  /* read a line of digests, 16 each */
    PROBE_ROUNDS = 4, /* until 32 keys are looked for */
    ROWS_AT_ONCE = 8,
    SCAN_THREADS = 1024 /* of a block that adds up */
};

#define ALL_LANES 0xffffffffu

/* How many of a call's n there are. */
__device__ static inline int64_t table_count(int64_t n, const int64_t *n_real) {
    return n_real == NULL ? n : max((int64_t)0, min(n, *n_real));
}

__device__ static inline int warp_lane() {
    return (int)(threadIdx.x % 32);
}

/* The first of the 32 keys of this warp. */
__device__ static inline int64_t warp_first() {
    return ((int64_t)blockIdx.x * TABLE_WARPS + threadIdx.x / 32) * 32;
}

static inline unsigned table_blocks(int64_t n) {
    return (unsigned)cuda_div_up(n, TABLE_THREADS);
}

/* Every verb `name` is cuda_table_name. */
#define TABLE_OP(result, name, parameters, test) result cuda_table_##name parameters;
#include "ops/table_ops.def"

/* The exclusive prefix sum over the threads of a block; `all` is the sum over all of them. */
__device__ static inline unsigned long long block_prefix(unsigned long long mine,
                                                         unsigned long long *all) {
    __shared__ unsigned long long sums[SCAN_THREADS / 32];
    int lane = warp_lane(), warp = (int)threadIdx.x / 32;
    unsigned long long sum = mine;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        unsigned long long left = __shfl_up_sync(ALL_LANES, sum, step);
        if (lane >= step) sum += left;
    }
    if (lane == 31) sums[warp] = sum;
    __syncthreads();
    unsigned long long before = 0;
    *all = 0;
#pragma unroll
    for (int w = 0; w < SCAN_THREADS / 32; w++) {
        if (w < warp) before += sums[w];
        *all += sums[w];
    }
    __syncthreads(); /* sums may be used again */
    return before + sum - mine;
}

/* Replaces each count by the sum of the counts before it, and sets *total to the sum of all
 * (table.cu). */
status cuda_table_sum(backend *be, int64_t n, unsigned long long *counts, int64_t *total);

/* Exchange buffer of the lanes of a warp; one for each warp of a block, in shared memory. */
typedef struct probe_room {
    const unsigned char *bucket[32];
    uint16_t match[32][PROBE_LANES]; /* equal_digests of each part of the key's line */
} probe_room;

/* 0x80 in each byte of `word` that equals the byte of `digests`, and only there: an erased slot may
 * still hold the key that is searched for. */
__device__ static inline uint32_t equal_bytes(uint32_t word, uint32_t digests) {
    uint32_t x = word ^ digests;
    return ~(((x & 0x7f7f7f7fu) + 0x7f7f7f7fu) | x | 0x7f7f7f7fu);
}

/* Bit 4 b + w: byte b of word w, of 16 words, equals `digest`. */
__device__ static inline uint32_t equal_digests(uint4 line, uint32_t digest) {
    uint32_t digests = digest * 0x01010101u;
    uint32_t x = equal_bytes(line.x, digests) >> 7 | equal_bytes(line.y, digests) >> 6 |
                 equal_bytes(line.z, digests) >> 5 | equal_bytes(line.w, digests) >> 4;
    return __byte_perm(x | x >> 4, 0, 0x4420);
}

/* The slot in the bucket for bit `bit` of a mask of matches (see the order of bits above). */
__device__ static inline int place_of_bit(int bit) {
    return (bit & ~15) | (bit & 3) << 2 | (bit >> 2 & 3);
}

/* Which of the places whose bits are set has the key, or -1; compares two at a time. */
__device__ static inline int find_among(const table_entry *entries, unsigned long long bits,
                                        uint64_t key) {
    while (bits != 0) {
        unsigned long long rest = bits & (bits - 1);
        int one = place_of_bit(__ffsll((long long)bits) - 1);
        int two = rest != 0 ? place_of_bit(__ffsll((long long)rest) - 1) : one;
        uint64_t first = __ldcg((const unsigned long long *)&entries[one].key);
        uint64_t second = __ldcg((const unsigned long long *)&entries[two].key);
        if (first == key) return one;
        if (second == key) return two;
        bits = rest & (rest - 1);
    }
    return -1;
}

/* The place of the lane's key in its bucket, or -1.  All lanes must call this; a lane without a
 * key passes any valid bucket. */
__device__ static inline int probe(probe_room *room, const unsigned char *bucket, uint64_t key,
                                   uint32_t digest) {
    int lane = warp_lane(), part = lane % PROBE_LANES, team = lane / PROBE_LANES;
    uint4 line[PROBE_ROUNDS];
    room->bucket[lane] = bucket;
    __syncwarp();
#pragma unroll
    for (int r = 0; r < PROBE_ROUNDS; r++)
        line[r] = __ldcg((const uint4 *)room->bucket[8 * r + team] + part);
#pragma unroll
    for (int r = 0; r < PROBE_ROUNDS; r++) {
        uint32_t its_digest = __shfl_sync(ALL_LANES, digest, 8 * r + team);
        room->match[8 * r + team][part] = (uint16_t)equal_digests(line[r], its_digest);
    }
    __syncwarp();
    unsigned long long bits = *(const unsigned long long *)room->match[lane];
    int place = find_among((const table_entry *)(bucket + TABLE_ENTRIES_AT), bits, key);
    __syncwarp(); /* the room may be used again */
    return place;
}

/* Where a lane's key is: the place in its bucket, or -1. */
typedef struct found_key {
    int64_t bucket;
    int place;
} found_key;

/* All lanes must call this; lanes after the last key probe for the last key again and report
 * nothing. */
__device__ static inline found_key find_key(const table_level &l, const uint64_t *keys, int64_t i,
                                            int64_t n) {
    __shared__ probe_room rooms[TABLE_WARPS];
    uint64_t key = __ldcs(keys + min(i, n - 1));
    uint64_t h = table_hash(key);
    found_key f;
    f.bucket = table_bucket(h, l.n_buckets);
    f.place = probe(&rooms[threadIdx.x / 32], table_digests(&l, f.bucket), key, table_digest(h));
    if (i >= n) f.place = -1;
    return f;
}

/* Rows are moved in pieces: 4 floats where all addresses allow it, else one. */
template <typename P> struct piece_size;
template <> struct piece_size<float4> {
    enum { NUMBERS = 4 };
};
template <> struct piece_size<float> {
    enum { NUMBERS = 1 };
};

/* Lanes that share a row of n pieces: the smallest power of two that is enough. */
__device__ static inline int row_lanes(int n_pieces) {
    return n_pieces >= 32 ? 32 : n_pieces <= 1 ? 1 : 1 << (32 - __clz(n_pieces - 1));
}

/* An address that each lane holds, of lane j. */
template <typename P> __device__ static inline P *lane_pointer(P *mine, int j) {
    return (P *)__shfl_sync(ALL_LANES, (unsigned long long)mine, j);
}

/* Copies n_pieces from `from` to `to` for each of the warp's 32 rows; `from` NULL: zeros; `to`
 * NULL: the row is skipped, and `from` must be NULL too.  IS_STREAM: the rows are not read again
 * soon, so the stores do not evict other lines from the cache. */
template <bool IS_STREAM, typename P>
__device__ static inline void move_rows(const P *from, P *to, int n_pieces) {
    int n_lanes = row_lanes(n_pieces), lane = warp_lane();
    int first = lane & (n_lanes - 1), mine = lane / n_lanes, n_teams = 32 / n_lanes;
    for (int j = mine; j - mine < 32; j += ROWS_AT_ONCE * n_teams) {
        for (int c = first; c - first < n_pieces; c += n_lanes) {
            P x[ROWS_AT_ONCE] = {};
#pragma unroll
            for (int u = 0; u < ROWS_AT_ONCE; u++) {
                const P *source = lane_pointer(from, (j + u * n_teams) % 32);
                if (source != NULL && c < n_pieces) x[u] = __ldcg(source + c);
            }
#pragma unroll
            for (int u = 0; u < ROWS_AT_ONCE; u++) {
                P *target = lane_pointer(to, (j + u * n_teams) % 32);
                if (target == NULL || c >= n_pieces || j + u * n_teams >= 32) continue;
                if (IS_STREAM)
                    __stcs(target + c, x[u]);
                else
                    __stcg(target + c, x[u]);
            }
        }
    }
}

/* Whether rows that begin `stride` floats apart at p can be moved 16 bytes at a time. */
static inline bool is_packed(const void *p, int64_t stride, int64_t n) {
    return (uintptr_t)p % 16 == 0 && stride % 4 == 0 && n % 4 == 0;
}

/* Initial values of embedding rows, and the pass over the rows of a warp's 32 keys (contract:
 * ops/table.h). Used by init and write, and by place, which includes their work in its own
 * passes. */

/* Columns c .. c + 3 of a new row; uniform values take one draw for all four. */
__device__ static inline float4 first_values(const table_init_args &a, uint64_t key, int c) {
    float x[4];
    if (a.first.kind == FIRST_UNIFORM && c + 4 <= a.dim) {
        rng_block b =
            rng_draw(a.first.key, (uint32_t)key, (uint32_t)(key >> 32), (uint32_t)c / 4, 0);
#pragma unroll
        for (int k = 0; k < 4; k++)
            x[k] = (float)((int32_t)(b.word[k] >> 8) * 2 - 16777216) * a.first.unit;
    } else {
#pragma unroll
        for (int k = 0; k < 4; k++) {
            x[k] = a.first.state;
            if (c + k < a.dim) x[k] = table_first_value(&a.first, key, (uint32_t)(c + k));
        }
    }
    return make_float4(x[0], x[1], x[2], x[3]);
}

/* Writes the new rows of the warp's lanes where `row` is not NULL, and their copies in staging
 * where `to` is not NULL.  Rows begin at multiples of 16 bytes and are padded to one, so all stores
 * are of four floats. */
__device__ static inline void write_first(const table_init_args &a, float *row, float *to,
                                          unsigned long long key) {
    int n_pieces = (int)((a.dim + a.n_state + 3) / 4), n_values = a.dim / 4;
    int n_lanes = row_lanes(n_pieces), lane = warp_lane(), n_teams = 32 / n_lanes;
    unsigned rest = __ballot_sync(ALL_LANES, row != NULL);
    while (rest != 0) { /* each team takes one of the next rows: few rows of a batch are new */
        int j = -1;
        for (int t = 0; t < n_teams && rest != 0; t++, rest &= rest - 1)
            if (t == lane / n_lanes) j = __ffs((int)rest) - 1;
        float4 *its_row = (float4 *)lane_pointer(row, max(j, 0));
        float4 *its_to = (float4 *)lane_pointer(to, max(j, 0));
        uint64_t its_key = __shfl_sync(ALL_LANES, key, max(j, 0));
        for (int c = lane & (n_lanes - 1); j >= 0 && c < n_pieces; c += n_lanes) {
            float4 x = first_values(a, its_key, 4 * c);
            __stcg(its_row + c, x);
            if (its_to != NULL && c < n_values) __stcs(its_to + c, x);
        }
        __syncwarp();
    }
}

/* What a pass over keys does with their rows.  FIRST_AND_READ and ONLY_WRITE need packed staging
 * (is_packed). */
typedef enum { NO_ROWS, FIRST_AND_READ, ONLY_WRITE } row_work;

/* The rows of the warp's keys, one for each lane: `row` where the key has a slot, `to` its row of
 * staging (NULL: the lane has no work).  A row that is not new is read, or zeros where `row` is
 * NULL; a.dim floats are copied. */
template <row_work WORK>
__device__ static inline void work_on_rows(const table_init_args &a, float *row, float *to,
                                           bool is_new, uint64_t key) {
    if (WORK == FIRST_AND_READ) {
        write_first(a, is_new ? row : NULL, is_new ? to : NULL, key);
        move_rows<true>((const float4 *)(is_new ? NULL : row), (float4 *)(is_new ? NULL : to),
                        a.dim / 4);
    }
    if (WORK == ONLY_WRITE)
        move_rows<false>((const float4 *)(row != NULL ? to : NULL), (float4 *)row, a.dim / 4);
}
