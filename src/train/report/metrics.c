#include "train/report/metrics.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "base/mem.h"

/* A small corpus has no position 2501: there only n_corpus + 1 identifies a seen target. */
int32_t position_counted(int32_t position, int64_t n_corpus) {
    bool is_hit = position >= 1 && position <= POSITION_LAST && position <= n_corpus;
    return is_hit ? position : POSITION_MISS;
}

void position_counts_add(position_counts *c, const int32_t *position, int64_t n, int64_t n_corpus) {
    for (int64_t i = 0; i < n; i++)
        c->count[position_counted(position[i], n_corpus)]++;
}

void position_counts_merge(position_counts *c, const position_counts *other) {
    for (int r = 0; r <= POSITION_MISS; r++)
        c->count[r] += other->count[r];
}

static double mean(double sum, const position_counts *c) {
    uint64_t n = 0;
    for (int r = 1; r <= POSITION_MISS; r++)
        n += c->count[r];
    return n > 0 ? sum / (double)n : 0;
}

static double hit_rate(const position_counts *c, int k) {
    uint64_t n = 0;
    for (int r = 1; r <= k && r <= POSITION_LAST; r++)
        n += c->count[r];
    return mean((double)n, c);
}

static double ndcg(const position_counts *c, int k) {
    double sum = 0;
    for (int r = 1; r <= k && r <= POSITION_LAST; r++)
        sum += (double)c->count[r] / log2(r + 1.0);
    return mean(sum, c);
}

static double reciprocal(const position_counts *c) {
    double sum = 0;
    for (int r = 1; r <= POSITION_MISS; r++)
        sum += (double)c->count[r] / r;
    return mean(sum, c);
}

double position_counts_metric(const position_counts *c, const metric *m) {
    switch (m->kind) {
    case METRIC_HR:
    case METRIC_RECALL:
        return hit_rate(c, m->k);
    case METRIC_PRECISION:
        return hit_rate(c, m->k) / m->k;
    case METRIC_NDCG:
        return ndcg(c, m->k);
    case METRIC_MRR:
        return reciprocal(c);
    case METRIC_COVERAGE: /* not of positions */
    case METRIC_AUC:
    case METRIC_ACCURACY:
    case METRIC_LOGLOSS:
    case METRIC_NE:
    case METRIC_KINDS:
        break;
    }
    return NAN;
}

/* log(1 + exp(x)) without overflow. */
static double softplus(double x) {
    return x > 0 ? x + log1p(exp(-x)) : log1p(exp(x));
}

static void add_bits(log_losses *l, const float *row, int32_t label) {
    for (int32_t k = 0; k < l->n_columns; k++) {
        bool is_set = label >> k & 1;
        l->sum[k] += softplus(is_set ? -(double)row[k] : (double)row[k]);
        l->n_of[k] += is_set;
    }
}

static void add_class(log_losses *l, const float *row, int32_t label) {
    double most = row[0], sum = 0;
    for (int32_t k = 1; k < l->n_columns; k++)
        most = row[k] > most ? row[k] : most;
    for (int32_t k = 0; k < l->n_columns; k++)
        sum += exp(row[k] - most);
    l->sum[0] += most + log(sum) - row[label];
    l->n_of[label]++;
}

void log_losses_add(log_losses *l, const float *logits, const int32_t *label, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        const float *row = logits + i * l->n_columns;
        if (l->is_bits)
            add_bits(l, row, label[i]);
        else
            add_class(l, row, label[i]);
    }
    l->n += n;
}

double log_losses_mean(const log_losses *l) {
    double sum = 0;
    int32_t n_tasks = l->is_bits ? l->n_columns : 1;
    for (int32_t k = 0; k < n_tasks; k++)
        sum += l->sum[k];
    return l->n > 0 ? sum / (double)l->n / n_tasks : NAN;
}

/* -p log p, 0 at 0. */
static double entropy_of(double p) {
    return p > 0 ? -p * log(p) : 0;
}

double log_losses_ne(const log_losses *l) {
    double n = (double)l->n, entropy = 0, sum = 0;
    int n_defined = 0;
    if (!l->is_bits) {
        for (int32_t k = 0; k < l->n_columns; k++)
            entropy += entropy_of((double)l->n_of[k] / n);
        return entropy > 0 ? l->sum[0] / n / entropy : NAN;
    }
    for (int32_t k = 0; k < l->n_columns; k++) {
        double p = (double)l->n_of[k] / n;
        entropy = entropy_of(p) + entropy_of(1 - p);
        if (entropy > 0) sum += l->sum[k] / n / entropy, n_defined++;
    }
    return n_defined > 0 ? sum / n_defined : NAN;
}

