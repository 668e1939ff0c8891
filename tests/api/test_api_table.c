/* The dynamic tables of hstu.h: find, lookup, insert, update, erase, save and load on the CPU. */
#include "hstu.h"
#include "test.h"

enum { DIM = 3 };

static hstu_table *make(hstu_table_optimizer optimizer, int64_t max_batch) {
    hstu_table *table;
    hstu_table_config c;
    hstu_table_defaults(&c);
    c.dim = DIM;
    c.optimizer = optimizer;
    c.capacity = 1024;
    c.max_batch = max_batch;
    c.device = "cpu";
    c.first_scale = 0.5f;
    c.seed = 3;
    if (hstu_table_create(&table, &c) != HSTU_OK) FAIL_TEST("%s", hstu_error());
    return table;
}

static int64_t size_of(hstu_table *table) {
    int64_t n;
    CHECK_EQ(hstu_table_size(table, &n), HSTU_OK);
    return n;
}

static void find(hstu_table *table, uint64_t id, float row[DIM], int is_there) {
    uint8_t found = 9;
    CHECK_EQ(hstu_table_find(table, 1, &id, row, &found), HSTU_OK);
    CHECK_EQ(found, is_there);
}

TEST(rows_are_made_found_replaced_and_erased) {
    const uint64_t ids[] = {7, UINT64_MAX - 5, 7, 900};
    const float given[DIM] = {1, 2, 3};
    float rows[4][DIM], row[DIM];
    int64_t n = -1;
    hstu_table *table = make(HSTU_TABLE_ADAM, 2); /* pieces of two: ids repeat in different ones */
    find(table, 7, row, 0);
    CHECK_EQ(row[0], 0);
    CHECK_EQ(hstu_table_lookup(table, 4, ids, rows[0]), HSTU_OK);
    CHECK_EQ(size_of(table), 3);
    CHECK_EQ(memcmp(rows[0], rows[2], sizeof rows[0]), 0);
    CHECK(memcmp(rows[0], rows[1], sizeof rows[0]) != 0);
    CHECK(fabsf(rows[3][1]) <= 0.5f && rows[3][1] != 0);
    find(table, 7, row, 1);
    CHECK_EQ(memcmp(row, rows[0], sizeof row), 0);

    CHECK_EQ(hstu_table_insert(table, 1, &ids[3], given, &n), HSTU_OK);
    CHECK_EQ(n, 0);
    find(table, 900, row, 1);
    CHECK_EQ(memcmp(row, given, sizeof row), 0);
    CHECK_EQ(size_of(table), 3);
    CHECK_EQ(hstu_table_erase(table, 2, ids, &n), HSTU_OK);
    CHECK_EQ(n, 2);
    find(table, 7, row, 0);
    CHECK_EQ(size_of(table), 1);
    hstu_table_destroy(table);
}

TEST(an_update_adds_up_the_gradients_of_an_id_and_steps_once) {
    const uint64_t ids[] = {5, 6, 5};
    const float zero[2][DIM] = {{0}}, gradients[3][DIM] = {{1, 2, 3}, {10, 20, 30}, {4, 5, 6}};
    float row[DIM];
    hstu_table_step step;
    hstu_table *table = make(HSTU_TABLE_SGD, 8);
    hstu_table_step_defaults(&step);
    step.lr = 0.5f;
    CHECK_EQ(hstu_table_insert(table, 2, ids, zero[0], NULL), HSTU_OK);
    CHECK_EQ(hstu_table_update(table, 3, ids, gradients[0], &step), HSTU_OK);
    find(table, 5, row, 1);
    for (int i = 0; i < DIM; i++)
        CHECK_EQ(row[i], -0.5f * (gradients[0][i] + gradients[2][i]));
    find(table, 6, row, 1);
    CHECK_EQ(row[2], -15);
    hstu_table_destroy(table);
}

/* Adam's first step is lr whatever the gradient, its second one depends on the state. */
TEST(a_table_goes_on_after_save_and_load_as_if_it_had_not_been_saved) {
    const uint64_t id = 44;
    const float gradient[2][DIM] = {{1, -2, 3}, {-4, 5, 6}};
    float kept[DIM], loaded[DIM];
    char folder[600];
    int64_t n = -1;
    hstu_table_step step;
    hstu_table *a = make(HSTU_TABLE_ADAM, 8), *b = make(HSTU_TABLE_ADAM, 8);
    hstu_table_step_defaults(&step);
    CHECK_EQ(hstu_table_update(a, 1, &id, gradient[0], &step), HSTU_OK);
    snprintf(folder, sizeof folder, "%s/table", test_folder());
    CHECK_EQ(hstu_table_save(a, folder), HSTU_OK);
    CHECK_EQ(hstu_table_load(b, folder, &n), HSTU_OK);
    CHECK_EQ(n, 0);
    CHECK_EQ(hstu_table_update(a, 1, &id, gradient[1], &step), HSTU_OK);
    CHECK_EQ(hstu_table_update(b, 1, &id, gradient[1], &step), HSTU_OK);
    find(a, id, kept, 1);
    find(b, id, loaded, 1);
    CHECK_EQ(memcmp(kept, loaded, sizeof kept), 0);
    CHECK(hstu_table_save(a, folder) != HSTU_OK); /* it is there already */
    CHECK(hstu_table_load(b, test_folder(), &n) != HSTU_OK);
    hstu_table_destroy(a);
    hstu_table_destroy(b);
}

