#include "train/loop/trainer.h"

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "train/loop/trainer_int.h"

enum { LAST_EVALUATED = 10 };

train_options train_options_default(void) {
    return (train_options){.save_every = 1, .eval_every = 1, .keep = 2};
}

static const char *dtype_name(config_dtype dtype) {
    static const char *const names[] = {"bfloat16", "float16", "float32"};
    return names[dtype];
}

static status check_data(const trainer *t) {
    return seq_file_check_unchanged(t->s->data, t->s->be->workers);
}

/* A rank that leaves ends the exchanges of all others: none leaves before the first group, which
 * may have more to do, is done. */
static status meet_before_leaving(trainer *t) {
    return session_group(t->s) != NULL ? comm_meet(session_world(t->s)) : OK;
}

/* Whether this rank's rows of dynamic tables are written: where ranks form groups, too, the first
 * ones of all groups hold the tables together, and so do the second ones. */
static bool helps_with_rows(const trainer *t) {
    return comm_is_first(session_group(t->s));
}

static status save(trainer *t, bool is_best) {
    TRY(trainer_settle(t));
    if (t->saved_step == t->saved.state.step && !is_best) return OK;
    TRY(check_data(t)); /* nothing of changed data is saved */
    TRY(checkpoint_save(&t->saved, t->o->run, buf_str(&t->config_json),
                        dtype_name(t->s->config->network.dtype), t->o->keep, is_best));
    t->saved_step = t->saved.state.step;
    return OK;
}

/* Whether this is the best evaluation of all validation users so far; the others are counted. Ranks
 * of a group may differ in the last bits of a metric, but not in what follows from it. */
static status note_best(trainer *t, const eval_result *r, bool *is_best) {
    train_state *state = &t->saved.state;
    *is_best = false;
    if (!state->split.rule.has_validation || r->is_partial) return OK;
    double value = eval_value(r, state->best_by);
    state->n_since_best++;
    *is_best = value > state->best_metric;
    if (t->leaves != NULL && session_group(t->s) != NULL) TRY(leaf_step_any(t->leaves, is_best));
    if (!*is_best) return OK;
    state->best_metric = value;
    state->best_step = state->step;
    state->n_since_best = 0;
    return OK;
}

static bool is_out_of_patience(const trainer *t) {
    const train_state *state = &t->saved.state;
    return state->patience > 0 && state->n_since_best >= (uint64_t)state->patience;
}

/* Evaluates at the end of an epoch, as the config says: all users every full_eval_every epochs (and
 * at the end), some in between. */
static status evaluate_epoch(trainer *t, bool is_end, eval_result *out) {
    const config_trainer *c = &t->s->config->trainer;
    bool is_full = is_end || t->saved.state.epoch % (uint64_t)c->full_eval_every == 0;
    int64_t most = c->max_eval_iters == CONFIG_NONE ? 0 : c->max_eval_iters;
    return evaluator_run(t->held_out, is_full ? most : c->partial_eval_iters, out);
}

/* The figures of a run are from its end: the last epoch and the mean of the last ten. */
static bool is_evaluation_due(const trainer *t) {
    uint64_t epoch = t->saved.state.epoch;
    return epoch % (uint64_t)t->o->eval_every == 0 || epoch + LAST_EVALUATED >= t->n_epochs;
}

/* Ranks get signals at different moments, and must all leave at the same step. */
static status ask_to_stop(trainer *t) {
    t->is_stopping = train_is_stopped(t->o->stop);
    return t->leaves != NULL ? leaf_step_any(t->leaves, &t->is_stopping) : OK;
}

static status leave(trainer *t) {
    progress_end(&t->bar);
    TRY(save(t, false));
    TRY(meet_before_leaving(t));
    trainer_note(t, "interrupted", NULL);
    return fail(ERR_INTERRUPTED,
                "interrupted at step %" PRIu64 " and saved; go on with --resume --out %s",
                t->saved.state.step, t->o->run);
}

