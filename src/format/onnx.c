#include "format/onnx.h"

#include "hstu.h"

/* ONNX's messages (onnx.proto), by the numbers of their fields:
 *
 *     ModelProto      1 ir_version, 2 and 3 producer, 7 graph, 8 opsets {1 domain, 2 version}
 *     GraphProto      1 node, 2 name, 5 initializer, 11 input, 12 output
 *     NodeProto       1 input, 2 output, 3 name, 4 op_type, 5 attribute, 7 domain
 *     AttributeProto  1 name, 2 f, 3 i, 8 ints, 9 strings, 20 type
 *     TensorProto     1 dims, 2 data_type, 6 string_data, 8 name, 9 raw_data,
 *                     13 external_data {1 key, 2 value}, 14 data_location
 *     ValueInfoProto  1 name, 2 type {1 tensor {1 type, 2 shape {1 dim {1 number, 2 name}}}},
 *                     3 doc_string */
enum { ALIGNMENT = 4096 };
enum { TYPE_FLOAT = 1, TYPE_INT, TYPE_INTS = 7, TYPE_TEXTS };

typedef struct onnx_weight {
    const char *name;
    int n_dims;
    int64_t shape[2];
    const float *values;
    size_t bytes;
} onnx_weight;

void onnx_init(onnx_graph *g) {
    pb_put(&g->model, "1i2s3s8{1s2i}8{1s2i}", 8, "hstu", HSTU_VERSION, "", 17, "ai.onnx.ml", 3);
    g->begin = pb_begin(&g->model, 7);
    pb_put(&g->model, "2s", "hstu");
}

void onnx_fini(onnx_graph *g) {
    mem_free(g->weight);
    buf_fini(&g->model.text);
    buf_fini(&g->lists.text);
    arena_fini(&g->names);
}

static void note(onnx_graph *g, status st) {
    if (g->model.st == OK) g->model.st = st;
}

/* A name of its own for a value: "MatMul_12". */
static onnx_value new_name(onnx_graph *g, const char *kind) {
    char text[64];
    const char *name = NULL;
    int n = snprintf(text, sizeof text, "%.*s_%d", (int)strcspn(kind, " "), kind, ++g->n_names);
    note(g, arena_copy_text(&g->names, text, (size_t)n, &name));
    return name != NULL ? name : "";
}

onnx_value onnx_port(onnx_graph *g, onnx_port_kind kind, const char *name, onnx_type type,
                     const char *dims, const char *what) {
    pb shape = {0};
    for (size_t n; *dims != '\0'; dims += n + (dims[n] == ',')) {
        n = strcspn(dims, ",");
        if (isdigit((unsigned char)*dims))
            pb_put(&shape, "1{1i}", atoi(dims));
        else
            pb_put(&shape, "1{2b}", dims, n);
    }
    pb_put(&g->model, "*{1s2{1{1i2{m}}}3s}", (int)kind, name, (int)type, &shape, what);
    buf_fini(&shape.text);
    return name;
}

onnx_value onnx_weights(onnx_graph *g, const char *name, int n_dims, const int64_t *shape,
                        const float *values) {
    onnx_weight w = {name, n_dims, {shape[0], n_dims > 1 ? shape[1] : 1}, values, 0};
    w.bytes = (size_t)(w.shape[0] * w.shape[1]) * sizeof *values;
    note(g, MEM_RESERVE(&g->weight, &g->capacity, g->n_weights + 1));
    if (g->model.st == OK) g->weight[g->n_weights++] = w;
    return name;
}

onnx_value onnx_constant(onnx_graph *g, const char *name, onnx_type type, int64_t n,
                         const pb *data) {
    pb dims = {0};
    if (n >= 0) pb_put(&dims, "1l", n);
    pb_put(&g->model, "5{m2i8sm}", &dims, (int)type, name, data);
    buf_fini(&dims.text);
    return name;
}

onnx_value onnx_numbers(onnx_graph *g, onnx_type type, int64_t n, const void *values,
                        size_t bytes) {
    pb data = {0};
    pb_bytes(&data, ONNX_DATA, values, bytes);
    onnx_value name = onnx_constant(g, new_name(g, "constant"), type, n, &data);
    buf_fini(&data.text);
    return name;
}

void onnx_set_list(onnx_graph *g, const char *name, int field, const pb *list) {
    pb_put(&g->lists, "5{1s20im}", name, field == ONNX_INTS ? TYPE_INTS : TYPE_TEXTS, list);
}

