#include "nn/heads.h"

static status choice_alloc(choice *c, const nn_room *room, int32_t dim) {
    *c = (choice){.dim = dim};
    TRY(nn_new_act(room->memory, &c->x, room->max_loss, dim));
    if (!room->is_training) return OK;
    TRY(nn_new_act(room->memory, &c->dx, room->max_loss, dim));
    TRY(NN_NEW(room->memory, &c->groups.order, room->max_loss));
    return NN_NEW(room->memory, &c->groups.begin, room->max_tokens + 1);
}

/* *out = (M, E): the loss tokens of `hidden` (T, E); a row of zeros where there is none. */
static status choice_fwd(choice *c, backend *be, const batch_layout *p, const void *hidden,
                         const void **out) {
    c->is_all = p->takes_all || c->is_done;
    *out = c->is_all ? hidden : c->x;
    if (c->is_all) return OK;
    gather_args a = {.n = p->n_loss,
                     .dim = c->dim,
                     .is_act = true,
                     .table = (const float *)hidden,
                     .index = p->loss_token.device,
                     .scale = 1,
                     .y = c->x};
    return be->ops->gather(be, &a);
}

/* Where the gradient of the chosen rows is written: choice_bwd then moves it to d_hidden (T, E). */
static void *choice_gradient(const choice *c, void *d_hidden) {
    return c->is_all ? d_hidden : c->dx;
}

/* Zero for tokens that were not chosen. */
static status choice_bwd(choice *c, backend *be, const batch_layout *p, void *d_hidden) {
    if (c->is_all) return OK;
    size_t bytes = (size_t)p->n_tokens * (size_t)c->dim * act_bytes(be->act);
    TRY(be->ops->zero(be, d_hidden, bytes));
    c->groups.n = p->n_loss;
    c->groups.n_rows = p->n_tokens;
    TRY(be->ops->group(be, p->loss_token.device, &c->groups));
    scatter_args a = {.groups = c->groups,
                      .dim = c->dim,
                      .scale = 1,
                      .dy = c->dx,
                      .is_act = true,
                      .grad = (float *)d_hidden};
    return be->ops->scatter(be, &a);
}

static status train_logits(const loss_config *c, backend *be, const batch_layout *p,
                           const loss_rows *rows) {
    logits_loss_args args = {.n = p->n_loss,
                             .n_columns = c->width,
                             .is_bits = c->type == LOSS_BITS,
                             .logits = rows->x,
                             .label = p->label.device,
                             .grad_scale = p->grad_scale.device,
                             .loss = rows->sum,
                             .dlogits = rows->dx};
    return be->ops->logits_loss(be, &args);
}

/* The sampled softmax over the label and R negatives of each loss position (ops.h).  Where R is the
 * number of positions, they are processed in pieces, to bound the memory.
 *
 * Negatives drawn in one call, at most. */
enum { PIECE_NUMBERS = 1 << 22 };

static int64_t at_least_1(int64_t n) {
    return n > 1 ? n : 1;
}

static bool uses_labels(const loss_config *c) {
    return c->type == LOSS_IN_BATCH || c->type == LOSS_LABELS;
}

static bool uses_list_log_q(const loss_config *c) {
    return c->type == LOSS_LABELS && c->has_log_q;
}

static status pool_alloc(loss_acts *a, const loss_config *c, nn_memory *memory) {
    int64_t n = uses_labels(c) ? c->max_labels : 0;
    bool is_list = c->type == LOSS_LABELS;
    TRY(STAGED_NEW(memory, &a->pool, n));
    TRY(STAGED_NEW(memory, &a->log_q, uses_list_log_q(c) ? n : 0));
    TRY(STAGED_NEW(memory, &a->log_count, is_list ? n : 0));
    return NN_NEW_HOST(memory, &a->labels, 2 * n);
}

