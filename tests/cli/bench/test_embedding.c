/* hstu bench embedding runs, checks itself and prints what it measured. */
#include "format/json.h"
#include "test.h"

TEST(bench_embedding_prints_every_figure) {
    char *text;
    int n = 0, n_checked = 0;
    arena a;
    arena_init(&a, 4096);
    CHECK_EQ(test_command(&text,
                          "'%s' bench embedding --device cpu --max-gib 0.01 --seconds 0.01 "
                          "--dim 20 --json 2>/dev/null",
                          test_program()),
             0);
    for (char *line = text; *line != '\0'; n++) {
        char *end = strchr(line, '\n');
        const json_value *root;
        const char *what;
        double x = 0;
        CHECK(end != NULL);
        CHECK_OK(json_parse(&a, "stdout", line, (size_t)(end - line), &root));
        CHECK_OK(json_member_string(root, "what", &what));
        CHECK_OK(json_member_double(root, "per_s", &x));
        CHECK(x > 0);
        if (json_member(root, "n_wrong") != NULL) {
            n_checked++;
            CHECK_OK(json_member_double(root, "n_wrong", &x));
            CHECK(x == 0);
        }
        line = end + 1;
    }
    CHECK_EQ(n, 14);
    CHECK_EQ(n_checked, 10);
    arena_fini(&a);
    free(text);
    CHECK_EQ(test_command(&text, "'%s' bench embedding --device cpu --seconds 100", test_program()),
             2);
    free(text);
}

TEST(bench_embedding_of_a_small_table) {
    char *text;
    CHECK_EQ(test_command(&text,
                          "'%s' bench embedding --device cpu --max-gib 0.001 --seconds 0.001 "
                          "--batch 256 --dim 6 --slots 8192 --json 2>/dev/null",
                          test_program()),
             0);
    CHECK_CONTAINS(text, "\"keys_a_call\":128"); /* a 64th of the slots */
    CHECK(strstr(text, "peer_per_s") == NULL);   /* HierarchicalKV runs on a GPU */
    free(text);
}
