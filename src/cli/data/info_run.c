/* hstu info RUN: what was trained, on what, how far, and how good it is. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "cli/json_line.h"
#include "cli/model/run_facts.h"
#include "cli/show.h"

static void print_fact(const char *name, const char *value) {
    char text[SHOW_BYTES];
    if (value[0] != '\0') printf("  %-11s %s\n", name, show_text(text, value, strlen(value), 100));
}

static void print_progress(const run_facts *f) {
    const run_history *h = &f->history;
    char took[32], steps[SHOW_BYTES];
    double step = h->n > 0 ? h->step[h->n - 1] : 0;
    human_duration(took, sizeof took, f->seconds);
    double epochs = h->n > 0 ? history_last(h->epoch, h->n) : 0;
    printf("  %-11s %s: %s steps, %.0f epoch%s, %s of training\n", "Progress", f->status,
           show_count(steps, (uint64_t)step), epochs, epochs == 1 ? "" : "s", took);
    if (!isfinite(h->best_step)) return;
    printf("  %-11s step %.0f, by %s on validation", "Best", h->best_step,
           history_text(h->done, "best_by")[0] != '\0' ? history_text(h->done, "best_by")
                                                       : "the main metric");
    double value = history_number(h->done, "best_validation");
    if (isfinite(value)) printf(": %.4f", value);
    printf("\n");
}

static void print_metrics(const run_facts *f) {
    const run_history *h = &f->history;
    const char *part = run_facts_part(f);
    show_style style = show_stdout_style();
    if (h->n_metrics == 0) return;
    printf("\n%sMetrics%s on the %s part%s\n\n", style.bold, style.plain, part,
           strcmp(part, "test") == 0 && isfinite(h->best_step) ? ", with the best weights" : "");
    for (int i = 0; i < h->n_metrics; i++) {
        double value = run_facts_metric(f, h->metric[i]);
        if (isfinite(value)) printf("  %-14s %8.4f\n", h->metric[i], value);
    }
}

static void print_checkpoints(const run_facts *f) {
    char size[32];
    show_style style = show_stdout_style();
    printf("\n%sCheckpoints%s\n\n", style.bold, style.plain);
    for (int i = 0; i < f->n_checkpoints; i++) {
        const run_checkpoint *c = &f->checkpoint[i];
        human_bytes(size, sizeof size, (double)c->bytes);
        printf("  step %-8" PRId64 " %10s%s%s\n", c->step, size, c->is_last ? "  last" : "",
               c->is_best ? "  best" : "");
    }
}

static void print_text(const run_facts *f) {
    const json_value *start = f->history.start;
    const json_value *protocol = start != NULL ? json_member(start, "protocol") : NULL;
    char text[SHOW_BYTES], number[32], size[32];
    show_style style = show_stdout_style();
    human_count(number, sizeof number, history_number(start, "parameters"));
    human_bytes(size, sizeof size, (double)f->bytes);
    printf("%s%s%s\n\n", style.bold, show_text(text, f->run, strlen(f->run), 100), style.plain);
    print_fact("Config", history_text(start, "config"));
    printf("  %-11s %s, %s, %s parameters\n", "Model", history_text(start, "model"),
           history_text(start, "task"), number);
    print_fact("Data", history_text(start, "data"));
    print_fact("Split",
               protocol != NULL ? history_text(protocol, "split") : history_text(start, "split"));
    print_fact("Device", history_text(start, "device"));
    print_fact("Started", history_text(f->history.first, "time"));
    print_progress(f);
    printf("  %-11s %s on disk\n", "Size", size);
    if (f->history.n_changes > 0)
        printf("  %-11s options were changed by --resume; config.json and report.html list them\n",
               "Changes");
    print_metrics(f);
    print_checkpoints(f);
}

static status print_json(const run_facts *f) {
    const run_history *h = &f->history;
    json_line line;
    json_writer *w = json_line_open(&line);
    json_key_string(w, "run", f->run);
    json_key_string(w, "status", f->status);
    json_key_double(w, "step", h->n > 0 ? h->step[h->n - 1] : 0);
    json_key_double(w, "epochs", h->n > 0 ? history_last(h->epoch, h->n) : 0);
    json_key_double(w, "seconds", f->seconds);
    json_key_int(w, "bytes", (int64_t)f->bytes);
    if (isfinite(h->best_step)) json_key_double(w, "best_step", h->best_step);
    json_key_string(w, "part", run_facts_part(f));
    json_key(w, "metrics");
    json_object_open(w);
    for (int i = 0; i < h->n_metrics; i++)
        json_key_double(w, h->metric[i], run_facts_metric(f, h->metric[i]));
    json_object_close(w);
    json_key(w, "checkpoints");
    json_array_open(w);
    for (int i = 0; i < f->n_checkpoints; i++) {
        json_object_open(w);
        json_key_int(w, "step", f->checkpoint[i].step);
        json_key_int(w, "bytes", (int64_t)f->checkpoint[i].bytes);
        json_key_bool(w, "is_last", f->checkpoint[i].is_last);
        json_key_bool(w, "is_best", f->checkpoint[i].is_best);
        json_object_close(w);
    }
    json_array_close(w);
    if (h->start != NULL) {
        json_key(w, "start");
        json_value_write(w, h->start);
    }
    json_key(w, "config");
    json_value_write(w, f->config.root);
    return json_line_print(&line);
}

status info_run(const char *run, bool is_json) {
    static run_facts f; /* too large for the stack */
    status st = run_facts_read(&f, run);
    if (st == OK && is_json) st = print_json(&f);
    if (st == OK && !is_json) print_text(&f);
    run_facts_fini(&f);
    return st;
}
