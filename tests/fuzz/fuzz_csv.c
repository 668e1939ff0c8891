/* Any bytes through the table parser, as every layout, and some of them through the cutting into
 * blocks too.  The first byte chooses the layout, the second the columns and the size of a block;
 * the rest is the first line and the rows. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/text.h"
#include "data/read/blocks.h"
#include "data/read/row_field.h"
#include "data/read/sample.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A row must be made of what the layout promises; anything else is a bug. */
static status check_row(void *ctx, const csv_row *row) {
    const csv_layout *t = ctx;
    static const uint16_t largest[] = {0, 4, 9, 255, UINT16_MAX};
    if (row->action > largest[t->actions] && row->action != ACTION_UNKNOWN) abort();
    if (t->has_text_users && row->user_bytes == 0) abort();
    if (t->has_text_items && row->item_bytes == 0) abort();
    bool can_break = t->format.has_quotes && t->has_text_items;
    if (row->item_text != NULL && !can_break &&
        memchr(row->item_text, '\n', row->item_bytes) != NULL)
        abort();
    return OK;
}

static void parse_rows(csv_layout *t, char *text, size_t n) {
    char *end = memchr(text, '\n', n), excerpt[64];
    size_t first = (size_t)(end - text);
    static const csv_column columns[2][4] = {
        {{ROLE_USER, "1"}, {ROLE_ITEM, "2"}, {ROLE_ACTION, "3"}, {ROLE_TIME, "4"}},
        {{ROLE_TIME, "time"}, {ROLE_USER, "user"}, {ROLE_ITEM, "item"}, {ROLE_ACTION, "rating"}}};
    static const csv_column bits[] = {
        {ROLE_USER, "1"}, {ROLE_ITEM, "2"}, {ROLE_BIT0, "3"}, {ROLE_BIT7, "5"}};
    bool has_names = t->is_own;
    const csv_column *wanted = t->actions == ACTION_BITS ? bits : columns[has_names];
    int n_wanted = t->actions == ACTION_NONE ? 2 : 4;
    escape_excerpt(excerpt, text, first);
    if (csv_layout_resolve(t, "fuzz", text, first, has_names, wanted, n_wanted) != OK) return;
    text_block block = {.text = text, .n_bytes = n, .first_line = 1, .n_lines = 1};
    (void)csv_parse_block(t, "fuzz", &block, check_row, t);
}

/* Again with a guess of what the bytes are, as for a file that nobody described, and with bad rows
 * collected: all lines are then tried. */
static void guess_and_skip(csv_layout *t, char *text, size_t n) {
    sample s;
    text_block block = {.text = text, .n_bytes = n, .first_line = 1, .n_lines = 1};
    static const csv_column three[] = {{ROLE_USER, "1"}, {ROLE_ITEM, "2"}, {ROLE_TIME, "3"}};
    sample_find_delimiter(text, n, t->format.delimiter);
    t->format.has_quotes = true;
    size_t first = csv_row_bytes(&t->format, text, n);
    sample_init(&s, "fuzz");
    if (sample_csv(&s, &t->format, text, n, 1, false) == OK && s.n_columns >= 3 &&
        s.n_rows > SAMPLE_ROWS)
        abort();
    sample_fini(&s);
    if (first == 0 || text[first - 1] != '\n') abort();
    if (csv_layout_resolve(t, "fuzz", text, first - 1, false, three, 3) != OK) return;
    time_plan_set(&t->times, TIME_NUMBER, UNIT_S, false);
    if (bad_lines_create(&t->bad, 100) != OK) return;
    if (csv_parse_block(t, "fuzz", &block, check_row, t) == OK && bad_lines_count(t->bad) > 100)
        abort();
    for (uint64_t i = 1; i < bad_lines_count(t->bad); i++)
        if (bad_lines_get(t->bad, i) == bad_lines_get(t->bad, i - 1)) abort();
    bad_lines_destroy(t->bad);
    t->bad = NULL;
}

/* Whatever the bytes, blocks are whole lines, numbered without a gap. */
static void cut_blocks(input *in, size_t block_bytes, const csv_format *format) {
    blocks_options options = {.block_bytes = block_bytes, .max_line_bytes = 64};
    blocks *b;
    text_block block;
    bool has_block = true;
    uint64_t line = 1, sequence = 0;
    if (blocks_create(&b, in, &options, 1) != OK) return;
    blocks_set_quotes(b, format);
    while (blocks_take(b, 0, &block, &has_block) == OK && has_block) {
        if (block.first_line != line || block.sequence != sequence++) abort();
        if (block.n_bytes == 0 || block.text[block.n_bytes - 1] != '\n') abort();
        if (memchr(block.text, '\0', block.n_bytes) != NULL) abort();
        line += block.n_lines;
    }
    blocks_destroy(b);
}

static void read_as_file(const uint8_t *data, size_t size, size_t block_bytes,
                         const csv_format *format) {
    char path[64];
    int fd = memfd_create("fuzz", 0);
    if (fd < 0) return;
    input *in;
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (write(fd, data, size) == (ssize_t)size && input_open(&in, path) == OK) {
        cut_blocks(in, block_bytes, format);
        input_close(in);
    }
    close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char delimiters[][3] = {",", "\t", "|", "::"};
    if (size < 2) return 0;
    csv_layout t = {.actions = (action_kind)(data[0] >> 2 & 7) % 5,
                    .has_text_users = data[0] >> 5 & 1,
                    .has_text_items = data[0] >> 6 & 1,
                    .is_own = data[1] & 1};
    memcpy(t.format.delimiter, delimiters[data[0] & 3], 3);
    t.format.has_quotes = data[1] >> 1 & 1;
    /* An exact allocation, so that a read after the padding is found. */
    char *text = calloc(1, size - 1 + BLOCKS_PADDING);
    if (text == NULL) return 0;
    memcpy(text, data + 2, size - 2);
    text[size - 2] = '\n';
    parse_rows(&t, text, size - 1);
    if (data[1] >> 2 & 1) read_as_file(data + 2, size - 2, 1 + (data[1] >> 3), &t.format);
    memcpy(text, data + 2, size - 2);
    text[size - 2] = '\n';
    guess_and_skip(&t, text, size - 1);
    free(text);
    return 0;
}
