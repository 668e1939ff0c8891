/* hstu info: what is in a data set; a run goes to info_run.c, a snapshot of a table to
 * info_table.c, a file of tensors to info_tensors.c.
 */
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/env.h"
#include "base/file.h"
#include "base/mem.h"
#include "cli/cli.h"
#include "cli/data/info_table.h"
#include "cli/data/info_tensors.h"
#include "cli/json_line.h"
#include "cli/model/run_facts.h"
#include "cli/show.h"
#include "data/set/stats.h"
#include "embed/snapshot.h"

enum { N_POPULAR = 10, N_CODES = 10, BAR_COLUMNS = 36 };

/* The data set and its statistics while they are shown. */
typedef struct info {
    const char *path;
    const seq_file *data;
    const data_stats *stats;
    const json_value *source; /* the provenance object in the file; NULL if there is none */
    uint32_t popular[N_POPULAR];
    int n_popular;
    show_style style;
} info;

static const char *const bit_names[] = {"click",   "like", "follow",    "comment",
                                        "forward", "hate", "long_view", "profile_enter"};
enum { N_BITS = sizeof bit_names / sizeof bit_names[0] };

static const char *action_kind_word(action_kind kind) {
    static const char *const words[] = {"none", "stars", "half-stars", "bits", "code"};
    return words[kind];
}

/* Events with a bit of the mask set. */
static uint64_t count_bit(const data_stats *stats, int bit) {
    uint64_t n = 0;
    for (uint32_t a = 0; a < STATS_ACTIONS; a++)
        if (a >> bit & 1) n += stats->action_count[a];
    return n;
}

/* JSON out. */

static void write_actions(const info *in, json_writer *w) {
    json_key(w, "actions");
    json_object_open(w);
    json_key_string(w, "kind", action_kind_word(in->data->actions));
    json_key(w, "counts");
    json_object_open(w);
    for (int bit = 0; bit < N_BITS && in->data->actions == ACTION_BITS; bit++)
        json_key_int(w, bit_names[bit], (int64_t)count_bit(in->stats, bit));
    for (uint32_t a = 0; a < STATS_ACTIONS && in->data->actions != ACTION_BITS; a++) {
        char key[24];
        if (in->stats->action_count[a] == 0) continue;
        snprintf(key, sizeof key, "%g", seq_rating(in->data, (uint16_t)a));
        json_key_int(w, key, (int64_t)in->stats->action_count[a]);
    }
    json_object_close(w);
    json_object_close(w);
}

static void write_lengths(const info *in, json_writer *w) {
    json_key(w, "length_histogram");
    json_array_open(w);
    for (int i = 0; i < in->stats->n_bins; i++) {
        const length_bin *bin = &in->stats->bins[i];
        json_object_open(w);
        json_key_int(w, "first", (int64_t)bin->first);
        json_key_int(w, "last", (int64_t)bin->last);
        json_key_int(w, "users", (int64_t)bin->n_users);
        json_object_close(w);
    }
    json_array_close(w);
}

static status write_popular(const info *in, json_writer *w) {
    buf name;
    status st = OK;
    buf_init(&name);
    json_key(w, "popular");
    json_array_open(w);
    for (int i = 0; i < in->n_popular && st == OK; i++) {
        uint32_t item = in->popular[i];
        json_object_open(w);
        st = seq_item_name(in->data, item, &name);
        if (st == OK) json_key_string(w, "id", buf_str(&name));
        if (st == OK) st = seq_item_title(in->data, item, &name);
        if (st == OK) json_key_string(w, "title", buf_str(&name));
        json_key_int(w, "events", (int64_t)in->stats->item_count[item]);
        json_object_close(w);
    }
    json_array_close(w);
    buf_fini(&name);
    return st;
}

static status write_json(const info *in, json_writer *w) {
    const data_stats *s = in->stats;
    json_key_string(w, "path", in->path);
    json_key_int(w, "users", (int64_t)in->data->n_users);
    json_key_int(w, "items", (int64_t)s->n_seen_items);
    json_key_int(w, "catalogue", (int64_t)in->data->n_items);
    json_key_int(w, "events", (int64_t)in->data->n_events);
    json_key_int(w, "min_len", (int64_t)s->min_len);
    json_key_int(w, "max_len", (int64_t)s->max_len);
    json_key_double(w, "mean_len", s->mean_len);
    json_key_double(w, "median_len", s->median_len);
    json_key_double(w, "density", s->density);
    json_key_int(w, "first_time", s->first_time);
    json_key_int(w, "last_time", s->last_time);
    json_key_int(w, "time_per_second", in->data->time_per_second);
    write_actions(in, w);
    json_key(w, "context");
    json_object_open(w);
    for (int f = 0; f < in->data->n_context; f++)
        json_key_int(w, in->data->context[f].name, (int64_t)in->data->context[f].values.n - 1);
    json_object_close(w);
    write_lengths(in, w);
    TRY(write_popular(in, w));
    json_key(w, "source");
    if (in->source != NULL)
        json_value_write(w, in->source);
    else
        json_null(w);
    return OK;
}

