#include "ops/mask.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "base/text.h"
#include "ops/mask_int.h"

enum { BLOCK = 32, BLOCK_PAIRS = BLOCK * BLOCK, BLOCK_SET = 102 };

#define N_KINDS MASK_BITS

enum { HAS_WINDOW = 1, HAS_GLOBAL = 2, HAS_DILATION = 4, HAS_BLOCKS = 8 };

/* Ordered as mask_kind; bits and csr are not among them, because a path follows them. */
static const char *const kind_names[N_KINDS] = {"none",    "causal",  "sliding", "longformer",
                                                "bigbird", "dilated", "strided", "fixed"};
static const unsigned kind_fields[N_KINDS] = {[MASK_SLIDING] = HAS_WINDOW,
                                              [MASK_LONGFORMER] = HAS_WINDOW | HAS_GLOBAL,
                                              [MASK_BIGBIRD] = HAS_WINDOW | HAS_GLOBAL | HAS_BLOCKS,
                                              [MASK_DILATED] = HAS_WINDOW | HAS_DILATION};

/* A field of the text: its name, which kinds have it, its largest value, where it is stored. */
typedef struct field {
    const char *name;
    unsigned has;
    int32_t most;
    size_t at;
} field;

static const field fields[] = {
    {"window", HAS_WINDOW, INT32_MAX, offsetof(mask_rule, window)},
    {"global", HAS_GLOBAL, INT32_MAX, offsetof(mask_rule, n_global)},
    {"dilation", HAS_DILATION, INT32_MAX - 1, offsetof(mask_rule, dilation)},
    {"blocks", HAS_BLOCKS, 1024, offsetof(mask_rule, n_blocks)},
};
enum { N_FIELDS = sizeof fields / sizeof *fields };

static int32_t *field_of(mask_rule *r, const field *f) {
    return (int32_t *)((char *)r + f->at);
}

/* Digits only: strtoull would take signs and blanks. */
static status parse_number(const char *name, const char *value, size_t n, uint64_t most,
                           uint64_t *out) {
    uint64_t number = 0;
    bool is_number = n > 0;
    for (size_t i = 0; i < n && is_number; i++) {
        unsigned digit = (unsigned)(value[i] - '0');
        is_number = digit <= 9 && number <= (most - digit) / 10;
        number = number * 10 + digit;
    }
    if (!is_number)
        return fail(ERR_USAGE, "mask: %s is '%.*s'; it is a number from 0 to %llu", name, (int)n,
                    value, (unsigned long long)most);
    *out = number;
    return OK;
}

static status unknown_field(const mask_rule *r, const char *word, size_t n) {
    char name[32];
    snprintf(name, sizeof name, "%.*s", (int)n, word);
    buf list;
    buf_init(&list);
    status st = OK;
    for (int f = 0; f < N_FIELDS && st == OK; f++)
        if (kind_fields[r->kind] & fields[f].has) st = buf_printf(&list, "%s=N, ", fields[f].name);
    if (st == OK && r->kind == MASK_BIGBIRD) st = buf_text(&list, "seed=S, ");
    if (st == OK)
        st = fail(ERR_USAGE, "mask: '%s' does not belong to %s; known there: %scausal", name,
                  kind_names[r->kind], buf_str(&list));
    buf_fini(&list);
    return st;
}

/* One part of the text between commas, after the kind. */
static status parse_part(mask_rule *r, const char *part, size_t n) {
    const char *equals = memchr(part, '=', n);
    size_t n_name = equals != NULL ? (size_t)(equals - part) : n;
    uint64_t number = 0;
    if (n == 6 && memcmp(part, "causal", 6) == 0) {
        r->is_causal = true;
        return OK;
    }
    for (int f = 0; f < N_FIELDS && equals != NULL; f++) {
        const field *known = &fields[f];
        if (!(kind_fields[r->kind] & known->has) || strlen(known->name) != n_name ||
            memcmp(known->name, part, n_name) != 0)
            continue;
        TRY(parse_number(known->name, equals + 1, n - n_name - 1, (uint64_t)known->most, &number));
        *field_of(r, known) = (int32_t)number;
        return OK;
    }
    if (equals != NULL && r->kind == MASK_BIGBIRD && n_name == 4 && memcmp(part, "seed", 4) == 0)
        return parse_number("seed", equals + 1, n - n_name - 1, UINT64_MAX, &r->seed);
    return unknown_field(r, part, n_name);
}

