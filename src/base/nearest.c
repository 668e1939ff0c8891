#include "base/nearest.h"

#include <ctype.h>
#include <string.h>

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
