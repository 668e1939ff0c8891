/* Checkpoints of Meta's research models (HSTU, SASRec; the files of its train.py, or any dict of
 * the same parameters) as the weights of a model of ours.
 *
 * Parameters have the same names here and there.  The row of an item in Meta's table is its id
 * (export_file.h): rows of ids that the data do not have are dropped.  Values stay as they are;
 * bfloat16 and float16 are widened.  One thread at a time. */
#ifndef HSTU_TRAIN_FILES_IMPORT_META_H
#define HSTU_TRAIN_FILES_IMPORT_META_H

#include "format/torch_file.h"
#include "model/session.h"

typedef struct import_meta_report {
    int64_t epoch;     /* as the file says; -1: it does not */
    int64_t n_rows;    /* of the item table there, without row 0 */
    int64_t n_dropped; /* of these: ids that the data do not have */
} import_meta_report;

/* Sets all parameters of the session's model.  ERR_CONFIG: checkpoint, config and data do not
 * belong together, and why.  On failure the values are undefined. */
status import_meta(session *s, const torch_file *f, import_meta_report *out);

#endif
