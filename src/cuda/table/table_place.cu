/* place of a level (ops/table.h): find or insert, evicting where a bucket is full; and, in the same
 * call, the work of init or write on the rows.
 *
 * Which keys a bucket admits depends on all of its keys in the call, in any order.  They need not
 * be sorted: locate   a warp finds 32 keys and touches the entries of those that are there; the new
 * keys of a bucket become a chain, and the first of them owns the bucket; settle   owners give the
 * new keys their places; mark     where scores do not show what the call touched, found keys tell
 * the buckets that must know it before they evict (usually none if the score is the time of use);
 *     settle   again, for those buckets;
 *     finish   evicted entries and rejected keys, listed by key until then, are compacted, and the
 *              rows are written.
 *
 * Bound by bytes at random addresses, in pieces of 64: digests and entries of every key, the parts
 * of new entries (read before they are written, because they are smaller than that), all entries of
 * full buckets, and rows.  Measured and slower (H200, 2026-11-15): rows of found keys beside settle
 * or in locate; owners compacted so that warps are full of them; lists with one counter for all
 * warps, since additions to one address take 2 ns each. */
#include "cuda/table/table.cuh"

/* How new keys are admitted to a bucket.  One lane settles a bucket that has empty slots for its
 * few new keys; a team of 8 lanes finds the entry to evict from a full bucket for a single new key,
 * each lane reading 8 of the slots; and a team settles a bucket where several new keys must evict
 * others. */
enum {
    TEAM = 8,
    TEAM_SLOTS = TABLE_SLOTS / TEAM,
    TEAMS = 32 / TEAM,
    LANE_KEYS = 3 /* most new keys of a bucket that a single lane settles */
};

/* The outcome for a key.  A key that owns its bucket, in the first or second round, is rejected
 * unless settle says otherwise. */
enum { KEY_FOUND, KEY_NEW, KEY_NEW_EVICTS, KEY_REJECTED, KEY_OWNS, KEY_OWNS_LATE };

/* State of a bucket that waits for the second round. */
typedef struct late_note {
    unsigned long long touched; /* bit p: the call found the key of slot p */
    uint32_t newest;            /* as in place_room */
} late_note;

#define IS_LATE 0xffffffffu

/* Memory of one call.  Each bucket that gets new keys in the call has a note. */
typedef struct place_room {
    int64_t n_notes;   /* one for each bucket, or shared by hash: a power of two */
    bool is_shared;    /* the latter */
    uint32_t *newest;  /* (n_notes) + 1: the bucket's latest new key; 0: none; or IS_LATE */
    uint32_t *buckets; /* (n_notes) + 1: bucket that owns the note; 0: free.  If notes are shared */
    uint32_t *has_late;            /* (1): there are buckets that wait */
    late_note *late;               /* (n_notes) */
    unsigned long long *total;     /* (1): entries of waiting that are taken */
    uint32_t *next;                /* (n) + 1: the previous new key of the same bucket; 0: none */
    uint32_t *waiting;             /* (2 n): keys of buckets with many new ones, for each round */
    uint8_t *became;               /* (n) */
    uint64_t *old_key, *old_score; /* (n) each: of the entry that left for this key */
    uint32_t *old_stamp;           /* (n) */
} place_room;

/* The note of a bucket; claims a free note where it has none: there are twice as many notes as
 * keys. */
__device__ static inline int64_t note_of(const place_room &room, uint32_t bucket) {
    if (!room.is_shared) return bucket;
    for (uint64_t at = bucket * 0x9e3779b97f4a7c15ull >> 32;; at++) {
        int64_t note = (int64_t)(at & (uint64_t)(room.n_notes - 1));
        uint32_t old = room.buckets[note];
        if (old == 0) old = atomicCAS(&room.buckets[note], 0u, bucket + 1);
        if (old == 0 || old == bucket + 1) return note;
    }
}

/* A new key: keys are admitted in the order of (complement of the score, hash). */
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

/* Whether the score of an entry shows that the call did not touch it: a touch would have left the
 * call's own score there, or its low word.  The first round knows nothing else about touches. */
__device__ static inline bool is_untouched(const table_place_args &a, unsigned long long score) {
    if (a.scores != NULL || a.rule == SCORE_KEEP) return false;
    return a.rule == SCORE_SET ? score != a.score : (uint32_t)score != (uint32_t)a.score;
}

