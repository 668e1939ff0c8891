#include <signal.h>
#include <unistd.h>

#include "format/json.h"
#include "format/safetensors.h"
#include "oom.h"
#include "train/loop/trainer.h"
#include "train/loop/trainer_log.h"
#include "train/report/run_log.h"
#include "train_test.h"

/* What the observer of a run has recorded. */
typedef struct seen {
    double loss[64], metric[64];
    int n_epochs, n_events, n_done;
    volatile sig_atomic_t *stop; /* set after this many epochs, where stop_after > 0 */
    int stop_after;
} seen;

static status watch(void *ctx, const train_event *e, const char *json) {
    seen *s = ctx;
    CHECK(json[0] == '{' && strchr(json, '\n') == NULL);
    s->n_events++;
    s->n_done += e->kind == EVENT_DONE;
    if (e->kind != EVENT_EPOCH) return OK;
    CHECK(s->n_epochs < 64);
    s->loss[s->n_epochs] = e->loss;
    s->metric[s->n_epochs++] = e->metrics != NULL ? eval_value(e->metrics, "hr@10") : NAN;
    if (s->stop != NULL && s->n_epochs == s->stop_after) *s->stop = 1;
    return OK;
}

typedef struct job {
    const char *gin, *run;
    const char *const *set;
    size_t n_set;
    int n_threads;
    train_options options;
    seen seen;
} job;

static job job_make(const char *gin, const char *run) {
    return (job){.gin = gin, .run = run, .n_threads = 2, .options = train_options_default()};
}

static status job_run(void *ctx) {
    job *j = ctx;
    bench_top top;
    status st = top_open(&top, j->gin, j->set, j->n_set, j->n_threads);
    train_options o = j->options;
    o.run = j->run;
    o.observer = watch;
    o.ctx = &j->seen;
    if (st == OK) st = trainer_run(&top.session, &o);
    top_close(&top);
    return st;
}

static bool same_run(const char *a, const char *b) {
    return same_file(a, b, "model.safetensors") && same_file(a, b, "optimizer.safetensors");
}

TEST(trainer_learns) {
    job j = job_make(retrieval_gin, run_path("run"));
    j.options.n_epochs = 12;
    CHECK_OK(job_run(&j));
    CHECK_EQ(j.seen.n_epochs, 12);
    CHECK_EQ(j.seen.n_events, 14);
    CHECK(j.seen.loss[11] < j.seen.loss[0] * 0.8);
    for (int i = 0; i < 12; i++)
        CHECK(j.seen.metric[i] >= 0 && j.seen.metric[i] <= 1);
    CHECK(file_exists(run_path("run/report.html")) && file_exists(run_path("run/config.json")));
}

TEST(trainer_ranks) {
    job j = job_make(ranking_gin, run_path("run"));
    j.options.n_epochs = 8;
    CHECK_OK(job_run(&j));
    CHECK(j.seen.loss[7] < j.seen.loss[0]);
}

TEST(trainer_is_the_same_with_any_number_of_threads) {
    static const char *const runs[] = {"one", "two", "three"};
    static const char *const gins[] = {retrieval_gin, ranking_gin};
    for (int g = 0; g < 2; g++) {
        char path[3][512];
        for (int i = 0; i < 3; i++) {
            snprintf(path[i], sizeof path[i], "%s/%s%d", test_folder(), runs[i], g);
            job j = job_make(gins[g], path[i]);
            j.n_threads = i + 1;
            j.options.n_epochs = 2;
            CHECK_OK(job_run(&j));
        }
        CHECK(same_run(path[0], path[1]) && same_run(path[0], path[2]));
    }
}

/* Stopped by max_steps in the middle of an epoch, by a signal at the end of one, and resumed. */
TEST(trainer_resumes_to_the_bit) {
    static const char *const gins[] = {retrieval_gin, ranking_gin};
    for (int g = 0; g < 2; g++) {
        volatile sig_atomic_t stop = 0;
        char whole[512], parts[512];
        snprintf(whole, sizeof whole, "%s/whole%d", test_folder(), g);
        snprintf(parts, sizeof parts, "%s/parts%d", test_folder(), g);
        job a = job_make(gins[g], whole), b = job_make(gins[g], parts);
        a.options.n_epochs = 5;
        CHECK_OK(job_run(&a));
        b.options.max_steps = 7;
        CHECK_OK(job_run(&b));
        b = job_make(gins[g], parts);
        b.options.n_epochs = 5;
        b.options.is_resume = true;
        b.options.stop = b.seen.stop = &stop;
        b.seen.stop_after = 2;
        CHECK_FAILS(job_run(&b), ERR_INTERRUPTED, "saved; continue with --resume");
        stop = 0;
        b.seen = (seen){0};
        b.options.stop = NULL;
        CHECK_OK(job_run(&b));
        CHECK(same_run(whole, parts));
        CHECK(a.seen.loss[4] == b.seen.loss[b.seen.n_epochs - 1]);
        /* Resuming a finished run only reports that it is done. */
        b.seen = (seen){0};
        CHECK_OK(job_run(&b));
        CHECK(b.seen.n_epochs == 0 && b.seen.n_done == 1);
        CHECK(same_run(whole, parts));
    }
}