TEST(arguments_that_cannot_be_are_refused) {
    const uint64_t ids[3] = {1, 2, 1};
    float rows[3][DIM] = {{0}};
    hstu_table_step step;
    hstu_table_config c;
    hstu_table *none, *table = make(HSTU_TABLE_SGD, 2);
    hstu_table_defaults(&c);
    CHECK_EQ(hstu_table_create(&none, &c), HSTU_ERR_USAGE); /* dim is 0 */
    CHECK(none == NULL);
    c.dim = DIM;
    c.eviction = (hstu_table_eviction)7;
    CHECK_EQ(hstu_table_create(&none, &c), HSTU_ERR_USAGE);
    CHECK_EQ(hstu_table_create(&none, NULL), HSTU_ERR_USAGE);
    hstu_table_step_defaults(&step);
    CHECK_EQ(hstu_table_update(table, 3, ids, rows[0], &step), HSTU_ERR_USAGE);
    CHECK(strstr(hstu_error(), "max_batch is 2") != NULL);
    CHECK_EQ(hstu_table_insert(table, 3, ids, rows[0], NULL), HSTU_ERR_USAGE);
    CHECK_EQ(hstu_table_find(table, -1, ids, rows[0], NULL), HSTU_ERR_USAGE);
    CHECK_EQ(hstu_table_find(table, 1, NULL, rows[0], NULL), HSTU_ERR_USAGE);
    CHECK_EQ(hstu_table_find(NULL, 1, ids, rows[0], NULL), HSTU_ERR_USAGE);
    rows[1][2] = NAN;
    CHECK_EQ(hstu_table_insert(table, 2, ids, rows[0], NULL), HSTU_ERR_NUMERIC);
    CHECK_CONTAINS(hstu_error(), "number 5 of the rows is nan");
    rows[1][2] = INFINITY;
    CHECK_EQ(hstu_table_update(table, 2, ids, rows[0], &step), HSTU_ERR_NUMERIC);
    CHECK_CONTAINS(hstu_error(), "number 5 of the gradients is inf");
    rows[1][2] = 0;
    for (int i = 0; i < 5; i++) {
        hstu_table_step bad = step;
        *(float *const[]){&bad.lr, &bad.beta1, &bad.beta2, &bad.eps, &bad.weight_decay}[i] = NAN;
        CHECK_EQ(hstu_table_update(table, 1, ids, rows[0], &bad), HSTU_ERR_USAGE);
        CHECK_CONTAINS(hstu_error(), "all must be finite");
    }
    c.eviction = HSTU_EVICT_LRU;
    c.device = "cuda:63"; /* the library has no options */
    CHECK_EQ(hstu_table_create(&none, &c), HSTU_ERR_DEVICE);
    CHECK_CONTAINS(hstu_error(), "use device=\"cpu\"");
    c.device = "cpu";
    c.first_scale = NAN;
    CHECK_EQ(hstu_table_create(&none, &c), HSTU_ERR_USAGE);
    CHECK_CONTAINS(hstu_error(), "first_scale is nan");
    CHECK_EQ(size_of(table), 0);
    const uint64_t twice[2] = {1, 1};
    const float large[2][DIM] = {{3e38f}, {3e38f}}; /* finite, but not their sum */
    CHECK_EQ(hstu_table_update(table, 2, twice, large[0], &step), HSTU_ERR_NUMERIC);
    hstu_table_destroy(table);
    hstu_table_destroy(NULL);
}

/* What these would write is not finite, and could not be saved: 0 / 0, infinite squares, rows that
 * grow without bounds. */
TEST(updates_that_would_overflow_are_refused) {
    const uint64_t id = 8;
    const float zero[DIM] = {0}, large[DIM] = {2e19f}, given[DIM] = {1, 2, 3};
    float row[DIM];
    hstu_table_step step;
    hstu_table_step_defaults(&step);
    for (int i = HSTU_TABLE_SGD; i <= HSTU_TABLE_ROWWISE_ADAGRAD; i++) {
        hstu_table *table = make((hstu_table_optimizer)i, 2);
        const hstu_table_step bad[] = {{-1, .9f, .99f, 1e-8f, 0},
                                       {3e38f, .9f, .99f, 1e-8f, 0},
                                       {1, .9f, .99f, 1e-8f, 3},
                                       {1, .9f, .99f, i == HSTU_TABLE_SGD ? -1 : 0, 0}};
        CHECK_EQ(hstu_table_insert(table, 1, &id, given, NULL), HSTU_OK);
        for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
            CHECK_EQ(hstu_table_update(table, 1, &id, zero, &bad[k]), HSTU_ERR_USAGE);
            CHECK_CONTAINS(hstu_error(), "lr 0 to 1e6");
        }
        CHECK_EQ(hstu_table_update(table, 1, &id, large, &step), HSTU_ERR_NUMERIC);
        CHECK_CONTAINS(hstu_error(), "add up to 2e+19");
        find(table, id, row, 1);
        CHECK_EQ(memcmp(row, given, sizeof row), 0);
        CHECK_EQ(hstu_table_update(table, 1, &id, zero, &step), HSTU_OK);
        hstu_table_destroy(table);
    }
}
