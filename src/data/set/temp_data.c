#include "data/set/temp_data.h"

#include "base/file.h"

status temp_data_open(seq_file **out, temp_data_writer write, void *ctx, pool *p) {
    scratch_folder *folder;
    *out = NULL;
    TRY(scratch_folder_create(&folder, "/tmp", "hstu-data-"));
    status st = write(ctx, scratch_folder_path(folder), p);
    if (st == OK) st = seq_file_open(out, scratch_folder_path(folder), p);
    scratch_folder_destroy(folder);
    return st;
}
