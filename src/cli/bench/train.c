/* hstu bench train: the check of the gradient, the measured steps, the page of figures, from top to
 * bottom (contract: train.h). */
#include "cli/bench/train.h"

#include <sys/resource.h>

#include "cli/bench/bench.h"
#include "data/synth/synth.h"
#include "nn/dynamic.h"
#include "profile/gpu_time.h"
#include "profile/peak.h"
#include "profile/tables.h"
#include "train/loop/generated.h"
#include "train/loop/trainer.h"

enum { PIECE = 1 << 14, FEW_USERS = 2, MORE_STEPS = 2 };

/* Above this product of parameters and events in the batch only two users are checked: the check
 * takes three passes and copies the gradient to the host. */
static const double LARGE = 1e12;

/* Length of the step: short enough that few ReLUs change sides, long enough that the losses differ
 * by more than their rounding. */
static const double STEP_F32 = 5e-5, STEP_HALF = 1e-3;

/* float16: gradients of a mean over many positions would vanish. */
static const double LOSS_SCALE_F16 = 1024;

typedef struct slope {
    session *s;
    batch b;
    uint64_t seed;
    float **value, **grad; /* (n_params), (n) each: host */
    double square;         /* |g|^2 */
} slope;

static batch choose_users(const session *s, const batch *b) {
    batch few = *b;
    if (b->n_users <= FEW_USERS || (double)model_n_numbers(s->model) * (double)b->n_tokens <= LARGE)
        return few;
    few.n_users = FEW_USERS;
    few.n_tokens = b->offsets[FEW_USERS];
    return few;
}

/* The mean loss, and the gradients of `scale` times it. */
static status slope_run(slope *p, double scale, double *loss) {
    int64_t n = model_count_loss(p->s->model, &p->b);
    model_step at = {.seed = p->seed, .step = 1};
    at.grad_scale = (float)(scale / (double)n);
    TRY(pass_train(p->s->train, &p->b, &at, NULL));
    TRY(pass_take_loss(p->s->train, loss));
    dynamic_forget(model_tables(p->s->model)); /* only parameters are moved here */
    *loss /= (double)n;
    return OK;
}

/* Values and gradients to the host. */
static status slope_fetch(slope *p, double scale) {
    backend *be = p->s->be;
    for (int i = 0; i < p->s->n_params; i++) {
        const param *x = &p->s->params[i];
        TRY(be->ops->copy_out(be, p->value[i], x->value, (size_t)x->n * sizeof(float)));
        TRY(x->grad != NULL
                ? be->ops->copy_out(be, p->grad[i], x->grad, (size_t)x->n * sizeof(float))
                : model_read_listed(p->s->model, x, p->grad[i]));
        for (int64_t k = 0; k < x->n; k++) {
            p->grad[i][k] = (float)((double)p->grad[i][k] / scale);
            p->square += (double)p->grad[i][k] * (double)p->grad[i][k];
        }
    }
    return OK;
}

/* The parameters become value + by * grad. */
static status slope_move(slope *p, double by) {
    float piece[PIECE];
    backend *be = p->s->be;
    for (int i = 0; i < p->s->n_params; i++) {
        const param *x = &p->s->params[i];
        for (int64_t at = 0; at < x->n; at += PIECE) {
            int64_t n = x->n - at < PIECE ? x->n - at : PIECE;
            const float *value = p->value[i] + at, *grad = p->grad[i] + at;
            for (int64_t k = 0; k < n; k++)
                piece[k] = (float)((double)value[k] + by * (double)grad[k]);
            TRY(be->ops->copy_in(be, x->value + at, piece, (size_t)n * sizeof *piece));
        }
    }
    return OK;
}

