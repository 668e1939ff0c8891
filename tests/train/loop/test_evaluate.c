#include "train/loop/evaluate.h"
#include "train_test.h"

TEST(evaluate_seen_rows_are_sorted_and_distinct) {
    int32_t offsets[] = {0, 6, 7, 9}, n_targets[] = {1, 1, 0}, seen_offsets[4], rows[9];
    uint32_t item[] = {5, 2, 5, 9, 2, 7, 4, 3, 1};
    batch b = {
        .n_users = 3, .n_tokens = 9, .offsets = offsets, .n_targets = n_targets, .item = item};
    const int32_t all[] = {-1, 0, 1, 2, 3, 4, 5, 6, 7, 8};
    const int32_t want[] = {1, 4, 8, 0, 2}; /* the targets 7 and 4 are labels, not seen */
    pass_seen_rows(&b, &(model_items){.row = all}, seen_offsets, rows);
    CHECK(seen_offsets[1] == 3 && seen_offsets[2] == 3 && seen_offsets[3] == 5);
    for (int i = 0; i < 5; i++)
        CHECK_EQ(rows[i], want[i]);
    const int32_t some[] = {-1, 0, -1, 1, 2, -1, 3, 4, 5, 6}; /* the items 2 and 5 have no row */
    const int32_t left[] = {6, 0, 1};
    pass_seen_rows(&b, &(model_items){.row = some}, seen_offsets, rows);
    CHECK(seen_offsets[1] == 1 && seen_offsets[2] == 1 && seen_offsets[3] == 3);
    for (int i = 0; i < 3; i++)
        CHECK_EQ(rows[i], left[i]);
}

/* Whether a user has the item among the training events of leave-one-out. */
static bool has_item(const seq_file *data, uint64_t user, int item) {
    split s = split_make(data, split_rule_of(SPLIT_LEAVE_ONE_OUT), SESSION_SPLIT_SEED);
    event_range r;
    if (!split_range(&s, PART_TRAIN, user, &r)) return false;
    for (uint64_t i = r.begin; i < r.end; i++)
        if ((int)data->item[i] == item) return true;
    return false;
}

/* Novelty and diversity of lists of three, by their definitions, in double. */
static void describe_lists(const seq_file *data, int list[40][3], double *novelty,
                           double *diversity) {
    double n_users[64] = {0}, n_both[64][64] = {{0}};
    for (uint64_t u = 0; u < data->n_users; u++)
        for (int i = 1; i <= 60; i++) {
            if (!has_item(data, u, i)) continue;
            n_users[i]++;
            for (int k = 1; k <= 60; k++)
                n_both[i][k] += has_item(data, u, k);
        }
    *novelty = *diversity = 0;
    for (int u = 0; u < 40; u++)
        for (int a = 0; a < 3; a++) {
            int i = list[u][a], k = list[u][(a + 1) % 3];
            *novelty += -log2(fmax(n_users[i], 1) / (double)data->n_users) / 120;
            if (n_users[i] > 0 && n_users[k] > 0)
                *diversity -= n_both[i][k] / sqrt(n_users[i] * n_users[k]) / 120;
        }
    *diversity += 1;
}

