#include "data/read/parquet_events.h"
#include "data/read/blocks.h"
#include "data/read/row_field.h"

/* Values of a Parquet column as what the builder stores: numbers of ids, times in ticks, actions.
 * A failure says what is wrong with the value; the caller knows its place. */
typedef struct converter {
    const csv_layout *layout; /* kinds of ids and actions, and the times of untyped columns */
    builder_sink *sink;
    const parquet_column *column;
    event_role role;
    time_plan times;      /* of this column */
    int64_t units_a_date; /* seconds of a day for dates, else 1 */
    int time_digits;      /* after the second, as the times so far need them */
} converter;

/* Whole numbers up to here are exact in floating point. */
static const double max_exact = 9007199254740992.0;

static status number_text(const converter *c, const char *text, size_t n, int64_t *out) {
    uint32_t number = 0;
    status st = c->role == EVENT_USER ? sink_user_text(c->sink, text, n, &number)
                                      : sink_item_text(c->sink, text, n, &number);
    *out = number;
    return st;
}

static bool is_text_id(const converter *c) {
    return c->role == EVENT_USER ? c->layout->has_text_users : c->layout->has_text_items;
}

static status number_int(const converter *c, int64_t id, int64_t *out) {
    char text[24];
    uint32_t number = 0;
    if (c->column->meaning == MEANS_UNSIGNED && id < 0)
        return fail(ERR_FORMAT,
                    "%" PRIu64 " does not fit a signed 64-bit number; cast the ids to "
                    "strings",
                    (uint64_t)id);
    if (is_text_id(c)) {
        int n = snprintf(text, sizeof text, "%" PRId64, id);
        return number_text(c, text, (size_t)n, out);
    }
    TRY(c->role == EVENT_USER ? sink_user(c->sink, id, &number) : sink_item(c->sink, id, &number));
    *out = number;
    return OK;
}

static status number_double(const converter *c, double id, int64_t *out) {
    if (!(fabs(id) <= max_exact) || id != trunc(id))
        return fail(ERR_FORMAT, "%.17g is not a whole number that can be an id", id);
    return number_int(c, (int64_t)id, out);
}

/* Ids go to terminals and into JSON: they are text without NUL. */
static status check_id(const parquet_text *t) {
    char excerpt[64];
    if (t->n_bytes == 0) return fail(ERR_FORMAT, "it is empty");
    if (memchr(t->bytes, '\0', t->n_bytes) == NULL && utf8_is_valid(t->bytes, t->n_bytes))
        return OK;
    return fail(ERR_FORMAT, "'%s' is not UTF-8 text; cast the ids to strings or integers",
                escape_excerpt(excerpt, t->bytes, t->n_bytes));
}

/* "01234567-89ab-cdef-0123-456789abcdef" */
static size_t format_uuid(const char *bytes, char out[40]) {
    size_t used = 0;
    for (int i = 0; i < 16; i++) {
        bool has_dash = i == 4 || i == 6 || i == 8 || i == 10;
        used += (size_t)snprintf(out + used, 40 - used, "%s%02x", has_dash ? "-" : "",
                                 (unsigned char)bytes[i]);
    }
    return used;
}

status parquet_put_value(buf *out, const parquet_column *c, const parquet_data *from, size_t i) {
    char uuid[40];
    if (c->meaning == MEANS_UUID)
        return buf_append(out, uuid, format_uuid(from->texts[i].bytes, uuid));
    if (parquet_is_text(c)) return buf_append(out, from->texts[i].bytes, from->texts[i].n_bytes);
    if (c->type == PARQUET_FLOAT || c->type == PARQUET_DOUBLE) {
        double value = from->doubles[i];
        bool is_whole = fabs(value) <= max_exact && value == trunc(value);
        return buf_printf(out, "%.*g", is_whole ? 17 : c->type == PARQUET_FLOAT ? 7 : 15, value);
    }
    return c->meaning == MEANS_UNSIGNED ? buf_printf(out, "%" PRIu64, (uint64_t)from->ints[i])
                                        : buf_printf(out, "%" PRId64, from->ints[i]);
}

