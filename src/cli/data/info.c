/* hstu info: what is in a file of tensors, a snapshot of a dynamic table, a run or a data set, each
 * in its own part below. */
#include <dirent.h>

#include "cli/cli.h"
#include "cli/model/run_facts.h"
#include "cli/output.h"
#include "data/read/sources.h"
#include "data/set/stats.h"
#include "embed/snapshot.h"
#include "format/safetensors.h"
#include "format/torch_file.h"

enum { NAME_COLUMNS = 100 };

/* By its name as well: of one that is broken, torch's reader says what is wrong. */
static bool is_torch(const char *path) {
    bool is_named = text_ends_with(path, ".pt") || text_ends_with(path, ".pth");
    return torch_is_file(path) || (is_named && file_exists(path) && !folder_exists(path));
}

static bool info_is_tensors(const char *path) {
    return (text_ends_with(path, ".safetensors") && file_exists(path)) || is_torch(path);
}

/* "(3953, 50)" as Python writes it; a scalar is "()". */
static const char *show_shape(const st_tensor *t) {
    const char *text = "";
    for (int d = 0; d < t->n_dims; d++)
        text = show_printf("%s%s%" PRId64, text, d > 0 ? ", " : "", t->shape[d]);
    return show_printf("(%s%s)", text, t->n_dims == 1 ? "," : "");
}

static void print_lines(const st_file *f) {
    int widest = 0;
    for (size_t i = 0; i < f->n_tensors; i++) {
        const st_tensor *t = &f->tensors[i];
        int columns = show_columns(show_text(t->name, strlen(t->name), NAME_COLUMNS));
        if (columns > widest) widest = columns;
    }
    for (size_t i = 0; i < f->n_tensors; i++) {
        const st_tensor *t = &f->tensors[i];
        const char *name = show_text(t->name, strlen(t->name), NAME_COLUMNS);
        printf("%s%*s  %-8s  %s\n", name, widest - show_columns(name), "",
               torch_dtype_name(t->dtype), show_shape(t));
    }
}

static status print_tensors_json(const char *path, const st_file *f) {
    json_writer *w = json_line_open();
    json_key_string(w, "path", path);
    json_key_array(w, "tensors");
    for (size_t i = 0; i < f->n_tensors; i++) {
        const st_tensor *t = &f->tensors[i];
        json_object_open(w);
        json_key_string(w, "name", t->name);
        json_key_string(w, "dtype", torch_dtype_name(t->dtype));
        json_key_array(w, "shape");
        for (int d = 0; d < t->n_dims; d++)
            json_int(w, t->shape[d]);
        json_array_close(w);
        json_object_close(w);
    }
    json_array_close(w);
    return json_line_print();
}

static status info_tensors(const char *path, bool is_json) {
    st_file *f;
    TRY((text_ends_with(path, ".safetensors") ? st_open : torch_open)(&f, path));
    status st = is_json ? print_tensors_json(path, f) : OK;
    if (!is_json) print_lines(f);
    st_close(f);
    return st;
}

/* hstu info FOLDER: how full a dynamic table is, where its rows are, their scores and ages. */

enum { BINS = 10, TABLE_BAR = 30 };

/* Rows by score or step: ten bins of equal width from the smallest to the largest value. */
typedef struct histogram {
    uint64_t low, high;
    uint64_t count[BINS];
} histogram;

typedef struct table_info {
    snapshot_info s;
    bool is_lfu; /* the high word of a score is a count */
    bool counts; /* second pass: the bounds are known */
    histogram score, stamp;
    int64_t n;
} table_info;

static uint64_t bin_of(const histogram *h, uint64_t x) {
    uint64_t width = (h->high - h->low) / BINS + 1;
    return (x - h->low) / width;
}

static void note(histogram *h, uint64_t x, bool counts) {
    if (counts) { /* the folder may have changed between the passes */
        if (x >= h->low && x <= h->high) h->count[bin_of(h, x)]++;
        return;
    }
    if (x < h->low) h->low = x;
    if (x > h->high) h->high = x;
}

