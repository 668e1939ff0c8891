/* Sequences: what a layer needs to know about its tokens, besides their activations.  A view of
 * memory of the backend. */
#pragma once

#include "ops/ops.h"

/* Where the keys and values of earlier tokens are (attn_pages in ops.h), and where new ones go. */
typedef struct kv_batch {
    const int32_t *table;   /* (B, max_pages); NULL: there are no pages, every sequence is whole */
    const int32_t *offsets; /* (B + 1): of all keys, those in pages included */
    const int32_t *slot;    /* (T): of op kv_put */
    int32_t page_len, max_pages;
    int32_t n_pages; /* of the store */
    int32_t max_len; /* the longest sequence, its keys in pages included */
    void *k, *v;     /* the pages of the layer */
    int64_t stride;  /* elements between them */
    bool is_fp8;     /* keys and values are rounded to 8 bits before they are used */
} kv_batch;

/* What the gather of the tokens can do for the layers besides: leave the moments of the rows for
 * the first one, and clear rows of padding, where a batch is rounded up. */
typedef struct token_asks {
    row_moments *moments; /* or NULL */
    gather_blank blank;
} token_asks;

/* A layer can be asked for the results of some tokens only: the last ones of each sequence. */
typedef struct chosen_rows {
    int32_t n;              /* M; 0: all tokens */
    int32_t max_len;        /* most of a sequence */
    const int32_t *offsets; /* (B + 1): which of them are a sequence's */
    const int32_t *token;   /* (M); -1: none, which reads as zeros */
    void *x;                /* (M, E) act: room for the rows that go into the layer */
} chosen_rows;

typedef struct sequences {
    int32_t n_sequences;       /* B */
    int32_t n_tokens;          /* T */
    int32_t max_len;           /* the longest of these */
    bool is_repeated;          /* the layer before had the same (attn_args) */
    bool has_moments;          /* those of the layer's rows are where it asked for them */
    int32_t len_bound;         /* no sequence of the model is longer, in any batch */
    bool is_round;             /* tokens after the last sequence round the batch up */
    const int32_t *offsets;    /* (B + 1) */
    const int32_t *n_contexts; /* (B): first tokens, which see all before the targets; or NULL */
    const int32_t *n_targets;  /* (B): tokens at the end that do not see each other; or NULL */
    const int64_t *query_time, *key_time; /* (T): seconds, of layers with a time bias; key_time of
                                             all keys where there are pages */
    kv_batch kv;
    chosen_rows chosen;
    bool has_dropout;
    dropout drop; /* key, step, the tokens' users and positions; a layer sets rate and site */
} sequences;

/* The sequences' dropout at one site of the model. */
static inline dropout sequences_drop(const sequences *s, float rate, uint32_t site) {
    dropout d = s->drop;
    d.rate = s->has_dropout ? rate : 0;
    d.site = site;
    return d;
}

/* Causal softmax attention; the layer sets the rows, their strides and log_sum. */
static inline softmax_attn_args sequences_attn(const sequences *s, int32_t dim, int32_t n_heads,
                                               float rate, uint32_t site) {
    return (softmax_attn_args){
        .n_sequences = s->n_sequences,
        .n_heads = n_heads,
        .dim = dim / n_heads,
        .max_len = s->len_bound, /* the dropout's columns must not depend on the batch */
        .n_rows = s->n_tokens,
        .offsets = s->offsets,
        .mask.rule.kind = MASK_CAUSAL,
        .stride_out = dim,
        .alpha = 1 / sqrtf((float)(dim / n_heads)),
        .drop = sequences_drop(s, rate, site)};
}

/* Stochastic depth of one branch, whose x, y and residual the layer sets; with rate 0 there is
 * nothing to do. */
static inline dropout_args sequences_path(const sequences *s, float rate, uint32_t site,
                                          int32_t dim) {
    return (dropout_args){
        .n = s->n_tokens, .dim = dim, .drop = sequences_drop(s, rate, site), .is_path = true};
}
