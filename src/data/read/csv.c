/* Reading csv: the layout of a file, and the parser of its rows; lists inside a field. */
#include "data/read/csv.h"

#include "data/read/blocks.h"
#include "data/read/row_field.h"
#include "format/json.h"

static size_t delimiter_bytes(const csv_format *f) {
    return f->delimiter[1] != '\0' ? 2 : 1;
}

static bool delimiter_is_at(const csv_format *f, const char *at, const char *end) {
    size_t n = delimiter_bytes(f);
    return (size_t)(end - at) >= n && memcmp(at, f->delimiter, n) == 0;
}

/* Removes the quotes of a quoted field; `at` is the place after the opening quote.  Of each pair of
 * doubled quotes one is removed. */
static status split_quoted(const csv_format *f, char **at, char *end, csv_field *out) {
    char *from = *at, *to = *at;
    out->text = *at;
    for (bool is_doubled = true; is_doubled;) {
        char *quote = memchr(from, '"', (size_t)(end - from));
        if (quote == NULL) return fail(ERR_FORMAT, "a quoted field has no closing quote");
        is_doubled = quote + 1 < end && quote[1] == '"';
        size_t n = (size_t)(quote - from) + is_doubled;
        if (to != from) memmove(to, from, n);
        to += n;
        from = quote + 1 + is_doubled;
    }
    out->n_bytes = (size_t)(to - out->text);
    *at = from;
    if (*at < end && !delimiter_is_at(f, *at, end))
        return fail(ERR_FORMAT, "text follows the closing quote of a field");
    return OK;
}

/* Whether a field begins at `at`. */
static bool is_field_start(const csv_format *f, const char *text, const char *at) {
    size_t n = delimiter_bytes(f);
    if (at == text || at[-1] == '\n') return true;
    return (size_t)(at - text) >= n && memcmp(at - n, f->delimiter, n) == 0;
}

const char *csv_skip_quoted(const csv_format *f, const char *text, const char *quote,
                            const char *end) {
    if (!is_field_start(f, text, quote)) return quote;
    for (const char *at = quote + 1;; at += 2) {
        at = memchr(at, '"', (size_t)(end - at));
        if (at == NULL) return NULL;
        if (at + 1 == end || at[1] != '"') return at;
    }
}

size_t csv_row_bytes(const csv_format *f, const char *text, size_t n) {
    const char *at = text, *end = text + n;
    for (;;) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        if (newline == NULL) return n;
        const char *quote = f->has_quotes ? memchr(at, '"', (size_t)(newline - at)) : NULL;
        const char *close = quote != NULL ? csv_skip_quoted(f, text, quote, end) : NULL;
        if (close == NULL) return (size_t)(newline - text) + 1;
        at = close + 1;
    }
}

status csv_split(const csv_format *f, char *line, size_t n_bytes, csv_field *fields, int max,
                 int *n) {
    char *at = line, *end = line + n_bytes;
    for (*n = 0; *n < max;) {
        csv_field *field = &fields[(*n)++];
        if (f->has_quotes && at < end && *at == '"') {
            at++;
            TRY(split_quoted(f, &at, end, field));
        } else {
            field->text = at;
            while (at < end && !delimiter_is_at(f, at, end))
                at++;
            field->n_bytes = (size_t)(at - field->text);
        }
        if (at == end) return OK;
        at += delimiter_bytes(f);
    }
    *n = max + 1;
    return OK;
}

/* A column given as a number from 1; 0 if the text is not a number. */
static long column_number(const char *text) {
    char *end;
    if (text[0] < '1' || text[0] > '9') return 0;
    long number = strtol(text, &end, 10);
    return *end == '\0' ? number : 0;
}

static bool field_equals(const csv_field *f, const char *name, bool is_exact) {
    size_t n = strlen(name);
    return f->n_bytes == n &&
           (is_exact ? memcmp(f->text, name, n) : strncasecmp(f->text, name, n)) == 0;
}