static status see_rows(void *ctx, const embed_rows *rows) {
    table_info *t = ctx;
    for (int64_t i = 0; i < rows->n; i++) {
        uint64_t score = rows->scores[i];
        note(&t->score, t->is_lfu ? score >> 32 : score, t->counts);
        note(&t->stamp, rows->stamps[i], t->counts);
    }
    if (!t->counts) t->n += rows->n;
    return OK;
}

static status look(table_info *t, const char *folder) {
    TRY(embed_snapshot_info(folder, &t->s));
    t->is_lfu = strcmp(t->s.policy, "lfu") == 0;
    t->score.low = t->stamp.low = UINT64_MAX;
    TRY(embed_snapshot_each(folder, see_rows, t));
    t->counts = true;
    return embed_snapshot_each(folder, see_rows, t);
}

static void write_histogram(json_writer *w, const char *key, const histogram *h, int64_t n) {
    uint64_t width = (h->high - h->low) / BINS + 1;
    json_key_array(w, key);
    for (int i = 0; i < BINS && n > 0; i++) {
        if (h->count[i] == 0) continue;
        json_object_open(w);
        json_key(w, "from");
        json_uint(w, h->low + (uint64_t)i * width);
        json_key_int(w, "rows", (int64_t)h->count[i]);
        json_object_close(w);
    }
    json_array_close(w);
}

static status print_table_json(const table_info *t, const char *folder) {
    static const char *const tiers[] = {"level0", "level1", "store"};
    json_writer *w = json_line_open();
    JSON_FIELDS(w, FIELD("table", folder), FIELD("rows", t->n), FIELD("gone", t->s.n_gone),
                FIELD("step", t->s.step), FIELD("since", t->s.since), FIELD("dim", t->s.dim),
                FIELD("optimizer", t->s.optimizer), FIELD("policy", t->s.policy),
                FIELD("ranks", 1));
    json_key_object(w, "tiers");
    for (int i = 0; i < EMBED_TIERS; i++)
        json_key_int(w, tiers[i], t->s.tier_rows[i]);
    json_object_close(w);
    json_key_int(w, "level0_slots", t->s.slots[0]);
    json_key_int(w, "level1_slots", t->s.slots[1]);
    write_histogram(w, "scores", &t->score, t->n);
    write_histogram(w, "steps", &t->stamp, t->n);
    return json_line_print();
}

static void print_heading(const char *text) {
    printf("\n%s\n\n", show_bold(text));
}

/* "  label  |||||||  count  share": the bar is relative to the largest row. */
static void print_bar(const char *label, int width, int columns, uint64_t n, uint64_t most,
                      uint64_t all) {
    show_style style = show_stdout_style();
    const char *bar = show_bar(most > 0 ? (double)n / (double)most : 0, columns);
    /* Blocks take three bytes and one column each, so printf cannot pad them. */
    int pad = columns - (int)(strlen(bar) / 3);
    printf("  %-*s %s%s%s%*s %13s %6.1f %%\n", width, label, style.bar, bar, style.plain, pad, "",
           show_count(n), all > 0 ? 100.0 * (double)n / (double)all : 0);
}

static void print_tiers(const table_info *t) {
    static const char *const names[] = {"device", "host", "store"};
    print_heading("Tiers");
    for (int i = 0; i < EMBED_TIERS; i++) {
        if (i < EMBED_LEVELS && t->s.slots[i] == 0) continue;
        if (i == EMBED_LEVELS && t->s.tier_rows[i] == 0) continue;
        printf("  %-10s %15s rows", names[i], show_count((uint64_t)t->s.tier_rows[i]));
        if (i < EMBED_LEVELS)
            printf("   of %s slots, load %.3f", show_count((uint64_t)t->s.slots[i]),
                   (double)t->s.tier_rows[i] / (double)t->s.slots[i]);
        printf("\n");
    }
}

static void print_histogram(const char *title, const histogram *h, int64_t n) {
    uint64_t most = 0, width = (h->high - h->low) / BINS + 1;
    print_heading(title);
    for (int i = 0; i < BINS; i++)
        if (h->count[i] > most) most = h->count[i];
    for (int i = 0; i < BINS; i++) {
        uint64_t from = h->low + (uint64_t)i * width;
        if (from > h->high || from < h->low) break;
        print_bar(show_printf("from %14" PRIu64, from), 20, TABLE_BAR, h->count[i], most,
                  (uint64_t)n);
    }
}

