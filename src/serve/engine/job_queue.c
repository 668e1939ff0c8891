#include "serve/engine/job_queue.h"

/* Longest predicted wait that is admitted: LIMIT_S seconds, or NORMAL_TIMES the normal p99 wait,
 * whichever is longer.  NORMAL_JOBS is the normal p99 wait in job times: the lower bound of p99
 * queueing at a utilisation of 0.8. */
static const double LIMIT_S = 0.25, NORMAL_TIMES = 10, NORMAL_JOBS = 10;

/* Queued and running jobs below which a job without a deadline is always admitted. */
enum { ALWAYS_ADMITTED = 64 };

/* Factor on the time of the jobs ahead, so that about 1 % of jobs wait longer than predicted. */
static const double MARGIN = 1.5;

/* A batch of jobs without a deadline may take this share of the limit even if its first job has
 * less time left: many small batches would delay all of them more. */
static const double BATCH_SHARE = 0.1;

/* Decay of a batch's weight in the fit with each later batch.  A batch counts as at most LONGEST
 * times its prediction: a stall of the machine says nothing about the next batch. */
static const double KEPT = 0.95, LONGEST = 4;

/* After so long without a batch the rate is out of date: the next job is admitted and measures it
 * again. */
static const uint64_t DOUBT_NS = 100000000;

status job_queue_init(job_queue *q, int32_t max_jobs, size_t max_bytes) {
    *q = (job_queue){.max = (size_t)max_jobs, .max_bytes = max_bytes};
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
    q->w = q->x = q->y = q->xx = q->xy = q->jobs = 0;
    q->learnt_ns = 0;
}

static bool is_before(const job *a, const job *b) {
    if (a->deadline_ns != b->deadline_ns) return a->deadline_ns < b->deadline_ns;
    if (a->priority != b->priority) return a->priority > b->priority;
    return a->order < b->order;
}

/* The place of a job in the queue: after all jobs that are at least as urgent. */
static size_t place_of(const job_queue *q, const job *j) {
    size_t low = 0, high = q->n;
    BISECT(low, high, !is_before(j, q->item[middle]));
    return low;
}

double job_queue_flops(const job_queue *q) {
    return q->jobs > 0 ? q->x / q->jobs : 0;
}

double job_queue_seconds(const job_queue *q, double flops) {
    return q->batch_s + flops * q->flop_s;
}

double job_queue_limit(const job_queue *q) {
    double s = q->jobs > 0 ? NORMAL_TIMES * NORMAL_JOBS * q->y / q->jobs : 0;
    return s > LIMIT_S ? s : LIMIT_S;
}

static double seconds_until(uint64_t then, uint64_t now) {
    return (double)(int64_t)(then - now) / 1e9;
}

static void add(queue_load *l, const job *j, int sign) {
    l->n += sign;
    l->tokens += sign * job_tokens(j);
    l->flops += sign * j->flops;
}

/* Whether one more job fits a batch that begins now.  All jobs of a batch are answered when it
 * ends, so none may join that moves the end past the deadline of the first job, unless that one is
 * late anyway. */
static bool fits(const job_queue *q, const queue_load *b, const job *j, uint64_t now) {
    const job *first = q->item[0];
    if (b->n == 0) return true;
    if (j->m != first->m || b->n >= j->m->max_batch) return false;
    if (b->tokens + job_tokens(j) > j->m->max_tokens) return false;
    double left = seconds_until(first->deadline_ns, now), least = BATCH_SHARE * job_queue_limit(q);
    if (!first->has_deadline && left < least) left = least;
    return MARGIN * job_queue_seconds(q, b->flops + j->flops) <= left ||
           job_queue_seconds(q, b->flops) > left;
}

status job_queue_push(job_queue *q, job *j) {
    TRY(MEM_RESERVE(&q->item, &q->capacity, q->n + 1));
    j->order = q->n_pushed++;
    size_t at = place_of(q, j);
    memmove(q->item + at + 1, q->item + at, (q->n - at) * sizeof(job *));
    q->item[at] = j;
    q->n++;
    q->bytes += j->bytes;
    add(&q->load, j, 1);
    return OK;
}

