#include "serve/state/user_writer.h"

#include "serve/state/state_tools.h"

enum { GROUP_CHANGES = 1024, QUEUE_BYTES = 64 << 20 };

struct user_writer {
    users *users;
    pthread_mutex_t *users_lock;
    state *state; /* NULL: changes live in memory */
    pthread_t thread;
    bool has_thread;
    restored restored;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t wake;
    engine_change *first, **last;
    size_t n_bytes; /* of what waits */
    uint64_t n_refused;
    bool is_ending, is_paused, is_busy;
};

/* About what a change takes until it is done. */
static size_t change_bytes(const engine_change *c) {
    size_t bytes = sizeof *c;
    for (size_t i = 0; i < c->n_users; i++)
        bytes += sizeof(user_change) +
                 c->users[i].n_events * (sizeof(engine_event) + sizeof(incoming_event) + 64);
    return bytes;
}

static void revert_parts(users *u, engine_change *c, size_t n) {
    while (n-- > 0)
        users_revert(u, &c->parts[n]);
    mem_free(c->parts);
    c->parts = NULL;
}

static status prepare_part(users *u, engine_change *c, size_t i) {
    id_text id;
    const engine_id *user = c->users != NULL ? &c->users[i].user : &c->user;
    TRY(id_text_make(&id, user, "the user"));
    if (c->users == NULL) return users_prepare_erase(u, &id, &c->parts[i]);
    status st = users_prepare_add(u, &id, c->users[i].events, c->users[i].n_events, &c->parts[i]);
    return st != OK && c->n_users > 1 ? fail_prefix(st, "users[%zu]", i) : st;
}

static size_t n_parts(const engine_change *c) {
    return c->users != NULL ? c->n_users : 1;
}

/* All users of the change or none. */
static status prepare_change(users *u, engine_change *c) {
    TRY(MEM_NEW(&c->parts, n_parts(c)));
    for (size_t i = 0; i < n_parts(c); i++) {
        status st = prepare_part(u, c, i);
        if (st == OK) continue;
        revert_parts(u, c, i);
        return st;
    }
    return OK;
}

static bool has_rows(const engine_change *c) {
    for (size_t i = 0; i < n_parts(c); i++)
        if (c->parts[i].n_new > 0 || c->parts[i].existed) return true;
    return false;
}

static status write_events(user_writer *w, user_change *p) {
    user_state *s = p->user;
    if (p->n_new > 0 && s->row == 0) {
        size_t n;
        const char *name = text_map_get(&w->users->names, p->name, &n);
        TRY(state_add_user(w->state, name, n, &s->row));
        p->made_row = true;
    }
    for (size_t i = 0; i < p->n; i++) {
        const incoming_event *in = &p->in[i];
        engine_event e = {
            .item = in->item, .id = in->id, .has_time = true, .action = in->event.action};
        if (in->is_duplicate) continue;
        users_time(w->users, in->event.time, &e.time, &e.time_ns);
        TRY(state_add_event(w->state, s->row, &e));
    }
    return OK;
}

static status write_change(user_writer *w, engine_change *c) {
    for (size_t i = 0; i < n_parts(c); i++) {
        user_change *p = &c->parts[i];
        if (p->in != NULL) {
            TRY(write_events(w, p));
        } else if (p->existed) {
            size_t n;
            const char *name = text_map_get(&w->users->names, p->name, &n);
            TRY(state_erase_user(w->state, p->user->row, name, n));
        }
    }
    return OK;
}

static status write_group(user_writer *w, engine_change **group, size_t n) {
    bool is_any = false;
    for (size_t i = 0; i < n; i++)
        is_any |= group[i]->parts != NULL && has_rows(group[i]);
    if (!is_any || w->state == NULL) return OK;
    status st = state_begin(w->state);
    for (size_t i = 0; i < n && st == OK; i++)
        if (group[i]->parts != NULL) st = write_change(w, group[i]);
    if (st == OK) st = state_commit(w->state);
    if (st == OK) return OK;
    failure why;
    failure_save(&why, fail_prefix(st, "nothing was changed"));
    state_rollback(w->state);
    return failure_restore(&why);
}

static void apply_change(users *u, engine_change *c) {
    for (size_t i = 0; i < n_parts(c); i++) {
        c->existed = c->parts[i].existed;
        users_apply(u, &c->parts[i], c->users != NULL ? &c->added[i] : NULL);
    }
    mem_free(c->parts);
    c->parts = NULL;
}

