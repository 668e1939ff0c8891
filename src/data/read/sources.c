#include "data/read/sources.h"

#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "data/read/source_job.h"

const source sources[] = {
    {.name = "ml-100k",
     .summary = "MovieLens 100K: u.data [u.item, u.user]",
     .item_name = "movie_id",
     .actions = ACTION_STARS,
     .time_per_second = 1,
     .read = read_ml_100k},
    {.name = "ml-1m",
     .summary = "MovieLens 1M: ratings.dat [movies.dat, users.dat]",
     .item_name = "movie_id",
     .actions = ACTION_STARS,
     .time_per_second = 1,
     .read = read_ml_1m},
    {.name = "ml-20m",
     .summary = "MovieLens 20M: ratings.csv [movies.csv]",
     .item_name = "movie_id",
     .actions = ACTION_HALF_STARS,
     .time_per_second = 1,
     .read = read_ml_20m},
    {.name = "kuairand-pure",
     .summary = "KuaiRand-Pure: log_standard_*_pure.csv [user_features, video_features_basic]",
     .item_name = "video_id",
     .actions = ACTION_BITS,
     .time_per_second = 1000,
     .read = read_kuairand_pure},
    {.name = "kuairand-1k",
     .summary = "KuaiRand-1K: the same files with _1k",
     .item_name = "video_id",
     .actions = ACTION_BITS,
     .time_per_second = 1000,
     .read = read_kuairand_1k},
    {.name = "kuairand-27k",
     .summary = "KuaiRand-27K: the same files with _27k, the logs in two parts each",
     .item_name = "video_id",
     .actions = ACTION_BITS,
     .time_per_second = 1000,
     .read = read_kuairand_27k},
    /* The filter of the reference: both counts taken once, on the raw data, then users with fewer
     * than 5 events left are dropped. */
    {.name = "amzn-books",
     .summary = "Amazon Books 2014: ratings_Books.csv; items and users with at least 5 ratings",
     .item_name = "item_id",
     .actions = ACTION_STARS,
     .time_per_second = 1,
     .has_text_ids = true,
     .min_item_events = 5,
     .min_user_events = 5,
     .read = read_amazon_books},
    {.name = "processed-seqs",
     .summary = "a csv with one user per row and lists: processed_seqs.csv, sasrec_format.csv",
     .item_name = "item_id",
     .actions = ACTION_CODE,
     .time_per_second = 1,
     .has_columns = true,
     .read = read_processed_seqs},
    {.name = "csv",
     .summary = "any csv with one event per row; see --user-col and the other column options",
     .item_name = "item_id",
     .actions = ACTION_NONE,
     .time_per_second = 1,
     .has_columns = true,
     .is_table = true,
     .read = read_csv},
    {.name = "jsonl",
     .summary = "JSON lines: one event per line as an object; options as for csv",
     .item_name = "item_id",
     .actions = ACTION_NONE,
     .time_per_second = 1,
     .has_columns = true,
     .is_table = true,
     .read = read_jsonl},
    {.name = "parquet",
     .summary = "Parquet files with one event per row, or a user per row with lists",
     .item_name = "item_id",
     .actions = ACTION_NONE,
     .time_per_second = 1,
     .has_columns = true,
     .is_table = true,
     .read = read_parquet},
};
const size_t n_sources = sizeof sources / sizeof sources[0];

status source_find(const char *name, const source **out) {
    const char *names[sizeof sources / sizeof sources[0]];
    char list[256] = "";
    for (size_t i = 0; i < n_sources; i++) {
        size_t used = strlen(list);
        names[i] = sources[i].name;
        snprintf(list + used, sizeof list - used, "%s%s", i > 0 ? ", " : "", names[i]);
        *out = &sources[i];
        if (strcmp(name, names[i]) == 0) return OK;
    }
    *out = NULL;
    const char *nearest = nearest_name(name, names, n_sources);
    if (nearest != NULL)
        return fail(ERR_USAGE, "source '%s' is unknown; did you mean '%s'? There are %s", name,
                    nearest, list);
    return fail(ERR_USAGE, "source '%s' is unknown; there are %s", name, list);
}

static const char *const kind_names[] = {"none", "stars", "half-stars", "bits", "code"};

const char *action_kind_name(action_kind kind) {
    return kind_names[kind];
}

status action_kind_parse(const char *text, action_kind *out) {
    for (int i = 0; i <= ACTION_CODE; i++) {
        *out = (action_kind)i;
        if (strcmp(text, kind_names[i]) == 0) return OK;
    }
    return fail(ERR_USAGE,
                "--action-kind '%s' is unknown; use none, stars, half-stars, bits or code", text);
}

