#include "encode/encoder_config.h"

#include "encode/subwords.h"

enum { CONFIG_MAX_BYTES = 16 << 20, PATH_BYTES = 4096 };

/* No size of a model is larger; so products of two of them fit 64 bits with room. */
enum { MAX_SIZE = 1 << 24, MAX_LAYERS = 1024 };

typedef enum {
    FIELD_IGNORED,    /* cannot change a hidden state */
    FIELD_SIZE,       /* a positive integer, required */
    FIELD_COUNT,      /* the same, with a default */
    FIELD_EPS,        /* layer_norm_eps */
    FIELD_ACTIVATION, /* hidden_act */
    FIELD_POSITIONS,  /* must be "absolute" */
    FIELD_OFF,        /* must be false, null or empty */
    FIELD_PADDING,    /* pad_token_id */
    FIELD_TYPE        /* model_type, read first */
} field_kind;

enum {
    ON_BERT = 1 << ENCODER_BERT,
    ON_ROBERTA = 1 << ENCODER_ROBERTA,
    ON_DISTIL = 1 << ENCODER_DISTILBERT,
    ON_BERTS = ON_BERT | ON_ROBERTA,
    ON_ALL = ON_BERTS | ON_DISTIL
};

typedef struct field {
    const char *name;
    field_kind kind;
    int families; /* ON_... */
    size_t at;    /* of a size or count in encoder_config */
} field;

#define AT(member) offsetof(encoder_config, member)

static const field FIELDS[] = {
    {"model_type", FIELD_TYPE, ON_ALL, 0},
    {"hidden_size", FIELD_SIZE, ON_BERTS, AT(dim)},
    {"num_hidden_layers", FIELD_SIZE, ON_BERTS, AT(n_layers)},
    {"num_attention_heads", FIELD_SIZE, ON_BERTS, AT(n_heads)},
    {"intermediate_size", FIELD_SIZE, ON_BERTS, AT(dim_ffn)},
    {"dim", FIELD_SIZE, ON_DISTIL, AT(dim)},
    {"n_layers", FIELD_SIZE, ON_DISTIL, AT(n_layers)},
    {"n_heads", FIELD_SIZE, ON_DISTIL, AT(n_heads)},
    {"hidden_dim", FIELD_SIZE, ON_DISTIL, AT(dim_ffn)},
    {"vocab_size", FIELD_SIZE, ON_ALL, AT(n_words)},
    {"max_position_embeddings", FIELD_SIZE, ON_ALL, AT(n_positions)},
    {"type_vocab_size", FIELD_COUNT, ON_BERTS, AT(n_types)},
    {"layer_norm_eps", FIELD_EPS, ON_BERTS, 0},
    {"hidden_act", FIELD_ACTIVATION, ON_BERTS, 0},
    {"activation", FIELD_ACTIVATION, ON_DISTIL, 0},
    {"position_embedding_type", FIELD_POSITIONS, ON_BERTS, 0},
    {"pad_token_id", FIELD_PADDING, ON_ALL, 0},
    {"is_decoder", FIELD_OFF, ON_ALL, 0},
    {"is_encoder_decoder", FIELD_OFF, ON_ALL, 0},
    {"add_cross_attention", FIELD_OFF, ON_ALL, 0},
    {"pruned_heads", FIELD_OFF, ON_ALL, 0},
    {"quantization_config", FIELD_OFF, ON_ALL, 0},
    {"auto_map", FIELD_OFF, ON_ALL, 0},
};

/* What does not change a hidden state in inference.  `sinusoidal_pos_embds` only says how the
 * position embeddings, which are in the file, were first set; the pooler_... fields of multilingual
 * BERT are not read by transformers either. */
static const char IGNORED[] =
    "_attn_implementation _attn_implementation_autoset _name_or_path _num_labels architectures "
    "attention_dropout attention_probs_dropout_prob bos_token_id chunk_size_feed_forward "
    "classifier_dropout cls_token_id directionality dropout dtype eos_token_id finetuning_task "
    "gradient_checkpointing hidden_dropout_prob id2label initializer_range label2id language "
    "mask_token_id max_length model_max_length name_or_path num_labels output_attentions "
    "output_hidden_states output_past pooler_fc_size pooler_num_attention_heads "
    "pooler_num_fc_layers pooler_size_per_head pooler_type prefix problem_type qa_dropout "
    "return_dict sbert_ce_default_activation_function sentence_transformers sep_token_id "
    "seq_classif_dropout sinusoidal_pos_embds task_specific_params tie_weights_ "
    "tie_word_embeddings tokenizer_class torch_dtype torchscript transformers_version "
    "unk_token_id use_bfloat16 use_cache";

