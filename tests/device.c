#include "device.h"

#include <stdlib.h>
#include <string.h>

#include "mirror.h"

test_device test_on = {.is_deterministic = true};

static bool choose_device(const char *name) {
    char *end = NULL;
    if (strcmp(name, "cpu") == 0 || strcmp(name, "mirror") == 0) {
        test_on.kind = name[0] == 'c' ? ON_CPU : ON_MIRROR;
        return true;
    }
    if (strncmp(name, "cuda", 4) != 0) return false;
    test_on.kind = ON_CUDA;
    if (name[4] == ':') test_on.number = (int)strtol(name + 5, &end, 10);
    return name[4] == '\0' || (name[4] == ':' && name[5] != '\0' && *end == '\0');
}

int test_device_options(int argc, char **argv, int at) {
    while (at < argc && argv[at][0] == '-') {
        const char *value = at + 1 < argc ? argv[at + 1] : "";
        bool is_fast = strcmp(argv[at], "--fast") == 0, is_known = is_fast;
        if (is_fast) test_on.is_deterministic = false;
        if (strcmp(argv[at], "--device") == 0) is_known = choose_device(value);
        if (strcmp(argv[at], "--dtype") == 0) is_known = precision_parse(value, &test_on.p);
        if (!is_known) return -1;
        at += is_fast ? 1 : 2;
    }
    return test_on.kind == ON_CPU && test_on.p != PRECISION_F32 ? -1 : at;
}

/* The test files of all ops, and those of what is made of ops. */
static const char *const stems[] = {
#define OP(result, name, parameters, arguments, test) #test,
#include "ops/ops.def"
#define TABLE_OP(result, name, parameters, test) #test,
#include "ops/table_ops.def"
    "cache",        "api_attn",     "api_table",  "attn_bwd", "attn_sm90_paged", "softmax_sm90",
    "comm",         "direct",       "dynamic",    "embed",    "encoder",         "encoder_plan",
    "fetch",        "item_content", "item_rules", "model",    "params",          "pass",
    "batch_layout", "ligr_layer",   "heads",      "product",  "replicas",        "snapshot",
    "tensor_group", "verbs"};

bool test_device_runs(const char *file) {
    if (test_on.kind == ON_CPU) return true;
    if (strncmp(file, "test_", 5) != 0) return false;
    for (size_t i = 0; i < sizeof stems / sizeof *stems; i++) {
        size_t n = strlen(stems[i]);
        if (strncmp(file + 5, stems[i], n) == 0 && strcmp(file + 5 + n, ".c") == 0) return true;
    }
    return false;
}

/* One GPU backend serves a process: making one takes longer than most tests. */
static backend *shared;

void test_device_end(void) {
    backend_destroy(shared);
    shared = NULL;
}

static status share_cuda(void) {
    cuda_options options = {.device = test_on.number, .is_deterministic = test_on.is_deterministic};
    if (shared != NULL) return OK;
    TRY(backend_create_cuda(&shared, &options));
    atexit(test_device_end);
    return shared->ops->set_precision(shared, precision_act(test_on.p),
                                      test_on.p == PRECISION_TF32);
}

status test_backend(backend **out, pool *workers) {
    backend *below;
    *out = NULL;
    if (test_on.kind == ON_CUDA) {
        TRY(share_cuda());
        return mirror_create(out, shared, false, test_on.p);
    }
    TRY(backend_create_cpu(&below, workers));
    if (test_on.kind == ON_MIRROR) return mirror_create(out, below, true, test_on.p);
    *out = below;
    return OK;
}

status test_real_backend(backend **out, pool *workers) {
    *out = NULL;
    if (test_on.kind != ON_CUDA) return backend_create_cpu(out, workers);
    TRY(share_cuda());
    *out = shared;
    return OK;
}

void test_real_backend_end(backend *be) {
    if (be != shared) backend_destroy(be);
}
