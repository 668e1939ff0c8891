#include "train/loop/trainer.h"

#include "model/trained.h"
#include "train/loop/trainer_log.h"

enum { LAST_EVALUATED = 10 };

/* A loss above this many times (the first loss + 1) means that training has diverged. */
static const double EXPLODED = 1000;

/* float16: gradients are scaled up so that small ones do not vanish.  The scale is halved when a
 * gradient overflows, and doubled after this many steps without an overflow. */
enum { GOOD_STEPS = 2000 };
static const double FIRST_LOSS_SCALE = 65536;

static bool has_loss_scale(const trainer *t) {
    return t->s->be->act == ACT_F16;
}

static const char *last_checkpoint(const trainer *t, char *text, size_t size) {
    if (t->saved_step == UINT64_MAX) return "there is no checkpoint yet";
    snprintf(text, size, "the last checkpoint (step %" PRIu64 ") is kept", t->saved_step);
    return text;
}

static status check_loss(const trainer *t, const train_pending *p, double loss) {
    const train_state *s = &t->saved.state;
    char last[96];
    if (isfinite(loss) && (p->step == 0 || loss <= EXPLODED * (s->first_loss + 1))) return OK;
    return fail(ERR_NUMERIC,
                "the loss of step %" PRIu64 " is %g, after %g in the first step: training has "
                "diverged; %s. Resume with a smaller learning rate, or with clip_grad set",
                p->step, loss, s->first_loss, last_checkpoint(t, last, sizeof last));
}

/* The device skips an update whose gradient is not finite. */
static status check_norm(trainer *t, const train_pending *p) {
    train_state *s = &t->saved.state;
    if (!t->optimizer.is_watched || isfinite(p->norm)) {
        if (has_loss_scale(t) && ++s->n_good_steps % GOOD_STEPS == 0) s->loss_scale *= 2;
        return OK;
    }
    if (!has_loss_scale(t) || s->loss_scale <= 1)
        return fail(ERR_NUMERIC, "the gradient of step %" PRIu64 " is not finite", p->step);
    s->loss_scale /= 2;
    s->n_good_steps = 0;
    log_info("step %" PRIu64 ": the gradient overflowed float16 and was skipped; loss scale now %g",
             p->step, s->loss_scale);
    return OK;
}

static void add_sums(train_sums *to, const train_sums *from) {
    to->loss += from->loss;
    to->n_loss += from->n_loss;
    to->n_tokens += from->n_tokens;
    to->seconds += from->seconds;
}

static void book(trainer *t, const train_sums *sums) {
    add_sums(&t->saved.state.in_epoch, sums);
    add_sums(&t->saved.state.in_round, sums);
    add_sums(&t->whole, sums);
}

/* Waits for the oldest step in flight and adds its loss to the sums. */
static status settle_one(trainer *t) {
    train_pending *p = &t->pending[t->first_pending];
    const ops *f = t->s->be->ops;
    t->first_pending = (t->first_pending + 1) % TRAIN_MAX_PENDING;
    t->n_pending--;
    if (p->sums.n_loss > 0) {
        TRY(f->wait(t->s->be, p->loss_ticket));
        if (t->optimizer.is_watched) TRY(f->wait(t->s->be, p->norm_ticket));
        double loss = p->sums.loss / (double)p->sums.n_loss;
        TRY(check_loss(t, p, loss));
        if (p->step == 0) t->saved.state.first_loss = loss;
        TRY(check_norm(t, p));
    }
    book(t, &p->sums);
    return OK;
}

static void book_time(trainer *t, uint64_t start) {
    train_sums time = {.seconds = (double)(clock_ns() - start) / 1e9};
    book(t, &time);
}

status trainer_settle(trainer *t) {
    uint64_t start = clock_ns();
    while (t->n_pending > 0)
        TRY(settle_one(t));
    book_time(t, start);
    return OK;
}

/* Rows of the next batch that are on disk can be read while the current batch runs. */
static status look_ahead(trainer *t) {
    const batch *next;
    if (!dynamic_reads_ahead(model_tables(t->s->model))) return OK;
    TRY(batcher_peek(t->batches, &next));
    pass_expect(t->s->train, next);
    return OK;
}

