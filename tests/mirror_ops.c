/* What every op's arguments hold: the shapes of ops.h, as code.  Dense layers are in
 * mirror_linear.c. */
#include <string.h>

#include "base/mem.h"
#include "mirror_int.h"

/* The number of table rows that the indices need: the largest index plus one. */
static int64_t rows_used(const int32_t *index, int64_t n) {
    int64_t rows = 0;
    for (int64_t i = 0; index != NULL && i < n; i++)
        rows = index[i] >= rows ? (int64_t)index[i] + 1 : rows;
    return rows;
}

/* With rate 0 an op must not read the other fields. */
void mirror_add_dropout(mirror *m, dropout *d, int64_t rows) {
    if (d->rate == 0) d->step = d->user = d->position = NULL;
    MIRROR(m, d, step, IN, I32, 1);
    MIRROR(m, d, user, IN, I32, rows);
    MIRROR(m, d, position, IN, I32, rows);
}

status mirror_gather(backend *be, const gather_args *args) {
    mirror *m = mirror_of(be);
    gather_args a = *args;
    int64_t n = a.n * a.dim;
    mirror_begin(m);
    int64_t n_near = rows_used(a.index, a.n);
    for (int k = a.n_far - 1; k >= 0; k--) {
        int64_t n_mine = n_near > a.far[k].from ? n_near - a.far[k].from : 0;
        MIRROR(m, &a.far[k], rows, IN, F32, n_mine * a.far[k].stride);
        if (n_near > a.far[k].from) n_near = a.far[k].from;
    }
    MIRROR(m, &a, table, IN, a.is_act ? ACT : F32, n_near * a.dim);
    MIRROR(m, &a, index, IN, I32, a.n);
    if (a.other == NULL) a.other_index = NULL;
    MIRROR(m, &a, other, IN, F32, rows_used(a.other_index, a.n) * a.dim);
    MIRROR(m, &a, other_index, IN, I32, a.n);
    if (a.more == NULL) a.more_index = NULL;
    MIRROR(m, &a, more, IN, F32, rows_used(a.more_index, a.n) * a.dim);
    MIRROR(m, &a, more_index, IN, I32, a.n);
    mirror_add_dropout(m, &a.drop, a.n);
    MIRROR(m, &a, y, OUT, ACT, n);
    for (int k = 0; k < a.blank.n_arrays; k++)
        MIRROR(m, &a.blank, rows[k], BOTH, ACT, a.n * a.blank.dim);
    if (a.moments == NULL) RUN(m, gather, &a);
    row_moments after = *a.moments;
    a.moments = &after;
    MIRROR(m, &after, parts, LOOSE, F32, mirror_moments_size(a.n, a.dim));
    TRY(mirror_send(m));
    TRY(m->below->ops->gather(m->below, &a));
    args->moments->width = after.width;
    args->moments->of = after.of == a.y ? args->y : NULL;
    return mirror_receive(m, "gather");
}

/* Of `order` only the entries of rows with an index are written; with no rows perhaps nothing is.
 */
status mirror_group(backend *be, const int32_t *index, row_groups *groups) {
    mirror *m = mirror_of(be);
    row_groups g = *groups;
    struct {
        const int32_t *index;
    } a = {index};
    mirror_begin(m);
    MIRROR(m, &a, index, IN, I32, g.n);
    MIRROR(m, &g, order, LOOSE, I32, g.n);
    MIRROR(m, &g, begin, g.n > 0 ? OUT : BOTH, I32, g.n_rows + 1);
    RUN(m, group, a.index, &g);
}

status mirror_scatter(backend *be, const scatter_args *args) {
    mirror *m = mirror_of(be);
    scatter_args a = *args;
    mirror_begin(m);
    MIRROR(m, &a.groups, order, IN, I32, a.groups.n);
    MIRROR(m, &a.groups, begin, IN, I32, a.groups.n_rows + 1);
    MIRROR(m, &a, dy, IN, ACT, a.groups.n * a.dim);
    mirror_add_dropout(m, &a.drop, a.groups.n);
    MIRROR(m, &a, grad, BOTH, a.is_act ? ACT : F32, (int64_t)a.groups.n_rows * a.dim);
    RUN(m, scatter, &a);
}

status mirror_activate(backend *be, epilogue f, int64_t n, const void *z, void *y) {
    mirror *m = mirror_of(be);
    struct {
        const void *z;
        void *y;
    } a = {z, y};
    mirror_begin(m);
    MIRROR(m, &a, z, IN, ACT, n);
    MIRROR(m, &a, y, OUT, ACT, n);
    RUN(m, activate, f, n, a.z, a.y);
}

status mirror_norm_fwd(backend *be, const norm_args *args) {
    mirror *m = mirror_of(be);
    norm_args a = *args;
    a.dy = a.dx = a.dweight = a.dbias = NULL;
    mirror_begin(m);
    MIRROR(m, &a, x, IN, ACT, a.n * a.dim);
    MIRROR(m, &a, weight, IN, F32, a.dim);
    MIRROR(m, &a, bias, IN, F32, a.dim);
    MIRROR(m, &a, y, OUT, ACT, a.n * a.dim);
    MIRROR(m, &a, mean, OUT, F32, a.n);
    MIRROR(m, &a, rstd, OUT, F32, a.n);
    RUN(m, norm_fwd, &a);
}

status mirror_norm_bwd(backend *be, const norm_args *args) {
    mirror *m = mirror_of(be);
    norm_args a = *args;
    a.y = NULL;
    mirror_begin(m);
    MIRROR(m, &a, x, IN, ACT, a.n * a.dim);
    MIRROR(m, &a, weight, IN, F32, a.dim);
    MIRROR(m, &a, bias, IN, F32, a.dim);
    MIRROR(m, &a, mean, IN, F32, a.n);
    MIRROR(m, &a, rstd, IN, F32, a.n);
    MIRROR(m, &a, dy, IN, ACT, a.n * a.dim);
    MIRROR(m, &a, dx, a.adds_dx ? BOTH : OUT, ACT, a.n * a.dim);
    MIRROR(m, &a, dweight, BOTH, F32, a.dim);
    MIRROR(m, &a, dbias, BOTH, F32, a.dim);
    RUN(m, norm_bwd, &a);
}

