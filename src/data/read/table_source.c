#include "data/read/table_source.h"

#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "data/read/parts.h"

static status want(table_reader *r, csv_role role, const char *name) {
    const char *copy;
    TRY(arena_copy_text(&r->names, name, strlen(name), &copy));
    r->wanted[r->n_wanted++] = (csv_column){role, copy};
    return OK;
}

/* A column by its number from 1, where there are no names. */
static status want_number(table_reader *r, csv_role role, int col) {
    char text[16];
    snprintf(text, sizeof text, "%d", col + 1);
    return want(r, role, text);
}

/* The column of a role that must be there: the one given, or the usual one. */
static status choose(table_reader *r, const sample *s, csv_role role, const char *given) {
    int col;
    if (given != NULL && strcmp(given, "none") == 0 && role == ROLE_TIME) return OK;
    if (given != NULL) return want(r, role, given);
    if (!s->has_names)
        return want_number(r, role, role == ROLE_TIME ? columns_find_clock(s) : role == ROLE_ITEM);
    TRY(columns_find_usual(s->file, role, s->name, s->n_columns, &col));
    if (col < 0) return columns_fail_missing(s->file, role, s->name, s->n_columns);
    return want(r, role, s->name[col]);
}

/* The action is optional: two columns that could be it are a note, not an error. */
static status choose_action(table_reader *r, const sample *s) {
    const source_request *q = r->job->request;
    int col = -1;
    if (q->action_kind != NULL && r->job->options.actions == ACTION_NONE) return OK;
    if (q->action_col != NULL)
        return strcmp(q->action_col, "none") == 0 ? OK : want(r, ROLE_ACTION, q->action_col);
    if (s->has_names &&
        columns_find_usual(s->file, ROLE_ACTION, s->name, s->n_columns, &col) != OK) {
        if (q->action_kind != NULL || q->action_map != NULL) return ERR_FORMAT;
        log_info("note: %s; none is taken", status_reason());
        return OK;
    }
    if (col >= 0) {
        r->choice.is_action_guessed = true;
        return want(r, ROLE_ACTION, s->name[col]);
    }
    if (q->action_kind == NULL && q->action_map == NULL) return OK;
    return fail(ERR_USAGE, "%s needs --action-col",
                q->action_kind != NULL ? "--action-kind" : "--action-map");
}

status table_choose_columns(table_reader *r, const sample *s) {
    const source_request *q = r->job->request;
    TRY(choose(r, s, ROLE_USER, q->user_col));
    TRY(choose(r, s, ROLE_ITEM, q->item_col));
    TRY(choose(r, s, ROLE_TIME, q->time_col));
    return choose_action(r, s);
}

status table_set_kinds(table_reader *r, const sample *s, const char *form) {
    source_job *job = r->job;
    TRY(columns_guess_kinds(job->request, s, &r->choice, &r->layout, &job->options));
    /* A guessed column that turned out not to be an action was the last one wanted. */
    if (r->choice.action < 0 && r->wanted[r->n_wanted - 1].role == ROLE_ACTION) r->n_wanted--;
    if (r->choice.action < 0) job->options.actions = r->layout.actions = ACTION_NONE;
    if (job->request->action_map != NULL) {
        TRY(action_map_parse(&r->map, job->request->action_map, job->options.actions));
        r->layout.map = &r->map;
    }
    if (s->has_names)
        snprintf(job->item_name, sizeof job->item_name, "%s", r->layout.name[ROLE_ITEM]);
    columns_say(s, form, &r->choice, &r->layout);
    if (r->choice.time >= 0) job->times = time_plan_name(&r->layout.times);
    return job_create_builder(job);
}

/* Empty lines before the header or the first row. */
static status skip_empty_lines(blocks *b, bool *has_line) {
    for (;;) {
        const char *line;
        size_t n;
        TRY(blocks_peek_line(b, &line, &n, has_line));
        if (!*has_line || n > 0) return OK;
        TRY(blocks_skip_line(b));
    }
}

static status read_part(source_job *job, blocks *b, void *ctx) {
    table_reader *r = ctx;
    csv_layout later;
    bool has_line;
    TRY(skip_empty_lines(b, &has_line));
    if (!has_line) {
        log_info("note: %s is empty", blocks_name(b));
        return OK;
    }
    if (r->has_begun) {
        later = r->layout;
        TRY(r->format->resume(r, b, &later));
        return job_read_blocks(job, b, &later, r->format->parse);
    }
    TRY(arena_copy_text(&r->names, blocks_name(b), strlen(blocks_name(b)), &r->first_file));
    TRY(r->format->begin(r, b));
    r->has_begun = true;
    return job_read_blocks(job, b, &r->layout, r->format->parse);
}

static status read_parts(table_reader *r, const part_list *parts) {
    for (size_t i = 0; i < parts->n; i++) {
        input *in;
        TRY(part_open(&parts->part[i], &in));
        status st = job_with_blocks(r->job, in, BLOCKS_DEFAULT_LINE_BYTES, read_part, r);
        input_close(in);
        TRY(st);
    }
    if (r->has_begun) return OK;
    return fail(ERR_FORMAT, "%s: %s", r->job->path,
                parts->n == 1 ? "the file is empty" : "all files are empty");
}

status table_read(source_job *job, const table_format *format) {
    table_reader r = {.job = job, .format = format};
    part_list parts;
    TRY(parts_find(&parts, job->inputs, job->n_inputs, format->endings));
    if (parts.n > job->n_inputs) log_info("%zu files, from %s", parts.n, parts.part[0].path);
    arena_init(&r.names, 4096);
    status st = read_parts(&r, &parts);
    arena_fini(&r.names);
    parts_fini(&parts);
    return st;
}
