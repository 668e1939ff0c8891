/* Shared by the files of the public API. */
#ifndef HSTU_API_API_INT_H
#define HSTU_API_API_INT_H

#include "api/handle.h"
#include "base/pool.h"
#include "data/set/seq_file.h"

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

/* The handle of a model is that of its data, too (hstu_model_data). */
extern const handle_type api_model_type;
const seq_file *api_model_file(const void *object);

#endif
