/* hstu train: reads a config, shows it or trains from it.  From top to bottom: what is printed
 * while it trains, the ranks before the first step, the command. */
#include "cli/cli.h"
#include "cli/machine/profile.h"
#include "cli/model/eval_groups.h"
#include "cli/model/own_config.h"
#include "cli/output.h"
#include "cli/signals.h"
#include "cli/work.h"
#include "config/config.h"
#include "config/options.h"
#include "dist/nccl.h"
#include "dist/ranks.h"
#include "dist/transport.h"
#include "model/checkpoint_load.h"
#include "nn/dynamic.h"
#include "ops/comm.h"
#include "profile/profiler.h"
#include "train/files/run_config.h"
#include "train/loop/evaluate.h"
#include "train/loop/generated.h"
#include "train/loop/trainer.h"
#include "train/report/run_log.h"

enum { TRAIN_MAX_COLUMNS = 5 };

typedef struct train_printer {
    bool is_json;
    const session *session;
    const char *run, *data;                            /* data: NULL if it is generated */
    char column[TRAIN_MAX_COLUMNS][METRIC_NAME_BYTES]; /* the metrics of the table */
    int n_columns;
} train_printer;

/* Sets the columns: the first metrics of the config; of the many of Meta's files the usual ones. */
static status train_printer_columns(train_printer *p, const config *c) {
    static const char research[] = "HR@10,NDCG@10,HR@50,MRR";
    metric_list list;
    TRY(c->family == FAMILY_META ? metric_list_parse(&list, research, c->task)
                                 : metric_list_of(&list, c));
    p->n_columns = list.n < TRAIN_MAX_COLUMNS ? list.n : TRAIN_MAX_COLUMNS;
    for (int i = 0; i < p->n_columns; i++)
        metric_name(&list.item[i], p->column[i]);
    return OK;
}

static status print_start(const train_printer *p, const train_event *e) {
    const session *s = p->session;
    show_style style = show_stdout_style();
    printf("%s%s%s, %s, %s parameters; %s users, %s items; %" PRIu64 " epoch%s, %" PRIu64
           " step%s of %d users%s%s\n\n",
           style.bold, config_model_name(s->config->model), style.plain,
           config_task_name(s->config->task), show_rounded((double)model_n_numbers(s->model)),
           show_count(s->data->n_users), show_count(s->data->n_items), e->n_epochs,
           e->n_epochs == 1 ? "" : "s", e->n_steps, e->n_steps == 1 ? "" : "s", s->train_batch,
           s->be->card != NULL ? ", on " : "", s->be->card != NULL ? s->be->card : "");
    if (e->rule.kind == SPLIT_NONE)
        printf("%s  Split     none: trained on all events, none is held out\n%s", style.dim,
               style.plain);
    else
        TRY(eval_print_protocol(&(protocol){.session = s, .rule = e->rule, .part = e->part}));
    printf("\n%s  %-10s %8s", style.bold, "epoch", "loss");
    for (int i = 0; i < p->n_columns; i++)
        printf(" %9s", p->column[i]);
    printf(" %10s %9s%s\n", "tokens/s", "time", style.plain);
    return OK;
}

static void print_row(const train_printer *p, const train_event *e) {
    const char *place = e->kind == EVENT_EPOCH
                            ? show_printf("%" PRIu64 "/%" PRIu64, e->epoch + 1, e->n_epochs)
                            : show_printf("step %" PRIu64, e->step);
    printf("  %-10s %8.4f", place, e->loss);
    for (int i = 0; i < p->n_columns; i++) {
        double value = e->metrics != NULL ? eval_value(e->metrics, p->column[i]) : 0;
        printf(" %9s", e->metrics != NULL ? show_printf("%.4f", value) : "-");
    }
    printf(" %10s %9s%s%s\n", show_rounded(e->tokens_per_s), show_duration(e->seconds),
           e->metrics != NULL && e->metrics->is_partial ? "  (some users)" : "",
           e->is_best ? "  best" : "");
}

/* The command that comes next, ready to be pasted. */
static void print_next(const train_printer *p, bool is_evaluated) {
    if (p->data == NULL) return; /* generated data: nothing to evaluate on */
    bool has_baselines = is_evaluated && p->session->config->task == TASK_RETRIEVAL;
    printf("  Next      hstu %s %s --data %s%s\n", is_evaluated ? "eval" : "serve",
           show_word(p->run), show_word(p->data), has_baselines ? " --baselines" : "");
}

