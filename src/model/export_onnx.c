#include "format/onnx.h"
#include "model/export_file.h"
#include "model/model_int.h"
#include "model/session.h"

/* The parts of the graph, in the order in which they compute: the history, which leaves ids out
 * that the model does not know, and keeps the newest events that it can read; the tokens; the
 * layers, each with the formula of layer.h over padded sequences; the user's embedding; the search.
 *
 * Attention is causal, so that no token of a history sees those that pad it. */

typedef struct net {
    onnx_graph *g;
    const session *s;
    const model *m;
    onnx_type id_type;
    onnx_value table;               /* (V + 1, E) */
    onnx_value known;               /* (batch, n): rows of the table, 0: none, or padding */
    onnx_value order, len;          /* (batch, events) into n, (batch, 1): tokens */
    onnx_value has_user;            /* (batch, 1): bool, whether anything is known of the user */
    onnx_value at;                  /* (N): 0, 1, ... */
    onnx_value sees, scale;         /* (N, N): bool, and the factor of a weight or 0 */
    onnx_value position_at, bucket; /* (N, N), (batch N N): cells of the bias, */
    onnx_value pairs;               /* and the shape (batch, 1, N, N) */
} net;

#define OP(...)       OPS(1, (onnx_value[]){NULL}, __VA_ARGS__)
#define OPS(n, ...)   onnx_op(x->g, n, __VA_ARGS__, (onnx_value)NULL)
#define LIST_OF(n, v) onnx_numbers(x->g, ONNX_I64, (int64_t)(n), v, (n) * sizeof(int64_t))
#define LIST(...)                                                                                  \
    LIST_OF(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t), ((int64_t[]){__VA_ARGS__}))

static onnx_value whole(const net *x, int64_t value) {
    return onnx_numbers(x->g, ONNX_I64, -1, &value, sizeof value);
}

static onnx_value number(const net *x, float value) {
    return onnx_numbers(x->g, ONNX_F32, -1, &value, sizeof value);
}

static onnx_value weights(const net *x, const param *p) {
    return onnx_weights(x->g, p->name, p->n_dims < 2 ? 1 : 2, p->shape, p->value);
}

static onnx_value silu(const net *x, onnx_value v) {
    return OP("Mul", v, OP("Sigmoid", v));
}

static onnx_value product(const net *x, onnx_value v, onnx_value w, const param *bias) {
    onnx_value y = OP("MatMul", v, w);
    return bias != NULL ? OP("Add", y, weights(x, bias)) : y;
}

/* Weights stored (out, in). */
static onnx_value linear(const net *x, onnx_value v, const param *w, const param *bias) {
    return product(x, v, OP("Transpose", weights(x, w)), bias);
}

static onnx_value norm(const net *x, onnx_value v, int64_t dim, float eps, const param *w,
                       const param *b) {
    char op[64] = "LayerNormalization epsilon=";
    float_text(op + strlen(op), eps);
    onnx_value scale = w != NULL ? weights(x, w) : OP("Expand", number(x, 1), LIST(dim));
    return OP(op, v, scale, b != NULL ? weights(x, b) : NULL);
}

static onnx_value rms_norm(const net *x, onnx_value v, float eps) {
    onnx_value mean = OP("ReduceMean axes=[-1]", OP("Mul", v, v));
    return OP("Div", v, OP("Sqrt", OP("Add", mean, number(x, eps))));
}

static onnx_value l2_norm(const net *x, onnx_value v, float eps) {
    return OP("Div", v, OP("Max", OP("ReduceL2 axes=[-1]", v), number(x, eps)));
}

/* (batch, N, H D) to (batch, H, N, D), and back. */
static onnx_value heads(const net *x, onnx_value v, int64_t n_heads) {
    return OP("Transpose perm=[0,2,1,3]", OP("Reshape", v, LIST(0, 0, n_heads, -1)));
}

static onnx_value join_heads(const net *x, onnx_value v) {
    return OP("Reshape", OP("Transpose perm=[0,2,1,3]", v), LIST(0, 0, -1));
}

