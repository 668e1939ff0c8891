#include "data/set/emit_csv.h"

#include <string.h>

#include "base/text.h"
#include "format/json.h"

enum { NUMBER_BYTES = 24, FLUSH_BYTES = 1 << 20 };

/* Appends a number to a buffer that has room for it. */
static void put_number(buf *b, int64_t value) {
    char digits[NUMBER_BYTES];
    int n = 0;
    uint64_t rest = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    do
        digits[n++] = (char)('0' + rest % 10);
    while ((rest /= 10) != 0);
    if (value < 0) digits[n++] = '-';
    while (n > 0)
        b->data[b->n_bytes++] = digits[--n];
}

static status put_item_text(buf *b, const seq_file *s, uint32_t item, buf *scratch) {
    const text_column *texts = &s->item_text;
    uint64_t from = texts->offsets[item], to = texts->offsets[item + 1];
    json_writer w;
    buf_clear(scratch);
    json_begin(&w, scratch, 0);
    json_string_n(&w, texts->bytes + from, (size_t)(to - from));
    TRY(json_finish(&w));
    return csv_put_quoted(b, buf_str(scratch), scratch->n_bytes);
}

typedef enum { LIST_ITEM, LIST_ACTION, LIST_TIME } list_kind;

static status put_element(buf *b, const seq_file *s, list_kind kind, uint64_t event, buf *scratch) {
    if (kind == LIST_ITEM && s->has_text_items) return put_item_text(b, s, s->item[event], scratch);
    TRY(buf_reserve(b, NUMBER_BYTES));
    put_number(b, kind == LIST_ITEM     ? s->item_id[s->item[event]]
                  : kind == LIST_ACTION ? s->action[event]
                                        : s->time[event]);
    return OK;
}

static status put_list(buf *b, const seq_file *s, list_kind kind, uint64_t user, buf *scratch) {
    uint64_t first = s->offsets[user], end = s->offsets[user + 1];
    TRY(buf_text(b, ",\"["));
    for (uint64_t event = first; event < end; event++) {
        if (event > first) TRY(buf_append(b, ", ", 2));
        TRY(put_element(b, s, kind, event, scratch));
    }
    return buf_text(b, "]\"");
}

static status put_user(buf *b, const seq_file *s, uint64_t user, buf *scratch) {
    TRY(seq_user_name(s, user, scratch));
    TRY(csv_put_field(b, buf_str(scratch), scratch->n_bytes));
    for (int kind = LIST_ITEM; kind <= LIST_TIME; kind++)
        TRY(put_list(b, s, (list_kind)kind, user, scratch));
    return buf_char(b, '\n');
}

static status write_rows(const seq_file *s, const char *item_name, out_file *f, buf *b,
                         buf *scratch) {
    TRY(buf_text(b, "user_id,"));
    TRY(csv_put_field(b, item_name, strlen(item_name)));
    TRY(buf_text(b, ",rating,unix_timestamp\n"));
    for (uint64_t user = 0; user < s->n_users; user++) {
        TRY(put_user(b, s, user, scratch));
        if (b->n_bytes < FLUSH_BYTES && user + 1 < s->n_users) continue;
        TRY(out_file_write(f, b->data, b->n_bytes));
        buf_clear(b);
    }
    return OK;
}

status emit_csv(const seq_file *s, const char *item_name, out_file *f) {
    buf b, scratch;
    buf_init(&b);
    buf_init(&scratch);
    status st = write_rows(s, item_name, f, &b, &scratch);
    buf_fini(&b);
    buf_fini(&scratch);
    return st;
}