/* The index of a column by name; -1 if there is none. */
static int find_name(const csv_field *fields, int n, const char *name) {
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < n; i++)
            if (field_equals(&fields[i], name, pass == 0)) return i;
    return -1;
}

/* Two columns have the same name: only the user knows which one is meant. */
static status check_once(const char *file, const csv_field *fields, int n, int at) {
    char text[64];
    for (int i = at + 1; i < n; i++)
        if (fields[i].n_bytes == fields[at].n_bytes &&
            memcmp(fields[i].text, fields[at].text, fields[at].n_bytes) == 0)
            return fail(ERR_FORMAT,
                        "%s:1: columns %d and %d are both called '%s'; give the number of "
                        "one",
                        file, at + 1, i + 1,
                        escape_excerpt(text, fields[at].text, fields[at].n_bytes));
    return OK;
}

static status find_column(const char *file, const csv_field *fields, int n, bool has_names,
                          const char *wanted, int *out) {
    long number = column_number(wanted);
    char names[512] = "", hint[80];
    *out = number > 0 ? (int)(number - 1) : has_names ? find_name(fields, n, wanted) : -1;
    if (number > n)
        return fail(ERR_FORMAT, "%s:1: there is no column %ld; the first row has %d fields", file,
                    number, n);
    if (*out >= 0 && number == 0) return check_once(file, fields, n, *out);
    if (*out >= 0) return OK;
    if (!has_names)
        return fail(ERR_USAGE,
                    "column '%s' is asked for by name, but %s has no header; give its number "
                    "(from 1), or --header yes",
                    wanted, file);
    for (int i = 0; i < n; i++)
        escape_list_add(names, sizeof names, fields[i].text, fields[i].n_bytes);
    return fail(ERR_FORMAT, "%s:1: there is no column '%s'%s; the header has %s%s", file, wanted,
                nearest_hint(hint, wanted, names), names,
                n == 1 ? " alone (is the delimiter another one?)" : "");
}

static status place_roles(csv_layout *t, const char *file, const csv_field *fields, bool has_names,
                          const csv_column *wanted, int n_wanted) {
    for (int i = 0; i < n_wanted; i++) {
        int at;
        TRY(find_column(file, fields, t->n_columns, has_names, wanted[i].column, &at));
        if (t->role[at] != ROLE_SKIP)
            return fail(ERR_USAGE, "%s: column '%s' is given two roles", file, wanted[i].column);
        t->role[at] = (uint8_t)wanted[i].role;
        if (at + 1 > t->n_needed) t->n_needed = at + 1;
        char *name = t->name[wanted[i].role], text[64];
        if (has_names)
            snprintf(name, CSV_NAME_BYTES, "%s",
                     escape_excerpt(text, fields[at].text, fields[at].n_bytes));
        else
            snprintf(name, CSV_NAME_BYTES, "column %d", at + 1);
    }
    return OK;
}

status csv_layout_resolve(csv_layout *t, const char *file, const char *first_line, size_t n_bytes,
                          bool has_names, const csv_column *wanted, int n_wanted) {
    csv_field *fields = NULL;
    char *line = NULL;
    if (n_bytes == 0)
        return fail(ERR_FORMAT, "%s:1: the first line is empty; the header or an event is expected",
                    file);
    t->n_columns = t->n_needed = 0;
    memset(t->role, ROLE_SKIP, sizeof t->role);
    memset(t->name, 0, sizeof t->name);
    status st = MEM_NEW(&fields, CSV_MAX_COLUMNS);
    if (st == OK) st = MEM_NEW(&line, n_bytes + 1);
    if (st == OK) {
        memcpy(line, first_line, n_bytes);
        st = csv_split(&t->format, line, n_bytes, fields, CSV_MAX_COLUMNS, &t->n_columns);
        if (st != OK) st = fail_prefix(st, "%s:1", file);
    }
    if (st == OK && t->n_columns > CSV_MAX_COLUMNS)
        st = fail(ERR_FORMAT, "%s:1: more than %d fields; is the delimiter right?", file,
                  CSV_MAX_COLUMNS);
    if (st == OK) st = place_roles(t, file, fields, has_names, wanted, n_wanted);
    MEM_FREE(line, fields);
    return st;
}

