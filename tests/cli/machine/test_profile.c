/* hstu profile, from outside. */
#include <signal.h>

#include "ops/device.h"
#include "run_test.h"
/* after the ops, which have a parameter of the name span */
#include "profile/record_file.h"

#define TRAIN "-- train --gin-config-file m.gin --data data --out run --epochs 2 --device cpu"

/* The events of a trace in hstu-profile. */
static const json_value *events_of(arena *a, const char *name) {
    char *text, path[64];
    size_t n;
    const json_value *v;
    snprintf(path, sizeof path, "hstu-profile/%s", name);
    CHECK_OK(file_read_all(run_path(path), 1 << 24, &text, &n));
    CHECK_OK(json_parse(a, "trace.json", text, n, &v));
    mem_free(text);
    return json_member(v, "traceEvents");
}

static const json_value *trace_events(arena *a) {
    return events_of(a, "trace.json");
}

static int count_events(const json_value *events, const char *name) {
    int n = 0;
    for (const json_value *e = events->first; e != NULL; e = e->next)
        n += strcmp(json_member(e, "ph")->string, "X") == 0 &&
             strcmp(json_member(e, "name")->string, name) == 0;
    return n;
}

/* The toy has five steps an epoch. */
TEST(profile_shows_steps_layers_and_ops) {
    arena a;
    arena_init(&a, 1 << 16);
    char *text =
        said(0, "profile --wait 1 --warmup 1 --active 2 --repeat 2 --sort-by count " TRAIN);
    CHECK_CONTAINS(text, "Self CPU %");
    CHECK_CONTAINS(text, "layer forward 0");
    CHECK_CONTAINS(text, "linear_fwd");
    CHECK_CONTAINS(text, "4 steps kept of 10\n");
    free(text);
    const json_value *events = events_of(&a, "trace.json");
    CHECK_EQ(count_events(events, "step"), 2); /* a trace a cycle */
    CHECK_EQ(count_events(events, "ProfilerStep#2"), 1);
    CHECK_EQ(count_events(events, "ProfilerStep#3"), 1);
    CHECK_EQ(count_events(events, "ProfilerStep#6"), 0);
    events = events_of(&a, "trace-2.json");
    CHECK_EQ(count_events(events, "step"), 2);
    CHECK_EQ(count_events(events, "ProfilerStep#6"), 1);
    /* One cycle: the second trace was of the profile before. */
    write_text("hstu-profile/trace-mine.json", "{}");
    free(said(0, "profile --active 1 --repeat 2 --tensorboard -- eval run --data data"));
    CHECK(file_exists(run_path("hstu-profile/trace-2.json")));
    free(said(0, "profile -- eval run --data data"));
    CHECK(file_exists(run_path("hstu-profile/trace.json")));
    CHECK(!file_exists(run_path("hstu-profile/trace-2.json")));
    CHECK(file_exists(run_path("hstu-profile/trace-mine.json")));
    /* So are tables that this profile does not have. */
    CHECK(file_exists(run_path("hstu-profile/op_work.csv")));
    write_text("hstu-profile/cuda_gpu_kern_sum.csv", "old");
    write_text("hstu-profile/mine.csv", "mine");
    free(said(0, "profile --activities cuda -- eval run --data data --device cpu"));
    CHECK(!file_exists(run_path("hstu-profile/cuda_gpu_kern_sum.csv")));
    CHECK(!file_exists(run_path("hstu-profile/op_work.csv")));
    CHECK(file_exists(run_path("hstu-profile/mine.csv")));
    /* A step may go through the layers in several parts. */
    CHECK(count_events(events, "layer forward 0") >= 2);
    CHECK_EQ(count_events(events, "layer backward 0"), count_events(events, "layer forward 0"));
    CHECK(count_events(events, "attn_fwd") >= count_events(events, "layer forward 0"));
    for (const json_value *e = events->first; e != NULL; e = e->next)
        if (json_member(e, "ts") != NULL) CHECK(json_member(e, "ts")->number >= 0);
    arena_fini(&a);
}

