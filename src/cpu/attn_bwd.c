/* HSTU attention, backward (contract: attn_args in ops/ops.h).
 *
 * With p = dout . v and x = alpha (q . k + bias), per pair: a as in the forward pass, ds = p alpha
 * scale silu'(x); then dv_j += a dout_i, dk_j += ds q_i, dq_i += ds k_j, and ds is the gradient of
 * the bias.  A sequence of at most ATTN_KEYS keys is one chunk that does all of it in one pass
 * (five products a pair); a longer one is cut into chunks by keys, which sum dk and dv, and by
 * queries, which sum dq and the bias: scores are computed twice (seven products), but nothing is
 * shared and sums have one order.  Keys, their sums and 32 rows of tiles stay in the second cache.
 *
 * Gradients of the biases all sequences share are summed by slot: chunk c belongs to slot c %
 * ATTN_SLOTS, a slot does its chunks in order, and slots are added in order at the end. */
#include "cpu/attn_int.h"

#include "cpu/tile.h"

enum { BWD_ROWS = 32 }; /* query rows whose tiles are held before they are summed into dk and dv */

typedef struct bwd_job {
    backend *be;
    const attn_args *a;
    int32_t n_key_blocks, n_query_blocks; /* of the longest sequence */
    int32_t n_head_groups;
    int64_t n_chunks, n_slots;
    size_t slot_floats;              /* gradients of the shared biases of one slot */
    float *slots;                    /* (n_slots, slot_floats) */
    size_t shared_bytes, tile_bytes; /* worker 0's scratch begins with the slots */
} bwd_job;

typedef struct bwd_scratch {
    attn_rows rows;
    int32_t *time;
    float *key_panels, *value_panels; /* transposed, for the scores */
    float *keys;                      /* (ATTN_KEYS, width_qk) */
    float *query_panels, *dout_panels;
    float *query, *dout; /* (BWD_ROWS, width) */
    float *a_tile;       /* (BWD_ROWS, ATTN_ROW): scores, then a */
    float *ds_tile;      /* (BWD_ROWS, ATTN_ROW): p, then ds */
    uint8_t *bucket;     /* (ATTN_KEYS) */
    float *dq, *dk, *dv; /* (ATTN_KEYS, width) each */
} bwd_scratch;

/* What a chunk works on. */
typedef struct bwd_work {
    attn_seq s;
    bwd_scratch m;
    attn_bias_grad grad;
    int width_qk, width_v;
    int32_t row, n_rows;         /* query rows: at most ATTN_KEYS if wants_query */
    int32_t first_key, last_key; /* keys first_key .. last_key - 1 */
    bool wants_query, wants_key;
} bwd_work;

static bwd_scratch carve_scratch(const attn_args *a, char *base, size_t *bytes) {
    attn_carve carve = {base, 0};
    size_t d = (size_t)a->dim_qk, dv = (size_t)a->dim_v;
    size_t width_qk = (size_t)tile_round(a->dim_qk, VEC),
           width_v = (size_t)tile_round(a->dim_v, VEC);
    bwd_scratch m;
    m.rows = attn_rows_take(&carve, a, BWD_ROWS);
    m.time = attn_take(&carve, ATTN_KEYS, sizeof(int32_t));
    m.key_panels = attn_take(&carve, ATTN_KEYS * d, sizeof(float));
    m.value_panels = attn_take(&carve, ATTN_KEYS * dv, sizeof(float));
    m.keys = attn_take(&carve, ATTN_KEYS * width_qk, sizeof(float));
    m.query_panels = attn_take(&carve, BWD_ROWS * d, sizeof(float));
    m.dout_panels = attn_take(&carve, BWD_ROWS * dv, sizeof(float));
    m.query = attn_take(&carve, BWD_ROWS * width_qk, sizeof(float));
    m.dout = attn_take(&carve, BWD_ROWS * width_v, sizeof(float));
    m.a_tile = attn_take(&carve, BWD_ROWS * ATTN_ROW, sizeof(float));
    m.ds_tile = attn_take(&carve, BWD_ROWS * ATTN_ROW, sizeof(float));
    m.bucket = attn_take(&carve, ATTN_KEYS, 1);
    m.dq = attn_take(&carve, ATTN_KEYS * width_qk, sizeof(float));
    m.dk = attn_take(&carve, ATTN_KEYS * width_qk, sizeof(float));
    m.dv = attn_take(&carve, ATTN_KEYS * width_v, sizeof(float));
    *bytes = carve.used;
    return m;
}

