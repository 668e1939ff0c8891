/* What the server tells of its models and of itself. */
#include "serve/state/state.h"
#include "serve_test.h"
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

/* Several devices behind one server, with real clients. */

enum { USERS = 32, CLIENTS = 4, ROUNDS = 6 };

/* What clients get: the items of each answer, which say everything that was computed. */
typedef struct crowd {
    rig *r;
    int lost; /* a replica whose device fails on the way; -1: none */
    pthread_barrier_t barrier;
    char *items[CLIENTS][ROUNDS * USERS / CLIENTS];
    atomic_int n_bad;
    char bad[512];
} crowd;

typedef struct member {
    crowd *c;
    int place;
} member;

static char *copy_items(const char *answer) {
    const char *from = strstr(answer, "\"items\":["), *to = strstr(answer, "],\"history\"");
    return from != NULL && to != NULL ? strndup(from, (size_t)(to - from)) : NULL;
}

/* Asks for each user in turn, with an event that is stored with the answer, or before it. */
static void *join_crowd(void *context) {
    member *m = context;
    crowd *c = m->c;
    size_t at = 0;
    for (int round = 0; round < ROUNDS; round++) {
        if (round == ROUNDS / 3) pthread_barrier_wait(&c->barrier);
        if (round == ROUNDS / 3 && m->place == 0 && c->lost >= 0)
            serve_lose_device(server_engine(c->r->s), c->lost);
        for (int user = m->place; user < USERS; user += CLIENTS) {
            char body[256], event[96];
            snprintf(event, sizeof event, "[{\"item\":%d,\"time\":%d,\"id\":\"e%d\"}]",
                     1 + (user * 11 + round * 5) % 50, 2000000000 + round, round);
            snprintf(body, sizeof body, "{\"user\":%d,\"events\":%s}", 1 + user, event);
            bool is_with = (user / CLIENTS) % 2 == 0;
            char *text =
                client_ask(c->r->port, "POST", is_with ? "/v1/recommend" : "/v1/events", "", body);
            if (!is_with && client_code(text) == 200) {
                free(text);
                snprintf(body, sizeof body, "{\"user\":%d}", 1 + user);
                text = client_ask(c->r->port, "POST", "/v1/recommend", "", body);
            }
            c->items[m->place][at] = copy_items(text);
            if (client_code(text) != 200 || c->items[m->place][at] == NULL) {
                snprintf(c->bad, sizeof c->bad, "%s", text);
                atomic_fetch_add(&c->n_bad, 1);
            }
            free(text);
            at++;
        }
    }
    return NULL;
}

static void run_crowd(crowd *c, rig *r, int lost) {
    pthread_t thread[CLIENTS];
    member m[CLIENTS];
    *c = (crowd){.r = r, .lost = lost};
    pthread_barrier_init(&c->barrier, NULL, CLIENTS);
    for (int i = 0; i < CLIENTS; i++) {
        m[i] = (member){c, i};
        CHECK_EQ(pthread_create(&thread[i], NULL, join_crowd, &m[i]), 0);
    }
    for (int i = 0; i < CLIENTS; i++)
        pthread_join(thread[i], NULL);
    pthread_barrier_destroy(&c->barrier);
    if (c->n_bad > 0) FAIL_TEST("%d are wrong: %s", c->n_bad, c->bad);
}

static void compare(const crowd *a, const crowd *b) {
    for (int i = 0; i < CLIENTS; i++)
        for (int k = 0; k < ROUNDS * USERS / CLIENTS; k++)
            CHECK_STR(a->items[i][k], b->items[i][k]);
}

static void crowd_free(crowd *c) {
    for (int i = 0; i < CLIENTS; i++)
        for (int k = 0; k < ROUNDS * USERS / CLIENTS; k++)
            free(c->items[i][k]);
}

/* The number of a metric's series. */
static double series_value(rig *r, const char *series) {
    char *text = client_ask(r->port, "GET", "/metrics", "", "");
    const char *at = strstr(text, series);
    if (at == NULL) FAIL_TEST("no %s", series);
    double value = atof(at + strlen(series));
    free(text);
    return value;
}

