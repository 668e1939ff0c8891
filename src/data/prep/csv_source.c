/* The user's own csv: one event per row, columns as the options say.
 *
 * With a header, columns are found by the given names, else by common names.  Without one, columns
 * are given by number; the default is user, item and time in this order.  `--time-col none` keeps
 * the order of the file. */
#include <stdio.h>
#include <string.h>

#include "data/prep/csv_parse.h"
#include "data/prep/source_job.h"

static const char *const user_names[] = {"user_id", "userId", "user", "uid", NULL};
static const char *const item_names[] = {"item_id",  "itemId",     "item", "movie_id", "movieId",
                                         "video_id", "product_id", "asin", NULL};
static const char *const time_names[] = {"timestamp", "unix_timestamp", "time", "time_ms", "ts",
                                         NULL};

/* A number from 1, as columns may be given. */
static bool is_column_number(const char *text) {
    return text[strspn(text, "0123456789")] == '\0';
}

static bool is_named(const char *wanted) {
    return wanted != NULL && strcmp(wanted, "none") != 0 && !is_column_number(wanted);
}

/* Whether any field of the row is a number: a header has none, a row of events has at least a time.
 */
static status has_number(const csv_layout *t, const char *line, size_t n, bool *out) {
    csv_field fields[64];
    char copy[4096];
    int n_fields;
    *out = false;
    if (n > sizeof copy) n = sizeof copy;
    memcpy(copy, line, n);
    TRY(csv_split(&t->format, copy, n, fields, 64, &n_fields));
    for (int i = 0; i < n_fields && i < 64; i++) {
        int64_t value;
        uint16_t rating;
        *out |= csv_parse_time(fields[i].text, fields[i].n_bytes, &value) ||
                csv_parse_action(ACTION_HALF_STARS, fields[i].text, fields[i].n_bytes, &rating);
    }
    return OK;
}

static status find_header(const source_request *r, const csv_layout *t, const char *line, size_t n,
                          bool *has_header) {
    const char *how = r->header != NULL ? r->header : "auto";
    *has_header = strcmp(how, "yes") == 0;
    if (*has_header || strcmp(how, "no") == 0) return OK;
    if (strcmp(how, "auto") != 0)
        return fail(ERR_USAGE, "--header '%s' is unknown; use yes, no or auto", how);
    *has_header = is_named(r->user_col) || is_named(r->item_col) || is_named(r->time_col) ||
                  is_named(r->action_col);
    if (*has_header) return OK;
    if (r->has_text_ids && r->time_col != NULL && strcmp(r->time_col, "none") == 0)
        return fail(ERR_USAGE, "without times a header cannot be told from string ids; give "
                               "--header yes or --header no");
    bool is_event;
    TRY(has_number(t, line, n, &is_event));
    *has_header = !is_event;
    return OK;
}

/* The first of the common names that the header has; if it has none, the message names the most
 * common one. */
static status find_usual(csv_layout *t, const char *file, const char *line, size_t n,
                         const char *const *names, const char *option, const char **out) {
    char reason[FAILURE_REASON_BYTES] = "";
    for (const char *const *name = names; *name != NULL; name++) {
        csv_column one = {ROLE_ITEM, *name};
        *out = *name;
        if (csv_layout_resolve(t, file, line, n, true, &one, 1) == OK) return OK;
        if (name == names) snprintf(reason, sizeof reason, "%s", status_reason());
    }
    return fail(ERR_FORMAT, "%s; name the column with %s", reason, option);
}

typedef struct csv_columns {
    csv_column wanted[4];
    int n;
} csv_columns;

static status choose(csv_columns *c, csv_layout *t, const char *file, const char *line, size_t n,
                     bool has_header, csv_role role, const char *given, const char *const *usual,
                     const char *option) {
    static const char *const positions[] = {NULL, "1", "2", "3"};
    if (given != NULL && strcmp(given, "none") == 0 && role == ROLE_TIME) return OK;
    const char *name = given;
    if (name == NULL && has_header) TRY(find_usual(t, file, line, n, usual, option, &name));
    if (name == NULL) name = positions[role];
    c->wanted[c->n++] = (csv_column){role, name};
    return OK;
}

static status choose_columns(source_job *job, csv_layout *t, const char *file, const char *line,
                             size_t n, bool has_header, csv_columns *c) {
    const source_request *r = job->request;
    TRY(choose(c, t, file, line, n, has_header, ROLE_USER, r->user_col, user_names, "--user-col"));
    TRY(choose(c, t, file, line, n, has_header, ROLE_ITEM, r->item_col, item_names, "--item-col"));
    TRY(choose(c, t, file, line, n, has_header, ROLE_TIME, r->time_col, time_names, "--time-col"));
    if (r->action_col == NULL) {
        if (job->options.actions == ACTION_NONE) return OK;
        return fail(ERR_USAGE, "--action-kind %s needs --action-col",
                    action_kind_name(job->options.actions));
    }
    /* An action column without a kind holds codes: integers, kept as they are. */
    if (r->action_kind == NULL) job->options.actions = ACTION_CODE;
    if (job->options.actions == ACTION_NONE) return OK;
    c->wanted[c->n++] = (csv_column){ROLE_ACTION, r->action_col};
    return OK;
}

static status read_rows(source_job *job, blocks *b, void *ctx) {
    (void)ctx;
    const source_request *r = job->request;
    char delimiter[3];
    const char *line;
    size_t n;
    bool has_line, has_header;
    csv_columns c = {.n = 0};
    csv_layout t;
    TRY(csv_delimiter_parse(r->delimiter != NULL ? r->delimiter : ",", delimiter));
    job_layout(job, &t, delimiter, true);
    TRY(blocks_peek_line(b, &line, &n, &has_line));
    if (!has_line) return fail(ERR_FORMAT, "%s: the file is empty", blocks_name(b));
    /* A malformed first line is reported before columns are looked up in it. */
    TRY(csv_layout_resolve(&t, blocks_name(b), line, n, false, NULL, 0));
    TRY(find_header(r, &t, line, n, &has_header));
    TRY(choose_columns(job, &t, blocks_name(b), line, n, has_header, &c));
    TRY(csv_layout_resolve(&t, blocks_name(b), line, n, has_header, c.wanted, c.n));
    t.actions = job->options.actions;
    if (has_header) {
        snprintf(job->item_name, sizeof job->item_name, "%s", t.name[ROLE_ITEM]);
        TRY(blocks_skip_line(b));
    }
    TRY(job_create_builder(job));
    return job_read_blocks(job, b, &t);
}

status read_csv(source_job *job) {
    return job_with_only_file(job, BLOCKS_DEFAULT_LINE_BYTES, read_rows, NULL);
}
