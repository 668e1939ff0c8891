#include "cpu/attn_naive.h"

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

/* Element `at` of a result, or NULL where the result is not wanted. */
static double *element(double *result, int64_t at) {
    return result != NULL ? result + at : NULL;
}

static int32_t n_queries(const attn_args *a, int32_t b) {
    return a->offsets_q[b + 1] - a->offsets_q[b];
}

static int32_t n_keys(const attn_args *a, int32_t b) {
    return a->offsets_k[b + 1] - a->offsets_k[b];
}

/* The place of a query row among the keys: the last query has the place of the last key. */
static int32_t place(const attn_args *a, int32_t b, int32_t row) {
    return row + n_keys(a, b) - n_queries(a, b);
}

/* A mask given as intervals of keys: [0, f0), [f1, f2), [f3, f4), ... */
static bool func_sees(const attn_args *a, int64_t query, int32_t j) {
    const int32_t *f = a->func + query;
    if (j < f[0]) return true;
    for (int32_t m = 1; 2 * m < a->n_func; m++)
        if (f[(2 * m - 1) * a->func_stride] <= j && j < f[2 * m * a->func_stride]) return true;
    return false;
}

bool attn_naive_sees(const attn_args *a, int32_t b, int32_t row, int32_t j) {
    if (a->func != NULL) return func_sees(a, (int64_t)a->offsets_q[b] + row, j);
    int32_t i = place(a, b, row);
    int32_t c = a->n_contexts != NULL ? a->n_contexts[b] : 0;
    int32_t h = n_keys(a, b) - (a->n_targets != NULL ? a->n_targets[b] : 0);
    if (i < c && j < h) return true; /* a contextual token sees the whole history */
    if (i >= h) {                    /* a target sees no target of the groups before its own */
        int32_t group = h + (i - h) / a->target_group * a->target_group;
        if (h <= j && j < group) return false;
    }
    return (a->window_left < 0 || i - a->window_left <= j) &&
           (a->window_right < 0 || j <= i + a->window_right);
}

/* The definition is in float32, which decides at the edges of buckets. */
static int32_t bucket(int64_t seconds) {
    float distance = fabsf((float)seconds);
    float number = logf(distance < 1 ? 1 : distance) / 0.301f;
    return number > ATTN_TIME_BUCKETS ? ATTN_TIME_BUCKETS : (int32_t)number;
}

/* The cells of the bias that a pair reads, and whose gradients it adds to. */
typedef struct bias_cells {
    int64_t table, position;
    int32_t time;
} bias_cells;

static bias_cells bias_of(const attn_args *a, int32_t b, int32_t head, int32_t row, int32_t j) {
    int32_t i = place(a, b, row), table_head = a->table_heads == 1 ? 0 : head;
    bias_cells at = {0};
    if (a->bias == BIAS_TABLE)
        at.table =
            (((int64_t)b * a->table_heads + table_head) * a->table_len + i) * a->table_len + j;
    if (a->bias == BIAS_TIME) {
        at.position = (int64_t)a->bias_len - 1 + j - i;
        at.time = bucket(a->query_time[a->offsets_q[b] + row] - a->key_time[a->offsets_k[b] + j]);
    }
    return at;
}

static double bias_value(const attn_args *a, const bias_cells *at) {
    if (a->bias == BIAS_TABLE) return (double)((const float *)a->table)[at->table];
    if (a->bias == BIAS_TIME)
        return (double)a->position_w[at->position] + (double)a->time_w[at->time];
    return 0;
}

static void add_bias_grad(const attn_args *a, const bias_cells *at, double ds,
                          const attn_naive_results *to) {
    if (a->bias == BIAS_TABLE && to->dtable != NULL) to->dtable[at->table] += ds;
    if (a->bias == BIAS_TIME && to->dposition_w != NULL) to->dposition_w[at->position] += ds;
    if (a->bias == BIAS_TIME && to->dtime_w != NULL) to->dtime_w[at->time] += ds;
}

