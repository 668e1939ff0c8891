/* hstu eval: how well a trained model predicts what its training held out. */
#include "cli/cli.h"
#include "cli/model/eval_groups.h"
#include "cli/model/eval_lists.h"
#include "cli/output.h"
#include "cli/work.h"
#include "config/metric_list.h"
#include "dist/ranks.h"
#include "model/trained.h"
#include "ops/comm.h"
#include "train/files/run_config.h"
#include "train/loop/baselines.h"
#include "train/loop/evaluate.h"

static const char *const parts[] = {"test", "validation", NULL};

typedef struct eval_args {
    const char *path, *checkpoint, *data, *device;
    const char *metrics, *lists, *out, *by, *per_user, *target_actions;
    int64_t window, eval_users;
    bool is_json, has_baselines, keeps_seen;
    bool is_data_found; /* that of the run */
    int part;           /* of parts */
    int64_t n_ranks;
    transport *ranks; /* this process is one of them; or NULL */
    split_args split_args;
    split_record split; /* what is evaluated */
} eval_args;

static split_part part_of(const eval_args *a) {
    return a->part == 1 ? PART_VALIDATION : PART_TEST;
}

/* Everything that is printed. */
typedef struct report {
    const eval_args *a;
    const trained *t;
    metric_list metrics;
    eval_result r;
    /* (N_BASELINES): what a recommender without a model reaches on the same users; or NULL. */
    position_counts *baselines;
    eval_groups *groups; /* --by, or NULL */
} report;

static protocol protocol_of(const report *o) {
    return (protocol){.session = &o->t->session,
                      .rule = o->a->split.rule,
                      .part = part_of(o->a),
                      .result = &o->r};
}

static void write_baselines(json_writer *w, const report *o) {
    json_key_object(w, "baselines");
    for (int i = 0; i < N_BASELINES; i++) {
        json_key_object(w, baseline_names[i]);
        for (int k = 0; k < o->metrics.n; k++) {
            char name[METRIC_NAME_BYTES];
            const metric *m = &o->metrics.item[k];
            double value = position_counts_metric(&o->baselines[i], m);
            if (!isnan(value)) json_key_double(w, metric_name(m, name), value);
        }
        json_object_close(w);
    }
    json_object_close(w);
}

static status print_json(const report *o) {
    json_writer *w = json_line_open();
    protocol p = protocol_of(o);
    JSON_FIELDS(w, FIELD("event", "eval"), FIELD("checkpoint", o->t->folder),
                FIELD("step", o->t->origin.step),
                FIELD("is_best", checkpoint_is_best(o->t->folder)));
    split_record_write(&o->a->split, w);
    json_key_string(w, "part", parts[o->a->part]);
    json_key_int(w, "users", o->r.n_users);
    eval_write_metrics(&o->r, w);
    json_key_double(w, "seconds", o->r.seconds);
    eval_write_misses(&o->r, w);
    protocol_write(&p, w);
    if (o->baselines != NULL) write_baselines(w, o);
    if (o->groups != NULL) eval_groups_write(o->groups, w);
    return json_line_print();
}

static status print_text(const report *o) {
    char misses[EVAL_MISSES_BYTES];
    protocol p = protocol_of(o);
    printf("%s at step %" PRIu64 "%s: %s users, %s\n\n", show_bold(show_path(o->t->folder)),
           o->t->origin.step, checkpoint_is_best(o->t->folder) ? " (best on validation)" : "",
           show_count((uint64_t)o->r.n_users), show_duration(o->r.seconds));
    eval_print_metrics(&o->r, "model", o->baselines);
    if (o->r.has_gauc) printf("\n  Users with one kind of label, left out of gauc: ");
    for (int k = 0; k < o->r.n_tasks && o->r.has_gauc; k++)
        printf("%s %" PRId64 "%s", o->r.task[k].name, o->r.task[k].n_left_out,
               k + 1 < o->r.n_tasks ? ", " : "\n");
    if (o->groups != NULL) eval_groups_print(o->groups, &o->r);
    printf("\n");
    status st = eval_print_protocol(&p);
    if (eval_describe_misses(&o->r, misses)) printf("\n%s\n", misses);
    return st;
}

