#include "serve/http/request.h"

#include "base/text.h"
#include "oom.h"
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
    CHECK(r.ask.user.number == 7 && r.ask.top_k == 10 && !r.ask.keeps_seen && !r.ask.has_history);
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
    CHECK(r.ask.top_k == 3 && r.ask.keeps_seen && r.ask.n_allow == 2 && r.ask.n_deny == 0);
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
}

TEST(request_refuses_with_what_to_do) {
    reader r = request_recommend_read;
    bad(r, "", "send a JSON object");
    bad(r, "{", "not JSON");
    bad(r, "[1]", "not a JSON object");
    bad(r, "{}", "Give \"user\"");
    bad(r, "{\"usr\": 7}", "'usr' is not a member");
    bad(r, "{\"user\": 1.5}", "whole number or a string");
    bad(r, "{\"user\": \"\"}", "1 to 255 bytes");
    bad(r, "{\"user\": 7, \"top_k\": 0}", "from 1 to 1024");
    bad(r, "{\"user\": 7, \"top_k\": \"3\"}", "top_k: give a whole number");
    bad(r, "{\"user\": 7, \"history\": [{\"time\": 3}]}", "without \"item\"");
    bad(r, "{\"user\": 7, \"history\": [{\"item\": 3, \"when\": 3}]}", "'when' is not a member");
    bad(r, "{\"user\": 7, \"history\": [{\"item\": 3, \"time\": \"now\"}]}", "seconds since 1970");
    bad(r, "{\"user\": 7, \"history\": [{\"item\": 3, \"action\": 65536}]}", "from 0 to 65535");
    bad(r, "{\"user\": 7, \"candidates\": [3]}", "/v1/rank");
    bad(r, "{\"user\": 7, \"allow\": []}", "allows nothing");
    bad(r, "{\"history\": [1], \"events\": [{\"item\": 3}]}", "\"history\"");
    bad(r, "{\"user\": 7, \"exclude_seen\": 1}", "true or false");
    bad(r, "{\"user\": 7, \"user\": 8}", "not JSON");
}

TEST(request_depth_is_limited) {
    char body[600] = "{\"user\": 7, \"history\": ";
    memset(body + strlen(body), '[', 200);
    bad(request_recommend_read, body, "not JSON");
}

/* Each question of an explanation has a copy of the history. */
TEST(request_limits_what_is_explained) {
    for (int more = 0; more < 2; more++) {
        arena a;
        buf body;
        buf_init(&body);
        CHECK_OK(buf_text(&body, "{\"explain\": true, \"history\": [1"));
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
        {"{\"user\": 7, \"events\": {}}", "give a list of events"},
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
