#include "profile/work_pairs.h"

#include <string.h>

#include "ops/attn_mask.h"

static bool is_on_cpu(const backend *be) {
    return be->is_host;
}

/* All sequences have the longest length, or nearly: arrays of a step that is recorded have up to
 * some hundred rows more than there are tokens. */
enum { PADDING = 512 };
static bool is_even(int64_t n_rows, int32_t n, int32_t len) {
    int64_t all = (int64_t)n * len;
    return n_rows > 0 && n_rows >= all && n_rows < all + PADDING &&
           (n_rows == all || all >= 8 * PADDING);
}

/* The keys in any of the spans that func gives a row; they may overlap, in any order. */
static int64_t count_func(const attn_args *a, const attn_sequence *s, int row) {
    int64_t n = 0;
    for (int32_t at = 0; at < s->len_k;) {
        int32_t end = at, next = s->len_k;
        for (int m = 0; 2 * m < a->n_func; m++) {
            attn_span span = attn_func_span(a, s, row, m);
            if (span.begin <= at && span.end > end) end = span.end;
            if (span.begin > at && span.begin < span.end && span.begin < next) next = span.begin;
        }
        n += end - at;
        at = end > at ? end : next;
    }
    return n;
}

static int64_t count_span(int begin, int end) {
    return begin < end ? end - begin : 0;
}

static int64_t count_row(const attn_args *a, const attn_sequence *s, int row) {
    if (a->func != NULL) return count_func(a, s, row);
    attn_row_mask m = attn_row_spans(a, s, row); /* its two spans are apart */
    return count_span(m.first0, m.end0) + count_span(m.first1, m.end1);
}

static int64_t count_sequence(const attn_args *a, const attn_sequence *s) {
    int64_t n = 0;
    for (int row = 0; row < s->len_q; row++)
        n += count_row(a, s, row);
    return n;
}

/* The commonest mask needs no rows, and of sequences that are alike one is counted. */
static int64_t count_again(const attn_args *a, const attn_sequence *s, const attn_sequence *last,
                           int64_t n_last) {
    if (attn_mask_is_causal(a)) {
        int64_t q = s->len_q;
        return s->shift >= 0 ? q * s->shift + q * (q + 1) / 2 : count_sequence(a, s);
    }
    bool is_alike = last->len_q == s->len_q && last->len_k == s->len_k &&
                    last->n_contexts == s->n_contexts && last->history == s->history;
    return is_alike ? n_last : count_sequence(a, s);
}

void work_pairs_ask_attn(pairs_ask *out, const attn_args *a) {
    memset(out, 0, sizeof *out);
    if (a->func != NULL || a->pages.table != NULL) return;
    out->offsets_q = a->offsets_q;
    out->offsets_k = a->offsets_k;
    out->n_contexts = a->n_contexts;
    out->n_targets = a->n_targets;
    out->n_sequences = a->n_sequences;
    out->window_left = a->window_left;
    out->window_right = a->window_right;
    out->target_group = a->target_group;
}

void work_pairs_ask_softmax(pairs_ask *out, const softmax_attn_args *a) {
    memset(out, 0, sizeof *out);
    if (!mask_rule_is_span(&a->mask.rule)) return;
    out->offsets_q = out->offsets_k = a->offsets;
    out->n_sequences = a->n_sequences;
    out->is_softmax = true;
    memcpy(&out->rule, &a->mask.rule, sizeof out->rule);
}

double work_pairs_answer(const pairs_ask *ask) {
    const attn_args a = {.n_sequences = ask->n_sequences,
                         .offsets_q = ask->offsets_q,
                         .offsets_k = ask->offsets_k,
                         .n_contexts = ask->n_contexts,
                         .n_targets = ask->n_targets,
                         .window_left = ask->window_left,
                         .window_right = ask->window_right,
                         .target_group = ask->target_group};
    attn_sequence last = {.len_q = -1};
    int64_t n_last = 0;
    double n = 0;
    for (int32_t b = 0; b < ask->n_sequences; b++) {
        attn_sequence s = attn_sequence_of(&a, b);
        if (s.len_q < 0 || s.len_k < 0) return 0; /* not offsets: somebody else wrote there */
        n_last = ask->is_softmax ? mask_rule_pairs(&ask->rule, s.len_q)
                                 : count_again(&a, &s, &last, n_last);
        last = s;
        n += (double)n_last;
    }
    return n;
}

double work_pairs_attn(const backend *be, const attn_args *a) {
    double n = 0;
    if (is_on_cpu(be)) {
        for (int32_t b = 0; b < a->n_sequences; b++) {
            attn_sequence s = attn_paged_sequence_of(a, b);
            n += (double)count_sequence(a, &s);
        }
        return n;
    }
    if (a->func != NULL || a->pages.table != NULL ||
        !is_even(a->n_rows_q, a->n_sequences, a->max_len_q) ||
        !is_even(a->n_rows_k, a->n_sequences, a->max_len_k))
        return 0;
    const attn_sequence s = {.len_q = a->max_len_q,
                             .len_k = a->max_len_k,
                             .shift = a->max_len_k - a->max_len_q,
                             .history = a->max_len_k};
    return (double)a->n_sequences * (double)count_sequence(a, &s);
}

double work_pairs_softmax(const backend *be, const softmax_attn_args *a) {
    const mask_rule *r = &a->mask.rule;
    bool is_known = is_even(a->n_rows, a->n_sequences, a->max_len);
    double n = 0;
    if (!mask_rule_is_span(r)) {
        /* The lists of a recorded step are replaced before it is replayed; those of one length are
         * the same then, but a file's may be of other sequences. */
        return is_on_cpu(be) || (is_known && r->kind != MASK_BITS) ? (double)a->mask.n_pairs : 0;
    }
    if (!is_on_cpu(be))
        return is_known ? a->n_sequences * (double)mask_rule_pairs(r, a->max_len) : 0;
    for (int32_t b = 0; b < a->n_sequences; b++)
        n += (double)mask_rule_pairs(r, a->offsets[b + 1] - a->offsets[b]);
    return n;
}
