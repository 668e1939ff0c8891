/* hstu bench embedding: dynamic tables: probes, rows, inserts with evictions, pooling, a whole
 * step.
 *
 * Tables are filled with keys that are known by slot (bucket and place in it), so that each answer
 * can be checked: every measured call is checked once before it is timed, on keys drawn anew in
 * each run.  Beside the probes stands what the memory gives: reads of one byte at random places of
 * the same size, with the same threads. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/mem.h"
#include "cli/bench.h"
#include "cli/bench_embedding.h"
#include "cli/cli.h"
#include "cli/show.h"
#include "cli/work.h"

enum { FILL_BUCKETS = 4096, BAG = 32, N_SIZES = 3 };

/* ---- known keys ------------------------------------------------------------------------------ */

/* The j-th of 4096 keys of a bucket. */
static uint64_t key_of(int64_t n_buckets, int64_t bucket, int64_t j) {
    uint64_t width = UINT64_MAX / (uint64_t)n_buckets;
    __extension__ typedef unsigned __int128 wide;
    uint64_t first = (uint64_t)(((wide)(uint64_t)bucket << 64) / (uint64_t)n_buckets);
    return table_unhash(first + 1 + (uint64_t)j * (width / 4098));
}

/* The i-th draw of this run: different slots for different i below the number of slots. */
static int64_t draw_slot(const bench *b, int64_t n_slots, int64_t i) {
    __extension__ typedef unsigned __int128 wide;
    return (int64_t)((wide)((uint64_t)i + b->salt) * 2654435761u % (uint64_t)n_slots);
}

/* A level whose buckets hold their first n_used keys. */
static status level_create(bench *b, table_level *l, int64_t n_buckets, int64_t row_bytes,
                           int n_used) {
    void *index = NULL, *rows = NULL;
    *l = (table_level){.n_buckets = n_buckets, .row_bytes = row_bytes};
    TRY(b->v->alloc(b->be, &index, (size_t)n_buckets * TABLE_BUCKET_BYTES, TABLE_ON_DEVICE));
    l->index = index;
    if (row_bytes > 0) {
        size_t bytes = (size_t)(n_buckets * TABLE_SLOTS * row_bytes);
        TRY(b->v->alloc(b->be, &rows, bytes, TABLE_ON_DEVICE));
        l->rows = rows;
        TRY(b->be->ops->zero(b->be, rows, bytes));
    }
    table_level piece = {.n_buckets = FILL_BUCKETS};
    TRY(mem_alloc((void **)&piece.index, FILL_BUCKETS, TABLE_BUCKET_BYTES));
    status st = OK;
    for (int64_t first = 0; st == OK && first < n_buckets; first += FILL_BUCKETS) {
        int64_t n = n_buckets - first < FILL_BUCKETS ? n_buckets - first : FILL_BUCKETS;
        for (int64_t k = 0; k < n; k++)
            for (int j = 0; j < n_used; j++) {
                uint64_t key = key_of(n_buckets, first + k, j);
                table_digests(&piece, k)[j] = table_digest(table_hash(key));
                table_entries(&piece, k)[j] = (table_entry){key, 1 + (key >> 40)};
                table_stamps(&piece, k)[j] = 1;
            }
        st = b->be->ops->copy_in(b->be, l->index + first * TABLE_BUCKET_BYTES, piece.index,
                                 (size_t)n * TABLE_BUCKET_BYTES);
    }
    mem_free(piece.index);
    return st;
}

static void level_destroy(bench *b, table_level *l) {
    if (l->index != NULL) b->v->release(b->be, l->index, TABLE_ON_DEVICE);
    if (l->rows != NULL) b->v->release(b->be, l->rows, TABLE_ON_DEVICE);
}

/* Batch `round`: `hits` of 10 keys are there (n_used a bucket), others are new with each round. */
static status draw_keys(bench *b, const table_level *l, int n_used, int hits, int round,
                        int64_t n) {
    int64_t n_known = l->n_buckets * n_used;
    for (int64_t i = 0; i < n; i++) {
        int64_t s = draw_slot(b, n_known, (int64_t)round * n + i);
        int64_t bucket = s / n_used, j = s % n_used;
        b->host[i] = key_of(l->n_buckets, bucket, i % 10 < hits ? j : 64 + round * 64 + j);
    }
    return b->be->ops->copy_in(b->be, b->keys[round], b->host, (size_t)n * 8);
}

