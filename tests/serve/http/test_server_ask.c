/* Answers of /v1/recommend, /v1/rank and /rerank: their numbers, their order and their reasons. */
#include "server_rig.h"

/* The score of an item in the answer of /v1/rank. */
static double score_of(const json_value *answer, int64_t item) {
    const json_value *v = json_member(answer, "items")->first;
    while (v != NULL && json_number(v, "item") != item)
        v = v->next;
    CHECK(v != NULL);
    return json_member(v, "score")->number;
}

/* The best first, as the whole list has them; each with its place among the candidates; those that
 * the model does not know last. */
TEST(server_ranks_in_order) {
    rig r;
    arena a;
    arena_init(&a, 1 << 16);
    rig_open(&r);
    rig_start(&r);
    const json_value *all =
        rig_json(&r, &a, "POST", "/v1/rank",
                 "{\"user\": 7, \"candidates\": [5, \"no\", 3, 9, 3, 1], \"top_k\": 6}");
    static const int64_t candidates[] = {5, 0, 3, 9, 3, 1};
    const json_value *items = json_member(all, "items");
    double last = INFINITY;
    int64_t last_index = -1;
    unsigned seen = 0;
    CHECK_EQ(items->n_children, 6);
    for (size_t i = 0; i < 6; i++) {
        const json_value *v = json_at(items, i), *score = json_member(v, "score");
        int64_t index = json_number(v, "index");
        CHECK(index >= 0 && index < 6);
        seen |= 1u << index;
        if (i == 5) {
            CHECK(index == 1 && score->type == JSON_NULL && json_member(v, "is_unknown")->boolean);
            continue;
        }
        CHECK_EQ(json_number(v, "item"), candidates[index]);
        CHECK(score->number < last || (score->number == last && index > last_index));
        CHECK(json_member(v, "is_unknown") == NULL);
        last = score->number;
        last_index = index;
    }
    CHECK_EQ(seen, 63);
    CHECK_EQ(json_number(all, "unknown_items"), 1);
    /* The first two of the same, and all in the order of the request. */
    const json_value *two =
        rig_json(&r, &a, "POST", "/v1/rank",
                 "{\"user\": 7, \"candidates\": [5, \"no\", 3, 9, 3, 1], \"top_k\": 2}");
    CHECK_EQ(json_member(two, "items")->n_children, 2);
    for (size_t i = 0; i < 2; i++)
        CHECK_EQ(json_number(json_at(json_member(two, "items"), i), "index"),
                 json_number(json_at(items, i), "index"));
    arena_fini(&a);
    rig_close(&r);
}

/* The rerank API has the same order and scores, places instead of items, and documents if asked. */
TEST(server_reranks_as_it_ranks) {
    rig r;
    arena a;
    arena_init(&a, 1 << 16);
    rig_open(&r);
    rig_start(&r);
    const json_value *ranked = rig_json(&r, &a, "POST", "/v1/rank",
                                        "{\"user\": 7, \"candidates\": [5, 3, 9], \"top_k\": 3}");
    const json_value *v = rig_json(&r, &a, "POST", "/rerank",
                                   "{\"query\": \"7\", \"documents\": [\"5\", \"3\", \"9\"], "
                                   "\"top_n\": 2, \"return_documents\": true}");
    const json_value *results = json_member(v, "results");
    static const char *const documents[] = {"5", "3", "9"};
    CHECK_EQ(results->n_children, 2);
    CHECK_STR(json_member(v, "model")->string, "toy");
    CHECK_EQ(json_number(json_member(v, "usage"), "total_tokens"),
             json_number(ranked, "tokens_reused") + json_number(ranked, "tokens_computed"));
    for (size_t i = 0; i < 2; i++) {
        const json_value *got = json_at(results, i),
                         *want = json_at(json_member(ranked, "items"), i);
        int64_t index = json_number(got, "index");
        CHECK_EQ(index, json_number(want, "index"));
        CHECK(json_member(got, "relevance_score")->number == json_member(want, "score")->number);
        CHECK_STR(json_member(json_member(got, "document"), "text")->string, documents[index]);
    }
    v = rig_json(&r, &a, "POST", "/rerank",
                 "{\"query\": 7, \"documents\": [5, 3, 9], \"return_documents\": false}");
    CHECK_EQ(json_member(v, "results")->n_children, 3);
    CHECK(json_member(json_at(json_member(v, "results"), 0), "document") == NULL);
    arena_fini(&a);
    rig_close(&r);
}

