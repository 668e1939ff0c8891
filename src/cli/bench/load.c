/* The load of the serving benches: sets of requests that are drawn, read and written; times and
 * reports; the options that the commands share (contract: load.h). */
#include "cli/bench/load.h"

#include "format/input.h"
#include "train/report/report.h"

enum { FIRST_TIME = 1700000000, GAP_S = 60, MAX_LINE = 1 << 30 };

void load_set_init(load_set *s) {
    *s = (load_set){0};
    arena_init(&s->arena, 1 << 16);
}

void load_set_fini(load_set *s) {
    arena_fini(&s->arena);
    mem_free(s->item);
    *s = (load_set){0};
}

static status add(load_set *s, const load_request *r, const char *body, size_t n) {
    TRY(MEM_RESERVE(&s->item, &s->capacity, s->n + 1));
    load_request *to = &s->item[s->n];
    *to = *r;
    to->n_bytes = n;
    TRY(arena_copy_text(&s->arena, body, n, &to->body));
    s->n++;
    return OK;
}

static uint32_t count(const json_value *root, const char *key) {
    const json_value *v = json_member(root, key);
    return v != NULL ? (uint32_t)v->n_children : 0;
}

static status add_line(load_set *s, const char *line, size_t n) {
    arena a;
    const json_value *root;
    arena_init(&a, 4096);
    status st = json_parse(&a, "the request", line, n, &root);
    if (st == OK && root->type != JSON_OBJECT) st = fail(ERR_FORMAT, "the request is no object");
    if (st == OK) {
        load_request r = {.route = json_member(root, "inputs") != NULL       ? LOAD_INFER
                                   : json_member(root, "candidates") != NULL ? LOAD_RANK
                                                                             : LOAD_RECOMMEND,
                          .n_events = count(root, "events") + count(root, "history"),
                          .n_candidates = count(root, "candidates"),
                          .is_timed = true};
        st = add(s, &r, line, n);
    }
    arena_fini(&a);
    return st;
}

status load_set_read(load_set *s, const char *path) {
    input_lines in;
    bool is_end = false;
    status st = input_lines_open(&in, path);
    while (st == OK && (st = input_lines_next(&in, MAX_LINE, &is_end)) == OK && !is_end) {
        if (in.line.n_bytes > 0) st = add_line(s, buf_str(&in.line), in.line.n_bytes);
        if (st != OK) st = fail_prefix(st, "%s, line %" PRIu64, path, in.n);
    }
    input_lines_close(&in);
    if (st == OK && s->n == 0) st = fail(ERR_FORMAT, "%s: it has no request", path);
    return st;
}

status load_set_write(const load_set *s, const char *path) {
    out_file *f;
    TRY(out_file_create(&f, path));
    status st = OK;
    for (size_t i = 0; i < s->n && st == OK; i++) {
        st = out_file_write(f, s->item[i].body, s->item[i].n_bytes);
        if (st == OK) st = out_file_write(f, "\n", 1);
    }
    return out_file_end(f, st);
}

/* Random numbers, one after the other. */
typedef struct random_source {
    rng_key key;
    uint64_t n, what; /* drawn so far; of which stream */
} random_source;

static double uniform(random_source *r) {
    rng_block b = rng_draw64(r->key, r->n++, r->what);
    return rng_uniform64(b.word[0], b.word[1]);
}

static double normal(random_source *r) {
    double radius = sqrt(-2 * log(1 - uniform(r)));
    return radius * cos(6.283185307179586 * uniform(r));
}

/* While a set is drawn. */
typedef struct drawing {
    load_items items;
    random_source random;
    buf text;
    double *weight;    /* (n_users): sums of the users' frequencies */
    uint32_t *n_known; /* (n_users): events that the user has so far */
} drawing;

static uint32_t length(drawing *d, double mean, double deviation, uint32_t min, uint32_t max) {
    double x = mean + deviation * normal(&d->random);
    if (x < min) return min;
    return x > max ? max : (uint32_t)(x + 0.5);
}

static status write_item(drawing *d, json_writer *w, uint64_t number) {
    engine_item item = {.id = {.number = (int64_t)number}};
    if (d->items.e != NULL) TRY(engine_item_of(d->items.e, 0, (uint32_t)number, &item));
    item.id.text != NULL ? json_string_n(w, item.id.text, item.id.n) : json_int(w, item.id.number);
    return OK;
}

