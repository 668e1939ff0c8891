/* The user's own Parquet files: one event per row, or one user per row with lists.
 *
 * First the footers of all files are read: where the columns are, and whether the files agree on
 * what they hold; the first rows show the unit of times and the kind of actions, as in a csv.  Then
 * the workers of the pool read row groups, each into a sink of its own; blocks are numbered by file
 * and row group, so the result does not depend on the number of threads. */
#include <stdatomic.h>

#include "data/read/blocks.h"
#include "data/read/parquet_events.h"
#include "data/read/source_job.h"
#include "data/read/table_source.h"

typedef struct parquet_job {
    source_job *job;
    part_list parts;
    table_reader table; /* columns, layout and map, as for csv */
    events_file *files; /* (parts.n) */
    uint32_t n_files;   /* that have rows */
    events_group *groups;
    size_t n_groups, group_capacity;
    events_worker **workers; /* (threads) */
    int n_workers;
    progress bar;
    _Atomic uint64_t bytes_read;
} parquet_job;

/* Roles of events are in the order of those of csv columns. */
static event_role role_of(csv_role role) {
    return (event_role)(role - ROLE_USER);
}

static status find_columns(parquet_job *p, const parquet_file *f, events_file *file) {
    file->n_columns = 0;
    for (int k = 0; k < p->table.n_wanted; k++) {
        const csv_column *wanted = &p->table.wanted[k];
        parquet_column *c = &file->column[file->n_columns];
        bool is_found;
        char names[512], hint[80];
        TRY(parquet_find_column(f, wanted->column, c, &is_found));
        if (!is_found) {
            parquet_list_names(f, names, sizeof names);
            return fail(ERR_FORMAT, "%s: there is no column '%s'%s; the file has %s", f->path,
                        wanted->column, nearest_hint(hint, wanted->column, names), names);
        }
        for (int i = 0; i < file->n_columns; i++)
            if (file->column[i].leaf == c->leaf)
                return fail(ERR_USAGE, "%s: column '%s' is given two roles", f->path, c->name);
        status st = events_check_role(c, role_of(wanted->role));
        if (st != OK) return fail_prefix(st, "%s", f->path);
        file->role[file->n_columns++] = role_of(wanted->role);
    }
    return OK;
}

/* Which columns are meant, by the options or their names. */
static status choose_columns(parquet_job *p, const parquet_file *f) {
    sample s;
    sample_init(&s, f->path);
    s.has_names = true;
    status st = parquet_get_names(f, &s.memory, &s.name, &s.n_columns);
    if (st == OK) st = table_choose_columns(&p->table, &s);
    sample_fini(&s);
    return st;
}

static bool is_typed_time(const parquet_column *c) {
    return c->meaning >= MEANS_DATE && c->meaning <= MEANS_NANOSECONDS;
}

/* One value as the text that a csv would have. */
static status put_cell(sample *s, int row, int col, const char *text, size_t n) {
    csv_field *cell = &s->cell[(size_t)row * (size_t)s->n_columns + (size_t)col];
    const char *copy;
    TRY(arena_copy_text(&s->memory, text, n, &copy));
    *cell = (csv_field){(char *)(uintptr_t)copy, n};
    return OK;
}

static status put_value(sample *s, int row, int col, const parquet_column *c,
                        const parquet_data *from, size_t i) {
    buf text = {0};
    status st = parquet_put_value(&text, c, from, i);
    if (st == OK) st = put_cell(s, row, col, buf_str(&text), text.n_bytes);
    buf_fini(&text);
    return st;
}

/* The first values of a column.  Those of ids show only whether they are texts, which the type
 * says; a time with a type of its own needs none. */
static status sample_column(sample *s, int col, parquet_reader *r, const parquet_file *f,
                            const parquet_column *c, event_role role, const parquet_chunk *chunk) {
    if (role == EVENT_USER || role == EVENT_ITEM) {
        for (int row = 0; row < s->n_rows; row++)
            TRY(put_cell(s, row, col, parquet_is_text(c) ? "text" : "0",
                         parquet_is_text(c) ? 4 : 1));
        return OK;
    }
    if (is_typed_time(c)) return OK;
    TRY(parquet_reader_open(r, f, c, chunk));
    for (int row = 0; row < s->n_rows && r->n_left > 0;) {
        parquet_batch b;
        TRY(parquet_reader_next(r, (size_t)(s->n_rows - row), &b));
        for (size_t i = 0; i < b.n_values; i++, row++)
            TRY(put_value(s, row, col, c, b.index != NULL ? &r->dictionary.data : &b.data,
                          b.index != NULL ? b.index[i] : i));
    }
    return OK;
}

