/* Warm: runs a model before its first request, so that memory is touched, its rate is known, and
 * the shapes that requests are likely to have are recorded (pass_config.is_recorded). */
#ifndef HSTU_SERVE_ENGINE_WARM_H
#define HSTU_SERVE_ENGINE_WARM_H

#include "serve/engine/served.h"

status warm_up(served *m);

#endif
