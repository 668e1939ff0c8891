/* Any bytes through the table parser, as every layout.  The first byte chooses the layout, the
 * second the columns; the rest is the first line and the rows. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "data/table_parse.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A row must be made of what the layout promises; anything else is a bug. */
static status check_row(void *ctx, const table_row *row) {
    const table_layout *t = ctx;
    static const uint16_t largest[] = {0, 4, 9, 255, UINT16_MAX};
    if (row->action > largest[t->actions]) abort();
    if (t->has_text_users && row->user_bytes == 0) abort();
    if (t->has_text_items && memchr(row->item_text, '\n', row->item_bytes) != NULL) abort();
    return OK;
}

static void parse_rows(table_layout *t, char *text, size_t n) {
    char *end = memchr(text, '\n', n), excerpt[64];
    size_t first = (size_t)(end - text);
    static const table_column columns[2][4] = {
        {{ROLE_USER, "1"}, {ROLE_ITEM, "2"}, {ROLE_ACTION, "3"}, {ROLE_TIME, "4"}},
        {{ROLE_TIME, "time"}, {ROLE_USER, "user"}, {ROLE_ITEM, "item"}, {ROLE_ACTION, "rating"}}};
    static const table_column bits[] = {
        {ROLE_USER, "1"}, {ROLE_ITEM, "2"}, {ROLE_BIT0, "3"}, {ROLE_BIT7, "5"}};
    bool has_names = t->can_have_text_ids;
    const table_column *wanted = t->actions == ACTION_BITS ? bits : columns[has_names];
    int n_wanted = t->actions == ACTION_NONE ? 2 : 4;
    table_excerpt(excerpt, text, first);
    if (table_layout_resolve(t, "fuzz", text, first, has_names, wanted, n_wanted) != OK) return;
    text_block block = {.text = text, .n_bytes = n, .first_line = 1, .n_lines = 1};
    (void)table_parse_block(t, "fuzz", &block, check_row, t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char delimiters[][3] = {",", "\t", "|", "::"};
    if (size < 2) return 0;
    table_layout t = {.actions = (action_kind)(data[0] >> 2 & 7) % 5,
                      .has_text_users = data[0] >> 5 & 1,
                      .has_text_items = data[0] >> 6 & 1,
                      .can_have_text_ids = data[1] & 1};
    memcpy(t.format.delimiter, delimiters[data[0] & 3], 3);
    t.format.has_quotes = data[1] >> 1 & 1;
    /* An exact allocation, so that a read behind the last newline is found. */
    char *text = malloc(size - 1);
    if (text == NULL) return 0;
    memcpy(text, data + 2, size - 2);
    text[size - 2] = '\n';
    parse_rows(&t, text, size - 1);
    free(text);
    return 0;
}