/* What is prepared first may make a later event a duplicate, so all of a group succeed or fail
 * together. */
static void finish_group(user_writer *w, engine_change **group, size_t n, status st) {
    pthread_mutex_lock(w->users_lock);
    for (size_t i = 0; i < n && st == OK; i++)
        if (group[i]->parts != NULL) apply_change(w->users, group[i]);
    for (size_t i = n; i-- > 0 && st != OK;) {
        if (group[i]->parts == NULL) continue;
        failure_save(&group[i]->why, st);
        group[i]->st = st;
        revert_parts(w->users, group[i], n_parts(group[i]));
    }
    pthread_mutex_unlock(w->users_lock);
}

static void run_group(user_writer *w, engine_change **group, size_t n) {
    pthread_mutex_lock(w->users_lock);
    for (size_t i = 0; i < n; i++) {
        group[i]->st = prepare_change(w->users, group[i]);
        if (group[i]->st != OK) failure_save(&group[i]->why, group[i]->st);
    }
    pthread_mutex_unlock(w->users_lock);
    status st = write_group(w, group, n);
    finish_group(w, group, n, st);
}

/* Under the lock of the queue. */
static size_t take_group(user_writer *w, engine_change **group) {
    size_t n = 0;
    while (w->first != NULL && n < GROUP_CHANGES) {
        engine_change *c = w->first;
        bool is_erasure = c->users == NULL;
        if (is_erasure && n > 0) break;
        w->first = c->next;
        w->n_bytes -= change_bytes(c);
        group[n++] = c;
        if (is_erasure) break;
    }
    if (w->first == NULL) w->last = &w->first;
    return n;
}

static void *write_changes(void *context) {
    user_writer *w = context;
    engine_change *group[GROUP_CHANGES];
    uint64_t due = 0;
    pthread_mutex_lock(&w->lock);
    for (;;) {
        while (w->is_paused || (w->first == NULL && !w->is_ending && clock_ns() < due))
            cond_wait_until(&w->wake, &w->lock, w->is_paused ? UINT64_MAX : due);
        size_t n = take_group(w, group);
        if (n == 0 && w->is_ending) break;
        w->is_busy = true;
        pthread_mutex_unlock(&w->lock);
        if (n > 0) run_group(w, group, n);
        for (size_t i = 0; i < n; i++)
            group[i]->done(group[i]->ctx, group[i]);
        uint64_t wait = state_maintain(w->state), now = clock_ns();
        due = wait < UINT64_MAX - now ? now + wait : UINT64_MAX;
        pthread_mutex_lock(&w->lock);
        w->is_busy = false;
        if (w->is_paused) pthread_cond_broadcast(&w->wake);
    }
    pthread_mutex_unlock(&w->lock);
    /* Erased users must not stay on disk until the next start. */
    state_hurry(w->state);
    while (state_maintain(w->state) == 0)
        ;
    return NULL;
}

static void change_memory(user_writer *w, engine_change *c) {
    pthread_mutex_lock(&w->lock);
    while (w->is_paused)
        pthread_cond_wait(&w->wake, &w->lock);
    run_group(w, &c, 1);
    pthread_mutex_unlock(&w->lock);
    c->done(c->ctx, c);
}

void user_writer_submit(user_writer *w, engine_change *c) {
    size_t bytes = change_bytes(c);
    c->next = NULL;
    c->parts = NULL;
    if (w->state == NULL) {
        change_memory(w, c);
        return;
    }
    pthread_mutex_lock(&w->lock);
    bool has_room = w->n_bytes + bytes <= QUEUE_BYTES || w->first == NULL;
    if (has_room) {
        *w->last = c;
        w->last = &c->next;
        w->n_bytes += bytes;
        pthread_cond_signal(&w->wake);
    }
    w->n_refused += !has_room;
    pthread_mutex_unlock(&w->lock);
    if (has_room) return;
    c->st = fail(ERR_IO,
                 "too many events are waiting for the disk; nothing of this request was stored, "
                 "so send it again");
    failure_save(&c->why, c->st);
    c->done(c->ctx, c);
}

void user_writer_pause(user_writer *w, bool is_paused) {
    pthread_mutex_lock(&w->lock);
    w->is_paused = is_paused;
    if (!is_paused) pthread_cond_broadcast(&w->wake);
    while (is_paused && w->is_busy)
        pthread_cond_wait(&w->wake, &w->lock);
    pthread_mutex_unlock(&w->lock);
}