/* To a GPU work is only handed over: where that takes long, the GPU stands still. */
static wait_kind hand_over(const trainer *t) {
    return waits_begin(t->s->be->is_host ? WAIT_NONE : WAIT_GPU);
}

static status train_batch(trainer *t, const batch *b, const model_step *at, bool is_last,
                          int64_t *n_unlabelled) {
    if (t->leaves != NULL) return leaf_step_train(t->leaves, b, at, is_last, n_unlabelled);
    TRY(pass_train(t->s->train, b, at, NULL));
    *n_unlabelled = pass_n_unlabelled(t->s->train);
    return OK;
}

/* Forward and backward of the micro-batches of one step.  With a single micro-batch the gradient is
 * already scaled to the mean; with several, the number of positions is known only after the
 * last. */
static status take_batches(trainer *t, train_pending *p, double *scale, bool *is_last) {
    int64_t n_micro = t->s->config->trainer.accumulation_steps;
    const train_state *state = &t->saved.state;
    double loss_scale = has_loss_scale(t) ? state->loss_scale : 1;
    model_step at = {.seed = state->seed, .step = (uint32_t)state->step};
    int64_t n_unlabelled = 0;
    TRY(optimizer_hide(&t->optimizer));
    TRY(content_make_for_step(model_content(t->s->model), at.seed, at.step));
    for (int64_t i = 0; i < n_micro; i++) {
        const batch *b;
        range_begin("next batch", RANGE_NO_NUMBER);
        status st = batcher_next(t->batches, &b);
        range_end();
        TRY(st);
        TRY(look_ahead(t));
        if (t->on_batch != NULL) t->on_batch(t->batch_ctx, b);
        int64_t n = model_count_loss(t->s->model, b);
        at.grad_scale = (float)(loss_scale / (n_micro == 1 && n > 0 ? (double)n : 1));
        if (n > 0) {
            wait_kind before = hand_over(t);
            st = train_batch(t, b, &at, i == n_micro - 1, &n_unlabelled);
            waits_end(before);
            TRY(st);
            p->sums.n_loss += n - n_unlabelled;
        }
        p->sums.n_tokens += b->n_tokens;
        *is_last = b->is_last;
    }
    if (t->leaves != NULL) {
        wait_kind before = hand_over(t);
        status st = leaf_step_end(t->leaves, &n_unlabelled);
        waits_end(before);
        TRY(st);
        p->sums.n_loss -= n_unlabelled;
    }
    *scale = (n_micro == 1 || p->sums.n_loss == 0 ? 1 : 1.0 / (double)p->sums.n_loss) / loss_scale;
    return OK;
}

static status update(trainer *t, train_pending *p, double scale) {
    int64_t count = (int64_t)p->step + 1;
    TRY(pass_fetch_loss(t->s->train, &p->sums.loss, &p->loss_ticket));
    t->rate = schedule_rate(t->s->config, count, (int64_t)t->n_steps);
    count += (int64_t)t->saved.state.n_earlier;
    range_begin("optimizer", RANGE_NO_NUMBER);
    wait_kind before = hand_over(t);
    status st = optimizer_step(&t->optimizer, t->rate, count, scale);
    waits_end(before);
    range_end();
    TRY(st);
    return optimizer_fetch_norm(&t->optimizer, &p->norm, &p->norm_ticket);
}

static status take_step(trainer *t, bool *is_last) {
    train_state *state = &t->saved.state;
    uint64_t start = clock_ns();
    double scale = 1;
    int at = (t->first_pending + t->n_pending) % TRAIN_MAX_PENDING;
    train_pending *p = &t->pending[at];
    *p = (train_pending){.step = state->step};
    if (has_loss_scale(t) && !(state->loss_scale >= 1)) state->loss_scale = FIRST_LOSS_SCALE;
    comm *world = session_world(t->s);
    if (world != NULL) world->ops->note_step(world, state->step);
    TRY(take_batches(t, p, &scale, is_last));
    if (p->sums.n_loss > 0) {
        TRY(update(t, p, scale));
    } else { /* the batch taught nothing */
        dynamic_forget(model_tables(t->s->model));
        TRY(content_make(model_content(t->s->model)));
    }
    t->n_pending++;
    state->step++;
    batcher_save(t->batches, &state->batches);
    while (t->n_pending > t->s->be->n_ahead)
        TRY(settle_one(t));
    book_time(t, start);
    return OK;
}

