/* /v1/events and /v1/users: what becomes of events is counted, and ids have limits. */
#include "server_rig.h"

TEST(server_counts_events_of_each_user) {
    rig r;
    arena a;
    arena_init(&a, 1 << 16);
    rig_open(&r);
    rig_start(&r);
    const json_value *v = rig_json(
        &r, &a, "POST", "/v1/events",
        "{\"users\": [{\"user\": \"ann\", \"events\": [{\"item\": 1, \"time\": 10, \"id\": \"a\"}, "
        "{\"item\": \"no\", \"time\": 20}, {\"item\": 1, \"time\": 10, \"id\": \"a\"}, {\"item\": "
        "\"no\", \"time\": 30}, {\"item\": 99, \"time\": 15}, {\"item\": \"99\", \"time\": 16}]}, "
        "{\"user\": 7, \"events\": [{\"item\": 2, \"time\": 2000000000}]}]}");
    static const char *const keys[] = {"added", "duplicates", "late", "unknown", "events"};
    static const int64_t want[] = {5, 1, 0, 4, 5};
    const json_value *users = json_member(v, "users"), *ann = json_at(users, 0);
    CHECK(!json_member(v, "durable")->boolean && users->n_children == 2);
    CHECK_STR(json_member(ann, "user")->string, "ann");
    for (int i = 0; i < 5; i++)
        if (json_number(ann, keys[i]) != want[i])
            FAIL_TEST("%s is %d", keys[i], (int)json_number(ann, keys[i]));
    /* Each unknown item once, however it is written. */
    const json_value *unknown = json_member(ann, "unknown_items"), *seven = json_at(users, 1);
    CHECK_EQ(unknown->n_children, 2);
    CHECK_STR(json_at(unknown, 0)->string, "no");
    CHECK_EQ(json_at(unknown, 1)->integer, 99);
    CHECK(json_number(seven, "user") == 7 && json_number(seven, "added") == 1);
    CHECK(json_number(seven, "events") > 1 && json_member(seven, "unknown_items") == NULL);
    /* And back, in order of time. */
    v = rig_json(&r, &a, "GET", "/v1/users/ann", "");
    static const int64_t times[] = {10, 15, 16, 20, 30};
    CHECK(json_number(v, "total") == 5 && json_number(v, "offset") == 0);
    CHECK(!json_member(v, "is_from_data")->boolean && json_number(v, "version") == 1);
    for (size_t i = 0; i < 5; i++) {
        const json_value *e = json_at(json_member(v, "events"), i);
        CHECK(json_number(e, "time") == times[i] && json_member(e, "action") == NULL);
        CHECK((json_member(e, "is_unknown") != NULL) == (i > 0));
    }
    CHECK(json_member(rig_json(&r, &a, "GET", "/v1/users/7", ""), "is_from_data")->boolean);
    /* Late is what is older than the newest event before the request. */
    v = rig_json(&r, &a, "POST", "/v1/events",
                 "{\"user\": \"ann\", \"events\": [{\"item\": 1, \"time\": 29}, {\"item\": 1, "
                 "\"time\": 30}, {\"item\": 1, \"time\": 1}, {\"item\": 1, \"time\": 1, \"id\": "
                 "\"a\"}]}");
    CHECK(json_number(v, "late") == 2 && json_number(v, "added") == 3);
    CHECK(json_number(v, "duplicates") == 1 && json_number(v, "events") == 8);
    arena_fini(&a);
    rig_close(&r);
}

/* Where the data's ids are texts, "7" stays one. */
TEST(server_writes_user_ids_as_the_data_has_them) {
    rig r;
    rig_open(&r);
    free(shell(0, "printf 'user_id,item_id,timestamp\\n7,1,100\\nAnna,2,100\\n' >u.csv && "
                  "./hstu prep csv --input u.csv --out texts"));
    rig_start(&r);
    ask(&r, "GET", "/v1/users/7", "", 200, "{\"user\":7,");
    ask(&r, "GET", "/v1/users?prefix=7&limit=1", "", 200, "\"users\":[7]");
    rig_stop(&r);
    snprintf(r.data, sizeof r.data, "%s/texts", test_folder());
    rig_start(&r);
    ask(&r, "GET", "/v1/users?limit=2", "", 200, "\"users\":[\"7\",\"Anna\"]");
    ask(&r, "GET", "/v1/users/7", "", 200, "{\"user\":\"7\",");
    ask(&r, "DELETE", "/v1/users/7", "", 200, "{\"user\":\"7\",\"erased\":true");
    rig_close(&r);
}

