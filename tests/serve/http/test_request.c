
#include <sys/mman.h>
#include <unistd.h>

#include "base/text.h"
#include "oom.h"
#include "serve/http/request.h"
#include "test.h"

typedef status (*reader)(arena *a, const char *body, size_t n, request_ask *out);

/* Reads a body that must be right; the arena must be freed. */
static request_ask good(arena *a, reader read, const char *body) {
    request_ask r;
    arena_init(a, 1024);
    CHECK_OK(read(a, body, strlen(body), &r));
    return r;
}

static void bad(reader read, const char *body, const char *reason) {
    request_ask r;
    arena a;
    arena_init(&a, 1024);
    CHECK_FAILS(read(&a, body, strlen(body), &r), ERR_USAGE, reason);
    arena_fini(&a);
}

TEST(request_recommend_has_defaults) {
    arena a;
    request_ask r = good(&a, request_recommend_read, "{\"user\": 7}");
    CHECK(r.ask.task == ENGINE_RECOMMEND && r.ask.has_user && r.ask.user.text == NULL);
    CHECK(r.ask.user.number == 7 && r.ask.top_k == 10 && r.ask.exclude_seen == NULL &&
          !r.ask.has_history);
    CHECK_STR(r.model, "");
    arena_fini(&a);
}

TEST(request_recommend_reads_all_members) {
    arena a;
    request_ask r =
        good(&a, request_recommend_read,
             "{\"history\": [3, \"x\", {\"item\": 5, \"time\": 1900000000.25, \"action\": 2, "
             "\"id\": 9}], "
             "\"top_k\": 3, \"exclude_seen\": false, \"allow\": [1, \"b\"], \"deny\": [], "
             "\"deadline_ms\": 50, \"priority\": -1, \"explain\": true, \"vector\": true, "
             "\"model\": \"demo\", \"tasks\": [\"score\"], \"what_if\": [{\"item\": 8}]}");
    CHECK(r.ask.has_history && r.ask.n_history == 3 && !r.ask.has_user);
    CHECK(r.ask.history[0].item.number == 3 && !r.ask.history[0].has_time);
    CHECK(r.ask.history[1].item.n == 1 && r.ask.history[1].item.text[0] == 'x');
    const engine_event *e = &r.ask.history[2];
    CHECK(e->has_time && e->time == 1900000000 && e->time_ns == 250000000 && e->action == 2);
    CHECK(e->id.n == 1 && e->id.text[0] == '9');
    CHECK(r.ask.top_k == 3 && strcmp(r.ask.exclude_seen, "none") == 0);
    CHECK(json_member(r.ask.rules, "allow")->n_children == 2);
    CHECK(r.ask.deadline_ns == 50000000 && r.ask.priority == -1 && r.wants_why);
    CHECK(r.ask.wants_vector && r.n_tasks == 1 && r.ask.n_extra == 1);
    CHECK_STR(r.model, "demo");
    arena_fini(&a);
}

TEST(request_rank_wants_candidates) {
    arena a;
    request_ask r = good(&a, request_rank_read, "{\"user\": \"u\", \"candidates\": [1, \"2\", 3]}");
    CHECK(r.ask.task == ENGINE_RANK && r.ask.n_candidates == 3 && r.ask.top_k == 3);
    CHECK(r.ask.keeps_seen && r.ask.user.n == 1);
    arena_fini(&a);
    bad(request_rank_read, "{\"user\": 1}", "\"candidates\" is missing");
    bad(request_rank_read, "{\"user\": 1, \"candidates\": []}", "or empty");
    bad(request_rank_read, "{\"user\": 1, \"candidates\": [1], \"deny\": [2]}", "/v1/recommend");
    bad(request_rank_read, "{\"user\": 1, \"candidates\": [1], \"pin\": [1]}", "/v1/recommend");
}

