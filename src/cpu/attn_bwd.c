/* HSTU attention, backward (contract: attn_args in ops/ops.h).
 *
 * With p = dout . v and x = alpha (q . k + bias), per pair: a as in the forward pass, ds = p alpha
 * scale silu'(x); then dv_j += a dout_i, dk_j += ds q_i, dq_i += ds k_j, and ds, summed over the
 * heads that share a bias, is its gradient.  A sequence of at most ATTN_KEYS keys is one chunk that
 * does all of it in one pass (five products a pair); a longer one is cut into chunks by keys, which
 * sum dk and dv, and by queries, which sum dq and the bias: scores are computed twice (seven
 * products), but chunks share no sums, and each sum has a fixed order.  Keys and their sums stay in
 * the L2 cache, BWD_ROWS rows of tiles in the L1 cache.  Bound by FLOPs.
 *
 * Gradients of biases that all sequences share are summed by slot: chunk c belongs to slot c %
 * ATTN_SLOTS, a slot does its chunks in order, and slots are added in order at the end. */
#include "cpu/attn.h"

#include "cpu/tile.h"
#include "ops/ops.h"

enum {
    BWD_ROWS = 32, /* query rows whose tiles are kept before they are added to dk and dv */
    BWD_STRIPS = BWD_ROWS / TILE_STRIP,
    BWD_PANEL = BWD_STRIPS * TILE_BLOCK, /* numbers from panel to panel of a tile */
    BWD_TILE = BWD_ROWS * ATTN_KEYS
};

typedef struct bwd_job {
    backend *be;
    const attn_args *a;
    int32_t n_key_blocks, n_query_blocks; /* of the longest sequence */
    int32_t n_groups;                     /* of heads */
    bool has_serial_heads;                /* one chunk does all groups, one after the other */
    int64_t n_chunks, n_slots;
    sort_pair *order;   /* (n_sequences): places of the sequences, the longest first */
    size_t slot_floats; /* gradients of the shared biases of one slot */
    float *slots;       /* (n_slots, slot_floats) */
    size_t bytes;       /* of scratch */
} bwd_job;

/* Scratch memory of a chunk; (G): one for each head of the group. */
typedef struct bwd_work {
    attn_seq s;
    attn_bias_grad grad;
    int width_qk, width_v;       /* in whole vectors */
    int32_t row, n_rows;         /* query rows: at most ATTN_KEYS if wants_query */
    int32_t first_key, last_key; /* keys first_key .. last_key - 1 */
    bool wants_query, wants_key;

    attn_rows rows;
    int32_t *time;
    uint8_t *bucket;                   /* (BWD_ROWS, ATTN_KEYS) */
    float *key_panels, *value_panels;  /* (G) transposed, for the scores */
    float *keys;                       /* (G, ATTN_KEYS, width_qk) */
    float *query_panels, *dout_panels; /* BWD_ROWS rows of the head in hand, transposed */
    float *query, *dout;               /* (BWD_ROWS, width) of the head in hand */
    float *bias;                       /* a tile: what the heads share */
    float *a_tile;                     /* scores, then a, of the head in hand */
    float *ds_tile;                    /* p, then ds */
    float *ds_sum;                     /* ds of the heads so far */
    float *dq, *dk, *dv;               /* (G, ATTN_KEYS, width) each */
} bwd_work;