/* Clears the gradients and the marks of touched rows that the passes left. */
static status slope_clear(slope *p) {
    backend *be = p->s->be;
    for (int i = 0; i < p->s->n_params; i++) {
        const param *x = &p->s->params[i];
        if (x->grad == NULL) continue;
        TRY(be->ops->zero(be, x->grad, (size_t)x->n * sizeof *x->grad));
        if (x->marks != NULL)
            TRY(be->ops->zero(be, x->marks, (size_t)x->shape[0] * sizeof *x->marks));
    }
    return OK;
}

/* How far the slope over a step of length `step` to either side is from |g|. */
static status slope_measure(slope *p, double step, double *error) {
    double up = 0, down = 0, by = step / sqrt(p->square);
    TRY(slope_move(p, by));
    TRY(slope_run(p, 0, &up));
    TRY(slope_move(p, -by));
    TRY(slope_run(p, 0, &down));
    TRY(slope_move(p, 0));
    TRY(slope_clear(p));
    *error = fabs((up - down) / (2 * by) / p->square - 1);
    return OK;
}

/* A ReLU that changes sides within the step bends the loss of a small model; over a shorter step it
 * does not, whereas a wrong gradient is wrong over any. */
static status slope_compare(slope *p, slope_result *out) {
    double here, step;
    bool is_half = p->s->be->act != ACT_F32;
    double scale = p->s->be->act == ACT_F16 ? LOSS_SCALE_F16 : 1;
    TRY(slope_run(p, scale, &here));
    TRY(slope_fetch(p, scale));
    out->allowed = is_half ? .25 : .05;
    step = is_half ? STEP_HALF : STEP_F32;
    TRY(slope_measure(p, step, &out->error));
    for (int i = 0; i < MORE_STEPS && !is_half && !(out->error < out->allowed); i++)
        TRY(slope_measure(p, step /= 2, &out->error));
    out->n_users = p->b.n_users;
    if (out->error < out->allowed) return OK;
    return fail(ERR_NUMERIC,
                "the gradient does not fit the loss: the slope along it differs by %.1f %%, and "
                "%.0f %% are allowed",
                100 * out->error, 100 * out->allowed);
}

static status slope_alloc(slope *p) {
    TRY(MEM_NEW(&p->value, (size_t)p->s->n_params));
    TRY(MEM_NEW(&p->grad, (size_t)p->s->n_params));
    for (int i = 0; i < p->s->n_params; i++) {
        TRY(MEM_NEW_RAW(&p->value[i], (size_t)p->s->params[i].n));
        TRY(MEM_NEW_RAW(&p->grad[i], (size_t)p->s->params[i].n));
    }
    return OK;
}

status slope_check(session *s, const batch *b, uint64_t seed, slope_result *out) {
    slope p = {.s = s, .b = choose_users(s, b), .seed = seed};
    *out = (slope_result){0};
    status st = slope_alloc(&p);
    if (st == OK) st = slope_compare(&p, out);
    for (int i = 0; i < s->n_params; i++) {
        if (p.value != NULL) mem_free(p.value[i]);
        if (p.grad != NULL) mem_free(p.grad[i]);
    }
    MEM_FREE(p.value, p.grad);
    return st;
}

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

static int64_t n_warm(const backend *be) {
    return be->is_host ? N_WARM_CPU : N_WARM_GPU;
}

/* The weights are drawn within the gradient check. */
static status measure_speed(bench_loop *l, int64_t n_steps, train_bench_result *r) {
    TRY(check_gradient(l, &r->slope));
    TRY(do_steps(l, n_warm(l->s.be)));
    TRY(do_steps(l, n_steps));
    take_speed(l, n_steps, r);
    return OK;
}

static status run_profiled(bench_loop *l, int64_t n_steps) {
    TRY(model_init(l->s.model, 1));
    return do_steps(l, n_warm(l->s.be) + n_steps);
}