static void print_end(const train_printer *p, const train_event *e) {
    printf("\nDone: %" PRIu64 " step%s", e->step, e->step == 1 ? "" : "s");
    if (e->is_out_of_patience) printf(", out of patience");
    if (e->seconds > 0) printf(", %s of training here", show_duration(e->seconds));
    if (e->has_best)
        printf("; best on validation at step %" PRIu64 ", on the test part", e->best_step);
    for (int i = 0; i < p->n_columns && e->metrics != NULL; i++)
        printf("%s %s %.4f", e->has_best && i == 0 ? ":" : ",", p->column[i],
               eval_value(e->metrics, p->column[i]));
    const char *run = show_path(p->run);
    printf("\n\n  Report    %s/report.html\n  Weights   %s/%s\n", run, run,
           e->has_best ? "best" : "last");
    print_next(p, e->metrics != NULL);
}

/* The trainer's observer; ctx is a train_printer. */
static status train_printer_observe(void *ctx, const train_event *e, const char *json) {
    const train_printer *p = ctx;
    status st = OK;
    if (p->is_json)
        printf("%s\n", json);
    else if (e->kind == EVENT_START)
        st = print_start(p, e);
    else if (e->kind == EVENT_DONE)
        print_end(p, e);
    else
        print_row(p, e);
    /* Flushes each line, in case a program reads them; if the reader has gone, the run goes on. */
    (void)fflush(stdout);
    return st;
}

/* A rank with another program, config or data would not notice it otherwise; ranks may be NULL. */
static status train_ranks_agree(transport *ranks, const train_options *o, const config *c,
                                const session *s) {
    rank_facts f = rank_facts_here();
    const int64_t options[] = {o->n_epochs, o->max_steps, o->is_resume, s->train_batch,
                               env_sums_early()};
    buf text = {0};
    if (ranks == NULL) return OK;
    status st = config_write_json(c, &text, 0);
    if (st == OK) {
        f.config = hash64(text.data, text.n_bytes, hash64(options, sizeof options, 0));
        f.data = batcher_fingerprint(s->data);
        st = ranks_agree(ranks, &f);
    }
    buf_fini(&text);
    return st;
}

/* Ranks of a group: they share layers, or the tokens of a batch. */
static int64_t train_group_size(const config *c) {
    const config_trainer *t = &c->trainer;
    return t->tensor_parallel > 1 ? t->tensor_parallel : t->sequence_parallel;
}

static bool has_tensor(const config *c) {
    return c->trainer.tensor_parallel > 1;
}

/* Where the config cuts layers or sequences, ranks form groups that share them; ranks may be NULL.
 */
static status train_open_groups(rank_grid *grid, transport *ranks, const config *c, const work *w) {
    int64_t size = train_group_size(c);
    int n_ranks = ranks != NULL ? ranks->size : 1;
    const char *name = has_tensor(c) ? "TensorModelParallelArgs.tensor_model_parallel_size"
                                     : "--sequence-parallel (sequence_parallel_size)";
    *grid = (rank_grid){0};
    if (has_tensor(c) && c->trainer.sequence_parallel > 1)
        return fail(ERR_CONFIG,
                    "%s: %s = %lld and a sequence_parallel_size of %lld: ranks share layers or "
                    "sequences, not both; set one of them to 1",
                    c->file, name, (long long)size, (long long)c->trainer.sequence_parallel);
    if (size == 1) return OK;
    if (n_ranks == 1) {
        log_info("note: %s: %s = %lld: one rank trains whole %s; --ranks cuts them", c->file, name,
                 (long long)size, has_tensor(c) ? "layers" : "sequences");
        return OK;
    }
    if (n_ranks % size != 0)
        return fail(ERR_CONFIG,
                    "%s: %s = %lld, and %d ranks cannot form groups of so many; start a multiple "
                    "of %lld ranks, or set it to 1: then the ranks divide the batch",
                    c->file, name, (long long)size, n_ranks, (long long)size);
    return rank_grid_create(grid, ranks, w->be, w->comm, (int)size);
}

static void tell_groups(const rank_grid *grid, const config *c) {
    int group = comm_size(grid->group), data = comm_size(grid->data);
    long long heads = c->network.n_heads;
    if (group == 1) return;
    const char *of = show_printf("%lld of the %lld heads", heads / group, heads);
    const char *share =
        has_tensor(c)
            ? show_printf("each rank has %s of every layer", of)
            : show_printf("each rank has 1/%d of the tokens, and in the attention %s", group, of);
    log_info("%d ranks = %d data x %d %s: %s, and %s", data * group, data, group,
             has_tensor(c) ? "tensor" : "sequence",
             data == 1 ? "they train on all users of a step together"
                       : "the groups divide the users of a step",
             share);
}

