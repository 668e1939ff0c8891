/* What the attention of every backend relies on: bounds and shapes that fit each other. */
#ifndef HSTU_OPS_ATTN_CHECK_H
#define HSTU_OPS_ATTN_CHECK_H

#include "ops/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Checks the arguments that lie on the host; what the offsets hold is not looked at.  ERR_USAGE
 * names the argument. */
status attn_args_check(const attn_args *a);

#ifdef __cplusplus
}
#endif
#endif
