#include "train/loop/optimizer.h"

#include "ops/comm.h"

const char *row_mode_name(row_mode rows) {
    return rows == ROWS_DENSE ? "dense" : "lazy";
}

static opt_kind kind_of(const optimizer *o, const param *p) {
    return p->is_table ? o->table_kind : o->kind;
}

param optimizer_state_shape(const optimizer *o, const param *p) {
    param shape = *p;
    if (kind_of(o, &shape) == OPT_ROWWISE_ADAGRAD) {
        shape.n_dims = 1;
        shape.n = shape.shape[0];
    }
    return shape;
}

/* What each choice of the config means for dense weights and for tables. */
static const opt_kind kinds[][2] = {[OPTIMIZER_ADAM] = {OPT_ADAMW, OPT_ADAMW},
                                    [OPTIMIZER_SGD] = {OPT_SGD, OPT_SGD},
                                    [OPTIMIZER_ROW_WISE_ADAGRAD] = {OPT_ADAMW, OPT_ROWWISE_ADAGRAD},
                                    [OPTIMIZER_ADAGRAD] = {OPT_ADAMW, OPT_ADAGRAD}};

/* The bank that lists the rows of a table, or NULL. */
static bank *bank_of(const optimizer *o, const param *p) {
    for (int i = 0; i < o->n_listed; i++) {
        int64_t at = p->value - o->listed[i]->value;
        if (p->is_table && at >= 0 && at < (int64_t)o->listed[i]->n_rows * o->listed[i]->dim)
            return o->listed[i];
    }
    return NULL;
}

static status begin_late(optimizer *o) {
    o->now = 0;
    return o->be->ops->late_step(o->be, &(late_step_args){.late = o->late});
}

/* What rows that miss steps need; rows of lazy tables miss none. */
static status allocate_late(optimizer *o) {
    const ops *f = o->be->ops;
    late_rows *late = &o->late;
    size_t n = LATE_STEPS + 1;
    if (o->n_listed == 0 || o->rows == ROWS_LAZY) return OK;
    TRY(f->alloc(o->be, (void **)&late->sums, n * sizeof *late->sums));
    TRY(f->alloc(o->be, (void **)&late->missed, n * sizeof *late->missed));
    TRY(f->alloc(o->be, (void **)&late->rules, n * LATE_RULE * sizeof *late->rules));
    return begin_late(o);
}

static status allocate_moments(optimizer *o, float **out, size_t n) {
    TRY(o->be->ops->alloc(o->be, (void **)out, n * sizeof **out));
    if (o->be->is_host) mem_use_huge_pages(*out, n * sizeof **out);
    return OK;
}

/* The state of the tables of a bank, one after the other like their values. */
static status allocate_bank(optimizer *o, bank *b) {
    const ops *f = o->be->ops;
    bool is_rowwise = o->table_kind == OPT_ROWWISE_ADAGRAD;
    size_t n = (size_t)b->n_rows * (is_rowwise ? 1 : (size_t)b->dim);
    if (o->table_kind == OPT_SGD) return OK;
    TRY(allocate_moments(o, &b->m, n));
    if (o->table_kind != OPT_ADAMW) return OK;
    TRY(allocate_moments(o, &b->v, n));
    b->late = o->late;
    if (o->rows == ROWS_LAZY) return OK;
    return f->alloc(o->be, (void **)&b->late.last, (size_t)b->n_rows * sizeof(float));
}

static void free_bank(optimizer *o, bank *b) {
    const ops *f = o->be->ops;
    f->release(o->be, b->m);
    f->release(o->be, b->v);
    f->release(o->be, b->late.last);
    b->m = b->v = NULL;
    b->late = (late_rows){0};
    b->step = (row_grads){0};
}

static void point_state(const optimizer *o, const param *p, const bank *b, moments *state) {
    int64_t at = p->value - b->value;
    if (o->table_kind == OPT_ROWWISE_ADAGRAD) at /= b->dim;
    if (b->m != NULL) state->m = b->m + at;
    if (b->v != NULL) state->v = b->v + at;
}

