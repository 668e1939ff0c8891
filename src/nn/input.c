#include "nn/input.h"

param *input_rows(const input *in, int32_t feature) {
    return feature == ITEM_FEATURE ? in->item : in->context[feature];
}

param *input_own_rows(const input *in, int32_t feature) {
    return feature == ITEM_FEATURE ? in->own_item : in->own_context[feature];
}

init_rule input_table_rule(int32_t feature) {
    return (init_rule){
        .kind = INIT_ROWS, .scale = INPUT_TABLE_SCALE, .table = INPUT_TABLE(feature)};
}

static bool has_item_mlp(const input_config *c) {
    return c->item_dim > 0;
}

static bool has_context_mlp(const input_config *c) {
    return c->context_dim > 0 && c->n_context > 0;
}

static status bank_alloc(bank *b, param_list *params, int64_t n_rows, int32_t dim) {
    if (n_rows > INT32_MAX - 1)
        return fail(ERR_CONFIG, "the tables have %lld rows; 2^31 - 2 are the most",
                    (long long)n_rows);
    b->dim = dim;
    b->n_rows = (int32_t)n_rows;
    TRY(NN_NEW(params->memory, &b->value, n_rows * dim));
    if (b->is_listed && params->memory->be->is_host)
        mem_use_huge_pages(b->value, (size_t)(n_rows * dim) * sizeof *b->value);
    return OK;
}

/* Adds n rows of a bank as a parameter and moves *at past them. */
static status add_table(param_list *params, bank *b, int64_t *at, int64_t n, const char *name,
                        init_rule rule, param **out) {
    param_spec spec = {"", name, 2, {n, b->dim}, rule, true};
    TRY(param_add_at(params, &spec, b->value + *at * b->dim, out));
    *at += n;
    return OK;
}

/* Rows of a bank that are no parameter. */
static status add_room(param_list *params, bank *b, int64_t *at, int64_t n, param **out) {
    TRY(NN_NEW_HOST(params->memory, out, 1));
    **out = (param){.n_dims = 2,
                    .shape = {n, b->dim},
                    .n = n * b->dim,
                    .value = b->value + *at * b->dim,
                    .is_table = true};
    *at += n;
    return OK;
}

/* Like add_table for rows of a dynamic table, whose values are not parameters. */
static status add_dynamic(param_list *params, bank *b, int64_t *at, int64_t n, param **out) {
    param_leave_out(params);
    return add_room(params, b, at, n, out);
}

/* Like add_table for a table that ranks hold together: this rank's rows are the parameter. */
static status add_held(param_list *params, bank *b, int64_t *at, const param_spec *table,
                       const input_held *held, param **out, param **own) {
    param_spec spec = *table;
    spec.shape[0] = held->n;
    TRY(add_room(params, b, at, table->shape[0], out));
    TRY(param_add(params, &spec, own));
    (*own)->rows = held->rows;
    (*own)->whole_rows = held->n_whole;
    params->n_numbers += (held->n_whole - held->n) * b->dim;
    return OK;
}

static status add_items(input *in, param_list *params, int64_t *at) {
    const input_config *c = &in->config;
    int64_t n = (int64_t)c->n_items + 1;
    const char *name =
        c->names == NAMES_META ? "_embedding_module._item_emb.weight" : "_embedding.item.weight";
    if (c->has_dynamic_items) return add_dynamic(params, &in->events, at, n, &in->item);
    if (c->held_items.rows == NULL)
        return add_table(params, &in->events, at, n, name, c->item_rule, &in->item);
    param_spec spec = {"", name, 2, {n, in->events.dim}, c->item_rule, true};
    return add_held(params, &in->events, at, &spec, &c->held_items, &in->item, &in->own_item);
}

static status add_context(input *in, param_list *params, bank *b, int32_t f, int64_t *at) {
    char name[48];
    int64_t n = in->config.n_context_values[f];
    if (in->config.is_dynamic != NULL && in->config.is_dynamic[f])
        return add_dynamic(params, b, at, n, &in->context[f]);
    snprintf(name, sizeof name, "_embedding.context.%d.weight", (int)f);
    if (in->config.held != NULL && in->config.held[f].rows != NULL) {
        param_spec spec = {"", name, 2, {n, b->dim}, input_table_rule(f), true};
        return add_held(params, b, at, &spec, &in->config.held[f], &in->context[f],
                        &in->own_context[f]);
    }
    return add_table(params, b, at, n, name, input_table_rule(f), &in->context[f]);
}

