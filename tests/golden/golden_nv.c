/* NVIDIA's input, output selection and losses. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "golden.h"

enum { MAX_FEATURES = 8, MAX_EVENTS = 512, MAX_USERS = 16 };

/* A file of embeddings after lookup becomes a batch in which every event has an item and an action
 * of its own, and every user a value of its own of each contextual feature. */
typedef struct preproc {
    int32_t dim, item_dim, n_features, n_places, n_events, n_users;
    bool has_actions, is_inference, has_candidates;
    int32_t n_values[MAX_FEATURES], context_row[MAX_FEATURES];
    batch b;
    int32_t offsets[MAX_USERS + 1], n_targets[MAX_USERS];
    uint64_t users[MAX_USERS];
    uint32_t item[MAX_EVENTS], context[MAX_USERS * MAX_FEATURES];
    uint16_t action[MAX_EVENTS];
    int64_t time[MAX_EVENTS];
    input in;
    input_acts acts;
    batch_layout p;
    param_list params;
} preproc;

static status read_preproc(golden *g, preproc *r) {
    int32_t has_actions, is_inference;
    TRY(golden_int(g, "hidden_size", &r->dim));
    TRY(golden_int(g, "embedding_dim", &r->item_dim));
    TRY(golden_int(g, "num_contextual_features", &r->n_features));
    TRY(golden_int(g, "position_buckets", &r->n_places));
    TRY(golden_int(g, "has_action", &has_actions));
    TRY(golden_int(g, "is_inference", &is_inference));
    r->has_actions = has_actions != 0;
    r->is_inference = is_inference != 0;
    r->has_candidates = golden_find(g, "num_candidates") != NULL;
    return r->n_features <= MAX_FEATURES ? OK : fail(ERR_FORMAT, "too many features");
}

static status make_batch(golden *g, preproc *r) {
    int64_t *lengths, *candidates = NULL, n;
    TRY(golden_ints(g, "item_lengths", &lengths, &n));
    if (r->has_candidates) TRY(golden_ints(g, "num_candidates", &candidates, NULL));
    if (n > MAX_USERS) return fail(ERR_FORMAT, "too many users");
    for (int64_t u = 0; u < n; u++) {
        r->users[u] = (uint64_t)u;
        r->offsets[u + 1] = r->offsets[u] + (int32_t)lengths[u];
        r->n_targets[u] = candidates != NULL ? (int32_t)candidates[u] : 0;
        for (int32_t f = 0; f < r->n_features; f++)
            r->context[u * r->n_features + f] = (uint32_t)u;
    }
    r->n_users = (int32_t)n;
    r->n_events = r->offsets[n];
    if (r->n_events > MAX_EVENTS) return fail(ERR_FORMAT, "too many events");
    for (int32_t i = 0; i < r->n_events; i++) {
        r->item[i] = (uint32_t)i + 1;
        r->action[i] = (uint16_t)i;
    }
    r->b = (batch){.n_users = r->n_users,
                   .n_tokens = r->n_events,
                   .n_context = r->n_features,
                   .offsets = r->offsets,
                   .users = r->users,
                   .n_targets = r->n_targets,
                   .item = r->item,
                   .action = r->action,
                   .time = r->time,
                   .context = r->context};
    return OK;
}

static status make_input(golden *g, preproc *r) {
    bool has_mlp = golden_find(g, "w.item_mlp._mlp.0.weight") != NULL;
    for (int32_t f = 0; f < r->n_features; f++)
        r->n_values[f] = r->n_users;
    input_config c = {.dim = r->dim,
                      .item_dim = has_mlp ? r->item_dim : 0,
                      .context_dim = has_mlp ? r->item_dim : 0,
                      .n_items = r->n_events,
                      .n_actions = r->has_actions ? r->n_events : 0,
                      .n_context = r->n_features,
                      .n_context_values = r->n_values,
                      .n_places = r->n_places};
    TRY(param_list_init(&r->params, &g->memory, 32));
    TRY(input_add_params(&r->in, &c, &r->params));
    TRY(param_list_alloc_grads(&r->params));
    TRY(input_alloc_grads(&r->in, &g->memory));
    layout_config p = {.is_ranking = true,
                       .is_training = true,
                       .has_actions = r->has_actions,
                       .has_candidates = r->has_candidates,
                       .n_items = r->n_events,
                       .n_actions = r->n_events,
                       .n_context = r->n_features,
                       .n_context_values = r->n_values,
                       .n_places = r->n_places,
                       .max_users = r->n_users,
                       .max_events = r->n_events,
                       .max_targets = r->n_events,
                       .time_per_second = 1,
                       .is_merged = r->in.is_merged,
                       .action_row = r->in.action_row,
                       .context_row = r->in.context_row};
    TRY(batch_layout_alloc(&r->p, &p, &g->memory));
    nn_room room = {.memory = &g->memory,
                    .max_tokens = r->p.max_tokens,
                    .max_users = r->n_users,
                    .is_training = true};
    return input_alloc(&r->acts, &r->in, &room);
}

