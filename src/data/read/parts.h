/* Parts: the files that --input names, one after the other as one table.
 *
 * An input is a file (compressed or not), an archive, a folder of parts, a pipe, or "-", the
 * standard input.  Of a folder all files count, at any depth and in the order of their paths,
 * except hidden ones and those that start with '_' (Spark's _SUCCESS); if some have an ending of
 * the format, such as ".csv" or ".csv.gz", only those.  A file that is named twice is refused. */
#ifndef HSTU_DATA_READ_PARTS_H
#define HSTU_DATA_READ_PARTS_H

#include "base/mem.h"
#include "base/status.h"
#include "format/input.h"

typedef struct part {
    const char *path;
    const char *member; /* name of a file in the archive `path`; NULL: the file itself */
} part;

typedef struct part_list {
    part *part; /* (n) */
    size_t n, capacity;
    arena texts;
} part_list;

/* Finds the parts of n inputs.  `endings` (ends with NULL) are those of the format.  Pipes are not
 * opened yet.  An input without any file is ERR_USAGE. */
status parts_find(part_list *out, const char *const *inputs, size_t n, const char *const *endings);
void parts_fini(part_list *p);

status part_open(const part *p, input **out);

/* Whether a file's name has one of these endings, compressed or not. */
bool has_ending(const char *name, const char *const *endings);

#endif
