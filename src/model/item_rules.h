/* Item rules: what a request says about the items of its list besides the user: which may be in it
 * (filter, allow, deny), which count more (boost), how many of a kind (max_per) and which come
 * first whatever their scores (pin).
 *
 * The list is exact.  Order: the boosted score, then the model's score, then the row.  From the top
 * each item is taken unless max_per items that share one of its values are in the list already; the
 * list ends with k items or when no other item may follow.  Pinned items come first, count for
 * max_per and are never skipped.
 *
 * Pure functions; rules may be read by any number of threads. */
#pragma once

#include "format/json.h"
#include "model/item_filter.h"

enum {
    RULES_BOOSTS = 6, /* 64 classes of items that differ in their boosts */
    RULES_ID_BYTES = 255
};

typedef struct item_rules {
    const seq_file *items;
    const int32_t *item; /* (n_rows): the item of a row */
    int64_t n_rows;
    uint64_t *allowed; /* bits of the rows: filter, allow, deny; NULL: all rows */
    struct {
        const uint64_t *rows; /* bits */
        float times, add;     /* score * times + add */
    } boost[RULES_BOOSTS];
    struct {
        const item_content *feature;
        int64_t most; /* items of each value; a number's values are its buckets */
    } limit[ITEM_CONTENT_MAX];
    int n_boosts, n_limits;
    const int32_t *pin; /* (n_pins): rows, in their order */
    int32_t n_pins;
} item_rules;

/* Reads the members filter, allow, deny (or exclude), boost, max_per and pin of an object; others
 * are not looked at.  row: by item number, -1: none.  *n_unknown grows by ids that are no item.
 * ERR_USAGE: what is wrong; a pinned item that is denied is.  What it makes is memory of the arena;
 * the rules point to the cache's catalogue. */
status item_rules_read(item_rules *r, arena *a, filter_cache *c, const int32_t *row, int32_t k,
                       const json_value *object, size_t *n_unknown);

/* The same from a JSON text, which may have no other members. */
status item_rules_read_text(item_rules *r, arena *a, filter_cache *c, const int32_t *row, int32_t k,
                            const char *text, size_t *n_unknown);

/* Whether the list is more than the best of the allowed rows. */
static inline bool item_rules_order(const item_rules *r) {
    return r->n_boosts > 0 || r->n_limits > 0 || r->n_pins > 0;
}

/* Where scores come from: the k best rows of each of n sets of allowed rows, (n, k), best first, of
 * equal ones the smaller row; -1 where there are fewer. */
typedef struct rules_source {
    void *ctx;
    int32_t widest; /* the largest k, not less than that of a list */
    status (*best)(void *ctx, int32_t n, const uint64_t *const *allowed, int32_t k, int32_t *row,
                   float *score);
} rules_source;

/* The list: row and score (k), *n of them.  left: bits of the rows that may be in it, which it
 * changes.  Scores are the boosted ones.  Rows that the source never finds, as those whose score is
 * no number, are not in the list, or have the score NAN where they are pinned. */
status item_rules_run(const item_rules *r, arena *a, const rules_source *s, uint64_t *left,
                      int32_t k, int32_t *row, float *score, int32_t *n);
