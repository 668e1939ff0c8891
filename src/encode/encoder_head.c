#include "encode/encoder_head.h"

#include "encode/bert_layer.h"
#include "encode/encoder_files.h"
#include "encode/subwords.h"
#include "format/json.h"

enum { MAX_WIDTH = 1 << 16 };

/* A dense layer, or without a name: rows get length 1. */
struct head_step {
    const char *folder, *name; /* of the weights, and of the tensors in it: "classifier" */
    int32_t n_out;
    bool has_no_bias;
    epilogue f;
    bert_dense dense;
};

/* The name of a class or an option, and what it means here. */
typedef struct meaning {
    const char *name;
    int value;
} meaning;

const char *const encoder_head_names[N_HEADS + 1] = {
    "auto", "hidden", "labels", "cls", "max", "mean", "mean_sqrt_len_tokens", "pooler", NULL};

/* Before sentence-transformers 5 each mode had a flag; rows are side by side in this order. */
static const meaning MODES[] = {{"cls", HEAD_CLS},
                                {"max", HEAD_MAX},
                                {"mean", HEAD_MEAN},
                                {"mean_sqrt_len_tokens", HEAD_MEAN_SQRT},
                                {"pooling_mode_cls_token", HEAD_CLS},
                                {"pooling_mode_max_tokens", HEAD_MAX},
                                {"pooling_mode_mean_tokens", HEAD_MEAN},
                                {"pooling_mode_mean_sqrt_len_tokens", HEAD_MEAN_SQRT},
                                {NULL, 0}};
static const meaning ACTIVATIONS[] = {{"Identity", EPILOGUE_NONE}, {"Tanh", EPILOGUE_TANH},
                                      {"ReLU", EPILOGUE_RELU},     {"GELU", EPILOGUE_GELU},
                                      {"SiLU", EPILOGUE_SILU},     {NULL, 0}};
static const meaning LABELS[] = {{"single_label_classification", LABELS_SOFTMAX},
                                 {"multi_label_classification", LABELS_SIGMOID},
                                 {"regression", LABELS_VALUES},
                                 {"Sigmoid", LABELS_SIGMOID},
                                 {"Identity", LABELS_VALUES},
                                 {NULL, 0}};

/* What transformers puts after the first token of a sequence: a dense layer and its activation, or
 * the pooler where there is no name; and the last layer. */
static const struct {
    const char *dense;
    epilogue f;
    const char *last;
} CLASSIFIERS[N_ENCODER_FAMILIES] = {
    [ENCODER_BERT] = {NULL, EPILOGUE_NONE, "classifier"},
    [ENCODER_ROBERTA] = {"classifier.dense", EPILOGUE_TANH, "classifier.out_proj"},
    [ENCODER_DISTILBERT] = {"pre_classifier", EPILOGUE_RELU, "classifier"}};

/* What a name means, of which the part after the last dot counts: torch.nn...activation.Tanh. */
static status find_meaning(const meaning *of, const char *path, const char *what, const char *name,
                           int *out) {
    const char *dot = strrchr(name, '.');
    for (; of->name != NULL; of++)
        if (strcmp(of->name, dot != NULL ? dot + 1 : name) == 0) {
            *out = of->value;
            return OK;
        }
    return fail(ERR_UNSUPPORTED, "%s: %s '%.80s' is not supported", path, what, name);
}

static status add_step(encoder_head *h, head_step step) {
    if (h->n_steps == HEAD_MAX_STEPS)
        return fail(ERR_UNSUPPORTED, "%s: more than %d modules", step.folder, HEAD_MAX_STEPS);
    h->step[h->n_steps++] = step;
    if (step.name != NULL) h->n_out = step.n_out;
    return OK;
}

static status add_mode(encoder_head *h, const char *path, const char *name) {
    int mode;
    if (h->n_modes == HEAD_MAX_MODES) return subwords_damaged(path, "pooling_mode");
    TRY(find_meaning(MODES, path, "the pooling mode", name, &mode));
    h->mode[h->n_modes++] = (head_kind)mode;
    return OK;
}

