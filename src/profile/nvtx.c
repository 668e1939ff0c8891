/* The parts of NVTX's interface that are used here are written down again, because its headers come
 * with CUDA alone; they are those of every NVTX 3, and of NVTX 2's library. */
#include "profile/nvtx.h"

#include <sys/syscall.h>
#include <wchar.h>

enum { NVTX_CALLBACKS = 1, NVTX_CORE = 1, NVTX_CORE2 = 5 };
enum { MESSAGE_TEXT = 1, MESSAGE_WIDE = 2, MESSAGE_REGISTERED = 3 };
enum { NAME_BYTES = 512, MAX_STARTED = 1024 };

typedef void (*any_function)(void);
typedef struct callbacks_table {
    size_t bytes;
    int (*find)(int module, any_function ***out_table, unsigned *out_n);
} callbacks_table;

typedef struct registered {
    char name[NAME_BYTES];
    struct registered *next;
} registered;

/* nvtxEventAttributes_t, version 2. */
typedef struct event {
    uint16_t version, bytes;
    uint32_t category;
    int32_t color_kind;
    uint32_t color;
    int32_t payload_kind, reserved;
    uint64_t payload;
    int32_t message_kind;
    union {
        const char *text;
        const wchar_t *wide;
        const registered *known;
    } message;
} event;

typedef struct open_range {
    const void *domain;
    uint64_t start_ns; /* 0: not kept, and no step */
    bool is_step, is_kept;
    char name[NAME_BYTES];
} open_range;

typedef struct started_range {
    uint64_t id;
    uint32_t thread;
    open_range range;
} started_range;

static nvtx_sink sink;
static _Thread_local open_range *stack; /* freed with the process */
static _Thread_local size_t depth, capacity;
static _Thread_local size_t n_unkept; /* above those of the stack, without memory for them */

static struct {
    pthread_mutex_t lock;
    started_range *open[MAX_STARTED];
    uint64_t n;
    registered *names; /* the last one first */
} started = {.lock = PTHREAD_MUTEX_INITIALIZER};

static uint32_t this_thread(void) {
    return (uint32_t)syscall(SYS_gettid);
}

void nvtx_range_name(const char *text, char *out, size_t size) {
    static const char *const tails[] = {", seq = ", ", op_id = "};
    size_t n = strlen(text);
    for (size_t i = 0; i < sizeof tails / sizeof tails[0]; i++) {
        const char *at = strstr(text, tails[i]);
        if (at != NULL && (size_t)(at - text) < n) n = (size_t)(at - text);
    }
    snprintf(out, size, "%.*s", n < size ? (int)n : (int)size - 1, text);
    for (char *at = out; *at != '\0'; at++)
        if ((unsigned char)*at < ' ') *at = ' ';
    if (out[0] == '\0') snprintf(out, size, "(no name)");
}

/* As UTF-8, whatever the locale is; NULL: "". */
static const char *narrow(const wchar_t *wide, char out[NAME_BYTES]) {
    size_t n = 0;
    for (; wide != NULL && *wide != 0 && n + 4 < NAME_BYTES; wide++)
        n += (size_t)utf8_encode((uint32_t)*wide <= 0x10ffff ? (uint32_t)*wide : '?', out + n);
    out[n] = '\0';
    return out;
}

static open_range begin_text(const void *domain, const char *text) {
    open_range r = {.domain = domain};
    if (text == NULL) text = "";
    r.is_step = sink.begin_step != NULL && sink.begin_step(text);
    r.is_kept = sink.is_on();
    if (!r.is_step && !r.is_kept) return r;
    nvtx_range_name(text, r.name, sizeof r.name);
    r.start_ns = clock_ns();
    return r;
}

static open_range begin_wide(const void *domain, const wchar_t *wide) {
    char text[NAME_BYTES];
    return begin_text(domain, narrow(wide, text));
}

static open_range begin_event(const void *domain, const event *e) {
    if (e == NULL) return begin_text(domain, NULL);
    if (e->message_kind == MESSAGE_WIDE) return begin_wide(domain, e->message.wide);
    const char *text = NULL;
    if (e->message_kind == MESSAGE_TEXT) text = e->message.text;
    if (e->message_kind == MESSAGE_REGISTERED && e->message.known != NULL)
        text = e->message.known->name;
    return begin_text(domain, text);
}

static void end(const open_range *r, uint32_t thread, bool may_overlap) {
    if (r->start_ns == 0) return;
    gpu_record record = {.kind = HOST_RANGE,
                         .start_ns = r->start_ns,
                         .end_ns = clock_ns(),
                         .name = r->name,
                         .thread = thread,
                         .stream = may_overlap};
    if (r->is_kept) sink.add(&record);
    if (r->is_step) sink.end_step(record.start_ns, record.end_ns);
}

/* The level of the range, counted from 0. */
static int push(open_range r) {
    if (n_unkept > 0 || MEM_RESERVE(&stack, &capacity, depth + 1) != OK)
        return (int)(depth + n_unkept++);
    stack[depth] = r;
    return (int)depth++;
}

