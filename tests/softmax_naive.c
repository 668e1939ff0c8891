#include "softmax_naive.h"

#include <math.h>

static double stored(const attn_rounding *r, double x) {
    return r != NULL ? r->stored(x) : x;
}

static double factor(const attn_rounding *r, double x) {
    return r != NULL ? r->factor(x) : x;
}

static double dot(const float *x, const float *y, int32_t n) {
    double sum = 0;
    for (int32_t d = 0; d < n; d++)
        sum += (double)x[d] * (double)y[d];
    return sum;
}

/* to += weight * x */
static void add(double *to, double weight, const float *x, int32_t n) {
    for (int32_t d = 0; d < n && to != NULL; d++)
        to[d] += weight * (double)x[d];
}

/* One head of one sequence of a softmax attention. */
typedef struct softmax_head {
    const softmax_attn_args *a;
    const attn_rounding *r;
    int32_t b, head;
    int32_t first, len; /* rows of the sequence in the jagged arrays */
} softmax_head;

bool softmax_attn_naive_sees(const softmax_attn_args *a, int32_t b, int32_t i, int32_t j) {
    const mask_view *m = &a->mask;
    int32_t n = a->offsets[b + 1] - a->offsets[b];
    if (mask_rule_is_span(&m->rule)) {
        mask_span span = mask_rule_span(&m->rule, n, i);
        return j >= span.begin && j < span.end;
    }
    const int32_t *begin = m->row_begin + m->first[b] + i / MASK_TILE;
    for (int32_t t = begin[0]; t < begin[1]; t++) {
        if (m->row_tiles[t].tile != j / MASK_TILE) continue;
        int32_t bits = m->row_tiles[t].bits;
        if (bits == MASK_FULL) return true;
        return m->bits[(int64_t)bits * MASK_TILE + i % MASK_TILE] >> (j % MASK_TILE) & 1;
    }
    return false;
}

static const float *row_of(const softmax_head *s, const void *x, int64_t stride, int32_t i) {
    return (const float *)x + (s->first + i) * stride + (int64_t)s->head * s->a->dim;
}

static double *result_of(const softmax_head *s, double *x, int64_t stride, int32_t i) {
    return x != NULL ? x + (s->first + i) * stride + (int64_t)s->head * s->a->dim : NULL;
}

static double softmax_score(const softmax_head *s, int32_t i, int32_t j) {
    const softmax_attn_args *a = s->a;
    double score = dot(row_of(s, a->q, a->stride_q, i), row_of(s, a->k, a->stride_k, j), a->dim);
    return stored(s->r, (double)a->alpha * stored(s->r, score));
}

/* The factor by which dropout multiplies the weight of (i, j). */
static double kept(const softmax_head *s, int32_t i, int32_t j) {
    const dropout *d = &s->a->drop;
    uint32_t column = (uint32_t)s->head * (uint32_t)s->a->max_len + (uint32_t)j;
    if (d->rate == 0) return 1;
    rng_block drawn = rng_draw(d->key, d->position[s->first + i], d->user[s->first + i], *d->step,
                               d->site << 16 | column / 4);
    return rng_uniform(drawn.word[column % 4]) >= d->rate ? 1 / (1 - (double)d->rate) : 0;
}

/* p[i, j] = exp(score[i, j]) / sum */
static double softmax_weight(const softmax_head *s, int32_t i, int32_t j, double sum) {
    return stored(s->r, exp(softmax_score(s, i, j)) / sum);
}

/* The gradient of p[i, j]: dout_i . v_j, where the weight was not dropped. */
static double weight_grad(const softmax_head *s, int32_t i, int32_t j) {
    const softmax_attn_args *a = s->a;
    double dp = dot(row_of(s, a->dout, a->stride_out, i), row_of(s, a->v, a->stride_v, j), a->dim);
    return stored(s->r, stored(s->r, dp) * kept(s, i, j));
}

/* A pair of an attention with SiLU weights. */
static void silu_pair(const softmax_head *s, int32_t i, int32_t j,
                      const softmax_naive_results *to) {
    const softmax_attn_args *a = s->a;
    double x = softmax_score(s, i, j), sigmoid = 1 / (1 + exp(-x)), scale = (double)a->silu_scale;
    double p = stored(s->r, stored(s->r, x * sigmoid) * scale);
    double weight = factor(s->r, stored(s->r, p * kept(s, i, j)));
    double slope = stored(s->r, sigmoid * (1 + x * (1 - sigmoid)));
    double ds = (double)a->alpha * scale * slope * weight_grad(s, i, j);
    ds = factor(s->r, stored(s->r, ds));
    add(result_of(s, to->out, a->stride_out, i), weight, row_of(s, a->v, a->stride_v, j), a->dim);
    add(result_of(s, to->dv, a->stride_v, j), weight, row_of(s, a->dout, a->stride_out, i), a->dim);
    add(result_of(s, to->dq, a->stride_q, i), ds, row_of(s, a->k, a->stride_k, j), a->dim);
    add(result_of(s, to->dk, a->stride_k, j), ds, row_of(s, a->q, a->stride_q, i), a->dim);
}

static void silu_row(const softmax_head *s, int32_t i, const softmax_naive_results *to) {
    for (int32_t j = 0; j < s->len; j++)
        if (softmax_attn_naive_sees(s->a, s->b, i, j)) silu_pair(s, i, j, to);
}

/* A softmax needs its whole row: the sum of the weights, and of weights times their gradients. */
static void softmax_row(const softmax_head *s, int32_t i, const softmax_naive_results *to) {
    const softmax_attn_args *a = s->a;
    double sum = 0, delta = 0;
    for (int32_t j = 0; j < s->len; j++)
        if (softmax_attn_naive_sees(a, s->b, i, j)) sum += exp(softmax_score(s, i, j));
    for (int32_t j = 0; j < s->len; j++)
        if (softmax_attn_naive_sees(a, s->b, i, j))
            delta += softmax_weight(s, i, j, sum) * weight_grad(s, i, j);
    if (to->log_sum != NULL) to->log_sum[(s->first + i) * (int64_t)a->n_heads + s->head] = log(sum);
    for (int32_t j = 0; j < s->len; j++) {
        if (!softmax_attn_naive_sees(a, s->b, i, j)) continue;
        double p = softmax_weight(s, i, j, sum);
        double weight = factor(s->r, stored(s->r, p * kept(s, i, j)));
        double ds = (double)a->alpha * p * (weight_grad(s, i, j) - delta);
        ds = factor(s->r, stored(s->r, ds));
        add(result_of(s, to->out, a->stride_out, i), weight, row_of(s, a->v, a->stride_v, j),
            a->dim);
        add(result_of(s, to->dv, a->stride_v, j), weight, row_of(s, a->dout, a->stride_out, i),
            a->dim);
        add(result_of(s, to->dq, a->stride_q, i), ds, row_of(s, a->k, a->stride_k, j), a->dim);
        add(result_of(s, to->dk, a->stride_k, j), ds, row_of(s, a->q, a->stride_q, i), a->dim);
    }
}

void softmax_attn_naive_sequence(const softmax_attn_args *a, int32_t b, const attn_rounding *r,
                                 const softmax_naive_results *to) {
    softmax_head s = {.a = a, .r = r, .b = b, .first = a->offsets[b]};
    s.len = a->offsets[b + 1] - s.first;
    for (s.head = 0; s.head < a->n_heads; s.head++)
        for (int32_t i = 0; i < s.len; i++)
            if (a->silu_scale != 0)
                silu_row(&s, i, to);
            else
                softmax_row(&s, i, to);
}
