#include "data/read/list_parse.h"

#include "format/json.h"

static bool is_blank(char c) {
    return c == ' ' || c == '\t' || c == '\r';
}

static void trim(char **at, char **end) {
    while (*at < *end && is_blank(**at))
        ++*at;
    while (*at < *end && is_blank((*end)[-1]))
        --*end;
}

status list_begin(list_reader *r, const csv_field *field) {
    *r = (list_reader){.at = field->text, .end = field->text + field->n_bytes};
    trim(&r->at, &r->end);
    if (r->at < r->end && *r->at == '[') {
        if (r->end - r->at < 2 || r->end[-1] != ']')
            return fail(ERR_FORMAT, "the list has no closing bracket; is the line cut off?");
        r->at++;
        r->end--;
        trim(&r->at, &r->end);
    }
    r->has_more = r->at < r->end;
    return OK;
}

static status take_text(list_reader *r, csv_field *element) {
    char quote = *r->at++, *to = r->at;
    element->text = to;
    for (;;) {
        if (r->at == r->end) return fail(ERR_FORMAT, "a string in a list has no closing quote");
        char c = *r->at++;
        if (c == quote) break;
        if (c == '\\')
            TRY(json_escape_decode(&r->at, r->end, &to));
        else
            *to++ = c;
    }
    element->n_bytes = (size_t)(to - element->text);
    return OK;
}

static void take_plain(list_reader *r, csv_field *element) {
    char *start = r->at, *end = start;
    while (end < r->end && *end != ',')
        end++;
    r->at = end;
    trim(&start, &end);
    *element = (csv_field){start, (size_t)(end - start)};
}

status list_next(list_reader *r, csv_field *element, bool *has_element) {
    *has_element = r->has_more;
    if (!r->has_more) return OK;
    while (r->at < r->end && is_blank(*r->at))
        r->at++;
    if (r->at < r->end && (*r->at == '"' || *r->at == '\''))
        TRY(take_text(r, element));
    else
        take_plain(r, element);
    if (element->n_bytes == 0) return fail(ERR_FORMAT, "a list has an empty element");
    while (r->at < r->end && is_blank(*r->at))
        r->at++;
    r->has_more = r->at < r->end;
    if (!r->has_more) return OK;
    if (*r->at != ',') return fail(ERR_FORMAT, "a list has no comma between two elements");
    r->at++;
    return OK;
}