static const struct {
    const char *name;
    encoder_family family;
} MODEL_TYPES[] = {{"bert", ENCODER_BERT},
                   {"roberta", ENCODER_ROBERTA},
                   {"xlm-roberta", ENCODER_ROBERTA},
                   {"camembert", ENCODER_ROBERTA},
                   {"distilbert", ENCODER_DISTILBERT}};

static const struct {
    const char *name;
    epilogue f;
} ACTIVATIONS[] = {{"gelu", EPILOGUE_GELU},           {"gelu_python", EPILOGUE_GELU},
                   {"gelu_new", EPILOGUE_GELU_TANH},  {"gelu_pytorch_tanh", EPILOGUE_GELU_TANH},
                   {"gelu_fast", EPILOGUE_GELU_TANH}, {"relu", EPILOGUE_RELU},
                   {"silu", EPILOGUE_SILU},           {"swish", EPILOGUE_SILU}};

const char *encoder_family_name(encoder_family family) {
    static const char *const names[N_ENCODER_FAMILIES] = {"bert", "roberta", "distilbert"};
    return names[family];
}

int32_t encoder_max_len(const encoder_config *c) {
    return c->family == ENCODER_ROBERTA ? c->n_positions - c->padding_id - 1 : c->n_positions;
}

static const field *find_field(const char *name) {
    for (size_t i = 0; i < sizeof FIELDS / sizeof *FIELDS; i++)
        if (strcmp(FIELDS[i].name, name) == 0) return &FIELDS[i];
    return NULL;
}

static status read_model_type(encoder_config *c, const char *path, const json_value *root) {
    const json_value *v = json_member(root, "model_type");
    if (v == NULL || v->type != JSON_STRING)
        return fail(ERR_FORMAT, "%s: has no model_type: not the config of a Hugging Face model",
                    path);
    for (size_t i = 0; i < sizeof MODEL_TYPES / sizeof *MODEL_TYPES; i++)
        if (strcmp(MODEL_TYPES[i].name, v->string) == 0) {
            c->family = MODEL_TYPES[i].family;
            return OK;
        }
    return fail(ERR_UNSUPPORTED,
                "%s: the architecture '%.60s' is not supported; bert, roberta, xlm-roberta, "
                "camembert and distilbert are",
                path, v->string);
}

static status read_size(encoder_config *c, const char *path, const field *f, const json_value *v) {
    int64_t most = f->at == AT(n_layers) ? MAX_LAYERS : MAX_SIZE;
    if (!v->is_integer || v->integer < 1 || v->integer > most)
        return fail(ERR_FORMAT, "%s: %s must be an integer from 1 to %lld", path, f->name,
                    (long long)most);
    *(int32_t *)((char *)c + f->at) = (int32_t)v->integer;
    return OK;
}

static status read_eps(encoder_config *c, const char *path, const json_value *v) {
    if (v->type != JSON_NUMBER || !(v->number > 0 && v->number < 1))
        return fail(ERR_FORMAT, "%s: layer_norm_eps must be a number between 0 and 1", path);
    c->eps = (float)v->number;
    return OK;
}

static status read_activation(encoder_config *c, const char *path, const field *f,
                              const json_value *v) {
    for (size_t i = 0; v->type == JSON_STRING && i < sizeof ACTIVATIONS / sizeof *ACTIVATIONS; i++)
        if (strcmp(ACTIVATIONS[i].name, v->string) == 0) {
            c->f = ACTIVATIONS[i].f;
            return OK;
        }
    return fail(ERR_UNSUPPORTED,
                "%s: %s '%.60s' is not supported; gelu, gelu_new, gelu_fast, gelu_pytorch_tanh, "
                "relu and silu are",
                path, f->name, v->type == JSON_STRING ? v->string : "");
}

