/* The objects of hstu.h as callers hold them.
 *
 * A handle looks like a pointer, but is a number: a slot of a table, and how often that slot was
 * used.  It is looked up and never followed, so NULL, a closed handle, a handle of another type and
 * garbage all fail with a sentence, whatever was opened since.  An object is destroyed when its
 * handle is closed and nobody holds it any more.  Any thread may call.
 *
 * A child of fork() has none of the threads and no usable GPU of its parent.  There handles of the
 * parent are refused, and closing them frees nothing, unless the type says that it survives. */
#ifndef HSTU_API_HANDLE_H
#define HSTU_API_HANDLE_H

#include <stdbool.h>

#include "base/status.h"
#include "hstu.h"

typedef struct handle_type {
    const char *name; /* "model" */
    void (*destroy)(void *object);
    bool survives_fork;
} handle_type;

typedef struct handle handle;

/* Hands `object` over to a new handle, whose value is returned in *out; if that fails, the object
 * is destroyed. */
status handle_open(void **out, const handle_type *type, void *object);

/* The type of an open handle; NULL if there is no such handle. */
const handle_type *handle_type_of(const void *value);

/* Holds an object: it stays until handle_release, whoever closes it meanwhile. */
status handle_hold(handle **out, const void *value, const handle_type *type);

/* The same for one thread at a time: waits until no other thread is between enter and leave.
 * ERR_USAGE also if the handle was closed during the wait. */
status handle_enter(handle **out, const void *value, const handle_type *type);

/* The ends of both; they pass on the status of the call and its reason.  NULL: nothing is held. */
hstu_status handle_release(handle *h, status st);
hstu_status handle_leave(handle *h, status st);

void *handle_object(const handle *h);

/* Closes a handle of this type; any other value is ignored. */
void handle_close(const void *value, const handle_type *type);

#endif