/* NVIDIA's files count evaluations and checkpoints in steps. */
static status do_interval(trainer *t) {
    const config *c = t->s->config;
    train_state *state = &t->saved.state;
    eval_result result;
    bool is_best = false;
    if (c->family != FAMILY_NVIDIA) return OK;
    if (state->step % (uint64_t)c->trainer.eval_interval == 0) {
        TRY(trainer_settle(t));
        int64_t most = c->trainer.max_eval_iters == CONFIG_NONE ? 0 : c->trainer.max_eval_iters;
        status st = evaluator_run(t->held_out, most, &result);
        if (st == ERR_INTERRUPTED) return OK; /* the caller asks next whether to stop */
        TRY(st);
        TRY(note_best(t, &result, &is_best));
        t->is_best = is_best;
        TRY(trainer_emit(t, EVENT_EVAL, &state->in_round, &result));
        state->in_round = (train_sums){0};
    }
    if (is_best || (c->trainer.checkpoint_interval > 0 &&
                    state->step % (uint64_t)c->trainer.checkpoint_interval == 0))
        TRY(save(t, is_best));
    return OK;
}

/* The last step of the run writes a snapshot, too: the chain ends with the final state. */
static status do_snapshot(trainer *t) {
    uint64_t step = t->saved.state.step, every = (uint64_t)t->o->snapshot_every;
    if (every == 0 || (step % every != 0 && step != t->n_steps)) return OK;
    TRY(trainer_settle(t));
    return helps_with_rows(t) ? table_snapshots_write(&t->snapshots, step) : OK;
}

static void show_progress(trainer *t) {
    const train_sums *sums = &t->saved.state.in_epoch;
    if (sums->n_loss > 0) progress_suffix(&t->bar, "loss %.4f", sums->loss / (double)sums->n_loss);
    progress_update(&t->bar, (uint64_t)sums->n_tokens);
}

static void begin_bar(trainer *t) {
    const train_state *state = &t->saved.state;
    snprintf(t->bar_title, sizeof t->bar_title, "epoch %" PRIu64 "/%" PRIu64, state->epoch + 1,
             t->n_epochs);
    progress_begin(&t->bar, t->bar_title, "tokens", t->epoch_tokens);
    t->bar.start_done = (uint64_t)state->in_epoch.n_tokens;
}

/* Steps up to the end of the epoch, or of the run. */
static status do_steps(trainer *t, bool *is_whole) {
    train_state *state = &t->saved.state;
    *is_whole = false;
    while (!*is_whole && state->step < t->n_steps) {
        TRY(trainer_step(t, is_whole));
        show_progress(t);
        TRY(do_snapshot(t));
        if (*is_whole || state->step == t->n_steps) return OK;
        TRY(do_interval(t));
        if (is_out_of_patience(t)) return OK;
        TRY(ask_to_stop(t));
        if (t->is_stopping) return leave(t);
    }
    return OK;
}

/* How evenly the work of the epoch was divided among the ranks. */
static status tell_balance(trainer *t) {
    leaf_balance b;
    if (comm_size(t->s->comm) == 1) return OK;
    TRY(leaf_step_balance(t->leaves, &b));
    log_info("%d %s: the mean one had %.1f %% of the work of the busiest, and took %.1f %% of "
             "its time",
             comm_size(t->s->comm), session_group(t->s) != NULL ? "groups of ranks" : "ranks",
             100 * b.predicted, 100 * b.measured);
    return OK;
}

/* An epoch, its evaluation, its log line, its checkpoint.  The line comes first: a run that is
 * killed between the two drops the line when it resumes. */
static status do_epoch(trainer *t) {
    train_state *state = &t->saved.state;
    bool is_whole;
    begin_bar(t);
    status st = do_steps(t, &is_whole);
    if (st == OK) st = trainer_settle(t);
    progress_end(&t->bar);
    TRY(st);
    TRY(tell_balance(t));
    TRY(check_data(t));
    bool is_end = state->step >= t->n_steps, is_best = false;
    /* Out of patience inside an epoch: the evaluation that said so is of this step. */
    bool is_evaluated = !is_out_of_patience(t) && (is_end || is_evaluation_due(t));
    if (is_evaluated) {
        st = evaluate_epoch(t, is_end, &t->last);
        is_evaluated = st != ERR_INTERRUPTED; /* else the epoch has no figures, but is saved */
    }
    if (is_evaluated) {
        TRY(st);
        TRY(note_best(t, &t->last, &is_best));
    }
    t->is_best = is_best;
    is_end = is_end || is_out_of_patience(t);
    TRY(trainer_emit(t, EVENT_EPOCH, &state->in_epoch, is_evaluated ? &t->last : NULL));
    t->last_loss = state->in_epoch.loss / (double)state->in_epoch.n_loss;
    state->in_round = (train_sums){0};
    if (is_whole) {
        state->epoch++;
        state->in_epoch = (train_sums){0};
    }
    if (is_end || is_best || state->epoch % (uint64_t)t->o->save_every == 0) TRY(save(t, is_best));
    if (is_end) return OK;
    TRY(ask_to_stop(t));
    return t->is_stopping ? leave(t) : OK;
}

