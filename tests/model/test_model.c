#include "model/pass.h"

#include "format/safetensors.h"

#include "device.h"
#include "test.h"
#include "toy_model.h"

/* Changes the item, action and (from one event later on: the next event's time is an input) the
 * time of every event of a user from `event` on. */
static void change_future(toy_batch *t, int user, int event) {
    for (int32_t i = t->offsets[user] + event; i < t->offsets[user + 1]; i++) {
        t->item[i] = 1 + t->item[i] % TOY_ITEMS;
        t->action[i] = (uint16_t)((t->action[i] + 1) % TOY_ACTIONS);
        if (i > t->offsets[user] + event) t->time[i] += 123456789;
    }
}

/* By how much results may differ where a product has another shape: nothing on the CPU. */
static double other_shape(double value) {
    if (test_on.kind == ON_CPU) return 0;
    return 1e-5 + (test_on.p == PRECISION_F32 ? 0 : 8 * precision_unit(test_on.p) * fabs(value));
}

/* Whether rows of the hidden states differ; the first row that does, or -1. */
static int64_t first_change(const float *a, const float *b, int64_t first, int64_t end, int dim) {
    for (int64_t i = first; i < end; i++)
        if (memcmp(a + i * dim, b + i * dim, (size_t)dim * sizeof *a) != 0) return i;
    return -1;
}

/* The first token of an event of a user. */
static int64_t token_of(const toy_model *t, int user, int event) {
    const layout_config *c = &t->p->plan.config;
    return t->p->plan.offsets.host[user] + c->n_context + event * (c->has_actions ? 2 : 1);
}

/* Every event in turn becomes the first of a changed future: no token before it may move, not even
 * in its last bit.  The token itself must, so that the check can fail. */
static void check_no_leak(toy_kind kind) {
    toy_model t;
    toy_batch b, changed;
    const int user = 3; /* the longest */
    int64_t n;
    toy_model_open(&t, kind, 0, 2);
    toy_batch_make(&b, kind, 1);
    toy_model_train(&t, &b.b, 0);
    float *before = toy_model_hidden(&t, &n);
    int n_input = (t.p->plan.offsets.host[user + 1] - (int)token_of(&t, user, 0)) /
                  (t.p->plan.config.has_actions ? 2 : 1);
    for (int event = 1; event < n_input; event++) {
        changed = b;
        changed.b.item = changed.item, changed.b.action = changed.action;
        changed.b.time = changed.time;
        change_future(&changed, user, event);
        toy_model_train(&t, &changed.b, 0);
        float *after = toy_model_hidden(&t, &n);
        int64_t at = first_change(before, after, 0, n / t.m->dim, t.m->dim);
        if (at != token_of(&t, user, event))
            FAIL_TEST("%s: event %d changed, and token %lld moved first, not %lld",
                      toy_kind_name(kind), event, (long long)at,
                      (long long)token_of(&t, user, event));
        free(after);
    }
    free(before);
    toy_model_close(&t);
}

TEST(no_future_in_hstu_research) {
    check_no_leak(TOY_HSTU_RESEARCH);
}
TEST(no_future_in_sasrec) {
    check_no_leak(TOY_SASREC);
}
TEST(no_future_in_retrieval_with_context) {
    check_no_leak(TOY_RETRIEVAL);
}
TEST(no_future_in_ranking_without_candidates) {
    check_no_leak(TOY_RANK_CLASSES);
}

/* The action of an event follows its item: the logits at the item must not depend on it. */
TEST(no_label_in_ranking_without_candidates) {
    toy_model t;
    toy_batch b;
    int64_t n;
    toy_model_open(&t, TOY_RANK_CLASSES, 0, 1);
    toy_batch_make(&b, TOY_RANK_CLASSES, 2);
    toy_model_train(&t, &b.b, 0);
    float *before = toy_model_hidden(&t, &n);
    b.action[b.offsets[3] + 6] = (uint16_t)((b.action[b.offsets[3] + 6] + 1) % TOY_ACTIONS);
    toy_model_train(&t, &b.b, 0);
    float *after = toy_model_hidden(&t, &n);
    CHECK_EQ(first_change(before, after, 0, n / t.m->dim, t.m->dim), token_of(&t, 3, 6) + 1);
    free(before);
    free(after);
    toy_model_close(&t);
}