/* Evaluated by hand: encode, score by a loop in double, count. */
TEST(evaluate_equals_a_loop_over_the_catalogue) {
    bench_top t;
    evaluator *e;
    eval_result r, again;
    CHECK_OK(top_open(&t, retrieval_gin, NULL, 0, 2));
    CHECK_OK(model_init(t.session.model, 5));
    CHECK_OK(evaluator_create(&e, &t.session, split_rule_of(SPLIT_LEAVE_ONE_OUT), PART_TEST));
    CHECK_OK(evaluator_run(e, 0, &r));
    CHECK(r.n_users == 40 && !r.is_partial);
    batcher_config c =
        session_eval_batches(&t.session, split_rule_of(SPLIT_LEAVE_ONE_OUT), PART_TEST);
    batcher *batches;
    pass *p;
    CHECK_OK(pass_create(&p, t.session.model, &(pass_config){.max_users = t.session.eval_batch}));
    CHECK_OK(batcher_create(&batches, t.data, &c));
    const batch *b;
    int dim = model_dim(t.session.model), n_hits = 0, n_repeated = 0, n_shown = 0;
    bool is_shown[64] = {false};
    int list[40][3], n_listed = 0;
    double mrr = 0, mrr_kept = 0, novelty, diversity;
    do {
        const void *query;
        model_items corpus;
        CHECK_OK(batcher_next(batches, &b));
        CHECK_OK(pass_encode(p, b, &query));
        CHECK_OK(model_corpus(t.session.model, &corpus));
        for (int u = 0; u < b->n_users; u++) {
            const float *q = (const float *)query + u * dim;
            int end = b->offsets[u + 1] - 1, target = (int)b->item[end] - 1, rank = 1;
            double score[64], of_target = 0;
            for (int v = 0; v < 60; v++) {
                score[v] = 0;
                for (int d = 0; d < dim; d++)
                    score[v] += (double)q[d] * corpus.rows[v * dim + d];
            }
            of_target = score[target];
            int rank_kept = 1, in_history = 0;
            for (int v = 0; v < 60; v++)
                rank_kept += score[v] > of_target;
            mrr_kept += 1.0 / rank_kept;
            for (int i = b->offsets[u]; i < end; i++)
                in_history |= (int)b->item[i] - 1 == target;
            n_repeated += in_history;
            for (int i = b->offsets[u]; i < end; i++)
                score[b->item[i] - 1] = -1e9;
            for (int v = 0; v < 60; v++)
                rank += score[v] > of_target;
            for (int place = 0; place < 3; place++) { /* the three best items that were not seen */
                int best = 0;
                for (int v = 1; v < 60; v++)
                    if (score[v] > score[best]) best = v;
                is_shown[best] = true;
                list[n_listed][place] = best + 1;
                score[best] = -2e9;
            }
            n_listed++;
            n_hits += rank <= 10 && !in_history;
            mrr += 1.0 / (in_history ? 2501 : rank);
        }
    } while (!b->is_last);
    CHECK(fabs(eval_value(&r, "hr@10") - n_hits / 40.0) < 1e-12);
    CHECK(fabs(eval_value(&r, "mrr") - mrr / 40) < 1e-12);
    CHECK_EQ(r.n_repeated, n_repeated);
    CHECK(r.n_items_ranked == 60 && !r.keeps_seen);
    metric_list other;
    CHECK_OK(metric_list_parse(
        &other, "COVERAGE@3,PRECISION@10,NOVELTY@3,COVERAGE@60,DIVERSITY@3,MRR", TASK_RETRIEVAL));
    CHECK_OK(evaluator_choose(e, &other, false));
    CHECK_OK(evaluator_run(e, 0, &again));
    for (int v = 0; v < 60; v++)
        n_shown += is_shown[v];
    CHECK(n_shown > 5 && n_shown < 60);
    CHECK(fabs(eval_value(&again, "coverage@3") - n_shown / 60.0) < 1e-12);
    CHECK(eval_value(&again, "coverage@60") == 1);
    CHECK(fabs(eval_value(&again, "precision@10") - n_hits / 400.0) < 1e-12);
    CHECK_EQ(again.n, 6);
    describe_lists(t.data, list, &novelty, &diversity);
    CHECK(novelty > 0.1 && diversity > 0.1 && diversity < 0.9);
    CHECK(fabs(eval_value(&again, "novelty@3") - novelty) < 1.0 / LIST_UNIT);
    CHECK(fabs(eval_value(&again, "diversity@3") - diversity) < 1.0 / LIST_UNIT);
    CHECK_OK(evaluator_bootstrap(e, &again, NULL));
    CHECK(again.item[2].low < novelty && novelty < again.item[2].high);
    CHECK(again.item[4].low < diversity && diversity < again.item[4].high);
    CHECK(isnan(again.item[0].low) && again.item[2].high - again.item[2].low < 1);
    CHECK_OK(evaluator_choose(e, &other, true));
    CHECK_OK(evaluator_run(e, 0, &again));
    CHECK(again.keeps_seen && again.n_repeated == n_repeated);
    CHECK(fabs(eval_value(&again, "mrr") - mrr_kept / 40) < 1e-12);
    CHECK_OK(evaluator_choose(e, NULL, false));
    CHECK_OK(evaluator_run(e, 1, &again));
    CHECK(again.n_users == 16 && again.is_partial);
    CHECK_OK(evaluator_run(e, 0, &again));
    for (int i = 0; i < r.n; i++)
        CHECK(r.item[i].value == again.item[i].value);
    CHECK(isnan(eval_value(&r, "auc")));
    batcher_destroy(batches);
    evaluator_destroy(e);
    pass_destroy(p);
    top_close(&t);
}