static void set_names(parquet_job *p, const events_file *file) {
    memset(p->table.choice.of, -1, sizeof p->table.choice.of);
    for (int i = 0; i < file->n_columns; i++) {
        int role = ROLE_USER + (int)file->role[i];
        p->table.choice.of[role] = i;
        snprintf(p->table.layout.name[role], CSV_NAME_BYTES, "%.*s", CSV_NAME_BYTES - 1,
                 file->column[i].name);
    }
}

static status fill_sample(sample *s, const parquet_file *f, const events_file *file,
                          const events_group *g, parquet_reader *r) {
    s->has_names = true;
    s->n_columns = file->n_columns;
    s->n_rows = g->n_rows < SAMPLE_ROWS ? (int)g->n_rows : SAMPLE_ROWS;
    TRY(ARENA_NEW(&s->memory, &s->name, (size_t)s->n_columns));
    TRY(ARENA_NEW(&s->memory, &s->cell, (size_t)s->n_rows * (size_t)s->n_columns));
    for (int row = 0; row < s->n_rows; row++)
        s->line[row] = g->first_row + (uint64_t)row + 1;
    for (int i = 0; i < file->n_columns; i++) {
        s->name[i] = file->column[i].name;
        TRY(sample_column(s, i, r, f, &file->column[i], file->role[i], &g->chunk[i]));
    }
    return OK;
}

/* What the columns hold; makes the builder. */
static status set_kinds(parquet_job *p, const parquet_file *f, const events_file *file,
                        const events_group *g) {
    sample s;
    parquet_reader r;
    sample_init(&s, f->path);
    status st = parquet_reader_init(&r);
    if (st == OK) st = fill_sample(&s, f, file, g, &r);
    if (st == OK) {
        set_names(p, file);
        st = table_set_kinds(&p->table, &s, "Parquet");
    }
    parquet_reader_fini(&r);
    sample_fini(&s);
    return st;
}

static const parquet_column *column_of(const events_file *f, event_role role) {
    for (int i = 0; i < f->n_columns; i++)
        if (f->role[i] == role) return &f->column[i];
    return NULL;
}

static const char *type_words(const parquet_column *c) {
    if (is_typed_time(c)) return c->meaning == MEANS_DATE ? "dates" : "timestamps";
    return parquet_type_name(c->type);
}

/* A time column with a type of its own has its unit, and perhaps its zone. */
static status check_time_unit(parquet_job *p, const events_file *file) {
    const parquet_column *time = column_of(file, EVENT_TIME);
    const source_request *q = p->job->request;
    if (time == NULL || !is_typed_time(time)) return OK;
    p->table.layout.times.form = TIME_DATE; /* for its name */
    p->job->zone->has_local = time->is_local;
    const char *option = q->time_unit != NULL                      ? "unit; leave --time-unit"
                         : q->time_format != NULL                  ? "form; leave --time-format"
                         : q->time_zone != NULL && !time->is_local ? "zone, UTC; leave --time-zone"
                                                                   : NULL;
    if (option == NULL) return OK;
    return fail(ERR_USAGE, "%s: column '%s' has %s, which have their %s out", file->path,
                time->name, type_words(time), option);
}

/* The first file with rows decides what ids, times and actions are. */
static status plan_events(parquet_job *p, const parquet_file *f, events_file *file,
                          size_t first_group) {
    TRY(set_kinds(p, f, file, &p->groups[first_group]));
    /* A guessed action column that is none was the last one. */
    file->n_columns = p->table.n_wanted;
    return check_time_unit(p, file);
}

/* Another file must have the same kind of values in each role. */
static status check_agreement(const parquet_job *p, const events_file *f) {
    const events_file *first = &p->files[0];
    for (int i = 0; i < f->n_columns; i++) {
        const parquet_column *a = column_of(first, f->role[i]), *b = &f->column[i];
        bool is_same = f->role[i] == EVENT_TIME ? is_typed_time(a) == is_typed_time(b)
                                                : parquet_is_text(a) == parquet_is_text(b);
        if (f->role[i] != EVENT_TIME && p->job->request->has_text_ids) is_same = true;
        if (is_same) continue;
        return fail(ERR_FORMAT,
                    "%s: column '%s' has %s, but %s in %s; the parts of a data set must agree",
                    f->path, b->name, type_words(b), type_words(a), first->path);
    }
    return OK;
}

