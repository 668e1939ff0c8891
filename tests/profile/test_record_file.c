/* Records of other programs: written, read, cut short, changed. */
#include "profile/profiler.h" /* first: ops have a parameter of the name span */

#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "oom.h"
#include "profile/record_file.h"
#include "profile/tables.h"
#include "test.h"

static const gpu_facts facts = {.name = "a GPU", .device = 2, .sm = 90, .n_multiprocessors = 132};

/* Two launches of one kernel, a copy, and the GPU. */
static status write_some(record_writer *w) {
    gpu_record gpu = {.kind = GPU_DEVICE, .device = 2, .gpu = &facts};
    TRY(record_writer_add(w, &gpu));
    for (uint32_t i = 1; i <= 2; i++) {
        gpu_record call = {.kind = GPU_CALL,
                           .start_ns = 100 * i,
                           .end_ns = 100 * i + 10,
                           .name = "cudaLaunchKernel_v7000",
                           .correlation = i};
        gpu_record kernel = {.kind = GPU_KERNEL,
                             .start_ns = 1000 * i,
                             .end_ns = 1000 * i + 100 * i,
                             .name = "_Z8add_testPfi",
                             .correlation = i,
                             .device = 2,
                             .stream = 7,
                             .launch = {.grid = {4, 1, 1}, .block = {256, 1, 1}, .registers = 30}};
        TRY(record_writer_add(w, &call));
        TRY(record_writer_add(w, &kernel));
    }
    gpu_record copy = {
        .kind = GPU_COPY_IN, .start_ns = 5000, .end_ns = 5500, .bytes = 4096, .device = 2};
    return record_writer_add(w, &copy);
}

/* The path of the file that this process writes into the test's folder. */
static const char *own_path(void) {
    static char path[4096];
    snprintf(path, sizeof path, "%s/%ld.records", test_folder(), (long)getpid());
    return path;
}

static void write_file(void) {
    record_writer *w;
    CHECK_OK(record_writer_create(&w, test_folder()));
    CHECK_OK(write_some(w));
    CHECK_OK(record_writer_close(w, 3));
}

static status count(void *ctx, const gpu_record *r) {
    int *n = ctx;
    n[r->kind]++;
    if (r->kind == GPU_KERNEL) {
        CHECK_STR(r->name, "add_test");
        CHECK_EQ(r->launch.block[0], 256);
        CHECK_EQ(r->stream, 7);
    }
    if (r->kind == GPU_DEVICE) CHECK_STR(r->gpu->name, "a GPU");
    return OK;
}

TEST(record_file_keeps_what_is_written) {
    int n[GPU_DEVICE + 1] = {0};
    record_summary s;
    write_file();
    CHECK_OK(record_file_read(own_path(), count, n, &s));
    CHECK_EQ(n[GPU_KERNEL], 2);
    CHECK_EQ(n[GPU_CALL], 2);
    CHECK_EQ(n[GPU_COPY_IN], 1);
    CHECK_EQ(n[GPU_DEVICE], 1);
    CHECK_EQ(s.n_records, 5);
    CHECK_EQ(s.n_lost, 3);
    CHECK_EQ(s.pid, getpid());
    CHECK(s.is_whole);
    CHECK_CONTAINS(s.command, "unit");
}

/* A second file of one process does not replace the first. */
TEST(record_file_names_do_not_meet) {
    char path[4096];
    write_file();
    write_file();
    snprintf(path, sizeof path, "%s/%ld-2.records", test_folder(), (long)getpid());
    CHECK(file_exists(path));
}

static status ignore(void *ctx, const gpu_record *r) {
    (void)ctx, (void)r;
    return OK;
}

/* A new file each time: cutting an old one short makes some file systems write it out at once. */
static void write_bytes(const char *path, const char *bytes, size_t n) {
    (void)unlink(path);
    FILE *f = fopen(path, "wb");
    CHECK(f != NULL && fwrite(bytes, 1, n, f) == n && fclose(f) == 0);
}

/* A process that was killed: what is whole counts, and nothing is an error. */
TEST(record_file_may_end_anywhere) {
    char *bytes, path[4096];
    size_t n;
    record_summary s;
    write_file();
    CHECK_OK(file_read_all(own_path(), 1 << 20, &bytes, &n));
    snprintf(path, sizeof path, "%s/cut", test_folder());
    for (size_t cut = 0; cut < n; cut++) {
        write_bytes(path, bytes, cut);
        CHECK_OK(record_file_read(path, ignore, NULL, &s));
        CHECK(!s.is_whole);
        CHECK(s.n_records <= 5);
    }
    CHECK_EQ(s.n_records, 5);
    mem_free(bytes);
}

