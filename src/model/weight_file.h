/* The weights of a checkpoint as a file for other tools: safetensors, npz or .pt, under the names
 * and in the layout of ours or of Meta's model classes.
 *
 * In Meta's layout the row of an item is its id, or its number where ids are texts (data whose ids
 * Meta's preprocessing numbers, too); rows without an item are zero; the buffer _attn_mask is
 * there, so that load_state_dict finds everything it wants.  One thread at a time. */
#ifndef HSTU_MODEL_WEIGHT_FILE_H
#define HSTU_MODEL_WEIGHT_FILE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "base/thread.h"
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

#endif
