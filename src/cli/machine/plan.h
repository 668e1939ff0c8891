/* What `hstu plan` and `hstu tune` share: the options for a layer and a batch, and everything that
 * running plans needs, opened and closed together.  src/tune does the work. */
#pragma once

#include "cli/cli.h"
#include "cli/work.h"
#include "tune/plan_runner.h"

/* A layer, a batch, a mask, a device and the cache of compiled kernels; the layer's defaults are
 * BERT base. */
typedef struct plan_args {
    const char *layer, *mask, *device, *cache;
    int dtype;         /* -1: as suits the device */
    chain_shape shape; /* n_tokens is not read */
    int64_t avg_len, seed;
} plan_args;

#define PLAN_ARGS                                                                                  \
    {                                                                                              \
        .layer = "bert", .mask = "none", .device = "auto", .dtype = -1, .seed = 1, .shape = {      \
            .n_sequences = 1,                                                                      \
            .max_len = 128,                                                                        \
            .n_heads = 12,                                                                         \
            .dim_head = 64                                                                         \
        }                                                                                          \
    }

/* Options for the layer and the sizes that decide which segments are legal. */
#define PLAN_LAYER_OPTIONS(a)                                                                      \
    OPT_TEXT("--layer", &(a)->layer, "LAYER", "bert (default), hstu or sasrec."),                  \
        OPT_INT("--length", &(a)->shape.max_len, "S", 1, 1 << 20,                                  \
                "Longest sequence, in tokens (default 128)."),                                     \
        OPT_INT("--heads", &(a)->shape.n_heads, "H", 1, 1024, "Heads (default 12)."),              \
        OPT_INT("--dim", &(a)->shape.dim_head, "D", 1, 1024,                                       \
                "Head dimension (default 64); the model is H x D wide."),                          \
        OPT_INT("--ffn", &(a)->shape.dim_ffn, "F", 1, 1 << 18,                                     \
                "Width of the FFN of a BERT layer (default: four times the model's).")

/* All options. */
#define PLAN_OPTIONS(a)                                                                            \
    OPT_GROUP("Layer and batch"), PLAN_LAYER_OPTIONS(a),                                           \
        OPT_INT("--batch", &(a)->shape.n_sequences, "B", 1, 1 << 20,                               \
                "Sequences in the batch (default 1)."),                                            \
        OPT_INT("--avg-len", &(a)->avg_len, "A", 1, 1 << 20,                                       \
                "Mean length of a jagged batch (default: every sequence has S tokens)."),          \
        OPT_TEXT("--mask", &(a)->mask, "MASK",                                                     \
                 "none (default), or any mask of 'hstu mask show'."),                              \
        OPT_INT("--seed", &(a)->seed, "N", 0, INT64_MAX,                                           \
                "Seed of the random weights and input (default 1)."),                              \
        OPT_GROUP("Device"), OPT_TEXT("--device", &(a)->device, "DEVICE", WORK_DEVICES),           \
        OPT_CHOICE(                                                                                \
            "--dtype", &(a)->dtype, "TYPE", work_dtypes,                                           \
            "float16 (default), bfloat16 or float32 on a GPU; the CPU computes in float32."),      \
        OPT_TEXT("--cache", &(a)->cache, "DIR",                                                    \
                 "Cache of compiled kernels (default ~/.cache/hstu/kernels).")

typedef struct plan_rig {
    pool *workers;
    target *t;
    mask *rule;
    chain_problem *p;
    plan_runner *r;
} plan_rig;

/* The 16 bits of a plan, as show_printf gives them. */
const char *show_plan(uint16_t value);

status plan_rig_open(plan_rig *g, const plan_args *a);
void plan_rig_close(plan_rig *g); /* a failed open too */
