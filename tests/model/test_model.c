#include "model/pass.h"

#include <stddef.h>

#include "device.h"
#include "format/safetensors.h"
#include "model/model_int.h"
#include "oom.h"
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
TEST(no_future_in_fuxi_and_esasrec) {
    check_no_leak(TOY_FUXI);
    check_no_leak(TOY_ESASREC);
}
TEST(no_future_in_sasrec) {
    check_no_leak(TOY_SASREC);
}
TEST(no_future_in_own) {
    check_no_leak(TOY_OWN);
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

/* The dropout's mask depends on step, user and position only, so it stays while weights move.  The
 * MLP of the input has the kinks of its relu: smaller steps. */
static void check_gradients(toy_kind kind, double rate) {
    toy_model t;
    toy_batch b;
    if (test_on.p != PRECISION_F32) SKIP_TEST("differences need float32");
    toy_model_open(&t, kind, rate, 2);
    toy_batch_make(&b, kind, 6);
    toy_enlarge(&t);
    bool is_steep = kind == TOY_RANK_MLP || kind == TOY_FUXI;
    for (int i = 0; i < t.m->params.n; i++)
        toy_check_gradient(&t, &b.b, &t.m->params.item[i], is_steep ? 1e-3 : 1e-2);
    toy_model_close(&t);
}

TEST(gradients_hstu_research) {
    check_gradients(TOY_HSTU_RESEARCH, 0);
    check_gradients(TOY_HSTU_RESEARCH, 0.3);
}
TEST(gradients_own) {
    check_gradients(TOY_OWN, 0);
    check_gradients(TOY_OWN, 0.3);
}
TEST(gradients_sasrec) {
    check_gradients(TOY_SASREC, 0);
    check_gradients(TOY_SASREC, 0.3);
}
TEST(gradients_fuxi) {
    check_gradients(TOY_FUXI, 0);
    check_gradients(TOY_FUXI, 0.3);
}
TEST(gradients_esasrec) {
    check_gradients(TOY_ESASREC, 0);
    check_gradients(TOY_ESASREC, 0.3);
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
    toy_enlarge(&t);
    for (int i = 0; i < t.m->params.n; i++)
        toy_check_gradient(&t, &b.b, &t.m->params.item[i], 1e-2);
    CHECK_OK(model_corpus(t.m, &corpus));
    CHECK(corpus.rows == t.m->input.item->value + 12); /* raw rows, from item 1 on */
    toy_model_close(&t);
}

/* Tokens without an item: the layers' norms bend more where rows are zero,
 * so steps are smaller. */
TEST(gradients_with_item_dropout) {
    static const toy_kind kinds[] = {TOY_HSTU_RESEARCH, TOY_OWN, TOY_RETRIEVAL};
    if (test_on.p != PRECISION_F32) SKIP_TEST("differences need float32");
    for (int kind = 0; kind < 3; kind++) {
        toy_model t;
        toy_batch b;
        model_limits limits = toy_model_limits(kinds[kind]);
        toy_model_open(&t, kinds[kind], 0, 2);
        toy_batch_make(&b, kinds[kind], 6);
        t.c.network.item_dropout = .3;
        toy_model_remake(&t, &limits, 3);
        toy_enlarge(&t);
        for (int i = 0; i < t.m->params.n; i++)
            toy_check_gradient(&t, &b.b, &t.m->params.item[i], 3e-3);
        toy_model_close(&t);
    }
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

/* Hidden state i of the last pass; freed by the caller. */
static float *hidden_of(toy_model *t, int i) {
    size_t n = (size_t)t->p->plan.n_tokens * (size_t)t->m->dim;
    float *out = malloc(n * sizeof *out);
    CHECK(out != NULL);
    CHECK_OK(backend_read_act(t->be, out, t->p->hidden[i], n));
    return out;
}

/* Layer l of L leaves the sequences alone that it drops, at the rate l / L of the last one's, and
 * adds 1 / (1 - rate) of what it would add to the others. */
TEST(stochastic_depth_skips_whole_sequences) {
    enum { STEPS = 40 };
    double rate = .5;
    toy_model plain, t;
    toy_batch b;
    model_limits limits = toy_model_limits(TOY_HSTU_RESEARCH);
    int n_dropped[2] = {0, 0};
    if (test_on.p != PRECISION_F32) SKIP_TEST("differences need float32");
    toy_batch_make(&b, TOY_HSTU_RESEARCH, 8);
    toy_model_open(&plain, TOY_HSTU_RESEARCH, 0, 1);
    toy_model_open(&t, TOY_HSTU_RESEARCH, 0, 1);
    t.c.network.stochastic_depth = rate;
    toy_model_remake(&t, &limits, 77);
    for (uint32_t step = 0; step < STEPS; step++) {
        toy_model_train(&plain, &b.b, step);
        toy_model_train(&t, &b.b, step);
        float *x = hidden_of(&plain, 0), *y = hidden_of(&plain, 1), *h[3];
        for (int i = 0; i < 3; i++)
            h[i] = hidden_of(&t, i);
        for (int u = 0; u < TOY_USERS; u++) {
            int64_t from = t.p->plan.offsets.host[u], to = t.p->plan.offsets.host[u + 1];
            size_t at = (size_t)(from * t.m->dim), n = (size_t)((to - from) * t.m->dim);
            bool is_dropped = memcmp(h[0] + at, h[1] + at, n * sizeof **h) == 0;
            n_dropped[0] += is_dropped;
            n_dropped[1] += memcmp(h[1] + at, h[2] + at, n * sizeof **h) == 0;
            for (size_t i = at; i < at + n && !is_dropped; i++)
                CHECK(fabs(h[1][i] - x[i] - (y[i] - x[i]) / (1 - rate / 2)) < 1e-5);
        }
        for (int i = 0; i < 3; i++)
            free(h[i]);
        free(x);
        free(y);
    }
    CHECK(n_dropped[0] > 30 && n_dropped[0] < 90); /* 60 of 240 expected, and 120 */
    CHECK(n_dropped[1] > 85 && n_dropped[1] < 155);
    toy_model_close(&plain);
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
            CHECK(kind == TOY_HSTU_RESEARCH || kind == TOY_SASREC || kind == TOY_OWN ||
                  kind == TOY_FUXI || kind == TOY_ESASREC);
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
    st_tensor x = {"x", ST_F32, 1, {1}, 1, .data = &wrong};
    CHECK_OK(st_write(path, &x, 1, &family, 1));
    run_golden(test_folder(), "the family 'nv_unheard_of' is unknown");
}

/* The model a config of configs/ describes, for the items of ML-1M. */
static int64_t count_numbers(const char *path, const char *override) {
    config *c;
    backend *be;
    model *m;
    const char *overrides[] = {override};
    config_source source = {.path = path, .overrides = overrides, .n_overrides = override != NULL};
    model_limits limits = {
        .n_items = 3952, .max_users = 2, .max_events = 201, .time_per_second = 1};
    CHECK_OK(config_load(&c, &source));
    CHECK_OK(backend_create_cpu(&be, NULL));
    CHECK_OK(model_create(&m, be, c, &limits));
    int64_t n = model_n_numbers(m);
    CHECK(model_memory_bytes(m) > (uint64_t)n * 4);
    CHECK_EQ(model_dim(m), 50);
    model_destroy(m);
    backend_destroy(be);
    config_destroy(c);
    return n;
}

/* As many as the reference has. */
TEST(number_of_parameters) {
    CHECK_EQ(count_numbers("configs/ml-1m/hstu-sampled-softmax-n128-final.gin", NULL), 234400);
    CHECK_EQ(count_numbers("configs/ml-1m/hstu-sampled-softmax-n128-large-final.gin", NULL),
             313000);
    CHECK_EQ(count_numbers("configs/ml-1m/sasrec-sampled-softmax-n128-final.gin", NULL), 238800);
}

TEST(names_of_parameters) {
    static const char *const want[] = {
        "_embedding.item.weight",
        "_embedding.action.weight",
        "_embedding.context.0.weight",
        "_embedding.context.1.weight",
        "_hstu_block._preprocessor._positional_encoder._position_embeddings_weight",
        "_hstu_block._attention_layers.0._input_layernorm_weight",
        "_hstu_block._attention_layers.0._input_layernorm_bias",
        "_hstu_block._attention_layers.0._linear_uvqk_weight",
        "_hstu_block._attention_layers.0._linear_uvqk_bias",
        "_hstu_block._attention_layers.0._output_layernorm_weight",
        "_hstu_block._attention_layers.0._output_layernorm_bias",
        "_hstu_block._attention_layers.0._linear_proj_weight"};
    toy_model t;
    int n;
    toy_model_open(&t, TOY_RANK_BITS, 0, 1);
    const param *p = model_params(t.m, &n);
    CHECK_EQ(n, 5 + 2 * 7 + 4);
    for (size_t i = 0; i < sizeof want / sizeof *want; i++)
        CHECK_STR(p[i].name, want[i]);
    CHECK_STR(p[n - 1].name, "_mlp._mlp.2.bias");
    CHECK(p[0].is_table && p[3].is_table && !p[4].is_table);
    toy_model_close(&t);
}

static void moments(const param *p, double *mean, double *deviation, double *largest) {
    double sum = 0, squares = 0;
    *largest = 0;
    for (int64_t i = 0; i < p->n; i++) {
        double x = (double)p->value[i];
        sum += x;
        squares += x * x;
        if (fabs(x) > *largest) *largest = fabs(x);
    }
    *mean = sum / (double)p->n;
    *deviation = sqrt(squares / (double)p->n - *mean * *mean);
}

static param *find(toy_model *t, const char *name) {
    for (int i = 0; i < t->m->params.n; i++)
        if (strcmp(t->m->params.item[i].name, name) == 0) return &t->m->params.item[i];
    FAIL_TEST("there is no parameter %s", name);
}

/* A normal number cut at two deviations has .8796 of the deviation. */
static void check_rule(toy_model *t, const char *name, double want, double bound) {
    double mean, deviation, largest;
    param *p = find(t, name);
    moments(p, &mean, &deviation, &largest);
    double noise = want / sqrt((double)p->n);
    if (fabs(mean) > 4 * noise || fabs(deviation - want) > 4 * noise || largest > bound)
        FAIL_TEST("%s: mean %g, deviation %g, not %g, largest %g", name, mean, deviation, want,
                  largest);
}

TEST(first_values_research) {
    toy_model t;
    toy_model_open(&t, TOY_HSTU_RESEARCH, 0, 1);
    check_rule(&t, "_embedding_module._item_emb.weight", 0.02 * 0.8796, 0.04);
    check_rule(&t, "_input_features_preproc._pos_emb.weight", sqrt(2.0 / (16 + 12)), 2);
    check_rule(&t, "_hstu._attention_layers.1._uvqk", 0.02, 0.1);
    check_rule(&t, "_hstu._attention_layers.0._o.weight", sqrt(2.0 / 24), sqrt(6.0 / 24));
    check_rule(&t, "_hstu._attention_layers.0._o.bias", sqrt(1.0 / 36), sqrt(1.0 / 12));
    check_rule(&t, "_hstu._attention_layers.1._rel_attn_bias._ts_w", 0.02, 0.1);
    toy_model_close(&t);
    toy_model_open(&t, TOY_SASREC, 0, 1);
    check_rule(&t, "_input_features_preproc._pos_emb.weight", sqrt(1.0 / 12) * 0.8796, 0.58);
    check_rule(&t, "attention_layers.0.in_proj_weight", sqrt(2.0 / 48), 2);
    check_rule(&t, "attention_layers.1.out_proj.bias", 0, 0);
    check_rule(&t, "forward_layers.1._conv1d.3.weight", sqrt(2.0 / 22), 2);
    toy_model_close(&t);
}

TEST(first_values_hstu) {
    toy_model t;
    toy_model_open(&t, TOY_RANK_BITS, 0, 1);
    check_rule(&t, "_embedding.item.weight", 0.035 / sqrt(3), 0.035);
    check_rule(&t, "_hstu_block._attention_layers.0._linear_uvqk_weight", sqrt(2.0 / 60),
               sqrt(6.0 / 60));
    check_rule(&t, "_hstu_block._attention_layers.0._linear_uvqk_bias", 0, 0);
    param *one = find(&t, "_hstu_block._attention_layers.1._output_layernorm_weight");
    for (int64_t i = 0; i < one->n; i++)
        CHECK(one->value[i] == 1);
    toy_model_close(&t);
}

/* A row's first value depends on seed, parameter and element, not on how many rows there are. */
TEST(first_values_depend_on_the_seed_only) {
    toy_model a, b;
    toy_model_open(&a, TOY_RANK_BITS, 0, 1);
    toy_model_open(&b, TOY_RANK_BITS, 0, 2);
    model_limits limits = toy_model_limits(TOY_RANK_BITS);
    limits.n_items += 100;
    toy_model_remake(&b, &limits, 77);
    const param *p = a.m->input.item, *q = b.m->input.item;
    CHECK(memcmp(p->value, q->value, (size_t)p->n * sizeof *p->value) == 0);
    CHECK_OK(model_init(b.m, 78));
    CHECK(memcmp(p->value, q->value, (size_t)p->n * sizeof *p->value) != 0);
    toy_model_close(&a);
    toy_model_close(&b);
}

/* Times cost memory and copies, and only the relative bias of the research model reads them. */
TEST(times_are_planned_for_layers_that_read_them) {
    for (int kind = 0; kind < TOY_KINDS; kind++) {
        toy_model t;
        toy_model_open(&t, (toy_kind)kind, 0, 1);
        CHECK_EQ(t.m->plan.has_times,
                 kind == TOY_HSTU_RESEARCH || kind == TOY_OWN || kind == TOY_FUXI);
        toy_model_close(&t);
    }
}

static status try_make(const config *c, const model_limits *l) {
    backend *be;
    model *m;
    pass *p = NULL;
    CHECK_OK(backend_create_cpu(&be, NULL));
    status st = model_create(&m, be, c, l);
    CHECK((st == OK) == (m != NULL));
    if (st == OK) {
        st = pass_create(&p, m, &(pass_config){.max_users = l->max_users, .is_training = true});
        CHECK((st == OK) == (p != NULL));
    }
    pass_destroy(p);
    model_destroy(m);
    backend_destroy(be);
    return st;
}

TEST(refuses_what_does_not_fit) {
    config c = toy_model_config(TOY_RANK_BITS, 0);
    model_limits l = toy_model_limits(TOY_RANK_BITS);
    CHECK_OK(try_make(&c, &l));
    l.n_actions = 0;
    CHECK_FAILS(try_make(&c, &l), ERR_CONFIG, "ranking learns from actions");
    l = toy_model_limits(TOY_RANK_BITS);
    l.max_users = INT32_MAX / 4;
    CHECK_FAILS(try_make(&c, &l), ERR_CONFIG, "make the batch smaller");
    l = toy_model_limits(TOY_RANK_BITS);
    l.time_per_second = 0;
    CHECK_FAILS(try_make(&c, &l), ERR_CONFIG, "ticks a second");
    l = toy_model_limits(TOY_RANK_BITS);
    c.network.target_group_size = 2;
    CHECK_FAILS(try_make(&c, &l), ERR_CONFIG, "actions of other candidates");
    c = toy_model_config(TOY_RANK_BITS, 0);
    c.network.hidden_size = 1 << 20;
    CHECK_FAILS(try_make(&c, &l), ERR_CONFIG, "the width of the model is 1048576");
    c = toy_model_config(TOY_RANK_BITS, 0);
    c.model = MODEL_SASREC;
    CHECK_FAILS(try_make(&c, &l), ERR_CONFIG, "made for retrieval");
    c = toy_model_config(TOY_RETRIEVAL, 0);
    c.network.item_dim = 7;
    CHECK_FAILS(try_make(&c, &l), ERR_CONFIG, "must be hidden_size = 12");
    c = toy_model_config(TOY_RETRIEVAL, 0);
    c.retrieval.temperature = 0;
    CHECK_FAILS(try_make(&c, &l), ERR_CONFIG, "temperature");
}

/* The ends of a range: what is one outside is refused by name; the lower end makes a model. */
static void check_ends(const char *what, int64_t offset, int64_t low, int64_t high) {
    for (int end = 0; end < 3; end++) {
        config c = toy_model_config(TOY_RANK_BITS, 0);
        model_limits l = toy_model_limits(TOY_RANK_BITS);
        int64_t value = end == 0 ? low - 1 : end == 1 ? high + 1 : low;
        memcpy((char *)&c + offset, &value, sizeof value);
        if (end < 2)
            CHECK_FAILS(try_make(&c, &l), ERR_CONFIG, what);
        else
            CHECK_OK(try_make(&c, &l));
    }
}

TEST(refuses_sizes_out_of_range) {
    check_ends("the number of layers is", offsetof(config, network.n_layers), 0, 512);
    check_ends("the width of the model is", offsetof(config, network.hidden_size), 1, 65536);
    check_ends("the number of heads is", offsetof(config, network.n_heads), 1, 1024);
    check_ends("the width of q and k of a head is", offsetof(config, network.dim_qk), 1, 16384);
    check_ends("the width of v of a head is", offsetof(config, network.dim_v), 1, 16384);
    check_ends("the width of the item table is", offsetof(config, network.item_dim), -1, 65536);
    check_ends("the width of the contextual tables is", offsetof(config, network.contextual_dim),
               -1, 65536);
    check_ends("the longest history is", offsetof(config, data.max_history), 1, 1 << 24);
    check_ends("the most candidates is", offsetof(config, data.max_candidates), 0, 1 << 24);
    check_ends("the number of positions is", offsetof(config, network.n_position_buckets), 1,
               1 << 24);
}

/* The same for what the data brings along. */
static void check_limit(const char *what, int64_t offset, int32_t low) {
    for (int end = 0; end < 2; end++) {
        config c = toy_model_config(TOY_RANK_BITS, 0);
        model_limits l = toy_model_limits(TOY_RANK_BITS);
        int32_t value = end == 0 ? low - 1 : low;
        memcpy((char *)&l + offset, &value, sizeof value);
        if (end == 0)
            CHECK_FAILS(try_make(&c, &l), ERR_CONFIG, what);
        else
            CHECK_OK(try_make(&c, &l));
    }
}

TEST(refuses_data_out_of_range) {
    const int32_t none[] = {4, 0}, one[] = {1, 1};
    check_limit("the number of items is", offsetof(model_limits, n_items), 1);
    check_limit("the users of a batch is", offsetof(model_limits, max_users), 1);
    check_limit("the events of a user is", offsetof(model_limits, max_events), 1);
    check_limit("the number of contextual features is", offsetof(model_limits, n_context), 0);
    config c = toy_model_config(TOY_RANK_BITS, 0);
    model_limits l = toy_model_limits(TOY_RANK_BITS);
    l.n_context_values = none;
    CHECK_FAILS(try_make(&c, &l), ERR_CONFIG, "the values of a contextual feature is 0");
    l.n_context_values = one;
    CHECK_OK(try_make(&c, &l));
    l.n_actions = 65537;
    CHECK_FAILS(try_make(&c, &l), ERR_CONFIG, "the number of actions is 65537");
    l.n_actions = 1;
    CHECK_OK(try_make(&c, &l));
}

/* A head of as many columns as tasks predicts bits of the action, of which there are 16. */
TEST(refuses_heads_out_of_range) {
    int64_t width[] = {12, 17};
    config c = toy_model_config(TOY_RANK_BITS, 0);
    model_limits l = toy_model_limits(TOY_RANK_BITS);
    c.ranking.head.item = width;
    c.ranking.n_tasks = 17;
    CHECK_FAILS(try_make(&c, &l), ERR_CONFIG, "bits of the action, is 17");
    c.ranking.n_tasks = width[1] = 16;
    CHECK_OK(try_make(&c, &l));
    c.ranking.n_tasks = width[1] = 1;
    CHECK_OK(try_make(&c, &l));
    width[0] = 0;
    CHECK_FAILS(try_make(&c, &l), ERR_CONFIG, "a width of RankingArgs.prediction_head_arch is 0");
    c.ranking.head.n = 0;
    CHECK_FAILS(try_make(&c, &l), ERR_CONFIG, "is 0; it must be 1 to");
}

TEST(passes_of_the_other_task_are_refused) {
    toy_model t;
    toy_batch b;
    const void *out;
    model_items rows;
    int64_t n;
    toy_model_open(&t, TOY_RANK_BITS, 0, 1);
    toy_batch_make(&b, TOY_RANK_BITS, 1);
    CHECK_FAILS(pass_encode(t.p, &b.b, &out), ERR_CONFIG, "scores candidates");
    CHECK_FAILS(model_corpus(t.m, &rows), ERR_CONFIG, "no corpus");
    toy_model_close(&t);
    toy_model_open(&t, TOY_SASREC, 0, 1);
    CHECK_FAILS(pass_score(t.p, &b.b, &out, &n), ERR_CONFIG, "no ranking head");
    toy_model_close(&t);
}

/* Everything a run does, with the k-th allocation failing. */
static status make_and_train(void *ctx) {
    toy_kind kind = *(const toy_kind *)ctx;
    config c = toy_model_config(kind, 0.1);
    model_limits l = toy_model_limits(kind);
    static toy_batch b;
    model_step at = {1, 1, 1};
    double loss = 0;
    backend *be = NULL;
    model *m = NULL;
    pass *p = NULL;
    pass_config train = {.max_users = l.max_users, .is_training = true};
    toy_batch_make(&b, kind, 3);
    status st = backend_create_cpu(&be, NULL);
    if (st == OK) st = model_create(&m, be, &c, &l);
    if (st == OK) st = pass_create(&p, m, &train);
    if (st == OK) st = model_init(m, 1);
    if (st == OK) st = pass_train(p, &b.b, &at, NULL);
    if (st == OK) st = pass_take_loss(p, &loss);
    pass_destroy(p);
    model_destroy(m);
    backend_destroy(be);
    return st;
}

TEST(out_of_memory) {
    for (int kind = 0; kind < TOY_KINDS; kind++) {
        toy_kind k = (toy_kind)kind;
        CHECK(oom_at_each_allocation(make_and_train, &k) > 40);
    }
}

/* Rows of a bank are numbered by int32, with one number to spare: here items, the padding row, 8
 * actions and 13 contextual values. */
TEST(models_of_too_many_rows_are_refused) {
    config c = toy_model_config(TOY_RANK_BITS, 0);
    model_limits limits = toy_model_limits(TOY_RANK_BITS);
    backend *be;
    model *m;
    limits.n_items = INT32_MAX - 22;
    CHECK_OK(backend_create_cpu(&be, NULL));
    CHECK_FAILS(model_create(&m, be, &c, &limits), ERR_CONFIG,
                "the tables have 2147483647 rows; 2^31 - 2 are the most");
    backend_destroy(be);
}