static const float *head_rows(const void *data, int64_t row, int64_t stride, int32_t head,
                              int32_t dim) {
    return (const float *)data + row * stride + (int64_t)head * dim;
}

/* x: q . k + bias, becomes a; p: dout . v, becomes ds. */
static void silu_grad_row(float *restrict x, float *restrict p, attn_hull hull, float alpha,
                          float scale) {
    for (int j = hull.begin; j < hull.end; j++) {
        float y = alpha * x[j];
        float sigmoid = vec_sigmoid(y);
        float slope = sigmoid + sigmoid * (y - y * sigmoid);
        x[j] = y * sigmoid * scale;
        p[j] = p[j] * slope * (alpha * scale);
    }
}

/* One row of the tiles: scores to a and ds, zero where the row does not see. */
static void bwd_row(const bwd_work *w, int32_t row, int r, attn_hull hull, attn_hull all) {
    const attn_args *a = w->s.a;
    float *x = w->m.a_tile + r * ATTN_ROW, *p = w->m.ds_tile + r * ATTN_ROW;
    attn_bias_add(&w->s, row, hull, x, w->m.bucket);
    silu_grad_row(x, p, hull, a->alpha, a->scale);
    attn_rows_clear(&w->m.rows, r, &w->s, all, x);
    attn_rows_clear(&w->m.rows, r, &w->s, all, p);
    if (w->wants_query) attn_bias_grad_add(&w->s, row, hull, p, w->m.bucket, &w->grad);
}

/* Tiles of rows r .. r + TILE_STRIP - 1, of which n exist, over the columns `all`; dq too. */
static attn_hull bwd_strip(const bwd_work *w, int32_t row, int r, int n, attn_hull all) {
    const attn_args *a = w->s.a;
    const bwd_scratch *m = &w->m;
    attn_hull hull = attn_rows_hull(&m->rows, r, n, &w->s, TILE_PANEL);
    int n_columns = hull.end - hull.begin;
    float *x = m->a_tile + r * ATTN_ROW, *p = m->ds_tile + r * ATTN_ROW;
    tile_a query = {m->query_panels + (size_t)r * a->dim_qk, 1, TILE_STRIP};
    tile_a dout = {m->dout_panels + (size_t)r * a->dim_v, 1, TILE_STRIP};
    tile_mm_panels(query, m->key_panels + (size_t)hull.begin * a->dim_qk, x + hull.begin, ATTN_ROW,
                   TILE_STRIP, n_columns, a->dim_qk);
    tile_mm_panels(dout, m->value_panels + (size_t)hull.begin * a->dim_v, p + hull.begin, ATTN_ROW,
                   TILE_STRIP, n_columns, a->dim_v);
    for (int k = 0; k < n; k++)
        bwd_row(w, row + k, r + k, hull, all);
    for (int k = n; k < TILE_STRIP; k++) {
        memset(x + k * ATTN_ROW + all.begin, 0, sizeof *x * (size_t)(all.end - all.begin));
        memset(p + k * ATTN_ROW + all.begin, 0, sizeof *p * (size_t)(all.end - all.begin));
    }
    if (w->wants_query) {
        tile_a ds = {p + hull.begin, ATTN_ROW, 1};
        tile_mm_rows(ds, m->keys + (size_t)hull.begin * w->width_qk, w->width_qk,
                     m->dq + (size_t)(row - w->row) * w->width_qk, w->width_qk, TILE_STRIP,
                     w->width_qk, n_columns, true);
    }
    return hull;
}

/* dk and dv of the columns from the tiles; each group of columns takes the strips that see it. */
static void sum_keys(const bwd_work *w, const attn_hull *hulls, int n_strips, attn_hull all) {
    const bwd_scratch *m = &w->m;
    for (int j = all.begin; j < all.end; j += TILE_PANEL) {
        int first = n_strips, last = 0;
        for (int k = 0; k < n_strips; k++) {
            if (j < hulls[k].begin || j >= hulls[k].end) continue;
            first = k < first ? k : first;
            last = k + 1;
        }
        if (first >= last) continue;
        int r = first * TILE_STRIP, n = last * TILE_STRIP - r;
        tile_a ds = {m->ds_tile + r * ATTN_ROW + j, 1, ATTN_ROW};
        tile_a weights = {m->a_tile + r * ATTN_ROW + j, 1, ATTN_ROW};
        tile_mm_rows(ds, m->query + (size_t)r * w->width_qk, w->width_qk,
                     m->dk + (size_t)j * w->width_qk, w->width_qk, TILE_PANEL, w->width_qk, n,
                     true);
        tile_mm_rows(weights, m->dout + (size_t)r * w->width_v, w->width_v,
                     m->dv + (size_t)j * w->width_v, w->width_v, TILE_PANEL, w->width_v, n, true);
    }
}