status csv_delimiter_parse(const char *text, char delimiter[3]) {
    static const char *const names[][2] = {{"tab", "\t"},   {"\\t", "\t"},      {"comma", ","},
                                           {"pipe", "|"},   {"semicolon", ";"}, {"space", " "},
                                           {"colons", "::"}};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(text, names[i][0]) == 0) text = names[i][1];
    size_t n = strlen(text);
    bool is_bad = n < 1 || n > 2 || strpbrk(text, "\"\r\n0123456789-.") != NULL;
    if (is_bad)
        return fail(
            ERR_USAGE,
            "--delimiter '%s': give one or two characters other than a digit, quote, '-' or "
            "'.', or tab, comma, pipe, semicolon, space, colons",
            text);
    memcpy(delimiter, text, n + 1);
    return OK;
}

/* What can be wrong with a row besides its fields. */
typedef enum {
    ROW_FINE = 0,
    ROW_BAD_FIELD,
    ROW_TOO_FEW,
    ROW_TOO_MANY,
    ROW_QUOTE_OPEN,
    ROW_QUOTE_TEXT
} row_fault;

/* One row being read.  The text ends with '\n', which bounds every scan; numbers are read eight
 * bytes at a time, up to the padding after the text. */
typedef struct row_reader {
    const csv_layout *t;
    char *at;
    char *end;              /* of the block */
    char d0, d1;            /* the delimiter; d1 = 0 if it is one character */
    bool has_digit_actions; /* no map: an action of one digit takes the fast path */
    int64_t time_low;       /* integers from here on, for time_span more, are times ... */
    uint64_t time_span;
    int64_t time_scale; /* ... once multiplied by this */
    int time_digits;    /* that the times on the slow path need */
    row_fault fault;
    field_fault field_fault; /* of ROW_BAD_FIELD */
    csv_role role;           /* of the field in hand */
    int n_fields;            /* seen so far, for "too few" */
    csv_field field;         /* the field that is wrong */
} row_reader;

static inline bool is_delimiter(const row_reader *r, const char *at) {
    return *at == r->d0 && (r->d1 == '\0' || at[1] == r->d1);
}

static inline bool is_line_end(const char *at) {
    return *at == '\n' || (*at == '\r' && at[1] == '\n');
}

static inline bool is_field_end(const row_reader *r, const char *at) {
    return is_delimiter(r, at) || is_line_end(at);
}

static char *fail_row_at(row_reader *r, row_fault fault) {
    r->fault = fault;
    return NULL;
}

/* Of each pair of doubled quotes one is removed.  The rest of the field becomes spaces, so that the
 * text has as many line breaks as before, and lines keep their numbers. */
static void undouble_quotes(csv_field *field) {
    char *to = field->text, *end = field->text + field->n_bytes;
    for (const char *from = to; from < end; from++) {
        *to++ = *from;
        from += *from == '"';
    }
    field->n_bytes = (size_t)(to - field->text);
    memset(to, ' ', (size_t)(end - to));
}

/* Skips a quoted field and removes its quotes in place.  Line breaks inside it are text, up to the
 * limit of a line (blocks.h).  Nothing is changed if the field does not end: the text must keep its
 * last line break. */
static bool take_quoted(row_reader *r, csv_field *out) {
    char *first = r->at + 1, *at = first, *end = r->end;
    bool has_doubled = false;
    if (end - first > BLOCKS_DEFAULT_LINE_BYTES) end = first + BLOCKS_DEFAULT_LINE_BYTES;
    while (at < end && (*at != '"' || at[1] == '"')) {
        bool is_doubled = *at == '"';
        has_doubled |= is_doubled;
        at += 1 + is_doubled;
    }
    if (at >= end) {
        r->fault = ROW_QUOTE_OPEN;
        return false;
    }
    *out = (csv_field){first, (size_t)(at - first)};
    if (has_doubled) undouble_quotes(out);
    r->at = at + 1;
    if (is_field_end(r, r->at)) return true;
    r->fault = ROW_QUOTE_TEXT;
    return false;
}