TEST(evaluate_ranking_gives_auc) {
    bench_top t;
    evaluator *e;
    eval_result r;
    static const char *const set[] = {"RankingArgs.eval_metrics=('AUC', 'ACC', 'LOGLOSS', 'NE')"};
    CHECK_OK(top_open(&t, ranking_gin, set, 1, 2));
    CHECK_OK(model_init(t.session.model, 5));
    CHECK_OK(evaluator_create(&e, &t.session, split_rule_of(SPLIT_BY_USER), PART_TEST));
    CHECK_OK(evaluator_run(e, 0, &r));
    CHECK_EQ(r.n_users, 12); /* 30 % of 40 */
    CHECK(eval_value(&r, "auc") > 0.2 && eval_value(&r, "auc") < 0.8);
    CHECK(eval_value(&r, "acc") >= 0 && eval_value(&r, "acc") <= 1);
    CHECK(fabs(eval_value(&r, "logloss") - log(5)) < 0.5); /* five classes, nothing learnt */
    CHECK(eval_value(&r, "ne") > 0.9 && eval_value(&r, "ne") < 2);
    CHECK(isfinite(eval_value(&r, "auc:rating3")));
    int n_classes = 0;
    for (int i = 0; i < r.n; i++)
        n_classes += strncmp(r.item[i].name, "auc:rating", 10) == 0;
    CHECK_EQ(n_classes, 5); /* one for each rating */
    evaluator_destroy(e);
    top_close(&t);
}

/* A group of all users has the figures and the intervals of the run; two groups make up the whole;
 * nothing of the run changes. */
static void check_groups(bench_top *t, split_kind kind, const char *mean) {
    evaluator *e;
    eval_result r, all, part[2], again;
    uint8_t is_in[64], is_out[64];
    int64_t n;
    CHECK_OK(evaluator_create(&e, &t->session, split_rule_of(kind), PART_TEST));
    CHECK_OK(evaluator_run(e, 0, &again));
    CHECK(again.n_usual == again.n);
    CHECK_OK(evaluator_choose_final(e));
    CHECK_OK(evaluator_run(e, 0, &r));
    CHECK(r.n_usual == again.n && r.n > again.n);
    CHECK_OK(evaluator_bootstrap(e, &r, NULL));
    CHECK(evaluator_users(e, &n) != NULL && n == r.n_users && n <= 64);
    memset(is_in, 1, sizeof is_in);
    CHECK_OK(evaluator_group(e, is_in, &all));
    CHECK(all.n == r.n && all.n_users == n);
    for (int i = 0; i < r.n; i++) {
        CHECK_STR(all.item[i].name, r.item[i].name);
        bool is_coverage = strncmp(r.item[i].name, "coverage", 8) == 0; /* of all users alone */
        CHECK(!is_coverage || isnan(all.item[i].value));
        if (!isfinite(r.item[i].value) || is_coverage) continue;
        CHECK(fabs(all.item[i].value - r.item[i].value) < 1e-12);
        CHECK_EQ(isnan(all.item[i].low), isnan(r.item[i].low));
        if (isnan(r.item[i].low)) continue;
        CHECK(fabs(all.item[i].low - r.item[i].low) < 1e-12);
        CHECK(fabs(all.item[i].high - r.item[i].high) < 1e-12);
    }
    for (int64_t i = 0; i < n; i++) {
        is_in[i] = i % 3 == 0;
        is_out[i] = !is_in[i];
    }
    CHECK_OK(evaluator_group(e, is_in, &part[0]));
    CHECK_OK(evaluator_group(e, is_out, &part[1]));
    CHECK_EQ(part[0].n_users + part[1].n_users, n);
    if (mean != NULL) {
        double sum = 0;
        for (int k = 0; k < 2; k++)
            sum += (double)part[k].n_users * eval_value(&part[k], mean);
        CHECK(fabs(sum / (double)n - eval_value(&r, mean)) < 1e-12);
    }
    CHECK_OK(evaluator_run(e, 0, &again));
    for (int i = 0; i < r.n; i++)
        CHECK(again.item[i].value == r.item[i].value || isnan(r.item[i].value));
    evaluator_destroy(e);
}

