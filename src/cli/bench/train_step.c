#include "cli/bench/train_step.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/log.h"
#include "base/thread.h"
#include "data/synth/synth.h"
#include "profile/peak.h"
#include "train/loop/generated.h"
#include "train/loop/trainer.h"

/* Steps before the clock starts.  A GPU records a step for each size of batch it meets, so it needs
 * more of them. */
enum { N_WARM_CPU = 3, N_WARM_GPU = 24 };

/* Training, one step after the other. */
typedef struct bench_loop {
    session s;
    trainer *t;
    /* of the steps since the clock started */
    flops sum;
    double seconds;
} bench_loop;

static void add_flops(void *ctx, const batch *b) {
    bench_loop *l = ctx;
    flops f = flops_of_batch(l->s.config, l->s.limits.n_context, b, true), *to = &l->sum;
    to->uvqk += f.uvqk;
    to->attention += f.attention;
    to->projection += f.projection;
    to->input += f.input;
    to->head += f.head;
    to->n_tokens += f.n_tokens;
    to->n_loss += f.n_loss;
}

static status loop_open(bench_loop *l, const config *c, const seq_file *data, backend *be,
                        int64_t n_steps) {
    trainer_steps steps = {
        .seed = 1, .n_steps = (uint64_t)(N_WARM_GPU + n_steps), .on_batch = add_flops, .ctx = l};
    *l = (bench_loop){0};
    TRY(session_open(&l->s, c, data, be));
    return trainer_create(&l->t, &l->s, &steps);
}

static void loop_close(bench_loop *l) {
    trainer_destroy(l->t);
    session_close(&l->s);
}

static status do_steps(bench_loop *l, int64_t n_steps) {
    bool is_last;
    l->sum = (flops){0};
    uint64_t start = clock_ns();
    for (int64_t i = 0; i < n_steps; i++)
        TRY(trainer_step(l->t, &is_last));
    TRY(trainer_settle(l->t));
    TRY(l->s.be->ops->sync(l->s.be));
    l->seconds = (double)(clock_ns() - start) / 1e9;
    return OK;
}

static status check_gradient(bench_loop *l, slope_result *out) {
    uint64_t seed = clock_ns();
    batcher_config bc = session_train_batches(&l->s, session_split(l->s.config, false), 1);
    batcher *batches;
    const batch *b;
    TRY(model_init(l->s.model, seed));
    TRY(batcher_create(&batches, l->s.data, &bc));
    status st = batcher_next(batches, &b);
    if (st == OK) st = slope_check(&l->s, b, seed, out);
    batcher_destroy(batches);
    return st;
}

static double count_mb(const bench_loop *l) {
    uint64_t of_session = session_memory_bytes(&l->s); /* with the activations of its pass */
    uint64_t of_tables = (uint64_t)dynamic_bytes(model_tables(l->s.model));
    return (double)(of_session + of_tables + optimizer_bytes(trainer_optimizer(l->t))) / 1e6;
}

static void take_speed(const bench_loop *l, int64_t n_steps, train_bench_result *r) {
    double n = (double)n_steps;
    const flops *f = &l->sum;
    r->tokens_per_s = (double)f->n_tokens / l->seconds;
    r->tokens_per_step = (double)f->n_tokens / n;
    r->ms_per_step = l->seconds * 1e3 / n;
    r->speed = flops_layers(f) / l->seconds;
    r->step = (flops){.uvqk = f->uvqk / n,
                      .attention = f->attention / n,
                      .projection = f->projection / n,
                      .input = f->input / n,
                      .head = f->head / n};
    r->n_context = l->s.limits.n_context;
    r->model_mb = count_mb(l);
}

static int compare_time(const void *a, const void *b) {
    const timed_op *x = a, *y = b;
    return (x->ns < y->ns) - (x->ns > y->ns);
}

