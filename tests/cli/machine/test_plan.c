#include "format/json.h"
#include "test.h"
#include "tune/target.h"

TEST(first_line_table_and_reasons) {
    char *text;
    CHECK_EQ(test_command(&text, "'%s' plan show 0001101010101010", test_program()), 0);
    CHECK(strncmp(text, "6826 0 2 1 2 3 4\n", 17) == 0);
    CHECK_CONTAINS(text, "gemm0 + bias0");
    CHECK_CONTAINS(text, "Segment 3-4 is legal");
    free(text);
    CHECK_EQ(test_command(&text, "'%s' plan show 0000000000000000 --layer hstu", test_program()),
             0);
    CHECK(strncmp(text, "0 0 1 1 15\n", 11) == 0);
    CHECK_CONTAINS(text, "illegal: split into 5 kernels");
    CHECK_CONTAINS(text, "after operator 5: qk is a product");
    free(text);
    CHECK_EQ(test_command(&text, "'%s' plan show 32768", test_program()), 0);
    CHECK_CONTAINS(text, "Bit 0 has no effect");
    free(text);
}

TEST(json_and_picture) {
    char *text;
    arena memory;
    const json_value *root;
    int64_t value;
    arena_init(&memory, 1 << 12);
    CHECK_EQ(test_command(&text, "'%s' plan show 41115 --json --svg '%s/plan.svg'", test_program(),
                          test_folder()),
             0);
    CHECK_OK(json_parse(&memory, "plan", text, strlen(text), &root));
    CHECK_OK(json_member_int(root, "value", &value));
    CHECK_EQ(value, 41115);
    CHECK_EQ(json_member(root, "kernels")->n_children, 8);
    arena_fini(&memory);
    free(text);
    CHECK_EQ(test_command(&text, "cat '%s/plan.svg'", test_folder()), 0);
    CHECK_CONTAINS(text, "<svg xmlns");
    free(text);
}

