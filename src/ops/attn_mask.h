/* The masks of the HSTU attention (attn_args in ops.h states the rule), lowered to spans, for the
 * CPU and for CUDA kernels alike.  Three views of one mask:
 * - a query row: the spans of keys it sees (attn_row_spans, attn_func_span);
 * - a key: the spans of queries that see it (attn_key_spans), where the mask is not func;
 * - a tile of query rows and keys: empty, full or partial (attn_tile_is_empty, attn_tile_is_full),
 *   and over a tile of rows the keys that any of them may see (attn_keys_seen) and that all of them
 *   see (attn_keys_full).
 * Answers about tiles are conservative: a tile that is not reported as empty or full may still be
 * so.  For func they need func_tiles, a summary of every 64 rows that a backend computes first
 * (without it every tile is partial).
 *
 * Pure functions of their arguments, for any thread, on the host and on the device. */
#pragma once

#include "ops/ops.h"

#ifdef __CUDACC__
#define MASK_FN __host__ __device__ static inline
#else
#define MASK_FN static inline
#endif

/* Keeps a short loop rolled, in code where registers are scarce. */
#ifdef __CUDA_ARCH__
#define MASK_SMALL_LOOP _Pragma("unroll 1")
#else
#define MASK_SMALL_LOOP
#endif

/* Half open: begin .. end - 1; empty if begin >= end. */
typedef struct attn_span {
    int32_t begin, end;
} attn_span;

/* One sequence of a batch. */
typedef struct attn_sequence {
    int b;
    int row_q, row_k; /* first rows in the jagged arrays */
    int len_q, len_k;
    int shift;      /* len_k - len_q: a query row's place among the keys is row + shift */
    int n_contexts; /* 0 where there are none */
    int history;    /* h: keys before the targets */
} attn_sequence;

MASK_FN int attn_min(int x, int y) {
    return x < y ? x : y;
}
MASK_FN int attn_max(int x, int y) {
    return x > y ? x : y;
}
/* x + y, clamped to `most`: windows may be as long as an int. */
MASK_FN int attn_add(int x, int y, int most) {
    int64_t sum = (int64_t)x + y;
    return (int)(sum < most ? sum : most);
}

MASK_FN attn_sequence attn_sequence_of(const attn_args *a, int b) {
    attn_sequence s;
    s.b = b;
    s.row_q = a->offsets_q[b];
    s.row_k = a->offsets_k[b];
    s.len_q = a->offsets_q[b + 1] - s.row_q;
    s.len_k = a->offsets_k[b + 1] - s.row_k;
    s.shift = s.len_k - s.len_q;
    s.n_contexts = a->n_contexts != NULL ? a->n_contexts[b] : 0;
    int n_targets = a->n_targets != NULL ? a->n_targets[b] : 0;
    s.history = s.len_k - attn_min(attn_max(n_targets, 0), s.len_k);
    return s;
}

/* The same with the keys of pages, which come before the rows of k. */
MASK_FN attn_sequence attn_paged_sequence_of(const attn_args *a, int b) {
    attn_sequence s = attn_sequence_of(a, b);
    if (a->pages.table == NULL) return s;
    int n_paged = a->pages.offsets[b + 1] - a->pages.offsets[b] - s.len_k;
    s.len_k += n_paged;
    s.shift += n_paged;
    s.history += n_paged;
    return s;
}

/* Whether a row sees all keys up to a bound. */
MASK_FN bool attn_mask_has_one_end(const attn_args *a) {
    return a->func == NULL && a->n_targets == NULL && a->window_left < 0;
}
/* Whether that bound is the row's own place: the causal mask, by far the most frequent. */
MASK_FN bool attn_mask_is_causal(const attn_args *a) {
    return attn_mask_has_one_end(a) && a->n_contexts == NULL && a->window_right == 0;
}
/* Whether rows may have more than the two spans of attn_row_spans. */
MASK_FN bool attn_mask_has_more(const attn_args *a) {
    return a->func != NULL && a->n_func > 3;
}

/* The m-th span of keys (0 .. n_func / 2) that func gives a query row, within the sequence. */
MASK_FN attn_span attn_func_span(const attn_args *a, const attn_sequence *s, int row, int m) {
    const int32_t *f = a->func + s->row_q + row;
    attn_span span = {0, 0};
    if (m > 0) span.begin = attn_max(f[(2 * m - 1) * a->func_stride], 0);
    span.end = attn_max(attn_min(f[2 * m * a->func_stride], s->len_k), 0);
    return span;
}

