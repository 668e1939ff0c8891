#include "data/build/builder_int.h"

/* Parts per thread: the buffers of all threads together then hold 1/16 of the events. */
enum { PARTS_PER_THREAD = 16, MIN_PART_EVENTS = 1 << 16 };

/* Buffers of one worker, sized for the largest part and the longest history. */
typedef struct part_worker {
    bool is_ready;
    uint32_t *place;     /* (max_block): where an event of a block goes */
    int64_t *moved;      /* (max_block): buffer to permute a column */
    int64_t *time;       /* (max_part_events) */
    uint32_t *item;      /* (max_part_events) */
    uint16_t *action;    /* (max_part_events) */
    uint64_t *cursor;    /* (max_part_users) */
    sort_pair *pairs;    /* (max_len) */
    sort_pair *spare;    /* (max_len) */
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
    TRY(MEM_NEW_RAW(&w->pairs, p->max_len));
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

/* Sorts a history by time, stable. */
static void sort_history(part_worker *w, uint64_t at, uint64_t n) {
    for (uint64_t i = 0; i < n; i++) /* the sign bit turned: the order of unsigned integers */
        w->pairs[i] = (sort_pair){(uint64_t)w->time[at + i] ^ (uint64_t)1 << 63, (uint32_t)i};
    const sort_pair *sorted = sort_pairs(w->pairs, w->spare, n);
    uint32_t *item = (uint32_t *)(sorted == w->pairs ? w->spare : w->pairs);
    uint16_t *action = (uint16_t *)(item + n);
    memcpy(item, w->item + at, n * sizeof *item);
    memcpy(action, w->action + at, n * sizeof *action);
    for (uint64_t i = 0; i < n; i++) {
        w->time[at + i] = (int64_t)(sorted[i].key ^ (uint64_t)1 << 63);
        w->item[at + i] = item[sorted[i].place];
        w->action[at + i] = action[sorted[i].place];
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

/* Marks all but the first of the equal events of a run with one time. */
static uint64_t mark_run(part_worker *w, uint64_t at, uint64_t begin, uint64_t end) {
    uint64_t n = end - begin, count = 0;
    for (uint64_t i = 0; i < n; i++) {
        uint64_t event = at + begin + i, content = (uint64_t)w->item[event] << 16;
        w->pairs[i] = (sort_pair){content | w->action[event], (uint32_t)i};
    }
    const sort_pair *sorted = sort_pairs(w->pairs, w->spare, n);
    for (uint64_t i = 1; i < n; i++) {
        if (sorted[i].key != sorted[i - 1].key) continue;
        w->duplicate[begin + sorted[i].place] = 1;
        count++;
    }
    return count;
}

static uint64_t mark_duplicates(part_worker *w, uint64_t at, uint64_t n) {
    uint64_t count = 0;
    memset(w->duplicate, 0, n);
    for (uint64_t begin = 0, end; begin < n; begin = end) {
        for (end = begin + 1; end < n && w->time[at + end] == w->time[at + begin];)
            end++;
        if (end - begin > 1) count += mark_run(w, at, begin, end);
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
    for (uint64_t i = 0; i < n; i++)
        w->stats.n_unknown_actions += w->action[i] == ACTION_UNKNOWN;
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
        stats->n_unknown_actions += s->n_unknown_actions;
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
        void *const blocks[] = {w->place,  w->moved, w->time,  w->item,     w->action,
                                w->cursor, w->pairs, w->spare, w->duplicate};
        for (size_t k = 0; k < sizeof blocks / sizeof blocks[0]; k++)
            mem_free(blocks[k]);
    }
    MEM_FREE(p->workers, p->first_user, p->part_of, p->segment, p->is_seen);
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