static status allocate(optimizer *o) {
    const ops *f = o->be->ops;
    TRY(MEM_NEW(&o->state, (size_t)o->n_params));
    TRY(MEM_NEW(&o->updates, (size_t)(o->n_params + o->n_listed)));
    TRY(allocate_late(o));
    for (int i = 0; i < o->n_listed; i++)
        TRY(allocate_bank(o, o->listed[i]));
    TRY(f->alloc(o->be, (void **)&o->grad_scale, sizeof *o->grad_scale));
    TRY(f->alloc(o->be, (void **)&o->sum, sizeof *o->sum));
    TRY(f->alloc(o->be, (void **)&o->norm, sizeof *o->norm));
    for (int i = 0; i < o->n_params; i++) {
        const param *p = &o->params[i];
        const bank *b = bank_of(o, p);
        if (b != NULL) point_state(o, p, b, &o->state[i]);
        if (b != NULL || kind_of(o, p) == OPT_SGD) continue;
        size_t bytes = (size_t)optimizer_state_shape(o, p).n * sizeof(float);
        TRY(f->alloc(o->be, (void **)&o->state[i].m, bytes));
        if (kind_of(o, p) == OPT_ADAMW) TRY(f->alloc(o->be, (void **)&o->state[i].v, bytes));
    }
    return OK;
}

/* What the optimizer updates. */
static float *weights_of(const param *p) {
    return p->own != NULL ? p->own : p->value;
}

static status allocate_averages(optimizer *o) {
    if (!(o->average_decay > 0)) return OK;
    TRY(MEM_NEW(&o->averages, (size_t)o->n_params));
    for (int i = 0; i < o->n_params; i++) {
        average_args *a = &o->averages[i];
        *a = (average_args){.n = o->params[i].n, .w = weights_of(&o->params[i])};
        TRY(allocate_moments(o, &a->average, (size_t)a->n));
    }
    return OK;
}

status optimizer_begin_averages(optimizer *o) {
    if (o->averages == NULL || o->has_averages) return OK;
    for (int i = 0; i < o->n_params; i++) {
        const average_args *a = &o->averages[i];
        TRY(o->be->ops->copy(o->be, a->average, a->w, (size_t)a->n * sizeof *a->w));
    }
    o->has_averages = true;
    return OK;
}

/* The average counts the first steps more, or it would hold the first values for long. */
static status update_averages(optimizer *o, int64_t t) {
    double early = (1 + (double)t) / (10 + (double)t);
    if (o->averages == NULL) return OK;
    double decay = o->average_decay < early ? o->average_decay : early;
    return o->be->ops->average(o->be, o->averages, o->n_params, (float)decay);
}

/* Contents change places, not pointers: recorded steps have these. */
static status exchange_averages(optimizer *o) {
    const ops *f = o->be->ops;
    int64_t most = 0;
    float *room;
    for (int i = 0; i < o->n_params; i++)
        if (o->params[i].n > most) most = o->params[i].n;
    TRY(f->alloc(o->be, (void **)&room, (size_t)most * sizeof *room));
    status st = OK;
    for (int i = 0; i < o->n_params && st == OK; i++) {
        const average_args *a = &o->averages[i];
        size_t bytes = (size_t)a->n * sizeof *room;
        st = f->copy(o->be, room, a->w, bytes);
        if (st == OK) st = f->copy(o->be, a->w, a->average, bytes);
        if (st == OK) st = f->copy(o->be, a->average, room, bytes);
    }
    if (st == OK) st = f->sync(o->be);
    f->release(o->be, room);
    o->is_exchanged = !o->is_exchanged;
    return st == OK ? content_make(o->content) : st;
}

float *optimizer_weights(const optimizer *o, int i) {
    if (!o->has_averages) return NULL;
    return o->is_exchanged ? o->averages[i].average : o->averages[i].w;
}

status optimizer_init(optimizer *o, backend *be, model *m, const config *c) {
    int n_params;
    param *params = model_params(m, &n_params);
    *o = (optimizer){0};
    TRY(model_alloc_grads(m));
    *o = (optimizer){.be = be,
                     .params = params,
                     .n_params = n_params,
                     .dense_grads = model_dense_grads(m),
                     .tables = model_tables(m),
                     .content = model_content(m),
                     .tensor = model_tensor(m),
                     .kind = kinds[c->optimizer.kind][0],
                     .table_kind = kinds[c->optimizer.kind][1],
                     .rows = config_has_sparse_rows(c) ? ROWS_LAZY : ROWS_DENSE,
                     .beta1 = (float)c->optimizer.beta1,
                     .beta2 = (float)c->optimizer.beta2,
                     .eps = (float)c->optimizer.epsilon,
                     .weight_decay = (float)c->optimizer.weight_decay,
                     .no_decay = c->optimizer.no_decay,
                     .average_decay = c->optimizer.average,
                     .clip = c->trainer.clip_grad,
                     .is_watched = c->trainer.clip_grad > 0 || be->act == ACT_F16};
    range_begin("optimizer state", RANGE_NO_NUMBER);
    o->n_listed = model_listed_banks(m, o->listed);
    status st = allocate(o);
    if (st == OK) st = allocate_averages(o);
    range_end();
    if (st != OK) optimizer_fini(o);
    return st;
}

