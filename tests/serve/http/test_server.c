#include "base/file.h"
#include "disk_fault.h"
#include "serve/engine/slot.h"
#include "serve/http/server.h"
#include "serve/state/state.h"
#include "server_rig.h"

TEST(server_answers_all_routes) {
    rig r;
    rig_open(&r);
    rig_start(&r);
    ask(&r, "GET", "/health", "", 200,
        "{\"status\":\"ok\",\"models\":1,\"durable\":false,\"lost\":[]}");
    ask(&r, "GET", "/v2/health/live", "", 200, "{\"live\":true}");
    ask(&r, "GET", "/v2/health/ready", "", 200, "{\"ready\":true}");
    ask(&r, "GET", "/v2", "", 200,
        "\"extensions\":[\"binary_tensor_data\",\"model_configuration\",\"statistics\"]");
    ask(&r, "GET", "/v2/models/toy", "", 200, "{\"name\":\"USER_IDS\",\"datatype\":\"INT64\"");
    ask(&r, "GET", "/v2/models/toy/versions/1", "", 200, "\"name\":\"toy\"");
    ask(&r, "GET", "/v2/models/toy/versions/9", "", 404, "has version 1");
    ask(&r, "GET", "/v2/models/toy/ready", "", 200, "{\"name\":\"toy\",\"ready\":true}");
    ask(&r, "GET", "/v2/models/toy/config", "", 200,
        "\"max_batch_size\":0,\"input\":[{\"name\":\"USER_IDS\",\"data_type\":\"TYPE_INT64\"");
    ask(&r, "GET", "/v2/models/toy/versions/1/config", "", 200, "\"name\":\"toy\"");
    ask(&r, "GET", "/v2/models/toy/versions/2/config", "", 404, "GET /v1/models");
    ask(&r, "GET", "/v2/models/toy/stats", "", 200, "{\"model_stats\":[{\"name\":\"toy\"");
    ask(&r, "GET", "/v2/models/stats", "", 200, "\"inference_stats\":{\"success\":{\"count\":");
    ask(&r, "GET", "/v2/models/none/stats", "", 404, "GET /v1/models");
    ask(&r, "GET", "/v2/models/other", "", 404, "there is no model 'other'");
    ask(&r, "GET", "/v1/models", "", 200, "{\"models\":[{\"name\":\"toy\",\"version\":\"1\"");
    ask(&r, "POST", "/v1/recommend", "{\"user\": 7, \"top_k\": 3}", 200, "\"source\":\"model\"");
    ask(&r, "POST", "/v1/recommend", "{\"user\": \"nobody\"}", 200, "\"source\":\"popular\"");
    ask(&r, "POST", "/v1/rank", "{\"user\": 7, \"candidates\": [1, 2, \"no\"]}", 200,
        "{\"item\":\"no\",\"score\":null,\"index\":2,\"is_unknown\":true}");
    ask(&r, "POST", "/rerank", "{\"query\": \"7\", \"documents\": [\"1\", \"2\"], \"top_n\": 1}",
        200, "\"relevance_score\":");
    ask(&r, "POST", "/v2/rerank", "{\"query\": 7, \"documents\": [1]}", 200, "\"results\":[{");
    ask(&r, "GET", "/v1/users?prefix=7", "", 200, "\"users\":[7");
    ask(&r, "GET", "/v1/items?search=1", "", 200, "{\"items\":[{\"item\":1,");
    ask(&r, "GET", "/v1/cache", "", 200, "\"pages\":[");
    ask(&r, "GET", "/v1/map", "", 200, "\"items\":[[1,[");
    ask(&r, "GET", "/", "", 200, "frame-ancestors 'none'\r\n");
    ask(&r, "GET", "/", "", 200, "</html>");
    rig_close(&r);
}

TEST(server_says_what_is_wrong) {
    rig r;
    rig_open(&r);
    rig_start(&r);
    ask(&r, "GET", "/nothing", "", 404, "{\"error\":\"nothing at /nothing");
    ask(&r, "GET", "/v1/recommend", "", 405, "Allow: POST");
    ask(&r, "PUT", "/v1/users/7", "", 405, "Allow: GET, DELETE");
    ask(&r, "POST", "/v1/recommend", "{", 400, "not JSON");
    ask(&r, "POST", "/v1/recommend", "{\"user\": 7, \"model\": \"x\"}", 404, "no model 'x'");
    ask(&r, "POST", "/v1/rank", "{\"user\": 7, \"candidates\": [1], \"tasks\": [\"x\"]}", 400,
        "toy has no 'x'");
    ask(&r, "GET", "/v1/items?limt=2", "", 400,
        "there is no parameter 'limt' here; this path takes model search limit");
    ask(&r, "GET", "/v1/items?limit=2&mode=x", "", 400, "there is no parameter 'mode' here");
    ask(&r, "GET", "/v1/users/7?prefix=7", "", 400, "this path takes offset limit");
    ask(&r, "GET", "/v1/models?x", "", 400, "this path takes none");
    ask(&r, "POST", "/v1/recommend?top_k=3", "{\"user\": 7}", 400, "parameter 'top_k'");
    ask(&r, "GET", "/v1/items?limit=0", "", 400, "limit: expected an integer from 1 to 1000");
    ask(&r, "GET", "/v1/items?limit=1", "", 200,
        "{\"items\":[{\"item\":1,\"title\":\"The Early Teapot (Space Opera)\"}]}");
    ask(&r, "GET", "/health?probe=1", "", 200, "\"ok\"");
    ask(&r, "GET", "/?from=mail", "", 200, "</html>");
    ask(&r, "GET", "/v1/users/nobody", "", 404, "POST /v1/events makes one");
    ask(&r, "DELETE", "/v1/users/nobody", "", 404, "nothing to erase");
    ask(&r, "GET", "/v1/users/%zz", "", 400, "invalid escape");
    ask(&r, "POST", "/v2/models/toy/infer", "{}", 400, "inputs: expected a list");
    ask(&r, "POST", "/v1/models/x/reload", "", 404, "no model 'x'");
    char *text = client_ask(r.port, "POST", "/v1/events", "Origin: http://evil.example\r\n",
                            "{\"user\": 7, \"events\": [1]}");
    CHECK_EQ(client_code(text), 403);
    free(text);
    text = client_ask(r.port, "POST", "/v1/events", "Origin: http://test\r\n",
                      "{\"user\": 7, \"events\": [1]}");
    CHECK_EQ(client_code(text), 200);
    free(text);
    rig_close(&r);
}

