#include "cpu/attn_mask.h"

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

int32_t attn_mask_row(const attn_args *a, int32_t b, int32_t row, attn_span *out) {
    attn_sequence s = attn_paged_sequence_of(a, b);
    if (a->func != NULL) {
        int32_t n = (a->n_func + 1) / 2;
        for (int32_t m = 0; m < n; m++)
            out[m] = attn_func_span(a, &s, row, m);
        return tidy(out, n);
    }
    attn_row_mask m = attn_row_spans(a, &s, row);
    out[0] = (attn_span){m.first0, m.end0};
    out[1] = (attn_span){m.first1, m.end1};
    return tidy(out, 2);
}

status attn_lengths_check(const attn_args *a) {
    for (int32_t b = 0; b < a->n_sequences; b++) {
        int64_t len_q = (int64_t)a->offsets_q[b + 1] - a->offsets_q[b];
        int64_t n_rows = (int64_t)a->offsets_k[b + 1] - a->offsets_k[b], len_k = n_rows;
        if (a->pages.table != NULL) {
            len_k = (int64_t)a->pages.offsets[b + 1] - a->pages.offsets[b];
            if (n_rows < 0 || n_rows > len_k ||
                len_k - n_rows > (int64_t)a->pages.max_pages * a->pages.page_len)
                return fail(ERR_USAGE,
                            "attention: sequence %d has %lld keys, %lld of them not in pages; its "
                            "table has %d pages of %d",
                            b, (long long)len_k, (long long)n_rows, a->pages.max_pages,
                            a->pages.page_len);
        }
        if (len_q < 0 || len_q > len_k || len_q > a->max_len_q || len_k > a->max_len_k)
            return fail(ERR_USAGE,
                        "attention: sequence %d has %lld queries and %lld keys, but 0 <= queries "
                        "<= keys, at most %d and %d, must hold; raise max_len_q / max_len_k",
                        b, (long long)len_q, (long long)len_k, a->max_len_q, a->max_len_k);
    }
    return OK;
}
