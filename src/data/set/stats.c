#include "data/set/stats.h"

enum { CHUNK_EVENTS = 1 << 20, CHUNK_USERS = 1 << 16 };

/* What a worker has counted.  Sums, minima and maxima of integers do not depend on the order, so
 * each worker keeps one set of counts for all its chunks.  Only the counts of items are shared, by
 * atomic additions: one set per thread would take too much memory with a large catalogue. */
typedef struct counts {
    uint64_t *action; /* (STATS_ACTIONS) */
    int64_t first_time, last_time;
    uint64_t min_len, max_len;
    uint64_t n_shorter; /* users of length <= limit, in count_shorter */
    uint64_t bin[STATS_MAX_BINS];
} counts;

typedef struct stats_job {
    const seq_file *s;
    data_stats *out;
    pool *p;
    int n_workers;
    counts *worker; /* (n_workers) */
    uint64_t limit;
} stats_job;

static int64_t n_chunks(uint64_t n, uint64_t chunk) {
    return (int64_t)((n + chunk - 1) / chunk);
}

static uint64_t min_u64(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

static status count_events(void *ctx, int64_t chunk, int worker) {
    stats_job *job = ctx;
    const seq_file *s = job->s;
    counts *c = &job->worker[worker];
    uint64_t end = min_u64(((uint64_t)chunk + 1) * CHUNK_EVENTS, s->n_events);
    for (uint64_t i = (uint64_t)chunk * CHUNK_EVENTS; i < end; i++) {
        __atomic_fetch_add(&job->out->item_count[s->item[i]], 1, __ATOMIC_RELAXED);
        c->action[s->action[i]]++;
        if (s->time[i] < c->first_time) c->first_time = s->time[i];
        if (s->time[i] > c->last_time) c->last_time = s->time[i];
    }
    return OK;
}

static status measure_lengths(void *ctx, int64_t chunk, int worker) {
    stats_job *job = ctx;
    counts *c = &job->worker[worker];
    uint64_t end = min_u64(((uint64_t)chunk + 1) * CHUNK_USERS, job->s->n_users);
    for (uint64_t u = (uint64_t)chunk * CHUNK_USERS; u < end; u++) {
        uint64_t length = seq_length(job->s, u);
        if (length < c->min_len) c->min_len = length;
        if (length > c->max_len) c->max_len = length;
    }
    return OK;
}

static status count_shorter(void *ctx, int64_t chunk, int worker) {
    stats_job *job = ctx;
    uint64_t end = min_u64(((uint64_t)chunk + 1) * CHUNK_USERS, job->s->n_users);
    for (uint64_t u = (uint64_t)chunk * CHUNK_USERS; u < end; u++)
        job->worker[worker].n_shorter += seq_length(job->s, u) <= job->limit;
    return OK;
}

/* The k-th shortest length, by bisection on the value: a few dozen passes over the offsets instead
 * of a sorted copy. */
static status kth_length(stats_job *job, uint64_t k, uint64_t *out) {
    uint64_t low = job->out->min_len, high = job->out->max_len;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2, n = 0;
        job->limit = middle;
        for (int i = 0; i < job->n_workers; i++)
            job->worker[i].n_shorter = 0;
        TRY(pool_run(job->p, n_chunks(job->s->n_users, CHUNK_USERS), count_shorter, job));
        for (int i = 0; i < job->n_workers; i++)
            n += job->worker[i].n_shorter;
        if (n > k)
            high = middle;
        else
            low = middle + 1;
    }
    *out = low;
    return OK;
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

static status count_bins(void *ctx, int64_t chunk, int worker) {
    stats_job *job = ctx;
    const data_stats *out = job->out;
    uint64_t end = min_u64(((uint64_t)chunk + 1) * CHUNK_USERS, job->s->n_users);
    for (uint64_t u = (uint64_t)chunk * CHUNK_USERS; u < end; u++) {
        uint64_t length = seq_length(job->s, u);
        int bin = 0;
        while (bin < out->n_bins - 1 && length > out->bins[bin].last)
            bin++;
        job->worker[worker].bin[bin]++;
    }
    return OK;
}

static status describe_lengths(stats_job *job) {
    data_stats *out = job->out;
    uint64_t n = job->s->n_users, low, high;
    if (n == 0) return OK;
    TRY(pool_run(job->p, n_chunks(n, CHUNK_USERS), measure_lengths, job));
    out->min_len = UINT64_MAX;
    for (int i = 0; i < job->n_workers; i++) {
        out->min_len = min_u64(out->min_len, job->worker[i].min_len);
        if (job->worker[i].max_len > out->max_len) out->max_len = job->worker[i].max_len;
    }
    out->mean_len = (double)job->s->n_events / (double)n;
    TRY(kth_length(job, (n - 1) / 2, &low));
    TRY(kth_length(job, n / 2, &high));
    out->median_len = ((double)low + (double)high) / 2;
    choose_bins(out);
    TRY(pool_run(job->p, n_chunks(n, CHUNK_USERS), count_bins, job));
    for (int i = 0; i < job->n_workers; i++)
        for (int bin = 0; bin < out->n_bins; bin++)
            out->bins[bin].n_users += job->worker[i].bin[bin];
    return OK;
}

static status describe_events(stats_job *job) {
    data_stats *out = job->out;
    const seq_file *s = job->s;
    TRY(pool_run(job->p, n_chunks(s->n_events, CHUNK_EVENTS), count_events, job));
    out->first_time = INT64_MAX;
    out->last_time = INT64_MIN;
    for (int i = 0; i < job->n_workers; i++) {
        const counts *c = &job->worker[i];
        if (c->first_time < out->first_time) out->first_time = c->first_time;
        if (c->last_time > out->last_time) out->last_time = c->last_time;
        for (uint32_t a = 0; a < STATS_ACTIONS; a++)
            out->action_count[a] += c->action[a];
    }
    if (s->n_events == 0) out->first_time = out->last_time = 0;
    for (uint64_t item = 1; item <= s->n_items; item++)
        out->n_seen_items += out->item_count[item] > 0;
    if (s->n_events > 0)
        out->density = (double)s->n_events / ((double)s->n_users * (double)out->n_seen_items);
    return OK;
}

static status allocate(stats_job *job) {
    TRY(MEM_NEW(&job->out->action_count, STATS_ACTIONS));
    TRY(MEM_NEW(&job->out->item_count, job->s->n_items + 1));
    TRY(MEM_NEW(&job->worker, (size_t)job->n_workers));
    for (int i = 0; i < job->n_workers; i++) {
        counts *c = &job->worker[i];
        *c = (counts){.first_time = INT64_MAX, .last_time = INT64_MIN, .min_len = UINT64_MAX};
        TRY(MEM_NEW(&c->action, STATS_ACTIONS));
    }
    return OK;
}

status data_stats_init(data_stats *out, const seq_file *s, pool *p) {
    *out = (data_stats){0};
    stats_job job = {.s = s, .out = out, .p = p, .n_workers = p != NULL ? pool_n_threads(p) : 1};
    status st = allocate(&job);
    if (st == OK) st = describe_events(&job);
    if (st == OK) st = describe_lengths(&job);
    for (int i = 0; job.worker != NULL && i < job.n_workers; i++)
        mem_free(job.worker[i].action);
    mem_free(job.worker);
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
