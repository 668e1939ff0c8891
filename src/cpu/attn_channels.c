/* The three channels of FuXi's attention (contract: attn_channels_args in ops/ops.h).
 *
 * The third is the HSTU attention itself; here are the two maps by position and time, and the rows
 * of all three.  Their weights are the same for all heads, so the values of all heads are one wide
 * row.  Forward: a chunk owns ATTN_QUERIES rows of a sequence; backward: a sequence.  A strip's
 * weights are a tile like that of the scores in attn.c.  Bound by the FLOPs of the products. */
#include "cpu/attn.h"

#include "cpu/tile.h"
#include "ops/ops.h"

enum { POSITION, TIME, N_MAPS };

/* Scratch memory of a chunk; W: the values of all heads in whole vectors. */
typedef struct channels_work {
    const attn_channels_args *job;
    attn_seq s;
    int dim, width; /* H dim_v, W */
    attn_rows rows;
    int32_t *time;
    uint8_t *bucket;                /* (TILE_STRIP, ATTN_KEYS) */
    float *values;                  /* forward (ATTN_KEYS, W); backward panels of it, (dim) */
    float *bias;                    /* (ATTN_KEYS) and a panel */
    float *weights[N_MAPS];         /* a strip's tile */
    float *out[N_MAPS];             /* (ATTN_QUERIES, W); backward dout of a strip */
    float *ds, *strip, *dv;         /* backward: a tile, (dim, TILE_STRIP), (ATTN_KEYS, W) */
    float *position_sum, *time_sum; /* backward: gradients of the slot */
} channels_work;

static channels_work carve_work(const attn_channels_args *job, char *base, size_t *bytes) {
    const attn_args *a = &job->of;
    cpu_carve carve = {base, 0};
    channels_work w = {.job = job, .dim = a->n_heads * a->dim_v};
    size_t tile = TILE_STRIP * ATTN_KEYS;
    w.width = tile_round(w.dim, VEC);
    w.rows = attn_rows_take(&carve, a, ATTN_QUERIES);
    w.time = cpu_take(&carve, ATTN_KEYS, sizeof(int32_t));
    w.bucket = cpu_take(&carve, tile, 1);
    w.values = cpu_take(&carve, (size_t)ATTN_KEYS * w.width, sizeof(float));
    w.bias = cpu_take(&carve, ATTN_KEYS + TILE_PANEL, sizeof(float));
    for (int m = 0; m < N_MAPS; m++) {
        w.weights[m] = cpu_take(&carve, tile, sizeof(float));
        w.out[m] = cpu_take(&carve, (size_t)ATTN_QUERIES * w.width, sizeof(float));
    }
    if (a->dout != NULL) {
        w.ds = cpu_take(&carve, tile, sizeof(float));
        w.strip = cpu_take(&carve, (size_t)TILE_STRIP * w.width, sizeof(float));
        w.dv = cpu_take(&carve, (size_t)ATTN_KEYS * w.width, sizeof(float));
    }
    *bytes = carve.used;
    return w;
}

/* Element (k, j) of a strip's tile. */
static inline size_t cell(int k, int j) {
    return (size_t)(j / TILE_PANEL * TILE_BLOCK + k * TILE_PANEL + j % TILE_PANEL);
}

/* Weights of row k of the strip, query row `row` of the sequence: zero where nothing is seen. */
static void fill_row(const channels_work *w, int32_t row, int r, int k, attn_hull hull) {
    const attn_args *a = w->s.a;
    uint8_t *bucket = w->bucket + k * ATTN_KEYS;
    int n = hull.end < w->s.n_keys ? hull.end : w->s.n_keys;
    const float *position =
        a->position_w + (a->bias_len - 1 + w->s.first_key - (row + w->s.len_k - w->s.len_q));
    attn_bias_fill(&w->s, row, hull, w->bias, TILE_PANEL, bucket);
    for (int j = hull.begin; j < n; j++) {
        w->weights[POSITION][cell(k, j)] = position[j];
        w->weights[TIME][cell(k, j)] = a->time_w[bucket[j]];
    }
    for (int j = n; j < hull.end; j++)
        w->weights[POSITION][cell(k, j)] = w->weights[TIME][cell(k, j)] = 0;
    for (int m = 0; m < N_MAPS; m++)
        attn_rows_clear(&w->rows, r, &w->s, hull, w->weights[m] + k * TILE_PANEL, TILE_BLOCK);
}