/* " axis=1 perm=[0,2,1] epsilon=1e-6" */
static void put_attributes(pb *p, const char *text) {
    while (*text == ' ') {
        const char *name = ++text;
        char *end;
        double value;
        size_t n = strcspn(name, "="), attribute = pb_begin(p, 5);
        text += n + 1;
        bool is_list = *text == '[', is_whole = strcspn(text, " ") == strspn(text, "-0123456789");
        do {
            if (p->st == OK) p->st = text_read_double(text + is_list, &end, &value);
            if (p->st != OK) return;
            if (is_list || is_whole) pb_int(p, is_list ? ONNX_INTS : 3, (int64_t)value);
            if (!is_list && !is_whole) pb_put(p, "2f", value);
            text = end;
        } while (*text == ',');
        text += is_list;
        pb_put(p, "1b20i", name, n, is_list ? TYPE_INTS : is_whole ? TYPE_INT : TYPE_FLOAT);
        pb_end(p, attribute);
    }
}

onnx_value onnx_op(onnx_graph *g, size_t n_out, onnx_value *out, const char *op, ...) {
    pb node = {0};
    size_t n_name = strcspn(op, " ");
    va_list values;
    va_start(values, op);
    for (onnx_value in; (in = va_arg(values, onnx_value)) != NULL;)
        pb_put(&node, "1s", in);
    va_end(values);
    for (size_t i = 0; i < n_out; i++) {
        if (out[i] == NULL) out[i] = new_name(g, op);
        pb_put(&node, "2s", out[i]);
    }
    pb_put(&node, "3s4bm", out[0], op, n_name, &g->lists);
    if (strncmp(op, "LabelEncoder", n_name) == 0) pb_put(&node, "7s", "ai.onnx.ml");
    put_attributes(&node, op + n_name);
    pb_put(&g->model, "1{m}", &node);
    buf_fini(&node.text);
    buf_clear(&g->lists.text);
    return out[0];
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
        size_t tensor = pb_begin(&g->model, 5);
        snprintf(place, sizeof place, "%" PRIu64, offset);
        snprintf(length, sizeof length, "%zu", w->bytes);
        pb_put(&g->model, "8s2i1l", w->name, ONNX_F32, w->shape[0]);
        if (w->n_dims > 1) pb_put(&g->model, "1l", w->shape[1]);
        if (apart == NULL)
            pb_bytes(&g->model, ONNX_DATA, w->values, w->bytes);
        else
            pb_put(&g->model, "13{1s2s}13{1s2s}13{1s2s}14i", "location", apart, "offset", place,
                   "length", length, 1);
        pb_end(&g->model, tensor);
    }
}

static status write_apart(const onnx_graph *g, const char *path) {
    static const char zeros[ALIGNMENT];
    status st = OK;
    out_file *f;
    if (access(path, F_OK) == 0)
        return fail(ERR_USAGE, "%s: already exists; remove it or choose another --out", path);
    TRY(out_file_create(&f, path));
    for (const onnx_weight *w = g->weight; w < g->weight + g->n_weights && st == OK; w++) {
        st = out_file_write(f, w->values, w->bytes);
        if (st == OK) st = out_file_write(f, zeros, (size_t)aligned(w->bytes) - w->bytes);
    }
    return out_file_end(f, st);
}

status onnx_write(onnx_graph *g, const char *path, bool *is_apart) {
    enum { MOST = INT32_MAX - (1 << 20) }; /* less what comes beside the graph and the weights */
    char apart[PATH_MAX];
    const char *slash = strrchr(path, '/');
    uint64_t bytes = g->model.text.n_bytes;
    if ((size_t)snprintf(apart, sizeof apart, "%s.data", path) >= sizeof apart || bytes > MOST)
        return fail(ERR_UNSUPPORTED, "%.200s: the path or the ids of the items are too long", path);
    for (size_t i = 0; i < g->n_weights; i++)
        bytes += g->weight[i].bytes;
    *is_apart = *is_apart || bytes > MOST;
    put_weights(g, !*is_apart ? NULL : slash != NULL ? apart + (slash + 1 - path) : apart);
    pb_end(&g->model, g->begin);
    TRY(g->model.st);
    if (*is_apart) TRY(write_apart(g, apart));
    status st = file_write(path, g->model.text.data, g->model.text.n_bytes);
    if (st != OK && *is_apart) unlink(apart);
    return st;
}