/* A time in another unit is told before the event is stored: prep would refuse it tomorrow. */
TEST(server_refuses_times_that_cannot_be) {
    static const char *const times[] = {"1690000000000", "7258118400", "-2208988801", "1e300"};
    char body[160];
    rig r;
    rig_open(&r);
    rig_start(&r);
    for (size_t i = 0; i < sizeof times / sizeof *times; i++) {
        snprintf(body, sizeof body,
                 "{\"user\": \"ann\", \"events\": [{\"item\": 1}, {\"item\": 1, \"time\": %s}]}",
                 times[i]);
        ask(&r, "POST", "/v1/events", body, 400, "not in the years 1900 to 2199");
        ask(&r, "GET", "/v1/users/ann", "", 404, "there is no user");
    }
    ask(&r, "POST", "/v1/events",
        "{\"user\": \"ann\", \"events\": [{\"item\": 1, \"time\": 7258118399.5}, {\"item\": 1, "
        "\"time\": -2208988800}]}",
        200, "\"added\":2");
    ask(&r, "POST", "/v1/events",
        "{\"user\": \"ann\", \"events\": [{\"item\": 1}, {\"item\": 1, \"action\": 999}]}", 400,
        "events[1]: its action is 999");
    rig_close(&r);
}

/* The ratings of the data are stars: 4 is action 3, in events and in histories, and scores alike.
 */
TEST(server_takes_ratings) {
    static const char *const asks[] = {
        "{\"history\": [{\"item\": 1, \"action\": 3}, {\"item\": 2, \"action\": 0}, 3]}",
        "{\"history\": [{\"item\": 1, \"rating\": 4}, {\"item\": 2, \"rating\": 1.0}, 3]}"};
    rig r;
    arena a;
    arena_init(&a, 1 << 16);
    rig_open(&r);
    rig_start(&r);
    const json_value *v = rig_json(
        &r, &a, "POST", "/v1/events",
        "{\"users\": [{\"user\": \"ann\", \"events\": [{\"item\": 1, \"time\": 10}, {\"item\": 2, "
        "\"time\": 20, \"rating\": 4}]}, {\"user\": \"bob\", \"events\": [{\"item\": 2, "
        "\"time\": 20, \"rating\": 1}]}]}");
    CHECK_EQ(json_member(v, "users")->n_children, 2);
    v = json_member(rig_json(&r, &a, "GET", "/v1/users/ann", ""), "events");
    CHECK(json_member(json_at(v, 0), "action") == NULL &&
          json_number(json_at(v, 1), "action") == 3);
    v = json_member(rig_json(&r, &a, "GET", "/v1/users/bob", ""), "events");
    CHECK_EQ(json_number(json_at(v, 0), "action"), 0);
    char *text = client_ask(r.port, "POST", "/v1/events", "",
                            "{\"user\": 9, \"events\": [1, {\"item\": 1, \"rating\": 4.5}]}");
    CHECK_EQ(client_code(text), 400);
    CHECK_CONTAINS(text, "event 2: the data have no rating 4.5");
    free(text);
    const json_value *by[2];
    for (int i = 0; i < 2; i++)
        by[i] = json_member(rig_json(&r, &a, "POST", "/v1/recommend", asks[i]), "items");
    for (size_t i = 0; i < 10; i++)
        CHECK(json_member(json_at(by[0], i), "score")->number ==
              json_member(json_at(by[1], i), "score")->number);
    static const char *const bad[] = {"what_if\": [{\"item\": 1, \"rating\": 4.5}]}",
                                      "events\": [{\"item\": 1, \"rating\": 4.5}]}",
                                      "history\": [{\"item\": 1, \"rating\": 4.5}]}"};
    for (int i = 0; i < 3; i++) {
        char body[100];
        snprintf(body, sizeof body, "{\"user\": 9, \"%s", bad[i]);
        text = client_ask(r.port, "POST", "/v1/recommend", "", body);
        CHECK_EQ(client_code(text), 400);
        CHECK_CONTAINS(text, "event 1: the data have no rating 4.5");
        free(text);
    }
    (void)rig_json(&r, &a, "POST", "/v1/recommend",
                   "{\"user\": \"cid\", \"events\": [{\"item\": 1, \"rating\": 5}]}");
    v = json_member(rig_json(&r, &a, "GET", "/v1/users/cid", ""), "events");
    CHECK_EQ(json_number(json_at(v, 0), "action"), 4);
    arena_fini(&a);
    rig_close(&r);
}

