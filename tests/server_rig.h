/* A server on the toy run, for tests. */
#ifndef HSTU_TESTS_SERVER_RIG_H
#define HSTU_TESTS_SERVER_RIG_H

#include <pthread.h>

#include "base/text.h"
#include "http_client.h"
#include "run_test.h"
#include "serve/http/server.h"
#include "test.h"

/* A server on the toy run, with what a test wants to change. */
typedef struct rig {
    server *s;
    int port;
    char run[4200], data[4200], state[4200], keys[4200];
    server_model model[2];
    server_config c;
    pthread_mutex_t lock;
    buf log;
} rig;

static inline void keep_line(void *context, const char *line) {
    rig *r = context;
    pthread_mutex_lock(&r->lock);
    CHECK_OK(buf_printf(&r->log, "%s\n", line));
    pthread_mutex_unlock(&r->lock);
}

static const char *const hosts[] = {"test", "t"}; /* of the client */

static inline void rig_open(rig *r) {
    if (http_library_version() == NULL) SKIP_TEST("this build has no libmicrohttpd");
    free(shell(0, "true"));
    *r = (rig){0};
    snprintf(r->run, sizeof r->run, "%s/run", test_folder());
    snprintf(r->data, sizeof r->data, "%s/data", test_folder());
    snprintf(r->state, sizeof r->state, "%s/state", test_folder());
    snprintf(r->keys, sizeof r->keys, "%s/keys", test_folder());
    pthread_mutex_init(&r->lock, NULL);
    r->model[0] = (server_model){.name = "toy", .path = r->run, .share = 1};
    r->c = (server_config){.http = http_default_settings(),
                           .models = r->model,
                           .n_models = 1,
                           .allow_hosts = hosts,
                           .n_allow_hosts = 2,
                           .log = keep_line,
                           .log_ctx = r};
    r->c.http.port = 0;
    r->c.engine = (engine_config){.data = r->data, .device = "cpu", .n_threads = 1, .kv_pages = -1};
    r->c.engine.deadline_ns = 20000000000u;
}

static inline void rig_start(rig *r) {
    CHECK_OK(server_start(&r->s, &r->c));
    r->port = server_port(r->s);
}

static inline void rig_stop(rig *r) {
    server_stop(r->s);
    r->s = NULL;
}

static inline void rig_close(rig *r) {
    rig_stop(r);
    buf_fini(&r->log);
    pthread_mutex_destroy(&r->lock);
}

/* Asks, and expects a code and a part of the answer. */
static inline void ask(rig *r, const char *method, const char *path, const char *body, int code,
                       const char *part) {
    char *text = client_ask(r->port, method, path, "", body);
    if (client_code(text) != code || strstr(text, part) == NULL)
        FAIL_TEST("%s %s %s: wanted %d with %s: %s", method, path, body, code, part, text);
    free(text);
}

/* Asks, and gives the body of the answer, which must be 200, as JSON. */
static inline const json_value *rig_json(rig *r, arena *a, const char *method, const char *path,
                                         const char *body) {
    const json_value *v;
    char *text = client_ask(r->port, method, path, "", body);
    if (client_code(text) != 200) FAIL_TEST("%s %s: %s", path, body, text);
    const char *json = client_body(text);
    CHECK_OK(json_parse(a, path, json, strlen(json), &v));
    free(text);
    return v;
}

/* The i-th element or member; and a member that is a whole number. */
static inline const json_value *json_at(const json_value *v, size_t i) {
    CHECK(v != NULL && i < v->n_children);
    for (v = v->first; i > 0; i--)
        v = v->next;
    return v;
}

static inline int64_t json_number(const json_value *v, const char *key) {
    int64_t n;
    CHECK_OK(json_member_int(v, key, &n));
    return n;
}

#endif
