/* hstu tune: searches for the fastest fusion plan.  From top to bottom: the comparison of all
 * searches on the same times (best-so-far curves over 5 seeds, regret against the fastest plan
 * known), the cost model (tune fit, tune predict), the search. */
#include "cli/cli.h"
#include "cli/machine/plan.h"
#include "cli/output.h"
#include "cli/signals.h"
#include "cli/work.h"
#include "train/report/report.h"
#include "tune/cost_model.h"
#include "tune/encoder_plan.h"
#include "tune/plan_file.h"
#include "tune/search.h"

enum { REPORT_SEEDS = 5, REPORT_MARKS = 3 };

/* The mean regret after 32, 64 and 128 measurements, as a share of the optimum's time. */
typedef struct search_row {
    bool has_run;
    char why[200]; /* where it has not */
    double best_ms, regret[REPORT_MARKS];
} search_row;

typedef struct search_comparison {
    plan_time optimum;
    search_row row[N_SEARCHES];
} search_comparison;

static const int marks[REPORT_MARKS] = {32, 64, 128};

/* curve[kind][i]: the mean over the seeds of the best after i + 1 measurements. */
typedef struct report_data {
    const plan_oracle *o;
    int budget;
    double *x, *curve[N_SEARCHES];
    search_comparison *out;
} report_data;

static void take(report_data *d, search_kind kind, const search_result *r) {
    double best = INFINITY, *best_ms = &d->out->row[kind].best_ms;
    for (int i = 0; i < d->budget; i++) {
        if ((size_t)i < r->measured.n) best = fmin(best, r->measured.item[i].ms);
        d->curve[kind][i] += best / REPORT_SEEDS;
    }
    if (r->best.ms < d->out->optimum.ms) d->out->optimum = r->best;
    *best_ms = *best_ms > 0 ? fmin(*best_ms, best) : best;
}

static status run_search(report_data *d, search_kind kind) {
    search_row *row = &d->out->row[kind];
    for (int seed = 0; seed < REPORT_SEEDS; seed++) {
        search_result r;
        status st = search_run(kind, d->o, d->budget, (uint64_t)seed + 1, &r);
        if (st == ERR_UNSUPPORTED) {
            snprintf(row->why, sizeof row->why, "%.190s", status_reason());
            return OK;
        }
        if (st != OK) return st;
        take(d, kind, &r);
        search_result_fini(&r);
    }
    row->has_run = true;
    return OK;
}

/* Where every time is known, the fastest of all; else the fastest that any search found. */
static status find_optimum(report_data *d) {
    d->out->optimum.ms = INFINITY;
    for (unsigned v = 0; v < PLAN_CODES && d->o->contains != NULL; v++) {
        double ms;
        if (!d->o->contains(d->o->ctx, (uint16_t)v)) continue;
        TRY(d->o->measure(d->o->ctx, (uint16_t)v, &ms));
        if (ms < d->out->optimum.ms) d->out->optimum = (plan_time){(uint16_t)v, ms};
    }
    return OK;
}

static void find_regret(report_data *d) {
    double optimum = d->out->optimum.ms;
    for (int kind = 0; kind < N_SEARCHES; kind++)
        for (int m = 0; m < REPORT_MARKS; m++) {
            int n = marks[m] < d->budget ? marks[m] : d->budget;
            d->out->row[kind].regret[m] = d->curve[kind][n - 1] / optimum - 1;
        }
}

static status write_table(const report_data *d, buf *page) {
    TRY(buf_text(page, "<table><tr><th>search</th><th>best ms</th><th>regret after "
                       "32</th><th>after 64</th><th>after "
                       "128</th></tr>\n"));
    for (int kind = 0; kind < N_SEARCHES; kind++) {
        const search_row *r = &d->out->row[kind];
        TRY(buf_text(page, "<tr>"));
        TRY(page_text(page, search_names[kind], "td"));
        if (r->has_run) TRY(page_number(page, r->best_ms, "td", "%.4f"));
        for (int m = 0; m < REPORT_MARKS && r->has_run; m++)
            TRY(page_number(page, 100 * r->regret[m], "td", "%.2f %%"));
        if (!r->has_run) TRY(page_text(page, r->why, "td"));
        TRY(buf_text(page, "</tr>\n"));
    }
    return buf_text(page, "</table>\n");
}