static status number_value(const converter *c, const parquet_text *t, int64_t *out) {
    char uuid[40];
    if (c->column->meaning == MEANS_UUID)
        return number_text(c, uuid, format_uuid(t->bytes, uuid), out);
    TRY(check_id(t));
    return number_text(c, t->bytes, t->n_bytes, out);
}

static int64_t floor_divide(int64_t a, int64_t b) {
    int64_t q = a / b;
    return q - (a % b < 0);
}

static void converter_init(converter *c, const csv_layout *layout, builder_sink *sink,
                           const parquet_column *of, event_role role) {
    parquet_meaning m = of->meaning;
    *c = (converter){.layout = layout,
                     .sink = sink,
                     .column = of,
                     .role = role,
                     .times = layout->times,
                     .units_a_date = m == MEANS_DATE ? 86400 : 1};
    if (m >= MEANS_DATE && m <= MEANS_NANOSECONDS)
        time_plan_set(&c->times, TIME_NUMBER,
                      m == MEANS_DATE ? UNIT_S : (time_unit)(m - MEANS_MILLISECONDS + UNIT_MS),
                      true);
}

/* The finest digit that a time needs decides the ticks of the file. */
static void keep_digits(converter *c, int64_t ns) {
    int digits = ns % 1000 != 0 ? 9 : ns % 1000000 != 0 ? 6 : ns % 1000000000 != 0 ? 3 : 0;
    if (digits > c->time_digits) c->time_digits = digits;
}

/* Anything but a number in the usual range goes the way of a csv's text, faults included. */
static status time_from_text(converter *c, const char *text, size_t n, int64_t *out) {
    time_fault fault = time_parse(&c->times, text, n, out, &c->time_digits);
    return fault == TIME_FINE ? OK : time_fail(&c->times, fault, text, n);
}

/* A timestamp without a zone as one of UTC. */
static int64_t utc_of(const converter *c, int64_t ns) {
    int64_t seconds = floor_divide(ns, 1000000000);
    return ns + (time_zone_seconds(c->layout->times.zone, seconds) - seconds) * 1000000000;
}

static inline status time_from_int(converter *c, int64_t from, int64_t *out) {
    const time_plan *t = &c->times;
    int64_t value;
    bool is_huge = __builtin_mul_overflow(from, c->units_a_date, &value);
    if (is_huge || value < t->low || value > t->high) {
        char text[24];
        int k = snprintf(text, sizeof text, "%" PRId64, is_huge ? from : value);
        return time_from_text(c, text, (size_t)k, out);
    }
    *out = value * t->ns_per_unit;
    if (c->column->is_local) *out = utc_of(c, *out);
    if (t->unit != UNIT_S && c->time_digits < 9) keep_digits(c, *out);
    return OK;
}

/* Today's seconds are exact to a quarter of a microsecond in floating point: what is finer is
 * noise. */
static status time_from_double(converter *c, double from, int64_t *out) {
    const time_plan *t = &c->times;
    if (!(from >= (double)t->low && from <= (double)t->high)) {
        char text[40];
        int k = snprintf(text, sizeof text, "%.17g", from);
        return time_from_text(c, text, (size_t)k, out);
    }
    *out =
        t->unit == UNIT_NS ? (int64_t)from : llround(from * ((double)t->ns_per_unit / 1000)) * 1000;
    keep_digits(c, *out);
    return OK;
}

static status action_from_text(const converter *c, const char *text, size_t n, int64_t *out) {
    /* row_set reads the field and does not change it. */
    const csv_field field = {(char *)(uintptr_t)text, n};
    csv_row row = {0};
    field_fault fault = row_set(c->layout, ROLE_ACTION, &field, &row);
    *out = row.action;
    return fault == FIELD_FINE ? OK : row_fail(c->layout, ROLE_ACTION, fault, &field);
}

/* Halves are exact in floating point; what is not a multiple of them is no action of any kind. */
static inline status action_from_number(const converter *c, double value, int64_t *out) {
    char text[40];
    uint16_t action = 0;
    double halves = 2 * value;
    if (isnan(value)) {
        *out = ACTION_UNKNOWN;
        return OK;
    }
    bool is_half = fabs(halves) <= 4 * UINT16_MAX && halves == trunc(halves);
    int64_t whole = is_half ? floor_divide((int64_t)halves, 2) : 0;
    if (c->layout->map == NULL && is_half &&
        action_store(c->layout->actions, whole, (int64_t)halves != 2 * whole, &action)) {
        *out = action;
        return OK;
    }
    int n = snprintf(text, sizeof text, "%.17g", value);
    return action_from_text(c, text, (size_t)n, out);
}