/* The effect of an event on an item is what the item's score loses without it. */
TEST(server_explains_by_differences) {
    static const char *const without[] = {"[2, 3]", "[1, 3]", "[1, 2]"};
    rig r;
    arena a;
    arena_init(&a, 1 << 16);
    rig_open(&r);
    rig_start(&r);
    const json_value *v =
        rig_json(&r, &a, "POST", "/v1/recommend",
                 "{\"history\": [1, 2, 3], \"top_k\": 2, \"explain\": true, \"vector\": true}");
    const json_value *why = json_member(json_member(v, "why"), "items");
    CHECK_EQ(json_member(json_member(v, "why"), "events")->integer, 3);
    CHECK_EQ(json_member(v, "vector")->n_children, 8);
    CHECK_EQ(why->n_children, 2);
    for (size_t i = 0; i < 2; i++) {
        const json_value *item = json_at(json_member(v, "items"), i), *one = json_at(why, i);
        int64_t id = json_number(item, "item");
        double whole = json_member(item, "score")->number;
        CHECK_EQ(json_number(one, "item"), id);
        CHECK_EQ(json_member(one, "effects")->n_children, 3);
        for (size_t k = 0; k < 3; k++) {
            char body[100];
            snprintf(body, sizeof body, "{\"history\": %s, \"candidates\": [%d]}", without[k],
                     (int)id);
            double rest = score_of(rig_json(&r, &a, "POST", "/v1/rank", body), id);
            CHECK(fabs(json_at(json_member(one, "effects"), k)->number - (whole - rest)) < 1e-5);
        }
    }
    /* Nothing is known of a stranger, so there are no reasons. */
    v = rig_json(&r, &a, "POST", "/v1/recommend", "{\"user\": \"nobody\", \"explain\": true}");
    CHECK(json_member(json_member(v, "why"), "items") == NULL);
    arena_fini(&a);
    rig_close(&r);
}

/* Pinned items come first and keep their scores; what is wrong with rules is a 400 that says so. */
TEST(server_follows_rules) {
    rig r;
    arena a;
    arena_init(&a, 1 << 16);
    rig_open(&r);
    rig_start(&r);
    const json_value *all = json_member(
        rig_json(&r, &a, "POST", "/v1/recommend", "{\"user\": 7, \"top_k\": 60}"), "items");
    int64_t best = json_number(json_at(all, 0), "item"),
            third = json_number(json_at(all, 2), "item");
    char body[128];
    snprintf(body, sizeof body,
             "{\"user\": 7, \"top_k\": 3, \"pin\": [%d, \"gone\"], \"deny\": [%d]}", (int)third,
             (int)best);
    const json_value *v = rig_json(&r, &a, "POST", "/v1/recommend", body);
    const json_value *items = json_member(v, "items");
    CHECK_EQ(items->n_children, 3);
    CHECK_EQ(json_number(v, "unknown_items"), 1);
    for (size_t i = 0; i < 3; i++) {
        static const size_t order[] = {2, 1, 3};
        const json_value *got = json_at(items, i), *want = json_at(all, order[i]);
        CHECK_EQ(json_number(got, "item"), json_number(want, "item"));
        CHECK(json_member(got, "score")->number == json_member(want, "score")->number);
    }
    ask(&r, "POST", "/v1/recommend", "{\"user\": 7, \"filter\": \"year > 3\"}", 400,
        "filter: character 1");
    ask(&r, "POST", "/v1/recommend", "{\"user\": 7, \"max_per\": {\"genre\": 2}}", 400,
        "max_per: ");
    /* By a feature that the data brought and the run carries. */
    v = rig_json(&r, &a, "POST", "/v1/recommend",
                 "{\"history\": [1], \"top_k\": 60, \"max_per\": {\"topic\": 1}}");
    size_t n = json_member(v, "items")->n_children;
    CHECK(n > 2 && n < 59);
    ask(&r, "POST", "/v1/recommend", "{\"user\": 7, \"allow\": []}", 400, "allows nothing");
    ask(&r, "POST", "/v1/recommend", "{\"user\": 7, \"boost\": 1}", 400, "boost: expected a list");
    ask(&r, "POST", "/v1/rank", "{\"user\": 7, \"candidates\": [1], \"filter\": \"a = 1\"}", 400,
        "are for /v1/recommend");
    arena_fini(&a);
    rig_close(&r);
}

