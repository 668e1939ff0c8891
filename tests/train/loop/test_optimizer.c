/* What the optimizer makes of a config and of rows that got no gradient. */
#include "toy_model.h"
#include "train/loop/optimizer.h"
#include "train_test.h"

static param *find_param(session *s, bool is_table) {
    for (int i = 0; i < s->n_params; i++)
        if (s->params[i].is_table == is_table && s->params[i].n_dims == 2) return &s->params[i];
    FAIL_TEST("the model has no such parameter");
}

/* One step without a gradient: what moves, moves by weight decay alone.  Lazy rows have none,
 * touched or not; dense rows and all other weights shrink by rate times decay. */
TEST(optimizer_weight_decay) {
    static const char *const set[] = {"OptimizerArgs.weight_decay=0.5",
                                      "train_fn.weight_decay=0.5"};
    for (int is_lazy = 0; is_lazy < 2; is_lazy++) {
        bench_top t;
        optimizer o;
        CHECK_OK(top_open(&t, is_lazy ? ranking_gin : retrieval_gin, &set[!is_lazy], 1, 1));
        CHECK_OK(optimizer_init(&o, t.be, t.session.model, t.config));
        CHECK_OK(model_init(t.session.model, 1));
        param *table = find_param(&t.session, true), *dense = find_param(&t.session, false);
        if (table->marks != NULL) table->marks[3] = 1;
        int64_t at = 3 * table->shape[1], other = 4 * table->shape[1];
        float row = table->value[at], untouched = table->value[other], weight = dense->value[0];
        CHECK(row != 0 && untouched != 0 && weight != 0);
        CHECK_OK(optimizer_step(&o, 0.25, 1, 1));
        float kept = is_lazy ? 1 : 0.875f; /* 1 - rate * decay */
        CHECK(fabsf(table->value[at] - kept * row) < 1e-6f * fabsf(row));
        CHECK(fabsf(table->value[other] - kept * untouched) < 1e-6f * fabsf(untouched));
        CHECK(fabsf(dense->value[0] - 0.875f * weight) < 1e-6f * fabsf(weight));
        optimizer_fini(&o);
        top_close(&t);
    }
}

/* Plain descent moves a weight by rate times scale times gradient: the scale counts whether or not
 * the norm is watched, as accumulation in float32 without clipping needs. */
TEST(optimizer_scales_the_gradient) {
    static const char *const set[] = {"OptimizerArgs.optimizer_str='sgd'",
                                      "TrainerArgs.clip_grad=1000000"};
    static const float scales[] = {0.25f, 1};
    for (int i = 0; i < 4; i++) {
        bench_top t;
        optimizer o;
        CHECK_OK(top_open(&t, ranking_gin, set, 1 + (size_t)(i / 2), 1));
        CHECK_OK(optimizer_init(&o, t.be, t.session.model, t.config));
        CHECK_OK(model_init(t.session.model, 1));
        CHECK_EQ(o.is_watched, i / 2 == 1);
        param *p[2] = {find_param(&t.session, true), find_param(&t.session, false)};
        float before[2];
        CHECK(p[0]->marks != NULL);
        p[0]->marks[0] = 1;
        for (int k = 0; k < 2; k++) {
            before[k] = p[k]->value[0];
            p[k]->grad[0] = 2;
        }
        CHECK_OK(optimizer_step(&o, 0.5, 1, (double)scales[i % 2]));
        for (int k = 0; k < 2; k++) {
            CHECK(fabsf(p[k]->value[0] - (before[k] - scales[i % 2])) < 1e-6f);
            CHECK(p[k]->grad[0] == 0);
        }
        optimizer_fini(&o);
        top_close(&t);
    }
}

/* Adam has two numbers for each weight, AdaGrad one for each row of a table, plain descent none. */
TEST(optimizer_state_bytes) {
    static const char *const kinds[] = {"OptimizerArgs.optimizer_str='adam'",
                                        "OptimizerArgs.optimizer_str='sgd'",
                                        "OptimizerArgs.optimizer_str='row_wise_adagrad'"};
    for (int kind = 0; kind < 3; kind++) {
        bench_top t;
        optimizer o;
        uint64_t n_all = 0, n_dense = 0, n_rows = 0;
        CHECK_OK(top_open(&t, ranking_gin, &kinds[kind], 1, 1));
        CHECK_OK(optimizer_init(&o, t.be, t.session.model, t.config));
        for (int i = 0; i < t.session.n_params; i++) {
            const param *p = &t.session.params[i];
            n_all += (uint64_t)p->n;
            *(p->is_table ? &n_rows : &n_dense) += (uint64_t)(p->is_table ? p->shape[0] : p->n);
        }
        uint64_t want[] = {8 * n_all, 0, 8 * n_dense + 4 * n_rows};
        CHECK(n_rows > 0 && n_dense > 0);
        CHECK_EQ(optimizer_bytes(&o), want[kind]);
        optimizer_fini(&o);
        top_close(&t);
    }
}

/* Whether or not a pass for training was made before. */
TEST(optimizer_makes_gradients) {
    config c = toy_model_config(TOY_SASREC, 0);
    model_limits limits = toy_model_limits(TOY_SASREC);
    backend *be;
    model *m;
    optimizer o;
    CHECK_OK(backend_create_cpu(&be, NULL));
    CHECK_OK(model_create(&m, be, &c, &limits));
    CHECK_OK(optimizer_init(&o, be, m, &c));
    CHECK(o.dense_grads.n > 0 && o.dense_grads.first != NULL && o.params[0].grad != NULL);
    optimizer_fini(&o);
    model_destroy(m);
    backend_destroy(be);
}
