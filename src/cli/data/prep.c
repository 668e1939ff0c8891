/* hstu prep: a data set in the form it is published in, to one sequence file. */
#include <libgen.h>

#include "cli/cli.h"
#include "cli/data/prep_state.h"
#include "cli/output.h"
#include "data/read/download.h"
#include "data/read/sources.h"
#include "data/set/seq_file.h"
#include "hstu.h"

typedef struct prep_options {
    const source *src;
    source_request request;
    arg_list inputs;   /* --input, and the words after the source: a pattern of the shell */
    const char *input; /* the first of them; the archive after a download */
    const char *out, *emit_csv, *item_name, *url, *skip_bad;
    const char *state, *with; /* --from-state, --with */
    bool is_json, is_download;
    char archive[4096]; /* path of a downloaded archive */
} prep_options;

/* Tables fit 80 columns; paragraphs have no breaks of their own, so that they are wrapped once. */
static const char notes[] =
    "Sources:\n"
    "  ml-100k, ml-1m, ml-20m                    MovieLens, actions 0..4 or 0..9\n"
    "  kuairand-pure, kuairand-1k, kuairand-27k  KuaiRand, eight signals as bits\n"
    "  kuairec                                   KuaiRec: big_matrix.csv, no actions\n"
    "  amzn-books                                ratings_Books.csv, 5 ratings or more\n"
    "  amzn-beauty, amzn-sports, amzn-toys       Amazon reviews 2014, 5-core JSON lines\n"
    "  processed-seqs                            a user per row, as --emit-csv writes\n"
    "  csv                                       any csv with one event per row\n"
    "  jsonl                                     one JSON object per line\n"
    "  parquet                                   an event per row, or a user with lists\n"
    "\n"
    "--input is a folder, the original archive as it is, or a single file, compressed or not. "
    "With --download it is the folder the archive is kept in; default: the folder around --out.\n"
    "\n"
    "csv, jsonl and parquet read all files, folders of parts, archives and pipes of --input as one "
    "table. Columns are names, numbers from 1, or in jsonl members such as a.b. Without column "
    "options the usual names are tried (user_id, asin, ts, rating, ...), or columns 1, 2, 3 of a "
    "file without a header; stderr says what was taken. docs/prep.md has the rules.\n"
    "\n"
    "processed-seqs: rating lists are stored actions (0..4 for 1..5 stars); sasrec_format.csv has "
    "ratings as in the source.\n"
    "\n"
    "Examples:\n"
    "  hstu prep ml-1m --download --out data/ml-1m\n"
    "  hstu prep csv --input clicks.csv.gz --user-col uid --item-col sku \\\n"
    "      --time-col ts --out data/clicks\n"
    "  hstu prep csv --input logs/*.csv --action-map view=0,cart=1,buy=2 \\\n"
    "      --items items.csv --min-user-events 5 --out data/shop\n"
    "  hstu prep jsonl --input events/ --user actor.id --item object.id --out data/e\n"
    "  hstu prep --from-state state --with data/monday --out data/tuesday\n";

/* "--input logs/a.csv logs/b.csv": what the shell makes of a pattern. */
static status take_inputs(prep_options *o, const char **words, int n) {
    arg_list *list = &o->inputs;
    if (n > 0 && (list->n_items == 0 || !o->src->is_table))
        return fail(ERR_USAGE, "unexpected argument '%s'; give files with --input", words[0]);
    for (int i = 0; i < n; i++)
        TRY(args_list_add(list, words[i]));
    if (list->n_items > 0) o->input = list->item[0];
    return OK;
}

