/* hstu certify: how far a model's recommendations hold when the events of a history change a
 * little: embeddings that move, an event that is left out, an event that is another item. */
#include "model/certify.h"
#include "cli/model/users.h"
#include "cli/work.h"
#include "model/infer.h"
#include "model/trained.h"
#include "train/files/run_config.h"
#include "train/report/report.h"

enum { MAX_EPS = 16, AGES = 32, MAX_K = 100 };

typedef struct certify_args {
    const char *path, *checkpoint, *data, *eps_text, *items;
    user_choice users;
    int64_t sample, k, n_replaced;
    bool is_json, leaves_out, is_data_found;
    double eps[MAX_EPS];
    int n_eps;
    int32_t n_moved;
} certify_args;

/* What one user's list does. */
typedef struct user_result {
    uint64_t user;
    int32_t n_events, n_list;
    certified ball[MAX_EPS];
    certified_item *list;               /* (k) */
    double (*range)[MAX_EPS][2];        /* (k) low and high */
    int32_t n_out, out_first, out_list; /* events left out; after how many the list was another */
    uint32_t by_age[2]; /* of the best item, of the list: bit 0 is the newest event */
    certified replaced[AGES];
    int32_t n_replaced;
} user_result;

typedef struct service {
    const certify_args *a;
    session *s;
    user_result *user; /* (n) */
    size_t n, capacity;
    certify **of; /* (threads) */
    int n_of;
    model_items items;
    progress bar;
    uint64_t n_done;
    pthread_mutex_t lock;
    infer infer;
    arena memory;
} service;

/* The events that the model reads and the one before them, which takes the place of one that is
 * left out; and the rows of all that the user has had. */
static status open_user(const service *v, uint64_t user, arena *a, user_events *window,
                        int32_t **seen, int32_t *n_seen) {
    user_events u = user_events_of(v->s->data, user);
    uint64_t n = u.n <= (uint64_t)v->s->max_history ? u.n : (uint64_t)v->s->max_history + 1;
    *window = u;
    *n_seen = 0;
    TRY(ARENA_NEW_RAW(a, seen, (size_t)u.n + 1));
    for (uint64_t i = 0; i < u.n; i++) {
        int32_t row = v->items.row[u.item[i]];
        if (row >= 0) (*seen)[(*n_seen)++] = row;
    }
    *n_seen = sort_distinct(*seen, *n_seen);
    window->n = n;
    window->item += u.n - n;
    window->action += u.n - n;
    if (u.time != NULL) window->time += u.n - n;
    return OK;
}

static status certify_one(service *v, certify *c, user_result *r, arena *scratch) {
    user_events u;
    int32_t *seen, n_seen;
    const certified_item *list;
    TRY(open_user(v, r->user, scratch, &u, &seen, &n_seen));
    uint64_t before = u.n > (uint64_t)v->s->max_history; /* an event that is not read */
    bounds_query q = {.n = (int32_t)(u.n - before),
                      .item = u.item + before,
                      .time = u.time + before,
                      .n_moved = v->a->n_moved};
    TRY(certify_user(c, &q, seen, n_seen));
    r->n_events = q.n;
    r->n_list = certify_list(c, &list);
    memcpy(r->list, list, (size_t)r->n_list * sizeof *list);
    for (int e = 0; e < v->a->n_eps; e++) {
        certified *ball = &r->ball[e];
        TRY(certify_ball(c, v->a->eps[e], e > 0 ? ball - 1 : NULL, ball));
        for (int32_t i = 0; i < r->n_list; i++) {
            r->range[i][e][0] = list[i].low;
            r->range[i][e][1] = list[i].high;
        }
    }
    return OK;
}

static status certify_chunk(void *ctx, int64_t i, int worker) {
    service *v = ctx;
    arena scratch;
    arena_init(&scratch, 1 << 12);
    status st = certify_one(v, v->of[worker], &v->user[i], &scratch);
    arena_fini(&scratch);
    pthread_mutex_lock(&v->lock);
    progress_update(&v->bar, ++v->n_done);
    pthread_mutex_unlock(&v->lock);
    return st;
}

