#include "serve/engine/job_queue.h"

#include <math.h>

#include "base/rng.h"
#include "test.h"

/* A server whose time is a number: requests arrive at random, batches take what their jobs cost. */
typedef struct sim {
    job_queue q;
    served m;
    rng_key key;
    uint64_t n_drawn;
    uint64_t now, busy_until; /* 0: idle */
    job *running[64];
    int32_t n_running;
    double noise;     /* of a batch's time */
    double slow;      /* factor of all times */
    double deadline;  /* seconds; 0: jobs name none */
    double batch_s;   /* of a batch without its jobs */
    double job_s;     /* of an average job beside that */
    int n_clients;    /* who send their next job when they have their answer; 0: an open loop */
    double stall_s;   /* the next batch takes so much longer, once */
    uint64_t busy_ns; /* in all */
    double *latency;  /* (n_answered) of admitted jobs, seconds */
    size_t n_answered, n_refused, n_late;
} sim;

enum { MAX_BATCH = 32, N_ARRIVALS = 20000 };
static const double JOB_S = 1e-3, BATCH_S = 2e-4;

static double uniform(sim *s) {
    rng_block b = rng_draw64(s->key, s->n_drawn++, 1);
    return (rng_uniform64(b.word[0], b.word[1]) * 9007199254740992.0 + 0.5) / 9007199254740993.0;
}

static void sim_open(sim *s, double deadline, uint64_t seed) {
    *s = (sim){.m = {.max_batch = MAX_BATCH, .max_tokens = 1 << 20},
               .key = rng_make_key(seed, RNG_TEST),
               .slow = 1,
               .batch_s = BATCH_S,
               .job_s = JOB_S,
               .now = 1000000000,
               .deadline = deadline};
    CHECK_OK(job_queue_init(&s->q, 1024, SIZE_MAX));
    job_queue_reset(&s->q, JOB_S / 1e6);
    s->latency = malloc(N_ARRIVALS * sizeof *s->latency);
}

static void sim_close(sim *s) {
    CHECK_EQ(s->q.n, 0);
    job_queue_fini(&s->q);
    free(s->latency);
}

static void begin_batch(sim *s) {
    double seconds = s->batch_s, flops = 0;
    s->n_running = job_queue_take(&s->q, s->now, s->running, 64);
    CHECK(s->n_running > 0);
    for (int32_t i = 0; i < s->n_running; i++) {
        flops += s->running[i]->flops;
        /* Half of them find most of their history in a cache, and nobody knows which. */
        seconds += s->running[i]->flops / 1e6 * s->job_s * (uniform(s) < 0.5 ? 0.4 : 1.6);
    }
    seconds *= s->slow * (1 + s->noise * (2 * uniform(s) - 1));
    seconds += s->stall_s;
    s->stall_s = 0;
    job_queue_begin(&s->q, s->n_running, flops, s->now);
    s->busy_until = s->now + (uint64_t)(seconds * 1e9);
    s->busy_ns += (uint64_t)(seconds * 1e9);
}

static void arrive(sim *s);

static void end_batch(sim *s) {
    s->now = s->busy_until;
    job_queue_end(&s->q, s->n_running, s->now);
    for (int32_t i = 0; i < s->n_running; i++) {
        job *j = s->running[i];
        s->latency[s->n_answered++] = (double)(s->now - j->submit_ns) / 1e9;
        s->n_late += s->now > j->deadline_ns;
        free(j);
    }
    s->busy_until = 0;
    for (int32_t i = 0, n = s->n_running; i < n && s->n_clients > 0; i++)
        arrive(s);
    if (s->q.n > 0 && s->busy_until == 0) begin_batch(s);
}

/* Everything that happens until then. */
static void advance(sim *s, uint64_t until) {
    while (s->busy_until != 0 && s->busy_until <= until)
        end_batch(s);
    s->now = until;
}