/* --skip-bad 100, or 1%. */
static status read_skip_bad(const char *text, source_request *r) {
    char *end = NULL;
    double value = -1;
    bool is_number = text[0] >= '0' && text[0] <= '9';
    if (is_number) is_number = text_read_double(text, &end, &value) == OK && end > text;
    if (is_number && strcmp(end, "%") == 0 && value <= 100) {
        r->skip_bad_percent = value;
        return OK;
    }
    r->skip_bad = value >= 0 && value <= BAD_LINES_MAX ? (int64_t)value : -1;
    if (is_number && *end == '\0' && (double)r->skip_bad == value) return OK;
    return fail(ERR_USAGE,
                "--skip-bad '%s' is neither a number of rows up to %d nor a share such as 1%%",
                text, BAD_LINES_MAX);
}

/* The source that the first word names, or a state, for which few options are. */
static status choose_source(prep_options *o, const char **words, int n) {
    static const source from_state = {.name = "state", .has_columns = true, .is_table = true};
    static const source_request nothing;
    source_request other;
    memcpy(&other, &o->request, sizeof other); /* with its padding, as all of it is compared */
    other.has_text_ids = false;
    other.since = other.until = NULL;
    other.sample_users = 0;
    other.items = other.items_id = other.items_title = other.item_features = NULL;
    other.item_vectors = other.item_vector_ids = NULL;
    other.users = other.users_id = other.user_features = NULL;
    if (o->state == NULL && o->with != NULL)
        return fail(ERR_USAGE, "--with needs --from-state STATE");
    if (o->state == NULL && n == 0)
        return fail(ERR_USAGE, "SOURCE is missing; 'hstu prep --help' lists the sources");
    o->src = &from_state;
    o->input = o->state;
    if (o->state == NULL) TRY(source_find(words[0], &o->src));
    if (o->state == NULL) return take_inputs(o, words + 1, n - 1);
    if (n == 0 && o->inputs.n_items == 0 && !o->is_download && o->skip_bad == NULL &&
        memcmp(&other, &nothing, sizeof other) == 0)
        return source_check(o->src, &o->request);
    return fail(ERR_USAGE,
                "--from-state takes no source and no options but --with, --out, --items, "
                "--users, --item-vectors and theirs, --string-ids, --emit-csv, "
                "--item-name and --json");
}