void optimizer_fini(optimizer *o) {
    if (o->be == NULL) return;
    const ops *f = o->be->ops;
    for (int i = 0; i < o->n_params && o->state != NULL; i++) {
        if (bank_of(o, &o->params[i]) != NULL) continue;
        f->release(o->be, o->state[i].m);
        f->release(o->be, o->state[i].v);
    }
    for (int i = 0; i < o->n_listed; i++) {
        free_bank(o, o->listed[i]);
        f->release(o->be, o->raw[i]);
    }
    for (int i = 0; i < o->n_params && o->averages != NULL; i++)
        f->release(o->be, o->averages[i].average);
    mem_free(o->averages);
    f->release(o->be, o->late.sums);
    f->release(o->be, o->late.missed);
    f->release(o->be, o->late.rules);
    f->release(o->be, o->grad_scale);
    f->release(o->be, o->sum);
    f->release(o->be, o->norm);
    MEM_FREE(o->updates, o->state);
    *o = (optimizer){0};
}

uint64_t optimizer_bytes(const optimizer *o) {
    uint64_t n = 0;
    for (int i = 0; i < o->n_params; i++) {
        uint64_t one = (uint64_t)optimizer_state_shape(o, &o->params[i]).n;
        n += one * ((o->state[i].m != NULL) + (o->state[i].v != NULL));
        n += o->averages != NULL ? (uint64_t)o->params[i].n : 0;
    }
    return n * sizeof(float);
}

/* The squares of a table's gradient.  On the CPU row by row where rows are marked: the same bits
 * however many ranks hold the table. */
static status add_table_squares(optimizer *o, const param *p) {
    bool is_host = o->be->is_host;
    if (p->rows != NULL) return dynamic_add_static_squares(o->tables, p, o->sum);
    if (p->grad == NULL) return OK; /* add_listed_squares */
    if (!is_host || p->marks == NULL) return o->be->ops->sum_squares(o->be, p->n, p->grad, o->sum);
    int32_t dim = (int32_t)p->shape[1];
    for (int64_t row = 0; row < p->shape[0]; row++)
        if (p->marks[row]) *o->sum += dynamic_row_squares(p->grad + row * dim, dim);
    return OK;
}

static status add_listed_squares(optimizer *o) {
    for (int i = 0; i < o->n_listed; i++) {
        const bank *b = o->listed[i];
        if (!o->be->is_host)
            TRY(o->be->ops->sum_squares(o->be, b->step.n * b->dim, b->step.grad, o->sum));
        for (int64_t row = 0; row < b->step.n && o->be->is_host; row++)
            *o->sum += dynamic_row_squares(b->step.grad + row * b->dim, b->dim);
    }
    return OK;
}

/* Where ranks share layers, each adds the squares of its own parts, and the first one those of what
 * all have: all ranks get the same sum. */
static status add_squares_of_parts(optimizer *o) {
    const ops *f = o->be->ops;
    bool is_first = o->tensor->rank == 0;
    for (int i = 0; i < o->n_params; i++)
        if (is_first && o->params[i].is_table)
            TRY(add_table_squares(o, &o->params[i]));
        else if (is_first || o->params[i].cut.n_parts > 1)
            TRY(f->sum_squares(o->be, o->params[i].n, o->params[i].grad, o->sum));
    if (is_first) TRY(add_listed_squares(o));
    if (is_first) TRY(dynamic_add_squares(o->tables, o->sum));
    all_reduce_args a = {COMM_F64, COMM_SUM, 1, o->sum, o->sum};
    return o->tensor->ops->all_reduce(o->tensor, &a);
}

/* The sum of the squares of all gradients: tables one by one, everything dense in one call. */
static status add_squares(optimizer *o) {
    const ops *f = o->be->ops;
    if (o->tensor != NULL) return add_squares_of_parts(o);
    for (int i = 0; i < o->n_params; i++)
        if (o->params[i].is_table) TRY(add_table_squares(o, &o->params[i]));
    TRY(add_listed_squares(o));
    TRY(f->sum_squares(o->be, o->dense_grads.n, o->dense_grads.first, o->sum));
    return dynamic_add_squares(o->tables, o->sum);
}