/* The nearest of one item in order, under the rules of recommend; of two items neither is listed.
 */
TEST(server_lists_similar_items) {
    rig r;
    arena a;
    arena_init(&a, 1 << 16);
    rig_open(&r);
    rig_start(&r);
    const json_value *v = rig_json(&r, &a, "POST", "/v1/similar", "{\"item\": 5, \"top_k\": 59}");
    const json_value *all = json_member(v, "items");
    CHECK_EQ(all->n_children, 59);
    CHECK_STR(json_member(v, "source")->string, "model");
    double last = 1.000001;
    for (const json_value *i = all->first; i != NULL; i = i->next) {
        CHECK(json_number(i, "item") != 5 && json_member(i, "score")->number <= last);
        last = json_member(i, "score")->number;
    }
    char body[160];
    int64_t best = json_number(json_at(all, 0), "item"),
            third = json_number(json_at(all, 2), "item");
    snprintf(body, sizeof body,
             "{\"items\": [5], \"top_k\": 2, \"deny\": [%d], \"pin\": [%d], \"model\": \"toy\"}",
             (int)best, (int)third);
    const json_value *two = json_member(rig_json(&r, &a, "POST", "/v1/similar", body), "items");
    CHECK_EQ(two->n_children, 2);
    CHECK_EQ(json_number(json_at(two, 0), "item"), third);
    CHECK_EQ(json_number(json_at(two, 1), "item"), json_number(json_at(all, 1), "item"));
    CHECK(json_member(json_at(two, 0), "score")->number ==
          json_member(json_at(all, 2), "score")->number);
    v = rig_json(&r, &a, "POST", "/v1/similar", "{\"items\": [5, \"no\", 9], \"top_k\": 60}");
    CHECK_EQ(json_member(v, "items")->n_children, 58);
    CHECK_EQ(json_number(v, "unknown_items"), 1);
    v = rig_json(&r, &a, "POST", "/v1/similar", "{\"item\": \"no\"}");
    CHECK_STR(json_member(v, "source")->string, "nothing");
    CHECK_EQ(json_member(v, "items")->n_children, 0);
    ask(&r, "POST", "/v1/similar", "{}", 400, "give \\\"item\\\"");
    ask(&r, "POST", "/v1/similar", "{\"item\": 5, \"items\": [5]}", 400, "give \\\"item\\\"");
    ask(&r, "POST", "/v1/similar", "{\"item\": 5, \"user\": 7}", 400, "'user' is not a member");
    ask(&r, "POST", "/v1/similar", "{\"item\": 5, \"filter\": \"year > 3\"}", 400, "filter: ");
    ask(&r, "POST", "/v1/similar", "{\"item\": 5, \"model\": \"x\"}", 404, "no model");
    arena_fini(&a);
    rig_close(&r);
}

/* An answer counts what it was made from. */
TEST(server_tells_what_an_answer_is_made_from) {
    rig r;
    arena a;
    arena_init(&a, 1 << 16);
    rig_open(&r);
    r.c.engine.kv_pages = 8;
    rig_start(&r);
    for (int again = 0; again < 2; again++) {
        const json_value *v =
            rig_json(&r, &a, "POST", "/v1/recommend",
                     "{\"history\": [{\"item\": 1, \"time\": 5}, {\"item\": \"no\", \"time\": 6}, "
                     "{\"item\": 3, \"time\": 7}, {\"item\": 4, \"time\": 8}], \"top_k\": 3, "
                     "\"deny\": [\"none\", 7]}");
        const json_value *h = json_member(v, "history"), *ran = json_member(v, "batch");
        const json_value *us = json_member(v, "timing_us");
        CHECK(json_number(h, "events") == 4 && json_number(h, "window") == 3);
        CHECK_EQ(json_number(h, "unknown"), 1);
        CHECK_EQ(json_number(v, "unknown_items"), 1);
        CHECK_EQ(json_number(v, "tokens_reused"), again ? 2 : 0);
        CHECK_EQ(json_number(v, "tokens_computed"), again ? 1 : 3);
        CHECK(json_number(ran, "requests") == 1 && json_number(ran, "tokens") == (again ? 1 : 3));
        CHECK_EQ(json_member(v, "items")->n_children, 3);
        int64_t sum = 0; /* the queue counts from the request's arrival, as parse does */
        for (size_t i = 1; i < 5; i++)
            sum += json_at(us, i)->integer;
        CHECK(json_number(us, "queue") >= json_number(us, "parse"));
        CHECK(sum > 0 && sum <= json_number(us, "total"));
    }
    arena_fini(&a);
    rig_close(&r);
}