static status sampled_loss_alloc(loss_acts *a, const loss_config *c, const nn_room *room) {
    int64_t r = c->n_negatives > 0 ? c->n_negatives : at_least_1(room->max_loss);
    int64_t rows = at_least_1(PIECE_NUMBERS / r), n_rows = c->n_items;
    backend *be = room->memory->be;
    char *scratch;
    if (rows > room->max_loss) rows = at_least_1(room->max_loss);
    a->max_rows = (int32_t)rows;
    if (c->listed != NULL) n_rows = room->max_tokens + room->max_items;
    if (c->mol != NULL) TRY(mol_alloc(&a->mol, c->mol, room->memory, room->max_loss, n_rows, true));
    size_t bytes = c->mol != NULL ? 0
                                  : be->ops->sampled_softmax_scratch(be, rows, (int32_t)r, c->width,
                                                                     (int32_t)n_rows);
    TRY(NN_NEW(room->memory, &scratch, (int64_t)bytes));
    a->scratch = scratch;
    TRY(pool_alloc(a, c, room->memory));
    if (c->is_shared) TRY(NN_NEW(room->memory, &a->zeros, rows));
    return STAGED_NEW(room->memory, &a->negative, rows * r);
}

static status full_loss_alloc(loss_acts *a, const loss_config *c, const nn_room *room) {
    backend *be = room->memory->be;
    bool is_all = c->type == LOSS_ALL_ITEMS, has_marks = is_all && c->item->marks != NULL;
    int64_t n_items = is_all || c->max_labels > c->n_items ? c->n_items : c->max_labels;
    size_t bytes = be->ops->full_softmax_scratch(be, room->max_loss, (int32_t)n_items, c->width);
    staged_i32 rows = {0};
    char *scratch;
    TRY(NN_NEW(room->memory, &scratch, (int64_t)bytes));
    a->scratch = scratch;
    TRY(pool_alloc(a, c, room->memory));
    if (!has_marks) return OK;
    TRY(STAGED_NEW(room->memory, &rows, c->n_items));
    for (int32_t i = 0; i < c->n_items; i++)
        rows.host[i] = i;
    a->rows = rows.device;
    return STAGED_SEND(be, &rows, c->n_items);
}

/* The distinct labels, ascending; returns the loss positions. */
static int32_t fill_pool(loss_acts *a, const loss_config *c, const batch_layout *p,
                         const loss_rows *rows) {
    sort_pair *label = a->labels;
    int64_t n = p->n_loss;
    if (rows->whole != NULL)
        n = batch_layout_list_labels(&p->config, rows->whole, rows->has_no_row, label);
    for (int32_t i = 0; i < p->n_loss && rows->whole == NULL; i++)
        label[i].key = (uint64_t)p->label.host[i];
    label = sort_pairs(label, label + c->max_labels, (size_t)n);
    a->n_pool = 0;
    for (int64_t i = 0, first = 0; i < n; i++) {
        if (i > 0 && label[i].key == label[i - 1].key) continue;
        for (first = i; c->type == LOSS_LABELS && i + 1 < n && label[i + 1].key == label[i].key;)
            i++;
        int32_t row = a->pool.host[a->n_pool] = (int32_t)label[i].key;
        if (c->type == LOSS_LABELS) a->log_count.host[a->n_pool] = logf((float)(i + 1 - first));
        if (uses_list_log_q(c)) a->log_q.host[a->n_pool] = c->host_log_q[row];
        a->n_pool++;
    }
    return (int32_t)n;
}

/* What the draws of all pieces have in common. */
static status begin_draws(const loss_config *c, loss_acts *a, backend *be, const batch_layout *p,
                          const loss_rows *rows) {
    int32_t n_loss = p->n_loss;
    if (uses_labels(c)) {
        n_loss = fill_pool(a, c, p, rows);
        TRY(STAGED_SEND(be, &a->pool, a->n_pool));
    }
    if (c->type == LOSS_LABELS) {
        TRY(STAGED_SEND(be, &a->log_count, a->n_pool));
        if (uses_list_log_q(c)) TRY(STAGED_SEND(be, &a->log_q, a->n_pool));
    }
    a->n_negatives = c->n_negatives > 0 ? c->n_negatives : n_loss;
    return OK;
}

/* Rows first .. first + n - 1 of the losses. */
typedef struct piece {
    int32_t first, n;
} piece;

static status take_given(const loss_config *c, const loss_acts *a, backend *be, const piece *s,
                         const int32_t *given) {
    int64_t n = (int64_t)s->n * a->n_negatives;
    const int32_t *from = given + (int64_t)s->first * a->n_negatives;
    for (int64_t i = 0; i < n; i++) {
        if (from[i] < 1 || from[i] > c->n_items)
            return fail(ERR_FORMAT, "the negative %d is no item", from[i]);
        a->negative.host[i] = from[i] - 1;
    }
    return STAGED_SEND(be, &a->negative, n);
}

