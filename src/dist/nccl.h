/* nccl: collectives on memory of GPUs, through NVIDIA's NCCL.
 *
 * The program has no dependency on NCCL: the library is looked for when ranks with GPUs start, and
 * of its stable C interface only what is used here is declared.
 *
 * Everything is enqueued on the backend's own stream, so it has its place among the ops.  A sum is
 * NCCL's, whose order depends on the number of ranks, or has the order of ops/comm.h: then every
 * rank gets a slice of all ranks, adds them by the tree and sends the sum to all.  The ranks find
 * each other by their transport, which also carries the barrier and the steps for the watchdog:
 * NCCL does not notice that another process of the machine has died. */
#pragma once

#include "dist/transport.h"

enum { NCCL_ID_BYTES = 128 };

typedef struct nccl_id {
    char bytes[NCCL_ID_BYTES];
} nccl_id;

/* NCCL's own numbers.  A stream is a cudaStream_t. */
enum { NCCL_OK = 0, NCCL_IN_PROGRESS = 7 };
enum { NCCL_U8 = 1, NCCL_I64 = 4, NCCL_F16 = 6, NCCL_F32 = 7, NCCL_F64 = 8, NCCL_BF16 = 9 };
enum { NCCL_SUM = 0, NCCL_MAX = 2 };

typedef struct nccl_lib {
    int version; /* 23003 is 2.30.3 */
    char path[512];
    int (*get_version)(int *version);
    int (*get_id)(nccl_id *id);
    int (*init_rank)(void **comm, int size, nccl_id id, int rank);
    int (*destroy)(void *comm);
    int (*abort)(void *comm);
    int (*async_error)(void *comm, int *error);
    const char *(*error_text)(int error);
    int (*all_reduce)(const void *from, void *to, size_t n, int type, int rule, void *comm,
                      void *stream);
    int (*broadcast)(const void *from, void *to, size_t n, int type, int root, void *comm,
                     void *stream);
    int (*send)(const void *from, size_t n, int type, int rank, void *comm, void *stream);
    int (*receive)(void *to, size_t n, int type, int rank, void *comm, void *stream);
    int (*group_start)(void);
    int (*group_end)(void);
} nccl_lib;

/* Loads the library: from path (a file, or the folder it is in), or where it is found: by the
 * linker, or in the folders of Python packages.  It stays loaded.  ERR_UNSUPPORTED says what was
 * tried. */
status nccl_lib_load(nccl_lib *out, const char *path);

/* The library must outlive the communicator, like backend and transport.  is_fixed: sums of
 * floats by the tree. */
status comm_create_nccl(comm **out, backend *be, transport *t, const nccl_lib *lib, bool is_fixed);

/* Whether c, or NULL, is one of these; and another one like it, for the ranks of t, some of c's,
 * whose sums of floats have the order of ops/comm.h. */
bool comm_is_nccl(const comm *c);
status comm_create_nccl_group(comm **out, const comm *c, transport *t);
