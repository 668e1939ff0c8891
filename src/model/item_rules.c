#include "model/item_rules.h"

#include <float.h>

static size_t n_words(const item_rules *r) {
    return (size_t)r->n_rows / 64 + 1;
}

static bool has_bit(const uint64_t *bits, int32_t row) {
    return bits[row / 64] >> row % 64 & 1;
}

static void set_bit(uint64_t *bits, int32_t row) {
    bits[row / 64] |= (uint64_t)1 << row % 64;
}

static void clear_bit(uint64_t *bits, int32_t row) {
    bits[row / 64] &= ~((uint64_t)1 << row % 64);
}

/* Reading. */

typedef struct reader {
    item_rules *r;
    arena *a;
    filter_cache *cache;
    const int32_t *row;
    const json_value *object;
    size_t *n_unknown;
    uint64_t *denied; /* bits of rows that may not be pinned */
} reader;

/* The rows of a list of ids that the catalogue has, in its order. */
static status read_rows(const reader *d, const json_value *list, int32_t **out, int32_t *n) {
    const seq_file *items = d->r->items;
    char digits[24];
    *n = 0;
    if (list->type != JSON_ARRAY) return fail(ERR_USAGE, "%s: expected a list of ids", list->key);
    TRY(ARENA_NEW_RAW(d->a, out, list->n_children));
    for (const json_value *v = list->first; v != NULL; v = v->next) {
        bool is_number = v->type == JSON_NUMBER && v->is_integer;
        if (!is_number && v->type != JSON_STRING)
            return fail(ERR_USAGE, "%s: an id is an integer or a string", list->key);
        if (!is_number && (v->string_bytes == 0 || v->string_bytes > RULES_ID_BYTES))
            return fail(ERR_USAGE, "%s: an id has 1 to %d bytes", list->key, RULES_ID_BYTES);
        if (is_number) snprintf(digits, sizeof digits, "%" PRId64, v->integer);
        uint32_t item = is_number && !items->has_text_items
                            ? seq_find_item_number(items, v->integer)
                            : seq_find_item(items, is_number ? digits : v->string);
        *d->n_unknown += item == 0;
        if (item > 0 && d->row[item] >= 0) (*out)[(*n)++] = d->row[item];
    }
    return OK;
}

static status read_filter(const reader *d, const json_value *v, uint64_t **bits) {
    if (v->type != JSON_STRING) return fail(ERR_USAGE, "filter: expected a string");
    TRY(ARENA_NEW_RAW(d->a, bits, n_words(d->r)));
    return filter_cache_bits(d->cache, v->string, v->string_bytes, *bits);
}

static status read_list(const reader *d, const json_value *v, uint64_t **bits) {
    int32_t *rows, n;
    TRY(ARENA_NEW(d->a, bits, n_words(d->r)));
    TRY(read_rows(d, v, &rows, &n));
    for (int32_t i = 0; i < n; i++)
        set_bit(*bits, rows[i]);
    return OK;
}

static status read_allowed(const reader *d) {
    static const char *const keys[] = {"filter", "allow", "deny", "exclude"};
    item_rules *r = d->r;
    uint64_t *bits;
    for (int i = 0; i < 4; i++) {
        const json_value *v = json_member(d->object, keys[i]);
        bool is_denied = i >= 2;
        if (v == NULL) continue;
        if (i == 1 && v->type == JSON_ARRAY && v->n_children == 0)
            return fail(ERR_USAGE, "allow: an empty list allows nothing");
        TRY(i == 0 ? read_filter(d, v, &bits) : read_list(d, v, &bits));
        if (r->allowed == NULL) {
            TRY(ARENA_NEW_RAW(d->a, &r->allowed, n_words(r)));
            memset(r->allowed, 0xff, n_words(r) * sizeof *bits);
            r->allowed[n_words(r) - 1] = ((uint64_t)1 << r->n_rows % 64) - 1;
        }
        for (size_t w = 0; w < n_words(r); w++) {
            r->allowed[w] &= is_denied ? ~bits[w] : bits[w];
            if (is_denied) d->denied[w] |= bits[w];
        }
    }
    return OK;
}

