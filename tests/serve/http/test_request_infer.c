#include "serve/http/request_infer.h"

#include "oom.h"
#include "test.h"

#define USERS "{\"name\": \"USER_IDS\", \"shape\": [2], \"datatype\": \"INT64\", \"data\": [1, 2]}"

static status read_json(arena *a, const char *body, request_infer *r, infer_asks *q) {
    TRY(request_infer_read(a, body, strlen(body), NULL, r));
    return infer_asks_make(a, r, q);
}

static infer_asks good(arena *a, const char *body, request_infer *r) {
    infer_asks q;
    arena_init(a, 1024);
    CHECK_OK(read_json(a, body, r, &q));
    return q;
}

static void bad(const char *body, const char *reason) {
    request_infer r;
    infer_asks q;
    arena a;
    arena_init(&a, 1024);
    CHECK_FAILS(read_json(&a, body, &r, &q), ERR_USAGE, reason);
    arena_fini(&a);
}

TEST(request_infer_asks_for_the_best) {
    arena a;
    request_infer r;
    infer_asks q =
        good(&a,
             "{\"id\": \"x\", \"parameters\": {\"timeout\": 5000, \"binary_data_output\": true}, "
             "\"inputs\": [" USERS ", {\"name\": \"TOP_K\", \"shape\": [1], \"datatype\": "
             "\"INT32\", \"data\": [3]}], \"outputs\": [{\"name\": \"OUTPUT\", \"parameters\": "
             "{\"binary_data\": false}}]}",
             &r);
    bool is_binary;
    CHECK(q.n == 2 && !q.has_candidates && q.top_k == 3 && q.ask[1].user.number == 2);
    CHECK(q.ask[0].task == ENGINE_RECOMMEND && q.ask[0].top_k == 3);
    CHECK_EQ(q.ask[0].deadline_ns, 5000000);
    CHECK_STR(r.id, "x");
    CHECK(infer_wants(&r, "OUTPUT", &is_binary) && !is_binary);
    CHECK(!infer_wants(&r, "ITEM_IDS", &is_binary));
    arena_fini(&a);
}

TEST(request_infer_takes_candidates_flat_and_nested) {
    static const char *const data[] = {"[[5, 6, 7], [8, 9, 10]]", "[5, 6, 7, 8, 9, 10]"};
    for (int i = 0; i < 2; i++) {
        char body[512];
        arena a;
        request_infer r;
        snprintf(body, sizeof body,
                 "{\"inputs\": [" USERS ", {\"name\": \"CANDIDATES\", \"shape\": [2, 3], "
                 "\"datatype\": \"INT64\", \"data\": %s}]}",
                 data[i]);
        infer_asks q = good(&a, body, &r);
        CHECK(q.has_candidates && q.ask[1].n_candidates == 3);
        CHECK(q.ask[1].candidates[2].number == 10 && q.ask[1].task == ENGINE_RANK);
        arena_fini(&a);
    }
}

/* As NVIDIA's client sends it: items of all users, then actions, the last items candidates. */
TEST(request_infer_takes_tokens) {
    arena a;
    request_infer r;
    infer_asks q = good(
        &a,
        "{\"inputs\": [" USERS ", {\"name\": \"TOKENS\", \"shape\": [10], \"datatype\": \"INT64\", "
        "\"data\": [11, 12, 13, 14, 21, 22, 1, 2, 3, 4]}, {\"name\": \"TOKEN_LENGTHS\", "
        "\"shape\": [4], \"datatype\": \"INT64\", \"data\": [4, 2, 3, 1]}, {\"name\": "
        "\"NUM_CANDIDATES\", \"shape\": [2], \"datatype\": \"INT64\", \"data\": [1, 1]}]}",
        &r);
    CHECK(q.n == 2 && q.has_candidates);
    CHECK(q.ask[0].n_history == 3 && q.ask[0].n_candidates == 1);
    CHECK(q.ask[0].candidates[0].number == 14 && q.ask[0].history[2].item.number == 13);
    CHECK(q.ask[0].history[2].action == 3 && q.ask[0].history[2].time > q.ask[0].history[1].time);
    CHECK(q.ask[1].n_history == 1 && q.ask[1].candidates[0].number == 22);
    CHECK(q.ask[1].history[0].action == 4);
    arena_fini(&a);
}

/* JSON, then two tensors: int64 and text. */
static size_t binary_body(char *out, char header[24], const char *users, size_t n_users) {
    static const int64_t k = 2;
    int n = sprintf(out,
                    "{\"inputs\":[{\"name\":\"TOP_K\",\"shape\":[1],\"datatype\":\"INT64\","
                    "\"parameters\":{\"binary_data_size\":8}},{\"name\":\"USER_IDS\",\"shape\":[2],"
                    "\"datatype\":\"BYTES\",\"parameters\":{\"binary_data_size\":%zu}}]}",
                    n_users);
    sprintf(header, "%d", n);
    memcpy(out + n, &k, 8);
    memcpy(out + n + 8, users, n_users);
    return (size_t)n + 8 + n_users;
}

