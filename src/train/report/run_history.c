#include "train/report/run_history.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "train/report/run_log.h"

enum { MEAN_OF_LAST = 10, ARENA_BYTES = 8192 };

double history_number(const json_value *object, const char *key) {
    const json_value *v = object != NULL ? json_member(object, key) : NULL;
    return v != NULL && v->type == JSON_NUMBER ? v->number : NAN;
}

const char *history_text(const json_value *object, const char *key) {
    const json_value *v = object != NULL ? json_member(object, key) : NULL;
    return v != NULL && v->type == JSON_STRING ? v->string : "";
}

double history_last(const double *y, size_t n) {
    while (n > 0 && !isfinite(y[n - 1]))
        n--;
    return n > 0 ? y[n - 1] : NAN;
}

double history_mean_of_last(const double *y, size_t n) {
    double sum = 0;
    int count = 0;
    while (n-- > 0 && count < MEAN_OF_LAST)
        if (isfinite(y[n])) sum += y[n], count++;
    return count > 0 ? sum / count : NAN;
}

bool history_is_metric(const json_value *v) {
    static const char *const plain[] = {"mrr", "auc", "acc", "accuracy", "logloss", "ne"};
    if (v->type != JSON_NUMBER || strlen(v->key) >= HISTORY_NAME_BYTES) return false;
    if (strchr(v->key, '@') != NULL || strncmp(v->key, "auc:", 4) == 0) return true;
    for (size_t i = 0; i < sizeof plain / sizeof plain[0]; i++)
        if (strcmp(v->key, plain[i]) == 0) return true;
    return false;
}

/* The column of a metric; a new one is NAN for the evaluations before. */
static status find_metric(run_history *h, const char *name, int *out) {
    int i = 0;
    while (i < h->n_metrics && strcmp(h->metric[i], name) != 0)
        i++;
    *out = i;
    if (i == HISTORY_METRICS) return OK; /* the rest is in the log */
    if (i == h->n_metrics) {
        TRY(MEM_RESERVE(&h->value[i], &h->value_capacity[i], h->n + 1));
        h->n_metrics++;
        snprintf(h->metric[i], HISTORY_NAME_BYTES, "%s", name);
        for (size_t k = 0; k <= h->n; k++)
            h->value[i][k] = NAN;
    }
    return OK;
}

static status reserve_row(run_history *h) {
    size_t n = h->n + 1;
    TRY(MEM_RESERVE(&h->epoch, &h->capacity[0], n));
    TRY(MEM_RESERVE(&h->step, &h->capacity[1], n));
    TRY(MEM_RESERVE(&h->loss, &h->capacity[2], n));
    TRY(MEM_RESERVE(&h->tokens_per_s, &h->capacity[3], n));
    TRY(MEM_RESERVE(&h->seconds, &h->capacity[4], n));
    TRY(MEM_RESERVE(&h->rate, &h->capacity[5], n));
    for (int m = 0; m < h->n_metrics; m++) {
        TRY(MEM_RESERVE(&h->value[m], &h->value_capacity[m], n));
        h->value[m][h->n] = NAN;
    }
    return OK;
}

static status add_evaluation(run_history *h, const json_value *line) {
    size_t i = h->n;
    TRY(reserve_row(h));
    h->epoch[i] = history_number(line, "epoch") + 1;
    h->step[i] = history_number(line, "step");
    h->loss[i] = history_number(line, "loss");
    h->tokens_per_s[i] = history_number(line, "tokens_per_s");
    h->seconds[i] = history_number(line, "seconds");
    h->rate[i] = history_number(line, "lr");
    if (h->part[0] == '\0') snprintf(h->part, sizeof h->part, "%s", history_text(line, "part"));
    if (json_member(line, "is_best") != NULL) h->best_step = h->step[i];
    for (const json_value *v = line->first; v != NULL; v = v->next) {
        int m;
        if (!history_is_metric(v)) continue;
        TRY(find_metric(h, v->key, &m));
        if (m < HISTORY_METRICS) h->value[m][i] = v->number;
    }
    h->n++;
    return OK;
}

/* A copy of the line that lives as long as the history: read again from its own text. */
static status keep_line(run_history *h, const json_value *line, const json_value **out) {
    json_writer w;
    buf text;
    buf_init(&text);
    json_begin(&w, &text, 0);
    json_value_write(&w, line);
    status st = json_finish(&w);
    if (st == OK) st = json_parse(&h->memory, "log.jsonl", buf_str(&text), text.n_bytes, out);
    buf_fini(&text);
    return st;
}

static status keep_start(run_history *h, const json_value *line) {
    TRY(keep_line(h, line, &h->start));
    if (h->first == NULL) h->first = h->start;
    const json_value *changes = json_member(h->start, "changes");
    if (changes != NULL && changes->type == JSON_ARRAY && h->n_changes < HISTORY_METRICS)
        h->changes[h->n_changes++] = h->start;
    return OK;
}

static status read_line(void *ctx, const json_value *line) {
    run_history *h = ctx;
    const char *event = history_text(line, "event");
    if (strcmp(event, "eval") == 0) h->is_by_step = true;
    if (strcmp(event, "eval") == 0 || strcmp(event, "epoch") == 0) return add_evaluation(h, line);
    if (strcmp(event, "start") == 0) return keep_start(h, line);
    if (strcmp(event, "done") == 0) return keep_line(h, line, &h->done);
    if (strcmp(event, "baselines") == 0) return keep_line(h, line, &h->baselines);
    if (strcmp(event, "samples") == 0) return keep_line(h, line, &h->samples);
    return OK;
}

status run_history_read(run_history *h, const char *run) {
    *h = (run_history){.best_step = NAN, .best_x = NAN};
    arena_init(&h->memory, ARENA_BYTES);
    TRY(run_log_read(run, read_line, h));
    const double *x = run_history_x(h);
    for (size_t i = 0; i < h->n; i++)
        if (h->step[i] == h->best_step) h->best_x = x[i];
    return OK;
}

void run_history_fini(run_history *h) {
    mem_free(h->epoch);
    mem_free(h->step);
    mem_free(h->loss);
    mem_free(h->tokens_per_s);
    mem_free(h->seconds);
    mem_free(h->rate);
    for (int i = 0; i < h->n_metrics; i++)
        mem_free(h->value[i]);
    arena_fini(&h->memory);
    *h = (run_history){0};
}

const double *run_history_values(const run_history *h, const char *metric) {
    for (int i = 0; i < h->n_metrics; i++)
        if (strcmp(h->metric[i], metric) == 0) return h->value[i];
    return NULL;
}

const double *run_history_x(const run_history *h) {
    return h->is_by_step ? h->step : h->epoch;
}
