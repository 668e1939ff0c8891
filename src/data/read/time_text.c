#include "data/read/time_text.h"
#include "base/text.h"

#include <stdio.h>
#include <string.h>

#include "data/read/csv.h"

#define FIRST_SECOND  (-INT64_C(2208988800)) /* 1900-01-01 */
#define LAST_SECOND   INT64_C(7258118399)    /* 2199-12-31 23:59:59 */
#define NS_PER_SECOND INT64_C(1000000000)

static const int64_t ns_per_unit[N_TIME_UNITS] = {NS_PER_SECOND, 1000000, 1000, 1};
static const char *const unit_names[N_TIME_UNITS] = {"seconds", "milliseconds", "microseconds",
                                                     "nanoseconds"};
static const char *const unit_options[N_TIME_UNITS] = {"s", "ms", "us", "ns"};

/* A decimal number: digits d, with the point after the first `point` of them. */
typedef struct decimal {
    bool is_negative, has_fraction;
    char digit[48];
    int n, point;
} decimal;

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

/* Digits beyond the last that a nanosecond needs are dropped; the point still moves. */
static void push_digit(decimal *d, char c, bool is_fraction) {
    if (d->n == 0 && c == '0') { /* no leading zeros */
        d->point -= is_fraction;
        return;
    }
    if (d->n < (int)sizeof d->digit) d->digit[d->n++] = c;
    d->point += !is_fraction;
}

/* The exponent of "e9", "E+09"; false if it is malformed.  Huge ones are cut to what is surely out
 * of range. */
static bool read_exponent(const char *text, size_t n, int *out) {
    bool is_negative = n > 0 && text[0] == '-';
    size_t i = n > 0 && (text[0] == '-' || text[0] == '+');
    int value = 0;
    if (i == n) return false;
    for (; i < n; i++) {
        if (!is_digit(text[i])) return false;
        if (value < 10000) value = value * 10 + (text[i] - '0');
    }
    *out = is_negative ? -value : value;
    return true;
}

static bool read_decimal(const char *text, size_t n, decimal *d) {
    size_t i = n > 0 && (text[0] == '-' || text[0] == '+');
    bool has_digits = false;
    int exponent = 0;
    *d = (decimal){.is_negative = n > 0 && text[0] == '-'};
    for (; i < n && (is_digit(text[i]) || (text[i] == '.' && !d->has_fraction)); i++) {
        if (text[i] == '.') {
            d->has_fraction = true;
            continue;
        }
        has_digits = true;
        push_digit(d, text[i], d->has_fraction);
    }
    if (!has_digits) return false;
    if (i < n && (text[i] == 'e' || text[i] == 'E')) {
        if (!read_exponent(text + i + 1, n - i - 1, &exponent)) return false;
        i = n;
    }
    d->point += exponent;
    return i == n;
}

/* value * 10^shift as an integer, rounded; false if it has more than 64 bits. */
static bool decimal_scale(const decimal *d, int shift, int64_t *out) {
    int64_t value = 0;
    int n_whole = d->point + shift;
    if (d->n == 0) n_whole = 0;
    if (n_whole > 19) return false;
    for (int i = 0; i < n_whole; i++) {
        int digit = i < d->n ? d->digit[i] - '0' : 0;
        if (__builtin_mul_overflow(value, 10, &value) ||
            __builtin_add_overflow(value, digit, &value))
            return false;
    }
    if (n_whole >= 0 && n_whole < d->n && d->digit[n_whole] >= '5' &&
        __builtin_add_overflow(value, 1, &value))
        return false;
    *out = d->is_negative ? -value : value;
    return true;
}

/* Days since 1970-01-01 in the Gregorian calendar, counted from March, so that the leap day is the
 * last of its year. */
