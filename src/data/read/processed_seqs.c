/* processed-seqs: a csv with one user per row and lists, as the reference preprocessors write it.
 *
 * processed_seqs.csv has user_id, movie_id or video_id, rating or action_weights, unix_timestamp or
 * time_ms, all but the first JSON lists; its ratings are stored actions, from 0. sasrec_format.csv
 * has user_id, sequence_item_ids, sequence_ratings and sequence_timestamps, bare lists; its ratings
 * are those of the source.  Other columns with a single value are contextual features; other lists
 * are skipped.  Events are sorted by time again: a file may come from a preprocessor that sorted by
 * something else. */
#include "data/read/csv.h"
#include "data/read/row_field.h"
#include "data/read/source_job.h"

enum { ROW_MAX_BYTES = 64 << 20 };

/* The contextual values of a block: the user and the value of each feature, row by row, each ended
 * by NUL, as no text has one (blocks.h).  Kept until all blocks are read, then set in block order.
 */
typedef struct context_block {
    uint64_t sequence;
    buf text;
} context_block;

typedef struct seqs_reader {
    source_job *job;
    const char *file;
    csv_layout layout;
    int column[N_ROLES];      /* of each role; -1: none */
    int context[CONTEXT_MAX]; /* columns of the contextual features */
    int feature[CONTEXT_MAX]; /* their numbers in the builder */
    int n_context;
    pthread_mutex_t lock; /* guards the rest */
    context_block *blocks;
    size_t n_blocks, block_capacity;
} seqs_reader;

static status set_field(const csv_layout *t, csv_role role, const csv_field *field, csv_row *row) {
    field_fault fault = row_set(t, role, field, row);
    return fault == FIELD_FINE ? OK : row_fail(t, role, fault, field);
}

static size_t count_left(list_reader *r) {
    csv_field element;
    bool has_element = true;
    size_t n = 0;
    while (list_next(r, &element, &has_element) == OK && has_element)
        n++;
    return n;
}

/* The next element of each list is an event; *has_event: there was one. */
static status read_event(const seqs_reader *r, list_reader lists[N_ROLES], size_t n_before,
                         csv_row *row, bool *has_event) {
    static const csv_role roles[] = {ROLE_ITEM, ROLE_ACTION, ROLE_TIME};
    for (int i = 0; i < 3; i++) {
        csv_field element;
        bool has_element;
        csv_role role = roles[i];
        const char *name = r->layout.name[role];
        if (r->column[role] < 0) continue;
        status st = list_next(&lists[role], &element, &has_element);
        if (st != OK) return fail_prefix(st, "%s", name);
        if (role == ROLE_ITEM) *has_event = has_element;
        if (has_element != *has_event)
            return fail(ERR_FORMAT, "%s: the list has %zu values, but %s has %zu", name,
                        n_before + has_element + count_left(&lists[role]),
                        r->layout.name[ROLE_ITEM],
                        n_before + *has_event + count_left(&lists[ROLE_ITEM]));
        if (has_element) TRY(set_field(&r->layout, role, &element, row));
    }
    return OK;
}

static status keep_fields(const seqs_reader *r, const csv_field *fields, buf *context) {
    for (int i = -1; r->n_context > 0 && i < r->n_context; i++) {
        const csv_field *f = &fields[i < 0 ? r->column[ROLE_USER] : r->context[i]];
        TRY(buf_append(context, f->text, f->n_bytes));
        TRY(buf_append(context, "", 1));
    }
    return OK;
}