/* Where ids are numbers, "+7" and "07" are ids that nobody has, however they are sent. */
TEST(server_reads_ids_as_the_vocabulary_writes_them) {
    static const char *const forms[] = {"+7", "07", "7.0", " 7", "-0"};
    rig r;
    rig_open(&r);
    rig_start(&r);
    ask(&r, "POST", "/v1/recommend", "{\"user\": \"7\"}", 200, "\"source\":\"model\"");
    ask(&r, "GET", "/v1/users/7", "", 200, "{\"user\":7,");
    ask(&r, "POST", "/v1/rank", "{\"user\": 7, \"candidates\": [\"7\"]}", 200,
        "\"unknown_items\":0");
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        char body[300], path[64];
        snprintf(body, sizeof body, "{\"user\": \"%s\"}", forms[i]);
        ask(&r, "POST", "/v1/recommend", body, 200, "\"source\":\"popular\"");
        snprintf(body, sizeof body, "{\"user\": 7, \"candidates\": [\"%s\"]}", forms[i]);
        ask(&r, "POST", "/v1/rank", body, 200, "\"is_unknown\":true");
        snprintf(body, sizeof body,
                 "{\"inputs\":[{\"name\":\"USER_IDS\",\"shape\":[1],\"datatype\":\"BYTES\","
                 "\"data\":[\"7\"]},{\"name\":\"CANDIDATES\",\"shape\":[1,1],\"datatype\":"
                 "\"BYTES\",\"data\":[\"%s\"]}]}",
                 forms[i]);
        ask(&r, "POST", "/v2/models/toy/infer", body, 200, "\"data\":[null]");
        snprintf(path, sizeof path, "/v1/users/%s", i == 3 ? "%207" : forms[i]);
        ask(&r, "GET", path, "", 404, "there is no user");
    }
    /* A user of that text is another one than 7. */
    ask(&r, "POST", "/v1/events",
        "{\"user\": \"07\", \"events\": [{\"item\": \"07\", \"time\": 5}]}", 200,
        "\"unknown\":1,\"events\":1,\"unknown_items\":[\"07\"]");
    ask(&r, "GET", "/v1/users/07", "", 200, "{\"user\":\"07\",");
    rig_close(&r);
}

TEST(server_echoes_or_makes_request_ids) {
    rig r;
    rig_open(&r);
    rig_start(&r);
    char *text = client_ask(r.port, "GET", "/health", "X-Request-Id: abc-1\r\n", "");
    CHECK_CONTAINS(text, "X-Request-Id: abc-1\r\n");
    free(text);
    text = client_ask(r.port, "GET", "/health", "X-Request-Id: a\"b\r\n", "");
    CHECK_CONTAINS(text, "X-Request-Id: ");
    CHECK(strstr(text, "a\"b") == NULL);
    free(text);
    rig_stop(&r);
    arena a;
    arena_init(&a, 4096);
    const json_value *line = line_of(&a, buf_str(&r.log), 0);
    CHECK_STR(json_member(line, "id")->string, "abc-1");
    CHECK_EQ(json_member(line, "code")->integer, 200);
    arena_fini(&a);
    rig_close(&r);
}

