/* Links between spans, once all of them are there: which op launched what the GPU ran, and what is
 * inside a range. */
#ifndef HSTU_PROFILE_LINKS_H
#define HSTU_PROFILE_LINKS_H

#include "profile/recorder.h"

/* Gives what the GPU ran the op that launched it, and takes the links (spans of kind N_SPAN_KINDS)
 * out. */
status links_resolve(recorder *r);

/* Keeps the ranges of a name ("layer forward 0") with all that is inside them, ops, calls and what
 * the GPU ran for them, whenever that was; the recorded time is then the time of these ranges. */
status links_keep_range(recorder *r, const char *name);

#endif