static status read_boost(const reader *d, const json_value *v) {
    item_rules *r = d->r;
    const json_value *filter = json_member(v, "filter"), *add = json_member(v, "add"),
                     *times = json_member(v, "times"), *by = add != NULL ? add : times;
    uint64_t *rows;
    if (v->type != JSON_OBJECT || filter == NULL || v->n_children != 2 || by == NULL ||
        by->type != JSON_NUMBER || !isfinite((float)by->number) ||
        (add == NULL && (float)by->number <= 0))
        return fail(ERR_USAGE, "expected {\"filter\": EXPRESSION, \"add\": a number} or \"times\": "
                               "a number above 0");
    TRY(read_filter(d, filter, &rows));
    r->boost[r->n_boosts].rows = rows;
    r->boost[r->n_boosts].times = add == NULL ? (float)by->number : 1;
    r->boost[r->n_boosts++].add = add != NULL ? (float)by->number : 0;
    return OK;
}

static status read_boosts(const reader *d) {
    const json_value *all = json_member(d->object, "boost");
    if (all == NULL) return OK;
    if (all->type != JSON_ARRAY || all->n_children > RULES_BOOSTS)
        return fail(ERR_USAGE, "boost: expected a list of at most %d boosts", RULES_BOOSTS);
    for (const json_value *v = all->first; v != NULL; v = v->next) {
        status st = read_boost(d, v);
        if (st != OK) return fail_prefix(st, "boost %d", d->r->n_boosts + 1);
    }
    return OK;
}

static status read_limits(const reader *d) {
    const json_value *all = json_member(d->object, "max_per");
    item_rules *r = d->r;
    if (all == NULL) return OK;
    if (all->type != JSON_OBJECT)
        return fail(ERR_USAGE, "max_per: expected an object such as {\"genre\": 2}");
    for (const json_value *v = all->first; v != NULL; v = v->next) {
        const item_content *feature;
        status st = item_feature_find(r->items, v->key, &feature);
        if (st == OK && (v->type != JSON_NUMBER || !v->is_integer || v->integer < 1))
            st = fail(ERR_USAGE, "expected an integer from 1 for each feature");
        if (st != OK) return fail_prefix(st, "max_per");
        r->limit[r->n_limits].feature = feature; /* keys differ: there is room */
        r->limit[r->n_limits++].most = v->integer;
    }
    return OK;
}

static status read_pins(const reader *d, int32_t k) {
    const json_value *v = json_member(d->object, "pin");
    item_rules *r = d->r;
    int32_t *rows;
    if (v == NULL) return OK;
    TRY(read_rows(d, v, &rows, &r->n_pins));
    r->pin = rows;
    if (r->n_pins > k) return fail(ERR_USAGE, "pin: %d items for a list of %d", r->n_pins, k);
    for (int32_t i = 0; i < r->n_pins; i++) {
        if (has_bit(d->denied, rows[i]))
            return fail(ERR_USAGE, "pin: item %d of the list is there twice, or denied", i + 1);
        set_bit(d->denied, rows[i]);
    }
    return OK;
}

status item_rules_read(item_rules *r, arena *a, filter_cache *c, const int32_t *row, int32_t k,
                       const json_value *object, size_t *n_unknown) {
    reader d = {r, a, c, row, object, n_unknown, NULL};
    *r = (item_rules){.items = c->items, .item = c->item, .n_rows = c->n_rows};
    TRY(ARENA_NEW(a, &d.denied, n_words(r)));
    TRY(read_allowed(&d));
    TRY(read_boosts(&d));
    TRY(read_limits(&d));
    return read_pins(&d, k);
}