static void check_accumulates(const char *const *set, size_t n_whole, size_t n_halves) {
    bench_top a, b;
    train_options o = train_options_default();
    o.max_steps = 3;
    CHECK_OK(top_open(&a, ranking_gin, set, n_whole, 1));
    o.run = run_path("a");
    CHECK_OK(trainer_run(&a.session, &o));
    CHECK_OK(top_open(&b, ranking_gin, set, n_halves, 1));
    o.run = run_path("b");
    CHECK_OK(trainer_run(&b.session, &o));
    int n_moved = 0;
    for (int i = 0; i < a.session.n_params; i++) {
        const param *p = &a.session.params[i], *q = &b.session.params[i];
        for (int64_t k = 0; k < p->n; k++) {
            CHECK(fabsf(p->value[k] - q->value[k]) < 2e-4f);
            n_moved += p->value[k] != q->value[k];
        }
    }
    CHECK(n_moved > 0); /* the sums were made in another order: else nothing was tested */
    top_close(&a);
    top_close(&b);
}

/* The gradients of two batches of 4, added, are those of one of 8 but for rounding: dropout and
 * order depend on users and steps only. */
TEST(trainer_accumulates) {
    static const char *const set[] = {"TrainerArgs.train_batch_size=4",
                                      "TrainingArgs.gradient_accumulation_steps=2"};
    check_accumulates(set, 0, 2);
}

/* Adam forgives a wrong factor of the gradient, plain descent does not. */
TEST(trainer_accumulates_for_plain_descent) {
    static const char *const set[] = {
        "OptimizerArgs.optimizer_str='sgd'", "OptimizerArgs.learning_rate=1",
        "TrainerArgs.train_batch_size=4", "TrainingArgs.gradient_accumulation_steps=2"};
    check_accumulates(set, 2, 4);
}

/* One step of plain gradient descent moves the weights by the rate times the gradient, at most
 * clip long. */
TEST(trainer_clips) {
    static const char *const set[] = {"OptimizerArgs.optimizer_str='sgd'",
                                      "OptimizerArgs.learning_rate=1",
                                      "TrainerArgs.clip_grad=0.125"};
    double length[2];
    for (int i = 0; i < 2; i++) {
        bench_top a, start;
        train_options o = train_options_default();
        o.max_steps = 1;
        o.run = run_path(i == 0 ? "free" : "clipped");
        CHECK_OK(top_open(&start, ranking_gin, NULL, 0, 1));
        CHECK_OK(model_init(start.session.model, 1234));
        CHECK_OK(top_open(&a, ranking_gin, set, i == 0 ? 2 : 3, 1));
        CHECK_OK(trainer_run(&a.session, &o));
        double sum = 0;
        for (int k = 0; k < a.session.n_params; k++)
            for (int64_t n = 0; n < a.session.params[k].n; n++) {
                double d = (double)a.session.params[k].value[n] - start.session.params[k].value[n];
                sum += d * d;
            }
        length[i] = sqrt(sum);
        top_close(&a);
        top_close(&start);
    }
    CHECK(length[0] > 0.2);
    CHECK(fabs(length[1] - 0.125) < 1e-4);
}

/* Row-wise AdaGrad of the tables has one number of state a row, and a resumed run goes on with it;
 * the dense weights are Adam's, so they move as they do with Adam in the first step. */
