#include "ops/mask.h"

#include "format/safetensors.h"

enum { BLOCK = 32, BLOCK_PAIRS = BLOCK * BLOCK, BLOCK_SET = 102 };

/* The kinds that have a text; bits and csr are not among them, because a path follows them. */
#define N_KINDS                                MASK_BITS
#define NAME(id, name, parameters, fill)       [id] = name,
#define PARAMETERS(id, name, parameters, fill) [id] = parameters,
static const char *const kind_names[] = {MASK_KINDS(NAME)};
static const char *const kind_parameters[] = {MASK_KINDS(PARAMETERS)};

/* A parameter of the text: its name, default and largest value, and where it is stored. */
typedef struct field {
    const char *name;
    int32_t usual, most;
    size_t at;
} field;

static const field fields[] = {
    {"window", 32, INT32_MAX, offsetof(mask_rule, window)},
    {"global", 32, INT32_MAX, offsetof(mask_rule, n_global)},
    {"dilation", 1, INT32_MAX - 1, offsetof(mask_rule, dilation)},
    {"blocks", 1, 1024, offsetof(mask_rule, n_blocks)},
};
enum { N_FIELDS = sizeof fields / sizeof *fields };

static bool has_field(const mask_rule *r, const char *name) {
    return r->kind < N_KINDS && strstr(kind_parameters[r->kind], name) != NULL;
}

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
    buf list = {0};
    status st = OK;
    for (int f = 0; f < N_FIELDS && st == OK; f++)
        if (has_field(r, fields[f].name)) st = buf_printf(&list, "%s=N, ", fields[f].name);
    if (st == OK && has_field(r, "seed")) st = buf_text(&list, "seed=S, ");
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
        if (!has_field(r, known->name) || strlen(known->name) != n_name ||
            memcmp(known->name, part, n_name) != 0)
            continue;
        TRY(parse_number(known->name, equals + 1, n - n_name - 1, (uint64_t)known->most, &number));
        *field_of(r, known) = (int32_t)number;
        return OK;
    }
    if (equals != NULL && has_field(r, "seed") && n_name == 4 && memcmp(part, "seed", 4) == 0)
        return parse_number("seed", equals + 1, n - n_name - 1, UINT64_MAX, &r->seed);
    return unknown_field(r, part, n_name);
}

static status parse_kind(mask_rule *r, const char *text, size_t n) {
    static const char *const all[] = {MASK_KINDS(NAME) "bits:FILE", "csr:FILE"};
    char word[32];
    for (int k = 0; k < N_KINDS; k++) {
        if (strlen(kind_names[k]) != n || memcmp(kind_names[k], text, n) != 0) continue;
        r->kind = (mask_kind)k;
        return OK;
    }
    snprintf(word, sizeof word, "%.*s", (int)(n < 31 ? n : 31), text);
    const char *near = nearest_name(word, all, sizeof all / sizeof *all);
    return fail(ERR_USAGE, "mask: no kind '%s'%s%s%s; there are " MASK_NAMES, word,
                near != NULL ? " (did you mean '" : "", near != NULL ? near : "",
                near != NULL ? "'?)" : "");
}

static void set_defaults(mask_rule *r) {
    for (int f = 0; f < N_FIELDS; f++)
        if (has_field(r, fields[f].name)) *field_of(r, &fields[f]) = fields[f].usual;
}

/* Where a path starts, or NULL for the text of a rule. */
static const char *path_in(const char *text) {
    if (strncmp(text, "bits:", 5) == 0) return text + 5;
    if (strncmp(text, "csr:", 4) == 0) return text + 4;
    return NULL;
}