static status convert_text(converter *c, const parquet_text *t, int64_t *out) {
    return c->role == EVENT_TIME     ? time_from_text(c, t->bytes, t->n_bytes, out)
           : c->role == EVENT_ACTION ? action_from_text(c, t->bytes, t->n_bytes, out)
                                     : number_value(c, t, out);
}

static inline status convert_double(converter *c, double value, int64_t *out) {
    return c->role == EVENT_TIME     ? time_from_double(c, value, out)
           : c->role == EVENT_ACTION ? action_from_number(c, value, out)
                                     : number_double(c, value, out);
}

static inline status convert_int(converter *c, int64_t value, int64_t *out) {
    return c->role == EVENT_TIME     ? time_from_int(c, value, out)
           : c->role == EVENT_ACTION ? action_from_number(c, (double)value, out)
                                     : number_int(c, value, out);
}

/* Converts values from[first .. first + n) to the start of `to`; *n_done of them before a failure.
 * Many sources list a user's events together: the dictionary is asked when the id changes. */
static status convert_values(converter *c, const parquet_data *from, size_t first, size_t n,
                             int64_t *to, size_t *n_done) {
    parquet_type type = c->column->type;
    bool is_double = type == PARQUET_FLOAT || type == PARQUET_DOUBLE;
    const int64_t *ints = is_double || parquet_is_text(c->column) ? NULL : from->ints + first;
    bool is_id = c->role == EVENT_USER || c->role == EVENT_ITEM;
    status st = OK;
    size_t i = 0;
    for (; i < n && st == OK; i++)
        if (ints == NULL)
            st = is_double ? convert_double(c, from->doubles[first + i], &to[i])
                           : convert_text(c, &from->texts[first + i], &to[i]);
        else if (is_id && i > 0 && ints[i] == ints[i - 1])
            to[i] = to[i - 1];
        else
            st = convert_int(c, ints[i], &to[i]);
    *n_done = st == OK ? i : i - 1;
    return st;
}

/* Large enough for huge pages. */
enum { BLOCK_EVENTS = 1 << 18 };
#define UNKNOWN INT64_MIN /* neither a time nor a number */

/* One column of the row group in hand.  Entry 0 of the values is the last one of the batch before:
 * a row may go on where its lists are longer than a batch. */
typedef struct event_column {
    converter convert;
    parquet_reader reader;
    uint64_t n_rows;      /* begun so far, for messages */
    int64_t *value;       /* (PARQUET_BATCH + 1) */
    int64_t *some;        /* (PARQUET_BATCH): values before nulls are put between them */
    uint8_t *begins_row;  /* (PARQUET_BATCH), of a list column */
    uint8_t *has_element; /* (PARQUET_BATCH), of a list column */
    uint8_t *is_bad;      /* (PARQUET_BATCH + 1): the value is to be skipped, with its events */
    int64_t *map;         /* (dictionary.n): converted values of the dictionary, or UNKNOWN */
    size_t map_capacity;
    bool is_map_ready;
} event_column;

struct events_worker {
    const csv_layout *layout;
    builder_sink *sink;
    event_column column[N_EVENT_ROLES]; /* by role */
    const events_file *file;
    const events_group *group;
    parquet_file open; /* the file of the row group in hand */
    uint64_t sequence; /* of the next block */
    uint64_t block_left;
    uint64_t n_left; /* entries of the row group that are not in a block yet */
    bool has_bad;    /* values of the row group were bad, and is_bad is not all zero */
    uint64_t n_bad, first_sequence;
};

static status init_column(event_column *c) {
    TRY(parquet_reader_init(&c->reader));
    TRY(MEM_NEW(&c->value, PARQUET_BATCH + 1));
    TRY(MEM_NEW(&c->some, PARQUET_BATCH));
    TRY(MEM_NEW_RAW(&c->begins_row, PARQUET_BATCH));
    TRY(MEM_NEW(&c->is_bad, PARQUET_BATCH + 1));
    return MEM_NEW_RAW(&c->has_element, PARQUET_BATCH);
}

