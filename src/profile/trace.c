#include "profile/trace.h"

#include "format/json.h"
#include "profile/gpu_time.h"
#include "profile/utilization.h"

/* Spans of the host and calls of CUDA have two clocks: by so much they may differ. */
enum { CLOCKS_NS = 5000, MAX_DEPTH = 128 };

typedef struct bar {
    uint64_t row, start_ns, end_ns;
    size_t index;
    bool is_call;
} bar;

static int by_row(const void *a, const void *b) {
    const bar *x = a, *y = b;
    if (x->row != y->row) return x->row < y->row ? -1 : 1;
    if (x->start_ns != y->start_ns) return x->start_ns < y->start_ns ? -1 : 1;
    if (x->end_ns != y->end_ns) return x->end_ns > y->end_ns ? -1 : 1;
    return x->index < y->index ? -1 : 1;
}

/* The ends of the bars that are open in a row, the innermost last. */
typedef struct open_bars {
    uint64_t end_ns[MAX_DEPTH];
    int n;
} open_bars;

static void close_before(open_bars *o, uint64_t ns) {
    while (o->n > 0 && o->end_ns[o->n - 1] <= ns)
        o->n--;
}

static bool fits(const open_bars *o, uint64_t end_ns) {
    return o->n == 0 || (o->n < MAX_DEPTH && o->end_ns[o->n - 1] >= end_ns);
}

static void put_bar(open_bars *o, uint64_t end_ns) {
    if (o->n < MAX_DEPTH) o->end_ns[o->n++] = end_ns;
}

/* The row itself where it fits there, or nearly; else the first beside it; in the last it is cut.
 */
static row_place place(open_bars rows[ROWS_MAX_BESIDE + 1], const bar *b) {
    for (int i = 0; i <= ROWS_MAX_BESIDE; i++)
        close_before(&rows[i], b->start_ns);
    for (int i = 0; i <= ROWS_MAX_BESIDE; i++) {
        uint64_t end = b->end_ns, open_end = rows[i].n > 0 ? rows[i].end_ns[rows[i].n - 1] : end;
        bool is_near = b->is_call && end > open_end && end - open_end <= CLOCKS_NS;
        if ((is_near || i == ROWS_MAX_BESIDE) && end > open_end) end = open_end;
        if (!fits(&rows[i], end) && i < ROWS_MAX_BESIDE) continue;
        put_bar(&rows[i], end);
        return (row_place){b->start_ns, end, (uint8_t)i};
    }
    return (row_place){b->start_ns, b->end_ns, 0};
}

/* A call is inside the op that made it, whatever the clocks say. */
static bar bar_of(const recorder *r, size_t index, uint64_t row) {
    const span *s = &r->spans[index], *op = s->op >= 0 ? &r->spans[s->op] : NULL;
    bar b = {row, s->start_ns, s->end_ns, index, s->kind == SPAN_CALL};
    if (!b.is_call || op == NULL || op->end_ns == 0 || s->start_ns >= op->end_ns) return b;
    if (b.start_ns < op->start_ns && op->start_ns - b.start_ns <= CLOCKS_NS)
        b.start_ns = op->start_ns < b.end_ns ? op->start_ns : b.end_ns;
    if (b.end_ns > op->end_ns && b.end_ns - op->end_ns <= CLOCKS_NS) b.end_ns = op->end_ns;
    return b;
}

status rows_arrange(const recorder *r, uint64_t (*row_of)(const void *ctx, const span *s),
                    const void *ctx, row_place **out) {
    bar *bars;
    size_t n = 0;
    open_bars *rows = NULL;
    *out = NULL;
    TRY(mem_alloc_raw((void **)&bars, r->n_spans + 1, sizeof *bars));
    status st = mem_alloc((void **)out, r->n_spans + 1, sizeof **out);
    if (st == OK) st = mem_alloc((void **)&rows, ROWS_MAX_BESIDE + 1, sizeof *rows);
    for (size_t i = 0; st == OK && i < r->n_spans; i++) {
        uint64_t row = r->spans[i].end_ns != 0 ? row_of(ctx, &r->spans[i]) : ROWS_NONE;
        if (row != ROWS_NONE) bars[n++] = bar_of(r, i, row);
    }
    if (n > 0) qsort(bars, n, sizeof *bars, by_row);
    for (size_t i = 0; i < n; i++) {
        bool is_new = i == 0 || bars[i].row != bars[i - 1].row;
        for (int k = 0; is_new && k <= ROWS_MAX_BESIDE; k++)
            rows[k].n = 0;
        (*out)[bars[i].index] = place(rows, &bars[i]);
    }
    MEM_FREE(rows, bars);
    if (st != OK) {
        mem_free(*out);
        *out = NULL;
    }
    return st;
}