/* Logits of all candidates of the batch, by the layout of training or of scoring. */
static float *candidate_logits(toy_model *t, const batch *b, bool is_training, int64_t *n) {
    const void *logits;
    if (is_training) {
        toy_model_train(t, b, 0);
        logits = t->p->ranking.logits;
        *n = t->p->plan.n_loss;
    } else {
        CHECK_OK(pass_score(t->p, b, &logits, n));
    }
    *n *= ranking_n_columns(&t->m->ranking);
    float *out = malloc((size_t)*n * sizeof *out + 1);
    CHECK(out != NULL);
    memcpy(out, logits, (size_t)*n * sizeof *out);
    return out;
}

/* A candidate sees the history and itself: not its action, and not the other candidates. */
static void check_candidates(toy_kind kind, bool is_training) {
    toy_model t;
    toy_batch b;
    int64_t n, n_changed = 0;
    toy_model_open(&t, kind, 0, 2);
    toy_batch_make(&b, kind, 3);
    float *before = candidate_logits(&t, &b.b, is_training, &n);
    int columns = ranking_n_columns(&t.m->ranking), target = b.offsets[4] - 2; /* of user 3 */
    for (int32_t i = b.offsets[4] - 3; i < b.offsets[4]; i++)
        b.action[i] ^= 1;
    b.item[target] = 1 + b.item[target] % TOY_ITEMS;
    float *after = candidate_logits(&t, &b.b, is_training, &n);
    for (int64_t i = 0; i < n / columns; i++)
        n_changed += first_change(before, after, i, i + 1, columns) >= 0;
    CHECK_EQ(n_changed, 1); /* that whose item is another */
    b.action[b.offsets[3] + 2] ^= 1;
    float *moved = candidate_logits(&t, &b.b, is_training, &n);
    CHECK(first_change(after, moved, 0, n / columns, columns) >= 0); /* the history is seen */
    free(before);
    free(after);
    free(moved);
    toy_model_close(&t);
}

TEST(candidates_see_no_candidates) {
    check_candidates(TOY_RANK_BITS, true);
    check_candidates(TOY_RANK_BITS, false);
    check_candidates(TOY_RANK_MLP, true);
    check_candidates(TOY_RANK_MLP, false);
}

/* Scoring leaves the candidates' actions out, and gives what training has. */
TEST(score_equals_training) {
    toy_model t;
    toy_batch b;
    int64_t n, n_scored;
    toy_model_open(&t, TOY_RANK_BITS, 0, 1);
    toy_batch_make(&b, TOY_RANK_BITS, 4);
    float *trained = candidate_logits(&t, &b.b, true, &n);
    float *scored = candidate_logits(&t, &b.b, false, &n_scored);
    CHECK_EQ(n, n_scored);
    CHECK_EQ(n, 3 * model_count_loss(t.m, &b.b));
    for (int64_t i = 0; i < n; i++)
        CHECK(fabsf(trained[i] - scored[i]) < 1e-5 + other_shape(trained[i]));
    free(trained);
    free(scored);
    toy_model_close(&t);
}

/* With candidates the contextual tokens may see the history: that is the mask. */
TEST(context_sees_the_history_only_with_candidates) {
    for (int kind = TOY_RETRIEVAL; kind <= TOY_RANK_CLASSES; kind++) {
        toy_model t;
        toy_batch b;
        int64_t n;
        toy_model_open(&t, (toy_kind)kind, 0, 1);
        toy_batch_make(&b, (toy_kind)kind, 5);
        toy_model_train(&t, &b.b, 0);
        float *before = toy_model_hidden(&t, &n);
        b.item[b.offsets[3] + 4] = 1 + b.item[b.offsets[3] + 4] % TOY_ITEMS;
        toy_model_train(&t, &b.b, 0);
        float *after = toy_model_hidden(&t, &n);
        int64_t first = t.p->plan.offsets.host[3];
        bool moved = first_change(before, after, first, first + TOY_FEATURES, t.m->dim) >= 0;
        CHECK_EQ(moved, kind == TOY_RANK_BITS);
        free(before);
        free(after);
        toy_model_close(&t);
    }
}

