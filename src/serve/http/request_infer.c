#include "serve/http/request_infer.h"

#include <string.h>

#include "serve/http/request.h"

enum { DEFAULT_K = 10 };

/* The protocol: JSON and binary tensors. */

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
    if (timeout != NULL) TRY(request_whole_number(timeout, 0, INFER_MAX_TIMEOUT, &out->timeout_us));
    if (priority != NULL) TRY(request_whole_number(priority, 0, UINT32_MAX, &out->priority));
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
    TRY(request_object(a, body, n_json, &root));
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

/* From tensors to requests: what the names of inputs mean. */

/* The inputs by name; NULL: not there. */
typedef struct tensors {
    const infer_tensor *users, *candidates, *top_k, *tokens, *lengths, *n_candidates;
} tensors;

static status find_tensors(const request_infer *r, tensors *t) {
    struct {
        const char *name;
        const infer_tensor **at;
    } known[] = {{"USER_IDS", &t->users},        {"CANDIDATES", &t->candidates},
                 {"TOP_K", &t->top_k},           {"TOKENS", &t->tokens},
                 {"TOKEN_LENGTHS", &t->lengths}, {"NUM_CANDIDATES", &t->n_candidates}};
    enum { N = sizeof known / sizeof known[0] };
    *t = (tensors){0};
    for (int i = 0; i < r->n_inputs; i++) {
        int k = 0;
        while (k < N && strcmp(known[k].name, r->inputs[i].name) != 0)
            k++;
        if (k == N)
            return fail(ERR_USAGE,
                        "there is no input %.64s; there are USER_IDS, CANDIDATES, TOP_K, "
                        "TOKENS, TOKEN_LENGTHS and NUM_CANDIDATES",
                        r->inputs[i].name);
        if (*known[k].at != NULL)
            return fail(ERR_USAGE, "input %.64s is there twice", r->inputs[i].name);
        *known[k].at = &r->inputs[i];
    }
    return OK;
}

static status count(const engine_id *id, const char *name, int64_t max, size_t *out) {
    if (id->text != NULL || id->number < 0 || id->number > max)
        return fail(ERR_USAGE, "%s: an element is not a number from 0 to %lld", name,
                    (long long)max);
    *out = (size_t)id->number;
    return OK;
}

static status check_together(const tensors *t) {
    if (t->tokens == NULL && (t->lengths != NULL || t->n_candidates != NULL))
        return fail(ERR_USAGE, "TOKEN_LENGTHS and NUM_CANDIDATES need TOKENS");
    if (t->tokens != NULL && t->lengths == NULL)
        return fail(ERR_USAGE, "TOKENS needs TOKEN_LENGTHS");
    if (t->tokens == NULL && t->users == NULL)
        return fail(ERR_USAGE, "USER_IDS is missing, or TOKENS with whole histories");
    if (t->candidates != NULL && t->n_candidates != NULL)
        return fail(ERR_USAGE, "CANDIDATES and NUM_CANDIDATES exclude each other");
    return OK;
}

/* Without USER_IDS, NUM_CANDIDATES or the shape of TOKEN_LENGTHS says how many users there are. */
static status find_batch(const tensors *t, size_t *out) {
    const infer_tensor *first = t->users != NULL          ? t->users
                                : t->n_candidates != NULL ? t->n_candidates
                                                          : t->lengths;
    size_t n = first->n;
    if (n == 0 || n > INFER_MAX_BATCH)
        return fail(ERR_USAGE, "%s: from 1 to %d users in one request", first->name,
                    INFER_MAX_BATCH);
    if (t->n_candidates != NULL && t->n_candidates->n != n)
        return fail(ERR_USAGE, "NUM_CANDIDATES has not one element for each user");
    if (t->lengths != NULL && t->lengths->n != n && t->lengths->n != 2 * n)
        return fail(ERR_USAGE, "TOKEN_LENGTHS has one element for each user, or two: items, then "
                               "actions; contextual features are not read from requests");
    *out = n;
    return OK;
}

static status add_candidates(const infer_tensor *c, infer_asks *out) {
    size_t n = c->n_dims == 2 ? (size_t)c->shape[1] : c->n;
    bool is_each = c->n_dims == 2;
    if (c->n_dims > 2 || n == 0 || (is_each && (size_t)c->shape[0] != out->n))
        return fail(ERR_USAGE, "CANDIDATES has the shape (users, n), or (n): the same for all");
    for (size_t i = 0; i < out->n; i++) {
        out->ask[i].candidates = c->at + (is_each ? i * n : 0);
        out->ask[i].n_candidates = n;
    }
    return OK;
}

