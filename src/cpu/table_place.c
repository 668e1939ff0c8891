/* place (ops/table.h).
 *
 * Keys in the order of their hashes are runs of keys of one bucket; a run belongs to the chunk in
 * which it begins, so a bucket has one worker.  Each chunk writes its evicted and rejected keys at
 * the places of its own keys, and a last pass closes the gaps, so the lists too are the same with
 * any number of threads.  Bound by cache misses: digests, keys, and for an eviction the scores of
 * the bucket. */
#include "cpu/table.h"

enum { PLACE_CHUNK = 2048 };

/* How many entries of the lists a chunk wrote, from its first key's place on. */
typedef struct place_counts {
    int64_t first; /* key */
    int64_t of[PLACED_COUNTS];
} place_counts;

typedef struct place_job {
    const table_level *l;
    const table_place_args *a;
    int64_t n;
    const sort_pair *order; /* NULL: the keys are in order */
    place_counts *counts;   /* (chunks) */
} place_job;

/* The new keys of a run, best first; at most as many as a bucket has slots. */
typedef struct newcomers {
    int n;
    int64_t at[TABLE_SLOTS]; /* which key of the call */
    uint64_t score[TABLE_SLOTS];
} newcomers;

static inline int64_t key_at(const place_job *job, int64_t i) {
    return job->order != NULL ? (int64_t)job->order[i].place : i;
}

static inline int64_t bucket_at(const place_job *job, int64_t i) {
    uint64_t h = job->order != NULL ? job->order[i].key : table_hash(job->a->keys[i]);
    return table_bucket(h, job->l->n_buckets);
}

static inline uint64_t score_of(const table_place_args *a, int64_t key) {
    return a->scores != NULL ? a->scores[key] : a->score;
}

/* Keys come by ascending hash, so a key goes after those of the same score. */
static void add_newcomer(newcomers *list, int64_t key, uint64_t score) {
    int at = list->n;
    while (at > 0 && list->score[at - 1] < score)
        at--;
    if (at == TABLE_SLOTS) return;
    int n_moved = (list->n < TABLE_SLOTS ? list->n : TABLE_SLOTS - 1) - at;
    memmove(&list->at[at + 1], &list->at[at], (size_t)n_moved * sizeof *list->at);
    memmove(&list->score[at + 1], &list->score[at], (size_t)n_moved * sizeof *list->score);
    list->at[at] = key;
    list->score[at] = score;
    if (list->n < TABLE_SLOTS) list->n++;
}

/* The entry of `among` that is smallest by (score, key).  The least score is found without
 * branches, which would be mispredicted often; then the few that have it are compared. */
static int smallest(const table_entry *entries, uint64_t among) {
    uint64_t least = UINT64_MAX;
    for (int place = 0; place < TABLE_SLOTS; place++) {
        uint64_t score = entries[place].score | ((among >> place & 1) - 1);
        least = score < least ? score : least;
    }
    int best = -1;
    for (; among != 0; among &= among - 1) {
        int place = __builtin_ctzll(among);
        if (entries[place].score != least) continue;
        if (best < 0 || entries[place].key < entries[best].key) best = place;
    }
    return best;
}

static void note_evicted(const table_place_args *a, int64_t at, const table_level *l,
                         int64_t bucket, int place) {
    if (a->evicted.keys == NULL) return;
    a->evicted.keys[at] = table_entries(l, bucket)[place].key;
    a->evicted.scores[at] = table_entries(l, bucket)[place].score;
    a->evicted.stamps[at] = table_stamps(l, bucket)[place];
    a->evicted.slot[at] = bucket * TABLE_SLOTS + place;
}

static void settle(const place_job *job, int64_t bucket, int place, int64_t key, uint64_t score) {
    const table_place_args *a = job->a;
    table_digests(job->l, bucket)[place] = table_digest(table_hash(a->keys[key]));
    table_entries(job->l, bucket)[place] = (table_entry){a->keys[key], score};
    table_stamps(job->l, bucket)[place] = a->stamps != NULL ? a->stamps[key] : a->stamp;
    a->slot[key] = bucket * TABLE_SLOTS + place;
    a->is_new[key] = 1;
}