static const json_value *replica_at(rig *r, arena *a, size_t i) {
    const json_value *m =
        json_at(json_member(rig_json(r, a, "GET", "/v1/models", ""), "models"), 0);
    CHECK_EQ(json_member(m, "replicas")->n_children, 2);
    return json_at(json_member(m, "replicas"), i);
}

/* Two replicas answer what one device answers, character by character, also when one of them is
 * lost under load: no request fails, what was acknowledged is there after a restart, and health,
 * metrics and the list of models say which one it is.  A reload brings it back. */
TEST(server_outlives_a_device) {
    static crowd one, two;
    rig r;
    arena a;
    if (state_library_version() == NULL) SKIP_TEST("this build has no SQLite");
    arena_init(&a, 1 << 16);
    rig_open(&r);
    rig_start(&r);
    CHECK_EQ(series_value(&r, "hstu_replica_up{model=\"toy\"} "), 1);
    run_crowd(&one, &r, -1);
    rig_stop(&r);
    r.c.engine.device = "cpu,cpu";
    r.c.engine.state = r.state;
    rig_start(&r);
    ask(&r, "GET", "/health", "", 200, "\"durable\":true,\"lost\":[]}");
    ask(&r, "GET", "/v1/models", "", 200, "\"device\":\"cpu,cpu\"");
    run_crowd(&two, &r, 1);
    compare(&one, &two);
    ask(&r, "GET", "/health", "", 200,
        "\"lost\":[\"replica 1 (cpu) of toy is lost: the device is gone\"]}");
    ask(&r, "GET", "/v2/health/ready", "", 200, "");
    CHECK_EQ(series_value(&r, "hstu_replica_up{model=\"toy\",replica=\"0\",device=\"cpu\"} "), 1);
    CHECK_EQ(series_value(&r, "hstu_replica_up{model=\"toy\",replica=\"1\",device=\"cpu\"} "), 0);
    double n0 = series_value(&r, "batch_requests_sum{model=\"toy\",replica=\"0\",device=\"cpu\"} ");
    double n1 = series_value(&r, "batch_requests_sum{model=\"toy\",replica=\"1\",device=\"cpu\"} ");
    CHECK(n0 > n1 && n1 > 0 && n0 + n1 == ROUNDS * USERS);
    CHECK(series_value(&r, "hstu_moved_total{model=\"toy\",replica=\"0\",device=\"cpu\"} ") > 0);
    const json_value *v = replica_at(&r, &a, 1);
    CHECK(json_member(v, "is_lost")->boolean && json_number(v, "requests") == (int64_t)n1);
    CHECK_STR(json_member(v, "why")->string, "replica 1 (cpu) of toy is lost: the device is gone");
    v = replica_at(&r, &a, 0);
    CHECK(!json_member(v, "is_lost")->boolean && json_member(v, "why") == NULL);
    CHECK(json_number(v, "kv_pages_used") > 0 && json_number(v, "queue_requests") == 0);
    ask(&r, "POST", "/v1/models/toy/reload", "", 200, "\"version\":\"2\"");
    CHECK(!json_member(replica_at(&r, &a, 1), "is_lost")->boolean);
    ask(&r, "GET", "/health", "", 200, "\"lost\":[]}");
    for (int i = 0; i < 2; i++) {
        serve_lose_device(server_engine(r.s), i);
        for (int u = 1; u <= USERS; u++)
            free(client_ask(r.port, "POST", "/v1/recommend", "", "{\"user\": 7}"));
        for (int u = 1; u <= USERS; u++) {
            char body[32];
            snprintf(body, sizeof body, "{\"user\": %d}", u);
            free(client_ask(r.port, "POST", "/v1/recommend", "", body));
        }
    }
    ask(&r, "GET", "/health", "", 503, "all devices are lost; restart the server");
    ask(&r, "GET", "/v2/health/ready", "", 503, "all devices are lost");
    ask(&r, "GET", "/v2/models/toy/ready", "", 503, "all devices are lost");
    ask(&r, "POST", "/v1/recommend", "{\"user\": 7}", 500, "is lost: the device is gone");
    ask(&r, "POST", "/v1/events", "{\"user\": 7, \"events\": [{\"item\": 3}]}", 200, "\"added\":1");
    rig_stop(&r);
    r.c.engine.device = "cpu";
    rig_start(&r);
    for (int u = 1; u <= USERS; u++) { /* once each, the last one newest */
        char path[64];
        snprintf(path, sizeof path, "/v1/users/%d?limit=20", u);
        char *text = client_ask(r.port, "GET", path, "", "");
        for (int round = 0; round < ROUNDS; round++) {
            char want[32];
            snprintf(want, sizeof want, "\"time\":%d", 2000000000 + round);
            const char *at = strstr(text, want);
            if (at == NULL || strstr(at + 1, want) != NULL) FAIL_TEST("user %d: %s", u, text);
        }
        free(text);
    }
    rig_close(&r);
    crowd_free(&one);
    crowd_free(&two);
    arena_fini(&a);
}

