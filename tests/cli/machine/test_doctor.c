#include <dlfcn.h>

#include "cli/machine/doctor.h"
#include "format/json.h"
#include "test.h"

/* NVIDIA's driver keeps blocks at exit, and needs the gap in the address sanitizer's shadow memory:
 * where it is installed, the sanitizer looks at everything but that. */
static const char *for_driver(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (driver == NULL) return "";
    dlclose(driver);
    return "export ASAN_OPTIONS=detect_leaks=0:protect_shadow_gap=0; ";
}

/* Runs `BEFORE hstu doctor OPTIONS` and checks its exit code; what it says is to be freed. */
static char *doctor(int want, const char *before, const char *options) {
    char *text;
    int code =
        test_command(&text, "%s%s '%s' doctor %s", for_driver(), before, test_program(), options);
    if (code != want) FAIL_TEST("doctor %s ended with %d, not %d: %s", options, code, want, text);
    return text;
}

TEST(doctor_ends_with_a_verdict) {
    char *text = doctor(0, "", "");
    CHECK_CONTAINS(text, ", for matrix products on the CPU\n");
    CHECK_CONTAINS(text, "\n  ok  memory ");
    const char *verdict = strstr(text, "\nfit: yes");
    CHECK(verdict != NULL && strchr(verdict + 1, '\n')[1] == '\0');
    CHECK(strchr(text, '\033') == NULL); /* no colours in a pipe */
    free(text);
}

TEST(doctor_json_is_one_object) {
    char *text = doctor(0, "", "--json");
    arena a;
    const json_value *root, *fit;
    int64_t cores;
    const char *products;
    arena_init(&a, 4096);
    CHECK_OK(json_parse(&a, "doctor", text, strlen(text), &root));
    CHECK_OK(json_member_int(root, "usable_cores", &cores));
    CHECK(cores >= 1);
    CHECK_OK(json_member_string(root, "products", &products));
    CHECK_CONTAINS(products, "x"); /* rows x columns of a tile */
    fit = json_member(root, "fit");
    CHECK(fit != NULL && fit->type == JSON_BOOL && fit->boolean);
    CHECK_EQ(json_member(root, "libraries")->n_children, 13);
    const json_value *ranks = json_member(root, "ranks");
    CHECK(ranks != NULL && ranks->type == JSON_BOOL && ranks->boolean);
    CHECK(json_member(root, "gpus")->type == JSON_ARRAY);
    arena_fini(&a);
    free(text);
}

/* What this build lacks is named with its remedy; `make MINIMAL=1` lacks all of it. */
TEST(doctor_says_how_to_get_what_is_missing) {
    char *text = doctor(0, "", "");
#ifdef HSTU_HAS_ARCHIVE
    CHECK_CONTAINS(text, "\n  ok  libarchive   3.");
#else
    CHECK_CONTAINS(text, "\n  --  libarchive   not in this build; it adds reading .zip");
    CHECK_CONTAINS(text, "apt-get install libarchive-dev, then make");
#endif
#ifdef HSTU_HAS_CUDA
    CHECK_CONTAINS(text, "\n  ok  CUDA ");
#else
    CHECK_CONTAINS(text, "put nvcc on PATH");
#endif
    free(text);
}

TEST(doctor_looks_at_limits_and_disk) {
    char before[4096], *text;
    snprintf(before, sizeof before, "cd '%s' &&", test_folder());
    text = doctor(0, before, "");
    CHECK_CONTAINS(text, "  huge pages   ");
    CHECK_CONTAINS(text, "  open files   ");
    CHECK_CONTAINS(text, "  disk         writes ");
    CHECK_CONTAINS(text, "  /dev/shm ");
    free(text);
    CHECK_EQ(test_command(&text, "ls -A %s", test_folder()), 0);
    CHECK_STR(text, ""); /* nothing is left */
    free(text);
}

/* Too few descriptors are in the way of ranks and of a server, not of encoding. */
TEST(doctor_judges_for_a_purpose) {
    char *text = doctor(1, "ulimit -n 100;", "--for ranks");
    CHECK_CONTAINS(text, "\n  !!  open files   100 at a time, at most 100\n");
    CHECK_CONTAINS(text, "\n                   ulimit -n 4096");
    CHECK_CONTAINS(text, "hstu doctor: this machine is not fit: open files: 100 at a time");
    CHECK(strstr(text, "fit: no") == NULL); /* once */
    free(text);
    text = doctor(0, "ulimit -n 100;", "--for encode");
    CHECK_CONTAINS(text, "\nfit: yes");
    free(text);
    /* In general it is a note, and no failure. */
    free(doctor(0, "ulimit -n 100;", ""));
    text = doctor(2, "", "--for fun");
    CHECK_CONTAINS(text, "--for fun: must be train, serve, ranks or encode");
    free(text);
}

