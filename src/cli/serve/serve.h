/* Options of the KV cache's tiers and precision, for all commands that serve. */
#pragma once

#include "serve/engine/engine.h"

#define KV_HOST_PAGES                                                                              \
    "Pages of a second KV cache tier in host memory, for pages evicted from the device (default "  \
    "0: no second tier)."
#define KV_LOADS                                                                                   \
    "When to load pages from host memory: cost (default; if loading is predicted to be faster "    \
    "than recomputing) or always."
#define KV_DTYPES                                                                                  \
    "Type of cached keys and values: model (default) or fp8, 8 bits with a power-of-two scale "    \
    "per row and head; answers change slightly, and the error is logged."
/* Choices of --kv-dtype and --kv-load; the first one is the default, the second one is not 0. */
extern const char *const kv_args_dtypes[], *const kv_args_loads[];

/* Says in the log what the tiers cost and how large the error of 8 bits is, as they were measured.
 */
void kv_args_tell(const engine_model_info *m);