TEST(request_infer_takes_binary_tensors_whole_or_not_at_all) {
    static const char users[] = "\1\0\0\0a\2\0\0\0bc";
    char body[1024], header[24];
    request_infer r;
    infer_asks q;
    arena a;
    size_t n = binary_body(body, header, users, 11);
    arena_init(&a, 1024);
    CHECK_OK(request_infer_read(&a, body, n, header, &r));
    CHECK_OK(infer_asks_make(&a, &r, &q));
    CHECK(q.n == 2 && q.top_k == 2 && q.ask[1].user.n == 2 && q.ask[1].user.text[1] == 'c');
    for (size_t cut = 0; cut < n; cut++)
        CHECK(request_infer_read(&a, body, cut, header, &r) == ERR_USAGE);
    CHECK_FAILS(request_infer_read(&a, body, n + 1, header, &r), ERR_USAGE, "belong to no input");
    CHECK_FAILS(request_infer_read(&a, body, n, "-1", &r), ERR_USAGE, "Header-Content-Length");
    CHECK_FAILS(request_infer_read(&a, body, n, "99999", &r), ERR_USAGE, "Header-Content-Length");
    n = binary_body(body, header, "\1\0\0\0a\377\377\377\377bc", 11);
    CHECK_FAILS(request_infer_read(&a, body, n, header, &r), ERR_USAGE, "elements of its shape");
    n = binary_body(body, header, "\1\0\0\0a\0\0\0\0bc", 11);
    CHECK_FAILS(request_infer_read(&a, body, n, header, &r), ERR_USAGE, "not an id");
    arena_fini(&a);
}

TEST(request_infer_refuses) {
    bad("{}", "inputs: give a list");
    bad("{\"inputs\": [{\"name\": \"A\"}]}", "has no datatype");
    bad("{\"inputs\": [{\"name\": \"A\", \"datatype\": \"FP32\", \"shape\": [1]}]}", "send INT64");
    bad("{\"inputs\": [{\"name\": \"A\", \"datatype\": \"INT64\", \"shape\": [-1]}]}", "from 0");
    bad("{\"inputs\": [{\"name\": \"A\", \"datatype\": \"INT64\", \"shape\": [99999, 99999]}]}",
        "at most");
    bad("{\"inputs\": [{\"name\": \"A\", \"datatype\": \"INT64\", \"shape\": [1]}]}",
        "neither data nor");
    bad("{\"inputs\": [{\"name\": \"A\", \"datatype\": \"INT64\", \"shape\": [1], \"data\": [1]}]}",
        "there is no input A");
    bad("{\"inputs\": [" USERS ", " USERS "]}", "is there twice");
    bad("{\"inputs\": [{\"name\": \"USER_IDS\", \"datatype\": \"INT64\", \"shape\": [2], "
        "\"data\": [1]}]}",
        "the 2 elements of its shape");
    bad("{\"inputs\": [{\"name\": \"USER_IDS\", \"datatype\": \"INT64\", \"shape\": [1], "
        "\"data\": [\"a\"]}]}",
        "element 0 is not a number of type INT64");
    bad("{\"inputs\": [" USERS "], \"outputs\": [{\"name\": \"X\"}]}", "there is no output X");
    bad("{\"inputs\": [{\"name\": \"TOP_K\", \"datatype\": \"INT64\", \"shape\": [1], \"data\": "
        "[5]}]}",
        "USER_IDS is missing");
    bad("{\"inputs\": [" USERS ", {\"name\": \"TOKENS\", \"shape\": [1], \"datatype\": \"INT64\", "
        "\"data\": [1]}, {\"name\": \"TOKEN_LENGTHS\", \"shape\": [2], \"datatype\": \"INT64\", "
        "\"data\": [5, 6]}]}",
        "adds up to 11");
    bad("{\"inputs\": [" USERS ", {\"name\": \"TOKENS\", \"shape\": [2], \"datatype\": \"INT64\", "
        "\"data\": [1, 1]}, {\"name\": \"TOKEN_LENGTHS\", \"shape\": [2], \"datatype\": "
        "\"INT64\", \"data\": [1, 1]}, {\"name\": \"NUM_CANDIDATES\", \"shape\": [2], "
        "\"datatype\": \"INT64\", \"data\": [2, 1]}]}",
        "more candidates than items");
}

/* One element of a type, as JSON; true: it is read as it is. */
static bool takes(const char *type, const char *number) {
    char body[300];
    request_infer r;
    arena a;
    snprintf(body, sizeof body,
             "{\"inputs\": [{\"name\": \"USER_IDS\", \"shape\": [1], \"datatype\": \"%s\", "
             "\"data\": [%s]}]}",
             type, number);
    arena_init(&a, 1024);
    status st = request_infer_read(&a, body, strlen(body), NULL, &r);
    bool is_taken = st == OK && r.inputs[0].at[0].number == strtoll(number, NULL, 10);
    CHECK(is_taken || st == ERR_USAGE);
    arena_fini(&a);
    return is_taken;
}

