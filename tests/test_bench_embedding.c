/* hstu bench embedding runs, checks itself and prints what it measured. */
#include "base/json.h"
#include "test.h"

TEST(bench_embedding_prints_every_figure) {
    char *text;
    int n = 0;
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
        double per_s;
        CHECK(end != NULL);
        CHECK_OK(json_parse(&a, "stdout", line, (size_t)(end - line), &root));
        CHECK_OK(json_member_double(root, "per_s", &per_s));
        CHECK(per_s > 0);
        line = end + 1;
    }
    CHECK_EQ(n, 13);
    arena_fini(&a);
    free(text);
    CHECK_EQ(test_command(&text, "'%s' bench embedding --seconds 100", test_program()), 2);
    free(text);
}
