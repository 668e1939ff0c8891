/* place of a level (ops/table.h): find or insert, evicting where a bucket is full.
 *
 * What a bucket takes depends on all of its keys in the call, in whatever order they come.  No sort
 * brings them together; each bucket that the call meets has a note:
 *   locate   a warp finds 32 keys and touches what is there, which the note of the bucket keeps;
 *            new keys of a bucket become a chain, and the first that came owns the bucket;
 *   settle   owners give the new keys their places;
 *   collect  evicted entries and rejected keys, kept by key until then, are moved close together.
 * Most owners are alone and have an empty slot: a lane each.  Those who are alone in a full bucket
 * are helped by teams of 8 lanes to find the entry that leaves.  The few with more keys get a team
 * that takes the keys in the order of the contract, one at a time.  The limit is bytes from random
 * places: digests of every key, and the scores of full buckets. */
#include "cuda/table.cuh"

enum { TEAM = 8, TEAM_SLOTS = TABLE_SLOTS / TEAM, TEAMS = 32 / TEAM, OLD_AT_ONCE = 2 };

/* What became of a key.  One that owns its bucket is rejected unless settle says otherwise. */
enum { KEY_FOUND, KEY_NEW, KEY_NEW_EVICTS, KEY_REJECTED, KEY_OWNS };

/* A bucket that keys of the call belong to. */
typedef struct bucket_note {
    uint32_t bucket;            /* + 1; 0: the note is free.  Only where notes are shared out */
    uint32_t newest;            /* + 1: the new key that came last; 0: there is none */
    unsigned long long touched; /* bit p: the call found the key of slot p */
} bucket_note;

/* Memory of one call. */
typedef struct place_room {
    bucket_note *notes;        /* (n_notes) */
    int64_t n_notes;           /* one for each bucket, or shared out by hash: a power of two */
    bool is_shared;            /* the latter */
    unsigned long long *total; /* (1): entries of waiting that are taken */
    uint32_t *next;            /* (n) + 1: the new key of the bucket that came before; 0: none */
    uint32_t *waiting;         /* (n): keys of buckets with many new ones */
    uint8_t *became;           /* (n) */
    uint64_t *old_key, *old_score; /* (n) each: of the entry that left for this key */
    uint32_t *old_stamp;           /* (n) */
} place_room;

/* The note of a bucket, which takes a free one where it has none: there are twice as many as keys.
 */
__device__ static inline bucket_note *note_of(const place_room &room, uint32_t bucket) {
    if (!room.is_shared) return room.notes + bucket;
    for (uint64_t at = bucket * 0x9e3779b97f4a7c15ull >> 32;; at++) {
        bucket_note *note = room.notes + (at & (uint64_t)(room.n_notes - 1));
        uint32_t old = note->bucket;
        if (old == 0) old = atomicCAS(&note->bucket, 0u, bucket + 1);
        if (old == 0 || old == bucket + 1) return note;
    }
}

/* ---- locate ---------------------------------------------------------------------------------- */

static __global__ void __launch_bounds__(TABLE_THREADS)
    locate_kernel(const table_level l, const table_place_args a, const place_room room) {
    int64_t n = table_count(a.n, a.n_real), i = warp_first() + warp_lane();
    if (warp_first() >= n) return;
    found_key f = find_key(l, a.keys, i, n);
    if (i >= n) return;
    if (f.place >= 0) {
        a.slot[i] = f.bucket * TABLE_SLOTS + f.place;
        room.became[i] = KEY_FOUND;
        if (a.rule != SCORE_KEEP) {
            uint64_t *score = table_scores(&l, f.bucket) + f.place;
            uint64_t w = a.scores != NULL ? a.scores[i] : a.score;
            *score = table_touched(a.rule, a.rule == SCORE_SET ? 0 : *score, w);
        }
        if (a.evict != EVICT_NEVER)
            atomicOr(&note_of(room, (uint32_t)f.bucket)->touched, 1ull << f.place);
    } else {
        a.slot[i] = -1;
        uint32_t before = atomicExch(&note_of(room, (uint32_t)f.bucket)->newest, (uint32_t)i + 1);
        room.next[i] = before;
        room.became[i] = before == 0 ? KEY_OWNS : KEY_REJECTED;
    }
}

/* ---- settle: what all ways share --------------------------------------------------------------
 */

/* A new key: the complement of its score and its hash are its turn. */
typedef struct new_key {
    unsigned long long order, hash;
    uint32_t index;
} new_key;

__device__ static inline bool is_before(const new_key &x, const new_key &y) {
    return x.order != y.order ? x.order < y.order : x.hash < y.hash;
}

