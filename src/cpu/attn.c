/* HSTU attention, forward (contract: attn_args in ops/ops.h).
 *
 * A chunk owns ATTN_QUERIES query rows of one sequence and group of heads and walks over their
 * keys; threads take chunks, so one long history is many chunks and stalls nobody.  Packed keys and
 * values of one walk (2 x 256 x ATTN_WIDTH numbers at most) stay in the L2 cache, the strip's tile
 * of scores (8 x 256) in the L1 cache.  Bound by the FLOPs of the two products. */
#include "cpu/attn_int.h"

#include "cpu/tile.h"
#include "ops/ops.h"

typedef struct fwd_job {
    backend *be;
    const attn_args *a;
    int32_t n_blocks; /* of query rows, of the longest sequence */
    int32_t n_groups; /* of heads */
    size_t bytes;     /* of scratch */
} fwd_job;

/* Scratch memory of a chunk; (G): one for each head of the group. */
typedef struct fwd_work {
    attn_seq s;
    int width_v; /* dim_v in whole vectors */
    attn_rows rows;
    int32_t *time;
    uint8_t *bucket;
    float *keys;              /* (G) panels of (dim_qk, ATTN_KEYS) */
    float *values;            /* (G, ATTN_KEYS, width_v) */
    float *query;             /* (G) strips of (dim_qk, ATTN_QUERIES) */
    float *out;               /* (G, ATTN_QUERIES, width_v) */
    float *bias;              /* a strip's tile */
    float *tile;              /* a strip's tile */
    float *paged_k, *paged_v; /* with pages: (ATTN_KEYS, G dim_qk), (ATTN_KEYS, G dim_v) */
} fwd_work;

static fwd_work carve_work(const attn_args *a, char *base, size_t *bytes) {
    attn_carve carve = {base, 0};
    fwd_work w = {.width_v = tile_round(a->dim_v, VEC)};
    size_t group = (size_t)attn_head_group(a);
    size_t d = group * (size_t)a->dim_qk, width = group * (size_t)w.width_v;
    w.rows = attn_rows_take(&carve, a, ATTN_QUERIES);
    w.time = attn_take(&carve, ATTN_KEYS, sizeof(int32_t));
    w.bucket = attn_take(&carve, ATTN_KEYS, 1);
    w.keys = attn_take(&carve, ATTN_KEYS * d, sizeof(float));
    w.values = attn_take(&carve, ATTN_KEYS * width, sizeof(float));
    w.query = attn_take(&carve, ATTN_QUERIES * d, sizeof(float));
    w.out = attn_take(&carve, ATTN_QUERIES * width, sizeof(float));
    w.bias = attn_take(&carve, TILE_STRIP * ATTN_KEYS, sizeof(float));
    w.tile = attn_take(&carve, TILE_STRIP * ATTN_KEYS, sizeof(float));
    if (a->pages.table != NULL) {
        w.paged_k = attn_take(&carve, ATTN_KEYS * d, sizeof(float));
        w.paged_v = attn_take(&carve, ATTN_KEYS * group * (size_t)a->dim_v, sizeof(float));
    }
    *bytes = carve.used;
    return w;
}

/* The panels of a tile.  Two vectors at a time, so that one's instructions hide the other's
 * latency. */
static void silu(float *x, int n, float alpha, float scale) {
    for (int j = 0; j < n; j += 2 * VEC) {
        vec y0 = alpha * vec_load(x + j), y1 = alpha * vec_load(x + j + VEC);
        vec sigmoid0 = vecs_sigmoid(y0), sigmoid1 = vecs_sigmoid(y1);
        vec_store(x + j, y0 * sigmoid0 * scale);
        vec_store(x + j + VEC, y1 * sigmoid1 * scale);
    }
}