static void print_table_text(const table_info *t, const char *folder) {
    printf("%s   a snapshot of a dynamic table%s\n\n", show_bold(show_path(folder)),
           t->s.since > 0 ? ", incremental" : "");
    printf("  Rows       %15s   of %d values; optimizer %s, eviction %s\n",
           show_count((uint64_t)t->n), t->s.dim,
           show_text(t->s.optimizer, strlen(t->s.optimizer), 32),
           show_text(t->s.policy, strlen(t->s.policy), 32));
    printf("  Step       %15s", show_count((uint64_t)t->s.step));
    if (t->s.since > 0) printf("   changes since step %s", show_count((uint64_t)t->s.since));
    printf("\n");
    if (t->s.since > 0)
        printf("  Left       %15s   keys since then\n", show_count((uint64_t)t->s.n_gone));
    print_tiers(t);
    if (t->n == 0) return;
    print_histogram(t->is_lfu ? "Scores: how often a row was used" : "Scores", &t->score, t->n);
    print_histogram("Steps at which rows were last written", &t->stamp, t->n);
}

static status info_table(const char *folder, bool is_json) {
    table_info t = {0};
    TRY(look(&t, folder));
    if (is_json) return print_table_json(&t, folder);
    print_table_text(&t, folder);
    return OK;
}

/* hstu info RUN: what was trained, on what, how far, and how good it is. */

static void print_fact(const char *name, const char *value) {
    if (value[0] != '\0') printf("  %-11s %s\n", name, show_text(value, strlen(value), 100));
}

static void print_progress(const run_facts *f) {
    const run_history *h = &f->history;
    double step = h->n > 0 ? h->step[h->n - 1] : 0;
    double epochs = h->n > 0 ? history_last(h->epoch, h->n) : 0;
    printf("  %-11s %s: %s step%s, %.0f epoch%s, %s of training\n", "Progress", f->status,
           show_count((uint64_t)step), step == 1 ? "" : "s", epochs, epochs == 1 ? "" : "s",
           show_duration(f->seconds));
    if (!isfinite(h->best_step)) return;
    printf("  %-11s step %.0f, by %s on validation", "Best", h->best_step,
           history_text(h->done, "best_by")[0] != '\0' ? history_text(h->done, "best_by")
                                                       : "the main metric");
    double value = history_number(h->done, "best_validation");
    if (isfinite(value)) printf(": %.4f", value);
    printf("\n");
}

static void print_metrics(const run_facts *f) {
    const run_history *h = &f->history;
    const char *part = run_facts_part(f);
    if (h->n_metrics == 0) return;
    printf("\n%s on the %s part%s\n\n", show_bold("Metrics"), part,
           strcmp(part, "test") == 0 && isfinite(h->best_step) ? ", with the best weights" : "");
    for (int i = 0; i < h->n_metrics; i++) {
        double value = run_facts_metric(f, h->metric[i]);
        if (isfinite(value)) printf("  %-14s %8.4f\n", h->metric[i], value);
    }
}

static void print_checkpoints(const run_facts *f) {
    print_heading("Checkpoints");
    for (int i = 0; i < f->n_checkpoints; i++) {
        const run_checkpoint *c = &f->checkpoint[i];
        printf("  step %-8" PRId64 " %10s%s%s\n", c->step, show_bytes((double)c->bytes),
               c->is_last ? "  last" : "", c->is_best ? "  best" : "");
    }
}

static void print_run_text(const run_facts *f) {
    const json_value *start = f->history.start;
    const json_value *protocol = start != NULL ? json_member(start, "protocol") : NULL;
    printf("%s\n\n", show_bold(show_text(f->run, strlen(f->run), 100)));
    print_fact("Config", history_text(start, "config"));
    printf("  %-11s %s, %s, %s parameters\n", "Model", history_text(start, "model"),
           history_text(start, "task"), show_rounded(history_number(start, "parameters")));
    print_fact("Data", history_text(start, "data"));
    print_fact("Split",
               protocol != NULL ? history_text(protocol, "split") : history_text(start, "split"));
    print_fact("Device", history_text(start, "device"));
    print_fact("Started", history_text(f->history.first, "time"));
    print_progress(f);
    printf("  %-11s %s on disk\n", "Size", show_bytes((double)f->bytes));
    if (f->history.n_changes > 0)
        printf("  %-11s options were changed by --resume; config.json and report.html list them\n",
               "Changes");
    print_metrics(f);
    print_checkpoints(f);
}