void attn_naive_pair(const attn_args *a, int32_t b, int32_t head, int32_t row, int32_t j,
                     const attn_rounding *r, const attn_naive_results *to) {
    if (!attn_naive_sees(a, b, row, j)) return;
    int64_t query = (int64_t)a->offsets_q[b] + row, key = (int64_t)a->offsets_k[b] + j;
    int64_t at_q = query * a->stride_q + (int64_t)head * a->dim_qk;
    int64_t at_k = key * a->stride_k + (int64_t)head * a->dim_qk;
    int64_t at_v = key * a->stride_v + (int64_t)head * a->dim_v;
    int64_t at_out = query * a->stride_out + (int64_t)head * a->dim_v;
    const float *q = (const float *)a->q + at_q, *k = (const float *)a->k + at_k;
    const float *v = (const float *)a->v + at_v, *dout = (const float *)a->dout + at_out;
    bias_cells bias = bias_of(a, b, head, row, j);

    /* weight = silu(x) scale with x = alpha (q . k + bias);  out += weight v */
    double score = stored(r, stored(r, dot(q, k, a->dim_qk)) + bias_value(a, &bias));
    double x = stored(r, (double)a->alpha * score), sigmoid = 1 / (1 + exp(-x));
    double weight = stored(r, stored(r, x * sigmoid) * (double)a->scale);
    add(element(to->out, at_out), factor(r, weight), v, a->dim_v);

    /* d weight = dout . v;  d score = d weight scale silu'(x) alpha */
    double dweight = stored(r, dot(dout, v, a->dim_v));
    double slope = stored(r, sigmoid * (1 + x * (1 - sigmoid)));
    double ds = stored(r, dweight * (double)a->scale * (double)a->alpha * slope);
    add(element(to->dv, at_v), factor(r, weight), dout, a->dim_v);
    add(element(to->dq, at_q), factor(r, ds), k, a->dim_qk);
    add(element(to->dk, at_k), factor(r, ds), q, a->dim_qk);
    add_bias_grad(a, &bias, ds, to);
}

void attn_naive_sequence(const attn_args *a, int32_t b, const attn_rounding *r,
                         const attn_naive_results *to) {
    for (int32_t head = 0; head < a->n_heads; head++)
        for (int32_t row = 0; row < n_queries(a, b); row++)
            for (int32_t j = 0; j < n_keys(a, b); j++)
                attn_naive_pair(a, b, head, row, j, r, to);
}

/* One head of one sequence of a softmax attention. */
typedef struct softmax_head {
    const softmax_attn_args *a;
    const attn_rounding *r;
    int32_t b, head;
    int32_t first, len;    /* rows of the sequence in the jagged arrays */
    const uint64_t *words; /* the keys of the row as bits; NULL: those of the mask */
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

static bool sees(const softmax_head *s, int32_t i, int32_t j) {
    if (s->words != NULL) return s->words[j / 64] >> (j % 64) & 1;
    return softmax_attn_naive_sees(s->a, s->b, i, j);
}

static const float *row_of(const softmax_head *s, const void *x, int64_t stride, int32_t i) {
    return (const float *)x + (s->first + i) * stride + (int64_t)s->head * s->a->dim;
}

static double *result_of(const softmax_head *s, double *x, int64_t stride, int32_t i) {
    return element(x, (s->first + i) * stride + (int64_t)s->head * s->a->dim);
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
static void silu_pair(const softmax_head *s, int32_t i, int32_t j, const attn_naive_results *to) {
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

static void silu_row(const softmax_head *s, int32_t i, const attn_naive_results *to) {
    for (int32_t j = 0; j < s->len; j++)
        if (sees(s, i, j)) silu_pair(s, i, j, to);
}

/* A softmax needs its whole row: the sum of the weights, and of weights times their gradients. */
static void softmax_row(const softmax_head *s, int32_t i, const attn_naive_results *to) {
    const softmax_attn_args *a = s->a;
    double sum = 0, delta = 0;
    for (int32_t j = 0; j < s->len; j++)
        if (sees(s, i, j)) sum += exp(softmax_score(s, i, j));
    for (int32_t j = 0; j < s->len; j++)
        if (sees(s, i, j)) delta += softmax_weight(s, i, j, sum) * weight_grad(s, i, j);
    if (to->log_sum != NULL) to->log_sum[(s->first + i) * (int64_t)a->n_heads + s->head] = log(sum);
    for (int32_t j = 0; j < s->len; j++) {
        if (!sees(s, i, j)) continue;
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

void softmax_attn_naive_row(const softmax_attn_args *a, int32_t b, int32_t head, int32_t i,
                            const uint64_t *words, const attn_rounding *r,
                            const attn_naive_results *to) {
    softmax_head s = {.a = a, .r = r, .b = b, .head = head, .first = a->offsets[b], .words = words};
    s.len = a->offsets[b + 1] - s.first;
    if (a->silu_scale != 0)
        silu_row(&s, i, to);
    else
        softmax_row(&s, i, to);
}

void softmax_attn_naive_sequence(const softmax_attn_args *a, int32_t b, const attn_rounding *r,
                                 const attn_naive_results *to) {
    for (int32_t head = 0; head < a->n_heads; head++)
        for (int32_t i = 0; i < a->offsets[b + 1] - a->offsets[b]; i++)
            softmax_attn_naive_row(a, b, head, i, NULL, r, to);
}
