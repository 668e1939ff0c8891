#include <assert.h>

#include "data/read/time_text.h"
#include "data/set/split.h"

static const char *const kind_names[SPLIT_KINDS] = {"leave-one-out", "leave-two-out", "by-user",
                                                    "time",          "none",          "test-file"};

split_rule split_rule_of(split_kind kind) {
    return (split_rule){.kind = kind, .has_validation = kind == SPLIT_LEAVE_TWO_OUT};
}

bool split_rule_is_same(const split_rule *a, const split_rule *b) {
    return a->kind == b->kind && a->has_validation == b->has_validation &&
           (a->kind != SPLIT_TIME || a->time_cut == b->time_cut);
}

static bool split_rule_has_part(const split_rule *rule, split_part part) {
    if (rule->kind == SPLIT_NONE) return part == PART_TRAIN;
    return part != PART_VALIDATION || rule->has_validation;
}

const char *split_kind_name(split_kind kind) {
    return kind_names[kind];
}

static bool find_kind(const char *name, int n_kinds, split_kind *out) {
    for (int i = 0; i < n_kinds; i++) {
        if (strcmp(name, kind_names[i]) != 0) continue;
        *out = (split_kind)i;
        return true;
    }
    return false;
}

status split_kind_parse(const char *name, split_kind *out) {
    if (find_kind(name, SPLIT_TEST_FILE, out)) return OK;
    return fail(ERR_USAGE,
                "split '%.40s' is unknown; use leave-one-out, leave-two-out, by-user, time or none",
                name);
}

const char *split_part_name(split_part part) {
    static const char *const names[] = {"train", "validation", "test"};
    return names[part];
}

/* Years 1 to 9999 in the form of split_time_parse, others as a number. */
static void time_text(int64_t seconds, char *text, size_t n) {
    time_t t = (time_t)seconds;
    struct tm utc;
    if (seconds >= -62135596800 && seconds < 253402300800 && gmtime_r(&t, &utc) != NULL)
        snprintf(text, n, "%04d-%02d-%02dT%02d:%02d:%02dZ", utc.tm_year + 1900, utc.tm_mon + 1,
                 utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec); /* strftime pads no year */
    else
        snprintf(text, n, "%" PRId64, seconds);
}

const char *split_rule_text(const split_rule *rule, char text[SPLIT_TEXT_BYTES]) {
    char cut[48] = "";
    bool says_validation = rule->has_validation && rule->kind != SPLIT_LEAVE_TWO_OUT;
    if (rule->kind == SPLIT_TIME) time_text(rule->time_cut, cut, sizeof cut);
    snprintf(text, SPLIT_TEXT_BYTES, "%s%s%s%s", kind_names[rule->kind],
             cut[0] != '\0' ? " before " : "", cut, says_validation ? ", with validation" : "");
    return text;
}

status split_time_parse(const char *text, int64_t *seconds) {
    char *end;
    size_t n_digits = strspn(text + (text[0] == '-'), "0123456789");
    if (time_read_date(text, seconds)) return OK;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (n_digits == 0 || *end != '\0' || errno == ERANGE)
        return fail(ERR_USAGE,
                    "'%.60s' is no time; give seconds since 1970, or 2001-01-31, or "
                    "2001-01-31T23:59:59Z (UTC unless it has a zone)",
                    text);
    *seconds = value;
    return OK;
}

static bool leaves_last_out(const split_rule *r) {
    return r->kind == SPLIT_LEAVE_ONE_OUT || r->kind == SPLIT_LEAVE_TWO_OUT;
}

status split_check_unseen(const split_rule *trained, const split_rule *wanted, split_part part) {
    char a[SPLIT_TEXT_BYTES], b[SPLIT_TEXT_BYTES];
    bool is_test = part == PART_TEST;
    if (split_rule_is_same(trained, wanted)) return OK;
    /* Users that are held out are held out whole, whichever of them validate. */
    if (trained->kind == SPLIT_BY_USER && wanted->kind == SPLIT_BY_USER) return OK;
    if (is_test && leaves_last_out(trained) && leaves_last_out(wanted)) return OK;
    if (is_test && trained->kind == SPLIT_TIME && wanted->kind == SPLIT_TIME &&
        wanted->time_cut >= trained->time_cut)
        return OK;
    /* Its targets are not events of the data at all. */
    if (is_test && wanted->kind == SPLIT_TEST_FILE) return OK;
    if (wanted->kind == SPLIT_NONE)
        return fail(ERR_USAGE, "--split none holds nothing out to evaluate on");
    return fail(ERR_USAGE,
                "the %s part of '%s' has events that the run was trained on: its split is '%s'; "
                "leave the option out to use that one, or give other events with --test-file",
                split_part_name(part), split_rule_text(wanted, b), split_rule_text(trained, a));
}