static status print_json(const info *in) {
    json_line line;
    json_writer *w = json_line_open(&line);
    status st = write_json(in, w);
    if (st != OK) w->state = st; /* json_line_print returns it */
    return json_line_print(&line);
}

/* Text out. */

static void print_heading(const info *in, const char *text) {
    printf("\n%s%s%s\n\n", in->style.bold, text, in->style.plain);
}

/* "  label  |||||||  count  share": the bar is relative to the largest row. */
static void print_row(const info *in, const char *label, uint64_t n, uint64_t most,
                      uint64_t total) {
    char bar[SHOW_BYTES], count[SHOW_BYTES];
    double share = most > 0 ? (double)n / (double)most : 0;
    show_bar(bar, share, BAR_COLUMNS);
    /* Blocks take three bytes and one column each, so printf cannot pad them. */
    int pad = BAR_COLUMNS - (int)(strlen(bar) / 3);
    printf("  %-16s %s%s%s%*s %13s %6.1f %%\n", label, in->style.bar, bar, in->style.plain, pad, "",
           show_count(count, n), total > 0 ? 100.0 * (double)n / (double)total : 0);
}

static void print_source(const info *in) {
    char text[SHOW_BYTES];
    const json_value *name = in->source != NULL ? json_member(in->source, "name") : NULL;
    char path[SHOW_PATH_BYTES];
    printf("%s%s%s", in->style.bold, show_path(path, in->path), in->style.plain);
    if (name != NULL && name->type == JSON_STRING)
        printf("   %s", show_text(text, name->string, name->string_bytes, 40));
    printf("\n\n");
}

static void print_counts(const info *in) {
    const data_stats *s = in->stats;
    char a[SHOW_BYTES], b[SHOW_BYTES], c[SHOW_BYTES];
    int64_t per_second = in->data->time_per_second;
    int64_t first = s->first_time / per_second, last = s->last_time / per_second;
    printf("  Users      %15s\n", show_count(a, in->data->n_users));
    printf("  Items      %15s   seen in events\n", show_count(a, s->n_seen_items));
    printf("  Catalogue  %15s   all known items\n", show_count(a, in->data->n_items));
    printf("  Events     %15s   density %.3g %%\n", show_count(a, in->data->n_events),
           100 * s->density);
    printf("  Length     %15.1f   mean; median %g, shortest %s, longest %s\n", s->mean_len,
           s->median_len, show_count(a, s->min_len), show_count(b, s->max_len));
    /* Unsigned: the span of hostile times may be more than int64 holds. */
    printf("  Time       %15s   to %s, %s days\n", show_date(a, first), show_date(b, last),
           show_count(c, ((uint64_t)last - (uint64_t)first) / 86400));
}

/* A number that the generator recorded in the file, if it is there. */
static bool synth_number(const info *in, const char *key, double *out) {
    const json_value *synth = in->source != NULL ? json_member(in->source, "synth") : NULL;
    const json_value *value =
        synth != NULL && synth->type == JSON_OBJECT ? json_member(synth, key) : NULL;
    if (value == NULL || value->type != JSON_NUMBER) return false;
    *out = value->number;
    return true;
}

static void print_reachable(const info *in) {
    double best, ndcg, popularity;
    if (!synth_number(in, "best_hr10", &best) || !synth_number(in, "best_ndcg10", &ndcg) ||
        !synth_number(in, "popularity_hr10", &popularity))
        return;
    printf("  HR@10      %15.3f   at best (NDCG@10 %.3f); popularity reaches %.3f\n", best, ndcg,
           popularity);
}

