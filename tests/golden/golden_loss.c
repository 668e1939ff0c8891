/* Losses of retrieval: each row is an op of its own, since rows have weights. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "golden.h"

typedef struct loss_file {
    int64_t n, n_negatives; /* M rows, R */
    int32_t dim, n_rows;    /* the table without its row 0 */
    bool has_l2;
    float eps, temperature;
    const float *query, *table; /* query: normalised with l2 */
    float *raw, *scale;         /* (M, D), (M): what was normalised */
    int32_t *positive;          /* (M) rows */
    int64_t *pos_ids, *neg_ids;
    const st_tensor *weight;
    double sum_weights;
    float *d_query, *d_table; /* (M, D), (rows + 1, D) */
    float *row_loss;          /* (M) */
    double *loss;
    char *scratch;
    float *row_scale; /* (M): weight / sum of weights */
} loss_file;

/* host = from + add, on the backend. */
static status send_rows(golden *g, const int64_t *from, int64_t n, int32_t add, int32_t **out) {
    int32_t *host;
    TRY(NN_NEW_HOST(&g->memory, &host, n));
    TRY(NN_NEW(&g->memory, out, n));
    for (int64_t i = 0; i < n; i++)
        host[i] = (int32_t)from[i] + add;
    return g->be->ops->copy_in(g->be, *out, host, (size_t)n * sizeof *host);
}

static status send_floats(golden *g, const double *from, int64_t n, float **out) {
    float *host;
    TRY(NN_NEW_HOST(&g->memory, &host, n));
    TRY(NN_NEW(&g->memory, out, n));
    for (int64_t i = 0; i < n; i++)
        host[i] = (float)from[i];
    return g->be->ops->copy_in(g->be, *out, host, (size_t)n * sizeof *host);
}

/* A number of the metadata, or 0 or 1 where files of this family have none. */
static double number_or(const golden *g, const char *key, double otherwise) {
    double x;
    if (golden_number(g, key, &x) == OK) return x;
    return otherwise;
}

static status send_weights(golden *g, loss_file *f, bool drops_hits) {
    double *scale;
    TRY(golden_get(g, "row_weight", &f->weight));
    TRY(NN_NEW_HOST(&g->memory, &scale, f->n));
    for (int64_t m = 0; m < f->n; m++) {
        bool is_hit = drops_hits && f->neg_ids[m] == f->pos_ids[m];
        f->sum_weights += scale[m] = is_hit ? 0 : golden_at(f->weight, m);
    }
    for (int64_t m = 0; m < f->n; m++)
        scale[m] /= f->sum_weights;
    return send_floats(g, scale, f->n, &f->row_scale);
}

static l2_args l2_of(const loss_file *f) {
    return (l2_args){.n = f->n,
                     .dim = f->dim,
                     .eps = f->eps,
                     .x = f->raw,
                     .y = (float *)(uintptr_t)f->query,
                     .scale = f->scale,
                     .dy = f->d_query};
}

static status read_file(golden *g, loss_file *f, bool drops_hits) {
    const st_tensor *t;
    float *table, *query;
    double eps = number_or(g, "l2_eps", 1e-6);
    *f = (loss_file){.eps = (float)eps,
                     .temperature = (float)number_or(g, "temperature", 1),
                     .has_l2 = number_or(g, "l2", 0) > 0};
    TRY(golden_get(g, "w.item_emb", &t));
    f->n_rows = (int32_t)t->shape[0] - 1;
    f->dim = (int32_t)t->shape[1];
    TRY(golden_send(g, "w.item_emb", &table));
    TRY(golden_send(g, "u", &f->raw));
    TRY(golden_ints(g, "pos_ids", &f->pos_ids, &f->n));
    if (golden_find(g, "neg_ids") != NULL)
        TRY(golden_ints(g, "neg_ids", &f->neg_ids, &f->n_negatives));
    TRY(send_rows(g, f->pos_ids, f->n, -1, &f->positive));
    TRY(send_weights(g, f, drops_hits));
    TRY(golden_new(g, &f->d_query, f->n * f->dim));
    TRY(golden_new(g, &f->d_table, t->n));
    TRY(golden_new(g, &f->row_loss, f->n));
    TRY(golden_new(g, &query, f->n * f->dim));
    TRY(golden_new(g, &f->scale, f->n));
    TRY(NN_NEW(&g->memory, &f->loss, 1));
    f->table = table + f->dim;
    f->query = f->has_l2 ? query : f->raw;
    l2_args l2 = l2_of(f);
    return f->has_l2 ? g->be->ops->l2_fwd(g->be, &l2) : OK;
}

