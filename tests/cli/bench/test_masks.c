/* hstu bench masks: rows of the table, any other mask, and wrong options. */
#include "test.h"

TEST(bench_masks_command) {
    char *text;
    CHECK(test_command(&text,
                       "%s bench masks --device cpu --length 128 --heads 2 --dim 12 --seed 3",
                       test_program()) == 0);
    CHECK_CONTAINS(text, "causal                            1   128  0.5039");
    CHECK_CONTAINS(text, "sliding,window=64,causal          1   128  0.3809");
    CHECK_CONTAINS(text, "longformer,window=32,global=32    1   128  0.8750");
    CHECK_CONTAINS(text, "bigbird,window=32,global=32");
    free(text);
    CHECK(test_command(&text,
                       "%s bench masks --device cpu --mask strided --sequences 2 --length 100 "
                       "--heads 1 --dim 5 --json",
                       test_program()) == 0);
    CHECK_CONTAINS(text, "\"mask\":\"strided\"");
    CHECK_CONTAINS(text, "\"sequences\":2");
    CHECK_CONTAINS(text, "\"fwd_ms\":");
    free(text);
    CHECK(test_command(&text,
                       "%s bench masks --device cpu --curve --sequences 1 --length 200 --heads 1 "
                       "--dim 8",
                       test_program()) == 0);
    CHECK_CONTAINS(text, "sliding,window=1                  1   200  0.01");
    CHECK_CONTAINS(text, "sliding,window=59                 1   200  0.5");
    CHECK_CONTAINS(text, "none                              1   200  1.0000");
    CHECK_CONTAINS(text, "scattered                         1   200  0.0");
    CHECK_CONTAINS(text, "tiles"); /* a CPU has no row-wise kernels */
    CHECK(strstr(text, " rows ") == NULL);
    free(text);
}

/* The shapes of the published table; a window of 64 leaves 64 n - 2016 pairs of n^2. */
TEST(bench_masks_has_the_published_rows) {
    static const char *const rows[] = {"  1   128  0.3809", "  8   512  0.1190",
                                       "  8  1024  0.0615", " 16  2048  0.0312",
                                       " 16  4096  0.0157"};
    char *text;
    if (test_is_brief()) SKIP_TEST("long with a sanitizer");
    CHECK(test_command(&text, "%s bench masks --device cpu --mask sliding --heads 1 --dim 1",
                       test_program()) == 0);
    const char *at = text;
    for (int i = 0; i < 5; i++) {
        at = strstr(at, "sliding,window=64,causal        ");
        CHECK(at != NULL && strncmp(at + 32, rows[i], strlen(rows[i])) == 0);
        at += 32;
    }
    CHECK(strstr(at, "sliding") == NULL && strstr(text, "rows are for a GPU") == NULL);
    free(text);
}

TEST(bench_masks_refuses) {
    char *text;
    CHECK(test_command(&text, "%s bench masks --device cpu --mask slding --length 8",
                       test_program()) == 2);
    CHECK_CONTAINS(text, "did you mean 'sliding'?");
    CHECK(strstr(text, "TFLOP/s") == NULL); /* no table before the reason */
    free(text);
    CHECK(test_command(&text, "%s bench masks --device cpu --dtype int8", test_program()) == 2);
    CHECK_CONTAINS(text, "--dtype int8");
    free(text);
    CHECK(test_command(&text, "%s bench masks --device cpu --kernel rows", test_program()) == 2);
    CHECK_CONTAINS(text, "must be chosen, block-wise, row-wise or any-card");
    free(text);
}
