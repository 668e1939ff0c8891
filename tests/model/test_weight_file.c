/* hstu export --what weights in every format and layout, and what hstu info says of the files. */
#include "model/weight_file.h"

#include "format/safetensors.h"
#include "format/torch_file.h"
#include "run_test.h"

/* Data whose ids are not their numbers: items 3, 10, 17, ... */
static void make_run(void) {
    char path[512];
    snprintf(path, sizeof path, "%s/e.csv", test_folder());
    FILE *f = fopen(path, "w");
    CHECK(f != NULL && fputs("user,item,time\n", f) >= 0);
    for (int u = 0; u < 30; u++)
        for (int k = 0; k < 8; k++)
            CHECK(fprintf(f, "%d,%d,%d\n", u + 1, 3 + 7 * ((u * 5 + k * k) % 23), 1000 + 60 * k) >
                  0);
    CHECK(fclose(f) == 0);
    free(shell(0, "./hstu prep csv --input e.csv --out ids && ./hstu train --device cpu "
                  "--gin-config-file m.gin --data ids --out r --epochs 1"));
}

static const char *in_folder(const char *name) {
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", test_folder(), name);
    return path;
}

static void check_floats(const torch_file *f, const char *name, int64_t row, const float *want,
                         int64_t n_rows, int64_t n) {
    float got[4096];
    const torch_tensor *t = torch_find(f, name);
    CHECK(t != NULL && n <= 4096);
    CHECK_OK(torch_read_floats(f, t, row, n_rows, got));
    CHECK(memcmp(got, want, (size_t)n * sizeof *got) == 0);
}

TEST(weights_in_every_format) {
    st_file *own;
    torch_file *pt;
    make_run();
    free(shell(0, "./hstu export r --what weights --out w.safetensors && ./hstu export r --what "
                  "weights --format pt --out w.pt && ./hstu export r --what weights --format npz "
                  "--out w.npz"));
    CHECK_OK(st_open(&own, in_folder("w.safetensors")));
    CHECK_OK(torch_open(&pt, in_folder("w.pt")));
    CHECK_EQ(torch_n_tensors(pt), st_n_tensors(own));
    for (size_t i = 0; i < st_n_tensors(own); i++) {
        const st_tensor *t = st_tensor_at(own, i);
        check_floats(pt, t->name, 0, t->data, t->shape[0], t->n);
    }
    torch_close(pt);
    st_close(own);
    char *text = shell(0, "./hstu info w.pt > a; ./hstu info w.safetensors > b; cmp a b && cat a; "
                          "./hstu info w.pt --json; head -c 4 w.npz");
    CHECK_CONTAINS(text, "_embedding_module._item_emb.weight               float32   (24, 8)\n");
    CHECK_CONTAINS(text, "_hstu._attention_layers.0._rel_attn_bias._ts_w   float32   (129,)\n");
    CHECK_CONTAINS(text, "{\"name\":\"_hstu._attention_layers.0._uvqk\",\"dtype\":\"float32\","
                         "\"shape\":[8,32]}");
    CHECK_CONTAINS(text, "PK\003\004");
    free(text);
    text = shell(1, "echo nonsense > n.pt; ./hstu info n.pt");
    CHECK_CONTAINS(text, "n.pt: not a file of torch.save, which is a zip archive\n");
    free(text);
}

/* The row of an item is its id; rows between are zero; load_state_dict finds its buffer. */
TEST(weights_in_the_layout_of_meta) {
    static const float zeros[8];
    st_file *own, *meta;
    torch_file *pt;
    const st_tensor *items, *mask;
    make_run();
    free(shell(0, "./hstu export r --what weights --out w.safetensors && ./hstu export r --what "
                  "weights --layout meta --format pt --out m.pt && ./hstu export r --what weights "
                  "--layout meta --out m.safetensors"));
    CHECK_OK(st_open(&own, in_folder("w.safetensors")));
    CHECK_OK(st_get(own, META_ITEMS, ST_F32, &items));
    CHECK_OK(torch_open(&pt, in_folder("m.pt")));
    CHECK_EQ(torch_find(pt, META_ITEMS)->shape[0], 3 + 7 * 22 + 1);
    for (int64_t i = 0; i < 23; i++) {
        const float *row = (const float *)items->data + (i + 1) * 8;
        check_floats(pt, META_ITEMS, 3 + 7 * i, row, 1, 8);
        if (i > 0) check_floats(pt, META_ITEMS, 2 + 7 * i, zeros, 1, 8);
    }
    check_floats(pt, META_ITEMS, 0, items->data, 1, 8);
    torch_close(pt);
    st_close(own);
    CHECK_OK(st_open(&meta, in_folder("m.safetensors")));
    CHECK_OK(st_get(meta, META_MASK, ST_BOOL, &mask));
    CHECK(mask->n_dims == 2 && mask->shape[0] == 23 && mask->shape[1] == 23);
    for (int64_t i = 0; i < mask->n; i++)
        CHECK_EQ(((const uint8_t *)mask->data)[i], i % 23 > i / 23);
    st_close(meta);
    free(shell(2, "./hstu export r --what weights --layout x --out y"));
    FILE *f = fopen(in_folder("n.gin"), "w");
    CHECK(f != NULL && fputs(ranking_gin, f) >= 0 && fclose(f) == 0);
    char *text = shell(1, "./hstu train --device cpu --gin-config-file n.gin --data data --out k "
                          "--epochs 1 > log 2>&1; ./hstu export k --what weights --layout meta "
                          "--out y");
    CHECK_CONTAINS(text, "not one of Meta's research models");
    free(text);
}
