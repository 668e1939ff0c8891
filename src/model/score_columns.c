#include "model/score_columns.h"

static void name_ranking(score_columns *c) {
    const seq_file *data = c->data;
    bool is_rated = data->actions == ACTION_STARS || data->actions == ACTION_HALF_STARS;
    char name[SEQ_TASK_BYTES];
    for (int i = 0; i < c->n; i++) {
        if (c->is_bits)
            seq_task_name(data, true, i, c->name[i]);
        else if (i == 0)
            snprintf(c->name[i], SCORE_NAME_BYTES, "%s", is_rated ? "rating" : "action");
        else if (seq_action_name(data, (uint16_t)(i - 1), name))
            snprintf(c->name[i], SCORE_NAME_BYTES, "p_%s", name);
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
    MEM_FREE(c->name, c->names, c->rating);
    *c = (score_columns){0};
}

static void finish_bits(const score_columns *c, const float *logit, float *to) {
    for (int32_t i = 0; i < c->width; i++)
        to[i] = (float)(1 / (1 + exp(-(double)logit[i])));
}

#ifdef __FP_FAST_FMA
#define MULTIPLY_ADD(a, b, c) fma((a), (b), (c))
#else
#define MULTIPLY_ADD(a, b, c) ((a) * (b) + (c))
#endif

/* exp(x) of -700 <= x <= 0, to about 1e-11 of it: x is k ln 2 + r, exp(r) a Taylor series to r^9
 * (the rest is below 8e-12, which no float shows), and 2^k is put into the exponent.  Simple enough
 * that the compiler does several at a time, which the library's exp is not.  NaN stays NaN. */
static inline double exp_of(double x) {
    static const double to_int = 6755399441055744.0; /* 1.5 * 2^52: its last bits count ones */
    double k = MULTIPLY_ADD(x, 1.4426950408889634, to_int), r, p, scale;
    uint64_t bits;
    memcpy(&bits, &k, sizeof bits);
    k -= to_int;
    r = MULTIPLY_ADD(k, -6.93147180369123816490e-01, x);
    r = MULTIPLY_ADD(k, -1.90821492927058770002e-10, r);
    p = MULTIPLY_ADD(1.0 / 362880, r, 1.0 / 40320);
    p = MULTIPLY_ADD(p, r, 1.0 / 5040);
    p = MULTIPLY_ADD(p, r, 1.0 / 720);
    p = MULTIPLY_ADD(p, r, 1.0 / 120);
    p = MULTIPLY_ADD(p, r, 1.0 / 24);
    p = MULTIPLY_ADD(p, r, 1.0 / 6);
    p = MULTIPLY_ADD(p, r, 1.0 / 2);
    p = MULTIPLY_ADD(p, r, 1.0);
    p = MULTIPLY_ADD(p, r, 1.0);
    bits = (bits + 1023) << 52;
    memcpy(&scale, &bits, sizeof scale);
    return p * scale;
}

static float largest(const float *x, int32_t n) {
    float most = x[0];
    for (int32_t i = 1; i < n; i++)
        if (x[i] > most) most = x[i];
    return most;
}

/* Softmax over the logits of the ratings alone: a head may have more logits than ratings.  This is
 * for a row of more classes than a block has room for. */
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

/* Rows that are finished together: a request has hundreds of them, of a few classes.  As many in
 * every block, so that the compiler keeps them in registers. */
enum { ROWS = 16, MOST_CLASSES = 64 };

/* The logits of a class after those of the class before, so that a row is a lane of each vector. */
typedef struct row_block {
    float x[MOST_CLASSES][ROWS]; /* logits, then probabilities */
    double e[MOST_CLASSES][ROWS];
    double sum[ROWS], mean[ROWS];
} row_block;

/* The exponentials of a block, and their sums.  What is far below the largest logit, exp(-700) of
 * it, is nothing as a float. */
static inline void exp_block(row_block *b, int32_t n_classes) {
    float most[ROWS];
    memcpy(most, b->x[0], sizeof most);
    for (int32_t i = 1; i < n_classes; i++)
#pragma omp simd
        for (int32_t k = 0; k < ROWS; k++)
            most[k] = b->x[i][k] > most[k] ? b->x[i][k] : most[k];
    memset(b->sum, 0, sizeof b->sum);
    for (int32_t i = 0; i < n_classes; i++)
#pragma omp simd
        for (int32_t k = 0; k < ROWS; k++) {
            double x = (double)b->x[i][k] - (double)most[k];
            b->e[i][k] = exp_of(x < -700 ? -700 : x);
            b->sum[k] += b->e[i][k];
        }
}

/* ROWS rows of logits, `width` after one another, and of numbers.  A row's do not depend on those
 * of the others. */
static void finish_block(const score_columns *c, int32_t width, const float *logits, float *to) {
    row_block b;
    int32_t n = c->n, n_classes = c->n_classes, class = 0;
    do { /* there is one at least */
#pragma omp simd
        for (int32_t k = 0; k < ROWS; k++)
            b.x[class][k] = logits[k * width + class];
    } while (++class < n_classes);
    exp_block(&b, n_classes);
    memset(b.mean, 0, sizeof b.mean);
#pragma omp simd
    for (int32_t k = 0; k < ROWS; k++)
        b.sum[k] = 1 / b.sum[k];
    for (int32_t i = 0; i < n_classes; i++) {
        double rating = c->rating[i];
#pragma omp simd
        for (int32_t k = 0; k < ROWS; k++) {
            double p = b.e[i][k] * b.sum[k];
            b.x[i][k] = (float)p;
            b.mean[k] += p * rating;
        }
    }
#pragma omp simd
    for (int32_t k = 0; k < ROWS; k++)
        to[k * n] = (float)b.mean[k];
    for (int32_t i = 0; i < n_classes; i++)
#pragma omp simd
        for (int32_t k = 0; k < ROWS; k++)
            to[k * n + 1 + i] = b.x[i][k];
}

/* The last rows, fewer than a block has. */
static void finish_rest(const score_columns *c, int32_t n_rows, const float *logits, float *to) {
    float x[ROWS * MOST_CLASSES] = {0}, y[ROWS * (MOST_CLASSES + 1)];
    size_t row_bytes = (size_t)c->n_classes * sizeof *x;
    for (int32_t k = 0; k < n_rows; k++)
        memcpy(x + k * c->n_classes, logits + (int64_t)k * c->width, row_bytes);
    finish_block(c, c->n_classes, x, y);
    memcpy(to, y, (size_t)n_rows * (size_t)c->n * sizeof *y);
}

void score_columns_finish(const score_columns *c, int32_t n, const float *logits, float *to) {
    bool is_wide = c->n_classes > MOST_CLASSES;
    int32_t most = c->is_bits || is_wide ? 1 : ROWS;
    for (int32_t k = 0; k < n; k += most) {
        const float *own = logits + (int64_t)k * c->width;
        float *own_to = to + (int64_t)k * c->n;
        if (c->is_bits)
            finish_bits(c, own, own_to);
        else if (is_wide)
            finish_wide(c, own, own_to);
        else if (n - k < ROWS)
            finish_rest(c, n - k, own, own_to);
        else
            finish_block(c, c->width, own, own_to);
    }
}
