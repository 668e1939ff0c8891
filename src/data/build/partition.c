#include "data/build/partition.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

/* Parts per thread: the buffers of all threads together then hold 1/16 of the events. */
enum { PARTS_PER_THREAD = 16, MIN_PART_EVENTS = 1 << 16, SMALL_RUN = 32 };
enum { FEW_KEYS = 48, MAX_BUCKET_BITS = 10, MAX_BUCKETS = 1 << MAX_BUCKET_BITS };

typedef struct event {
    int64_t time;
    uint32_t item;
    uint16_t action;
    uint32_t place; /* index in the user's history, for a stable sort */
} event;

/* Buffers of one worker, sized for the largest part and the longest history. */
typedef struct part_worker {
    bool is_ready;
    uint32_t *place;     /* (max_block): where an event of a block goes */
    int64_t *moved;      /* (max_block): buffer to permute a column */
    int64_t *time;       /* (max_part_events) */
    uint32_t *item;      /* (max_part_events) */
    uint16_t *action;    /* (max_part_events) */
    uint64_t *cursor;    /* (max_part_users) */
    event *events;       /* (max_len) */
    event *spare;        /* (max_len) */
    uint8_t *duplicate;  /* (max_len) */
    builder_stats stats; /* of the parts this worker did */
} part_worker;

typedef struct partition_job {
    write_job *job;
    const event_columns *columns; /* NULL: only count */
    uint32_t *first_user;         /* (n_parts + 1) */
    uint32_t n_parts;
    uint64_t max_part_events, max_part_users, max_len;
    part_worker *workers; /* (n_workers) */
    int n_workers;
    uint16_t *part_of;  /* (n_users) */
    uint64_t *segment;  /* (n_blocks, n_parts + 2): where the events of a part begin in a block */
    uint64_t max_block; /* events of the largest block */
    uint8_t *is_seen;   /* (n_items + 1), written by all workers, only ever to 1 */
} partition_job;

/* Cuts the users into ranges of about the same number of events. */
static status cut(partition_job *p) {
    const uint64_t *offsets = p->job->offsets;
    uint64_t n_users = p->job->stats->n_users, n_events = offsets[n_users];
    uint64_t wanted = n_events / ((uint64_t)p->n_workers * PARTS_PER_THREAD) + 1;
    if (wanted < MIN_PART_EVENTS) wanted = MIN_PART_EVENTS;
    TRY(MEM_NEW(&p->first_user, n_events / wanted + 3));
    uint64_t begin = 0;
    for (uint64_t u = 0; u < n_users; u++) {
        uint64_t length = offsets[u + 1] - offsets[u], part = offsets[u + 1] - offsets[begin];
        if (length > p->max_len) p->max_len = length;
        if (part < wanted && u + 1 < n_users) continue;
        if (part > p->max_part_events) p->max_part_events = part;
        if (u + 1 - begin > p->max_part_users) p->max_part_users = u + 1 - begin;
        begin = u + 1;
        p->first_user[++p->n_parts] = (uint32_t)begin;
    }
    return OK;
}

static status prepare_worker(const partition_job *p, part_worker *w) {
    if (w->is_ready) return OK;
    TRY(MEM_NEW_RAW(&w->time, p->max_part_events));
    TRY(MEM_NEW_RAW(&w->item, p->max_part_events));
    TRY(MEM_NEW_RAW(&w->action, p->max_part_events));
    TRY(MEM_NEW_RAW(&w->cursor, p->max_part_users));
    TRY(MEM_NEW_RAW(&w->events, p->max_len));
    TRY(MEM_NEW_RAW(&w->spare, p->max_len));
    TRY(MEM_NEW_RAW(&w->duplicate, p->max_len));
    w->stats.first_time = INT64_MAX;
    w->stats.last_time = INT64_MIN;
    w->is_ready = true;
    return OK;
}