static void print_lengths(const info *in) {
    const data_stats *s = in->stats;
    uint64_t most = 0;
    print_heading(in, "Events of a user");
    for (int i = 0; i < s->n_bins; i++)
        if (s->bins[i].n_users > most) most = s->bins[i].n_users;
    for (int i = 0; i < s->n_bins; i++) {
        char label[64];
        const length_bin *bin = &s->bins[i];
        if (bin->first == bin->last)
            snprintf(label, sizeof label, "%14" PRIu64, bin->first);
        else
            snprintf(label, sizeof label, "%6" PRIu64 " - %5" PRIu64, bin->first, bin->last);
        print_row(in, label, bin->n_users, most, in->data->n_users);
    }
}

static void print_ratings(const info *in, const char *unit, uint32_t n) {
    const uint64_t *count = in->stats->action_count;
    uint64_t most = 0;
    for (uint32_t a = 0; a < n; a++)
        if (count[a] > most) most = count[a];
    for (uint32_t a = 0; a < n; a++) {
        char label[32];
        double rating = seq_rating(in->data, (uint16_t)a);
        snprintf(label, sizeof label, "%8g %s%s", rating, unit, rating == 1 ? "" : "s");
        print_row(in, label, count[a], most, in->data->n_events);
    }
}

static void print_bits(const info *in) {
    uint64_t count[N_BITS], most = 0;
    for (int bit = 0; bit < N_BITS; bit++) {
        count[bit] = count_bit(in->stats, bit);
        if (count[bit] > most) most = count[bit];
    }
    for (int bit = 0; bit < N_BITS; bit++)
        print_row(in, bit_names[bit], count[bit], most, in->data->n_events);
}

/* The most frequent codes, most first. */
static void print_codes(const info *in) {
    const uint64_t *count = in->stats->action_count;
    uint64_t most = 0, below = UINT64_MAX;
    uint32_t last = 0;
    for (int row = 0; row < N_CODES; row++) {
        uint32_t best = STATS_ACTIONS;
        for (uint32_t a = 0; a < STATS_ACTIONS; a++) {
            bool is_left = count[a] < below || (count[a] == below && a > last);
            if (count[a] > 0 && is_left && (best == STATS_ACTIONS || count[a] > count[best]))
                best = a;
        }
        if (best == STATS_ACTIONS) return;
        char label[32];
        snprintf(label, sizeof label, "%14" PRIu32, best);
        if (row == 0) most = count[best];
        print_row(in, label, count[best], most, in->data->n_events);
        below = count[best], last = best;
    }
}

static void print_actions(const info *in) {
    switch (in->data->actions) {
    case ACTION_NONE:
        return;
    case ACTION_STARS:
        print_heading(in, "Ratings");
        print_ratings(in, "star", 5);
        return;
    case ACTION_HALF_STARS:
        print_heading(in, "Ratings");
        print_ratings(in, "star", 10);
        return;
    case ACTION_BITS:
        print_heading(in, "Signals (an event may have several)");
        print_bits(in);
        return;
    case ACTION_CODE:
        print_heading(in, "Action codes, most frequent first");
        print_codes(in);
    }
}

static void print_context(const info *in) {
    if (in->data->n_context == 0) return;
    print_heading(in, "Contextual features of users");
    for (int f = 0; f < in->data->n_context; f++) {
        const context_feature *feature = &in->data->context[f];
        const text_column *t = &feature->values;
        char name[SHOW_BYTES], value[SHOW_BYTES], count[SHOW_BYTES];
        uint64_t n_values = t->n > 0 ? t->n - 1 : 0;
        printf("  %-16s %9s %s  ", show_text(name, feature->name, strlen(feature->name), 16),
               show_count(count, n_values), n_values == 1 ? "value " : "values");
        size_t used = 0;
        for (uint64_t i = 1; i <= n_values; i++) {
            show_text(value, t->bytes + t->offsets[i], t->offsets[i + 1] - t->offsets[i], 14);
            used += strlen(value) + 2;
            if (used > 40) {
                printf("%s", i > 1 ? ", ..." : "...");
                break;
            }
            printf("%s%s", i > 1 ? ", " : "", value);
        }
        printf("\n");
    }
}

static status print_popular(const info *in) {
    buf title;
    status st = OK;
    buf_init(&title);
    print_heading(in, "Most popular items");
    for (int i = 0; i < in->n_popular && st == OK; i++) {
        char count[SHOW_BYTES], text[SHOW_BYTES];
        st = seq_item_title(in->data, in->popular[i], &title);
        if (st == OK)
            printf("  %2d %13s   %s\n", i + 1,
                   show_count(count, in->stats->item_count[in->popular[i]]),
                   show_text(text, buf_str(&title), title.n_bytes, 58));
    }
    buf_fini(&title);
    return st;
}

