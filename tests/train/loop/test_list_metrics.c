#include "train/loop/list_metrics.h"

#include "toy_data.h"

enum { ITEMS = 6, USERS = 5 };

/* Of leave-one-out the last event of each is no training event: training users have
 * {1, 2}, {1, 2, 3}, {1, 4}, {1}; the fifth user has too few.  Nobody has 5 and 6. */
static void open_users(seq_file *data) {
    static const uint32_t lengths[USERS] = {5, 4, 3, 3, 1};
    static const uint32_t items[] = {1, 2, 1, 1, 5, 1, 2, 3, 6, 1, 4, 6, 1, 1, 5, 5};
    toy_open(data, lengths, USERS);
    data->n_items = ITEMS;
    memcpy((uint32_t *)data->item, items, sizeof items);
}

static double measured(const int32_t value[LIST_MAX], int at) {
    return (double)value[at] / LIST_UNIT;
}

TEST(list_metrics_by_hand) {
    seq_file data;
    list_metrics l;
    metric_list metrics;
    user_position u[4] = {{0}};
    open_users(&data);
    split s = split_make(&data, split_rule_of(SPLIT_LEAVE_ONE_OUT), 0);
    CHECK_OK(metric_list_parse(
        &metrics, "HR@5,NOVELTY@1,DIVERSITY@3,COVERAGE@2,NOVELTY@3,COVERAGE@4,DIVERSITY@2",
        TASK_RETRIEVAL));
    CHECK_OK(list_metrics_init(&l, &s, &metrics));
    CHECK(l.k == 4 && l.own.n == 4);
    /* 1 is known to 4 of 4 users, 2 to 2, 3 to 1, 5 to nobody, which counts as one. */
    for (int again = 0; again < 2; again++) { /* nothing is left of a list */
        list_metrics_add(&l, (int32_t[]){1, 2, 3, 5}, 4, u[0].list);
        double both = 2 / sqrt(8), three = 1 / sqrt(4), pair = 1 / sqrt(2);
        CHECK(fabs(measured(u[0].list, 0) - 0) < 1e-4);
        CHECK(fabs(measured(u[0].list, 1) - (1 - (both + three + pair) / 3)) < 1e-4);
        CHECK(fabs(measured(u[0].list, 2) - (0 + 1 + 2) / 3.0) < 1e-4);
        CHECK(fabs(measured(u[0].list, 3) - (1 - both)) < 1e-4);
    }
    /* What nobody knows takes its place; of what is left there is one, which has no pair. */
    list_metrics_add(&l, (int32_t[]){0, 5, 0}, 3, u[1].list);
    CHECK(u[1].list[0] == LIST_NONE && u[1].list[1] == LIST_NONE && u[1].list[3] == LIST_NONE);
    CHECK(fabs(measured(u[1].list, 2) - 2) < 1e-4);
    list_metrics_add(&l, (int32_t[]){5, 6}, 2, u[2].list); /* shorter than 3; never together */
    CHECK(u[2].list[0] == 2 * LIST_UNIT && u[2].list[1] == LIST_UNIT);
    list_metrics_add(&l, NULL, 0, u[3].list);
    for (int i = 0; i < LIST_MAX; i++)
        CHECK(u[3].list[i] == LIST_NONE);
    CHECK(list_metrics_value(&l, &metrics.item[1], u, 4) == 1);           /* of two lists */
    CHECK(isnan(list_metrics_value(&l, &metrics.item[1], u + 3, 1)));     /* of none */
    CHECK(list_metrics_value(&l, &metrics.item[3], u, 4) == 4.0 / ITEMS); /* 1, 2, 5, 6 */
    CHECK(list_metrics_value(&l, &metrics.item[5], u, 4) == 5.0 / ITEMS);
    list_metrics_clear(&l);
    CHECK(list_metrics_value(&l, &metrics.item[5], u, 0) == 0);
    list_metrics_fini(&l);
    CHECK_OK(metric_list_parse(&metrics, "HR@5,MRR", TASK_RETRIEVAL));
    CHECK_OK(list_metrics_init(&l, &s, &metrics)); /* none needs lists */
    list_metrics_add(&l, (int32_t[]){1}, 1, u[0].list);
    CHECK(l.k == 0 && u[0].list[0] == LIST_NONE);
    list_metrics_fini(&l);
    CHECK_OK(metric_list_parse(&metrics,
                               "NOVELTY@1,NOVELTY@2,NOVELTY@3,NOVELTY@4,NOVELTY@5,NOVELTY@6,"
                               "DIVERSITY@2,DIVERSITY@3,DIVERSITY@4",
                               TASK_RETRIEVAL));
    CHECK_FAILS(list_metrics_init(&l, &s, &metrics), ERR_USAGE, "more than 8 metrics");
    list_metrics_fini(&l);
    toy_close(&data);
}
