#include "model/item_rules.h"

#include "content_test.h"
#include "device.h"
#include "test.h"

enum { ROWS = 300, SMALL = 60, DIM = 4, MAX_K = 40 };

/* A catalogue, a user, and the scores of all rows. */
typedef struct shop {
    made_content made;
    seq_file data;
    int64_t ids[ROWS + 11];
    int32_t item[ROWS], row[ROWS + 11];
    int32_t n; /* rows */
    float corpus[ROWS * DIM], query[64 * DIM], score[ROWS];
    filter_cache cache;
    pool *workers;
    backend *be;
    uint64_t state;
} shop;

static uint32_t draw(shop *s, uint32_t n) {
    return content_draw(17, s->state++, n);
}

static status search(void *ctx, int32_t n, const uint64_t *const *allowed, int32_t k, int32_t *row,
                     float *score) {
    shop *s = ctx;
    rank_args a = {.n_queries = n,
                   .dim = DIM,
                   .n_corpus = s->n,
                   .query = s->query,
                   .corpus = s->corpus,
                   .allowed = allowed,
                   .k = k,
                   .best = row,
                   .best_score = score};
    return s->be->ops->rank(s->be, &a);
}

/* Small integers: ties are many.  Some items have no row. */
static void restock(shop *s, uint64_t seed) {
    int32_t row[ROWS];
    float score[ROWS];
    uint64_t all[ROWS / 64 + 1];
    filter_cache_fini(&s->cache);
    s->state = seed << 32;
    s->n = 1 + (int32_t)draw(s, seed % 8 == 0 ? ROWS : SMALL);
    s->data = (seq_file){.n_items = (uint64_t)s->n + draw(s, 10), .item_id = s->ids};
    made_content_fill(&s->made, &s->data, seed);
    for (uint64_t i = 0; i <= s->data.n_items; i++) {
        s->row[i] = -1;
        s->ids[i] = i > 0 ? 100 + (int64_t)i : 0;
    }
    for (int32_t r = 0, i = 1; r < s->n; r++, i++) {
        while (s->data.n_items - (uint64_t)i > (uint64_t)(s->n - 1 - r) && draw(s, 4) == 0)
            i++;
        s->item[r] = i;
        s->row[i] = r;
    }
    for (int i = 0; i < ROWS * DIM; i++)
        s->corpus[i] = (float)draw(s, 7) - 3;
    for (int i = 0; i < 64 * DIM; i++) /* the same user in each row */
        s->query[i] = i < DIM ? (float)draw(s, 5) - 2 : s->query[i - DIM];
    filter_cache_init(&s->cache, &s->data, s->item, s->n);
    for (int w = 0; w <= ROWS / 64; w++)
        all[w] = UINT64_MAX;
    CHECK_OK(search(s, 1, (const uint64_t *[]){all}, s->n, row, score));
    for (int32_t i = 0; i < s->n; i++)
        s->score[row[i]] = score[i];
}

/* A random expression, and which rows it allows. */
static void draw_filter(shop *s, int depth, char *text, bool *truth) {
    static const char *const orders[] = {"<", "<=", ">", ">=", "=", "!="};
    static const char *const values[] = {"'Drama'", "'Crime'", "'It\\\\'s \\\"odd\\\"\\\\\\\\'",
                                         "'Комедия'", "'7'"};
    uint32_t kind = draw(s, depth > 0 ? 6 : 3);
    char left[2000], right[2000];
    bool other[ROWS];
    if (kind > 3) {
        draw_filter(s, depth - 1, left, truth);
        draw_filter(s, depth - 1, right, other);
        sprintf(text, "(%s)%s (%s)", left, kind == 4 ? " and" : "or", right);
        for (int32_t r = 0; r < s->n; r++)
            truth[r] = kind == 4 ? truth[r] && other[r] : truth[r] || other[r];
    } else if (kind == 3) {
        draw_filter(s, depth - 1, left, truth);
        sprintf(text, "not (%s)", left);
        for (int32_t r = 0; r < s->n; r++)
            truth[r] = !truth[r];
    } else if (kind == 2) {
        uint32_t order = draw(s, 6), bound = CONTENT_FIRST_YEAR + draw(s, CONTENT_YEARS);
        sprintf(text, "year %s %u", orders[order], bound);
        for (int32_t r = 0; r < s->n; r++) {
            double y = s->made.year[s->item[r]], b = bound;
            bool by[] = {y<b, y <= b, y> b, y >= b, y == b, !(y == b)};
            truth[r] = by[order];
        }
    } else {
        uint32_t a = draw(s, CONTENT_VALUES), b = draw(s, CONTENT_VALUES);
        bool is_not = draw(s, 2) == 1;
        sprintf(text, "%s %sin (%s, %s)", kind == 0 ? "genre" : "`the maker`", is_not ? "not " : "",
                values[a], values[b]);
        for (int32_t r = 0; r < s->n; r++) {
            uint64_t item = (uint64_t)s->item[r];
            truth[r] = is_not != (content_has(&s->data, (int)kind, item, a + 1) ||
                                  content_has(&s->data, (int)kind, item, b + 1));
        }
    }
}

