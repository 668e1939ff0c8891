/* A trained model opened again, to be used and not to be trained: the config of a checkpoint, a
 * session for inference, and the weights.
 *
 * Items and contextual values are matched by id: t->session.data is the given data in the numbering
 * of the model, with its ids and titles (vocabulary.h), and the only data that users of the model
 * read. */
#ifndef HSTU_MODEL_TRAINED_H
#define HSTU_MODEL_TRAINED_H

#include "model/engine_folder.h"
#include "model/session.h"
#include "model/vocabulary.h"

typedef struct trained {
    config *config;
    session session;
    checkpoint_origin origin;
    seq_file *vocabulary; /* of the checkpoint */
    vocabulary_view *view;
    char folder[CHECKPOINT_PATH_BYTES];
    bool is_engine; /* opened from an engine folder: */
    engine_facts engine;
    engine_weights weights; /* mapped while the model is open */
} trained;

/* path: a checkpoint, a run or an engine folder.  max_users: of a batch; 0: the config's batch size
 * for evaluation. data NULL: the vocabulary alone, a data set without users, for what needs the
 * model only. ERR_CONFIG: the data do not fit the model, and why.  data and be must outlive it. */
status trained_open(trained *t, const char *path, const seq_file *data, backend *be,
                    int32_t max_users);
/* The same, without checking the content of an engine folder's weights, which takes as long as
 * reading them: trained_check does that, on any thread, and until then nothing that was computed
 * may be told. */
status trained_open_unchecked(trained *t, const char *path, const seq_file *data, backend *be,
                              int32_t max_users);
status trained_check(const trained *t);
void trained_close(trained *t); /* a failed open too */

#endif
