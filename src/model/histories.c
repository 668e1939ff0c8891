#include "model/histories.h"

#include "format/json.h"

user_events user_events_of(const seq_file *data, uint64_t user) {
    user_events u = {.user = user};
    if (user >= data->n_users) {
        u.user = data->n_users;
        return u;
    }
    uint64_t first = data->offsets[user];
    u.n = seq_length(data, user);
    u.item = data->item + first;
    u.action = data->action + first;
    u.time = data->time + first;
    for (int f = 0; f < data->n_context; f++)
        u.context[f] = data->context[f].value[user];
    return u;
}

status histories_init_bounded(histories *h, const session *s, int32_t max_users,
                              int32_t max_targets, int64_t max_rows) {
    *h = (histories){.max_users = max_users,
                     .max_history = s->max_history,
                     .max_events = s->max_history + max_targets,
                     .max_rows = max_rows};
    TRY(batch_init(&h->view, (size_t)max_users, (size_t)max_rows, s->data->n_context));
    h->view.is_last = true;
    return OK;
}

status histories_init(histories *h, const session *s, int32_t max_users) {
    int32_t max_targets = s->limits.max_events - s->max_history;
    return histories_init_bounded(h, s, max_users, max_targets,
                                  (int64_t)max_users * s->limits.max_events);
}

void histories_fini(histories *h) {
    batch_fini(&h->view);
    *h = (histories){0};
}

void histories_clear(histories *h) {
    h->view.n_users = h->view.n_tokens = 0;
}

/* The last n events; those before the n_skipped-th are not copied. */
static void put_events(batch *b, const user_events *u, uint64_t n, uint64_t n_skipped) {
    uint64_t first = u->n - n, skipped = n_skipped > first ? n_skipped - first : 0;
    if (skipped > n) skipped = n;
    size_t at = (size_t)b->n_tokens + (size_t)skipped, count = (size_t)(n - skipped);
    first += skipped;
    b->n_tokens += (int32_t)n;
    if (count == 0) return;
    memcpy(b->item + at, u->item + first, count * sizeof *b->item);
    memcpy(b->action + at, u->action + first, count * sizeof *b->action);
    if (u->time != NULL) memcpy(b->time + at, u->time + first, count * sizeof *b->time);
}

/* At the time of the newest event; without times nobody reads theirs. */
static void put_candidates(batch *b, const user_events *u, const uint32_t *candidate, size_t n) {
    size_t at = (size_t)b->n_tokens;
    int64_t newest = u->n > 0 && u->time != NULL ? u->time[u->n - 1] : 0;
    b->n_tokens += (int32_t)n;
    if (n == 0) return;
    memcpy(b->item + at, candidate, n * sizeof *b->item);
    memset(b->action + at, 0, n * sizeof *b->action);
    for (size_t i = 0; i < n && (u->time != NULL || u->n == 0); i++)
        b->time[at + i] = newest;
}

status histories_add(histories *h, const user_events *u, const uint32_t *candidate,
                     int32_t n_candidates) {
    return histories_add_rest(h, u, 0, candidate, n_candidates);
}

status histories_add_rest(histories *h, const user_events *u, uint64_t n_skipped,
                          const uint32_t *candidate, int32_t n_candidates) {
    batch *b = &h->view;
    if (b->n_users == h->max_users || n_candidates > h->max_events)
        return fail(ERR_CONFIG, "a batch of %d users and %d candidates is full", h->max_users,
                    h->max_events);
    int32_t room = h->max_events - n_candidates;
    if (room > h->max_history) room = h->max_history;
    uint64_t n = u->n < (uint64_t)room ? u->n : (uint64_t)room;
    if (b->n_tokens + (int64_t)n + n_candidates > h->max_rows)
        return fail(ERR_CONFIG, "a batch of %lld events is full", (long long)h->max_rows);
    int32_t user = b->n_users++;
    put_events(b, u, n, n_skipped);
    put_candidates(b, u, candidate, (size_t)n_candidates);
    b->users[user] = u->user;
    b->n_targets[user] = n_candidates;
    b->offsets[user + 1] = b->n_tokens;
    memcpy(b->context + (size_t)user * (size_t)b->n_context, u->context,
           (size_t)b->n_context * sizeof *b->context);
    return OK;
}