/* The weights that `hstu eval` and `hstu recommend` use from now on. */
static status load_best(trainer *t) {
    const train_state *state = &t->saved.state;
    char folder[CHECKPOINT_PATH_BYTES];
    if (state->best_metric < 0 || state->best_step == state->step) return OK;
    TRY(path_join(folder, sizeof folder, t->o->run, "best"));
    TRY(checkpoint_verify(folder));
    return checkpoint_load_weights(folder, t->s->be, t->s->params, t->s->n_params,
                                   model_tables(t->s->model));
}

/* With validation the test events are evaluated once, at the end, by the best weights. */
static status evaluate_test(trainer *t) {
    evaluator *test;
    TRY(comm_meet(session_world(t->s))); /* the best weights are written now */
    TRY(load_best(t));
    TRY(evaluator_create(&test, t->s, t->saved.state.split.rule, PART_TEST));
    status st = evaluator_run(test, 0, &t->last);
    evaluator_destroy(test);
    return st;
}

static status loop(trainer *t) {
    TRY(trainer_emit(t, EVENT_START, NULL, NULL));
    if (trainer_is_first(t)) TRY(trainer_log_baselines(t));
    if (t->o->set_values != NULL) {
        batcher_save(t->batches, &t->saved.state.batches);
        TRY(save(t, false));
    }
    while (t->saved.state.step < t->n_steps && !is_out_of_patience(t))
        TRY(do_epoch(t));
    if (is_out_of_patience(t))
        log_info("stopped at step %" PRIu64 ": no better %s in %" PRIu64
                 " evaluations on validation; the best was at step %" PRIu64,
                 t->saved.state.step, t->saved.state.best_by, t->saved.state.n_since_best,
                 t->saved.state.best_step);
    if (t->saved.state.split.rule.has_validation)
        TRY(evaluate_test(t));
    else if (t->last.n == 0) /* nothing was left to do */
        TRY(evaluator_run(t->held_out, 0, &t->last));
    TRY(trainer_log_samples(t));
    TRY(meet_before_leaving(t));
    return trainer_emit(t, EVENT_DONE, &t->whole, &t->last);
}

/* The length of the run: epochs or steps, from the options or the config. */
static void set_length(trainer *t) {
    const config_trainer *c = &t->s->config->trainer;
    t->steps_per_epoch = batcher_n_batches(t->batches) / (uint64_t)c->accumulation_steps;
    t->n_epochs = t->o->n_epochs > 0 ? (uint64_t)t->o->n_epochs : (uint64_t)c->n_epochs;
    t->n_steps = t->n_epochs * t->steps_per_epoch;
    int64_t most = t->o->max_steps;
    if (most == 0 && t->o->n_epochs == 0 && c->max_train_iters != CONFIG_NONE)
        most = c->max_train_iters;
    if (most > 0) {
        t->n_steps = (uint64_t)most;
        t->n_epochs = (t->n_steps + t->steps_per_epoch - 1) / t->steps_per_epoch;
    }
    if (t->o->set_values != NULL) t->n_epochs = t->n_steps = 0;
}

static status make_parts(trainer *t) {
    session *s = t->s;
    train_state *state = &t->saved.state;
    split_rule rule = state->split.rule;
    split_part held_out = rule.has_validation ? PART_VALIDATION : PART_TEST;
    batcher_config b = session_train_batches(s, rule, state->seed);
    TRY(session_check_split(s, &rule));
    TRY(optimizer_init(&t->optimizer, s->be, s->model, s->config));
    TRY(leaf_step_create(&t->leaves, s));
    TRY(batcher_create(&t->batches, s->data, &b));
    TRY(evaluator_create(&t->held_out, s, rule, held_out));
    /* An evaluation that only informs gives way to a request to stop.  One that chooses the best
     * weights does not: a run that skips it and is resumed might choose others. */
    if (!rule.has_validation && comm_size(s->comm) == 1) evaluator_watch(t->held_out, t->o->stop);
    if (s->be->n_ahead > 0) trainer_log_memory(t);
    t->epoch_tokens = session_epoch_tokens(s, rule);
    set_length(t);
    return OK;
}

