/* Downloads: the public data sets, and fetching one file over http or https (libcurl).
 *
 * A file arrives as PATH.part and becomes PATH only when it is whole and its checksum is right.  An
 * interrupted download is resumed, by the same call or a later one.  Without libcurl
 * (HSTU_HAS_CURL) the failure names the package and the address to fetch by hand. */
#pragma once

#include "base/base.h"

typedef struct download_source {
    const char *name; /* as in `hstu prep NAME` */
    const char *url;
    const char *file; /* the name to keep it under */
    const char *md5;  /* as published, lower case; NULL where none is */
} download_source;

/* The public source of a data set, or NULL. */
const download_source *download_find(const char *name);

/* Fetches `url` into `path`, whose folder must exist, and checks its md5 (NULL: none is known, and
 * the log shows the sum of what arrived).  A file already there with the right sum, or without a
 * known one, is kept and nothing is fetched.  A server that sends nothing for stall_s seconds (0:
 * 60) is given up. */
status download_file(const char *url, const char *path, const char *md5, int stall_s);
