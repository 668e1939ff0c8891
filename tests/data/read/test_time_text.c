#include "data/read/time_text.h"
#include "test.h"

#define SECOND INT64_C(1000000000)

/* A time by itself, as its own first row would have it read. */
static void check_time(const char *text, time_form form, time_unit unit, int64_t ns, int digits) {
    time_form found;
    time_unit found_unit;
    time_plan plan;
    int64_t value = -1;
    int n = 0;
    if (!time_guess(text, strlen(text), &found, &found_unit)) FAIL_TEST("'%s' is no time", text);
    CHECK_EQ(found, form);
    CHECK_EQ(found_unit, unit);
    time_plan_set(&plan, found, found_unit, false);
    if (time_parse(&plan, text, strlen(text), &value, &n) != TIME_FINE)
        FAIL_TEST("'%s' is guessed but not read", text);
    if (value != ns) FAIL_TEST("'%s' is %lld", text, (long long)value);
    CHECK_EQ(n, digits);
}

TEST(numbers_in_every_unit) {
    check_time("0", TIME_NUMBER, UNIT_S, 0, 0);
    check_time("-1", TIME_NUMBER, UNIT_S, -SECOND, 0);
    check_time("978300760", TIME_NUMBER, UNIT_S, 978300760 * SECOND, 0);
    check_time("+978300760.0", TIME_NUMBER, UNIT_S, 978300760 * SECOND, 0);
    check_time("1577836800.25", TIME_NUMBER, UNIT_S, 1577836800 * SECOND + SECOND / 4, 3);
    check_time("1577836800.000001", TIME_NUMBER, UNIT_S, 1577836800 * SECOND + 1000, 6);
    check_time("1577836800.123456789", TIME_NUMBER, UNIT_S, 1577836800123456789, 9);
    check_time(".5", TIME_NUMBER, UNIT_S, SECOND / 2, 3);
    check_time("5.", TIME_NUMBER, UNIT_S, 5 * SECOND, 0);
    check_time("1.6e9", TIME_NUMBER, UNIT_S, 1600000000 * SECOND, 0);
    check_time("16000000000E-1", TIME_NUMBER, UNIT_S, 1600000000 * SECOND, 0);
    check_time("0.0016E+12", TIME_NUMBER, UNIT_S, 1600000000 * SECOND, 0);
    check_time("1577836800123", TIME_NUMBER, UNIT_MS, 1577836800123000000, 3);
    check_time("1.577836800123e12", TIME_NUMBER, UNIT_MS, 1577836800123000000, 3);
    check_time("1577836800123.5", TIME_NUMBER, UNIT_MS, 1577836800123500000, 6);
    check_time("1577836800123456", TIME_NUMBER, UNIT_US, 1577836800123456000, 6);
    check_time("1577836800123456789", TIME_NUMBER, UNIT_NS, 1577836800123456789, 9);
    /* Finer than a nanosecond is rounded. */
    check_time("1.0000000005", TIME_NUMBER, UNIT_S, SECOND + 1, 9);
    check_time("1.00000000049", TIME_NUMBER, UNIT_S, SECOND, 0);
    check_time("0000000000000000000000000000000000000000000000000000000000000012", TIME_NUMBER,
               UNIT_S, 12 * SECOND, 0);
}

