/* POST /v2/models/NAME/infer: KServe v2. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "serve/http/request_infer.h"
#include "serve/http/server_int.h"

typedef struct inferring {
    call *c;
    request_infer r;
    infer_asks asks;
    engine_answer *answer; /* (asks.n) */
    atomic_size_t n_left;
} inferring;

/* A tensor of the answer. */
typedef struct tensor_out {
    const char *name, *datatype;
    int64_t shape[2];
    bool is_wanted, is_binary;
    size_t n_bytes; /* where it is binary */
} tensor_out;

static int columns_of(const inferring *q) {
    return q->asks.has_candidates ? q->answer[0].n_columns : 1;
}

static int64_t rows_of(const inferring *q) {
    int64_t n = 0;
    for (size_t i = 0; i < q->asks.n; i++)
        n += (int64_t)q->asks.ask[i].n_candidates;
    return q->asks.has_candidates ? n : (int64_t)q->asks.n;
}

/* Items of user i, padded: an answer may have fewer than asked for. */
static size_t width_of(const inferring *q, size_t i) {
    return q->asks.has_candidates ? q->asks.ask[i].n_candidates : (size_t)q->asks.top_k;
}

static float value_at(const engine_answer *a, size_t item, int at) {
    return item < a->n_items ? a->items[item].values[at] : NAN;
}

static engine_id id_at(const engine_answer *a, size_t item, bool is_text) {
    engine_id none = {.text = is_text ? "" : NULL};
    return item < a->n_items ? a->items[item].id : none;
}

static bool has_text_ids(const inferring *q) {
    for (size_t i = 0; i < q->asks.n; i++)
        for (size_t k = 0; k < q->answer[i].n_items; k++)
            return q->answer[i].items[k].id.text != NULL;
    return false;
}

/* FP32 values and ids, as bytes or as JSON: one walk over all answers. */
static status put_scores(const inferring *q, json_writer *w, buf *bytes) {
    int n_columns = columns_of(q);
    for (size_t i = 0; i < q->asks.n; i++)
        for (size_t k = 0; k < width_of(q, i); k++)
            for (int k_column = 0; k_column < n_columns; k_column++) {
                float value = value_at(&q->answer[i], k, k_column);
                if (bytes != NULL)
                    TRY(buf_append(bytes, &value, sizeof value));
                else if (isfinite(value))
                    json_float(w, value);
                else
                    json_null(w);
            }
    return OK;
}

static status put_ids(const inferring *q, bool is_text, json_writer *w, buf *bytes) {
    for (size_t i = 0; i < q->asks.n; i++)
        for (size_t k = 0; k < width_of(q, i); k++) {
            engine_id id = id_at(&q->answer[i], k, is_text);
            uint32_t n = (uint32_t)id.n;
            if (bytes == NULL) {
                write_id(w, &id);
            } else if (is_text) {
                TRY(buf_append(bytes, &n, sizeof n));
                TRY(buf_append(bytes, id.text, id.n));
            } else {
                TRY(buf_append(bytes, &id.number, sizeof id.number));
            }
        }
    return OK;
}

static status put(const inferring *q, const tensor_out *t, json_writer *w, buf *bytes) {
    if (strcmp(t->name, "OUTPUT") == 0) return put_scores(q, w, bytes);
    return put_ids(q, strcmp(t->datatype, "BYTES") == 0, w, bytes);
}

static void write_tensor(json_writer *w, const inferring *q, const tensor_out *t) {
    json_object_open(w);
    json_key_string(w, "name", t->name);
    json_key_string(w, "datatype", t->datatype);
    json_key(w, "shape");
    json_array_open(w);
    json_int(w, t->shape[0]);
    json_int(w, t->shape[1]);
    json_array_close(w);
    if (t->is_binary) {
        json_key(w, "parameters");
        json_object_open(w);
        json_key_int(w, "binary_data_size", (int64_t)t->n_bytes);
        json_object_close(w);
    } else {
        json_key(w, "data");
        json_array_open(w);
        put(q, t, w, NULL);
        json_array_close(w);
    }
    json_object_close(w);
}

static status write_json(const inferring *q, const tensor_out *t, buf *body) {
    json_writer w;
    json_begin(&w, body, 0);
    json_object_open(&w);
    json_key_string(&w, "model_name", q->answer[0].model);
    json_key_string(&w, "model_version", q->answer[0].version);
    if (q->r.id != NULL) json_key_string(&w, "id", q->r.id);
    json_key(&w, "outputs");
    json_array_open(&w);
    for (int i = 0; i < 2; i++)
        if (t[i].is_wanted) write_tensor(&w, q, &t[i]);
    json_array_close(&w);
    json_object_close(&w);
    return json_finish(&w);
}

