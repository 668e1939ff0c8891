/* The masks of the attention inside kernels: what one query row sees, as two spans of columns, and
 * what can be said of whole tiles without looking at their rows. */
#ifndef HSTU_CUDA_ATTN_COMMON_ATTN_MASK_CUH
#define HSTU_CUDA_ATTN_COMMON_ATTN_MASK_CUH

#include "ops/ops.h"
#include "ops/time_bucket.h"

/* One sequence. */
typedef struct attn_seq {
    int b;
    int row_q, row_k; /* first rows in the jagged arrays */
    int len_q, len_k;
    int shift;      /* len_k - len_q: a query row's place among the keys is row + shift */
    int n_contexts; /* 0 where there are none */
    int history;    /* h: keys before the targets */
} attn_seq;

__device__ static inline attn_seq attn_seq_of(const attn_args &a, int b) {
    attn_seq s;
    s.b = b;
    s.row_q = a.offsets_q[b];
    s.row_k = a.offsets_k[b];
    s.len_q = a.offsets_q[b + 1] - s.row_q;
    s.len_k = a.offsets_k[b + 1] - s.row_k;
    s.shift = s.len_k - s.len_q;
    s.n_contexts = a.n_contexts != NULL ? a.n_contexts[b] : 0;
    int n_targets = a.n_targets != NULL ? a.n_targets[b] : 0;
    s.history = s.len_k - min(max(n_targets, 0), s.len_k);
    return s;
}

/* Columns first0 .. end0 - 1 and first1 .. end1 - 1, each of which may be empty.  With more than
 * three functions in func there are more, which attn_sees reads from memory. */
typedef struct attn_row_mask {
    int first0, end0, first1, end1;
} attn_row_mask;

__device__ static inline attn_row_mask attn_mask_of(const attn_args &a, const attn_seq &s,
                                                    int row) {
    attn_row_mask m = {0, 0, 0, 0};
    if (row >= s.len_q) return m;
    if (a.func != NULL) {
        const int32_t *column = a.func + s.row_q + row;
        m.end0 = min(column[0], s.len_k);
        if (a.n_func >= 3) {
            m.first1 = max(column[a.func_stride], 0);
            m.end1 = min(column[2 * a.func_stride], s.len_k);
        }
        return m;
    }
    int i = row + s.shift;
    int first = a.window_left < 0 ? 0 : max(i - a.window_left, 0);
    int end = a.window_right < 0 ? s.len_k
                                 : (int)min((long long)i + a.window_right + 1, (long long)s.len_k);
    if (i < s.n_contexts && end < s.history) end = s.history;
    m.first0 = first;
    m.end0 = end;
    if (i >= s.history) { /* a target: the history and its own group */
        int group = s.history + (i - s.history) / a.target_group * a.target_group;
        m.end0 = min(end, s.history);
        m.first1 = max(first, group);
        m.end1 = end;
    }
    return m;
}

__device__ static inline bool attn_sees(const attn_args &a, const attn_seq &s,
                                        const attn_row_mask &m, int row, int j) {
    bool sees = (j >= m.first0 && j < m.end0) || (j >= m.first1 && j < m.end1);
    if (a.n_func > 3 && a.func != NULL && row < s.len_q && j < s.len_k) {
        const int32_t *column = a.func + s.row_q + row;
        for (int f = 3; f + 1 < a.n_func; f += 2)
            sees |= j >= column[f * a.func_stride] && j < column[(f + 1) * a.func_stride];
    }
    return sees;
}

/* Of rows row0 .. row1 - 1 (query rows) and columns j0 .. j1 - 1: does surely nothing see anything?
 * Rows and columns beyond the lengths see and are seen by nothing. */
__device__ static inline bool attn_tile_is_empty(const attn_args &a, const attn_seq &s, int row0,
                                                 int row1, int j0, int j1) {
    row1 = min(row1, s.len_q);
    j1 = min(j1, s.len_k);
    if (row0 >= row1 || j0 >= j1) return true;
    if (a.func != NULL) return false;
    int i0 = row0 + s.shift, i1 = row1 + s.shift;
    if (a.window_left >= 0 && j1 - 1 < i0 - a.window_left) return true;
    if (a.window_right >= 0 && j0 > (long long)i1 - 1 + a.window_right)
        return !(i0 < s.n_contexts && j0 < s.history);
    if (i0 >= s.history && j0 >= s.history)
        return j1 <= s.history + (i0 - s.history) / a.target_group * a.target_group;
    return false;
}

/* Does surely every row see every column? */
__device__ static inline bool attn_tile_is_full(const attn_args &a, const attn_seq &s, int row0,
                                                int row1, int j0, int j1) {
    if (a.func != NULL || row1 > s.len_q || j1 > s.len_k) return false;
    int i0 = row0 + s.shift, i1 = row1 + s.shift;
    if (a.window_left >= 0 && j0 < i1 - 1 - a.window_left) return false;
    if (a.window_right >= 0 && j1 - 1 > (long long)i0 + a.window_right) return false;
    return i1 <= s.history || j1 <= s.history;
}

/* The bucket of a pair of times; `cells` is the table of ops/time_bucket.h. */
__device__ static inline int attn_bucket(const uint32_t *cells, int64_t query, int64_t key) {
    unsigned long long distance = query > key ? (unsigned long long)query - (unsigned long long)key
                                              : (unsigned long long)key - (unsigned long long)query;
    uint32_t bits = __float_as_uint(__ull2float_rn(distance > 0 ? distance : 1));
    uint32_t cell = (bits >> BUCKET_BITS) - (127u << 2);
    return (int)((cells[cell] + (bits & ((1u << BUCKET_BITS) - 1))) >> BUCKET_BITS);
}

#endif