TEST(evaluate_groups_of_users) {
    bench_top t;
    static const char *const set[] = {"RankingArgs.eval_metrics=('AUC', 'ACC', 'LOGLOSS', 'NE')"};
    CHECK_OK(top_open(&t, ranking_gin, set, 1, 2));
    CHECK_OK(model_init(t.session.model, 5));
    check_groups(&t, SPLIT_BY_USER, NULL);
    top_close(&t);
    CHECK_OK(top_open(&t, retrieval_gin, NULL, 0, 2));
    CHECK_OK(model_init(t.session.model, 5));
    check_groups(&t, SPLIT_LEAVE_ONE_OUT, "novelty@10");
    top_close(&t);
}

/* Scores of a ranking model and what they are scores of, all batches. */
typedef struct scored {
    int n, n_columns;
    float logit[4096];
    int label[1024], user[1024];
} scored;

static void score_all(bench_top *t, scored *out) {
    batcher_config c = session_eval_batches(&t->session, split_rule_of(SPLIT_BY_USER), PART_TEST);
    batcher *batches;
    pass *p;
    const batch *b;
    CHECK_OK(pass_create(&p, t->session.model, &(pass_config){.max_users = t->session.eval_batch}));
    CHECK_OK(batcher_create(&batches, t->data, &c));
    do {
        const void *scores;
        int64_t n_rows;
        CHECK_OK(batcher_next(batches, &b));
        CHECK_OK(pass_score(p, b, &scores, &n_rows));
        CHECK((out->n + n_rows) * out->n_columns <= 4096);
        int n = 0;
        for (int u = 0; u < b->n_users; u++) {
            int end = b->offsets[u + 1];
            int from = t->session.max_targets > 0 ? end - b->n_targets[u] : b->offsets[u];
            for (int i = from; i < end; i++, n++) {
                if (b->action[i] == ACTION_UNKNOWN) continue;
                memcpy(out->logit + out->n * out->n_columns,
                       (const float *)scores + n * out->n_columns,
                       (size_t)out->n_columns * sizeof(float));
                out->user[out->n] = (int)b->users[u];
                out->label[out->n++] = b->action[i];
            }
        }
        CHECK_EQ(n, n_rows);
    } while (!b->is_last);
    batcher_destroy(batches);
    pass_destroy(p);
}

/* The AUC of a column by its definition: pairs in order, ties half.  Of one user, or -1: all. */
static double area_of(const scored *s, int k, bool is_bits, int user) {
    double pairs = 0, right = 0;
    for (int i = 0; i < s->n; i++)
        for (int j = 0; j < s->n; j++) {
            if (user >= 0 && (s->user[i] != user || s->user[j] != user)) continue;
            bool is_up = is_bits ? s->label[i] >> k & 1 : s->label[i] == k;
            bool is_down = is_bits ? !(s->label[j] >> k & 1) : s->label[j] != k;
            float a = s->logit[i * s->n_columns + k], b = s->logit[j * s->n_columns + k];
            if (!is_up || !is_down) continue;
            pairs++;
            right += a > b ? 1 : a == b ? .5 : 0;
        }
    return pairs > 0 ? right / pairs : NAN;
}

