/* The bench of dynamic tables: lookups in the index alone.
 *
 * The index is filled with keys that follow from their slot (bucket and place in it), so that every
 * answer can be checked.  For a CPU there is also the limit that memory sets: reads of one byte at
 * random places of the same amount of memory, with the same threads. */
#include <inttypes.h>
#include <stdio.h>

#include "base/mem.h"
#include "base/thread.h"
#include "cli/bench/embedding_int.h"

enum { FILL_BUCKETS = 4096 };

/* The j-th of 4096 keys of a bucket. */
static uint64_t key_of(int64_t n_buckets, int64_t bucket, int64_t j) {
    uint64_t width = UINT64_MAX / (uint64_t)n_buckets;
    __extension__ typedef unsigned __int128 wide;
    uint64_t first = (uint64_t)(((wide)(uint64_t)bucket << 64) / (uint64_t)n_buckets);
    return table_unhash(first + 1 + (uint64_t)j * (width / 4098));
}

/* A level without rows whose buckets are full of their first keys. */
static status level_create(embed_bench *b, table_level *l, int64_t n_buckets) {
    void *index = NULL;
    *l = (table_level){.n_buckets = n_buckets};
    TRY(b->v->alloc(b->be, &index, (size_t)n_buckets * TABLE_BUCKET_BYTES, TABLE_ON_DEVICE));
    l->index = index;
    table_level piece = {.n_buckets = FILL_BUCKETS};
    TRY(mem_alloc((void **)&piece.index, FILL_BUCKETS, TABLE_BUCKET_BYTES));
    status st = OK;
    for (int64_t first = 0; st == OK && first < n_buckets; first += FILL_BUCKETS) {
        int64_t n = n_buckets - first < FILL_BUCKETS ? n_buckets - first : FILL_BUCKETS;
        for (int64_t k = 0; k < n; k++)
            for (int j = 0; j < TABLE_SLOTS; j++) {
                uint64_t key = key_of(n_buckets, first + k, j);
                table_digests(&piece, k)[j] = table_digest(table_hash(key));
                table_entries(&piece, k)[j] = (table_entry){key, 1};
                table_stamps(&piece, k)[j] = 1;
            }
        st = b->be->ops->copy_in(b->be, l->index + first * TABLE_BUCKET_BYTES, piece.index,
                                 (size_t)n * TABLE_BUCKET_BYTES);
    }
    mem_free(piece.index);
    return st;
}

/* Batch `round`: `hits` of 10 keys are in the index. */
static status draw_keys(embed_bench *b, const table_level *l, int hits, int round) {
    int64_t n_known = l->n_buckets * TABLE_SLOTS;
    for (int64_t i = 0; i < b->n; i++) {
        int64_t s = embed_bench_draw_slot(b, n_known, (int64_t)round * b->n + i);
        int64_t bucket = s / TABLE_SLOTS, j = s % TABLE_SLOTS;
        b->host[i] = key_of(l->n_buckets, bucket, i % 10 < hits ? j : 64 + round * 64 + j);
    }
    return b->be->ops->copy_in(b->be, b->keys[round], b->host, (size_t)b->n * 8);
}

typedef struct probe_ctx {
    embed_bench *b;
    const table_level *l;
} probe_ctx;

static status probe(void *ctx, int round) {
    const probe_ctx *p = ctx;
    table_find_args a = {.n = p->b->n, .keys = p->b->keys[round], .slot = p->b->slot};
    return p->b->v->find(p->b->be, p->l, &a);
}

/* The slots must be those that the keys were made from. */
static status check_probe(embed_bench *b, const table_level *l, int hits) {
    probe_ctx p = {b, l};
    TRY(probe(&p, 0));
    TRY(b->be->ops->copy_out(b->be, b->host_slot, b->slot, (size_t)b->n * 8));
    for (int64_t i = 0; i < b->n; i++) {
        int64_t want = i % 10 < hits ? embed_bench_draw_slot(b, l->n_buckets * TABLE_SLOTS, i) : -1;
        if (b->host_slot[i] != want)
            return fail(ERR_FORMAT, "find gave slot %lld, not %lld", (long long)b->host_slot[i],
                        (long long)want);
    }
    return OK;
}

/* The limit set by memory: one byte at random places, prefetched as find does. */
typedef struct byte_ctx {
    const unsigned char *memory;
    uint64_t bytes;
    int64_t n;
    uint64_t sum[256]; /* by thread: keeps the compiler from dropping the reads */
} byte_ctx;

static status read_bytes(void *ctx, int64_t chunk, int worker) {
    byte_ctx *c = ctx;
    uint64_t ahead = (uint64_t)chunk * 77777, at = ahead, sum = 0;
    __extension__ typedef unsigned __int128 wide;
    for (int i = 0; i < 12; i++)
        ahead += 0x9e3779b97f4a7c15ull;
    for (int i = 0; i < 4096; i++) {
        ahead += 0x9e3779b97f4a7c15ull;
        at += 0x9e3779b97f4a7c15ull;
        __builtin_prefetch(c->memory + (uint64_t)((wide)table_hash(ahead) * c->bytes >> 64), 0, 3);
        sum += c->memory[(wide)table_hash(at) * c->bytes >> 64];
    }
    c->sum[worker] += sum;
    return OK;
}

static status bench_memory(embed_bench *b, const table_level *l, const char *size) {
    byte_ctx c = {l->index, (uint64_t)l->n_buckets * TABLE_BUCKET_BYTES, 0, {0}};
    uint64_t start = clock_ns(), now = start;
    int64_t n = 0;
    if (!embed_bench_is_cpu(b)) return OK;
    for (; now - start < (uint64_t)(b->o.seconds * 1e9) || n == 0; n += 256) {
        TRY(pool_run(b->be->workers, 256, read_bytes, &c));
        now = clock_ns();
    }
    embed_figure f = {.what = "the memory: random lines",
                      .size = size,
                      .per_s = (double)n * 4096e9 / (double)(now - start)};
    return embed_bench_report(b, &f);
}

status embed_bench_probe(embed_bench *b, double gib) {
    char size[32];
    table_level l;
    double rate = 0;
    snprintf(size, sizeof size, "%.3g GiB", gib);
    int64_t n_buckets = (int64_t)(gib * EMBED_GIBI / TABLE_BUCKET_BYTES);
    status st = level_create(b, &l, n_buckets < 64 ? 64 : n_buckets);
    for (int hits = 10; st == OK && hits >= 6; hits -= 4) {
        probe_ctx p = {b, &l};
        for (int r = 0; st == OK && r < N_BATCHES; r++)
            st = draw_keys(b, &l, hits, r);
        if (st == OK) st = check_probe(b, &l, hits);
        if (st == OK) st = embed_bench_rate(b, probe, &p, &rate);
        embed_figure f = {.what = hits == 10 ? "find slots, all hit" : "find slots, 60 % hit",
                          .size = size,
                          .per_s = rate * (double)b->n,
                          .ms = 1e3 / rate,
                          .n_checked = b->n};
        if (st == OK) st = embed_bench_report(b, &f);
    }
    if (st == OK) st = bench_memory(b, &l, size);
    if (l.index != NULL) b->v->release(b->be, l.index, TABLE_ON_DEVICE);
    return st;
}
