/* hstu bench train: the speed of a training step, and what of it each op takes.
 *
 * First the gradient is checked, on weights drawn anew (slope.h).  Then steps are timed as the
 * trainer does them, without a timing layer; then a large product, for the peak of the device; then
 * steps again, on a GPU with its own records of what it did when, for the time it was idle, and
 * with a timing layer, for the shares of the ops. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "bench/slope.h"
#include "cli/bench.h"
#include "cli/cli.h"
#include "cli/show.h"
#include "cli/work.h"
#include "data/set/temp_data.h"
#include "data/synth/synth.h"
#include "nn/flops.h"
#include "profile/busy.h"
#include "profile/peak.h"
#include "profile/timed.h"
#include "train/generated.h"
#include "train/optimizer.h"

/* Steps before the clock starts.  A GPU records a step for each size of batch it sees, so it goes
 * through more of them. */
enum { N_WARM_CPU = 3, N_WARM_GPU = 24 };

/* More steps than any backend is ahead of its host (n_ahead of ops.h). */
enum { MAX_PENDING = 8 };

/* Rows of the table of kernels. */
enum { N_KERNELS = 16 };

typedef struct bench_args {
    const char *file, *data, *device;
    arg_list overrides;
    int64_t n_steps;
    bool is_json;
} bench_args;

typedef struct bench_result {
    double tokens_per_s, ms_per_step, tokens_per_step;
    flops step;         /* the mean of the steps */
    double speed, peak; /* FLOP a second */
    double idle;        /* part of the time nothing was computed; NAN: not known */
    busy_report busy;   /* of a GPU */
    slope_result slope;
    int n_context;              /* contextual tokens of a user */
    double model_mb;            /* memory of the backend: parameters, their state, activations */
    double peak_mb;             /* of the process */
    timed_op op[TIMED_MAX_OPS]; /* by time, most first */
    int n_ops;
    double total_ms; /* of the steps with the timing layer */
} bench_result;

/* ---- steps ----------------------------------------------------------------------------------- */

/* Training, one step after the other. */
typedef struct bench_loop {
    session s;
    batcher *batches;
    optimizer optimizer;
    int64_t t; /* steps done */
    double loss[MAX_PENDING];
    uint64_t ticket[MAX_PENDING];
    int64_t n_settled; /* steps whose loss was waited for */
    /* of the steps since the clock started */
    flops sum;
    double seconds;
} bench_loop;

static status loop_open(bench_loop *l, const config *c, const seq_file *data, backend *be) {
    *l = (bench_loop){0};
    TRY(session_open(&l->s, c, data, be));
    TRY(optimizer_init(&l->optimizer, be, l->s.model, c));
    batcher_config bc = session_train_batches(&l->s, session_split(c, false), 1);
    return batcher_create(&l->batches, data, &bc);
}

static void loop_close(bench_loop *l) {
    batcher_destroy(l->batches);
    optimizer_fini(&l->optimizer);
    session_close(&l->s);
}

static void add_flops(flops *to, const flops *from) {
    to->uvqk += from->uvqk;
    to->attention += from->attention;
    to->projection += from->projection;
    to->input += from->input;
    to->head += from->head;
    to->n_tokens += from->n_tokens;
    to->n_loss += from->n_loss;
}

/* Waits until no more than n_ahead steps are under way: the trainer reads losses as late. */
static status settle(bench_loop *l, int64_t n_ahead) {
    backend *be = l->s.be;
    for (; l->t - l->n_settled > n_ahead; l->n_settled++)
        TRY(be->ops->wait(be, l->ticket[l->n_settled % MAX_PENDING]));
    return OK;
}

static status do_step(bench_loop *l) {
    const batch *b;
    model *m = l->s.model;
    const config *c = l->s.config;
    double loss_scale = l->s.be->act == ACT_F16 ? 1024 : 1;
    int slot = (int)(l->t % MAX_PENDING);
    TRY(batcher_next(l->batches, &b));
    int64_t n = model_count_loss(m, b);
    model_step at = {.seed = 1, .step = (uint32_t)l->t};
    at.grad_scale = (float)(loss_scale / (double)(n > 0 ? n : 1));
    TRY(model_train_batch(m, b, &at, NULL));
    TRY(model_fetch_loss(m, &l->loss[slot], &l->ticket[slot]));
    l->t++;
    TRY(optimizer_step(&l->optimizer, c->optimizer.learning_rate, l->t, 1 / loss_scale));
    flops f = flops_of_batch(c, l->s.limits.n_context, b, true);
    add_flops(&l->sum, &f);
    return settle(l, l->s.be->n_ahead);
}

