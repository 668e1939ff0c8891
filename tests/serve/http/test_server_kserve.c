/* KServe v2: tensors of several users, and what the server counts for Triton's tools. */
#include "server_rig.h"

#define USERS(list)                                                                                \
    "{\"inputs\":[{\"name\":\"USER_IDS\",\"shape\":[2],\"datatype\":\"INT64\",\"data\":" list "}"
#define TOP_K(k) ",{\"name\":\"TOP_K\",\"shape\":[1],\"datatype\":\"INT64\",\"data\":[" #k "]}]}"

static const json_value *tensor(const json_value *v, const char *name) {
    const json_value *t = json_member(v, "outputs")->first;
    while (t != NULL && strcmp(json_member(t, "name")->string, name) != 0)
        t = t->next;
    CHECK(t != NULL);
    return t;
}

/* The best items of each user, row by row, as /v1/recommend gives them. */
TEST(server_infers_lists_of_users) {
    static const int users[] = {7, 8};
    rig r;
    arena a;
    arena_init(&a, 1 << 16);
    rig_open(&r);
    rig_start(&r);
    const json_value *v = rig_json(&r, &a, "POST", "/v2/models/toy/infer", USERS("[7,8]") TOP_K(3));
    const json_value *ids = tensor(v, "ITEM_IDS"), *scores = tensor(v, "OUTPUT");
    CHECK_STR(json_member(v, "model_name")->string, "toy");
    CHECK_STR(json_member(v, "model_version")->string, "1");
    CHECK(json_member(v, "id") == NULL);
    CHECK_STR(json_member(ids, "datatype")->string, "INT64");
    for (int i = 0; i < 2; i++) {
        const json_value *shape = json_member(i == 0 ? ids : scores, "shape");
        CHECK(json_at(shape, 0)->integer == 2 && json_at(shape, 1)->integer == 3);
        char body[64];
        snprintf(body, sizeof body, "{\"user\": %d, \"top_k\": 3}", users[i]);
        const json_value *want =
            json_member(rig_json(&r, &a, "POST", "/v1/recommend", body), "items");
        for (size_t k = 0; k < 3; k++) {
            size_t at = (size_t)i * 3 + k;
            const json_value *item = json_at(want, k);
            CHECK_EQ(json_at(json_member(ids, "data"), at)->integer, json_number(item, "item"));
            CHECK(fabs(json_at(json_member(scores, "data"), at)->number -
                       json_member(item, "score")->number) < 1e-5);
        }
    }
    CHECK_EQ(json_member(ids, "data")->n_children, 6);
    CHECK_EQ(json_member(scores, "data")->n_children, 6);
    /* Rules are parameters. */
    char body[400];
    int64_t third = json_at(json_member(ids, "data"), 2)->integer;
    snprintf(body, sizeof body, "{\"parameters\": {\"pin\": [%d]}, %s", (int)third,
             &(USERS("[7,8]") TOP_K(3))[1]);
    v = rig_json(&r, &a, "POST", "/v2/models/toy/infer", body);
    CHECK_EQ(json_at(json_member(tensor(v, "ITEM_IDS"), "data"), 0)->integer, third);
    ask(&r, "POST", "/v2/models/toy/infer",
        "{\"parameters\": {\"filter\": \"x = 1\"}, \"inputs\": [{\"name\": \"USER_IDS\", "
        "\"shape\": [1], \"datatype\": \"INT64\", \"data\": [7]}]}",
        400, "filter: character 1");
    arena_fini(&a);
    rig_close(&r);
}

