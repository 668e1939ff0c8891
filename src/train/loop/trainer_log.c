/* The output of a trainer: config.json, the lines of log.jsonl, and calls of its observer. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/file.h"
#include "base/log.h"
#include "base/machine.h"
#include "train/files/run_config.h"
#include "train/loop/trainer_int.h"
#include "train/report/protocol.h"
#include "train/report/report.h"

/* The changes that earlier resumes recorded. */
static void copy_changes(const run_config *before, json_writer *w) {
    const json_value *run = before->root != NULL ? json_member(before->root, "run") : NULL;
    const json_value *list = run != NULL ? json_member(run, "changes") : NULL;
    for (const json_value *v = list != NULL ? list->first : NULL; v != NULL; v = v->next)
        json_value_write(w, v);
}

static void write_change(const trainer *t, const char *key, const char *from, const char *to,
                         json_writer *w) {
    json_object_open(w);
    json_key_int(w, "step", (int64_t)t->saved.state.step);
    json_key_string(w, "key", key);
    json_key_string(w, "from", from != NULL ? from : "");
    json_key_string(w, "to", to != NULL ? to : "");
    json_object_close(w);
}

/* Options that are new, gone or different; returns how many. */
static int write_changes(const trainer *t, const run_config *before, const run_config *now,
                         bool is_logged, json_writer *w) {
    int n = 0;
    for (size_t i = 0; i < now->n; i++) {
        const run_option *o = &now->option[i];
        const char *old = run_config_value(before, o->key);
        if (!run_config_is_option(o->key) || (old != NULL && strcmp(old, o->value) == 0)) continue;
        write_change(t, o->key, old, o->value, w);
        n++;
        if (is_logged)
            log_info("changed: %s is %s (was %s)", o->key, o->value, old != NULL ? old : "not set");
    }
    for (size_t i = 0; i < before->n; i++) {
        const run_option *o = &before->option[i];
        if (!run_config_is_option(o->key) || run_config_value(now, o->key) != NULL) continue;
        write_change(t, o->key, o->value, NULL, w);
        n++;
    }
    return n;
}

/* The options of the config and, under "run", what the command line decided besides. */
static status describe_run(const trainer *t, const run_config *before, const run_config *now,
                           buf *out) {
    json_writer w;
    json_begin(&w, out, 2);
    json_object_open(&w);
    config_write_members(t->s->config, &w);
    json_key(&w, "run");
    json_object_open(&w);
    json_key_string(&w, "data", t->s->data->path);
    split_record_write(&t->saved.state.split, &w);
    if (t->saved.state.patience > 0) json_key_int(&w, "patience", t->saved.state.patience);
    if (now != NULL) {
        json_key(&w, "changes");
        json_array_open(&w);
        copy_changes(before, &w);
        (void)write_changes(t, before, now, false, &w);
        json_array_close(&w);
    }
    json_object_close(&w);
    json_object_close(&w);
    return json_finish(&w);
}

/* What this process changes, for its EVENT_START. */
static status note_changes(trainer *t, const run_config *before, const run_config *now) {
    json_writer w;
    json_begin(&w, &t->changes, 0);
    json_array_open(&w);
    int n = write_changes(t, before, now, true, &w);
    json_array_close(&w);
    if (n == 0) buf_clear(&t->changes);
    return json_finish(&w);
}

static status describe_resumed(trainer *t, buf *out) {
    run_config before, now = {0};
    buf plain;
    buf_init(&plain);
    status st = run_config_read(&before, t->o->run);
    if (st == OK) st = describe_run(t, &before, NULL, &plain);
    if (st == OK) st = run_config_parse(&now, "config.json", buf_str(&plain), plain.n_bytes);
    if (st == OK) st = note_changes(t, &before, &now);
    if (st == OK) st = describe_run(t, &before, &now, out);
    run_config_fini(&before);
    run_config_fini(&now);
    buf_fini(&plain);
    return st;
}

static status write_text(const char *path, const buf *text) {
    out_file *f;
    TRY(out_file_create(&f, path));
    return out_file_end(f, out_file_write(f, buf_str(text), text->n_bytes));
}

