#include "data/read/time_text.h"

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

/* Digits of a fraction as nanoseconds; those after the ninth are dropped. */
static bool take_fraction(cursor *c, int64_t *ns) {
    int n = 0;
    *ns = 0;
    for (; c->at < c->end && is_digit(*c->at); c->at++, n++)
        if (n < 9) *ns = *ns * 10 + (*c->at - '0');
    for (int i = n; i < 9; i++)
        *ns *= 10;
    return n > 0;
}

/* "Z", "UTC", "+02", "+02:00", "-0230", with a space before it or none. */
static bool take_zone(cursor *c, int *seconds) {
    int hours, minutes = 0;
    *seconds = 0;
    (void)take_char(c, ' ');
    bool is_name =
        c->end - c->at == 3 && (memcmp(c->at, "UTC", 3) == 0 || memcmp(c->at, "GMT", 3) == 0);
    if (is_name) c->at = c->end;
    if (is_name || take_char(c, 'Z') || take_char(c, 'z')) return true;
    int sign = take_char(c, '-') ? -1 : take_char(c, '+') ? 1 : 0;
    if (sign == 0 || !take_digits(c, 2, &hours)) return false;
    bool has_minutes = take_char(c, ':') || (c->at < c->end && is_digit(*c->at));
    if (has_minutes && !take_digits(c, 2, &minutes)) return false;
    *seconds = sign * (hours * 3600 + minutes * 60);
    return hours <= 23 && minutes <= 59;
}

bool time_offset_parse(const char *text, int *seconds) {
    cursor c = {text, text + strlen(text)};
    return take_zone(&c, seconds) && c.at == c.end;
}

/* A time as seconds and nanoseconds since 1970, in local time unless it has a zone. */
typedef struct iso_time {
    int64_t seconds, ns;
    bool has_zone;
} iso_time;

/* Sets t->seconds; tm_gmtoff is that of the zone, or 0. */
static bool set_seconds(iso_time *t, const struct tm *tm) {
    int year = tm->tm_year + 1900, month = tm->tm_mon + 1;
    if (year < 1 || month < 1 || month > 12 || tm->tm_mday < 1 ||
        tm->tm_mday > month_days(year, month) || tm->tm_hour > 23 || tm->tm_min > 59 ||
        tm->tm_sec > 60) /* 60: a leap second */
        return false;
    t->seconds = days_of(year, month, tm->tm_mday) * 86400 + tm->tm_hour * 3600 + tm->tm_min * 60 +
                 tm->tm_sec - tm->tm_gmtoff;
    return true;
}

static bool take_clock(cursor *c, struct tm *tm, iso_time *t) {
    int zone = 0;
    if (!take_digits(c, 2, &tm->tm_hour) || !take_char(c, ':') || !take_digits(c, 2, &tm->tm_min))
        return false;
    if (take_char(c, ':')) {
        if (!take_digits(c, 2, &tm->tm_sec)) return false;
        if ((take_char(c, '.') || take_char(c, ',')) && !take_fraction(c, &t->ns)) return false;
    }
    t->has_zone = c->at < c->end;
    if (t->has_zone && !take_zone(c, &zone)) return false;
    tm->tm_gmtoff = zone;
    return true;
}

/* ISO 8601's extended format. */
static bool read_iso(const char *text, size_t n, iso_time *t) {
    cursor c = {text, text + n};
    struct tm tm = {0};
    *t = (iso_time){0};
    if (!take_digits(&c, 4, &tm.tm_year) || !take_char(&c, '-') ||
        !take_digits(&c, 2, &tm.tm_mon) || !take_char(&c, '-') || !take_digits(&c, 2, &tm.tm_mday))
        return false;
    tm.tm_year -= 1900;
    tm.tm_mon -= 1;
    if (c.at == c.end) return set_seconds(t, &tm);
    if (!take_char(&c, 'T') && !take_char(&c, 't') && !take_char(&c, ' ')) return false;
    return take_clock(&c, &tm, t) && c.at == c.end && set_seconds(t, &tm);
}

bool time_read_date(const char *text, int64_t *seconds) {
    iso_time t;
    bool is_date = read_iso(text, strlen(text), &t);
    *seconds = is_date ? t.seconds : 0;
    return is_date;
}

static bool has_zone_directive(const char *format) {
    for (; *format != '\0'; format++)
        if (*format == '%' && *++format == 'z') return true;
    return false;
}

/* A date by --time-format.  C has no %f: the digits of the fraction are taken out of the text. */
static bool read_format(const time_plan *plan, const char *text, size_t n, iso_time *t) {
    char copy[128], head[TIME_FORMAT_BYTES], *at;
    struct tm tm = {0};
    *t = (iso_time){.has_zone = has_zone_directive(plan->format)};
    if (n >= sizeof copy) return false;
    memcpy(copy, text, n);
    copy[n] = '\0';
    if (plan->n_before_fraction > 0) {
        snprintf(head, sizeof head, "%.*s", plan->n_before_fraction, plan->format);
        at = strptime(copy, head, &tm);
        cursor c = {at, copy + n};
        if (at == NULL || !take_fraction(&c, &t->ns)) return false;
        n -= (size_t)(c.at - at);
        memmove(at, c.at, strlen(c.at) + 1);
        tm = (struct tm){0};
    }
    at = strptime(copy, plan->format, &tm);
    return at == copy + n && set_seconds(t, &tm);
}

