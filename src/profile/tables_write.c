/* The tables as text, csv and JSON. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "format/json.h"
#include "profile/tables.h"

enum { CELL_BYTES = RECORDER_NAME_BYTES + 64, TORCH_NAME_WIDTH = 55, TORCH_WIDTH = 12 };

static size_t n_shown(const profile_table *t, int64_t row_limit) {
    return row_limit >= 0 && (size_t)row_limit < t->n_rows ? (size_t)row_limit : t->n_rows;
}

static void scaled_time(char out[CELL_BYTES], double ns) {
    if (ns >= 1e9)
        snprintf(out, CELL_BYTES, "%.3fs", ns / 1e9);
    else if (ns >= 1e6)
        snprintf(out, CELL_BYTES, "%.3fms", ns / 1e6);
    else
        snprintf(out, CELL_BYTES, "%.3fus", ns / 1e3);
}

static void scaled_bytes(char out[CELL_BYTES], double bytes) {
    static const char *const units[] = {"B", "KB", "MB", "GB"};
    int unit = 0;
    while (unit < 3 && fabs(bytes) >= 1024) {
        bytes /= 1024;
        unit++;
    }
    snprintf(out, CELL_BYTES, unit == 0 ? "%.0f %s" : "%.2f %s", bytes, units[unit]);
}

/* With separators between thousands, as newer nsys prints them; decimals 0 or 1. */
static void grouped(char out[CELL_BYTES], double value, int decimals) {
    char digits[64];
    int n = snprintf(digits, sizeof digits, "%.0f", floor(fabs(value))), at = 0;
    if (value < 0) out[at++] = '-';
    for (int i = 0; i < n && at < CELL_BYTES - 8; i++) {
        if (i > 0 && (n - i) % 3 == 0) out[at++] = ',';
        out[at++] = digits[i];
    }
    out[at] = '\0';
    if (decimals > 0)
        snprintf(out + at, CELL_BYTES - (size_t)at, ".%d",
                 (int)floor((fabs(value) - floor(fabs(value))) * 10));
}

/* A sum, a count, and the least and the largest of whole nanoseconds are whole. */
static bool is_whole(const profile_column *c) {
    return c->kind == COLUMN_COUNT || strncmp(c->title, "Total", 5) == 0 ||
           strncmp(c->title, "Min", 3) == 0 || strncmp(c->title, "Max", 3) == 0;
}

static void cell(char out[CELL_BYTES], const profile_table *t, const profile_row *row, int i) {
    double value = row->value[t->columns[i].value]; /* of no meaning for texts */
    switch (t->columns[i].kind) {
    case COLUMN_NAME:
        if (t->looks == LOOKS_TORCH && strlen(row->name) > TORCH_NAME_WIDTH)
            snprintf(out, CELL_BYTES, "%.*s...", TORCH_NAME_WIDTH - 3, row->name);
        else
            snprintf(out, CELL_BYTES, "%s", row->name);
        break;
    case COLUMN_PERCENT:
        snprintf(out, CELL_BYTES, t->looks == LOOKS_TORCH ? "%.2f%%" : "%.1f", value);
        break;
    case COLUMN_MB:
        snprintf(out, CELL_BYTES, "%.3f", value);
        break;
    case COLUMN_TIME:
        scaled_time(out, value);
        break;
    case COLUMN_MEMORY:
        scaled_bytes(out, value);
        break;
    case COLUMN_NUMBER:
        snprintf(out, CELL_BYTES, value > 0 && value < 0.095 ? "%.2g" : "%.2f", value);
        break;
    case COLUMN_TEXT:
        snprintf(out, CELL_BYTES, "%s", row->text[t->columns[i].value]);
        break;
    case COLUMN_COUNT:
    case COLUMN_NS:
        if (t->looks == LOOKS_TORCH)
            snprintf(out, CELL_BYTES, "%.0f", value);
        else
            grouped(out, value, is_whole(&t->columns[i]) ? 0 : 1);
        break;
    }
}

/* The width of each column: of its title and of its widest cell. */
static void measure(const profile_table *t, size_t n, int width[PROFILE_MAX_COLUMNS]) {
    char text[CELL_BYTES];
    for (int c = 0; c < t->n_columns; c++) {
        width[c] = (int)strlen(t->columns[c].title);
        if (t->looks == LOOKS_TORCH && t->columns[c].kind != COLUMN_NAME && width[c] < TORCH_WIDTH)
            width[c] = TORCH_WIDTH;
        for (size_t i = 0; i < n; i++) {
            cell(text, t, &t->rows[i], c);
            if ((int)strlen(text) > width[c]) width[c] = (int)strlen(text);
        }
    }
}