/* Our own program before the command is this program, by its path and by a link on PATH. */
TEST(profile_takes_the_name_of_the_program) {
    free(shell(0, "mkdir -p bin && ln -s $PWD/hstu bin/my-hstu"));
    static const char *const names[] = {"./hstu", "my-hstu", "hstu"};
    for (size_t i = 0; i < 3; i++) {
        char line[512];
        snprintf(line, sizeof line,
                 "PATH=$PWD:$PWD/bin:$PATH && ./hstu profile --out p -- %s recommend run --data "
                 "data --all-users -k 50 --json --device cpu 2>err && grep -o 'linear_fwd' p/*.csv "
                 "| head -n 1 && grep -c '^{.*}$' err",
                 names[i]);
        char *text = shell(0, line);
        CHECK_CONTAINS(text, "linear_fwd\n40\n");
        free(text);
    }
    char *text = shell(2, "./hstu profile -- ./hstu nothing 2>&1");
    CHECK_CONTAINS(text, "'nothing' is not a command of hstu");
    free(text);
}

/* What is profiled does the same work. */
TEST(profile_changes_no_bit) {
    free(said(0, "profile --active 1 --repeat 1 " TRAIN));
    free(said(0, "train --gin-config-file m.gin --data data --out plain --epochs 2 --device cpu"));
    CHECK(same_file(run_path("run"), run_path("plain"), "model.safetensors"));
}

TEST(profile_records_commands_without_steps) {
    free(said(0, "train --gin-config-file m.gin --data data --out run --epochs 1 --device cpu"));
    char *text = said(0, "profile --format json -- eval run --data data --device cpu");
    CHECK_CONTAINS(text, "{\"report\":\"key_averages\",\"rows\":[{\"Name\":");
    free(text);
}

TEST(profile_says_what_it_costs) {
    char *text = said(0, "profile --active 5 --repeat 1 " TRAIN);
    CHECK_CONTAINS(text, "5 steps kept of 10\na recorded step took ");
    CHECK_CONTAINS(text, " after it without recording ");
    CHECK_CONTAINS(text, " ms (medians): recording costs ");
    free(text);
}

TEST(profile_of_one_range) {
    char *text = said(0, "profile --active 2 --repeat 1 --range 'layer forward 0' " TRAIN);
    CHECK_CONTAINS(text, "attn_fwd");
    CHECK(strstr(text, "attn_bwd") == NULL);
    CHECK(strstr(text, "optimizer") == NULL);
    CHECK(strstr(text, "no range") == NULL);
    free(text);
    text = said(0, "profile --active 1 --repeat 1 --range nope " TRAIN " --out run2");
    CHECK_CONTAINS(text, "no range 'nope' was recorded; a profile without --range lists all");
    CHECK_CONTAINS(text, "1 step kept of 10\n");
    free(text);
    text = said(2, "profile --range nope " TRAIN); /* there is a run already */
    CHECK(strstr(text, "no range") == NULL);
    free(text);
}

/* Work and peaks: on the CPU an op's time is its own. */
TEST(profile_shows_work_against_peaks) {
    size_t n;
    char *text = said(0, "profile --record-shapes " TRAIN);
    CHECK_CONTAINS(text, "peaks, measured before: ");
    CHECK_CONTAINS(text, "op_work");
    CHECK_CONTAINS(text, "linear_fwd [");
    free(text);
    CHECK_OK(file_read_all(run_path("hstu-profile/report.html"), 1 << 24, &text, &n));
    CHECK_CONTAINS(text, "<h2>Roofline</h2>");
    CHECK_CONTAINS(text, "<circle ");
    mem_free(text);
    text = said(0, "profile --no-peaks -- eval run --data data --device cpu");
    CHECK(strstr(text, "peaks, measured") == NULL);
    CHECK(strstr(text, "linear_fwd [") == NULL);
    free(text);
}

TEST(profile_shows_whose_memory_it_is) {
    char *text = said(0, "profile --memory " TRAIN);
    CHECK_CONTAINS(text, "Memory of the Device by Owner (memory_by_owner):\n");
    CHECK_CONTAINS(text, "       CPU Mem  Self CPU Mem    # of Calls\n");
    CHECK_CONTAINS(text, "  activations\n");
    CHECK_CONTAINS(text, "  weights\n");
    CHECK_CONTAINS(text, "  optimizer state\n");
    CHECK_CONTAINS(text, "  gradients\n");
    free(text);
    arena a;
    arena_init(&a, 1 << 16);
    int n = 0;
    double last = -1;
    for (const json_value *e = trace_events(&a)->first; e != NULL; e = e->next) {
        if (strcmp(json_member(e, "ph")->string, "C") != 0) continue;
        last = json_member(json_member(e, "args"), "bytes")->number;
        n++;
    }
    CHECK(n > 10);
    CHECK(last == 0); /* everything was released */
    arena_fini(&a);
}

