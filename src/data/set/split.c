#include "data/set/split.h"

#include <string.h>

#include "base/mem.h"

enum { MIN_EVENTS = 2 }; /* one of history, one to predict */

static const char *const kind_names[] = {"leave-one-out", "leave-two-out", "by-user"};

const char *split_kind_name(split_kind kind) {
    return kind_names[kind];
}

status split_kind_parse(const char *name, split_kind *out) {
    for (int i = 0; i < 3; i++) {
        if (strcmp(name, kind_names[i]) == 0) {
            *out = (split_kind)i;
            return OK;
        }
    }
    return fail(ERR_USAGE, "split '%s' is unknown; use leave-one-out, leave-two-out or by-user",
                name);
}

const char *split_part_name(split_part part) {
    static const char *const names[] = {"train", "validation", "test"};
    return names[part];
}

/* round(.7 n) in integers, so that no rounding mode or large n can change it. */
static uint64_t seventy_percent(uint64_t n) {
    return n / 10 * 7 + (n % 10 * 7 + 5) / 10;
}

split split_make(const seq_file *data, split_kind kind, uint64_t seed) {
    split s = {.data = data, .kind = kind, .seed = seed, .n_train_users = data->n_users};
    if (kind == SPLIT_BY_USER) {
        s.order = permutation_make(data->n_users, seed, RNG_SPLIT, 0);
        s.n_train_users = seventy_percent(data->n_users);
    }
    return s;
}

static bool has_part(split_kind kind, split_part part) {
    return part != PART_VALIDATION || kind == SPLIT_LEAVE_TWO_OUT;
}

static bool has_user(const split *s, split_part part, uint64_t user) {
    if (s->kind != SPLIT_BY_USER) return true;
    bool is_train = permutation_find(&s->order, user) < s->n_train_users;
    return is_train == (part == PART_TRAIN);
}

/* Events at the end of a sequence that a part must not see. */
static uint64_t n_hidden(split_kind kind, split_part part) {
    if (kind == SPLIT_BY_USER || part == PART_TEST) return 0;
    if (part == PART_VALIDATION) return 1;
    return kind == SPLIT_LEAVE_ONE_OUT ? 1 : 2;
}

bool split_range(const split *s, split_part part, uint64_t user, event_range *out) {
    uint64_t begin = seq_whole_begin(s->data, user), hidden = n_hidden(s->kind, part);
    uint64_t length = seq_whole_begin(s->data, user + 1) - begin;
    if (!has_part(s->kind, part) || length < hidden + MIN_EVENTS || !has_user(s, part, user))
        return false;
    bool is_held_out = s->kind != SPLIT_BY_USER && part != PART_TRAIN;
    out->whole_end = begin + length - hidden;
    out->whole_target_begin = is_held_out ? out->whole_end - 1 : begin + 1;
    out->begin = seq_row(s->data, begin);
    out->target_begin = seq_row(s->data, out->whole_target_begin);
    out->end = seq_row(s->data, out->whole_end);
    return true;
}

uint64_t split_first_target(const split *s, const event_range *range, uint64_t max_targets) {
    uint64_t n = range->whole_end - range->whole_target_begin;
    return seq_row(s->data, range->whole_end - (n < max_targets ? n : max_targets));
}

/* Counts the users, and lists them if there is a list to write to. */
static void collect_users(split_users *u, const split *s, split_part part) {
    event_range range;
    u->n = u->n_too_short = 0;
    for (uint64_t user = 0; user < s->data->n_users; user++) {
        if (split_range(s, part, user, &range)) {
            if (u->user != NULL) u->user[u->n] = user;
            u->n++;
        } else if (has_user(s, part, user)) {
            u->n_too_short++;
        }
    }
}

status split_users_init(split_users *out, const split *s, split_part part) {
    *out = (split_users){0};
    if (!has_part(s->kind, part))
        return fail(ERR_USAGE, "%s has no validation part; split with leave-two-out to have one",
                    split_kind_name(s->kind));
    collect_users(out, s, part);
    if (out->n == s->data->n_users) return OK;
    TRY(MEM_NEW_RAW(&out->user, out->n));
    collect_users(out, s, part);
    return OK;
}

/* Whether the user can be used, after counting what is missing. */
static bool check_user(split_users *u, const split *s, const event_range *range,
                       uint64_t max_targets) {
    uint64_t n_targets = range->whole_end - range->whole_target_begin;
    if (n_targets > max_targets) n_targets = max_targets;
    uint64_t first = split_first_target(s, range, max_targets);
    u->n_lost_targets += n_targets - (range->end - first);
    if (n_targets > 0 && first == range->end) {
        u->n_lost++;
        return false;
    }
    if (first == range->begin) u->n_too_short++;
    return first > range->begin;
}

status split_users_check(split_users *u, const split *s, split_part part, uint64_t max_targets) {
    event_range range;
    uint64_t n = 0;
    if (s->data->gaps == NULL) return OK;
    if (u->user == NULL) {
        TRY(MEM_NEW_RAW(&u->user, u->n));
        for (uint64_t i = 0; i < u->n; i++)
            u->user[i] = i;
    }
    for (uint64_t i = 0; i < u->n; i++)
        if (split_range(s, part, u->user[i], &range) && check_user(u, s, &range, max_targets))
            u->user[n++] = u->user[i];
    u->n = n;
    return OK;
}

void split_users_fini(split_users *u) {
    mem_free(u->user);
    *u = (split_users){0};
}