status mask_rule_parse(mask_rule *out, const char *text, const char **path) {
    mask_rule r = {0};
    *out = r;
    *path = path_in(text);
    if (*path != NULL) {
        r.kind = MASK_BITS;
        r.is_causal = text_ends_with(*path, ",causal");
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
    snprintf(out, out_bytes, "%s", r->kind < N_KINDS ? kind_names[r->kind] : "bits");
    for (int f = 0; f < N_FIELDS; f++)
        if (has_field(r, fields[f].name))
            text_add(out, out_bytes, ",%s=%d", fields[f].name, *field_of(&copy, &fields[f]));
    if (has_field(r, "seed")) text_add(out, out_bytes, ",seed=%llu", (unsigned long long)r->seed);
    if (r->is_causal) text_add(out, out_bytes, ",causal");
}

/* Masks from files: dense bytes, or the keys of each row (csr).  Every number of a file is checked
 * when it is opened, so that filling a row cannot fail. */
typedef struct mask_file {
    st_file *st;
    int64_t n_sequences; /* 0: one mask for all */
    int64_t *n;          /* tokens of each sequence, or of the one mask */
    int64_t *first;      /* (sequences + 1): its first byte (bits) or its first row (csr) */
    const uint8_t *bytes;
    const st_tensor *row_begin, *keys; /* csr */
} mask_file;

struct mask {
    mask_rule rule;
    mask_file *file; /* NULL for a rule */
};

static status get_ints(const st_file *st, const char *name, const st_tensor **out) {
    *out = st_find(st, name);
    if (*out == NULL)
        return fail(ERR_FORMAT, "%s: no tensor '%s', which a csr mask needs", st->path, name);
    if ((*out)->dtype != ST_I32 && (*out)->dtype != ST_I64)
        return fail(ERR_FORMAT, "%s: '%s' is %s; it must be I32 or I64", st->path, name,
                    st_dtype_name((*out)->dtype));
    return OK;
}

/* The lengths of the sequences, and how many rows, or pairs if is_square, come before each. */
static status read_lengths(mask_file *f, bool is_square) {
    const st_tensor *lengths = st_find(f->st, "lengths");
    if (lengths == NULL) return OK;
    TRY(get_ints(f->st, "lengths", &lengths));
    f->n_sequences = lengths->n;
    TRY(MEM_NEW(&f->n, (size_t)f->n_sequences));
    TRY(MEM_NEW(&f->first, (size_t)f->n_sequences + 1));
    for (int64_t b = 0; b < f->n_sequences; b++) {
        int64_t n = st_int_at(lengths, b), size = 0;
        bool is_length = n >= 0 && n <= INT32_MAX - MASK_TILE;
        if (is_length) size = is_square ? n * n : n;
        if (!is_length || f->first[b] > INT64_MAX - size)
            return fail(ERR_FORMAT, "%s: sequence %lld has length %lld", f->st->path, (long long)b,
                        (long long)n);
        f->n[b] = n;
        f->first[b + 1] = f->first[b] + size;
    }
    return OK;
}

static status set_one(mask_file *f, int64_t n) {
    TRY(MEM_NEW(&f->n, 1));
    TRY(MEM_NEW(&f->first, 2));
    f->n[0] = n;
    return OK;
}

static status read_bits(mask_file *f) {
    const char *path = f->st->path;
    const st_tensor *t = st_find(f->st, "mask");
    if (t == NULL) return fail(ERR_FORMAT, "%s: no tensor 'mask' (one byte for each pair)", path);
    if (t->dtype != ST_U8 && t->dtype != ST_BOOL && t->dtype != ST_I8)
        return fail(ERR_FORMAT, "%s: 'mask' is %s; it must be U8, I8 or BOOL", path,
                    st_dtype_name(t->dtype));
    f->bytes = t->data;
    TRY(read_lengths(f, true));
    if (f->first != NULL) {
        if (f->first[f->n_sequences] != t->n)
            return fail(ERR_FORMAT, "%s: 'mask' has %lld bytes, but the lengths make %lld pairs",
                        path, (long long)t->n, (long long)f->first[f->n_sequences]);
        return OK;
    }
    if (t->n_dims != 2 || t->shape[0] != t->shape[1] || t->shape[0] > INT32_MAX - MASK_TILE)
        return fail(ERR_FORMAT,
                    "%s: 'mask' must be (n, n), or be beside a tensor 'lengths' that says how many "
                    "tokens each sequence has",
                    path);
    return set_one(f, t->shape[0]);
}

/* Every row begins where the one before ends, and its keys ascend within its sequence. */
static status check_row(const mask_file *f, int64_t row, int64_t n) {
    int64_t begin = st_int_at(f->row_begin, row), end = st_int_at(f->row_begin, row + 1), last = -1;
    if (begin < 0 || end < begin || end > f->keys->n)
        return fail(ERR_FORMAT, "%s: row %lld has keys %lld to %lld of %lld", f->st->path,
                    (long long)row, (long long)begin, (long long)end, (long long)f->keys->n);
    for (int64_t at = begin; at < end; at++) {
        int64_t key = st_int_at(f->keys, at);
        if (key < 0 || key >= n)
            return fail(ERR_FORMAT, "%s: row %lld has key %lld; its sequence has keys 0 to %lld",
                        f->st->path, (long long)row, (long long)key, (long long)n - 1);
        if (key <= last)
            return fail(ERR_FORMAT, "%s: row %lld has key %lld after %lld; keys ascend",
                        f->st->path, (long long)row, (long long)key, (long long)last);
        last = key;
    }
    return OK;
}

static bool is_by_sequence(const mask_file *f) {
    return st_find(f->st, "lengths") != NULL;
}

static status read_csr(mask_file *f) {
    const char *path = f->st->path;
    TRY(get_ints(f->st, "indptr", &f->row_begin));
    TRY(get_ints(f->st, "indices", &f->keys));
    TRY(read_lengths(f, false));
    int64_t n_rows = f->row_begin->n - 1;
    if (n_rows < 0 || (f->first == NULL && n_rows > INT32_MAX - MASK_TILE))
        return fail(ERR_FORMAT, "%s: 'indptr' has %lld numbers", path, (long long)n_rows + 1);
    if (f->first == NULL) TRY(set_one(f, n_rows));
    if (f->n_sequences > 0 && f->first[f->n_sequences] != n_rows)
        return fail(ERR_FORMAT, "%s: 'indptr' has %lld rows, but the lengths make %lld", path,
                    (long long)n_rows, (long long)f->first[f->n_sequences]);
    int64_t n_masks = is_by_sequence(f) ? f->n_sequences : 1;
    for (int64_t b = 0; b < n_masks; b++)
        for (int64_t i = 0; i < f->n[b]; i++)
            TRY(check_row(f, f->first[b] + i, f->n[b]));
    return OK;
}

static void close_file(mask_file *f) {
    if (f == NULL) return;
    MEM_FREE(f->n, f->first);
    st_close(f->st);
    mem_free(f);
}

static status open_file(mask_file **out, const char *path, bool is_csr) {
    mask_file *f;
    *out = NULL;
    TRY(MEM_NEW(&f, 1));
    status st = st_open(&f->st, path);
    if (st == OK) st = is_csr ? read_csr(f) : read_bits(f);
    return CREATED(st, out, f, close_file);
}

static status check_file(const mask_file *f, int64_t sequence, int64_t n) {
    const char *path = f->st->path;
    if (!is_by_sequence(f)) {
        if (n <= f->n[0]) return OK;
        return fail(ERR_USAGE, "%s: a mask of %lld tokens, but sequence %lld has %lld", path,
                    (long long)f->n[0], (long long)sequence, (long long)n);
    }
    if (sequence < 0 || sequence >= f->n_sequences)
        return fail(ERR_USAGE, "%s: masks of %lld sequences; there is none for sequence %lld", path,
                    (long long)f->n_sequences, (long long)sequence);
    if (n != f->n[sequence])
        return fail(ERR_USAGE, "%s: the mask of sequence %lld is for %lld tokens, but it has %lld",
                    path, (long long)sequence, (long long)f->n[sequence], (long long)n);
    return OK;
}

status mask_create(mask **out, const char *text) {
    mask m = {0};
    const char *path;
    *out = NULL;
    TRY(mask_rule_parse(&m.rule, text, &path));
    if (path != NULL) {
        buf copy = {0};
        status st = buf_append(&copy, path, strlen(path) - (m.rule.is_causal ? 7 : 0));
        if (st == OK) st = open_file(&m.file, buf_str(&copy), text[0] == 'c');
        buf_fini(&copy);
        TRY(st);
    }
    status st = MEM_NEW(out, 1);
    if (st == OK)
        **out = m;
    else
        close_file(m.file);
    return st;
}

void mask_destroy(mask *m) {
    if (m != NULL) close_file(m->file);
    mem_free(m);
}

const mask_rule *mask_rule_of(const mask *m) {
    return &m->rule;
}

bool mask_is_by_sequence(const mask *m) {
    return m->file != NULL && is_by_sequence(m->file);
}

int64_t mask_length(const mask *m, int64_t sequence) {
    const mask_file *f = m->file;
    if (f == NULL) return 0;
    if (!is_by_sequence(f)) return f->n[0];
    return sequence >= 0 && sequence < f->n_sequences ? f->n[sequence] : 0;
}

status mask_check(const mask *m, int64_t sequence, int64_t n) {
    if (n < 0 || n > INT32_MAX - MASK_TILE)
        return fail(ERR_USAGE, "mask: a sequence of %lld tokens is too long", (long long)n);
    return m->file != NULL ? check_file(m->file, sequence, n) : OK;
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

static int32_t root_of(int32_t n) {
    int32_t s = (int32_t)sqrt((double)n);
    while ((int64_t)s * s > n)
        s--;
    while ((int64_t)(s + 1) * (s + 1) <= n)
        s++;
    return s > 0 ? s : 1;
}

/* One row of a rule, without what is random and without is_causal; s is the root of n. */
static void fill_span(const mask_rule *r, int32_t n, int32_t i, int32_t s, uint64_t *words) {
    mask_span span = mask_rule_span(r, n, i);
    set_span(words, span.begin, span.end, n);
}

/* A window around i, and keys that everybody sees; a row that sees everybody. */
static void fill_global(const mask_rule *r, int32_t n, int32_t i, int32_t s, uint64_t *words) {
    int64_t middle = n / 2;
    bool has_middle = r->kind == MASK_LONGFORMER;
    bool is_global = is_in(i, 0, r->n_global) || (has_middle && is_in(i, middle, r->n_global));
    set_span(words, (int64_t)i - r->window, (int64_t)i + r->window + 1, n);
    set_span(words, 0, is_global ? n : r->n_global, n);
    if (has_middle) set_span(words, middle, middle + r->n_global, n);
}

static void fill_dilated(const mask_rule *r, int32_t n, int32_t i, int32_t s, uint64_t *words) {
    int64_t step = (int64_t)r->dilation + 1, farthest = (int64_t)i - r->window * step;
    set_steps(words, farthest > 0 ? farthest : i % step, i + 1, step);
}

static void fill_strided(const mask_rule *r, int32_t n, int32_t i, int32_t s, uint64_t *words) {
    set_steps(words, i % s, i + 1, s);
    set_span(words, (int64_t)i - s + 1, i + 1, n);
}

static void fill_fixed(const mask_rule *r, int32_t n, int32_t i, int32_t s, uint64_t *words) {
    set_steps(words, s - 1, i + 1, s);
    set_span(words, i / s * s, i + 1, n);
}

#define FILL(id, name, parameters, fill) [id] = fill,
static void (*const fill_of[])(const mask_rule *, int32_t, int32_t, int32_t,
                               uint64_t *) = {MASK_KINDS(FILL)};

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

static void fill_file_row(const mask_file *f, int64_t sequence, int32_t n, int32_t row,
                          uint64_t *words) {
    int64_t b = is_by_sequence(f) ? sequence : 0;
    if (f->bytes != NULL) {
        const uint8_t *from = f->bytes + f->first[b] + row * f->n[b];
        for (int32_t j = 0; j < n; j++)
            words[j / 64] |= (uint64_t)(from[j] != 0) << (j % 64);
        return;
    }
    int64_t at = st_int_at(f->row_begin, f->first[b] + row);
    int64_t end = st_int_at(f->row_begin, f->first[b] + row + 1);
    /* Checked when the file was opened; a file that somebody writes to since must not lead out of
     * the arrays. */
    for (at = at < 0 ? 0 : at; at < end && at < f->keys->n; at++) {
        int64_t key = st_int_at(f->keys, at);
        if (key >= 0 && key < n) words[key / 64] |= (uint64_t)1 << (key % 64);
    }
}

void mask_fill_rows(const mask *m, int64_t sequence, int32_t n, int32_t row, int32_t n_rows,
                    uint64_t *words, int64_t stride) {
    const mask_rule *r = &m->rule;
    int64_t n_words = (n + 63) / 64;
    int32_t s = root_of(n);
    for (int32_t i = 0; i < n_rows; i++) {
        memset(words + i * stride, 0, sizeof *words * (size_t)n_words);
        if (m->file != NULL)
            fill_file_row(m->file, sequence, n, row + i, words + i * stride);
        else
            fill_of[r->kind](r, n, row + i, s, words + i * stride);
    }
    if (r->kind == MASK_BIGBIRD) add_random_blocks(r, n, row, n_rows, words, stride);
    for (int32_t i = 0; i < n_rows; i++)
        clear_from(words + i * stride, r->is_causal && row + i + 1 < n ? row + i + 1 : n, n_words);
}
