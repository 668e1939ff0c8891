#include "base/cpu_quota.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATH_BYTES = 4096, LINE_BYTES = 4096 };

/* The first line of a file of a cgroup; false: there is no such file. */
static bool read_line(const char *folder, const char *name, char *line, int bytes) {
    char path[PATH_BYTES];
    if (snprintf(path, sizeof path, "%s/%s", folder, name) >= (int)sizeof path) return false;
    FILE *f = fopen(path, "r");
    if (f == NULL) return false;
    bool is_read = fgets(line, bytes, f) != NULL;
    fclose(f);
    return is_read;
}

/* The cores of a quota in a period; what is no quota, such as "max" or -1, is 0. */
static double cores_of(const char *quota, const char *period) {
    double q = strtod(quota, NULL), p = strtod(period, NULL), most = 1 << 20;
    return q > 0 && p > 0 && q / p < most ? q / p : 0;
}

/* Of one cgroup, 0: none.  Version 2 has both in cpu.max, "200000 100000". */
static double quota_at(const char *folder) {
    char quota[64], period[64];
    if (read_line(folder, "cpu.max", quota, sizeof quota)) {
        const char *blank = strchr(quota, ' ');
        return blank == NULL ? 0 : cores_of(quota, blank);
    }
    if (!read_line(folder, "cpu.cfs_quota_us", quota, sizeof quota) ||
        !read_line(folder, "cpu.cfs_period_us", period, sizeof period))
        return 0;
    return cores_of(quota, period);
}

/* The least quota of `path` below a folder and of what is above it, the folder included.  In a
 * container the path is often one that only its host has. */
static double least_quota(const char *mount, const char *path, double least) {
    char folder[PATH_BYTES];
    size_t top = strlen(mount);
    if (snprintf(folder, sizeof folder, "%s%s", mount, path) >= (int)sizeof folder) return least;
    for (;;) {
        double n = quota_at(folder);
        if (n > 0 && (least == 0 || n < least)) least = n;
        char *slash = strrchr(folder, '/');
        if (strlen(folder) <= top || slash == NULL) return least;
        *slash = '\0';
    }
}

/* Whether "cpu" is one of the names, separated by commas. */
static bool has_cpu(const char *names) {
    size_t n = strcspn(names, ",");
    while (n != 3 || strncmp(names, "cpu", 3) != 0) {
        if (names[n] == '\0') return false;
        names += n + 1;
        n = strcspn(names, ",");
    }
    return true;
}

double cpu_quota(const char *own, const char *root) {
    char line[LINE_BYTES], mount[PATH_BYTES];
    double least = 0;
    FILE *f = fopen(own, "r");
    if (f == NULL) return 0;
    while (fgets(line, sizeof line, f) != NULL) { /* "0::/path", or "4:cpu,cpuacct:/path" */
        line[strcspn(line, "\n")] = '\0';
        char *names = strchr(line, ':');
        char *path = names == NULL ? NULL : strchr(names + 1, ':');
        if (path == NULL || path[1] != '/') continue;
        *path++ = '\0';
        names++;
        if (strcmp(path, "/") == 0) path = "";
        bool is_second = names[0] == '\0';
        if (!is_second && !has_cpu(names)) continue;
        int n = snprintf(mount, sizeof mount, is_second ? "%s" : "%s/cpu", root);
        if (n > 0 && n < (int)sizeof mount) least = least_quota(mount, path, least);
    }
    fclose(f);
    return least;
}
