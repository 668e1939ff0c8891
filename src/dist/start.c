#include "dist/start.h"

#include "base/env.h"
#include "dist/mpi.h"
#include "dist/ranks.h"

status ranks_start(transport **out, int n, bool *is_over) {
    env_launcher launcher = env_launched_by();
    *out = NULL;
    *is_over = false;
    if (launcher == LAUNCHER_TORCHRUN)
        return fail(ERR_UNSUPPORTED,
                    "WORLD_SIZE and RANK say that this is one of several processes of torchrun, "
                    "whose ranks hstu cannot join yet; use mpirun, or --ranks G on one machine");
    if (launcher == LAUNCHER_MPI && n > 1)
        return fail(ERR_USAGE,
                    "--ranks %d starts ranks by itself; mpirun has started some "
                    "already: leave one of them out",
                    n);
    if (launcher == LAUNCHER_MPI) return mpi_create(out);
    if (n <= 1) return OK;
    status st = ranks_fork(out, n, RANKS_PATIENCE_MS);
    *is_over = *out == NULL;
    return st;
}

status ranks_leave(transport *t, status st) {
    return t != NULL ? t->ops->leave(t, st) : st;
}
