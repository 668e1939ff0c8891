/* hstu bench search: the items it checks a search against are right, or the search is. */
#include "cli/bench/bench.h"
#include "test.h"

TEST(search_finds_what_a_loop_finds) {
    static const search_shape shapes[] = {
        {.n_items = 70000, .n_queries = 3, .dim = 5, .k = 20, .seed = 3}, /* many are equal */
        {.n_items = 7, .n_queries = 2, .dim = 64, .k = 9, .seed = 4},
        {.n_items = 300, .n_queries = 70, .dim = 33, .k = 1, .seed = 5}};
    backend *be;
    CHECK_OK(backend_create_cpu(&be, NULL));
    for (int i = 0; i < 3; i++) {
        search_row row;
        CHECK_OK(search_measure(be, &shapes[i], &row));
        CHECK(row.seconds > 0 && row.bytes == 4.0 * (double)(shapes[i].n_items * shapes[i].dim));
    }
    backend_destroy(be);
}