#define STEP_NAME "ProfilerStep#"

/* Written piece by piece: a trace may be larger than memory should be. */
typedef struct writer {
    out_file *file;
    buf text;
    const profile *p;
    row_place *places; /* of each span */
    uint16_t cycle;
    bool is_tensorboard, has_event;
} writer;

enum { PIECE_BYTES = 1 << 20, HOST_PID = 1000000 }; /* GPUs are the processes 0, 1, ... */
enum { BESIDE_TID = 100000 };                       /* added for each row beside one */
enum { STEPS_TID = 1000000 };                       /* the row of steps */

static status flush(writer *w) {
    TRY(out_file_write(w->file, buf_str(&w->text), w->text.n_bytes));
    buf_clear(&w->text);
    return OK;
}

/* Each event is one line. */
static status begin_event(writer *w, json_writer *j) {
    if (w->text.n_bytes > PIECE_BYTES) TRY(flush(w));
    TRY(buf_text(&w->text, w->has_event ? ",\n" : "\n"));
    w->has_event = true;
    json_begin_object(j, &w->text, 0);
    return OK;
}

static status end_event(json_writer *j) {
    return json_finish_object(j);
}

/* Microseconds since the profile began, with three decimals; json_double would write as many as it
 * needs. */
static void put_time(json_writer *j, const char *key, uint64_t ns) {
    json_key(j, key);
    json_double(j, (double)ns / 1e3);
}

static uint64_t since(const profile *p, uint64_t ns) {
    return ns > p->start_ns ? ns - p->start_ns : 0;
}

/* Our own calls of CUDA have the system's thread numbers; they share the first thread's row. */
static uint32_t lane_of(const profile *p, const span *s) {
    return s->kind == SPAN_CALL && p->n_lanes == 0 ? 0 : s->lane;
}

/* A range that PyTorch names as put_steps does would be a second step. */
static bool is_drawn(const writer *w, const span *s) {
    const recorder *r = &w->p->recorder;
    return s->end_ns != 0 && s->cycle == w->cycle &&
           !(s->kind == SPAN_RANGE && r->n_steps > 0 &&
             strncmp(recorder_name(r, s), STEP_NAME, strlen(STEP_NAME)) == 0);
}

static uint64_t row_of(const void *ctx, const span *s) {
    const writer *w = ctx;
    uint64_t pid = span_is_on_gpu(s) ? s->device : HOST_PID;
    return is_drawn(w, s) ? pid << 32 | lane_of(w->p, s) : ROWS_NONE;
}

static void put_place(json_writer *j, const writer *w, const span *s) {
    const row_place *at = &w->places[s - w->p->recorder.spans];
    json_key_int(j, "pid", span_is_on_gpu(s) ? s->device : HOST_PID);
    json_key_int(j, "tid", (int64_t)lane_of(w->p, s) + (int64_t)at->beside * BESIDE_TID);
}

static void put_triple(json_writer *j, const char *key, const int32_t v[3]) {
    json_key_array(j, key);
    for (int i = 0; i < 3; i++)
        json_int(j, v[i]);
    json_array_close(j);
}

/* Kineto's figures: blocks and warps of the grid over the multiprocessors, and the occupancy as far
 * as the grid fills it. */
static void put_occupancy(json_writer *j, const gpu_facts *g, const span_launch *l) {
    if (g == NULL || g->n_multiprocessors == 0) return;
    occupancy o = occupancy_find(g, l);
    double blocks = 1, threads = 1;
    for (int i = 0; i < 3; i++) {
        blocks *= l->grid[i];
        threads *= l->block[i];
    }
    blocks /= g->n_multiprocessors;
    double filled = o.blocks > 0 && blocks < o.blocks ? blocks / o.blocks : 1;
    JSON_FIELDS(j, FIELD("blocks per SM", blocks),
                FIELD("warps per SM", blocks * ceil(threads / 32)),
                FIELD("est. achieved occupancy %", 100 * o.share * filled),
                FIELD("theoretical occupancy %", 100 * o.share),
                FIELD("limited by", occupancy_limit_name(o.limit)));
}

/* TensorBoard's plugin drops ranges; those of other programs are all the operators there are. */
static const char *category(const writer *w, const span *s) {
    if (w->is_tensorboard && s->kind == SPAN_CALL) return "Runtime";
    bool is_op = w->is_tensorboard && w->p->n_lanes > 0 && s->kind == SPAN_RANGE;
    return span_kind_name(is_op ? SPAN_OP : (span_kind)s->kind);
}