int32_t job_queue_take(job_queue *q, uint64_t now, job **out, int32_t room) {
    queue_load b = {0};
    int32_t n = 0;
    for (; (size_t)n < q->n && n < room && fits(q, &b, q->item[n], now); n++) {
        out[n] = q->item[n];
        add(&b, out[n], 1);
        add(&q->load, out[n], -1);
        q->bytes -= out[n]->bytes;
    }
    q->n -= (size_t)n;
    if (q->n == 0) q->load.flops = 0; /* drops rounding errors */
    memmove(q->item, q->item + n, q->n * sizeof(job *));
    return n;
}

/* Predicted seconds until the running batch ends; for an overdue one, a tenth of its time so far.
 */
static double running_left(const job_queue *q, uint64_t now) {
    if (q->running_since == 0) return 0;
    double gone = seconds_until(now, q->running_since);
    double left = job_queue_seconds(q, q->running_flops) - gone;
    return left > gone / 10 ? left : gone / 10;
}

/* The predicted wait of a job while the running batch has left_s seconds to go; `all` sums the jobs
 * before it and itself. */
static double wait_of(const job_queue *q, const job *j, const queue_load *all, double left_s) {
    int64_t by_jobs = (all->n + j->m->max_batch - 1) / j->m->max_batch;
    int64_t by_tokens = (all->tokens + j->m->max_tokens - 1) / j->m->max_tokens;
    double batches = (double)(by_jobs > by_tokens ? by_jobs : by_tokens);
    double own_s = job_queue_seconds(q, j->flops);
    return own_s + MARGIN * (left_s + batches * q->batch_s + all->flops * q->flop_s - own_s);
}

/* Whether a job at this place would make a job with a deadline miss it that meets it otherwise;
 * `before` sums the jobs before it. */
static bool is_in_the_way(const job_queue *q, const job *j, size_t place, queue_load before,
                          uint64_t now) {
    queue_load after = before;
    double left_s = running_left(q, now);
    add(&after, j, 1);
    for (size_t i = place; i < q->n; i++) {
        const job *k = q->item[i];
        double has_s = seconds_until(k->deadline_ns, now);
        add(&before, k, 1);
        add(&after, k, 1);
        if (k->has_deadline && wait_of(q, k, &after, left_s) > has_s &&
            wait_of(q, k, &before, left_s) <= has_s)
            return true;
    }
    return false;
}

queue_verdict job_queue_admits(const job_queue *q, const job *j, uint64_t now,
                               double *predicted_s) {
    size_t place = place_of(q, j);
    queue_load before = {0};
    if (place == q->n) before = q->load;
    for (size_t i = 0; i < place && place < q->n; i++)
        add(&before, q->item[i], 1);
    queue_load all = before;
    add(&all, j, 1);
    *predicted_s = wait_of(q, j, &all, running_left(q, now));
    if (q->n >= q->max || q->bytes >= q->max_bytes) return QUEUE_IS_FULL;
    if (!j->has_deadline && q->n + (size_t)q->n_running < ALWAYS_ADMITTED) return QUEUE_ADMITS;
    bool is_idle = q->n == 0 && q->running_since == 0;
    if (is_idle && q->learnt_ns > 0 && now - q->learnt_ns > DOUBT_NS) return QUEUE_ADMITS;
    if (*predicted_s > seconds_until(j->deadline_ns, now)) return QUEUE_IS_LATE;
    if (!j->has_deadline) return QUEUE_ADMITS;
    return is_in_the_way(q, j, place, before, now) ? QUEUE_IS_LATE : QUEUE_ADMITS;
}

void job_queue_begin(job_queue *q, int32_t n, double flops, uint64_t now) {
    q->n_running = n;
    q->running_flops = flops;
    q->running_since = now;
}

/* Weighted least squares over all batches, the newest with the most weight.  Batches of equal size
 * do not determine the fixed part, which then keeps its value. */
static void fit(job_queue *q, double flops, double seconds, int32_t n) {
    double most = LONGEST * job_queue_seconds(q, flops);
    if (q->w > 1 && seconds > most) seconds = most;
    q->w = KEPT * q->w + 1;
    q->jobs = KEPT * q->jobs + n;
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

void job_queue_end(job_queue *q, int32_t n, uint64_t now) {
    if (n > 0 && q->running_flops > 0)
        fit(q, q->running_flops, seconds_until(now, q->running_since), n);
    q->learnt_ns = now;
    job_queue_begin(q, 0, 0, 0);
}
