/* hstu encode from outside. */
#include "base/file.h"
#include "base/mem.h"
#include "cli/bench/bench.h"
#include "format/json.h"
#include "format/safetensors.h"
#include "test.h"

static const char MODEL[] = "tests/golden-encoder/bert-0";

static const char *path_of(const char *name) {
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", test_folder(), name);
    return path;
}

static void write_text(const char *name, const char *text) {
    FILE *f = fopen(path_of(name), "w");
    CHECK(f != NULL && fputs(text, f) >= 0 && fclose(f) == 0);
}

/* Runs hstu encode MODEL with the rest of a command; IN is the test's folder. */
static char *encode(int want, const char *model, const char *rest) {
    char *text;
    int code = test_command(
        &text, "IN=%s; export ASAN_OPTIONS=detect_leaks=0; { %s encode %s --device cpu %s; }",
        test_folder(), test_program(), model, rest);
    if (code != want) FAIL_TEST("%s: code %d, not %d: %s", rest, code, want, text);
    return text;
}

static void says(int want, const char *model, const char *rest, const char *part) {
    char *text = encode(want, model, rest);
    CHECK_CONTAINS(text, part);
    free(text);
}

/* $IN/c: the golden model as a classifier of two labels: the first number of pooled, and 0. */
static void make_classifier(void) {
    enum { MAX_TENSORS = 128, DIM = 48 };
    float w[2 * DIM] = {1}, bias[2] = {0};
    st_file *f;
    st_tensor t[MAX_TENSORS];
    CHECK_EQ(
        test_command(NULL,
                     "mkdir -p %s/c && sed 's/\"BertModel\"/\"BertForSequenceClassification\"/; "
                     "s/^{/{\"id2label\": {\"0\": \"yes\", \"1\": \"no\"},/' %s/config.json "
                     "> %s/c/config.json",
                     test_folder(), MODEL, test_folder()),
        0);
    CHECK_OK(st_open(&f, "tests/golden-encoder/bert-0/model.safetensors"));
    size_t n = f->n_tensors;
    CHECK(n + 2 < MAX_TENSORS);
    memcpy(t, f->tensors, n * sizeof *t);
    t[n++] = (st_tensor){.name = "classifier.weight",
                         .dtype = ST_F32,
                         .n_dims = 2,
                         .shape = {2, DIM},
                         .n = 2 * (int64_t)DIM,
                         .data = w};
    t[n++] = (st_tensor){.name = "classifier.bias",
                         .dtype = ST_F32,
                         .n_dims = 1,
                         .shape = {2},
                         .n = 2,
                         .data = bias};
    CHECK_OK(st_write(path_of("c/model.safetensors"), t, n, NULL, 0));
    st_close(f);
}

TEST(encode_labels_and_embeddings) {
    st_file *labels, *hidden;
    const st_tensor *logits, *p, *pooled, *offsets, *x, *mean;
    char model[512];
    make_classifier();
    snprintf(model, sizeof model, "%s", path_of("c"));
    write_text("in.jsonl", "{\"ids\": [5, 6, 7]}\n{\"ids\": [9]}\n");
    says(0, model, "--input $IN/in.jsonl --out $IN/l.safetensors",
         "softmax probabilities of 2 labels for each sequence; ");
    says(0, model, "--input $IN/in.jsonl --out $IN/h.safetensors --head hidden",
         "2 tensors of heads");
    CHECK_OK(st_open(&labels, path_of("l.safetensors")));
    CHECK_OK(st_open(&hidden, path_of("h.safetensors")));
    CHECK_STR(st_metadata(labels, "labels"), "[\"yes\",\"no\"]");
    CHECK_OK(st_get(labels, "logits", ST_F32, &logits));
    CHECK_OK(st_get(labels, "probabilities", ST_F32, &p));
    CHECK_OK(st_get(labels, "offsets", ST_I64, &offsets));
    CHECK_OK(st_get(hidden, "pooled", ST_F32, &pooled));
    CHECK(logits->shape[0] == 2 && logits->shape[1] == 2 && p->n == 4 && offsets->n == 3);
    for (int b = 0; b < 2; b++) {
        float z = ((const float *)pooled->data)[b * pooled->shape[1]];
        CHECK(((const float *)logits->data)[2 * b] == z);
        CHECK(fabs((double)((const float *)p->data)[2 * b] - 1 / (1 + exp(-(double)z))) < 1e-6);
    }
    st_close(labels);
    char *text = encode(0, model, "--input $IN/in.jsonl 2>/dev/null");
    CHECK_CONTAINS(text, "{\"label\":\"");
    CHECK_CONTAINS(text, "\"probabilities\":{\"yes\":");
    free(text);
    says(0, model, "--input $IN/in.jsonl --head mean --out $IN/l.safetensors",
         "an embedding of 48 numbers for each sequence; ");
    CHECK_OK(st_open(&labels, path_of("l.safetensors")));
    CHECK_OK(st_get(labels, "embedding", ST_F32, &mean));
    CHECK_OK(st_get(hidden, "hidden", ST_F32, &x));
    CHECK(mean->shape[0] == 2 && mean->shape[1] == 48 && st_find(labels, "probabilities") == NULL);
    const float *rows = x->data, *got = mean->data;
    CHECK(fabsf(got[1] - (rows[1] + rows[49] + rows[97]) / 3) < 1e-6f && got[48] == rows[144]);
    st_close(labels);
    st_close(hidden);
    says(1, MODEL, "--input $IN/in.jsonl --head labels",
         "the head's tensor classifier.weight is missing; --head hidden ");
}

