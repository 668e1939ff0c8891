#include "nn/flops.h"

/* The tokens of a user: batch_layout.h says how events become tokens. */
typedef struct user_tokens {
    double all, context, target, event; /* event: all but the contextual ones */
    double loss;                        /* positions with a loss */
} user_tokens;

static user_tokens count_tokens(const config *c, int32_t n_context, int32_t n_events,
                                int32_t n_targets) {
    user_tokens n = {.context = n_context};
    int32_t n_history = n_events - n_targets;
    if (c->task == TASK_RANKING) {
        bool has_candidates = c->data.max_candidates > 0;
        n.event = 2.0 * n_events;
        n.target = has_candidates ? 2.0 * n_targets : 0;
        n.loss = has_candidates ? n_targets : n_events;
    } else {
        n.event = n_history;
        n.loss = n_targets > 0 ? n_history : n_history > 0 ? n_history - 1 : 0;
    }
    n.all = n.context + n.event;
    return n;
}

static double product(double n, double k, double m) {
    return 2 * n * k * m;
}

static void add_layers(flops *f, const config *c, const user_tokens *n, bool is_training) {
    const config_network *w = &c->network;
    double layers = (double)w->n_layers, heads = (double)w->n_heads, dim = (double)w->hidden_size;
    double dim_qk = (double)w->dim_qk, dim_v = (double)w->dim_v;
    double passes = is_training ? 3 : 1, attn_passes = is_training ? 3.5 : 1;
    double seen = n->all - n->target, history = seen - n->context;
    double scores = n->all * seen - history * history / 2 + n->target;
    bool is_ligr = c->model == MODEL_ESASREC, is_fuxi = c->model == MODEL_FUXI;
    bool is_softmax = is_ligr || c->model == MODEL_SASREC;
    double channels = is_fuxi ? 3 : 1, n_ffn = is_ligr || is_fuxi ? 3 : is_softmax ? 2 : 0;
    double width = is_softmax ? 3 * dim : heads * (2 * dim_qk + (channels + 1) * dim_v);
    f->uvqk += passes * layers * product(n->all, dim, width);
    f->projection += passes * layers * product(n->all, channels * heads * dim_v, dim);
    f->projection += passes * layers * n_ffn * product(n->all, dim, (double)w->ffn_hidden_size);
    if (is_ligr) f->projection += passes * layers * 2 * product(n->all, dim, dim);
    f->attention += attn_passes * layers * 2 * heads * (dim_qk + channels * dim_v) * scores;
}

/* Two layers, from the width of `from` to the model's width and again: input.c. */
static double input_mlp(double n, int64_t from, int64_t dim) {
    return product(n, (double)from, (double)dim) + product(n, (double)dim, (double)dim);
}

static void add_input(flops *f, const config *c, const user_tokens *n, double passes) {
    const config_network *w = &c->network;
    if (c->task == TASK_RANKING && w->item_dim > 0)
        f->input += passes * input_mlp(n->event, w->item_dim, w->hidden_size);
    if (w->contextual_dim > 0)
        f->input += passes * input_mlp(n->context, w->contextual_dim, w->hidden_size);
}

static double count_head(const config *c, double n_loss) {
    const config_ranking *r = &c->ranking;
    double sum = 0, from = (double)c->network.hidden_size;
    int64_t n_negatives = c->retrieval.n_negatives;
    if (c->task == TASK_RETRIEVAL)
        return product(n_loss, from, 1 + (n_negatives > 0 ? (double)n_negatives : n_loss));
    for (size_t i = 0; i < r->head.n; i++) {
        sum += product(n_loss, from, (double)r->head.item[i]);
        from = (double)r->head.item[i];
    }
    return sum;
}

flops flops_of_batch(const config *c, int32_t n_context, const batch *b, bool is_training) {
    flops f = {0};
    double passes = is_training ? 3 : 1;
    for (int32_t u = 0; u < b->n_users; u++) {
        int32_t n_events = b->offsets[u + 1] - b->offsets[u];
        user_tokens n = count_tokens(c, n_context, n_events, b->n_targets[u]);
        add_layers(&f, c, &n, is_training);
        add_input(&f, c, &n, passes);
        f.n_tokens += (int64_t)n.all;
        f.n_loss += (int64_t)n.loss;
    }
    f.head = passes * count_head(c, (double)f.n_loss);
    return f;
}

double flops_layers(const flops *f) {
    return f->uvqk + f->attention + f->projection;
}