/* q . k of all pairs: (batch, H, N, N). */
static onnx_value scores(const net *x, onnx_value q, onnx_value k, int64_t n_heads, float alpha) {
    onnx_value keys = OP("Transpose perm=[0,1,3,2]", heads(x, k, n_heads));
    onnx_value y = OP("MatMul", heads(x, q, n_heads), keys);
    return alpha != 1 ? OP("Mul", y, number(x, alpha)) : y;
}

/* The last dimension in three or four parts. */
static void cut(const net *x, onnx_value v, size_t n, const int64_t *sizes, onnx_value *out) {
    OPS(n, out, "Split axis=-1", v, LIST_OF(n, sizes));
}

/* Rows by keys, which are no longer needed; 0 for all others. */
static onnx_value put_rows(const net *x, pb *keys, pb *rows, onnx_value given, onnx_type type) {
    if (type == ONNX_TEXT) onnx_set_list(x->g, "keys_strings", ONNX_TEXTS, keys);
    if (type == ONNX_I64) onnx_set_list(x->g, "keys_int64s", ONNX_INTS, keys);
    onnx_set_list(x->g, "values_int64s", ONNX_INTS, rows);
    buf_fini(&keys->text);
    buf_fini(&rows->text);
    return OP("LabelEncoder default_int64=0", given);
}

/* Rows of the table by id, and ids by row.  What is not known has row 0, which is no item's. */
static onnx_value put_ids(const net *x) {
    const seq_file *items = x->s->data;
    size_t n = (size_t)items->n_items + 1;
    bool is_text = items->has_text_items;
    pb keys = {0}, ids = {0}, rows = {0};
    buf name = {0};
    if (is_text) pb_put(&ids, "*s", ONNX_DATA_TEXTS, "");
    if (!is_text) pb_bytes(&ids, ONNX_DATA, items->item_id, n * sizeof *items->item_id);
    for (uint32_t i = 1; i < n && keys.st == OK; i++) {
        pb_int(&rows, ONNX_INTS, i);
        if (!is_text) pb_int(&keys, ONNX_INTS, items->item_id[i]);
        if (!is_text) continue;
        keys.st = seq_item_name(items, i, &name);
        pb_bytes(&keys, ONNX_TEXTS, buf_str(&name), name.n_bytes);
        pb_bytes(&ids, ONNX_DATA_TEXTS, buf_str(&name), name.n_bytes);
    }
    onnx_constant(x->g, "ids", x->id_type, (int64_t)n, &ids);
    buf_fini(&name);
    buf_fini(&ids.text);
    return put_rows(x, &keys, &rows,
                    onnx_port(x->g, ONNX_INPUT, "item_ids", x->id_type, "batch,n",
                              "Ids of each user's events, oldest first, padded at the end."),
                    x->id_type);
}

/* The newest known events, first: their places sort above those that are left out. */
static void put_history(net *x) {
    onnx_value zero = whole(x, 0), step = whole(x, 1), most = whole(x, x->s->max_history);
    onnx_value rows = put_ids(x), n = OP("Gather", OP("Shape", rows), step),
               order[2] = {NULL, NULL};
    onnx_value len =
        onnx_port(x->g, ONNX_INPUT, "lengths", ONNX_I64, "batch", "Events of each user.");
    onnx_value at = OP("Range", zero, n, step);
    x->table = weights(x, x->m->input.item);
    x->known = OP("Where", OP("Less", at, OP("Unsqueeze", len, LIST(1))), rows, zero);
    onnx_value is_known = OP("Greater", x->known, zero);
    onnx_value count = OP("CumSum", OP("Cast to=7", is_known), step);
    onnx_value total = OP("ReduceMax axes=[1]", count);
    onnx_value is_new = OP("Greater", count, OP("Sub", total, most));
    onnx_value key = OP("Where", OP("And", is_known, is_new), OP("Sub", n, at), OP("Neg", at));
    onnx_value window = OP("Min", n, most);
    OPS(2, order, "TopK", key, OP("Unsqueeze", window, LIST(0)));
    x->order = order[1];
    x->len = OP("Min", total, most);
    x->has_user = OP("Greater", x->len, zero);
    x->at = OP("Range", zero, window, step);
}