TEST(encode_a_golden_case) {
    st_file *got, *want;
    const st_tensor *a, *b;
    says(0, MODEL,
         "--input tests/golden-encoder/bert-0/cases/sliding.safetensors --mask sliding,window=3 "
         "--out $IN/o.safetensors --batch-tokens 100",
         "5 sequences");
    CHECK_OK(st_open(&got, path_of("o.safetensors")));
    CHECK_OK(st_open(&want, "tests/golden-encoder/bert-0/cases/sliding.safetensors"));
    for (int i = 0; i < 2; i++) {
        const char *name = i == 0 ? "hidden" : "pooled";
        double difference = 0, size = 0;
        CHECK_OK(st_get(got, name, ST_F32, &a));
        CHECK_OK(st_get(want, name, ST_F32, &b));
        CHECK(a->shape[0] == b->shape[0] && a->shape[1] == b->shape[1]);
        for (int64_t k = 0; k < a->n; k++) {
            double x = ((const float *)a->data)[k], y = ((const float *)b->data)[k];
            difference += (x - y) * (x - y);
            size += y * y;
        }
        CHECK(sqrt(difference / size) < 3e-6);
    }
    CHECK_OK(st_get(got, "offsets", ST_I64, &a));
    CHECK_EQ(((const int64_t *)a->data)[5], b->n > 0 ? st_find(want, "ids")->n : 0);
    st_close(got);
    st_close(want);
}

/* The numbers of tokens and of pooled values in line n of a text. */
static void check_line(const char *text, int n, size_t n_tokens) {
    arena a;
    const json_value *v;
    for (; n > 0; n--)
        text = strchr(text, '\n') + 1;
    arena_init(&a, 4096);
    CHECK_OK(json_parse(&a, "line", text, strcspn(text, "\n"), &v));
    CHECK_EQ(json_member(v, "hidden")->n_children, n_tokens);
    CHECK_EQ(json_member(v, "hidden")->first->n_children, 48);
    CHECK_EQ(json_member(v, "pooled")->n_children, 48);
    arena_fini(&a);
}

/* JSON lines in and out, by pipes. */
TEST(encode_lines) {
    write_text("in.jsonl", "{\"ids\": [5, 6, 7], \"types\": [0, 1, 1]}\n{\"ids\": [8]}\n");
    char *text = encode(0, MODEL, "--input - < $IN/in.jsonl 2>/dev/null");
    check_line(text, 0, 3);
    check_line(text, 1, 1);
    free(text);
    free(encode(0, MODEL, "--input $IN/in.jsonl --out $IN/o.jsonl"));
    CHECK(file_exists(path_of("o.jsonl")));
}

/* Words of one letter: a model with a vocabulary beside it. */
static const char *model_with_words(void) {
    static char folder[512];
    snprintf(folder, sizeof folder, "%s/m", test_folder());
    CHECK_EQ(test_command(NULL, "mkdir %s && cp %s/config.json %s/model.safetensors %s", folder,
                          MODEL, MODEL, folder),
             0);
    write_text("m/vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\na\nb\n##b\n");
    return folder;
}