void info_run_members(const run_facts *f, json_writer *w) {
    const run_history *h = &f->history;
    JSON_FIELDS(w, FIELD("run", f->run), FIELD("status", f->status),
                FIELD("step", h->n > 0 ? h->step[h->n - 1] : 0),
                FIELD("epochs", h->n > 0 ? history_last(h->epoch, h->n) : 0),
                FIELD("seconds", f->seconds), FIELD("bytes", f->bytes));
    if (isfinite(h->best_step)) json_key_double(w, "best_step", h->best_step);
    json_key_string(w, "part", run_facts_part(f));
    json_key_object(w, "metrics");
    for (int i = 0; i < h->n_metrics; i++)
        json_key_double(w, h->metric[i], run_facts_metric(f, h->metric[i]));
    json_object_close(w);
    json_key_array(w, "checkpoints");
    for (int i = 0; i < f->n_checkpoints; i++) {
        JSON_OBJECT(w, FIELD("step", f->checkpoint[i].step), FIELD("bytes", f->checkpoint[i].bytes),
                    FIELD("is_last", f->checkpoint[i].is_last),
                    FIELD("is_best", f->checkpoint[i].is_best));
    }
    json_array_close(w);
    if (h->start != NULL) {
        json_key(w, "start");
        json_value_write(w, h->start);
    }
    json_key(w, "config");
    json_value_write(w, f->config.root);
}

static status info_run(const char *run, bool is_json) {
    static run_facts f; /* too large for the stack */
    status st = run_facts_read(&f, run);
    if (st == OK && is_json) info_run_members(&f, json_line_open());
    if (st == OK && is_json) st = json_line_print();
    if (st == OK && !is_json) print_run_text(&f);
    run_facts_fini(&f);
    return st;
}

enum { N_POPULAR = 10, N_CODES = 10, BAR_COLUMNS = 36 };

/* The data set and its statistics while they are shown. */
typedef struct info {
    const char *path;
    const seq_file *data;
    const data_stats *stats;
    const json_value *source; /* the provenance object in the file; NULL if there is none */
    uint32_t popular[N_POPULAR];
    int n_popular;
} info;

enum { N_BITS = 8 };

/* Events with a bit of the mask set. */
static uint64_t count_bit(const data_stats *stats, int bit) {
    uint64_t n = 0;
    for (uint32_t a = 0; a < ACTION_UNKNOWN; a++)
        if (a >> bit & 1) n += stats->action_count[a];
    return n;
}

/* Items that have a value of a feature. */
static uint64_t count_covered(const seq_file *data, const item_content *c) {
    uint64_t n = 0;
    for (uint64_t i = 1; i <= data->n_items; i++)
        n += c->offsets[i + 1] > c->offsets[i];
    return n;
}

/* Events without an action; data without any have none that could be unknown. */
static uint64_t count_unknown(const info *in) {
    return in->data->actions != ACTION_NONE ? in->stats->action_count[ACTION_UNKNOWN] : 0;
}

/* JSON out. */

static void write_actions(const info *in, json_writer *w) {
    json_key_object(w, "actions");
    json_key_string(w, "kind", action_kind_name(in->data->actions));
    json_key_object(w, "counts");
    for (int bit = 0; bit < N_BITS && in->data->actions == ACTION_BITS; bit++)
        json_key_int(w, seq_signal_name(bit), (int64_t)count_bit(in->stats, bit));
    for (uint32_t a = 0; a < ACTION_UNKNOWN && in->data->actions != ACTION_BITS; a++) {
        char key[SEQ_TASK_BYTES];
        if (in->stats->action_count[a] == 0) continue;
        if (!seq_action_name(in->data, (uint16_t)a, key))
            snprintf(key, sizeof key, "%g", seq_rating(in->data, (uint16_t)a));
        json_key_int(w, key, (int64_t)in->stats->action_count[a]);
    }
    if (count_unknown(in) > 0) json_key_int(w, "unknown", (int64_t)count_unknown(in));
    json_object_close(w);
    json_object_close(w);
}

