/* Reading given tensors and comparing expected ones. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "golden.h"

const st_tensor *golden_find(golden *g, const char *name) {
    for (int i = 0; i < 2 && g->part[i] != NULL; i++)
        for (size_t k = 0; k < g->part[i]->n_tensors; k++) {
            const st_tensor *t = &g->part[i]->tensors[k];
            if (strcmp(t->name, name) != 0) continue;
            g->is_used[i][k] = true;
            return t;
        }
    return NULL;
}

status golden_get(golden *g, const char *name, const st_tensor **out) {
    *out = golden_find(g, name);
    return *out != NULL ? OK : fail(ERR_FORMAT, "there is no tensor %s", name);
}

status golden_number(const golden *g, const char *key, double *out) {
    const char *text = st_metadata(g->part[0], key);
    if (text == NULL) return fail(ERR_FORMAT, "the metadata have no %s", key);
    *out = strtod(text, NULL);
    return OK;
}

status golden_int(const golden *g, const char *key, int32_t *out) {
    double number = 0;
    TRY(golden_number(g, key, &number));
    *out = (int32_t)number;
    return OK;
}

double golden_at(const st_tensor *t, int64_t i) {
    switch (t->dtype) {
    case ST_F64:
        return ((const double *)t->data)[i];
    case ST_F32:
        return ((const float *)t->data)[i];
    case ST_I64:
        return (double)((const int64_t *)t->data)[i];
    case ST_I32:
        return ((const int32_t *)t->data)[i];
    case ST_U8:
        return ((const uint8_t *)t->data)[i];
    default:
        return NAN;
    }
}

status golden_new(golden *g, float **out, int64_t n) {
    return NN_NEW(&g->memory, out, n);
}

status golden_number_new(golden *g, float x, const float **out) {
    float *number;
    TRY(golden_new(g, &number, 1));
    *out = number;
    return g->be->ops->copy_in(g->be, number, &x, sizeof x);
}

status golden_send(golden *g, const char *name, float **out) {
    const st_tensor *t;
    *out = NULL;
    TRY(golden_get(g, name, &t));
    if (t->dtype != ST_F32) return fail(ERR_FORMAT, "%s is not F32", name);
    TRY(golden_new(g, out, t->n));
    return g->be->ops->copy_in(g->be, *out, t->data, (size_t)t->n * sizeof **out);
}

status golden_ints(golden *g, const char *name, int64_t **out, int64_t *n) {
    const st_tensor *t;
    TRY(golden_get(g, name, &t));
    TRY(NN_NEW_HOST(&g->memory, out, t->n));
    for (int64_t i = 0; i < t->n; i++)
        (*out)[i] = t->dtype == ST_I64 ? ((const int64_t *)t->data)[i] : (int64_t)golden_at(t, i);
    if (n != NULL) *n = t->n;
    return OK;
}

status golden_send_i32(golden *g, const char *name, int32_t **out) {
    const st_tensor *t;
    int32_t *host;
    *out = NULL;
    TRY(golden_get(g, name, &t));
    TRY(NN_NEW_HOST(&g->memory, &host, t->n));
    for (int64_t i = 0; i < t->n; i++)
        host[i] = (int32_t)golden_at(t, i);
    TRY(NN_NEW(&g->memory, out, t->n));
    return g->be->ops->copy_in(g->be, *out, host, (size_t)t->n * sizeof *host);
}

/* The limit of a check in this precision; the measuring pass has none. */
static double limit_of(golden *g, double error, double limit, bool is_tensor) {
    golden_naive *naive = g->naive;
    if (naive == NULL || limit == 0 || naive->at == GOLDEN_CHECKS) return limit;
    if (naive->is_measuring) {
        double *largest = &naive->error[naive->at++];
        *largest = fmax(*largest, error);
        return INFINITY;
    }
    double measured = naive->error[naive->at++];
    if (is_tensor && measured <= limit / 8) return limit;
    return 2 * measured + GOLDEN_SLACK * precision_unit(test_on.p);
}