static status draw(const loss_config *c, const loss_acts *a, backend *be, const batch_layout *p,
                   const piece *s, const loss_rows *rows) {
    if (rows->negatives != NULL) return take_given(c, a, be, s, rows->negatives);
    bool is_in_batch = c->type == LOSS_IN_BATCH;
    negatives_args args = {.n = s->n,
                           .n_negatives = a->n_negatives,
                           .n_pool = is_in_batch       ? a->n_pool
                                     : c->pool != NULL ? c->n_pool
                                                       : c->n_items,
                           .pool = is_in_batch ? a->pool.device : c->pool,
                           .key = rng_make_key(rows->seed, RNG_NEGATIVES),
                           .step = p->step.device,
                           .user = c->is_shared ? a->zeros : p->loss_user.device + s->first,
                           .position = c->is_shared ? a->zeros : p->loss_position.device + s->first,
                           .index = a->negative.device};
    return be->ops->negatives(be, &args);
}

static mol_batch mol_batch_of(const loss_config *c, const batch_layout *p, const loss_rows *rows) {
    bool is_listed = c->listed != NULL;
    return (mol_batch){.n = p->n_loss,
                       .x = rows->x,
                       .dx = rows->dx,
                       .positive = p->label.device,
                       .user = p->loss_user.device,
                       .position = p->loss_position.device,
                       .step = p->step.device,
                       .grad_scale = p->grad_scale.device,
                       .loss = rows->sum,
                       .key = rng_make_key(rows->seed, RNG_DROPOUT),
                       .temperature = c->temperature,
                       .n_items = is_listed ? c->listed->step.n : c->n_items,
                       .items = is_listed ? rows->table : c->item->value + c->width,
                       .item_id = is_listed ? (const uint32_t *)c->listed->step.rows : NULL,
                       .ditems = is_listed ? c->listed->step.grad : c->item->grad + c->width};
}

/* beta of gBCE, which corrects for drawing a share `a` of the other items. */
static float beta_of(const loss_config *c, int32_t n_negatives) {
    double a = c->n_items > 1 ? (double)n_negatives / (c->n_items - 1) : 1, t = c->calibration;
    if (a > 1) a = 1;
    return c->kind == PAIRS_GBCE && a > 0 ? (float)(a * (t * (1 - 1 / a) + 1 / a)) : 1;
}

static status train_piece(const loss_config *c, const loss_acts *a, backend *be,
                          const batch_layout *p, const piece *s, const loss_rows *rows) {
    int64_t skip = (int64_t)s->first * c->width;
    bool is_listed = c->listed != NULL;
    if (c->mol != NULL) {
        mol_batch b = mol_batch_of(c, p, rows);
        return mol_piece(c->mol, (mol_acts *)&a->mol, be, &b, s->first, s->n, a->n_negatives,
                         a->negative.device);
    }
    sampled_softmax_args args = {.n = s->n,
                                 .n_negatives = a->n_negatives,
                                 .dim = c->width,
                                 .n_rows = is_listed ? (int32_t)c->listed->step.n : c->n_items,
                                 .query = nn_act_at(be, rows->x, skip),
                                 .table = is_listed ? rows->table : c->item->value + c->width,
                                 .positive = p->label.device + s->first,
                                 .negative = a->negative.device,
                                 .normalises = c->normalises_items,
                                 .eps = c->eps,
                                 .temperature = c->temperature,
                                 .kind = c->kind,
                                 .beta = beta_of(c, a->n_negatives),
                                 .log_q = c->log_q,
                                 .corrects_positive = c->corrects_positive,
                                 .grad_scale = p->grad_scale.device,
                                 .loss = rows->sum,
                                 .dquery = nn_act_at(be, rows->dx, skip),
                                 .dtable =
                                     is_listed ? c->listed->step.grad : c->item->grad + c->width,
                                 .scratch = a->scratch};
    return be->ops->sampled_softmax(be, &args);
}

/* Marks the rows that got a gradient: labels and negatives; in-batch negatives are labels (in a
 * part of a batch: those of the whole batch). */
static status mark_piece(const loss_config *c, const loss_acts *a, backend *be,
                         const batch_layout *p, const piece *s) {
    uint8_t *marks = c->item->marks;
    if (marks == NULL || s->n == 0) return OK;
    if (c->type == LOSS_IN_BATCH)
        return s->first == 0 ? be->ops->mark(be, a->n_pool, a->pool.device, 1, marks) : OK;
    TRY(be->ops->mark(be, s->n, p->label.device + s->first, 1, marks));
    return be->ops->mark(be, (int64_t)s->n * a->n_negatives, a->negative.device, 1, marks);
}

