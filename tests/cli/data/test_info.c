
#include "data/build/builder.h"
#include "embed/snapshot.h"
#include "format/json.h"
#include "test.h"

/* Columns a line takes on a terminal: bytes that start a character. */
static int columns(const char *line, size_t n) {
    int count = 0;
    for (size_t i = 0; i < n; i++)
        count += ((unsigned char)line[i] & 0xc0) != 0x80;
    return count;
}

static void check_width(const char *text) {
    for (const char *end; (end = strchr(text, '\n')) != NULL; text = end + 1)
        if (columns(text, (size_t)(end - text)) > 80)
            FAIL_TEST("wider than 80 columns: %.*s", (int)(end - text), text);
}

static void check_member(const json_value *root, const char *key, int64_t wanted) {
    int64_t value;
    CHECK_OK(json_member_int(root, key, &value));
    if (value != wanted)
        FAIL_TEST("%s is %lld, not %lld", key, (long long)value, (long long)wanted);
}

static const json_value *parse(arena *a, const char *text) {
    const json_value *root;
    size_t n = strlen(text);
    CHECK(n > 0 && strchr(text, '\n') == text + n - 1); /* one object on one line */
    CHECK_OK(json_parse(a, "stdout", text, n, &root));
    return root;
}

/* Three users, four known items of which three were seen; a title that would drive a terminal. */
static void build_small(action_kind actions, int64_t time_per_second) {
    builder *b;
    builder_stats stats;
    char long_title[400];
    builder_options options = {.actions = actions, .time_per_second = time_per_second};
    CHECK_OK(builder_create(&b, &options, NULL));
    builder_sink *sink = builder_get_sink(b, 0);
    CHECK_OK(sink_begin_block(sink, 0, 100));
    for (int64_t i = 0; i < 12; i++)
        CHECK_OK(sink_add(sink,
                          i % 5 == 0   ? 7
                          : i % 2 == 0 ? 8
                                       : 9,
                          10 + i % 3, (uint16_t)(i % 5),
                          (978300000 + i * 86400) * time_per_second));
    CHECK_OK(sink_end_block(sink));
    memset(long_title, 'x', sizeof long_title);
    CHECK_OK(builder_add_item(b, "10", 2, "Caf\xc3\xa9 \033[31mred", 14));
    CHECK_OK(builder_add_item(b, "11", 2, long_title, sizeof long_title));
    CHECK_OK(builder_add_item(b, "13", 2, "Never seen", 10));
    CHECK_OK(
        builder_write(b, test_folder(), "{\"name\":\"small\",\"n\":[1,2.5,null,true]}", &stats));
    builder_destroy(b);
}

TEST(info_json_has_the_promised_keys) {
    char *text;
    arena a;
    arena_init(&a, 4096);
    build_small(ACTION_STARS, 1);
    CHECK_EQ(test_command(&text, "%s info %s --json", test_program(), test_folder()), 0);
    const json_value *root = parse(&a, text);
    check_member(root, "users", 3);
    check_member(root, "items", 3);
    check_member(root, "catalogue", 4);
    check_member(root, "events", 12);
    check_member(root, "max_len", 5);
    check_member(root, "item_vector_dim", 0);
    CHECK_EQ(json_member(root, "item_features")->n_children, 0);
    check_member(root, "first_time", 978300000);
    check_member(root, "last_time", 978300000 + 11 * 86400);
    check_member(json_member(json_member(root, "actions"), "counts"), "1", 3);
    CHECK_EQ(json_member(root, "popular")->n_children, 3);
    CHECK_STR(json_member(json_member(root, "source"), "name")->string, "small");
    free(text);
    arena_fini(&a);
}

TEST(info_text_is_safe_and_fits) {
    char *text;
    build_small(ACTION_STARS, 1);
    CHECK_EQ(test_command(&text, "%s info %s", test_program(), test_folder()), 0);
    CHECK(strchr(text, '\033') == NULL);
    CHECK_CONTAINS(text, "Caf\xc3\xa9 \\x1b[31mred");
    CHECK_CONTAINS(text, "xxx\xe2\x80\xa6");
    CHECK_CONTAINS(text, "2000-12-31   to 2001-01-11, 11 days");
    check_width(text);
    free(text);
}

/* Leaves ASCII, and one of several spaces. */
static void strip_bars(char *text) {
    char *out = text;
    for (const char *at = text; *at != '\0'; at++)
        if ((*at & 0x80) == 0 && !(*at == ' ' && out > text && out[-1] == ' ')) *out++ = *at;
    *out = '\0';
}