status trainer_step(trainer *t, bool *is_last) {
    range_begin("step", RANGE_NO_NUMBER);
    status st = take_step(t, is_last);
    range_end();
    range_step();
    return st;
}

/* What a step needs; free_step frees it, after a failure too. */
static status init_step(trainer *t) {
    session *s = t->s;
    batcher_config b = session_train_batches(s, t->saved.state.split.rule, t->saved.state.seed);
    TRY(optimizer_init(&t->optimizer, s->be, s->model, s->config));
    TRY(session_set_items(s, t->saved.state.split.rule));
    TRY(leaf_step_create(&t->leaves, s));
    return batcher_create(&t->batches, s->data, &b);
}

static void free_step(trainer *t) {
    batcher_destroy(t->batches);
    leaf_step_destroy(t->leaves);
    optimizer_fini(&t->optimizer);
}

status trainer_create(trainer **out, session *s, const trainer_steps *steps) {
    trainer *t;
    *out = NULL;
    TRY(MEM_NEW(&t, 1));
    *t = (trainer){.s = s,
                   .n_steps = steps->n_steps,
                   .saved_step = UINT64_MAX,
                   .on_batch = steps->on_batch,
                   .batch_ctx = steps->ctx};
    t->saved.state.seed = steps->seed;
    t->saved.state.split.rule = session_split(s->config, false);
    status st = init_step(t);
    return CREATED(st, out, t, trainer_destroy);
}

void trainer_destroy(trainer *t) {
    if (t == NULL) return;
    free_step(t);
    mem_free(t);
}

const optimizer *trainer_optimizer(const trainer *t) {
    return &t->optimizer;
}

train_options train_options_default(void) {
    return (train_options){.save_every = 1, .eval_every = 1, .keep = 2};
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
    TRY(optimizer_show(&t->optimizer));
    TRY(checkpoint_save(&t->saved, t->o->run, buf_str(&t->config_json),
                        engine_dtype_name(t->s->config->network.dtype), t->o->keep, is_best));
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

static int64_t max_eval_batches(const config_trainer *c) {
    return c->max_eval_iters == CONFIG_NONE ? 0 : c->max_eval_iters;
}

/* Evaluates at the end of an epoch, as the config says: all users every full_eval_every epochs (and
 * at the end), some in between. */
static status evaluate_epoch(trainer *t, bool is_end, eval_result *out) {
    const config_trainer *c = &t->s->config->trainer;
    TRY(optimizer_show(&t->optimizer));
    if (is_end && !t->saved.state.split.rule.has_validation)
        TRY(evaluator_choose_final(t->held_out));
    bool is_full = is_end || t->saved.state.epoch % (uint64_t)c->full_eval_every == 0;
    return evaluator_run(t->held_out, is_full ? max_eval_batches(c) : c->partial_eval_iters, out);
}

/* The figures of a run are from its end: the last epoch and the mean of the last ten. */
static bool is_evaluation_due(const trainer *t) {
    uint64_t epoch = t->saved.state.epoch;
    if (t->held_out == NULL) return false;
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
                "interrupted at step %" PRIu64 " and saved; continue with --resume --out %s",
                t->saved.state.step, t->o->run);
}