static status read_row(const seqs_reader *r, char *line, size_t n_bytes, buf *context,
                       csv_row_fn fn, void *ctx) {
    csv_field fields[CSV_MAX_COLUMNS];
    list_reader lists[N_ROLES];
    csv_row row = {0};
    bool has_event = true;
    int n;
    n_bytes = csv_without_end(line, n_bytes);
    if (n_bytes == 0) return OK;
    TRY(csv_split(&r->layout.format, line, n_bytes, fields, CSV_MAX_COLUMNS, &n));
    if (n != r->layout.n_columns)
        return fail(ERR_FORMAT, "the line has %d fields, but the header has %d; is it cut off?", n,
                    r->layout.n_columns);
    TRY(set_field(&r->layout, ROLE_USER, &fields[r->column[ROLE_USER]], &row));
    for (int role = ROLE_ITEM; role <= ROLE_ACTION; role++) {
        if (r->column[role] < 0) continue;
        status st = list_begin(&lists[role], &fields[r->column[role]]);
        if (st != OK) return fail_prefix(st, "%s", r->layout.name[role]);
    }
    for (size_t n_events = 0; has_event; n_events++) {
        TRY(read_event(r, lists, n_events, &row, &has_event));
        if (has_event) TRY(fn(ctx, &row));
    }
    return keep_fields(r, fields, context);
}

static status keep_context(seqs_reader *r, buf *context, uint64_t sequence) {
    pthread_mutex_lock(&r->lock);
    status st = MEM_RESERVE(&r->blocks, &r->block_capacity, r->n_blocks + 1);
    if (st == OK) r->blocks[r->n_blocks++] = (context_block){sequence, *context};
    pthread_mutex_unlock(&r->lock);
    if (st == OK) *context = (buf){0};
    return st;
}

static status parse_block(const csv_layout *t, const char *file, text_block *block, csv_row_fn fn,
                          void *ctx) {
    seqs_reader *r = t->seqs;
    char *at = block->text, *end = block->text + block->n_bytes;
    buf context = {0};
    status st = OK;
    for (uint64_t line = block->first_line; st == OK && at < end; line++) {
        char *newline = memchr(at, '\n', (size_t)(end - at));
        st = read_row(r, at, (size_t)(newline - at), &context, fn, ctx);
        if (st != OK) st = fail_prefix(st, "%s:%llu", file, (unsigned long long)line);
        at = newline + 1;
    }
    if (st == OK && context.n_bytes > 0) st = keep_context(r, &context, block->sequence);
    buf_fini(&context);
    return st;
}

static int compare_blocks(const void *a, const void *b) {
    uint64_t x = ((const context_block *)a)->sequence, y = ((const context_block *)b)->sequence;
    return (x > y) - (x < y);
}

static status tell_context(seqs_reader *r, const buf *b) {
    for (const char *at = b->data, *end = at + b->n_bytes; at < end;) {
        const char *user = at;
        at += strlen(at) + 1;
        for (int i = 0; i < r->n_context; i++, at += strlen(at) + 1)
            if (*at != '\0')
                TRY(builder_set_context(r->job->build, r->feature[i], user, strlen(user), at,
                                        strlen(at)));
    }
    return OK;
}

static const char *const user_names[] = {"user_id", "userId", NULL};
static const char *const item_names[] = {"movie_id", "video_id", "item_id", "sequence_item_ids",
                                         NULL};
static const char *const action_names[] = {"rating", "action_weights", "sequence_ratings", NULL};
static const char *const time_names[] = {"unix_timestamp", "time_ms", "sequence_timestamps",
                                         "timestamp", NULL};

static bool field_is(const csv_field *f, const char *text) {
    return strlen(text) == f->n_bytes && memcmp(f->text, text, f->n_bytes) == 0;
}

/* The column of a role: the given one, else the first with a common name, else `otherwise`. */
static int find_column(const csv_field *fields, int n, const char *given, const char *const *usual,
                       int otherwise) {
    for (int i = 0; given != NULL && i < n; i++)
        if (field_is(&fields[i], given)) return i;
    if (given != NULL) return -1;
    for (; *usual != NULL; usual++)
        for (int i = 0; i < n; i++)
            if (field_is(&fields[i], *usual)) return i;
    return otherwise;
}

static status need_column(const seqs_reader *r, csv_role role, const char *given, const char *usual,
                          const char *option) {
    if (r->column[role] >= 0) return OK;
    return fail(ERR_FORMAT, "%s:1: the header has no column '%s'; name it with %s", r->file,
                given != NULL ? given : usual, option);
}