/* Keys first0 .. end0 - 1 and first1 .. end1 - 1, each of which may be empty.  If
 * attn_mask_has_more, attn_func_span gives the rest. */
typedef struct attn_row_mask {
    int first0, end0, first1, end1;
} attn_row_mask;

MASK_FN attn_row_mask attn_row_spans(const attn_args *a, const attn_sequence *s, int row) {
    attn_row_mask m = {0, 0, 0, 0};
    if (row >= s->len_q) return m;
    if (a->func != NULL) {
        m.end0 = attn_func_span(a, s, row, 0).end;
        if (a->n_func >= 3) {
            attn_span second = attn_func_span(a, s, row, 1);
            m.first1 = second.begin;
            m.end1 = second.end;
        }
        return m;
    }
    int i = row + s->shift;
    int first = a->window_left < 0 ? 0 : attn_max(i - a->window_left, 0);
    int end = a->window_right < 0 ? s->len_k : attn_add(i + 1, a->window_right, s->len_k);
    if (i < s->n_contexts && end < s->history) end = s->history;
    m.first0 = first;
    m.end0 = end;
    if (i >= s->history) { /* a target: the history and its own group */
        int group = s->history + (i - s->history) / a->target_group * a->target_group;
        m.end0 = attn_min(end, s->history);
        m.first1 = attn_max(first, group);
        m.end1 = end;
    }
    return m;
}

/* Whether key j is in the spans m of a row or, if it has more than two, in one of the others. */
MASK_FN bool attn_row_sees(const attn_args *a, const attn_sequence *s, const attn_row_mask *m,
                           int row, int j) {
    bool sees = (j >= m->first0 && j < m->end0) || (j >= m->first1 && j < m->end1);
    if (attn_mask_has_more(a) && row < s->len_q) {
        for (int f = 2; 2 * f < a->n_func; f++) {
            attn_span span = attn_func_span(a, s, row, f);
            sees |= j >= span.begin && j < span.end;
        }
    }
    return sees;
}

/* The queries that see a key; a query is given by the position of its token among the keys.  Those
 * that see it by the window or as targets of its group are contiguous (`own`), and so are the
 * contextual tokens before them (`contexts`).  Not for func; windows and groups must not be longer
 * than the longest sequence. */
typedef struct attn_key_mask {
    attn_span contexts, own;
} attn_key_mask;

MASK_FN attn_key_mask attn_key_spans(const attn_args *a, const attn_sequence *s, int key) {
    attn_key_mask m = {{0, 0}, {0, 0}};
    if (key >= s->len_k) return m;
    m.own.begin = a->window_right < 0 ? 0 : key - a->window_right;
    m.own.end = s->len_k;
    if (a->window_left >= 0) m.own.end = attn_min(m.own.end, key + a->window_left + 1);
    if (key >= s->history) /* a target */
        m.own.end = attn_min(m.own.end, s->history + ((key - s->history) / a->target_group + 1) *
                                                         a->target_group);
    if (key < s->history) m.contexts.end = attn_min(s->n_contexts, m.own.end);
    return m;
}

/* Summary of a func mask over ATTN_FUNC_ROWS query rows, aligned to a multiple of them: the range
 * from the first to the last key that any row sees, and a range of keys that all rows see (only the
 * longest span of each row counts). func_tiles: (attn_func_tiles_count); sequence b owns the
 * entries from offsets_q[b] / ATTN_FUNC_ROWS + b on, enough for all its rows. */
enum { ATTN_FUNC_ROWS = 64 };

typedef struct attn_func_tile {
    attn_span seen, full;
} attn_func_tile;

MASK_FN int64_t attn_func_tiles_count(const attn_args *a) {
    int64_t most = (int64_t)a->n_sequences * a->max_len_q;
    return (a->n_rows_q > 0 ? a->n_rows_q : most) / ATTN_FUNC_ROWS + a->n_sequences;
}
MASK_FN int attn_func_tile_index(const attn_sequence *s, int row) {
    return s->row_q / ATTN_FUNC_ROWS + s->b + row / ATTN_FUNC_ROWS;
}