static status write_items(drawing *d, json_writer *w, const char *key, uint32_t n) {
    json_key_array(w, key);
    for (uint32_t i = 0; i < n; i++)
        TRY(write_item(d, w, 1 + (uint64_t)(uniform(&d->random) * (double)d->items.n)));
    json_array_close(w);
    return OK;
}

/* Items of an event follow from a number, so that a history can be written again and longer. */
static status write_events(drawing *d, json_writer *w, const char *key, uint64_t user,
                           uint32_t first, uint32_t n) {
    json_key_array(w, key);
    for (uint32_t i = first; i < first + n; i++) {
        rng_block b = rng_draw64(d->random.key, user << 32 | i, 3);
        json_object_open(w);
        json_key(w, "item");
        TRY(write_item(d, w, 1 + rng_below(b.word[0], (uint32_t)d->items.n)));
        json_key_int(w, "time", FIRST_TIME + (int64_t)i * GAP_S);
        json_key_int(w, "action", b.word[1] & 1);
        json_object_close(w);
    }
    json_array_close(w);
    return OK;
}

static status end_request(drawing *d, load_set *s, json_writer *w, load_request *r, uint32_t k) {
    if (r->n_candidates > 0)
        TRY(write_items(d, w, "candidates", r->n_candidates));
    else
        json_key_int(w, "top_k", k);
    TRY(json_finish_object(w));
    r->route = r->n_candidates > 0 ? LOAD_RANK : LOAD_RECOMMEND;
    return add(s, r, buf_str(&d->text), d->text.n_bytes);
}

/* The first request of a user brings the history, later ones what is new. */
static status draw_one(drawing *d, const load_draw *c, uint64_t user, load_set *s) {
    json_writer w;
    bool is_first = d->n_known[user] == 0;
    uint32_t n = is_first ? length(d, c->history_mean, c->history_deviation, 1, c->max_history)
                          : length(d, c->new_mean, c->new_deviation, 0, c->max_history);
    load_request r = {.n_events = n, .n_candidates = c->n_candidates, .is_timed = true};
    buf_clear(&d->text);
    json_begin_object(&w, &d->text, 0);
    json_key_string(&w, "user", show_printf("load-%" PRIu64 "-%" PRIu64, c->seed, user));
    if (n > 0) TRY(write_events(d, &w, "events", user, d->n_known[user], n));
    d->n_known[user] += n;
    return end_request(d, s, &w, &r, c->top_k);
}

/* Of the first n users, by their frequencies. */
static uint64_t some_user(drawing *d, uint64_t n) {
    double x = uniform(&d->random) * d->weight[n - 1];
    uint64_t low = 0, high = n - 1;
    BISECT(low, high, d->weight[middle] <= x);
    return low;
}

static status draw_all(drawing *d, const load_draw *c, load_set *s) {
    uint64_t n_seen = 0;
    for (uint64_t i = 0; i < c->n_users; i++)
        d->weight[i] = (i > 0 ? d->weight[i - 1] : 0) + pow((double)i + 1, -c->zipf);
    for (uint64_t i = 0; i < c->n_requests; i++) {
        bool returns = n_seen > 0 && (n_seen == c->n_users || uniform(&d->random) < c->returning);
        uint64_t user = returns ? some_user(d, n_seen) : n_seen++;
        TRY(draw_one(d, c, user, s));
    }
    return OK;
}

status load_set_draw(load_set *s, const load_draw *c) {
    drawing d = {.items = c->items, .random = {rng_make_key(c->seed, RNG_TEST), 0, 2}};
    if (c->items.n == 0 || c->n_users == 0)
        return fail(ERR_USAGE, "requests need at least one item and one user");
    status st = MEM_NEW(&d.weight, c->n_users);
    if (st == OK) st = MEM_NEW(&d.n_known, c->n_users);
    if (st == OK) st = draw_all(&d, c, s);
    buf_fini(&d.text);
    MEM_FREE(d.weight, d.n_known);
    return st;
}

