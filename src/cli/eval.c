/* hstu eval: how well a trained model predicts what its training held out. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/progress.h"
#include "cli/cli.h"
#include "cli/show.h"
#include "cli/work.h"
#include "model/trained.h"
#include "train/baselines.h"
#include "train/evaluate.h"

typedef struct eval_args {
    const char *path, *data, *part, *device;
    bool is_json, has_baselines;
} eval_args;

/* What a recommender without a model reaches on the same users. */
typedef struct baseline {
    const char *name;
    ranking_metrics metrics;
} baseline;

enum { N_BASELINES = 2 };

static void write_baselines(json_writer *w, const baseline *b) {
    json_key(w, "baselines");
    json_object_open(w);
    for (int i = 0; i < N_BASELINES; i++) {
        json_key(w, b[i].name);
        json_object_open(w);
        json_key_double(w, "hr@10", b[i].metrics.hr[1]);
        json_key_double(w, "ndcg@10", b[i].metrics.ndcg[0]);
        json_key_double(w, "mrr", b[i].metrics.mrr);
        json_object_close(w);
    }
    json_object_close(w);
}

static status print_json(const trained *t, const char *part, const eval_result *r,
                         const baseline *b) {
    json_writer w;
    buf text;
    buf_init(&text);
    json_begin(&w, &text, 0);
    json_object_open(&w);
    json_key_string(&w, "event", "eval");
    json_key_string(&w, "checkpoint", t->folder);
    json_key_int(&w, "step", (int64_t)t->origin.step);
    json_key_string(&w, "split", split_kind_name(t->origin.split));
    json_key_string(&w, "part", part);
    json_key_int(&w, "users", r->n_users);
    for (int i = 0; i < r->n; i++)
        json_key_double(&w, r->item[i].name, r->item[i].value);
    json_key_double(&w, "seconds", r->seconds);
    eval_write_misses(r, &w);
    if (b != NULL) write_baselines(&w, b);
    json_object_close(&w);
    status st = json_finish(&w);
    if (st == OK) printf("%s\n", buf_str(&text));
    buf_fini(&text);
    return st;
}

/* Metrics "name@k" form a table, a row for each k and a column for each name; others get a line. */
static void print_text(const trained *t, const char *part, const eval_result *r) {
    char users[SHOW_BYTES], took[32], misses[EVAL_MISSES_BYTES];
    show_style style = show_stdout_style();
    human_duration(took, sizeof took, r->seconds);
    printf("%s%s%s at step %" PRIu64 ": %s, %s, %s users, %s\n\n", style.bold, t->folder,
           style.plain, t->origin.step, split_kind_name(t->origin.split), part,
           show_count(users, (uint64_t)r->n_users), took);
    if (t->config->task == TASK_RETRIEVAL)
        printf("%s  %6s %8s %8s%s\n", style.bold, "k", "HR@k", "NDCG@k", style.plain);
    for (int i = 0; i < r->n; i++) {
        char other[EVAL_NAME_BYTES + 8];
        const char *name = r->item[i].name;
        if (strncmp(name, "hr@", 3) == 0) {
            snprintf(other, sizeof other, "ndcg@%s", name + 3);
            printf("  %6s %8.4f %8.4f\n", name + 3, r->item[i].value, eval_value(r, other));
        } else if (strncmp(name, "ndcg@", 5) != 0 && !isnan(r->item[i].value)) {
            /* A class that no event has has no AUC: nothing to show. */
            printf("  %-14s %8.4f\n", name, r->item[i].value);
        }
    }
    if (eval_describe_misses(r, misses)) printf("\n%s\n", misses);
}

static void print_baselines(const eval_result *r, const baseline *b) {
    show_style style = show_stdout_style();
    printf("\n%s  %-14s %8s %8s %8s%s\n", style.bold, "beside it", "HR@10", "NDCG@10", "MRR",
           style.plain);
    printf("  %-14s %8.4f %8.4f %8.4f\n", "this model", eval_value(r, "hr@10"),
           eval_value(r, "ndcg@10"), eval_value(r, "mrr"));
    for (int i = 0; i < N_BASELINES; i++)
        printf("  %-14s %8.4f %8.4f %8.4f\n", b[i].name, b[i].metrics.hr[1], b[i].metrics.ndcg[0],
               b[i].metrics.mrr);
}

static status measure_baselines(const trained *t, const work *w, split_part part, baseline *b) {
    split s = split_make(t->session.data, t->origin.split, SESSION_SPLIT_SEED);
    baseline_config c = baseline_config_default();
    c.max_history = t->session.max_history;
    if (t->config->task != TASK_RETRIEVAL)
        return fail(ERR_USAGE, "--baselines: popularity and neighbours are for retrieval models");
    b[0].name = "popularity";
    b[1].name = "item-knn";
    TRY(baseline_popularity(&s, part, &c, w->workers, &b[0].metrics));
    return baseline_item_knn(&s, part, &c, w->workers, &b[1].metrics);
}

static status evaluate(const eval_args *a, trained *t, const work *w) {
    evaluator *e;
    eval_result r;
    baseline b[N_BASELINES];
    split_part part = strcmp(a->part, "validation") == 0 ? PART_VALIDATION : PART_TEST;
    if (a->has_baselines) TRY(measure_baselines(t, w, part, b));
    TRY(evaluator_create(&e, &t->session, t->origin.split, part));
    status st = evaluator_run(e, 0, &r);
    evaluator_destroy(e);
    TRY(st);
    if (a->is_json) return print_json(t, a->part, &r, a->has_baselines ? b : NULL);
    print_text(t, a->part, &r);
    if (a->has_baselines) print_baselines(&r, b);
    return OK;
}

static status run(const eval_args *a) {
    work w;
    trained t;
    TRY(work_open(&w, a->data, a->device));
    status st = trained_open(&t, a->path, w.data, w.be, 0);
    if (st == OK) st = evaluate(a, &t, &w);
    trained_close(&t);
    work_close(&w);
    return st;
}

status cmd_eval(int argc, char **argv) {
    eval_args a = {.part = "test", .device = "auto"};
    bool is_help;
    const arg_option options[] = {
        {"--data", ARG_TEXT, &a.data, "DIR",
         "Prepared data; items are matched to the model's by their ids.", 0, 0},
        {"--part", ARG_TEXT, &a.part, "PART",
         "test (default), or validation for a run with --validate.", 0, 0},
        {"--baselines", ARG_FLAG, &a.has_baselines, NULL,
         "Also what popularity and item neighbours reach on the same users.", 0, 0},
        {"--device", ARG_TEXT, &a.device, "DEVICE", WORK_DEVICES, 0, 0},
        {"--json", ARG_FLAG, &a.is_json, NULL, "Print one JSON object on one line.", 0, 0},
        {0},
    };
    const arg_spec spec = {"hstu eval CHECKPOINT|RUN --data DIR [options]",
                           "Evaluates a trained model on the events its training left out: HR, "
                           "NDCG and MRR over the whole catalogue without the items of the "
                           "history, or AUC for ranking.",
                           options,
                           1,
                           1,
                           "A run stands for its newest checkpoint (RUN/last).\n"};
    TRY(args_parse(&spec, argc, argv, &a.path, NULL, &is_help));
    if (is_help) return OK;
    if (a.data == NULL) return fail(ERR_USAGE, "--data DIR is missing; usage: %s", spec.usage);
    if (strcmp(a.part, "test") != 0 && strcmp(a.part, "validation") != 0)
        return fail(ERR_USAGE, "--part %s: the parts are test and validation", a.part);
    return run(&a);
}
