/* Options of the KV cache's tiers and precision, for all commands that serve. */
#ifndef HSTU_CLI_SERVE_SERVE_H
#define HSTU_CLI_SERVE_SERVE_H

#include "serve/engine/engine.h"

#define KV_HOST_PAGES                                                                              \
    "Pages of a second tier of the KV cache, in host memory: those that are evicted from the "     \
    "device go there (default 0: none)."
#define KV_LOADS                                                                                   \
    "Of pages in host memory: cost (default) loads them where that is predicted to be faster "     \
    "than "                                                                                        \
    "computing them again, always does it in any case."
#define KV_DTYPES                                                                                  \
    "Of keys and values: model (default) or fp8, 8 bits with a power of two for each row and "     \
    "head; answers change a little, and the error is told."

/* NULL: the default.  ERR_USAGE: what can be given. */
status kv_args_dtype(const char *text, bool *is_fp8);
status kv_args_load(const char *text, bool *is_always);

/* Says in the log what the tiers cost and how large the error of 8 bits is, as they were measured.
 */
void kv_args_tell(const engine_model_info *m);

#endif
