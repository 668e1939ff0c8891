/* Benches: each measures one claim and checks that what it measures is right before it does. */
#ifndef HSTU_CLI_BENCH_H
#define HSTU_CLI_BENCH_H

#include "base/status.h"

status bench_attention(int argc, char **argv);
status bench_data(int argc, char **argv);
status bench_embedding(int argc, char **argv);
status bench_train(int argc, char **argv);

#endif
