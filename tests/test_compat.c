/* Files that an older program wrote (tests/compat, made by its make.sh): this build reads each, and
 * says of it what the older one said. */
#include "base/file.h"
#include "format/json.h"
#include "test.h"

/* Where tests/compat is: the program is build/VARIANT/hstu in the repository. */
static const char *compat_folder(void) {
    static char path[4600];
    snprintf(path, sizeof path, "%s", test_program());
    for (int up = 0; up < 3; up++)
        *strrchr(path, '/') = '\0';
    strcat(path, "/tests/compat");
    return path;
}

/* Times of the machine, not of what is in the files. */
static bool is_volatile(const char *key) {
    static const char *const keys[] = {"seconds", "ms", "share_of_copies", "share_of_products"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (key != NULL && strcmp(key, keys[i]) == 0) return true;
    return false;
}

/* All that `want` has is in `got`, which may have more members.  Another kind of CPU sums in
 * another order: numbers may differ in the fifth digit. */
static void compare(const char *name, const json_value *want, const json_value *got) {
    const char *key = want->key != NULL ? want->key : "";
    if (is_volatile(want->key)) return;
    if (got == NULL || got->type != want->type)
        FAIL_TEST("%s: '%s' is missing or of another type", name, key);
    if (want->type == JSON_BOOL && want->boolean != got->boolean)
        FAIL_TEST("%s: '%s' has changed", name, key);
    if (want->type == JSON_STRING && strcmp(want->string, got->string) != 0)
        FAIL_TEST("%s: '%s' is \"%s\", not \"%s\"", name, key, got->string, want->string);
    if (want->type == JSON_NUMBER &&
        fabs(want->number - got->number) > 1e-5 * fmax(1, fabs(want->number)))
        FAIL_TEST("%s: '%s' is %.9g, not %.9g", name, key, got->number, want->number);
    if (want->type == JSON_ARRAY && want->n_children != got->n_children)
        FAIL_TEST("%s: '%s' has %zu elements, not %zu", name, key, got->n_children,
                  want->n_children);
    const json_value *other = got->first;
    for (const json_value *c = want->first; c != NULL; c = c->next) {
        compare(name, c, want->type == JSON_OBJECT ? json_member(got, c->key) : other);
        if (want->type == JSON_ARRAY) other = other->next;
    }
}

static void compare_lines(const char *name, const char *want, const char *got) {
    arena a;
    arena_init(&a, 1 << 14);
    while (*want != '\0') {
        const json_value *old, *new;
        size_t n_want = strcspn(want, "\n"), n_got = strcspn(got, "\n");
        CHECK_OK(json_parse(&a, name, want, n_want, &old));
        if (json_parse(&a, name, got, n_got, &new) != OK)
            FAIL_TEST("%s: this is not JSON: %s", name, got);
        compare(name, old, new);
        want += n_want + (want[n_want] == '\n'), got += n_got + (got[n_got] == '\n');
    }
    arena_fini(&a);
}

/* One line of tests/compat/commands: NAME|ARGUMENTS; the output is expected/NAME, and any where the
 * name begins with '-'. */
static void run_line(char *line) {
    char *arguments = strchr(line, '|'), path[4700], *text, *want;
    size_t n;
    CHECK(arguments != NULL);
    *arguments++ = '\0';
    int code = test_command(&text, "cd '%s' && ASAN_OPTIONS=detect_leaks=0 HSTU_LOG=quiet '%s' %s",
                            test_folder(), test_program(), arguments);
    if (code != 0) FAIL_TEST("hstu %s: code %d: %s", arguments, code, text);
    if (line[0] != '-') {
        snprintf(path, sizeof path, "%s/expected/%s", compat_folder(), line);
        CHECK_OK(file_read_all(path, 1 << 20, &want, &n));
        CHECK(n > 2);
        compare_lines(line, want, text);
        mem_free(want);
    }
    free(text);
}

static void run_commands(const char *part) {
    char *commands, path[4700];
    size_t n;
    int n_run = 0;
    CHECK_EQ(test_command(NULL,
                          "cd '%s' && for a in '%s'/*.tar.gz; do tar -xzf $a || exit 1; done && cp "
                          "-r '%s/plans' .",
                          test_folder(), compat_folder(), compat_folder()),
             0);
    snprintf(path, sizeof path, "%s/commands", compat_folder());
    CHECK_OK(file_read_all(path, 1 << 16, &commands, &n));
    for (char *at = commands, *end; *at != '\0'; at = end) {
        end = at + strcspn(at, "\n");
        if (*end != '\0') *end++ = '\0';
        if (strncmp(at + (at[0] == '-'), part, strlen(part)) != 0) continue;
        run_line(at);
        n_run++;
    }
    CHECK(n_run > 0);
    mem_free(commands);
}

/* clang-format off */
TEST(compat_data) { run_commands("data"); }
TEST(compat_runs) { run_commands("run"); }
TEST(compat_evaluates_checkpoints) { run_commands("eval"); }
TEST(compat_recommends) { run_commands("recommend"); }
TEST(compat_scores) { run_commands("score"); }
TEST(compat_engines) { run_commands("engine"); }
TEST(compat_tables) { run_commands("table"); }
TEST(compat_sweeps) { run_commands("sweep"); }
TEST(compat_resumes) { run_commands("resume"); }
/* clang-format on */

TEST(compat_plans) {
    if (test_command(NULL, "command -v cc") != 0) SKIP_TEST("no C compiler");
    run_commands("plan");
}