static void put_args(json_writer *j, const recorder *r, const span *s) {
    json_key_object(j, "args");
    if (s->correlation > 0) json_key_int(j, "correlation", s->correlation);
    if (span_is_on_gpu(s)) {
        json_key_int(j, "device", s->device);
        json_key_int(j, "stream", s->lane);
    }
    /* What an op launched has the op's number. */
    int64_t op = s->kind == SPAN_OP || s->kind == SPAN_RANGE ? s - r->spans : s->op;
    if (op >= 0) json_key_int(j, "External id", op);
    if (s->bytes > 0) json_key_int(j, "bytes", (int64_t)s->bytes);
    if (s->launch >= 0) {
        const span_launch *l = &r->launches[s->launch];
        put_triple(j, "grid", l->grid);
        put_triple(j, "block", l->block);
        JSON_FIELDS(j, FIELD("registers per thread", l->registers),
                    FIELD("shared memory", (int64_t)l->static_shared + l->dynamic_shared),
                    FIELD("local memory per thread", l->local));
        put_occupancy(j, recorder_gpu(r, s->device), l);
    }
    json_object_close(j);
}

static status put_span(writer *w, const span *s) {
    json_writer j;
    const recorder *r = &w->p->recorder;
    TRY(begin_event(w, &j));
    JSON_FIELDS(&j, FIELD("ph", "X"), FIELD("cat", category(w, s)),
                FIELD("name", recorder_name(r, s)));
    put_place(&j, w, s);
    const row_place *at = &w->places[s - r->spans];
    put_time(&j, "ts", since(w->p, at->start_ns));
    put_time(&j, "dur", since(w->p, at->end_ns) - since(w->p, at->start_ns));
    put_args(&j, r, s);
    return end_event(&j);
}

/* Both ends of an arrow have the correlation as their id. */
static status put_flow(writer *w, const span *s) {
    json_writer j;
    bool is_start = s->kind == SPAN_CALL;
    TRY(begin_event(w, &j));
    json_key_string(&j, "ph", is_start ? "s" : "f");
    if (!is_start) json_key_string(&j, "bp", "e");
    json_key_int(&j, "id", s->correlation);
    put_place(&j, w, s);
    put_time(&j, "ts", since(w->p, w->places[s - w->p->recorder.spans].start_ns));
    json_key_string(&j, "cat", "ac2g");
    json_key_string(&j, "name", "ac2g");
    return end_event(&j);
}

static status put_label(writer *w, const char *what, int64_t pid, int64_t tid, const char *text) {
    json_writer j;
    TRY(begin_event(w, &j));
    JSON_FIELDS(&j, FIELD("ph", "M"), FIELD("name", what), FIELD("pid", pid), FIELD("tid", tid));
    json_key_object(&j, "args");
    json_key_string(&j, "name", text);
    json_object_close(&j);
    return end_event(&j);
}

static status put_labels(writer *w) {
    const recorder *r = &w->p->recorder;
    char text[256];
    snprintf(text, sizeof text, "hstu, process %ld", (long)getpid());
    TRY(put_label(w, "process_name", HOST_PID, 0, w->p->n_lanes > 0 ? "host" : text));
    for (size_t i = 0; i < w->p->n_lanes; i++) {
        const profile_lane *l = &w->p->lanes[i];
        snprintf(text, sizeof text, "process %" PRId64 ", thread %" PRIu32 "%s", l->pid, l->thread,
                 l->may_overlap ? ", ranges that overlap" : "");
        TRY(put_label(w, "thread_name", HOST_PID, (int64_t)i, text));
    }
    for (int i = 0; i < r->n_threads; i++) {
        snprintf(text, sizeof text, "thread %d", i);
        TRY(put_label(w, "thread_name", HOST_PID, i, text));
    }
    if (r->n_steps > 0) TRY(put_label(w, "thread_name", HOST_PID, STEPS_TID, "steps"));
    bool is_named[256] = {false};
    for (size_t i = 0; i < r->n_spans; i++) {
        const span *s = &r->spans[i];
        if (!span_is_on_gpu(s) || is_named[s->device]) continue;
        is_named[s->device] = true;
        snprintf(text, sizeof text, "GPU %d", s->device);
        TRY(put_label(w, "process_name", s->device, 0, text));
    }
    return OK;
}

/* An arrow needs both of its ends: which correlations a call has (1), and which the GPU (2). */
static status find_arrows(const recorder *r, uint8_t **out) {
    TRY(mem_alloc((void **)out, recorder_n_correlations(r), 1));
    for (size_t i = 0; i < r->n_spans; i++) {
        const span *s = &r->spans[i];
        if (s->end_ns != 0 && s->kind == SPAN_CALL) (*out)[s->correlation] |= 1;
        if (span_is_on_gpu(s)) (*out)[s->correlation] |= 2;
    }
    (*out)[0] = 0; /* none */
    return OK;
}