/* Events are there at once, once, in their place, after a restart; so is an erasure. */
TEST(server_keeps_events_and_erasures) {
    rig r;
    if (state_library_version() == NULL) SKIP_TEST("this build has no SQLite");
    rig_open(&r);
    r.c.engine.state = r.state;
    rig_start(&r);
    ask(&r, "POST", "/v1/events",
        "{\"user\": \"new\", \"events\": [{\"item\": 2, \"time\": 200, \"id\": \"b\", \"action\": "
        "1}, {\"item\": 1, \"time\": 100, \"id\": \"a\"}, {\"item\": \"odd\", \"time\": 300}]}",
        200, "\"durable\":true,\"user\":\"new\",\"added\":3,\"duplicates\":0");
    ask(&r, "POST", "/v1/events",
        "{\"user\": \"new\", \"events\": [{\"item\": 2, \"time\": 200, \"id\": \"b\"}]}", 200,
        "\"added\":0,\"duplicates\":1");
    ask(&r, "POST", "/v1/recommend",
        "{\"user\": \"new\", \"events\": [{\"item\": 3, \"time\": 400}]}", 200, "\"events\":4");
    ask(&r, "DELETE", "/v1/users/8", "", 200, "{\"user\":8,\"erased\":true,\"durable\":true}");
    rig_stop(&r);
    rig_start(&r);
    engine_state_stats kept;
    engine_get_state(server_engine(r.s), &kept);
    CHECK(kept.is_durable && kept.n_restored == 4 && kept.warning[0] == '\0');
    ask(&r, "GET", "/v1/users/8", "", 404, "there is no user '8'");
    char *text = client_ask(r.port, "GET", "/v1/users/new", "", "");
    const char *one = strstr(text, "{\"item\":1,"), *two = strstr(text, "{\"item\":2,");
    const char *odd = strstr(text, "{\"item\":\"odd\""), *three = strstr(text, "{\"item\":3,");
    CHECK(one != NULL && two > one && odd > two && three > odd);
    CHECK_CONTAINS(two, "\"time\":200,\"action\":1");
    free(text);
    ask(&r, "POST", "/v1/events",
        "{\"user\": \"new\", \"events\": [{\"item\": 2, \"time\": 200, \"id\": \"b\"}]}", 200,
        "\"added\":0,\"duplicates\":1");
    rig_close(&r);
}

/* What is refused for lack of time has changed nothing, so that it can be sent again as it is. */
TEST(server_refuses_before_it_adds_events) {
    const char *body = "{\"user\": \"late\", \"events\": [{\"item\": 1, \"time\": 5}]}";
    for (int has_state = 0; has_state < 1 + (state_library_version() != NULL); has_state++) {
        rig r;
        rig_open(&r);
        r.c.engine.deadline_ns = 1;
        if (has_state) r.c.engine.state = r.state;
        rig_start(&r);
        ask(&r, "POST", "/v1/recommend", body, 503, "Retry-After: 1");
        ask(&r, "GET", "/v1/users/late", "", 404, "POST /v1/events makes one");
        ask(&r, "GET", "/metrics", "", 200, "hstu_rejected_total{reason=\"overload\"} 1\n");
        /* Such a request is not even parsed, unless it may say something about its time. */
        ask(&r, "POST", "/v1/recommend", "{\"user\": ", 503, "Retry-After: 1");
        ask(&r, "POST", "/v1/recommend", "{\"deadline_ms\": ", 400, "not JSON");
        ask(&r, "POST", "/v1/recommend", "{\"priority\": ", 400, "not JSON");
        ask(&r, "POST", "/v1/recommend", "\"model\"", 400, "not a JSON object");
        ask(&r, "POST", "/v1/recommend", "{\"user\": \"model_y\", \"model", 503, "Retry-After: 1");
        ask(&r, "POST", "/v1/recommend", "{\"dead\\u006cine_ms\": ", 400, "not JSON");
        ask(&r, "POST", "/v1/recommend", "{\"user\": 7, \"deadline_ms\": 60000}", 200, "items");
        rig_stop(&r);
        r.c.engine.deadline_ns = 60000000000u;
        rig_start(&r);
        ask(&r, "POST", "/v1/recommend", body, 200, "\"source\":\"model\"");
        ask(&r, "GET", "/v1/users/late", "", 200, "\"time\":5");
        rig_close(&r);
    }
}

/* A body that takes long to read is read beside the threads of HTTP. */
TEST(server_reads_large_bodies) {
    enum { N = 60000 };
    rig r;
    buf body = {0};
    rig_open(&r);
    rig_start(&r);
    CHECK_OK(buf_text(&body, "{\"history\": [1"));
    for (int i = 1; i < N; i++)
        CHECK_OK(buf_printf(&body, ", %d", 1 + i % 30));
    CHECK_OK(buf_text(&body, "]"));
    CHECK(body.n_bytes < 1 << 18);
    CHECK_OK(buf_printf(&body, "%*s}", (1 << 18) + 10, ""));
    ask(&r, "POST", "/v1/recommend", buf_str(&body), 200, "\"events\":60000");
    buf_fini(&body);
    rig_close(&r);
}

TEST(server_tells_its_state) {
    rig r;
    rig_open(&r);
    rig_start(&r);
    ask(&r, "GET", "/v1/status", "", 200,
        "{\"ready\":true,\"models\":1,\"durable\":false,\"users\":");
    ask(&r, "GET", "/v1/status", "", 200, "\"access_log\":{\"on\":true,\"dropped\":0}");
    server_set_ready(r.s, false);
    ask(&r, "GET", "/v1/status", "", 200, "{\"ready\":false");
    rig_close(&r);
}

/* Events of a request are stored with its answer: of one that is refused or fails, for whatever
 * reason and for whichever of its users, nothing is. */
