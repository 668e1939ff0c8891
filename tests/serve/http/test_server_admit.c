/* Who may send what. */
#include "server_rig.h"

static void write_keys(rig *r, const char *text) {
    FILE *f = fopen(r->keys, "w");
    CHECK(f != NULL && fputs(text, f) >= 0 && fclose(f) == 0);
    r->c.keys = r->keys;
}

TEST(server_checks_keys_and_quotas) {
    rig r;
    rig_open(&r);
    write_keys(&r, "secret-key shop 1\n");
    rig_start(&r);
    ask(&r, "GET", "/v1/models", "", 401, "Authorization: Bearer KEY");
    ask(&r, "GET", "/health", "", 200, "ok");
    char *text = client_ask(r.port, "GET", "/v1/users", "Authorization: Bearer secret-key\r\n", "");
    CHECK_EQ(client_code(text), 200);
    free(text);
    text = client_ask(r.port, "GET", "/v1/users", "X-Api-Key: secret-key\r\n", "");
    CHECK_EQ(client_code(text), 429);
    CHECK_CONTAINS(text, "Retry-After: 1");
    free(text);
    rig_close(&r);
}

static void ask_with_key(rig *r, const char *key, const char *method, const char *path,
                         const char *body, int code, const char *part) {
    char header[100];
    snprintf(header, sizeof header, "X-Api-Key: %s\r\n", key);
    char *text = client_ask(r->port, method, path, header, body);
    if (client_code(text) != code || strstr(text, part) == NULL)
        FAIL_TEST("%s %s %s: wanted %d with %s: %s", key, method, path, code, part, text);
    free(text);
}

/* A key does what its roles say: answers, events, or what only an operator does. */
TEST(server_keys_have_roles) {
    static const char event[] = "{\"user\": \"x\", \"events\": [{\"item\": 1, \"time\": 5}]}";
    static const char *const keys[] = {"key-of-page", "key-of-shop", "key-of-boss"};
    static const struct {
        const char *method, *path, *body, *role;
        bool may[3];
    } cases[] = {
        {"POST", "/v1/recommend", "{\"user\": 7}", "read", {true, false, false}},
        {"GET", "/v1/users/7", "", "read", {true, false, false}},
        {"GET", "/metrics", "", "read", {true, false, false}},
        {"GET", "/v1/status", "", "read", {true, false, false}},
        {"POST", "/v1/events", event, "events", {false, true, false}},
        {"POST", "/v1/recommend", event, "", {false, false, false}}, /* needs both */
        {"POST", "/v1/models/toy/reload", "", "admin", {false, false, true}},
        {"DELETE", "/v1/users/8", "", "admin", {false, false, true}},
        {"GET", "/health", "", "", {true, true, true}},
    };
    rig r;
    rig_open(&r);
    write_keys(&r, "key-of-page page 0 read\nkey-of-shop shop 0 events\nkey-of-boss ops 0 admin\n"
                   "key-of-both both 0 read,events\nkey-of-old1 old 0\n");
    rig_start(&r);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int k = 0; k < 3; k++)
            ask_with_key(&r, keys[k], cases[i].method, cases[i].path, cases[i].body,
                         cases[i].may[k] ? 200 : 403, cases[i].may[k] ? "" : cases[i].role);
    ask_with_key(&r, "key-of-both", "POST", "/v1/recommend", event, 200, "items");
    ask_with_key(&r, "key-of-old1", "DELETE", "/v1/users/9", "", 200, "erased");
    ask_with_key(&r, "key-of-none", "DELETE", "/v1/users/10", "", 401, "Bearer");
    rig_close(&r);
}

/* Who has no key is told so before the body: the server need not keep it. */
TEST(server_asks_for_keys_before_bodies) {
    static const char head[] =
        "POST /v1/recommend HTTP/1.1\r\nHost: t\r\nContent-Length: 8000000\r\n\r\n";
    rig r;
    rig_open(&r);
    write_keys(&r, "secret-key shop 0 read\n");
    rig_start(&r);
    int fd = client_open(r.port);
    struct pollfd readable = {.fd = fd, .events = POLLIN};
    CHECK(client_send(fd, head, strlen(head)));
    CHECK_EQ(poll(&readable, 1, 5000), 1); /* before the 10 s that a body may take */
    char *text = client_read(fd);
    CHECK_EQ(client_code(text), 401);
    free(text);
    close(fd);
    rig_stop(&r);
    CHECK_CONTAINS(buf_str(&r.log), "\"code\":401");
    rig_close(&r);
}

static int code_for_host(rig *r, const char *method, const char *path, const char *host) {
    char head[400];
    int n = snprintf(head, sizeof head, "%s %s HTTP/1.1\r\n%s%s\r\n\r\n", method, path,
                     host != NULL ? "Host: " : "X-None: ", host != NULL ? host : "");
    int fd = client_open(r->port);
    CHECK(client_send(fd, head, (size_t)n));
    char *text = client_read(fd);
    int code = client_code(text);
    if (code == 403) CHECK_CONTAINS(text, "--allow-host");
    free(text);
    close(fd);
    return code;
}

/* A name of somebody else that leads here is no name of this server: its page could read and change
 * everything in the browser of somebody who can reach it. */
TEST(server_answers_to_its_own_names) {
    static const char *const good[] = {"127.0.0.1", "127.0.0.1:8080", "localhost:1",    "LOCALHOST",
                                       "[::1]:80",  "10.1.2.3",       "reco.example:80"};
    static const char *const bad[] = {"evil.example",
                                      "evil.example:8080",
                                      "127.0.0.1.evil.example",
                                      "localhost.evil",
                                      "reco.example.evil",
                                      "[evil]",
                                      "[::1].evil.example",
                                      "localhost:1.evil.example",
                                      "xreco.example",
                                      "",
                                      "127.0.0"};
    static const char *const ours[] = {"reco.example"}, *const any[] = {"*"};
    char machine[256] = "";
    rig r;
    rig_open(&r);
    r.c.allow_hosts = ours;
    r.c.n_allow_hosts = 1;
    rig_start(&r);
    CHECK_EQ(gethostname(machine, sizeof machine - 1), 0);
    CHECK_EQ(code_for_host(&r, "GET", "/v1/users/7", machine), 200);
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        CHECK_EQ(code_for_host(&r, "GET", "/v1/users/7", good[i]), 200);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        if (code_for_host(&r, "GET", "/v1/users/7", bad[i]) != 403)
            FAIL_TEST("Host: %s is let in", bad[i]);
        CHECK_EQ(code_for_host(&r, "DELETE", "/v1/users/8", bad[i]), 403);
        CHECK_EQ(code_for_host(&r, "GET", "/", bad[i]), 403);
        CHECK_EQ(code_for_host(&r, "GET", "/v2/health/ready", bad[i]), 200);
    }
    CHECK_EQ(code_for_host(&r, "GET", "/v1/users/8", "localhost"), 200); /* nothing was erased */
    rig_stop(&r);
    r.c.allow_hosts = any;
    rig_start(&r);
    CHECK_EQ(code_for_host(&r, "GET", "/v1/users/7", "evil.example"), 200);
    rig_stop(&r);
    /* With keys a page cannot ask, whatever its name. */
    write_keys(&r, "secret-key shop 0 read\n");
    r.c.n_allow_hosts = 0;
    rig_start(&r);
    CHECK_EQ(code_for_host(&r, "GET", "/v1/users/7", "evil.example"), 401);
    rig_close(&r);
}