TEST(bad_input_is_a_sentence) {
    static const char *const cases[][2] = {{"65536", "beyond 65535"},
                                           {"010101010101010", "15 bits"},
                                           {"1 --layer brt", "did you mean 'bert'?"},
                                           {"x", "neither a value"},
                                           {"1 2", "2"},
                                           {"1 --heads 0", "--heads"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *text;
        CHECK_EQ(test_command(&text, "'%s' plan show %s", test_program(), cases[i][0]), 2);
        CHECK_CONTAINS(text, cases[i][1]);
        free(text);
    }
    CHECK_EQ(test_command(NULL, "'%s' plan show 1 --svg /nowhere/x.svg", test_program()), 1);
}

TEST(source_of_every_kernel) {
    char *text;
    CHECK_EQ(test_command(&text, "'%s' plan show 1365 --layer hstu --source | grep -c '^ENTRY'",
                          test_program()),
             0);
    CHECK_EQ(atoi(text), 13);
    free(text);
    CHECK_EQ(test_command(&text, "'%s' plan show 0 --source --cuda", test_program()), 0);
    CHECK_CONTAINS(text, "#define ELEM_BITS 16");
    CHECK_CONTAINS(text, "ENTRY(bert_3_7, kernel)");
    free(text);
    CHECK_EQ(test_command(&text, "'%s' plan show 6826 --source --heads 1 --dim 8 --ffn 57",
                          test_program()),
             0);
    CHECK_CONTAINS(text, "\n#define WIDTH 57\n");
    free(text);
}

static const char *const shape = "--device cpu --batch 2 --length 9 --heads 2 --dim 4";

static void need_compiler(void) {
    char version[256];
    if (!target_compiler_version(version, sizeof version)) SKIP_TEST("no C compiler");
}

TEST(a_plan_runs_and_is_right) {
    char *text;
    arena memory;
    const json_value *root;
    double error, allowed;
    int64_t launches;
    need_compiler();
    CHECK_EQ(test_command(&text,
                          "'%s' plan run --segments 3-7,8-10,11-14 --mask causal --hand-written %s "
                          "--cache '%s' --json",
                          test_program(), shape, test_folder()),
             0);
    arena_init(&memory, 1 << 12);
    CHECK_OK(json_parse(&memory, "run", text, strlen(text), &root));
    CHECK_OK(json_member_double(root, "error", &error));
    CHECK_OK(json_member_double(root, "allowed", &allowed));
    CHECK_OK(json_member_int(root, "launches", &launches));
    CHECK(error > 0 && error <= allowed);
    CHECK_EQ(launches, 6);
    arena_fini(&memory);
    free(text);
    /* The second run compiles nothing: it needs no compiler that works, only its name and version.
     */
    CHECK_EQ(test_command(&text, "ls '%s' | wc -l", test_folder()), 0);
    CHECK_EQ(atoi(text), 5);
    free(text);
    CHECK_EQ(test_command(&text,
                          "'%s' plan run --segments 3-7,8-10,11-14 --mask causal --hand-written %s "
                          "--cache '%s' --report",
                          test_program(), shape, test_folder()),
             0);
    CHECK_CONTAINS(text, "41185 1 3 3 7 8 10 11 14\n");
    CHECK_CONTAINS(text, "6 launches");
    CHECK_CONTAINS(text, "hand-written attention");
    CHECK_CONTAINS(text, "/s of copies");
    CHECK_CONTAINS(text, "GFLOP/s of products");
    free(text);
}

TEST(what_is_wrong_is_said) {
    char *text;
    static const char *const usage[][2] = {
        {"", "give a plan"},
        {"1 --segments 1-2", "'1' and --segments are two plans"},
        {"70000", "beyond 65535"},
        {"1 --layer gpt", "the layers are"},
        {"1 --mask moon", "moon"},
        {"1 --dtype int8", "--dtype int8"},
        {"1 --device tpu", "--device tpu"},
        {"1 --avg-len 129", "--avg-len"},
        {"1 --layer sasrec --ffn 100", "--ffn is for layer bert"},
        {"1 --segments 1-2,2-3", "are two plans"}};
    for (size_t i = 0; i < sizeof usage / sizeof *usage; i++) {
        CHECK_EQ(test_command(&text, "'%s' plan run %s --cache '%s'", test_program(), usage[i][0],
                              test_folder()),
                 2);
        CHECK_CONTAINS(text, usage[i][1]);
        free(text);
    }
    /* Before a cache or a device is opened, which may fail in ways of their own. */
    CHECK_EQ(
        test_command(NULL, "'%s' plan run 1 --avg-len 129 --cache /proc/nowhere", test_program()),
        2);
}

TEST(no_compiler_and_no_cache) {
    char *text;
    CHECK_EQ(test_command(&text, "CC=/nowhere/cc '%s' plan run 1 %s --cache '%s'", test_program(),
                          shape, test_folder()),
             1);
    CHECK_CONTAINS(text, "CC is '/nowhere/cc', which does not run");
    free(text);
    CHECK_EQ(test_command(&text, "CC= PATH=/nowhere '%s' plan run 1 %s --cache '%s'",
                          test_program(), shape, test_folder()),
             1);
    CHECK_CONTAINS(text, "apt-get install gcc");
    free(text);
    CHECK_EQ(test_command(&text, "'%s' plan run 1 %s --cache /proc/nowhere", test_program(), shape),
             1);
    CHECK_CONTAINS(text, "--cache chooses another folder");
    free(text);
    CHECK_EQ(test_command(&text, "XDG_CACHE_HOME= HOME= '%s' plan run 1 %s", test_program(), shape),
             1);
    CHECK_CONTAINS(text, "say --cache DIR");
    free(text);
    CHECK_EQ(test_command(&text, "ls '%s' | wc -l", test_folder()), 0);
    CHECK_EQ(atoi(text), 0); /* nothing half-written */
    free(text);
}

/* A compiler that fails, one that is interrupted, and one that writes nonsense. */
TEST(compilers_that_do_not_work) {
    char *text;
    CHECK_EQ(test_command(NULL,
                          "cd '%s' && mkdir cache && printf '#!/bin/sh\\n[ \"$1\" = --version ] && "
                          "exit 0\\necho broken "
                          "pipe >&2; exit 3\\n' >cc && chmod +x cc",
                          test_folder()),
             0);
    CHECK_EQ(test_command(&text, "cd '%s' && CC=./cc '%s' plan run 1 %s --cache cache",
                          test_folder(), test_program(), shape),
             1);
    CHECK_CONTAINS(text, "cannot compile a generated kernel (exit code 3): broken pipe");
    free(text);
    CHECK_EQ(test_command(NULL, "sed -i 's/exit 3/kill -INT $$/' '%s/cc'", test_folder()), 0);
    CHECK_EQ(test_command(&text, "cd '%s' && CC=./cc '%s' plan run 1 %s --cache cache",
                          test_folder(), test_program(), shape),
             1);
    CHECK_CONTAINS(text, "interrupted while a kernel was compiled");
    free(text);
    CHECK_EQ(test_command(NULL,
                          "cd '%s' && printf '#!/bin/sh\\n[ \"$1\" = --version ] && exit 0\\nwhile "
                          "[ \"$1\" != -o ]; do "
                          "shift; done; echo nonsense >$2\\n' >cc",
                          test_folder()),
             0);
    CHECK_EQ(test_command(&text, "cd '%s' && CC=./cc '%s' plan run 1 %s --cache cache",
                          test_folder(), test_program(), shape),
             1);
    CHECK_CONTAINS(text, "cannot be loaded");
    free(text);
}

/* Without a GPU, or without its libraries, a sentence says which is missing. */
static void run_on_gpu(int plan, bool can_run) {
    char *text;
    int code = test_command(&text,
                            "'%s' plan run %d --mask causal --device cuda --batch 2 --length 9 "
                            "--heads 2 --dim 8 --cache '%s'",
                            test_program(), plan, test_folder());
    bool lacks_gpu = strstr(text, "NVIDIA driver") != NULL || strstr(text, "NVRTC") != NULL ||
                     strstr(text, "the GPU refuses") != NULL;
    bool has_result = code == 0 && strstr(text, "launches") != NULL;
    bool lacks_build = code == 1 && strstr(text, "needs a build with CUDA") != NULL;
    if (!(code == 1 && lacks_gpu) && !(can_run ? has_result : lacks_build))
        FAIL_TEST("plan %d ended with %d: %s", plan, code, text);
    free(text);
}

/* Only the hand-written attention (bit 0, the highest) needs a build with CUDA. */
TEST(a_gpu_or_a_reason) {
#ifdef HSTU_HAS_CUDA
    run_on_gpu(41115, true);
#else
    run_on_gpu(41115, false);
#endif
    run_on_gpu(41115 & 0x7fff, true);
}

/* No file may grow, as on a full disk: a sentence, and nothing is left in the cache. */
TEST(a_full_disk) {
    char *text;
    need_compiler();
    CHECK_EQ(test_command(&text, "(ulimit -f 0; '%s' plan run 1 %s --cache '%s')", test_program(),
                          shape, test_folder()),
             1);
    CHECK_CONTAINS(text, "--cache chooses another folder");
    CHECK_CONTAINS(text, "File too large");
    free(text);
    CHECK_EQ(test_command(&text, "ls '%s' | wc -l", test_folder()), 0);
    CHECK_EQ(atoi(text), 0);
    free(text);
    CHECK_EQ(
        test_command(&text,
                     "cd '%s' && printf '#!/bin/sh\\n[ \"$1\" = --version ] && exec cc "
                     "--version\\necho ld: No space left on device\\nexit 1\\n' >cc && chmod +x "
                     "cc && CC=./cc '%s' plan run 1 %s --cache cache",
                     test_folder(), test_program(), shape),
        1);
    CHECK_CONTAINS(text, "(--cache chooses another folder): the disk of cache");
    free(text);
}

/* A compiler that changes one operator: the check finds it. */
TEST(a_wrong_kernel_is_found) {
    char *text;
    need_compiler();
    CHECK_EQ(test_command(NULL,
                          "cd '%s' && mkdir cache && printf '#!/bin/sh\\nfor a; do case $a in *.c) "
                          "sed -i \"s/gelu(v/silu(v/\" $a;; "
                          "esac; done\\nexec cc \"$@\"\\n' >cc && chmod +x cc",
                          test_folder()),
             0);
    CHECK_EQ(test_command(&text, "cd '%s' && CC=./cc '%s' plan run 0 %s --cache cache",
                          test_folder(), test_program(), shape),
             1);
    CHECK_CONTAINS(text, "plan 0 of layer bert is off by");
    free(text);
}