/* The JSON first, then the binary tensors; *n_json 0: there are none. */
static status write_body(const inferring *q, buf *body, size_t *n_json) {
    tensor_out t[2] = {{.name = "ITEM_IDS", .datatype = has_text_ids(q) ? "BYTES" : "INT64"},
                       {.name = "OUTPUT", .datatype = "FP32"}};
    buf bytes;
    status st = OK;
    bool has_binary = false;
    buf_init(&bytes);
    for (int i = 0; i < 2 && st == OK; i++) {
        bool is_score = i == 1, is_list = !q->asks.has_candidates;
        t[i].is_wanted = infer_wants(&q->r, t[i].name, &t[i].is_binary) && (is_score || is_list);
        t[i].shape[0] = rows_of(q);
        t[i].shape[1] = is_list ? q->asks.top_k : columns_of(q);
        if (!t[i].is_wanted || !t[i].is_binary) continue;
        size_t before = bytes.n_bytes;
        st = put(q, &t[i], NULL, &bytes);
        t[i].n_bytes = bytes.n_bytes - before;
        has_binary = true;
    }
    if (st == OK) st = write_json(q, t, body);
    *n_json = has_binary ? body->n_bytes : 0;
    if (st == OK && bytes.n_bytes > 0) st = buf_append(body, bytes.data, bytes.n_bytes);
    buf_fini(&bytes);
    return st;
}

static void note_facts(inferring *q) {
    call *c = q->c;
    snprintf(c->model, sizeof c->model, "%s", q->answer[0].model);
    for (size_t i = 0; i < q->asks.n; i++) {
        c->tokens_reused += (uint64_t)q->answer[i].tokens_reused;
        c->tokens_computed += (uint64_t)q->answer[i].tokens_computed;
    }
}

static void reply_good(inferring *q) {
    call *c = q->c;
    size_t n_json = 0;
    char length[24];
    buf body;
    buf_init(&body);
    note_facts(q);
    status st = OK;
    for (size_t i = 0; i < q->asks.n && st == OK; i++)
        st = engine_make_items(&q->answer[i]);
    if (st == OK) st = write_body(q, &body, &n_json);
    for (size_t i = 0; i < q->asks.n; i++)
        engine_answer_release(&q->answer[i]);
    if (st != OK) {
        call_fail_status(c, st);
    } else if (n_json > 0) {
        snprintf(length, sizeof length, "%zu", n_json);
        http_set_header(c->x, "Inference-Header-Content-Length", length);
        call_reply(c, 200, "application/octet-stream", &body);
    } else {
        call_reply_json(c, 200, &body);
    }
    buf_fini(&body);
}

/* On a thread of the HTTP server; ends the call, and with it q. */
static void reply(void *context, http_exchange *x) {
    inferring *q = context;
    (void)x;
    metrics_stages(&q->c->s->metrics, q->c->parsed_ns - q->c->x->arrived_ns, 0);
    for (size_t i = 0; i < q->asks.n; i++) {
        engine_answer bad = q->answer[i];
        if (bad.outcome == ENGINE_OK) continue;
        for (size_t k = 0; k < q->asks.n; k++)
            engine_answer_release(&q->answer[k]);
        call_fail_outcome(q->c, &bad);
        return;
    }
    reply_good(q);
}

static void answered(void *context, engine_answer *a) {
    inferring *q = context;
    (void)a;
    if (atomic_fetch_sub(&q->n_left, 1) == 1) http_continue(q->c->x, reply, q);
}

static status read(call *c, inferring *q) {
    size_t n = c->x->n_body;
    const char *body = c->x->body;
    const char *json_bytes = http_header(c->x, "Inference-Header-Content-Length");
    TRY(request_infer_read(&c->memory, body, n, json_bytes, &q->r));
    TRY(infer_asks_make(&c->memory, &q->r, &q->asks));
    return ARENA_NEW(&c->memory, &q->answer, q->asks.n);
}

static bool is_gone(void *context) {
    const inferring *q = context;
    return http_is_cancelled(q->c->x);
}

void serve_infer(call *c) {
    inferring *q;
    int model = engine_find_model(c->s->engine, c->part[2]);
    engine_model_info info;
    if (model < 0) {
        call_fail(c, 404, "there is no model '%.64s'; GET /v1/models lists them", c->part[2]);
        return;
    }
    status st = engine_model(c->s->engine, model, &info);
    if (st == OK && strcmp(c->part[3], "versions") == 0 && strcmp(c->part[4], info.version) != 0) {
        call_fail(c, 404, "model %s has version %s, not '%.64s'", info.name, info.version,
                  c->part[4]);
        return;
    }
    if (st == OK) st = ARENA_NEW(&c->memory, &q, 1);
    if (st == OK) st = read(c, q);
    if (st != OK) {
        call_fail_status(c, st);
        return;
    }
    q->c = c;
    c->parsed_ns = clock_ns();
    atomic_init(&q->n_left, q->asks.n);
    /* After the last submit the call may be answered and gone. */
    engine *e = c->s->engine;
    for (size_t i = 0, n = q->asks.n; i < n; i++) {
        q->asks.ask[i].model = model;
        q->asks.ask[i].is_gone = is_gone;
        q->asks.ask[i].makes_items = true;
        q->asks.ask[i].arrived_ns = c->x->arrived_ns;
        engine_submit(e, &q->asks.ask[i], &q->answer[i], answered, q);
    }
}