static status single(drawing *d, const load_single *c, uint64_t user, uint32_t n, bool is_timed,
                     load_set *s) {
    json_writer w;
    load_request r = {.n_events = n, .n_candidates = c->n_candidates, .is_timed = is_timed};
    buf_clear(&d->text);
    json_begin_object(&w, &d->text, 0);
    TRY(write_events(d, &w, "history", user, 0, n));
    return end_request(d, s, &w, &r, c->top_k);
}

status load_set_single(load_set *s, const load_single *c) {
    drawing d = {.items = c->items, .random = {rng_make_key(c->seed, RNG_TEST), 0, 2}};
    status st = OK;
    if (c->items.n == 0 || c->n_events == 0 || c->n_new > c->n_events)
        return fail(ERR_USAGE, "a history of %u events with %u new ones", c->n_events, c->n_new);
    bool has_first = c->is_cached && c->n_new < c->n_events;
    for (uint32_t i = 0; i < c->n && st == OK && has_first && c->is_far; i++)
        st = single(&d, c, i, c->n_events - c->n_new, false, s);
    for (uint32_t i = 0; i < c->n && st == OK; i++) {
        if (has_first && !c->is_far) st = single(&d, c, i, c->n_events - c->n_new, false, s);
        if (st == OK) st = single(&d, c, i, c->n_events, true, s);
    }
    buf_fini(&d.text);
    return st;
}

double load_percentile(const double *sorted, size_t n, double p) {
    size_t i = (size_t)((double)n * p);
    return n == 0 ? 0 : sorted[i < n ? i : n - 1];
}

static void summarise(double *ms, size_t n, load_times *out) {
    *out = (load_times){.n = n};
    if (n == 0) return;
    sort_doubles(ms, n);
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += ms[i];
    out->mean = sum / (double)n;
    out->min = ms[0];
    out->max = ms[n - 1];
    out->p50 = load_percentile(ms, n, .5);
    out->p90 = load_percentile(ms, n, .9);
    out->p95 = load_percentile(ms, n, .95);
    out->p99 = load_percentile(ms, n, .99);
    out->p999 = load_percentile(ms, n, .999);
}

static double ms_between(uint64_t from, uint64_t to) {
    return (double)(int64_t)(to - from) / 1e6;
}

/* What times are collected of: answers from the intended time, answers and refusals from the moment
 * they were sent; and how late requests were sent, and answers read, whatever became of them. */
typedef double (*outcome_ms)(const load_outcome *o);
static double latency_ms(const load_outcome *o) {
    return o->kind == LOAD_OK ? ms_between(o->intended_ns, o->done_ns) : NAN;
}
static double answer_ms(const load_outcome *o) {
    return o->kind == LOAD_OK ? ms_between(o->sent_ns, o->done_ns) : NAN;
}
static double refusal_ms(const load_outcome *o) {
    return o->kind == LOAD_REFUSED ? ms_between(o->sent_ns, o->done_ns) : NAN;
}
static double late_ms(const load_outcome *o) {
    return ms_between(o->intended_ns, o->sent_ns);
}
static double read_ms(const load_outcome *o) {
    return ms_between(o->done_ns, o->read_ns);
}

/* NAN: not of this kind.  ms: room for all. */
static load_times collect(const load_outcome *o, size_t n, outcome_ms of, double *ms) {
    load_times t;
    size_t count = 0;
    for (size_t i = 0; i < n; i++)
        if (o[i].is_timed && !isnan(of(&o[i]))) ms[count++] = of(&o[i]);
    summarise(ms, count, &t);
    return t;
}

static void count_outcomes(const load_set *s, const load_outcome *o, load_report *out) {
    uint64_t first = UINT64_MAX, last = 0;
    double busy_ms = 0;
    for (size_t i = 0; i < s->n; i++) {
        if (!o[i].is_timed) continue;
        out->n++;
        out->n_ok += o[i].kind == LOAD_OK;
        out->n_refused += o[i].kind == LOAD_REFUSED;
        out->n_failed += o[i].kind == LOAD_FAILED;
        out->tokens_reused += (uint64_t)o[i].tokens_reused;
        out->tokens_computed += (uint64_t)o[i].tokens_computed;
        out->n_events += s->item[i].n_events;
        if (o[i].kind == LOAD_OK) out->n_candidates += s->item[i].n_candidates;
        if (o[i].sent_ns < first) first = o[i].sent_ns;
        if (o[i].done_ns > last) last = o[i].done_ns;
        busy_ms += ms_between(o[i].sent_ns, o[i].done_ns);
    }
    out->wall_s = out->n > 0 ? ms_between(first, last) / 1e3 : 0;
    if (out->wall_s <= 0) return;
    out->throughput = (double)out->n_ok / out->wall_s;
    out->concurrency = busy_ms / 1e3 / out->wall_s;
}