static bwd_work carve_work(const attn_args *a, char *base, size_t *bytes) {
    cpu_carve carve = {base, 0};
    bwd_work w = {.width_qk = tile_round(a->dim_qk, VEC), .width_v = tile_round(a->dim_v, VEC)};
    size_t width_qk = (size_t)w.width_qk, width_v = (size_t)w.width_v;
    size_t n_keys = ATTN_KEYS * (size_t)attn_head_group(a);
    w.rows = attn_rows_take(&carve, a, BWD_ROWS);
    w.time = cpu_take(&carve, ATTN_KEYS, sizeof(int32_t));
    w.bucket = cpu_take(&carve, BWD_ROWS * ATTN_KEYS, 1);
    w.key_panels = cpu_take(&carve, n_keys * width_qk, sizeof(float));
    w.value_panels = cpu_take(&carve, n_keys * width_v, sizeof(float));
    w.keys = cpu_take(&carve, n_keys * width_qk, sizeof(float));
    w.query_panels = cpu_take(&carve, BWD_ROWS * width_qk, sizeof(float));
    w.dout_panels = cpu_take(&carve, BWD_ROWS * width_v, sizeof(float));
    w.query = cpu_take(&carve, BWD_ROWS * width_qk, sizeof(float));
    w.dout = cpu_take(&carve, BWD_ROWS * width_v, sizeof(float));
    w.bias = cpu_take(&carve, BWD_TILE, sizeof(float));
    w.a_tile = cpu_take(&carve, BWD_TILE, sizeof(float));
    w.ds_tile = cpu_take(&carve, BWD_TILE, sizeof(float));
    w.ds_sum = cpu_take(&carve, BWD_TILE, sizeof(float));
    w.dq = cpu_take(&carve, n_keys * width_qk, sizeof(float));
    w.dk = cpu_take(&carve, n_keys * width_qk, sizeof(float));
    w.dv = cpu_take(&carve, n_keys * width_v, sizeof(float));
    *bytes = carve.used;
    return w;
}

/* Row `row` of the jagged rows of head g of the group. */
static float *head_row(const bwd_work *w, const void *data, int64_t row, int64_t stride, int g,
                       int32_t dim) {
    return (float *)data + row * stride + (int64_t)(w->s.head + g) * dim;
}

/* ds of p, with the sigmoid of y. */
static vec slope_times(vec p, vec y, vec sigmoid, float factor) {
    return p * (sigmoid + sigmoid * (y - y * sigmoid)) * factor;
}

/* One block.  x: q . k + bias, becomes a; p: dout . v, becomes ds.  Two vectors at a time, so that
 * one's instructions hide the other's latency. */
static void silu_grad(float *x, float *p, float alpha, float scale) {
    for (int j = 0; j < TILE_BLOCK; j += 2 * VEC) {
        vec y0 = alpha * vec_load(x + j), y1 = alpha * vec_load(x + j + VEC);
        vec sigmoid0 = vecs_sigmoid(y0), sigmoid1 = vecs_sigmoid(y1);
        vec p0 = vec_load(p + j), p1 = vec_load(p + j + VEC);
        vec_store(x + j, y0 * sigmoid0 * scale);
        vec_store(x + j + VEC, y1 * sigmoid1 * scale);
        vec_store(p + j, slope_times(p0, y0, sigmoid0, alpha * scale));
        vec_store(p + j + VEC, slope_times(p1, y1, sigmoid1, alpha * scale));
    }
}

/* Computes a and ds of a strip from its scores; zero where a row does not exist or does not see the
 * key. */
static void finish_strip(const bwd_work *w, int k, int n, attn_hull hull) {
    const attn_args *a = w->s.a;
    float *x = w->a_tile + k * TILE_BLOCK, *p = w->ds_tile + k * TILE_BLOCK;
    for (int j = hull.begin / TILE_PANEL; j < hull.end / TILE_PANEL; j++) {
        float *blank_x = x + j * BWD_PANEL + n * TILE_PANEL;
        float *blank_p = p + j * BWD_PANEL + n * TILE_PANEL;
        silu_grad(x + j * BWD_PANEL, p + j * BWD_PANEL, a->alpha, a->scale);
        for (int i = 0; i < (TILE_STRIP - n) * TILE_PANEL; i++)
            blank_x[i] = blank_p[i] = 0.0f;
    }
    for (int r = 0; r < n; r++) {
        attn_rows_clear(&w->rows, k * TILE_STRIP + r, &w->s, hull, x + r * TILE_PANEL, BWD_PANEL);
        attn_rows_clear(&w->rows, k * TILE_STRIP + r, &w->s, hull, p + r * TILE_PANEL, BWD_PANEL);
    }
}