static void fini_column(event_column *c) {
    MEM_FREE(c->value, c->some, c->begins_row, c->has_element, c->is_bad, c->map);
    parquet_reader_fini(&c->reader);
}

status events_worker_create(events_worker **out, builder_sink *sink, const csv_layout *layout) {
    TRY(MEM_NEW(out, 1));
    events_worker *w = *out;
    w->layout = layout;
    w->sink = sink;
    w->open.fd = -1;
    status st = OK;
    for (int i = 0; st == OK && i < N_EVENT_ROLES; i++)
        st = init_column(&w->column[i]);
    if (st == OK) return OK;
    events_worker_destroy(w);
    *out = NULL;
    return st;
}

void events_worker_destroy(events_worker *w) {
    if (w == NULL) return;
    for (int i = 0; i < N_EVENT_ROLES; i++)
        fini_column(&w->column[i]);
    parquet_file_close(&w->open);
    mem_free(w);
}

void events_worker_limit(events_worker *w, size_t max_page_bytes) {
    for (int i = 0; i < N_EVENT_ROLES; i++)
        w->column[i].reader.source.max_page_bytes = max_page_bytes;
}

status events_check_role(const parquet_column *c, event_role role) {
    static const char *const names[] = {"the user", "the item", "the time", "the action"};
    bool is_time = c->meaning >= MEANS_DATE && c->meaning <= MEANS_NANOSECONDS;
    bool is_wrong = role == EVENT_TIME     ? c->type == PARQUET_BOOLEAN || c->type == PARQUET_FIXED
                    : role == EVENT_ACTION ? is_time || c->type == PARQUET_FIXED
                                           : is_time || c->type == PARQUET_BOOLEAN;
    if (!is_wrong) return OK;
    return fail(ERR_UNSUPPORTED, "column '%s' (%s%s) cannot be %s", c->name,
                is_time ? "a time as " : "", parquet_type_name(c->type), names[role]);
}

/* A failure in a row (from 1) of the file. */
static status fail_row(const events_worker *w, status st, uint64_t row) {
    return fail_prefix(st, "%s: row %llu", w->file->path,
                       (unsigned long long)(w->group->first_row + row + 1));
}

/* Rows begun by the first n entries of a batch. */
static uint64_t count_rows(const parquet_batch *b, size_t n) {
    uint64_t rows = 0;
    if (b->repeat == NULL) return n;
    for (size_t i = 0; i < n; i++)
        rows += b->repeat[i] == 0;
    return rows;
}

/* The entry of a batch that holds its value-th value. */
static size_t entry_of(const event_column *c, const parquet_batch *b, size_t value) {
    size_t i = 0;
    if (b->define == NULL) return value;
    for (size_t n = 0; i < b->n; i++)
        if (b->define[i] == c->convert.column->max_define && n++ == value) break;
    return i;
}

/* Whether another column has made the events of this place bad already. */
static bool is_bad_place(const events_worker *w, size_t place) {
    for (int role = 0; role < N_EVENT_ROLES; role++)
        if (w->column[role].is_bad[place]) return true;
    return false;
}

/* A value that cannot be read: an error, or with --skip-bad a row that is kept apart. */
static status bad_value(events_worker *w, event_column *c, const parquet_batch *b, status st,
                        size_t entry, size_t place) {
    bool is_counted = is_bad_place(w, place);
    if (st == ERR_NOMEM) return st;
    /* The message of an action has the name of its column. */
    if (c->convert.role != EVENT_ACTION) st = fail_prefix(st, "%s", c->convert.column->name);
    st = fail_row(w, st, c->n_rows + count_rows(b, entry + 1) - 1);
    if (w->layout->bad == NULL) return st;
    c->is_bad[place] = 1;
    w->has_bad = true;
    return is_counted ? OK : bad_lines_add(w->layout->bad, w->first_sequence, w->n_bad++);
}

static status prepare_map(event_column *c) {
    size_t n = c->reader.dictionary.n;
    if (c->is_map_ready) return OK;
    TRY(MEM_RESERVE(&c->map, &c->map_capacity, n));
    for (size_t i = 0; i < n; i++)
        c->map[i] = UNKNOWN;
    c->is_map_ready = true;
    return OK;
}

