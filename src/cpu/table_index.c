/* The index of a level (ops/table.h): find, erase, scan, stamp and carry; memory; unique.
 *
 * find is parallel over keys, and processes each chunk as a pipeline over groups of keys: it hashes
 * group i and prefetches its digests, compares the digests of group i - 1 and prefetches the
 * entries that match, and compares the keys of group i - 2.  The limit is how many cache lines can
 * be in flight. */
#include <sys/mman.h>

#include "cpu/table.h"

enum { FIND_CHUNK = 4096, GROUP = 32 };

typedef struct find_job {
    const table_level *l;
    const table_find_args *a;
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
static status find_chunk(const cpu_rows *w) {
    const find_job *job = w->ctx;
    const uint64_t *keys = job->a->keys;
    probe ring[3][GROUP];
    for (int64_t at = w->first, k = 0; at < w->end + 2 * GROUP; at += GROUP, k++) {
        for (int64_t i = at; i < at + GROUP && i < w->end; i++)
            begin_probe(job->l, keys[i], &ring[k % 3][i - at]);
        int64_t matched = at - GROUP, ended = at - 2 * GROUP;
        for (int64_t i = matched; i >= w->first && i < at && i < w->end; i++)
            match_probe(job->l, &ring[(k + 2) % 3][i - matched]);
        for (int64_t i = ended; i >= w->first && i < matched && i < w->end; i++)
            end_probe(job, i, &ring[(k + 1) % 3][i - ended]);
    }
    return OK;
}

status cpu_table_find(backend *be, const table_level *l, const table_find_args *a) {
    find_job job = {l, a};
    return cpu_each(be, table_n_there(a->n, a->n_real), FIND_CHUNK, find_chunk, &job);
}

/* Erasing is rare: one thread. */
status cpu_table_erase(backend *be, const table_level *l, const table_erase_args *a) {
    int64_t n = table_n_there(a->n, a->n_real), n_erased = 0;
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
    for (int64_t i = 0; i < n; i++)
        if (a->slot[i] >= 0)
            table_stamps(l, a->slot[i] / TABLE_SLOTS)[a->slot[i] % TABLE_SLOTS] =
                a->stamps != NULL ? a->stamps[i] : a->stamp;
    return OK;
}

status cpu_table_carry(backend *be, const table_carry_args *a) {
    int64_t n = table_n_there(a->n, a->n_real);
    for (int64_t i = 0; i < n; i++) {
        uint64_t w = a->given != NULL ? a->given[i] : a->score;
        a->is_below[i] = a->slot[i] >= 0;
        a->scores[i] = a->is_below[i] ? table_touched(a->rule, a->scores[i], w) : w;
        if (!a->is_below[i]) a->stamps[i] = a->stamp;
    }
    return OK;
}

enum { HUGE_PAGE = 2 << 20 };

/* Tables are read at random places: pages of 2 MiB avoid most TLB misses.  Only a hint: without
 * such pages tables are slower.  A bucket's slots are used from the first on, so that with small
 * pages a sparse table takes the memory of the rows it has. */
status cpu_table_alloc(backend *be, void **out, size_t bytes, table_memory where) {
    TRY(mem_alloc_raw(out, bytes, 1));
    uintptr_t first = ((uintptr_t)*out + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    uintptr_t end = ((uintptr_t)*out + bytes) / HUGE_PAGE * HUGE_PAGE;
    int advice = where == TABLE_SPARSE ? MADV_NOHUGEPAGE : MADV_HUGEPAGE;
    if (first < end) (void)madvise((void *)first, end - first, advice);
    return OK;
}

void cpu_table_release(backend *be, void *memory, table_memory where) {
    mem_free(memory);
}

const table_ops cpu_table_ops = {
#define TABLE_OP(result, name, parameters, test) .name = cpu_table_##name,
#include "ops/table_ops.def"
};

/* unique (ops/table.h): a radix sort of (hash, place), then one pass over the runs of equal hashes.
 *
 * The sort goes from the low digits to the high ones, so that its time does not depend on the ids:
 * a hash can be inverted, and ids chosen to meet in one bucket would stop a sort that relies on
 * even buckets.  It runs on one thread: batches of 10^5 ids take milliseconds. */

status cpu_table_unique(backend *be, const table_unique_args *a) {
    sort_pair *pairs;
    *a->n_unique = 0;
    if (a->begin != NULL) a->begin[0] = 0;
    if (a->n == 0) return OK;
    TRY(cpu_scratch(be, CPU_SHARED, 2 * (size_t)a->n * sizeof *pairs, (void **)&pairs));
    for (int64_t i = 0; i < a->n; i++)
        pairs[i] = (sort_pair){table_hash(a->ids[i]), (uint32_t)i};
    pairs = sort_pairs(pairs, pairs + a->n, (size_t)a->n);
    int32_t n_unique = 0;
    for (int64_t i = 0; i < a->n; i++) {
        if (i == 0 || pairs[i].key != pairs[i - 1].key) {
            if (a->begin != NULL) a->begin[n_unique] = (int32_t)i;
            a->keys[n_unique++] = a->ids[pairs[i].place];
        }
        a->inverse[pairs[i].place] = n_unique - 1;
        if (a->order != NULL) a->order[i] = (int32_t)pairs[i].place;
    }
    if (a->begin != NULL) a->begin[n_unique] = (int32_t)a->n;
    *a->n_unique = n_unique;
    return OK;
}