/* The file's name of a parameter that is no table: position, item_mlp.*, ctx_mlp.*. */
static void name_in_file(const char *name, char *out, size_t n) {
    const char *part = strstr(name, "_mlp._mlp.");
    if (part == NULL)
        snprintf(out, n, "position");
    else
        snprintf(out, n, "%s%s", strstr(name, "_item_mlp") != NULL ? "item" : "ctx", part);
}

typedef struct table_part {
    char name[32];
    float *value, *grad;
} table_part;

/* The tables' rows that a file gives: items without the padding row, actions, contextual values. */
static int table_parts(preproc *r, table_part *part) {
    int n = 0;
    int64_t skip = r->in.events.dim;
    part[n++] = (table_part){"item_emb", r->in.item->value + skip, r->in.item->grad + skip};
    if (r->has_actions)
        part[n++] = (table_part){"action_emb", r->in.action->value, r->in.action->grad};
    for (int32_t f = 0; f < r->n_features; f++) {
        part[n] = (table_part){"", r->in.context[f]->value, r->in.context[f]->grad};
        snprintf(part[n++].name, sizeof part->name, "ctx%d_emb", f);
    }
    return n;
}

static status load(golden *g, preproc *r) {
    table_part part[MAX_FEATURES + 2];
    int n = table_parts(r, part);
    const st_tensor *t;
    char name[96], whole[112];
    for (int i = 0; i < n; i++) {
        TRY(golden_get(g, part[i].name, &t));
        TRY(g->be->ops->copy_in(g->be, part[i].value, t->data, (size_t)t->n * sizeof(float)));
    }
    for (int i = 0; i < r->params.n; i++) {
        if (r->params.item[i].is_table) continue;
        name_in_file(r->params.item[i].name, name, sizeof name);
        snprintf(whole, sizeof whole, "w.%s", name);
        TRY(golden_get(g, whole, &t));
        TRY(g->be->ops->copy_in(g->be, r->params.item[i].value, t->data,
                                (size_t)t->n * sizeof(float)));
    }
    return OK;
}

static status check_input_grads(golden *g, preproc *r, const sequences *s) {
    table_part part[MAX_FEATURES + 2];
    int n = table_parts(r, part);
    float *d;
    char name[96], whole[112];
    TRY(golden_send(g, "G_x", &d));
    TRY(input_bwd(&r->in, &r->acts, g->be, &r->p, s, d));
    for (int i = 0; i < n; i++) {
        snprintf(whole, sizeof whole, "grad.%.31s", part[i].name);
        TRY(golden_check(g, whole, part[i].grad, TOL_GRAD));
    }
    for (int i = 0; i < r->params.n; i++) {
        if (r->params.item[i].is_table) continue;
        name_in_file(r->params.item[i].name, name, sizeof name);
        snprintf(whole, sizeof whole, "grad.%s", name);
        TRY(golden_check(g, whole, r->params.item[i].grad, TOL_GRAD));
    }
    return OK;
}