/* Users' own areas, weighted by their rows; users with one kind of label have none. */
static double grouped_of(const scored *s, int k, bool is_bits, int64_t *n_left_out) {
    double sum = 0, n = 0;
    *n_left_out = 0;
    for (int user = 0; user < 40; user++) {
        int n_rows = 0;
        for (int i = 0; i < s->n; i++)
            n_rows += s->user[i] == user;
        double area = area_of(s, k, is_bits, user);
        *n_left_out += n_rows > 0 && isnan(area);
        if (!isnan(area)) sum += n_rows * area, n += n_rows;
    }
    return sum / n;
}

static double probability_of(const scored *s, int row, int k, bool is_bits) {
    const float *x = s->logit + row * s->n_columns;
    double sum = 0;
    if (is_bits) return 1 / (1 + exp(-(double)x[k]));
    for (int c = 0; c < s->n_columns; c++)
        sum += exp((double)x[c] - x[k]);
    return 1 / sum;
}

/* Ten bins of as many rows, by a sort of the rows; the scores have no ties. */
static double calibration_of(const scored *s, int k, bool is_bits) {
    double error = 0;
    for (int b = 0; b < 10; b++) {
        double gap = 0;
        for (int i = 0; i < s->n; i++) {
            double own = probability_of(s, i, k, is_bits);
            int place = 0;
            for (int j = 0; j < s->n; j++)
                place += probability_of(s, j, k, is_bits) < own;
            if (place < b * s->n / 10 || place >= (b + 1) * s->n / 10) continue;
            gap += own - (is_bits ? s->label[i] >> k & 1 : s->label[i] == k);
        }
        error += fabs(gap);
    }
    return error / s->n;
}

static double accuracy_of(const scored *s, bool is_bits) {
    int n_right = 0, n = s->n * (is_bits ? s->n_columns : 1);
    for (int i = 0; i < s->n; i++) {
        const float *row = s->logit + i * s->n_columns;
        int best = 0;
        for (int k = 0; k < s->n_columns; k++) {
            best = row[k] > row[best] ? k : best;
            n_right += is_bits && (row[k] > 0) == (s->label[i] >> k & 1);
        }
        n_right += !is_bits && best == s->label[i];
    }
    return (double)n_right / n;
}

/* The synthetic actions are ratings; as signals their three bits are three tasks. */
static void open_signals(bench_top *t, const char *const *set, size_t n_set) {
    config_source source = {.text = ranking_gin,
                            .text_name = "test.gin",
                            .text_bytes = strlen(ranking_gin),
                            .overrides = set,
                            .n_overrides = n_set};
    CHECK_OK(top_open(t, ranking_gin, NULL, 0, 2));
    session_close(&t->session);
    config_destroy(t->config);
    t->data->actions = ACTION_BITS;
    CHECK_OK(config_load(&t->config, &source));
    CHECK_OK(session_open(&t->session, t->config, t->data, t->be));
}

/* Every seventh action becomes unknown, and all of every fifth user. */
static void forget_actions(seq_file *data) {
    static uint16_t action[1 << 16];
    CHECK(data->n_events <= 1 << 16);
    for (uint64_t u = 0; u < data->n_users; u++)
        for (uint64_t i = data->offsets[u]; i < data->offsets[u + 1]; i++)
            action[i] = i % 7 == 0 || u % 5 == 0 ? ACTION_UNKNOWN : data->action[i];
    data->action = action;
}

/* Classes and tasks, of candidates and of whole histories: each against the scores themselves;
 * events without an action do not count. */