static status read_pooling(encoder_head *h, const char *path, const json_value *root) {
    const json_value *mode = json_member(root, "pooling_mode");
    if (mode != NULL && mode->type == JSON_STRING) TRY(add_mode(h, path, mode->string));
    for (const json_value *v = mode != NULL ? mode->first : NULL; v != NULL; v = v->next)
        TRY(add_mode(h, path, v->type == JSON_STRING ? v->string : ""));
    for (const meaning *m = MODES; mode == NULL && m->name != NULL; m++)
        if (subwords_bool(root, m->name, false)) TRY(add_mode(h, path, m->name));
    for (const json_value *v = root->first; v != NULL; v = v->next)
        if (v->type == JSON_BOOL && v->boolean && strcmp(v->key, "include_prompt") != 0)
            TRY(find_meaning(MODES, path, "the pooling mode", v->key, &(int){0}));
    if (h->n_modes == 0) return subwords_damaged(path, "pooling_mode");
    if (h->kind >= HEAD_CLS) { /* --head replaces them */
        h->mode[0] = h->kind;
        h->n_modes = 1;
    }
    TRY(encoder_config_read(&h->config, h->model));
    h->n_out = h->n_modes * h->config.dim;
    return OK;
}

static status read_width(const char *path, const json_value *root, const char *name, int32_t *out) {
    const json_value *v = subwords_member(root, name, JSON_NUMBER);
    if (v == NULL || !v->is_integer || v->integer < 1 || v->integer > MAX_WIDTH)
        return subwords_damaged(path, name);
    *out = (int32_t)v->integer;
    return OK;
}

static status read_dense(encoder_head *h, const char *folder, const char *path,
                         const json_value *root) {
    head_step step = {.folder = folder, .name = "linear"};
    const char *input = subwords_text(root, "module_input_name");
    int f;
    TRY(subwords_allow(path, root,
                       "in_features out_features ?bias activation_function module_input_name "
                       "module_output_name"));
    if (input[0] != '\0' && strcmp(input, "sentence_embedding") != 0)
        return fail(ERR_UNSUPPORTED, "%s: module_input_name '%.60s' is not supported", path, input);
    TRY(read_width(path, root, "out_features", &step.n_out));
    TRY(find_meaning(ACTIVATIONS, path, "activation_function",
                     subwords_text(root, "activation_function"), &f));
    step.f = (epilogue)f;
    step.has_no_bias = !subwords_bool(root, "bias", true);
    return add_step(h, step);
}

/* The folder of the model, and the longest text. */
static status read_transformer(encoder_head *h, const char *folder) {
    char path[HEAD_PATH_BYTES];
    static const char *const names[] = {"sentence_bert_config.json", "sentence_roberta_config.json",
                                        "sentence_distilbert_config.json",
                                        "sentence_camembert_config.json",
                                        "sentence_xlm-roberta_config.json"};
    const json_value *root = NULL, *words, *most;
    size_t i = 0;
    snprintf(h->model, sizeof h->model, "%s", folder);
    TRY(subwords_read(&h->memory, folder, "tokenizer_config.json", JSON_OBJECT, path, &words));
    for (; root == NULL && i < sizeof names / sizeof *names; i++)
        TRY(subwords_read(&h->memory, folder, names[i], JSON_OBJECT, path, &root));
    if (root != NULL)
        TRY(subwords_allow(path, root,
                           "max_seq_length ?do_lower_case transformer_task modality_config "
                           "module_output_name"));
    h->is_cut = true;
    h->is_lower = subwords_bool(root, "do_lower_case", false);
    most = subwords_member(root, "max_seq_length", JSON_NUMBER);
    h->limit_file = most != NULL ? names[i - 1] : "tokenizer_config.json";
    if (most == NULL) most = subwords_member(words, "model_max_length", JSON_NUMBER);
    if (most != NULL && !(most->number >= 1)) {
        TRY(path_join(path, sizeof path, folder, h->limit_file));
        return subwords_damaged(path, most->key);
    }
    h->max_len = most != NULL && most->number < INT32_MAX ? (int64_t)most->number : INT32_MAX;
    return OK;
}