/* The same steps of a model of its own, with the profiler that `hstu profile` has. */
static status measure_shares(const config *c, const seq_file *data, backend **be, int64_t n_steps,
                             train_bench_result *r) {
    bench_loop l = {0};
    const profiler_options o = {.schedule = {.wait = n_warm(*be), .active = n_steps, .repeat = 1},
                                .has_host = true,
                                .has_gpu = !(*be)->is_host,
                                .has_memsets = true};
    status st = profiler_start(&r->profile, &o);
    if (st == OK) st = profiler_watch(be);
    if (st == OK) st = loop_open(&l, c, data, *be, n_steps);
    if (st == OK) st = run_profiled(&l, n_steps);
    loop_close(&l);
    status stopped = profiler_stop(&r->profile);
    r->has_profile = st == OK && stopped == OK;
    return st == OK ? stopped : st;
}

/* Only the first model's log lines are shown: the other says the same. */
status train_bench_run(const config *c, const seq_file *data, backend **be, int64_t n_steps,
                       train_bench_result *out) {
    log_level level = log_get_level();
    bench_loop l;
    struct rusage usage;
    *out = (train_bench_result){0};
    status st = loop_open(&l, c, data, *be, n_steps);
    if (st == OK) st = measure_speed(&l, n_steps, out);
    loop_close(&l);
    TRY(st);
    if (getrusage(RUSAGE_SELF, &usage) == 0) out->peak_mb = (double)usage.ru_maxrss / 1e3;
    TRY(peak_measure(*be, &out->peak));
    if (profiler_is_running()) return OK; /* hstu profile -- bench train */
    if (level < LOG_WARN) log_set_level(LOG_WARN);
    st = measure_shares(c, data, be, n_steps, out);
    log_set_level(level);
    return st;
}

void train_bench_fini(train_bench_result *r) {
    profile_fini(&r->profile);
}

status train_bench_data(seq_file **out, const config *c, pool *p) {
    synth_config world = {.n_users = 6040, .n_items = 3883, .mean_len = 165, .seed = 1};
    return c->is_benchmark ? generated_open(out, c, p) : synth_open(out, &world, p);
}

/* Rows of the tables. */
enum { N_ROWS = 24, N_KERNELS = 16 };

typedef struct bench_args {
    const char *file, *data, *device;
    arg_list overrides;
    int64_t n_steps;
    bool is_json, is_deterministic;
} bench_args;

/* What the GPU computed in a step.  Recording does not change how long kernels run, but it changes
 * the gaps between them, so this is compared with the steps without it. */
static double busy_ms(const bench_args *a, const gpu_idle *g) {
    return (double)g->busy_ns / 1e6 / (double)a->n_steps;
}

static double idle_of(const bench_args *a, const train_bench_result *r, const gpu_idle *g) {
    return fmax(0, 1 - busy_ms(a, g) / r->ms_per_step);
}

static void write_flops(json_writer *j, const flops *f) {
    json_key(j, "flop_per_step");
    JSON_OBJECT(j, FIELD("layers", flops_layers(f)), FIELD("uvqk", f->uvqk),
                FIELD("attention", f->attention), FIELD("projection", f->projection),
                FIELD("input", f->input), FIELD("head", f->head));
}

static void write_result(json_writer *j, const bench_args *a, const config *c, const work *w,
                         const train_bench_result *r) {
    JSON_FIELDS(j, FIELD("bench", "train"), FIELD("config", c->file), FIELD("device", w->be->name),
                FIELD("deterministic", a->is_deterministic), FIELD("type", work_dtypes[w->be->act]),
                FIELD("threads", pool_n_threads(w->workers)),
                FIELD("tokens_per_s", r->tokens_per_s), FIELD("ms_per_step", r->ms_per_step),
                FIELD("tokens_per_step", r->tokens_per_step));
    write_flops(j, &r->step);
    JSON_FIELDS(j, FIELD("tflop_per_s", r->speed / 1e12), FIELD("peak_tflop_per_s", r->peak / 1e12),
                FIELD("part_of_peak", r->speed / r->peak), FIELD("gradient_error", r->slope.error),
                FIELD("gradient_users", r->slope.n_users), FIELD("model_mb", r->model_mb),
                FIELD("peak_mb", r->peak_mb));
}