static status parse_options(int argc, char **argv, prep_options *o, bool *is_help) {
    source_request *r = &o->request;
    const arg_option options[] = {
        OPT_LIST(
            "--input", &o->inputs, "PATH...",
            "Folder, archive or file to read; '-' is stdin. csv, jsonl and parquet take several."),
        OPT_TEXT("--out", &o->out, "DIR", "Folder for data.seq; an existing data.seq is replaced."),
        OPT_TEXT(
            "--from-state", &o->state, "STATE",
            "Instead of a source: the events that 'hstu serve --state STATE' has acknowledged; "
            "the server may be running."),
        OPT_TEXT(
            "--with", &o->with, "DATA",
            "With --from-state: add them to this prepared data, of which titles and features "
            "are kept, unless --items, --users or --item-vectors says otherwise. Events in both "
            "count once; erased users are left out of both."),
        OPT_FLAG("--json", &o->is_json, "Print the summary as one JSON object."),
        OPT_TEXT("--emit-csv", &o->emit_csv, "FILE",
                 "Also write the sequences as CSV: user_id, item, rating, unix_timestamp."),
        OPT_TEXT("--item-name", &o->item_name, "NAME",
                 "Item column of that CSV file (default: the source's)."),
        OPT_FLAG("--download", &o->is_download,
                 "Download the archive first unless it is already there."),
        OPT_TEXT("--url", &o->url, "URL", "Download it from this URL instead."),
        OPT_FLAG(
            "--drop-duplicates", &r->drop_duplicates,
            "Drop events equal to an earlier one, side by side or not: same user, item, time and "
            "action."),
        OPT_INT("--min-user-events", &r->min_user_events, "K", 0, UINT32_MAX,
                "Drop users with fewer events, and items by --min-item-events, until all that "
                "remain have enough."),
        OPT_INT("--min-item-events", &r->min_item_events, "K", 0, UINT32_MAX,
                "The same for items; both together give a k-core."),
        OPT_TEXT("--since", &r->since, "T",
                 "Keep events from T on: seconds since 1970, 2001-01-31 or 2001-01-31T23:59:59Z."),
        OPT_TEXT("--until", &r->until, "T", "Keep events before T."),
        OPT_INT(
            "--sample-users", &r->sample_users, "N", 1, INT32_MAX,
            "Keep a random sample of N users with all their events: the same ones in every run, "
            "drawn by their ids."),
        OPT_TEXT("--items", &r->items, "FILE",
                 "csv, jsonl, parquet: titles and features of items, a CSV file with a header, "
                 ".jsonl or Parquet; all its items join the catalogue."),
        OPT_TEXT("--items-id", &r->items_id, "COL", "Its id column (default: item_id, id, ...)."),
        OPT_TEXT("--items-title", &r->items_title, "COL",
                 "Its title column (default: title, name, ...)."),
        OPT_TEXT("--item-features", &r->item_features, "COL[:KIND],...",
                 "Its columns that become item features, or none (default: all but id, title and "
                 "free text). KIND: category, number, number:comma (decimal commas), list or "
                 "list:SEPARATOR (pipe, semicolon, comma, ...); default: detected."),
        OPT_TEXT("--item-vectors", &r->item_vectors, "FILE",
                 "A vector for each item: .npy (n, dim), or .safetensors with vectors (n, dim) and "
                 "optionally ids (n), as 'hstu encode' writes."),
        OPT_TEXT("--item-vector-ids", &r->item_vector_ids, "FILE",
                 "The item id of each vector, one per line (default: the rows of --items)."),
        OPT_TEXT("--users", &r->users, "FILE",
                 "csv, jsonl, parquet: contextual features of users, a CSV file with a header, "
                 ".jsonl or Parquet."),
        OPT_TEXT("--users-id", &r->users_id, "COL", "Its id column (default: user_id, id, ...)."),
        OPT_TEXT("--user-features", &r->user_features, "COL,...",
                 "Its columns that become features (default: all but the id)."),
        OPT_FLAG("--random-logs", &r->has_random_logs,
                 "kuairand: also read the logs of randomly exposed videos."),
        OPT_TEXT("--user-col", &r->user_col, "COL", "csv, jsonl, parquet: user column."),
        OPT_TEXT("--item-col", &r->item_col, "COL", "csv, jsonl, parquet: item column."),
        OPT_TEXT("--time-col", &r->time_col, "COL", "csv, jsonl, parquet: time column, or none."),
        OPT_TEXT("--action-col", &r->action_col, "COL",
                 "csv, jsonl, parquet: action column, or none (default: rating, event_type, ... if "
                 "there is one)."),
        OPT_TEXT("--user", &r->user_col, "COL", "Short for --user-col."),
        OPT_TEXT("--item", &r->item_col, "COL", "Short for --item-col."),
        OPT_TEXT("--time", &r->time_col, "COL", "Short for --time-col."),
        OPT_TEXT("--action", &r->action_col, "COL", "Short for --action-col."),
        OPT_TEXT("--action-kind", &r->action_kind, "KIND",
                 "Kind of actions: none, stars (1..5), half-stars (.5..5), bits (0..255) or code "
                 "(default: detected)."),
        OPT_TEXT("--action-map", &r->action_map, "MAP",
                 "csv, jsonl, parquet: numbers for textual actions, as in view=1,buy=2; * matches "
                 "any other text."),
        OPT_TEXT("--delimiter", &r->delimiter, "D",
                 "csv: one or two characters, or tab, comma, pipe, semicolon, space (default: "
                 "detected)."),
        OPT_TEXT("--header", &r->header, "WHEN", "csv: yes, no or auto (default)."),
        OPT_TEXT("--time-unit", &r->time_unit, "UNIT",
                 "csv, jsonl, parquet: unit of times: s, ms, us, ns, or iso for dates (default: "
                 "detected)."),
        OPT_FLAG("--string-ids", &r->has_text_ids,
                 "csv, jsonl, parquet: treat ids as strings even if they look like numbers."),
        OPT_TEXT("--time-zone", &r->time_zone, "ZONE",
                 "csv, jsonl, parquet: zone of dates without one, such as Europe/Berlin or +02:00 "
                 "(default: UTC)."),
        OPT_TEXT("--time-format", &r->time_format, "FORMAT",
                 "csv, jsonl, parquet: form of dates that are not ISO 8601, as in "
                 "'%d.%m.%Y %H:%M'; see docs/prep.md."),
        OPT_TEXT("--skip-bad", &o->skip_bad, "N|P%",
                 "csv, jsonl, parquet: skip up to N unreadable rows, or P percent of all, and list "
                 "them in DIR/skipped.txt (default: the first one is an error)."),
        {0}};
    const arg_spec spec = {.usage = "hstu prep SOURCE --input PATH... --out DIR [options]",
                           .summary =
                               "Convert a data set, or a server's events (--from-state), to one "
                               "sequence file, DIR/data.seq: each user's events in order of time, "
                               "titles and contextual features.",
                           .options = options,
                           .min_positional = 0,
                           .max_positional = argc,
                           .notes = notes};
    const char **words;
    int n = 0;
    TRY(MEM_NEW(&words, (size_t)argc));
    status st = args_parse(&spec, argc, argv, words, &n, is_help);
    if (st == OK && !*is_help) st = choose_source(o, words, n);
    if (st == OK && o->skip_bad != NULL) st = read_skip_bad(o->skip_bad, r);
    mem_free(words);
    return st;
}

