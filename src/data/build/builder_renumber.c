#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "data/build/builder_int.h"

void id_space_fini(id_space *s) {
    for (uint32_t p = 0; s->rank != NULL && p < s->n_parts; p++)
        mem_free(s->rank[p]);
    mem_free(s->rank);
    mem_free(s->parts);
    mem_free(s->ids);
    mem_free(s->count);
    mem_free(s->number);
}

static status id_space_merge(builder *b, bool is_item, id_space *s) {
    s->n_parts = b->n_sinks + 1;
    TRY(MEM_NEW(&s->parts, s->n_parts));
    TRY(MEM_NEW(&s->rank, s->n_parts));
    for (uint32_t p = 0; p < b->n_sinks; p++)
        s->parts[p] = is_item ? &b->sinks[p].items : &b->sinks[p].users;
    s->parts[b->n_sinks] = is_item ? &b->catalogue : &b->context_users;
    TRY(dictionary_merge(s->parts, s->n_parts, s->rank, &s->ids, &s->n));
    TRY(MEM_NEW(&s->count, s->n));
    TRY(MEM_NEW(&s->number, s->n));
    for (uint32_t p = 0; p < b->n_sinks; p++)
        for (uint32_t i = 0; i < s->parts[p]->n; i++)
            s->count[s->rank[p][i]] += s->parts[p]->count[i];
    return OK;
}

static int compare_blocks(const void *a, const void *b) {
    const event_block *x = *(event_block *const *)a, *y = *(event_block *const *)b;
    return (x->sequence > y->sequence) - (x->sequence < y->sequence);
}

/* Local numbers become places in the merged order. */
static status rank_block(void *ctx, int64_t chunk, int worker) {
    (void)worker;
    write_job *job = ctx;
    event_block *block = job->b->blocks[chunk];
    const uint32_t *user_rank = job->users.rank[block->sink];
    const uint32_t *item_rank = job->items.rank[block->sink];
    for (uint64_t i = 0; i < block->n; i++) {
        block->user[i] = user_rank[block->user[i]];
        block->item[i] = item_rank[block->item[i]];
    }
    return OK;
}

/* Drops the events of rare users and items; counts what is left of each. */
static void drop_rare(write_job *job, event_block *block, uint32_t *user_left,
                      uint32_t *item_left) {
    const builder_options *options = &job->b->options;
    for (uint64_t i = 0; i < block->n; i++) {
        if (job->users.count[block->user[i]] < options->min_user_events ||
            job->items.count[block->item[i]] < options->min_item_events) {
            block->user[i] = DROPPED;
            continue;
        }
        user_left[block->user[i]]++;
        item_left[block->item[i]]++;
    }
}

/* The minimum counts of the options, applied as the reference preprocessing does: items and users
 * are counted once, on the raw data; an event is kept if both have enough; then users with too few
 * events left are dropped.  Items that had an event before that last step are kept, because the
 * reference numbers items there. */
static status apply_minima(write_job *job) {
    builder *b = job->b;
    id_space *users = &job->users, *items = &job->items;
    uint32_t *user_left = NULL, *item_left = NULL;
    status st = MEM_NEW(&user_left, users->n);
    if (st == OK) st = MEM_NEW(&item_left, items->n);
    for (size_t k = 0; st == OK && k < b->n_blocks; k++)
        drop_rare(job, b->blocks[k], user_left, item_left);
    for (uint32_t u = 0; st == OK && u < users->n; u++)
        users->count[u] = user_left[u] < b->options.min_user_events ? 0 : user_left[u];
    if (st == OK) memcpy(items->count, item_left, items->n * sizeof *item_left);
    mem_free(user_left);
    mem_free(item_left);
    return st;
}

/* Final numbers: users with events get 0.., items of the catalogue or with events get 1... */
static status number_ids(write_job *job) {
    builder *b = job->b;
    id_space *users = &job->users, *items = &job->items;
    bool has_minima = b->options.min_item_events > 0 || b->options.min_user_events > 0;
    if (has_minima) TRY(b->options.is_k_core ? builder_k_core(job) : apply_minima(job));
    for (uint32_t u = 0; u < users->n; u++)
        users->number[u] = users->count[u] > 0 ? users->n_kept++ : DROPPED;
    uint8_t *is_listed;
    TRY(MEM_NEW(&is_listed, items->n));
    for (uint32_t i = 0; b->options.min_item_events == 0 && i < b->catalogue.n; i++)
        is_listed[items->rank[b->n_sinks][i]] = 1;
    for (uint32_t i = 0; i < items->n; i++)
        items->number[i] = items->count[i] > 0 || is_listed[i] ? ++items->n_kept : DROPPED;
    mem_free(is_listed);
    return OK;
}