/* Sealed, because a run without a checkpoint is resumed from it. */
status trainer_write_config(trainer *t) {
    char path[CHECKPOINT_PATH_BYTES];
    buf text;
    buf_init(&text);
    status st = path_join(path, sizeof path, t->o->run, "config.json");
    bool is_resumed = t->saved.state.step > 0 && file_exists(path);
    if (st == OK) st = is_resumed ? describe_resumed(t, &text) : describe_run(t, NULL, NULL, &text);
    if (st == OK) st = json_add_seal(&text);
    if (st == OK) st = buf_char(&text, '\n');
    if (st == OK) st = write_text(path, &text);
    buf_fini(&text);
    return st;
}

static split_part held_out_part(const trainer *t) {
    return t->saved.state.split.rule.has_validation ? PART_VALIDATION : PART_TEST;
}

/* The environment of a run: what a reader of the report wants to know. */
static void write_start(const trainer *t, json_writer *w) {
    machine m;
    char now[32] = "";
    time_t seconds = time(NULL);
    struct tm utc;
    const session *s = t->s;
    machine_ask(&m);
    if (gmtime_r(&seconds, &utc) != NULL) strftime(now, sizeof now, "%Y-%m-%dT%H:%M:%SZ", &utc);
    json_key_int(w, "step", (int64_t)t->saved.state.step);
    json_key_string(w, "time", now);
    json_key_string(w, "config", s->config->file);
    json_key_string(w, "model", config_model_name(s->config->model));
    json_key_string(w, "task", config_task_name(s->config->task));
    json_key_int(w, "parameters", model_n_numbers(s->model));
    json_key_int(w, "model_bytes", (int64_t)session_memory_bytes(s));
    json_key_string(w, "rows", row_mode_name(t->optimizer.rows));
    json_key_string(w, "data", s->data->path);
    split_record_write(&t->saved.state.split, w);
    protocol_write(
        &(protocol){.session = s, .rule = t->saved.state.split.rule, .part = held_out_part(t)}, w);
    json_key_int(w, "users", (int64_t)s->data->n_users);
    json_key_int(w, "items", (int64_t)s->data->n_items);
    json_key_int(w, "events", (int64_t)s->data->n_events);
    json_key_int(w, "seed", (int64_t)t->saved.state.seed);
    json_key_string(w, "device", s->be->name);
    if (s->be->card != NULL) json_key_string(w, "gpu", s->be->card);
    json_key_int(w, "threads", s->be->workers != NULL ? pool_n_threads(s->be->workers) : 1);
    json_key_string(w, "cpu", m.cpu);
    json_key_string(w, "simd", m.simd);
    json_key_string(w, "system", m.system);
    warm_report_write(&t->warm, w);
}

static void write_metrics(const eval_result *r, json_writer *w) {
    for (int i = 0; i < r->n; i++)
        json_key_double(w, r->item[i].name, r->item[i].value);
    json_key_int(w, "users", r->n_users);
    json_key_double(w, "eval_seconds", r->seconds);
    if (r->is_partial) json_key_bool(w, "is_partial", true);
    if (r->is_retrieval) json_key_int(w, "repeated_targets", r->n_repeated);
    eval_write_misses(r, w);
}

enum { N_MEAN = 10, N_MAIN = 4 };

/* The last ten values of the main metrics, from the log: a resumed run has not seen them all. */
typedef struct last_ten {
    double value[N_MAIN][N_MEAN];
    int64_t n[N_MAIN];
} last_ten;

static const char *const main_metrics[N_MAIN] = {"hr@10", "ndcg@10", "mrr", "auc"};

static status add_line(void *ctx, const json_value *line) {
    last_ten *l = ctx;
    const json_value *event = json_member(line, "event");
    if (event == NULL || event->type != JSON_STRING || strcmp(event->string, "epoch") != 0 ||
        json_member(line, "is_partial") != NULL)
        return OK;
    for (int i = 0; i < N_MAIN; i++) {
        const json_value *v = json_member(line, main_metrics[i]);
        if (v != NULL && v->type == JSON_NUMBER) l->value[i][l->n[i]++ % N_MEAN] = v->number;
    }
    return OK;
}