__device__ static inline new_key new_key_at(const table_place_args &a, uint32_t index) {
    new_key k;
    k.index = index;
    k.hash = table_hash(a.keys[index]);
    k.order = ~(a.scores != NULL ? a.scores[index] : a.score);
    return k;
}

/* An entry that may have to leave. */
typedef struct old_entry {
    unsigned long long score, key;
    int place; /* TABLE_SLOTS: there is none */
} old_entry;

__device__ static inline bool can_leave(const table_place_args &a, const old_entry &old,
                                        const new_key &k) {
    return old.place < TABLE_SLOTS && (a.evict != EVICT_LOWER || old.score <= ~k.order);
}

/* The new entry; `old` is what was there, if its place says so. */
__device__ static inline void write_entry(const table_level &l, const table_place_args &a,
                                          const place_room &room, const new_key &k, int64_t bucket,
                                          const old_entry &old, int place) {
    bool evicts = old.place < TABLE_SLOTS;
    if (evicts) {
        room.old_key[k.index] = old.key;
        room.old_score[k.index] = old.score;
        room.old_stamp[k.index] = table_stamps(&l, bucket)[place];
    }
    table_digests(&l, bucket)[place] = table_digest(k.hash);
    table_keys(&l, bucket)[place] = table_unhash(k.hash);
    table_scores(&l, bucket)[place] = ~k.order;
    table_stamps(&l, bucket)[place] = a.stamps != NULL ? a.stamps[k.index] : a.stamp;
    room.became[k.index] = evicts ? KEY_NEW_EVICTS : KEY_NEW;
    a.slot[k.index] = bucket * TABLE_SLOTS + place;
}

/* The scores of the lane's part of a bucket. */
typedef struct part_scores {
    ulonglong2 pair[TEAM_SLOTS / 2];
} part_scores;

__device__ static inline part_scores load_scores(const table_level &l, int64_t bucket) {
    part_scores scores;
    const ulonglong2 *from =
        (const ulonglong2 *)table_scores(&l, bucket) + TEAM_SLOTS / 2 * (warp_lane() % TEAM);
#pragma unroll
    for (int s = 0; s < TEAM_SLOTS / 2; s++)
        scores.pair[s] = __ldcg(from + s);
    return scores;
}

/* The smallest of the scores whose slots are free to take, and which slots have it. */
__device__ static inline uint32_t smallest_scores(const part_scores &scores, uint32_t free,
                                                  unsigned long long *smallest) {
    uint32_t equal = 0;
    *smallest = ~0ull;
#pragma unroll
    for (int s = 0; s < TEAM_SLOTS; s++) {
        unsigned long long score = s % 2 == 0 ? scores.pair[s / 2].x : scores.pair[s / 2].y;
        if ((free >> s & 1) == 0) continue;
        if (score < *smallest) equal = 0;
        if (score <= *smallest) equal |= 1u << s;
        *smallest = min(*smallest, score);
    }
    return equal;
}

/* The first to leave of the scores that a lane of the team looked at, by (score, key): of the team.
 * All lanes of the warp come here. */