/* The folder that contains a path; "." for a bare name. */
static const char *parent_of(const char *path) {
    char copy[SHOW_PATH_BYTES];
    snprintf(copy, sizeof copy, "%s", path);
    return show_printf("%s", dirname(copy));
}

/* Reports before the long work, not after it, that the result cannot be written. */
static status check_target(const char *out) {
    const char *path = out;
    if (file_exists(out) && !folder_exists(out))
        return fail(ERR_USAGE, "--out %s is a file; give a folder", out);
    while (!folder_exists(path) && strcmp(parent_of(path), path) != 0)
        path = parent_of(path);
    if (access(path, W_OK | X_OK) != 0)
        return fail_errno("--out %s: cannot write to %s", out, path);
    return OK;
}

/* Refuses to overwrite the input or the data set with the csv. */
static status check_emit_csv(const prep_options *o) {
    if (o->emit_csv == NULL)
        return o->item_name != NULL ? fail(ERR_USAGE, "--item-name needs --emit-csv") : OK;
    for (size_t i = 0; i < o->inputs.n_items; i++)
        if (file_is_same(o->emit_csv, o->inputs.item[i]))
            return fail(ERR_USAGE, "--emit-csv %s is the input; give another file", o->emit_csv);
    const char *data = show_join(o->out, "data.seq");
    if (strcmp(o->emit_csv, data) == 0 || file_is_same(o->emit_csv, data))
        return fail(ERR_USAGE, "--emit-csv %s is where the data goes; give another file",
                    o->emit_csv);
    return OK;
}

static status check_options(const prep_options *o) {
    if (o->out == NULL) return fail(ERR_USAGE, "--out is missing: the folder to write to");
    if (o->input == NULL && !o->is_download)
        return fail(ERR_USAGE,
                    "--input is missing: the folder, archive or file to read (or --download)");
    if (o->url != NULL && !o->is_download) return fail(ERR_USAGE, "--url needs --download");
    if (o->is_download && o->inputs.n_items > 1)
        return fail(ERR_USAGE, "with --download, --input is one folder");
    TRY(check_emit_csv(o));
    return check_target(o->out);
}

/* Fetches the archive into the folder --input names, or the one around --out, and reads it from
 * there.  A complete archive that is there already is kept. */
