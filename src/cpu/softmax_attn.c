/* Causal softmax attention, forward and backward (contract: softmax_attn_args in ops/ops.h).
 *
 * A forward chunk owns SOFTMAX_QUERIES query rows of one sequence and head; a backward chunk owns a
 * whole sequence and head, so that it sums dk and dv without other chunks and in order.  A strip of
 * TILE_STRIP rows holds its scores against every key it sees (8 x length floats), so that the
 * maximum and the sum of a row are plain loops.  Bound by the FLOPs of the products and, with
 * dropout, by the random numbers. */
#include <math.h>

#include "cpu/attn_int.h"

#include "cpu/tile.h"

enum { SOFTMAX_QUERIES = 128 };

typedef struct softmax_job {
    backend *be;
    const softmax_attn_args *a;
    int32_t n_blocks;
    size_t bytes;
} softmax_job;

typedef struct softmax_scratch {
    float *key_panels, *value_panels; /* (max_len, D) transposed; values: backward only */
    float *keys, *values;             /* (max_len, width); keys: backward only */
    float *query_panels, *dout_panels;
    float *query, *dout, *dq; /* (TILE_STRIP, width) */
    float *out;               /* (TILE_STRIP, width) */
    float *p, *ds;            /* (TILE_STRIP, row) */
    float *keep;              /* (row): 0 or 1 / (1 - rate) */
    float *dk, *dv;           /* (max_len, width) */
} softmax_scratch;

/* One sequence and head. */
typedef struct softmax_seq {
    const softmax_attn_args *a;
    softmax_scratch m;
    int32_t head, first, len; /* rows first .. first + len - 1 of the jagged arrays */
    int width;                /* D in whole vectors */
    int row;                  /* numbers between rows of a tile */
} softmax_seq;

static int tile_row(const softmax_attn_args *a) {
    return tile_round(a->max_len, TILE_PANEL) + 16;
}

static softmax_scratch carve_scratch(const softmax_attn_args *a, bool is_backward, char *base,
                                     size_t *bytes) {
    attn_carve carve = {base, 0};
    size_t len = (size_t)tile_round(a->max_len, TILE_PANEL), row = (size_t)tile_row(a);
    size_t width = (size_t)tile_round(a->dim, VEC), strip = TILE_STRIP * width;
    softmax_scratch m = {0};
    m.key_panels = attn_take(&carve, len * a->dim, sizeof(float));
    m.values = attn_take(&carve, len * width, sizeof(float));
    m.query_panels = attn_take(&carve, strip, sizeof(float));
    m.out = attn_take(&carve, strip, sizeof(float));
    m.p = attn_take(&carve, TILE_STRIP * row, sizeof(float));
    m.keep = attn_take(&carve, row, sizeof(float));
    if (is_backward) {
        m.value_panels = attn_take(&carve, len * a->dim, sizeof(float));
        m.keys = attn_take(&carve, len * width, sizeof(float));
        m.dout_panels = attn_take(&carve, strip, sizeof(float));
        m.query = attn_take(&carve, strip, sizeof(float));
        m.dout = attn_take(&carve, strip, sizeof(float));
        m.dq = attn_take(&carve, strip, sizeof(float));
        m.ds = attn_take(&carve, TILE_STRIP * row, sizeof(float));
        m.dk = attn_take(&carve, len * width, sizeof(float));
        m.dv = attn_take(&carve, len * width, sizeof(float));
    }
    *bytes = carve.used;
    return m;
}

/* Where row i of this sequence and head begins. */
static float *row_of(const softmax_seq *s, const void *data, int64_t stride, int32_t i) {
    return (float *)data + (int64_t)(s->first + i) * stride + (int64_t)s->head * s->a->dim;
}

/* keep[j] = the dropout factor of weight (i, j), j < n. */
static void draw_keep(const softmax_seq *s, int32_t i, int n) {
    cpu_dropout_factors(&s->a->drop, s->first + i, (int64_t)s->head * s->a->max_len, n, s->m.keep);
}

/* Turns scores into weights: p = exp(alpha x - log_sum) for j < n, zero up to n_padded; returns
 * log_sum, the log of the row's sum. */
static float softmax_row(float *x, int n, int n_padded, float alpha) {
    float largest = -INFINITY;
    double sum = 0.0;
    for (int j = 0; j < n; j++) {
        x[j] *= alpha;
        largest = x[j] > largest ? x[j] : largest;
    }
    /* Whole vectors: a row of the tile has room for them, and elements from n on are zeroed
     * below. */
    for (int j = 0; j < n; j += VEC)
        vec_store(x + j, vecs_exp(vec_load(x + j) - largest));
    for (int j = 0; j < n; j++)
        sum += (double)x[j];
    float inverse = (float)(1.0 / sum);
    for (int j = 0; j < n; j++)
        x[j] *= inverse;
    memset(x + n, 0, sizeof *x * (size_t)(n_padded - n));
    return largest + (float)log(sum);
}

