#include <stdio.h>
#include <string.h>

#include "data/read/sample.h"
#include "format/json.h"

enum { MAX_NAMES = 256, NAME_BYTES = 256 };

/* The first rows while their members are collected. */
typedef struct jsonl_sampler {
    sample *s;
    const json_value *row[SAMPLE_ROWS];
    int n_names;
    const char *names[MAX_NAMES];
} jsonl_sampler;

static int find_name(const jsonl_sampler *j, const char *name) {
    for (int i = 0; i < j->n_names; i++)
        if (strcmp(j->names[i], name) == 0) return i;
    return -1;
}

/* "a.b" of the member b of a; false if it is too long for a column. */
static bool join_name(char out[NAME_BYTES], const char *prefix, const char *key) {
    int n = snprintf(out, NAME_BYTES, "%s%s%s", prefix, *prefix != '\0' ? "." : "", key);
    return n < NAME_BYTES;
}

/* The names of the values of an object and of the objects in it. */
static status add_names(jsonl_sampler *j, const json_value *object, const char *prefix) {
    for (const json_value *v = object->first; v != NULL; v = v->next) {
        char name[NAME_BYTES];
        if (!join_name(name, prefix, v->key) || j->n_names == MAX_NAMES) continue;
        if (v->type == JSON_OBJECT) TRY(add_names(j, v, name));
        if (v->type == JSON_OBJECT || v->type == JSON_ARRAY || find_name(j, name) >= 0) continue;
        TRY(arena_copy_text(&j->s->memory, name, strlen(name), &j->names[j->n_names]));
        j->n_names++;
    }
    return OK;
}

/* The text of a value, as the parser of rows would see it. */
static status value_text(sample *s, const json_value *v, csv_field *out) {
    char number[64];
    const char *text = v->type == JSON_STRING ? v->string : number, *copy;
    number[0] = '\0';
    if (v->type == JSON_BOOL) snprintf(number, sizeof number, "%d", v->boolean);
    if (v->type == JSON_NUMBER && v->is_integer)
        snprintf(number, sizeof number, "%lld", (long long)v->integer);
    else if (v->type == JSON_NUMBER)
        snprintf(number, sizeof number, "%.17g", v->number);
    TRY(arena_copy_text(&s->memory, text, strlen(text), &copy));
    *out = (csv_field){(char *)copy, strlen(copy)};
    return OK;
}

static status fill_cells(jsonl_sampler *j, const json_value *object, const char *prefix, int row) {
    for (const json_value *v = object->first; v != NULL; v = v->next) {
        char name[NAME_BYTES];
        if (!join_name(name, prefix, v->key)) continue;
        if (v->type == JSON_OBJECT) TRY(fill_cells(j, v, name, row));
        int i = find_name(j, name);
        if (v->type == JSON_OBJECT || v->type == JSON_ARRAY || v->type == JSON_NULL || i < 0)
            continue;
        TRY(value_text(j->s, v, &j->s->cell[row * j->s->n_columns + i]));
    }
    return OK;
}

static status add_row(jsonl_sampler *j, const char *line, size_t n, uint64_t number) {
    const json_value *root;
    sample *s = j->s;
    status st = json_parse(&s->memory, "row", line, n, &root);
    if (st == ERR_NOMEM) return st;
    if (st != OK || root->type != JSON_OBJECT) return OK; /* the parser reports it */
    s->line[s->n_rows] = number;
    j->row[s->n_rows++] = root;
    return add_names(j, root, "");
}

status sample_jsonl(sample *s, const char *text, size_t n, uint64_t first_line) {
    jsonl_sampler j = {.s = s};
    for (size_t at = 0; at < n && s->n_rows < SAMPLE_ROWS; first_line++) {
        const char *newline = memchr(text + at, '\n', n - at);
        size_t bytes = newline != NULL ? (size_t)(newline - text) - at : n - at;
        if (bytes > 1) TRY(add_row(&j, text + at, bytes, first_line));
        at += bytes + 1;
    }
    s->has_names = true;
    s->n_columns = j.n_names;
    TRY(ARENA_NEW(&s->memory, &s->name, (size_t)j.n_names + 1));
    TRY(ARENA_NEW(&s->memory, &s->cell, (size_t)s->n_rows * (size_t)j.n_names + 1));
    memcpy(s->name, j.names, (size_t)j.n_names * sizeof *s->name);
    for (int i = 0; i < s->n_rows; i++)
        TRY(fill_cells(&j, j.row[i], "", i));
    return OK;
}