/* What a plain program makes of the rules. */
typedef struct expected {
    bool may[ROWS], is_boosted[RULES_BOOSTS][ROWS];
    float times[RULES_BOOSTS], add[RULES_BOOSTS], score[ROWS];
    int n_boosts, most[3]; /* 0: no limit */
    int32_t pin[MAX_K], n_pins, order[ROWS];
} expected;

static shop *sorted; /* of compare_rows */
static expected *wanted;

static int compare_rows(const void *a, const void *b) {
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    if (wanted->score[x] != wanted->score[y]) return wanted->score[x] > wanted->score[y] ? -1 : 1;
    if (sorted->score[x] != sorted->score[y]) return sorted->score[x] > sorted->score[y] ? -1 : 1;
    return x - y;
}

static bool fits(const shop *s, const expected *e, const int32_t *list, int32_t n, int32_t row) {
    for (int f = 0; f < 3; f++)
        for (uint32_t v = 1; v <= CONTENT_VALUES && e->most[f] > 0; v++) {
            int count = 0;
            if (!content_has(&s->data, f, (uint64_t)s->item[row], v)) continue;
            for (int32_t i = 0; i < n; i++)
                count += content_has(&s->data, f, (uint64_t)s->item[list[i]], v);
            if (count >= e->most[f]) return false;
        }
    return true;
}

static int32_t find_plainly(shop *s, expected *e, int32_t k, int32_t *list) {
    int32_t n = 0;
    bool is_pinned[ROWS] = {false};
    for (int32_t r = 0; r < s->n; r++) {
        e->order[r] = r;
        e->score[r] = s->score[r];
        for (int b = 0; b < e->n_boosts; b++)
            if (e->is_boosted[b][r]) e->score[r] = e->score[r] * e->times[b] + e->add[b];
    }
    for (; n < e->n_pins; n++)
        is_pinned[list[n] = e->pin[n]] = true;
    sorted = s;
    wanted = e;
    qsort(e->order, (size_t)s->n, sizeof *e->order, compare_rows);
    for (int32_t i = 0; i < s->n && n < k; i++) {
        int32_t r = e->order[i];
        if (e->may[r] && !is_pinned[r] && fits(s, e, list, n, r)) list[n++] = r;
    }
    return n;
}

static char *add_text(char *to, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    to += vsprintf(to, fmt, args);
    va_end(args);
    return to;
}

/* Ids of random rows, each with some probability; is_in says which. */
static char *draw_ids(shop *s, char *to, const char *key, uint32_t of, bool *is_in) {
    const char *comma = "";
    to = add_text(to, ", \"%s\": [", key);
    for (int32_t r = 0; r < s->n; r++) {
        is_in[r] = draw(s, of) == 0;
        if (is_in[r]) to = add_text(to, "%s%d", comma, 100 + s->item[r]), comma = ",";
    }
    return add_text(to, "%s9999]", comma); /* which no item has */
}

