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

/* One event of a row, kept until the number of events of the block is known. */
typedef struct row_event {
    int64_t item, time;
    const char *item_text;
    size_t item_bytes;
    uint16_t action;
} row_event;

typedef struct row_user {
    csv_field id;
    int64_t number;
    size_t n_events;
} row_user;

typedef struct worker_scratch {
    csv_field *fields; /* (CSV_MAX_COLUMNS) */
    row_event *event;
    size_t n_events, event_capacity;
    row_user *user;
    size_t n_users, user_capacity;
    buf context; /* the user and the value of each feature, row by row, each ended by NUL */
} worker_scratch;

/* The contextual values of a block; kept until all blocks are read, then set in block order. */
typedef struct context_block {
    uint64_t sequence;
    buf text;
} context_block;

typedef struct seqs_reader {
    source_job *job;
    const char *file;
    csv_layout layout;
    int column[N_ROLES];      /* of each role; -1: none */
    bool has_raw_ratings;     /* ratings of the source, not actions */
    int context[CONTEXT_MAX]; /* columns of the contextual features */
    int feature[CONTEXT_MAX]; /* their numbers in the builder */
    int n_context;
    worker_scratch *scratch; /* (threads) */
    pthread_mutex_t lock;    /* guards the two below */
    context_block *blocks;
    size_t n_blocks, block_capacity;
} seqs_reader;

static status read_id(const csv_field *f, int64_t *out) {
    char text[64];
    number_kind kind = number_read_id(f->text, f->n_bytes, out);
    if (kind == NUMBER_WHOLE) return OK;
    return fail(ERR_FORMAT, "'%s' %s; for string ids use --string-ids",
                escape_excerpt(text, f->text, f->n_bytes), number_fault(kind));
}

static status push_item(seqs_reader *r, worker_scratch *w, const csv_field *element) {
    row_event e = {.item_text = element->text, .item_bytes = element->n_bytes};
    if (!r->layout.has_text_items) TRY(read_id(element, &e.item));
    TRY(MEM_RESERVE(&w->event, &w->event_capacity, w->n_events + 1));
    w->event[w->n_events++] = e;
    return OK;
}

static status set_time(row_event *e, const csv_field *element) {
    char text[64];
    const time_plan integers = {.form = TIME_RAW};
    int digits = 0;
    if (time_parse(&integers, element->text, element->n_bytes, &e->time, &digits) == TIME_FINE)
        return OK;
    return fail(ERR_FORMAT, "'%s' is not a 64-bit integer",
                escape_excerpt(text, element->text, element->n_bytes));
}

static status set_action(const seqs_reader *r, row_event *e, const csv_field *element) {
    static const uint16_t largest[] = {0, 4, 9, 255, ACTION_UNKNOWN - 1};
    action_kind kind = r->layout.actions, read_as = r->has_raw_ratings ? kind : ACTION_CODE;
    char text[64];
    if (action_is_missing(element->text, element->n_bytes)) {
        e->action = ACTION_UNKNOWN;
        return OK;
    }
    if (action_parse(read_as, element->text, element->n_bytes, &e->action) &&
        e->action <= largest[kind])
        return OK;
    escape_excerpt(text, element->text, element->n_bytes);
    if (r->has_raw_ratings) return fail(ERR_FORMAT, "'%s' is not %s", text, action_scale(kind));
    return fail(ERR_FORMAT, "'%s' is not an action from 0 to %d", text, largest[kind]);
}

/* Reads one list of a row: the item list makes the events, the other lists fill them in. */
static status read_list(seqs_reader *r, worker_scratch *w, csv_role role, size_t first) {
    list_reader list;
    csv_field element;
    bool has_element;
    size_t n = 0;
    TRY(list_begin(&list, &w->fields[r->column[role]]));
    for (;; n++) {
        TRY(list_next(&list, &element, &has_element));
        if (!has_element) break;
        if (role == ROLE_ITEM) {
            TRY(push_item(r, w, &element));
        } else if (first + n < w->n_events) {
            row_event *e = &w->event[first + n];
            TRY(role == ROLE_TIME ? set_time(e, &element) : set_action(r, e, &element));
        }
    }
    if (role != ROLE_ITEM && n != w->n_events - first)
        return fail(ERR_FORMAT, "the list has %zu values, but %s has %zu", n,
                    r->layout.name[ROLE_ITEM], w->n_events - first);
    return OK;
}

/* No text has a NUL (blocks.h). */
static status append_text(buf *b, const csv_field *f) {
    TRY(buf_append(b, f->text, f->n_bytes));
    return buf_append(b, "", 1);
}

static status read_user(seqs_reader *r, worker_scratch *w, row_user *u) {
    u->id = w->fields[r->column[ROLE_USER]];
    if (u->id.n_bytes == 0) return fail(ERR_FORMAT, "it is empty");
    return r->layout.has_text_users ? OK : read_id(&u->id, &u->number);
}

static status read_fields(seqs_reader *r, worker_scratch *w) {
    static const csv_role lists[] = {ROLE_ITEM, ROLE_ACTION, ROLE_TIME};
    row_user u;
    size_t first = w->n_events;
    status st = read_user(r, w, &u);
    if (st != OK) return fail_prefix(st, "%s", r->layout.name[ROLE_USER]);
    for (int i = 0; i < 3; i++) {
        if (r->column[lists[i]] < 0) continue;
        st = read_list(r, w, lists[i], first);
        if (st != OK) return fail_prefix(st, "%s", r->layout.name[lists[i]]);
    }
    u.n_events = w->n_events - first;
    TRY(MEM_RESERVE(&w->user, &w->user_capacity, w->n_users + 1));
    w->user[w->n_users++] = u;
    if (r->n_context > 0) TRY(append_text(&w->context, &u.id));
    for (int i = 0; i < r->n_context; i++)
        TRY(append_text(&w->context, &w->fields[r->context[i]]));
    return OK;
}