/* Rows r .. r + n - 1 of the block (n <= TILE_STRIP), one head of the group, the current keys. */
static void fwd_head(const fwd_work *w, int g, int r, int n, attn_hull hull) {
    const attn_args *a = w->s.a;
    int n_columns = hull.end - hull.begin;
    size_t at = (size_t)hull.begin * TILE_STRIP; /* of the hull in a tile */
    const float *query = w->query + ((size_t)g * ATTN_QUERIES + r) * a->dim_qk;
    const float *keys = w->keys + ((size_t)g * ATTN_KEYS + hull.begin) * a->dim_qk;
    const float *values = w->values + ((size_t)g * ATTN_KEYS + hull.begin) * w->width_v;
    float *out = w->out + ((size_t)g * ATTN_QUERIES + r) * w->width_v;
    tile_mm_panels(query, keys, a->bias != BIAS_NONE ? w->bias + at : NULL, w->tile + at,
                   TILE_PANEL, TILE_BLOCK, n_columns, a->dim_qk);
    silu(w->tile + at, n_columns * TILE_STRIP, a->alpha, a->scale);
    for (int k = 0; k < n; k++)
        attn_rows_clear(&w->rows, r + k, &w->s, hull, w->tile + k * TILE_PANEL, TILE_BLOCK);
    tile_mm_blocks(w->tile + at, TILE_BLOCK, values, w->width_v, out, w->width_v, w->width_v,
                   n_columns);
}

/* A strip against the current keys.  Rows of the tile beyond the block's end are computed, but
 * never read. */
static void fwd_strip(const fwd_work *w, int32_t row, int r, int n) {
    attn_hull hull = attn_rows_hull(&w->rows, r, n, &w->s, TILE_PANEL);
    if (hull.begin >= hull.end) return;
    for (int k = 0; k < n && w->s.a->bias != BIAS_NONE; k++)
        attn_bias_fill(&w->s, row + r + k, hull, w->bias + k * TILE_PANEL, TILE_BLOCK, w->bucket);
    for (int g = 0; g < w->s.n_heads; g++)
        fwd_head(w, g, r, n, hull);
}

/* Rows of keys and values in memory, one after the other. */
typedef struct kv_rows {
    const float *k, *v;
    int64_t stride_k, stride_v;
} kv_rows;

static void pack_head(const fwd_work *w, int g, kv_rows r) {
    const attn_args *a = w->s.a;
    tile_pack_panels(w->keys + (size_t)g * ATTN_KEYS * a->dim_qk, TILE_PANEL, r.k, r.stride_k,
                     w->s.n_keys, a->dim_qk);
    tile_pack_rows(w->values + (size_t)g * ATTN_KEYS * w->width_v, w->width_v,
                   tile_round(w->s.n_keys, TILE_PANEL), r.v, r.stride_v, w->s.n_keys, a->dim_v);
}

/* Key j of the sequence, first head of the group, and how many keys follow it in memory. */
static kv_rows rows_at(const attn_seq *s, int32_t j, int32_t *n) {
    const attn_args *a = s->a;
    const attn_pages *p = &a->pages;
    int64_t row = (int64_t)s->row_k + j - s->n_paged;
    kv_rows r = {(const float *)a->k + row * a->stride_k + (int64_t)s->head * a->dim_qk,
                 (const float *)a->v + row * a->stride_v + (int64_t)s->head * a->dim_v, a->stride_k,
                 a->stride_v};
    *n = s->len_k - j;
    if (j >= s->n_paged) return r;
    int64_t page = p->table[(int64_t)s->b * p->max_pages + j / p->page_len];
    int32_t at = j % p->page_len, left = s->n_paged - j;
    r.stride_k = (int64_t)a->n_heads * a->dim_qk;
    r.stride_v = (int64_t)a->n_heads * a->dim_v;
    r.k = (const float *)p->k + page * p->stride + at * r.stride_k + (int64_t)s->head * a->dim_qk;
    r.v = (const float *)p->v + page * p->stride + at * r.stride_v + (int64_t)s->head * a->dim_v;
    *n = p->page_len - at < left ? p->page_len - at : left;
    return r;
}

/* Where the current keys are not one after the other in memory, those of the group's heads are
 * first copied: (ATTN_KEYS, G dim_qk) and (ATTN_KEYS, G dim_v).  So they are packed, and summed, in
 * the same order wherever they come from. */
static kv_rows collect_keys(const fwd_work *w) {
    const attn_args *a = w->s.a;
    int32_t n, d = w->s.n_heads * a->dim_qk, e = w->s.n_heads * a->dim_v;
    kv_rows all = {w->paged_k, w->paged_v, d, e};
    for (int32_t i = 0; i < w->s.n_keys; i += n) {
        kv_rows from = rows_at(&w->s, w->s.first_key + i, &n);
        if (i == 0 && n >= w->s.n_keys) return from;
        if (n > w->s.n_keys - i) n = w->s.n_keys - i;
        for (int32_t r = 0; r < n; r++) {
            memcpy(w->paged_k + (int64_t)(i + r) * d, from.k + r * from.stride_k,
                   (size_t)d * sizeof(float));
            memcpy(w->paged_v + (int64_t)(i + r) * e, from.v + r * from.stride_v,
                   (size_t)e * sizeof(float));
        }
    }
    return all;
}