TEST(profile_says_why_there_are_no_counters) {
    device_driver driver;
    device_driver_ask(&driver);
    if (driver.reason[0] == '\0') SKIP_TEST("here is a GPU");
    char *text = said(1, "profile --counters " TRAIN);
    CHECK_CONTAINS(text, "hstu profile: --counters: ");
    if (strstr(text, "is without CUDA") != NULL)
        CHECK_CONTAINS(text, "; rebuild with nvcc (docs/install.md)\n");
    free(text);
    CHECK(!folder_exists(run_path("run"))); /* before anything was done */
    CHECK(!folder_exists(run_path("hstu-profile")));
}

/* Another program: it gets the folder for its records, and its output is on stderr. */
TEST(profile_of_another_program) {
    record_writer *w;
    gpu_record kernel = {.kind = GPU_KERNEL,
                         .start_ns = 1000,
                         .end_ns = 4000,
                         .name = "_Z10saxpy_testfPf",
                         .correlation = 1,
                         .launch = {.grid = {8, 1, 1}, .block = {128, 1, 1}}};
    gpu_record call = {.kind = GPU_CALL,
                       .start_ns = 10,
                       .end_ns = 20,
                       .name = "cudaLaunchKernel",
                       .correlation = 1};
    gpu_record alone = {
        .kind = GPU_CALL, .start_ns = 30, .end_ns = 40, .name = "cudaMalloc", .correlation = 2};
    CHECK_OK(record_writer_create(&w, test_folder()));
    CHECK_OK(record_writer_add(w, &kernel));
    CHECK_OK(record_writer_add(w, &call));
    CHECK_OK(record_writer_add(w, &alone));
    CHECK_OK(record_writer_close(w, 0));
    char *text = said(0, "profile -- sh -c 'cp *.records $HSTU_PROFILE_RECORDS; test -e "
                         "$CUDA_INJECTION64_PATH && echo said by the program' 2>errors | cat");
    CHECK_CONTAINS(text, "cuda_gpu_kern_sum");
    CHECK_CONTAINS(text, "saxpy_test");
    CHECK_CONTAINS(text, "3,000");
    CHECK(strstr(text, "said by the program") == NULL);
    free(text);
    size_t n;
    CHECK_OK(file_read_all(run_path("errors"), 1 << 16, &text, &n));
    CHECK_CONTAINS(text, "said by the program");
    CHECK_CONTAINS(text, ": 3 records\n");
    mem_free(text);
    arena a;
    arena_init(&a, 1 << 12);
    const json_value *events = trace_events(&a);
    CHECK_EQ(count_events(events, "saxpy_test"), 1);
    int n_arrows = 0; /* two ends of one: cudaMalloc launched nothing */
    for (const json_value *e = events->first; e != NULL; e = e->next)
        n_arrows += strcmp(json_member(e, "ph")->string, "s") == 0 ||
                    strcmp(json_member(e, "ph")->string, "f") == 0;
    CHECK_EQ(n_arrows, 2);
    double waiting[3] = {-1, -1, -1}; /* from the call to the beginning of the kernel, one */
    int n_points = 0;
    for (const json_value *e = events->first; e != NULL; e = e->next)
        if (strcmp(json_member(e, "name")->string, "GPU queue") == 0 && n_points < 3)
            waiting[n_points++] = json_member(json_member(e, "args"), "waiting")->number;
    CHECK_EQ(n_points, 2);
    CHECK(waiting[0] == 1 && waiting[1] == 0);
    arena_fini(&a);
    CHECK_EQ(test_command(NULL, "ls %s/records-*", run_path("hstu-profile")), 2);
}

