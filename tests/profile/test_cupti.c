#include "profile/cupti.h"

#include "test.h"

TEST(graph_nodes_are_found_again) {
    graph_nodes g = {0};
    graph_node n = {0};
    CHECK(!graph_nodes_find(&g, 5, &n));
    for (uint64_t i = 1; i <= 5000; i++)
        graph_nodes_add(&g, i << 20, &(graph_node){.op = (int32_t)i, .flop = (double)i});
    graph_nodes_add(&g, 7 << 20, &(graph_node){.op = 9999});
    for (uint64_t i = 1; i <= 5000; i++) {
        CHECK(graph_nodes_find(&g, i << 20, &n));
        CHECK_EQ(n.op, i == 7 ? 9999 : (int64_t)i);
    }
    CHECK(!graph_nodes_find(&g, 1, &n));
    CHECK(!graph_nodes_find(&g, 0, &n));
    CHECK_EQ(g.numbers.n, 5000);
    graph_nodes_fini(&g);
}

/* Each launch of a graph has a first kernel of each call, whichever it is. */
TEST(graph_nodes_know_the_first_kernel_of_a_call) {
    graph_nodes g = {0};
    graph_node none = {0}, a = {.op = 1, .call = 7}, b = {.op = 1, .call = 300};
    CHECK(!graph_nodes_is_first(&g, &none, 1));
    for (uint64_t launch = 1; launch < 4; launch++) {
        CHECK(graph_nodes_is_first(&g, &a, launch));
        CHECK(!graph_nodes_is_first(&g, &a, launch));
        CHECK(graph_nodes_is_first(&g, &b, launch));
        CHECK(!graph_nodes_is_first(&g, &a, launch));
        CHECK(!graph_nodes_is_first(&g, &b, launch));
    }
    graph_nodes_fini(&g);
}

/* More nodes come while graphs run: which launch had a kernel of a call is not forgotten. */
TEST(graph_nodes_remember_launches_while_they_grow) {
    graph_nodes g = {0};
    graph_node n = {.op = 1, .call = 3};
    graph_nodes_add(&g, 1, &n);
    CHECK(graph_nodes_is_first(&g, &n, 9));
    for (uint64_t i = 2; i < 5000; i++)
        graph_nodes_add(&g, i, &n);
    CHECK(!graph_nodes_is_first(&g, &n, 9));
    graph_nodes_fini(&g);
}