TEST(trainer_row_wise_adagrad) {
    static const char *const set[] = {"OptimizerArgs.optimizer_str='row_wise_adagrad'"};
    char whole[512], parts[512];
    snprintf(whole, sizeof whole, "%s/whole", test_folder());
    snprintf(parts, sizeof parts, "%s/parts", test_folder());
    for (int run = 0; run < 3; run++) { /* 6 steps; then 3, and 3 more */
        bench_top a;
        train_options o = train_options_default();
        o.run = run == 0 ? whole : parts;
        o.max_steps = run == 1 ? 3 : 6;
        o.is_resume = run == 2;
        CHECK_OK(top_open(&a, ranking_gin, set, 1, 1));
        CHECK_OK(trainer_run(&a.session, &o));
        top_close(&a);
    }
    CHECK(same_run(whole, parts));
    char path[600];
    snprintf(path, sizeof path, "%s/last/optimizer.safetensors", whole);
    st_file *f;
    CHECK_OK(st_open(&f, path));
    int n_rows_only = 0, n_full = 0;
    for (size_t i = 0; i < f->n_tensors; i++) {
        const st_tensor *t = &f->tensors[i];
        size_t n = strlen(t->name);
        char other[200];
        snprintf(other, sizeof other, "%.*s.v", (int)n - 2, t->name);
        if (strcmp(t->name + n - 2, ".m") != 0) continue;
        *(st_find(f, other) != NULL ? &n_full : &n_rows_only) += 1;
        if (st_find(f, other) == NULL) CHECK_EQ(t->n_dims, 1);
    }
    CHECK(n_rows_only > 0 && n_full > 0);
    st_close(f);
}

/* Rows of items that are not in the batch of a step: lazy rows stay, dense rows still move by
 * Adam's momentum although their gradient is zero. */
TEST(trainer_rows_lazy_and_dense) {
    bench_top t;
    optimizer o;
    for (int mode = 0; mode < 2; mode++) {
        CHECK_OK(top_open(&t, mode == 0 ? retrieval_gin : ranking_gin, NULL, 0, 1));
        CHECK_OK(optimizer_init(&o, t.be, t.session.model, t.config));
        CHECK_EQ(o.rows, mode == 0 ? ROWS_DENSE : ROWS_LAZY);
        CHECK_OK(model_init(t.session.model, 1));
        param *p = NULL;
        for (int i = 0; i < t.session.n_params && p == NULL; i++)
            if (t.session.params[i].is_table && t.session.params[i].shape[0] > 50)
                p = &t.session.params[i];
        CHECK(p != NULL && p->n_dims == 2);
        int64_t dim = p->shape[1];
        for (int step = 1; step <= 2; step++) {
            int32_t row = step == 1 ? 3 : 5;
            for (int64_t k = 0; k < dim; k++)
                p->grad[row * dim + k] = 1;
            if (p->marks != NULL) p->marks[row] = 1;
            float before = p->value[3 * dim];
            CHECK_OK(optimizer_step(&o, 0.01, step, 1));
            CHECK_EQ(p->marks != NULL, mode == 1);
            CHECK(p->grad[row * dim] == 0 && (p->marks == NULL || p->marks[row] == 0));
            bool has_moved = p->value[3 * dim] != before;
            CHECK_EQ(has_moved, step == 1 || mode == 0);
        }
        optimizer_fini(&o);
        top_close(&t);
    }
}

TEST(trainer_schedules) {
    bench_top t;
    static const char *const set[] = {"train_fn.num_warmup_steps=4",
                                      "train_fn.lr_schedule='cosine'",
                                      "train_fn.learning_rate=0.5"};
    CHECK_OK(top_open(&t, retrieval_gin, set, 3, 1));
    CHECK(schedule_rate(t.config, 1, 12) == 0.125 && schedule_rate(t.config, 4, 12) == 0.5);
    CHECK(fabs(schedule_rate(t.config, 8, 12) - 0.25) < 1e-12);
    CHECK(fabs(schedule_rate(t.config, 12, 12)) < 1e-12);
    CHECK(fabs(schedule_rate(t.config, 99, 12)) < 1e-12);
    CHECK(schedule_rate(t.config, 5, 5) == 0.5); /* one step after the warm-up: not 0 */
    top_close(&t);
    CHECK_OK(top_open(&t, retrieval_gin, set, 1, 1));
    CHECK(schedule_rate(t.config, 99, 12) == 3e-3);
    top_close(&t);
}

TEST(trainer_stops_when_it_diverges) {
    static const char *const set[] = {"OptimizerArgs.optimizer_str='sgd'",
                                      "OptimizerArgs.learning_rate=1e25"};
    job j = job_make(ranking_gin, run_path("run"));
    j.set = set;
    j.n_set = 2;
    j.options.n_epochs = 5;
    status st = job_run(&j);
    CHECK_EQ(st, ERR_NUMERIC);
    CHECK_CONTAINS(status_reason(), "smaller learning rate");
    char *text;
    CHECK_EQ(test_command(&text, "tail -1 %s/run/log.jsonl", test_folder()), 0);
    CHECK_CONTAINS(text, "{\"event\":\"failed\",\"step\":");
    free(text);
}

