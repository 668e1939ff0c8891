#include "format/json.h"
#include "test.h"
#include "tune/target.h"

static void need_compiler(void) {
    char version[256];
    if (!target_compiler_version(version, sizeof version)) SKIP_TEST("no C compiler");
}

/* A tiny layer: the plan is kept as it is printed, runs, and is what `--plan auto` takes where an
 * encoder can run it. */
TEST(a_plan_is_found_kept_and_run) {
    char *text, *run, says[64];
    arena memory;
    const json_value *root;
    int64_t value, rank;
    need_compiler();
    CHECK_EQ(test_command(&text,
                          "cd '%s' && '%s' tune --batch 2 --length 9 --heads 2 --dim 4 "
                          "--device cpu --checks 2 --cache cache --out plan.json",
                          test_folder(), test_program()),
             0);
    CHECK_CONTAINS(text, "legal segments");
    CHECK_CONTAINS(text, "2 random plans: R^2");
    CHECK_CONTAINS(text, "kept as plan.json");
    bool is_kept = strstr(text, "\nkept for 'hstu encode --plan auto'") != NULL;
    CHECK(is_kept || strstr(text, "\nnot kept for 'hstu encode --plan auto': plan ") != NULL);
    free(text);
    CHECK_EQ(test_command(&text, "cat '%s/plan.json'", test_folder()), 0);
    CHECK(json_is_sealed(text, strlen(text)));
    CHECK(json_is_sealed(text, strlen(text) - 1)); /* without a newline, as once */
    arena_init(&memory, 1 << 12);
    CHECK_OK(json_parse(&memory, "plan", text, strlen(text), &root));
    CHECK_OK(json_member_int(root, "value", &value));
    CHECK_OK(json_member_int(root, "rank", &rank));
    CHECK(rank >= 1 && rank <= 3);
    CHECK(json_member(root, "tiles")->n_children > 0);
    arena_fini(&memory);
    free(text);
    CHECK_EQ(test_command(&run,
                          "cd '%s' && '%s' plan run plan.json --device cpu --length 6 --cache "
                          "cache",
                          test_folder(), test_program()),
             0);
    snprintf(says, sizeof says, "%d ", (int)value);
    CHECK(strncmp(run, says, strlen(says)) == 0);
    CHECK_CONTAINS(run, "batch 2, length 6, 12 tokens, 2 x 4, mask none");
    free(run);
    CHECK_EQ(test_command(&run, "cd '%s' && '%s' plan run plan.json --layer hstu --device cpu",
                          test_folder(), test_program()),
             2);
    CHECK_CONTAINS(run, "pass --layer bert");
    free(run);
}

/* Before a search, which may take long. */
TEST(a_plan_that_cannot_be_kept_is_said_first) {
    char *text;
    CHECK_EQ(test_command(&text, "'%s' tune --device cpu --out '%s/no/plan.json'", test_program(),
                          test_folder()),
             1);
    CHECK_CONTAINS(text, "no/plan.json: cannot be written");
    free(text);
    CHECK_EQ(test_command(&text, "cd '%s' && '%s' tune --out -", test_folder(), test_program()), 2);
    CHECK_CONTAINS(text, "--out -: cannot be written to stdout");
    free(text);
    CHECK_EQ(test_command(NULL, "test -z \"$(ls -A '%s')\"", test_folder()), 0);
}
