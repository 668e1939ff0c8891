#include "train/optimizer.h"

#include <math.h>

#include "base/mem.h"

row_mode optimizer_row_mode(const config *c) {
    return c->family == FAMILY_META ? ROWS_DENSE : ROWS_LAZY;
}

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
static const opt_kind kinds[][2] = {
    [OPTIMIZER_ADAM] = {OPT_ADAMW, OPT_ADAMW},
    [OPTIMIZER_SGD] = {OPT_SGD, OPT_SGD},
    [OPTIMIZER_ROW_WISE_ADAGRAD] = {OPT_ADAMW, OPT_ROWWISE_ADAGRAD}};

static status allocate(optimizer *o) {
    const ops *f = o->be->ops;
    int64_t most_rows = 1;
    TRY(MEM_NEW(&o->state, (size_t)o->n_params));
    TRY(f->alloc(o->be, (void **)&o->grad_scale, sizeof *o->grad_scale));
    TRY(f->alloc(o->be, (void **)&o->sum, sizeof *o->sum));
    for (int i = 0; i < o->n_params; i++) {
        const param *p = &o->params[i];
        if (p->is_table && p->shape[0] > most_rows) most_rows = p->shape[0];
        if (kind_of(o, p) == OPT_SGD) continue;
        size_t bytes = (size_t)optimizer_state_shape(o, p).n * sizeof(float);
        TRY(f->alloc(o->be, (void **)&o->state[i].m, bytes));
        if (kind_of(o, p) == OPT_ADAMW) TRY(f->alloc(o->be, (void **)&o->state[i].v, bytes));
    }
    return f->alloc(o->be, (void **)&o->touched, (size_t)most_rows * sizeof *o->touched);
}

status optimizer_init(optimizer *o, backend *be, param *params, int n_params, const config *c) {
    *o = (optimizer){.be = be,
                     .params = params,
                     .n_params = n_params,
                     .kind = kinds[c->optimizer.kind][0],
                     .table_kind = kinds[c->optimizer.kind][1],
                     .rows = optimizer_row_mode(c),
                     .beta1 = (float)c->optimizer.beta1,
                     .beta2 = (float)c->optimizer.beta2,
                     .eps = (float)c->optimizer.epsilon,
                     .weight_decay = (float)c->optimizer.weight_decay,
                     .clip = c->trainer.clip_grad};
    status st = allocate(o);
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
    f->release(o->be, o->touched);
    mem_free(o->state);
    *o = (optimizer){0};
}

/* The norm of the whole gradient, before scaling. */
static status measure_norm(optimizer *o, double *out) {
    const ops *f = o->be->ops;
    double sum = 0;
    TRY(f->zero(o->be, o->sum, sizeof *o->sum));
    for (int i = 0; i < o->n_params; i++)
        TRY(f->sum_squares(o->be, o->params[i].n, o->params[i].grad, o->sum));
    TRY(f->copy_out(o->be, &sum, o->sum, sizeof sum));
    *out = sqrt(sum);
    return OK;
}

static status update_param(optimizer *o, int i, double lr, int64_t t, bool is_scaled) {
    param *p = &o->params[i];
    bool is_lazy = p->is_table && o->rows == ROWS_LAZY;
    update_args a = {.kind = kind_of(o, p),
                     .n = p->n,
                     .dim = (int32_t)(p->n_dims > 0 ? p->shape[p->n_dims - 1] : 1),
                     .w = p->value,
                     .grad = p->grad,
                     .m = o->state[i].m,
                     .v = o->state[i].v,
                     .lr = (float)lr,
                     .beta1 = o->beta1,
                     .beta2 = o->beta2,
                     .eps = o->eps,
                     .weight_decay = is_lazy ? 0 : o->weight_decay,
                     .step = t,
                     .grad_scale = is_scaled ? o->grad_scale : NULL};
    if (is_lazy) {
        size_t bytes = (size_t)p->n_touched * sizeof *p->touched;
        if (bytes > 0) TRY(o->be->ops->copy_in(o->be, o->touched, p->touched, bytes));
        a.rows = o->touched;
        a.n_rows = p->n_touched;
    }
    TRY(o->be->ops->update(o->be, &a));
    p->n_touched = 0;
    return OK;
}

status optimizer_step(optimizer *o, double lr, int64_t t, double scale, double *out_norm) {
    *out_norm = NAN;
    if (o->clip > 0) {
        TRY(measure_norm(o, out_norm));
        *out_norm *= scale;
        if (!isfinite(*out_norm))
            return fail(ERR_NUMERIC, "the gradient of step %lld is not finite", (long long)t - 1);
        if (*out_norm > o->clip) scale *= o->clip / *out_norm;
    }
    bool is_scaled = scale != 1;
    float on_device = (float)scale;
    if (is_scaled) TRY(o->be->ops->copy_in(o->be, o->grad_scale, &on_device, sizeof on_device));
    for (int i = 0; i < o->n_params; i++)
        TRY(update_param(o, i, lr, t, is_scaled));
    return OK;
}

double schedule_rate(const config *c, int64_t t, int64_t n_steps) {
    const config_optimizer *o = &c->optimizer;
    double rate = o->learning_rate;
    if (t <= o->n_warmup_steps) return rate * (double)t / (double)o->n_warmup_steps;
    if (o->schedule == SCHEDULE_CONSTANT || n_steps <= o->n_warmup_steps) return rate;
    double done = (double)(t - o->n_warmup_steps) / (double)(n_steps - o->n_warmup_steps);
    return rate * 0.5 * (1 + cos(3.14159265358979323846 * (done < 1 ? done : 1)));
}