TEST(trainer_keeps_the_best_of_validation) {
    job j = job_make(retrieval_gin, run_path("run"));
    char *text;
    j.options.has_validation = true;
    j.options.n_epochs = 6;
    j.options.keep = 1;
    CHECK_OK(job_run(&j));
    CHECK_EQ(test_command(&text,
                          "cd %s/run && ls checkpoints | wc -l && readlink best && tail -1 "
                          "log.jsonl",
                          test_folder()),
             0);
    CHECK(text[0] == '1' || text[0] == '2');
    CHECK_CONTAINS(text, "checkpoints/step-");
    CHECK_CONTAINS(text, "\"best_validation\":");
    CHECK_CONTAINS(text, "\"hr@50\":"); /* of 60 items */
    CHECK(strstr(text, "\"hr@100\":") == NULL && strstr(text, "\"ndcg@100\":") == NULL);
    CHECK(strstr(text, "_mean10") == NULL); /* means of validation beside figures of test */
    free(text);
}

/* A run with one metric, which is the best's: resumed with the same config it goes on. */
TEST(trainer_resumes_with_its_only_metric) {
    job j = job_make(ranking_gin, run_path("run"));
    j.options.has_validation = true;
    j.options.n_epochs = 1;
    CHECK_OK(job_run(&j));
    j.options.n_epochs = 2;
    j.options.is_resume = true;
    CHECK_OK(job_run(&j));
}

/* After the step that runs, not at the end of the epoch. */
TEST(trainer_stops_after_the_step_that_runs) {
    volatile sig_atomic_t stop = 1;
    job j = job_make(retrieval_gin, run_path("run"));
    j.options.n_epochs = 1;
    j.options.stop = &stop;
    CHECK_FAILS(job_run(&j), ERR_INTERRUPTED, "interrupted at step 1 and saved");
}

/* Writes into the data once the first epoch is over. */
static status overwrite_data(void *ctx, const train_event *e, const char *json) {
    char path[300];
    (void)ctx, (void)json;
    if (e->kind != EVENT_EPOCH || e->epoch > 0) return OK;
    snprintf(path, sizeof path, "%s/data.seq", synth_folder());
    FILE *f = fopen(path, "r+b");
    CHECK(f != NULL && fseek(f, -1, SEEK_END) == 0);
    int byte = fgetc(f);
    CHECK(fseek(f, -1, SEEK_END) == 0 && fputc(byte ^ 1, f) != EOF && fclose(f) == 0);
    return OK;
}

/* Nothing that was learnt from a mixture of two files is saved. */
TEST(trainer_stops_when_its_data_is_overwritten) {
    bench_top top;
    train_options o = train_options_default();
    char *text;
    o.run = run_path("run");
    o.n_epochs = 4;
    o.observer = overwrite_data;
    CHECK_OK(top_open(&top, retrieval_gin, NULL, 0, 1));
    CHECK_FAILS(trainer_run(&top.session, &o), ERR_IO, "data.seq: somebody wrote into this file");
    top_close(&top);
    CHECK_EQ(test_command(&text, "cd %s/run; ls checkpoints; tail -n 1 log.jsonl", test_folder()),
             0);
    CHECK_CONTAINS(text, "\"event\":\"failed\"");
    CHECK(strstr(text, "step-") == NULL);
    free(text);
}

/* The loss and the learning rate of a run's last line. */
static char *last_figures(void) {
    char *text;
    CHECK_EQ(test_command(&text, "tail -n 1 %s/run/log.jsonl | grep -oE '\"(loss|lr)\":[^,]*'",
                          test_folder()),
             0);
    return text;
}

/* Killed after the last checkpoint and before the last line: that line has both all the same. */
TEST(trainer_resumed_at_its_end_knows_its_loss_and_rate) {
    job j = job_make(retrieval_gin, run_path("run"));
    CHECK_OK(job_run(&j));
    char *first = last_figures();
    CHECK_CONTAINS(first, "\"lr\":0.003");
    j.options.is_resume = true;
    CHECK_OK(job_run(&j));
    char *again = last_figures();
    CHECK_STR(again, first);
    free(again);
    CHECK_EQ(test_command(NULL, "rm %s/run/log.jsonl", test_folder()), 0);
    CHECK_OK(job_run(&j));
    again = last_figures();
    CHECK_STR(again, "\"loss\":null\n\"lr\":0.003\n");
    free(first);
    free(again);
}

