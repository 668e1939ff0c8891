/* http.h in a build without libmicrohttpd: a server cannot be started, and why. */
#include "serve/http/http.h"

#ifndef HSTU_HAS_MICROHTTPD
const char *http_library_version(void) {
    return NULL;
}

status http_start(http_server **out, const http_settings *s) {
    (void)s;
    *out = NULL;
    return fail(ERR_UNSUPPORTED, "this build has no HTTP server; install libmicrohttpd "
                                 "(apt-get install libmicrohttpd-dev), then make");
}

/* Without a server there is no exchange and no stream: none of these is ever called. */
int http_port(const http_server *h) {
    (void)h;
    return 0;
}
http_stats http_get_stats(http_server *h) {
    (void)h;
    return (http_stats){0};
}
void http_stop_accepting(http_server *h) {
    (void)h;
}
void http_stop(http_server *h) {
    (void)h;
}
const char *http_method(const http_exchange *x) {
    (void)x;
    return "";
}
const char *http_path(const http_exchange *x) {
    (void)x;
    return "";
}
const char *http_query(const http_exchange *x, const char *name) {
    (void)x;
    (void)name;
    return NULL;
}
const char *http_header(const http_exchange *x, const char *name) {
    (void)x;
    (void)name;
    return NULL;
}
const char *http_body(const http_exchange *x, size_t *n) {
    (void)x;
    *n = 0;
    return "";
}
uint64_t http_arrived_ns(const http_exchange *x) {
    (void)x;
    return 0;
}
void http_peer(const http_exchange *x, char text[HTTP_ADDRESS_BYTES]) {
    (void)x;
    text[0] = '\0';
}
void http_set_context(http_exchange *x, void *context) {
    (void)x;
    (void)context;
}
void *http_context(const http_exchange *x) {
    (void)x;
    return NULL;
}
bool http_is_cancelled(const http_exchange *x) {
    (void)x;
    return true;
}
bool http_is_leaving(const http_exchange *x) {
    (void)x;
    return true;
}
void http_set_header(http_exchange *x, const char *name, const char *value) {
    (void)x;
    (void)name;
    (void)value;
}
void http_respond(http_exchange *x, int code, const char *type, buf *body) {
    (void)x;
    (void)code;
    (void)type;
    buf_fini(body);
}
void http_continue(http_exchange *x, void (*fn)(void *ctx, http_exchange *x), void *ctx) {
    (void)x;
    (void)fn;
    (void)ctx;
}
http_stream *http_respond_stream(http_exchange *x, const char *type) {
    (void)x;
    (void)type;
    return NULL;
}
bool http_stream_write(http_stream *s, const char *text, size_t n) {
    (void)s;
    (void)text;
    (void)n;
    return false;
}
void http_stream_close(http_stream *s) {
    (void)s;
}
#endif
