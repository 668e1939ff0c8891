/* place of a level (ops/table.h): find or insert, evicting where a bucket is full; and, in the same
 * call, the work of init or write on the rows.
 *
 * What a bucket admits depends on all of its keys in the call, in whatever order they come. No sort
 * is needed to bring them together: locate   a warp finds 32 keys and touches what is there; new
 * keys of a bucket become a chain, and the first that came owns the bucket; settle   owners give
 * the new keys their places, in the way of table_settle.cuh; mark     found keys tell the buckets
 * that must know what the call touched before they evict, where scores do not show it: usually none
 * if the score is the time of use; settle   once more, for those; finish   evicted entries and
 * rejected keys, kept by key until then, are moved close together, and so are rows. Bound by bytes
 * at random addresses, in pieces of 64: digests and entries of every key, the parts of new entries
 * (read before they are written, being smaller than that), all entries of full buckets, and rows.
 * Measured and found slower (H200, 2026-11-15): rows of found keys beside settle, or in locate;
 * owners compacted so that warps are full of them; and lists with one counter for all warps, since
 * additions to one address take 2 ns each. */
#include "cuda/table/table_settle.cuh"

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

template <row_work WORK>
static status launch_place(backend *be, const table_level *l, const table_place_args *a,
                           const place_room *room, const table_init_args *rows) {
    cuda_state *s = cuda_of(be);
    unsigned n_blocks = table_blocks(a->n), n_few = 2 * (unsigned)s->n_multiprocessors;
    if (n_few > n_blocks) n_few = n_blocks;
    table_place_locate_any_kernel<<<n_blocks, TABLE_THREADS, 0, s->stream>>>(*l, *a, *room);
    TRY(cuda_launched("the search of place"));
    table_place_settle_any_kernel<<<n_blocks, TABLE_THREADS, 0, s->stream>>>(*l, *a, *room);
    TRY(cuda_launched("the new keys of place"));
    if (a->evict != EVICT_NEVER) { /* else nothing is late */
        table_place_mark_any_kernel<<<n_few, TABLE_THREADS, 0, s->stream>>>(*a, *room);
        table_place_settle_late_any_kernel<<<n_few, TABLE_THREADS, 0, s->stream>>>(*l, *a, *room);
        TRY(cuda_launched("the second round of place"));
    }
    table_place_finish_any_kernel<WORK>
        <<<n_blocks, TABLE_THREADS, 0, s->stream>>>(*l, *a, *room, *rows);
    return cuda_launched("the lists of place");
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