static status check_layout(golden *g, const preproc *r) {
    int64_t *offsets, *contexts = NULL, *targets, *post;
    int32_t at = 0;
    TRY(golden_ints(g, "cu_seqlens", &offsets, NULL));
    if (r->n_features > 0) TRY(golden_ints(g, "layer_num_contexts", &contexts, NULL));
    TRY(golden_ints(g, "post_cu_seqlens", &post, NULL));
    for (int32_t u = 0; u < r->n_users; u++) {
        golden_check_equal(g, "cu_seqlens", r->p.offsets.host[u + 1], offsets[u + 1]);
        golden_check_equal(g, "layer_num_contexts", r->p.n_contexts.host[u],
                           contexts != NULL ? contexts[u] : 0);
        while (at < r->p.n_loss && r->p.loss_token.host[at] < r->p.offsets.host[u + 1])
            at++;
        golden_check_equal(g, "post_cu_seqlens", at, post[u + 1]);
    }
    if (!r->has_candidates) return OK;
    TRY(golden_ints(g, "layer_num_targets", &targets, NULL));
    for (int32_t u = 0; u < r->n_users; u++)
        golden_check_equal(g, "layer_num_targets", r->p.n_targets.host[u], targets[u]);
    return OK;
}

static status check_selection(golden *g, preproc *r) {
    ranking_head h;
    ranking_acts acts;
    nn_room room = {.memory = &g->memory,
                    .max_tokens = r->p.max_tokens,
                    .max_loss = r->n_events,
                    .is_training = true};
    param_list params;
    mlp_config net = {.n_layers = 1, .width = {r->dim, 1}};
    float *hidden, *d_hidden;
    const void *post;
    const st_tensor *t;
    backend *be = g->be;
    TRY(param_list_init(&params, &g->memory, 4));
    TRY(ranking_add_params(&h, &net, LOSS_BITS, &params));
    TRY(ranking_alloc(&acts, &h, &room));
    TRY(golden_send(g, "hidden", &hidden));
    TRY(golden_new(g, &d_hidden, (int64_t)r->p.max_tokens * r->dim));
    TRY(ranking_select(&h, &acts, be, &r->p, hidden, &post));
    TRY(golden_check(g, "post", post, TOL_OUT));
    TRY(golden_get(g, "G_post", &t));
    TRY(be->ops->copy_in(be, acts.d_normed, t->data, (size_t)t->n * sizeof(float)));
    TRY(ranking_select_bwd(&h, &acts, be, &r->p, hidden, d_hidden));
    return golden_check(g, "grad.hidden", d_hidden, TOL_GRAD);
}

status golden_nv_preproc(golden *g) {
    static preproc r;
    int32_t start[MAX_USERS] = {0};
    float *x;
    memset(&r, 0, sizeof r);
    TRY(read_preproc(g, &r));
    TRY(make_batch(g, &r));
    TRY(make_input(g, &r));
    TRY(load(g, &r));
    const st_tensor *given = golden_find(g, "seq_start_position");
    for (int32_t u = 0; given != NULL && u < r.n_users; u++)
        start[u] = (int32_t)golden_at(given, u);
    layout_request request = {
        .purpose = r.is_inference ? LAYOUT_SCORE : LAYOUT_TRAIN, .grad_scale = 1, .start = start};
    TRY(batch_layout_build(&r.p, g->be, &r.b, &request));
    sequences s = batch_layout_sequences(&r.p);
    TRY(golden_new(g, &x, (int64_t)r.p.max_tokens * r.dim));
    TRY(input_fwd(&r.in, &r.acts, g->be, &r.p, &s, NULL, x));
    TRY(check_layout(g, &r));
    TRY(golden_check(g, "x", x, TOL_OUT));
    if (!r.is_inference) TRY(check_input_grads(g, &r, &s));
    return check_selection(g, &r);
}

static status read_arch(golden *g, mlp_config *c) {
    const char *arch = st_metadata(g->part[0], "arch"), *f = st_metadata(g->part[0], "activation");
    int32_t has_bias;
    TRY(golden_int(g, "in_size", &c->width[0]));
    TRY(golden_int(g, "bias", &has_bias));
    c->has_bias = has_bias != 0;
    c->f = f != NULL && strcmp(f, "gelu") == 0 ? EPILOGUE_GELU : EPILOGUE_RELU;
    for (const char *at = arch; at != NULL && c->n_layers < MLP_MAX_LAYERS;) {
        c->width[++c->n_layers] = (int32_t)strtol(at, NULL, 10);
        at = strchr(at, ',');
        if (at != NULL) at++;
    }
    return OK;
}

