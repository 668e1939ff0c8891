/* KServe v2 (Open Inference Protocol): inference over tensors, what describes the models, and what
 * Triton's tools (perf_analyzer) ask a server for. */
#include "hstu.h"
#include "serve/http/server_int.h"

/* A tensor of the answer. */
typedef struct tensor_out {
    const char *name, *datatype;
    int n_dims;
    int64_t shape[2];
    infer_output how;
    size_t n_bytes; /* where it is binary */
} tensor_out;

typedef struct inferring {
    call *c;
    request_infer r;
    engine_answer *answer; /* (r.n) */
    atomic_size_t n_left;
    bool has_text_items; /* of the model */
    tensor_out out[N_INFER_OUTPUTS];
} inferring;

static int columns_of(const inferring *q) {
    return q->r.has_candidates ? q->answer[0].n_columns : 1;
}

static int64_t rows_of(const inferring *q) {
    int64_t n = 0;
    for (size_t i = 0; i < q->r.n; i++)
        n += (int64_t)q->r.ask[i].n_candidates;
    return q->r.has_candidates ? n : (int64_t)q->r.n;
}

/* Items of user i, padded: an answer may have fewer than asked for. */
static size_t width_of(const inferring *q, size_t i) {
    return q->r.has_candidates ? q->r.ask[i].n_candidates : (size_t)q->r.top_k;
}

static float value_at(const engine_answer *a, size_t item, int at) {
    return item < a->n_items ? a->items[item].values[at] : NAN;
}

static engine_id id_at(const engine_answer *a, size_t item, bool is_text) {
    engine_id none = {.text = is_text ? "" : NULL};
    return item < a->n_items ? a->items[item].id : none;
}

/* FP32 values and ids, as bytes or as JSON: one walk over all answers. */
static status put_scores(const inferring *q, json_writer *w, buf *bytes) {
    int n_columns = columns_of(q);
    for (size_t i = 0; i < q->r.n; i++)
        for (size_t k = 0; k < width_of(q, i); k++)
            for (int k_column = 0; k_column < n_columns; k_column++) {
                float value = value_at(&q->answer[i], k, k_column);
                if (bytes != NULL)
                    TRY(buf_append(bytes, &value, sizeof value));
                else
                    write_number(w, value);
            }
    return OK;
}

static status put_id(engine_id id, json_writer *w, buf *bytes) {
    uint32_t n = (uint32_t)id.n;
    if (bytes == NULL) {
        write_id(w, NULL, &id);
        return OK;
    }
    if (id.text == NULL) return buf_append(bytes, &id.number, sizeof id.number);
    TRY(buf_append(bytes, &n, sizeof n));
    return buf_append(bytes, id.text, id.n);
}

static status put_ids(const inferring *q, json_writer *w, buf *bytes) {
    for (size_t i = 0; i < q->r.n; i++)
        for (size_t k = 0; k < width_of(q, i); k++)
            TRY(put_id(id_at(&q->answer[i], k, q->has_text_items), w, bytes));
    return OK;
}

/* Scores of popular items are counts of events: not to be compared with those of the model. */
static status put_sources(const inferring *q, json_writer *w, buf *bytes) {
    for (size_t i = 0; i < q->r.n; i++) {
        const char *name = source_name(q->answer[i].source);
        TRY(put_id((engine_id){.text = name, .n = strlen(name)}, w, bytes));
    }
    return OK;
}

static status put(const inferring *q, const tensor_out *t, json_writer *w, buf *bytes) {
    if (t == &q->out[INFER_SCORES]) return put_scores(q, w, bytes);
    if (t == &q->out[INFER_SOURCES]) return put_sources(q, w, bytes);
    return put_ids(q, w, bytes);
}

static void write_tensor(json_writer *w, const inferring *q, const tensor_out *t) {
    json_object_open(w);
    json_key_string(w, "name", t->name);
    json_key_string(w, "datatype", t->datatype);
    json_key_array(w, "shape");
    for (int i = 0; i < t->n_dims; i++)
        json_int(w, t->shape[i]);
    json_array_close(w);
    if (t->how.is_binary) {
        json_key_object(w, "parameters");
        json_key_int(w, "binary_data_size", (int64_t)t->n_bytes);
        json_object_close(w);
    } else {
        json_key_array(w, "data");
        put(q, t, w, NULL);
        json_array_close(w);
    }
    json_object_close(w);
}