static void arrive(sim *s) {
    job *j = calloc(1, sizeof *j);
    double has_s = s->deadline > 0 ? s->deadline : job_queue_limit(&s->q), predicted_s;
    *j = (job){.m = &s->m,
               .flops = 1e6 * (0.5 + uniform(s)),
               .n_tokens = 1,
               .submit_ns = s->now,
               .has_deadline = s->deadline > 0,
               .deadline_ns = s->now + (uint64_t)(has_s * 1e9)};
    if (job_queue_admits(&s->q, j, s->now, &predicted_s) != QUEUE_ADMITS) {
        s->n_refused++;
        free(j);
        return;
    }
    CHECK_OK(job_queue_push(&s->q, j));
    if (s->busy_until == 0) begin_batch(s);
}

/* n arrivals at a multiple of what the server can do, then until all are answered. */
static void load(sim *s, double times, int n) {
    double job_s = s->job_s + (s->batch_s - BATCH_S) / MAX_BATCH;
    for (int i = 0; i < n; i++) {
        advance(s, s->now + (uint64_t)(-log(uniform(s)) * job_s * 1e9 / times));
        arrive(s);
    }
}

static void drain(sim *s) {
    while (s->busy_until != 0)
        end_batch(s);
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double percentile(sim *s, double p) {
    qsort(s->latency, s->n_answered, sizeof *s->latency, compare);
    return s->latency[(size_t)(p * (double)s->n_answered)];
}

/* Twice as many requests as can be answered: those that are admitted are answered, nearly all of
 * them in time, and the server has no idle time. */
TEST(job_queue_holds_deadlines_under_overload) {
    for (int noise = 0; noise < 3; noise++) {
        sim s;
        sim_open(&s, 10, 1);
        s.noise = 0.15 * noise;
        load(&s, 0.9, N_ARRIVALS);
        drain(&s);
        double p99 = percentile(&s, 0.99);
        CHECK_EQ(s.n_refused, 0);
        sim_close(&s);
        sim_open(&s, 1.2 * p99, 2);
        s.noise = 0.15 * noise;
        uint64_t start = s.now;
        load(&s, 2, N_ARRIVALS);
        drain(&s);
        CHECK(percentile(&s, 0.99) <= 1.2 * p99);
        CHECK_EQ(s.n_answered + s.n_refused, N_ARRIVALS);
        CHECK(s.n_late * 100 <= s.n_answered);
        CHECK(s.busy_ns >= (s.now - start) / 100 * 98);
        sim_close(&s);
    }
}

/* Forgets the latencies so far, so that the next ones can be looked at. */
static void forget(sim *s) {
    drain(s);
    s->n_answered = s->n_refused = s->n_late = 0;
    s->busy_ns = 0;
}

/* Nobody names a deadline: nothing is refused at nine tenths of what the server can do, and at
 * twice that the 99th percentile is within the limit and the server has no idle time, whether jobs
 * are quick or slow, a batch costs much or little beside them, and the rate is known or not.  Of
 * 600 other seeds 33 exceed the limit, by 7 % at most, and 6 of 300 refuse some at nine tenths. */
TEST(job_queue_holds_its_limit_under_overload) {
    static const double batch_s[] = {1e-5, 1e-3, 5e-3}, job_s[] = {1e-3, 2e-2};
    for (int i = 0; i < 12; i++) {
        sim s;
        sim_open(&s, 0, 10 + (uint64_t)i);
        s.noise = i % 2 * 0.3;
        s.batch_s = batch_s[i / 2 % 3];
        s.job_s = job_s[i / 6];
        load(&s, 0.9, i % 4 < 2 ? N_ARRIVALS / 2 : 0);
        CHECK_EQ(s.n_refused, 0);
        drain(&s);
        load(&s, 2, 2000);
        forget(&s);
        uint64_t start = s.now;
        load(&s, 2, N_ARRIVALS / 2);
        drain(&s);
        double limit = job_queue_limit(&s.q);
        CHECK(limit >= 0.25 && (limit < 0.26 || (limit > 85 * s.job_s && limit < 125 * s.job_s)));
        CHECK(percentile(&s, 0.99) <= limit);
        CHECK(s.n_late * 100 <= s.n_answered);
        CHECK(s.busy_ns >= (s.now - start) / 100 * 98);
        CHECK(s.n_refused >= N_ARRIVALS / 2 * 2 / 5 && s.n_answered >= N_ARRIVALS / 2 * 2 / 5);
        sim_close(&s);
    }
}

/* Clients that wait for their answers are never refused: 16 and 64 of them from the first request
 * on, whatever the rate was thought to be, and also after quiet times, where answers were quick. */
TEST(job_queue_never_refuses_a_closed_loop) {
    static const int clients[] = {16, 64};
    for (int i = 0; i < 8; i++) {
        sim s;
        sim_open(&s, 0, 30 + (uint64_t)i);
        s.noise = 0.3;
        s.job_s = i & 2 ? 5e-2 : 2e-3;
        if (i & 4) load(&s, 0.1, 500);
        forget(&s);
        s.n_clients = clients[i & 1];
        for (int k = 0; k < s.n_clients; k++)
            arrive(&s);
        while (s.n_answered < N_ARRIVALS / 2)
            end_batch(&s);
        CHECK_EQ(s.n_refused, 0);
        s.n_clients = 0;
        drain(&s);
        sim_close(&s);
    }
}

/* After quiet times many requests come at once, more than a full batch, and none is refused. */
TEST(job_queue_admits_a_burst) {
    sim s;
    sim_open(&s, 0, 21);
    load(&s, 0.3, 3000);
    forget(&s);
    for (int i = 0; i < 20; i++) {
        for (int k = 0; k < 100; k++)
            arrive(&s);
        advance(&s, s.now + 200000000);
    }
    CHECK_EQ(s.n_refused, 0);
    sim_close(&s);
}

/* The machine stands still for two seconds: who was admitted before is answered, late, and then
 * the server is as it was. */
TEST(job_queue_answers_all_after_a_stall) {
    sim s;
    sim_open(&s, 0.05, 3);
    load(&s, 2, 2000);
    s.stall_s = 2;
    load(&s, 2, 6000);
    CHECK(s.n_late > 0 && s.n_late <= 200);
    size_t n_late = s.n_late, n_answered = s.n_answered;
    load(&s, 2, 4000);
    drain(&s);
    CHECK_EQ(s.n_answered + s.n_refused, 12000);
    CHECK(s.n_late - n_late <= 40 && s.n_answered - n_answered >= 1700);
    sim_close(&s);
}

/* Everything takes three times as long from one moment on. */
TEST(job_queue_follows_a_slower_machine) {
    sim s;
    sim_open(&s, 0.1, 4);
    s.noise = 0.1;
    load(&s, 2, 2000);
    size_t n_late = s.n_late;
    s.slow = 3;
    load(&s, 0.7, 2000);
    CHECK(s.n_late - n_late <= 550); /* of about 1,000 in 3 s */
    n_late = s.n_late;
    load(&s, 0.7, 2000);
    drain(&s);
    CHECK(s.n_late - n_late <= 20);
    CHECK(s.q.flop_s > 2.5 * JOB_S / 1e6 && s.q.flop_s < 3.5 * JOB_S / 1e6);
    sim_close(&s);
}

/* A machine that was slow once and is idle since: the first job after a moment shows how fast it is
 * now. */
TEST(job_queue_doubts_what_it_learnt_long_ago) {
    job_queue q;
    served m = {.max_batch = 1, .max_tokens = 100};
    job slow = {.m = &m, .flops = 1e6, .has_deadline = true}, next = slow, *list[1];
    uint64_t now = 1000000000;
    double predicted;
    CHECK_OK(job_queue_init(&q, 4, SIZE_MAX));
    job_queue_reset(&q, 1e-9);
    for (int i = 0; i < 20; i++) {
        job_queue_begin(&q, 1, 1e6, now);
        now += 2000000000;
        job_queue_end(&q, 1, now);
    }
    CHECK(job_queue_seconds(&q, 1e6) > 0.1);
    for (int ms = 0; ms <= 110; ms += 10) {
        queue_verdict want = ms <= 100 ? QUEUE_IS_LATE : QUEUE_ADMITS;
        next.deadline_ns = now + (uint64_t)ms * 1000000 + 5000000;
        CHECK_EQ(job_queue_admits(&q, &next, now + (uint64_t)ms * 1000000, &predicted), want);
    }
    now += 110000000;
    CHECK_OK(job_queue_push(&q, &next)); /* one that waits is enough */
    CHECK_EQ(job_queue_admits(&q, &slow, now, &predicted), QUEUE_IS_LATE);
    CHECK_EQ(job_queue_take(&q, now, list, 1), 1);
    job_queue_begin(&q, 1, 1e6, now); /* and one that runs */
    CHECK_EQ(job_queue_admits(&q, &slow, now, &predicted), QUEUE_IS_LATE);
    job_queue_fini(&q);
}

/* From batches of several sizes both parts of their time are found. */
TEST(job_queue_learns_what_a_batch_takes) {
    job_queue r;
    CHECK_OK(job_queue_init(&r, 4, SIZE_MAX));
    CHECK(job_queue_flops(&r) == 0);
    for (int i = 0; i < 100; i++) {
        job_queue_begin(&r, 1, 3e6, 1000);
        job_queue_end(&r, 2, 2000);
    }
    CHECK(fabs(job_queue_flops(&r) - 1.5e6) < 1);
    job_queue_fini(&r);

    job_queue q;
    CHECK_OK(job_queue_init(&q, 4, SIZE_MAX));
    job_queue_reset(&q, 1e-9);
    for (int i = 0; i < 200; i++) {
        double flops = 1e6 * (1 + i % 7);
        uint64_t ns = 3000000 + (uint64_t)(2 * flops);
        job_queue_begin(&q, 1, flops, 1000);
        job_queue_end(&q, 1, 1000 + ns);
    }
    CHECK(fabs(q.batch_s - 3e-3) < 1e-5);
    CHECK(fabs(q.flop_s * 1e9 - 2) < 0.01);
    CHECK(fabs(job_queue_seconds(&q, 5e6) - 13e-3) < 1e-4);
    job_queue_reset(&q, 1e-9);
    CHECK(fabs(job_queue_seconds(&q, 1e6) - 1.05e-3) < 1e-9);
    job_queue_fini(&q);
}

/* A queue of jobs that take 10 ms each; those before a job count as 15 ms. */
static void open_exact(job_queue *q, served *m) {
    *m = (served){.max_batch = 1, .max_tokens = 100};
    CHECK_OK(job_queue_init(q, 4, 1000));
    job_queue_reset(q, 1e-8);
    q->batch_s = 0;
}

static job exact_job(served *m, double flops, double deadline_ms) {
    return (job){.m = m,
                 .flops = flops,
                 .n_tokens = 30,
                 .has_deadline = true,
                 .deadline_ns = (uint64_t)(deadline_ms * 1e6)};
}

/* Takes one batch, of one job. */
static void check_next(job_queue *q, const job *want) {
    job *taken[4];
    CHECK(job_queue_take(q, 0, taken, 4) == 1 && taken[0] == want);
}

/* Who is more urgent goes first only where nobody is made late by it. */
TEST(job_queue_keeps_its_promises) {
    job_queue q;
    served m;
    double s;
    open_exact(&q, &m);
    job a = exact_job(&m, 1e6, 45), b = exact_job(&m, 1e6, 45), urgent = exact_job(&m, 1e6, 15);
    job long_one = exact_job(&m, 2e6, 35);
    CHECK_EQ(job_queue_admits(&q, &a, 0, &s), QUEUE_ADMITS);
    CHECK(fabs(s - 0.01) < 1e-12);
    CHECK_OK(job_queue_push(&q, &a));
    CHECK_EQ(job_queue_admits(&q, &b, 0, &s), QUEUE_ADMITS);
    CHECK(fabs(s - 0.025) < 1e-12);
    CHECK_OK(job_queue_push(&q, &b));
    CHECK_EQ(job_queue_admits(&q, &long_one, 0, &s), QUEUE_IS_LATE); /* b: at 55 */
    CHECK_EQ(job_queue_admits(&q, &urgent, 0, &s), QUEUE_ADMITS);
    CHECK(fabs(s - 0.01) < 1e-12);
    CHECK_OK(job_queue_push(&q, &urgent));
    job late = exact_job(&m, 1e6, 54), in_time = exact_job(&m, 1e6, 56);
    CHECK_EQ(job_queue_admits(&q, &late, 0, &s), QUEUE_IS_LATE);
    CHECK_EQ(job_queue_admits(&q, &in_time, 0, &s), QUEUE_ADMITS);
    CHECK_EQ(job_queue_admits(&q, &in_time, 2000000, &s), QUEUE_IS_LATE);
    /* Jobs that are late in any case refuse nobody. */
    job far = exact_job(&m, 1e6, 200);
    CHECK_EQ(job_queue_admits(&q, &far, 100000000, &s), QUEUE_ADMITS);
    CHECK_OK(job_queue_push(&q, &far));
    CHECK_EQ(job_queue_admits(&q, &far, 0, &s), QUEUE_IS_FULL);
    check_next(&q, &urgent);
    check_next(&q, &a);
    check_next(&q, &b);
    check_next(&q, &far);
    job *none;
    CHECK_EQ(job_queue_take(&q, 0, &none, 1), 0);
    job_queue_fini(&q);
}

/* Without a deadline 64 jobs may wait in any case, and more where the limit allows it; a job with
 * a deadline may overtake them. */
TEST(job_queue_has_a_limit) {
    enum { MANY = 70 };
    job_queue q;
    served m = {.max_batch = 1, .max_tokens = 100};
    double s;
    static job j[MANY];
    CHECK_OK(job_queue_init(&q, 1024, SIZE_MAX));
    job_queue_reset(&q, 1e-8);
    q.batch_s = 0;
    CHECK(job_queue_limit(&q) == 0.25);
    for (int i = 0; i < MANY; i++) {
        j[i] = (job){.m = &m, .flops = 1e6, .deadline_ns = 250000000, .order = UINT64_MAX};
        CHECK_EQ(job_queue_admits(&q, &j[i], 0, &s), i < 64 ? QUEUE_ADMITS : QUEUE_IS_LATE);
        CHECK(fabs(s - 0.01 - 0.015 * i) < 1e-9);
        CHECK_OK(job_queue_push(&q, &j[i])); /* a queue takes what it is given */
    }
    job urgent = exact_job(&m, 1e6, 15), patient = exact_job(&m, 1e6, 600);
    CHECK_EQ(job_queue_admits(&q, &urgent, 0, &s), QUEUE_ADMITS);
    CHECK_EQ(job_queue_admits(&q, &patient, 0, &s), QUEUE_IS_LATE);
    /* A batch shows that 100 jobs take 1 s. */
    job_queue_begin(&q, 1, 1e6, 1000);
    job_queue_end(&q, 1, 1000 + 10000000);
    CHECK(fabs(job_queue_limit(&q) - 1) < 1e-9);
    job_queue_fini(&q);
}

/* What waits is bounded in bytes, too. */
TEST(job_queue_is_full_of_bytes) {
    job_queue q;
    served m;
    double s;
    open_exact(&q, &m);
    job a = {.m = &m, .bytes = 999}, b = {.m = &m, .bytes = 1}, *taken;
    CHECK_OK(job_queue_push(&q, &a));
    CHECK_EQ(job_queue_admits(&q, &b, 0, &s), QUEUE_ADMITS);
    CHECK_OK(job_queue_push(&q, &b));
    CHECK_EQ(job_queue_admits(&q, &b, 0, &s), QUEUE_IS_FULL);
    CHECK_EQ(job_queue_take(&q, 0, &taken, 1), 1);
    CHECK_EQ(job_queue_admits(&q, &b, 0, &s), QUEUE_ADMITS);
    job_queue_fini(&q);
}

/* Jobs that run together share the cost of their batch: the wait counts full batches. */
TEST(job_queue_predicts_batches) {
    job_queue q;
    served m;
    double s;
    job j[4];
    open_exact(&q, &m);
    q.batch_s = 1e-2;
    for (int i = 0; i < 3; i++) {
        j[i] = exact_job(&m, 1e6, 1000);
        CHECK_OK(job_queue_push(&q, &j[i]));
    }
    j[3] = exact_job(&m, 1e6, 2000);
    CHECK_EQ(job_queue_admits(&q, &j[3], 0, &s), QUEUE_ADMITS);
    CHECK(fabs(s - 0.11) < 1e-9); /* four batches of one */
    m.max_batch = 4;
    CHECK_EQ(job_queue_admits(&q, &j[3], 0, &s), QUEUE_ADMITS);
    CHECK(fabs(s - 0.08) < 1e-9); /* two: 120 tokens */
    m.max_tokens = 120;
    CHECK_EQ(job_queue_admits(&q, &j[3], 0, &s), QUEUE_ADMITS);
    CHECK(fabs(s - 0.065) < 1e-9);
    job_queue_fini(&q);
}

/* A job waits for those that are more urgent, and for none after it. */
TEST(job_queue_predicts_by_place) {
    static const struct {
        double deadline_ms, alone_s, together_s; /* batches of one job, and of four */
    } cases[] = {{100, 0.02, 0.02}, {250, 0.05, 0.035}, {350, 0.08, 0.05}, {450, 0.11, 0.065}};
    job_queue q;
    served m;
    double s;
    job j[3];
    open_exact(&q, &m);
    q.batch_s = 1e-2;
    m.max_tokens = 120;
    for (int i = 0; i < 3; i++) {
        j[i] = exact_job(&m, 1e6, 200 + 100 * i);
        CHECK_OK(job_queue_push(&q, &j[i]));
    }
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        job next = exact_job(&m, 1e6, cases[i].deadline_ms);
        m.max_batch = 1;
        (void)job_queue_admits(&q, &next, 0, &s);
        CHECK(fabs(s - cases[i].alone_s) < 1e-9);
        m.max_batch = 4;
        (void)job_queue_admits(&q, &next, 0, &s);
        CHECK(fabs(s - cases[i].together_s) < 1e-9);
    }
    job_queue_fini(&q);
}

