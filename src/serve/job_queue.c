#include "serve/job_queue.h"

#include <string.h>

#include "serve/run.h"

/* What is left of a batch's weight in the rates after another one. */
static const double KEPT = 0.95;

/* A batch that took longer than this many times its prediction counts as no more: a machine that
 * stood still says nothing about the next batch. */
static const double LONGEST = 4;

/* The margin before anything is known, and its limits. */
static const double FIRST_MARGIN = 1.25, LEAST_MARGIN = 1.02, MOST_MARGIN = 3;

/* What was learnt is doubted after so long without a batch. */
static const uint64_t DOUBT_NS = 100000000;

/* By how much a batch changes the margin: up by STEP where a prediction was exceeded, down so that
 * a share of LATE_SHARE of the batches exceeding it keeps it where it is. */
static const double STEP = 0.1, LATE_SHARE = 0.01;

/* A server at this share of what it can do is one in normal times; and the jobs whose time the
 * slowest of a hundred wait there at least, as queues go. */
static const double HIGH_LOAD = 0.9, SLOWEST_WAIT = 16;

status job_queue_init(job_queue *q, int32_t max_jobs, double most_s) {
    *q = (job_queue){.max = (size_t)max_jobs, .patience = {.most_s = most_s}};
    job_queue_reset(q, 0);
    return MEM_RESERVE(&q->item, &q->capacity, (size_t)max_jobs);
}

void job_queue_fini(job_queue *q) {
    mem_free(q->item);
    *q = (job_queue){0};
}

void job_queue_reset(job_queue *q, double flop_s) {
    q->batch_s = 50e-6;
    q->flop_s = flop_s;
    q->margin = FIRST_MARGIN;
    q->w = q->x = q->y = q->xx = q->xy = q->jobs = q->full = 0;
    q->learnt_ns = 0;
    patience_reset(&q->patience, q->patience.most_s);
    q->has_last = false;
}

static bool is_before(const job *a, const job *b) {
    if (a->deadline_ns != b->deadline_ns) return a->deadline_ns < b->deadline_ns;
    if (a->priority != b->priority) return a->priority > b->priority;
    return a->order < b->order;
}

