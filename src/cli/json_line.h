/* One JSON object on one line of stdout: what --json prints. */
#ifndef HSTU_CLI_JSON_LINE_H
#define HSTU_CLI_JSON_LINE_H

#include "base/text.h"
#include "format/json.h"

typedef struct json_line {
    buf text;
    json_writer w;
} json_line;

/* Opens the object and returns the writer of its members; json_line_print must follow. */
json_writer *json_line_open(json_line *l);

/* Closes the object, prints it, frees the text.  A failure of the writer shows here, and nothing is
 * printed then. */
status json_line_print(json_line *l);

#endif
