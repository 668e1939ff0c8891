/* The tensors of a Hugging Face folder: model.safetensors, or the shards that
 * model.safetensors.index.json lists.
 *
 * Names are found with or without the prefix of the architecture ("bert."), the weights of a
 * LayerNorm under both of their names (weight and bias, gamma and beta).  Tensors are views of the
 * mapped files, valid until encoder_files_close; one thread at a time. */
#pragma once

#include "encode/encoder_config.h"
#include "format/safetensors.h"

typedef struct encoder_files encoder_files;

status encoder_files_open(encoder_files **out, const char *folder, encoder_family family);
void encoder_files_close(encoder_files *f); /* NULL is fine */

/* Whether there is a tensor of this name, given without the prefix. */
bool encoder_files_has(const encoder_files *f, const char *name);

/* The tensor of this name, with the prefix or, as heads have it, without.  It must hold float32,
 * float16 or bfloat16 in the shape (rows, columns), or (rows) where columns is 0.  ERR_FORMAT names
 * what is missing or wrong. */
status encoder_files_get(encoder_files *f, const char *name, int64_t rows, int64_t columns,
                         const st_tensor **out);

/* The same of a LayerNorm's weight or bias: "embeddings.LayerNorm" and "weight". */
status encoder_files_get_norm(encoder_files *f, const char *name, const char *part, int64_t rows,
                              const st_tensor **out);

/* To be called when the model has what it needs: says once which tensors of heads were left, unless
 * somebody else reads them, and refuses tensors of the encoder itself that nothing looked at: they
 * would change its result. */
status encoder_files_finish(const encoder_files *f, bool has_head);

/* Checks the object of an index and calls `add` for each tensor with the name of its file; `path`
 * appears in messages. */
typedef status (*encoder_index_fn)(void *ctx, const char *tensor, const char *file);
status encoder_index_parse(const char *path, const json_value *root, encoder_index_fn add,
                           void *ctx);
