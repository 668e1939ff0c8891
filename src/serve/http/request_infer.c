/* The protocol: JSON and binary tensors.  What they mean is infer_asks.c. */
#include "serve/http/request_infer.h"

#include <string.h>

#include "serve/http/request.h"

/* The integers of the protocol; every tensor we read is of ids or counts. */
typedef struct datatype {
    const char *name;
    int n_bytes; /* 0: BYTES */
    bool is_signed;
} datatype;

static const datatype datatypes[] = {
    {"INT64", 8, true},   {"INT32", 4, true},   {"INT16", 2, true},   {"INT8", 1, true},
    {"UINT64", 8, false}, {"UINT32", 4, false}, {"UINT16", 2, false}, {"UINT8", 1, false},
    {"BYTES", 0, false},  {NULL, 0, false},
};

/* While a body is read. */
typedef struct reader {
    arena *a;
    const char *bytes; /* of the binary tensors that are left */
    size_t n_bytes;
    size_t n_elements; /* of all tensors so far */
} reader;

static status find_datatype(const json_value *input, const char *name, const datatype **out) {
    const char *text;
    if (json_member_string(input, "datatype", &text) != OK)
        return fail(ERR_USAGE, "input %.64s has no datatype", name);
    for (const datatype *d = datatypes; d->name != NULL; d++)
        if (strcmp(d->name, text) == 0) {
            *out = d;
            return OK;
        }
    return fail(ERR_USAGE,
                "input %.64s: datatype %.16s is not read here; send INT64, or BYTES for "
                "ids that are text",
                name, text);
}

static status read_shape(reader *r, const json_value *input, infer_tensor *t) {
    const json_value *shape = json_member(input, "shape");
    if (shape == NULL || shape->type != JSON_ARRAY || shape->n_children > INFER_MAX_DIMS)
        return fail(ERR_USAGE, "input %.64s: shape is a list of at most %d numbers", t->name,
                    INFER_MAX_DIMS);
    t->n = 1;
    for (const json_value *d = shape->first; d != NULL; d = d->next) {
        if (d->type != JSON_NUMBER || !d->is_integer || d->integer < 0 ||
            d->integer > INFER_MAX_ELEMENTS || t->n * (size_t)d->integer > INFER_MAX_ELEMENTS)
            return fail(ERR_USAGE,
                        "input %.64s: the numbers of a shape are from 0, and all inputs "
                        "have at most %d elements",
                        t->name, INFER_MAX_ELEMENTS);
        t->shape[t->n_dims++] = d->integer;
        t->n *= (size_t)d->integer;
    }
    r->n_elements += t->n;
    if (r->n_elements > INFER_MAX_ELEMENTS)
        return fail(ERR_USAGE, "all inputs together have at most %d elements", INFER_MAX_ELEMENTS);
    return OK;
}

static status wrong_length(const infer_tensor *t) {
    return fail(ERR_USAGE, "input %.64s: its data do not have the %zu elements of its shape",
                t->name, t->n);
}

/* Whether a number fits its datatype. */
static bool fits(int64_t number, const datatype *d) {
    int bits = 8 * d->n_bytes - d->is_signed;
    if (!d->is_signed && number < 0) return false;
    return bits >= 63 || (number < 0 ? ~number : number) >> bits == 0;
}

static status read_element(const json_value *v, const datatype *d, infer_tensor *t, size_t at) {
    bool is_text = d->n_bytes == 0;
    if (at >= t->n) return wrong_length(t);
    if (v->type == JSON_STRING && is_text && v->string_bytes <= ENGINE_ID_BYTES &&
        v->string_bytes > 0) {
        t->at[at] = (engine_id){.text = v->string, .n = v->string_bytes};
        return OK;
    }
    if (v->type == JSON_NUMBER && v->is_integer && !is_text && fits(v->integer, d)) {
        t->at[at] = (engine_id){.number = v->integer};
        return OK;
    }
    return fail(ERR_USAGE, "input %.64s: element %zu is not a %s%s", t->name, at,
                is_text ? "string of 1 to 255 bytes" : "number of type ", is_text ? "" : d->name);
}