/* The loss with a parameter moved by h along a direction. */
static double loss_at(toy_model *t, const batch *b, param *p, const float *from,
                      const double *direction, double h) {
    for (int64_t k = 0; k < p->n; k++)
        p->value[k] = (float)((double)from[k] + h * direction[k]);
    return toy_model_train(t, b, 9);
}

/* A direction with a share of the gradient, so that the slope stands out of float32's noise, and a
 * share that is random, so that a wrong direction shows. */
static double make_direction(const float *grad, int64_t n, uint64_t seed, double *direction) {
    double length = 0, slope = 0, norm = 0;
    for (int64_t k = 0; k < n; k++)
        length += (double)grad[k] * (double)grad[k];
    length = sqrt(length);
    for (int64_t k = 0; k < n; k++) {
        rng_block w = rng_draw64(rng_make_key(seed, RNG_TEST), (uint64_t)k, 1);
        double random = (2 * (double)rng_uniform(w.word[0]) - 1) * sqrt(3.0 / (double)n);
        direction[k] = (double)grad[k] / length + random;
        norm += direction[k] * direction[k];
    }
    for (int64_t k = 0; k < n; k++) {
        direction[k] /= sqrt(norm);
        slope += direction[k] * (double)grad[k];
    }
    return slope;
}

static void check_param(toy_model *t, const batch *b, param *p, double h) {
    size_t bytes = (size_t)p->n * sizeof(float);
    float *from = malloc(bytes), *grad = malloc(bytes);
    double *direction = malloc((size_t)p->n * sizeof *direction);
    CHECK(from != NULL && grad != NULL && direction != NULL);
    toy_model_train(t, b, 9);
    memcpy(from, p->value, bytes);
    memcpy(grad, p->grad, bytes);
    double slope = make_direction(grad, p->n, 11, direction);
    double got =
        (8 * (loss_at(t, b, p, from, direction, h) - loss_at(t, b, p, from, direction, -h)) -
         loss_at(t, b, p, from, direction, 2 * h) + loss_at(t, b, p, from, direction, -2 * h)) /
        (12 * h);
    if (!(fabs(got - slope) <= 0.02 * fabs(slope) + 2e-3))
        FAIL_TEST("%s: the slope is %g, the gradient says %g", p->name, got, slope);
    memcpy(p->value, from, bytes);
    free(from);
    free(grad);
    free(direction);
}

/* Larger weights than the first ones: else the layers hardly show in the loss. */
static void enlarge(toy_model *t) {
    for (int i = 0; i < t->m->params.n; i++) {
        param *p = &t->m->params.item[i];
        for (int64_t k = 0; k < p->n; k++) {
            rng_block w = rng_draw64(rng_make_key(3, RNG_TEST), (uint64_t)k, (uint64_t)i);
            p->value[k] += 0.4f * (2 * rng_uniform(w.word[0]) - 1);
        }
    }
}

/* The dropout's mask depends on step, user and position only, so it stays while weights move.  The
 * MLP of the input has the kinks of its relu: smaller steps. */
static void check_gradients(toy_kind kind, double rate) {
    toy_model t;
    toy_batch b;
    if (test_on.p != PRECISION_F32) SKIP_TEST("differences need float32");
    toy_model_open(&t, kind, rate, 2);
    toy_batch_make(&b, kind, 6);
    enlarge(&t);
    for (int i = 0; i < t.m->params.n; i++)
        check_param(&t, &b.b, &t.m->params.item[i], kind == TOY_RANK_MLP ? 1e-3 : 1e-2);
    toy_model_close(&t);
}