/* As torch.profiler names them; numbers count all steps, those that were not kept too. */
static status put_steps(writer *w) {
    const recorder *r = &w->p->recorder;
    json_writer j;
    char name[32];
    for (size_t i = 0; i < r->n_steps; i++) {
        const kept_step *s = &r->steps[i];
        if (s->cycle != w->cycle) continue;
        snprintf(name, sizeof name, STEP_NAME "%" PRId64, s->number);
        TRY(begin_event(w, &j));
        JSON_FIELDS(&j, FIELD("ph", "X"), FIELD("cat", "user_annotation"), FIELD("name", name),
                    FIELD("pid", HOST_PID), FIELD("tid", STEPS_TID));
        put_time(&j, "ts", since(w->p, s->start_ns));
        put_time(&j, "dur", since(w->p, s->end_ns) - since(w->p, s->start_ns));
        TRY(end_event(&j));
    }
    return OK;
}

static status put_spans(writer *w) {
    const recorder *r = &w->p->recorder;
    uint8_t *ends = NULL;
    status st = find_arrows(r, &ends);
    for (size_t i = 0; st == OK && i < r->n_spans; i++) {
        const span *s = &r->spans[i];
        if (!is_drawn(w, s)) continue;
        st = put_span(w, s);
        bool has_end = s->kind == SPAN_CALL || span_is_on_gpu(s);
        if (st == OK && has_end && ends[s->correlation] == 3) st = put_flow(w, s);
    }
    mem_free(ends);
    return st;
}

static status put_counter(writer *w, const char *name, const char *what, uint64_t ns, int64_t n) {
    json_writer j;
    if (recorder_cycle(&w->p->recorder, 0, ns) != w->cycle) return OK;
    TRY(begin_event(w, &j));
    JSON_FIELDS(&j, FIELD("ph", "C"), FIELD("name", name), FIELD("pid", HOST_PID));
    put_time(&j, "ts", since(w->p, ns));
    json_key_object(&j, "args");
    json_key_int(&j, what, n);
    json_object_close(&j);
    return end_event(&j);
}

/* How much memory of the device lives. */
static status put_memory(writer *w) {
    const memory_log *m = &w->p->memory;
    for (size_t i = 0; i < m->n_events; i++)
        TRY(put_counter(w, "memory", "bytes", m->events[i].ns, (int64_t)m->events[i].live));
    return OK;
}

/* How much the GPU has been asked for that it has not begun. */
static status put_queue(writer *w) {
    queue_point *points;
    size_t n;
    TRY(queue_find(&w->p->recorder, &points, &n));
    status st = OK;
    for (size_t i = 0; st == OK && i < n; i++)
        st = put_counter(w, "GPU queue", "waiting", points[i].ns, points[i].waiting);
    mem_free(points);
    return st;
}

/* By the names of cudaDeviceProp, as Kineto writes them. */
static status put_devices(writer *w) {
    const recorder *r = &w->p->recorder;
    json_writer j;
    json_begin(&j, &w->text, 0);
    json_array_open(&j);
    for (int i = 0; i < r->n_gpus; i++) {
        const gpu_facts *g = &r->gpus[i];
        json_object_open(&j);
        JSON_FIELDS(&j, FIELD("id", g->device), FIELD("name", g->name),
                    FIELD("totalGlobalMem", g->memory_bytes), FIELD("computeMajor", g->sm / 10),
                    FIELD("computeMinor", g->sm % 10), FIELD("numSms", g->n_multiprocessors));
        json_object_close(&j);
    }
    json_array_close(&j);
    return json_finish(&j);
}

static status put_all(writer *w) {
    json_writer j;
    TRY(buf_text(&w->text, "{\"schemaVersion\":1,\"displayTimeUnit\":\"ms\",\"device\":"));
    json_begin(&j, &w->text, 0);
    json_string(&j, w->p->device);
    TRY(json_finish(&j));
    TRY(buf_text(&w->text, ",\"deviceProperties\":"));
    TRY(put_devices(w));
    TRY(buf_text(&w->text, ",\"traceEvents\":["));
    TRY(put_labels(w));
    TRY(put_steps(w));
    TRY(put_spans(w));
    TRY(put_memory(w));
    TRY(put_queue(w));
    TRY(buf_text(&w->text, "\n]}\n"));
    return flush(w);
}

status trace_write(const profile *p, uint16_t cycle, bool is_tensorboard, const char *path) {
    writer w = {.p = p, .cycle = cycle, .is_tensorboard = is_tensorboard};
    TRY(out_file_create(&w.file, path));
    status st = rows_arrange(&p->recorder, row_of, &w, &w.places);
    if (st == OK) st = put_all(&w);
    mem_free(w.places);
    buf_fini(&w.text);
    if (st == OK) return out_file_commit(w.file);
    out_file_abandon(w.file);
    return st;
}