/* A Transformer, then Pooling, then any number of the others. */
static status read_module(encoder_head *h, const char *folder, const char *list,
                          const json_value *v, bool is_first) {
    static const meaning modules[] = {
        {"Transformer", 0}, {"Pooling", 1}, {"Dense", 2}, {"Normalize", 3}, {NULL, 0}};
    const char *type = subwords_text(v, "type"), *part = subwords_text(v, "path");
    const json_value *root;
    char path[HEAD_PATH_BYTES];
    int module;
    if (part[0] == '.' || strchr(part, '/') != NULL)
        return fail(ERR_FORMAT, "%s: the path '%.60s' is not a folder beside it", list, part);
    /* A class of somebody else is none of these. */
    bool is_theirs = strncmp(type, "sentence_transformers.", 22) == 0;
    TRY(find_meaning(is_theirs ? modules : modules + 4, list, "the module", type, &module));
    if (is_first != (module == 0) || (h->n_modes == 0) != (module < 2))
        return fail(ERR_UNSUPPORTED, "%s: the module '%.80s' is not supported at its place", list,
                    type);
    if (part[0] != '\0') {
        TRY(path_join(path, sizeof path, folder, part));
        TRY(arena_copy_text(&h->memory, path, strlen(path), &folder));
    }
    if (module == 0) return read_transformer(h, folder);
    if (module == 3) return add_step(h, (head_step){.folder = folder});
    TRY(subwords_read(&h->memory, folder, "config.json", JSON_OBJECT, path, &root));
    if (root == NULL) return subwords_damaged(path, "the file");
    return module == 1 ? read_pooling(h, path, root) : read_dense(h, folder, path, root);
}

/* sentence-transformers; *function: what it applies to a classifier's logits, or "". */
static status read_modules(encoder_head *h, const char *folder, const char **function) {
    char path[HEAD_PATH_BYTES];
    const json_value *root, *more;
    TRY(subwords_read(&h->memory, folder, "config_sentence_transformers.json", JSON_OBJECT, path,
                      &more));
    *function = subwords_text(more, "activation_fn");
    if (subwords_text(more, "default_prompt_name")[0] != '\0')
        return fail(ERR_UNSUPPORTED,
                    "%s: default_prompt_name is not supported; put the prompt before the texts and "
                    "set the name to null",
                    path);
    TRY(subwords_read(&h->memory, folder, "modules.json", JSON_ARRAY, path, &root));
    for (const json_value *v = root != NULL ? root->first : NULL; v != NULL; v = v->next)
        if (v == root->first || h->kind != HEAD_HIDDEN)
            TRY(read_module(h, folder, path, v, v == root->first));
    return OK;
}

/* Labels are keys of a JSON object. */
static status check_distinct(encoder_head *h, const char *path) {
    const char **sorted;
    size_t n = (size_t)h->n_out;
    TRY(ARENA_NEW_RAW(&h->memory, &sorted, n));
    memcpy(sorted, h->label, n * sizeof *sorted);
    sort_texts(sorted, n);
    for (size_t i = 1; i < n; i++)
        if (strcmp(sorted[i - 1], sorted[i]) == 0)
            return fail(ERR_FORMAT, "%s: id2label has '%.80s' twice; give each label its own name",
                        path, sorted[i]);
    return OK;
}

static status read_labels(encoder_head *h, const char *path, const json_value *root) {
    const json_value *names = subwords_member(root, "id2label", JSON_OBJECT);
    char text[32];
    h->n_out = 2;
    if (names != NULL)
        h->n_out = names->n_children <= MAX_WIDTH ? (int32_t)names->n_children : 0;
    else if (json_member(root, "num_labels") != NULL)
        TRY(read_width(path, root, "num_labels", &h->n_out));
    if (h->n_out < 1) return subwords_damaged(path, "id2label");
    TRY(ARENA_NEW_RAW(&h->memory, &h->label, (size_t)h->n_out));
    for (int32_t i = 0; i < h->n_out; i++) {
        snprintf(text, sizeof text, "%d", i);
        const json_value *v = subwords_member(names, text, JSON_STRING);
        if (names != NULL && v == NULL) return subwords_damaged(path, "id2label");
        snprintf(text, sizeof text, "LABEL_%d", i);
        if (v != NULL) h->label[i] = v->string;
        if (v == NULL) TRY(arena_copy_text(&h->memory, text, strlen(text), &h->label[i]));
    }
    return check_distinct(h, path);
}