/* NVIDIA's configs evaluate and save every so many steps, besides the ends of epochs. */
typedef struct intervals {
    int n_eval;
    uint64_t step[8];
    double seconds[8];
} intervals;

static status watch_intervals(void *ctx, const train_event *e, const char *json) {
    intervals *s = ctx;
    (void)json;
    if (e->kind != EVENT_EVAL) return OK;
    CHECK(s->n_eval < 8 && e->metrics != NULL && isfinite(eval_value(e->metrics, "auc")));
    s->step[s->n_eval] = e->step;
    s->seconds[s->n_eval++] = e->seconds;
    return OK;
}

TEST(trainer_evaluates_and_saves_at_intervals) {
    static const char *const set[] = {"TrainerArgs.eval_interval=2",
                                      "TrainerArgs.ckpt_save_interval=3"};
    bench_top t;
    intervals found = {0};
    char *text;
    train_options o = train_options_default();
    o.run = run_path("run");
    o.max_steps = 7;
    o.keep = 9;
    o.observer = watch_intervals;
    o.ctx = &found;
    CHECK_OK(top_open(&t, ranking_gin, set, 2, 1));
    CHECK_OK(trainer_run(&t.session, &o));
    top_close(&t);
    for (int i = 0; i < found.n_eval; i++)
        CHECK(found.step[i] % 2 == 0 && found.seconds[i] > 0);
    CHECK(found.n_eval > 1 && found.step[0] == 2);
    CHECK_EQ(test_command(&text, "ls %s/checkpoints", run_path("run")), 0);
    CHECK_CONTAINS(text, "step-00000003\n");
    CHECK_CONTAINS(text, "step-00000007\n");
    CHECK(strstr(text, "step-00000002\n") == NULL);
    free(text);
    /* What is saved has the losses of all steps: a run that ends there has the same. */
    o.run = run_path("three");
    o.max_steps = 3;
    o.observer = NULL;
    CHECK_OK(top_open(&t, ranking_gin, &set[1], 1, 1));
    CHECK_OK(trainer_run(&t.session, &o));
    top_close(&t);
    CHECK_EQ(test_command(&text,
                          "cd %s && for run in run three; do tr -d ' \\n' < "
                          "$run/checkpoints/step-00000003/state.json | grep -o "
                          "'in_epoch\":{\"loss\":[^,]*,\"loss_positions\":[^,]*'; done | uniq -c",
                          test_folder()),
             0);
    CHECK_CONTAINS(text, "2 in_epoch");
    free(text);
}

/* Of several equal evaluations the first is the best: a rate this small moves nothing. */
TEST(trainer_keeps_the_first_of_equal_bests) {
    static const char *const set[] = {"train_fn.learning_rate=1e-30", "train_fn.weight_decay=0"};
    job j = job_make(retrieval_gin, run_path("run"));
    char *text;
    j.set = set, j.n_set = 2;
    j.options.has_validation = true;
    j.options.n_epochs = 3;
    CHECK_OK(job_run(&j));
    CHECK(j.seen.metric[0] == j.seen.metric[1] && j.seen.metric[1] == j.seen.metric[2]);
    CHECK_EQ(test_command(&text, "cd %s/run && readlink best last", test_folder()), 0);
    CHECK_STR(text, "checkpoints/step-00000005\ncheckpoints/step-00000015\n");
    free(text);
}

/* A model that does not learn: its first evaluation stays the best, and each later one counts. */
static job job_without_patience(const char *run) {
    static const char *const still[] = {"train_fn.learning_rate=1e-30", "train_fn.weight_decay=0"};
    job j = job_make(retrieval_gin, run);
    j.set = still, j.n_set = 2;
    j.options.has_validation = true;
    j.options.patience = 3;
    j.options.n_epochs = 9;
    return j;
}

