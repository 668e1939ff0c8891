#include "embed/sketch.h"

#include "base/mem.h"

/* A table with a store may see far more keys than it has slots, hence the minimum width. */
enum { HALVING = 10, COUNTER_MAX = 65535, MIN_WIDTH = 1 << 14 };

status sketch_init(sketch *s, int64_t n_keys) {
    *s = (sketch){.mask = MIN_WIDTH - 1};
    while ((int64_t)s->mask + 1 < n_keys)
        s->mask = s->mask * 2 + 1;
    return MEM_NEW(&s->counter, (size_t)(s->mask + 1) * SKETCH_ROWS);
}

void sketch_fini(sketch *s) {
    mem_free(s->counter);
    *s = (sketch){0};
}

static void halve(sketch *s) {
    for (size_t i = 0; i < (size_t)(s->mask + 1) * SKETCH_ROWS; i++)
        s->counter[i] /= 2;
    s->n_seen = 0;
}

uint32_t sketch_add(sketch *s, uint64_t hash, uint32_t times) {
    uint16_t *at[SKETCH_ROWS];
    uint32_t least = COUNTER_MAX;
    for (int r = 0; r < SKETCH_ROWS; r++) {
        /* One odd multiplier for each row, and the high bits of the product. */
        uint64_t mixed =
            (hash ^ hash >> 29) * (0x9e3779b97f4a7c15ull + 2 * (uint64_t)r * 0x632be5ab);
        at[r] = &s->counter[(size_t)r * (s->mask + 1) + (mixed >> 32 & s->mask)];
        if (*at[r] < least) least = *at[r];
    }
    uint32_t count = times > COUNTER_MAX - least ? COUNTER_MAX : least + times;
    for (int r = 0; r < SKETCH_ROWS; r++)
        if (*at[r] < count) *at[r] = (uint16_t)count;
    s->n_seen += times;
    if (s->n_seen > HALVING * (s->mask + 1)) halve(s);
    return count;
}
