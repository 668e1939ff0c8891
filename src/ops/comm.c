/* Collectives on memory of the host, and the sum of two arrays. */
#include "ops/comm.h"

#include "base/half.h"

void comm_destroy(comm *c) {
    if (c != NULL) c->destroy(c);
}

void comm_give_up(comm *c) {
    if (c != NULL && c->ops->give_up != NULL) c->ops->give_up(c);
}

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

#define COMBINE(type, to, from, n, rule)                                                           \
    for (int64_t i_ = 0; i_ < (n); i_++) {                                                         \
        type a_ = ((const type *)(to))[i_], b_ = ((const type *)(from))[i_];                       \
        ((type *)(to))[i_] = (type)((rule) == COMM_SUM ? a_ + b_ : a_ > b_ ? a_ : b_);             \
    }

static void combine_half(comm_type type, comm_rule rule, int64_t n, const uint16_t *from,
                         uint16_t *to) {
    bool is_bf16 = type == COMM_BF16;
    for (int64_t i = 0; i < n; i++) {
        float a = is_bf16 ? half_bf16_to_float(to[i]) : half_f16_to_float(to[i]);
        float b = is_bf16 ? half_bf16_to_float(from[i]) : half_f16_to_float(from[i]);
        float x = rule == COMM_SUM ? a + b : a > b ? a : b;
        to[i] = is_bf16 ? half_bf16_from_float(x) : half_f16_from_float(x);
    }
}

void combine_host(comm_type type, comm_rule rule, int64_t n, const void *from, void *to) {
    switch (type) {
    case COMM_F32:
        COMBINE(float, to, from, n, rule)
        break;
    case COMM_F64:
        COMBINE(double, to, from, n, rule)
        break;
    case COMM_I64:
        COMBINE(int64_t, to, from, n, rule)
        break;
    case COMM_U8:
        COMBINE(uint8_t, to, from, n, rule)
        break;
    case COMM_BF16:
    case COMM_F16:
        combine_half(type, rule, n, from, to);
        break;
    }
}

#ifndef HSTU_HAS_CUDA
status combine_cuda(void *stream, comm_type type, comm_rule rule, int64_t n, const void *from,
                    void *to) {
    return fail(ERR_UNSUPPORTED, "this build is without CUDA");
}
#endif

status combine(backend *be, comm_type type, comm_rule rule, int64_t n, const void *from, void *to) {
    if (n == 0) return OK;
    if (!be->is_host) return combine_cuda(be->ops->stream(be), type, rule, n, from, to);
    combine_host(type, rule, n, from, to);
    return OK;
}
