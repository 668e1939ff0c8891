/* Any text as a time: what is guessed must be read by the plan of the guess, and lie in the range;
 * what is read must be a whole number of the ticks that it asks for. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "data/read/time_text.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_read(const time_plan *plan, const char *text, size_t n) {
    int64_t ns, per_tick = 1000000000;
    int digits = 0;
    time_fault fault = time_parse(plan, text, n, &ns, &digits);
    if (fault != TIME_FINE) {
        if (time_fail(plan, fault, text, n) != ERR_FORMAT || status_reason()[0] == 0) abort();
        return;
    }
    if (plan->form == TIME_RAW) return;
    for (int i = 0; i < digits; i++)
        per_tick /= 10;
    if (ns % per_tick != 0 || ns / 1000000000 < -2208988800 || ns / 1000000000 > 7258118399)
        abort();
}

/* The first line as a format, the rest as a time. */
static void check_format(const char *text, size_t size) {
    char format[64] = "";
    const char *end = memchr(text, '\n', size);
    size_t n = end != NULL ? (size_t)(end - text) : size;
    time_plan plan;
    if (n >= sizeof format) return;
    memcpy(format, text, n);
    if (time_plan_parse_format(&plan, format) == OK && end != NULL)
        check_read(&plan, end + 1, size - n - 1);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    time_form form;
    time_unit unit;
    time_plan plan;
    /* An exact allocation, so that a read after the end is found. */
    char *text = malloc(size + (size == 0));
    if (text == NULL) return 0;
    memcpy(text, data, size);
    if (time_guess(text, size, &form, &unit)) {
        int64_t ns;
        int digits = 0;
        time_plan_set(&plan, form, unit, false);
        time_fault fault = time_parse(&plan, text, size, &ns, &digits);
        if (fault != TIME_FINE && fault != TIME_BEYOND) abort();
    }
    for (int f = TIME_RAW; f < N_TIME_FORMS; f++)
        for (int u = 0; u < 2 * N_TIME_UNITS; u++) {
            time_plan_set(&plan, (time_form)f, (time_unit)(u / 2), u % 2 == 1);
            check_read(&plan, text, size);
        }
    check_format(text, size);
    free(text);
    return 0;
}