static status make_report(const load_set *s, const load_outcome *o, load_report *out) {
    double *ms;
    TRY(MEM_NEW_RAW(&ms, s->n + 1));
    *out = (load_report){0};
    count_outcomes(s, o, out);
    out->late_ms = collect(o, s->n, late_ms, ms).p99;
    out->read_ms = collect(o, s->n, read_ms, ms).p99;
    out->latency = collect(o, s->n, latency_ms, ms);
    out->answer = collect(o, s->n, answer_ms, ms);
    out->refusal = collect(o, s->n, refusal_ms, ms);
    mem_free(ms);
    return OK;
}

/* Gamma of mean 1 and the given shape (Marsaglia and Tsang, 2000). */
static double gamma_gap(random_source *g, double shape) {
    double a = shape < 1 ? shape + 1 : shape, d = a - 1.0 / 3, c = 1 / sqrt(9 * d), x, v;
    double boost = shape < 1 ? pow(1 - uniform(g), 1 / shape) : 1;
    do {
        do {
            x = normal(g);
            v = 1 + c * x;
        } while (v <= 0);
        v = v * v * v;
    } while (log(1 - uniform(g)) > 0.5 * x * x + d - d * v + d * log(v));
    return boost * d * v / shape;
}

static status plan_times(const load_plan *p, size_t n, uint64_t **out) {
    random_source g = {rng_make_key(p->seed, RNG_TEST), 0, 1};
    double at = 0;
    *out = NULL;
    if (p->rate <= 0) return OK;
    TRY(MEM_NEW_RAW(out, n + 1));
    for (size_t i = 0; i < n; i++) {
        (*out)[i] = (uint64_t)at;
        at += gamma_gap(&g, p->burstiness > 0 ? p->burstiness : 1) * 1e9 / p->rate;
    }
    return OK;
}

status load_run(load_target *t, const load_set *s, const load_plan *p, load_report *out) {
    load_outcome *outcomes;
    uint64_t *at = NULL;
    TRY(MEM_NEW(&outcomes, s->n + 1));
    for (size_t i = 0; i < s->n; i++)
        outcomes[i].is_timed = s->item[i].is_timed;
    t->error[0] = '\0';
    status st = plan_times(p, s->n, &at);
    if (st == OK) st = t->run(t, s, p, at, outcomes);
    if (st == OK) st = make_report(s, outcomes, out);
    if (st == OK) snprintf(out->error, sizeof out->error, "%s", t->error);
    MEM_FREE(at, outcomes);
    return st;
}

static bool is_within(const load_search *s, const load_report *r) {
    return r->n_ok > 0 && r->n_failed == 0 && r->latency.p99 <= s->slo_ms &&
           r->n_refused * 100 <= r->n;
}

status load_run_round(load_target *t, const load_source *from, uint64_t n, uint64_t round,
                      const load_plan *p, load_report *out) {
    load_set set;
    load_draw d = from->draw;
    d.n_requests = n;
    d.seed += round;
    load_set_init(&set);
    status st = from->file != NULL ? load_set_read(&set, from->file) : load_set_draw(&set, &d);
    if (st == OK) st = load_run(t, &set, p, out);
    load_set_fini(&set);
    return st;
}

/* Its users are not those of the rounds before the search. */
static status try_rate(const load_search *s, uint64_t round, double rate, load_report *r) {
    load_plan plan = s->plan;
    plan.rate = rate;
    plan.seed = round + 1;
    TRY(load_run_round(s->target, &s->source, (uint64_t)fmax(50, rate * s->seconds), 1000 + round,
                       &plan, r));
    log_info("%.0f requests/s: p99 %.2f ms, %llu of %llu refused", rate, r->latency.p99,
             (unsigned long long)r->n_refused, (unsigned long long)r->n);
    return OK;
}

