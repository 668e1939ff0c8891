#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "format/safetensors.h"
#include "oom.h"
#include "test.h"

static const char *file_path(void) {
    static char path[256];
    snprintf(path, sizeof path, "%s/t.safetensors", test_folder());
    return path;
}

static void write_small(void) {
    static const double d[2] = {1.5, -2};
    static const float w[6] = {0, 1, 2, 3, 4, 5};
    static const int32_t i[1] = {7};
    const st_tensor tensors[] = {
        {.name = "d", .dtype = ST_F64, .n_dims = 1, .shape = {2}, .n = 2, .data = d},
        {.name = "a.weight", .dtype = ST_F32, .n_dims = 2, .shape = {2, 3}, .n = 6, .data = w},
        {.name = "none", .dtype = ST_F32, .n_dims = 2, .shape = {0, 3}, .n = 0, .data = w},
        {.name = "scalar", .dtype = ST_I32, .n_dims = 0, .n = 1, .data = i}};
    const st_pair metadata[] = {{"dtype_str", "float32"}, {"quote", "a \"b\""}};
    CHECK_OK(st_write(file_path(), tensors, 4, metadata, 2));
}

TEST(safetensors_round_trip) {
    st_file *f;
    const st_tensor *t;
    write_small();
    CHECK_OK(st_open(&f, file_path()));
    CHECK_EQ(f->n_tensors, 4);
    CHECK_OK(st_get(f, "a.weight", ST_F32, &t));
    CHECK_EQ(t->n_dims, 2);
    CHECK_EQ(t->shape[1], 3);
    CHECK(((const float *)t->data)[5] == 5);
    CHECK_OK(st_get(f, "scalar", ST_I32, &t));
    CHECK_EQ(t->n, 1);
    CHECK_OK(st_get(f, "none", ST_F32, &t));
    CHECK_EQ(t->n, 0);
    CHECK_FAILS(st_get(f, "d", ST_F32, &t), ERR_FORMAT, "is F64, not F32");
    CHECK_FAILS(st_get(f, "x", ST_F32, &t), ERR_FORMAT, "has no tensor 'x'");
    CHECK(st_find(f, "x") == NULL);
    CHECK_STR(st_metadata(f, "quote"), "a \"b\"");
    CHECK(st_metadata(f, "nothing") == NULL);
    st_close(f);
}

static void write_raw(const char *header, size_t n_data) {
    out_file *f;
    uint64_t n = strlen(header);
    char zeros[64] = {0};
    CHECK_OK(out_file_create(&f, file_path()));
    CHECK_OK(out_file_write(f, &n, 8));
    CHECK_OK(out_file_write(f, header, n));
    CHECK_OK(out_file_write(f, zeros, n_data));
    CHECK_OK(out_file_commit(f));
}

TEST(safetensors_refuses_hostile_files) {
    static const struct {
        const char *header, *text;
        size_t n_data;
    } bad[] = {
        {"[]", "not a JSON object", 0},
        {"{\"a\":1}", "is not an object", 0},
        {"{\"a\":{\"dtype\":\"F33\",\"shape\":[1],\"data_offsets\":[0,4]}}", "'F33'", 4},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", "does not fit", 4},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", "does not fit", 2},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]}}", "does not fit", 4},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", "impossible shape",
         4},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296,4],\"data_offsets\":[0,0]}}",
         "impossible shape", 0},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", "after the last", 5},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", "gap", 8},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},\"b\":{\"dtype\":\"U8\","
         "\"shape\":[4],"
         "\"data_offsets\":[2,6]}}",
         "overlaps another", 6},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", "data_offsets", 0},
        {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", "no shape", 4},
        {"{", "t.safetensors", 0}};
    st_file *f;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        write_raw(bad[i].header, bad[i].n_data);
        CHECK_FAILS(st_open(&f, file_path()), ERR_FORMAT, bad[i].text);
        CHECK(f == NULL);
    }
}

TEST(safetensors_every_cut_is_found) {
    char *bytes;
    size_t n;
    st_file *f;
    write_small();
    CHECK_OK(file_read_all(file_path(), 1 << 20, &bytes, &n));
    mem_free(bytes);
    while (n-- > 0) {
        CHECK(truncate(file_path(), (off_t)n) == 0);
        CHECK_EQ(st_open(&f, file_path()), ERR_FORMAT);
    }
}

static status read_it(void *ctx) {
    st_file *f;
    (void)ctx;
    status st = st_open(&f, file_path());
    st_close(f);
    return st;
}

TEST(safetensors_survive_no_memory) {
    write_small();
    CHECK(oom_at_each_allocation(read_it, NULL) > 3);
}

TEST(safetensors_reads_the_golden_files) {
    st_file *f;
    CHECK_OK(st_open(&f, test_shared("golden/metrics_auc_few.safetensors")));
    CHECK_STR(st_metadata(f, "family"), "metrics_auc");
    const st_tensor *t;
    CHECK_OK(st_get(f, "scores", ST_F32, &t));
    CHECK_EQ(t->shape[0], 37);
    st_close(f);
}

/* A header written last: short data that is still in the buffer, and data beyond it. */
TEST(safetensors_with_a_late_header) {
    const st_pair metadata[] = {{"what", "late"}};
    for (int64_t n = 3; n < 1 << 21; n *= 100) {
        out_file *f;
        st_file *back;
        const st_tensor *t;
        CHECK_OK(st_begin_late(&f, file_path()));
        for (int64_t i = 0; i < n; i++) {
            int64_t value = i * i;
            CHECK_OK(out_file_write(f, &value, sizeof value));
        }
        st_tensor late = {.name = "squares", .dtype = ST_I64, .n_dims = 1, .shape = {n}, .n = n};
        CHECK_OK(st_end_late(f, &late, 1, metadata, 1));
        CHECK_OK(out_file_commit(f));
        CHECK_OK(st_open(&back, file_path()));
        CHECK_STR(st_metadata(back, "what"), "late");
        CHECK_OK(st_get(back, "squares", ST_I64, &t));
        CHECK_EQ(t->n, n);
        for (int64_t i = 0; i < n; i++)
            CHECK_EQ(((const int64_t *)t->data)[i], i * i);
        st_close(back);
    }
}

TEST(safetensors_late_header_without_room) {
    out_file *f;
    char name[ST_LATE_BYTES];
    memset(name, 'x', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    st_tensor late = {.name = name, .dtype = ST_I64, .n_dims = 1};
    CHECK_OK(st_begin_late(&f, file_path()));
    CHECK_FAILS(st_end_late(f, &late, 1, NULL, 0), ERR_USAGE, "room");
    out_file_abandon(f);
    CHECK(!file_exists(file_path()));
}
