#include "base/mem.h"
#include "data/read/blocks.h"
#include "test.h"

static const char *write_bytes(const void *bytes, size_t n) {
    static char path[4096];
    snprintf(path, sizeof path, "%s/text", test_folder());
    FILE *f = fopen(path, "wb");
    CHECK(f != NULL && fwrite(bytes, 1, n, f) == n && fclose(f) == 0);
    return path;
}

/* Opens text as blocks for one worker. */
static blocks *open_text(input **in, const void *text, size_t n, size_t block_bytes,
                         size_t max_line_bytes) {
    blocks *b;
    blocks_options o = {
        .block_bytes = block_bytes, .max_line_bytes = max_line_bytes, .first_sequence = 5};
    CHECK_OK(input_open(in, write_bytes(text, n)));
    CHECK_OK(blocks_create(&b, *in, &o, 1));
    return b;
}

/* Reads text in blocks of every size from 1 byte and puts it together again. */
static void check_roundtrip(const char *text, const char *wanted) {
    for (size_t size = 1; size <= strlen(text) + 2; size++) {
        input *in;
        blocks *b = open_text(&in, text, strlen(text), size, 1000);
        char joined[4096] = "";
        text_block block;
        bool has_block;
        uint64_t line = 1, sequence = 5;
        for (;;) {
            CHECK_OK(blocks_take(b, 0, &block, &has_block));
            if (!has_block) break;
            CHECK(block.n_bytes > 0 && block.text[block.n_bytes - 1] == '\n');
            CHECK_EQ(block.first_line, line);
            CHECK_EQ(block.sequence, sequence++);
            CHECK_EQ(block.n_lines, count_newlines(block.text, block.n_bytes));
            line += block.n_lines;
            strncat(joined, block.text, block.n_bytes);
        }
        CHECK_STR(joined, wanted);
        CHECK_EQ(blocks_next_sequence(b), sequence);
        blocks_destroy(b);
        input_close(in);
    }
}

TEST(whole_lines_at_every_block_size) {
    check_roundtrip("a\nbb\nccc\n\ndddd\n", "a\nbb\nccc\n\ndddd\n");
    check_roundtrip("no newline at the end\nof the file", "no newline at the end\nof the file\n");
    check_roundtrip("\n\n\n", "\n\n\n");
    check_roundtrip("one\r\ntwo\r\n", "one\r\ntwo\r\n");
    check_roundtrip("", "");
    check_roundtrip("x", "x\n");
}

TEST(byte_order_mark_is_dropped_at_the_start_only) {
    check_roundtrip("\xef\xbb\xbfid,x\n\xef\xbb\xbf\n", "id,x\n\xef\xbb\xbf\n");
    check_roundtrip("\xef\xbb\xbf", "");
    static const char *const others[] = {"\xef\xbb\xbe\n", "\xef\xba\xbf\n", "a\xc2\xbf\n"};
    for (int i = 0; i < 3; i++)
        check_roundtrip(others[i], others[i]);
}

TEST(utf16_is_refused) {
    input *in;
    blocks *b;
    blocks_options o = {0};
    CHECK_OK(input_open(&in, write_bytes("\xff\xfe\x31\0", 4)));
    CHECK_FAILS(blocks_create(&b, in, &o, 1), ERR_FORMAT, "text:1: the file is UTF-16 text");
    CHECK(b == NULL);
    input_close(in);
    CHECK_OK(input_open(&in, write_bytes("\xff\xfe\0\0\x31\0\0\0", 8)));
    CHECK_FAILS(blocks_create(&b, in, &o, 1), ERR_FORMAT, "'iconv -f UTF-32 -t UTF-8'");
    input_close(in);
}

TEST(nul_byte_names_its_line) {
    input *in;
    blocks *b = open_text(&in, "a\nb\n\0\nd\n", 8, 100, 100);
    text_block block;
    bool has_block;
    CHECK_FAILS(blocks_take(b, 0, &block, &has_block), ERR_FORMAT,
                "text:3: the line holds a NUL byte");
    blocks_destroy(b);
    input_close(in);
}

