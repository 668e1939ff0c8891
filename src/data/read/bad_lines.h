/* Bad lines: rows that could not be read and were skipped (--skip-bad N), with their reasons, in
 * the order of the source.  Any thread may add; the rest is for one thread, afterwards. */
#ifndef HSTU_DATA_READ_BAD_LINES_H
#define HSTU_DATA_READ_BAD_LINES_H

#include <stdint.h>

#include "base/status.h"

typedef struct bad_lines bad_lines;

status bad_lines_create(bad_lines **out, uint64_t limit);
void bad_lines_destroy(bad_lines *b); /* NULL is fine */

/* Keeps the reason of this thread's last failure, which must be "file:line: what is wrong", as the
 * bad row number `order` of block `sequence`.  A block alone with more than the limit is refused at
 * once, so that memory stays bounded. */
status bad_lines_add(bad_lines *b, uint64_t sequence, uint64_t order);

/* Called after each block: ERR_FORMAT once there are more than the limit. */
status bad_lines_check(bad_lines *b);

/* The error of a data set with too many: the first bad line beyond the limit, in the order of the
 * source.  Every block before it must have been parsed to its end. */
status bad_lines_fail(bad_lines *b);

uint64_t bad_lines_count(const bad_lines *b);

/* The reason of bad line i in the order of the source. */
const char *bad_lines_get(bad_lines *b, uint64_t i);

#endif
