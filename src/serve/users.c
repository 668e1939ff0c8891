#include "serve/users.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/mem.h"

enum { NS_PER_SECOND = 1000000000 };

/* Every event of a request has one, so it does without printf. */
static void write_number(id_text *out, int64_t number) {
    char digits[20];
    uint64_t left = number < 0 ? 0 - (uint64_t)number : (uint64_t)number;
    size_t n = 0;
    do
        digits[n++] = (char)('0' + left % 10);
    while ((left /= 10) > 0);
    out->n = 0;
    if (number < 0) out->text[out->n++] = '-';
    while (n > 0)
        out->text[out->n++] = digits[--n];
    out->text[out->n] = '\0';
}

status id_text_make(id_text *out, const engine_id *id, const char *what) {
    if (id->text == NULL) {
        write_number(out, id->number);
        return OK;
    }
    if (id->n == 0 || id->n > ENGINE_ID_BYTES)
        return fail(ERR_USAGE, "the id of %s has %zu bytes; it must have 1 to %d", what, id->n,
                    ENGINE_ID_BYTES);
    if (memchr(id->text, '\0', id->n) != NULL)
        return fail(ERR_USAGE, "the id of %s has a NUL in it", what);
    memcpy(out->text, id->text, id->n);
    out->text[id->n] = '\0';
    out->n = id->n;
    return OK;
}

status users_init(users *u, const seq_file *data, uint64_t max_events) {
    *u = (users){.data = data, .max_events = max_events, .ticks = NS_PER_SECOND};
    u->seed = hash64_mix(clock_ns() ^ (uint64_t)(uintptr_t)u);
    text_map_init(&u->names, u->seed);
    text_map_init(&u->items, u->seed);
    if (data == NULL) return OK;
    u->ticks = data->time_per_second;
    u->n_data_users = u->n_known = data->n_users;
    u->n_data_items = data->n_items;
    u->n_counts = (size_t)data->n_items + 1;
    TRY(MEM_RESERVE(&u->counts, &u->counts_capacity, u->n_counts));
    memset(u->counts, 0, u->n_counts * sizeof *u->counts);
    for (uint64_t i = 0; i < data->n_events; i++)
        u->counts[data->item[i]]++;
    return OK;
}

static void state_fini(user_state *s) {
    mem_free(s->events);
    text_map_fini(&s->ids);
    s->events = NULL;
    s->n = s->capacity = 0;
}

void users_fini(users *u) {
    for (uint32_t i = 0; i < u->names.n; i++) {
        state_fini(u->state[i]);
        mem_free(u->state[i]);
    }
    mem_free(u->state);
    mem_free(u->counts);
    text_map_fini(&u->names);
    text_map_fini(&u->items);
    *u = (users){0};
}

/* The user's number in the data. */
static uint64_t find_in_data(const users *u, const id_text *id) {
    uint64_t user = u->data != NULL ? seq_find_user(u->data, id->text) : UINT64_MAX;
    return user == UINT64_MAX ? u->n_data_users : user;
}

user_history users_history(const users *u, const id_text *user) {
    id_text id = *user;
    user_history h = {.data = u->data, .data_user = find_in_data(u, &id)};
    bool is_of_data = h.data_user < u->n_data_users;
    uint32_t at = text_map_find(&u->names, id.text, id.n);
    if (at != TEXT_MAP_NONE) {
        static const stored_event none;
        const user_state *s = u->state[at];
        h.version = s->version;
        h.n = s->n;
        h.own = s->events != NULL ? s->events : &none;
        h.is_known = s->n > 0 || (is_of_data && !s->is_erased);
        if (s->is_erased) h.data_user = u->n_data_users; /* nothing of the data counts */
    } else if (is_of_data) {
        h.begin = u->data->offsets[h.data_user];
        h.n = (size_t)seq_length(u->data, h.data_user);
        h.is_known = true;
    }
    return h;
}

int64_t users_now(const users *u) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return t.tv_sec * u->ticks + t.tv_nsec * u->ticks / NS_PER_SECOND;
}

