/* A trained model opened again, to be used and not to be trained: the config of a checkpoint, a
 * session for inference, and the weights. */
#ifndef HSTU_MODEL_TRAINED_H
#define HSTU_MODEL_TRAINED_H

#include "model/checkpoint_load.h"
#include "model/session.h"

typedef struct trained {
    config *config;
    session session;
    checkpoint_origin origin;
    char folder[CHECKPOINT_PATH_BYTES];
} trained;

/* path: a checkpoint or a run.  max_users: of a batch; 0: the config's batch size for evaluation.
 * Warns where the data is not the training data.  data and be must outlive it. */
status trained_open(trained *t, const char *path, const seq_file *data, backend *be,
                    int32_t max_users);
void trained_close(trained *t); /* a failed open too */

#endif