/* Both tensors as bytes, ids before scores; a list that has too few items is filled up. */
TEST(server_infers_lists_in_binary) {
    static const char body[] =
        "{\"parameters\":{\"binary_data_output\":true},\"inputs\":[{\"name\":\"USER_IDS\","
        "\"shape\":"
        "[1],\"datatype\":\"INT64\",\"data\":[7]},{\"name\":\"TOP_K\",\"shape\":[1],\"datatype\":"
        "\"INT64\",\"data\":[70]}]}";
    enum { K = 70 };
    int64_t id[K];
    float score[K];
    rig r;
    arena a;
    char head[256];
    arena_init(&a, 1 << 16);
    rig_open(&r);
    rig_start(&r);
    int fd = client_open(r.port);
    int n = snprintf(head, sizeof head,
                     "POST /v2/models/toy/infer HTTP/1.1\r\nHost: t\r\nContent-Length: %zu\r\n\r\n",
                     strlen(body));
    CHECK(client_send(fd, head, (size_t)n) && client_send(fd, body, strlen(body)));
    char *text = client_read(fd);
    const char *length = strstr(text, "Inference-Header-Content-Length: ");
    CHECK(length != NULL && client_code(text) == 200);
    const char *json = client_body(text);
    size_t n_json = (size_t)atoi(length + 33);
    const json_value *v;
    CHECK_OK(json_parse(&a, "answer", json, n_json, &v));
    CHECK_EQ(json_number(json_member(tensor(v, "ITEM_IDS"), "parameters"), "binary_data_size"),
             sizeof id);
    CHECK_EQ(json_number(json_member(tensor(v, "OUTPUT"), "parameters"), "binary_data_size"),
             sizeof score);
    memcpy(id, json + n_json, sizeof id);
    memcpy(score, json + n_json + sizeof id, sizeof score);
    const json_value *want = json_member(
        rig_json(&r, &a, "POST", "/v1/recommend", "{\"user\": 7, \"top_k\": 70}"), "items");
    CHECK(want->n_children > 20 && want->n_children < 60); /* without those of the history */
    for (size_t i = 0; i < K; i++) {
        bool is_there = i < want->n_children;
        CHECK_EQ(id[i], is_there ? json_number(json_at(want, i), "item") : 0);
        CHECK(is_there
                  ? fabs((double)score[i] - json_member(json_at(want, i), "score")->number) < 1e-5
                  : isnan(score[i]));
    }
    free(text);
    close(fd);
    arena_fini(&a);
    rig_close(&r);
}

/* Of a batch with one that is refused, nothing is answered. */
TEST(server_infers_all_or_nothing) {
    rig r;
    rig_open(&r);
    rig_start(&r);
    ask(&r, "POST", "/v2/models/toy/infer",
        "{\"parameters\":{\"timeout\":1},\"inputs\":[{\"name\":\"USER_IDS\",\"shape\":[2],"
        "\"datatype\":\"INT64\",\"data\":[7,8]}]}",
        503, "deadline");
    engine_drain(server_engine(r.s));
    ask(&r, "POST", "/v2/models/toy/infer", USERS("[7,8]") TOP_K(3), 503, "Retry-After: 1\r\n");
    rig_close(&r);
}

TEST(server_counts_for_kserve) {
    rig r;
    arena a;
    arena_init(&a, 1 << 16);
    rig_open(&r);
    rig_start(&r);
    for (int i = 0; i < 3; i++)
        ask(&r, "POST", "/v1/recommend", "{\"user\": 7}", 200, "items");
    ask(&r, "POST", "/v1/rank", "{\"user\": 7, \"candidates\": [1]}", 200, "items");
    ask(&r, "POST", "/v1/rank", "{\"user\": 7, \"candidates\": [1], \"top_k\": 0}", 400, "top_k");
    ask(&r, "POST", "/v1/recommend", "{\"history\": [1], \"allow\": [1], \"top_k\": 5000}", 400,
        "");
    const json_value *v = rig_json(&r, &a, "GET", "/v2/models/toy/stats", "");
    CHECK_EQ(json_member(v, "model_stats")->n_children, 1);
    const json_value *m = json_at(json_member(v, "model_stats"), 0);
    const json_value *stats = json_member(m, "inference_stats");
    static const char *const stages[] = {"success", "queue", "compute_input", "compute_infer",
                                         "compute_output"};
    CHECK_STR(json_member(m, "version")->string, "1");
    CHECK(json_number(m, "inference_count") == 4 && json_number(m, "execution_count") == 4);
    for (size_t i = 0; i < 5; i++) {
        const json_value *one = json_member(stats, stages[i]);
        CHECK_EQ(json_number(one, "count"), 4);
        CHECK(json_number(one, "ns") > 0 && json_number(one, "ns") < 60000000000);
    }
    CHECK_EQ(json_number(json_member(stats, "fail"), "count"), 0);
    arena_fini(&a);
    rig_close(&r);
}