status golden_nv_rank_loss(golden *g) {
    mlp_config c = {0};
    mlp net;
    mlp_acts acts;
    nn_room room = {.memory = &g->memory, .is_training = true};
    param_list params;
    float *x, *dx, *logits, *d_logits, *losses;
    double *loss, sum;
    int32_t *label;
    const st_tensor *t, *want;
    backend *be = g->be;
    const char *kind = st_metadata(g->part[0], "kind");
    TRY(read_arch(g, &c));
    TRY(golden_get(g, "x", &t));
    TRY(golden_get(g, "loss", &want));
    int64_t n = t->shape[0];
    int32_t n_columns = c.width[c.n_layers];
    TRY(param_list_init(&params, &g->memory, 2 * MLP_MAX_LAYERS));
    TRY(mlp_add_params(&net, &c, &params, "mlp."));
    TRY(mlp_alloc(&acts, &net, &room, n));
    TRY(golden_load_params(g, &params, golden_same_name));
    TRY(golden_send(g, "x", &x));
    TRY(golden_send_i32(g, "labels", &label));
    TRY(golden_new(g, &dx, t->n));
    TRY(golden_new(g, &logits, n * n_columns));
    TRY(golden_new(g, &d_logits, n * n_columns));
    TRY(golden_new(g, &losses, n * n_columns));
    TRY(NN_NEW(&g->memory, &loss, 1));
    const float *share;
    TRY(golden_number_new(g, 1 / (float)n, &share));
    TRY(mlp_fwd(&net, &acts, be, n, x, logits));
    TRY(golden_check(g, "logits", logits, TOL_OUT));
    logits_loss_args a = {.n = n,
                          .n_columns = n_columns,
                          .is_bits = kind != NULL && strcmp(kind, "multitask_bce") == 0,
                          .logits = logits,
                          .label = label,
                          .grad_scale = share,
                          .losses = losses,
                          .loss = loss,
                          .dlogits = d_logits};
    TRY(be->ops->logits_loss(be, &a));
    TRY(be->ops->copy_out(be, &sum, loss, sizeof sum));
    golden_check_value(g, "loss", sum / (double)n, golden_at(want, 0), TOL_OUT);
    TRY(golden_check(g, "losses", losses, TOL_OUT));
    TRY(golden_check(g, "grad.logits", d_logits, TOL_GRAD));
    TRY(mlp_bwd(&net, &acts, be, n, x, d_logits, dx));
    TRY(golden_check(g, "grad.x", dx, TOL_GRAD));
    return golden_check_grads(g, &params, golden_same_name, TOL_GRAD);
}

/* Labels follow from the items, and negatives from the pool: the file must say the same. */
static status check_labels(golden *g, const int64_t *label, int64_t n_labels) {
    int64_t *items, *lengths, *candidates, *sampled, *negatives, n_users, n_sampled, first = 0,
                                                                                     at = 0;
    TRY(golden_ints(g, "item_ids", &items, NULL));
    TRY(golden_ints(g, "item_lengths", &lengths, &n_users));
    TRY(golden_ints(g, "cand_ids", &candidates, NULL));
    TRY(golden_ints(g, "sampled_indices", &sampled, &n_sampled));
    TRY(golden_ints(g, "neg_ids", &negatives, NULL));
    for (int64_t u = 0; u < n_users; first += lengths[u++])
        for (int64_t t = 1; t < lengths[u] && at < n_labels; t++)
            golden_check_equal(g, "supervision_ids", label[at++], items[first + t]);
    golden_check_equal(g, "supervision_ids", at, n_labels);
    for (int64_t i = 0; i < n_sampled; i++)
        golden_check_equal(g, "neg_ids", negatives[i], candidates[sampled[i]]);
    return OK;
}

