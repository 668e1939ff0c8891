/* hstu bench train: the speed of a training step, and what of it each op takes.
 *
 * First the gradient is checked, on data and weights drawn anew: the change of the loss along it,
 * by finite differences, must be its squared length.  Then steps are timed as the trainer does
 * them, without a timing layer; then again with one, for the shares. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "cli/bench.h"
#include "cli/cli.h"
#include "cli/show.h"
#include "cli/work.h"
#include "data/synth.h"
#include "profile/timed.h"
#include "train/optimizer.h"

enum { N_WARM = 3 };

typedef struct bench_args {
    const char *file, *data, *device;
    arg_list overrides;
    int64_t n_steps;
    bool is_json;
} bench_args;

typedef struct bench_result {
    double tokens_per_s, ms_per_step, tokens_per_step;
    double loss, gradient_error;
    double peak_mb;
    timed_op op[TIMED_MAX_OPS]; /* by time, most first */
    int n_ops;
    double total_ms; /* of the steps with the timing layer */
} bench_result;

/* ---- the check ------------------------------------------------------------------------------- */

static status loss_of(session *s, const batch *b, uint64_t seed, double *loss) {
    model_step at = {.seed = seed, .step = 1};
    double sum = 0;
    TRY(model_train_batch(s->model, b, &at, NULL));
    TRY(model_take_loss(s->model, &sum));
    *loss = sum / (double)model_count_loss(s->model, b);
    return OK;
}

static void move_along(session *s, float *const *direction, double by) {
    for (int i = 0; i < s->n_params; i++)
        for (int64_t k = 0; k < s->params[i].n; k++)
            s->params[i].value[k] += (float)(by * (double)direction[i][k]);
}

/* *error = |(L(w + e g) - L(w - e g)) / 2e - |g|^2| / |g|^2, dropout and negatives fixed. */
static status compare_slope(session *s, const batch *b, uint64_t seed, float **g, double *error) {
    model_step at = {.seed = seed, .step = 1};
    double sum = 0, square = 0, up = 0, down = 0;
    int64_t n = model_count_loss(s->model, b);
    at.grad_scale = (float)(1.0 / (double)n);
    TRY(model_train_batch(s->model, b, &at, NULL));
    TRY(model_take_loss(s->model, &sum));
    for (int i = 0; i < s->n_params; i++) {
        memcpy(g[i], s->params[i].grad, (size_t)s->params[i].n * sizeof *g[i]);
        for (int64_t k = 0; k < s->params[i].n; k++)
            square += (double)g[i][k] * (double)g[i][k];
    }
    double by = 2e-3 / sqrt(square); /* a step of this length, whatever the gradient's */
    move_along(s, g, by);
    TRY(loss_of(s, b, seed, &up));
    move_along(s, g, -2 * by);
    TRY(loss_of(s, b, seed, &down));
    move_along(s, g, by);
    *error = fabs((up - down) / (2 * by) - square) / square;
    return OK;
}

static status check_gradient(session *s, batcher *batches, double *error) {
    uint64_t seed = clock_ns();
    const batch *b;
    float **g;
    TRY(model_init(s->model, seed));
    TRY(batcher_next(batches, &b));
    TRY(MEM_NEW(&g, (size_t)s->n_params));
    status st = OK;
    for (int i = 0; i < s->n_params && st == OK; i++)
        st = MEM_NEW(&g[i], (size_t)s->params[i].n);
    if (st == OK) st = compare_slope(s, b, seed, g, error);
    for (int i = 0; i < s->n_params; i++) {
        if (g[i] != NULL) memset(s->params[i].grad, 0, (size_t)s->params[i].n * sizeof *g[i]);
        mem_free(g[i]);
    }
    mem_free(g);
    TRY(st);
    if (!(*error < 0.05))
        return fail(ERR_NUMERIC,
                    "the gradient does not fit the loss: the slope along it is off by %.1f %%",
                    100 * *error);
    return OK;
}

/* ---- the measurement ------------------------------------------------------------------------- */