TEST(doctor_json_has_every_check) {
    char *text = doctor(0, "ulimit -n 100;", "--json --for train");
    arena a;
    const json_value *root;
    bool has_files = false;
    arena_init(&a, 4096);
    CHECK_OK(json_parse(&a, "doctor", text, strlen(text), &root));
    for (const json_value *c = json_member(root, "checks")->first; c != NULL; c = c->next) {
        if (strcmp(json_member(c, "name")->string, "open files") != 0) continue;
        has_files = true;
        CHECK_STR(json_member(c, "state")->string, "trouble");
        CHECK_STR(json_member(c, "section")->string, "machine");
        CHECK_CONTAINS(json_member(c, "remedy")->string, "ulimit");
    }
    CHECK(has_files);
    arena_fini(&a);
    free(text);
}

TEST(doctor_reads_what_the_system_says) {
    CHECK_STR(doctor_chosen_word("always [madvise] never"), "madvise");
    CHECK_STR(doctor_chosen_word("always"), "");
    CHECK_STR(doctor_chosen_word("["), "");
    CHECK_STR(doctor_throttle_words(0), "");
    CHECK_STR(doctor_throttle_words(1), ""); /* nothing to do: idle */
    CHECK_STR(doctor_throttle_words(0x44), "power limit, hot (hardware slowdown)");
}

/* The folder of the repository: the program is build/VARIANT/hstu in it. */
static const char *repository(void) {
    static char path[4096];
    snprintf(path, sizeof path, "%s", test_program());
    for (int up = 0; up < 3; up++)
        *strrchr(path, '/') = '\0';
    return path;
}

/* Each line "> ..." of docs/troubleshooting.md is a message: its parts between dots are in a string
 * of the sources, or in the Makefile.  Strings that stand beside each other are one, as in C. */
TEST(doctor_docs_quote_what_the_program_says) {
    char *sources, *docs;
    int n_quotes = 0;
    CHECK_EQ(test_command(&sources,
                          "cd %s && cat Makefile $(find src -name '*.c' -o -name '*.cu' -o -name "
                          "'*.h' | sort) | tr '\\n' ' ' | sed 's/\" *\"//g; s/\\\\\"/\"/g'",
                          repository()),
             0);
    CHECK_EQ(test_command(&docs, "cat %s/docs/troubleshooting.md", repository()), 0);
    for (char *line = strtok(docs, "\n"); line != NULL; line = strtok(NULL, "\n")) {
        if (strncmp(line, "> ", 2) != 0) continue;
        n_quotes++;
        for (char *part = line + 2, *end; part != NULL; part = end) {
            end = strstr(part, "...");
            if (end != NULL) *end = '\0', end += 3;
            /* What a format leaves around its values. */
            part += strspn(part, " ");
            if (strlen(part) < 4) continue;
            if (strstr(sources, part) == NULL) FAIL_TEST("nothing says \"%s\"", part);
        }
    }
    CHECK(n_quotes >= 30);
    free(sources);
    free(docs);
}

