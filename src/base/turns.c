#include "base/turns.h"

#include <math.h>

#include "base/median.h"
#include "base/mem.h"

/* So much slower than the fastest that no turn would make up for it. */
static const double hopeless = 1.2;

typedef struct timings {
    double once[TURNS_MAX], turns[TURNS_MAX][TURNS_ROUNDS_MAX];
} timings;

static status take_turns(timings *t, int n, int rounds, turns_fn time, void *ctx) {
    double least = INFINITY;
    for (int i = 0; i < n; i++) {
        TRY(time(ctx, i, &t->once[i]));
        least = fmin(least, t->once[i]);
    }
    for (int round = 0; round < rounds; round++)
        for (int i = 0; i < n; i++)
            if (t->once[i] <= hopeless * least) TRY(time(ctx, i, &t->turns[i][round]));
    for (int i = 0; i < n; i++)
        t->once[i] = t->once[i] <= hopeless * least ? median(t->turns[i], rounds) : INFINITY;
    return OK;
}

status turns_find(int n, int rounds, turns_fn time, void *ctx, int *best, double *seconds) {
    timings *t;
    *best = 0;
    *seconds = INFINITY;
    if (rounds < 1) rounds = 1;
    if (rounds > TURNS_ROUNDS_MAX) rounds = TURNS_ROUNDS_MAX;
    TRY(MEM_NEW(&t, 1));
    status st = take_turns(t, n, rounds, time, ctx);
    for (int i = 0; i < n && st == OK; i++) {
        if (!(t->once[i] < *seconds)) continue;
        *best = i;
        *seconds = t->once[i];
    }
    mem_free(t);
    return st;
}