TEST(server_stores_events_with_the_answer) {
    rig r;
    if (state_library_version() == NULL) SKIP_TEST("this build has no SQLite");
    rig_open(&r);
    r.c.engine.state = r.state;
    rig_start(&r);
    const char *wrong = "{\"user\": \"who\", \"tasks\": [\"none\"], \"events\": [{\"item\": 1, "
                        "\"time\": 5}]}";
    ask(&r, "POST", "/v1/recommend", wrong, 400, "has no 'none'");
    ask(&r, "GET", "/v1/users/who", "", 404, "makes one");
    ask(&r, "POST", "/v1/events",
        "{\"users\": [{\"user\": \"who\", \"events\": [{\"item\": 1, \"time\": 5}]}, {\"user\": "
        "\"late\", \"events\": [{\"item\": 1, \"time\": 9223372036854775807}]}]}",
        400, "users[1]");
    ask(&r, "GET", "/v1/users/who", "", 404, "makes one");
    const char *good =
        "{\"user\": \"who\", \"events\": [{\"item\": 1, \"time\": 5, \"id\": \"a\"}]}";
    disk_fault_set(DISK_FULL, "state.db");
    ask(&r, "POST", "/v1/recommend", good, 503, "nothing was changed");
    ask(&r, "POST", "/v1/events", good, 503, "Retry-After: 1");
    ask(&r, "DELETE", "/v1/users/8", "", 503, "nothing was changed");
    ask(&r, "GET", "/v1/users/who", "", 404, "makes one");
    ask(&r, "GET", "/v1/users/8", "", 200, "events");
    ask(&r, "GET", "/v2/health/ready", "", 200, "");
    ask(&r, "GET", "/v1/status", "", 200, "\"failing\":true,\"why\":\"");
    ask(&r, "GET", "/metrics", "", 200, "hstu_state_failing 1\n");
    ask(&r, "POST", "/v1/recommend", "{\"user\": 8}", 200, "items");
    disk_fault_set(DISK_GOOD, "");
    ask(&r, "POST", "/v1/recommend", good, 200, "\"history\":{\"events\":1,");
    ask(&r, "GET", "/v1/status", "", 200, "\"failing\":false");
    ask(&r, "POST", "/v1/recommend", good, 200, "\"history\":{\"events\":1,"); /* a retry */
    ask(&r, "GET", "/v1/users/who", "", 200, "\"time\":5");
    rig_stop(&r);
    rig_start(&r);
    ask(&r, "GET", "/v1/users/who", "", 200, "\"version\":1");
    rig_close(&r);
}

/* Every name has its type before its samples, no series is there twice, buckets grow. */
TEST(server_metrics_are_prometheus_text) {
    rig r;
    rig_open(&r);
    rig_start(&r);
    ask(&r, "POST", "/v1/recommend", "{\"user\": 7}", 200, "items");
    char *text = client_ask(r.port, "GET", "/metrics", "", "");
    CHECK_CONTAINS(text, "text/plain; version=0.0.4");
    char name[64] = "";
    double last = 0;
    int n_series = 0;
    for (char *line = strtok((char *)client_body(text), "\n"); line != NULL;
         line = strtok(NULL, "\n")) {
        if (strncmp(line, "# TYPE ", 7) == 0) {
            CHECK(sscanf(line + 7, "%63s", name) == 1);
            continue;
        }
        if (line[0] == '#') continue;
        CHECK(strncmp(line, "hstu_", 5) == 0 && strncmp(line, name, strlen(name)) == 0);
        double value = atof(strrchr(line, ' '));
        if (strstr(line, "_bucket{") != NULL && strstr(line, "le=\"0.0001\"") == NULL)
            CHECK(value >= last);
        last = value;
        n_series++;
    }
    CHECK(n_series > 100);
    free(text);
    ask(&r, "GET", "/metrics", "", 200,
        "hstu_requests_total{route=\"/v1/recommend\",code=\"200\"} 1");
    ask(&r, "GET", "/metrics", "", 200, "hstu_model_info{model=\"toy\",version=\"1\"");
    rig_close(&r);
}

typedef struct load {
    rig *r;
    int n, n_bad;
    bool is_over;
} load;

static void *send_load(void *context) {
    load *l = context;
    while (!__atomic_load_n(&l->is_over, __ATOMIC_RELAXED)) {
        char *text = client_ask(l->r->port, "POST", "/v1/recommend", "", "{\"user\": 7}");
        l->n_bad += client_code(text) != 200;
        l->n++;
        free(text);
    }
    return NULL;
}

TEST(server_reloads_under_load) {
    rig r;
    pthread_t thread;
    rig_open(&r);
    rig_start(&r);
    load l = {&r, 0, 0, false};
    CHECK_EQ(pthread_create(&thread, NULL, send_load, &l), 0);
    for (int i = 2; i < 6; i++) {
        char want[40];
        snprintf(want, sizeof want, "\"version\":\"%d\"", i);
        ask(&r, "POST", "/v1/models/toy/reload", "", 200, want);
    }
    __atomic_store_n(&l.is_over, true, __ATOMIC_RELAXED);
    pthread_join(thread, NULL);
    CHECK(l.n > 0 && l.n_bad == 0);
    rig_close(&r);
}

