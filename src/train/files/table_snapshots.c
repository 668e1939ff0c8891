#include "train/files/table_snapshots.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "embed/snapshot.h"
#include "ops/comm.h"
#include "train/files/checkpoint.h"

enum { NAME_BYTES = 64 };

/* Whether this is a snapshot of a later step, or what a killed process left of one. */
static bool is_later(const char *name, uint64_t step) {
    char *end;
    if (name[0] == '.') return strncmp(name, ".step-", 6) == 0;
    if (strncmp(name, "step-", 5) != 0) return false;
    return strtoull(name + 5, &end, 10) > step && *end == '\0';
}

static void remove_later(const char *parent, uint64_t step) {
    char path[CHECKPOINT_PATH_BYTES];
    DIR *dir = opendir(parent);
    if (dir == NULL) return;
    for (struct dirent *e = readdir(dir); e != NULL; e = readdir(dir))
        if (is_later(e->d_name, step) && path_join(path, sizeof path, parent, e->d_name) == OK)
            checkpoint_remove(path);
    closedir(dir);
}

status table_snapshots_check(const dynamic_tables *tables) {
    if (tables->n > 0) return OK;
    return fail(ERR_CONFIG, "--snapshot-every is for dynamic tables, and the config has none; "
                            "checkpoints have the static ones");
}

status table_snapshots_init(table_snapshots *s, dynamic_tables *tables, const char *run,
                            uint64_t step, bool is_first) {
    char parent[CHECKPOINT_PATH_BYTES];
    TRY(path_join(parent, sizeof parent, run, "snapshots"));
    if (is_first) remove_later(parent, step);
    if (is_first) TRY(folder_create(parent, NULL));
    TRY(MEM_NEW(&s->since, (size_t)tables->n));
    s->run = run;
    s->is_first = is_first;
    s->tables = tables;
    for (int i = 0; i < tables->n; i++)
        embed_track_left(tables->item[i].table);
    return OK;
}

void table_snapshots_fini(table_snapshots *s) {
    mem_free(s->since);
    *s = (table_snapshots){0};
}

static status write_tables(table_snapshots *s, const char *folder) {
    char name[CHECKPOINT_TABLE_BYTES], path[CHECKPOINT_PATH_BYTES];
    for (int i = 0; i < s->tables->n; i++) {
        if (!dynamic_is_owner(&s->tables->item[i])) continue;
        checkpoint_table_name(name, s->tables, i);
        TRY(path_join(path, sizeof path, folder, name));
        TRY(embed_snapshot_write(s->tables->item[i].table, path, (snapshot_ranks){0, 1},
                                 s->since[i]));
    }
    return OK;
}

/* The next snapshot begins with the current step, not after it: rows that the next batch fetches
 * are stamped with the current step until their update. */
static void remember_steps(table_snapshots *s) {
    for (int i = 0; i < s->tables->n; i++) {
        s->since[i] = embed_step(s->tables->item[i].table);
        embed_forget_left(s->tables->item[i].table, s->since[i]);
    }
}

/* The first rank makes the folder, and names it when all ranks have written their rows. */
static status begin_folder(const char *temporary) {
    checkpoint_remove(temporary);
    return folder_create(temporary, NULL);
}

static status end_folder(const char *temporary, const char *folder, status st) {
    if (st == OK) {
        folder_sync(temporary);
        if (rename(temporary, folder) != 0) st = fail_errno("%s: cannot be put in place", folder);
    }
    if (st != OK) checkpoint_remove(temporary);
    return st;
}

status table_snapshots_write(table_snapshots *s, uint64_t step) {
    char temporary[CHECKPOINT_PATH_BYTES], folder[CHECKPOINT_PATH_BYTES], name[NAME_BYTES];
    comm *c = s->tables->comm;
    if (c == NULL && !s->is_first) return OK;
    snprintf(name, sizeof name, "snapshots/.step-%08" PRIu64 ".tmp", step);
    TRY(path_join(temporary, sizeof temporary, s->run, name));
    snprintf(name, sizeof name, "snapshots/step-%08" PRIu64, step);
    TRY(path_join(folder, sizeof folder, s->run, name));
    TRY(comm_host_agree(c, s->is_first ? begin_folder(temporary) : OK));
    status st = write_tables(s, temporary);
    TRY(comm_host_agree(c, s->is_first ? end_folder(temporary, folder, st) : st));
    remember_steps(s);
    return OK;
}
