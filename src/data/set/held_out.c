#include "data/set/held_out.h"

struct held_out {
    arena memory; /* of the arrays */
    seq_file view;
    held_out_counts counts;
    uint64_t *offsets;    /* (n_users + 1) */
    uint64_t *test_begin; /* (n_users) */
    uint32_t *item;       /* (n_events), and so on */
    uint16_t *action;
    int64_t *time;
    uint64_t *target; /* (n_users): the row of the test file, UINT64_MAX: none */
};

#define NO_TARGET UINT64_MAX

static status check_kinds(const seq_file *data, const seq_file *test) {
    if (data->time_per_second != test->time_per_second)
        return fail(ERR_USAGE,
                    "%s and %s count time differently (%" PRId64 " and %" PRId64
                    " ticks a second); prepare both in the same way",
                    test->path, data->path, test->time_per_second, data->time_per_second);
    if (data->actions != test->actions)
        return fail(ERR_USAGE,
                    "%s and %s have different kinds of actions; prepare both in the same way",
                    test->path, data->path);
    return seq_check_action_names(data, test);
}

/* A target must come after everything that the user trains on.  At the very time of a training
 * event only another item can be one. */
static status check_target(const seq_file *data, uint64_t user, const seq_file *test, uint64_t row,
                           uint32_t item, const char *name) {
    for (uint64_t i = data->offsets[user + 1]; i-- > data->offsets[user];) {
        if (data->time[i] > test->time[row])
            return fail(ERR_USAGE,
                        "%s: the first event of user '%.60s' is earlier than its last event in "
                        "%s; held-out events must come after those of training",
                        test->path, name, data->path);
        if (data->time[i] < test->time[row]) return OK;
        if (data->item[i] == item)
            return fail(ERR_USAGE,
                        "%s: the first event of user '%.60s' is in %s too; a model must not be "
                        "tested on what it is trained on",
                        test->path, name, data->path);
    }
    return OK;
}

/* The number of a test file's item in the data; 0: it has no such item. */
static status find_item(const seq_file *data, const seq_file *test, uint64_t row, buf *name,
                        uint32_t *out) {
    TRY(seq_item_name(test, test->item[row], name));
    *out = seq_find_item(data, buf_str(name));
    return OK;
}

static status choose_target(held_out *h, const seq_file *data, const seq_file *test, uint64_t from,
                            bool keeps_unknown, buf *name) {
    uint64_t row = test->offsets[from];
    uint32_t item = 0;
    if (seq_length(test, from) == 0) return OK;
    TRY(find_item(data, test, row, name, &item));
    TRY(seq_user_name(test, from, name));
    uint64_t user = seq_find_user(data, buf_str(name));
    h->counts.n_unknown_users += user == UINT64_MAX;
    if (user == UINT64_MAX) return OK;
    TRY(check_target(data, user, test, row, item, buf_str(name)));
    h->counts.n_unknown_items += item == 0;
    if (item == 0 && !keeps_unknown) return OK;
    h->target[user] = row;
    h->counts.n_targets++;
    return OK;
}

static status choose_targets(held_out *h, const seq_file *data, const seq_file *test,
                             bool keeps_unknown) {
    buf name = {0};
    status st = OK;
    TRY(ARENA_NEW_RAW(&h->memory, &h->target, (size_t)data->n_users));
    for (uint64_t u = 0; u < data->n_users; u++)
        h->target[u] = NO_TARGET;
    for (uint64_t u = 0; st == OK && u < test->n_users; u++)
        st = choose_target(h, data, test, u, keeps_unknown, &name);
    buf_fini(&name);
    return st;
}

static status append_target(held_out *h, const seq_file *data, const seq_file *test, uint64_t row,
                            uint64_t to) {
    buf name = {0};
    status st = find_item(data, test, row, &name, &h->item[to]);
    buf_fini(&name);
    h->action[to] = test->action[row];
    h->time[to] = test->time[row];
    return st;
}

static status copy_events(held_out *h, const seq_file *data, const seq_file *test) {
    uint64_t at = 0;
    for (uint64_t u = 0; u < data->n_users; u++) {
        uint64_t from = data->offsets[u];
        size_t n = (size_t)seq_length(data, u);
        h->offsets[u] = at;
        if (n > 0) {
            memcpy(h->item + at, data->item + from, n * sizeof *h->item);
            memcpy(h->action + at, data->action + from, n * sizeof *h->action);
            memcpy(h->time + at, data->time + from, n * sizeof *h->time);
        }
        at += n;
        h->test_begin[u] = at;
        if (h->target[u] != NO_TARGET) TRY(append_target(h, data, test, h->target[u], at++));
    }
    h->offsets[data->n_users] = at;
    return OK;
}

static status join(held_out *h, const seq_file *data, const seq_file *test, bool keeps_unknown) {
    TRY(check_kinds(data, test));
    TRY(choose_targets(h, data, test, keeps_unknown));
    if (h->counts.n_targets == 0)
        return fail(ERR_USAGE,
                    "%s: none of its %" PRIu64 " users has a target for %s; are the ids the same?",
                    test->path, test->n_users, data->path);
    size_t n = (size_t)(data->n_events + h->counts.n_targets);
    TRY(ARENA_NEW_RAW(&h->memory, &h->offsets, (size_t)data->n_users + 1));
    TRY(ARENA_NEW_RAW(&h->memory, &h->test_begin, (size_t)data->n_users));
    TRY(ARENA_NEW_RAW(&h->memory, &h->item, n));
    TRY(ARENA_NEW_RAW(&h->memory, &h->action, n));
    TRY(ARENA_NEW_RAW(&h->memory, &h->time, n));
    TRY(copy_events(h, data, test));
    h->view = *data;
    h->view.n_events = n;
    h->view.n_test_events = h->counts.n_targets;
    h->view.offsets = h->offsets;
    h->view.item = h->item;
    h->view.action = h->action;
    h->view.time = h->time;
    h->view.test_begin = h->test_begin;
    return OK;
}

status held_out_join(held_out **out, const seq_file *data, const seq_file *test,
                     bool keeps_unknown) {
    held_out *h;
    *out = NULL;
    TRY(MEM_NEW(&h, 1));
    status st = join(h, data, test, keeps_unknown);
    return CREATED(st, out, h, held_out_destroy);
}

void held_out_destroy(held_out *h) {
    if (h == NULL) return;
    arena_fini(&h->memory);
    mem_free(h);
}

const seq_file *held_out_data(const held_out *h) {
    return &h->view;
}

held_out_counts held_out_count(const held_out *h) {
    return h->counts;
}
