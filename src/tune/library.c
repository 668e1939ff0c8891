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

bool library_fits(const target *t, const chain *c, int first, int last, library_choice choice) {
    call what;
    if (t->be == NULL || choice == GENERATED || !match(c, first, last, &what)) return false;
    if (choice == LIBRARY) return true;
    return what.f == EPILOGUE_GELU && t->is_cuda && t->act != ACT_F32;
}

int library_ranks(const target *t, const chain *c, int first, int last, library_choice choice) {
    call what;
    if (!library_fits(t, c, first, last, choice)) return 0;
    return t->is_cuda && match(c, first, last, &what) && !what.is_norm ? LIBRARY_RANKS : 1;
}

int library_bias(const chain *c, int op) {
    call what;
    int last = op + 1 < CHAIN_OPS && match(c, op, op + 1, &what) ? op + 1 : op;
    return match(c, op, last, &what) && !what.is_norm ? what.bias : -1;
}

static linear_args product_of(const chain *c, const chain_shape *shape, int op, void *packed) {
    return (linear_args){.n = shape->n_tokens,
                         .n_in = chain_columns(shape, c->tensor[c->op[op].in[0]].width),
                         .n_out = chain_columns(shape, c->tensor[c->op[op].out[0]].width),
                         .is_transposed = true,
                         .packed = packed};
}

status library_pack(library *l, target *t, const chain *c, const chain_shape *shape, int op,
                    const float *w, const float *bias) {
    linear_args a = product_of(c, shape, op, NULL);
    size_t bytes = t->be->ops->linear_packed_bytes(t->be, a.n_in, a.n_out);
    TRY(t->alloc(t, &l->packed[op], bytes));
    a.packed = l->packed[op];
    a.w = w;
    a.bias = bias;
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
static status launch_product_norm(target *t, const linear_args *product,
                                  const residual_norm_args *norm) {
    linear_norm_args a = {*product, *norm};
    a.linear.x = norm->x;
    a.linear.y = norm->y;
    a.linear.rank = LINEAR_FASTEST;
    a.norm.x = norm->y;
    return t->be->ops->linear_norm(t->be, &a);
}

status library_launch(const library *l, target *t, const layer_batch *b, const kernel_args *args,
                      int first, int last, const tile_params *choice) {
    call what;
    if (!match(b->c, first, last, &what))
        return fail(ERR_UNSUPPORTED, "operators %d-%d are no op of the backend", first + 1,
                    last + 1);
    residual_norm_args norm = norm_of(b, args, &what);
    if (!what.is_product) return t->be->ops->residual_norm(t->be, &norm);
    linear_args a = product_of(b->c, &b->shape, first, l->packed[first]);
    if (what.is_norm) return launch_product_norm(t, &a, &norm);
    a.x = tensor_of(args, what.x);
    a.bias = tensor_of(args, what.bias);
    a.residual = tensor_of(args, what.residual);
    a.f = choice->library == LIBRARY_FAST_GELU ? EPILOGUE_GELU_TANH : what.f;
    a.y = args->tensor[what.y];
    a.rank = choice->rank < LIBRARY_RANKS - 1 ? choice->rank : LINEAR_FASTEST;
    return t->be->ops->linear_fwd(t->be, &a);
}