/* ---- results --------------------------------------------------------------------------------- */

status bench_show(const bench *b, const char *what, const char *size, double per_s, double bytes) {
    show_style style = show_stdout_style();
    if (!b->o.is_json) {
        printf("  %-34s %-12s %s%10.1f M/s%s", what, size, style.bold, per_s / 1e6, style.plain);
        if (bytes > 0) printf(" %8.2f GB/s", per_s * bytes / 1e9);
        printf("\n");
        fflush(stdout);
        return OK;
    }
    json_writer w;
    buf text;
    buf_init(&text);
    json_begin(&w, &text, 0);
    json_object_open(&w);
    json_key_string(&w, "bench", "embedding");
    json_key_string(&w, "device", b->be->name);
    json_key_string(&w, "what", what);
    json_key_string(&w, "size", size);
    json_key_int(&w, "dim", b->o.dim);
    json_key_int(&w, "keys_a_call", b->n);
    json_key_double(&w, "per_s", per_s);
    json_key_double(&w, "bytes_per_s", per_s * bytes);
    json_object_close(&w);
    status st = json_finish(&w);
    if (st == OK) printf("%s\n", buf_str(&text));
    buf_fini(&text);
    return st;
}

status bench_rate(bench *b, call_fn fn, void *ctx, double *out) {
    uint64_t start = 0, now = 0;
    int64_t n = 0;
    for (int i = 0; i < N_BATCHES; i++)
        TRY(fn(ctx, i));
    TRY(b->be->ops->sync(b->be));
    start = clock_ns();
    while (now - start < (uint64_t)(b->o.seconds * 1e9) || n == 0) {
        for (int i = 0; i < N_BATCHES; i++)
            TRY(fn(ctx, i));
        TRY(b->be->ops->sync(b->be));
        n += N_BATCHES;
        now = clock_ns();
    }
    *out = (double)n * 1e9 / (double)(now - start);
    return OK;
}

/* ---- probes ---------------------------------------------------------------------------------- */

typedef struct probe_ctx {
    bench *b;
    const table_level *l;
} probe_ctx;

static status probe(void *ctx, int round) {
    const probe_ctx *p = ctx;
    table_find_args a = {.n = p->b->n, .keys = p->b->keys[round], .slot = p->b->slot};
    return p->b->v->find(p->b->be, p->l, &a);
}

/* Slots must be those from which the keys were made. */
static status check_probe(bench *b, const table_level *l, int hits) {
    probe_ctx p = {b, l};
    TRY(probe(&p, 0));
    TRY(b->be->ops->copy_out(b->be, b->host_slot, b->slot, (size_t)b->n * 8));
    for (int64_t i = 0; i < b->n; i++) {
        int64_t want = i % 10 < hits ? draw_slot(b, l->n_buckets * TABLE_SLOTS, i) : -1;
        if (b->host_slot[i] != want)
            return fail(ERR_FORMAT, "find gave slot %lld, not %lld", (long long)b->host_slot[i],
                        (long long)want);
    }
    return OK;
}