#define ACTION_NAME "_embedding.action.weight"
static const init_rule action_rule = {.kind = INIT_UNIFORM, .scale = INPUT_TABLE_SCALE};

static int64_t count_context_rows(const input_config *c) {
    int64_t n = 0;
    for (int32_t f = 0; f < c->n_context; f++)
        n += c->n_context_values[f];
    return n;
}

static status add_contexts(input *in, param_list *params, bank *b, int64_t at) {
    for (int32_t f = 0; f < in->config.n_context; f++) {
        in->context_row[f] = (int32_t)at;
        TRY(add_context(in, params, b, f, &at));
    }
    return OK;
}

/* Rows of actions in the bank. */
static int32_t n_action_tokens(const input_config *c) {
    return c->adds_actions ? 0 : c->n_actions;
}

static status add_tables(input *in, param_list *params) {
    const input_config *c = &in->config;
    int64_t n_contexts = count_context_rows(c), at = 0;
    int64_t n_events = (int64_t)c->n_items + 1 + n_action_tokens(c);
    TRY(bank_alloc(&in->events, params, n_events + (in->is_merged ? n_contexts : 0),
                   has_item_mlp(c) ? c->item_dim : c->dim));
    TRY(add_items(in, params, &at));
    in->action_row = (int32_t)at;
    if (n_action_tokens(c) > 0)
        TRY(add_table(params, &in->events, &at, c->n_actions, ACTION_NAME, action_rule,
                      &in->action));
    if (in->is_merged) return add_contexts(in, params, &in->events, at);
    TRY(bank_alloc(&in->contexts, params, n_contexts,
                   has_context_mlp(c) ? c->context_dim : c->dim));
    return add_contexts(in, params, &in->contexts, 0);
}

static status add_mlp(mlp *m, param_list *params, int32_t n_in, int32_t dim, const char *prefix) {
    mlp_config c = {2, {n_in, dim, dim}, EPILOGUE_RELU, true};
    return mlp_add_params(m, &c, params, prefix);
}

status input_add_params(input *in, const input_config *c, param_list *params) {
    *in = (input){.config = *c, .is_merged = !has_item_mlp(c) && !has_context_mlp(c)};
    in->events.is_listed = c->lists_events;
    in->contexts.is_listed = !in->is_merged && c->lists_contexts;
    TRY(NN_NEW_HOST(params->memory, &in->context, c->n_context));
    TRY(NN_NEW_HOST(params->memory, &in->own_context, c->n_context));
    TRY(NN_NEW_HOST(params->memory, &in->context_row, c->n_context));
    TRY(add_tables(in, params));
    param_spec position = {"", "", 2, {c->n_places, c->dim}, c->position_rule, false};
    position.name =
        c->names == NAMES_META
            ? "_input_features_preproc._pos_emb.weight"
            : "_hstu_block._preprocessor._positional_encoder._position_embeddings_weight";
    TRY(param_add(params, &position, &in->position));
    param_spec action = {"", ACTION_NAME, 2, {c->n_actions, c->dim}, action_rule, false};
    if (c->adds_actions) TRY(param_add(params, &action, &in->action));
    if (has_item_mlp(c))
        TRY(add_mlp(&in->item_mlp, params, c->item_dim, c->dim,
                    "_hstu_block._preprocessor._item_mlp._mlp."));
    if (has_context_mlp(c))
        TRY(add_mlp(&in->context_mlp, params, c->context_dim, c->dim,
                    "_hstu_block._preprocessor._contextual_mlp._mlp."));
    return OK;
}

/* Sets the gradient of a table and the marks of its rows, at the place of its values in the bank.
 * Rows of dynamic tables are not marked: the table itself knows which rows a batch read. */
static void point_table(param *p, const bank *b, bool is_dynamic) {
    int64_t at = p->value - b->value;
    if (b->is_listed) return;
    p->grad = b->grad + at;
    if (b->marks != NULL && !is_dynamic) p->marks = b->marks + at / b->dim;
}

static status bank_alloc_grads(bank *b, nn_memory *memory, bool has_marks) {
    if (b->value == NULL || b->is_listed) return OK;
    if (has_marks) TRY(NN_NEW(memory, &b->marks, b->n_rows));
    return NN_NEW(memory, &b->grad, (int64_t)b->n_rows * b->dim);
}

/* Gradients of the rows that this rank holds. */
static status alloc_own(const input *in, nn_memory *memory, int32_t feature) {
    param *p = input_own_rows(in, feature);
    if (p == NULL) return OK;
    if (in->config.has_marks) TRY(NN_NEW(memory, &p->marks, p->shape[0]));
    return NN_NEW(memory, &p->grad, p->n);
}

