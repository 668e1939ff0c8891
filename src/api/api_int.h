/* Inside the public API: the objects of hstu.h as callers hold them, and what its files share.
 *
 * A handle looks like a pointer, but is a number: a slot of a table, and how often that slot was
 * used.  It is looked up and never followed, so NULL, a closed handle, a handle of another type and
 * garbage all fail with a sentence, whatever was opened since.  An object is destroyed when its
 * handle is closed and nobody holds it any more.  Any thread may call.
 *
 * A child of fork() has none of the threads and no usable GPU of its parent.  There handles of the
 * parent are refused, and closing them frees nothing, unless the type says that it survives. */
#pragma once

#include "data/set/seq_file.h"
#include "hstu.h"
#include "ops/ops.h"

typedef struct handle_type {
    const char *name; /* "model" */
    void (*destroy)(void *object);
    bool survives_fork;
} handle_type;

typedef struct handle handle;

/* Hands `object` over to a new handle, whose value is written to the pointer at `out`.  st: whether
 * the object could be opened; if it or the handle could not, the object is destroyed and the value
 * is NULL. */
status handle_open(void *out, const handle_type *type, void *object, status st);

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

/* The body of a function of hstu.h: returns what `call` returns, in which `object` is the object of
 * a handle, entered by this thread alone. */
#define RETURN_WITHIN(value, type, call)                                                           \
    do {                                                                                           \
        handle *within_;                                                                           \
        status st_ = handle_enter(&within_, value, type);                                          \
        void *object = within_ != NULL ? handle_object(within_) : NULL;                            \
        if (st_ == OK) st_ = (call);                                                               \
        return handle_leave(within_, st_);                                                         \
    } while (0)

/* TRY for functions of hstu.h. */
#define API_TRY(call)                                                                              \
    do {                                                                                           \
        status st_ = (call);                                                                       \
        if (st_ != OK) return (hstu_status)st_;                                                    \
    } while (0)

/* Closes a handle of this type; any other value is ignored. */
void handle_close(const void *value, const handle_type *type);

/* Before work that may log: only warnings, or what HSTU_LOG says. */
status api_begin(void);

/* ERR_USAGE if an argument is NULL. */
status api_need(const void *argument, const char *name);

/* ERR_NUMERIC if one of n numbers is not finite. */
status api_check_finite(const float *numbers, size_t n, const char *name);

/* backend_open for a device by name, NULL for "auto"; its failures name the argument of the library
 * instead of the program's option. */
status api_backend(backend **out, pool *workers, const char *device);

/* The handle of a model is that of its data, too (hstu_model_data). */
extern const handle_type api_model_type;
const seq_file *api_model_file(const void *object);
