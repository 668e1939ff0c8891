#include "serve/engine/job.h"

enum { MAX_IDS = 1 << 20, NS_PER_SECOND = 1000000000 };

/* Events on their way into a window, in the model's numbers. */
typedef struct window {
    const served *m;
    uint64_t n;         /* events of the history */
    uint64_t n_unknown; /* of them */
    int32_t *seen;
    int32_t n_seen;
    seen_rule hides;
    int32_t n_kept; /* at the end of the arrays below (max_history), oldest first */
    uint32_t *item;
    uint16_t *action;
    int64_t *time; /* NULL: the model reads none */
} window;

static int64_t time_of_seconds(int64_t seconds, int64_t tps) {
    int64_t time;
    if (__builtin_mul_overflow(seconds, tps, &time)) return seconds < 0 ? INT64_MIN : INT64_MAX;
    return time;
}

/* Only whole seconds count in a model, and so the ticks of data and model may differ. */
static int64_t model_time(const served *m, const users *u, int64_t ticks) {
    int64_t tps = m->names->time_per_second;
    return u->ticks == tps ? ticks : time_of_seconds(seq_seconds(ticks, u->ticks), tps);
}

/* Takes the events of a history from the newest on; item and time are the model's. */
static void take_event(window *w, uint32_t item, uint16_t action, int64_t time) {
    const served *m = w->m;
    bool is_legal = !m->is_ranking || action < m->s->limits.n_actions || action == ACTION_UNKNOWN;
    w->n++;
    if (item == 0 || !is_legal) {
        w->n_unknown++;
        return;
    }
    int32_t row = seen_hides(&w->hides, action) ? m->infer.table.items.row[item] : -1;
    if (row >= 0) w->seen[w->n_seen++] = row;
    if (w->n_kept == m->s->max_history) return;
    int32_t at = m->s->max_history - ++w->n_kept;
    w->item[at] = item;
    w->action[at] = action;
    if (w->time != NULL) w->time[at] = time;
}

/* An event that came with the request. */
typedef struct given_event {
    int64_t time;    /* ticks, by which they are sorted */
    int64_t seconds; /* the whole ones of it */
    uint32_t item, order;
    uint16_t action;
} given_event;

static int compare_given(const void *a, const void *b) {
    const given_event *x = a, *y = b;
    if (x->time != y->time) return x->time < y->time ? -1 : 1;
    return (x->order > y->order) - (x->order < y->order);
}

/* Clients send them in order, mostly. */
static bool is_sorted(const given_event *e, size_t n) {
    for (size_t i = 1; i < n; i++)
        if (e[i].time < e[i - 1].time) return false;
    return true;
}

/* The time of event i of a request.  Without one, an event that is added to a history is of now; a
 * whole history has times or has none. */
static status time_given(const users *u, const engine_request *r, const engine_event *e, size_t i,
                         int64_t now, given_event *g) {
    engine_event x = {.has_time = true, .time = e[i].time, .time_ns = e[i].time_ns};
    if (!e[i].has_time && r->has_history) x.time = untimed_seconds(i);
    if (!e[i].has_time && !r->has_history) users_time(u, now, &x.time, &x.time_ns);
    if (r->has_history && e[i].has_time != e[0].has_time)
        return fail(ERR_USAGE, "give a time for all events of a history or for none");
    g->seconds = x.time;
    return users_ticks(u, &x, now, &g->time);
}

/* Looks up events of a request and sorts them by time. */
static status read_given(arena *a, const served *m, const users *u, const engine_request *r,
                         const engine_event *e, size_t n, given_event **out) {
    if (n > MAX_IDS)
        return fail(ERR_USAGE, "%zu events in a request; at most %d are taken", n, MAX_IDS);
    int64_t now = users_now(u);
    TRY(ARENA_NEW_RAW(a, out, n));
    for (size_t i = 0; i < n; i++) {
        given_event *g = &(*out)[i];
        status st = served_find_near(m, &e[i].item, "the item", &g->item);
        if (st == OK) st = time_given(u, r, e, i, now, g);
        if (st != OK) return fail_prefix(st, "event %zu", i + 1);
        g->action = e[i].action;
        g->order = (uint32_t)i;
    }
    if (!is_sorted(*out, n)) qsort(*out, n, sizeof **out, compare_given);
    return OK;
}

