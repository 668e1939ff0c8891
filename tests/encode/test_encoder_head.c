#include "encode/encoder_head.h"

#include <math.h>
#include <sys/stat.h>

#include "base/log.h"
#include "format/safetensors.h"
#include "oom.h"
#include "test.h"

/* A model of width 2, of which only the head has weights; sub-folders have one slash. */
static const char CONFIG[] =
    "{\"model_type\": \"%s\", \"architectures\": [\"%s\"], \"hidden_size\": 2, "
    "\"num_hidden_layers\": 1, \"num_attention_heads\": 1, \"intermediate_size\": 2, "
    "\"vocab_size\": 9, \"max_position_embeddings\": 12%s}";

static const char *path_of(const char *name) {
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", test_folder(), name);
    return path;
}

static void write_text(const char *name, const char *text) {
    char folder[512];
    snprintf(folder, sizeof folder, "%s", path_of(name));
    *strrchr(folder, '/') = '\0';
    mkdir(folder, 0777);
    FILE *f = fopen(path_of(name), "w");
    CHECK(f != NULL && fputs(text, f) >= 0 && fclose(f) == 0);
}

static void write_config(const char *type, const char *architecture, const char *more) {
    char text[1024];
    snprintf(text, sizeof text, CONFIG, type, architecture, more);
    write_text("config.json", text);
}

/* Two dense layers, or one. */
static void write_weights(const char *name, const char *tensors[4], const float *w[4], int n_out) {
    st_tensor t[4];
    size_t n = 0;
    for (int i = 0; i < 4; i++)
        if (tensors[i] != NULL) {
            int64_t rows = i < 2 ? 2 : n_out;
            bool is_bias = i % 2 == 1;
            t[n++] = (st_tensor){.name = tensors[i],
                                 .dtype = ST_F32,
                                 .n_dims = is_bias ? 1 : 2,
                                 .shape = {rows, 2},
                                 .n = is_bias ? rows : rows * 2,
                                 .data = w[i]};
        }
    CHECK_OK(st_write(path_of(name), t, n, NULL, 0));
}

static const float SWAP[] = {0, 1, 1, 0}, NONE[] = {0, 0}, LAST[] = {1, 0, 0, 1, 1, 1},
                   BIAS[] = {0, 1, 0};
static const int32_t OFFSETS[] = {0, 2, 3};
static const float HIDDEN[] = {1, 2, 3, -4, 5, 6}, POOLED[] = {.5f, -.5f, 0, 1};

static encoder_head *open_head(head_kind kind) {
    encoder_head *h;
    CHECK_OK(encoder_head_open(&h, test_folder(), kind));
    CHECK_OK(encoder_head_load(h, NULL));
    CHECK_OK(encoder_head_run(h, 2, OFFSETS, HIDDEN, POOLED));
    return h;
}

static void check_line(const encoder_head *h, int32_t b, const char *want) {
    buf text = {0};
    CHECK_OK(encoder_head_line(h, &text, b, OFFSETS));
    CHECK_STR(buf_str(&text), want);
    buf_fini(&text);
}

static void check_floats(const float *got, const float *want, int n) {
    for (int i = 0; i < n; i++)
        if (!(fabsf(got[i] - want[i]) < 1e-6f))
            FAIL_TEST("number %d is %g, not %g", i, (double)got[i], (double)want[i]);
}

/* BERT: the pooler, then a layer; regression writes its numbers. */
TEST(encoder_head_of_bert) {
    write_config("bert", "BertForSequenceClassification",
                 ", \"problem_type\": \"regression\", \"num_labels\": 3");
    write_weights("model.safetensors",
                  (const char *[4]){NULL, NULL, "classifier.weight", "classifier.bias"},
                  (const float *[4]){NULL, NULL, LAST, BIAS}, 3);
    encoder_head *h = open_head(HEAD_AUTO);
    CHECK(h->kind == HEAD_LABELS && h->labels == LABELS_VALUES && h->probability == NULL);
    check_floats(h->out, (const float[]){.5f, .5f, 0, 0, 2, 1}, 6);
    check_line(h, 1, "{\"values\":{\"LABEL_0\":0,\"LABEL_1\":2,\"LABEL_2\":1}}\n");
    CHECK_FAILS(encoder_head_run(h, 2, OFFSETS, HIDDEN, NULL), ERR_FORMAT, "no pooler");
    encoder_head_close(h);
    h = open_head(HEAD_HIDDEN);
    CHECK(h->kind == HEAD_HIDDEN && h->max_len == 12 && !h->is_cut);
    encoder_head_close(h);
}

