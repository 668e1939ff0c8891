#include "data/read/bad_lines.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

typedef struct bad_line {
    uint64_t sequence, order;
    const char *reason;
} bad_line;

struct bad_lines {
    uint64_t limit;
    pthread_mutex_t lock; /* guards the rest */
    arena texts;
    bad_line *line; /* (n) */
    size_t n, capacity;
    bool is_sorted;
};

status bad_lines_create(bad_lines **out, uint64_t limit) {
    TRY(MEM_NEW(out, 1));
    (*out)->limit = limit;
    arena_init(&(*out)->texts, 1 << 16);
    pthread_mutex_init(&(*out)->lock, NULL);
    return OK;
}

void bad_lines_destroy(bad_lines *b) {
    if (b == NULL) return;
    arena_fini(&b->texts);
    mem_free(b->line);
    pthread_mutex_destroy(&b->lock);
    mem_free(b);
}

static status add_locked(bad_lines *b, uint64_t sequence, uint64_t order) {
    const char *reason = status_reason(), *copy;
    TRY(MEM_RESERVE(&b->line, &b->capacity, b->n + 1));
    TRY(arena_copy_text(&b->texts, reason, strlen(reason), &copy));
    b->line[b->n++] = (bad_line){sequence, order, copy};
    b->is_sorted = false;
    return OK;
}

status bad_lines_add(bad_lines *b, uint64_t sequence, uint64_t order) {
    pthread_mutex_lock(&b->lock);
    status st = add_locked(b, sequence, order);
    pthread_mutex_unlock(&b->lock);
    return st == OK && order > b->limit ? bad_lines_check(b) : st;
}

status bad_lines_check(bad_lines *b) {
    pthread_mutex_lock(&b->lock);
    size_t n = b->n;
    pthread_mutex_unlock(&b->lock);
    return n > b->limit ? fail(ERR_FORMAT, "there are too many bad lines") : OK;
}

static int compare_lines(const void *left, const void *right) {
    const bad_line *a = left, *b = right;
    if (a->sequence != b->sequence) return a->sequence < b->sequence ? -1 : 1;
    return (a->order > b->order) - (a->order < b->order);
}

const char *bad_lines_get(bad_lines *b, uint64_t i) {
    if (!b->is_sorted && b->n > 1) qsort(b->line, b->n, sizeof *b->line, compare_lines);
    b->is_sorted = true;
    return b->line[i].reason;
}

uint64_t bad_lines_count(const bad_lines *b) {
    return b->n;
}

status bad_lines_fail(bad_lines *b) {
    return fail(ERR_FORMAT, "%s; this is bad line %llu, and --skip-bad allows %llu",
                bad_lines_get(b, b->limit), (unsigned long long)b->limit + 1,
                (unsigned long long)b->limit);
}
