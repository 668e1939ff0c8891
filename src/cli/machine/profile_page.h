/* A profile as one HTML file: a timeline to zoom into, where the time went, idle gaps, advice. */
#ifndef HSTU_CLI_MACHINE_PROFILE_PAGE_H
#define HSTU_CLI_MACHINE_PROFILE_PAGE_H

#include "profile/profiler.h"

status profile_page_write(const profile *p, const char *path);

#endif
