/* hstu info of a snapshot. */
#include "embed/snapshot.h"
#include "format/json.h"
#include "test.h"

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
    CHECK_OK(embed_snapshot_write(t, folder, (snapshot_ranks){0, 1}, 0));
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
