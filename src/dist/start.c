#include "dist/start.h"

#include "base/env.h"
#include "dist/mpi.h"
#include "dist/ranks.h"
#include "dist/tcp.h"

/* Ranks but the first are silent. */
static status join_by_tcp(transport **out) {
    env_torchrun e;
    TRY(env_read_torchrun(&e));
    if (e.rank > 0) transport_silence();
    tcp_start start = {.rank = e.rank,
                       .size = e.size,
                       .local_rank = e.local_rank,
                       .local_size = e.local_size,
                       .address = e.address,
                       .port = e.port,
                       .secret = env_job_secret()};
    status st = tcp_create(out, &start);
    return st != OK && e.rank > 0 ? fail_prefix(st, "rank %d", e.rank) : st;
}

status ranks_start(transport **out, int n, bool *is_over) {
    env_launcher launcher = env_launched_by();
    *out = NULL;
    *is_over = false;
    if (launcher == LAUNCHER_MPI && n > 1)
        return fail(ERR_USAGE,
                    "--ranks %d starts ranks by itself; mpirun has started some "
                    "already: leave one of them out",
                    n);
    if (launcher == LAUNCHER_TORCHRUN && n > 1)
        return fail(ERR_USAGE,
                    "--ranks %d starts ranks by itself; torchrun (WORLD_SIZE, RANK) has started "
                    "some already: leave one of them out",
                    n);
    if (launcher == LAUNCHER_TORCHRUN) return join_by_tcp(out);
    if (launcher == LAUNCHER_MPI) return mpi_create(out);
    if (n <= 1) return OK;
    status st = ranks_fork(out, n, RANKS_PATIENCE_MS);
    *is_over = *out == NULL;
    return st;
}

status ranks_leave(transport *t, status st) {
    return t != NULL ? t->ops->leave(t, st) : st;
}
