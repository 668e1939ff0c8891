/* Serve growing: users who come back with longer histories, as in NVIDIA's end-to-end benchmark of
 * its KV cache (16 requests, histories growing by 256 tokens to 4096, 256 candidates): some users
 * send their requests at the same time, wait for all answers, and send the next ones.  Everything
 * between request and answer counts: embeddings, cache, layers, head and queue. */
#ifndef HSTU_CLI_BENCH_SERVE_GROWING_H
#define HSTU_CLI_BENCH_SERVE_GROWING_H

#include "cli/bench/serve_load.h"

enum { GROWING_MAX = 256 }; /* requests of a user */

typedef struct growing_plan {
    load_items items;
    uint32_t n_users, n_requests; /* at the same time; one after the other */
    uint32_t n_events;            /* of the last histories; request i has i parts of n_requests */
    uint32_t n_candidates, top_k;
    uint32_t n_warmup, n_repeats; /* of all requests, each time with other users */
    uint64_t seed;
} growing_plan;

typedef struct growing_report {
    double total_ms;                       /* of all requests of the users, median of the repeats */
    double least_ms, most_ms;              /* of the repeats */
    double round_ms[GROWING_MAX];          /* (n_requests): each, of the median repeat */
    double tokens_reused, tokens_computed; /* of one repeat */
    double round_reused[GROWING_MAX], round_computed[GROWING_MAX]; /* of these, each request's */
} growing_report;

/* ERR_IO: some requests were not answered, and why. */
status serve_growing(load_target *t, const growing_plan *p, growing_report *out);

/* NVIDIA's published milliseconds on an L20 for 16 requests to 4096 tokens (embeddings and cache
 * included): without a cache, or with one and CUDA graphs; NAN: not among them. */
double growing_l20_ms(uint32_t n_users, bool has_cache);

#endif