__device__ static inline old_entry first_to_leave(const uint64_t *keys, unsigned long long smallest,
                                                  uint32_t equal) {
    int part = warp_lane() % TEAM;
    old_entry old = {smallest, ~0ull, TABLE_SLOTS};
#pragma unroll
    for (int step = TEAM / 2; step > 0; step /= 2)
        old.score = min(old.score, __shfl_xor_sync(ALL_LANES, old.score, step));
    if (smallest != old.score) equal = 0;
    for (; equal != 0; equal &= equal - 1) {
        int place = TEAM_SLOTS * part + __ffs((int)equal) - 1;
        unsigned long long key = __ldcg((const unsigned long long *)keys + place);
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

/* ---- settle: owners that are alone ------------------------------------------------------------
 */

/* What the lanes of a warp tell each other. */
typedef struct settle_room {
    int lane[32]; /* the owners of a kind, close together */
    old_entry old[32];
} settle_room;

/* A lane's own bucket. */
typedef struct owned_bucket {
    int64_t bucket;
    unsigned long long empty, touched; /* bit p: slot p */
    uint32_t newest;                   /* + 1 */
    new_key k;                         /* of the owner */
} owned_bucket;

__device__ static inline unsigned long long empty_slots(const uint4 *digests) {
    unsigned long long empty = 0;
    uint4 line[4];
#pragma unroll
    for (int q = 0; q < 4; q++)
        line[q] = __ldcg(digests + q);
#pragma unroll
    for (int q = 0; q < 4; q++)
        empty |= (unsigned long long)equal_digests(line[q], 0) << 16 * q;
    return empty;
}

/* Lanes that are chosen write their numbers close together; how many there are. */
__device__ static inline int gather_lanes(settle_room *warp, bool is_chosen) {
    unsigned chosen = __ballot_sync(ALL_LANES, is_chosen);
    if (is_chosen) warp->lane[__popc(chosen & ((1u << warp_lane()) - 1))] = warp_lane();
    __syncwarp();
    return __popc(chosen);
}

/* Teams find the entries that leave first in the full buckets of n lanes, OLD_AT_ONCE buckets a
 * team at a time. */
__device__ static inline void find_old(const table_level &l, settle_room *warp, int n,
                                       const owned_bucket &own) {
    int part = warp_lane() % TEAM, team = warp_lane() / TEAM;
    for (int first = team; first - team < n; first += OLD_AT_ONCE * TEAMS) {
        part_scores scores[OLD_AT_ONCE];
#pragma unroll
        for (int u = 0; u < OLD_AT_ONCE; u++) {
            int from = warp->lane[min(first + u * TEAMS, n - 1)];
            scores[u] = load_scores(l, __shfl_sync(ALL_LANES, own.bucket, from));
        }
#pragma unroll
        for (int u = 0; u < OLD_AT_ONCE; u++) {
            int at = first + u * TEAMS, from = warp->lane[min(at, n - 1)];
            unsigned long long smallest, touched = __shfl_sync(ALL_LANES, own.touched, from);
            uint32_t free = ~(uint32_t)(touched >> TEAM_SLOTS * part) & 0xff;
            uint32_t equal = smallest_scores(scores[u], free, &smallest);
            const uint64_t *keys = table_keys(&l, __shfl_sync(ALL_LANES, own.bucket, from));
            old_entry old = first_to_leave(keys, smallest, equal);
            if (at < n && part == 0) warp->old[from] = old;
        }
    }
    __syncwarp();
}

/* ---- settle: buckets with several new keys ----------------------------------------------------
 */

/* One lane's new keys of its team's bucket: the first is in registers, the others, every TEAM-th,
 * are read again and again. */
typedef struct team_keys {
    uint32_t count;    /* of the team */
    uint32_t *waiting; /* from the TEAM-th on */
    new_key first;
} team_keys;

/* The lane's part of a bucket. */
typedef struct bucket_part {
    int64_t bucket;
    uint32_t empty; /* bit s: slot TEAM_SLOTS part + s */
    uint32_t kept;  /* touched by this call, or placed by it */
    bool is_closed; /* the rest is rejected */
} bucket_part;

/* Follows the chain of a bucket: lane p of the team keeps the p-th key, memory those behind. */
__device__ static inline team_keys take_chain(const table_place_args &a, const place_room &room,
                                              uint32_t newest) {
    uint32_t part = (uint32_t)warp_lane() % TEAM, mine = 0;
    unsigned long long at = 0;
    team_keys keys = {0, NULL, {}};
    for (uint32_t k = newest; k != 0; k = room.next[k - 1])
        if (keys.count++ == part) mine = k;
    __syncwarp();
    if (keys.count > TEAM && part == 0)
        at = atomicAdd(room.total, (unsigned long long)(keys.count - TEAM));
    keys.waiting = room.waiting + __shfl_sync(ALL_LANES, at, 0, TEAM);
    if (keys.count > TEAM && part == 0) {
        uint32_t e = 0;
        for (uint32_t k = newest; k != 0; k = room.next[k - 1], e++)
            if (e >= TEAM) keys.waiting[e - TEAM] = k - 1;
    }
    __syncwarp();
    if (mine != 0) keys.first = new_key_at(a, mine - 1);
    return keys;
}

/* The first key of the team behind `last`; false where there is none. */
__device__ static inline bool next_key(const table_place_args &a, const team_keys &keys,
                                       bool is_start, new_key *last) {
    bool has = false;
    new_key best = {~0ull, ~0ull, 0};
    for (uint32_t e = (uint32_t)warp_lane() % TEAM; e < keys.count; e += TEAM) {
        new_key k = e < TEAM ? keys.first : new_key_at(a, keys.waiting[e - TEAM]);
        if ((!is_start && !is_before(*last, k)) || (has && !is_before(k, best))) continue;
        best = k;
        has = true;
    }
    __syncwarp();
#pragma unroll
    for (int step = TEAM / 2; step > 0; step /= 2) {
        new_key other;
        bool other_has = __shfl_xor_sync(ALL_LANES, (int)has, step) != 0;
        other.order = __shfl_xor_sync(ALL_LANES, best.order, step);
        other.hash = __shfl_xor_sync(ALL_LANES, best.hash, step);
        other.index = __shfl_xor_sync(ALL_LANES, best.index, step);
        if (other_has && (!has || is_before(other, best))) best = other;
        has = has || other_has;
    }
    *last = best;
    return has;
}

/* The first empty slot of the team's bucket, or -1. */
__device__ static inline int first_empty(const bucket_part &b) {
    unsigned has = __ballot_sync(ALL_LANES, b.empty != 0) >> (warp_lane() & ~(TEAM - 1)) & 0xff;
    int part = has != 0 ? __ffs((int)has) - 1 : 0;
    int place = TEAM_SLOTS * part + __shfl_sync(ALL_LANES, __ffs((int)b.empty) - 1, part, TEAM);
    return has != 0 ? place : -1;
}

/* One new key of each team gets its place, or none. */
__device__ static inline void settle_key(const table_level &l, const table_place_args &a,
                                         const place_room &room, const new_key &k, bool is_on,
                                         bucket_part *b) {
    int part = warp_lane() % TEAM, place = first_empty(*b);
    is_on = is_on && !b->is_closed;
    bool asks = is_on && place < 0 && a.evict != EVICT_NEVER;
    old_entry old = {0, 0, TABLE_SLOTS};
    if (__any_sync(ALL_LANES, asks)) {
        unsigned long long smallest = ~0ull;
        uint32_t equal = 0;
        if (asks)
            equal =
                smallest_scores(load_scores(l, b->bucket), ~(b->empty | b->kept) & 0xff, &smallest);
        __syncwarp();
        old_entry found = first_to_leave(table_keys(&l, b->bucket), smallest, equal);
        if (asks) old = found;
    }
    if (is_on && place < 0) {
        b->is_closed = !can_leave(a, old, k);
        place = old.place;
    }
    if (!is_on || b->is_closed) return;
    if (place / TEAM_SLOTS == part) {
        b->empty &= ~(1u << place % TEAM_SLOTS);
        b->kept |= 1u << place % TEAM_SLOTS;
    }
    if (part == 0) write_entry(l, a, room, k, b->bucket, old, place);
}

/* The buckets of n lanes, one a team at a time. */
__device__ static inline void settle_chains(const table_level &l, const table_place_args &a,
                                            const place_room &room, settle_room *warp, int n,
                                            const owned_bucket &own) {
    int part = warp_lane() % TEAM, team = warp_lane() / TEAM;
    for (int at = team; at - team < n; at += TEAMS) {
        int from = at < n ? warp->lane[at] : 0;
        uint32_t newest = __shfl_sync(ALL_LANES, own.newest, from);
        unsigned long long empty = __shfl_sync(ALL_LANES, own.empty, from);
        unsigned long long touched = __shfl_sync(ALL_LANES, own.touched, from);
        bucket_part b = {__shfl_sync(ALL_LANES, own.bucket, from),
                         (uint32_t)(empty >> TEAM_SLOTS * part) & 0xff,
                         (uint32_t)(touched >> TEAM_SLOTS * part) & 0xff, false};
        team_keys keys = take_chain(a, room, at < n ? newest : 0);
        new_key k = keys.first;
        bool is_on = next_key(a, keys, true, &k);
        while (__any_sync(ALL_LANES, is_on)) {
            settle_key(l, a, room, k, is_on, &b);
            is_on = next_key(a, keys, false, &k) && is_on && !b.is_closed;
        }
    }
}

/* ---- settle ---------------------------------------------------------------------------------- */

static __global__ void __launch_bounds__(TABLE_THREADS)
    settle_kernel(const table_level l, const table_place_args a, const place_room room) {
    __shared__ settle_room rooms[TABLE_WARPS];
    settle_room *warp = &rooms[threadIdx.x / 32];
    int64_t n = table_count(a.n, a.n_real), i = warp_first() + warp_lane();
    bool owns = i < n && room.became[i] == KEY_OWNS;
    if (!__any_sync(ALL_LANES, owns)) return;
    owned_bucket own = {};
    const old_entry none = {0, 0, TABLE_SLOTS};
    if (owns) {
        own.k = new_key_at(a, (uint32_t)i);
        own.bucket = table_bucket(own.k.hash, l.n_buckets);
        bucket_note *note = note_of(room, (uint32_t)own.bucket);
        own.newest = note->newest;
        own.touched = note->touched;
        own.empty = empty_slots((const uint4 *)table_digests(&l, own.bucket));
    }
    bool is_alone = owns && own.newest == (uint32_t)i + 1;
    if (is_alone && own.empty != 0)
        write_entry(l, a, room, own.k, own.bucket, none, __ffsll((long long)own.empty) - 1);
    bool asks = is_alone && own.empty == 0 && a.evict != EVICT_NEVER;
    int n_asking = gather_lanes(warp, asks);
    if (n_asking > 0) find_old(l, warp, n_asking, own);
    if (asks && can_leave(a, warp->old[warp_lane()], own.k))
        write_entry(l, a, room, own.k, own.bucket, warp->old[warp_lane()],
                    warp->old[warp_lane()].place);
    __syncwarp();
    int n_chains = gather_lanes(warp, owns && !is_alone);
    if (n_chains > 0) settle_chains(l, a, room, warp, n_chains, own);
}

/* ---- collect --------------------------------------------------------------------------------- */

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

static __global__ void __launch_bounds__(SCAN_THREADS)
    collect_kernel(const table_place_args a, const place_room room) {
    int64_t i = (int64_t)blockIdx.x * SCAN_THREADS + threadIdx.x;
    unsigned long long *counts = (unsigned long long *)a.counts;
    int became = i < table_count(a.n, a.n_real) ? room.became[i] : -1;
    bool evicts = became == KEY_NEW_EVICTS, is_new = became == KEY_NEW || evicts;
    bool is_rejected = became == KEY_REJECTED || became == KEY_OWNS;
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
    if (__syncthreads_or(is_rejected)) {
        unsigned long long at = grid_places(is_rejected, &counts[PLACED_REJECTED]);
        if (is_rejected && a.rejected != NULL) a.rejected[at] = a.keys[i];
    }
}

/* ---- launcher -------------------------------------------------------------------------------- */

/* The notes come first, and the total behind them: one stretch to clear. */
static size_t make_room(place_room *room, char *memory, int64_t n) {
    char *at = memory;
    size_t keys = (size_t)n, n_notes = (size_t)room->n_notes;
    room->notes = (bucket_note *)cut_room(&at, (n_notes + 1) * sizeof *room->notes);
    room->total = (unsigned long long *)(room->notes + n_notes);
    room->next = (uint32_t *)cut_room(&at, keys * sizeof *room->next);
    room->waiting = (uint32_t *)cut_room(&at, keys * sizeof *room->waiting);
    room->became = (uint8_t *)cut_room(&at, keys);
    room->old_key = (uint64_t *)cut_room(&at, keys * sizeof *room->old_key);
    room->old_score = (uint64_t *)cut_room(&at, keys * sizeof *room->old_score);
    room->old_stamp = (uint32_t *)cut_room(&at, keys * sizeof *room->old_stamp);
    return (size_t)(at - memory);
}

/* A note for each bucket, unless there are far more buckets than keys. */
static void choose_notes(place_room *room, const table_level *l, const table_place_args *a) {
    int64_t n_shared = 64;
    while (n_shared < 2 * a->n)
        n_shared *= 2;
    room->is_shared = l->n_buckets > n_shared;
    room->n_notes = room->is_shared ? n_shared : l->n_buckets;
}

status cuda_table_place(backend *be, const table_level *l, const table_place_args *a) {
    cudaStream_t stream = cuda_of(be)->stream;
    place_room room;
    void *memory;
    CUDA_TRY(cudaMemsetAsync(a->counts, 0, PLACED_COUNTS * sizeof *a->counts, stream));
    if (a->n == 0) return OK;
    if (l->n_buckets >= UINT32_MAX)
        return fail(ERR_UNSUPPORTED,
                    "a table of %lld buckets is too large for a GPU; make its capacity smaller",
                    (long long)l->n_buckets);
    choose_notes(&room, l, a);
    TRY(cuda_scratch(be, make_room(&room, NULL, a->n), &memory));
    make_room(&room, (char *)memory, a->n);
    CUDA_TRY(
        cudaMemsetAsync(room.notes, 0, ((size_t)room.n_notes + 1) * sizeof *room.notes, stream));
    unsigned n_blocks = table_blocks(a->n);
    locate_kernel<<<n_blocks, TABLE_THREADS, 0, stream>>>(*l, *a, room);
    TRY(cuda_launched("the search of place"));
    settle_kernel<<<n_blocks, TABLE_THREADS, 0, stream>>>(*l, *a, room);
    TRY(cuda_launched("the new keys of place"));
    collect_kernel<<<(unsigned)cuda_div_up(a->n, SCAN_THREADS), SCAN_THREADS, 0, stream>>>(*a,
                                                                                           room);
    return cuda_launched("the lists of place");
}
