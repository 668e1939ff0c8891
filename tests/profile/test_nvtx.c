/* NVTX's functions as a program calls them, and which range kernels belong to. */
#include "profile/nvtx.h"

#include <pthread.h>
#include <string.h>
#include <wchar.h>

#include "profile/recorder.h"
#include "test.h"

typedef void (*any_function)(void);
enum { N_FUNCTIONS = 17, PUSH = 9, PUSH_WIDE = 10, POP = 11, START = 5, END = 7, PUSH_EVENT = 8 };
enum { DOMAIN_PUSH = 4, DOMAIN_POP = 5, REGISTER = 10, DOMAIN_CREATE = 12 };
static any_function core[N_FUNCTIONS], core2[N_FUNCTIONS];
static any_function *places[2][N_FUNCTIONS];

static int find(int module, any_function ***out, unsigned *n) {
    any_function *from = module == 1 ? core : core2;
    if (module != 1 && module != 5) return 0;
    for (int i = 0; i < N_FUNCTIONS; i++)
        places[module == 5][i] = &from[i];
    *out = places[module == 5];
    *n = N_FUNCTIONS;
    return 1;
}

static struct {
    size_t bytes;
    int (*find)(int, any_function ***, unsigned *);
} table = {sizeof table, find};

static const void *tables(uint32_t number) {
    return number == 1 ? &table : NULL;
}

static const void *no_tables(uint32_t number) {
    (void)number;
    return NULL;
}

static bool is_on;
static struct {
    char name[512];
    gpu_record r;
} got[16];
static int n_got;

static bool ask(void) {
    return is_on;
}

static void add(const gpu_record *r) {
    CHECK(n_got < 16);
    got[n_got].r = *r;
    snprintf(got[n_got++].name, sizeof got[0].name, "%s", r->name);
}

static void attach(void) {
    const nvtx_sink sink = {.is_on = ask, .add = add};
    n_got = 0;
    is_on = true;
    CHECK(nvtx_attach(tables, &sink));
}

#define AS(type, f) (*(type *)&(f))
typedef int (*push_function)(const char *);
typedef int (*wide_function)(const wchar_t *);
typedef int (*pop_function)(void);
typedef uint64_t (*start_function)(const char *);
typedef void (*end_function)(uint64_t);
typedef int (*domain_push_function)(const void *, const void *);
typedef int (*domain_pop_function)(const void *);
typedef const void *(*name_function)(const char *);
typedef const void *(*register_function)(const void *, const char *);

static int push(const char *name) {
    return AS(push_function, core[PUSH])(name);
}

static int pop(void) {
    return AS(pop_function, core[POP])();
}

TEST(nvtx_ranges_nest) {
    attach();
    CHECK_EQ(push("step"), 0);
    CHECK_EQ(AS(wide_function, core[PUSH_WIDE])(L"caf\u00e9"), 1);
    CHECK_EQ(pop(), 1);
    CHECK_EQ(pop(), 0);
    CHECK(pop() < 0); /* one too many */
    CHECK_EQ(n_got, 2);
    CHECK_STR(got[0].name, "caf\xc3\xa9");
    CHECK_STR(got[1].name, "step");
    CHECK_EQ(got[1].r.kind, HOST_RANGE);
    CHECK(got[1].r.start_ns <= got[0].r.start_ns && got[0].r.end_ns <= got[1].r.end_ns);
    CHECK_EQ(got[0].r.thread, got[1].r.thread);
    CHECK_EQ(got[0].r.stream, 0);
    nvtx_forget();
}

static int n_steps_begun, n_steps_ended;

static bool begin_step(const char *name) {
    if (strcmp(name, "step") != 0) return false;
    n_steps_begun++;
    is_on = true; /* as a schedule does it */
    return true;
}

static void end_step(uint64_t start_ns, uint64_t end_ns) {
    CHECK(start_ns > 0 && end_ns >= start_ns);
    n_steps_ended++;
    is_on = n_steps_ended < 2;
}

/* A step is told when it begins, before the range is kept, and when it ends, after that. */
TEST(nvtx_ranges_are_steps) {
    const nvtx_sink sink = {ask, add, begin_step, end_step};
    attach();
    is_on = false;
    CHECK(nvtx_attach(tables, &sink));
    push("before");
    for (int i = 0; i < 2; i++) {
        push("step");
        push("inner");
        CHECK_EQ(n_steps_begun, i + 1);
        pop();
        CHECK_EQ(n_steps_ended, i);
        pop();
        CHECK_EQ(n_steps_ended, i + 1);
    }
    push("after");
    pop();
    pop(); /* of before */
    CHECK_EQ(n_got, 4);
    CHECK_STR(got[3].name, "step");
    nvtx_forget();
}

/* Much deeper than anybody nests. */
TEST(nvtx_ranges_nest_deeply) {
    attach();
    is_on = false; /* counted, not kept */
    for (int i = 0; i < 5000; i++)
        CHECK_EQ(push("x"), i);
    is_on = true;
    for (int i = 5000; i-- > 0;)
        CHECK_EQ(pop(), i);
    CHECK_EQ(n_got, 0); /* they began while nothing was recorded */
    nvtx_forget();
}

