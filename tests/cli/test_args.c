/* The reader of options, and how main uses its results. */
#include "cli/cli.h"
#include "test.h"

static bool is_json;
static const char *out_dir;
static int64_t n_users;
static double rate;
static arg_list sets;
static int colour;
static const char *const colours[] = {"red", "green", "blue", NULL};
static const arg_option options[] = {
    OPT_GROUP("Output"),
    OPT_TEXT("--out", &out_dir, "DIR", "Where the result goes."),
    OPT_FLAG("--json", &is_json, "One JSON object."),
    OPT_GROUP("Numbers"),
    OPT_INT("--users", &n_users, "N", 1, 1000, "How many users."),
    OPT_DOUBLE("--rate", &rate, "X", "How fast."),
    OPT_LIST("--set", &sets, "NAME=VALUE", "An override."),
    OPT_CHOICE("--colour", &colour, "COLOUR", colours, "Which."),
    {0},
};
static const arg_spec spec = {"hstu try A [B] [options]", "Tries things.", options, 1, 2, NULL};
static const char *positional[2];
static int n_positional;
static bool is_help;

AFTER_TESTS {
    args_fini();
}

/* Parses a command line given as one text, words parted by a bar. */
static status parse(const char *line) {
    static char text[512], *argv[32];
    int argc = 0;
    snprintf(text, sizeof text, "%s", line);
    for (char *rest = text, *word; (word = strsep(&rest, "|")) != NULL;)
        argv[argc++] = word;
    return args_parse(&spec, argc, argv, positional, &n_positional, &is_help);
}

TEST(args_reads_every_type) {
    CHECK_OK(parse("try|--out|d|one|--users=7|--rate|-2.5e3|--json|--set|a=1|two|--set=b=2=3"));
    CHECK(!is_help);
    CHECK_STR(out_dir, "d");
    CHECK_EQ(n_users, 7);
    CHECK(rate == -2500.0);
    CHECK(is_json);
    CHECK_EQ(sets.n_items, 2);
    CHECK_STR(sets.item[0], "a=1");
    CHECK_STR(sets.item[1], "b=2=3");
    CHECK_EQ(n_positional, 2);
    CHECK_STR(positional[0], "one");
    CHECK_STR(positional[1], "two");
}

TEST(args_chooses_by_name) {
    CHECK_OK(parse("try|a|--colour|blue"));
    CHECK_EQ(colour, 2);
    CHECK_OK(parse("try|a|--colour=red"));
    CHECK_EQ(colour, 0);
    CHECK_FAILS(parse("try|a|--colour|re"), ERR_USAGE, "--colour re: must be red, green or blue");
}

/* A number beside the value, which a write of the wrong width would reach. */
TEST(args_writes_no_more_than_the_value) {
    static const char *const switches[] = {"off", "on", NULL};
    struct {
        int32_t number, beside;
        bool is_on, is_beside;
    } x = {.beside = 77};
    const arg_option narrow[] = {
        OPT_INT("--number", &x.number, "N", -8, 8, "A number."),
        OPT_CHOICE("--switch", &x.is_on, "STATE", switches, "A switch."),
        {0},
    };
    const arg_spec own = {.usage = "hstu try", .summary = "Tries.", .options = narrow};
    char *argv[] = {"try", "--number=-3", "--switch=on"};
    CHECK_OK(args_parse(&own, 3, argv, NULL, NULL, &is_help));
    CHECK_EQ(x.number, -3);
    CHECK_EQ(x.beside, 77);
    CHECK(x.is_on);
    CHECK(!x.is_beside);
}

TEST(args_keeps_defaults_and_the_last_of_two) {
    out_dir = "here";
    n_users = 3;
    CHECK_OK(parse("try|a"));
    CHECK_STR(out_dir, "here");
    CHECK_EQ(n_users, 3);
    CHECK(!is_json);
    CHECK_OK(parse("try|a|--users|1|--users|1000"));
    CHECK_EQ(n_users, 1000);
}

TEST(args_double_dash_ends_the_options) {
    CHECK_OK(parse("try|--|--json|-x"));
    CHECK(!is_json);
    CHECK_EQ(n_positional, 2);
    CHECK_STR(positional[0], "--json");
    CHECK_STR(positional[1], "-x");
    CHECK_OK(parse("try|-"));
    CHECK_STR(positional[0], "-");
}

TEST(args_refuses_wrong_usage) {
    CHECK_FAILS(parse("try|a|--user|7"), ERR_USAGE, "unknown option '--user'; did you mean");
    CHECK_FAILS(parse("try|a|--user=7"), ERR_USAGE, "did you mean '--users'?");
    CHECK_FAILS(parse("try|a|--qqqqqqqqqqqq"), ERR_USAGE, "unknown option '--qqqqqqqqqqqq'");
    CHECK_FAILS(parse("try"), ERR_USAGE, "missing argument; usage: hstu try A [B] [options]");
    CHECK_FAILS(parse("try|a|b|c"), ERR_USAGE, "unexpected argument 'c'");
    CHECK_FAILS(parse("try|a|--out"), ERR_USAGE, "--out needs a value: --out DIR");
    CHECK_FAILS(parse("try|a|--out|--json"), ERR_USAGE, "but the option --json follows");
    CHECK_FAILS(parse("try|a|--out="), ERR_USAGE, "--out: the value is empty");
    CHECK_FAILS(parse("try|a|--json=yes"), ERR_USAGE, "--json takes no value");
    CHECK_FAILS(parse("try|a|-x"), ERR_USAGE, "unknown option '-x'");
}

