#include "train/report/metrics.h"

#include "base/rng.h"
#include "format/safetensors.h"
#include "oom.h"
#include "test.h"

static double value(const position_counts *c, metric_kind kind, int k) {
    return position_counts_metric(c, &(metric){kind, k});
}

TEST(metrics_of_positions_by_hand) {
    static position_counts c, half;
    const int32_t first[] = {1, 10, 11}, second[] = {2500, 2501, 5000};
    position_counts_add(&c, first, 3, 4999);
    position_counts_add(&half, second, 3, 4999);
    position_counts_merge(&c, &half);
    CHECK(value(&c, METRIC_HR, 1) == 1 / 6.0 && value(&c, METRIC_HR, 10) == 2 / 6.0);
    CHECK(value(&c, METRIC_HR, 50) == 3 / 6.0 && value(&c, METRIC_HR, 500) == 3 / 6.0);
    double at10 = 1 / log2(2.0) + 1 / log2(11.0);
    CHECK(fabs(value(&c, METRIC_NDCG, 10) - at10 / 6) < 1e-15);
    CHECK(fabs(value(&c, METRIC_NDCG, 200) - (at10 + 1 / log2(12.0)) / 6) < 1e-15);
    CHECK(fabs(value(&c, METRIC_MRR, 0) - (1 + 0.1 + 1 / 11.0 + 1 / 2500.0 + 2 / 2501.0) / 6) <
          1e-15);
    CHECK(position_counts_metric(&c, &(metric){METRIC_HR, 3000}) == 4 / 6.0);
}

/* One target a user: recall is the hit rate, and precision divides it by the length of the list. */
TEST(metrics_by_name) {
    static position_counts c;
    const int32_t rank[] = {1, 3, 5, 6};
    position_counts_add(&c, rank, 4, 100);
    CHECK(position_counts_metric(&c, &(metric){METRIC_HR, 5}) == 0.75);
    CHECK(position_counts_metric(&c, &(metric){METRIC_RECALL, 5}) == 0.75);
    CHECK(position_counts_metric(&c, &(metric){METRIC_PRECISION, 5}) == 0.15);
    CHECK(fabs(position_counts_metric(&c, &(metric){METRIC_NDCG, 3}) - 1.5 / 4) < 1e-15);
    CHECK(fabs(position_counts_metric(&c, &(metric){METRIC_MRR, 0}) -
               (1 + 1 / 3.0 + 1 / 5.0 + 1 / 6.0) / 4) < 1e-15);
    CHECK(isnan(position_counts_metric(&c, &(metric){METRIC_COVERAGE, 5})));
}

TEST(metrics_of_log_losses_by_hand) {
    /* Two tasks, three rows; the second task has one kind of label only. */
    const float bits[] = {0, 2, 1, -1, -3, 100};
    const int32_t label[] = {1, 2, 2};
    log_losses l = {.n_columns = 2, .is_bits = true};
    log_losses_add(&l, bits, label, 2);
    log_losses_add(&l, bits + 4, label + 2, 1);
    double first = log(2) + log(1 + exp(1)) + log(1 + exp(-3.0));
    double second = log(1 + exp(2)) + log(1 + exp(1)) + 0;
    CHECK(fabs(log_losses_mean(&l) - (first + second) / 6) < 1e-12);
    double h = -(log(1 / 3.0) / 3 + log(2 / 3.0) * 2 / 3), h2 = h;
    CHECK(fabs(log_losses_ne(&l) - (first / 3 / h + second / 3 / h2) / 2) < 1e-12);
    const float classes[] = {0, 0, 1000, 1, 2, 3};
    const int32_t class_[] = {2, 0};
    l = (log_losses){.n_columns = 3};
    log_losses_add(&l, classes, class_, 2);
    double loss = log(1 + exp(1) + exp(2));
    CHECK(fabs(log_losses_mean(&l) - loss / 2) < 1e-12);
    CHECK(fabs(log_losses_ne(&l) - loss / 2 / log(2)) < 1e-12);
    /* Always the mean of the labels: the normalised entropy is 1. */
    const float base[] = {(float)log(0.25 / 0.75)};
    l = (log_losses){.n_columns = 1, .is_bits = true};
    for (int i = 0; i < 4; i++)
        log_losses_add(&l, base, (int32_t[]){i == 0}, 1);
    CHECK(fabs(log_losses_ne(&l) - 1) < 1e-7);
    /* Logits beyond what exp can take; a task whose labels are all the same has no entropy. */
    l = (log_losses){.n_columns = 2, .is_bits = true};
    log_losses_add(&l, (float[]){1000, 0}, (int32_t[]){0}, 1);
    log_losses_add(&l, (float[]){-1000, 0}, (int32_t[]){2}, 1);
    CHECK(fabs(log_losses_mean(&l) - (500 + log(2)) / 2) < 1e-9);
    CHECK(fabs(log_losses_ne(&l) - 1) < 1e-12); /* of the second task alone */
    l = (log_losses){.n_columns = 1, .is_bits = true};
    CHECK(isnan(log_losses_mean(&l)) && isnan(log_losses_ne(&l)));
}