/* Each user has its model; a shadow's answers are only in the log. */
TEST(server_splits_users_between_models) {
    rig r;
    rig_open(&r);
    r.model[1] = (server_model){.name = "other", .path = r.run, .share = 1};
    r.c.n_models = 2;
    rig_start(&r);
    int n_other = 0;
    for (int user = 1; user <= 40; user++) {
        char body[64], *first, *second;
        snprintf(body, sizeof body, "{\"user\": %d}", user);
        first = client_ask(r.port, "POST", "/v1/recommend", "", body);
        snprintf(body, sizeof body, "{\"user\": \"%d\"}", user);
        second = client_ask(r.port, "POST", "/v1/recommend", "", body);
        bool is_other = strstr(first, "X-Hstu-Variant: other") != NULL;
        CHECK(is_other == (strstr(second, "X-Hstu-Variant: other") != NULL));
        n_other += is_other;
        free(first);
        free(second);
    }
    CHECK(n_other > 8 && n_other < 32);
    rig_stop(&r);
    buf_clear(&r.log);
    r.model[1].share = 0;
    r.model[1].is_shadow = true;
    rig_start(&r);
    ask(&r, "POST", "/v1/recommend", "{\"user\": 7}", 200, "X-Hstu-Variant: toy");
    rig_stop(&r);
    CHECK_CONTAINS(buf_str(&r.log), "{\"shadow\":\"other\"");
    rig_close(&r);
}

/* A ranking model has several numbers for an item; the first task asked for gives the order. */
TEST(server_ranks_by_tasks) {
    rig r;
    rig_open(&r);
    char path[4300];
    snprintf(path, sizeof path, "%s/r.gin", test_folder());
    FILE *f = fopen(path, "w");
    CHECK(f != NULL && fputs(ranking_gin, f) >= 0 && fclose(f) == 0);
    free(shell(0, "./hstu train --gin-config-file r.gin --data data --out ranking --epochs 1 "
                  "--device cpu 2>&1"));
    snprintf(path, sizeof path, "%s/ranking", test_folder());
    r.model[0].path = path;
    rig_start(&r);
    ask(&r, "POST", "/v1/rank", "{\"user\": 7, \"candidates\": [1, 2, 3]}", 200,
        "\"scores\":{\"rating\":");
    ask(&r, "POST", "/v1/recommend", "{\"user\": 7}", 400, "ranks given candidates");
    char *text = client_ask(r.port, "POST", "/v1/rank", "",
                            "{\"user\": 7, \"candidates\": [1, 2, 3, 4, 5, 6], \"top_k\": 4, "
                            "\"tasks\": [\"p_1\", \"rating\"]}");
    double last = 2;
    int n = 0;
    for (const char *at = text; (at = strstr(at, "\"score\":")) != NULL; n++, at++) {
        double score = atof(at + 8);
        CHECK(score <= last);
        last = score;
    }
    CHECK_EQ(n, 4);
    CHECK_CONTAINS(text, "\"scores\":{\"p_1\":");
    free(text);
    rig_close(&r);
}

TEST(server_explains_by_leaving_out) {
    rig r;
    rig_open(&r);
    rig_start(&r);
    ask(&r, "POST", "/v1/recommend",
        "{\"history\": [1, 2, 3], \"top_k\": 2, \"explain\": true, \"vector\": true}", 200,
        "\"first_event\":0,\"events\":3,\"items\":[{\"item\":");
    rig_close(&r);
}

static void add_long_history(rig *r, const char *user, int n) {
    buf body = {0};
    CHECK_OK(buf_printf(&body, "{\"user\": \"%s\", \"events\": [", user));
    for (int i = 0; i < n; i++)
        CHECK_OK(buf_printf(&body, "%s{\"item\": %d, \"time\": %d}", i > 0 ? ", " : "", 1 + i % 30,
                            1000 + i));
    CHECK_OK(buf_text(&body, "]}"));
    ask(r, "POST", "/v1/events", buf_str(&body), 200, "\"durable\"");
    buf_fini(&body);
}

static size_t count_of(const char *text, const char *part) {
    size_t n = 0;
    for (; (text = strstr(text, part)) != NULL; text++)
        n++;
    return n;
}

/* A long history comes in pages: the newest events, or those from an offset on. */
TEST(server_pages_long_histories) {
    enum { N = 10050 };
    rig r;
    rig_open(&r);
    rig_start(&r);
    add_long_history(&r, "whale", N);
    char *text = client_ask(r.port, "GET", "/v1/users/whale", "", "");
    CHECK_CONTAINS(text, "\"total\":10050,\"offset\":50,\"events\":[");
    CHECK_EQ(count_of(text, "\"time\":"), 10000);
    CHECK_CONTAINS(text, "\"time\":1050}");
    CHECK_CONTAINS(text, "\"time\":11049}");
    free(text);
    text = client_ask(r.port, "GET", "/v1/users/whale?offset=10&limit=3", "", "");
    CHECK_CONTAINS(text, "\"offset\":10,\"events\":[{\"item\":11,");
    CHECK_EQ(count_of(text, "\"time\":"), 3);
    free(text);
    ask(&r, "GET", "/v1/users/whale?limit=2", "", 200, "\"offset\":10048,");
    ask(&r, "GET", "/v1/users/whale?offset=10049", "", 200, "\"offset\":10049,\"events\":[{");
    ask(&r, "GET", "/v1/users/whale?offset=99999999", "", 200, "\"offset\":10050,\"events\":[]");
    ask(&r, "GET", "/v1/users/whale?limit=0", "", 400,
        "limit: expected an integer from 1 to 10000");
    ask(&r, "GET", "/v1/users/whale?limit=10001", "", 400, "limit: expected");
    ask(&r, "GET", "/v1/users/whale?offset=-1", "", 400, "offset: expected");
    ask(&r, "GET", "/v1/users/whale?offset=x", "", 400, "offset: expected");
    /* Reasons are of the newest events, and counted from the first. */
    add_long_history(&r, "whale2", 16500);
    ask(&r, "POST", "/v1/recommend", "{\"user\": \"whale2\", \"top_k\": 1, \"explain\": true}", 200,
        "\"first_event\":16476,\"events\":24,");
    rig_close(&r);
}