/* Every byte of the file changed in turn, to three values: it is read or refused, and a sanitizer
 * sees no step too far. */
TEST(record_file_survives_changes) {
    char *bytes, path[4096];
    size_t n;
    int n_refused = 0;
    record_summary s;
    write_file();
    CHECK_OK(file_read_all(own_path(), 1 << 20, &bytes, &n));
    snprintf(path, sizeof path, "%s/changed", test_folder());
    for (size_t i = 0; i < n; i++) {
        char was = bytes[i];
        for (int v = 0; v < 3; v++) {
            bytes[i] = (char)(v == 0 ? 0 : v == 1 ? 0xff : was ^ 1);
            write_bytes(path, bytes, n);
            n_refused += record_file_read(path, ignore, NULL, &s) != OK;
        }
        bytes[i] = was;
    }
    CHECK(n_refused > 100);
    bytes[0] = 'H';
    write_bytes(path, bytes, n);
    CHECK_FAILS(record_file_read(path, ignore, NULL, &s), ERR_FORMAT, "its first line");
    mem_free(bytes);
}

static status write_and_read(void *ctx) {
    record_writer *w;
    record_summary s;
    (void)ctx;
    remove(own_path());
    TRY(record_writer_create(&w, test_folder()));
    status st = write_some(w);
    status closed = record_writer_close(w, 0);
    if (st == OK) st = closed;
    return st == OK ? record_file_read(own_path(), ignore, NULL, &s) : st;
}

TEST(record_file_survives_lack_of_memory) {
    CHECK(oom_at_each_allocation(write_and_read, NULL) >= 4);
}

/* Two processes use the same correlation numbers: each launch keeps its own kernel. */
TEST(profile_load_joins_processes) {
    profile p;
    profile_table t;
    buf text = {0};
    write_file();
    write_file();
    CHECK_OK(profile_load(&p, test_folder(), &(recorder_schedule){0}, &text));
    CHECK(p.has_gpu);
    CHECK_EQ(p.n_gpu_lost, 6);
    CHECK_EQ(p.start_ns, 100);
    CHECK_EQ(p.end_ns, 5500);
    CHECK_STR(p.device, "cuda, a GPU");
    uint32_t top = 0;
    for (size_t i = 0; i < p.recorder.n_spans; i++)
        if (p.recorder.spans[i].correlation > top) top = p.recorder.spans[i].correlation;
    CHECK_EQ(top, 4);
    CHECK_OK(profile_table_make(&t, &p.recorder, REPORT_KERNELS));
    CHECK_EQ(t.n_rows, 1);
    CHECK_EQ(t.rows[0].value[1], 600);
    CHECK_EQ(t.rows[0].value[2], 4);
    profile_table_fini(&t);
    CHECK_CONTAINS(buf_str(&text), "5 records, 3 dropped by CUPTI\n");
    buf_fini(&text);
    profile_fini(&p);
}

/* Pages that moved are copies of their own name; faults are counted. */
TEST(profile_load_sums_unified_memory) {
    profile p;
    profile_table t;
    buf text = {0};
    record_writer *w;
    static const gpu_record records[] = {
        {.kind = GPU_UNIFIED_IN, .start_ns = 100, .end_ns = 300, .bytes = 65536},
        {.kind = GPU_UNIFIED_IN, .start_ns = 400, .end_ns = 500, .bytes = 4096},
        {.kind = GPU_UNIFIED_OUT, .start_ns = 600, .end_ns = 700, .bytes = 1000},
        {.kind = GPU_FAULT, .start_ns = 100, .end_ns = 200, .bytes = 7},
        {.kind = HOST_FAULT, .start_ns = 600, .end_ns = 600, .bytes = 2}};
    CHECK_OK(record_writer_create(&w, test_folder()));
    for (size_t i = 0; i < sizeof records / sizeof records[0]; i++)
        CHECK_OK(record_writer_add(w, &records[i]));
    CHECK_OK(record_writer_close(w, 0));
    CHECK_OK(profile_load(&p, test_folder(), &(recorder_schedule){0}, &text));
    CHECK_EQ(p.unified.in_bytes, 65536 + 4096);
    CHECK_EQ(p.unified.out_bytes, 1000);
    CHECK_EQ(p.unified.gpu_faults, 7);
    CHECK_EQ(p.unified.host_faults, 2);
    CHECK_OK(profile_table_make(&t, &p.recorder, REPORT_COPIES));
    CHECK_EQ(t.n_rows, 2);
    CHECK_STR(t.rows[0].name, "[CUDA Unified Memory memcpy HtoD]");
    CHECK_EQ(t.rows[0].value[1], 300);
    profile_table_fini(&t);
    buf_fini(&text);
    profile_fini(&p);
}

