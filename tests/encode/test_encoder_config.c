#include "encode/encoder_config.h"

#include "oom.h"
#include "test.h"

static const char BERT[] =
    "{\"model_type\": \"bert\", \"hidden_size\": 48, \"num_hidden_layers\": 3, "
    "\"num_attention_heads\": 4, \"intermediate_size\": 96, \"vocab_size\": 120, "
    "\"max_position_embeddings\": 96, ";
static const char ROBERTA[] =
    "{\"model_type\": \"roberta\", \"hidden_size\": 48, \"num_hidden_layers\": 3, "
    "\"num_attention_heads\": 4, \"intermediate_size\": 96, \"vocab_size\": 120, "
    "\"max_position_embeddings\": 20, ";
static const char DISTIL[] = "{\"model_type\": \"distilbert\", \"dim\": 48, \"n_layers\": 3, "
                             "\"n_heads\": 4, \"hidden_dim\": 96, \"vocab_size\": 120, "
                             "\"max_position_embeddings\": 96, ";

static status parse_text(encoder_config *c, const char *text) {
    const json_value *root;
    arena a;
    arena_init(&a, 4096);
    status st = json_parse(&a, "config.json", text, strlen(text), &root);
    if (st == OK) st = encoder_config_parse(c, "config.json", root);
    arena_fini(&a);
    return st;
}

static status parse(encoder_config *c, const char *begin, const char *rest) {
    char text[1024];
    snprintf(text, sizeof text, "%s%s}", begin, rest);
    return parse_text(c, text);
}

TEST(encoder_config_of_each_family) {
    encoder_config c;
    CHECK_OK(parse(&c, BERT, "\"type_vocab_size\": 3, \"layer_norm_eps\": 1e-5"));
    CHECK(c.family == ENCODER_BERT && c.dim == 48 && c.n_layers == 3 && c.n_heads == 4);
    CHECK(c.dim_ffn == 96 && c.n_words == 120 && c.n_positions == 96 && c.n_types == 3);
    CHECK(c.eps == 1e-5f && c.f == EPILOGUE_GELU);
    CHECK_EQ(encoder_max_len(&c), 96);
    CHECK_OK(parse(&c, ROBERTA, "\"pad_token_id\": 3"));
    CHECK(c.family == ENCODER_ROBERTA && c.padding_id == 3 && c.n_types == 2);
    CHECK_EQ(encoder_max_len(&c), 16);
    CHECK_OK(parse(&c, DISTIL, "\"sinusoidal_pos_embds\": true"));
    CHECK(c.family == ENCODER_DISTILBERT && c.dim == 48 && c.n_layers == 3 && c.n_types == 0);
    CHECK_EQ(encoder_max_len(&c), 96);
    CHECK_STR(encoder_family_name(c.family), "distilbert");
}

/* What transformers assumes where a field is not there. */
TEST(encoder_config_defaults) {
    encoder_config c;
    CHECK_OK(parse(&c, BERT, "\"layer_norm_eps\": null"));
    CHECK(c.eps == 1e-12f && c.f == EPILOGUE_GELU && c.n_types == 2);
    CHECK_OK(parse(&c, ROBERTA, "\"use_cache\": true"));
    CHECK_EQ(c.padding_id, 1);
    CHECK_EQ(encoder_max_len(&c), 18);
}

TEST(encoder_config_activations) {
    static const struct {
        const char *name;
        epilogue f;
    } all[] = {{"gelu", EPILOGUE_GELU},
               {"gelu_new", EPILOGUE_GELU_TANH},
               {"gelu_pytorch_tanh", EPILOGUE_GELU_TANH},
               {"relu", EPILOGUE_RELU},
               {"silu", EPILOGUE_SILU}};
    encoder_config c;
    char rest[64];
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        snprintf(rest, sizeof rest, "\"hidden_act\": \"%s\"", all[i].name);
        CHECK_OK(parse(&c, BERT, rest));
        CHECK(c.f == all[i].f);
    }
    CHECK_OK(parse(&c, DISTIL, "\"activation\": \"relu\""));
    CHECK(c.f == EPILOGUE_RELU);
}