/* Users come in pages, too: each once. */
TEST(server_pages_users) {
    rig r;
    char path[100] = "/v1/users?limit=7";
    size_t n = 0, n_pages = 0;
    rig_open(&r);
    rig_start(&r);
    char *all = client_ask(r.port, "GET", "/v1/users?limit=1000", "", "");
    size_t n_users = count_of(strstr(all, "\"users\":["), ",") + 1;
    CHECK(n_users > 20 && strstr(all, "next_cursor") == NULL);
    free(all);
    for (bool is_last = false; !is_last; n_pages++) {
        char *text = client_ask(r.port, "GET", path, "", "");
        const char *next = strstr(text, ",\"next_cursor\":");
        CHECK_EQ(client_code(text), 200);
        n += count_of(strstr(text, "\"users\":["), ",") + 1 - (next != NULL);
        is_last = next == NULL;
        if (next != NULL)
            snprintf(path, sizeof path, "/v1/users?limit=7&cursor=%d", atoi(next + 15));
        free(text);
    }
    CHECK(n == n_users && n_pages == (n_users + 6) / 7);
    ask(&r, "GET", "/v1/users?limit=1001", "", 400, "limit: expected an integer from 1 to 1000");
    ask(&r, "GET", "/v1/users?cursor=99999999999", "", 200, "\"users\":[]}");
    rig_close(&r);
}

/* KServe v2: JSON in, binary out, and the answer of /v1/rank. */
TEST(server_infers) {
    static const char body[] =
        "{\"id\":\"q\",\"inputs\":[{\"name\":\"USER_IDS\",\"shape\":[1],\"datatype\":\"INT64\","
        "\"data\":[7]},{\"name\":\"CANDIDATES\",\"shape\":[1,2],\"datatype\":\"INT64\",\"data\":[1,"
        "2]}],\"outputs\":[{\"name\":\"OUTPUT\",\"parameters\":{\"binary_data\":true}}]}";
    rig r;
    rig_open(&r);
    rig_start(&r);
    int fd = client_open(r.port);
    char head[256];
    int n = snprintf(head, sizeof head,
                     "POST /v2/models/toy/infer HTTP/1.1\r\nHost: t\r\nContent-Length: %zu\r\n\r\n",
                     strlen(body));
    CHECK(client_send(fd, head, (size_t)n) && client_send(fd, body, strlen(body)));
    char *text = client_read(fd);
    const char *length = strstr(text, "Inference-Header-Content-Length: ");
    CHECK(length != NULL && client_code(text) == 200);
    const char *json = client_body(text);
    CHECK_CONTAINS(json, "\"id\":\"q\"");
    CHECK_CONTAINS(json, "{\"name\":\"OUTPUT\",\"datatype\":\"FP32\",\"shape\":[2,1],"
                         "\"parameters\":{\"binary_data_size\":8}}");
    float score[2];
    memcpy(score, json + atoi(length + 33), sizeof score);
    char *rank =
        client_ask(r.port, "POST", "/v1/rank", "", "{\"user\": 7, \"candidates\": [1, 2]}");
    for (int i = 0; i < 2; i++) {
        char item[32];
        snprintf(item, sizeof item, "{\"item\":%d,", i + 1);
        const char *at = strstr(rank, item);
        CHECK(at != NULL);
        CHECK(fabsf(strtof(strstr(at, "\"score\":") + 8, NULL) - score[i]) < 1e-6f);
    }
    free(rank);
    free(text);
    close(fd);
    rig_close(&r);
}

TEST(server_streams_its_state) {
    static const char get[] = "GET /v1/stream HTTP/1.1\r\nHost: t\r\n\r\n";
    rig r;
    rig_open(&r);
    rig_start(&r);
    int fd = client_open(r.port);
    CHECK(client_send(fd, get, strlen(get)));
    char text[65536];
    size_t n = 0;
    text[0] = '\0';
    for (int i = 0; i < 50 && strstr(text, "data: {\"requests\":") == NULL; i++) {
        ssize_t got = recv(fd, text + n, sizeof text - 1 - n, 0);
        CHECK(got > 0);
        n += (size_t)got;
        text[n] = '\0';
    }
    CHECK_CONTAINS(text, "data: {\"requests\":");
    CHECK_CONTAINS(text, "text/event-stream");
    close(fd);
    rig_close(&r);
}

static status wait_20_ms(served *m, void *is_running) {
    (void)m;
    atomic_store((atomic_bool *)is_running, true);
    usleep(20000);
    return OK;
}

