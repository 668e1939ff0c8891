#include "profile/memory_log.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/thread.h"
#include "format/json.h"

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
    mem_free(log->block);
    mem_free(log->events);
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

static int by_peak(const void *a, const void *b) {
    const memory_owner *x = *(const memory_owner *const *)a, *y = *(const memory_owner *const *)b;
    if (x->at_peak != y->at_peak) return x->at_peak > y->at_peak ? -1 : 1;
    return x->largest > y->largest ? -1 : x->largest < y->largest;
}

static int sorted(const memory_log *log, const memory_owner *out[MEMORY_MAX_OWNERS]) {
    for (int i = 0; i < log->n_owners; i++)
        out[i] = &log->owners[i];
    qsort(out, (size_t)log->n_owners, sizeof *out, by_peak);
    return log->n_owners;
}

status memory_log_text(const memory_log *log, buf *out) {
    const memory_owner *owner[MEMORY_MAX_OWNERS];
    int n = sorted(log, owner);
    if (n == 0) return OK;
    TRY(buf_printf(out,
                   " ** Memory of the Device by Owner (memory_by_owner): %.3f MB at the peak\n\n"
                   " At Peak (%%)  At Peak (MB)  Own Peak (MB)  At End (MB)  Blocks  Owner\n"
                   " -----------  ------------  -------------  -----------  ------  "
                   "--------------------\n",
                   (double)log->peak / 1e6));
    for (int i = 0; i < n; i++)
        TRY(buf_printf(out, " %11.1f  %12.3f  %13.3f  %11.3f  %6" PRIu64 "  %s\n",
                       log->peak > 0 ? 100 * (double)owner[i]->at_peak / (double)log->peak : 0,
                       (double)owner[i]->at_peak / 1e6, (double)owner[i]->largest / 1e6,
                       (double)owner[i]->live / 1e6, owner[i]->n_blocks, owner[i]->name));
    return OK;
}

status memory_log_csv(const memory_log *log, buf *out) {
    const memory_owner *owner[MEMORY_MAX_OWNERS];
    int n = sorted(log, owner);
    if (n == 0) return OK;
    TRY(buf_text(out, "At Peak (bytes),Own Peak (bytes),At End (bytes),Blocks,Owner\n"));
    for (int i = 0; i < n; i++) {
        TRY(buf_printf(out, "%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",", owner[i]->at_peak,
                       owner[i]->largest, owner[i]->live, owner[i]->n_blocks));
        TRY(csv_put_field(out, owner[i]->name, strlen(owner[i]->name)));
        TRY(buf_char(out, '\n'));
    }
    return OK;
}

status memory_log_json(const memory_log *log, buf *out) {
    const memory_owner *owner[MEMORY_MAX_OWNERS];
    int n = sorted(log, owner);
    json_writer w;
    if (n == 0) return OK;
    json_begin_object(&w, out, 0);
    json_key_string(&w, "report", "memory_by_owner");
    json_key_array(&w, "rows");
    for (int i = 0; i < n; i++) {
        JSON_OBJECT(&w, FIELD("At Peak (bytes)", owner[i]->at_peak),
                    FIELD("Own Peak (bytes)", owner[i]->largest),
                    FIELD("At End (bytes)", owner[i]->live), FIELD("Blocks", owner[i]->n_blocks),
                    FIELD("Owner", owner[i]->name));
    }
    json_array_close(&w);
    TRY(json_finish_object(&w));
    return buf_char(out, '\n');
}
