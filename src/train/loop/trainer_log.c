#include "train/loop/trainer_log.h"

#include "base/machine.h"
#include "train/files/run_config.h"
#include "train/loop/baselines.h"
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
    JSON_OBJECT(w, FIELD("step", t->saved.state.step), FIELD("key", key),
                FIELD("from", from != NULL ? from : ""), FIELD("to", to != NULL ? to : ""));
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
    json_begin_object(&w, out, 2);
    config_write_members(t->s->config, &w);
    json_key_object(&w, "run");
    char whole[PATH_MAX]; /* to be found from any folder */
    const char *path = t->s->data->path;
    json_key_string(&w, "data", realpath(path, whole) != NULL ? whole : path);
    split_record_write(&t->saved.state.split, &w);
    if (t->saved.state.patience > 0) json_key_int(&w, "patience", t->saved.state.patience);
    if (now != NULL) {
        json_key_array(&w, "changes");
        copy_changes(before, &w);
        (void)write_changes(t, before, now, false, &w);
        json_array_close(&w);
    }
    json_object_close(&w);
    return json_finish_object(&w);
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
    buf plain = {0};
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

/* Sealed, because a run without a checkpoint is resumed from it. */
status trainer_write_config(trainer *t) {
    char path[CHECKPOINT_PATH_BYTES];
    buf text = {0};
    status st = path_join(path, sizeof path, t->o->run, "config.json");
    bool is_resumed = t->saved.state.step > 0 && file_exists(path);
    if (st == OK) st = is_resumed ? describe_resumed(t, &text) : describe_run(t, NULL, NULL, &text);
    if (st == OK) st = json_add_seal(&text);
    if (st == OK) st = buf_char(&text, '\n');
    return file_save(NULL, path, &text, st);
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
    JSON_FIELDS(w, FIELD("step", t->saved.state.step), FIELD("time", now),
                FIELD("config", s->config->file),
                FIELD("model", config_model_name(s->config->model)),
                FIELD("task", config_task_name(s->config->task)), FIELD("batch", s->train_batch),
                FIELD("parameters", model_n_numbers(s->model)),
                FIELD("model_bytes", session_memory_bytes(s)),
                FIELD("rows", row_mode_name(t->optimizer.rows)), FIELD("data", s->data->path));
    split_record_write(&t->saved.state.split, w);
    protocol p = {.session = s, .rule = t->saved.state.split.rule, .part = trainer_held_out(t)};
    if (t->held_out != NULL) protocol_write(&p, w);
    JSON_FIELDS(w, FIELD("users", s->data->n_users), FIELD("items", s->data->n_items),
                FIELD("events", s->data->n_events), FIELD("seed", (int64_t)t->saved.state.seed),
                FIELD("device", s->be->name));
    if (s->be->card != NULL) json_key_string(w, "gpu", s->be->card);
    JSON_FIELDS(w, FIELD("threads", s->be->workers != NULL ? pool_n_threads(s->be->workers) : 1),
                FIELD("cpu", m.cpu), FIELD("simd", m.simd), FIELD("system", m.system));
    warm_report_write(&t->warm, w);
}

static void write_metrics(const eval_result *r, json_writer *w) {
    eval_write_metrics(r, w);
    json_key_int(w, "users", r->n_users);
    json_key_double(w, "eval_seconds", r->seconds);
    if (r->is_partial) json_key_bool(w, "is_partial", true);
    if (r->is_retrieval) json_key_int(w, "repeated_targets", r->n_repeated);
    eval_write_misses(r, w);
}

enum { N_MEAN = 10 };

/* The last ten values of the main metrics, from the log: a resumed run has not seen them all. */
typedef struct last_ten {
    double value[MAIN_METRICS][N_MEAN];
    int64_t n[MAIN_METRICS];
} last_ten;

static status add_line(void *ctx, const json_value *line) {
    last_ten *l = ctx;
    if (strcmp(history_text(line, "event"), "epoch") != 0 ||
        json_member(line, "is_partial") != NULL)
        return OK;
    for (int i = 0; i < MAIN_METRICS; i++) {
        double value = history_number(line, main_metrics[i]);
        if (!isnan(value)) l->value[i][l->n[i]++ % N_MEAN] = value;
    }
    return OK;
}

