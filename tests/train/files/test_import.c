/* hstu import meta and nvidia: runs made of checkpoints, and those that do not fit. */
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "run_test.h"
#include "train/files/import.h"

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
    says(2, IMPORT "--out run", "contains a run already");
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

/* hstu import nvidia: a run written in NVIDIA's layout comes back as it was; what does not fit is
 * refused. */

enum { MAX_TENSORS = 64 };

static void hstu_says(int code, const char *args, const char *what) {
    char *text = said(code, args);
    CHECK_CONTAINS(text, what);
    free(text);
}

static void write_bytes(const char *name, const void *bytes, size_t n) {
    FILE *f = fopen(run_path(name), "wb");
    CHECK(f != NULL && fwrite(bytes, 1, n, f) == n && fclose(f) == 0);
}

/* Data whose contextual feature has numbers, as NVIDIA's: 40 users, ids of items that are not their
 * numbers. */
static void make_data(void) {
    char text[16384], users[1024];
    size_t n = 0, m = 0;
    n += (size_t)snprintf(text, sizeof text, "user_id,item_id,rating,timestamp\n");
    m += (size_t)snprintf(users, sizeof users, "user_id,age\n");
    for (int u = 1; u <= 40; u++) {
        m += (size_t)snprintf(users + m, sizeof users - m, "%d,%d\n", u, 10 + u % 3);
        for (int t = 0; t < 10; t++)
            n +=
                (size_t)snprintf(text + n, sizeof text - n, "%d,%d,%d,%d\n", u,
                                 7 * (1 + (u * 13 + t * t * 7 + t) % 50), 1 + (u + t) % 5, 100 + t);
    }
    write_text("e.csv", text);
    write_text("u.csv", users);
    free(said(0, "prep csv --input e.csv --users u.csv --out mine"));
}

#define DUMPS "ckpt/dynamicemb_module/model._embedding_collection/"

/* One rank's files of a table's dump. */
static void write_dump(const char *table, int rank, int n_ranks, const int64_t *keys, size_t n,
                       const float *rows, size_t dim) {
    char name[300];
    snprintf(name, sizeof name, DUMPS "%s_emb_keys.rank_%d.world_size_%d", table, rank, n_ranks);
    write_bytes(name, keys, n * 8);
    snprintf(name, sizeof name, DUMPS "%s_emb_values.rank_%d.world_size_%d", table, rank, n_ranks);
    write_bytes(name, rows, n * dim * 4);
}

/* The item table as a dump of two ranks whose keys are ids; that of the contextual feature as one
 * of one rank. */
static void write_tables(const seq_file *data, const st_tensor *t, const float *x) {
    size_t dim = (size_t)t->shape[1], n = (size_t)t->shape[0];
    int64_t *keys = malloc(n * sizeof *keys);
    if (strcmp(t->name, "_embedding.item.weight") == 0) {
        for (size_t k = 1; k < n; k++)
            keys[k] = data->item_id[k];
        write_dump("item", 0, 2, keys + 1, n / 3, x + dim, dim);
        write_dump("item", 1, 2, keys + 1 + n / 3, n - 1 - n / 3, x + (1 + n / 3) * dim, dim);
    } else {
        const text_column *v = &data->context[0].values;
        keys[0] = 0;
        for (size_t k = 1; k < n; k++) {
            char text[16] = "";
            memcpy(text, v->bytes + v->offsets[k], v->offsets[k + 1] - v->offsets[k]);
            keys[k] = strtol(text, NULL, 10);
        }
        CHECK(keys[1] >= 10 && keys[1] <= 12);
        write_dump("age", 0, 1, keys, n, x, dim);
    }
    free(keys);
}

/* Writes the weights that `hstu export` wrote to w.pt as NVIDIA would: tables as dumps, the table
 * of actions and everything dense as tensors of model.0.pth, under their names there. */
