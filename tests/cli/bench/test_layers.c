/* hstu bench layers: its own check, of layers with a cache against layers without. */
#include <math.h>

#include "cli/bench/bench.h"
#include "test.h"

/* On the CPU keys in pages change no bit, whatever the sizes. */
TEST(layers_cache_changes_nothing) {
    static const int32_t lengths[][2] = {{130, 1}, {64, 63}, {70, 70}};
    layers_shape shape = {.n_layers = 2, .n_heads = 2, .head_dim = 8, .n_candidates = 3, .seed = 5};
    backend *be;
    CHECK_OK(backend_create_cpu(&be, NULL));
    for (int i = 0; i < 3; i++) {
        layers_row row = {.batch = 2, .length = lengths[i][0], .n_new = lengths[i][1]};
        CHECK_OK(layers_measure(be, &shape, &row));
        CHECK(row.error == 0 && row.plain > 0 && row.flops > 0 && isnan(row.replay));
    }
    shape.is_fp8 = true; /* all rows are rounded alike; the result is off by some percent */
    layers_row fp8 = {.batch = 2, .length = 70, .n_new = 30};
    CHECK_OK(layers_measure(be, &shape, &fp8));
    CHECK(fp8.error == 0 && fp8.error_exact > 1e-4 && fp8.error_exact < 0.08);
    layers_row wrong = {.batch = 1, .length = 10, .n_new = 11};
    CHECK_FAILS(layers_measure(be, &shape, &wrong), ERR_USAGE, "of a history of 10");
    backend_destroy(be);
}

TEST(layers_rows_are_chosen) {
    static const char *const rows[][2] = {
        {"--batch 1", "1,4096,4096;1,4096,1024;1,4096,128;1,1024,128;1,128,128;"},
        {"--batch 8 --length 1024", "8,1024,128;"},
        {"--length 128", "1,128,128;8,128,128;"}};
    char *text;
    for (int i = test_is_brief() ? 1 : 0; i < 3; i++) { /* NVIDIA's rows, in a small model */
        char got[200] = "";
        CHECK_EQ(test_command(&text,
                              "%s bench layers --device cpu --layers 1 --heads 1 --dim 1 "
                              "--candidates 0 --json %s",
                              test_program(), rows[i][0]),
                 0);
        for (const char *at = text; (at = strstr(at, "\"batch\":")) != NULL; at++) {
            int batch, length, n_new;
            CHECK_EQ(sscanf(at, "\"batch\":%d,\"length\":%d,\"new\":%d,", &batch, &length, &n_new),
                     3);
            size_t n = strlen(got);
            snprintf(got + n, sizeof got - n, "%d,%d,%d;", batch, length, n_new);
        }
        CHECK_STR(got, rows[i][1]);
        free(text);
    }
    CHECK_EQ(test_command(&text, "%s bench layers --device cpu --batch 3", test_program()), 2);
    CHECK_CONTAINS(text, "no such row");
    free(text);
    CHECK_EQ(test_command(&text, "%s bench layers --device cpu --dtype fp8", test_program()), 1);
    CHECK_CONTAINS(text, "use a GPU of SM 9.0");
    free(text);
    CHECK_EQ(test_command(&text,
                          "%s bench layers --device cpu --batch 3 --length 9 --new 2 --layers 1 "
                          "--heads 1 --dim 8 --candidates 2 --json",
                          test_program()),
             0);
    CHECK_CONTAINS(text, "\"new\":2");
    CHECK_CONTAINS(text, "\"floor_ms\":1.534"); /* 3 (4 x 10 E^2 / 780e12 + 37 x 4 E / 646e12) */
    free(text);
}
