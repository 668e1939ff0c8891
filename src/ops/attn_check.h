/* The checks of the attention's arguments that every backend relies on. */
#ifndef HSTU_OPS_ATTN_CHECK_H
#define HSTU_OPS_ATTN_CHECK_H

#include "ops/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Checks the arguments that are on the host, not the content of the offsets.  ERR_USAGE names the
 * argument. */
status attn_args_check(const attn_args *a);
status softmax_attn_args_check(const softmax_attn_args *a);

#ifdef __cplusplus
}
#endif
#endif
