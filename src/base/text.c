#include <locale.h>

#include "base/base.h"

#include "base/text.h"

enum { LEAST_BYTES = 191 }; /* at first: most texts grow by a few bytes at a time */

void buf_fini(buf *b) {
    mem_free(b->data);
    *b = (buf){0};
}

void buf_clear(buf *b) {
    b->n_bytes = 0;
    if (b->data != NULL) b->data[0] = '\0';
}

status buf_reserve(buf *b, size_t n_more) {
    size_t wanted;
    if (__builtin_add_overflow(b->n_bytes, n_more, &wanted) || wanted == SIZE_MAX)
        return fail(ERR_NOMEM, "a text of more than %zu bytes was requested", SIZE_MAX);
    if (b->capacity == 0 && wanted < LEAST_BYTES) wanted = LEAST_BYTES;
    return MEM_RESERVE(&b->data, &b->capacity, wanted + 1);
}

status buf_append(buf *b, const void *bytes, size_t n) {
    if (b->capacity - b->n_bytes <= n) TRY(buf_reserve(b, n));
    if (n > 0) memcpy(b->data + b->n_bytes, bytes, n);
    b->n_bytes += n;
    b->data[b->n_bytes] = '\0';
    return OK;
}

status buf_text(buf *b, const char *text) {
    return buf_append(b, text, strlen(text));
}

status buf_char(buf *b, char c) {
    return buf_append(b, &c, 1);
}

status buf_little(buf *b, uint64_t value, int n_bytes) {
    for (int i = 0; i < n_bytes; i++)
        TRY(buf_char(b, (char)(value >> 8 * i)));
    return OK;
}

status buf_printf(buf *b, const char *fmt, ...) {
    va_list args, again;
    va_start(args, fmt);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    status st =
        n < 0 ? fail(ERR_FORMAT, "a text could not be formatted") : buf_reserve(b, (size_t)n);
    if (st == OK) {
        vsnprintf(b->data + b->n_bytes, (size_t)n + 1, fmt, again);
        b->n_bytes += (size_t)n;
    }
    va_end(again);
    return st;
}

const char *buf_str(const buf *b) {
    return b->data != NULL ? b->data : "";
}

/* snprintf is not for signal handlers. */
static size_t put_hex(char *out, const char *prefix, unsigned code, int n_digits) {
    size_t n = strlen(prefix);
    memcpy(out, prefix, n);
    for (int i = n_digits - 1; i >= 0; i--)
        out[n++] = "0123456789abcdef"[code >> 4 * i & 15];
    out[n] = '\0';
    return n;
}

/* Whether the well-formed character of `length` bytes would change how the text around it looks. */
static bool escape_is_hidden(const char *character, int length) {
    static const struct {
        unsigned first, last;
    } hidden[] = {{0, 0x1f},        {0x7f, 0x9f},     {0xad, 0xad},      {0x61c, 0x61c},
                  {0x180e, 0x180e}, {0x200b, 0x200f}, {0x2028, 0x202e},  {0x2060, 0x206f},
                  {0xfeff, 0xfeff}, {0xfff9, 0xfffb}, {0xe0000, 0xe007f}};
    unsigned code = utf8_decode(character, length);
    for (size_t i = 0; i < sizeof hidden / sizeof *hidden; i++)
        if (code >= hidden[i].first && code <= hidden[i].last) return true;
    return false;
}

int escape_next(char out[ESCAPE_BYTES], size_t *n_out, const char *from, size_t n) {
    int length = utf8_length(from, n);
    unsigned code = length > 0 ? utf8_decode(from, length) : (unsigned char)from[0];
    if (length > 0 && !escape_is_hidden(from, length)) {
        memcpy(out, from, (size_t)length);
        out[ *n_out = (size_t)length] = '\0';
    } else if (code == '\n' || code == '\t' || code == '\r') {
        memcpy(out, code == '\n' ? "\\n" : code == '\t' ? "\\t" : "\\r", *n_out = 2);
        out[2] = '\0';
    } else if (code < 0x100) { /* also a byte that is no character */
        *n_out = put_hex(out, "\\x", code, 2);
    } else {
        *n_out = code < 0x10000 ? put_hex(out, "\\u", code, 4) : put_hex(out, "\\U", code, 8);
    }
    return length > 0 ? length : 1;
}

char *escape_text(char *out, size_t size, const char *from) {
    size_t used = 0, n = strlen(from);
    while (n > 0) {
        char piece[ESCAPE_BYTES];
        size_t n_piece;
        int taken = escape_next(piece, &n_piece, from, n);
        if (used + n_piece + 1 > size) break;
        memcpy(out + used, piece, n_piece);
        used += n_piece, from += taken, n -= (size_t)taken;
    }
    out[used] = '\0';
    return out;
}

