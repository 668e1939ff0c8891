/* hstu train: reads a config, shows it or trains from it. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/env.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"
#include "cli/cli.h"
#include "cli/config_path.h"
#include "cli/machine/profile_view.h"
#include "cli/model/split_args.h"
#include "cli/model/train_print.h"
#include "cli/model/train_ranks.h"
#include "cli/show.h"
#include "cli/stop_signal.h"
#include "cli/work.h"
#include "config/config.h"
#include "config/options.h"
#include "dist/nccl.h"
#include "dist/ranks.h"
#include "dist/transport.h"
#include "model/checkpoint_load.h"
#include "profile/profiler.h"
#include "train/loop/generated.h"
#include "train/loop/trainer.h"

typedef struct train_args {
    const char *file, *task, *data, *device, *init_from, *new_items;
    bool is_deterministic;
    const char *nccl, *wire;
    arg_list overrides;
    int64_t seed; /* -1: the config's */
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
    buf text;
    bool is_markdown = strcmp(format, "markdown") == 0;
    if (!is_markdown && strcmp(format, "text") != 0)
        return fail(ERR_USAGE, "--help-config=%s: the formats are text and markdown", format);
    buf_init(&text);
    status st = options_write_help(&text, is_markdown);
    if (st == OK) st = print_buf(&text);
    buf_fini(&text);
    return st;
}

