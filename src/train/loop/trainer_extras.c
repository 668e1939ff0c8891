/* Lines of the log that a report shows beside the curves: baselines and sample recommendations. */
#include <math.h>

#include "base/log.h"
#include "train/loop/baselines.h"
#include "train/loop/trainer_int.h"
#include "train/report/samples.h"

/* Item-kNN takes minutes on the largest data sets; `hstu eval --baselines` measures it there. */
enum { KNN_MAX_EVENTS = 5000000, WEEK = 7 };

static void write_counts(const trainer *t, const char *name, const rank_counts *counts,
                         json_writer *w) {
    metric_list metrics;
    status st = metric_list_of(&metrics, t->s->config);
    if (st != OK) w->state = st;
    json_key(w, name);
    json_object_open(w);
    for (int i = 0; i < metrics.n && st == OK; i++) {
        char text[METRIC_NAME_BYTES];
        double value = rank_counts_metric(counts, &metrics.item[i]);
        if (!isnan(value)) json_key_double(w, metric_name(&metrics.item[i], text), value);
    }
    json_object_close(w);
}

static status write_baselines(trainer *t, split_part part, json_writer *w) {
    rank_counts *counts;
    pool *p = t->s->be->workers;
    split s = split_make(t->s->data, t->saved.state.split.rule, SESSION_SPLIT_SEED);
    baseline_config c = baseline_config_default();
    c.max_history = t->s->max_history;
    TRY(MEM_NEW(&counts, 1));
    status st = baseline_popularity(&s, part, &c, p, counts);
    if (st == OK) write_counts(t, "popularity", counts, w);
    if (st == OK && t->s->data->n_events <= KNN_MAX_EVENTS) {
        st = baseline_item_knn(&s, part, &c, p, counts);
        if (st == OK) write_counts(t, "item-knn", counts, w);
    }
    c.last_days = WEEK;
    if (st == OK) st = baseline_popularity(&s, part, &c, p, counts);
    if (st == OK) write_counts(t, "last-week", counts, w);
    mem_free(counts);
    return st;
}

/* Appends a line {"event": what, "step": ..., "part": ..., ...} that `fill` completes. */
static status append_line(trainer *t, const char *what, split_part part,
                          status (*fill)(trainer *t, split_part part, json_writer *w)) {
    json_writer w;
    buf line;
    buf_init(&line);
    json_begin(&w, &line, 0);
    json_object_open(&w);
    json_key_string(&w, "event", what);
    json_key_int(&w, "step", (int64_t)t->saved.state.step);
    json_key_string(&w, "part", split_part_name(part));
    status st = fill(t, part, &w);
    json_object_close(&w);
    if (st == OK) st = json_finish(&w);
    if (st == OK && trainer_is_first(t)) st = run_log_append(&t->log, buf_str(&line));
    buf_fini(&line);
    return st;
}

static status write_samples(trainer *t, split_part part, json_writer *w) {
    return samples_write(t->s, t->saved.state.split.rule, part, w);
}

/* Generated data has nothing to recommend. */
static bool has_extras(const trainer *t) {
    return t->s->config->task == TASK_RETRIEVAL && !t->s->config->is_benchmark;
}

status trainer_log_baselines(trainer *t) {
    bool has_validation = t->saved.state.split.rule.has_validation;
    if (!has_extras(t) || t->saved.state.step > 0) return OK;
    return append_line(t, "baselines", has_validation ? PART_VALIDATION : PART_TEST,
                       write_baselines);
}

/* Rank 0 needs the ranks that share its layers or tokens, and those that have rows of its dynamic
 * tables. */
status trainer_log_samples(trainer *t) {
    bool shares_batch = session_group(t->s) != NULL && comm_is_first(t->s->comm);
    bool shares_rows = model_tables(t->s->model)->comm != NULL;
    if (!has_extras(t) || (!trainer_is_first(t) && !shares_batch && !shares_rows)) return OK;
    return append_line(t, "samples", PART_TEST, write_samples);
}
