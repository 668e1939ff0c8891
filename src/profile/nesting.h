/* Nesting: which range of a program each of its calls of CUDA, and through them each kernel,
 * belongs to.  Our own ranges know that while they are recorded (recorder.h); those of other
 * programs (nvtx.h) come one by one, when they end. */
#ifndef HSTU_PROFILE_NESTING_H
#define HSTU_PROFILE_NESTING_H

#include "profile/recorder.h"

/* When all records are there: gives each range the one around it on its lane, and the time of those
 * inside; what the GPU ran belongs to the innermost range around the call that asked for it. */
status ranges_nest(recorder *r);

#endif