/* Nothing is rounded where no rows travel. */
static void tell_wire(const config *c, const session *s) {
    const dynamic_tables *t = model_tables(s->model);
    if (c->trainer.wire == WIRE_BFLOAT16 && (t->comm == NULL || !t->has_bf16_wire))
        log_info("note: --wire bfloat16 has no effect: it is for tables that several ranks of the "
                 "CPU hold together (--ranks G --device cpu)");
}

/* The session of these ranks; says how they divide the work. */
static status train_open_session(session *s, const config *c, work *w, const rank_grid *grid,
                                 bool has_fixed_leaves) {
    session_ranks ranks = {.data = w->comm};
    if (grid->group != NULL)
        ranks = (session_ranks){.data = grid->data,
                                .tensor = has_tensor(c) ? grid->group : NULL,
                                .sequence = has_tensor(c) ? NULL : grid->group,
                                .world = w->comm};
    ranks.has_bf16_wire = c->trainer.wire == WIRE_BFLOAT16;
    ranks.sums_whole = has_fixed_leaves;
    TRY(session_open_ranks(s, c, work_data(w), w->be, &ranks));
    tell_groups(grid, c);
    tell_wire(c, s);
    return OK;
}

static const char *const item_starts[] = {"init", "mean", NULL};
static const char *const wires[] = {"float32", "bfloat16", NULL};
static const char *const batch_pers[] = {"rank", "step", NULL};

typedef struct train_args {
    const char *file, *task, *data, *device, *init_from, *epochs_of, *target_actions;
    char data_room[RUN_DATA_BYTES];
    bool is_deterministic;
    const char *nccl;
    int new_items, wire, batch_per; /* of item_starts, wires, batch_pers; -1: not given */
    arg_list overrides;
    int64_t seed, epochs; /* -1: the config's */
    bool is_print, is_json;
    int64_t n_ranks, sequence; /* 0: not given */
    transport *ranks;          /* this process is one of them; or NULL */
    split_args split;
    train_options options;
} train_args;

static status print_buf(const buf *text) {
    if (fwrite(buf_str(text), 1, text->n_bytes, stdout) != text->n_bytes || fflush(stdout) != 0)
        return fail_errno("standard output");
    return OK;
}

/* --help-config, or --help-config=markdown: an option with an optional value, which args_parse does
 * not support, so it is handled first. */
static bool find_help_config(int argc, char **argv, const char **format) {
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        if (strncmp(argv[i], "--help-config", 13) != 0) continue;
        if (argv[i][13] == '\0' || argv[i][13] == '=') {
            *format = argv[i][13] == '=' ? argv[i] + 14 : "text";
            return true;
        }
    }
    return false;
}

static status print_help_config(const char *format) {
    buf text = {0};
    bool is_markdown = strcmp(format, "markdown") == 0;
    if (!is_markdown && strcmp(format, "text") != 0)
        return fail(ERR_USAGE, "--help-config=%s: the formats are text and markdown", format);
    status st = options_write_help(&text, is_markdown);
    if (st == OK) st = print_buf(&text);
    buf_fini(&text);
    return st;
}

static status print_config(const config *c, bool is_json) {
    buf text = {0};
    status st = config_write_json(c, &text, is_json ? 0 : 2);
    if (st == OK) st = buf_char(&text, '\n');
    if (st == OK) st = print_buf(&text);
    buf_fini(&text);
    return st;
}

/* The config of the run or checkpoint that a new run starts from. */
static status load_other_config(config **out, const char *path) {
    char folder[CHECKPOINT_PATH_BYTES];
    TRY(checkpoint_find(path, folder));
    return checkpoint_config(out, folder);
}

/* The file's config; a run that is resumed, or started from, brings its own along. */
static status load_config(config **out, const train_args *args) {
    char path[CONFIG_PATH_BYTES];
    config_source source = {.path = path,
                            .overrides = args->overrides.item,
                            .n_overrides = args->overrides.n_items,
                            .task = args->task};
    *out = NULL;
    if (args->file != NULL) {
        config_path_find(args->file, path);
        return config_load(out, &source);
    }
    bool has_own = args->options.is_resume && args->options.run != NULL;
    if (!has_own && args->init_from == NULL) {
        own_config own;
        if (args->data == NULL)
            return fail(ERR_USAGE,
                        "the config is missing: hstu train FILE.gin (configs/ has examples), or "
                        "--data DIR alone, which chooses one of configs/own");
        TRY(own_config_choose(&own, args->data, args->task, args->device, &args->overrides));
        source.path = own.text == NULL ? own.path : NULL;
        source.text = own.text;
        source.text_bytes = own.text != NULL ? strlen(own.text) : 0;
        source.text_name = own.path;
        source.overrides = own.overrides.item;
        source.n_overrides = own.overrides.n_items;
        return config_load(out, &source);
    }
    if (args->overrides.n_items > 0)
        return fail(ERR_USAGE, "--set changes a config file; also give FILE.gin");
    return has_own ? checkpoint_run_config(out, args->options.run)
                   : load_other_config(out, args->init_from);
}