/* The full blocks in line n after a text. */
static int bar_after(const char *text, const char *head, int n) {
    const char *at = strstr(text, head);
    int length = 0;
    CHECK(at != NULL);
    for (; n > 0; n--)
        at = strchr(at, '\n') + 1;
    for (const char *end = strchr(at, '\n'); at < end; at++)
        length += strncmp(at, "\u2588", 3) == 0;
    return length;
}

TEST(info_explains_every_kind_of_action) {
    static const struct {
        action_kind kind;
        const char *text;
    } kinds[] = {{ACTION_STARS,
                  "Ratings\n\n 1 star 3 25.0 %\n 2 stars 3 25.0 %\n 3 stars 2 16.7 %\n"
                  " 4 stars 2 16.7 %\n 5 stars 2 16.7 %\n\nMost"},
                 {ACTION_HALF_STARS, "Ratings\n\n 0.5 stars 3 25.0 %\n 1 star 3 25.0 %\n"
                                     " 1.5 stars 2 16.7 %\n 2 stars 2 16.7 %\n 2.5 stars 2 16.7 "
                                     "%\n 3 stars 0 0.0 %\n 3.5 stars 0 0.0 %\n 4 stars 0 0.0 %\n"
                                     " 4.5 stars 0 0.0 %\n 5 stars 0 0.0 %\n\nMost"},
                 {ACTION_BITS, "several)\n\n click 5 41.7 %\n like 4 33.3 %\n follow 2 16.7 %\n "
                               "comment 0 0.0 %\n"},
                 {ACTION_CODE, "Action codes, most frequent first\n\n 0 3 25.0 %\n 1 3 25.0 %\n "
                               "2 2 16.7 %\n 3 2 16.7 %\n 4 2 16.7 %\n\nMost"}};
    for (int i = 0; i < 4; i++) {
        char *text;
        build_small(kinds[i].kind, 1000);
        CHECK_EQ(test_command(&text, "%s info %s", test_program(), test_folder()), 0);
        check_width(text);
        int two = bar_after(text, "Events of a user\n", 2); /* the longest, of two users */
        CHECK(two > 10 && bar_after(text, "Events of a user\n", 3) == two / 2);
        strip_bars(text);
        CHECK_CONTAINS(text, kinds[i].text);
        CHECK_CONTAINS(text, " Users 3\n Items 3 seen in events\n Catalogue 4 all known items\n"
                             " Events 12 density 133 %\n Length 4.0 mean; median 4, shortest 3, "
                             "longest 5\n Time 2000-12-31 to 2001-01-11, 11 days\n\nEvents of a "
                             "user\n\n 3 - 4 2 66.7 %\n 5 - 6 1 33.3 %\n\n");
        CHECK_CONTAINS(text, "Most popular items\n\n 1 4 Caf \\x1b[31mred\n 2 4 xxx");
        CHECK_CONTAINS(text, "x\n 3 4 12\n");
        free(text);
    }
}

TEST(info_refuses_what_it_does_not_know) {
    char *text;
    CHECK_EQ(test_command(&text, "%s info %s/none", test_program(), test_folder()), 1);
    CHECK_CONTAINS(text, "cannot be opened: No such file or directory");
    free(text);
    CHECK_EQ(test_command(&text, "%s info %s", test_program(), test_folder()), 1);
    CHECK_CONTAINS(text, "contains no data set");
    free(text);
    CHECK_EQ(test_command(&text, "echo text > %s/f; %s info %s/f", test_folder(), test_program(),
                          test_folder()),
             1);
    CHECK_CONTAINS(text, "not a sequence file");
    free(text);
    CHECK_EQ(test_command(&text, "ln -s loop %s/loop; %s info %s/loop", test_folder(),
                          test_program(), test_folder()),
             1);
    CHECK_CONTAINS(text, "Too many levels of symbolic links");
    free(text);
    CHECK_EQ(test_command(&text, "%s info /dev/null", test_program()), 1);
    CHECK_CONTAINS(text, "/dev/null: not a plain file");
    free(text);
    CHECK_EQ(test_command(&text, "%s info", test_program()), 2);
    CHECK_CONTAINS(text, "usage: hstu info DIR");
    free(text);
}

