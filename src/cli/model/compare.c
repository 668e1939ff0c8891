/* hstu compare: runs side by side, in a table and as curves on one page. */
#include "cli/cli.h"
#include "cli/model/run_facts.h"
#include "cli/output.h"
#include "train/report/bootstrap.h"
#include "train/report/report.h"

enum { MAX_RUNS = 16, KEY_WIDTH = 34, MAX_WIDTH = 24, MIN_WIDTH = 18 };

typedef struct comparison {
    run_facts *runs;         /* (n) */
    replicates of[MAX_RUNS]; /* of their last evaluations; n 0: none */
    int n;
    bool is_html; /* rows go to the page, else to stdout */
    bool has_no_pairs;
    buf page;
} comparison;

/* The last part of the path: what tells runs of one folder apart. */
static const char *short_name(const char *run) {
    const char *slash = strrchr(run, '/');
    return slash != NULL && slash[1] != '\0' ? slash + 1 : run;
}

static int cell_width(const comparison *c) {
    size_t width = MIN_WIDTH;
    for (int i = 0; i < c->n; i++)
        if (strlen(short_name(c->runs[i].run)) > width) width = strlen(short_name(c->runs[i].run));
    return width > MAX_WIDTH ? MAX_WIDTH : (int)width;
}

/* A row of the table, or its heading. */
static status write_cells(comparison *c, bool is_head, const char *name, const char *const *cell) {
    show_style style = is_head ? show_stdout_style() : (show_style){"", "", "", ""};
    const char *tag = is_head ? "th" : "td";
    int width = cell_width(c);
    if (c->is_html) {
        TRY(buf_text(&c->page, "<tr>"));
        TRY(page_text(&c->page, name, tag));
        for (int i = 0; i < c->n; i++)
            TRY(page_text(&c->page, cell[i], tag));
        return buf_text(&c->page, "</tr>\n");
    }
    printf("%s  %-*s", style.bold, KEY_WIDTH, show_text(name, strlen(name), KEY_WIDTH));
    for (int i = 0; i < c->n; i++)
        printf(" %*s", width, show_text(cell[i], strlen(cell[i]), width));
    printf("%s\n", style.plain);
    return OK;
}

static status write_row(comparison *c, const char *name, const char *const *cell) {
    return write_cells(c, false, name, cell);
}

static status write_heading(comparison *c, const char *name) {
    const char *cell[MAX_RUNS];
    for (int i = 0; i < c->n; i++)
        cell[i] = short_name(c->runs[i].run);
    return write_cells(c, true, name, cell);
}

static const char *const fact_names[] = {"model",
                                         "parameters",
                                         "split",
                                         "users evaluated",
                                         "status",
                                         "steps",
                                         "best on validation",
                                         "time of training",
                                         "size on disk",
                                         "training loss",
                                         "figures are of the part"};
enum { N_FACTS = sizeof fact_names / sizeof *fact_names };

static status write_facts(comparison *c) {
    const char *cell[N_FACTS][MAX_RUNS];
    for (int i = 0; i < c->n; i++) {
        const run_facts *f = &c->runs[i];
        const run_history *h = &f->history;
        double n_sample = history_number(h->start, "eval_users"),
               loss = history_last(h->loss, h->n);
        const char *const facts[N_FACTS] = {
            show_printf("%.60s", history_text(h->start, "model")),
            show_rounded(history_number(h->start, "parameters")),
            show_printf("%.60s", history_text(h->start, "split")),
            n_sample > 0 ? show_printf("sample of %.0f", n_sample) : "all",
            f->status,
            show_printf("%.0f", h->n > 0 ? h->step[h->n - 1] : 0),
            isfinite(h->best_step) ? show_printf("step %.0f", h->best_step) : "-",
            show_duration(f->seconds),
            show_bytes((double)f->bytes),
            isfinite(loss) ? show_printf("%.4f", loss) : "-",
            run_facts_part(f)};
        for (int k = 0; k < N_FACTS; k++)
            cell[k][i] = facts[k];
    }
    for (int k = 0; k < N_FACTS; k++)
        TRY(write_row(c, fact_names[k], cell[k]));
    return OK;
}

/* Whether an earlier run has the metric, too: while it trains, or in its last figures. */
static bool is_repeated(const comparison *c, int run, const char *name) {
    for (int i = 0; i < run; i++)
        if (isfinite(run_facts_metric(&c->runs[i], name))) return true;
    return false;
}

