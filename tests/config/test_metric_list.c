#include "config/metric_list.h"

#include "test.h"

TEST(metric_list_names) {
    static const char *const good[] = {"HR@1",          "ndcg@20",   "Recall@5", "PRECISION@10",
                                       "coverage@1000", "NDCG@2500", "MRR"};
    static const char *const names[] = {"hr@1",          "ndcg@20",   "recall@5", "precision@10",
                                        "coverage@1000", "ndcg@2500", "mrr"};
    static const char *const bad[] = {"HR",     "HR@",   "HR@0",  "HR@01",          "HR@2501",
                                      "HR@10x", "HR@-1", "HRR@5", "coverage@1001",  "MRR@10",
                                      "AUC",    "",      "@5",    "HR@99999999999", "HR 5"};
    char text[METRIC_NAME_BYTES];
    metric m;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        CHECK_OK(metric_parse(&m, good[i], TASK_RETRIEVAL));
        CHECK_STR(metric_name(&m, text), names[i]);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        CHECK_FAILS(metric_parse(&m, bad[i], TASK_RETRIEVAL), ERR_USAGE, "is none of HR@k");
    CHECK_OK(metric_parse(&m, "Auc", TASK_RANKING));
    CHECK_OK(metric_parse(&m, "NE", TASK_RANKING));
    CHECK_FAILS(metric_parse(&m, "HR@5", TASK_RANKING), ERR_USAGE, "the metrics of ranking");
}

TEST(metric_list_of_text) {
    metric_list list;
    CHECK_OK(metric_list_parse(&list, "HR@5,NDCG@20,hr@5", TASK_RETRIEVAL));
    CHECK(list.n == 2 && list.item[1].kind == METRIC_NDCG && list.item[1].k == 20);
    CHECK_FAILS(metric_list_parse(&list, "HR@5,", TASK_RETRIEVAL), ERR_USAGE, "'' is none of");
    CHECK_FAILS(metric_list_parse(&list, "HR@5,,MRR", TASK_RETRIEVAL), ERR_USAGE, "'' is none of");
    CHECK_FAILS(metric_list_parse(&list, "HR@000000000000000000000000000005", TASK_RETRIEVAL),
                ERR_USAGE, "is none of");
    char many[512] = "HR@1";
    for (int k = 2; k <= METRIC_MAX; k++)
        snprintf(many + strlen(many), sizeof many - strlen(many), ",HR@%d", k);
    CHECK_OK(metric_list_parse(&list, many, TASK_RETRIEVAL));
    CHECK_EQ(list.n, METRIC_MAX);
    strcat(many, ",MRR");
    CHECK_FAILS(metric_list_parse(&list, many, TASK_RETRIEVAL), ERR_USAGE, "more than 32 metrics");
}

TEST(metric_list_of_configs) {
    const char *texts[] = {"NDCG@20", "HR@5"}, *ranking[] = {"LOGLOSS", "ACC"};
    metric_list list;
    config c = {.family = FAMILY_META, .task = TASK_RETRIEVAL};
    c.retrieval.metrics = (config_texts){texts, 2};
    CHECK_OK(metric_list_of(&list, &c));
    CHECK(list.n == 13 && list.item[12].kind == METRIC_MRR && list.item[11].k == 500);
    metric best = metric_list_main(&list, TASK_RETRIEVAL);
    CHECK(best.kind == METRIC_NDCG && best.k == 10);
    c.family = FAMILY_NVIDIA;
    CHECK_OK(metric_list_of(&list, &c));
    CHECK(list.n == 2 && list.item[0].k == 20);
    best = metric_list_main(&list, TASK_RETRIEVAL); /* no NDCG@10: the first */
    CHECK(best.kind == METRIC_NDCG && best.k == 20);
    c.task = TASK_RANKING;
    c.ranking.metrics = (config_texts){ranking, 2};
    CHECK_OK(metric_list_of(&list, &c));
    best = metric_list_main(&list, TASK_RANKING); /* a loss does not decide */
    CHECK(best.kind == METRIC_ACCURACY);
    list.n = 1;
    CHECK(metric_list_main(&list, TASK_RANKING).kind == METRIC_AUC);
}

TEST(metric_list_knows_what_is_better) {
    CHECK(metric_is_smaller_better("ne") && metric_is_smaller_better("logloss"));
    CHECK(metric_is_smaller_better("loss"));
    CHECK(!metric_is_smaller_better("ndcg@10") && !metric_is_smaller_better("auc:click"));
    CHECK(!metric_is_smaller_better("mrr") && !metric_is_smaller_better("n"));
}
