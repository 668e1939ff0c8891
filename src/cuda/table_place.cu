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
