#include "data/set/temp_data.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

status temp_data_open(seq_file **out, temp_data_writer write, void *ctx, pool *p) {
    char folder[] = "/tmp/hstu-data-XXXXXX", path[64];
    *out = NULL;
    if (mkdtemp(folder) == NULL) return fail_errno("%s: cannot make a temporary folder", folder);
    status st = write(ctx, folder, p);
    if (st == OK) st = seq_file_open(out, folder, p);
    snprintf(path, sizeof path, "%s/data.seq", folder);
    (void)unlink(path);
    (void)rmdir(folder);
    return st;
}