/* The tiles of strip k (n rows of it exist) of head g, and its part of dq. */
static void bwd_strip(const bwd_work *w, int g, int32_t row, int k, int n, attn_hull hull) {
    const attn_args *a = w->s.a;
    int n_columns = hull.end - hull.begin;
    size_t key = (size_t)g * ATTN_KEYS + hull.begin;
    size_t at = (size_t)(hull.begin / TILE_PANEL * BWD_PANEL + k * TILE_BLOCK);
    if (n_columns <= 0) return;
    tile_mm_panels(w->query_panels + (size_t)k * TILE_STRIP * a->dim_qk,
                   w->key_panels + key * a->dim_qk, a->bias != BIAS_NONE ? w->bias + at : NULL,
                   w->a_tile + at, TILE_PANEL, BWD_PANEL, n_columns, a->dim_qk);
    tile_mm_panels(w->dout_panels + (size_t)k * TILE_STRIP * a->dim_v,
                   w->value_panels + key * a->dim_v, NULL, w->ds_tile + at, TILE_PANEL, BWD_PANEL,
                   n_columns, a->dim_v);
    finish_strip(w, k, n, hull);
    if (!w->wants_query) return;
    float *dq = w->dq + ((size_t)g * ATTN_KEYS + (row - w->row) + k * TILE_STRIP) * w->width_qk;
    tile_mm_blocks(w->ds_tile + at, BWD_PANEL, w->keys + key * w->width_qk, w->width_qk, dq,
                   w->width_qk, w->width_qk, n_columns);
}

/* dk and dv of one panel of keys from strips first .. last - 1. */
static void sum_panel(const bwd_work *w, int g, int j, int first, int last) {
    size_t at = (size_t)(j / TILE_PANEL * BWD_PANEL + first * TILE_BLOCK);
    size_t key = (size_t)g * ATTN_KEYS + j;
    int r = first * TILE_STRIP, n = (last - first) * TILE_STRIP;
    tile_a ds = {w->ds_tile + at, 1, TILE_PANEL}, weights = {w->a_tile + at, 1, TILE_PANEL};
    tile_mm_rows(ds, w->query + (size_t)r * w->width_qk, w->width_qk, true,
                 w->dk + key * w->width_qk, w->width_qk, TILE_PANEL, w->width_qk, n);
    tile_mm_rows(weights, w->dout + (size_t)r * w->width_v, w->width_v, true,
                 w->dv + key * w->width_v, w->width_v, TILE_PANEL, w->width_v, n);
}

/* dk and dv from the tiles: each panel of keys sums the runs of strips that see it. */
static void sum_keys(const bwd_work *w, int g, const attn_hull *hulls, int n_strips) {
    for (int j = 0; j < w->s.n_keys; j += TILE_PANEL) {
        int first = 0;
        for (int k = 0; k <= n_strips; k++) {
            if (k < n_strips && j >= hulls[k].begin && j < hulls[k].end) continue;
            if (k > first) sum_panel(w, g, j, first, k);
            first = k + 1;
        }
    }
}

/* Packs rows of q and dout of head g. */
static void pack_queries(const bwd_work *w, int g, int32_t row, int n) {
    const attn_args *a = w->s.a;
    int64_t at = (int64_t)w->s.row_q + row;
    const float *q = head_row(w, a->q, at, a->stride_q, g, a->dim_qk);
    const float *dout = head_row(w, a->dout, at, a->stride_out, g, a->dim_v);
    tile_pack_panels(w->query_panels, TILE_STRIP, q, a->stride_q, n, a->dim_qk);
    tile_pack_panels(w->dout_panels, TILE_STRIP, dout, a->stride_out, n, a->dim_v);
    if (!w->wants_key) return;
    tile_pack_rows(w->query, w->width_qk, BWD_ROWS, q, a->stride_q, n, a->dim_qk);
    tile_pack_rows(w->dout, w->width_v, BWD_ROWS, dout, a->stride_out, n, a->dim_v);
}

/* Adds the ds tile of one head to the sum over the heads before it; the first head's tile is that
 * sum. */
