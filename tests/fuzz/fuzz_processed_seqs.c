/* Any bytes as a row of a csv with one user per row: fields, then lists. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "data/read/csv.h"
#include "data/read/row_field.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_list(const csv_field *field) {
    list_reader r;
    bool has_element = true;
    if (list_begin(&r, field) != OK) return;
    for (size_t n = 0; has_element; n++) {
        csv_field element;
        int64_t value;
        uint16_t action;
        if (list_next(&r, &element, &has_element) != OK || !has_element) return;
        /* A list has no more elements than bytes, and they are inside the field. */
        if (n > field->n_bytes || element.text < field->text ||
            element.text + element.n_bytes > field->text + field->n_bytes)
            abort();
        (void)number_read(element.text, element.n_bytes, &value);
        const time_plan integers = {.form = TIME_RAW};
        int digits = 0;
        (void)time_parse(&integers, element.text, element.n_bytes, &value, &digits);
        for (int kind = ACTION_NONE; kind <= ACTION_CODE; kind++)
            (void)action_parse((action_kind)kind, element.text, element.n_bytes, &action);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const csv_format format = {",", true};
    enum { MAX_FIELDS = 8 };
    csv_field fields[MAX_FIELDS];
    int n = 0;
    char *line = malloc(size + (size == 0));
    if (line == NULL) return 0;
    if (size > 0) memcpy(line, data, size);
    if (csv_split(&format, line, size, fields, MAX_FIELDS, &n) == OK)
        for (int i = 0; i < n && i < MAX_FIELDS; i++)
            read_list(&fields[i]);
    free(line);
    return 0;
}
