#include "cli/config_path.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"

/* Cuts the last name off a path; false: there is none. */
static bool cut_name(char *path) {
    char *slash = strrchr(path, '/');
    if (slash == NULL) return false;
    *slash = '\0';
    return true;
}

void config_path_find_for(const char *program, const char *name, char path[CONFIG_PATH_BYTES]) {
    char share[CONFIG_PATH_BYTES], installed[CONFIG_PATH_BYTES];
    snprintf(path, CONFIG_PATH_BYTES, "%s", name);
    if (name[0] == '/' || file_exists(name)) return;
    snprintf(installed, sizeof installed, "%s", program);
    if (!cut_name(installed) || !cut_name(installed)) return;
    if (path_join(share, sizeof share, installed, "share/hstu") != OK ||
        path_join(installed, sizeof installed, share, name) != OK)
        return; /* too long to be there */
    if (!file_exists(installed)) return;
    snprintf(path, CONFIG_PATH_BYTES, "%s", installed);
    log_info("note: the config is %s", path);
}

void config_path_find(const char *name, char path[CONFIG_PATH_BYTES]) {
    char program[CONFIG_PATH_BYTES];
    ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    program[n > 0 ? n : 0] = '\0';
    config_path_find_for(program, name, path);
}