static status line(const profile_table *t, const int width[], const profile_row *row, buf *out) {
    char text[CELL_BYTES];
    for (int c = 0; c < t->n_columns; c++) {
        bool is_last = c + 1 == t->n_columns;
        if (row != NULL)
            cell(text, t, row, c);
        else
            snprintf(text, sizeof text, "%s", t->columns[c].title);
        bool is_left = t->columns[c].kind == COLUMN_NAME && t->looks == LOOKS_NSYS;
        TRY(buf_printf(out, "%s%*s", c == 0 ? t->looks == LOOKS_NSYS ? " " : "" : "  ",
                       is_left ? (is_last ? 0 : -width[c]) : width[c], text));
    }
    return buf_char(out, '\n');
}

static status dashes(const profile_table *t, const int width[], buf *out) {
    for (int c = 0; c < t->n_columns; c++) {
        TRY(buf_text(out, c == 0 ? t->looks == LOOKS_NSYS ? " " : "" : "  "));
        for (int i = 0; i < width[c]; i++)
            TRY(buf_char(out, '-'));
    }
    return buf_char(out, '\n');
}

status profile_table_text(const profile_table *t, int64_t row_limit, buf *out) {
    int width[PROFILE_MAX_COLUMNS];
    char text[CELL_BYTES];
    size_t n = n_shown(t, row_limit);
    measure(t, n, width);
    if (t->looks == LOOKS_NSYS)
        TRY(buf_printf(out, " ** %s (%s):\n\n", t->title, t->id));
    else
        TRY(dashes(t, width, out));
    TRY(line(t, width, NULL, out));
    TRY(dashes(t, width, out));
    for (size_t i = 0; i < n; i++)
        TRY(line(t, width, &t->rows[i], out));
    if (t->looks == LOOKS_TORCH) {
        TRY(dashes(t, width, out));
        scaled_time(text, t->host_ns);
        TRY(buf_printf(out, "Self CPU time total: %s\n", text));
        scaled_time(text, t->gpu_ns);
        if (t->gpu_ns > 0) TRY(buf_printf(out, "Self CUDA time total: %s\n", text));
    }
    return OK;
}

/* Numbers as they are, times in nanoseconds. */
static status csv_cell(const profile_table *t, const profile_row *row, int c, buf *out) {
    const char *text = t->columns[c].kind == COLUMN_NAME   ? row->name
                       : t->columns[c].kind == COLUMN_TEXT ? row->text[t->columns[c].value]
                                                           : NULL;
    if (text != NULL) return csv_put_field(out, text, strlen(text));
    return buf_printf(out, "%.15g", row->value[t->columns[c].value]);
}

static const char *unit_of(const profile_table *t, int c) {
    return t->columns[c].kind == COLUMN_TIME     ? " (ns)"
           : t->columns[c].kind == COLUMN_MEMORY ? " (bytes)"
                                                 : "";
}

status profile_table_csv(const profile_table *t, int64_t row_limit, buf *out) {
    size_t n = n_shown(t, row_limit);
    for (int c = 0; c < t->n_columns; c++)
        TRY(buf_printf(out, "%s%s%s", c > 0 ? "," : "", t->columns[c].title, unit_of(t, c)));
    TRY(buf_char(out, '\n'));
    for (size_t i = 0; i < n; i++) {
        for (int c = 0; c < t->n_columns; c++) {
            if (c > 0) TRY(buf_char(out, ','));
            TRY(csv_cell(t, &t->rows[i], c, out));
        }
        TRY(buf_char(out, '\n'));
    }
    return OK;
}

status profile_table_json(const profile_table *t, int64_t row_limit, buf *out) {
    json_writer w;
    char title[64];
    json_begin(&w, out, 0);
    json_object_open(&w);
    json_key_string(&w, "report", t->id);
    json_key(&w, "rows");
    json_array_open(&w);
    for (size_t i = 0; i < n_shown(t, row_limit); i++) {
        json_object_open(&w);
        for (int c = 0; c < t->n_columns; c++) {
            snprintf(title, sizeof title, "%s%s", t->columns[c].title, unit_of(t, c));
            if (t->columns[c].kind == COLUMN_NAME)
                json_key_string(&w, title, t->rows[i].name);
            else if (t->columns[c].kind == COLUMN_TEXT)
                json_key_string(&w, title, t->rows[i].text[t->columns[c].value]);
            else
                json_key_double(&w, title, t->rows[i].value[t->columns[c].value]);
        }
        json_object_close(&w);
    }
    json_array_close(&w);
    json_object_close(&w);
    TRY(json_finish(&w));
    return buf_char(out, '\n');
}
