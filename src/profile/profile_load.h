/* Profiles of programs that are not ours: a folder of record files (record_file.h), one for each
 * process that used a GPU, becomes one profile. */
#ifndef HSTU_PROFILE_PROFILE_LOAD_H
#define HSTU_PROFILE_PROFILE_LOAD_H

#include "base/text.h"
#include "profile/profiler.h"

/* Reads all of a folder; a folder without files gives a profile without records, and gpu_reason
 * says what that means.  *out_text gets a line for each process: its number, its command, how many
 * records, and what went wrong.  The profile is to be ended by profile_fini in any case. */
status profile_load(profile *p, const char *folder, buf *out_text);

#endif
