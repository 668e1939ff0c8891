#include "tune/library.h"

/* What operators first..last are as one op: tensors by number, -1 where there is none. */
typedef struct call {
    bool is_product, is_norm; /* both: a product, then the norm of the sum */
    int x, bias, residual, weight, shift, y;
    epilogue f;
} call;

/* The elementwise operators after a product, as far as its epilogue can have them. */
static bool join_product(const chain_op *op, call *to) {
    bool is_over = to->f != EPILOGUE_NONE || to->residual >= 0;
    switch (op->kind) {
    case OP_SPLIT:
        return true;
    case OP_BIAS:
    case OP_BIAS_SPLIT:
    case OP_BIAS_GELU:
    case OP_BIAS_RESIDUAL:
        if (is_over || to->bias >= 0) return false;
        to->bias = op->in[1];
        if (op->kind == OP_BIAS_GELU) to->f = EPILOGUE_GELU;
        if (op->kind == OP_BIAS_RESIDUAL) to->residual = op->in[2];
        return true;
    case OP_RESIDUAL:
        to->residual = op->in[1];
        return !is_over;
    case OP_SILU:
    case OP_RELU:
        to->f = op->kind == OP_SILU ? EPILOGUE_SILU : EPILOGUE_RELU;
        return !is_over;
    default:
        return false;
    }
}

static bool is_whole(const chain *c, int tensor) {
    const chain_tensor *t = &c->tensor[tensor];
    return t->layout == LAYOUT_TOKENS && (t->stride == 0 || t->stride == t->width);
}

static bool match_product(const chain *c, int first, int last, call *out) {
    const chain_op *op = &c->op[first];
    if (op->kind != OP_PRODUCT || !is_whole(c, op->in[0])) return false;
    out->is_product = true;
    out->x = op->in[0];
    out->bias = op->n_in > 2 ? op->in[2] : -1;
    for (int i = first + 1; i <= last; i++)
        if (!join_product(&c->op[i], out)) return false;
    return true;
}

static bool match_norm(const chain *c, int first, int last, call *out) {
    const chain_op *op = &c->op[last], *before = &c->op[first];
    if (op->kind != OP_NORM || op->n_in < 3 || last > first + 1) return false;
    bool is_sum = before->kind == OP_BIAS_RESIDUAL || before->kind == OP_RESIDUAL;
    if (last > first && !is_sum) return false;
    out->is_norm = true;
    out->x = before->in[0];
    out->weight = op->in[1];
    out->bias = op->in[2];
    if (last == first) return true;
    out->shift = before->kind == OP_BIAS_RESIDUAL ? before->in[1] : -1;
    out->residual = before->in[before->n_in - 1];
    return true;
}

/* A product whose bias and residual the norm adds. */
static bool match_product_norm(const chain *c, int first, int last, call *out) {
    if (last != first + 2 || c->op[first].kind != OP_PRODUCT || c->op[first].n_in > 2 ||
        !match_norm(c, first + 1, last, out))
        return false;
    out->is_product = true;
    out->x = c->op[first].in[0];
    return true;
}

static bool match(const chain *c, int first, int last, call *out) {
    static const call none = {
        .x = -1, .bias = -1, .residual = -1, .weight = -1, .shift = -1, .y = -1};
    bool (*const ways[])(const chain *, int, int, call *) = {match_product, match_norm,
                                                             match_product_norm};
    bool is_found = false;
    for (int i = 0; i < 3 && !is_found; i++) {
        *out = none;
        is_found = ways[i](c, first, last, out);
    }
    if (!is_found) return false;
    out->y = c->op[last].out[0];
    return is_whole(c, out->x) && (out->residual < 0 || is_whole(c, out->residual));
}

kernel_spec layer_kernel(const target *t, const layer_batch *b, int first, int last,
                         kernel_template from) {
    return (kernel_spec){.c = b->c,
                         .shape = b->shape,
                         .first = first,
                         .last = last,
                         .from = from,
                         .attend = b->attend,
                         .act = t->act,
                         .is_cuda = t->is_cuda,
                         .shared_limit = t->shared_limit,
                         .eps = b->eps};
}

bool library_fits(const target *t, const chain *c, int first, int last, library_choice choice) {
    call what;
    if (t->be == NULL || choice == GENERATED || !match(c, first, last, &what)) return false;
    if (choice == LIBRARY) return true;
    return what.f == EPILOGUE_GELU && t->is_cuda && t->act != ACT_F32;
}

/* How many ranks a choice has for operators first..last on this target; 0: they cannot be it. */
static int library_ranks(const target *t, const chain *c, int first, int last,
                         library_choice choice) {
    call what;
    if (!library_fits(t, c, first, last, choice)) return 0;
    return t->is_cuda && match(c, first, last, &what) && !what.is_norm ? LIBRARY_RANKS : 1;
}

