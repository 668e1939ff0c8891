/* A run of a few steps on a world (world.h), with a config and what it is continued by. */
#ifndef HSTU_TESTS_WORLD_RUN_H
#define HSTU_TESTS_WORLD_RUN_H

#include "train_test.h"
#include "world.h"

/* The run's folder, valid until the next call. */
static inline const char *train_world(const world *w, const char *gin, const char *more) {
    static char run[512];
    char text[4096];
    bench_top top;
    train_options o = train_options_default();
    snprintf(run, sizeof run, "%s/run-of-%s", test_folder(), w->folder);
    snprintf(text, sizeof text, "%s%s", gin, more);
    o.run = run;
    o.max_steps = 6;
    CHECK_OK(top_open_on(&top, world_make(w), text, NULL, 0, 1));
    CHECK_OK(trainer_run(&top.session, &o));
    top_close(&top);
    return run;
}

#endif