/* Values from `first` on, by their place in the dictionary; an entry of it is converted at its
 * first use, since one that no row uses may be anything. */
static status look_up(event_column *c, const parquet_batch *b, size_t first, int64_t *to,
                      size_t *n_done) {
    TRY(prepare_map(c));
    for (size_t i = first;;) {
        for (; i < b->n_values; i++)
            if ((to[i] = c->map[b->index[i]]) == UNKNOWN) break;
        *n_done = i - first;
        if (i == b->n_values) return OK;
        int64_t value; /* of a bad entry every use is bad */
        size_t n;
        TRY(convert_values(&c->convert, &c->reader.dictionary.data, b->index[i], 1, &value, &n));
        c->map[b->index[i]] = value;
    }
}

/* Converts all values of a batch; `place` is that of its first entry. */
static status convert_batch(events_worker *w, event_column *c, const parquet_batch *b, int64_t *to,
                            size_t place) {
    for (size_t i = 0; i < b->n_values;) {
        size_t n_done = 0;
        status st = b->index != NULL ? look_up(c, b, i, to, &n_done)
                                     : convert_values(&c->convert, &b->data, i, b->n_values - i,
                                                      to + i, &n_done);
        if (st == OK) return OK;
        i += n_done;
        size_t entry = entry_of(c, b, i);
        TRY(bad_value(w, c, b, st, entry, place + entry));
        to[i++] = 0;
    }
    return OK;
}

/* Puts values where their entries are; a null that is not the end of an empty list is an unknown
 * action, or an error. */
static status spread(events_worker *w, event_column *c, const parquet_batch *b, int64_t *to,
                     size_t place) {
    const parquet_column *of = c->convert.column;
    size_t next = 0;
    for (size_t i = 0; i < b->n; i++) {
        bool is_null = b->define[i] >= of->element_define && b->define[i] < of->max_define;
        bool is_unknown = is_null && c->convert.role == EVENT_ACTION;
        if (is_null && !is_unknown)
            TRY(bad_value(w, c, b, fail(ERR_FORMAT, "it is null"), i, place + i));
        to[i] = is_unknown ? ACTION_UNKNOWN : c->some[next < b->n_values ? next : 0];
        next += b->define[i] == of->max_define;
    }
    return OK;
}

static void note_lists(event_column *c, const parquet_batch *b, size_t at) {
    for (size_t i = 0; i < b->n; i++) {
        c->begins_row[at + i] = b->repeat[i] == 0;
        c->has_element[at + i] =
            b->define == NULL || b->define[i] >= c->convert.column->element_define;
    }
}

/* Reads and converts the next n entries of a column, from place `at` of its values on. */
static status fill(events_worker *w, event_column *c, size_t n, size_t at) {
    bool is_list = c->convert.column->max_repeat > 0;
    for (size_t done = 0; done < n;) {
        parquet_batch b;
        TRY(parquet_reader_next(&c->reader, n - done, &b));
        int64_t *to = c->value + at + done;
        TRY(convert_batch(w, c, &b, b.define == NULL ? to : c->some, at + done));
        if (b.define != NULL) TRY(spread(w, c, &b, to, at + done));
        if (is_list) note_lists(c, &b, done);
        c->n_rows += count_rows(&b, b.n);
        done += b.n;
    }
    return OK;
}

/* Forgets the bad rows of the batch before; place `at` is the first of the next one. */
static void clear_bad(events_worker *w, size_t at) {
    for (int role = 0; w->has_bad && role < N_EVENT_ROLES; role++)
        memset(w->column[role].is_bad + at, 0, PARQUET_BATCH + 1 - at);
}

static status begin_block(events_worker *w) {
    w->block_left = w->n_left < BLOCK_EVENTS ? w->n_left : BLOCK_EVENTS;
    return sink_begin_block(w->sink, w->sequence++, w->block_left);
}

