#include "model/item_filter.h"

enum { SUGGESTED = 4096 }; /* names among which a mistyped one is looked for */

/* A value of the expression, or a name. */
typedef struct word {
    const char *text; /* (n), ends with NUL */
    size_t n;
    double number;
} word;

/* A feature and what it is compared with. */
typedef struct test {
    const item_content *feature;
    char order;     /* '<', '>', 'l' (<=), 'g' (>=): number[0]; '=': one of the values */
    double *number; /* (n_numbers), ascending */
    size_t n_numbers;
    const uint64_t *values; /* bits of a category's values */
} test;

/* The expression in postfix order, run for 64 rows at a time: a test, or '&', '|', '!'. */
typedef struct step {
    char kind;
    test test; /* kind 't' */
} step;

enum { STEPS = 4 * FILTER_TESTS };

typedef struct parser {
    const seq_file *items;
    const char *text; /* (n), ends with NUL */
    size_t n, at;
    arena memory;
    step *steps; /* (STEPS) */
    word *words; /* values of a list: one more than there are commas */
    int n_steps, n_tests, depth;
} parser;

/* Says what is wrong at the parser's place, in characters: what a user counts. */
static status wrong(const parser *p, const char *fmt, ...) PRINTF_LIKE(2, 3);
static status wrong(const parser *p, const char *fmt, ...) {
    char reason[400];
    size_t place = 1;
    va_list args;
    for (size_t i = 0; i < p->at; i++)
        place += ((unsigned char)p->text[i] & 0xc0) != 0x80;
    va_start(args, fmt);
    vsnprintf(reason, sizeof reason, fmt, args);
    va_end(args);
    return fail(ERR_USAGE, "character %zu: %s", place, reason);
}

/* "; did you mean 'x'?", or some of the names. */
static const char *suggest(const char *text, const char *const *names, size_t n, char out[320]) {
    char list[256] = "", excerpt[64];
    const char *near = nearest_name(text, names, n);
    for (size_t i = 0; i < n && near == NULL; i++)
        escape_list_add(list, sizeof list, names[i], strlen(names[i]));
    if (near != NULL)
        snprintf(out, 320, "; did you mean '%s'?", escape_excerpt(excerpt, near, strlen(near)));
    else
        snprintf(out, 320, "; there is %s", n > 0 ? list : "none");
    return out;
}

status item_feature_find(const seq_file *items, const char *name, const item_content **out) {
    const char *names[ITEM_CONTENT_MAX] = {0};
    char list[320], excerpt[64];
    if (items->n_content == 0)
        return fail(ERR_USAGE, "the items of this model have no features; 'hstu prep --items FILE' "
                               "adds some to data, and the model that is trained on it has them");
    for (int i = 0; i < items->n_content; i++) {
        *out = &items->content[i];
        names[i] = (*out)->name;
        if (strcmp(names[i], name) == 0) return OK;
    }
    return fail(ERR_USAGE, "items have no feature '%s'%s",
                escape_excerpt(excerpt, name, strlen(name)),
                suggest(name, names, (size_t)items->n_content, list));
}

static bool is_name(char c) {
    return isalnum((unsigned char)c) || (unsigned char)c >= 0x80 || c == '_' || c == '.' ||
           c == '-';
}

static char next(parser *p) {
    while (isspace((unsigned char)p->text[p->at]))
        p->at++;
    return p->text[p->at];
}

/* Passes over a word or a symbol, if it comes next. */
static bool take(parser *p, const char *what) {
    size_t n = strlen(what);
    (void)next(p);
    if (strncasecmp(p->text + p->at, what, n) != 0) return false;
    if (isalpha((unsigned char)what[0]) && is_name(p->text[p->at + n])) return false;
    p->at += n;
    return true;
}

static status expect(parser *p, const char *what) {
    return take(p, what) ? OK : wrong(p, "expected %s", what);
}

