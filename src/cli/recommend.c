/* hstu recommend: what one user would like next. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/mem.h"
#include "cli/cli.h"
#include "cli/show.h"
#include "cli/work.h"
#include "model/trained.h"

enum { SHOWN_EVENTS = 10, MAX_K = 1000, ID_BYTES = 256, SECONDS_BETWEEN = 60 };

typedef struct recommend_args {
    const char *path, *data, *user, *history, *device;
    int64_t k;
    bool is_json;
} recommend_args;

/* A user's events as a batch of one.  Memory of its own. */
typedef struct one_user {
    batch view;
    int32_t offsets[2], n_targets[1];
    uint64_t users[1];
    uint32_t context[CONTEXT_MAX];
    uint32_t *item;
    uint16_t *action;
    int64_t *time;
} one_user;

static void one_user_fini(one_user *u) {
    mem_free(u->item);
    mem_free(u->action);
    mem_free(u->time);
}

static status one_user_init(one_user *u, int32_t n, uint64_t user, const seq_file *data) {
    *u = (one_user){.offsets = {0, n}, .users = {user}};
    TRY(MEM_NEW(&u->item, (size_t)n));
    TRY(MEM_NEW(&u->action, (size_t)n));
    TRY(MEM_NEW(&u->time, (size_t)n));
    u->view = (batch){.n_users = 1,
                      .n_tokens = n,
                      .n_context = data->n_context,
                      .offsets = u->offsets,
                      .users = u->users,
                      .n_targets = u->n_targets,
                      .item = u->item,
                      .action = u->action,
                      .time = u->time,
                      .context = u->context,
                      .is_last = true};
    return OK;
}

/* All events of a user of the data, the newest that fit: nothing is held out. */
static status take_user(one_user *u, const recommend_args *a, const session *s) {
    const seq_file *data = s->data;
    uint64_t user = seq_find_user(data, a->user);
    if (user == UINT64_MAX)
        return fail(ERR_USAGE, "--user %.100s: %s has no such user", a->user, data->path);
    uint64_t n = seq_length(data, user), most = (uint64_t)s->max_history;
    if (n > most) n = most;
    uint64_t first = data->offsets[user + 1] - n;
    TRY(one_user_init(u, (int32_t)n, user, data));
    for (uint64_t i = 0; i < n; i++) {
        u->item[i] = data->item[first + i];
        u->action[i] = data->action[first + i];
        u->time[i] = data->time[first + i];
    }
    for (int f = 0; f < data->n_context; f++)
        u->context[f] = data->context[f].value[user];
    return OK;
}

static int64_t newest_time(const seq_file *data) {
    int64_t newest = 0;
    for (uint64_t i = 0; i < data->n_events; i++)
        if (i == 0 || data->time[i] > newest) newest = data->time[i];
    return newest;
}

/* One id of "12,99,..."; *text moves past the comma. */
static status next_item(const char **text, const seq_file *data, uint32_t *item) {
    char id[ID_BYTES];
    size_t n = strcspn(*text, ",");
    if (n == 0 || n >= sizeof id)
        return fail(ERR_USAGE, "--history: ids are parted by single commas: 12,99,...");
    memcpy(id, *text, n);
    id[n] = '\0';
    *item = seq_find_item(data, id);
    if (*item == 0) return fail(ERR_USAGE, "--history: %s has no item '%s'", data->path, id);
    *text += n + ((*text)[n] == ',');
    return OK;
}

/* A user who is not in the data: items in order, a minute apart, from the end of the data on. */
static status take_history(one_user *u, const recommend_args *a, const session *s) {
    const char *text = a->history;
    int64_t n = 1, skip, start = newest_time(s->data);
    for (const char *c = text; *c != '\0'; c++)
        n += *c == ',';
    skip = n > s->max_history ? n - s->max_history : 0;
    TRY(one_user_init(u, (int32_t)(n - skip), s->data->n_users, s->data));
    for (int64_t i = 0; i < n; i++) {
        uint32_t item;
        TRY(next_item(&text, s->data, &item));
        if (i < skip) continue;
        u->item[i - skip] = item;
        u->time[i - skip] = start + (i + 1) * SECONDS_BETWEEN * s->data->time_per_second;
    }
    if (*text != '\0') return fail(ERR_USAGE, "--history: a comma at the end");
    return OK;
}

static void print_item(const seq_file *data, buf *id, buf *title, uint32_t item, const char *lead,
                       const char *extra) {
    char a[SHOW_BYTES], b[SHOW_BYTES];
    if (seq_item_name(data, item, id) != OK || seq_item_title(data, item, title) != OK) return;
    printf("  %s  %8s  %-56s %s\n", lead, show_text(a, buf_str(id), id->n_bytes, 16),
           data->title.n > 0 ? show_text(b, buf_str(title), title->n_bytes, 56) : "", extra);
}

static void print_text(const seq_file *data, const recommend_args *a, const one_user *u,
                       const int32_t *best, const float *score) {
    char lead[32], extra[64], date[SHOW_BYTES];
    int32_t n = u->view.n_tokens, from = n > SHOWN_EVENTS ? n - SHOWN_EVENTS : 0;
    show_style style = show_stdout_style();
    buf id, title;
    buf_init(&id);
    buf_init(&title);
    printf("%sHistory%s: %d event%s%s%s\n\n", style.bold, style.plain, n, n == 1 ? "" : "s",
           from > 0 ? ", the newest ten" : "", n == 0 ? " (nothing is known of this user)" : "");
    for (int32_t i = from; i < n; i++) {
        snprintf(lead, sizeof lead, "%5d", i + 1);
        snprintf(extra, sizeof extra, "%.32s",
                 a->user != NULL ? show_date(date, u->time[i] / data->time_per_second) : "");
        print_item(data, &id, &title, u->item[i], lead, extra);
    }
    printf("\n%sRecommended%s%s\n\n", style.bold, style.plain,
           best[0] < 0 ? ": nothing; every item that the model knows is in the history, or its "
                         "score is no number"
                       : "");
    for (int64_t i = 0; i < a->k && best[i] >= 0; i++) {
        snprintf(lead, sizeof lead, "%5d", (int)i + 1);
        snprintf(extra, sizeof extra, "%10.4f", (double)score[i]);
        print_item(data, &id, &title, (uint32_t)best[i], lead, extra);
    }
    buf_fini(&id);
    buf_fini(&title);
}