/* Negatives of the catalogue, where the table is listed, are drawn before the pass: all at once. */
static bool draws_early(const loss_config *c) {
    return c->listed != NULL && c->type == LOSS_CATALOGUE;
}

static status sampled_loss_train(const loss_config *c, loss_acts *a, backend *be,
                                 const batch_layout *p, const loss_rows *rows) {
    piece s = {0};
    mol_batch mixed = mol_batch_of(c, p, rows);
    if (c->listed == NULL) TRY(begin_draws(c, a, be, p, rows));
    if (c->mol != NULL) TRY(mol_begin(c->mol, &a->mol, be, &mixed));
    /* A whole batch has at most as many loss positions as the memory was made for. */
    for (s.first = 0; s.first < p->n_loss; s.first += s.n) {
        s.n = p->n_loss - s.first < a->max_rows ? p->n_loss - s.first : a->max_rows;
        if (!draws_early(c)) TRY(draw(c, a, be, p, &s, rows));
        TRY(train_piece(c, a, be, p, &s, rows));
        TRY(mark_piece(c, a, be, p, &s));
    }
    return c->mol != NULL ? mol_end(c->mol, &a->mol, be, &mixed) : OK;
}

/* The softmax over a list: the catalogue, or the labels of the batch. */
static status full_loss_train(const loss_config *c, loss_acts *a, backend *be,
                              const batch_layout *p, const loss_rows *rows) {
    bool is_listed = c->listed != NULL, is_all = c->type == LOSS_ALL_ITEMS;
    if (!is_all && !is_listed) TRY(begin_draws(c, a, be, p, rows));
    int32_t n_rows = is_listed ? (int32_t)c->listed->step.n : c->n_items;
    const int32_t *item = is_all ? c->pool : a->pool.device;
    full_softmax_args args = {.n = p->n_loss,
                              .dim = c->width,
                              .n_rows = n_rows,
                              .n_items = !is_all        ? a->n_pool
                                         : item != NULL ? c->n_pool
                                                        : n_rows,
                              .query = rows->x,
                              .table = is_listed ? rows->table : c->item->value + c->width,
                              .item = item,
                              .log_q = uses_list_log_q(c) ? a->log_q.device : NULL,
                              .log_count = is_all ? NULL : a->log_count.device,
                              .positive = p->label.device,
                              .normalises = c->normalises_items,
                              .eps = c->eps,
                              .temperature = c->temperature,
                              .smoothing = c->smoothing,
                              .grad_scale = p->grad_scale.device,
                              .loss = rows->sum,
                              .dquery = rows->dx,
                              .dtable = is_listed ? c->listed->step.grad : c->item->grad + c->width,
                              .scratch = a->scratch};
    TRY(be->ops->full_softmax(be, &args));
    if (c->item->marks == NULL) return OK;
    return be->ops->mark(be, args.n_items, item != NULL ? item : a->rows, 1, c->item->marks);
}

int64_t retrieval_max_items(const retrieval_head *h, int64_t max_loss) {
    const loss_config *c = &h->loss;
    if (c->listed == NULL) return 0;
    return max_loss + (uses_labels(c) ? c->max_labels : max_loss * c->n_negatives);
}

bool retrieval_can_list(const loss_config *c, int64_t max_loss) {
    if (c->type == LOSS_ALL_ITEMS || (c->type == LOSS_CATALOGUE && c->has_log_q)) return false;
    return uses_labels(c) || (c->n_negatives > 0 && max_loss * c->n_negatives <= PIECE_NUMBERS);
}

status retrieval_uses(const retrieval_head *h, retrieval_acts *acts, backend *be,
                      const batch_layout *p, const loss_rows *rows, row_uses *use) {
    const loss_config *c = &h->loss;
    loss_acts *a = &acts->loss;
    TRY(begin_draws(c, a, be, p, rows));
    use[0] = (row_uses){p->n_loss, p->label.device, 1};
    use[1] = (row_uses){a->n_pool, a->pool.device, 1};
    if (!draws_early(c)) return OK;
    use[1] = (row_uses){(int64_t)p->n_loss * a->n_negatives, a->negative.device, 1};
    return draw(c, a, be, p, &(piece){0, p->n_loss}, rows);
}

