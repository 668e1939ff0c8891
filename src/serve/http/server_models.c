/* /v1/models, /health, /metrics, and the parts of KServe v2 that describe. */
#include <string.h>

#include "hstu.h"
#include "serve/http/server_int.h"

static void write_texts(json_writer *w, const char *key, const char *const *text, int n) {
    json_key(w, key);
    json_array_open(w);
    for (int i = 0; i < n; i++)
        json_string(w, text[i]);
    json_array_close(w);
}

static void write_model(json_writer *w, const server *s, int i, const engine_model_info *m) {
    json_object_open(w);
    json_key_string(w, "name", m->name);
    json_key_string(w, "version", m->version);
    json_key_string(w, "task", m->task);
    write_texts(w, "tasks", m->columns, m->n_columns);
    json_key_string(w, "device", m->device);
    json_key_int(w, "step", (int64_t)m->step);
    json_key_int(w, "items", (int64_t)m->n_items);
    json_key_int(w, "dim", m->dim);
    json_key_int(w, "max_history", m->max_history);
    json_key_bool(w, "is_cached", m->is_cached);
    if (m->cache_note[0] != '\0') json_key_string(w, "cache_note", m->cache_note);
    json_key_int(w, "kv_pages", m->n_pages);
    json_key_string(w, "kv_dtype", m->has_fp8_kv ? "fp8" : "model");
    if (m->has_fp8_kv) json_key_double(w, "kv_fp8_error", m->fp8_error);
    json_key_int(w, "kv_host_pages", m->n_host_pages);
    if (m->load_us_token > 0) {
        json_key_double(w, "kv_load_us_a_token", m->load_us_token);
        json_key_double(w, "kv_compute_us_a_token", m->compute_us_token);
        json_key_int(w, "kv_load_from_tokens", m->load_from_tokens);
    }
    json_key_int(w, "memory_bytes", (int64_t)m->memory_bytes);
    json_key_double(w, "load_s", m->load_s);
    if (i < s->set.n_models && s->set.n_models > 1) {
        json_key_int(w, "share", s->set.models[i].share);
        json_key_bool(w, "is_shadow", s->set.models[i].is_shadow);
    }
    json_object_close(w);
}

/* Finishes a body of JSON and answers with it. */
static void reply_written(call *c, json_writer *w, status st, buf *body) {
    status finished = json_finish(w);
    if (st == OK) st = finished;
    st == OK ? call_reply_json(c, 200, body) : call_fail_status(c, st);
    buf_fini(body);
}

/* On a worker: names of a model's columns are valid while it is not replaced. */
static void list_models(void *context) {
    call *c = context;
    json_writer w;
    buf body;
    status st = OK;
    buf_init(&body);
    pthread_mutex_lock(&c->s->reload_lock);
    json_begin(&w, &body, 0);
    json_object_open(&w);
    json_key(&w, "models");
    json_array_open(&w);
    for (int i = 0; i < engine_n_models(c->s->engine) && st == OK; i++) {
        engine_model_info m;
        st = engine_model(c->s->engine, i, &m);
        if (st == OK) write_model(&w, c->s, i, &m);
    }
    json_array_close(&w);
    json_object_close(&w);
    pthread_mutex_unlock(&c->s->reload_lock);
    reply_written(c, &w, st, &body);
}

void serve_models(call *c) {
    call_later(c, list_models);
}

/* The model that a path names; answers 404 where there is none. */
static bool model_of(call *c, const char *name, engine_model_info *m) {
    int i = engine_find_model(c->s->engine, name);
    if (i < 0 || name[0] == '\0') {
        call_fail(c, 404, "there is no model '%.64s'; GET /v1/models lists them", name);
        return false;
    }
    status st = engine_model(c->s->engine, i, m);
    if (st != OK) {
        call_fail_status(c, st);
        return false;
    }
    /* v2/models/NAME/versions/V */
    if (c->n_parts > 4 && strcmp(c->part[3], "versions") == 0 &&
        strcmp(c->part[4], m->version) != 0) {
        call_fail(c, 404, "model %s has version %s, not '%.64s'", m->name, m->version, c->part[4]);
        return false;
    }
    return true;
}

