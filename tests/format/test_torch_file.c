/* .pt files: those of torch.save itself (tests/torch), those of ours, and hostile ones. */
#include "format/torch_file.h"

#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "format/zip.h"
#include "oom.h"
#include "test.h"

static const char *file_path(void) {
    static char path[512];
    snprintf(path, sizeof path, "%s/t.pt", test_folder());
    return path;
}

static void check_tensor(const st_file *f, const char *name, st_dtype dtype, int n_dims,
                         const int64_t *shape, const float *values) {
    const st_tensor *t = st_find(f, name);
    float got[64];
    if (t == NULL) FAIL_TEST("no tensor '%s'", name);
    CHECK_EQ(t->dtype, dtype);
    CHECK_EQ(t->n_dims, n_dims);
    for (int d = 0; d < n_dims; d++)
        CHECK_EQ(t->shape[d], shape[d]);
    if (values == NULL) return;
    CHECK_OK(torch_read_floats(f, t, 0, n_dims > 0 ? shape[0] : 1, got));
    for (int64_t i = 0; i < t->n; i++)
        if (got[i] != values[i]) FAIL_TEST("%s[%d] is %g", name, (int)i, (double)got[i]);
}

/* What tests/torch/make.py has saved: views with strides and offsets, every type, nested names. */
static void check_content(const st_file *f) {
    static const float ones[] = {1, 0, 1, 1, 1, 0}, part[] = {8, 9, 10, 14, 15, 16};
    float transposed[24];
    for (int i = 0; i < 24; i++)
        transposed[i] = (float)(i % 4 * 6 + i / 4);
    int64_t epoch = 0;
    CHECK(torch_find_int(f, "epoch", &epoch) && epoch == 3);
    CHECK(torch_find_int(f, "big", &epoch) && epoch == (int64_t)1 << 40);
    CHECK(torch_find_int(f, "negative", &epoch) && epoch == -5);
    CHECK(!torch_find_int(f, "lr", &epoch) && !torch_find_int(f, "nothing", &epoch));
    CHECK_EQ(f->n_tensors, 20);
    CHECK_STR(f->tensors[0].name, "model_state_dict.module.a");
    check_tensor(f, "model_state_dict.module.b", ST_F32, 2, (int64_t[]){6, 4}, transposed);
    check_tensor(f, "model_state_dict.module.c", ST_F32, 2, (int64_t[]){2, 3}, part);
    check_tensor(f, "model_state_dict.p", ST_F32, 1, (int64_t[]){3}, (float[]){0.5f, -1, 2});
    check_tensor(f, "types.float32", ST_F32, 2, (int64_t[]){2, 3}, ones);
    check_tensor(f, "types.float64", ST_F64, 2, (int64_t[]){2, 3}, ones);
    check_tensor(f, "types.float16", ST_F16, 2, (int64_t[]){2, 3}, ones);
    check_tensor(f, "types.bfloat16", ST_BF16, 2, (int64_t[]){2, 3}, ones);
    check_tensor(f, "types.int64", ST_I64, 2, (int64_t[]){2, 3}, NULL);
    check_tensor(f, "types.bool", ST_BOOL, 2, (int64_t[]){2, 3}, NULL);
    check_tensor(f, "scalar", ST_F32, 0, NULL, (float[]){5});
    check_tensor(f, "empty", ST_F32, 2, (int64_t[]){0, 3}, NULL);
    check_tensor(f, "list[1][1][7]", ST_F32, 1, (int64_t[]){3}, (float[]){0, 0, 0});
    check_tensor(f, "expand", ST_F32, 1, (int64_t[]){5}, (float[]){7, 7, 7, 7, 7});
    CHECK(st_find(f, "epoch") == NULL);
}

TEST(torch_file_reads_what_torch_saves) {
    static const char *const files[] = {"tests/torch/protocol2.pt", "tests/torch/protocol4.pt",
                                        "tests/torch/protocol5.pt"};
    for (int i = 0; i < 3; i++) {
        st_file *f;
        CHECK(torch_is_file(files[i]));
        CHECK_OK(torch_open(&f, files[i]));
        check_content(f);
        st_close(f);
    }
}

TEST(torch_file_names_the_state_of_an_optimizer) {
    st_file *f;
    CHECK_OK(torch_open(&f, "tests/torch/adam.pt"));
    check_tensor(f, "model_state_dict.bias", ST_F32, 1, (int64_t[]){2}, NULL);
    check_tensor(f, "optimizer_state_dict.state[1].exp_avg", ST_F32, 1, (int64_t[]){2}, NULL);
    check_tensor(f, "optimizer_state_dict.state[0].step", ST_F32, 0, NULL, (float[]){1});
    st_close(f);
    CHECK_OK(torch_open(&f, "tests/torch/no_crc.pt")); /* zeros in place of checksums */
    CHECK_EQ(f->n_tensors, 4);
    st_close(f);
}

