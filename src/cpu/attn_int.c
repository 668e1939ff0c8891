#include "cpu/attn_int.h"

#include <string.h>

#include "cpu/tile.h"

void *attn_take(attn_carve *carve, size_t n, size_t size) {
    void *taken = carve->base != NULL ? carve->base + carve->used : NULL;
    carve->used += (n * size + 63) / 64 * 64;
    return taken;
}

status attn_run(backend *be, int64_t n_chunks, pool_fn fn, void *ctx) {
    if (be->workers != NULL) return pool_run(be->workers, n_chunks, fn, ctx);
    for (int64_t chunk = 0; chunk < n_chunks; chunk++)
        TRY(fn(ctx, chunk, 0));
    return OK;
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

attn_rows attn_rows_take(attn_carve *carve, const attn_args *a, int n) {
    attn_rows rows = {.max_spans = attn_mask_max_spans(a)};
    rows.spans = attn_take(carve, (size_t)n * rows.max_spans, sizeof *rows.spans);
    rows.n_spans = attn_take(carve, (size_t)n, sizeof *rows.n_spans);
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

/* max(|query - key|, 1) as float, for current keys whose times are near. */
static void near_distances(const int32_t *key, int32_t query, attn_hull hull, float *distance) {
    for (int j = hull.begin; j < hull.end; j += VEC) {
        vec_int d = query - *(const vec_int_any *)(key + j), sign = d >> 31;
        d = (d ^ sign) - sign;
        d = d - (d == 0);
        vec_store(distance + j, __builtin_convertvector(d, vec));
    }
}

/* Works on whole vectors, the last of which may extend past the hull. */
static void distances(const attn_seq *s, int32_t row, attn_hull hull, float *distance) {
    int64_t query = s->a->query_time[s->row_q + row];
    if (s->is_near && is_near(query, s->first_time)) {
        near_distances(s->time, near_time(query, s->first_time), hull, distance);
        return;
    }
    const int64_t *key = s->a->key_time + s->row_time + s->first_key;
    for (int j = hull.begin; j < hull.end; j++)
        distance[j] = bucket_distance(query, key[j]);
}

static void time_bias(const attn_seq *s, int32_t row, attn_hull hull, float *restrict bias,
                      uint8_t *restrict bucket) {
    float distance[ATTN_KEYS];
    const float *position = s->a->position_w + position_of(s, row);
    const float *time = s->a->time_w;
    const bucket_table *table = s->buckets;
    distances(s, row, hull, distance);
    for (int j = hull.begin; j < hull.end; j++) {
        uint32_t at = bucket_of(table, distance[j]);
        bucket[j] = (uint8_t)at;
        bias[j] = position[j] + time[at];
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
    for (int j = keys.begin; j < keys.end; j++)
        grad->time[(j % ATTN_TIME_COPIES) * ATTN_TIME_STRIDE + bucket[j]] += own[j];
}