TEST(trainer_stops_when_patience_is_over) {
    job j = job_without_patience(run_path("run"));
    CHECK_OK(job_run(&j));
    CHECK_EQ(j.seen.n_epochs, 4);
    CHECK_EQ(j.seen.n_done, 1);
    char *text;
    CHECK_EQ(
        test_command(&text, "cd %s/run && readlink best last && tail -1 log.jsonl", test_folder()),
        0);
    CHECK_CONTAINS(text, "checkpoints/step-00000005\ncheckpoints/step-00000020\n");
    CHECK_CONTAINS(text, "\"best_step\":5,\"best_by\":\"ndcg@10\"");
    CHECK_CONTAINS(text, "\"stopped_early\":true");
    free(text);
    /* Resumed as it is, it is still over; with more patience it goes on. */
    j = job_without_patience(run_path("run"));
    j.options.has_validation = false, j.options.patience = 0;
    j.options.is_resume = true;
    CHECK_OK(job_run(&j));
    CHECK_EQ(j.seen.n_epochs, 0);
    j.options.patience = 5;
    CHECK_OK(job_run(&j));
    CHECK_EQ(j.seen.n_epochs, 2);
}

/* The evaluations before an interruption count, and so does the patience that the run began with.
 */
TEST(trainer_counts_patience_across_a_resume) {
    job j = job_without_patience(run_path("run"));
    j.options.n_epochs = 2;
    CHECK_OK(job_run(&j));
    CHECK_EQ(j.seen.n_epochs, 2); /* one evaluation since the best */
    /* Killed between a checkpoint and its links: the link is made again. */
    CHECK_EQ(
        test_command(NULL, "cd %s/run && ln -sfn checkpoints/step-00000010 best", test_folder()),
        0);
    j = job_without_patience(run_path("run"));
    j.options.is_resume = true;
    j.options.has_validation = false, j.options.patience = 0;
    CHECK_OK(job_run(&j));
    CHECK_EQ(j.seen.n_epochs, 2);
    char *text;
    CHECK_EQ(test_command(&text, "cd %s/run && readlink best last", test_folder()), 0);
    CHECK_STR(text, "checkpoints/step-00000005\ncheckpoints/step-00000020\n");
    free(text);
}

/* Evaluations by steps end the run inside an epoch. */
TEST(trainer_patience_counts_evaluations_of_steps) {
    static const char *const set[] = {"TrainerArgs.eval_interval=2",
                                      "OptimizerArgs.learning_rate=1e-30"};
    job j = job_make(ranking_gin, run_path("run"));
    j.set = set, j.n_set = 2;
    j.options.has_validation = true;
    j.options.patience = 1;
    j.options.n_epochs = 3;
    CHECK_OK(job_run(&j));
    char *text;
    CHECK_EQ(test_command(&text, "cd %s/run && readlink best last", test_folder()), 0);
    CHECK_STR(text, "checkpoints/step-00000002\ncheckpoints/step-00000004\n");
    free(text);
    CHECK_EQ(test_command(&text,
                          "grep '\"seconds\"' %s/run/log.jsonl | grep -c '\"part\":\"validation\"'",
                          test_folder()),
             0);
    CHECK_STR(text, "2\n"); /* no third evaluation, of the same step as the second */
    free(text);
}

TEST(trainer_keeps_the_best_however_old) {
    job j = job_without_patience(run_path("run"));
    j.options.patience = 0, j.options.keep = 1, j.options.n_epochs = 4;
    CHECK_OK(job_run(&j));
    char *text;
    CHECK_EQ(test_command(&text, "ls %s/run/checkpoints", test_folder()), 0);
    CHECK_STR(text, "step-00000005\nstep-00000020\n");
    free(text);
    j = job_make(retrieval_gin, run_path("other"));
    j.options.patience = 1;
    CHECK_FAILS(job_run(&j), ERR_USAGE, "give --validate");
    CHECK(!folder_exists(run_path("other")));
}

TEST(trainer_refuses_what_does_not_fit) {
    job j = job_make(retrieval_gin, run_path("run"));
    j.options.n_epochs = 1;
    CHECK_OK(job_run(&j));
    CHECK_FAILS(job_run(&j), ERR_USAGE, "contains a run already");
    j.options.is_resume = true;
    j.options.has_validation = true;
    CHECK_FAILS(job_run(&j), ERR_CONFIG, "the split of the run is 'leave-one-out'");
    j.options.has_validation = false;
    static const char *const wider[] = {"train_fn.item_embedding_dim=16"};
    j.set = wider, j.n_set = 1;
    CHECK_FAILS(job_run(&j), ERR_FORMAT, "has the shape");
    static const char *const smaller[] = {"train_fn.local_batch_size=4"};
    j.set = smaller;
    CHECK_FAILS(job_run(&j), ERR_CONFIG, "");
    static const char *const seed[] = {"train_fn.random_seed=7"};
    j.set = seed;
    CHECK_FAILS(job_run(&j), ERR_CONFIG, "the seed of the run is 42");
    j = job_make(ranking_gin, run_path("other"));
    static const char *const few[] = {"RankingArgs.prediction_head_arch=[8, 4]"};
    j.set = few, j.n_set = 1;
    CHECK_FAILS(job_run(&j), ERR_CONFIG, "predicts 4 classes, but the actions of");
    static const char *const bits[] = {"RankingArgs.prediction_head_arch=[8, 1]"};
    j.set = bits;
    CHECK_FAILS(job_run(&j), ERR_CONFIG,
                "are ratings; end RankingArgs.prediction_head_arch with 5");
    CHECK(!folder_exists(run_path("other")));
}