/* The ticks of the file: as many a second as the finest time needs. */
static void choose_ticks(write_job *job) {
    const builder *b = job->b;
    int digits = b->options.min_time_digits;
    job->ns_per_tick = 1;
    job->stats->time_per_second = b->options.time_per_second;
    if (!b->options.has_ns_times) return;
    for (uint32_t i = 0; i < b->n_sinks; i++)
        if (b->sinks[i].time_digits > digits) digits = b->sinks[i].time_digits;
    job->stats->time_per_second = 1;
    for (int i = 0; i < digits; i++)
        job->stats->time_per_second *= 10;
    job->ns_per_tick = 1000000000 / job->stats->time_per_second;
}

/* Places in the merged order become final numbers; a dropped event has user DROPPED. */
static status number_block(void *ctx, int64_t chunk, int worker) {
    (void)worker;
    write_job *job = ctx;
    event_block *block = job->b->blocks[chunk];
    for (uint64_t i = 0; i < block->n; i++) {
        uint32_t user = block->user[i] == DROPPED ? DROPPED : job->users.number[block->user[i]];
        block->user[i] = user;
        if (user == DROPPED) continue;
        block->item[i] = job->items.number[block->item[i]];
    }
    return OK;
}

/* Users and items of the file that have a row in a side file. */
static void count_described(write_job *job) {
    const builder *b = job->b;
    const id_space *users = &job->users, *items = &job->items;
    for (uint32_t i = 0; i < b->context_users.n; i++)
        job->stats->n_described_users += users->number[users->rank[b->n_sinks][i]] != DROPPED;
    for (uint32_t i = 0; i < b->catalogue.n; i++)
        job->stats->n_described_items += items->count[items->rank[b->n_sinks][i]] > 0;
}

static status make_offsets(write_job *job) {
    builder_stats *stats = job->stats;
    stats->n_users = job->users.n_kept;
    stats->n_items = job->items.n_kept;
    TRY(MEM_NEW(&job->offsets, stats->n_users + 1));
    for (uint32_t u = 0; u < job->users.n; u++)
        if (job->users.number[u] != DROPPED)
            job->offsets[job->users.number[u] + 1] = job->users.count[u];
    for (uint64_t u = 0; u < stats->n_users; u++)
        job->offsets[u + 1] += job->offsets[u];
    return OK;
}

/* Counts users and items with events, before (sign 1) and after (-1) the minima. */
static void count_filtered(write_job *job, int sign) {
    const id_space *users = &job->users, *items = &job->items;
    for (uint32_t u = 0; u < users->n; u++)
        job->stats->n_filtered_users += (uint64_t)(users->count[u] > 0 ? sign : 0);
    for (uint32_t i = 0; i < items->n; i++)
        job->stats->n_filtered_items += (uint64_t)(items->count[i] > 0 ? sign : 0);
}

status builder_renumber(write_job *job) {
    builder *b = job->b;
    uint64_t n_raw = 0;
    for (size_t k = 0; k < b->n_blocks; k++)
        n_raw += b->blocks[k]->n;
    if (n_raw == 0) return fail(ERR_FORMAT, "there are no events");
    qsort(b->blocks, b->n_blocks, sizeof *b->blocks, compare_blocks);
    TRY(id_space_merge(b, false, &job->users));
    TRY(id_space_merge(b, true, &job->items));
    TRY(pool_run(b->workers, (int64_t)b->n_blocks, rank_block, job));
    count_filtered(job, 1);
    TRY(number_ids(job));
    count_filtered(job, -1);
    count_described(job);
    choose_ticks(job);
    TRY(pool_run(b->workers, (int64_t)b->n_blocks, number_block, job));
    TRY(make_offsets(job));
    job->stats->n_filtered_events = n_raw - job->offsets[job->users.n_kept];
    if (job->users.n_kept == 0)
        return fail(ERR_FORMAT,
                    "no user is left: all %" PRIu64
                    " events were dropped by the minimum counts (%" PRIu32
                    " events an item, %" PRIu32 " a user)",
                    n_raw, b->options.min_item_events, b->options.min_user_events);
    return OK;
}