/* The bucket of the time from each key to each query, whose time is that of the event after it; as
 * ops/time_bucket.c defines it. */
static void put_buckets(net *x) {
    onnx_value given = onnx_port(x->g, ONNX_INPUT, "timestamps", ONNX_I64, "batch,n",
                                 "Times of the events in seconds since 1970.");
    onnx_value time = OP("GatherElements axis=1", given, x->order);
    int32_t n_context = x->m->input.config.n_context;
    if (n_context > 0) { /* features have the time of the first event */
        onnx_value event = OP("Max", OP("Sub", x->at, whole(x, n_context)), whole(x, 0));
        time = OP("Gather axis=1", time, event);
    }
    onnx_value last = OP("Max", OP("Sub", x->len, whole(x, 1)), whole(x, 0));
    onnx_value query =
        OP("GatherElements axis=1", time, OP("Min", OP("Add", x->at, whole(x, 1)), last));
    onnx_value seconds = OP("Sub", OP("Unsqueeze", query, LIST(2)), OP("Unsqueeze", time, LIST(1)));
    onnx_value distance = OP("Cast to=1", OP("Max", OP("Abs", seconds), whole(x, 1)));
    onnx_value logarithm = OP("Cast to=1", OP("Log", OP("Cast to=11", distance)));
    onnx_value bucket = OP("Cast to=7", OP("Div", logarithm, number(x, 0.301f)));
    bucket = OP("Unsqueeze", OP("Min", bucket, whole(x, ATTN_TIME_BUCKETS)), LIST(1));
    x->pairs = OP("Shape", bucket);
    x->bucket = OP("Reshape", bucket, LIST(-1)); /* GatherElements is faster than Gather */
}

static onnx_value add_actions(const net *x, onnx_value y) {
    const input_config *c = &x->m->input.config;
    onnx_value given = onnx_port(x->g, ONNX_INPUT, "actions", ONNX_I64, "batch,n",
                                 "Actions of the events as the data store them; -1: not known.");
    onnx_value none = whole(x, c->n_actions), action = OP("GatherElements axis=1", given, x->order);
    onnx_value has = OP("And", OP("GreaterOrEqual", action, whole(x, 0)), OP("Less", action, none));
    onnx_value blank = OP("Expand", number(x, 0), LIST(1, c->dim));
    onnx_value rows = OP("Concat axis=0", weights(x, x->m->input.action), blank);
    return OP("Add", y, OP("Gather", rows, OP("Where", has, action, none)));
}

/* The token of a feature of the user, (batch, 1, E), or narrower before the MLP.  Row 0 is that of
 * values that the model does not know, above all of an empty text. */
static onnx_value put_feature(net *x, int32_t f) {
    const context_feature *feature = &x->s->data->context[f];
    const text_column *v = &feature->values;
    pb keys = {0}, rows = {0};
    char text[256];
    const char *name;
    int n = snprintf(text, sizeof text, "feature_%.200s", feature->name);
    keys.st = arena_copy_text(&x->g->names, text, (size_t)n, &name);
    for (uint64_t i = 0; i < v->n; i++) {
        pb_bytes(&keys, ONNX_TEXTS, v->bytes + v->offsets[i], v->offsets[i + 1] - v->offsets[i]);
        pb_int(&rows, ONNX_INTS, (int64_t)i);
    }
    onnx_value row =
        put_rows(x, &keys, &rows,
                 onnx_port(x->g, ONNX_INPUT, name != NULL ? name : "", ONNX_TEXT, "batch,1",
                           "A feature of each user; an empty text: not known."),
                 ONNX_TEXT);
    onnx_value is_known = OP("Greater", row, whole(x, 0));
    if (x->m->plan.has_first_loss) x->has_user = OP("Or", x->has_user, is_known);
    return OP("Gather", weights(x, x->m->input.context[f]), row);
}

