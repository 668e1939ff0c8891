/* The parts of hstu export: export.c copies files of a checkpoint, export_embeddings.c computes. */
#ifndef HSTU_CLI_MODEL_EXPORT_H
#define HSTU_CLI_MODEL_EXPORT_H

#include "base/status.h"

typedef struct export_args {
    const char *run, *what, *format, *out, *data, *device, *layout;
} export_args;

/* The items' embeddings as they are scored, or the encoded states of the data's users; folder: of
 * the checkpoint. */
status export_items(const export_args *a, const char *folder);
status export_users(const export_args *a, const char *folder);

#endif