/* Skips a field of any kind. */
static bool take_field(row_reader *r, csv_field *out) {
    if (*r->at == '"' && r->t->format.has_quotes) return take_quoted(r, out);
    out->text = r->at;
    while (!is_field_end(r, r->at))
        r->at++;
    out->n_bytes = (size_t)(r->at - out->text);
    return true;
}

/* Eight bytes at once: how many of them, from the first on, are digits, and their value.  A byte is
 * a digit if its high half is 3 and stays 3 when 6 is added; carries only reach bytes after one
 * that is not a digit.  The digits are then moved to the top, with zeros in front, and joined in
 * pairs. */
static inline unsigned eight_digits(const char *at, uint64_t *value) {
    uint64_t word;
    memcpy(&word, at, sizeof word);
    const uint64_t high = 0xf0f0f0f0f0f0f0f0u, three = 0x3030303030303030u;
    uint64_t other = ((word & high) ^ three) | (((word + 0x0606060606060606u) & high) ^ three);
    unsigned n = other == 0 ? 8 : (unsigned)__builtin_ctzll(other) / 8;
    if (n == 0) return 0;
    word = (word << (64 - 8 * n)) & 0x0f0f0f0f0f0f0f0fu;
    word = (word * 2561 >> 8) & 0x00ff00ff00ff00ffu;
    word = (word * 6553601 >> 16) & 0x0000ffff0000ffffu;
    *value = word * 42949672960001u >> 32;
    return n;
}

/* Reads up to 18 digits; NULL: take the slow path. */
static inline char *fast_digits(char *at, int64_t *out) {
    static const uint32_t power[] = {1, 10, 100, 1000, 10000, 100000, 1000000, 10000000, 100000000};
    bool is_negative = *at == '-';
    at += is_negative;
    uint64_t value = 0, more = 0;
    unsigned n = eight_digits(at, &value);
    if (n == 0) return NULL;
    at += n;
    if (n == 8) {
        n = eight_digits(at, &more);
        value = value * power[n] + more;
        at += n;
        if (n == 8) { /* microseconds since 1970 have 16 digits */
            more = 0;
            n = eight_digits(at, &more);
            if (n > 2) return NULL;
            value = value * power[n] + more;
            at += n;
        }
    }
    *out = is_negative ? -(int64_t)value : (int64_t)value;
    return at;
}

/* A field on the slow path: quotes, spaces around numbers, texts, errors. */
static char *take_slow(row_reader *r, char *at, csv_row *row) {
    r->at = at;
    if (!take_field(r, &r->field)) return NULL;
    r->field_fault = row_set(r->t, r->role, &r->field, row);
    if (row->time_digits > r->time_digits) r->time_digits = row->time_digits;
    return r->field_fault == FIELD_FINE ? r->at : fail_row_at(r, ROW_BAD_FIELD);
}

/* The fast paths take the position in the text and return the position after the field, or NULL, so
 * that the position stays in a register; the slow path keeps it in the reader. */
static inline char *take_id(row_reader *r, char *at, int64_t *out, csv_row *row) {
    char *end = fast_digits(at, out);
    bool is_plain = at[*at == '-'] != '0' || end == at + 1; /* neither 01 nor -0 */
    return end != NULL && is_plain && is_field_end(r, end) ? end : take_slow(r, at, row);
}

static inline char *take_time(row_reader *r, char *at, csv_row *row) {
    int64_t value;
    char *end = fast_digits(at, &value);
    if (end == NULL || !is_field_end(r, end) ||
        (uint64_t)value - (uint64_t)r->time_low > r->time_span)
        return take_slow(r, at, row);
    row->time = value * r->time_scale;
    return end;
}

