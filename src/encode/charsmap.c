#include "encode/charsmap.h"

#include "encode/char_runs.h"

/* Longer clusters are replaced character by character; replacements of Unicode have 33 bytes. */
enum { MAX_CLUSTER_BYTES = 5, MAX_REPLACEMENT = 256 };

/* Classes of UAX #29, in the order of BREAK_RUNS; syllables of Hangul are found by arithmetic.
 * Pairs of regional indicators are not needed: one alone has four bytes, and what follows it makes
 * the cluster too long to be replaced. */
enum { BREAK_OTHER, BREAK_CONTROL, BREAK_PREPEND, BREAK_EXTEND, BREAK_EXTEND_ONLY };
enum { BREAK_LINKER = 5, BREAK_JOINER, BREAK_SPACING, BREAK_CONSONANT, BREAK_PICTOGRAPH };
enum { BREAK_LEAD = 10, BREAK_VOWEL, BREAK_TRAIL, BREAK_SYLLABLE, BREAK_WHOLE_SYLLABLE };
enum { BREAK_SHIFT = 2 };

void char_runs_expand(uint8_t *to, const char *const *rows, size_t n_rows, int shift) {
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
    char_runs_expand(*out, WORD_RUNS, sizeof WORD_RUNS / sizeof *WORD_RUNS, 0);
    char_runs_expand(*out, BREAK_RUNS, sizeof BREAK_RUNS / sizeof *BREAK_RUNS, BREAK_SHIFT);
    for (uint32_t c = 0; c < 0xd7a4 - 0xac00; c++)
        (*out)[0xac00 + c] |=
            (uint8_t)((c % 28 == 0 ? BREAK_SYLLABLE : BREAK_WHOLE_SYLLABLE) << BREAK_SHIFT);
    return OK;
}

word_class char_word_class(const uint8_t *classes, const char *text, size_t n, size_t *length) {
    int bytes = utf8_length(text, n);
    *length = (size_t)bytes;
    return classes[utf8_decode(text, bytes)] & 3;
}

/* What the characters of a cluster so far make of the next one. */
typedef struct cluster {
    int last;       /* class */
    int pictograph; /* 1: a pictograph and its extends; 2: with a joiner after them */
    int conjunct;   /* 1: a consonant and its extends; 2: with a linker among them */
} cluster;

static bool joins_hangul(int a, int b) {
    if (a == BREAK_LEAD) return b == BREAK_LEAD || b == BREAK_VOWEL || b >= BREAK_SYLLABLE;
    if (a == BREAK_SYLLABLE || a == BREAK_VOWEL) return b == BREAK_VOWEL || b == BREAK_TRAIL;
    return (a == BREAK_WHOLE_SYLLABLE || a == BREAK_TRAIL) && b == BREAK_TRAIL;
}

static bool joins(const cluster *k, int next) {
    if (k->last == BREAK_CONTROL || next == BREAK_CONTROL) return false;
    return (next >= BREAK_EXTEND && next <= BREAK_SPACING) || k->last == BREAK_PREPEND ||
           joins_hangul(k->last, next) || (k->conjunct == 2 && next == BREAK_CONSONANT) ||
           (k->pictograph == 2 && next == BREAK_PICTOGRAPH);
}

static void advance(cluster *k, int next) {
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
}

/* Bytes of the cluster at the start of a text. */
static size_t cluster_length(const uint8_t *classes, const char *text, size_t n) {
    cluster k = {0};
    size_t end = 0;
    if (n > 1 && text[0] == '\r' && text[1] == '\n') return 2;
    for (int length; end < n; end += (size_t)length) {
        length = utf8_length(text + end, n - end);
        int next = classes[utf8_decode(text + end, length)] >> BREAK_SHIFT;
        if (end > 0 && !joins(&k, next)) break;
        advance(&k, next);
    }
    return end;
}

status charsmap_open(charsmap *out, const char *path, const char *bytes, size_t n) {
    const unsigned char *u = (const unsigned char *)bytes;
    size_t n_trie = n >= 4 ? (size_t)read_little(u, 4) : 0;
    if (n_trie % 4 != 0 || n_trie == 0 || n_trie > n - 4 ||
        !utf8_is_valid(bytes + 4 + n_trie, n - 4 - n_trie))
        return fail(ERR_FORMAT, "%s: precompiled_charsmap is damaged", path);
    *out = (charsmap){u + 4, n_trie / 4, bytes + 4 + n_trie, n - 4 - n_trie};
    return OK;
}

/* The replacement of the shortest key that begins a text, as transformers has it; false: none. */
static bool look_up(const charsmap *m, const char *text, size_t n, const char **to, size_t *n_to) {
    size_t node = 0;
    uint32_t unit = 0;
    for (size_t i = 0; i <= n && node < m->n_units; i++) {
        unit = (uint32_t)read_little(m->units + 4 * node, 4);
        if (i > 0 && (text[i - 1] == '\0' || (unit & 0x800000ff) != (unsigned char)text[i - 1]))
            return false;
        node ^= (size_t)(unit >> 10) << (unit >> 6 & 8);
        if (i == n || (i > 0 && (unit & 0x100) != 0)) break;
        node ^= (unsigned char)text[i];
    }
    if (node >= m->n_units || (unit & 0x100) == 0) return false;
    size_t at = (size_t)(read_little(m->units + 4 * node, 4) & 0x7fffffff);
    if (at >= m->n_texts || ((unsigned char)m->texts[at] & 0xc0) == 0x80) return false;
    const char *stop = memchr(m->texts + at, '\0', m->n_texts - at);
    *to = m->texts + at;
    *n_to = stop != NULL ? (size_t)(stop - *to) : m->n_texts - at;
    return *n_to <= MAX_REPLACEMENT;
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