TEST(gradients_hstu_research) {
    check_gradients(TOY_HSTU_RESEARCH, 0);
    check_gradients(TOY_HSTU_RESEARCH, 0.3);
}
TEST(gradients_sasrec) {
    check_gradients(TOY_SASREC, 0);
    check_gradients(TOY_SASREC, 0.3);
}
TEST(gradients_retrieval) {
    check_gradients(TOY_RETRIEVAL, 0);
    check_gradients(TOY_RETRIEVAL, 0.3);
}
TEST(gradients_ranking) {
    check_gradients(TOY_RANK_BITS, 0);
    check_gradients(TOY_RANK_CLASSES, 0.3);
    check_gradients(TOY_RANK_MLP, 0.3);
}

/* Other options of the research configs: no bias, no activation, layer norm, items without L2
 * norm. */
TEST(gradients_of_variants) {
    if (test_on.p != PRECISION_F32) SKIP_TEST("differences need float32");
    toy_model t;
    toy_batch b;
    model_items corpus;
    model_limits limits = toy_model_limits(TOY_HSTU_RESEARCH);
    toy_model_open(&t, TOY_HSTU_RESEARCH, 0.2, 2);
    toy_batch_make(&b, TOY_HSTU_RESEARCH, 6);
    t.c.network.has_relative_bias = false;
    t.c.network.linear_activation = LINEAR_NONE;
    t.c.network.user_norm = USER_NORM_LAYER;
    t.c.retrieval.has_item_norm = false;
    t.c.retrieval.negatives = NEGATIVES_IN_BATCH;
    toy_model_remake(&t, &limits, 3);
    CHECK_EQ(t.m->params.n, 2 + 2 * 3);
    enlarge(&t);
    for (int i = 0; i < t.m->params.n; i++)
        check_param(&t, &b.b, &t.m->params.item[i], 1e-2);
    CHECK_OK(model_corpus(t.m, &corpus));
    CHECK(corpus.rows == t.m->input.item->value + 12); /* raw rows, from item 1 on */
    toy_model_close(&t);
}

TEST(same_bits_with_any_number_of_threads) {
    if (!test_on.is_deterministic) SKIP_TEST("not asked to be deterministic");
    for (int kind = 0; kind < TOY_KINDS; kind++) {
        toy_model t[3];
        toy_batch b;
        double loss[3];
        toy_batch_make(&b, (toy_kind)kind, 7);
        for (int i = 0; i < 3; i++) {
            toy_model_open(&t[i], (toy_kind)kind, 0.2, i + 1);
            loss[i] = toy_model_train(&t[i], &b.b, 1);
            CHECK(memcmp(&loss[i], &loss[0], sizeof loss[0]) == 0);
        }
        for (int i = 1; i < 3; i++)
            for (int k = 0; k < t[0].m->params.n; k++) {
                const param *p = &t[0].m->params.item[k], *q = &t[i].m->params.item[k];
                CHECK(memcmp(p->grad, q->grad, (size_t)p->n * sizeof *p->grad) == 0);
            }
        for (int i = 0; i < 3; i++)
            toy_model_close(&t[i]);
    }
}

static double largest_of(const float *x, int64_t n) {
    double most = 0;
    for (int64_t i = 0; i < n; i++)
        if (fabs((double)x[i]) > most) most = fabs((double)x[i]);
    return most;
}

/* Each user alone gives its share of the batch's loss and gradients: neither dropout nor drawn
 * negatives know who else is there.  (In-batch negatives do, by their nature.) */