static status download(prep_options *o) {
    const download_source *d = download_find(o->src->name);
    if (d == NULL)
        return fail(ERR_USAGE, "%s has no public address; give its file with --input",
                    o->src->name);
    const char *folder = o->input != NULL ? o->input : parent_of(o->out);
    if (file_exists(folder) && !folder_exists(folder))
        return fail(ERR_USAGE,
                    "--input %s is a file; with --download it is the folder to keep the archive in",
                    folder);
    TRY(folder_create(folder, NULL));
    TRY(path_join(o->archive, sizeof o->archive, folder, d->file));
    TRY(download_file(o->url != NULL ? o->url : d->url, o->archive, d->md5, 0));
    o->input = o->archive;
    return OK;
}

/* Where the data came from, without times of day: the same input gives the same bytes. */
static status make_meta(const prep_options *o, const source_result *r, buf *out) {
    char path[4096];
    json_writer w;
    snprintf(path, sizeof path, "%s", o->input);
    json_begin_object(&w, out, 0);
    JSON_FIELDS(&w, FIELD("name", o->src->name), FIELD("input", basename(path)),
                FIELD("version", HSTU_VERSION), FIELD("actions", action_kind_name(r->actions)));
    if (r->actions == ACTION_BITS) {
        json_key_array(&w, "action_names");
        for (int i = 0; i < 8; i++)
            json_string(&w, seq_signal_name(i));
        json_array_close(&w);
    }
    json_key_string(&w, "item_name", r->item_name);
    return json_finish_object(&w);
}

static const char *const kind_names[] = {"auto", "category", "list", "number"};

static status print_json(const prep_options *o, const builder_stats *s, double seconds) {
    json_writer *w = json_line_open();
    JSON_FIELDS(w, FIELD("source", o->src->name), FIELD("path", o->out), FIELD("users", s->n_users),
                FIELD("items", s->n_seen_items), FIELD("catalogue", s->n_items),
                FIELD("events", s->n_events), FIELD("max_len", s->max_len),
                FIELD("first_time", s->first_time), FIELD("last_time", s->last_time),
                FIELD("time_per_second", s->time_per_second), FIELD("duplicates", s->n_duplicates),
                FIELD("out_of_order", s->n_out_of_order), FIELD("filtered", s->n_filtered_events),
                FIELD("out_of_range", s->n_out_of_range), FIELD("not_sampled", s->n_not_sampled),
                FIELD("filtered_users", s->n_filtered_users),
                FIELD("filtered_items", s->n_filtered_items), FIELD("skipped", s->n_skipped),
                FIELD("unknown_actions", s->n_unknown_actions), FIELD("vectors", s->n_vector_items),
                FIELD("seconds", seconds));
    json_key_object(w, "item_features");
    for (const content_report *c = s->content; c < s->content + s->n_content; c++)
        if (!c->is_left_out) json_key_int(w, c->name, (int64_t)c->n_values);
    json_object_close(w);
    return json_line_print();
}