/* Each is refused with its name. */
TEST(encoder_config_refuses_what_it_does_not_honour) {
    static const struct {
        const char *rest, *word;
        status code;
    } all[] = {
        {"\"hidden_act\": \"quick_gelu\"", "quick_gelu", ERR_UNSUPPORTED},
        {"\"position_embedding_type\": \"relative_key\"", "relative_key", ERR_UNSUPPORTED},
        {"\"is_decoder\": true", "is_decoder", ERR_UNSUPPORTED},
        {"\"add_cross_attention\": true", "add_cross_attention", ERR_UNSUPPORTED},
        {"\"pruned_heads\": {\"0\": [1]}", "pruned_heads", ERR_UNSUPPORTED},
        {"\"quantization_config\": {\"bits\": 8}", "quantization_config", ERR_UNSUPPORTED},
        {"\"auto_map\": {\"AutoModel\": \"x.Y\"}", "auto_map", ERR_UNSUPPORTED},
        {"\"embedding_size\": 128", "embedding_size", ERR_UNSUPPORTED},
        {"\"n_heads\": 4", "n_heads", ERR_UNSUPPORTED}, /* of distilbert */
        {"\"layer_norm_eps\": 0", "layer_norm_eps", ERR_FORMAT},
        {"\"layer_norm_eps\": \"small\"", "layer_norm_eps", ERR_FORMAT},
        {"\"type_vocab_size\": 0", "type_vocab_size", ERR_FORMAT},
        {"\"type_vocab_size\": 2.5", "type_vocab_size", ERR_FORMAT},
        {"\"pad_token_id\": -1", "pad_token_id", ERR_FORMAT},
    };
    encoder_config c;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        CHECK_FAILS(parse(&c, BERT, all[i].rest), all[i].code, all[i].word);
    CHECK_OK(parse(&c, BERT, "\"is_decoder\": false, \"pruned_heads\": {}, \"auto_map\": null"));
    CHECK_FAILS(parse(&c, DISTIL, "\"layer_norm_eps\": 1e-5"), ERR_UNSUPPORTED, "layer_norm_eps");
    CHECK_FAILS(parse(&c, ROBERTA, "\"pad_token_id\": 19"), ERR_FORMAT, "pad_token_id");
}

TEST(encoder_config_refuses_other_files) {
    static const struct {
        const char *text, *word;
        status code;
    } all[] = {
        {"{\"model_type\": \"gpt2\"}", "gpt2", ERR_UNSUPPORTED},
        {"{\"hidden_size\": 5}", "model_type", ERR_FORMAT},
        {"[1, 2]", "object", ERR_FORMAT},
        {"{", "config.json", ERR_FORMAT},
        {"{\"model_type\": \"bert\"}", "hidden_size is missing", ERR_FORMAT},
        {"{\"model_type\": \"distilbert\", \"dim\": 8}", "n_layers is missing", ERR_FORMAT},
        {"{\"model_type\": \"bert\", \"hidden_size\": 99999999}", "hidden_size", ERR_FORMAT},
        {"{\"model_type\": \"bert\", \"num_hidden_layers\": 2000}", "num_hidden_layers",
         ERR_FORMAT},
        {"{\"model_type\": \"bert\", \"hidden_size\": 10, \"num_hidden_layers\": 1, "
         "\"num_attention_heads\": 3, \"intermediate_size\": 9, \"vocab_size\": 1, "
         "\"max_position_embeddings\": 9}",
         "3 heads", ERR_FORMAT},
    };
    encoder_config c;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        CHECK_FAILS(parse_text(&c, all[i].text), all[i].code, all[i].word);
    CHECK_FAILS(encoder_config_read(&c, "/no/such/folder"), ERR_IO, "/no/such/folder");
    CHECK_FAILS(encoder_config_read(&c, test_folder()), ERR_IO, "config.json");
}

static status parse_once(void *ctx) {
    return parse(ctx, BERT, "\"id2label\": {\"0\": \"a\", \"1\": \"b\"}");
}

TEST(encoder_config_no_memory) {
    encoder_config c;
    CHECK(oom_at_each_allocation(parse_once, &c) > 0);
}