/* In a corpus of 20, position 21 says that the target was seen: a miss, not a hit at 50. */
TEST(metrics_take_a_seen_target_for_a_miss) {
    static position_counts c;
    const int32_t rank[] = {21, 20};
    position_counts_add(&c, rank, 2, 20);
    CHECK(value(&c, METRIC_HR, 50) == 0.5 && value(&c, METRIC_HR, 500) == 0.5);
    CHECK(fabs(value(&c, METRIC_MRR, 0) - (1 / 2501.0 + 1 / 20.0) / 2) < 1e-15);
}

TEST(metrics_of_no_positions) {
    static position_counts c;
    CHECK(value(&c, METRIC_HR, 1) == 0 && value(&c, METRIC_NDCG, 10) == 0);
    CHECK(value(&c, METRIC_MRR, 0) == 0);
}

enum { ROWS = 600, TASKS = 3 };

static float scores[ROWS * TASKS];
static int32_t labels[ROWS];

/* Scores on a grid of both signs, so that ties are many; -0 and 0 among them. */
static void make_rows(void) {
    rng_key key = rng_make_key(1, RNG_TEST);
    for (int i = 0; i < ROWS; i++) {
        rng_block b = rng_draw64(key, (uint64_t)i, 0);
        for (int k = 0; k < TASKS; k++) {
            float x = (float)rng_below(b.word[k], k == 0 ? 5 : 200) - (k == 0 ? 2 : 100);
            scores[i * TASKS + k] = x == 0 && i % 2 ? -0.0f : x * 0.37f;
        }
        labels[i] = (int32_t)(b.word[3] & 7);
    }
}

static double pair_count(int task, int n) {
    double sum = 0, n_pairs = 0;
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < n; j++) {
            if (!(labels[i] >> task & 1) || (labels[j] >> task & 1)) continue;
            float x = scores[i * TASKS + task], y = scores[j * TASKS + task];
            sum += x > y ? 1 : x == y ? 0.5 : 0;
            n_pairs++;
        }
    }
    return sum / n_pairs;
}

TEST(metrics_auc_equals_counting_pairs) {
    double out[TASKS], pieces[TASKS];
    auc whole, parts;
    make_rows();
    CHECK_OK(auc_init(&whole, TASKS));
    CHECK_OK(auc_add(&whole, scores, labels, ROWS));
    CHECK_OK(auc_compute(&whole, out));
    CHECK_OK(auc_init(&parts, TASKS));
    for (int i = 0; i < ROWS; i += 37) {
        int n = ROWS - i < 37 ? ROWS - i : 37;
        CHECK_OK(auc_add(&parts, scores + i * TASKS, labels + i, n));
        CHECK_OK(auc_add(&parts, NULL, NULL, 0));
    }
    CHECK_OK(auc_compute(&parts, pieces));
    for (int k = 0; k < TASKS; k++) {
        CHECK(fabs(out[k] - pair_count(k, ROWS)) < 1e-14);
        CHECK(out[k] == pieces[k]);
    }
    auc_fini(&whole);
    auc_fini(&parts);
}

