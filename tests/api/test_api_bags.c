/* Pooled lookups of hstu.h, their gradients and collections of tables, against float64. */
#include "device.h"
#include "hstu.h"
#include "table_rig.h"
#include "test.h"

enum { MAX_DIM = 16, BAGS = 120, MAX_IDS = 8 * BAGS, UNIVERSE = 50 };

static hstu_table *make_of(int32_t dim, int64_t max_batch, int64_t capacity, float first_scale) {
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

static hstu_table *make(int32_t dim, int64_t max_batch) {
    return make_of(dim, max_batch, 1024, 0.5f);
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

static int64_t size_of(hstu_table *table) {
    int64_t n;
    CHECK_EQ(hstu_table_size(table, &n), HSTU_OK);
    return n;
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
        hstu_table *table = make(dim, k == 0 ? 7 : MAX_IDS);
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
    hstu_table *table = make(2, 8);
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
    hstu_table *t = make(2, 4);
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
    hstu_table *a = make(2, 8), *b = make(3, 8);
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

enum { DIM = 128, PIECE = 50000, BAG = 32, STEP_BAGS = 2000 };

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
    float *rows = malloc(sizeof(float) * PIECE * DIM), values[1024 + DIM];
    for (int64_t i = 0; i < n; i++)
        ids[i] = table_unhash((uint64_t)(i * 7919 % n) * apart + apart / 2);
    for (int c = 0; c < 1024 + DIM; c++)
        values[c] = value_of(0, c);
    for (int64_t first = 0; first < n; first += PIECE) {
        for (int64_t i = 0; i < PIECE; i++)
            memcpy(rows + i * DIM, values + ((first + i) & 1023), DIM * sizeof *rows);
        CHECK_EQ(hstu_table_insert(table, PIECE, ids + first, rows, &n_rejected), HSTU_OK);
        CHECK_EQ(n_rejected, 0);
    }
    CHECK_EQ(size_of(table), n);
    free(rows);
    return ids;
}

static void check_million(const float *y, int64_t n_bags, double less) {
    for (int64_t b = 0; b < n_bags; b += 16)
        for (int c = 0; c < DIM; c++) {
            double sum = 0;
            for (int i = 0; i < BAG; i++)
                sum += value_of(b * BAG + i, c);
            CHECK(sum / BAG - less == y[b * DIM + c]);
        }
}

TEST(a_million_rows_of_128_are_pooled) {
    hstu_table *table = make_of(DIM, 65536, n_million(), 0);
    uint64_t *ids = make_million(table);
    int64_t n_bags = n_million() / BAG, *offsets = malloc((size_t)(n_bags + 1) * sizeof *offsets);
    float *y = malloc((size_t)n_bags * DIM * sizeof *y);
    hstu_table_step step;
    for (int64_t b = 0; b <= n_bags; b++)
        offsets[b] = b * BAG;
    hstu_bags bags = bags_of(n_bags, offsets, ids);
    bags.pooling = HSTU_POOL_MEAN;
    CHECK_EQ(hstu_table_lookup_pooled(table, &bags, y), HSTU_OK);
    check_million(y, n_bags, 0);
    bags.n_bags = STEP_BAGS;
    for (int64_t i = 0; i < (int64_t)STEP_BAGS * DIM; i++)
        y[i] = 1;
    hstu_table_step_defaults(&step);
    step.lr = 4;
    CHECK_EQ(hstu_table_update_pooled(table, &bags, y, &step), HSTU_OK);
    CHECK_EQ(hstu_table_lookup_pooled(table, &bags, y), HSTU_OK);
    check_million(y, STEP_BAGS, 4. / BAG);
    hstu_table_destroy(table);
    free(ids), free(offsets), free(y);
}