TEST(request_refuses_with_what_to_do) {
    reader r = request_recommend_read;
    bad(r, "", "send a JSON object");
    bad(r, "{", "not JSON");
    bad(r, "[1]", "not a JSON object");
    bad(r, "{}", "\"user\" is missing");
    bad(r, "{\"usr\": 7}", "'usr' is not a member");
    bad(r, "{\"user\": 1.5}", "integer or a string");
    bad(r, "{\"user\": \"\"}", "1 to 255 bytes");
    bad(r, "{\"user\": 7, \"top_k\": 0}", "from 1 to 1024");
    bad(r, "{\"user\": 7, \"top_k\": \"3\"}", "top_k: expected an integer");
    bad(r, "{\"user\": 7, \"history\": [{\"time\": 3}]}", "\"item\" is missing");
    bad(r, "{\"user\": 7, \"history\": [{\"item\": 3, \"when\": 3}]}", "'when' is not a member");
    bad(r, "{\"user\": 7, \"history\": [{\"item\": 3, \"time\": \"now\"}]}", "seconds since 1970");
    bad(r, "{\"user\": 7, \"history\": [{\"item\": 3, \"action\": 65536}]}", "from 0 to 65535");
    bad(r, "{\"user\": 7, \"candidates\": [3]}", "/v1/rank");
    bad(r, "{\"history\": [1], \"events\": [{\"item\": 3}]}", "\"history\"");
    bad(r, "{\"user\": 7, \"exclude_seen\": 1}", "true or false");
    bad(r, "{\"user\": 7, \"exclude_seen\": \"\"}", "actions as in \"purchase\"");
    bad(r, "{\"user\": 7, \"user\": 8}", "not JSON");
}

TEST(request_depth_is_limited) {
    char body[600] = "{\"user\": 7, \"history\": ";
    memset(body + strlen(body), '[', 200);
    bad(request_recommend_read, body, "not JSON");
}

/* Each question of an explanation has a copy of the history. */
/* Of a history that is sent, and of events that are added to the user's. */
TEST(request_limits_what_is_explained) {
    for (int i_case = 0; i_case < 4; i_case++) {
        int more = i_case % 2;
        arena a;
        buf body = {0};
        CHECK_OK(buf_printf(&body, "{\"explain\": true, %s: [1",
                            i_case < 2 ? "\"history\"" : "\"user\": 7, \"events\""));
        for (int i = 1; i < REQUEST_MAX_EXPLAINED + more; i++)
            CHECK_OK(buf_text(&body, ",1"));
        CHECK_OK(buf_text(&body, "]}"));
        if (more)
            bad(request_recommend_read, buf_str(&body), "explain: at most 16384 events");
        else {
            good(&a, request_recommend_read, buf_str(&body));
            arena_fini(&a);
        }
        buf_fini(&body);
    }
}

TEST(request_rerank_reads_what_clients_send) {
    arena a;
    request_ask r =
        good(&a, request_rerank_read,
             "{\"model\": \"m\", \"query\": \"7\", \"documents\": [\"1\", 2, {\"text\": "
             "\"3\"}], \"top_n\": 2, \"truncate_prompt_tokens\": 5}");
    CHECK(r.ask.has_user && r.ask.user.text[0] == '7' && r.ask.n_candidates == 3);
    CHECK(r.ask.top_k == 2 && r.ask.candidates[1].number == 2 && r.ask.candidates[2].n == 1);
    arena_fini(&a);
    bad(request_rerank_read, "{\"query\": \"7\", \"documents\": []}", "\"documents\" is missing");
    bad(request_rerank_read, "{\"documents\": [1]}", "\"query\" is missing");
}

static request_events read_events(arena *a, const char *body) {
    request_events r;
    arena_init(a, 1024);
    CHECK_OK(request_events_read(a, body, strlen(body), &r));
    return r;
}

TEST(request_events_of_one_and_of_many) {
    arena a;
    request_events r = read_events(
        &a, "{\"user\": 7, \"events\": [{\"item\": 12, \"time\": 1900000000, \"action\": 1}]}");
    CHECK(r.n_users == 1 && !r.is_list && r.users[0].n_events == 1);
    CHECK(r.users[0].events[0].action == 1 && r.users[0].events[0].id.n == 0);
    arena_fini(&a);
    r = read_events(&a, "{\"users\": [{\"user\": 7, \"events\": [1]}, {\"user\": \"a\", "
                        "\"events\": [2, 3]}]}");
    CHECK(r.n_users == 2 && r.is_list && r.users[1].n_events == 2);
    arena_fini(&a);
}