/* The summary of one row; for a row beyond the sequence's end, the neutral element. */
MASK_FN attn_func_tile attn_func_tile_of(const attn_args *a, const attn_sequence *s, int row) {
    attn_func_tile tile = {{INT32_MAX, 0}, {0, INT32_MAX}};
    if (row >= s->len_q) return tile;
    tile.full.end = 0;
    for (int m = 0; 2 * m < a->n_func; m++) {
        attn_span span = attn_func_span(a, s, row, m);
        if (span.begin >= span.end) continue;
        tile.seen.begin = attn_min(tile.seen.begin, span.begin);
        tile.seen.end = attn_max(tile.seen.end, span.end);
        if (span.end - span.begin > tile.full.end - tile.full.begin) tile.full = span;
    }
    return tile;
}

/* That of two tiles together. */
MASK_FN attn_func_tile attn_func_tile_join(attn_func_tile x, attn_func_tile y) {
    x.seen.begin = attn_min(x.seen.begin, y.seen.begin);
    x.seen.end = attn_max(x.seen.end, y.seen.end);
    x.full.begin = attn_max(x.full.begin, y.full.begin);
    x.full.end = attn_min(x.full.end, y.full.end);
    return x;
}

/* Keys that any of query rows row0 .. row1 - 1 may see through func. */
MASK_FN attn_span attn_func_seen(const attn_args *a, const attn_sequence *s, int row0, int row1) {
    attn_span seen = {0, s->len_k};
    if (a->func_tiles == NULL) return seen;
    seen.begin = INT32_MAX;
    seen.end = 0;
    MASK_SMALL_LOOP
    for (int row = row0 / ATTN_FUNC_ROWS * ATTN_FUNC_ROWS; row < row1; row += ATTN_FUNC_ROWS) {
        const attn_func_tile *tile = a->func_tiles + attn_func_tile_index(s, row);
        seen.begin = attn_min(seen.begin, tile->seen.begin);
        seen.end = attn_max(seen.end, tile->seen.end);
    }
    if (seen.begin >= seen.end) seen.begin = seen.end = 0;
    return seen;
}

/* Keys that all of these rows see; an end of -1: no such keys are known. */
MASK_FN attn_span attn_func_full(const attn_args *a, const attn_sequence *s, int row0, int row1) {
    attn_span full = {0, a->func_tiles == NULL ? -1 : s->len_k};
    MASK_SMALL_LOOP
    for (int row = row0 / ATTN_FUNC_ROWS * ATTN_FUNC_ROWS; row < row1 && full.end > full.begin;
         row += ATTN_FUNC_ROWS) {
        const attn_func_tile *tile = a->func_tiles + attn_func_tile_index(s, row);
        full.begin = attn_max(full.begin, tile->full.begin);
        full.end = attn_min(full.end, tile->full.end);
    }
    if (full.begin >= full.end) full.end = -1;
    return full;
}

/* Keys that any of n query rows from row0 on may see. */
MASK_FN attn_span attn_keys_seen(const attn_args *a, const attn_sequence *s, int row0, int n) {
    int row1 = attn_min(row0 + n, s->len_q), i0 = row0 + s->shift, i1 = row1 + s->shift;
    attn_span seen = {0, row0 < row1 ? s->len_k : 0};
    if (row0 >= row1) return seen;
    if (a->func != NULL) return attn_func_seen(a, s, row0, row1);
    if (a->window_left >= 0) seen.begin = attn_max(i0 - a->window_left, 0);
    if (a->window_right >= 0) {
        seen.end = attn_add(i1, a->window_right, s->len_k);
        if (i0 < s->n_contexts) seen.end = attn_max(seen.end, s->history);
    }
    return seen;
}

/* Keys in that range that none of the rows sees: the target groups before the rows' own. */
MASK_FN attn_span attn_keys_hole(const attn_args *a, const attn_sequence *s, int row0) {
    int i0 = row0 + s->shift;
    attn_span hole = {0, 0};
    if (a->func != NULL || i0 < s->history) return hole;
    hole.begin = s->history;
    hole.end = s->history + (i0 - s->history) / a->target_group * a->target_group;
    return hole;
}

/* Keys that all of n query rows see; rows beyond the sequence's end do not count.  An end of -1: no
 * such keys are known. */
