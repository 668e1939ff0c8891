#include "ops/mask_tiles.h"

#include "base/map.h"

enum { TILE_WORDS = MASK_TILE };

/* Tiles while they are made. */
typedef struct maker {
    mask_tiles *p;
    size_t tiles_room;
    text_map bitmaps;
    uint64_t *words; /* (MASK_TILE, n_tiles): the rows of a row of tiles */
} maker;

/* The number of this bitmap, which is added if it is new. */
static status find_bits(maker *k, const uint64_t *bits, int32_t *out) {
    size_t n_bytes = sizeof *bits * TILE_WORDS;
    if (k->bitmaps.n == INT32_MAX)
        return fail(ERR_UNSUPPORTED, "mask: more than 2^31 partial tiles");
    TRY(text_map_reserve(&k->bitmaps, 1, n_bytes));
    *out = (int32_t)text_map_put(&k->bitmaps, (const char *)bits, n_bytes);
    return OK;
}

static status add_tile(maker *k, int32_t column, const uint64_t *bits) {
    mask_tiles *p = k->p;
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
    mask_tiles *p = k->p;
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
static status make_columns(mask_tiles *p) {
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

static status make_tiles(maker *k, const mask *m, int64_t sequence) {
    mask_tiles *p = k->p;
    TRY(MEM_NEW(&p->row_begin, (size_t)p->n_tiles + 1));
    TRY(MEM_NEW(&p->col_begin, (size_t)p->n_tiles + 1));
    TRY(MEM_NEW_RAW(&k->words, (size_t)p->n_tiles * MASK_TILE));
    for (int32_t t = 0; t < p->n_tiles; t++)
        TRY(add_tile_row(k, m, sequence, t));
    return make_columns(p);
}

status mask_tiles_create(mask_tiles **out, const mask *m, int64_t sequence, int64_t n) {
    maker k = {0};
    *out = NULL;
    TRY(mask_check(m, sequence, n));
    TRY(MEM_NEW(&k.p, 1));
    k.p->n = (int32_t)n;
    k.p->n_tiles = (int32_t)((n + MASK_TILE - 1) / MASK_TILE);
    status st = make_tiles(&k, m, sequence);
    k.p->n_bits = (int32_t)k.bitmaps.n;
    k.p->bits = (uint64_t *)(void *)k.bitmaps.bytes.data; /* the tiles own them from here on */
    k.bitmaps.bytes = (buf){0};
    text_map_fini(&k.bitmaps);
    mem_free(k.words);
    if (st == OK)
        *out = k.p;
    else
        mask_tiles_destroy(k.p);
    return st;
}

void mask_tiles_destroy(mask_tiles *p) {
    if (p == NULL) return;
    MEM_FREE(p->row_begin, p->col_begin, p->row_tiles, p->col_tiles, p->bits, p);
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

int64_t mask_tiles_count(const mask_tiles *p, int32_t side) {
    int64_t count = 0, in_full = (int64_t)(MASK_TILE / side) * (MASK_TILE / side);
    for (int64_t i = 0; i < p->n_listed; i++) {
        int32_t bits = p->row_tiles[i].bits;
        count +=
            bits == MASK_FULL ? in_full : count_in_bits(p->bits + (size_t)bits * TILE_WORDS, side);
    }
    return count;
}

/* An array that grows on the host and whose new elements are copied to the backend. */
typedef struct mirrored {
    char *host;
    void *device;
    size_t size;           /* of an element */
    size_t n, n_copied;    /* elements, and those that the backend has */
    size_t room, n_device; /* allocated on the host, and on the backend */
} mirrored;

/* Tiles of one length or sequence that the arrays hold. */
typedef struct held_tiles {
    int64_t key; /* the length, or the sequence */
    int32_t first;
    int64_t n_pairs, n_listed;
} held_tiles;

enum { ROW_BEGIN, COL_BEGIN, ROW_TILES, COL_TILES, BITS, N_ARRAYS };

struct mask_batch {
    backend *be;
    const mask *m;
    int32_t max_sequences;
    held_tiles *held; /* (n_held), ascending by key */
    size_t n_held, held_room;
    mirrored arrays[N_ARRAYS];
    int32_t *first_host; /* (max_sequences) */
    int32_t *first;      /* (max_sequences), the backend's */
    int32_t *first_sent; /* (max_sequences): what the backend has, of n_sent sequences */
    int32_t n_sent;
    mask_view view;
};

static status append(mirrored *x, const void *from, size_t n) {
    TRY(mem_reserve((void **)&x->host, &x->room, x->n + n, x->size));
    if (n > 0) memcpy(x->host + x->n * x->size, from, n * x->size);
    x->n += n;
    return OK;
}

/* Copies what is new; allocates twice as much where there is no room. */
static status upload(mirrored *x, backend *be, uint64_t *epoch) {
    if (x->n > x->n_device || x->device == NULL) {
        size_t n_device = 2 * x->n + 1;
        void *device;
        TRY(be->ops->alloc(be, &device, n_device * x->size));
        be->ops->release(be, x->device);
        x->device = device;
        x->n_device = n_device;
        x->n_copied = 0;
        ++*epoch;
    }
    size_t at = x->n_copied * x->size, bytes = (x->n - x->n_copied) * x->size;
    if (bytes > 0) TRY(be->ops->copy_in(be, (char *)x->device + at, x->host + at, bytes));
    x->n_copied = x->n;
    return OK;
}

status mask_batch_create(mask_batch **out, backend *be, const mask *m, int32_t max_sequences) {
    static const size_t sizes[N_ARRAYS] = {sizeof(int32_t), sizeof(int32_t), sizeof(mask_tile),
                                           sizeof(mask_tile), sizeof(uint64_t) * MASK_TILE};
    mask_batch *mb;
    *out = NULL;
    TRY(MEM_NEW(&mb, 1));
    mb->be = be;
    mb->m = m;
    mb->max_sequences = max_sequences;
    mb->view.rule = *mask_rule_of(m);
    for (int i = 0; i < N_ARRAYS; i++)
        mb->arrays[i].size = sizes[i];
    status st = MEM_NEW(&mb->first_host, (size_t)max_sequences);
    if (st == OK) st = MEM_NEW(&mb->first_sent, (size_t)max_sequences);
    if (st == OK)
        st = be->ops->alloc(be, (void **)&mb->first, sizeof(int32_t) * (size_t)max_sequences);
    return CREATED(st, out, mb, mask_batch_destroy);
}

void mask_batch_destroy(mask_batch *mb) {
    if (mb == NULL) return;
    for (int i = 0; i < N_ARRAYS; i++) {
        mem_free(mb->arrays[i].host);
        mb->be->ops->release(mb->be, mb->arrays[i].device);
    }
    mb->be->ops->release(mb->be, mb->first);
    MEM_FREE(mb->first_host, mb->first_sent, mb->held, mb);
}

/* Where a key is, or would be inserted. */
static size_t place_of(const mask_batch *mb, int64_t key) {
    size_t low = 0, high = mb->n_held;
    BISECT(low, high, mb->held[middle].key < key);
    return low;
}

/* The begins and tiles of one mask, counted from where its tiles and bitmaps are in the arrays. */
static status append_lists(mirrored *begins, mirrored *tiles, int64_t bits_before, int32_t n_tiles,
                           const int32_t *begin, const mask_tile *tile) {
    size_t tiles_before = tiles->n;
    TRY(append(tiles, tile, (size_t)begin[n_tiles]));
    mask_tile *added = (mask_tile *)tiles->host + tiles_before;
    for (int32_t i = 0; i < begin[n_tiles]; i++)
        if (added[i].bits != MASK_FULL) added[i].bits += (int32_t)bits_before;
    for (int32_t t = 0; t <= n_tiles; t++) {
        int32_t moved = begin[t] + (int32_t)tiles_before;
        TRY(append(begins, &moved, 1));
    }
    return OK;
}

static status append_tiles(mask_batch *mb, const mask_tiles *p) {
    mirrored *x = mb->arrays;
    int64_t bits_before = (int64_t)x[BITS].n;
    if ((int64_t)x[ROW_TILES].n + p->n_listed > INT32_MAX || bits_before + p->n_bits > INT32_MAX)
        return fail(ERR_UNSUPPORTED, "mask: a batch with more than 2^31 tiles; make it smaller");
    TRY(append(&x[BITS], p->bits, (size_t)p->n_bits));
    TRY(append_lists(&x[ROW_BEGIN], &x[ROW_TILES], bits_before, p->n_tiles, p->row_begin,
                     p->row_tiles));
    return append_lists(&x[COL_BEGIN], &x[COL_TILES], bits_before, p->n_tiles, p->col_begin,
                        p->col_tiles);
}

/* Makes the tiles of a key that has none. */
static status add_tiles(mask_batch *mb, size_t place, int64_t key, int64_t sequence, int32_t n) {
    mask_tiles *p;
    held_tiles h = {key, (int32_t)mb->arrays[ROW_BEGIN].n, 0, 0};
    TRY(MEM_RESERVE(&mb->held, &mb->held_room, mb->n_held + 1));
    TRY(mask_tiles_create(&p, mb->m, sequence, n));
    status st = append_tiles(mb, p);
    h.n_pairs = p->n_pairs;
    h.n_listed = p->n_listed;
    mask_tiles_destroy(p);
    TRY(st);
    memmove(mb->held + place + 1, mb->held + place, sizeof h * (mb->n_held - place));
    mb->held[place] = h;
    mb->n_held++;
    return OK;
}

static void forget_tiles(mask_batch *mb) {
    mb->n_held = 0;
    for (int i = 0; i < N_ARRAYS; i++)
        mb->arrays[i].n = mb->arrays[i].n_copied = 0;
}

static size_t held_bytes(const mask_batch *mb) {
    size_t bytes = 0;
    for (int i = 0; i < N_ARRAYS; i++)
        bytes += mb->arrays[i].n * mb->arrays[i].size;
    return bytes;
}

static status set_sequence(mask_batch *mb, int32_t b, int64_t sequence, int32_t n) {
    int64_t key = mask_is_by_sequence(mb->m) ? sequence : n;
    TRY(mask_check(mb->m, sequence, n));
    if (mask_rule_is_span(&mb->view.rule)) {
        mb->view.n_pairs += mask_rule_pairs(&mb->view.rule, n);
        return OK;
    }
    size_t place = place_of(mb, key);
    if (place == mb->n_held || mb->held[place].key != key)
        TRY(add_tiles(mb, place, key, sequence, n));
    mb->first_host[b] = mb->held[place].first;
    mb->view.n_pairs += mb->held[place].n_pairs;
    mb->view.n_listed += mb->held[place].n_listed;
    return OK;
}

static void set_view(mask_batch *mb) {
    const mirrored *x = mb->arrays;
    mb->view.first = mb->first;
    mb->view.row_begin = x[ROW_BEGIN].device;
    mb->view.col_begin = x[COL_BEGIN].device;
    mb->view.row_tiles = x[ROW_TILES].device;
    mb->view.col_tiles = x[COL_TILES].device;
    mb->view.bits = x[BITS].device;
    mb->view.n_begins = (int64_t)x[ROW_BEGIN].n;
    mb->view.n_tiles = (int64_t)x[ROW_TILES].n;
    mb->view.n_bits = (int64_t)x[BITS].n;
}

/* Batches of the same lengths have the same tiles: nothing is copied for them. */
static status send_first(mask_batch *mb, int32_t n) {
    size_t bytes = sizeof(int32_t) * (size_t)n;
    if (n <= mb->n_sent && memcmp(mb->first_sent, mb->first_host, bytes) == 0) return OK;
    mb->n_sent = 0;
    TRY(mb->be->ops->copy_in(mb->be, mb->first, mb->first_host, bytes));
    memcpy(mb->first_sent, mb->first_host, bytes);
    mb->n_sent = n;
    return OK;
}

status mask_batch_set(mask_batch *mb, int64_t first, int32_t n_sequences, const int32_t *lengths) {
    if (n_sequences > mb->max_sequences)
        return fail(ERR_USAGE, "mask: a batch of %d sequences, made for at most %d", n_sequences,
                    mb->max_sequences);
    if (first < 0 || first > INT64_MAX - n_sequences)
        return fail(ERR_USAGE, "mask: the number of the first sequence is %lld", (long long)first);
    if (held_bytes(mb) > MASK_BATCH_BYTES) forget_tiles(mb);
    mb->view.n_pairs = mb->view.n_listed = 0;
    status st = OK;
    for (int32_t b = 0; b < n_sequences && st == OK; b++)
        st = set_sequence(mb, b, first + b, lengths[b]);
    if (st != OK) forget_tiles(mb); /* some tiles may have been appended */
    TRY(st);
    if (mask_rule_is_span(&mb->view.rule)) return OK;
    for (int i = 0; i < N_ARRAYS; i++)
        TRY(upload(&mb->arrays[i], mb->be, &mb->view.epoch));
    TRY(send_first(mb, n_sequences));
    set_view(mb);
    return OK;
}

const mask_view *mask_batch_view(const mask_batch *mb) {
    return &mb->view;
}
