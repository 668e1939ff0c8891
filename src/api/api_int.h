/* Shared by the files of the public API. */
#ifndef HSTU_API_API_INT_H
#define HSTU_API_API_INT_H

#include "base/status.h"

/* Before work that may log: only warnings, or what HSTU_LOG says. */
status api_begin(void);

#endif