TEST(request_events_refuses) {
    static const char *const bodies[][2] = {
        {"{\"user\": 7}", "\"events\" is missing"},
        {"{\"events\": [1]}", "\"user\" is missing"},
        {"{\"user\": 7, \"events\": []}", "missing or empty"},
        {"{\"user\": 7, \"events\": {}}", "expected a list of events"},
        {"{\"user\": 7, \"events\": [{\"item\": 1, \"rating\": 0}]}",
         "events[0]: rating: expected"},
        {"{\"user\": 7, \"events\": [{\"item\": 1, \"rating\": 5.5}]}", "from 0.5 to 5"},
        {"{\"user\": 7, \"events\": [{\"item\": 1, \"rating\": 4.2}]}", "from 0.5 to 5"},
        {"{\"user\": 7, \"events\": [{\"item\": 1, \"rating\": \"4\"}]}", "from 0.5 to 5"},
        {"{\"user\": 7, \"events\": [{\"item\": 1, \"rating\": 4, \"action\": 3}]}",
         "exclude each other"},
        {"{\"users\": []}", "from 1 to"},
        {"{\"users\": [1]}", "each is an object"},
        {"{\"users\": [{\"user\": 1, \"events\": [1]}], \"user\": 2}", "nothing beside it"},
        {"{\"users\": [{\"user\": 1, \"events\": [1]}, {\"user\": 2}]}", "users[1]"},
    };
    for (size_t i = 0; i < sizeof bodies / sizeof bodies[0]; i++) {
        request_events r;
        arena a;
        arena_init(&a, 1024);
        CHECK_FAILS(request_events_read(&a, bodies[i][0], strlen(bodies[i][0]), &r), ERR_USAGE,
                    bodies[i][1]);
        arena_fini(&a);
    }
}

static status read_once(void *context) {
    request_ask r;
    request_events e;
    arena a;
    const char *body = context, *events = "{\"user\": 7, \"events\": [{\"item\": 3, \"id\": 5}]}";
    arena_init(&a, 64);
    status st = request_rank_read(&a, body, strlen(body), &r);
    if (st == OK) st = request_events_read(&a, events, strlen(events), &e);
    arena_fini(&a);
    return st;
}

TEST(request_reports_lack_of_memory) {
    CHECK(oom_at_each_allocation(read_once, "{\"user\": 7, \"candidates\": [1, 2, 3], "
                                            "\"history\": [1, 2, {\"item\": 3}]}") > 3);
}

TEST(request_reads_context) {
    static const char good[] = "{\"user\": 1, \"context\": {\"country\": \"DE\", \"age\": 25}}";
    static const char bad[] = "{\"user\": 1, \"context\": [1]}";
    arena a;
    request_ask r;
    arena_init(&a, 4096);
    CHECK_OK(request_recommend_read(&a, good, strlen(good), &r));
    CHECK(r.ask.n_context == 2 && strcmp(r.ask.context[0].name, "country") == 0);
    CHECK(r.ask.context[0].value.n == 2 && r.ask.context[1].value.number == 25);
    CHECK_FAILS(request_recommend_read(&a, bad, strlen(bad), &r), ERR_USAGE, "context");
    arena_fini(&a);
}

#define USERS "{\"name\": \"USER_IDS\", \"shape\": [2], \"datatype\": \"INT64\", \"data\": [1, 2]}"

static status read_json(arena *a, const char *body, request_infer *r) {
    return request_infer_read(a, body, strlen(body), NULL, r);
}

static request_infer good_infer(arena *a, const char *body) {
    request_infer r;
    arena_init(a, 1024);
    CHECK_OK(read_json(a, body, &r));
    return r;
}

static void bad_infer(const char *body, const char *reason) {
    request_infer r;
    arena a;
    arena_init(&a, 1024);
    CHECK_FAILS(read_json(&a, body, &r), ERR_USAGE, reason);
    arena_fini(&a);
}

TEST(request_infer_asks_for_the_best) {
    arena a;
    request_infer q = good_infer(
        &a, "{\"id\": \"x\", \"parameters\": {\"timeout\": 5000, \"binary_data_output\": true}, "
            "\"inputs\": [" USERS ", {\"name\": \"TOP_K\", \"shape\": [1], \"datatype\": "
            "\"INT32\", \"data\": [3]}], \"outputs\": [{\"name\": \"OUTPUT\", \"parameters\": "
            "{\"binary_data\": false}}]}");
    CHECK(q.n == 2 && !q.has_candidates && q.top_k == 3 && q.ask[1].user.number == 2);
    CHECK(q.ask[0].task == ENGINE_RECOMMEND && q.ask[0].top_k == 3);
    CHECK_EQ(q.ask[0].deadline_ns, 5000000);
    CHECK_STR(q.id, "x");
    CHECK(q.out[INFER_SCORES].is_wanted && !q.out[INFER_SCORES].is_binary);
    CHECK(!q.out[INFER_ITEMS].is_wanted);
    arena_fini(&a);
}

