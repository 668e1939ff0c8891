/* Answers: items with numbers, for one subject after the other (a user, or an item), as a table for
 * people, as csv or as JSON lines:
 *
 *     {"user": 42, "source": "model", "items": [{"id": 318, "score": 0.57, "title": "..."}, ...]}
 *     user,rank,id,score,title,source
 *
 * Ids are those of the data, in JSON numbers or strings as the data has them.  A score that is no
 * number is null, or an empty field.  Written as they come: nothing is kept but the subject at
 * hand. */
#pragma once

#include "cli/output.h"
#include "data/set/seq_file.h"
#include "format/json.h"

typedef enum { FORMAT_TABLE, FORMAT_CSV, FORMAT_JSONL } answer_format;

#define ANSWER_FORMATS "Output format: table (default), csv or jsonl."
/* --format, -1 if it is not given, and --json. */
extern const char *const answer_formats[];
status answer_format_choose(int format, bool is_json, answer_format *out);

/* Whose items follow. */
typedef enum { SUBJECT_NONE, SUBJECT_USER, SUBJECT_ITEM, SUBJECT_TEXT } subject_kind;
typedef struct answer_subject {
    subject_kind kind;
    uint64_t number;  /* of a user or an item */
    const char *text; /* an id that the data does not have */
} answer_subject;

typedef struct answers {
    sink out;
    answer_format format;
    const seq_file *data;
    const char *subject;        /* "user" or "item" */
    const char *const *columns; /* (n_columns): names of the numbers */
    int n_columns;
    bool has_positions;  /* items are in order, best first: csv has a column of positions, "rank" */
    const char *heading; /* of the table instead of the subject's name; or NULL */
    const char *source;
    int64_t n_items; /* of this subject */
    buf line, text, id;
    buf who; /* csv: the subject's field */
    json_writer json;
    show_style style;
} answers;

/* out: a path, or NULL for stdout.  Fill format, data, subject and columns first. */
status answers_open(answers *a, const char *out);

/* A subject, where its items come from ("model", "popular"), and for the table a note or "". */
status answers_begin(answers *a, const answer_subject *who, const char *source, const char *note);
status answers_item(answers *a, uint32_t item, const float *values);
status answers_end(answers *a);

/* The title of an item in a->text; empty where the item has none. */
status answers_find_title(answers *a, uint32_t item);

/* An item of the table, without its numbers: place, id, title. */
status answers_put_item(answers *a, buf *to, uint64_t place, uint32_t item);

/* Text for the table alone, as it is. */
status answers_text(answers *a, const char *text);

/* Ends the output, as sink_close does. */
status answers_close(answers *a, status st);