const char *escape_excerpt(char out[64], const char *text, size_t n_bytes) {
    enum { SHOWN_BYTES = 40 };
    size_t n = 0, at = 0;
    while (at < n_bytes) {
        int length = utf8_length(text + at, n_bytes - at);
        bool is_shown = length > 0 && !escape_is_hidden(text + at, length);
        if (n + (is_shown ? (size_t)length : 1) > SHOWN_BYTES) break;
        if (is_shown) memcpy(out + n, text + at, (size_t)length);
        if (!is_shown) out[n] = '?';
        n += is_shown ? (size_t)length : 1;
        at += length > 0 ? (size_t)length : 1;
    }
    strcpy(out + n, at < n_bytes ? "..." : "");
    return out;
}

void escape_list_add(char *list, size_t size, const char *name, size_t n_bytes) {
    char text[64];
    size_t used = strlen(list);
    if (used + 70 >= size) return;
    snprintf(list + used, size - used, "%s%s", used > 0 ? ", " : "",
             escape_excerpt(text, name, n_bytes));
}

enum { MAX_DECIMALS = 12 };

bool text_ends_with(const char *text, const char *end) {
    size_t n = strlen(text), n_end = strlen(end);
    return n >= n_end && strcmp(text + n - n_end, end) == 0;
}

void text_add(char *text, size_t size, const char *fmt, ...) {
    size_t used = strlen(text);
    va_list args;
    va_start(args, fmt);
    vsnprintf(text + used, size - used, fmt, args);
    va_end(args);
}

int text_restore_point(char *text) {
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

status text_read_double(const char *text, char **end, double *out) {
    locale_t c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (c_locale == (locale_t)0) return fail_errno("the C locale cannot be used");
    *out = strtod_l(text, end, c_locale);
    freelocale(c_locale);
    return OK;
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
    return text_restore_point(text);
}

enum { LONGEST = 96 };

/* Levenshtein distance times two, so that a difference in case can cost half. */
static int distance2(const char *a, const char *b) {
    int row[LONGEST + 1];
    int n = (int)strnlen(b, LONGEST), m = (int)strnlen(a, LONGEST);
    for (int j = 0; j <= n; j++)
        row[j] = 2 * j;
    for (int i = 1; i <= m; i++) {
        int diagonal = row[0];
        row[0] = 2 * i;
        for (int j = 1; j <= n; j++) {
            unsigned char x = (unsigned char)a[i - 1], y = (unsigned char)b[j - 1];
            int best = diagonal + (x == y ? 0 : tolower(x) == tolower(y) ? 1 : 2);
            if (row[j] + 2 < best) best = row[j] + 2;
            if (row[j - 1] + 2 < best) best = row[j - 1] + 2;
            diagonal = row[j];
            row[j] = best;
        }
    }
    return row[n];
}

const char *nearest_name(const char *word, const char *const *names, size_t n_names) {
    const char *best_name = NULL;
    int best = 0;
    for (size_t i = 0; i < n_names; i++) {
        int d = distance2(word, names[i]);
        if (best_name == NULL || d < best) best_name = names[i], best = d;
    }
    /* A third of the word may be wrong, but at least one letter.  The dashes at the start of an
     * option are always right, so they do not count. */
    word += strspn(word, "-");
    int limit = 2 * ((int)strnlen(word, LONGEST) / 3 + 1);
    return best_name != NULL && best <= limit ? best_name : NULL;
}

const char *nearest_hint(char out[80], const char *word, const char *list) {
    char copy[512], *rest;
    const char *names[128] = {0};
    size_t n = 0;
    snprintf(copy, sizeof copy, "%s", list);
    for (char *at = strtok_r(copy, ",", &rest); at != NULL && n < 128;
         at = strtok_r(NULL, ",", &rest))
        names[n++] = at + strspn(at, " ");
    const char *near = nearest_name(word, names, n);
    for (size_t i = 0; i < n; i++) /* item for item_id */
        if (strlen(names[i]) > 2 && strstr(word, names[i]) != NULL) near = names[i];
    snprintf(out, 80, near != NULL ? " (did you mean '%.50s'?)" : "%.0s", near != NULL ? near : "");
    return out;
}

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

const char *text_grouped(char text[GROUPED_BYTES], uint64_t value) {
    char digits[24];
    int n = snprintf(digits, sizeof digits, "%" PRIu64, value), at = 0;
    for (int i = 0; i < n; i++) {
        if (i > 0 && (n - i) % 3 == 0) text[at++] = ',';
        text[at++] = digits[i];
    }
    text[at] = '\0';
    return text;
}
