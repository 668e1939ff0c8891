/* Softmax (or SiLU) attention under any mask, forward (contract: softmax_attn_args in ops/ops.h).
 *
 * A chunk owns MASK_TILE query rows of one sequence and head and walks over the tiles of keys in
 * which they see anything.  A row keeps its maximum, its sum and its output, scaled by
 * exp(-maximum) and rescaled when a tile has a larger score (online softmax), so scratch memory
 * does not grow with the length.  Bound by the FLOPs of the products and, with dropout, by the
 * random numbers. */
#include "cpu/attn.h"
#include "cpu/cpu.h"

#include "cpu/tile.h"

/* The tiles of one row of tiles of a mask (ops/mask_rule.h) in ascending order, from its lists or
 * from its rule: which keys, and for each of the MASK_TILE query rows a word of bits, zero for rows
 * after the sequence's end.  Any thread, each with its own walk. */
typedef struct mask_walk {
    const mask_view *m;
    int32_t n;         /* tokens of the sequence */
    int32_t row;       /* first query of the row of tiles */
    int32_t next, end; /* entries of row_tiles; of a rule of one span, tiles of keys */
    int32_t key;       /* first key of the current tile */
    const uint64_t *bits;
    uint64_t own[MASK_TILE];
} mask_walk;

static int32_t rows_end(const mask_walk *w) {
    return w->n - w->row < MASK_TILE ? w->n : w->row + MASK_TILE;
}

/* Row of tiles `tile_row` of sequence b, which has n tokens. */
static void mask_walk_begin(mask_walk *w, const mask_view *m, int32_t b, int32_t n,
                            int32_t tile_row) {
    w->m = m;
    w->n = n;
    w->row = tile_row * MASK_TILE;
    if (mask_rule_is_span(&m->rule)) {
        mask_span seen = mask_rule_seen(&m->rule, n, w->row, rows_end(w));
        w->next = seen.begin / MASK_TILE;
        w->end = (seen.end + MASK_TILE - 1) / MASK_TILE;
    } else {
        w->next = m->row_begin[m->first[b] + tile_row];
        w->end = m->row_begin[m->first[b] + tile_row + 1];
    }
}

static void fill_span_bits(mask_walk *w) {
    memset(w->own, 0, sizeof w->own);
    for (int32_t i = w->row; i < rows_end(w); i++)
        w->own[i - w->row] = mask_span_word(mask_rule_span(&w->m->rule, w->n, i), w->key);
    w->bits = w->own;
}

/* Moves to the next tile, whose key and bits it sets; false: there is none. */
static bool mask_walk_next(mask_walk *w) {
    if (w->next >= w->end) return false;
    if (mask_rule_is_span(&w->m->rule)) {
        w->key = w->next++ * MASK_TILE;
        fill_span_bits(w);
        return true;
    }
    mask_tile tile = w->m->row_tiles[w->next++];
    w->key = tile.tile * MASK_TILE;
    w->bits = w->own;
    if (tile.bits == MASK_FULL)
        memset(w->own, 0xff, sizeof w->own);
    else
        w->bits = w->m->bits + (int64_t)tile.bits * MASK_TILE;
    return true;
}

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

/* Of one chunk. */
typedef struct fwd_scratch {
    float *queries;       /* (SOFTMAX_STRIPS) strips, transposed */
    float *keys, *values; /* a tile: in panels, and (MASK_TILE, width) */
    float *p, *keep;      /* (TILE_STRIP, MASK_TILE), (MASK_TILE) */
    float *out;           /* (MASK_TILE, width) */
    float *largest;       /* (MASK_TILE) */
    double *sum;          /* (MASK_TILE) */
} fwd_scratch;

static fwd_scratch carve_scratch(const softmax_attn_args *a, char *base, size_t *bytes) {
    cpu_carve carve = {base, 0};
    size_t tile = (size_t)MASK_TILE * (size_t)tile_round(a->dim, VEC);
    fwd_scratch m = {0};
    m.queries = cpu_take(&carve, tile, sizeof(float));
    m.keys = cpu_take(&carve, tile, sizeof(float));
    m.values = cpu_take(&carve, tile, sizeof(float));
    m.p = cpu_take(&carve, TILE_STRIP * MASK_TILE, sizeof(float));
    m.keep = cpu_take(&carve, MASK_TILE, sizeof(float));
    m.out = cpu_take(&carve, tile, sizeof(float));
    m.largest = cpu_take(&carve, MASK_TILE, sizeof(float));
    m.sum = cpu_take(&carve, MASK_TILE, sizeof(double));
    *bytes = carve.used;
    return m;
}