/* An epoch of generated data is a few batches: an evaluation and a checkpoint after each would
 * outweigh it. */
static status open_generated(work *w, const config *c, train_options *o) {
    const int64_t never = (int64_t)1 << 40;
    if (o->save_every == 1) o->save_every = never;
    if (o->eval_every == 1) o->eval_every = never;
    return generated_open(&w->data, c, w->workers);
}

/* What is held out: as given, or as the run that is resumed remembers it. */
static status choose_split(train_args *args) {
    train_options *o = &args->options;
    bool is_given = split_args_given(&args->split);
    if (is_given) {
        TRY(split_args_read(&args->split, &o->split));
    } else {
        o->has_validation = args->split.has_validation;
        if (!o->is_resume || o->has_validation || !folder_exists(o->run)) return OK;
        TRY(checkpoint_run_split(&o->split, o->run));
    }
    o->has_split = true;
    return OK;
}

static status join_test(train_args *args, const config *c, work *w) {
    split_record *chosen = &args->options.split, before;
    if (!args->options.has_split || chosen->rule.kind != SPLIT_TEST_FILE) return OK;
    if (args->data == NULL) return fail(ERR_USAGE, "--test-file also needs --data DIR");
    TRY(work_join_test(w, chosen->test_file, c->task == TASK_RETRIEVAL));
    chosen->test_data = batcher_fingerprint(w->test);
    if (!args->options.is_resume) return OK;
    TRY(checkpoint_run_split(&before, args->options.run));
    if (before.rule.kind == SPLIT_TEST_FILE && before.test_data != chosen->test_data)
        return fail(ERR_CONFIG, "%s: not the test file that the run was started with (%s)",
                    chosen->test_file, before.test_file);
    return OK;
}

enum { MOST_USERS = 1 << 20 }; /* of a step */

/* Users of a step: the config's batch is that of a rank, in Meta's and in NVIDIA's project; a run
 * that is resumed keeps its own. */
static status choose_batch(const train_args *args, config *c) {
    const train_options *o = &args->options;
    config_trainer *t = &c->trainer;
    int64_t n_ranks = args->ranks != NULL ? args->ranks->size : 1;
    bool has_own = o->is_resume && args->batch_per < 0; /* a config of the run has it already */
    if (!has_own || args->file != NULL) {
        int64_t n_groups = n_ranks / train_group_size(c); /* 0 is refused later */
        t->batch_ranks = args->batch_per == 1 || n_groups < 1 ? 1 : n_groups;
    }
    if (has_own && args->file != NULL) run_config_keep_batch(c, o->run);
    if (o->is_resume && args->batch_per >= 0) {
        int64_t wanted = t->batch_ranks;
        run_config_keep_batch(c, o->run);
        if (t->batch_ranks != wanted)
            return fail(ERR_USAGE,
                        "--batch-per: the run has steps of %lld x %lld users and keeps them; leave "
                        "the option out",
                        (long long)t->batch_ranks, (long long)t->train_batch_size);
    }
    if (t->train_batch_size * t->batch_ranks > MOST_USERS)
        return fail(ERR_CONFIG,
                    "%s: steps of %lld ranks x %lld users, and at most %d are possible; make the "
                    "batch smaller, or choose --batch-per step",
                    c->file, (long long)t->batch_ranks, (long long)t->train_batch_size, MOST_USERS);
    long long n_users = t->train_batch_size * t->batch_ranks;
    if (t->batch_ranks > 1)
        log_info("batch: %lld users per step, %lld %s x %lld", n_users, (long long)t->batch_ranks,
                 train_group_size(c) > 1 ? "groups" : "ranks", (long long)t->train_batch_size);
    else if (n_ranks > 1)
        log_info("batch: %lld users per step, divided among the ranks", n_users);
    return OK;
}

/* Smaller sums of gradients would cost more time to start than they take. */
enum { EARLY_BYTES = 4 << 20 };