static bool is_sampled(const loss_config *c) {
    return c->type == LOSS_CATALOGUE || c->type == LOSS_IN_BATCH;
}

static bool is_full(const loss_config *c) {
    return c->type == LOSS_LABELS || c->type == LOSS_ALL_ITEMS;
}

static status loss_alloc(loss_acts *a, const loss_config *c, const nn_room *room) {
    *a = (loss_acts){0};
    if (!room->is_training) return OK;
    if (is_full(c)) return full_loss_alloc(a, c, room);
    return is_sampled(c) ? sampled_loss_alloc(a, c, room) : OK;
}

static status loss_train(const loss_config *c, loss_acts *a, backend *be, const batch_layout *p,
                         const loss_rows *rows) {
    if (c->needs_counts && c->pool == NULL && c->log_q == NULL)
        return fail(ERR_USAGE, "the model was not told how many training events each item has");
    if (is_full(c)) return full_loss_train(c, a, be, p, rows);
    return is_sampled(c) ? sampled_loss_train(c, a, be, p, rows) : train_logits(c, be, p, rows);
}

static const float L2_EPS = 1e-6f;

status ranking_add_params(ranking_head *h, const mlp_config *c, loss_type loss,
                          param_list *params) {
    *h = (ranking_head){.dim = c->width[0], .loss = {.type = loss, .width = c->width[c->n_layers]}};
    return mlp_add_params(&h->net, c, params, "_mlp._mlp.");
}

int32_t ranking_n_columns(const ranking_head *h) {
    return h->loss.width;
}

status ranking_alloc(ranking_acts *a, const ranking_head *h, const nn_room *room) {
    int64_t n = room->max_loss;
    nn_memory *memory = room->memory;
    *a = (ranking_acts){0};
    TRY(choice_alloc(&a->tokens, room, h->dim));
    TRY(mlp_alloc(&a->net, &h->net, room, n));
    TRY(nn_new_act(memory, &a->normed, n, h->dim));
    TRY(nn_new_act(memory, &a->logits, n, ranking_n_columns(h)));
    TRY(NN_NEW(memory, &a->scale, n));
    if (!room->is_training) return OK;
    TRY(nn_new_act(memory, &a->d_normed, n, h->dim));
    TRY(nn_new_act(memory, &a->d_logits, n, ranking_n_columns(h)));
    return loss_alloc(&a->loss, &h->loss, room);
}

static l2_args l2_of(const ranking_head *h, const ranking_acts *a, int64_t n, const void *x) {
    return (l2_args){.n = n,
                     .dim = h->dim,
                     .eps = L2_EPS,
                     .x = x,
                     .y = a->normed,
                     .scale = a->scale,
                     .dy = a->d_normed};
}

status ranking_select(const ranking_head *h, ranking_acts *a, backend *be, const batch_layout *p,
                      const void *hidden, const void **out) {
    const void *x = NULL;
    TRY(choice_fwd(&a->tokens, be, p, hidden, &x));
    l2_args l2 = l2_of(h, a, p->n_loss, x);
    *out = a->normed;
    return be->ops->l2_fwd(be, &l2);
}

status ranking_select_bwd(const ranking_head *h, ranking_acts *a, backend *be,
                          const batch_layout *p, const void *hidden, void *d_hidden) {
    l2_args l2 = l2_of(h, a, p->n_loss, a->tokens.is_all ? hidden : a->tokens.x);
    l2.dx = choice_gradient(&a->tokens, d_hidden);
    TRY(be->ops->l2_bwd(be, &l2));
    return choice_bwd(&a->tokens, be, p, d_hidden);
}

/* The whole head as one op: two layers whose weights are packed, and nothing kept for training. */
static bool is_one_op(const ranking_head *h, const ranking_acts *a) {
    return h->net.config.n_layers == 2 && h->net.packed[0] != NULL && a->d_normed == NULL;
}

static status score_at_once(const ranking_head *h, ranking_acts *a, backend *be,
                            const batch_layout *p, const void *hidden) {
    head_args head = {.n = p->n_loss,
                      .dim = h->dim,
                      .eps = L2_EPS,
                      .x = hidden,
                      .index = p->takes_all || a->tokens.is_done ? NULL : p->loss_token.device,
                      .chosen = a->tokens.x,
                      .scale = a->scale,
                      .normed = a->normed,
                      .one = mlp_layer(&h->net, &a->net, 0, p->n_loss, a->normed),
                      .two = mlp_layer(&h->net, &a->net, 1, p->n_loss, NULL)};
    head.one.layer.z = NULL;
    head.two.layer.y = a->logits;
    return be->ops->head_fwd(be, &head);
}

