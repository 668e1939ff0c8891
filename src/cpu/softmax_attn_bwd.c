/* Softmax attention under any mask, backward (contract: softmax_attn_args in ops/ops.h):
 *     p = exp(alpha q . k - log_sum),  dp = dropped(dout . v),  delta = out . dout
 *     ds = alpha p (dp - delta);  dq += ds k,  dk += ds q,  dv += dropped(p) dout
 * or, with p = silu_scale silu(x) of x = alpha q . k,  ds = alpha silu_scale silu'(x) dp.
 *
 * A chunk owns a whole sequence and head, so that it sums dk and dv without other chunks and in
 * order.  It walks over the tiles in which anything is seen, a row of tiles after the other.  Bound
 * by the FLOPs of the five products and, with dropout, by the random numbers. */
#include <math.h>

#include "cpu/softmax_attn.h"

typedef struct bwd_scratch {
    float *query_strips, *dout_strips; /* transposed strips of a row of tiles */
    float *query, *dout, *dq;          /* (MASK_TILE, width) */
    float *key_panels, *value_panels;  /* of a tile of keys */
    float *keys;                       /* (MASK_TILE, width) */
    float *p, *ds;                     /* (MASK_TILE, MASK_TILE) */
    float *keep;                       /* (MASK_TILE) */
    float *log_sum, *delta;            /* (MASK_TILE) */
    float *dk, *dv;                    /* (len, width), len in whole tiles */
} bwd_scratch;

static bwd_scratch carve_scratch(const softmax_attn_args *a, char *base, size_t *bytes) {
    attn_carve carve = {base, 0};
    size_t width = (size_t)tile_round(a->dim, VEC), tile = MASK_TILE * width;
    size_t all = (size_t)cpu_n_chunks(a->max_len, MASK_TILE) * MASK_TILE * width;
    bwd_scratch m = {0};
    float **tiles[] = {&m.query_strips, &m.dout_strips, &m.query,        &m.dout,
                       &m.dq,           &m.key_panels,  &m.value_panels, &m.keys};
    for (size_t i = 0; i < sizeof tiles / sizeof *tiles; i++)
        *tiles[i] = attn_take(&carve, tile, sizeof(float));
    m.p = attn_take(&carve, MASK_TILE * MASK_TILE, sizeof(float));
    m.ds = attn_take(&carve, MASK_TILE * MASK_TILE, sizeof(float));
    m.keep = attn_take(&carve, MASK_TILE, sizeof(float));
    m.log_sum = attn_take(&carve, MASK_TILE, sizeof(float));
    m.delta = attn_take(&carve, MASK_TILE, sizeof(float));
    m.dk = attn_take(&carve, all, sizeof(float));
    m.dv = attn_take(&carve, all, sizeof(float));
    *bytes = carve.used;
    return m;
}

/* Weights and ds of one row, before dropout of the weights. */
static void softmax_grad(float *p, float *ds, uint64_t bits, attn_hull hull, float alpha,
                         float log_sum, float delta) {
    for (int j = hull.begin; j < hull.end; j += VEC) {
        vec_int seen = softmax_seen(bits, j);
        vec x = vecs_exp(alpha * vec_load(p + j) - log_sum);
        vec dx = alpha * x * (vec_load(ds + j) - delta);
        vec_store(p + j, vec_select(seen, x, vec_all(0)));
        vec_store(ds + j, vec_select(seen, dx, vec_all(0)));
    }
}

static void silu_grad(float *p, float *ds, uint64_t bits, attn_hull hull, float alpha,
                      float scale) {
    for (int j = hull.begin; j < hull.end; j += VEC) {
        vec_int seen = softmax_seen(bits, j);
        vec y = alpha * vec_load(p + j), sigmoid = vecs_sigmoid(y);
        vec slope = sigmoid + sigmoid * (y - y * sigmoid);
        vec_store(p + j, vec_select(seen, y * sigmoid * scale, vec_all(0)));
        vec_store(ds + j, vec_select(seen, vec_load(ds + j) * slope * (alpha * scale), vec_all(0)));
    }
}