/* Adds one event; a block that is full is closed, and the next one opened. */
static inline status add_event(events_worker *w, const size_t place[N_EVENT_ROLES]) {
    const event_column *c = w->column;
    if (w->has_bad)
        for (int role = 0; role < N_EVENT_ROLES; role++)
            if (c[role].is_bad[place[role]]) return OK;
    if (w->block_left == 0) {
        TRY(sink_end_block(w->sink));
        TRY(begin_block(w));
    }
    w->block_left--;
    return sink_add_numbered(w->sink, (uint32_t)c[EVENT_USER].value[place[EVENT_USER]],
                             (uint32_t)c[EVENT_ITEM].value[place[EVENT_ITEM]],
                             (uint16_t)c[EVENT_ACTION].value[place[EVENT_ACTION]],
                             c[EVENT_TIME].value[place[EVENT_TIME]]);
}

static event_column *column_at(events_worker *w, int i) {
    return &w->column[w->file->role[i]];
}

/* Adds the n rows of a batch without lists, in as many blocks as they need.  Roles without a column
 * have zeros. */
static status add_rows(events_worker *w, size_t n) {
    const event_column *c = w->column;
    for (size_t at = 0; at < n;) {
        if (w->block_left == 0) {
            TRY(sink_end_block(w->sink));
            TRY(begin_block(w));
        }
        size_t k = n - at < w->block_left ? n - at : (size_t)w->block_left;
        TRY(sink_add_columns(w->sink, k, c[EVENT_USER].value + at, c[EVENT_ITEM].value + at,
                             c[EVENT_ACTION].value + at, c[EVENT_TIME].value + at));
        w->block_left -= k;
        w->n_left -= k;
        at += k;
    }
    return OK;
}

/* The same where some of them are bad. */
static status add_good_rows(events_worker *w, size_t n) {
    size_t place[N_EVENT_ROLES];
    for (size_t k = 0; k < n; k++, w->n_left--) {
        for (int role = 0; role < N_EVENT_ROLES; role++)
            place[role] = k;
        TRY(add_event(w, place));
    }
    return OK;
}

/* Rows without lists: one event each. */
static status read_flat(events_worker *w) {
    for (uint64_t left = w->group->n_rows; left > 0;) {
        size_t n = left < PARQUET_BATCH ? (size_t)left : PARQUET_BATCH;
        clear_bad(w, 0);
        for (int i = 0; i < w->file->n_columns; i++)
            TRY(fill(w, column_at(w, i), n, 0));
        TRY(w->has_bad ? add_good_rows(w, n) : add_rows(w, n));
        left -= n;
    }
    return OK;
}

/* All lists of a row must have the same length. */
static status compare_lists(const events_worker *w, const event_column *lead,
                            const event_column *other, size_t n) {
    if (memcmp(lead->begins_row, other->begins_row, n) == 0 &&
        memcmp(lead->has_element, other->has_element, n) == 0)
        return OK;
    uint64_t row = lead->n_rows;
    for (size_t i = n; i-- > 0;)
        if (lead->begins_row[i]) row--;
    for (size_t i = 0; i < n && lead->begins_row[i] == other->begins_row[i] &&
                       lead->has_element[i] == other->has_element[i];
         i++)
        row += lead->begins_row[i];
    return fail_row(w,
                    fail(ERR_FORMAT, "the lists of %s and %s have different lengths",
                         lead->convert.column->name, other->convert.column->name),
                    row > 0 ? row - 1 : 0);
}

/* Reads n entries of all list columns, and the single values of the rows that begin there. */
static status fill_lists(events_worker *w, const event_column *lead, size_t n, size_t *n_rows) {
    *n_rows = 0;
    clear_bad(w, 1);
    for (int i = 0; i < w->file->n_columns; i++)
        if (column_at(w, i)->convert.column->max_repeat > 0) TRY(fill(w, column_at(w, i), n, 1));
    for (int i = 0; i < w->file->n_columns; i++)
        if (column_at(w, i)->convert.column->max_repeat > 0)
            TRY(compare_lists(w, lead, column_at(w, i), n));
    for (size_t i = 0; i < n; i++)
        *n_rows += lead->begins_row[i];
    if (lead->n_rows > w->group->n_rows || (lead->n_rows == *n_rows && !lead->begins_row[0]))
        return fail(
            ERR_FORMAT, "%s: column '%s': its lists do not fit the %llu rows of a row group",
            w->file->path, lead->convert.column->name, (unsigned long long)w->group->n_rows);
    for (int i = 0; i < w->file->n_columns; i++)
        if (column_at(w, i)->convert.column->max_repeat == 0)
            TRY(fill(w, column_at(w, i), *n_rows, 1));
    return OK;
}