status mirror_residual_norm(backend *be, const residual_norm_args *args) {
    mirror *m = mirror_of(be);
    residual_norm_args a = *args;
    mirror_begin(m);
    MIRROR(m, &a, x, IN, ACT, a.n * a.dim);
    MIRROR(m, &a, shift, IN, F32, a.dim);
    MIRROR(m, &a, residual, IN, ACT, a.n * a.dim);
    MIRROR(m, &a, weight, IN, F32, a.dim);
    MIRROR(m, &a, bias, IN, F32, a.dim);
    MIRROR(m, &a, y, OUT, ACT, a.n * a.dim);
    RUN(m, residual_norm, &a);
}

/* The product's own result is not looked at: it is undefined. */
status mirror_linear_norm(backend *be, const linear_norm_args *args) {
    mirror *m = mirror_of(be);
    linear_norm_args a = *args;
    linear_args *l = &a.linear.layer;
    residual_norm_args *r = &a.norm;
    int64_t n_y = l->n * l->n_out;
    l->z = l->dy = l->dx = l->dw = l->dbias = NULL;
    l->w = NULL;
    r->x = NULL;
    mirror_begin(m);
    MIRROR(m, l, x, IN, ACT_FACTOR, l->n * l->n_in);
    MIRROR(m, &a.linear, packed, IN, U8,
           (int64_t)mirror_linear_packed_bytes(be, l->n_in, l->n_out));
    MIRROR(m, l, y, BOTH, ACT, n_y);
    MIRROR(m, r, shift, IN, F32, r->dim);
    MIRROR(m, r, residual, IN, ACT, n_y);
    MIRROR(m, r, weight, IN, F32, r->dim);
    MIRROR(m, r, bias, IN, F32, r->dim);
    MIRROR(m, r, y, OUT, ACT, n_y);
    TRY(mirror_send(m));
    r->x = l->y;
    TRY(m->below->ops->linear_norm(m->below, &a));
    return mirror_receive(m, "linear_norm");
}

/* Each half of a cut pass leaves some of the results alone. */
static mirror_use add_cut(mirror *m, gate_args *a, gate_cut *cut) {
    if (a->cut == NULL) return OUT;
    *cut = *a->cut;
    a->cut = cut;
    MIRROR(m, cut, moments, BOTH, F32, 2 * a->n * cut->n_parts);
    MIRROR(m, cut, sums, BOTH, F32, 2 * a->n);
    return BOTH;
}

/* All of the gate but o. */
static void add_gate(mirror *m, gate_args *a, mirror_use out) {
    MIRROR_ROWS(m, a, u, IN, ACT, a->n, a->dim, a->stride_u);
    MIRROR(m, a, weight, IN, F32, a->dim);
    MIRROR(m, a, bias, IN, F32, a->dim);
    mirror_add_dropout(m, &a->drop, a->n);
    MIRROR(m, a, y, out, ACT, a->n * a->dim);
    MIRROR(m, a, mean, out, F32, a->n);
    MIRROR(m, a, rstd, out, F32, a->n);
}

status mirror_gate_fwd(backend *be, const gate_args *args) {
    mirror *m = mirror_of(be);
    gate_args a = *args;
    gate_cut cut;
    a.dy = a.d_o = a.du = a.dweight = a.dbias = NULL;
    mirror_begin(m);
    mirror_use out = add_cut(m, &a, &cut);
    MIRROR(m, &a, o, IN, ACT, a.n * a.dim);
    add_gate(m, &a, out);
    RUN(m, gate_fwd, &a);
}

status mirror_gate_bwd(backend *be, const gate_args *args) {
    mirror *m = mirror_of(be);
    gate_args a = *args;
    gate_cut cut;
    a.y = NULL;
    mirror_begin(m);
    mirror_use out = add_cut(m, &a, &cut);
    MIRROR(m, &a, o, IN, ACT, a.n * a.dim);
    MIRROR_ROWS(m, &a, u, IN, ACT, a.n, a.dim, a.stride_u);
    MIRROR(m, &a, weight, IN, F32, a.dim);
    MIRROR(m, &a, bias, IN, F32, a.dim);
    mirror_add_dropout(m, &a.drop, a.n);
    MIRROR(m, &a, mean, IN, F32, a.n);
    MIRROR(m, &a, rstd, IN, F32, a.n);
    MIRROR(m, &a, dy, IN, ACT, a.n * a.dim);
    MIRROR(m, &a, d_o, out, ACT, a.n * a.dim);
    MIRROR_ROWS(m, &a, du, out, ACT, a.n, a.dim, a.stride_u);
    MIRROR(m, &a, dweight, BOTH, F32, a.dim);
    MIRROR(m, &a, dbias, BOTH, F32, a.dim);
    RUN(m, gate_bwd, &a);
}

status mirror_glu_fwd(backend *be, const glu_args *args) {
    mirror *m = mirror_of(be);
    glu_args a = *args;
    a.dy = a.da = a.db = NULL;
    mirror_begin(m);
    MIRROR_ROWS(m, &a, a, IN, ACT, a.n, a.dim, a.stride);
    MIRROR_ROWS(m, &a, b, IN, ACT, a.n, a.dim, a.stride);
    MIRROR(m, &a, residual, IN, ACT, a.n * a.dim);
    mirror_add_dropout(m, &a.drop, a.n);
    MIRROR(m, &a, y, OUT, ACT, a.n * a.dim);
    RUN(m, glu_fwd, &a);
}