/* (batch, F, E) */
static onnx_value put_features(net *x) {
    const mlp *m = &x->m->input.context_mlp;
    onnx_value y = put_feature(x, 0);
    for (int32_t f = 1; f < x->m->input.config.n_context; f++)
        y = OP("Concat axis=1", y, put_feature(x, f));
    for (int i = 0; i < m->config.n_layers; i++)
        y = linear(x, i > 0 ? OP("Relu", y) : y, m->w[i], m->b[i]);
    return y;
}

/* (batch, N, E) */
static onnx_value put_tokens(net *x) {
    const input *in = &x->m->input;
    const input_config *c = &in->config;
    onnx_value scale = number(x, sqrtf((float)c->dim));
    onnx_value y = OP("Gather", x->table, OP("GatherElements axis=1", x->known, x->order));
    y = OP("Mul", y, scale);
    if (c->adds_actions) y = add_actions(x, y);
    if (c->n_context > 0) {
        y = OP("Concat axis=1", OP("Mul", put_features(x), scale), y);
        x->len = OP("Add", x->len, whole(x, c->n_context));
        onnx_value step = whole(x, 1);
        x->at = OP("Range", whole(x, 0), OP("Gather", OP("Shape", y), step), step);
    }
    onnx_value place = OP("Min", x->at, whole(x, c->n_places - 1));
    return OP("Add", y, OP("Gather", weights(x, in->position), place));
}

/* FuXi's rows have three channels a head: by position, by time, by q and k.  Of the others alpha is
 * 1 where there is a bias. */
static onnx_value put_attention(const net *x, const hstu_layer *l, const onnx_value *vqk) {
    const hstu_layer_config *c = &l->config;
    onnx_value v = heads(x, vqk[0], c->n_heads), time = NULL, position = NULL;
    onnx_value score = scores(x, vqk[1], vqk[2], c->n_heads, c->alpha);
    if (c->has_bias) {
        time = OP("Reshape", OP("GatherElements", weights(x, l->time_w), x->bucket), x->pairs);
        position = OP("Gather", weights(x, l->position_w), x->position_at);
        if (!c->is_fuxi) score = OP("Add", score, OP("Add", time, position));
    }
    onnx_value o = OP("MatMul", OP("Mul", silu(x, score), x->scale), v);
    if (!c->is_fuxi) return join_heads(x, o);
    onnx_value sees = OP("Cast to=1", x->sees), axis = LIST(3);
    position = OP("MatMul", OP("Mul", position, sees), v);
    time = OP("MatMul", OP("Mul", time, sees), v);
    o = OP("Concat axis=3", OP("Unsqueeze", position, axis), OP("Unsqueeze", time, axis),
           OP("Unsqueeze", o, axis));
    return OP("Reshape", OP("Transpose perm=[0,2,1,3,4]", o), LIST(0, 0, -1));
}

static onnx_value put_glu(const net *x, const glu_ffn *f, onnx_value v) {
    onnx_value gate = silu(x, linear(x, v, f->w1, NULL));
    return linear(x, OP("Mul", gate, linear(x, v, f->w3, NULL)), f->w2, NULL);
}

static onnx_value put_hstu(const net *x, const hstu_layer *l, onnx_value v) {
    const hstu_layer_config *c = &l->config;
    int64_t dim_v = (int64_t)c->n_heads * c->dim_v, qk = (int64_t)c->n_heads * c->dim_qk;
    int64_t gate = dim_v * (c->is_fuxi ? 3 : 1);
    onnx_value uvqk[4] = {0};
    onnx_value in =
        c->is_fuxi ? rms_norm(x, v, c->eps) : norm(x, v, c->dim, c->eps, l->in_weight, l->in_bias);
    onnx_value y = product(x, in, weights(x, l->uvqk), l->uvqk_bias);
    cut(x, c->has_silu ? silu(x, y) : y, 4, (int64_t[]){gate, dim_v, qk, qk}, uvqk);
    onnx_value o = put_attention(x, l, uvqk + 1);
    o = c->is_fuxi ? rms_norm(x, o, c->eps)
                   : norm(x, o, gate, c->eps, l->gate_weight, l->gate_bias);
    o = OP("Mul", uvqk[0], o);
    onnx_value out = c->is_proj_transposed ? linear(x, o, l->proj, l->proj_bias)
                                           : product(x, o, weights(x, l->proj), l->proj_bias);
    if (c->has_residual) out = OP("Add", out, v);
    if (c->dim_ffn == 0) return out;
    return OP("Add", out, put_glu(x, &l->ffn, rms_norm(x, out, c->eps)));
}

