/* HSTU attention, forward (contract: attn_args in ops/ops.h).
 *
 * A chunk owns ATTN_QUERIES query rows of one sequence and group of heads and walks over their
 * keys; threads take chunks, so one long history is many chunks and stalls nobody.  Packed keys and
 * values of one walk (2 x 256 x ATTN_WIDTH numbers at most) stay in the L2 cache, the strip's tile
 * of scores (8 x 256) in the L1 cache.  Bound by the FLOPs of the two products. */
#include "cpu/attn.h"

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
    cpu_carve carve = {base, 0};
    fwd_work w = {.width_v = tile_round(a->dim_v, VEC)};
    size_t group = (size_t)attn_head_group(a);
    size_t d = group * (size_t)a->dim_qk, width = group * (size_t)w.width_v;
    w.rows = attn_rows_take(&carve, a, ATTN_QUERIES);
    w.time = cpu_take(&carve, ATTN_KEYS, sizeof(int32_t));
    w.bucket = cpu_take(&carve, ATTN_KEYS, 1);
    w.keys = cpu_take(&carve, ATTN_KEYS * d, sizeof(float));
    w.values = cpu_take(&carve, ATTN_KEYS * width, sizeof(float));
    w.query = cpu_take(&carve, ATTN_QUERIES * d, sizeof(float));
    w.out = cpu_take(&carve, ATTN_QUERIES * width, sizeof(float));
    w.bias = cpu_take(&carve, TILE_STRIP * ATTN_KEYS, sizeof(float));
    w.tile = cpu_take(&carve, TILE_STRIP * ATTN_KEYS, sizeof(float));
    if (a->pages.table != NULL) {
        w.paged_k = cpu_take(&carve, ATTN_KEYS * d, sizeof(float));
        w.paged_v = cpu_take(&carve, ATTN_KEYS * group * (size_t)a->dim_v, sizeof(float));
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

static void pack_head(const fwd_work *w, int g, attn_kv_rows r) {
    const attn_args *a = w->s.a;
    tile_pack_panels(w->keys + (size_t)g * ATTN_KEYS * a->dim_qk, TILE_PANEL, r.k, r.stride_k,
                     w->s.n_keys, a->dim_qk);
    tile_pack_rows(w->values + (size_t)g * ATTN_KEYS * w->width_v, w->width_v,
                   tile_round(w->s.n_keys, TILE_PANEL), r.v, r.stride_v, w->s.n_keys, a->dim_v);
}

attn_kv_rows attn_kv_at(const attn_seq *s, int32_t j, int32_t *n) {
    const attn_args *a = s->a;
    const attn_pages *p = &a->pages;
    int64_t row = (int64_t)s->row_k + j - s->n_paged;
    attn_kv_rows r = {(const float *)a->k + row * a->stride_k + (int64_t)s->head * a->dim_qk,
                      (const float *)a->v + row * a->stride_v + (int64_t)s->head * a->dim_v,
                      a->stride_k, a->stride_v};
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
static attn_kv_rows collect_keys(const fwd_work *w) {
    const attn_args *a = w->s.a;
    int32_t n, d = w->s.n_heads * a->dim_qk, e = w->s.n_heads * a->dim_v;
    attn_kv_rows all = {w->paged_k, w->paged_v, d, e};
    for (int32_t i = 0; i < w->s.n_keys; i += n) {
        attn_kv_rows from = attn_kv_at(&w->s, w->s.first_key + i, &n);
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
    attn_kv_rows r = collect_keys(w);
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
    TRY(pool_run(be->workers, (int64_t)job.n_blocks * a->n_sequences * job.n_groups, fwd_chunk,
                 &job));
    return a->gate != NULL ? cpu_gate_fwd(be, a->gate) : OK;
}

int32_t attn_head_group(const attn_args *a) {
    int32_t dim = a->dim_qk > a->dim_v ? a->dim_qk : a->dim_v;
    bool shares = a->bias == BIAS_TIME || (a->bias == BIAS_TABLE && a->table_heads == 1);
    int32_t fit = dim < ATTN_WIDTH ? ATTN_WIDTH / dim : 1;
    return !shares ? 1 : fit < a->n_heads ? fit : a->n_heads;
}

attn_seq attn_seq_make(const attn_args *a, int32_t b, int32_t head, int32_t *time) {
    int32_t group = attn_head_group(a), left = a->n_heads - head;
    attn_seq s = {.a = a, .b = b, .head = head, .time = time};
    s.n_heads = group < left ? group : left;
    s.buckets = a->bias == BIAS_TIME ? bucket_table_get() : NULL;
    s.row_q = a->offsets_q[b];
    s.row_k = a->offsets_k[b];
    s.len_q = a->offsets_q[b + 1] - s.row_q;
    s.len_k = a->offsets_k[b + 1] - s.row_k;
    s.row_time = s.row_k;
    if (a->pages.table != NULL) {
        s.row_time = a->pages.offsets[b];
        s.n_paged = a->pages.offsets[b + 1] - s.row_time - s.len_k;
        s.len_k += s.n_paged;
    }
    return s;
}

/* Whether a time is within 2^30 of the first one: differences of two such times fit 32 bits. */
static bool is_near(int64_t time, int64_t first) {
    return (uint64_t)time - (uint64_t)first + (1u << 30) < (1u << 31);
}

static int32_t near_time(int64_t time, int64_t first) {
    return (int32_t)((uint64_t)time - (uint64_t)first);
}

void attn_seq_take_keys(attn_seq *s, int32_t first) {
    int32_t left = s->len_k - first;
    s->first_key = first;
    s->n_keys = left < ATTN_KEYS ? left : ATTN_KEYS;
    if (s->a->bias != BIAS_TIME) return;
    const int64_t *time = s->a->key_time + s->row_time + first;
    s->first_time = time[0];
    s->is_near = true;
    for (int32_t j = 0; j < s->n_keys; j++) {
        s->time[j] = near_time(time[j], s->first_time);
        s->is_near &= is_near(time[j], s->first_time);
    }
    for (int32_t j = s->n_keys; j < tile_round(s->n_keys, VEC); j++)
        s->time[j] = 0;
}

attn_rows attn_rows_take(cpu_carve *carve, const attn_args *a, int n) {
    attn_rows rows = {.max_spans = attn_mask_max_spans(a)};
    rows.spans = cpu_take(carve, (size_t)n * rows.max_spans, sizeof *rows.spans);
    rows.n_spans = cpu_take(carve, (size_t)n, sizeof *rows.n_spans);
    return rows;
}

void attn_rows_fill(attn_rows *rows, const attn_seq *s, int32_t row, int n) {
    for (int r = 0; r < n; r++)
        rows->n_spans[r] =
            attn_mask_row(s->a, s->b, row + r, rows->spans + (size_t)r * rows->max_spans);
}

attn_hull attn_rows_hull(const attn_rows *rows, int r, int n, const attn_seq *s, int round) {
    int64_t begin = INT32_MAX, end = 0;
    for (int m = r; m < r + n; m++) {
        const attn_span *spans = rows->spans + (size_t)m * rows->max_spans;
        if (rows->n_spans[m] == 0) continue;
        int32_t last = spans[rows->n_spans[m] - 1].end;
        begin = spans[0].begin < begin ? spans[0].begin : begin;
        end = last > end ? last : end;
    }
    begin = begin > s->first_key ? begin - s->first_key : 0;
    end = end < s->first_key + s->n_keys ? end - s->first_key : s->n_keys;
    if (begin >= end) return (attn_hull){0, 0};
    return (attn_hull){(int)(begin / round * round), (int)((end + round - 1) / round * round)};
}

/* Sets columns begin .. end - 1 of a row in a tile to zero. */
static void clear_columns(float *x, ptrdiff_t panel, int begin, int end) {
    for (int j = begin; j < end; j++)
        x[j / TILE_PANEL * panel + j % TILE_PANEL] = 0.0f;
}

void attn_rows_clear(const attn_rows *rows, int r, const attn_seq *s, attn_hull hull, float *x,
                     ptrdiff_t panel) {
    const attn_span *spans = rows->spans + (size_t)r * rows->max_spans;
    int at = hull.begin;
    for (int32_t m = 0; m < rows->n_spans[r] && at < hull.end; m++) {
        int begin = spans[m].begin - s->first_key, end = spans[m].end - s->first_key;
        if (end <= at) continue;
        clear_columns(x, panel, at, begin < hull.end ? begin : hull.end);
        at = end;
    }
    clear_columns(x, panel, at, hull.end);
}

/* Index in the position bias of a query row and the first current key; consecutive keys are
 * consecutive there. */
static ptrdiff_t position_of(const attn_seq *s, int32_t row) {
    int32_t i = row + s->len_k - s->len_q;
    return (ptrdiff_t)s->a->bias_len - 1 + s->first_key - i;
}

typedef uint8_t vec_bytes __attribute__((vector_size(VEC)));

/* time_bias for current keys whose times are near, so that distances are at most 2^31: their
 * cells and buckets are less than VEC_LOOKUP.  Works on whole vectors; the last one may extend past
 * the hull. */
static void near_bias(const attn_seq *s, int32_t query, const float *position, attn_hull hull,
                      float *bias, uint8_t *bucket) {
    for (int j = hull.begin; j < hull.end; j += VEC) {
        vec_int d = query - *(const vec_int_any *)(s->time + j), sign = d >> 31;
        d = (d ^ sign) - sign;
        d = d - (d == 0);
        vec_int bits = (vec_int) __builtin_convertvector(d, vec);
        vec_int cell = vec_lookup(s->buckets->cell, (bits >> BUCKET_BITS) - (127 << 2));
        vec_int at = (cell + (bits & ((1 << BUCKET_BITS) - 1))) >> BUCKET_BITS;
        vec time = (vec)vec_lookup(s->a->time_w, at);
        vec_bytes bytes = __builtin_convertvector(at, vec_bytes);
        memcpy(bucket + j, &bytes, sizeof bytes);
        vec_store(bias + j, vec_load_part(position + j, hull.end - j) + time);
    }
}

static void time_bias(const attn_seq *s, int32_t row, attn_hull hull, float *bias,
                      uint8_t *bucket) {
    int64_t query = s->a->query_time[s->row_q + row];
    const float *position = s->a->position_w + position_of(s, row);
    const int64_t *key = s->a->key_time + s->row_time + s->first_key;
    if (s->is_near && is_near(query, s->first_time)) {
        near_bias(s, near_time(query, s->first_time), position, hull, bias, bucket);
        return;
    }
    for (int j = hull.begin; j < hull.end; j++) {
        bucket[j] = (uint8_t)bucket_of(s->buckets, bucket_distance(query, key[j]));
        bias[j] = position[j] + s->a->time_w[bucket[j]];
    }
}

static size_t table_of(const attn_seq *s, int32_t row) {
    const attn_args *a = s->a;
    size_t head = a->table_heads == 1 ? 0 : (size_t)s->head;
    size_t i = (size_t)row + s->len_k - s->len_q;
    return (((size_t)s->b * a->table_heads + head) * a->table_len + i) * a->table_len +
           s->first_key;
}

/* The hull may be rounded beyond the keys; there is no bias there. */
static attn_hull within_keys(const attn_seq *s, attn_hull hull) {
    return (attn_hull){hull.begin, hull.end < s->n_keys ? hull.end : s->n_keys};
}

void attn_bias_fill(const attn_seq *s, int32_t row, attn_hull hull, float *x, ptrdiff_t panel,
                    uint8_t *bucket) {
    float own[ATTN_KEYS + TILE_PANEL];
    const float *bias = own;
    attn_hull keys = within_keys(s, hull);
    if (s->a->bias == BIAS_TIME)
        time_bias(s, row, keys, own, bucket);
    else
        memcpy(own + keys.begin, (const float *)s->a->table + table_of(s, row) + keys.begin,
               sizeof *own * (size_t)(keys.end - keys.begin));
    for (int j = keys.end; j < hull.end; j++)
        own[j] = 0.0f;
    for (int j = hull.begin; j < hull.end; j += TILE_PANEL)
        for (int k = 0; k < TILE_PANEL; k += VEC)
            vec_store(x + j / TILE_PANEL * panel + k, vec_load(bias + j + k));
}

void attn_bias_grad_add(const attn_seq *s, int32_t row, attn_hull hull, const float *ds,
                        ptrdiff_t panel, const uint8_t *bucket, const attn_bias_grad *grad) {
    float own[ATTN_KEYS + TILE_PANEL];
    attn_hull keys = within_keys(s, hull);
    for (int j = hull.begin; j < hull.end; j += TILE_PANEL)
        for (int k = 0; k < TILE_PANEL; k += VEC)
            vec_store(own + j + k, vec_load(ds + j / TILE_PANEL * panel + k));
    if (s->a->bias == BIAS_TABLE) {
        float *table = s->a->dtable + table_of(s, row);
        for (int j = keys.begin; j < keys.end; j++)
            table[j] += own[j];
        return;
    }
    float *position = grad->position + position_of(s, row);
    for (int j = keys.begin; j < keys.end; j++)
        position[j] += own[j];
    int j = keys.begin; /* a multiple of TILE_PANEL, so of ATTN_TIME_COPIES */
    for (; j + ATTN_TIME_COPIES <= keys.end; j += ATTN_TIME_COPIES)
#pragma GCC unroll 8
        for (int copy = 0; copy < ATTN_TIME_COPIES; copy++)
            grad->time[copy * ATTN_TIME_STRIDE + bucket[j + copy]] += own[j + copy];
    for (; j < keys.end; j++)
        grad->time[j % ATTN_TIME_COPIES * ATTN_TIME_STRIDE + bucket[j]] += own[j];
}

int32_t attn_mask_max_spans(const attn_args *a) {
    return a->func != NULL ? (a->n_func + 1) / 2 : 2;
}

/* Puts spans in order, drops empty ones and joins those that touch or overlap. */
static int32_t tidy(attn_span *spans, int32_t n) {
    int32_t n_kept = 0;
    for (int32_t m = 1; m < n; m++) {
        attn_span span = spans[m];
        int32_t at = m;
        for (; at > 0 && spans[at - 1].begin > span.begin; at--)
            spans[at] = spans[at - 1];
        spans[at] = span;
    }
    for (int32_t m = 0; m < n; m++) {
        if (spans[m].begin >= spans[m].end) continue;
        if (n_kept > 0 && spans[m].begin <= spans[n_kept - 1].end) {
            attn_span *last = &spans[n_kept - 1];
            if (spans[m].end > last->end) last->end = spans[m].end;
        } else {
            spans[n_kept++] = spans[m];
        }
    }
    return n_kept;
}

int32_t attn_mask_row(const attn_args *a, int32_t b, int32_t row, attn_span *out) {
    attn_sequence s = attn_paged_sequence_of(a, b);
    if (a->func != NULL) {
        int32_t n = (a->n_func + 1) / 2;
        for (int32_t m = 0; m < n; m++)
            out[m] = attn_func_span(a, &s, row, m);
        return tidy(out, n);
    }
    attn_row_mask m = attn_row_spans(a, &s, row);
    out[0] = (attn_span){m.first0, m.end0};
    out[1] = (attn_span){m.first1, m.end1};
    return tidy(out, 2);
}

status attn_lengths_check(const attn_args *a) {
    for (int32_t b = 0; b < a->n_sequences; b++) {
        int64_t len_q = (int64_t)a->offsets_q[b + 1] - a->offsets_q[b];
        int64_t n_rows = (int64_t)a->offsets_k[b + 1] - a->offsets_k[b], len_k = n_rows;
        if (a->pages.table != NULL) {
            len_k = (int64_t)a->pages.offsets[b + 1] - a->pages.offsets[b];
            if (n_rows < 0 || n_rows > len_k ||
                len_k - n_rows > (int64_t)a->pages.max_pages * a->pages.page_len)
                return fail(ERR_USAGE,
                            "attention: sequence %d has %lld keys, %lld of them not in pages; its "
                            "table has %d pages of %d",
                            b, (long long)len_k, (long long)n_rows, a->pages.max_pages,
                            a->pages.page_len);
        }
        if (len_q < 0 || len_q > len_k || len_q > a->max_len_q || len_k > a->max_len_k)
            return fail(ERR_USAGE,
                        "attention: sequence %d has %lld queries and %lld keys, but 0 <= queries "
                        "<= keys, at most %d and %d, must hold; raise max_len_q / max_len_k",
                        b, (long long)len_q, (long long)len_k, a->max_len_q, a->max_len_k);
    }
    return OK;
}