/* NVIDIA's files count evaluations and checkpoints in steps. */
static status do_interval(trainer *t) {
    const config *c = t->s->config;
    train_state *state = &t->saved.state;
    eval_result result;
    bool is_best = false;
    if (c->family != FAMILY_NVIDIA) return OK;
    if (state->step % (uint64_t)c->trainer.eval_interval == 0 && t->held_out != NULL) {
        TRY(trainer_settle(t));
        TRY(optimizer_show(&t->optimizer));
        status st = evaluator_run(t->held_out, max_eval_batches(&c->trainer), &result);
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
    if (t->saved.state.step == t->n_steps) t->bar.total = (uint64_t)sums->n_tokens;
    progress_update(&t->bar, (uint64_t)sums->n_tokens);
}

static void begin_bar(trainer *t) {
    const train_state *state = &t->saved.state;
    snprintf(t->bar_title, sizeof t->bar_title, "epoch %" PRIu64 "/%" PRIu64, state->epoch + 1,
             t->n_epochs);
    /* The last epoch may be a part of one: max_train_iters. */
    uint64_t n_steps = t->n_steps - state->epoch * t->steps_per_epoch, n_tokens = t->epoch_tokens;
    if (n_steps < t->steps_per_epoch) n_tokens = n_tokens * n_steps / t->steps_per_epoch;
    progress_begin(&t->bar, t->bar_title, "tokens", n_tokens);
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
        if (trainer_is_out_of_patience(t)) return OK;
        TRY(ask_to_stop(t));
        if (t->is_stopping) return leave(t);
    }
    return OK;
}

