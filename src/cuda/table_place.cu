/* place of a level (ops/table.h): find or insert, evicting where a bucket is full.
 *
 * What a bucket takes depends on all of its keys in the call, in whatever order they come.  So keys
 * are grouped by bucket, and a team of 8 lanes owns a group.  No sort is needed for that:
 *   locate   a warp finds 32 keys and touches what is there; each key takes a number within its
 *            group, from an atomic counter (the numbers decide nothing but where it waits);
 *   begin    groups that have a new key get a stretch of `waiting`, the list of keys by group;
 *   enlist   keys of such groups go there, found ones too: they are not to be evicted;
 *   settle   a team takes the new keys of its group in the order of the contract, one at a time;
 *   collect  evicted entries and rejected keys, noted by key, are moved close together.
 * A group is a bucket, or several neighbours where a table has more buckets than the call has keys.
 * The limit of locate is bytes, that of settle the latency of its chain (keys, digests, scores, the
 * keys of equal scores): hence teams of 8 and not warps, four buckets at a time in each warp. */
#include "cuda/table.cuh"

enum { TEAM = 8, TEAM_SLOTS = TABLE_SLOTS / TEAM };

/* What became of a key. */
enum { KEY_FOUND, KEY_NEW, KEY_NEW_EVICTS, KEY_REJECTED };

/* Memory of one call. */
typedef struct place_room {
    int64_t n_groups;
    unsigned long long *counters;  /* (n_groups): keys in the low word, new ones in the high one */
    unsigned long long *total;     /* (1): entries of waiting; in the high word, groups with any */
    uint32_t *begin;               /* (n_groups): of the group in waiting */
    uint2 *spans;                  /* (n): begin and length of each group with a new key */
    uint32_t *number;              /* (n): of a key within its group */
    uint32_t *waiting;             /* (n): keys by group */
    uint8_t *became;               /* (n) */
    uint64_t *old_key, *old_score; /* (n) each: of the entry that left for this key */
    uint32_t *old_stamp;           /* (n) */
} place_room;

/* Never splits a bucket: it grows with the bucket. */
__device__ static inline int64_t group_of(const place_room &room, const table_level &l,
                                          int64_t bucket) {
    if (room.n_groups == l.n_buckets) return bucket;
    return bucket * room.n_groups / l.n_buckets;
}

/* ---- locate, begin, enlist ------------------------------------------------------------------- */

static __global__ void __launch_bounds__(TABLE_THREADS)
    locate_kernel(const table_level l, const table_place_args a, const place_room room) {
    int64_t n = table_count(a.n, a.n_real), i = warp_first() + warp_lane();
    if (warp_first() >= n) return;
    found_key f = find_key(l, a.keys, i, n);
    if (i >= n) return;
    bool is_there = f.place >= 0;
    if (is_there && a.rule != SCORE_KEEP) {
        uint64_t *score = table_scores(&l, f.bucket) + f.place;
        uint64_t w = a.scores != NULL ? a.scores[i] : a.score;
        *score = table_touched(a.rule, a.rule == SCORE_SET ? 0 : *score, w);
    }
    unsigned long long one = is_there ? 1 : 1 + (1ull << 32);
    room.number[i] = (uint32_t)atomicAdd(&room.counters[group_of(room, l, f.bucket)], one);
    room.became[i] = is_there ? KEY_FOUND : KEY_REJECTED;
    a.slot[i] = is_there ? f.bucket * TABLE_SLOTS + f.place : -1;
}

/* The sum over the grid's threads so far, in the order in which blocks come: what is counted gets
 * a place of its own, in no particular order. */
__device__ static inline unsigned long long grid_places(unsigned long long mine,
                                                        unsigned long long *total) {
    __shared__ unsigned long long base;
    unsigned long long all, before = block_prefix(mine, &all);
    if (threadIdx.x == 0) base = all != 0 ? atomicAdd(total, all) : 0;
    __syncthreads();
    unsigned long long at = base + before;
    __syncthreads();
    return at;
}

