/* What both passes of the softmax attention share (softmax_attn.c, softmax_attn_bwd.c): one tile of
 * MASK_TILE queries by MASK_TILE keys at a time, in strips of TILE_STRIP query rows, each of which
 * computes only the hull of the columns that its rows see. */
#ifndef HSTU_CPU_SOFTMAX_ATTN_H
#define HSTU_CPU_SOFTMAX_ATTN_H

#include "cpu/attn_int.h"
#include "cpu/mask_walk.h"

#include "cpu/tile.h"

enum { SOFTMAX_STRIPS = MASK_TILE / TILE_STRIP };

typedef struct softmax_job {
    backend *be;
    const softmax_attn_args *a;
    int32_t n_tiles; /* rows of tiles of the longest sequence */
    size_t bytes;    /* of scratch memory */
} softmax_job;

/* One sequence and head. */
typedef struct softmax_seq {
    const softmax_attn_args *a;
    int32_t b, head, first, len; /* rows first .. first + len - 1 of the jagged arrays */
    int width;                   /* D in whole vectors */
} softmax_seq;

static inline softmax_seq softmax_seq_of(const softmax_attn_args *a, int64_t pair) {
    softmax_seq s = {.a = a, .b = (int32_t)(pair / a->n_heads)};
    s.head = (int32_t)(pair % a->n_heads);
    s.first = a->offsets[s.b];
    s.len = a->offsets[s.b + 1] - s.first;
    s.width = tile_round(a->dim, VEC);
    return s;
}

/* Row i of this sequence and head. */
static inline float *softmax_row_of(const softmax_seq *s, const void *data, int64_t stride,
                                    int32_t i) {
    return (float *)data + (int64_t)(s->first + i) * stride + (int64_t)s->head * s->a->dim;
}

static inline float *softmax_log_sum(const softmax_seq *s, int32_t i) {
    return s->a->log_sum + (int64_t)(s->first + i) * s->a->n_heads + s->head;
}

/* The columns that any row of a strip sees, rounded outwards to panels. */
static inline attn_hull softmax_hull(const uint64_t bits[TILE_STRIP]) {
    uint64_t any = 0;
    for (int r = 0; r < TILE_STRIP; r++)
        any |= bits[r];
    if (any == 0) return (attn_hull){0, 0};
    int begin = __builtin_ctzll(any), end = 64 - __builtin_clzll(any);
    return (attn_hull){begin / TILE_PANEL * TILE_PANEL, tile_round(end, TILE_PANEL)};
}

/* -1 in the lanes of columns j .. j + VEC - 1 that a row sees, else 0. */
static inline vec_int softmax_seen(uint64_t bits, int j) {
    vec_int lane = {0};
    int32_t word = (int32_t)(bits >> j & ((1u << VEC) - 1));
    for (int i = 0; i < VEC; i++)
        lane[i] = 1 << i;
    return (vec_int)((lane & word) != 0);
}

/* keep[j] = the dropout factor of (i, key + j), for j in the hull. */
static inline void softmax_draw_keep(const softmax_seq *s, int32_t i, int32_t key, attn_hull hull,
                                     float *keep) {
    int64_t column = (int64_t)s->head * s->a->max_len + key + hull.begin;
    cpu_dropout_factors(&s->a->drop, s->first + i, column, hull.end - hull.begin,
                        keep + hull.begin);
}

status softmax_check(const softmax_attn_args *a);

#endif