/* Many users: every replica has its share of the requests, within a tenth of the mean. */
TEST(server_spreads_users_over_its_devices) {
    enum { N = 600, REPLICAS = 3 };
    rig r;
    rig_open(&r);
    r.c.engine.device = "cpu,cpu,cpu";
    rig_start(&r);
    int fd = client_open(r.port);
    for (int u = 0; u < N; u++) {
        char body[64], text[256];
        int n = snprintf(body, sizeof body, "{\"user\":\"u%d\",\"top_k\":3}", u);
        n = snprintf(text, sizeof text,
                     "POST /v1/recommend HTTP/1.1\r\nHost: test\r\nContent-Length: %d\r\n\r\n%s", n,
                     body);
        CHECK(client_send(fd, text, (size_t)n));
        char *answer = client_read(fd);
        CHECK_EQ(client_code(answer), 200);
        free(answer);
    }
    close(fd);
    for (int i = 0; i < REPLICAS; i++) {
        char series[96];
        snprintf(series, sizeof series,
                 "batch_requests_sum{model=\"toy\",replica=\"%d\",device=\"cpu\"} ", i);
        double n = series_value(&r, series);
        if (n < 0.9 * N / REPLICAS || n > 1.1 * N / REPLICAS)
            FAIL_TEST("replica %d had %g of %d requests", i, n, N);
    }
    rig_close(&r);
}

/* Clients that go on while the data is exchanged: each adds events and asks. */
typedef struct night {
    rig *r;
    int place, n_sent;
    bool is_over;
    char bad[512];
} night;

static void *join_night(void *context) {
    night *n = context;
    for (; !__atomic_load_n(&n->is_over, __ATOMIC_RELAXED) && n->bad[0] == '\0'; n->n_sent++) {
        char body[256];
        snprintf(body, sizeof body,
                 "{\"user\":%d,\"events\":[{\"item\":%d,\"time\":%d,\"id\":\"e%d\"}]}", n->place,
                 1 + n->n_sent % 60, 1900000000 + n->n_sent, n->n_sent);
        const char *path = n->n_sent % 2 ? "/v1/recommend" : "/v1/events";
        char *text = client_ask(n->r->port, "POST", path, "", body);
        if (client_code(text) != 200) snprintf(n->bad, sizeof n->bad, "%s", text);
        free(text);
    }
    return NULL;
}

/* Two models of one run answer alike, whichever was replaced. */
static void check_models(rig *r, const char *user) {
    char body[2][96], *text[2], *items[2];
    for (int i = 0; i < 2; i++) {
        snprintf(body[i], sizeof body[i], "{\"user\":%s,\"model\":\"%s\"}", user,
                 i ? "other" : "toy");
        text[i] = client_ask(r->port, "POST", "/v1/recommend", "", body[i]);
        items[i] = copy_items(text[i]);
        CHECK(items[i] != NULL);
    }
    CHECK_STR(items[0], items[1]);
    for (int i = 0; i < 2; i++) {
        free(text[i]);
        free(items[i]);
    }
}