status mirror_glu_bwd(backend *be, const glu_args *args) {
    mirror *m = mirror_of(be);
    glu_args a = *args;
    a.residual = a.y = NULL;
    mirror_begin(m);
    MIRROR_ROWS(m, &a, a, IN, ACT, a.n, a.dim, a.stride);
    MIRROR_ROWS(m, &a, b, IN, ACT, a.n, a.dim, a.stride);
    mirror_add_dropout(m, &a.drop, a.n);
    MIRROR(m, &a, dy, IN, ACT, a.n * a.dim);
    MIRROR_ROWS(m, &a, da, OUT, ACT, a.n, a.dim, a.stride);
    MIRROR_ROWS(m, &a, db, OUT, ACT, a.n, a.dim, a.stride);
    RUN(m, glu_bwd, &a);
}

status mirror_dropout(backend *be, const dropout_args *args) {
    mirror *m = mirror_of(be);
    dropout_args a = *args;
    mirror_begin(m);
    MIRROR(m, &a, x, IN, ACT, a.n * a.dim);
    MIRROR(m, &a, residual, IN, ACT, a.n * a.dim);
    MIRROR(m, &a, y, OUT, ACT, a.n * a.dim);
    mirror_add_dropout(m, &a.drop, a.n);
    RUN(m, dropout, &a);
}

/* The room between the steps is not looked at. */
status mirror_head_fwd(backend *be, const head_args *args) {
    mirror *m = mirror_of(be);
    head_args a = *args;
    linear_args *one = &a.one.layer, *two = &a.two.layer;
    int64_t n_x = a.index != NULL ? rows_used(a.index, a.n) : a.n;
    one->x = two->x = NULL;
    mirror_begin(m);
    MIRROR(m, &a, x, IN, ACT_FACTOR, n_x * a.dim);
    MIRROR(m, &a, index, IN, I32, a.n);
    MIRROR(m, &a, chosen, BOTH, ACT, a.n * a.dim);
    MIRROR(m, &a, scale, BOTH, F32, a.n);
    MIRROR(m, &a, normed, BOTH, ACT, a.n * a.dim);
    MIRROR(m, &a.one, packed, IN, U8,
           (int64_t)mirror_linear_packed_bytes(be, one->n_in, one->n_out));
    MIRROR(m, &a.two, packed, IN, U8,
           (int64_t)mirror_linear_packed_bytes(be, two->n_in, two->n_out));
    MIRROR(m, one, bias, IN, F32, one->n_out);
    MIRROR(m, one, y, BOTH, ACT, a.n * one->n_out);
    MIRROR(m, two, w, IN, F32, (int64_t)two->n_in * two->n_out);
    MIRROR(m, two, bias, IN, F32, two->n_out);
    MIRROR(m, two, y, OUT, ACT, a.n * two->n_out);
    TRY(mirror_send(m));
    one->x = a.normed;
    two->x = one->y;
    TRY(m->below->ops->head_fwd(m->below, &a));
    return mirror_receive(m, "head_fwd");
}

status mirror_l2_fwd(backend *be, const l2_args *args) {
    mirror *m = mirror_of(be);
    l2_args a = *args;
    mirror_kind kind = a.is_f32 ? F32 : ACT;
    a.dy = a.dx = NULL;
    mirror_begin(m);
    MIRROR(m, &a, x, IN, kind, a.n * a.dim);
    MIRROR(m, &a, y, OUT, kind, a.n * a.dim);
    MIRROR(m, &a, scale, OUT, F32, a.n);
    RUN(m, l2_fwd, &a);
}

status mirror_l2_bwd(backend *be, const l2_args *args) {
    mirror *m = mirror_of(be);
    l2_args a = *args;
    a.y = NULL;
    mirror_begin(m);
    MIRROR(m, &a, x, IN, ACT, a.n * a.dim);
    MIRROR(m, &a, scale, IN, F32, a.n);
    MIRROR(m, &a, dy, IN, ACT, a.n * a.dim);
    MIRROR(m, &a, dx, OUT, ACT, a.n * a.dim);
    RUN(m, l2_bwd, &a);
}

status mirror_add(backend *be, int64_t n, const void *x, void *y) {
    mirror *m = mirror_of(be);
    struct {
        const void *x;
        void *y;
    } a = {x, y};
    mirror_begin(m);
    MIRROR(m, &a, x, IN, ACT, n);
    MIRROR(m, &a, y, BOTH, ACT, n);
    RUN(m, add, n, a.x, a.y);
}

/* Rows of a result after the last sequence, which pad the jagged array: they may be written. */
static void add_filling(mirror *m, void **slot, int64_t n, int64_t n_rows, int64_t width,
                        int64_t stride) {
    if (n_rows > n) mirror_part_add(m, "rows that fill up", ROOM, ACT, slot, n_rows, width, stride);
}

/* Offsets, masks and bias, which both passes read; rows of queries and keys. */
/* As many pages as the table names. */
static void add_pages(mirror *m, attn_args *a) {
    attn_pages *p = &a->pages;
    int64_t n = 0, n_cells = (int64_t)a->n_sequences * p->max_pages;
    for (int64_t i = 0; i < n_cells; i++)
        n = p->table[i] >= n ? p->table[i] + 1 : n;
    MIRROR_ROWS(m, a, pages.k, IN, ACT_FACTOR, n, (int64_t)p->page_len * a->n_heads * a->dim_qk,
                p->stride);
    MIRROR_ROWS(m, a, pages.v, IN, ACT_FACTOR, n, (int64_t)p->page_len * a->n_heads * a->dim_v,
                p->stride);
    MIRROR(m, a, pages.table, IN, I32, n_cells);
    MIRROR(m, a, pages.offsets, IN, I32, a->n_sequences + 1);
}