/* Compares the losses, by `scaled` with their weights, and the gradients. */
static status check_results(golden *g, loss_file *f, bool is_scaled) {
    backend *be = g->be;
    float *host, *d_raw = f->d_query;
    double sum = 0;
    const st_tensor *want;
    TRY(NN_NEW_HOST(&g->memory, &host, f->n));
    TRY(be->ops->copy_out(be, host, f->row_loss, (size_t)f->n * sizeof *host));
    for (int64_t m = 0; m < f->n; m++) {
        double weight = golden_at(f->weight, m);
        sum += weight * (double)host[m] / f->sum_weights;
        if (is_scaled) host[m] *= (float)weight;
    }
    if (golden_find(g, "losses") != NULL) {
        TRY(golden_get(g, "losses", &want));
        for (int64_t m = 0; m < f->n; m++)
            golden_check_value(g, "losses", (double)host[m], golden_at(want, m), TOL_OUT);
    }
    TRY(golden_get(g, "loss", &want));
    golden_check_value(g, "loss", sum, golden_at(want, 0), TOL_OUT);
    if (f->has_l2) {
        l2_args l2 = l2_of(f);
        TRY(golden_new(g, &d_raw, f->n * f->dim));
        l2.dx = d_raw;
        TRY(be->ops->l2_bwd(be, &l2));
    }
    TRY(golden_check(g, "grad.u", d_raw, TOL_GRAD));
    return golden_check(g, "grad.item_emb", f->d_table, TOL_GRAD);
}

/* u . E / temperature of a row and its label, in double. */
static status score_of_label(golden *g, const loss_file *f, int64_t m, double *out) {
    const st_tensor *u, *e;
    double dot = 0, uu = 0, ee = 0;
    TRY(golden_get(g, "u", &u));
    TRY(golden_get(g, "w.item_emb", &e));
    for (int32_t c = 0; c < f->dim; c++) {
        double x = golden_at(u, m * f->dim + c), y = golden_at(e, f->pos_ids[m] * f->dim + c);
        dot += x * y, uu += x * x, ee += y * y;
    }
    *out = dot / (f->has_l2 ? sqrt(uu) * sqrt(ee) : 1) / (double)f->temperature;
    return OK;
}

static status run_full(golden *g, loss_file *f, full_softmax_args a) {
    backend *be = g->be;
    size_t bytes = be->ops->full_softmax_scratch(be, 1, a.n_items, f->dim);
    TRY(NN_NEW(&g->memory, &f->scratch, (int64_t)bytes));
    a.n = 1;
    a.dim = f->dim;
    a.n_rows = f->n_rows;
    a.table = f->table;
    a.normalises = f->has_l2;
    a.eps = f->eps;
    a.temperature = f->temperature;
    a.loss = f->loss;
    a.dtable = f->d_table + f->dim;
    a.scratch = f->scratch;
    for (int64_t m = 0; m < f->n; m++) {
        a.query = f->query + m * f->dim;
        a.positive = f->positive + m;
        a.grad_scale = f->row_scale + m;
        a.row_loss = f->row_loss + m;
        a.dquery = f->d_query + m * f->dim;
        TRY(be->ops->full_softmax(be, &a));
    }
    return check_results(g, f, false);
}