/* Its failure is ours, after the tables. */
TEST(profile_of_a_program_that_fails) {
    char *text = said(1, "profile -- sh -c 'exit 3'");
    CHECK_CONTAINS(text, "No records of a GPU: no process of the program used CUDA's driver");
    CHECK_CONTAINS(text, "sh ended with exit code 3\n");
    free(text);
    text = said(1, "profile -- sh -c 'kill -TERM $$'");
    CHECK_CONTAINS(text, "sh was ended by signal 15");
    free(text);
}

/* As CUDA does it: the library is loaded and called; without a GPU it says why it records nothing,
 * and the program goes on. */
TEST(profile_library_says_why_it_records_nothing) {
    device_driver driver;
    device_driver_ask(&driver);
    if (driver.reason[0] == '\0') SKIP_TEST("here is a GPU");
    if (test_command(NULL, "command -v cc") != 0) SKIP_TEST("no C compiler");
    write_text("p.c",
               "#include <dlfcn.h>\n#include <stdlib.h>\n#include <stdio.h>\n"
               "int main(void) { void *l = dlopen(getenv(\"CUDA_INJECTION64_PATH\"), RTLD_NOW);"
               "if (l == NULL) return puts(dlerror()), 9; int (*f)(void);"
               "*(void **)&f = dlsym(l, \"InitializeInjection\"); f(); puts(\"done\");"
               "return 0; }\n");
    CHECK_EQ(test_command(NULL, "cd %s && cc p.c -ldl -o p", test_folder()), 0);
    char *text = said(0, "profile -- ./p");
    CHECK_CONTAINS(text, "done\n");
    CHECK_CONTAINS(text, " (./p): 0 records; ");
    CHECK(strstr(text, "did not exit cleanly") == NULL);
    free(text);
}

/* A program n with these statements after NVTX has loaded the library as it does: the library gets
 * the places of NVTX's functions, and what the program calls then are ranges of the profile. */
static void build_nvtx_program(const char *statements) {
    char text[4096];
    if (test_command(NULL, "command -v cc") != 0) SKIP_TEST("no C compiler");
    snprintf(text, sizeof text,
             "#include <dlfcn.h>\n#include <signal.h>\n#include <stdint.h>\n#include <stdlib.h>\n"
             "#include <unistd.h>\n"
             "typedef void (*any)(void);\n"
             "static any f[17], *core[17];\n"
             "static volatile int n_own;\n"
             "static void own(int s) { n_own += s; }\n"
             "static int find(int m, any ***t, unsigned *n) {"
             "  for (int i = 0; i < 17; i++) core[i] = &f[i];"
             "  *t = core; *n = 17; return m == 1; }\n"
             "static struct { size_t n; int (*find)(int, any ***, unsigned *); }"
             " table = {sizeof table, find};\n"
             "static const void *get(uint32_t id) { return id == 1 ? &table : 0; }\n"
             "int main(int n, char **arg) { int kind = n > 1 ? atoi(arg[1]) : 0;"
             "signal(SIGHUP, own);"
             "void *l = dlopen(getenv(\"NVTX_INJECTION64_PATH\"), RTLD_NOW);"
             "if (l == 0) return 9; int (*g)(const void *(*)(uint32_t));"
             "*(void **)&g = dlsym(l, \"InitializeInjectionNvtx2\");"
             "if (g(get) != 1) return 8; int (*push)(const char *) = (void *)f[9];"
             "int (*pop)(void) = (void *)f[11]; %s }\n",
             statements);
    write_text("n.c", text);
    CHECK_EQ(test_command(NULL, "cd %s && cc n.c -ldl -o n", test_folder()), 0);
}

TEST(profile_shows_nvtx_ranges_of_other_programs) {
    build_nvtx_program(
        "for (int i = 0; i < 3; i++) { push(\"outer\"); push(\"aten::mul, seq = 1\");"
        "  pop(); if (pop() != 0) return 7; }"
        "push(\"left alone\"); pop(); return fork() == 0 ? (push(\"child\"), pop()) : 0;");
    char *text = said(0, "profile --format csv -- ./n 'a\nb'");
    CHECK_CONTAINS(text, " (./n a b): 7 records\n"); /* one line */
    CHECK_CONTAINS(text, "\naten::mul,");
    CHECK_CONTAINS(text, "\nouter,");
    CHECK(strstr(text, "child") == NULL); /* its file is the parent's */
    CHECK_CONTAINS(text, "No records of a GPU: no process of the program used CUDA's driver");
    free(text);
    text = said(0, "profile --format csv --range outer -- ./n");
    CHECK_CONTAINS(text, "\naten::mul,");
    CHECK(strstr(text, "left alone") == NULL);
    free(text);
    arena a;
    arena_init(&a, 1 << 12);
    CHECK_EQ(count_events(trace_events(&a), "outer"), 3);
    arena_fini(&a);
}

