/* hstu prep: a data set in the form it is published in, to one sequence file. */
#include <libgen.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/env.h"
#include "base/file.h"
#include "base/log.h"
#include "base/progress.h"
#include "cli/cli.h"
#include "cli/json_line.h"
#include "cli/show.h"
#include "data/prep/download.h"
#include "data/prep/sources.h"
#include "data/set/emit_csv.h"
#include "hstu.h"

typedef struct prep_options {
    const source *src;
    source_request request;
    const char *input, *out, *emit_csv, *item_name, *url;
    bool is_json, is_download;
    char archive[4096]; /* path of a downloaded archive */
} prep_options;

/* Tables fit 80 columns; paragraphs have no breaks of their own, so that they are wrapped once. */
static const char notes[] =
    "Sources:\n"
    "  ml-100k, ml-1m, ml-20m                    MovieLens, actions 0..4 or 0..9\n"
    "  kuairand-pure, kuairand-1k, kuairand-27k  KuaiRand, eight signals as bits\n"
    "  amzn-books                                ratings_Books.csv, 5 ratings or more\n"
    "  processed-seqs                            a user per row, as --emit-csv writes\n"
    "  csv                                       any csv with one event per row\n"
    "\n"
    "--input is a folder, the original archive as it is, or a single file, compressed or not. "
    "With --download it is the folder the archive is kept in; default: the folder around --out.\n"
    "\n"
    "csv: columns are header names, or numbers from 1. Without --user-col and the other "
    "column options, common names are tried (user_id, item_id, timestamp, ...), or columns 1, 2, 3 "
    "if there is no header. --header auto takes the first row as a header if no field of it is a "
    "number. Ids are 64-bit integers unless --string-ids; times are integers ('none': the order of "
    "the file).\n"
    "\n"
    "processed-seqs: rating lists are stored actions (0..4 for 1..5 stars); sasrec_format.csv has "
    "ratings as in the source.\n"
    "\n"
    "Examples:\n"
    "  hstu prep ml-1m --download --out data/ml-1m\n"
    "  hstu prep csv --input clicks.csv.gz --user-col uid --item-col sku \\\n"
    "      --time-col ts --out data/clicks\n";

static status parse_options(int argc, char **argv, prep_options *o, bool *is_help) {
    source_request *r = &o->request;
    const arg_option options[] = {
        {"--input", ARG_TEXT, &o->input, "PATH", "folder, archive or file to read", 0, 0},
        {"--out", ARG_TEXT, &o->out, "DIR", "folder to write data.seq to; an old one is replaced",
         0, 0},
        {"--json", ARG_FLAG, &o->is_json, NULL, "print the summary as one JSON object", 0, 0},
        {"--emit-csv", ARG_TEXT, &o->emit_csv, "FILE",
         "also write the sequences as a csv: user_id, item, rating, unix_timestamp", 0, 0},
        {"--item-name", ARG_TEXT, &o->item_name, "NAME",
         "item column of that csv; default: the source's", 0, 0},
        {"--download", ARG_FLAG, &o->is_download, NULL,
         "fetch the archive first, if it is not there yet", 0, 0},
        {"--url", ARG_TEXT, &o->url, "URL", "another place to download it from", 0, 0},
        {"--drop-duplicates", ARG_FLAG, &r->drop_duplicates, NULL,
         "drop events equal to the one before: same user, item, time, action", 0, 0},
        {"--random-logs", ARG_FLAG, &r->has_random_logs, NULL,
         "kuairand: the logs of randomly exposed videos too", 0, 0},
        {"--user-col", ARG_TEXT, &r->user_col, "COL", "csv: column of the user", 0, 0},
        {"--item-col", ARG_TEXT, &r->item_col, "COL", "csv: column of the item", 0, 0},
        {"--time-col", ARG_TEXT, &r->time_col, "COL", "csv: column of the time, or none", 0, 0},
        {"--action-col", ARG_TEXT, &r->action_col, "COL", "csv: column of the action; default none",
         0, 0},
        {"--action-kind", ARG_TEXT, &r->action_kind, "KIND",
         "what it holds: none, stars (1..5), half-stars (.5..5), bits (0..255) or code (default)",
         0, 0},
        {"--delimiter", ARG_TEXT, &r->delimiter, "D",
         "csv: one or two characters, or tab, comma, pipe, semicolon, space; default comma", 0, 0},
        {"--header", ARG_TEXT, &r->header, "WHEN", "csv: yes, no or auto (default)", 0, 0},
        {"--time-unit", ARG_TEXT, &r->time_unit, "UNIT", "csv: times are in s (default) or ms", 0,
         0},
        {"--string-ids", ARG_FLAG, &r->has_text_ids, NULL, "csv: ids are strings, not numbers", 0,
         0},
        {0}};
    const arg_spec spec = {
        .usage = "hstu prep SOURCE --input PATH --out DIR [options]",
        .summary = "Reads a data set and writes it as one sequence file, DIR/data.seq: each user's "
                   "events in order of time, titles, contextual features.",
        .options = options,
        .min_positional = 1,
        .max_positional = 1,
        .notes = notes};
    const char *name = NULL;
    int n = 0;
    TRY(args_parse(&spec, argc, argv, &name, &n, is_help));
    return *is_help ? OK : source_find(name, &o->src);
}

