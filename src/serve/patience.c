#include "serve/patience.h"

#include <math.h>
#include <string.h>

/* What a window must hold to say something. */
static const uint64_t WINDOW_NS = 1000000000, LEAST_ASKED = 400;

/* What counts of the time without a request, in seconds or in requests, whichever is longer. */
static const double PAUSE_S = 0.1, PAUSE_JOBS = 10;

/* Shares of what the server can do: up to the first one times are normal; from the second on there
 * is overload. */
static const double NORMAL = 0.95, OVERLOAD = 1.1;

/* A debt of this share of the patience is more than a burst.  Requests then may take a little less
 * than the patience, for what predictions miss, and else so many times as long. */
static const double DEBT = 0.7, HELD = 0.9, BURST = 4;

/* The least that is told apart, and the buckets of a factor of two. */
static const double FIRST_S = 50e-6, PER_OCTAVE = 16;

void patience_reset(patience *p, double most_s) {
    *p = (patience){.s = most_s, .most_s = most_s};
}

static double debt_at(const patience *p, uint64_t now) {
    double left = p->debt_s - (double)(int64_t)(now - p->debt_ns) / 1e9;
    return left > 0 ? left : 0;
}

void patience_asked(patience *p, double job_s, uint64_t now) {
    if (p->since_ns == 0) p->since_ns = now;
    /* A pause is no time in which the server could do all that came: what comes after it may be
     * overload from the first request on. */
    uint64_t from = p->debt_ns > p->since_ns ? p->debt_ns : p->since_ns;
    double pause_s = PAUSE_JOBS * job_s > PAUSE_S ? PAUSE_JOBS * job_s : PAUSE_S;
    uint64_t most = (uint64_t)(pause_s * 1e9);
    if (now > from + most) p->since_ns += now - from - most;
    p->debt_s = debt_at(p, now) + job_s;
    if (p->debt_s > p->s) p->debt_s = p->s; /* or it would outlast the overload */
    p->debt_ns = now;
    p->n_asked++;
}

void patience_answered(patience *p, double s) {
    int i = s > FIRST_S ? (int)(PER_OCTAVE * log2(s / FIRST_S)) : 0;
    p->count[i < PATIENCE_BUCKETS ? i : PATIENCE_BUCKETS - 1]++;
    p->n_answered++;
}

/* The end of the bucket that the slowest of a hundred are in. */
static double slowest(const patience *p) {
    uint64_t left = p->n_answered / 100;
    int i = PATIENCE_BUCKETS - 1;
    while (i > 0 && p->count[i] <= left)
        left -= p->count[i--];
    return FIRST_S * exp2((i + 1) / PER_OCTAVE);
}

static double within(double s, double least, double most) {
    return s > most ? most : s < least ? (least < most ? least : most) : s;
}

void patience_learn(patience *p, double least_s, double job_s, uint64_t now) {
    if (p->n_asked < LEAST_ASKED || now - p->since_ns < WINDOW_NS) return;
    double load = (double)p->n_asked * job_s / ((double)(now - p->since_ns) / 1e9);
    if (load < NORMAL && p->n_answered > 0) {
        double s = within(slowest(p), least_s, p->most_s);
        p->s = p->is_learnt ? sqrt(p->s * s) : s;
        p->is_learnt = true;
    } else if (load > OVERLOAD && !p->is_learnt) {
        p->s = within(p->s / 2, least_s, p->most_s);
    }
    p->since_ns = now;
    p->n_asked = p->n_answered = 0;
    memset(p->count, 0, sizeof p->count);
}

bool patience_is_tried(const patience *p, uint64_t now) {
    return debt_at(p, now) > DEBT * p->s;
}

double patience_now(const patience *p, uint64_t now) {
    double s = p->s * (patience_is_tried(p, now) ? HELD : BURST);
    return s < p->most_s ? s : p->most_s;
}