static status measure_baselines(report *o, const work *w) {
    const trained *t = o->t;
    split_part part = part_of(o->a);
    split s = split_make(t->session.data, o->a->split.rule, SESSION_SPLIT_SEED);
    baseline_config c = baseline_config_default(t->session.data->n_items);
    c.max_history = t->session.max_history;
    c.keeps_seen = o->a->keeps_seen;
    if (t->config->task != TASK_RETRIEVAL)
        return fail(ERR_USAGE, "--baselines: popularity and neighbours are for retrieval models");
    for (int i = 0; i < N_BASELINES; i++)
        TRY(baseline_measure((baseline_kind)i, &s, part, &c, w->workers, &o->baselines[i]));
    return OK;
}

/* The metrics of --metrics, or of the config. */
static status choose_metrics(const eval_args *a, const config *c, metric_list *out) {
    if (a->metrics == NULL) {
        TRY(metric_list_of(out, c));
        metric_list_add_final(out, c->task);
        return OK;
    }
    status st = metric_list_parse(out, a->metrics, c->task);
    return st == OK ? OK : fail_prefix(st, "--metrics");
}

/* --by and --per-user. */
static status look_closer(report *o, const trained *t, evaluator *e) {
    bool is_retrieval = t->config->task == TASK_RETRIEVAL;
    split s = split_make(t->session.data, o->a->split.rule, SESSION_SPLIT_SEED);
    if (o->groups != NULL)
        TRY(eval_groups_make(o->groups, o->a->by, e, &s, part_of(o->a), is_retrieval));
    if (o->a->per_user == NULL || !comm_is_first(t->session.comm)) return OK;
    return eval_write_users(o->a->per_user, e, &s, part_of(o->a), is_retrieval);
}

static status measure(report *o, trained *t, const work *w) {
    evaluator *e;
    TRY(choose_metrics(o->a, t->config, &o->metrics));
    if (o->a->keeps_seen && t->config->task != TASK_RETRIEVAL)
        return fail(ERR_USAGE, "--keep-seen is for retrieval models; ranking leaves nothing out");
    TRY(session_check_split(&t->session, &o->a->split.rule));
    if (o->baselines != NULL) TRY(measure_baselines(o, w));
    TRY(evaluator_create(&e, &t->session, o->a->split.rule, part_of(o->a)));
    status st = evaluator_choose(e, &o->metrics, o->a->keeps_seen);
    if (st == OK) st = evaluator_run(e, 0, &o->r);
    if (st == OK) st = evaluator_bootstrap(e, &o->r, NULL);
    if (st == OK) st = look_closer(o, t, e);
    evaluator_destroy(e);
    return st;
}

static status evaluate(eval_args *a, trained *t, const work *w) {
    static position_counts room[N_BASELINES]; /* too large for the stack */
    static eval_groups groups;
    report o = {.a = a,
                .t = t,
                .baselines = a->has_baselines ? room : NULL,
                .groups = a->by != NULL ? &groups : NULL};
    uint64_t *actions = &a->split.rule.target_actions;
    if (a->target_actions != NULL)
        TRY(seq_actions_parse(t->session.data,
                              strcmp(a->target_actions, "all") == 0 ? "" : a->target_actions,
                              actions));
    a->keeps_seen |= *actions != 0; /* what is bought was often looked at before */
    TRY(measure(&o, t, w));
    if (!comm_is_first(w->comm)) return OK; /* rank 0 speaks for all */
    return a->is_json ? print_json(&o) : print_text(&o);
}

/* The split of the run, or another one that tests on nothing the run was trained on. */
static status choose_split(eval_args *a, const checkpoint_origin *origin) {
    a->split = origin->split;
    a->split.rule.n_sample = a->eval_users; /* not that of the run, which was for its evaluations */
    if (!split_args_given(&a->split_args)) return OK;
    /* A validation part is asked for by name here. */
    a->split_args.has_validation =
        part_of(a) == PART_VALIDATION || origin->split.rule.has_validation;
    if (a->split_args.split != NULL && strcmp(a->split_args.split, "leave-one-out") == 0)
        a->split_args.has_validation = false;
    TRY(split_args_read(&a->split_args, &a->split));
    a->split.rule.n_sample = a->eval_users;
    a->split.rule.target_actions = origin->split.rule.target_actions;
    return split_check_unseen(&origin->split.rule, &a->split.rule, part_of(a));
}

