/* What hstu train prints while it trains: a table for people, or the log's lines. */
#ifndef HSTU_CLI_MODEL_TRAIN_PRINT_H
#define HSTU_CLI_MODEL_TRAIN_PRINT_H

#include "train/loop/trainer.h"

enum { TRAIN_MAX_COLUMNS = 5 };

typedef struct train_printer {
    bool is_json;
    const session *session;
    const char *run, *data;                            /* data: NULL if it is generated */
    char column[TRAIN_MAX_COLUMNS][METRIC_NAME_BYTES]; /* the metrics of the table */
    int n_columns;
} train_printer;

/* Sets the columns: the first metrics of the config; of the many of Meta's files the usual ones. */
status train_printer_columns(train_printer *p, const config *c);

/* The trainer's observer; ctx is a train_printer. */
status train_printer_observe(void *ctx, const train_event *e, const char *json);

#endif