/* Brings a column into the order of the parts. */
#define MOVE_COLUMN(column)                                                                        \
    do {                                                                                           \
        __typeof__(column) to_ = (void *)w->moved;                                                 \
        for (uint64_t i_ = 0; i_ < block->n; i_++)                                                 \
            to_[w->place[i_]] = (column)[i_];                                                      \
        memcpy((column), to_, block->n * sizeof *to_);                                             \
    } while (0)

/* Sorts a block by part, stable, so that each part reads one contiguous piece of it.  A block of a
 * source that lists users together is in one part already. */
static status bucket_block(void *ctx, int64_t chunk, int worker) {
    partition_job *p = ctx;
    part_worker *w = &p->workers[worker];
    event_block *block = p->job->b->blocks[chunk];
    uint64_t *begin = p->segment + (uint64_t)chunk * (p->n_parts + 2);
    uint64_t at = 0;
    bool is_in_order = true;
    if (w->place == NULL) TRY(MEM_NEW_RAW(&w->place, p->max_block));
    if (w->moved == NULL) TRY(MEM_NEW_RAW(&w->moved, p->max_block));
    for (uint64_t i = 0, last = 0; i < block->n; i++) {
        uint32_t user = block->user[i];
        uint32_t part = user == DROPPED ? p->n_parts : p->part_of[user];
        w->place[i] = part;
        begin[part]++;
        is_in_order &= part >= last;
        last = part;
    }
    for (uint32_t part = 0; part <= p->n_parts + 1; part++) {
        uint64_t count = begin[part];
        begin[part] = at;
        at += count;
    }
    if (is_in_order) return OK;
    for (uint64_t i = 0; i < block->n; i++)
        w->place[i] = (uint32_t)begin[w->place[i]]++;
    for (uint32_t part = p->n_parts + 1; part > 0; part--) /* each moved on to its end */
        begin[part] = begin[part - 1];
    begin[0] = 0;
    MOVE_COLUMN(block->time);
    MOVE_COLUMN(block->user);
    MOVE_COLUMN(block->item);
    MOVE_COLUMN(block->action);
    return OK;
}

static status bucket_blocks(partition_job *p) {
    const builder *b = p->job->b;
    TRY(MEM_NEW_RAW(&p->part_of, p->job->stats->n_users));
    TRY(MEM_NEW(&p->segment, b->n_blocks * (p->n_parts + 2)));
    for (uint32_t part = 0; part < p->n_parts; part++)
        for (uint32_t u = p->first_user[part]; u < p->first_user[part + 1]; u++)
            p->part_of[u] = (uint16_t)part;
    for (size_t k = 0; k < b->n_blocks; k++)
        if (b->blocks[k]->n > p->max_block) p->max_block = b->blocks[k]->n;
    if (p->max_block > UINT32_MAX) return fail(ERR_FORMAT, "a block of more than 2^32 events");
    return pool_run(b->workers, (int64_t)b->n_blocks, bucket_block, p);
}

/* Copies n events of a block, of one user, to `at`. */
static inline void take_events(part_worker *w, uint64_t at, const event_block *from, uint64_t i,
                               uint64_t n) {
    if (n == 1) { /* what most events of a shuffled source are */
        w->time[at] = from->time[i];
        w->item[at] = from->item[i];
        w->action[at] = from->action[i];
        return;
    }
    memcpy(w->time + at, from->time + i, n * sizeof *w->time);
    memcpy(w->item + at, from->item + i, n * sizeof *w->item);
    memcpy(w->action + at, from->action + i, n * sizeof *w->action);
}

/* Scatters the events of a part to their users, in the order of the source. */
static void gather(const partition_job *p, part_worker *w, uint64_t part) {
    const builder *b = p->job->b;
    const uint64_t *offsets = p->job->offsets;
    uint32_t first = p->first_user[part], end = p->first_user[part + 1];
    for (uint32_t u = first; u < end; u++)
        w->cursor[u - first] = offsets[u] - offsets[first];
    for (size_t k = 0; k < b->n_blocks; k++) {
        const event_block *block = b->blocks[k];
        const uint64_t *segment = p->segment + k * (p->n_parts + 2);
        for (uint64_t i = segment[part], next; i < segment[part + 1]; i = next) {
            /* Many sources list a user's events together. */
            for (next = i + 1; next < segment[part + 1] && block->user[next] == block->user[i];)
                next++;
            uint64_t at = w->cursor[block->user[i] - first];
            w->cursor[block->user[i] - first] += next - i;
            take_events(w, at, block, i, next - i);
        }
    }
}

