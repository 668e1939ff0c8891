/* The dynamic tables of hstu.h: find, lookup, insert, update, erase, save and load on the CPU;
 * pooled lookups, their gradients and collections on the device under test, against float64. */
#include "device.h"
#include "hstu.h"
#include "table_rig.h"
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

enum { MAX_DIM = 16, BAGS = 120, MAX_IDS = 8 * BAGS, UNIVERSE = 50 };

static hstu_table *make_sized(int32_t dim, int64_t max_batch, int64_t capacity, float first_scale) {
    hstu_table *table;
    hstu_table_config c;
    char device[32] = "cpu";
    if (test_on.kind == ON_CUDA) snprintf(device, sizeof device, "cuda:%d", test_on.number);
    hstu_table_defaults(&c);
    c.dim = dim;
    c.optimizer = HSTU_TABLE_SGD;
    c.capacity = capacity;
    c.max_batch = max_batch;
    c.device = device;
    c.first_scale = first_scale;
    if (hstu_table_create(&table, &c) != HSTU_OK) FAIL_TEST("%s", hstu_error());
    return table;
}

static hstu_table *make_pooled(int32_t dim, int64_t max_batch) {
    return make_sized(dim, max_batch, 1024, 0.5f);
}

/* Bags of 0 to 7 ids, which repeat. */
typedef struct drawn {
    int64_t offsets[BAGS + 1], n;
    uint64_t ids[MAX_IDS];
    float weights[MAX_IDS], dy[BAGS * MAX_DIM];
    hstu_bags bags;
} drawn;

static float draw(uint64_t *state) {
    return (float)rig_random(state, 2001) / 1000 - 1;
}

static void draw_all(drawn *d, uint64_t seed, bool has_weights, hstu_pooling pooling) {
    memset(d, 0, sizeof *d);
    for (int b = 0; b < BAGS; b++)
        d->offsets[b + 1] = d->offsets[b] + (int64_t)rig_random(&seed, 8);
    d->n = d->offsets[BAGS];
    for (int64_t i = 0; i < d->n; i++) {
        d->ids[i] = UINT64_MAX - rig_random(&seed, UNIVERSE);
        d->weights[i] = has_weights ? draw(&seed) : 1;
    }
    for (int i = 0; i < BAGS * MAX_DIM; i++)
        d->dy[i] = draw(&seed);
    d->bags = (hstu_bags){.n_bags = BAGS,
                          .offsets = d->offsets,
                          .ids = d->ids,
                          .weights = has_weights ? d->weights : NULL,
                          .pooling = pooling};
}

static double factor(const drawn *d, int64_t b, int64_t i) {
    int64_t n = d->offsets[b + 1] - d->offsets[b];
    return d->weights[i] / (d->bags.pooling == HSTU_POOL_MEAN ? (double)n : 1);
}

static void check_near(double want, float got) {
    if (!(fabs(want - (double)got) < 2e-6)) FAIL_TEST("%.9g instead of %.9g", (double)got, want);
}

/* y and the gradients of the weights; `rows` (n, dim) are those of the ids. */
static void check_lookup(const drawn *d, int32_t dim, const float *rows, const float *y,
                         const float *dw) {
    for (int64_t b = 0; b < BAGS; b++)
        for (int32_t c = 0; c < dim; c++) {
            double sum = 0;
            for (int64_t i = d->offsets[b]; i < d->offsets[b + 1]; i++)
                sum += factor(d, b, i) * (double)rows[i * dim + c];
            check_near(sum, y[b * dim + c]);
        }
    for (int64_t b = 0; b < BAGS; b++)
        for (int64_t i = d->offsets[b]; i < d->offsets[b + 1]; i++) {
            double sum = 0;
            for (int32_t c = 0; c < dim; c++)
                sum += (double)rows[i * dim + c] * (double)d->dy[b * dim + c];
            check_near(sum * factor(d, b, i) / (double)d->weights[i], dw[i]);
        }
}

/* SGD with lr 0.1: rows after the update are those before less 0.1 times the gradient. */
static void check_update(const drawn *d, int32_t dim, const float *rows, const float *after) {
    for (int64_t i = 0; i < d->n; i++)
        for (int32_t c = 0; c < dim; c++) {
            double sum = 0;
            for (int64_t b = 0; b < BAGS; b++)
                for (int64_t k = d->offsets[b]; k < d->offsets[b + 1]; k++)
                    if (d->ids[k] == d->ids[i]) sum += factor(d, b, k) * d->dy[b * dim + c];
            check_near((double)rows[i * dim + c] - 0.1 * sum, after[i * dim + c]);
        }
}