status users_ticks(const users *u, const engine_event *e, int64_t now, int64_t *out) {
    *out = now;
    if (!e->has_time) return OK;
    int64_t fraction = (int64_t)e->time_ns * u->ticks / NS_PER_SECOND;
    if (e->time_ns >= NS_PER_SECOND || __builtin_mul_overflow(e->time, u->ticks, out) ||
        __builtin_add_overflow(*out, fraction, out))
        return fail(ERR_USAGE,
                    "the time %" PRId64 " of an event is out of range; give seconds since 1970",
                    e->time);
    return OK;
}

void users_time(const users *u, int64_t ticks, int64_t *seconds, uint32_t *ns) {
    int64_t rest = ticks % u->ticks;
    *seconds = ticks / u->ticks;
    if (rest < 0) {
        rest += u->ticks;
        --*seconds;
    }
    *ns = (uint32_t)(rest * (NS_PER_SECOND / u->ticks));
}

engine_id users_item_id(const users *u, uint32_t item) {
    const seq_file *data = u->data;
    engine_id id = {0};
    if (item > u->n_data_items) {
        id.text = text_map_get(&u->items, item - (uint32_t)u->n_data_items - 1, &id.n);
    } else if (data->has_text_items) {
        id.text = data->item_text.bytes + data->item_text.offsets[item];
        id.n = (size_t)(data->item_text.offsets[item + 1] - data->item_text.offsets[item]);
    } else {
        id.number = data->item_id[item];
    }
    return id;
}

/* Copies the events that a user of the data starts with. */
static status take_from_data(const users *u, user_state *s) {
    if (s->data_user >= u->n_data_users) return OK;
    user_history h = {.data = u->data,
                      .begin = u->data->offsets[s->data_user],
                      .n = (size_t)seq_length(u->data, s->data_user)};
    TRY(MEM_RESERVE(&s->events, &s->capacity, h.n));
    for (size_t i = 0; i < h.n; i++)
        s->events[i] = user_history_at(&h, i);
    s->n = h.n;
    return OK;
}

/* The state of a user, made where there is none; that is no change. */
static status need_state(users *u, const id_text *user, user_state **out) {
    id_text id = *user;
    uint64_t data_user = find_in_data(u, &id);
    uint32_t at = text_map_find(&u->names, id.text, id.n);
    if (at != TEXT_MAP_NONE) {
        *out = u->state[at];
        return OK;
    }
    TRY(text_map_reserve(&u->names, 1, id.n));
    TRY(MEM_RESERVE(&u->state, &u->state_capacity, (size_t)u->names.n + 1));
    TRY(MEM_NEW(out, 1));
    (*out)->data_user = data_user;
    text_map_init(&(*out)->ids, u->seed);
    status st = take_from_data(u, *out);
    if (st != OK) {
        state_fini(*out);
        mem_free(*out);
        return st;
    }
    u->state[text_map_put(&u->names, id.text, id.n)] = *out;
    return OK;
}

/* A text that ends with NUL, in memory that all of a request share. */
typedef struct short_text {
    const char *text;
    size_t n; /* 0: there is none */
} short_text;

/* An event on its way in. */
typedef struct incoming {
    stored_event event;
    const engine_id *given; /* of the item, and as text: */
    short_text item, id;
    size_t order;
    bool is_duplicate;
} incoming;

/* Room for an id as text; one that is too long is refused before it is written. */
static size_t text_bytes(const engine_id *id) {
    enum { MOST_DIGITS = 21 }; /* of a number, with its sign */
    if (id->text == NULL) return MOST_DIGITS;
    return (id->n < ENGINE_ID_BYTES ? id->n : ENGINE_ID_BYTES) + 1;
}

static status put_id(const engine_id *id, const char *what, char **room, short_text *out) {
    id_text text;
    TRY(id_text_make(&text, id, what));
    *out = (short_text){*room, text.n};
    memcpy(*room, text.text, text.n + 1);
    *room += text.n + 1;
    return OK;
}

/* room: for the texts of all ids. */
static status read_events(const users *u, const engine_event *events, size_t n, char *room,
                          incoming *in) {
    int64_t now = users_now(u);
    for (size_t i = 0; i < n; i++) {
        in[i] = (incoming){.given = &events[i].item, .order = i};
        status st = put_id(&events[i].item, "the item", &room, &in[i].item);
        bool has_id = events[i].id.text == NULL ? events[i].id.n > 0 : true;
        if (st == OK && has_id) st = put_id(&events[i].id, "the event", &room, &in[i].id);
        if (st == OK) st = users_ticks(u, &events[i], now, &in[i].event.time);
        if (st != OK) return fail_prefix(st, "event %zu", i + 1);
        in[i].event.action = events[i].action;
        in[i].event.is_added = true;
    }
    return OK;
}

