/* The printed progress of hstu train: a heading, a row for each epoch or evaluation, and what comes
 * next. */
#include "cli/model/train_print.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/log.h"
#include "base/text.h"
#include "cli/show.h"
#include "train/loop/evaluate.h"

status train_printer_columns(train_printer *p, const config *c) {
    static const char research[] = "HR@10,NDCG@10,HR@50,MRR";
    metric_list list;
    TRY(c->family == FAMILY_META ? metric_list_parse(&list, research, c->task)
                                 : metric_list_of(&list, c));
    p->n_columns = list.n < TRAIN_MAX_COLUMNS ? list.n : TRAIN_MAX_COLUMNS;
    for (int i = 0; i < p->n_columns; i++)
        metric_name(&list.item[i], p->column[i]);
    return OK;
}

static status print_protocol(const train_printer *p, const train_event *e) {
    buf text;
    protocol what = {.session = p->session, .rule = e->rule, .part = e->part};
    show_style style = show_stdout_style();
    buf_init(&text);
    status st = protocol_describe(&what, &text);
    if (st == OK) printf("%s%s%s\n", style.dim, buf_str(&text), style.plain);
    buf_fini(&text);
    return st;
}

static status print_start(const train_printer *p, const train_event *e) {
    char users[SHOW_BYTES], items[SHOW_BYTES], numbers[32];
    const session *s = p->session;
    show_style style = show_stdout_style();
    human_count(numbers, sizeof numbers, (double)model_n_numbers(s->model));
    printf("%s%s%s, %s, %s parameters; %s users, %s items; %" PRIu64 " epoch%s, %" PRIu64
           " steps of %d users\n\n",
           style.bold, config_model_name(s->config->model), style.plain,
           config_task_name(s->config->task), numbers, show_count(users, s->data->n_users),
           show_count(items, s->data->n_items), e->n_epochs, e->n_epochs == 1 ? "" : "s",
           e->n_steps, s->train_batch);
    TRY(print_protocol(p, e));
    printf("%s  %-10s %8s", style.bold, "epoch", "loss");
    for (int i = 0; i < p->n_columns; i++)
        printf(" %9s", p->column[i]);
    printf(" %10s %9s%s\n", "tokens/s", "time", style.plain);
    return OK;
}

static void print_row(const train_printer *p, const train_event *e) {
    char place[32], speed[32], took[32];
    if (e->kind == EVENT_EPOCH)
        snprintf(place, sizeof place, "%" PRIu64 "/%" PRIu64, e->epoch + 1, e->n_epochs);
    else
        snprintf(place, sizeof place, "step %" PRIu64, e->step);
    human_count(speed, sizeof speed, e->tokens_per_s);
    human_duration(took, sizeof took, e->seconds);
    printf("  %-10s %8.4f", place, e->loss);
    for (int i = 0; i < p->n_columns; i++) {
        if (e->metrics != NULL)
            printf(" %9.4f", eval_value(e->metrics, p->column[i]));
        else
            printf(" %9s", "-");
    }
    printf(" %10s %9s%s%s\n", speed, took,
           e->metrics != NULL && e->metrics->is_partial ? "  (some users)" : "",
           e->is_best ? "  best" : "");
}

/* The command that comes next, ready to be pasted. */
static status print_next(const train_printer *p) {
    buf line;
    if (p->data == NULL) return OK; /* generated data: nothing to evaluate on */
    buf_init(&line);
    status st = buf_text(&line, "hstu eval ");
    if (st == OK) st = show_word(&line, p->run);
    if (st == OK) st = buf_text(&line, " --data ");
    if (st == OK) st = show_word(&line, p->data);
    if (st == OK) printf("  Next      %s\n", buf_str(&line));
    buf_fini(&line);
    return st;
}

static status print_end(const train_printer *p, const train_event *e) {
    char took[32];
    human_duration(took, sizeof took, e->seconds);
    printf("\nDone: %" PRIu64 " steps", e->step);
    if (e->is_out_of_patience) printf(", out of patience");
    if (e->seconds > 0) printf(", %s of training here", took);
    if (e->has_best)
        printf("; best on validation at step %" PRIu64 ", on the test part", e->best_step);
    for (int i = 0; i < p->n_columns; i++)
        printf("%s %s %.4f", e->has_best && i == 0 ? ":" : ",", p->column[i],
               eval_value(e->metrics, p->column[i]));
    char run[SHOW_PATH_BYTES];
    show_path(run, p->run);
    printf("\n\n  Report    %s/report.html\n  Weights   %s/%s\n", run, run,
           e->has_best ? "best" : "last");
    return print_next(p);
}

status train_printer_observe(void *ctx, const train_event *e, const char *json) {
    const train_printer *p = ctx;
    status st = OK;
    if (p->is_json)
        printf("%s\n", json);
    else if (e->kind == EVENT_START)
        st = print_start(p, e);
    else if (e->kind == EVENT_DONE)
        st = print_end(p, e);
    else
        print_row(p, e);
    /* Flushes each line, in case a program reads them; if the reader has gone, the run goes on. */
    (void)fflush(stdout);
    return st;
}