static void read_context(job *j, const users *u, uint64_t data_user) {
    const served *m = j->m;
    const seq_file *data = u->data;
    j->q.events.user = data_user;
    if (data == NULL || data_user >= u->n_data_users) return;
    for (int f = 0; f < m->names->n_context; f++) {
        int from = m->map.feature[f];
        if (from < 0) continue;
        j->q.events.context[f] = m->map.context[f][data->context[from].value[data_user]];
    }
}

static status fail_context(const seq_file *names, const char *name) {
    char list[512] = "", hint[80];
    for (int f = 0; f < names->n_context; f++)
        escape_list_add(list, sizeof list, names->context[f].name, strlen(names->context[f].name));
    return fail(ERR_USAGE, "context: the model has no feature '%.64s'%s%s%s", name,
                nearest_hint(hint, name, list), list[0] != '\0' ? "; it has " : "", list);
}

static status read_given_context(job *j, const engine_request *r) {
    const seq_file *names = j->m->names;
    for (size_t i = 0; i < r->n_context; i++) {
        const engine_context *c = &r->context[i];
        id_text id;
        int f = 0;
        while (f < names->n_context && strcmp(names->context[f].name, c->name) != 0)
            f++;
        if (f == names->n_context) return fail_context(names, c->name);
        TRY(id_text_make(&id, &c->value, "a value of the context"));
        j->q.events.context[f] = seq_find_value(&names->context[f], id.text, id.n);
    }
    return OK;
}

/* What is kept of the user, and the context of the user's requests; under the lock of the users. */
static status read_user(job *j, const engine_request *r, const users *u, user_history *h) {
    id_text id;
    *h = (user_history){0};
    j->q.events.user = u->n_data_users;
    if (!r->has_user) return OK;
    TRY(id_text_make(&id, &r->user, "the user"));
    *h = users_history(u, &id);
    read_context(j, u, h->is_known ? h->data_user : u->n_data_users);
    if (r->has_history) h->n = 0;
    return OK;
}

/* For a history of n events. */
static status alloc_window(job *j, const engine_request *r, uint64_t n, window *w) {
    size_t room = (size_t)j->m->s->max_history;
    if (w->item != NULL) return OK;
    TRY(ARENA_NEW_RAW(j->arena, &w->seen, n * !w->hides.keeps_all));
    TRY(ARENA_NEW_RAW(j->arena, &w->action, room));
    if (j->m->reads_times) TRY(ARENA_NEW_RAW(j->arena, &w->time, room));
    return ARENA_NEW_RAW(j->arena, &w->item, room);
}

/* Merges what is kept of the user with what came with the request, newest first; of equal times
 * events of the request are the newer ones. */
static status merge_window(job *j, const engine_request *r, const users *u,
                           const given_event *given, size_t n_given, window *w) {
    user_history h;
    int64_t tps = j->m->names->time_per_second;
    bool is_same = u->ticks == tps;
    TRY(read_user(j, r, u, &h));
    TRY(alloc_window(j, r, h.n + n_given, w));
    if (h.n > 0) TRY(served_know_items(j->m, u));
    while (h.n > 0 || n_given > 0) {
        stored_event own = h.n > 0 ? user_history_at(&h, h.n - 1) : (stored_event){0};
        if (n_given > 0 && (h.n == 0 || given[n_given - 1].time >= own.time)) {
            const given_event *g = &given[--n_given];
            take_event(w, g->item, g->action, is_same ? g->time : time_of_seconds(g->seconds, tps));
        } else {
            h.n--;
            take_event(w, served_item(j->m, u, own.item), own.action,
                       model_time(j->m, u, own.time));
        }
    }
    return OK;
}

/* Takes a whole history at once where it is as most are: in order of time, of items that the model
 * knows by dense numbers, with legal actions, all with times or all without.  False: it
 * is not, and nothing is taken. */
