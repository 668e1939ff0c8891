/* hstu export --what weights in every format and layout, and what hstu info says of the files. */
#include "model/export_file.h"

#include "base/file.h"
#include "base/mem.h"
#include "format/safetensors.h"
#include "format/torch_file.h"
#include "oom.h"
#include "run_test.h"
#include "test.h"

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

static void check_floats(const st_file *f, const char *name, int64_t row, const float *want,
                         int64_t n_rows, int64_t n) {
    float got[4096];
    const st_tensor *t = st_find(f, name);
    CHECK(t != NULL && n <= 4096);
    CHECK_OK(torch_read_floats(f, t, row, n_rows, got));
    CHECK(memcmp(got, want, (size_t)n * sizeof *got) == 0);
}

TEST(weights_in_every_format) {
    st_file *own;
    st_file *pt;
    make_run();
    free(shell(0, "./hstu export r --what weights --out w.safetensors && ./hstu export r --what "
                  "weights --format pt --out w.pt && ./hstu export r --what weights --format npz "
                  "--out w.npz"));
    CHECK_OK(st_open(&own, in_folder("w.safetensors")));
    CHECK_OK(torch_open(&pt, in_folder("w.pt")));
    CHECK_EQ(pt->n_tensors, own->n_tensors);
    for (size_t i = 0; i < own->n_tensors; i++) {
        const st_tensor *t = &own->tensors[i];
        check_floats(pt, t->name, 0, t->data, t->shape[0], t->n);
    }
    st_close(pt);
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
    st_file *pt;
    const st_tensor *items, *mask;
    make_run();
    free(shell(0, "./hstu export r --what weights --out w.safetensors && ./hstu export r --what "
                  "weights --layout meta --format pt --out m.pt && ./hstu export r --what weights "
                  "--layout meta --out m.safetensors"));
    CHECK_OK(st_open(&own, in_folder("w.safetensors")));
    CHECK_OK(st_get(own, META_ITEMS, ST_F32, &items));
    CHECK_OK(torch_open(&pt, in_folder("m.pt")));
    CHECK_EQ(st_find(pt, META_ITEMS)->shape[0], 3 + 7 * 22 + 1);
    for (int64_t i = 0; i < 23; i++) {
        const float *row = (const float *)items->data + (i + 1) * 8;
        check_floats(pt, META_ITEMS, 3 + 7 * i, row, 1, 8);
        if (i > 0) check_floats(pt, META_ITEMS, 2 + 7 * i, zeros, 1, 8);
    }
    check_floats(pt, META_ITEMS, 0, items->data, 1, 8);
    st_close(pt);
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

/* Three items, one without a title; users 7 and 9. */
static const int64_t item_ids[] = {0, 10, 20, -30}, user_ids[] = {7, 9};
static const uint64_t title_offsets[] = {0, 0, 4, 4, 8}, item_offsets[] = {0, 0, 1, 4, 4};
static const int32_t items[] = {3, 1};
static const float values[] = {.5f, -1.25f, 1e-30f, 3, .1f, 7};

static seq_file toy(bool has_text) {
    return (seq_file){.path = "toy",
                      .n_users = 2,
                      .n_items = 3,
                      .item_id = item_ids,
                      .user_id = user_ids,
                      .has_text_items = has_text,
                      .item_text = {item_offsets, "xa,b", 4},
                      .title = {title_offsets, "\"A\" , b\n", 4}};
}

static const char *path_of(const char *name) {
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", test_folder(), name);
    return path;
}

/* Two rows of three numbers, in two pieces. */
static status write_rows(const char *name, embedding_format format, const embedding_rows *rows) {
    embedding_file *f;
    TRY(embedding_file_create(&f, path_of(name), format, rows));
    status st = embedding_file_add(f, values, 1);
    if (st == OK) st = embedding_file_add(f, values + 3, 1);
    if (st == OK) return embedding_file_commit(f);
    embedding_file_abandon(f);
    return st;
}

static embedding_rows rows_of(const seq_file *data, bool is_users) {
    return (embedding_rows){.data = data, .item = is_users ? NULL : items, .n = 2, .dim = 3};
}

TEST(embedding_file_csv) {
    seq_file s = toy(false), t = toy(true);
    embedding_rows of_items = rows_of(&s, false), of_text = rows_of(&t, false);
    char *text;
    size_t n;
    CHECK_OK(write_rows("i.csv", EMBEDDINGS_CSV, &of_items));
    CHECK_OK(file_read_all(path_of("i.csv"), 4096, &text, &n));
    CHECK_STR(text,
              "id,title,e0,e1,e2\n-30,\", b\n\",0.5,-1.25,1e-30\n10,\"\"\"A\"\" \",3,0.1,7\n");
    mem_free(text);
    CHECK_OK(write_rows("t.csv", EMBEDDINGS_CSV, &of_text));
    CHECK_OK(file_read_all(path_of("t.csv"), 4096, &text, &n));
    CHECK_CONTAINS(text, "\nx,\"\"\"A\"\" \",3,0.1,7\n");
    mem_free(text);
    t.has_text_items = false;
    embedding_rows of_users = rows_of(&s, true);
    CHECK_OK(write_rows("u.csv", EMBEDDINGS_CSV, &of_users));
    CHECK_OK(file_read_all(path_of("u.csv"), 4096, &text, &n));
    CHECK_STR(text, "id,e0,e1,e2\n7,0.5,-1.25,1e-30\n9,3,0.1,7\n");
    mem_free(text);
}

TEST(embedding_file_safetensors) {
    seq_file s = toy(false), t = toy(true);
    embedding_rows of_items = rows_of(&s, false), of_text = rows_of(&t, false);
    const st_tensor *x;
    st_file *f;
    CHECK_OK(write_rows("i", EMBEDDINGS_SAFETENSORS, &of_items));
    CHECK_OK(st_open(&f, path_of("i")));
    CHECK_STR(st_metadata(f, "what"), "items");
    CHECK_OK(st_get(f, "id", ST_I64, &x));
    CHECK(x->n == 2 && ((const int64_t *)x->data)[0] == -30 && ((const int64_t *)x->data)[1] == 10);
    CHECK_OK(st_get(f, "embedding", ST_F32, &x));
    CHECK(x->n_dims == 2 && x->shape[0] == 2 && x->shape[1] == 3);
    CHECK(memcmp(x->data, values, sizeof values) == 0);
    CHECK_OK(st_get(f, "title.offsets", ST_I64, &x));
    CHECK(x->n == 3 && ((const int64_t *)x->data)[1] == 4 && ((const int64_t *)x->data)[2] == 8);
    CHECK_OK(st_get(f, "title.bytes", ST_U8, &x));
    CHECK(x->n == 8 && memcmp(x->data, ", b\n\"A\" ", 8) == 0);
    st_close(f);
    CHECK_OK(write_rows("t", EMBEDDINGS_SAFETENSORS, &of_text));
    CHECK_OK(st_open(&f, path_of("t")));
    CHECK(st_find(f, "id") == NULL);
    CHECK_OK(st_get(f, "id.offsets", ST_I64, &x));
    CHECK(x->n == 3 && ((const int64_t *)x->data)[1] == 0 && ((const int64_t *)x->data)[2] == 1);
    CHECK_OK(st_get(f, "id.bytes", ST_U8, &x));
    CHECK(x->n == 1 && memcmp(x->data, "x", 1) == 0);
    st_close(f);
}

TEST(embedding_file_npz) {
    seq_file t = toy(true);
    embedding_rows of_text = rows_of(&t, false);
    file_map m;
    CHECK_OK(write_rows("t.npz", EMBEDDINGS_NPZ, &of_text));
    CHECK_OK(file_map_open(&m, path_of("t.npz")));
    CHECK(memmem(m.bytes, m.n_bytes, "id.npy", 6) != NULL);
    CHECK(memmem(m.bytes, m.n_bytes, "{'descr': '|S1', ", 17) != NULL);
    CHECK(memmem(m.bytes, m.n_bytes, "\n\0x", 3) != NULL); /* "" and "x" */
    CHECK(memmem(m.bytes, m.n_bytes, "\n, b\n\"A\" ", 9) != NULL);
    CHECK(memmem(m.bytes, m.n_bytes, values, sizeof values) != NULL);
    file_map_close(&m);
}

/* One very long title must not make the file a thousand times longer. */
TEST(embedding_file_npz_has_a_width) {
    static char bytes[5000];
    uint64_t offsets[] = {0, 0, 0, 5000, 5000};
    seq_file s = toy(false);
    memset(bytes, 'x', sizeof bytes);
    s.title = (text_column){offsets, bytes, 4};
    embedding_rows rows = {.data = &s, .item = (int32_t[]){2, 1}, .n = 2, .dim = 3};
    CHECK_FAILS(write_rows("w.npz", EMBEDDINGS_NPZ, &rows), ERR_UNSUPPORTED,
                "use --format safetensors");
    CHECK(!file_exists(path_of("w.npz")));
    CHECK_OK(write_rows("w", EMBEDDINGS_SAFETENSORS, &rows));
}

TEST(embedding_file_wants_all_its_rows) {
    seq_file s = toy(false);
    embedding_rows rows = rows_of(&s, false);
    for (int format = EMBEDDINGS_SAFETENSORS; format <= EMBEDDINGS_CSV; format++) {
        embedding_file *f;
        CHECK_OK(embedding_file_create(&f, path_of("f"), (embedding_format)format, &rows));
        CHECK_OK(embedding_file_add(f, values, 1));
        CHECK_FAILS(embedding_file_add(f, values, 2), ERR_CONFIG, "has room for 1");
        CHECK_FAILS(embedding_file_commit(f), ERR_CONFIG, "1 rows of 2 are missing");
        CHECK(!file_exists(path_of("f")));
    }
}

static status write_one(void *ctx) {
    seq_file s = toy(true);
    embedding_rows rows = rows_of(&s, false);
    return write_rows("o", *(embedding_format *)ctx, &rows);
}

TEST(embedding_file_out_of_memory) {
    for (embedding_format format = EMBEDDINGS_SAFETENSORS; format <= EMBEDDINGS_CSV; format++)
        CHECK(oom_at_each_allocation(write_one, &format) > 3);
}