/* As transformers takes problem_type; `function` and two fields are of sentence-transformers'
 * CrossEncoder. */
static status read_classifier(encoder_head *h, const char *path, const json_value *root,
                              const char *function) {
    const json_value *of = subwords_member(root, "sentence_transformers", JSON_OBJECT);
    int labels = LABELS_SOFTMAX, family = h->config.family;
    TRY(read_labels(h, path, root));
    if (function[0] == '\0') function = subwords_text(of, "activation_fn");
    if (function[0] == '\0') function = subwords_text(root, "sbert_ce_default_activation_function");
    if (function[0] == '\0') function = subwords_text(root, "problem_type");
    if (!h->is_of_tokens && function[0] != '\0')
        TRY(find_meaning(LABELS, path, "problem_type", function, &labels));
    else if (!h->is_of_tokens && h->n_out == 1)
        labels = LABELS_VALUES;
    h->labels = (label_kind)labels;
    h->mode[0] = CLASSIFIERS[family].dense != NULL ? HEAD_CLS : HEAD_POOLER;
    h->n_modes = 1;
    h->n_steps = 0;
    head_step dense = {.folder = h->model,
                       .name = CLASSIFIERS[family].dense,
                       .n_out = h->config.dim,
                       .f = CLASSIFIERS[family].f};
    head_step last = {.folder = h->model,
                      .name = h->is_of_tokens ? "classifier" : CLASSIFIERS[family].last,
                      .n_out = h->n_out};
    if (dense.name != NULL && !h->is_of_tokens) TRY(add_step(h, dense));
    return add_step(h, last);
}

static status open_folder(encoder_head *h, const char *folder) {
    char path[HEAD_PATH_BYTES];
    const json_value *root;
    const char *function = "", *name = "";
    if (snprintf(h->model, sizeof h->model, "%s", folder) >= (int)sizeof h->model)
        return fail(ERR_USAGE, "%.100s...: the path is too long", folder);
    TRY(ARENA_NEW_RAW(&h->memory, &h->step, HEAD_MAX_STEPS));
    TRY(read_modules(h, folder, &function));
    TRY(encoder_config_read(&h->config, h->model));
    int32_t longest = encoder_max_len(&h->config);
    if (!h->is_cut || h->max_len > longest) {
        h->max_len = longest;
        h->limit_file = "config.json";
    }
    TRY(subwords_read(&h->memory, h->model, "config.json", JSON_OBJECT, path, &root));
    const json_value *all = subwords_member(root, "architectures", JSON_ARRAY);
    if (all != NULL && all->n_children > 0 && all->first->type == JSON_STRING)
        name = all->first->string;
    h->is_of_tokens = text_ends_with(name, "ForTokenClassification");
    bool is_classifier = h->is_of_tokens || text_ends_with(name, "ForSequenceClassification");
    if (h->kind == HEAD_AUTO)
        h->kind = h->n_modes > 0 ? h->mode[0] : is_classifier ? HEAD_LABELS : HEAD_HIDDEN;
    if (h->kind == HEAD_LABELS) return read_classifier(h, path, root, function);
    h->is_of_tokens = false;
    if (h->kind == HEAD_HIDDEN || h->n_modes > 0) return OK;
    h->mode[h->n_modes++] = h->kind;
    h->n_out = h->config.dim;
    return OK;
}

