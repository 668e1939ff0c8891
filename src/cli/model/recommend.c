/* hstu recommend: what users would like next. */
#include <inttypes.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "cli/model/recommend.h"
#include "cli/model/user_service.h"
#include "cli/work.h"
#include "dist/ranks.h"
#include "model/histories.h"
#include "model/trained.h"
#include "model/user_group.h"

enum { MAX_HISTORY_BYTES = 64 << 20 };

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

static bool fits(void *ctx, const user_events *u) {
    return user_group_fits(((service *)ctx)->r, u);
}

/* The history of somebody who is asked for alone is shown, too. */
static status add_one(void *ctx, const user_events *u) {
    service *v = ctx;
    if (v->a->users.users.n_items == 1) TRY(recommend_show_history(&v->out, u, true));
    return user_group_add(v->r, u);
}

static status run_batch(void *ctx) {
    return user_group_run(((service *)ctx)->r);
}

static void clear(void *ctx) {
    user_group_clear(((service *)ctx)->r);
}

static const user_service for_users = {
    "recommending", "got the most popular items", fits, add_one, run_batch, answer_one, clear};

static status serve_history(service *v, const given_history *g) {
    user_events u = given_history_events(g, v->s->data);
    TRY(recommend_show_history(&v->out, &u, g->has_times));
    TRY(user_group_add(v->r, &u));
    TRY(user_group_run(v->r));
    return answer_one(v, 0, &(answer_subject){SUBJECT_NONE, 0, NULL});
}

static status serve(const recommend_args *a, session *s, const uint8_t *is_allowed,
                    const given_history *g) {
    static const char *const columns[] = {"score"};
    service v = {.a = a, .s = s};
    bool is_alone = g != NULL || a->users.users.n_items == 1;
    user_group_config c = {.k = (int32_t)a->k,
                           .max_users = is_alone ? 1 : s->eval_batch,
                           .keeps_seen = a->keeps_seen,
                           .is_allowed = is_allowed};
    v.out = (answers){.format = a->format,
                      .data = s->data,
                      .subject = "user",
                      .heading = is_alone ? "Recommended" : NULL,
                      .columns = columns,
                      .n_columns = 1,
                      .has_ranks = true};
    status st = user_group_create(&v.r, s, &c);
    bool is_first = a->ranks == NULL || a->ranks->rank == 0;
    if (st == OK) st = answers_open(&v.out, is_first ? a->out : NULL);
    if (a->ranks != NULL) v.out.style = (show_style){"", "", "", ""}; /* some have no terminal */
    if (st == OK)
        st = g != NULL ? serve_history(&v, g)
                       : user_service_run(&for_users, &v, &a->users, s->data, &v.out, a->ranks);
    st = answers_close(&v.out, st);
    user_group_destroy(v.r);
    return st;
}

/* --history TEXT or @FILE. */
static status recommend_history(const recommend_args *a, session *s, const uint8_t *is_allowed) {
    const char *text = a->history;
    char *content = NULL;
    size_t n = strlen(text);
    given_history g = {0};
    status st = OK;
    if (text[0] == '@') {
        st = file_read_all(text + 1, MAX_HISTORY_BYTES, &content, &n);
        text = content;
    }
    if (st == OK) st = given_history_read(&g, s->data, s->limits.n_actions, text, n);
    if (st == ERR_USAGE) st = fail_prefix(st, "--history");
    if (st == OK) st = serve(a, s, is_allowed, &g);
    given_history_fini(&g);
    mem_free(content);
    return st;
}

/* --allow and --deny as one flag for each item; *out is NULL where neither is given. */
static status read_allowed(const recommend_args *a, const seq_file *data, uint8_t **out) {
    id_count count;
    *out = NULL;
    if (a->allow == NULL && a->deny == NULL) return OK;
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
        TRY(id_lines_mark(a->deny, data, 0, *out, &count));
        id_count_tell(&count, a->deny);
    }
    return OK;
}

static status recommend(const recommend_args *a, session *s) {
    uint8_t *is_allowed;
    status st = read_allowed(a, s->data, &is_allowed);
    if (st == OK && a->similar.n_items > 0)
        st = recommend_similar(a, s, is_allowed);
    else if (st == OK)
        st = a->history != NULL ? recommend_history(a, s, is_allowed)
                                : serve(a, s, is_allowed, NULL);
    mem_free(is_allowed);
    return st;
}

