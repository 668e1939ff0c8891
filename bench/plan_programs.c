/* plan_programs [LAYER [DEVICE [ROUNDS]]]: every program that a plan of a layer can be, at 8 x 128
 * tokens: checked against float64 and, with ROUNDS, timed.  Prints a line BITS MS for each timed
 * one, and how many were wrong. */
#include <stdio.h>
#include <stdlib.h>

#include "cli/machine/plan.h"

static status visit_all(const plan_rig *g, int rounds, int *n_wrong) {
    double largest = 0;
    plan_error error = {0};
    for (unsigned v = 0; v < PLAN_CODES; v++) {
        char bits[PLAN_BITS + 1];
        double ms;
        if (plan_canonical(g->p->c, (uint16_t)v) != v) continue;
        status st = plan_runner_check(g->r, (uint16_t)v, &error);
        if (st == ERR_NUMERIC) fprintf(stderr, "%s\n", status_reason());
        if (st != OK && st != ERR_NUMERIC) return st;
        *n_wrong += st != OK;
        largest = error.found > largest ? error.found : largest;
        if (rounds == 0 || st != OK) continue;
        TRY(plan_runner_time(g->r, (uint16_t)v, rounds, &ms));
        plan_bits((uint16_t)v, bits);
        printf("%s  %.6g\n", bits, ms);
    }
    fprintf(stderr, "%d programs, %d wrong; largest error %.2e (allowed %.2e)\n",
            (int)PLAN_PROGRAMS, *n_wrong, largest, error.allowed);
    return OK;
}

int main(int argc, char **argv) {
    plan_args a = PLAN_ARGS;
    plan_rig g;
    int n_wrong = 0;
    a.shape.n_sequences = 8;
    if (argc > 1) a.layer = argv[1];
    if (argc > 2) a.device = argv[2];
    status st = plan_rig_open(&g, &a);
    if (st == OK) st = plan_runner_prepare_all(g.r, 1);
    if (st == OK) st = visit_all(&g, argc > 3 ? atoi(argv[3]) : 0, &n_wrong);
    if (st != OK) fprintf(stderr, "%s\n", status_reason());
    plan_rig_close(&g);
    return st != OK || n_wrong > 0;
}