/* Rows r .. r + n - 1 of the block that begins with query row `row`. */
static void fill_strip(const channels_work *w, int32_t row, int r, int n, attn_hull hull) {
    for (int m = 0; m < N_MAPS && n < TILE_STRIP; m++)
        memset(w->weights[m], 0, sizeof(float) * TILE_STRIP * ATTN_KEYS);
    for (int k = 0; k < n; k++)
        fill_row(w, row + r + k, r + k, k, hull);
}

/* The current keys' values: rows in memory or in pages. */
static void pack_values(const channels_work *w) {
    int n, n_keys = w->s.n_keys;
    for (int i = 0; i < n_keys; i += n) {
        int32_t n_next;
        attn_kv_rows from = attn_kv_at(&w->s, w->s.first_key + i, &n_next);
        n = n_next < n_keys - i ? n_next : n_keys - i;
        bool is_last = i + n == n_keys;
        tile_pack_rows(w->values + (ptrdiff_t)i * w->width, w->width,
                       is_last ? tile_round(n_keys, TILE_PANEL) - i : n, from.v, from.stride_v, n,
                       w->dim);
    }
}

static void forward_keys(const channels_work *w, int32_t row, int n) {
    for (int r = 0; r < n; r += TILE_STRIP) {
        int n_rows = n - r < TILE_STRIP ? n - r : TILE_STRIP;
        attn_hull hull = attn_rows_hull(&w->rows, r, n_rows, &w->s, TILE_PANEL);
        if (hull.begin >= hull.end) continue;
        fill_strip(w, row, r, n_rows, hull);
        for (int m = 0; m < N_MAPS; m++)
            tile_mm_blocks(w->weights[m] + (ptrdiff_t)hull.begin * TILE_STRIP, TILE_BLOCK,
                           w->values + (ptrdiff_t)hull.begin * w->width, w->width,
                           w->out[m] + (ptrdiff_t)r * w->width, w->width, w->width,
                           hull.end - hull.begin);
    }
}

/* The channels of n rows, in the order of out. */
static void store_rows(const channels_work *w, int32_t row, int n) {
    const attn_args *a = w->s.a;
    size_t bytes = (size_t)a->dim_v * sizeof(float);
    for (int r = 0; r < n; r++) {
        int64_t i = (int64_t)w->s.row_q + row + r;
        float *to = (float *)a->out + i * a->stride_out;
        const float *third = (const float *)w->job->third + i * w->dim;
        for (int c = 0; c < w->dim; c += a->dim_v, to += 3 * (ptrdiff_t)a->dim_v) {
            memcpy(to, w->out[POSITION] + (ptrdiff_t)r * w->width + c, bytes);
            memcpy(to + a->dim_v, w->out[TIME] + (ptrdiff_t)r * w->width + c, bytes);
            memcpy(to + 2 * a->dim_v, third + c, bytes);
        }
    }
}

typedef struct channels_job {
    backend *be;
    const attn_channels_args *a;
    int32_t n_blocks;
    int64_t n_slots;
    size_t bytes, slot_floats;
    float *slots; /* (n_slots, slot_floats): gradients of the time bias, then of the position's */
} channels_job;

static status forward_chunk(void *ctx, int64_t chunk, int worker) {
    const channels_job *job = ctx;
    const attn_args *a = &job->a->of;
    int32_t row = (int32_t)(job->n_blocks - 1 - chunk / a->n_sequences) * ATTN_QUERIES;
    int32_t b = (int32_t)(chunk % a->n_sequences);
    int32_t n = a->offsets_q[b + 1] - a->offsets_q[b] - row;
    if (n <= 0) return OK;
    if (n > ATTN_QUERIES) n = ATTN_QUERIES;
    void *base;
    size_t bytes;
    TRY(cpu_scratch(job->be, worker, job->bytes, &base));
    channels_work w = carve_work(job->a, base, &bytes);
    w.s = attn_seq_make(a, b, 0, w.time);
    attn_rows_fill(&w.rows, &w.s, row, n);
    for (int m = 0; m < N_MAPS; m++)
        memset(w.out[m], 0, sizeof(float) * ATTN_QUERIES * (size_t)w.width);
    for (int32_t first = 0; first < w.s.len_k; first += ATTN_KEYS) {
        attn_seq_take_keys(&w.s, first);
        attn_hull hull = attn_rows_hull(&w.rows, 0, n, &w.s, 1);
        if (hull.begin >= hull.end) continue;
        pack_values(&w);
        forward_keys(&w, row, n);
    }
    store_rows(&w, row, n);
    return OK;
}