TEST(users_do_not_depend_on_their_batch) {
    for (int kind = 0; kind < TOY_KINDS; kind++) {
        if (kind == TOY_RETRIEVAL) continue;
        toy_model whole, part;
        toy_batch b, one;
        double sum = 0;
        model_step at = {5, 2, 1};
        toy_model_open(&whole, (toy_kind)kind, 0.3, 2);
        toy_model_open(&part, (toy_kind)kind, 0.3, 2);
        toy_batch_make(&b, (toy_kind)kind, 8);
        double loss = toy_model_train(&whole, &b.b, 2);
        for (int u = 0; u < TOY_USERS; u++) {
            toy_batch_take(&one, &b, u);
            CHECK_OK(pass_train(part.p, &one.b, &at, NULL));
        }
        CHECK_OK(pass_take_loss(part.p, &sum));
        double limit = test_on.p == PRECISION_F32 ? 1e-4 : 16 * precision_unit(test_on.p);
        CHECK(fabs(sum - loss) < limit * fabs(loss));
        for (int k = 0; k < whole.m->params.n; k++) {
            const param *p = &whole.m->params.item[k], *q = &part.m->params.item[k];
            double most = test_on.p == PRECISION_F32 ? 0 : largest_of(p->grad, p->n);
            for (int64_t i = 0; i < p->n; i++)
                CHECK(fabs((double)p->grad[i] - q->grad[i]) <
                      limit * (1 + fmax(most, fabs((double)p->grad[i]))));
            for (int64_t row = 0; p->marks != NULL && row < p->shape[0]; row++)
                CHECK_EQ(p->marks[row], q->marks[row]);
        }
        toy_model_close(&whole);
        toy_model_close(&part);
    }
}

/* Trains one batch with a second model of another config, and compares it with the first one's. */
static void check_same_training(toy_model *t, toy_kind kind, const config *other, const batch *b,
                                double bound) {
    model_limits limits = toy_model_limits(kind);
    model_step at = {5, 3, 1};
    pass_config c = {.max_users = limits.max_users, .is_training = true};
    model *m;
    pass *pass_of_m;
    double loss, other_loss;
    CHECK_OK(model_create(&m, t->be, other, &limits));
    CHECK_OK(pass_create(&pass_of_m, m, &c));
    CHECK_OK(model_init(m, 1));
    CHECK_OK(model_init(t->m, 1));
    CHECK_OK(pass_train(t->p, b, &at, NULL));
    CHECK_OK(pass_train(pass_of_m, b, &at, NULL));
    CHECK_OK(pass_take_loss(t->p, &loss));
    CHECK_OK(pass_take_loss(pass_of_m, &other_loss));
    CHECK(fabs(loss - other_loss) <= bound * fabs(loss));
    for (int k = 0; k < m->params.n; k++) {
        const param *p = &m->params.item[k], *q = &t->m->params.item[k];
        double most = 0;
        for (int64_t i = 0; i < p->n; i++)
            if (fabs((double)q->grad[i]) > most) most = fabs((double)q->grad[i]);
        for (int64_t i = 0; i < p->n; i++)
            CHECK(fabs((double)p->grad[i] - q->grad[i]) <= bound * most);
        for (int64_t row = 0; p->marks != NULL && row < p->shape[0]; row++)
            CHECK_EQ(p->marks[row], q->marks[row]);
    }
    pass_destroy(pass_of_m);
    model_destroy(m);
}

/* Off the CPU a product of another shape may add in another order, and 16 bits show it. */
static double shape_bound(void) {
    if (test_on.kind == ON_CPU) return 1e-6;
    return test_on.p == PRECISION_F32 ? 1e-5 : 16 * precision_unit(test_on.p);
}

/* The CPU under the mirror applies the activation to z before rounding, and again to the rounded z.
 */
TEST(computing_again_gives_the_same_bits) {
    bool is_same =
        test_on.is_deterministic && (test_on.kind != ON_MIRROR || !precision_is_half(test_on.p));
    for (int kind = 0; kind < TOY_KINDS; kind++) {
        toy_model t;
        toy_batch b;
        toy_model_open(&t, (toy_kind)kind, 0.3, 2);
        toy_batch_make(&b, (toy_kind)kind, 8);
        config c = t.c;
        c.network.recomputes_norm = c.network.recomputes_silu = true;
        check_same_training(&t, (toy_kind)kind, &c, &b.b, is_same ? 0 : shape_bound());
        toy_model_close(&t);
    }
}