/* A shadow is asked the same; its first ten items are in the log. */
TEST(server_logs_what_a_shadow_says) {
    rig r;
    arena a;
    arena_init(&a, 1 << 16);
    rig_open(&r);
    r.model[1] = (server_model){.name = "other", .path = r.run, .is_shadow = true};
    r.c.n_models = 2;
    rig_start(&r);
    const json_value *v = rig_json(&r, &a, "POST", "/v1/recommend", "{\"user\": 7, \"top_k\": 12}");
    const json_value *items = json_member(v, "items"), *line = NULL;
    CHECK(items->n_children == 12 && strcmp(json_member(v, "model")->string, "toy") == 0);
    rig_stop(&r);
    for (int i = 0; line == NULL || json_member(line, "shadow") == NULL; i++)
        line = line_of(&a, buf_str(&r.log), i);
    CHECK_STR(json_member(line, "shadow")->string, "other");
    CHECK_STR(json_member(line, "id")->string, json_member(v, "request_id")->string);
    CHECK_EQ(json_number(line, "outcome"), ENGINE_OK);
    CHECK_EQ(json_member(line, "items")->n_children, 10);
    for (size_t i = 0; i < 10; i++)
        CHECK_EQ(json_at(json_member(line, "items"), i)->integer,
                 json_number(json_at(items, i), "item"));
    arena_fini(&a);
    rig_close(&r);
}

/* Every class of the head is a number of the answer, however many there are, and may be the task
 * that is asked for. */
TEST(server_ranks_by_many_classes) {
    rig r;
    arena a;
    char path[4300];
    arena_init(&a, 1 << 16);
    rig_open(&r);
    snprintf(path, sizeof path, "%s/r.gin", test_folder());
    FILE *f = fopen(path, "w");
    CHECK(f != NULL && fputs(ranking_gin, f) >= 0 && fclose(f) == 0);
    free(shell(0,
               "awk 'BEGIN { print \"user,item,time,action\"; for (i = 0; i < 6000; i++)"
               " print i % 30 + 1 \",\" i * 7 % 40 + 1 \",\" 1000 + i \",\" i % 3000 }' >wide.csv"
               " && ./hstu prep csv --input wide.csv --out wide 2>&1"
               " && ./hstu train --gin-config-file r.gin --data wide --out wide_run --epochs 1"
               " --set 'RankingArgs.prediction_head_arch=[8,3000]' --device cpu 2>&1"));
    snprintf(path, sizeof path, "%s/wide_run", test_folder());
    r.model[0].path = path;
    r.c.engine.data = NULL;
    rig_start(&r);
    const json_value *v =
        rig_json(&r, &a, "POST", "/v1/rank", "{\"history\": [1, 2], \"candidates\": [9, 3, 7, 5]}");
    const json_value *items = json_member(v, "items");
    CHECK_EQ(items->n_children, 4);
    for (size_t i = 0; i < 4; i++)
        CHECK_EQ(json_member(json_at(items, i), "scores")->n_children, 3001);
    v = rig_json(&r, &a, "POST", "/v1/rank",
                 "{\"history\": [1, 2], \"candidates\": [9, 3], \"tasks\": [\"p_2999\", \"p_1\"]}");
    const json_value *scores = json_member(json_at(json_member(v, "items"), 0), "scores");
    CHECK(scores->n_children == 2 && json_member(scores, "p_2999") != NULL);
    arena_fini(&a);
    rig_close(&r);
}