static void check_case(uint64_t seed, int32_t dim, bool has_weights, hstu_pooling pooling) {
    static drawn d;
    static float y[BAGS * MAX_DIM], dw[MAX_IDS], rows[MAX_IDS * MAX_DIM], after[MAX_IDS * MAX_DIM];
    hstu_table_step step;
    draw_all(&d, seed, has_weights, pooling);
    for (int64_t i = 0; i < d.n; i++)
        if (d.weights[i] == 0) d.weights[i] = 1;
    /* The first table works on pieces, of which the last bags must be whole, the second at once. */
    for (int k = 0; k < 2; k++) {
        hstu_table *table = make_pooled(dim, k == 0 ? 7 : MAX_IDS);
        CHECK_EQ(hstu_table_lookup_pooled(table, &d.bags, y), HSTU_OK);
        CHECK_EQ(hstu_table_find(table, d.n, d.ids, rows, NULL), HSTU_OK);
        CHECK_EQ(hstu_table_weight_gradients(table, &d.bags, d.dy, dw), HSTU_OK);
        check_lookup(&d, dim, rows, y, dw);
        hstu_table_step_defaults(&step);
        step.lr = 0.1f;
        if (k == 1) {
            CHECK_EQ(hstu_table_update_pooled(table, &d.bags, d.dy, &step), HSTU_OK);
            CHECK_EQ(hstu_table_find(table, d.n, d.ids, after, NULL), HSTU_OK);
            check_update(&d, dim, rows, after);
        }
        hstu_table_destroy(table);
    }
}

TEST(pooled_rows_and_gradients_equal_float64) {
    static const int32_t dims[] = {1, 3, 8, 16};
    for (uint64_t i = 0; i < 16; i++)
        check_case(i, dims[i / 4], i % 2 == 1, i / 2 % 2 == 1 ? HSTU_POOL_MEAN : HSTU_POOL_SUM);
}

TEST(pooled_lookups_that_only_read_change_nothing) {
    const int64_t offsets[] = {0, 2, 3};
    const uint64_t ids[] = {1, 2, 3};
    float row[2], y[2][2], dw[3];
    const float dy[2][2] = {{1, 1}, {1, 1}};
    hstu_bags bags = {.n_bags = 2, .offsets = offsets, .ids = ids, .is_read_only = 1};
    hstu_table *table = make_pooled(2, 8);
    CHECK_EQ(hstu_table_lookup(table, 1, ids, row), HSTU_OK);
    CHECK_EQ(hstu_table_lookup_pooled(table, &bags, y[0]), HSTU_OK);
    CHECK_EQ(memcmp(y[0], row, sizeof row), 0);
    CHECK_EQ(y[1][0], 0);
    CHECK_EQ(hstu_table_weight_gradients(table, &bags, dy[0], dw), HSTU_OK);
    CHECK_EQ(dw[2], 0);
    bags.is_read_only = 0;
    CHECK_EQ(hstu_table_weight_gradients(table, &bags, dy[0], dw), HSTU_OK);
    CHECK(dw[2] != 0); /* the values that the id would get */
    CHECK_EQ(size_of(table), 1);
    CHECK_EQ(hstu_table_lookup_pooled(table, &bags, y[0]), HSTU_OK);
    CHECK_EQ(dw[2], y[1][0] + y[1][1]);
    CHECK_EQ(size_of(table), 3);
    hstu_table_destroy(table);
}

static hstu_bags bags_of(int64_t n, const int64_t *offsets, const uint64_t *ids) {
    return (hstu_bags){.n_bags = n, .offsets = offsets, .ids = ids};
}

#define REFUSED(call, code, part)                                                                  \
    do {                                                                                           \
        CHECK_EQ(call, code);                                                                      \
        CHECK_CONTAINS(hstu_error(), part);                                                        \
    } while (0)

