#include "ops/comm_host.h"

#include <string.h>

/* The communicator whose memory is the host's.  No work of a GPU waits for it, nor it for that. */
static comm *on_host(comm *c) {
    return c->host != NULL ? c->host : c;
}

/* Of one rank, whose memory may be a GPU's. */
static status copy_own(void *to, const void *from, int64_t bytes) {
    if (bytes > 0 && to != from) memmove(to, from, (size_t)bytes);
    return OK;
}

status comm_host_reduce(comm *c, comm_type type, comm_rule rule, int64_t n, void *values) {
    if (c == NULL || c->size == 1) return OK;
    all_reduce_args a = {type, rule, n, values, values};
    return on_host(c)->ops->all_reduce(on_host(c), &a);
}

status comm_host_gather(comm *c, const all_gather_args *a) {
    if (c->size == 1) return copy_own(a->to, a->from, a->n_rows[0] * a->row_bytes);
    return on_host(c)->ops->all_gather(on_host(c), a);
}

status comm_host_exchange(comm *c, const all_to_all_args *a) {
    if (c->size == 1) return copy_own(a->to, a->from, a->n_send[0] * a->row_bytes);
    return on_host(c)->ops->all_to_all(on_host(c), a);
}

status comm_host_broadcast(comm *c, void *memory, size_t bytes, int root) {
    return on_host(c)->ops->broadcast(on_host(c), memory, bytes, root);
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