status load_search_rate(const load_search *s, double *rate, load_report *best) {
    double low = 0, high = 2 * s->capacity;
    *rate = 0;
    *best = (load_report){0};
    for (int round = 0; round < s->n_rounds; round++) {
        load_report r;
        double middle = round == 0 ? s->capacity / 2 : (low + high) / 2;
        TRY(try_rate(s, (uint64_t)round, middle, &r));
        if (is_within(s, &r)) {
            low = *rate = middle;
            *best = r;
        } else {
            high = middle;
        }
    }
    return OK;
}

load_args load_args_default(void) {
    return (load_args){.engine = {.device = "auto", .kv_pages = -1},
                       .items = 1000,
                       .seed = -1,
                       .draw = {.n_requests = 1000,
                                .n_users = 1000000,
                                .top_k = 10,
                                .zipf = 1,
                                .returning = 0.8,
                                .history_mean = 100,
                                .history_deviation = 30,
                                .new_mean = 3,
                                .new_deviation = 2}};
}

uint64_t load_args_seed(const load_args *a) {
    static uint64_t chosen;
    if (a->seed >= 0) return (uint64_t)a->seed;
    if (chosen == 0) chosen = a->server != NULL ? clock_ns() / 1000 : 1;
    return chosen;
}

static status open_engine(load_rig *r, const load_args *a, uint64_t deadline_ms) {
    engine_config c = a->engine;
    c.deadline_ns = deadline_ms * 1000000;
    TRY(engine_create(&r->e, &c));
    TRY(engine_load(r->e, "model", a->path));
    TRY(engine_model(r->e, 0, &r->info));
    kv_args_tell(&r->info);
    r->items = (load_items){r->e, r->info.n_items};
    r->max_history = (uint32_t)r->info.max_history;
    return OK;
}

status load_rig_open(load_rig *r, const load_args *a, uint64_t deadline_ms) {
    *r = (load_rig){.items = {NULL, (uint64_t)a->items}, .max_history = 4096};
    if (a->path == NULL && a->server == NULL)
        return fail(ERR_USAGE, "name a RUN or an ENGINE, or give --server URL");
    mem_keep_freed(); /* as a server does */
    if (a->path != NULL) TRY(open_engine(r, a, deadline_ms));
    if (a->server != NULL) return load_target_http(&r->target, a->server, a->model);
    return load_target_engine(&r->target, r->e);
}

void load_rig_close(load_rig *r) {
    if (r->target != NULL) r->target->close(r->target);
    engine_destroy(r->e);
    *r = (load_rig){0};
}

load_source load_args_source(const load_args *a, const load_rig *r) {
    load_source s = {.file = a->dataset, .draw = a->draw};
    s.draw.items = r->items;
    s.draw.max_history = r->max_history;
    s.draw.n_candidates = load_candidates(a, r, 100);
    s.draw.seed = load_args_seed(a);
    return s;
}

const char *load_target_name(const load_args *a) {
    return a->server != NULL ? a->server : a->path;
}

uint32_t load_candidates(const load_args *a, const load_rig *r, uint32_t usual) {
    bool is_ranking = strcmp(r->info.task, "ranking") == 0;
    return is_ranking && a->draw.n_candidates == 0 ? usual : a->draw.n_candidates;
}

const char *load_cache_name(const load_rig *r) {
    if (r->e == NULL) return "the server's";
    if (!r->info.is_cached) return "cold";
    return strncmp(r->info.device, "cuda", 4) == 0 ? "gpu" : "memory";
}

static void load_times_write(json_writer *w, const char *key, const load_times *t) {
    json_key(w, key);
    JSON_OBJECT(w, FIELD("minimum", t->min), FIELD("maximum", t->max), FIELD("average", t->mean),
                FIELD("p50", t->p50), FIELD("p90", t->p90), FIELD("p95", t->p95),
                FIELD("p99", t->p99), FIELD("p99.9", t->p999));
}

static double per_second(const load_report *r, uint64_t n) {
    return r->wall_s > 0 ? (double)n / r->wall_s : 0;
}

