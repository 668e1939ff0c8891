#include "model/score_columns.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"

static void name_ranking(score_columns *c) {
    const seq_file *data = c->data;
    bool is_rated = data->actions == ACTION_STARS || data->actions == ACTION_HALF_STARS;
    for (int i = 0; i < c->n; i++) {
        const char *signal = data->actions == ACTION_BITS ? seq_signal_name(i) : NULL;
        if (c->is_bits && signal != NULL)
            snprintf(c->name[i], SCORE_NAME_BYTES, "%s", signal);
        else if (c->is_bits)
            snprintf(c->name[i], SCORE_NAME_BYTES, "task%d", i);
        else if (i == 0)
            snprintf(c->name[i], SCORE_NAME_BYTES, "%s", is_rated ? "rating" : "action");
        else
            snprintf(c->name[i], SCORE_NAME_BYTES, "p_%g", seq_rating(data, (uint16_t)(i - 1)));
    }
}

status score_columns_init(score_columns *c, const session *s) {
    const config_ranking *k = &s->config->ranking;
    bool is_ranking = s->config->task == TASK_RANKING;
    *c = (score_columns){.data = s->data};
    c->width = is_ranking ? (int32_t)k->head.item[k->head.n - 1] : 1;
    c->is_bits = is_ranking && c->width == k->n_tasks;
    c->n_classes = c->width;
    if (s->limits.n_actions > 0 && s->limits.n_actions < c->width)
        c->n_classes = s->limits.n_actions;
    c->n = is_ranking && !c->is_bits ? 1 + c->n_classes : c->width;
    TRY(MEM_NEW(&c->name, (size_t)c->n));
    TRY(MEM_NEW(&c->names, (size_t)c->n));
    TRY(MEM_NEW(&c->rating, (size_t)c->n_classes));
    for (int32_t i = 0; i < c->n_classes; i++)
        c->rating[i] = seq_rating(c->data, (uint16_t)i);
    for (int i = 0; i < c->n; i++)
        c->names[i] = c->name[i];
    if (is_ranking)
        name_ranking(c);
    else
        snprintf(c->name[0], SCORE_NAME_BYTES, "score");
    return OK;
}

void score_columns_fini(score_columns *c) {
    mem_free(c->name);
    mem_free(c->names);
    mem_free(c->rating);
    *c = (score_columns){0};
}

static void finish_bits(const score_columns *c, const float *logit, float *to) {
    for (int32_t i = 0; i < c->width; i++)
        to[i] = (float)(1 / (1 + exp(-(double)logit[i])));
}

/* exp(x) of x <= 0 for all of n numbers, to about a unit in the last place of a double: x is k ln 2
 * + r, exp(r) a Taylor series to r^13 (the rest is below 5e-18), and 2^k is put into the exponent.
 * Simple enough that the compiler does several at a time, which the library's exp is not.  Below
 * -700 it is as at -700, which is nothing as a float; NaN stays NaN. */
static void exp_all(double *x, int32_t n) {
    static const double to_int = 6755399441055744.0; /* 1.5 * 2^52: its last bits count ones */
#pragma omp simd
    for (int32_t i = 0; i < n; i++) {
        double at = x[i] < -700 ? -700 : x[i], k = at * 1.4426950408889634 + to_int, p, scale;
        uint64_t bits;
        memcpy(&bits, &k, sizeof bits);
        k -= to_int;
        double r = (at - k * 6.93147180369123816490e-01) - k * 1.90821492927058770002e-10;
        p = 1.0 / 6227020800;
        p = p * r + 1.0 / 479001600;
        p = p * r + 1.0 / 39916800;
        p = p * r + 1.0 / 3628800;
        p = p * r + 1.0 / 362880;
        p = p * r + 1.0 / 40320;
        p = p * r + 1.0 / 5040;
        p = p * r + 1.0 / 720;
        p = p * r + 1.0 / 120;
        p = p * r + 1.0 / 24;
        p = p * r + 1.0 / 6;
        p = p * r + 1.0 / 2;
        p = p * r + 1;
        p = p * r + 1;
        bits = (bits + 1023) << 52;
        memcpy(&scale, &bits, sizeof scale);
        x[i] = p * scale;
    }
}

static float largest(const float *x, int32_t n) {
    float most = x[0];
    for (int32_t i = 1; i < n; i++)
        if (x[i] > most) most = x[i];
    return most;
}

/* Softmax over the logits of the ratings alone, of which e are the exponentials: a head may have
 * more logits than ratings. */
static void finish_row(const score_columns *c, const double *e, float *to) {
    double sum = 0, mean = 0;
    for (int32_t i = 0; i < c->n_classes; i++)
        sum += e[i];
    for (int32_t i = 0; i < c->n_classes; i++) {
        double p = e[i] / sum;
        to[1 + i] = (float)p;
        mean += p * c->rating[i];
    }
    to[0] = (float)mean;
}

/* The same where a row has more classes than a block has room for. */
static void finish_wide(const score_columns *c, const float *logit, float *to) {
    double sum = 0, mean = 0, most = (double)largest(logit, c->n_classes);
    for (int32_t i = 0; i < c->n_classes; i++)
        sum += exp((double)logit[i] - most);
    for (int32_t i = 0; i < c->n_classes; i++) {
        double p = exp((double)logit[i] - most) / sum;
        to[1 + i] = (float)p;
        mean += p * c->rating[i];
    }
    to[0] = (float)mean;
}

enum { BLOCK = 512 };

/* A request has hundreds of rows of a few classes: their exponentials are made together. */
static void finish_block(const score_columns *c, int32_t n, const float *logits, float *to) {
    double e[BLOCK];
    for (int32_t k = 0; k < n; k++) {
        const float *logit = logits + (int64_t)k * c->width;
        float most = largest(logit, c->n_classes);
        for (int32_t i = 0; i < c->n_classes; i++)
            e[k * c->n_classes + i] = (double)logit[i] - (double)most;
    }
    exp_all(e, n * c->n_classes);
    for (int32_t k = 0; k < n; k++)
        finish_row(c, e + k * c->n_classes, to + (int64_t)k * c->n);
}

void score_columns_finish(const score_columns *c, int32_t n, const float *logits, float *to) {
    int32_t most = c->is_bits || c->n_classes > BLOCK ? 1 : BLOCK / c->n_classes;
    for (int32_t k = 0; k < n; k += most) {
        const float *own = logits + (int64_t)k * c->width;
        float *own_to = to + (int64_t)k * c->n;
        if (c->is_bits)
            finish_bits(c, own, own_to);
        else if (c->n_classes > BLOCK)
            finish_wide(c, own, own_to);
        else
            finish_block(c, n - k < most ? n - k : most, own, own_to);
    }
}
