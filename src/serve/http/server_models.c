/* GET /v1/models, POST /v1/models/NAME/reload, /health, /v1/status and /metrics. */
#include "serve/http/server_int.h"

/* The members of a model's object. */
static void write_model(json_writer *w, const server *s, int i, const engine_model_info *m) {
    JSON_FIELDS(w, FIELD("name", m->name), FIELD("version", m->version), FIELD("task", m->task));
    json_key_array(w, "tasks");
    for (int k = 0; k < m->n_columns; k++)
        json_string(w, m->columns[k]);
    json_array_close(w);
    JSON_FIELDS(w, FIELD("device", m->device), FIELD("step", m->step), FIELD("items", m->n_items),
                FIELD("dim", m->dim), FIELD("max_history", m->max_history),
                FIELD("is_cached", m->is_cached));
    if (m->cache_note[0] != '\0') json_key_string(w, "cache_note", m->cache_note);
    JSON_FIELDS(w, FIELD("kv_pages", m->n_pages),
                FIELD("kv_dtype", m->has_fp8_kv ? "fp8" : "model"));
    if (m->has_fp8_kv) json_key_double(w, "kv_fp8_error", m->fp8_error);
    json_key_int(w, "kv_host_pages", m->n_host_pages);
    if (m->load_us_token > 0)
        JSON_FIELDS(w, FIELD("kv_load_us_a_token", m->load_us_token),
                    FIELD("kv_compute_us_a_token", m->compute_us_token),
                    FIELD("kv_load_from_tokens", m->load_from_tokens));
    JSON_FIELDS(w, FIELD("memory_bytes", m->memory_bytes), FIELD("load_s", m->load_s));
    if (i < s->set.n_models && s->set.n_models > 1)
        JSON_FIELDS(w, FIELD("share", s->set.models[i].share),
                    FIELD("is_shadow", s->set.models[i].is_shadow));
}

static void write_replicas(json_writer *w, engine *e, int model) {
    engine_replica r;
    json_key_array(w, "replicas");
    for (int i = 0; engine_get_replica(e, model, i, &r); i++) {
        json_object_open(w);
        JSON_FIELDS(w, FIELD("device", r.device), FIELD("is_lost", r.is_lost),
                    FIELD("requests", r.stats.batch_requests), FIELD("moved", r.stats.n_moved),
                    FIELD("queue_requests", r.stats.queue_requests),
                    FIELD("kv_pages_used", r.stats.kv_pages_used),
                    FIELD("kv_pages_free", r.stats.kv_pages_free));
        if (r.is_lost) json_key_string(w, "why", r.why);
        json_object_close(w);
    }
    json_array_close(w);
}

/* Names of a model's columns are valid while it is not replaced. */
status serve_models(call *c, json_writer *w) {
    status st = OK;
    pthread_mutex_lock(&c->s->reload_lock);
    json_key_array(w, "models");
    for (int i = 0; i < engine_n_models(c->s->engine) && st == OK; i++) {
        engine_model_info m;
        st = engine_model(c->s->engine, i, &m);
        if (st != OK) break;
        json_object_open(w);
        write_model(w, c->s, i, &m);
        write_replicas(w, c->s->engine, i);
        json_object_close(w);
    }
    json_array_close(w);
    pthread_mutex_unlock(&c->s->reload_lock);
    return st;
}

/* The paths of a request are in the folder of --reload-from. */
static status place(const server *s, arena *a, request_reload *q) {
    const char **path[] = {&q->run, &q->data};
    char room[4096];
    for (int i = 0; i < 2; i++) {
        if (*path[i] == NULL) continue;
        TRY(path_join(room, sizeof room, s->set.reload_from, *path[i]));
        TRY(arena_copy_text(a, room, strlen(room), path[i]));
    }
    return OK;
}

