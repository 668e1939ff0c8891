#include "profile/traced.h"

#include "base/mem.h"

typedef struct traced {
    backend *below;
    recorder *recorder;
    const launch_mark *mark;
} traced;

static traced *traced_of(backend *be) {
    return be->state;
}

static bool begin(traced *t, const char *name) {
    int64_t index = recorder_begin(t->recorder, SPAN_OP, name, -1);
    bool is_marked = index != RECORDER_NO_OP && t->mark != NULL;
    if (is_marked) t->mark->begin(index);
    return is_marked;
}

static void end(traced *t, bool is_marked) {
    if (is_marked) t->mark->end();
    recorder_end(t->recorder, 0);
}

#define WORK(name, parameters, arguments, test)                                                    \
    static status traced_##name parameters {                                                       \
        traced *t = traced_of(be);                                                                 \
        be = t->below;                                                                             \
        bool is_marked = begin(t, #name);                                                          \
        status st = be->ops->name arguments;                                                       \
        end(t, is_marked);                                                                         \
        return st;                                                                                 \
    }
/* Calls that only answer a question do not return a status, and are not recorded. */
#define CALL(result, name, parameters, arguments, test)                                            \
    static result traced_##name parameters {                                                       \
        traced *t = traced_of(be);                                                                 \
        be = t->below;                                                                             \
        bool is_op = #result[0] == 's' && #result[1] == 't';                                       \
        bool is_marked = is_op && begin(t, #name);                                                 \
        result value = be->ops->name arguments;                                                    \
        if (is_op) end(t, is_marked);                                                              \
        return value;                                                                              \
    }
#define OWN(result, name, parameters, arguments, test)
#include "ops/ops.def"

static void traced_release(backend *be, void *memory) {
    be = traced_of(be)->below;
    be->ops->release(be, memory);
}

static status traced_set_precision(backend *be, act_type act, bool is_tf32) {
    backend *below = traced_of(be)->below;
    TRY(below->ops->set_precision(below, act, is_tf32));
    be->act = below->act;
    return OK;
}

static status traced_record(backend *be, uint64_t key, record_state *out) {
    be = traced_of(be)->below;
    return be->ops->record(be, key, out);
}

/* Where a graph was recorded, this also launches it. */
static status traced_record_end(backend *be) {
    traced *t = traced_of(be);
    bool is_marked = begin(t, "record_end");
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

status traced_create(backend **out, backend *below, recorder *r, const launch_mark *mark) {
    backend *be;
    traced *t = NULL;
    *out = NULL;
    TRY(MEM_NEW(&be, 1));
    status st = MEM_NEW(&t, 1);
    if (st != OK) {
        mem_free(be);
        return st;
    }
    *t = (traced){.below = below, .recorder = r, .mark = mark};
    *be = *below;
    be->ops = &traced_table;
    be->tables_below = below;
    be->state = t;
    be->destroy = destroy;
    *out = be;
    return OK;
}