static status find_columns(seqs_reader *r, const csv_field *fields) {
    const source_request *q = r->job->request;
    int n = r->layout.n_columns;
    bool has_time = q->time_col == NULL || strcmp(q->time_col, "none") != 0;
    r->column[ROLE_USER] = find_column(fields, n, q->user_col, user_names, -1);
    r->column[ROLE_ACTION] = find_column(fields, n, q->action_col, action_names, -1);
    r->column[ROLE_TIME] = has_time ? find_column(fields, n, q->time_col, time_names, -1) : -1;
    /* The item column may have any name; in our own files it follows the user column. */
    int next = r->column[ROLE_USER] + 1;
    bool is_free =
        next > 0 && next < n && next != r->column[ROLE_ACTION] && next != r->column[ROLE_TIME];
    r->column[ROLE_ITEM] = find_column(fields, n, q->item_col, item_names, is_free ? next : -1);
    TRY(need_column(r, ROLE_USER, q->user_col, "user_id", "--user-col"));
    TRY(need_column(r, ROLE_ITEM, q->item_col, "movie_id", "--item-col"));
    if (q->action_col != NULL) TRY(need_column(r, ROLE_ACTION, q->action_col, "", "--action-col"));
    if (has_time) TRY(need_column(r, ROLE_TIME, q->time_col, "unix_timestamp", "--time-col"));
    for (int role = ROLE_USER; role <= ROLE_ACTION; role++) {
        if (r->column[role] < 0) continue;
        const csv_field *f = &fields[r->column[role]];
        char text[64];
        snprintf(r->layout.name[role], CSV_NAME_BYTES, "%s",
                 escape_excerpt(text, f->text, f->n_bytes));
    }
    return OK;
}

/* What the names of the columns say about their content. */
static void set_kinds(seqs_reader *r) {
    source_job *job = r->job;
    const source_request *q = job->request;
    r->layout.has_stored_actions = strcmp(r->layout.name[ROLE_ACTION], "sequence_ratings") != 0;
    if (q->action_kind == NULL)
        job->options.actions = r->column[ROLE_ACTION] < 0     ? ACTION_NONE
                               : r->layout.has_stored_actions ? ACTION_CODE
                                                              : ACTION_HALF_STARS;
    if (job->options.actions == ACTION_NONE) r->column[ROLE_ACTION] = -1;
    r->layout.n_lists = 1 + (r->column[ROLE_ACTION] >= 0) + (r->column[ROLE_TIME] >= 0);
    if (q->time_unit == NULL && strcmp(r->layout.name[ROLE_TIME], "time_ms") == 0)
        job->options.time_per_second = 1000;
    r->layout.actions = job->options.actions;
    const char *item = r->layout.name[ROLE_ITEM];
    bool is_sasrec = strcmp(item, "sequence_item_ids") == 0;
    /* A file of NVIDIA's preprocessing, in which user_id is a contextual feature. */
    job->options.has_user_feature = strcmp(item, "movie_id") == 0 || strcmp(item, "video_id") == 0;
    snprintf(job->item_name, sizeof job->item_name, "%s", is_sasrec ? "movie_id" : item);
}

/* A column of single values: not a list, not a row number, not one of the four event columns. */
static bool is_context(const seqs_reader *r, const csv_field *name, const csv_field *value,
                       int at) {
    for (int role = ROLE_USER; role <= ROLE_ACTION; role++)
        if (r->column[role] == at) return false;
    if (name->n_bytes == 0 || name->n_bytes >= COLUMN_NAME_BYTES) return false;
    if (field_is(name, "index") || field_is(name, "Unnamed: 0")) return false;
    return memchr(value->text, '[', value->n_bytes) == NULL &&
           memchr(value->text, ',', value->n_bytes) == NULL;
}

