/* hstu bench cluster: options and the table; bench/cluster.h predicts. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "cli/bench/bench.h"
#include "cli/bench/cluster.h"
#include "cli/bench/train_step.h"
#include "cli/cli.h"
#include "cli/output.h"
#include "cli/work.h"

enum { MAX_COUNTS = 32, MEASURED_STEPS = 10, MAX_MEASURED = 1 << 20 };
/* bench/results/h200/train.csv, benchmark_ranking_fixed at 77a7e50. */
static const double H200_TFLOPS = 430.4;

typedef struct bench_args {
    const char *gpus, *profile, *file, *measured, *device, *lengths, *balance;
    arg_list overrides;
    double tflops, fixed_ms, spread;
    bool is_late, is_json;
    int count[MAX_COUNTS];
    int n_counts;
    const char *source; /* of the speed */
} bench_args;

static status read_counts(bench_args *a) {
    const char *at = a->gpus;
    do {
        char *end;
        long n = strtol(at, &end, 10);
        if (end == at || (*end != ',' && *end != '\0') || n < 1 || n > CLUSTER_MAX_GPUS)
            return fail(ERR_USAGE, "--gpus %.60s: numbers from 1 to %d with commas between them",
                        a->gpus, CLUSTER_MAX_GPUS);
        if (a->n_counts == MAX_COUNTS)
            return fail(ERR_USAGE, "--gpus: at most %d numbers", MAX_COUNTS);
        a->count[a->n_counts++] = (int)n;
        at = end + (*end == ',');
        if (*end == ',' && *at == '\0')
            return fail(ERR_USAGE, "--gpus %.60s ends with a comma", a->gpus);
    } while (*at != '\0');
    return OK;
}

static status read_lengths(const char *text, cluster_work *w) {
    char *end;
    if (strcmp(text, "fixed") == 0) {
        w->lengths = LENGTHS_FIXED;
    } else if (strcmp(text, "uniform") == 0) {
        w->lengths = LENGTHS_UNIFORM;
    } else if (strncmp(text, "zipf:", 5) == 0) {
        w->lengths = LENGTHS_ZIPF;
        w->length_alpha = strtod(text + 5, &end);
        if (end == text + 5 || *end != '\0' || !(w->length_alpha > 1 && w->length_alpha <= 20))
            return fail(ERR_USAGE, "--lengths %.40s: zipf needs a number from 1 to 20, as zipf:1.2",
                        text);
    } else {
        return fail(ERR_USAGE, "--lengths %.40s: it is fixed, uniform or zipf:ALPHA", text);
    }
    return OK;
}

static status read_balance(const char *text, cluster_balance *out) {
    static const char *const names[] = {"none", "equal", "lpt"};
    for (int i = 0; i < 3; i++) {
        if (strcmp(text, names[i]) != 0) continue;
        *out = (cluster_balance)i;
        return OK;
    }
    return fail(ERR_USAGE, "--balance %.40s: it is none, equal or lpt", text);
}

/* The speed from what `hstu bench train --json` printed. */
static status read_measured(bench_args *a) {
    char *text = NULL;
    size_t n;
    arena memory;
    const json_value *object;
    arena_init(&memory, 4096);
    status st = file_read_all(a->measured, MAX_MEASURED, &text, &n);
    if (st == OK) st = json_parse(&memory, a->measured, text, n, &object);
    if (st == OK) st = json_member_double(object, "tflop_per_s", &a->tflops);
    if (st != OK) st = fail_prefix(st, "--measured");
    arena_fini(&memory);
    mem_free(text);
    a->source = a->measured;
    return st;
}

static status measure(bench_args *a, const config *c) {
    work w;
    train_bench_result r = {0};
    TRY(work_open(&w, NULL, a->device));
    status st = train_bench_data(&w.data, c, w.workers);
    if (st == OK) st = train_bench_run(c, w.data, w.be, MEASURED_STEPS, &r);
    work_close(&w);
    a->tflops = r.speed / 1e12;
    a->source = "measured here";
    return st;
}

static void print_assumptions(const bench_args *a, const cluster_work *w, const cluster_rank *r,
                              const cluster_links *l) {
    static const char *const balances[] = {"none", "equal numbers of users", "LPT"};
    printf("\nAssumed:\n");
    printf("  one GPU     %.1f TFLOP/s end to end (%s), %.1f ms a step fixed\n", a->tflops,
           a->source, a->fixed_ms);
    printf("  links       %s: %s; %.0f GB/s in a node of %d, %.1f GB/s a GPU between nodes\n",
           l->name, l->what, l->gpu_link * 1e-9, l->n_node, l->nic * 1e-9);
    if (l->is_one_gpu)
        printf("              all ranks share one GPU: each has 1/G of its speed and links\n");
    printf("  batch       %" PRId64 " users a GPU; lengths ", w->batch);
    if (w->lengths == LENGTHS_ZIPF)
        printf("by Zipf %.2f up to %" PRId64, w->length_alpha, w->max_length);
    else
        printf("%s %" PRId64, w->lengths == LENGTHS_FIXED ? "all" : "uniform up to", w->max_length);
    printf("; balance: %s\n", balances[r->balance]);
    printf("  messages    %.1f MB of dense gradients, %s; rows of %.0f bytes there and back once "
           "for each different id, without ids\n",
           w->dense_bytes * 1e-6,
           r->overlaps ? "layer by layer during the backward pass" : "after the backward pass",
           w->row_bytes);
    printf("  spread      %.2f %%: deviation of the ranks' speed; with it the model has the "
           "published exposed NCCL below\n",
           100 * r->spread);
    printf("  NCCL        constants of its own tuning (latency of base and hops, protocols), "
           "fastest algorithm\n");
}

