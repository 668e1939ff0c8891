/* Tables that several ranks hold together (table.h): which shard a key belongs to, which rank holds
 * it, and all rows on one rank.
 *
 * A shard is a range of hashes, and so is a bucket: buckets are ranges of equal width.  Shards end
 * where buckets of all levels end, so a rank's shards are whole, consecutive buckets of each level,
 * and eviction, which looks at one bucket, is the same on any number of ranks. */
#include "embed/table_int.h"
#include "ops/comm.h"

static int64_t common_divisor(int64_t a, int64_t b) {
    while (b != 0) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* The first of `n` things that belongs to part k of n_parts; thing i belongs to i * n_parts / n. */
static int64_t first_of(int64_t k, int64_t n_parts, int64_t n) {
    return (k * n + n_parts - 1) / n_parts;
}

embed_shards embed_shards_make(const comm *c, const int64_t *n_buckets, int n_levels) {
    embed_shards s = {.n_units = n_buckets[0], .size = 1};
    for (int i = 1; i < n_levels; i++)
        s.n_units = common_divisor(s.n_units, n_buckets[i]);
    s.n = s.n_units < EMBED_SHARDS ? (int)s.n_units : EMBED_SHARDS;
    if (c != NULL) s.rank = c->rank, s.size = c->size;
    s.first = (int)first_of(s.rank, s.size, s.n);
    s.end = (int)first_of(s.rank + 1, s.size, s.n);
    int64_t first = first_of(s.first, s.n, s.n_units), end = first_of(s.end, s.n, s.n_units);
    for (int i = 0; i < n_levels; i++) {
        s.first_bucket[i] = first * (n_buckets[i] / s.n_units);
        s.n_buckets[i] = (end - first) * (n_buckets[i] / s.n_units);
    }
    return s;
}

int embed_shard_of(const embed_table *t, uint64_t key) {
    const embed_shards *s = &t->shards;
    return (int)(table_bucket(table_hash(key), s->n_units) * s->n / s->n_units);
}

int embed_rank_of(const embed_table *t, uint64_t key) {
    return embed_shard_of(t, key) * t->shards.size / t->shards.n;
}

int embed_n_shards(const embed_table *t) {
    return t->shards.n;
}

int64_t embed_n_own_slots(const embed_table *t) {
    return (t->shards.n_buckets[0] + t->shards.n_buckets[1]) * TABLE_SLOTS;
}

/* Rows on their way, as one block: keys, scores, rows, stamps. */
typedef struct parcel {
    uint64_t *keys, *scores;
    float *rows;
    uint32_t *stamps;
} parcel;

static size_t parcel_row_bytes(int32_t n_floats) {
    return 2 * sizeof(uint64_t) + sizeof(uint32_t) + (size_t)n_floats * sizeof(float);
}

static parcel parcel_at(void *memory, int64_t n, int32_t n_floats) {
    uint64_t *keys = memory;
    float *rows = (float *)(keys + 2 * n);
    return (parcel){keys, keys + n, rows, (uint32_t *)(rows + n * n_floats)};
}

static void parcel_add(const parcel *p, int64_t at, const embed_rows *rows, int64_t i) {
    size_t n_floats = (size_t)rows->n_floats;
    p->keys[at] = rows->keys[i];
    if (rows->rows == NULL) return; /* keys alone */
    p->scores[at] = rows->scores[i];
    p->stamps[at] = rows->stamps[i];
    memcpy(p->rows + (size_t)at * n_floats, rows->rows + (size_t)i * n_floats,
           n_floats * sizeof(float));
}

status embed_keep_own(const embed_table *t, const embed_rows *rows, embed_rows *own,
                      void **memory) {
    int64_t n = 0;
    *memory = NULL;
    *own = *rows;
    if (t->shards.size == 1) return OK;
    TRY(mem_alloc(memory, (size_t)rows->n, parcel_row_bytes(rows->n_floats)));
    parcel p = parcel_at(*memory, rows->n, rows->n_floats);
    for (int64_t i = 0; i < rows->n; i++)
        if (embed_is_own(t, rows->keys[i])) parcel_add(&p, n++, rows, i);
    *own = (embed_rows){n, p.keys, p.scores, p.stamps, p.rows, rows->n_floats};
    return OK;
}

static status sum_ranks(const embed_table *t, int64_t *values, int64_t n) {
    return comm_host_reduce(t->config.comm, COMM_I64, COMM_SUM, n, values);
}

/* A rank that cannot go on must not leave the others in the next exchange. */
static status agree(const embed_table *t, status own) {
    return comm_host_agree(t->config.comm, own);
}

/* What each rank has of `bytes` bytes each, one rank after the other, on all ranks: *out, which the
 * caller frees, (*n, bytes). */
static status gather_blocks(const embed_table *t, const void *own, int64_t n_own, size_t bytes,
                            void **out, int64_t *n) {
    size_t size = (size_t)t->shards.size;
    int64_t *n_rows = NULL;
    *n = 0;
    status st = agree(t, MEM_NEW(&n_rows, size));
    if (st == OK) n_rows[t->shards.rank] = n_own;
    if (st == OK) st = sum_ranks(t, n_rows, (int64_t)size);
    for (size_t r = 0; r < size && st == OK; r++)
        *n += n_rows[r];
    if (st == OK) st = agree(t, mem_alloc(out, (size_t)*n, bytes));
    all_gather_args a = {.row_bytes = (int64_t)bytes, .n_rows = n_rows, .from = own, .to = *out};
    if (st == OK && size > 1) st = comm_host_gather(t->config.comm, &a);
    if (st == OK && size == 1 && n_own > 0) memcpy(*out, own, (size_t)n_own * bytes);
    mem_free(n_rows);
    return st;
}

static status gather_gone(embed_totals *all, embed_table *t, int64_t since) {
    uint64_t *own = NULL;
    int64_t n = 0;
    status st = agree(t, embed_left_since(t, since, &own, &n));
    if (st == OK) st = gather_blocks(t, own, n, sizeof *own, (void **)&all->gone, &all->n_gone);
    if (st == OK) sort_uint64(all->gone, (size_t)all->n_gone);
    mem_free(own);
    return st;
}

static status gather_seen(embed_totals *all, const embed_table *t) {
    const sketch *own = &t->seen;
    size_t bytes = sketch_part_n(own) * sizeof *own->counter;
    int64_t n;
    all->seen.mask = own->mask;
    TRY(gather_blocks(t, own->counter, own->n, bytes, (void **)&all->seen.counter, &n));
    TRY(gather_blocks(t, own->n_seen, own->n, sizeof *own->n_seen, (void **)&all->seen.n_seen, &n));
    all->seen.n = (int)n;
    return OK;
}

status embed_totals_gather(embed_totals *out, embed_table *t, int64_t since) {
    status st = OK;
    *out = (embed_totals){0};
    for (int i = 0; i < EMBED_TIERS && st == OK; i++)
        st = embed_tier_size(t, i, &out->tier_rows[i]);
    TRY(agree(t, st));
    TRY(sum_ranks(t, out->tier_rows, EMBED_TIERS));
    if (since > 0) TRY(gather_gone(out, t, since));
    return t->config.admit_count > 1 ? gather_seen(out, t) : OK;
}

void embed_totals_fini(embed_totals *a) {
    mem_free(a->gone);
    sketch_fini(&a->seen);
}
