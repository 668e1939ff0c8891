/* Escapes of JSON strings, decoded in place: a character is never longer than its escape. */
#ifndef HSTU_FORMAT_JSON_ESCAPE_H
#define HSTU_FORMAT_JSON_ESCAPE_H

#include "base/status.h"

/* Decodes one escape: *at is the place after the backslash and moves past the escape; its character
 * is written to *to.  \' is accepted too, for lists written by Python. */
status json_escape_decode(char **at, const char *end, char **to);

#endif
