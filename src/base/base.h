/* The everyday header: the C library's common headers, and status, memory, texts, logs, files and
 * threads of this folder.  Nearly every header of src brings it, so that hardly any source file
 * has to name it. */
#pragma once

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "base/env.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/range.h"
#include "base/rng.h"
#include "base/sort.h"
#include "base/status.h"
#include "base/text.h"
#include "base/thread.h"

#ifdef __cplusplus
}
#endif