/* A history that differs from the user's in event `at`, which is left out (item 0) or another item;
 * at = n: the history itself. */
static status add_variant(service *v, arena *a, infer_query *q, const infer_query *own, uint64_t at,
                          uint32_t item) {
    const user_events *u = &own->events;
    uint32_t *items;
    int64_t *times;
    uint64_t n_after = u->n - at - 1, skips = item == 0;
    *q = (infer_query){
        .events = *u, .k = (int32_t)v->a->k, .seen = own->seen, .n_seen = own->n_seen};
    TRY(ARENA_NEW(a, &q->item, (size_t)q->k));
    TRY(ARENA_NEW(a, &q->score, (size_t)q->k));
    if (at == u->n) return OK;
    TRY(ARENA_NEW_RAW(a, &items, (size_t)u->n));
    TRY(ARENA_NEW_RAW(a, &times, (size_t)u->n));
    memcpy(items, u->item, (size_t)u->n * sizeof *items);
    memcpy(times, u->time, (size_t)u->n * sizeof *times);
    if (skips) memmove(items + at, u->item + at + 1, (size_t)n_after * sizeof *items);
    if (skips) memmove(times + at, u->time + at + 1, (size_t)n_after * sizeof *times);
    if (!skips) items[at] = item;
    q->events.item = items;
    q->events.time = times;
    q->events.n -= skips;
    return OK;
}

/* Whether the best item, and the set of the k best, are others. */
static certified differs(const infer_query *own, const infer_query *q) {
    bool is_first = q->n_best != own->n_best || (own->n_best > 0 && q->item[0] != own->item[0]);
    bool is_list = q->n_best != own->n_best;
    for (int32_t i = 0; i < q->n_best && !is_list; i++) {
        bool is_there = false;
        for (int32_t k = 0; k < own->n_best; k++)
            is_there |= own->item[k] == q->item[i];
        is_list = !is_there;
    }
    return (certified){is_first ? VERDICT_CHANGED : VERDICT_UNCHANGED,
                       is_list ? VERDICT_CHANGED : VERDICT_UNCHANGED};
}

/* The lists that the program gives for variants. */
static status run_variants(service *v, arena *a, infer_query *q, int32_t n) {
    infer_query **run;
    TRY(ARENA_NEW(a, &run, (size_t)n));
    for (int32_t i = 0; i < n; i++)
        run[i] = &q[i];
    for (int32_t i = 0; i < n; i += v->infer.max_users)
        TRY(infer_run(&v->infer, run + i, n - i < v->infer.max_users ? n - i : v->infer.max_users,
                      NULL));
    return OK;
}

static status leave_out(service *v, user_result *r, const user_events *u, const infer_query *own,
                        arena *a) {
    infer_query *q;
    int32_t n = u->n < (uint64_t)v->a->n_moved ? (int32_t)u->n : v->a->n_moved;
    if (n > v->s->max_history) n = v->s->max_history;
    if (u->n < 2) return OK;
    TRY(ARENA_NEW(a, &q, (size_t)n));
    for (int32_t age = 0; age < n; age++)
        TRY(add_variant(v, a, &q[age], own, u->n - 1 - (uint64_t)age, 0));
    TRY(run_variants(v, a, q, n));
    r->n_out = n;
    for (int32_t age = 0; age < n; age++) {
        certified is = differs(own, &q[age]);
        r->out_first += (int32_t)is.first;
        r->out_list += (int32_t)is.list;
        if (age < AGES) r->by_age[0] |= (uint32_t)is.first << age;
        if (age < AGES) r->by_age[1] |= (uint32_t)is.list << age;
    }
    return OK;
}

