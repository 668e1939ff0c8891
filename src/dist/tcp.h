/* tcp: ranks that were started one by one, on any machines, and find each other by the address of
 * rank 0: what torchrun and Kubernetes' operators set (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT).
 *
 * Every pair of ranks has a connection.  A message is its length, as 8 bytes, and its bytes; both
 * sides know the length, so one that differs ends the job.  A watch (watch.h) notices lost ranks.
 */
#pragma once

#include "dist/transport.h"

enum { TCP_MAX_RANKS = 1024, TCP_START_MS = 60000 };

typedef struct tcp_start {
    int rank, size;
    int local_rank, local_size; /* -1: found by the machines' names */
    const char *address;        /* of rank 0 */
    int port;
    const char *secret;         /* that all ranks know; NULL: "" */
    int timeout_ms, silence_ms; /* 0: TCP_START_MS, WATCH_SILENCE_MS */
    bool is_patient;            /* for tests, whose ranks are threads: the watch ends no process */
} tcp_start;

/* Connects this process with all other ranks.  A rank that does not come, comes twice, or counts
 * other ranks is named.  Rank 0 and the others prove to each other that they know the secret: who
 * does not is ignored.  Nothing is encrypted. */
status tcp_create(transport **out, const tcp_start *start);
