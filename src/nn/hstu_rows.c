#include "nn/hstu_rows.h"

#include "ops/row_moves.h"

static int64_t heads(const hstu_layer_config *c) {
    return c->n_heads / c->sequence->size;
}

/* Columns of v, q and k of this rank's heads. */
static int64_t width(const hstu_layer_config *c) {
    return heads(c) * (c->dim_v + 2 * (int64_t)c->dim_qk);
}

static int64_t width_out(const hstu_layer_config *c) {
    return heads(c) * c->dim_v;
}

status rows_gather(comm *c, int64_t n, int64_t bytes, void *rows) {
    int64_t n_rows[HSTU_MAX_PARTS];
    for (int r = 0; r < c->size; r++)
        n_rows[r] = rows_first(n, r + 1, c->size) - rows_first(n, r, c->size);
    all_gather_args a = {.row_bytes = bytes,
                         .n_rows = n_rows,
                         .from = (char *)rows + rows_first(n, c->rank, c->size) * bytes,
                         .to = rows};
    return c->ops->all_gather(c, &a);
}

status hstu_rows_alloc(hstu_rows *r, const hstu_layer_config *c, const nn_room *room) {
    int64_t n = room->max_tokens, sent = rows_most(n, c->sequence) * c->sequence->size;
    TRY(nn_new_act(room->memory, &r->sent, sent, width(c)));
    TRY(nn_new_act(room->memory, &r->qkv, n, width(c)));
    TRY(nn_new_act(room->memory, &r->out, n, width_out(c)));
    return room->is_training ? nn_new_act(room->memory, &r->d_qkv, n, width(c)) : OK;
}

/* Rows of `columns` activations: from the packed ones of this rank's rows to all rows of its part,
 * or back. */
static status exchange(const hstu_layer_config *c, backend *be, int64_t n, int64_t columns,
                       const void *from, void *to, bool is_back) {
    comm *with = c->sequence;
    int64_t n_own, own[HSTU_MAX_PARTS], theirs[HSTU_MAX_PARTS];
    (void)rows_own(n, with, &n_own);
    for (int r = 0; r < with->size; r++) {
        own[r] = n_own;
        theirs[r] = rows_first(n, r + 1, with->size) - rows_first(n, r, with->size);
    }
    all_to_all_args a = {.row_bytes = columns * (int64_t)act_bytes(be->act),
                         .n_send = is_back ? theirs : own,
                         .n_receive = is_back ? own : theirs,
                         .from = from,
                         .to = to};
    return with->ops->all_to_all(with, &a);
}

/* v, q and k in rows of u, v, q and k. */
static head_parts parts_of_uvqk(const hstu_rows *r, const hstu_layer_config *c, backend *be,
                                int64_t n, const void *uvqk) {
    int64_t bytes = (int64_t)act_bytes(be->act), v = heads(c) * c->dim_v * bytes,
            qk = heads(c) * c->dim_qk * bytes, size = c->sequence->size;
    head_parts a = {.n_parts = c->sequence->size,
                    .n_blocks = 3,
                    .first = {v * size, 2 * v * size, (2 * v + qk) * size},
                    .width = {v, qk, qk},
                    .stride = 2 * (v + qk) * size,
                    .whole = (void *)uvqk,
                    .packed = r->sent};
    (void)rows_own(n, c->sequence, &a.n);
    return a;
}

/* The rows of the attention's result. */
static head_parts parts_of_out(const hstu_rows *r, const hstu_layer_config *c, backend *be,
                               int64_t n, const void *attn) {
    int64_t v = width_out(c) * (int64_t)act_bytes(be->act);
    head_parts a = {.n_parts = c->sequence->size,
                    .n_blocks = 1,
                    .width = {v},
                    .stride = v * c->sequence->size,
                    .whole = (void *)attn,
                    .packed = r->sent};
    (void)rows_own(n, c->sequence, &a.n);
    return a;
}

status hstu_rows_fetch(const hstu_rows *r, const hstu_layer_config *c, backend *be, int64_t n,
                       const void *uvqk) {
    head_parts a = parts_of_uvqk(r, c, be, n, uvqk);
    TRY(head_parts_pack(be, &a));
    return exchange(c, be, n, width(c), r->sent, r->qkv, false);
}

void hstu_rows_attn(const hstu_rows *r, const hstu_layer_config *c, backend *be, bool is_backward,
                    attn_args *a) {
    int64_t v = heads(c) * c->dim_v, qk = heads(c) * c->dim_qk;
    a->n_heads = (int32_t)heads(c);
    a->v = r->qkv;
    a->q = nn_act_at(be, r->qkv, v);
    a->k = nn_act_at(be, r->qkv, v + qk);
    a->stride_q = a->stride_k = a->stride_v = width(c);
    a->stride_out = v;
    a->out = is_backward ? NULL : r->out;
    if (!is_backward) return;
    a->dout = r->out;
    a->dv = r->d_qkv;
    a->dq = nn_act_at(be, r->d_qkv, v);
    a->dk = nn_act_at(be, r->d_qkv, v + qk);
}

status hstu_rows_give(const hstu_rows *r, const hstu_layer_config *c, backend *be, int64_t n,
                      void *attn) {
    head_parts a = parts_of_out(r, c, be, n, attn);
    TRY(exchange(c, be, n, width_out(c), r->out, r->sent, true));
    return head_parts_unpack(be, &a);
}

status hstu_rows_fetch_grad(const hstu_rows *r, const hstu_layer_config *c, backend *be, int64_t n,
                            const void *d_attn) {
    head_parts a = parts_of_out(r, c, be, n, d_attn);
    TRY(head_parts_pack(be, &a));
    return exchange(c, be, n, width_out(c), r->sent, r->out, false);
}

status hstu_rows_give_grad(const hstu_rows *r, const hstu_layer_config *c, backend *be, int64_t n,
                           void *d_uvqk) {
    head_parts a = parts_of_uvqk(r, c, be, n, d_uvqk);
    TRY(exchange(c, be, n, width(c), r->d_qkv, r->sent, true));
    return head_parts_unpack(be, &a);
}