/* What runs delays the next one, longer where it is overdue itself. */
TEST(job_queue_counts_the_batch_that_runs) {
    job_queue q;
    served m;
    double s;
    open_exact(&q, &m);
    job j = exact_job(&m, 1e6, 1000);
    job_queue_begin(&q, 1, 3e6, 1000000);
    CHECK_EQ(job_queue_admits(&q, &j, 11000000, &s), QUEUE_ADMITS);
    CHECK(fabs(s - 0.04) < 1e-9);
    CHECK_EQ(job_queue_admits(&q, &j, 101000000, &s), QUEUE_ADMITS);
    CHECK(fabs(s - 0.025) < 1e-9);
    job_queue_fini(&q);
}

/* A batch ends at its limits and at another model, and before it would make its first job late,
 * unless that one is late already. */
TEST(job_queue_cuts_batches) {
    job_queue q;
    served m, other = {.max_batch = 8, .max_tokens = 100};
    job *taken[4];
    open_exact(&q, &m);
    m.max_batch = 8;
    job a = exact_job(&m, 1e6, 35), b = a, c = a, d = a;
    job *all[4] = {&a, &b, &c, &d};
    for (int i = 0; i < 4; i++)
        CHECK_OK(job_queue_push(&q, all[i]));
    CHECK_EQ(job_queue_take(&q, 0, taken, 4), 2); /* 45 ms of work, 35 ms of time */
    CHECK(taken[0] == &a && taken[1] == &b);
    CHECK_EQ(job_queue_take(&q, 40000000, taken, 1), 1); /* room */
    CHECK_OK(job_queue_push(&q, &a));
    CHECK_OK(job_queue_push(&q, &b));
    CHECK_OK(job_queue_push(&q, &c));
    CHECK_EQ(job_queue_take(&q, 40000000, taken, 4), 3); /* 120 tokens */
    CHECK_EQ(q.n, 1);
    check_next(&q, &c);
    a.m = &other;
    CHECK_OK(job_queue_push(&q, &a));
    CHECK_OK(job_queue_push(&q, &b));
    check_next(&q, &a);
    check_next(&q, &b);
    CHECK(q.load.n == 0 && q.load.tokens == 0 && q.bytes == 0);
    /* Of equal deadlines the higher priority, then who came first. */
    c.priority = 1;
    m.max_batch = 1;
    CHECK_OK(job_queue_push(&q, &b));
    CHECK_OK(job_queue_push(&q, &d));
    CHECK_OK(job_queue_push(&q, &c));
    check_next(&q, &c);
    check_next(&q, &b);
    check_next(&q, &d);
    job_queue_fini(&q);
}
