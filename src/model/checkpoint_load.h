/* Reading checkpoints: finding one, checking it, its config, and its weights into a model.
 *
 * What a checkpoint is: train/checkpoint.h, which writes it, and docs/formats.md.  Reading trusts
 * nothing: sizes, checksums, names, shapes and types are checked before any value is used.  One
 * thread at a time. */
#ifndef HSTU_MODEL_CHECKPOINT_LOAD_H
#define HSTU_MODEL_CHECKPOINT_LOAD_H

#include <stdbool.h>
#include <stdint.h>

#include "base/mem.h"
#include "base/status.h"
#include "config/config.h"
#include "data/set/split.h"
#include "format/json.h"
#include "format/safetensors.h"
#include "nn/dynamic.h"
#include "nn/params.h"

enum { CHECKPOINT_PATH_BYTES = 4096, CHECKPOINT_TABLE_BYTES = 64 };

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
} checkpoint_origin;
status checkpoint_read_origin(checkpoint_origin *out, const char *folder);

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
status checkpoint_check_count(const st_file *f, size_t n);

/* The name of the folder of table number i: table-0-movie_id. */
void checkpoint_table_folder(char name[CHECKPOINT_TABLE_BYTES], int i, const char *table);
void checkpoint_table_name(char name[CHECKPOINT_TABLE_BYTES], const dynamic_tables *tables, int i);

/* The same as a path. */
status checkpoint_table_path(char path[CHECKPOINT_PATH_BYTES], const dynamic_tables *tables, int i,
                             const char *folder);

/* The checksum of a table's snapshot in a checkpoint, in hexadecimal. */
status checkpoint_table_seal(const char *folder, const char *name, char hex[17]);

/* Size and checksum of a file. */
status checkpoint_hash_file(const char *path, uint64_t *bytes, uint64_t *hash);

/* A sealed JSON file that lists what is in its folder, files with sizes and checksums and tables
 * with seals: manifest.json of a checkpoint, engine.json of an engine folder (trained.h). */
typedef struct manifest {
    const char *folder, *remedy; /* what to do where something is damaged */
    char path[CHECKPOINT_PATH_BYTES];
    const json_value *root; /* an object */
    bool is_sealed;         /* it fits its own checksum */
    char *text;
    arena memory;
} manifest;

/* Reads FOLDER/NAME; then manifest_close must follow in any case, with the status of what was done
 * with it: where that is ERR_FORMAT, it adds the path and the remedy to the reason, as far as they
 * are not there. */
status manifest_open(manifest *m, const char *folder, const char *name, const char *remedy);
status manifest_close(manifest *m, status st);

/* ERR_FORMAT: what is wrong with a file of the folder, and the remedy. */
status manifest_damaged(const manifest *m, const char *path, const char *what);

/* An object must have no key but these, the last of which is NULL: a misspelt one would leave
 * something unchecked. */
status manifest_check_keys(const manifest *m, const json_value *object, const char *const *keys);

/* The files, which must all be listed: the first entry, or ERR_FORMAT. */
status manifest_check_names(const manifest *m, const char *const *names, int n,
                            const json_value **first);

/* What it says of a file. */
typedef struct manifest_file {
    const char *name;
    char path[CHECKPOINT_PATH_BYTES];
    int64_t bytes;
    uint64_t hash;
} manifest_file;
status manifest_read_file(const manifest *m, const json_value *entry, manifest_file *out);
status manifest_check_file(const manifest *m, const manifest_file *f); /* the content */

status manifest_check_tables(const manifest *m); /* all of them; none is fine */

/* The step in the name of a checkpoint's folder, such as step-00000005; -1: not such a name. */
int64_t checkpoint_step_of(const char *name);

#endif