TEST(bags_that_cannot_be_are_refused) {
    const int64_t good[] = {0, 1, 3}, late[] = {1, 2, 3}, back[] = {0, 2, 1},
                  long_bag[] = {0, 0, 5};
    const int64_t many[] = {0, 3, 6};
    const uint64_t ids[6] = {1, 2, 3, 4, 5, 6};
    float y[2][2] = {{7, 7}, {7, 7}}, dw[6], weights[3] = {1, NAN, 1};
    const float nan_dy[2][2] = {{0, 0}, {NAN, 0}}, large[2][2] = {{0}, {2e19f}};
    hstu_table_step step;
    hstu_table *t = make_pooled(2, 4);
    hstu_table_step_defaults(&step);
    const hstu_bags bad[] = {bags_of(-1, good, ids),   bags_of(1ll << 31, good, ids),
                             bags_of(2, late, ids),    bags_of(2, back, ids),
                             bags_of(2, NULL, ids),    bags_of(2, good, NULL),
                             bags_of(2, long_bag, ids)};
    static const char *const parts[] = {"-1 bags",
                                        "0 to 2^31 - 1",
                                        "must be 0",
                                        "of bag 1 decrease",
                                        "are NULL",
                                        "ids are NULL",
                                        "bag 1 has 5 ids; max_batch is 4"};
    for (int i = 0; i < 7; i++) {
        REFUSED(hstu_table_lookup_pooled(t, &bad[i], y[0]), HSTU_ERR_USAGE, parts[i]);
        REFUSED(hstu_table_update_pooled(t, &bad[i], y[0], &step), HSTU_ERR_USAGE, parts[i]);
        REFUSED(hstu_table_weight_gradients(t, &bad[i], y[0], dw), HSTU_ERR_USAGE, parts[i]);
    }
    hstu_bags b = bags_of(2, good, ids), too_many = bags_of(2, many, ids);
    REFUSED(hstu_table_lookup_pooled(t, NULL, y[0]), HSTU_ERR_USAGE, "'bags' is NULL");
    REFUSED(hstu_table_lookup_pooled(t, &b, NULL), HSTU_ERR_USAGE, "are NULL");
    REFUSED(hstu_table_update_pooled(t, &b, y[0], NULL), HSTU_ERR_USAGE, "step is NULL");
    REFUSED(hstu_table_weight_gradients(t, &b, y[0], NULL), HSTU_ERR_USAGE, "'out' is NULL");
    REFUSED(hstu_table_update_pooled(t, &too_many, y[0], &step), HSTU_ERR_USAGE, "6 ids in one");
    REFUSED(hstu_table_update_pooled(t, &b, nan_dy[0], &step), HSTU_ERR_NUMERIC, "number 2 of the");
    REFUSED(hstu_table_weight_gradients(t, &b, nan_dy[0], dw), HSTU_ERR_NUMERIC, "gradients is");
    b.pooling = (hstu_pooling)2;
    REFUSED(hstu_table_lookup_pooled(t, &b, y[0]), HSTU_ERR_USAGE, "pooling 2");
    b.pooling = HSTU_POOL_SUM;
    b.weights = weights;
    REFUSED(hstu_table_lookup_pooled(t, &b, y[0]), HSTU_ERR_NUMERIC, "number 1 of the weights");
    CHECK_EQ(size_of(t), 0);
    CHECK(y[0][0] == 7 && y[1][1] == 7);
    b.weights = NULL;
    REFUSED(hstu_table_update_pooled(t, &b, large[0], &step), HSTU_ERR_NUMERIC, "add up to 2e+19");
    hstu_bags empty = bags_of(0, NULL, NULL);
    CHECK_EQ(hstu_table_lookup_pooled(t, &empty, NULL), HSTU_OK);
    CHECK_EQ(hstu_table_update_pooled(t, &empty, NULL, &step), HSTU_OK);
    hstu_table_destroy(t);
}