/* RoBERTa: the first token, a layer with tanh, and another. */
TEST(encoder_head_of_roberta) {
    const char *names[4] = {"classifier.dense.weight", "classifier.dense.bias",
                            "classifier.out_proj.weight", "classifier.out_proj.bias"};
    write_config("roberta", "RobertaForSequenceClassification",
                 ", \"id2label\": {\"0\": \"sad\", \"1\": \"glad\"}");
    write_weights("model.safetensors", names, (const float *[4]){SWAP, NONE, LAST, NONE}, 2);
    encoder_head *h = open_head(HEAD_AUTO);
    float x[] = {tanhf(2), tanhf(1), tanhf(6), tanhf(5)};
    check_floats(h->out, x, 4);
    check_floats(h->probability, (const float[]){1 / (1 + expf(x[1] - x[0]))}, 1);
    check_floats(h->probability + 1, (const float[]){1 - h->probability[0]}, 1);
    CHECK_STR(h->label[1], "glad");
    encoder_head_close(h);
    /* Several labels may be right. */
    write_config("roberta", "RobertaForSequenceClassification",
                 ", \"problem_type\": \"multi_label_classification\"");
    h = open_head(HEAD_AUTO);
    check_floats(h->probability, (const float[]){1 / (1 + expf(-x[0])), 1 / (1 + expf(-x[1]))}, 2);
    encoder_head_close(h);
}

TEST(encoder_head_of_tokens) {
    const float w[] = {1000, 0, 0, 0};
    write_config("distilbert", "", "");
    write_text("config.json", "{\"model_type\": \"distilbert\", \"dim\": 2, \"n_layers\": 1, "
                              "\"n_heads\": 1, \"hidden_dim\": 2, \"vocab_size\": 9, "
                              "\"max_position_embeddings\": 12, "
                              "\"architectures\": [\"DistilBertForTokenClassification\"]}");
    write_weights("model.safetensors",
                  (const char *[4]){NULL, NULL, "classifier.weight", "classifier.bias"},
                  (const float *[4]){NULL, NULL, w, NONE}, 2);
    encoder_head *h = open_head(HEAD_AUTO);
    CHECK(h->is_of_tokens && h->n_out == 2);
    check_line(h, 0,
               "{\"tokens\":[{\"label\":\"LABEL_0\",\"probabilities\":{\"LABEL_0\":1,\"LABEL_1\":0}"
               "},{\"label\":\"LABEL_0\",\"probabilities\":{\"LABEL_0\":1,\"LABEL_1\":0}}]}\n");
    check_line(h, 1,
               "{\"tokens\":[{\"label\":\"LABEL_0\",\"probabilities\":{\"LABEL_0\":1,\"LABEL_1\":0}"
               "}]}\n");
    encoder_head_close(h);
}

#define MODULE(type, path)                                                                         \
    "{\"type\": \"sentence_transformers.models." type "\", \"path\": \"" path "\"}"

static void write_sentence(const char *pooling, const char *more) {
    char text[1024];
    write_config("bert", "BertModel", "");
    snprintf(text, sizeof text, "[%s, %s%s]", MODULE("Transformer", ""),
             MODULE("Pooling", "1_Pooling"), more);
    write_text("modules.json", text);
    write_text("1_Pooling/config.json", pooling);
}