status layer_tiles(const target *t, const kernel_spec *s, tile_params out[EMIT_MAX_TILES], int *n) {
    TRY(emit_tiles(s, out, n));
    for (library_choice choice = LIBRARY; choice <= LIBRARY_FAST_GELU; choice++) {
        int n_ranks = library_ranks(t, s->c, s->first, s->last, choice);
        for (int rank = 0; rank < n_ranks && *n < EMIT_MAX_TILES; rank++)
            out[(*n)++] = (tile_params){.library = (int16_t)choice, .rank = (int16_t)rank};
    }
    if (*n > 0) return OK;
    return fail(ERR_UNSUPPORTED,
                "operators %d-%d (%s) need more shared memory than a block of this GPU has",
                s->first + 1, s->last + 1, template_name(s->from));
}

int library_bias(const chain *c, int op) {
    call what;
    int last = op + 1 < CHAIN_OPS && match(c, op, op + 1, &what) ? op + 1 : op;
    return match(c, op, last, &what) && !what.is_norm ? what.bias : -1;
}

static linear_args product_of(const chain *c, const chain_shape *shape, int op) {
    return (linear_args){.n = shape->n_tokens,
                         .n_in = chain_columns(shape, c->tensor[c->op[op].in[0]].width),
                         .n_out = chain_columns(shape, c->tensor[c->op[op].out[0]].width),
                         .is_transposed = true};
}

status library_pack(library *l, target *t, const chain *c, const chain_shape *shape, int op,
                    const float *w, const float *bias) {
    linear_packed_args a = {.layer = product_of(c, shape, op)};
    size_t bytes = t->be->ops->linear_packed_bytes(t->be, a.layer.n_in, a.layer.n_out);
    TRY(t->alloc(t, &l->packed[op], bytes));
    a.packed = l->packed[op];
    a.layer.w = w;
    a.layer.bias = bias;
    return t->be->ops->linear_pack(t->be, &a);
}

void library_fini(library *l, target *t) {
    for (int op = 0; op < CHAIN_OPS; op++)
        t->release_memory(t, l->packed[op]);
    *l = (library){0};
}

static const void *tensor_of(const kernel_args *args, int tensor) {
    return tensor >= 0 ? args->tensor[tensor] : NULL;
}

static residual_norm_args norm_of(const layer_batch *b, const kernel_args *args, const call *what) {
    return (residual_norm_args){.n = b->shape.n_tokens,
                                .dim = chain_dim(&b->shape),
                                .eps = b->eps,
                                .x = tensor_of(args, what->x),
                                .shift = tensor_of(args, what->shift),
                                .residual = tensor_of(args, what->residual),
                                .weight = tensor_of(args, what->weight),
                                .bias = tensor_of(args, what->bias),
                                .y = args->tensor[what->y]};
}

/* The product's result is where the norm's will be: inside a kernel it has no memory of its own. */
static status launch_product_norm(target *t, const linear_packed_args *product,
                                  const residual_norm_args *norm) {
    linear_norm_args a = {*product, *norm};
    a.linear.layer.x = norm->x;
    a.linear.layer.y = norm->y;
    a.norm.x = norm->y;
    return t->be->ops->linear_norm(t->be, &a);
}

/* Operators first..last, which fit. */
static status launch_library(const library *l, target *t, const layer_batch *b,
                             const kernel_args *args, const kernel_spec *s) {
    call what;
    if (!match(b->c, s->first, s->last, &what))
        return fail(ERR_UNSUPPORTED, "operators %d-%d are not an op of the backend", s->first + 1,
                    s->last + 1);
    residual_norm_args norm = norm_of(b, args, &what);
    if (!what.is_product) return t->be->ops->residual_norm(t->be, &norm);
    linear_packed_args a = {.layer = product_of(b->c, &b->shape, s->first),
                            .packed = l->packed[s->first],
                            .kernel = LINEAR_FASTEST};
    if (what.is_norm) return launch_product_norm(t, &a, &norm);
    a.layer.x = tensor_of(args, what.x);
    a.layer.bias = tensor_of(args, what.bias);
    a.layer.residual = tensor_of(args, what.residual);
    a.layer.f = s->tile.library == LIBRARY_FAST_GELU ? EPILOGUE_GELU_TANH : what.f;
    a.layer.y = args->tensor[what.y];
    if (s->tile.rank < LIBRARY_RANKS - 1) a.kernel = s->tile.rank;
    return t->be->ops->linear_packed(t->be, &a);
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
    if (p->c->is_softmax) return make_mask(h, t, p);
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
    bool has_mask = p->c->is_softmax || p->attend != ATTEND_BYTES;
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
            "the hand-written HSTU attention supports the masks none and causal only; clear bit 0");
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

static status launch_hand_written(const hand_written *h, target *t, const layer_batch *p,
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

status layer_launch(const kernel_spec *s, const target_kernel *compiled, target *t,
                    const layer_batch *b, const kernel_args *args, const library *l,
                    const hand_written *h) {
    if (s->from == TEMPLATE_HAND_WRITTEN) return launch_hand_written(h, t, b, args);
    if (s->tile.library != GENERATED) return launch_library(l, t, b, args, s);
    return t->launch(t, compiled, args, emit_blocks(s, &b->shape));
}