TEST(synth_command_prints_what_info_shows) {
    char *text, *again;
    arena a;
    double best, stored;
    arena_init(&a, 4096);
    CHECK_EQ(test_command(&text, "%s synth --out %s/s --users 300 --items 200 --mean-len 12 --json",
                          test_program(), test_folder()),
             0);
    CHECK_EQ(test_command(&again, "%s info %s/s --json", test_program(), test_folder()), 0);
    const json_value *made = parse(&a, text), *shown = parse(&a, again);
    CHECK_OK(json_member_double(made, "best_hr10", &best));
    CHECK_OK(json_member_double(json_member(json_member(shown, "source"), "synth"), "best_hr10",
                                &stored));
    CHECK(best == stored && best > 0 && best < 1);
    check_member(shown, "users", 300);
    check_member(shown, "catalogue", 200);
    free(text);
    free(again);
    CHECK_EQ(test_command(&text, "%s info %s/s", test_program(), test_folder()), 0);
    CHECK_CONTAINS(text, "at best");
    CHECK_CONTAINS(text, "age_group");
    check_width(text);
    free(text);
    arena_fini(&a);
}

TEST(synth_command_checks_its_options) {
    char *text;
    CHECK_EQ(test_command(&text, "%s synth", test_program()), 2);
    CHECK_CONTAINS(text, "--out DIR is missing");
    free(text);
    CHECK_EQ(
        test_command(&text, "%s synth --out %s/x --mean-len 1000", test_program(), test_folder()),
        2);
    CHECK_CONTAINS(text, "a quarter of the items");
    free(text);
    CHECK_EQ(test_command(&text, "%s synth --out /proc/x", test_program()), 1);
    CHECK_CONTAINS(text, "/proc/x");
    free(text);
}

/* hstu info of a snapshot. */

static void write_snapshot(const char *folder) {
    backend *be;
    embed_table *t;
    const embed_batch *b;
    embed_config c = {.dim = 3,
                      .opt = OPT_ADAMW,
                      .policy = POLICY_LFU,
                      .capacity = {128, 256},
                      .max_batch = 100,
                      .first = FIRST_UNIFORM,
                      .first_scale = 1};
    uint64_t ids[100];
    CHECK_OK(backend_create_cpu(&be, NULL));
    CHECK_OK(embed_create(&t, be, &c));
    for (uint64_t step = 1; step <= 4; step++) {
        CHECK_OK(embed_set_step(t, (int64_t)step));
        for (uint64_t i = 0; i < 50; i++) {
            ids[i] = i;                   /* in every batch */
            ids[50 + i] = step * 100 + i; /* in one */
        }
        CHECK_OK(embed_fetch(t, FETCH_INSERT, 100, ids, NULL, &b));
    }
    CHECK_OK(embed_snapshot_write(t, folder, 0));
    embed_destroy(t);
    backend_destroy(be);
}

TEST(info_table_shows_load_tiers_and_scores) {
    char folder[4096], *text;
    arena a;
    const json_value *root;
    int64_t rows, slots;
    snprintf(folder, sizeof folder, "%s/snap", test_folder());
    write_snapshot(folder);
    CHECK_EQ(test_command(&text, "'%s' info '%s'", test_program(), folder), 0);
    CHECK_CONTAINS(text, "250   of 3 values; optimizer adam, eviction lfu");
    CHECK_CONTAINS(text, "of 128 slots, load ");
    CHECK_CONTAINS(text, "how often a row was used");
    free(text);
    CHECK_EQ(test_command(&text, "'%s' info --json '%s'", test_program(), folder), 0);
    arena_init(&a, 4096);
    CHECK_OK(json_parse(&a, "stdout", text, strlen(text), &root));
    CHECK_OK(json_member_int(root, "rows", &rows));
    CHECK_OK(json_member_int(root, "level1_slots", &slots));
    CHECK_EQ(rows, 250);
    CHECK_EQ(slots, 256);
    /* 200 rows were used once, 50 four times. */
    const json_value *scores = json_member(root, "scores");
    CHECK(scores != NULL && scores->n_children == 2);
    CHECK_OK(json_member_int(scores->first, "rows", &rows));
    CHECK_EQ(rows, 200);
    arena_fini(&a);
    free(text);
    CHECK_EQ(test_command(&text, "rm '%s/rank-0-of-1/manifest.json'; '%s' info '%s'", folder,
                          test_program(), folder),
             1);
    CHECK_CONTAINS(text, "damaged");
    free(text);
}