static void add_attn(mirror *m, attn_args *a, int64_t *n_q, int64_t *n_k) {
    int64_t b = a->n_sequences, cells = (int64_t)a->table_len * a->table_len;
    *n_q = a->offsets_q[b];
    *n_k = a->offsets_k[b];
    int64_t n_times = a->pages.table != NULL ? a->pages.offsets[b] : *n_k;
    if (a->pages.table != NULL) add_pages(m, a);
    if (a->bias != BIAS_TABLE) a->table = NULL, a->dtable = NULL;
    if (a->bias != BIAS_TIME) {
        a->position_w = a->time_w = a->dposition_w = a->dtime_w = NULL;
        a->query_time = a->key_time = NULL;
    }
    MIRROR(m, a, func, IN, I32, (a->n_func - 1) * a->func_stride + *n_q);
    MIRROR(m, a, n_contexts, IN, I32, b);
    MIRROR(m, a, n_targets, IN, I32, b);
    MIRROR(m, a, table, IN, ACT, b * a->table_heads * cells);
    MIRROR(m, a, position_w, IN, F32, 2 * a->bias_len - 1);
    MIRROR(m, a, time_w, IN, F32, ATTN_TIME_BUCKETS + 1);
    MIRROR(m, a, query_time, IN, I64, *n_q);
    MIRROR(m, a, key_time, IN, I64, n_times);
    MIRROR_ROWS(m, a, q, IN, ACT_FACTOR, *n_q, a->n_heads * a->dim_qk, a->stride_q);
    MIRROR_ROWS(m, a, k, IN, ACT_FACTOR, *n_k, a->n_heads * a->dim_qk, a->stride_k);
    MIRROR_ROWS(m, a, v, IN, ACT_FACTOR, *n_k, a->n_heads * a->dim_v, a->stride_v);
    MIRROR(m, a, offsets_q, IN, I32, b + 1);
    MIRROR(m, a, offsets_k, IN, I32, b + 1);
}

status mirror_attn_fwd(backend *be, const attn_args *args) {
    mirror *m = mirror_of(be);
    attn_args a = *args;
    gate_args gate;
    int64_t n_q, n_k;
    a.dout = a.dq = a.dk = a.dv = NULL;
    a.dtable = a.dposition_w = a.dtime_w = NULL;
    mirror_begin(m);
    add_attn(m, &a, &n_q, &n_k);
    mirror_use use = a.gate != NULL ? ROOM : OUT;
    MIRROR_ROWS(m, &a, out, use, ACT, n_q, a.n_heads * a.dim_v, a.stride_out);
    add_filling(m, &a.out, n_q, a.n_rows_q, a.n_heads * a.dim_v, a.stride_out);
    if (a.gate != NULL) { /* o is out */
        gate = *a.gate;
        gate.dy = gate.d_o = gate.du = gate.dweight = gate.dbias = NULL;
        MIRROR_ROWS(m, &gate, o, ROOM, ACT, n_q, a.n_heads * a.dim_v, a.stride_out);
        add_gate(m, &gate, OUT);
        a.gate = &gate;
    }
    RUN(m, attn_fwd, &a);
}

status mirror_attn_bwd(backend *be, const attn_args *args) {
    mirror *m = mirror_of(be);
    attn_args a = *args;
    int64_t n_q, n_k, qk = (int64_t)a.n_heads * a.dim_qk, v = (int64_t)a.n_heads * a.dim_v;
    a.out = NULL;
    mirror_begin(m);
    add_attn(m, &a, &n_q, &n_k);
    MIRROR_ROWS(m, &a, dout, IN, ACT_FACTOR, n_q, v, a.stride_out);
    MIRROR_ROWS(m, &a, dq, OUT, ACT, n_q, qk, a.stride_q);
    MIRROR_ROWS(m, &a, dk, OUT, ACT, n_k, qk, a.stride_k);
    MIRROR_ROWS(m, &a, dv, OUT, ACT, n_k, v, a.stride_v);
    add_filling(m, &a.dq, n_q, a.n_rows_q, qk, a.stride_q);
    add_filling(m, &a.dk, n_k, a.n_rows_k, qk, a.stride_k);
    add_filling(m, &a.dv, n_k, a.n_rows_k, v, a.stride_v);
    MIRROR(m, &a, dtable, BOTH, F32,
           (int64_t)a.n_sequences * a.table_heads * a.table_len * a.table_len);
    MIRROR(m, &a, dposition_w, BOTH, F32, 2 * a.bias_len - 1);
    MIRROR(m, &a, dtime_w, BOTH, F32, ATTN_TIME_BUCKETS + 1);
    RUN(m, attn_bwd, &a);
}

status mirror_attn_channels_fwd(backend *be, const attn_channels_args *args) {
    mirror *m = mirror_of(be);
    attn_channels_args a = *args;
    attn_args *of = &a.of;
    int64_t n_q, n_k, v = (int64_t)of->n_heads * of->dim_v;
    of->dout = of->dq = of->dk = of->dv = NULL;
    of->dtable = of->dposition_w = of->dtime_w = NULL;
    mirror_begin(m);
    add_attn(m, of, &n_q, &n_k);
    MIRROR_ROWS(m, of, out, OUT, ACT, n_q, 3 * v, of->stride_out);
    add_filling(m, &of->out, n_q, of->n_rows_q, 3 * v, of->stride_out);
    MIRROR(m, &a, third, ROOM, ACT, of->n_rows_q * v);
    RUN(m, attn_channels_fwd, &a);
}

status mirror_attn_channels_bwd(backend *be, const attn_channels_args *args) {
    mirror *m = mirror_of(be);
    attn_channels_args a = *args;
    attn_args *of = &a.of;
    int64_t n_q, n_k, qk = (int64_t)of->n_heads * of->dim_qk, v = (int64_t)of->n_heads * of->dim_v;
    of->out = NULL;
    mirror_begin(m);
    add_attn(m, of, &n_q, &n_k);
    MIRROR_ROWS(m, of, dout, IN, ACT_FACTOR, n_q, 3 * v, of->stride_out);
    MIRROR_ROWS(m, of, dq, OUT, ACT, n_q, qk, of->stride_q);
    MIRROR_ROWS(m, of, dk, OUT, ACT, n_k, qk, of->stride_k);
    MIRROR_ROWS(m, of, dv, OUT, ACT, n_k, v, of->stride_v);
    add_filling(m, &of->dq, n_q, of->n_rows_q, qk, of->stride_q);
    add_filling(m, &of->dk, n_k, of->n_rows_k, qk, of->stride_k);
    add_filling(m, &of->dv, n_k, of->n_rows_k, v, of->stride_v);
    MIRROR(m, of, dposition_w, BOTH, F32, 2 * of->bias_len - 1);
    MIRROR(m, of, dtime_w, BOTH, F32, ATTN_TIME_BUCKETS + 1);
    MIRROR(m, &a, third, ROOM, ACT, of->n_rows_q * v);
    RUN(m, attn_channels_bwd, &a);
}