/* One evaluation of the loss over some table; compares the results that both have. */
static status run_loss(golden *g, sampled_softmax_args *a) {
    backend *be = g->be;
    double *loss, sum, eps, temperature;
    float *pred, *d_pred, *row_loss;
    char *scratch;
    const st_tensor *want;
    TRY(golden_number(g, "l2_eps", &eps));
    TRY(golden_number(g, "temperature", &temperature));
    TRY(golden_get(g, "loss", &want));
    TRY(golden_send(g, "pred", &pred));
    TRY(golden_new(g, &d_pred, a->n * a->dim));
    TRY(golden_new(g, &row_loss, a->n));
    TRY(NN_NEW(&g->memory, &loss, 1));
    size_t bytes = be->ops->sampled_softmax_scratch(be, a->n, a->n_negatives, a->dim, a->n_rows);
    TRY(NN_NEW(&g->memory, &scratch, (int64_t)bytes));
    a->query = pred;
    a->normalises = true;
    a->eps = (float)eps;
    a->temperature = (float)temperature;
    TRY(golden_number_new(g, 1 / (float)a->n, &a->grad_scale));
    a->row_loss = row_loss;
    a->loss = loss;
    a->dquery = d_pred;
    a->scratch = scratch;
    TRY(be->ops->sampled_softmax(be, a));
    TRY(be->ops->copy_out(be, &sum, loss, sizeof sum));
    golden_check_value(g, "loss", sum / (double)a->n, golden_at(want, 0), TOL_OUT);
    TRY(golden_check(g, "losses", row_loss, TOL_OUT));
    return golden_check(g, "grad.pred", d_pred, TOL_GRAD);
}

/* Over the table of items: rows are ids. */
static status run_items(golden *g, sampled_softmax_args a, const int32_t *label) {
    float *table, *d_table;
    int32_t *negatives;
    const st_tensor *t;
    TRY(golden_get(g, "w.item_table", &t));
    TRY(golden_send(g, "w.item_table", &table));
    TRY(golden_send_i32(g, "neg_ids", &negatives));
    TRY(golden_new(g, &d_table, t->n));
    a.n_rows = (int32_t)t->shape[0];
    a.table = table;
    a.positive = label;
    a.negative = negatives;
    a.dtable = d_table;
    TRY(run_loss(g, &a));
    return golden_check(g, "grad.item_table", d_table, TOL_GRAD);
}

/* Over the rows of the labels themselves, where an id may have several rows. */
static status run_rows(golden *g, sampled_softmax_args a, const int32_t *label) {
    float *items, *table, *d_table;
    int64_t *last, *sampled, n_sampled;
    int32_t *host, *positive, *negative;
    backend *be = g->be;
    TRY(golden_ints(g, "cand_last_row", &last, NULL));
    TRY(golden_ints(g, "sampled_indices", &sampled, &n_sampled));
    TRY(golden_send(g, "w.item_table", &items));
    TRY(golden_new(g, &table, a.n * a.dim));
    TRY(golden_new(g, &d_table, a.n * a.dim));
    TRY(NN_NEW_HOST(&g->memory, &host, n_sampled + a.n));
    TRY(NN_NEW(&g->memory, &positive, a.n));
    TRY(NN_NEW(&g->memory, &negative, n_sampled));
    gather_args rows = {
        .n = a.n, .dim = a.dim, .table = items, .index = label, .scale = 1, .y = table};
    TRY(be->ops->gather(be, &rows));
    for (int64_t i = 0; i < n_sampled; i++)
        host[i] = (int32_t)last[sampled[i]];
    TRY(be->ops->copy_in(be, negative, host, (size_t)n_sampled * sizeof *host));
    for (int64_t i = 0; i < a.n; i++)
        host[i] = (int32_t)i;
    TRY(be->ops->copy_in(be, positive, host, (size_t)a.n * sizeof *host));
    a.n_rows = (int32_t)a.n;
    a.table = table;
    a.row_id = label;
    a.positive = positive;
    a.negative = negative;
    a.dtable = d_table;
    TRY(run_loss(g, &a));
    return golden_check(g, "grad.supervision_emb", d_table, TOL_GRAD);
}

status golden_nv_retr_loss(golden *g) {
    sampled_softmax_args a = {0};
    int64_t *label, n_sampled;
    int32_t *device_label;
    TRY(golden_ints(g, "supervision_ids", &label, &a.n));
    TRY(golden_send_i32(g, "supervision_ids", &device_label));
    TRY(golden_int(g, "D", &a.dim));
    TRY(check_labels(g, label, a.n));
    TRY(golden_ints(g, "sampled_indices", &label, &n_sampled));
    a.n_negatives = (int32_t)(n_sampled / a.n);
    TRY(run_items(g, a, device_label));
    return run_rows(g, a, device_label);
}
