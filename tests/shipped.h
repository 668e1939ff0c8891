/* The configs that come with the program, wherever a test is run from. */
#ifndef HSTU_TESTS_SHIPPED_H
#define HSTU_TESTS_SHIPPED_H

#include "config/config.h"
#include "test.h"

/* configs/NAME, beside the build folder of the program under test. */
static inline const char *shipped_path(const char *name) {
    static char path[4600];
    snprintf(path, sizeof path, "%s", test_program());
    for (int up = 0; up < 3; up++)
        *strrchr(path, '/') = '\0';
    snprintf(path + strlen(path), 200, "/configs/%s", name);
    return path;
}

static inline config *shipped_load(const char *name, const char *const *set, size_t n_set) {
    config *c;
    config_source source = {.path = shipped_path(name), .overrides = set, .n_overrides = n_set};
    CHECK_OK(config_load(&c, &source));
    return c;
}

#endif