/* On a worker.  From the path of the start: nothing a client sends names a file. */
static void reload(void *context) {
    call *c = context;
    server *s = c->s;
    engine_model_info m;
    json_writer w;
    buf body;
    status st = OK;
    if (!model_of(c, c->part[2], &m)) return;
    pthread_mutex_lock(&s->reload_lock);
    for (int i = 0; i < s->set.n_models; i++)
        if (strcmp(s->set.models[i].name, m.name) == 0)
            st = engine_load(s->engine, m.name, s->set.models[i].path);
    int i = engine_find_model(s->engine, m.name);
    if (st == OK) st = engine_model(s->engine, i, &m);
    buf_init(&body);
    json_begin(&w, &body, 0);
    if (st == OK) write_model(&w, s, i, &m);
    pthread_mutex_unlock(&s->reload_lock);
    if (st != OK) {
        call_fail(c, 500, "the old version stays: %s", status_reason());
        return;
    }
    reply_written(c, &w, OK, &body);
}

void serve_reload(call *c) {
    call_later(c, reload);
}

void serve_health(call *c) {
    bool is_ready = atomic_load(&c->s->is_ready);
    json_writer w;
    buf body;
    if (!is_ready) {
        call_fail(c, 503, "not ready: the server starts or ends");
        return;
    }
    buf_init(&body);
    json_begin(&w, &body, 0);
    json_object_open(&w);
    json_key_string(&w, "status", "ok");
    json_key_int(&w, "models", engine_n_models(c->s->engine));
    json_key_bool(&w, "durable", c->s->set.engine.state != NULL);
    json_object_close(&w);
    reply_written(c, &w, OK, &body);
}

static uint64_t log_dropped(const server *s) {
    return s->set.log_dropped != NULL ? s->set.log_dropped(s->set.log_ctx) : 0;
}

/* For people, beside /metrics for programs: what is not as it should be. */
static void write_state(call *c, json_writer *w) {
    engine_state_stats s;
    engine_get_state(c->s->engine, &s);
    json_key_bool(w, "durable", s.is_durable);
    if (!s.is_durable) return;
    json_key(w, "state");
    json_object_open(w);
    json_key_bool(w, "failing", s.is_failing);
    if (s.is_failing) json_key_string(w, "why", s.why);
    json_key_int(w, "committed", (int64_t)s.n_commits);
    json_key_int(w, "failed", (int64_t)s.n_failed);
    json_key_int(w, "refused", (int64_t)s.n_refused);
    json_key_int(w, "queue_bytes", (int64_t)s.queue_bytes);
    json_key_int(w, "log_bytes", (int64_t)s.log_bytes);
    json_key_int(w, "not_swept", (int64_t)s.n_unswept);
    if (s.warning[0] != '\0') json_key_string(w, "warning", s.warning);
    json_object_close(w);
}

void serve_status(call *c) {
    http_stats h = http_get_stats(c->s->http);
    json_writer w;
    buf body;
    buf_init(&body);
    json_begin(&w, &body, 0);
    json_object_open(&w);
    json_key_bool(&w, "ready", atomic_load(&c->s->is_ready));
    json_key_int(&w, "models", engine_n_models(c->s->engine));
    write_state(c, &w);
    json_key_int(&w, "users", (int64_t)engine_n_users(c->s->engine));
    json_key_int(&w, "connections", h.n_open);
    json_key_int(&w, "unanswered", h.n_unanswered);
    json_key(&w, "access_log");
    json_object_open(&w);
    json_key_bool(&w, "on", c->s->set.log != NULL);
    json_key_int(&w, "dropped", (int64_t)log_dropped(c->s));
    json_object_close(&w);
    json_object_close(&w);
    reply_written(c, &w, OK, &body);
}