/* What the memory gives: one byte at random places, asked for ahead as the probes ask. */
typedef struct byte_ctx {
    const unsigned char *memory;
    uint64_t bytes;
    int64_t n;
    uint64_t sum[256]; /* by thread: the reads must count for something */
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

static status bench_memory(bench *b, const table_level *l, const char *size) {
    byte_ctx c = {l->index, (uint64_t)l->n_buckets * TABLE_BUCKET_BYTES, 0, {0}};
    uint64_t start = clock_ns(), now = start;
    int64_t n = 0;
    if (strcmp(b->be->name, "cpu") != 0) return OK;
    for (; now - start < (uint64_t)(b->o.seconds * 1e9) || n == 0; n += 256) {
        TRY(pool_run(b->be->workers, 256, read_bytes, &c));
        now = clock_ns();
    }
    return bench_show(b, "the memory: random lines", size,
                      (double)n * 4096e9 / (double)(now - start), 0);
}

static status bench_probes(bench *b, double gib) {
    char size[32];
    table_level l;
    double rate = 0;
    snprintf(size, sizeof size, "%.3g GiB", gib);
    int64_t n_buckets = (int64_t)(gib * 1073741824.0 / TABLE_BUCKET_BYTES);
    status st = level_create(b, &l, n_buckets < 64 ? 64 : n_buckets, 0, TABLE_SLOTS);
    for (int hits = 10; st == OK && hits >= 6; hits -= 4) {
        probe_ctx p = {b, &l};
        for (int r = 0; st == OK && r < N_BATCHES; r++)
            st = draw_keys(b, &l, TABLE_SLOTS, hits, r, b->n);
        if (st == OK) st = check_probe(b, &l, hits);
        if (st == OK) st = bench_rate(b, probe, &p, &rate);
        if (st == OK)
            st = bench_show(b, hits == 10 ? "find slots, all hit" : "find slots, 60 % hit", size,
                            rate * (double)b->n, 0);
    }
    if (st == OK) st = bench_memory(b, &l, size);
    level_destroy(b, &l);
    return st;
}

/* ---- rows ------------------------------------------------------------------------------------ */

typedef struct rows_ctx {
    bench *b;
    const table_level *l;
    int64_t *offsets; /* of bags, on the device */
    bool writes;
    uint64_t score;
} rows_ctx;

static status lookup(void *ctx, int round) {
    const rows_ctx *c = ctx;
    int64_t begin[2] = {0, c->b->n};
    table_lookup_args a = {.n_parts = 1,
                           .levels = c->l,
                           .begin = begin,
                           .keys = c->b->keys[round],
                           .dim = (int32_t)c->b->o.dim,
                           .y = c->b->rows};
    return c->b->v->lookup(c->b->be, &a);
}

/* Keys are found where they were drawn so, and only there; rows are zeros either way. */
static status check_lookup(bench *b, const table_level *l, int hits) {
    int64_t begin[2] = {0, b->n};
    uint8_t *is_found;
    table_lookup_args a = {.n_parts = 1,
                           .levels = l,
                           .begin = begin,
                           .keys = b->keys[0],
                           .dim = (int32_t)b->o.dim,
                           .y = b->rows,
                           .is_found = b->is_new};
    TRY(b->v->lookup(b->be, &a));
    TRY(mem_alloc_raw((void **)&is_found, (size_t)b->n, 1));
    status st = b->be->ops->copy_out(b->be, is_found, b->is_new, (size_t)b->n);
    for (int64_t i = 0; st == OK && i < b->n; i++)
        if (is_found[i] != (i % 10 < hits))
            st = fail(ERR_FORMAT, "lookup says %d of key %lld", is_found[i], (long long)i);
    mem_free(is_found);
    return st;
}

/* find_or_insert, and with `writes` the rows too: insert_or_assign. */
static status place(rows_ctx *c, int round) {
    bench *b = c->b;
    table_place_args a = {.n = b->n,
                          .keys = b->keys[round],
                          .rule = SCORE_SET,
                          .score = ++c->score,
                          .stamp = 2,
                          .evict = EVICT_SMALLEST,
                          .slot = b->slot,
                          .is_new = b->is_new,
                          .evicted = b->evicted,
                          .counts = b->counts};
    table_rows_args w = {.n = b->n,
                         .slot = b->slot,
                         .n_floats = (int32_t)b->o.dim,
                         .staging = b->rows,
                         .stride = b->o.dim};
    TRY(b->v->place(b->be, c->l, &a));
    return c->writes ? b->v->write(b->be, c->l, &w) : b->v->read(b->be, c->l, &w);
}

/* The new keys of a call are there afterwards, and all it counted adds up. */
static status check_place(rows_ctx *c, int round) {
    bench *b = c->b;
    int64_t counts[PLACED_COUNTS];
    probe_ctx p = {b, c->l};
    TRY(b->be->ops->copy_out(b->be, counts, b->counts, sizeof counts));
    TRY(b->be->ops->copy_out(b->be, b->host_slot, b->slot, (size_t)b->n * 8));
    TRY(probe(&p, round));
    TRY(b->be->ops->copy_out(b->be, b->host, b->slot, (size_t)b->n * 8));
    if (memcmp(b->host, b->host_slot, (size_t)b->n * 8) != 0)
        return fail(ERR_FORMAT, "keys are not where they were placed");
    if (counts[PLACED_EVICTED] + counts[PLACED_REJECTED] > b->n || counts[PLACED_NEW] == 0)
        return fail(ERR_FORMAT, "place counted %lld new, %lld evicted and %lld rejected keys",
                    (long long)counts[0], (long long)counts[1], (long long)counts[2]);
    return OK;
}

/* Each round's new keys are new only once: one pass over the batches is all there is to time. */
static status bench_place(bench *b, table_level *l, int n_used, bool writes, const char *size) {
    rows_ctx c = {.b = b, .l = l, .writes = writes, .score = (uint64_t)1 << 60};
    for (int r = 0; r < N_BATCHES; r++)
        TRY(draw_keys(b, l, n_used, 6, r, b->n));
    TRY(place(&c, 0));
    TRY(check_place(&c, 0));
    TRY(b->be->ops->sync(b->be));
    uint64_t start = clock_ns();
    for (int r = 1; r < N_BATCHES; r++)
        TRY(place(&c, r));
    TRY(b->be->ops->sync(b->be));
    double took = (double)(clock_ns() - start) / 1e9;
    char what[64];
    snprintf(what, sizeof what, "%s, load %s", writes ? "insert_or_assign" : "find_or_insert",
             n_used == TABLE_SLOTS ? "1.0" : "0.5");
    return bench_show(b, what, size, (N_BATCHES - 1) * (double)b->n / took, (double)b->o.dim * 4);
}

/* Of the tables with rows. */
static int64_t slots_of(const bench_options *o) {
    int64_t row_bytes = (o->dim + 3) / 4 * 16;
    return o->slots > 0 ? o->slots : (int64_t)(fmin(o->max_gib, 1) * 1073741824.0) / row_bytes;
}

/* Keys of a call are different, and all calls together must not turn a table over. */
static int64_t keys_a_call(const bench_options *o) {
    int64_t by_rows = slots_of(o) / 64, n = o->batch;
    int64_t by_index = (int64_t)(fmin(o->max_gib, 0.25) * 1073741824.0) / 21 / 16;
    if (by_rows < n) n = by_rows;
    if (by_index < n) n = by_index;
    return n < 64 ? 64 : n / BAG * BAG;
}

static status bench_rows(bench *b) {
    char size[32];
    int64_t row_bytes = (b->o.dim + 3) / 4 * 16, slots = slots_of(&b->o);
    int64_t n_buckets = slots / TABLE_SLOTS < 64 ? 64 : slots / TABLE_SLOTS;
    double rate = 0;
    snprintf(size, sizeof size, "%.3g M slots", (double)(n_buckets * TABLE_SLOTS) / 1e6);
    for (int i = 0; i < 4; i++) { /* each place needs a table as it was */
        int n_used = i < 2 ? TABLE_SLOTS / 2 : TABLE_SLOTS;
        table_level l;
        status st = level_create(b, &l, n_buckets, row_bytes, n_used);
        rows_ctx c = {.b = b, .l = &l};
        for (int r = 0; st == OK && i == 0 && r < N_BATCHES; r++)
            st = draw_keys(b, &l, n_used, 6, r, b->n);
        if (st == OK && i == 0) st = check_lookup(b, &l, 6);
        if (st == OK && i == 0) st = bench_rate(b, lookup, &c, &rate);
        if (st == OK && i == 0)
            st = bench_show(b, "find with rows, 60 % hit", size, rate * (double)b->n,
                            (double)b->o.dim * 4);
        if (st == OK) st = bench_place(b, &l, n_used, i % 2 == 1, size);
        level_destroy(b, &l);
        TRY(st);
    }
    return OK;
}

/* ---- pooling --------------------------------------------------------------------------------- */

static status pool_call(void *ctx, int round) {
    const rows_ctx *c = ctx;
    bench *b = c->b;
    table_pool_args a = {.n = b->n,
                         .kind = POOL_SUM,
                         .n_bags = b->n / BAG,
                         .offsets = c->offsets,
                         .slot = (const int64_t *)b->keys[round],
                         .dim = (int32_t)b->o.dim,
                         .y = b->rows};
    return b->v->pool(b->be, c->l, &a);
}

/* Rows of 1, so that every sum is the number of rows. */
static status check_pool(rows_ctx *c) {
    bench *b = c->b;
    float y;
    TRY(pool_call(c, 0));
    TRY(b->be->ops->copy_out(b->be, &y, b->rows + (b->n / BAG - 1) * b->o.dim, sizeof y));
    return y == (float)BAG ? OK : fail(ERR_FORMAT, "a sum of %d rows of 1 is %g", BAG, (double)y);
}

static status bench_pool_level(bench *b, rows_ctx *c, int64_t n_rows, const char *size) {
    double rate = 0;
    for (int r = 0; r < N_BATCHES; r++) {
        for (int64_t i = 0; i < b->n; i++)
            b->host[i] = (uint64_t)draw_slot(b, n_rows, (int64_t)r * b->n + i);
        TRY(b->be->ops->copy_in(b->be, b->keys[r], b->host, (size_t)b->n * 8));
    }
    TRY(check_pool(c));
    TRY(bench_rate(b, pool_call, c, &rate));
    return bench_show(b, "pooled gather, bags of 32", size, rate * (double)b->n,
                      (double)b->o.dim * 4);
}

static status fill_ones(bench *b, const table_level *l, int64_t n_rows) {
    size_t bytes = 1 << 22, all = (size_t)(n_rows * l->row_bytes);
    float *ones;
    TRY(mem_alloc_raw((void **)&ones, bytes, 1));
    for (size_t i = 0; i < bytes / sizeof *ones; i++)
        ones[i] = 1;
    status st = OK;
    for (size_t at = 0; st == OK && at < all; at += bytes)
        st = b->be->ops->copy_in(b->be, l->rows + at, ones, all - at < bytes ? all - at : bytes);
    mem_free(ones);
    return st;
}

static status bench_pool(bench *b, double gib) {
    char size[32];
    int64_t row_bytes = (b->o.dim + 3) / 4 * 16;
    int64_t n_rows = (int64_t)(gib * 1073741824.0) / row_bytes;
    table_level l = {.row_bytes = row_bytes};
    rows_ctx c = {.b = b, .l = &l};
    void *rows = NULL, *offsets = NULL;
    if (n_rows < 1) n_rows = 1;
    snprintf(size, sizeof size, "%.3g GiB", gib);
    status st = b->v->alloc(b->be, &rows, (size_t)(n_rows * row_bytes), TABLE_ON_DEVICE);
    l.rows = rows;
    if (st == OK) st = fill_ones(b, &l, n_rows);
    if (st == OK) st = b->be->ops->alloc(b->be, &offsets, ((size_t)b->n / BAG + 1) * 8);
    for (int64_t i = 0; i <= b->n / BAG; i++)
        b->host[i] = (uint64_t)(i * BAG);
    if (st == OK) st = b->be->ops->copy_in(b->be, offsets, b->host, ((size_t)b->n / BAG + 1) * 8);
    c.offsets = offsets;
    if (st == OK) st = bench_pool_level(b, &c, n_rows, size);
    if (offsets != NULL) b->be->ops->release(b->be, offsets);
    if (rows != NULL) b->v->release(b->be, rows, TABLE_ON_DEVICE);
    return st;
}

/* ---- all of it ------------------------------------------------------------------------------- */

static status make_buffers(bench *b) {
    size_t n = (size_t)b->n;
    const ops *o = b->be->ops;
    for (int i = 0; i < N_BATCHES; i++)
        TRY(o->alloc(b->be, (void **)&b->keys[i], n * 8));
    TRY(o->alloc(b->be, (void **)&b->slot, n * 8));
    TRY(o->alloc(b->be, (void **)&b->is_new, n));
    TRY(o->alloc(b->be, (void **)&b->evicted.keys, n * 8));
    TRY(o->alloc(b->be, (void **)&b->evicted.scores, n * 8));
    TRY(o->alloc(b->be, (void **)&b->evicted.stamps, n * 4));
    TRY(o->alloc(b->be, (void **)&b->evicted.slot, n * 8));
    TRY(o->alloc(b->be, (void **)&b->counts, PLACED_COUNTS * 8));
    TRY(o->alloc(b->be, (void **)&b->rows, n * (size_t)b->o.dim * 4));
    TRY(MEM_NEW(&b->host, n + BAG));
    return MEM_NEW(&b->host_slot, n);
}

static void free_buffers(bench *b) {
    void *const device[] = {b->slot,           b->is_new,       b->evicted.keys, b->evicted.scores,
                            b->evicted.stamps, b->evicted.slot, b->counts,       b->rows};
    for (int i = 0; i < N_BATCHES; i++)
        if (b->keys[i] != NULL) b->be->ops->release(b->be, b->keys[i]);
    for (size_t i = 0; i < sizeof device / sizeof *device; i++)
        if (device[i] != NULL) b->be->ops->release(b->be, device[i]);
    mem_free(b->host);
    mem_free(b->host_slot);
}

static status run_all(bench *b, const work *w) {
    static const double sizes[N_SIZES] = {0.25, 1, 4};
    show_style style = show_stdout_style();
    b->be = w->be;
    b->v = w->be->tables;
    if (b->v == NULL)
        return fail(ERR_UNSUPPORTED, "%s has no dynamic tables; use --device cpu", w->be->name);
    if (!b->o.is_json)
        printf("%sDynamic tables%s on %s: rows of %" PRId64 " floats, %" PRId64 " keys a call, %d "
               "threads\n\n",
               style.bold, style.plain, b->be->name, b->o.dim, b->n,
               b->be->workers != NULL ? pool_n_threads(b->be->workers) : 1);
    TRY(make_buffers(b));
    for (int i = 0; i < N_SIZES; i++)
        if (i == 0 || sizes[i] <= b->o.max_gib)
            TRY(bench_probes(b, sizes[i] < b->o.max_gib ? sizes[i] : b->o.max_gib));
    TRY(bench_rows(b));
    for (int i = 0; i < N_SIZES; i++)
        if (i == 0 || sizes[i] <= b->o.max_gib)
            TRY(bench_pool(b, sizes[i] < b->o.max_gib ? sizes[i] : b->o.max_gib));
    return bench_steps(b);
}

status bench_embedding(int argc, char **argv) {
    bench b = {.o = {.device = "auto", .max_gib = 4, .seconds = 1, .batch = 1 << 20, .dim = 64}};
    bool is_help;
    const arg_option options[] = {
        {"--device", ARG_TEXT, &b.o.device, "NAME", WORK_DEVICES, 0, 0},
        {"--max-gib", ARG_DOUBLE, &b.o.max_gib, "G", "Largest index or rows (default 4).", 0, 0},
        {"--batch", ARG_INT, &b.o.batch, "N", "Keys of a call (default 1048576).", 64, 1 << 26},
        {"--dim", ARG_INT, &b.o.dim, "D", "Floats of a row (default 64).", 1, 4096},
        {"--slots", ARG_INT, &b.o.slots, "N", "Slots of tables with rows (default: 1 GiB).", 4096,
         (int64_t)1 << 40},
        {"--seconds", ARG_DOUBLE, &b.o.seconds, "S", "Seconds a figure, up to 60 (default 1).", 0,
         0},
        {"--json", ARG_FLAG, &b.o.is_json, NULL, "Print one JSON object a figure.", 0, 0},
        {0},
    };
    const arg_spec spec = {"hstu bench embedding [options]",
                           "Measures dynamic embedding tables: probes of the index, rows, inserts "
                           "with evictions, pooling, a whole step; each is checked first.",
                           options,
                           0,
                           0,
                           NULL};
    work w;
    TRY(args_parse(&spec, argc, argv, NULL, NULL, &is_help));
    if (is_help) return OK;
    if (!(b.o.seconds > 0 && b.o.seconds <= 60 && b.o.max_gib > 0 && b.o.max_gib <= 1024))
        return fail(ERR_USAGE, "--seconds is up to 60, --max-gib up to 1024");
    b.salt = clock_ns() % 1000000007;
    TRY(work_open(&w, NULL, b.o.device));
    b.n = keys_a_call(&b.o);
    status st = run_all(&b, &w);
    if (b.be != NULL) free_buffers(&b);
    work_close(&w);
    return st;
}