/* Ratings are one digit, or a digit and ".0" or ".5", nearly always. */
static inline char *take_action(row_reader *r, char *at, csv_row *row) {
    unsigned value = (unsigned)(unsigned char)at[0] - '0';
    bool has_point = value <= 9 && at[1] == '.' && (at[2] == '0' || at[2] == '5');
    int n = has_point ? 3 : 1, half = has_point && at[2] == '5';
    if (value <= 9 && r->has_digit_actions && is_field_end(r, at + n) &&
        action_store(r->t->actions, value, half, &row->action))
        return at + n;
    return take_slow(r, at, row);
}

static inline char *take_bit(row_reader *r, char *at, csv_row *row) {
    int value = *at - '0';
    if ((value != 0 && value != 1) || !is_field_end(r, at + 1)) return take_slow(r, at, row);
    row->action = (uint16_t)(row->action | value << ((int)r->role - ROLE_BIT0));
    return at + 1;
}

static char *skip_field(row_reader *r, char *at) {
    csv_field field;
    r->at = at;
    return take_field(r, &field) ? r->at : NULL;
}

static inline char *take_role(row_reader *r, char *at, csv_row *row) {
    const csv_layout *t = r->t;
    switch (r->role) {
    case ROLE_SKIP:
        return skip_field(r, at);
    case ROLE_USER:
        return t->has_text_users ? take_slow(r, at, row) : take_id(r, at, &row->user, row);
    case ROLE_ITEM:
        return t->has_text_items ? take_slow(r, at, row) : take_id(r, at, &row->item, row);
    case ROLE_TIME:
        return take_time(r, at, row);
    case ROLE_ACTION:
        return take_action(r, at, row);
    default:
        return take_bit(r, at, row);
    }
}

/* Skips the fields that nobody needs; only those with quotes are looked at, as they may hold line
 * breaks.  The start of the next row, or NULL with r->fault set. */
static char *skip_rest(row_reader *r, char *at) {
    char *newline = memchr(at, '\n', (size_t)(r->end - at));
    if (!r->t->format.has_quotes || memchr(at, '"', (size_t)(newline - at)) == NULL)
        return newline + 1;
    for (;;) {
        at = skip_field(r, at);
        if (at == NULL) return NULL;
        if (is_line_end(at)) return *at == '\r' ? at + 2 : at + 1;
        at += r->d1 != '\0' ? 2 : 1;
    }
}

/* Reads the needed fields of a row; returns the start of the next row, or NULL with r->fault set.
 */
static inline char *take_row(row_reader *r, char *at, csv_row *row) {
    const csv_layout *t = r->t;
    int n_needed = t->n_needed, width = r->d1 != '\0' ? 2 : 1;
    for (int i = 0;;) {
        r->role = (csv_role)t->role[i];
        at = take_role(r, at, row);
        if (at == NULL) return NULL;
        if (++i == n_needed) break;
        if (is_line_end(at)) {
            r->n_fields = i;
            return fail_row_at(r, ROW_TOO_FEW);
        }
        at += width;
    }
    if (*at == '\r' && at[1] == '\n') at++;
    if (*at != '\n' && n_needed == t->n_columns) return fail_row_at(r, ROW_TOO_MANY);
    return *at == '\n' ? at + 1 : skip_rest(r, at + width);
}

static status fail_row(const row_reader *r) {
    switch (r->fault) {
    case ROW_TOO_FEW:
        return fail(ERR_FORMAT,
                    "the line has %d fields, but %d are needed; is it cut off, or is the "
                    "delimiter another one?",
                    r->n_fields, r->t->n_needed);
    case ROW_TOO_MANY:
        return fail(ERR_FORMAT, "the line has more than %d fields", r->t->n_columns);
    case ROW_QUOTE_OPEN:
        return fail(ERR_FORMAT, "a quoted field has no closing quote");
    case ROW_QUOTE_TEXT:
        return fail(ERR_FORMAT, "text follows the closing quote of a field");
    default:
        return row_fail(r->t, r->role, r->field_fault, &r->field);
    }
}

