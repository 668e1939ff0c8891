/* What the page shows, as exact numbers: the stream, the cache, the items and their map. */
#include "server_rig.h"

/* The next event of the stream. */
static const json_value *next_event(int fd, arena *a) {
    static char text[1 << 16];
    const json_value *v;
    const char *data = NULL;
    for (size_t n = 0; data == NULL || strstr(data, "\n\n") == NULL;
         data = strstr(text, "data: ")) {
        ssize_t got = recv(fd, text + n, sizeof text - 1 - n, 0);
        CHECK(got > 0);
        n += (size_t)got;
        text[n] = '\0';
    }
    CHECK_OK(json_parse(a, "event", data + 6, (size_t)(strstr(data, "\n\n") - data - 6), &v));
    return v;
}

TEST(server_streams_what_it_counts) {
    static const char get[] = "GET /v1/stream HTTP/1.1\r\nHost: t\r\n\r\n";
    enum { ASKS = 5 };
    rig r;
    arena a;
    arena_init(&a, 1 << 16);
    rig_open(&r);
    r.c.engine.kv_pages = 8;
    rig_start(&r);
    for (int i = 0; i < ASKS; i++)
        ask(&r, "POST", "/v1/recommend",
            "{\"history\": [{\"item\": 1, \"time\": 5}, {\"item\": 2, \"time\": 6}, {\"item\": 3, "
            "\"time\": 7}]}",
            200, "\"source\":\"model\"");
    ask(&r, "GET", "/v1/models", "", 200, "toy"); /* a request, but no question */
    int fd = client_open(r.port);
    CHECK(client_send(fd, get, strlen(get)));
    const json_value *v = next_event(fd, &a), *asks = json_member(v, "asks");
    const json_value *count = json_member(asks, "count"), *m;
    int64_t sum = 0;
    CHECK(json_number(v, "requests") >= ASKS + 1 && json_number(v, "requests") <= ASKS + 2);
    CHECK_EQ(json_number(asks, "n"), ASKS);
    CHECK_EQ(count->n_children, ENGINE_BUCKETS + 1);
    for (size_t i = 0; i < count->n_children; i++)
        sum += json_at(count, i)->integer;
    CHECK_EQ(sum, ASKS);
    CHECK(json_member(asks, "sum_s")->number > 0 && json_member(asks, "sum_s")->number < 60);
    CHECK_EQ(json_member(v, "models")->n_children, 1);
    m = json_at(json_member(v, "models"), 0);
    CHECK_STR(json_member(m, "name")->string, "toy");
    CHECK_STR(json_member(m, "version")->string, "1");
    static const struct {
        const char *key;
        int64_t want;
    } numbers[] = {{"queue_requests", 0},
                   {"queue_tokens", 0},
                   {"batches", ASKS},
                   {"batch_requests", ASKS},
                   {"batch_tokens", 3 + (ASKS - 1) * 1},
                   {"tokens_reused", (ASKS - 1) * 2},
                   {"tokens_computed", 3 + (ASKS - 1) * 1},
                   {"evictions", 0},
                   {"pages_used", 1},
                   {"pages_free", 7},
                   {"host_pages_used", 0},
                   {"tokens_loaded", 0}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (json_number(m, numbers[i].key) != numbers[i].want)
            FAIL_TEST("%s is %lld", numbers[i].key, (long long)json_number(m, numbers[i].key));
    CHECK_EQ(json_member(m, "stages")->n_children, ENGINE_STAGES);
    close(fd);
    arena_fini(&a);
    rig_close(&r);
}

/* [page, owner, tokens, batches since its last use, pinned, on the host] */
TEST(server_shows_pages_of_the_cache) {
    static const char *const bodies[] = {"{\"history\": [1, 2, 3]}", "{\"history\": [4, 5]}"};
    rig r;
    arena a;
    arena_init(&a, 1 << 16);
    rig_open(&r);
    r.c.engine.kv_pages = 4;
    rig_start(&r);
    for (int i = 0; i < 2; i++)
        ask(&r, "POST", "/v1/recommend", bodies[i], 200, "\"source\":\"model\"");
    const json_value *v = rig_json(&r, &a, "GET", "/v1/cache", ""),
                     *pages = json_member(v, "pages");
    CHECK(json_number(v, "tokens_a_page") == 64 && json_number(v, "n_pages") == 4);
    CHECK_EQ(pages->n_children, 4);
    for (size_t i = 0; i < 4; i++) {
        static const int64_t n_tokens[] = {3, 2, 0, 0}, age[] = {1, 0, 0, 0};
        const json_value *p = json_at(pages, i);
        CHECK_EQ(json_at(p, 0)->integer, i);
        CHECK((json_at(p, 1)->integer != 0) == (i < 2));
        CHECK_EQ(json_at(p, 2)->integer, n_tokens[i]);
        CHECK_EQ(json_at(p, 3)->integer, age[i]);
        CHECK(json_at(p, 4)->integer == 0 && json_at(p, 5)->integer == 0);
    }
    CHECK(json_at(json_at(pages, 0), 1)->integer != json_at(json_at(pages, 1), 1)->integer);
    arena_fini(&a);
    rig_close(&r);
}

/* The first items whose titles contain the text, in any case, or whose id it is; 20 at most. */
TEST(server_finds_items) {
    static const struct {
        const char *search;
        size_t n;
        int64_t first, last;
    } cases[] = {{"", 20, 1, 20},
                 {"7", 1, 7, 7},
                 {"60", 1, 60, 60},
                 {"61", 0, 0, 0},
                 {"The%20Weathered%20Feather%20(Space%20Opera)", 1, 7, 7},
                 {"weathered%20PIANO&model=toy", 1, 18, 18},
                 {"Early%20Teapot%20(Space%20Opera)x", 0, 0, 0},
                 {"xThe%20Early", 0, 0, 0}};
    char path[200], longest[128];
    rig r;
    arena a;
    arena_init(&a, 1 << 16);
    rig_open(&r);
    rig_start(&r);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(path, sizeof path, "/v1/items?search=%s", cases[i].search);
        const json_value *v = json_member(rig_json(&r, &a, "GET", path, ""), "items");
        if (v->n_children != cases[i].n) FAIL_TEST("%s: %zu items", path, v->n_children);
        if (cases[i].n == 0) continue;
        CHECK_EQ(json_number(json_at(v, 0), "item"), cases[i].first);
        CHECK_EQ(json_number(json_at(v, cases[i].n - 1), "item"), cases[i].last);
    }
    memset(longest, 'x', sizeof longest);
    snprintf(path, sizeof path, "/v1/items?search=%.127s", longest);
    ask(&r, "GET", path, "", 200, "{\"items\":[]}");
    snprintf(path, sizeof path, "/v1/items?search=%.128s", longest);
    ask(&r, "GET", path, "", 400, "search");
    ask(&r, "GET", "/v1/items?search=1&model=x", "", 404, "no model 'x'");
    arena_fini(&a);
    rig_close(&r);
}

