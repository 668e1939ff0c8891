/* hstu recommend: what users would like next, or which items are similar to an item. */
#include "cli/model/answers.h"
#include "cli/model/users.h"
#include "cli/work.h"
#include "dist/ranks.h"
#include "dist/transport.h"
#include "model/histories.h"
#include "model/item_table.h"
#include "model/trained.h"
#include "model/user_group.h"
#include "train/files/run_config.h"

typedef struct recommend_args {
    const char *path, *checkpoint, *data, *history, *allow, *deny, *filter, *rules, *device, *out;
    const char *search;
    mol_stages stages;
    user_choice users;
    arg_list similar, context;
    int64_t k, n_ranks;
    transport *ranks;                        /* this process is one of them; or NULL */
    bool is_json, keeps_seen, is_data_found; /* that of the run */
    const char *exclude_seen;
    int chosen_format; /* -1: not given */
    answer_format format;
} recommend_args;

/* Users whose lists are searched exactly, too, where the search is approximate. */
enum { SHOWN_EVENTS = 10, MEASURED_USERS = 16 };

/* Somebody who is described here, by events, features or both. */
static bool has_history(const recommend_args *a) {
    return a->history != NULL || a->context.n_items > 0;
}

static status put_event(buf *text, answers *out, const user_events *u, uint64_t i, bool has_date) {
    TRY(answers_put_item(out, text, i + 1, u->item[i]));
    return buf_printf(text, " %.32s\n",
                      has_date ? show_date(u->time[i] / out->data->time_per_second) : "");
}

/* The newest events of a user, for the table.  has_dates: their times are real. */
static status recommend_show_history(answers *out, const user_events *u, bool has_dates) {
    uint64_t first = u->n > SHOWN_EVENTS ? u->n - SHOWN_EVENTS : 0;
    buf text = {0};
    if (out->format != FORMAT_TABLE) return OK;
    status st = buf_printf(&text, "%sHistory%s: %" PRIu64 " event%s%s\n\n", out->style.bold,
                           out->style.plain, u->n, u->n == 1 ? "" : "s",
                           first > 0 ? ", the newest ten" : "");
    for (uint64_t i = first; st == OK && i < u->n; i++)
        st = put_event(&text, out, u, i, has_dates);
    if (st == OK && u->n > 0) st = buf_char(&text, '\n');
    if (st == OK) st = answers_text(out, buf_str(&text));
    buf_fini(&text);
    return st;
}

static status find_subject(const recommend_args *a, const item_table *t, const seq_file *data,
                           size_t i, uint32_t *item) {
    const char *id = a->similar.item[i];
    *item = seq_find_item(data, id);
    if (*item == 0) return fail(ERR_USAGE, "--similar %.100s: the model has no such item", id);
    if (t->items.row[*item] < 0)
        return fail(ERR_USAGE, "--similar %.100s: the model has no embedding of this item", id);
    return OK;
}

static status list_one(answers *out, const item_table *t, uint32_t item, const uint8_t *is_allowed,
                       int32_t k, int32_t *best, float *cosine) {
    int32_t n;
    answer_subject who = {SUBJECT_ITEM, item, NULL};
    TRY(similar_items(t, item, is_allowed, k, best, cosine, &n));
    TRY(answers_find_title(out, item));
    TRY(answers_begin(out, &who, "model", show_text(buf_str(&out->text), out->text.n_bytes, 80)));
    for (int32_t i = 0; i < n; i++)
        TRY(answers_item(out, (uint32_t)best[i], &cosine[i]));
    return answers_end(out);
}

static status list_all(const recommend_args *a, const item_table *t, const uint8_t *is_allowed,
                       answers *out, int32_t *best, float *cosine) {
    uint32_t item;
    for (size_t i = 0; i < a->similar.n_items; i++) {
        TRY(find_subject(a, t, out->data, i, &item));
        TRY(list_one(out, t, item, is_allowed, (int32_t)a->k, best, cosine));
    }
    return OK;
}

/* The neighbours of each item of --similar. */
static status recommend_similar(const recommend_args *a, session *s, const uint8_t *is_allowed) {
    static const char *const columns[] = {"score"};
    answers out = {.format = a->format,
                   .data = s->data,
                   .subject = "item",
                   .columns = columns,
                   .n_columns = 1,
                   .has_positions = true};
    item_table t;
    int32_t *best = NULL;
    float *cosine = NULL;
    status st = item_table_init(&t, s->model);
    if (st == OK) st = MEM_NEW(&best, (size_t)a->k);
    if (st == OK) st = MEM_NEW(&cosine, (size_t)a->k);
    if (st == OK) st = answers_open(&out, a->out);
    if (st == OK) st = list_all(a, &t, is_allowed, &out, best, cosine);
    st = answers_close(&out, st);
    MEM_FREE(best, cosine);
    item_table_fini(&t);
    return st;
}