status encoder_head_open(encoder_head **out, const char *folder, head_kind kind) {
    encoder_head *h;
    *out = NULL;
    TRY(MEM_NEW(&h, 1));
    arena_init(&h->memory, 1 << 14);
    h->kind = kind;
    status st = open_folder(h, folder);
    return CREATED(st, out, h, encoder_head_close);
}

void encoder_head_close(encoder_head *h) {
    if (h == NULL) return;
    if (h->cpu != NULL) nn_memory_fini(&h->weights);
    backend_destroy(h->cpu);
    arena_fini(&h->memory);
    for (int i = 0; i < 3; i++)
        mem_free(h->room[i]);
    mem_free(h);
}

static status load_step(encoder_head *h, head_step *s, encoder_files *files, int32_t n_in) {
    char name[64];
    const st_tensor *t;
    size_t n = (size_t)n_in * (size_t)s->n_out;
    TRY(MEM_RESERVE(&h->room[0], &h->room_capacity[0], n));
    TRY(MEM_RESERVE(&h->room[1], &h->room_capacity[1], n));
    TRY(MEM_RESERVE(&h->room[2], &h->room_capacity[2], (size_t)s->n_out));
    snprintf(name, sizeof name, "%s.weight", s->name);
    TRY(encoder_files_get(files, name, s->n_out, n_in, &t));
    st_floats(t, 0, (int64_t)n, h->room[0]);
    snprintf(name, sizeof name, "%s.bias", s->name);
    memset(h->room[2], 0, (size_t)s->n_out * sizeof *h->room[2]);
    if (!s->has_no_bias) {
        TRY(encoder_files_get(files, name, s->n_out, 0, &t));
        st_floats(t, 0, s->n_out, h->room[2]);
    }
    return bert_dense_init(&s->dense, &h->weights, h->room[0], h->room[2], n_in, s->n_out, false,
                           h->room[1]);
}

status encoder_head_load(encoder_head *h, pool *workers) {
    int32_t n_in = h->n_modes * h->config.dim;
    TRY(backend_create_cpu(&h->cpu, workers));
    nn_memory_init(&h->weights, h->cpu);
    for (head_step *s = h->step; s < h->step + h->n_steps; s++) {
        encoder_files *files;
        if (s->name == NULL) continue;
        TRY(encoder_files_open(&files, s->folder, h->config.family));
        status st = load_step(h, s, files, n_in);
        encoder_files_close(files);
        if (st != OK) return st;
        n_in = s->n_out;
    }
    return OK;
}

/* The rows x (n, E) of a sequence become one. */
static void pool_rows(head_kind mode, const float *x, int64_t n, int64_t dim, float *to) {
    float size = mode == HEAD_MEAN ? (float)n : mode == HEAD_MEAN_SQRT ? sqrtf((float)n) : 1;
    memcpy(to, x, (size_t)dim * sizeof *to);
    for (int64_t i = 1; mode != HEAD_CLS && i < n; i++)
        for (int64_t c = 0; c < dim; c++)
            to[c] = mode == HEAD_MAX ? fmaxf(to[c], x[i * dim + c]) : to[c] + x[i * dim + c];
    for (int64_t c = 0; c < dim; c++)
        to[c] /= size;
}

/* A row of zeros stays. */
static void normalise(float *x, int64_t dim) {
    double sum = 0;
    for (int64_t c = 0; c < dim; c++)
        sum += (double)x[c] * x[c];
    for (int64_t c = 0; c < dim; c++)
        x[c] = (float)(x[c] / fmax(sqrt(sum), 1e-12));
}

static void find_probabilities(label_kind kind, const float *x, int64_t dim, float *p) {
    double sum = 0, largest = x[0];
    for (int64_t c = 1; c < dim; c++)
        largest = fmax(largest, x[c]);
    for (int64_t c = 0; c < dim; c++)
        sum += exp(x[c] - largest);
    for (int64_t c = 0; c < dim; c++)
        p[c] = (float)(kind == LABELS_SIGMOID ? 1 / (1 + exp(-(double)x[c]))
                                              : exp(x[c] - largest) / sum);
}