enum { DIM = 8, ITEMS = 60 };

/* Every item with its embedding row; tests/page.js looks at what the page makes of them. */
TEST(server_maps_all_items) {
    rig r;
    arena a;
    arena_init(&a, 1 << 16);
    rig_open(&r);
    rig_start(&r);
    const json_value *v = rig_json(&r, &a, "GET", "/v1/map", ""), *items = json_member(v, "items");
    CHECK_STR(json_member(v, "model")->string, "toy");
    CHECK_STR(json_member(v, "version")->string, "1");
    CHECK_EQ(json_number(v, "of"), ITEMS);
    CHECK_EQ(items->n_children, ITEMS);
    for (uint32_t i = 0; i < ITEMS; i++) {
        const json_value *item = json_at(items, i);
        engine_item names;
        float row[DIM];
        CHECK_OK(engine_item_rows(server_engine(r.s), 0, 1 + i, 1, row));
        CHECK_OK(engine_item_of(server_engine(r.s), 0, 1 + i, &names));
        CHECK_EQ(json_at(item, 0)->integer, names.id.number);
        CHECK_EQ(json_at(item, 1)->n_children, DIM);
        for (size_t k = 0; k < DIM; k++)
            CHECK((float)json_at(json_at(item, 1), k)->number == row[k]);
        CHECK_EQ(strlen(json_at(item, 2)->string), names.title_bytes);
        CHECK(memcmp(json_at(item, 2)->string, names.title, names.title_bytes) == 0);
    }
    ask(&r, "POST", "/v1/models/toy/reload", "", 200, "\"version\":\"2\"");
    CHECK_STR(json_member(rig_json(&r, &a, "GET", "/v1/map", ""), "version")->string, "2");
    ask(&r, "GET", "/v1/map?model=x", "", 404, "no model 'x'");
    arena_fini(&a);
    rig_close(&r);
}