static void insertion_sort(event *e, uint64_t n) {
    for (uint64_t i = 1; i < n; i++) {
        event moving = e[i];
        uint64_t j = i;
        for (; j > 0 && e[j - 1].time > moving.time; j--)
            e[j] = e[j - 1];
        e[j] = moving;
    }
}

/* Bottom-up merge sort by time, stable; the result ends up in w->events. */
static void sort_events(part_worker *w, uint64_t n) {
    event *from = w->events, *to = w->spare;
    for (uint64_t i = 0; i < n; i += SMALL_RUN)
        insertion_sort(from + i, n - i < SMALL_RUN ? n - i : SMALL_RUN);
    for (uint64_t width = SMALL_RUN; width < n; width *= 2) {
        for (uint64_t begin = 0; begin < n; begin += 2 * width) {
            uint64_t middle = begin + width < n ? begin + width : n;
            uint64_t end = begin + 2 * width < n ? begin + 2 * width : n;
            uint64_t i = begin, j = middle;
            for (uint64_t k = begin; k < end; k++)
                to[k] = i < middle && (j == end || from[i].time <= from[j].time) ? from[i++]
                                                                                 : from[j++];
        }
        event *swap = from;
        from = to;
        to = swap;
    }
    if (from != w->events) memcpy(w->events, from, n * sizeof *from);
}

/* A history as integers that sort like it: the time since the first one, then the place. */
typedef struct time_keys {
    uint64_t *key, *spare; /* (n) */
    int64_t first_time;
    unsigned place_bits, time_bits;
} time_keys;

static unsigned bit_length(uint64_t value) {
    return value == 0 ? 0 : 64 - (unsigned)__builtin_clzll(value);
}

/* False if time and place do not fit 64 bits. */
static bool make_keys(part_worker *w, uint64_t at, uint64_t n, time_keys *k) {
    int64_t first = w->time[at], last = first;
    for (uint64_t i = 1; i < n; i++) {
        first = w->time[at + i] < first ? w->time[at + i] : first;
        last = w->time[at + i] > last ? w->time[at + i] : last;
    }
    *k = (time_keys){.key = (uint64_t *)w->events,
                     .spare = (uint64_t *)w->spare,
                     .first_time = first,
                     .place_bits = bit_length(n - 1),
                     .time_bits = bit_length((uint64_t)last - (uint64_t)first)};
    if (k->place_bits + k->time_bits > 64) return false;
    for (uint64_t i = 0; i < n; i++)
        k->key[i] = ((uint64_t)w->time[at + i] - (uint64_t)first) << k->place_bits | i;
    return true;
}

static void sort_few_keys(uint64_t *key, uint64_t n) {
    for (uint64_t i = 1; i < n; i++) {
        uint64_t moving = key[i], j = i;
        for (; j > 0 && key[j - 1] > moving; j--)
            key[j] = key[j - 1];
        key[j] = moving;
    }
}

/* Sorts keys whose times spread evenly: by their leading bits first, then within these buckets.
 * Returns false, with the keys as they were, where a bucket would hold many. */