/* Steps as the trainer does them; seconds, tokens and the last mean loss. */
static status do_steps(session *s, batcher *batches, int64_t n_steps, int64_t *t, double *seconds,
                       int64_t *n_tokens, double *loss) {
    optimizer o;
    TRY(optimizer_init(&o, s->be, s->params, s->n_params, s->config));
    status st = OK;
    uint64_t start = clock_ns();
    *n_tokens = 0;
    for (int64_t i = 0; i < n_steps && st == OK; i++, ++*t) {
        const batch *b;
        double sum = 0;
        model_step at = {.seed = 1, .step = (uint32_t)*t};
        st = batcher_next(batches, &b);
        if (st != OK) break;
        int64_t n = model_count_loss(s->model, b);
        at.grad_scale = (float)(1.0 / (double)(n > 0 ? n : 1));
        st = model_train_batch(s->model, b, &at, NULL);
        if (st == OK) st = optimizer_step(&o, s->config->optimizer.learning_rate, *t + 1, 1);
        if (st == OK) st = model_take_loss(s->model, &sum);
        *n_tokens += b->n_tokens;
        *loss = sum / (double)n;
    }
    if (st == OK) st = s->be->ops->sync(s->be);
    *seconds = (double)(clock_ns() - start) / 1e9;
    optimizer_fini(&o);
    return st;
}

static int compare_time(const void *a, const void *b) {
    const timed_op *x = a, *y = b;
    return (x->ns < y->ns) - (x->ns > y->ns);
}

static void take_shares(const backend *be, bench_result *r) {
    int n;
    const timed_op *all = timed_ops(be, &n);
    for (int i = 0; i < n; i++)
        if (all[i].n_calls > 0) r->op[r->n_ops++] = all[i];
    qsort(r->op, (size_t)r->n_ops, sizeof r->op[0], compare_time);
}

/* The check, the speed and (through a timing layer) the shares; each with a model of its own. */
static status measure_on(const bench_args *a, const config *c, const seq_file *data, backend *be,
                         bool is_timed, bench_result *r) {
    session s;
    batcher *batches = NULL;
    int64_t t = 0, n_tokens = 0;
    double seconds = 0;
    status st = session_open(&s, c, data, be);
    batcher_config bc = {0};
    if (st == OK) bc = session_train_batches(&s, session_split(c, false), 1);
    if (st == OK) st = batcher_create(&batches, data, &bc);
    if (st == OK && !is_timed) st = check_gradient(&s, batches, &r->gradient_error);
    if (st == OK) st = model_init(s.model, 1);
    if (st == OK) st = do_steps(&s, batches, N_WARM, &t, &seconds, &n_tokens, &r->loss);
    if (st == OK && is_timed) timed_reset(be);
    if (st == OK) st = do_steps(&s, batches, a->n_steps, &t, &seconds, &n_tokens, &r->loss);
    if (st == OK && is_timed) {
        r->total_ms = seconds * 1e3;
        take_shares(be, r);
    } else if (st == OK) {
        r->tokens_per_s = (double)n_tokens / seconds;
        r->ms_per_step = seconds * 1e3 / (double)a->n_steps;
        r->tokens_per_step = (double)n_tokens / (double)a->n_steps;
    }
    batcher_destroy(batches);
    session_close(&s);
    return st;
}

static status measure(const bench_args *a, const config *c, work *w, bench_result *r) {
    backend *timed;
    struct rusage usage;
    TRY(measure_on(a, c, w->data, w->be, false, r));
    if (getrusage(RUSAGE_SELF, &usage) == 0) r->peak_mb = (double)usage.ru_maxrss / 1e3;
    TRY(timed_create(&timed, w->be));
    status st = measure_on(a, c, w->data, timed, true, r);
    backend_destroy(timed);
    return st;
}

/* ---- printing -------------------------------------------------------------------------------- */

static status print_json(const config *c, const work *w, const bench_result *r) {
    json_writer j;
    buf text;
    buf_init(&text);
    json_begin(&j, &text, 0);
    json_object_open(&j);
    json_key_string(&j, "bench", "train");
    json_key_string(&j, "config", c->file);
    json_key_string(&j, "device", w->be->name);
    json_key_int(&j, "threads", pool_n_threads(w->workers));
    json_key_double(&j, "tokens_per_s", r->tokens_per_s);
    json_key_double(&j, "ms_per_step", r->ms_per_step);
    json_key_double(&j, "tokens_per_step", r->tokens_per_step);
    json_key_double(&j, "gradient_error", r->gradient_error);
    json_key_double(&j, "peak_mb", r->peak_mb);
    json_key(&j, "ops");
    json_object_open(&j);
    for (int i = 0; i < r->n_ops; i++)
        json_key_double(&j, r->op[i].name, (double)r->op[i].ns / 1e6 / r->total_ms);
    json_object_close(&j);
    json_object_close(&j);
    status st = json_finish(&j);
    if (st == OK) printf("%s\n", buf_str(&text));
    buf_fini(&text);
    return st;
}

