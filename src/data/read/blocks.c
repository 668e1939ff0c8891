#include "data/read/blocks.h"

/* Bytes read ahead at the start of a stream; more where the first line is longer. */
enum { FIRST_BYTES = 4096 };

/* A row with line breaks inside quotes may be as long as this many of the longest lines. */
enum { ROW_LINES = 8 };

typedef struct worker_buffer {
    char *text;
    size_t capacity;
} worker_buffer;

struct blocks {
    input *in;
    pthread_mutex_t lock; /* guards everything below but the workers' own buffers */
    size_t block_bytes, max_line_bytes;
    char *carry; /* bytes read but not yet in a block: at most a line, or the first bytes */
    size_t carry_bytes, carry_capacity;
    uint64_t next_sequence, next_line;
    bool is_at_end; /* of the stream; the carry may still hold lines */
    bool has_failed;
    uint64_t failed_sequence;
    failure first_failure;
    progress *bar;
    bool has_quotes;   /* rows may hold line breaks */
    csv_format format; /* then: of the quotes */
    int n_workers;
    worker_buffer *buffer; /* (n_workers) */
};

uint64_t count_chars(const char *text, size_t n, char c) {
    uint64_t count = 0;
    size_t i = 0;
    /* A count over 128 bytes fits in a byte, so the inner loop vectorises over bytes. */
    for (; i + 128 <= n; i += 128) {
        uint8_t part = 0;
        for (size_t j = 0; j < 128; j++)
            part = (uint8_t)(part + (text[i + j] == c));
        count += part;
    }
    for (; i < n; i++)
        count += text[i] == c;
    return count;
}

/* Reads until text holds `wanted` bytes or the stream ends. */
static status fill(blocks *b, char *text, size_t *used, size_t wanted) {
    while (*used < wanted && !b->is_at_end) {
        size_t got = 0;
        TRY(input_read(b->in, text + *used, wanted - *used, &got));
        *used += got;
        b->is_at_end = got == 0;
    }
    return OK;
}

static status drop_byte_order_mark(blocks *b) {
    const unsigned char *c = (const unsigned char *)b->carry;
    size_t n = b->carry_bytes;
    if (n >= 2 && ((c[0] == 0xff && c[1] == 0xfe) || (c[0] == 0xfe && c[1] == 0xff))) {
        int bits = n >= 4 && c[2] == 0 && c[3] == 0 ? 32 : 16;
        return fail(ERR_FORMAT,
                    "%s:1: the file is UTF-%d text; convert it with 'iconv -f UTF-%d -t UTF-8'",
                    input_name(b->in), bits, bits);
    }
    if (n >= 3 && c[0] == 0xef && c[1] == 0xbb && c[2] == 0xbf) {
        memmove(b->carry, b->carry + 3, n - 3);
        b->carry_bytes = n - 3;
    }
    return OK;
}

/* Every Parquet file begins with a page header, whose first byte is 0x15: no text does. */
static status refuse_parquet(const blocks *b) {
    if (b->carry_bytes < 5 || memcmp(b->carry, "PAR1\x15", 5) != 0) return OK;
    return fail(ERR_FORMAT, "%s: this is a Parquet file; read it with 'hstu prep parquet'",
                input_name(b->in));
}

/* The first bytes are read ahead: they show the encoding and hold the header. */
static status start(blocks *b) {
    TRY(MEM_RESERVE(&b->carry, &b->carry_capacity, FIRST_BYTES + 1));
    TRY(fill(b, b->carry, &b->carry_bytes, FIRST_BYTES));
    TRY(refuse_parquet(b));
    return drop_byte_order_mark(b);
}

status blocks_create(blocks **out, input *in, const blocks_options *options, int n_workers) {
    blocks *b;
    *out = NULL;
    TRY(MEM_NEW(&b, 1));
    b->in = in;
    b->block_bytes = options->block_bytes != 0 ? options->block_bytes : BLOCKS_DEFAULT_BYTES;
    b->max_line_bytes =
        options->max_line_bytes != 0 ? options->max_line_bytes : BLOCKS_DEFAULT_LINE_BYTES;
    b->next_sequence = options->first_sequence;
    b->next_line = 1;
    b->bar = options->bar;
    b->n_workers = n_workers;
    pthread_mutex_init(&b->lock, NULL);
    status st = MEM_NEW(&b->buffer, (size_t)n_workers);
    if (st == OK) st = start(b);
    return CREATED(st, out, b, blocks_destroy);
}

