#include "base/autotune.h"

#include "base/base.h"

/* A candidate this much slower in the first round cannot win. */
static const double hopeless = 1.2;

typedef struct timings {
    double once[AUTOTUNE_MAX], rounds[AUTOTUNE_MAX][AUTOTUNE_ROUNDS_MAX];
} timings;

static status time_in_turns(timings *t, int n, int rounds, autotune_fn time, void *ctx) {
    double least = INFINITY;
    for (int i = 0; i < n; i++) {
        TRY(time(ctx, i, &t->once[i]));
        least = fmin(least, t->once[i]);
    }
    for (int round = 0; round < rounds; round++)
        for (int i = 0; i < n; i++)
            if (t->once[i] <= hopeless * least) TRY(time(ctx, i, &t->rounds[i][round]));
    for (int i = 0; i < n; i++)
        t->once[i] = t->once[i] <= hopeless * least ? median(t->rounds[i], rounds) : INFINITY;
    return OK;
}

status autotune_find(int n, int rounds, autotune_fn time, void *ctx, int *best, double *seconds) {
    timings *t;
    *best = 0;
    *seconds = INFINITY;
    if (rounds < 1) rounds = 1;
    if (rounds > AUTOTUNE_ROUNDS_MAX) rounds = AUTOTUNE_ROUNDS_MAX;
    TRY(MEM_NEW(&t, 1));
    status st = time_in_turns(t, n, rounds, time, ctx);
    for (int i = 0; i < n && st == OK; i++) {
        if (!(t->once[i] < *seconds)) continue;
        *best = i;
        *seconds = t->once[i];
    }
    mem_free(t);
    return st;
}

int autotune_calls(double once, double round) {
    static const int most = 100;
    if (!(once * most > round)) return most;
    return once < round ? (int)(round / once) + 1 : 1;
}