/* by-user numbers the users of the data: other data has other users under these numbers. */
static status check_users(const eval_args *a, const checkpoint_origin *origin, const work *w) {
    if (a->split.rule.kind != SPLIT_BY_USER || origin->data == batcher_fingerprint(w->data))
        return OK;
    return fail(ERR_USAGE,
                "%s: not the data that the run was trained on, so its split by-user would test on "
                "users it was trained on; give the data of the run, or held-out events with "
                "--test-file",
                a->data);
}

static status join_test(const eval_args *a, const char *folder, work *w) {
    config *c;
    if (a->split.rule.kind != SPLIT_TEST_FILE) return OK;
    TRY(checkpoint_config(&c, folder));
    status st = work_join_test(w, a->split.test_file, c->task == TASK_RETRIEVAL);
    config_destroy(c);
    return st;
}

static status run(eval_args *a) {
    work w;
    trained t = {0};
    checkpoint_origin origin;
    char folder[CHECKPOINT_PATH_BYTES];
    TRY(checkpoint_choose(a->path, a->checkpoint, folder));
    TRY(checkpoint_read_origin(&origin, folder));
    TRY(choose_split(a, &origin));
    TRY(work_open_as(&w, a->data, a->device, &(work_options){.ranks = a->ranks, .nccl = "off"}));
    status st = check_users(a, &origin, &w);
    if (st == OK) st = join_test(a, folder, &w);
    if (st == OK) st = trained_open(&t, folder, work_data(&w), w.be, 0);
    if (st == OK && a->is_data_found) work_warn_changed(&w, origin.data);
    t.session.comm = w.comm;
    if (st == OK) st = evaluate(a, &t, &w);
    trained_close(&t);
    work_close(&w);
    return st;
}

static status run_on_ranks(eval_args *a) {
    bool is_over;
    status st = ranks_start(&a->ranks, (int)a->n_ranks, &is_over);
    if (is_over) return st;
    return ranks_leave(a->ranks, st == OK ? run(a) : st);
}

/* --recommendations: no model, so the split is what the command line says. */
static status run_lists(eval_args *a) {
    eval_lists_args l = {.file = a->lists,
                         .data = a->data,
                         .metrics = a->metrics,
                         .out = a->out,
                         .part = part_of(a),
                         .window = a->window > 0 ? a->window : INT32_MAX,
                         .is_json = a->is_json,
                         .keeps_seen = a->keeps_seen};
    if (a->path != NULL || a->checkpoint != NULL || a->has_baselines || a->n_ranks > 1 ||
        a->by != NULL || a->per_user != NULL || a->eval_users > 0)
        return fail(ERR_USAGE, "--recommendations measures lists, not a model: leave out RUN, "
                               "--checkpoint, --baselines, --by, --per-user, --eval-users and "
                               "--ranks");
    if (a->data == NULL) return fail(ERR_USAGE, "--recommendations also needs --data DIR");
    if (a->keeps_seen && a->window > 0)
        return fail(ERR_USAGE, "--window says what is left out, and --keep-seen keeps everything");
    if (a->split_args.split != NULL && strcmp(a->split_args.split, "none") == 0)
        return fail(ERR_USAGE, "--split none holds nothing out to evaluate on");
    a->split_args.has_validation = l.part == PART_VALIDATION;
    if (split_args_given(&a->split_args))
        TRY(split_args_read(&a->split_args, &l.split));
    else
        l.split.rule =
            split_rule_of(l.part == PART_TEST ? SPLIT_LEAVE_ONE_OUT : SPLIT_LEAVE_TWO_OUT);
    return eval_lists(&l);
}