static bool take_plain(window *w, const users *u, const engine_event *e, size_t n) {
    const served *m = w->m;
    int64_t tps = m->names->time_per_second, ticks = u->ticks == tps ? tps : 0;
    int64_t most = INT64_MAX / (u->ticks > tps ? u->ticks : tps) - 1, before = -most;
    uint32_t before_ns = 0, n_actions = UINT32_MAX;
    size_t room = (size_t)m->s->max_history, first = n > room ? n - room : 0,
           at = room - (n - first);
    if (m->is_ranking) n_actions = (uint32_t)m->s->limits.n_actions;
    for (size_t i = 0; i < n; i++) {
        const engine_event *x = &e[i];
        int64_t time = x->has_time ? x->time : untimed_seconds(i);
        uint64_t number = (uint64_t)x->item.number - (uint64_t)m->first_id;
        bool is_legal = x->action < n_actions || x->action == ACTION_UNKNOWN;
        bool is_known = x->item.text == NULL && number < m->n_dense && is_legal;
        bool is_later = time > before || (time == before && x->time_ns >= before_ns);
        if (!is_known || !is_later || x->has_time != e[0].has_time || time > most ||
            x->time_ns >= NS_PER_SECOND)
            return false;
        before = time;
        before_ns = x->time_ns;
        if (i < first) continue;
        w->item[at] = (uint32_t)(1 + number);
        w->action[at] = x->action;
        if (w->time != NULL) w->time[at] = time * tps + (int64_t)x->time_ns * ticks / NS_PER_SECOND;
        at++;
    }
    for (size_t i = 0; i < n && !w->hides.keeps_all; i++) {
        int32_t row = m->infer.table.items.row[1 + (e[i].item.number - m->first_id)];
        if (row >= 0 && seen_hides(&w->hides, e[i].action)) w->seen[w->n_seen++] = row;
    }
    w->n = n;
    w->n_kept = (int32_t)(n - first);
    return true;
}

static status take_alone(job *j, const engine_request *r, const job_users *from, bool *is_taken,
                         window *w) {
    user_history none;
    TRY(alloc_window(j, r, r->n_history, w));
    *is_taken = r->n_history <= MAX_IDS && take_plain(w, from->users, r->history, r->n_history);
    if (!*is_taken) return OK;
    if (!r->has_user) return read_user(j, r, from->users, &none);
    pthread_mutex_lock(from->lock);
    status st = read_user(j, r, from->users, &none);
    pthread_mutex_unlock(from->lock);
    return st;
}

/* What came with the request is looked up before the users are locked. */
static status read_window(job *j, const engine_request *r, const job_users *from, window *w) {
    const engine_event *events = r->has_history ? r->history : r->extra;
    size_t n_given = r->has_history ? r->n_history : r->n_extra;
    given_event *given;
    bool is_taken = false;
    if (r->has_history) TRY(take_alone(j, r, from, &is_taken, w));
    if (is_taken) return OK;
    TRY(read_given(j->arena, j->m, from->users, r, events, n_given, &given));
    if (!r->has_user) return merge_window(j, r, from->users, given, n_given, w);
    pthread_mutex_lock(from->lock);
    status st = merge_window(j, r, from->users, given, n_given, w);
    pthread_mutex_unlock(from->lock);
    return st;
}

/* Looks up n ids; *n_unknown grows. */
static status read_ids(job *j, const engine_id *ids, size_t n, const char *what, uint32_t *out) {
    if (n > MAX_IDS)
        return fail(ERR_USAGE, "%zu ids of %s; at most %d are taken", n, what, MAX_IDS);
    for (size_t i = 0; i < n; i++) {
        TRY(served_find_near(j->m, &ids[i], what, &out[i]));
        j->out->n_unknown += out[i] == 0;
    }
    return OK;
}

/* What is left out of the list, and its rules. */
static status read_filters(job *j, const engine_request *r, window *w) {
    infer *f = &j->m->infer;
    infer_query *q = &j->q;
    item_rules *rules;
    q->seen = w->seen;
    q->n_seen = w->n_seen;
    TRY(infer_distinct(f, j->arena, w->seen, &q->n_seen));
    if (r->rules == NULL) return OK;
    TRY(ARENA_NEW(j->arena, &rules, 1));
    TRY(item_rules_read(rules, j->arena, &f->filters, f->table.items.row, r->top_k, r->rules,
                        &j->out->n_unknown));
    return infer_use_rules(f, j->arena, rules, q);
}

/* For a user of whom nothing is known. */
static status copy_popular(job *j, const users *u) {
    served *m = j->m;
    TRY(served_find_popular(m, u));
    return infer_popular(&m->infer, j->arena, &j->q, m->popular, m->n_popular);
}

static status read_popular(job *j, const job_users *from) {
    pthread_mutex_lock(from->lock);
    status st = copy_popular(j, from->users);
    pthread_mutex_unlock(from->lock);
    return st;
}

