#include "ops/mask_plan.h"

#include <string.h>

#include "base/hash.h"
#include "base/mem.h"

enum { TILE_WORDS = MASK_TILE };

/* A plan while it is made. */
typedef struct maker {
    mask_plan *p;
    size_t tiles_room, bits_room;
    int32_t *slots; /* (n_slots), a power of two: bitmap + 1, or 0; at most half are used */
    size_t n_slots;
    uint64_t *words; /* (MASK_TILE, n_tiles): the rows of a row of tiles */
} maker;

static size_t slot_of(const maker *k, const uint64_t *bits) {
    size_t at = (size_t)hash64(bits, sizeof *bits * TILE_WORDS, 0) & (k->n_slots - 1);
    while (k->slots[at] != 0 && memcmp(k->p->bits + (size_t)(k->slots[at] - 1) * TILE_WORDS, bits,
                                       sizeof *bits * TILE_WORDS) != 0)
        at = (at + 1) & (k->n_slots - 1);
    return at;
}

static status grow_slots(maker *k) {
    size_t n_slots = k->n_slots == 0 ? 64 : 2 * k->n_slots;
    int32_t *slots;
    TRY(MEM_NEW(&slots, n_slots));
    mem_free(k->slots);
    k->slots = slots;
    k->n_slots = n_slots;
    for (int32_t b = 0; b < k->p->n_bits; b++)
        k->slots[slot_of(k, k->p->bits + (size_t)b * TILE_WORDS)] = b + 1;
    return OK;
}

/* The number of this bitmap, which is added if it is new. */
static status find_bits(maker *k, const uint64_t *bits, int32_t *out) {
    mask_plan *p = k->p;
    if ((size_t)p->n_bits * 2 >= k->n_slots) TRY(grow_slots(k));
    size_t slot = slot_of(k, bits);
    if (k->slots[slot] == 0) {
        if (p->n_bits == INT32_MAX)
            return fail(ERR_UNSUPPORTED, "mask: more than 2^31 partial tiles");
        TRY(MEM_RESERVE(&p->bits, &k->bits_room, ((size_t)p->n_bits + 1) * TILE_WORDS));
        memcpy(p->bits + (size_t)p->n_bits * TILE_WORDS, bits, sizeof *bits * TILE_WORDS);
        k->slots[slot] = ++p->n_bits;
    }
    *out = k->slots[slot] - 1;
    return OK;
}

static status add_tile(maker *k, int32_t column, const uint64_t *bits) {
    mask_plan *p = k->p;
    uint64_t any = 0, all = ~(uint64_t)0;
    mask_tile tile = {column, MASK_FULL};
    for (int r = 0; r < MASK_TILE; r++) {
        any |= bits[r];
        all &= bits[r];
        p->n_pairs += __builtin_popcountll(bits[r]);
    }
    if (any == 0) return OK;
    if (all != ~(uint64_t)0) TRY(find_bits(k, bits, &tile.bits));
    p->n_full += tile.bits == MASK_FULL;
    if (p->n_listed == INT32_MAX) return fail(ERR_UNSUPPORTED, "mask: more than 2^31 tiles");
    TRY(MEM_RESERVE(&p->row_tiles, &k->tiles_room, (size_t)p->n_listed + 1));
    p->row_tiles[p->n_listed++] = tile;
    return OK;
}

static status add_tile_row(maker *k, const mask *m, int64_t sequence, int32_t t) {
    mask_plan *p = k->p;
    int32_t row = t * MASK_TILE, n_rows = p->n - row < MASK_TILE ? p->n - row : MASK_TILE;
    uint64_t bits[TILE_WORDS];
    mask_fill_rows(m, sequence, p->n, row, n_rows, k->words, p->n_tiles);
    for (int32_t column = 0; column < p->n_tiles; column++) {
        for (int32_t r = 0; r < MASK_TILE; r++)
            bits[r] = r < n_rows ? k->words[(int64_t)r * p->n_tiles + column] : 0;
        TRY(add_tile(k, column, bits));
    }
    p->row_begin[t + 1] = (int32_t)p->n_listed;
    return OK;
}

