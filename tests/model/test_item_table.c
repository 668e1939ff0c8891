/* Items of a small model with its first values: the table, and the nearest rows. */
#include "model/item_table.h"

#include "oom.h"
#include "train_test.h"

enum { V = 60 };

static void top_start(bench_top *t, const char *gin) {
    CHECK_OK(top_open(t, gin, NULL, 0, 1));
    CHECK_OK(model_init(t->session.model, 5));
}

/* Nearest by cosine, computed again in the plainest way. */
TEST(similar_items_are_the_nearest_by_cosine) {
    bench_top t;
    item_table table;
    int32_t best[V], n;
    float cosine[V], own[8], row[8];
    uint8_t is_allowed[V + 1];
    memset(is_allowed, 1, sizeof is_allowed);
    is_allowed[9] = 0;
    top_start(&t, retrieval_gin);
    CHECK_OK(item_table_init(&table, t.session.model));
    CHECK_EQ(table.items.n, V);
    CHECK_OK(similar_items(&table, 7, is_allowed, V, best, cosine, &n));
    CHECK_EQ(n, V - 2);
    CHECK_OK(item_table_read(&table, 6, 1, own));
    for (int32_t i = 0; i < n; i++) {
        double xy = 0, xx = 0, yy = 0;
        CHECK_OK(item_table_read(&table, best[i] - 1, 1, row));
        for (int d = 0; d < 8; d++) {
            xy += (double)own[d] * (double)row[d];
            xx += (double)own[d] * (double)own[d];
            yy += (double)row[d] * (double)row[d];
        }
        CHECK(best[i] != 7 && best[i] != 9 && fabs(xy / sqrt(xx * yy) - (double)cosine[i]) < 1e-6);
        CHECK(i == 0 || cosine[i] <= cosine[i - 1]);
    }
    float second = cosine[1];
    CHECK_OK(similar_items(&table, 7, is_allowed, 2, best, cosine, &n));
    CHECK(n == 2 && cosine[1] == second);
    /* Several items: the cosine with the sum of their unit vectors; of a pair it is symmetric. */
    float both[8], one[8], other[8];
    CHECK_OK(similar_direction(&table, (const int32_t[]){6, 20}, 2, both));
    CHECK_OK(item_table_read(&table, 6, 1, one));
    CHECK_OK(item_table_read(&table, 20, 1, other));
    double with_one = 0, with_other = 0, size = 0, one_size = 0, other_size = 0;
    for (int d = 0; d < 8; d++) {
        with_one += (double)both[d] * (double)one[d];
        with_other += (double)both[d] * (double)other[d];
        size += (double)both[d] * (double)both[d];
        one_size += (double)one[d] * (double)one[d];
        other_size += (double)other[d] * (double)other[d];
    }
    with_one /= sqrt(size * one_size);
    with_other /= sqrt(size * other_size);
    CHECK(fabs(with_one - with_other) < 1e-5 && with_one > 0.1);
    CHECK_FAILS(similar_items(&table, V + 1, NULL, 2, best, cosine, &n), ERR_USAGE, "no row");
    CHECK_FAILS(similar_items(&table, 0, NULL, 2, best, cosine, &n), ERR_USAGE, "no row");
    item_table_fini(&table);
    top_close(&t);
}

/* A row without a direction is near to none, and none is near to it. */
TEST(similar_items_leave_out_rows_without_a_direction) {
    static const float odd[] = {0, INFINITY, NAN};
    bench_top t;
    item_table table;
    int32_t best[V], n;
    float cosine[V], row[8];
    top_start(&t, retrieval_gin);
    CHECK_OK(item_table_init(&table, t.session.model));
    for (int32_t i = 0; i < 3; i++) {
        for (int d = 0; d < 8; d++)
            row[d] = odd[i];
        memcpy((float *)table.items.rows + (int64_t)i * 8, row, sizeof row);
    }
    CHECK_OK(similar_items(&table, 7, NULL, V, best, cosine, &n));
    CHECK_EQ(n, V - 1 - 3);
    for (int32_t i = 0; i < n; i++)
        CHECK(best[i] > 3 && best[i] != 7 && isfinite(cosine[i]));
    for (uint32_t i = 1; i <= 3; i++) {
        CHECK_OK(similar_items(&table, i, NULL, V, best, cosine, &n));
        CHECK_EQ(n, 0);
    }
    item_table_fini(&table);
    top_close(&t);
}

/* A ranking model's items are the rows it reads. */
TEST(item_table_of_a_ranking_model) {
    bench_top t;
    item_table table;
    float row[8];
    top_start(&t, ranking_gin);
    CHECK_OK(item_table_init(&table, t.session.model));
    CHECK(table.items.n == V && table.dim == 8 && table.items.item[0] == 1);
    const float *values = NULL;
    for (int i = 0; i < t.session.n_params; i++)
        if (t.session.params[i].shape[0] == V + 1) values = t.session.params[i].value;
    CHECK(values != NULL);
    CHECK_OK(item_table_read(&table, 4, 1, row));
    CHECK(memcmp(row, values + 5 * 8, sizeof row) == 0);
    item_table_fini(&table);
    top_close(&t);
}
