#include "format/onnx.h"

#include "hstu.h"

enum { ALIGNMENT = 4096, IR_VERSION = 8, OPSET = 17, ML_OPSET = 3 };

/* Fields of ONNX's messages (onnx.proto), and its types of attributes. */
enum { MODEL_IR = 1, MODEL_PRODUCER, MODEL_VERSION, MODEL_GRAPH = 7, MODEL_OPSET };
enum { GRAPH_NODE = 1, GRAPH_NAME, GRAPH_INITIALIZER = 5, GRAPH_INPUT = 11, GRAPH_OUTPUT };
enum { NODE_INPUT = 1, NODE_OUTPUT, NODE_NAME, NODE_OP, NODE_ATTRIBUTE, NODE_DOMAIN = 7 };
enum { ATTRIBUTE_NAME = 1, ATTRIBUTE_FLOAT, ATTRIBUTE_INT, ATTRIBUTE_TYPE = 20 };
enum { TENSOR_DIM = 1, TENSOR_TYPE, TENSOR_NAME = 8, TENSOR_APART = 13, TENSOR_PLACE };
enum { TYPE_FLOAT = 1, TYPE_INT, TYPE_INTS = 7, TYPE_TEXTS };

typedef struct onnx_weight {
    const char *name;
    int n_dims;
    int64_t shape[2];
    const float *values;
    size_t bytes;
} onnx_weight;

void onnx_fini(onnx_graph *g) {
    mem_free(g->weight);
    buf_fini(&g->fields.text);
    buf_fini(&g->attributes.text);
    arena_fini(&g->names);
}

static void note(onnx_graph *g, status st) {
    if (g->fields.st == OK) g->fields.st = st;
}

/* A name of its own for a value: "MatMul_12". */
static onnx_value new_name(onnx_graph *g, const char *kind) {
    char text[64];
    const char *name = NULL;
    int n = snprintf(text, sizeof text, "%s_%d", kind, ++g->n_names);
    note(g, arena_copy_text(&g->names, text, (size_t)n, &name));
    return name != NULL ? name : "";
}

/* ValueInfoProto: 1 name, 2 type (1 of a tensor: 1 its elements', 2 shape), 3 what it is. */
static void put_value(pb *p, int field, const char *name, onnx_type type, const char *dims,
                      const char *what) {
    size_t value = pb_begin(p, field);
    pb_text(p, 1, name);
    pb_text(p, 3, what);
    size_t any = pb_begin(p, 2), tensor = pb_begin(p, 1);
    pb_int(p, 1, (int64_t)type);
    size_t shape = pb_begin(p, 2);
    for (size_t n; *dims != '\0'; dims += n + (dims[n] == ',')) {
        size_t dim = pb_begin(p, 1);
        n = strcspn(dims, ",");
        if (isdigit((unsigned char)*dims))
            pb_int(p, 1, strtol(dims, NULL, 10));
        else
            pb_bytes(p, 2, dims, n);
        pb_end(p, dim);
    }
    pb_end(p, shape);
    pb_end(p, tensor);
    pb_end(p, any);
    pb_end(p, value);
}

onnx_value onnx_input(onnx_graph *g, const char *name, onnx_type type, const char *dims,
                      const char *what) {
    put_value(&g->fields, GRAPH_INPUT, name, type, dims, what);
    return name;
}

void onnx_output(onnx_graph *g, onnx_value v, const char *name, onnx_type type, const char *dims,
                 const char *what) {
    onnx_ops(g, "Identity", 1, &v, 1, &name);
    put_value(&g->fields, GRAPH_OUTPUT, name, type, dims, what);
}

onnx_value onnx_weights(onnx_graph *g, const char *name, int n_dims, const int64_t *shape,
                        const float *values) {
    onnx_weight w = {name, n_dims, {shape[0], n_dims > 1 ? shape[1] : 1}, values, 0};
    w.bytes = (size_t)(w.shape[0] * w.shape[1]) * sizeof *values;
    note(g, MEM_RESERVE(&g->weight, &g->capacity, g->n_weights + 1));
    if (g->fields.st == OK) g->weight[g->n_weights++] = w;
    return name;
}