/* Where kv_put writes, and the slots that say so. */
void mirror_add_put(mirror *m, kv_put_args *a) {
    int64_t n = 0;
    for (int64_t i = 0; i < a->n; i++)
        n = a->slot[i] / a->page_len >= n ? a->slot[i] / a->page_len + 1 : n;
    MIRROR(m, a, slot, IN, I32, a->n);
    MIRROR_ROWS(m, a, pages_k, BOTH, ACT, n, (int64_t)a->page_len * a->dim_k, a->stride);
    MIRROR_ROWS(m, a, pages_v, BOTH, ACT, n, (int64_t)a->page_len * a->dim_v, a->stride);
}

status mirror_kv_put(backend *be, const kv_put_args *args) {
    mirror *m = mirror_of(be);
    kv_put_args a = *args;
    mirror_begin(m);
    MIRROR_ROWS(m, &a, k, IN, ACT, a.n, a.dim_k, a.stride_k);
    MIRROR_ROWS(m, &a, v, IN, ACT, a.n, a.dim_v, a.stride_v);
    mirror_add_put(m, &a);
    RUN(m, kv_put, &a);
}

status mirror_kv_fp8(backend *be, const kv_fp8_args *args) {
    mirror *m = mirror_of(be);
    kv_fp8_args a = *args;
    int64_t dim_k = (int64_t)a.n_heads * a.dim_qk, dim_v = (int64_t)a.n_heads * a.dim_v;
    bool is_round = a.kind == KV_ROUND, is_pack = a.kind == KV_PACK;
    int64_t n_narrow = is_round ? 0 : rows_used(a.page, a.n_pages);
    mirror_begin(m);
    if (is_round) {
        MIRROR_ROWS(m, &a, k, BOTH, ACT, a.n, dim_k, a.stride_k);
        MIRROR_ROWS(m, &a, v, BOTH, ACT, a.n, dim_v, a.stride_v);
    } else {
        mirror_use wide = is_pack ? IN : OUT;
        MIRROR(m, &a, page, IN, I32, a.n_pages);
        MIRROR_ROWS(m, &a, pages_k, wide, ACT, a.n_pages, a.page_len * dim_k, a.stride);
        MIRROR_ROWS(m, &a, pages_v, wide, ACT, a.n_pages, a.page_len * dim_v, a.stride);
        MIRROR(m, &a, narrow, is_pack ? BOTH : IN, U8,
               n_narrow * kv_fp8_page_bytes(a.page_len, a.n_heads, a.dim_qk, a.dim_v));
    }
    RUN(m, kv_fp8, &a);
}

/* The pages of the device are those of the backend below while the call lasts. */
status mirror_kv_move(backend *be, const kv_move_args *args) {
    mirror *m = mirror_of(be);
    kv_move_args a = *args;
    int64_t n = 0;
    for (int32_t i = 0; i < a.n_out; i++)
        n = a.out[i].device >= n ? a.out[i].device + 1 : n;
    for (int32_t i = 0; i < a.n_in; i++)
        n = a.in[i].device >= n ? a.in[i].device + 1 : n;
    mirror_begin(m);
    MIRROR(m, &a, device, BOTH, U8, n * (int64_t)a.page_bytes);
    TRY(mirror_send(m));
    TRY(m->below->ops->sync(m->below)); /* stages after the first do not wait for earlier ops */
    TRY(m->below->ops->kv_move(m->below, &a));
    TRY(m->below->ops->kv_wait(m->below, a.stage));
    TRY(m->below->ops->sync(m->below));
    return mirror_receive(m, "kv_move");
}

status mirror_kv_wait(backend *be, int stage) {
    backend *below = mirror_of(be)->below;
    return below->ops->kv_wait(below, stage);
}

static int64_t add_softmax_attn(mirror *m, softmax_attn_args *a) {
    int64_t n = a->offsets[a->n_sequences], width = (int64_t)a->n_heads * a->dim;
    MIRROR_ROWS(m, a, q, IN, ACT_FACTOR, n, width, a->stride_q);
    MIRROR_ROWS(m, a, k, IN, ACT_FACTOR, n, width, a->stride_k);
    MIRROR_ROWS(m, a, v, IN, ACT_FACTOR, n, width, a->stride_v);
    MIRROR(m, a, offsets, IN, I32, a->n_sequences + 1);
    MIRROR(m, &a->mask, first, IN, I32, a->n_sequences);
    MIRROR(m, &a->mask, row_begin, IN, I32, a->mask.n_begins);
    MIRROR(m, &a->mask, col_begin, IN, I32, a->mask.n_begins);
    MIRROR(m, &a->mask, row_tiles, IN, I64, a->mask.n_tiles);
    MIRROR(m, &a->mask, col_tiles, IN, I64, a->mask.n_tiles);
    MIRROR(m, &a->mask, bits, IN, I64, a->mask.n_bits * MASK_TILE);
    mirror_add_dropout(m, &a->drop, n);
    return n;
}

status mirror_softmax_attn_fwd(backend *be, const softmax_attn_args *args) {
    mirror *m = mirror_of(be);
    softmax_attn_args a = *args;
    a.dout = a.dq = a.dk = a.dv = NULL;
    mirror_begin(m);
    int64_t n = add_softmax_attn(m, &a);
    MIRROR_ROWS(m, &a, out, OUT, ACT, n, a.n_heads * a.dim, a.stride_out);
    MIRROR(m, &a, log_sum, OUT, F32, n * a.n_heads);
    RUN(m, softmax_attn_fwd, &a);
}