/* The last range of this domain: those of another one above it stay. */
static int pop(const void *domain) {
    size_t at = depth;
    if (n_unkept > 0) return (int)(depth + --n_unkept);
    while (at > 0 && stack[at - 1].domain != domain)
        at--;
    if (at == 0) return -1;
    end(&stack[at - 1], this_thread(), false);
    depth--;
    memmove(&stack[at - 1], &stack[at], (depth + 1 - at) * sizeof *stack);
    return (int)depth;
}

/* Without a place the range is not kept; its number is as good as any. */
static uint64_t start(open_range r) {
    started_range *s;
    pthread_mutex_lock(&started.lock);
    uint64_t id = ++started.n;
    started_range **place = &started.open[id % MAX_STARTED];
    if (r.start_ns != 0 && *place == NULL && mem_alloc((void **)&s, 1, sizeof *s) == OK) {
        *s = (started_range){id, this_thread(), r};
        *place = s;
    }
    pthread_mutex_unlock(&started.lock);
    return id;
}

static void finish(uint64_t id) {
    started_range *s = NULL, **place = &started.open[id % MAX_STARTED];
    pthread_mutex_lock(&started.lock);
    if (*place != NULL && (*place)->id == id) {
        s = *place;
        *place = NULL;
    }
    pthread_mutex_unlock(&started.lock);
    if (s != NULL) end(&s->range, s->thread, true);
    mem_free(s);
}

/* The functions of NVTX. */

static uint64_t range_start_event(const event *e) {
    return start(begin_event(NULL, e));
}

static uint64_t range_start_text(const char *text) {
    return start(begin_text(NULL, text));
}

static uint64_t range_start_wide(const wchar_t *text) {
    return start(begin_wide(NULL, text));
}

static int range_push_event(const event *e) {
    return push(begin_event(NULL, e));
}

static int range_push_text(const char *text) {
    return push(begin_text(NULL, text));
}

static int range_push_wide(const wchar_t *text) {
    return push(begin_wide(NULL, text));
}

static int range_pop(void) {
    return pop(NULL);
}

static uint64_t domain_start(const void *domain, const event *e) {
    return start(begin_event(domain, e));
}

static void domain_finish(const void *domain, uint64_t id) {
    finish(id);
}

static int domain_push(const void *domain, const event *e) {
    return push(begin_event(domain, e));
}

/* Programs keep what these return as long as they run, so nothing is freed. */
static const registered *keep(const char *text) {
    registered *r;
    if (mem_alloc((void **)&r, 1, sizeof *r) != OK) return NULL;
    snprintf(r->name, sizeof r->name, "%s", text != NULL ? text : "");
    pthread_mutex_lock(&started.lock);
    r->next = started.names;
    started.names = r;
    pthread_mutex_unlock(&started.lock);
    return r;
}

static const registered *keep_wide(const wchar_t *wide) {
    char text[NAME_BYTES];
    return keep(narrow(wide, text));
}

static const registered *register_text(const void *domain, const char *text) {
    return keep(text);
}

static const registered *register_wide(const void *domain, const wchar_t *text) {
    return keep_wide(text);
}

/* The number of each in NVTX's tables. */
static const struct {
    int module;
    unsigned number;
    any_function ours;
} functions[] = {
    {NVTX_CORE, 4, (any_function)range_start_event},
    {NVTX_CORE, 5, (any_function)range_start_text},
    {NVTX_CORE, 6, (any_function)range_start_wide},
    {NVTX_CORE, 7, (any_function)finish},
    {NVTX_CORE, 8, (any_function)range_push_event},
    {NVTX_CORE, 9, (any_function)range_push_text},
    {NVTX_CORE, 10, (any_function)range_push_wide},
    {NVTX_CORE, 11, (any_function)range_pop},
    {NVTX_CORE2, 2, (any_function)domain_start},
    {NVTX_CORE2, 3, (any_function)domain_finish},
    {NVTX_CORE2, 4, (any_function)domain_push},
    {NVTX_CORE2, 5, (any_function)pop},
    {NVTX_CORE2, 10, (any_function)register_text},
    {NVTX_CORE2, 11, (any_function)register_wide},
    {NVTX_CORE2, 12, (any_function)keep},
    {NVTX_CORE2, 13, (any_function)keep_wide},
};

bool nvtx_attach(nvtx_tables tables, const nvtx_sink *to) {
    const callbacks_table *callbacks = tables(NVTX_CALLBACKS);
    if (callbacks == NULL || callbacks->bytes < sizeof *callbacks || callbacks->find == NULL)
        return false;
    sink = *to;
    bool is_any = false;
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
        any_function **table = NULL;
        unsigned n = 0;
        if (!callbacks->find(functions[i].module, &table, &n) || table == NULL ||
            functions[i].number >= n || table[functions[i].number] == NULL)
            continue;
        *table[functions[i].number] = functions[i].ours;
        is_any = true;
    }
    return is_any;
}

void nvtx_forget(void) {
    for (int i = 0; i < MAX_STARTED; i++) {
        mem_free(started.open[i]);
        started.open[i] = NULL;
    }
    while (started.names != NULL) {
        registered *r = started.names;
        started.names = r->next;
        mem_free(r);
    }
    mem_free(stack);
    stack = NULL;
    depth = capacity = n_unkept = 0;
}
