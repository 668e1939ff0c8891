/* HSTU attention, backward, on Hopper: head dimension 256, sequences that are worked on whole.
 *
 * A block computes with 64 keys.  Their dk and dv fill the registers of a warpgroup each, so the
 * work is divided by result: one consumer warpgroup makes scores and weights, keeps dv, and leaves
 * the slopes in shared memory; the other makes dp, multiplies it by the slopes, and keeps dk. dq
 * comes later, 64 queries a warpgroup, from gradients of scores that were kept in memory
 * (attn_sm90_bwd_d256_steps.cuh describes the order); for a sequence of one tile it is computed
 * immediately, half of the columns by each warpgroup.  The epilogue stages results in slots whose
 * tiles are no longer needed.  Bound by L2 bandwidth, 64 KB for four products of 64 x 64 pairs;
 * with short sequences by latency.
 *
 * TFLOP/s by replay (H200, 2026-11-15; 4 heads, causal, bfloat16; sequences x lengths):
 *                                                       128 x 1..512   128 x 1..200   512 x 1..50
 *     before: parts of dq in memory; a kernel of one tile        139             77            24
 *     gradients in memory, results stored from registers *       191             81            18
 *     results staged in shared memory *                          201             92            21
 *     staged, no trace                                           212             99            23
 * (*: with a trace of the clock at a dozen points.) */
#include "cuda/attn/sm90/attn_sm90_bwd_d256_steps.cuh"

enum { THREADS = 3 * GROUP };
enum { ASKING = 72, COMPUTING = 216 }; /* registers */

/* The slot of one of a step's operands, once it is loaded. */
__device__ static inline const char *slot_wait(const wide_room &room, int slots, int place) {
    int slot = slots >> place & 7;
    barrier_wait(&room.end->full[slot], (uint32_t)(slots >> place >> 3 & 1));
    return room.slots + slot * SLOT;
}

/* Releases a slot when all lanes of the warp are done with it: otherwise a late lane could find the
 * barrier one phase ahead.  Products and __syncwarp ensure that all are done. */
__device__ static inline void slot_release(const wide_room &room, int slots, int place) {
    release(&room.end->free[slots >> place & 7]);
}

/* Releases a slot that the warp does not need.  It still waits for the load: waiting for a
 * barrier's phase is valid only if all earlier phases are known to be complete. */
__device__ static inline void slot_pass(const wide_room &room, int slots, int place) {
    slot_wait(room, slots, place);
    __syncwarp();
    slot_release(room, slots, place);
}

/* x (64 keys, 64 queries) = a b^T. */
template <typename T>
__device__ static inline void wide_scores(float (&x)[32], const char *a, const char *b) {
    uint64_t desc_a = tile_describe_grains(a, GRAIN), desc_b = tile_describe_grains(b, GRAIN);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < D / 16; k++)
        wgmma_ss<T, 64>(x, tile_move(desc_a, k / 4 * 1024 + k % 4 * 32),
                        tile_move(desc_b, k / 4 * 1024 + k % 4 * 32), k > 0);
    wgmma_commit();
}

/* sum (64, D) += left (64, 64 queries) times a tile of queries or dout. */
template <typename T>
__device__ static inline void wide_sum(float (&sum)[D / 2], const uint32_t (&left)[4][4],
                                       const char *tile) {
    uint64_t b = tile_describe_grains(tile, GRAIN);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; k++)
        wgmma_rs<T, D>(sum, left[k], tile_move(b, k * 2 * GRAIN), 1);
    wgmma_commit();
}

/* dq (64 queries, N) (+)= ds (64 keys, 64 queries) transposed times columns of the keys. */
template <typename T, int N>
__device__ static inline void wide_product(float (&dq)[N / 2], const char *ds, const char *keys,
                                           bool adds) {
    uint64_t a = tile_describe(ds, 16), b = tile_describe_grains(keys, GRAIN);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; k++)
        wgmma_tt<T, N>(dq, tile_move(a, k * 16 * DS_ROW), tile_move(b, k * 2 * GRAIN),
                       adds || k > 0);
    wgmma_commit();
    wgmma_wait<0>();
}

/* Stores dv or, in the second warpgroup, dk, staged in a slot that only this warpgroup still uses.
 */
