/* The seal of a JSON text (json.h): a checksum of all that stands before it. */
#include <stdio.h>
#include <string.h>

#include "base/crc32.h"
#include "base/json.h"

enum { DIGITS = 8 };

/* What stands before and after the digits, in a text for people and in one line. */
static const struct {
    const char *before, *after;
} layouts[] = {{"\"crc32\": \"", "\"\n}"}, {"\"crc32\":\"", "\"}"}};

char *json_seal(char *text, size_t n, char want[9]) {
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

status json_finish_sealed(json_writer *w) {
    char want[DIGITS + 1];
    json_key_string(w, "crc32", "00000000");
    json_object_close(w);
    TRY(json_finish(w));
    char *digits = json_seal(w->out->data, w->out->n_bytes, want);
    if (digits == NULL) return fail(ERR_FORMAT, "the sealed text is no object");
    memcpy(digits, want, DIGITS);
    return OK;
}
