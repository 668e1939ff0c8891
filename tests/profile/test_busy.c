#include "profile/busy.h"

#include "oom.h"
#include "ops/device.h"
#include "profile/kernel_name.h"
#include "test.h"

static uint64_t union_ns(interval *all, size_t n) {
    return interval_join(all, &n);
}

#define UNION(...)                                                                                 \
    union_ns((interval[]){__VA_ARGS__}, sizeof((interval[]){__VA_ARGS__}) / sizeof(interval))

TEST(busy_union_counts_time_once) {
    CHECK_EQ(union_ns(NULL, 0), 0);
    CHECK_EQ(UNION({10, 30}), 20);
    CHECK_EQ(UNION({10, 10}), 0);
    CHECK_EQ(UNION({10, 20}, {30, 35}), 15);
    CHECK_EQ(UNION({30, 35}, {10, 20}), 15);                      /* in any order */
    CHECK_EQ(UNION({10, 20}, {20, 30}), 20);                      /* touching */
    CHECK_EQ(UNION({10, 20}, {15, 30}), 20);                      /* overlapping */
    CHECK_EQ(UNION({10, 100}, {20, 30}, {40, 50}, {90, 95}), 90); /* one inside the other */
    CHECK_EQ(UNION({10, 20}, {10, 20}, {10, 15}), 10);
    CHECK_EQ(UNION({10, 20}, {12, 14}, {18, 25}, {40, 41}, {24, 30}), 21);
    /* Device clocks count nanoseconds of years. */
    uint64_t now = UINT64_C(1790000000000000000);
    CHECK_EQ(UNION({now + 5, now + 9}, {now, now + 6}), 9);
}

/* Against marks on a line, for all sorts of overlaps. */
TEST(busy_union_is_that_of_a_drawn_line) {
    uint32_t seed = 1;
    for (int round = 0; round < 200; round++) {
        interval all[24];
        bool mark[128] = {false};
        int n = round % 24 + 1, n_marked = 0;
        for (int i = 0; i < n; i++) {
            seed = seed * 1664525u + 1013904223u;
            all[i].start_ns = seed >> 25;
            all[i].end_ns = all[i].start_ns + (seed >> 8) % 20;
            if (all[i].end_ns > 128) all[i].end_ns = 128;
            for (uint64_t t = all[i].start_ns; t < all[i].end_ns; t++)
                mark[t] = true;
        }
        for (int t = 0; t < 128; t++)
            n_marked += mark[t];
        CHECK_EQ(union_ns(all, (size_t)n), n_marked);
    }
}

/* CUPTI also tells of calls, of unified memory and, at the end, which GPUs there are. */
TEST(busy_passes_over_what_takes_no_time_of_a_device) {
    busy_log log = {0};
    busy_report r;
    gpu_facts facts = {.device = 0};
    for (int kind = GPU_KERNEL; kind <= GPU_DEVICE; kind++) {
        gpu_record g = {.kind = (gpu_record_kind)kind, .start_ns = 10, .end_ns = 30};
        if (kind == GPU_KERNEL) g.name = "gemm";
        if (kind == GPU_DEVICE) g.gpu = &facts;
        CHECK_OK(busy_log_add(&log, &g));
    }
    busy_log_report(&log, &r);
    CHECK(r.is_known);
    CHECK_EQ(r.n_kernels, 1);
    CHECK_EQ(r.n_lost, 0);
    busy_log_fini(&log);
}

static status add(busy_log *log, gpu_record_kind kind, const char *name, uint64_t start_ns,
                  uint64_t end_ns) {
    return busy_log_add(log, &(gpu_record){kind, start_ns, end_ns, .name = name});
}

static status add_some(busy_log *log) {
    const char *gate = "_Z11gate_kernelI6__halfLi8EEvPT_";
    TRY(add(log, GPU_COPY_IN, NULL, 1000, 1100)); /* alone for half of it */
    TRY(add(log, GPU_KERNEL, gate, 1050, 1200));
    TRY(add(log, GPU_KERNEL, "gemm", 1150, 1300)); /* on another stream */
    TRY(add(log, GPU_MEMSET, NULL, 1400, 1410));
    TRY(add(log, GPU_KERNEL, gate, 1500, 1700));
    TRY(add(log, GPU_COPY_ON_DEVICE, NULL, 1700, 1720));
    TRY(add(log, GPU_COPY_OUT, NULL, 1710, 1760));
    return add(log, GPU_KERNEL, gate, 0, 0); /* no times */
}

TEST(busy_log_sums_up) {
    busy_log log = {0};
    busy_report r;
    CHECK_OK(add_some(&log));
    busy_log_report(&log, &r);
    CHECK(r.is_known && r.reason[0] == '\0');
    CHECK_EQ(r.kernel_busy_ns, 250 + 10 + 220);
    CHECK_EQ(r.n_kernels, 4);
    CHECK_EQ(r.n_lost, 1);
    CHECK_EQ(r.n_top, 6);
    CHECK_STR(r.top[0].name, "gate_kernel<__half, 8>");
    CHECK(r.top[0].ns == 350 && r.top[0].n_calls == 2);
    CHECK_STR(r.top[1].name, "gemm");
    CHECK_STR(r.top[2].name, "(copy in)");
    CHECK_STR(r.top[5].name, "(memset)");
    busy_log_fini(&log);
    busy_log_fini(&log);
}