/* Every other item in the place of one event, until both lists have changed. */
static status replace(service *v, user_result *r, const user_events *u, int32_t age,
                      const infer_query *own) {
    arena a;
    status st = OK;
    int32_t max = v->infer.max_users;
    uint64_t at = u->n - 1 - (uint64_t)age, n_items = v->s->data->n_items;
    certified *to = &r->replaced[age];
    *to = (certified){VERDICT_UNCHANGED, VERDICT_UNCHANGED};
    arena_init(&a, 1 << 16);
    for (uint64_t item = 1; st == OK && item <= n_items && to->first + to->list < 2;) {
        infer_query *q;
        int32_t n = 0;
        st = ARENA_NEW(&a, &q, (size_t)max);
        for (; st == OK && n < max && item <= n_items; item++)
            if (item != u->item[at]) st = add_variant(v, &a, &q[n++], own, at, (uint32_t)item);
        if (st == OK) st = run_variants(v, &a, q, n);
        for (int32_t i = 0; st == OK && i < n; i++) {
            certified is = differs(own, &q[i]);
            if (is.first == VERDICT_CHANGED) to->first = VERDICT_CHANGED;
            if (is.list == VERDICT_CHANGED) to->list = VERDICT_CHANGED;
        }
        arena_clear(&a);
    }
    arena_fini(&a);
    return st;
}

/* The bounds allow for so much between their arithmetic and the program's. */
static status check_slack(const user_result *r, const infer_query *own) {
    for (int32_t i = 0; i < own->n_best && i < r->n_list; i++)
        if (!(fabs((double)own->score[i] - r->list[i].score) <= BOUNDS_SLACK / 2))
            return fail(ERR_UNSUPPORTED,
                        "user number %" PRIu64 ": float32 gives the score %.7f where exact "
                        "arithmetic gives %.7f; bounds are for models without such differences",
                        r->user, (double)own->score[i], r->list[i].score);
    return OK;
}

static status try_variants(service *v, user_result *r, arena *a) {
    user_events u;
    int32_t *seen, n_seen;
    infer_query own;
    TRY(open_user(v, r->user, a, &u, &seen, &n_seen));
    infer_query asked = {.events = u, .seen = seen, .n_seen = n_seen};
    TRY(add_variant(v, a, &own, &asked, u.n, 0));
    TRY(run_variants(v, a, &own, 1));
    TRY(check_slack(r, &own));
    if (v->a->leaves_out) TRY(leave_out(v, r, &u, &own, a));
    while (r->n_replaced < v->a->n_replaced && (uint64_t)r->n_replaced < u.n)
        TRY(replace(v, r, &u, r->n_replaced++, &own));
    return OK;
}

/* The users. */

static status add_user(service *v, uint64_t user) {
    if (user_events_of(v->s->data, user).n == 0) return OK;
    TRY(MEM_RESERVE(&v->user, &v->capacity, v->n + 1));
    v->user[v->n] = (user_result){.user = user};
    TRY(ARENA_NEW(&v->memory, &v->user[v->n].list, (size_t)v->a->k));
    TRY(ARENA_NEW(&v->memory, &v->user[v->n].range, (size_t)v->a->k));
    v->n++;
    return OK;
}

static status add_id(service *v, const char *id) {
    uint64_t user = seq_find_user(v->s->data, id);
    if (user == UINT64_MAX) return fail(ERR_USAGE, "the data have no user %.100s", id);
    return add_user(v, user);
}

static status add_file(service *v, const char *path) {
    id_lines l;
    const char *id = NULL;
    status st = id_lines_open(&l, path);
    while (st == OK && (st = id_lines_next(&l, &id)) == OK && id != NULL)
        st = add_id(v, id);
    id_lines_close(&l);
    return st;
}