static status write_metric(comparison *c, const char *name) {
    const char *cell[MAX_RUNS];
    if (!is_repeated(c, c->n, name)) return OK; /* it says nothing in any run */
    for (int i = 0; i < c->n; i++) {
        double value = run_facts_metric(&c->runs[i], name);
        cell[i] = isfinite(value) ? show_printf("%.4f", value) : "-";
    }
    return write_row(c, name, cell);
}

static status write_metrics(comparison *c) {
    for (int i = 0; i < c->n; i++)
        for (int m = 0; m < c->runs[i].history.n_metrics; m++)
            if (!is_repeated(c, i, c->runs[i].history.metric[m]))
                TRY(write_metric(c, c->runs[i].history.metric[m]));
    for (int i = 0; i < c->n; i++) { /* those of the end alone */
        const json_value *done = c->runs[i].history.done;
        for (const json_value *v = done != NULL ? done->first : NULL; v != NULL; v = v->next)
            if (history_is_metric(v) && strstr(v->key, ":class") == NULL &&
                run_history_values(&c->runs[i].history, v->key) == NULL &&
                !is_repeated(c, i, v->key))
                TRY(write_metric(c, v->key));
    }
    return OK;
}

static const char *option_of(const comparison *c, int run, const char *key) {
    const char *value = run_config_value(&c->runs[run].config, key);
    return value != NULL ? value : "-";
}

/* Lists of `hstu eval --recommendations` have no options. */
static bool is_model(const comparison *c, int run) {
    return strcmp(option_of(c, run, "source.model"), "lists") != 0;
}

static bool differs(const comparison *c, const char *key) {
    const char *first = NULL;
    for (int i = 0; i < c->n; i++) {
        if (!is_model(c, i)) continue;
        if (first == NULL) first = option_of(c, i, key);
        if (strcmp(first, option_of(c, i, key)) != 0) return true;
    }
    return false;
}

static bool is_known_before(const comparison *c, int run, const char *key) {
    for (int i = 0; i < run; i++)
        if (run_config_value(&c->runs[i].config, key) != NULL) return true;
    return false;
}

/* Calls fn for every option that is not the same in all runs. */
static status each_difference(comparison *c, status (*fn)(comparison *c, const char *key)) {
    for (int i = 0; i < c->n; i++)
        for (size_t k = 0; k < c->runs[i].config.n; k++) {
            const char *key = c->runs[i].config.option[k].key;
            if (run_config_is_option(key) && !is_known_before(c, i, key) && differs(c, key))
                TRY(fn(c, key));
        }
    return OK;
}

static status write_difference(comparison *c, const char *key) {
    const char *cell[MAX_RUNS];
    for (int i = 0; i < c->n; i++)
        cell[i] = show_printf("%.60s", option_of(c, i, key));
    return write_row(c, key, cell);
}

static status next_table(comparison *c, const char *title) {
    if (c->is_html) return buf_printf(&c->page, "</table>\n<h2>%s</h2><table>\n", title);
    printf("\n");
    return OK;
}

/* The differences of run i from the first one, paired replicate by replicate; false: they have not
 * the same users, or not this metric. */
static bool compare_pairs(const comparison *c, int i, const char *name, double *difference,
                          bootstrap_bounds *bounds) {
    int at[2];
    double apart[BOOTSTRAP_MAX];
    const replicates *a = &c->of[0], *b = &c->of[i];
    const double *x = replicates_of(a, name, &at[0]), *y = replicates_of(b, name, &at[1]);
    if (x == NULL || y == NULL || a->n != b->n || a->users != b->users) return false;
    for (int r = 0; r < a->n; r++)
        apart[r] = y[r] - x[r];
    *difference = b->metric[at[1]].figure - a->metric[at[0]].figure;
    *bounds = bootstrap_interval(apart, a->n);
    return isfinite(bounds->low);
}

/* "better" only where the interval of the difference leaves out 0. */
static const char *verdict(const char *name, bootstrap_bounds b) {
    bool is_above = b.low > 0, is_below = b.high < 0;
    if (!is_above && !is_below) return "unclear";
    if (metric_sense_of(name) == METRIC_NEITHER) return is_above ? "higher" : "lower";
    return is_above != metric_is_smaller_better(name) ? "better" : "worse";
}

/* Two rows: the difference from the first run, and what 95 % of its replicates lie between. */
static status write_pairs(comparison *c, const char *name) {
    const char *cell[2][MAX_RUNS];
    bool has_any = false;
    for (int i = 0; i < c->n; i++) {
        double difference;
        bootstrap_bounds b;
        cell[0][i] = cell[1][i] = "-";
        if (i == 0 || !compare_pairs(c, i, name, &difference, &b)) continue;
        cell[0][i] = show_printf("%+.4f %s", difference, verdict(name, b));
        cell[1][i] = show_printf("[%+.4f, %+.4f]", b.low, b.high);
        has_any = true;
    }
    if (!has_any) return OK;
    TRY(write_row(c, name, cell[0]));
    return write_row(c, "  95 % over users", cell[1]);
}

