/* Trained: a trained model opened again, to be used and not to be trained: the config of a
 * checkpoint or of an engine folder, a session for inference, and the weights.
 *
 * Items and contextual values are matched by id: t->session.data is the given data in the numbering
 * of the model, with its ids and titles (vocabulary.h), and the only data that users of the model
 * read.
 *
 * An engine folder is a trained model in the form in which it is served (serve/engine/build.h
 * writes it; docs/formats.md):
 *
 *   weights.safetensors   parameters, matrices in the serving precision; the config as metadata
 *   vocabulary.seq        ids and titles of the items (model/vocabulary.h)
 *   state.json            of the checkpoint it was built from: step and split
 *   table-N-NAME          snapshots of dynamic tables
 *   engine.json           precision, limits, sizes and checksums of all that; sealed, written last
 *
 * The optimizer's state is not in it.  Files are mapped; whatever does not fit its checksum is
 * refused.  One thread at a time. */
#pragma once

#include "format/safetensors.h"
#include "model/checkpoint_load.h"
#include "model/model.h"
#include "model/session.h"
#include "model/vocabulary.h"

#define ENGINE_FORMAT "hstu engine 1"

/* What a server takes unless its command line says otherwise. */
typedef struct engine_limits {
    int32_t max_batch, max_tokens; /* 0: not given */
    int64_t kv_pages;              /* below 0: not given */
    bool has_int8_items; /* a CPU searches a retrieval model's catalogue by 8-bit numbers first */
} engine_limits;

/* What engine.json says besides checksums. */
typedef struct engine_facts {
    config_dtype dtype; /* of the matrices */
    bool is_fp8; /* of a GPU's products: matrices are bfloat16, rounded when they are loaded */
    engine_limits limits;
    double weight_error;  /* of 16-bit weights: the largest difference, in units of its matrix's
                             largest number */
    int64_t weight_bytes; /* of the file of weights, */
    uint64_t weight_hash; /* and its checksum */
} engine_facts;

/* A float32 folder of a retrieval model that normalises its items has these rows as well, after all
 * parameters: so they are mapped, not computed. */
#define ENGINE_NORMED "normalised_items"

typedef enum { ENGINE_WEIGHTS, ENGINE_VOCABULARY, ENGINE_STATE, ENGINE_FILES } engine_file;
extern const char *const engine_file_names[ENGINE_FILES];

/* Whether there is an engine.json in the folder. */
bool engine_folder_is(const char *path);

/* Reads and checks engine.json alone. */
status engine_folder_facts(const char *folder, engine_facts *out);

/* Checks the folder: every file and table against its checksum.  ERR_FORMAT, or ERR_UNSUPPORTED for
 * a folder of another version, says what is wrong and what to do. */
status engine_folder_verify(const char *folder, engine_facts *out);

const char *engine_dtype_name(config_dtype dtype); /* "bfloat16", "float16", "float32" */
#define ENGINE_FP8 "fp8" /* the dtype of a folder whose products are of 8-bit floats */

typedef struct trained {
    config *config;
    session session;
    checkpoint_origin origin;
    seq_file *vocabulary; /* of the checkpoint */
    vocabulary_view *view;
    char folder[CHECKPOINT_PATH_BYTES];
    bool is_engine; /* opened from an engine folder: */
    engine_facts engine;
    st_file *weights; /* mapped while the model is open */
} trained;

/* path: a checkpoint, a run or an engine folder.  max_users: of a batch; 0: the config's batch size
 * for evaluation. data NULL: the vocabulary alone, a data set without users, for what needs the
 * model only. ERR_CONFIG: the data do not fit the model, and why.  data and be must outlive it. */
status trained_open(trained *t, const char *path, const seq_file *data, backend *be,
                    int32_t max_users);
/* The same, without checking the content of an engine folder's weights, which takes as long as
 * reading them: trained_check does that, on any thread, and until then nothing that was computed
 * may be told.  tensor: the ranks that share the layers and load a part each; NULL: one. */
status trained_open_unchecked(trained *t, const char *path, const seq_file *data, backend *be,
                              int32_t max_users, comm *tensor);
status trained_check(const trained *t);
void trained_close(trained *t); /* a failed open too */