/* Touches the keys of a run that are in the table, sets their bits in *held, and lists the other
 * keys. */
static void greet(const place_job *job, int64_t bucket, int64_t first, int64_t end, uint64_t *held,
                  newcomers *list) {
    const table_place_args *a = job->a;
    const uint8_t *digests = table_digests(job->l, bucket);
    table_entry *entries = table_entries(job->l, bucket);
    for (int64_t i = first; i < end; i++) {
        int64_t key = key_at(job, i);
        uint64_t mask = table_match(digests, table_digest(table_hash(a->keys[key])));
        int place = table_among(entries, mask, a->keys[key]);
        uint64_t w = score_of(a, key);
        a->is_new[key] = 0;
        a->slot[key] = place < 0 ? -1 : bucket * TABLE_SLOTS + place;
        if (place < 0) {
            add_newcomer(list, key, w);
            continue;
        }
        *held |= 1ull << place;
        entries[place].score = table_touched(a->rule, entries[place].score, w);
    }
}

/* Gives the new keys their places; evicted entries are listed from evicted_at on. */
static void seat(const place_job *job, int64_t bucket, uint64_t held, const newcomers *list,
                 int64_t evicted_at, place_counts *counts) {
    const table_place_args *a = job->a;
    const table_entry *entries = table_entries(job->l, bucket);
    uint64_t empty = table_match(table_digests(job->l, bucket), 0);
    uint64_t leaving = a->evict == EVICT_NEVER ? 0 : ~empty & ~held;
    for (int r = 0; r < list->n; r++) {
        int place;
        if (empty != 0) {
            place = __builtin_ctzll(empty);
            empty &= empty - 1;
        } else {
            if (leaving == 0) return;
            place = smallest(entries, leaving);
            if (a->evict == EVICT_LOWER && entries[place].score > list->score[r]) return;
            leaving &= ~(1ull << place);
            note_evicted(a, evicted_at + counts->of[PLACED_EVICTED]++, job->l, bucket, place);
        }
        settle(job, bucket, place, list->at[r], list->score[r]);
        counts->of[PLACED_NEW]++;
    }
}

static void place_run(const place_job *job, int64_t first, int64_t end, place_counts *counts) {
    const table_place_args *a = job->a;
    int64_t bucket = bucket_at(job, first);
    uint64_t held = 0;
    newcomers list;
    list.n = 0;
    greet(job, bucket, first, end, &held, &list);
    if (list.n > 0) seat(job, bucket, held, &list, counts->first, counts);
    for (int64_t i = first; i < end && list.n > 0; i++) {
        int64_t key = key_at(job, i);
        if (a->slot[key] >= 0) continue;
        if (a->rejected != NULL)
            a->rejected[counts->first + counts->of[PLACED_REJECTED]] = a->keys[key];
        counts->of[PLACED_REJECTED]++;
    }
}

/* The first key at `i` or later that begins a run. */
static int64_t next_run(const place_job *job, int64_t i) {
    if (i == 0 || i >= job->n) return i < job->n ? i : job->n;
    for (int64_t bucket = bucket_at(job, i - 1); i < job->n && bucket_at(job, i) == bucket;)
        i++;
    return i;
}

/* Prefetches what a later key will need: first its bucket's digests; once they are in the cache,
 * the entry that matches or, in a full bucket, the scores, of which the smallest will be searched.
 * Reads only keys before `end`: others belong to another worker. */
TABLE_ASK ask_later(const place_job *job, int64_t i, int64_t end) {
    int64_t far = i + 2 * TABLE_AHEAD, near = i + TABLE_AHEAD;
    if (far < job->n) __builtin_prefetch(table_digests(job->l, bucket_at(job, far)), 1, 3);
    if (near >= end) return;
    uint64_t h = table_hash(job->a->keys[key_at(job, near)]);
    int64_t bucket = table_bucket(h, job->l->n_buckets);
    uint64_t mask = table_match(table_digests(job->l, bucket), table_digest(h));
    if (mask != 0) {
        __builtin_prefetch(table_entries(job->l, bucket) + __builtin_ctzll(mask), 1, 3);
    } else if (table_match(table_digests(job->l, bucket), 0) == 0) {
        for (int place = 0; place < TABLE_SLOTS; place += 4)
            __builtin_prefetch(table_entries(job->l, bucket) + place, 1, 3);
    }
}

