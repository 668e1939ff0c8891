/* The speed of NVIDIA's two HSTU attention kernels at the shapes of the published tables, for
 * comparison in `hstu bench attention`.
 *
 * Measured on one H200 in bfloat16, four heads, causal, alpha 1/sqrt(D), output / S, on 2026-11-15:
 * the kernel for Hopper (CUTLASS 3) and the one for Ampere (compute_80), as plain calls from
 * PyTorch, which include the host's time, and alone, replayed from a graph of 20 calls. */
#ifndef HSTU_CLI_BENCH_ATTN_PEERS_H
#define HSTU_CLI_BENCH_ATTN_PEERS_H

#include "cli/bench/attn_problem.h"

typedef enum { PEER_HOPPER, PEER_AMPERE, N_PEERS } attn_peer;
typedef enum { TIMED_PLAIN, TIMED_REPLAY, N_TIMINGS } attn_timing;
typedef enum { PASS_FORWARD, PASS_BACKWARD, N_PASSES } attn_pass;

/* TFLOP/s, counted as attn_problem counts them (backward: 2.5 times forward); NAN where there is no
 * figure.  Lengths of jagged batches are drawn in every run, so TFLOP/s are compared, not times. */
double attn_peer_tflops(const attn_shape *s, attn_peer peer, attn_timing how, attn_pass pass);

/* The figure of the better kernel; with is_any_card, the Ampere kernel's. */
double attn_peer_best(const attn_shape *s, bool is_any_card, attn_timing how, attn_pass pass);

#endif
