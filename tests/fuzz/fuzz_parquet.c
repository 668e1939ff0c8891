/* Any bytes as a Parquet file: footer, schema, row groups, pages and events of its first four
 * columns as user, item, time and action, in the order that the first of them allows.  The file
 * lives in memory; the reader reaches it by its name under /proc. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "data/read/blocks.h"
#include "data/read/parquet_events.h"

/* A run of equal values makes millions of rows of a few bytes: true files do so, but it takes our
 * time. */
enum { MAX_ROWS = 20000, MAX_GROUPS = 16, MAX_PAGE_BYTES = 1 << 20 };

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

typedef struct fuzz_groups {
    events_group group[MAX_GROUPS];
    int n, n_columns;
} fuzz_groups;

static status add_group(void *ctx, const parquet_group *g) {
    fuzz_groups *groups = ctx;
    bool is_small = g->n_rows <= MAX_ROWS;
    for (int i = 0; i < groups->n_columns; i++)
        is_small &= g->chunk[i].n_values <= MAX_ROWS;
    if (groups->n == MAX_GROUPS || !is_small) return OK;
    events_group *to = &groups->group[groups->n++];
    *to = (events_group){.n_rows = g->n_rows, .first_row = g->first_row};
    for (int i = 0; i < groups->n_columns; i++)
        to->chunk[i] = g->chunk[i];
    return OK;
}

/* Gives roles to the columns that can have them. */
static void choose_columns(const parquet_file *f, events_file *out) {
    char number[8];
    bool is_taken[N_EVENT_ROLES] = {false};
    for (int i = 1; i <= 6 && out->n_columns < N_EVENT_ROLES; i++) {
        parquet_column c;
        bool is_found;
        snprintf(number, sizeof number, "%d", i);
        if (parquet_find_column(f, number, &c, &is_found) != OK || !is_found) continue;
        for (int role = 0; role < N_EVENT_ROLES; role++) {
            if (is_taken[role] || events_check_role(&c, (event_role)role) != OK) continue;
            out->role[out->n_columns] = (event_role)role;
            out->column[out->n_columns++] = c;
            is_taken[role] = true;
            break;
        }
    }
}

static void read_events(const events_file *file, const fuzz_groups *groups) {
    const builder_options options = {.has_text_users = true,
                                     .has_text_items = true,
                                     .actions = ACTION_CODE,
                                     .has_ns_times = true};
    csv_layout layout = {.has_text_users = true, .has_text_items = true, .actions = ACTION_CODE};
    time_plan_set(&layout.times, TIME_NUMBER, UNIT_S, false);
    /* Bad values are skipped, so that one does not hide the pages after it. */
    if (bad_lines_create(&layout.bad, UINT32_MAX) != OK) return;
    builder *b = NULL;
    events_worker *w = NULL;
    if (builder_create(&b, &options, NULL) == OK &&
        events_worker_create(&w, builder_get_sink(b, 0), &layout) == OK) {
        events_worker_limit(w, MAX_PAGE_BYTES);
        for (int i = 0; i < groups->n; i++)
            if (events_worker_read(w, file, &groups->group[i], (uint64_t)i << 32) != OK) break;
    }
    events_worker_destroy(w);
    builder_destroy(b);
    bad_lines_destroy(layout.bad);
}

static void read_file(const char *path) {
    static fuzz_groups groups;
    parquet_file f;
    events_file file = {.path = path};
    char names[512];
    if (parquet_file_open(&f, path) != OK) return;
    parquet_list_names(&f, names, sizeof names);
    choose_columns(&f, &file);
    groups.n = 0;
    groups.n_columns = file.n_columns;
    bool has_ids = file.n_columns >= 2 && file.role[0] == EVENT_USER && file.role[1] == EVENT_ITEM;
    if (parquet_read_groups(&f, file.column, file.n_columns, add_group, &groups) == OK && has_ids)
        read_events(&file, &groups);
    parquet_file_close(&f);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n) {
    char path[64];
    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    if (fd < 0 || write(fd, bytes, n) != (ssize_t)n) abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    read_file(path);
    close(fd);
    return 0;
}
