/* Content features made by hand for tests of filters and rules: each item has up to three genres of
 * five, a maker or none, and a year or none. */
#ifndef HSTU_TESTS_CONTENT_TEST_H
#define HSTU_TESTS_CONTENT_TEST_H

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/rng.h"
#include "data/set/seq_file.h"

enum { CONTENT_ITEMS = 600, CONTENT_VALUES = 5, CONTENT_FIRST_YEAR = 1990, CONTENT_YEARS = 8 };

typedef struct made_content {
    uint64_t genre_offsets[CONTENT_ITEMS + 2], maker_offsets[CONTENT_ITEMS + 2];
    uint64_t year_offsets[CONTENT_ITEMS + 2];
    uint32_t genre[3 * CONTENT_ITEMS], maker[CONTENT_ITEMS], decade[CONTENT_ITEMS];
    double year[CONTENT_ITEMS + 1];
} made_content;

static inline uint32_t content_draw(uint64_t seed, uint64_t i, uint32_t n) {
    return rng_below(rng_draw64(rng_make_key(seed, RNG_TEST), i, 1).word[0], n);
}

static inline text_column content_names(void) {
    static const char bytes[] = "DramaCrimeIt's \"odd\"\\Комедия7";
    static const uint64_t offsets[] = {0, 0, 5, 10, 21, 35, 36};
    return (text_column){offsets, bytes, CONTENT_VALUES + 1};
}

/* Gives the n_items of a data set their features: "genre", "the maker" and "year". */
static inline void made_content_fill(made_content *m, seq_file *s, uint64_t seed) {
    static const uint64_t decades[] = {0, 0, 2, 4};
    uint64_t n_genres = 0, n_makers = 0, n_years = 0;
    for (uint64_t i = 0; i <= s->n_items; i++) {
        uint32_t bits = i > 0 ? content_draw(seed, 4 * i, 32) : 0;
        uint32_t maker = i > 0 ? content_draw(seed, 4 * i + 1, CONTENT_VALUES + 1) : 0;
        uint32_t year = i > 0 ? content_draw(seed, 4 * i + 2, CONTENT_YEARS + 1) : 0;
        m->genre_offsets[i] = n_genres;
        for (uint32_t v = 0, n = 0; v < CONTENT_VALUES && n < 3; v++)
            if (bits >> v & 1) m->genre[n_genres++] = v + 1, n++;
        m->maker_offsets[i] = n_makers;
        if (maker > 0) m->maker[n_makers++] = maker;
        m->year_offsets[i] = n_years;
        if (year > 0) m->decade[n_years++] = 1 + (year + CONTENT_FIRST_YEAR - 1 >= 1994);
        m->year[i] = year > 0 ? CONTENT_FIRST_YEAR - 1 + (double)year : NAN;
    }
    m->genre_offsets[s->n_items + 1] = n_genres;
    m->maker_offsets[s->n_items + 1] = n_makers;
    m->year_offsets[s->n_items + 1] = n_years;
    s->n_content = 3;
    s->content[0] = (item_content){"genre", m->genre_offsets, m->genre, content_names(), NULL};
    s->content[1] = (item_content){"the maker", m->maker_offsets, m->maker, content_names(), NULL};
    s->content[2] = (item_content){"year", m->year_offsets, m->decade,
                                   (text_column){decades, "8090", 3}, m->year};
}

/* Whether an item of feature f has a value. */
static inline bool content_has(const seq_file *s, int f, uint64_t item, uint32_t value) {
    const item_content *c = &s->content[f];
    for (uint64_t i = c->offsets[item]; i < c->offsets[item + 1]; i++)
        if (c->value[i] == value) return true;
    return false;
}

#endif