void serve_metrics_text(call *c) {
    buf body;
    buf_init(&body);
    atomic_store(&c->s->metrics.log_dropped, log_dropped(c->s));
    status st = metrics_write(&c->s->metrics, c->s->engine, c->s->http, &body);
    if (st == OK)
        call_reply(c, 200, "text/plain; version=0.0.4; charset=utf-8", &body);
    else
        call_fail_status(c, st);
    buf_fini(&body);
}

void serve_kserve(call *c) {
    static const char *const extensions[] = {"binary_tensor_data", "model_configuration",
                                             "statistics"};
    json_writer w;
    buf body;
    buf_init(&body);
    json_begin(&w, &body, 0);
    json_object_open(&w);
    json_key_string(&w, "name", "hstu");
    json_key_string(&w, "version", HSTU_VERSION);
    write_texts(&w, "extensions", extensions, 3);
    json_object_close(&w);
    reply_written(c, &w, OK, &body);
}

static void reply_flag(call *c, const char *name, const char *key, bool value) {
    json_writer w;
    buf body;
    buf_init(&body);
    json_begin(&w, &body, 0);
    json_object_open(&w);
    if (name != NULL) json_key_string(&w, "name", name);
    json_key_bool(&w, key, value);
    json_object_close(&w);
    reply_written(c, &w, OK, &body);
}

void serve_kserve_live(call *c) {
    reply_flag(c, NULL, "live", true);
}

void serve_kserve_ready(call *c) {
    if (atomic_load(&c->s->is_ready))
        reply_flag(c, NULL, "ready", true);
    else
        call_fail(c, 503, "not ready: the server starts or ends");
}

void serve_kserve_model_ready(call *c) {
    engine_model_info m;
    if (model_of(c, c->part[2], &m)) reply_flag(c, m.name, "ready", true);
}

static void write_tensor(json_writer *w, const char *name, const char *type, int n_dims,
                         int64_t last) {
    json_object_open(w);
    json_key_string(w, "name", name);
    json_key_string(w, "datatype", type);
    json_key(w, "shape");
    json_array_open(w);
    if (n_dims == 2) json_int(w, -1);
    json_int(w, last);
    json_array_close(w);
    json_object_close(w);
}

static void describe_model(void *context) {
    call *c = context;
    engine_model_info m;
    engine_item item;
    json_writer w;
    buf body;
    if (!model_of(c, c->part[2], &m)) return;
    int number = engine_find_model(c->s->engine, m.name);
    pthread_mutex_lock(&c->s->reload_lock);
    bool is_text = engine_item_of(c->s->engine, number, 1, &item) == OK && item.id.text != NULL;
    pthread_mutex_unlock(&c->s->reload_lock);
    const char *id = is_text ? "BYTES" : "INT64", *version[] = {m.version};
    buf_init(&body);
    json_begin(&w, &body, 0);
    json_object_open(&w);
    json_key_string(&w, "name", m.name);
    write_texts(&w, "versions", version, 1);
    json_key_string(&w, "platform", "hstu");
    json_key(&w, "inputs");
    json_array_open(&w);
    write_tensor(&w, "USER_IDS", "INT64", 1, -1);
    write_tensor(&w, "CANDIDATES", id, 2, -1);
    write_tensor(&w, "TOP_K", "INT64", 1, 1);
    write_tensor(&w, "TOKENS", id, 1, -1);
    write_tensor(&w, "TOKEN_LENGTHS", "INT64", 1, -1);
    write_tensor(&w, "NUM_CANDIDATES", "INT64", 1, -1);
    json_array_close(&w);
    json_key(&w, "outputs");
    json_array_open(&w);
    write_tensor(&w, "OUTPUT", "FP32", 2, strcmp(m.task, "ranking") == 0 ? m.n_columns : -1);
    write_tensor(&w, "ITEM_IDS", id, 2, -1);
    json_array_close(&w);
    json_object_close(&w);
    reply_written(c, &w, OK, &body);
}

void serve_kserve_model(call *c) {
    call_later(c, describe_model);
}