static status add_users(service *v) {
    const user_choice *c = &v->a->users;
    uint64_t n = v->s->data->n_users, n_sample = (uint64_t)v->a->sample;
    permutation order = permutation_make(n, 0, RNG_SHUFFLE, 0);
    for (size_t i = 0; i < c->users.n_items; i++)
        TRY(add_id(v, c->users.item[i]));
    if (c->file != NULL) TRY(add_file(v, c->file));
    for (uint64_t i = 0; i < n && (c->is_all || v->n < n_sample); i++)
        TRY(add_user(v, c->is_all ? i : permutation_at(&order, i)));
    if (v->n == 0) return fail(ERR_USAGE, "none of the users has an event");
    return OK;
}

/* Results. */

static double share_of(const service *v, int e, bool is_list, verdict what) {
    size_t n = 0;
    for (size_t i = 0; i < v->n; i++) {
        const certified *ball = &v->user[i].ball[e];
        n += (is_list ? ball->list : ball->first) == what;
    }
    return (double)n / (double)v->n;
}

/* Of the users with so many events: those whose item or list an event of this age changes. */
static double share_by_age(const service *v, int age, bool is_list) {
    size_t n = 0, n_changed = 0;
    for (size_t i = 0; i < v->n; i++) {
        n += v->user[i].n_out > age;
        n_changed += v->user[i].by_age[is_list] >> age & 1;
    }
    return n > 0 ? (double)n_changed / (double)n : NAN;
}

static void put_point(json_writer *w, double x, double y) {
    json_array_open(w);
    json_double(w, x);
    json_double(w, y);
    json_array_close(w);
}

static void begin_chart(json_writer *w, const char *title, const char *x) {
    json_object_open(w);
    json_key_string(w, "title", title);
    json_key_string(w, "x", x);
    json_key_object(w, "curves");
}

static void end_chart(json_writer *w) {
    json_object_close(w);
    json_object_close(w);
}

static void put_charts(const service *v, json_writer *w) {
    static const char *const names[2][2] = {{"best item unchanged", "best item changed"},
                                            {"list unchanged", "list changed"}};
    static const char *const left[2] = {"best item", "list"};
    begin_chart(w, "Share of users by how far embeddings move", "log10 of eps");
    for (int k = 0; k < 4; k++) {
        json_key_array(w, names[k / 2][k % 2]);
        for (int e = 0; e < v->a->n_eps; e++)
            put_point(w, log10(v->a->eps[e]), share_of(v, e, k / 2 == 1, (verdict)(k % 2)));
        json_array_close(w);
    }
    end_chart(w);
    if (!v->a->leaves_out) return;
    begin_chart(w, "Share of users whose result changes without one event",
                "events after the one left out");
    for (int k = 0; k < 2; k++) {
        json_key_array(w, left[k]);
        for (int age = 0; age < AGES; age++)
            put_point(w, age, share_by_age(v, age, k == 1));
        json_array_close(w);
    }
    end_chart(w);
}

/* RUN/certify.json, from which the page of the run draws its curves. */
static status save(const service *v, const char *run) {
    buf text = {0};
    json_writer w;
    json_begin_object(&w, &text, 1);
    json_key_int(&w, "users", (int64_t)v->n);
    json_key_int(&w, "k", v->a->k);
    json_key_string(&w, "items", v->a->items);
    json_key_array(&w, "charts");
    put_charts(v, &w);
    json_array_close(&w);
    TRY(file_save(run, REPORT_CERTIFIED, &text, json_finish_object(&w)));
    return report_write(run);
}

static void put_item(const service *v, const user_result *r, int32_t i, json_writer *w, buf *id) {
    json_object_open(w);
    json_key(w, "item");
    if (v->s->data->has_text_items)
        json_string_n(w, buf_str(id), id->n_bytes);
    else
        json_int(w, v->s->data->item_id[r->list[i].item]);
    json_key_double(w, "score", r->list[i].score);
    for (int high = 0; high < 2; high++) {
        json_key_array(w, high ? "high" : "low");
        for (int e = 0; e < v->a->n_eps; e++)
            json_double(w, r->range[i][e][high]);
        json_array_close(w);
    }
    json_object_close(w);
}