static status write_json(call *c, json_writer *w) {
    const inferring *q = c->state;
    json_key_string(w, "model_name", q->answer[0].model);
    json_key_string(w, "model_version", q->answer[0].version);
    if (q->r.id != NULL) json_key_string(w, "id", q->r.id);
    json_key_array(w, "outputs");
    for (int i = 0; i < N_INFER_OUTPUTS; i++)
        if (q->out[i].how.is_wanted) write_tensor(w, q, &q->out[i]);
    json_array_close(w);
    return OK;
}

/* The JSON first, then the binary tensors; *n_json 0: there are none. */
static status write_body(inferring *q, size_t *n_json) {
    buf *body = &q->c->body;
    bool is_list = !q->r.has_candidates;
    tensor_out *t = q->out;
    buf bytes = {0};
    status st = OK;
    bool has_binary = false;
    t[INFER_ITEMS] = (tensor_out){"ITEM_IDS", q->has_text_items ? "BYTES" : "INT64", .n_dims = 2};
    t[INFER_SCORES] = (tensor_out){"OUTPUT", "FP32", .n_dims = 2};
    t[INFER_SOURCES] = (tensor_out){"SOURCE", "BYTES", .n_dims = 1};
    for (int i = 0; i < N_INFER_OUTPUTS && st == OK; i++) {
        t[i].how = q->r.out[i];
        t[i].how.is_wanted &= i != INFER_ITEMS || is_list;
        t[i].shape[0] = t[i].n_dims == 1 ? (int64_t)q->r.n : rows_of(q);
        t[i].shape[1] = is_list ? q->r.top_k : columns_of(q);
        if (!t[i].how.is_wanted || !t[i].how.is_binary) continue;
        size_t before = bytes.n_bytes;
        st = put(q, &t[i], NULL, &bytes);
        t[i].n_bytes = bytes.n_bytes - before;
        has_binary = true;
    }
    if (st == OK) st = call_write(q->c, write_json);
    *n_json = has_binary ? body->n_bytes : 0;
    if (st == OK && bytes.n_bytes > 0) st = buf_append(body, bytes.data, bytes.n_bytes);
    buf_fini(&bytes);
    return st;
}

static void note_facts(inferring *q) {
    call *c = q->c;
    snprintf(c->model, sizeof c->model, "%s", q->answer[0].model);
    for (size_t i = 0; i < q->r.n; i++) {
        c->tokens_reused += (uint64_t)q->answer[i].tokens_reused;
        c->tokens_computed += (uint64_t)q->answer[i].tokens_computed;
    }
}

static void reply_good(inferring *q) {
    call *c = q->c;
    size_t n_json = 0;
    char length[24];
    note_facts(q);
    status st = OK;
    for (size_t i = 0; i < q->r.n && st == OK; i++)
        st = engine_make_items(&q->answer[i]);
    if (st == OK) st = write_body(q, &n_json);
    for (size_t i = 0; i < q->r.n; i++)
        engine_answer_release(&q->answer[i]);
    if (st != OK || n_json == 0) {
        call_answer(c, st);
        return;
    }
    snprintf(length, sizeof length, "%zu", n_json);
    http_set_header(c->x, "Inference-Header-Content-Length", length);
    call_reply(c, 200, "application/octet-stream");
}

/* On a thread of the HTTP server; ends the call, and with it q. */
static void reply(void *context) {
    inferring *q = context;
    metrics_stages(&q->c->s->metrics, q->c->parsed_ns - q->c->x->arrived_ns, 0);
    for (size_t i = 0; i < q->r.n; i++) {
        engine_answer bad = q->answer[i];
        if (bad.outcome == ENGINE_OK) continue;
        for (size_t k = 0; k < q->r.n; k++)
            engine_answer_release(&q->answer[k]);
        call_answer(q->c, call_refuse_outcome(q->c, &bad));
        return;
    }
    reply_good(q);
}

