/* What ops.def and table_ops.def promise of the tests: every op has a test file, the file calls the
 * op, and it runs on devices. */
#include "device.h"
#include "ops/table.h"
#include "test.h"

typedef struct listed {
    const char *op, *test;
} listed;

static const listed every_op[] = {
#define OP(result, name, parameters, arguments, test) {#name, #test},
#include "ops/ops.def"
#define TABLE_OP(result, name, parameters, test) {#name, #test},
#include "ops/table_ops.def"
};

/* Whether the file beside this one, or among the tests of src/cuda, has the text; false too where
 * there is no such file. */
static bool has_text(const char *file, const char *wanted) {
    static const char *const folders[] = {"", "../cuda/core/"};
    static char text[1 << 20];
    const char *slash = strrchr(__FILE__, '/');
    FILE *f = NULL;
    for (int i = 0; i < 2 && f == NULL; i++) {
        char path[512];
        snprintf(path, sizeof path, "%.*s%s%s", slash == NULL ? 0 : (int)(slash + 1 - __FILE__),
                 __FILE__, folders[i], file);
        f = fopen(path, "r");
    }
    if (f == NULL) return false;
    text[fread(text, 1, sizeof text - 1, f)] = '\0';
    fclose(f);
    return strstr(text, wanted) != NULL;
}

/* attn_sample.c makes the calls of the attention's tests. */
TEST(ops_are_tested_on_devices) {
    if (!has_text("test_ops.c", "TEST")) SKIP_TEST("the sources of the tests are not here");
    test_on.kind = ON_CUDA; /* of this process, which makes no backend */
    for (size_t i = 0; i < sizeof every_op / sizeof *every_op; i++) {
        char file[128], call[128];
        snprintf(file, sizeof file, "test_%s.c", every_op[i].test);
        snprintf(call, sizeof call, "->%s(", every_op[i].op);
        if (!has_text(file, "TEST"))
            FAIL_TEST("op %s: there is no tests/ops/%s", every_op[i].op, file);
        if (!has_text(file, call) && !has_text("../attn_sample.c", call))
            FAIL_TEST("op %s: tests/ops/%s does not call it", every_op[i].op, file);
        if (!test_device_runs(file))
            FAIL_TEST("op %s: tests/ops/%s does not run on devices", every_op[i].op, file);
    }
}

/* A table that left out an op would crash where the op is first called. */
TEST(ops_of_the_cpu_are_all_there) {
    backend *be;
    CHECK_OK(backend_create_cpu(&be, NULL));
#define OP(result, name, parameters, arguments, test) CHECK(be->ops->name != NULL);
#include "ops/ops.def"
#define TABLE_OP(result, name, parameters, test) CHECK(be->tables->name != NULL);
#include "ops/table_ops.def"
    backend_destroy(be);
}
