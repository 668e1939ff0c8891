#include "encode/charsmap.h"

#include <stdbool.h>
#include <string.h>

#include "base/mem.h"
#include "encode/char_runs.h"

/* Replacements of Unicode have at most 33 bytes. */
enum { MAX_REPLACEMENT = 256 };

/* Longer clusters are replaced character by character. */
enum { MAX_CLUSTER_BYTES = 5 };

/* Classes of UAX #29, in the order of BREAK_RUNS.  Pairs of regional indicators are not needed:
 * one alone has four bytes, and what follows it makes the cluster too long to be replaced. */
typedef enum {
    BREAK_OTHER,
    BREAK_CONTROL,
    BREAK_PREPEND,
    BREAK_EXTEND,
    BREAK_EXTEND_ONLY,
    BREAK_LINKER,
    BREAK_JOINER,
    BREAK_SPACING,
    BREAK_CONSONANT,
    BREAK_PICTOGRAPH,
    BREAK_LEAD,
    BREAK_VOWEL,
    BREAK_TRAIL,
    BREAK_SYLLABLE,       /* of Hangul, lead and vowel */
    BREAK_WHOLE_SYLLABLE, /* and trail */
} break_class;

enum { BREAK_SHIFT = 2 };

static void expand(uint8_t *to, const char *const *rows, size_t n_rows, int shift) {
    size_t code = 0;
    for (size_t i = 0; i < n_rows; i++)
        for (const char *at = rows[i]; *at != '\0';) {
            uint8_t class = (uint8_t)((*at++ - 'a') << shift);
            size_t n = 0;
            while (*at >= '0' && *at <= '9')
                n = n * 10 + (size_t)(*at++ - '0');
            for (n = n > 0 ? n : 1; n > 0; n--)
                to[code++] |= class;
        }
}

status char_classes_create(uint8_t **out) {
    TRY(MEM_NEW(out, CHAR_CODES));
    expand(*out, WORD_RUNS, sizeof WORD_RUNS / sizeof *WORD_RUNS, 0);
    expand(*out, BREAK_RUNS, sizeof BREAK_RUNS / sizeof *BREAK_RUNS, BREAK_SHIFT);
    for (uint32_t c = 0xac00; c <= 0xd7a3; c++)
        (*out)[c] |= (uint8_t)(((c - 0xac00) % 28 == 0 ? BREAK_SYLLABLE : BREAK_WHOLE_SYLLABLE)
                               << BREAK_SHIFT);
    return OK;
}

/* The code point of the well-formed character at the start of a text. */
static uint32_t decode(const char *text, size_t n, size_t *length) {
    const unsigned char *u = (const unsigned char *)text;
    *length = (size_t)utf8_length(text, n);
    if (*length == 1) return u[0];
    uint32_t c = u[0] & (0xffu >> (*length + 1));
    for (size_t i = 1; i < *length; i++)
        c = c << 6 | (u[i] & 0x3fu);
    return c;
}

word_class char_word_class(const uint8_t *classes, const char *text, size_t n, size_t *length) {
    return classes[decode(text, n, length)] & 3;
}

/* What the characters before the next one make of it: the rules of UAX #29 that look further back
 * than one character. */
typedef struct cluster {
    break_class last;
    bool is_return; /* the last one is U+000D */
    int pictograph; /* 1: a pictograph and its extends; 2: with a joiner after them */
    int conjunct;   /* 1: a consonant and its extends; 2: with a linker among them */
} cluster;

static bool joins_hangul(break_class a, break_class b) {
    if (a == BREAK_LEAD) return b == BREAK_LEAD || b == BREAK_VOWEL || b >= BREAK_SYLLABLE;
    if (a == BREAK_SYLLABLE || a == BREAK_VOWEL) return b == BREAK_VOWEL || b == BREAK_TRAIL;
    return (a == BREAK_WHOLE_SYLLABLE || a == BREAK_TRAIL) && b == BREAK_TRAIL;
}

/* Whether a character belongs to the cluster before it. */
static bool joins(const cluster *k, uint32_t c, break_class next) {
    if (k->is_return && c == '\n') return true;
    if (k->last == BREAK_CONTROL || next == BREAK_CONTROL) return false;
    if (next >= BREAK_EXTEND && next <= BREAK_SPACING) return true;
    if (k->last == BREAK_PREPEND || joins_hangul(k->last, next)) return true;
    return (k->conjunct == 2 && next == BREAK_CONSONANT) ||
           (k->pictograph == 2 && next == BREAK_PICTOGRAPH);
}

