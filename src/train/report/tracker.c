#include "train/report/tracker.h"

#include "format/json.h"
#include "train/report/run_log.h"

/* Seconds since 1970. */
static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

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

static status put_number(buf *out, double value) {
    char text[40];
    TRY(buf_char(out, ','));
    if (!isfinite(value)) return OK;
    for (int digits = 6; digits <= 17; digits++) { /* the shortest that reads back */
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value) break;
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
    buf text = {0};
    status st = run_history_read(&h, t->run);
    if (st == OK) st = describe_csv(&h, &text);
    run_history_fini(&h);
    return file_save(NULL, t->to.csv, &text, st);
}

status tracker_open(tracker *t, const tracker_options *to, const char *run, uint64_t step) {
    *t = (tracker){.to = *to, .run = run, .events = {.fd = -1}};
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
    if (strcmp(event, "epoch") != 0 && strcmp(event, "eval") != 0 && strcmp(event, "done") != 0)
        return OK;
    if (t->events.fd >= 0) TRY(add_events(t, line, event));
    return t->to.csv != NULL ? write_csv(t) : OK;
}

status tracker_add(tracker *t, const char *line) {
    arena a;
    const json_value *object;
    if (t->to.tensorboard == NULL && t->to.csv == NULL) return OK;
    arena_init(&a, 16 << 10);
    status st = json_parse(&a, "log.jsonl", line, strlen(line), &object);
    if (st == OK) st = add_line(t, object);
    arena_fini(&a);
    return st;
}