template <typename T, bool IS_DK>
__device__ static inline void wide_store(const attn_args &a, const wide_step *w, char *slot,
                                         const float (&sum)[D / 2]) {
    const attn_sequence &s = w->pair.s;
    int warp = (int)threadIdx.x % GROUP / 32;
    int64_t stride = IS_DK ? a.stride_k : a.stride_v;
    T *to = (T *)(IS_DK ? a.dk : a.dv) + (int64_t)s.row_k * stride + w->pair.head * D;
    named_barrier(1 + IS_DK, GROUP); /* all of its warps are done with it */
    store_staged<T, D>(slot + warp * SLOT / 4, to, stride, w->key0 + 16 * warp, s.len_k,
                       IS_DK ? 0.5f * a.alpha * a.scale : a.scale, sum);
    shared_fence();
    __syncwarp();
}

/* Stores N columns of dq from `column` on, for 64 rows from `row` on, staged in the warpgroup's
 * half of a slot. */
template <typename T, int N>
__device__ static inline void wide_store_dq(const attn_args &a, const wide_step *w, char *half,
                                            int row, int column, const float (&dq)[N / 2]) {
    const attn_sequence &s = w->pair.s;
    int warp = (int)threadIdx.x % GROUP / 32;
    T *to = (T *)a.dq + (int64_t)s.row_q * a.stride_q + w->pair.head * D + column;
    store_staged<T, N>(half + warp * SLOT / 8, to, a.stride_q, row + 16 * warp, s.len_q,
                       0.5f * a.alpha * a.scale, dq);
}

/* Zeros for keys that no query sees. */
template <typename T, bool IS_DK>
__device__ static inline void wide_store_zeros(const attn_args &a, const wide_step *w) {
    const attn_sequence &s = w->pair.s;
    int64_t stride = IS_DK ? a.stride_k : a.stride_v;
    T *to = (T *)(IS_DK ? a.dk : a.dv) + (int64_t)s.row_k * stride + w->pair.head * D;
    float zeros[D / 2];
    clear(zeros);
    store_wide<T, D>(to, stride, w->key0 + row_of_thread(), s.len_k, 0, zeros);
}

__device__ static inline uint32_t wide_mask(const attn_args &a, const wide_step *w) {
    if (w->flags & STEP_FULL) return 0xffffffffu;
    return bwd_mask(a, w->pair.s, w->key0 + row_of_thread(), w->row);
}

/* Scores, weights and dv of tile n. */
template <typename T>
__device__ static inline void wide_tile_dv(const attn_args &a, const wide_room &room,
                                           const wide_step *w, int n, float (&dv)[D / 2]) {
    wide_end *e = room.end;
    int flags = w->flags, slots = w->slots;
    uint32_t weights[4][4], seen = wide_mask(a, w);
    float x[32];
    const char *keys = slot_wait(room, slots, AT_KEYS);
    const char *queries = slot_wait(room, slots, AT_QUERIES);
    wide_scores<T>(x, keys, queries);
    wgmma_wait<0>();
    slot_release(room, slots, AT_QUERIES);
    bool is_early = (flags & (STEP_LAST | STEP_ALONE)) == STEP_LAST;
    if (is_early) slot_release(room, slots, AT_KEYS);
    bwd_hide(0.5f * a.alpha, seen, x);
    bwd_weights<T>(0.5f * a.alpha, x, weights);
    barrier_wait(&e->slopes_free[n % 2], (uint32_t)(n / 2 + 1) & 1);
    slopes_put(room.slopes + n % 2 * SLOPES, x);
    release(&e->slopes[n % 2]);
    if (is_early) slot_pass(room, slots, AT_VALUES);
    const char *douts = slot_wait(room, slots, AT_DOUTS);
    wide_sum<T>(dv, weights, douts);
    wgmma_wait<0>();
    if (flags & STEP_LAST) {
        barrier_wait(&e->slopes_free[n % 2],
                     (uint32_t)(n / 2) & 1); /* the other warpgroup needs no dout */
        wide_store<T, false>(a, w, (char *)douts, dv);
    }
    slot_release(room, slots, AT_DOUTS);
}

/* Writes the gradients of tile n to shared memory.  By then all warps know that the bulk copy of
 * the previous tile, if any, has read its gradients. */
__device__ static inline void wide_put(const wide_room &room, int flags, int n,
                                       const uint32_t (&ds)[4][4]) {
    wide_end *e = room.end;
    if (n > 0) barrier_wait(&e->ds[(n - 1) % 2], (uint32_t)((n - 1) / 2) & 1);
    bwd_put(room.ds + n % 2 * DS, 0, ds);
    if (threadIdx.x == GROUP) {
        if (flags & STEP_STORED) {
            bulk_wait_stored();
            barrier_arrive(&e->stored);
        } else {
            bulk_wait_read();
        }
    }
    __syncwarp();
    release(&e->ds[n % 2]);
}

