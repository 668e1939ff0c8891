#include "encode/word_chars.h"

#include <stddef.h>

#include "encode/word_tables.h"

#define N(table) (sizeof(table) / sizeof *(table))

static bool is_in(const char_range *table, size_t n, uint32_t c) {
    size_t low = 0, high = n;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (table[middle].last < c)
            low = middle + 1;
        else
            high = middle;
    }
    return low < n && table[low].first <= c;
}

bool word_char_is_control(uint32_t c) {
    return is_in(CONTROLS, N(CONTROLS), c);
}

bool word_char_is_space(uint32_t c) {
    return c == ' ' || is_in(SPACES, N(SPACES), c);
}

bool word_char_is_chinese(uint32_t c) {
    return c >= CHINESE[0].first && is_in(CHINESE, N(CHINESE), c);
}

bool word_char_is_punctuation(uint32_t c) {
    return is_in(PUNCTUATION, N(PUNCTUATION), c);
}

/* A syllable of Hangul is made of two or three letters: Unicode standard, section 3.12. */
static int strip_hangul(uint32_t c, uint32_t out[WORD_CHAR_MAX]) {
    uint32_t s = c - 0xac00, trail = s % 28;
    out[0] = 0x1100 + s / (21 * 28);
    out[1] = 0x1161 + s % (21 * 28) / 28;
    out[2] = 0x11a7 + trail;
    return trail != 0 ? 3 : 2;
}

static uint32_t find_base(uint32_t c) {
    size_t low = 0, high = N(BASES);
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (BASES[middle].from < c)
            low = middle + 1;
        else
            high = middle;
    }
    return low < N(BASES) && BASES[low].from == c ? BASES[low].to : c;
}

int word_char_strip(uint32_t c, uint32_t out[WORD_CHAR_MAX]) {
    if (c >= 0xac00 && c <= 0xd7a3) return strip_hangul(c, out);
    if (c >= MARKS[0].first && is_in(MARKS, N(MARKS), c)) return 0;
    for (size_t i = 0; c >= LONG_BASES[0].from && i < N(LONG_BASES); i++) {
        const char_bases *to = &LONG_BASES[i];
        if (to->from != c) continue;
        out[0] = to->first;
        out[1] = to->second;
        out[2] = to->third;
        return to->third != 0 ? 3 : 2;
    }
    out[0] = c < BASES[0].from ? c : find_base(c);
    return 1;
}

int word_char_lower(uint32_t c, uint32_t out[WORD_CHAR_MAX]) {
    size_t low = 0, high = N(LOWER);
    out[0] = c;
    if (c == 0x130) { /* a capital I with a dot: i, and the dot as a mark */
        out[0] = 'i';
        out[1] = 0x307;
        return 2;
    }
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (LOWER[middle].last < c)
            low = middle + 1;
        else
            high = middle;
    }
    if (low < N(LOWER) && LOWER[low].first <= c && (c - LOWER[low].first) % LOWER[low].step == 0)
        out[0] = (uint32_t)((int32_t)c + LOWER[low].distance);
    return 1;
}