static void put_verdicts(json_writer *w, const char *key, const certified *of, int n,
                         bool is_list) {
    json_key_array(w, key);
    for (int i = 0; i < n; i++)
        json_string(w, verdict_names[is_list ? of[i].list : of[i].first]);
    json_array_close(w);
}

static status print_json(const service *v, const user_result *r, buf *id) {
    json_writer *w = json_line_open();
    buf_clear(id);
    TRY(seq_user_name(v->s->data, r->user, id));
    json_key(w, "user");
    if (v->s->data->has_text_users)
        json_string_n(w, buf_str(id), id->n_bytes);
    else
        json_int(w, v->s->data->user_id[r->user]);
    json_key_int(w, "events", r->n_events);
    json_key_array(w, "eps");
    for (int e = 0; e < v->a->n_eps; e++)
        json_double(w, v->a->eps[e]);
    json_array_close(w);
    put_verdicts(w, "first", r->ball, v->a->n_eps, false);
    put_verdicts(w, "list", r->ball, v->a->n_eps, true);
    if (v->a->leaves_out) {
        json_key_int(w, "left_out", r->n_out);
        json_key_int(w, "left_out_first_changed", r->out_first);
        json_key_int(w, "left_out_list_changed", r->out_list);
    }
    if (r->n_replaced > 0) put_verdicts(w, "replaced_first", r->replaced, r->n_replaced, false);
    if (r->n_replaced > 0) put_verdicts(w, "replaced_list", r->replaced, r->n_replaced, true);
    json_key_array(w, "items");
    for (int32_t i = 0; i < r->n_list; i++) {
        TRY(seq_item_name(v->s->data, r->list[i].item, id));
        put_item(v, r, i, w, id);
    }
    json_array_close(w);
    return json_line_print();
}

static status print_items(const service *v, const user_result *r) {
    buf text = {0};
    status st = OK;
    printf("\n  Scores at eps %g:\n", v->a->eps[0]);
    for (int32_t i = 0; st == OK && i < r->n_list; i++) {
        const certified_item *c = &r->list[i];
        buf_clear(&text);
        st = seq_item_name(v->s->data, c->item, &text);
        const char *id = show_text(buf_str(&text), text.n_bytes, 16);
        buf_clear(&text);
        if (st == OK && seq_has_title(v->s->data, c->item))
            st = seq_item_title(v->s->data, c->item, &text);
        printf("  %4d  %8s  %8.5f  in %.5f .. %.5f  %s\n", i + 1, id, c->score, r->range[i][0][0],
               r->range[i][0][1], show_text(buf_str(&text), text.n_bytes, 40));
    }
    buf_fini(&text);
    return st;
}

static void print_left_out(const service *v) {
    static const int ages[] = {0, 1, 2, 4, 9, 19, 31};
    printf("\n  %-16s %12s %12s\n", "One event left out", "best item", "list");
    for (size_t i = 0; i < sizeof ages / sizeof *ages; i++)
        if (isfinite(share_by_age(v, ages[i], false)))
            printf("  the newest but %-2d %10.1f %% %10.1f %%\n", ages[i],
                   100 * share_by_age(v, ages[i], false), 100 * share_by_age(v, ages[i], true));
}

static void print_replaced(const service *v) {
    for (int age = 0; age < v->a->n_replaced; age++) {
        size_t n = 0, first = 0, list = 0;
        for (size_t i = 0; i < v->n; i++) {
            if (v->user[i].n_replaced <= age) continue;
            n++;
            first += v->user[i].replaced[age].first == VERDICT_CHANGED;
            list += v->user[i].replaced[age].list == VERDICT_CHANGED;
        }
        if (n > 0)
            printf("  The newest event but %d as some other item changes the best item of %zu of "
                   "%zu users, the list of %zu.\n",
                   age, first, n, list);
    }
}