/* dp, gradients and dk of tile n. */
template <typename T>
__device__ static inline void wide_tile_dk(const attn_args &a, const wide_room &room,
                                           const wide_step *w, int n, float (&dk)[D / 2]) {
    wide_end *e = room.end;
    int flags = w->flags, slots = w->slots;
    uint32_t ds[4][4];
    float dp[32];
    const char *values = slot_wait(room, slots, AT_VALUES);
    const char *douts = slot_wait(room, slots, AT_DOUTS);
    wide_scores<T>(dp, values, douts);
    wgmma_wait<0>();
    slot_release(room, slots, AT_DOUTS);
    bool is_early = (flags & (STEP_LAST | STEP_ALONE)) == STEP_LAST;
    if (is_early) slot_release(room, slots, AT_VALUES);
    if (is_early) slot_pass(room, slots, AT_KEYS);
    barrier_wait(&e->slopes[n % 2], (uint32_t)(n / 2) & 1);
    slopes_apply<T>(room.slopes + n % 2 * SLOPES, dp, ds);
    if (flags & (STEP_KEEP | STEP_ALONE)) wide_put(room, flags, n, ds);
    __syncwarp();
    release(&e->slopes_free[n % 2]);
    const char *queries = slot_wait(room, slots, AT_QUERIES);
    wide_sum<T>(dk, ds, queries);
    if ((flags & STEP_KEEP) != 0 && threadIdx.x == GROUP) {
        barrier_wait(&e->ds[n % 2], (uint32_t)(n / 2) & 1);
        bulk_store(w->ds, room.ds + n % 2 * DS, DS);
    }
    __syncwarp();
    wgmma_wait<0>();
    /* The slopes have arrived, so the other warpgroup no longer needs the queries. */
    if (flags & STEP_LAST) wide_store<T, true>(a, w, (char *)queries, dk);
    slot_release(room, slots, AT_QUERIES);
}

/* Adds the part of 64 keys to dq of the warpgroup's 64 queries; after the last keys stores dq, in
 * two halves. */
template <typename T>
__device__ static inline void wide_dq(const attn_args &a, const wide_room &room, const wide_step *w,
                                      int group, float (&dq)[D / 2]) {
    int slots = w->slots, flags = w->flags, row = w->row + group * QUERIES;
    const char *keys = slot_wait(room, slots, AT_KEYS);
    char *half = (char *)slot_wait(room, slots, AT_DS) + group * SLOT / 2;
    if (flags & STEP_HAS << group) wide_product<T, D>(dq, half, keys, true);
    __syncwarp();
    slot_release(room, slots, AT_KEYS);
    if (flags & STEP_LAST) {
        named_barrier(1 + group, GROUP);
        wide_store_dq<T, D / 2>(a, w, half, row, 0, *(const float(*)[D / 4]) dq);
        wide_store_dq<T, D / 2>(a, w, half, row, D / 2, *(const float(*)[D / 4])(dq + D / 4));
        shared_fence();
        __syncwarp();
    }
    slot_release(room, slots, AT_DS);
}

/* Computes half of the columns of dq for a sequence of one tile, n; staged in the values' slot. */
template <typename T>
__device__ static inline void wide_dq_alone(const attn_args &a, const wide_room &room,
                                            const wide_step *w, int n, int group) {
    int slots = w->slots, column = group * D / 2;
    float dq[D / 4];
    const char *keys = slot_wait(room, slots, AT_KEYS);
    char *half = (char *)slot_wait(room, slots, AT_VALUES) + group * SLOT / 2;
    barrier_wait(&room.end->ds[n % 2], (uint32_t)(n / 2) & 1);
    wide_product<T, D / 2>(dq, room.ds + n % 2 * DS, keys + column / PART * 1024, false);
    slot_release(room, slots, AT_KEYS);
    wide_store_dq<T, D / 2>(a, w, half, 0, column, dq);
    shared_fence();
    __syncwarp();
    slot_release(room, slots, AT_VALUES);
}

/* The thread that copies gradients to memory signals that its copies are complete. (In the step of
 * a tile it signals where it waits for its copies anyway.) */
__device__ static inline void wide_say_stored(wide_end *e, int flags) {
    bool is_tile = (flags & STEP_KIND) == STEP_TILE;
    if ((flags & STEP_STORED) == 0 || is_tile || threadIdx.x != GROUP) return;
    bulk_wait_stored();
    barrier_arrive(&e->stored);
}