status ranking_score(const ranking_head *h, ranking_acts *a, backend *be, const batch_layout *p,
                     const void *hidden, const void **out) {
    const void *x = NULL;
    *out = a->logits;
    if (is_one_op(h, a)) return score_at_once(h, a, be, p, hidden);
    TRY(ranking_select(h, a, be, p, hidden, &x));
    return mlp_fwd(&h->net, &a->net, be, p->n_loss, x, a->logits);
}

status ranking_train(const ranking_head *h, ranking_acts *a, backend *be, const batch_layout *p,
                     loss_rows rows, const void *hidden, void *d_hidden) {
    TRY(ranking_score(h, a, be, p, hidden, &rows.x));
    rows.dx = a->d_logits;
    TRY(loss_train(&h->loss, &a->loss, be, p, &rows));
    TRY(mlp_bwd(&h->net, &a->net, be, p->n_loss, a->normed, a->d_logits, a->d_normed));
    return ranking_select_bwd(h, a, be, p, hidden, d_hidden);
}

status retrieval_alloc(retrieval_acts *a, const retrieval_head *h, const nn_room *room) {
    *a = (retrieval_acts){.max_loss = room->max_loss};
    TRY(choice_alloc(&a->tokens, room, h->dim));
    TRY(nn_new_act(room->memory, &a->query, room->max_loss, h->dim));
    if (room->is_training) TRY(nn_new_act(room->memory, &a->d_query, room->max_loss, h->dim));
    TRY(NN_NEW(room->memory, &a->stats, 2 * room->max_loss));
    return loss_alloc(&a->loss, &h->loss, room);
}

static l2_args query_l2_of(const retrieval_head *h, const retrieval_acts *a, int64_t n,
                           const void *x) {
    return (l2_args){.n = n,
                     .dim = h->dim,
                     .eps = h->eps,
                     .x = x,
                     .y = a->query,
                     .scale = a->stats,
                     .dy = a->d_query};
}

static norm_args norm_of(const retrieval_head *h, const retrieval_acts *a, int64_t n,
                         const void *x) {
    return (norm_args){.n = n,
                       .dim = h->dim,
                       .eps = h->eps,
                       .x = x,
                       .y = a->query,
                       .mean = a->stats,
                       .rstd = a->stats + a->max_loss,
                       .dy = a->d_query};
}

status retrieval_encode(const retrieval_head *h, retrieval_acts *a, backend *be,
                        const batch_layout *p, const void *hidden, const void **out) {
    const void *x = NULL;
    TRY(choice_fwd(&a->tokens, be, p, hidden, &x));
    l2_args l2 = query_l2_of(h, a, p->n_loss, x);
    norm_args norm = norm_of(h, a, p->n_loss, x);
    *out = a->query;
    return h->has_layer_norm ? be->ops->norm_fwd(be, &norm) : be->ops->l2_fwd(be, &l2);
}

static status encode_bwd(const retrieval_head *h, retrieval_acts *a, backend *be,
                         const batch_layout *p, const void *hidden, void *d_hidden) {
    const void *x = a->tokens.is_all ? hidden : a->tokens.x;
    l2_args l2 = query_l2_of(h, a, p->n_loss, x);
    norm_args norm = norm_of(h, a, p->n_loss, x);
    l2.dx = norm.dx = choice_gradient(&a->tokens, d_hidden);
    TRY(h->has_layer_norm ? be->ops->norm_bwd(be, &norm) : be->ops->l2_bwd(be, &l2));
    return choice_bwd(&a->tokens, be, p, d_hidden);
}

status retrieval_train(const retrieval_head *h, retrieval_acts *a, backend *be,
                       const batch_layout *p, loss_rows rows, const void *hidden, void *d_hidden) {
    TRY(retrieval_encode(h, a, be, p, hidden, &rows.x));
    rows.dx = a->d_query;
    TRY(loss_train(&h->loss, &a->loss, be, p, &rows));
    return encode_bwd(h, a, be, p, hidden, d_hidden);
}
