#include "cli/model/id_lines.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "cli/show.h"

status id_lines_open(id_lines *l, const char *path) {
    *l = (id_lines){.path = path};
    buf_init(&l->line);
    TRY(MEM_NEW_RAW(&l->block, ID_BLOCK_BYTES));
    return input_open(&l->in, strcmp(path, "-") == 0 ? "/dev/stdin" : path);
}

void id_lines_close(id_lines *l) {
    input_close(l->in);
    buf_fini(&l->line);
    mem_free(l->block);
    *l = (id_lines){0};
}

static status fill(id_lines *l) {
    l->at = 0;
    return input_read(l->in, l->block, ID_BLOCK_BYTES, &l->end);
}

/* The next line without its end; *is_end: there is none. */
static status next_line(id_lines *l, bool *is_end) {
    buf_clear(&l->line);
    *is_end = false;
    for (;;) {
        if (l->at == l->end) TRY(fill(l));
        if (l->end == 0) break;
        const char *from = l->block + l->at, *stop = memchr(from, '\n', l->end - l->at);
        size_t n = stop != NULL ? (size_t)(stop - from) : l->end - l->at;
        if (l->line.n_bytes + n > ID_LINE_MAX)
            return fail(ERR_FORMAT, "%s: line %" PRIu64 " is longer than the %d bytes of an id",
                        l->path, l->n_lines + 1, ID_LINE_MAX);
        TRY(buf_append(&l->line, from, n));
        l->at += n + (stop != NULL);
        if (stop != NULL) {
            l->n_lines++;
            return OK;
        }
    }
    *is_end = l->line.n_bytes == 0;
    l->n_lines += !*is_end;
    return OK;
}

status id_lines_next(id_lines *l, const char **out) {
    bool is_end;
    *out = NULL;
    do {
        TRY(next_line(l, &is_end));
        if (is_end) return OK;
        buf *line = &l->line;
        const char *text = buf_str(line);
        if (memchr(text, '\0', line->n_bytes) != NULL)
            return fail(ERR_FORMAT, "%s: line %" PRIu64 " has a zero byte: not a list of ids",
                        l->path, l->n_lines);
        if (line->n_bytes > 0 && text[line->n_bytes - 1] == '\r')
            line->data[--line->n_bytes] = '\0';
        /* Editors of Windows begin a file with a mark. */
        if (l->n_lines == 1 && strncmp(text, "\xef\xbb\xbf", 3) == 0) text += 3;
        if (*text != '\0') *out = text;
    } while (*out == NULL);
    return OK;
}

void id_count_add(id_count *c, const char *id, bool is_known) {
    char text[SHOW_BYTES];
    c->n++;
    if (is_known) return;
    if (c->n_unknown++ == 0)
        snprintf(c->first_unknown, sizeof c->first_unknown, "%s",
                 show_text(text, id, strlen(id), 15));
}

void id_count_tell(const id_count *c, const char *where) {
    if (c->n_unknown == 0) return;
    log_warn("%s: %" PRIu64 " of %" PRIu64 " ids %s not known to the model and left out; the first "
             "is '%s'",
             where, c->n_unknown, c->n, c->n_unknown == 1 ? "is" : "are", c->first_unknown);
}

status id_lines_mark(const char *path, const seq_file *data, uint8_t value, uint8_t *is_there,
                     id_count *count) {
    id_lines l;
    const char *id = NULL;
    *count = (id_count){0};
    status st = id_lines_open(&l, path);
    while (st == OK && (st = id_lines_next(&l, &id)) == OK && id != NULL) {
        uint32_t item = seq_find_item(data, id);
        id_count_add(count, id, item != 0);
        if (item != 0) is_there[item] = value;
    }
    id_lines_close(&l);
    return st;
}