/* The values that a run begins with: drawn, or those of another run. */
static status set_values(trainer *t) {
    const config_trainer *c = &t->s->config->trainer;
    TRY(model_init(t->s->model, t->saved.state.seed));
    if (t->o->set_values != NULL) return t->o->set_values(t->o->set_ctx, t->s);
    if (c->resume_folder == NULL || c->resume_folder[0] == '\0') return OK;
    warm_options o = {
        .from = c->resume_folder, .means = c->has_mean_items, .split = t->saved.state.split.rule};
    TRY(warm_start(&t->saved, t->s, &o, &t->warm));
    warm_report_say(&t->warm);
    return OK;
}

static status check_new(const trainer *t) {
    char path[CHECKPOINT_PATH_BYTES], found[CHECKPOINT_PATH_BYTES];
    TRY(path_join(path, sizeof path, t->o->run, "config.json"));
    /* Checkpoints without a config are a run, too: ours would be mixed with them. */
    if (!file_exists(path) && checkpoint_find(t->o->run, found) != OK) return OK;
    return fail(ERR_USAGE,
                "%s: there is a run already; go on with --resume, or choose another --out",
                t->o->run);
}

static status begin_new(trainer *t) {
    /* First, so that a run that cannot start leaves no folder. */
    TRY(set_values(t));
    if (!trainer_is_first(t)) return OK;
    TRY(folder_create(t->o->run, NULL));
    TRY(run_lock(t->o->run, &t->lock));
    TRY(checkpoint_check_run(t->o->run));
    return trainer_write_config(t);
}

/* A run that was killed before its first checkpoint starts from the beginning.  Its config is
 * written again, since it may have changed. */
static status begin_again(trainer *t) {
    log_info("%s: stopped before its first checkpoint, so it begins again", t->o->run);
    TRY(set_values(t));
    if (!trainer_is_first(t)) return OK;
    TRY(run_log_rewind(t->o->run, 0));
    return trainer_write_config(t);
}

/* The order of batches is a function of the data: it cannot go on with other data. */
static status check_same_data(const trainer *t, const char *folder) {
    checkpoint_origin origin;
    TRY(checkpoint_verify(folder));
    TRY(checkpoint_read_origin(&origin, folder));
    if (origin.data == batcher_fingerprint(t->s->data)) return OK;
    return fail(
        ERR_CONFIG,
        "%s: the run has trained on other data than %s, and the order of its batches cannot "
        "go on there. Resume it with its own data, or start a new run with its weights: "
        "hstu train --init-from %s --data DIR --out NEW",
        t->o->run, t->s->data->path, t->o->run);
}

/* What "best" means, for the whole run: a metric of the config's, NDCG@10 or AUC if it has it. */
static status set_best_by(trainer *t) {
    metric_list metrics;
    TRY(metric_list_of(&metrics, t->s->config));
    metric best = metric_list_main(&metrics, t->s->config->task);
    metric_name(&best, t->saved.state.best_by);
    return OK;
}

/* A run that is resumed goes on to compare by the metric it began with. */
static status check_best_by(trainer *t) {
    train_state *state = &t->saved.state;
    char name[METRIC_NAME_BYTES];
    metric_list metrics;
    if (state->best_by[0] == '\0') return set_best_by(t);
    TRY(metric_list_of(&metrics, t->s->config));
    for (int i = 0; i < metrics.n; i++)
        if (strcmp(metric_name(&metrics.item[i], name), state->best_by) == 0) return OK;
    if (!state->split.rule.has_validation) return set_best_by(t);
    return fail(ERR_CONFIG,
                "%s: its best checkpoint is chosen by %s, which eval_metrics does not have now; "
                "add it",
                t->o->run, state->best_by);
}

/* What one rank does before all resume. */
static status repair(trainer *t) {
    if (!folder_exists(t->o->run)) return OK;
    TRY(run_lock(t->o->run, &t->lock));
    TRY(checkpoint_check_run(t->o->run));
    checkpoint_prune(t->o->run, INT_MAX / 2); /* only what killed processes left */
    return OK;
}

