#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/log.h"
#include "data/read/download.h"
#include "test.h"

enum { CONTENT_BYTES = 200000, CUT_BYTES = 60000, MAX_REQUESTS = 12, SERVER_S = 60 };

/* The requests the server has seen, in memory shared with the test. */
typedef struct server_log {
    atomic_int n_requests;
    long range[MAX_REQUESTS + 1]; /* first byte asked for; -1: no Range */
    char path[MAX_REQUESTS + 1][32];
} server_log;

static unsigned char content[CONTENT_BYTES];
static char content_md5[33];
static server_log *seen;
static char url[128], target[256], part[264];

static void send_all(int client, const void *bytes, size_t n) {
    for (size_t done = 0; done < n;) {
        ssize_t w = send(client, (const char *)bytes + done, n - done, MSG_NOSIGNAL);
        if (w <= 0) return;
        done += (size_t)w;
    }
}

static void send_head(int client, const char *answer, const char *more, long n_bytes) {
    char head[512];
    snprintf(head, sizeof head, "HTTP/1.1 %s\r\n%sContent-Length: %ld\r\nConnection: close\r\n\r\n",
             answer, more, n_bytes);
    send_all(client, head, strlen(head));
}

/* The content from byte `from`, of which only `n` bytes are really sent. */
static void send_content(int client, long from, long n) {
    char range[96] = "";
    if (from >= CONTENT_BYTES) {
        send_head(client, "416 Range Not Satisfiable", "", 0);
        return;
    }
    if (from > 0)
        snprintf(range, sizeof range, "Content-Range: bytes %ld-%d/%d\r\n", from, CONTENT_BYTES - 1,
                 CONTENT_BYTES);
    send_head(client, from > 0 ? "206 Partial Content" : "200 OK", range, CONTENT_BYTES - from);
    send_all(client, content + from, (size_t)(n < CONTENT_BYTES - from ? n : CONTENT_BYTES - from));
}

/* One request: the path decides how the server behaves. */
static void serve(int client, const char *path, long range) {
    long from = range > 0 ? range : 0;
    if (strcmp(path, "/file") == 0)
        send_content(client, from, CONTENT_BYTES);
    else if (strcmp(path, "/no-range") == 0)
        send_content(client, 0, CONTENT_BYTES);
    else if (strcmp(path, "/cut") == 0)
        send_content(client, from, CUT_BYTES);
    else if (strcmp(path, "/nothing") == 0)
        send_content(client, from, 0);
    else if (strcmp(path, "/redirect") == 0)
        send_head(client, "302 Found", "Location: /file\r\n", 0);
    else if (strcmp(path, "/loop") == 0)
        send_head(client, "302 Found", "Location: /loop\r\n", 0);
    else if (strcmp(path, "/to-disk") == 0)
        send_head(client, "302 Found", "Location: file:///etc/passwd\r\n", 0);
    else if (strcmp(path, "/stall") == 0) {
        send_content(client, from, from > 0 ? 0 : CUT_BYTES);
        sleep(SERVER_S);
    } else
        send_head(client, "404 Not Found", "", 0);
}

static void answer(int client) {
    char request[2048] = "", path[32] = "";
    size_t n = 0;
    for (ssize_t got; strstr(request, "\r\n\r\n") == NULL && n < sizeof request - 1;
         n += (size_t)got)
        if ((got = recv(client, request + n, sizeof request - 1 - n, 0)) <= 0) return;
    int i = seen->n_requests++;
    const char *range = strstr(request, "Range: bytes=");
    sscanf(request, "GET %31s", path);
    seen->range[i] = range != NULL ? atol(range + 13) : -1;
    strcpy(seen->path[i], path);
    serve(client, path, seen->range[i]);
}

/* A server in a process of its own; it ends with the test, after a minute, or after a few requests.
 */
static void start_server(void) {
    struct sockaddr_in where = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof where;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(bind(listener, (struct sockaddr *)&where, sizeof where) == 0);
    CHECK(listen(listener, 8) == 0);
    CHECK(getsockname(listener, (struct sockaddr *)&where, &size) == 0);
    snprintf(url, sizeof url, "http://127.0.0.1:%d", ntohs(where.sin_port));
    if (fork() == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        alarm(SERVER_S);
        while (seen->n_requests < MAX_REQUESTS) {
            int client = accept(listener, NULL, NULL);
            answer(client);
            close(client);
        }
        _exit(0);
    }
    close(listener);
}

