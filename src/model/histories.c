#include "model/histories.h"

#include <string.h>

#include "base/mem.h"

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

static status alloc_batch(batch *b, size_t n_users, size_t n_events) {
    TRY(MEM_NEW(&b->offsets, n_users + 1));
    TRY(MEM_NEW(&b->users, n_users));
    TRY(MEM_NEW(&b->n_targets, n_users));
    TRY(MEM_NEW(&b->context, n_users * (size_t)b->n_context));
    TRY(MEM_NEW(&b->item, n_events));
    TRY(MEM_NEW(&b->action, n_events));
    return MEM_NEW(&b->time, n_events);
}

status histories_init_bounded(histories *h, const session *s, int32_t max_users,
                              int32_t max_targets, int64_t max_rows) {
    *h = (histories){.max_users = max_users,
                     .max_history = s->max_history,
                     .max_events = s->max_history + max_targets,
                     .max_rows = max_rows};
    h->view.n_context = s->data->n_context;
    h->view.is_last = true;
    return alloc_batch(&h->view, (size_t)max_users, (size_t)max_rows);
}

status histories_init(histories *h, const session *s, int32_t max_users) {
    int32_t max_targets = s->limits.max_events - s->max_history;
    return histories_init_bounded(h, s, max_users, max_targets,
                                  (int64_t)max_users * s->limits.max_events);
}

void histories_fini(histories *h) {
    mem_free(h->view.offsets);
    mem_free(h->view.users);
    mem_free(h->view.n_targets);
    mem_free(h->view.context);
    mem_free(h->view.item);
    mem_free(h->view.action);
    mem_free(h->view.time);
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
