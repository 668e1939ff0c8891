#include "run_test.h"

TEST(card_says_what_a_run_was_made_of) {
    free(shell(0, "true"));
    char *text = shell(0, "./hstu card run --licence 'CC0 | public'");
    CHECK_CONTAINS(text,
                   "# Model card: run\n\n## Model\n\n| | |\n|---|---|\n| task | retrieval |\n");
    CHECK_CONTAINS(text, "| licence | CC0 \\| public |\n");
    CHECK_CONTAINS(text, "\n## Protocol\n");
    CHECK_CONTAINS(text, "| target | the last event of each user |\n");
    CHECK_CONTAINS(text, "\n## Figures\n");
    CHECK_CONTAINS(text, "| hr@10 | 0.");
    CHECK_CONTAINS(text, "\n## Limits\n\n- The figures are of logged events");
    CHECK_CONTAINS(text, "| md5 of the weights' manifest | ");
    free(text);
}

/* The same as JSON; the hash is that of the file. */
TEST(card_as_json) {
    arena a;
    const json_value *card;
    arena_init(&a, 1 << 14);
    free(shell(0, "true"));
    char *text = shell(0, "./hstu card run --json");
    CHECK_OK(json_parse(&a, "card", text, strlen(text), &card));
    free(text);
    text = shell(0, "md5sum run/config.json");
    const char *hash = json_member(json_member(card, "origin"), "md5 of config.json")->string;
    CHECK(strlen(hash) == 32 && strncmp(text, hash, 32) == 0);
    CHECK_STR(json_member(json_member(card, "data"), "licence")->string,
              "not stated; see --licence");
    CHECK(json_member(json_member(json_member(card, "figures"), "hr@10"), "value") != NULL);
    free(text);
    arena_fini(&a);
}

TEST(card_of_no_run) {
    free(shell(0, "true"));
    char *text = shell(2, "./hstu card data 2>&1");
    CHECK_CONTAINS(text, "not a run");
    free(text);
}

/* The protocol of the figures, which are of the test part, although validation chose; and a run
 * that started from one that was trained on what it holds out. */
TEST(card_has_the_protocol_of_its_figures) {
    char *text = shell(0, "./hstu train m.gin --device cpu --data data --out v --epochs 1 "
                          "--validate 2>&1 && ./hstu card v");
    CHECK_CONTAINS(text, "| part | test |\n| target | the last event of each user |\n");
    CHECK(strstr(text, "too good") == NULL);
    free(text);
    text = shell(0, "./hstu train m.gin --device cpu --data data --out all --epochs 1 --split none "
                    "2>&1 && ./hstu card all && ./hstu train m.gin --device cpu --data data --out "
                    "seen --epochs 1 --init-from all 2>&1 && ./hstu card seen");
    CHECK_CONTAINS(text, "was trained on events that are held out here");
    CHECK_CONTAINS(text, "\n- The run it started from was trained on held-out events");
    CHECK_EQ(count_parts(text, "\n## Figures\n"), 1);
    free(text);
}