status mirror_softmax_attn_bwd(backend *be, const softmax_attn_args *args) {
    mirror *m = mirror_of(be);
    softmax_attn_args a = *args;
    int64_t width = (int64_t)a.n_heads * a.dim;
    mirror_begin(m);
    int64_t n = add_softmax_attn(m, &a);
    MIRROR_ROWS(m, &a, out, IN, ACT, n, width, a.stride_out);
    MIRROR(m, &a, log_sum, IN, F32, n * a.n_heads);
    MIRROR_ROWS(m, &a, dout, IN, ACT_FACTOR, n, width, a.stride_out);
    MIRROR_ROWS(m, &a, dq, OUT, ACT, n, width, a.stride_q);
    MIRROR_ROWS(m, &a, dk, OUT, ACT, n, width, a.stride_k);
    MIRROR_ROWS(m, &a, dv, OUT, ACT, n, width, a.stride_v);
    RUN(m, softmax_attn_bwd, &a);
}

static void add_graph_side(mirror *m, graph_side *s, int64_t n_edges) {
    MIRROR(m, s, begin, IN, I32, s->n + 1);
    MIRROR(m, s, other, IN, I32, n_edges);
    MIRROR(m, s, edge, IN, I32, n_edges);
    MIRROR(m, s, pieces, IN, I32, 4 * (int64_t)s->n_pieces);
    MIRROR(m, s, splits, IN, I32, 3 * (int64_t)s->n_splits);
}

static void add_graph_attn(mirror *m, graph_attn_args *a) {
    int64_t n = a->g.rows.n, n_columns = a->g.columns.n, qk = (int64_t)a->n_heads * a->dim_qk;
    add_graph_side(m, &a->g.rows, a->g.n_edges);
    add_graph_side(m, &a->g.columns, a->g.n_edges);
    MIRROR_ROWS(m, a, q, IN, ACT_FACTOR, n, qk, a->stride_q);
    MIRROR_ROWS(m, a, k, IN, ACT_FACTOR, n_columns, qk, a->stride_k);
    MIRROR_ROWS(m, a, v, IN, ACT_FACTOR, n_columns, a->n_heads * a->dim_v, a->stride_v);
    MIRROR(m, a, left, IN, F32, n * a->n_heads);
    MIRROR(m, a, right, IN, F32, n_columns * a->n_heads);
    MIRROR(m, a, bias, IN, F32, a->g.n_edges * a->bias_heads);
}

status mirror_graph_attn_fwd(backend *be, const graph_attn_args *args) {
    mirror *m = mirror_of(be);
    graph_attn_args a = *args;
    int64_t n = a.g.rows.n, width = (int64_t)a.n_heads * a.dim_v;
    a.dout = a.dq = a.dk = a.dv = NULL;
    mirror_begin(m);
    add_graph_attn(m, &a);
    if (a.v != NULL) MIRROR_ROWS(m, &a, out, OUT, ACT, n, width, a.stride_out);
    if (a.sum == GRAPH_MAX && a.v != NULL) MIRROR(m, &a, best, OUT, I32, n * width);
    MIRROR(m, &a, row_sum, OUT, F32, n * a.n_heads);
    MIRROR(m, &a, weights, OUT, F32, a.g.n_edges * a.n_heads);
    RUN(m, graph_attn_fwd, &a);
}

status mirror_graph_attn_bwd(backend *be, const graph_attn_args *args) {
    mirror *m = mirror_of(be);
    graph_attn_args a = *args;
    int64_t n = a.g.rows.n, n_columns = a.g.columns.n, heads = a.n_heads;
    int64_t qk = heads * a.dim_qk, width = heads * a.dim_v;
    mirror_begin(m);
    add_graph_attn(m, &a);
    if (a.v != NULL) MIRROR_ROWS(m, &a, out, IN, ACT, n, width, a.stride_out);
    if (a.sum == GRAPH_MAX && a.v != NULL) MIRROR(m, &a, best, IN, I32, n * width);
    MIRROR(m, &a, row_sum, IN, F32, n * heads);
    MIRROR(m, &a, weights, IN, F32, a.g.n_edges * heads);
    MIRROR_ROWS(m, &a, dout, IN, ACT_FACTOR, n, width, a.stride_out);
    MIRROR(m, &a, dweights, IN, F32, a.g.n_edges * heads);
    MIRROR_ROWS(m, &a, dq, OUT, ACT, n, qk, a.stride_q);
    MIRROR_ROWS(m, &a, dk, OUT, ACT, n_columns, qk, a.stride_k);
    MIRROR_ROWS(m, &a, dv, OUT, ACT, n_columns, width, a.stride_v);
    MIRROR(m, &a, dleft, OUT, F32, n * heads);
    MIRROR(m, &a, dright, OUT, F32, n_columns * heads);
    MIRROR(m, &a, dbias, OUT, F32, a.g.n_edges * a.bias_heads);
    RUN(m, graph_attn_bwd, &a);
}

static void mirror_sparse(mirror *m, sparse_rows *r) {
    if (r->begin == NULL) return;
    int32_t n = r->begin[r->n];
    MIRROR(m, r, begin, IN, I32, r->n + 1);
    MIRROR(m, r, index, IN, I32, n);
    MIRROR(m, r, weight, IN, F32, n);
}

status mirror_content_fwd(backend *be, const content_args *args) {
    mirror *m = mirror_of(be);
    content_args a = *args;
    mirror_begin(m);
    mirror_sparse(m, &a.values);
    MIRROR(m, &a, vector, IN, F32, a.n * a.n_vector);
    MIRROR(m, &a, has_own, IN, U8, a.n);
    MIRROR(m, &a, own, IN, F32, a.n * a.dim);
    MIRROR(m, &a, table, IN, F32, args->items.n * a.dim);
    MIRROR(m, &a, w, IN, F32, a.n_vector * a.dim);
    MIRROR(m, &a, y, OUT, F32, a.n * a.dim);
    RUN(m, content_fwd, &a);
}