static status read_quoted(parser *p, word *out) {
    char *text, quote = p->text[p->at];
    size_t from = p->at + 1, end = from;
    while (end < p->n && p->text[end] != quote)
        end += 1 + (p->text[end] == '\\');
    if (end >= p->n) return wrong(p, "the quote %c is not closed", quote);
    TRY(ARENA_NEW(&p->memory, &text, end - from + 1));
    *out = (word){.text = text};
    for (size_t i = from; i < end; i++) {
        i += p->text[i] == '\\';
        text[out->n++] = p->text[i];
    }
    p->at = end + 1;
    return OK;
}

static status read_feature(parser *p, const item_content **out) {
    word name = {0};
    size_t from, n = 0;
    bool is_quoted = next(p) == '`';
    from = p->at;
    while (is_name(p->text[p->at + n]))
        n++;
    if (!is_quoted && n == 0) return wrong(p, "expected the name of a feature, 'not' or (");
    TRY(is_quoted ? read_quoted(p, &name)
                  : arena_copy_text(&p->memory, p->text + from, n, &name.text));
    p->at += n;
    if (item_feature_find(p->items, name.text, out) == OK) return OK;
    p->at = from;
    return wrong(p, "%s", status_reason());
}

static status read_value(parser *p, const item_content *f, word *out) {
    char name[64], *end, c = next(p);
    bool is_text = c == '"' || c == '\'';
    if (is_text && f->number == NULL) return read_quoted(p, out);
    if (f->number == NULL)
        return wrong(p, "%s is a category: expected a value in quotes",
                     escape_excerpt(name, f->name, strlen(f->name)));
    TRY(text_read_double(p->text + p->at, &end, &out->number));
    size_t n = strspn(p->text + p->at, "+-.0123456789eE"); /* strtod also reads 0x10 */
    if (end == p->text + p->at || end > p->text + p->at + n || !isfinite(out->number))
        return wrong(p, "%s is a number: expected a decimal number, without quotes",
                     escape_excerpt(name, f->name, strlen(f->name)));
    p->at = (size_t)(end - p->text);
    return OK;
}

static int compare_words(const void *a, const void *b) {
    const word *x = a, *y = b;
    int order = memcmp(x->text, y->text, x->n < y->n ? x->n : y->n);
    return order != 0 ? order : (x->n > y->n) - (x->n < y->n);
}

