#include <stdarg.h>
#include <sys/wait.h>

#include "test.h"

/* Whether a command, up to the end of its part of the line, computes on a device. */
static bool computes(const char *words, size_t n) {
    static const char *const verbs[] = {"train",           "eval",        "recommend",      "score",
                                        "bench attention", "bench train", "bench embedding"};
    for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++) {
        size_t length = strlen(verbs[i]);
        if (n >= length && strncmp(words, verbs[i], length) == 0 &&
            (n == length || words[length] == ' '))
            return true;
    }
    return false;
}

bool test_names_device(const char *command) {
    const char *at = command;
    while (test_program()[0] != '\0' && (at = strstr(at, test_program())) != NULL) {
        at += strlen(test_program());
        at += strspn(at, "'\" ");
        size_t n = strcspn(at, ";&|>\n");
        const char *option = memmem(at, n, " --device ", 10);
        if (computes(at, n) && (option == NULL || strncmp(option + 10, "auto", 4) == 0))
            return false;
    }
    return true;
}

int test_command(char **out_text, const char *fmt, ...) {
    char command[8192];
    va_list args;
    va_start(args, fmt);
    vsnprintf(command, sizeof command, fmt, args);
    va_end(args);
    strncat(command, " 2>&1", sizeof command - strlen(command) - 1);
    if (!test_names_device(command)) FAIL_TEST("say --device, and not auto: %s", command);
    FILE *pipe = popen(command, "r");
    if (pipe == NULL) FAIL_TEST("cannot run %s", command);
    size_t n = 0, capacity = 1 << 20;
    char *text = malloc(capacity + 1);
    for (size_t got; (got = fread(text + n, 1, capacity - n, pipe)) > 0; n += got)
        if (n + got == capacity) text = realloc(text, (capacity *= 2) + 1);
    int code = (text[n] = '\0', pclose(pipe));
    out_text != NULL ? (void)(*out_text = text) : free(text);
    return WIFEXITED(code) ? WEXITSTATUS(code) : 128 + WTERMSIG(code);
}
