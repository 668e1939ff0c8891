#include "profile/memory_log.h"

typedef struct memory_block {
    int owner;
    uint64_t bytes;
} memory_block;

void memory_log_init(memory_log *log) {
    memset(log, 0, sizeof *log);
    pthread_mutex_init(&log->lock, NULL);
}

void memory_log_fini(memory_log *log) {
    map_fini(&log->addresses);
    MEM_FREE(log->block, log->events);
    pthread_mutex_destroy(&log->lock);
    memset(log, 0, sizeof *log);
}

static int owner_of(memory_log *log, const char *name) {
    for (int i = 0; i < log->n_owners; i++)
        if (strncmp(log->owners[i].name, name, sizeof log->owners[i].name - 1) == 0) return i;
    if (log->n_owners == MEMORY_MAX_OWNERS) return MEMORY_MAX_OWNERS - 1;
    memory_owner *o = &log->owners[log->n_owners];
    *o = (memory_owner){0};
    snprintf(o->name, sizeof o->name, "%s", name);
    return log->n_owners++;
}

static void note_event(memory_log *log) {
    if (log->live > log->peak) {
        log->peak = log->live;
        for (int i = 0; i < log->n_owners; i++)
            log->owners[i].at_peak = log->owners[i].live;
    }
    if (log->n_events >= MEMORY_MAX_EVENTS ||
        mem_reserve((void **)&log->events, &log->capacity, log->n_events + 1,
                    sizeof *log->events) != OK)
        return;
    log->events[log->n_events++] = (memory_event){clock_ns(), log->live};
}

static void forget(memory_log *log, const memory_block *b) {
    log->live -= b->bytes;
    log->owners[b->owner].live -= b->bytes;
}

/* The block of an address, which is made where there is none.  NULL: no memory. */
static memory_block *block_at(memory_log *log, const void *at) {
    uint32_t n = log->addresses.n, i;
    if (MEM_RESERVE(&log->block, &log->block_capacity, (size_t)n + 1) != OK ||
        map_put(&log->addresses, (uint64_t)(uintptr_t)at, &i) != OK)
        return NULL;
    if (i == n) log->block[i] = (memory_block){0};
    return &log->block[i];
}

void memory_log_add(memory_log *log, const void *at, uint64_t bytes, const char *owner) {
    if (at == NULL) return;
    pthread_mutex_lock(&log->lock);
    memory_block *b = block_at(log, at);
    if (b != NULL) {
        forget(log, b); /* one whose release was not seen */
        *b = (memory_block){.bytes = bytes, .owner = owner_of(log, owner)};
        memory_owner *o = &log->owners[b->owner];
        o->n_blocks++;
        o->live += bytes;
        if (o->live > o->largest) o->largest = o->live;
        log->live += bytes;
        note_event(log);
    }
    pthread_mutex_unlock(&log->lock);
}

uint64_t memory_log_remove(memory_log *log, const void *at) {
    uint64_t bytes = 0;
    pthread_mutex_lock(&log->lock);
    uint32_t i = map_remove(&log->addresses, (uint64_t)(uintptr_t)at);
    if (i != MAP_NONE) {
        bytes = log->block[i].bytes;
        forget(log, &log->block[i]);
        log->block[i] = log->block[log->addresses.n];
        note_event(log);
    }
    pthread_mutex_unlock(&log->lock);
    return bytes;
}

status memory_log_table(const memory_log *log, profile_table *out) {
    static const profile_column columns[] = {
        {"At Peak (%)", COLUMN_PERCENT, 0}, {"At Peak", COLUMN_MEMORY, 1},
        {"Own Peak", COLUMN_MEMORY, 2},     {"At End", COLUMN_MEMORY, 3},
        {"Blocks", COLUMN_COUNT, 4},        {"Owner", COLUMN_NAME, 0}};
    *out = (profile_table){.id = "memory_by_owner",
                           .title = "Memory of the Device by Owner",
                           .columns = columns,
                           .n_columns = (int)(sizeof columns / sizeof *columns)};
    TRY(mem_alloc((void **)&out->rows, MEMORY_MAX_OWNERS, sizeof *out->rows));
    for (int i = 0; i < log->n_owners; i++) {
        const memory_owner *o = &log->owners[i];
        double at_peak = (double)o->at_peak, peak = (double)(log->peak > 0 ? log->peak : 1);
        out->rows[out->n_rows++] =
            (profile_row){.name = o->name,
                          .value = {100 * at_peak / peak, at_peak, (double)o->largest,
                                    (double)o->live, (double)o->n_blocks}};
    }
    return profile_table_sort(out, "total_time");
}