static status print_table(const service *v) {
    printf("%s user%s, lists of %" PRId64 ", moved: %s\n\n", show_count(v->n), v->n == 1 ? "" : "s",
           v->a->k, v->a->items);
    printf("  %10s  %30s   %30s\n  %10s  %10s %9s %9s   %10s %9s %9s\n", "", "best item", "list",
           "eps", "unchanged", "changed", "unknown", "unchanged", "changed", "unknown");
    for (int e = 0; e < v->a->n_eps; e++) {
        printf("  %10g ", v->a->eps[e]);
        for (int is_list = 0; is_list < 2; is_list++)
            for (verdict what = 0; what < VERDICTS; what++)
                printf("%s%8.1f %%", what == 0 ? (is_list ? "   " : " ") : "",
                       100 * share_of(v, e, is_list, what));
        printf("\n");
    }
    if (v->a->leaves_out) print_left_out(v);
    if (v->a->n_replaced > 0) print_replaced(v);
    return v->n == 1 ? print_items(v, &v->user[0]) : OK;
}

static status print_all(const service *v) {
    buf id = {0};
    status st = OK;
    if (!v->a->is_json) return print_table(v);
    for (size_t i = 0; st == OK && i < v->n; i++)
        st = print_json(v, &v->user[i], &id);
    buf_fini(&id);
    return st;
}

static status certify_balls(service *v, pool *workers) {
    v->n_of = pool_n_threads(workers);
    TRY(ARENA_NEW(&v->memory, &v->of, (size_t)v->n_of));
    for (int i = 0; i < v->n_of; i++)
        TRY(certify_create(&v->of[i], v->s->model, &v->items, (int32_t)v->a->k));
    progress_begin(&v->bar, "certifying", "users", v->n);
    status st = pool_run(workers, (int64_t)v->n, certify_chunk, v);
    progress_end(&v->bar);
    return st;
}

static status certify_variants(service *v) {
    status st = OK;
    TRY(infer_init(&v->infer, v->s, &(infer_config){.max_users = v->s->eval_batch}));
    progress_begin(&v->bar, "recommending", "users", v->n);
    for (size_t i = 0; st == OK && i < v->n; i++) {
        arena a;
        arena_init(&a, 1 << 20);
        st = try_variants(v, &v->user[i], &a);
        arena_fini(&a);
        progress_update(&v->bar, i + 1);
    }
    progress_end(&v->bar);
    return st;
}

static status serve(const certify_args *a, session *s, pool *workers) {
    service v = {.a = a, .s = s};
    char run[CHECKPOINT_PATH_BYTES];
    if (s->config->task != TASK_RETRIEVAL)
        return fail(ERR_UNSUPPORTED, "bounds are for retrieval models; this one ranks candidates");
    pthread_mutex_init(&v.lock, NULL);
    status st = model_corpus(s->model, &v.items);
    if (st == OK) st = add_users(&v);
    if (st == OK) st = certify_balls(&v, workers);
    if (st == OK) st = certify_variants(&v);
    if (st == OK) st = print_all(&v);
    if (st == OK && path_join(run, sizeof run, a->path, "log.jsonl") == OK && file_exists(run))
        st = save(&v, a->path);
    for (int i = 0; i < v.n_of && v.of != NULL; i++)
        certify_destroy(v.of[i]);
    if (v.infer.s != NULL) infer_fini(&v.infer);
    pthread_mutex_destroy(&v.lock);
    mem_free(v.user);
    arena_fini(&v.memory);
    return st;
}

static status run(const certify_args *a) {
    work w;
    trained t;
    char folder[CHECKPOINT_PATH_BYTES];
    TRY(checkpoint_choose(a->path, a->checkpoint, folder));
    TRY(work_open(&w, a->data, "cpu"));
    status st = trained_open(&t, folder, w.data, w.be, 0);
    if (st == OK && a->is_data_found) work_warn_changed(&w, t.origin.data);
    if (st == OK) st = serve(a, &t.session, w.workers);
    trained_close(&t);
    work_close(&w);
    return st;
}