static int64_t days_of(int year, int month, int day) {
    int64_t y = month <= 2 ? year - 1 : year;
    int64_t era = y / 400, of_era = y - era * 400;
    int64_t of_year = (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1;
    return era * 146097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719468;
}

static int month_days(int year, int month) {
    static const int days[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    bool is_leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
    return days[month - 1] + (month == 2 && is_leap);
}

/* A text being read from its front. */
typedef struct cursor {
    const char *at, *end;
} cursor;

static bool take_char(cursor *c, char wanted) {
    if (c->at == c->end || *c->at != wanted) return false;
    c->at++;
    return true;
}

/* Exactly `width` digits. */
static bool take_digits(cursor *c, int width, int *out) {
    *out = 0;
    for (int i = 0; i < width; i++, c->at++) {
        if (c->at == c->end || !is_digit(*c->at)) return false;
        *out = *out * 10 + (*c->at - '0');
    }
    return true;
}

/* ".123" or ",123" as nanoseconds; digits after the ninth are dropped. */
static bool take_fraction(cursor *c, int64_t *ns) {
    int n = 0;
    *ns = 0;
    if (!take_char(c, '.') && !take_char(c, ',')) return true;
    for (; c->at < c->end && is_digit(*c->at); c->at++, n++)
        if (n < 9) *ns = *ns * 10 + (*c->at - '0');
    for (int i = n; i < 9; i++)
        *ns *= 10;
    return n > 0;
}

/* "Z", " UTC", "+02", "+02:00", "-0230", or nothing. */
static bool take_zone(cursor *c, bool *has_zone, int *seconds) {
    int hours, minutes = 0, sign;
    *has_zone = true;
    *seconds = 0;
    size_t left = (size_t)(c->end - c->at);
    if ((left == 4 && memcmp(c->at, " UTC", 4) == 0) ||
        (left == 4 && memcmp(c->at, " GMT", 4) == 0) ||
        (left == 1 && (*c->at == 'Z' || *c->at == 'z'))) {
        c->at = c->end;
        return true;
    }
    if (left == 0) {
        *has_zone = false;
        return true;
    }
    (void)take_char(c, ' ');
    if (c->at == c->end || (*c->at != '+' && *c->at != '-')) return false;
    sign = *c->at++ == '-' ? -1 : 1;
    if (!take_digits(c, 2, &hours)) return false;
    (void)take_char(c, ':');
    if (c->at < c->end && !take_digits(c, 2, &minutes)) return false;
    *seconds = sign * (hours * 3600 + minutes * 60);
    return hours <= 23 && minutes <= 59;
}

/* A date and its time of day in ISO 8601's extended format; seconds and nanoseconds since 1970. */
typedef struct iso_time {
    int64_t seconds, ns;
    bool has_zone;
} iso_time;

static bool take_clock(cursor *c, iso_time *t) {
    int hour, minute, second = 0, zone;
    if (!take_digits(c, 2, &hour) || !take_char(c, ':') || !take_digits(c, 2, &minute))
        return false;
    if (take_char(c, ':')) {
        if (!take_digits(c, 2, &second) || !take_fraction(c, &t->ns)) return false;
    }
    if (!take_zone(c, &t->has_zone, &zone)) return false;
    t->seconds += hour * 3600 + minute * 60 + second - zone;
    return hour <= 23 && minute <= 59 && second <= 60; /* 60: a leap second */
}

static bool read_iso(const char *text, size_t n, iso_time *t) {
    cursor c = {text, text + n};
    int year, month, day;
    *t = (iso_time){0};
    if (!take_digits(&c, 4, &year) || !take_char(&c, '-') || !take_digits(&c, 2, &month) ||
        !take_char(&c, '-') || !take_digits(&c, 2, &day))
        return false;
    if (month < 1 || month > 12 || day < 1 || day > month_days(year, month)) return false;
    t->seconds = days_of(year, month, day) * 86400;
    if (c.at == c.end) return true;
    if (!take_char(&c, 'T') && !take_char(&c, 't') && !take_char(&c, ' ')) return false;
    return take_clock(&c, t) && c.at == c.end;
}

/* The unit whose dates are the earliest that make sense: of 1.7e9 seconds, of 1.7e12 milliseconds;
 * N_TIME_UNITS where none does. */
static time_unit unit_of(const decimal *d) {
    for (int unit = UNIT_S; unit < N_TIME_UNITS; unit++) {
        int64_t value, limit = LAST_SECOND;
        for (int i = 0; i < unit; i++)
            limit *= 1000;
        if (decimal_scale(d, 0, &value) && value <= limit && value >= -limit)
            return (time_unit)unit;
    }
    return N_TIME_UNITS;
}

bool time_guess(const char *text, size_t n, time_form *form, time_unit *unit) {
    decimal d;
    iso_time t;
    *unit = UNIT_S;
    if (read_decimal(text, n, &d)) {
        *form = TIME_NUMBER;
        *unit = unit_of(&d);
        return *unit < N_TIME_UNITS;
    }
    if (!read_iso(text, n, &t)) return false;
    *form = t.has_zone ? TIME_ZONED : TIME_DATE;
    return true;
}

void time_plan_set(time_plan *plan, time_form form, time_unit unit, bool is_given) {
    *plan = (time_plan){.form = form,
                        .unit = unit,
                        .is_given = is_given,
                        .ns_per_unit = form == TIME_RAW ? 1 : ns_per_unit[unit],
                        .low = INT64_MIN,
                        .high = INT64_MAX};
    if (form == TIME_RAW) return;
    int64_t per_second = NS_PER_SECOND / ns_per_unit[unit];
    plan->high = LAST_SECOND * per_second;
    /* Found in the data, a unit has numbers that are too large for the next coarser one. */
    plan->low = is_given || unit == UNIT_S ? FIRST_SECOND * per_second
                                           : LAST_SECOND * (per_second / 1000) + 1;
    if (form != TIME_NUMBER) plan->low = plan->high = INT64_MIN; /* no number is a date */
}

status time_plan_parse(time_plan *plan, const char *name) {
    for (int unit = 0; unit < N_TIME_UNITS; unit++) {
        if (strcmp(name, unit_options[unit]) != 0 && strcmp(name, unit_names[unit]) != 0) continue;
        time_plan_set(plan, TIME_NUMBER, (time_unit)unit, true);
        return OK;
    }
    if (strcmp(name, "iso") == 0) {
        time_plan_set(plan, TIME_DATE, UNIT_S, true);
        return OK;
    }
    return fail(ERR_USAGE, "--time-unit '%s' is unknown; use s, ms, us, ns or iso", name);
}

int time_plan_digits(const time_plan *plan) {
    return plan->form == TIME_NUMBER ? 3 * (int)plan->unit : 0;
}

const char *time_plan_name(const time_plan *plan) {
    switch (plan->form) {
    case TIME_RAW:
        return "integers";
    case TIME_NUMBER:
        return unit_names[plan->unit];
    case TIME_DATE:
        return plan->is_given ? "dates (ISO 8601)" : "dates without a zone, read as UTC";
    default:
        return "dates with a zone";
    }
}

/* Digits after the second that a time needs. */
static int digits_of(int64_t ns) {
    return ns % NS_PER_SECOND == 0 ? 0 : ns % 1000000 == 0 ? 3 : ns % 1000 == 0 ? 6 : 9;
}

static time_fault keep(int64_t ns, int64_t *out, int *digits) {
    int needed = digits_of(ns);
    *out = ns;
    if (needed > *digits) *digits = needed;
    return TIME_FINE;
}

static time_fault parse_iso(const time_plan *plan, const char *text, size_t n, int64_t *out,
                            int *digits) {
    iso_time t;
    decimal d;
    if (!read_iso(text, n, &t)) return read_decimal(text, n, &d) ? TIME_OTHER_FORM : TIME_NO_TIME;
    if (!plan->is_given && t.has_zone != (plan->form == TIME_ZONED)) return TIME_OTHER_FORM;
    if (t.seconds < FIRST_SECOND || t.seconds > LAST_SECOND) return TIME_BEYOND;
    return keep(t.seconds * NS_PER_SECOND + t.ns, out, digits);
}

static time_fault parse_number(const time_plan *plan, const char *text, size_t n, int64_t *out,
                               int *digits) {
    iso_time t;
    decimal d;
    int64_t ns;
    if (!read_decimal(text, n, &d)) return read_iso(text, n, &t) ? TIME_OTHER_FORM : TIME_NO_TIME;
    if (!plan->is_given && unit_of(&d) != plan->unit)
        return unit_of(&d) < N_TIME_UNITS ? TIME_OTHER_UNIT : TIME_BEYOND;
    if (!decimal_scale(&d, 9 - 3 * (int)plan->unit, &ns) || ns < FIRST_SECOND * NS_PER_SECOND ||
        ns / NS_PER_SECOND > LAST_SECOND)
        return TIME_BEYOND;
    return keep(ns, out, digits);
}

/* An integer, perhaps with a fraction of zeros. */
static time_fault parse_raw(const char *text, size_t n, int64_t *out) {
    static const time_fault faults[] = {TIME_FINE, TIME_NO_TIME, TIME_TOO_LARGE};
    const char *point = memchr(text, '.', n);
    size_t whole = point != NULL ? (size_t)(point - text) : n;
    for (size_t i = whole + 1; i < n; i++)
        if (text[i] != '0') return TIME_NOT_WHOLE;
    if (whole + 1 == n) return TIME_NOT_WHOLE;
    return faults[number_read(text, whole, out)];
}

time_fault time_parse(const time_plan *plan, const char *text, size_t n, int64_t *out,
                      int *digits) {
    if (plan->form == TIME_RAW) return parse_raw(text, n, out);
    return plan->form == TIME_NUMBER ? parse_number(plan, text, n, out, digits)
                                     : parse_iso(plan, text, n, out, digits);
}

/* The year of a number in the plan's unit, for a message; Gregorian years of 365.2425 days. */
static double year_of(const time_plan *plan, const decimal *d) {
    double value = 0;
    for (int i = 0; i < d->n; i++)
        value = value * 10 + (d->digit[i] - '0');
    for (int i = d->n; i < d->point && i < 400; i++)
        value *= 10;
    double per_second = (double)(NS_PER_SECOND / ns_per_unit[plan->unit]);
    double years = value / per_second / (365.2425 * 86400);
    return 1970 + (d->is_negative ? -years : years);
}

/* An out-of-range time: the year it would be, and the unit with which it makes sense. */
static status fail_beyond(const time_plan *plan, const char *shown, const char *text, size_t n) {
    decimal d;
    if (!read_decimal(text, n, &d))
        return fail(ERR_FORMAT, "'%s' is not between the years 1900 and 2199", shown);
    double year = year_of(plan, &d);
    char when[48] = "far from 1900 to 2199";
    if (year > -1e9 && year < 1e9)
        snprintf(when, sizeof when, "the year %lld", (long long)(year < 0 ? year - 1 : year));
    time_unit unit = unit_of(&d);
    if (unit < N_TIME_UNITS && unit != plan->unit)
        return fail(ERR_FORMAT,
                    "'%s' in %s is %s; it looks like %s: give --time-unit %s if all times are",
                    shown, unit_names[plan->unit], when, unit_names[unit], unit_options[unit]);
    return fail(ERR_FORMAT, "'%s' in %s is %s; times are between the years 1900 and 2199", shown,
                unit_names[plan->unit], when);
}

static status fail_other_form(const time_plan *plan, const char *shown) {
    static const char *const what[] = {"an integer", "a number", "a date without a zone",
                                       "a date with a zone"};
    if (plan->is_given)
        return fail(ERR_FORMAT, "'%s' is not what --time-unit says: %s", shown,
                    plan->form == TIME_NUMBER ? unit_names[plan->unit] : "dates");
    return fail(ERR_FORMAT,
                "'%s' is of another form than %s, which is %s; all times must have one form", shown,
                plan->evidence, what[plan->form]);
}

status time_fail(const time_plan *plan, time_fault fault, const char *text, size_t n) {
    char shown[64];
    decimal d;
    escape_excerpt(shown, text, n);
    switch (fault) {
    case TIME_NOT_WHOLE:
        return fail(ERR_FORMAT, "'%s' is not a whole number; times have no fraction", shown);
    case TIME_TOO_LARGE:
        return fail(ERR_FORMAT, "'%s' does not fit a 64-bit number", shown);
    case TIME_BEYOND:
        return fail_beyond(plan, shown, text, n);
    case TIME_OTHER_FORM:
        return fail_other_form(plan, shown);
    case TIME_OTHER_UNIT:
        (void)read_decimal(text, n, &d);
        return fail(ERR_FORMAT,
                    "'%s' looks like %s, but %s like %s; if all times have one unit, give it with "
                    "--time-unit s, ms, us or ns",
                    shown, unit_names[unit_of(&d)], plan->evidence, unit_names[plan->unit]);
    default:
        if (plan->form == TIME_RAW) return fail(ERR_FORMAT, "'%s' is not a whole number", shown);
        return fail(ERR_FORMAT, "'%s' is not a time: neither a number nor 2023-02-28T13:45:00Z",
                    shown);
    }
}
