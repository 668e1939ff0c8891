/* Runs plans of one layer on one problem: compiles the kernels a plan needs, once each, runs them
 * in order, checks the result and takes the time.
 *
 * Kernels, and the tensors between them, are kept for later plans.  One thread at a time;
 * plan_runner_prepare compiles with all threads of its pool. */
#pragma once

#include "tune/chain_problem.h"
#include "tune/target.h"

typedef struct plan_runner plan_runner;

/* The problem, the target and the pool (NULL: one thread) must outlive it. */
status plan_runner_create(plan_runner **out, const chain_problem *p, target *t, pool *workers);
void plan_runner_destroy(plan_runner *r); /* NULL is fine */

const chain_problem *plan_runner_problem(const plan_runner *r);

/* Whether bit 0 can act here. */
bool plan_runner_has_hand_written(const plan_runner *r);

/* Lets a GPU rest for 50 ms: under load it lowers its clock to keep to its power limit. */
void plan_runner_rest(const plan_runner *r);

/* The kernels of a plan on this problem. */
void plan_runner_lower(const plan_runner *r, uint16_t value, plan_program *out);

/* Compiles what these plans need with the tile parameters chosen now, in parallel. */
status plan_runner_prepare(plan_runner *r, const uint16_t *values, size_t n);

/* Compiles every kernel that a plan of this layer can have, with all its tile parameters (the first
 * max_tiles; 0: all), in parallel. */
status plan_runner_prepare_all(plan_runner *r, int max_tiles);

/* A kernel that some plan may have: its tile parameters (layer_tiles), and those that were
 * compiled. */
typedef struct runner_kernel {
    int n_tiles; /* 0: not asked yet */
    int tile;    /* that is used: to be set by anyone */
    tile_params params[EMIT_MAX_TILES];
    target_kernel *compiled[EMIT_MAX_TILES];
} runner_kernel;

/* The kernel of operators first..last, whose tile parameters are known. */
status plan_runner_kernel(plan_runner *r, int first, int last, runner_kernel **out);

/* The largest difference from the float64 reference over the checked rows, and how much is
 * allowed: twice that of the plain loops in the same precision. */
typedef struct plan_error {
    double found, allowed;
} plan_error;

/* Runs a plan on memory that is filled with NaN first, and compares the output.  ERR_NUMERIC if it
 * is off by more than is allowed. */
status plan_runner_check(plan_runner *r, uint16_t value, plan_error *out);

/* The median over `rounds` of the time of one run, in milliseconds, after a warm-up. */
status plan_runner_time(plan_runner *r, uint16_t value, int rounds, double *ms);
status plan_runner_time_kernel(plan_runner *r, const plan_kernel *k, int rounds, double *ms);

/* Bytes that the kernels of a plan read and write at least, tensors counted once a kernel; and the
 * floating-point operations of its products. */
void plan_runner_cost(const plan_runner *r, const plan_kernel *k, double *bytes, double *flops);

/* The compiled kernel's figures; of the hand-written one only zeros. */
status plan_runner_facts(plan_runner *r, const plan_kernel *k, kernel_facts *out, int64_t *blocks);