/* q, k, v: (batch, N, E) each. */
static onnx_value put_softmax(const net *x, const onnx_value *qkv, int64_t n_heads, int64_t dim) {
    onnx_value y = scores(x, qkv[0], qkv[1], n_heads, 1 / sqrtf((float)(dim / n_heads)));
    y = OP("Softmax", OP("Where", x->sees, y, number(x, -INFINITY)));
    return join_heads(x, OP("MatMul", y, heads(x, qkv[2], n_heads)));
}

static onnx_value gelu(const net *x, onnx_value v) {
    onnx_value erf = OP("Erf", OP("Mul", v, number(x, sqrtf(.5f))));
    return OP("Mul", OP("Mul", v, number(x, .5f)), OP("Add", erf, number(x, 1)));
}

static onnx_value put_sasrec(const net *x, const sasrec_layer *l, onnx_value v) {
    const sasrec_layer_config *c = &l->config;
    onnx_value w[3] = {0}, b[3] = {0}, qkv[3];
    int64_t parts[] = {c->dim, c->dim, c->dim};
    onnx_value normed = norm(x, v, c->dim, c->eps, NULL, NULL);
    cut(x, OP("Transpose", weights(x, l->in_proj)), 3, parts, w);
    cut(x, weights(x, l->in_proj_bias), 3, parts, b);
    for (int i = 0; i < 3; i++)
        qkv[i] = OP("Add", OP("MatMul", i == 0 ? normed : v, w[i]), b[i]);
    onnx_value o = put_softmax(x, qkv, c->n_heads, c->dim);
    o = OP("Add", normed, linear(x, o, l->out_proj, l->out_proj_bias));
    onnx_value z = norm(x, o, c->dim, c->eps, NULL, NULL);
    onnx_value y = linear(x, z, l->w1, l->b1);
    y = c->f == EPILOGUE_GELU ? gelu(x, y) : OP("Relu", y);
    return OP("Add", z, linear(x, y, l->w2, l->b2));
}

static onnx_value put_branch(const net *x, const ligr_layer *l, int which, onnx_value v,
                             onnx_value branch) {
    onnx_value gate = OP("Sigmoid", linear(x, v, l->gate[which], l->gate_bias[which]));
    return OP("Add", v, OP("Mul", gate, branch));
}

static onnx_value put_ligr(const net *x, const ligr_layer *l, onnx_value v) {
    const ligr_layer_config *c = &l->config;
    onnx_value qkv[3] = {0};
    onnx_value h = norm(x, v, c->dim, c->eps, l->norm[0], l->norm_bias[0]);
    cut(x, linear(x, h, l->in_proj, l->in_proj_bias), 3, (int64_t[]){c->dim, c->dim, c->dim}, qkv);
    onnx_value o = put_softmax(x, qkv, c->n_heads, c->dim);
    onnx_value z = put_branch(x, l, 0, v, linear(x, o, l->out_proj, l->out_proj_bias));
    h = norm(x, z, c->dim, c->eps, l->norm[1], l->norm_bias[1]);
    return put_branch(x, l, 1, z, put_glu(x, &l->ffn, h));
}