TEST(encode_texts) {
    const char *model = model_with_words();
    write_text("t.jsonl", "{\"text\": \"A ab, b\"}\n{\"text\": \"a\", \"pair\": \"b\"}\n");
    char *text = encode(0, model, "--input $IN/t.jsonl --tokens-only");
    CHECK_STR(text, "{\"ids\":[2,4,4,6,1,5,3]}\n{\"ids\":[2,4,3,5,3],\"types\":[0,0,0,1,1]}\n");
    free(text);
    free(encode(0, model, "--input $IN/t.jsonl --out $IN/a.jsonl"));
    free(encode(0, model, "--input $IN/t.jsonl --tokens-only --out $IN/ids.jsonl"));
    free(encode(0, model, "--input $IN/ids.jsonl --out $IN/b.jsonl"));
    CHECK_EQ(test_command(NULL, "cmp %s/a.jsonl %s/b.jsonl", test_folder(), test_folder()), 0);
    says(1, MODEL, "--input $IN/t.jsonl", "t.jsonl: line 1: text needs a tokenizer");
}

TEST(encode_long_texts) {
    const char *model = model_with_words();
    FILE *f = fopen(path_of("long.jsonl"), "w");
    CHECK(f != NULL && fputs("{\"text\": \"", f) >= 0);
    for (int i = 0; i < 200; i++)
        fputs("a ", f);
    CHECK(fputs("\"}\n", f) >= 0 && fclose(f) == 0);
    says(1, model, "--input $IN/long.jsonl", "202 tokens, and the model has positions for 96");
    says(0, model, "--input $IN/long.jsonl --truncate --out $IN/o.safetensors", "96 tokens");
}

/* A sentence-transformers folder: what limits its texts is named, and no file of it is replaced. */
TEST(encode_sentences) {
    static const char *const files[] = {"m/1_Pooling/config.json", "m/sentence_bert_config.json",
                                        "m/model.safetensors"};
    const char *model = model_with_words();
    CHECK_EQ(test_command(NULL, "mkdir %s/m/1_Pooling", test_folder()), 0);
    write_text("m/modules.json",
               "[{\"type\": \"sentence_transformers.models.Transformer\", \"path\": \"\"},"
               " {\"type\": \"sentence_transformers.models.Pooling\", \"path\": \"1_Pooling\"}]");
    write_text(files[0], "{\"pooling_mode\": \"mean\"}");
    write_text(files[1], "{\"max_seq_length\": 16}");
    write_text("t.jsonl", "{\"text\": \"a\"}\n");
    says(0, model, "--input $IN/t.jsonl --out $IN/m/o.jsonl",
         "texts are cut to 16 tokens, the limit in sentence_bert_config.json\n");
    free(encode(0, model, "--input $IN/t.jsonl --out $IN/m/o.jsonl")); /* its own result */
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        for (int k = 0; k < 2; k++) {
            char rest[128];
            snprintf(rest, sizeof rest, "--input $IN/t.jsonl %s $IN/%s",
                     k == 0 ? "--out" : "--out $IN/o.jsonl --profile-scores", files[i]);
            says(2, model, rest, "is a file of the model; give another one");
        }
    says(2, model, "--input $IN/t.jsonl --profile-scores $IN/t.jsonl", "t.jsonl is the input");
}

TEST(encode_refuses) {
    write_text("high.jsonl", "{\"ids\": [5]}\n{\"ids\": [5, 120]}\n");
    write_text("empty.jsonl", "\n");
    write_text("good.jsonl", "{\"ids\": [5]}\n");
    says(1, MODEL, "--input $IN/high.jsonl --out $IN/o.safetensors",
         "high.jsonl: line 2: token 1: id 120 is not in the vocabulary of 120");
    CHECK(!file_exists(path_of("o.safetensors")));
    says(1, MODEL, "--input $IN/empty.jsonl --out $IN/o.jsonl", "no sequence");
    CHECK(!file_exists(path_of("o.jsonl")));
    says(1, MODEL, "--input $IN/none.jsonl", "none.jsonl");
    says(1, "$IN/nowhere", "--input $IN/good.jsonl", "nowhere");
    says(1, "tests", "--input $IN/good.jsonl", "config.json");
    says(2, MODEL, "--input $IN/good.jsonl --out $IN/good.jsonl", "good.jsonl is the input");
    says(2, MODEL, "--input $IN/good.jsonl --out tests/golden-encoder/bert-0/./config.json",
         "config.json is a file of the model");
    says(1, MODEL, "--input $IN/good.jsonl --out $IN/o.jsonl --profile-scores $IN/no/s.json",
         "no/s.json: cannot be written");
    CHECK(!file_exists(path_of("o.jsonl")));
    says(2, MODEL, "", "--input FILE is missing");
    says(2, MODEL, "--input $IN/good.jsonl --dtype int4", "--dtype int4");
    says(2, MODEL, "--input $IN/good.jsonl --mask zigzag", "zigzag");
    says(2, MODEL, "--input $IN/good.jsonl --batch-tokens 0", "--batch-tokens");
    says(0, MODEL, "--input $IN/good.jsonl --out $IN/o.jsonl", "1 sequence, 1 token in ");
    says(0, MODEL, "--input $IN/good.jsonl --dtype float16 --out $IN/o.jsonl",
         "the CPU computes in float32");
}