/* Ids must outlive the request: the answer names candidates that the model does not know. */
static status copy_unknown(job *j, const engine_id *ids, size_t n) {
    if (j->out->n_unknown == 0) return OK;
    TRY(ARENA_NEW(j->arena, &j->candidate_id, n));
    for (size_t i = 0; i < n; i++) {
        if (j->q.candidate[i] != 0) continue;
        j->candidate_id[i] = ids[i];
        if (ids[i].text != NULL)
            TRY(arena_copy_text(j->arena, ids[i].text, ids[i].n, &j->candidate_id[i].text));
    }
    return OK;
}

static status read_candidates(job *j, const engine_request *r) {
    size_t n = r->n_candidates;
    uint32_t *item;
    TRY(ARENA_NEW_RAW(j->arena, &item, n));
    TRY(read_ids(j, r->candidates, n, "candidates", item));
    j->q.candidate = item;
    TRY(copy_unknown(j, r->candidates, n));
    j->q.n_candidates = (int32_t)n;
    if (!j->m->is_ranking) return OK;
    size_t row = (size_t)j->m->infer.columns.width * act_bytes(j->m->compute.be->act);
    return arena_alloc_raw(j->arena, &j->q.logits, n, row);
}

static status check(const served *m, const engine_request *r) {
    if (!r->has_user && !r->has_history) return fail(ERR_USAGE, "give a user or a history");
    if (r->has_history && r->n_extra > 0)
        return fail(ERR_USAGE, "give either a whole history or extra events, not both");
    if (r->task == ENGINE_RANK) {
        if (r->n_candidates == 0) return fail(ERR_USAGE, "there are no candidates to rank");
        if (r->top_k < 0) return fail(ERR_USAGE, "top_k is %d; it must not be negative", r->top_k);
        if (r->rules != NULL)
            return fail(ERR_USAGE, "allow, deny, filter, boost, max_per and pin are for recommend; "
                                   "leave candidates out instead");
        return OK;
    }
    if (m->is_ranking)
        return fail(ERR_UNSUPPORTED, "this model ranks given candidates; recommending needs a "
                                     "retrieval model");
    if (r->n_candidates > 0)
        return fail(ERR_USAGE, "recommend searches the whole catalogue; give allow instead of "
                               "candidates, or rank them");
    if (r->top_k < 1 || r->top_k > ENGINE_MAX_K)
        return fail(ERR_USAGE, "top_k is %d; it must be 1 to %d", r->top_k, ENGINE_MAX_K);
    return OK;
}

enum { TOKEN_CONTEXT = 1, TOKEN_ITEM, TOKEN_ACTION };

static uint64_t what(uint64_t kind, uint64_t feature, uint64_t value) {
    return kind << 60 | feature << 32 | value;
}

/* The token of an event's item; where the model adds the action to it, that is part of it. */
static uint64_t what_item(const job *j, uint64_t i) {
    const user_events *e = &j->q.events;
    bool is_added = j->m->infer.per_event == 1 && j->m->s->limits.n_actions > 0;
    return what(TOKEN_ITEM, is_added ? 1u + e->action[i] : 0, e->item[i]);
}

/* What the model reads of a history, token by token: all that the rows of a token depend on is in
 * it and in the tokens before. */
static void list_whats(const job *j, uint64_t *t) {
    const user_events *e = &j->q.events;
    for (int32_t f = 0; f < j->m->infer.n_context; f++)
        *t++ = what(TOKEN_CONTEXT, (uint64_t)f, e->context[f]);
    if (j->m->infer.per_event == 1) {
        for (uint64_t i = 0; i < e->n; i++)
            t[i] = what_item(j, i);
        return;
    }
#pragma omp simd
    for (uint64_t i = 0; i < e->n; i++) {
        t[2 * i] = what(TOKEN_ITEM, 0, e->item[i]);
        t[2 * i + 1] = what(TOKEN_ACTION, 0, e->action[i]);
    }
}

/* The same with times. */
static void list_timed(const job *j, kv_token *t) {
    const user_events *e = &j->q.events;
    int64_t tps = j->m->names->time_per_second;
    for (int32_t f = 0; f < j->m->infer.n_context; f++)
        *t++ = (kv_token){.what = what(TOKEN_CONTEXT, (uint64_t)f, e->context[f])};
    for (uint64_t i = 0; i < e->n; i++) {
        uint64_t next = i + 1 < e->n ? i + 1 : i;
        *t++ = (kv_token){.what = what_item(j, i),
                          .time = seq_seconds(e->time[i], tps),
                          .seen_at = seq_seconds(e->time[next], tps)};
        if (j->m->infer.per_event == 2)
            *t++ = (kv_token){.what = what(TOKEN_ACTION, 0, e->action[i])};
    }
}

