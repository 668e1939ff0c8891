/* /v2/models/NAME/config and /stats: what Triton's tools (perf_analyzer) ask a server for. */
#include <stdio.h>
#include <string.h>

#include "serve/http/server_int.h"

static void reply_json(call *c, json_writer *w, buf *body) {
    status st = json_finish(w);
    if (st == OK)
        call_reply_json(c, 200, body);
    else
        call_fail_status(c, st);
    buf_fini(body);
}

/* The model of the path; false: the call is answered. */
static bool find_model(call *c, engine_model_info *m, int *number) {
    *number = engine_find_model(c->s->engine, c->part[2]);
    if (*number >= 0 && engine_model(c->s->engine, *number, m) == OK &&
        (c->n_parts < 6 || strcmp(c->part[4], m->version) == 0))
        return true;
    call_fail(c, 404, "there is no such model or version; GET /v1/models lists them");
    return false;
}

static void write_tensor(json_writer *w, const char *name, const char *type, int n_dims) {
    json_object_open(w);
    json_key_string(w, "name", name);
    json_key_string(w, "data_type", type);
    json_key(w, "dims");
    json_array_open(w);
    for (int i = 0; i < n_dims; i++)
        json_int(w, -1);
    json_array_close(w);
    json_object_close(w);
}

/* max_batch_size 0: the first dimension of a tensor is the users' own, as the tensors say. */
void serve_kserve_config(call *c) {
    engine_model_info m;
    json_writer w;
    buf body;
    int number;
    if (!find_model(c, &m, &number)) return;
    buf_init(&body);
    json_begin(&w, &body, 0);
    json_object_open(&w);
    json_key_string(&w, "name", m.name);
    json_key_string(&w, "platform", "hstu");
    json_key_string(&w, "backend", "hstu");
    json_key_int(&w, "max_batch_size", 0);
    json_key(&w, "input");
    json_array_open(&w);
    write_tensor(&w, "USER_IDS", "TYPE_INT64", 1);
    write_tensor(&w, "CANDIDATES", "TYPE_INT64", 2);
    write_tensor(&w, "TOP_K", "TYPE_INT64", 1);
    json_array_close(&w);
    json_key(&w, "output");
    json_array_open(&w);
    write_tensor(&w, "OUTPUT", "TYPE_FP32", 2);
    write_tensor(&w, "ITEM_IDS", "TYPE_INT64", 2);
    json_array_close(&w);
    json_object_close(&w);
    reply_json(c, &w, &body);
}

static void write_duration(json_writer *w, const char *key, uint64_t count, double seconds) {
    json_key(w, key);
    json_object_open(w);
    json_key_int(w, "count", (int64_t)count);
    json_key_int(w, "ns", (int64_t)(seconds * 1e9));
    json_object_close(w);
}

/* Times of the stages are of batches; the queue's are of requests. */
static void write_stats(json_writer *w, const engine_model_info *m, const engine_stats *s) {
    uint64_t n_ok = 0, n_bad = 0;
    for (int task = 0; task < 2; task++)
        for (int o = ENGINE_OK; o <= ENGINE_FAILED; o++)
            *(o == ENGINE_OK ? &n_ok : &n_bad) += s->requests[task][o];
    json_object_open(w);
    json_key_string(w, "name", m->name);
    json_key_string(w, "version", m->version);
    json_key_int(w, "inference_count", (int64_t)s->batch_requests);
    json_key_int(w, "execution_count", (int64_t)s->n_batches);
    json_key(w, "inference_stats");
    json_object_open(w);
    write_duration(w, "success", n_ok, s->total.sum_s);
    write_duration(w, "fail", n_bad, 0);
    write_duration(w, "queue", s->stages[STAGE_QUEUE].n, s->stages[STAGE_QUEUE].sum_s);
    write_duration(w, "compute_input", s->stages[STAGE_BUILD].n, s->stages[STAGE_BUILD].sum_s);
    write_duration(w, "compute_infer", s->stages[STAGE_LAYERS].n, s->stages[STAGE_LAYERS].sum_s);
    write_duration(w, "compute_output", s->stages[STAGE_HEAD].n, s->stages[STAGE_HEAD].sum_s);
    json_object_close(w);
    json_key(w, "batch_stats");
    json_array_open(w);
    json_array_close(w);
    json_object_close(w);
}

static void reply_stats(call *c, int first, int end) {
    json_writer w;
    buf body;
    buf_init(&body);
    json_begin(&w, &body, 0);
    json_object_open(&w);
    json_key(&w, "model_stats");
    json_array_open(&w);
    for (int i = first; i < end; i++) {
        engine_model_info m;
        engine_stats s;
        if (engine_model(c->s->engine, i, &m) == OK &&
            engine_model_stats(c->s->engine, i, &s) == OK)
            write_stats(&w, &m, &s);
    }
    json_array_close(&w);
    json_object_close(&w);
    reply_json(c, &w, &body);
}

void serve_kserve_stats(call *c) {
    engine_model_info m;
    int number;
    if (c->n_parts == 3)
        reply_stats(c, 0, engine_n_models(c->s->engine));
    else if (find_model(c, &m, &number))
        reply_stats(c, number, number + 1);
}