static status print_text(const info *in) {
    print_source(in);
    print_counts(in);
    print_reachable(in);
    print_lengths(in);
    print_actions(in);
    print_context(in);
    return print_popular(in);
}

static status show(const char *path, const seq_file *data, pool *p, bool is_json) {
    info in = {.path = path, .data = data, .style = show_stdout_style()};
    data_stats stats;
    arena a;
    const json_value *meta = NULL;
    arena_init(&a, 16 << 10);
    status st = data_stats_init(&stats, data, p);
    if (st == OK) st = json_parse(&a, data->path, data->meta_json, data->meta_bytes, &meta);
    if (st == OK) {
        in.stats = &stats;
        in.source = json_member(meta, "source");
        if (in.source != NULL && in.source->type != JSON_OBJECT) in.source = NULL;
        data_stats_popular(&stats, data, in.popular, N_POPULAR, &in.n_popular);
        st = is_json ? print_json(&in) : print_text(&in);
    }
    data_stats_fini(&stats);
    arena_fini(&a);
    return st;
}

static bool has_file(const char *path, const char *name) {
    char inside[4096];
    return path_join(inside, sizeof inside, path, name) == OK && file_exists(inside);
}

/* A step of RUN/snapshots, or what `hstu export` and `hstu import` wrote. */
static bool has_tables(const char *path) {
    bool is_there = false;
    DIR *dir = opendir(path);
    if (dir == NULL) return false;
    for (struct dirent *e = readdir(dir); e != NULL && !is_there; e = readdir(dir))
        is_there = strncmp(e->d_name, "table-", 6) == 0;
    closedir(dir);
    return is_there;
}

/* Explains a wrong path before the reader of sequence files complains about details. */
static status check_path(const char *path) {
    char inside[4096];
    struct stat found;
    if (stat(path, &found) != 0) return fail_errno("%s: cannot be opened", path);
    if (!folder_exists(path)) return OK;
    TRY(path_join(inside, sizeof inside, path, "data.seq"));
    if (stat(inside, &found) == 0) return OK;
    if (errno != ENOENT) return fail_errno("%s: cannot be opened", inside);
    if (has_file(path, "engine.json"))
        return fail(ERR_USAGE,
                    "%s: an engine folder; 'hstu serve' serves it, 'hstu info' of the run that it "
                    "was built from shows more",
                    path);
    if (has_file(path, "manifest.json"))
        return fail(ERR_USAGE,
                    "%s: a checkpoint; name its run, or a dynamic table of it (%s/table-...), or "
                    "evaluate it with 'hstu eval'",
                    path, path);
    if (has_tables(path))
        return fail(ERR_USAGE, "%s: a folder of dynamic tables; name one of them (%s/table-...)",
                    path, path);
    return fail(ERR_FORMAT,
                "%s: nothing known is in this folder (no data.seq); make a data set with "
                "'hstu prep' or 'hstu synth'",
                path);
}

status cmd_info(int argc, char **argv) {
    bool is_json = false, is_help;
    const arg_option options[] = {
        {"--json", ARG_FLAG, &is_json, NULL, "Print one JSON object on one line.", 0, 0},
        {0},
    };
    const arg_spec spec = {"hstu info DIR|RUN|FILE [--json]",
                           "Shows what is in a data set (users, items, events, the lengths of "
                           "histories, ratings or signals, the most popular items), in a run "
                           "(config, data, split, progress, metrics, checkpoints), in a "
                           "snapshot of a dynamic table (load, tiers, scores), or in a .pt or "
                           ".safetensors file (its tensors: name, type, shape).",
                           options,
                           1,
                           1,
                           NULL};
    const char *path;
    int n_threads;
    pool *p;
    seq_file *data;
    TRY(args_parse(&spec, argc, argv, &path, NULL, &is_help));
    if (is_help) return OK;
    if (embed_is_snapshot(path)) return info_table(path, is_json);
    if (has_file(path, "log.jsonl")) return info_run(path, is_json);
    if (info_is_tensors(path)) return info_tensors(path, is_json);
    TRY(check_path(path));
    TRY(env_threads(&n_threads));
    TRY(pool_create(&p, n_threads));
    status st = seq_file_open(&data, path, p);
    if (st == OK) st = show(path, data, p, is_json);
    seq_file_close(data);
    pool_destroy(p);
    return st;
}
