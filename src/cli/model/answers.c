#include "cli/model/answers.h"

enum { ID_WIDTH = 16, TITLE_WIDTH = 56, SHORT_TITLE = 24, MANY_COLUMNS = 3, VALUE_WIDTH = 10 };

/* Many numbers leave little room for a title. */
static int title_width(const answers *a) {
    return a->n_columns >= MANY_COLUMNS ? SHORT_TITLE : TITLE_WIDTH;
}

static int value_width(const answers *a, int i) {
    int n = (int)strlen(a->columns[i]);
    return n > VALUE_WIDTH ? n : VALUE_WIDTH;
}

const char *const answer_formats[] = {"table", "csv", "jsonl", NULL};

status answer_format_choose(int format, bool is_json, answer_format *out) {
    *out = is_json ? FORMAT_JSONL : format >= 0 ? (answer_format)format : FORMAT_TABLE;
    if (is_json && format >= 0 && format != FORMAT_JSONL)
        return fail(ERR_USAGE, "--json is --format jsonl; --format %s contradicts it",
                    answer_formats[format]);
    return OK;
}

static status write_header(answers *a) {
    TRY(buf_printf(&a->line, "%s%s,id", a->subject, a->has_positions ? ",rank" : ""));
    for (int i = 0; i < a->n_columns; i++) {
        TRY(buf_char(&a->line, ','));
        TRY(csv_put_field(&a->line, a->columns[i], strlen(a->columns[i])));
    }
    TRY(buf_text(&a->line, ",title,source\n"));
    return sink_write(&a->out, buf_str(&a->line), a->line.n_bytes);
}

status answers_open(answers *a, const char *out) {
    a->style = (show_style){"", "", "", ""};
    TRY(sink_open(&a->out, out));
    if (a->out.stream == stdout) a->style = show_stdout_style();
    return a->format == FORMAT_CSV ? write_header(a) : OK;
}

/* The id as text in a->id. */
static status name_subject(answers *a, const answer_subject *who) {
    buf_clear(&a->id);
    if (who->kind == SUBJECT_USER) return seq_user_name(a->data, who->number, &a->id);
    if (who->kind == SUBJECT_ITEM) return seq_item_name(a->data, (uint32_t)who->number, &a->id);
    return who->kind == SUBJECT_TEXT ? buf_text(&a->id, who->text) : OK;
}

/* An id as the data has them: a number where ids are numbers. */
static void json_id(json_writer *w, const buf *id, bool is_text) {
    int64_t value;
    if (!is_text && seq_id_number(buf_str(id), id->n_bytes, &value))
        json_int(w, value);
    else
        json_string_n(w, buf_str(id), id->n_bytes);
}

static bool subject_is_text(const answers *a, const answer_subject *who) {
    return who->kind == SUBJECT_ITEM ? a->data->has_text_items : a->data->has_text_users;
}

static status begin_json(answers *a, const answer_subject *who) {
    json_begin_object(&a->json, &a->line, 0);
    json_key(&a->json, a->subject);
    if (who->kind == SUBJECT_NONE)
        json_null(&a->json);
    else
        json_id(&a->json, &a->id, subject_is_text(a, who));
    json_key_string(&a->json, "source", a->source);
    json_key_array(&a->json, "items");
    return OK;
}

static status table_columns(answers *a) {
    TRY(buf_printf(&a->line, "%s  %5s  %8s  %-*s", a->style.dim, "", "", title_width(a), ""));
    for (int i = 0; i < a->n_columns; i++)
        TRY(buf_printf(&a->line, " %*s", value_width(a, i), a->columns[i]));
    return buf_printf(&a->line, "%s\n", a->style.plain);
}

static status begin_table(answers *a, const char *note) {
    if (a->heading == NULL)
        TRY(buf_printf(&a->line, "%s%c%s %s%s", a->style.bold, a->subject[0] - 'a' + 'A',
                       a->subject + 1, show_text(buf_str(&a->id), a->id.n_bytes, ID_WIDTH * 4),
                       a->style.plain));
    else
        TRY(buf_printf(&a->line, "%s%s%s", a->style.bold, a->heading, a->style.plain));
    TRY(buf_printf(&a->line, "%s%s\n\n", note[0] != '\0' ? ": " : "", note));
    return a->n_columns > 1 ? table_columns(a) : OK;
}

status answers_begin(answers *a, const answer_subject *who, const char *source, const char *note) {
    buf_clear(&a->line);
    a->source = source;
    a->n_items = 0;
    TRY(name_subject(a, who));
    if (a->format == FORMAT_JSONL) return begin_json(a, who);
    if (a->format == FORMAT_TABLE) return begin_table(a, note);
    buf_clear(&a->who);
    if (who->kind == SUBJECT_NONE) return OK;
    return csv_put_field(&a->who, buf_str(&a->id), a->id.n_bytes);
}