static void print_summary(const prep_options *o, const builder_stats *s, double seconds) {
    double rows = (double)(s->n_events + s->n_filtered_events);
    printf("%s   %s\n\n", show_bold(show_printf("%s/data.seq", show_path(o->out))), o->src->name);
    printf("  Users       %12s\n", show_count(s->n_users));
    printf("  Items       %12s   seen in events; %s in the catalogue\n",
           show_count(s->n_seen_items), show_count(s->n_items));
    printf("  Events      %12s   longest history %s\n", show_count(s->n_events),
           show_count(s->max_len));
    if (o->request.items != NULL && o->with == NULL)
        printf("  Described   %12s   items with events by %s\n", show_count(s->n_described_items),
               show_path(o->request.items));
    if (o->request.users != NULL && o->with == NULL)
        printf("  Described   %12s   users by %s\n", show_count(s->n_described_users),
               show_path(o->request.users));
    for (const content_report *f = s->content; f < s->content + s->n_content; f++)
        if (!f->is_left_out)
            printf("  Feature     %12s   items of the catalogue have %s: %s, %s values\n",
                   show_count(f->n_items), f->name, kind_names[f->kind], show_count(f->n_values));
    if (o->request.item_vectors != NULL)
        printf("  Vectors     %12s   items by %s\n", show_count(s->n_vector_items),
               show_path(o->request.item_vectors));
    const struct {
        const char *label;
        uint64_t n;
        const char *what;
    } seen[] = {
        {"Left out", s->n_out_of_range, "events out of --since and --until"},
        {"Left out", s->n_not_sampled, "events of users who are not in the sample"},
        {"Left out", s->n_filtered_events,
         show_printf("events of %s rare users and %s rare items", show_count(s->n_filtered_users),
                     show_count(s->n_filtered_items))},
        {"Unknown", s->n_unknown_actions,
         "events without an action: history, not labels of ranking"},
        {"Skipped", s->n_skipped, show_printf("bad rows, in %s/skipped.txt", show_path(o->out))},
        {"Duplicates", s->n_duplicates,
         o->request.drop_duplicates ? "dropped" : "kept; --drop-duplicates drops them"},
        {"Reordered", s->n_out_of_order, "events sorted by time"},
    };
    for (size_t i = 0; i < sizeof seen / sizeof *seen; i++)
        if (seen[i].n > 0)
            printf("  %-11s %12s   %s\n", seen[i].label, show_count(seen[i].n), seen[i].what);
    printf("  Took        %10.2f s   %s events/s\n", seconds,
           show_rounded(seconds > 0 ? rows / seconds : rows));
    if (o->emit_csv != NULL) printf("\nAlso written: %s\n", show_path(o->emit_csv));
    printf("\nNext: hstu info %s\n", show_word(o->out));
}

static status write_csv(const prep_options *o, const source_result *r, pool *p, out_file *csv) {
    seq_file *s;
    TRY(seq_file_open(&s, o->out, p));
    status st = emit_csv(s, o->item_name != NULL ? o->item_name : r->item_name, csv);
    seq_file_close(s);
    return st;
}

static status write_data(const prep_options *o, const source_result *r, const buf *meta,
                         builder_stats *stats) {
    status st = builder_write(r->build, o->out, buf_str(meta), stats);
    stats->n_skipped = r->bad != NULL ? bad_lines_count(r->bad) : 0;
    /* The builder knows no file names, so its messages get the input's name here. */
    return st == ERR_FORMAT ? fail_prefix(st, "%s", o->input) : st;
}

static status read_source(const prep_options *o, pool *p, source_result *r) {
    bool is_several = o->inputs.n_items > 1;
    if (o->state != NULL) return prep_state_read(o->state, o->with, &o->request, p, r);
    return source_read(o->src, &o->request, is_several ? o->inputs.item : &o->input,
                       is_several ? o->inputs.n_items : 1, p, r);
}

/* DIR/skipped.txt: every row that was skipped, as "file:line: reason".  An old list goes. */
static status write_skipped(const prep_options *o, bad_lines *bad) {
    enum { SHOWN_LINES = 10 };
    const char *path = show_join(o->out, "skipped.txt");
    out_file *f;
    uint64_t n = bad != NULL ? bad_lines_count(bad) : 0;
    if (n == 0) {
        if (unlink(path) != 0 && errno != ENOENT) return fail_errno("%s cannot be removed", path);
        return OK;
    }
    log_warn("%llu bad row%s skipped; all of them: %s", (unsigned long long)n,
             n == 1 ? " was" : "s were", path);
    TRY(out_file_create(&f, path));
    status st = OK;
    for (uint64_t i = 0; st == OK && i < n; i++) {
        const char *line = bad_lines_get(bad, i);
        if (i < SHOWN_LINES) log_info("  %s", line);
        st = out_file_write(f, line, strlen(line));
        if (st == OK) st = out_file_write(f, "\n", 1);
    }
    return out_file_end(f, st);
}