TEST(dates_of_iso_8601) {
    check_time("1970-01-01", TIME_DATE, UNIT_S, 0, 0);
    check_time("1969-12-31", TIME_DATE, UNIT_S, -86400 * SECOND, 0);
    check_time("2000-02-29", TIME_DATE, UNIT_S, 951782400 * SECOND, 0);
    check_time("2000-03-01", TIME_DATE, UNIT_S, 951868800 * SECOND, 0);
    check_time("2023-02-28T13:45", TIME_DATE, UNIT_S, 1677591900 * SECOND, 0);
    check_time("2023-02-28 13:45:01", TIME_DATE, UNIT_S, 1677591901 * SECOND, 0);
    check_time("2023-02-28T13:45:01Z", TIME_DATE, UNIT_S, 1677591901 * SECOND, 0);
    check_time("2019-10-01 00:00:00 UTC", TIME_DATE, UNIT_S, 1569888000 * SECOND, 0);
    check_time("2023-02-28T13:45:01.5Z", TIME_DATE, UNIT_S, 1677591901500000000, 3);
    check_time("2023-02-28T13:45:01,123456789z", TIME_DATE, UNIT_S, 1677591901123456789, 9);
    check_time("2023-02-28T15:45:01+02:00", TIME_DATE, UNIT_S, 1677591901 * SECOND, 0);
    check_time("2023-02-28 08:15:01-0530", TIME_DATE, UNIT_S, 1677591901 * SECOND, 0);
    check_time("2023-02-28 15:45:01 +02", TIME_DATE, UNIT_S, 1677591901 * SECOND, 0);
    check_time("2016-12-31T23:59:60Z", TIME_DATE, UNIT_S, 1483228800 * SECOND, 0);
}

TEST(what_is_no_time) {
    static const char *const texts[] = {"",
                                        "-",
                                        ".",
                                        "e9",
                                        "1e",
                                        "1e+",
                                        "1.2.3",
                                        "0x10",
                                        "nan",
                                        "inf",
                                        "12 ",
                                        "yesterday",
                                        "2023-02-29",
                                        "1900-02-29",
                                        "2023-13-01",
                                        "2023-00-01",
                                        "2023-01-00",
                                        "2023-04-31",
                                        "2023-1-1",
                                        "23-01-01",
                                        "2023-01-01T",
                                        "2023-01-01T24:00:00",
                                        "2023-01-01T10:60",
                                        "2023-01-01T10:00:61",
                                        "2023-01-01T10:00:00.",
                                        "2023-01-01T10:00:00X",
                                        "2023-01-01T10:00:00+24:00",
                                        "2023-01-01T10:00:00+1",
                                        "2023-01-01T10:00:00+02:",
                                        "2023-01-01T10:00:00+02:0",
                                        "2023-01-01T10:00:00+02:60",
                                        "2023-01-01T10:00:00 CET",
                                        "2023-01-01Z",
                                        "1e999999999999999999999",
                                        "99999999999999999999",
                                        "-99999999999999999999"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        time_form form;
        time_unit unit;
        if (time_guess(texts[i], strlen(texts[i]), &form, &unit))
            FAIL_TEST("'%s' is taken for a time", texts[i]);
    }
}

static time_fault parse_as(time_form form, time_unit unit, bool is_given, const char *text,
                           int64_t *out) {
    time_plan plan;
    int digits = 0;
    time_plan_set(&plan, form, unit, is_given);
    return time_parse(&plan, text, strlen(text), out, &digits);
}

