/* mpi: ranks that mpirun (or srun) started, connected by the MPI they were started with.
 *
 * Everything of MPI is in a plugin (mpi_plugin.h), loaded only in a process that a launcher
 * started.  A rank that ends without leaving takes the whole job with it: mpirun sees to that. */
#pragma once

#include "dist/transport.h"

/* Connects this process with the other ranks; *out is NULL where there is only one.  Where the
 * launcher has bound the rank to fewer cores than its share of the machine, the binding is removed
 * and a warning says so. */
status mpi_create(transport **out);

/* The version of the MPI that the plugin was built with, or NULL and why it cannot be used. */
const char *mpi_library(char *why, size_t n);
