#include "dist/comm_host.h"

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

status comm_meet(comm *c) {
    return c != NULL ? c->ops->barrier(c) : OK;
}
