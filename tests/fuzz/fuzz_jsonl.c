/* Any bytes as JSON lines.  Each line is also read by the strict reader of base/json.h: what that
 * one accepts as an object must be accepted here, with the same values. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "data/read/blocks.h"
#include "data/read/jsonl.h"
#include "format/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static status check_row(void *ctx, const csv_row *row) {
    const csv_layout *t = ctx;
    if (t->has_text_users && row->user_bytes == 0) abort();
    if (row->action > 4 && row->action != ACTION_UNKNOWN) abort();
    return OK;
}

static void check_cell(const json_value *cell, const json_value *v) {
    if (v == NULL ? cell != NULL : cell == NULL || cell->type != v->type) abort();
    if (v != NULL && v->type == JSON_STRING &&
        (cell->string_bytes != v->string_bytes ||
         memcmp(cell->string, v->string, v->string_bytes) != 0))
        abort();
}

static void compare(const json_paths *paths, char *line, size_t n) {
    const json_value *root;
    const json_value *cells[JSON_MAX_PATHS];
    csv_field text;
    arena a, row;
    arena_init(&a, 4096);
    arena_init(&row, 4096);
    bool is_object = json_parse(&a, "fuzz", line, n, &root) == OK && root->type == JSON_OBJECT;
    status st = json_row_read(paths, &row, line, n, cells);
    if (is_object && st != OK && strstr(status_reason(), "twice") == NULL) abort();
    for (int i = 0; st == OK && i < paths->n; i++)
        if (cells[i] != NULL && json_cell_text(&row, cells[i], &text) != OK) abort();
    if (is_object && st == OK) {
        const json_value *nested = json_member(root, "user");
        bool has_nested = nested != NULL && nested->type == JSON_OBJECT;
        check_cell(cells[1], json_member(root, "item"));
        if (!has_nested) check_cell(cells[0], json_member(root, "user.id"));
    }
    arena_fini(&a);
    arena_fini(&row);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    json_paths paths = {.n = 0};
    if (size < 1) return 0;
    char *text = calloc(1, size + BLOCKS_PADDING), *copy = malloc(size);
    if (text == NULL || copy == NULL) abort();
    memcpy(text, data + 1, size - 1);
    text[size - 1] = '\n';
    memcpy(copy, text, size);
    (void)json_paths_add(&paths, "user.id", ROLE_USER);
    (void)json_paths_add(&paths, "item", ROLE_ITEM);
    (void)json_paths_add(&paths, "ts", ROLE_TIME);
    (void)json_paths_add(&paths, "rating", ROLE_ACTION);
    for (size_t at = 0; at < size;) {
        size_t n = (size_t)((char *)memchr(copy + at, '\n', size - at) - (copy + at));
        if (memchr(copy + at, '\0', n) == NULL) compare(&paths, copy + at, n);
        at += n + 1;
    }
    csv_layout t = {.actions = ACTION_STARS,
                    .has_text_users = data[0] & 1,
                    .has_text_items = data[0] >> 1 & 1,
                    .paths = &paths};
    time_plan_set(&t.times, (time_form)((data[0] >> 2 & 3) % N_TIME_FORMS), UNIT_S, false);
    text_block block = {.text = text, .n_bytes = size, .first_line = 1};
    if (data[0] >> 4 & 1) (void)bad_lines_create(&t.bad, 50);
    (void)jsonl_parse_block(&t, "fuzz", &block, check_row, &t);
    bad_lines_destroy(t.bad);
    free(text);
    free(copy);
    return 0;
}
