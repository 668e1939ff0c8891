#include "ops/combine.h"

#include <string.h>

#include "base/half.h"

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
