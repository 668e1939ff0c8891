/* API keys with quotas and roles: a file with one key a line,
 *
 *     KEY NAME REQUESTS_PER_SECOND [ROLES]      # 0: no limit
 *
 * NAME stands in the access log instead of the key.  A key may be used for a second's worth of
 * requests at once; then it fills again with time.  ROLES are some of read, events and admin, with
 * commas between them; a key without roles has all.  The file is read at the start.  Any thread. */
#pragma once

#include "base/base.h"

typedef struct api_keys api_keys;

enum { API_KEY_MIN = 8, API_KEY_MAX = 128, API_KEY_NAME = 64 };

/* What a request needs: answers; to add events; to reload models and to erase users. */
typedef enum { KEY_READ = 1, KEY_EVENTS = 2, KEY_ADMIN = 4, KEY_ALL = 7 } key_role;
const char *key_role_name(key_role one);

status api_keys_open(api_keys **out, const char *path);
status api_keys_read(api_keys **out, const char *name, const char *text, size_t n);
void api_keys_close(api_keys *k); /* NULL is fine */
size_t api_keys_without_roles(const api_keys *k);

typedef enum { KEY_OK, KEY_UNKNOWN, KEY_OVER_QUOTA } key_verdict;

/* Counts one request of this key; text may be NULL.  *name: the key's, which lives as long as k.
 * *roles: a sum of key_role. */
key_verdict api_keys_use(api_keys *k, const char *text, uint64_t now_ns, const char **name,
                         unsigned *roles);