static status parse_kind(mask_rule *r, const char *text, size_t n) {
    static const char *const all[] = {"none",    "causal",  "sliding", "longformer", "bigbird",
                                      "dilated", "strided", "fixed",   "bits:FILE",  "csr:FILE"};
    char word[32];
    for (int k = 0; k < N_KINDS; k++) {
        if (strlen(kind_names[k]) != n || memcmp(kind_names[k], text, n) != 0) continue;
        r->kind = (mask_kind)k;
        return OK;
    }
    snprintf(word, sizeof word, "%.*s", (int)(n < 31 ? n : 31), text);
    const char *near = nearest_name(word, all, sizeof all / sizeof *all);
    return fail(ERR_USAGE,
                "mask: no kind '%s'%s%s%s; there are none, causal, sliding, longformer, bigbird, "
                "dilated, strided, fixed, bits:FILE and csr:FILE",
                word, near != NULL ? " (did you mean '" : "", near != NULL ? near : "",
                near != NULL ? "'?)" : "");
}

static void set_defaults(mask_rule *r) {
    static const int32_t values[N_FIELDS] = {32, 32, 1, 1};
    for (int f = 0; f < N_FIELDS; f++)
        if (kind_fields[r->kind] & fields[f].has) *field_of(r, &fields[f]) = values[f];
}

/* Where a path starts, or NULL for the text of a rule. */
static const char *path_in(const char *text) {
    if (strncmp(text, "bits:", 5) == 0) return text + 5;
    if (strncmp(text, "csr:", 4) == 0) return text + 4;
    return NULL;
}

static bool ends_causal(const char *text) {
    size_t n = strlen(text);
    return n >= 7 && strcmp(text + n - 7, ",causal") == 0;
}

status mask_rule_parse(mask_rule *out, const char *text, const char **path) {
    mask_rule r = {0};
    *out = r;
    *path = path_in(text);
    if (*path != NULL) {
        r.kind = MASK_BITS;
        r.is_causal = ends_causal(*path);
        if (**path == '\0' || strcmp(*path, ",causal") == 0)
            return fail(ERR_USAGE, "mask: '%s' needs the path of a file", text);
        *out = r;
        return OK;
    }
    size_t n = strcspn(text, ",");
    TRY(parse_kind(&r, text, n));
    set_defaults(&r);
    for (text += n; *text == ','; text += n) {
        text++;
        n = strcspn(text, ",");
        TRY(parse_part(&r, text, n));
    }
    if (r.kind == MASK_CAUSAL) r.is_causal = false; /* says nothing more */
    if (r.kind == MASK_NONE && r.is_causal) r = (mask_rule){.kind = MASK_CAUSAL};
    *out = r;
    return OK;
}

void mask_rule_text(const mask_rule *r, char *out, size_t out_bytes) {
    mask_rule copy = *r;
    size_t n = 0;
    const char *name = r->kind < N_KINDS ? kind_names[r->kind] : "bits";
    n += (size_t)snprintf(out, out_bytes, "%s", name);
    for (int f = 0; f < N_FIELDS && r->kind < N_KINDS && n < out_bytes; f++)
        if (kind_fields[r->kind] & fields[f].has)
            n += (size_t)snprintf(out + n, out_bytes - n, ",%s=%d", fields[f].name,
                                  *field_of(&copy, &fields[f]));
    if (r->kind == MASK_BIGBIRD && n < out_bytes)
        n += (size_t)snprintf(out + n, out_bytes - n, ",seed=%llu", (unsigned long long)r->seed);
    if (r->is_causal && n < out_bytes) snprintf(out + n, out_bytes - n, ",causal");
}

