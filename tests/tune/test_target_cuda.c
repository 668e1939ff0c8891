#include <limits.h>

#include "test.h"
#include "tune/target.h"

/* Every kernel that a layer can have, with default tiles: NVRTC compiles it without a GPU. */
static void compile_all(chain_layer layer, act_type act, int sm, int every) {
    const chain *c = chain_of(layer);
    chain_shape shape = {
        .n_sequences = 1, .max_len = 128, .n_heads = 4, .dim_head = 32, .n_tokens = 128};
    char version[64];
    int at = 0;
    if (!target_nvrtc_version(version, sizeof version)) SKIP_TEST("no NVRTC");
    for (int first = 0; first < CHAIN_OPS; first++)
        for (int last = first; last < CHAIN_OPS; last++) {
            kernel_spec s = {.c = c,
                             .shape = shape,
                             .first = first,
                             .last = last,
                             .attend = ATTEND_BYTES,
                             .act = act,
                             .is_cuda = true};
            tile_params tiles[EMIT_MAX_TILES];
            int n;
            buf source = {0}, cubin = {0};
            s.from = plan_template(c, &shape, first, last, NULL);
            if (s.from == TEMPLATE_NONE || at++ % every != 0) continue;
            s.shared_limit = sm == 80 ? 163 << 10 : 227 << 10;
            CHECK_OK(emit_tiles(&s, tiles, &n));
            CHECK(n > 0);
            s.tile = tiles[0];
            CHECK_OK(emit_kernel(&s, &source, NULL));
            CHECK_OK(target_compile_cuda(&source, sm, &cubin));
            CHECK(cubin.n_bytes > 1000 && memcmp(cubin.data, "\177ELF", 4) == 0);
            buf_fini(&source);
            buf_fini(&cubin);
        }
}

TEST(kernels_of_bert_compile_for_hopper) {
    compile_all(CHAIN_BERT, ACT_F16, 90, 6);
}
TEST(kernels_of_hstu_compile_for_ampere) {
    compile_all(CHAIN_HSTU, ACT_BF16, 80, 6);
}
TEST(kernels_of_sasrec_compile_in_float32) {
    compile_all(CHAIN_SASREC, ACT_F32, 80, 8);
}

TEST(bad_source_is_told) {
    buf source = {0}, cubin = {0};
    char version[64];
    if (!target_nvrtc_version(version, sizeof version)) SKIP_TEST("no NVRTC");
    CHECK_OK(buf_text(&source, "int f( {"));
    CHECK_FAILS(target_compile_cuda(&source, 80, &cubin), ERR_UNSUPPORTED, "NVRTC cannot compile");
    buf_fini(&source);
    buf_fini(&cubin);
}

/* A GPU that is lost while plans run on it: a driver and an NVRTC of our own, which compute nothing
 * and fail from their n-th launch on, as a card does that fell off the bus. */