static __global__ void __launch_bounds__(SCAN_THREADS) begin_kernel(const place_room room) {
    int64_t g = (int64_t)blockIdx.x * SCAN_THREADS + threadIdx.x;
    unsigned long long counter = g < room.n_groups ? room.counters[g] : 0;
    bool is_active = counter >> 32 != 0;
    uint32_t n_keys = (uint32_t)counter;
    unsigned long long at = grid_places(is_active ? (1ull << 32) + n_keys : 0, room.total);
    if (!is_active) return;
    room.begin[g] = (uint32_t)at;
    room.spans[at >> 32] = make_uint2((uint32_t)at, n_keys);
}

static __global__ void __launch_bounds__(TABLE_THREADS)
    enlist_kernel(const table_level l, const table_place_args a, const place_room room) {
    int64_t i = (int64_t)blockIdx.x * TABLE_THREADS + threadIdx.x;
    if (i >= table_count(a.n, a.n_real)) return;
    int64_t group = group_of(room, l, table_bucket(table_hash(a.keys[i]), l.n_buckets));
    if (room.counters[group] >> 32 != 0)
        room.waiting[room.begin[group] + room.number[i]] = (uint32_t)i;
}

/* ---- settle ---------------------------------------------------------------------------------- */

/* A new key that waits: bucket, the complement of its score, and its hash are its turn. */
typedef struct new_key {
    uint32_t bucket, index;
    unsigned long long order, hash;
} new_key;

#define NO_BUCKET 0xffffffffu

__device__ static inline bool is_before(const new_key &x, const new_key &y) {
    if (x.bucket != y.bucket) return x.bucket < y.bucket;
    return x.order != y.order ? x.order < y.order : x.hash < y.hash;
}

/* A key of the team's group, new or found. */
__device__ static inline new_key waiting_key(const table_level &l, const table_place_args &a,
                                             const place_room &room, uint32_t at, int64_t *slot) {
    new_key k;
    k.index = room.waiting[at];
    k.hash = table_hash(a.keys[k.index]);
    k.bucket = (uint32_t)table_bucket(k.hash, l.n_buckets);
    k.order = ~(a.scores != NULL ? a.scores[k.index] : a.score);
    *slot = a.slot[k.index];
    return k;
}

/* The lane's part of a bucket. */
typedef struct bucket_part {
    uint32_t bucket; /* NO_BUCKET: none yet */
    uint32_t empty;  /* bit s: slot TEAM_SLOTS part + s */
    uint32_t kept;   /* touched by this call, or placed by it */
    bool is_closed;  /* the rest is rejected */
} bucket_part;

/* One lane's entries of its group: the first is in registers, the others are read again. */
typedef struct team_keys {
    uint2 span;
    new_key first;
    int64_t first_slot;
} team_keys;

__device__ static inline new_key key_at(const table_level &l, const table_place_args &a,
                                        const place_room &room, const team_keys &keys, uint32_t e,
                                        int64_t *slot) {
    if (e < TEAM) {
        *slot = keys.first_slot;
        return keys.first;
    }
    return waiting_key(l, a, room, keys.span.x + e, slot);
}

/* The first new key of the team behind `last`; its bucket is NO_BUCKET where there is none. */
__device__ static inline new_key next_key(const table_level &l, const table_place_args &a,
                                          const place_room &room, const team_keys &keys,
                                          const new_key &last, bool is_start) {
    new_key best = {NO_BUCKET, 0, 0, 0};
    for (uint32_t e = (uint32_t)warp_lane() % TEAM; e < keys.span.y; e += TEAM) {
        int64_t slot;
        new_key k = key_at(l, a, room, keys, e, &slot);
        if (slot < 0 && (is_start || is_before(last, k)) && is_before(k, best)) best = k;
    }
    __syncwarp();
#pragma unroll
    for (int step = TEAM / 2; step > 0; step /= 2) {
        new_key other;
        other.bucket = __shfl_xor_sync(ALL_LANES, best.bucket, step);
        other.index = __shfl_xor_sync(ALL_LANES, best.index, step);
        other.order = __shfl_xor_sync(ALL_LANES, best.order, step);
        other.hash = __shfl_xor_sync(ALL_LANES, best.hash, step);
        if (is_before(other, best)) best = other;
    }
    return best;
}