static void answered(void *context, engine_answer *a) {
    inferring *q = context;
    if (atomic_fetch_sub(&q->n_left, 1) == 1) http_continue(q->c->x, reply, q);
}

static bool is_gone(void *context) {
    const inferring *q = context;
    return http_is_cancelled(q->c->x);
}

status serve_infer(call *c, json_writer *w) {
    inferring *q;
    engine_model_info info;
    int model;
    TRY(call_path_model(c, &model, &info));
    TRY(ARENA_NEW(&c->memory, &q, 1));
    TRY(request_infer_read(&c->memory, c->x->body, c->x->n_body,
                           http_header(c->x, "Inference-Header-Content-Length"), &q->r));
    TRY(ARENA_NEW(&c->memory, &q->answer, q->r.n));
    for (size_t i = 0; i < q->r.n; i++)
        TRY(engine_read_ratings(c->s->engine, model, (engine_event *)q->r.ask[i].history,
                                q->r.ask[i].n_history));
    q->c = c;
    c->state = q;
    q->has_text_items = info.has_text_items;
    c->parsed_ns = clock_ns();
    atomic_init(&q->n_left, q->r.n);
    /* After the last submit the call may be answered and gone. */
    engine *e = c->s->engine;
    for (size_t i = 0, n = q->r.n; i < n; i++) {
        q->r.ask[i].model = model;
        q->r.ask[i].is_gone = is_gone;
        q->r.ask[i].arrived_ns = c->x->arrived_ns;
        q->r.ask[i].run_ns = n == 1 ? call_run_ns(c) : 0;
        engine_submit(e, &q->r.ask[i], &q->answer[i], answered, q);
    }
    return OK;
}

status serve_kserve(call *c, json_writer *w) {
    json_key_string(w, "name", "hstu");
    json_key_string(w, "version", HSTU_VERSION);
    json_key_array(w, "extensions");
    json_string(w, "binary_tensor_data");
    json_string(w, "model_configuration");
    json_string(w, "statistics");
    json_array_close(w);
    return OK;
}

status serve_kserve_live(call *c, json_writer *w) {
    json_key_bool(w, "live", true);
    return OK;
}

status serve_kserve_ready(call *c, json_writer *w) {
    json_key_bool(w, "ready", true);
    return call_is_ready(c, 0, engine_n_models(c->s->engine));
}

status serve_kserve_model_ready(call *c, json_writer *w) {
    engine_model_info m;
    int model;
    TRY(call_path_model(c, &model, &m));
    json_key_string(w, "name", m.name);
    json_key_bool(w, "ready", true);
    return call_is_ready(c, model, model + 1);
}

/* What a model takes and gives, in the words of its metadata, or of Triton's configuration. */
typedef struct description {
    json_writer *w;
    bool is_config;
    const char *user, *item; /* datatypes of ids */
    int64_t n_columns;       /* -1: as many as are asked for */
} description;

/* Where an input need not be sent, the configuration says so. */
static void describe(const description *d, const char *name, const char *type, int n_dims,
                     int64_t last, bool is_optional) {
    json_writer *w = d->w;
    char data_type[16];
    snprintf(data_type, sizeof data_type, "TYPE_%s", strcmp(type, "BYTES") == 0 ? "STRING" : type);
    json_object_open(w);
    json_key_string(w, "name", name);
    json_key_string(w, d->is_config ? "data_type" : "datatype", d->is_config ? data_type : type);
    json_key_array(w, d->is_config ? "dims" : "shape");
    if (n_dims == 2) json_int(w, -1);
    json_int(w, last);
    json_array_close(w);
    if (d->is_config && is_optional) json_key_bool(w, "optional", true);
    json_object_close(w);
}