TEST(encoder_head_of_sentences) {
    const float s = sqrtf(2), l = 1 / sqrtf(61);
    write_sentence("{\"pooling_mode\": [\"mean\", \"cls\"]}", "");
    encoder_head *h = open_head(HEAD_AUTO);
    check_floats(h->out, (const float[]){2, -1, 1, 2, 5, 6, 5, 6}, 8);
    check_line(h, 1, "{\"embedding\":[5,6,5,6]}\n");
    encoder_head_close(h);
    /* Flags of before, and their order. */
    write_sentence("{\"pooling_mode_mean_sqrt_len_tokens\": true, \"pooling_mode_max_tokens\": "
                   "true, \"pooling_mode_mean_tokens\": false, \"word_embedding_dimension\": 2}",
                   "");
    h = open_head(HEAD_AUTO);
    check_floats(h->out, (const float[]){3, 2, 4 / s, -2 / s}, 4);
    encoder_head_close(h);
    /* A dense layer without bias; length 1; and the mode of the option. */
    write_text("2_Dense/config.json", "{\"in_features\": 2, \"out_features\": 2, \"bias\": false, "
                                      "\"activation_function\": \"torch.nn.modules.ReLU\"}");
    write_weights("2_Dense/model.safetensors", (const char *[4]){NULL, NULL, "linear.weight", NULL},
                  (const float *[4]){NULL, NULL, SWAP, NULL}, 2);
    write_sentence("{\"pooling_mode\": \"max\"}",
                   ", " MODULE("Dense", "2_Dense") ", " MODULE("Normalize", "3"));
    h = open_head(HEAD_MEAN);
    check_floats(h->out, (const float[]){0, 1, 6 * l, 5 * l}, 4);
    encoder_head_close(h);
}

/* The longest text, and lower case. */
TEST(encoder_head_of_texts) {
    encoder_head *h;
    write_sentence("{\"pooling_mode\": \"cls\"}", "");
    write_text("tokenizer_config.json", "{\"model_max_length\": 1e30}");
    h = open_head(HEAD_AUTO);
    CHECK(h->is_cut && h->max_len == 12 && !h->is_lower);
    CHECK_STR(h->limit_file, "config.json");
    encoder_head_close(h);
    write_text("tokenizer_config.json", "{\"model_max_length\": 7}");
    h = open_head(HEAD_HIDDEN);
    CHECK(h->is_cut && h->max_len == 7);
    CHECK_STR(h->limit_file, "tokenizer_config.json");
    encoder_head_close(h);
    write_text("sentence_roberta_config.json", "{\"max_seq_length\": 5, \"do_lower_case\": true}");
    h = open_head(HEAD_AUTO);
    CHECK(h->is_cut && h->max_len == 5 && h->is_lower);
    CHECK_STR(h->limit_file, "sentence_roberta_config.json");
    encoder_head_close(h);
    /* More than the model has positions for. */
    write_text("sentence_roberta_config.json", "{\"max_seq_length\": 13}");
    h = open_head(HEAD_AUTO);
    CHECK(h->is_cut && h->max_len == 12);
    CHECK_STR(h->limit_file, "config.json");
    encoder_head_close(h);
}

static void check_refused(const char *word) {
    encoder_head *h;
    status st = encoder_head_open(&h, test_folder(), HEAD_AUTO);
    CHECK(st == ERR_UNSUPPORTED || st == ERR_FORMAT);
    CHECK(h == NULL);
    if (strstr(status_reason(), word) == NULL)
        FAIL_TEST("'%s' does not say '%s'", status_reason(), word);
}

