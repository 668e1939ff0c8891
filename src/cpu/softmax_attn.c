/* Softmax (or SiLU) attention under any mask, forward (contract: softmax_attn_args in ops/ops.h).
 *
 * A chunk owns MASK_TILE query rows of one sequence and head and walks over the tiles of keys in
 * which they see anything.  A row keeps its maximum, its sum and its output, scaled by
 * exp(-maximum) and rescaled when a tile has a larger score (online softmax), so scratch memory
 * does not grow with the length.  Bound by the FLOPs of the products and, with dropout, by the
 * random numbers. */
#include <math.h>

#include "ops/ops.h"

#include "cpu/softmax_attn.h"

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
    attn_carve carve = {base, 0};
    size_t tile = (size_t)MASK_TILE * (size_t)tile_round(a->dim, VEC);
    fwd_scratch m = {0};
    m.queries = attn_take(&carve, tile, sizeof(float));
    m.keys = attn_take(&carve, tile, sizeof(float));
    m.values = attn_take(&carve, tile, sizeof(float));
    m.p = attn_take(&carve, TILE_STRIP * MASK_TILE, sizeof(float));
    m.keep = attn_take(&carve, MASK_TILE, sizeof(float));
    m.out = attn_take(&carve, tile, sizeof(float));
    m.largest = attn_take(&carve, MASK_TILE, sizeof(float));
    m.sum = attn_take(&carve, MASK_TILE, sizeof(double));
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

status softmax_check(const softmax_attn_args *a) {
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
    return attn_run(be, (int64_t)job.n_tiles * a->n_sequences * a->n_heads, fwd_chunk, &job);
}