static void take_shares(const bench_loop *l, train_bench_result *r) {
    int n;
    const timed_op *all = timed_ops(l->s.be, &n);
    for (int i = 0; i < n; i++)
        if (all[i].n_calls > 0) r->op[r->n_ops++] = all[i];
    qsort(r->op, (size_t)r->n_ops, sizeof r->op[0], compare_time);
    r->total_ms = l->seconds * 1e3;
}

/* Recording does not change how long kernels run, but it changes the gaps between them.  So the
 * kernels' time is compared with that of the steps without recording. */
static status take_busy(int64_t n_steps, train_bench_result *r) {
    TRY(busy_end(&r->busy));
    if (!r->busy.is_known) return OK;
    double ms = (double)r->busy.kernel_busy_ns / 1e6 / (double)n_steps;
    r->idle = fmax(0, 1 - ms / r->ms_per_step);
    return OK;
}

static bool is_cpu(const backend *be) {
    return be->is_host;
}

typedef enum { FOR_SPEED, FOR_BUSY, FOR_SHARES } purpose;

/* Draws the weights, for FOR_SPEED within the gradient check. */
static status begin(bench_loop *l, purpose why, train_bench_result *r) {
    if (why == FOR_SPEED) return check_gradient(l, &r->slope);
    /* Records must begin before any step is recorded as a graph: busy.h. */
    if (why == FOR_BUSY) TRY(busy_begin());
    return model_init(l->s.model, 1);
}

static status warm_up(bench_loop *l, purpose why) {
    backend *be = l->s.be;
    TRY(do_steps(l, is_cpu(be) || why == FOR_SHARES ? N_WARM_CPU : N_WARM_GPU));
    if (why == FOR_SHARES) timed_reset(be);
    return why == FOR_BUSY ? busy_begin() : OK;
}

static status take(const bench_loop *l, purpose why, int64_t n_steps, train_bench_result *r) {
    if (why == FOR_BUSY) return take_busy(n_steps, r);
    if (why == FOR_SPEED)
        take_speed(l, n_steps, r);
    else
        take_shares(l, r);
    return OK;
}

/* Runs steps for one purpose, with a model of their own. */
static status measure_on(const config *c, const seq_file *data, backend *be, purpose why,
                         int64_t n_steps, train_bench_result *r) {
    bench_loop l;
    status st = loop_open(&l, c, data, be, n_steps);
    if (st == OK) st = begin(&l, why, r);
    if (st == OK) st = warm_up(&l, why);
    if (st == OK) st = do_steps(&l, n_steps);
    if (st == OK) st = take(&l, why, n_steps, r);
    loop_close(&l);
    return st;
}

static status measure_shares(const config *c, const seq_file *data, backend *be, int64_t n_steps,
                             train_bench_result *r) {
    backend *timed;
    if (!is_cpu(be)) TRY(measure_on(c, data, be, FOR_BUSY, n_steps, r));
    TRY(timed_create(&timed, be));
    status st = measure_on(c, data, timed, FOR_SHARES, n_steps, r);
    backend_destroy(timed);
    return st;
}

/* Only the first model's log lines are shown: the others say the same. */
status train_bench_run(const config *c, const seq_file *data, backend *be, int64_t n_steps,
                       train_bench_result *out) {
    log_level level = log_get_level();
    struct rusage usage;
    *out = (train_bench_result){.idle = NAN};
    TRY(measure_on(c, data, be, FOR_SPEED, n_steps, out));
    if (getrusage(RUSAGE_SELF, &usage) == 0) out->peak_mb = (double)usage.ru_maxrss / 1e3;
    TRY(peak_measure(be, &out->peak));
    if (level < LOG_WARN) log_set_level(LOG_WARN);
    status st = measure_shares(c, data, be, n_steps, out);
    log_set_level(level);
    return st;
}

status train_bench_data(seq_file **out, const config *c, pool *p) {
    synth_config world = {.n_users = 6040, .n_items = 3883, .mean_len = 165, .seed = 1};
    return c->is_benchmark ? generated_open(out, c, p) : synth_open(out, &world, p);
}