void split_record_write(const split_record *r, json_writer *w) {
    char hex[24], cut[48];
    json_key_string(w, "split", split_kind_name(r->rule.kind));
    if (r->rule.has_validation && r->rule.kind != SPLIT_LEAVE_TWO_OUT)
        json_key_bool(w, "has_validation", true);
    time_text(r->rule.time_cut, cut, sizeof cut);
    if (r->rule.kind == SPLIT_TIME) json_key_string(w, "time_cut", cut);
    if (r->rule.n_sample > 0) json_key_int(w, "eval_users", r->rule.n_sample);
    if (r->rule.target_actions != 0) {
        snprintf(hex, sizeof hex, "%016" PRIx64, r->rule.target_actions);
        json_key_string(w, "target_actions", hex);
    }
    if (r->rule.kind != SPLIT_TEST_FILE) return;
    snprintf(hex, sizeof hex, "%016" PRIx64, r->test_data);
    json_key_string(w, "test_file", r->test_file);
    json_key_string(w, "test_data", hex);
}

static status read_hex(const json_value *object, const char *name, uint64_t *out) {
    const char *hex;
    char end;
    TRY(json_member_string(object, name, &hex));
    if (strlen(hex) == 16 && strspn(hex, "0123456789abcdef") == 16 &&
        sscanf(hex, "%" SCNx64 "%c", out, &end) == 1)
        return OK;
    return fail(ERR_FORMAT, "'%s' is no number of 16 hexadecimal digits", name);
}

static status read_test_file(split_record *out, const json_value *object) {
    const char *path;
    TRY(json_member_string(object, "test_file", &path));
    if (strlen(path) >= sizeof out->test_file) return fail(ERR_FORMAT, "'test_file' is too long");
    memcpy(out->test_file, path, strlen(path) + 1);
    return read_hex(object, "test_data", &out->test_data);
}

/* A date; a number of seconds in runs of before 0.2. */
static status read_time_cut(split_rule *out, const json_value *object) {
    const json_value *cut = json_member(object, "time_cut");
    if (cut == NULL || cut->type != JSON_STRING)
        return json_member_int(object, "time_cut", &out->time_cut);
    return split_time_parse(cut->string, &out->time_cut) == OK
               ? OK
               : fail_prefix(ERR_FORMAT, "time_cut");
}

status split_record_read(split_record *out, const json_value *object) {
    const char *name;
    split_kind kind;
    *out = (split_record){0};
    TRY(json_member_string(object, "split", &name));
    if (!find_kind(name, SPLIT_KINDS, &kind))
        return fail(ERR_FORMAT, "the split '%.40s' is unknown to this version", name);
    out->rule = split_rule_of(kind);
    const json_value *validation = json_member(object, "has_validation");
    if (validation != NULL && validation->type != JSON_BOOL)
        return fail(ERR_FORMAT, "'has_validation' is neither true nor false");
    if (validation != NULL && kind != SPLIT_LEAVE_ONE_OUT && kind != SPLIT_LEAVE_TWO_OUT &&
        kind != SPLIT_NONE)
        out->rule.has_validation = validation->boolean;
    if (kind == SPLIT_TIME) TRY(read_time_cut(&out->rule, object));
    if (json_member(object, "target_actions") != NULL)
        TRY(read_hex(object, "target_actions", &out->rule.target_actions));
    if (json_member(object, "eval_users") != NULL)
        TRY(json_member_int(object, "eval_users", &out->rule.n_sample));
    if (out->rule.n_sample < 0) return fail(ERR_FORMAT, "'eval_users' is below 0");
    return kind == SPLIT_TEST_FILE ? read_test_file(out, object) : OK;
}

permutation permutation_make(uint64_t n, uint64_t seed, rng_stream stream, uint64_t epoch) {
    assert(n <= (uint64_t)1 << 63);
    int bits = 0;
    while (bits < 63 && ((uint64_t)1 << bits) < n)
        bits++;
    permutation p = {.n = n, .left_bits = bits / 2, .right_bits = bits - bits / 2};
    rng_key key = rng_make_key(seed, stream);
    for (uint64_t i = 0; i < PERMUTATION_ROUNDS; i++) {
        rng_block b = rng_draw64(key, epoch, i);
        p.round_key[i] = (uint64_t)b.word[0] << 32 | b.word[1];
    }
    return p;
}