static int compare_numbers(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static status refuse_value(parser *p, const word *w, const text_column *t) {
    const char **name;
    size_t n = t->n < SUGGESTED ? t->n : SUGGESTED;
    char list[320], excerpt[64];
    TRY(ARENA_NEW(&p->memory, &name, n + 1));
    for (size_t i = 1; i < n; i++)
        TRY(arena_copy_text(&p->memory, t->bytes + t->offsets[i], t->offsets[i + 1] - t->offsets[i],
                            &name[i - 1]));
    return wrong(p, "no item has the value '%s'%s", escape_excerpt(excerpt, w->text, w->n),
                 suggest(w->text, name, n > 0 ? n - 1 : 0, list));
}

/* Values that no item has are fine beside one that some item has. */
static status find_values(parser *p, word *w, size_t n, test *out) {
    const text_column *t = &out->feature->values;
    word first = w[0];
    uint64_t *bits, n_found = 0;
    TRY(ARENA_NEW(&p->memory, &bits, (size_t)t->n / 64 + 1));
    TRY(ARENA_NEW(&p->memory, &out->number, n));
    for (size_t i = 0; i < n; i++)
        out->number[i] = w[i].number;
    out->n_numbers = n;
    qsort(out->number, n, sizeof *out->number, compare_numbers);
    if (out->feature->number != NULL) return OK;
    qsort(w, n, sizeof *w, compare_words);
    for (uint64_t i = 1; i < t->n; i++) {
        word own = {t->bytes + t->offsets[i], t->offsets[i + 1] - t->offsets[i], 0};
        if (bsearch(&own, w, n, sizeof *w, compare_words) == NULL) continue;
        bits[i / 64] |= (uint64_t)1 << i % 64;
        n_found++;
    }
    out->values = bits;
    return n_found > 0 ? OK : refuse_value(p, &first, t);
}

/* One value, or ("a", "b"). */
static status read_values(parser *p, bool is_list, test *out) {
    size_t n = 0;
    if (is_list) TRY(expect(p, "("));
    (void)next(p);
    size_t from = p->at;
    do
        TRY(read_value(p, out->feature, &p->words[n++]));
    while (is_list && take(p, ","));
    if (is_list) TRY(expect(p, ")"));
    size_t end = p->at;
    p->at = from; /* the place of what is wrong with them */
    TRY(find_values(p, p->words, n, out));
    p->at = end;
    return OK;
}

static status add_step(parser *p, char kind, const test *t) {
    if (p->n_steps == STEPS || (t != NULL && p->n_tests++ == FILTER_TESTS))
        return wrong(p, "more than %d tests, or too many 'not'", FILTER_TESTS);
    p->steps[p->n_steps++] = (step){kind, t != NULL ? *t : (test){0}};
    return OK;
}

/* feature operator values. */
static status read_test(parser *p) {
    static const char *const known[] = {"not in", "in", "==", "=", "!=", "<=", "<", ">=", ">"};
    static const char orders[] = {'=', '=', '=', '=', '=', 'l', '<', 'g', '>'};
    enum { N = sizeof orders, NOT_IN = 0, LISTS = 2, NOT_EQUAL = 4 };
    test t = {0};
    int i = 1;
    TRY(read_feature(p, &t.feature));
    if (take(p, "not")) { /* any blanks may follow */
        TRY(expect(p, "in"));
        i = NOT_IN;
    } else {
        while (i < N && !take(p, known[i]))
            i++;
        if (i == N) return wrong(p, "expected = != < <= > >= in or 'not in'");
    }
    t.order = orders[i];
    if (t.order != '=' && t.feature->number == NULL)
        return wrong(p, "a category has no order; use = != in or 'not in'");
    TRY(read_values(p, i < LISTS, &t));
    TRY(add_step(p, 't', &t));
    return i == NOT_IN || i == NOT_EQUAL ? add_step(p, '!', NULL) : OK;
}

static status read_joined(parser *p, bool is_or);

static status read_not(parser *p) {
    bool is_not = false;
    while (take(p, "not"))
        is_not = !is_not;
    if (take(p, "(")) {
        if (p->depth++ == FILTER_DEPTH)
            return wrong(p, "more than %d parentheses within each other", FILTER_DEPTH);
        TRY(read_joined(p, true));
        TRY(expect(p, ")"));
        p->depth--;
    } else {
        TRY(read_test(p));
    }
    return is_not ? add_step(p, '!', NULL) : OK;
}

/* Parts joined by 'or', each of them of parts joined by 'and'. */
static status read_joined(parser *p, bool is_or) {
    TRY(is_or ? read_joined(p, false) : read_not(p));
    while (take(p, is_or ? "or" : "and")) {
        TRY(is_or ? read_joined(p, false) : read_not(p));
        TRY(add_step(p, is_or ? '|' : '&', NULL));
    }
    return OK;
}

static status read_all(parser *p) {
    size_t n_words = 1;
    TRY(ARENA_NEW(&p->memory, &p->steps, STEPS));
    TRY(arena_copy_text(&p->memory, p->text, p->n, &p->text));
    if (strlen(p->text) != p->n) return fail(ERR_USAGE, "it has a NUL character");
    for (size_t i = 0; i < p->n; i++)
        n_words += p->text[i] == ',';
    TRY(ARENA_NEW(&p->memory, &p->words, n_words));
    TRY(read_joined(p, true));
    return next(p) == '\0' ? OK : wrong(p, "expected 'and', 'or' or the end");
}

static bool passes(const test *t, uint64_t item) {
    const item_content *f = t->feature;
    if (f->number != NULL) {
        double x = f->number[item], bound = t->number[0];
        if (t->order == '<') return x < bound;
        if (t->order == '>') return x > bound;
        if (t->order == 'l') return x <= bound;
        if (t->order == 'g') return x >= bound;
        return !isnan(x) && bsearch(&x, t->number, t->n_numbers, sizeof x, compare_numbers) != NULL;
    }
    for (uint64_t i = f->offsets[item]; i < f->offsets[item + 1]; i++)
        if (t->values[f->value[i] / 64] >> f->value[i] % 64 & 1) return true;
    return false;
}

static uint64_t run_word(const parser *p, const int32_t *item, int64_t first, int n_rows) {
    uint64_t stack[FILTER_TESTS + 1];
    int n = 0;
    for (int i = 0; i < p->n_steps; i++) {
        const step *s = &p->steps[i];
        if (s->kind == 't') {
            stack[n] = 0;
            for (int r = 0; r < n_rows; r++) {
                int64_t own = item != NULL ? item[first + r] : first + r;
                stack[n] |= (uint64_t)passes(&s->test, (uint64_t)own) << r;
            }
            n++;
        } else if (s->kind == '!') {
            stack[n - 1] = ~stack[n - 1];
        } else {
            n--;
            stack[n - 1] = s->kind == '&' ? stack[n - 1] & stack[n] : stack[n - 1] | stack[n];
        }
    }
    return n_rows == 64 ? stack[0] : stack[0] & (((uint64_t)1 << n_rows) - 1);
}

status item_filter_run(const seq_file *items, const char *text, size_t n, const int32_t *item,
                       int64_t n_rows, uint64_t *bits) {
    parser p = {.items = items, .text = text, .n = n};
    arena_init(&p.memory, 1 << 14);
    status st = n <= FILTER_BYTES
                    ? read_all(&p)
                    : fail(ERR_USAGE, "%zu bytes; at most %d are taken", n, FILTER_BYTES);
    for (int64_t w = 0; w <= n_rows / 64 && st == OK; w++) {
        int64_t left = n_rows - 64 * w;
        bits[w] = run_word(&p, item, 64 * w, left < 64 ? (int)left : 64);
    }
    if (st == OK && item == NULL) bits[0] &= ~(uint64_t)1;
    arena_fini(&p.memory);
    return st == ERR_USAGE ? fail_prefix(st, "filter") : st;
}

void filter_cache_init(filter_cache *c, const seq_file *items, const int32_t *item,
                       int64_t n_rows) {
    *c = (filter_cache){.items = items, .item = item, .n_rows = n_rows};
    pthread_mutex_init(&c->lock, NULL);
}

void filter_cache_fini(filter_cache *c) {
    if (c->items == NULL) return;
    for (int i = 0; i < FILTER_CACHED; i++)
        mem_free(c->entry[i].bits);
    pthread_mutex_destroy(&c->lock);
    *c = (filter_cache){0};
}

status filter_cache_bits(filter_cache *c, const char *text, size_t n, uint64_t *bits) {
    size_t bytes = ((size_t)c->n_rows / 64 + 1) * sizeof *bits;
    bool is_there = false;
    char *kept;
    pthread_mutex_lock(&c->lock);
    for (int i = 0; i < FILTER_CACHED && !is_there; i++) {
        const struct filter_entry *e = &c->entry[i];
        is_there = e->bits != NULL && e->n == n && memcmp(e->bits + bytes, text, n) == 0;
        if (is_there) memcpy(bits, e->bits, bytes);
    }
    pthread_mutex_unlock(&c->lock);
    if (is_there) return OK;
    TRY(item_filter_run(c->items, text, n, c->item, c->n_rows, bits));
    TRY(MEM_NEW_RAW(&kept, bytes + n));
    memcpy(kept, bits, bytes);
    memcpy(kept + bytes, text, n);
    pthread_mutex_lock(&c->lock);
    struct filter_entry *oldest = &c->entry[c->n_misses++ % FILTER_CACHED];
    mem_free(oldest->bits);
    *oldest = (struct filter_entry){kept, n};
    pthread_mutex_unlock(&c->lock);
    return OK;
}