/* A tensor but for its elements, which follow; then pb_end. */
static size_t begin_tensor(pb *p, const char *name, onnx_type type, int n_dims,
                           const int64_t *shape) {
    size_t tensor = pb_begin(p, GRAPH_INITIALIZER);
    for (int d = 0; d < n_dims; d++)
        pb_int(p, TENSOR_DIM, shape[d]);
    pb_int(p, TENSOR_TYPE, (int64_t)type);
    pb_text(p, TENSOR_NAME, name);
    return tensor;
}

onnx_value onnx_constant(onnx_graph *g, const char *name, onnx_type type, int64_t n,
                         const pb *data) {
    if (name == NULL) name = new_name(g, "constant");
    note(g, data->st);
    size_t tensor = begin_tensor(&g->fields, name, type, n >= 0, &n);
    pb_append(&g->fields, buf_str(&data->text), data->text.n_bytes);
    pb_end(&g->fields, tensor);
    return name;
}

onnx_value onnx_numbers(onnx_graph *g, onnx_type type, int64_t n, const void *values,
                        size_t bytes) {
    pb data = {0};
    pb_bytes(&data, ONNX_DATA, values, bytes);
    onnx_value name = onnx_constant(g, NULL, type, n, &data);
    buf_fini(&data.text);
    return name;
}

/* An attribute but for its value, which follows; then pb_end. */
static size_t begin_attribute(pb *p, const char *name, int type) {
    size_t attribute = pb_begin(p, NODE_ATTRIBUTE);
    pb_text(p, ATTRIBUTE_NAME, name);
    pb_int(p, ATTRIBUTE_TYPE, type);
    return attribute;
}

void onnx_set_list(onnx_graph *g, const char *name, int field, const pb *list) {
    size_t a = begin_attribute(&g->attributes, name, field == ONNX_INTS ? TYPE_INTS : TYPE_TEXTS);
    note(g, list->st);
    pb_append(&g->attributes, buf_str(&list->text), list->text.n_bytes);
    pb_end(&g->attributes, a);
}

/* " axis=1 perm=[0,2,1] epsilon=1e-6" */
static void put_attributes(pb *p, const char *text) {
    while (*text == ' ') {
        char name[32], *end;
        double value;
        size_t n = strcspn(++text, "=");
        snprintf(name, sizeof name, "%.*s", (int)n, text);
        text += n + 1;
        bool is_list = *text == '[', is_whole = strcspn(text, " ") == strspn(text, "-0123456789");
        size_t a = begin_attribute(p, name, is_list ? TYPE_INTS : is_whole ? TYPE_INT : TYPE_FLOAT);
        do {
            if (p->st == OK) p->st = text_read_double(text + is_list, &end, &value);
            if (p->st != OK) return;
            if (is_list || is_whole) pb_int(p, is_list ? ONNX_INTS : ATTRIBUTE_INT, (int64_t)value);
            if (!is_list && !is_whole) pb_float(p, ATTRIBUTE_FLOAT, (float)value);
            text = end;
        } while (*text == ',');
        text += is_list;
        pb_end(p, a);
    }
}

void onnx_ops(onnx_graph *g, const char *op, size_t n_in, const onnx_value *in, size_t n_out,
              onnx_value *out) {
    pb *p = &g->fields;
    char name[32];
    size_t n_name = strcspn(op, " ");
    snprintf(name, sizeof name, "%.*s", (int)n_name, op);
    for (size_t i = 0; i < n_out; i++)
        if (out[i] == NULL) out[i] = new_name(g, name);
    size_t node = pb_begin(p, GRAPH_NODE);
    for (size_t i = 0; i < n_in; i++)
        pb_text(p, NODE_INPUT, in[i]);
    for (size_t i = 0; i < n_out; i++)
        pb_text(p, NODE_OUTPUT, out[i]);
    pb_text(p, NODE_NAME, out[0]);
    pb_text(p, NODE_OP, name);
    if (strcmp(name, "LabelEncoder") == 0) pb_text(p, NODE_DOMAIN, "ai.onnx.ml");
    put_attributes(p, op + n_name);
    note(g, g->attributes.st);
    pb_append(p, buf_str(&g->attributes.text), g->attributes.text.n_bytes);
    pb_end(p, node);
    buf_clear(&g->attributes.text);
}

onnx_value onnx_op(onnx_graph *g, const char *op, size_t n_in, const onnx_value *in) {
    onnx_value out = NULL;
    onnx_ops(g, op, n_in, in, 1, &out);
    return out;
}