static onnx_value put_layers(net *x, onnx_value v) {
    const layer *l = x->m->layers, *end = l + x->m->n_layers;
    bool is_hstu = l < end && l->kind->keeps_pages;
    onnx_value apart = OP("Sub", x->at, OP("Unsqueeze", x->at, LIST(1)));
    x->sees = OP("LessOrEqual", apart, whole(x, 0));
    if (is_hstu) x->scale = OP("Mul", OP("Cast to=1", x->sees), number(x, l->hstu.config.scale));
    if (is_hstu) x->position_at = OP("Add", apart, whole(x, l->hstu.config.bias_len - 1));
    if (l < end && l->needs_times) put_buckets(x);
    for (; l < end; l++)
        v = is_hstu                         ? put_hstu(x, &l->hstu, v)
            : l->kind == &sasrec_layer_kind ? put_sasrec(x, &l->sasrec, v)
            : l->kind == &ligr_layer_kind   ? put_ligr(x, &l->ligr, v)
                                            : NULL;
    if (v == NULL) x->g->model.st = fail(ERR_UNSUPPORTED, "layers of this kind have no ONNX form");
    return v;
}

/* The last token, normalised; zeros where there is none. */
static onnx_value put_user(const net *x, onnx_value v) {
    const retrieval_head *h = &x->m->retrieval;
    char dims[32];
    onnx_value last = OP("Max", OP("Sub", x->len, whole(x, 1)), whole(x, 0));
    onnx_value token = OP("GatherND batch_dims=1", v, last), out = "user_embedding";
    onnx_value user =
        h->has_layer_norm ? norm(x, token, h->dim, h->eps, NULL, NULL) : l2_norm(x, token, h->eps);
    snprintf(dims, sizeof dims, "batch,%d", h->dim);
    onnx_port(x->g, ONNX_OUTPUT, out, ONNX_F32, dims,
              "What items are multiplied with; zeros for a user of whom nothing is known.");
    return OPS(1, &out, "Mul", user, OP("Cast to=1", x->has_user));
}

/* The best k items by their dot products, without those of the history unless keep_seen.  Row 0 is
 * no item: it always counts as seen. */
static void put_search(const net *x, onnx_value user) {
    const loss_config *loss = &x->m->retrieval.loss;
    onnx_value k = onnx_port(x->g, ONNX_INPUT, "k", ONNX_I64, "1", "How many items.");
    onnx_value keeps = onnx_port(x->g, ONNX_INPUT, "keep_seen", ONNX_BOOL, "1",
                                 "Whether items of the history may be listed.");
    onnx_value best[2] = {"top_scores", NULL}, ids = "top_ids";
    onnx_value items = loss->normalises_items ? l2_norm(x, x->table, loss->eps) : x->table;
    onnx_value found = OP("MatMul", user, OP("Transpose", items));
    onnx_value seen = OP("Where", keeps, whole(x, 0), x->known);
    seen = OP("Concat axis=1", seen, OP("Mul", x->len, whole(x, 0)));
    onnx_value never = OP("Expand", number(x, -INFINITY), OP("Shape", seen));
    found = OP("ScatterElements axis=1", found, seen, never);
    OPS(2, best, "TopK", found, OP("Min", k, LIST(loss->n_items)));
    OPS(1, &ids, "Gather", "ids", best[1]);
    onnx_port(x->g, ONNX_OUTPUT, ids, x->id_type, "batch,k", "Ids of the best items, best first.");
    onnx_port(x->g, ONNX_OUTPUT, best[0], ONNX_F32, "batch,k", "Their scores.");
}

status onnx_model_write(const session *s, const char *path, bool *is_apart) {
    const model *m = s->model;
    onnx_graph g = {0};
    net x = {.g = &g, .s = s, .m = m, .id_type = s->data->has_text_items ? ONNX_TEXT : ONNX_I64};
    const char *what = m->is_ranking                   ? "ranking models, which score candidates,"
                       : m->retrieval.loss.mol != NULL ? "mixtures of logits"
                       : m->dynamic.n_all > 0          ? "models with dynamic tables"
                                                       : NULL;
    if (what != NULL)
        return fail(ERR_UNSUPPORTED,
                    "%s have no ONNX form; use 'hstu serve', or --what weights, items or users",
                    what);
    onnx_init(&g);
    put_history(&x);
    put_search(&x, put_user(&x, put_layers(&x, put_tokens(&x))));
    status st = onnx_write(&g, path, is_apart);
    onnx_fini(&g);
    return st;
}
