/* A watch (watch.h) for ranks of mpirun: they tell each other by MPI where rank 0 listens. */
#ifndef HSTU_DIST_MPI_WATCH_H
#define HSTU_DIST_MPI_WATCH_H

#include "dist/transport.h"
#include "dist/watch.h"

/* Collective on t.  *out is NULL where ranks cannot reach each other by TCP: then a warning says
 * so, and only mpirun notices lost ranks. */
status mpi_watch_create(watch **out, transport *t);

#endif
