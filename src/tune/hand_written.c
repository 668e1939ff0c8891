#include "tune/hand_written.h"

#include <math.h>

#include "base/mem.h"

static bool is_silu(const chain_problem *p) {
    return !p->c->is_softmax;
}

static status make_mask(hand_written *h, target *t, const chain_problem *p) {
    int32_t *lengths, n = p->shape.n_sequences;
    if (p->attend != ATTEND_BYTES || t->be == NULL) return OK;
    TRY(mask_batch_create(&h->mask, t->be, p->rule, n));
    TRY(MEM_NEW(&lengths, (size_t)n));
    for (int32_t b = 0; b < n; b++)
        lengths[b] = p->offsets[b + 1] - p->offsets[b];
    status st = mask_batch_set(h->mask, 0, n, lengths);
    mem_free(lengths);
    return st;
}

status hand_written_create(hand_written *h, target *t, const chain_problem *p) {
    size_t n_times = (size_t)p->shape.n_tokens * sizeof *h->times;
    size_t n_time_w = (ATTN_TIME_BUCKETS + 1) * sizeof *h->time_w;
    *h = (hand_written){0};
    if (!is_silu(p)) return make_mask(h, t, p);
    TRY(t->alloc(t, (void **)&h->time_w, n_time_w));
    TRY(t->alloc(t, (void **)&h->times, n_times));
    TRY(t->fill(t, h->time_w, 0, n_time_w));
    return t->fill(t, h->times, 0, n_times);
}

void hand_written_destroy(hand_written *h, target *t) {
    t->release_memory(t, h->time_w);
    t->release_memory(t, h->times);
    mask_batch_destroy(h->mask);
    *h = (hand_written){0};
}

bool hand_written_fits(const target *t, const chain_problem *p) {
    bool has_mask = !is_silu(p) || p->attend != ATTEND_BYTES;
    return t->be != NULL && has_mask && p->shape.dim_head <= PLAN_MAX_HEAD_DIM;
}

layer_batch hand_written_batch(const hand_written *h, const chain_problem *p) {
    layer_batch b = {.c = p->c, .shape = p->shape, .attend = p->attend, .eps = CHAIN_EPS};
    if (p->attend == ATTEND_CAUSAL) b.mask.rule.kind = MASK_CAUSAL;
    if (h->mask != NULL) b.mask = *mask_batch_view(h->mask);
    return b;
}

static const chain_op *op_of(const chain *c, op_kind kind) {
    int op = c->attention_first;
    while (c->op[op].kind != kind)
        op++;
    return &c->op[op];
}

static status launch_silu(const hand_written *h, backend *be, const layer_batch *p,
                          const kernel_args *args) {
    const chain *c = p->c;
    const chain_op *qk = op_of(c, OP_SCORES), *av = op_of(c, OP_WEIGHTED),
                   *bias = op_of(c, OP_SCALE_BIAS);
    if (p->attend == ATTEND_BYTES)
        return fail(
            ERR_UNSUPPORTED,
            "the hand-written HSTU attention takes the masks none and causal here; clear bit 0");
    attn_args a = {.n_sequences = p->shape.n_sequences,
                   .n_heads = p->shape.n_heads,
                   .dim_qk = p->shape.dim_head,
                   .dim_v = p->shape.dim_head,
                   .max_len_q = p->shape.max_len,
                   .max_len_k = p->shape.max_len,
                   .n_rows_q = p->shape.n_tokens,
                   .n_rows_k = p->shape.n_tokens,
                   .offsets_q = args->offsets,
                   .offsets_k = args->offsets,
                   .q = args->tensor[qk->in[0]],
                   .k = args->tensor[qk->in[1]],
                   .v = args->tensor[av->in[1]],
                   .stride_q = chain_stride(&c->tensor[qk->in[0]], &p->shape),
                   .stride_k = chain_stride(&c->tensor[qk->in[1]], &p->shape),
                   .stride_v = chain_stride(&c->tensor[av->in[1]], &p->shape),
                   .out = args->tensor[av->out[0]],
                   .stride_out = chain_dim(&p->shape),
                   .alpha = 1 / sqrtf((float)p->shape.dim_head),
                   .scale = 1 / (float)p->shape.max_len,
                   .window_left = -1,
                   .window_right = p->attend == ATTEND_CAUSAL ? 0 : -1,
                   .target_group = 1,
                   .bias = BIAS_TIME,
                   .position_w = args->tensor[bias->in[1]],
                   .time_w = h->time_w,
                   .bias_len = p->shape.max_len,
                   .query_time = h->times,
                   .key_time = h->times};
    return be->ops->attn_fwd(be, &a);
}

/* Heads [first, first + n) of a softmax attention; out is at stride_out. */
static status launch_softmax(backend *be, const layer_batch *p, const kernel_args *args, int first,
                             int n, void *out, int64_t stride_out) {
    const chain *c = p->c;
    const chain_op *qk = op_of(c, OP_SCORES), *pv = op_of(c, OP_WEIGHTED);
    size_t skip = (size_t)first * (size_t)p->shape.dim_head * act_bytes(be->act);
    const chain_tensor *tensor = c->tensor;
    softmax_attn_args a = {.n_sequences = p->shape.n_sequences,
                           .n_heads = n,
                           .dim = p->shape.dim_head,
                           .max_len = p->shape.max_len,
                           .n_rows = p->shape.n_tokens,
                           .offsets = args->offsets,
                           .q = (const char *)args->tensor[qk->in[0]] + skip,
                           .k = (const char *)args->tensor[qk->in[1]] + skip,
                           .v = (const char *)args->tensor[pv->in[1]] + skip,
                           .stride_q = chain_stride(&tensor[qk->in[0]], &p->shape),
                           .stride_k = chain_stride(&tensor[qk->in[1]], &p->shape),
                           .stride_v = chain_stride(&tensor[pv->in[1]], &p->shape),
                           .out = out,
                           .stride_out = stride_out,
                           .alpha = 1 / sqrtf((float)p->shape.dim_head),
                           .mask = p->mask};
    return be->ops->softmax_attn_fwd(be, &a);
}

status hand_written_launch(const hand_written *h, target *t, const layer_batch *p,
                           const kernel_args *args) {
    if (t->be == NULL)
        return fail(
            ERR_UNSUPPORTED,
            "the hand-written attention needs a build with CUDA; clear bit 0, or build with nvcc");
    if (!p->c->is_softmax) return launch_silu(h, t->be, p, args);
    const chain_tensor *out = &p->c->tensor[p->c->op[p->c->attention_last].out[0]];
    char *to = args->tensor[p->c->op[p->c->attention_last].out[0]];
    int d = p->shape.dim_head, n_heads = p->shape.n_heads;
    if (out->layout == LAYOUT_TOKENS)
        return launch_softmax(t->be, p, args, 0, n_heads, to, chain_dim(&p->shape));
    /* SASRec's merge is an operator of its own: a head at a time, each into its own rows. */
    for (int head = 0; head < n_heads; head++) {
        size_t skip = (size_t)head * (size_t)p->shape.n_tokens * (size_t)d * act_bytes(t->be->act);
        TRY(launch_softmax(t->be, p, args, head, 1, to + skip, d));
    }
    return OK;
}