/* The factor of the update, on the device: the scale, reduced by clipping, 0 where the gradient is
 * not finite. */
static status set_factor(optimizer *o, double scale) {
    const ops *f = o->be->ops;
    TRY(f->zero(o->be, o->sum, sizeof *o->sum));
    if (o->is_watched) TRY(add_squares(o));
    grad_factor_args a = {.sum = o->sum,
                          .base = (float)scale,
                          .clip = (float)o->clip,
                          .factor = o->grad_scale,
                          .norm = o->norm};
    return f->grad_factor(o->be, &a);
}

/* Whether the config leaves a parameter out of weight decay. */
static bool is_decayed(const optimizer *o, bool is_table, int n_dims) {
    int group = is_table ? NO_DECAY_TABLES : n_dims <= 1 ? NO_DECAY_VECTORS : 0;
    return (o->no_decay & group) == 0;
}

/* What the updates of a step have in common. */
static update_args common_update(const optimizer *o, bool is_decayed, double lr, int64_t t) {
    return (update_args){.lr = (float)lr,
                         .beta1 = o->beta1,
                         .beta2 = o->beta2,
                         .eps = o->eps,
                         .weight_decay = is_decayed ? o->weight_decay : 0,
                         .step = t};
}

static update_args update_of(const optimizer *o, int i, double lr, int64_t t) {
    const param *p = &o->params[i];
    bool is_lazy = p->is_table && o->rows == ROWS_LAZY;
    bool has_decay = !is_lazy && is_decayed(o, p->is_table, p->n_dims);
    update_args a = common_update(o, has_decay, lr, t);
    if (p->grad == NULL) return a; /* update_of_bank */
    a.kind = kind_of(o, p);
    a.n = p->n;
    a.dim = (int32_t)(p->n_dims > 0 ? p->shape[p->n_dims - 1] : 1);
    a.marks = is_lazy ? p->marks : NULL;
    a.w = weights_of(p);
    a.grad = p->grad;
    a.m = o->state[i].m;
    a.v = o->state[i].v;
    return a;
}

static update_args update_of_bank(const optimizer *o, const bank *b, double lr, int64_t t) {
    bool has_decay = o->rows != ROWS_LAZY && is_decayed(o, true, 2);
    update_args a = common_update(o, has_decay, lr, t);
    a.kind = o->table_kind;
    a.n = b->step.n * b->dim;
    a.dim = b->dim;
    a.rows = b->step.rows;
    a.late = b->late;
    a.now = o->now;
    a.w = b->value;
    a.grad = b->step.grad;
    a.m = b->m;
    a.v = b->v;
    return a;
}

static read_rows_args all_rows(const bank *b) {
    return (read_rows_args){
        .n = b->n_rows, .dim = b->dim, .late = b->late, .w = b->value, .m = b->m, .v = b->v};
}

static status catch_up(optimizer *o) {
    for (int i = 0; i < o->n_listed; i++) {
        read_rows_args all = all_rows(o->listed[i]);
        TRY(o->be->ops->read_rows(o->be, &all));
    }
    return begin_late(o);
}

/* The step that was just made, a, is one that rows without a gradient have missed. */
static status end_late(optimizer *o, const update_args *a) {
    for (int i = 0; i < o->n_listed; i++)
        o->listed[i]->step = (row_grads){0};
    if (o->late.rules == NULL) return OK;
    late_step_args late = {.late = o->late,
                           .now = o->now,
                           .rule = optimizer_rule_make(a->kind, a->lr, a->beta1, a->beta2, a->eps,
                                                       a->weight_decay, a->step),
                           .grad_scale = a->grad_scale};
    TRY(o->be->ops->late_step(o->be, &late));
    return o->now == LATE_STEPS ? catch_up(o) : OK;
}

bool optimizer_is_late(const optimizer *o) {
    return o->late.rules != NULL && o->now > 0;
}

static size_t bank_bytes(const bank *b) {
    return (size_t)b->n_rows * (size_t)b->dim * sizeof(float);
}