static status run(const recommend_args *a) {
    work w;
    trained t;
    bool is_alone = a->history != NULL || a->similar.n_items > 0 || a->users.users.n_items == 1;
    char folder[CHECKPOINT_PATH_BYTES];
    TRY(checkpoint_choose(a->path, a->checkpoint, folder));
    TRY(work_open_as(&w, a->data, a->device, &(work_options){.ranks = a->ranks, .nccl = "off"}));
    status st = trained_open(&t, folder, w.data, w.be, is_alone ? 1 : 0);
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
    int n = user_choice_n(&a->users) + (a->history != NULL) + (a->similar.n_items > 0);
    if (a->data == NULL && a->similar.n_items == 0)
        return fail(ERR_USAGE, "--data DIR is missing; usage: %s", spec->usage);
    if (n != 1)
        return fail(ERR_USAGE, "give either --user ID, --users FILE, --all-users, --history or "
                               "--similar ITEM");
    if (a->n_ranks > 1 && a->users.file != NULL && strcmp(a->users.file, "-") == 0)
        return fail(ERR_USAGE, "--users -: ranks cannot share stdin; give a file");
    return OK;
}

status cmd_recommend(int argc, char **argv) {
    recommend_args a = {.k = 10, .device = "auto"};
    bool is_help;
    const arg_option options[] = {
        {"--data", ARG_TEXT, &a.data, "DIR",
         "Prepared data with the users' events; items are matched to the model's by their ids.", 0,
         0},
        {"--checkpoint", ARG_TEXT, &a.checkpoint, "WHICH", WORK_CHECKPOINTS, 0, 0},
        {"For whom, one of", ARG_FLAG, NULL, NULL, NULL, 0, 0},
        USER_OPTIONS(&a.users),
        {"--history", ARG_TEXT, &a.history, "EVENTS",
         "Somebody who is not in the data: ids, oldest first (12,99,7), or JSON, also with times "
         "and actions: [{\"item\": 12, \"time\": 1900000000, \"action\": 1}, ...]; @FILE reads it "
         "from a file.",
         0, 0},
        {"--similar", ARG_LIST, &a.similar, "ITEM",
         "No user: the items nearest to this one, by the cosine of the model's embeddings; may be "
         "given several times.",
         0, 0},
        {"What", ARG_FLAG, NULL, NULL, NULL, 0, 0},
        {"-k", ARG_INT, &a.k, "K", "How many items for each (default 10).", 1, INFER_MAX_K},
        {"--keep-seen", ARG_FLAG, &a.keeps_seen, NULL,
         "Also items that the user has had; without it the whole history is left out.", 0, 0},
        {"--allow", ARG_TEXT, &a.allow, "FILE", "Only these items: ids, one a line.", 0, 0},
        {"--deny", ARG_TEXT, &a.deny, "FILE", "Not these items: ids, one a line.", 0, 0},
        {"Output", ARG_FLAG, NULL, NULL, NULL, 0, 0},
        {"--format", ARG_TEXT, &a.format_name, "FORMAT", ANSWER_FORMATS, 0, 0},
        {"--json", ARG_FLAG, &a.is_json, NULL, "The same as --format jsonl.", 0, 0},
        {"--out", ARG_TEXT, &a.out, "FILE",
         "Write to a file, which appears when it is complete; - is stdout (default).", 0, 0},
        {"--device", ARG_TEXT, &a.device, "DEVICE", WORK_DEVICES, 0, 0},
        {"--ranks", ARG_INT, &a.n_ranks, "G",
         "Processes of this machine that divide the users (default 1; mpirun and torchrun start "
         "their own); the answers are the same, in the same order.",
         1, 64},
        {0},
    };
    const arg_spec spec = {
        "hstu recommend CHECKPOINT|RUN --data DIR --user ID [-k 10]",
        "Recommends items to users: the highest scores of the catalogue, without the items of the "
        "user's history. A user without events gets the most popular items, and the output says "
        "so (source).",
        options,
        1,
        1,
        "A run stands for its best checkpoint on validation where it has one, else for its "
        "newest.\n"};
    status st = args_parse(&spec, argc, argv, &a.path, NULL, &is_help);
    if (st == OK && !is_help) st = check(&a, &spec);
    if (st == OK && !is_help) st = answer_format_parse(a.format_name, a.is_json, &a.format);
    if (st == OK && !is_help) st = run_on_ranks(&a);
    mem_free(a.users.users.item);
    mem_free(a.similar.item);
    return st;
}
