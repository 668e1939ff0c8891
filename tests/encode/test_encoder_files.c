#include "encode/encoder_files.h"

#include "base/log.h"
#include "oom.h"
#include "test.h"

static char said[1024];
static void hear(void *ctx, log_level level, const char *line) {
    (void)ctx, (void)level;
    snprintf(said, sizeof said, "%s", line);
}

static const char *path_of(const char *name) {
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", test_folder(), name);
    return path;
}

static void write_text(const char *name, const char *text) {
    FILE *f = fopen(path_of(name), "w");
    CHECK(f != NULL && fputs(text, f) >= 0 && fclose(f) == 0);
}

static const float NUMBERS[6] = {1, -2, 0.5f, 3, 0, -0.25f};

/* (3, 2), or (3) for a bias, of float32. */
static st_tensor tensor(const char *name, bool is_vector) {
    return (st_tensor){.name = name,
                       .dtype = ST_F32,
                       .n_dims = is_vector ? 1 : 2,
                       .shape = {3, 2},
                       .n = is_vector ? 3 : 6,
                       .data = NUMBERS};
}

static void write_model(const char *name, const st_tensor *t, size_t n) {
    CHECK_OK(st_write(path_of(name), t, n, NULL, 0));
}

static void check_numbers(const st_tensor *t) {
    float got[6];
    st_floats(t, 0, t->n, got);
    for (int64_t i = 0; i < t->n; i++)
        CHECK(got[i] == NUMBERS[i]);
    st_floats(t, 1, 2, got);
    CHECK(got[0] == -2 && got[1] == 0.5f);
}

static const char WORDS[] = "embeddings.word_embeddings.weight";

/* With and without the prefix, weights of norms under both names. */
TEST(encoder_files_names) {
    const st_tensor plain[] = {tensor(WORDS, false), tensor("embeddings.LayerNorm.weight", true),
                               tensor("embeddings.LayerNorm.bias", true)};
    const st_tensor prefixed[] = {tensor("bert.embeddings.word_embeddings.weight", false),
                                  tensor("bert.embeddings.LayerNorm.gamma", true),
                                  tensor("bert.embeddings.LayerNorm.beta", true)};
    for (int i = 0; i < 2; i++) {
        encoder_files *f;
        const st_tensor *t;
        write_model("model.safetensors", i == 0 ? plain : prefixed, 3);
        CHECK_OK(encoder_files_open(&f, test_folder(), ENCODER_BERT));
        CHECK(encoder_files_has(f, WORDS) && !encoder_files_has(f, "pooler.dense.weight"));
        CHECK_OK(encoder_files_get(f, WORDS, 3, 2, &t));
        check_numbers(t);
        CHECK_OK(encoder_files_get_norm(f, "embeddings.LayerNorm", "weight", 3, &t));
        CHECK_CONTAINS(t->name, i == 0 ? "weight" : "gamma");
        CHECK_OK(encoder_files_get_norm(f, "embeddings.LayerNorm", "bias", 3, &t));
        CHECK_CONTAINS(t->name, i == 0 ? "bias" : "beta");
        CHECK_OK(encoder_files_finish(f, false));
        encoder_files_close(f);
    }
}

TEST(encoder_files_precisions) {
    static const uint16_t bf16[6] = {0x3f80, 0xc000, 0x3f00, 0x4040, 0, 0xbe80};
    static const uint16_t f16[6] = {0x3c00, 0xc000, 0x3800, 0x4200, 0, 0xb400};
    st_tensor t[] = {tensor("a", false), tensor("b", false), tensor("c", false),
                     tensor("d", false)};
    static const double f64[6] = {0};
    encoder_files *f;
    const st_tensor *got;
    t[1].dtype = ST_BF16, t[1].data = bf16;
    t[2].dtype = ST_F16, t[2].data = f16;
    t[3].dtype = ST_F64, t[3].data = f64;
    const st_tensor byte = {
        .name = "byte", .dtype = ST_U8, .n_dims = 1, .shape = {1}, .n = 1, .data = "x"};
    /* A byte before them moves tensors off the addresses of their types. */
    st_tensor in_order[] = {byte, t[3], t[0], t[1], t[2]};
    for (int is_odd = 0; is_odd < 2; is_odd++) {
        write_model("model.safetensors", in_order + !is_odd, 4 + (size_t)is_odd);
        CHECK_OK(encoder_files_open(&f, test_folder(), ENCODER_BERT));
        for (int i = 0; i < 3; i++) {
            CHECK_OK(encoder_files_get(f, t[i].name, 3, 2, &got));
            check_numbers(got);
        }
        CHECK_FAILS(encoder_files_get(f, "d", 3, 2, &got), ERR_UNSUPPORTED, "tensor d is F64");
        encoder_files_close(f);
    }
}

