/* hstu info FOLDER: how full a dynamic table is, where its rows are, their scores and ages. */
#include "cli/data/info_table.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "cli/json_line.h"
#include "cli/show.h"
#include "embed/snapshot.h"

enum { BINS = 10, BAR_COLUMNS = 30 };

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
    json_key(w, key);
    json_array_open(w);
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

static status print_json(const table_info *t, const char *folder) {
    static const char *const tiers[] = {"level0", "level1", "store"};
    json_line line;
    json_writer *w = json_line_open(&line);
    json_key_string(w, "table", folder);
    json_key_int(w, "rows", t->n);
    json_key_int(w, "gone", t->s.n_gone);
    json_key_int(w, "step", t->s.step);
    json_key_int(w, "since", t->s.since);
    json_key_int(w, "dim", t->s.dim);
    json_key_string(w, "optimizer", t->s.optimizer);
    json_key_string(w, "policy", t->s.policy);
    json_key_int(w, "ranks", t->s.n_ranks);
    json_key(w, "tiers");
    json_object_open(w);
    for (int i = 0; i < EMBED_TIERS; i++)
        json_key_int(w, tiers[i], t->s.tier_rows[i]);
    json_object_close(w);
    json_key_int(w, "level0_slots", t->s.slots[0]);
    json_key_int(w, "level1_slots", t->s.slots[1]);
    write_histogram(w, "scores", &t->score, t->n);
    write_histogram(w, "steps", &t->stamp, t->n);
    return json_line_print(&line);
}

static void print_bar(const char *label, uint64_t n, uint64_t most, uint64_t all) {
    char bar[SHOW_BYTES], count[SHOW_BYTES];
    show_style style = show_stdout_style();
    show_bar(bar, most > 0 ? (double)n / (double)most : 0, BAR_COLUMNS);
    /* Blocks take three bytes and one column each, so printf cannot pad them. */
    int pad = BAR_COLUMNS - (int)(strlen(bar) / 3);
    printf("  %-20s %s%s%s%*s %13s %6.1f %%\n", label, style.bar, bar, style.plain, pad, "",
           show_count(count, n), all > 0 ? 100.0 * (double)n / (double)all : 0);
}

static void print_tiers(const table_info *t) {
    static const char *const names[] = {"device", "host", "store"};
    show_style style = show_stdout_style();
    char rows[SHOW_BYTES], slots[SHOW_BYTES];
    printf("\n%sTiers%s\n\n", style.bold, style.plain);
    for (int i = 0; i < EMBED_TIERS; i++) {
        if (i < EMBED_LEVELS && t->s.slots[i] == 0) continue;
        if (i == EMBED_LEVELS && t->s.tier_rows[i] == 0) continue;
        printf("  %-10s %15s rows", names[i], show_count(rows, (uint64_t)t->s.tier_rows[i]));
        if (i < EMBED_LEVELS)
            printf("   of %s slots, load %.3f", show_count(slots, (uint64_t)t->s.slots[i]),
                   (double)t->s.tier_rows[i] / (double)t->s.slots[i]);
        printf("\n");
    }
}

static void print_histogram(const char *title, const histogram *h, int64_t n) {
    show_style style = show_stdout_style();
    uint64_t most = 0, width = (h->high - h->low) / BINS + 1;
    printf("\n%s%s%s\n\n", style.bold, title, style.plain);
    for (int i = 0; i < BINS; i++)
        if (h->count[i] > most) most = h->count[i];
    for (int i = 0; i < BINS; i++) {
        char label[32];
        uint64_t from = h->low + (uint64_t)i * width;
        if (from > h->high || from < h->low) break;
        snprintf(label, sizeof label, "from %14" PRIu64, from);
        print_bar(label, h->count[i], most, (uint64_t)n);
    }
}

static void print_text(const table_info *t, const char *folder) {
    show_style style = show_stdout_style();
    char a[SHOW_BYTES], optimizer[SHOW_BYTES], policy[SHOW_BYTES], path[SHOW_PATH_BYTES];
    printf("%s%s%s   a snapshot of a dynamic table%s\n\n", style.bold, show_path(path, folder),
           style.plain, t->s.since > 0 ? ", incremental" : "");
    printf("  Rows       %15s   of %d values; optimizer %s, eviction %s\n",
           show_count(a, (uint64_t)t->n), t->s.dim,
           show_text(optimizer, t->s.optimizer, strlen(t->s.optimizer), 32),
           show_text(policy, t->s.policy, strlen(t->s.policy), 32));
    printf("  Step       %15s", show_count(a, (uint64_t)t->s.step));
    if (t->s.since > 0) printf("   changes since step %s", show_count(a, (uint64_t)t->s.since));
    printf("\n  Written by %15s   rank%s\n", show_count(a, (uint64_t)t->s.n_ranks),
           t->s.n_ranks == 1 ? "" : "s");
    if (t->s.since > 0)
        printf("  Left       %15s   keys since then\n", show_count(a, (uint64_t)t->s.n_gone));
    print_tiers(t);
    if (t->n == 0) return;
    print_histogram(t->is_lfu ? "Scores: how often a row was used" : "Scores", &t->score, t->n);
    print_histogram("Steps at which rows were last written", &t->stamp, t->n);
}

status info_table(const char *folder, bool is_json) {
    table_info t = {0};
    TRY(look(&t, folder));
    if (is_json) return print_json(&t, folder);
    print_text(&t, folder);
    return OK;
}
