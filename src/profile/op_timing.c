#include "profile/op_timing.h"

#include <stdarg.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/range.h"
#include "profile/work.h"

enum {
#define WORK(name, parameters, arguments, test) AT_##name,
#define CALL(result, name, parameters, arguments, test)
#define OWN(result, name, parameters, arguments, test)
#include "ops/ops.def"
    N_OPS
};

static const char *const op_names[N_OPS] = {
#define WORK(name, parameters, arguments, test) [AT_##name] = #name,
#define CALL(result, name, parameters, arguments, test)
#define OWN(result, name, parameters, arguments, test)
#include "ops/ops.def"
};

_Static_assert((int)N_OPS <= (int)TIMED_MAX_OPS, "too many ops");

/* What both layers begin with. */
typedef struct layer {
    backend *below;
} layer;

static backend *below_of(backend *be) {
    return ((layer *)be->state)->below;
}

static status layer_create(backend **out, backend *below, const ops *table, size_t state_bytes,
                           void (*destroy)(backend *be)) {
    backend *be;
    *out = NULL;
    TRY(MEM_NEW(&be, 1));
    *be = *below;
    be->ops = table;
    if (below->tables_below == NULL) be->tables_below = below;
    be->destroy = destroy;
    status st = mem_alloc(&be->state, 1, state_bytes);
    if (st == OK) {
        ((layer *)be->state)->below = below;
        *out = be;
    } else {
        mem_free(be);
    }
    return st;
}

static status pass_precision(backend *be, act_type act, bool is_tf32) {
    backend *below = below_of(be);
    TRY(below->ops->set_precision(below, act, is_tf32));
    be->act = below->act;
    return OK;
}

static void pass_host_release(backend *be, void *memory) {
    be = below_of(be);
    be->ops->host_release(be, memory);
}

typedef struct timed {
    layer base;
    timed_op op[N_OPS];
} timed;

/* Counts an op that began at start_ns, once the device has finished it. */
static status count(timed *t, int index, uint64_t start_ns, status st) {
    if (st == OK) st = t->base.below->ops->sync(t->base.below);
    t->op[index].ns += clock_ns() - start_ns;
    t->op[index].n_calls++;
    return st;
}

/* Work is timed; memory and waiting are passed on. */
#define WORK(name, parameters, arguments, test)                                                    \
    static status timed_##name parameters {                                                        \
        timed *t = be->state;                                                                      \
        uint64_t start = clock_ns();                                                               \
        be = t->base.below;                                                                        \
        return count(t, AT_##name, start, be->ops->name arguments);                                \
    }
#define CALL(result, name, parameters, arguments, test)                                            \
    static result timed_##name parameters {                                                        \
        be = below_of(be);                                                                         \
        return be->ops->name arguments;                                                            \
    }
#define OWN(result, name, parameters, arguments, test)
#include "ops/ops.def"

static void timed_release(backend *be, void *memory) {
    be = below_of(be);
    be->ops->release(be, memory);
}

/* Nothing is recorded, so that every op is seen. */
static status timed_record(backend *be, uint64_t key, record_state *out) {
    (void)be;
    (void)key;
    *out = RECORD_RUN;
    return OK;
}

static status timed_record_end(backend *be) {
    (void)be;
    return OK;
}

#define timed_host_release  pass_host_release
#define timed_set_precision pass_precision
static const ops timed_table = {
#define OP(result, name, parameters, arguments, test) .name = timed_##name,
#include "ops/ops.def"
};

static void layer_destroy(backend *be) {
    mem_free(be->state);
    mem_free(be);
}

status timed_create(backend **out, backend *below) {
    TRY(layer_create(out, below, &timed_table, sizeof(timed), layer_destroy));
    (*out)->n_ahead = (*out)->token_bucket = 0; /* every op is waited for, and no step recorded */
    timed *t = (*out)->state;
    for (int i = 0; i < N_OPS; i++)
        t->op[i].name = op_names[i];
    return OK;
}

const timed_op *timed_ops(const backend *be, int *n) {
    const timed *t = be->state;
    *n = N_OPS;
    return t->op;
}

void timed_reset(backend *be) {
    timed *t = be->state;
    for (int i = 0; i < N_OPS; i++)
        t->op[i].ns = t->op[i].n_calls = 0;
}

typedef struct traced {
    layer base;
    traced_options o;
    bool is_taken; /* the ops become part of a graph, and do not run now */
    uint64_t key;  /* of that graph, or of the one that is replayed */
    bool has_key;
    lengths lengths; /* of batches on a GPU */
} traced;

