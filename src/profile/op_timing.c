#include "profile/op_timing.h"

#include "profile/work.h"

typedef struct layer {
    backend *below;
    traced_options o;
    bool is_taken; /* the ops become part of a graph, and do not run now */
    uint64_t key;  /* of that graph, or of the one that is replayed */
    bool has_key;
    lengths lengths; /* of batches on a GPU */
} layer;

/* Attention on a GPU: its pairs, where the batch is known; in a graph they are those of the batch
 * that it is replayed with. */
static void ask_pairs(layer *t, op_work *w) {
    double pairs = lengths_pairs(&t->lengths, &w->ask);
    if (t->is_taken) lengths_note_graph(&t->lengths, t->key, &w->ask);
    if (pairs <= 0) return;
    w->flop = pairs * w->of_pair;
    w->bytes = w->pair_bytes;
}

/* What is taken into a graph does its work whenever that is replayed, and none now. */
static bool begin(layer *t, const char *name, op_work w) {
    recorder *r = t->o.recorder;
    op_mark m = {.index = recorder_begin(r, SPAN_OP, name, -1), .name = -1};
    if (w.of_pair > 0) ask_pairs(t, &w);
    m.flop = w.flop, m.moved = w.bytes;
    m.of_pair = w.of_pair, m.pair_bytes = w.pair_bytes;
    if (m.index != RECORDER_NO_OP && !t->is_taken && (w.flop > 0 || w.bytes > 0))
        recorder_set_work(r, m.index, w.flop, w.bytes);
    bool is_marked = t->o.mark != NULL && (m.index != RECORDER_NO_OP || t->is_taken);
    if (is_marked && t->is_taken) m.name = recorder_name_id(r, name);
    if (is_marked) t->o.mark->begin(&m);
    return is_marked;
}

static void end(layer *t, bool is_marked) {
    if (is_marked) t->o.mark->end();
    recorder_end(t->o.recorder, 0);
}

/* "linear_fwd [128, 64] x [64, 32]". */
static const char *with_shape(char *out, size_t n, const char *name, const char *shape) {
    if (shape[0] == '\0') return name;
    snprintf(out, n, "%s %s", name, shape);
    return out;
}

/* copy_in brings batches, whose lengths attention is counted by. */
static void note_copy(layer *t, backend *be, ...) {
    va_list args;
    va_start(args, be);
    const void *to = va_arg(args, void *), *from_host = va_arg(args, const void *);
    lengths_note_copy(&t->lengths, to, from_host, va_arg(args, size_t));
    va_end(args);
}

#define AS_LIST(...) __VA_ARGS__
#define WORK(name, parameters, arguments, test)                                                    \
    static status layer_##name parameters {                                                        \
        layer *t = be->state;                                                                      \
        char shape[WORK_SHAPE_BYTES], whole[sizeof #name + WORK_SHAPE_BYTES];                      \
        be = t->below;                                                                             \
        op_work w = work_of(WORK_##name, t->o.has_shapes ? shape : NULL, AS_LIST arguments);       \
        bool is_marked =                                                                           \
            begin(t, t->o.has_shapes ? with_shape(whole, sizeof whole, #name, shape) : #name, w);  \
        if (WORK_##name == WORK_copy_in) note_copy(t, AS_LIST arguments);                          \
        status st = be->ops->name arguments;                                                       \
        end(t, is_marked);                                                                         \
        return st;                                                                                 \
    }
/* alloc tells who watches memory. */
static void note_alloc(backend *be, ...) {
    va_list args;
    va_start(args, be);
    void **out = va_arg(args, void **);
    range_memory(*out, va_arg(args, size_t));
    va_end(args);
}

/* Calls that only answer a question do not return a status, and are not recorded. */
#define CALL(result, name, parameters, arguments, test)                                            \
    static result layer_##name parameters {                                                        \
        layer *t = be->state;                                                                      \
        be = t->below;                                                                             \
        bool is_op = #result[0] == 's' && #result[1] == 't';                                       \
        bool is_marked = is_op && begin(t, #name, (op_work){0});                                   \
        result value = be->ops->name arguments;                                                    \
        if (WORK_##name == WORK_alloc) note_alloc(AS_LIST arguments);                              \
        if (is_op) end(t, is_marked);                                                              \
        return value;                                                                              \
    }
#define OWN(result, name, parameters, arguments, test)
#include "ops/ops.def"

static void layer_host_release(backend *be, void *memory) {
    be = ((layer *)be->state)->below;
    be->ops->host_release(be, memory);
}

static void layer_release(backend *be, void *memory) {
    layer *t = be->state;
    be = t->below;
    lengths_forget(&t->lengths);
    range_memory(memory, 0);
    be->ops->release(be, memory);
}

static status layer_set_precision(backend *be, act_type act, bool is_tf32) {
    layer *t = be->state;
    TRY(t->below->ops->set_precision(t->below, act, is_tf32));
    be->act = t->below->act;
    if (t->o.on_precision != NULL) t->o.on_precision(t->below);
    return OK;
}

static status layer_record(backend *be, uint64_t key, record_state *out) {
    layer *t = be->state;
    *out = RECORD_RUN;
    if (t->o.has_no_graphs) return OK;
    TRY(t->below->ops->record(t->below, key, out));
    t->is_taken = *out == RECORD_TAKE;
    t->has_key = *out != RECORD_RUN;
    t->key = key;
    if (t->is_taken) lengths_begin_graph(&t->lengths, key);
    if (t->is_taken && t->o.on_graph != NULL) t->o.on_graph();
    return OK;
}

/* Where a graph was recorded, this also launches it. */
static status layer_record_end(backend *be) {
    layer *t = be->state;
    if (t->o.has_no_graphs) return OK;
    t->is_taken = false;
    recorder *r = t->o.recorder;
    op_mark m = {.index = recorder_begin(r, SPAN_OP, "record_end", -1), .name = -1};
    if (m.index != RECORDER_NO_OP && t->has_key)
        recorder_set_pairs(r, m.index, lengths_graph_pairs(&t->lengths, t->key));
    t->has_key = false;
    bool is_marked = t->o.mark != NULL && m.index != RECORDER_NO_OP;
    if (is_marked) t->o.mark->begin(&m);
    backend *below = t->below;
    status st = below->ops->record_end(below);
    end(t, is_marked);
    return st;
}

static const ops layer_table = {
#define OP(result, name, parameters, arguments, test) .name = layer_##name,
#include "ops/ops.def"
};

static void destroy(backend *be) {
    layer *t = be->state;
    backend_destroy(t->below);
    lengths_fini(&t->lengths);
    MEM_FREE(t, be);
}

status traced_create(backend **out, backend *below, const traced_options *o) {
    backend *be;
    layer *t = NULL;
    *out = NULL;
    TRY(MEM_NEW(&be, 1));
    status st = MEM_NEW(&t, 1);
    if (st != OK) {
        mem_free(be);
        return st;
    }
    t->below = below;
    t->o = *o;
    *be = *below;
    be->ops = &layer_table;
    if (below->tables_below == NULL) be->tables_below = below;
    be->state = t;
    be->destroy = destroy;
    *out = be;
    return OK;
}
