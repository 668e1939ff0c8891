/* Generated data: what BenchmarkDatasetArgs describes (NVIDIA's benchmarks of speed), drawn at
 * random into an ordinary data set.
 *
 * Lengths, items, actions and contextual values follow the config's distributions; an action is
 * also the label, and its bits are the tasks.  A distribution without an upper bound is bounded by
 * the table of its feature.  GENERATED_BATCHES batches are made at most (the reference makes 100)
 * and repeated, as in the reference: so the tables, which have room for the ids that occur, stay
 * small compared with the capacities of the config. */
#pragma once

#include "config/config.h"
#include "data/set/seq_file.h"
#include "data/synth/bench_data.h"

enum { GENERATED_BATCHES = 8 };

/* Converts a config with is_benchmark into the sizes and distributions to draw; names belong to the
 * config, which must outlive *out.  ERR_CONFIG: features that we cannot train on, and why. */
status generated_describe(bench_data_config *out, const config *c);

/* Draws and opens it (seq_file_close closes it), and says in a line of the log what the tables
 * hold. The file has no name on the disk. */
status generated_open(seq_file **out, const config *c, pool *p);