/* What figures depend on besides the model; the target follows from the split. */
typedef enum { BY_SPLIT, BY_PART, BY_ACTIONS, BY_CATALOGUE, BY_LEFT_OUT, N_BY } protocol_member;

static const struct {
    const char *key, *name, *remedy;
} protocol_members[N_BY] = {
    {"split", "split", "train both with the same --split, both with --validate or without"},
    {"part", "part", "evaluate the same part of both"},
    {"target_actions", "target actions",
     "train both with the same --target-action, or measure both with 'hstu eval --target-action'"},
    {"catalogue", "number of items", "train both on the same prepared data"},
    {"left_out", "items left out of the ranking",
     "train both with the same longest history; of lists, 'hstu eval --recommendations FILE "
     "--window N' leaves out the items of the last N events"},
};

static const char *protocol_text(const run_facts *f, protocol_member k) {
    const json_value *start = f->history.start;
    const json_value *p = start != NULL ? json_member(start, "protocol") : NULL;
    double n_items = history_number(p, "catalogue");
    if (k == BY_PART) return run_facts_part(f);
    if (k == BY_ACTIONS && history_text(p, "target_actions")[0] == '\0') return "all";
    if (k != BY_CATALOGUE) return history_text(p, protocol_members[k].key);
    return isfinite(n_items) ? show_printf("%.0f", n_items) : "";
}

/* Figures of different protocols are different quantities: says which member differs, and what to
 * do.  NULL: none does. */
static const char *protocol_difference(const comparison *c) {
    for (int i = 1; i < c->n; i++)
        for (protocol_member k = 0; k < N_BY; k++) {
            const char *a = protocol_text(&c->runs[0], k), *b = protocol_text(&c->runs[i], k);
            bool is_known = k != BY_CATALOGUE || (a[0] != '\0' && b[0] != '\0');
            if (!is_known || strcmp(a, b) == 0) continue;
            return show_printf(
                "The runs differ in the %s, so their metrics are different quantities and "
                "cannot be compared: %.60s has \"%.100s\", %.60s has \"%.100s\"; %s.",
                protocol_members[k].name, short_name(c->runs[0].run), a, short_name(c->runs[i].run),
                b, protocol_members[k].remedy);
        }
    return NULL;
}

static bool is_comparable(const comparison *c) {
    return protocol_difference(c) == NULL;
}

/* The metrics whose differences are shown. */
static const char *const paired[] = {"hr@10", "ndcg@10", "mrr",     "novelty@10", "diversity@10",
                                     "auc",   "gauc",    "logloss", "ne"};
enum { N_PAIRED = sizeof paired / sizeof *paired };

static status write_differences(comparison *c) {
    double difference;
    bootstrap_bounds b;
    bool has_any = false;
    for (int i = 1; i < c->n && is_comparable(c); i++)
        for (size_t k = 0; k < N_PAIRED; k++)
            has_any |= compare_pairs(c, i, paired[k], &difference, &b);
    c->has_no_pairs = !has_any && c->n > 1 && is_comparable(c);
    if (!has_any) return OK;
    TRY(next_table(c, "Differences from the first run"));
    TRY(write_heading(c, "difference from the first run"));
    for (size_t k = 0; k < N_PAIRED; k++)
        TRY(write_pairs(c, paired[k]));
    return OK;
}

static status write_tables(comparison *c) {
    TRY(write_heading(c, "run"));
    TRY(write_facts(c));
    TRY(write_metrics(c));
    TRY(write_differences(c));
    TRY(next_table(c, "Options that differ"));
    TRY(write_heading(c, "option"));
    return each_difference(c, write_difference);
}

static status write_chart(comparison *c, const char *title, const char *name) {
    curve curves[MAX_RUNS];
    bool is_by_step = false;
    int n = 0;
    for (int i = 0; i < c->n; i++)
        is_by_step |= c->runs[i].history.is_by_step;
    for (int i = 0; i < c->n; i++) {
        const run_history *h = &c->runs[i].history;
        const double *y = name != NULL ? run_history_values(h, name) : h->loss;
        if (y == NULL) y = h->loss; /* drawn nowhere: n is 0 */
        bool has_metric = name == NULL || run_history_values(h, name) != NULL;
        curves[n++] = (curve){.name = short_name(c->runs[i].run),
                              .x = is_by_step ? h->step : h->epoch,
                              .y = y,
                              .n = has_metric ? h->n : 0};
    }
    chart drawn = {
        .title = title, .x_label = is_by_step ? "step" : "epoch", .curves = curves, .n_curves = n};
    return chart_write(&drawn, &c->page);
}