static status item_json(answers *a, uint32_t item, const float *values) {
    static const char *const names[] = {"id", "item"}; /* "id": until version 0.2 */
    json_object_open(&a->json);
    for (int i = 0; i < 2; i++) {
        json_key(&a->json, names[i]);
        if (a->data->has_text_items)
            json_string_n(&a->json, buf_str(&a->id), a->id.n_bytes);
        else
            json_int(&a->json, a->data->item_id[item]);
    }
    for (int i = 0; i < a->n_columns; i++) {
        json_key(&a->json, a->columns[i]);
        json_float(&a->json, values[i]);
    }
    if (a->text.n_bytes > 0) {
        json_key(&a->json, "title");
        json_string_n(&a->json, buf_str(&a->text), a->text.n_bytes);
    }
    json_object_close(&a->json);
    return OK;
}

static status item_csv(answers *a, const float *values) {
    char number[FLOAT_TEXT_BYTES];
    TRY(buf_append(&a->line, buf_str(&a->who), a->who.n_bytes));
    if (a->has_positions) TRY(buf_printf(&a->line, ",%" PRId64, a->n_items));
    TRY(buf_char(&a->line, ','));
    TRY(csv_put_field(&a->line, buf_str(&a->id), a->id.n_bytes));
    for (int i = 0; i < a->n_columns; i++) {
        int n = isfinite(values[i]) ? float_text(number, values[i]) : 0;
        TRY(buf_char(&a->line, ','));
        TRY(buf_append(&a->line, number, (size_t)n));
    }
    TRY(buf_char(&a->line, ','));
    if (a->text.n_bytes > 0) TRY(csv_put_field(&a->line, buf_str(&a->text), a->text.n_bytes));
    return buf_printf(&a->line, ",%s\n", a->source);
}

static status put_padded(buf *to, const char *text, int width) {
    int n = show_columns(text);
    TRY(buf_text(to, text));
    return buf_printf(to, "%*s", n < width ? width - n : 0, "");
}

status answers_find_title(answers *a, uint32_t item) {
    buf_clear(&a->text);
    return seq_has_title(a->data, item) ? seq_item_title(a->data, item, &a->text) : OK;
}

/* Without a title, an id that is text has all of the line's room. */
static status put_id_alone(answers *a, buf *to, uint64_t place) {
    int width = 8 + 2 + title_width(a);
    TRY(buf_printf(to, "  %5" PRIu64 "  ", place));
    return put_padded(to, show_text(buf_str(&a->id), a->id.n_bytes, width), width);
}

status answers_put_item(answers *a, buf *to, uint64_t place, uint32_t item) {
    TRY(seq_item_name(a->data, item, &a->id));
    TRY(answers_find_title(a, item));
    if (a->data->has_text_items && a->text.n_bytes == 0) return put_id_alone(a, to, place);
    const char *id = show_text(buf_str(&a->id), a->id.n_bytes, ID_WIDTH);
    int n = show_columns(id), width = title_width(a);
    TRY(buf_printf(to, "  %5" PRIu64 "  %*s%s  ", place, n < 8 ? 8 - n : 0, "", id));
    return put_padded(to, show_text(buf_str(&a->text), a->text.n_bytes, width), width);
}

static status item_table(answers *a, uint32_t item, const float *values) {
    TRY(answers_put_item(a, &a->line, (uint64_t)a->n_items, item));
    for (int i = 0; i < a->n_columns; i++) {
        bool is_count = strcmp(a->source, "popular") == 0; /* the score is a number of events */
        if (!isfinite(values[i]))
            TRY(buf_printf(&a->line, " %*s", value_width(a, i), "-"));
        else
            TRY(buf_printf(&a->line, " %*.*f", value_width(a, i), is_count ? 0 : 4,
                           (double)values[i]));
    }
    return buf_char(&a->line, '\n');
}

status answers_item(answers *a, uint32_t item, const float *values) {
    a->n_items++;
    if (a->format == FORMAT_TABLE) return item_table(a, item, values);
    bool needs_text = a->format == FORMAT_CSV || a->data->has_text_items;
    if (needs_text) TRY(seq_item_name(a->data, item, &a->id));
    TRY(answers_find_title(a, item));
    return a->format == FORMAT_CSV ? item_csv(a, values) : item_json(a, item, values);
}

status answers_end(answers *a) {
    if (a->format == FORMAT_JSONL) {
        json_array_close(&a->json);
        TRY(json_finish_object(&a->json));
    }
    if (a->format == FORMAT_TABLE && a->n_items == 0)
        TRY(buf_text(&a->line, "  nothing: no item is left that the model can score\n"));
    if (a->format != FORMAT_CSV) TRY(buf_char(&a->line, '\n'));
    return sink_write(&a->out, buf_str(&a->line), a->line.n_bytes);
}

status answers_text(answers *a, const char *text) {
    return a->format == FORMAT_TABLE ? sink_write(&a->out, text, strlen(text)) : OK;
}

status answers_close(answers *a, status st) {
    buf_fini(&a->line);
    buf_fini(&a->text);
    buf_fini(&a->id);
    buf_fini(&a->who);
    return sink_close(&a->out, st);
}
