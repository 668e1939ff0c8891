#include "base/mem.h"
#include "ops/comm.h"

static status copy_rows(comm *c, void *to, const void *from, int64_t n, int64_t row_bytes) {
    if (to == from) return OK;
    return c->be->ops->copy(c->be, to, from, (size_t)n * (size_t)row_bytes);
}

static status self_all_reduce(comm *c, const all_reduce_args *a) {
    return copy_rows(c, a->to, a->from, a->n, (int64_t)comm_type_bytes(a->type));
}

static status self_all_to_all(comm *c, const all_to_all_args *a) {
    if (a->n_send[0] != a->n_receive[0])
        return fail(ERR_USAGE, "all-to-all: the only rank sends %lld rows and receives %lld",
                    (long long)a->n_send[0], (long long)a->n_receive[0]);
    return copy_rows(c, a->to, a->from, a->n_send[0], a->row_bytes);
}

static status self_all_gather(comm *c, const all_gather_args *a) {
    return copy_rows(c, a->to, a->from, a->n_rows[0], a->row_bytes);
}

static status self_broadcast(comm *c, void *memory, size_t bytes, int root) {
    (void)memory;
    (void)bytes;
    if (root != 0) return fail(ERR_USAGE, "broadcast: there is no rank %d among %d", root, c->size);
    return OK;
}

static status self_barrier(comm *c) {
    return c->be->ops->sync(c->be);
}

static void self_note_step(comm *c, uint64_t step) {
    (void)c;
    (void)step;
}

static const comm_ops self_ops = {.all_reduce = self_all_reduce,
                                  .all_to_all = self_all_to_all,
                                  .all_gather = self_all_gather,
                                  .broadcast = self_broadcast,
                                  .barrier = self_barrier,
                                  .note_step = self_note_step};

static void self_destroy(comm *c) {
    mem_free(c);
}

status comm_create_self(comm **out, backend *be) {
    TRY(MEM_NEW(out, 1));
    **out = (comm){.ops = &self_ops, .be = be, .size = 1, .destroy = self_destroy};
    return OK;
}

void comm_destroy(comm *c) {
    if (c != NULL) c->destroy(c);
}

void comm_give_up(comm *c) {
    if (c != NULL && c->ops->give_up != NULL) c->ops->give_up(c);
}