enum { ID_BYTES = 4096, SHOWN_ID = 100 };
static const double MAX_SECONDS = 1e12; /* the year 33658 */

/* An event while it is read; item 0: the data do not have it. */
typedef struct event {
    uint32_t item;
    uint16_t action;
    int64_t time;
    bool has_time, has_item;
} event;

static status append(given_history *g, const event *e) {
    size_t n = g->n;
    if (e->item == 0) return OK;
    if (n > 0 && e->has_time != g->has_times)
        return fail(ERR_USAGE,
                    "event %zu %s a time and those before it %s: give a time for all "
                    "events or for none",
                    n + 1, e->has_time ? "has" : "has not", e->has_time ? "have none" : "have one");
    if (n > 0 && e->has_time && e->time < g->time[n - 1])
        return fail(ERR_USAGE, "event %zu is earlier than the one before it: put the oldest first",
                    n + 1);
    TRY(MEM_RESERVE(&g->item, &g->capacity[0], n + 1));
    TRY(MEM_RESERVE(&g->action, &g->capacity[1], n + 1));
    TRY(MEM_RESERVE(&g->time, &g->capacity[2], n + 1));
    g->item[n] = e->item;
    g->action[n] = e->action;
    g->time[n] = e->time;
    g->has_times = e->has_time;
    g->n++;
    return OK;
}

/* e->item = the item of an id; 0: it is unknown, and listed. */
static void find_item(given_history *g, const seq_file *data, const char *id, size_t n, event *e) {
    char text[ID_BYTES];
    e->has_item = true;
    if (n < sizeof text && memchr(id, '\0', n) == NULL) {
        memcpy(text, id, n);
        text[n] = '\0';
        e->item = seq_find_item(data, text);
    }
    if (e->item == 0) escape_list_add(g->unknown, sizeof g->unknown, id, n);
}

static bool is_separator(char c) {
    return c == ',' || c == '\r' || c == '\n';
}

/* Ids separated by single commas or line ends. */
static status read_list(given_history *g, const seq_file *data, const char *text, size_t n) {
    for (size_t at = 0; at <= n;) {
        event e = {.action = ACTION_UNKNOWN};
        size_t length = 0;
        while (at + length < n && !is_separator(text[at + length]))
            length++;
        if (length == 0)
            return fail(ERR_USAGE,
                        "separate ids by single commas, as in 12,99; event %zu is "
                        "empty",
                        g->n + 1);
        find_item(g, data, text + at, length, &e);
        TRY(append(g, &e));
        at += length;
        if (at + 1 < n && text[at] == '\r' && text[at + 1] == '\n') at++;
        at++;
    }
    return OK;
}

static status read_id(given_history *g, const seq_file *data, const json_value *v, event *e) {
    char digits[24];
    if (v->type != JSON_STRING && (v->type != JSON_NUMBER || !v->is_integer))
        return fail(ERR_USAGE, "an item's id is a whole number or a string");
    if (v->type == JSON_STRING)
        find_item(g, data, v->string, v->string_bytes, e);
    else
        find_item(g, data, digits, (size_t)snprintf(digits, sizeof digits, "%" PRId64, v->integer),
                  e);
    return OK;
}

static status read_time(const seq_file *data, const json_value *v, event *e) {
    int64_t ticks = data->time_per_second;
    if (v->type != JSON_NUMBER ||
        !(fabs(v->number) <= fmin(MAX_SECONDS, (double)(INT64_MAX / ticks - 1))))
        return fail(ERR_USAGE, "a time is a number of seconds since 1970, as in 1900000000");
    e->time = v->is_integer ? v->integer * ticks : (int64_t)floor(v->number * (double)ticks);
    e->has_time = true;
    return OK;
}

static int32_t count_actions(const seq_file *data, int32_t n_actions) {
    if (n_actions > 0) return n_actions;
    return data->actions != ACTION_NONE ? action_kind_count(data->actions) : 1;
}