/* Where a job would be in the queue: behind all that are not less urgent. */
static size_t place_of(const job_queue *q, const job *j) {
    size_t low = 0, high = q->n;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (is_before(j, q->item[middle]))
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

double job_queue_flops(const job_queue *q) {
    return q->jobs > 0 ? q->x / q->jobs : 0;
}

double job_queue_seconds(const job_queue *q, double flops) {
    return q->batch_s + flops * q->flop_s;
}

/* What a job adds to a batch, and its share of a full one, in seconds on average. */
static double added_s(const job_queue *q) {
    return q->jobs > 0 ? (q->y - q->w * q->batch_s) / q->jobs : 0;
}

static double share_s(const job_queue *q) {
    return q->full > 0 ? added_s(q) + q->batch_s * q->w / q->full : 0;
}

void job_queue_asked(job_queue *q, uint64_t now) {
    patience_asked(&q->patience, share_s(q), now);
}

double job_queue_patience(const job_queue *q, uint64_t now) {
    return patience_now(&q->patience, now);
}

/* What the slowest of a hundred jobs take at least at a high load: the batch that runs and their
 * own, which are longer the less time the batches leave, and a queue. */
static double least_patience(const job_queue *q) {
    double share = share_s(q);
    if (share <= 0) return 0;
    return 2 * q->batch_s / (1 - HIGH_LOAD * added_s(q) / share) + SLOWEST_WAIT * share;
}

static double seconds_until(uint64_t then, uint64_t now) {
    return (double)(int64_t)(then - now) / 1e9;
}

/* Whether one more job fits.  All of a batch are answered when it ends, so nobody may join who
 * makes it end after the deadline of its first job, unless that one is late in any case.  now_s:
 * seconds after `now` at which the batch begins. */
static bool fits(const job_queue *q, const queue_batch *f, const job *j, uint64_t now,
                 double now_s) {
    if (f->n == 0) return true;
    if (f->is_call || j->call != NULL || j->m != f->m) return false;
    if (f->n >= f->m->max_batch || f->tokens + run_tokens(j) > f->m->max_tokens) return false;
    double left = seconds_until(f->first_deadline, now) - now_s;
    return q->margin * job_queue_seconds(q, f->flops + j->flops) <= left ||
           job_queue_seconds(q, f->flops) > left;
}

static void add(queue_batch *f, const job *j) {
    if (f->n == 0)
        *f = (queue_batch){.m = j->m, .first_deadline = j->deadline_ns, .is_call = j->call != NULL};
    f->n++;
    f->flops += j->flops;
    if (j->call == NULL) f->tokens += run_tokens(j);
}

/* One more job joins the last batch, or begins the next; *at: seconds after the batch that runs
 * began at which the last one begins. */
static void append(const job_queue *q, queue_batch *last, double *at, const job *j) {
    if (!fits(q, last, j, q->running_since, *at)) {
        *at += job_queue_seconds(q, last->flops);
        *last = (queue_batch){0};
    }
    add(last, j);
}

void job_queue_push(job_queue *q, job *j) {
    j->order = q->n_pushed++;
    size_t at = place_of(q, j);
    memmove(q->item + at + 1, q->item + at, (q->n - at) * sizeof(job *));
    q->item[at] = j;
    q->n++;
    if (at + 1 < q->n) q->has_last = false;
    if (q->has_last) append(q, &q->last, &q->last_s, j);
}

/* Seconds until the batch that runs ends.  One that takes longer than predicted is expected to take
 * a tenth of its time more. */
static double running_left(const job_queue *q, uint64_t now) {
    if (q->running_since == 0) return 0;
    double gone = seconds_until(now, q->running_since);
    double left = job_queue_seconds(q, q->running_flops) - gone;
    return left > gone / 10 ? left : gone / 10;
}

/* The queue with one more job in its place, batch by batch. */
typedef struct forecast {
    const job_queue *q;
    const job *extra;
    size_t place; /* of the extra one */
    uint64_t now;
    double at; /* seconds after now: the next batch begins */
} forecast;

static const job *job_at(const forecast *f, size_t i) {
    return i < f->place ? f->q->item[i] : i == f->place ? f->extra : f->q->item[i - 1];
}

/* Whether a job that is answered at f->at was in time without the extra one, and is not with it. */
static bool is_delayed(const forecast *f, const job *j) {
    double left = seconds_until(j->deadline_ns, f->now), margin = f->q->margin;
    if (j->call != NULL) return false;
    return margin * f->at > left && margin * (f->at - f->extra->flops * f->q->flop_s) <= left;
}

/* A machine that learns from batches only must try one now and then; and a queue has an end. */
static queue_verdict at_last(const job_queue *q, queue_verdict verdict, uint64_t now) {
    bool is_idle = q->n == 0 && q->running_since == 0;
    if (is_idle && q->learnt_ns > 0 && now - q->learnt_ns > DOUBT_NS) verdict = QUEUE_ADMITS;
    return q->n >= q->max ? QUEUE_IS_FULL : verdict;
}

queue_verdict job_queue_forecast(const job_queue *q, const job *j, uint64_t now,
                                 double *predicted_s) {
    forecast f = {.q = q, .extra = j, .now = now, .at = running_left(q, now)};
    queue_verdict verdict = QUEUE_ADMITS;
    f.place = place_of(q, j);
    *predicted_s = 0;
    for (size_t i = 0; i <= q->n;) {
        queue_batch b = {0};
        size_t first = i;
        for (; i <= q->n && fits(q, &b, job_at(&f, i), now, f.at); i++)
            add(&b, job_at(&f, i));
        f.at += job_queue_seconds(q, b.flops);
        if (i <= f.place) continue;
        for (size_t k = first; k < i && verdict == QUEUE_ADMITS; k++)
            if (k > f.place && is_delayed(&f, job_at(&f, k))) verdict = QUEUE_IS_LATE;
        if (*predicted_s > 0) continue;
        *predicted_s = f.at;
        if (q->margin * f.at > seconds_until(j->deadline_ns, now)) verdict = QUEUE_IS_LATE;
        if (verdict != QUEUE_ADMITS) break;
    }
    return at_last(q, verdict, now);
}

/* Cuts all that wait into batches, if that is not known.  Seconds after the batch that runs began
 * do not change while it runs, unless it takes longer than predicted. */
static void find_last(job_queue *q) {
    if (q->has_last) return;
    q->last = (queue_batch){0};
    q->last_s = job_queue_seconds(q, q->running_flops);
    for (size_t i = 0; i < q->n; i++)
        append(q, &q->last, &q->last_s, q->item[i]);
    q->has_last = true;
}

queue_verdict job_queue_admits(job_queue *q, const job *j, uint64_t now, double *predicted_s) {
    double gone = q->running_since > 0 ? seconds_until(now, q->running_since) : 0;
    bool is_in_time = gone > 0 && job_queue_seconds(q, q->running_flops) - gone > gone / 10;
    if (!is_in_time || place_of(q, j) < q->n) return job_queue_forecast(q, j, now, predicted_s);
    find_last(q);
    queue_batch b = q->last;
    double at = q->last_s;
    append(q, &b, &at, j);
    *predicted_s = at + job_queue_seconds(q, b.flops) - gone;
    bool is_late = q->margin * *predicted_s > seconds_until(j->deadline_ns, now);
    return at_last(q, is_late ? QUEUE_IS_LATE : QUEUE_ADMITS, now);
}

int32_t job_queue_take(job_queue *q, uint64_t now, job **out, int32_t room) {
    queue_batch b = {0};
    while ((size_t)b.n < q->n && b.n < room && fits(q, &b, q->item[b.n], now, 0)) {
        out[b.n] = q->item[b.n];
        add(&b, out[b.n]);
    }
    q->n -= (size_t)b.n;
    q->has_last = false;
    memmove(q->item, q->item + b.n, q->n * sizeof(job *));
    return b.n;
}

void job_queue_begin(job_queue *q, double flops, uint64_t now) {
    q->running_flops = flops;
    q->running_since = now;
    q->has_last = false;
}

/* Least squares over the batches so far, the newest with the most weight.  Batches that are all
 * alike say nothing about the share that does not grow with them: it then stays as it was. */
static void fit(job_queue *q, double flops, double seconds, int32_t n, double full) {
    double most = LONGEST * job_queue_seconds(q, flops);
    if (q->w > 1 && seconds > most) seconds = most;
    q->w = KEPT * q->w + 1;
    q->jobs = KEPT * q->jobs + n;
    q->full = KEPT * q->full + full;
    q->x = KEPT * q->x + flops;
    q->y = KEPT * q->y + seconds;
    q->xx = KEPT * q->xx + flops * flops;
    q->xy = KEPT * q->xy + flops * seconds;
    double spread = q->w * q->xx - q->x * q->x, batch_s = q->batch_s;
    if (spread > 0.01 * q->x * q->x) {
        double slope = (q->w * q->xy - q->x * q->y) / spread;
        batch_s = (q->y - slope * q->x) / q->w;
    }
    double mean = q->y / q->w;
    q->batch_s = batch_s < 0 ? 0 : batch_s > mean / 2 ? mean / 2 : batch_s;
    q->flop_s = (q->y - q->w * q->batch_s) / q->x;
}

/* Jobs whose deadlines are far say little about how exact a prediction must be: what they were
 * predicted is short, and a moment's delay a large factor of it. */
static void judge(job_queue *q, job *const *jobs, int32_t n, uint64_t now) {
    bool is_near = false, is_exceeded = false;
    for (int32_t i = 0; i < n; i++) {
        const job *j = jobs[i];
        double had = seconds_until(j->deadline_ns, j->admit_ns);
        if (j->call != NULL || q->margin * j->predicted_s < had / 2) continue;
        is_near = true;
        if (seconds_until(now, j->admit_ns) > q->margin * j->predicted_s) is_exceeded = true;
    }
    if (!is_near) return;
    q->margin *= is_exceeded ? 1 + STEP : 1 - STEP * LATE_SHARE / (1 - LATE_SHARE);
    if (q->margin < LEAST_MARGIN) q->margin = LEAST_MARGIN;
    if (q->margin > MOST_MARGIN) q->margin = MOST_MARGIN;
}

/* How many jobs like these would have been a full batch. */
static double full_batch(job *const *jobs, int32_t n) {
    const served *m = jobs[0]->m;
    double tokens = 0;
    for (int32_t i = 0; i < n; i++)
        tokens += run_tokens(jobs[i]);
    double fit = tokens > 0 ? m->max_tokens / tokens * n : m->max_batch;
    return fit < n ? n : fit < m->max_batch ? fit : m->max_batch;
}

void job_queue_end(job_queue *q, job *const *jobs, int32_t n, uint64_t now) {
    if (n > 0 && q->running_flops > 0) {
        fit(q, q->running_flops, seconds_until(now, q->running_since), n, full_batch(jobs, n));
        for (int32_t i = 0; i < n; i++)
            patience_answered(&q->patience, seconds_until(now, jobs[i]->submit_ns));
        patience_learn(&q->patience, least_patience(q), share_s(q), now);
    }
    judge(q, jobs, n, now);
    q->learnt_ns = now;
    q->running_since = 0;
    q->has_last = false;
}
