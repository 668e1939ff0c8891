#include "cli/bench/slope.h"

#include <math.h>

#include "base/mem.h"
#include "nn/dynamic.h"

enum { PIECE = 1 << 14, FEW_USERS = 2, MORE_STEPS = 2 };

/* Above this product of parameters and events in the batch only two users are checked: the check
 * takes three passes and copies the gradient to the host. */
static const double LARGE = 1e12;

/* Length of the step: short enough that few ReLUs change sides, long enough that the losses differ
 * by more than their rounding. */
static const double STEP_F32 = 5e-5, STEP_HALF = 1e-3;

/* float16: gradients of a mean over many positions would vanish. */
static const double LOSS_SCALE_F16 = 1024;

typedef struct slope {
    session *s;
    batch b;
    uint64_t seed;
    float **value, **grad; /* (n_params), (n) each: host */
    double square;         /* |g|^2 */
} slope;

static batch choose_users(const session *s, const batch *b) {
    batch few = *b;
    if (b->n_users <= FEW_USERS || (double)model_n_numbers(s->model) * (double)b->n_tokens <= LARGE)
        return few;
    few.n_users = FEW_USERS;
    few.n_tokens = b->offsets[FEW_USERS];
    return few;
}

/* The mean loss, and the gradients of `scale` times it. */
static status run(slope *p, double scale, double *loss) {
    int64_t n = model_count_loss(p->s->model, &p->b);
    model_step at = {.seed = p->seed, .step = 1};
    at.grad_scale = (float)(scale / (double)n);
    TRY(pass_train(p->s->train, &p->b, &at, NULL));
    TRY(pass_take_loss(p->s->train, loss));
    dynamic_forget(model_tables(p->s->model)); /* only parameters are moved here */
    *loss /= (double)n;
    return OK;
}

/* Values and gradients to the host. */
static status fetch(slope *p, double scale) {
    backend *be = p->s->be;
    for (int i = 0; i < p->s->n_params; i++) {
        const param *x = &p->s->params[i];
        TRY(be->ops->copy_out(be, p->value[i], x->value, (size_t)x->n * sizeof(float)));
        TRY(be->ops->copy_out(be, p->grad[i], x->grad, (size_t)x->n * sizeof(float)));
        for (int64_t k = 0; k < x->n; k++) {
            p->grad[i][k] = (float)((double)p->grad[i][k] / scale);
            p->square += (double)p->grad[i][k] * (double)p->grad[i][k];
        }
    }
    return OK;
}

/* The parameters become value + by * grad. */
static status move(slope *p, double by) {
    float piece[PIECE];
    backend *be = p->s->be;
    for (int i = 0; i < p->s->n_params; i++) {
        const param *x = &p->s->params[i];
        for (int64_t at = 0; at < x->n; at += PIECE) {
            int64_t n = x->n - at < PIECE ? x->n - at : PIECE;
            const float *value = p->value[i] + at, *grad = p->grad[i] + at;
            for (int64_t k = 0; k < n; k++)
                piece[k] = (float)((double)value[k] + by * (double)grad[k]);
            TRY(be->ops->copy_in(be, x->value + at, piece, (size_t)n * sizeof *piece));
        }
    }
    return OK;
}

/* Clears the gradients and the marks of touched rows that the passes left. */
static status clear(slope *p) {
    backend *be = p->s->be;
    for (int i = 0; i < p->s->n_params; i++) {
        const param *x = &p->s->params[i];
        TRY(be->ops->zero(be, x->grad, (size_t)x->n * sizeof *x->grad));
        if (x->marks != NULL)
            TRY(be->ops->zero(be, x->marks, (size_t)x->shape[0] * sizeof *x->marks));
    }
    return OK;
}

/* How far the slope over a step of length `step` to either side is from |g|. */
static status measure(slope *p, double step, double *error) {
    double up = 0, down = 0, by = step / sqrt(p->square);
    TRY(move(p, by));
    TRY(run(p, 0, &up));
    TRY(move(p, -by));
    TRY(run(p, 0, &down));
    TRY(move(p, 0));
    TRY(clear(p));
    *error = fabs((up - down) / (2 * by) / p->square - 1);
    return OK;
}

/* A ReLU that changes sides within the step bends the loss of a small model; over a shorter step it
 * does not, whereas a wrong gradient is wrong over any. */
static status compare(slope *p, slope_result *out) {
    double here, step;
    bool is_half = p->s->be->act != ACT_F32;
    double scale = p->s->be->act == ACT_F16 ? LOSS_SCALE_F16 : 1;
    TRY(run(p, scale, &here));
    TRY(fetch(p, scale));
    out->allowed = is_half ? .25 : .05;
    step = is_half ? STEP_HALF : STEP_F32;
    TRY(measure(p, step, &out->error));
    for (int i = 0; i < MORE_STEPS && !is_half && !(out->error < out->allowed); i++)
        TRY(measure(p, step /= 2, &out->error));
    out->n_users = p->b.n_users;
    if (out->error < out->allowed) return OK;
    return fail(ERR_NUMERIC,
                "the gradient does not fit the loss: the slope along it differs by %.1f %%, and "
                "%.0f %% are allowed",
                100 * out->error, 100 * out->allowed);
}

static status make_room(slope *p) {
    TRY(MEM_NEW(&p->value, (size_t)p->s->n_params));
    TRY(MEM_NEW(&p->grad, (size_t)p->s->n_params));
    for (int i = 0; i < p->s->n_params; i++) {
        TRY(MEM_NEW_RAW(&p->value[i], (size_t)p->s->params[i].n));
        TRY(MEM_NEW_RAW(&p->grad[i], (size_t)p->s->params[i].n));
    }
    return OK;
}

status slope_check(session *s, const batch *b, uint64_t seed, slope_result *out) {
    slope p = {.s = s, .b = choose_users(s, b), .seed = seed};
    *out = (slope_result){0};
    status st = make_room(&p);
    if (st == OK) st = compare(&p, out);
    for (int i = 0; i < s->n_params; i++) {
        if (p.value != NULL) mem_free(p.value[i]);
        if (p.grad != NULL) mem_free(p.grad[i]);
    }
    mem_free(p.value);
    mem_free(p.grad);
    return st;
}