status cpu_attn_channels_fwd(backend *be, const attn_channels_args *args) {
    attn_channels_args a = *args;
    a.of.dout = NULL;
    channels_job job = {.be = be, .a = &a};
    attn_args third = attn_channels_third(&a);
    TRY(attn_channels_args_check(&a));
    TRY(cpu_attn_fwd(be, &third));
    carve_work(&a, NULL, &job.bytes);
    job.n_blocks = (int32_t)cpu_n_chunks(a.of.max_len_q, ATTN_QUERIES);
    return pool_run(be->workers, (int64_t)job.n_blocks * a.of.n_sequences, forward_chunk, &job);
}

/* dout of a strip's rows, by maps; rows that do not exist are zero. */
static void take_dout(const channels_work *w, int32_t row, int n) {
    const attn_args *a = w->s.a;
    size_t bytes = (size_t)a->dim_v * sizeof(float);
    for (int m = 0; m < N_MAPS; m++)
        memset(w->out[m], 0, sizeof(float) * TILE_STRIP * (size_t)w->width);
    for (int r = 0; r < n; r++) {
        const float *from =
            (const float *)a->dout + ((int64_t)w->s.row_q + row + r) * a->stride_out;
        for (int c = 0; c < w->dim; c += a->dim_v, from += 3 * (ptrdiff_t)a->dim_v) {
            memcpy(w->out[POSITION] + (ptrdiff_t)r * w->width + c, from, bytes);
            memcpy(w->out[TIME] + (ptrdiff_t)r * w->width + c, from + a->dim_v, bytes);
        }
    }
}

/* ds of a map, dout_i . v_j, and its sums by cells: those of the position bias, or by bucket. */
static void add_bias_grad(const channels_work *w, int map, int32_t row, int n, attn_hull hull) {
    const attn_args *a = w->s.a;
    tile_pack_panels(w->strip, TILE_STRIP, w->out[map], w->width, TILE_STRIP, w->dim);
    tile_mm_panels(w->strip, w->values + (ptrdiff_t)hull.begin * w->dim, NULL,
                   w->ds + (ptrdiff_t)hull.begin * TILE_STRIP, TILE_PANEL, TILE_BLOCK,
                   hull.end - hull.begin, w->dim);
    for (int k = 0; k < n; k++) {
        int n_keys = hull.end < w->s.n_keys ? hull.end : w->s.n_keys;
        float *position = w->position_sum + (a->bias_len - 1 + w->s.first_key) -
                          (row + k + w->s.len_k - w->s.len_q);
        attn_rows_clear(&w->rows, k, &w->s, hull, w->ds + k * TILE_PANEL, TILE_BLOCK);
        if (map == POSITION)
            for (int j = hull.begin; j < n_keys; j++)
                position[j] += w->ds[cell(k, j)];
        else
            for (int j = hull.begin; j < n_keys; j++)
                w->time_sum[w->bucket[k * ATTN_KEYS + j]] += w->ds[cell(k, j)];
    }
}

static void backward_strip(const channels_work *w, int32_t row, int n) {
    attn_rows rows = w->rows;
    attn_rows_fill(&rows, &w->s, row, n);
    attn_hull hull = attn_rows_hull(&rows, 0, n, &w->s, TILE_PANEL);
    if (hull.begin >= hull.end) return;
    fill_strip(w, row, 0, n, hull);
    take_dout(w, row, n);
    for (int m = 0; m < N_MAPS; m++) {
        for (int j = hull.begin; j < hull.end; j += TILE_PANEL) {
            tile_a weights = {w->weights[m] + cell(0, j), 1, TILE_PANEL};
            tile_mm_rows(weights, w->out[m], w->width, true, w->dv + (ptrdiff_t)j * w->width,
                         w->width, TILE_PANEL, w->width, TILE_STRIP);
        }
        add_bias_grad(w, m, row, n, hull);
    }
}

