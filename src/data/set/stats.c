#include "data/set/stats.h"

#include "base/sort.h"

static void count_events(data_stats *out, const seq_file *s) {
    if (s->n_events > 0) out->first_time = out->last_time = s->time[0];
    for (uint64_t i = 0; i < s->n_events; i++) {
        out->item_count[s->item[i]]++;
        out->action_count[s->action[i]]++;
        if (s->time[i] < out->first_time) out->first_time = s->time[i];
        if (s->time[i] > out->last_time) out->last_time = s->time[i];
    }
    for (uint64_t item = 1; item <= s->n_items; item++)
        out->n_seen_items += out->item_count[item] > 0;
    if (s->n_events > 0)
        out->density = (double)s->n_events / ((double)s->n_users * (double)out->n_seen_items);
}

/* Bins begin at round numbers, `n` of them to a power of ten. */
static int make_bins(length_bin *bins, uint64_t min_len, uint64_t max_len, const uint64_t *round,
                     int n) {
    int n_bins = 0;
    uint64_t first = 0;
    for (uint64_t power = 1; first <= max_len; power *= 10) {
        for (int i = 0; i < n && first <= max_len; i++) {
            uint64_t next = power == 1 && round[i] % 10 != 0 ? 0 : round[i] * power / 10;
            if (next <= first) continue;
            if (next > min_len && n_bins < STATS_MAX_BINS)
                bins[n_bins++] = (length_bin){.first = first, .last = next - 1};
            first = next;
        }
        if (power > UINT64_MAX / 1000) break;
    }
    return n_bins;
}

/* Few enough bins to be seen at a glance: finer steps where lengths span little. */
static void choose_bins(data_stats *out) {
    static const uint64_t fine[] = {10, 15, 20, 30, 50, 70}, coarse[] = {10, 20, 50};
    out->n_bins = make_bins(out->bins, out->min_len, out->max_len, fine, 6);
    if (out->n_bins > 16) out->n_bins = make_bins(out->bins, out->min_len, out->max_len, coarse, 3);
}

static status describe_lengths(data_stats *out, const seq_file *s) {
    uint64_t n = s->n_users, *length;
    if (n == 0) return OK;
    TRY(MEM_NEW(&length, n));
    for (uint64_t u = 0; u < n; u++)
        length[u] = seq_length(s, u);
    sort_uint64(length, n);
    out->min_len = length[0];
    out->max_len = length[n - 1];
    out->mean_len = (double)s->n_events / (double)n;
    out->median_len = ((double)length[(n - 1) / 2] + (double)length[n / 2]) / 2;
    choose_bins(out);
    uint64_t u = 0;
    for (length_bin *b = out->bins; b < out->bins + out->n_bins; b++)
        for (; u < n && length[u] <= b->last; u++)
            b->n_users++;
    mem_free(length);
    return OK;
}

status data_stats_init(data_stats *out, const seq_file *s) {
    *out = (data_stats){0};
    status st = MEM_NEW(&out->action_count, STATS_ACTIONS);
    if (st == OK) st = MEM_NEW(&out->item_count, s->n_items + 1);
    if (st == OK) count_events(out, s);
    if (st == OK) st = describe_lengths(out, s);
    if (st != OK) data_stats_fini(out);
    return st;
}

void data_stats_fini(data_stats *stats) {
    MEM_FREE(stats->action_count, stats->item_count);
    *stats = (data_stats){0};
}

void data_stats_popular(const data_stats *stats, const seq_file *s, uint32_t *items, int n_wanted,
                        int *out_n) {
    int n = 0;
    for (uint32_t item = 1; item <= s->n_items; item++) {
        uint64_t count = stats->item_count[item];
        if (count == 0 || n_wanted == 0) continue;
        if (n == n_wanted && count <= stats->item_count[items[n - 1]]) continue;
        int i = n < n_wanted ? n++ : n - 1;
        for (; i > 0 && stats->item_count[items[i - 1]] < count; i--)
            items[i] = items[i - 1];
        items[i] = item;
    }
    *out_n = n;
}