static const char *const source =
    "#include <stdlib.h>\n"
    "#include <string.h>\n"
    "static int n_launches, is_lost;\n"
    "#define CALL(name, ...) int name(__VA_ARGS__) { return is_lost ? 999 : 0; }\n"
    "typedef void *h; typedef unsigned long long p;\n"
    "int cuInit(unsigned f) { (void)f; return 0; }\n"
    "int cuDriverGetVersion(int *v) { *v = 13000; return 0; }\n"
    "int cuDeviceGet(int *d, int n) { *d = n; return 0; }\n"
    "int cuDeviceGetName(char *s, int n, int d) { (void)n; (void)d; strcpy(s, \"a card\"); return "
    "0; }\n"
    "int cuDeviceGetAttribute(int *v, int a, int d) {\n"
    "    (void)d; *v = a == 75 ? 9 : a == 76 ? 0 : a == 39 ? 2048 : 200000; return 0; }\n"
    "int cuDevicePrimaryCtxRetain(h *c, int d) { (void)d; *c = 0; return 0; }\n"
    "CALL(cuDevicePrimaryCtxRelease_v2, int d)\n"
    "CALL(cuCtxSetCurrent, h c)\n"
    "int cuMemAlloc_v2(p *out, size_t n) { *out = (p)calloc(1, n); return is_lost ? 999 : 0; }\n"
    "int cuMemFree_v2(p m) { free((void *)m); return 0; }\n"
    "int cuMemcpyHtoD_v2(p to, const void *from, size_t n) {\n"
    "    memcpy((void *)to, from, n); return is_lost ? 999 : 0; }\n"
    "int cuMemcpyDtoH_v2(void *to, p from, size_t n) {\n"
    "    memcpy(to, (void *)from, n); return is_lost ? 999 : 0; }\n"
    "CALL(cuMemcpyDtoDAsync_v2, p to, p from, size_t n, h s)\n"
    "CALL(cuMemsetD8Async, p to, unsigned char b, size_t n, h s)\n"
    "int cuStreamCreate(h *s, unsigned f) { (void)f; *s = 0; return 0; }\n"
    "CALL(cuStreamDestroy_v2, h s)\n"
    "CALL(cuStreamSynchronize, h s)\n"
    "CALL(cuStreamBeginCapture_v2, h s, int m)\n"
    "CALL(cuStreamEndCapture, h s, h *g)\n"
    "CALL(cuGraphInstantiateWithFlags, h *o, h g, p f)\n"
    "CALL(cuGraphLaunch, h g, h s)\n"
    "CALL(cuGraphExecDestroy, h g)\n"
    "CALL(cuGraphDestroy, h g)\n"
    "CALL(cuModuleLoadData, h *o, const void *i)\n"
    "CALL(cuModuleUnload, h m)\n"
    "CALL(cuModuleGetFunction, h *o, h m, const char *n)\n"
    "CALL(cuFuncSetAttribute, h f, int a, int v)\n"
    "int cuFuncGetAttribute(int *v, int a, h f) { (void)a; (void)f; *v = 8; return 0; }\n"
    "int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *b, h f, int t, size_t s) {\n"
    "    (void)f; (void)t; (void)s; *b = 1; return 0; }\n"
    "int cuLaunchKernel(h f, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by,\n"
    "                   unsigned bz, unsigned n, h s, void **a, void **e) {\n"
    "    const char *last = getenv(\"LAST_LAUNCH\");\n"
    "    if (last != NULL && ++n_launches > atoi(last)) is_lost = 1;\n"
    "    return 0; }\n"
    "CALL(cuEventCreate, h *e, unsigned f)\n"
    "CALL(cuEventRecord, h e, h s)\n"
    "CALL(cuEventSynchronize, h e)\n"
    "int cuEventElapsedTime(float *ms, h a, h b) { (void)a; (void)b; *ms = 1; return 0; }\n"
    "CALL(cuEventDestroy_v2, h e)\n"
    "int cuGetErrorString(int r, const char **t) {\n"
    "    *t = r == 999 ? \"unknown error\" : \"?\"; return 0; }\n"
    "int nvrtcVersion(int *a, int *b) { *a = 13; *b = 0; return 0; }\n"
    "int nvrtcCreateProgram(h *o, const char *s, const char *n, int k, const char *const *a,\n"
    "                       const char *const *b) { *o = 0; return 0; }\n"
    "int nvrtcCompileProgram(h p, int n, const char *const *o) { return 0; }\n"
    "int nvrtcGetCUBINSize(h p, size_t *n) { *n = 4; return 0; }\n"
    "int nvrtcGetCUBIN(h p, char *c) { memcpy(c, \"code\", 4); return 0; }\n"
    "int nvrtcGetProgramLogSize(h p, size_t *n) { *n = 0; return 0; }\n"
    "int nvrtcGetProgramLog(h p, char *l) { return 0; }\n"
    "int nvrtcDestroyProgram(h *p) { return 0; }\n";

#ifdef HSTU_HAS_CUDA
static const bool has_cuda = true;
#else
static const bool has_cuda = false;
#endif

