/* Op head_fwd by the ops that it consists of, for any backend. */
#ifndef HSTU_OPS_HEAD_H
#define HSTU_OPS_HEAD_H

#include "ops/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

status head_by_steps(backend *be, const head_args *a);

#ifdef __cplusplus
}
#endif

#endif