status mask_create(mask **out, const char *text) {
    mask m = {0};
    const char *path;
    *out = NULL;
    TRY(mask_rule_parse(&m.rule, text, &path));
    if (path != NULL) {
        buf copy;
        buf_init(&copy);
        status st = buf_append(&copy, path, strlen(path) - (m.rule.is_causal ? 7 : 0));
        if (st == OK) st = mask_file_open(&m.file, buf_str(&copy), text[0] == 'c');
        buf_fini(&copy);
        TRY(st);
    }
    status st = MEM_NEW(out, 1);
    if (st == OK)
        **out = m;
    else
        mask_file_close(m.file);
    return st;
}

void mask_destroy(mask *m) {
    if (m != NULL) mask_file_close(m->file);
    mem_free(m);
}

const mask_rule *mask_rule_of(const mask *m) {
    return &m->rule;
}

bool mask_is_by_sequence(const mask *m) {
    return m->file != NULL && mask_file_is_by_sequence(m->file);
}

int64_t mask_length(const mask *m, int64_t sequence) {
    return m->file != NULL ? mask_file_length(m->file, sequence) : 0;
}

status mask_check(const mask *m, int64_t sequence, int64_t n) {
    if (n < 0 || n > INT32_MAX - MASK_TILE)
        return fail(ERR_USAGE, "mask: a sequence of %lld tokens is too long", (long long)n);
    return m->file != NULL ? mask_file_check(m->file, sequence, n) : OK;
}

/* Sets bits begin .. end - 1, limited to 0 .. n - 1. */
static void set_span(uint64_t *words, int64_t begin, int64_t end, int32_t n) {
    if (begin < 0) begin = 0;
    if (end > n) end = n;
    for (int64_t at = begin; at < end;) {
        int64_t next = at / 64 * 64 + 64 < end ? at / 64 * 64 + 64 : end;
        words[at / 64] |= ~(uint64_t)0 >> (64 - (next - at)) << (at % 64);
        at = next;
    }
}

/* Sets every step-th bit of 0 .. end - 1, from `begin` on. */
static void set_steps(uint64_t *words, int64_t begin, int64_t end, int64_t step) {
    for (int64_t j = begin; j < end; j += step)
        words[j / 64] |= (uint64_t)1 << (j % 64);
}

static bool is_in(int64_t x, int64_t begin, int64_t n) {
    return x >= begin && x < begin + n;
}

/* A window around i, and keys that everybody sees; a row that sees everybody. */
static void fill_global_row(const mask_rule *r, int32_t n, int32_t i, uint64_t *words) {
    int64_t middle = n / 2;
    bool has_middle = r->kind == MASK_LONGFORMER;
    bool is_global = is_in(i, 0, r->n_global) || (has_middle && is_in(i, middle, r->n_global));
    set_span(words, (int64_t)i - r->window, (int64_t)i + r->window + 1, n);
    set_span(words, 0, is_global ? n : r->n_global, n);
    if (has_middle) set_span(words, middle, middle + r->n_global, n);
}

static int32_t root_of(int32_t n) {
    int32_t s = (int32_t)sqrt((double)n);
    while ((int64_t)s * s > n)
        s--;
    while ((int64_t)(s + 1) * (s + 1) <= n)
        s++;
    return s > 0 ? s : 1;
}

/* One row of a rule, without what is random and without is_causal. */
static void fill_rule_row(const mask_rule *r, int32_t n, int32_t i, int32_t s, uint64_t *words) {
    int64_t step = (int64_t)r->dilation + 1, farthest = (int64_t)i - r->window * step;
    switch (r->kind) {
    case MASK_LONGFORMER:
    case MASK_BIGBIRD:
        fill_global_row(r, n, i, words);
        break;
    case MASK_DILATED:
        set_steps(words, farthest > 0 ? farthest : i % step, i + 1, step);
        break;
    case MASK_STRIDED:
        set_steps(words, i % s, i + 1, s);
        set_span(words, (int64_t)i - s + 1, i + 1, n);
        break;
    case MASK_FIXED:
        set_steps(words, s - 1, i + 1, s);
        set_span(words, i / s * s, i + 1, n);
        break;
    default: {
        mask_span span = mask_rule_span(r, n, i);
        set_span(words, span.begin, span.end, n);
    }
    }
}