static void put_pair(pb *p, const char *key, const char *text) {
    size_t pair = pb_begin(p, TENSOR_APART);
    pb_text(p, 1, key);
    pb_text(p, 2, text);
    pb_end(p, pair);
}

static uint64_t aligned(uint64_t bytes) {
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* The weights themselves, or where they are in the file `apart`. */
static void put_weights(onnx_graph *g, const char *apart) {
    uint64_t offset = 0;
    for (size_t i = 0; i < g->n_weights; offset += aligned(g->weight[i++].bytes)) {
        const onnx_weight *w = &g->weight[i];
        char place[24], length[24];
        size_t tensor = begin_tensor(&g->fields, w->name, ONNX_F32, w->n_dims, w->shape);
        snprintf(place, sizeof place, "%" PRIu64, offset);
        snprintf(length, sizeof length, "%zu", w->bytes);
        if (apart == NULL) pb_bytes(&g->fields, ONNX_DATA, w->values, w->bytes);
        if (apart != NULL) put_pair(&g->fields, "location", apart);
        if (apart != NULL) put_pair(&g->fields, "offset", place);
        if (apart != NULL) put_pair(&g->fields, "length", length);
        pb_int(&g->fields, TENSOR_PLACE, apart != NULL);
        pb_end(&g->fields, tensor);
    }
}

static status write_model(const onnx_graph *g, const char *path) {
    static const char *const domains[] = {"", "ai.onnx.ml"};
    pb model = {0};
    out_file *f = NULL;
    pb_int(&model, MODEL_IR, IR_VERSION);
    pb_text(&model, MODEL_PRODUCER, "hstu");
    pb_text(&model, MODEL_VERSION, HSTU_VERSION);
    for (int i = 0; i < 2; i++) {
        size_t opset = pb_begin(&model, MODEL_OPSET);
        pb_text(&model, 1, domains[i]);
        pb_int(&model, 2, i == 0 ? OPSET : ML_OPSET);
        pb_end(&model, opset);
    }
    pb_key(&model, MODEL_GRAPH, PB_BYTES);
    pb_varint(&model, g->fields.text.n_bytes);
    status st = model.st;
    if (st == OK) st = out_file_create(&f, path);
    if (st == OK) st = out_file_write(f, model.text.data, model.text.n_bytes);
    if (st == OK) st = out_file_write(f, g->fields.text.data, g->fields.text.n_bytes);
    buf_fini(&model.text);
    return f != NULL ? out_file_end(f, st) : st;
}

static status write_apart(const onnx_graph *g, const char *path) {
    static const char zeros[ALIGNMENT];
    out_file *f;
    if (access(path, F_OK) == 0)
        return fail(ERR_USAGE, "%s: already exists; remove it or choose another --out", path);
    TRY(out_file_create(&f, path));
    status st = OK;
    for (size_t i = 0; i < g->n_weights && st == OK; i++) {
        const onnx_weight *w = &g->weight[i];
        st = out_file_write(f, w->values, w->bytes);
        if (st == OK) st = out_file_write(f, zeros, (size_t)aligned(w->bytes) - w->bytes);
    }
    return out_file_end(f, st);
}

status onnx_write(onnx_graph *g, const char *path, bool *is_apart) {
    enum { MOST = INT32_MAX - (1 << 20) }; /* less what comes beside the graph and the weights */
    char apart[PATH_MAX];
    const char *slash = strrchr(path, '/');
    uint64_t bytes = g->fields.text.n_bytes;
    if ((size_t)snprintf(apart, sizeof apart, "%s.data", path) >= sizeof apart || bytes > MOST)
        return fail(ERR_UNSUPPORTED, "%.200s: the path or the ids of the items are too long", path);
    for (size_t i = 0; i < g->n_weights; i++)
        bytes += g->weight[i].bytes;
    *is_apart = *is_apart || bytes > MOST;
    pb_text(&g->fields, GRAPH_NAME, "hstu");
    put_weights(g, !*is_apart ? NULL : slash != NULL ? apart + (slash + 1 - path) : apart);
    TRY(g->fields.st);
    if (*is_apart) TRY(write_apart(g, apart));
    status st = write_model(g, path);
    if (st != OK && *is_apart) unlink(apart);
    return st;
}
