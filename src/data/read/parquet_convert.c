#include "data/read/parquet_convert.h"
#include "base/text.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "data/read/row_field.h"

/* Whole numbers up to here are exact in floating point. */
static const double max_exact = 9007199254740992.0;

static status number_text(const converter *c, const char *text, size_t n, uint32_t *out) {
    return c->role == EVENT_USER ? sink_user_text(c->sink, text, n, out)
                                 : sink_item_text(c->sink, text, n, out);
}

static bool is_text_id(const converter *c) {
    return c->role == EVENT_USER ? c->layout->has_text_users : c->layout->has_text_items;
}

static status number_int(const converter *c, int64_t id, uint32_t *out) {
    char text[24];
    if (c->column->meaning == MEANS_UNSIGNED && id < 0)
        return fail(ERR_FORMAT,
                    "%" PRIu64 " does not fit a signed 64-bit number; cast the ids to "
                    "strings",
                    (uint64_t)id);
    if (is_text_id(c)) {
        int n = snprintf(text, sizeof text, "%" PRId64, id);
        return number_text(c, text, (size_t)n, out);
    }
    return c->role == EVENT_USER ? sink_user(c->sink, id, out) : sink_item(c->sink, id, out);
}

/* Many sources list a user's events together: the dictionary is asked when the id changes. */
static status ids_from_ints(const converter *c, const int64_t *id, size_t n, uint32_t *out,
                            size_t *n_done) {
    for (size_t i = 0; i < n; i++, *n_done = i) {
        if (i > 0 && id[i] == id[i - 1])
            out[i] = out[i - 1];
        else
            TRY(number_int(c, id[i], &out[i]));
    }
    return OK;
}

static status ids_from_doubles(const converter *c, const double *id, size_t n, uint32_t *out,
                               size_t *n_done) {
    for (size_t i = 0; i < n; i++, *n_done = i) {
        if (!(fabs(id[i]) <= max_exact) || id[i] != trunc(id[i]))
            return fail(ERR_FORMAT, "%.17g is not a whole number that can be an id", id[i]);
        TRY(number_int(c, (int64_t)id[i], &out[i]));
    }
    return OK;
}

