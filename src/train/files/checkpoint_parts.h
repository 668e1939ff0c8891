/* The tensors of a checkpoint, written by all ranks at the same time: each writes its part of one
 * file, whose bytes do not depend on the number of ranks.
 *
 * What all ranks have is divided evenly among those that divide the users of a step.  Rows that
 * ranks hold together travel first, so that a rank writes a range of rows.  Where ranks share
 * layers, each of the first group writes its own heads.  Nothing needs memory for more than a
 * few MiB at a time. */
#ifndef HSTU_TRAIN_FILES_CHECKPOINT_PARTS_H
#define HSTU_TRAIN_FILES_CHECKPOINT_PARTS_H

#include "format/safetensors.h"
#include "train/files/checkpoint.h"

/* One tensor of the file. */
typedef struct part_tensor {
    char name[PARAM_NAME_BYTES + 8];
    param shape;        /* its shape, and what of it this rank has */
    const float *value; /* memory of the backend */
} part_tensor;

/* Writes a new safetensors file of float32; all ranks of c->world call it with the same list.  A
 * value that is not finite is ERR_NUMERIC.  Where a rank fails, all do, with its words. */
status checkpoint_write_parts(const checkpoint *c, const char *path, const part_tensor *list, int n,
                              const st_pair *metadata, size_t n_metadata);

#endif