TEST(evaluate_ranking_equals_a_loop_over_the_scores) {
    static scored s;
    for (int i = 0; i < 4; i++) {
        bool is_bits = i % 2 == 1;
        const char *const set[] = {"RankingArgs.eval_metrics=('AUC', 'ACC', 'GAUC', 'ECE')",
                                   is_bits ? "RankingArgs.prediction_head_arch=[8, 3]"
                                           : "RankingArgs.prediction_head_arch=[8, 5]",
                                   is_bits ? "RankingArgs.num_tasks=3" : "RankingArgs.num_tasks=1",
                                   i < 2 ? "DatasetArgs.max_num_candidates=3"
                                         : "DatasetArgs.max_num_candidates=0"};
        bench_top t;
        evaluator *e;
        eval_result r;
        char name[32];
        if (is_bits)
            open_signals(&t, set, 4);
        else
            CHECK_OK(top_open(&t, ranking_gin, set, 4, 2));
        CHECK_OK(model_init(t.session.model, 5));
        forget_actions(t.data);
        CHECK_OK(evaluator_create(&e, &t.session, split_rule_of(SPLIT_BY_USER), PART_TEST));
        CHECK_OK(evaluator_run(e, 0, &r));
        CHECK(r.n_unlabelled > 0);
        s = (scored){.n_columns = is_bits ? 3 : 5};
        score_all(&t, &s);
        CHECK(s.n > 20);
        CHECK(fabs(eval_value(&r, "acc") - accuracy_of(&s, is_bits)) < 1e-12);
        double sum = 0;
        int n_defined = 0;
        for (int k = 0; k < s.n_columns; k++) {
            double area = area_of(&s, k, is_bits, -1), grouped;
            char task[24];
            int64_t n_left_out;
            if (is_bits)
                snprintf(task, sizeof task, "%s", seq_signal_name(k));
            else
                snprintf(task, sizeof task, "rating%d", k + 1);
            snprintf(name, sizeof name, "auc:%s", task);
            CHECK_STR(r.task[k].name, task);
            if (isnan(area)) { /* a class that no label has */
                CHECK(isnan(eval_value(&r, name)));
                continue;
            }
            sum += area, n_defined++;
            CHECK(fabs(eval_value(&r, name) - area) < 1e-9);
            snprintf(name, sizeof name, "gauc:%s", task);
            grouped = grouped_of(&s, k, is_bits, &n_left_out);
            CHECK(isnan(grouped) ? isnan(eval_value(&r, name))
                                 : fabs(eval_value(&r, name) - grouped) < 1e-9);
            CHECK_EQ(r.task[k].n_left_out, n_left_out);
            snprintf(name, sizeof name, "ece:%s", task);
            CHECK(fabs(eval_value(&r, name) - calibration_of(&s, k, is_bits)) < 1e-6);
        }
        CHECK(n_defined > 1 && fabs(eval_value(&r, "auc") - sum / n_defined) < 1e-9);
        evaluator_destroy(e);
        top_close(&t);
    }
}

/* A dynamic table before its first batch: no item has a row, so no held-out item can be found. */
TEST(evaluate_items_without_rows_are_not_found) {
    static const char gin[] =
        "TrainerArgs.train_batch_size = 8\n"
        "DatasetArgs.dataset_name = 'synth'\n"
        "DatasetArgs.max_history_seqlen = 12\n"
        "NetworkArgs.dtype_str = 'float32'\n"
        "NetworkArgs.num_layers = 1\n"
        "NetworkArgs.num_attention_heads = 1\n"
        "NetworkArgs.hidden_size = 8\n"
        "NetworkArgs.num_position_buckets = 64\n"
        "RetrievalArgs.num_negatives = 4\n"
        "movies/DynamicEmbeddingArgs.feature_names = ['item']\n"
        "movies/DynamicEmbeddingArgs.table_name = 'movies'\n"
        "movies/DynamicEmbeddingArgs.item_vocab_size_or_capacity = 64\n"
        "BenchmarkDatasetArgs.embedding_args = [@movies/DynamicEmbeddingArgs()]\n";
    bench_top t;
    evaluator *e;
    eval_result r;
    CHECK_OK(top_open(&t, gin, NULL, 0, 1));
    CHECK_OK(model_init(t.session.model, 5));
    CHECK_OK(evaluator_create(&e, &t.session, split_rule_of(SPLIT_BY_USER), PART_TEST));
    CHECK_OK(evaluator_run(e, 0, &r));
    CHECK(r.is_retrieval && r.n_users == 12);
    CHECK_EQ(r.n_lost, r.n_users);
    CHECK_EQ(r.n_items_ranked, 0);
    CHECK(r.n_ids > 0 && r.n_absent == r.n_ids);
    CHECK(eval_value(&r, "hr@10") == 0 && isnan(eval_value(&r, "hr@50")));
    /* Training makes rows; initialising the model removes them. */
    batcher_config c = session_train_batches(&t.session, split_rule_of(SPLIT_BY_USER), 1);
    batcher *batches;
    const batch *b;
    model_step step = {1, 1, 1};
    CHECK_OK(batcher_create(&batches, t.data, &c));
    CHECK_OK(batcher_next(batches, &b));
    CHECK_OK(pass_train(t.session.train, b, &step, NULL));
    CHECK_OK(evaluator_run(e, 0, &r));
    CHECK(r.n_items_ranked > 0 && r.n_lost < r.n_users);
    CHECK_OK(model_init(t.session.model, 5));
    CHECK_OK(evaluator_run(e, 0, &r));
    CHECK_EQ(r.n_items_ranked, 0);
    batcher_destroy(batches);
    evaluator_destroy(e);
    top_close(&t);
}

