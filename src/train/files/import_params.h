/* What importers of other projects' checkpoints share: tensors of a state_dict under a prefix, as
 * the parameters of a session's model.  One thread at a time. */
#ifndef HSTU_TRAIN_FILES_IMPORT_PARAMS_H
#define HSTU_TRAIN_FILES_IMPORT_PARAMS_H

#include "format/torch_file.h"
#include "model/session.h"

/* The tensor `prefix` + `name`; NULL: it is not there. */
const torch_tensor *import_find(const torch_file *f, const char *prefix, const char *name);

/* ERR_NUMERIC where one of the n values of `name` is not finite. */
status import_check_finite(const torch_file *f, const char *name, const float *x, int64_t n);

/* The values of a parameter, (p->n) of them, to `host`. */
typedef status (*import_read_fn)(void *ctx, const param *p, float *host);

/* Sets a parameter to what `read` gives, if all of it is finite. */
status import_set(session *s, const torch_file *f, const param *p, import_read_fn read, void *ctx);

/* Parameters that the config does not make, such as those of a third layer, mean another model:
 * ERR_CONFIG.  `is_other` tells of a name, without its prefix, that it is no parameter. */
status import_check_unused(const session *s, const torch_file *f, const char *prefix,
                           bool (*is_other)(const char *name));

#endif