static void draw_rules(shop *s, expected *e, int32_t k, char *to) {
    static const char *const names[] = {"genre", "the maker", "year"};
    char filter[8000];
    bool is_in[ROWS], is_denied[ROWS] = {false};
    *e = (expected){0};
    memset(e->may, 1, sizeof e->may);
    to = add_text(to, "{\"max_per\": {");
    for (int f = 0, n = 0; f < 3; f++) {
        if (draw(s, 3) > 0) continue;
        e->most[f] = 1 + (int)draw(s, 4);
        to = add_text(to, "%s\"%s\": %d", n++ > 0 ? ", " : "", names[f], e->most[f]);
    }
    to = add_text(to, "}, \"boost\": [");
    for (uint32_t n = draw(s, 2) * draw(s, RULES_BOOSTS + 1); (uint32_t)e->n_boosts < n;) {
        int b = e->n_boosts++;
        bool is_sum = draw(s, 2) == 0;
        draw_filter(s, 1, filter, e->is_boosted[b]);
        e->times[b] = is_sum ? 1 : (float)(1 + draw(s, 8)) / 4;
        e->add[b] = is_sum ? (float)draw(s, 9) / 2 - 2 : 0;
        to = add_text(to, "%s{\"filter\": \"%s\", \"%s\": %g}", b > 0 ? ", " : "", filter,
                      is_sum ? "add" : "times", (double)(is_sum ? e->add[b] : e->times[b]));
    }
    to = add_text(to, "]");
    if (draw(s, 4) > 0) {
        draw_filter(s, 3, filter, e->may);
        to = add_text(to, ", \"filter\": \"%s\"", filter);
    }
    if (draw(s, 4) == 0) {
        to = draw_ids(s, to, "allow", 2, is_in);
        for (int32_t r = 0; r < s->n; r++)
            e->may[r] &= is_in[r];
    }
    if (draw(s, 4) == 0) to = draw_ids(s, to, "deny", 5, is_denied);
    for (int32_t r = 0; r < s->n; r++)
        e->may[r] &= !is_denied[r];
    to = add_text(to, ", \"pin\": [");
    for (uint32_t tries = draw(s, 2) * draw(s, 6); tries > 0 && e->n_pins < k; tries--) {
        int32_t r = (int32_t)draw(s, (uint32_t)s->n);
        bool is_fresh = !is_denied[r];
        for (int32_t i = 0; i < e->n_pins; i++)
            is_fresh &= e->pin[i] != r;
        if (!is_fresh) continue;
        to = add_text(to, "%s%d", e->n_pins > 0 ? ", " : "", 100 + s->item[r]);
        e->pin[e->n_pins++] = r;
    }
    add_text(to, "]}");
}

static void check_case(shop *s, arena *a, uint64_t number) {
    static char text[40000];
    static expected e;
    item_rules r;
    size_t n_unknown = 0;
    uint64_t left[ROWS / 64 + 1] = {0};
    int32_t k = 1 + (int32_t)draw(s, MAX_K), n, n_want, row[MAX_K], want[MAX_K];
    float score[MAX_K];
    draw_rules(s, &e, k, text);
    CHECK_OK(item_rules_read_text(&r, a, &s->cache, s->row, k, text, &n_unknown));
    CHECK(n_unknown <= 2);               /* 9999 of allow and of deny */
    for (int32_t i = 0; i < s->n; i++) { /* a tenth was seen */
        bool is_seen = draw(s, 10) == 0;
        uint64_t bit = (uint64_t)1 << i % 64;
        if (!is_seen && (r.allowed == NULL || r.allowed[i / 64] & bit)) left[i / 64] |= bit;
        e.may[i] &= !is_seen;
    }
    CHECK_OK(item_rules_run(&r, a, &(rules_source){s, number % 2 == 0 ? 70 : 1024, search}, left, k,
                            row, score, &n));
    n_want = find_plainly(s, &e, k, want);
    bool is_same = n == n_want;
    for (int32_t i = 0; i < n && is_same; i++)
        is_same = row[i] == want[i] && score[i] == e.score[want[i]];
    if (!is_same)
        FAIL_TEST("case %d: %d rows, not %d, or others, for k = %d of %d and %s", (int)number, n,
                  n_want, k, s->n, text);
    arena_clear(a);
}