/* The lists of the columns from those of the rows. */
static status make_columns(mask_plan *p) {
    TRY(MEM_NEW(&p->col_tiles, (size_t)p->n_listed));
    for (int64_t i = 0; i < p->n_listed; i++)
        p->col_begin[p->row_tiles[i].tile + 1]++;
    for (int32_t t = 0; t < p->n_tiles; t++)
        p->col_begin[t + 1] += p->col_begin[t];
    for (int32_t t = 0; t < p->n_tiles; t++)
        for (int32_t i = p->row_begin[t]; i < p->row_begin[t + 1]; i++)
            p->col_tiles[p->col_begin[p->row_tiles[i].tile]++] =
                (mask_tile){t, p->row_tiles[i].bits};
    for (int32_t t = p->n_tiles; t > 0; t--) /* every begin has moved to its end */
        p->col_begin[t] = p->col_begin[t - 1];
    p->col_begin[0] = 0;
    return OK;
}

static status make_plan(maker *k, const mask *m, int64_t sequence) {
    mask_plan *p = k->p;
    TRY(MEM_NEW(&p->row_begin, (size_t)p->n_tiles + 1));
    TRY(MEM_NEW(&p->col_begin, (size_t)p->n_tiles + 1));
    TRY(MEM_NEW_RAW(&k->words, (size_t)p->n_tiles * MASK_TILE));
    for (int32_t t = 0; t < p->n_tiles; t++)
        TRY(add_tile_row(k, m, sequence, t));
    return make_columns(p);
}

status mask_plan_create(mask_plan **out, const mask *m, int64_t sequence, int64_t n) {
    maker k = {0};
    *out = NULL;
    TRY(mask_check(m, sequence, n));
    TRY(MEM_NEW(&k.p, 1));
    k.p->n = (int32_t)n;
    k.p->n_tiles = (int32_t)((n + MASK_TILE - 1) / MASK_TILE);
    status st = make_plan(&k, m, sequence);
    mem_free(k.slots);
    mem_free(k.words);
    if (st == OK)
        *out = k.p;
    else
        mask_plan_destroy(k.p);
    return st;
}

void mask_plan_destroy(mask_plan *p) {
    if (p == NULL) return;
    mem_free(p->row_begin);
    mem_free(p->col_begin);
    mem_free(p->row_tiles);
    mem_free(p->col_tiles);
    mem_free(p->bits);
    mem_free(p);
}

size_t mask_plan_bytes(const mask_plan *p) {
    return 2 * sizeof(int32_t) * ((size_t)p->n_tiles + 1) +
           2 * sizeof(mask_tile) * (size_t)p->n_listed +
           sizeof(uint64_t) * TILE_WORDS * (size_t)p->n_bits;
}

/* Subtiles of one bitmap in which anything is seen. */
static int64_t count_in_bits(const uint64_t *bits, int32_t side) {
    uint64_t column = side == 64 ? ~(uint64_t)0 : ((uint64_t)1 << side) - 1;
    int64_t count = 0;
    for (int32_t row = 0; row < MASK_TILE; row += side) {
        uint64_t any = 0;
        for (int32_t r = 0; r < side; r++)
            any |= bits[row + r];
        for (int32_t c = 0; c < MASK_TILE; c += side)
            count += (any & column << c) != 0;
    }
    return count;
}

int64_t mask_plan_count_tiles(const mask_plan *p, int32_t side) {
    int64_t count = 0, in_full = (int64_t)(MASK_TILE / side) * (MASK_TILE / side);
    for (int64_t i = 0; i < p->n_listed; i++) {
        int32_t bits = p->row_tiles[i].bits;
        count +=
            bits == MASK_FULL ? in_full : count_in_bits(p->bits + (size_t)bits * TILE_WORDS, side);
    }
    return count;
}