TEST(metrics_auc_of_one_kind_is_undefined) {
    float x[4] = {1, 2, -INFINITY, INFINITY};
    int32_t all[4] = {3, 3, 1, 3};
    double out[2];
    auc a;
    CHECK_OK(auc_init(&a, 2));
    CHECK_OK(auc_compute(&a, out));
    CHECK(isnan(out[0]) && isnan(out[1]));
    CHECK_OK(auc_add(&a, x, all, 2));
    CHECK_OK(auc_add(&a, x, all + 2, 2));
    CHECK_OK(auc_compute(&a, out));
    CHECK(isnan(out[0]) && out[1] == (1 + 1 + 0.5) / 3);
    auc_fini(&a);
}

TEST(metrics_auc_refuses_what_it_cannot_rank) {
    float x[3] = {1, 2, NAN};
    int32_t label[3] = {0};
    auc a;
    CHECK_FAILS(auc_init(&a, 0), ERR_USAGE, "0 tasks");
    CHECK_FAILS(auc_init(&a, 33), ERR_USAGE, "use 1 to 32");
    CHECK_OK(auc_init(&a, 1));
    CHECK_FAILS(auc_add(&a, x, label, 3), ERR_FORMAT, "score 2 of task 0 is not a number");
    x[0] = NAN;
    CHECK_FAILS(auc_add(&a, x, label, 3), ERR_FORMAT, "score 0 of task 0 is not a number");
    CHECK_EQ(a.n, 0);
    auc_fini(&a);
}

static status whole_auc(void *ctx) {
    auc a;
    status st = auc_init(&a, TASKS);
    if (st == OK) st = auc_add(&a, scores, labels, ROWS);
    if (st == OK) st = auc_compute(&a, ctx);
    auc_fini(&a);
    return st;
}

TEST(metrics_auc_survives_out_of_memory) {
    double out[TASKS];
    make_rows();
    CHECK(oom_at_each_allocation(whole_auc, out) == 5);
}

/* Users of some rows each, in order; the last has none.  Against a count of pairs of each, weighted
 * by the user's rows and by a weight. */
TEST(metrics_grouped_auc_is_the_weighted_mean_of_users) {
    enum { USERS = 41 };
    user_position users[USERS];
    double of_users[USERS * TASKS];
    uint8_t weight[ROWS];
    auc a;
    int first = 0;
    make_rows();
    for (int u = 0; u < USERS; u++) {
        int n = u == USERS - 1 ? 0 : u == USERS - 2 ? ROWS - first : u % 29;
        users[u] = (user_position){.user = (uint64_t)u, .position = n};
        memset(weight + first, u % 3, (size_t)n);
        first += n;
    }
    CHECK_OK(auc_init(&a, TASKS));
    CHECK_OK(auc_add(&a, scores, labels, ROWS));
    CHECK_OK(auc_of_users(&a, users, USERS, of_users));
    for (int k = 0; k < TASKS; k++)
        for (int is_weighted = 0; is_weighted < 2; is_weighted++) {
            double sum = 0, n = 0;
            int64_t n_left_out = -1, n_none = 0;
            first = 0;
            for (int u = 0; u < USERS; u++) {
                double right = 0, pairs = 0, w = is_weighted ? u % 3 : 1;
                int end = first + (int)users[u].position;
                for (int i = first; i < end; i++)
                    for (int j = first; j < end; j++) {
                        float x = scores[i * TASKS + k], y = scores[j * TASKS + k];
                        if (!(labels[i] >> k & 1) || (labels[j] >> k & 1)) continue;
                        right += x > y ? 1 : x == y ? 0.5 : 0;
                        pairs++;
                    }
                n_none += end > first && pairs == 0;
                if (pairs > 0) sum += w * (end - first) * right / pairs, n += w * (end - first);
                first = end;
            }
            double got = auc_grouped(&a, k, of_users, users, USERS, is_weighted ? weight : NULL,
                                     &n_left_out);
            CHECK(fabs(got - sum / n) < 1e-12);
            CHECK(n_left_out == n_none && n_none > 2);
        }
    int64_t n_left_out;
    CHECK(isnan(auc_grouped(&a, 0, of_users + TASKS, users + 1, 1, NULL, &n_left_out)));
    CHECK_EQ(n_left_out, 1);
    auc_fini(&a);
}