status cmd_eval(int argc, char **argv) {
    eval_args a = {.device = "auto"};
    char room[RUN_DATA_BYTES];
    int n = 0;
    const arg_option options[] = {
        OPT_TEXT("--data", &a.data, "DIR",
                 "Prepared data (default: what the run was trained on); items are matched to the "
                 "model by id."),
        OPT_TEXT("--checkpoint", &a.checkpoint, "WHICH", WORK_CHECKPOINTS),
        OPT_CHOICE(
            "--part", &a.part, "PART", parts,
            "Part to evaluate: test (default), or validation for a run trained with --validate."),
        OPT_TEXT("--split", &a.split_args.split, "SPLIT",
                 "Use another split than the run: leave-one-out, leave-two-out, by-user or time. "
                 "Rejected if it would test on training events."),
        OPT_TEXT("--time-cut", &a.split_args.time_cut, "T", SPLIT_TIME_HELP),
        OPT_TEXT("--test-file", &a.split_args.test_file, "DIR", SPLIT_FILE_HELP),
        OPT_TEXT("--target-action", &a.target_actions, "ACTION,...",
                 "Evaluate only users whose target has one of these actions, by name or code, with "
                 "--keep-seen; all: whatever the action is (default: as the run was trained)."),
        OPT_INT("--eval-users", &a.eval_users, "N", 1, INT32_MAX, EVAL_USERS_HELP),
        OPT_FLAG("--baselines", &a.has_baselines,
                 "Also evaluate popularity, popularity in the week before the newest training "
                 "event, item neighbours and a Markov chain on the same users."),
        OPT_TEXT("--metrics", &a.metrics, "LIST",
                 "Metrics instead of the config's eval_metrics and those that are always added "
                 "(coverage, novelty and diversity at 10, or GAUC and ECE): " METRIC_RETRIEVAL_WORDS
                 "for retrieval, " METRIC_RANKING_WORDS
                 "for ranking. Example: HR@5,NDCG@20,COVERAGE@10."),
        OPT_FLAG("--keep-seen", &a.keeps_seen,
                 "Keep items of the history in the ranking, for data in which users repeat items."),
        OPT_TEXT(
            "--by", &a.by, "WHAT",
            "Also show the metrics of groups of users: by length of the history, by popularity "
            "or a feature of the target item (retrieval), or by a contextual feature of the data."),
        OPT_TEXT("--per-user", &a.per_user, "FILE",
                 "Also write a CSV file with a row per user: events of the history, and the "
                 "position of the target (empty: not found) or the number of scored events."),
        OPT_TEXT("--recommendations", &a.lists, "FILE",
                 "Evaluate these lists instead of a model: JSON lines {\"user\": ID, \"items\": "
                 "[ID, ...]}, as 'hstu recommend --json' writes them, or CSV with columns user and "
                 "item, a row per item in the order of the list or with its rank."),
        OPT_INT("--window", &a.window, "N", 1, INT32_MAX,
                "With --recommendations: only items of the last N events before the target are "
                "left out of the lists (default: of all events)."),
        OPT_TEXT("--out", &a.out, "RUN",
                 "With --recommendations: also write a folder that 'hstu compare' takes like a "
                 "run."),
        OPT_TEXT("--device", &a.device, "DEVICE", WORK_DEVICES),
        OPT_INT("--ranks", &a.n_ranks, "G", 1, 64,
                "Number of processes that share the users (default 1); the metrics do not change."),
        OPT_FLAG("--json", &a.is_json, "Print one JSON object on one line."),
        {0},
    };
    const arg_spec spec = {
        .usage = "hstu eval CHECKPOINT|RUN [--data DIR] [options]",
        .summary = "Evaluate a trained model on the events held out from training: the rank of "
                   "each held-out item in the whole catalogue without the items of the history, or "
                   "AUC for ranking. docs/protocols.md has the rules.",
        .options = options,
        .max_positional = 1};
    ARGS_PARSE(&spec, &a.path, &n);
    if (a.lists != NULL) return run_lists(&a);
    if (n == 0) return fail(ERR_USAGE, "missing argument; usage: %s", spec.usage);
    if (a.out != NULL || a.window > 0)
        return fail(ERR_USAGE, "--out and --window are for --recommendations FILE");
    a.is_data_found = a.data == NULL;
    TRY(run_config_find_data(a.path, spec.usage, room, &a.data));
    return run_on_ranks(&a);
}