/* The team comes to a bucket: which slots are empty, and which the call touched. */
__device__ static inline void open_bucket(const table_level &l, const table_place_args &a,
                                          const place_room &room, const team_keys &keys,
                                          uint32_t bucket, bucket_part *b) {
    uint32_t part = (uint32_t)warp_lane() % TEAM;
    bool is_other = bucket != NO_BUCKET && bucket != b->bucket;
    unsigned long long touched = 0;
    if (is_other) {
        uint2 digests = __ldcg((const uint2 *)table_digests(&l, bucket) + part);
        b->bucket = bucket;
        b->empty = equal_bytes(digests.x, 0) | equal_bytes(digests.y, 0) << 4;
        b->is_closed = false;
        for (uint32_t e = part; e < keys.span.y; e += TEAM) {
            int64_t slot;
            new_key k = key_at(l, a, room, keys, e, &slot);
            if (k.bucket == bucket && slot >= 0) touched |= 1ull << slot % TABLE_SLOTS;
        }
    }
    __syncwarp();
#pragma unroll
    for (int step = TEAM / 2; step > 0; step /= 2)
        touched |= __shfl_xor_sync(ALL_LANES, touched, step);
    if (is_other) b->kept = (uint32_t)(touched >> TEAM_SLOTS * part) & 0xff;
}

/* An entry that may have to leave. */
typedef struct old_entry {
    unsigned long long score, key;
    int place; /* TABLE_SLOTS: there is none */
} old_entry;

/* The smallest score among those the lane may take, and the slots that have it. */
__device__ static inline uint32_t smallest_scores(const unsigned long long *scores, uint32_t free,
                                                  unsigned long long *smallest) {
    ulonglong2 pair[TEAM_SLOTS / 2];
    uint32_t equal = 0;
#pragma unroll
    for (int s = 0; s < TEAM_SLOTS / 2; s++)
        pair[s] = __ldcg((const ulonglong2 *)scores + s);
#pragma unroll
    for (int s = 0; s < TEAM_SLOTS; s++) {
        unsigned long long score = s % 2 == 0 ? pair[s / 2].x : pair[s / 2].y;
        if ((free >> s & 1) == 0) continue;
        if (equal == 0 || score < *smallest) {
            *smallest = score;
            equal = 0;
        }
        if (score == *smallest) equal |= 1u << s;
    }
    return equal;
}

/* The entry of the team's bucket that leaves first, by (score, key).  All lanes come here; only
 * teams that ask read. */
__device__ static inline old_entry next_old(const table_level &l, const bucket_part &b, bool asks) {
    int part = warp_lane() % TEAM;
    unsigned long long smallest = ~0ull;
    old_entry old = {~0ull, ~0ull, TABLE_SLOTS};
    uint32_t equal = 0, free = ~(b.empty | b.kept) & 0xff;
    if (asks && free != 0)
        equal = smallest_scores((const unsigned long long *)table_scores(&l, b.bucket) +
                                    TEAM_SLOTS * part,
                                free, &smallest);
    old.score = smallest;
    __syncwarp();
#pragma unroll
    for (int step = TEAM / 2; step > 0; step /= 2)
        old.score = min(old.score, __shfl_xor_sync(ALL_LANES, old.score, step));
    if (smallest != old.score) equal = 0;
    for (; equal != 0; equal &= equal - 1) {
        int place = TEAM_SLOTS * part + __ffs((int)equal) - 1;
        unsigned long long key = table_keys(&l, b.bucket)[place];
        if (old.place == TABLE_SLOTS || key < old.key) {
            old.key = key;
            old.place = place;
        }
    }
    __syncwarp();
#pragma unroll
    for (int step = TEAM / 2; step > 0; step /= 2) {
        unsigned long long key = __shfl_xor_sync(ALL_LANES, old.key, step);
        int place = __shfl_xor_sync(ALL_LANES, old.place, step);
        if (key < old.key || (key == old.key && place < old.place)) {
            old.key = key;
            old.place = place;
        }
    }
    return old;
}

/* The first empty slot of the team's bucket, or -1. */
__device__ static inline int first_empty(const bucket_part &b) {
    unsigned has = __ballot_sync(ALL_LANES, b.empty != 0) >> (warp_lane() & ~(TEAM - 1)) & 0xff;
    int part = has != 0 ? __ffs((int)has) - 1 : 0;
    int place = TEAM_SLOTS * part + __shfl_sync(ALL_LANES, __ffs((int)b.empty) - 1, part, TEAM);
    return has != 0 ? place : -1;
}

