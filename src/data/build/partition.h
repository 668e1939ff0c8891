/* Partition: sorts and writes the events of a builder, one range of users at a time.
 *
 * A worker takes a range of users, gathers their events from all blocks (in the order of the
 * source), sorts each user's by time (stable) and writes the three columns.  A range is a small
 * part of all events, so this step needs little memory besides the blocks. */
#ifndef HSTU_DATA_BUILD_PARTITION_H
#define HSTU_DATA_BUILD_PARTITION_H

#include "data/build/builder_int.h"

/* Where the events go. */
typedef struct event_columns {
    column_writer *writer;
    int item, action, time; /* indices of the declared columns */
} event_columns;

/* Sets job->out_offsets to job->offsets minus the duplicates, which partition_write then drops. */
status partition_count_duplicates(write_job *job);

/* Writes every event to its place by job->out_offsets; fills the remaining fields of job->stats. */
status partition_write(write_job *job, const event_columns *columns);

#endif