static status place_chunk(void *ctx, int64_t chunk, int worker) {
    const place_job *job = ctx;
    cpu_range part = cpu_chunk(chunk, PLACE_CHUNK, job->n);
    place_counts *counts = &job->counts[chunk];
    int64_t i = next_run(job, part.first), end = next_run(job, part.end);
    *counts = (place_counts){.first = i};
    while (i < end) {
        int64_t run = i, bucket = bucket_at(job, i);
        while (i < end && bucket_at(job, i) == bucket)
            i++;
        for (int64_t k = run; k < i; k++)
            ask_later(job, k, end);
        place_run(job, run, i, counts);
    }
    return OK;
}

static void close_gaps(const place_job *job, int64_t n_chunks) {
    const table_place_args *a = job->a;
    int64_t *sum = a->counts;
    memset(sum, 0, PLACED_COUNTS * sizeof *sum);
    for (int64_t c = 0; c < n_chunks; c++) {
        const place_counts *counts = &job->counts[c];
        size_t n = (size_t)counts->of[PLACED_EVICTED], to = (size_t)sum[PLACED_EVICTED];
        size_t n_rejected = (size_t)counts->of[PLACED_REJECTED], first = (size_t)counts->first;
        if (n > 0 && a->evicted.keys != NULL) {
            memmove(a->evicted.keys + to, a->evicted.keys + first, n * sizeof *a->evicted.keys);
            memmove(a->evicted.scores + to, a->evicted.scores + first,
                    n * sizeof *a->evicted.scores);
            memmove(a->evicted.stamps + to, a->evicted.stamps + first,
                    n * sizeof *a->evicted.stamps);
            memmove(a->evicted.slot + to, a->evicted.slot + first, n * sizeof *a->evicted.slot);
        }
        if (n_rejected > 0 && a->rejected != NULL)
            memmove(a->rejected + sum[PLACED_REJECTED], a->rejected + first,
                    n_rejected * sizeof *a->rejected);
        for (int k = 0; k < PLACED_COUNTS; k++)
            sum[k] += counts->of[k];
    }
}

static status move_rows(backend *be, const table_level *l, const table_place_args *a) {
    if (a->init != NULL) {
        table_init_args init = table_place_init(a);
        return cpu_table_init(be, l, &init);
    }
    if (a->write == NULL) return OK;
    table_rows_args write = table_place_write(a);
    return cpu_table_write(be, l, &write);
}

status cpu_table_place(backend *be, const table_level *l, const table_place_args *a) {
    place_job job = {.l = l, .a = a, .n = table_n_there(a->n, a->n_real)};
    int64_t n_chunks = cpu_n_chunks(job.n, PLACE_CHUNK);
    size_t counts_bytes = (size_t)n_chunks * sizeof(place_counts);
    size_t pairs_bytes = a->is_ordered ? 0 : 2 * (size_t)job.n * sizeof(sort_pair);
    void *memory;
    TRY(cpu_scratch(be, CPU_SHARED, counts_bytes + pairs_bytes, &memory));
    job.counts = memory;
    if (!a->is_ordered) {
        sort_pair *pairs = (sort_pair *)((char *)memory + counts_bytes);
        for (int64_t i = 0; i < job.n; i++)
            pairs[i] = (sort_pair){table_hash(a->keys[i]), (uint32_t)i};
        job.order = sort_pairs(pairs, pairs + job.n, (size_t)job.n);
    }
    TRY(pool_run(be->workers, n_chunks, place_chunk, &job));
    close_gaps(&job, n_chunks);
    return move_rows(be, l, a);
}
