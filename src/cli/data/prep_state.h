/* hstu prep --from-state. */
#pragma once

#include "data/read/sources.h"

/* Reads the state of a server, which may run meanwhile, into a new builder, with prepared data
 * (NULL: none) and the side files of the request, which count before what the data say.  Erased
 * users are left out of both; an event that is in both counts once. */
status prep_state_read(const char *folder, const char *with, const source_request *request, pool *p,
                       source_result *out);
