#include <inttypes.h>

#include "cli/model/recommend.h"

enum { SHOWN_EVENTS = 10 };

static status put_event(buf *text, answers *out, const user_events *u, uint64_t i, bool has_date) {
    char date[SHOW_BYTES];
    TRY(answers_put_item(out, text, i + 1, u->item[i]));
    show_date(date, u->time[i] / out->data->time_per_second);
    return buf_printf(text, " %.32s\n", has_date ? date : "");
}

status recommend_show_history(answers *out, const user_events *u, bool has_dates) {
    uint64_t first = u->n > SHOWN_EVENTS ? u->n - SHOWN_EVENTS : 0;
    buf text;
    if (out->format != FORMAT_TABLE) return OK;
    buf_init(&text);
    status st = buf_printf(&text, "%sHistory%s: %" PRIu64 " event%s%s\n\n", out->style.bold,
                           out->style.plain, u->n, u->n == 1 ? "" : "s",
                           first > 0 ? ", the newest ten" : "");
    for (uint64_t i = first; st == OK && i < u->n; i++)
        st = put_event(&text, out, u, i, has_dates);
    if (st == OK && u->n > 0) st = buf_char(&text, '\n');
    if (st == OK) st = answers_text(out, buf_str(&text));
    buf_fini(&text);
    return st;
}