TEST(torch_file_says_what_it_does_not_read) {
    st_file *f;
    CHECK_FAILS(torch_open(&f, "tests/torch/legacy.pt"), ERR_UNSUPPORTED, "torch before 1.6");
    CHECK_FAILS(torch_open(&f, "tests/torch/script.pt"), ERR_UNSUPPORTED, "TorchScript");
    CHECK_FAILS(torch_open(&f, "tests/torch/class.pt"), ERR_FORMAT,
                "it wants 'torch.nn.modules.linear.Linear'");
    CHECK_FAILS(torch_open(&f, "tests/torch/make.py"), ERR_FORMAT, "not a file of torch.save");
    CHECK(!torch_is_file("tests/torch/make.py") && !torch_is_file("tests") &&
          !torch_is_file("nothing"));
}

static const double numbers[2] = {1.5, -2};
static const float matrix[6] = {0, 1, 2, 3, 4, 5};
static const uint8_t bits[3] = {1, 0, 1};
static const st_tensor small[] = {
    {.name = "d", .dtype = ST_F64, .n_dims = 1, .shape = {2}, .n = 2, .data = numbers},
    {.name = "a.weight", .dtype = ST_F32, .n_dims = 2, .shape = {2, 3}, .n = 6, .data = matrix},
    {.name = "none", .dtype = ST_F32, .n_dims = 2, .shape = {0, 3}, .n = 0, .data = matrix},
    {.name = "mask", .dtype = ST_BOOL, .n_dims = 1, .shape = {3}, .n = 3, .data = bits},
    {.name = "one", .dtype = ST_F32, .n_dims = 0, .n = 1, .data = matrix + 3}};

static status write_small(void *ctx) {
    (void)ctx;
    return torch_write(file_path(), small, 5);
}

TEST(torch_file_round_trip) {
    st_file *f;
    float rows[3];
    CHECK_OK(write_small(NULL));
    CHECK_OK(torch_open(&f, file_path()));
    CHECK_EQ(f->n_tensors, 5);
    check_tensor(f, "d", ST_F64, 1, (int64_t[]){2}, (float[]){1.5f, -2});
    check_tensor(f, "a.weight", ST_F32, 2, (int64_t[]){2, 3}, matrix);
    check_tensor(f, "none", ST_F32, 2, (int64_t[]){0, 3}, NULL);
    check_tensor(f, "one", ST_F32, 0, NULL, (float[]){3});
    const st_tensor *t = st_find(f, "a.weight");
    CHECK_OK(torch_read_floats(f, t, 1, 1, rows));
    CHECK(rows[0] == 3 && rows[2] == 5);
    CHECK_EQ((uintptr_t)t->data % 64, 0);
    CHECK_FAILS(torch_read_floats(f, t, 1, 2, rows), ERR_CONFIG, "has no rows");
    CHECK_FAILS(torch_read_floats(f, st_find(f, "mask"), 0, 3, rows), ERR_FORMAT, "is bool");
    st_close(f);
}

static status open_close(void *ctx) {
    st_file *f;
    (void)ctx;
    TRY(torch_open(&f, "tests/torch/protocol2.pt"));
    st_close(f);
    return OK;
}

TEST(torch_file_out_of_memory) {
    CHECK(oom_at_each_allocation(write_small, NULL) > 5);
    CHECK(oom_at_each_allocation(open_close, NULL) > 5);
}

/* A bit that flips in a storage or in the pickle is seen. */
TEST(torch_file_checksum) {
    st_file *f;
    file_map m;
    char *bytes;
    size_t n;
    CHECK_OK(write_small(NULL));
    CHECK_OK(file_map_open(&m, file_path()));
    n = m.n_bytes;
    bytes = malloc(n);
    memcpy(bytes, m.bytes, n);
    file_map_close(&m);
    for (size_t i = 0; i < n; i++) {
        if (memcmp(bytes + i, matrix, sizeof matrix) != 0) continue;
        bytes[i] ^= 4;
        FILE *out = fopen(file_path(), "w");
        CHECK(out != NULL && fwrite(bytes, 1, n, out) == n && fclose(out) == 0);
        CHECK_FAILS(torch_open(&f, file_path()), ERR_FORMAT, "the file is damaged");
        free(bytes);
        return;
    }
    FAIL_TEST("the matrix is not in the file");
}

/* A file of a given pickle and 16 bytes of storage "0". */
static void write_pickle(const char *pickle, size_t n) {
    zip_writer *w;
    char zeros[16] = {0};
    CHECK_OK(zip_create(&w, file_path()));
    CHECK_OK(zip_begin(w, "x/data.pkl", n, 1));
    CHECK_OK(zip_write(w, pickle, n));
    CHECK_OK(zip_end(w));
    CHECK_OK(zip_begin(w, "x/data/0", 16, 64));
    CHECK_OK(zip_write(w, zeros, 16));
    CHECK_OK(zip_end(w));
    CHECK_OK(zip_commit(w));
}

#define STORAGE(count)                                                                             \
    "((X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\0"                                        \
    "0"                                                                                            \
    "X\x03\0\0\0"                                                                                  \
    "cpuK" count "tQ"
