#include <math.h>

#include "device.h"
#include "test.h"
#include "toy_model.h"

/* Content of the toys' items: a list and a category, of which some items have none, and vectors. */
static seq_file toy_content(void) {
    enum { N = TOY_ITEMS + 1, DIM = 3 };
    static const uint64_t names[] = {0, 0, 1, 2, 3};
    static uint64_t list[N + 1], category[N + 1];
    static uint32_t of_list[2 * N], of_category[N];
    static float vector[N * DIM];
    uint64_t n = 0, n_one = 0;
    for (uint32_t i = 0; i < N; i++) {
        list[i] = n, category[i] = n_one;
        for (uint32_t v = 1; v <= 4 && i > 0; v++)
            if ((i + v) % 3 == 0) of_list[n++] = v;
        if (i % 4 != 0) of_category[n_one++] = i % 2 + 1;
        for (int k = 0; k < DIM && i > 0; k++)
            vector[i * DIM + (uint32_t)k] = (float)((i * 7 + (uint32_t)k * 5) % 11) / 11 - 0.5f;
    }
    list[N] = n, category[N] = n_one;
    return (seq_file){.n_items = TOY_ITEMS,
                      .content = {{"genre", list, of_list, {names, "abcd", 5}, NULL},
                                  {"brand", category, of_category, {names, "xy", 3}, NULL}},
                      .n_content = 2,
                      .item_vector = vector,
                      .item_vector_dim = DIM};
}

/* The loss with own rows, rows of values, or W moved: all of them move the item table. */
static double content_loss_at(toy_model *t, const batch *b, float *at, const float *from,
                              const double *direction, int64_t n, double h) {
    for (int64_t k = 0; k < n; k++)
        at[k] = (float)((double)from[k] + h * direction[k]);
    CHECK_OK(content_make(&t->m->content));
    return toy_model_train(t, b, 9);
}

static void check_content_slope(toy_model *t, const batch *b, float *at, const float *grad,
                                int64_t n) {
    static float from[1024], gradient[1024];
    static double direction[1024];
    double h = 1e-2;
    CHECK(n <= 1024);
    CHECK_OK(content_make(&t->m->content));
    toy_model_train(t, b, 9);
    CHECK_OK(content_bwd(&t->m->content));
    memcpy(from, at, (size_t)n * sizeof *from);
    memcpy(gradient, grad, (size_t)n * sizeof *gradient);
    double slope = toy_direction(gradient, n, 11, direction);
    double got = (8 * (content_loss_at(t, b, at, from, direction, n, h) -
                       content_loss_at(t, b, at, from, direction, n, -h)) -
                  content_loss_at(t, b, at, from, direction, n, 2 * h) +
                  content_loss_at(t, b, at, from, direction, n, -2 * h)) /
                 (12 * h);
    if (!(fabs(got - slope) <= 0.02 * fabs(slope) + 2e-3))
        FAIL_TEST("the slope is %g, the gradient says %g", got, slope);
    memcpy(at, from, (size_t)n * sizeof *from);
}

static void check_content_gradients(toy_kind kind) {
    toy_model t;
    toy_batch b;
    seq_file data = toy_content();
    model_limits limits = toy_model_limits(kind);
    uint8_t is_warm[TOY_ITEMS];
    toy_model_open(&t, kind, 0, 2);
    toy_batch_make(&b, kind, 6);
    limits.content = &data;
    toy_model_remake(&t, &limits, 3);
    content_rows *c = &t.m->content;
    for (int i = 0; i < TOY_ITEMS; i++)
        is_warm[i] = i % 6 != 3;
    toy_enlarge(&t);
    CHECK_OK(content_start(c));
    CHECK_OK(model_set_warm(t.m, is_warm));
    check_content_slope(&t, &b.b, c->item->own, c->item->grad, c->item->n);
    check_content_slope(&t, &b.b, c->values->value, c->values->grad, c->values->n);
    check_content_slope(&t, &b.b, c->w->value, c->w->grad, c->w->n);
    toy_model_close(&t);
}

TEST(gradients_of_content) {
    if (test_on.p != PRECISION_F32) SKIP_TEST("differences need float32");
    check_content_gradients(TOY_HSTU_RESEARCH);
    check_content_gradients(TOY_RETRIEVAL);
    check_content_gradients(TOY_RANK_BITS);
}

/* Content starts at 0: a model begins as it would without, but for items without training events,
 * which have no row of their own and are no negatives. */
TEST(content_starts_as_without) {
    toy_model t, plain;
    toy_batch b;
    seq_file data = toy_content();
    model_limits limits = toy_model_limits(TOY_HSTU_RESEARCH);
    toy_model_open(&t, TOY_HSTU_RESEARCH, 0, 2);
    toy_model_open(&plain, TOY_HSTU_RESEARCH, 0, 2);
    toy_batch_make(&b, TOY_HSTU_RESEARCH, 6);
    toy_model_remake(&plain, &limits, 3);
    limits.content = &data;
    toy_model_remake(&t, &limits, 3);
    CHECK(toy_model_train(&t, &b.b, 9) == toy_model_train(&plain, &b.b, 9));
    uint8_t is_warm[TOY_ITEMS] = {0};
    is_warm[2] = is_warm[5] = 1;
    CHECK_OK(model_set_warm(t.m, is_warm));
    CHECK_EQ(t.m->retrieval.loss.n_pool, 2);
    CHECK_EQ(t.m->retrieval.loss.pool[1], 5);
    for (int i = 0; i < TOY_ITEMS; i++)
        CHECK((t.m->input.item->value[(i + 1) * t.m->dim] != 0) == (is_warm[i] != 0));
    toy_model_close(&plain);
    toy_model_close(&t);
}