/* The folder that contains a path; "." for a bare name. */
static void parent_of(const char *path, char *out, size_t size) {
    char copy[4096];
    snprintf(copy, sizeof copy, "%s", path);
    snprintf(out, size, "%s", dirname(copy));
}

/* Reports before the long work, not after it, that the result cannot be written. */
static status check_target(const char *out) {
    char path[4096], parent[4096];
    snprintf(path, sizeof path, "%s", out);
    if (file_exists(out) && !folder_exists(out))
        return fail(ERR_USAGE, "--out %s is a file; give a folder", out);
    while (!folder_exists(path)) {
        parent_of(path, parent, sizeof parent);
        if (strcmp(parent, path) == 0) break;
        memcpy(path, parent, sizeof path);
    }
    if (access(path, W_OK | X_OK) != 0)
        return fail_errno("--out %s: cannot write to %s", out, path);
    return OK;
}

static bool is_same_file(const char *a, const char *b) {
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

/* Refuses to overwrite the input or the data set with the csv. */
static status check_emit_csv(const prep_options *o) {
    char data[4096];
    if (o->emit_csv == NULL)
        return o->item_name != NULL ? fail(ERR_USAGE, "--item-name needs --emit-csv") : OK;
    if (o->input != NULL && is_same_file(o->emit_csv, o->input))
        return fail(ERR_USAGE, "--emit-csv %s is the input; give another file", o->emit_csv);
    TRY(path_join(data, sizeof data, o->out, "data.seq"));
    if (strcmp(o->emit_csv, data) == 0 || is_same_file(o->emit_csv, data))
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
    TRY(check_emit_csv(o));
    return check_target(o->out);
}

/* Fetches the archive into the folder --input names, or the one around --out, and reads it from
 * there.  A complete archive that is there already is kept. */
static status download(prep_options *o) {
    const download_source *d = download_find(o->src->name);
    char folder[4096];
    if (d == NULL)
        return fail(ERR_USAGE, "%s has no public address; give its file with --input",
                    o->src->name);
    if (o->input != NULL)
        snprintf(folder, sizeof folder, "%s", o->input);
    else
        parent_of(o->out, folder, sizeof folder);
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
    static const char *const signals[] = {"click",   "like", "follow",    "comment",
                                          "forward", "hate", "long_view", "profile_enter"};
    char path[4096];
    json_writer w;
    snprintf(path, sizeof path, "%s", o->input);
    json_begin(&w, out, 0);
    json_object_open(&w);
    json_key_string(&w, "name", o->src->name);
    json_key_string(&w, "input", basename(path));
    json_key_string(&w, "version", HSTU_VERSION);
    json_key_string(&w, "actions", action_kind_name(r->actions));
    if (r->actions == ACTION_BITS) {
        json_key(&w, "action_names");
        json_array_open(&w);
        for (int i = 0; i < 8; i++)
            json_string(&w, signals[i]);
        json_array_close(&w);
    }
    json_key_string(&w, "item_name", r->item_name);
    json_object_close(&w);
    return json_finish(&w);
}

static status print_json(const prep_options *o, const builder_stats *s, double seconds) {
    json_line line;
    json_writer *w = json_line_open(&line);
    json_key_string(w, "source", o->src->name);
    json_key_string(w, "path", o->out);
    json_key_int(w, "users", (int64_t)s->n_users);
    json_key_int(w, "items", (int64_t)s->n_seen_items);
    json_key_int(w, "catalogue", (int64_t)s->n_items);
    json_key_int(w, "events", (int64_t)s->n_events);
    json_key_int(w, "max_len", (int64_t)s->max_len);
    json_key_int(w, "first_time", s->first_time);
    json_key_int(w, "last_time", s->last_time);
    json_key_int(w, "duplicates", (int64_t)s->n_duplicates);
    json_key_int(w, "out_of_order", (int64_t)s->n_out_of_order);
    json_key_int(w, "filtered", (int64_t)s->n_filtered_events);
    json_key_double(w, "seconds", seconds);
    return json_line_print(&line);
}

static void print_summary(const prep_options *o, const builder_stats *s, double seconds) {
    char a[SHOW_BYTES], b[SHOW_BYTES], rate[32];
    show_style style = show_stdout_style();
    double rows = (double)(s->n_events + s->n_filtered_events);
    human_count(rate, sizeof rate, seconds > 0 ? rows / seconds : rows);
    printf("%s%s/data.seq%s   %s\n\n", style.bold, o->out, style.plain, o->src->name);
    printf("  Users       %12s\n", show_count(a, s->n_users));
    printf("  Items       %12s   seen in events; %s in the catalogue\n",
           show_count(a, s->n_seen_items), show_count(b, s->n_items));
    printf("  Events      %12s   longest history %s\n", show_count(a, s->n_events),
           show_count(b, s->max_len));
    if (s->n_filtered_events > 0)
        printf("  Left out    %12s   events of rare items and users\n",
               show_count(a, s->n_filtered_events));
    if (s->n_duplicates > 0)
        printf("  Duplicates  %12s   %s\n", show_count(a, s->n_duplicates),
               o->request.drop_duplicates ? "dropped" : "kept; --drop-duplicates drops them");
    if (s->n_out_of_order > 0)
        printf("  Reordered   %12s   events sorted by time\n", show_count(a, s->n_out_of_order));
    printf("  Time        %10.2f s   %s events/s\n", seconds, rate);
    if (o->emit_csv != NULL) printf("\nAlso written: %s\n", o->emit_csv);
    printf("\nNext: hstu info %s\n", o->out);
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
    /* The builder knows no file names, so its messages get the input's name here. */
    return st == ERR_FORMAT ? fail_prefix(st, "%s", o->input) : st;
}

/* Reads, writes the sequence file, and the csv if one is wanted.  The csv is opened first, so that
 * an unwritable path is reported before the work. */
static status run(const prep_options *o, pool *p, builder_stats *stats) {
    source_result r = {0};
    out_file *csv = NULL;
    buf meta;
    buf_init(&meta);
    status st = o->emit_csv != NULL ? out_file_create(&csv, o->emit_csv) : OK;
    if (st == OK) st = source_read(o->src, &o->request, o->input, p, &r);
    if (st == OK) st = make_meta(o, &r, &meta);
    if (st == OK) st = write_data(o, &r, &meta, stats);
    if (st == OK && csv != NULL) st = write_csv(o, &r, p, csv);
    if (st == OK && csv != NULL) {
        st = out_file_commit(csv);
        csv = NULL;
    }
    out_file_abandon(csv);
    source_result_fini(&r);
    buf_fini(&meta);
    return st;
}

status cmd_prep(int argc, char **argv) {
    prep_options o = {0};
    bool is_help = false;
    uint64_t start_ns = clock_ns();
    builder_stats stats;
    int n_threads;
    pool *p;
    TRY(parse_options(argc, argv, &o, &is_help));
    if (is_help) return OK;
    TRY(check_options(&o));
    if (o.is_download) TRY(download(&o));
    TRY(env_threads(&n_threads));
    TRY(pool_create(&p, n_threads));
    status st = run(&o, p, &stats);
    pool_destroy(p);
    if (st != OK) return st;
    double seconds = (double)(clock_ns() - start_ns) * 1e-9;
    if (o.is_json) return print_json(&o, &stats, seconds);
    print_summary(&o, &stats, seconds);
    return OK;
}