static void advance(cluster *k, uint32_t c, break_class next) {
    bool extends = next >= BREAK_EXTEND && next <= BREAK_LINKER;
    bool conjoins = next == BREAK_EXTEND || next == BREAK_JOINER;
    if (next == BREAK_PICTOGRAPH)
        k->pictograph = 1;
    else if (!(k->pictograph == 1 && extends))
        k->pictograph = k->pictograph == 1 && next == BREAK_JOINER ? 2 : 0;
    if (next == BREAK_CONSONANT)
        k->conjunct = 1;
    else if (!conjoins)
        k->conjunct = k->conjunct > 0 && next == BREAK_LINKER ? 2 : 0;
    k->last = next;
    k->is_return = c == '\r';
}

/* Bytes of the cluster at the start of a text. */
static size_t cluster_length(const uint8_t *classes, const char *text, size_t n) {
    cluster k = {0};
    size_t end = 0;
    while (end < n) {
        size_t length;
        uint32_t c = decode(text + end, n - end, &length);
        break_class next = classes[c] >> BREAK_SHIFT;
        if (end > 0 && !joins(&k, c, next)) break;
        advance(&k, c, next);
        end += length;
    }
    return end;
}

status charsmap_open(charsmap *out, const char *path, const char *bytes, size_t n) {
    const unsigned char *u = (const unsigned char *)bytes;
    size_t n_trie = n >= 4 ? (size_t)read_little(u, 4) : 0;
    if (n < 4 || n_trie % 4 != 0 || n_trie == 0 || n_trie > n - 4)
        return fail(ERR_FORMAT, "%s: precompiled_charsmap is damaged: %zu bytes, a trie of %zu",
                    path, n, n_trie);
    *out = (charsmap){u + 4, n_trie / 4, bytes + 4 + n_trie, n - 4 - n_trie};
    if (!utf8_is_valid(out->texts, out->n_texts))
        return fail(ERR_FORMAT, "%s: precompiled_charsmap is damaged: not UTF-8", path);
    for (size_t at = 0, end; at < out->n_texts; at = end + 1) {
        const char *stop = memchr(out->texts + at, '\0', out->n_texts - at);
        end = stop != NULL ? (size_t)(stop - out->texts) : out->n_texts;
        if (end - at > MAX_REPLACEMENT)
            return fail(ERR_FORMAT, "%s: precompiled_charsmap has a text of %zu bytes, too long",
                        path, end - at);
    }
    return OK;
}

/* The replacement of the shortest key that begins a text, as transformers has it; false: none. */
static bool look_up(const charsmap *m, const char *text, size_t n, const char **to, size_t *n_to) {
    size_t node = 0;
    for (size_t i = 0; i <= n; i++) {
        if (node >= m->n_units) return false;
        uint32_t unit = (uint32_t)read_little(m->units + 4 * node, 4);
        unsigned char label = i > 0 ? (unsigned char)text[i - 1] : 0;
        if (i > 0 && ((unit & 0x800000ff) != label || label == 0)) return false;
        node ^= (size_t)(unit >> 10) << (unit >> 6 & 8);
        if (i > 0 && (unit >> 8 & 1) != 0) break;
        if (i == n) return false;
        node ^= (unsigned char)text[i];
    }
    if (node >= m->n_units) return false;
    size_t at = (size_t)(read_little(m->units + 4 * node, 4) & 0x7fffffff);
    if (at >= m->n_texts || ((unsigned char)m->texts[at] & 0xc0) == 0x80) return false;
    const char *stop = memchr(m->texts + at, '\0', m->n_texts - at);
    *to = m->texts + at;
    *n_to = stop != NULL ? (size_t)(stop - *to) : m->n_texts - at;
    return true;
}

status charsmap_apply(const charsmap *m, const uint8_t *classes, const char *text, size_t n,
                      buf *to) {
    for (size_t at = 0, end, length; at < n; at = end) {
        const char *by;
        size_t n_by;
        end = at + cluster_length(classes, text + at, n - at);
        if (end - at <= MAX_CLUSTER_BYTES && look_up(m, text + at, end - at, &by, &n_by)) {
            TRY(buf_append(to, by, n_by));
            continue;
        }
        for (; at < end; at += length) {
            length = (size_t)utf8_length(text + at, n - at);
            bool is_found = look_up(m, text + at, length, &by, &n_by);
            TRY(buf_append(to, is_found ? by : text + at, is_found ? n_by : length));
        }
    }
    return OK;
}
