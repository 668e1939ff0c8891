#include "embed/sketch.h"

#include <string.h>

#include "base/mem.h"

/* A table with a store may see far more keys than it has slots, hence the minimum width of all
 * parts together; a part alone has a minimum, too. */
enum { HALVING = 10, COUNTER_MAX = 65535, MIN_WIDTH = 1 << 14, MIN_PART = 64 };

status sketch_init(sketch *s, int64_t n_keys, int n_parts, int first, int end) {
    int64_t width = (n_keys > MIN_WIDTH ? n_keys : MIN_WIDTH) / n_parts;
    *s = (sketch){.mask = MIN_PART - 1, .first = first, .n = end - first};
    while ((int64_t)s->mask + 1 < width)
        s->mask = s->mask * 2 + 1;
    TRY(MEM_NEW(&s->n_seen, (size_t)s->n));
    return MEM_NEW(&s->counter, (size_t)s->n * sketch_part_n(s));
}

void sketch_fini(sketch *s) {
    mem_free(s->counter);
    mem_free(s->n_seen);
    *s = (sketch){0};
}

void sketch_clear(sketch *s) {
    if (s->counter == NULL) return;
    memset(s->counter, 0, (size_t)s->n * sketch_part_n(s) * sizeof *s->counter);
    memset(s->n_seen, 0, (size_t)s->n * sizeof *s->n_seen);
}

uint32_t sketch_add(sketch *s, int part, uint64_t hash, uint32_t times) {
    uint16_t *at[SKETCH_ROWS], *own = s->counter + (size_t)(part - s->first) * sketch_part_n(s);
    uint64_t *n_seen = &s->n_seen[part - s->first];
    uint32_t least = COUNTER_MAX;
    for (int r = 0; r < SKETCH_ROWS; r++) {
        /* One odd multiplier for each row, and the high bits of the product. */
        uint64_t mixed =
            (hash ^ hash >> 29) * (0x9e3779b97f4a7c15ull + 2 * (uint64_t)r * 0x632be5ab);
        at[r] = &own[(size_t)r * (s->mask + 1) + (mixed >> 32 & s->mask)];
        if (*at[r] < least) least = *at[r];
    }
    uint32_t count = times > COUNTER_MAX - least ? COUNTER_MAX : least + times;
    for (int r = 0; r < SKETCH_ROWS; r++)
        if (*at[r] < count) *at[r] = (uint16_t)count;
    *n_seen += times;
    if (*n_seen <= HALVING * (s->mask + 1)) return count;
    for (size_t i = 0; i < sketch_part_n(s); i++)
        own[i] /= 2;
    *n_seen = 0;
    return count;
}