static void write_checkpoint(void) {
    static st_tensor tensors[MAX_TENSORS];
    static float *values[MAX_TENSORS];
    st_file *f;
    seq_file *data;
    int n = 0;
    mkdir(run_path("ckpt"), 0777);
    mkdir(run_path("ckpt/torch_module"), 0777);
    mkdir(run_path("ckpt/dynamicemb_module"), 0777);
    mkdir(run_path(DUMPS), 0777);
    CHECK_OK(torch_open(&f, run_path("w.pt")));
    CHECK_OK(seq_file_open(&data, run_path("mine"), NULL));
    for (size_t i = 0; i < f->n_tensors; i++) {
        const st_tensor *t = &f->tensors[i];
        float *x = malloc((size_t)t->n * sizeof *x);
        bool is_action = strcmp(t->name, "_embedding.action.weight") == 0;
        CHECK_OK(torch_read_floats(f, t, 0, t->shape[0], x));
        if (strncmp(t->name, "_embedding.", 11) == 0 && !is_action) {
            write_tables(data, t, x);
            free(x);
            continue;
        }
        CHECK(n < MAX_TENSORS);
        values[n] = x;
        tensors[n] =
            (st_tensor){.name = is_action ? "_embedding_collection._data_parallel_embedding_"
                                            "collection.embeddings.action.weight"
                                          : t->name,
                        .dtype = ST_F32,
                        .n_dims = t->n_dims,
                        .n = t->n,
                        .data = x};
        memcpy(tensors[n].shape, t->shape, sizeof tensors[n].shape);
        n++;
    }
    CHECK_OK(torch_write(run_path("ckpt/torch_module/model.0.pth"), tensors, (size_t)n));
    for (int i = 0; i < n; i++)
        free(values[i]);
    st_close(f);
    seq_file_close(data);
}

#define IMPORT_NVIDIA "import nvidia ckpt --gin-config-file n.gin --data mine --device cpu "

/* The weights are the same bits, but for the padding row of items, which nothing reads and a dump
 * does not have. */
static void check_same(const char *a, const char *b) {
    st_file *f, *g;
    CHECK_OK(torch_open(&f, run_path(a)));
    CHECK_OK(torch_open(&g, run_path(b)));
    CHECK_EQ(f->n_tensors, g->n_tensors);
    for (size_t i = 0; i < f->n_tensors; i++) {
        const st_tensor *t = &f->tensors[i], *u = st_find(g, t->name);
        int64_t first = strcmp(t->name, "_embedding.item.weight") == 0;
        CHECK(u != NULL && t->n == u->n);
        float *x = malloc((size_t)t->n * sizeof *x), *y = malloc((size_t)t->n * sizeof *y);
        CHECK_OK(torch_read_floats(f, t, first, t->shape[0] - first, x));
        CHECK_OK(torch_read_floats(g, u, first, t->shape[0] - first, y));
        size_t n = (size_t)(t->n / t->shape[0] * (t->shape[0] - first));
        if (memcmp(x, y, n * sizeof *x) != 0) FAIL_TEST("%s differs", t->name);
        free(x);
        free(y);
    }
    st_close(f);
    st_close(g);
}

static void round_trip(void) {
    make_data();
    free(said(0, "train --gin-config-file n.gin --data mine --out run --epochs 1"));
    free(said(0, "export run --what weights --format pt --out w.pt"));
    write_checkpoint();
    hstu_says(0, IMPORT_NVIDIA "--out back", "ckpt in back: ");
    free(said(0, "export back --what weights --format pt --out w2.pt"));
    check_same("w.pt", "w2.pt");
}

TEST(import_nvidia_gives_the_same_model) {
    round_trip();
    hstu_says(0, "eval back --data mine", "auc");
    /* It trains on. */
    hstu_says(0, "train --resume --out back --data mine --epochs 1", "Done: ");
}

