/* Files: mapping for reading, and writing that is all or nothing.
 *
 * An out_file is written in the folder of its target, nameless until it is complete where the file
 * system allows that. out_file_commit calls fsync on the file, renames it to its target and calls
 * fsync on the folder: a reader sees the old file or the new one, whatever happens, and an
 * interrupted program leaves nothing.
 *
 * Also here: temporary files and folders, which outlive a killed process only until the next one
 * cleans up, and files that several processes write at the same time. */
#pragma once

#include "base/status.h"
#include "base/text.h"

/* A read-only mapping; n_bytes may be 0 (then bytes is a valid empty pointer).  The content changes
 * under the reader if somebody writes into the file. */
typedef struct file_map {
    const unsigned char *bytes;
    size_t n_bytes;
    uint64_t device, inode; /* which file it is, and when it was last written */
    int64_t written_ns;
} file_map;

status file_map_open(file_map *out, const char *path);
void file_map_close(file_map *m);

/* What has become of a mapped file since. */
typedef enum {
    FILE_SAME,
    FILE_RESIZED, /* reading beyond a shorter end is a bus error */
    FILE_WRITTEN, /* of the same size, but written or touched */
    FILE_MOVED    /* the path leads elsewhere now, or nowhere: the mapped one is as it was */
} file_change;
file_change file_map_changed(const file_map *m, const char *path);

/* The path of the file that is mapped at an address, escaped for a terminal (text.h); NULL: none
 * that is known.  A signal handler may call it. */
const char *file_map_at(const void *address);

/* Likewise the path of a mapped file that somebody wrote into since; NULL: none that is known. */
const char *file_map_written(void);

/* Reads a whole small file (at most max_bytes) and appends a NUL; the caller frees *out by
 * mem_free.  Like file_map_open it refuses pipes and devices, which could keep it waiting. */
status file_read_all(const char *path, size_t max_bytes, char **out, size_t *out_bytes);

typedef struct out_file out_file;

/* Starts a file that will replace `path`.  The folder must exist and be writable. */
status out_file_create(out_file **out, const char *path);

/* Appends, buffered.  On any failure (a full disk above all) the reason names the target. */
status out_file_write(out_file *f, const void *bytes, size_t n);

/* Writes at an offset, bypassing the buffer: for columns filled in parallel and headers written
 * last. Any thread may call it, for ranges that do not overlap. */
status out_file_write_at(out_file *f, uint64_t offset, const void *bytes, size_t n);

/* Cuts or extends (with zeros) to `bytes`. */
status out_file_set_size(out_file *f, uint64_t bytes);

/* Nobody but the user will be able to read or write it, whatever the umask. */
status out_file_set_private(out_file *f);

/* Reads back what was written; flushes the buffer first.  Any thread, as write_at. */
status out_file_read_at(out_file *f, uint64_t offset, void *bytes, size_t n);

/* Makes it durable and visible: flush, fsync, rename, fsync of the folder.  Closes f either way; on
 * failure the target is untouched and nothing else is left. */
status out_file_commit(out_file *f);

/* Gives up: the target stays as it is.  NULL is fine. */
void out_file_abandon(out_file *f);

/* Commits it where st is OK, else gives up and returns st. */
status out_file_end(out_file *f, status st);

/* Writes a whole file as an out_file, and copies one. */
status file_write(const char *path, const void *bytes, size_t n);
status file_copy(const char *from, const char *to);

/* Where st is OK, writes a text to FOLDER/NAME, or to NAME where the folder is NULL.  Frees the
 * text either way; returns st, or why there is no file. */
status file_save(const char *folder, const char *name, buf *text, status st);

/* mkdir -p, durably.  *out_created (may be NULL): whether the last level was made by this call. */
status folder_create(const char *path, bool *out_created);

/* fsync, repeated where a signal interrupts it: 0, or -1 with errno. */
int file_sync(int fd);

/* Makes the names in a folder durable: a file that was made or renamed there survives a crash once
 * this returns.  Some file systems refuse that, which is not an error. */
void folder_sync(const char *folder);
void folder_sync_of(const char *path); /* of the folder that the path is in */

/* Removes a folder with the files in it and folders down to `depth` levels below, as far as
 * possible.  Links are removed, never followed; a link in place of the folder is removed itself. */
void folder_remove(const char *path, int depth);

bool file_exists(const char *path);

/* Whether both paths lead to one regular file, as a link and its target do. */
bool file_is_same(const char *a, const char *b);
bool folder_exists(const char *path);
bool folder_has(const char *folder, const char *name); /* a file of this name */

/* "dir/name" into text; ERR_USAGE if it does not fit. */
status path_join(char *text, size_t n, const char *dir, const char *name);

/* Temporary files and folders that killed processes leave behind.
 *
 * Their names are NAME, a part of digits and '-' (the process, the attempt), and ".tmp".  Whoever
 * makes one holds a lock on it, which ends with the process; whoever makes the next one of the same
 * NAME removes those without a lock.  Where a file system has no locks, nothing is removed.
 *
 * Marks an open file or folder as in use, until it is closed.  False where another process removed
 * it before it was marked: make a new one. */
bool temporary_lock(int fd);

/* Removes the abandoned ones whose path begins with `prefix`; of folders, also what is in them,
 * down to `depth` levels of folders. */
void temporary_clean(const char *prefix, int depth);

/* Folders on disk for temporary files, which last as long as the process.
 *
 * Each is locked while it is open, by a lock that ends with the process.  Whoever opens a folder in
 * the same place removes those that killed processes left, so that they do not fill the disk.  Any
 * number of processes may share a place.  A scratch folder belongs to one thread. */
typedef struct scratch_folder scratch_folder;

/* Makes PARENT (and what is above it) if need be, and in it PREFIX followed by six letters.
 * Folders of that name in PARENT that nobody has open are removed. */
status scratch_folder_create(scratch_folder **out, const char *parent, const char *prefix);

const char *scratch_folder_path(const scratch_folder *s);

/* Removes the folder with the files in it.  NULL is fine. */
void scratch_folder_destroy(scratch_folder *s);

/* A file that several processes write at the same time, each its own ranges.
 *
 * One process makes it, of its whole size; then all open it by its path.  Unlike an out_file
 * it is visible from the beginning, so it belongs into a folder that gets its final name
 * when all is written.  One thread at a time for each part_file. */
typedef struct part_file part_file;

/* Makes a new file of `bytes` bytes that begins with `header`; the rest is zero. */
status part_file_make(const char *path, const buf *header, uint64_t bytes);

/* Opens what part_file_make made, in this or another process, which may be on another machine. */
status part_file_open(part_file **out, const char *path);

/* On failure, a full disk above all, the reason names the path. */
status part_file_write(part_file *f, uint64_t offset, const void *bytes, size_t n);

/* A sum of what was written to f so far, which does not depend on the order or the size of pieces:
 * the sums of several writers, added, are that of the whole.  Pieces are whole words of 4 bytes, at
 * multiples of 4. */
uint64_t part_file_sum(const part_file *f);

/* Reads the file from byte `begin` on, and fails where that is not what was written: sum is the sum
 * of all writers. */
status part_file_check(const char *path, uint64_t begin, uint64_t sum);

/* Makes what was written durable, and closes f either way; NULL is fine.  With st, a failure from
 * before, it only closes; returns st, or why it is not durable. */
status part_file_close(part_file *f, status st);
