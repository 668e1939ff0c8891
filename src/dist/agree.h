/* Agreement: what all ranks of a job must have in common, compared before they work together. */
#ifndef HSTU_DIST_AGREE_H
#define HSTU_DIST_AGREE_H

#include "dist/transport.h"

/* Clocks may differ by so much: files' times and logs would be of no use otherwise. */
enum { AGREE_CLOCK_S = 60, AGREE_TEXT_BYTES = 64 };

typedef struct rank_facts {
    char version[AGREE_TEXT_BYTES]; /* of the program */
    uint64_t config;                /* hash of the config and of what the command line changed */
    uint64_t data;                  /* fingerprint of the data */
    int64_t clock_s;                /* seconds since 1970 */
    char host[AGREE_TEXT_BYTES];
} rank_facts;

/* This process's version, time and host; the rest is 0. */
rank_facts rank_facts_here(void);

/* ERR_CONFIG on every rank, with the same message: which rank, on which machine, has what else than
 * rank 0.  t NULL: one rank, which agrees. */
status ranks_agree(transport *t, const rank_facts *own);

#endif