static void sum_heads(const bwd_work *w, int g, const attn_hull *hulls, int n_strips) {
    for (int k = 0; k < n_strips; k++) {
        for (int j = hulls[k].begin / TILE_PANEL; j < hulls[k].end / TILE_PANEL; j++) {
            size_t at = (size_t)(j * BWD_PANEL + k * TILE_BLOCK);
            float *sum = w->ds_sum + at;
            const float *ds = w->ds_tile + at;
            for (int i = 0; i < TILE_BLOCK; i++)
                sum[i] = g == 0 ? ds[i] : sum[i] + ds[i];
        }
    }
}

static int rows_of_strip(int n, int k) {
    return n - k * TILE_STRIP < TILE_STRIP ? n - k * TILE_STRIP : TILE_STRIP;
}

/* One row in a tile. */
static float *tile_row(float *tile, int r) {
    return tile + r / TILE_STRIP * TILE_BLOCK + r % TILE_STRIP * TILE_PANEL;
}

static void fill_bias(const bwd_work *w, int32_t row, int n, const attn_hull *hulls) {
    for (int r = 0; r < n; r++)
        attn_bias_fill(&w->s, row + r, hulls[r / TILE_STRIP], tile_row(w->bias, r), BWD_PANEL,
                       w->bucket + r * ATTN_KEYS);
}

static void add_bias_grad(const bwd_work *w, int32_t row, int n, const attn_hull *hulls) {
    float *ds = w->s.n_heads > 1 ? w->ds_sum : w->ds_tile;
    for (int r = 0; r < n; r++)
        attn_bias_grad_add(&w->s, row + r, hulls[r / TILE_STRIP], tile_row(ds, r), BWD_PANEL,
                           w->bucket + r * ATTN_KEYS, &w->grad);
}

/* Up to BWD_ROWS query rows against the current keys. */
static void bwd_rows(const bwd_work *w, int32_t row, int n) {
    const attn_args *a = w->s.a;
    attn_hull hulls[BWD_STRIPS];
    int n_strips = (n + TILE_STRIP - 1) / TILE_STRIP;
    bool has_grad = a->bias == BIAS_TIME || (a->bias == BIAS_TABLE && a->dtable != NULL);
    attn_rows rows = w->rows;
    attn_rows_fill(&rows, &w->s, row, n);
    attn_hull all = attn_rows_hull(&rows, 0, n, &w->s, TILE_PANEL);
    if (all.begin >= all.end) return;
    for (int k = 0; k < n_strips; k++)
        hulls[k] = attn_rows_hull(&rows, k * TILE_STRIP, rows_of_strip(n, k), &w->s, TILE_PANEL);
    if (a->bias != BIAS_NONE) fill_bias(w, row, n, hulls);
    for (int g = 0; g < w->s.n_heads; g++) {
        pack_queries(w, g, row, n);
        for (int k = 0; k < n_strips; k++)
            bwd_strip(w, g, row, k, rows_of_strip(n, k), hulls[k]);
        if (w->wants_key) sum_keys(w, g, hulls, n_strips);
        if (has_grad && w->s.n_heads > 1) sum_heads(w, g, hulls, n_strips);
    }
    if (has_grad && w->wants_query) add_bias_grad(w, row, n, hulls);
}

static void pack_keys(const bwd_work *w) {
    const attn_args *a = w->s.a;
    int64_t row = (int64_t)w->s.row_k + w->s.first_key;
    int n = w->s.n_keys, n_padded = tile_round(n, TILE_PANEL);
    for (int g = 0; g < w->s.n_heads; g++) {
        size_t key = (size_t)g * ATTN_KEYS;
        const float *k = head_row(w, a->k, row, a->stride_k, g, a->dim_qk);
        const float *v = head_row(w, a->v, row, a->stride_v, g, a->dim_v);
        tile_pack_panels(w->key_panels + key * a->dim_qk, TILE_PANEL, k, a->stride_k, n, a->dim_qk);
        tile_pack_panels(w->value_panels + key * a->dim_v, TILE_PANEL, v, a->stride_v, n, a->dim_v);
        if (w->wants_query)
            tile_pack_rows(w->keys + key * w->width_qk, w->width_qk, n_padded, k, a->stride_k, n,
                           a->dim_qk);
        if (!w->wants_key) continue;
        memset(w->dk + key * w->width_qk, 0, sizeof(float) * (size_t)n_padded * w->width_qk);
        memset(w->dv + key * w->width_v, 0, sizeof(float) * (size_t)n_padded * w->width_v);
    }
}

