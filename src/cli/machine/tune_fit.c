/* hstu tune fit, hstu tune predict: a cost model of plans, trained on lines BITS MS. */
#include <stdio.h>

#include "base/mem.h"
#include "cli/cli.h"
#include "cli/json_line.h"
#include "cli/machine/plan.h"
#include "cli/sink.h"
#include "tune/cost_model.h"

enum { MIN_VALIDATED = 5 };

static status print_quality(const plan_times *t, double median, uint64_t seed, bool is_json) {
    cost_quality q;
    json_line line;
    bool is_validated = t->n >= MIN_VALIDATED;
    if (is_validated) TRY(cost_model_validate(t->item, t->n, seed, &q));
    if (is_json) {
        json_writer *w = json_line_open(&line);
        json_key_int(w, "plans", (int64_t)t->n);
        json_key_double(w, "median", median);
        if (is_validated) json_key_double(w, "mae", q.mae);
        if (is_validated) json_key_double(w, "rmse", q.rmse);
        if (is_validated) json_key_double(w, "rank_correlation", q.spearman);
        return json_line_print(&line);
    }
    printf("%zu plans, median %.6g\n", t->n, median);
    if (is_validated)
        printf("5-fold cross-validation: mean absolute error %.4g, root mean square error %.4g, "
               "rank correlation %.4f\n",
               q.mae, q.rmse, q.spearman);
    else
        printf("too few plans for a cross-validation\n");
    return OK;
}

static status fit(const char *path, const char *out, uint64_t seed, bool is_json) {
    plan_times t = {0};
    cost_model *m = NULL;
    status st = plan_times_read(&t, path);
    if (st == OK) st = cost_model_fit(&m, t.item, t.n, seed);
    if (st == OK) st = print_quality(&t, cost_model_median(m), seed, is_json);
    if (st == OK) st = cost_model_save(m, out);
    cost_model_destroy(m);
    plan_times_fini(&t);
    return st;
}

status tune_fit(int argc, char **argv) {
    const char *out = NULL, *path;
    int64_t seed = 1;
    bool is_json = false, is_help;
    int n;
    const arg_option options[] = {
        {"--out", ARG_TEXT, &out, "MODEL", "Where the model goes.", 0, 0},
        {"--seed", ARG_INT, &seed, "N", "Of the folds of the cross-validation (default 1).", 0,
         INT64_MAX},
        {"--json", ARG_FLAG, &is_json, NULL, "One JSON object.", 0, 0},
        {0},
    };
    const arg_spec spec = {.usage = "hstu tune fit FILE --out MODEL",
                           .summary = "Trains a cost model (XGBoost) on a file with a line BITS MS "
                                      "for each plan, and says how "
                                      "well it predicts plans that it has not seen.",
                           .options = options,
                           .min_positional = 1,
                           .max_positional = 1};
    TRY(args_parse(&spec, argc, argv, &path, &n, &is_help));
    if (is_help) return OK;
    if (out == NULL) return fail(ERR_USAGE, "say --out MODEL");
    TRY(sink_check_file("--out", out));
    return fit(path, out, (uint64_t)seed, is_json);
}

static status predict(const char *path, const char **texts, int n) {
    cost_model *m = NULL;
    plan_time *plans;
    TRY(MEM_NEW(&plans, (size_t)n));
    status st = OK;
    for (int i = 0; i < n && st == OK; i++) {
        fusion_plan p;
        st = plan_parse(texts[i], &p);
        plans[i].value = p.value;
    }
    if (st == OK) st = cost_model_load(&m, path);
    if (st == OK) st = cost_model_predict(m, plans, (size_t)n);
    for (int i = 0; i < n && st == OK; i++)
        printf("%.3f %d\n", plans[i].ms, plans[i].ms < cost_model_median(m));
    cost_model_destroy(m);
    mem_free(plans);
    return st;
}

enum { MAX_PLANS = 65536 };

status tune_predict(int argc, char **argv) {
    static const char *texts[MAX_PLANS + 1];
    int n;
    bool is_help;
    const arg_option options[] = {{0}};
    const arg_spec spec = {.usage = "hstu tune predict MODEL BITS...",
                           .summary = "Predicts the times of plans: a line for each, the time and "
                                      "1 if it is below the median of "
                                      "the times that the model was trained on, else 0.",
                           .options = options,
                           .min_positional = 2,
                           .max_positional = MAX_PLANS + 1};
    TRY(args_parse(&spec, argc, argv, texts, &n, &is_help));
    return is_help ? OK : predict(texts[0], texts + 1, n - 1);
}