void user_writer_stats(user_writer *w, engine_state_stats *out) {
    *out = (engine_state_stats){0};
    if (w->state == NULL) return;
    state_get_stats(w->state, out);
    out->is_durable = true;
    out->n_restored = w->restored.n_events;
    out->n_known = w->restored.n_known;
    pthread_mutex_lock(&w->lock);
    out->queue_bytes = w->n_bytes;
    out->n_refused = w->n_refused;
    pthread_mutex_unlock(&w->lock);
}

/* Restoring: what the database has, row by row. */
typedef struct restoring {
    users *users;
    restored *out;
    bool has_erased;   /* users of the data were looked up among the erased */
    user_state **user; /* (n_users), as they were read */
    size_t n_users, user_capacity;
} restoring;

static status note_erased(void *context, uint64_t salt, uint64_t key) {
    restored *out = ((restoring *)context)->out;
    uint32_t at;
    out->salt = salt;
    return map_put(&out->erased, key, &at);
}

static status restored_erase(const restored *r, users *u) {
    engine_id id;
    id_text text;
    for (uint64_t i = 0; i < u->n_data_users && r->erased.n > 0; i++) {
        if (users_data_name(u, i, &id, &text) != OK) continue; /* no request can have named it */
        if (map_find(&r->erased, state_user_key(r->salt, text.text, text.n)) != MAP_NONE)
            TRY(users_restore_erased(u, i));
    }
    return OK;
}

/* Once all keys are read: erased users have no names, so those of the data are tried. */
static status erase_once(restoring *r) {
    if (r->has_erased) return OK;
    r->has_erased = true;
    return restored_erase(r->out, r->users);
}

static status restore_user(void *context, int64_t row, const char *name, size_t n) {
    restoring *r = context;
    TRY(erase_once(r));
    TRY(MEM_RESERVE(&r->user, &r->user_capacity, r->n_users + 1));
    TRY(users_restore_user(r->users, name, n, row, &r->user[r->n_users]));
    r->n_users++;
    return OK;
}

static status restore_event(void *context, size_t nth_user, const engine_event *e) {
    restoring *r = context;
    bool is_known;
    TRY(users_restore_event(r->users, r->user[nth_user], e, &is_known));
    r->out->n_events++;
    r->out->n_known += is_known;
    return OK;
}

status users_read_state(users *u, const char *folder, state **own, uint64_t erase_within_ns,
                        restored *out) {
    restoring r = {.users = u, .out = out};
    state_reader reader = {
        .ctx = &r, .user = restore_user, .event = restore_event, .erased = note_erased};
    state_counts counts;
    status st = own != NULL ? state_open(own, folder, erase_within_ns, &reader)
                            : state_read(folder, &reader, &counts);
    if (st == OK) st = erase_once(&r);
    mem_free(r.user);
    return st;
}

status user_writer_erase(const user_writer *w, users *u) {
    return restored_erase(&w->restored, u);
}

static status open_state(user_writer *w, const char *folder, uint64_t erase_within_ns) {
    TRY(users_read_state(w->users, folder, &w->state, erase_within_ns, &w->restored));
    if (pthread_create(&w->thread, NULL, write_changes, w) != 0)
        return fail(ERR_IO, "a thread cannot be started");
    w->has_thread = true;
    return OK;
}

status user_writer_create(user_writer **out, users *u, pthread_mutex_t *lock, const char *folder,
                          uint64_t erase_within_ns) {
    user_writer *w;
    *out = NULL;
    TRY(MEM_NEW(&w, 1));
    w->users = u;
    w->users_lock = lock;
    w->last = &w->first;
    pthread_mutex_init(&w->lock, NULL);
    cond_init(&w->wake);
    status st = folder != NULL ? open_state(w, folder, erase_within_ns) : OK;
    return CREATED(st, out, w, user_writer_destroy);
}

void user_writer_destroy(user_writer *w) {
    if (w == NULL) return;
    if (w->has_thread) {
        pthread_mutex_lock(&w->lock);
        w->is_ending = true;
        pthread_cond_signal(&w->wake);
        pthread_mutex_unlock(&w->lock);
        pthread_join(w->thread, NULL);
    }
    state_close(w->state);
    map_fini(&w->restored.erased);
    pthread_cond_destroy(&w->wake);
    pthread_mutex_destroy(&w->lock);
    mem_free(w);
}