status item_rules_read_text(item_rules *r, arena *a, filter_cache *c, const int32_t *row, int32_t k,
                            const char *text, size_t *n_unknown) {
    static const char *const known[] = {"filter", "allow", "deny", "boost", "max_per", "pin"};
    const json_value *root;
    size_t n = 0;
    status st = json_parse(a, "rules", text, strlen(text), &root);
    if (st != OK) return st == ERR_FORMAT ? fail_prefix(ERR_USAGE, "not JSON") : st;
    for (size_t i = 0; i < sizeof known / sizeof *known && root->type == JSON_OBJECT; i++)
        n += json_member(root, known[i]) != NULL;
    if (root->type != JSON_OBJECT || n != root->n_children)
        return fail(ERR_USAGE, "rules: expected a JSON object with filter, allow, deny, boost, "
                               "max_per or pin, and nothing else");
    return item_rules_read(r, a, c, row, k, root, n_unknown);
}

/* The list. */

typedef struct found {
    float score, own; /* boosted, and the model's */
    int32_t row;
} found;

typedef struct picking {
    const item_rules *r;
    uint64_t *left;
    int32_t *row, n;
    float *score;
    int64_t *count[ITEM_CONTENT_MAX]; /* by value of a limit's feature: items in the list */
} picking;

static int compare_found(const void *a, const void *b) {
    const found *x = a, *y = b;
    if (x->score != y->score) return x->score > y->score ? -1 : 1;
    if (x->own != y->own) return x->own > y->own ? -1 : 1;
    return (x->row > y->row) - (x->row < y->row);
}

/* Adds a row to the list unless some value of it is there often enough; is_test: only says so. */
static bool pick(picking *p, int32_t row, float score, bool is_pinned, bool is_test) {
    const item_rules *r = p->r;
    uint64_t item = (uint64_t)r->item[row];
    for (int pass = is_pinned; pass < (is_test ? 1 : 2); pass++)
        for (int i = 0; i < r->n_limits; i++) {
            const item_content *f = r->limit[i].feature;
            for (uint64_t v = f->offsets[item]; v < f->offsets[item + 1]; v++)
                if (pass == 1)
                    p->count[i][f->value[v]]++;
                else if (p->count[i][f->value[v]] >= r->limit[i].most)
                    return false;
        }
    if (is_test) return true;
    p->row[p->n] = row;
    p->score[p->n++] = score;
    return true;
}

/* Boosts are applied in their order; bit b of the class says whether boost b is.  What is too large
 * for a float is the largest one: an infinity times 0 would have no place in an order. */
static float boosted(const item_rules *r, unsigned class, float score) {
    for (int b = 0; b < r->n_boosts; b++) {
        if (!(class >> b & 1)) continue;
        score = score * r->boost[b].times + r->boost[b].add;
        if (isinf(score)) score = score > 0 ? FLT_MAX : -FLT_MAX;
    }
    return score;
}

static status place_pins(picking *p, arena *a, const rules_source *s) {
    const item_rules *r = p->r;
    int32_t n = r->n_pins, *row;
    float *score;
    uint64_t *bits;
    if (n == 0) return OK;
    TRY(ARENA_NEW(a, &bits, n_words(r)));
    TRY(ARENA_NEW(a, &row, (size_t)n));
    TRY(ARENA_NEW(a, &score, (size_t)n));
    for (int32_t i = 0; i < n; i++) {
        set_bit(bits, r->pin[i]);
        clear_bit(p->left, r->pin[i]);
    }
    TRY(s->best(s->ctx, 1, (const uint64_t *[]){bits}, n, row, score));
    for (int32_t i = 0; i < n; i++) {
        unsigned class = 0;
        float own = NAN;
        for (int b = 0; b < r->n_boosts; b++)
            class |= (unsigned)has_bit(r->boost[b].rows, r->pin[i]) << b;
        for (int32_t j = 0; j < n; j++)
            if (row[j] == r->pin[i]) own = score[j];
        pick(p, r->pin[i], boosted(r, class, own), true, false);
    }
    return OK;
}