static uint64_t low_mask(int bits) {
    return ((uint64_t)1 << bits) - 1;
}

/* The key makes the rounds differ, the mix makes every bit of the half count; a Philox draw per
 * round would be ten times slower and no better shuffled. */
static uint64_t round_word(const permutation *p, uint64_t half, int round) {
    return hash64_mix(half + p->round_key[round]);
}

/* The halves may differ by a bit, so they are not exchanged: even rounds change the left half by a
 * function of the right one, odd rounds the other way round.  A round is its own inverse, and the
 * inverse permutation runs the same rounds from the last to the first. */
static uint64_t encrypt(const permutation *p, uint64_t value, int first_round, int step) {
    uint64_t right = value & low_mask(p->right_bits), left = value >> p->right_bits;
    for (int i = 0, round = first_round; i < PERMUTATION_ROUNDS; i++, round += step) {
        if (round % 2 == 0)
            left ^= round_word(p, right, round) & low_mask(p->left_bits);
        else
            right ^= round_word(p, left, round) & low_mask(p->right_bits);
    }
    return left << p->right_bits | right;
}

uint64_t permutation_at(const permutation *p, uint64_t position) {
    uint64_t value = position;
    do
        value = encrypt(p, value, 0, 1);
    while (value >= p->n);
    return value;
}

uint64_t permutation_find(const permutation *p, uint64_t value) {
    uint64_t position = value;
    do
        position = encrypt(p, position, PERMUTATION_ROUNDS - 1, -1);
    while (position >= p->n);
    return position;
}

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
    BISECT(low, high, time[middle] < s->time_cut);
    return low;
}

/* The row of the user's test event; the end of its rows if it has none. */
static uint64_t test_row(const split *s, uint64_t user) {
    uint64_t begin = seq_whole_begin(s->data, user), end = seq_whole_begin(s->data, user + 1);
    if (s->rule.kind == SPLIT_TIME) return first_after_cut(s, user);
    if (s->rule.kind == SPLIT_NONE) return end;
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
            if (part != PART_TRAIN && range.end > range.begin &&
                !action_in(s->rule.target_actions, s->data->action[range.end - 1]))
                continue;
            if (u->user != NULL) u->user[u->n] = user;
            u->n++;
        } else if (has_user(s, part, user)) {
            u->n_too_short++;
        }
    }
}

static int compare_users(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Keeps n users of the list: the first in an order of all users that has nothing to do with the
 * seed of a run, nor with the order that by-user divides. */
static status sample_users(split_users *u, const split *s, uint64_t n) {
    permutation order = permutation_make(s->data->n_users, 0, RNG_SPLIT, 1);
    uint64_t *chosen, n_chosen = 0;
    TRY(MEM_NEW_RAW(&chosen, n));
    for (uint64_t i = 0; n_chosen < n; i++) {
        uint64_t user = permutation_at(&order, i);
        if (u->user == NULL || bsearch(&user, u->user, u->n, sizeof user, compare_users) != NULL)
            chosen[n_chosen++] = user;
    }
    sort_uint64(chosen, n);
    mem_free(u->user);
    u->user = chosen;
    u->n = n;
    return OK;
}

status split_users_init(split_users *out, const split *s, split_part part) {
    *out = (split_users){0};
    if (!split_rule_has_part(&s->rule, part) && s->rule.kind == SPLIT_NONE)
        return fail(ERR_USAGE, "the run was trained on all events (--split none): evaluate it on "
                               "later ones, --test-file DIR");
    if (!split_rule_has_part(&s->rule, part))
        return fail(ERR_USAGE,
                    "%s has no validation part; --validate or --split leave-two-out make one",
                    split_kind_name(s->rule.kind));
    collect_users(out, s, part);
    if (out->n == 0 && s->rule.target_actions != 0 && part != PART_TRAIN)
        return fail(ERR_USAGE, "no event of the %s part has a target action",
                    split_part_name(part));
    if (out->n < s->data->n_users) {
        TRY(MEM_NEW_RAW(&out->user, out->n));
        collect_users(out, s, part);
    }
    uint64_t n = part == PART_TRAIN ? 0 : (uint64_t)s->rule.n_sample;
    return n > 0 && n < out->n ? sample_users(out, s, n) : OK;
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
