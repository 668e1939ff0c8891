#include "cli/json_line.h"

#include <stdio.h>

json_writer *json_line_open(json_line *l) {
    buf_init(&l->text);
    json_begin(&l->w, &l->text, 0);
    json_object_open(&l->w);
    return &l->w;
}

status json_line_print(json_line *l) {
    json_object_close(&l->w);
    status st = json_finish(&l->w);
    if (st == OK) printf("%s\n", buf_str(&l->text));
    buf_fini(&l->text);
    return st;
}
