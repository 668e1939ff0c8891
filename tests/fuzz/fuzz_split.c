/* Any text as --time-cut, and as the JSON of a split that a run remembers.  A time that is read is
 * said in words that are read as the same time; a record that is read is written as one that reads
 * the same. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "data/set/split.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_time(const char *text) {
    char said[SPLIT_TEXT_BYTES];
    split_rule rule = split_rule_of(SPLIT_TIME);
    int64_t again;
    if (split_time_parse(text, &rule.time_cut) != OK) {
        if (status_reason()[0] == '\0') abort();
        return;
    }
    const char *time = strstr(split_rule_text(&rule, said), " before ");
    if (time == NULL || split_time_parse(time + 8, &again) != OK || again != rule.time_cut) abort();
}

static void check_record(const char *text, size_t size) {
    arena a;
    const json_value *root, *second;
    split_record r, again;
    json_writer w;
    buf out = {0};
    arena_init(&a, 4096);
    if (json_parse(&a, "split", text, size, &root) == OK && root->type == JSON_OBJECT &&
        split_record_read(&r, root) == OK) {
        json_begin(&w, &out, 0);
        json_object_open(&w);
        split_record_write(&r, &w);
        json_object_close(&w);
        if (json_finish(&w) != OK ||
            json_parse(&a, "again", buf_str(&out), out.n_bytes, &second) != OK ||
            split_record_read(&again, second) != OK)
            abort();
        if (!split_rule_is_same(&r.rule, &again.rule) || r.test_data != again.test_data ||
            strcmp(r.test_file, again.test_file) != 0)
            abort();
    }
    buf_fini(&out);
    arena_fini(&a);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char *text = malloc(size + 1);
    if (text == NULL) return 0;
    memcpy(text, data, size);
    text[size] = '\0';
    check_time(text);
    check_record(text, size);
    free(text);
    return 0;
}
