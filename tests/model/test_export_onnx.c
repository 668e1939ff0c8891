/* hstu export --format onnx from outside and inside: what is written, refused, and left behind by
 * failures.  What the models compute: tests/onnx.sh. */
#include <dirent.h>

#include "disk_fault.h"
#include "model/export_file.h"
#include "model/trained.h"
#include "oom.h"
#include "run_test.h"

typedef struct writing {
    backend *be;
    trained t;
    bool is_apart;
} writing;

static void writing_start(writing *w) {
    free(shell(0, "test -d run && mkdir out"));
    *w = (writing){0};
    CHECK_OK(backend_create_cpu(&w->be, NULL));
    CHECK_OK(trained_open(&w->t, run_path("run"), NULL, w->be, 1));
}

static void writing_end(writing *w) {
    trained_close(&w->t);
    backend_destroy(w->be);
}

/* Files of the folder of outputs. */
static int count_files(void) {
    DIR *d = opendir(run_path("out"));
    int n = 0;
    CHECK(d != NULL);
    for (const struct dirent *e; (e = readdir(d)) != NULL;)
        n += e->d_name[0] != '.' || e->d_name[1] > '.';
    closedir(d);
    return n;
}

static status write_once(void *context) {
    writing *w = context;
    bool is_apart = w->is_apart;
    status st = onnx_model_write(&w->t.session, run_path("out/m.onnx"), &is_apart);
    CHECK_EQ(is_apart, w->is_apart);
    return st;
}

TEST(export_onnx_on_a_full_disk_leaves_nothing) {
    writing w;
    writing_start(&w);
    disk_fault_set(DISK_FULL, "out");
    CHECK_FAILS(write_once(&w), ERR_IO, "free some space");
    CHECK_EQ(count_files(), 0);
    w.is_apart = true;
    int n = 0;
    for (;; n++) { /* writes that succeed: the last ones are those of the model */
        disk_fault_after(n, DISK_FULL, "out");
        if (write_once(&w) == OK) break;
        CHECK_CONTAINS(status_reason(), "free some space");
        CHECK_EQ(count_files(), 0);
    }
    disk_fault_set(DISK_GOOD, "");
    CHECK(n > 1);
    CHECK_EQ(count_files(), 2);
    CHECK_FAILS(write_once(&w), ERR_USAGE, "m.onnx.data: already exists");
    writing_end(&w);
}

TEST(export_onnx_at_each_failed_allocation) {
    writing w;
    writing_start(&w);
    CHECK(oom_at_each_allocation(write_once, &w) > 100);
    CHECK_EQ(count_files(), 1);
    writing_end(&w);
}

static void says(int want, const char *args, const char *part) {
    char command[512];
    snprintf(command, sizeof command, "./hstu export %s 2>&1", args);
    char *text = shell(want, command);
    CHECK_CONTAINS(text, part);
    free(text);
}

/* Every id of the items is in the file, and the version of its format comes first. */
/* Of the config that train chooses for a log with features of users. */
TEST(export_onnx_reads_features_of_users) {
    writing w;
    free(shell(
        0,
        "awk 'BEGIN { print \"user,item,time\"; for (u = 1; u < 30; u++) for (i = 0; i < 5; i++) "
        "print u \",\" (u * 7 + i * 3) % 20 + 1 \",\" 100000000 + u * 100 + i }' >e.csv; "
        "printf 'user,land\\n1,DE\\n2,\"a, b\"\\n' >u.csv; mkdir out; "
        "./hstu prep csv --input e.csv --users u.csv --out d && "
        "./hstu train --data d --device cpu --out own --epochs 1"));
    w = (writing){0};
    CHECK_OK(backend_create_cpu(&w.be, NULL));
    CHECK_OK(trained_open(&w.t, run_path("own"), NULL, w.be, 1));
    CHECK(oom_at_each_allocation(write_once, &w) > 100);
    free(shell(0, "grep -q feature_land out/m.onnx && grep -q 'a, b' out/m.onnx"));
    writing_end(&w);
}

TEST(export_onnx_writes_and_refuses) {
    says(0, "run --format onnx --out m.onnx", "the encoder and 60 items in m.onnx\n");
    says(0, "run --what model --format onnx --external-data --out n.onnx",
         "weights in n.onnx.data");
    char *text = shell(0, "head -c 8 m.onnx; grep -c ai.onnx.ml m.onnx; grep -c model m.onnx.data "
                          "2>&1 || true; cmp -s m.onnx n.onnx || echo differ");
    CHECK(strncmp(text, "\x08\x08\x12\x04hstu", 8) == 0);
    CHECK_CONTAINS(text, "differ");
    free(text);
    says(2, "run --what model --out x", "a model is written as onnx");
    says(2, "run --what items --format onnx --out x", "must be safetensors, npz or csv");
    says(2, "run --what items --external-data --out x", "--external-data is for --format onnx");
    says(2, "run --format onnx --out n.onnx --external-data", "already exists");
    write_text("n.gin", ranking_gin);
    free(shell(0, "./hstu train n.gin --device cpu --data data --out ranking --epochs 1"));
    says(1, "ranking --format onnx --out x",
         "ranking models, which score candidates, have no ONNX form");
    free(shell(0, "./hstu train m.gin --data data --device cpu --out mol --epochs 1 --set "
                  "train_fn.interaction_module_type=MoL --set train_fn.item_l2_norm=False --set "
                  "create_mol_interaction_module.query_dot_product_groups=4 --set "
                  "create_mol_interaction_module.item_dot_product_groups=3 --set "
                  "create_mol_interaction_module.item_hidden_dim=-1 --set "
                  "create_mol_interaction_module.dot_product_dimension=5 --set "
                  "train_fn.num_negatives=4 --set train_fn.sampling_strategy=local"));
    says(1, "mol --format onnx --out x", "mixtures of logits have no ONNX form");
    text = shell(0, "ls x* 2>&1 || true");
    CHECK_CONTAINS(text, "No such file");
    free(text);
}
