/* JSON lines: tables with one object a line; columns are members, "a.b" those of nested objects. */
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "data/read/jsonl_parse.h"
#include "data/read/table_source.h"

static const char *const endings[] = {".jsonl", ".ndjson", ".json", NULL};

static int *choice_of(column_choice *c, csv_role role) {
    return role == ROLE_USER   ? &c->user
           : role == ROLE_ITEM ? &c->item
           : role == ROLE_TIME ? &c->time
                               : &c->action;
}

/* Which members are the user, the item, ...: each must occur in one of the sampled rows. */
static status find_members(table_reader *r, const sample *s) {
    column_choice *c = &r->choice;
    c->user = c->item = c->time = c->action = -1;
    for (int i = 0; i < r->n_wanted; i++) {
        const char *name = r->wanted[i].column;
        char text[64];
        int found = -1;
        for (int k = 0; k < s->n_columns; k++)
            if (strcmp(s->name[k], name) == 0) found = k;
        if (found < 0)
            return columns_fail_missing(s->file, r->wanted[i].role, s->name, s->n_columns);
        for (int k = 0; k < i; k++)
            if (strcmp(r->wanted[k].column, name) == 0)
                return fail(ERR_USAGE, "%s: column '%s' is given two roles", s->file, name);
        *choice_of(c, r->wanted[i].role) = found;
        snprintf(r->layout.name[r->wanted[i].role], CSV_NAME_BYTES, "%s",
                 escape_excerpt(text, name, strlen(name)));
    }
    return OK;
}

static status set_paths(table_reader *r) {
    json_paths *paths;
    TRY(ARENA_NEW(&r->names, &paths, 1));
    for (int i = 0; i < r->n_wanted; i++)
        TRY(json_paths_add(paths, r->wanted[i].column, r->wanted[i].role));
    r->layout.paths = paths;
    return OK;
}

static status set_layout(table_reader *r, const sample *s) {
    TRY(table_choose_columns(r, s));
    TRY(find_members(r, s));
    TRY(table_set_kinds(r, s, "JSON lines"));
    return set_paths(r);
}

/* Without one row that is an object, the parser's reason is the right one. */
static status fail_first_line(const table_reader *r, const char *line, size_t n, uint64_t number) {
    const json_paths none = {.n = 0};
    char *copy;
    json_cell cell;
    TRY(mem_alloc_raw((void **)&copy, n + 1, 1));
    memcpy(copy, line, n);
    status st = json_row_read(&none, copy, n, &cell);
    mem_free(copy);
    if (st == OK) st = fail(ERR_FORMAT, "the object has no members");
    return fail_prefix(st, "%s:%llu", r->first_file, (unsigned long long)number);
}

static status begin_jsonl(table_reader *r, blocks *b) {
    const char *text, *line;
    size_t n, line_bytes;
    bool has_line;
    sample s;
    job_layout(r->job, &r->layout, ",", false);
    r->layout.bad = r->job->bad;
    sample_init(&s, r->first_file);
    status st = blocks_peek_text(b, SAMPLE_BYTES, &text, &n);
    if (st == OK && n == 0) st = blocks_peek_line(b, &text, &n, &has_line);
    if (st == OK) st = sample_jsonl(&s, text, n, blocks_next_line(b));
    if (st == OK && s.n_columns == 0) {
        st = blocks_peek_line(b, &line, &line_bytes, &has_line);
        if (st == OK) st = fail_first_line(r, line, line_bytes, blocks_next_line(b));
    }
    if (st == OK) st = set_layout(r, &s);
    sample_fini(&s);
    return st;
}

/* Every line names its columns. */
static status resume_jsonl(table_reader *r, blocks *b, csv_layout *t) {
    (void)r;
    (void)b;
    (void)t;
    return OK;
}

status read_jsonl(source_job *job) {
    static const table_format format = {endings, jsonl_parse_block, begin_jsonl, resume_jsonl};
    if (job->request->delimiter != NULL || job->request->header != NULL)
        return fail(ERR_USAGE, "--delimiter and --header are for csv; JSON lines have neither");
    return table_read(job, &format);
}
