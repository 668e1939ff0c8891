#include "data/set/split.h"

#include "base/mem.h"

enum { MIN_EVENTS = 2 }; /* one of history, one to predict */

/* round(.7 n) in integers, so that no rounding mode or large n can change it. */
static uint64_t seventy_percent(uint64_t n) {
    return n / 10 * 7 + (n % 10 * 7 + 5) / 10;
}

split split_make(const seq_file *data, split_rule rule, uint64_t seed) {
    split s = {.data = data, .rule = rule, .seed = seed, .n_train_users = data->n_users};
    if (rule.kind == SPLIT_BY_USER) {
        s.order = permutation_make(data->n_users, seed, RNG_SPLIT, 0);
        s.n_train_users = seventy_percent(data->n_users);
        if (rule.has_validation) s.n_validation_users = (data->n_users - s.n_train_users) / 2;
    }
    /* Beyond the range of ticks the cut is after, or before, every event. */
    if (__builtin_mul_overflow(rule.time_cut, data->time_per_second, &s.time_cut))
        s.time_cut = rule.time_cut < 0 ? INT64_MIN : INT64_MAX;
    return s;
}

static split_part part_of_user(const split *s, uint64_t user) {
    uint64_t place = permutation_find(&s->order, user);
    if (place < s->n_train_users) return PART_TRAIN;
    return place < s->n_train_users + s->n_validation_users ? PART_VALIDATION : PART_TEST;
}

/* Rows are those of the whole data (seq_file.h) until split_range translates them.  The user's
 * first one that is not earlier than the cut: */
static uint64_t first_after_cut(const split *s, uint64_t user) {
    const int64_t *time = seq_whole_time(s->data);
    uint64_t low = seq_whole_begin(s->data, user), high = seq_whole_begin(s->data, user + 1);
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        if (time[middle] < s->time_cut)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The row of the user's test event; the end of its rows if it has none. */
static uint64_t test_row(const split *s, uint64_t user) {
    uint64_t begin = seq_whole_begin(s->data, user), end = seq_whole_begin(s->data, user + 1);
    if (s->rule.kind == SPLIT_TIME) return first_after_cut(s, user);
    if (s->rule.kind == SPLIT_TEST_FILE)
        return s->data->test_begin != NULL ? s->data->test_begin[user] : end;
    return end > begin ? end - 1 : end;
}

static bool has_user(const split *s, split_part part, uint64_t user) {
    if (s->rule.kind == SPLIT_BY_USER) return part_of_user(s, user) == part;
    bool is_cut = s->rule.kind == SPLIT_TIME || s->rule.kind == SPLIT_TEST_FILE;
    return part != PART_TEST || !is_cut || test_row(s, user) < seq_whole_begin(s->data, user + 1);
}

/* How many of the user's events a part may see, targets included: those before the test event, less
 * the validation event for training, and with the test event for testing. */
static uint64_t n_visible(const split *s, split_part part, uint64_t user) {
    uint64_t begin = seq_whole_begin(s->data, user);
    if (s->rule.kind == SPLIT_BY_USER) return seq_whole_begin(s->data, user + 1) - begin;
    uint64_t n = test_row(s, user) - begin;
    if (part == PART_TEST) return n + 1;
    if (part == PART_VALIDATION || !s->rule.has_validation) return n;
    return n > 0 ? n - 1 : 0;
}

bool split_range(const split *s, split_part part, uint64_t user, event_range *out) {
    if (!split_rule_has_part(&s->rule, part) || !has_user(s, part, user)) return false;
    uint64_t begin = seq_whole_begin(s->data, user), n = n_visible(s, part, user);
    if (n < MIN_EVENTS) return false;
    bool is_held_out = s->rule.kind != SPLIT_BY_USER && part != PART_TRAIN;
    out->whole_end = begin + n;
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
    if (!split_rule_has_part(&s->rule, part))
        return fail(ERR_USAGE,
                    "%s has no validation part; --validate or --split leave-two-out make one",
                    split_kind_name(s->rule.kind));
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