/* Keeps the error nearest to, or furthest beyond, its limit; a NaN is beyond every limit. */
static void keep_worst(golden *g, const char *name, double error, double limit) {
    if (isnan(error)) error = INFINITY;
    bool is_first = g->worst[0] == '\0';
    double ratio = limit > 0 ? error / limit : error > 0 ? INFINITY : 0;
    if (isnan(ratio)) ratio = INFINITY;
    double worst = g->worst_limit > 0   ? g->worst_error / g->worst_limit
                   : g->worst_error > 0 ? INFINITY
                                        : 0;
    if (!is_first && ratio <= worst) return;
    g->worst_error = error;
    g->worst_limit = limit;
    snprintf(g->worst, sizeof g->worst, "%.100s", name);
}

static void note(golden *g, const char *name, double error, double limit, bool is_tensor) {
    keep_worst(g, name, error, limit_of(g, error, limit, is_tensor));
}

void golden_check_value(golden *g, const char *name, double got, double want, double limit) {
    double scale = fabs(want) > 0 ? fabs(want) : 1;
    note(g, name, fabs(got - want) / scale, limit, false);
}

void golden_check_equal(golden *g, const char *name, int64_t got, int64_t want) {
    note(g, name, got == want ? 0 : (double)llabs((long long)(got - want)), 0, false);
}

/* The error of `got`: the largest, the mean, and the largest expected value. */
typedef struct distance {
    double worst, mean, largest;
} distance;

static status measure(golden *g, const char *name, const void *got, double factor, distance *out) {
    const st_tensor *t;
    float *host;
    double squares = 0;
    *out = (distance){0};
    TRY(golden_get(g, name, &t));
    TRY(NN_NEW_HOST(&g->memory, &host, t->n));
    TRY(g->be->ops->copy_out(g->be, host, got, (size_t)t->n * sizeof *host));
    for (int64_t i = 0; i < t->n; i++) {
        double want = golden_at(t, i), error = fabs(factor * (double)host[i] - want);
        squares += error * error;
        out->worst = worse_error(out->worst, error);
        if (fabs(want) > out->largest) out->largest = fabs(want);
    }
    out->mean = t->n > 0 ? sqrt(squares / (double)t->n) : 0;
    return OK;
}

static status check(golden *g, const char *name, const void *got, double factor, double limit) {
    distance d;
    TRY(measure(g, name, got, factor, &d));
    note(g, name, d.largest > 0 ? d.worst / d.largest : d.worst, limit, true);
    return OK;
}

status golden_check(golden *g, const char *name, const void *got, double limit) {
    return check(g, name, got, 1, limit);
}

/* Gradients are off by about a unit of the precision, so about that share of them has the sign of
 * its rounding error; the error of those weights is `bound`, whatever the error of the naive
 * code. */
status golden_check_weights(golden *g, const char *name, const void *got, double limit,
                            double bound) {
    distance d;
    TRY(measure(g, name, got, 1, &d));
    if (bound == 0) {
        note(g, name, d.worst, limit, true);
        return OK;
    }
    double luck = bound * sqrt(precision_unit(test_on.p));
    keep_worst(g, name, d.mean, fmax(limit_of(g, d.mean, limit, true), luck));
    keep_worst(g, name, d.worst, bound);
    return OK;
}

const char *golden_same_name(const char *name) {
    return name;
}

status golden_load_params(golden *g, param_list *l, golden_namer namer) {
    TRY(param_list_alloc_grads(l));
    for (int i = 0; i < l->n; i++) {
        param *p = &l->item[i];
        const st_tensor *t;
        char name[160];
        snprintf(name, sizeof name, "w.%s", namer(p->name));
        TRY(golden_get(g, name, &t));
        if (t->n != p->n || t->n_dims != p->n_dims || t->dtype != ST_F32)
            return fail(ERR_FORMAT, "%s is not of our shape", name);
        for (int d = 0; d < p->n_dims; d++)
            if (t->shape[d] != p->shape[d]) return fail(ERR_FORMAT, "%s is not of our shape", name);
        TRY(g->be->ops->copy_in(g->be, p->value, t->data, (size_t)p->n * sizeof *p->value));
    }
    return OK;
}

status golden_check_grads(golden *g, param_list *l, golden_namer namer, double limit) {
    double factor = g->loss_scale > 0 ? 1 / g->loss_scale : 1;
    for (int i = 0; i < l->n; i++) {
        char name[160];
        snprintf(name, sizeof name, "grad.%s", namer(l->item[i].name));
        TRY(check(g, name, l->item[i].grad, factor, limit));
    }
    return OK;
}