typedef struct occupied {
    slot *s;
    atomic_bool *is_running;
} occupied;

static void *occupy(void *context) {
    const occupied *o = context;
    CHECK_OK(slot_call(o->s, wait_20_ms, o->is_running));
    return NULL;
}

/* A request that has waited for a while, and whose client has closed its sending side meanwhile, is
 * not run: 499, for the log. */
TEST(server_does_not_run_for_who_has_gone) {
    static const char text[] =
        "POST /v1/recommend HTTP/1.1\r\nHost: t\r\nContent-Length: 11\r\n\r\n"
        "{\"user\": 7}";
    rig r;
    atomic_bool is_running;
    pthread_t thread;
    int code = 0;
    rig_open(&r);
    rig_start(&r);
    for (int i = 0; i < 20 && code != 499; i++) { /* the client may be late */
        atomic_init(&is_running, false);
        occupied o = {engine_slot(server_engine(r.s), 0, 0), &is_running};
        CHECK_EQ(pthread_create(&thread, NULL, occupy, &o), 0);
        while (!atomic_load(&is_running))
            usleep(100);
        int fd = client_open(r.port);
        CHECK(client_send(fd, text, strlen(text)) && shutdown(fd, SHUT_WR) == 0);
        char *answer = client_read(fd);
        code = client_code(answer);
        if (code != 200 && code != 499 && code != 0) FAIL_TEST("wanted 200 or 499: %s", answer);
        free(answer);
        close(fd);
        pthread_join(thread, NULL);
    }
    CHECK_EQ(code, 499);
    rig_close(&r);
}

/* An engine that is being closed takes no more requests: try another server. */
TEST(server_refuses_while_it_closes) {
    rig r;
    rig_open(&r);
    rig_start(&r);
    engine_drain(server_engine(r.s));
    ask(&r, "POST", "/v1/recommend", "{\"user\": 7}", 503, "Retry-After: 1\r\n");
    ask(&r, "POST", "/v1/rank", "{\"user\": 7, \"candidates\": [1], \"deadline_ms\": 5000}", 503,
        "Retry-After: 1\r\n");
    rig_close(&r);
}

TEST(server_drains) {
    rig r;
    rig_open(&r);
    rig_start(&r);
    server_set_ready(r.s, false);
    ask(&r, "GET", "/v2/health/ready", "", 503, "not ready");
    ask(&r, "POST", "/v1/recommend", "{\"user\": 7}", 200, "items");
    CHECK(server_drain(r.s, 5000000000u));
    rig_close(&r);
}

TEST(server_start_fails_with_reasons) {
    rig r;
    rig_open(&r);
    r.model[0].path = "/nowhere";
    CHECK(server_start(&r.s, &r.c) != OK);
    CHECK_CONTAINS(status_reason(), "/nowhere");
    r.model[0].path = r.run;
    r.c.keys = "/nowhere/keys";
    CHECK_FAILS(server_start(&r.s, &r.c), ERR_IO, "/nowhere/keys");
    rig_close(&r);
}

/* Who may send what. */

static void write_keys(rig *r, const char *text) {
    FILE *f = fopen(r->keys, "w");
    CHECK(f != NULL && fputs(text, f) >= 0 && fclose(f) == 0);
    r->c.keys = r->keys;
}

TEST(server_checks_keys_and_quotas) {
    rig r;
    rig_open(&r);
    write_keys(&r, "secret-key shop 1\n");
    rig_start(&r);
    ask(&r, "GET", "/v1/models", "", 401, "Authorization: Bearer KEY");
    ask(&r, "GET", "/health", "", 200, "ok");
    char *text = client_ask(r.port, "GET", "/v1/users", "Authorization: Bearer secret-key\r\n", "");
    CHECK_EQ(client_code(text), 200);
    free(text);
    text = client_ask(r.port, "GET", "/v1/users", "X-Api-Key: secret-key\r\n", "");
    CHECK_EQ(client_code(text), 429);
    CHECK_CONTAINS(text, "Retry-After: 1");
    free(text);
    rig_close(&r);
}

static void ask_with_key(rig *r, const char *key, const char *method, const char *path,
                         const char *body, int code, const char *part) {
    char header[100];
    snprintf(header, sizeof header, "X-Api-Key: %s\r\n", key);
    char *text = client_ask(r->port, method, path, header, body);
    if (client_code(text) != code || strstr(text, part) == NULL)
        FAIL_TEST("%s %s %s: wanted %d with %s: %s", key, method, path, code, part, text);
    free(text);
}