/* A batch that is padded to a whole bucket has the same losses and gradients. */
TEST(padding_a_batch_changes_nothing) {
    for (int kind = 0; kind < TOY_KINDS; kind++) {
        toy_model t;
        toy_batch b;
        toy_model_open(&t, (toy_kind)kind, 0.3, 2);
        toy_batch_make(&b, (toy_kind)kind, 8);
        t.be->token_bucket = 64;
        check_same_training(&t, (toy_kind)kind, &t.c, &b.b, shape_bound());
        t.be->token_bucket = 7;
        check_same_training(&t, (toy_kind)kind, &t.c, &b.b, shape_bound());
        toy_model_close(&t);
    }
}

TEST(dropout_and_negatives_depend_on_the_step) {
    toy_model t;
    toy_batch b;
    toy_model_open(&t, TOY_HSTU_RESEARCH, 0, 1);
    toy_batch_make(&b, TOY_HSTU_RESEARCH, 8);
    CHECK(toy_model_train(&t, &b.b, 1) != toy_model_train(&t, &b.b, 2)); /* other negatives */
    toy_model_close(&t);
    toy_model_open(&t, TOY_RANK_BITS, 0.2, 1);
    toy_batch_make(&b, TOY_RANK_BITS, 8);
    double first = toy_model_train(&t, &b.b, 1);
    CHECK(first != toy_model_train(&t, &b.b, 2));
    CHECK(first == toy_model_train(&t, &b.b, 1));
    toy_model_close(&t);
}

static bool is_zero(const float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        if (x[i] != 0) return false;
    return true;
}

static int32_t count_marks(const param *p) {
    int32_t n = 0;
    for (int64_t row = 0; row < p->shape[0]; row++)
        n += p->marks[row];
    return n;
}

/* Row 0 gets nothing; every row with a gradient is marked; marks stay until they are cleared.  The
 * research models update whole tables, so they have no marks. */
TEST(marked_rows) {
    for (int kind = 0; kind < TOY_KINDS; kind++) {
        toy_model t;
        toy_batch b, one;
        model_step at = {5, 0, 1};
        toy_model_open(&t, (toy_kind)kind, 0, 1);
        toy_batch_make(&b, (toy_kind)kind, 9);
        toy_batch_take(&one, &b, 2);
        param *item = t.m->input.item;
        if (item->marks == NULL) {
            CHECK(kind == TOY_HSTU_RESEARCH || kind == TOY_SASREC);
            toy_model_close(&t);
            continue;
        }
        CHECK_OK(pass_train(t.p, &one.b, &at, NULL));
        int32_t n_first = count_marks(item);
        CHECK(n_first > 0 && n_first <= TOY_ITEMS);
        CHECK_OK(pass_train(t.p, &b.b, &at, NULL));
        CHECK(count_marks(item) >= n_first);
        for (int k = 0; k < t.m->params.n; k++) {
            const param *p = &t.m->params.item[k];
            int64_t dim = p->shape[1];
            for (int64_t row = 0; p->is_table && row < p->shape[0]; row++)
                if (!p->marks[row]) CHECK(is_zero(p->grad + row * dim, dim));
        }
        CHECK(is_zero(item->grad, item->shape[1]));
        CHECK(item->marks[0] == 0);
        toy_model_train(&t, &one.b, 0); /* empties the marks first */
        CHECK_EQ(count_marks(item), n_first);
        toy_model_close(&t);
    }
}

/* Negatives from the batch are labels of the batch, and with none given as many as positions. */
TEST(in_batch_negatives_are_labels) {
    toy_model t;
    toy_batch b;
    bool is_label[TOY_ITEMS + 1] = {false};
    model_limits limits = toy_model_limits(TOY_RETRIEVAL);
    toy_model_open(&t, TOY_RETRIEVAL, 0, 1);
    toy_batch_make(&b, TOY_RETRIEVAL, 10);
    t.c.retrieval.n_negatives = -1;
    toy_model_remake(&t, &limits, 1);
    toy_model_train(&t, &b.b, 0);
    int64_t n = t.p->plan.n_loss;
    for (int64_t i = 0; i < n; i++)
        is_label[t.p->plan.label.host[i]] = true;
    for (int64_t i = 0; i < n * n; i++)
        CHECK(is_label[t.p->retrieval.loss.negative.device[i]]);
    toy_model_close(&t);
}