/* p: scores, replaced by the dropped weights; ds: dout . v, replaced by ds. */
static void grad_row(const softmax_seq *s, const bwd_scratch *m, const mask_walk *w, int r,
                     attn_hull hull) {
    float *p = m->p + r * MASK_TILE, *ds = m->ds + r * MASK_TILE, alpha = s->a->alpha;
    uint64_t bits = w->bits[r];
    bool is_dropped = s->a->drop.rate != 0.0f;
    if (bits == 0) {
        memset(p + hull.begin, 0, sizeof *p * (size_t)(hull.end - hull.begin));
        memset(ds + hull.begin, 0, sizeof *ds * (size_t)(hull.end - hull.begin));
        return;
    }
    if (is_dropped) {
        softmax_draw_keep(s, w->row + r, w->key, hull, m->keep);
        for (int j = hull.begin; j < hull.end; j++)
            ds[j] *= m->keep[j];
    }
    if (s->a->silu_scale != 0)
        silu_grad(p, ds, bits, hull, alpha, s->a->silu_scale);
    else
        softmax_grad(p, ds, bits, hull, alpha, m->log_sum[r], m->delta[r]);
    for (int j = hull.begin; j < hull.end && is_dropped; j++)
        p[j] *= m->keep[j];
}

static void grad_strip(const softmax_seq *s, const bwd_scratch *m, const mask_walk *w, int strip,
                       attn_hull hull) {
    int dim = s->a->dim, r = strip * TILE_STRIP, n = hull.end - hull.begin;
    size_t at = (size_t)r * MASK_TILE + hull.begin, panel = (size_t)hull.begin * dim;
    if (n == 0) return;
    tile_mm_panels(m->query_strips + (size_t)r * dim, m->key_panels + panel, NULL, m->p + at,
                   MASK_TILE, TILE_PANEL, n, dim);
    tile_mm_panels(m->dout_strips + (size_t)r * dim, m->value_panels + panel, NULL, m->ds + at,
                   MASK_TILE, TILE_PANEL, n, dim);
    for (int i = 0; i < TILE_STRIP; i++)
        grad_row(s, m, w, r + i, hull);
    tile_mm_rows((tile_a){m->ds + at, MASK_TILE, 1}, m->keys + (size_t)hull.begin * s->width,
                 s->width, true, m->dq + (size_t)r * s->width, s->width, TILE_STRIP, s->width, n);
}

/* dk and dv of the keys of one panel.  The strips from the first to the last that see any of them
 * are summed at once; a strip between them that does not has zeros there. */
static void add_panel(const softmax_seq *s, const bwd_scratch *m, const mask_walk *w,
                      const attn_hull hulls[SOFTMAX_STRIPS], int j) {
    int first = SOFTMAX_STRIPS, last = -1;
    for (int i = 0; i < SOFTMAX_STRIPS; i++) {
        if (j < hulls[i].begin || j >= hulls[i].end) continue;
        first = first < i ? first : i;
        last = i;
    }
    if (last < 0) return;
    for (int i = first; i <= last; i++) {
        if (j >= hulls[i].begin && j < hulls[i].end) continue;
        for (int r = i * TILE_STRIP; r < (i + 1) * TILE_STRIP; r++) {
            memset(m->p + r * MASK_TILE + j, 0, sizeof(float) * TILE_PANEL);
            memset(m->ds + r * MASK_TILE + j, 0, sizeof(float) * TILE_PANEL);
        }
    }
    int row = first * TILE_STRIP, n = (last - first + 1) * TILE_STRIP, width = s->width;
    size_t to = (size_t)(w->key + j) * width, from = (size_t)row * width;
    tile_a ds = {m->ds + row * MASK_TILE + j, 1, MASK_TILE};
    tile_a p = {m->p + row * MASK_TILE + j, 1, MASK_TILE};
    tile_mm_rows(ds, m->query + from, width, true, m->dk + to, width, TILE_PANEL, width, n);
    tile_mm_rows(p, m->dout + from, width, true, m->dv + to, width, TILE_PANEL, width, n);
}