/* A whole small run, each allocation failing in turn; each time in a folder of its own. */
static status small_run(void *ctx) {
    static int count;
    static char run[512];
    job *j = ctx;
    snprintf(run, sizeof run, "%s/run%d", test_folder(), count++);
    j->run = run;
    j->seen = (seen){0};
    return job_run(j);
}

static void check_small_run(int (*fail_at)(status (*run)(void *ctx), void *ctx)) {
    static const char *const set[] = {"create_data_loader.num_workers=0"};
    job j = job_make(retrieval_gin, run_path("run"));
    j.n_threads = 1;
    j.set = set, j.n_set = 1;
    j.options.max_steps = 1;
    synth_folder();
    CHECK(fail_at(small_run, &j) > 100);
}

TEST(trainer_out_of_memory_once) {
    check_small_run(oom_at_one_allocation);
}

TEST(trainer_out_of_memory_from_then_on) {
    check_small_run(oom_from_one_allocation_on);
}

/* The bookkeeping of steps: losses that are read late, diverging runs, the loss scale of
 * float16. */

/* A trainer with the fields that trainer_settle uses, with one step in flight. */
static trainer pending_step(session *s, uint64_t step, double loss, double norm) {
    return (trainer){.s = s,
                     .saved_step = UINT64_MAX,
                     .saved = {.state = {.first_loss = 0.5}},
                     .pending = {{.step = step,
                                  .sums = {.loss = 2 * loss, .n_loss = 2, .n_tokens = 7},
                                  .norm = norm}},
                     .n_pending = 1};
}

/* 1000 times the first loss and one is the limit; the first step only sets the reference. */
TEST(trainer_step_sees_a_loss_explode) {
    session s = {0};
    CHECK_OK(backend_create_cpu(&s.be, NULL));
    trainer t = pending_step(&s, 9, 1500, 0);
    CHECK_OK(trainer_settle(&t));
    t = pending_step(&s, 9, 1500.001, 0);
    CHECK_FAILS(trainer_settle(&t), ERR_NUMERIC, "the loss of step 9 is 1500");
    CHECK_CONTAINS(status_reason(), "after 0.5 in the first step");
    CHECK_CONTAINS(status_reason(), "there is no checkpoint yet");
    t = pending_step(&s, 9, 1500.001, 0);
    t.saved_step = 4;
    CHECK_FAILS(trainer_settle(&t), ERR_NUMERIC, "the last checkpoint (step 4) is kept");
    t = pending_step(&s, 9, NAN, 0);
    CHECK_FAILS(trainer_settle(&t), ERR_NUMERIC, "the loss of step 9 is nan");
    t = pending_step(&s, 0, NAN, 0);
    CHECK_FAILS(trainer_settle(&t), ERR_NUMERIC, "the loss of step 0 is nan");
    t = pending_step(&s, 0, 1e9, 0);
    CHECK_OK(trainer_settle(&t));
    CHECK(t.saved.state.first_loss == 1e9);
    t = pending_step(&s, 1, 3, 0);
    CHECK_OK(trainer_settle(&t));
    CHECK(t.saved.state.first_loss == 0.5);
    backend_destroy(s.be);
}

/* Every sum has each step once, in whatever order they were enqueued. */
TEST(trainer_step_books_each_step_once) {
    session s = {0};
    CHECK_OK(backend_create_cpu(&s.be, NULL));
    trainer t = pending_step(&s, 5, 3, 0);
    t.first_pending = TRAIN_MAX_PENDING - 1;
    t.n_pending = 2;
    t.pending[TRAIN_MAX_PENDING - 1] =
        (train_pending){.step = 4, .sums = {.loss = 10, .n_loss = 4, .n_tokens = 5}};
    CHECK_OK(trainer_settle(&t));
    CHECK_EQ(t.n_pending, 0);
    CHECK_EQ(t.first_pending, 1);
    const train_sums *sums[] = {&t.whole, &t.saved.state.in_epoch, &t.saved.state.in_round};
    for (int i = 0; i < 3; i++) {
        CHECK(sums[i]->loss == 16 && sums[i]->seconds > 0 && sums[i]->seconds < 60);
        CHECK_EQ(sums[i]->n_loss, 6);
        CHECK_EQ(sums[i]->n_tokens, 12);
    }
    backend_destroy(s.be);
}