/* The limit is exact wherever in a block the line starts. */
TEST(long_lines_are_refused_exactly) {
    for (size_t before = 0; before < 80; before++) {
        for (size_t length = 9; length <= 12; length++) {
            char text[128] = "";
            for (size_t i = 0; i < before / 2; i++)
                strcat(text, i % 4 == 3 ? "\n" : "y");
            if (before > 1) strcat(text, "\n");
            uint64_t line = 1 + count_newlines(text, strlen(text));
            for (size_t i = 0; i < length; i++)
                strcat(text, "z");
            strcat(text, before % 2 == 0 ? "\nend\n" : "\n"); /* or it is the last one */
            input *in;
            blocks *b = open_text(&in, text, strlen(text), 16, 10);
            text_block block;
            bool has_block = true;
            status st = OK;
            while (st == OK && has_block)
                st = blocks_take(b, 0, &block, &has_block);
            CHECK_EQ(st, length <= 10 ? OK : ERR_FORMAT);
            char wanted[64];
            snprintf(wanted, sizeof wanted, "text:%d: the line is longer than 10", (int)line);
            if (st != OK) CHECK_CONTAINS(status_reason(), wanted);
            blocks_destroy(b);
            input_close(in);
        }
    }
}

TEST(peek_and_skip_pass_over_the_header) {
    input *in;
    blocks *b = open_text(&in, "head,er\r\nrow\n", 13, 4, 100);
    const char *line;
    size_t n;
    bool has_line, has_block;
    text_block block;
    CHECK_OK(blocks_peek_line(b, &line, &n, &has_line));
    CHECK(has_line && n == 7 && memcmp(line, "head,er", 7) == 0);
    CHECK_OK(blocks_skip_line(b));
    CHECK_OK(blocks_take(b, 0, &block, &has_block));
    CHECK(has_block && block.n_bytes == 4 && memcmp(block.text, "row\n", 4) == 0);
    CHECK_EQ(block.first_line, 2);
    blocks_destroy(b);
    input_close(in);
}

TEST(peek_finds_a_header_longer_than_the_read_ahead) {
    static char text[20000];
    memset(text, 'h', sizeof text);
    text[15000] = '\n';
    input *in;
    blocks *b = open_text(&in, text, sizeof text, 0, 0);
    const char *line;
    size_t n;
    bool has_line;
    CHECK_OK(blocks_peek_line(b, &line, &n, &has_line));
    CHECK_EQ(n, 15000);
    CHECK_OK(blocks_skip_line(b));
    CHECK_OK(blocks_peek_line(b, &line, &n, &has_line));
    CHECK_EQ(n, sizeof text - 15001);
    CHECK_OK(blocks_skip_line(b));
    CHECK_OK(blocks_peek_line(b, &line, &n, &has_line));
    CHECK(!has_line);
    blocks_destroy(b);
    input_close(in);
}

/* Sums the numbers in all lines; fails at some of them. */
typedef struct sum_context {
    _Atomic uint64_t sum;
    uint64_t bad_from;
} sum_context;

static status sum_block(void *ctx, text_block *block, int worker) {
    sum_context *s = ctx;
    uint64_t line = block->first_line;
    (void)worker;
    for (char *at = block->text, *end = at + block->n_bytes; at < end; line++) {
        if (line >= s->bad_from && line % 3 == 0)
            return fail(ERR_FORMAT, "line %llu", (unsigned long long)line);
        s->sum += strtoull(at, &at, 10);
        at++;
    }
    return OK;
}

TEST(all_threads_read_everything_and_the_first_failure_wins) {
    static char text[400000];
    size_t n = 0;
    uint64_t wanted = 0;
    for (int i = 1; i <= 50000; i++) {
        n += (size_t)sprintf(text + n, "%d\n", i);
        wanted += (uint64_t)i;
    }
    for (int threads = 1; threads <= 4; threads += 3) {
        for (int fails = 0; fails < 20; fails++) {
            pool *p;
            input *in;
            blocks *b;
            blocks_options o = {.block_bytes = 100};
            sum_context s = {.bad_from = fails == 0 ? UINT64_MAX : (uint64_t)fails * 1000};
            CHECK_OK(pool_create(&p, threads));
            CHECK_OK(input_open(&in, write_bytes(text, n)));
            CHECK_OK(blocks_create(&b, in, &o, threads));
            status st = blocks_run(b, p, sum_block, &s);
            if (fails == 0) {
                CHECK_EQ(st, OK);
                CHECK_EQ(s.sum, wanted);
            } else {
                char reason[64];
                snprintf(reason, sizeof reason, "line %d", (fails * 1000 + 2) / 3 * 3);
                CHECK_EQ(st, ERR_FORMAT);
                CHECK_STR(status_reason(), reason);
            }
            blocks_destroy(b);
            input_close(in);
            pool_destroy(p);
        }
    }
}

TEST(newlines_are_counted_in_any_length) {
    char text[700];
    for (size_t n = 0; n < sizeof text; n++) {
        memset(text, 'a', sizeof text);
        uint64_t wanted = 0;
        for (size_t i = n % 7; i < n; i += 1 + n % 5, wanted++)
            text[i] = '\n';
        CHECK_EQ(count_newlines(text, n), wanted);
    }
    memset(text, '\n', sizeof text);
    CHECK_EQ(count_newlines(text, sizeof text), sizeof text);
}