/* While it serves. */
typedef struct service {
    const recommend_args *a;
    session *s;
    user_group *r;
    answers out;
} service;

static const char *note_of(const recommendation *r, bool is_known) {
    if (!r->is_popular) return "";
    return is_known ? "it has no events; these are the most popular items"
                    : "not in the data; these are the most popular items";
}

static status answer_one(void *ctx, int32_t i, const answer_subject *who) {
    service *v = ctx;
    recommendation r = user_group_best(v->r, i);
    TRY(answers_begin(&v->out, who, r.is_popular ? "popular" : "model",
                      note_of(&r, who->kind != SUBJECT_TEXT)));
    for (int32_t k = 0; k < r.n; k++)
        TRY(answers_item(&v->out, r.item[k], &r.score[k]));
    return answers_end(&v->out);
}

/* The history of somebody who is asked for alone is shown, too. */
static status show_one(void *ctx, const user_events *u) {
    return recommend_show_history(&((service *)ctx)->out, u, true);
}

/* Each "NAME=VALUE" of --context. */
static status read_context(const recommend_args *a, const session *s, user_events *u) {
    const seq_file *data = s->data;
    for (size_t i = 0; i < a->context.n_items; i++) {
        const char *text = a->context.item[i], *value = strchr(text, '=');
        size_t n = value != NULL ? (size_t)(value - text) : 0;
        char list[512] = "";
        int f = 0;
        for (; f < s->limits.n_context; f++) {
            const char *name = data->context[f].name;
            if (value != NULL && strlen(name) == n && memcmp(name, text, n) == 0) break;
            escape_list_add(list, sizeof list, name, strlen(name));
        }
        if (f == s->limits.n_context)
            return fail(ERR_USAGE, "--context %.100s: give FEATURE=VALUE; the model %s%s", text,
                        list[0] != '\0' ? "has " : "reads no features of users", list);
        u->context[f] = seq_find_value(&data->context[f], value + 1, strlen(value + 1));
        if (u->context[f] == 0)
            log_warn("--context %.100s: the model does not know this value", text);
    }
    return OK;
}

static status serve_history(service *v, const given_history *g) {
    user_events u = given_history_events(g, v->s->data);
    TRY(read_context(v->a, v->s, &u));
    TRY(recommend_show_history(&v->out, &u, g->has_times));
    TRY(user_group_add(v->r, &u));
    TRY(user_group_run(v->r));
    return answer_one(v, 0, &(answer_subject){SUBJECT_NONE, 0, NULL});
}

static void tell_recall(const user_group *g, int64_t k) {
    double recall;
    int32_t n;
    if (g != NULL && user_group_recall(g, &recall, &n))
        log_info("search in two stages: recall@%" PRId64 " %.4f against the exact search, of %d "
                 "users",
                 k, recall, n);
}

static status serve(const recommend_args *a, session *s, const uint8_t *is_allowed,
                    const given_history *g) {
    static const char *const columns[] = {"score"};
    service v = {.a = a, .s = s};
    bool is_alone = g != NULL || a->users.users.n_items == 1;
    user_group_config c = {.k = (int32_t)a->k,
                           .max_users = is_alone ? 1 : s->eval_batch,
                           .keeps_seen = a->keeps_seen,
                           .exclude_seen = a->exclude_seen,
                           .is_allowed = is_allowed,
                           .rules = a->rules,
                           .stages = a->stages,
                           .n_measured = MEASURED_USERS};
    v.out = (answers){.format = a->format,
                      .data = s->data,
                      .subject = "user",
                      .heading = is_alone ? "Recommended" : NULL,
                      .columns = columns,
                      .n_columns = 1,
                      .has_positions = true};
    status st = user_group_create(&v.r, s, &c);
    bool is_first = a->ranks == NULL || a->ranks->rank == 0;
    if (st == OK) st = answers_open(&v.out, is_first ? a->out : NULL);
    if (a->ranks != NULL) v.out.style = (show_style){"", "", "", ""}; /* some have no terminal */
    user_service for_users = {"recommending", "got the most popular items", v.r, answer_one,
                              is_alone ? show_one : NULL};
    if (st == OK)
        st = g != NULL ? serve_history(&v, g)
                       : user_service_run(&for_users, &v, &a->users, s->data, &v.out, a->ranks);
    st = answers_close(&v.out, st);
    if (st == OK && is_first) tell_recall(v.r, a->k);
    user_group_destroy(v.r);
    return st;
}