/* The same step once more. */
static status settle_again(trainer *t) {
    t->n_pending = 1;
    t->first_pending = 0;
    return trainer_settle(t);
}

/* Doubled after 2000 good steps in a row, halved by an overflow, which also starts the count again;
 * at 1 there is nothing left to halve. */
TEST(trainer_step_scales_the_loss) {
    session s = {0};
    CHECK_OK(backend_create_cpu(&s.be, NULL));
    s.be->act = ACT_F16;
    trainer t = pending_step(&s, 1, 1, 0.25);
    train_state *state = &t.saved.state;
    t.optimizer.is_watched = true;
    state->loss_scale = 8;
    for (int i = 1; i <= 4000; i++) {
        CHECK_OK(settle_again(&t));
        CHECK_EQ(state->n_good_steps, i);
        CHECK(state->loss_scale == (i < 2000 ? 8 : i < 4000 ? 16 : 32));
    }
    log_set_level(LOG_WARN);
    t.pending[0].norm = INFINITY;
    for (double scale = 16; scale >= 1; scale /= 2) {
        CHECK_OK(settle_again(&t));
        CHECK(state->loss_scale == scale && state->n_good_steps == 0);
    }
    CHECK_FAILS(settle_again(&t), ERR_NUMERIC, "the gradient of step 1 is not finite");
    s.be->act = ACT_F32; /* which has no loss scale: an infinite norm is an error at once */
    state->loss_scale = 8;
    CHECK_FAILS(settle_again(&t), ERR_NUMERIC, "the gradient of step 1 is not finite");
    t.optimizer.is_watched = false;
    CHECK_OK(settle_again(&t));
    CHECK(state->loss_scale == 8 && state->n_good_steps == 0);
    backend_destroy(s.be);
}

static void count_tokens(void *ctx, const batch *b) {
    *(int64_t *)ctx += b->n_tokens;
}

static bool same_params(const session *a, const session *b) {
    for (int i = 0; i < a->n_params; i++)
        if (memcmp(a->params[i].value, b->params[i].value,
                   (size_t)a->params[i].n * sizeof(float)) != 0)
            return false;
    return true;
}

/* A step that is timed alone equals a step of trainer_run: the same bits after the same steps. */
static void compare_with_a_run(const char *gin, const char *const *set, size_t n_set) {
    bench_top a, b;
    trainer *t;
    int64_t n_tokens = 0;
    bool is_last = false;
    train_options o = train_options_default();
    o.max_steps = 7;
    o.run = run_path("run");
    CHECK_OK(top_open(&a, gin, set, n_set, 1));
    CHECK_OK(trainer_run(&a.session, &o));
    CHECK_OK(top_open(&b, gin, set, n_set, 1));
    uint64_t seed = (uint64_t)b.config->trainer.seed;
    trainer_steps steps = {seed, 7, count_tokens, &n_tokens};
    CHECK_OK(trainer_create(&t, &b.session, &steps));
    CHECK_OK(model_init(b.session.model, seed));
    for (int i = 0; i < 6; i++)
        CHECK_OK(trainer_step(t, &is_last));
    CHECK_OK(trainer_settle(t));
    CHECK(!same_params(&a.session, &b.session));
    CHECK_OK(trainer_step(t, &is_last));
    CHECK_OK(trainer_settle(t));
    CHECK(same_params(&a.session, &b.session));
    CHECK(n_tokens > 0);
    CHECK(optimizer_bytes(trainer_optimizer(t)) > 0);
    trainer_destroy(t);
    trainer_destroy(NULL);
    top_close(&a);
    top_close(&b);
}

TEST(trainer_step_is_that_of_a_run) {
    compare_with_a_run(retrieval_gin, NULL, 0);
}

/* Clipping, accumulation and a schedule belong to the step. */
TEST(trainer_step_clips_and_accumulates_as_a_run) {
    static const char *const set[] = {"TrainerArgs.train_batch_size=4", "TrainerArgs.clip_grad=0.1",
                                      "TrainingArgs.gradient_accumulation_steps=2"};
    compare_with_a_run(ranking_gin, set, 3);
}
