#include "data/read/time_zone.h"

#include <stdlib.h>
#include <unistd.h>

#include "base/mem.h"
#include "data/read/time_text.h"
#include "test.h"

/* The time in UTC of a local time, both written as dates. */
static void check_local(const char *zone, const char *local, const char *utc) {
    time_zone *z;
    time_plan plan;
    int64_t from, want;
    int digits = 0;
    CHECK_OK(time_zone_create(&z, zone));
    time_plan_set(&plan, TIME_DATE, UNIT_S, false);
    CHECK_EQ(time_parse(&plan, utc, strlen(utc), &want, &digits), TIME_FINE);
    plan.zone = z;
    CHECK_EQ(time_parse(&plan, local, strlen(local), &from, &digits), TIME_FINE);
    if (from != want)
        FAIL_TEST("%s in %s is off by %lld ns", local, zone, (long long)(from - want));
    CHECK_EQ(z->has_zoned, strpbrk(local + 10, "+-") != NULL);
    CHECK_EQ(z->has_local, !z->has_zoned);
    mem_free(z);
}

TEST(local_times_of_zones) {
    if (access("/usr/share/zoneinfo/Europe/Berlin", R_OK) != 0) SKIP_TEST("no time zone data");
    check_local("Europe/Berlin", "2023-01-15 12:00:00", "2023-01-15T11:00:00Z");
    check_local("Europe/Berlin", "2023-07-15 12:00:00.5", "2023-07-15T10:00:00.5Z");
    check_local("Europe/Berlin", "2023-07-15T12:00:00-03:00", "2023-07-15T15:00Z");
    /* A skipped hour, and one that comes twice: the offset from before the change. */
    check_local("Europe/Berlin", "2023-03-26 01:59:59", "2023-03-26T00:59:59Z");
    check_local("Europe/Berlin", "2023-03-26 02:30:00", "2023-03-26T01:30:00Z");
    check_local("Europe/Berlin", "2023-03-26 03:00:00", "2023-03-26T01:00:00Z");
    check_local("Europe/Berlin", "2023-10-29 01:59:59", "2023-10-28T23:59:59Z");
    check_local("Europe/Berlin", "2023-10-29 02:30:00", "2023-10-29T00:30:00Z");
    check_local("Europe/Berlin", "2023-10-29 03:00:00", "2023-10-29T02:00:00Z");
    check_local("Asia/Kolkata", "2023-07-15 12:00:00", "2023-07-15T06:30:00Z");
    check_local("Australia/Lord_Howe", "2023-01-15 12:00", "2023-01-15T01:00:00Z");
    /* Long ago, and after the last change that a file lists. */
    check_local("America/New_York", "1943-07-01 12:00", "1943-07-01T16:00:00Z");
    check_local("America/New_York", "2150-07-01 12:00", "2150-07-01T16:00:00Z");
}

TEST(offsets_and_utc) {
    check_local(NULL, "2023-01-15 12:00:00", "2023-01-15T12:00:00Z");
    check_local("UTC", "2023-01-15", "2023-01-15T00:00:00Z");
    check_local("+02:00", "2023-01-15 12:00:00", "2023-01-15T10:00:00Z");
    check_local("-0330", "2023-01-15 12:00:00", "2023-01-15T15:30:00Z");
}

TEST(zones_that_are_none) {
    static const char *const names[] = {"",           "Europe/Berln", "../../etc/passwd",
                                        "/etc/hosts", "Europe",       "Europe/Berlin;rm",
                                        "+25:00",     "tzdata.zi",    "CEST"};
    time_zone *z;
    if (access("/usr/share/zoneinfo/Etc/UTC", R_OK) != 0) SKIP_TEST("no time zone data");
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        CHECK_FAILS(time_zone_create(&z, names[i]), ERR_USAGE,
                    "is not in /usr/share/zoneinfo; give");
        CHECK(z == NULL);
    }
    setenv("TZDIR", test_folder(), 1);
    CHECK_FAILS(time_zone_create(&z, "Europe/Berlin"), ERR_USAGE, "the package tzdata has them");
    unsetenv("TZDIR");
}