static int total_of(rig *r, arena *a, const char *user) {
    char path[64];
    snprintf(path, sizeof path, "/v1/users/%s?limit=1", user);
    return (int)json_number(rig_json(r, a, "GET", path, ""), "total");
}

/* Data is exchanged under load: no request fails, no event is lost or counts twice, and users of
 * the new data are answered at once. */
static void exchange_data(bool has_state) {
    enum { N = 3 };
    rig r;
    arena a;
    pthread_t thread[N];
    night n[N];
    char path[64];
    arena_init(&a, 1 << 16);
    rig_open(&r);
    if (has_state && state_library_version() == NULL) SKIP_TEST("this build has no SQLite");
    r.c.engine.state = has_state ? r.state : NULL;
    r.c.reload_from = test_folder();
    r.model[1] = (server_model){.name = "other", .path = r.run};
    r.c.n_models = 2;
    free(shell(
        0, "printf 'user_id,item_id,timestamp\\n1,5,100\\nnew,9,100\\n8,7,1900000000\\n8,7,50\\n"
           "9,7,50\\n' >d.csv && ./hstu prep csv --input d.csv --string-ids --out d"));
    rig_start(&r);
    int before = total_of(&r, &a, "1");
    ask(&r, "POST", "/v1/events", "{\"user\":8,\"events\":[{\"item\":7,\"time\":1900000000}]}", 200,
        "\"added\":1");
    ask(&r, "DELETE", "/v1/users/9", "", 200, "erased");
    for (int i = 0; i < N; i++) {
        n[i] = (night){.r = &r, .place = i + 1};
        CHECK_EQ(pthread_create(&thread[i], NULL, join_night, &n[i]), 0);
    }
    for (int i = 0; i < 6; i++) {
        ask(&r, "POST", "/v1/models/toy/reload",
            i % 2 ? "{\"data\":\"data\"}" : "{\"data\":\"d\",\"run\":\"run\"}", 200, "\"users\":");
        ask(&r, "GET", "/v1/users/new", "", i % 2 ? 404 : 200,
            i % 2 ? "no user" : "\"item\":\"9\"");
        ask(&r, "GET", "/v1/users/9", "", 404, "no user");
        check_models(&r, "8");
        serve_wait_ms(20);
    }
    ask(&r, "POST", "/v1/recommend", "{\"user\":8}", 200, "\"source\":\"model\"");
    ask(&r, "POST", "/v1/recommend", "{\"user\":40,\"model\":\"other\"}", 200,
        "\"source\":\"model\"");
    for (int i = 0; i < N; i++)
        __atomic_store_n(&n[i].is_over, true, __ATOMIC_RELAXED);
    for (int i = 0; i < N; i++) {
        pthread_join(thread[i], NULL);
        if (n[i].bad[0] != '\0') FAIL_TEST("client %d: %s", i, n[i].bad);
        CHECK(n[i].n_sent > 0);
    }
    CHECK_EQ(total_of(&r, &a, "1"), before + n[0].n_sent);
    ask(&r, "POST", "/v1/models/toy/reload", "{\"data\":\"d\"}", 200, "\"users\":");
    for (int i = 0; i < N; i++) {
        snprintf(path, sizeof path, "%d", i + 1);
        CHECK_EQ(total_of(&r, &a, path), n[i].n_sent + (i == 0));
    }
    CHECK_EQ(total_of(&r, &a, "8"), 2); /* what is in both counts once */
    ask(&r, "GET", "/v1/users/9", "", 404, "no user");
    ask(&r, "GET", "/v1/users?prefix=n", "", 200, "\"users\":[\"new\"]");
    ask(&r, "GET", "/v1/users/40", "", 404, "no user"); /* only the old data has it */
    if (has_state) { /* who was erased before the start, and comes with later data */
        ask(&r, "POST", "/v1/events", "{\"user\":77,\"events\":[{\"item\":7}]}", 200,
            "\"added\":1");
        ask(&r, "DELETE", "/v1/users/77", "", 200, "erased");
        rig_stop(&r);
        r.c.engine.data = run_path("d");
        rig_start(&r);
        CHECK(total_of(&r, &a, "8") == 2 && total_of(&r, &a, "2") == n[1].n_sent);
        ask(&r, "GET", "/v1/users/9", "", 404, "no user");
        free(shell(0, "printf 'user_id,item_id,timestamp\\n77,5,100\\n78,5,100\\n' >e.csv && "
                      "./hstu prep csv --input e.csv --string-ids --out e"));
        ask(&r, "POST", "/v1/models/other/reload", "{\"data\":\"e\"}", 200, "\"users\":");
        ask(&r, "GET", "/v1/users/77", "", 404, "no user");
        ask(&r, "GET", "/v1/users/78", "", 200, "\"total\":1,");
        check_models(&r, "8");
    }
    arena_fini(&a);
    rig_close(&r);
}

