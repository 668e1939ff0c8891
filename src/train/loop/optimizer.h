/* Optimizer: the update of every parameter of a model, and the state that goes with it.
 *
 * Rows of embedding tables have two named modes, chosen by the config and never mixed: dense (every
 * row moves by its momentum in every step, as the research presets do) and lazy (only rows that got
 * a gradient since the last update move).  Rows of tables whose gradients are listed (nn/input.h)
 * make the dense steps that they missed when they are used next, in one go (ops/optimizer_rule.h).
 * One thread at a time; the backend and the parameters must outlive it. */
#pragma once

#include "config/config.h"
#include "model/model.h"
#include "nn/dynamic.h"
#include "ops/ops.h"

typedef enum { ROWS_DENSE, ROWS_LAZY } row_mode;

/* The state of one parameter: first and second moments for adam, nothing for sgd; AdaGrad keeps the
 * sum of squares in m, one float a row for the row-wise kind. */
typedef struct moments {
    float *m, *v; /* memory of the backend, or NULL; shapes: optimizer_state_shape */
} moments;

typedef struct optimizer {
    backend *be;
    bank *listed[2]; /* (n_listed), of the model: these have their state, and steps that are late */
    int n_listed;
    late_rows late; /* what all banks have in common */
    int32_t now;    /* the last step's number for late rows (ops.h) */
    float *raw[2];  /* while tables are shown: their values as training has them; or NULL */
    param *params;  /* (n_params), of the model */
    int n_params;
    param_range dense_grads; /* gradients of all parameters but tables, owned by the model */
    content_rows *content;   /* of the model's items */
    dynamic_tables *tables;  /* of the model: their rows carry their state */
    struct comm *tensor;     /* the ranks that share the model's layers, or NULL */
    opt_kind kind;           /* of dense weights */
    opt_kind table_kind;     /* of embedding tables */
    row_mode rows;
    float beta1, beta2, eps;
    float weight_decay;     /* optimizer of dense weights, and of tables where rows are dense */
    double clip;            /* largest norm of the gradient; 0: off */
    moments *state;         /* (n_params) */
    int no_decay;           /* groups without weight decay (NO_DECAY_ of config.h) */
    double average_decay;   /* of the moving averages; 0: there are none */
    average_args *averages; /* (n_params), or NULL: weights and their averages */
    bool has_averages;      /* they have begun */
    bool is_exchanged;      /* while shown: averages stand in the place of the weights, and back */
    bool is_watched;        /* the norm of the gradient is measured before each update */
    update_args *updates;   /* (n_params + n_listed): of one step */
    float *grad_scale;      /* (1), memory of the backend */
    double *sum, *norm;     /* (1) each, memory of the backend: sum of squares, and the norm */
} optimizer;

const char *row_mode_name(row_mode rows); /* "dense", "lazy" */

/* Allocates zeroed state for the config's optimizer, and the model's gradients if there are none;
 * optimizer_fini frees the state, also after a failed init. */
status optimizer_init(optimizer *o, backend *be, model *m, const config *c);
void optimizer_fini(optimizer *o);

/* A copy of the parameter with the shape of its state's m (and v). */
param optimizer_state_shape(const optimizer *o, const param *p);

/* Bytes of the state, in memory of the backend. */
uint64_t optimizer_bytes(const optimizer *o);

/* One update by grad * scale at learning rate lr; t counts updates from 1.  Zeroes the gradients.
 * If the norm is watched (clipping, or float16), the norm of the scaled gradient is measured first,
 * and if it is not finite nothing is updated. */
status optimizer_step(optimizer *o, double lr, int64_t t, double scale);

/* Rows that have missed steps are not what a dense optimizer would have made of them.  Between
 * optimizer_show and optimizer_hide the values of tables are; and where weights are averaged, the
 * values are the averages: for whoever reads them, evaluations and checkpoints.  Training goes on
 * from what it had, so its bits do not depend on who looked. Both do nothing the second time. */
status optimizer_show(optimizer *o);
status optimizer_hide(optimizer *o);

/* Whether rows may have missed steps. */
bool optimizer_is_late(const optimizer *o);

/* The weights of parameter i as training has them, while averages are shown; NULL: there are none,
 * or they have not begun.  optimizer_begin_averages begins them with the weights that are there. */
float *optimizer_weights(const optimizer *o, int i);
status optimizer_begin_averages(optimizer *o);

/* The last step of each row (shape[0]) of a table, or NULL: its rows miss no steps; and while
 * tables are shown, its values as training has them. */
float *optimizer_last(const optimizer *o, const param *p);
float *optimizer_raw(const optimizer *o, const param *p);

/* The steps since all rows were up to date again, for rows that have their last steps: their rules,
 * host (n, LATE_RULE). */
status optimizer_redo_rules(optimizer *o, const float *rules, int32_t n);

/* Requests the norm of the last update, if it is watched, as pass_fetch_loss does.  NAN at once if
 * not. */
status optimizer_fetch_norm(optimizer *o, double *to, uint64_t *ticket);

/* The learning rate of update t (from 1) of n_steps: linear over the warm-up, then constant, or a
 * half cosine down to 0 at the end. */
double schedule_rate(const config *c, int64_t t, int64_t n_steps);