static void print_checks(const cluster_check *check) {
    printf("\nThe model against NVIDIA's figures on 16 H100, each from the others:\n");
    for (int i = 0; i < CLUSTER_CHECKS; i++)
        printf("  %-36s published %7.2f %-8s model %7.2f  (%+.1f %%)\n", check[i].what,
               check[i].published, check[i].unit, check[i].model,
               100 * (check[i].model / check[i].published - 1));
}

static void print_row(const cluster_row *row) {
    printf("  %6d %9.2f %9.1f %7.1f %% %9.2f %9.2f %9.2f %9.2f  %s\n", row->n_gpus,
           row->step_s * 1e3, row->work / row->step_s * 1e-12, 100 * row->efficiency,
           row->compute_s * 1e3, row->wait_s * 1e3, row->exposed_s * 1e3,
           (row->rows_s + row->small_s) * 1e3, row->limit);
}

static void write_row(json_writer *j, const cluster_row *row) {
    json_object_open(j);
    json_key_int(j, "gpus", row->n_gpus);
    json_key_double(j, "step_ms", row->step_s * 1e3);
    json_key_double(j, "tflop_per_s_gpu", row->work / row->step_s * 1e-12);
    json_key_double(j, "efficiency", row->efficiency);
    json_key_double(j, "tflop_per_step", row->work * 1e-12);
    json_key_double(j, "tokens_per_step", row->tokens);
    json_key_double(j, "compute_ms", row->compute_s * 1e3);
    json_key_double(j, "wait_ms", row->wait_s * 1e3);
    json_key_double(j, "balance", row->balance);
    json_key_double(j, "all_reduce_ms", row->dense_s * 1e3);
    json_key_double(j, "all_reduce_exposed_ms", row->exposed_s * 1e3);
    json_key_double(j, "rows_ms", row->rows_s * 1e3);
    json_key_double(j, "small_ms", row->small_s * 1e3);
    json_key_double(j, "unique_ids", row->unique_ids);
    json_key_string(j, "all_reduce", row->how);
    json_key_string(j, "limit", row->limit);
    json_object_close(j);
}

static status print_json(const bench_args *a, const cluster_work *w, const cluster_rank *r,
                         const cluster_links *l, const cluster_row *rows,
                         const cluster_check *check) {
    json_line line;
    json_writer *j = json_line_open(&line);
    json_key_string(j, "bench", "cluster");
    json_key_string(j, "config", w->c->file);
    json_key_string(j, "profile", l->name);
    json_key_double(j, "gpu_tflop_per_s", a->tflops);
    json_key_string(j, "gpu_source", a->source);
    json_key_double(j, "fixed_ms", a->fixed_ms);
    json_key_double(j, "spread", r->spread);
    json_key_string(j, "balance", a->balance);
    json_key_bool(j, "overlap", r->overlaps);
    json_key_int(j, "batch", w->batch);
    json_key_double(j, "dense_bytes", w->dense_bytes);
    json_key_double(j, "row_bytes", w->row_bytes);
    json_key(j, "rows");
    json_array_open(j);
    for (int i = 0; i < a->n_counts; i++)
        write_row(j, &rows[i]);
    json_array_close(j);
    json_key(j, "published");
    json_array_open(j);
    for (int i = 0; i < CLUSTER_CHECKS; i++) {
        json_object_open(j);
        json_key_string(j, "what", check[i].what);
        json_key_string(j, "unit", check[i].unit);
        json_key_double(j, "published", check[i].published);
        json_key_double(j, "model", check[i].model);
        json_object_close(j);
    }
    json_array_close(j);
    return json_line_print(&line);
}

