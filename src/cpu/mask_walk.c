#include "cpu/mask_walk.h"

#include <string.h>

static int32_t rows_end(const mask_walk *w) {
    return w->n - w->row < MASK_TILE ? w->n : w->row + MASK_TILE;
}

void mask_walk_begin(mask_walk *w, const mask_view *m, int32_t b, int32_t n, int32_t tile_row) {
    w->m = m;
    w->n = n;
    w->row = tile_row * MASK_TILE;
    if (mask_rule_is_span(&m->rule)) {
        mask_span seen = mask_rule_seen(&m->rule, n, w->row, rows_end(w));
        w->next = seen.begin / MASK_TILE;
        w->end = (seen.end + MASK_TILE - 1) / MASK_TILE;
    } else {
        w->next = m->row_begin[m->first[b] + tile_row];
        w->end = m->row_begin[m->first[b] + tile_row + 1];
    }
}

static void fill_span_bits(mask_walk *w) {
    memset(w->own, 0, sizeof w->own);
    for (int32_t i = w->row; i < rows_end(w); i++)
        w->own[i - w->row] = mask_span_word(mask_rule_span(&w->m->rule, w->n, i), w->key);
    w->bits = w->own;
}

bool mask_walk_next(mask_walk *w) {
    if (w->next >= w->end) return false;
    if (mask_rule_is_span(&w->m->rule)) {
        w->key = w->next++ * MASK_TILE;
        fill_span_bits(w);
        return true;
    }
    mask_tile tile = w->m->row_tiles[w->next++];
    w->key = tile.tile * MASK_TILE;
    w->bits = w->own;
    if (tile.bits == MASK_FULL)
        memset(w->own, 0xff, sizeof w->own);
    else
        w->bits = w->m->bits + (int64_t)tile.bits * MASK_TILE;
    return true;
}