/* Rows i .. i + n - 1 (n <= TILE_STRIP): the outputs, and the logs of the rows' sums. */
static void fwd_strip(const softmax_seq *s, int32_t i, int n) {
    const softmax_attn_args *a = s->a;
    int n_columns = tile_round(i + n, TILE_PANEL);
    tile_pack_panels(s->m.query_panels, TILE_STRIP, row_of(s, a->q, a->stride_q, i), a->stride_q, n,
                     a->dim);
    tile_mm_panels(s->m.query_panels, s->m.key_panels, NULL, s->m.p, s->row, TILE_PANEL, n_columns,
                   a->dim);
    for (int r = 0; r < n; r++) {
        float *p = s->m.p + (size_t)r * s->row;
        int n_seen = i + r + 1;
        float log_sum = softmax_row(p, n_seen, n_columns, a->alpha);
        a->log_sum[(int64_t)(s->first + i + r) * a->n_heads + s->head] = log_sum;
        if (a->drop.rate == 0.0f) continue;
        draw_keep(s, i + r, n_seen);
        for (int j = 0; j < n_seen; j++)
            p[j] *= s->m.keep[j];
    }
    for (int r = n; r < TILE_STRIP; r++)
        memset(s->m.p + (size_t)r * s->row, 0, sizeof(float) * (size_t)n_columns);
    tile_a weights = {s->m.p, s->row, 1};
    tile_mm_rows(weights, s->m.values, s->width, false, s->m.out, s->width, TILE_STRIP, s->width,
                 n_columns);
    tile_unpack_rows(row_of(s, a->out, a->stride_out, i), a->stride_out, s->m.out, s->width, n,
                     a->dim);
}

static softmax_seq make_seq(const softmax_attn_args *a, int64_t pair, softmax_scratch m) {
    int64_t b = pair / a->n_heads;
    softmax_seq s = {.a = a, .m = m, .head = (int32_t)(pair % a->n_heads)};
    s.first = a->offsets[b];
    s.len = a->offsets[b + 1] - s.first;
    s.width = tile_round(a->dim, VEC);
    s.row = tile_row(a);
    return s;
}

static status fwd_chunk(void *ctx, int64_t chunk, int worker) {
    const softmax_job *job = ctx;
    const softmax_attn_args *a = job->a;
    int64_t n_pairs = (int64_t)a->n_sequences * a->n_heads;
    int32_t first = (int32_t)(job->n_blocks - 1 - chunk / n_pairs) * SOFTMAX_QUERIES;
    void *base;
    size_t bytes;
    TRY(cpu_scratch(job->be, worker, job->bytes, &base));
    softmax_seq s = make_seq(a, chunk % n_pairs, carve_scratch(a, false, base, &bytes));
    int32_t end = s.len - first < SOFTMAX_QUERIES ? s.len : first + SOFTMAX_QUERIES;
    if (first >= end) return OK;
    tile_pack_panels(s.m.key_panels, TILE_PANEL, row_of(&s, a->k, a->stride_k, 0), a->stride_k, end,
                     a->dim);
    tile_pack_rows(s.m.values, s.width, tile_round(end, TILE_PANEL),
                   row_of(&s, a->v, a->stride_v, 0), a->stride_v, end, a->dim);
    for (int32_t i = first; i < end; i += TILE_STRIP)
        fwd_strip(&s, i, end - i < TILE_STRIP ? end - i : TILE_STRIP);
    return OK;
}

/* x: q . k, becomes the dropped weights; dp: dout . v, becomes ds = alpha p (dropped(dp) - sum_j p
 * dropped(dp)). */
static void grad_row(const softmax_seq *s, int32_t i, float *x, float *dp, int n_padded) {
    const softmax_attn_args *a = s->a;
    int n = i + 1;
    float log_sum = a->log_sum[(int64_t)(s->first + i) * a->n_heads + s->head];
    double delta = 0.0;
    for (int j = 0; j < n; j += VEC)
        vec_store(x + j, vecs_exp(a->alpha * vec_load(x + j) - log_sum));
    if (a->drop.rate != 0.0f) {
        draw_keep(s, i, n);
        for (int j = 0; j < n; j++)
            dp[j] *= s->m.keep[j];
    }
    for (int j = 0; j < n; j++)
        delta += (double)(x[j] * dp[j]);
    for (int j = 0; j < n; j++)
        dp[j] = a->alpha * x[j] * (dp[j] - (float)delta);
    for (int j = 0; j < n && a->drop.rate != 0.0f; j++)
        x[j] *= s->m.keep[j];
    memset(x + n, 0, sizeof *x * (size_t)(n_padded - n));
    memset(dp + n, 0, sizeof *dp * (size_t)(n_padded - n));
}

static void pack_strip(const softmax_seq *s, int32_t i, int n) {
    const softmax_attn_args *a = s->a;
    const float *q = row_of(s, a->q, a->stride_q, i);
    const float *dout = row_of(s, a->dout, a->stride_out, i);
    tile_pack_panels(s->m.query_panels, TILE_STRIP, q, a->stride_q, n, a->dim);
    tile_pack_panels(s->m.dout_panels, TILE_STRIP, dout, a->stride_out, n, a->dim);
    tile_pack_rows(s->m.query, s->width, TILE_STRIP, q, a->stride_q, n, a->dim);
    tile_pack_rows(s->m.dout, s->width, TILE_STRIP, dout, a->stride_out, n, a->dim);
}