static void write_lengths(const info *in, json_writer *w) {
    json_key_array(w, "length_histogram");
    for (int i = 0; i < in->stats->n_bins; i++) {
        const length_bin *bin = &in->stats->bins[i];
        JSON_OBJECT(w, FIELD("first", bin->first), FIELD("last", bin->last),
                    FIELD("users", bin->n_users));
    }
    json_array_close(w);
}

static status write_popular(const info *in, json_writer *w) {
    buf name = {0};
    status st = OK;
    json_key_array(w, "popular");
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
    JSON_FIELDS(w, FIELD("path", in->path), FIELD("users", in->data->n_users),
                FIELD("items", s->n_seen_items), FIELD("catalogue", in->data->n_items),
                FIELD("events", in->data->n_events), FIELD("min_len", s->min_len),
                FIELD("max_len", s->max_len), FIELD("mean_len", s->mean_len),
                FIELD("median_len", s->median_len), FIELD("density", s->density),
                FIELD("first_time", s->first_time), FIELD("last_time", s->last_time),
                FIELD("time_per_second", in->data->time_per_second));
    write_actions(in, w);
    json_key_object(w, "context");
    for (int f = 0; f < in->data->n_context; f++)
        json_key_int(w, in->data->context[f].name, (int64_t)in->data->context[f].values.n - 1);
    json_object_close(w);
    json_key_object(w, "item_features");
    for (int f = 0; f < in->data->n_content; f++) {
        const item_content *c = &in->data->content[f];
        json_key(w, c->name);
        JSON_OBJECT(w, FIELD("is_number", (bool)(c->number != NULL)),
                    FIELD("values", c->values.n - 1), FIELD("items", count_covered(in->data, c)));
    }
    json_object_close(w);
    json_key_int(w, "item_vector_dim", in->data->item_vector_dim);
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
    json_writer *w = json_line_open();
    status st = write_json(in, w);
    if (st != OK) w->state = st; /* json_line_print returns it */
    return json_line_print();
}

/* Text out. */

static void print_row(const char *label, uint64_t n, uint64_t most, uint64_t total) {
    print_bar(label, 16, BAR_COLUMNS, n, most, total);
}

static void print_source(const info *in) {
    const json_value *name = in->source != NULL ? json_member(in->source, "name") : NULL;
    printf("%s", show_bold(show_path(in->path)));
    if (name != NULL && name->type == JSON_STRING)
        printf("   %s", show_text(name->string, name->string_bytes, 40));
    printf("\n\n");
}

static void print_counts(const info *in) {
    const data_stats *s = in->stats;
    int64_t per_second = in->data->time_per_second;
    int64_t first = s->first_time / per_second, last = s->last_time / per_second;
    printf("  Users      %15s\n", show_count(in->data->n_users));
    printf("  Items      %15s   seen in events\n", show_count(s->n_seen_items));
    printf("  Catalogue  %15s   all known items\n", show_count(in->data->n_items));
    printf("  Events     %15s   density %.3g %%\n", show_count(in->data->n_events),
           100 * s->density);
    printf("  Length     %15.1f   mean; median %g, shortest %s, longest %s\n", s->mean_len,
           s->median_len, show_count(s->min_len), show_count(s->max_len));
    /* Unsigned: the span of hostile times may be more than int64 holds. */
    printf("  Time       %15s   to %s, %s days\n", show_date(first), show_date(last),
           show_count(((uint64_t)last - (uint64_t)first) / 86400));
}

/* What the generator recorded in the file, if it did. */
static void print_reachable(const info *in) {
    const json_value *synth = in->source != NULL ? json_member(in->source, "synth") : NULL;
    double best, ndcg, popularity;
    if (synth == NULL || synth->type != JSON_OBJECT ||
        json_member_double(synth, "best_hr10", &best) != OK ||
        json_member_double(synth, "best_ndcg10", &ndcg) != OK ||
        json_member_double(synth, "popularity_hr10", &popularity) != OK)
        return;
    printf("  HR@10      %15.3f   at best (NDCG@10 %.3f); popularity reaches %.3f\n", best, ndcg,
           popularity);
}