/* Fails with file and line, or keeps the row as a bad one, number `order` of the block. */
static status refuse_row(const row_reader *r, const char *file, const text_block *block,
                         const char *row, uint64_t order) {
    uint64_t line = block->first_line + count_newlines(block->text, (size_t)(row - block->text));
    status st = fail_prefix(fail_row(r), "%s:%llu", file, (unsigned long long)line);
    return r->t->bad == NULL ? st : bad_lines_add(r->t->bad, block->sequence, order);
}

status csv_parse_block(const csv_layout *t, const char *file, text_block *block, csv_row_fn fn,
                       void *ctx) {
    char *at = block->text, *end = block->text + block->n_bytes;
    row_reader r = {.t = t,
                    .end = end,
                    .d0 = t->format.delimiter[0],
                    .d1 = t->format.delimiter[1],
                    .has_digit_actions = t->map == NULL,
                    .time_low = t->times.low,
                    .time_span = (uint64_t)t->times.high - (uint64_t)t->times.low,
                    .time_scale = t->times.ns_per_unit};
    csv_row row = {0};
    uint64_t n_bad = 0;
    while (at < end) {
        if (is_line_end(at)) {
            at += *at == '\r' ? 2 : 1;
            continue;
        }
        char *next = take_row(&r, at, &row);
        if (next == NULL) {
            TRY(refuse_row(&r, file, block, at, ++n_bad));
            /* The next line, even if a quote is open: only the user knows where that one ends. */
            next = (char *)memchr(at, '\n', (size_t)(end - at)) + 1;
        } else {
            TRY(fn(ctx, &row));
        }
        row.action = 0; /* bits are added to it; every row sets the rest */
        at = next;
    }
    if (r.time_digits > block->time_digits) block->time_digits = r.time_digits;
    return OK;
}

static bool is_blank(char c) {
    return c == ' ' || c == '\t' || c == '\r';
}

static void trim(char **at, char **end) {
    while (*at < *end && is_blank(**at))
        ++*at;
    while (*at < *end && is_blank((*end)[-1]))
        --*end;
}

status list_begin(list_reader *r, const csv_field *field) {
    *r = (list_reader){.at = field->text, .end = field->text + field->n_bytes};
    trim(&r->at, &r->end);
    if (r->at < r->end && *r->at == '[') {
        if (r->end - r->at < 2 || r->end[-1] != ']')
            return fail(ERR_FORMAT, "the list has no closing bracket; is the line cut off?");
        r->at++;
        r->end--;
        trim(&r->at, &r->end);
    }
    r->has_more = r->at < r->end;
    return OK;
}

static status take_text(list_reader *r, csv_field *element) {
    char quote = *r->at++, *to = r->at;
    element->text = to;
    for (;;) {
        if (r->at == r->end) return fail(ERR_FORMAT, "a string in a list has no closing quote");
        char c = *r->at++;
        if (c == quote) break;
        if (c == '\\')
            TRY(json_escape_decode(&r->at, r->end, &to));
        else
            *to++ = c;
    }
    element->n_bytes = (size_t)(to - element->text);
    return OK;
}

static void take_plain(list_reader *r, csv_field *element) {
    char *start = r->at, *end = start;
    while (end < r->end && *end != ',')
        end++;
    r->at = end;
    trim(&start, &end);
    *element = (csv_field){start, (size_t)(end - start)};
}

status list_next(list_reader *r, csv_field *element, bool *has_element) {
    *has_element = r->has_more;
    if (!r->has_more) return OK;
    while (r->at < r->end && is_blank(*r->at))
        r->at++;
    if (r->at < r->end && (*r->at == '"' || *r->at == '\''))
        TRY(take_text(r, element));
    else
        take_plain(r, element);
    if (element->n_bytes == 0) return fail(ERR_FORMAT, "a list has an empty element");
    while (r->at < r->end && is_blank(*r->at))
        r->at++;
    r->has_more = r->at < r->end;
    if (!r->has_more) return OK;
    if (*r->at != ',') return fail(ERR_FORMAT, "a list has no comma between two elements");
    r->at++;
    return OK;
}