static status recall_line(void *ctx, const json_value *line) {
    trainer *t = ctx;
    const json_value *event = json_member(line, "event"), *loss = json_member(line, "loss"),
                     *step = json_member(line, "step"), *rate = json_member(line, "lr");
    if (event != NULL && event->type == JSON_STRING && strcmp(event->string, "epoch") == 0 &&
        loss != NULL && loss->type == JSON_NUMBER)
        t->last_loss = loss->number;
    if (step != NULL && step->type == JSON_NUMBER && rate != NULL && rate->type == JSON_NUMBER &&
        step->number == (double)t->saved.state.step)
        t->rate = rate->number;
    return OK;
}

void trainer_recall(trainer *t) {
    uint64_t step = t->saved.state.step;
    if (step > 0) t->rate = schedule_rate(t->s->config, (int64_t)step, (int64_t)t->n_steps);
    (void)run_log_read(t->o->run, recall_line, t); /* without a log the loss is not known */
}

/* Members of the final line: the mean of the last ten evaluations, and the best on validation. */
static void write_done(const trainer *t, const train_event *e, json_writer *w) {
    last_ten l = {0};
    char key[32];
    status st = run_log_read(t->o->run, add_line, &l);
    if (st != OK) {
        w->state = st; /* json_finish tells it */
        return;
    }
    for (int i = 0; i < N_MAIN; i++) {
        int64_t n = l.n[i] < N_MEAN ? l.n[i] : N_MEAN;
        double sum = 0;
        for (int64_t k = 0; k < n; k++)
            sum += l.value[i][k];
        snprintf(key, sizeof key, "%s_mean10", main_metrics[i]);
        if (n > 0) json_key_double(w, key, sum / (double)n);
    }
    if (t->saved.state.best_metric >= 0) {
        json_key_int(w, "best_step", (int64_t)t->saved.state.best_step);
        json_key_string(w, "best_by", t->saved.state.best_by);
        json_key_double(w, "best_validation", t->saved.state.best_metric);
    }
    if (t->saved.state.patience > 0) json_key_bool(w, "stopped_early", e->is_out_of_patience);
}

/* How the ranks share a table, and what that moved. */
static void write_ranks(const char *name, const dynamic_state *s, json_writer *w) {
    double sent = (double)s->traffic.sent, least = (double)s->traffic.least;
    if (s->n_ranks == 1) return;
    json_key_int(w, "ranks", s->n_ranks);
    json_key_int(w, "shards", s->n_shards);
    json_key_int(w, "rows_of_fullest_rank", s->n_most);
    json_key_int(w, "bytes_sent", s->traffic.sent);
    json_key_int(w, "bytes_least", s->traffic.least);
    log_info("table '%s': %d shards on %d ranks, at most %" PRId64 " rows on one; %.2f MB of rows "
             "and gradients sent, %.3f of each rank's different ids once each way",
             name, s->n_shards, s->n_ranks, s->n_most, sent / 1e6, least > 0 ? sent / least : 0);
}