static void bwd_strip(const softmax_seq *s, int32_t i, int n) {
    const softmax_attn_args *a = s->a;
    const softmax_scratch *m = &s->m;
    int n_columns = tile_round(i + n, TILE_PANEL), width = s->width;
    pack_strip(s, i, n);
    tile_mm_panels(m->query_panels, m->key_panels, NULL, m->p, s->row, TILE_PANEL, n_columns,
                   a->dim);
    tile_mm_panels(m->dout_panels, m->value_panels, NULL, m->ds, s->row, TILE_PANEL, n_columns,
                   a->dim);
    for (int r = 0; r < n; r++)
        grad_row(s, i + r, m->p + (size_t)r * s->row, m->ds + (size_t)r * s->row, n_columns);
    for (int r = n; r < TILE_STRIP; r++) {
        memset(m->p + (size_t)r * s->row, 0, sizeof(float) * (size_t)n_columns);
        memset(m->ds + (size_t)r * s->row, 0, sizeof(float) * (size_t)n_columns);
    }
    tile_a ds = {m->ds, s->row, 1}, ds_columns = {m->ds, 1, s->row}, weights = {m->p, 1, s->row};
    tile_mm_rows(ds, m->keys, width, false, m->dq, width, TILE_STRIP, width, n_columns);
    tile_mm_rows(ds_columns, m->query, width, true, m->dk, width, n_columns, width, TILE_STRIP);
    tile_mm_rows(weights, m->dout, width, true, m->dv, width, n_columns, width, TILE_STRIP);
    tile_unpack_rows(row_of(s, a->dq, a->stride_q, i), a->stride_q, m->dq, width, n, a->dim);
}

static status bwd_chunk(void *ctx, int64_t chunk, int worker) {
    const softmax_job *job = ctx;
    const softmax_attn_args *a = job->a;
    void *base;
    size_t bytes;
    TRY(cpu_scratch(job->be, worker, job->bytes, &base));
    softmax_seq s = make_seq(a, chunk, carve_scratch(a, true, base, &bytes));
    const float *k = row_of(&s, a->k, a->stride_k, 0), *v = row_of(&s, a->v, a->stride_v, 0);
    int n_padded = tile_round(s.len, TILE_PANEL);
    tile_pack_panels(s.m.key_panels, TILE_PANEL, k, a->stride_k, s.len, a->dim);
    tile_pack_panels(s.m.value_panels, TILE_PANEL, v, a->stride_v, s.len, a->dim);
    tile_pack_rows(s.m.keys, s.width, n_padded, k, a->stride_k, s.len, a->dim);
    memset(s.m.dk, 0, sizeof(float) * (size_t)n_padded * s.width);
    memset(s.m.dv, 0, sizeof(float) * (size_t)n_padded * s.width);
    for (int32_t i = 0; i < s.len; i += TILE_STRIP)
        bwd_strip(&s, i, s.len - i < TILE_STRIP ? s.len - i : TILE_STRIP);
    tile_unpack_rows(row_of(&s, a->dk, a->stride_k, 0), a->stride_k, s.m.dk, s.width, s.len,
                     a->dim);
    tile_unpack_rows(row_of(&s, a->dv, a->stride_v, 0), a->stride_v, s.m.dv, s.width, s.len,
                     a->dim);
    return OK;
}

static status check_args(const softmax_attn_args *a) {
    if (a->n_heads < 1 || a->dim < 1)
        return fail(ERR_USAGE,
                    "softmax attention: %d heads of dimension %d; each must be at least 1",
                    a->n_heads, a->dim);
    for (int32_t b = 0; b < a->n_sequences; b++) {
        int64_t len = (int64_t)a->offsets[b + 1] - a->offsets[b];
        if (len < 0 || len > a->max_len)
            return fail(ERR_USAGE, "softmax attention: sequence %d has length %lld, not 0 to %d", b,
                        (long long)len, a->max_len);
    }
    return OK;
}

status cpu_softmax_attn_fwd(backend *be, const softmax_attn_args *a) {
    softmax_job job = {.be = be, .a = a};
    TRY(check_args(a));
    carve_scratch(a, false, NULL, &job.bytes);
    job.n_blocks = (a->max_len + SOFTMAX_QUERIES - 1) / SOFTMAX_QUERIES;
    return attn_run(be, (int64_t)job.n_blocks * a->n_sequences * a->n_heads, fwd_chunk, &job);
}

status cpu_softmax_attn_bwd(backend *be, const softmax_attn_args *a) {
    softmax_job job = {.be = be, .a = a};
    TRY(check_args(a));
    carve_scratch(a, true, NULL, &job.bytes);
    return attn_run(be, (int64_t)a->n_sequences * a->n_heads, bwd_chunk, &job);
}