MASK_FN attn_span attn_keys_full(const attn_args *a, const attn_sequence *s, int row0, int n) {
    int row1 = attn_min(row0 + n, s->len_q), i0 = row0 + s->shift, i1 = row1 + s->shift;
    attn_span full = {0, s->len_k};
    if (row0 >= row1) return full;
    if (a->func != NULL) return attn_func_full(a, s, row0, row1);
    if (a->window_left >= 0) full.begin = attn_max(i1 - 1 - a->window_left, 0);
    if (a->window_right >= 0) full.end = attn_add(i0 + 1, a->window_right, s->len_k);
    if (i1 <= s->n_contexts) full.end = attn_max(full.end, s->history);
    if (i1 > s->history) full.end = attn_min(full.end, s->history);
    return full;
}

/* The range of query rows that may see any of n keys from key0 on. */
MASK_FN attn_span attn_queries_seeing(const attn_args *a, const attn_sequence *s, int key0, int n) {
    attn_span rows = {0, s->len_q};
    int first = key0 - s->shift, end = attn_min(key0 + n, s->len_k) - s->shift;
    if (a->func != NULL) return rows;
    if (a->window_right >= 0 && s->n_contexts <= 0)
        rows.begin = first > a->window_right ? first - a->window_right : 0;
    if (a->window_left >= 0) rows.end = attn_max(attn_add(end, a->window_left, rows.end), 0);
    return rows;
}

/* Whether surely none of query rows row0 .. row1 - 1 sees any of keys j0 .. j1 - 1, under a mask
 * that is not func. Rows and keys beyond the lengths see nothing and are not seen. */
MASK_FN bool attn_rule_is_empty(const attn_args *a, const attn_sequence *s, int row0, int row1,
                                int j0, int j1) {
    row1 = attn_min(row1, s->len_q);
    j1 = attn_min(j1, s->len_k);
    if (row0 >= row1 || j0 >= j1) return true;
    int i0 = row0 + s->shift, i1 = row1 + s->shift;
    if (a->window_left >= 0 && j1 - 1 < i0 - a->window_left) return true;
    if (a->window_right >= 0 && j0 > (int64_t)i1 - 1 + a->window_right)
        return !(i0 < s->n_contexts && j0 < s->history);
    if (i0 >= s->history && j0 >= s->history)
        return j1 <= s->history + (i0 - s->history) / a->target_group * a->target_group;
    return false;
}

/* Does surely every row see every key? */
MASK_FN bool attn_rule_is_full(const attn_args *a, const attn_sequence *s, int row0, int row1,
                               int j0, int j1) {
    if (row1 > s->len_q || j1 > s->len_k) return false;
    int i0 = row0 + s->shift, i1 = row1 + s->shift;
    if (a->window_left >= 0 && j0 < i1 - 1 - a->window_left) return false;
    if (a->window_right >= 0 && j1 - 1 > (int64_t)i0 + a->window_right) return false;
    return i1 <= s->history || j1 <= s->history;
}

/* Empty and full under a func mask, and under any mask. */
MASK_FN bool attn_func_is_empty(const attn_args *a, const attn_sequence *s, int row0, int row1,
                                int j0, int j1) {
    row1 = attn_min(row1, s->len_q);
    j1 = attn_min(j1, s->len_k);
    if (row0 >= row1 || j0 >= j1) return true;
    attn_span seen = attn_func_seen(a, s, row0, row1);
    return j1 <= seen.begin || j0 >= seen.end;
}
MASK_FN bool attn_func_is_full(const attn_args *a, const attn_sequence *s, int row0, int row1,
                               int j0, int j1) {
    if (row1 > s->len_q || j1 > s->len_k) return false;
    attn_span full = attn_func_full(a, s, row0, row1);
    return j0 >= full.begin && j1 <= full.end;
}
MASK_FN bool attn_tile_is_empty(const attn_args *a, const attn_sequence *s, int row0, int row1,
                                int j0, int j1) {
    return a->func != NULL ? attn_func_is_empty(a, s, row0, row1, j0, j1)
                           : attn_rule_is_empty(a, s, row0, row1, j0, j1);
}
MASK_FN bool attn_tile_is_full(const attn_args *a, const attn_sequence *s, int row0, int row1,
                               int j0, int j1) {
    return a->func != NULL ? attn_func_is_full(a, s, row0, row1, j0, j1)
                           : attn_rule_is_full(a, s, row0, row1, j0, j1);
}