static status recommend_history(const recommend_args *a, session *s, const uint8_t *is_allowed) {
    given_history g = {0};
    status st = a->history != NULL ? history_option_read(&g, s, a->history) : OK;
    if (st == OK) st = serve(a, s, is_allowed, &g);
    given_history_fini(&g);
    return st;
}

static status clear_filtered(const char *filter, const seq_file *data, uint8_t *is_allowed) {
    uint64_t *bits;
    TRY(MEM_NEW(&bits, data->n_items / 64 + 2));
    status st =
        item_filter_run(data, filter, strlen(filter), NULL, (int64_t)data->n_items + 1, bits);
    for (uint64_t i = 0; i <= data->n_items && st == OK; i++)
        if (!(bits[i / 64] >> i % 64 & 1) && is_allowed[i] == 1) is_allowed[i] = 0;
    mem_free(bits);
    return st;
}

/* --allow, --deny and --filter as one flag for each item; *out is NULL where none is given. */
static status read_allowed(const recommend_args *a, const seq_file *data, uint8_t **out) {
    id_count count;
    *out = NULL;
    if (a->allow == NULL && a->deny == NULL && a->filter == NULL) return OK;
    TRY(MEM_NEW(out, data->n_items + 1));
    if (a->allow == NULL) memset(*out, 1, data->n_items + 1);
    if (a->allow != NULL) {
        TRY(id_lines_mark(a->allow, data, 1, *out, &count));
        if (count.n == count.n_unknown)
            return fail(ERR_USAGE, "--allow %s: %" PRIu64 " ids, and none is an item of the model",
                        a->allow, count.n);
        id_count_tell(&count, a->allow);
    }
    if (a->deny != NULL) {
        TRY(id_lines_mark(a->deny, data, ITEM_DENIED, *out, &count));
        id_count_tell(&count, a->deny);
    }
    return a->filter != NULL ? clear_filtered(a->filter, data, *out) : OK;
}

static status recommend(recommend_args *a, session *s) {
    uint8_t *is_allowed = NULL;
    char *content;
    size_t n;
    status st = text_option_read(&a->rules, &n, &content);
    if (st == OK) st = read_allowed(a, s->data, &is_allowed);
    if (st == OK && a->similar.n_items > 0)
        st = recommend_similar(a, s, is_allowed);
    else if (st == OK)
        st = has_history(a) ? recommend_history(a, s, is_allowed) : serve(a, s, is_allowed, NULL);
    MEM_FREE(is_allowed, content);
    return st;
}

static status run(recommend_args *a) {
    work w;
    trained t;
    bool is_alone = has_history(a) || a->similar.n_items > 0 || a->users.users.n_items == 1;
    char folder[CHECKPOINT_PATH_BYTES];
    TRY(checkpoint_choose(a->path, a->checkpoint, folder));
    TRY(work_open_as(&w, a->data, a->device, &(work_options){.ranks = a->ranks, .nccl = "off"}));
    status st = trained_open(&t, folder, w.data, w.be, is_alone ? 1 : 0);
    if (st == OK && a->is_data_found) work_warn_changed(&w, t.origin.data);
    if (st == OK) st = recommend(a, &t.session);
    trained_close(&t);
    work_close(&w);
    return st;
}

static status run_on_ranks(recommend_args *a) {
    bool is_over;
    status st = ranks_start(&a->ranks, (int)a->n_ranks, &is_over);
    if (is_over) return st;
    if (st == OK && a->ranks != NULL && !a->users.is_all && a->users.file == NULL)
        st = fail(ERR_USAGE, "several ranks divide the users of --all-users or --users FILE");
    return ranks_leave(a->ranks, st == OK ? run(a) : st);
}

static status check(const recommend_args *a, const arg_spec *spec) {
    int n = user_choice_n(&a->users) + has_history(a) + (a->similar.n_items > 0);
    if (n != 1)
        return fail(ERR_USAGE,
                    "give either --user ID, --users FILE, --all-users, --history or --context, or "
                    "--similar ITEM; usage: %s",
                    spec->usage);
    if (a->rules != NULL && a->similar.n_items > 0)
        return fail(ERR_USAGE,
                    "--rules are for users; --similar takes --filter, --allow and --deny");
    if (a->search != NULL && a->similar.n_items > 0)
        return fail(ERR_USAGE, "--search is for users; --similar is exact");
    if (a->n_ranks > 1 && a->users.file != NULL && strcmp(a->users.file, "-") == 0)
        return fail(ERR_USAGE, "--users -: ranks cannot share stdin; give a file");
    return OK;
}