/* At least three passes, and no more than the seconds ask for; 24 E^2 flops a token and layer, 4 E
 * a pair. */
TEST(encode_bench_counts_its_work) {
    char *text = NULL;
    CHECK_EQ(test_command(&text, "%s bench encode 3 2 20 2 8 --device cpu --seconds 1e-9 --json",
                          test_program()),
             0);
    CHECK_CONTAINS(text, "\"passes\":3,");
    double gflop = strtod(strstr(text, "\"gflop\":") + 8, NULL);
    CHECK(fabs(gflop * 1e9 / (2 * (24 * 256 * 60 + 4 * 16 * 1200)) - 1) < 1e-12);
    free(text);
}

/* hstu bench encode: it checks before it times, and its figures fit each other. */
TEST(encode_bench) {
    char *text = NULL;
    CHECK_EQ(
        test_command(&text,
                     "%s bench encode 3 2 20 2 8 --avg-len 12 --mask sliding,window=4 --device "
                     "cpu --seconds 0.01 --json",
                     test_program()),
        0);
    arena a;
    const json_value *v;
    double ms, tokens, error;
    arena_init(&a, 4096);
    CHECK_OK(json_parse(&a, "row", text, strcspn(text, "\n"), &v));
    CHECK_OK(json_member_double(v, "ms", &ms));
    CHECK_OK(json_member_double(v, "tokens", &tokens));
    CHECK_OK(json_member_double(v, "check_error", &error));
    CHECK(ms > 0 && error == 0 && tokens >= 3 * 4 && tokens <= 3 * 20);
    double fastest;
    CHECK_OK(json_member_double(v, "ms_fastest", &fastest));
    CHECK(fastest > 0 && fastest <= ms);
    CHECK_STR(json_member(v, "mask")->string, "sliding,window=4");
    arena_fini(&a);
    free(text);
    CHECK_EQ(test_command(&text, "%s bench encode 3 2 20 2 --device cpu", test_program()), 2);
    free(text);
    CHECK_EQ(test_command(&text, "%s bench encode 3 2 20 2 x --device cpu", test_program()), 2);
    CHECK_CONTAINS(text, "the head size 'x'");
    free(text);
    CHECK_EQ(
        test_command(&text, "%s bench encode 3 2 20 2 8 --avg-len 30 --device cpu", test_program()),
        2);
    free(text);
}

/* int8 weights: the states of the golden case, off by about as much as its weights are.  A step of
 * rounding is a 127th of a channel's largest weight, so weights are off by 2 to 8 thousandths. */
TEST(encode_with_int8_weights) {
    st_file *got, *want;
    const st_tensor *a, *b;
    double difference = 0, size = 0;
    char *text = encode(0, MODEL,
                        "--input tests/golden-encoder/bert-0/cases/sliding.safetensors --mask "
                        "sliding,window=3 --out $IN/o.safetensors --dtype int8");
    const char *at = strstr(text, "off by ");
    CHECK(at != NULL);
    double moved = strtod(at + strlen("off by "), NULL);
    CHECK(moved > 2e-3 && moved < 8e-3);
    CHECK_CONTAINS(text, "products are computed in float32");
    CHECK_OK(st_open(&got, path_of("o.safetensors")));
    CHECK_OK(st_open(&want, "tests/golden-encoder/bert-0/cases/sliding.safetensors"));
    CHECK_OK(st_get(got, "hidden", ST_F32, &a));
    CHECK_OK(st_get(want, "hidden", ST_F32, &b));
    for (int64_t k = 0; k < a->n; k++) {
        double x = ((const float *)a->data)[k], y = ((const float *)b->data)[k];
        difference += (x - y) * (x - y);
        size += y * y;
    }
    difference = sqrt(difference / size);
    CHECK(difference > 1e-4 && difference < 3 * moved);
    st_close(got);
    st_close(want);
    free(text);
}