/* Counters are sums over launches of a kernel: percentages by time, a share of them all. */
TEST(profile_load_sums_counters) {
    profile p;
    buf text = {0}, table = {0};
    profile_table t;
    record_writer *w;
    static const gpu_record records[] = {
        {.kind = GPU_COUNTERS,
         .end_ns = 1000,
         .name = "_Z1aPf",
         .bytes = 2000000,
         .mark = 5000000,
         .occupancy = 50,
         .tensor = 0},
        {.kind = GPU_COUNTERS,
         .end_ns = 3000,
         .name = "_Z1aPf",
         .bytes = 1000000,
         .mark = 1000000,
         .occupancy = 90,
         .tensor = 40},
        {.kind = GPU_COUNTERS,
         .end_ns = 12000,
         .name = "_Z1bPf",
         .bytes = 24000,
         .mark = 0,
         .occupancy = 100,
         .tensor = 0},
        {.kind = GPU_COUNTERS, .name = "[CUDA graph, not counted]"}};
    CHECK_OK(record_writer_create(&w, test_folder()));
    for (size_t i = 0; i < sizeof records / sizeof records[0]; i++)
        CHECK_OK(record_writer_add(w, &records[i]));
    CHECK_OK(record_writer_close(w, 0));
    CHECK_OK(profile_load(&p, test_folder(), &(recorder_schedule){0}, &text));
    CHECK(p.has_gpu);
    CHECK_EQ(p.recorder.n_spans, 0);
    CHECK_OK(profile_table_make(&t, &p.recorder, REPORT_COUNTERS));
    CHECK_OK(profile_table_text(&t, -1, &table));
    CHECK_CONTAINS(buf_str(&table), " ** CUDA Kernel Counters (cuda_kern_counters):\n");
    CHECK_CONTAINS(buf_str(&table), " Achieved Occupancy (%)  Tensor Cores (%)  DRAM (MB)  "
                                    "DRAM (GB/s)  L2 (MB)  Name\n");
    CHECK_CONTAINS(buf_str(&table), " 12,000          1  12,000.0                   100.0          "
                                    "     0.0      0.024         2.00    0.000  b\n");
    CHECK_CONTAINS(buf_str(&table), "  4,000          2   2,000.0                    80.0          "
                                    "    30.0      3.000       750.00    6.000  a\n");
    CHECK_CONTAINS(buf_str(&table), "  [CUDA graph, not counted]\n");
    profile_table_fini(&t);
    buf_fini(&table);
    buf_fini(&text);
    profile_fini(&p);
}

/* Each process follows the schedule by its own steps, whenever those were. */
TEST(profile_load_cuts_each_process_by_its_steps) {
    profile p;
    buf text = {0};
    const recorder_schedule schedule = {.wait = 1, .active = 1};
    for (uint64_t process = 0; process < 2; process++) {
        record_writer *w;
        CHECK_OK(record_writer_create(&w, test_folder()));
        for (uint64_t i = 0; i < 4; i++) {
            uint64_t at = 1000 + 500 * process + 100 * i;
            gpu_record range = {
                .kind = HOST_RANGE, .name = "x", .start_ns = at + 10, .end_ns = at + 20};
            gpu_record step = {
                .kind = HOST_STEP, .start_ns = at, .end_ns = at + 50, .mark = i, .stream = i % 2};
            if (i % 2 == 1) CHECK_OK(record_writer_add(w, &range));
            CHECK_OK(record_writer_add(w, &step));
        }
        CHECK_OK(record_writer_close(w, 0));
    }
    CHECK_OK(profile_load(&p, test_folder(), &schedule, &text));
    CHECK_EQ(p.recorder.step, 8);
    CHECK_EQ(p.recorder.n_active, 4);
    CHECK_EQ(profile_recorded_ns(&p), 4 * 50);
    CHECK_EQ(p.recorder.n_spans, 4);
    for (size_t i = 0; i < 4; i++)
        CHECK_EQ(p.recorder.spans[i].cycle, (p.recorder.spans[i].start_ns - 1000) % 500 > 200);
    buf_fini(&text);
    profile_fini(&p);
}

TEST(profile_load_of_nothing_says_why) {
    profile p;
    buf text = {0};
    CHECK_OK(profile_load(&p, test_folder(), &(recorder_schedule){0}, &text));
    CHECK(!p.has_gpu);
    CHECK_CONTAINS(p.gpu_reason, "no process of the program used CUDA's driver");
    buf_fini(&text);
    profile_fini(&p);
}
