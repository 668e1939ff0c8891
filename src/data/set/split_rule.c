#include "data/set/split_rule.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char *const kind_names[SPLIT_KINDS] = {"leave-one-out", "leave-two-out", "by-user",
                                                    "time", "test-file"};

split_rule split_rule_of(split_kind kind) {
    return (split_rule){.kind = kind, .has_validation = kind == SPLIT_LEAVE_TWO_OUT};
}

bool split_rule_is_same(const split_rule *a, const split_rule *b) {
    return a->kind == b->kind && a->has_validation == b->has_validation &&
           (a->kind != SPLIT_TIME || a->time_cut == b->time_cut);
}

bool split_rule_has_part(const split_rule *rule, split_part part) {
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
                "split '%.40s' is unknown; use leave-one-out, leave-two-out, by-user or time",
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

/* Days from 1970-01-01 to a date of the Gregorian calendar. */
static int64_t days_of(int year, int month, int day) {
    static const int before[] = {0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334};
    int64_t y = year - 1; /* whole years since the year 1 */
    bool is_leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
    return y * 365 + y / 4 - y / 100 + y / 400 + before[month - 1] + (month > 2 && is_leap) + day -
           1 - 719162;
}

static int days_in(int year, int month) {
    return (int)((month == 12 ? days_of(year + 1, 1, 1) : days_of(year, month + 1, 1)) -
                 days_of(year, month, 1));
}

/* d: a digit; every other character stands for itself. */
static bool has_form(const char *text, const char *form) {
    for (; *form != '\0'; text++, form++) {
        bool is_digit = *text >= '0' && *text <= '9';
        if (*form == 'd' ? !is_digit : *text != *form) return false;
    }
    return *text == '\0';
}

static bool parse_date(const char *text, int64_t *seconds) {
    int year, month, day, hour = 0, minute = 0, second = 0;
    bool has_clock =
        has_form(text, "dddd-dd-ddTdd:dd:dd") || has_form(text, "dddd-dd-ddTdd:dd:ddZ");
    if (!has_clock && !has_form(text, "dddd-dd-dd")) return false;
    sscanf(text, "%4d-%2d-%2dT%2d:%2d:%2d", &year, &month, &day, &hour, &minute, &second);
    if (year < 1 || month < 1 || month > 12 || day < 1 || day > days_in(year, month) || hour > 23 ||
        minute > 59 || second > 59)
        return false;
    *seconds = days_of(year, month, day) * 86400 + hour * 3600 + minute * 60 + second;
    return true;
}

status split_time_parse(const char *text, int64_t *seconds) {
    char *end;
    size_t n_digits = strspn(text + (text[0] == '-'), "0123456789");
    if (parse_date(text, seconds)) return OK;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (n_digits == 0 || *end != '\0' || errno == ERANGE)
        return fail(ERR_USAGE,
                    "'%.60s' is no time; give seconds since 1970, or 2001-01-31, or "
                    "2001-01-31T23:59:59Z (UTC)",
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
    return fail(ERR_USAGE,
                "the %s part of '%s' has events that the run was trained on: its split is '%s'; "
                "leave the option out to use that one, or give other events with --test-file",
                split_part_name(part), split_rule_text(wanted, b), split_rule_text(trained, a));
}

void split_record_write(const split_record *r, json_writer *w) {
    char hex[24];
    json_key_string(w, "split", split_kind_name(r->rule.kind));
    if (r->rule.has_validation && r->rule.kind != SPLIT_LEAVE_TWO_OUT)
        json_key_bool(w, "has_validation", true);
    if (r->rule.kind == SPLIT_TIME) json_key_int(w, "time_cut", r->rule.time_cut);
    if (r->rule.kind != SPLIT_TEST_FILE) return;
    snprintf(hex, sizeof hex, "%016" PRIx64, r->test_data);
    json_key_string(w, "test_file", r->test_file);
    json_key_string(w, "test_data", hex);
}

static status read_test_file(split_record *out, const json_value *object) {
    const char *path, *hex;
    char end;
    TRY(json_member_string(object, "test_file", &path));
    TRY(json_member_string(object, "test_data", &hex));
    if (strlen(path) >= sizeof out->test_file) return fail(ERR_FORMAT, "'test_file' is too long");
    memcpy(out->test_file, path, strlen(path) + 1);
    if (strlen(hex) != 16 || strspn(hex, "0123456789abcdef") != 16 ||
        sscanf(hex, "%" SCNx64 "%c", &out->test_data, &end) != 1)
        return fail(ERR_FORMAT, "'test_data' is no fingerprint");
    return OK;
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
    if (validation != NULL && kind != SPLIT_LEAVE_ONE_OUT && kind != SPLIT_LEAVE_TWO_OUT)
        out->rule.has_validation = validation->boolean;
    if (kind == SPLIT_TIME) TRY(json_member_int(object, "time_cut", &out->rule.time_cut));
    return kind == SPLIT_TEST_FILE ? read_test_file(out, object) : OK;
}
