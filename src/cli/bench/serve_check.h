/* Serve check: random schedules against two engines on the same model, one with a small KV cache
 * and one without, whose answers must be equal.
 *
 * A schedule appends events, also late ones, erases users, asks for whole histories that are cut or
 * edited in the middle, and asks several things at once, so that they share batches; the cache is
 * so small that pages are evicted all the time.  Now and then the model is reloaded, or the engine
 * with the cache is ended and a new one is given the users' records.  On the CPU answers are
 * compared bit by bit, elsewhere within a tolerance. */
#ifndef HSTU_CLI_BENCH_SERVE_CHECK_H
#define HSTU_CLI_BENCH_SERVE_CHECK_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

typedef struct serve_check_config {
    const char *run;    /* a run, a checkpoint or an engine folder */
    const char *data;   /* users to start with; or NULL */
    const char *device; /* "cpu", ... */
    uint64_t n;         /* schedules */
    uint64_t seed;
    int64_t kv_pages;                         /* 0: as many as five full histories need */
    int64_t kv_host_pages;                    /* of the second tier, from which pages are always
                                                 loaded; 0: there is none */
    bool has_fp8_kv;                          /* of both engines */
    double tolerance;                         /* 0: bit for bit */
    void (*tell)(void *ctx, uint64_t n_done); /* or NULL */
    void *ctx;
} serve_check_config;

typedef struct serve_check_result {
    uint64_t n_schedules, n_answers, n_different;
    uint64_t tokens_reused, tokens_computed, tokens_loaded, n_evictions, n_reloads, n_restarts;
    char first[160]; /* the first difference, in words; "" */
} serve_check_result;

/* ERR_UNSUPPORTED: the model's prefixes cannot be reused, and why. */
status serve_check(const serve_check_config *c, serve_check_result *out);

#endif