static status train(train_args *args, config *c) {
    work w;
    session s = {0};
    rank_grid grid = {0};
    work_options how = {
        .is_deterministic = args->is_deterministic, .ranks = args->ranks, .nccl = args->nccl};
    train_printer p = {
        .is_json = args->is_json, .session = &s, .run = args->options.run, .data = args->data};
    if (!args->options.has_split || args->options.split.rule.kind != SPLIT_NONE)
        TRY(train_printer_columns(&p, c));
    TRY(work_open_as(&w, args->data, args->device, &how));
    status st = choose_batch(args, c);
    if (st == OK && args->data == NULL) st = open_generated(&w, c, &args->options);
    if (st == OK) st = join_test(args, c, &w);
    if (st == OK) st = train_open_groups(&grid, args->ranks, c, &w);
    /* Leaves cost a GPU much, so they are for those who ask for ranks, be it for one. */
    bool has_fixed_leaves = st == OK && args->is_deterministic && !w.be->is_host &&
                            (args->ranks != NULL || args->n_ranks > 0);
    if (st == OK) st = train_open_session(&s, c, &w, &grid, has_fixed_leaves);
    if (st == OK) st = train_ranks_agree(args->ranks, &args->options, c, &s);
    if (st == OK) own_config_tell_unused(c, s.data);
    if (st == OK) {
        args->options.observer = train_printer_observe;
        args->options.ctx = &p;
        s.has_fixed_leaves = has_fixed_leaves;
        s.shares_grads = !args->is_deterministic && !w.be->is_host;
        /* NCCL has a stream to itself; sums through memory of the host would stop the pass. */
        if (comm_is_nccl(s.comm) && session_group(&s) == NULL && env_sums_early())
            s.early_bytes = EARLY_BYTES;
        args->options.stop = &stop_signal;
        if (args->ranks != NULL && args->ranks->stop != NULL)
            args->options.stop = args->ranks->stop;
        else
            stop_signal_watch();
        st = trainer_run(&s, &args->options);
    }
    if (st != OK) { /* perhaps of this rank alone */
        comm_give_up(w.comm);
        rank_grid_give_up(&grid);
    }
    session_close(&s);
    rank_grid_destroy(&grid);
    work_close(&w);
    return st;
}

/* TrainerArgs.profile: steps of the training in RUN/profile, unless `hstu profile` records them. */
static status train_profiled(train_args *args, config *c) {
    const config_trainer *o = &c->trainer;
    char folder[SHOW_PATH_BYTES];
    profile p;
    if (!o->has_profile || profiler_is_running()) return train(args, c);
    profiler_options how = {
        .schedule = {o->profile_first, 0, o->profile_last - o->profile_first, 1},
        .has_host = true,
        .has_gpu = true};
    if (how.schedule.active < 1)
        return fail(ERR_CONFIG, "TrainerArgs.profile_step_end must be above profile_step_start");
    TRY(path_join(folder, sizeof folder, args->options.run, "profile"));
    status st = profiler_start(&p, &how);
    if (st == OK) {
        st = train(args, c);
        status stopped = profiler_stop(&p);
        if (st == OK) st = stopped;
        if (st == OK)
            st = profile_show(&p, &(profile_view){.out = folder, .format = PROFILE_SILENT});
    }
    profile_fini(&p);
    return st;
}

/* Trains on the ranks there are; where they are processes of this one, it watches them. */
static status train_on_ranks(train_args *args, config *c) {
    bool is_over;
    if (args->n_ranks > 1 && profiler_is_running())
        return fail(ERR_USAGE, "hstu profile records one process; leave --ranks out, or set "
                               "TrainerArgs.profile, which records rank 0");
    status st = ranks_start(&args->ranks, (int)args->n_ranks, &is_over);
    if (!is_over) {
        bool is_first = args->ranks == NULL || args->ranks->rank == 0;
        if (st == OK) st = is_first ? train_profiled(args, c) : train(args, c);
        return ranks_leave(args->ranks, st);
    }
    if (st == OK || status_reason()[0] == '\0') return st;
    failure f;
    failure_save(&f, st);
    return fail(st, "%s; resume from the last checkpoint with --resume --out %s", f.reason,
                args->options.run);
}

