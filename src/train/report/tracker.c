#include "train/report/tracker.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"
#include "format/json.h"
#include "train/report/run_history.h"

enum { MAX_SCALARS = HISTORY_METRICS + 4, TAG_BYTES = HISTORY_NAME_BYTES + 16 };

/* The scalars of one line, under the names of one tool. */
typedef struct scalar_set {
    event_scalar item[MAX_SCALARS];
    char tag[MAX_SCALARS][TAG_BYTES];
    size_t n;
} scalar_set;

static void add(scalar_set *s, const char *prefix, const char *name, double value) {
    if (!isfinite(value) || s->n == MAX_SCALARS) return;
    snprintf(s->tag[s->n], TAG_BYTES, "%s%.*s", prefix, HISTORY_NAME_BYTES - 1, name);
    s->item[s->n] = (event_scalar){s->tag[s->n], value};
    s->n++;
}

static void add_metrics(scalar_set *s, const char *prefix, const json_value *line) {
    for (const json_value *v = line->first; v != NULL; v = v->next)
        if (history_is_metric(v)) add(s, prefix, v->key, v->number);
}

/* What is counted in steps: Meta's names, and the speed. */
static void add_losses(scalar_set *s, const json_value *line) {
    double loss = history_number(line, "loss");
    add(s, "losses/", "ar_loss", loss);
    add(s, "loss/", "train", loss);
    add(s, "", "lr", history_number(line, "lr"));
    add(s, "speed/", "tokens_per_s", history_number(line, "tokens_per_s"));
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Meta counts an epoch's metrics by epoch and everything else by step. */
static status add_events(tracker *t, const json_value *line, const char *event) {
    scalar_set by_step = {0}, by_epoch = {0};
    int64_t step = (int64_t)history_number(line, "step");
    bool is_done = strcmp(event, "done") == 0;
    if (!is_done) add_losses(&by_step, line);
    if (strcmp(event, "epoch") == 0)
        add_metrics(&by_epoch, "eval_epoch/", line);
    else
        add_metrics(&by_step, is_done ? "test/" : "eval/", line);
    double wall = now();
    if (by_step.n > 0) TRY(event_file_add(&t->events, wall, step, by_step.item, by_step.n));
    if (by_epoch.n == 0) return OK;
    return event_file_add(&t->events, wall, (int64_t)history_number(line, "epoch"), by_epoch.item,
                          by_epoch.n);
}

/* MLflow has one axis: steps.  The run's folder has its config by its first line. */
static status add_mlflow(tracker *t, const json_value *line, const char *event) {
    static const char *const numbers[] = {"loss", "lr", "tokens_per_s"};
    int64_t step = (int64_t)history_number(line, "step");
    bool is_done = strcmp(event, "done") == 0;
    if (t->mlflow.folder[0] == '\0')
        TRY(mlflow_open(&t->mlflow, t->to.mlflow, t->run, t->is_resumed));
    if (strcmp(event, "start") == 0) return OK;
    if (strcmp(event, "interrupted") == 0) return mlflow_set_state(&t->mlflow, MLFLOW_KILLED);
    if (strcmp(event, "failed") == 0) return mlflow_set_state(&t->mlflow, MLFLOW_FAILED);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers && !is_done; i++)
        TRY(mlflow_add(&t->mlflow, numbers[i], history_number(line, numbers[i]), step));
    for (const json_value *v = line->first; v != NULL; v = v->next) {
        char name[TAG_BYTES];
        if (!history_is_metric(v)) continue;
        snprintf(name, sizeof name, "%s%.*s", is_done ? "test_" : "", HISTORY_NAME_BYTES - 1,
                 v->key);
        TRY(mlflow_add(&t->mlflow, name, v->number, step));
    }
    return is_done ? mlflow_set_state(&t->mlflow, MLFLOW_FINISHED) : OK;
}

static status put_number(buf *out, double value) {
    char text[40];
    TRY(buf_char(out, ','));
    if (!isfinite(value)) return OK;
    snprintf(text, sizeof text, "%.17g", value);
    double back = 0;
    for (int digits = 6; digits < 17; digits++) { /* the shortest that reads back */
        char shorter[40];
        snprintf(shorter, sizeof shorter, "%.*g", digits, value);
        back = strtod(shorter, NULL);
        if (back == value) return buf_text(out, shorter);
    }
    return buf_text(out, text);
}

static status describe_csv(const run_history *h, buf *out) {
    TRY(buf_text(out, "epoch,step,loss,lr,tokens_per_s,seconds"));
    for (int m = 0; m < h->n_metrics; m++) {
        TRY(buf_char(out, ','));
        TRY(csv_put_field(out, h->metric[m], strlen(h->metric[m])));
    }
    TRY(buf_char(out, '\n'));
    for (size_t i = 0; i < h->n; i++) {
        TRY(buf_printf(out, "%.0f", h->epoch[i]));
        TRY(put_number(out, h->step[i]));
        TRY(put_number(out, h->loss[i]));
        TRY(put_number(out, h->rate[i]));
        TRY(put_number(out, h->tokens_per_s[i]));
        TRY(put_number(out, h->seconds[i]));
        for (int m = 0; m < h->n_metrics; m++)
            TRY(put_number(out, h->value[m][i]));
        TRY(buf_char(out, '\n'));
    }
    return OK;
}

/* The log is the truth: the table is made from it again. */
static status write_csv(const tracker *t) {
    run_history h;
    out_file *f = NULL;
    buf text;
    buf_init(&text);
    status st = run_history_read(&h, t->run);
    if (st == OK) st = describe_csv(&h, &text);
    if (st == OK) st = out_file_create(&f, t->to.csv);
    if (st == OK) st = out_file_write(f, buf_str(&text), text.n_bytes);
    st = out_file_end(f, st);
    run_history_fini(&h);
    buf_fini(&text);
    return st;
}

status tracker_open(tracker *t, const tracker_options *to, const char *run, uint64_t step) {
    *t = (tracker){.to = *to, .run = run, .events = {.fd = -1}, .is_resumed = step > 0};
    /* What this step has logged stays; later ones come again. */
    if (to->tensorboard != NULL)
        TRY(event_file_open(&t->events, to->tensorboard, step > 0 ? (int64_t)step + 1 : 0));
    return OK;
}

void tracker_close(tracker *t) {
    event_file_close(&t->events);
}

static status add_line(tracker *t, const json_value *line) {
    const char *event = history_text(line, "event");
    if (t->to.mlflow != NULL) TRY(add_mlflow(t, line, event));
    if (strcmp(event, "epoch") != 0 && strcmp(event, "eval") != 0 && strcmp(event, "done") != 0)
        return OK;
    if (t->events.fd >= 0) TRY(add_events(t, line, event));
    return t->to.csv != NULL ? write_csv(t) : OK;
}

status tracker_add(tracker *t, const char *line) {
    arena a;
    const json_value *object;
    if (t->to.tensorboard == NULL && t->to.csv == NULL && t->to.mlflow == NULL) return OK;
    arena_init(&a, 16 << 10);
    status st = json_parse(&a, "log.jsonl", line, strlen(line), &object);
    if (st == OK) st = add_line(t, object);
    arena_fini(&a);
    return st;
}