#ifndef HSTU_HAS_CUDA
/* A driver that is none: two GPUs, the first hot and with errors of its memory. */
static const char driver_code[] =
    "#include <stdlib.h>\n#include <string.h>\n#include <stdio.h>\n"
    "typedef unsigned long long a; typedef unsigned u; typedef size_t z;\n"
    "#define F(name, ...) int name(__VA_ARGS__)\n"
    "F(cuInit, u f) { return 0; }\n"
    "F(cuDriverGetVersion, int *v) { *v = 12080; return 0; }\n"
    "F(cuDeviceGetCount, int *n) { *n = 2; return 0; }\n"
    "F(cuDeviceGetPCIBusId, char *t, int n, int d) { snprintf(t, n, \"%d\", d); return 0; }\n"
    "F(cuDeviceCanAccessPeer, int *c, int x, int y) { *c = 0; return 0; }\n"
    "F(cuDevicePrimaryCtxRetain, void **c, int d) { *c = (void *)c; return 0; }\n"
    "F(cuDevicePrimaryCtxRelease_v2, int d) { return 0; }\n"
    "F(cuCtxSetCurrent, void *c) { return 0; }\n"
    "F(cuCtxSynchronize, void) { return 0; }\n"
    "F(cuMemAlloc_v2, a *p, z n) { *p = 1; return 0; }\n"
    "F(cuMemFree_v2, a p) { return 0; }\n"
    "F(cuMemAllocHost_v2, void **p, z n) { *p = malloc(1); return 0; }\n"
    "F(cuMemFreeHost, void *p) { free(p); return 0; }\n"
    "F(cuMemcpyHtoD_v2, a t, const void *f, z n) { return 0; }\n"
    "F(cuMemcpyDtoH_v2, void *t, a f, z n) { return 0; }\n"
    "F(cuMemcpyDtoD_v2, a t, a f, z n) { return 0; }\n"
    "F(cuMemcpyPeer, a t, void *x, a f, void *y, z n) { return 0; }\n"
    "F(nvmlInit_v2, void) { return 0; }\n"
    "F(nvmlShutdown, void) { return 0; }\n"
    "F(nvmlSystemGetDriverVersion, char *t, u n) { strcpy(t, \"570.1\"); return 0; }\n"
    "F(nvmlDeviceGetHandleByPciBusId_v2, const char *t, void **d) "
    "{ *d = (void *)(z)(1 + atoi(t)); return 0; }\n"
    "F(nvmlDeviceGetClockInfo, void *d, int t, u *v) { *v = 1200; return 0; }\n"
    "F(nvmlDeviceGetMaxClockInfo, void *d, int t, u *v) { *v = 1980; return 0; }\n"
    "F(nvmlDeviceGetCurrentClocksThrottleReasons, void *d, a *v) "
    "{ *v = (z)d == 1 ? 0x40 : 1; return 0; }\n"
    "F(nvmlDeviceGetTemperature, void *d, int t, u *v) { *v = 90; return 0; }\n"
    "F(nvmlDeviceGetPowerUsage, void *d, u *v) { *v = 300000; return 0; }\n"
    "F(nvmlDeviceGetEnforcedPowerLimit, void *d, u *v) { *v = 700000; return 0; }\n"
    "F(nvmlDeviceGetEccMode, void *d, int *x, int *y) { *x = *y = 1; return 0; }\n"
    "F(nvmlDeviceGetTotalEccErrors, void *d, int t, int c, a *v) { *v = (z)d == 1; return 0; }\n"
    "F(nvmlDeviceGetCurrPcieLinkGeneration, void *d, u *v) { *v = 5; return 0; }\n"
    "F(nvmlDeviceGetCurrPcieLinkWidth, void *d, u *v) { *v = 16; return 0; }\n"
    "F(nvmlDeviceGetMigMode, void *d, u *x, u *y) { *x = *y = 0; return 0; }\n"
    "F(nvmlDeviceGetComputeMode, void *d, int *m) { *m = 0; return 0; }\n"
    "F(nvmlDeviceGetNvLinkState, void *d, u l, int *x) { *x = l < 4; return 0; }\n";

TEST(doctor_examines_gpus_through_the_driver) {
    char *text, path[4096];
    if (test_command(NULL, "command -v cc") != 0) SKIP_TEST("no C compiler");
    snprintf(path, sizeof path, "%s/d.c", test_folder());
    FILE *f = fopen(path, "w");
    CHECK(f != NULL && fputs(driver_code, f) >= 0 && fclose(f) == 0);
    CHECK_EQ(test_command(NULL,
                          "cd %s && cc -w -shared -fPIC d.c -o libcuda.so.1 && cp libcuda.so.1 "
                          "libnvidia-ml.so.1",
                          test_folder()),
             0);
    CHECK_EQ(test_command(&text, "cd %s && LD_LIBRARY_PATH=. %s doctor --for train", test_folder(),
                          test_program()),
             1);
    CHECK_CONTAINS(text, "driver       570.1, for programs of up to CUDA 12.8\n");
    CHECK_CONTAINS(text, "this build is without CUDA: put nvcc on PATH, then make");
    CHECK_CONTAINS(text,
                   "!!  cuda:0       SM clock 1200 of 1980 MHz, memory 1200 MHz, 90 C, 300 of "
                   "700 W; slowed by: hot (hardware slowdown)\n");
    CHECK_CONTAINS(text,
                   "ok  cuda:1       SM clock 1200 of 1980 MHz, memory 1200 MHz, 90 C, 300 of "
                   "700 W\n");
    CHECK_CONTAINS(text, "cuda:0       ECC on, with errors that could not be corrected\n");
    CHECK_CONTAINS(text, "cuda:1       4 NVLinks are up\n");
    CHECK_CONTAINS(text, "PCIe gen 5 x16: ");
    CHECK_CONTAINS(text, "--  peers        cuda:0 to cuda:1: ");
    CHECK_CONTAINS(text, "through memory of the host");
    CHECK_CONTAINS(text, "this machine is not fit: cuda:0: ECC on, with errors");
    free(text);
}
#endif