/* --epochs-of: the length up to the best evaluation of a run, or its whole length without one. */
static status take_epochs(train_args *args) {
    train_options *o = &args->options;
    run_history h;
    if (args->epochs_of == NULL) return OK;
    if (args->epochs >= 0 || o->max_steps > 0)
        return fail(ERR_USAGE, "--epochs-of says how long to train: leave --epochs and --max-iters "
                               "out");
    status st = run_history_read(&h, args->epochs_of);
    if (st != OK) st = fail_prefix(st, "--epochs-of");
    if (st == OK && h.n == 0)
        st = fail(ERR_USAGE, "%s: has no epoch or evaluation yet", args->epochs_of);
    if (st == OK) {
        size_t at = h.n - 1;
        for (size_t i = 0; i < h.n; i++)
            if (h.step[i] == h.best_step) at = i;
        if (h.is_by_step)
            o->max_steps = (int64_t)h.step[at];
        else
            o->n_epochs = (int64_t)h.epoch[at];
        log_info("as long as %s up to %s: %.0f %s", args->epochs_of,
                 isfinite(h.best_step) ? "its best evaluation" : "its end",
                 h.is_by_step ? h.step[at] : h.epoch[at], h.is_by_step ? "steps" : "epochs");
    }
    run_history_fini(&h);
    return st;
}

/* The length of a run with another config may not fit: says so.  Lengths and seeds may differ. */
static status warn_other_config(const char *run, const config *c) {
    run_config theirs, ours = {0};
    buf text = {0};
    status st = run_config_read(&theirs, run);
    if (st == OK) st = config_write_json(c, &text, 0);
    if (st == OK) st = run_config_parse(&ours, "config.json", buf_str(&text), text.n_bytes);
    for (size_t i = 0; st == OK && i < ours.n; i++) {
        const run_option *o = &ours.option[i];
        const char *old = run_config_value(&theirs, o->key);
        if (old != NULL && strcmp(old, o->value) != 0 && strncmp(o->key, "source.", 7) != 0 &&
            strstr(o->key, "num_epochs") == NULL && strstr(o->key, "max_train_iters") == NULL &&
            strstr(o->key, "seed") == NULL)
            log_warn("--epochs-of: %s has another config, whose length may not fit: %s is %.60s "
                     "there and %.60s here",
                     run, o->key, old, o->value);
    }
    run_config_fini(&theirs);
    run_config_fini(&ours);
    buf_fini(&text);
    return st;
}

static bool has_start(const config *c) {
    return c->trainer.resume_folder != NULL && c->trainer.resume_folder[0] != '\0';
}

static status check_args(train_args *args, const config *c) {
    const train_options *o = &args->options;
    if (o->run == NULL)
        return fail(ERR_USAGE, "--out RUN is missing: the folder for log, report and checkpoints");
    if (o->is_resume && !c->is_benchmark)
        TRY(run_config_find_data(o->run, "hstu train --resume --out RUN --data DIR",
                                 args->data_room, &args->data));
    if (args->data == NULL && !c->is_benchmark)
        return fail(ERR_USAGE,
                    "--data DIR is missing; create one with 'hstu prep' or 'hstu synth'");
    if (args->init_from != NULL && o->is_resume)
        return fail(ERR_USAGE,
                    "--resume continues a run and --init-from starts a new one; choose one");
    if (args->new_items >= 0 && !has_start(c))
        return fail(ERR_USAGE, "--new-items is for runs that start from another: --init-from RUN");
    if (o->has_no_steps && (!has_start(c) || o->is_resume))
        return fail(ERR_USAGE, "--epochs 0 takes over another run's weights; give --init-from RUN");
    if (args->epochs >= 0 && o->max_steps > 0)
        return fail(ERR_USAGE, "--epochs and --max-iters exclude each other");
    return OK;
}

/* What the command line leaves out, the config may say. */
static void take_folders(train_args *args, const config *c) {
    if (args->data == NULL && !c->is_benchmark) args->data = c->data.dataset_path;
    if (args->options.run == NULL) args->options.run = c->trainer.checkpoint_folder;
}

/* A config that comes from a run names what that run started from; this one starts from the run. */
static void set_start(const train_args *args, config *c) {
    if (args->init_from != NULL) {
        c->trainer.resume_folder = args->init_from;
        c->trainer.has_mean_items = false;
    }
    if (args->new_items >= 0) c->trainer.has_mean_items = args->new_items == 1;
}