/* The same into a dynamic table: the same scores. */
TEST(import_nvidia_fills_dynamic_tables) {
    char gin[2048], *scores[2];
    round_trip();
    snprintf(gin, sizeof gin,
             "%st/DynamicEmbeddingArgs.feature_names = ['item']\n"
             "t/DynamicEmbeddingArgs.table_name = 'item'\n"
             "t/DynamicEmbeddingArgs.item_vocab_size_or_capacity = 256\n"
             "BenchmarkDatasetArgs.embedding_args = [@t/DynamicEmbeddingArgs()]\n",
             ranking_gin);
    write_text("d.gin", gin);
    hstu_says(0,
              "import nvidia ckpt --gin-config-file d.gin --data mine --device cpu --out dynamic",
              "ckpt in dynamic: ");
    scores[0] = said(0, "score run --data mine --user 1 --candidates 7,14,21,28,35 --json");
    scores[1] = said(0, "score dynamic --data mine --user 1 --candidates 7,14,21,28,35 --json");
    CHECK_CONTAINS(scores[0], "{\"user\":1"); /* after what each says of its tables */
    CHECK_CONTAINS(scores[1], "{\"user\":1");
    CHECK_STR(strstr(scores[0], "{\"user\""), strstr(scores[1], "{\"user\""));
    free(scores[0]);
    free(scores[1]);
}

TEST(import_nvidia_counts_rows_that_do_not_fit_the_data) {
    const int64_t stranger = 123456789;
    float row[8] = {1};
    round_trip();
    write_dump("item", 0, 1, &stranger, 1, row, 8); /* a dump of one rank, which is found first */
    hstu_says(
        0, IMPORT_NVIDIA "--out other",
        "1 rows of its tables have ids that are not in the data, or no place); 50 rows are not "
        "there and zero");
    row[3] = NAN;
    write_dump("item", 0, 1, &stranger, 1, row, 8);
    hstu_says(1, IMPORT_NVIDIA "--out other2", "'item' holds numbers that are not finite");
    write_bytes(DUMPS "item_emb_values.rank_0.world_size_1", row, 7);
    hstu_says(1, IMPORT_NVIDIA "--out other3", "are no rows");
    write_dump("item", 0, 1, &stranger, 1, row, 4);
    hstu_says(2, IMPORT_NVIDIA "--out other4", "rows of 4, but the config makes them 8");
    row[3] = 0;
    write_dump("item", 0, 1, &stranger, 1, row, 8);
    free(said(0, "synth --out texts --users 20 --items 50 --mean-len 9"));
    hstu_says(2,
              "import nvidia ckpt --gin-config-file n.gin --data texts --device cpu --out other5",
              "are texts, and NVIDIA's are numbers");
}

TEST(import_nvidia_refuses_what_does_not_fit) {
    round_trip();
    hstu_says(2, IMPORT_NVIDIA "--out x --set NetworkArgs.num_layers=2",
              "has no '_hstu_block._attention_layers.1.");
    hstu_says(2, IMPORT_NVIDIA "--out x --set NetworkArgs.num_position_buckets=32",
              "has the shape");
    hstu_says(2, IMPORT_NVIDIA "--out x --set \"RankingArgs.prediction_head_arch=[5]\"",
              "has the shape");
    hstu_says(2, "import nvidia ckpt --gin-config-file m.gin --data mine --device cpu --out x",
              "not of NVIDIA's models");
    hstu_says(1, "import nvidia mine --gin-config-file n.gin --data mine --device cpu --out x",
              "no torch_module/model.0.pth");
    hstu_says(1, "import nvidia n.gin --gin-config-file n.gin --data mine --device cpu --out x",
              "not a file of torch.save");
    hstu_says(2, "import nvidia ckpt --gin-config-file n.gin --data mine --device cpu",
              "--out are needed");
    CHECK_EQ(test_command(NULL, "rm -r %s/ckpt/dynamicemb_module", test_folder()), 0);
    hstu_says(2, IMPORT_NVIDIA "--out x", "no item_emb_keys of the table 'item'");
    CHECK(!folder_exists(run_path("x")));
}
