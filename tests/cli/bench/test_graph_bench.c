/* hstu bench graph: the ops on small graphs are right by its own check, and wrong options. */
#include "test.h"

TEST(bench_graph_command) {
    char *text;
    static const char *const rows[] = {"attention forward", "attention both", "silu      both",
                                       "gat       forward", "spmm      both", "sddmm     both"};
    CHECK(test_command(&text, "%s bench graph --device cpu --edges 3000", test_program()) == 0);
    for (int i = 0; i < 6; i++)
        CHECK_CONTAINS(text, rows[i]);
    free(text);
    CHECK(test_command(&text, "%s bench graph --device cpu --edges 1000 --op gat",
                       test_program()) == 0);
    CHECK_CONTAINS(text, "gat       both");
    CHECK(strstr(text, "spmm") == NULL && strstr(text, "nan") == NULL);
    free(text);
    CHECK(test_command(&text, "%s bench graph --op gatt", test_program()) == 2);
    free(text);
    CHECK(test_command(&text, "%s bench graph --edges 3", test_program()) == 2);
    free(text);
}