#define TENSOR(storage, rest)                                                                      \
    "\x80\x02}X\x01\0\0\0"                                                                         \
    "actorch._utils\n_rebuild_tensor_v2\n" storage rest "\x89}tRs."

/* Tensors that reach out of their storage, and pickles that would cost memory or time. */
TEST(torch_file_refuses_hostile_tensors) {
    static const struct {
        const char *pickle;
        size_t n;
        const char *reason;
    } cases[] = {
#define CASE(pickle, reason) {pickle, sizeof(pickle) - 1, reason}
        CASE(TENSOR(STORAGE("\x04"), "K\x01K\x04\x85K\x01\x85"), "reaches beyond its storage"),
        CASE(TENSOR(STORAGE("\x04"), "K\x00K\x02\x85K\x04\x85"), "reaches beyond its storage"),
        CASE(TENSOR(STORAGE("\x04"), "J\xff\xff\xff\xffK\x01\x85K\x01\x85"),
             "reaches beyond its storage"),
        CASE(TENSOR(STORAGE("\x05"), "K\x00K\x05\x85K\x01\x85"), "differs from the archive's"),
        CASE(TENSOR(STORAGE("\x04"), "K\x00J\xff\xff\xff\xff\x85K\x01\x85"), "a natural number"),
        CASE(TENSOR(STORAGE("\x04"), "K\x00\x8a\x08\0\0\0\0\0\0\0\x40K\x08\x86K\x01K\x01\x86"),
             "its shape is impossible"),
        CASE(TENSOR(STORAGE("\x04"), "K\x00K\x03\x85\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f\x85"),
             "its strides are impossible"),
        CASE(TENSOR(STORAGE("\x04"), "K\x00K\x02\x85K\x01K\x01\x86"), "one stride a dimension"),
        CASE("\x80\x02}X\x01\0\0\0a]q\x00h\x00"
             "as.",
             "too deep"), /* a list in itself */
        CASE("\x80\x02}(X\x01\0\0\0"
             "a"
             "Nu}.",
             "more than one value"),
        CASE("\x80\x02}}X\x01\0\0\0"
             "bNs]s.",
             "neither a text nor an integer"),
#undef CASE
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        st_file *f;
        write_pickle(cases[i].pickle, cases[i].n);
        CHECK_FAILS(torch_open(&f, file_path()), ERR_FORMAT, cases[i].reason);
    }
    st_file *f;
    static const char fine[] = TENSOR(STORAGE("\x04"), "K\x00K\x02K\x02\x86K\x02K\x01\x86");
    write_pickle(fine, sizeof fine - 1);
    CHECK_OK(torch_open(&f, file_path()));
    check_tensor(f, "a", ST_F32, 2, (int64_t[]){2, 2}, (float[]){0, 0, 0, 0});
    st_close(f);
}

/* Lists of lists that are the same list: 2^24 leaves in a hundred bytes. */
TEST(torch_file_bounds_its_visits) {
    char pickle[256] = "\x80\x02](NNNNe";
    size_t n = 9;
    st_file *f;
    for (int i = 0; i < 12; i++) {
        pickle[n++] = 'q', pickle[n++] = (char)i, pickle[n++] = ']';
        pickle[n++] = '(';
        for (int k = 0; k < 4; k++)
            pickle[n++] = 'h', pickle[n++] = (char)i;
        pickle[n++] = 'e';
    }
    /* Each level leaves the shared list below it on the stack: gather them in a tuple. */
    char whole[300];
    whole[0] = pickle[0], whole[1] = pickle[1], whole[2] = '(';
    memcpy(whole + 3, pickle + 2, n - 2);
    memcpy(whole + n + 1, "t.", 2);
    write_pickle(whole, n + 3);
    CHECK_FAILS(torch_open(&f, file_path()), ERR_FORMAT, "too often");
}

/* What torch itself makes of our files. */
TEST(torch_file_opens_in_torch) {
    char *text;
    const char *python = "build/python/bin/python";
    if (test_command(NULL, "%s -c 'import torch'", python) != 0)
        SKIP_TEST("torch is not installed in build/python");
    CHECK_OK(write_small(NULL));
    CHECK_EQ(test_command(&text,
                          "%s -c \"import torch; d = torch.load('%s', weights_only=True); "
                          "print([(k, v.dtype, tuple(v.shape), v.tolist()) for k, v in "
                          "d.items()])\"",
                          python, file_path()),
             0);
    CHECK_CONTAINS(text, "('d', torch.float64, (2,), [1.5, -2.0])");
    CHECK_CONTAINS(text, "('a.weight', torch.float32, (2, 3), [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]])");
    CHECK_CONTAINS(text, "('none', torch.float32, (0, 3), [])");
    CHECK_CONTAINS(text, "('mask', torch.bool, (3,), [True, False, True])");
    CHECK_CONTAINS(text, "('one', torch.float32, (), 3.0)");
    free(text);
}