static bool sort_spread_keys(time_keys *k, uint64_t n) {
    uint32_t start[MAX_BUCKETS + 1], largest = 0;
    if (n > 4 * MAX_BUCKETS) return false;
    unsigned width = n < MAX_BUCKETS ? bit_length(n - 1) : MAX_BUCKET_BITS;
    unsigned shift = k->place_bits + k->time_bits - width;
    memset(start, 0, ((1u << width) + 1) * sizeof *start);
    for (uint64_t i = 0; i < n; i++)
        start[(k->key[i] >> shift) + 1]++;
    for (uint32_t b = 1; b <= 1u << width; b++) {
        largest = start[b] > largest ? start[b] : largest;
        start[b] += start[b - 1];
    }
    if (largest > SMALL_RUN) return false;
    for (uint64_t i = 0; i < n; i++)
        k->spare[start[k->key[i] >> shift]++] = k->key[i];
    sort_few_keys(k->spare, n);
    uint64_t *swap = k->key;
    k->key = k->spare;
    k->spare = swap;
    return true;
}

/* A radix sort over the bits of the times, up to eight at once; the places are in order from the
 * start. */
static void sort_many_keys(time_keys *k, uint64_t n) {
    unsigned n_passes = (k->time_bits + 7) / 8,
             width = n_passes > 0 ? (k->time_bits + n_passes - 1) / n_passes : 0;
    uint32_t n_digits = 1u << width, mask = n_digits - 1;
    for (unsigned pass = 0, shift = k->place_bits; pass < n_passes; pass++, shift += width) {
        uint32_t start[257] = {0}; /* a history has fewer than 2^32 events */
        for (uint64_t i = 0; i < n; i++)
            start[(k->key[i] >> shift & mask) + 1]++;
        for (uint32_t digit = 1; digit < n_digits; digit++)
            start[digit] += start[digit - 1];
        for (uint64_t i = 0; i < n; i++)
            k->spare[start[k->key[i] >> shift & mask]++] = k->key[i];
        uint64_t *swap = k->key;
        k->key = k->spare;
        k->spare = swap;
    }
}

/* Brings a history into the order of its sorted keys. */
static void apply_keys(part_worker *w, uint64_t at, uint64_t n, const time_keys *k) {
    uint64_t mask = ((uint64_t)1 << k->place_bits) - 1;
    uint32_t *item = (uint32_t *)k->spare;
    uint16_t *action = (uint16_t *)(item + n);
    memcpy(item, w->item + at, n * sizeof *item);
    memcpy(action, w->action + at, n * sizeof *action);
    for (uint64_t i = 0; i < n; i++) {
        uint64_t place = k->key[i] & mask;
        w->time[at + i] = (int64_t)((uint64_t)k->first_time + (k->key[i] >> k->place_bits));
        w->item[at + i] = item[place];
        w->action[at + i] = action[place];
    }
}

/* The number of events that follow a later one; 0: nothing needs sorting. */
static uint64_t count_out_of_order(const int64_t *time, uint64_t n) {
    uint64_t count = 0;
    for (uint64_t i = 1, latest = 0; i < n; i++) {
        if (time[i] < time[latest])
            count++;
        else
            latest = i;
    }
    return count;
}

static void load_events(part_worker *w, uint64_t at, uint64_t n) {
    for (uint64_t i = 0; i < n; i++)
        w->events[i] = (event){w->time[at + i], w->item[at + i], w->action[at + i], (uint32_t)i};
}

static void store_events(part_worker *w, uint64_t at, uint64_t n) {
    for (uint64_t i = 0; i < n; i++) {
        w->time[at + i] = w->events[i].time;
        w->item[at + i] = w->events[i].item;
        w->action[at + i] = w->events[i].action;
    }
}

static int compare_content(const void *a, const void *b) {
    const event *x = a, *y = b;
    if (x->item != y->item) return x->item < y->item ? -1 : 1;
    if (x->action != y->action) return x->action < y->action ? -1 : 1;
    return (x->place > y->place) - (x->place < y->place);
}

static bool is_same_content(const part_worker *w, uint64_t i, uint64_t j) {
    return w->item[i] == w->item[j] && w->action[i] == w->action[j];
}

/* Marks duplicates in a short run of events with one time: all but the first of equal events. */
static uint64_t mark_short_run(part_worker *w, uint64_t at, uint64_t begin, uint64_t end) {
    uint64_t count = 0;
    for (uint64_t i = begin + 1; i < end; i++) {
        uint64_t j = begin;
        while (j < i && !is_same_content(w, at + i, at + j))
            j++;
        w->duplicate[i] = j < i;
        count += j < i;
    }
    return count;
}

