/* Bars of a trace nest in their rows, and the file has what viewers read. */
#include "profile/trace.h"

#include <stdlib.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "test.h"

static uint64_t row_of(const void *ctx, const span *s) {
    (void)ctx;
    return s->lane;
}

static void add(recorder *r, span_kind kind, int lane, uint64_t start, uint64_t end, int64_t op) {
    span s = {.kind = (uint8_t)kind, .lane = (uint16_t)lane, .start_ns = start, .end_ns = end};
    s.op = op;
    recorder_add(r, &s, "x", NULL);
}

TEST(trace_rows_of_calls_and_kernels) {
    recorder r;
    const recorder_schedule all = {0};
    row_place *at;
    recorder_init(&r, &all);
    add(&r, SPAN_OP, 0, 1000, 9000, RECORDER_NO_OP);      /* 0 */
    add(&r, SPAN_CALL, 0, 990, 2000, 0);                  /* 1: begins a little before its op */
    add(&r, SPAN_CALL, 0, 8000, 9100, 0);                 /* 2: ends a little after it */
    add(&r, SPAN_CALL, 0, 8990, 9300, RECORDER_NO_OP);    /* 3: its op is not known */
    add(&r, SPAN_CALL, 0, 5000, 900000, RECORDER_NO_OP);  /* 4: of another thread */
    add(&r, SPAN_KERNEL, 7, 1000, 3000, RECORDER_NO_OP);  /* 5 */
    add(&r, SPAN_KERNEL, 7, 2900, 5000, RECORDER_NO_OP);  /* 6: begins before the last one ends */
    add(&r, SPAN_KERNEL, 7, 5000, 6000, RECORDER_NO_OP);  /* 7 */
    add(&r, SPAN_KERNEL, 7, 2950, 70000, RECORDER_NO_OP); /* 8: so does this one */
    CHECK_OK(rows_arrange(&r, row_of, NULL, &at));
    CHECK_EQ(at[0].start_ns, 1000);
    CHECK_EQ(at[0].end_ns, 9000);
    CHECK_EQ(at[1].start_ns, 1000);
    CHECK_EQ(at[1].end_ns, 2000);
    CHECK_EQ(at[2].end_ns, 9000);
    CHECK_EQ(at[3].end_ns, 9000);
    for (int i = 0; i < 4; i++)
        CHECK_EQ(at[i].beside, 0);
    CHECK_EQ(at[4].beside, 1);
    CHECK_EQ(at[4].end_ns, 900000);
    CHECK_EQ(at[5].beside, 0);
    CHECK_EQ(at[6].beside, 1);
    CHECK_EQ(at[6].end_ns, 5000);
    CHECK_EQ(at[7].beside, 0);
    CHECK_EQ(at[8].beside, 2);
    mem_free(at);
    recorder_fini(&r);
}

/* Whatever there is, in no row does a bar begin inside another and end after it. */
TEST(trace_rows_always_nest) {
    recorder r;
    const recorder_schedule all = {0};
    row_place *at;
    recorder_init(&r, &all);
    uint64_t state = 3;
    for (int i = 0; i < 400; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        uint64_t start = (state >> 33) % 100000, length = (state >> 20) % 9000;
        add(&r, i % 3 == 0 ? SPAN_CALL : SPAN_KERNEL, i % 2, start + 1, start + 1 + length,
            RECORDER_NO_OP);
    }
    CHECK_OK(rows_arrange(&r, row_of, NULL, &at));
    for (size_t i = 0; i < r.n_spans; i++)
        for (size_t k = 0; k < r.n_spans; k++) {
            CHECK(at[i].end_ns >= at[i].start_ns && at[i].beside <= ROWS_MAX_BESIDE);
            if (r.spans[i].lane != r.spans[k].lane || at[i].beside != at[k].beside) continue;
            bool crosses = at[i].start_ns < at[k].start_ns && at[k].start_ns < at[i].end_ns &&
                           at[i].end_ns < at[k].end_ns;
            CHECK(!crosses);
        }
    mem_free(at);
    recorder_fini(&r);
}

/* An op that launches a kernel on the second GPU, a copy that nobody asked for, two that overlap.
 */
static void record(recorder *r) {
    const gpu_facts h100 = {.name = "H100",
                            .device = 1,
                            .sm = 90,
                            .n_multiprocessors = 132,
                            .max_warps = 64,
                            .max_blocks = 32,
                            .max_registers = 65536,
                            .max_shared = 233472,
                            .memory_bytes = 85000000000};
    const span_launch l = {.grid = {264, 2, 3},
                           .block = {256, 1, 1},
                           .registers = 64,
                           .static_shared = 1000,
                           .dynamic_shared = 24,
                           .local = 16};
    recorder_init(r, &(recorder_schedule){0});
    recorder_add_gpu(r, &h100);
    span s = {.kind = SPAN_OP, .op = RECORDER_NO_OP, .start_ns = 3000, .end_ns = 9000};
    recorder_add(r, &s, "a \"b\"", NULL);
    s = (span){.kind = SPAN_CALL, .lane = 4242, .op = 0, .start_ns = 3001, .end_ns = 3500};
    s.correlation = 7;
    recorder_add(r, &s, "launch", NULL);
    s.correlation = 8; /* of nothing that ran */
    s.start_ns = s.end_ns = 4000;
    recorder_add(r, &s, "malloc", NULL);
    s = (span){.kind = SPAN_KERNEL, .lane = 14, .device = 1, .start_ns = 5000, .end_ns = 7250};
    s.correlation = 7;
    recorder_add(r, &s, "kernel", &l);
    s = (span){.kind = SPAN_COPY, .lane = 14, .op = RECORDER_NO_OP, .start_ns = 1, .end_ns = 2500};
    s.bytes = 4096; /* from before the profile began, on the first GPU */
    recorder_add(r, &s, "copy", NULL);
    s = (span){
        .kind = SPAN_SET, .lane = 14, .op = RECORDER_NO_OP, .start_ns = 2100, .end_ns = 2600};
    recorder_add(r, &s, "set", NULL);
    s.end_ns = 0;
    recorder_add(r, &s, "open", NULL);
}