static void prepare(void) {
#ifndef HSTU_HAS_CURL
    SKIP_TEST("this build is without libcurl");
#endif
    static const char *const proxies[] = {"http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"};
    for (int i = 0; i < 4; i++)
        unsetenv(proxies[i]);
    for (int i = 0; i < CONTENT_BYTES; i++)
        content[i] = (unsigned char)hash64_mix((uint64_t)i);
    md5_state md5;
    md5_begin(&md5);
    md5_add(&md5, content, sizeof content);
    md5_end(&md5, content_md5);
    seen = mmap(NULL, sizeof *seen, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(seen != MAP_FAILED);
    snprintf(target, sizeof target, "%s/set.zip", test_folder());
    snprintf(part, sizeof part, "%s.part", target);
    start_server();
}

static status get(const char *path, const char *md5) {
    char full[256];
    snprintf(full, sizeof full, "%s%s", url, path);
    return download_file(full, target, md5, 1);
}

static bool exists(const char *path) {
    return access(path, F_OK) == 0;
}

static void write_part(const void *bytes, size_t n) {
    FILE *f = fopen(part, "wb");
    CHECK(f != NULL && fwrite(bytes, 1, n, f) == n && fclose(f) == 0);
}

static void check_arrived(void) {
    static unsigned char got[CONTENT_BYTES + 1];
    FILE *f = fopen(target, "rb");
    CHECK(f != NULL);
    CHECK_EQ(fread(got, 1, sizeof got, f), CONTENT_BYTES);
    fclose(f);
    CHECK(memcmp(got, content, CONTENT_BYTES) == 0);
    CHECK(!exists(part));
}

TEST(download_knows_the_public_sets) {
    static const char *const names[] = {"ml-100k",     "ml-1m",        "ml-20m",    "kuairand-pure",
                                        "kuairand-1k", "kuairand-27k", "amzn-books"};
    for (int i = 0; i < 7; i++) {
        const download_source *s = download_find(names[i]);
        CHECK(s != NULL);
        CHECK_STR(s->name, names[i]);
        size_t n = strlen(s->url), tail = strlen(s->file);
        CHECK(n > tail && s->url[n - tail - 1] == '/');
        CHECK_STR(s->url + n - tail, s->file);
        if (i < 6) CHECK(strspn(s->md5, "0123456789abcdef") == 32 && s->md5[32] == '\0');
    }
    CHECK(download_find("amzn-books")->md5 == NULL);
    CHECK(download_find("ml-1m ") == NULL && download_find("") == NULL);
}

TEST(download_fetches_and_keeps) {
    prepare();
    CHECK_OK(get("/file", content_md5));
    check_arrived();
    CHECK_EQ(seen->n_requests, 1);
    CHECK_OK(get("/file", content_md5)); /* nothing is fetched again */
    CHECK_OK(get("/missing", NULL));     /* nor where no sum is known */
    CHECK_EQ(seen->n_requests, 1);
}

static char last_line[2048];
static void keep_line(void *ctx, log_level level, const char *line) {
    (void)ctx, (void)level;
    snprintf(last_line, sizeof last_line, "%s", line);
}

TEST(download_tells_an_unpublished_sum) {
    prepare();
    log_set_sink(keep_line, NULL);
    CHECK_OK(get("/file", NULL));
    check_arrived();
    CHECK_CONTAINS(last_line, "no published checksum of http://127.0.0.1");
    CHECK_CONTAINS(last_line, content_md5);
}

TEST(download_replaces_a_wrong_file) {
    prepare();
    write_part("old", 3);
    CHECK(rename(part, target) == 0);
    CHECK_OK(get("/file", content_md5));
    check_arrived();
}

TEST(download_resumes) {
    prepare();
    write_part(content, 123456);
    CHECK_OK(get("/file", content_md5));
    check_arrived();
    CHECK_EQ(seen->n_requests, 1);
    CHECK_EQ(seen->range[0], 123456);
}

TEST(download_resumes_a_whole_part) {
    prepare();
    write_part(content, CONTENT_BYTES);
    CHECK_OK(get("/file", content_md5));
    check_arrived();
    CHECK_EQ(seen->n_requests, 1); /* answered by 416 */
}

TEST(download_starts_over_where_it_must) {
    prepare();
    write_part(content, 5000);
    CHECK_OK(get("/no-range", content_md5));
    check_arrived();
    CHECK_EQ(seen->n_requests, 2);
    CHECK_EQ(seen->range[0], 5000);
    CHECK_EQ(seen->range[1], -1);
}

TEST(download_starts_over_from_a_part_too_long) {
    static unsigned char longer[CONTENT_BYTES + 10];
    prepare();
    write_part(longer, sizeof longer);
    CHECK_OK(get("/file", content_md5));
    check_arrived();
    CHECK_EQ(seen->n_requests, 2);
}

TEST(download_survives_cuts) {
    prepare();
    CHECK_OK(get("/cut", content_md5));
    check_arrived();
    CHECK_EQ(seen->n_requests, 4); /* 60000 bytes each */
    CHECK_EQ(seen->range[0], -1);
    CHECK_EQ(seen->range[1], 60000);
    CHECK_EQ(seen->range[2], 120000);
    CHECK_EQ(seen->range[3], 180000);
}

TEST(download_gives_up_on_no_gain) {
    prepare();
    write_part(content, 1000);
    CHECK_FAILS(get("/nothing", content_md5), ERR_IO, "run the same command again to resume");
    CHECK_EQ(seen->n_requests, 1);
    CHECK(exists(part) && !exists(target));
    CHECK_OK(get("/file", content_md5));
    check_arrived();
    CHECK_EQ(seen->range[1], 1000);
}

TEST(download_gives_up_on_a_stall) {
    prepare();
    CHECK_FAILS(get("/stall", content_md5), ERR_IO, "/stall cannot be fetched: ");
    CHECK(exists(part) && !exists(target));
}

TEST(download_follows_redirects) {
    prepare();
    CHECK_OK(get("/redirect", content_md5));
    check_arrived();
    CHECK_STR(seen->path[1], "/file");
}

TEST(download_refuses_bad_redirects) {
    prepare();
    CHECK_FAILS(get("/to-disk", NULL), ERR_IO, "/to-disk cannot be fetched: ");
    CHECK(!exists(part) && !exists(target));
    CHECK_FAILS(get("/loop", NULL), ERR_IO, "/loop cannot be fetched: ");
}

TEST(download_refuses_other_protocols) {
    prepare();
    CHECK_FAILS(download_file("file:///etc/passwd", target, NULL, 1), ERR_IO,
                "file:///etc/passwd cannot be fetched: ");
    CHECK(!exists(part) && !exists(target));
}

TEST(download_reports_http_errors) {
    prepare();
    CHECK_FAILS(get("/missing", content_md5), ERR_IO,
                "/missing cannot be fetched: the server answered 404");
    CHECK(!exists(part) && !exists(target));
}

TEST(download_reports_no_server) {
    prepare();
    CHECK_FAILS(download_file("http://127.0.0.1:1/x", target, NULL, 1), ERR_IO,
                "http://127.0.0.1:1/x cannot be fetched: Failed to connect to 127.0.0.1 port 1");
    CHECK(!exists(part));
}

TEST(download_removes_wrong_content) {
    prepare();
    CHECK_FAILS(get("/file", "00000000000000000000000000000000"), ERR_FORMAT,
                "but 00000000000000000000000000000000 was expected");
    CHECK_CONTAINS(status_reason(), content_md5);
    CHECK(!exists(part) && !exists(target));
}

TEST(download_reports_what_it_cannot_write) {
    prepare();
    char full[256];
    snprintf(full, sizeof full, "%s/file", url);
    CHECK_FAILS(download_file(full, "/nowhere/x.zip", NULL, 1), ERR_IO,
                "/nowhere/x.zip.part cannot be written: No such file");
    if (symlink("/dev/full", part) != 0 || !exists("/dev/full")) SKIP_TEST("no /dev/full");
    CHECK_FAILS(get("/file", content_md5), ERR_IO, "set.zip.part cannot be written: ");
    CHECK(!exists(target));
}

#ifndef HSTU_HAS_CURL
TEST(download_refuses_without_libcurl) {
    snprintf(target, sizeof target, "%s/set.zip", test_folder());
    CHECK_FAILS(download_file("http://x.org/y", target, NULL, 0), ERR_UNSUPPORTED,
                "install libcurl4-openssl-dev and build again, or fetch http://x.org/y by hand");
    snprintf(part, sizeof part, "%s.part", target);
    CHECK(!exists(part));
}
#endif
