/* find, erase, scan, stamp and carry (ops/table.h).
 *
 * find is parallel over keys, and processes each chunk as a pipeline over groups of keys: it hashes
 * group i and prefetches its digests, compares the digests of group i - 1 and prefetches the
 * entries that match, and compares the keys of group i - 2.  The limit is how many cache lines can
 * be in flight. */
#include <string.h>

#include "cpu/table.h"

enum { FIND_CHUNK = 4096, GROUP = 32 };

typedef struct find_job {
    const table_level *l;
    const table_find_args *a;
    int64_t n;
} find_job;

/* A key in the pipeline: its bucket, and a bit for each digest that matches. */
typedef struct probe {
    int64_t bucket;
    uint64_t mask;
    uint8_t digest;
} probe;

static inline void begin_probe(const table_level *l, uint64_t key, probe *p) {
    uint64_t h = table_hash(key);
    p->bucket = table_bucket(h, l->n_buckets);
    p->digest = table_digest(h);
    __builtin_prefetch(table_digests(l, p->bucket), 0, 3);
}

static inline void match_probe(const table_level *l, probe *p) {
    p->mask = table_match(table_digests(l, p->bucket), p->digest);
    if (p->mask != 0)
        __builtin_prefetch(table_entries(l, p->bucket) + __builtin_ctzll(p->mask), 0, 3);
}

/* Two chunks write the same entry only for SCORE_SET with one score, so they write the same
 * bytes. */
static void touch(const find_job *job, int64_t i, int64_t bucket, int place) {
    const table_find_args *a = job->a;
    uint64_t *score = &table_entries(job->l, bucket)[place].score;
    uint64_t w = a->scores != NULL ? a->scores[i] : a->score;
    if (a->rule != SCORE_KEEP)
        __atomic_store_n(score, table_touched(a->rule, __atomic_load_n(score, __ATOMIC_RELAXED), w),
                         __ATOMIC_RELAXED);
    if (a->out_scores != NULL) a->out_scores[i] = __atomic_load_n(score, __ATOMIC_RELAXED);
    if (a->out_stamps != NULL) a->out_stamps[i] = table_stamps(job->l, bucket)[place];
}

static inline void end_probe(const find_job *job, int64_t i, const probe *p) {
    const table_find_args *a = job->a;
    int place = table_among(table_entries(job->l, p->bucket), p->mask, a->keys[i]);
    a->slot[i] = place < 0 ? -1 : p->bucket * TABLE_SLOTS + place;
    if (place >= 0) {
        touch(job, i, p->bucket, place);
        return;
    }
    if (a->out_scores != NULL) a->out_scores[i] = 0;
    if (a->out_stamps != NULL) a->out_stamps[i] = 0;
}

/* Three short loops over groups of keys, not one over keys: a prefetch occupies the core's window
 * until its address is translated, and with the work of three keys between two prefetches few would
 * fit into the window. */
static status find_chunk(void *ctx, int64_t chunk, int worker) {
    const find_job *job = ctx;
    const uint64_t *keys = job->a->keys;
    cpu_range part = cpu_chunk(chunk, FIND_CHUNK, job->n);
    probe ring[3][GROUP];
    (void)worker;
    for (int64_t at = part.first, k = 0; at < part.end + 2 * GROUP; at += GROUP, k++) {
        for (int64_t i = at; i < at + GROUP && i < part.end; i++)
            begin_probe(job->l, keys[i], &ring[k % 3][i - at]);
        int64_t matched = at - GROUP, ended = at - 2 * GROUP;
        for (int64_t i = matched; i >= part.first && i < at && i < part.end; i++)
            match_probe(job->l, &ring[(k + 2) % 3][i - matched]);
        for (int64_t i = ended; i >= part.first && i < matched && i < part.end; i++)
            end_probe(job, i, &ring[(k + 1) % 3][i - ended]);
    }
    return OK;
}

status cpu_table_find(backend *be, const table_level *l, const table_find_args *a) {
    find_job job = {l, a, table_n_there(a->n, a->n_real)};
    return pool_run(be->workers, cpu_n_chunks(job.n, FIND_CHUNK), find_chunk, &job);
}

/* Erasing is rare: one thread. */
status cpu_table_erase(backend *be, const table_level *l, const table_erase_args *a) {
    int64_t n = table_n_there(a->n, a->n_real), n_erased = 0;
    (void)be;
    for (int64_t i = 0; i < n; i++) {
        probe p;
        begin_probe(l, a->keys[i], &p);
        match_probe(l, &p);
        int place = table_among(table_entries(l, p.bucket), p.mask, a->keys[i]);
        if (a->slot != NULL) a->slot[i] = place < 0 ? -1 : p.bucket * TABLE_SLOTS + place;
        if (place < 0) continue;
        table_digests(l, p.bucket)[place] = 0;
        n_erased++;
    }
    if (a->n_erased != NULL) *a->n_erased = n_erased;
    return OK;
}

static inline bool is_wanted(const table_scan_args *a, uint64_t score, uint32_t stamp) {
    stamp &= ~TABLE_CLEAN;
    return score >= a->min_score && score <= a->max_score && stamp >= a->min_stamp &&
           stamp <= a->max_stamp;
}

status cpu_table_scan(backend *be, const table_level *l, const table_scan_args *a) {
    int64_t n = 0;
    (void)be;
    for (int64_t b = a->first; b < a->first + a->n_buckets; b++) {
        const table_entry *entries = table_entries(l, b);
        const uint32_t *stamps = table_stamps(l, b);
        uint64_t used = ~table_match(table_digests(l, b), 0);
        for (; used != 0; used &= used - 1) {
            int place = __builtin_ctzll(used);
            if (!is_wanted(a, entries[place].score, stamps[place])) continue;
            if (a->keys != NULL) a->keys[n] = entries[place].key;
            if (a->scores != NULL) a->scores[n] = entries[place].score;
            if (a->stamps != NULL) a->stamps[n] = stamps[place];
            if (a->slot != NULL) a->slot[n] = b * TABLE_SLOTS + place;
            n++;
        }
    }
    *a->n = n;
    return OK;
}

status cpu_table_stamp(backend *be, const table_level *l, const table_stamp_args *a) {
    int64_t n = table_n_there(a->n, a->n_real);
    (void)be;
    for (int64_t i = 0; i < n; i++)
        if (a->slot[i] >= 0)
            table_stamps(l, a->slot[i] / TABLE_SLOTS)[a->slot[i] % TABLE_SLOTS] =
                a->stamps != NULL ? a->stamps[i] : a->stamp;
    return OK;
}

status cpu_table_carry(backend *be, const table_carry_args *a) {
    int64_t n = table_n_there(a->n, a->n_real);
    (void)be;
    for (int64_t i = 0; i < n; i++) {
        uint64_t w = a->given != NULL ? a->given[i] : a->score;
        a->is_below[i] = a->slot[i] >= 0;
        a->scores[i] = a->is_below[i] ? table_touched(a->rule, a->scores[i], w) : w;
        if (!a->is_below[i]) a->stamps[i] = a->stamp;
    }
    return OK;
}