static status write_charts(comparison *c) {
    TRY(buf_text(&c->page, "<h2>Curves</h2><div class=charts>\n"));
    TRY(write_chart(c, "Training loss", NULL));
    for (int i = 0; i < c->n; i++) {
        const run_history *h = &c->runs[i].history;
        for (int m = 0; m < h->n_metrics; m++)
            if (!is_repeated(c, i, h->metric[m]) && is_repeated(c, i + 1, h->metric[m]))
                TRY(write_chart(c, h->metric[m], h->metric[m]));
    }
    return buf_text(&c->page, "</div>\n");
}

static status write_page(comparison *c, const char *path) {
    c->is_html = true;
    TRY(page_open(&c->page, "hstu compare"));
    TRY(buf_text(&c->page, "<h1>Runs side by side</h1>\n"));
    if (!is_comparable(c)) TRY(page_text(&c->page, protocol_difference(c), "p"));
    TRY(buf_text(&c->page, "<table>\n"));
    TRY(write_tables(c));
    TRY(buf_text(&c->page, "</table>\n"));
    TRY(write_charts(c));
    TRY(page_close(&c->page));
    return file_write(path, buf_str(&c->page), c->page.n_bytes);
}

static void print_differences_json(const comparison *c, int i, json_writer *w) {
    double difference;
    bootstrap_bounds b;
    json_key_object(w, "differences");
    for (size_t k = 0; k < N_PAIRED && is_comparable(c); k++) {
        if (!compare_pairs(c, i, paired[k], &difference, &b)) continue;
        json_key(w, paired[k]);
        JSON_OBJECT(w, FIELD("difference", difference), FIELD("low", b.low), FIELD("high", b.high),
                    FIELD("verdict", verdict(paired[k], b)));
    }
    json_object_close(w);
}

/* One object a run on a line of its own; all but the first with differences from that. */
static status print_json(const comparison *c) {
    for (int i = 0; i < c->n; i++) {
        json_writer *w = json_line_open();
        info_run_members(&c->runs[i], w);
        if (i > 0) print_differences_json(c, i, w);
        TRY(json_line_print());
    }
    return OK;
}

static status compare(comparison *c, const char *const *paths, const char *out, bool is_json) {
    for (int i = 0; i < c->n; i++)
        TRY(run_facts_read(&c->runs[i], paths[i]));
    for (int i = 0; i < c->n; i++)
        TRY(replicates_read(&c->of[i], paths[i]));
    if (is_json)
        TRY(print_json(c));
    else
        TRY(write_tables(c));
    if (!is_json && !is_comparable(c)) printf("\nNote: %s\n", protocol_difference(c));
    if (!is_json && c->has_no_pairs)
        printf(
            "\nNote: No intervals of differences: they need runs that were evaluated on the same "
            "users (--eval-users) of the same prepared data.\n");
    if (out == NULL) return OK;
    TRY(write_page(c, out));
    if (!is_json) printf("\n  Curves    %s\n", out);
    return OK;
}

status cmd_compare(int argc, char **argv) {
    const char *paths[MAX_RUNS], *out = NULL;
    bool is_json = false;
    const arg_option options[] = {
        OPT_TEXT("--out", &out, "FILE.html",
                 "Also write a page with the curves of all runs; an existing one is replaced."),
        OPT_FLAG("--json", &is_json,
                 "Print one JSON object per run, each on one line; after the first with its "
                 "differences from the first."),
        {0},
    };
    const arg_spec spec = {
        .usage = "hstu compare RUN RUN... [--out FILE.html] [--json]",
        .summary = "Compare runs: metrics, parameters, time, and the options in which they differ.",
        .options = options,
        .min_positional = 1,
        .max_positional = MAX_RUNS,
        .notes =
            "For runs with --validate the metrics are those of the best weights on the test "
            "part; otherwise those of the last evaluation. Differences from the first run come "
            "with a 95 % bootstrap interval over the same users; a run is called better or "
            "worse only where that interval leaves out 0.\n"};
    comparison c = {0};
    ARGS_PARSE(&spec, paths, &c.n);
    status st = MEM_NEW(&c.runs, (size_t)c.n);
    if (st == OK) st = compare(&c, paths, out, is_json);
    for (int i = 0; c.runs != NULL && i < c.n; i++) {
        run_facts_fini(&c.runs[i]);
        replicates_fini(&c.of[i]);
    }
    mem_free(c.runs);
    buf_fini(&c.page);
    return st;
}
