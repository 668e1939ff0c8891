#include <dirent.h>
#include <stdatomic.h>

#include "data/read/row_field.h"
#include "data/read/source_job.h"
#include "data/read/sources.h"
#include "data/set/split.h"

const source sources[] = {
    {"ml-100k", "MovieLens 100K: u.data [u.item, u.user]", "movie_id", read_ml_100k, ACTION_STARS,
     1, .has_user_feature = false},
    {"ml-1m", "MovieLens 1M: ratings.dat [movies.dat, users.dat]", "movie_id", read_ml_1m,
     ACTION_STARS, 1, .has_user_feature = true},
    {"ml-20m", "MovieLens 20M: ratings.csv [movies.csv]", "movie_id", read_ml_20m,
     ACTION_HALF_STARS, 1, .has_user_feature = true},
    {"kuairand-pure",
     "KuaiRand-Pure: log_standard_*_pure.csv [user_features, video_features_basic]", "video_id",
     read_kuairand, ACTION_BITS, 1000, .has_user_feature = true},
    {"kuairand-1k", "KuaiRand-1K: the same files with _1k", "video_id", read_kuairand, ACTION_BITS,
     1000, .has_user_feature = true},
    {"kuairand-27k", "KuaiRand-27K: the same files with _27k, the logs in two parts each",
     "video_id", read_kuairand, ACTION_BITS, 1000, .has_user_feature = true},
    {"kuairec", "KuaiRec: big_matrix.csv and user_features.csv", "video_id", read_kuairec,
     ACTION_NONE, 1, .has_ns_times = true, .has_user_feature = true},
    /* The filter of the reference: both counts taken once, on the raw data, then users with fewer
     * than 5 events left are dropped. */
    {"amzn-books", "Amazon Books 2014: ratings_Books.csv; items and users with at least 5 ratings",
     "item_id", read_amazon_books, ACTION_STARS, 1, .has_text_ids = true, .min_item_events = 5,
     .min_user_events = 5},
    {"amzn-beauty", "Amazon Beauty 2014, 5-core: reviews_Beauty_5.json", "item_id",
     read_amazon_reviews, ACTION_STARS, 1, .has_text_ids = true},
    {"amzn-sports", "Amazon Sports 2014, 5-core: reviews_Sports_and_Outdoors_5.json", "item_id",
     read_amazon_reviews, ACTION_STARS, 1, .has_text_ids = true},
    {"amzn-toys", "Amazon Toys 2014, 5-core: reviews_Toys_and_Games_5.json", "item_id",
     read_amazon_reviews, ACTION_STARS, 1, .has_text_ids = true},
    {"processed-seqs",
     "a csv with one user per row and lists: processed_seqs.csv, sasrec_format.csv", "item_id",
     read_processed_seqs, ACTION_CODE, 1, .has_columns = true},
    {"csv", "any csv with one event per row; see --user-col and the other column options",
     "item_id", read_csv, ACTION_NONE, 1, .has_columns = true, .is_table = true},
    {"jsonl", "JSON lines: one event per line as an object; options as for csv", "item_id",
     read_jsonl, ACTION_NONE, 1, .has_columns = true, .is_table = true},
    {"parquet", "Parquet files with one event per row, or a user per row with lists", "item_id",
     read_parquet, ACTION_NONE, 1, .has_columns = true, .is_table = true},
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

static status action_kind_parse(const char *text, action_kind *out) {
    for (int i = 0; i <= ACTION_CODE; i++) {
        *out = (action_kind)i;
        if (strcmp(text, kind_names[i]) == 0) return OK;
    }
    return fail(ERR_USAGE,
                "--action-kind '%s' is unknown; use none, stars, half-stars, bits or code", text);
}

/* A source with its own layout refuses layout options rather than ignore some of them. */
status source_check(const source *s, const source_request *r) {
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
                     {"--skip-bad", r->skip_bad > 0 || r->skip_bad_percent > 0},
                     {"--time-zone", r->time_zone != NULL},
                     {"--time-format", r->time_format != NULL},
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
    if (r->time_unit != NULL && r->time_format != NULL)
        return fail(ERR_USAGE, "--time-unit and --time-format exclude each other");
    if (r->items == NULL &&
        (r->items_id != NULL || r->items_title != NULL || r->item_features != NULL))
        return fail(ERR_USAGE, "--items-id, --items-title and --item-features need --items");
    if (r->item_vectors == NULL && r->item_vector_ids != NULL)
        return fail(ERR_USAGE, "--item-vector-ids needs --item-vectors");
    if (r->users == NULL && (r->users_id != NULL || r->user_features != NULL))
        return fail(ERR_USAGE, "--users-id and --user-features need --users");
    if (s->min_user_events > 0 && (r->min_user_events > 0 || r->min_item_events > 0))
        return fail(ERR_USAGE, "%s has a filter of its own: users and items with %u events or more",
                    s->name, s->min_user_events);
    return OK;
}

status source_choose_events(const source_request *r, builder_options *out) {
    if (r->since != NULL) TRY(split_time_parse(r->since, &out->since));
    if (r->until != NULL) TRY(split_time_parse(r->until, &out->until));
    out->sample_users = (uint32_t)r->sample_users;
    if (r->since == NULL || r->until == NULL || out->since < out->until) return OK;
    return fail(ERR_USAGE, "--since %s is not before --until %s", r->since, r->until);
}

static status plan_options(const source *s, const source_request *r, builder_options *out) {
    bool has_text_ids = s->has_text_ids || r->has_text_ids;
    *out = (builder_options){.has_text_users = has_text_ids,
                             .has_text_items = has_text_ids,
                             .has_ns_times = s->has_ns_times,
                             .has_user_feature = s->has_user_feature,
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
    TRY(source_choose_events(r, out));
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
    TRY(source_check(s, request));
    TRY(plan_options(s, request, &job.options));
    snprintf(job.item_name, sizeof job.item_name, "%s", s->item_name);
    status st = OK;
    /* How many rows a share is shows only at the end. */
    uint64_t most = request->skip_bad_percent > 0 ? BAD_LINES_MAX : (uint64_t)request->skip_bad;
    if (most > 0) st = bad_lines_create(&job.bad, most);
    if (st == OK) st = time_zone_create(&job.zone, request->time_zone);
    if (st == OK) st = s->is_table ? s->read(&job) : read_bundle(&job);
    if (st == OK && request->skip_bad_percent > 0)
        st = bad_lines_check_share(job.bad, builder_n_events(job.build), request->skip_bad_percent);
    if (st == OK) st = job_read_side_tables(&job);
    if (st == OK && request->item_vectors != NULL) st = job_read_vectors(&job);
    mem_free(job.zone);
    if (st != OK) {
        builder_destroy(job.build);
        bad_lines_destroy(job.bad);
        return st;
    }
    out->build = job.build;
    out->actions = job.options.actions;
    memcpy(out->times, job.times, sizeof out->times);
    out->bad = job.bad;
    memcpy(out->item_name, job.item_name, sizeof out->item_name);
    return OK;
}

void source_result_fini(source_result *r) {
    builder_destroy(r->build);
    bad_lines_destroy(r->bad);
    *r = (source_result){0};
}

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
                      .is_own = job->src->has_columns};
    time_plan_set(&t->times, TIME_RAW, UNIT_S, true);
    snprintf(t->format.delimiter, sizeof t->format.delimiter, "%s", delimiter);
    t->format.has_quotes = has_quotes;
}

