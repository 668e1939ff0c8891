/* Checkpoints of other projects as the weights of a model of ours.  Parameters have the same names
 * and shapes here and there; values stay as they are, bfloat16 and float16 are widened.  One thread
 * at a time.
 *
 * Meta's research models (HSTU, SASRec; the files of its train.py, or any dict of the same
 * parameters): the row of an item in its table is the item's id (weight_file.h); rows of ids that
 * the data do not have are dropped.
 *
 * NVIDIA's recsys-examples (the folder that its trainer writes: dense parameters of its fused layer
 * in torch_module/model.0.pth, dynamicemb's dumps under dynamicemb_module): the key of a row of a
 * table is an id: of an item, the value of a contextual feature, or the number of an action. */
#pragma once

#include "format/torch_file.h"
#include "model/session.h"

typedef struct import_meta_report {
    int64_t epoch;     /* as the file says; -1: it does not */
    int64_t n_rows;    /* of the item table there, without row 0 */
    int64_t n_dropped; /* of these: ids that the data do not have */
} import_meta_report;

/* Sets all parameters of the session's model.  ERR_CONFIG: checkpoint, config and data do not
 * belong together, and why.  On failure the values are undefined. */
status import_meta(session *s, const st_file *f, import_meta_report *out);

typedef struct import_nvidia_report {
    int64_t n_rows;    /* of all tables there */
    int64_t n_dropped; /* of these: ids that the data do not have, or without a place */
    int64_t n_missing; /* rows of static tables here that are not there: zeros */
} import_nvidia_report;

/* The file of the dense parameters: `path` itself, or in the folder `path`. */
status import_nvidia_open(st_file **out, const char *path);

/* Sets all parameters and the rows of all tables of the session's model.  ERR_CONFIG: checkpoint,
 * config and data do not belong together, and why.  On failure the values are undefined. */
status import_nvidia(session *s, const st_file *f, const char *folder, import_nvidia_report *out);