static status read_padding(encoder_config *c, const char *path, const json_value *v) {
    if (!v->is_integer || v->integer < 0 || v->integer > MAX_SIZE)
        return fail(ERR_FORMAT, "%s: pad_token_id must be an integer from 0 to %d", path, MAX_SIZE);
    c->padding_id = (int32_t)v->integer;
    return OK;
}

static bool is_off(const json_value *v) {
    return (v->type == JSON_BOOL && !v->boolean) ||
           ((v->type == JSON_OBJECT || v->type == JSON_ARRAY) && v->n_children == 0);
}

static status read_field(encoder_config *c, const char *path, const field *f, const json_value *v) {
    switch (f->kind) {
    case FIELD_SIZE:
    case FIELD_COUNT:
        return read_size(c, path, f, v);
    case FIELD_EPS:
        return read_eps(c, path, v);
    case FIELD_ACTIVATION:
        return read_activation(c, path, f, v);
    case FIELD_PADDING:
        return read_padding(c, path, v);
    case FIELD_POSITIONS:
        if (v->type == JSON_STRING && strcmp(v->string, "absolute") == 0) return OK;
        return fail(ERR_UNSUPPORTED,
                    "%s: position_embedding_type '%.60s' is not supported; absolute is", path,
                    v->type == JSON_STRING ? v->string : "");
    case FIELD_OFF:
        if (is_off(v)) return OK;
        return fail(ERR_UNSUPPORTED, "%s: %s is set: such a model is not supported", path, f->name);
    default:
        return OK;
    }
}

/* A null means that the field is not set. */
static status read_member(encoder_config *c, const char *path, const json_value *v) {
    const field *f = find_field(v->key);
    if (v->type == JSON_NULL || subwords_among(IGNORED, v->key) != NULL) return OK;
    if (f != NULL && (f->families & 1 << c->family) != 0) return read_field(c, path, f, v);
    return fail(ERR_UNSUPPORTED,
                "%s: the field '%.60s' is not known for a %s model, and may change its result; "
                "remove it if it does not",
                path, v->key, encoder_family_name(c->family));
}

static status check(const encoder_config *c, const char *path) {
    for (size_t i = 0; i < sizeof FIELDS / sizeof *FIELDS; i++) {
        const field *f = &FIELDS[i];
        bool is_needed = f->kind == FIELD_SIZE && (f->families & 1 << c->family) != 0;
        if (is_needed && *(const int32_t *)((const char *)c + f->at) == 0)
            return fail(ERR_FORMAT, "%s: %s is missing", path, f->name);
    }
    if (c->dim % c->n_heads != 0)
        return fail(ERR_FORMAT, "%s: a width of %d cannot be cut into %d heads", path, c->dim,
                    c->n_heads);
    if (encoder_max_len(c) < 1)
        return fail(ERR_FORMAT,
                    "%s: max_position_embeddings %d leaves no position after pad_token_id %d", path,
                    c->n_positions, c->padding_id);
    return OK;
}

status encoder_config_parse(encoder_config *c, const char *path, const json_value *root) {
    *c = (encoder_config){.f = EPILOGUE_GELU, .eps = 1e-12f};
    if (root->type != JSON_OBJECT) return fail(ERR_FORMAT, "%s: is not a JSON object", path);
    TRY(read_model_type(c, path, root));
    c->n_types = c->family == ENCODER_DISTILBERT ? 0 : 2;
    c->padding_id = c->family == ENCODER_ROBERTA ? 1 : 0;
    for (const json_value *v = root->first; v != NULL; v = v->next)
        TRY(read_member(c, path, v));
    return check(c, path);
}

status encoder_config_read(encoder_config *out, const char *folder) {
    char path[PATH_BYTES];
    const json_value *root;
    arena a;
    if (!folder_exists(folder))
        return fail(ERR_IO, "%s: there is no such folder; give the folder of a Hugging Face model",
                    folder);
    TRY(path_join(path, sizeof path, folder, "config.json"));
    arena_init(&a, 1 << 14);
    status st = json_read_file(&a, path, CONFIG_MAX_BYTES, &root);
    if (st == OK) st = encoder_config_parse(out, path, root);
    arena_fini(&a);
    return st;
}
