/* Time zones: from local times to seconds since 1970, by a name of the system's time zone database
 * ("Europe/Berlin") or a fixed offset ("+02:00").
 *
 * A local time that a change of the clocks skips or repeats takes the offset from before the
 * change: where 02:00 becomes 03:00, 02:30 is 03:30 summer time; where 03:00 becomes 02:00, 02:30
 * is the first one.  A zone is made by one thread, then used by any number of them. */
#pragma once

#include <stdatomic.h>

#include "base/base.h"

/* Two changes a year from 1900 to 2199, and some to spare. */
enum { ZONE_MAX_SPANS = 1024 };

typedef struct time_zone {
    char name[64];
    int n;
    int64_t since[ZONE_MAX_SPANS];     /* local seconds from which on an offset holds */
    int64_t offset[ZONE_MAX_SPANS];    /* local time - UTC */
    _Atomic bool has_local, has_zoned; /* dates without a zone, and with one, were read */
    _Atomic bool has_numbers;          /* and numbers among them */
} time_zone;

/* NULL: UTC.  ERR_USAGE if there is no such zone.  Sets the process's TZ.  mem_free frees it. */
status time_zone_create(time_zone **out, const char *name);

/* Seconds since 1970 of a local time given as if it were UTC; z NULL: UTC. */
int64_t time_zone_seconds(const time_zone *z, int64_t local);
