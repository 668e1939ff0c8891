/* Files: mapping for reading, and writing that is all or nothing.
 *
 * An out_file is written in the folder of its target, nameless until it is complete where the file
 * system allows that. out_file_commit calls fsync on the file, renames it to its target and calls
 * fsync on the folder: a reader sees the old file or the new one, whatever happens, and an
 * interrupted program leaves nothing. */
#ifndef HSTU_BASE_FILE_H
#define HSTU_BASE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

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

/* The path of the file that is mapped at an address, escaped for a terminal (escape.h); NULL: none
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

/* "dir/name" into text; ERR_USAGE if it does not fit. */
status path_join(char *text, size_t n, const char *dir, const char *name);

#endif
