#include "base/float_text.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_DECIMALS = 12 };

/* printf and strtof use the decimal point of the locale, which may be several bytes. */
static int restore_point(char *text) {
    char *to = text;
    for (const char *from = text; *from != '\0'; from++) {
        if (strchr("+-0123456789e", *from) != NULL)
            *to++ = *from;
        else if (to == text || to[-1] != '.')
            *to++ = '.';
    }
    *to = '\0';
    return (int)(to - text);
}

/* The digits of n / 10^decimals, without zeros at the end. */
static int put_decimal(char *text, bool is_negative, uint64_t n, int decimals) {
    char digits[24];
    int n_digits = 0, at = 0;
    while (decimals > 0 && n % 10 == 0)
        n /= 10, decimals--;
    do
        digits[n_digits++] = (char)('0' + n % 10);
    while ((n /= 10) != 0);
    while (n_digits <= decimals)
        digits[n_digits++] = '0';
    if (is_negative) text[at++] = '-';
    while (n_digits > 0) {
        if (n_digits == decimals) text[at++] = '.';
        text[at++] = digits[--n_digits];
    }
    text[at] = '\0';
    return at;
}

/* Scores are mostly of moderate size.  There n / 10^d is one exact division: n has at most nine
 * digits, and the power is exact as a double.  Rounding it to a double and then to a float gives
 * the float that the decimal text gives: the only danger is a double in the middle between two
 * floats, m 2^e with m < 2^25, for a text beside it; but n 2^-e and m 5^d 2^d are integers (after
 * the common power of two) below 2^53, so if they differ at all a double tells them apart. */
static int moderate_text(char text[FLOAT_TEXT_BYTES], float value) {
    static const double power[MAX_DECIMALS + 1] = {1,   1e1, 1e2, 1e3,  1e4,  1e5, 1e6,
                                                   1e7, 1e8, 1e9, 1e10, 1e11, 1e12};
    double size = fabs((double)value);
    int whole = 1; /* digits before the point, or minus the zeros after it */
    while (whole < 8 && size >= power[whole])
        whole++;
    while (whole > -3 && whole <= 1 && size * power[1 - whole] < 1)
        whole--;
    for (int digits = 1; digits <= 9; digits++) {
        int decimals = digits > whole ? digits - whole : 0;
        uint64_t n = (uint64_t)(size * power[decimals] + .5);
        if ((float)((double)n / power[decimals]) == (float)size)
            return put_decimal(text, value < 0, n, decimals);
    }
    return 0;
}

int float_text(char text[FLOAT_TEXT_BYTES], float value) {
    if (!isfinite(value))
        return snprintf(text, FLOAT_TEXT_BYTES, "%s",
                        isnan(value) ? "nan"
                        : value > 0  ? "inf"
                                     : "-inf");
    if (fabsf(value) >= 1e-3f && fabsf(value) < 1e7f) {
        int n = moderate_text(text, value);
        if (n > 0) return n;
    }
    for (int digits = 6; digits <= 9; digits++) {
        snprintf(text, FLOAT_TEXT_BYTES, "%.*g", digits, (double)value);
        if (strtof(text, NULL) == value) break;
    }
    return restore_point(text);
}