static status predict(bench_args *a, const config *c) {
    cluster_work w;
    cluster_row rows[MAX_COUNTS];
    cluster_check check[CLUSTER_CHECKS];
    const cluster_links *l;
    cluster_rank r = {
        .spread = a->spread / 100, .fixed_s = a->fixed_ms / 1e3, .overlaps = !a->is_late};
    show_style style = show_stdout_style();
    TRY(cluster_find_profile(a->profile, &l));
    TRY(read_balance(a->balance, &r.balance));
    TRY(cluster_work_of(c, &w));
    if (a->lengths != NULL) TRY(read_lengths(a->lengths, &w));
    if (a->measured != NULL) TRY(read_measured(a));
    if (a->device != NULL) TRY(measure(a, c));
    if (a->measured == NULL && a->device == NULL && a->tflops != H200_TFLOPS) a->source = "given";
    r.flops = a->tflops * 1e12;
    for (int i = 0; i < a->n_counts; i++)
        TRY(cluster_predict(&w, &r, l, a->count[i], &rows[i]));
    TRY(cluster_published(r.spread, check));
    if (a->is_json) return print_json(a, &w, &r, l, rows, check);
    printf("%sA training step on many GPUs%s, predicted: %s\n\n", style.bold, style.plain, c->file);
    printf("%s  %6s %9s %9s %9s %9s %9s %9s %9s  %s%s\n", style.bold, "GPUs", "step ms", "TFLOP/s",
           "of one", "compute", "wait", "gradient", "rows", "largest loss", style.plain);
    for (int i = 0; i < a->n_counts; i++)
        print_row(&rows[i]);
    print_assumptions(a, &w, &r, l);
    print_checks(check);
    return OK;
}

static status run(bench_args *a) {
    config *c;
    char path[CONFIG_PATH_BYTES];
    config_source source = {
        .path = path, .overrides = a->overrides.item, .n_overrides = a->overrides.n_items};
    TRY(read_counts(a));
    if (a->measured != NULL && a->device != NULL)
        return fail(ERR_USAGE, "--measured and --device both give the speed of one GPU: use one");
    config_path_find(a->file, path);
    TRY(config_load(&c, &source));
    status st = predict(a, c);
    config_destroy(c);
    return st;
}

status bench_cluster(int argc, char **argv) {
    bench_args a = {.gpus = "1,8,64,512",
                    .profile = "nvlink-ndr",
                    .file = "configs/benchmark_ranking_fixed.gin",
                    .balance = "lpt",
                    .tflops = H200_TFLOPS,
                    .spread = .7,
                    .source = "an H200, bench/results/h200/train.csv"};
    bool is_help;
    const arg_option options[] = {
        OPT_TEXT("--gpus", &a.gpus, "LIST", "Numbers of GPUs (default 1,8,64,512)."),
        OPT_TEXT("--profile", &a.profile, "NAME",
                 "The links: nvlink-ndr (default), nvlink-hdr, nvlink5-ndr, a100-hdr, nvlink-roce "
                 "or pcie-ethernet; one-gpu and one-gpu-sockets: G ranks that share one GPU."),
        OPT_TEXT("--gin-config-file", &a.file, "FILE",
                 "The config (default configs/benchmark_ranking_fixed.gin); its batch is that of "
                 "one GPU."),
        OPT_LIST("--set", &a.overrides, "Class.field=value",
                 "Overrides one binding of the file; may be given several times."),
        OPT_DOUBLE("--tflops", &a.tflops, "F",
                   "Speed of one GPU as bench train counts it (default 430.4, an H200)."),
        OPT_TEXT("--measured", &a.measured, "FILE",
                 "Take the speed from what 'hstu bench train --json' printed."),
        OPT_TEXT("--device", &a.device, "DEVICE",
                 "Measure the speed on this device: auto, cpu, cuda or cuda:N."),
        OPT_DOUBLE("--fixed-ms", &a.fixed_ms, "MS",
                   "Time of a step that no batch makes shorter (default 0: in the speed)."),
        OPT_DOUBLE("--spread", &a.spread, "PERCENT",
                   "Standard deviation of the GPUs' speed (default 0.7)."),
        OPT_TEXT(
            "--lengths", &a.lengths, "HOW",
            "fixed, uniform or zipf:ALPHA (default: as the config generates them; else fixed)."),
        OPT_TEXT("--balance", &a.balance, "HOW",
                 "none, equal (the same number of users) or lpt (default)."),
        OPT_FLAG("--no-overlap", &a.is_late, "Gradients are reduced after the backward pass."),
        OPT_FLAG("--json", &a.is_json, "Print one JSON object."),
        {0},
    };
    const arg_spec spec = {
        .usage = "hstu bench cluster [options]",
        .summary = "Predicts a training step on many GPUs from the speed of one, the sizes of the "
                   "messages and an alpha-beta model with NCCL's constants: its time, the part "
                   "that is computing, and which term costs most.",
        .options = options,
        .notes =
            "A prediction, not a measurement: the assumptions are printed, and the model's error "
            "on published figures of 16 GPUs.  docs/distributed.md explains the model.\n"};
    status st = args_parse(&spec, argc, argv, NULL, NULL, &is_help);
    if (st == OK && !is_help) st = run(&a);
    mem_free(a.overrides.item);
    return st;
}