static status write_page(const report_data *d, const char *from, buf *page) {
    curve curves[N_SEARCHES + 1];
    double flat_x[2] = {1, d->budget}, flat_y[2] = {d->out->optimum.ms, d->out->optimum.ms};
    int n = 0;
    for (int kind = 0; kind < N_SEARCHES; kind++)
        if (d->out->row[kind].has_run)
            curves[n++] = (curve){
                .name = search_names[kind], .x = d->x, .y = d->curve[kind], .n = (size_t)d->budget};
    curves[n++] =
        (curve){.name = "fastest known", .x = flat_x, .y = flat_y, .n = 2, .is_dashed = true};
    chart best = {.title = "Best plan so far, ms (mean of 5 seeds)",
                  .x_label = "measurements",
                  .curves = curves,
                  .n_curves = n};
    TRY(page_open(page, "Searches for a fusion plan"));
    TRY(buf_printf(page, "<h1>Searches for a fusion plan: %s</h1>\n<p>Times: ", d->o->c->name));
    TRY(html_printf(page, "%s</p>\n<div class=tiles>\n", from != NULL ? from : "measured now"));
    TRY(page_tile(page, "fastest plan", "%d", d->out->optimum.value));
    TRY(page_tile(page, "its time", "%.4f ms", d->out->optimum.ms));
    TRY(buf_text(page, "</div>\n"));
    TRY(chart_write(&best, page));
    TRY(write_table(d, page));
    return page_close(page);
}

static status compare(report_data *d, const char *from, const char *path) {
    buf page = {0};
    TRY(find_optimum(d));
    TRY(MEM_NEW(&d->x, (size_t)d->budget));
    for (int i = 0; i < d->budget; i++)
        d->x[i] = i + 1;
    for (int kind = 0; kind < N_SEARCHES; kind++) {
        TRY(MEM_NEW(&d->curve[kind], (size_t)d->budget));
        TRY(run_search(d, (search_kind)kind));
    }
    find_regret(d);
    return file_save(NULL, path, &page, write_page(d, from, &page));
}

/* Runs every search with every seed and writes the page, which appears whole.  `from` names the
 * times for its title; NULL: measured now.  A search whose library is missing is left out. */
static status search_compare(const plan_oracle *o, int budget, const char *from, const char *path,
                             search_comparison *out) {
    report_data *d;
    *out = (search_comparison){0};
    TRY(MEM_NEW(&d, 1));
    d->o = o;
    d->budget = budget;
    d->out = out;
    status st = compare(d, from, path);
    mem_free(d->x);
    for (int kind = 0; kind < N_SEARCHES; kind++)
        mem_free(d->curve[kind]);
    mem_free(d);
    return st;
}

enum { MIN_VALIDATED = 5 };

