/* What the server tells of its models and of itself. */
#include "server_rig.h"

TEST(server_describes_its_models) {
    static const struct {
        const char *key;
        int64_t want[2];
    } numbers[] = {{"items", {60, 60}},  {"dim", {8, 8}},   {"max_history", {12, 12}},
                   {"kv_pages", {9, 9}}, {"share", {3, 1}}, {"kv_host_pages", {0, 0}}};
    static const char *const names[] = {"toy", "other"};
    rig r;
    arena a;
    arena_init(&a, 1 << 16);
    rig_open(&r);
    r.c.engine.kv_pages = 9;
    r.model[0].share = 3;
    r.model[1] = (server_model){.name = "other", .path = r.run, .share = 1};
    r.c.n_models = 2;
    rig_start(&r);
    const json_value *v = json_member(rig_json(&r, &a, "GET", "/v1/models", ""), "models");
    CHECK_EQ(v->n_children, 2);
    for (size_t i = 0; i < 2; i++) {
        const json_value *m = json_at(v, i);
        CHECK_STR(json_member(m, "name")->string, names[i]);
        CHECK_STR(json_member(m, "version")->string, "1");
        CHECK_STR(json_member(m, "task")->string, "retrieval");
        CHECK_STR(json_member(m, "device")->string, "cpu");
        CHECK_STR(json_member(m, "kv_dtype")->string, "model");
        CHECK_EQ(json_member(m, "tasks")->n_children, 1);
        CHECK_STR(json_at(json_member(m, "tasks"), 0)->string, "score");
        CHECK(json_member(m, "is_cached")->boolean && !json_member(m, "is_shadow")->boolean);
        CHECK(json_number(m, "step") > 0 && json_number(m, "memory_bytes") > 0);
        CHECK(json_member(m, "load_s")->number > 0 && json_member(m, "kv_load_us_a_token") == NULL);
        for (size_t k = 0; k < sizeof numbers / sizeof *numbers; k++)
            if (json_number(m, numbers[k].key) != numbers[k].want[i])
                FAIL_TEST("%s of %s is %d", numbers[k].key, names[i],
                          (int)json_number(m, numbers[k].key));
    }
    /* One of them is loaded again: the other stays as it is. */
    v = rig_json(&r, &a, "POST", "/v1/models/other/reload", "");
    CHECK_STR(json_member(v, "name")->string, "other");
    CHECK_STR(json_member(v, "version")->string, "2");
    v = json_member(rig_json(&r, &a, "GET", "/v1/models", ""), "models");
    CHECK_STR(json_member(json_at(v, 0), "version")->string, "1");
    CHECK_STR(json_member(json_at(v, 1), "version")->string, "2");
    rig_stop(&r);
    /* Of one model there is nothing to share; of pages in host memory the measured costs. */
    r.c.n_models = 1;
    r.c.engine.kv_host_pages = 5;
    rig_start(&r);
    v = json_at(json_member(rig_json(&r, &a, "GET", "/v1/models", ""), "models"), 0);
    CHECK(json_member(v, "share") == NULL && json_number(v, "kv_host_pages") == 5);
    CHECK(json_member(v, "kv_load_us_a_token")->number > 0);
    /* A run that is gone: the model that is there goes on. */
    char away[4300];
    snprintf(away, sizeof away, "%s.away", r.run);
    CHECK_EQ(rename(r.run, away), 0);
    ask(&r, "POST", "/v1/models/toy/reload", "", 500, "the old version stays: ");
    ask(&r, "POST", "/v1/recommend", "{\"user\": 7}", 200, "\"model_version\":\"1\"");
    CHECK_EQ(rename(away, r.run), 0);
    server_set_ready(r.s, false);
    ask(&r, "GET", "/health", "", 503, "not ready");
    arena_fini(&a);
    rig_close(&r);
}
