#include "cpu/attn_mask.h"

static int32_t clamp(int64_t value, int64_t low, int64_t high) {
    return (int32_t)(value < low ? low : value > high ? high : value);
}

int32_t attn_mask_max_spans(const attn_args *a) {
    return a->func != NULL ? (a->n_func + 1) / 2 : 2;
}

/* Puts spans in order, drops empty ones and joins those that touch or overlap. */
static int32_t tidy(attn_span *spans, int32_t n) {
    int32_t n_kept = 0;
    for (int32_t m = 1; m < n; m++) {
        attn_span span = spans[m];
        int32_t at = m;
        for (; at > 0 && spans[at - 1].begin > span.begin; at--)
            spans[at] = spans[at - 1];
        spans[at] = span;
    }
    for (int32_t m = 0; m < n; m++) {
        if (spans[m].begin >= spans[m].end) continue;
        if (n_kept > 0 && spans[m].begin <= spans[n_kept - 1].end) {
            attn_span *last = &spans[n_kept - 1];
            if (spans[m].end > last->end) last->end = spans[m].end;
        } else {
            spans[n_kept++] = spans[m];
        }
    }
    return n_kept;
}

static int32_t func_row(const attn_args *a, int64_t row, int32_t len, attn_span *out) {
    const int32_t *column = a->func + row;
    out[0] = (attn_span){0, clamp(column[0], 0, len)};
    for (int32_t m = 1; 2 * m < a->n_func; m++) {
        out[m].begin = clamp(column[(2 * m - 1) * a->func_stride], 0, len);
        out[m].end = clamp(column[2 * m * a->func_stride], 0, len);
    }
    return tidy(out, (a->n_func + 1) / 2);
}

int32_t attn_mask_row(const attn_args *a, int32_t b, int32_t row, attn_span *out) {
    int32_t len_q = a->offsets_q[b + 1] - a->offsets_q[b];
    int32_t len = a->offsets_k[b + 1] - a->offsets_k[b];
    if (a->func != NULL) return func_row(a, (int64_t)a->offsets_q[b] + row, len, out);

    int64_t i = (int64_t)row + len - len_q;
    int32_t begin = a->window_left < 0 ? 0 : clamp(i - a->window_left, 0, len);
    int32_t end = a->window_right < 0 ? len : clamp(i + a->window_right + 1, 0, len);
    int32_t n_targets = a->n_targets != NULL ? clamp(a->n_targets[b], 0, len) : 0;
    int32_t history = len - n_targets;
    if (a->n_contexts != NULL && i < a->n_contexts[b] && end < history) end = history;
    if (i < history) {
        out[0] = (attn_span){begin, end};
        return tidy(out, 1);
    }
    /* A target sees the history and its own group: the groups between are cut out. */
    int32_t group = history + (int32_t)((i - history) / a->target_group) * a->target_group;
    out[0] = (attn_span){begin, end < history ? end : history};
    out[1] = (attn_span){begin > group ? begin : group, end};
    return tidy(out, 2);
}

status attn_lengths_check(const attn_args *a) {
    for (int32_t b = 0; b < a->n_sequences; b++) {
        int64_t len_q = (int64_t)a->offsets_q[b + 1] - a->offsets_q[b];
        int64_t len_k = (int64_t)a->offsets_k[b + 1] - a->offsets_k[b];
        if (len_q < 0 || len_q > len_k || len_q > a->max_len_q || len_k > a->max_len_k)
            return fail(ERR_USAGE,
                        "attention: sequence %d has %lld queries and %lld keys, but 0 <= queries "
                        "<= keys, at most %d and %d, must hold; raise max_len_q / max_len_k",
                        b, (long long)len_q, (long long)len_k, a->max_len_q, a->max_len_k);
    }
    return OK;
}