static status recall_line(void *ctx, const json_value *line) {
    trainer *t = ctx;
    double loss = history_number(line, "loss"), rate = history_number(line, "lr");
    if (strcmp(history_text(line, "event"), "epoch") == 0 && !isnan(loss)) t->last_loss = loss;
    if (history_number(line, "step") == (double)t->saved.state.step && !isnan(rate)) t->rate = rate;
    return OK;
}

void trainer_recall(trainer *t) {
    uint64_t step = t->saved.state.step;
    if (step > 0) t->rate = schedule_rate(t->s->config, (int64_t)step, (int64_t)t->n_steps);
    (void)run_log_read(t->o->run, recall_line, t); /* without a log the loss is not known */
}

/* Members of the final line: the mean of the last ten evaluations, which a final line of the test
 * part has only if they are of that part, too; and the best on validation. */
static void write_done(const trainer *t, const train_event *e, json_writer *w) {
    last_ten l = {0};
    char key[32];
    status st = run_log_read(t->o->run, add_line, &l);
    if (st != OK) {
        w->state = st; /* json_finish tells it */
        return;
    }
    for (int i = 0; i < MAIN_METRICS && trainer_held_out(t) == e->part; i++) {
        int64_t n = l.n[i] < N_MEAN ? l.n[i] : N_MEAN;
        double sum = 0;
        for (int64_t k = 0; k < n; k++)
            sum += l.value[i][k];
        snprintf(key, sizeof key, "%s_mean10", main_metrics[i]);
        if (n > 0) json_key_double(w, key, sum / (double)n);
    }
    if (t->saved.state.best_metric >= 0) {
        JSON_FIELDS(w, FIELD("best_step", t->saved.state.best_step),
                    FIELD("best_by", t->saved.state.best_by),
                    FIELD("best_validation", t->saved.state.best_metric));
    }
    if (t->saved.state.patience > 0) json_key_bool(w, "stopped_early", e->is_out_of_patience);
}