status golden_loss_full_ce(golden *g) {
    loss_file f;
    const st_tensor *lse;
    float loss;
    double score;
    TRY(read_file(g, &f, false));
    TRY(run_full(g, &f, (full_softmax_args){.n_items = f.n_rows}));
    TRY(golden_get(g, "lse", &lse));
    for (int64_t m = 0; m < f.n; m++) {
        TRY(g->be->ops->copy_out(g->be, &loss, f.row_loss + m, sizeof loss));
        TRY(score_of_label(g, &f, m, &score));
        golden_check_value(g, "lse", (double)loss + score, golden_at(lse, m), TOL_OUT);
    }
    return OK;
}

static int compare_ids(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* The labels of all rows are the list, each once, with its number. */
status golden_loss_logq_inbatch(golden *g) {
    loss_file f;
    const st_tensor *q;
    int64_t *ids;
    double *log_q, *log_count;
    int32_t *item;
    full_softmax_args a = {0};
    float *sent_q, *sent_count;
    TRY(read_file(g, &f, false));
    TRY(golden_get(g, "q", &q));
    TRY(NN_NEW_HOST(&g->memory, &ids, f.n));
    TRY(NN_NEW_HOST(&g->memory, &log_q, f.n));
    TRY(NN_NEW_HOST(&g->memory, &log_count, f.n));
    memcpy(ids, f.pos_ids, (size_t)f.n * sizeof *ids);
    qsort(ids, (size_t)f.n, sizeof *ids, compare_ids);
    for (int64_t i = 0, n; i < f.n; i += n) {
        for (n = 1; i + n < f.n && ids[i + n] == ids[i];)
            n++;
        log_q[a.n_items] = log(golden_at(q, ids[i]));
        log_count[a.n_items] = log((double)n);
        ids[a.n_items++] = ids[i];
    }
    TRY(send_rows(g, ids, a.n_items, -1, &item));
    TRY(send_floats(g, log_q, a.n_items, &sent_q));
    TRY(send_floats(g, log_count, a.n_items, &sent_count));
    a.item = item;
    a.log_q = sent_q;
    a.log_count = sent_count;
    return run_full(g, &f, a);
}

/* Row m of a file has `each` negatives from index m * step on. */
static status run_pairs(golden *g, loss_file *f, sampled_softmax_args a, int64_t step) {
    backend *be = g->be;
    const int32_t *negative = a.negative, *positive = a.positive;
    if (a.table == NULL) a.table = f->table;
    if (a.n_rows == 0) a.n_rows = f->n_rows;
    if (a.dtable == NULL) a.dtable = f->d_table + f->dim;
    size_t bytes = be->ops->sampled_softmax_scratch(be, 1, a.n_negatives, f->dim, a.n_rows);
    TRY(NN_NEW(&g->memory, &f->scratch, (int64_t)bytes));
    a.n = 1;
    a.dim = f->dim;
    a.normalises = f->has_l2;
    a.eps = f->eps;
    a.temperature = f->temperature;
    a.loss = f->loss;
    a.scratch = f->scratch;
    for (int64_t m = 0; m < f->n; m++) {
        a.query = f->query + m * f->dim;
        a.positive = positive + m;
        a.negative = negative + m * step;
        a.grad_scale = f->row_scale + m;
        a.row_loss = f->row_loss + m;
        a.dquery = f->d_query + m * f->dim;
        TRY(be->ops->sampled_softmax(be, &a));
    }
    return OK;
}

status golden_loss_logq_global(golden *g) {
    loss_file f;
    const st_tensor *q;
    double *log_q;
    float *sent;
    int32_t r, is_shared, corrects, *negative;
    TRY(read_file(g, &f, false));
    TRY(golden_int(g, "R", &r));
    TRY(golden_int(g, "shared_negatives", &is_shared));
    TRY(golden_int(g, "correct_positive", &corrects));
    TRY(golden_get(g, "q", &q));
    TRY(NN_NEW_HOST(&g->memory, &log_q, f.n_rows));
    for (int32_t i = 0; i < f.n_rows; i++)
        log_q[i] = log((double)r * golden_at(q, i + 1));
    TRY(send_floats(g, log_q, f.n_rows, &sent));
    TRY(send_rows(g, f.neg_ids, f.n_negatives, -1, &negative));
    sampled_softmax_args a = {.n_negatives = r,
                              .positive = f.positive,
                              .negative = negative,
                              .log_q = sent,
                              .corrects_positive = corrects > 0};
    TRY(run_pairs(g, &f, a, is_shared > 0 ? 0 : r));
    return check_results(g, &f, false);
}

status golden_loss_gbce(golden *g) {
    loss_file f;
    const st_tensor *logit;
    double beta, score;
    int32_t r, *negative;
    TRY(read_file(g, &f, false));
    TRY(golden_int(g, "R", &r));
    TRY(golden_number(g, "beta", &beta));
    TRY(golden_get(g, "pos_logit_transformed", &logit));
    TRY(send_rows(g, f.neg_ids, f.n_negatives, -1, &negative));
    sampled_softmax_args a = {.n_negatives = r,
                              .positive = f.positive,
                              .negative = negative,
                              .kind = PAIRS_GBCE,
                              .beta = (float)beta};
    TRY(run_pairs(g, &f, a, r));
    for (int64_t m = 0; m < f.n; m++) {
        TRY(score_of_label(g, &f, m, &score));
        double transformed = -log(expm1(beta * log1p(exp(-score))));
        golden_check_value(g, "pos_logit_transformed", transformed, golden_at(logit, m), TOL_OUT);
    }
    return check_results(g, &f, true);
}

/* Negatives that alone are normalised have rows of their own, after those of the positives. */
static status run_normalised(golden *g, loss_file *f, sampled_softmax_args a) {
    backend *be = g->be;
    int64_t n = f->n_rows, size = n * f->dim, *ids;
    float *table, *scale, *grad, *d_raw;
    int32_t *name, *negative;
    TRY(golden_new(g, &table, 2 * size));
    TRY(golden_new(g, &grad, 2 * size));
    TRY(golden_new(g, &d_raw, size));
    TRY(golden_new(g, &scale, n));
    TRY(NN_NEW_HOST(&g->memory, &ids, 2 * n));
    TRY(be->ops->copy(be, table, f->table, (size_t)size * sizeof *table));
    l2_args l2 = {.n = n,
                  .dim = f->dim,
                  .eps = f->eps,
                  .x = table,
                  .y = table + size,
                  .scale = scale,
                  .dy = grad + size,
                  .dx = d_raw};
    TRY(be->ops->l2_fwd(be, &l2));
    for (int64_t i = 0; i < 2 * n; i++)
        ids[i] = i % n;
    TRY(send_rows(g, ids, 2 * n, 0, &name));
    TRY(send_rows(g, f->neg_ids, f->n_negatives, f->n_rows - 1, &negative));
    a.table = table;
    a.dtable = grad;
    a.n_rows = 2 * f->n_rows;
    a.row_id = name;
    a.negative = negative;
    TRY(run_pairs(g, f, a, 1));
    TRY(be->ops->l2_bwd(be, &l2));
    TRY(be->ops->add(be, size, grad, f->d_table + f->dim));
    return be->ops->add(be, size, d_raw, f->d_table + f->dim);
}

status golden_loss_bce(golden *g) {
    loss_file f;
    int32_t normalises, *negative;
    TRY(read_file(g, &f, true));
    TRY(golden_int(g, "negatives_l2", &normalises));
    TRY(send_rows(g, f.neg_ids, f.n_negatives, -1, &negative));
    sampled_softmax_args a = {.n_negatives = 1,
                              .positive = f.positive,
                              .negative = negative,
                              .kind = PAIRS_BCE,
                              .beta = 1};
    TRY(normalises > 0 ? run_normalised(g, &f, a) : run_pairs(g, &f, a, 1));
    return check_results(g, &f, false);
}