/* A side file whose ids are not those of the events does nothing: said, as it looks like success.
 */
static void warn_described(const prep_options *o, const builder_stats *s) {
    if (o->request.users != NULL && s->n_described_users == 0)
        log_warn("no user of %s is among the events; is --users-id the right column?",
                 o->request.users);
    if (o->request.items != NULL && s->n_described_items == 0)
        log_warn("no item of %s is among the events; is --items-id the right column?",
                 o->request.items);
    if (o->request.item_vectors != NULL && s->n_vector_items == 0)
        log_warn("no item of the catalogue has a vector in %s; are the ids the same?",
                 o->request.item_vectors);
    for (const content_report *c = s->content; c < s->content + s->n_content; c++) {
        if (c->n_rare > 0)
            log_info("note: the %llu rarest values of %s are left out",
                     (unsigned long long)c->n_rare, c->name);
        if (c->has_commas)
            log_info("note: %s is not read as numbers; if its commas are decimal: --item-features "
                     "%s:number:comma",
                     c->name, c->name);
        if (c->is_left_out)
            log_info("note: %s is no feature: %llu values, hardly any of two items; name it in "
                     "--item-features to take it",
                     c->name, (unsigned long long)c->n_values);
    }
}

/* One line: what the times were taken for, and their range, which shows a wrong guess. */
static void log_times(const source_result *r, const builder_stats *s) {
    if (r->times[0] == '\0') return;
    log_info("times: %s, %s .. %s", r->times, show_date(s->first_time / s->time_per_second),
             show_date(s->last_time / s->time_per_second));
    if (s->last_time / s->time_per_second > (int64_t)time(NULL) + 86400)
        log_info("note: the newest event is in the future; a wrong clock moves splits by time and "
                 "the popularity of the last week: leave such events out with --until");
}

/* Reads, writes the sequence file, and the csv if one is wanted.  The csv is opened first, so that
 * an unwritable path is reported before the work; it may be in the folder that this makes. */
static status run(const prep_options *o, pool *p, builder_stats *stats) {
    source_result r = {0};
    out_file *csv = NULL;
    buf meta = {0};
    bool is_new = o->emit_csv != NULL && !folder_exists(o->out);
    status st = is_new ? folder_create(o->out, NULL) : OK;
    if (st == OK && o->emit_csv != NULL) st = out_file_create(&csv, o->emit_csv);
    if (st == OK) st = read_source(o, p, &r);
    if (st == OK) st = make_meta(o, &r, &meta);
    if (st == OK) st = write_data(o, &r, &meta, stats);
    if (st == OK) log_times(&r, stats);
    if (st == OK) warn_described(o, stats);
    if (st == OK) st = write_skipped(o, r.bad);
    if (st == OK && csv != NULL) st = write_csv(o, &r, p, csv);
    if (st == OK && csv != NULL) {
        st = out_file_commit(csv);
        csv = NULL;
    }
    out_file_abandon(csv);
    if (st != OK && is_new) (void)rmdir(o->out); /* where nothing else has come into it */
    source_result_fini(&r);
    buf_fini(&meta);
    return st;
}

static status prepare(prep_options *o) {
    uint64_t start_ns = clock_ns();
    builder_stats stats;
    pool *p;
    TRY(check_options(o));
    if (o->is_download) TRY(download(o));
    TRY(pool_create_default(&p));
    status st = run(o, p, &stats);
    pool_destroy(p);
    if (st != OK) return st;
    double seconds = (double)(clock_ns() - start_ns) * 1e-9;
    if (o->is_json) return print_json(o, &stats, seconds);
    print_summary(o, &stats, seconds);
    return OK;
}

status cmd_prep(int argc, char **argv) {
    prep_options o;
    bool is_help = false;
    memset(&o, 0, sizeof o);
    TRY(parse_options(argc, argv, &o, &is_help));
    return is_help ? OK : prepare(&o);
}
