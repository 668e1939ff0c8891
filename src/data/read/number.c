#include "data/read/number.h"

#include <stdbool.h>

number_kind number_read(const char *text, size_t n, int64_t *out) {
    bool is_negative = n > 0 && text[0] == '-', is_too_large = false;
    int64_t value = 0;
    size_t i = is_negative;
    if (i == n) return NUMBER_NOT_WHOLE;
    for (; i < n; i++) {
        int digit = text[i] - '0';
        if (digit < 0 || digit > 9) return NUMBER_NOT_WHOLE;
        /* Negative values are built downwards, so that -2^63 fits. */
        is_too_large |= __builtin_mul_overflow(value, 10, &value);
        is_too_large |= __builtin_add_overflow(value, is_negative ? -digit : digit, &value);
    }
    if (is_too_large) return NUMBER_TOO_LARGE;
    *out = value;
    return NUMBER_WHOLE;
}

number_kind number_read_id(const char *text, size_t n, int64_t *out) {
    number_kind kind = number_read(text, n, out);
    size_t first = n > 0 && text[0] == '-';
    return kind != NUMBER_NOT_WHOLE && n > 1 && text[first] == '0' ? NUMBER_NOT_PLAIN : kind;
}

const char *number_fault(number_kind kind) {
    return kind == NUMBER_TOO_LARGE   ? "does not fit a 64-bit number"
           : kind == NUMBER_NOT_PLAIN ? "is not a whole number as one is written, without zeros "
                                        "before it"
                                      : "is not a whole number";
}
