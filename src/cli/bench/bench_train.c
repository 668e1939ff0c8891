/* hstu bench train: options and the page of figures; bench/train_step.h measures. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "base/mem.h"
#include "cli/bench/bench.h"
#include "cli/bench/train_step.h"
#include "cli/cli.h"
#include "cli/output.h"
#include "cli/work.h"

/* Rows of the table of kernels. */
enum { N_KERNELS = 16 };

typedef struct bench_args {
    const char *file, *data, *device;
    arg_list overrides;
    int64_t n_steps;
    bool is_json, is_deterministic;
} bench_args;

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
                         const train_bench_result *r) {
    json_key_string(j, "bench", "train");
    json_key_string(j, "config", c->file);
    json_key_string(j, "device", w->be->name);
    json_key_bool(j, "deterministic", a->is_deterministic);
    json_key_string(j, "type", bench_act_name(w->be->act));
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
                         const train_bench_result *r) {
    json_line line;
    write_result(json_line_open(&line), a, c, w, r);
    return json_line_print(&line);
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

static void print_flops(const train_bench_result *r) {
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

static void print_idle(const bench_args *a, const train_bench_result *r) {
    double ms = (double)r->busy.kernel_busy_ns / 1e6 / (double)a->n_steps;
    if (r->busy.is_known)
        printf("  GPU idle    %12.1f %%   of the loop: it computed for %.2f ms a step, in %.0f "
               "kernels%s\n",
               100 * r->idle, ms, (double)r->busy.n_kernels / (double)a->n_steps,
               r->busy.n_lost > 0 ? " at least" : "");
    else if (r->busy.reason[0] != '\0')
        printf("  GPU idle    %14s   %s\n", "not known", r->busy.reason);
}

static void print_speed(const bench_args *a, const config *c, const train_bench_result *r) {
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

static void print_shares(const bench_args *a, const train_bench_result *r,
                         const show_style *style) {
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

static void print_kernels(const bench_args *a, const train_bench_result *r,
                          const show_style *style) {
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

static void print_text(const bench_args *a, const config *c, const work *w,
                       const train_bench_result *r) {
    show_style style = show_stdout_style();
    printf("%s%s%s, %s, %s in %s, %d threads; the slope along the gradient fits to %.2f %%",
           style.bold, config_model_name(c->model), style.plain, c->file, w->be->name,
           bench_act_name(w->be->act), pool_n_threads(w->workers), 100 * r->slope.error);
    if (r->slope.n_users < c->trainer.train_batch_size) printf(" (of %d users)", r->slope.n_users);
    printf("\n\n");
    print_speed(a, c, r);
    print_shares(a, r, &style);
    print_kernels(a, r, &style);
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
        if (st == OK) st = train_bench_run(c, w.data, w.be, a->n_steps, &r);
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
        OPT_TEXT("--gin-config-file", &a.file, "FILE",
                 "The config (default configs/ml-1m/hstu-sampled-softmax-n128-final.gin)."),
        OPT_LIST("--set", &a.overrides, "Class.field=value",
                 "Overrides one binding of the file; may be given several times."),
        OPT_TEXT("--data", &a.data, "DIR",
                 "Data set (default: what the config's BenchmarkDatasetArgs describe is generated; "
                 "else a synthetic one of the size of MovieLens 1M)."),
        OPT_INT("--steps", &a.n_steps, "N", 1, 1 << 20, "Steps to time (default 20)."),
        OPT_TEXT("--device", &a.device, "DEVICE", WORK_DEVICES),
        OPT_FLAG("--deterministic", &a.is_deterministic,
                 "On a GPU: with sums of a fixed order, as 'hstu train --deterministic'."),
        OPT_FLAG("--json", &a.is_json, "Print one JSON object."),
        {0},
    };
    const arg_spec spec = {
        .usage = "hstu bench train [options]",
        .summary = "Measures training: tokens and FLOP a second, the time of a step, the share of "
                   "each op, after checking the gradient on fresh random weights.",
        .options = options,
        .notes =
            "Tokens are those that go through the layers.  FLOP are counted as published figures "
            "are: products of the layers three times (forward, backward), the causal half of the "
            "attention three and a half times; recomputation that saves memory does not count.\n"};
    status st = args_parse(&spec, argc, argv, NULL, NULL, &is_help);
    if (st == OK && !is_help) st = run(&a);
    mem_free(a.overrides.item);
    return st;
}