status input_alloc_grads(input *in, nn_memory *memory) {
    const input_config *c = &in->config;
    const bank *of_contexts = in->is_merged ? &in->events : &in->contexts;
    if (in->events.grad != NULL) return OK;
    TRY(bank_alloc_grads(&in->events, memory, c->has_marks));
    TRY(bank_alloc_grads(&in->contexts, memory, c->has_marks));
    point_table(in->item, &in->events, c->has_dynamic_items);
    if (n_action_tokens(c) > 0) point_table(in->action, &in->events, false);
    for (int32_t f = 0; f < c->n_context; f++)
        point_table(in->context[f], of_contexts, c->is_dynamic != NULL && c->is_dynamic[f]);
    for (int32_t f = ITEM_FEATURE; f < c->n_context; f++)
        TRY(alloc_own(in, memory, f));
    return OK;
}

static status list_alloc(listed_rows *l, const bank *b, const nn_room *room, int64_t n) {
    if (!room->is_training || !b->is_listed) return OK;
    l->max_rows = n;
    TRY(NN_NEW(room->memory, &l->n, 1));
    TRY(NN_NEW(room->memory, &l->own.rows, n));
    TRY(NN_NEW(room->memory, &l->own.grad, n * b->dim));
    return NN_NEW(room->memory, &l->value, n * b->dim);
}

/* Rows of a bank as a pass numbers them. */
static int64_t count_rows(const bank *b, const listed_rows *l) {
    return b->is_listed ? l->max_rows : b->n_rows;
}

static status groups_alloc(row_groups *g, const nn_room *room, int64_t n, int64_t n_rows) {
    if (!room->is_training) return OK;
    g->n_rows = (int32_t)n_rows;
    TRY(NN_NEW(room->memory, &g->order, n));
    return NN_NEW(room->memory, &g->begin, n_rows + 1);
}

/* Activations, and for training their gradients. */
static status alloc_pair(const nn_room *room, void **x, void **dx, int64_t n, int64_t dim) {
    TRY(nn_new_act(room->memory, x, n, dim));
    return room->is_training ? nn_new_act(room->memory, dx, n, dim) : OK;
}

static status alloc_unmerged(input_acts *a, const input *in, const nn_room *room) {
    const input_config *c = &in->config;
    int64_t n = room->max_tokens, n_context = room->max_users * c->n_context;
    if (has_item_mlp(c)) {
        TRY(mlp_alloc(&a->item_mlp, &in->item_mlp, room, n));
        TRY(alloc_pair(room, &a->event_x, &a->d_event_x, n, c->item_dim));
    }
    if (has_context_mlp(c)) {
        TRY(mlp_alloc(&a->context_mlp, &in->context_mlp, room, n_context));
        TRY(alloc_pair(room, &a->context_x, &a->d_context_x, n_context, c->context_dim));
    }
    TRY(list_alloc(&a->context_list, &in->contexts, room, n_context));
    TRY(groups_alloc(&a->contexts, room, n_context, count_rows(&in->contexts, &a->context_list)));
    TRY(groups_alloc(&a->assembly, room, n, n));
    return alloc_pair(room, &a->tokens, &a->d_tokens, n, c->dim);
}

status input_alloc(input_acts *a, const input *in, const nn_room *room) {
    *a = (input_acts){0};
    TRY(list_alloc(&a->event_list, &in->events, room, room->max_tokens + room->max_items));
    TRY(groups_alloc(&a->events, room, room->max_tokens, count_rows(&in->events, &a->event_list)));
    TRY(groups_alloc(&a->places, room, room->max_tokens, in->config.n_places));
    if (in->config.adds_actions)
        TRY(groups_alloc(&a->actions, room, room->max_tokens, in->config.n_actions));
    return in->is_merged ? OK : alloc_unmerged(a, in, room);
}

bool input_add_far(bank *b, const float *rows, int64_t n, int64_t stride, int32_t *first) {
    for (int i = 0; i < b->n_far; i++) {
        *first = b->far[i].from;
        if (b->far[i].rows == rows) return true;
    }
    int64_t from = b->n_rows + b->n_far_rows;
    if (b->n_far == GATHER_FAR || from + n > INT32_MAX) return false;
    *first = (int32_t)from;
    b->far[b->n_far++] = (gather_far){rows, stride, *first};
    b->n_far_rows += n;
    return true;
}