/* One table: how full it is, and where the ids of the epoch were found. */
static void write_table(const char *name, const dynamic_state *s, json_writer *w) {
    const embed_counts *c = &s->since;
    int64_t n_found = c->hits[0] + c->hits[1] + c->hits[2];
    double n = (double)(n_found + c->n_new + c->n_refused + c->n_rejected);
    json_object_open(w);
    json_key_string(w, "name", name);
    json_key_int(w, "rows", s->n_rows);
    json_key_int(w, "slots", s->n_slots);
    json_key_double(w, "load", (double)s->n_rows / (double)s->n_slots);
    json_key_double(w, "hit_level0", n > 0 ? (double)c->hits[0] / n : 0);
    json_key_double(w, "hit_level1", n > 0 ? (double)c->hits[1] / n : 0);
    if (s->has_store) json_key_double(w, "hit_store", n > 0 ? (double)c->hits[2] / n : 0);
    if (s->has_store) json_key_int(w, "written", c->n_written);
    json_key_int(w, "new", c->n_new);
    json_key_int(w, "evicted", c->n_evicted);
    json_key_int(w, "rejected", c->n_rejected);
    json_key_int(w, "refused", c->n_refused);
    json_key_int(w, "expired", c->n_expired);
    write_ranks(name, s, w);
    json_object_close(w);
    log_info("table '%s': %" PRId64 " rows, load %.3f; %.2f %% of ids in level 0, %.2f %% in level "
             "1; %" PRId64 " new, %" PRId64 " evicted, %" PRId64 " rejected",
             name, s->n_rows, (double)s->n_rows / (double)s->n_slots,
             n > 0 ? 100 * (double)c->hits[0] / n : 0, n > 0 ? 100 * (double)c->hits[1] / n : 0,
             c->n_new, c->n_evicted, c->n_rejected);
    if (c->n_refused > 0 || c->n_expired > 0)
        log_info("table '%s': %" PRId64 " not admitted, %" PRId64 " expired", name, c->n_refused,
                 c->n_expired);
    if (s->has_store)
        log_info("table '%s': %.2f %% of ids in the store; %" PRId64 " rows written to it", name,
                 n > 0 ? 100 * (double)c->hits[2] / n : 0, c->n_written);
}

static void write_tables(const trainer *t, json_writer *w) {
    dynamic_tables *tables = model_tables(t->s->model);
    dynamic_state state;
    if (tables->n_all == 0) return;
    json_key(w, "tables");
    json_array_open(w);
    for (int i = 0; i < tables->n; i++) {
        if (!dynamic_is_owner(&tables->item[i])) continue;
        status st = dynamic_news_of_all(tables, &tables->item[i], &state);
        if (st != OK) {
            w->state = st; /* json_finish tells it */
            return;
        }
        write_table(tables->item[i].config->table_name, &state, w);
    }
    for (int i = tables->n; i < tables->n_all; i++) {
        status st = dynamic_static_state(tables, &tables->item[i], &state);
        if (st != OK) {
            w->state = st;
            return;
        }
        json_object_open(w);
        json_key_string(w, "name", tables->item[i].name);
        json_key_int(w, "rows", state.n_rows);
        write_ranks(tables->item[i].name, &state, w);
        json_object_close(w);
    }
    json_array_close(w);
}

static void log_misses(const eval_result *r) {
    char text[EVAL_MISSES_BYTES];
    if (eval_describe_misses(r, text)) log_info("%s", text);
}

/* What --resume changed, where it did. */
static void write_noted(const trainer *t, json_writer *w) {
    arena a;
    const json_value *list;
    if (t->changes.n_bytes == 0) return;
    arena_init(&a, 4096);
    status st = json_parse(&a, "changes", buf_str(&t->changes), t->changes.n_bytes, &list);
    if (st == OK) {
        json_key(w, "changes");
        json_value_write(w, list);
    } else {
        w->state = st; /* json_finish tells it */
    }
    arena_fini(&a);
}

static void write_event(const trainer *t, const train_event *e, json_writer *w) {
    static const char *const names[] = {"start", "epoch", "eval", "done"};
    json_object_open(w);
    json_key_string(w, "event", names[e->kind]);
    if (e->kind == EVENT_START) {
        write_start(t, w);
        write_noted(t, w);
    } else {
        json_key_int(w, "epoch", (int64_t)e->epoch);
        json_key_int(w, "step", (int64_t)e->step);
        json_key_double(w, "loss", e->loss);
        json_key_double(w, "seconds", e->seconds);
        json_key_double(w, "tokens_per_s", e->tokens_per_s);
        json_key_double(w, "lr", e->rate);
        if (e->metrics != NULL) {
            json_key_string(w, "part", split_part_name(e->part));
            write_metrics(e->metrics, w);
            if (e->is_best) json_key_bool(w, "is_best", true);
        }
        if (e->kind == EVENT_EPOCH) write_tables(t, w);
        if (e->kind != EVENT_DONE && e->metrics != NULL) log_misses(e->metrics);
        if (e->kind == EVENT_DONE) write_done(t, e, w);
    }
    json_object_close(w);
}