status optimizer_show(optimizer *o) {
    const ops *f = o->be != NULL ? o->be->ops : NULL;
    if (o->has_averages && !o->is_exchanged) TRY(exchange_averages(o));
    for (int i = 0; i < o->n_listed && optimizer_is_late(o) && o->raw[i] == NULL; i++) {
        bank *b = o->listed[i];
        TRY(f->alloc(o->be, (void **)&o->raw[i], bank_bytes(b)));
        TRY(f->copy(o->be, o->raw[i], b->value, bank_bytes(b)));
        read_rows_args all = all_rows(b);
        all.w = o->raw[i];
        all.y = b->value;
        TRY(f->read_rows(o->be, &all));
    }
    return OK;
}

status optimizer_hide(optimizer *o) {
    if (o->is_exchanged) TRY(exchange_averages(o));
    for (int i = 0; i < o->n_listed; i++) {
        if (o->raw[i] == NULL) continue;
        TRY(o->be->ops->copy(o->be, o->listed[i]->value, o->raw[i], bank_bytes(o->listed[i])));
        TRY(o->be->ops->sync(o->be));
        o->be->ops->release(o->be, o->raw[i]);
        o->raw[i] = NULL;
    }
    return OK;
}

float *optimizer_last(const optimizer *o, const param *p) {
    const bank *b = bank_of(o, p);
    if (b == NULL || b->late.last == NULL) return NULL;
    return b->late.last + (p->value - b->value) / b->dim;
}

float *optimizer_raw(const optimizer *o, const param *p) {
    for (int i = 0; i < o->n_listed; i++)
        if (o->listed[i] == bank_of(o, p) && o->raw[i] != NULL)
            return o->raw[i] + (p->value - o->listed[i]->value);
    return NULL;
}

status optimizer_redo_rules(optimizer *o, const float *rules, int32_t n) {
    const ops *f = o->be->ops;
    TRY(begin_late(o));
    TRY(f->zero(o->be, o->grad_scale, sizeof *o->grad_scale));
    for (; o->now < n; rules += LATE_RULE) {
        bool is_skipped = rules[2] == 0;
        late_step_args late = {.late = o->late,
                               .now = ++o->now,
                               .rule = {o->beta1, o->beta2, o->eps, rules[0], rules[1], rules[2]},
                               .grad_scale = is_skipped ? o->grad_scale : NULL};
        TRY(f->late_step(o->be, &late));
    }
    return OK;
}

/* Rows of dynamic tables are updated like rows of lazy tables. */
static status update_tables(optimizer *o, double lr, int64_t t, const float *grad_scale) {
    embed_step_args a = {.lr = (float)lr,
                         .beta1 = o->beta1,
                         .beta2 = o->beta2,
                         .eps = o->eps,
                         .grad_scale = grad_scale,
                         .step = t};
    return dynamic_update(o->tables, &a);
}

status optimizer_step(optimizer *o, double lr, int64_t t, double scale) {
    bool is_scaled = o->is_watched || scale != 1;
    TRY(dynamic_put_grads(o->tables));
    TRY(content_bwd(o->content));
    if (is_scaled) TRY(set_factor(o, scale));
    TRY(optimizer_begin_averages(o));
    int n = o->n_params + o->n_listed;
    o->now++;
    for (int i = 0; i < n; i++) {
        o->updates[i] = i < o->n_params ? update_of(o, i, lr, t)
                                        : update_of_bank(o, o->listed[i - o->n_params], lr, t);
        o->updates[i].grad_scale = is_scaled ? o->grad_scale : NULL;
    }
    TRY(o->be->ops->update(o->be, o->updates, n));
    TRY(update_averages(o, t));
    TRY(end_late(o, o->updates + o->n_params));
    TRY(content_make(o->content));
    return update_tables(o, lr, t, is_scaled ? o->grad_scale : NULL);
}

status optimizer_fetch_norm(optimizer *o, double *to, uint64_t *ticket) {
    *to = NAN;
    *ticket = 0;
    if (!o->is_watched) return OK;
    return o->be->ops->fetch(o->be, to, o->norm, sizeof *to, ticket);
}

double schedule_rate(const config *c, int64_t t, int64_t n_steps) {
    const config_optimizer *o = &c->optimizer;
    double rate = o->learning_rate;
    if (t <= o->n_warmup_steps) return rate * (double)t / (double)o->n_warmup_steps;
    /* A single step would have the rate of the last one, 0. */
    if (o->schedule == SCHEDULE_CONSTANT || n_steps <= o->n_warmup_steps + 1) return rate;
    double done = (double)(t - o->n_warmup_steps) / (double)(n_steps - o->n_warmup_steps);
    return rate * 0.5 * (1 + cos(3.14159265358979323846 * (done < 1 ? done : 1)));
}