TEST(encoder_head_refuses) {
    static const struct {
        const char *file, *text, *word;
    } all[] = {
        {"modules.json", "{}", "modules.json"},
        {"modules.json", "[" MODULE("Pooling", "1_Pooling") "]", "Pooling"},
        {"modules.json", "[" MODULE("Transformer", "../x") "]", "'../x'"},
        {"modules.json", "[" MODULE("Transformer", "..") "]", "'..'"},
        {"modules.json", "[" MODULE("Transformer", "") ", " MODULE("CNN", "") "]", "models.CNN"},
        {"modules.json", "[{\"type\": \"mine.Transformer\", \"path\": \"\"}]", "mine.Transformer"},
        {"modules.json", "[" MODULE("Transformer", "") ", " MODULE("Dense", "2_Dense") "]",
         "Dense"},
        {"1_Pooling/config.json", "{\"pooling_mode\": \"lasttoken\"}", "lasttoken"},
        {"1_Pooling/config.json", "{\"pooling_mode_weightedmean_tokens\": true}", "weightedmean"},
        {"1_Pooling/config.json", "{}", "pooling_mode"},
        {"2_Dense/config.json", "{\"out_features\": 2, \"activation_function\": \"a.Softmax\"}",
         "a.Softmax"},
        {"2_Dense/config.json", "{\"activation_function\": \"Tanh\"}", "out_features"},
        {"2_Dense/config.json", "{\"out_features\": 2, \"use_residual\": true}", "use_residual"},
        {"2_Dense/config.json", "{\"module_input_name\": \"token_embeddings\"}", "token_embedd"},
        {"sentence_bert_config.json", "{\"max_seq_length\": 0}", "max_seq_length"},
        {"sentence_bert_config.json", "{\"odd\": 0}", "'odd'"},
        {"tokenizer_config.json", "{\"model_max_length\": 0}", "tokenizer_config.json: model_max"},
        {"config_sentence_transformers.json", "{\"default_prompt_name\": \"query\"}", "prompt"},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        write_sentence("{\"pooling_mode\": \"cls\"}", ", " MODULE("Dense", "2_Dense"));
        write_text("2_Dense/config.json",
                   "{\"out_features\": 2, \"activation_function\": \"Tanh\"}");
        write_text("sentence_bert_config.json", "{}");
        write_text("tokenizer_config.json", "{}");
        write_text(all[i].file, all[i].text);
        check_refused(all[i].word);
    }
    CHECK_EQ(remove(path_of("modules.json")), 0);
    CHECK_EQ(remove(path_of("config_sentence_transformers.json")), 0);
    write_config("bert", "BertForSequenceClassification", ", \"problem_type\": \"ranking\"");
    check_refused("ranking");
    write_config("bert", "BertForSequenceClassification", ", \"id2label\": {\"1\": \"a\"}");
    check_refused("id2label");
    write_config("bert", "BertForSequenceClassification", ", \"id2label\": {}");
    check_refused("id2label");
    write_config("bert", "BertForSequenceClassification",
                 ", \"id2label\": {\"0\": \"x\", \"1\": \"y\", \"2\": \"x\"}");
    check_refused("config.json: id2label has 'x' twice");
}

/* Its tensors have no prefix, though those of the encoder have. */
TEST(encoder_head_without_tensors) {
    encoder_head *h;
    write_config("bert", "BertForSequenceClassification", "");
    write_weights("model.safetensors",
                  (const char *[4]){"bert.embeddings.word_embeddings.weight", NULL, NULL, NULL},
                  (const float *[4]){SWAP, NULL, NULL, NULL}, 2);
    CHECK_OK(encoder_head_open(&h, test_folder(), HEAD_AUTO));
    CHECK_FAILS(encoder_head_load(h, NULL), ERR_FORMAT,
                ": the head's tensor classifier.weight is missing; --head hidden needs no head");
    encoder_head_close(h);
}

static status open_once(void *ctx) {
    encoder_head *h;
    (void)ctx;
    TRY(encoder_head_open(&h, test_folder(), HEAD_AUTO));
    status st = encoder_head_load(h, NULL);
    if (st == OK) st = encoder_head_run(h, 2, OFFSETS, HIDDEN, POOLED);
    encoder_head_close(h);
    return st;
}

TEST(encoder_head_no_memory) {
    write_config("bert", "BertForSequenceClassification", ", \"num_labels\": 3");
    write_weights("model.safetensors",
                  (const char *[4]){NULL, NULL, "classifier.weight", "classifier.bias"},
                  (const float *[4]){NULL, NULL, LAST, BIAS}, 3);
    CHECK(oom_at_each_allocation(open_once, NULL) > 5);
}

TEST(encoder_heads_as_hugging_face_has_them) {
    char *text;
    int code = test_command(&text, "python3 tests/encoder/compare_heads.py %s", test_program());
    if (code != 0 && code != 1) SKIP_TEST("the packages transformers and sentence-transformers");
    if (code == 1) FAIL_TEST("%s", text);
    free(text);
}
