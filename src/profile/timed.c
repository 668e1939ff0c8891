#include "profile/timed.h"

#include "base/clock.h"
#include "base/mem.h"

/* Every op whose arguments are one struct, in the order of ops.h. */
#define ARGS_OPS(X)                                                                                \
    X(gather, gather_args)                                                                         \
    X(scatter, scatter_args)                                                                       \
    X(linear_fwd, linear_args)                                                                     \
    X(linear_bwd, linear_args)                                                                     \
    X(norm_fwd, norm_args)                                                                         \
    X(norm_bwd, norm_args)                                                                         \
    X(gate_fwd, gate_args)                                                                         \
    X(gate_bwd, gate_args)                                                                         \
    X(dropout, dropout_args)                                                                       \
    X(l2_fwd, l2_args)                                                                             \
    X(l2_bwd, l2_args)                                                                             \
    X(attn_fwd, attn_args)                                                                         \
    X(attn_bwd, attn_args)                                                                         \
    X(softmax_attn_fwd, softmax_attn_args)                                                         \
    X(softmax_attn_bwd, softmax_attn_args)                                                         \
    X(negatives, negatives_args)                                                                   \
    X(sampled_softmax, sampled_softmax_args)                                                       \
    X(logits_loss, logits_loss_args)                                                               \
    X(grad_factor, grad_factor_args)                                                               \
    X(rank, rank_args)

#define AS_INDEX(name, args) AT_##name,
enum {
    ARGS_OPS(AS_INDEX) AT_group,
    AT_add,
    AT_activate,
    AT_mark,
    AT_update,
    AT_sum_squares,
    AT_zero,
    AT_copy_in,
    AT_copy_out,
    N_OPS
};

#define AS_NAME(name, args) #name,
static const char *const op_names[N_OPS] = {ARGS_OPS(AS_NAME) "group",
                                            "add",
                                            "activate",
                                            "mark",
                                            "update",
                                            "sum_squares",
                                            "zero",
                                            "copy_in",
                                            "copy_out"};

_Static_assert((int)N_OPS <= (int)TIMED_MAX_OPS, "too many ops");

typedef struct timed {
    backend *below;
    timed_op op[N_OPS];
} timed;

static timed *timed_of(backend *be) {
    return be->state;
}

/* Books an op that began at start_ns, once the device is done with it. */
static status book(timed *t, int index, uint64_t start_ns, status st) {
    if (st == OK) st = t->below->ops->sync(t->below);
    t->op[index].ns += clock_ns() - start_ns;
    t->op[index].n_calls++;
    return st;
}

#define AS_FUNCTION(name, args)                                                                    \
    static status timed_##name(backend *be, const args *a) {                                       \
        timed *t = timed_of(be);                                                                   \
        uint64_t start = clock_ns();                                                               \
        return book(t, AT_##name, start, t->below->ops->name(t->below, a));                        \
    }
ARGS_OPS(AS_FUNCTION)

static status timed_group(backend *be, const int32_t *index, row_groups *groups) {
    timed *t = timed_of(be);
    uint64_t start = clock_ns();
    return book(t, AT_group, start, t->below->ops->group(t->below, index, groups));
}

static status timed_add(backend *be, int64_t n, const void *x, void *y) {
    timed *t = timed_of(be);
    uint64_t start = clock_ns();
    return book(t, AT_add, start, t->below->ops->add(t->below, n, x, y));
}

static status timed_activate(backend *be, epilogue f, int64_t n, const void *z, void *y) {
    timed *t = timed_of(be);
    uint64_t start = clock_ns();
    return book(t, AT_activate, start, t->below->ops->activate(t->below, f, n, z, y));
}

static status timed_mark(backend *be, int64_t n, const int32_t *index, int32_t offset,
                         uint8_t *marks) {
    timed *t = timed_of(be);
    uint64_t start = clock_ns();
    return book(t, AT_mark, start, t->below->ops->mark(t->below, n, index, offset, marks));
}

static status timed_update(backend *be, const update_args *a, int n) {
    timed *t = timed_of(be);
    uint64_t start = clock_ns();
    return book(t, AT_update, start, t->below->ops->update(t->below, a, n));
}

static status timed_sum_squares(backend *be, int64_t n, const float *grad, double *out) {
    timed *t = timed_of(be);
    uint64_t start = clock_ns();
    return book(t, AT_sum_squares, start, t->below->ops->sum_squares(t->below, n, grad, out));
}

static status timed_zero(backend *be, void *memory, size_t bytes) {
    timed *t = timed_of(be);
    uint64_t start = clock_ns();
    return book(t, AT_zero, start, t->below->ops->zero(t->below, memory, bytes));
}

static status timed_copy_in(backend *be, void *to, const void *from_host, size_t bytes) {
    timed *t = timed_of(be);
    uint64_t start = clock_ns();
    return book(t, AT_copy_in, start, t->below->ops->copy_in(t->below, to, from_host, bytes));
}

static status timed_copy_out(backend *be, void *to_host, const void *from, size_t bytes) {
    timed *t = timed_of(be);
    uint64_t start = clock_ns();
    return book(t, AT_copy_out, start, t->below->ops->copy_out(t->below, to_host, from, bytes));
}

/* Memory and waiting are not counted; nothing is recorded, so that every op is seen. */
static status forward_precision(backend *be, act_type act, bool is_tf32) {
    timed *t = timed_of(be);
    TRY(t->below->ops->set_precision(t->below, act, is_tf32));
    be->act = t->below->act;
    return OK;
}

static status forward_fetch(backend *be, void *to_host, const void *from, size_t bytes,
                            uint64_t *ticket) {
    timed *t = timed_of(be);
    return t->below->ops->fetch(t->below, to_host, from, bytes, ticket);
}

static status forward_wait(backend *be, uint64_t ticket) {
    timed *t = timed_of(be);
    return t->below->ops->wait(t->below, ticket);
}

static status run_always(backend *be, uint64_t key, record_state *out) {
    (void)be;
    (void)key;
    *out = RECORD_RUN;
    return OK;
}

static status nothing_recorded(backend *be) {
    (void)be;
    return OK;
}

static status forward_alloc(backend *be, void **out, size_t bytes) {
    timed *t = timed_of(be);
    return t->below->ops->alloc(t->below, out, bytes);
}

static void forward_release(backend *be, void *memory) {
    timed *t = timed_of(be);
    t->below->ops->release(t->below, memory);
}

static status forward_sync(backend *be) {
    timed *t = timed_of(be);
    return t->below->ops->sync(t->below);
}

static size_t forward_scratch(backend *be, int64_t max_n, int32_t n_negatives, int32_t dim,
                              int32_t n_rows) {
    timed *t = timed_of(be);
    return t->below->ops->sampled_softmax_scratch(t->below, max_n, n_negatives, dim, n_rows);
}

#define AS_MEMBER(name, args) .name = timed_##name,
static const ops timed_table = {ARGS_OPS(AS_MEMBER).group = timed_group,
                                .add = timed_add,
                                .activate = timed_activate,
                                .mark = timed_mark,
                                .update = timed_update,
                                .sum_squares = timed_sum_squares,
                                .zero = timed_zero,
                                .copy_in = timed_copy_in,
                                .copy_out = timed_copy_out,
                                .set_precision = forward_precision,
                                .fetch = forward_fetch,
                                .wait = forward_wait,
                                .record = run_always,
                                .record_end = nothing_recorded,
                                .alloc = forward_alloc,
                                .release = forward_release,
                                .sync = forward_sync,
                                .sampled_softmax_scratch = forward_scratch};

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
                    .tables_below = below,
                    .act = below->act,
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