typedef struct event_context {
    builder *build;
    _Atomic uint64_t n_not_utf8, first_not_utf8; /* lines, and the number of the first */
    const csv_layout *layout;
    const char *file;
    parse_block_fn parse;
} event_context;

/* Where the rows of a block go. */
typedef struct row_target {
    builder_sink *sink;
    const csv_layout *layout;
} row_target;

static status add_row(void *ctx, const csv_row *row) {
    const row_target *to = ctx;
    bool has_text_user = to->layout->has_text_users, has_text_item = to->layout->has_text_items;
    uint32_t user, item;
    if (!has_text_user && !has_text_item)
        return sink_add(to->sink, row->user, row->item, row->action, row->time);
    TRY(has_text_user ? sink_user_text(to->sink, row->user_text, row->user_bytes, &user)
                      : sink_user(to->sink, row->user, &user));
    TRY(has_text_item ? sink_item_text(to->sink, row->item_text, row->item_bytes, &item)
                      : sink_item(to->sink, row->item, &item));
    return sink_add_numbered(to->sink, user, item, row->action, row->time);
}

static bool is_ascii(const char *text, size_t n) {
    uint64_t bits = 0, word;
    for (; n >= sizeof word; n -= sizeof word, text += sizeof word) {
        memcpy(&word, text, sizeof word);
        bits |= word;
    }
    while (n > 0)
        bits |= (unsigned char)text[--n];
    return (bits & 0x8080808080808080u) == 0;
}

/* Bytes of another encoding are kept as they are; ids of other files will not match them. */
static void count_not_utf8(event_context *e, const text_block *block) {
    const char *at = block->text, *end = at + block->n_bytes;
    if (is_ascii(at, block->n_bytes)) return;
    for (uint64_t line = block->first_line; at < end; line++) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        size_t n = (size_t)((newline != NULL ? newline : end) - at);
        if (!utf8_is_valid(at, n)) {
            uint64_t first = atomic_load(&e->first_not_utf8);
            atomic_fetch_add(&e->n_not_utf8, 1);
            while (line < first && !atomic_compare_exchange_weak(&e->first_not_utf8, &first, line))
                ;
        }
        at += n + 1;
    }
}