TEST(collections_are_looked_up_in_one_call) {
    const int64_t offsets[] = {0, 2, 2}, back[] = {0, 2, 1};
    const uint64_t ids[] = {1, 2};
    float user[2][2], item[2][3], rows[2][3];
    hstu_table *a = make_pooled(2, 8), *b = make_pooled(3, 8);
    hstu_table_request r[] = {{a, "user", bags_of(2, offsets, ids), user[0]},
                              {b, "item", bags_of(2, back, ids), item[0]}};
    REFUSED(hstu_tables_lookup_pooled(2, r), HSTU_ERR_USAGE,
            "request 1, table item: bags: offsets");
    CHECK_EQ(size_of(a), 0); /* all are checked first */
    r[1].bags.offsets = offsets;
    CHECK_EQ(hstu_tables_lookup_pooled(2, r), HSTU_OK);
    CHECK_EQ(hstu_table_find(b, 2, ids, rows[0], NULL), HSTU_OK);
    for (int c = 0; c < 3; c++) {
        check_near((double)rows[0][c] + (double)rows[1][c], item[0][c]);
        CHECK_EQ(item[1][c], 0);
    }
    CHECK_EQ(size_of(a), 2);
    REFUSED(hstu_tables_lookup_pooled(-1, r), HSTU_ERR_USAGE, "is negative");
    REFUSED(hstu_tables_lookup_pooled(1, NULL), HSTU_ERR_USAGE, "'requests' is NULL");
    hstu_table_destroy(b);
    r[1].name = NULL;
    REFUSED(hstu_tables_lookup_pooled(2, r), HSTU_ERR_USAGE, "request 1: the table is closed");
    hstu_table_destroy(a);
}

enum { WIDE = 128, PIECE = 50000, BAG = 32, STEP_BAGS = 2000 };

static int64_t n_million(void) {
    return test_is_brief() ? 100000 : 1000000;
}

/* Sums of 32 such values are exact. */
static float value_of(int64_t i, int c) {
    return (float)((i + c) & 1023) / 1024 - 0.5f;
}

/* Hashes that are equally far apart fill every bucket and evict none. */
static uint64_t *make_million(hstu_table *table) {
    int64_t n = n_million(), n_rejected;
    uint64_t *ids = malloc((size_t)n * sizeof *ids), apart = UINT64_MAX / (uint64_t)n;
    float *rows = malloc(sizeof(float) * PIECE * WIDE), values[1024 + WIDE];
    for (int64_t i = 0; i < n; i++)
        ids[i] = table_unhash((uint64_t)(i * 7919 % n) * apart + apart / 2);
    for (int c = 0; c < 1024 + WIDE; c++)
        values[c] = value_of(0, c);
    for (int64_t first = 0; first < n; first += PIECE) {
        for (int64_t i = 0; i < PIECE; i++)
            memcpy(rows + i * WIDE, values + ((first + i) & 1023), WIDE * sizeof *rows);
        CHECK_EQ(hstu_table_insert(table, PIECE, ids + first, rows, &n_rejected), HSTU_OK);
        CHECK_EQ(n_rejected, 0);
    }
    CHECK_EQ(size_of(table), n);
    free(rows);
    return ids;
}

static void check_million(const float *y, int64_t n_bags, double less) {
    for (int64_t b = 0; b < n_bags; b += 16)
        for (int c = 0; c < WIDE; c++) {
            double sum = 0;
            for (int i = 0; i < BAG; i++)
                sum += value_of(b * BAG + i, c);
            CHECK(sum / BAG - less == y[b * WIDE + c]);
        }
}

TEST(a_million_rows_of_128_are_pooled) {
    hstu_table *table = make_sized(WIDE, 65536, n_million(), 0);
    uint64_t *ids = make_million(table);
    int64_t n_bags = n_million() / BAG, *offsets = malloc((size_t)(n_bags + 1) * sizeof *offsets);
    float *y = malloc((size_t)n_bags * WIDE * sizeof *y);
    hstu_table_step step;
    for (int64_t b = 0; b <= n_bags; b++)
        offsets[b] = b * BAG;
    hstu_bags bags = bags_of(n_bags, offsets, ids);
    bags.pooling = HSTU_POOL_MEAN;
    CHECK_EQ(hstu_table_lookup_pooled(table, &bags, y), HSTU_OK);
    check_million(y, n_bags, 0);
    bags.n_bags = STEP_BAGS;
    for (int64_t i = 0; i < (int64_t)STEP_BAGS * WIDE; i++)
        y[i] = 1;
    hstu_table_step_defaults(&step);
    step.lr = 4;
    CHECK_EQ(hstu_table_update_pooled(table, &bags, y, &step), HSTU_OK);
    CHECK_EQ(hstu_table_lookup_pooled(table, &bags, y), HSTU_OK);
    check_million(y, STEP_BAGS, 4. / BAG);
    hstu_table_destroy(table);
    free(ids), free(offsets), free(y);
}