static status do_steps(bench_loop *l, int64_t n_steps) {
    l->sum = (flops){0};
    uint64_t start = clock_ns();
    for (int64_t i = 0; i < n_steps; i++)
        TRY(do_step(l));
    TRY(settle(l, 0));
    TRY(l->s.be->ops->sync(l->s.be));
    l->seconds = (double)(clock_ns() - start) / 1e9;
    return OK;
}

/* ---- the measurement ------------------------------------------------------------------------- */

static status check_gradient(bench_loop *l, bench_result *r) {
    uint64_t seed = clock_ns();
    const batch *b;
    TRY(model_init(l->s.model, seed));
    TRY(batcher_next(l->batches, &b));
    return slope_check(&l->s, b, seed, &r->slope);
}

static double count_mb(const bench_loop *l) {
    double bytes = (double)model_memory_bytes(l->s.model);
    bytes += (double)dynamic_bytes(model_tables(l->s.model));
    for (int i = 0; i < l->s.n_params; i++) {
        const moments *state = &l->optimizer.state[i];
        param shape = optimizer_state_shape(&l->optimizer, &l->s.params[i]);
        bytes += (double)shape.n * sizeof(float) * ((state->m != NULL) + (state->v != NULL));
    }
    return bytes / 1e6;
}

static void take_speed(const bench_loop *l, int64_t n_steps, bench_result *r) {
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

static void take_shares(const bench_loop *l, bench_result *r) {
    int n;
    const timed_op *all = timed_ops(l->s.be, &n);
    for (int i = 0; i < n; i++)
        if (all[i].n_calls > 0) r->op[r->n_ops++] = all[i];
    qsort(r->op, (size_t)r->n_ops, sizeof r->op[0], compare_time);
    r->total_ms = l->seconds * 1e3;
}

/* Kernels are as long with records as without, but the gaps between them are not: so the time they
 * ran is held against that of the steps without records. */
static status take_busy(int64_t n_steps, bench_result *r) {
    TRY(busy_end(&r->busy));
    if (!r->busy.is_known) return OK;
    double ms = (double)r->busy.kernel_busy_ns / 1e6 / (double)n_steps;
    r->idle = fmax(0, 1 - ms / r->ms_per_step);
    return OK;
}

static bool is_cpu(const backend *be) {
    return strcmp(be->name, "cpu") == 0;
}

typedef enum { FOR_SPEED, FOR_BUSY, FOR_SHARES } purpose;

/* Checks first, or draws weights. */
static status begin(bench_loop *l, purpose why, bench_result *r) {
    if (why == FOR_SPEED) return check_gradient(l, r);
    /* Once already before any step is recorded: busy.h. */
    if (why == FOR_BUSY) TRY(busy_begin());
    return model_init(l->s.model, 1);
}

static status warm_up(bench_loop *l, purpose why) {
    backend *be = l->s.be;
    TRY(do_steps(l, is_cpu(be) || why == FOR_SHARES ? N_WARM_CPU : N_WARM_GPU));
    if (why == FOR_SHARES) timed_reset(be);
    return why == FOR_BUSY ? busy_begin() : OK;
}

static status take(const bench_loop *l, purpose why, int64_t n_steps, bench_result *r) {
    if (why == FOR_BUSY) return take_busy(n_steps, r);
    if (why == FOR_SPEED)
        take_speed(l, n_steps, r);
    else
        take_shares(l, r);
    return OK;
}

/* Steps for one purpose, with a model of their own. */
static status measure_on(const bench_args *a, const config *c, const work *w, backend *be,
                         purpose why, bench_result *r) {
    bench_loop l;
    status st = loop_open(&l, c, w->data, be);
    if (st == OK) st = begin(&l, why, r);
    if (st == OK) st = warm_up(&l, why);
    if (st == OK) st = do_steps(&l, a->n_steps);
    if (st == OK) st = take(&l, why, a->n_steps, r);
    loop_close(&l);
    return st;
}

static status measure_shares(const bench_args *a, const config *c, work *w, bench_result *r) {
    backend *timed;
    if (!is_cpu(w->be)) TRY(measure_on(a, c, w, w->be, FOR_BUSY, r));
    TRY(timed_create(&timed, w->be));
    status st = measure_on(a, c, w, timed, FOR_SHARES, r);
    backend_destroy(timed);
    return st;
}

/* What a model says of itself when it is made is said once. */
static status measure(const bench_args *a, const config *c, work *w, bench_result *r) {
    log_level level = log_get_level();
    struct rusage usage;
    r->idle = NAN;
    TRY(measure_on(a, c, w, w->be, FOR_SPEED, r));
    if (getrusage(RUSAGE_SELF, &usage) == 0) r->peak_mb = (double)usage.ru_maxrss / 1e3;
    TRY(peak_measure(w->be, &r->peak));
    if (level < LOG_WARN) log_set_level(LOG_WARN);
    status st = measure_shares(a, c, w, r);
    log_set_level(level);
    return st;
}

/* ---- printing -------------------------------------------------------------------------------- */

static const char *act_name(act_type act) {
    static const char *const names[] = {"float32", "bfloat16", "float16"};
    return names[act];
}

static void write_flops(json_writer *j, const flops *f) {
    json_key(j, "flop_per_step");
    json_object_open(j);
    json_key_double(j, "layers", flops_layers(f));
    json_key_double(j, "uvqk", f->uvqk);
    json_key_double(j, "attention", f->attention);
    json_key_double(j, "projection", f->projection);
    json_key_double(j, "input", f->input);
    json_key_double(j, "head", f->head);
    json_object_close(j);
}

static void write_result(json_writer *j, const bench_args *a, const config *c, const work *w,
                         const bench_result *r) {
    json_key_string(j, "bench", "train");
    json_key_string(j, "config", c->file);
    json_key_string(j, "device", w->be->name);
    json_key_string(j, "type", act_name(w->be->act));
    json_key_int(j, "threads", pool_n_threads(w->workers));
    json_key_double(j, "tokens_per_s", r->tokens_per_s);
    json_key_double(j, "ms_per_step", r->ms_per_step);
    json_key_double(j, "tokens_per_step", r->tokens_per_step);
    write_flops(j, &r->step);
    json_key_double(j, "tflop_per_s", r->speed / 1e12);
    json_key_double(j, "peak_tflop_per_s", r->peak / 1e12);
    json_key_double(j, "part_of_peak", r->speed / r->peak);
    if (!isnan(r->idle)) json_key_double(j, "idle", r->idle);
    if (r->busy.is_known)
        json_key_double(j, "busy_ms", (double)r->busy.kernel_busy_ns / 1e6 / (double)a->n_steps);
    json_key_double(j, "gradient_error", r->slope.error);
    json_key_int(j, "gradient_users", r->slope.n_users);
    json_key_double(j, "model_mb", r->model_mb);
    json_key_double(j, "peak_mb", r->peak_mb);
    json_key(j, "ops");
    json_object_open(j);
    for (int i = 0; i < r->n_ops; i++)
        json_key_double(j, r->op[i].name, (double)r->op[i].ns / 1e6 / r->total_ms);
    json_object_close(j);
    if (!r->busy.is_known) return;
    json_key(j, "kernels");
    json_object_open(j);
    for (int i = 0; i < r->busy.n_top; i++)
        json_key_double(j, r->busy.top[i].name,
                        (double)r->busy.top[i].ns / 1e6 / (double)a->n_steps);
    json_object_close(j);
}

static status print_json(const bench_args *a, const config *c, const work *w,
                         const bench_result *r) {
    json_writer j;
    buf text;
    buf_init(&text);
    json_begin(&j, &text, 0);
    json_object_open(&j);
    write_result(&j, a, c, w, r);
    json_object_close(&j);
    status st = json_finish(&j);
    if (st == OK) printf("%s\n", buf_str(&text));
    buf_fini(&text);
    return st;
}

/* 6.389e13 as "63.89 T". */
static const char *show_flop(char *text, double flop) {
    static const char *const units[] = {"M", "G", "T", "P"};
    int u = 0;
    for (flop /= 1e6; flop >= 1000 && u < 3; u++)
        flop /= 1000;
    snprintf(text, SHOW_BYTES, "%.*f %s", flop < 100 ? 2 : 1, flop, units[u]);
    return text;
}

/* Which tokens go through the layers. */
static const char *token_kinds(const config *c, int n_context) {
    if (c->task == TASK_RANKING)
        return n_context > 0 ? "contextual, items, actions" : "items, actions";
    return n_context > 0 ? "contextual, items" : "items";
}

static void print_flops(const bench_result *r) {
    char text[5][SHOW_BYTES], speed[SHOW_BYTES + 8], step[SHOW_BYTES + 8];
    const flops *f = &r->step;
    snprintf(speed, sizeof speed, "%sFLOP/s", show_flop(text[0], r->speed));
    snprintf(step, sizeof step, "%sFLOP", show_flop(text[0], flops_layers(f)));
    printf("  Speed       %14s   %.1f %% of the %sFLOP/s of a large product here\n", speed,
           100 * r->speed / r->peak, show_flop(text[0], r->peak));
    printf("  Work        %14s   a step: uvqk %s, attention %s (causal half), projection %s; input "
           "and head, %s, not counted\n",
           step, show_flop(text[1], f->uvqk), show_flop(text[2], f->attention),
           show_flop(text[3], f->projection), show_flop(text[4], f->input + f->head));
}

static void print_idle(const bench_args *a, const bench_result *r) {
    double ms = (double)r->busy.kernel_busy_ns / 1e6 / (double)a->n_steps;
    if (r->busy.is_known)
        printf("  GPU idle    %12.1f %%   of the loop: it computed for %.2f ms a step, in %.0f "
               "kernels%s\n",
               100 * r->idle, ms, (double)r->busy.n_kernels / (double)a->n_steps,
               r->busy.n_lost > 0 ? " at least" : "");
    else if (r->busy.reason[0] != '\0')
        printf("  GPU idle    %14s   %s\n", "not known", r->busy.reason);
}

static void print_speed(const bench_args *a, const config *c, const bench_result *r) {
    char text[SHOW_BYTES];
    printf("  Tokens/s    %14s\n", show_count(text, (uint64_t)r->tokens_per_s));
    printf("  Step        %11.2f ms   %.0f tokens (%s), mean of %" PRId64 " steps\n",
           r->ms_per_step, r->tokens_per_step, token_kinds(c, r->n_context), a->n_steps);
    print_flops(r);
    print_idle(a, r);
    printf("  Memory      %11.0f MB   parameters, their state, activations; %.0f MB peak of the "
           "process\n\n",
           r->model_mb, r->peak_mb);
}

static void print_shares(const bench_args *a, const bench_result *r, const show_style *style) {
    char bar[SHOW_BYTES];
    double other = r->total_ms, largest = r->n_ops > 0 ? (double)r->op[0].ns / 1e6 : 1;
    printf("%s  %-18s %9s %7s %7s%s\n", style->bold, "op", "ms/step", "share", "calls",
           style->plain);
    for (int i = 0; i < r->n_ops; i++) {
        double ms = (double)r->op[i].ns / 1e6;
        other -= ms;
        printf("  %-18s %9.3f %5.1f %% %7.1f  %s%s%s\n", r->op[i].name, ms / (double)a->n_steps,
               100 * ms / r->total_ms, (double)r->op[i].n_calls / (double)a->n_steps, style->bar,
               show_bar(bar, ms / largest, 24), style->plain);
    }
    printf("  %-18s %9.3f %5.1f %%\n", "(between ops)", other / (double)a->n_steps,
           100 * other / r->total_ms);
}

static void print_kernels(const bench_args *a, const bench_result *r, const show_style *style) {
    const busy_report *b = &r->busy;
    if (!b->is_known) return;
    printf("\n%s  %9s %7s %7s  kernel%s\n", style->bold, "ms/step", "share", "calls", style->plain);
    for (int i = 0; i < b->n_top && i < N_KERNELS; i++) {
        const busy_kernel *k = &b->top[i];
        printf("  %9.3f %5.1f %% %7.1f  %s\n", (double)k->ns / 1e6 / (double)a->n_steps,
               100 * (double)k->ns / (double)b->kernel_busy_ns,
               (double)k->n_calls / (double)a->n_steps, k->name);
    }
}

static void print_text(const bench_args *a, const config *c, const work *w, const bench_result *r) {
    show_style style = show_stdout_style();
    printf("%s%s%s, %s, %s in %s, %d threads; the slope along the gradient fits to %.2f %%",
           style.bold, config_model_name(c->model), style.plain, c->file, w->be->name,
           act_name(w->be->act), pool_n_threads(w->workers), 100 * r->slope.error);
    if (r->slope.n_users < c->trainer.train_batch_size) printf(" (of %d users)", r->slope.n_users);
    printf("\n\n");
    print_speed(a, c, r);
    print_shares(a, r, &style);
    print_kernels(a, r, &style);
}

/* ---- running --------------------------------------------------------------------------------- */

/* Users, items and lengths of the size of MovieLens 1M. */
static status write_synth(void *ctx, const char *folder, pool *p) {
    synth_config world = {.n_users = 6040, .n_items = 3883, .mean_len = 165, .seed = 1};
    synth_report report;
    (void)ctx;
    return synth_write(&world, folder, p, &report);
}

/* Where no data is given. */
static status make_data(work *w, const config *c) {
    if (c->is_benchmark) return generated_open(&w->data, c, w->workers);
    return temp_data_open(&w->data, write_synth, NULL, w->workers);
}

static status run(const bench_args *a) {
    config *c;
    work w;
    bench_result r = {0};
    config_source source = {
        .path = a->file, .overrides = a->overrides.item, .n_overrides = a->overrides.n_items};
    TRY(config_load(&c, &source));
    status st = work_open(&w, a->data, a->device);
    if (st == OK) {
        if (a->data == NULL) st = make_data(&w, c);
        if (st == OK) st = measure(a, c, &w, &r);
        if (st == OK && a->is_json) st = print_json(a, c, &w, &r);
        if (st == OK && !a->is_json) print_text(a, c, &w, &r);
        work_close(&w);
    }
    config_destroy(c);
    return st;
}

status bench_train(int argc, char **argv) {
    bench_args a = {.file = "configs/ml-1m/hstu-sampled-softmax-n128-final.gin",
                    .device = "auto",
                    .n_steps = 20};
    bool is_help;
    const arg_option options[] = {
        {"--gin-config-file", ARG_TEXT, &a.file, "FILE",
         "The config (default configs/ml-1m/hstu-sampled-softmax-n128-final.gin).", 0, 0},
        {"--set", ARG_LIST, &a.overrides, "Class.field=value",
         "Overrides one binding of the file; may be given several times.", 0, 0},
        {"--data", ARG_TEXT, &a.data, "DIR",
         "Data set (default: what the config's BenchmarkDatasetArgs describe is generated; else a "
         "synthetic one of the size of MovieLens 1M).",
         0, 0},
        {"--steps", ARG_INT, &a.n_steps, "N", "Steps to time (default 20).", 1, 1 << 20},
        {"--device", ARG_TEXT, &a.device, "DEVICE", WORK_DEVICES, 0, 0},
        {"--json", ARG_FLAG, &a.is_json, NULL, "Print one JSON object.", 0, 0},
        {0},
    };
    const arg_spec spec = {
        "hstu bench train [options]",
        "Measures training: tokens and FLOP a second, the time of a step, the share of each op, "
        "after checking the gradient on weights drawn anew.",
        options,
        0,
        0,
        "Tokens are those that go through the layers.  FLOP are counted as published figures are: "
        "products of the layers three times (forward, backward), the causal half of the attention "
        "three and a half times; what is computed again to save memory does not count.\n"};
    status st = args_parse(&spec, argc, argv, NULL, NULL, &is_help);
    if (st == OK && !is_help) st = run(&a);
    mem_free(a.overrides.item);
    return st;
}