/* A key does what its roles say: answers, events, or what only an operator does. */
TEST(server_keys_have_roles) {
    static const char event[] = "{\"user\": \"x\", \"events\": [{\"item\": 1, \"time\": 5}]}";
    static const char *const keys[] = {"key-of-page", "key-of-shop", "key-of-boss"};
    static const struct {
        const char *method, *path, *body, *role;
        bool may[3];
    } cases[] = {
        {"POST", "/v1/recommend", "{\"user\": 7}", "read", {true, false, false}},
        {"GET", "/v1/users/7", "", "read", {true, false, false}},
        {"GET", "/metrics", "", "read", {true, false, false}},
        {"GET", "/v1/status", "", "read", {true, false, false}},
        {"POST", "/v1/events", event, "events", {false, true, false}},
        {"POST", "/v1/recommend", event, "", {false, false, false}}, /* needs both */
        {"POST", "/v1/models/toy/reload", "", "admin", {false, false, true}},
        {"DELETE", "/v1/users/8", "", "admin", {false, false, true}},
        {"GET", "/health", "", "", {true, true, true}},
    };
    rig r;
    rig_open(&r);
    write_keys(&r, "key-of-page page 0 read\nkey-of-shop shop 0 events\nkey-of-boss ops 0 admin\n"
                   "key-of-both both 0 read,events\nkey-of-old1 old 0\n");
    rig_start(&r);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int k = 0; k < 3; k++)
            ask_with_key(&r, keys[k], cases[i].method, cases[i].path, cases[i].body,
                         cases[i].may[k] ? 200 : 403, cases[i].may[k] ? "" : cases[i].role);
    ask_with_key(&r, "key-of-both", "POST", "/v1/recommend", event, 200, "items");
    ask_with_key(&r, "key-of-old1", "DELETE", "/v1/users/9", "", 200, "erased");
    ask_with_key(&r, "key-of-none", "DELETE", "/v1/users/10", "", 401, "Bearer");
    rig_close(&r);
}

/* Who has no key is told so before the body: the server need not keep it. */
TEST(server_asks_for_keys_before_bodies) {
    static const char head[] =
        "POST /v1/recommend HTTP/1.1\r\nHost: t\r\nContent-Length: 8000000\r\n\r\n";
    rig r;
    rig_open(&r);
    write_keys(&r, "secret-key shop 0 read\n");
    rig_start(&r);
    int fd = client_open(r.port);
    struct pollfd readable = {.fd = fd, .events = POLLIN};
    CHECK(client_send(fd, head, strlen(head)));
    CHECK_EQ(poll(&readable, 1, 5000), 1); /* before the 10 s that a body may take */
    char *text = client_read(fd);
    CHECK_EQ(client_code(text), 401);
    free(text);
    close(fd);
    rig_stop(&r);
    CHECK_CONTAINS(buf_str(&r.log), "\"code\":401");
    rig_close(&r);
}

static int code_for_host(rig *r, const char *method, const char *path, const char *host) {
    char head[400];
    int n = snprintf(head, sizeof head, "%s %s HTTP/1.1\r\n%s%s\r\n\r\n", method, path,
                     host != NULL ? "Host: " : "X-None: ", host != NULL ? host : "");
    int fd = client_open(r->port);
    CHECK(client_send(fd, head, (size_t)n));
    char *text = client_read(fd);
    int code = client_code(text);
    if (code == 403) CHECK_CONTAINS(text, "--allow-host");
    free(text);
    close(fd);
    return code;
}

/* A name of somebody else that leads here is no name of this server: its page could read and change
 * everything in the browser of somebody who can reach it. */
TEST(server_answers_to_its_own_names) {
    static const char *const good[] = {"127.0.0.1", "127.0.0.1:8080", "localhost:1",    "LOCALHOST",
                                       "[::1]:80",  "10.1.2.3",       "reco.example:80"};
    static const char *const bad[] = {"evil.example",
                                      "evil.example:8080",
                                      "127.0.0.1.evil.example",
                                      "localhost.evil",
                                      "reco.example.evil",
                                      "[evil]",
                                      "[::1].evil.example",
                                      "localhost:1.evil.example",
                                      "xreco.example",
                                      "",
                                      "127.0.0"};
    static const char *const ours[] = {"reco.example"}, *const any[] = {"*"};
    char machine[256] = "";
    rig r;
    rig_open(&r);
    r.c.allow_hosts = ours;
    r.c.n_allow_hosts = 1;
    rig_start(&r);
    CHECK_EQ(gethostname(machine, sizeof machine - 1), 0);
    CHECK_EQ(code_for_host(&r, "GET", "/v1/users/7", machine), 200);
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        CHECK_EQ(code_for_host(&r, "GET", "/v1/users/7", good[i]), 200);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        if (code_for_host(&r, "GET", "/v1/users/7", bad[i]) != 403)
            FAIL_TEST("Host: %s is let in", bad[i]);
        CHECK_EQ(code_for_host(&r, "DELETE", "/v1/users/8", bad[i]), 403);
        CHECK_EQ(code_for_host(&r, "GET", "/", bad[i]), 403);
        CHECK_EQ(code_for_host(&r, "GET", "/v2/health/ready", bad[i]), 200);
    }
    CHECK_EQ(code_for_host(&r, "GET", "/v1/users/8", "localhost"), 200); /* nothing was erased */
    rig_stop(&r);
    r.c.allow_hosts = any;
    rig_start(&r);
    CHECK_EQ(code_for_host(&r, "GET", "/v1/users/7", "evil.example"), 200);
    rig_stop(&r);
    /* With keys a page cannot ask, whatever its name. */
    write_keys(&r, "secret-key shop 0 read\n");
    r.c.n_allow_hosts = 0;
    rig_start(&r);
    CHECK_EQ(code_for_host(&r, "GET", "/v1/users/7", "evil.example"), 401);
    rig_close(&r);
}