/* Writes the new entry; `old` is the entry it replaces, if there is one. */
__device__ static inline void write_entry(const table_level &l, const table_place_args &a,
                                          const place_room &room, const new_key &k, int64_t bucket,
                                          const old_entry &old, int place) {
    bool evicts = old.place < TABLE_SLOTS;
    if (evicts && a.evicted.keys != NULL) {
        room.old_key[k.index] = old.key;
        room.old_score[k.index] = old.score;
        room.old_stamp[k.index] = table_stamps(&l, bucket)[place];
    }
    table_digests(&l, bucket)[place] = table_digest(k.hash);
    __stcg((ulonglong2 *)&table_entries(&l, bucket)[place],
           make_ulonglong2(table_unhash(k.hash), ~k.order));
    table_stamps(&l, bucket)[place] = a.stamps != NULL ? a.stamps[k.index] : a.stamp;
    room.became[k.index] = evicts ? KEY_NEW_EVICTS : KEY_NEW;
    a.slot[k.index] = bucket * TABLE_SLOTS + place;
}

__device__ static inline bool leaves_before(const old_entry &x, const old_entry &y) {
    if (x.place == TABLE_SLOTS || y.place == TABLE_SLOTS) return x.place < y.place;
    return x.score != y.score ? x.score < y.score : x.key < y.key;
}

/* The entry to evict first from a team's bucket, by (score, key), among the slots that may be
 * taken.  Lane p of the team reads every TEAM-th slot from p on, AT_ONCE of them at a time, so that
 * a team reads 128 bytes with each load.  All lanes of the warp must call this; teams without a
 * bucket read nothing. */
template <int AT_ONCE>
__device__ static inline old_entry first_to_leave(const table_level &l, int64_t bucket,
                                                  unsigned long long free, bool asks) {
    int part = warp_lane() % TEAM;
    const ulonglong2 *from = (const ulonglong2 *)table_entries(&l, bucket) + part;
    old_entry old = {0, 0, TABLE_SLOTS};
    for (int first = 0; asks && first < TEAM_SLOTS; first += AT_ONCE) {
        ulonglong2 entry[AT_ONCE];
#pragma unroll
        for (int s = 0; s < AT_ONCE; s++)
            entry[s] = __ldcg(from + TEAM * (first + s));
#pragma unroll
        for (int s = 0; s < AT_ONCE; s++) {
            old_entry e = {entry[s].y, entry[s].x, TEAM * (first + s) + part};
            if ((free >> e.place & 1) != 0 && leaves_before(e, old)) old = e;
        }
    }
    __syncwarp();
#pragma unroll
    for (int step = TEAM / 2; step > 0; step /= 2) {
        old_entry other = {__shfl_xor_sync(ALL_LANES, old.score, step),
                           __shfl_xor_sync(ALL_LANES, old.key, step),
                           __shfl_xor_sync(ALL_LANES, old.place, step)};
        if (leaves_before(other, old)) old = other;
    }
    return old;
}

/* A lane's own bucket. */
typedef struct owned_bucket {
    uint32_t bucket;
    unsigned long long empty, touched; /* bit p: slot p */
    uint32_t newest;                   /* + 1 */
    new_key k;                         /* of the owner */
} owned_bucket;

/* What the lanes of a warp tell each other. */
typedef struct settle_room {
    int lane[32]; /* the owners of a kind, close together */
    old_entry old[32];
    owned_bucket own[32]; /* here and not in registers, of which few are left */
} settle_room;

/* Defers the bucket to the second round, in which `key` owns it. */
__device__ static inline void set_late(const place_room &room, uint32_t bucket, uint32_t newest,
                                       uint32_t key) {
    int64_t note = note_of(room, bucket);
    room.late[note].touched = 0;
    room.late[note].newest = newest;
    room.newest[note] = IS_LATE;
    room.became[key] = KEY_OWNS_LATE;
    *room.has_late = 1;
}

/* Bit b: byte b is zero. */
__device__ static inline uint32_t zero_bytes(uint32_t word) {
    return (equal_bytes(word, 0) >> 7) * 0x10204080u >> 28;
}