/* x = alpha x where the row sees the key, else -infinity; returns the largest. */
static float mask_scores(float *x, uint64_t bits, attn_hull hull, float alpha) {
    vec largest = vec_all(-INFINITY);
    float all = -INFINITY;
    for (int j = hull.begin; j < hull.end; j += VEC) {
        vec y = vec_select(softmax_seen(bits, j), alpha * vec_load(x + j), vec_all(-INFINITY));
        vec_store(x + j, y);
        largest = vec_select((vec_int)(y > largest), y, largest);
    }
    for (int i = 0; i < VEC; i++)
        all = largest[i] > all ? largest[i] : all;
    return all;
}

/* x = exp(x - largest), zero where the row does not see the key; returns the sum. */
static double exp_scores(float *x, uint64_t bits, attn_hull hull, float largest) {
    double sum = 0;
    for (int j = hull.begin; j < hull.end; j += VEC) {
        vec y = vecs_exp(vec_load(x + j) - largest);
        y = vec_select(softmax_seen(bits, j), y, vec_all(0));
        vec_store(x + j, y);
    }
    for (int j = hull.begin; j < hull.end; j++)
        sum += (double)x[j];
    return sum;
}

/* x = scale silu(alpha x), zero where the row does not see the key. */
static void silu_scores(float *x, uint64_t bits, attn_hull hull, float alpha, float scale) {
    for (int j = hull.begin; j < hull.end; j += VEC) {
        vec y = alpha * vec_load(x + j);
        vec_store(x + j,
                  vec_select(softmax_seen(bits, j), y * vecs_sigmoid(y) * scale, vec_all(0)));
    }
}

/* Scores of row r of the tile become weights; what the row has so far is rescaled. */
static void take_row(const softmax_seq *s, const fwd_scratch *m, const mask_walk *w, int r,
                     attn_hull hull, float *x) {
    uint64_t bits = w->bits[r];
    float before = m->largest[r], *out = m->out + (size_t)r * s->width;
    if (bits == 0) {
        memset(x + hull.begin, 0, sizeof *x * (size_t)(hull.end - hull.begin));
        return;
    }
    bool is_silu = s->a->silu_scale != 0;
    if (is_silu) silu_scores(x, bits, hull, s->a->alpha, s->a->silu_scale);
    float largest = is_silu ? before : mask_scores(x, bits, hull, s->a->alpha);
    if (largest > before) {
        float factor = before > -INFINITY ? vec_exp(before - largest) : 0.0f;
        m->largest[r] = largest;
        m->sum[r] *= (double)factor;
        for (int d = 0; d < s->width; d += VEC)
            vec_store(out + d, factor * vec_load(out + d));
    }
    if (!is_silu) m->sum[r] += exp_scores(x, bits, hull, m->largest[r]);
    if (s->a->drop.rate == 0.0f) return;
    softmax_draw_keep(s, w->row + r, w->key, hull, m->keep);
    for (int j = hull.begin; j < hull.end; j++)
        x[j] *= m->keep[j];
}

static void take_strip(const softmax_seq *s, const fwd_scratch *m, const mask_walk *w, int strip) {
    int dim = s->a->dim, r = strip * TILE_STRIP;
    attn_hull hull = softmax_hull(w->bits + r);
    int n = hull.end - hull.begin;
    if (n == 0) return;
    tile_mm_panels(m->queries + (size_t)r * dim, m->keys + (size_t)hull.begin * dim, NULL,
                   m->p + hull.begin, MASK_TILE, TILE_PANEL, n, dim);
    for (int i = 0; i < TILE_STRIP; i++)
        take_row(s, m, w, r + i, hull, m->p + i * MASK_TILE);
    tile_mm_rows((tile_a){m->p + hull.begin, MASK_TILE, 1},
                 m->values + (size_t)hull.begin * s->width, s->width, true,
                 m->out + (size_t)r * s->width, s->width, TILE_STRIP, s->width, n);
}

static void take_tile(const softmax_seq *s, const fwd_scratch *m, const mask_walk *w) {
    const softmax_attn_args *a = s->a;
    int n = s->len - w->key < MASK_TILE ? s->len - w->key : MASK_TILE;
    tile_pack_panels(m->keys, TILE_PANEL, softmax_row_of(s, a->k, a->stride_k, w->key), a->stride_k,
                     n, a->dim);
    tile_pack_rows(m->values, s->width, MASK_TILE, softmax_row_of(s, a->v, a->stride_v, w->key),
                   a->stride_v, n, a->dim);
    for (int strip = 0; strip < SOFTMAX_STRIPS; strip++)
        take_strip(s, m, w, strip);
}

