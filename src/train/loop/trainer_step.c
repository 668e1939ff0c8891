/* One step of training, and the bookkeeping of steps in flight.
 *
 * A step is enqueued on the device, and the next one is prepared while it runs: its loss is read up
 * to n_ahead steps later (ops.h).  Before anything that needs all losses (an evaluation, a
 * checkpoint, a line of the log) trainer_settle waits for the steps in flight. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/range.h"
#include "base/waits.h"
#include "train/loop/trainer_int.h"

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
    log_info("step %" PRIu64
             ": the gradient overflowed float16 and was left out; loss scale now %g",
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
        }
        if (n > 0) p->sums.n_loss += n - n_unlabelled;
        p->sums.n_tokens += b->n_tokens;
        *is_last = b->is_last;
    }
    if (t->leaves != NULL) {
        wait_kind before = hand_over(t);
        status st = leaf_step_end(t->leaves, &n_unlabelled);
        waits_end(before);
        TRY(st);
    }
    if (t->leaves != NULL) p->sums.n_loss -= n_unlabelled;
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
    if (p->sums.n_loss > 0)
        TRY(update(t, p, scale));
    else
        dynamic_forget(model_tables(t->s->model)); /* the batch taught nothing */
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

static status make_parts(trainer *t) {
    session *s = t->s;
    batcher_config b = session_train_batches(s, t->saved.state.split.rule, t->saved.state.seed);
    TRY(optimizer_init(&t->optimizer, s->be, s->model, s->config));
    TRY(leaf_step_create(&t->leaves, s));
    return batcher_create(&t->batches, s->data, &b);
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
    status st = make_parts(t);
    if (st == OK)
        *out = t;
    else
        trainer_destroy(t);
    return st;
}

void trainer_destroy(trainer *t) {
    if (t == NULL) return;
    batcher_destroy(t->batches);
    leaf_step_destroy(t->leaves);
    optimizer_fini(&t->optimizer);
    mem_free(t);
}

const optimizer *trainer_optimizer(const trainer *t) {
    return &t->optimizer;
}