static bool read_date(const time_plan *plan, const char *text, size_t n, iso_time *t) {
    return plan->format[0] != '\0' ? read_format(plan, text, n, t) : read_iso(text, n, t);
}

status time_plan_parse_format(time_plan *plan, const char *format) {
    static const char known[] = "YymbBdeHIpMSzaAFTRD";
    char letters[TIME_FORMAT_BYTES] = "", *to = plan->format;
    int n = 0, n_before = 0;
    if (strlen(format) >= TIME_FORMAT_BYTES)
        return fail(ERR_USAGE, "--time-format has more than %d bytes", TIME_FORMAT_BYTES - 1);
    time_plan_set(plan, TIME_DATE, UNIT_S, true);
    for (const char *f = format; *f != '\0'; f++) {
        if (*f == '%' && f[1] == 'f') {
            if (n_before > 0 || to == plan->format)
                return fail(ERR_USAGE,
                            "--time-format '%s': %%f stands once, after the seconds: %%S.%%f",
                            format);
            n_before = (int)(to - plan->format);
            f++;
            continue;
        }
        *to++ = *f;
        if (*f != '%') continue;
        *to++ = *++f;
        if (*f == '\0' || (*f != '%' && strchr(known, *f) == NULL))
            return fail(ERR_USAGE,
                        "--time-format: '%%%.1s' is unknown; there are %%Y %%y %%m %%b %%B %%d %%e "
                        "%%H %%I %%p %%M %%S %%f %%z %%a %%A %%F %%T %%R %%D and %%%%",
                        f);
        letters[n++] = *f;
    }
    *to = '\0';
    plan->n_before_fraction = n_before;
    if (!strpbrk(letters, "YyFD") || !strpbrk(letters, "mbBFD") || !strpbrk(letters, "deFD"))
        return fail(ERR_USAGE, "--time-format '%s' needs a year, a month and a day", format);
    if (!strpbrk(letters, "I") != !strpbrk(letters, "p"))
        return fail(ERR_USAGE, "--time-format '%s': %%I and %%p need each other", format);
    return OK;
}

/* The unit whose dates are the earliest that make sense: of 1.7e9 seconds, of 1.7e12 milliseconds;
 * N_TIME_UNITS where none does. */
static time_unit unit_of(const decimal *d) {
    for (int unit = UNIT_S; unit < N_TIME_UNITS; unit++) {
        int64_t value, limit = TIME_LAST_SECOND;
        for (int i = 0; i < unit; i++)
            limit *= 1000;
        if (decimal_scale(d, 0, &value) && value <= limit && value >= -limit)
            return (time_unit)unit;
    }
    return N_TIME_UNITS;
}

/* 1e9 <= seconds < 2e9: ten digits of which the first is 1; of a finer unit 13, 16 or 19. */
static bool is_clock(const decimal *d) {
    return !d->is_negative && d->n > 0 && d->digit[0] == '1' && d->point >= 10 && d->point <= 19 &&
           d->point % 3 == 1;
}