static void print_text(const bench_args *a, const config *c, const work *w, const bench_result *r) {
    char text[SHOW_BYTES], bar[SHOW_BYTES];
    show_style style = show_stdout_style();
    double other = r->total_ms, largest = r->n_ops > 0 ? (double)r->op[0].ns / 1e6 : 1;
    printf("%s%s%s, %s, %s, %d threads; the slope along the gradient fits to %.2f %%\n\n",
           style.bold, config_model_name(c->model), style.plain, c->file, w->be->name,
           pool_n_threads(w->workers), 100 * r->gradient_error);
    printf("  Tokens/s    %12s\n", show_count(text, (uint64_t)r->tokens_per_s));
    printf("  Step        %9.2f ms   %.0f tokens, mean of %" PRId64 " steps\n", r->ms_per_step,
           r->tokens_per_step, a->n_steps);
    printf("  Memory      %9.0f MB   peak of the process\n\n", r->peak_mb);
    printf("%s  %-18s %9s %7s %7s%s\n", style.bold, "op", "ms/step", "share", "calls", style.plain);
    for (int i = 0; i < r->n_ops; i++) {
        double ms = (double)r->op[i].ns / 1e6;
        other -= ms;
        printf("  %-18s %9.3f %5.1f %% %7.1f  %s%s%s\n", r->op[i].name, ms / (double)a->n_steps,
               100 * ms / r->total_ms, (double)r->op[i].n_calls / (double)a->n_steps, style.bar,
               show_bar(bar, ms / largest, 24), style.plain);
    }
    printf("  %-18s %9.3f %5.1f %%\n", "(between ops)", other / (double)a->n_steps,
           100 * other / r->total_ms);
}

/* ---- running --------------------------------------------------------------------------------- */

static status run_on(const bench_args *a, const char *data) {
    config *c;
    work w;
    bench_result r = {0};
    config_source source = {
        .path = a->file, .overrides = a->overrides.item, .n_overrides = a->overrides.n_items};
    TRY(config_load(&c, &source));
    status st = work_open(&w, data, a->device);
    if (st == OK) {
        st = measure(a, c, &w, &r);
        if (st == OK && a->is_json) st = print_json(c, &w, &r);
        if (st == OK && !a->is_json) print_text(a, c, &w, &r);
        work_close(&w);
    }
    config_destroy(c);
    return st;
}

/* Users, items and lengths of the size of MovieLens 1M; in a folder that is removed again. */
static status run_on_synth(const bench_args *a) {
    char folder[] = "/tmp/hstu-bench-XXXXXX", path[64];
    synth_config world = {.n_users = 6040, .n_items = 3883, .mean_len = 165, .seed = 1};
    synth_report report;
    if (mkdtemp(folder) == NULL) return fail_errno("%s: cannot make a temporary folder", folder);
    status st = synth_write(&world, folder, NULL, &report);
    if (st == OK) st = run_on(a, folder);
    snprintf(path, sizeof path, "%s/data.seq", folder);
    (void)unlink(path);
    (void)rmdir(folder);
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
         "Data set (default: a synthetic one of the size of MovieLens 1M is made).", 0, 0},
        {"--steps", ARG_INT, &a.n_steps, "N", "Steps to time (default 20).", 1, 1 << 20},
        {"--device", ARG_TEXT, &a.device, "DEVICE", WORK_DEVICES, 0, 0},
        {"--json", ARG_FLAG, &a.is_json, NULL, "Print one JSON object.", 0, 0},
        {0},
    };
    const arg_spec spec = {"hstu bench train [options]",
                           "Measures training: tokens a second, the time of a step and the share "
                           "of each op, after checking the gradient on weights drawn anew.",
                           options,
                           0,
                           0,
                           NULL};
    status st = args_parse(&spec, argc, argv, NULL, NULL, &is_help);
    if (st == OK && !is_help) st = a.data != NULL ? run_on(&a, a.data) : run_on_synth(&a);
    mem_free(a.overrides.item);
    return st;
}
