/* The optimizers: one update of one weight, written once and compiled by cc and nvcc.  Op `update`
 * (ops.h) applies it to dense weights and static tables, verb `update` (table.h) to rows of dynamic
 * tables.
 *
 * With g the scaled gradient, wd the weight decay and t the number of the step, from 1:
 *     sgd              w -= lr (g + wd w)
 *     adamw            w *= 1 - lr wd; m = b1 m + (1-b1) g; v = b2 v + (1-b2) g^2;
 *                      w -= lr (m / (1-b1^t)) / (sqrt(v / (1-b2^t)) + eps)
 *     adagrad          s += g^2;        w -= lr g / (sqrt(s) + eps)
 *     rowwise adagrad  s += mean(g^2);  w -= lr g / (sqrt(s) + eps)
 * AdaGrad has one state s for each element, row-wise AdaGrad one for each row. */
#pragma once

#include "base/base.h"

#ifdef __CUDACC__
#define OPTIMIZER_FN __host__ __device__ static inline
#else
#define OPTIMIZER_FN static inline
#endif

typedef enum { OPT_SGD, OPT_ADAMW, OPT_ADAGRAD, OPT_ROWWISE_ADAGRAD } opt_kind;

/* Floats of optimizer state for a row of `dim`. */
OPTIMIZER_FN int32_t optimizer_n_state(opt_kind kind, int32_t dim) {
    return kind == OPT_SGD ? 0 : kind == OPT_ADAMW ? 2 * dim : kind == OPT_ADAGRAD ? dim : 1;
}

/* What is the same for all elements of one step. */
typedef struct optimizer_rule {
    float beta1, beta2, eps;
    float decay; /* adamw: 1 - lr wd; sgd: wd */
    float rate;  /* adamw: lr / (1 - b1^t); else lr */
    float root;  /* adamw: 1 / sqrt(1 - b2^t) */
} optimizer_rule;

/* The powers are in double: 1 - b2^t would lose digits in the first steps. */
static inline optimizer_rule optimizer_rule_make(opt_kind kind, float lr, float beta1, float beta2,
                                                 float eps, float weight_decay, int64_t step) {
    optimizer_rule r = {beta1, beta2, eps, weight_decay, lr, 0};
    if (kind == OPT_ADAMW) {
        r.decay = (float)(1 - (double)lr * weight_decay);
        r.rate = (float)(lr / (1 - pow(beta1, (double)step)));
        r.root = (float)(1 / sqrt(1 - pow(beta2, (double)step)));
    }
    return r;
}

OPTIMIZER_FN void optimizer_sgd(const optimizer_rule *r, float g, float *w) {
    *w -= r->rate * (g + r->decay * *w);
}

/* The quantities that PyTorch computes, in another order: lr (m / c1) / (sqrt(v / c2) + eps). */
OPTIMIZER_FN void optimizer_adamw(const optimizer_rule *r, float g, float *w, float *m, float *v) {
    *m = r->beta1 * *m + (1 - r->beta1) * g;
    *v = r->beta2 * *v + (1 - r->beta2) * (g * g);
    *w = *w * r->decay - r->rate * *m / (sqrtf(*v) * r->root + r->eps);
}

/* Missed steps of AdamW.  In a dense update a row without a gradient moves on by its moments.  The
 * moves of a whole run of such steps have a closed form: with j the steps since the row's last
 * update, m_j = b1^j m and v_j = b2^j v, so that
 *     w -> D w - m sum_j C_j / (sqrt(v) + eps z_j),   z_j = b2^(-j/2) sqrt(1 - b2^t)
 * where neither C_j nor z_j depend on the row.  The sum is a Stieltjes function of sqrt(v):
 * Gauss's rule of two points replaces all j, exactly for eps = 0, and to within 1e-7 of the
 * learning rate unless sqrt(v) is as small as eps.  A row that has missed steps thus costs as much
 * as one step, however many there were.  With b1 < b2^2 all sums converge. */
typedef struct missed_sums {
    double w, m, root; /* D, b1^j, b2^(j/2) */
    double sum[4];     /* of C_j / z_j times z_j^0 .. z_j^3 */
} missed_sums;

typedef struct missed_steps {
    float w, m, v;           /* what each is multiplied by */
    float move[2], point[2]; /* w -= m (sum of move / (sqrt(v) + point)) */
    float unused;
} missed_steps;

/* No step was missed. */
OPTIMIZER_FN void missed_begin(missed_sums *s, missed_steps *out) {
    const missed_sums none = {1, 1, 1, {0, 0, 0, 0}};
    const missed_steps still = {1, 1, 1, {0, 0}, {1, 1}, 0};
    *s = none;
    *out = still;
}

/* One more step was missed, that of rule r. */
OPTIMIZER_FN void missed_add(missed_sums *s, const optimizer_rule *r, missed_steps *out) {
    s->w *= (double)r->decay;
    s->m *= (double)r->beta1;
    s->root *= sqrt((double)r->beta2);
    double z = 1 / (s->root * (double)r->root), term = (double)r->rate * s->m;
    for (int p = 0; p < 4; p++, term *= z)
        s->sum[p] = s->sum[p] * (double)r->decay + term;
    const double *c = s->sum;
    double spread = c[0] * c[2] - c[1] * c[1], point[2] = {1, 1}, weight[2] = {0, 0};
    if (spread > 1e-12 * c[0] * c[2]) {
        double middle = (c[0] * c[3] - c[1] * c[2]) / (2 * spread);
        double square = middle * middle - (c[1] * c[3] - c[2] * c[2]) / spread;
        double half = sqrt(square > 0 ? square : 0);
        point[0] = middle - half, point[1] = middle + half;
        weight[1] = (c[1] - c[0] * point[0]) / (point[1] - point[0]);
        weight[0] = c[0] - weight[1];
    } else if (c[0] > 0) {
        point[0] = c[1] / c[0];
        weight[0] = c[0];
    }
    out->w = (float)s->w;
    out->m = (float)s->m;
    out->v = (float)(s->root * s->root);
    for (int i = 0; i < 2; i++) {
        out->move[i] = (float)(weight[i] * point[i]);
        out->point[i] = (float)((double)r->eps * point[i]);
    }
}

OPTIMIZER_FN float missed_weight(const missed_steps *k, float w, float m, float v) {
    float x = sqrtf(v), a = x + k->point[0], b = x + k->point[1];
    return w * k->w - m * ((k->move[0] * b + k->move[1] * a) / (a * b));
}

/* With the state s already updated. */
OPTIMIZER_FN void optimizer_adagrad(const optimizer_rule *r, float g, float s, float *w) {
    *w -= r->rate * g / (sqrtf(s) + r->eps);
}

/* Row-wise AdaGrad: what a row's unscaled gradient is multiplied by. */
OPTIMIZER_FN float optimizer_row_rate(const optimizer_rule *r, float s, float grad_scale) {
    return r->rate / (sqrtf(s) + r->eps) * grad_scale;
}