static status add_group(void *ctx, const parquet_group *g) {
    parquet_job *p = ctx;
    TRY(MEM_RESERVE(&p->groups, &p->group_capacity, p->n_groups + 1));
    events_group *to = &p->groups[p->n_groups++];
    *to = (events_group){.file = p->n_files, .n_rows = g->n_rows, .first_row = g->first_row};
    for (int i = 0; i < p->files[p->n_files].n_columns; i++)
        to->chunk[i] = g->chunk[i];
    return OK;
}

static status read_meta(parquet_job *p, const parquet_file *f) {
    events_file *file = &p->files[p->n_files];
    size_t first_group = p->n_groups;
    bool is_first = p->n_files == 0;
    file->path = f->path;
    if (f->n_rows == 0) return OK;
    if (is_first) TRY(choose_columns(p, f));
    TRY(find_columns(p, f, file));
    TRY(parquet_read_groups(f, file->column, file->n_columns, add_group, p));
    TRY(is_first ? plan_events(p, f, file, first_group) : check_agreement(p, file));
    p->n_files++;
    return OK;
}

static status read_footer(parquet_job *p, const part *one) {
    parquet_file f;
    if (one->member != NULL)
        return fail(ERR_UNSUPPORTED, "%s is an archive; unpack it and give the folder", one->path);
    if (strcmp(one->path, "-") == 0)
        return fail(ERR_USAGE, "a Parquet file is read from its end; the standard input cannot be");
    TRY(parquet_file_open(&f, one->path));
    status st = read_meta(p, &f);
    parquet_file_close(&f);
    return st;
}

static uint64_t group_bytes(const parquet_job *p, const events_group *g) {
    uint64_t n = 0;
    for (int i = 0; i < p->files[g->file].n_columns; i++)
        n += g->chunk[i].end - g->chunk[i].begin;
    return n;
}

static status read_group(void *ctx, int64_t chunk, int worker) {
    parquet_job *p = ctx;
    const events_group *g = &p->groups[chunk];
    if (p->workers[worker] == NULL)
        TRY(events_worker_create(&p->workers[worker], builder_get_sink(p->job->build, worker),
                                 &p->table.layout));
    TRY(events_worker_read(p->workers[worker], &p->files[g->file], g,
                           p->job->next_sequence + ((uint64_t)chunk << 32)));
    uint64_t n = group_bytes(p, g);
    progress_update(&p->bar, atomic_fetch_add(&p->bytes_read, n) + n);
    return OK;
}

static status read_groups(parquet_job *p) {
    uint64_t n_bytes = 0;
    char what[64];
    bad_lines *bad = p->job->bad;
    for (size_t k = 0; k < p->n_groups; k++)
        n_bytes += group_bytes(p, &p->groups[k]);
    snprintf(what, sizeof what, "reading %u file%s", p->n_files, p->n_files == 1 ? "" : "s");
    progress_begin(&p->bar, what, "B", n_bytes);
    status st = pool_run(p->job->p, (int64_t)p->n_groups, read_group, p);
    progress_end(&p->bar);
    p->job->next_sequence += (uint64_t)p->n_groups << 32;
    if (bad != NULL && bad_lines_check(bad) != OK) return bad_lines_fail(bad);
    return st;
}

static status read_all(parquet_job *p) {
    TRY(MEM_NEW(&p->files, p->parts.n));
    TRY(MEM_NEW(&p->workers, (size_t)p->n_workers));
    for (size_t i = 0; i < p->parts.n; i++)
        TRY(read_footer(p, &p->parts.part[i]));
    if (p->n_files == 0) return fail(ERR_FORMAT, "%s: there are no rows", p->job->path);
    TRY(read_groups(p));
    table_name_times(&p->table);
    return OK;
}

status read_parquet(source_job *job) {
    static const char *const endings[] = {".parquet", ".parq", ".pq", NULL};
    parquet_job p = {.job = job, .n_workers = pool_n_threads(job->p), .table = {.job = job}};
    if (job->request->delimiter != NULL || job->request->header != NULL)
        return fail(ERR_USAGE, "--delimiter and --header are for csv; a Parquet file has neither");
    TRY(parts_find(&p.parts, job->inputs, job->n_inputs, endings));
    job_layout(job, &p.table.layout, ",", false);
    p.table.layout.bad = job->bad;
    arena_init(&p.table.names, 4096);
    status st = read_all(&p);
    for (int i = 0; p.workers != NULL && i < p.n_workers; i++)
        events_worker_destroy(p.workers[i]);
    MEM_FREE(p.workers, p.files, p.groups);
    arena_fini(&p.table.names);
    parts_fini(&p.parts);
    return st;
}