static status run(train_args *args) {
    config *c;
    args->options.has_no_steps = args->epochs == 0;
    if (args->epochs > 0) args->options.n_epochs = args->epochs;
    TRY(take_epochs(args));
    TRY(load_config(&c, args));
    status st = args->epochs_of != NULL ? warn_other_config(args->epochs_of, c) : OK;
    take_folders(args, c);
    /* What the command line says belongs to the effective config, so that the run's record is true,
     * and a resumed run without these options ends at the same step. */
    if (args->seed >= 0) c->trainer.seed = args->seed;
    if (args->options.n_epochs > 0) {
        c->trainer.n_epochs = args->options.n_epochs;
        c->trainer.max_train_iters = CONFIG_NONE;
    }
    if (args->options.max_steps > 0) c->trainer.max_train_iters = args->options.max_steps;
    if (args->target_actions != NULL) c->network.target_actions = args->target_actions;
    if (args->sequence > 0) c->trainer.sequence_parallel = args->sequence;
    if (args->wire >= 0) c->trainer.wire = args->wire == 1 ? WIRE_BFLOAT16 : WIRE_FLOAT32;
    set_start(args, c);
    if (st == OK) st = args->is_print ? print_config(c, args->is_json) : config_check_trainable(c);
    if (st == OK && !args->is_print) st = check_args(args, c);
    if (st == OK && !args->is_print) st = choose_split(args);
    if (st == OK && !args->is_print) st = train_on_ranks(args, c);
    config_destroy(c);
    return st;
}

