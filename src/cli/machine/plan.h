/* The commands of `hstu plan` and `hstu tune`: options and printing.  src/tune does the work. */
#ifndef HSTU_CLI_MACHINE_PLAN_H
#define HSTU_CLI_MACHINE_PLAN_H

#include "cli/cli.h"
#include "tune/fusion_plan.h"

/* The table of `hstu plan`. */
extern const command plan_commands[];
/* The table of `hstu mask` (mask_show.c). */
extern const command mask_commands[];
/* The table of `hstu state` (state.c). */
extern const command state_commands[];

/* The table of `hstu tune`. */
extern const command tune_commands[];

status plan_show(int argc, char **argv);
status plan_run(int argc, char **argv);
status plan_traverse(int argc, char **argv);
status tune_fit(int argc, char **argv);
status tune_predict(int argc, char **argv);

/* Finds argv[1] in a table of commands and runs it; without one, or with --help, prints the table
 * as the parts of `whole` ("plan"). */
status run_part(const char *whole, const char *about, const command *parts, int argc, char **argv);

/* The layer and the sizes that decide which segments are legal; the defaults are BERT-base. */
typedef struct plan_layer_args {
    const char *layer;
    int64_t length, heads, dim, ffn; /* ffn 0: four times the model's columns */
} plan_layer_args;

#define PLAN_LAYER_ARGS                                                                            \
    { .layer = "bert", .length = 128, .heads = 12, .dim = 64 }

/* The rows of an option table for them. */
#define PLAN_LAYER_OPTIONS(a)                                                                      \
    {"--layer", ARG_TEXT, &(a)->layer, "LAYER", "bert (default), hstu or sasrec.", 0, 0},          \
        {"--length", ARG_INT, &(a)->length, "S", "Longest sequence (default 128).", 1, 1 << 20},   \
        {"--heads", ARG_INT, &(a)->heads, "H", "Heads (default 12).", 1, 1024},                    \
        {"--dim", ARG_INT, &(a)->dim, "D", "Head dimension (default 64); the model has H x D.",    \
         1,       1024},                                                                           \
    {                                                                                              \
        "--ffn", ARG_INT, &(a)->ffn, "F",                                                          \
            "Columns of the FFN of a BERT layer (default: four times the model's).", 1, 1 << 18    \
    }

#endif
