#include "data/number.h"

#include <stdbool.h>

status number_parse_int64(const char *text, size_t n, int64_t *out) {
    bool is_negative = n > 0 && text[0] == '-';
    size_t i = n > 0 && (text[0] == '-' || text[0] == '+') ? 1 : 0;
    int64_t value = 0;
    int shown = n < 40 ? (int)n : 40;
    if (i == n) return fail(ERR_FORMAT, "'%.*s' is not a whole number", shown, text);
    for (; i < n; i++) {
        int digit = text[i] - '0';
        if (digit < 0 || digit > 9)
            return fail(ERR_FORMAT, "'%.*s' is not a whole number", shown, text);
        /* Negative values are built downwards, so that -2^63 fits. */
        if (__builtin_mul_overflow(value, 10, &value) ||
            __builtin_add_overflow(value, is_negative ? -digit : digit, &value))
            return fail(ERR_FORMAT, "'%.*s' does not fit 64 bits", shown, text);
    }
    *out = value;
    return OK;
}