bool time_is_clock(const char *text, size_t n) {
    decimal d;
    return read_decimal(text, n, &d) && is_clock(&d);
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
    *form = TIME_DATE;
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
    plan->high = TIME_LAST_SECOND * per_second;
    /* Found in the data, a unit has numbers that are too large for the next coarser one. */
    plan->low = is_given || unit == UNIT_S ? TIME_FIRST_SECOND * per_second
                                           : TIME_LAST_SECOND * (per_second / 1000) + 1;
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

void time_plan_name(const time_plan *plan, char out[TIME_NAME_BYTES]) {
    const time_zone *z = plan->zone;
    bool has_dates = plan->form == TIME_DATE || (z != NULL && (z->has_local || z->has_zoned));
    const char *numbers = plan->form == TIME_NUMBER     ? unit_names[plan->unit]
                          : z != NULL && z->has_numbers ? "numbers since 1970"
                                                        : "";
    const char *and = has_dates && numbers[0] != '\0' ? ", and " : "";
    if (has_dates && z != NULL && z->has_local)
        snprintf(out, TIME_NAME_BYTES, "%s%sdates %s read as %s", numbers, and,
                 z->has_zoned ? "with a zone and without one; those without are"
                              : "without a zone,",
                 z->name);
    else
        snprintf(out, TIME_NAME_BYTES, "%s%s%s", numbers, and,
                 has_dates                   ? "dates with a zone"
                 : plan->form == TIME_NUMBER ? ""
                                             : "integers");
}

int time_digits(int64_t ns) {
    return ns % NS_PER_SECOND == 0 ? 0 : ns % 1000000 == 0 ? 3 : ns % 1000 == 0 ? 6 : 9;
}

static time_fault keep(int64_t ns, int64_t *out, int *digits) {
    int needed = time_digits(ns);
    *out = ns;
    if (needed > *digits) *digits = needed;
    return TIME_FINE;
}

/* All threads set the same flags: most calls only read. */
static void note_zone(_Atomic bool *is_seen) {
    if (!atomic_load_explicit(is_seen, memory_order_relaxed)) atomic_store(is_seen, true);
}

static time_fault parse_iso(const time_plan *plan, const char *text, size_t n, int64_t *out,
                            int *digits) {
    iso_time t;
    decimal d;
    int64_t ns;
    if (!read_date(plan, text, n, &t)) {
        if (!read_decimal(text, n, &d)) return TIME_NO_TIME;
        if (plan->is_given || !is_clock(&d) || !decimal_scale(&d, 9 - 3 * (int)unit_of(&d), &ns))
            return TIME_OTHER_FORM;
        if (plan->zone != NULL) note_zone(&plan->zone->has_numbers);
        return keep(ns, out, digits);
    }
    if (plan->zone != NULL && !t.has_zone) t.seconds = time_zone_seconds(plan->zone, t.seconds);
    if (plan->zone != NULL) note_zone(t.has_zone ? &plan->zone->has_zoned : &plan->zone->has_local);
    if (t.seconds < TIME_FIRST_SECOND || t.seconds > TIME_LAST_SECOND) return TIME_BEYOND;
    return keep(t.seconds * NS_PER_SECOND + t.ns, out, digits);
}

static time_fault parse_number(const time_plan *plan, const char *text, size_t n, int64_t *out,
                               int *digits) {
    iso_time t;
    decimal d;
    int64_t ns;
    if (!read_decimal(text, n, &d)) {
        if (plan->takes_dates && read_iso(text, n, &t))
            return parse_iso(plan, text, n, out, digits);
        return read_iso(text, n, &t) ? TIME_OTHER_FORM : TIME_NO_TIME;
    }
    if (!plan->is_given && unit_of(&d) != plan->unit)
        return unit_of(&d) < N_TIME_UNITS ? TIME_OTHER_UNIT : TIME_BEYOND;
    if (!decimal_scale(&d, 9 - 3 * (int)plan->unit, &ns) ||
        ns < TIME_FIRST_SECOND * NS_PER_SECOND || ns / NS_PER_SECOND > TIME_LAST_SECOND)
        return TIME_BEYOND;
    return keep(ns, out, digits);
}

/* An integer, perhaps with a fraction of zeros. */
static time_fault parse_raw(const char *text, size_t n, int64_t *out) {
    static const time_fault faults[] = {TIME_FINE, TIME_NO_TIME, TIME_TOO_LARGE};
    if (number_read(text, n, out) == NUMBER_WHOLE) return TIME_FINE;
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
    static const char *const what[] = {"an integer", "a number", "a date"};
    if (plan->is_given)
        return fail(ERR_FORMAT, "'%s' is not what %s says: %s", shown,
                    plan->format[0] != '\0' ? "--time-format" : "--time-unit",
                    plan->form == TIME_NUMBER ? unit_names[plan->unit] : "dates");
    return fail(
        ERR_FORMAT,
        "'%s' is of another form than %s, which is %s; give all times one form, or leave such "
        "rows out with --skip-bad",
        shown, plan->evidence, what[plan->form]);
}

/* For a message: the form of "28.02.2023 13:45" or "2/28/2023". */
static const char *guess_format(const char *text, char out[48]) {
    int first, second, year, end = 0;
    char a, b;
    if (sscanf(text, "%2d%c%2d%c%4d%n", &first, &a, &second, &b, &year, &end) != 5 || a != b ||
        strchr("./-", a) == NULL || year < 1000)
        return "";
    bool has_month_first = a == '/' && first <= 12;
    const char *rest = text + end;
    int n_colons = (*rest == ' ') + (strchr(rest, ':') != strrchr(rest, ':'));
    if (*rest != '\0' &&
        (*rest != ' ' || strspn(rest, " 0123456789:") != strlen(rest) || strchr(rest, ':') == NULL))
        return "";
    snprintf(out, 48, ", perhaps '%%%c%c%%%c%c%%Y%s'", has_month_first ? 'm' : 'd', a,
             has_month_first ? 'd' : 'm', a,
             n_colons == 0   ? ""
             : n_colons == 1 ? " %H:%M"
                             : " %H:%M:%S");
    return out;
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
        if (plan->format[0] != '\0')
            return fail(ERR_FORMAT, "'%s' does not fit --time-format", shown);
        char format[48];
        return fail(ERR_FORMAT,
                    "'%s' is not a time: neither a number nor 2023-02-28T13:45:00Z; give other "
                    "forms with --time-format%s",
                    shown, guess_format(shown, format));
    }
}
