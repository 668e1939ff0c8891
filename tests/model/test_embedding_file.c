#include "model/embedding_file.h"

#include "base/file.h"
#include "base/mem.h"
#include "format/safetensors.h"
#include "oom.h"
#include "test.h"

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
