/* For tests of `hstu serve` from outside: the program on the toy run, as a process. */
#ifndef HSTU_TESTS_SERVE_PROCESS_H
#define HSTU_TESTS_SERVE_PROCESS_H

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "http_client.h"
#include "run_test.h"
#include "serve/http/http.h"

/* A server as a process. */
typedef struct served {
    pid_t pid;
    int port;
    char said[4096]; /* on stderr so far */
} served;

static inline void read_said(served *s) {
    FILE *f = fopen(run_path("err"), "r");
    CHECK(f != NULL);
    s->said[fread(s->said, 1, sizeof s->said - 1, f)] = '\0';
    fclose(f);
}

/* Waits until the server has said this. */
static inline void wait_said(served *s, const char *part) {
    for (int i = 0; read_said(s), strstr(s->said, part) == NULL; i++) {
        if (i == 2000 || waitpid(s->pid, NULL, WNOHANG) != 0)
            FAIL_TEST("the server did not say \"%s\": %s", part, s->said);
        usleep(5000);
    }
}

/* Starts `hstu serve ARGS` in the test's folder, its stdout in the file `out`. */
static inline void serve_start(served *s, const char *args, const char *out) {
    char line[1024];
    if (http_library_version() == NULL) SKIP_TEST("this build has no libmicrohttpd");
    free(shell(0, "true"));
    snprintf(line, sizeof line,
             "cd %s && ASAN_OPTIONS=detect_leaks=0 exec ./hstu serve --device cpu --port 0 "
             "--allow-host test --data data %s >%s 2>err",
             test_folder(), args, out);
    write_text("err", "");
    *s = (served){.pid = fork()};
    if (s->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* it ends with a test that fails */
        execl("/bin/sh", "sh", "-c", line, (char *)NULL);
        _exit(127);
    }
    wait_said(s, "ready: http://127.0.0.1:");
    s->port = atoi(strstr(s->said, "ready: http://127.0.0.1:") + 24);
}

/* Waits for its end: the exit code. */
static inline int serve_end(served *s) {
    int code;
    CHECK(waitpid(s->pid, &code, 0) == s->pid && WIFEXITED(code));
    read_said(s);
    return WEXITSTATUS(code);
}

static inline void ask(const served *s, const char *method, const char *path, const char *body,
                       int code, const char *part) {
    char *text = client_ask(s->port, method, path, "", body);
    if (client_code(text) != code || strstr(text, part) == NULL)
        FAIL_TEST("%s %s %s: wanted %d with %s: %s", method, path, body, code, part, text);
    free(text);
}

#endif