status mirror_content_bwd(backend *be, const content_args *args) {
    mirror *m = mirror_of(be);
    content_args a = *args;
    mirror_begin(m);
    mirror_sparse(m, &a.pieces);
    mirror_sparse(m, &a.items);
    MIRROR(m, &a, vector, IN, F32, a.n * a.n_vector);
    MIRROR(m, &a, has_own, IN, U8, a.n);
    MIRROR(m, &a, sums, OUT, F32, args->pieces.n * a.dim);
    MIRROR(m, &a, dy, BOTH, F32, a.n * a.dim);
    MIRROR(m, &a, dtable, BOTH, F32, args->items.n * a.dim);
    MIRROR(m, &a, dw, BOTH, F32, a.n_vector * a.dim);
    RUN(m, content_bwd, &a);
}

status mirror_negatives(backend *be, const negatives_args *args) {
    mirror *m = mirror_of(be);
    negatives_args a = *args;
    mirror_begin(m);
    MIRROR(m, &a, pool, IN, I32, a.n_pool);
    MIRROR(m, &a, step, IN, I32, 1);
    MIRROR(m, &a, user, IN, I32, a.n);
    MIRROR(m, &a, position, IN, I32, a.n);
    MIRROR(m, &a, index, OUT, I32, a.n * a.n_negatives);
    RUN(m, negatives, &a);
}

size_t mirror_sampled_softmax_scratch(backend *be, int64_t max_n, int32_t n_negatives, int32_t dim,
                                      int32_t n_rows) {
    backend *below = mirror_of(be)->below;
    return below->ops->sampled_softmax_scratch(below, max_n, n_negatives, dim, n_rows);
}

status mirror_sampled_softmax(backend *be, const sampled_softmax_args *args) {
    mirror *m = mirror_of(be);
    sampled_softmax_args a = *args;
    int64_t scratch =
        (int64_t)mirror_sampled_softmax_scratch(be, a.n, a.n_negatives, a.dim, a.n_rows);
    mirror_begin(m);
    MIRROR(m, &a, query, IN, ACT, a.n * a.dim);
    MIRROR(m, &a, table, IN, F32, (int64_t)a.n_rows * a.dim);
    MIRROR(m, &a, row_id, IN, I32, a.n_rows);
    MIRROR(m, &a, positive, IN, I32, a.n);
    MIRROR(m, &a, negative, IN, I32, a.n * a.n_negatives);
    MIRROR(m, &a, log_q, IN, F32, a.n_rows);
    MIRROR(m, &a, grad_scale, IN, F32, 1);
    MIRROR(m, &a, row_loss, OUT, F32, a.n);
    MIRROR(m, &a, loss, BOTH, F64, 1);
    MIRROR(m, &a, dtable, a.dquery != NULL ? BOTH : IN, F32, (int64_t)a.n_rows * a.dim);
    MIRROR(m, &a, dquery, OUT, ACT, a.n * a.dim);
    MIRROR(m, &a, scratch, LOOSE, RAW, scratch);
    RUN(m, sampled_softmax, &a);
}

size_t mirror_full_softmax_scratch(backend *be, int64_t max_n, int32_t n_items, int32_t dim) {
    backend *below = mirror_of(be)->below;
    return below->ops->full_softmax_scratch(below, max_n, n_items, dim);
}

status mirror_full_softmax(backend *be, const full_softmax_args *args) {
    mirror *m = mirror_of(be);
    full_softmax_args a = *args;
    int64_t scratch = (int64_t)mirror_full_softmax_scratch(be, a.n, a.n_items, a.dim);
    mirror_begin(m);
    MIRROR(m, &a, query, IN, ACT, a.n * a.dim);
    MIRROR(m, &a, table, IN, F32, (int64_t)a.n_rows * a.dim);
    MIRROR(m, &a, item, IN, I32, a.n_items);
    MIRROR(m, &a, log_q, IN, F32, a.n_items);
    MIRROR(m, &a, log_count, IN, F32, a.n_items);
    MIRROR(m, &a, positive, IN, I32, a.n);
    MIRROR(m, &a, grad_scale, IN, F32, 1);
    MIRROR(m, &a, row_loss, OUT, F32, a.n);
    MIRROR(m, &a, loss, BOTH, F64, 1);
    MIRROR(m, &a, dtable, a.dquery != NULL ? BOTH : IN, F32, (int64_t)a.n_rows * a.dim);
    MIRROR(m, &a, dquery, OUT, ACT, a.n * a.dim);
    MIRROR(m, &a, scratch, LOOSE, RAW, scratch);
    RUN(m, full_softmax, &a);
}

status mirror_logits_loss(backend *be, const logits_loss_args *args) {
    mirror *m = mirror_of(be);
    logits_loss_args a = *args;
    int64_t n = a.n * a.n_columns;
    mirror_begin(m);
    MIRROR(m, &a, logits, IN, ACT, n);
    MIRROR(m, &a, label, IN, I32, a.n);
    MIRROR(m, &a, grad_scale, IN, F32, 1);
    MIRROR(m, &a, losses, OUT, F32, a.is_bits ? n : a.n);
    MIRROR(m, &a, loss, BOTH, F64, 1);
    MIRROR(m, &a, dlogits, OUT, ACT, n);
    RUN(m, logits_loss, &a);
}

status mirror_mark(backend *be, int64_t n, const int32_t *index, int32_t offset, uint8_t *marks) {
    mirror *m = mirror_of(be);
    struct {
        const int32_t *index;
        uint8_t *marks;
    } a = {index, marks};
    int64_t rows = rows_used(index, n);
    mirror_begin(m);
    MIRROR(m, &a, index, IN, I32, n);
    MIRROR(m, &a, marks, BOTH, U8, rows > 0 ? rows + offset : 0);
    RUN(m, mark, n, a.index, offset, a.marks);
}