/* rows[r]: the keys of row r of a random block. */
static void draw_block(rng_key key, uint32_t n, uint32_t b, uint32_t which, uint32_t rows[BLOCK]) {
    uint16_t order[BLOCK_PAIRS];
    rng_block drawn = {{0}};
    memset(rows, 0, sizeof(uint32_t) * BLOCK);
    for (int p = 0; p < BLOCK_PAIRS; p++)
        order[p] = (uint16_t)p;
    for (uint32_t k = 0; k < BLOCK_SET; k++) {
        if (k % 4 == 0) drawn = rng_draw(key, n, b, which, 1 + k / 4);
        uint32_t other = k + rng_below(drawn.word[k % 4], BLOCK_PAIRS - k);
        uint16_t pair = order[other];
        order[other] = order[k];
        order[k] = pair;
        rows[pair / BLOCK] |= (uint32_t)1 << (pair % BLOCK);
    }
}

/* Adds the random pairs of rows row .. row + n_rows - 1. */
static void add_random_blocks(const mask_rule *r, int32_t n, int32_t row, int32_t n_rows,
                              uint64_t *words, int64_t stride) {
    rng_key key = rng_make_key(r->seed, RNG_MASK);
    int32_t n_blocks = (n + BLOCK - 1) / BLOCK, end = row + n_rows;
    uint32_t bits[BLOCK];
    for (int32_t b = row / BLOCK; b * BLOCK < end; b++) {
        for (int32_t which = 0; which < r->n_blocks; which++) {
            uint32_t drawn = rng_draw(key, (uint32_t)n, (uint32_t)b, (uint32_t)which, 0).word[0];
            int32_t column = b + (int32_t)(drawn % 3) - 1;
            column = column < 0 ? 0 : column >= n_blocks ? n_blocks - 1 : column;
            draw_block(key, (uint32_t)n, (uint32_t)b, (uint32_t)which, bits);
            for (int32_t i = b * BLOCK > row ? b * BLOCK : row; i < (b + 1) * BLOCK && i < end; i++)
                words[(i - row) * stride + column / 2] |= (uint64_t)bits[i % BLOCK]
                                                          << (column % 2 * BLOCK);
        }
    }
}

/* Clears the bits from `end` on. */
static void clear_from(uint64_t *words, int64_t end, int64_t n_words) {
    if (end / 64 < n_words && end % 64 != 0) words[end / 64] &= ~(uint64_t)0 >> (64 - end % 64);
    for (int64_t w = (end + 63) / 64; w < n_words; w++)
        words[w] = 0;
}

void mask_fill_rows(const mask *m, int64_t sequence, int32_t n, int32_t row, int32_t n_rows,
                    uint64_t *words, int64_t stride) {
    const mask_rule *r = &m->rule;
    int64_t n_words = (n + 63) / 64;
    int32_t s = root_of(n);
    for (int32_t i = 0; i < n_rows; i++) {
        memset(words + i * stride, 0, sizeof *words * (size_t)n_words);
        if (m->file != NULL)
            mask_file_fill_row(m->file, sequence, n, row + i, words + i * stride);
        else
            fill_rule_row(r, n, row + i, s, words + i * stride);
    }
    if (r->kind == MASK_BIGBIRD) add_random_blocks(r, n, row, n_rows, words, stride);
    for (int32_t i = 0; i < n_rows; i++)
        clear_from(words + i * stride, r->is_causal && row + i + 1 < n ? row + i + 1 : n, n_words);
}