/* Up to BWD_ROWS query rows against the keys in hand. */
static void bwd_rows(bwd_work *w, int32_t row, int n) {
    const attn_args *a = w->s.a;
    bwd_scratch *m = &w->m;
    attn_hull hulls[BWD_ROWS / TILE_STRIP];
    attn_rows_fill(&m->rows, &w->s, row, n);
    attn_hull all = attn_rows_hull(&m->rows, 0, n, &w->s, TILE_PANEL);
    if (all.begin >= all.end) return;
    int64_t at = (int64_t)w->s.row_q + row;
    int n_padded = tile_round(n, TILE_STRIP), n_strips = n_padded / TILE_STRIP;
    const float *q = head_rows(a->q, at, a->stride_q, w->s.head, a->dim_qk);
    const float *dout = head_rows(a->dout, at, a->stride_out, w->s.head, a->dim_v);
    tile_pack_panels(m->query_panels, TILE_STRIP, q, a->stride_q, n, a->dim_qk);
    tile_pack_panels(m->dout_panels, TILE_STRIP, dout, a->stride_out, n, a->dim_v);
    for (int k = 0; k < n_strips; k++) {
        int left = n - k * TILE_STRIP;
        hulls[k] = bwd_strip(w, row + k * TILE_STRIP, k * TILE_STRIP,
                             left < TILE_STRIP ? left : TILE_STRIP, all);
    }
    if (!w->wants_key) return;
    tile_pack_rows(m->query, w->width_qk, n_padded, q, a->stride_q, n, a->dim_qk);
    tile_pack_rows(m->dout, w->width_v, n_padded, dout, a->stride_out, n, a->dim_v);
    sum_keys(w, hulls, n_strips, all);
}

static void pack_keys(const bwd_work *w) {
    const attn_args *a = w->s.a;
    int64_t row = (int64_t)w->s.row_k + w->s.first_key;
    int n = w->s.n_keys, n_padded = tile_round(n, TILE_PANEL);
    const float *k = head_rows(a->k, row, a->stride_k, w->s.head, a->dim_qk);
    const float *v = head_rows(a->v, row, a->stride_v, w->s.head, a->dim_v);
    tile_pack_panels(w->m.key_panels, TILE_PANEL, k, a->stride_k, n, a->dim_qk);
    tile_pack_panels(w->m.value_panels, TILE_PANEL, v, a->stride_v, n, a->dim_v);
    tile_pack_rows(w->m.keys, w->width_qk, n_padded, k, a->stride_k, n, a->dim_qk);
    memset(w->m.dk, 0, sizeof(float) * (size_t)n_padded * w->width_qk);
    memset(w->m.dv, 0, sizeof(float) * (size_t)n_padded * w->width_v);
}

static void unpack_keys(const bwd_work *w) {
    const attn_args *a = w->s.a;
    int64_t row = (int64_t)w->s.row_k + w->s.first_key;
    float *dk = (float *)head_rows(a->dk, row, a->stride_k, w->s.head, a->dim_qk);
    float *dv = (float *)head_rows(a->dv, row, a->stride_v, w->s.head, a->dim_v);
    tile_unpack_rows(dk, a->stride_k, w->m.dk, w->width_qk, w->s.n_keys, a->dim_qk);
    tile_unpack_rows(dv, a->stride_v, w->m.dv, w->width_v, w->s.n_keys, a->dim_v);
}