/* --plan: a tuned plan is kept, found again by auto, and checked before it is timed. */
TEST(encode_by_a_plan) {
    char *text = NULL;
    if (test_command(NULL, "command -v cc >/dev/null || command -v gcc >/dev/null") != 0)
        SKIP_TEST("no C compiler");
    write_text("good.jsonl", "{\"ids\": [5]}\n");
    says(1, MODEL, "--input $IN/good.jsonl --plan 21845 --cache $IN/cache", "several kernels");
    says(0, MODEL, "--input $IN/good.jsonl --plan auto --cache $IN/cache --out $IN/o.jsonl",
         "no plan is kept");
    CHECK_EQ(test_command(&text,
                          "%s bench encode 2 2 9 2 4 --device cpu --seconds 0.01 --plan 41115 "
                          "--cache %s/cache",
                          test_program(), test_folder()),
             0);
    CHECK_CONTAINS(text, "Layers by plan 41115.");
    free(text);
    /* with seed 1428 both plans have the attention as one kernel, with seed 1 neither */
    for (int i = 0; i < 2; i++) {
        CHECK_EQ(test_command(&text,
                              "%s tune --search random --budget 2 --batch 2 --length 9 --heads 2 "
                              "--dim 4 --device cpu --cache %s/cache --search-seed %d",
                              test_program(), test_folder(), i == 0 ? 1428 : 1),
                 0);
        CHECK_CONTAINS(text, i == 0 ? "\nkept for 'hstu encode --plan auto'"
                                    : "\nnot kept for 'hstu encode --plan auto': plan ");
        free(text);
    }
    CHECK_EQ(
        test_command(&text,
                     "%s bench encode 2 2 9 2 4 --device cpu --seconds 0.01 --plan auto --cache "
                     "%s/cache --mask causal",
                     test_program(), test_folder()),
        0);
    CHECK_CONTAINS(text, "No plan is kept for this batch");
    free(text);
    CHECK_EQ(
        test_command(&text, "%s bench encode 2 2 9 2 4 --device cpu --plan 99999", test_program()),
        2);
    CHECK_CONTAINS(text, "beyond 65535");
    free(text);
}

/* Lengths around a mean: within the length, spread, and the mean on average. */
TEST(encode_bench_lengths_around_a_mean) {
    int32_t lengths[1000];
    int sum = 0, short_ones = 0;
    encode_bench_lengths(1000, 128, 77, 5, lengths);
    for (int i = 0; i < 1000; i++) {
        CHECK(lengths[i] >= 26 && lengths[i] <= 128);
        sum += lengths[i];
        short_ones += lengths[i] < 40;
    }
    CHECK_EQ(sum, 77 * 1000);
    CHECK(short_ones > 50);
    encode_bench_lengths(1, 128, 77, 5, lengths);
    CHECK_EQ(lengths[0], 77);
    encode_bench_lengths(1000, 128, 3, 5, lengths);
    for (int i = 0; i < 1000; i++)
        CHECK(lengths[i] >= 1 && lengths[i] <= 5);
    encode_bench_lengths(1000, 128, 0, 5, lengths);
    for (int i = 0; i < 1000; i++)
        CHECK_EQ(lengths[i], 128);
}

TEST(encode_profile_scores) {
    write_text("in.jsonl", "{\"ids\": [5, 6, 7]}\n{\"ids\": [8]}\n");
    says(0, MODEL, "--input $IN/in.jsonl --out $IN/o.jsonl --profile-scores $IN/scores.json",
         "scores.json");
    CHECK(file_exists(path_of("scores.json")) && file_exists(path_of("scores.json.svg")));
    free(encode(0, MODEL, "--input $IN/in.jsonl --out $IN/plain.jsonl"));
    CHECK_EQ(test_command(NULL, "cmp %s/o.jsonl %s/plain.jsonl", test_folder(), test_folder()), 0);
}