/* The new entry; one lane of the team. */
__device__ static inline void write_entry(const table_level &l, const table_place_args &a,
                                          const place_room &room, const new_key &k,
                                          const old_entry &old, int place) {
    bool evicts = old.place < TABLE_SLOTS;
    if (evicts) {
        room.old_key[k.index] = old.key;
        room.old_score[k.index] = old.score;
        room.old_stamp[k.index] = table_stamps(&l, k.bucket)[place];
    }
    table_digests(&l, k.bucket)[place] = table_digest(k.hash);
    table_keys(&l, k.bucket)[place] = table_unhash(k.hash);
    table_scores(&l, k.bucket)[place] = ~k.order;
    table_stamps(&l, k.bucket)[place] = a.stamps != NULL ? a.stamps[k.index] : a.stamp;
    room.became[k.index] = evicts ? KEY_NEW_EVICTS : KEY_NEW;
    a.slot[k.index] = (int64_t)k.bucket * TABLE_SLOTS + place;
}

/* One new key of each team gets its place, or none. */
__device__ static inline void settle_key(const table_level &l, const table_place_args &a,
                                         const place_room &room, const new_key &k, bucket_part *b) {
    bool is_on = k.bucket != NO_BUCKET && !b->is_closed;
    int place = first_empty(*b);
    bool asks = is_on && place < 0 && a.evict != EVICT_NEVER;
    old_entry old = {0, 0, TABLE_SLOTS};
    if (__any_sync(ALL_LANES, asks)) {
        old_entry found = next_old(l, *b, asks);
        if (asks) old = found;
    }
    if (a.evict == EVICT_LOWER && old.score > ~k.order) old.place = TABLE_SLOTS;
    if (is_on && place < 0) {
        if (old.place < TABLE_SLOTS)
            place = old.place;
        else
            b->is_closed = true;
    }
    if (!is_on || b->is_closed) return;
    int part = warp_lane() % TEAM;
    if (place / TEAM_SLOTS == part) {
        b->empty &= ~(1u << place % TEAM_SLOTS);
        b->kept |= 1u << place % TEAM_SLOTS;
    }
    if (part == 0) write_entry(l, a, room, k, old, place);
}

static __global__ void __launch_bounds__(TABLE_THREADS)
    settle_kernel(const table_level l, const table_place_args a, const place_room room) {
    uint32_t n_spans = (uint32_t)(*room.total >> 32);
    uint32_t part = (uint32_t)warp_lane() % TEAM;
    uint32_t first = (blockIdx.x * TABLE_THREADS + threadIdx.x) / 32 * (32 / TEAM);
    for (; first < n_spans; first += gridDim.x * (TABLE_THREADS / TEAM)) {
        team_keys keys = {};
        uint32_t t = first + (uint32_t)warp_lane() / TEAM;
        if (t < n_spans) keys.span = room.spans[t];
        if (part < keys.span.y)
            keys.first = waiting_key(l, a, room, keys.span.x + part, &keys.first_slot);
        bucket_part b = {NO_BUCKET, 0, 0, false};
        new_key k = next_key(l, a, room, keys, keys.first, true);
        while (__any_sync(ALL_LANES, k.bucket != NO_BUCKET)) {
            open_bucket(l, a, room, keys, k.bucket, &b);
            settle_key(l, a, room, k, &b);
            new_key last = k;
            k = next_key(l, a, room, keys, last, false);
        }
    }
}

/* ---- collect --------------------------------------------------------------------------------- */

