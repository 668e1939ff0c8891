/* The seal of a JSON text (json.h): a checksum of all that stands before it. */
#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "format/json.h"

enum { DIGITS = 8 };

/* What stands before and after the digits, in a text for people and in one line. */
static const struct {
    const char *before, *after;
} layouts[] = {{"\"crc32\": \"", "\"\n}"}, {"\"crc32\":\"", "\"}"}};

char *json_seal(char *text, size_t n, char want[9]) {
    if (n > 0 && text[n - 1] == '\n') n--;
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        size_t before = strlen(layouts[i].before), after = strlen(layouts[i].after);
        if (n < before + DIGITS + after) continue;
        char *end = text + n - after, *member = end - DIGITS - before;
        if (memcmp(end, layouts[i].after, after) != 0 ||
            memcmp(member, layouts[i].before, before) != 0)
            continue;
        snprintf(want, DIGITS + 1, "%08x", crc32_add(0, text, (size_t)(member - text)));
        return end - DIGITS;
    }
    return NULL;
}

bool json_is_sealed(const char *text, size_t n) {
    char want[DIGITS + 1];
    const char *digits = json_seal((char *)text, n, want);
    return digits != NULL && memcmp(digits, want, DIGITS) == 0;
}

static status write_seal(buf *text) {
    char want[DIGITS + 1];
    char *digits = json_seal(text->data, text->n_bytes, want);
    if (digits == NULL) return fail(ERR_FORMAT, "the sealed text is no object");
    memcpy(digits, want, DIGITS);
    return OK;
}

status json_finish_sealed(json_writer *w) {
    json_key_string(w, "crc32", "00000000");
    json_object_close(w);
    TRY(json_finish(w));
    return write_seal(w->out);
}

status json_add_seal(buf *text) {
    static const char end[] = "\n}";
    size_t n = sizeof end - 1;
    if (text->n_bytes < n || memcmp(text->data + text->n_bytes - n, end, n) != 0)
        return fail(ERR_FORMAT, "the text to seal is no indented object");
    text->n_bytes -= n;
    TRY(buf_text(text, ",\n  \"crc32\": \"00000000\"\n}"));
    return write_seal(text);
}