__device__ static inline unsigned long long empty_slots(const uint4 *digests) {
    unsigned long long empty = 0;
    uint4 line[4];
#pragma unroll
    for (int q = 0; q < 4; q++)
        line[q] = __ldcg(digests + q);
#pragma unroll
    for (int q = 3; q >= 0; q--) {
        empty = empty << 4 | zero_bytes(line[q].w);
        empty = empty << 4 | zero_bytes(line[q].z);
        empty = empty << 4 | zero_bytes(line[q].y);
        empty = empty << 4 | zero_bytes(line[q].x);
    }
    return empty;
}

__device__ static inline void order_keys(new_key &x, new_key &y) {
    if (!is_before(y, x)) return;
    new_key z = x;
    x = y;
    y = z;
}

/* One lane gives the few new keys of its bucket empty slots; false: there are not enough slots, or
 * too many keys. */
__device__ static inline bool settle_few(const table_level &l, const table_place_args &a,
                                         const place_room &room, const owned_bucket &own) {
    const old_entry none = {0, 0, TABLE_SLOTS};
    new_key k[LANE_KEYS];
    unsigned long long empty = own.empty;
    int n = 0;
    uint32_t at = own.newest;
#pragma unroll
    for (int e = 0; e < LANE_KEYS; e++) {
        k[e] = {~0ull, ~0ull, 0};
        if (at == 0) continue;
        k[e] = at - 1 == own.k.index ? own.k : new_key_at(a, at - 1);
        at = room.next[at - 1];
        n++;
    }
    if (at != 0 || n > __popcll(empty)) return false;
    if (n > 1) { /* missing keys stay last: the sort is stable */
        order_keys(k[0], k[1]);
        order_keys(k[1], k[2]);
        order_keys(k[0], k[1]);
    }
#pragma unroll
    for (int e = 0; e < LANE_KEYS; e++, empty &= empty - 1)
        if (e < n) write_entry(l, a, room, k[e], own.bucket, none, __ffsll((long long)empty) - 1);
    return true;
}

/* Selected lanes write their numbers next to each other (compaction); returns how many there are.
 */
__device__ static inline int gather_lanes(settle_room *warp, bool is_chosen) {
    unsigned chosen = __ballot_sync(ALL_LANES, is_chosen);
    if (is_chosen) warp->lane[__popc(chosen & ((1u << warp_lane()) - 1))] = warp_lane();
    __syncwarp();
    return __popc(chosen);
}

/* Teams find the entries to evict in the full buckets of n lanes. */
__device__ static inline void find_old(const table_level &l, settle_room *warp, int n) {
    int team = warp_lane() / TEAM;
    for (int at = team; at - team < n; at += TEAMS) {
        int from = warp->lane[min(at, n - 1)];
        const owned_bucket *own = &warp->own[from];
        old_entry old = first_to_leave<TEAM_SLOTS>(l, own->bucket, ~own->touched, at < n);
        if (at < n && warp_lane() % TEAM == 0) warp->old[from] = old;
    }
    __syncwarp();
}

/* One lane's share of the new keys of its team's bucket: the first is in registers, the others,
 * every TEAM-th, are read from memory each time.  Keys placed in the first round are excluded. */
typedef struct team_keys {
    uint32_t count;    /* of the team */
    uint32_t *waiting; /* from the TEAM-th on */
    new_key first;
    bool has_first;
} team_keys;

/* A team's bucket; the same in every lane of the team. */
typedef struct team_bucket {
    int64_t bucket;
    unsigned long long empty; /* bit p: slot p */
    unsigned long long kept;  /* touched by this call, or placed by it */
    bool is_closed;           /* the rest is rejected */
    bool is_late;             /* or waits for the second round */
} team_bucket;

/* Follows the chain of a bucket: lane p of the team keeps the p-th key in registers; later ones
 * stay in memory. */
__device__ static inline team_keys take_chain(const table_place_args &a, const place_room &room,
                                              uint32_t newest) {
    uint32_t part = (uint32_t)warp_lane() % TEAM, mine = 0;
    unsigned long long at = 0;
    team_keys keys = {0, NULL, {}, false};
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
    keys.has_first = mine != 0 && a.slot[mine - 1] < 0;
    if (keys.has_first) keys.first = new_key_at(a, mine - 1);
    return keys;
}