TEST(server_exchanges_data_under_load) {
    exchange_data(false);
}

TEST(server_exchanges_data_of_a_state_under_load) {
    exchange_data(true);
}

/* All or nothing: what does not fit leaves model, data and users as they are. */
TEST(server_refuses_reloads_of_nothing) {
    static const struct {
        const char *body;
        int code;
        const char *part;
    } cases[] = {
        {"{\"date\":\"data\"}", 400, "'date' is not a member of this object; it has run, data"},
        {"[]", 400, "not a JSON object"},
        {"{\"data\":7}", 400, "data: expected a path"},
        {"{\"data\":\"\"}", 400, "data: expected a path"},
        {"{\"data\":\"/etc\"}", 400, "data: expected a path"},
        {"{\"run\":\"..\"}", 400, "run: expected a path"},
        {"{\"run\":\"run/../run\"}", 400, "run: expected a path"},
        {"{\"run\":\"run\\u0000x\"}", 400, "not JSON"},
        {"{\"data\":\"nix\"}", 400, "the old version stays: "},
        {"{\"data\":\"data\",\"run\":\"nix\"}", 400, "the old version stays: "},
        {"{\"data\":\"strange\"}", 400, "the old version stays: "},
        {"{\"data\":\"fine\"}", 400,
         "its times are finer (1000 a second) than those of the data in use (1)"},
    };
    rig r;
    rig_open(&r);
    free(shell(
        0,
        "printf 'user_id,item_id,timestamp\\n1,x,100\\n' >s.csv && ./hstu prep csv --input s.csv "
        "--out strange && printf 'user_id,item_id,timestamp\\n1,5,100.5\\n' >f.csv && ./hstu prep "
        "csv --input f.csv --out fine"));
    rig_start(&r);
    ask(&r, "POST", "/v1/models/toy/reload", "{\"data\":\"data\"}", 403, "--reload-from DIR");
    ask(&r, "POST", "/v1/models/toy/reload", "{}", 200, "\"version\":\"2\"");
    rig_stop(&r);
    r.c.reload_from = test_folder();
    rig_start(&r);
    char *before = client_ask(r.port, "GET", "/v1/users/7", "", "");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ask(&r, "POST", "/v1/models/toy/reload", cases[i].body, cases[i].code, cases[i].part);
        ask(&r, "POST", "/v1/recommend", "{\"user\":7}", 200, "\"model_version\":\"1\"");
    }
    char *after = client_ask(r.port, "GET", "/v1/users/7", "", "");
    CHECK_STR(client_body(before), client_body(after));
    free(before);
    free(after);
    ask(&r, "POST", "/v1/models/toy/reload", "{\"data\":\"data\",\"run\":\"./run\"}", 200,
        "\"version\":\"2\"");
    rig_close(&r);
}
