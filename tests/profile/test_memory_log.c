#include "profile/memory_log.h"

#include "test.h"

static char heap[20000]; /* addresses */

TEST(memory_log_explains_the_peak) {
    static memory_log log;
    buf text = {0};
    memory_log_init(&log);
    memory_log_add(&log, heap, 1000, "weights");
    memory_log_add(&log, heap + 1, 3000, "activations");
    memory_log_add(&log, heap + 2, 500, "activations");
    memory_log_remove(&log, heap + 1);
    memory_log_remove(&log, heap + 1); /* twice, and never there: nothing */
    memory_log_remove(&log, heap + 9);
    memory_log_remove(&log, NULL);
    memory_log_add(&log, heap + 3, 2900, "other"); /* 4400: below the peak */
    CHECK_EQ(log.peak, 4500);
    CHECK_EQ(log.live, 4400);
    CHECK_EQ(log.n_events, 5);
    CHECK_EQ(log.events[3].live, 1500);
    profile_table t;
    CHECK_OK(memory_log_table(&log, &t));
    CHECK_OK(profile_table_csv(&t, -1, &text));
    CHECK_STR(buf_str(&text),
              "At Peak (%),At Peak (bytes),Own Peak (bytes),At End (bytes),Blocks,Owner\n"
              "77.7777777777778,3500,3500,500,2,activations\n"
              "22.2222222222222,1000,1000,1000,1,weights\n"
              "0,0,2900,2900,1,other\n");
    buf_clear(&text);
    CHECK_OK(profile_table_text(&t, -1, &text));
    CHECK_CONTAINS(buf_str(&text), " ** Memory of the Device by Owner (memory_by_owner):\n");
    CHECK_CONTAINS(buf_str(&text),
                   "        77.8  3.42 KB   3.42 KB    500 B       2  activations\n");
    profile_table_fini(&t);
    buf_fini(&text);
    memory_log_fini(&log);
}

/* Addresses come again, and far more blocks than it began with. */
TEST(memory_log_keeps_count_of_many) {
    static memory_log log;
    char owner[32];
    memory_log_init(&log);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 20000; i++) {
            snprintf(owner, sizeof owner, "owner %d", i % 100); /* more than are told apart */
            memory_log_add(&log, heap + i, 16, owner);
        }
        memory_log_add(&log, heap, 32, "again"); /* its release was not seen */
        CHECK_EQ(log.live, 20001 * 16);
        for (int i = 0; i < 20000; i++)
            memory_log_remove(&log, heap + i);
        CHECK_EQ(log.live, 0);
    }
    CHECK_EQ(log.peak, 20001 * 16);
    CHECK_EQ(log.n_owners, MEMORY_MAX_OWNERS);
    for (int i = 0; i < log.n_owners; i++) { /* the last one takes the rest, and "again" */
        bool is_last = i == log.n_owners - 1;
        CHECK_EQ(log.owners[i].live, 0);
        CHECK_EQ(log.owners[i].n_blocks, is_last ? 3 * (200 * (100 - i) + 1) : 3 * 200);
        CHECK_EQ(log.owners[i].at_peak, is_last  ? 16 * 200 * (100 - i) + 32
                                        : i == 0 ? 16 * 199
                                                 : 16 * 200);
    }
    memory_log_fini(&log);
}

TEST(memory_log_of_nothing_says_nothing) {
    static memory_log log;
    profile_table t;
    memory_log_init(&log);
    CHECK_EQ(memory_log_remove(&log, heap), 0);
    CHECK_OK(memory_log_table(&log, &t));
    CHECK_EQ(t.n_rows, 0);
    profile_table_fini(&t);
    memory_log_fini(&log);
}