/* Marks duplicates in a long run, by sorting: a source with days as times has many events at one
 * time. */
static uint64_t mark_long_run(part_worker *w, uint64_t at, uint64_t begin, uint64_t end) {
    uint64_t n = end - begin, count = 0;
    load_events(w, at + begin, n);
    qsort(w->events, n, sizeof *w->events, compare_content);
    for (uint64_t i = 1; i < n; i++) {
        if (!is_same_content(w, at + begin + w->events[i].place,
                             at + begin + w->events[i - 1].place))
            continue;
        w->duplicate[begin + w->events[i].place] = 1;
        count++;
    }
    return count;
}

static bool has_equal_times(const int64_t *time, uint64_t n) {
    uint64_t count = 0;
    for (uint64_t i = 1; i < n; i++)
        count += time[i] == time[i - 1];
    return count > 0;
}

static uint64_t mark_duplicates(part_worker *w, uint64_t at, uint64_t n) {
    uint64_t count = 0;
    if (!has_equal_times(w->time + at, n)) return 0;
    memset(w->duplicate, 0, n);
    for (uint64_t begin = 0, end; begin < n; begin = end) {
        for (end = begin + 1; end < n && w->time[at + end] == w->time[at + begin];)
            end++;
        count += end - begin <= SMALL_RUN ? mark_short_run(w, at, begin, end)
                                          : mark_long_run(w, at, begin, end);
    }
    return count;
}

/* Copies a history from `at` to `to` (to <= at) without its marked events. */
static void move_kept(part_worker *w, uint64_t to, uint64_t at, uint64_t n, bool drops) {
    for (uint64_t i = 0; i < n; i++) {
        if (drops && w->duplicate[i]) continue;
        w->time[to] = w->time[at + i];
        w->item[to] = w->item[at + i];
        w->action[to] = w->action[at + i];
        to++;
    }
}

static void sort_history(part_worker *w, uint64_t at, uint64_t n) {
    time_keys k;
    if (!make_keys(w, at, n, &k)) {
        load_events(w, at, n);
        sort_events(w, n);
        store_events(w, at, n);
        return;
    }
    if (n <= FEW_KEYS)
        sort_few_keys(k.key, n);
    else if (!sort_spread_keys(&k, n))
        sort_many_keys(&k, n);
    apply_keys(w, at, n, &k);
}

/* Sorts one user's history, updates the statistics, and moves it next to the end of the previous
 * history. */
static void finish_user(const partition_job *p, part_worker *w, uint32_t user, uint32_t first) {
    const write_job *job = p->job;
    uint64_t at = job->offsets[user] - job->offsets[first];
    uint64_t n = job->offsets[user + 1] - job->offsets[user];
    uint64_t out_of_order = count_out_of_order(w->time + at, n);
    if (out_of_order > 0) sort_history(w, at, n);
    uint64_t n_duplicates = mark_duplicates(w, at, n);
    w->stats.n_out_of_order += out_of_order;
    w->stats.n_duplicates += n_duplicates;
    if (p->columns == NULL) {
        job->out_offsets[user + 1] = n - n_duplicates;
        return;
    }
    if (w->time[at] < w->stats.first_time) w->stats.first_time = w->time[at];
    if (w->time[at + n - 1] > w->stats.last_time) w->stats.last_time = w->time[at + n - 1];
    uint64_t to = job->out_offsets[user] - job->out_offsets[first];
    uint64_t n_out = job->out_offsets[user + 1] - job->out_offsets[user];
    if (to != at || n_out != n) move_kept(w, to, at, n, n_out != n);
    if (n_out > w->stats.max_len) w->stats.max_len = n_out;
    for (uint64_t i = to; i < to + n_out; i++)
        __atomic_store_n(&p->is_seen[w->item[i]], 1, __ATOMIC_RELAXED);
}