/* So that nothing fails once the change is in the journal. */
static status make_room(users *u, user_state *s, const incoming *in, size_t n) {
    size_t item_bytes = 0, id_bytes = 0;
    for (size_t i = 0; i < n; i++) {
        item_bytes += in[i].item.n;
        id_bytes += in[i].id.n;
    }
    TRY(MEM_RESERVE(&s->events, &s->capacity, s->n + n));
    TRY(text_map_reserve(&s->ids, n, id_bytes));
    TRY(text_map_reserve(&u->items, n, item_bytes));
    if (users_n_items(u) + n >= UINT32_MAX - 1)
        return fail(ERR_UNSUPPORTED, "more than 2^32 - 2 different items");
    return MEM_RESERVE(&u->counts, &u->counts_capacity, (size_t)users_n_items(u) + n + 1);
}

/* Takes the events' ids; returns how many events are new. */
static size_t find_duplicates(user_state *s, incoming *in, size_t n) {
    size_t n_new = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t n_ids = s->ids.n;
        if (in[i].id.n > 0) in[i].event.id = text_map_put(&s->ids, in[i].id.text, in[i].id.n) + 1;
        in[i].is_duplicate = in[i].id.n > 0 && s->ids.n == n_ids;
        n_new += !in[i].is_duplicate;
    }
    return n_new;
}

static status write_events(const users *u, const id_text *user, const incoming *in, size_t n,
                           size_t n_new, const engine_journal *journal, uint64_t *ticket) {
    engine_record *records;
    size_t at = 0;
    if (journal == NULL || n_new == 0) return OK;
    TRY(MEM_NEW(&records, n_new));
    for (size_t i = 0; i < n; i++) {
        if (in[i].is_duplicate) continue;
        engine_event e = {.item = {.text = in[i].item.text, .n = in[i].item.n},
                          .has_time = true,
                          .action = in[i].event.action};
        if (in[i].id.n > 0) e.id = (engine_id){.text = in[i].id.text, .n = in[i].id.n};
        users_time(u, in[i].event.time, &e.time, &e.time_ns);
        records[at++] = (engine_record){
            .kind = ENGINE_RECORD_EVENT, .user = {.text = user->text, .n = user->n}, .event = e};
    }
    status st = journal->append(journal->ctx, records, n_new, ticket);
    mem_free(records);
    return st;
}

static uint32_t item_number(users *u, const engine_id *id, const short_text *item) {
    bool is_number = id->text == NULL && u->data != NULL && !u->data->has_text_items;
    uint32_t number = is_number         ? seq_find_item_number(u->data, id->number)
                      : u->data != NULL ? seq_find_item(u->data, item->text)
                                        : 0;
    if (number == 0)
        number = (uint32_t)u->n_data_items + 1 + text_map_put(&u->items, item->text, item->n);
    for (; u->n_counts <= number; u->n_counts++)
        u->counts[u->n_counts] = 0;
    return number;
}

static int compare_times(const void *a, const void *b) {
    const incoming *x = a, *y = b;
    if (x->event.time != y->event.time) return x->event.time < y->event.time ? -1 : 1;
    return (x->order > y->order) - (x->order < y->order);
}

/* Merges the new events into the history, from the back; of equal times those that are there come
 * first. */
static void merge_events(users *u, user_state *s, incoming *in, size_t n, size_t n_new) {
    size_t old = s->n, to = s->n + n_new;
    bool is_sorted = true; /* as clients send them */
    for (size_t i = 1; i < n && is_sorted; i++)
        is_sorted = compare_times(&in[i - 1], &in[i]) < 0;
    if (!is_sorted) qsort(in, n, sizeof *in, compare_times);
    for (size_t i = n; i-- > 0;) {
        if (in[i].is_duplicate) continue;
        stored_event e = in[i].event;
        e.item = item_number(u, in[i].given, &in[i].item);
        u->counts[e.item]++;
        while (old > 0 && s->events[old - 1].time > e.time)
            s->events[--to] = s->events[--old];
        s->events[--to] = e;
    }
    s->n += n_new;
}