static void unpack_keys(const bwd_work *w) {
    const attn_args *a = w->s.a;
    int64_t row = (int64_t)w->s.row_k + w->s.first_key;
    for (int g = 0; g < w->s.n_heads; g++) {
        size_t key = (size_t)g * ATTN_KEYS;
        tile_unpack_rows(head_row(w, a->dk, row, a->stride_k, g, a->dim_qk), a->stride_k,
                         w->dk + key * w->width_qk, w->width_qk, w->s.n_keys, a->dim_qk);
        tile_unpack_rows(head_row(w, a->dv, row, a->stride_v, g, a->dim_v), a->stride_v,
                         w->dv + key * w->width_v, w->width_v, w->s.n_keys, a->dim_v);
    }
}

static void unpack_queries(const bwd_work *w) {
    const attn_args *a = w->s.a;
    int64_t row = (int64_t)w->s.row_q + w->row;
    for (int g = 0; g < w->s.n_heads; g++)
        tile_unpack_rows(head_row(w, a->dq, row, a->stride_q, g, a->dim_qk), a->stride_q,
                         w->dq + (size_t)g * ATTN_KEYS * w->width_qk, w->width_qk, w->n_rows,
                         a->dim_qk);
}

static void bwd_run(bwd_work *w) {
    if (w->wants_query)
        memset(w->dq, 0, sizeof(float) * (size_t)w->s.n_heads * ATTN_KEYS * w->width_qk);
    for (int32_t first = w->first_key; first < w->last_key; first += ATTN_KEYS) {
        attn_seq_take_keys(&w->s, first);
        pack_keys(w);
        for (int32_t r = 0; r < w->n_rows; r += BWD_ROWS)
            bwd_rows(w, w->row + r, w->n_rows - r < BWD_ROWS ? w->n_rows - r : BWD_ROWS);
        if (w->wants_key) unpack_keys(w);
    }
    if (w->wants_query) unpack_queries(w);
}

static int32_t smaller(int32_t a, int32_t b) {
    return a < b ? a : b;
}

/* Block `block` of a sequence: first the blocks of keys, then the blocks of queries, those with the
 * most keys first.  A short sequence is block 0 alone.  False if the block is empty. */
static bool choose_part(const bwd_job *job, int32_t block, bwd_work *w) {
    const attn_seq *s = &w->s;
    w->row = 0;
    w->n_rows = s->len_q;
    w->first_key = 0;
    w->last_key = s->len_k;
    w->wants_query = w->wants_key = true;
    if (s->len_k <= ATTN_KEYS) return block == 0 && s->len_k > 0;
    if (block < job->n_key_blocks) {
        w->wants_query = false;
        w->first_key = block * ATTN_KEYS;
        w->last_key = smaller(s->len_k, w->first_key + ATTN_KEYS);
        return w->first_key < s->len_k;
    }
    w->wants_key = false;
    w->row = (job->n_query_blocks - 1 - (block - job->n_key_blocks)) * ATTN_QUERIES;
    w->n_rows = smaller(s->len_q - w->row, ATTN_QUERIES);
    return w->n_rows > 0;
}

static void bwd_chunk(const bwd_job *job, int64_t chunk, char *base, const attn_bias_grad *grad) {
    const attn_args *a = job->a;
    size_t bytes;
    int32_t group = attn_head_group(a), n_parts = job->has_serial_heads ? 1 : job->n_groups;
    int64_t n_pairs = (int64_t)a->n_sequences * n_parts;
    int32_t b = (int32_t)job->order[chunk % n_pairs / n_parts].place;
    int32_t first = (int32_t)(chunk % n_parts),
            n_groups = job->has_serial_heads ? job->n_groups : 1;
    bwd_work w = carve_work(a, base, &bytes);
    w.grad = *grad;
    for (int32_t k = first; k < first + n_groups; k++) {
        w.s = attn_seq_make(a, b, k * group, w.time);
        if (choose_part(job, (int32_t)(chunk / n_pairs), &w)) bwd_run(&w);
    }
}

