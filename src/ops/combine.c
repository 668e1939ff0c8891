#include "ops/combine.h"

#include <string.h>

#define COMBINE(type, to, from, n, rule)                                                           \
    for (int64_t i_ = 0; i_ < (n); i_++) {                                                         \
        type a_ = ((const type *)(to))[i_], b_ = ((const type *)(from))[i_];                       \
        ((type *)(to))[i_] = (type)((rule) == COMM_SUM ? a_ + b_ : a_ > b_ ? a_ : b_);             \
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
    }
}

#ifndef HSTU_HAS_CUDA
status combine_cuda(void *stream, comm_type type, comm_rule rule, int64_t n, const void *from,
                    void *to) {
    (void)stream, (void)type, (void)rule, (void)n, (void)from, (void)to;
    return fail(ERR_UNSUPPORTED, "this build is without CUDA");
}
#endif

status combine(backend *be, comm_type type, comm_rule rule, int64_t n, const void *from, void *to) {
    if (n == 0) return OK;
    if (strcmp(be->name, "cpu") != 0)
        return combine_cuda(be->ops->stream(be), type, rule, n, from, to);
    combine_host(type, rule, n, from, to);
    return OK;
}
