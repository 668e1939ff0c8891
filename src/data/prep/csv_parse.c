#include "data/prep/csv_parse.h"

#include <string.h>

#include "data/prep/number.h"

/* What can be wrong with a row; the caller adds file and line. */
typedef enum {
    BAD_NOTHING = 0,
    BAD_EMPTY,
    BAD_NUMBER,
    BAD_RANGE,
    BAD_TIME,
    BAD_ACTION,
    BAD_TOO_FEW,
    BAD_TOO_MANY,
    BAD_QUOTE_OPEN,
    BAD_QUOTE_TEXT
} row_fault;

/* One row being read.  The text ends with '\n', which bounds every scan; numbers are read eight
 * bytes at a time, up to the padding after the text. */
typedef struct row_reader {
    const csv_layout *t;
    char *at;
    char d0, d1; /* the delimiter; d1 = 0 if it is one character */
    row_fault fault;
    csv_role role;     /* of the field in hand */
    int n_fields;      /* seen so far, for "too few" */
    const char *field; /* the field that is wrong */
    size_t field_bytes;
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

static void set_fault(row_reader *r, row_fault fault, const char *field, size_t n) {
    r->fault = fault;
    r->field = field;
    r->field_bytes = n;
}

/* Skips a quoted field and removes its quotes in place. */
static bool take_quoted(row_reader *r, csv_field *out) {
    char *from = r->at + 1, *to = from;
    out->text = from;
    for (;; from++) {
        if (*from == '"') {
            if (from[1] != '"') break;
            from++;
        } else if (*from == '\n') {
            set_fault(r, BAD_QUOTE_OPEN, out->text, (size_t)(from - out->text));
            return false;
        }
        *to++ = *from;
    }
    out->n_bytes = (size_t)(to - out->text);
    r->at = from + 1;
    if (is_field_end(r, r->at)) return true;
    set_fault(r, BAD_QUOTE_TEXT, out->text, out->n_bytes);
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

/* Reads up to 15 digits; NULL: take the slow path. */
static inline char *fast_digits(char *at, int64_t *out) {
    static const uint32_t power[] = {1, 10, 100, 1000, 10000, 100000, 1000000, 10000000};
    bool is_negative = *at == '-';
    at += is_negative;
    uint64_t value = 0, more = 0;
    unsigned n = eight_digits(at, &value);
    if (n == 0) return NULL;
    at += n;
    if (n == 8) {
        n = eight_digits(at, &more);
        if (n == 8) return NULL;
        value = value * power[n] + more;
        at += n;
    }
    *out = is_negative ? -(int64_t)value : (int64_t)value;
    return at;
}

/* The fault of a text that must be one integer. */
static row_fault parse_digits(const char *text, size_t n, int64_t *out) {
    static const row_fault faults[] = {BAD_NOTHING, BAD_NUMBER, BAD_RANGE};
    return faults[number_read(text, n, out)];
}

/* Cuts "digits.zeros" to its digits; -1 in *half where the fraction is neither 0 nor 5. */
static size_t cut_fraction(const char *text, size_t n, int *half) {
    const char *point = memchr(text, '.', n);
    *half = 0;
    if (point == NULL) return n;
    size_t whole = (size_t)(point - text), last = n;
    while (last > whole + 1 && text[last - 1] == '0')
        last--;
    if (last == whole + 2 && text[whole + 1] == '5')
        *half = 1;
    else if (last != whole + 1 || n == whole + 1)
        *half = -1;
    return whole;
}

static row_fault parse_time(const char *text, size_t n, int64_t *out) {
    int half;
    size_t whole = cut_fraction(text, n, &half);
    return half != 0 ? BAD_TIME : parse_digits(text, whole, out);
}

bool csv_parse_time(const char *text, size_t n, int64_t *out) {
    return parse_time(text, n, out) == BAD_NOTHING;
}

/* The action for a rating of value + half / 2; false if the kind cannot represent it. */
static inline bool store_action(action_kind kind, int64_t value, int half, uint16_t *out) {
    static const uint16_t largest[] = {UINT16_MAX, 4, 9, 255, UINT16_MAX};
    if (value < 0 || value > UINT16_MAX || (half != 0 && kind != ACTION_HALF_STARS)) return false;
    int64_t action = kind == ACTION_STARS        ? value - 1
                     : kind == ACTION_HALF_STARS ? 2 * value + half - 1
                                                 : value;
    *out = (uint16_t)action;
    return action >= 0 && action <= largest[kind];
}

bool csv_parse_action(action_kind kind, const char *text, size_t n, uint16_t *out) {
    int half;
    int64_t value = 0;
    size_t whole = cut_fraction(text, n, &half);
    /* ".5" has no digits before the point, which ratings may leave out. */
    bool is_bare_half = whole == 0 && half == 1;
    if (half < 0 || (!is_bare_half && parse_digits(text, whole, &value) != BAD_NOTHING))
        return false;
    return store_action(kind, value, half, out);
}

const char *csv_action_scale(action_kind kind) {
    switch (kind) {
    case ACTION_STARS:
        return "a whole number from 1 to 5 (half-stars have steps of 0.5)";
    case ACTION_HALF_STARS:
        return "from 0.5 to 5 in steps of 0.5";
    case ACTION_BITS:
        return "a bit mask from 0 to 255";
    default:
        return "a whole number from 0 to 65535";
    }
}

/* A number on the slow path: quotes and spaces around it are removed first. */
static bool take_number_field(row_reader *r, csv_field *out) {
    char *start = r->at;
    if (!take_field(r, out)) return false;
    if (*start == '"' && r->t->format.has_quotes && out->n_bytes == 0) {
        set_fault(r, BAD_EMPTY, out->text, 0);
        return false;
    }
    while (out->n_bytes > 0 && out->text[0] == ' ')
        out->text++, out->n_bytes--;
    while (out->n_bytes > 0 && out->text[out->n_bytes - 1] == ' ')
        out->n_bytes--;
    if (out->n_bytes > 0) return true;
    set_fault(r, BAD_EMPTY, out->text, 0);
    return false;
}

static bool take_int_slow(row_reader *r, int64_t *out, bool is_time) {
    csv_field field;
    if (!take_number_field(r, &field)) return false;
    row_fault fault = is_time ? parse_time(field.text, field.n_bytes, out)
                              : parse_digits(field.text, field.n_bytes, out);
    if (fault != BAD_NOTHING) set_fault(r, fault, field.text, field.n_bytes);
    return fault == BAD_NOTHING;
}

/* The fast paths take the position in the text and return the position after the field, or NULL, so
 * that the position stays in a register; the slow paths keep it in the reader. */
static inline char *take_int(row_reader *r, char *at, int64_t *out, bool is_time) {
    char *end = fast_digits(at, out);
    if (end != NULL && is_field_end(r, end)) return end;
    r->at = at;
    return take_int_slow(r, out, is_time) ? r->at : NULL;
}

static bool take_action_slow(row_reader *r, uint16_t *out) {
    csv_field field;
    if (!take_number_field(r, &field)) return false;
    if (csv_parse_action(r->t->actions, field.text, field.n_bytes, out)) return true;
    set_fault(r, BAD_ACTION, field.text, field.n_bytes);
    return false;
}

/* Ratings are one digit, or a digit and ".0" or ".5", nearly always. */
static inline char *take_action(row_reader *r, char *at, uint16_t *out) {
    unsigned value = (unsigned)(unsigned char)at[0] - '0';
    bool has_point = value <= 9 && at[1] == '.' && (at[2] == '0' || at[2] == '5');
    int n = has_point ? 3 : 1, half = has_point && at[2] == '5';
    if (value <= 9 && is_field_end(r, at + n) && store_action(r->t->actions, value, half, out))
        return at + n;
    r->at = at;
    return take_action_slow(r, out) ? r->at : NULL;
}

static inline char *take_bit(row_reader *r, char *at, int bit, uint16_t *action) {
    int64_t value = *at - '0';
    char *end = at + 1;
    if ((value != 0 && value != 1) || !is_field_end(r, end)) end = take_int(r, at, &value, false);
    *action = (uint16_t)(*action | (value != 0) << bit);
    return end;
}

static char *take_text(row_reader *r, char *at, const char **text, size_t *n) {
    csv_field field;
    r->at = at;
    if (!take_field(r, &field)) return NULL;
    *text = field.text;
    *n = field.n_bytes;
    if (*n > 0) return r->at;
    set_fault(r, BAD_EMPTY, field.text, 0);
    return NULL;
}

static char *skip_field(row_reader *r, char *at) {
    csv_field field;
    r->at = at;
    return take_field(r, &field) ? r->at : NULL;
}

static inline char *take_role(row_reader *r, csv_role role, char *at, csv_row *row) {
    const csv_layout *t = r->t;
    switch (role) {
    case ROLE_SKIP:
        return skip_field(r, at);
    case ROLE_USER:
        return t->has_text_users ? take_text(r, at, &row->user_text, &row->user_bytes)
                                 : take_int(r, at, &row->user, false);
    case ROLE_ITEM:
        return t->has_text_items ? take_text(r, at, &row->item_text, &row->item_bytes)
                                 : take_int(r, at, &row->item, false);
    case ROLE_TIME:
        return take_int(r, at, &row->time, true);
    case ROLE_ACTION:
        return take_action(r, at, &row->action);
    default:
        return take_bit(r, at, (int)role - ROLE_BIT0, &row->action);
    }
}

/* Reads the needed fields of a row; returns the start of the next row, or NULL with r->fault set.
 */
static inline char *take_row(row_reader *r, char *at, csv_row *row) {
    const csv_layout *t = r->t;
    int n_needed = t->n_needed, width = r->d1 != '\0' ? 2 : 1;
    for (int i = 0;;) {
        r->role = (csv_role)t->role[i];
        at = take_role(r, r->role, at, row);
        if (at == NULL) return NULL;
        if (++i == n_needed) break;
        if (is_line_end(at)) {
            r->n_fields = i;
            set_fault(r, BAD_TOO_FEW, at, 0);
            return NULL;
        }
        at += width;
    }
    if (*at == '\r' && at[1] == '\n') at++;
    if (*at != '\n' && n_needed == t->n_columns) {
        set_fault(r, BAD_TOO_MANY, at, 0);
        return NULL;
    }
    while (*at != '\n')
        at++;
    return at + 1;
}

static status fail_field(const row_reader *r, const char *file, unsigned long long line) {
    const char *name = r->t->name[r->role];
    char text[64];
    bool is_id = r->role == ROLE_USER || r->role == ROLE_ITEM;
    const char *advice =
        is_id && r->t->can_have_text_ids ? "; for string ids use --string-ids" : "";
    csv_excerpt(text, r->field, r->field_bytes);
    switch (r->fault) {
    case BAD_EMPTY:
        return fail(ERR_FORMAT, "%s:%llu: %s is empty", file, line, name);
    case BAD_RANGE:
        return fail(ERR_FORMAT, "%s:%llu: %s: '%s' does not fit a 64-bit number%s", file, line,
                    name, text, advice);
    case BAD_TIME:
        return fail(ERR_FORMAT, "%s:%llu: %s: '%s' is not a whole number; times have no fraction",
                    file, line, name, text);
    case BAD_ACTION:
        return fail(ERR_FORMAT, "%s:%llu: %s: '%s' is not %s", file, line, name, text,
                    csv_action_scale(r->t->actions));
    default:
        return fail(ERR_FORMAT, "%s:%llu: %s: '%s' is not a whole number%s", file, line, name, text,
                    advice);
    }
}

static status fail_row(const row_reader *r, const char *file, unsigned long long line) {
    switch (r->fault) {
    case BAD_TOO_FEW:
        return fail(ERR_FORMAT,
                    "%s:%llu: the line has %d fields, but %d are needed; is it cut off, or is the "
                    "delimiter another one?",
                    file, line, r->n_fields, r->t->n_needed);
    case BAD_TOO_MANY:
        return fail(ERR_FORMAT, "%s:%llu: the line has more than %d fields", file, line,
                    r->t->n_columns);
    case BAD_QUOTE_OPEN:
        return fail(ERR_FORMAT,
                    "%s:%llu: a quoted field does not end on its line; line breaks inside quotes "
                    "are not supported",
                    file, line);
    case BAD_QUOTE_TEXT:
        return fail(ERR_FORMAT, "%s:%llu: text follows the closing quote of a field", file, line);
    default:
        return fail_field(r, file, line);
    }
}

status csv_parse_block(const csv_layout *t, const char *file, text_block *block, csv_row_fn fn,
                       void *ctx) {
    row_reader r = {.t = t, .d0 = t->format.delimiter[0], .d1 = t->format.delimiter[1]};
    char *at = block->text, *end = block->text + block->n_bytes;
    while (at < end) {
        csv_row row = {0};
        if (is_line_end(at)) {
            at += *at == '\r' ? 2 : 1;
            continue;
        }
        char *next = take_row(&r, at, &row);
        if (next == NULL)
            return fail_row(&r, file,
                            block->first_line +
                                count_newlines(block->text, (size_t)(at - block->text)));
        TRY(fn(ctx, &row));
        at = next;
    }
    return OK;
}
