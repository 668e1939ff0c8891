#include "data/read/source_job.h"

#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "data/read/csv_parse.h"

status job_create_builder(source_job *job) {
    return builder_create(&job->build, &job->options, job->p);
}

status job_open(source_job *job, const char *name, bool is_required, input **out) {
    bool is_there;
    *out = NULL;
    TRY(bundle_has(job->in, name, &is_there));
    return is_there || is_required ? bundle_open_member(job->in, name, is_required, out) : OK;
}

void job_layout(const source_job *job, csv_layout *t, const char *delimiter, bool has_quotes) {
    *t = (csv_layout){.actions = job->options.actions,
                      .has_text_users = job->options.has_text_users,
                      .has_text_items = job->options.has_text_items,
                      .can_have_text_ids = job->src->has_columns};
    time_plan_set(&t->times, TIME_RAW, UNIT_S, true);
    snprintf(t->format.delimiter, sizeof t->format.delimiter, "%s", delimiter);
    t->format.has_quotes = has_quotes;
}

typedef struct event_context {
    builder *build;
    const csv_layout *layout;
    const char *file;
    parse_block_fn parse;
} event_context;

static status add_row(void *ctx, const csv_row *row) {
    return sink_add(ctx, row->user, row->item, row->action, row->time);
}

static status add_row_text(void *ctx, const csv_row *row) {
    return sink_add_text(ctx, row->user_text, row->user_bytes, row->item_text, row->item_bytes,
                         row->action, row->time);
}

/* Users are numbers and items are texts, or the other way round. */
static status add_row_text_item(void *ctx, const csv_row *row) {
    uint32_t user, item;
    TRY(sink_user(ctx, row->user, &user));
    TRY(sink_item_text(ctx, row->item_text, row->item_bytes, &item));
    return sink_add_numbered(ctx, user, item, row->action, row->time);
}

static status add_row_text_user(void *ctx, const csv_row *row) {
    uint32_t user, item;
    TRY(sink_user_text(ctx, row->user_text, row->user_bytes, &user));
    TRY(sink_item(ctx, row->item, &item));
    return sink_add_numbered(ctx, user, item, row->action, row->time);
}

static status parse_events(void *ctx, text_block *block, int worker) {
    static const csv_row_fn add[2][2] = {{add_row, add_row_text_item},
                                         {add_row_text_user, add_row_text}};
    event_context *e = ctx;
    const csv_layout *t = e->layout;
    builder_sink *sink = builder_get_sink(e->build, worker);
    TRY(sink_begin_block(sink, block->sequence, block->n_lines));
    TRY(e->parse(t, e->file, block, add[t->has_text_users][t->has_text_items], sink));
    sink_keep_digits(sink, block->time_digits);
    if (t->bad != NULL) TRY(bad_lines_check(t->bad));
    return sink_end_block(sink);
}

status job_read_blocks(source_job *job, blocks *b, const csv_layout *t, parse_block_fn parse) {
    event_context e = {job->build, t, blocks_name(b), parse};
    status st = blocks_run(b, job->p, parse_events, &e);
    job->next_sequence = blocks_next_sequence(b);
    if (t->bad != NULL && bad_lines_count(t->bad) > (uint64_t)job->request->skip_bad)
        return bad_lines_fail(t->bad);
    return st;
}

static void begin_bar(progress *bar, char *what, size_t size, const input *in) {
    uint64_t done, total;
    const char *name = input_name(in), *slash = strrchr(name, '/');
    input_progress(in, &done, &total);
    snprintf(what, size, "reading %s", slash != NULL ? slash + 1 : name);
    progress_begin(bar, what, "B", total);
}

status job_with_blocks(source_job *job, input *in, size_t max_line_bytes, job_blocks_fn fn,
                       void *ctx) {
    progress bar;
    char what[128];
    blocks *b;
    blocks_options options = {
        .max_line_bytes = max_line_bytes, .first_sequence = job->next_sequence, .bar = &bar};
    begin_bar(&bar, what, sizeof what, in);
    status st = blocks_create(&b, in, &options, pool_n_threads(job->p));
    if (st == OK) st = fn(job, b, ctx);
    progress_end(&bar);
    blocks_destroy(b);
    return st;
}

typedef struct events_request {
    csv_layout *layout;
    bool has_header;
    const csv_column *wanted;
    int n_wanted;
} events_request;

static status read_events(source_job *job, blocks *b, void *ctx) {
    events_request *r = ctx;
    const char *line;
    size_t n;
    bool has_line;
    TRY(blocks_peek_line(b, &line, &n, &has_line));
    if (!has_line) return fail(ERR_FORMAT, "%s: the file is empty", blocks_name(b));
    TRY(csv_layout_resolve(r->layout, blocks_name(b), line, n, r->has_header, r->wanted,
                           r->n_wanted));
    if (r->has_header) TRY(blocks_skip_line(b));
    blocks_set_quotes(b, &r->layout->format);
    return job_read_blocks(job, b, r->layout, csv_parse_block);
}

status job_read_member(source_job *job, const char *name, csv_layout *t, bool has_header,
                       const csv_column *wanted, int n_wanted) {
    events_request r = {t, has_header, wanted, n_wanted};
    input *in;
    TRY(job_open(job, name, true, &in));
    status st = job_with_blocks(job, in, BLOCKS_DEFAULT_LINE_BYTES, read_events, &r);
    input_close(in);
    return st;
}

status job_with_only_file(source_job *job, size_t max_line_bytes, job_blocks_fn fn, void *ctx) {
    const char *const *names;
    size_t n;
    input *in;
    TRY(bundle_list(job->in, &names, &n));
    if (n != 1)
        return fail(ERR_USAGE,
                    "--input %s holds %zu files, but the source %s is one; give that file, or an "
                    "archive or folder with it alone",
                    job->path, n, job->src->name);
    TRY(job_open(job, names[0], true, &in));
    status st = job_with_blocks(job, in, max_line_bytes, fn, ctx);
    input_close(in);
    return st;
}