/* The file, with ' for ", whatever process wrote it. */
static void check_trace(const profile *p, const char *labels) {
    static const char events[] =
        "{'ph':'M','name':'process_name','pid':1,'tid':0,'args':{'name':'GPU 1'}},\n"
        "{'ph':'M','name':'process_name','pid':0,'tid':0,'args':{'name':'GPU 0'}},\n"
        "{'ph':'X','cat':'cpu_op','name':'a \\'b\\'','pid':1000000,'tid':0,'ts':1,'dur':6,"
        "'args':{'External id':0}},\n"
        "{'ph':'X','cat':'cuda_runtime','name':'launch','pid':1000000,'tid':%d,'ts':1.001,"
        "'dur':0.499,'args':{'correlation':7,'External id':0}},\n"
        "{'ph':'s','id':7,'pid':1000000,'tid':%d,'ts':1.001,'cat':'ac2g','name':'ac2g'},\n"
        "{'ph':'X','cat':'cuda_runtime','name':'malloc','pid':1000000,'tid':%d,'ts':2,'dur':0,"
        "'args':{'correlation':8,'External id':0}},\n"
        "{'ph':'X','cat':'kernel','name':'kernel','pid':1,'tid':14,'ts':3,'dur':2.25,'args':"
        "{'correlation':7,'device':1,'stream':14,'External id':0,'grid':[264,2,3],"
        "'block':[256,1,1],'registers per thread':64,'shared memory':1024,"
        "'local memory per thread':16,'blocks per SM':12,'warps per SM':96,"
        "'est. achieved occupancy %%':50,'theoretical occupancy %%':50,'limited "
        "by':'registers'}},\n"
        "{'ph':'f','bp':'e','id':7,'pid':1,'tid':14,'ts':3,'cat':'ac2g','name':'ac2g'},\n"
        "{'ph':'X','cat':'gpu_memcpy','name':'copy','pid':0,'tid':14,'ts':0,'dur':0.5,'args':"
        "{'device':0,'stream':14,'bytes':4096}},\n"
        "{'ph':'X','cat':'gpu_memset','name':'set','pid':0,'tid':100014,'ts':0.1,'dur':0.5,'args':"
        "{'device':0,'stream':14}},\n"
        "{'ph':'C','name':'memory','pid':1000000,'ts':0.5,'args':{'bytes':4096}},\n"
        "{'ph':'C','name':'memory','pid':1000000,'ts':7.999,'args':{'bytes':0}},\n"
        "{'ph':'C','name':'GPU queue','pid':1000000,'ts':1.001,'args':{'waiting':1}},\n"
        "{'ph':'C','name':'GPU queue','pid':1000000,'ts':3,'args':{'waiting':0}}\n"
        "]}\n";
    char *text, path[4096], want[8192];
    size_t n;
    int at = snprintf(want, sizeof want,
                      "{'schemaVersion':1,'displayTimeUnit':'ms','device':'an \\'H100\\'',"
                      "'deviceProperties':[{'id':1,'name':'H100','totalGlobalMem':85000000000,"
                      "'computeMajor':9,'computeMinor':0,'numSms':132}],'traceEvents':[\n%s",
                      labels);
    int lane = p->n_lanes > 0 ? 4242 : 0; /* our own calls are drawn inside our ops */
    snprintf(want + at, sizeof want - (size_t)at, events, lane, lane, lane);
    snprintf(path, sizeof path, "%s/trace.json", test_folder());
    CHECK_OK(trace_write(p, 0, false, path));
    CHECK_OK(file_read_all(path, 1 << 16, &text, &n));
    for (char *c = text; (c = strchr(c, '"')) != NULL;)
        *c = '\'';
    CHECK_STR(text, want);
    mem_free(text);
}

TEST(trace_file_is_what_viewers_read) {
    profile p = {.start_ns = 2000, .device = "an \"H100\""};
    memory_event events[] = {{2500, 4096}, {9999, 0}};
    profile_lane lanes[] = {{.pid = 77, .thread = 5},
                            {.pid = 78, .thread = 6, .may_overlap = true}};
    char labels[512];
    record(&p.recorder);
    p.memory.events = events;
    p.memory.n_events = 2;
    p.recorder.n_threads = 1;
    snprintf(labels, sizeof labels,
             "{'ph':'M','name':'process_name','pid':1000000,'tid':0,'args':"
             "{'name':'hstu, process %ld'}},\n"
             "{'ph':'M','name':'thread_name','pid':1000000,'tid':0,'args':{'name':'thread 0'}},\n",
             (long)getpid());
    check_trace(&p, labels);
    p.lanes = lanes;
    p.n_lanes = 2;
    p.recorder.n_threads = 0;
    check_trace(&p,
                "{'ph':'M','name':'process_name','pid':1000000,'tid':0,'args':{'name':'host'}},\n"
                "{'ph':'M','name':'thread_name','pid':1000000,'tid':0,'args':"
                "{'name':'process 77, thread 5'}},\n"
                "{'ph':'M','name':'thread_name','pid':1000000,'tid':1,'args':"
                "{'name':'process 78, thread 6, ranges that overlap'}},\n");
    recorder_fini(&p.recorder);
}