static status parse_events(void *ctx, text_block *block, int worker) {
    event_context *e = ctx;
    const csv_layout *t = e->layout;
    builder_sink *sink = builder_get_sink(e->build, worker);
    row_target to = {sink, t};
    count_not_utf8(e, block);
    uint64_t n_events = block->n_lines;
    /* Every element of a list but the first follows a comma; lists of a row are equally long. */
    if (t->n_lists > 0)
        n_events += count_chars(block->text, block->n_bytes, ',') / (uint64_t)t->n_lists;
    TRY(sink_begin_block(sink, block->sequence, n_events));
    TRY(e->parse(t, e->file, block, add_row, &to));
    sink_keep_digits(sink, block->time_digits);
    if (t->bad != NULL) TRY(bad_lines_check(t->bad));
    return sink_end_block(sink);
}

status job_read_blocks(source_job *job, blocks *b, const csv_layout *t, parse_block_fn parse) {
    event_context e = {.build = job->build, .layout = t, .file = blocks_name(b), .parse = parse};
    atomic_init(&e.first_not_utf8, UINT64_MAX);
    status st = blocks_run(b, job->p, parse_events, &e);
    if (e.n_not_utf8 > 0)
        log_warn("%s:%llu: not UTF-8, and neither are %llu lines in all: their bytes are kept as "
                 "they are; if the file is Latin-1, convert it first: iconv -f LATIN1 -t UTF-8",
                 e.file, (unsigned long long)e.first_not_utf8, (unsigned long long)e.n_not_utf8);
    job->next_sequence = blocks_next_sequence(b);
    if (t->bad != NULL && bad_lines_check(t->bad) != OK) return bad_lines_fail(t->bad);
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

enum { MAX_PARTS = 1000000, MAX_DEPTH = 16, PART_PATH_BYTES = 4096 };

bool has_ending(const char *name, const char *const *endings) {
    static const char *const compressed[] = {"", ".gz", ".xz", ".bz2", ".zst"};
    size_t n = strlen(name);
    for (size_t c = 0; c < sizeof compressed / sizeof compressed[0]; c++) {
        size_t m = strlen(compressed[c]);
        if (n < m || strcasecmp(name + n - m, compressed[c]) != 0) continue;
        for (const char *const *e = endings; *e != NULL; e++) {
            size_t k = strlen(*e);
            if (n - m > k && strncasecmp(name + n - m - k, *e, k) == 0) return true;
        }
    }
    return false;
}

static status add_part(part_list *p, const char *path, const char *member) {
    part one = {NULL, NULL};
    if (p->n == MAX_PARTS) return fail(ERR_USAGE, "--input: more than %d files", MAX_PARTS);
    TRY(MEM_RESERVE(&p->part, &p->capacity, p->n + 1));
    TRY(arena_copy_text(&p->texts, path, strlen(path), &one.path));
    if (member != NULL) TRY(arena_copy_text(&p->texts, member, strlen(member), &one.member));
    p->part[p->n++] = one;
    return OK;
}

static status add_folder(part_list *p, const char *folder, int depth);

static status add_entry(part_list *p, const char *folder, const char *name, int depth) {
    char path[PART_PATH_BYTES];
    struct stat info;
    if (name[0] == '.' || name[0] == '_') return OK;
    TRY(path_join(path, sizeof path, folder, name));
    if (stat(path, &info) != 0) return fail_errno("%s cannot be examined", path);
    if (S_ISDIR(info.st_mode)) return add_folder(p, path, depth + 1);
    return S_ISREG(info.st_mode) ? add_part(p, path, NULL) : OK;
}

/* The files of a folder, in any order: the caller sorts them. */
static status add_folder(part_list *p, const char *folder, int depth) {
    if (depth == MAX_DEPTH)
        return fail(ERR_USAGE, "--input: folders below %s are nested more than %d deep", folder,
                    MAX_DEPTH);
    DIR *dir = opendir(folder);
    if (dir == NULL) return fail_errno("the folder %s cannot be read", folder);
    status st = OK;
    for (struct dirent *entry; st == OK && (entry = readdir(dir)) != NULL;)
        st = add_entry(p, folder, entry->d_name, depth);
    closedir(dir);
    return st;
}

static int compare_paths(const void *left, const void *right) {
    return strcmp(((const part *)left)->path, ((const part *)right)->path);
}

/* Keeps the files from `first` on that have an ending of the format, if any has. */
static void keep_endings(part_list *p, size_t first, const char *const *endings) {
    size_t n = first;
    for (size_t i = first; i < p->n; i++)
        if (has_ending(p->part[i].path, endings)) p->part[n++] = p->part[i];
    if (n > first) p->n = n;
}

static status find_in_folder(part_list *p, const char *folder, const char *const *endings) {
    size_t first = p->n;
    TRY(add_folder(p, folder, 0));
    if (p->n == first) return fail(ERR_USAGE, "--input %s: the folder holds no file", folder);
    qsort(p->part + first, p->n - first, sizeof *p->part, compare_paths);
    keep_endings(p, first, endings);
    return OK;
}

/* Files of an archive are opened by their base name, which must then be one of a kind. */
static status refuse_same_names(const char *path, const char *const *names, size_t n) {
    const char **sorted;
    status st = OK;
    TRY(MEM_NEW(&sorted, n));
    memcpy(sorted, names, n * sizeof *sorted);
    sort_texts(sorted, n);
    for (size_t i = 1; st == OK && i < n; i++)
        if (strcmp(sorted[i - 1], sorted[i]) == 0)
            st = fail(ERR_FORMAT, "%s holds two files called %s; unpack it and give the folder",
                      path, sorted[i]);
    mem_free(sorted);
    return st;
}

/* A file, or the files of an archive. */
static status find_in_file(part_list *p, const char *path, const char *const *endings) {
    bundle *b;
    const char *const *names;
    size_t n, n_fit = 0, n_found = 0;
    TRY(bundle_open(&b, path));
    status st = bundle_list(b, &names, &n);
    for (size_t i = 0; st == OK && i < n; i++)
        n_fit += has_ending(names[i], endings);
    if (st == OK && n > 1) st = refuse_same_names(path, names, n);
    for (size_t i = 0; st == OK && n > 1 && i < n; i++) {
        if (n_fit > 0 && !has_ending(names[i], endings)) continue;
        st = add_part(p, path, names[i]);
        n_found++;
    }
    if (st == OK && n == 0) st = fail(ERR_USAGE, "--input %s: the archive holds no file", path);
    if (st == OK && n_found == 0) st = add_part(p, path, NULL);
    bundle_close(b);
    return st;
}

static status find_parts(part_list *p, const char *path, const char *const *endings) {
    struct stat info;
    if (strcmp(path, "-") == 0) return add_part(p, path, NULL);
    if (stat(path, &info) != 0) return fail_errno("%s cannot be opened", path);
    if (S_ISDIR(info.st_mode)) return find_in_folder(p, path, endings);
    /* A pipe can be opened once only, and an archive not at all through one. */
    return S_ISREG(info.st_mode) ? find_in_file(p, path, endings) : add_part(p, path, NULL);
}

typedef struct file_id {
    dev_t device;
    ino_t inode;
    size_t part;
} file_id;

static int compare_ids(const void *left, const void *right) {
    const file_id *a = left, *b = right;
    if (a->device != b->device) return a->device < b->device ? -1 : 1;
    if (a->inode != b->inode) return a->inode < b->inode ? -1 : 1;
    return (a->part > b->part) - (a->part < b->part);
}

/* The same file under two names would count all its events twice. */
static status refuse_twice(const part_list *p) {
    file_id *ids;
    size_t n = 0;
    status st = OK;
    TRY(MEM_NEW(&ids, p->n));
    for (size_t i = 0; i < p->n; i++) {
        struct stat info;
        if (p->part[i].member != NULL || stat(p->part[i].path, &info) != 0 ||
            !S_ISREG(info.st_mode))
            continue;
        ids[n++] = (file_id){info.st_dev, info.st_ino, i};
    }
    if (n > 1) qsort(ids, n, sizeof *ids, compare_ids);
    for (size_t i = 1; st == OK && i < n; i++) {
        const part *a = &p->part[ids[i - 1].part], *b = &p->part[ids[i].part];
        if (ids[i].device == ids[i - 1].device && ids[i].inode == ids[i - 1].inode)
            st = fail(ERR_USAGE, "--input: %s is the same file as %s; its events would count twice",
                      b->path, a->path);
    }
    mem_free(ids);
    return st;
}

status parts_find(part_list *out, const char *const *inputs, size_t n, const char *const *endings) {
    status st = OK;
    *out = (part_list){.n = 0};
    arena_init(&out->texts, 4096);
    for (size_t i = 0; st == OK && i < n; i++)
        st = find_parts(out, inputs[i], endings);
    if (st == OK) st = refuse_twice(out);
    if (st != OK) parts_fini(out);
    return st;
}

void parts_fini(part_list *p) {
    mem_free(p->part);
    arena_fini(&p->texts);
    *p = (part_list){.n = 0};
}

status part_open(const part *p, input **out) {
    bundle *b;
    *out = NULL;
    if (p->member == NULL) return input_open(out, p->path);
    TRY(bundle_open(&b, p->path));
    status st = bundle_open_member(b, p->member, true, out);
    bundle_close(b);
    return st;
}
