/* Sets of requests: drawn, read, written. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/rng.h"
#include "base/text.h"
#include "cli/bench/serve_load.h"
#include "format/json.h"

enum { FIRST_TIME = 1700000000, GAP_S = 60 };
#define SET_MAX_BYTES ((size_t)1 << 31)

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
    char *text;
    size_t n, line = 1;
    TRY(file_read_all(path, SET_MAX_BYTES, &text, &n));
    status st = OK;
    for (size_t at = 0; at < n && st == OK; line++) {
        const char *end = memchr(text + at, '\n', n - at);
        size_t bytes = (end != NULL ? (size_t)(end - text) : n) - at;
        if (bytes > 0) st = add_line(s, text + at, bytes);
        at += bytes + 1;
    }
    if (st != OK) st = fail_prefix(st, "%s, line %zu", path, line - 1);
    mem_free(text);
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

/* While a set is drawn. */
typedef struct drawing {
    load_items items;
    rng_key key;
    uint64_t n_drawn;
    buf text;
    double *weight;    /* (n_users): sums of the users' frequencies */
    uint32_t *n_known; /* (n_users): events that the user has so far */
} drawing;

static double uniform(drawing *d) {
    rng_block b = rng_draw64(d->key, d->n_drawn++, 2);
    return rng_uniform64(b.word[0], b.word[1]);
}

static uint32_t length(drawing *d, double mean, double deviation, uint32_t min, uint32_t max) {
    double radius = sqrt(-2 * log(1 - uniform(d)));
    double x = mean + deviation * radius * cos(6.283185307179586 * uniform(d));
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
    json_key(w, key);
    json_array_open(w);
    for (uint32_t i = 0; i < n; i++)
        TRY(write_item(d, w, 1 + (uint64_t)(uniform(d) * (double)d->items.n)));
    json_array_close(w);
    return OK;
}

/* Items of an event follow from a number, so that a history can be written
 * again and longer. */
static status write_events(drawing *d, json_writer *w, const char *key, uint64_t user,
                           uint32_t first, uint32_t n) {
    json_key(w, key);
    json_array_open(w);
    for (uint32_t i = first; i < first + n; i++) {
        rng_block b = rng_draw64(d->key, user << 32 | i, 3);
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
    json_object_close(w);
    TRY(json_finish(w));
    r->route = r->n_candidates > 0 ? LOAD_RANK : LOAD_RECOMMEND;
    return add(s, r, buf_str(&d->text), d->text.n_bytes);
}

/* The first request of a user brings the history, later ones what is new. */
static status draw_one(drawing *d, const load_draw *c, uint64_t user, load_set *s) {
    json_writer w;
    char name[64];
    bool is_first = d->n_known[user] == 0;
    uint32_t n = is_first ? length(d, c->history_mean, c->history_deviation, 1, c->max_history)
                          : length(d, c->new_mean, c->new_deviation, 0, c->max_history);
    load_request r = {.n_events = n, .n_candidates = c->n_candidates, .is_timed = true};
    snprintf(name, sizeof name, "load-%llu-%llu", (unsigned long long)c->seed,
             (unsigned long long)user);
    buf_clear(&d->text);
    json_begin(&w, &d->text, 0);
    json_object_open(&w);
    json_key_string(&w, "user", name);
    if (n > 0) TRY(write_events(d, &w, "events", user, d->n_known[user], n));
    d->n_known[user] += n;
    return end_request(d, s, &w, &r, c->top_k);
}

/* Of the first n users, by their frequencies. */
static uint64_t some_user(drawing *d, uint64_t n) {
    double x = uniform(d) * d->weight[n - 1];
    uint64_t low = 0, high = n - 1;
    while (low < high) {
        uint64_t middle = (low + high) / 2;
        if (d->weight[middle] <= x)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static status draw_all(drawing *d, const load_draw *c, load_set *s) {
    uint64_t n_seen = 0;
    for (uint64_t i = 0; i < c->n_users; i++)
        d->weight[i] = (i > 0 ? d->weight[i - 1] : 0) + pow((double)i + 1, -c->zipf);
    for (uint64_t i = 0; i < c->n_requests; i++) {
        bool returns = n_seen > 0 && (n_seen == c->n_users || uniform(d) < c->returning);
        uint64_t user = returns ? some_user(d, n_seen) : n_seen++;
        TRY(draw_one(d, c, user, s));
    }
    return OK;
}

status load_set_draw(load_set *s, const load_draw *c) {
    drawing d = {.items = c->items, .key = rng_make_key(c->seed, RNG_TEST)};
    if (c->items.n == 0 || c->n_users == 0)
        return fail(ERR_USAGE, "requests need at least one item and one user");
    buf_init(&d.text);
    status st = MEM_NEW(&d.weight, c->n_users);
    if (st == OK) st = MEM_NEW(&d.n_known, c->n_users);
    if (st == OK) st = draw_all(&d, c, s);
    buf_fini(&d.text);
    mem_free(d.weight);
    mem_free(d.n_known);
    return st;
}

static status single(drawing *d, const load_single *c, uint64_t user, uint32_t n, bool is_timed,
                     load_set *s) {
    json_writer w;
    load_request r = {.n_events = n, .n_candidates = c->n_candidates, .is_timed = is_timed};
    buf_clear(&d->text);
    json_begin(&w, &d->text, 0);
    json_object_open(&w);
    TRY(write_events(d, &w, "history", user, 0, n));
    return end_request(d, s, &w, &r, c->top_k);
}

status load_set_single(load_set *s, const load_single *c) {
    drawing d = {.items = c->items, .key = rng_make_key(c->seed, RNG_TEST)};
    status st = OK;
    if (c->items.n == 0 || c->n_events == 0 || c->n_new > c->n_events)
        return fail(ERR_USAGE, "a history of %u events with %u new ones", c->n_events, c->n_new);
    buf_init(&d.text);
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
