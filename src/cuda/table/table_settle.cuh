/* How new keys are admitted to a bucket: the device functions of table_place.cu, which says which
 * key owns a bucket.  One lane settles a bucket that has empty slots for its few new keys; a team
 * of 8 lanes finds the entry to evict from a full bucket for a single new key, each lane reading 8
 * of the slots; and a team settles a bucket where several new keys must evict others. */
#ifndef HSTU_CUDA_TABLE_TABLE_SETTLE_CUH
#define HSTU_CUDA_TABLE_TABLE_SETTLE_CUH

#include "cuda/table/table_first.cuh"

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

#endif