/* Divides by the sums, and stores. */
static void finish_rows(const softmax_seq *s, const fwd_scratch *m, int32_t row, int n) {
    const softmax_attn_args *a = s->a;
    for (int r = 0; r < n && a->silu_scale == 0; r++) {
        float *out = m->out + (size_t)r * s->width;
        bool has_keys = m->largest[r] > -INFINITY;
        float inverse = has_keys ? (float)(1.0 / m->sum[r]) : 0.0f;
        for (int d = 0; d < s->width; d += VEC)
            vec_store(out + d, inverse * vec_load(out + d));
        if (a->log_sum != NULL)
            *softmax_log_sum(s, row + r) =
                has_keys ? m->largest[r] + (float)log(m->sum[r]) : -INFINITY;
    }
    tile_unpack_rows(softmax_row_of(s, a->out, a->stride_out, row), a->stride_out, m->out, s->width,
                     n, a->dim);
}

static status fwd_chunk(void *ctx, int64_t chunk, int worker) {
    const softmax_job *job = ctx;
    const softmax_attn_args *a = job->a;
    softmax_seq s = softmax_seq_of(a, chunk / job->n_tiles);
    int32_t tile_row = (int32_t)(chunk % job->n_tiles), row = tile_row * MASK_TILE;
    int n = s.len - row < MASK_TILE ? s.len - row : MASK_TILE;
    size_t bytes;
    void *base;
    mask_walk w;
    if (n <= 0) return OK;
    TRY(cpu_scratch(job->be, worker, job->bytes, &base));
    fwd_scratch m = carve_scratch(a, base, &bytes);
    tile_pack_panels(m.queries, TILE_STRIP, softmax_row_of(&s, a->q, a->stride_q, row), a->stride_q,
                     n, a->dim);
    memset(m.out, 0, sizeof(float) * (size_t)MASK_TILE * s.width);
    for (int r = 0; r < MASK_TILE; r++) {
        m.largest[r] = -INFINITY;
        m.sum[r] = 0;
    }
    mask_walk_begin(&w, &a->mask, s.b, s.len, tile_row);
    while (mask_walk_next(&w))
        take_tile(&s, &m, &w);
    finish_rows(&s, &m, row, n);
    return OK;
}

static status softmax_check(const softmax_attn_args *a) {
    TRY(softmax_attn_args_check(a));
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
    TRY(softmax_check(a));
    carve_scratch(a, NULL, &job.bytes);
    job.n_tiles = (int32_t)cpu_n_chunks(a->max_len, MASK_TILE);
    return pool_run(be->workers, (int64_t)job.n_tiles * a->n_sequences * a->n_heads, fwd_chunk,
                    &job);
}

/* Softmax attention under any mask, backward (contract: softmax_attn_args in ops/ops.h):
 *     p = exp(alpha q . k - log_sum),  dp = dropped(dout . v),  delta = out . dout
 *     ds = alpha p (dp - delta);  dq += ds k,  dk += ds q,  dv += dropped(p) dout
 * or, with p = silu_scale silu(x) of x = alpha q . k,  ds = alpha silu_scale silu'(x) dp.
 *
 * A chunk owns a whole sequence and head, so that it sums dk and dv without other chunks and in
 * order.  It walks over the tiles in which anything is seen, a row of tiles after the other.  Bound
 * by the FLOPs of the five products and, with dropout, by the random numbers. */

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

static bwd_scratch carve_bwd_scratch(const softmax_attn_args *a, char *base, size_t *bytes) {
    cpu_carve carve = {base, 0};
    size_t width = (size_t)tile_round(a->dim, VEC), tile = MASK_TILE * width;
    size_t all = (size_t)cpu_n_chunks(a->max_len, MASK_TILE) * MASK_TILE * width;
    bwd_scratch m = {0};
    float **tiles[] = {&m.query_strips, &m.dout_strips, &m.query,        &m.dout,
                       &m.dq,           &m.key_panels,  &m.value_panels, &m.keys};
    for (size_t i = 0; i < sizeof tiles / sizeof *tiles; i++)
        *tiles[i] = cpu_take(&carve, tile, sizeof(float));
    m.p = cpu_take(&carve, MASK_TILE * MASK_TILE, sizeof(float));
    m.ds = cpu_take(&carve, MASK_TILE * MASK_TILE, sizeof(float));
    m.keep = cpu_take(&carve, MASK_TILE, sizeof(float));
    m.log_sum = cpu_take(&carve, MASK_TILE, sizeof(float));
    m.delta = cpu_take(&carve, MASK_TILE, sizeof(float));
    m.dk = cpu_take(&carve, all, sizeof(float));
    m.dv = cpu_take(&carve, all, sizeof(float));
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

static void grad_tile(const softmax_seq *s, const bwd_scratch *m, const mask_walk *w) {
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
        grad_tile(s, m, &w);
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
    bwd_scratch m = carve_bwd_scratch(a, base, &bytes);
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
    carve_bwd_scratch(a, NULL, &job.bytes);
    return pool_run(be->workers, (int64_t)a->n_sequences * a->n_heads, bwd_chunk, &job);
}