static void note_change(users *u, user_state *s) {
    u->n_touched += s->version++ == 0;
    u->n_changes++;
}

static status add_incoming(users *u, const id_text *user, user_state *s, incoming *in, size_t n,
                           const engine_journal *journal, uint64_t *ticket, engine_added *out) {
    if (s->n + n > u->max_events)
        return fail(ERR_UNSUPPORTED,
                    "the history of the user would have %zu events; at most %" PRIu64
                    " are kept of one user",
                    s->n + n, u->max_events);
    TRY(make_room(u, s, in, n));
    uint32_t n_ids = s->ids.n;
    size_t n_new = find_duplicates(s, in, n);
    status st = write_events(u, user, in, n, n_new, journal, ticket);
    if (st != OK) {
        text_map_truncate(&s->ids, n_ids);
        return st;
    }
    for (size_t i = 0; i < n && s->n > 0; i++)
        out->n_late += !in[i].is_duplicate && in[i].event.time < s->events[s->n - 1].time;
    bool is_of_data = s->data_user < u->n_data_users && !s->is_erased;
    u->n_known += s->n == 0 && n_new > 0 && !is_of_data;
    merge_events(u, s, in, n, n_new);
    if (n_new > 0) note_change(u, s);
    out->n_added = n_new;
    out->n_duplicates = n - n_new;
    out->n_events = s->n;
    return OK;
}

status users_add(users *u, const id_text *user, const engine_event *events, size_t n,
                 const engine_journal *journal, uint64_t *ticket, engine_added *out) {
    incoming *in;
    user_state *s = NULL;
    size_t bytes = n * sizeof *in;
    *out = (engine_added){0};
    for (size_t i = 0; i < n; i++)
        bytes += text_bytes(&events[i].item) + text_bytes(&events[i].id);
    TRY(mem_alloc_raw((void **)&in, bytes, 1));
    status st = read_events(u, events, n, (char *)(in + n), in);
    if (st == OK) st = need_state(u, user, &s);
    if (st == OK) st = add_incoming(u, user, s, in, n, journal, ticket, out);
    mem_free(in);
    return st;
}

status users_erase(users *u, const id_text *user, const engine_journal *journal, uint64_t *ticket,
                   bool *existed) {
    user_state *s;
    *existed = users_history(u, user).is_known;
    if (!*existed) return OK;
    TRY(need_state(u, user, &s));
    engine_record record = {.kind = ENGINE_RECORD_ERASE,
                            .user = {.text = user->text, .n = user->n}};
    if (journal != NULL) TRY(journal->append(journal->ctx, &record, 1, ticket));
    for (size_t i = 0; i < s->n; i++)
        u->counts[s->events[i].item]--;
    state_fini(s);
    text_map_init(&s->ids, u->seed);
    s->is_erased = true;
    u->n_known--;
    note_change(u, s);
    return OK;
}

static status visit_user(const users *u, uint32_t i, engine_record_fn fn, void *ctx) {
    const user_state *s = u->state[i];
    engine_record r = {.kind = ENGINE_RECORD_ERASE};
    r.user.text = text_map_get(&u->names, i, &r.user.n);
    if (s->is_erased && s->data_user < u->n_data_users) TRY(fn(ctx, &r));
    r.kind = ENGINE_RECORD_EVENT;
    for (size_t k = 0; k < s->n; k++) {
        const stored_event *e = &s->events[k];
        id_text item;
        if (!e->is_added) continue;
        engine_id id = users_item_id(u, e->item);
        TRY(id_text_make(&item, &id, "an item"));
        r.event = (engine_event){
            .item = {.text = item.text, .n = item.n}, .has_time = true, .action = e->action};
        if (e->id != 0) r.event.id.text = text_map_get(&s->ids, e->id - 1, &r.event.id.n);
        users_time(u, e->time, &r.event.time, &r.event.time_ns);
        TRY(fn(ctx, &r));
    }
    return OK;
}

status users_visit(const users *u, engine_record_fn fn, void *ctx) {
    for (uint32_t i = 0; i < u->names.n; i++)
        TRY(visit_user(u, i, fn, ctx));
    return OK;
}