static void read_far(const bank *b, gather_args *a) {
    a->n_far = b->n_far;
    memcpy(a->far, b->far, sizeof a->far);
}

/* Whether a pass trains by a list: one without training reads the table. */
static bool is_listed(const bank *b, const listed_rows *l) {
    return b->is_listed && l->value != NULL;
}

static const float *values_of(const bank *b, const listed_rows *l) {
    return is_listed(b, l) ? l->value : b->value;
}

static float *grads_of(const bank *b) {
    return b->is_listed ? b->step.grad : b->grad;
}

static status list_bank(bank *b, listed_rows *l, backend *be, list_rows_args *a) {
    int64_t n = 0;
    b->step = b->room.rows != NULL ? b->room : l->own;
    for (int k = 0; k < a->n_uses; k++)
        n += a->use[k].n;
    a->n_table = b->n_rows;
    a->rows = b->step.rows;
    a->n = l->n;
    TRY(be->ops->list_rows(be, a));
    b->step.n = be->is_host ? *l->n : n;
    read_rows_args read = {.n = b->step.n,
                           .dim = b->dim,
                           .rows = b->step.rows,
                           .late = b->late,
                           .w = b->value,
                           .m = b->m,
                           .v = b->v,
                           .y = l->value};
    TRY(be->ops->read_rows(be, &read));
    size_t bytes = (size_t)b->step.n * (size_t)b->dim * sizeof *b->step.grad;
    return be->ops->zero(be, b->step.grad, bytes);
}

status input_list(input *in, input_acts *a, backend *be, const batch_layout *p,
                  const row_uses *more, int n_more) {
    row_uses of_contexts = {(int64_t)p->n_users * in->config.n_context, p->context_row.device, 0};
    row_uses of_events = {p->n_events, p->event_row.device, 0};
    if (in->is_merged) of_events = (row_uses){p->n_tokens, p->row.device, 0};
    list_rows_args events = {.n_uses = 1 + n_more, .use = {of_events}};
    list_rows_args contexts = {.n_uses = 1, .use = {of_contexts}};
    for (int i = 0; i < n_more; i++)
        events.use[1 + i] = more[i];
    if (in->events.is_listed) TRY(list_bank(&in->events, &a->event_list, be, &events));
    return in->contexts.is_listed ? list_bank(&in->contexts, &a->context_list, be, &contexts) : OK;
}

/* y (n, dim of the bank) = rows of the bank. */
static status read_rows(const bank *b, const listed_rows *l, backend *be, int64_t n,
                        const int32_t *row, void *y) {
    gather_args a = {
        .n = n, .dim = b->dim, .table = values_of(b, l), .index = row, .scale = 1, .y = y};
    read_far(b, &a);
    return be->ops->gather(be, &a);
}

static status add_rows(const bank *b, row_groups *groups, backend *be, int64_t n,
                       const int32_t *row, const void *dy) {
    groups->n = n;
    if (b->is_listed) groups->n_rows = (int32_t)b->step.n;
    TRY(be->ops->group(be, row, groups));
    scatter_args a = {.groups = *groups, .dim = b->dim, .scale = 1, .dy = dy, .grad = grads_of(b)};
    return be->ops->scatter(be, &a);
}

static status embed_parts(const input *in, const input_acts *a, backend *be,
                          const batch_layout *p) {
    const input_config *c = &in->config;
    int64_t n_context = (int64_t)p->n_users * c->n_context;
    void *context_tokens = nn_act_at(be, a->tokens, (int64_t)p->n_events * c->dim);
    void *event_x = has_item_mlp(c) ? a->event_x : a->tokens;
    void *context_x = has_context_mlp(c) ? a->context_x : context_tokens;
    TRY(read_rows(&in->events, &a->event_list, be, p->n_events, p->event_row.device, event_x));
    TRY(read_rows(&in->contexts, &a->context_list, be, n_context, p->context_row.device,
                  context_x));
    if (has_item_mlp(c))
        TRY(mlp_fwd(&in->item_mlp, &a->item_mlp, be, p->n_events, event_x, a->tokens));
    if (has_context_mlp(c))
        TRY(mlp_fwd(&in->context_mlp, &a->context_mlp, be, n_context, context_x, context_tokens));
    return OK;
}

