/* hstu import meta: runs made of checkpoints, and those that do not fit. */
#include "train/files/import_meta.h"

#include <unistd.h>

#include "run_test.h"

/* Runs a command that must end with this code and say this. */
static void says(int code, const char *command, const char *what) {
    char *text = shell(code, command);
    CHECK_CONTAINS(text, what);
    free(text);
}

#define IMPORT "./hstu import meta w.pt --gin-config-file m.gin --data data --device cpu "

/* A run that is exported and imported again is the same model: answers, metrics, weights. */
TEST(import_meta_gives_the_same_model) {
    says(0, "./hstu export run --what weights --layout meta --format pt --out w.pt", "w.pt");
    says(0, IMPORT "--out back", "w.pt in back: 60 items\n");
    for (int i = 0; i < 2; i++) {
        char command[256];
        snprintf(command, sizeof command,
                 "./hstu eval %s --data data --device cpu --json > e%d; ./hstu recommend %s "
                 "--data data --all-users --json --device cpu > r%d",
                 i == 0 ? "run" : "back", i, i == 0 ? "run" : "back", i);
        free(shell(0, command));
    }
    free(shell(0, "cmp r0 r1 && ./hstu export back --what weights --layout meta --format pt --out "
                  "w2.pt && cmp w.pt w2.pt"));
    char *text = shell(0, "for f in e0 e1; do sed 's/.*\\(\"hr@1\".*\"mrr\":[^,]*\\).*/\\1/' $f; "
                          "done | uniq | wc -l");
    CHECK_STR(text, "1\n");
    free(text);
    /* It trains on, and says where its weights are. */
    says(0, "./hstu train --resume --out back --data data --epochs 1 --device cpu",
         "Done: 5 steps");
    says(0, "./hstu info back", "1 epoch");
}

TEST(import_meta_refuses_what_does_not_fit) {
    free(shell(0, "./hstu export run --what weights --layout meta --format pt --out w.pt"));
    says(2, IMPORT "--out x --set hstu_encoder.num_blocks=2",
         "has no '_hstu._attention_layers.1._uvqk'");
    says(2, IMPORT "--out x --set hstu_encoder.enable_relative_attention_bias=False",
         "_rel_attn_bias._ts_w', which this config does not make");
    says(
        2, IMPORT "--out x --set hstu_encoder.dqk=4",
        "'_hstu._attention_layers.0._uvqk' has the shape (8, 32), but the config makes it (8, 24)");
    says(2, IMPORT "--out x --set train_fn.item_embedding_dim=16", "but the config makes it");
    free(shell(0, "./hstu synth --out big --users 40 --items 90 --mean-len 9 --seed 1"));
    says(2, "./hstu import meta w.pt --gin-config-file m.gin --data big --device cpu --out x",
         "its item table has 61 rows and the data big/data.seq need 91");
    says(1, "./hstu import meta m.gin --gin-config-file m.gin --data data --device cpu --out x",
         "not a file of torch.save");
    char root[2048], command[4096];
    CHECK(getcwd(root, sizeof root) != NULL);
    snprintf(command, sizeof command,
             "./hstu import meta %s/tests/torch/adam.pt --gin-config-file m.gin --data data "
             "--device cpu --out x",
             root);
    says(2, command, "no checkpoint of Meta's research models");
    says(2, "./hstu import meta w.pt --data data --out x", "--gin-config-file");
    says(2, IMPORT "--out run", "there is a run already");
    says(2, "./hstu import moods x", "tables, meta or nvidia");
    free(shell(0, "! ls x 2>/dev/null"));
}

/* Against PyTorch: tests/torch/meta.py. */
TEST(import_meta_equals_torch) {
    char *text;
    const char *python = "build/python/bin/python";
    if (test_command(NULL, "%s -c 'import torch'", python) != 0)
        SKIP_TEST("torch is not installed in build/python");
    int code = test_command(&text, "%s tests/torch/meta.py %s %s/meta", python, test_program(),
                            test_folder());
    if (code != 0 || strstr(text, "\nok\n") == NULL) FAIL_TEST("%s", text);
    free(text);
}