/* All steps of a warpgroup. */
template <typename T, bool IS_DK>
__device__ static void wide_compute(const attn_args &a, const wide_room &room) {
    wide_end *e = room.end;
    float sum[D / 2];
    for (int m = 0, n = 0;; m++) { /* n: tiles */
        const wide_step *w = &e->steps[m % STEPS];
        barrier_wait(&e->ready[m % STEPS], (uint32_t)(m / STEPS) & 1);
        int flags = w->flags, kind = flags & STEP_KIND;
        if (kind == STEP_END) return;
        if (flags & STEP_FIRST) clear(sum);
        if (IS_DK) wide_say_stored(e, flags);
        __syncwarp();
        if (kind == STEP_DQ) {
            wide_dq<T>(a, room, w, IS_DK, sum);
        } else if (kind == STEP_TILE) {
            if (IS_DK)
                wide_tile_dk<T>(a, room, w, n, sum);
            else
                wide_tile_dv<T>(a, room, w, n, sum);
        } else if (flags & STEP_LAST) {
            wide_store_zeros<T, IS_DK>(a, w);
        }
        if (flags & STEP_ALONE) {
            wide_dq_alone<T>(a, room, w, n, IS_DK);
            clear(sum); /* tells the compiler that its registers were free */
        }
        n += kind == STEP_TILE;
        __syncwarp();
        release(&e->taken[m % STEPS]);
    }
}

/* Rows that no box loads are multiplied by weights of 0, but must be finite: all slots are
 * cleared. */
__device__ static inline void wide_clear(char *slots) {
    for (int i = (int)threadIdx.x; i < SLOTS * SLOT / 16; i += THREADS)
        ((uint4 *)slots)[i] = make_uint4(0, 0, 0, 0);
    shared_fence();
}

template <typename T>
__global__ void __launch_bounds__(THREADS, 1)
    attn_bwd_d256_short_sm90_kernel(const __grid_constant__ wide_job job) {
    extern __shared__ __align__(1024) char shared[];
    wide_room room;
    room.slots = shared;
    room.ds = room.slots + SLOTS * SLOT;
    room.slopes = room.ds + 2 * DS;
    room.end = (wide_end *)(shared + BYTES);
    if (threadIdx.x == 0) wide_barriers_init(room.end);
    wide_clear(room.slots);
    __syncthreads();
    grid_wait();
    if (threadIdx.x < GROUP) {
        registers_raise<COMPUTING>();
        wide_compute<T, false>(job.job.a, room);
    } else if (threadIdx.x < 2 * GROUP) {
        registers_raise<COMPUTING>();
        wide_compute<T, true>(job.job.a, room);
    } else {
        registers_lower<ASKING>();
        if (threadIdx.x < 2 * GROUP + 32)
            ask_all(job, room);
        else if (threadIdx.x == 2 * GROUP + 32)
            find_all(job.job, room.end);
    }
}

/* Tensor maps of the four arrays: with boxes of one grain (8 rows) and of a whole tile (64 rows).
 */
static status make_maps(backend *be, const attn_args *a, bwd_maps *tiles, bwd_maps *grains) {
    int64_t columns = (int64_t)a->n_heads * D, n_q = a->n_rows_q, n_k = a->n_rows_k;
    const void *arrays[] = {a->q, a->k, a->v, a->dout};
    int64_t n_rows[] = {n_q, n_k, n_k, n_q};
    int64_t strides[] = {a->stride_q, a->stride_k, a->stride_v, a->stride_out};
    for (int i = 0; i < 4; i++) {
        TRY(sm90a_map_grains(&tiles->q + i, be->act, arrays[i], n_rows[i], columns, strides[i], 64,
                             D));
        TRY(sm90a_map_heads(&grains->q + i, be->act, arrays[i], n_rows[i], columns, strides[i],
                            PART, 8, D));
    }
    return OK;
}

status cuda_attn_sm90_bwd_d256_short(backend *be, const attn_args *a) {
    using T = __nv_bfloat16;
    constexpr int ROOM = BYTES + (int)sizeof(wide_end);
    static_assert(ROOM <= 227 * 1024, "shared memory");
    int64_t n_blocks = cuda_of(be)->n_multiprocessors;
    wide_job job;
    TRY(bwd_prepare(be, a, KEYS, &n_blocks, &job.job));
    TRY(make_maps(be, a, &job.tiles, &job.grains));
    job.room = bwd_kept_bytes(a);
    if (n_blocks > 0) {
        CUDA_TRY(CUDA_ALLOW_SHARED(attn_bwd_d256_short_sm90_kernel<T>, ROOM));
        CUDA_TRY(sm90a_launch_early(attn_bwd_d256_short_sm90_kernel<T>, n_blocks, THREADS, ROOM,
                                    cuda_of(be)->stream, job));
        TRY(cuda_launched("the gradient of the attention"));
    }
    return OK;
}
