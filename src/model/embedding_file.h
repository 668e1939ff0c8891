/* Embedding file: vectors with the ids they belong to, for other tools.
 *
 *     safetensors  id (n) int64, or id.offsets (n + 1) int64 and id.bytes where ids are strings;
 *                  title.offsets and title.bytes; embedding (n, E) float32
 *     npz          id (n) int64, or fixed-width bytes ("S") where ids are strings; title the same;
 *                  embedding (n, E) float32
 *     csv          id,title,e0,e1,...: numbers that read back as the same float32
 *
 * Titles are there for items whose data has them.  Rows are added in order, in pieces, so that
 * memory is bounded; the file appears whole or not at all.  One thread at a time. */
#ifndef HSTU_MODEL_EMBEDDING_FILE_H
#define HSTU_MODEL_EMBEDDING_FILE_H

#include "base/status.h"
#include "data/set/seq_file.h"

typedef enum { EMBEDDINGS_SAFETENSORS, EMBEDDINGS_NPZ, EMBEDDINGS_CSV } embedding_format;

/* Whose rows they are. */
typedef struct embedding_rows {
    const seq_file *data;
    const int32_t *item; /* (n): item of row i; NULL: row i is user i */
    int64_t n;
    int32_t dim;
} embedding_rows;

typedef struct embedding_file embedding_file;

/* The rows' owners must stay until the commit.  ERR_UNSUPPORTED: a string too long for npz. */
status embedding_file_create(embedding_file **out, const char *path, embedding_format format,
                             const embedding_rows *rows);

/* The next n rows: (n, dim). */
status embedding_file_add(embedding_file *f, const float *values, int64_t n);

/* Ends it after the last row; f is gone in either case. */
status embedding_file_commit(embedding_file *f);
void embedding_file_abandon(embedding_file *f); /* NULL is fine */

#endif