static void pack_keys(const fwd_work *w) {
    const attn_args *a = w->s.a;
    kv_rows r = collect_keys(w);
    for (int g = 0; g < w->s.n_heads; g++, r.k += a->dim_qk, r.v += a->dim_v)
        pack_head(w, g, r);
}

/* Prepares query rows row .. row + n - 1 for the loop over keys. */
static void begin_rows(fwd_work *w, int32_t row, int n) {
    const attn_args *a = w->s.a;
    size_t n_out = (size_t)w->s.n_heads * ATTN_QUERIES * w->width_v;
    attn_rows_fill(&w->rows, &w->s, row, n);
    memset(w->out, 0, sizeof(float) * n_out);
    for (int g = 0; g < w->s.n_heads; g++) {
        const float *q = (const float *)a->q + (int64_t)(w->s.row_q + row) * a->stride_q +
                         (int64_t)(w->s.head + g) * a->dim_qk;
        tile_pack_panels(w->query + (size_t)g * ATTN_QUERIES * a->dim_qk, TILE_STRIP, q,
                         a->stride_q, n, a->dim_qk);
    }
}

static void end_rows(const fwd_work *w, int32_t row, int n) {
    const attn_args *a = w->s.a;
    for (int g = 0; g < w->s.n_heads; g++) {
        float *out = (float *)a->out + (int64_t)(w->s.row_q + row) * a->stride_out +
                     (int64_t)(w->s.head + g) * a->dim_v;
        tile_unpack_rows(out, a->stride_out, w->out + (size_t)g * ATTN_QUERIES * w->width_v,
                         w->width_v, n, a->dim_v);
    }
}

static void fwd_block(fwd_work *w, int32_t row, int n) {
    begin_rows(w, row, n);
    for (int32_t first = 0; first < w->s.len_k; first += ATTN_KEYS) {
        attn_seq_take_keys(&w->s, first);
        attn_hull hull = attn_rows_hull(&w->rows, 0, n, &w->s, 1);
        if (hull.begin >= hull.end) continue;
        pack_keys(w);
        for (int r = 0; r < n; r += TILE_STRIP)
            fwd_strip(w, row, r, n - r < TILE_STRIP ? n - r : TILE_STRIP);
    }
    end_rows(w, row, n);
}

/* Blocks late in a sequence have the most keys, so they come first: short chunks remain for the
 * end. */
static status fwd_chunk(void *ctx, int64_t chunk, int worker) {
    const fwd_job *job = ctx;
    const attn_args *a = job->a;
    int64_t n_pairs = (int64_t)a->n_sequences * job->n_groups;
    int32_t row = (int32_t)(job->n_blocks - 1 - chunk / n_pairs) * ATTN_QUERIES;
    int32_t b = (int32_t)(chunk % n_pairs / job->n_groups);
    int32_t left = a->offsets_q[b + 1] - a->offsets_q[b] - row;
    if (left <= 0) return OK;

    void *base;
    size_t bytes;
    TRY(cpu_scratch(job->be, worker, job->bytes, &base));
    fwd_work w = carve_work(a, base, &bytes);
    w.s = attn_seq_make(a, b, (int32_t)(chunk % job->n_groups) * attn_head_group(a), w.time);
    fwd_block(&w, row, left < ATTN_QUERIES ? left : ATTN_QUERIES);
    return OK;
}

status cpu_attn_fwd(backend *be, const attn_args *a) {
    fwd_job job = {.be = be, .a = a};
    TRY(attn_args_check(a));
    TRY(attn_lengths_check(a));
    carve_work(a, NULL, &job.bytes);
    job.n_blocks = (int32_t)cpu_n_chunks(a->max_len_q, ATTN_QUERIES);
    job.n_groups = (int32_t)cpu_n_chunks(a->n_heads, attn_head_group(a));
    TRY(attn_run(be, (int64_t)job.n_blocks * a->n_sequences * job.n_groups, fwd_chunk, &job));
    return a->gate != NULL ? cpu_gate_fwd(be, a->gate) : OK;
}
