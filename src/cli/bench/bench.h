/* The benches' commands: options and printing.  src/bench measures, after it has checked that what
 * it measures is right. */
#ifndef HSTU_CLI_BENCH_BENCH_H
#define HSTU_CLI_BENCH_BENCH_H

#include "base/status.h"
#include "cli/cli.h"
#include "cli/work.h"
#include "ops/ops.h"

/* The table of `hstu bench`. */
extern const command bench_commands[];

status bench_attention(int argc, char **argv);
status bench_cache(int argc, char **argv);
status bench_cluster(int argc, char **argv);
status bench_data(int argc, char **argv);
status bench_dataset(int argc, char **argv);
status bench_embedding(int argc, char **argv);
status bench_encode(int argc, char **argv);
status bench_latency(int argc, char **argv);
status bench_layers(int argc, char **argv);
status bench_masks(int argc, char **argv);
status bench_search(int argc, char **argv);
status bench_throughput(int argc, char **argv);
status bench_train(int argc, char **argv);

/* "float32", "bfloat16", "float16". */
const char *bench_act_name(act_type act);
/* The value of --dtype. */
status bench_find_act(const char *name, act_type *out);
/* Opens a device that computes in the type of --dtype; without data. */
status bench_open(work *w, const char *device, const char *dtype);

#endif