TEST(args_refuses_wrong_numbers) {
    CHECK_FAILS(parse("try|a|--users|ten"), ERR_USAGE, "--users: 'ten' is not a whole number");
    CHECK_FAILS(parse("try|a|--users|7x"), ERR_USAGE, "'7x' is not a whole number");
    CHECK_FAILS(parse("try|a|--users| 7"), ERR_USAGE, "' 7' is not a whole number");
    CHECK_FAILS(parse("try|a|--users|0"), ERR_USAGE,
                "0 is out of range; it must be from 1 to 1000");
    CHECK_FAILS(parse("try|a|--users|99999999999999999999"), ERR_USAGE, "is out of range");
    CHECK_FAILS(parse("try|a|--rate|nan"), ERR_USAGE, "--rate: 'nan' is not a finite number");
    static const char *const none[] = {"1e999", "-inf", "x", "1.5x", "1,5", "1.5 ", " 1.5", "--"};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        char line[64], reason[64];
        snprintf(line, sizeof line, "try|a|--rate=%s", none[i]);
        snprintf(reason, sizeof reason, "'%s' is not a finite number", none[i]);
        CHECK_FAILS(parse(line), ERR_USAGE, reason);
    }
}

TEST(args_help_wins_over_errors) {
    CHECK_OK(parse("try|--nonsense|--help"));
    CHECK(is_help);
    CHECK_EQ(n_positional, 0);
    CHECK_FAILS(parse("try|a|b|--|--help"), ERR_USAGE, "unexpected argument");
}

/* Runs a shell command in which every @ stands for the path of the program; returns its output, cut
 * to a page. */
static const char *said(int code, const char *pattern) {
    static char page[8192];
    char line[1024] = "", *text;
    for (; *pattern != '\0'; pattern++) {
        size_t used = strlen(line);
        snprintf(line + used, sizeof line - used, "%.*s", *pattern == '@' ? 512 : 1,
                 *pattern == '@' ? test_program() : pattern);
    }
    int got = test_command(&text, "%s", line);
    snprintf(page, sizeof page, "%s", text);
    free(text);
    if (got != code) FAIL_TEST("'%s' gave %d, not %d: %s", line, got, code, page);
    return page;
}

TEST(main_shows_commands_and_version) {
    CHECK_CONTAINS(said(0, "@"), "Usage: hstu COMMAND [options]");
    CHECK_CONTAINS(said(0, "@ --help"), "\n  doctor     check this machine");
    CHECK(strncmp(said(0, "@ --version"), "hstu 0.", 7) == 0);
    CHECK_CONTAINS(said(0, "@ help doctor"), "Usage: hstu doctor [--json]");
}

TEST(main_help_wraps_at_the_terminal_width) {
    const char *line = said(0, "COLUMNS=40 @ doctor --help");
    for (const char *end; (end = strchr(line, '\n')) != NULL; line = end + 1)
        CHECK(end - line <= 40);
}

TEST(main_reports_wrong_usage) {
    CHECK_STR(said(2, "@ doctr"), "hstu: unknown command 'doctr'; did you mean 'doctor'?\n"
                                  "Try 'hstu --help'.\n");
    CHECK_STR(said(2, "@ doctor --jsno"),
              "hstu doctor: unknown option '--jsno'; did you mean '--json'?\n"
              "Try 'hstu doctor --help'.\n");
    CHECK_CONTAINS(said(2, "@ plan show 1 --x"), "Try 'hstu plan show --help'.\n");
    CHECK_CONTAINS(said(2, "@ bench masks --x"), "Try 'hstu bench masks --help'.\n");
    CHECK_CONTAINS(said(2, "@ bench dataset"), "Try 'hstu bench dataset --help'.\n");
    CHECK_CONTAINS(said(2, "@ mask sow"), "Try 'hstu mask --help'.\n");
    CHECK_CONTAINS(said(2, "HSTU_LOG=debug @ doctor --x"), "debug: usage error at src/cli/");
    CHECK_CONTAINS(said(2, "HSTU_LOG=loud @ doctor"), "HSTU_LOG: log level 'loud' is unknown");
    CHECK_CONTAINS(said(0, "@ --help"), "  HSTU_STALL_SECONDS=N ");
}

TEST(main_notices_output_that_does_not_arrive) {
    CHECK_STR(said(1, "(@ --help >/dev/full)"),
              "hstu: writing to stdout failed: No space left on device\n");
    CHECK_CONTAINS(said(1, "(@ --help >&-)"), "writing to stdout failed");
    /* The reader of the pipe is gone before the first word: no message, but a failing exit code. */
    CHECK_STR(said(0, "{ (sleep 0.3; @ --help; echo code $? >&2) | true; }"), "code 1\n");
}

TEST(main_refuses_a_small_stack) {
    CHECK_STR(said(1, "(ulimit -s 512; @ info x)"),
              "hstu: the stack is limited to 512 kB, but 1024 kB are needed; raise the limit with "
              "'ulimit -s 8192'\n");
    CHECK_CONTAINS(said(1, "(ulimit -s 1024; @ info x)"), "x: cannot be opened");
}