static status bwd_slot(void *ctx, int64_t slot, int worker) {
    const bwd_job *job = ctx;
    void *base;
    attn_bias_grad grad = {NULL, NULL};
    TRY(cpu_scratch(job->be, worker, job->bytes, &base));
    if (job->a->bias == BIAS_TIME) {
        grad.time = job->slots + (size_t)slot * job->slot_floats;
        grad.position = grad.time + ATTN_TIME_COPIES * ATTN_TIME_STRIDE;
        memset(grad.time, 0, sizeof(float) * job->slot_floats);
    }
    for (int64_t chunk = slot; chunk < job->n_chunks; chunk += job->n_slots)
        bwd_chunk(job, chunk, base, &grad);
    return OK;
}

/* Adds element i of every slot, in order, and for the time bias of every copy. */
static void sum_slots(const bwd_job *job) {
    const attn_args *a = job->a;
    for (int i = 0; i <= ATTN_TIME_BUCKETS; i++) {
        double sum = 0.0;
        for (int64_t slot = 0; slot < job->n_slots; slot++)
            for (int copy = 0; copy < ATTN_TIME_COPIES; copy++)
                sum += job->slots[(size_t)slot * job->slot_floats + copy * ATTN_TIME_STRIDE + i];
        a->dtime_w[i] += (float)sum;
    }
    const float *position = job->slots + ATTN_TIME_COPIES * ATTN_TIME_STRIDE;
    for (int i = 0; i < 2 * a->bias_len - 1; i++) {
        double sum = 0.0;
        for (int64_t slot = 0; slot < job->n_slots; slot++)
            sum += position[(size_t)slot * job->slot_floats + i];
        a->dposition_w[i] += (float)sum;
    }
}

/* Memory for the sums of the slots, and the order of the sequences: the shortest come last, so that
 * threads end at about the same time. */
static status take_slots(bwd_job *job) {
    const attn_args *a = job->a;
    size_t n = (size_t)a->n_sequences;
    job->n_slots = job->n_chunks;
    if (a->bias == BIAS_TIME) {
        if (job->n_slots > ATTN_SLOTS) job->n_slots = ATTN_SLOTS;
        job->slot_floats =
            (size_t)tile_round(2 * a->bias_len - 1, 16) + ATTN_TIME_COPIES * ATTN_TIME_STRIDE;
    }
    TRY(cpu_scratch(job->be, CPU_SHARED,
                    2 * n * sizeof *job->order +
                        sizeof(float) * (size_t)job->n_slots * job->slot_floats,
                    (void **)&job->order));
    job->slots = (float *)(job->order + 2 * n);
    for (size_t b = 0; b < n; b++)
        job->order[b] =
            (sort_pair){INT32_MAX - (uint64_t)(a->offsets_k[b + 1] - a->offsets_k[b]), (uint32_t)b};
    job->order = sort_pairs(job->order, job->order + n, n);
    return OK;
}

status cpu_attn_bwd(backend *be, const attn_args *a) {
    bwd_job job = {.be = be, .a = a};
    TRY(attn_args_check(a));
    TRY(attn_lengths_check(a));
    /* Heads that share a table add to the same elements. */
    job.has_serial_heads = a->bias == BIAS_TABLE && a->dtable != NULL && a->table_heads == 1;
    job.n_groups = (int32_t)cpu_n_chunks(a->n_heads, attn_head_group(a));
    job.n_key_blocks = (int32_t)cpu_n_chunks(a->max_len_k, ATTN_KEYS);
    if (a->max_len_k > ATTN_KEYS)
        job.n_query_blocks = (int32_t)cpu_n_chunks(a->max_len_q, ATTN_QUERIES);
    job.n_chunks = (int64_t)(job.n_key_blocks + job.n_query_blocks) * a->n_sequences *
                   (job.has_serial_heads ? 1 : job.n_groups);
    carve_work(a, NULL, &job.bytes);
    TRY(take_slots(&job));
    TRY(pool_run(be->workers, job.n_slots, bwd_slot, &job));
    if (a->bias == BIAS_TIME && job.n_slots > 0) sum_slots(&job);
    return OK;
}
