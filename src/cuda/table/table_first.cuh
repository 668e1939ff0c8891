/* Initial values of embedding rows, and the pass over the rows of a warp's 32 keys (contract:
 * ops/table.h). Used by init and write, and by place, which includes their work in its own
 * passes. */
#ifndef HSTU_CUDA_TABLE_TABLE_FIRST_CUH
#define HSTU_CUDA_TABLE_TABLE_FIRST_CUH

#include "cuda/table/table.cuh"

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

#endif
