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

/* A list with room for three parameters that has two touches only these. */
TEST(gradients_of_the_parameters_there_are) {
    backend *be;
    nn_memory memory;
    param_list l;
    param *p;
    float row[2] = {3, 3};
    CHECK_OK(backend_create_cpu(&be, NULL));
    nn_memory_init(&memory, be);
    CHECK_OK(param_list_init(&l, &memory, 3));
    for (int i = 0; i < 2; i++)
        CHECK_OK(param_add(&l, &(param_spec){"a.", "b", 1, {100}, {INIT_ZERO, 0, 0}, false}, &p));
    CHECK_OK(param_list_alloc_grads(&l));
    CHECK_EQ(l.dense_grads.n, 256);
    CHECK(l.item[1].grad == l.dense_grads.first + 128 && l.item[2].grad == NULL);
    l.item[2] = (param){.n = 2, .grad = row, .is_table = true};
    l.item[1].grad[99] = 1;
    CHECK_OK(param_list_clear_grads(&l));
    CHECK(l.item[1].grad[99] == 0 && row[0] == 3 && row[1] == 3);
    nn_memory_fini(&memory);
    backend_destroy(be);
}

/* Box and Muller's formula for words 0 and 1 of each element's draw. */
TEST(first_values_are_normal) {
    enum { N = 50 };
    backend *be;
    nn_memory memory;
    param_list l;
    param *p;
    CHECK_OK(backend_create_cpu(&be, NULL));
    nn_memory_init(&memory, be);
    CHECK_OK(param_list_init(&l, &memory, 1));
    CHECK_OK(param_add(&l, &(param_spec){"", "w", 1, {N}, {INIT_NORMAL, 2, 0}, false}, &p));
    CHECK_OK(param_list_start(&l, 9));
    for (uint32_t i = 0; i < N; i++) {
        rng_block w = rng_draw(rng_make_key(9, RNG_INIT), i, 0, 0, 0);
        double u = (double)rng_uniform(w.word[0]), v = (double)rng_uniform(w.word[1]);
        double want = 2 * sqrt(-2 * log(1 - u)) * cos(2 * acos(-1) * v);
        CHECK(fabs((double)p->value[i] - want) < 1e-5);
    }
    nn_memory_fini(&memory);
    backend_destroy(be);
}

TEST(blocks_too_large_for_memory_are_refused) {
    backend *be;
    nn_memory memory;
    float *block;
    CHECK_OK(backend_create_cpu(&be, NULL));
    nn_memory_init(&memory, be);
    CHECK_FAILS(NN_NEW(&memory, &block, INT64_MAX), ERR_NOMEM, "too many for one block");
    CHECK_FAILS(NN_NEW(&memory, &block, -1), ERR_NOMEM, "-1 elements of 4 bytes are too many");
    CHECK(block == NULL && memory.n_device == 0);
    nn_memory_fini(&memory);
    backend_destroy(be);
}