static status read_row(seqs_reader *r, worker_scratch *w, char *line, size_t n_bytes) {
    int n;
    n_bytes = csv_without_end(line, n_bytes);
    if (n_bytes == 0) return OK;
    TRY(csv_split(&r->layout.format, line, n_bytes, w->fields, CSV_MAX_COLUMNS, &n));
    if (n != r->layout.n_columns)
        return fail(ERR_FORMAT, "the line has %d fields, but the header has %d; is it cut off?", n,
                    r->layout.n_columns);
    return read_fields(r, w);
}

static status keep_context(seqs_reader *r, worker_scratch *w, uint64_t sequence) {
    pthread_mutex_lock(&r->lock);
    status st = MEM_RESERVE(&r->blocks, &r->block_capacity, r->n_blocks + 1);
    if (st == OK) r->blocks[r->n_blocks++] = (context_block){sequence, w->context};
    pthread_mutex_unlock(&r->lock);
    if (st == OK) w->context = (buf){0};
    return st;
}

static status add_events(seqs_reader *r, const worker_scratch *w, builder_sink *sink) {
    const row_event *e = w->event;
    for (size_t i = 0; i < w->n_users; i++) {
        const row_user *u = &w->user[i];
        uint32_t user, item;
        if (u->n_events == 0) continue;
        TRY(r->layout.has_text_users ? sink_user_text(sink, u->id.text, u->id.n_bytes, &user)
                                     : sink_user(sink, u->number, &user));
        for (size_t k = 0; k < u->n_events; k++, e++) {
            TRY(r->layout.has_text_items ? sink_item_text(sink, e->item_text, e->item_bytes, &item)
                                         : sink_item(sink, e->item, &item));
            TRY(sink_add_numbered(sink, user, item, e->action, e->time));
        }
    }
    return OK;
}

static status parse_block(void *ctx, text_block *block, int worker) {
    seqs_reader *r = ctx;
    worker_scratch *w = &r->scratch[worker];
    builder_sink *sink = builder_get_sink(r->job->build, worker);
    char *at = block->text, *end = block->text + block->n_bytes;
    w->n_events = w->n_users = 0;
    for (uint64_t line = block->first_line; at < end; line++) {
        char *newline = memchr(at, '\n', (size_t)(end - at));
        status st = read_row(r, w, at, (size_t)(newline - at));
        if (st != OK) return fail_prefix(st, "%s:%llu", r->file, (unsigned long long)line);
        at = newline + 1;
    }
    TRY(sink_begin_block(sink, block->sequence, w->n_events));
    TRY(add_events(r, w, sink));
    TRY(sink_end_block(sink));
    return w->context.n_bytes > 0 ? keep_context(r, w, block->sequence) : OK;
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
    r->has_raw_ratings = strcmp(r->layout.name[ROLE_ACTION], "sequence_ratings") == 0;
    if (q->action_kind == NULL)
        job->options.actions = r->column[ROLE_ACTION] < 0 ? ACTION_NONE
                               : r->has_raw_ratings       ? ACTION_HALF_STARS
                                                          : ACTION_CODE;
    if (job->options.actions == ACTION_NONE) r->column[ROLE_ACTION] = -1;
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

static void free_reader(seqs_reader *r, int n_workers) {
    for (int i = 0; r->scratch != NULL && i < n_workers; i++) {
        MEM_FREE(r->scratch[i].fields, r->scratch[i].event, r->scratch[i].user);
        buf_fini(&r->scratch[i].context);
    }
    for (size_t i = 0; i < r->n_blocks; i++)
        buf_fini(&r->blocks[i].text);
    MEM_FREE(r->scratch, r->blocks);
    pthread_mutex_destroy(&r->lock);
}

static status read_rows(source_job *job, blocks *b, void *ctx) {
    seqs_reader *r = ctx;
    int n_workers = pool_n_threads(job->p);
    r->file = blocks_name(b);
    status st = read_header(r, b);
    if (st == OK) st = MEM_NEW(&r->scratch, (size_t)n_workers);
    for (int i = 0; st == OK && i < n_workers; i++)
        st = MEM_NEW(&r->scratch[i].fields, CSV_MAX_COLUMNS);
    if (st == OK) st = blocks_run(b, job->p, parse_block, r);
    return st == OK ? tell_all_context(r) : st;
}

status read_processed_seqs(source_job *job) {
    seqs_reader r = {.job = job};
    char delimiter[3];
    const char *wanted = job->request->delimiter;
    TRY(csv_delimiter_parse(wanted != NULL ? wanted : ",", delimiter));
    if (job->request->header != NULL && strcmp(job->request->header, "no") == 0)
        return fail(ERR_USAGE, "processed-seqs files have a header; --header no cannot be");
    job_layout(job, &r.layout, delimiter, true);
    pthread_mutex_init(&r.lock, NULL);
    status st = job_with_only_file(job, ROW_MAX_BYTES, read_rows, &r);
    free_reader(&r, pool_n_threads(job->p));
    return st;
}