static void bwd_run(bwd_work *w) {
    const attn_args *a = w->s.a;
    if (w->wants_query) {
        int n_padded = tile_round(w->n_rows, TILE_STRIP);
        memset(w->m.dq, 0, sizeof(float) * (size_t)n_padded * w->width_qk);
    }
    for (int32_t first = w->first_key; first < w->last_key; first += ATTN_KEYS) {
        attn_seq_take_keys(&w->s, first);
        pack_keys(w);
        for (int32_t r = 0; r < w->n_rows; r += BWD_ROWS)
            bwd_rows(w, w->row + r, w->n_rows - r < BWD_ROWS ? w->n_rows - r : BWD_ROWS);
        if (w->wants_key) unpack_keys(w);
    }
    if (w->wants_query) {
        float *dq = (float *)head_rows(a->dq, (int64_t)w->s.row_q + w->row, a->stride_q, w->s.head,
                                       a->dim_qk);
        tile_unpack_rows(dq, a->stride_q, w->m.dq, w->width_qk, w->n_rows, a->dim_qk);
    }
}

static int32_t smaller(int32_t a, int32_t b) {
    return a < b ? a : b;
}

/* The part `block` of a sequence: blocks of keys come first, then those of queries, those with most
 * keys first.  A short sequence is whole in block 0.  False if there is nothing in it. */
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
    int64_t n_pairs = (int64_t)a->n_sequences * job->n_head_groups;
    int32_t b = (int32_t)(chunk % n_pairs / job->n_head_groups);
    int32_t n_heads = a->n_heads / job->n_head_groups;
    int32_t first = (int32_t)(chunk % job->n_head_groups) * n_heads;
    bwd_work w = {.m = carve_scratch(a, base, &bytes), .grad = *grad};
    w.width_qk = tile_round(a->dim_qk, VEC);
    w.width_v = tile_round(a->dim_v, VEC);
    for (int32_t head = first; head < first + n_heads; head++) {
        w.s = attn_seq_make(a, b, head, w.m.time);
        if (choose_part(job, (int32_t)(chunk / n_pairs), &w)) bwd_run(&w);
    }
}

static status bwd_slot(void *ctx, int64_t slot, int worker) {
    const bwd_job *job = ctx;
    void *base = (char *)job->slots + job->shared_bytes;
    attn_bias_grad grad = {NULL, NULL};
    if (worker != 0) TRY(cpu_scratch(job->be, worker, job->tile_bytes, &base));
    if (job->a->bias == BIAS_TIME) {
        grad.time = job->slots + (size_t)slot * job->slot_floats;
        grad.position = grad.time + ATTN_TIME_COPIES * ATTN_TIME_STRIDE;
        memset(grad.time, 0, sizeof(float) * job->slot_floats);
    }
    for (int64_t chunk = slot; chunk < job->n_chunks; chunk += job->n_slots)
        bwd_chunk(job, chunk, base, &grad);
    return OK;
}

/* Adds element i of every slot, in order, and of every copy of the time bias. */
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

status cpu_attn_bwd(backend *be, const attn_args *a) {
    bwd_job job = {.be = be, .a = a};
    TRY(attn_args_check(a));
    /* Heads that share a table add to the same numbers, so one chunk does them one by one. */
    bool shares_table = a->bias == BIAS_TABLE && a->dtable != NULL && a->table_heads == 1;
    job.n_head_groups = shares_table ? 1 : a->n_heads;
    job.n_key_blocks = (a->max_len_k + ATTN_KEYS - 1) / ATTN_KEYS;
    job.n_query_blocks = (a->max_len_q + ATTN_QUERIES - 1) / ATTN_QUERIES;
    if (a->max_len_k <= ATTN_KEYS) job.n_query_blocks = 0;
    job.n_chunks =
        (int64_t)(job.n_key_blocks + job.n_query_blocks) * a->n_sequences * job.n_head_groups;
    job.n_slots = job.n_chunks;
    if (a->bias == BIAS_TIME) {
        job.n_slots = job.n_chunks < ATTN_SLOTS ? job.n_chunks : ATTN_SLOTS;
        job.slot_floats =
            (size_t)tile_round(2 * a->bias_len - 1, 16) + ATTN_TIME_COPIES * ATTN_TIME_STRIDE;
        job.shared_bytes = sizeof(float) * (size_t)job.n_slots * job.slot_floats;
    }
    carve_scratch(a, NULL, &job.tile_bytes);
    TRY(cpu_scratch(be, 0, job.shared_bytes + job.tile_bytes, (void **)&job.slots));
    TRY(attn_run(be, job.n_slots, bwd_slot, &job));
    if (a->bias == BIAS_TIME && job.n_slots > 0) sum_slots(&job);
    return OK;
}