/* A source with its own layout refuses layout options rather than ignore some of them. */
static status check_request(const source *s, const source_request *r) {
    const struct {
        const char *option;
        bool is_given;
    } given[] = {{"--user-col", r->user_col != NULL},       {"--item-col", r->item_col != NULL},
                 {"--time-col", r->time_col != NULL},       {"--action-col", r->action_col != NULL},
                 {"--action-kind", r->action_kind != NULL}, {"--delimiter", r->delimiter != NULL},
                 {"--header", r->header != NULL},           {"--time-unit", r->time_unit != NULL},
                 {"--string-ids", r->has_text_ids}};
    const struct {
        const char *option;
        bool is_given;
    } of_tables[] = {{"--action-map", r->action_map != NULL},
                     {"--skip-bad", r->skip_bad > 0},
                     {"--items", r->items != NULL},
                     {"--users", r->users != NULL}};
    for (size_t i = 0; !s->has_columns && i < sizeof given / sizeof given[0]; i++)
        if (given[i].is_given)
            return fail(ERR_USAGE,
                        "%s is for csv, jsonl, parquet and processed-seqs; %s has its own layout",
                        given[i].option, s->name);
    for (size_t i = 0; !s->is_table && i < sizeof of_tables / sizeof of_tables[0]; i++)
        if (of_tables[i].is_given)
            return fail(ERR_USAGE, "%s is for tables of events: csv, jsonl and parquet",
                        of_tables[i].option);
    if (r->has_random_logs && strncmp(s->name, "kuairand", 8) != 0)
        return fail(ERR_USAGE, "--random-logs is for the kuairand sources; %s has no such logs",
                    s->name);
    if (!s->is_table && r->time_unit != NULL && strcmp(r->time_unit, "s") != 0 &&
        strcmp(r->time_unit, "ms") != 0)
        return fail(ERR_USAGE, "--time-unit '%s': %s knows s and ms", r->time_unit, s->name);
    if (r->items == NULL && (r->items_id != NULL || r->items_title != NULL))
        return fail(ERR_USAGE, "--items-id and --items-title need --items");
    if (r->users == NULL && (r->users_id != NULL || r->user_features != NULL))
        return fail(ERR_USAGE, "--users-id and --user-features need --users");
    if (s->min_user_events > 0 && (r->min_user_events > 0 || r->min_item_events > 0))
        return fail(ERR_USAGE, "%s has a filter of its own: users and items with %u events or more",
                    s->name, s->min_user_events);
    return OK;
}

static status plan_options(const source *s, const source_request *r, builder_options *out) {
    bool has_text_ids = s->has_text_ids || r->has_text_ids;
    *out = (builder_options){.has_text_users = has_text_ids,
                             .has_text_items = has_text_ids,
                             .actions = s->actions,
                             .time_per_second = s->time_per_second,
                             .min_item_events = s->min_item_events,
                             .min_user_events = s->min_user_events,
                             .drop_duplicates = r->drop_duplicates};
    if (s->min_user_events == 0 && s->min_item_events == 0) {
        out->min_user_events = (uint32_t)r->min_user_events;
        out->min_item_events = (uint32_t)r->min_item_events;
        out->is_k_core = true;
    }
    if (r->time_unit != NULL) out->time_per_second = strcmp(r->time_unit, "ms") == 0 ? 1000 : 1;
    return r->action_kind != NULL ? action_kind_parse(r->action_kind, &out->actions) : OK;
}

/* Opens the one place that a source with its own layout is read from, and reads it. */
static status read_bundle(source_job *job) {
    if (job->n_inputs != 1)
        return fail(ERR_USAGE, "the source %s has one --input: its folder, archive or file",
                    job->src->name);
    TRY(bundle_open(&job->in, job->path));
    /* processed-seqs creates its builder once it has seen the first line. */
    status st = job->src->has_columns ? OK : job_create_builder(job);
    if (st == OK) st = job->src->read(job);
    bundle_close(job->in);
    return st;
}

status source_read(const source *s, const source_request *request, const char *const *inputs,
                   size_t n_inputs, pool *p, source_result *out) {
    source_job job = {.src = s,
                      .request = request,
                      .path = inputs[0],
                      .inputs = inputs,
                      .n_inputs = n_inputs,
                      .p = p};
    *out = (source_result){0};
    TRY(check_request(s, request));
    TRY(plan_options(s, request, &job.options));
    snprintf(job.item_name, sizeof job.item_name, "%s", s->item_name);
    status st = OK;
    if (request->skip_bad > 0) st = bad_lines_create(&job.bad, (uint64_t)request->skip_bad);
    if (st == OK) st = s->is_table ? s->read(&job) : read_bundle(&job);
    if (st == OK) st = job_read_side_tables(&job);
    if (st != OK) {
        builder_destroy(job.build);
        bad_lines_destroy(job.bad);
        return st;
    }
    out->build = job.build;
    out->actions = job.options.actions;
    out->times = job.times;
    out->bad = job.bad;
    memcpy(out->item_name, job.item_name, sizeof out->item_name);
    return OK;
}

void source_result_fini(source_result *r) {
    builder_destroy(r->build);
    bad_lines_destroy(r->bad);
    *r = (source_result){0};
}
