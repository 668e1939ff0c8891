/* The inside of `hstu build`. */
#ifndef HSTU_SERVE_ENGINE_BUILD_INT_H
#define HSTU_SERVE_ENGINE_BUILD_INT_H

#include "serve/engine/build.h"

/* The names in a folder but for "." and "..", in any order; mem_free frees them. */
status build_list_folder(const char *path, char (**out)[256], size_t *n);

/* A copy of a folder with everything in it, each file durable. */
status build_copy_folder(const char *from, const char *to);

/* Opens the checkpoint and the engine folder and asks both the same: fills in the report.
 * ERR_NUMERIC where float32 weights answer differently. */
status build_compare(const char *checkpoint, const char *folder, const build_config *c,
                     build_report *out);

#endif