/* Flat, or nested in row-major order. */
static status read_nested(const json_value *v, const datatype *d, int depth, infer_tensor *t,
                          size_t *at) {
    if (v->type != JSON_ARRAY) return read_element(v, d, t, (*at)++);
    if (depth > INFER_MAX_DIMS) return wrong_length(t);
    for (const json_value *child = v->first; child != NULL; child = child->next)
        TRY(read_nested(child, d, depth + 1, t, at));
    return OK;
}

static status read_json_data(const json_value *data, const datatype *d, infer_tensor *t) {
    size_t at = 0;
    if (data->type != JSON_ARRAY) return fail(ERR_USAGE, "input %.64s: data is a list", t->name);
    TRY(read_nested(data, d, 0, t, &at));
    return at == t->n ? OK : wrong_length(t);
}

/* Little-endian; the machines we build for are, too.  False: no id is so large. */
static bool read_number(const char *bytes, const datatype *d, int64_t *out) {
    uint64_t u = 0;
    memcpy(&u, bytes, (size_t)d->n_bytes);
    int spare = 64 - 8 * d->n_bytes;
    *out = d->is_signed ? (int64_t)(u << spare) >> spare : (int64_t)u;
    return d->is_signed || u <= INT64_MAX;
}

/* Each element: its length in four bytes, then its bytes. */
static status read_texts(const char *bytes, size_t n, infer_tensor *t) {
    for (size_t i = 0; i < t->n; i++) {
        uint32_t length;
        if (n < sizeof length) return wrong_length(t);
        memcpy(&length, bytes, sizeof length);
        bytes += sizeof length;
        n -= sizeof length;
        if (length > n) return wrong_length(t);
        if (length == 0 || length > ENGINE_ID_BYTES || memchr(bytes, '\0', length) != NULL)
            return fail(ERR_USAGE, "input %.64s: element %zu is not an id of 1 to %d bytes",
                        t->name, i, ENGINE_ID_BYTES);
        t->at[i] = (engine_id){.text = bytes, .n = length};
        bytes += length;
        n -= length;
    }
    return n == 0 ? OK : wrong_length(t);
}

static status read_binary_data(reader *r, const json_value *size, const datatype *d,
                               infer_tensor *t) {
    const char *bytes = r->bytes;
    if (size->type != JSON_NUMBER || !size->is_integer || size->integer < 0 ||
        (uint64_t)size->integer > r->n_bytes)
        return fail(ERR_USAGE, "input %.64s: the body ends before its binary_data_size", t->name);
    size_t n = (size_t)size->integer;
    r->bytes += n;
    r->n_bytes -= n;
    if (d->n_bytes == 0) return read_texts(bytes, n, t);
    if (n != t->n * (size_t)d->n_bytes) return wrong_length(t);
    for (size_t i = 0; i < t->n; i++)
        if (!read_number(bytes + i * (size_t)d->n_bytes, d, &t->at[i].number))
            return fail(ERR_USAGE, "input %.64s: element %zu is over 2^63 - 1", t->name, i);
    return OK;
}

static status read_input(reader *r, const json_value *v, infer_tensor *t) {
    const datatype *d = NULL;
    if (v->type != JSON_OBJECT || json_member_string(v, "name", &t->name) != OK)
        return fail(ERR_USAGE, "inputs: each is an object with name, shape, datatype and data");
    TRY(find_datatype(v, t->name, &d));
    TRY(read_shape(r, v, t));
    TRY(ARENA_NEW(r->a, &t->at, t->n));
    const json_value *data = json_member(v, "data"), *parameters = json_member(v, "parameters");
    const json_value *size =
        parameters != NULL ? json_member(parameters, "binary_data_size") : NULL;
    if (size != NULL) return read_binary_data(r, size, d, t);
    if (data != NULL) return read_json_data(data, d, t);
    return fail(ERR_USAGE, "input %.64s has neither data nor binary_data_size", t->name);
}