/* The hidden state after the last event of the history; the target is not an input, and dropout is
 * off. */
TEST(encode_is_the_last_training_query) {
    toy_model t;
    toy_batch b;
    const void *encoded;
    float rows[TOY_USERS][12];
    toy_model_open(&t, TOY_HSTU_RESEARCH, 0, 2);
    toy_batch_make(&b, TOY_HSTU_RESEARCH, 11);
    toy_model_train(&t, &b.b, 0);
    int32_t n_users = 0;
    for (int32_t i = 0; i < t.p->plan.n_loss; i++) { /* the last position of each user wins */
        if (i > 0 && t.p->plan.loss_user.host[i] != t.p->plan.loss_user.host[i - 1]) n_users++;
        memcpy(rows[n_users], (float *)t.p->retrieval.query + 12 * i, sizeof rows[0]);
    }
    CHECK_OK(pass_encode(t.p, &b.b, &encoded));
    const float *e = encoded;
    for (int u = 0, k = 0; u < TOY_USERS; u++) {
        if (b.n_targets[u] == 0) continue; /* it has no loss */
        for (int c = 0; c < 12; c++)
            CHECK(fabsf(e[12 * u + c] - rows[k][c]) <= other_shape(rows[k][c]));
        k++;
    }
    toy_model_close(&t);
}

TEST(corpus_is_the_normalised_table) {
    toy_model t;
    model_items corpus;
    toy_model_open(&t, TOY_HSTU_RESEARCH, 0, 1);
    CHECK_OK(model_corpus(t.m, &corpus));
    for (int item = 1; item <= TOY_ITEMS; item++) {
        const float *row = t.m->input.item->value + 12 * item;
        double length = 0;
        for (int k = 0; k < 12; k++)
            length += (double)row[k] * (double)row[k];
        for (int k = 0; k < 12; k++)
            CHECK(fabs((double)corpus.rows[12 * (item - 1) + k] - (double)row[k] / sqrt(length)) <
                  1e-6);
    }
    toy_model_close(&t);
}

static void run_golden(const char *folder, const char *want) {
    char program[4096], *text;
    if (test_on.kind != ON_CPU) SKIP_TEST("the golden program takes --device itself");
    snprintf(program, sizeof program, "%.*s/tests/golden",
             (int)(strrchr(test_program(), '/') - test_program()), test_program());
    int code = test_command(&text, "%s %s", program, folder);
    if (want == NULL && code != 0) FAIL_TEST("%s", text);
    if (want == NULL) CHECK_CONTAINS(text, " passed, 0 failed");
    if (want != NULL) CHECK_CONTAINS(text, want);
    if (want != NULL) CHECK_EQ(code, 1);
    free(text);
}

TEST(golden_part) {
    run_golden("tests/golden", NULL);
}

TEST(golden_all) {
    run_golden(test_shared("golden"), NULL);
}

/* The checker fails where it should: wrong numbers, and families it does not know. */
TEST(golden_checker_can_fail) {
    char path[256];
    test_command(NULL, "cp tests/golden/nv_layer_h48_causal.safetensors %s/a.safetensors",
                 test_folder());
    snprintf(path, sizeof path, "%s/a.safetensors", test_folder());
    FILE *file = fopen(path, "r+b");
    CHECK(file != NULL && fseek(file, -40000, SEEK_END) == 0);
    float wrong = 3;
    CHECK(fwrite(&wrong, sizeof wrong, 1, file) == 1 && fclose(file) == 0);
    run_golden(test_folder(), "0 passed, 1 failed");
    st_pair family = {"family", "nv_unheard_of"};
    st_tensor x = {"x", ST_F32, 1, {1}, 1, &wrong};
    CHECK_OK(st_write(path, &x, 1, &family, 1));
    run_golden(test_folder(), "the family 'nv_unheard_of' is unknown");
}