/* Here and not by the worker: callers are many.  Where the worker is at the cache, it looks for the
 * pages itself. */
static void find_pages(job *j) {
    served *m = j->m;
    enum { LOOKS = 100 }; /* a few microseconds: the worker holds pages of one job for as long */
    bool has_lock = false;
    for (int i = 0; i < LOOKS && !has_lock; i++) {
        has_lock = pthread_rwlock_tryrdlock(&m->cache_lock) == 0;
        if (!has_lock) thread_pause();
    }
    if (!has_lock) return;
    kv_cache_probe(m->cache, j->tokens, j->n_tokens, &j->path);
    pthread_rwlock_unlock(&m->cache_lock);
}

static status list_tokens(job *j) {
    if (j->m->cache == NULL) return OK;
    size_t n = (size_t)j->n_tokens, bytes = served_token_bytes(j->m);
    TRY(arena_alloc_raw(j->arena, &j->tokens, n, bytes));
    if (j->m->reads_times)
        list_timed(j, j->tokens);
    else
        list_whats(j, j->tokens);
    TRY(ARENA_NEW_RAW(j->arena, &j->path.page, (size_t)(j->n_tokens / KV_PAGE + 1)));
    find_pages(j);
    return OK;
}

static status fill(job *j, const engine_request *r, const job_users *from) {
    window w = {.m = j->m};
    bool keeps_seen = r->keeps_seen || r->task == ENGINE_RANK;
    TRY(session_seen(j->m->s, keeps_seen ? "none" : r->exclude_seen, &w.hides));
    TRY(read_window(j, r, from, &w));
    TRY(read_given_context(j, r));
    int32_t first = j->m->s->max_history - w.n_kept;
    j->q.events.n = (uint64_t)w.n_kept;
    j->q.events.item = w.item + first;
    j->q.events.action = w.action + first;
    j->q.events.time = w.time != NULL ? w.time + first : NULL;
    j->out->n_events = w.n;
    j->out->n_window = w.n_kept;
    j->out->n_unknown_events = w.n_unknown;
    j->n_tokens = infer_tokens(&j->m->infer, j->q.events.n);
    TRY(list_tokens(j));
    if (r->wants_vector && !j->m->is_ranking)
        TRY(ARENA_NEW(j->arena, &j->q.vector, (size_t)j->m->infer.table.dim));
    if (r->task == ENGINE_RANK) return read_candidates(j, r);
    j->q.k = r->top_k;
    TRY(ARENA_NEW_RAW(j->arena, &j->q.item, (size_t)r->top_k));
    TRY(ARENA_NEW_RAW(j->arena, &j->q.score, (size_t)r->top_k));
    TRY(read_filters(j, r, &w));
    return infer_knows(&j->m->infer, &j->q) ? OK : read_popular(j, from);
}

status job_make(job **out, engine_answer *answer, const engine_request *r, const job_users *from) {
    served *m = answer->memory->model;
    job *j;
    *out = NULL;
    TRY(check(m, r));
    TRY(ARENA_NEW(&answer->memory->arena, &j, 1));
    *j = (job){.out = answer,
               .m = m,
               .arena = &answer->memory->arena,
               .task = r->task,
               .top_k = r->top_k,
               .priority = r->priority};
    TRY(fill(j, r, from));
    int32_t n_targets = m->is_ranking ? j->q.n_candidates : 0;
    j->flops = served_flops(m, j->n_tokens, n_targets);
    *out = j;
    return OK;
}

void job_move(job *j, served *to) {
    infer_query *q = &j->q;
    j->m = j->out->memory->model = to;
    j->out->columns = to->infer.columns.names;
    j->out->error[0] = '\0';
    j->out->retry_after_s = 0;
    j->out->tokens_loaded = 0;
    j->path = (kv_path){.page = j->path.page};
    j->named = NULL; /* their titles are the old model's */
    q->n_computed = q->n_reused = q->n_logits = 0;
    if (infer_knows(&to->infer, q)) q->n_best = 0; /* else the popular items are there already */
}

/* The items of an answer, from the results of its job. */

