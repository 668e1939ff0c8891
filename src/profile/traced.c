#include "profile/traced.h"

#include <stdarg.h>
#include <stdio.h>

#include "base/mem.h"
#include "base/range.h"
#include "profile/work.h"

typedef struct traced {
    backend *below;
    traced_options o;
    bool is_taken; /* the ops become part of a graph, and do not run now */
} traced;

static traced *traced_of(backend *be) {
    return be->state;
}

/* What is taken into a graph does its work whenever that is replayed, and none now. */
static bool begin(traced *t, const char *name, op_work w) {
    recorder *r = t->o.recorder;
    op_mark m = {recorder_begin(r, SPAN_OP, name, -1), -1, w.flop, w.bytes};
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

#define AS_LIST(...) __VA_ARGS__
#define WORK(name, parameters, arguments, test)                                                    \
    static status traced_##name parameters {                                                       \
        traced *t = traced_of(be);                                                                 \
        char shape[WORK_SHAPE_BYTES], whole[sizeof #name + WORK_SHAPE_BYTES];                      \
        be = t->below;                                                                             \
        op_work w = work_of(WORK_##name, t->o.has_shapes ? shape : NULL, AS_LIST arguments);       \
        bool is_marked =                                                                           \
            begin(t, t->o.has_shapes ? with_shape(whole, sizeof whole, #name, shape) : #name, w);  \
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
        traced *t = traced_of(be);                                                                 \
        be = t->below;                                                                             \
        bool is_op = #result[0] == 's' && #result[1] == 't';                                       \
        bool is_marked = is_op && begin(t, #name, (op_work){0, 0});                                \
        result value = be->ops->name arguments;                                                    \
        if (WORK_##name == WORK_alloc) note_alloc(AS_LIST arguments);                              \
        if (is_op) end(t, is_marked);                                                              \
        return value;                                                                              \
    }
#define OWN(result, name, parameters, arguments, test)
#include "ops/ops.def"

static void traced_release(backend *be, void *memory) {
    be = traced_of(be)->below;
    range_memory(memory, 0);
    be->ops->release(be, memory);
}

static status traced_set_precision(backend *be, act_type act, bool is_tf32) {
    backend *below = traced_of(be)->below;
    TRY(below->ops->set_precision(below, act, is_tf32));
    be->act = below->act;
    traced *t = traced_of(be);
    if (t->o.on_precision != NULL) t->o.on_precision(below);
    return OK;
}

static status traced_record(backend *be, uint64_t key, record_state *out) {
    traced *t = traced_of(be);
    TRY(t->below->ops->record(t->below, key, out));
    t->is_taken = *out == RECORD_TAKE;
    return OK;
}

/* Where a graph was recorded, this also launches it. */
static status traced_record_end(backend *be) {
    traced *t = traced_of(be);
    t->is_taken = false;
    bool is_marked = begin(t, "record_end", (op_work){0, 0});
    status st = t->below->ops->record_end(t->below);
    end(t, is_marked);
    return st;
}

static const ops traced_table = {
#define OP(result, name, parameters, arguments, test) .name = traced_##name,
#include "ops/ops.def"
};

static void destroy(backend *be) {
    backend_destroy(traced_of(be)->below);
    mem_free(be->state);
    mem_free(be);
}

status traced_create(backend **out, backend *below, const traced_options *o) {
    backend *be;
    traced *t = NULL;
    *out = NULL;
    TRY(MEM_NEW(&be, 1));
    status st = MEM_NEW(&t, 1);
    if (st != OK) {
        mem_free(be);
        return st;
    }
    *t = (traced){.below = below, .o = *o};
    *be = *below;
    be->ops = &traced_table;
    be->tables_below = below;
    be->state = t;
    be->destroy = destroy;
    *out = be;
    return OK;
}