/* Ids go to terminals and into JSON: they are text without NUL. */
static status check_id(const parquet_text *t) {
    if (t->n_bytes == 0) return fail(ERR_FORMAT, "it is empty");
    for (size_t i = 0; i < t->n_bytes;) {
        int n = t->bytes[i] == '\0' ? 0 : utf8_length(t->bytes + i, t->n_bytes - i);
        if (n == 0) {
            char excerpt[64];
            return fail(ERR_FORMAT, "'%s' is not UTF-8 text; cast the ids to strings or integers",
                        escape_excerpt(excerpt, t->bytes, t->n_bytes));
        }
        i += (size_t)n;
    }
    return OK;
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

static status ids_from_texts(const converter *c, const parquet_text *text, size_t n, uint32_t *out,
                             size_t *n_done) {
    char uuid[40];
    for (size_t i = 0; i < n; i++, *n_done = i) {
        if (c->column->meaning == MEANS_UUID) {
            TRY(number_text(c, uuid, format_uuid(text[i].bytes, uuid), &out[i]));
            continue;
        }
        TRY(check_id(&text[i]));
        TRY(number_text(c, text[i].bytes, text[i].n_bytes, &out[i]));
    }
    return OK;
}

static int64_t floor_divide(int64_t a, int64_t b) {
    int64_t q = a / b;
    return q - (a % b < 0);
}

void converter_init(converter *c, const csv_layout *layout, builder_sink *sink,
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

static status times_from_ints(converter *c, const int64_t *from, size_t n, int64_t *out,
                              size_t *n_done) {
    char text[24];
    const time_plan *t = &c->times;
    for (size_t i = 0; i < n; i++, *n_done = i) {
        int64_t value;
        bool is_huge = __builtin_mul_overflow(from[i], c->units_a_date, &value);
        if (is_huge || value < t->low || value > t->high) {
            int k = snprintf(text, sizeof text, "%" PRId64, is_huge ? from[i] : value);
            TRY(time_from_text(c, text, (size_t)k, &out[i]));
            continue;
        }
        out[i] = value * t->ns_per_unit;
        if (t->unit != UNIT_S && c->time_digits < 9) keep_digits(c, out[i]);
    }
    return OK;
}

/* Today's seconds are exact to a quarter of a microsecond in floating point: what is finer is
 * noise. */
static status times_from_doubles(converter *c, const double *from, size_t n, int64_t *out,
                                 size_t *n_done) {
    char text[40];
    const time_plan *t = &c->times;
    for (size_t i = 0; i < n; i++, *n_done = i) {
        if (from[i] >= (double)t->low && from[i] <= (double)t->high) {
            out[i] = t->unit == UNIT_NS ? (int64_t)from[i]
                                        : llround(from[i] * ((double)t->ns_per_unit / 1000)) * 1000;
            keep_digits(c, out[i]);
            continue;
        }
        int k = snprintf(text, sizeof text, "%.17g", from[i]);
        TRY(time_from_text(c, text, (size_t)k, &out[i]));
    }
    return OK;
}

static status times_from_texts(converter *c, const parquet_text *from, size_t n, int64_t *out,
                               size_t *n_done) {
    for (size_t i = 0; i < n; i++, *n_done = i)
        TRY(time_from_text(c, from[i].bytes, from[i].n_bytes, &out[i]));
    return OK;
}

static status action_from_text(const converter *c, const char *text, size_t n, uint32_t *out) {
    /* row_set reads the field and does not change it. */
    const csv_field field = {(char *)(uintptr_t)text, n};
    csv_row row = {0};
    field_fault fault = row_set(c->layout, ROLE_ACTION, &field, &row);
    *out = row.action;
    return fault == FIELD_FINE ? OK : row_fail(c->layout, ROLE_ACTION, fault, &field);
}

/* Halves are exact in floating point; what is not a multiple of them is no action of any kind. */
static status action_from_number(const converter *c, double value, uint32_t *out) {
    char text[40];
    uint16_t action = 0;
    double halves = 2 * value;
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

static status actions_from_texts(const converter *c, const parquet_text *from, size_t n,
                                 uint32_t *out, size_t *n_done) {
    for (size_t i = 0; i < n; i++, *n_done = i)
        TRY(action_from_text(c, from[i].bytes, from[i].n_bytes, &out[i]));
    return OK;
}

static status actions_from_numbers(const converter *c, const int64_t *ints, const double *doubles,
                                   size_t n, uint32_t *out, size_t *n_done) {
    for (size_t i = 0; i < n; i++, *n_done = i)
        TRY(action_from_number(c, ints != NULL ? (double)ints[i] : doubles[i], &out[i]));
    return OK;
}

status convert_values(converter *c, const parquet_data *from, size_t first, size_t n, converted to,
                      size_t *n_done) {
    bool is_text = parquet_is_text(c->column);
    bool is_double = c->column->type == PARQUET_FLOAT || c->column->type == PARQUET_DOUBLE;
    const int64_t *ints = is_text || is_double ? NULL : from->ints + first;
    const double *doubles = is_double ? from->doubles + first : NULL;
    const parquet_text *texts = is_text ? from->texts + first : NULL;
    *n_done = 0;
    switch (c->role) {
    case EVENT_TIME:
        return is_text     ? times_from_texts(c, texts, n, to.time, n_done)
               : is_double ? times_from_doubles(c, doubles, n, to.time, n_done)
                           : times_from_ints(c, ints, n, to.time, n_done);
    case EVENT_ACTION:
        return is_text ? actions_from_texts(c, texts, n, to.number, n_done)
                       : actions_from_numbers(c, ints, doubles, n, to.number, n_done);
    default:
        return is_text     ? ids_from_texts(c, texts, n, to.number, n_done)
               : is_double ? ids_from_doubles(c, doubles, n, to.number, n_done)
                           : ids_from_ints(c, ints, n, to.number, n_done);
    }
}