status auc_init(auc *a, int n_tasks) {
    *a = (auc){.n_tasks = n_tasks};
    if (n_tasks < 1 || n_tasks > AUC_MAX_TASKS)
        return fail(ERR_USAGE, "AUC of %d tasks was asked for; use 1 to %d", n_tasks,
                    AUC_MAX_TASKS);
    return OK;
}

void auc_fini(auc *a) {
    mem_free(a->score);
    mem_free(a->label);
    *a = (auc){0};
}

status auc_add(auc *a, const float *score, const int32_t *label, int64_t n) {
    size_t n_tasks = (size_t)a->n_tasks, n_new = (size_t)n;
    for (size_t i = 0; i < n_new * n_tasks; i++) {
        if (isnan(score[i]))
            return fail(ERR_FORMAT,
                        "score %zu of task %zu is not a number; the model has diverged: train with "
                        "a smaller learning rate",
                        a->n + i / n_tasks, i % n_tasks);
    }
    /* With at most this many rows, twice the number of pairs (at most 2^63) fits into 64 bits. */
    if (n_new > UINT32_MAX - a->n)
        return fail(ERR_UNSUPPORTED, "AUC of more than 2^32 - 1 rows; evaluate on fewer users");
    TRY(MEM_RESERVE(&a->score, &a->score_capacity, (a->n + n_new) * n_tasks));
    TRY(MEM_RESERVE(&a->label, &a->label_capacity, a->n + n_new));
    if (n_new == 0) return OK;
    memcpy(a->score + a->n * n_tasks, score, n_new * n_tasks * sizeof *score);
    memcpy(a->label + a->n, label, n_new * sizeof *label);
    a->n += n_new;
    return OK;
}

uint32_t auc_order(float x) {
    uint32_t bits;
    x = x == 0 ? 0 : x;
    memcpy(&bits, &x, sizeof bits);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

enum { DIGIT_BITS = 11, DIGITS = 3, N_DIGITS = 1 << DIGIT_BITS };

static void sort_digit(const uint32_t *from, uint32_t *to, size_t n, int shift) {
    size_t begin[N_DIGITS + 1] = {0};
    for (size_t i = 0; i < n; i++)
        begin[(from[i] >> shift & (N_DIGITS - 1)) + 1]++;
    for (int d = 0; d < N_DIGITS; d++)
        begin[d + 1] += begin[d];
    for (size_t i = 0; i < n; i++)
        to[begin[from[i] >> shift & (N_DIGITS - 1)]++] = from[i];
}

/* Sorts x; `room` holds as many more. Returns where the result is: one of the two. */
static uint32_t *sort_keys(uint32_t *x, uint32_t *room, size_t n) {
    for (int d = 0; d < DIGITS; d++) {
        sort_digit(x, room, n, d * DIGIT_BITS);
        uint32_t *sorted = room;
        room = x;
        x = sorted;
    }
    return x;
}

/* Twice the number of pairs that are in order, ties once; both lists sorted. */
static uint64_t count_pairs(const uint32_t *positive, size_t n_positive, const uint32_t *negative,
                            size_t n_negative) {
    uint64_t twice = 0;
    size_t below = 0, through = 0; /* negatives < and <= the positive at hand */
    for (size_t i = 0; i < n_positive; i++) {
        while (below < n_negative && negative[below] < positive[i])
            below++;
        while (through < n_negative && negative[through] <= positive[i])
            through++;
        twice += below + through;
    }
    return twice;
}

/* Positives are stored from the front of the keys, negatives from the back. */
static double compute_task(const auc *a, int task, uint32_t *keys, uint32_t *room) {
    size_t n_positive = 0, n_negative = 0;
    for (size_t i = 0; i < a->n; i++) {
        uint32_t key = auc_order(a->score[i * (size_t)a->n_tasks + (size_t)task]);
        if (a->label[i] >> task & 1)
            keys[n_positive++] = key;
        else
            keys[a->n - ++n_negative] = key;
    }
    if (n_positive == 0 || n_negative == 0) return NAN;
    uint32_t *positive = sort_keys(keys, room, n_positive);
    uint32_t *negative = sort_keys(keys + n_positive, room + n_positive, n_negative);
    uint64_t twice = count_pairs(positive, n_positive, negative, n_negative);
    return (double)twice / 2 / ((double)n_positive * (double)n_negative);
}

status auc_compute(const auc *a, double *out) {
    uint32_t *keys = NULL, *room = NULL;
    status st = MEM_NEW_RAW(&keys, a->n);
    if (st == OK) st = MEM_NEW_RAW(&room, a->n);
    for (int k = 0; st == OK && k < a->n_tasks; k++)
        out[k] = compute_task(a, k, keys, room);
    mem_free(keys);
    mem_free(room);
    return st;
}