/* Puts quoted text together again from blocks of every size; no block may end inside quotes.  Rows
 * before it pass what is read ahead, which is one block. */
static void check_quotes(const char *row) {
    static char text[8192], joined[8192];
    csv_format format = {",", true};
    size_t n = 0;
    for (int i = 0; i < 1100; i++)
        n += (size_t)sprintf(text + n, "0,0\n");
    for (int i = 0; i < 4; i++)
        n += (size_t)sprintf(text + n, "%s", row);
    for (size_t size = 1; size <= strlen(row) + 2; size++) {
        input *in;
        blocks *b = open_text(&in, text, n, size, 40);
        text_block block;
        bool has_block = true;
        uint64_t line = 1;
        size_t n_joined = 0;
        blocks_set_quotes(b, &format);
        for (;;) {
            CHECK_OK(blocks_take(b, 0, &block, &has_block));
            if (!has_block) break;
            CHECK_EQ(block.first_line, line);
            line += block.n_lines;
            int n_quotes = 0; /* a quote after a digit is text */
            for (size_t i = 0; i < block.n_bytes; i++)
                n_quotes += block.text[i] == '"' &&
                            (i == 0 || block.text[i - 1] < '0' || block.text[i - 1] > '9');
            CHECK_EQ(n_quotes % 2, 0);
            CHECK(n_joined + block.n_bytes <= sizeof joined);
            memcpy(joined + n_joined, block.text, block.n_bytes);
            n_joined += block.n_bytes;
        }
        CHECK_EQ(n_joined, n);
        CHECK(memcmp(joined, text, n) == 0);
        blocks_destroy(b);
        input_close(in);
    }
}

TEST(no_block_ends_inside_quotes) {
    check_quotes("a,\"b\nc\",d\n\"\n\"\n\"x\"\"\n\"\"y\",1\n,\"\"\n\"\",2\n");
    check_quotes("1,\"two\r\nlines\"\r\n3,\"\n\n\n\"\n");
    /* A quote in the middle of a field is text. */
    check_quotes("5\" disk,1\n3\" disk,\"a\nb\"\n");
}

/* A quote that is never closed is text, once the limit of a line is passed; what follows is still
 * read line by line. */
TEST(an_open_quote_does_not_swallow_the_file) {
    static char text[50000]; /* more than is read ahead */
    csv_format format = {",", true};
    input *in;
    text_block block;
    bool has_block = true;
    uint64_t n_lines = 0, n_blocks = 0;
    size_t n = (size_t)sprintf(text, "1,2\n\"3,4\n");
    for (int i = 0; i < 10000; i++)
        n += (size_t)sprintf(text + n, "5,6\n");
    blocks *b = open_text(&in, text, strlen(text), 16, 40);
    blocks_set_quotes(b, &format);
    for (; has_block; n_blocks++) {
        CHECK_OK(blocks_take(b, 0, &block, &has_block));
        if (has_block) n_lines += block.n_lines;
    }
    CHECK_EQ(n_lines, 10002);
    CHECK(n_blocks > 1000);
    blocks_destroy(b);
    input_close(in);
}

/* Closed quotes without end make a row without end: refused before it fills the memory. */
TEST(a_row_without_end_is_refused) {
    static char text[50000];
    csv_format format = {",", true};
    input *in;
    text_block block;
    bool has_block;
    for (size_t i = 0; i < 10000; i++)
        memcpy(text + 4 * i, "\"\n\",", 4);
    blocks *b = open_text(&in, text, strlen(text), 16, 40);
    blocks_set_quotes(b, &format);
    CHECK_FAILS(blocks_take(b, 0, &block, &has_block), ERR_FORMAT,
                "text:1: the line is longer than 40 bytes");
    blocks_destroy(b);
    input_close(in);
}

TEST(peek_text_gives_whole_lines) {
    input *in;
    const char *text;
    size_t n;
    blocks *b = open_text(&in, "one\ntwo\nthree", 13, 16, 100);
    CHECK_OK(blocks_peek_text(b, 10, &text, &n));
    CHECK_EQ(n, 13); /* the first bytes are read ahead: the end is known */
    CHECK_EQ(blocks_next_line(b), 1);
    CHECK_OK(blocks_skip_line(b));
    CHECK_OK(blocks_peek_text(b, 10, &text, &n));
    CHECK(n == 9 && memcmp(text, "two\nthree", 9) == 0);
    CHECK_EQ(blocks_next_line(b), 2);
    blocks_destroy(b);
    input_close(in);
}