/* Counts that are 0 are left out, but for those of dynamic tables. */
TEST(evaluate_writes_misses) {
    static const struct {
        int64_t n_unknown, n_ids;
        const char *want;
    } cases[] = {{0, 0, "{}"},
                 {3, 0, "{\"targets_unknown\":3}"},
                 {0, 8, "{\"ids_read\":8,\"ids_without_row\":0}"}};
    for (int i = 0; i < 3; i++) {
        eval_result r = {.n_unknown = cases[i].n_unknown, .n_ids = cases[i].n_ids};
        json_writer w;
        buf out = {0};
        json_begin(&w, &out, 0);
        json_object_open(&w);
        eval_write_misses(&r, &w);
        json_object_close(&w);
        CHECK_OK(json_finish(&w));
        CHECK_STR(buf_str(&out), cases[i].want);
        buf_fini(&out);
    }
}

TEST(evaluate_protocol_names_the_targets_of_ranking) {
    static const char *const want[] = {"every event of each held-out user",
                                       "the last event of each held-out user",
                                       "the last 2 events of each held-out user"};
    for (int n = 0; n < 3; n++) {
        config c = {.task = TASK_RANKING};
        session s = {.config = &c, .max_targets = n};
        protocol p = {.session = &s, .rule = split_rule_of(SPLIT_BY_USER), .part = PART_TEST};
        buf out = {0};
        CHECK_OK(protocol_describe(&p, &out));
        CHECK_CONTAINS(buf_str(&out), want[n]);
        buf_fini(&out);
    }
}

TEST(evaluate_describes_its_time) {
    char text[EVAL_MISSES_BYTES] = "";
    CHECK(!eval_describe_time(9, 60000, 1000000, text));
    CHECK(eval_describe_time(110.2, 60000, 1000000, text));
    CHECK_STR(text, "evaluation: about 1 m 50 s for 60000 users x 1000000 items; --eval-users N "
                    "evaluates a sample");
    CHECK(eval_describe_time(20, 7, 0, text));
    CHECK_STR(text, "evaluation: about 20 s for 7 users; --eval-users N evaluates a sample");
}

TEST(evaluate_describes_misses) {
    char text[EVAL_MISSES_BYTES] = "";
    eval_result r = {.n_users = 50};
    CHECK(!eval_describe_misses(&r, text));
    CHECK_STR(text, "");
    r.n_unlabelled = 2;
    CHECK(eval_describe_misses(&r, text));
    CHECK_STR(text, "evaluation: users left out, as their held-out events have no action: 2");
    r.n_unlabelled = 0;
    r.n_ids = 1;
    CHECK(eval_describe_misses(&r, text));
    CHECK_STR(text, "evaluation: 0 of 1 ids had no row in their dynamic table (hit rate 100.00 %)");
    r.n_ids = 8;
    r.n_absent = 2;
    r.n_lost = 3;
    r.n_items_ranked = 1;
    r.is_retrieval = true;
    CHECK(eval_describe_misses(&r, text));
    CHECK_STR(text, "evaluation: 2 of 8 ids had no row in their dynamic table (hit rate 75.00 %); "
                    "1 item has one and was ranked; of 50 held-out items 3 had none and count as "
                    "not found");
    r.n_items_ranked = 4;
    CHECK(eval_describe_misses(&r, text));
    CHECK_CONTAINS(text, "; 4 items have one and were ranked; ");
}