/* "1e-5,1e-4": ascending. */
static status read_eps(certify_args *a) {
    const char *at = a->eps_text;
    for (char *end; a->n_eps < MAX_EPS; at = end + 1) {
        double eps = 0;
        bool is_number = text_read_double(at, &end, &eps) == OK && end > at && isfinite(eps);
        if (!is_number || !(eps > (a->n_eps > 0 ? a->eps[a->n_eps - 1] : 0)) || eps > 1e6) break;
        a->eps[a->n_eps++] = eps;
        if (*end == '\0') return OK;
        if (*end != ',') break;
    }
    return fail(ERR_USAGE,
                "--eps %.100s: it must be 1 to %d numbers above 0 in rising order, such "
                "as 1e-5,1e-4,1e-3",
                a->eps_text, MAX_EPS);
}

static status check(certify_args *a, const arg_spec *spec) {
    int64_t n = 0;
    size_t length = strlen(a->items);
    bool is_all = strcmp(a->items, "all") == 0;
    if (user_choice_n(&a->users) + (a->sample > 0) != 1)
        return fail(ERR_USAGE,
                    "give either --user ID, --users FILE, --all-users or --sample N; usage: %s",
                    spec->usage);
    if (!is_all && (number_read(a->items, length, &n) != NUMBER_WHOLE || n < 1 || n > INT32_MAX))
        return fail(ERR_USAGE, "--items %.100s: it must be all, or how many of the newest events",
                    a->items);
    a->n_moved = is_all ? INT32_MAX : (int32_t)n;
    return read_eps(a);
}

status cmd_certify(int argc, char **argv) {
    certify_args a = {.k = 10, .items = "all", .eps_text = "1e-6,1e-5,1e-4,1e-3"};
    char room[RUN_DATA_BYTES];
    const arg_option options[] = {
        OPT_TEXT("--data", &a.data, "DIR",
                 "Prepared data with the users' events (default: what the run was trained on); "
                 "items are matched to the model by id."),
        OPT_TEXT("--checkpoint", &a.checkpoint, "WHICH", WORK_CHECKPOINTS),
        OPT_GROUP("Users (choose one)"),
        USER_OPTIONS(&a.users),
        OPT_INT("--sample", &a.sample, "N", 1, INT32_MAX,
                "N random users of the data, the same ones in every run."),
        OPT_GROUP("Changes"),
        OPT_TEXT("--eps", &a.eps_text, "E,...",
                 "How far each number of an event's embedding moves, at most; several in rising "
                 "order (default 1e-6,1e-5,1e-4,1e-3)."),
        OPT_TEXT("--items", &a.items, "all|N",
                 "Which events change: all that the model reads (default), or the newest N."),
        OPT_FLAG("--left-out", &a.leaves_out, "Also compute the lists without each of them."),
        OPT_INT("--replaced", &a.n_replaced, "N", 1, AGES,
                "Also compute the lists with every other item in the place of each of the newest N "
                "events, until one changes; one event takes as long as recommending to as many "
                "users as there are items."),
        OPT_GROUP("Output"),
        OPT_INT("-k", &a.k, "K", 1, MAX_K, "Items of a list (default 10)."),
        OPT_FLAG("--json", &a.is_json, "Print one JSON object a user."),
        {0},
    };
    const arg_spec spec = {
        .usage = "hstu certify CHECKPOINT|RUN --user ID [--data DIR] [--eps E,...] [options]",
        .summary = "Show whether recommendations hold when a history changes a little: proved "
                   "(unchanged), disproved by an example (changed) or neither (unknown). For HSTU "
                   "models of Meta's retrieval configs, on the CPU; the curves go to the run's "
                   "report.html.",
        .options = options,
        .min_positional = 1,
        .notes = WORK_RUN_NOTE};
    ARGS_PARSE(&spec, &a.path, NULL);
    TRY(check(&a, &spec));
    a.is_data_found = a.data == NULL;
    TRY(run_config_find_data(a.path, spec.usage, room, &a.data));
    return run(&a);
}
