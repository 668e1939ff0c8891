#include "train/report/metrics.h"

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
    default: /* not of positions */
        return NAN;
    }
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
    MEM_FREE(a->score, a->label);
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

/* Integers in the order of the scores; -0 equals +0. */
static uint32_t auc_order(float x) {
    uint32_t bits;
    x = x == 0 ? 0 : x;
    memcpy(&bits, &x, sizeof bits);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

static float score_of(const auc *a, size_t row, int task) {
    return a->score[row * (size_t)a->n_tasks + (size_t)task];
}

status weighted_auc_init(weighted_auc *w, const auc *a) {
    sort_pair *pairs = NULL, *other = NULL;
    *w = (weighted_auc){.a = a};
    status st = MEM_NEW_RAW(&w->order, a->n * (size_t)a->n_tasks);
    if (st == OK) st = MEM_NEW_RAW(&pairs, a->n);
    if (st == OK) st = MEM_NEW_RAW(&other, a->n);
    for (int k = 0; st == OK && k < a->n_tasks; k++) {
        for (size_t i = 0; i < a->n; i++)
            pairs[i] = (sort_pair){auc_order(score_of(a, i, k)), (uint32_t)i};
        const sort_pair *sorted = sort_pairs(pairs, other, a->n);
        for (size_t i = 0; i < a->n; i++)
            w->order[(size_t)k * a->n + i] = sorted[i].place;
    }
    MEM_FREE(pairs, other);
    return st;
}

void weighted_auc_fini(weighted_auc *w) {
    mem_free(w->order);
    *w = (weighted_auc){0};
}

void weighted_auc_compute(const weighted_auc *w, const uint8_t *weight, double *out) {
    const auc *a = w->a;
    for (int k = 0; k < a->n_tasks; k++) {
        const uint32_t *order = w->order + (size_t)k * a->n;
        double twice = 0, positives = 0, negatives = 0; /* whole numbers; negatives: below */
        for (size_t i = 0; i < a->n;) {
            uint64_t n_of[2] = {0, 0};
            float score = score_of(a, order[i], k);
            for (; i < a->n && score_of(a, order[i], k) == score; i++)
                n_of[a->label[order[i]] >> k & 1] += weight != NULL ? weight[order[i]] : 1;
            twice += (double)n_of[1] * (2 * negatives + (double)n_of[0]);
            positives += (double)n_of[1];
            negatives += (double)n_of[0];
        }
        out[k] = positives > 0 && negatives > 0 ? twice / 2 / (positives * negatives) : NAN;
    }
}

status auc_of_users(const auc *a, const user_position *users, int64_t n_users, double *out) {
    auc own = *a; /* a view of a user's rows */
    status st = OK;
    for (int64_t u = 0; st == OK && u < n_users; u++) {
        weighted_auc w;
        own.n = (size_t)users[u].position;
        st = weighted_auc_init(&w, &own);
        if (st == OK) weighted_auc_compute(&w, NULL, out + u * a->n_tasks);
        weighted_auc_fini(&w);
        own.score += own.n * (size_t)a->n_tasks;
        own.label += own.n;
    }
    return st;
}

status auc_compute(const auc *a, double *out) {
    return auc_of_users(a, &(user_position){.position = (int64_t)a->n}, 1, out);
}

double auc_grouped(const auc *a, int task, const double *of_users, const user_position *users,
                   int64_t n_users, const uint8_t *weight, int64_t *n_left_out) {
    double sum = 0, n = 0;
    size_t row = 0;
    *n_left_out = 0;
    for (int64_t u = 0; u < n_users; u++) {
        double area = of_users[u * a->n_tasks + task];
        size_t n_rows = (size_t)users[u].position;
        *n_left_out += n_rows > 0 && isnan(area);
        if (!isnan(area)) {
            double of_user = (double)n_rows * (weight != NULL ? weight[row] : 1);
            sum += of_user * area;
            n += of_user;
        }
        row += n_rows;
    }
    return n > 0 ? sum / n : NAN;
}

static float probability(const float *row, int32_t n, int task, bool is_bits) {
    double most = row[0], sum = 0;
    if (is_bits) return (float)(1 / (1 + exp(-(double)row[task])));
    for (int32_t k = 1; k < n; k++)
        most = row[k] > most ? row[k] : most;
    for (int32_t k = 0; k < n; k++)
        sum += exp(row[k] - most);
    return (float)(exp(row[task] - most) / sum);
}

status calibrate(const auc *a, int task, bool is_bits, calibration_bin bin[CALIBRATION_BINS]) {
    float *p, from[CALIBRATION_BINS]; /* from: the smallest probability of each bin */
    weighted_auc sorted;
    memset(bin, 0, CALIBRATION_BINS * sizeof *bin);
    TRY(MEM_NEW_RAW(&p, a->n));
    for (size_t i = 0; i < a->n; i++)
        p[i] = probability(a->score + i * (size_t)a->n_tasks, a->n_tasks, task, is_bits);
    status st = weighted_auc_init(&sorted, &(auc){.n_tasks = 1, .n = a->n, .score = p});
    for (size_t b = 0; b < CALIBRATION_BINS && st == OK && a->n > 0; b++)
        from[b] = p[sorted.order[b * a->n / CALIBRATION_BINS]];
    for (size_t i = 0; i < a->n && st == OK; i++) {
        int b = CALIBRATION_BINS - 1;
        while (b > 0 && (p[i] < from[b] || from[b] == from[b - 1]))
            b--;
        bin[b].predicted += p[i];
        bin[b].observed += a->label[i] >> task & 1;
        bin[b].n++;
    }
    weighted_auc_fini(&sorted);
    mem_free(p);
    return st;
}

double calibration_error(const calibration_bin bin[CALIBRATION_BINS]) {
    double sum = 0, n = 0;
    for (int b = 0; b < CALIBRATION_BINS; b++) {
        sum += fabs(bin[b].predicted - bin[b].observed);
        n += (double)bin[b].n;
    }
    return n > 0 ? sum / n : NAN;
}
