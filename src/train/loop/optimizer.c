#include "train/loop/optimizer.h"

#include <math.h>

#include "base/mem.h"
#include "base/range.h"
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

static status allocate(optimizer *o) {
    const ops *f = o->be->ops;
    TRY(MEM_NEW(&o->state, (size_t)o->n_params));
    TRY(MEM_NEW(&o->updates, (size_t)o->n_params));
    TRY(f->alloc(o->be, (void **)&o->grad_scale, sizeof *o->grad_scale));
    TRY(f->alloc(o->be, (void **)&o->sum, sizeof *o->sum));
    TRY(f->alloc(o->be, (void **)&o->norm, sizeof *o->norm));
    for (int i = 0; i < o->n_params; i++) {
        const param *p = &o->params[i];
        if (kind_of(o, p) == OPT_SGD) continue;
        size_t bytes = (size_t)optimizer_state_shape(o, p).n * sizeof(float);
        TRY(f->alloc(o->be, (void **)&o->state[i].m, bytes));
        if (kind_of(o, p) == OPT_ADAMW) TRY(f->alloc(o->be, (void **)&o->state[i].v, bytes));
    }
    return OK;
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
                     .rows = c->family == FAMILY_META ? ROWS_DENSE : ROWS_LAZY,
                     .beta1 = (float)c->optimizer.beta1,
                     .beta2 = (float)c->optimizer.beta2,
                     .eps = (float)c->optimizer.epsilon,
                     .weight_decay = (float)c->optimizer.weight_decay,
                     .clip = c->trainer.clip_grad,
                     .is_watched = c->trainer.clip_grad > 0 || be->act == ACT_F16};
    range_begin("optimizer state", RANGE_NO_NUMBER);
    status st = allocate(o);
    range_end();
    if (st != OK) optimizer_fini(o);
    return st;
}

void optimizer_fini(optimizer *o) {
    if (o->be == NULL) return;
    const ops *f = o->be->ops;
    for (int i = 0; i < o->n_params && o->state != NULL; i++) {
        f->release(o->be, o->state[i].m);
        f->release(o->be, o->state[i].v);
    }
    f->release(o->be, o->grad_scale);
    f->release(o->be, o->sum);
    f->release(o->be, o->norm);
    mem_free(o->updates);
    mem_free(o->state);
    *o = (optimizer){0};
}

uint64_t optimizer_bytes(const optimizer *o) {
    uint64_t n = 0;
    for (int i = 0; i < o->n_params; i++) {
        uint64_t one = (uint64_t)optimizer_state_shape(o, &o->params[i]).n;
        n += one * ((o->state[i].m != NULL) + (o->state[i].v != NULL));
    }
    return n * sizeof(float);
}

/* The squares of a table's gradient.  On the CPU row by row where rows are marked: the same bits
 * however many ranks hold the table. */
static status add_table_squares(optimizer *o, const param *p) {
    bool is_host = o->be->is_host;
    if (p->rows != NULL) return dynamic_add_static_squares(o->tables, p, o->sum);
    if (!is_host || p->marks == NULL) return o->be->ops->sum_squares(o->be, p->n, p->grad, o->sum);
    int32_t dim = (int32_t)p->shape[1];
    for (int64_t row = 0; row < p->shape[0]; row++)
        if (p->marks[row]) *o->sum += dynamic_row_squares(p->grad + row * dim, dim);
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

static update_args update_of(const optimizer *o, int i, double lr, int64_t t) {
    const param *p = &o->params[i];
    bool is_lazy = p->is_table && o->rows == ROWS_LAZY;
    return (update_args){.kind = kind_of(o, p),
                         .n = p->n,
                         .dim = (int32_t)(p->n_dims > 0 ? p->shape[p->n_dims - 1] : 1),
                         .marks = is_lazy ? p->marks : NULL,
                         .w = p->own != NULL ? p->own : p->value,
                         .grad = p->grad,
                         .m = o->state[i].m,
                         .v = o->state[i].v,
                         .lr = (float)lr,
                         .beta1 = o->beta1,
                         .beta2 = o->beta2,
                         .eps = o->eps,
                         .weight_decay = is_lazy ? 0 : o->weight_decay,
                         .step = t};
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
    for (int i = 0; i < o->n_params; i++) {
        o->updates[i] = update_of(o, i, lr, t);
        o->updates[i].grad_scale = is_scaled ? o->grad_scale : NULL;
    }
    TRY(o->be->ops->update(o->be, o->updates, o->n_params));
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
