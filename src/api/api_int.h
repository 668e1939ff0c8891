/* Shared by the files of the public API. */
#ifndef HSTU_API_API_INT_H
#define HSTU_API_API_INT_H

#include "api/handle.h"
#include "base/thread.h"
#include "data/set/seq_file.h"
#include "ops/ops.h"

/* Before work that may log: only warnings, or what HSTU_LOG says. */
status api_begin(void);

/* The threads of an object: as many as HSTU_THREADS or the machine says. */
status api_pool(pool **out);

/* ERR_USAGE if an argument is NULL. */
status api_need(const void *argument, const char *name);

/* ERR_NUMERIC if one of n numbers is not finite. */
status api_check_finite(const float *numbers, size_t n, const char *name);

/* ERR_USAGE unless offsets (n + 1) cut all `total` rows into sequences of at most `longest`.  For
 * memory of the host, where a wrong offset can be seen. */
status api_check_offsets(const char *name, const int32_t *offsets, int32_t n, int64_t total,
                         int32_t longest);

/* The longest sequence there can be: max_seqlen is the caller's promise, and may be far more than
 * all rows.  It decides how many tiles are visited and how much scratch memory is taken. */
int32_t api_longest(int32_t max_seqlen, int64_t total);

/* backend_open for a device by name, NULL for "auto"; its failures name the argument of the library
 * instead of the program's option. */
status api_backend(backend **out, pool *workers, const char *device);

/* The handle of a model is that of its data, too (hstu_model_data). */
extern const handle_type api_model_type;
const seq_file *api_model_file(const void *object);

#endif
