/* NCCL as it is found at run time.
 *
 * The program has no dependency on NCCL: the library is looked for when ranks with GPUs start, and
 * of its stable C interface only what is used here is declared.  A stream is a cudaStream_t. */
#ifndef HSTU_DIST_NCCL_LIB_H
#define HSTU_DIST_NCCL_LIB_H

#include <stddef.h>

#include "base/status.h"

enum { NCCL_ID_BYTES = 128 };

typedef struct nccl_id {
    char bytes[NCCL_ID_BYTES];
} nccl_id;

/* NCCL's own numbers. */
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

#endif