/* The dense layers and what stands between them; x: room[0], or the hidden states themselves. */
static status run_steps(encoder_head *h, int64_t rows, const float *x, int64_t width) {
    h->out = h->room[0];
    for (const head_step *s = h->step; s < h->step + h->n_steps; s++) {
        for (int64_t i = 0; s->name == NULL && i < rows; i++)
            normalise(h->out + i * width, width);
        if (s->name == NULL) continue;
        float *y = h->out == h->room[0] ? h->room[1] : h->room[0];
        TRY(bert_dense_forward(&s->dense, h->cpu, rows, x, s->f, true, y));
        x = h->out = y;
        width = s->n_out;
    }
    return OK;
}

status encoder_head_run(encoder_head *h, int32_t n, const int32_t *offsets, const float *hidden,
                        const float *pooled) {
    int64_t dim = h->config.dim, width = h->n_modes * dim, rows = h->is_of_tokens ? offsets[n] : n;
    int64_t widest = width;
    for (int i = 0; i < h->n_steps; i++)
        widest = h->step[i].n_out > widest ? h->step[i].n_out : widest;
    for (int i = 0; i < 3; i++)
        TRY(MEM_RESERVE(&h->room[i], &h->room_capacity[i], (size_t)(rows * widest)));
    for (int64_t i = 0; !h->is_of_tokens && i < n * h->n_modes; i++) {
        int64_t b = i / h->n_modes, n_rows = offsets[b + 1] - offsets[b];
        head_kind mode = h->mode[i % h->n_modes];
        if (mode != HEAD_POOLER)
            pool_rows(mode, hidden + offsets[b] * dim, n_rows, dim, h->room[0] + i * dim);
        else if (pooled != NULL)
            pool_rows(mode, pooled + b * dim, 1, dim, h->room[0] + i * dim);
        else
            return fail(ERR_FORMAT, "%s: the model has no pooler, which the head needs", h->model);
    }
    TRY(run_steps(h, rows, h->is_of_tokens ? hidden : h->room[0], width));
    if (h->kind != HEAD_LABELS || h->labels == LABELS_VALUES) return OK;
    h->probability = h->room[2];
    for (int64_t i = 0; i < rows; i++)
        find_probabilities(h->labels, h->out + i * h->n_out, h->n_out,
                           h->probability + i * h->n_out);
    return OK;
}

/* {"label": "sad", "probabilities": {"glad": 0.2, "sad": 0.8}}, or "values". */
static void put_labels(const encoder_head *h, json_writer *w, int64_t row) {
    const float *x = (h->probability != NULL ? h->probability : h->out) + row * h->n_out;
    int32_t best = 0;
    for (int32_t c = 1; c < h->n_out; c++)
        if (x[c] > x[best]) best = c;
    if (h->labels == LABELS_SOFTMAX) json_key_string(w, "label", h->label[best]);
    json_key_object(w, h->probability != NULL ? "probabilities" : "values");
    for (int32_t c = 0; c < h->n_out; c++) {
        json_key(w, h->label[c]);
        json_float(w, x[c]);
    }
    json_object_close(w);
}

status encoder_head_line(const encoder_head *h, buf *to, int32_t b, const int32_t *offsets) {
    json_writer w;
    json_begin_object(&w, to, 0);
    if (h->kind == HEAD_LABELS && !h->is_of_tokens) put_labels(h, &w, b);
    if (h->is_of_tokens || h->kind != HEAD_LABELS)
        json_key_array(&w, h->is_of_tokens ? "tokens" : "embedding");
    for (int64_t i = offsets[b]; h->is_of_tokens && i < offsets[b + 1]; i++) {
        json_object_open(&w);
        put_labels(h, &w, i);
        json_object_close(&w);
    }
    for (int32_t c = 0; h->kind != HEAD_LABELS && c < h->n_out; c++)
        json_float(&w, h->out[(int64_t)b * h->n_out + c]);
    if (h->is_of_tokens || h->kind != HEAD_LABELS) json_array_close(&w);
    TRY(json_finish_object(&w));
    return buf_char(to, '\n');
}