/* How evenly the work of the epoch was divided among the ranks. */
static status log_balance(trainer *t) {
    leaf_balance b;
    if (comm_size(t->s->comm) == 1) return OK;
    TRY(leaf_step_balance(t->leaves, &b));
    log_info("%d %s: on average %.1f %% of the work and %.1f %% of the time of the busiest",
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
    TRY(log_balance(t));
    TRY(check_data(t));
    bool is_end = state->step >= t->n_steps, is_best = false;
    /* Out of patience inside an epoch: the evaluation that said so is of this step. */
    bool is_evaluated =
        !trainer_is_out_of_patience(t) && t->held_out != NULL && (is_end || is_evaluation_due(t));
    if (is_evaluated) {
        st = evaluate_epoch(t, is_end, &t->last);
        is_evaluated = st != ERR_INTERRUPTED; /* else the epoch has no figures, but is saved */
    }
    if (is_evaluated) {
        TRY(st);
        TRY(note_best(t, &t->last, &is_best));
    }
    t->is_best = is_best;
    is_end = is_end || trainer_is_out_of_patience(t);
    eval_result of_epoch = t->last;
    of_epoch.n = of_epoch.n_usual;
    of_epoch.has_gauc = of_epoch.has_ece = false;
    TRY(trainer_emit(t, EVENT_EPOCH, &state->in_epoch, is_evaluated ? &of_epoch : NULL));
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

/* The intervals of the final figures, and RUN/intervals.json, by which runs are compared. */
static status keep_intervals(trainer *t, evaluator *e) {
    replicates r = {0};
    status st = evaluator_bootstrap(e, &t->last, &r);
    if (st == OK && r.n > 0 && trainer_is_first(t))
        st = replicates_write(&r, t->o->run, split_part_name(PART_TEST));
    replicates_fini(&r);
    return st;
}

/* With validation the test events are evaluated once, at the end, by the best weights. */
static status evaluate_test(trainer *t) {
    evaluator *test;
    TRY(comm_meet(session_world(t->s))); /* the best weights are written now */
    TRY(load_best(t));
    TRY(evaluator_create(&test, t->s, t->saved.state.split.rule, PART_TEST));
    status st = evaluator_choose_final(test);
    if (st == OK) st = evaluator_run(test, 0, &t->last);
    if (st == OK) st = keep_intervals(t, test);
    evaluator_destroy(test);
    return st;
}

static status loop(trainer *t) {
    TRY(trainer_emit(t, EVENT_START, NULL, NULL));
    if (trainer_is_first(t)) TRY(trainer_log_baselines(t));
    if (t->n_steps == 0) {
        batcher_save(t->batches, &t->saved.state.batches);
        TRY(save(t, false));
    }
    while (t->saved.state.step < t->n_steps && !trainer_is_out_of_patience(t))
        TRY(do_epoch(t));
    if (trainer_is_out_of_patience(t))
        log_info("stopped at step %" PRIu64 ": no better %s in %" PRIu64
                 " evaluations on validation; the best was at step %" PRIu64,
                 t->saved.state.step, t->saved.state.best_by, t->saved.state.n_since_best,
                 t->saved.state.best_step);
    TRY(optimizer_show(&t->optimizer));
    if (t->saved.state.split.rule.has_validation)
        TRY(evaluate_test(t));
    else if (t->held_out != NULL) {
        if (t->last.n == 0) { /* nothing was left to do */
            TRY(evaluator_choose_final(t->held_out));
            TRY(evaluator_run(t->held_out, 0, &t->last));
        }
        TRY(keep_intervals(t, t->held_out));
    }
    TRY(trainer_log_samples(t));
    TRY(meet_before_leaving(t));
    return trainer_emit(t, EVENT_DONE, &t->whole, t->held_out != NULL ? &t->last : NULL);
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
    if (t->o->set_values != NULL || t->o->has_no_steps) t->n_epochs = t->n_steps = 0;
}

static status make_parts(trainer *t) {
    session *s = t->s;
    split_rule rule = t->saved.state.split.rule;
    TRY(session_check_split(s, &rule));
    TRY(init_step(t));
    if (rule.kind != SPLIT_NONE) TRY(evaluator_create(&t->held_out, s, rule, trainer_held_out(t)));
    /* An evaluation that only informs gives way to a request to stop.  One that chooses the best
     * weights does not: a run that skips it and is resumed might choose others. */
    if (!rule.has_validation && comm_size(s->comm) == 1 && t->held_out != NULL)
        evaluator_watch(t->held_out, t->o->stop);
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
    warm_options o = {.from = c->resume_folder,
                      .means = c->has_mean_items,
                      .is_final = t->o->has_no_steps,
                      .split = t->saved.state.split.rule};
    TRY(warm_start(&t->saved, t->s, &o, &t->warm));
    warm_report_log(&t->warm);
    return OK;
}

static status check_new(const trainer *t) {
    char path[CHECKPOINT_PATH_BYTES], found[CHECKPOINT_PATH_BYTES];
    TRY(path_join(path, sizeof path, t->o->run, "config.json"));
    /* Checkpoints without a config are a run, too: ours would be mixed with them. */
    if (!file_exists(path) && checkpoint_find(t->o->run, found) != OK) return OK;
    return fail(ERR_USAGE,
                "%s: contains a run already; continue it with --resume, or choose another --out",
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
    log_info("%s: stopped before its first checkpoint; starting over", t->o->run);
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
    return fail(ERR_CONFIG,
                "%s: the run was trained on other data than %s, and its order of batches cannot "
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

/* The split has to be known before the batches are made: as given or, resumed, as it was.  A run
 * keeps its sample of users, too. */
static status choose_split(trainer *t) {
    split_record *chosen = &t->saved.state.split, before = {0};
    bool is_given = t->o->has_split || t->o->has_validation;
    bool is_resumed = t->o->is_resume && folder_exists(t->o->run);
    int64_t n = t->o->eval_users;
    if (is_resumed) TRY(checkpoint_run_split(&before, t->o->run));
    if (is_resumed && n > 0 && n != before.rule.n_sample)
        return fail(ERR_CONFIG,
                    "%s: the run evaluates %" PRId64 " users (0: all) and cannot be changed now; "
                    "leave --eval-users out to resume it, or use it with 'hstu eval'",
                    t->o->run, before.rule.n_sample);
    if (is_resumed && !is_given)
        *chosen = before;
    else if (t->o->has_split)
        *chosen = t->o->split;
    else
        chosen->rule = session_split(t->s->config, t->o->has_validation);
    chosen->rule.target_actions = t->s->limits.target_actions;
    chosen->rule.n_sample = is_resumed ? before.rule.n_sample : n;
    if (chosen->rule.n_sample > 0 && chosen->rule.kind == SPLIT_NONE)
        return fail(ERR_USAGE, "--split none holds nothing out: leave --eval-users out");
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
    free_step(&t);
    table_snapshots_fini(&t.snapshots);
    buf_fini(&t.config_json);
    buf_fini(&t.changes);
    return st;
}