TEST(a_plan_refuses_what_does_not_fit_it) {
    int64_t t;
    CHECK_EQ(parse_as(TIME_NUMBER, UNIT_S, false, "1577836800123", &t), TIME_OTHER_UNIT);
    CHECK_EQ(parse_as(TIME_NUMBER, UNIT_MS, false, "1577836800", &t), TIME_OTHER_UNIT);
    CHECK_EQ(parse_as(TIME_NUMBER, UNIT_MS, false, "0", &t), TIME_OTHER_UNIT);
    CHECK_EQ(parse_as(TIME_NUMBER, UNIT_MS, true, "0", &t), TIME_FINE);
    CHECK_EQ(parse_as(TIME_NUMBER, UNIT_S, true, "7258118400", &t), TIME_BEYOND);
    CHECK_EQ(parse_as(TIME_NUMBER, UNIT_S, true, "7258118399.999999999", &t), TIME_FINE);
    CHECK_EQ(t, INT64_C(7258118399999999999));
    CHECK_EQ(parse_as(TIME_NUMBER, UNIT_S, true, "-2208988800", &t), TIME_FINE);
    CHECK_EQ(parse_as(TIME_NUMBER, UNIT_S, true, "-2208988801", &t), TIME_BEYOND);
    CHECK_EQ(parse_as(TIME_NUMBER, UNIT_NS, true, "9223372036854775807", &t), TIME_BEYOND);
    CHECK_EQ(parse_as(TIME_NUMBER, UNIT_S, true, "1e400", &t), TIME_BEYOND);
    CHECK_EQ(parse_as(TIME_NUMBER, UNIT_S, true, "1e-400", &t), TIME_FINE);
    CHECK_EQ(t, 0);
    CHECK_EQ(parse_as(TIME_NUMBER, UNIT_S, false, "2020-01-01", &t), TIME_OTHER_FORM);
    CHECK_EQ(parse_as(TIME_DATE, UNIT_S, true, "1577836800", &t), TIME_OTHER_FORM);
    static const char *const others[] = {"999999999",   "2000000000",     "-1577836800",
                                         "15778368000", "20230228134500", "1577836800e1"};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        CHECK_EQ(parse_as(TIME_DATE, UNIT_S, false, others[i], &t), TIME_OTHER_FORM);
    static const char *const clocks[] = {"1577836800", "1577836800000", "1577836800e6",
                                         "1577836800000000000.0"};
    for (size_t i = 0; i < sizeof clocks / sizeof clocks[0]; i++) {
        CHECK_EQ(parse_as(TIME_DATE, UNIT_S, false, clocks[i], &t), TIME_FINE);
        CHECK_EQ(t, INT64_C(1577836800000000000));
    }
    CHECK_EQ(parse_as(TIME_DATE, UNIT_S, false, "2020-01-01T00:00Z", &t), TIME_FINE);
    CHECK_EQ(parse_as(TIME_DATE, UNIT_S, false, "2020-01-01T00:00", &t), TIME_FINE);
    CHECK_EQ(parse_as(TIME_DATE, UNIT_S, true, "2020-01-01T00:00Z", &t), TIME_FINE);
    CHECK_EQ(parse_as(TIME_DATE, UNIT_S, false, "1899-12-31", &t), TIME_BEYOND);
    CHECK_EQ(parse_as(TIME_DATE, UNIT_S, false, "2200-01-01", &t), TIME_BEYOND);
    CHECK_EQ(parse_as(TIME_DATE, UNIT_S, false, "soon", &t), TIME_NO_TIME);
}

TEST(integers_without_a_unit) {
    int64_t t;
    CHECK_EQ(parse_as(TIME_RAW, UNIT_S, true, "-9223372036854775808", &t), TIME_FINE);
    CHECK_EQ(t, INT64_MIN);
    CHECK_EQ(parse_as(TIME_RAW, UNIT_S, true, "978300760.00", &t), TIME_FINE);
    CHECK_EQ(t, 978300760);
    CHECK_EQ(parse_as(TIME_RAW, UNIT_S, true, "978300760.5", &t), TIME_NOT_WHOLE);
    CHECK_EQ(parse_as(TIME_RAW, UNIT_S, true, "978300760.", &t), TIME_NOT_WHOLE);
    CHECK_EQ(parse_as(TIME_RAW, UNIT_S, true, "9223372036854775808", &t), TIME_TOO_LARGE);
    CHECK_EQ(parse_as(TIME_RAW, UNIT_S, true, "x", &t), TIME_NO_TIME);
}

TEST(units_by_name) {
    time_plan plan;
    CHECK_OK(time_plan_parse(&plan, "us"));
    CHECK_EQ(plan.unit, UNIT_US);
    CHECK_EQ(time_plan_digits(&plan), 6);
    char name[TIME_NAME_BYTES];
    time_plan_name(&plan, name);
    CHECK_STR(name, "microseconds");
    CHECK_OK(time_plan_parse(&plan, "milliseconds"));
    CHECK_EQ(plan.ns_per_unit, 1000000);
    CHECK_OK(time_plan_parse(&plan, "iso"));
    CHECK_EQ(plan.form, TIME_DATE);
    CHECK_FAILS(time_plan_parse(&plan, "min"), ERR_USAGE, "--time-unit 'min' is unknown");
}