static void take_tile(const softmax_seq *s, const bwd_scratch *m, const mask_walk *w) {
    const softmax_attn_args *a = s->a;
    const float *k = softmax_row_of(s, a->k, a->stride_k, w->key);
    const float *v = softmax_row_of(s, a->v, a->stride_v, w->key);
    int n = s->len - w->key < MASK_TILE ? s->len - w->key : MASK_TILE;
    attn_hull hulls[SOFTMAX_STRIPS];
    tile_pack_panels(m->key_panels, TILE_PANEL, k, a->stride_k, n, a->dim);
    tile_pack_panels(m->value_panels, TILE_PANEL, v, a->stride_v, n, a->dim);
    tile_pack_rows(m->keys, s->width, MASK_TILE, k, a->stride_k, n, a->dim);
    for (int strip = 0; strip < SOFTMAX_STRIPS; strip++) {
        hulls[strip] = softmax_hull(w->bits + strip * TILE_STRIP);
        grad_strip(s, m, w, strip, hulls[strip]);
    }
    for (int j = 0; j < MASK_TILE; j += TILE_PANEL)
        add_panel(s, m, w, hulls, j);
}

/* delta_i = out_i . dout_i, and the log of the sum. */
static void take_sums(const softmax_seq *s, const bwd_scratch *m, int32_t row, int n) {
    const softmax_attn_args *a = s->a;
    for (int r = 0; r < n; r++) {
        const float *out = softmax_row_of(s, a->out, a->stride_out, row + r);
        const float *dout = softmax_row_of(s, a->dout, a->stride_out, row + r);
        double delta = 0;
        for (int d = 0; d < a->dim; d++)
            delta += (double)out[d] * (double)dout[d];
        m->delta[r] = (float)delta;
        m->log_sum[r] = *softmax_log_sum(s, row + r);
    }
}

static void take_row_of_tiles(const softmax_seq *s, const bwd_scratch *m, int32_t tile_row) {
    const softmax_attn_args *a = s->a;
    int32_t row = tile_row * MASK_TILE;
    int n = s->len - row < MASK_TILE ? s->len - row : MASK_TILE, width = s->width;
    const float *q = softmax_row_of(s, a->q, a->stride_q, row);
    const float *dout = softmax_row_of(s, a->dout, a->stride_out, row);
    mask_walk w;
    if (a->silu_scale == 0) take_sums(s, m, row, n);
    tile_pack_panels(m->query_strips, TILE_STRIP, q, a->stride_q, n, a->dim);
    tile_pack_panels(m->dout_strips, TILE_STRIP, dout, a->stride_out, n, a->dim);
    tile_pack_rows(m->query, width, MASK_TILE, q, a->stride_q, n, a->dim);
    tile_pack_rows(m->dout, width, MASK_TILE, dout, a->stride_out, n, a->dim);
    memset(m->dq, 0, sizeof(float) * (size_t)MASK_TILE * width);
    mask_walk_begin(&w, &a->mask, s->b, s->len, tile_row);
    while (mask_walk_next(&w))
        take_tile(s, m, &w);
    tile_unpack_rows(softmax_row_of(s, a->dq, a->stride_q, row), a->stride_q, m->dq, width, n,
                     a->dim);
}

static status bwd_chunk(void *ctx, int64_t chunk, int worker) {
    const softmax_job *job = ctx;
    const softmax_attn_args *a = job->a;
    softmax_seq s = softmax_seq_of(a, chunk);
    size_t bytes, n_sums = (size_t)tile_round(s.len, MASK_TILE) * s.width;
    void *base;
    TRY(cpu_scratch(job->be, worker, job->bytes, &base));
    bwd_scratch m = carve_scratch(a, base, &bytes);
    memset(m.dk, 0, sizeof(float) * n_sums);
    memset(m.dv, 0, sizeof(float) * n_sums);
    for (int32_t t = 0; t * MASK_TILE < s.len; t++)
        take_row_of_tiles(&s, &m, t);
    tile_unpack_rows(softmax_row_of(&s, a->dk, a->stride_k, 0), a->stride_k, m.dk, s.width, s.len,
                     a->dim);
    tile_unpack_rows(softmax_row_of(&s, a->dv, a->stride_v, 0), a->stride_v, m.dv, s.width, s.len,
                     a->dim);
    return OK;
}

status cpu_softmax_attn_bwd(backend *be, const softmax_attn_args *a) {
    softmax_job job = {.be = be, .a = a};
    TRY(softmax_check(a));
    carve_scratch(a, NULL, &job.bytes);
    return attn_run(be, (int64_t)a->n_sequences * a->n_heads, bwd_chunk, &job);
}
