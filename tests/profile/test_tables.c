#include "profile/tables.h"

#include "format/json.h"
#include "test.h"

static void add(recorder *r, span_kind kind, const char *name, uint64_t start, uint64_t end,
                uint64_t bytes, int64_t by) {
    recorder_add(
        r,
        &(span){.kind = (uint8_t)kind, .start_ns = start, .end_ns = end, .bytes = bytes, .op = by},
        name, NULL);
}

/* A step with two ops, the second of which launched kernels and a copy. */
static void make(recorder *r) {
    recorder_init(r, &(recorder_schedule){0});
    add(r, SPAN_RANGE, "step", 1000, 11000, 0, RECORDER_NO_OP);
    add(r, SPAN_OP, "linear_fwd", 2000, 5000, 0, 0);
    add(r, SPAN_OP, "attn_fwd", 5000, 6000, 0, 0);
    r->spans[0].child_ns = 4000;
    add(r, SPAN_KERNEL, "attn_fwd_kernel", 6000, 6100, 0, 2);
    add(r, SPAN_KERNEL, "attn_fwd_kernel", 7000, 7300, 0, 2);
    add(r, SPAN_KERNEL, "attn_fwd_kernel", 8000, 8200, 0, 2);
    add(r, SPAN_KERNEL, "other \"kernel\"", 9000, 9900, 0, RECORDER_NO_OP);
    add(r, SPAN_COPY, "[CUDA memcpy Host-to-Device]", 9900, 10000, 3000000, 1);
    add(r, SPAN_CALL, "cudaLaunchKernel", 5100, 5200, 0, RECORDER_NO_OP);
    add(r, SPAN_RANGE, "open", 11000, 0, 0, RECORDER_NO_OP); /* never ended */
}

static void check_text(const recorder *r, report_kind kind, const char *want) {
    profile_table t;
    buf out = {0};
    CHECK_OK(profile_table_make(&t, r, kind));
    CHECK_OK(profile_table_text(&t, -1, &out));
    CHECK_STR(buf_str(&out), want);
    profile_table_fini(&t);
    buf_fini(&out);
}

TEST(tables_look_like_those_of_nsys) {
    recorder r;
    make(&r);
    check_text(
        &r, REPORT_KERNELS,
        " ** CUDA GPU Kernel Summary (cuda_gpu_kern_sum):\n\n"
        " Time (%)  Total Time (ns)  Instances  Avg (ns)  Med (ns)  Min (ns)  Max (ns)  "
        "StdDev (ns)  Name\n"
        " --------  ---------------  ---------  --------  --------  --------  --------  "
        "-----------  ---------------\n"
        "     60.0              900          1     900.0     900.0       900       900       "
        "   0.0  other \"kernel\"\n"
        "     40.0              600          3     200.0     200.0       100       300       "
        " 100.0  attn_fwd_kernel\n");
    check_text(&r, REPORT_BYTES,
               " ** CUDA GPU MemOps Summary (by Size) (cuda_gpu_mem_size_sum):\n\n"
               " Total (MB)  Count  Avg (MB)  Med (MB)  Min (MB)  Max (MB)  StdDev (MB)  Operation"
               "\n"
               " ----------  -----  --------  --------  --------  --------  -----------  "
               "----------------------------\n"
               "      3.000      1     3.000     3.000     3.000     3.000        0.000  [CUDA "
               "memcpy Host-to-Device]\n");
    recorder_fini(&r);
}

TEST(tables_of_ops_have_self_and_total_times) {
    recorder r;
    profile_table t;
    buf out = {0};
    make(&r);
    CHECK_OK(profile_table_make(&t, &r, REPORT_OPS));
    CHECK_EQ(t.n_rows, 3);
    CHECK_STR(t.rows[0].name, "attn_fwd"); /* most time on the GPU */
    CHECK_OK(profile_table_sort(&t, "self_cpu_time_total"));
    CHECK_OK(profile_table_csv(&t, -1, &out));
    CHECK_STR(
        buf_str(&out),
        "Name,Self CPU %,Self CPU (ns),CPU total %,CPU total (ns),CPU time avg (ns),Self CUDA "
        "(ns),Self CUDA %,CUDA total (ns),CUDA time avg (ns),# of Calls\n"
        "step,60,6000,100,10000,10000,0,0,700,700,1\n"
        "linear_fwd,30,3000,30,3000,3000,100,6.25,100,100,1\n"
        "attn_fwd,10,1000,10,1000,1000,600,37.5,600,600,1\n");
    CHECK_FAILS(profile_table_sort(&t, "time"), ERR_USAGE, "self_cuda_time_total");
    buf_clear(&out);
    CHECK_OK(profile_table_text(&t, 1, &out));
    CHECK_CONTAINS(buf_str(&out), "Self CPU time total: 10.000us\nSelf CUDA time total: 1.600us\n");
    CHECK(strstr(buf_str(&out), "linear_fwd") == NULL); /* the limit */
    profile_table_fini(&t);
    buf_fini(&out);
    recorder_fini(&r);
}

