#include "ops/comm_host.h"

#include <string.h>

/* The memory of this backend is the host's. */
static bool is_host(const comm *c) {
    return strcmp(c->be->name, "cpu") == 0;
}

static status reduce_copy(comm *c, const all_reduce_args *a, void *values) {
    const ops *f = c->be->ops;
    size_t bytes = (size_t)a->n * comm_type_bytes(a->type);
    all_reduce_args on_device = *a;
    void *copy;
    TRY(f->alloc(c->be, &copy, bytes));
    on_device.from = on_device.to = copy;
    status st = f->copy_in(c->be, copy, values, bytes);
    if (st == OK) st = c->ops->all_reduce(c, &on_device);
    if (st == OK) st = f->copy_out(c->be, values, copy, bytes);
    f->release(c->be, copy);
    return st;
}

status comm_host_reduce(comm *c, comm_type type, comm_rule rule, int64_t n, void *values) {
    if (c == NULL || c->size == 1) return OK;
    all_reduce_args a = {type, rule, n, values, values};
    return is_host(c) ? c->ops->all_reduce(c, &a) : reduce_copy(c, &a, values);
}

static status gather_copy(comm *c, const all_gather_args *a) {
    const ops *f = c->be->ops;
    int64_t n = 0;
    for (int r = 0; r < c->size; r++)
        n += a->n_rows[r] * a->row_bytes;
    size_t own = (size_t)(a->n_rows[c->rank] * a->row_bytes);
    all_gather_args on_device = *a;
    void *from = NULL, *to = NULL;
    status st = f->alloc(c->be, &from, own);
    if (st == OK) st = f->alloc(c->be, &to, (size_t)n);
    if (st == OK) st = f->copy_in(c->be, from, a->from, own);
    on_device.from = from;
    on_device.to = to;
    if (st == OK) st = c->ops->all_gather(c, &on_device);
    if (st == OK) st = f->copy_out(c->be, a->to, to, (size_t)n);
    f->release(c->be, from);
    f->release(c->be, to);
    return st;
}

status comm_host_gather(comm *c, const all_gather_args *a) {
    return is_host(c) ? c->ops->all_gather(c, a) : gather_copy(c, a);
}

static status exchange_copy(comm *c, const all_to_all_args *a) {
    const ops *f = c->be->ops;
    int64_t n_send = 0, n_receive = 0;
    for (int r = 0; r < c->size; r++) {
        n_send += a->n_send[r];
        n_receive += a->n_receive[r];
    }
    size_t out = (size_t)(n_send * a->row_bytes), in = (size_t)(n_receive * a->row_bytes);
    all_to_all_args on_device = *a;
    void *from = NULL, *to = NULL;
    status st = f->alloc(c->be, &from, out);
    if (st == OK) st = f->alloc(c->be, &to, in);
    if (st == OK && out > 0) st = f->copy_in(c->be, from, a->from, out);
    on_device.from = from;
    on_device.to = to;
    if (st == OK) st = c->ops->all_to_all(c, &on_device);
    if (st == OK && in > 0) st = f->copy_out(c->be, a->to, to, in);
    f->release(c->be, from);
    f->release(c->be, to);
    return st;
}

status comm_host_exchange(comm *c, const all_to_all_args *a) {
    return is_host(c) ? c->ops->all_to_all(c, a) : exchange_copy(c, a);
}

static status broadcast_copy(comm *c, void *memory, size_t bytes, int root) {
    const ops *f = c->be->ops;
    void *copy = NULL;
    TRY(f->alloc(c->be, &copy, bytes));
    status st = f->copy_in(c->be, copy, memory, bytes);
    if (st == OK) st = c->ops->broadcast(c, copy, bytes, root);
    if (st == OK) st = f->copy_out(c->be, memory, copy, bytes);
    f->release(c->be, copy);
    return st;
}

status comm_host_broadcast(comm *c, void *memory, size_t bytes, int root) {
    return is_host(c) ? c->ops->broadcast(c, memory, bytes, root)
                      : broadcast_copy(c, memory, bytes, root);
}

status comm_host_agree(comm *c, status own) {
    failure f;
    if (c == NULL || c->size == 1) return own;
    int64_t last = own != OK ? c->size - c->rank : 0; /* the maximum is that of the first rank */
    failure_save(&f, own);
    TRY(comm_host_reduce(c, COMM_I64, COMM_MAX, 1, &last));
    if (last == 0) return OK;
    int failed = c->size - (int)last;
    TRY(comm_host_broadcast(c, &f, sizeof f, failed));
    f.code = f.code == OK ? ERR_IO : f.code;
    f.reason[sizeof f.reason - 1] = f.trace[sizeof f.trace - 1] = '\0';
    status st = failure_restore(&f);
    bool is_told = strncmp(f.reason, "rank ", 5) == 0; /* by an earlier agreement */
    return is_told ? st : fail_prefix(st, "rank %d", failed);
}

status comm_meet(comm *c) {
    return c != NULL ? c->ops->barrier(c) : OK;
}