/* Infinite and NaN in each type, in the last place and beyond the first block. */
TEST(encoder_files_not_finite) {
    enum { ROWS = 3000 };
    static float wide[ROWS * 2];
    static uint16_t f16[ROWS * 2], bf16[ROWS * 2];
    st_tensor t[] = {tensor("a", false), tensor("b", false), tensor("c", false)};
    const void *data[] = {wide, f16, bf16};
    const st_dtype types[] = {ST_F32, ST_F16, ST_BF16};
    wide[0] = -3e38f, f16[0] = 0xfbff, bf16[0] = 0xff7f; /* the largest finite ones */
    for (int i = 0; i < 3; i++)
        t[i].dtype = types[i], t[i].data = data[i], t[i].shape[0] = ROWS, t[i].n = ROWS * 2;
    for (int k = 0; k < 3; k++) {
        const size_t at = k == 1 ? ROWS * 2 - 1 : 5000;
        encoder_files *f;
        const st_tensor *got;
        if (k > 0) {
            wide[at] = k == 1 ? INFINITY : NAN;
            f16[at] = k == 1 ? 0xfc00 : 0x7e01, bf16[at] = k == 1 ? 0x7f80 : 0xffc0;
        }
        write_model("model.safetensors", t, 3);
        CHECK_OK(encoder_files_open(&f, test_folder(), ENCODER_BERT));
        for (int i = 0; i < 3; i++)
            if (k == 0)
                CHECK_OK(encoder_files_get(f, t[i].name, ROWS, 2, &got));
            else
                CHECK_FAILS(encoder_files_get(f, t[i].name, ROWS, 2, &got), ERR_NUMERIC,
                            k == 1 ? "row 2999 of tensor" : "row 2500 of tensor");
        encoder_files_close(f);
        wide[at] = 0, f16[at] = 0, bf16[at] = 0;
    }
}

TEST(encoder_files_missing_or_of_another_shape) {
    st_tensor t[] = {tensor(WORDS, false)};
    encoder_files *f;
    const st_tensor *got;
    CHECK_FAILS(encoder_files_open(&f, test_folder(), ENCODER_BERT), ERR_IO, "model.safetensors");
    CHECK(f == NULL);
    write_model("model.safetensors", t, 1);
    CHECK_OK(encoder_files_open(&f, test_folder(), ENCODER_BERT));
    CHECK_FAILS(encoder_files_get(f, WORDS, 2, 3, &got), ERR_FORMAT, "(3, 2)");
    CHECK_FAILS(encoder_files_get(f, WORDS, 3, 4, &got), ERR_FORMAT, "asks for (3, 4)");
    CHECK_FAILS(encoder_files_get(f, WORDS, 6, 0, &got), ERR_FORMAT, "asks for (6)");
    CHECK_FAILS(encoder_files_get(f, "pooler.dense.bias", 3, 0, &got), ERR_FORMAT,
                "pooler.dense.bias is missing");
    CHECK_FAILS(encoder_files_get_norm(f, "n", "weight", 3, &got), ERR_FORMAT, "n.weight");
    encoder_files_close(f);
}

