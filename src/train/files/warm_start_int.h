/* Inside a warm start: shared by warm_start.c (which table comes from where), warm_rows.c (rows
 * and their state) and warm_mean.c (first values of new items). */
#ifndef HSTU_TRAIN_FILES_WARM_START_INT_H
#define HSTU_TRAIN_FILES_WARM_START_INT_H

#include "format/safetensors.h"
#include "model/vocabulary.h"
#include "train/files/warm_start.h"

typedef struct warm_job {
    checkpoint *c;
    session *s;
    const warm_options *options;
    warm_report *report;
    uint64_t n_earlier;        /* updates before those of the other run */
    config *config;            /* of the other model */
    seq_file *names;           /* the vocabulary of its checkpoint */
    vocabulary_map map;        /* the data here in `names` */
    st_file *values, *moments; /* moments NULL: the optimizer starts again */
    uint32_t *item_here;       /* (items of `names` + 1): the numbers of its items here, or 0 */
    uint32_t *value_here[CONTEXT_MAX]; /* by feature of `names`: likewise its values */
} warm_job;

/* Which rows of a table come from which rows there. */
typedef struct row_source {
    const uint32_t *from; /* (rows here): rows there, 0: none; row 0 comes from row 0.  NULL: row i
                             from row i, as far as there are */
    int64_t n_there;      /* rows */
    char name[PARAM_NAME_BYTES]; /* of the tensor there; "": the table is new as a whole */
} row_source;

/* Copies the rows of a static table with their state. */
status warm_copy_rows(warm_job *j, int param_index, const row_source *rows, warm_table *count);

/* Copies a parameter of the same shape with its state. */
status warm_copy_whole(warm_job *j, int param_index);

/* Whether the other optimizer's state fits this run's: of the same kind, for every parameter. */
bool warm_state_fits(const warm_job *j, const st_file *file);

/* Copies the rows of a dynamic table: number i of the model's. */
status warm_copy_table(warm_job *j, int i, warm_table *count);

/* Sets the rows of new items to means; count: of the item table. */
status warm_set_means(warm_job *j, warm_table *count);

#endif