/* Makes the libraries in the test's folder.  CUDA's own runtime would load them too, so a build
 * with CUDA cannot be tested this way. */
static void make_libraries(void) {
    char version[256], path[PATH_MAX];
    if (has_cuda) SKIP_TEST("a build with CUDA");
    if (!target_compiler_version(version, sizeof version)) SKIP_TEST("no C compiler");
    snprintf(path, sizeof path, "%s/fake.c", test_folder());
    FILE *f = fopen(path, "w");
    CHECK(f != NULL && fputs(source, f) >= 0 && fclose(f) == 0);
    CHECK_EQ(test_command(NULL,
                          "cd '%s' && mkdir lib && cc -w -shared -fPIC fake.c -o lib/libcuda.so.1 "
                          "&& cp lib/libcuda.so.1 lib/libnvrtc.so.13",
                          test_folder()),
             0);
}

static const char *const shape = "--device cuda --dtype float16 --batch 1 --length 8 --heads 2 "
                                 "--dim 8 --cache cache";

/* The command fails with the sentence if the card is lost at this launch, counted from 0. */
static void check_lost(const char *command, int launch) {
    char *text;
    CHECK_EQ(test_command(&text, "cd '%s' && LD_LIBRARY_PATH=lib LAST_LAUNCH=%d '%s' %s %s",
                          test_folder(), launch, test_program(), command, shape),
             1);
    CHECK_CONTAINS(text, "unknown error (error 999); the GPU is lost to this process");
    CHECK_CONTAINS(text, "nvidia-smi");
    free(text);
}

TEST(a_gpu_is_lost_while_a_plan_runs) {
    char *text;
    make_libraries();
    for (int launch = 0; launch < 4; launch += 3)
        check_lost("plan run 0", launch);
    /* without a loss the same card computes nothing, which the check of the plan sees */
    CHECK_EQ(test_command(&text, "cd '%s' && LD_LIBRARY_PATH=lib '%s' plan run 0 %s", test_folder(),
                          test_program(), shape),
             1);
    CHECK_CONTAINS(text, "plan 0 of layer bert is off by");
    free(text);
}

TEST(a_gpu_is_lost_while_plans_are_measured) {
    char *text;
    make_libraries();
    check_lost("tune --search exact --out plan.json", 5);
    check_lost("plan traverse --from 0 --to 4 --rounds 0 --out times.txt", 0);
    /* kernels are kept; no plan, and no times but those that a traversal continues with */
    CHECK_EQ(
        test_command(&text, "cd '%s' && ls . cache | grep -v cubin | tr '\\n' ' '", test_folder()),
        0);
    CHECK(strstr(text, "plan") == NULL && strstr(text, "times.txt ") == NULL);
    CHECK_CONTAINS(text, "fake.c lib");
    free(text);
}

/* Libraries that lack functions, as those of other versions do. */
TEST(libraries_that_are_too_old) {
    char *text;
    make_libraries();
    CHECK_EQ(test_command(NULL,
                          "cd '%s/lib' && echo 'int x;' >x.c && cc -shared x.c -o libnvrtc.so.13",
                          test_folder()),
             0);
    CHECK_EQ(test_command(&text, "cd '%s' && LD_LIBRARY_PATH=lib '%s' plan run 0 %s", test_folder(),
                          test_program(), shape),
             1);
    CHECK_CONTAINS(text, "libnvrtc has no ");
    free(text);
    CHECK_EQ(test_command(NULL, "cd '%s/lib' && cp libnvrtc.so.13 libcuda.so.1", test_folder()), 0);
    CHECK_EQ(test_command(&text, "cd '%s' && LD_LIBRARY_PATH=lib '%s' plan run 0 %s", test_folder(),
                          test_program(), shape),
             1);
    CHECK_CONTAINS(text, "the NVIDIA driver has no ");
    CHECK_CONTAINS(text, "it is too old");
    free(text);
    CHECK_EQ(test_command(&text, "ls '%s/cache' | wc -l", test_folder()), 0);
    CHECK_EQ(atoi(text), 0);
    free(text);
}
