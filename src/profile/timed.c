#include "profile/timed.h"

#include "base/clock.h"
#include "base/mem.h"

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

typedef struct timed {
    backend *below;
    timed_op op[N_OPS];
} timed;

static timed *timed_of(backend *be) {
    return be->state;
}

/* Counts an op that began at start_ns, once the device has finished it. */
static status count(timed *t, int index, uint64_t start_ns, status st) {
    if (st == OK) st = t->below->ops->sync(t->below);
    t->op[index].ns += clock_ns() - start_ns;
    t->op[index].n_calls++;
    return st;
}

/* Work is timed; memory and waiting are passed on. */
#define WORK(name, parameters, arguments, test)                                                    \
    static status timed_##name parameters {                                                        \
        timed *t = timed_of(be);                                                                   \
        uint64_t start = clock_ns();                                                               \
        be = t->below;                                                                             \
        return count(t, AT_##name, start, be->ops->name arguments);                                \
    }
#define CALL(result, name, parameters, arguments, test)                                            \
    static result timed_##name parameters {                                                        \
        be = timed_of(be)->below;                                                                  \
        return be->ops->name arguments;                                                            \
    }
#define OWN(result, name, parameters, arguments, test)
#include "ops/ops.def"

static void timed_release(backend *be, void *memory) {
    be = timed_of(be)->below;
    be->ops->release(be, memory);
}

static void timed_host_release(backend *be, void *memory) {
    be = timed_of(be)->below;
    be->ops->host_release(be, memory);
}

static status timed_set_precision(backend *be, act_type act, bool is_tf32) {
    backend *below = timed_of(be)->below;
    TRY(below->ops->set_precision(below, act, is_tf32));
    be->act = below->act;
    return OK;
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

static const ops timed_table = {
#define OP(result, name, parameters, arguments, test) .name = timed_##name,
#include "ops/ops.def"
};

static void destroy(backend *be) {
    mem_free(be->state);
    mem_free(be);
}

status timed_create(backend **out, backend *below) {
    backend *be;
    timed *t = NULL;
    *out = NULL;
    TRY(MEM_NEW(&be, 1));
    status st = MEM_NEW(&t, 1);
    if (st != OK) {
        mem_free(be);
        return st;
    }
    t->below = below;
    for (int i = 0; i < N_OPS; i++)
        t->op[i].name = op_names[i];
    *be = (backend){.ops = &timed_table,
                    .tables = below->tables,
                    .tables_below = below->tables_below != NULL ? below->tables_below : below,
                    .act = below->act,
                    .is_host = below->is_host,
                    .name = below->name,
                    .workers = below->workers,
                    .state = t,
                    .destroy = destroy};
    *out = be;
    return OK;
}

const timed_op *timed_ops(const backend *be, int *n) {
    const timed *t = be->state;
    *n = N_OPS;
    return t->op;
}

void timed_reset(backend *be) {
    timed *t = timed_of(be);
    for (int i = 0; i < N_OPS; i++)
        t->op[i].ns = t->op[i].n_calls = 0;
}