static status add_features(seqs_reader *r, const csv_field *names, const csv_field *values) {
    for (int i = 0; i < r->layout.n_columns; i++) {
        char name[COLUMN_NAME_BYTES] = "";
        if (!is_context(r, &names[i], &values[i], i)) continue;
        if (r->n_context + r->job->options.has_user_feature == CONTEXT_MAX) {
            log_info("note: only the first %d contextual features are kept", CONTEXT_MAX);
            return OK;
        }
        memcpy(name, names[i].text, names[i].n_bytes);
        r->context[r->n_context] = i;
        TRY(builder_add_context(r->job->build, name, &r->feature[r->n_context]));
        r->n_context++;
    }
    return OK;
}

/* A copy of the next line, number `line_number`, and its fields; both are freed by the caller. */
static status split_copy(seqs_reader *r, blocks *b, int line_number, char **copy,
                         csv_field **fields, int *n, bool *has_line) {
    const char *line;
    size_t bytes;
    TRY(blocks_peek_line(b, &line, &bytes, has_line));
    TRY(MEM_NEW(copy, bytes + 1));
    TRY(MEM_NEW(fields, CSV_MAX_COLUMNS));
    memcpy(*copy, line, bytes);
    status st = csv_split(&r->layout.format, *copy, bytes, *fields, CSV_MAX_COLUMNS, n);
    if (st == OK && *n > CSV_MAX_COLUMNS)
        st = fail(ERR_FORMAT, "more than %d fields; is the delimiter right?", CSV_MAX_COLUMNS);
    return st == OK ? OK : fail_prefix(st, "%s:%d", r->file, line_number);
}

/* Reads the header, and looks at the first row to see which columns hold single values. */
static status read_header(seqs_reader *r, blocks *b) {
    char *header = NULL, *row = NULL;
    csv_field *names = NULL, *values = NULL;
    bool has_line = false;
    int n_values = 0;
    status st = split_copy(r, b, 1, &header, &names, &r->layout.n_columns, &has_line);
    if (st == OK && !has_line) st = fail(ERR_FORMAT, "%s: the file is empty", r->file);
    if (st == OK) st = find_columns(r, names);
    if (st == OK) st = blocks_skip_line(b);
    if (st == OK) {
        set_kinds(r);
        st = job_create_builder(r->job);
    }
    if (st == OK) st = split_copy(r, b, 2, &row, &values, &n_values, &has_line);
    if (st == OK && has_line && n_values == r->layout.n_columns)
        st = add_features(r, names, values);
    MEM_FREE(header, row, names, values);
    return st;
}

static status tell_all_context(seqs_reader *r) {
    if (r->n_blocks > 0) qsort(r->blocks, r->n_blocks, sizeof *r->blocks, compare_blocks);
    for (size_t i = 0; i < r->n_blocks; i++)
        TRY(tell_context(r, &r->blocks[i].text));
    return OK;
}

static status read_rows(source_job *job, blocks *b, void *ctx) {
    seqs_reader *r = ctx;
    r->file = blocks_name(b);
    TRY(read_header(r, b));
    TRY(job_read_blocks(job, b, &r->layout, parse_block));
    return tell_all_context(r);
}

status read_processed_seqs(source_job *job) {
    seqs_reader r = {.job = job};
    char delimiter[3];
    const char *wanted = job->request->delimiter;
    TRY(csv_delimiter_parse(wanted != NULL ? wanted : ",", delimiter));
    if (job->request->header != NULL && strcmp(job->request->header, "no") == 0)
        return fail(ERR_USAGE, "processed-seqs files have a header; --header no cannot be");
    job_layout(job, &r.layout, delimiter, true);
    r.layout.seqs = &r;
    pthread_mutex_init(&r.lock, NULL);
    status st = job_with_only_file(job, ROW_MAX_BYTES, read_rows, &r);
    for (size_t i = 0; i < r.n_blocks; i++)
        buf_fini(&r.blocks[i].text);
    mem_free(r.blocks);
    pthread_mutex_destroy(&r.lock);
    return st;
}
