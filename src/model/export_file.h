/* Export files: what a model has learnt, for other tools.  A file appears whole or not at all.
 *
 * Weights of a checkpoint: safetensors, npz or .pt, with our names and layout or those of Meta's
 * model classes.  In Meta's layout the row of an item is its id, or its number where ids are texts
 * (Meta's preprocessing numbers those, too); rows without an item are zero; the buffer _attn_mask
 * is included, so that load_state_dict finds every key.
 *
 * Embeddings: vectors with the ids they belong to, and the titles of items whose data has them.
 * Rows are added in order, in pieces, so that memory is bounded.
 *
 *     safetensors  id (n) int64, or id.offsets (n + 1) int64 and id.bytes where ids are strings;
 *                  title.offsets and title.bytes; embedding (n, E) float32
 *     npz          id (n) int64, or fixed-width bytes ("S") where ids are strings; title the same;
 *                  embedding (n, E) float32
 *     csv          id,title,e0,e1,...: numbers that read back as the same float32
 *
 * One thread at a time. */
#pragma once

#include "data/set/seq_file.h"

typedef enum { WEIGHTS_SAFETENSORS, WEIGHTS_NPZ, WEIGHTS_PT } weight_format;

#define META_ITEMS    "_embedding_module._item_emb.weight"
#define META_PLACES   "_input_features_preproc._pos_emb.weight"
#define META_MASK     "_attn_mask"
#define META_ROWS_MAX (INT32_MAX - 1)

/* Rows that Meta's item table needs for these items; ERR_UNSUPPORTED where an id cannot be the
 * number of a row. */
status meta_count_rows(const seq_file *items, int64_t *out);

/* The row of an item in Meta's table; item 0 is padding and has row 0. */
int64_t meta_row(const seq_file *items, uint32_t item);

/* folder: of a checkpoint that checkpoint_verify accepted. */
status weight_file_write(const char *folder, const char *path, weight_format format, bool is_meta,
                         pool *workers);

/* The encoder of users and the search in the items as an ONNX model (docs/interop.md), of a session
 * on the CPU; *is_apart as in onnx_write.  ERR_UNSUPPORTED: what cannot be exported, and what can.
 */
struct session;
status onnx_model_write(const struct session *s, const char *path, bool *is_apart);

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