/* Slots that the first round gave to keys of the chain. */
__device__ static inline unsigned long long placed_slots(const table_place_args &a,
                                                         const place_room &room, uint32_t newest) {
    unsigned long long placed = 0;
    for (uint32_t k = newest; k != 0; k = room.next[k - 1])
        if (a.slot[k - 1] >= 0) placed |= 1ull << a.slot[k - 1] % TABLE_SLOTS;
    __syncwarp();
    return placed;
}

/* The first key of the team after `last`; false where there is none. */
__device__ static inline bool next_key(const table_place_args &a, const team_keys &keys,
                                       bool is_start, new_key *last) {
    bool has = false;
    new_key best = {~0ull, ~0ull, 0};
    for (uint32_t e = (uint32_t)warp_lane() % TEAM; e < keys.count; e += TEAM) {
        if (e < TEAM ? !keys.has_first : a.slot[keys.waiting[e - TEAM]] >= 0) continue;
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

/* Admits or rejects one new key of each team.  The first round does not know which entries the call
 * touched: where it matters, the bucket is deferred to the second. */
__device__ static inline void settle_key(const table_level &l, const table_place_args &a,
                                         const place_room &room, const new_key &k, bool is_on,
                                         bool is_second, team_bucket *b) {
    int place = __ffsll((long long)b->empty) - 1;
    bool asks = is_on && place < 0 && a.evict != EVICT_NEVER;
    old_entry old = {0, 0, TABLE_SLOTS};
    if (__any_sync(ALL_LANES, asks))
        old = first_to_leave<TEAM_SLOTS / 2>(l, b->bucket, ~b->kept, asks);
    if (is_on && place < 0) {
        b->is_closed = !can_leave(a, old, k);
        b->is_late =
            !is_second && old.place < TABLE_SLOTS && !b->is_closed && !is_untouched(a, old.score);
        place = old.place;
    }
    if (!is_on || b->is_closed || b->is_late) return;
    b->empty &= ~(1ull << place);
    b->kept |= 1ull << place;
    if (warp_lane() % TEAM == 0) write_entry(l, a, room, k, b->bucket, old, place);
}

/* The buckets of n lanes, one a team at a time. */
__device__ static inline void settle_chains(const table_level &l, const table_place_args &a,
                                            const place_room &room, settle_room *warp, int n,
                                            bool is_second) {
    int part = warp_lane() % TEAM, team = warp_lane() / TEAM;
    for (int at = team; at - team < n; at += TEAMS) {
        const owned_bucket *own = &warp->own[warp->lane[min(at, n - 1)]];
        uint32_t newest = at < n ? own->newest : 0;
        team_bucket b = {own->bucket, own->empty, own->touched, false, false};
        if (is_second) b.kept |= placed_slots(a, room, newest);
        team_keys keys = take_chain(a, room, newest);
        new_key k = keys.first;
        bool is_on = next_key(a, keys, true, &k);
        while (__any_sync(ALL_LANES, is_on)) {
            settle_key(l, a, room, k, is_on, is_second, &b);
            if (is_on && b.is_late && part == 0)
                set_late(room, (uint32_t)b.bucket, newest, k.index);
            is_on = next_key(a, keys, false, &k) && is_on && !b.is_closed && !b.is_late;
        }
    }
}

static __global__ void __launch_bounds__(TABLE_THREADS)
    table_place_locate_any_kernel(const table_level l, const table_place_args a,
                                  const place_room room) {
    int64_t n = table_count(a.n, a.n_real), i = warp_first() + warp_lane();
    if (blockIdx.x == 0 && threadIdx.x < PLACED_COUNTS) a.counts[threadIdx.x] = 0; /* for finish */
    if (warp_first() >= n) return;
    found_key f = find_key(l, a.keys, i, n);
    if (i >= n) return;
    if (f.place >= 0) {
        a.slot[i] = f.bucket * TABLE_SLOTS + f.place;
        room.became[i] = KEY_FOUND;
        if (a.rule == SCORE_KEEP) return;
        uint64_t *score = &table_entries(&l, f.bucket)[f.place].score;
        uint64_t w = a.scores != NULL ? a.scores[i] : a.score;
        *score = table_touched(a.rule, a.rule == SCORE_SET ? 0 : *score, w);
    } else {
        a.slot[i] = -1;
        uint32_t *newest = &room.newest[note_of(room, (uint32_t)f.bucket)];
        uint32_t before = atomicExch(newest, (uint32_t)i + 1);
        room.next[i] = before;
        room.became[i] = before == 0 ? KEY_OWNS : KEY_REJECTED;
    }
}

/* The bucket that the lane's key owns. */
__device__ static inline void own_bucket(const table_level &l, const table_place_args &a,
                                         const place_room &room, uint32_t i, bool is_second,
                                         owned_bucket *own) {
    own->k = new_key_at(a, i);
    own->bucket = (uint32_t)table_bucket(own->k.hash, l.n_buckets);
    int64_t note = note_of(room, own->bucket);
    own->newest = room.newest[note];
    if (is_second) {
        own->newest = room.late[note].newest;
        own->touched = room.late[note].touched;
    }
    own->empty = empty_slots((const uint4 *)table_digests(&l, own->bucket));
}

/* An owner that is the only new key of a full bucket, and the entry that it evicts. */
__device__ static inline void settle_full(const table_level &l, const table_place_args &a,
                                          const place_room &room, const owned_bucket &own,
                                          const old_entry &old, bool is_second) {
    if (!can_leave(a, old, own.k)) return;
    if (is_second || is_untouched(a, old.score))
        write_entry(l, a, room, own.k, own.bucket, old, old.place);
    else
        set_late(room, own.bucket, own.newest, own.k.index);
}

/* The owners among a warp's 32 keys. */
template <bool IS_SECOND>
__device__ static inline void settle_owners(const table_level &l, const table_place_args &a,
                                            const place_room &room, bool owns, uint32_t i) {
    __shared__ settle_room rooms[TABLE_WARPS];
    settle_room *warp = &rooms[threadIdx.x / 32];
    owned_bucket *own = &warp->own[warp_lane()];
    bool is_alone = false;
    if (owns) {
        owned_bucket mine = {};
        own_bucket(l, a, room, i, IS_SECOND, &mine);
        is_alone = mine.newest == i + 1 && room.next[i] == 0;
        owns = IS_SECOND || !settle_few(l, a, room, mine);
        *own = mine;
    }
    __syncwarp();
    bool is_full = owns && is_alone && a.evict != EVICT_NEVER;
    int n_full = gather_lanes(warp, is_full);
    if (n_full > 0) find_old(l, warp, n_full);
    if (is_full) settle_full(l, a, room, *own, warp->old[warp_lane()], IS_SECOND);
    __syncwarp();
    int n_chains = gather_lanes(warp, owns && !is_full);
    if (n_chains > 0) settle_chains(l, a, room, warp, n_chains, IS_SECOND);
}

static __global__ void __launch_bounds__(TABLE_THREADS, 4)
    table_place_settle_any_kernel(const table_level l, const table_place_args a,
                                  const place_room room) {
    int64_t i = warp_first() + warp_lane();
    bool owns = i < table_count(a.n, a.n_real) && room.became[i] == KEY_OWNS;
    if (__any_sync(ALL_LANES, owns)) settle_owners<false>(l, a, room, owns, (uint32_t)i);
}

/* The second round usually has no work: its kernels have few blocks, which check that. */
static __global__ void __launch_bounds__(TABLE_THREADS, 4)
    table_place_settle_late_any_kernel(const table_level l, const table_place_args a,
                                       const place_room room) {
    int64_t n = table_count(a.n, a.n_real), step = (int64_t)gridDim.x * TABLE_THREADS;
    if (*room.has_late == 0) return;
    for (int64_t first = warp_first(); first < n; first += step) {
        int64_t i = first + warp_lane();
        bool owns = i < n && room.became[i] == KEY_OWNS_LATE;
        if (__any_sync(ALL_LANES, owns)) settle_owners<true>(l, a, room, owns, (uint32_t)i);
    }
}

static __global__ void __launch_bounds__(TABLE_THREADS)
    table_place_mark_any_kernel(const table_place_args a, const place_room room) {
    int64_t n = table_count(a.n, a.n_real), i = (int64_t)blockIdx.x * TABLE_THREADS + threadIdx.x;
    if (*room.has_late == 0) return;
    for (; i < n; i += (int64_t)gridDim.x * TABLE_THREADS) {
        if (room.became[i] != KEY_FOUND) continue;
        int64_t slot = a.slot[i], note = note_of(room, (uint32_t)(slot / TABLE_SLOTS));
        if (room.newest[note] == IS_LATE)
            atomicOr(&room.late[note].touched, 1ull << slot % TABLE_SLOTS);
    }
}

/* Reserves a place in a list for each selected thread of the block; the order of blocks varies. */
__device__ static inline unsigned long long list_places(bool is_chosen, unsigned long long *total) {
    __shared__ unsigned long long base[TABLE_WARPS];
    unsigned mine = __ballot_sync(ALL_LANES, is_chosen);
    if (warp_lane() == 0) base[threadIdx.x / 32] = (unsigned long long)__popc(mine);
    __syncthreads();
    if (threadIdx.x == 0) {
        unsigned long long all = 0;
        for (int w = 0; w < TABLE_WARPS; w++) {
            unsigned long long count = base[w];
            base[w] = all;
            all += count;
        }
        unsigned long long first = atomicAdd(total, all);
        for (int w = 0; w < TABLE_WARPS; w++)
            base[w] += first;
    }
    __syncthreads();
    unsigned long long at =
        base[threadIdx.x / 32] + (unsigned)__popc(mine & ((1u << warp_lane()) - 1));
    __syncthreads();
    return at;
}

__device__ static inline void list_evicted(const table_place_args &a, const place_room &room,
                                           int64_t i, bool evicts) {
    unsigned long long at = list_places(evicts, (unsigned long long *)&a.counts[PLACED_EVICTED]);
    if (!evicts) return;
    a.evicted.keys[at] = room.old_key[i];
    a.evicted.scores[at] = room.old_score[i];
    a.evicted.stamps[at] = room.old_stamp[i];
    a.evicted.slot[at] = a.slot[i];
}

template <row_work WORK>
static __global__ void __launch_bounds__(TABLE_THREADS, 4)
    table_place_finish_any_kernel(const table_level l, const table_place_args a,
                                  const place_room room, const table_init_args rows) {
    int64_t n = table_count(a.n, a.n_real), i = (int64_t)blockIdx.x * TABLE_THREADS + threadIdx.x;
    int became = i < n ? room.became[i] : -1;
    bool evicts = became == KEY_NEW_EVICTS, is_new = became == KEY_NEW || evicts;
    bool is_rejected = became >= KEY_REJECTED;
    if (became >= 0) a.is_new[i] = is_new;
    int n_new = __syncthreads_count(is_new);
    if (threadIdx.x == 0 && n_new > 0)
        atomicAdd((unsigned long long *)&a.counts[PLACED_NEW], (unsigned long long)n_new);
    int n_evicted = __syncthreads_count(evicts);
    if (n_evicted > 0 && a.evicted.keys != NULL) list_evicted(a, room, i, evicts);
    if (threadIdx.x == 0 && n_evicted > 0 && a.evicted.keys == NULL)
        atomicAdd((unsigned long long *)&a.counts[PLACED_EVICTED], (unsigned long long)n_evicted);
    if (__syncthreads_or(is_rejected)) {
        unsigned long long at =
            list_places(is_rejected, (unsigned long long *)&a.counts[PLACED_REJECTED]);
        if (is_rejected && a.rejected != NULL) a.rejected[at] = a.keys[i];
    }
    if (WORK == NO_ROWS) return;
    int64_t slot = i < n ? a.slot[i] : -1;
    float *row = slot >= 0 ? table_row(&l, slot) : NULL;
    work_on_rows<WORK>(rows, row, i < n ? rows.staging + i * rows.stride : NULL, is_new,
                       is_new ? a.keys[i] : 0);
}

/* Memory that must be zero comes first: newest, buckets where notes are shared, total and
 * has_late. */
static size_t make_room(place_room *room, char *memory, int64_t n, size_t *zero_bytes) {
    char *at = memory;
    size_t keys = (size_t)n, n_notes = (size_t)room->n_notes;
    cuda_cut(&at, n_notes, &room->newest);
    room->buckets = NULL;
    if (room->is_shared) cuda_cut(&at, n_notes, &room->buckets);
    cuda_cut(&at, 2, &room->total);
    room->has_late = (uint32_t *)(room->total + 1);
    *zero_bytes = (size_t)(at - memory);
    cuda_cut(&at, n_notes, &room->late);
    cuda_cut(&at, keys, &room->next);
    cuda_cut(&at, 2 * keys, &room->waiting);
    cuda_cut(&at, keys, &room->became);
    cuda_cut(&at, keys, &room->old_key);
    cuda_cut(&at, keys, &room->old_score);
    cuda_cut(&at, keys, &room->old_stamp);
    return (size_t)(at - memory);
}

/* A note for each bucket, unless there are far more buckets than keys. */
static void choose_notes(place_room *room, const table_level *l, const table_place_args *a) {
    int64_t n_shared = 64;
    while (n_shared < 2 * a->n)
        n_shared *= 2;
    room->is_shared = l->n_buckets > 2 * n_shared;
    room->n_notes = room->is_shared ? n_shared : l->n_buckets;
}

template <row_work WORK>
static status launch_place(backend *be, const table_level *l, const table_place_args *a,
                           const place_room *room, const table_init_args *rows) {
    cuda_state *s = cuda_of(be);
    unsigned n_blocks = table_blocks(a->n), n_few = 2 * (unsigned)s->n_multiprocessors;
    if (n_few > n_blocks) n_few = n_blocks;
    TRY(cuda_launch(be, "the search of place", table_place_locate_any_kernel, n_blocks,
                    TABLE_THREADS, 0, *l, *a, *room));
    TRY(cuda_launch(be, "the new keys of place", table_place_settle_any_kernel, n_blocks,
                    TABLE_THREADS, 0, *l, *a, *room));
    if (a->evict != EVICT_NEVER) { /* else nothing is late */
        table_place_mark_any_kernel<<<n_few, TABLE_THREADS, 0, s->stream>>>(*a, *room);
        TRY(cuda_launch(be, "the second round of place", table_place_settle_late_any_kernel, n_few,
                        TABLE_THREADS, 0, *l, *a, *room));
    }
    return cuda_launch(be, "the lists of place", table_place_finish_any_kernel<WORK>, n_blocks,
                       TABLE_THREADS, 0, *l, *a, *room, *rows);
}

/* Rows that place cannot move in its own passes. */
static status place_then_move(backend *be, const table_level *l, const table_place_args *a,
                              const place_room *room) {
    table_init_args none = {};
    TRY(launch_place<NO_ROWS>(be, l, a, room, &none));
    if (a->init != NULL) {
        table_init_args init = table_place_init(a);
        return cuda_table_init(be, l, &init);
    }
    if (a->write == NULL) return OK;
    table_rows_args write = table_place_write(a);
    return cuda_table_write(be, l, &write);
}

static status place_and_move(backend *be, const table_level *l, const table_place_args *a,
                             const place_room *room) {
    if (a->init != NULL && a->init->staging != NULL &&
        is_packed(a->init->staging, a->init->stride, a->init->dim))
        return launch_place<FIRST_AND_READ>(be, l, a, room, a->init);
    if (a->write != NULL && is_packed(a->write->staging, a->write->stride, a->write->n_floats)) {
        table_init_args rows = {};
        rows.dim = a->write->n_floats;
        rows.staging = a->write->staging;
        rows.stride = a->write->stride;
        return launch_place<ONLY_WRITE>(be, l, a, room, &rows);
    }
    return place_then_move(be, l, a, room);
}

status cuda_table_place(backend *be, const table_level *l, const table_place_args *a) {
    cudaStream_t stream = cuda_of(be)->stream;
    place_room room;
    size_t zero_bytes;
    void *memory;
    if (a->n == 0) return OK;
    if (l->n_buckets >= UINT32_MAX)
        return fail(ERR_UNSUPPORTED,
                    "a table of %lld buckets is too large for a GPU; make its capacity smaller",
                    (long long)l->n_buckets);
    choose_notes(&room, l, a);
    TRY(cuda_scratch(be, make_room(&room, NULL, a->n, &zero_bytes), &memory));
    make_room(&room, (char *)memory, a->n, &zero_bytes);
    CUDA_TRY(cudaMemsetAsync(memory, 0, zero_bytes, stream));
    return place_and_move(be, l, a, &room);
}
