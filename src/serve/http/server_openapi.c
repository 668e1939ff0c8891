/* GET /openapi.json: the routes of the server for programs that make clients and tests
 * (OpenAPI 3.1).
 *
 * Paths, methods, parameters and roles are those of the table of routes; what it does not say, such
 * as schemas, is in server_openapi.json, whose operations have the names of the routes' functions.
 */
#include "hstu.h"
#include "serve/http/server_int.h"

TEXT_FILE(openapi_text, "src/serve/http/server_openapi.json");

static void write_ref(json_writer *w, const char *key, const char *kind, const char *name) {
    char to[96];
    snprintf(to, sizeof to, "#/components/%s/%s", kind, name);
    json_key(w, key);
    JSON_OBJECT(w, FIELD("$ref", to));
}

static void parameter_open(json_writer *w, const char *in, const char *name) {
    json_object_open(w);
    JSON_FIELDS(w, FIELD("name", name), FIELD("in", in), FIELD("required", (bool)(*in == 'p')));
    json_key(w, "schema");
}

/* The path of a pattern: a star is {user} after users, as the folder before it is called. */
static void write_path(json_writer *w, const char *pattern) {
    char path[160] = "/", names[3][16];
    size_t n = 1, n_names = 0;
    for (const char *at = pattern, *folder = at; *at != '\0' && *at != '?'; at++) {
        if (*at != '*') {
            path[n++] = *at;
            if (at > pattern && at[-1] == '/') folder = at;
            continue;
        }
        snprintf(names[n_names], 16, "%.*s", (int)(at - folder) - 2, folder);
        n += (size_t)snprintf(path + n, sizeof path - n, "{%s}", names[n_names++]);
    }
    path[n] = '\0';
    json_key_object(w, path);
    if (n_names > 0) json_key_array(w, "parameters");
    for (size_t i = 0; i < n_names; i++) {
        parameter_open(w, "path", names[i]);
        JSON_OBJECT(w, FIELD("type", "string"), FIELD("minLength", 1), FIELD("maxLength", 255));
        json_object_close(w);
    }
    if (n_names > 0) json_array_close(w);
}

static void write_query(json_writer *w, const char *names, const json_value *schemas) {
    char name[32];
    json_key_array(w, "parameters");
    for (int n = 0; sscanf(names, "%31s%n", name, &n) == 1; names += n) {
        const json_value *schema = json_member(schemas, name);
        parameter_open(w, "query", name);
        schema != NULL ? json_value_write(w, schema) : json_bool(w, true);
        json_object_close(w);
    }
    json_array_close(w);
}

static void write_operation(json_writer *w, const server_route *r, const json_value *o) {
    const json_value *body = json_member(o, "body");
    const char *names = strchr(r->path, '?');
    unsigned role = r->needs & KEY_ALL;
    char method[8] = "";
    for (size_t i = 0; r->method[i] != '\0'; i++)
        method[i] = (char)tolower((unsigned char)r->method[i]);
    json_key_object(w, method);
    json_key_string(w, "summary", json_member(o, "summary")->string);
    if (names != NULL) write_query(w, names + 1, json_member(o, "query"));
    if (body != NULL) write_ref(w, "requestBody", "requestBodies", body->string);
    json_key_object(w, "responses");
    write_ref(w, "200", "responses", json_member(o, "answer")->string);
    write_ref(w, "4XX", "responses", "Refused");
    write_ref(w, "503", "responses", "Busy");
    json_object_close(w);
    if (role != 0)
        json_key_string(w, "x-role", key_role_name(role));
    else
        json_key_array(w, "security"), json_array_close(w);
    json_object_close(w);
}

status serve_openapi(call *c, json_writer *w) {
    const json_value *text;
    TRY(json_parse(&c->memory, "openapi.json", openapi_text, strlen(openapi_text), &text));
    json_key_string(w, "openapi", "3.1.0");
    json_key(w, "info");
    JSON_OBJECT(w, FIELD("title", "hstu serve"), FIELD("version", HSTU_VERSION),
                FIELD("description",
                      "Recommendations over HTTP. Keys are asked for if the server has --keys. "
                      "Every answer has X-Request-Id, and traceparent if the request has one."));
    json_key_object(w, "paths");
    for (const server_route *r = server_routes; r->method != NULL; r++) {
        size_t n = strcspn(r->path, "?"), n_next = strcspn(r[1].path != NULL ? r[1].path : "", "?");
        bool is_new = r == server_routes || strcspn(r[-1].path, "?") != n ||
                      memcmp(r[-1].path, r->path, n) != 0;
        if (is_new) write_path(w, r->path);
        write_operation(w, r, json_member(json_member(text, "operations"), r->name_of_serve));
        if (r[1].path == NULL || n_next != n || memcmp(r[1].path, r->path, n) != 0)
            json_object_close(w);
    }
    json_object_close(w);
    for (const json_value *v = text->first->next; v != NULL; v = v->next) {
        json_key(w, v->key);
        json_value_write(w, v);
    }
    return OK;
}