/* Its records are complete after a signal that ends it, and nearly after one that nobody can catch;
 * its own handlers stay. */
TEST(profile_of_programs_that_signals_end) {
    static const struct {
        int number;
        const char *says, *records;
    } cases[] = {{SIGTERM, "n was ended by signal 15", "): 1 records\n"},
                 {SIGINT, "n was ended by signal 2", "): 1 records\n"},
                 {SIGKILL, "n was ended by signal 9", "): 1 records; it did not exit cleanly"},
                 {SIGHUP, "n ended with exit code 1\n", "): 2 records\n"}};
    build_nvtx_program("push(\"first\"); pop(); if (kind == SIGKILL) usleep(450000);"
                       "raise(kind); for (int i = 0; i < 500 && n_own == 0; i++) usleep(10000);"
                       "push(\"second\"); pop(); return n_own;");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char command[32];
        snprintf(command, sizeof command, "profile -- ./n %d", cases[i].number);
        char *text = said(1, command);
        CHECK_CONTAINS(text, cases[i].says);
        CHECK_CONTAINS(text, cases[i].records);
        free(text);
    }
}

TEST(profile_of_another_program_is_switched_by_a_signal) {
    build_nvtx_program("static const char *const names[] = {\"one\", \"two\", \"three\"};"
                       "for (int i = 0; i < 3; i++) { push(names[i]); pop();"
                       "  raise(SIGUSR1); usleep(150000); } return n_own;");
    char *text = said(0, "profile --format csv --toggle-by SIGUSR1 -- ./n");
    CHECK_CONTAINS(text, "): 1 records\n");
    CHECK_CONTAINS(text, "\ntwo,");
    free(text);
}

/* Its steps are ranges that NVTX marks: by start and end, or push and pop, with numbers or not. */
TEST(profile_of_another_program_follows_the_schedule) {
    arena a;
    build_nvtx_program(
        "uint64_t (*start)(const char *) = (void *)f[5]; void (*end)(uint64_t) = (void *)f[7];"
        "static const char *const names[] = {\"s0\", \"s1\", \"s2\", \"s3\", \"s4\","
        "  \"s5\", \"s6\"};"
        "for (int i = 0; i < 7; i++) { push(\"between\"); pop();"
        "  uint64_t id = 0; if (kind) id = start(names[i]); else push(names[i]);"
        "  push(\"inner\"); pop(); if (kind) end(id); else pop(); } return 0;");
    arena_init(&a, 1 << 12);
    for (int kind = 0; kind < 2; kind++) {
        char command[128];
        snprintf(command, sizeof command,
                 "profile --step 's*' --wait 1 --warmup 1 --active 1 --repeat 2 -- ./n %d", kind);
        char *text = said(0, command);
        CHECK_CONTAINS(text, "): 11 records\n"); /* seven steps, and two ranges of each kept one */
        CHECK_CONTAINS(text, "2 steps kept of 7\n");
        free(text);
        const json_value *events = events_of(&a, "trace.json");
        CHECK_EQ(count_events(events, "s2"), 1);
        CHECK_EQ(count_events(events, "ProfilerStep#2"), 1);
        CHECK_EQ(count_events(events, "inner"), 1);
        CHECK_EQ(count_events(events, "between"), 0);
        events = events_of(&a, "trace-2.json");
        CHECK_EQ(count_events(events, "s5"), 1);
        CHECK_EQ(count_events(events, "inner"), 1);
    }
    /* Two steps in a row, and what is between them. */
    char *text = said(0, "profile --step 's*' --wait 2 --active 2 --repeat 1 -- ./n");
    CHECK_CONTAINS(text, "2 steps kept of 7\n");
    free(text);
    const json_value *events = trace_events(&a);
    CHECK_EQ(count_events(events, "s2") + count_events(events, "s3"), 2);
    CHECK_EQ(count_events(events, "inner"), 2);
    CHECK_EQ(count_events(events, "between"), 1);
    arena_fini(&a);
    text = said(0, "profile --step s --active 2 -- ./n");
    CHECK_CONTAINS(text, "no NVTX range 's' ended in the program, so nothing was recorded");
    CHECK_CONTAINS(text, "0 steps kept of 0\n");
    free(text);
    build_nvtx_program("for (int i = 0; i < 102; i++) { push(\"s\"); pop(); } return 0;");
    text = said(0, "profile --step s --active 1 --out many -- ./n");
    CHECK_CONTAINS(text, "102 steps kept of 102\n");
    CHECK_CONTAINS(text,
                   "only the first 100 of 102 cycles have a trace; --repeat ends after fewer");
    CHECK(file_exists(run_path("many/trace-100.json")));
    CHECK(!file_exists(run_path("many/trace-101.json")));
    free(text);
}