/* Resumes from the last checkpoint.  The seed is the run's, whatever the config says now. */
static status resume(trainer *t) {
    char folder[CHECKPOINT_PATH_BYTES];
    split_rule wanted = t->saved.state.split.rule;
    char text[SPLIT_TEXT_BYTES];
    uint64_t seed = t->saved.state.seed;
    if (checkpoint_is_to_come(t->o->run)) return begin_again(t);
    TRY(checkpoint_find_last(t->o->run, folder));
    TRY(check_same_data(t, folder));
    TRY(checkpoint_load(&t->saved, folder));
    train_state *state = &t->saved.state;
    if (!split_rule_is_same(&state->split.rule, &wanted))
        return fail(ERR_CONFIG,
                    "%s: the split of the run is '%s' and cannot be changed now; leave --split and "
                    "--validate out to resume it",
                    t->o->run, split_rule_text(&state->split.rule, text));
    if (state->seed != seed)
        return fail(ERR_CONFIG, "%s: the seed of the run is %" PRIu64 "; it cannot be changed now",
                    t->o->run, state->seed);
    TRY(check_best_by(t));
    if (t->o->patience > 0) state->patience = t->o->patience;
    TRY(batcher_restore(t->batches, &state->batches));
    t->saved_step = state->step;
    if (!trainer_is_first(t)) return OK;
    TRY(checkpoint_point_best(t->o->run, state->best_metric >= 0 ? (int64_t)state->best_step : -1));
    TRY(run_log_rewind(t->o->run, state->step));
    trainer_recall(t);
    return trainer_write_config(t);
}

/* Rank 0 looks at the folder first, and repairs what a killed process left there; then all ranks
 * load or set values together. */
static status begin(trainer *t) {
    if (trainer_is_first(t)) TRY(t->o->is_resume ? repair(t) : check_new(t));
    TRY(comm_meet(session_world(t->s)));
    return t->o->is_resume ? resume(t) : begin_new(t);
}

/* The split has to be known before the batches are made: as given or, resumed, as it was. */
static status choose_split(trainer *t) {
    split_record *chosen = &t->saved.state.split;
    bool is_given = t->o->has_split || t->o->has_validation;
    if (t->o->is_resume && !is_given && folder_exists(t->o->run))
        return checkpoint_run_split(chosen, t->o->run);
    if (t->o->has_split)
        *chosen = t->o->split;
    else
        chosen->rule = session_split(t->s->config, t->o->has_validation);
    return OK;
}

static status run(trainer *t) {
    TRY(config_write_json(t->s->config, &t->config_json, 2));
    /* Before the run's folder is made, which a second attempt would find in its way. */
    if (t->o->snapshot_every > 0) TRY(table_snapshots_check(model_tables(t->s->model)));
    TRY(choose_split(t));
    if (t->o->patience > 0 && !t->saved.state.split.rule.has_validation)
        return fail(ERR_USAGE, "--patience watches the validation part; give --validate, too");
    TRY(set_best_by(t));
    t->saved.state.patience = t->o->patience;
    TRY(make_parts(t));
    TRY(begin(t));
    if (t->o->snapshot_every > 0 && helps_with_rows(t))
        TRY(table_snapshots_init(&t->snapshots, model_tables(t->s->model), t->o->run,
                                 t->saved.state.step, trainer_is_first(t)));
    if (trainer_is_first(t)) {
        TRY(run_log_open(&t->log, t->o->run));
        TRY(tracker_open(&t->track, &t->o->track, t->o->run, t->saved.state.step));
    }
    if (t->o->is_resume)
        log_info("resuming at step %" PRIu64 " of %" PRIu64, t->saved.state.step, t->n_steps);
    return loop(t);
}

status trainer_run(session *s, const train_options *options) {
    trainer t = {.s = s,
                 .o = options,
                 .lock = -1,
                 .log = {.fd = -1},
                 .track = {.events = {.fd = -1}},
                 .saved_step = UINT64_MAX,
                 .last_loss = NAN};
    t.saved = (checkpoint){.be = s->be,
                           .params = s->params,
                           .n_params = s->n_params,
                           .tables = model_tables(s->model),
                           .data = s->data,
                           .n_actions = s->limits.n_actions,
                           .world = session_world(s),
                           .ranks = s->comm,
                           .group = session_group(s),
                           .optimizer = &t.optimizer,
                           .state = {.seed = (uint64_t)s->config->trainer.seed, .best_metric = -1}};
    buf_init(&t.config_json);
    buf_init(&t.changes);
    status st = run(&t);
    if (st != OK && st != ERR_INTERRUPTED) {
        failure f;
        failure_save(&f, st);
        trainer_note(&t, "failed", f.reason);
        st = failure_restore(&f);
    }
    run_log_close(&t.log);
    tracker_close(&t.track);
    run_unlock(t.lock);
    evaluator_destroy(t.held_out);
    batcher_destroy(t.batches);
    leaf_step_destroy(t.leaves);
    table_snapshots_fini(&t.snapshots);
    optimizer_fini(&t.optimizer);
    buf_fini(&t.config_json);
    buf_fini(&t.changes);
    return st;
}