void load_report_write(json_writer *w, const load_report *r) {
    json_key(w, "request_info");
    JSON_OBJECT(w, FIELD("num_requests", r->n), FIELD("answered", r->n_ok),
                FIELD("refused", r->n_refused), FIELD("failed", r->n_failed),
                FIELD("avg_num_concurrent_requests", r->concurrency),
                FIELD("avg_events", r->n > 0 ? (double)r->n_events / (double)r->n : 0));
    json_key_object(w, "performance");
    JSON_FIELDS(w, FIELD("total_latency_ms", 1e3 * r->wall_s),
                FIELD("avg_request_latency_ms", r->latency.mean),
                FIELD("request_throughput_req_s", r->throughput),
                FIELD("candidates_s", per_second(r, r->n_candidates)),
                FIELD("tokens_reused", r->tokens_reused),
                FIELD("tokens_computed", r->tokens_computed),
                FIELD("tokens_s", per_second(r, r->tokens_reused + r->tokens_computed)));
    load_times_write(w, "request_latency_percentiles_ms", &r->latency);
    load_times_write(w, "request_latency_from_sending_ms", &r->answer);
    if (r->n_refused > 0) load_times_write(w, "refusal_percentiles_ms", &r->refusal);
    json_key_double(w, "send_lateness_p99_ms", r->late_ms);
    json_key_double(w, "read_lateness_p99_ms", r->read_ms);
    json_object_close(w);
}

static void print_times(const char *what, const load_times *t) {
    printf("%s P50    : %.3f\n%s P90    : %.3f\n%s P95    : %.3f\n%s P99    : "
           "%.3f\n%s P99.9  : "
           "%.3f\n%s MINIMUM: %.3f\n%s MAXIMUM: %.3f\n%s AVERAGE: %.3f\n",
           what, t->p50, what, t->p90, what, t->p95, what, t->p99, what, t->p999, what, t->min,
           what, t->max, what, t->mean);
}

void load_report_print(const load_report *r) {
    uint64_t tokens = r->tokens_reused + r->tokens_computed;
    printf("\nREQUEST DETAILS\nNumber of requests:                %llu (%llu "
           "answered, %llu refused, "
           "%llu failed)\n",
           (unsigned long long)r->n, (unsigned long long)r->n_ok, (unsigned long long)r->n_refused,
           (unsigned long long)r->n_failed);
    printf("Number of concurrent requests:     %.2f\n", r->concurrency);
    printf("Average events sent:               %.1f\n",
           r->n > 0 ? (double)r->n_events / (double)r->n : 0);
    printf("\nPERFORMANCE OVERVIEW\nRequest Throughput (req/sec):      %.1f\n", r->throughput);
    printf("Total Latency (ms):                %.1f\n", 1e3 * r->wall_s);
    printf("Average request latency (ms):      %.3f\n", r->latency.mean);
    printf("Tokens reused / computed:          %llu / %llu (%.1f %% reused)\n",
           (unsigned long long)r->tokens_reused, (unsigned long long)r->tokens_computed,
           tokens > 0 ? 100 * (double)r->tokens_reused / (double)tokens : 0);
    printf("Tokens (per second):               %.0f\n", per_second(r, tokens));
    if (r->n_candidates > 0)
        printf("Candidates (per second):           %.0f\n", per_second(r, r->n_candidates));
    printf("\n-- Request Latency Breakdown (ms) --\n");
    print_times("[Latency]", &r->latency);
    if (r->late_ms > 0) { /* an open loop, where the sender can be late itself */
        printf("\n-- Request Latency from the moment of sending (ms) --\n");
        print_times("[Answer] ", &r->answer);
    }
    if (r->n_refused > 0) {
        printf("\n-- Refusals (ms) --\n");
        print_times("[Refusal]", &r->refusal);
    }
    if (r->late_ms > 1)
        printf(
            "\nnote: 1 %% of the requests were sent %.1f ms late or more: the sender limits this "
            "rate\n",
            r->late_ms);
    if (r->error[0] != '\0') printf("\nfirst failure: %s\n", r->error);
}

static buf report_text;
static json_writer report;

json_writer *load_json_open(const char *name, const load_args *a) {
    report_text = (buf){0};
    json_begin_object(&report, &report_text, 2);
    json_key_string(&report, "bench", name);
    json_key_string(&report, "engine", load_target_name(a));
    return &report;
}

status load_json_save(const char *path, status st) {
    if (st == OK) st = json_finish_object(&report);
    if (st == OK) st = buf_char(&report_text, '\n');
    if (path != NULL) return file_save(NULL, path, &report_text, st);
    buf_fini(&report_text);
    return st;
}