/* How the ranks share a table, and what that moved. */
static void write_ranks(const char *name, const dynamic_state *s, json_writer *w) {
    double sent = (double)s->traffic.sent, least = (double)s->traffic.least;
    if (s->n_ranks == 1) return;
    JSON_FIELDS(w, FIELD("ranks", s->n_ranks), FIELD("shards", s->n_shards),
                FIELD("rows_of_fullest_rank", s->n_most), FIELD("bytes_sent", s->traffic.sent),
                FIELD("bytes_least", s->traffic.least));
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
    JSON_FIELDS(w, FIELD("name", name), FIELD("rows", s->n_rows), FIELD("slots", s->n_slots),
                FIELD("load", (double)s->n_rows / (double)s->n_slots),
                FIELD("hit_level0", n > 0 ? (double)c->hits[0] / n : 0),
                FIELD("hit_level1", n > 0 ? (double)c->hits[1] / n : 0));
    if (s->has_store) json_key_double(w, "hit_store", n > 0 ? (double)c->hits[2] / n : 0);
    if (s->has_store) json_key_int(w, "written", c->n_written);
    JSON_FIELDS(w, FIELD("new", c->n_new), FIELD("evicted", c->n_evicted),
                FIELD("rejected", c->n_rejected), FIELD("refused", c->n_refused),
                FIELD("expired", c->n_expired));
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

/* The state of every table, which all ranks find out together; w NULL: this rank only helps. */
static status write_tables(const trainer *t, json_writer *w) {
    dynamic_tables *tables = model_tables(t->s->model);
    dynamic_state state;
    for (int i = 0; i < tables->n; i++) {
        const dynamic_table *table = &tables->item[i];
        if (!dynamic_is_owner(table) || (w == NULL && tables->comm == NULL)) continue;
        TRY(dynamic_news_of_all(tables, &tables->item[i], &state));
        if (w != NULL) write_table(table->config->table_name, &state, w);
    }
    for (int i = tables->n; i < tables->n_all; i++) {
        TRY(dynamic_static_state(tables, &tables->item[i], &state));
        if (w == NULL) continue;
        json_object_open(w);
        json_key_string(w, "name", tables->item[i].name);
        json_key_int(w, "rows", state.n_rows);
        write_ranks(tables->item[i].name, &state, w);
        json_object_close(w);
    }
    return OK;
}

static void write_table_list(const trainer *t, json_writer *w) {
    if (model_tables(t->s->model)->n_all == 0) return;
    json_key_array(w, "tables");
    status st = write_tables(t, w);
    if (st != OK) w->state = st; /* json_finish tells it */
    json_array_close(w);
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

static void write_event(trainer *t, const train_event *e, json_writer *w) {
    static const char *const names[] = {"start", "epoch", "eval", "done"};
    char text[EVAL_MISSES_BYTES];
    json_object_open(w);
    json_key_string(w, "event", names[e->kind]);
    if (e->kind == EVENT_START) {
        write_start(t, w);
        write_noted(t, w);
    } else {
        JSON_FIELDS(w, FIELD("epoch", e->epoch), FIELD("step", e->step), FIELD("loss", e->loss),
                    FIELD("seconds", e->seconds), FIELD("tokens_per_s", e->tokens_per_s),
                    FIELD("lr", e->rate));
        if (e->metrics != NULL) {
            json_key_string(w, "part", split_part_name(e->part));
            write_metrics(e->metrics, w);
            if (e->kind == EVENT_DONE && e->part != trainer_held_out(t)) {
                protocol p = {.session = t->s, .rule = e->rule, .part = e->part};
                protocol_write(&p, w);
            }
            if (e->is_best) json_key_bool(w, "is_best", true);
        }
        if (e->kind == EVENT_EPOCH) write_table_list(t, w);
        if (e->kind != EVENT_DONE && e->metrics != NULL && eval_describe_misses(e->metrics, text) &&
            strcmp(text, t->misses) != 0) {
            log_info("%s", text);
            memcpy(t->misses, text, sizeof text); /* once, unless it changes */
        }
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
    e.part = kind != EVENT_DONE ? trainer_held_out(t) : PART_TEST;
    e.is_best = metrics != NULL && t->is_best && kind != EVENT_DONE;
    e.has_best = state->best_metric >= 0;
    e.best_step = state->best_step;
    e.is_out_of_patience = trainer_is_out_of_patience(t);
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
    uint64_t of_pass = t->held_out != NULL ? evaluator_bytes(t->held_out) : 0;
    double of_model = (double)(session_memory_bytes(s) + of_pass);
    double tables = (double)dynamic_bytes(model_tables(s->model));
    if (tables > 0) log_info("rows of dynamic tables: %.1f MB", tables / mb);
    log_info("memory of %s: weights %.1f MB, gradients %.1f MB, optimizer %.1f MB, batches and "
             "activations %.1f MB; %.2f GB in all",
             s->be->name, weights / mb, weights / mb, state / mb, (of_model - 2 * weights) / mb,
             (of_model + state) / 1e9);
}

status trainer_emit(trainer *t, train_event_kind kind, const train_sums *sums,
                    const eval_result *metrics) {
    if (!trainer_is_first(t)) return kind == EVENT_EPOCH ? write_tables(t, NULL) : OK;
    train_event e = make_event(t, kind, sums, metrics);
    json_writer w;
    buf line = {0};
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

/* A line {"event": what, "step": ..., ...} for the log alone. */
typedef struct log_line {
    json_writer w;
    buf text;
} log_line;

static void begin_line(log_line *l, const trainer *t, const char *what) {
    l->text = (buf){0};
    json_begin_object(&l->w, &l->text, 0);
    json_key_string(&l->w, "event", what);
    json_key_int(&l->w, "step", (int64_t)t->saved.state.step);
}

/* Appends it where st is OK, on the first rank. */
static status end_line(log_line *l, trainer *t, status st) {
    if (st == OK) st = json_finish_object(&l->w);
    if (st == OK && trainer_is_first(t)) st = run_log_append(&t->log, buf_str(&l->text));
    buf_fini(&l->text);
    return st;
}

void trainer_note(trainer *t, const char *what, const char *reason) {
    log_line l;
    if (t->log.fd < 0) return;
    begin_line(&l, t, what);
    if (reason != NULL) json_key_string(&l.w, "reason", reason);
    (void)end_line(&l, t, OK);
}

/* Item-kNN takes minutes on the largest data sets; `hstu eval --baselines` measures it there. */
enum { KNN_MAX_EVENTS = 5000000 };

static void write_counts(const trainer *t, const char *name, const position_counts *counts,
                         json_writer *w) {
    metric_list metrics;
    status st = metric_list_of(&metrics, t->s->config);
    if (st != OK) w->state = st;
    json_key_object(w, name);
    for (int i = 0; i < metrics.n && st == OK; i++) {
        char text[METRIC_NAME_BYTES];
        double value = position_counts_metric(counts, &metrics.item[i]);
        if (!isnan(value)) json_key_double(w, metric_name(&metrics.item[i], text), value);
    }
    json_object_close(w);
}

static status write_baselines(trainer *t, split_part part, json_writer *w) {
    position_counts *counts;
    pool *p = t->s->be->workers;
    split s = split_make(t->s->data, t->saved.state.split.rule, SESSION_SPLIT_SEED);
    baseline_config c = baseline_config_default(t->s->data->n_items);
    c.max_history = t->s->max_history;
    c.keeps_seen = s.rule.target_actions != 0;
    TRY(MEM_NEW(&counts, 1));
    status st = OK;
    for (int i = 0; i < N_BASELINES && st == OK; i++) {
        if (i == BASELINE_ITEM_KNN && t->s->data->n_events > KNN_MAX_EVENTS) continue;
        st = baseline_measure((baseline_kind)i, &s, part, &c, p, counts);
        if (st == OK) write_counts(t, baseline_names[i], counts, w);
    }
    mem_free(counts);
    return st;
}

/* Sample recommendations: what a few users would get, with titles, for people who read a report. */
enum { N_USERS = 3, N_EVENTS = 5, N_ITEMS = 5 };

/* Memory for one batch. */
typedef struct sample_room {
    int32_t *target, *position; /* (B) */
    int32_t *best;              /* (B, N_ITEMS) */
    float *score;
} sample_room;

static void write_title(const seq_file *data, uint32_t item, buf *text, json_writer *w) {
    status st = item > 0 ? seq_item_title(data, item, text) : buf_text(text, "");
    json_string(w, st == OK && item > 0 ? buf_str(text) : "(not in the data)");
    if (st != OK) w->state = st;
}

static void write_items(const seq_file *data, const int32_t *best, const float *score, int32_t k,
                        buf *text, json_writer *w) {
    json_key_array(w, "items");
    for (int32_t i = 0; i < k && best[i] >= 0; i++) {
        json_object_open(w);
        json_key(w, "title");
        write_title(data, (uint32_t)best[i], text, w);
        json_key_double(w, "score", (double)score[i]);
        json_object_close(w);
    }
    json_array_close(w);
}

static void write_user(const session *s, const batch *b, int32_t u, const sample_room *room,
                       int32_t k, buf *text, json_writer *w) {
    int32_t last = b->offsets[u + 1] - 1, from = last - N_EVENTS;
    if (from < b->offsets[u]) from = b->offsets[u];
    json_object_open(w);
    json_key_array(w, "history");
    for (int32_t i = from; i < last; i++)
        write_title(s->data, b->item[i], text, w);
    json_array_close(w);
    json_key(w, "target");
    write_title(s->data, b->item[last], text, w);
    if (room->target[u] >= 0) json_key_int(w, "rank", room->position[u]);
    write_items(s->data, room->best + (int64_t)u * k, room->score + (int64_t)u * k, k, text, w);
    json_object_close(w);
}

static void write_users(const session *s, const batch *b, const sample_room *room, int32_t k,
                        json_writer *w) {
    int32_t n = b->n_users < N_USERS ? b->n_users : N_USERS;
    buf text = {0};
    json_key_array(w, "users");
    for (int32_t i = 0; i < n; i++)
        write_user(s, b, n > 1 ? i * (b->n_users - 1) / (n - 1) : 0, room, k, &text, w);
    json_array_close(w);
    buf_fini(&text);
}

static status rank_users(pass *p, const batch *b, const model_items *corpus, sample_room *room,
                         int32_t *k) {
    *k = corpus->n < N_ITEMS ? corpus->n : N_ITEMS;
    for (int32_t u = 0; u < b->n_users; u++) {
        int32_t row = corpus->row[b->item[b->offsets[u + 1] - 1]];
        room->target[u] = row < 0 ? 0 : row;
    }
    rank_query q = {.corpus = corpus,
                    .target = room->target,
                    .rank = room->position,
                    .k = *k,
                    .best = room->best,
                    .score = room->score};
    TRY(pass_rank(p, b, &q));
    for (int32_t u = 0; u < b->n_users; u++)
        if (corpus->row[b->item[b->offsets[u + 1] - 1]] < 0 || room->position[u] > corpus->n)
            room->target[u] = -1; /* no position: it cannot be recommended */
    return OK;
}

static status make_room(sample_room *room, size_t n_users) {
    TRY(MEM_NEW(&room->target, n_users));
    TRY(MEM_NEW(&room->position, n_users));
    TRY(MEM_NEW(&room->best, n_users * N_ITEMS));
    return MEM_NEW(&room->score, n_users * N_ITEMS);
}

/* Writes the member "users": for up to three users spread over the first batch of the part the
 * newest events before the target, the best items, the target and its position.  Overwrites
 * activations of s->train. */
static status write_samples(session *s, split_rule rule, split_part part, json_writer *w) {
    sample_room room = {0};
    model_items corpus;
    const batch *b;
    batcher *batches = NULL;
    pass *p = NULL;
    int32_t k;
    batcher_config c = session_eval_batches(s, rule, part);
    pass_config settings = {.max_users = s->eval_batch, .lender = s->train};
    status st = make_room(&room, (size_t)s->eval_batch);
    if (st == OK) st = pass_create(&p, s->model, &settings);
    if (st == OK) st = batcher_create(&batches, s->data, &c);
    if (st == OK) st = batcher_next(batches, &b);
    if (st == OK) st = model_corpus(s->model, &corpus);
    if (st == OK) st = rank_users(p, b, &corpus, &room, &k);
    if (st == OK) write_users(s, b, &room, k, w);
    batcher_destroy(batches);
    pass_destroy(p);
    MEM_FREE(room.target, room.position, room.best, room.score);
    return st != OK ? st : w->state;
}

/* Generated data has nothing to recommend, and without held-out events there is nothing to predict.
 */
static bool has_extras(const trainer *t) {
    return t->s->config->task == TASK_RETRIEVAL && !t->s->config->is_benchmark &&
           t->held_out != NULL;
}

status trainer_log_baselines(trainer *t) {
    log_line l;
    split_part part = trainer_held_out(t);
    if (!has_extras(t) || t->saved.state.step > 0) return OK;
    begin_line(&l, t, "baselines");
    json_key_string(&l.w, "part", split_part_name(part));
    return end_line(&l, t, write_baselines(t, part, &l.w));
}

/* Rank 0 needs the ranks that share its layers or tokens, and those that have rows of its dynamic
 * tables. */
status trainer_log_samples(trainer *t) {
    log_line l;
    bool shares_batch = session_group(t->s) != NULL && comm_is_first(t->s->comm);
    bool shares_rows = model_tables(t->s->model)->comm != NULL;
    if (!has_extras(t) || (!trainer_is_first(t) && !shares_batch && !shares_rows)) return OK;
    begin_line(&l, t, "samples");
    json_key_string(&l.w, "part", split_part_name(PART_TEST));
    return end_line(&l, t, write_samples(t->s, t->saved.state.split.rule, PART_TEST, &l.w));
}