/* Brings times to the ticks of the file: exact, as every time is a whole number of them.  A
 * constant divisor is a multiplication. */
static void scale_times(int64_t *time, uint64_t n, int64_t ns_per_tick) {
    if (ns_per_tick == 1000000000)
        for (uint64_t i = 0; i < n; i++)
            time[i] /= 1000000000;
    else if (ns_per_tick > 1)
        for (uint64_t i = 0; i < n; i++)
            time[i] /= ns_per_tick;
}

static status do_part(void *ctx, int64_t part, int worker) {
    partition_job *p = ctx;
    part_worker *w = &p->workers[worker];
    uint32_t first = p->first_user[part], end = p->first_user[part + 1];
    TRY(prepare_worker(p, w));
    gather(p, w, (uint64_t)part);
    /* Before the sort: small numbers are sorted faster. */
    scale_times(w->time, p->job->offsets[end] - p->job->offsets[first], p->job->ns_per_tick);
    for (uint32_t u = first; u < end; u++)
        finish_user(p, w, u, first);
    if (p->columns == NULL) return OK;
    const event_columns *c = p->columns;
    uint64_t at = p->job->out_offsets[first], n = p->job->out_offsets[end] - at;
    TRY(column_writer_put(c->writer, c->item, at, w->item, n));
    TRY(column_writer_put(c->writer, c->action, at, w->action, n));
    return column_writer_put(c->writer, c->time, at, w->time, n);
}

static void collect_stats(const partition_job *p) {
    builder_stats *stats = p->job->stats;
    stats->first_time = INT64_MAX;
    stats->last_time = INT64_MIN;
    for (int i = 0; i < p->n_workers; i++) {
        const builder_stats *s = &p->workers[i].stats;
        if (!p->workers[i].is_ready) continue;
        stats->n_duplicates += s->n_duplicates;
        stats->n_out_of_order += s->n_out_of_order;
        if (s->max_len > stats->max_len) stats->max_len = s->max_len;
        if (s->first_time < stats->first_time) stats->first_time = s->first_time;
        if (s->last_time > stats->last_time) stats->last_time = s->last_time;
    }
    for (uint64_t i = 0; i <= stats->n_items; i++)
        stats->n_seen_items += p->is_seen[i];
}

static void free_partition(partition_job *p) {
    for (int i = 0; p->workers != NULL && i < p->n_workers; i++) {
        part_worker *w = &p->workers[i];
        void *const blocks[] = {w->place,  w->moved,  w->time,  w->item,     w->action,
                                w->cursor, w->events, w->spare, w->duplicate};
        for (size_t k = 0; k < sizeof blocks / sizeof blocks[0]; k++)
            mem_free(blocks[k]);
    }
    mem_free(p->workers);
    mem_free(p->first_user);
    mem_free(p->part_of);
    mem_free(p->segment);
    mem_free(p->is_seen);
}

static status run_partition(write_job *job, const event_columns *columns) {
    pool *workers = job->b->workers;
    partition_job p = {
        .job = job, .columns = columns, .n_workers = workers != NULL ? pool_n_threads(workers) : 1};
    status st = MEM_NEW(&p.workers, (size_t)p.n_workers);
    if (st == OK) st = MEM_NEW(&p.is_seen, job->stats->n_items + 1);
    if (st == OK) st = cut(&p);
    if (st == OK) st = bucket_blocks(&p);
    if (st == OK) st = pool_run(workers, p.n_parts, do_part, &p);
    if (st == OK && columns != NULL) collect_stats(&p);
    free_partition(&p);
    return st;
}

status partition_count_duplicates(write_job *job) {
    TRY(run_partition(job, NULL));
    job->out_offsets[0] = 0;
    for (uint64_t u = 0; u < job->stats->n_users; u++)
        job->out_offsets[u + 1] += job->out_offsets[u];
    return OK;
}

status partition_write(write_job *job, const event_columns *columns) {
    return run_partition(job, columns);
}