static status answer_items(job *j) {
    const infer_query *q = &j->q;
    engine_item *to;
    TRY(ARENA_NEW(j->arena, &to, (size_t)q->n_best));
    for (int32_t i = 0; i < q->n_best; i++) {
        to[i] = served_item_names(j->m, q->item[i]);
        to[i].place = (uint32_t)i;
        to[i].values = &q->score[i];
    }
    j->out->items = to;
    j->out->n_items = (size_t)q->n_best;
    return OK;
}

status job_similar(engine_answer *answer, const engine_request *r) {
    static const char *const columns[] = {"score"};
    served *m = answer->memory->model;
    job j = {.out = answer, .m = m, .arena = &answer->memory->arena};
    window w = {.m = m};
    uint32_t *item;
    size_t n = r->n_candidates, k = (size_t)r->top_k;
    TRY(ARENA_NEW_RAW(j.arena, &item, n));
    TRY(ARENA_NEW_RAW(j.arena, &w.seen, n));
    TRY(ARENA_NEW_RAW(j.arena, &j.q.item, k));
    TRY(ARENA_NEW_RAW(j.arena, &j.q.score, k));
    TRY(read_ids(&j, r->candidates, n, "items", item));
    for (size_t i = 0; i < n; i++)
        if (item[i] > 0 && m->infer.table.items.row[item[i]] >= 0)
            w.seen[w.n_seen++] = m->infer.table.items.row[item[i]];
    j.q.k = r->top_k;
    TRY(read_filters(&j, r, &w));
    if (w.n_seen > 0) TRY(infer_similar(&m->infer, j.arena, &j.q));
    answer->source = w.n_seen > 0 ? ENGINE_FROM_MODEL : ENGINE_FROM_NOTHING;
    answer->columns = columns;
    answer->n_columns = 1;
    return answer_items(&j);
}

/* A number that is less for candidates that come first: by value downwards, those without one last;
 * of equal ones the first given comes first, as the sort is stable. */
static uint64_t order_key(float value) {
    uint32_t bits;
    if (isnan(value)) return UINT32_MAX;
    value += 0.0f; /* -0 and 0 are equal */
    memcpy(&bits, &value, sizeof bits);
    return bits >> 31 ? bits : ~(bits | 1u << 31); /* descending as the values are ascending */
}

/* Memory is cleared even where it is overwritten: so it is in this core's caches when the results
 * come. */
status job_name_candidates(job *j) {
    size_t n = (size_t)j->q.n_candidates, width = (size_t)j->m->infer.columns.n;
    if (j->named != NULL) return OK;
    if (j->q.logits != NULL && j->m->compute.be->act != ACT_F32)
        TRY(ARENA_NEW(j->arena, &j->wide, n * (size_t)j->m->infer.columns.width));
    TRY(ARENA_NEW(j->arena, &j->q.values, n * width));
    TRY(ARENA_NEW(j->arena, &j->keys, 2 * n));
    TRY(ARENA_NEW(j->arena, &j->named, n));
    for (size_t i = 0; i < n; i++) {
        engine_item *to = &j->named[i];
        if (j->q.candidate[i] != 0)
            *to = served_item_names(j->m, j->q.candidate[i]);
        else
            to->id = j->candidate_id[i];
        to->place = (uint32_t)i;
        to->values = j->q.values + i * width;
    }
    for (size_t i = 0; i < n * width; i++)
        j->q.values[i] = NAN;
    return OK;
}

static sort_pair *find_order(job *j) {
    size_t n = (size_t)j->q.n_candidates, width = (size_t)j->m->infer.columns.n;
    for (size_t i = 0; i < n; i++)
        j->keys[i] = (sort_pair){order_key(j->q.values[i * width]), (uint32_t)i};
    return sort_pairs(j->keys, j->keys + n, n);
}

static status answer_candidates(job *j) {
    int32_t n = j->q.n_candidates;
    engine_item *best;
    TRY(job_name_candidates(j));
    if (j->q.logits != NULL) infer_finish(&j->m->infer, &j->q, j->wide);
    j->out->items = j->named;
    j->out->n_items = (size_t)(j->top_k > 0 && j->top_k < n ? j->top_k : n);
    if (j->top_k == 0) return OK;
    TRY(ARENA_NEW_RAW(j->arena, &best, j->out->n_items));
    const sort_pair *order = find_order(j);
    for (size_t i = 0; i < j->out->n_items; i++)
        best[i] = j->named[order[i].place];
    j->out->items = best;
    return OK;
}

status job_answer(job *j) {
    return j->task == ENGINE_RANK ? answer_candidates(j) : answer_items(j);
}
