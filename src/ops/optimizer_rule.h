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
#ifndef HSTU_OPS_OPTIMIZER_RULE_H
#define HSTU_OPS_OPTIMIZER_RULE_H

#include <math.h>
#include <stdint.h>

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

/* With the state s already updated. */
OPTIMIZER_FN void optimizer_adagrad(const optimizer_rule *r, float g, float s, float *w) {
    *w -= r->rate * g / (sqrtf(s) + r->eps);
}

/* Row-wise AdaGrad: what a row's unscaled gradient is multiplied by. */
OPTIMIZER_FN float optimizer_row_rate(const optimizer_rule *r, float s, float grad_scale) {
    return r->rate / (sqrtf(s) + r->eps) * grad_scale;
}

#endif
