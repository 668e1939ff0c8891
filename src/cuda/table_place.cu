/* place of a level (ops/table.h): find or insert, evicting where a bucket is full.
 *
 * What a bucket takes depends on all of its keys in the call, in whatever order they come.  No sort
 * brings them together:
 *   locate   a warp finds 32 keys and touches what is there; new keys of a bucket become a chain,
 *            and the first that came owns the bucket;
 *   settle   owners give the new keys their places, in the way of table_settle.cuh;
 *   mark     found keys tell the buckets that must know what the call touched before they evict,
 *            because scores do not tell it: none, as a rule, where the score is the time of use;
 *   settle   once more, for those;
 *   collect  evicted entries and rejected keys, kept by key until then, are moved close together.
 * The limit is bytes from random places: digests of every key, scores that are touched, the parts
 * of new entries, and the scores of full buckets. */
#include "cuda/table_settle.cuh"

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
        if (a.rule == SCORE_KEEP) return;
        uint64_t *score = table_scores(&l, f.bucket) + f.place;
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

/* ---- settle ---------------------------------------------------------------------------------- */

/* The bucket that the lane's key owns. */
__device__ static inline void own_bucket(const table_level &l, const table_place_args &a,
                                         const place_room &room, int64_t i, bool is_second,
                                         owned_bucket *own) {
    own->k = new_key_at(a, (uint32_t)i);
    own->bucket = (uint32_t)table_bucket(own->k.hash, l.n_buckets);
    int64_t note = note_of(room, own->bucket);
    own->newest = room.newest[note];
    if (is_second) {
        own->newest = room.late[note].newest;
        own->touched = room.late[note].touched;
    }
    own->empty = empty_slots((const uint4 *)table_digests(&l, own->bucket));
}

/* An owner that is alone in a full bucket, and the entry that leaves first. */
__device__ static inline void settle_full(const table_level &l, const table_place_args &a,
                                          const place_room &room, const owned_bucket &own,
                                          const old_entry &old, bool is_second) {
    if (!can_leave(a, old, own.k)) return;
    if (is_second || is_untouched(a, old.score))
        write_entry(l, a, room, own.k, own.bucket, old, old.place);
    else
        set_late(room, own.bucket, own.newest, own.k.index);
}

template <bool IS_SECOND>
static __global__ void __launch_bounds__(TABLE_THREADS, 4)
    settle_kernel(const table_level l, const table_place_args a, const place_room room) {
    __shared__ settle_room rooms[TABLE_WARPS];
    settle_room *warp = &rooms[threadIdx.x / 32];
    int64_t n = table_count(a.n, a.n_real), i = warp_first() + warp_lane();
    if (IS_SECOND && *room.has_late == 0) return;
    owned_bucket own = {};
    bool owns = i < n && room.became[i] == (IS_SECOND ? KEY_OWNS_LATE : KEY_OWNS);
    if (owns) own_bucket(l, a, room, i, IS_SECOND, &own);
    if (!IS_SECOND && owns) owns = !settle_few(l, a, room, own);
    __syncwarp();
    bool is_alone = owns && own.newest == (uint32_t)i + 1 && room.next[i] == 0;
    bool is_full = is_alone && a.evict != EVICT_NEVER;
    int n_full = gather_lanes(warp, is_full);
    if (n_full > 0) find_old(l, warp, n_full, own);
    if (is_full) settle_full(l, a, room, own, warp->old[warp_lane()], IS_SECOND);
    __syncwarp();
    int n_chains = gather_lanes(warp, owns && !is_full);
    if (n_chains > 0) settle_chains(l, a, room, warp, n_chains, own, IS_SECOND);
}

static __global__ void __launch_bounds__(TABLE_THREADS)
    mark_kernel(const table_place_args a, const place_room room) {
    int64_t i = (int64_t)blockIdx.x * TABLE_THREADS + threadIdx.x;
    if (*room.has_late == 0 || i >= table_count(a.n, a.n_real)) return;
    if (room.became[i] != KEY_FOUND) return;
    int64_t slot = a.slot[i], note = note_of(room, (uint32_t)(slot / TABLE_SLOTS));
    if (room.newest[note] == IS_LATE)
        atomicOr(&room.late[note].touched, 1ull << slot % TABLE_SLOTS);
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
    bool is_rejected = became >= KEY_REJECTED;
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

/* What must be zero comes first: newest, buckets where notes are shared, total and has_late. */
static size_t make_room(place_room *room, char *memory, int64_t n, size_t *zero_bytes) {
    char *at = memory;
    size_t keys = (size_t)n, n_notes = (size_t)room->n_notes;
    room->newest = (uint32_t *)cut_room(&at, n_notes * sizeof *room->newest);
    room->buckets = NULL;
    if (room->is_shared) room->buckets = (uint32_t *)cut_room(&at, n_notes * sizeof *room->buckets);
    room->total = (unsigned long long *)cut_room(&at, 2 * sizeof *room->total);
    room->has_late = (uint32_t *)(room->total + 1);
    *zero_bytes = (size_t)(at - memory);
    room->late = (late_note *)cut_room(&at, n_notes * sizeof *room->late);
    room->next = (uint32_t *)cut_room(&at, keys * sizeof *room->next);
    room->waiting = (uint32_t *)cut_room(&at, 2 * keys * sizeof *room->waiting);
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
    room->is_shared = l->n_buckets > 2 * n_shared;
    room->n_notes = room->is_shared ? n_shared : l->n_buckets;
}

static status settle(backend *be, const table_level *l, const table_place_args *a,
                     const place_room *room) {
    cudaStream_t stream = cuda_of(be)->stream;
    unsigned n_blocks = table_blocks(a->n);
    settle_kernel<false><<<n_blocks, TABLE_THREADS, 0, stream>>>(*l, *a, *room);
    TRY(cuda_launched("the new keys of place"));
    if (a->evict == EVICT_NEVER) return OK; /* nothing is late */
    mark_kernel<<<n_blocks, TABLE_THREADS, 0, stream>>>(*a, *room);
    settle_kernel<true><<<n_blocks, TABLE_THREADS, 0, stream>>>(*l, *a, *room);
    return cuda_launched("the second round of place");
}

status cuda_table_place(backend *be, const table_level *l, const table_place_args *a) {
    cudaStream_t stream = cuda_of(be)->stream;
    place_room room;
    size_t zero_bytes;
    void *memory;
    CUDA_TRY(cudaMemsetAsync(a->counts, 0, PLACED_COUNTS * sizeof *a->counts, stream));
    if (a->n == 0) return OK;
    if (l->n_buckets >= UINT32_MAX)
        return fail(ERR_UNSUPPORTED,
                    "a table of %lld buckets is too large for a GPU; make its capacity smaller",
                    (long long)l->n_buckets);
    choose_notes(&room, l, a);
    TRY(cuda_scratch(be, make_room(&room, NULL, a->n, &zero_bytes), &memory));
    make_room(&room, (char *)memory, a->n, &zero_bytes);
    CUDA_TRY(cudaMemsetAsync(memory, 0, zero_bytes, stream));
    locate_kernel<<<table_blocks(a->n), TABLE_THREADS, 0, stream>>>(*l, *a, room);
    TRY(cuda_launched("the search of place"));
    TRY(settle(be, l, a, &room));
    collect_kernel<<<(unsigned)cuda_div_up(a->n, SCAN_THREADS), SCAN_THREADS, 0, stream>>>(*a,
                                                                                           room);
    return cuda_launched("the lists of place");
}