void blocks_destroy(blocks *b) {
    if (b == NULL) return;
    for (int i = 0; b->buffer != NULL && i < b->n_workers; i++)
        mem_free(b->buffer[i].text);
    MEM_FREE(b->buffer, b->carry);
    pthread_mutex_destroy(&b->lock);
    mem_free(b);
}

static status fail_long_line(const blocks *b, uint64_t line) {
    return fail(ERR_FORMAT, "%s:%llu: the line is longer than %zu bytes; is this a text file?",
                input_name(b->in), (unsigned long long)line, b->max_line_bytes);
}

status blocks_peek_line(blocks *b, const char **line, size_t *n_bytes, bool *has_line) {
    const char *end;
    while ((end = memchr(b->carry, '\n', b->carry_bytes)) == NULL && !b->is_at_end) {
        if (b->carry_bytes > b->max_line_bytes) return fail_long_line(b, b->next_line);
        size_t wanted = b->carry_bytes * 2 + FIRST_BYTES;
        TRY(MEM_RESERVE(&b->carry, &b->carry_capacity, wanted + 1));
        TRY(fill(b, b->carry, &b->carry_bytes, wanted));
    }
    size_t n = end != NULL ? (size_t)(end - b->carry) : b->carry_bytes;
    if (n > b->max_line_bytes) return fail_long_line(b, b->next_line);
    if (memchr(b->carry, '\0', n) != NULL)
        return fail(ERR_FORMAT, "%s:%llu: the line holds a NUL byte; this is not a text file",
                    input_name(b->in), (unsigned long long)b->next_line);
    *has_line = b->carry_bytes > 0;
    *line = b->carry;
    *n_bytes = n > 0 && b->carry[n - 1] == '\r' ? n - 1 : n;
    return OK;
}

status blocks_skip_line(blocks *b) {
    const char *line;
    size_t n;
    bool has_line;
    TRY(blocks_peek_line(b, &line, &n, &has_line));
    const char *end = memchr(b->carry, '\n', b->carry_bytes);
    size_t passed = end != NULL ? (size_t)(end - b->carry) + 1 : b->carry_bytes;
    memmove(b->carry, b->carry + passed, b->carry_bytes - passed);
    b->carry_bytes -= passed;
    b->next_line += has_line;
    return OK;
}

status blocks_peek_text(blocks *b, size_t wanted, const char **text, size_t *n_bytes) {
    TRY(MEM_RESERVE(&b->carry, &b->carry_capacity, wanted + 1));
    TRY(fill(b, b->carry, &b->carry_bytes, wanted));
    const char *last = memrchr(b->carry, '\n', b->carry_bytes);
    *text = b->carry;
    *n_bytes = b->is_at_end ? b->carry_bytes : last != NULL ? (size_t)(last - b->carry) + 1 : 0;
    return OK;
}

void blocks_set_quotes(blocks *b, const csv_format *format) {
    b->has_quotes = format->has_quotes;
    b->format = *format;
}

/* The bytes up to the last line end that is outside quotes; 0 if there is none.  Most data has no
 * quotes at all: then this is one fast search. */
static size_t cut_rows(const blocks *b, const char *text, size_t n) {
    const char *at = text, *end = text + n, *last = NULL;
    while (at < end) {
        const char *quote = b->has_quotes ? memchr(at, '"', (size_t)(end - at)) : NULL;
        const char *stop = quote != NULL ? quote : end, *newline;
        newline = memrchr(at, '\n', (size_t)(stop - at));
        if (newline != NULL) last = newline;
        if (quote == NULL) break;
        const char *close = csv_skip_quoted(&b->format, text, quote, end);
        if (close == NULL && (size_t)(end - quote) <= b->max_line_bytes) break;
        at = close == NULL || (size_t)(close - quote) > b->max_line_bytes ? quote + 1 : close + 1;
    }
    return last != NULL ? (size_t)(last - text) + 1 : 0;
}

/* Reads into the worker's buffer until it holds at least one whole row and, if the stream has as
 * many, block_bytes bytes.  *cut = the bytes of whole rows. */
