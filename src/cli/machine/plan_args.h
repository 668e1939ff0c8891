/* What `hstu plan run`, `plan traverse` and `tune` have in common: a layer, a batch, a mask, a
 * device and the cache of compiled kernels, opened and closed together. */
#ifndef HSTU_CLI_MACHINE_PLAN_ARGS_H
#define HSTU_CLI_MACHINE_PLAN_ARGS_H

#include "cli/cli.h"
#include "tune/plan_runner.h"

typedef struct plan_args {
    const char *layer, *mask, *dtype, *device, *cache;
    int64_t batch, length, avg_len, heads, dim, ffn, seed;
} plan_args;

#define PLAN_ARGS                                                                                  \
    {                                                                                              \
        .layer = "bert", .mask = "none", .device = "auto", .batch = 1, .length = 128, .heads = 12, \
        .dim = 64, .seed = 1                                                                       \
    }

/* The rows of an option table. */
#define PLAN_OPTIONS(a)                                                                            \
    {"Layer and batch", ARG_FLAG, NULL, NULL, NULL, 0, 0},                                         \
        {"--layer", ARG_TEXT, &(a)->layer, "LAYER", "bert (default), hstu or sasrec.", 0, 0},      \
        {"--batch", ARG_INT, &(a)->batch, "B", "Sequences (default 1).", 1, 1 << 20},              \
        {"--length", ARG_INT, &(a)->length, "S", "Longest sequence (default 128).", 1, 1 << 20},   \
        {"--avg-len",                                                                              \
         ARG_INT,                                                                                  \
         &(a)->avg_len,                                                                            \
         "A",                                                                                      \
         "Average length of a jagged batch (default: every sequence has S tokens).",               \
         1,                                                                                        \
         1 << 20},                                                                                 \
        {"--heads", ARG_INT, &(a)->heads, "H", "Heads (default 12).", 1, 1024},                    \
        {"--dim", ARG_INT, &(a)->dim, "D", "Head dimension (default 64).", 1, 1024},               \
        {"--ffn",                                                                                  \
         ARG_INT,                                                                                  \
         &(a)->ffn,                                                                                \
         "F",                                                                                      \
         "Columns of the FFN of a BERT layer (default: four times the model's).",                  \
         1,                                                                                        \
         1 << 18},                                                                                 \
        {"--mask", ARG_TEXT, &(a)->mask, "MASK", "none (default), or any of 'hstu mask show'.",    \
         0,        0},                                                                             \
        {"--seed", ARG_INT,  &(a)->seed, "N", "Of the random weights and input (default 1).",      \
         0,        INT64_MAX},                                                                     \
        {"Device", ARG_FLAG, NULL, NULL, NULL, 0, 0},                                              \
        {"--device",                                                                               \
         ARG_TEXT,                                                                                 \
         &(a)->device,                                                                             \
         "DEVICE",                                                                                 \
         "auto (default: a GPU where there is one), cpu, cuda or cuda:N.",                         \
         0,                                                                                        \
         0},                                                                                       \
        {"--dtype",                                                                                \
         ARG_TEXT,                                                                                 \
         &(a)->dtype,                                                                              \
         "TYPE",                                                                                   \
         "float16 (default), bfloat16 or float32 on a GPU; a CPU computes in float32.",            \
         0,                                                                                        \
         0},                                                                                       \
    {                                                                                              \
        "--cache", ARG_TEXT, &(a)->cache, "DIR",                                                   \
            "Where compiled kernels are kept (default ~/.cache/hstu/kernels).", 0, 0               \
    }

typedef struct plan_rig {
    pool *workers;
    target *t;
    mask *rule;
    chain_problem *p;
    plan_runner *r;
} plan_rig;

status plan_rig_open(plan_rig *g, const plan_args *a);
void plan_rig_close(plan_rig *g); /* a failed open too */

/* "bert on cpu in float32: batch 8, length 128, 1024 tokens, 12 x 64, mask none" */
status plan_rig_text(const plan_rig *g, const plan_args *a, buf *out);

#endif