/* As NVIDIA's files ask for it. */
TEST(profile_of_a_training_by_its_config) {
    size_t n;
    char *text = said(0, "train --gin-config-file n.gin --data data --out run --max-iters 6 "
                         "--set TrainerArgs.profile=True --set TrainerArgs.profile_step_start=3 "
                         "--set TrainerArgs.profile_step_end=5");
    CHECK_CONTAINS(text, "2 steps kept of 6\n");
    CHECK(strstr(text, "no effect") == NULL);
    free(text);
    CHECK_OK(file_read_all(run_path("run/profile/key_averages.csv"), 1 << 20, &text, &n));
    CHECK_CONTAINS(text, "layer forward 0,");
    CHECK_CONTAINS(text, "step,");
    mem_free(text);
    text = said(2, "train --gin-config-file n.gin --data data --out other --max-iters 6 "
                   "--set TrainerArgs.profile=True --set TrainerArgs.profile_step_end=5");
    CHECK_CONTAINS(text, "profile_step_end must be above profile_step_start");
    free(text);
}

/* A place that cannot be written is noticed before the command runs, and a command that fails
 * leaves no empty folder. */
TEST(profile_looks_at_its_folder_first) {
    write_text("file", "x");
    char *text = said(1, "profile --out file " TRAIN);
    CHECK_CONTAINS(text, "file: exists but is not a folder");
    free(text);
    CHECK(!folder_exists(run_path("run")));
    free(said(2, "profile --out new -- train --nothing"));
    CHECK(!folder_exists(run_path("new")));
}

/* Examples can be copied: each is one line. */
TEST(profile_help_has_whole_examples) {
    char *text = said(0, "profile --help");
    CHECK_EQ(count_parts(text, "\n  hstu profile "), 3);
    CHECK_CONTAINS(text, "--tensorboard -- python3 model.py\n");
    free(text);
}

TEST(profile_says_what_is_wrong) {
    static const struct {
        const char *args, *want;
    } wrong[] = {
        {"profile -- nothing", "'nothing' is not a command of hstu"},
        {"profile -- profile -- info data", "'profile' is not a command of hstu"},
        {"profile --wait 3 -- info data", "need --active"},
        {"profile --format xml -- info data", "table, csv or json"},
        {"profile --activities tpu -- info data", "cpu, cuda or cpu,cuda"},
        {"profile --sort-by name -- info data", "self_cpu_time_total"},
        {"profile --toggle-by SIGKILL -- info data", "SIGUSR1 or SIGUSR2"},
        {"profile --active 3 -- sh -c true", "with --step NAME"},
        {"profile --step s -- sh -c true", "--step needs --active"},
        {"profile --step s --active 1 --toggle-by SIGUSR1 -- sh -c true",
         "--toggle-by excludes --wait, --warmup, --active, --repeat and --step"},
        {"profile --toggle-by SIGUSR1 --active 1 -- info data", "--toggle-by excludes "},
        {"profile --toggle-by SIGUSR1 --wait 1 -- info data", "--toggle-by excludes "},
        {"profile --toggle-by SIGUSR1 --step s -- sh -c true", "--toggle-by excludes "},
        {"profile --step s --active 1 -- info data", "--step is for other programs"},
        {"profile -- train --nothing", "train: unknown option '--nothing'"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        char *text = said(2, wrong[i].args);
        CHECK_CONTAINS(text, wrong[i].want);
        free(text);
    }
}