static status read_lines(blocks *b, worker_buffer *w, size_t *used, size_t *cut) {
    size_t wanted = b->carry_bytes > b->block_bytes ? b->carry_bytes : b->block_bytes;
    *used = 0;
    for (;;) {
        TRY(MEM_RESERVE(&w->text, &w->capacity, wanted + 1 + BLOCKS_PADDING));
        if (*used == 0 && b->carry_bytes > 0) {
            memcpy(w->text, b->carry, b->carry_bytes);
            *used = b->carry_bytes;
            b->carry_bytes = 0;
        }
        TRY(fill(b, w->text, used, wanted));
        if (b->is_at_end) break;
        *cut = cut_rows(b, w->text, *used);
        if (*cut > 0) return OK;
        /* Without a line end this is one long line; with some, a row of several lines. */
        bool is_line = memchr(w->text, '\n', *used) == NULL;
        if (*used > (is_line ? 1 : ROW_LINES) * b->max_line_bytes)
            return fail_long_line(b, b->next_line);
        wanted *= 2;
    }
    if (*used > 0 && w->text[*used - 1] != '\n') w->text[(*used)++] = '\n';
    *cut = *used;
    memset(w->text + *used, 0, BLOCKS_PADDING);
    return OK;
}

/* Every line is within the limit if each window of that size that starts after a newline holds a
 * newline.  Searching each window from its end costs a few bytes. */
static status check_line_lengths(const blocks *b, const char *text, size_t n) {
    size_t at = 0;
    while (n - at > b->max_line_bytes + 1) {
        const char *last = memrchr(text + at, '\n', b->max_line_bytes + 1);
        if (last == NULL) return fail_long_line(b, b->next_line + count_newlines(text, at));
        at = (size_t)(last - text) + 1;
    }
    return OK;
}

static status take_locked(blocks *b, worker_buffer *w, text_block *out, bool *has_block) {
    size_t used = 0, cut = 0;
    TRY(read_lines(b, w, &used, &cut));
    TRY(check_line_lengths(b, w->text, cut));
    TRY(MEM_RESERVE(&b->carry, &b->carry_capacity, used - cut + 1));
    memcpy(b->carry, w->text + cut, used - cut);
    b->carry_bytes = used - cut;
    *has_block = cut > 0;
    *out = (text_block){.text = w->text,
                        .n_bytes = cut,
                        .sequence = b->next_sequence,
                        .first_line = b->next_line,
                        .n_lines = count_newlines(w->text, cut)};
    b->next_sequence += *has_block;
    b->next_line += out->n_lines;
    return OK;
}

static void report_progress(const blocks *b) {
    uint64_t done, total;
    if (b->bar == NULL) return;
    input_progress(b->in, &done, &total);
    progress_update(b->bar, done);
}

/* Keeps the failure of the lowest block; no later block is given to a worker after it, and other
 * workers already have all earlier ones. */
static void record_failure(blocks *b, uint64_t sequence, status st) {
    if (b->has_failed && b->failed_sequence <= sequence) return;
    b->has_failed = true;
    b->failed_sequence = sequence;
    failure_save(&b->first_failure, st);
}

status blocks_take(blocks *b, int worker, text_block *out, bool *has_block) {
    status st = OK;
    *has_block = false;
    pthread_mutex_lock(&b->lock);
    if (!b->has_failed && (!b->is_at_end || b->carry_bytes > 0)) {
        uint64_t sequence = b->next_sequence;
        st = take_locked(b, &b->buffer[worker], out, has_block);
        if (st != OK) record_failure(b, sequence, st);
        report_progress(b);
    }
    pthread_mutex_unlock(&b->lock);
    if (st != OK || !*has_block) return st;
    const char *nul = memchr(out->text, '\0', out->n_bytes);
    if (nul == NULL) return OK;
    *has_block = false;
    return fail(ERR_FORMAT, "%s:%llu: the line holds a NUL byte; this is not a text file",
                input_name(b->in),
                (unsigned long long)(out->first_line +
                                     count_newlines(out->text, (size_t)(nul - out->text))));
}

typedef struct run_context {
    blocks *b;
    block_fn fn;
    void *ctx;
} run_context;