static status write_items(json_writer *w, const seq_file *data, const uint32_t *item, int64_t n,
                          const float *score) {
    buf text;
    status st = OK;
    buf_init(&text);
    json_array_open(w);
    for (int64_t i = 0; i < n && st == OK; i++) {
        json_object_open(w);
        st = seq_item_name(data, item[i], &text);
        if (st == OK) json_key_string(w, "item", buf_str(&text));
        if (st == OK) st = seq_item_title(data, item[i], &text);
        if (st == OK && data->title.n > 0) json_key_string(w, "title", buf_str(&text));
        if (score != NULL) json_key_double(w, "score", (double)score[i]);
        json_object_close(w);
    }
    json_array_close(w);
    buf_fini(&text);
    return st;
}

static status print_json(const seq_file *data, const recommend_args *a, const one_user *u,
                         const int32_t *best, const float *score) {
    json_writer w;
    buf text;
    uint32_t item[MAX_K];
    int64_t n = 0;
    for (; n < a->k && best[n] >= 0; n++)
        item[n] = (uint32_t)best[n];
    buf_init(&text);
    json_begin(&w, &text, 0);
    json_object_open(&w);
    if (a->user != NULL) json_key_string(&w, "user", a->user);
    json_key(&w, "history");
    status st = write_items(&w, data, u->item, u->view.n_tokens, NULL);
    json_key(&w, "recommended");
    if (st == OK) st = write_items(&w, data, item, n, score);
    json_object_close(&w);
    if (st == OK) st = json_finish(&w);
    if (st == OK) printf("%s\n", buf_str(&text));
    buf_fini(&text);
    return st;
}

/* The k items with the highest scores that are not in the history: their numbers, or -1. */
static status find_best(session *s, const one_user *u, int32_t k, int32_t *best, float *score) {
    model_items corpus;
    pass *p;
    rank_query q = {.corpus = &corpus, .k = k, .best = best, .score = score};
    TRY(pass_create(&p, s->model, &(pass_config){.max_users = 1}));
    status st = model_corpus(s->model, &corpus);
    if (st == OK) st = pass_rank(p, &u->view, &q);
    pass_destroy(p);
    return st;
}

static status recommend(const recommend_args *a, session *s) {
    int32_t best[MAX_K], k = (int32_t)a->k;
    float score[MAX_K];
    one_user u = {0};
    if (s->config->task != TASK_RETRIEVAL)
        return fail(ERR_UNSUPPORTED,
                    "%s: this model ranks given candidates; recommending needs a retrieval model",
                    a->path);
    if (k > s->limits.n_items) k = s->limits.n_items;
    for (int64_t i = 0; i < a->k; i++)
        best[i] = -1;
    status st = a->user != NULL ? take_user(&u, a, s) : take_history(&u, a, s);
    if (st == OK) st = find_best(s, &u, k, best, score);
    if (st == OK && a->is_json) st = print_json(s->data, a, &u, best, score);
    if (st == OK && !a->is_json) print_text(s->data, a, &u, best, score);
    one_user_fini(&u);
    return st;
}

static status run(const recommend_args *a) {
    work w;
    trained t;
    TRY(work_open(&w, a->data, a->device));
    status st = trained_open(&t, a->path, w.data, w.be, 1);
    if (st == OK) st = recommend(a, &t.session);
    trained_close(&t);
    work_close(&w);
    return st;
}

status cmd_recommend(int argc, char **argv) {
    recommend_args a = {.k = 10, .device = "auto"};
    bool is_help;
    const arg_option options[] = {
        {"--data", ARG_TEXT, &a.data, "DIR",
         "Prepared data; items are matched to the model's by their ids.", 0, 0},
        {"--user", ARG_TEXT, &a.user, "ID", "A user of the data, by its id there.", 0, 0},
        {"--history", ARG_TEXT, &a.history, "ID,ID,...",
         "Instead of a user: items somebody had, oldest first, by their ids in the data.", 0, 0},
        {"-k", ARG_INT, &a.k, "K", "How many (default 10).", 1, MAX_K},
        {"--device", ARG_TEXT, &a.device, "DEVICE", WORK_DEVICES, 0, 0},
        {"--json", ARG_FLAG, &a.is_json, NULL, "Print one JSON object on one line.", 0, 0},
        {0},
    };
    const arg_spec spec = {"hstu recommend CHECKPOINT|RUN --data DIR --user ID [-k 10]",
                           "Recommends items to one user: the highest scores of the catalogue, "
                           "without the items of the user's history.",
                           options,
                           1,
                           1,
                           NULL};
    TRY(args_parse(&spec, argc, argv, &a.path, NULL, &is_help));
    if (is_help) return OK;
    if (a.data == NULL) return fail(ERR_USAGE, "--data DIR is missing; usage: %s", spec.usage);
    if ((a.user == NULL) == (a.history == NULL))
        return fail(ERR_USAGE, "give either --user ID or --history ID,ID,...");
    return run(&a);
}