status input_fwd(const input *in, const input_acts *a, backend *be, const batch_layout *p,
                 const sequences *s, const token_asks *asks, void *x) {
    const input_config *c = &in->config;
    if (!in->is_merged) TRY(embed_parts(in, a, be, p));
    gather_args rows = {.n = p->n_tokens,
                        .dim = c->dim,
                        .is_act = !in->is_merged,
                        .table = in->is_merged ? values_of(&in->events, &a->event_list)
                                               : (const float *)a->tokens,
                        .index = p->row.device,
                        .scale = sqrtf((float)c->dim),
                        .other = in->position->value,
                        .other_index = p->place.device,
                        .more = c->adds_actions ? in->action->value : NULL,
                        .more_index = p->added_action.device,
                        .drop = sequences_drop(s, c->dropout_rate, 0),
                        .y = x};
    if (in->is_merged) read_far(&in->events, &rows);
    if (asks != NULL) {
        rows.moments = asks->moments;
        rows.blank = asks->blank;
    }
    return be->ops->gather(be, &rows);
}

static status split_parts(const input *in, input_acts *a, backend *be, const batch_layout *p) {
    const input_config *c = &in->config;
    int64_t n_context = (int64_t)p->n_users * c->n_context;
    void *d_event = a->d_tokens,
         *d_context = nn_act_at(be, a->d_tokens, (int64_t)p->n_events * c->dim);
    if (has_item_mlp(c)) {
        TRY(mlp_bwd(&in->item_mlp, &a->item_mlp, be, p->n_events, a->event_x, d_event,
                    a->d_event_x));
        d_event = a->d_event_x;
    }
    if (has_context_mlp(c)) {
        TRY(mlp_bwd(&in->context_mlp, &a->context_mlp, be, n_context, a->context_x, d_context,
                    a->d_context_x));
        d_context = a->d_context_x;
    }
    TRY(add_rows(&in->events, &a->events, be, p->n_events, p->event_row.device, d_event));
    return add_rows(&in->contexts, &a->contexts, be, n_context, p->context_row.device, d_context);
}

/* Adds the gradient of the tokens to the bank, or writes it to the buffer of tokens. */
static status scatter_tokens(const input *in, input_acts *a, backend *be, const batch_layout *p,
                             scatter_args rows) {
    row_groups *groups = in->is_merged ? &a->events : &a->assembly;
    size_t token_bytes = (size_t)p->n_tokens * (size_t)rows.dim * act_bytes(be->act);
    if (!in->is_merged) groups->n_rows = p->n_tokens;
    if (in->is_merged && in->events.is_listed) groups->n_rows = (int32_t)in->events.step.n;
    groups->n = p->n_tokens;
    TRY(be->ops->group(be, p->row.device, groups));
    if (!in->is_merged) TRY(be->ops->zero(be, a->d_tokens, token_bytes));
    rows.groups = *groups;
    rows.scale = sqrtf((float)rows.dim);
    rows.is_act = !in->is_merged;
    rows.grad = in->is_merged ? grads_of(&in->events) : (float *)a->d_tokens;
    return be->ops->scatter(be, &rows);
}

/* Adds the gradient of the tokens to rows that were added to them: positions, actions. */
static status scatter_dense(backend *be, const batch_layout *p, row_groups *groups,
                            const int32_t *row, const param *to, scatter_args rows) {
    groups->n = p->n_tokens;
    TRY(be->ops->group(be, row, groups));
    rows.groups = *groups;
    rows.scale = 1;
    rows.grad = to->grad;
    return be->ops->scatter(be, &rows);
}

status input_bwd(const input *in, input_acts *a, backend *be, const batch_layout *p,
                 const sequences *s, const void *dx) {
    const input_config *c = &in->config;
    scatter_args rows = {.dim = c->dim, .dy = dx, .drop = sequences_drop(s, c->dropout_rate, 0)};
    TRY(scatter_tokens(in, a, be, p, rows));
    TRY(scatter_dense(be, p, &a->places, p->place.device, in->position, rows));
    if (c->adds_actions)
        TRY(scatter_dense(be, p, &a->actions, p->added_action.device, in->action, rows));
    return in->is_merged ? OK : split_parts(in, a, be, p);
}

status input_mark(const input *in, backend *be, const batch_layout *p) {
    const int32_t *row = in->is_merged ? p->row.device : p->event_row.device;
    if (in->events.marks != NULL)
        TRY(be->ops->mark(be, in->is_merged ? p->n_tokens : p->n_events, row, 0, in->events.marks));
    if (in->contexts.marks == NULL) return OK;
    return be->ops->mark(be, (int64_t)p->n_users * in->config.n_context, p->context_row.device, 0,
                         in->contexts.marks);
}