static status print_config(const config *c, bool is_json) {
    buf text;
    buf_init(&text);
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
    if (!has_own && args->init_from == NULL)
        return fail(ERR_USAGE,
                    "--gin-config-file FILE is needed; configs/ has files to start from");
    if (args->overrides.n_items > 0)
        return fail(ERR_USAGE, "--set changes a config file; give --gin-config-file FILE, too");
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
    if (args->data == NULL) return fail(ERR_USAGE, "--test-file needs --data DIR, too");
    TRY(work_join_test(w, chosen->test_file, c->task == TASK_RETRIEVAL));
    chosen->test_data = batcher_fingerprint(w->test);
    if (!args->options.is_resume) return OK;
    TRY(checkpoint_run_split(&before, args->options.run));
    if (before.rule.kind == SPLIT_TEST_FILE && before.test_data != chosen->test_data)
        return fail(ERR_CONFIG, "%s: not the test file that the run was started with (%s)",
                    chosen->test_file, before.test_file);
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
    TRY(train_printer_columns(&p, c));
    TRY(work_open_as(&w, args->data, args->device, &how));
    status st = args->data == NULL ? open_generated(&w, c, &args->options) : OK;
    if (st == OK) st = join_test(args, c, &w);
    if (st == OK) st = train_open_groups(&grid, args->ranks, c, &w);
    if (st == OK) st = train_open_session(&s, c, &w, &grid);
    if (st == OK) st = train_ranks_agree(args->ranks, &args->options, c, &s);
    if (st == OK) {
        args->options.observer = train_printer_observe;
        args->options.ctx = &p;
        /* Leaves cost a GPU much, so they are for those who ask for ranks, be it for one. */
        s.has_fixed_leaves =
            args->is_deterministic && !w.be->is_host && (args->ranks != NULL || args->n_ranks > 0);
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
    if (snprintf(folder, sizeof folder, "%s/profile", args->options.run) >= (int)sizeof folder)
        return fail(ERR_USAGE, "--out: the path is too long");
    status st = profiler_start(&p, &how);
    if (st == OK) {
        st = train(args, c);
        status stopped = profiler_stop(&p);
        if (st == OK) st = stopped;
        if (st == OK) st = profile_show(&p, &(profile_view){.out = folder});
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
    return fail(st, "%s; go on from the last checkpoint with --resume --out %s", f.reason,
                args->options.run);
}

static bool has_start(const config *c) {
    return c->trainer.resume_folder != NULL && c->trainer.resume_folder[0] != '\0';
}

static status check_args(const train_args *args, const config *c) {
    const train_options *o = &args->options;
    if (args->data == NULL && !c->is_benchmark)
        return fail(ERR_USAGE, "--data DIR is needed; make one with 'hstu prep' or 'hstu synth'");
    if (o->run == NULL)
        return fail(ERR_USAGE, "--out RUN is needed: the folder for log, report and checkpoints");
    if (args->init_from != NULL && o->is_resume)
        return fail(ERR_USAGE, "--resume goes on with a run and --init-from starts a new one; give "
                               "one of them");
    if (args->new_items != NULL && strcmp(args->new_items, "init") != 0 &&
        strcmp(args->new_items, "mean") != 0)
        return fail(ERR_USAGE, "--new-items %.40s: the choices are init and mean", args->new_items);
    if (args->new_items != NULL && !has_start(c))
        return fail(ERR_USAGE, "--new-items is for runs that start from another: --init-from RUN");
    if (args->wire != NULL && strcmp(args->wire, "float32") != 0 &&
        strcmp(args->wire, "bfloat16") != 0)
        return fail(ERR_USAGE, "--wire %.40s: the choices are float32 and bfloat16", args->wire);
    if (o->n_epochs > 0 && o->max_steps > 0)
        return fail(ERR_USAGE, "--epochs and --max-iters both say how long; give one of them");
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
    if (args->new_items != NULL) c->trainer.has_mean_items = strcmp(args->new_items, "mean") == 0;
}

static status run(train_args *args) {
    config *c;
    TRY(load_config(&c, args));
    take_folders(args, c);
    /* What the command line says belongs to the effective config, so that the run's record is true,
     * and a resumed run without these options ends at the same step. */
    if (args->seed >= 0) c->trainer.seed = args->seed;
    if (args->options.n_epochs > 0) {
        c->trainer.n_epochs = args->options.n_epochs;
        c->trainer.max_train_iters = CONFIG_NONE;
    }
    if (args->options.max_steps > 0) c->trainer.max_train_iters = args->options.max_steps;
    if (args->sequence > 0) c->trainer.sequence_parallel = args->sequence;
    if (args->wire != NULL)
        c->trainer.wire = strcmp(args->wire, "bfloat16") == 0 ? WIRE_BFLOAT16 : WIRE_FLOAT32;
    set_start(args, c);
    status st = args->is_print ? print_config(c, args->is_json) : config_check_trainable(c);
    if (st == OK && !args->is_print) st = check_args(args, c);
    if (st == OK && !args->is_print) st = choose_split(args);
    if (st == OK && !args->is_print) st = train_on_ranks(args, c);
    config_destroy(c);
    return st;
}

status cmd_train(int argc, char **argv) {
    train_args args = {.device = "auto", .seed = -1, .options = train_options_default()};
    train_options *o = &args.options;
    int64_t keep = o->keep;
    const char *format;
    const arg_option options[] = {
        {"Config", ARG_FLAG, NULL, NULL, NULL, 0, 0},
        {"--gin-config-file", ARG_TEXT, &args.file, "FILE",
         "The config: a gin file of Meta's or NVIDIA's kind, such as those in configs/.", 0, 0},
        {"--gin_config_file", ARG_TEXT, &args.file, "FILE", "The same, as Meta spells it.", 0, 0},
        {"--set", ARG_LIST, &args.overrides, "Class.field=value",
         "Overrides one binding of the file; may be given several times.", 0, 0},
        {"--task", ARG_TEXT, &args.task, "TASK",
         "ranking or retrieval, where the config leaves it open.", 0, 0},
        {"--print-config", ARG_FLAG, &args.is_print, NULL,
         "Prints the effective config, defaults included, as JSON, and ends.", 0, 0},
        {"Run", ARG_FLAG, NULL, NULL, NULL, 0, 0},
        {"--data", ARG_TEXT, &args.data, "DIR",
         "Prepared data ('hstu prep', 'hstu synth'), whatever data set the config names; generated "
         "where it is left out and the config binds BenchmarkDatasetArgs.",
         0, 0},
        {"--out", ARG_TEXT, &o->run, "RUN",
         "Folder of the run: log.jsonl, report.html, config.json, checkpoints.", 0, 0},
        {"--epochs", ARG_INT, &o->n_epochs, "N", "Passes over the users, instead of the config's.",
         1, 1 << 20},
        {"--max-iters", ARG_INT, &o->max_steps, "N", "Steps of training, instead of epochs.", 1,
         (int64_t)1 << 40},
        {"--resume", ARG_FLAG, &o->is_resume, NULL,
         "Goes on from the last checkpoint of RUN; the config file may be left out, --device and "
         "--deterministic may not.",
         0, 0},
        {"--init-from", ARG_TEXT, &args.init_from, "RUN|CHECKPOINT",
         "Starts a new run with the weights of another, on other data: rows of tables are kept by "
         "id, with the optimizer's state, and new ids get new rows. The config file may be left "
         "out: the other run's is used. TrainerArgs.ckpt_load_dir does the same.",
         0, 0},
        {"--new-items", ARG_TEXT, &args.new_items, "init|mean",
         "With --init-from, how rows of new items start: as the config says (default), or as the "
         "mean of the rows of the items next to them in the training events.",
         0, 0},
        {"What is held out", ARG_FLAG, NULL, NULL, NULL, 0, 0},
        {"--split", ARG_TEXT, &args.split.split, "SPLIT",
         "leave-one-out (each user's last event is the test; Meta's files), leave-two-out (the "
         "event before it is the validation), by-user (30 % of the users; NVIDIA's files) or time. "
         "The run remembers it; docs/evaluation.md has the details.",
         0, 0},
        {"--time-cut", ARG_TEXT, &args.split.time_cut, "T", SPLIT_TIME_HELP, 0, 0},
        {"--test-file", ARG_TEXT, &args.split.test_file, "DIR", SPLIT_FILE_HELP, 0, 0},
        {"--validate", ARG_FLAG, &args.split.has_validation, NULL,
         "Holds out validation events, too, to watch and to keep the best checkpoint (RUN/best); "
         "the test events are for the end.  Without --split: leave-two-out.",
         0, 0},
        {"--patience", ARG_INT, &o->patience, "P",
         "With --validate: ends the run after P evaluations without a better one on validation; "
         "--resume counts on.",
         1, 1 << 20},
        {"Output and device", ARG_FLAG, NULL, NULL, NULL, 0, 0},
        {"--save-every", ARG_INT, &o->save_every, "N", "Epochs between checkpoints (default 1).", 1,
         1 << 20},
        {"--eval-every", ARG_INT, &o->eval_every, "N",
         "Epochs between evaluations (default 1); the last ten epochs always have one.", 1,
         1 << 20},
        {"--keep", ARG_INT, &keep, "K", "Newest checkpoints that are kept (default 2).", 1,
         1 << 20},
        {"--snapshot-every", ARG_INT, &o->snapshot_every, "N",
         "Steps between snapshots of dynamic tables in RUN/snapshots: a full one, then what "
         "changed; 'hstu import tables' puts them together.",
         1, (int64_t)1 << 40},
        {"--tensorboard", ARG_TEXT, &o->track.tensorboard, "DIR",
         "Writes the numbers of the log as event files for TensorBoard, under the tags of Meta's "
         "code.",
         0, 0},
        {"--mlflow", ARG_TEXT, &o->track.mlflow, "DIR",
         "Writes them to MLflow's file store, too: 'mlflow ui --backend-store-uri DIR'.", 0, 0},
        {"--csv-log", ARG_TEXT, &o->track.csv, "FILE",
         "Keeps the log as a table, too: a row for each epoch or evaluation.", 0, 0},
        {"--seed", ARG_INT, &args.seed, "N", "Seed of everything random, instead of the config's.",
         0, UINT32_MAX},
        {"--device", ARG_TEXT, &args.device, "DEVICE", WORK_DEVICES, 0, 0},
        {"--ranks", ARG_INT, &args.n_ranks, "G",
         "Processes of this machine that train together (default 1; mpirun starts its own): the "
         "users of a step are "
         "divided among them, and so are cores and GPUs. On the CPU any number gives the same "
         "bits; docs/distributed.md.",
         1, 64},
        {"--sequence-parallel", ARG_INT, &args.sequence, "S",
         "Ranks that share the tokens of a batch, for very long histories: each has 1/S of the "
         "rows of every layer, and in the attention 1/S of the heads (default: the config's "
         "sequence_parallel_size, or 1).",
         1, 1024},
        {"--nccl", ARG_TEXT, &args.nccl, "PATH", WORK_NCCL, 0, 0},
        {"--wire", ARG_TEXT, &args.wire, "TYPE",
         "How rows of dynamic tables and their gradients travel between ranks of the CPU: float32 "
         "(the default, exact) or bfloat16 (half the bytes; the result then depends on the number "
         "of ranks).",
         0, 0},
        {"--deterministic", ARG_FLAG, &args.is_deterministic, NULL,
         "On a GPU: the same bits in every run, resumed ones included; with --ranks 1, 2, 4 or 8 "
         "the same on each of these numbers, which is slower (the CPU always does all that).",
         0, 0},
        {"--json", ARG_FLAG, &args.is_json, NULL,
         "One JSON object a line on stdout: start, epoch, eval, done.", 0, 0},
        {0},
    };
    const arg_spec spec = {
        .usage = "hstu train --gin-config-file FILE --data DIR --out RUN [options]",
        .summary = "Trains a ranking or retrieval model from a gin config.",
        .options = options,
        .notes =
            "SIGINT (Ctrl-C) and SIGTERM save a checkpoint and leave with exit code 1; "
            "--resume goes on as if nothing had been: to the bit on the CPU, and on a GPU if the "
            "whole run has --deterministic; without it, up to the rounding of sums.\n\n"
            "--help-config lists every option a config may bind (--help-config=markdown: as "
            "docs/config.md).\n",
    };
    int n_positional;
    bool is_help;
    if (find_help_config(argc, argv, &format)) return print_help_config(format);
    status st = args_parse(&spec, argc, argv, NULL, &n_positional, &is_help);
    o->keep = (int)keep;
    if (st == OK && !is_help) st = run(&args);
    mem_free(args.overrides.item);
    return st;
}
