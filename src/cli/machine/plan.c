/* hstu plan WHAT: the table of its parts. */
#include "cli/machine/plan.h"

#include <stdio.h>
#include <string.h>

#include "base/text.h"

enum { MAX_PARTS = 16 };

const command plan_commands[] = {
    {"show", plan_show, "the kernels of a fusion plan"},
    {"run", plan_run, "generate, compile, run, check and time a plan"},
    {"traverse", plan_traverse, "run every plan of a range"},
    {0},
};

static void print_parts(const char *whole, const char *about, const command *parts) {
    printf("Usage: hstu %s WHAT [options]\n\n%s\n\n", whole, about);
    for (const command *c = parts; c->name != NULL; c++)
        printf("  %-10s %s\n", c->name, c->summary);
    printf("\n'hstu %s WHAT --help' shows the options.\n", whole);
}

status run_part(const char *whole, const char *about, const command *parts, int argc, char **argv) {
    const char *names[MAX_PARTS];
    size_t n = 0;
    if (argc < 2 || strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        print_parts(whole, about, parts);
        return OK;
    }
    for (const command *c = parts; c->name != NULL; c++) {
        if (strcmp(argv[1], c->name) == 0) return c->run(argc - 1, argv + 1);
        names[n++] = c->name;
    }
    const char *near = nearest_name(argv[1], names, n);
    return fail(ERR_USAGE, "%s has no part '%.100s'%s%s%s%s", whole, argv[1],
                near != NULL ? "; did you mean '" : "; 'hstu ", near != NULL ? near : whole,
                near != NULL ? "'" : "' lists them", near != NULL ? "?" : "");
}

status cmd_plan(int argc, char **argv) {
    return run_part("plan",
                    "A fusion plan says which neighbouring operators of a layer run as one kernel.",
                    plan_commands, argc, argv);
}