static void describe_tensors(const description *d) {
    json_key_array(d->w, d->is_config ? "input" : "inputs");
    describe(d, "USER_IDS", d->user, 1, -1, false);
    describe(d, "CANDIDATES", d->item, 2, -1, true);
    describe(d, "TOP_K", "INT64", 1, 1, true);
    describe(d, "TOKENS", d->item, 1, -1, true);
    describe(d, "TOKEN_LENGTHS", "INT64", 1, -1, true);
    describe(d, "NUM_CANDIDATES", "INT64", 1, -1, true);
    json_array_close(d->w);
    json_key_array(d->w, d->is_config ? "output" : "outputs");
    describe(d, "OUTPUT", "FP32", 2, d->n_columns, false);
    describe(d, "ITEM_IDS", d->item, 2, -1, false);
    describe(d, "SOURCE", "BYTES", 1, -1, false);
    json_array_close(d->w);
}

/* Ids of users are as those of the data; where there are none, as numbers. */
static status write_description(call *c, json_writer *w, bool is_config) {
    engine_model_info m;
    int model;
    TRY(call_path_model(c, &model, &m));
    description d = {.w = w,
                     .is_config = is_config,
                     .user = engine_has_text_users(c->s->engine) ? "BYTES" : "INT64",
                     .item = m.has_text_items ? "BYTES" : "INT64",
                     .n_columns = strcmp(m.task, "ranking") == 0 ? m.n_columns : -1};
    json_key_string(w, "name", m.name);
    json_key_string(w, "platform", "hstu");
    if (is_config) { /* max_batch_size 0: a tensor's first dimension is its own */
        JSON_FIELDS(w, FIELD("backend", "hstu"), FIELD("max_batch_size", 0));
    } else {
        json_key_array(w, "versions");
        json_string(w, m.version);
        json_array_close(w);
    }
    describe_tensors(&d);
    return OK;
}

status serve_kserve_model(call *c, json_writer *w) {
    return write_description(c, w, false);
}

status serve_kserve_config(call *c, json_writer *w) {
    return write_description(c, w, true);
}

static void write_duration(json_writer *w, const char *key, uint64_t count, uint64_t ns) {
    json_key_object(w, key);
    json_key_int(w, "count", (int64_t)count);
    json_key_int(w, "ns", (int64_t)ns);
    json_object_close(w);
}

/* Times of the stages are of batches; the queue's are of requests. */
static void write_stats(json_writer *w, const engine_model_info *m, const engine_stats *s) {
    uint64_t n_ok = 0, n_bad = 0;
    for (int task = 0; task < 2; task++)
        for (int o = ENGINE_OK; o <= ENGINE_FAILED; o++)
            *(o == ENGINE_OK ? &n_ok : &n_bad) += s->requests[task][o];
    json_object_open(w);
    JSON_FIELDS(w, FIELD("name", m->name), FIELD("version", m->version),
                FIELD("inference_count", s->batch_requests),
                FIELD("execution_count", s->n_batches));
    json_key_object(w, "inference_stats");
    write_duration(w, "success", n_ok, s->total.sum_ns);
    write_duration(w, "fail", n_bad, 0);
    write_duration(w, "queue", s->stages[STAGE_QUEUE].n, s->stages[STAGE_QUEUE].sum_ns);
    write_duration(w, "compute_input", s->stages[STAGE_BUILD].n, s->stages[STAGE_BUILD].sum_ns);
    write_duration(w, "compute_infer", s->stages[STAGE_LAYERS].n, s->stages[STAGE_LAYERS].sum_ns);
    write_duration(w, "compute_output", s->stages[STAGE_HEAD].n, s->stages[STAGE_HEAD].sum_ns);
    json_object_close(w);
    json_key_array(w, "batch_stats");
    json_array_close(w);
    json_object_close(w);
}

status serve_kserve_stats(call *c, json_writer *w) {
    engine_model_info m;
    bool is_all = c->n_parts == 3;
    int first = 0, end = engine_n_models(c->s->engine);
    if (!is_all) {
        TRY(call_path_model(c, &first, &m));
        end = first + 1;
    }
    json_key_array(w, "model_stats");
    for (int i = first; i < end; i++) {
        engine_stats s;
        if (engine_model(c->s->engine, i, &m) == OK &&
            engine_model_stats(c->s->engine, i, &s) == OK)
            write_stats(w, &m, &s);
    }
    json_array_close(w);
    return OK;
}
