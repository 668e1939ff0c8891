/* API keys with quotas: a file with one key a line,
 *
 *     KEY NAME REQUESTS_PER_SECOND      # 0: no limit
 *
 * NAME stands in the access log instead of the key.  A key may be used for a second's worth of
 * requests at once; then it fills again with time.  The file is read at the start.  Any thread. */
#ifndef HSTU_SERVE_API_KEYS_H
#define HSTU_SERVE_API_KEYS_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct api_keys api_keys;

enum { API_KEY_MIN = 8, API_KEY_MAX = 128, API_KEY_NAME = 64 };

status api_keys_open(api_keys **out, const char *path);
status api_keys_read(api_keys **out, const char *name, const char *text, size_t n);
void api_keys_close(api_keys *k); /* NULL is fine */

typedef enum { KEY_OK, KEY_UNKNOWN, KEY_OVER_QUOTA } key_verdict;

/* Counts one request of this key; text may be NULL.  *name: the key's, which lives as long as k. */
key_verdict api_keys_use(api_keys *k, const char *text, uint64_t now_ns, const char **name);

#endif
