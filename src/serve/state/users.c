#include "serve/state/users.h"

enum { NS_PER_SECOND = 1000000000 };

/* Every event of a request has one, so it does without printf. */
size_t id_digits(char out[ID_DIGITS], int64_t number) {
    char digits[ID_DIGITS];
    uint64_t left = number < 0 ? 0 - (uint64_t)number : (uint64_t)number;
    size_t n = 0, length = 0;
    do
        digits[n++] = (char)('0' + left % 10);
    while ((left /= 10) > 0);
    if (number < 0) digits[n++] = '-';
    while (n > 0)
        out[length++] = digits[--n];
    out[length] = '\0';
    return length;
}

status id_text_make(id_text *out, const engine_id *id, const char *what) {
    if (id->text == NULL) {
        out->n = id_digits(out->text, id->number);
        return OK;
    }
    if (id->n == 0 || id->n > ENGINE_ID_BYTES)
        return fail(ERR_USAGE, "the id of %s has %zu bytes; it must have 1 to %d", what, id->n,
                    ENGINE_ID_BYTES);
    if (memchr(id->text, '\0', id->n) != NULL)
        return fail(ERR_USAGE, "the id of %s contains a NUL byte", what);
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
    MEM_FREE(u->state, u->counts);
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
    user_history h = {.data = u->data, .data_user = find_in_data(u, user)};
    bool is_of_data = h.data_user < u->n_data_users;
    uint32_t at = text_map_find(&u->names, user->text, user->n);
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
    if (item <= u->n_data_items)
        return id_at(data->has_text_items, &data->item_text, data->item_id, item);
    id.text = text_map_get(&u->items, item - (uint32_t)u->n_data_items - 1, &id.n);
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

/* The state of a user, made where there is none, which is no change.  *is_new (or NULL): it was
 * made.
 */
static status need_state(users *u, const id_text *user, uint32_t *name, user_state **out,
                         bool *is_new) {
    *name = text_map_find(&u->names, user->text, user->n);
    if (is_new != NULL) *is_new = *name == TEXT_MAP_NONE;
    if (*name != TEXT_MAP_NONE) {
        *out = u->state[*name];
        return OK;
    }
    TRY(text_map_reserve(&u->names, 1, user->n));
    TRY(MEM_RESERVE(&u->state, &u->state_capacity, (size_t)u->names.n + 1));
    TRY(MEM_NEW(out, 1));
    (*out)->data_user = find_in_data(u, user);
    text_map_init(&(*out)->ids, u->seed);
    status st = take_from_data(u, *out);
    if (st != OK) {
        state_fini(*out);
        mem_free(*out);
        return st;
    }
    *name = text_map_put(&u->names, user->text, user->n);
    u->state[*name] = *out;
    return OK;
}

/* Room for an id as text; one that is too long is refused before it is written. */
static size_t text_bytes(const engine_id *id) {
    enum { MOST_DIGITS = 21 }; /* of a number, with its sign */
    if (id->text == NULL) return MOST_DIGITS;
    return (id->n < ENGINE_ID_BYTES ? id->n : ENGINE_ID_BYTES) + 1;
}

static status put_id(const engine_id *id, const char *what, char **room, engine_id *out) {
    id_text text;
    TRY(id_text_make(&text, id, what));
    *out = (engine_id){.text = *room, .n = text.n};
    memcpy(*room, text.text, text.n + 1);
    *room += text.n + 1;
    return OK;
}

/* room: for the texts of all ids. */
static status read_events(const users *u, const engine_event *events, size_t n, char *room,
                          incoming_event *in) {
    int64_t now = users_now(u);
    for (size_t i = 0; i < n; i++) {
        in[i] = (incoming_event){.given = &events[i].item, .order = i};
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

/* The number of an item of the data; 0: it is none. */
static uint32_t data_item(const users *u, const engine_id *id, const char *text) {
    if (u->data == NULL) return 0;
    if (id->text == NULL && !u->data->has_text_items)
        return seq_find_item_number(u->data, id->number);
    return seq_find_item(u->data, text);
}

/* The place of an event of the data that is the same; SIZE_MAX: there is none. */
static size_t find_in_history(const users *u, const user_history *h, uint32_t item,
                              const stored_event *e) {
    size_t low = 0, high = h->n;
    if (item == 0 || h->data_user >= u->n_data_users) return SIZE_MAX;
    BISECT(low, high, user_history_at(h, middle).time < e->time);
    for (; low < h->n; low++) {
        stored_event own = user_history_at(h, low);
        if (own.time != e->time) break;
        bool is_alike = own.action == e->action || e->action == ACTION_UNKNOWN;
        if (!own.is_added && own.item == item && is_alike) return low;
    }
    return SIZE_MAX;
}

/* So that nothing fails once the change is durable. */
static status make_room(users *u, user_state *s, const incoming_event *in, size_t n,
                        size_t *item_bytes) {
    size_t id_bytes = 0, n_items = u->n_prepared + n;
    *item_bytes = 0;
    for (size_t i = 0; i < n; i++) {
        *item_bytes += in[i].item.n;
        id_bytes += in[i].id.n;
    }
    TRY(MEM_RESERVE(&s->events, &s->capacity, s->n + s->n_prepared + n));
    TRY(text_map_reserve(&s->ids, n, id_bytes));
    TRY(text_map_reserve(&u->items, n_items, u->prepared_item_bytes + *item_bytes));
    if (users_n_items(u) + n_items >= UINT32_MAX - 1)
        return fail(ERR_UNSUPPORTED, "more than 2^32 - 2 different items");
    return MEM_RESERVE(&u->counts, &u->counts_capacity, (size_t)users_n_items(u) + n_items + 1);
}

/* Takes the events' ids; returns how many events are new. */
static size_t find_duplicates(const users *u, const user_history *h, user_state *s,
                              incoming_event *in, size_t n) {
    size_t n_new = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t n_ids = s->ids.n;
        bool is_known = find_in_history(u, h, data_item(u, in[i].given, in[i].item.text),
                                        &in[i].event) != SIZE_MAX;
        if (in[i].id.n > 0) in[i].event.id = text_map_put(&s->ids, in[i].id.text, in[i].id.n) + 1;
        in[i].is_duplicate = is_known || (in[i].id.n > 0 && s->ids.n == n_ids);
        n_new += !in[i].is_duplicate;
    }
    return n_new;
}

static uint32_t item_number(users *u, const engine_id *id, const engine_id *item) {
    uint32_t number = data_item(u, id, item->text);
    if (number == 0)
        number = (uint32_t)u->n_data_items + 1 + text_map_put(&u->items, item->text, item->n);
    for (; u->n_counts <= number; u->n_counts++)
        u->counts[u->n_counts] = 0;
    return number;
}

static int compare_times(const void *a, const void *b) {
    const incoming_event *x = a, *y = b;
    if (x->event.time != y->event.time) return x->event.time < y->event.time ? -1 : 1;
    return (x->order > y->order) - (x->order < y->order);
}

/* Merges the new events into the history, from the back; of equal times those that are there come
 * first. */
static void merge_events(users *u, user_state *s, incoming_event *in, size_t n, size_t n_new) {
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
    s->version++;
    u->n_changes++;
}

static status check_length(const users *u, size_t n) {
    if (n <= u->max_events) return OK;
    return fail(ERR_UNSUPPORTED,
                "the history of the user would have %zu events; at most %" PRIu64
                " are kept of one user",
                n, u->max_events);
}

status users_have_room(const users *u, const id_text *user, size_t n) {
    return check_length(u, users_history(u, user).n + n);
}

/* Removes the newest user, whose only change was reverted. */
static void drop_state(users *u, user_change *c) {
    if (!c->made_user || c->name + 1 != u->names.n) return;
    state_fini(u->state[c->name]);
    mem_free(u->state[c->name]);
    text_map_truncate(&u->names, c->name);
}

static status prepare(users *u, const id_text *user, user_change *c) {
    user_state *s = NULL;
    size_t item_bytes = 0;
    TRY(need_state(u, user, &c->name, &s, &c->made_user));
    status st = check_length(u, s->n + s->n_prepared + c->n);
    if (st == OK) st = make_room(u, s, c->in, c->n, &item_bytes);
    if (st != OK) {
        drop_state(u, c);
        return st;
    }
    user_history h = users_history(u, user);
    c->user = s;
    c->n_ids_before = s->ids.n;
    c->n_new = find_duplicates(u, &h, s, c->in, c->n);
    c->n_ids = s->ids.n - c->n_ids_before;
    s->n_prepared += c->n_new;
    u->n_prepared += c->n;
    u->prepared_item_bytes += item_bytes;
    return OK;
}

/* The events and the texts of their ids are one block. */
static status read_incoming(const users *u, const engine_event *events, size_t n,
                            incoming_event **out) {
    size_t bytes = n * sizeof **out;
    for (size_t i = 0; i < n; i++)
        bytes += text_bytes(&events[i].item) + text_bytes(&events[i].id);
    TRY(mem_alloc_raw((void **)out, bytes, 1));
    return read_events(u, events, n, (char *)(*out + n), *out);
}

status users_prepare_add(users *u, const id_text *user, const engine_event *events, size_t n,
                         user_change *out) {
    *out = (user_change){.n = n};
    status st = read_incoming(u, events, n, &out->in);
    if (st == OK) st = prepare(u, user, out);
    if (st != OK) {
        mem_free(out->in);
        *out = (user_change){0};
    }
    return st;
}

status users_prepare_erase(users *u, const id_text *user, user_change *out) {
    *out = (user_change){.existed = users_history(u, user).is_known};
    return out->existed ? need_state(u, user, &out->name, &out->user, &out->made_user) : OK;
}

/* Releases a change that was applied or reverted. */
static void end_change(users *u, user_change *c) {
    for (size_t i = 0; i < c->n; i++)
        u->prepared_item_bytes -= c->in[i].item.n;
    u->n_prepared -= c->n;
    if (c->in != NULL) c->user->n_prepared -= c->n_new;
    mem_free(c->in);
    *c = (user_change){0};
}

static bool is_of_data(const users *u, const user_state *s) {
    return s->data_user < u->n_data_users && !s->is_erased;
}

static void apply_erase(users *u, user_state *s) {
    for (size_t i = 0; i < s->n; i++)
        u->counts[s->events[i].item]--;
    state_fini(s);
    text_map_init(&s->ids, u->seed);
    s->is_erased = true;
    s->n_ids = 0;
    s->row = 0;
    u->n_known--;
    note_change(u, s);
}

static void apply_add(users *u, user_change *c, engine_added *out) {
    user_state *s = c->user;
    for (size_t i = 0; i < c->n && s->n > 0; i++)
        out->n_late += !c->in[i].is_duplicate && c->in[i].event.time < s->events[s->n - 1].time;
    u->n_known += s->n == 0 && c->n_new > 0 && !is_of_data(u, s);
    s->n_ids += c->n_ids;
    merge_events(u, s, c->in, c->n, c->n_new);
    if (c->n_new > 0) note_change(u, s);
    out->n_added = c->n_new;
    out->n_duplicates = c->n - c->n_new;
    out->n_events = s->n;
}

void users_apply(users *u, user_change *c, engine_added *out) {
    if (c->in != NULL) {
        apply_add(u, c, out);
        u->n_added += out->n_added;
        u->n_duplicates += out->n_duplicates;
    } else if (c->existed) {
        apply_erase(u, c->user);
    }
    end_change(u, c);
}

void users_revert(users *u, user_change *c) {
    if (c->in != NULL) text_map_truncate(&c->user->ids, c->n_ids_before);
    if (c->made_row) c->user->row = 0;
    user_change made = {.made_user = c->made_user, .name = c->name};
    end_change(u, c);
    drop_state(u, &made);
}

status users_has_event(const users *u, const id_text *user, const engine_event *e, bool *out) {
    id_text item, id;
    stored_event event = {.action = e->action};
    user_history h = users_history(u, user);
    TRY(id_text_make(&item, &e->item, "the item"));
    TRY(users_ticks(u, e, users_now(u), &event.time));
    *out = find_in_history(u, &h, data_item(u, &e->item, item.text), &event) != SIZE_MAX;
    uint32_t at = text_map_find(&u->names, user->text, user->n);
    if (*out || at == TEXT_MAP_NONE || (e->id.text == NULL && e->id.n == 0)) return OK;
    TRY(id_text_make(&id, &e->id, "the event"));
    *out = text_map_find(&u->state[at]->ids, id.text, id.n) < u->state[at]->n_ids;
    return OK;
}

status users_restore_user(users *u, const char *name, size_t n, int64_t row, user_state **out) {
    id_text id;
    uint32_t at;
    engine_id given = {.text = name, .n = n};
    TRY(id_text_make(&id, &given, "a user"));
    TRY(need_state(u, &id, &at, out, NULL));
    (*out)->row = row;
    return OK;
}

status users_restore_event(users *u, user_state *s, const engine_event *e, bool *is_known) {
    id_text item;
    size_t item_bytes;
    engine_added added = {0};
    incoming_event in = {.given = &e->item, .event = {.action = e->action, .is_added = true}};
    TRY(id_text_make(&item, &e->item, "the item"));
    /* Of data with coarser ticks a time may be out of range here: it keeps its place. */
    if (users_ticks(u, e, 0, &in.event.time) != OK)
        in.event.time = e->time > 0 ? INT64_MAX : INT64_MIN;
    in.item = (engine_id){.text = item.text, .n = item.n};
    in.id = e->id;
    TRY(make_room(u, s, &in, 1, &item_bytes));
    user_history h = {.own = s->events,
                      .n = s->n,
                      .data_user = is_of_data(u, s) ? s->data_user : u->n_data_users};
    size_t same = find_in_history(u, &h, data_item(u, in.given, item.text), &in.event);
    if (same != SIZE_MAX) s->events[same].is_stored = true;
    user_change c = {.user = s, .in = &in, .n = 1, .n_ids_before = s->ids.n};
    c.n_new = find_duplicates(u, &h, s, &in, 1);
    c.n_ids = s->ids.n - c.n_ids_before;
    *is_known = c.n_new == 0;
    apply_add(u, &c, &added);
    return OK;
}

status users_data_name(const users *u, uint64_t data_user, engine_id *id, id_text *out) {
    const seq_file *data = u->data;
    *id = id_at(data->has_text_users, &data->user_text, data->user_id, data_user);
    return id_text_make(out, id, "a user");
}

status users_restore_erased(users *u, uint64_t data_user) {
    user_state *s;
    uint32_t at;
    engine_id id;
    id_text text;
    TRY(users_data_name(u, data_user, &id, &text));
    TRY(need_state(u, &text, &at, &s, NULL));
    if (!s->is_erased) apply_erase(u, s);
    return OK;
}

static status take_user(users *u, const users *from, uint32_t i) {
    const user_state *old = from->state[i];
    user_state *s;
    size_t n;
    const char *text = text_map_get(&from->names, i, &n);
    bool is_known;
    TRY(users_restore_user(u, text, n, old->row, &s));
    if (old->is_erased && is_of_data(u, s)) apply_erase(u, s);
    s->is_erased |= old->is_erased;
    s->row = old->row;
    for (size_t k = 0; k < old->n; k++) {
        const stored_event *own = &old->events[k];
        engine_event e = {
            .item = users_item_id(from, own->item), .has_time = true, .action = own->action};
        if (!own->is_added && !own->is_stored) continue;
        if (own->id > 0) e.id.text = text_map_get(&old->ids, own->id - 1, &e.id.n);
        users_time(from, own->time, &e.time, &e.time_ns);
        TRY(users_restore_event(u, s, &e, &is_known));
    }
    for (uint32_t k = 0; k < old->n_ids; k++) { /* also of events that are in the data */
        text = text_map_get(&old->ids, k, &n);
        TRY(text_map_reserve(&s->ids, 1, n));
        (void)text_map_put(&s->ids, text, n);
    }
    s->n_ids = s->ids.n;
    s->version = old->version + 1;
    return OK;
}

status users_take(users *u, const users *from) {
    for (uint32_t i = 0; i < from->names.n; i++)
        TRY(take_user(u, from, i));
    u->n_added = from->n_added;
    u->n_duplicates = from->n_duplicates;
    return OK;
}