/* One worker's loop.  Failures are kept here, by block number, not in the pool. */
static status run_worker(void *ctx, int64_t chunk, int worker) {
    run_context *run = ctx;
    for (;;) {
        text_block block = {0};
        bool has_block;
        status st = blocks_take(run->b, worker, &block, &has_block);
        if (st == OK && !has_block) return OK;
        if (st == OK) st = run->fn(run->ctx, &block, worker);
        if (st == OK) continue;
        pthread_mutex_lock(&run->b->lock);
        /* A block that could not even be read has recorded its failure already. */
        if (block.n_bytes > 0) record_failure(run->b, block.sequence, st);
        pthread_mutex_unlock(&run->b->lock);
        return OK;
    }
}

status blocks_run(blocks *b, pool *p, block_fn fn, void *ctx) {
    run_context run = {b, fn, ctx};
    TRY(pool_run(p, pool_n_threads(p), run_worker, &run));
    return b->has_failed ? failure_restore(&b->first_failure) : OK;
}

uint64_t blocks_next_sequence(const blocks *b) {
    return b->next_sequence;
}

uint64_t blocks_next_line(const blocks *b) {
    return b->next_line;
}

const char *blocks_name(const blocks *b) {
    return input_name(b->in);
}

typedef struct bad_line {
    uint64_t sequence, order;
    const char *reason;
} bad_line;

struct bad_lines {
    uint64_t limit;
    pthread_mutex_t lock; /* guards the rest */
    arena texts;
    bad_line *line; /* (n) */
    size_t n, capacity;
    bool is_sorted;
};

status bad_lines_create(bad_lines **out, uint64_t limit) {
    TRY(MEM_NEW(out, 1));
    (*out)->limit = limit;
    arena_init(&(*out)->texts, 1 << 16);
    pthread_mutex_init(&(*out)->lock, NULL);
    return OK;
}

void bad_lines_destroy(bad_lines *b) {
    if (b == NULL) return;
    arena_fini(&b->texts);
    mem_free(b->line);
    pthread_mutex_destroy(&b->lock);
    mem_free(b);
}

static status add_locked(bad_lines *b, uint64_t sequence, uint64_t order) {
    const char *reason = status_reason(), *copy;
    TRY(MEM_RESERVE(&b->line, &b->capacity, b->n + 1));
    TRY(arena_copy_text(&b->texts, reason, strlen(reason), &copy));
    b->line[b->n++] = (bad_line){sequence, order, copy};
    b->is_sorted = false;
    return OK;
}

status bad_lines_add(bad_lines *b, uint64_t sequence, uint64_t order) {
    pthread_mutex_lock(&b->lock);
    status st = add_locked(b, sequence, order);
    pthread_mutex_unlock(&b->lock);
    return st == OK && order > b->limit ? bad_lines_check(b) : st;
}

status bad_lines_check(bad_lines *b) {
    pthread_mutex_lock(&b->lock);
    size_t n = b->n;
    pthread_mutex_unlock(&b->lock);
    return n > b->limit ? fail(ERR_FORMAT, "there are too many bad lines") : OK;
}

static int compare_lines(const void *left, const void *right) {
    const bad_line *a = left, *b = right;
    if (a->sequence != b->sequence) return a->sequence < b->sequence ? -1 : 1;
    return (a->order > b->order) - (a->order < b->order);
}

const char *bad_lines_get(bad_lines *b, uint64_t i) {
    if (!b->is_sorted && b->n > 1) qsort(b->line, b->n, sizeof *b->line, compare_lines);
    b->is_sorted = true;
    return b->line[i].reason;
}

uint64_t bad_lines_count(const bad_lines *b) {
    return b->n;
}

status bad_lines_check_share(bad_lines *b, uint64_t n_good, double percent) {
    uint64_t n = b->n + n_good;
    if (100 * (double)b->n <= percent * (double)n) return OK;
    return fail(ERR_FORMAT,
                "%llu of %llu rows are bad, and --skip-bad allows %g %%; the first: %s%s%.200s",
                (unsigned long long)b->n, (unsigned long long)n, percent, bad_lines_get(b, 0),
                b->n > 1 ? "; the second: " : "", b->n > 1 ? bad_lines_get(b, 1) : "");
}

status bad_lines_fail(bad_lines *b) {
    return fail(ERR_FORMAT, "%s; this is bad line %llu, and --skip-bad allows %llu",
                bad_lines_get(b, b->limit), (unsigned long long)b->limit + 1,
                (unsigned long long)b->limit);
}
