/* hstu score: what a model says of given candidates. */
#include "cli/model/users.h"
#include "cli/work.h"
#include "model/histories.h"
#include "model/trained.h"
#include "model/user_group.h"
#include "train/files/run_config.h"

typedef struct score_args {
    const char *path, *checkpoint, *data, *history, *candidates, *device, *out;
    user_choice users;
    bool is_json, is_data_found; /* that of the run */
    int chosen_format;           /* -1: not given */
    answer_format format;
} score_args;

/* Items of the model, in the order given. */
typedef struct item_list {
    uint32_t *item;
    size_t n, capacity;
} item_list;

static status add_item(item_list *l, uint32_t item) {
    if (l->n == INT32_MAX) return fail(ERR_UNSUPPORTED, "more than %d candidates", INT32_MAX);
    TRY(MEM_RESERVE(&l->item, &l->capacity, l->n + 1));
    l->item[l->n++] = item;
    return OK;
}

static status read_file(item_list *l, const char *path, const seq_file *data) {
    id_lines lines;
    id_count count = {0};
    const char *id = NULL;
    status st = id_lines_open(&lines, path);
    while (st == OK && (st = id_lines_next(&lines, &id)) == OK && id != NULL) {
        uint32_t item = seq_find_item(data, id);
        id_count_add(&count, id, item != 0);
        if (item != 0) st = add_item(l, item);
    }
    id_lines_close(&lines);
    if (st == OK && l->n == 0)
        st = fail(ERR_USAGE, "--candidates %s: %" PRIu64 " ids, and none is an item of the model",
                  path, count.n);
    if (st == OK) id_count_tell(&count, path);
    return st;
}

/* A list has the form of a history of ids; those that the model does not know are named. */
static status read_list(item_list *l, const char *text, const seq_file *data) {
    given_history g;
    status st = given_history_read(&g, data, -1, text, strlen(text));
    for (size_t i = 0; st == OK && i < g.n; i++)
        st = add_item(l, g.item[i]);
    if (st == OK && g.unknown[0] != '\0')
        log_warn("--candidates: the model does not know %s; left out", g.unknown);
    given_history_fini(&g);
    return st == ERR_USAGE ? fail_prefix(st, "--candidates is neither a file nor a list of ids")
                           : st;
}

static status read_candidates(item_list *l, const char *text, const seq_file *data) {
    if (text[0] == '@') return read_file(l, text + 1, data);
    bool is_file = strcmp(text, "-") == 0 || file_exists(text);
    return is_file ? read_file(l, text, data) : read_list(l, text, data);
}

/* While it scores. */
typedef struct service {
    const seq_file *data;
    user_group *r;
    const item_list *candidates;
    answers out;
} service;

static status answer_one(void *ctx, int32_t i, const answer_subject *who) {
    service *v = ctx;
    const float *values = user_group_values(v->r, i);
    bool is_known = who->kind == SUBJECT_USER;
    bool has_history =
        who->kind == SUBJECT_NONE || (is_known && user_events_of(v->data, who->number).n > 0);
    const char *note = has_history ? "" : is_known ? "it has no events" : "not in the data";
    TRY(answers_begin(&v->out, who, has_history ? "model" : "no history", note));
    for (size_t c = 0; c < v->candidates->n; c++)
        TRY(answers_item(&v->out, v->candidates->item[c], values + c * (size_t)v->out.n_columns));
    return answers_end(&v->out);
}

static status score_history(service *v, session *s, const char *text) {
    given_history g;
    status st = history_option_read(&g, s, text);
    user_events u = given_history_events(&g, s->data);
    if (st == OK) st = user_group_add(v->r, &u);
    if (st == OK) st = user_group_run(v->r);
    if (st == OK) st = answer_one(v, 0, &(answer_subject){SUBJECT_NONE, 0, NULL});
    given_history_fini(&g);
    return st;
}

