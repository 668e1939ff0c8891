/* Patience: how long a request that names no deadline may take.
 *
 * It is learnt while the server can do what it is asked for: as long as the slowest of a hundred
 * requests then takes, and no less than they would take at nine tenths of what the server can do.
 * Overload does not make it longer.  A burst may take some times as long.  What tells the two apart
 * is the debt: the work that was asked for, also of requests that were refused, and that could not
 * be done in the time that has passed since.  A server that is overloaded from its start knows
 * nothing of normal times: it halves its patience every second, down to that least.
 *
 * There is no clock and no lock in it, as in job_queue.h, of which it is a part. */
#ifndef HSTU_SERVE_PATIENCE_H
#define HSTU_SERVE_PATIENCE_H

#include <stdbool.h>
#include <stdint.h>

enum { PATIENCE_BUCKETS = 288 };

typedef struct patience {
    double s, most_s;
    bool is_learnt;
    double debt_s; /* at debt_ns */
    uint64_t debt_ns;
    /* Since since_ns: requests that came, and those that were answered, by what they took. */
    uint64_t since_ns, n_asked, n_answered;
    uint32_t count[PATIENCE_BUCKETS];
} patience;

/* Nothing is known; a request never may take longer than most_s. */
void patience_reset(patience *p, double most_s);

/* A request came, admitted or not, of which a server that is busy does one each job_s seconds. */
void patience_asked(patience *p, double job_s, uint64_t now);

/* An answer took so many seconds. */
void patience_answered(patience *p, double s);

/* Looks at what has been, once a second; least_s: see above. */
void patience_learn(patience *p, double least_s, double job_s, uint64_t now);

/* Whether more was asked for lately than could be done. */
bool patience_is_tried(const patience *p, uint64_t now);

/* Seconds that a request may take that comes now. */
double patience_now(const patience *p, uint64_t now);

#endif