status cmd_recommend(int argc, char **argv) {
    recommend_args a = {.k = 10, .device = "auto", .chosen_format = -1};
    char room[RUN_DATA_BYTES];
    const arg_option options[] = {
        OPT_TEXT("--data", &a.data, "DIR",
                 "Prepared data with the users' events (default: what the run was trained on); "
                 "items are matched to the model by id."),
        OPT_TEXT("--checkpoint", &a.checkpoint, "WHICH", WORK_CHECKPOINTS),
        OPT_GROUP("Users (choose one)"),
        USER_OPTIONS(&a.users),
        HISTORY_OPTION(&a.history),
        OPT_LIST("--context", &a.context, "FEATURE=VALUE",
                 "A user who is not in the data, by features, alone or beside --history; may be "
                 "repeated."),
        OPT_LIST("--similar", &a.similar, "ITEM",
                 "Instead of a user: list the items most similar to this one, by cosine of the "
                 "model's embeddings; may be repeated."),
        OPT_GROUP("Items"),
        OPT_INT("-k", &a.k, "K", 1, INFER_MAX_K, "Number of items (default 10)."),
        OPT_TEXT("--exclude-seen", &a.exclude_seen, "all|none|ACTION,...",
                 "Leave out all items of the user's history, none, or those of events with these "
                 "actions, as in 'purchase' (default: all; none for a run of --target-action)."),
        OPT_FLAG("--keep-seen", &a.keeps_seen, "Same as --exclude-seen none."),
        OPT_TEXT("--allow", &a.allow, "FILE", "Recommend only these items: ids, one per line."),
        OPT_TEXT("--deny", &a.deny, "FILE", "Never recommend these items: ids, one per line."),
        OPT_TEXT("--filter", &a.filter, "EXPR",
                 "Recommend only items whose features pass, as in 'genre in (\"Drama\", \"Crime\") "
                 "and year >= 2000' (docs/rules.md)."),
        OPT_TEXT(
            "--rules", &a.rules, "JSON",
            "Rules as a request to the server has them: filter, allow, deny, boost, max_per and "
            "pin, as in '{\"max_per\": {\"genre\": 2}, \"pin\": [12]}'; @FILE reads a file."),
        OPT_TEXT("--search", &a.search, "HOW",
                 "Of a mixture of logits: exact (default), or two stages, in which the N best by "
                 "mean:N, components:N or mean:N+components:N are scored exactly. The recall for "
                 "the first users is printed (docs/models.md)."),
        OPT_GROUP("Output"),
        OPT_CHOICE("--format", &a.chosen_format, "FORMAT", answer_formats, ANSWER_FORMATS),
        OPT_FLAG("--json", &a.is_json, "Same as --format jsonl."),
        OPT_TEXT(
            "--out", &a.out, "FILE",
            "Write to FILE, replaced only when the new one is complete; - is stdout (default)."),
        OPT_TEXT("--device", &a.device, "DEVICE", WORK_DEVICES),
        OPT_INT("--ranks", &a.n_ranks, "G", 1, 64,
                "Number of processes that share the users (default 1; mpirun and torchrun start "
                "their own); the answers and their order do not change."),
        {0},
    };
    const arg_spec spec = {.usage = "hstu recommend CHECKPOINT|RUN --user ID [--data DIR] [-k 10]",
                           .summary =
                               "Recommend items to users: the highest-scoring items of the "
                               "catalogue, without those in the user's history. A user without "
                               "events gets the most popular items, marked as such (source).",
                           .options = options,
                           .min_positional = 1,
                           .notes = WORK_RUN_NOTE};
    ARGS_PARSE(&spec, &a.path, NULL);
    TRY(check(&a, &spec));
    if (a.search != NULL) TRY(mol_stages_read(&a.stages, a.search));
    a.is_data_found = a.data == NULL && a.similar.n_items == 0;
    if (a.similar.n_items == 0) TRY(run_config_find_data(a.path, spec.usage, room, &a.data));
    TRY(answer_format_choose(a.chosen_format, a.is_json, &a.format));
    return run_on_ranks(&a);
}
