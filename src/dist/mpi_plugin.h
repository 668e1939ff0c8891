/* What the program and its MPI plugin agree on.
 *
 * MPI's ABI differs between implementations, and a program that links libmpi does not start without
 * it.  So the one file that knows MPI, mpi_plugin.c, is compiled with the mpicc that was found to a
 * shared library of its own, hstu-mpi.so beside the program, which is loaded when mpirun has
 * started the process.  Nothing of the program is visible to it but this table. */
#pragma once

#include "base/base.h"

enum { MPI_PLUGIN_VERSION = 2, MPI_PLUGIN_TEXT_BYTES = 256 };

typedef struct mpi_plugin {
    int version; /* MPI_PLUGIN_VERSION */
    /* All return 0, or write what went wrong to text (MPI_PLUGIN_TEXT_BYTES). */
    int (*begin)(int *rank, int *size, int *local_rank, int *local_size, char *text);
    int (*exchange)(const void *const *from, const int64_t *n_from, void *const *to,
                    const int64_t *n_to, char *text);
    int (*barrier)(char *text);
    /* Asked while MPI waits: not 0 ends the wait, and the call returns 2.  NULL: never. */
    void (*set_ended)(int (*ended)(void *ctx), void *ctx);
    void (*end)(void);
    const char *(*library)(void); /* the implementation and its version */
} mpi_plugin;

/* The only symbol of the plugin. */
#define MPI_PLUGIN_SYMBOL "hstu_mpi_plugin"