/* Numbers as the tools that they are compared with print them. */
TEST(tables_print_numbers_of_any_size) {
    static const struct {
        const char *name;
        uint64_t ns;
        int64_t memory;
        const char *time, *bytes;
    } cases[] = {
        {"aten::a_name_of_fifty_five_characters_is_still_whole_55", 999, 0, "0.999us", "0 B"},
        {"aten::a_name_of_fifty_six_characters_is_cut_at_its_end56", 1000000, 1023, "1.000ms",
         "1023 B"},
        {"op c", 999999000, -1024, "999.999ms", "-1.00 KB"},
        {"op d", 1000000000, -1023, "1.000s", "-1023 B"},
        {"op e", 12345678000000, 5 << 20, "12345.678s", "5.00 MB"},
        {"op f", 1, (int64_t)5 << 40, "0.001us", "5120.00 GB"}};
    recorder r;
    profile_table t;
    buf out = {0};
    char want[128];
    recorder_init(&r, &(recorder_schedule){0});
    r.has_memory = true;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        add(&r, SPAN_OP, cases[i].name, 1, 1 + cases[i].ns, 0, RECORDER_NO_OP);
        r.spans[i].memory = cases[i].memory;
    }
    CHECK_OK(profile_table_make(&t, &r, REPORT_OPS));
    CHECK_OK(profile_table_text(&t, -1, &out));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(want, sizeof want, "%14s%14s%14s\n", cases[i].bytes, cases[i].bytes, "1");
        const char *row = strstr(buf_str(&out), i == 1 ? "cut_at_its_e...  " : cases[i].name);
        CHECK(row != NULL);
        CHECK_CONTAINS(row, want);
        CHECK(strstr(row, want) < strchr(row, '\n'));
        snprintf(want, sizeof want, "%14s", cases[i].time);
        CHECK_CONTAINS(row, want);
        CHECK(strstr(row, want) < strchr(row, '\n'));
    }
    profile_table_fini(&t);
    recorder_fini(&r);
    recorder_init(&r, &(recorder_schedule){0});
    for (int i = 0; i < 10; i++)
        add(&r, SPAN_KERNEL, "k", 1, 1 + 1234567 + (i == 9 ? 7 : 0), 0, RECORDER_NO_OP);
    add(&r, SPAN_KERNEL, "l", 1, 1 + 999, 0, RECORDER_NO_OP);
    buf_clear(&out);
    CHECK_OK(profile_table_make(&t, &r, REPORT_KERNELS));
    CHECK_OK(profile_table_text(&t, -1, &out));
    CHECK_CONTAINS(buf_str(&out), "12,345,677         10  1,234,567.7  1,234,567.0  1,234,567  "
                                  "1,234,574          2.2  k\n");
    CHECK_CONTAINS(buf_str(&out), "999          1        999.0        999.0        999");
    profile_table_fini(&t);
    recorder_fini(&r);
    buf_fini(&out);
}

TEST(tables_without_a_gpu_have_no_columns_for_it) {
    recorder r;
    recorder_init(&r, &(recorder_schedule){0});
    add(&r, SPAN_OP, "linear_fwd", 0, 1500000, 0, RECORDER_NO_OP);
    check_text(
        &r, REPORT_OPS,
        "----------  ------------  ------------  ------------  ------------  ------------  "
        "------------\n"
        "      Name    Self CPU %      Self CPU   CPU total %     CPU total  CPU time avg    "
        "# of Calls\n"
        "----------  ------------  ------------  ------------  ------------  ------------  "
        "------------\n"
        "linear_fwd       100.00%       1.500ms       100.00%       1.500ms       1.500ms    "
        "         1\n"
        "----------  ------------  ------------  ------------  ------------  ------------  "
        "------------\n"
        "Self CPU time total: 1.500ms\n");
    recorder_fini(&r);
}

TEST(tables_as_json_are_one_line) {
    recorder r;
    profile_table t;
    buf out = {0};
    arena a;
    const json_value *v;
    make(&r);
    arena_init(&a, 4096);
    CHECK_OK(profile_table_make(&t, &r, REPORT_KERNELS));
    CHECK_OK(profile_table_json(&t, -1, &out));
    CHECK_EQ(strchr(buf_str(&out), '\n') - buf_str(&out), (long)out.n_bytes - 1);
    CHECK_OK(json_parse(&a, "table", buf_str(&out), out.n_bytes, &v));
    const json_value *rows = json_member(v, "rows");
    CHECK_EQ(rows->n_children, 2);
    CHECK_STR(json_member(rows->first, "Name")->string, "other \"kernel\"");
    CHECK_EQ(json_member(rows->first, "Total Time (ns)")->integer, 900);
    arena_fini(&a);
    profile_table_fini(&t);
    buf_fini(&out);
    recorder_fini(&r);
}