static status read_action(const seq_file *data, int32_t n_actions, const json_value *v, event *e) {
    int32_t n = count_actions(data, n_actions);
    if (v->type == JSON_STRING && seq_find_action(data, v->string, v->string_bytes, &e->action) &&
        (e->action < n || e->action == ACTION_UNKNOWN))
        return OK;
    if (v->type != JSON_NUMBER || !v->is_integer || v->integer < 0 ||
        (v->integer >= n && v->integer != ACTION_UNKNOWN))
        return fail(ERR_USAGE, "an action of %s is a whole number from 0 to %d%s%.200s", data->path,
                    n - 1, data->action_map != NULL ? ", or a name of " : "",
                    data->action_map != NULL ? data->action_map : "");
    e->action = (uint16_t)v->integer;
    return OK;
}

static status read_rating(const seq_file *data, int32_t n_actions, const json_value *v, event *e) {
    int32_t n = count_actions(data, n_actions);
    if (seq_find_rating(data, v->type == JSON_NUMBER ? v->number : -1, &e->action) && e->action < n)
        return OK;
    if (data->actions != ACTION_STARS && data->actions != ACTION_HALF_STARS)
        return fail(ERR_USAGE, "%s has no ratings; give an \"action\"", data->path);
    return fail(ERR_USAGE, "a rating of %s is a number from %g to %g", data->path,
                seq_rating(data, 0), seq_rating(data, (uint16_t)(n - 1)));
}

static status read_event(given_history *g, const seq_file *data, int32_t n_actions,
                         const json_value *v, event *e) {
    if (v->type != JSON_OBJECT || g->is_list) return read_id(g, data, v, e);
    for (const json_value *m = v->first; m != NULL; m = m->next) {
        if (strcmp(m->key, "item") == 0)
            TRY(read_id(g, data, m, e));
        else if (strcmp(m->key, "time") == 0)
            TRY(read_time(data, m, e));
        else if (strcmp(m->key, "action") == 0)
            TRY(read_action(data, n_actions, m, e));
        else if (strcmp(m->key, "rating") == 0)
            TRY(read_rating(data, n_actions, m, e));
        else
            return fail(ERR_USAGE,
                        "'%.40s' is not a member of an event; it has item, time, and "
                        "action or rating",
                        m->key);
    }
    return e->has_item ? OK : fail(ERR_USAGE, "it has no \"item\"");
}

static status read_json(given_history *g, const seq_file *data, int32_t n_actions, const char *text,
                        size_t n) {
    arena a;
    const json_value *root;
    arena_init(&a, 16 << 10);
    status st = json_parse(&a, "the history", text, n, &root);
    if (st == ERR_FORMAT) st = fail_prefix(ERR_USAGE, "it begins like JSON");
    for (const json_value *v = st == OK ? root->first : NULL; st == OK && v != NULL; v = v->next) {
        event e = {.action = ACTION_UNKNOWN};
        st = read_event(g, data, n_actions, v, &e);
        if (st != OK) st = fail_prefix(st, "event %zu", g->n + 1);
        if (st == OK) st = append(g, &e);
    }
    arena_fini(&a);
    return st;
}

static bool is_space(char c) {
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

status given_history_read(given_history *out, const seq_file *data, int32_t n_actions,
                          const char *text, size_t n) {
    *out = (given_history){.is_list = n_actions < 0};
    size_t blank = 0;
    while (n > 0 && is_space(text[n - 1]))
        n--;
    while (blank < n && is_space(text[blank]))
        blank++;
    bool is_json = blank < n && text[blank] == '[';
    TRY(is_json ? read_json(out, data, n_actions, text + blank, n - blank)
                : read_list(out, data, text, n));
    if (out->n == 0 && out->unknown[0] != '\0')
        return fail(ERR_USAGE, "%s has no item %s", data->path, out->unknown);
    if (out->n == 0) return fail(ERR_USAGE, "it has no events");
    for (size_t i = 0; i < out->n && !out->has_times; i++)
        out->time[i] = untimed_seconds(i) * data->time_per_second;
    return OK;
}

void given_history_fini(given_history *g) {
    MEM_FREE(g->item, g->action, g->time);
    *g = (given_history){0};
}

user_events given_history_events(const given_history *g, const seq_file *data) {
    return (user_events){
        .user = data->n_users, .n = g->n, .item = g->item, .action = g->action, .time = g->time};
}