static status add_lists(events_worker *w, const event_column *lead, size_t n) {
    size_t step[N_EVENT_ROLES] = {0}, place[N_EVENT_ROLES], row = 0;
    bool is_list[N_EVENT_ROLES] = {false};
    for (int i = 0; i < w->file->n_columns; i++) {
        step[w->file->role[i]] = 1;
        is_list[w->file->role[i]] = column_at(w, i)->convert.column->max_repeat > 0;
    }
    for (size_t k = 0; k < n; k++, w->n_left--) {
        row += lead->begins_row[k];
        if (!lead->has_element[k]) continue;
        for (int role = 0; role < N_EVENT_ROLES; role++)
            place[role] = step[role] * (is_list[role] ? k + 1 : row);
        TRY(add_event(w, place));
    }
    for (int role = 0; role < N_EVENT_ROLES; role++) {
        if (step[role] == 0 || is_list[role]) continue;
        w->column[role].value[0] = w->column[role].value[row];
        w->column[role].is_bad[0] = w->column[role].is_bad[row];
    }
    return OK;
}

/* Rows with lists: one event for each element. */
static status read_lists(events_worker *w, const event_column *lead, uint64_t n_entries) {
    for (uint64_t left = n_entries; left > 0;) {
        size_t n = left < PARQUET_BATCH ? (size_t)left : PARQUET_BATCH, n_rows;
        TRY(fill_lists(w, lead, n, &n_rows));
        TRY(add_lists(w, lead, n));
        left -= n;
    }
    if (lead->n_rows != w->group->n_rows)
        return fail(ERR_FORMAT, "%s: column '%s' has %llu rows in a row group of %llu",
                    w->file->path, lead->convert.column->name, (unsigned long long)lead->n_rows,
                    (unsigned long long)w->group->n_rows);
    return OK;
}

/* Starts the readers; *lead: the first column with lists, or NULL. */
static status open_columns(events_worker *w, event_column **lead, uint64_t *n_entries) {
    *lead = NULL;
    *n_entries = w->group->n_rows;
    for (int role = 0; role < N_EVENT_ROLES; role++)
        w->column[role].value[0] = 0;
    clear_bad(w, 0);
    w->has_bad = false;
    w->n_bad = 0;
    for (int i = 0; i < w->file->n_columns; i++) {
        event_column *c = column_at(w, i);
        const parquet_chunk *chunk = &w->group->chunk[i];
        converter_init(&c->convert, w->layout, w->sink, &w->file->column[i], w->file->role[i]);
        c->n_rows = 0;
        c->is_map_ready = false;
        TRY(parquet_reader_open(&c->reader, &w->open, &w->file->column[i], chunk));
        if (w->file->column[i].max_repeat == 0) continue;
        if (*lead != NULL && chunk->n_values != *n_entries)
            return fail(ERR_FORMAT, "%s: the lists of '%s' and '%s' have different lengths",
                        w->file->path, (*lead)->convert.column->name, w->file->column[i].name);
        if (*lead == NULL) *lead = c;
        *n_entries = chunk->n_values;
    }
    return OK;
}

status events_worker_read(events_worker *w, const events_file *file, const events_group *group,
                          uint64_t first_sequence) {
    event_column *lead;
    uint64_t n_entries;
    w->file = file;
    w->group = group;
    w->sequence = w->first_sequence = first_sequence;
    parquet_file_close(&w->open);
    w->open = (parquet_file){.path = file->path, .fd = open(file->path, O_RDONLY | O_CLOEXEC)};
    if (w->open.fd < 0) return fail_errno("%s cannot be opened", file->path);
    TRY(open_columns(w, &lead, &n_entries));
    w->n_left = n_entries;
    TRY(begin_block(w));
    TRY(lead == NULL ? read_flat(w) : read_lists(w, lead, n_entries));
    sink_keep_digits(w->sink, w->column[EVENT_TIME].convert.time_digits);
    TRY(sink_end_block(w->sink));
    parquet_file_close(&w->open);
    return w->layout->bad != NULL ? bad_lines_check(w->layout->bad) : OK;
}
