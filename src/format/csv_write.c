#include "format/csv_write.h"

#include <stdbool.h>

status csv_put_quoted(buf *b, const char *text, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (text[i] == '"') TRY(buf_char(b, '"'));
        TRY(buf_char(b, text[i]));
    }
    return OK;
}

status csv_put_field(buf *b, const char *text, size_t n) {
    bool is_plain = n > 0;
    for (size_t i = 0; i < n; i++)
        is_plain &= text[i] != '"' && text[i] != ',' && text[i] != '\r' && text[i] != '\n' &&
                    text[i] != '\0';
    if (is_plain) return buf_append(b, text, n);
    TRY(buf_char(b, '"'));
    TRY(csv_put_quoted(b, text, n));
    return buf_char(b, '"');
}
