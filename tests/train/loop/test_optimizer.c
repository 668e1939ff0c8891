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

/* One step without a gradient, with the groups that the config leaves out of decay. */
TEST(optimizer_decays_by_group) {
    static const char *const names[] = {"'none'", "'vectors'", "'tables'", "'vectors+tables'"};
    for (int group = 0; group < 4; group++) {
        char groups[64];
        snprintf(groups, sizeof groups, "train_fn.no_weight_decay=%s", names[group]);
        const char *const set[] = {"train_fn.weight_decay=0.5", groups};
        bench_top t;
        optimizer o;
        CHECK_OK(top_open(&t, retrieval_gin, set, 2, 1));
        CHECK_OK(optimizer_init(&o, t.be, t.session.model, t.config));
        CHECK_OK(model_init(t.session.model, 1));
        float before[256];
        CHECK(t.session.n_params < 256);
        for (int i = 0; i < t.session.n_params; i++) {
            const param *p = &t.session.params[i];
            before[i] = p->value[p->n - 1];
        }
        CHECK_OK(optimizer_step(&o, 0.25, 1, 1));
        int n_kept = 0, n_decayed = 0;
        for (int i = 0; i < t.session.n_params; i++) {
            const param *p = &t.session.params[i];
            int bit = p->is_table ? 2 : p->n_dims == 1 ? 1 : 0;
            float now = p->value[p->n - 1], want = (group & bit) != 0 ? 1 : 0.875f;
            CHECK(fabsf(now - want * before[i]) <= 1e-6f * fabsf(before[i]));
            n_kept += want == 1;
            n_decayed += want != 1;
        }
        CHECK(n_decayed > 0 && (n_kept > 0) == (group > 0));
        optimizer_fini(&o);
        top_close(&t);
    }
}

/* Gradients of a step, the same in every run. */
static void put_grads(session *s, uint64_t step) {
    for (int i = 0; i < s->n_params; i++)
        for (int64_t k = 0; k < s->params[i].n; k++) {
            rng_block w = rng_draw64(rng_make_key(step, RNG_TEST), (uint64_t)k, (uint64_t)i);
            s->params[i].grad[k] = rng_uniform(w.word[0]) - .5f;
        }
}

/* The averages in float64; training has the same bits with them and without, shown or not. */
TEST(optimizer_averages_weights) {
    static const char *const set[] = {"train_fn.weight_average=0.6"};
    enum { STEPS = 12 };
    bench_top t[2];
    optimizer o[2];
    for (int b = 0; b < 2; b++) {
        CHECK_OK(top_open(&t[b], retrieval_gin, set, (size_t)b, 1));
        CHECK_OK(optimizer_init(&o[b], t[b].be, t[b].session.model, t[b].config));
        CHECK_OK(model_init(t[b].session.model, 1));
    }
    session *s = &t[1].session;
    double *want[256];
    CHECK(s->n_params < 256 && optimizer_bytes(&o[1]) > optimizer_bytes(&o[0]));
    for (int i = 0; i < s->n_params; i++) {
        CHECK_OK(MEM_NEW(&want[i], (size_t)s->params[i].n));
        for (int64_t k = 0; k < s->params[i].n; k++)
            want[i][k] = s->params[i].value[k];
    }
    CHECK_OK(optimizer_show(&o[1])); /* they have not begun */
    CHECK(optimizer_weights(&o[1], 0) == NULL);
    for (int step = 1; step <= STEPS; step++) {
        double early = (1.0 + step) / (10.0 + step), decay = early < .6 ? early : .6;
        CHECK_OK(optimizer_hide(&o[1]));
        for (int b = 0; b < 2; b++) {
            put_grads(&t[b].session, (uint64_t)step);
            CHECK_OK(optimizer_step(&o[b], 0.01, step, 1));
        }
        for (int i = 0; i < s->n_params; i++) {
            const param *p = &s->params[i];
            CHECK(memcmp(p->value, t[0].session.params[i].value, (size_t)p->n * 4) == 0);
            for (int64_t k = 0; k < p->n; k++)
                want[i][k] += (1 - decay) * (p->value[k] - want[i][k]);
        }
        if (step % 2 == 0) continue;
        CHECK_OK(optimizer_show(&o[1]));
        CHECK_OK(optimizer_show(&o[1])); /* nothing the second time */
        for (int i = 0; i < s->n_params; i++)
            for (int64_t k = 0; k < s->params[i].n; k++)
                CHECK(fabs(s->params[i].value[k] - want[i][k]) < 1e-6);
    }
    for (int i = 0; i < s->n_params; i++)
        mem_free(want[i]);
    for (int b = 0; b < 2; b++) {
        optimizer_fini(&o[b]);
        top_close(&t[b]);
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