/* Heads are said, buffers pass in silence, a stranger within the encoder is refused. */
TEST(encoder_files_what_is_left) {
    st_tensor t[] = {tensor("bert.embeddings.word_embeddings.weight", false),
                     tensor("bert.embeddings.position_ids", true), tensor("cls.bias", true),
                     tensor("bert.encoder.layer.9.output.dense.bias", true)};
    encoder_files *f;
    const st_tensor *got;
    write_model("model.safetensors", t, 3);
    log_set_sink(hear, NULL);
    CHECK_OK(encoder_files_open(&f, test_folder(), ENCODER_BERT));
    CHECK_OK(encoder_files_get(f, WORDS, 3, 2, &got));
    CHECK_OK(encoder_files_finish(f, false));
    encoder_files_close(f);
    CHECK_CONTAINS(said, "1 tensor of heads left out (cls.bias)");
    write_model("model.safetensors", t, 4);
    CHECK_OK(encoder_files_open(&f, test_folder(), ENCODER_BERT));
    CHECK_OK(encoder_files_get(f, WORDS, 3, 2, &got));
    CHECK_FAILS(encoder_files_finish(f, false), ERR_UNSUPPORTED, "layer.9.output");
    encoder_files_close(f);
    log_set_sink(NULL, NULL);
}

static void write_shards(void) {
    st_tensor a[] = {tensor(WORDS, false)}, b[] = {tensor("x.weight", true), tensor("y", false)};
    write_model("model-1.safetensors", a, 1);
    write_model("model-2.safetensors", b, 2);
    write_text("model.safetensors.index.json",
               "{\"metadata\": {\"total_size\": 1}, \"weight_map\": {"
               "\"embeddings.word_embeddings.weight\": \"model-1.safetensors\", "
               "\"x.weight\": \"model-2.safetensors\", \"y\": \"model-2.safetensors\"}}");
}

TEST(encoder_files_in_shards) {
    encoder_files *f;
    const st_tensor *t;
    write_shards();
    CHECK_OK(encoder_files_open(&f, test_folder(), ENCODER_BERT));
    CHECK_OK(encoder_files_get(f, WORDS, 3, 2, &t));
    check_numbers(t);
    CHECK_OK(encoder_files_get(f, "x.weight", 3, 0, &t));
    CHECK_OK(encoder_files_get(f, "y", 3, 2, &t));
    encoder_files_close(f);
}

TEST(encoder_files_hostile_indices) {
    static const struct {
        const char *map, *word;
        status code;
    } all[] = {
        {"{\"a\": \"../secret.safetensors\"}", "same folder", ERR_FORMAT},
        {"{\"a\": \"/etc/x.safetensors\"}", "same folder", ERR_FORMAT},
        {"{\"a\": \".safetensors\"}", "same folder", ERR_FORMAT},
        {"{\"a\": \"weights.bin\"}", "same folder", ERR_FORMAT},
        {"{\"a\": 5}", "same folder", ERR_FORMAT},
        {"{\"a\": \"gone.safetensors\"}", "gone.safetensors", ERR_IO},
        {"{\"a\": \"model-1.safetensors\"}", "no tensor a", ERR_FORMAT},
        {"[]", "weight_map", ERR_FORMAT},
    };
    encoder_files *f;
    char text[256];
    write_shards();
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        snprintf(text, sizeof text, "{\"weight_map\": %s}", all[i].map);
        write_text("model.safetensors.index.json", text);
        CHECK_FAILS(encoder_files_open(&f, test_folder(), ENCODER_BERT), all[i].code, all[i].word);
        CHECK(f == NULL);
    }
    write_text("model.safetensors.index.json", "{\"weight_map\": {}} x");
    CHECK_FAILS(encoder_files_open(&f, test_folder(), ENCODER_BERT), ERR_FORMAT, "index.json");
}

static status open_shards(void *ctx) {
    encoder_files *f;
    (void)ctx;
    status st = encoder_files_open(&f, test_folder(), ENCODER_BERT);
    encoder_files_close(f);
    return st;
}

TEST(encoder_files_no_memory) {
    write_shards();
    CHECK(oom_at_each_allocation(open_shards, NULL) > 5);
}