static status score(const score_args *a, session *s) {
    item_list candidates = {0};
    service v = {.data = s->data, .candidates = &candidates};
    status st = read_candidates(&candidates, a->candidates, s->data);
    user_group_config c = {.candidate = candidates.item,
                           .n_candidates = (int32_t)candidates.n,
                           .max_users = s->eval_batch};
    if (st == OK) st = user_group_create(&v.r, s, &c);
    if (st == OK) {
        v.out = (answers){.format = a->format,
                          .data = s->data,
                          .subject = "user",
                          .heading = a->history != NULL ? "Scored" : NULL,
                          .columns = user_group_columns(v.r)->names,
                          .n_columns = user_group_columns(v.r)->n};
        st = answers_open(&v.out, a->out);
    }
    user_service for_users = {"scoring", "scored without a history", v.r, answer_one, NULL};
    if (st == OK)
        st = a->history != NULL
                 ? score_history(&v, s, a->history)
                 : user_service_run(&for_users, &v, &a->users, s->data, &v.out, NULL);
    st = answers_close(&v.out, st);
    user_group_destroy(v.r);
    mem_free(candidates.item);
    return st;
}

static status run(const score_args *a) {
    work w;
    trained t;
    char folder[CHECKPOINT_PATH_BYTES];
    TRY(checkpoint_choose(a->path, a->checkpoint, folder));
    TRY(work_open(&w, a->data, a->device));
    status st = trained_open(&t, folder, w.data, w.be, 0);
    if (st == OK && a->is_data_found) work_warn_changed(&w, t.origin.data);
    if (st == OK) st = score(a, &t.session);
    trained_close(&t);
    work_close(&w);
    return st;
}

static status check(const score_args *a, const arg_spec *spec) {
    if (a->candidates == NULL)
        return fail(ERR_USAGE, "--candidates FILE|LIST is missing; usage: %s", spec->usage);
    if (user_choice_n(&a->users) + (a->history != NULL) != 1)
        return fail(ERR_USAGE, "give either --user ID, --users FILE, --all-users or --history");
    return OK;
}

status cmd_score(int argc, char **argv) {
    score_args a = {.device = "auto", .chosen_format = -1};
    char room[RUN_DATA_BYTES];
    const arg_option options[] = {
        OPT_TEXT("--data", &a.data, "DIR",
                 "Prepared data with the users' events (default: what the run was trained on); "
                 "items are matched to the model by id."),
        OPT_TEXT("--checkpoint", &a.checkpoint, "WHICH", WORK_CHECKPOINTS),
        OPT_TEXT("--candidates", &a.candidates, "FILE|LIST",
                 "Items to score: a file of ids, one per line (- is stdin, @FILE is always a "
                 "file), a comma-separated list, or a JSON list of ids."),
        USER_OPTIONS(&a.users),
        HISTORY_OPTION(&a.history),
        OPT_CHOICE("--format", &a.chosen_format, "FORMAT", answer_formats, ANSWER_FORMATS),
        OPT_FLAG("--json", &a.is_json, "Same as --format jsonl."),
        OPT_TEXT(
            "--out", &a.out, "FILE",
            "Write to FILE, replaced only when the new one is complete; - is stdout (default)."),
        OPT_TEXT("--device", &a.device, "DEVICE", WORK_DEVICES),
        {0},
    };
    const arg_spec spec = {
        .usage =
            "hstu score CHECKPOINT|RUN --user ID --candidates FILE|LIST [--data DIR] [options]",
        .summary = "Score given items for users. A ranking model gives the probability of every "
                   "task (click, like, ...), or the expected rating and the probability of each "
                   "rating; a retrieval model gives the score that 'hstu recommend' sorts by.",
        .options = options,
        .min_positional = 1,
        .notes = WORK_RUN_NOTE};
    ARGS_PARSE(&spec, &a.path, NULL);
    TRY(check(&a, &spec));
    a.is_data_found = a.data == NULL;
    TRY(run_config_find_data(a.path, spec.usage, room, &a.data));
    TRY(answer_format_choose(a.chosen_format, a.is_json, &a.format));
    return run(&a);
}