/* Of a table of n rows. */
static void add_late(mirror *m, late_rows *late, int64_t n) {
    const int64_t n_steps = LATE_STEPS + 1;
    MIRROR(m, late, last, BOTH, F32, n);
    MIRROR(m, late, rules, BOTH, F32, n_steps * LATE_RULE);
    MIRROR(m, late, sums, BOTH, U8, n_steps * (int64_t)sizeof *late->sums);
    MIRROR(m, late, missed, BOTH, U8, n_steps * (int64_t)sizeof *late->missed);
}

status mirror_list_rows(backend *be, const list_rows_args *args) {
    mirror *m = mirror_of(be);
    list_rows_args a = *args;
    int64_t n = 0;
    mirror_begin(m);
    for (int k = 0; k < a.n_uses; k++) {
        n += a.use[k].n;
        MIRROR(m, &a.use[k], index, BOTH, I32, a.use[k].n);
    }
    MIRROR(m, &a, rows, OUT, I32, n);
    MIRROR(m, &a, n, OUT, I32, 1);
    RUN(m, list_rows, &a);
}

status mirror_read_rows(backend *be, const read_rows_args *args) {
    mirror *m = mirror_of(be);
    read_rows_args a = *args;
    int64_t n = a.rows != NULL ? rows_used(a.rows, a.n) : a.n;
    mirror_begin(m);
    MIRROR(m, &a, rows, IN, I32, a.n);
    MIRROR(m, &a, w, a.y != NULL ? IN : BOTH, F32, n * a.dim);
    MIRROR(m, &a, m, a.y != NULL ? IN : BOTH, F32, n * a.dim);
    MIRROR(m, &a, v, a.y != NULL ? IN : BOTH, F32, n * a.dim);
    add_late(m, &a.late, n);
    MIRROR(m, &a, y, OUT, F32, a.n * a.dim);
    RUN(m, read_rows, &a);
}

status mirror_late_step(backend *be, const late_step_args *args) {
    mirror *m = mirror_of(be);
    late_step_args a = *args;
    mirror_begin(m);
    add_late(m, &a.late, 0);
    MIRROR(m, &a, grad_scale, IN, F32, 1);
    RUN(m, late_step, &a);
}

static void add_update(mirror *m, update_args *a) {
    int64_t rows = a->dim > 0 ? a->n / a->dim : 0, n = a->n;
    if (a->rows != NULL) {
        MIRROR(m, a, grad, IN, F32, n);
        int64_t n_rows = rows;
        rows = rows_used(a->rows, n_rows);
        n = rows * a->dim;
        MIRROR(m, a, rows, IN, I32, n_rows);
        add_late(m, &a->late, rows);
    } else {
        MIRROR(m, a, grad, BOTH, F32, n);
    }
    if (a->kind != OPT_ADAMW) a->v = NULL;
    if (a->kind == OPT_SGD) a->m = NULL;
    MIRROR(m, a, marks, BOTH, U8, rows);
    MIRROR(m, a, w, BOTH, F32, n);
    MIRROR(m, a, m, BOTH, F32, a->kind == OPT_ROWWISE_ADAGRAD ? rows : n);
    MIRROR(m, a, v, BOTH, F32, n);
    MIRROR(m, a, grad_scale, IN, F32, 1);
}

static status run_updates(mirror *m, update_args *a, int n) {
    mirror_begin(m);
    for (int i = 0; i < n; i++)
        add_update(m, &a[i]);
    RUN(m, update, a, n);
}

status mirror_update(backend *be, const update_args *args, int n) {
    update_args *a;
    TRY(MEM_NEW(&a, (size_t)n));
    if (n > 0) memcpy(a, args, (size_t)n * sizeof *a);
    status st = run_updates(mirror_of(be), a, n);
    mem_free(a);
    return st;
}

static status run_averages(mirror *m, average_args *a, int n, float decay) {
    mirror_begin(m);
    for (int i = 0; i < n; i++) {
        MIRROR(m, &a[i], w, IN, F32, a[i].n);
        MIRROR(m, &a[i], average, BOTH, F32, a[i].n);
    }
    RUN(m, average, a, n, decay);
}

status mirror_average(backend *be, const average_args *args, int n, float decay) {
    average_args *a;
    TRY(MEM_NEW(&a, (size_t)n));
    if (n > 0) memcpy(a, args, (size_t)n * sizeof *a);
    status st = run_averages(mirror_of(be), a, n, decay);
    mem_free(a);
    return st;
}

status mirror_grad_factor(backend *be, const grad_factor_args *args) {
    mirror *m = mirror_of(be);
    grad_factor_args a = *args;
    mirror_begin(m);
    MIRROR(m, &a, sum, IN, F64, 1);
    MIRROR(m, &a, factor, OUT, F32, 1);
    MIRROR(m, &a, norm, OUT, F64, 1);
    RUN(m, grad_factor, &a);
}

status mirror_sum_squares(backend *be, int64_t n, const float *grad, double *out) {
    mirror *m = mirror_of(be);
    struct {
        const float *grad;
        double *out;
    } a = {grad, out};
    mirror_begin(m);
    MIRROR(m, &a, grad, IN, F32, n);
    MIRROR(m, &a, out, BOTH, F64, 1);
    RUN(m, sum_squares, n, a.grad, a.out);
}

/* Ranks and best rows are host memory on every backend: they are passed on unchanged. */
status mirror_rank(backend *be, const rank_args *args) {
    mirror *m = mirror_of(be);
    rank_args a = *args;
    if (a.seen_offsets == NULL) a.seen = NULL;
    mirror_begin(m);
    MIRROR(m, &a, query, IN, ACT_FACTOR, (int64_t)a.n_queries * a.dim);
    MIRROR(m, &a, corpus, IN, FACTOR, (int64_t)a.n_corpus * a.dim);
    MIRROR(m, &a, corpus_act, IN, ACT_FACTOR, (int64_t)a.n_corpus * a.dim);
    MIRROR(m, &a, seen, IN, I32, a.seen != NULL ? a.seen_offsets[a.n_queries] : 0);
    MIRROR(m, &a, seen_offsets, IN, I32, a.n_queries + 1);
    MIRROR(m, &a, target, IN, I32, a.n_queries);
    RUN(m, rank, &a);
}