/* Shares of ranges and ops; milliseconds a step of kernels. */
static status write_profile(json_writer *j, const bench_args *a, const train_bench_result *r) {
    profile_table t;
    gpu_idle g;
    if (!r->has_profile) return OK;
    TRY(gpu_idle_find(&g, &r->profile.recorder));
    if (g.span_ns > 0)
        JSON_FIELDS(j, FIELD("idle", idle_of(a, r, &g)), FIELD("busy_ms", busy_ms(a, &g)));
    TRY(profile_table_make(&t, &r->profile.recorder, REPORT_OPS));
    json_key_object(j, "ops");
    for (size_t i = 0; i < t.n_rows; i++)
        json_key_double(j, t.rows[i].name, profile_table_share(&t, &t.rows[i]));
    json_object_close(j);
    profile_table_fini(&t);
    TRY(profile_table_make(&t, &r->profile.recorder, REPORT_KERNELS));
    if (t.n_rows > 0) json_key_object(j, "kernels");
    for (size_t i = 0; i < t.n_rows; i++)
        json_key_double(j, t.rows[i].name, t.rows[i].value[1] / 1e6 / (double)a->n_steps);
    if (t.n_rows > 0) json_object_close(j);
    profile_table_fini(&t);
    return OK;
}

static status print_json(const bench_args *a, const config *c, const work *w,
                         const train_bench_result *r) {
    json_writer *j = json_line_open();
    write_result(j, a, c, w, r);
    TRY(write_profile(j, a, r));
    return json_line_print();
}

/* 6.389e13 as "63.89 T". */
static const char *show_flop(double flop) {
    static const char *const units[] = {"M", "G", "T", "P"};
    int u = 0;
    for (flop /= 1e6; flop >= 1000 && u < 3; u++)
        flop /= 1000;
    return show_printf("%.*f %s", flop < 100 ? 2 : 1, flop, units[u]);
}

/* Which tokens go through the layers. */
static const char *token_kinds(const config *c, int n_context) {
    if (c->task == TASK_RANKING)
        return n_context > 0 ? "contextual, items, actions" : "items, actions";
    return n_context > 0 ? "contextual, items" : "items";
}

static void print_flops(const train_bench_result *r) {
    const flops *f = &r->step;
    printf("  Speed       %14s   %.1f %% of the %sFLOP/s of a large product here\n",
           show_printf("%sFLOP/s", show_flop(r->speed)), 100 * r->speed / r->peak,
           show_flop(r->peak));
    printf("  Work        %14s   a step: uvqk %s, attention %s (causal half), projection %s; input "
           "and head, %s, not counted\n",
           show_printf("%sFLOP", show_flop(flops_layers(f))), show_flop(f->uvqk),
           show_flop(f->attention), show_flop(f->projection), show_flop(f->input + f->head));
}

static status print_idle(const bench_args *a, const train_bench_result *r) {
    gpu_idle g;
    if (!r->has_profile) return OK;
    TRY(gpu_idle_find(&g, &r->profile.recorder));
    if (g.span_ns > 0)
        printf("  GPU idle    %12.1f %%   of the loop: it worked for %.2f ms a step\n",
               100 * idle_of(a, r, &g), busy_ms(a, &g));
    else if (strcmp(r->profile.device, "cpu") != 0)
        printf("  GPU idle    %14s   %s\n", "not known", r->profile.gpu_reason);
    return OK;
}

static status print_speed(const bench_args *a, const config *c, const train_bench_result *r) {
    printf("  Tokens/s    %14s\n", show_count((uint64_t)r->tokens_per_s));
    printf("  Step        %11.2f ms   %.0f tokens (%s), mean of %" PRId64 " steps\n",
           r->ms_per_step, r->tokens_per_step, token_kinds(c, r->n_context), a->n_steps);
    print_flops(r);
    TRY(print_idle(a, r));
    printf("  Memory      %11.0f MB   parameters, their state, activations; %.0f MB peak of the "
           "process\n\n",
           r->model_mb, r->peak_mb);
    return OK;
}

