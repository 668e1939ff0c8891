/* HSTU attention, forward (contract: attn_args in ops/ops.h).
 *
 * A chunk owns ATTN_QUERIES query rows of one sequence and head and walks over their keys; threads
 * take chunks, so one long history is many chunks and stalls nobody.  Packed keys and values of one
 * walk (2 x 256 x D numbers) stay in the second cache, the strip's tile of scores (8 x 256) in the
 * first; the flops of the two products bind. */
#include "cpu/attn_int.h"

#include "cpu/tile.h"

typedef struct fwd_job {
    backend *be;
    const attn_args *a;
    int32_t n_blocks; /* of query rows, of the longest sequence */
    size_t bytes;     /* of scratch */
} fwd_job;

typedef struct fwd_scratch {
    attn_rows rows;
    int32_t *time;
    float *keys;   /* panels of (dim_qk, ATTN_KEYS) */
    float *values; /* (ATTN_KEYS, width_v) */
    float *query;  /* (dim_qk, TILE_STRIP) for each strip */
    float *tile;   /* (TILE_STRIP, ATTN_ROW) */
    float *out;    /* (ATTN_QUERIES, width_v) */
} fwd_scratch;

static fwd_scratch carve_scratch(const attn_args *a, char *base, size_t *bytes) {
    attn_carve carve = {base, 0};
    size_t width_v = (size_t)tile_round(a->dim_v, VEC), d = (size_t)a->dim_qk;
    fwd_scratch f;
    f.rows = attn_rows_take(&carve, a, ATTN_QUERIES);
    f.time = attn_take(&carve, ATTN_KEYS, sizeof(int32_t));
    f.keys = attn_take(&carve, ATTN_KEYS * d, sizeof(float));
    f.values = attn_take(&carve, ATTN_KEYS * width_v, sizeof(float));
    f.query = attn_take(&carve, ATTN_QUERIES * d, sizeof(float));
    f.tile = attn_take(&carve, TILE_STRIP * ATTN_ROW, sizeof(float));
    f.out = attn_take(&carve, ATTN_QUERIES * width_v, sizeof(float));
    *bytes = carve.used;
    return f;
}

static void silu_row(float *x, attn_hull hull, float alpha, float scale) {
    for (int j = hull.begin; j < hull.end; j++) {
        float y = alpha * x[j];
        x[j] = y * vec_sigmoid(y) * scale;
    }
}

/* Rows r .. r + n - 1 of the block (n <= TILE_STRIP) against the keys in hand. */
static void fwd_strip(const attn_seq *s, const fwd_scratch *f, int32_t row, int r, int n) {
    const attn_args *a = s->a;
    int width_v = tile_round(a->dim_v, VEC);
    attn_hull hull = attn_rows_hull(&f->rows, r, n, s, TILE_PANEL);
    int n_columns = hull.end - hull.begin;
    if (n_columns <= 0) return;
    tile_a query = {f->query + (size_t)r * a->dim_qk, 1, TILE_STRIP};
    tile_mm_panels(query, f->keys + (size_t)hull.begin * a->dim_qk, f->tile + hull.begin, ATTN_ROW,
                   TILE_STRIP, n_columns, a->dim_qk);
    for (int m = 0; m < TILE_STRIP; m++) {
        float *x = f->tile + m * ATTN_ROW;
        if (m >= n) {
            memset(x + hull.begin, 0, sizeof *x * (size_t)n_columns);
            continue;
        }
        attn_bias_add(s, row + r + m, hull, x, NULL);
        silu_row(x, hull, a->alpha, a->scale);
        attn_rows_clear(&f->rows, r + m, s, hull, x);
    }
    tile_a weights = {f->tile + hull.begin, ATTN_ROW, 1};
    tile_mm_rows(weights, f->values + (size_t)hull.begin * width_v, width_v,
                 f->out + (size_t)r * width_v, width_v, TILE_STRIP, width_v, n_columns, true);
}

static void pack_keys(const attn_seq *s, const fwd_scratch *f) {
    const attn_args *a = s->a;
    int64_t row = (int64_t)s->row_k + s->first_key;
    const float *k = (const float *)a->k + row * a->stride_k + (int64_t)s->head * a->dim_qk;
    const float *v = (const float *)a->v + row * a->stride_v + (int64_t)s->head * a->dim_v;
    tile_pack_panels(f->keys, TILE_PANEL, k, a->stride_k, s->n_keys, a->dim_qk);
    tile_pack_rows(f->values, tile_round(a->dim_v, VEC), tile_round(s->n_keys, TILE_PANEL), v,
                   a->stride_v, s->n_keys, a->dim_v);
}

/* Query rows row .. row + n - 1 of one sequence and head. */
static void fwd_block(attn_seq *s, fwd_scratch *f, int32_t row, int n) {
    const attn_args *a = s->a;
    int width_v = tile_round(a->dim_v, VEC);
    const float *q = (const float *)a->q + (int64_t)(s->row_q + row) * a->stride_q +
                     (int64_t)s->head * a->dim_qk;
    tile_pack_panels(f->query, TILE_STRIP, q, a->stride_q, n, a->dim_qk);
    memset(f->out, 0, sizeof(float) * ATTN_QUERIES * (size_t)width_v);
    attn_rows_fill(&f->rows, s, row, n);
    for (int32_t first = 0; first < s->len_k; first += ATTN_KEYS) {
        attn_seq_take_keys(s, first);
        attn_hull hull = attn_rows_hull(&f->rows, 0, n, s, 1);
        if (hull.begin >= hull.end) continue;
        pack_keys(s, f);
        for (int r = 0; r < n; r += TILE_STRIP)
            fwd_strip(s, f, row, r, n - r < TILE_STRIP ? n - r : TILE_STRIP);
    }
    float *out =
        (float *)a->out + (int64_t)(s->row_q + row) * a->stride_out + (int64_t)s->head * a->dim_v;
    tile_unpack_rows(out, a->stride_out, f->out, width_v, n, a->dim_v);
}

/* Blocks far in a sequence have most keys, so they come first and leave little to wait for. */
static status fwd_chunk(void *ctx, int64_t chunk, int worker) {
    const fwd_job *job = ctx;
    const attn_args *a = job->a;
    int64_t n_pairs = (int64_t)a->n_sequences * a->n_heads;
    int32_t row = (int32_t)(job->n_blocks - 1 - chunk / n_pairs) * ATTN_QUERIES;
    int32_t b = (int32_t)(chunk % n_pairs / a->n_heads);
    int32_t left = a->offsets_q[b + 1] - a->offsets_q[b] - row;
    if (left <= 0) return OK;

    void *base;
    size_t bytes;
    TRY(cpu_scratch(job->be, worker, job->bytes, &base));
    fwd_scratch f = carve_scratch(a, base, &bytes);
    attn_seq s = attn_seq_make(a, b, (int32_t)(chunk % a->n_heads), f.time);
    fwd_block(&s, &f, row, left < ATTN_QUERIES ? left : ATTN_QUERIES);
    return OK;
}

status cpu_attn_fwd(backend *be, const attn_args *a) {
    fwd_job job = {.be = be, .a = a};
    TRY(attn_args_check(a));
    carve_scratch(a, NULL, &job.bytes);
    job.n_blocks = (a->max_len_q + ATTN_QUERIES - 1) / ATTN_QUERIES;
    return attn_run(be, (int64_t)job.n_blocks * a->n_sequences * a->n_heads, fwd_chunk, &job);
}