/* The values' gradient is added to that of the third channel. */
static void backward_sequence(channels_work *w) {
    const attn_args *a = w->s.a;
    for (int32_t first = 0; first < w->s.len_k; first += ATTN_KEYS) {
        attn_seq_take_keys(&w->s, first);
        int64_t key = (int64_t)w->s.row_k + first;
        tile_pack_panels(w->values, TILE_PANEL, (const float *)a->v + key * a->stride_v,
                         a->stride_v, w->s.n_keys, w->dim);
        memset(w->dv, 0, sizeof(float) * ATTN_KEYS * (size_t)w->width);
        for (int32_t row = 0; row < w->s.len_q; row += TILE_STRIP)
            backward_strip(w, row, w->s.len_q - row < TILE_STRIP ? w->s.len_q - row : TILE_STRIP);
        for (int j = 0; j < w->s.n_keys; j++) {
            float *dv = (float *)a->dv + (key + j) * a->stride_v;
            for (int c = 0; c < w->dim; c++)
                dv[c] += w->dv[(ptrdiff_t)j * w->width + c];
        }
    }
}

/* Sequences of a slot are done in order, and slots are added in order. */
static status backward_slot(void *ctx, int64_t slot, int worker) {
    const channels_job *job = ctx;
    const attn_args *a = &job->a->of;
    void *base;
    size_t bytes;
    TRY(cpu_scratch(job->be, worker, job->bytes, &base));
    for (int64_t b = slot; b < a->n_sequences; b += job->n_slots) {
        channels_work w = carve_work(job->a, base, &bytes);
        w.time_sum = job->slots + (size_t)slot * job->slot_floats;
        w.position_sum = w.time_sum + ATTN_TIME_BUCKETS + 1;
        if (b == slot) memset(w.time_sum, 0, sizeof(float) * job->slot_floats);
        w.s = attn_seq_make(a, (int32_t)b, 0, w.time);
        backward_sequence(&w);
    }
    return OK;
}

/* dthird = the third channel of dout. */
static status split_chunk(const cpu_rows *w) {
    const attn_channels_args *a = w->ctx;
    const attn_args *of = &a->of;
    for (int64_t i = w->first; i < w->end; i++)
        for (int32_t h = 0; h < of->n_heads; h++)
            memcpy((float *)a->third + (i * of->n_heads + h) * of->dim_v,
                   (const float *)of->dout + i * of->stride_out + (3 * (int64_t)h + 2) * of->dim_v,
                   (size_t)of->dim_v * sizeof(float));
    return OK;
}

status cpu_attn_channels_bwd(backend *be, const attn_channels_args *a) {
    channels_job job = {.be = be, .a = a};
    attn_args third = attn_channels_third(a);
    int32_t n = a->of.n_sequences, n_position = 2 * a->of.bias_len - 1;
    TRY(attn_channels_args_check(a));
    if (n == 0) return OK;
    TRY(cpu_each_row(be, a->of.offsets_q[n], a->of.n_heads * a->of.dim_v, split_chunk, a));
    TRY(cpu_attn_bwd(be, &third));
    carve_work(a, NULL, &job.bytes);
    job.n_slots = n < ATTN_SLOTS ? n : ATTN_SLOTS;
    job.slot_floats = (size_t)(n_position + ATTN_TIME_BUCKETS + 1);
    TRY(cpu_scratch(be, CPU_SHARED, sizeof(float) * (size_t)job.n_slots * job.slot_floats,
                    (void **)&job.slots));
    TRY(pool_run(be->workers, job.n_slots, backward_slot, &job));
    int64_t stride = (int64_t)job.slot_floats;
    cpu_add_partials(a->of.dtime_w, ATTN_TIME_BUCKETS + 1, job.slots, job.n_slots, stride);
    cpu_add_partials(a->of.dposition_w, n_position, job.slots + ATTN_TIME_BUCKETS + 1, job.n_slots,
                     stride);
    return OK;
}