/* One user's items and actions as events; the last items may be candidates. */
static status add_history(arena *a, const engine_id *items, size_t n_items,
                          const engine_id *actions, size_t n_actions, size_t n_candidates,
                          engine_request *q) {
    engine_event *events;
    if (n_candidates > n_items)
        return fail(ERR_USAGE, "NUM_CANDIDATES: a user has more candidates than items");
    size_t n = n_items - n_candidates;
    if (actions != NULL && n_actions != n && n_actions != n_items)
        return fail(ERR_USAGE, "TOKEN_LENGTHS: a user has another number of actions than of items");
    TRY(ARENA_NEW(a, &events, n));
    for (size_t i = 0; i < n; i++) {
        size_t action = 0;
        events[i].item = items[i];
        if (actions != NULL) TRY(count(&actions[i], "actions in TOKENS", UINT16_MAX, &action));
        events[i].action = (uint16_t)action;
        /* Tokens have no times: a minute apart, in their order. */
        events[i].has_time = true;
        events[i].time = (int64_t)i * 60;
    }
    q->has_history = true;
    q->history = events;
    q->n_history = n;
    q->candidates = items + n;
    q->n_candidates = n_candidates;
    return OK;
}

static status add_histories(arena *a, const tensors *t, infer_asks *out) {
    bool has_actions = t->lengths->n == 2 * out->n;
    size_t at = 0, all = 0, *length;
    TRY(ARENA_NEW(a, &length, t->lengths->n));
    for (size_t i = 0; i < t->lengths->n; i++) {
        TRY(count(&t->lengths->at[i], "TOKEN_LENGTHS", INFER_MAX_ELEMENTS, &length[i]));
        all += length[i];
    }
    if (all != t->tokens->n)
        return fail(ERR_USAGE, "TOKENS has %zu elements, and TOKEN_LENGTHS adds up to %zu",
                    t->tokens->n, all);
    const engine_id *actions = t->tokens->at;
    for (size_t i = 0; i < out->n; i++)
        actions += length[i];
    for (size_t i = 0; i < out->n; i++) {
        size_t n_candidates = 0, n_actions = has_actions ? length[out->n + i] : 0;
        if (t->n_candidates != NULL)
            TRY(count(&t->n_candidates->at[i], "NUM_CANDIDATES", INFER_MAX_ELEMENTS,
                      &n_candidates));
        TRY(add_history(a, t->tokens->at + at, length[i], has_actions ? actions : NULL, n_actions,
                        n_candidates, &out->ask[i]));
        at += length[i];
        actions += n_actions;
    }
    return OK;
}

static status read_top_k(const tensors *t, infer_asks *out) {
    size_t k = DEFAULT_K;
    if (t->top_k != NULL) {
        if (t->top_k->n != 1) return fail(ERR_USAGE, "TOP_K has one element");
        TRY(count(&t->top_k->at[0], "TOP_K", ENGINE_MAX_K, &k));
        if (k == 0) return fail(ERR_USAGE, "TOP_K: at least 1");
    }
    out->top_k = (int32_t)k;
    return OK;
}

/* A small body can ask for very much: the same candidates for each of many users. */
static status check_cost(const infer_asks *q) {
    size_t n = q->has_candidates ? 0 : q->n * (size_t)q->top_k;
    for (size_t i = 0; i < q->n && q->has_candidates; i++) {
        n += q->ask[i].n_candidates;
        if (q->ask[i].n_candidates == 0)
            return fail(ERR_USAGE, "user %zu of the batch has no candidates", i);
    }
    if (n <= INFER_MAX_SCORES) return OK;
    return fail(ERR_USAGE, "%zu scores in one request, and at most %d: send fewer users or %s", n,
                INFER_MAX_SCORES, q->has_candidates ? "candidates" : "a smaller TOP_K");
}

static void finish(const request_infer *r, const tensors *t, infer_asks *out) {
    for (size_t i = 0; i < out->n; i++) {
        engine_request *q = &out->ask[i];
        q->task = out->has_candidates ? ENGINE_RANK : ENGINE_RECOMMEND;
        q->keeps_seen = out->has_candidates;
        q->top_k = out->has_candidates ? 0 : out->top_k;
        q->has_user = t->users != NULL;
        if (q->has_user) q->user = t->users->at[i];
        q->deadline_ns = (uint64_t)r->timeout_us * 1000;
        q->priority = r->priority > 0 ? -(int)(r->priority > 100 ? 100 : r->priority) : 0;
    }
}

status infer_asks_make(arena *a, const request_infer *r, infer_asks *out) {
    tensors t;
    *out = (infer_asks){0};
    TRY(find_tensors(r, &t));
    TRY(check_together(&t));
    TRY(find_batch(&t, &out->n));
    TRY(ARENA_NEW(a, &out->ask, out->n));
    TRY(read_top_k(&t, out));
    if (t.tokens != NULL) TRY(add_histories(a, &t, out));
    if (t.candidates != NULL) TRY(add_candidates(t.candidates, out));
    out->has_candidates = t.candidates != NULL || t.n_candidates != NULL;
    TRY(check_cost(out));
    finish(r, &t, out);
    return OK;
}