status cmd_train(int argc, char **argv) {
    train_args args = {.device = "auto",
                       .seed = -1,
                       .epochs = -1,
                       .new_items = -1,
                       .wire = -1,
                       .batch_per = -1,
                       .options = train_options_default()};
    train_options *o = &args.options;
    const char *format, *file;
    int n_files;
    const arg_option options[] = {
        OPT_GROUP("Config"),
        OPT_TEXT("--gin-config-file", &args.file, "FILE",
                 "Config: a gin file in Meta's or NVIDIA's style; configs/ has examples. Same as "
                 "the argument FILE.gin."),
        OPT_TEXT("--gin_config_file", &args.file, "FILE",
                 "Same as --gin-config-file (Meta's spelling)."),
        OPT_LIST("--set", &args.overrides, "Class.field=value",
                 "Override one binding of the config file; may be repeated."),
        OPT_TEXT("--task", &args.task, "TASK",
                 "ranking or retrieval, if the config does not say or is not given."),
        OPT_FLAG("--print-config", &args.is_print,
                 "Print the effective config, including defaults, as JSON and exit."),
        OPT_GROUP("Run"),
        OPT_TEXT("--data", &args.data, "DIR",
                 "Prepared data ('hstu prep', 'hstu synth'), whatever data set the config names. "
                 "Without it, data is generated if the config binds BenchmarkDatasetArgs."),
        OPT_TEXT("--out", &o->run, "RUN",
                 "Folder of the run: log.jsonl, report.html, config.json, checkpoints."),
        OPT_INT("--epochs", &args.epochs, "N", 0, 1 << 20,
                "Number of epochs, instead of the config's; with --init-from, 0 takes the weights "
                "over to other data without training."),
        OPT_INT("--max-iters", &o->max_steps, "N", 1, (int64_t)1 << 40,
                "Number of training steps, instead of epochs."),
        OPT_TEXT("--epochs-of", &args.epochs_of, "RUN",
                 "As many epochs, or steps, as another run needed for its best evaluation on "
                 "validation: with --split none, how long to train on everything."),
        OPT_TEXT("--target-action", &args.target_actions, "ACTION,...",
                 "Retrieval: learn to predict, and evaluate on, events of these actions only, by "
                 "name or code; the history keeps all events, and their items stay in the ranking. "
                 "Same as train_fn.target_actions."),
        OPT_FLAG("--resume", &o->is_resume,
                 "Resume from RUN's last checkpoint. The config file is optional; pass the same "
                 "--device and --deterministic."),
        OPT_TEXT("--init-from", &args.init_from, "RUN|CHECKPOINT",
                 "Start a new run from the weights of another one, on other data. Table rows and "
                 "their optimizer state are kept by id; new ids get new rows. The config file is "
                 "optional: the other run's is used. Same as TrainerArgs.ckpt_load_dir."),
        OPT_CHOICE(
            "--new-items", &args.new_items, "init|mean", item_starts,
            "With --init-from, how rows of new items start: as the config says (init, default), or "
            "as the mean of the rows of neighbouring items in the training events (mean)."),
        OPT_GROUP("Held-out data"),
        OPT_TEXT("--split", &args.split.split, "SPLIT",
                 "leave-one-out (test on each user's last event; Meta's configs), leave-two-out "
                 "(validate on the event before it), by-user (30 % of the users; NVIDIA's "
                 "configs), time, or none (train on all events, for a model that goes into "
                 "service). The run remembers its split; see docs/evaluation.md."),
        OPT_TEXT("--time-cut", &args.split.time_cut, "T", SPLIT_TIME_HELP),
        OPT_TEXT("--test-file", &args.split.test_file, "DIR", SPLIT_FILE_HELP),
        OPT_FLAG("--validate", &args.split.has_validation,
                 "Also hold out validation events, and keep the best checkpoint on them "
                 "(RUN/best). Without --split this means leave-two-out."),
        OPT_INT("--eval-users", &o->eval_users, "N", 1, INT32_MAX,
                EVAL_USERS_HELP " A resumed run keeps its own."),
        OPT_INT("--patience", &o->patience, "P", 1, 1 << 20,
                "With --validate: stop after P evaluations without improvement on validation; "
                "--resume continues the count."),
        OPT_GROUP("Output and device"),
        OPT_INT("--save-every", &o->save_every, "N", 1, 1 << 20,
                "Epochs between checkpoints (default 1)."),
        OPT_INT(
            "--eval-every", &o->eval_every, "N", 1, 1 << 20,
            "Epochs between evaluations (default 1); each of the last ten epochs is evaluated."),
        OPT_INT("--keep", &o->keep, "K", 1, 1 << 20,
                "Number of newest checkpoints to keep (default 2)."),
        OPT_INT("--snapshot-every", &o->snapshot_every, "N", 1, (int64_t)1 << 40,
                "Steps between snapshots of dynamic tables in RUN/snapshots: a full one, then "
                "increments; 'hstu import tables' merges them."),
        OPT_TEXT("--tensorboard", &o->track.tensorboard, "DIR",
                 "Also write TensorBoard event files, with the tags of Meta's code."),
        OPT_TEXT("--csv-log", &o->track.csv, "FILE",
                 "Also write the log as CSV, a row per epoch or evaluation."),
        OPT_INT("--seed", &args.seed, "N", 0, UINT32_MAX,
                "Seed of everything random, instead of the config's."),
        OPT_TEXT("--device", &args.device, "DEVICE", WORK_DEVICES),
        OPT_INT("--ranks", &args.n_ranks, "G", 1, 64,
                "Number of processes that train together (default 1; mpirun starts its own). They "
                "share the cores and the GPUs, and each has a batch of its own (--batch-per). On "
                "the CPU the result depends on the users of a step, not on the number of ranks; "
                "see docs/distributed.md."),
        OPT_CHOICE("--batch-per", &args.batch_per, "rank|step", batch_pers,
                   "Whose batch the config's train_batch_size or local_batch_size is: each rank's, "
                   "as in NVIDIA's and Meta's projects (default), or that of a step, which the "
                   "ranks divide. A resumed run keeps its own."),
        OPT_INT("--sequence-parallel", &args.sequence, "S", 1, 1024,
                "Ranks that share the tokens of a batch, for very long histories: each computes "
                "1/S of the rows of every layer and 1/S of the heads (default: the config's "
                "sequence_parallel_size, or 1)."),
        OPT_TEXT("--nccl", &args.nccl, "PATH", WORK_NCCL),
        OPT_CHOICE("--wire", &args.wire, "TYPE", wires,
                   "Type in which rows of dynamic tables and their gradients travel between CPU "
                   "ranks: float32 (default, exact) or bfloat16 (half the bytes; the result then "
                   "depends on the number of ranks)."),
        OPT_FLAG(
            "--deterministic", &args.is_deterministic,
            "On a GPU: give the same bits in every run, including resumed ones; with --ranks, the "
            "same for 1, 2, 4 and 8 ranks, which is slower. The CPU is always deterministic."),
        OPT_FLAG("--json", &args.is_json,
                 "Print one JSON object per line on stdout: start, epoch, eval, done."),
        {0},
    };
    const arg_spec spec = {
        .usage = "hstu train [FILE.gin] --data DIR --out RUN [options]",
        .summary = "Train a ranking or retrieval model from a gin config. Without FILE.gin, the "
                   "data and the device decide which file of configs/own is used.",
        .options = options,
        .max_positional = 1,
        .notes = "SIGINT (Ctrl-C) and SIGTERM save a checkpoint and exit with code 1; --resume "
                 "continues as if nothing had happened: bit-exactly on the CPU, and on a GPU if "
                 "the whole run uses --deterministic.\n\n--help-config lists every option that a "
                 "config may bind (--help-config=markdown: as docs/config.md).\n",
    };
    if (find_help_config(argc, argv, &format)) return print_help_config(format);
    ARGS_PARSE(&spec, &file, &n_files);
    if (n_files > 0 && args.file != NULL)
        return fail(ERR_USAGE, "the config is given twice: %s and --gin-config-file %s", file,
                    args.file);
    if (n_files > 0) args.file = file;
    return run(&args);
}