/* Catalogues of up to 60 or 300 items, each with a hundred random sets of rules. */
TEST(rules_give_what_a_plain_program_gives) {
    enum { CASES = 100000, EACH = 100 };
    uint64_t n = test_on.kind == ON_CUDA                     ? CASES / 500
                 : test_is_brief() || test_on.kind != ON_CPU ? CASES / 20
                                                             : CASES;
    shop *s = calloc(1, sizeof *s);
    arena a;
    arena_init(&a, 1 << 20);
    CHECK_OK(pool_create(&s->workers, 1));
    CHECK_OK(test_backend(&s->be, s->workers));
    for (uint64_t i = 0; i < n; i++) {
        if (i % EACH == 0) restock(s, 1 + i / EACH);
        check_case(s, &a, i);
    }
    filter_cache_fini(&s->cache);
    backend_destroy(s->be);
    pool_destroy(s->workers);
    arena_fini(&a);
    free(s);
}

/* What is wrong is named. */
TEST(rules_are_checked) {
    static const struct {
        const char *text, *words;
    } bad[] = {
        {"{", "not JSON"},
        {"[]", "expected a JSON object"},
        {"{\"filtr\": \"year > 1\"}", "with filter, allow, deny"},
        {"{\"filter\": 7}", "filter: expected a string"},
        {"{\"filter\": \"yaer > 1\"}", "did you mean 'year'?"},
        {"{\"allow\": 7}", "allow: expected a list of ids"},
        {"{\"deny\": [1.5]}", "deny: an id is an integer or a string"},
        {"{\"pin\": [\"\"]}", "pin: an id has 1 to 255 bytes"},
        {"{\"boost\": {}}", "boost: expected a list of at most 6"},
        {"{\"boost\": [1,2,3,4,5,6,7]}", "boost: expected a list of at most 6"},
        {"{\"boost\": [7]}", "boost 1: expected {"},
        {"{\"boost\": [{\"filter\": \"year > 1\"}]}", "boost 1: expected {"},
        {"{\"boost\": [{\"filter\": \"year > 1\", \"times\": 0}]}", "above 0"},
        {"{\"boost\": [{\"filter\": \"year > 1\", \"add\": 1e39}]}", "boost 1: expected {"},
        {"{\"boost\": [{\"filter\": \"year > 1\", \"add\": 1, \"times\": 2}]}", "boost 1"},
        {"{\"boost\": [{\"filter\": \"year >\", \"add\": 1}]}", "boost 1: filter: character 7"},
        {"{\"max_per\": [2]}", "max_per: expected an object"},
        {"{\"max_per\": {\"genr\": 2}}", "max_per: items have no feature 'genr'; did you mean"},
        {"{\"max_per\": {\"genre\": 0}}", "max_per: expected an integer from 1"},
        {"{\"pin\": \"101\"}", "pin: expected a list of ids"},
        {"{\"pin\": [101, 102, 103]}", "pin: 3 items for a list of 2"},
        {"{\"pin\": [101, 101]}", "pin: item 2 of the list is there twice, or denied"},
        {"{\"pin\": [101], \"deny\": [\"101\"]}", "pin: item 1 of the list is there twice"},
    };
    shop *s = calloc(1, sizeof *s);
    arena a;
    item_rules r;
    size_t n_unknown = 0;
    arena_init(&a, 1 << 16);
    CHECK_OK(backend_create_cpu(&s->be, NULL));
    restock(s, 3);
    CHECK(s->n >= 3);
    for (int i = 1; i <= 3; i++)
        s->row[i] = i - 1;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        CHECK_FAILS(item_rules_read_text(&r, &a, &s->cache, s->row, 2, bad[i].text, &n_unknown),
                    ERR_USAGE, bad[i].words);
    CHECK_OK(item_rules_read_text(&r, &a, &s->cache, s->row, 2, "{\"pin\": [7, 101]}", &n_unknown));
    CHECK(n_unknown == 1 && r.n_pins == 1 && r.pin[0] == 0);
    filter_cache_fini(&s->cache);
    backend_destroy(s->be);
    arena_fini(&a);
    free(s);
}