/* Without a path in the body the model's own is opened again, and the data stays. */
static status reload(call *c, json_writer *w, int model, const request_reload *q) {
    server *s = c->s;
    engine_model_info m;
    TRY(engine_model(s->engine, model, &m));
    TRY(engine_reload(s->engine, m.name, q->run != NULL ? q->run : m.path, q->data));
    TRY(engine_model(s->engine, model, &m));
    write_model(w, s, model, &m);
    if (q->data != NULL) json_key_int(w, "users", (int64_t)engine_n_users(s->engine));
    return OK;
}

status serve_reload(call *c, json_writer *w) {
    server *s = c->s;
    engine_model_info m;
    request_reload q;
    int model;
    TRY(call_path_model(c, &model, &m));
    TRY(request_reload_read(&c->memory, c->x->body, c->x->n_body, &q));
    bool has_paths = q.run != NULL || q.data != NULL;
    if (s->set.reload_from == NULL && has_paths)
        return call_refuse(c, 403, "a reload may name paths if the server has --reload-from DIR");
    TRY(place(s, &c->memory, &q));
    pthread_mutex_lock(&s->reload_lock);
    status st = reload(c, w, model, &q);
    pthread_mutex_unlock(&s->reload_lock);
    if (st == OK) return OK;
    return call_refuse(c, has_paths ? 400 : 500, "the old version stays: %s", status_reason());
}

status call_is_ready(call *c, int first, int end) {
    if (!atomic_load(&c->s->is_ready))
        return call_refuse(c, 503, "not ready: the server is starting or stopping");
    engine_stats s;
    for (int i = first; i < end; i++)
        if (engine_model_stats(c->s->engine, i, &s) == OK && s.n_up == 0)
            return call_refuse(c, 503, "not ready: all devices are lost; restart the server");
    return OK;
}

status serve_health(call *c, json_writer *w) {
    engine *e = c->s->engine;
    engine_replica r;
    TRY(call_is_ready(c, 0, engine_n_models(e)));
    JSON_FIELDS(w, FIELD("status", "ok"), FIELD("models", engine_n_models(e)),
                FIELD("durable", (bool)(c->s->set.engine.state != NULL)));
    json_key_array(w, "lost"); /* the others answer */
    for (int i = 0; i < engine_n_models(e); i++)
        for (int k = 0; engine_get_replica(e, i, k, &r); k++)
            if (r.is_lost) json_string(w, r.why);
    json_array_close(w);
    return OK;
}

/* For people, as /metrics is for programs: whether users' events are stored. */
static void write_state(call *c, json_writer *w) {
    engine_state_stats s;
    engine_get_state(c->s->engine, &s);
    json_key_bool(w, "durable", s.is_durable);
    if (!s.is_durable) return;
    json_key_object(w, "state");
    json_key_bool(w, "failing", s.is_failing);
    if (s.is_failing) json_key_string(w, "why", s.why);
    JSON_FIELDS(w, FIELD("committed", s.n_commits), FIELD("failed", s.n_failed),
                FIELD("refused", s.n_refused), FIELD("queue_bytes", s.queue_bytes),
                FIELD("log_bytes", s.log_bytes), FIELD("not_swept", s.n_unswept));
    if (s.warning[0] != '\0') json_key_string(w, "warning", s.warning);
    json_object_close(w);
}

status serve_status(call *c, json_writer *w) {
    http_stats h = http_get_stats(c->s->http);
    JSON_FIELDS(w, FIELD("ready", (bool)atomic_load(&c->s->is_ready)),
                FIELD("models", engine_n_models(c->s->engine)));
    write_state(c, w);
    JSON_FIELDS(w, FIELD("users", engine_n_users(c->s->engine)), FIELD("connections", h.n_open),
                FIELD("unanswered", h.n_unanswered));
    json_key(w, "access_log");
    JSON_OBJECT(w, FIELD("on", (bool)(c->s->set.log != NULL)),
                FIELD("dropped", server_log_dropped(c->s)));
    return OK;
}

status serve_metrics_text(call *c, json_writer *w) {
    TRY(metrics_write(c->s, &c->memory, &c->body));
    call_reply(c, 200, "text/plain; version=0.0.4; charset=utf-8");
    return OK;
}