TEST(request_infer_takes_candidates_flat_and_nested) {
    static const char *const data[] = {"[[5, 6, 7], [8, 9, 10]]", "[5, 6, 7, 8, 9, 10]"};
    for (int i = 0; i < 2; i++) {
        char body[512];
        arena a;
        snprintf(body, sizeof body,
                 "{\"inputs\": [" USERS ", {\"name\": \"CANDIDATES\", \"shape\": [2, 3], "
                 "\"datatype\": \"INT64\", \"data\": %s}]}",
                 data[i]);
        request_infer q = good_infer(&a, body);
        CHECK(q.has_candidates && q.ask[1].n_candidates == 3);
        CHECK(q.ask[1].candidates[2].number == 10 && q.ask[1].task == ENGINE_RANK);
        arena_fini(&a);
    }
}

/* As NVIDIA's client sends it: items of all users, then actions, the last items candidates. */
TEST(request_infer_takes_tokens) {
    arena a;
    request_infer q = good_infer(
        &a,
        "{\"inputs\": [" USERS ", {\"name\": \"TOKENS\", \"shape\": [10], \"datatype\": \"INT64\", "
        "\"data\": [11, 12, 13, 14, 21, 22, 1, 2, 3, 4]}, {\"name\": \"TOKEN_LENGTHS\", "
        "\"shape\": [4], \"datatype\": \"INT64\", \"data\": [4, 2, 3, 1]}, {\"name\": "
        "\"NUM_CANDIDATES\", \"shape\": [2], \"datatype\": \"INT64\", \"data\": [1, 1]}]}");
    CHECK(q.n == 2 && q.has_candidates);
    CHECK(q.ask[0].n_history == 3 && q.ask[0].n_candidates == 1);
    CHECK(q.ask[0].candidates[0].number == 14 && q.ask[0].history[2].item.number == 13);
    CHECK(q.ask[0].history[2].action == 3 && !q.ask[0].history[2].has_time);
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
    arena a;
    size_t n = binary_body(body, header, users, 11);
    arena_init(&a, 1024);
    CHECK_OK(request_infer_read(&a, body, n, header, &r));
    CHECK(r.n == 2 && r.top_k == 2 && r.ask[1].user.n == 2 && r.ask[1].user.text[1] == 'c');
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

/* The last action ends where the body does, and the body where the memory does. */
TEST(request_infer_reads_texts_to_their_ends) {
    static const char json[] =
        "{\"inputs\":[{\"name\":\"USER_IDS\",\"shape\":[1],\"datatype\":\"INT64\",\"data\":[5]},"
        "{\"name\":\"TOKEN_LENGTHS\",\"shape\":[2],\"datatype\":\"INT64\",\"data\":[1,1]},"
        "{\"name\":\"TOKENS\",\"shape\":[2],\"datatype\":\"BYTES\","
        "\"parameters\":{\"binary_data_size\":10}}]}";
    size_t page = (size_t)sysconf(_SC_PAGESIZE), n_json = sizeof json - 1, n = n_json + 10;
    char *two = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *body = two + page - n, header[24];
    request_infer r;
    arena a;
    CHECK(two != MAP_FAILED && mprotect(two + page, page, PROT_NONE) == 0);
    memcpy(body, json, n_json);
    memcpy(body + n_json,
           "\1\0\0\0a\1\0\0\0"
           "7",
           10);
    sprintf(header, "%zu", n_json);
    arena_init(&a, 1024);
    CHECK_OK(request_infer_read(&a, body, n, header, &r));
    CHECK(r.n == 1 && r.ask[0].n_history == 1 && r.ask[0].history[0].action == 7);
    arena_fini(&a);
    munmap(two, 2 * page);
}

TEST(request_infer_refuses) {
    bad_infer("{}", "inputs: expected a list");
    bad_infer("{\"inputs\": [{\"name\": \"A\"}]}", "has no datatype");
    bad_infer("{\"inputs\": [{\"name\": \"A\", \"datatype\": \"FP32\", \"shape\": [1]}]}",
              "send INT64");
    bad_infer("{\"inputs\": [{\"name\": \"A\", \"datatype\": \"INT64\", \"shape\": [-1]}]}",
              "from 0");
    bad_infer(
        "{\"inputs\": [{\"name\": \"A\", \"datatype\": \"INT64\", \"shape\": [99999, 99999]}]}",
        "at most");
    bad_infer("{\"inputs\": [{\"name\": \"A\", \"datatype\": \"INT64\", \"shape\": [1]}]}",
              "neither data nor");
    bad_infer(
        "{\"inputs\": [{\"name\": \"A\", \"datatype\": \"INT64\", \"shape\": [1], \"data\": [1]}]}",
        "there is no input A");
    bad_infer("{\"inputs\": [" USERS ", " USERS "]}", "is given twice");
    bad_infer("{\"inputs\": [{\"name\": \"USER_IDS\", \"datatype\": \"INT64\", \"shape\": [2], "
              "\"data\": [1]}]}",
              "the 2 elements of its shape");
    bad_infer("{\"inputs\": [{\"name\": \"USER_IDS\", \"datatype\": \"INT64\", \"shape\": [1], "
              "\"data\": [\"a\"]}]}",
              "element 0 is not a number of type INT64");
    bad_infer("{\"inputs\": [" USERS "], \"outputs\": [{\"name\": \"X\"}]}",
              "there is no output X");
    bad_infer("{\"inputs\": [" USERS "], \"parameters\": {\"filtr\": \"x\"}}",
              "parameters: 'filtr' is not a member of this object; it has timeout, priority, "
              "binary_data_output, filter, allow, deny, boost, max_per, pin");
    bad_infer("{\"inputs\": [" USERS "], \"parameters\": {\"binary_data_output\": 1}}",
              "expected true or false");
    bad_infer("{\"inputs\": [" USERS "], \"parameters\": [1]}", "parameters is an object");
    bad_infer("{\"inputs\": [" USERS "], \"outputs\": [{\"name\": \"OUTPUT\", \"parameters\": "
              "{\"classification\": 2}}]}",
              "parameters: 'classification'");
    bad_infer(
        "{\"inputs\": [{\"name\": \"A\", \"datatype\": \"INT64\", \"shape\": [1], \"data\": [1], "
        "\"parameters\": {\"content_type\": \"np\"}}]}",
        "parameters: 'content_type'");
    bad_infer(
        "{\"inputs\": [{\"name\": \"TOP_K\", \"datatype\": \"INT64\", \"shape\": [1], \"data\": "
        "[5]}]}",
        "USER_IDS is missing");
    bad_infer(
        "{\"inputs\": [" USERS ", {\"name\": \"TOKENS\", \"shape\": [1], \"datatype\": \"INT64\", "
        "\"data\": [1]}, {\"name\": \"TOKEN_LENGTHS\", \"shape\": [2], \"datatype\": \"INT64\", "
        "\"data\": [5, 6]}]}",
        "adds up to 11");
    bad_infer("{\"inputs\": [" USERS
              ", {\"name\": \"TOKENS\", \"shape\": [2], \"datatype\": \"INT64\", "
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
    bool is_taken = st == OK && r.ask[0].user.number == strtoll(number, NULL, 10);
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
    bad_infer("{\"parameters\": {\"timeout\": -1}, \"inputs\": [" USERS "]}", "timeout: expected");
    bad_infer("{\"parameters\": {\"timeout\": 600000001}, \"inputs\": [" USERS "]}",
              "to 600000000");
    bad_infer("{\"parameters\": {\"timeout\": \"5\"}, \"inputs\": [" USERS "]}",
              "timeout: expected");
    bad_infer("{\"parameters\": {\"priority\": 4294967296}, \"inputs\": [" USERS "]}",
              "priority: expected");
    bad_infer("{\"inputs\": [" USERS
              ", {\"name\": \"TOP_K\", \"shape\": [1], \"datatype\": \"INT64\", "
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
        if (st == OK) CHECK_EQ(r.ask[0].user.number, INT64_MAX);
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
            buf body = {0};
            arena a;
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
            status st = read_json(&a, buf_str(&body), &r);
            CHECK_EQ(st, more ? ERR_USAGE : OK);
            if (more) CHECK_CONTAINS(status_reason(), "at most 131072");
            buf_fini(&body);
            arena_fini(&a);
        }
}

static status read_infer_once(void *context) {
    request_infer r;
    arena a;
    arena_init(&a, 64);
    status st = read_json(&a, context, &r);
    arena_fini(&a);
    return st;
}

TEST(request_infer_reports_lack_of_memory) {
    CHECK(oom_at_each_allocation(read_infer_once, "{\"inputs\": [" USERS "]}") > 2);
}