static __global__ void __launch_bounds__(SCAN_THREADS)
    collect_kernel(const table_place_args a, const place_room room) {
    int64_t i = (int64_t)blockIdx.x * SCAN_THREADS + threadIdx.x;
    unsigned long long *counts = (unsigned long long *)a.counts;
    int became = i < table_count(a.n, a.n_real) ? room.became[i] : -1;
    bool evicts = became == KEY_NEW_EVICTS, is_new = became == KEY_NEW || evicts;
    if (became >= 0) a.is_new[i] = is_new;
    int n_new = __syncthreads_count(is_new);
    if (threadIdx.x == 0 && n_new > 0) atomicAdd(&counts[PLACED_NEW], (unsigned long long)n_new);
    if (__syncthreads_or(evicts)) {
        unsigned long long at = grid_places(evicts, &counts[PLACED_EVICTED]);
        if (evicts) {
            a.evicted.keys[at] = room.old_key[i];
            a.evicted.scores[at] = room.old_score[i];
            a.evicted.stamps[at] = room.old_stamp[i];
            a.evicted.slot[at] = a.slot[i];
        }
    }
    if (__syncthreads_or(became == KEY_REJECTED)) {
        unsigned long long at = grid_places(became == KEY_REJECTED, &counts[PLACED_REJECTED]);
        if (became == KEY_REJECTED && a.rejected != NULL) a.rejected[at] = a.keys[i];
    }
}

/* ---- launcher -------------------------------------------------------------------------------- */

/* The counters come first, and the total behind them: one stretch to clear. */
static size_t make_room(place_room *room, char *memory, int64_t n, int64_t n_groups) {
    char *at = memory;
    size_t keys = (size_t)n;
    room->n_groups = n_groups;
    room->counters =
        (unsigned long long *)cut_room(&at, ((size_t)n_groups + 1) * sizeof *room->counters);
    room->total = room->counters + n_groups;
    room->begin = (uint32_t *)cut_room(&at, (size_t)n_groups * sizeof *room->begin);
    room->spans = (uint2 *)cut_room(&at, keys * sizeof *room->spans);
    room->number = (uint32_t *)cut_room(&at, keys * sizeof *room->number);
    room->waiting = (uint32_t *)cut_room(&at, keys * sizeof *room->waiting);
    room->became = (uint8_t *)cut_room(&at, keys);
    room->old_key = (uint64_t *)cut_room(&at, keys * sizeof *room->old_key);
    room->old_score = (uint64_t *)cut_room(&at, keys * sizeof *room->old_score);
    room->old_stamp = (uint32_t *)cut_room(&at, keys * sizeof *room->old_stamp);
    return (size_t)(at - memory);
}

status cuda_table_place(backend *be, const table_level *l, const table_place_args *a) {
    cudaStream_t stream = cuda_of(be)->stream;
    place_room room;
    void *memory;
    CUDA_TRY(cudaMemsetAsync(a->counts, 0, PLACED_COUNTS * sizeof *a->counts, stream));
    if (a->n == 0) return OK;
    if (l->n_buckets >= NO_BUCKET)
        return fail(ERR_UNSUPPORTED,
                    "a table of %lld buckets is too large for a GPU; make its capacity smaller",
                    (long long)l->n_buckets);
    int64_t n_groups = l->n_buckets < a->n ? l->n_buckets : a->n;
    TRY(cuda_scratch(be, make_room(&room, NULL, a->n, n_groups), &memory));
    make_room(&room, (char *)memory, a->n, n_groups);
    CUDA_TRY(
        cudaMemsetAsync(room.counters, 0, ((size_t)n_groups + 1) * sizeof *room.counters, stream));
    unsigned n_blocks = table_blocks(a->n);
    unsigned n_settle = (unsigned)cuda_of(be)->n_multiprocessors * 8;
    locate_kernel<<<n_blocks, TABLE_THREADS, 0, stream>>>(*l, *a, room);
    TRY(cuda_launched("the search of place"));
    begin_kernel<<<(unsigned)cuda_div_up(n_groups, SCAN_THREADS), SCAN_THREADS, 0, stream>>>(room);
    enlist_kernel<<<n_blocks, TABLE_THREADS, 0, stream>>>(*l, *a, room);
    TRY(cuda_launched("the groups of place"));
    settle_kernel<<<n_settle, TABLE_THREADS, 0, stream>>>(*l, *a, room);
    TRY(cuda_launched("the new keys of place"));
    collect_kernel<<<(unsigned)cuda_div_up(a->n, SCAN_THREADS), SCAN_THREADS, 0, stream>>>(*a,
                                                                                           room);
    return cuda_launched("the lists of place");
}
