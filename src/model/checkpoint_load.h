/* Reading checkpoints: finding one, checking it, its config, and its weights into a model.
 *
 * What a checkpoint is: train/checkpoint.h, which writes it, and docs/formats.md.  Reading trusts
 * nothing: sizes, checksums, names, shapes and types are checked before any value is used.  One
 * thread at a time. */
#pragma once

#include "config/config.h"
#include "data/set/batcher.h"
#include "data/set/split.h"
#include "format/manifest.h"
#include "format/safetensors.h"
#include "nn/dynamic.h"
#include "nn/params.h"

enum { CHECKPOINT_PATH_BYTES = MANIFEST_PATH_BYTES, CHECKPOINT_TABLE_BYTES = 64 };

#define CHECKPOINT_FORMAT "hstu checkpoint 2"

/* The files of a checkpoint, apart from manifest.json and the folders of tables. */
typedef enum {
    CHECKPOINT_MODEL,
    CHECKPOINT_OPTIMIZER,
    CHECKPOINT_STATE,
    CHECKPOINT_VOCABULARY,
    CHECKPOINT_FILES
} checkpoint_file;
extern const char *const checkpoint_file_names[CHECKPOINT_FILES];

/* The folder of a checkpoint from what a user names: the folder itself, or a run, which stands for
 * its `best` where validation chose one, and else for its `last`. */
status checkpoint_find(const char *path, char folder[CHECKPOINT_PATH_BYTES]);

/* Where training goes on: the folder itself, or a run's `last` (its newest where that link is
 * missing). */
status checkpoint_find_last(const char *path, char folder[CHECKPOINT_PATH_BYTES]);

/* A checkpoint of a run, or an engine folder itself, by choice: "best", "last", "step-480" or a
 * folder; NULL: checkpoint_find. ERR_USAGE where the run has no such checkpoint. */
status checkpoint_choose(const char *run, const char *choice, char folder[CHECKPOINT_PATH_BYTES]);

/* Whether the folder is a run's link to its best checkpoint. */
bool checkpoint_is_best(const char *folder);

/* Whether RUN is a run, with a config.json, that was killed before its first checkpoint. */
bool checkpoint_is_to_come(const char *run);

/* Reads manifest.json, checks its own checksum and every file and table it names, and that all are
 * of the step in the folder's name: ERR_FORMAT (or ERR_IO) says what is damaged and what to do. */
status checkpoint_verify(const char *folder);

/* The config a checkpoint was trained with; config_destroy frees it. */
status checkpoint_config(config **out, const char *folder);

/* Like checkpoint_config for a run: from its last checkpoint, or from its config.json before the
 * first one. */
status checkpoint_run_config(config **out, const char *run);

/* What a run holds out: from its last checkpoint, or from its config.json before the first one. */
status checkpoint_run_split(split_record *out, const char *run);

/* The progress of the run, as far as a user of the model needs it. */
typedef struct checkpoint_origin {
    uint64_t step;      /* updates done */
    uint64_t n_earlier; /* updates before those, of runs that this one started from */
    split_record split; /* what was held out */
    uint64_t data;      /* fingerprint of the data (batcher_fingerprint) */
    batcher_state batches;
} checkpoint_origin;
status checkpoint_read_origin(checkpoint_origin *out, const char *folder);

/* The same from state.json, which is parsed, and a count in it that a run can reach. */
status checkpoint_parse_origin(checkpoint_origin *o, const json_value *root);
status checkpoint_member_count(const json_value *object, const char *key, uint64_t *out);

/* Parameters of the same names and shapes, and dynamic tables (NULL: none), from a checkpoint that
 * checkpoint_verify accepted.  On failure the values are undefined. */
status checkpoint_load_weights(const char *folder, backend *be, const param *params, int n_params,
                               dynamic_tables *tables);

/* The tables alone, from a folder that holds their snapshots. */
status checkpoint_load_tables(dynamic_tables *tables, const char *folder);

/* The parts of checkpoint_load: reads one tensor, called p->name with the suffix, of p's shape and
 * with finite values (else ERR_NUMERIC), into memory of the backend; and checks that a file has no
 * other tensors. */
status checkpoint_load_tensor(const st_file *f, backend *be, const param *p, const char *suffix,
                              float *to);
status checkpoint_check_finite(const st_file *f, const st_tensor *t);
/* Whether it is of what items' rows were made of: a model that infers has the rows themselves
 * (nn/item_content.h). */
bool checkpoint_is_for_training(const st_tensor *t);

status checkpoint_check_count(const st_file *f, size_t n);

/* The name of the folder of table number i: table-0-movie_id. */
void checkpoint_table_folder(char name[CHECKPOINT_TABLE_BYTES], int i, const char *table);
void checkpoint_table_name(char name[CHECKPOINT_TABLE_BYTES], const dynamic_tables *tables, int i);

/* The same as a path. */
status checkpoint_table_path(char path[CHECKPOINT_PATH_BYTES], const dynamic_tables *tables, int i,
                             const char *folder);

/* Writes the entry of a table in a manifest, with the checksum of its snapshot in the folder. */
status manifest_add_table(json_writer *w, const char *folder, const char *name);

/* Checks all tables that a manifest lists; none is fine. */
status manifest_check_tables(const manifest *m);

/* Copies the files of a folder, any number of them, and those of the folders of ranks in it `depth`
 * times. */
status checkpoint_copy_folder(const char *from, const char *to, int depth);

/* Whether a tensor has the shape of a whole parameter, from dimension `first` on; and the failure
 * st, "'NAME' has the shape THERE, but BUT HERE; REMEDY". */
bool checkpoint_has_shape(const st_tensor *t, const param *p, int first);
status checkpoint_fail_shape(status st, const st_file *f, const st_tensor *t, const param *p,
                             const char *but, const char *remedy);

/* "(8, 32)", for messages. */
enum { SHAPE_TEXT_BYTES = 160 };
const char *tensor_shape_text(char text[SHAPE_TEXT_BYTES], int n_dims, const int64_t *shape);

/* step 480 is the folder checkpoints/step-00000480. */
status checkpoint_step_folder(const char *run, int64_t step, char folder[CHECKPOINT_PATH_BYTES]);

/* The step in the name of a checkpoint's folder, such as step-00000005; -1: not such a name. */
int64_t checkpoint_step_of(const char *folder);

/* The step that RUN/name points to; -1: there is no such link. */
int64_t checkpoint_linked_step(const char *run, const char *name);
