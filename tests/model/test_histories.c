#include "model/histories.h"

#include "oom.h"
#include "test.h"

/* Ids 10, 20, 30; ratings; an event at second 1000. */
static const int64_t numbers[] = {0, 10, 20, 30};
static const uint64_t user_offsets[] = {0, 1};
static const uint32_t one_item[] = {1};
static const uint16_t one_action[] = {4};
static const int64_t one_time[] = {1000};
static seq_file stars(void) {
    return (seq_file){.path = "toy",
                      .n_users = 1,
                      .n_items = 3,
                      .n_events = 1,
                      .offsets = user_offsets,
                      .item = one_item,
                      .action = one_action,
                      .time = one_time,
                      .actions = ACTION_STARS,
                      .time_per_second = 1,
                      .item_id = numbers};
}

/* Strings, one with a comma; times in milliseconds, actions are codes. */
static const uint64_t text_offsets[] = {0, 0, 3, 4};
static seq_file texts(void) {
    seq_file s = stars();
    s.n_items = 2;
    s.actions = ACTION_CODE;
    s.time_per_second = 1000;
    s.has_text_items = true;
    s.item_text = (text_column){text_offsets, "a,bx", 3};
    return s;
}

static status read_text(given_history *g, const seq_file *s, const char *text) {
    return given_history_read(g, s, 0, text, strlen(text));
}

TEST(history_read_takes_lists) {
    static const char *const forms[] = {"10,30,10", "10\n30\n10\n", "10\r\n30\r\n10\r\n",
                                        "[10, \"30\", 10]", " [10,30,{\"item\":10}] "};
    seq_file s = stars();
    for (int i = 0; i < 5; i++) {
        given_history g;
        CHECK_OK(read_text(&g, &s, forms[i]));
        user_events u = given_history_events(&g, &s);
        CHECK(u.n == 3 && u.user == 1 && u.item[0] == 1 && u.item[1] == 3 && u.item[2] == 1);
        CHECK(!g.has_times && u.time[0] == 0 && u.time[2] == 120);
        CHECK_EQ(u.action[1], ACTION_UNKNOWN);
        given_history_fini(&g);
    }
}

/* Without times, a minute apart; in any ticks, and given times are in the same ticks. */
TEST(history_read_invents_times) {
    seq_file s = stars();
    given_history g;
    for (s.time_per_second = 1; s.time_per_second <= 1000000000; s.time_per_second *= 1000) {
        CHECK_OK(read_text(&g, &s, "10,20,30"));
        CHECK(!g.has_times && g.time[0] == 0 && g.time[2] == 120 * s.time_per_second);
        given_history_fini(&g);
        CHECK_OK(read_text(&g, &s, "[{\"item\":10,\"time\":1900000000}]"));
        CHECK_EQ(g.time[0], 1900000000 * s.time_per_second);
        given_history_fini(&g);
    }
    s.time_per_second = 1000000000;
    CHECK_FAILS(read_text(&g, &s, "[{\"item\":10,\"time\":9300000000}]"), ERR_USAGE,
                "seconds since 1970");
    given_history_fini(&g);
}

TEST(history_read_takes_events) {
    seq_file s = stars(), t = texts();
    given_history g;
    CHECK_OK(read_text(&g, &s,
                       "[{\"item\":20,\"time\":5,\"rating\":5},{\"time\":5,\"item\":10,"
                       "\"action\":1},{\"item\":\"30\",\"time\":1900000000}]"));
    CHECK(g.n == 3 && g.has_times && g.time[0] == 5 && g.time[2] == 1900000000);
    CHECK(g.action[0] == 4 && g.action[1] == 1 && g.action[2] == ACTION_UNKNOWN);
    given_history_fini(&g);
    CHECK_OK(read_text(&g, &t,
                       "[{\"item\":\"a,b\",\"time\":-1.5,\"action\":65535},"
                       "{\"item\":\"x\",\"time\":2}]"));
    CHECK(g.item[0] == 1 && g.item[1] == 2 && g.time[0] == -1500 && g.time[1] == 2000);
    CHECK_EQ(g.action[0], 65535);
    given_history_fini(&g);
}

TEST(history_read_names_what_is_wrong) {
    struct {
        const char *text, *reason;
    } cases[] = {
        {"", "event 1 is empty"},
        {"10,,20", "event 2 is empty"},
        {"10,20,", "event 3 is empty"},
        {"99, 98", "no item 99,  98"},
        {"[]", "no events"},
        {"[10", "begins like JSON"},
        {"[[10]]", "event 1: an item's id is"},
        {"[10, 1.5]", "event 2: an item's id is"},
        {"[10, null]", "event 2"},
        {"[{\"time\": 3}]", "no \"item\""},
        {"[{\"item\":10,\"when\":3}]", "'when' is not a member"},
        {"[{\"item\":10,\"time\":\"noon\"}]", "seconds since 1970"},
        {"[{\"item\":10,\"time\":1e300}]", "seconds since 1970"},
        {"[{\"item\":10,\"action\":5}]", "from 0 to 4"},
        {"[{\"item\":10,\"action\":-1}]", "from 0 to 4"},
        {"[{\"item\":10,\"rating\":0}]", "from 1 to 5"},
        {"[{\"item\":10,\"rating\":\"good\"}]", "from 1 to 5"},
        {"[{\"item\":10,\"time\":5},{\"item\":20,\"time\":4}]", "event 2 is earlier"},
        {"[{\"item\":10,\"time\":5},20]", "event 2 has not a time"},
        {"[10,{\"item\":20,\"time\":4}]", "for all events or for none"},
    };
    seq_file s = stars(), t = texts();
    given_history g;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        CHECK_FAILS(read_text(&g, &s, cases[i].text), ERR_USAGE, cases[i].reason);
        given_history_fini(&g);
    }
    CHECK_FAILS(read_text(&g, &t, "[{\"item\":\"x\",\"rating\":3}]"), ERR_USAGE, "no ratings");
    given_history_fini(&g);
    /* Of a list of ids, the unknown ones are named. */
    CHECK_OK(given_history_read(&g, &s, -1, "7,10,[,30", 9));
    CHECK(g.n == 2 && g.item[0] == 1 && g.item[1] == 3);
    CHECK_STR(g.unknown, "7, [");
    given_history_fini(&g);
    /* So are those of a history; the others stay. */
    CHECK_OK(given_history_read(&g, &s, 0, "10\0,20,99", 9));
    CHECK(g.n == 1 && g.item[0] == 2);
    CHECK_STR(g.unknown, "10?, 99");
    given_history_fini(&g);
    CHECK_OK(
        read_text(&g, &s, "[{\"item\":10,\"time\":5},{\"item\":99},{\"item\":20,\"time\":6}]"));
    CHECK(g.n == 2 && g.item[1] == 2 && g.time[1] == 6);
    CHECK_STR(g.unknown, "99");
    given_history_fini(&g);
    CHECK_FAILS(given_history_read(&g, &t, 7, "[{\"item\":\"x\",\"action\":7}]", 25), ERR_USAGE,
                "from 0 to 6");
    given_history_fini(&g);
}

static status read_again(void *ctx) {
    seq_file s = stars();
    given_history g;
    (void)ctx;
    status st = read_text(&g, &s, "[10,20,30]");
    given_history_fini(&g);
    return st;
}

TEST(history_read_out_of_memory) {
    CHECK(oom_at_each_allocation(read_again, NULL) >= 4);
}