/* Names that differ only where they are cut are two; the table keeps the longest times. */
TEST(busy_log_cuts_the_table) {
    busy_log log = {0};
    busy_report r;
    char name[200];
    for (int i = 0; i < 100; i++) {
        snprintf(name, sizeof name, "%0100d_%d", 0, i);
        CHECK_OK(add(&log, GPU_KERNEL, name, 1000, 1001 + (uint64_t)(i * 37 % 100)));
    }
    busy_log_report(&log, &r);
    CHECK_EQ(r.n_top, BUSY_MAX_TOP);
    for (int i = 0; i < r.n_top; i++) {
        CHECK_EQ(r.top[i].ns, 100 - i);
        CHECK_EQ(strlen(r.top[i].name), BUSY_NAME_BYTES - 1);
    }
    busy_log_fini(&log);
}

TEST(busy_log_of_nothing_is_not_known) {
    busy_log log = {0};
    busy_report r;
    busy_log_report(&log, &r);
    CHECK(!r.is_known);
    CHECK_CONTAINS(r.reason, "no activity");
    busy_log_fini(&log);
}

static status log_and_report(void *ctx) {
    busy_log log = {0};
    busy_report r;
    (void)ctx;
    status st = add_some(&log);
    if (st == OK) busy_log_report(&log, &r);
    busy_log_fini(&log);
    return st;
}

TEST(busy_log_survives_lack_of_memory) {
    CHECK(oom_at_each_allocation(log_and_report, NULL) >= 2);
}

static const char *shown(const char *mangled) {
    static char name[BUSY_NAME_BYTES];
    kernel_name(mangled, name, sizeof name);
    return name;
}

TEST(busy_names_are_readable) {
    CHECK_STR(shown("_Z19rng_draw_any_kernelPfi"), "rng_draw_any_kernel");
    CHECK_STR(shown("_Z22rank_finish_any_kernelILb1EEv8rank_jobPf"),
              "rank_finish_any_kernel<true>");
    CHECK_STR(shown("_Z20attn_fwd_sm80_kernelI13__nv_bfloat16Li64ELb0EEvPT_"),
              "attn_fwd_sm80_kernel<__nv_bfloat16, 64, false>");
    CHECK_STR(shown("_Z19attn_fwd_f32_kernelIfLin3ELb0EEvPT_"),
              "attn_fwd_f32_kernel<float, -3, false>");
    CHECK_STR(shown("_Z20attn_fwd_sm90_kernelI6__half9fwd_shapeI10large_d128EEv9attn_args"),
              "attn_fwd_sm90_kernel<__half, fwd_shape<large_d128>>");
    CHECK_STR(shown("_ZN3foo4gateIL3epi1E6__halfEEvPT0_"), "gate<1, __half>");
    CHECK_STR(shown("_Z9with_tileI4tileILi8EEEvPf"), "with_tile<tile<8>>");
    CHECK_STR(shown("_ZN34_GLOBAL__N__81c2f8b8_4_k_cu__Z1fPf11anon_kernelEPf"), "anon_kernel");
    CHECK_STR(shown("_Z1aImE"), "a<unsigned long>");
}

/* Names that it cannot parse are returned unchanged, also when they end in the middle. */
TEST(busy_names_as_given) {
    const char *whole = "_ZN3foo4gateIL3epi1E6__halfLb1ELin3E4tileILi8EEEEvPT0_";
    CHECK_STR(shown("sm90_xmma_gemm_bf16bf16"), "sm90_xmma_gemm_bf16bf16");
    CHECK_STR(shown(""), "");
    CHECK_STR(shown("_Z"), "_Z");
    CHECK_STR(shown("_Z99999999999999999999x"), "_Z99999999999999999999x");
    /* For this one a demangler is needed, which not every machine has. */
    const char *pointer = shown("_Z4gateIPfE");
    CHECK(strcmp(pointer, "_Z4gateIPfE") == 0 || strcmp(pointer, "gate<float*>") == 0);
    for (size_t n = 0; n <= strlen(whole); n++) {
        char *part = strndup(whole, n); /* on the heap: a sanitizer sees a step too far */
        CHECK(strlen(shown(part)) < BUSY_NAME_BYTES);
        free(part);
    }
    char nested[4096] = "_Z1aI";
    for (int i = 0; i < 1000; i++)
        strcat(nested, "1bI");
    CHECK_EQ(strlen(shown(nested)), BUSY_NAME_BYTES - 1);
}

/* Without a GPU the report says why, at every call. */
TEST(busy_says_why_it_does_not_know) {
    device_driver driver;
    busy_report r;
    device_driver_ask(&driver);
    CHECK_OK(busy_end(&r));
    CHECK(!r.is_known && r.reason[0] != '\0');
    if (driver.reason[0] == '\0') SKIP_TEST("here is a GPU");
    for (int i = 0; i < 2; i++) {
        memset(&r, 1, sizeof r);
        CHECK_OK(busy_begin());
        CHECK_OK(busy_begin());
        CHECK_OK(busy_end(&r));
        CHECK(!r.is_known && r.kernel_busy_ns == 0 && r.n_top == 0);
        CHECK(strlen(r.reason) > 10 && strlen(r.reason) < sizeof r.reason);
    }
}

static status begin_and_end(void *ctx) {
    TRY(busy_begin());
    return busy_end(ctx);
}

/* Not with a GPU: CUPTI may keep a buffer longer than the allocator of this test lasts. */
TEST(busy_survives_lack_of_memory) {
    device_driver driver;
    busy_report r;
    device_driver_ask(&driver);
    if (driver.reason[0] == '\0') SKIP_TEST("here is a GPU");
    oom_at_each_allocation(begin_and_end, &r);
}