TEST(request_infer_checks_the_range_of_numbers) {
    static const struct {
        const char *type, *least, *most, *below, *above;
    } of[] = {
        {"INT8", "-128", "127", "-129", "128"},
        {"UINT8", "0", "255", "-1", "256"},
        {"INT16", "-32768", "32767", "-32769", "32768"},
        {"UINT16", "0", "65535", "-1", "65536"},
        {"INT32", "-2147483648", "2147483647", "-2147483649", "2147483648"},
        {"UINT32", "0", "4294967295", "-1", "4294967296"},
        {"INT64", "-9223372036854775808", "9223372036854775807", "-9223372036854775809",
         "9223372036854775808"},
        {"UINT64", "0", "9223372036854775807", "-1", "18446744073709551615"},
    };
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        CHECK(takes(of[i].type, of[i].least) && takes(of[i].type, of[i].most));
        if (takes(of[i].type, of[i].below) || takes(of[i].type, of[i].above))
            FAIL_TEST("%s: a number out of range is taken", of[i].type);
        CHECK(!takes(of[i].type, "1.0") && !takes(of[i].type, "1e1"));
    }
    bad("{\"parameters\": {\"timeout\": -1}, \"inputs\": [" USERS "]}", "timeout: give");
    bad("{\"parameters\": {\"timeout\": 600000001}, \"inputs\": [" USERS "]}", "to 600000000");
    bad("{\"parameters\": {\"timeout\": \"5\"}, \"inputs\": [" USERS "]}", "timeout: give");
    bad("{\"parameters\": {\"priority\": 4294967296}, \"inputs\": [" USERS "]}", "priority: give");
    bad("{\"inputs\": [" USERS ", {\"name\": \"TOP_K\", \"shape\": [1], \"datatype\": \"INT64\", "
        "\"data\": [4294967297]}]}",
        "TOP_K");
}

/* A binary UINT64 that an int64_t does not hold is no negative id. */
TEST(request_infer_checks_binary_numbers) {
    static const char json[] =
        "{\"inputs\":[{\"name\":\"USER_IDS\",\"shape\":[1],\"datatype\":\"UINT64\","
        "\"parameters\":{\"binary_data_size\":8}}]}";
    static const uint64_t numbers[] = {INT64_MAX, (uint64_t)INT64_MAX + 1, UINT64_MAX};
    char body[sizeof json + 8], header[24];
    for (int i = 0; i < 3; i++) {
        request_infer r;
        arena a;
        memcpy(body, json, sizeof json - 1);
        memcpy(body + sizeof json - 1, &numbers[i], 8);
        snprintf(header, sizeof header, "%zu", sizeof json - 1);
        arena_init(&a, 1024);
        status st = request_infer_read(&a, body, sizeof json + 7, header, &r);
        CHECK_EQ(st, i == 0 ? OK : ERR_USAGE);
        if (st == OK) CHECK_EQ(r.inputs[0].at[0].number, INT64_MAX);
        snprintf(header, sizeof header, "+%zu", sizeof json - 1);
        CHECK(request_infer_read(&a, body, sizeof json + 7, header, &r) == ERR_USAGE);
        arena_fini(&a);
    }
}

/* The cost is known before anything is looked up: users times candidates, or times TOP_K. */
TEST(request_infer_limits_what_a_small_body_asks_for) {
    enum { MOST = INFER_MAX_SCORES / INFER_MAX_BATCH };
    for (int more = 0; more < 2; more++)
        for (int is_top_k = 0; is_top_k < 2; is_top_k++) {
            request_infer r;
            infer_asks q;
            buf body;
            arena a;
            buf_init(&body);
            arena_init(&a, 1 << 16);
            CHECK_OK(buf_printf(&body,
                                "{\"inputs\": [{\"name\": \"USER_IDS\", \"shape\": [%d], "
                                "\"datatype\": \"INT64\", \"data\": [0",
                                INFER_MAX_BATCH));
            for (int i = 1; i < INFER_MAX_BATCH; i++)
                CHECK_OK(buf_printf(&body, ", %d", i));
            CHECK_OK(buf_printf(&body,
                                "]}, {\"name\": \"%s\", \"shape\": [%d], \"datatype\": "
                                "\"INT64\", \"data\": [%d",
                                is_top_k ? "TOP_K" : "CANDIDATES", is_top_k ? 1 : MOST + more,
                                MOST + more));
            for (int i = 1; i < MOST + more && !is_top_k; i++)
                CHECK_OK(buf_text(&body, ", 7"));
            CHECK_OK(buf_text(&body, "]}]}"));
            status st = read_json(&a, buf_str(&body), &r, &q);
            CHECK_EQ(st, more ? ERR_USAGE : OK);
            if (more) CHECK_CONTAINS(status_reason(), "at most 131072");
            buf_fini(&body);
            arena_fini(&a);
        }
}

static status read_once(void *context) {
    request_infer r;
    infer_asks q;
    arena a;
    arena_init(&a, 64);
    status st = read_json(&a, context, &r, &q);
    arena_fini(&a);
    return st;
}

TEST(request_infer_reports_lack_of_memory) {
    CHECK(oom_at_each_allocation(read_once, "{\"inputs\": [" USERS "]}") > 2);
}
