#include "nn/params.h"

#include "test.h"
#include "toy_model.h"

/* Every dense gradient is in the one range, in order and without overlap; tables are outside. */
static void check_range(const model *m) {
    const param_range *all = &m->params.dense_grads;
    const float *next = all->first;
    for (int i = 0; i < m->params.n; i++) {
        const param *p = &m->params.item[i];
        bool is_inside = p->grad >= all->first && p->grad < all->first + all->n;
        CHECK_EQ(is_inside, !p->is_table);
        if (p->is_table) continue;
        CHECK(p->grad >= next && p->grad - next < 64);
        CHECK_EQ((p->grad - all->first) % 64, 0);
        next = p->grad + p->n;
    }
    CHECK(next <= all->first + all->n && all->first + all->n - next < 64);
}

/* A sum over the range equals the sum over the parameters: nothing is written into the gaps. */
static void check_sum(toy_model *t) {
    const param_range *all = &t->m->params.dense_grads;
    double whole = 0, parts = 0;
    for (int64_t i = 0; i < all->n; i++)
        whole += (double)all->first[i] * (double)all->first[i];
    for (int i = 0; i < t->m->params.n; i++) {
        const param *p = &t->m->params.item[i];
        for (int64_t k = 0; k < p->n && !p->is_table; k++)
            parts += (double)p->grad[k] * (double)p->grad[k];
    }
    CHECK(whole > 0 && whole == parts);
}

TEST(dense_gradients_are_one_range) {
    for (int kind = 0; kind < TOY_KINDS; kind++) {
        toy_model t;
        toy_batch b;
        toy_model_open(&t, (toy_kind)kind, 0.1, 1);
        toy_batch_make(&b, (toy_kind)kind, 4);
        check_range(t.m);
        toy_model_train(&t, &b.b, 0);
        check_sum(&t);
        CHECK_OK(param_list_clear_grads(&t.m->params));
        for (int i = 0; i < t.m->params.n; i++) {
            const param *p = &t.m->params.item[i];
            for (int64_t k = 0; k < p->n; k++)
                CHECK(p->grad[k] == 0);
            for (int64_t row = 0; p->marks != NULL && row < p->shape[0]; row++)
                CHECK_EQ(p->marks[row], 0);
        }
        toy_model_close(&t);
    }
}

/* Asking twice allocates once. */
TEST(gradients_are_made_once) {
    toy_model t;
    toy_model_open(&t, TOY_RANK_MLP, 0, 1);
    uint64_t bytes = t.m->memory.device_bytes;
    const float *first = t.m->params.dense_grads.first;
    CHECK_OK(param_list_alloc_grads(&t.m->params));
    CHECK_OK(input_alloc_grads(&t.m->input, &t.m->memory));
    CHECK(t.m->params.dense_grads.first == first && t.m->memory.device_bytes == bytes);
    toy_model_close(&t);
}