/* The rows that are left by their boosts: classes that have some.  Within a class the boosted order
 * is the model's. */
static int split(const picking *p, uint64_t **mask, unsigned *class) {
    const item_rules *r = p->r;
    int n = 0;
    for (unsigned c = 0; c < 1u << r->n_boosts; c++) {
        uint64_t any = 0;
        for (size_t w = 0; w < n_words(r); w++) {
            mask[n][w] = p->left[w];
            for (int b = 0; b < r->n_boosts; b++)
                mask[n][w] &= c >> b & 1 ? r->boost[b].rows[w] : ~r->boost[b].rows[w];
            any |= mask[n][w];
        }
        class[n] = c;
        n += any != 0;
    }
    return n;
}

/* Rows of values that are in the list often enough cannot follow any more. */
static void drop_full(picking *p) {
    for (int32_t row = 0; row < p->r->n_rows; row++)
        if (has_bit(p->left, row) && !pick(p, row, 0, false, true)) clear_bit(p->left, row);
}

/* Searches until the list is full or no row is left.  The first `most` of all classes together are
 * exact, as each class has as many.  Where max_per passes over some of them, what is left is
 * searched again without the values that are full, for ever more rows: a catalogue that is sorted
 * by the feature takes a few searches, too. */
status item_rules_run(const item_rules *r, arena *a, const rules_source *s, uint64_t *left,
                      int32_t k, int32_t *row, float *score, int32_t *n) {
    enum { CLASSES = 1 << RULES_BOOSTS, ROOM = 1 << 20, WIDE = 64, WIDER = 16 };
    picking p = {.r = r, .left = left, .row = row, .score = score};
    int64_t width = r->n_limits == 0 ? k : 4 * k > WIDE ? 4 * k : WIDE;
    int64_t widest = s->widest < ROOM >> r->n_boosts ? s->widest : ROOM >> r->n_boosts;
    uint64_t *mask[CLASSES + 1];
    unsigned class[CLASSES + 1];
    int32_t *best;
    float *by;
    found *all;
    for (int i = 0; i < r->n_limits; i++)
        TRY(ARENA_NEW(a, &p.count[i], (size_t)r->limit[i].feature->values.n + 1));
    for (int c = 0; c <= 1 << r->n_boosts; c++)
        TRY(ARENA_NEW_RAW(a, &mask[c], n_words(r)));
    TRY(place_pins(&p, a, s));
    for (bool is_more = true; is_more && p.n < k; width *= WIDER) {
        int n_masks = split(&p, mask, class);
        if (width > widest) width = widest;
        int32_t most = width < r->n_rows ? (int32_t)width : (int32_t)r->n_rows, n_found = 0;
        if (n_masks == 0) break;
        TRY(ARENA_NEW_RAW(a, &best, (size_t)(n_masks * most)));
        TRY(ARENA_NEW_RAW(a, &by, (size_t)(n_masks * most)));
        TRY(ARENA_NEW_RAW(a, &all, (size_t)(n_masks * most)));
        TRY(s->best(s->ctx, n_masks, (const uint64_t *const *)mask, most, best, by));
        for (int32_t i = 0; i < n_masks * most; i++)
            if (best[i] >= 0)
                all[n_found++] = (found){boosted(r, class[i / most], by[i]), by[i], best[i]};
        qsort(all, (size_t)n_found, sizeof *all, compare_found);
        is_more = n_found >= most;
        for (int32_t i = 0; i < n_found && i < most && p.n < k; i++) {
            clear_bit(left, all[i].row);
            pick(&p, all[i].row, all[i].score, false, false);
        }
        if (is_more && p.n < k) drop_full(&p);
    }
    *n = p.n;
    return OK;
}
