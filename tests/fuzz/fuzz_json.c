/* Any bytes through the JSON reader.  What it accepts must come back unchanged through the writer:
 * written, read and written again, the two texts are the same. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "format/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

static void write_value(json_writer *w, const json_value *v) {
    if (v->key != NULL) json_key(w, v->key);
    switch (v->type) {
    case JSON_NULL:
        json_null(w);
        break;
    case JSON_BOOL:
        json_bool(w, v->boolean);
        break;
    case JSON_NUMBER:
        /* -0 is an integer for the reader, but only a double keeps its sign. */
        if (v->is_integer && v->integer != 0)
            json_int(w, v->integer);
        else
            json_double(w, v->number);
        break;
    case JSON_STRING:
        json_string_n(w, v->string, v->string_bytes);
        break;
    case JSON_ARRAY:
    case JSON_OBJECT:
        (v->type == JSON_ARRAY ? json_array_open : json_object_open)(w);
        for (const json_value *child = v->first; child != NULL; child = child->next)
            write_value(w, child);
        (v->type == JSON_ARRAY ? json_array_close : json_object_close)(w);
    }
}

static status rewrite(const char *text, size_t n, int indent, buf *out) {
    arena tree;
    const json_value *v;
    arena_init(&tree, 4096);
    status st = json_parse(&tree, "fuzz", text, n, &v);
    if (st == OK) {
        json_writer w;
        json_begin(&w, out, indent);
        write_value(&w, v);
        st = json_finish(&w);
    }
    arena_fini(&tree);
    return st;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n) {
    buf first = {0}, second = {0};
    if (rewrite((const char *)bytes, n, 2, &first) == OK) {
        if (rewrite(first.data, first.n_bytes, 2, &second) != OK) abort();
        if (strcmp(first.data, second.data) != 0) abort();
    }
    buf_fini(&first);
    buf_fini(&second);
    return 0;
}