/* Seconds of a date in a format; INT64_MIN: it does not fit. */
static int64_t by_format(const char *format, const char *text) {
    time_plan plan;
    int64_t ns;
    int digits = 0;
    CHECK_OK(time_plan_parse_format(&plan, format));
    if (time_parse(&plan, text, strlen(text), &ns, &digits) != TIME_FINE) return INT64_MIN;
    return ns / SECOND;
}

TEST(dates_in_a_given_format) {
    static const struct {
        const char *format, *text;
    } same[] = {{"%d.%m.%Y %H:%M:%S", "28.02.2023 13:45:01"},
                {"%d.%m.%Y %H:%M:%S", "28.2.2023   13:45:1"},
                {"%m/%d/%Y %I:%M:%S %p", "02/28/2023 1:45:01 PM"},
                {"%m/%d/%Y %I:%M:%S%p", "2/28/2023 01:45:01pm"},
                {"%D %T", "02/28/23 13:45:01"},
                {"%d/%b/%Y:%H:%M:%S %z", "28/Feb/2023:15:45:01 +0200"},
                {"[%d/%b/%Y:%T %z]", "[28/feb/2023:08:15:01 -05:30]"},
                {"%a, %d %B %Y %T GMT", "Tue, 28 February 2023 13:45:01 GMT"},
                {"%d-%b-%y %I.%M.%S.%f %p", "28-FEB-23 01.45.01.000000 PM"},
                {"%A %B %e %T %Y", "Tuesday Feb 28 13:45:01 2023"},
                {"%Y%m%d%H%M%S", "20230228134501"},
                {"%FT%T.%fZ", "2023-02-28T13:45:01.999999999999Z"},
                {"100%% %F %R:%S", "100% 2023-02-28 13:45:01"}};
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++)
        if (by_format(same[i].format, same[i].text) != 1677591901)
            FAIL_TEST("'%s' by '%s' is %lld", same[i].text, same[i].format,
                      (long long)by_format(same[i].format, same[i].text));
    CHECK_EQ(by_format("%D", "01/01/68"), INT64_C(3092601600));
    CHECK_EQ(by_format("%D", "01/01/69"), -31536000);
    CHECK_EQ(by_format("%F %I%p", "1970-01-01 12AM"), 0);
    CHECK_EQ(by_format("%F %I%p", "1970-01-01 12PM"), 43200);
    static const struct {
        const char *format, *text;
    } bad[] = {{"%d.%m.%Y", "29.02.2023"},     {"%d.%m.%Y", "1.13.2023"},
               {"%d.%m.%Y", "1.1.23"},         {"%d.%m.%Y", "1.1.2023 "},
               {"%F.%f", "2023-01-01."},       {"%F.%f", "2023-01-01.5x"},
               {"%d.%m.%Y", "1-1-2023"},       {"%d.%m.%Y", ""},
               {"%F %I%p", "2023-01-01 13PM"}, {"%F %I%p", "2023-01-01 0AM"},
               {"%F %R", "2023-01-01 24:00"},  {"%b %d %Y", "Mai 1 2023"}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        if (by_format(bad[i].format, bad[i].text) != INT64_MIN)
            FAIL_TEST("'%s' fits '%s'", bad[i].text, bad[i].format);
}

TEST(formats_that_say_too_little_or_too_much) {
    static const struct {
        const char *format, *reason;
    } bad[] = {{"%Q", "'%Q' is unknown; there are %Y"},
               {"%F %Z", "'%Z' is unknown"},
               {"%F %", "is unknown"},
               {"%H:%M", "needs a year, a month and a day"},
               {"%d.%m", "needs a year, a month and a day"},
               {"", "needs a year, a month and a day"},
               {"%Y-%m-%d %H:%M:%S %Y-%m-%d %H:%M:%S %Y-%m-%d %H:%M:%S %Y-%m-%d %H", "63 bytes"},
               {"%F %I", "%I and %p need each other"},
               {"%f %Y-%m-%d", "%f stands once, after the seconds"},
               {"%F %T.%f %f", "%f stands once, after the seconds"},
               {"%F %H %p", "%I and %p need each other"}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        time_plan plan;
        CHECK_FAILS(time_plan_parse_format(&plan, bad[i].format), ERR_USAGE, bad[i].reason);
    }
}