/* Twenty rows of .2, which share the first bin, then twenty of growing predictions; the same as two
 * classes. */
TEST(metrics_calibration_by_hand) {
    enum { N = 40 };
    calibration_bin bin[CALIBRATION_BINS];
    float logit[N], two[2 * N];
    int32_t label[N], class_[N];
    double error = 0;
    auc a;
    CHECK_OK(auc_init(&a, 1));
    CHECK_OK(calibrate(&a, 0, true, bin)); /* nothing at all */
    CHECK(isnan(calibration_error(bin)));
    for (int b = 0; b < 6; b++) {
        double gap = 0;
        for (int i = b == 0 ? 0 : 16 + 4 * b; i < 20 + 4 * b; i++) {
            double p = i < 20 ? .2 : .3 + .03 * (i - 20);
            logit[i] = (float)log(p / (1 - p));
            label[i] = i % 3 == 0;
            gap += p - label[i];
            two[2 * i] = logit[i] + 700; /* no overflow */
            two[2 * i + 1] = 700;
            class_[i] = label[i] ? 1 : 2; /* as bits */
        }
        error += fabs(gap) / N;
    }
    CHECK_OK(auc_add(&a, logit, label, N));
    CHECK_OK(calibrate(&a, 0, true, bin));
    CHECK(bin[0].n == 20 && bin[1].n == 0 && bin[4].n == 0 && bin[5].n == 4 && bin[9].n == 4);
    CHECK(fabs(bin[0].predicted - 4) < 1e-6 && bin[0].observed == 7);
    CHECK(fabs(calibration_error(bin) - error) < 1e-6);
    auc_fini(&a);
    CHECK_OK(auc_init(&a, 2));
    CHECK_OK(auc_add(&a, two, class_, N));
    CHECK_OK(calibrate(&a, 0, false, bin));
    CHECK(fabs(calibration_error(bin) - error) < 1e-4);
    auc_fini(&a);
}

static void check_golden(const char *file) {
    st_file *f;
    const st_tensor *score, *label, *want;
    double out[AUC_MAX_TASKS];
    auc a;
    CHECK_OK(st_open(&f, test_shared(file)));
    CHECK_OK(st_get(f, "scores", ST_F32, &score));
    CHECK_OK(st_get(f, "labels", ST_I64, &label));
    CHECK_OK(st_get(f, "auc", ST_F64, &want));
    CHECK_OK(auc_init(&a, (int)score->shape[1]));
    for (int64_t i = 0; i < label->n; i++) {
        int32_t bits = (int32_t)((const int64_t *)label->data)[i];
        CHECK_OK(auc_add(&a, (const float *)score->data + i * score->shape[1], &bits, 1));
    }
    CHECK_OK(auc_compute(&a, out));
    for (int64_t k = 0; k < want->n; k++)
        CHECK(fabs(out[k] - ((const double *)want->data)[k]) < 1e-12);
    auc_fini(&a);
    st_close(f);
}

TEST(metrics_auc_golden) {
    check_golden("golden/metrics_auc.safetensors");
    check_golden("golden/metrics_auc_few.safetensors");
}