TEST(nvtx_ranges_that_overlap) {
    attach();
    start_function start = AS(start_function, core[START]);
    end_function end = AS(end_function, core[END]);
    uint64_t a = start("a"), b = start("b");
    CHECK(a != b);
    end(a);
    end(b);
    end(b); /* has ended */
    end(12345);
    CHECK_EQ(n_got, 2);
    CHECK_STR(got[0].name, "a");
    CHECK_STR(got[1].name, "b");
    CHECK_EQ(got[0].r.stream, 1);
    for (int i = 0; i < 3000; i++) /* more than there are places: the rest is not kept */
        (void)start("left open");
    CHECK_EQ(n_got, 2);
    nvtx_forget();
}

/* A range of a domain is ended by a pop of that domain, whatever is above it. */
TEST(nvtx_domains_have_ranges_of_their_own) {
    attach();
    const void *domain = AS(name_function, core2[DOMAIN_CREATE])("library");
    const void *name = AS(register_function, core2[REGISTER])(domain, "registered");
    struct {
        uint16_t version, bytes;
        uint32_t rest[5];
        uint64_t payload;
        int32_t kind;
        const void *message;
    } event = {.version = 3, .bytes = 48, .kind = 3, .message = name};
    CHECK_EQ(sizeof event, 48);
    AS(domain_push_function, core2[DOMAIN_PUSH])(domain, &event);
    push("mine");
    AS(domain_pop_function, core2[DOMAIN_POP])(domain);
    CHECK_EQ(n_got, 1);
    CHECK_STR(got[0].name, "registered");
    CHECK(AS(domain_pop_function, core2[DOMAIN_POP])(domain) < 0);
    CHECK_EQ(pop(), 0);
    CHECK_STR(got[1].name, "mine");
    event.kind = 1;
    event.message = "text";
    AS(domain_push_function, core2[DOMAIN_PUSH])(NULL, &event);
    pop();
    CHECK_STR(got[2].name, "text");
    AS(domain_push_function, core2[DOMAIN_PUSH])(NULL, NULL);
    pop();
    CHECK_STR(got[3].name, "(no name)");
    nvtx_forget();
}

TEST(nvtx_names) {
    static const struct {
        const char *text, *want;
    } names[] = {{"aten::mul, seq = 3, op_id = 7", "aten::mul"},
                 {"aten::to, op_id = 7, sizes = [[2]]", "aten::to"},
                 {"a\nb\t", "a b "},
                 {"", "(no name)"},
                 {", seq = 1", "(no name)"}};
    char out[16], cut[4];
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        nvtx_range_name(names[i].text, out, sizeof out);
        CHECK_STR(out, names[i].want);
    }
    nvtx_range_name("long name", cut, sizeof cut);
    CHECK_STR(cut, "lon");
}

TEST(nvtx_refuses_what_is_no_nvtx) {
    const nvtx_sink sink = {.is_on = ask, .add = add};
    CHECK(!nvtx_attach(no_tables, &sink));
    table.bytes = 4;
    CHECK(!nvtx_attach(tables, &sink));
    table.bytes = sizeof table;
}

static void add_span(recorder *r, span_kind kind, int lane, uint64_t start, uint64_t end,
                     uint32_t correlation, const char *name) {
    span s = {.kind = (uint8_t)kind,
              .lane = (uint16_t)lane,
              .start_ns = start,
              .end_ns = end,
              .correlation = correlation,
              .op = RECORDER_NO_OP};
    recorder_add(r, &s, name, NULL);
}

/* Two threads; a kernel belongs to the innermost range around its call, on the call's thread. */
TEST(nesting_of_ranges_calls_and_kernels) {
    recorder r;
    const recorder_schedule all = {0};
    recorder_init(&r, &all);
    add_span(&r, SPAN_KERNEL, 7, 500, 900, 1, "k1");   /* 0 */
    add_span(&r, SPAN_RANGE, 0, 20, 40, 0, "inner");   /* 1 */
    add_span(&r, SPAN_RANGE, 0, 10, 100, 0, "outer");  /* 2 */
    add_span(&r, SPAN_RANGE, 1, 0, 200, 0, "other");   /* 3 */
    add_span(&r, SPAN_CALL, 0, 25, 30, 1, "launch");   /* 4 */
    add_span(&r, SPAN_CALL, 0, 50, 60, 2, "launch");   /* 5 */
    add_span(&r, SPAN_CALL, 1, 50, 60, 3, "launch");   /* 6 */
    add_span(&r, SPAN_CALL, 0, 100, 110, 4, "launch"); /* 7: after all */
    for (uint32_t i = 2; i <= 4; i++)
        add_span(&r, SPAN_COPY, 7, 1000 * i, 1000 * i + 5, i, "c"); /* 8, 9, 10 */
    add_span(&r, SPAN_RANGE, 0, 90, 150, 0, "across");              /* 11: ends after outer */
    CHECK_OK(recorder_nest(&r));
    CHECK_EQ(r.spans[1].op, 2);
    CHECK_EQ(r.spans[2].op, RECORDER_NO_OP);
    CHECK_EQ(r.spans[3].op, RECORDER_NO_OP);
    CHECK_EQ(r.spans[2].child_ns, 20);
    CHECK_EQ(r.spans[0].op, 1);
    CHECK_EQ(r.spans[8].op, 2);
    CHECK_EQ(r.spans[9].op, 3);
    CHECK_EQ(r.spans[10].op, 11);
    recorder_fini(&r);
}
