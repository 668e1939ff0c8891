/* The description of the server: its own, whole, and without loose ends.  Whether it is valid and
 * true is for tests/openapi.sh. */
#include <ctype.h>

#include "serve/http/server_int.h"
#include "server_rig.h"

/* Every reference leads to something. */
static void check_refs(const json_value *doc, const json_value *v) {
    if (v->key != NULL && strcmp(v->key, "$ref") == 0) {
        char text[200];
        const json_value *to = doc;
        snprintf(text, sizeof text, "%s", v->string + 2);
        for (char *part = strtok(text, "/"); part != NULL; part = strtok(NULL, "/")) {
            to = json_member(to, part);
            if (to == NULL) FAIL_TEST("%s leads nowhere", v->string);
        }
    }
    for (const json_value *c = v->first; c != NULL; c = c->next)
        check_refs(doc, c);
}

/* The path of a call that has an operation: "{user}" becomes 7, "{version}" 1. */
static void fill_path(const char *path, char out[200]) {
    size_t n = 0;
    for (; *path != '\0'; path++) {
        if (*path != '{') {
            out[n++] = *path;
            continue;
        }
        n += (size_t)sprintf(out + n, "%s", path[1] == 'u' ? "7" : path[1] == 'm' ? "toy" : "1");
        path = strchr(path, '}');
    }
    out[n] = '\0';
}

static void check_parameters(const json_value *list, const char *path) {
    for (const json_value *p = list != NULL ? list->first : NULL; p != NULL; p = p->next)
        if (json_member(p, "schema")->type != JSON_OBJECT)
            FAIL_TEST("%s: parameter %s has no schema", path, json_member(p, "name")->string);
}

static void check_operation(rig *r, const char *path, const json_value *op) {
    char method[8] = "", filled[200];
    for (size_t i = 0; op->key[i] != '\0'; i++)
        method[i] = (char)toupper((unsigned char)op->key[i]);
    fill_path(path, filled);
    check_parameters(json_member(op, "parameters"), path);
    CHECK((json_member(op, "x-role") != NULL) != (json_member(op, "security") != NULL));
    if (strcmp(path, "/v1/stream") == 0) return; /* it does not end */
    char *text = client_ask(r->port, method, filled, "", "");
    if (client_code(text) == 405 || strstr(text, "nothing at") != NULL)
        FAIL_TEST("%s %s: %s", method, filled, text);
    free(text);
}

TEST(server_describes_every_route) {
    rig r;
    arena a;
    size_t n_routes = 0, n_operations = 0;
    arena_init(&a, 1 << 16);
    rig_open(&r);
    rig_start(&r);
    const json_value *doc = rig_json(&r, &a, "GET", "/openapi.json", "");
    const json_value *paths = json_member(doc, "paths");
    CHECK_STR(json_member(doc, "openapi")->string, "3.1.0");
    check_refs(doc, doc);
    for (const json_value *p = paths->first; p != NULL; p = p->next)
        for (const json_value *op = p->first; op != NULL; op = op->next) {
            if (strcmp(op->key, "parameters") == 0) {
                check_parameters(op, p->key);
                continue;
            }
            check_operation(&r, p->key, op);
            n_operations++;
        }
    while (server_routes[n_routes].method != NULL)
        n_routes++;
    CHECK_EQ(n_operations, n_routes);
    const json_value *user = json_member(paths, "/v1/users/{user}");
    CHECK_STR(json_member(json_member(user, "delete"), "x-role")->string, "admin");
    CHECK_EQ(json_member(json_member(user, "get"), "parameters")->n_children, 2);
    CHECK_EQ(json_member(paths, "/v2/models/{model}/versions/{version}/infer")->n_children, 2);
    CHECK_EQ(json_member(json_member(json_member(paths, "/health"), "get"), "security")->n_children,
             0);
    arena_fini(&a);
    rig_close(&r);
}

#define TRACE "4bf92f3577b34da6a3ce929d0e0e4736"
#define SPAN  "00f067aa0ba902b7"

/* The answer to a header; NULL: it has no trace. */
static bool is_traced(rig *r, const char *traceparent, const char *flags) {
    char header[300];
    snprintf(header, sizeof header, "traceparent: %s\r\n", traceparent);
    char *text = client_ask(r->port, "GET", "/health", header, "");
    const char *at = strstr(text, "\r\ntraceparent: ");
    bool is_there = at != NULL;
    CHECK_EQ(client_code(text), 200);
    if (is_there) {
        at += strlen("\r\ntraceparent: ");
        CHECK_EQ(strspn(at, "0123456789abcdef-"), 55);
        CHECK(strncmp(at, "00-" TRACE "-", 36) == 0 && strncmp(at + 36, SPAN, 16) != 0);
        CHECK(strncmp(at + 53, flags, 2) == 0);
    }
    free(text);
    return is_there;
}

TEST(server_continues_traces) {
    static const char *const bad[] = {"",
                                      "00-" TRACE "-" SPAN,
                                      "00-" TRACE "-" SPAN "-1",
                                      "00-" TRACE "-" SPAN "-01-more",
                                      "01-" TRACE "-" SPAN "-01.more",
                                      "ff-" TRACE "-" SPAN "-01",
                                      "00-00000000000000000000000000000000-" SPAN "-01",
                                      "00-" TRACE "-0000000000000000-01",
                                      "00-4BF92F3577B34DA6A3CE929D0E0E4736-" SPAN "-01",
                                      "00-" TRACE "_" SPAN "-01",
                                      "0x-" TRACE "-" SPAN "-01"};
    rig r;
    arena a;
    arena_init(&a, 4096);
    rig_open(&r);
    rig_start(&r);
    CHECK(is_traced(&r, "00-" TRACE "-" SPAN "-01", "01"));
    CHECK(is_traced(&r, "00-" TRACE "-" SPAN "-00", "00"));
    CHECK(is_traced(&r, "cc-" TRACE "-" SPAN "-01-more", "01"));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (is_traced(&r, bad[i], "")) FAIL_TEST("'%s' is continued", bad[i]);
    rig_stop(&r);
    const json_value *line = line_of(&a, buf_str(&r.log), 0);
    CHECK(strncmp(json_member(line, "traceparent")->string, "00-" TRACE "-", 36) == 0);
    CHECK_STR(json_member(line, "parent_span")->string, SPAN);
    CHECK(json_member(line_of(&a, buf_str(&r.log), 3), "traceparent") == NULL);
    arena_fini(&a);
    rig_close(&r);
}