/* Attention on a GPU: its pairs, where the batch is known; in a graph they are those of the batch
 * that it is replayed with. */
static void ask_pairs(traced *t, op_work *w) {
    double pairs = lengths_pairs(&t->lengths, &w->ask);
    if (t->is_taken) lengths_note_graph(&t->lengths, t->key, &w->ask);
    if (pairs <= 0) return;
    w->flop = pairs * w->of_pair;
    w->bytes = w->pair_bytes;
}

/* What is taken into a graph does its work whenever that is replayed, and none now. */
static bool begin(traced *t, const char *name, op_work w) {
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

static void end(traced *t, bool is_marked) {
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
static void note_copy(traced *t, backend *be, ...) {
    va_list args;
    va_start(args, be);
    const void *to = va_arg(args, void *), *from_host = va_arg(args, const void *);
    lengths_note_copy(&t->lengths, to, from_host, va_arg(args, size_t));
    va_end(args);
}

#define AS_LIST(...) __VA_ARGS__
#define WORK(name, parameters, arguments, test)                                                    \
    static status traced_##name parameters {                                                       \
        traced *t = be->state;                                                                     \
        char shape[WORK_SHAPE_BYTES], whole[sizeof #name + WORK_SHAPE_BYTES];                      \
        be = t->base.below;                                                                        \
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
    (void)be;
    va_start(args, be);
    void **out = va_arg(args, void **);
    range_memory(*out, va_arg(args, size_t));
    va_end(args);
}

/* Calls that only answer a question do not return a status, and are not recorded. */
#define CALL(result, name, parameters, arguments, test)                                            \
    static result traced_##name parameters {                                                       \
        traced *t = be->state;                                                                     \
        be = t->base.below;                                                                        \
        bool is_op = #result[0] == 's' && #result[1] == 't';                                       \
        bool is_marked = is_op && begin(t, #name, (op_work){0});                                   \
        result value = be->ops->name arguments;                                                    \
        if (WORK_##name == WORK_alloc) note_alloc(AS_LIST arguments);                              \
        if (is_op) end(t, is_marked);                                                              \
        return value;                                                                              \
    }
#define OWN(result, name, parameters, arguments, test)
#include "ops/ops.def"

static void traced_release(backend *be, void *memory) {
    traced *t = be->state;
    be = t->base.below;
    lengths_forget(&t->lengths);
    range_memory(memory, 0);
    be->ops->release(be, memory);
}

static status traced_set_precision(backend *be, act_type act, bool is_tf32) {
    traced *t = be->state;
    TRY(pass_precision(be, act, is_tf32));
    if (t->o.on_precision != NULL) t->o.on_precision(t->base.below);
    return OK;
}

static status traced_record(backend *be, uint64_t key, record_state *out) {
    traced *t = be->state;
    TRY(t->base.below->ops->record(t->base.below, key, out));
    t->is_taken = *out == RECORD_TAKE;
    t->has_key = *out != RECORD_RUN;
    t->key = key;
    if (t->is_taken) lengths_begin_graph(&t->lengths, key);
    if (t->is_taken && t->o.on_graph != NULL) t->o.on_graph();
    return OK;
}

/* Where a graph was recorded, this also launches it. */
static status traced_record_end(backend *be) {
    traced *t = be->state;
    t->is_taken = false;
    recorder *r = t->o.recorder;
    op_mark m = {.index = recorder_begin(r, SPAN_OP, "record_end", -1), .name = -1};
    if (m.index != RECORDER_NO_OP && t->has_key)
        recorder_set_pairs(r, m.index, lengths_graph_pairs(&t->lengths, t->key));
    t->has_key = false;
    bool is_marked = t->o.mark != NULL && m.index != RECORDER_NO_OP;
    if (is_marked) t->o.mark->begin(&m);
    backend *below = t->base.below;
    status st = below->ops->record_end(below);
    end(t, is_marked);
    return st;
}

#define traced_host_release pass_host_release
static const ops traced_table = {
#define OP(result, name, parameters, arguments, test) .name = traced_##name,
#include "ops/ops.def"
};

static void traced_destroy(backend *be) {
    backend_destroy(below_of(be));
    lengths_fini(&((traced *)be->state)->lengths);
    layer_destroy(be);
}

status traced_create(backend **out, backend *below, const traced_options *o) {
    TRY(layer_create(out, below, &traced_table, sizeof(traced), traced_destroy));
    ((traced *)(*out)->state)->o = *o;
    return OK;
}