static status read_inputs(reader *r, const json_value *root, request_infer *out) {
    const json_value *inputs = json_member(root, "inputs");
    if (inputs == NULL || inputs->type != JSON_ARRAY || inputs->n_children == 0 ||
        inputs->n_children > INFER_MAX_TENSORS)
        return fail(ERR_USAGE, "inputs: give a list of tensors; GET the model for their names");
    for (const json_value *v = inputs->first; v != NULL; v = v->next)
        TRY(read_input(r, v, &out->inputs[out->n_inputs++]));
    if (r->n_bytes > 0)
        return fail(ERR_USAGE, "%zu bytes of the body belong to no input", r->n_bytes);
    return OK;
}

static bool flag_of(const json_value *parameters, const char *name, bool otherwise) {
    const json_value *v = parameters != NULL ? json_member(parameters, name) : NULL;
    return v != NULL && v->type == JSON_BOOL ? v->boolean : otherwise;
}

static status read_outputs(const json_value *root, request_infer *out) {
    const json_value *outputs = json_member(root, "outputs");
    if (outputs == NULL) return OK;
    if (outputs->type != JSON_ARRAY || outputs->n_children > INFER_MAX_TENSORS)
        return fail(ERR_USAGE, "outputs: give a list of {\"name\"}");
    for (const json_value *v = outputs->first; v != NULL; v = v->next) {
        infer_output *o = &out->outputs[out->n_outputs++];
        if (v->type != JSON_OBJECT || json_member_string(v, "name", &o->name) != OK)
            return fail(ERR_USAGE, "outputs: each is an object with a name");
        if (strcmp(o->name, "OUTPUT") != 0 && strcmp(o->name, "ITEM_IDS") != 0)
            return fail(ERR_USAGE, "there is no output %.64s; there are OUTPUT and ITEM_IDS",
                        o->name);
        o->is_binary = flag_of(json_member(v, "parameters"), "binary_data", out->is_binary);
    }
    return OK;
}

static status read_parameters(const json_value *root, request_infer *out) {
    const json_value *id = json_member(root, "id"), *p = json_member(root, "parameters");
    if (id != NULL && id->type == JSON_STRING) out->id = id->string;
    if (p == NULL) return OK;
    if (p->type != JSON_OBJECT) return fail(ERR_USAGE, "parameters is an object");
    out->is_binary = flag_of(p, "binary_data_output", false);
    const json_value *timeout = json_member(p, "timeout"), *priority = json_member(p, "priority");
    if (timeout != NULL)
        TRY(request_whole_number(timeout, "timeout", 0, INFER_MAX_TIMEOUT, &out->timeout_us));
    if (priority != NULL)
        TRY(request_whole_number(priority, "priority", 0, UINT32_MAX, &out->priority));
    return OK;
}

status request_infer_read(arena *a, const char *body, size_t n, const char *json_bytes,
                          request_infer *out) {
    const json_value *root;
    size_t n_json = n;
    int64_t length;
    *out = (request_infer){0};
    if (json_bytes != NULL) {
        if (!seq_id_number(json_bytes, strlen(json_bytes), &length) || length < 0 ||
            (uint64_t)length > n)
            return fail(ERR_USAGE,
                        "Inference-Header-Content-Length: %.20s is not the length of "
                        "the JSON part of this body",
                        json_bytes);
        n_json = (size_t)length;
    }
    reader r = {.a = a, .bytes = body + n_json, .n_bytes = n - n_json};
    status st = json_parse(a, "the body", body, n_json, &root);
    if (st == ERR_FORMAT) return fail_prefix(ERR_USAGE, "not JSON");
    if (st != OK) return st;
    if (root->type != JSON_OBJECT) return fail(ERR_USAGE, "the body is not a JSON object");
    TRY(read_parameters(root, out));
    TRY(read_outputs(root, out));
    return read_inputs(&r, root, out);
}

bool infer_wants(const request_infer *r, const char *name, bool *is_binary) {
    *is_binary = r->is_binary;
    for (int i = 0; i < r->n_outputs; i++) {
        if (strcmp(r->outputs[i].name, name) != 0) continue;
        *is_binary = r->outputs[i].is_binary;
        return true;
    }
    return r->n_outputs == 0;
}