static void print_lengths(const info *in) {
    const data_stats *s = in->stats;
    uint64_t most = 0;
    print_heading("Events of a user");
    for (int i = 0; i < s->n_bins; i++)
        if (s->bins[i].n_users > most) most = s->bins[i].n_users;
    for (int i = 0; i < s->n_bins; i++) {
        const length_bin *bin = &s->bins[i];
        const char *label = show_printf("%6" PRIu64 " - %5" PRIu64, bin->first, bin->last);
        if (bin->first == bin->last) label = show_printf("%14" PRIu64, bin->first);
        print_row(label, bin->n_users, most, in->data->n_users);
    }
}

static void print_ratings(const info *in, uint32_t n) {
    const uint64_t *count = in->stats->action_count;
    uint64_t most = 0;
    print_heading("Ratings");
    for (uint32_t a = 0; a < n; a++)
        if (count[a] > most) most = count[a];
    for (uint32_t a = 0; a < n; a++) {
        double rating = seq_rating(in->data, (uint16_t)a);
        print_row(show_printf("%8g star%s", rating, rating == 1 ? "" : "s"), count[a], most,
                  in->data->n_events);
    }
}

static void print_bits(const info *in) {
    uint64_t count[N_BITS], most = 0;
    for (int bit = 0; bit < N_BITS; bit++) {
        count[bit] = count_bit(in->stats, bit);
        if (count[bit] > most) most = count[bit];
    }
    for (int bit = 0; bit < N_BITS; bit++)
        print_row(seq_signal_name(bit), count[bit], most, in->data->n_events);
}

/* The most frequent codes, most first. */
static void print_codes(const info *in) {
    const uint64_t *count = in->stats->action_count;
    uint64_t most = 0, below = UINT64_MAX;
    uint32_t last = 0;
    for (int row = 0; row < N_CODES; row++) {
        uint32_t best = STATS_ACTIONS;
        for (uint32_t a = 0; a < ACTION_UNKNOWN; a++) {
            bool is_left = count[a] < below || (count[a] == below && a > last);
            if (count[a] > 0 && is_left && (best == STATS_ACTIONS || count[a] > count[best]))
                best = a;
        }
        if (best == STATS_ACTIONS) return;
        char name[SEQ_TASK_BYTES] = "";
        bool has_name = seq_action_name(in->data, (uint16_t)best, name);
        if (row == 0) most = count[best];
        print_row(has_name ? show_printf("%5" PRIu32 " %s", best, name)
                           : show_printf("%14" PRIu32, best),
                  count[best], most, in->data->n_events);
        below = count[best], last = best;
    }
}

static void print_kind(const info *in) {
    switch (in->data->actions) {
    case ACTION_NONE:
        return;
    case ACTION_STARS:
        print_ratings(in, 5);
        return;
    case ACTION_HALF_STARS:
        print_ratings(in, 10);
        return;
    case ACTION_BITS:
        print_heading("Signals (an event may have several)");
        print_bits(in);
        return;
    case ACTION_CODE:
        print_heading("Action codes, most frequent first");
        print_codes(in);
    }
}

static void print_actions(const info *in) {
    uint64_t n = count_unknown(in);
    print_kind(in);
    if (n > 0) print_row("       unknown", n, in->data->n_events, in->data->n_events);
}

/* A line: how many values a feature has, and the first of them. */
static void print_feature(const char *name, const text_column *t, int most) {
    uint64_t n_values = t->n > 0 ? t->n - 1 : 0;
    const char *text = show_text(name, strlen(name), 16);
    printf("  %s%*s %9s %s  ", text, 16 - show_columns(text), "", show_count(n_values),
           n_values == 1 ? "value " : "values");
    size_t used = 0;
    for (uint64_t i = 1; i <= n_values; i++) {
        const char *value =
            show_text(t->bytes + t->offsets[i], t->offsets[i + 1] - t->offsets[i], 14);
        used += strlen(value) + 2;
        if (used > (size_t)most) {
            printf("%s", i > 1 ? ", ..." : "...");
            break;
        }
        printf("%s%s", i > 1 ? ", " : "", value);
    }
    printf("\n");
}

