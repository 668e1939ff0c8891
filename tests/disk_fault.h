/* Disk faults: calls that write to files of a folder fail, in this process, as on a full or a
 * broken disk.  They are replaced in the test program, so that libraries get the faults, too. */
#ifndef HSTU_TESTS_DISK_FAULT_H
#define HSTU_TESTS_DISK_FAULT_H

typedef enum {
    DISK_GOOD,
    DISK_FULL, /* writing fails with ENOSPC */
    DISK_SYNC, /* fsync and fdatasync fail with EIO, after everything was written */
} disk_fault;

/* From now on, for files whose path has this part. */
void disk_fault_set(disk_fault f, const char *part);
/* The same once n writes have succeeded: for DISK_FULL. */
void disk_fault_after(int n, disk_fault f, const char *part);

/* So many calls of fsync are interrupted, as by a signal; and how many succeeded. */
extern int sync_interrupts;
extern int sync_files, sync_folders;

#endif
