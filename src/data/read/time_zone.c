#include "data/read/time_zone.h"

#include "data/read/time_text.h"

enum { DAY = 86400 };

static int64_t offset_at(int64_t seconds) {
    time_t t = (time_t)seconds;
    struct tm tm;
    return localtime_r(&t, &tm) != NULL ? tm.tm_gmtoff : 0;
}

/* Adds the offset of `high` if `low`, a day earlier, has another one.  No zone changes its clocks
 * twice within a day. */
static void add_change(time_zone *z, int64_t low, int64_t high) {
    int64_t before = z->offset[z->n - 1], after = offset_at(high);
    if (after == before || z->n == ZONE_MAX_SPANS) return;
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (offset_at(middle) == after)
            high = middle;
        else
            low = middle;
    }
    z->since[z->n] = high + (after > before ? after : before);
    z->offset[z->n++] = after;
}

/* A name must not lead out of the folder of zones. */
static bool is_zone_file(const char *name, const char *path) {
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
                                  "0123456789_+-/";
    char magic[4] = "";
    FILE *f = name[strspn(name, letters)] == '\0' && *name != '/' ? fopen(path, "rb") : NULL;
    bool is_zone = f != NULL && fread(magic, 1, 4, f) == 4 && memcmp(magic, "TZif", 4) == 0;
    if (f != NULL) fclose(f);
    return is_zone;
}

/* The C library takes an unknown zone for UTC without a word, so its file is looked for first. */
static status load(time_zone *z, const char *name) {
    char path[4096], shown[64];
    snprintf(path, sizeof path, "%s/%s", env_zone_folder(), name);
    if (!is_zone_file(name, path))
        return fail(ERR_USAGE,
                    "--time-zone '%s' is not in %s; give a name such as Europe/Berlin (the package "
                    "tzdata has them) or an offset such as +02:00",
                    escape_excerpt(shown, name, strlen(name)), env_zone_folder());
    TRY(env_set_zone(path));
    z->offset[0] = offset_at(TIME_FIRST_SECOND - DAY);
    for (int64_t t = TIME_FIRST_SECOND; t <= TIME_LAST_SECOND + DAY; t += DAY)
        add_change(z, t - DAY, t);
    return OK;
}

status time_zone_create(time_zone **out, const char *name) {
    int seconds = 0;
    TRY(MEM_NEW(out, 1));
    time_zone *z = *out;
    z->n = 1;
    z->since[0] = INT64_MIN;
    snprintf(z->name, sizeof z->name, "%s", name != NULL ? name : "UTC");
    status st = OK;
    if (name != NULL && strcmp(name, "UTC") != 0 && !time_offset_parse(name, &seconds))
        st = load(z, name);
    else
        z->offset[0] = seconds;
    if (st == OK) return OK;
    mem_free(z);
    *out = NULL;
    return st;
}

int64_t time_zone_seconds(const time_zone *z, int64_t local) {
    if (z == NULL) return local; /* UTC */
    int low = 0, high = z->n;
    while (high - low > 1) {
        int middle = low + (high - low) / 2;
        if (z->since[middle] <= local)
            low = middle;
        else
            high = middle;
    }
    return local - z->offset[low];
}