static void print_context(const info *in) {
    const seq_file *data = in->data;
    if (data->n_context > 0) print_heading("Contextual features of users");
    for (int f = 0; f < data->n_context; f++)
        print_feature(data->context[f].name, &data->context[f].values, 40);
    if (data->n_content > 0 || data->item_vector != NULL) print_heading("Features of items");
    for (int f = 0; f < data->n_content; f++) {
        uint64_t n = count_covered(data, &data->content[f]);
        printf("  %3.0f %% ", data->n_items > 0 ? 100.0 * (double)n / (double)data->n_items : 0.0);
        print_feature(data->content[f].name, &data->content[f].values, 32);
    }
    if (data->item_vector != NULL)
        printf("  vectors of %" PRId32 " numbers\n", data->item_vector_dim);
}

static status print_popular(const info *in) {
    buf title = {0};
    status st = OK;
    print_heading("Most popular items");
    for (int i = 0; i < in->n_popular && st == OK; i++) {
        st = seq_item_title(in->data, in->popular[i], &title);
        if (st == OK)
            printf("  %2d %13s   %s\n", i + 1, show_count(in->stats->item_count[in->popular[i]]),
                   show_text(buf_str(&title), title.n_bytes, 58));
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

static status show(const char *path, const seq_file *data, bool is_json) {
    info in = {.path = path, .data = data};
    data_stats stats;
    arena a;
    const json_value *meta = NULL;
    arena_init(&a, 16 << 10);
    status st = data_stats_init(&stats, data);
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
    const char *inside = show_join(path, "data.seq");
    struct stat found;
    if (stat(path, &found) != 0) return fail_errno("%s: cannot be opened", path);
    if (!folder_exists(path)) return OK;
    if (stat(inside, &found) == 0) return OK;
    if (errno != ENOENT) return fail_errno("%s: cannot be opened", inside);
    if (folder_has(path, "engine.json"))
        return fail(ERR_USAGE,
                    "%s: an engine folder; 'hstu serve' serves it, 'hstu info' of the run that it "
                    "was built from shows more",
                    path);
    if (folder_has(path, "manifest.json"))
        return fail(ERR_USAGE,
                    "%s: a checkpoint; name its run, or a dynamic table of it (%s/table-...), or "
                    "evaluate it with 'hstu eval'",
                    path, path);
    if (has_tables(path))
        return fail(ERR_USAGE, "%s: a folder of dynamic tables; name one of them (%s/table-...)",
                    path, path);
    return fail(
        ERR_FORMAT,
        "%s: contains no data set (no data.seq); create one with 'hstu prep' or 'hstu synth'",
        path);
}

status cmd_info(int argc, char **argv) {
    bool is_json = false;
    const arg_option options[] = {
        OPT_FLAG("--json", &is_json, "Print one JSON object on one line."),
        {0},
    };
    const arg_spec spec = {
        .usage = "hstu info DIR|RUN|FILE [--json]",
        .summary = "Show what is in a data set (users, items, events, history lengths, ratings or "
                   "signals, most popular items), a run (config, data, split, progress, metrics, "
                   "checkpoints), a snapshot of a dynamic table (load, tiers, scores), or a .pt or "
                   ".safetensors file (its tensors).",
        .options = options,
        .min_positional = 1};
    const char *path;
    pool *p;
    seq_file *data;
    ARGS_PARSE(&spec, &path, NULL);
    if (embed_is_snapshot(path)) return info_table(path, is_json);
    if (folder_has(path, "log.jsonl")) return info_run(path, is_json);
    if (info_is_tensors(path)) return info_tensors(path, is_json);
    TRY(check_path(path));
    TRY(pool_create_default(&p));
    status st = seq_file_open(&data, path, p);
    if (st == OK) st = show(path, data, is_json);
    seq_file_close(data);
    pool_destroy(p);
    return st;
}