static status print_table(const train_bench_result *r, report_kind kind, int64_t n_rows) {
    profile_table t;
    buf text = {0};
    TRY(profile_table_make(&t, &r->profile.recorder, kind));
    status st = t.n_rows > 0 ? profile_table_text(&t, n_rows, &text) : OK;
    if (st == OK) printf("%s\n", buf_str(&text));
    buf_fini(&text);
    profile_table_fini(&t);
    return st;
}

static status print_text(const bench_args *a, const config *c, const work *w,
                         const train_bench_result *r) {
    printf("%s, %s, %s in %s, %d threads; the slope along the gradient fits to %.2f %%",
           show_bold(config_model_name(c->model)), c->file, w->be->name, work_dtypes[w->be->act],
           pool_n_threads(w->workers), 100 * r->slope.error);
    if (r->slope.n_users < c->trainer.train_batch_size) printf(" (of %d users)", r->slope.n_users);
    printf("\n\n");
    TRY(print_speed(a, c, r));
    if (!r->has_profile) return OK;
    TRY(print_table(r, REPORT_OPS, N_ROWS));
    return print_table(r, REPORT_KERNELS, N_KERNELS);
}

static status run(const bench_args *a) {
    config *c;
    work w;
    train_bench_result r = {0};
    char path[CONFIG_PATH_BYTES];
    config_source source = {
        .path = path, .overrides = a->overrides.item, .n_overrides = a->overrides.n_items};
    config_path_find(a->file, path);
    TRY(config_load(&c, &source));
    work_options how = {.is_deterministic = a->is_deterministic};
    status st = work_open_as(&w, a->data, a->device, &how);
    if (st == OK) {
        if (a->data == NULL) st = train_bench_data(&w.data, c, w.workers);
        if (st == OK) st = train_bench_run(c, w.data, &w.be, a->n_steps, &r);
        if (st == OK) st = a->is_json ? print_json(a, c, &w, &r) : print_text(a, c, &w, &r);
        train_bench_fini(&r);
        work_close(&w);
    }
    config_destroy(c);
    return st;
}

status bench_train(int argc, char **argv) {
    bench_args a = {.file = "configs/ml-1m/hstu-sampled-softmax-n128-final.gin",
                    .device = "auto",
                    .n_steps = 20};
    const arg_option options[] = {
        OPT_TEXT("--gin-config-file", &a.file, "FILE",
                 "Config file (default configs/ml-1m/hstu-sampled-softmax-n128-final.gin)."),
        OPT_LIST("--set", &a.overrides, "Class.field=value",
                 "Override one binding of the config file; may be repeated."),
        OPT_TEXT("--data", &a.data, "DIR",
                 "Data set (default: generated from the config's BenchmarkDatasetArgs, otherwise "
                 "synthetic data of the size of MovieLens 1M)."),
        OPT_INT("--steps", &a.n_steps, "N", 1, 1 << 20, "Steps to measure (default 20)."),
        OPT_TEXT("--device", &a.device, "DEVICE", WORK_DEVICES),
        OPT_FLAG("--deterministic", &a.is_deterministic,
                 "On a GPU: sum in a fixed order, as 'hstu train --deterministic' does."),
        OPT_FLAG("--json", &a.is_json, "Print one JSON object."),
        {0},
    };
    const arg_spec spec = {
        .usage = "hstu bench train [options]",
        .summary = "Measure training: tokens and FLOP per second, the time of a step and the share "
                   "of each op. The gradient is first checked on random weights.",
        .options = options,
        .notes = "Tokens are those that pass through the layers. FLOP are counted as in published "
                 "figures: the products of the layers three times (forward, backward), the causal "
                 "half of the attention three and a half times. Recomputation to save memory does "
                 "not count.\n"};
    ARGS_PARSE(&spec, NULL, NULL);
    return run(&a);
}