/* Ids of up to ENGINE_ID_BYTES bytes, in bodies and in paths. */
TEST(server_limits_ids) {
    char id[ENGINE_ID_BYTES + 2], body[800], path[400];
    rig r;
    rig_open(&r);
    rig_start(&r);
    for (int more = 0; more < 2; more++) {
        int n = ENGINE_ID_BYTES + more, code = more ? 400 : 200;
        memset(id, 'x', sizeof id);
        snprintf(body, sizeof body,
                 "{\"user\": \"%.*s\", \"events\": [{\"item\": \"%.*s\", \"time\": 5}]}", n, id, n,
                 id);
        ask(&r, "POST", "/v1/events", body, code, more ? "bytes" : "\"added\":1");
        snprintf(path, sizeof path, "/v1/users/%.*s", n, id);
        ask(&r, "GET", path, "", code, more ? "1 to 255 bytes" : "\"total\":1");
        snprintf(body, sizeof body, "/v1/users?prefix=%.*s", n, id);
        ask(&r, "GET", body, "", code, more ? "prefix" : "\"users\":[]");
        ask(&r, "DELETE", path, "", code, more ? "1 to 255 bytes" : "\"erased\":true");
    }
    rig_close(&r);
}

TEST(server_takes_names_of_actions) {
    rig r;
    arena a;
    arena_init(&a, 1 << 16);
    rig_open(&r);
    free(shell(0, "awk 'BEGIN { print \"user,item,time,event\"; split(\"view cart buy\", a, \" "
                  "\"); for (u = 1; u <= "
                  "30; u++) for (i = 1; i <= 12; i++) print u \",\" 1 + (u * i) % 20 \",\" 1000 * "
                  "u + i \",\" "
                  "a[1 + (u + i * i) % 3] }' > e.csv && ./hstu prep csv --input e.csv --out named "
                  "--action-map view=0,cart=1,buy=2 && "
                  "./hstu train --device cpu m.gin --data named --out own --epochs 1"));
    snprintf(r.run, sizeof r.run, "%s/own", test_folder());
    snprintf(r.data, sizeof r.data, "%s/named", test_folder());
    rig_start(&r);
    (void)rig_json(&r, &a, "POST", "/v1/events",
                   "{\"user\": 99, \"events\": [{\"item\": 1, \"time\": 10, \"action\": \"buy\"}, "
                   "{\"item\": 2, \"time\": 20, \"action\": 1}]}");
    const json_value *v = json_member(rig_json(&r, &a, "GET", "/v1/users/99", ""), "events");
    CHECK_EQ(json_number(json_at(v, 0), "action"), 2);
    CHECK_EQ(json_number(json_at(v, 1), "action"), 1);
    char *text = client_ask(r.port, "POST", "/v1/events", "",
                            "{\"user\": 9, \"events\": [1, {\"item\": 1, \"action\": \"sell\"}]}");
    CHECK_EQ(client_code(text), 400);
    CHECK_CONTAINS(text, "event 2: there is no action 'sell'; the data have view=0,cart=1,buy=2");
    free(text);
    static const char tokens[] =
        "{\"inputs\":[{\"name\":\"TOKENS\",\"shape\":[4],\"datatype\":\"BYTES\",\"data\":[\"1\", "
        "\"2\", \"%s\", \"0\"]},{\"name\":\"TOKEN_LENGTHS\",\"shape\":[2],\"datatype\":\"INT64\","
        "\"data\":[2, "
        "2]},{\"name\":\"USER_IDS\",\"shape\":[1],\"datatype\":\"INT64\",\"data\":[5]},"
        "{\"name\":\"TOP_K\",\"shape\":[1],\"datatype\":\"INT64\",\"data\":[3]}]}";
    char body[500], *other;
    snprintf(body, sizeof body, tokens, "buy");
    text = client_ask(r.port, "POST", "/v2/models/toy/infer", "", body);
    CHECK_EQ(client_code(text), 200);
    free(text);
    snprintf(body, sizeof body, tokens, "sell");
    other = client_ask(r.port, "POST", "/v2/models/toy/infer", "", body);
    CHECK_EQ(client_code(other), 400);
    CHECK_CONTAINS(other, "event 1: there is no action 'sell'");
    free(other);
    arena_fini(&a);
    rig_close(&r);
}