static status print_quality(const plan_times *t, double median, uint64_t seed, bool is_json) {
    cost_quality q;
    bool is_validated = t->n >= MIN_VALIDATED;
    if (is_validated) TRY(cost_model_validate(t->item, t->n, seed, &q));
    if (is_json) {
        json_writer *w = json_line_open();
        JSON_FIELDS(w, FIELD("plans", t->n), FIELD("median", median));
        if (is_validated)
            JSON_FIELDS(w, FIELD("mae", q.mae), FIELD("rmse", q.rmse),
                        FIELD("rank_correlation", q.spearman));
        return json_line_print();
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

static status tune_fit(int argc, char **argv) {
    const char *out = NULL, *path;
    int64_t seed = 1;
    bool is_json = false;
    const arg_option options[] = {
        OPT_TEXT("--out", &out, "MODEL", "File to write the model to."),
        OPT_INT("--seed", &seed, "N", 0, INT64_MAX,
                "Seed of the cross-validation folds (default 1)."),
        OPT_FLAG("--json", &is_json, "Print one JSON object."),
        {0},
    };
    const arg_spec spec = {.usage = "hstu tune fit FILE --out MODEL",
                           .summary = "Train a cost model (XGBoost) on a file with a line BITS MS "
                                      "per plan, and report how well it predicts unseen plans.",
                           .options = options,
                           .min_positional = 1};
    ARGS_PARSE(&spec, &path, NULL);
    if (out == NULL) return fail(ERR_USAGE, "--out MODEL is missing");
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

static status tune_predict(int argc, char **argv) {
    static const char *texts[MAX_PLANS + 1];
    int n;
    const arg_option options[] = {{0}};
    const arg_spec spec = {.usage = "hstu tune predict MODEL BITS...",
                           .summary =
                               "Predict the times of plans. Prints a line per plan: the time, and "
                               "1 if it is below the median of the model's training data, else 0.",
                           .options = options,
                           .min_positional = 2,
                           .max_positional = MAX_PLANS + 1};
    ARGS_PARSE(&spec, texts, &n);
    return predict(texts[0], texts + 1, n - 1);
}

enum { ROUNDS = 5, EXACT_ROUNDS = 3, EXACT_CHECKS = 150 };

typedef struct tune_args {
    plan_args common;
    const char *replay, *out, *report;
    int search; /* search_kind */
    exact_options exact;
    int budget;
    bool is_json;
} tune_args;

/* Times from the file of a traversal, or measured now; each program once. */
typedef struct source {
    plan_rig rig; /* r is NULL in a replay */
    double ms[PLAN_CODES];
    const chain *c;
    plan_file key; /* what plans are kept for; not of a replay */
    out_file *out; /* of --out: opened first, since a search may take long; or NULL */
} source;

static bool contains(void *ctx, uint16_t value) {
    return !isnan(((source *)ctx)->ms[value]);
}

static status look_up(void *ctx, uint16_t value, double *ms) {
    *ms = ((source *)ctx)->ms[value];
    return OK;
}

static status measure(void *ctx, uint16_t value, double *ms) {
    source *s = ctx;
    plan_error error;
    *ms = s->ms[value];
    if (!isnan(*ms)) return OK;
    if (stop_signal_came()) return fail(ERR_INTERRUPTED, "interrupted");
    TRY(plan_runner_check(s->rig.r, value, &error));
    TRY(plan_runner_time(s->rig.r, value, ROUNDS, ms));
    s->ms[value] = *ms;
    return OK;
}

/* Equal programs of the file count with the mean of their lines. */
static status read_replay(source *s, const char *path) {
    plan_times t = {0};
    uint32_t *n_lines = NULL; /* (PLAN_CODES) */
    status st = plan_times_read(&t, path);
    if (st == OK) st = MEM_NEW(&n_lines, PLAN_CODES);
    for (size_t i = 0; i < t.n && st == OK; i++) {
        uint16_t value = plan_canonical(s->c, t.item[i].value);
        double *ms = &s->ms[value];
        if (!(t.item[i].ms > 0)) st = fail(ERR_FORMAT, "%s: a time that is not positive", path);
        n_lines[value]++;
        *ms = n_lines[value] == 1 ? t.item[i].ms : *ms + (t.item[i].ms - *ms) / n_lines[value];
    }
    mem_free(n_lines);
    plan_times_fini(&t);
    return st;
}

static status open_source(source *s, const tune_args *a, plan_oracle *o) {
    for (int i = 0; i < PLAN_CODES; i++)
        s->ms[i] = NAN;
    TRY(chain_find(a->common.layer, &s->c));
    *o = (plan_oracle){.c = s->c, .shape = a->common.shape, .ctx = s};
    o->shape.n_tokens = (int64_t)o->shape.n_sequences * o->shape.max_len;
    if (a->replay != NULL) {
        o->measure = look_up;
        o->contains = contains;
        return read_replay(s, a->replay);
    }
    o->measure = measure;
    TRY(plan_rig_open(&s->rig, &a->common));
    o->shape = s->rig.p->shape;
    plan_file_key(&s->key, s->rig.t, s->c, &o->shape, s->rig.rule, a->common.mask);
    return OK;
}

/* What is kept of a search: PLAN.json. */
typedef struct found_plan {
    plan_time best;
    const char *search;
    size_t n_measured;
    const exact_result *exact; /* NULL: another search */
} found_plan;

static void write_plan(json_writer *w, const source *s, const tune_args *a, const found_plan *f) {
    const chain_shape *shape = &a->common.shape;
    JSON_FIELDS(w, FIELD("kind", "hstu fusion plan"), FIELD("version", 1),
                FIELD("layer", s->c->name), FIELD("value", f->best.value),
                FIELD("bits", show_plan(f->best.value)), FIELD("ms", f->best.ms),
                FIELD("search", f->search), FIELD("measured", f->n_measured),
                FIELD("mask", s->rig.p != NULL ? s->key.mask : a->common.mask),
                FIELD("batch", shape->n_sequences), FIELD("length", shape->max_len),
                FIELD("heads", shape->n_heads), FIELD("dim", shape->dim_head));
    int64_t ffn = a->replay != NULL ? shape->dim_ffn : s->key.dim_ffn;
    if (ffn > 0) json_key_int(w, "ffn", ffn);
    if (a->replay != NULL) json_key_string(w, "replay", a->replay);
    if (s->rig.t != NULL) json_key_string(w, "device", s->rig.t->name);
    if (s->rig.t != NULL) json_key_string(w, "arch", s->key.arch);
    if (s->rig.p != NULL) json_key_int(w, "tokens", s->rig.p->shape.n_tokens);
    if (s->rig.t != NULL) json_key_string(w, "dtype", work_dtypes[s->rig.t->act]);
    if (f->exact == NULL) return;
    JSON_FIELDS(w, FIELD("segments", f->exact->n_segments),
                FIELD("predicted_ms", f->exact->predicted_ms), FIELD("r2", f->exact->r2),
                FIELD("rank_correlation", f->exact->spearman), FIELD("rank", f->exact->position),
                FIELD("checked", f->exact->n_checked), FIELD("unfused_ms", f->exact->unfused_ms),
                KNOWN("hand_fused_ms", f->exact->hand_fused_ms),
                FIELD("seconds", f->exact->seconds));
}

static void write_tile(json_writer *w, const tile_params *t) {
    if (t->library != GENERATED) {
        json_key_int(w, "library", t->library);
        json_key_int(w, "rank", t->rank);
        return;
    }
    JSON_FIELDS(w, FIELD("m", t->tile_m), FIELD("n", t->tile_n), FIELD("k", t->tile_k),
                FIELD("warps_m", t->warps_m), FIELD("warps_n", t->warps_n));
}

/* The tile parameters of each kernel of the plan. */
static void write_tiles(json_writer *w, const source *s, uint16_t value) {
    plan_program p;
    if (s->rig.r == NULL) return;
    plan_runner_lower(s->rig.r, value, &p);
    json_key_array(w, "tiles");
    for (int i = 0; i < p.n_kernels; i++) {
        const plan_kernel *k = &p.kernel[i];
        runner_kernel *own;
        if (k->from == TEMPLATE_HAND_WRITTEN) continue;
        if (plan_runner_kernel(s->rig.r, k->first, k->last, &own) != OK) continue;
        json_object_open(w);
        json_key_int(w, "start", k->first + 1);
        json_key_int(w, "end", k->last + 1);
        write_tile(w, &own->params[own->tile]);
        json_object_close(w);
    }
    json_array_close(w);
}

static status plan_text(const source *s, const tune_args *a, const found_plan *f, buf *out) {
    json_writer w;
    json_begin_object(&w, out, 2);
    write_plan(&w, s, a, f);
    write_tiles(&w, s, f->best.value);
    TRY(json_finish_sealed(&w));
    return buf_text(out, "\n");
}

static status save_plan(source *s, const buf *text) {
    out_file *file = s->out;
    if (file == NULL) return OK;
    TRY(out_file_write(file, buf_str(text), text->n_bytes));
    s->out = NULL;
    return out_file_commit(file);
}

/* Plans of other layers than BERT are for people; an encoder must be able to run one of BERT. */
static bool is_worth_keeping(const source *s, const tune_args *a, const found_plan *f) {
    plan_program p;
    if (s->c != chain_of(CHAIN_BERT)) return true;
    plan_runner_lower(s->rig.r, f->best.value, &p);
    if (encoder_plan_check(s->c, s->rig.p->attend, &p) == OK) return true;
    if (!a->is_json) printf("not kept for 'hstu encode --plan auto': %s\n", status_reason());
    return false;
}

/* Where `hstu encode --plan auto` finds it. */
static status store_plan(const source *s, const tune_args *a, const found_plan *f,
                         const buf *text) {
    plan_store store;
    plan_file key = s->key;
    char path[4096];
    bool is_kept, is_bert = s->c == chain_of(CHAIN_BERT);
    if (s->rig.r == NULL || !is_worth_keeping(s, a, f)) return OK;
    key.ms = f->best.ms;
    TRY(plan_store_open(&store, a->common.cache));
    TRY(plan_store_put(&store, &key, text, &is_kept, path));
    if (a->is_json) return OK;
    if (is_kept)
        printf("kept%s: %s\n", is_bert ? " for 'hstu encode --plan auto'" : "", path);
    else
        printf("a faster plan is kept already: %s\n", path);
    return OK;
}

static status keep_plan(source *s, const tune_args *a, const found_plan *f) {
    buf text = {0};
    status st = plan_text(s, a, f, &text);
    if (st == OK) st = save_plan(s, &text);
    if (st == OK) st = store_plan(s, a, f, &text);
    buf_fini(&text);
    return st;
}

static void print_exact(const exact_result *e) {
    printf("%d legal segments, %d timings with their tile parameters in %.1f s; sum of the kernels "
           "%.4f ms\n",
           e->n_segments, e->n_timed, e->seconds, e->predicted_ms);
    printf("unfused %.4f ms: %.2f times\n", e->unfused_ms, e->unfused_ms / e->found.ms);
    if (!isnan(e->hand_fused_ms))
        printf("fused by hand %.4f ms: %.3f times\n", e->hand_fused_ms,
               e->hand_fused_ms / e->found.ms);
    if (e->n_checked > 0)
        printf("%d random plans: R^2 of the sums %.4f, rank correlation %.4f; the found plan is "
               "number %d of %d\n",
               e->n_checked, e->r2, e->spearman, e->position, e->n_checked + 1);
}

static status tell(source *s, const tune_args *a, const found_plan *f) {
    if (a->is_json) {
        TRY(keep_plan(s, a, f));
        write_plan(json_line_open(), s, a, f);
        return json_line_print();
    }
    printf("%s: plan %d = %s, %.4f ms, after %zu measurements\n", f->search, f->best.value,
           show_plan(f->best.value), f->best.ms, f->n_measured);
    if (f->exact != NULL) print_exact(f->exact);
    TRY(keep_plan(s, a, f));
    if (a->out != NULL) printf("kept as %s\n", a->out);
    return OK;
}

/* The exact search of kernels that can be run. */
static status tune_exact(source *s, const tune_args *a) {
    exact_result e;
    TRY(exact_search(s->rig.r, &a->exact, &e));
    found_plan f = {
        .best = e.found, .search = "exact", .n_measured = (size_t)e.n_timed, .exact = &e};
    status st = tell(s, a, &f);
    exact_result_fini(&e);
    return st;
}

static status tune_on(source *s, const tune_args *a, const plan_oracle *o) {
    search_result r;
    if (a->search == SEARCH_EXACT && a->replay == NULL) return tune_exact(s, a);
    TRY(search_run((search_kind)a->search, o, a->budget, a->exact.seed, &r));
    found_plan f = {.best = r.best, .search = search_names[a->search], .n_measured = r.measured.n};
    status st = tell(s, a, &f);
    search_result_fini(&r);
    return st;
}

static void print_comparison(const search_comparison *c) {
    printf("\n%-9s %10s  %s\n%-9s %10s  %9s %9s %9s\n", "", "", "regret, mean of 5 seeds, after",
           "search", "best ms", "32", "64", "128");
    for (int kind = 0; kind < N_SEARCHES; kind++) {
        const search_row *r = &c->row[kind];
        if (!r->has_run) {
            printf("%-9s left out: %s\n", search_names[kind], r->why);
            continue;
        }
        printf("%-9s %10.4f  %8.2f%% %8.2f%% %8.2f%%\n", search_names[kind], r->best_ms,
               100 * r->regret[0], 100 * r->regret[1], 100 * r->regret[2]);
    }
    printf("optimum %.4f ms, plan %d\n", c->optimum.ms, c->optimum.value);
}

static status run(const tune_args *a) {
    source *s;
    plan_oracle o;
    search_comparison comparison;
    TRY(sink_check_file("--out", a->out));
    TRY(sink_check_file("--report", a->report));
    TRY(sink_check_two("--out", a->out, "--report", a->report));
    if (a->out != NULL && a->replay != NULL && file_is_same(a->out, a->replay))
        return fail(ERR_USAGE, "--out %s is the file of --replay; give another one", a->out);
    TRY(MEM_NEW(&s, 1));
    status st = a->out != NULL ? out_file_create(&s->out, a->out) : OK;
    if (st == OK) st = open_source(s, a, &o);
    if (st == OK) st = tune_on(s, a, &o);
    if (st == OK && a->report != NULL) {
        st = search_compare(&o, a->budget, a->replay, a->report, &comparison);
        if (st == OK && !a->is_json) print_comparison(&comparison);
    }
    out_file_abandon(s->out);
    plan_rig_close(&s->rig);
    mem_free(s);
    return st;
}

static status tune_search(int argc, char **argv) {
    tune_args a = {.common = PLAN_ARGS,
                   .budget = 128,
                   .exact = {.rounds = EXACT_ROUNDS,
                             .n_checks = EXACT_CHECKS,
                             .seed = 1,
                             .is_stopped = stop_signal_came}};
    const arg_option options[] = {
        OPT_CHOICE("--search", &a.search, "KIND", search_names,
                   "exact (default), xgboost, random, anneal or grouped."),
        OPT_INT("--budget", &a.budget, "N", 2, 20000,
                "Plans to measure (default 128); exact times every kernel instead."),
        OPT_INT("--search-seed", &a.exact.seed, "N", 0, INT64_MAX,
                "Seed of the random choices (default 1)."),
        OPT_INT("--checks", &a.exact.n_checks, "N", 0, PLAN_PROGRAMS,
                "exact: random whole plans to time, to see how additive times are (default 150)."),
        OPT_TEXT("--replay", &a.replay, "FILE",
                 "Read the times from the file of a traversal instead of running plans."),
        OPT_TEXT("--out", &a.out, "FILE", "Write the plan, with its tile parameters, as JSON."),
        OPT_TEXT("--report", &a.report, "FILE",
                 "Compare all searches over 5 seeds, and write a page with best-so-far curves and "
                 "regret."),
        PLAN_OPTIONS(&a.common),
        OPT_GROUP("Output"),
        OPT_FLAG("--json", &a.is_json, "Print one JSON object."),
        {0},
    };
    const arg_spec spec = {
        .usage = "hstu tune [--search KIND] [--budget N] [--out FILE] [options]",
        .summary = "Search for the fastest fusion plan for a layer, batch, mask and device.",
        .options = options,
        .notes = "'hstu tune fit' and 'hstu tune predict' train and use a cost model of plans. "
                 "docs/plans.md explains the searches."};
    ARGS_PARSE(&spec, NULL, NULL);
    stop_signal_watch();
    return run(&a);
}

const command tune_commands[] = {
    {"search", tune_search, "find the fastest plan (the same as 'hstu tune' with options)"},
    {"fit", tune_fit, "train a cost model on times of plans"},
    {"predict", tune_predict, "predict times of plans with a cost model"},
    {0},
};

status cmd_tune(int argc, char **argv) {
    bool has_options = argc > 1 && argv[1][0] == '-' && strcmp(argv[1], "--help") != 0 &&
                       strcmp(argv[1], "-h") != 0;
    if (has_options) return tune_search(argc, argv);
    return run_subcommand("tune", "Search for the fastest fusion plan.", tune_commands, argc, argv);
}