static train_event make_event(const trainer *t, train_event_kind kind, const train_sums *sums,
                              const eval_result *metrics) {
    const train_state *state = &t->saved.state;
    train_event e = {.kind = kind,
                     .epoch = state->epoch,
                     .step = state->step,
                     .n_epochs = t->n_epochs,
                     .n_steps = t->n_steps,
                     .rate = t->rate,
                     .rule = state->split.rule,
                     .metrics = metrics};
    e.part = kind != EVENT_DONE ? held_out_part(t) : PART_TEST;
    e.is_best = metrics != NULL && t->is_best && kind != EVENT_DONE;
    e.has_best = state->best_metric >= 0;
    e.best_step = state->best_step;
    e.is_out_of_patience = state->patience > 0 && state->n_since_best >= (uint64_t)state->patience;
    if (sums != NULL) {
        e.loss = sums->n_loss > 0 ? sums->loss / (double)sums->n_loss : NAN;
        e.seconds = sums->seconds;
        e.tokens_per_s = sums->seconds > 0 ? (double)sums->n_tokens / sums->seconds : 0;
    }
    if (kind == EVENT_DONE) e.loss = t->last_loss;
    return e;
}

void trainer_log_memory(const trainer *t) {
    const session *s = t->s;
    double mb = 1e6, weights = 0; /* of this rank */
    for (int i = 0; i < s->n_params; i++)
        weights += 4.0 * (double)s->params[i].n;
    double state = (double)optimizer_bytes(&t->optimizer);
    double of_model = (double)(session_memory_bytes(s) + evaluator_bytes(t->held_out));
    double tables = (double)dynamic_bytes(model_tables(s->model));
    if (tables > 0) log_info("rows of dynamic tables: %.1f MB", tables / mb);
    log_info("memory of %s: weights %.1f MB, gradients %.1f MB, optimizer %.1f MB, batches and "
             "activations %.1f MB; %.2f GB in all",
             s->be->name, weights / mb, weights / mb, state / mb, (of_model - 2 * weights) / mb,
             (of_model + state) / 1e9);
}

/* The first rank tells what all ranks' tables hold. */
static status help_with_tables(trainer *t) {
    dynamic_tables *tables = model_tables(t->s->model);
    dynamic_state state;
    for (int i = 0; i < tables->n && tables->comm != NULL; i++)
        if (dynamic_is_owner(&tables->item[i]))
            TRY(dynamic_news_of_all(tables, &tables->item[i], &state));
    for (int i = tables->n; i < tables->n_all; i++)
        TRY(dynamic_static_state(tables, &tables->item[i], &state));
    return OK;
}

status trainer_emit(trainer *t, train_event_kind kind, const train_sums *sums,
                    const eval_result *metrics) {
    if (!trainer_is_first(t)) return kind == EVENT_EPOCH ? help_with_tables(t) : OK;
    train_event e = make_event(t, kind, sums, metrics);
    json_writer w;
    buf line;
    buf_init(&line);
    json_begin(&w, &line, 0);
    write_event(t, &e, &w);
    status st = json_finish(&w);
    if (st == OK) st = run_log_append(&t->log, buf_str(&line));
    if (st == OK) st = report_write(t->o->run);
    if (st == OK) st = tracker_add(&t->track, buf_str(&line));
    if (st == OK && t->o->observer != NULL) st = t->o->observer(t->o->ctx, &e, buf_str(&line));
    buf_fini(&line);
    return st;
}

void trainer_note(trainer *t, const char *what, const char *reason) {
    json_writer w;
    buf line;
    if (t->log.fd < 0) return;
    buf_init(&line);
    json_begin(&w, &line, 0);
    json_object_open(&w);
    json_key_string(&w, "event", what);
    json_key_int(&w, "step", (int64_t)t->saved.state.step);
    if (reason != NULL) json_key_string(&w, "reason", reason);
    json_object_close(&w);
    if (json_finish(&w) == OK) (void)run_log_append(&t->log, buf_str(&line));
    buf_fini(&line);
}
