/* hstu bench embedding: dynamic embedding tables: lookups in the index, rows, inserts with
 * evictions, rows in host memory, pooled lookups and whole steps.  Here: the command, lookups in
 * the index alone and pooled lookups.
 *
 * Every call is checked before it is timed, on keys drawn for this run.  On a GPU, with the default
 * sizes, find and insert stand beside the figures of HierarchicalKV's own benchmark. */
#include "cli/bench/embedding.h"

enum { N_SIZES = 3, FILL_BUCKETS = 4096 };

static void print_text(const embed_figure *f) {
    show_style style = show_stdout_style();
    printf("  %-36s %-12s", f->what, f->size);
    if (f->per_s > 0) printf(" %s%9.1f M/s%s", style.bold, f->per_s / 1e6, style.plain);
    if (f->ms > 0) printf(" %9.4f ms", f->ms);
    if (f->bytes > 0) printf(" %8.2f GB/s", f->per_s * f->bytes / 1e9);
    if (f->peer > 0)
        printf("  %.3f Gi/s, %s%.2f%s of HierarchicalKV's %.3f", f->per_s / EMBED_GIBI, style.bold,
               f->per_s / EMBED_GIBI / f->peer, style.plain, f->peer);
    if (f->n_checked > 0) printf("  %" PRId64 " wrong of %" PRId64, f->n_wrong, f->n_checked);
    printf("\n");
    (void)fflush(stdout);
}

static status print_json(const embed_bench *b, const embed_figure *f) {
    json_writer *w = json_line_open();
    JSON_FIELDS(w, FIELD("bench", "embedding"), FIELD("device", b->be->name),
                FIELD("what", f->what), FIELD("size", f->size), FIELD("dim", b->dim),
                FIELD("keys_a_call", b->n));
    if (f->per_s > 0) json_key_double(w, "per_s", f->per_s);
    if (f->ms > 0) json_key_double(w, "ms", f->ms);
    if (f->bytes > 0) json_key_double(w, "bytes_per_s", f->per_s * f->bytes);
    if (f->peer > 0) json_key_double(w, "peer_per_s", f->peer * EMBED_GIBI);
    if (f->peer > 0) json_key_double(w, "ratio", f->per_s / EMBED_GIBI / f->peer);
    if (f->n_checked > 0) {
        json_key_int(w, "n_checked", f->n_checked);
        json_key_int(w, "n_wrong", f->n_wrong);
    }
    return json_line_print();
}

status embed_bench_report(const embed_bench *b, const embed_figure *f) {
    if (b->is_json)
        TRY(print_json(b, f));
    else
        print_text(f);
    if (f->n_wrong == 0) return OK;
    return fail(ERR_FORMAT, "%s: %" PRId64 " of %" PRId64 " values are wrong", f->what, f->n_wrong,
                f->n_checked);
}

status embed_bench_rate(embed_bench *b, timing_fn fn, void *ctx, double *out) {
    uint64_t start = 0, now = 0;
    int64_t n = 0;
    for (int i = 0; i < N_BATCHES; i++)
        TRY(fn(ctx, i));
    TRY(b->be->ops->sync(b->be));
    start = clock_ns();
    while (now - start < (uint64_t)(b->seconds * 1e9) || n == 0) {
        for (int i = 0; i < N_BATCHES; i++)
            TRY(fn(ctx, i));
        TRY(b->be->ops->sync(b->be));
        n += N_BATCHES;
        now = clock_ns();
    }
    *out = (double)n * 1e9 / (double)(now - start);
    return OK;
}

status embed_bench_time(embed_bench *b, timing_fn fn, void *ctx, embed_figure f) {
    double rate = 0;
    TRY(embed_bench_rate(b, fn, ctx, &rate));
    f.per_s = rate * (double)b->n;
    f.ms = 1e3 / rate;
    return embed_bench_report(b, &f);
}

int64_t embed_bench_row_bytes(const embed_bench *b) {
    return (b->dim + 3) / 4 * 16;
}

/* A GPU has room for the tables of HierarchicalKV's benchmark. */
int64_t embed_bench_slots(const embed_bench *b) {
    if (b->slots > 0) return b->slots;
    if (!b->be->is_host) return (int64_t)1 << 26;
    return (int64_t)(fmin(b->max_gib, 1) * EMBED_GIBI) / embed_bench_row_bytes(b);
}

/* The keys of a call are all different, and all calls together must not replace the rows of a
 * table. */
static int64_t keys_a_call(const embed_bench *b) {
    int64_t by_rows = embed_bench_slots(b) / 64, n = b->batch;
    int64_t by_index = (int64_t)(fmin(b->max_gib, 0.25) * EMBED_GIBI) / 21 / 12;
    if (by_rows < n) n = by_rows;
    if (by_index < n) n = by_index;
    return n < 64 ? 64 : n / BAG * BAG;
}

static int64_t draw_slot(const embed_bench *b, int64_t n_slots, int64_t i) {
    __extension__ typedef unsigned __int128 wide;
    return (int64_t)((wide)((uint64_t)i + b->salt) * 2654435761u % (uint64_t)n_slots);
}

status embed_level_create(embed_bench *b, table_level *l, int64_t slots, int64_t row_bytes,
                          table_memory where) {
    void *index = NULL, *rows = NULL;
    int64_t n_buckets = slots / TABLE_SLOTS < 64 ? 64 : slots / TABLE_SLOTS;
    *l = (table_level){.n_buckets = n_buckets, .row_bytes = row_bytes};
    TRY(b->v->alloc(b->be, &index, (size_t)n_buckets * TABLE_BUCKET_BYTES, TABLE_ON_DEVICE));
    l->index = index;
    TRY(b->be->ops->zero(b->be, index, (size_t)n_buckets * TABLE_BUCKET_BYTES));
    TRY(b->v->alloc(b->be, &rows, (size_t)(n_buckets * TABLE_SLOTS * row_bytes), where));
    l->rows = rows;
    return b->be->ops->sync(b->be);
}

void embed_level_destroy(embed_bench *b, table_level *l, table_memory where) {
    if (l->index != NULL) b->v->release(b->be, l->index, TABLE_ON_DEVICE);
    if (l->rows != NULL) b->v->release(b->be, l->rows, where);
    *l = (table_level){0};
}

/* Lookups in the index alone.  The index is filled with keys that follow from their slot (bucket
 * and place in it), so that every answer can be checked.  For a CPU there is also the limit that
 * memory sets: reads of one byte at random places of the same amount of memory, with the same
 * threads. */

/* The j-th of 4096 keys of a bucket. */
static uint64_t bucket_key(int64_t n_buckets, int64_t bucket, int64_t j) {
    uint64_t width = UINT64_MAX / (uint64_t)n_buckets;
    __extension__ typedef unsigned __int128 wide;
    uint64_t first = (uint64_t)(((wide)(uint64_t)bucket << 64) / (uint64_t)n_buckets);
    return table_unhash(first + 1 + (uint64_t)j * (width / 4098));
}

/* A level without rows whose buckets are full of their first keys. */
static status fill_index(embed_bench *b, table_level *l, int64_t n_buckets) {
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
                uint64_t key = bucket_key(n_buckets, first + k, j);
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
        int64_t s = draw_slot(b, n_known, (int64_t)round * b->n + i);
        int64_t bucket = s / TABLE_SLOTS, j = s % TABLE_SLOTS;
        b->host[i] = bucket_key(l->n_buckets, bucket, i % 10 < hits ? j : 64 + round * 64 + j);
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
        int64_t want = i % 10 < hits ? draw_slot(b, l->n_buckets * TABLE_SLOTS, i) : -1;
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
    if (!b->be->is_host) return OK;
    for (; now - start < (uint64_t)(b->seconds * 1e9) || n == 0; n += 256) {
        TRY(pool_run(b->be->workers, 256, read_bytes, &c));
        now = clock_ns();
    }
    embed_figure f = {.what = "the memory: random lines",
                      .size = size,
                      .per_s = (double)n * 4096e9 / (double)(now - start)};
    return embed_bench_report(b, &f);
}

static status bench_probe(embed_bench *b, double gib) {
    char size[32];
    table_level l;
    snprintf(size, sizeof size, "%.3g GiB", gib);
    int64_t n_buckets = (int64_t)(gib * EMBED_GIBI / TABLE_BUCKET_BYTES);
    status st = fill_index(b, &l, n_buckets < 64 ? 64 : n_buckets);
    for (int hits = 10; st == OK && hits >= 6; hits -= 4) {
        probe_ctx p = {b, &l};
        for (int r = 0; st == OK && r < N_BATCHES; r++)
            st = draw_keys(b, &l, hits, r);
        if (st == OK) st = check_probe(b, &l, hits);
        embed_figure f = {.what = hits == 10 ? "find slots, all hit" : "find slots, 60 % hit",
                          .size = size,
                          .n_checked = b->n};
        if (st == OK) st = embed_bench_time(b, probe, &p, f);
    }
    if (st == OK) st = bench_memory(b, &l, size);
    if (l.index != NULL) b->v->release(b->be, l.index, TABLE_ON_DEVICE);
    return st;
}

/* Pooled lookups: sums of bags of rows. */

typedef struct pool_ctx {
    embed_bench *b;
    const table_level *l;
    int64_t *offsets; /* of bags, on the device */
} pool_ctx;

static status pool_call(void *ctx, int round) {
    const pool_ctx *c = ctx;
    embed_bench *b = c->b;
    table_pool_args a = {.n = b->n,
                         .n_bags = b->n / BAG,
                         .offsets = c->offsets,
                         .slot = (const int64_t *)b->keys[round],
                         .dim = (int32_t)b->dim,
                         .y = b->rows};
    return b->v->pool(b->be, c->l, &a);
}

/* All rows are 1, so every sum is the number of rows. */
static status check_pool(pool_ctx *c, int64_t *n_wrong) {
    embed_bench *b = c->b;
    int64_t n = b->n / BAG * b->dim;
    float *y;
    *n_wrong = 0;
    TRY(pool_call(c, 0));
    TRY(mem_alloc_raw((void **)&y, (size_t)n, sizeof *y));
    status st = b->be->ops->copy_out(b->be, y, b->rows, (size_t)n * sizeof *y);
    for (int64_t i = 0; st == OK && i < n; i++)
        *n_wrong += y[i] != (float)BAG;
    mem_free(y);
    return st;
}

static status bench_pool_level(embed_bench *b, pool_ctx *c, int64_t n_rows, const char *size) {
    double rate = 0;
    int64_t n_wrong;
    for (int r = 0; r < N_BATCHES; r++) {
        for (int64_t i = 0; i < b->n; i++)
            b->host[i] = (uint64_t)draw_slot(b, n_rows, (int64_t)r * b->n + i);
        TRY(b->be->ops->copy_in(b->be, b->keys[r], b->host, (size_t)b->n * 8));
    }
    TRY(check_pool(c, &n_wrong));
    TRY(embed_bench_rate(b, pool_call, c, &rate));
    embed_figure f = {.what = "pooled gather, bags of 32",
                      .size = size,
                      .per_s = rate * (double)b->n,
                      .bytes = (double)b->dim * 4,
                      .n_checked = b->n / BAG * b->dim,
                      .n_wrong = n_wrong};
    return embed_bench_report(b, &f);
}

static status fill_ones(embed_bench *b, const table_level *l, int64_t n_rows) {
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

static status bench_pool(embed_bench *b, double gib) {
    char size[32];
    int64_t row_bytes = embed_bench_row_bytes(b);
    int64_t n_rows = (int64_t)(gib * EMBED_GIBI) / row_bytes;
    table_level l = {.row_bytes = row_bytes};
    pool_ctx c = {.b = b, .l = &l};
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

/* The sizes to measure, of which the first is cut to max_gib. */
static status for_sizes(embed_bench *b, status (*measure)(embed_bench *b, double gib)) {
    static const double sizes[N_SIZES] = {0.25, 1, 4};
    for (int i = 0; i < N_SIZES; i++)
        if (i == 0 || sizes[i] <= b->max_gib) TRY(measure(b, fmin(sizes[i], b->max_gib)));
    return OK;
}

static status make_buffers(embed_bench *b) {
    nn_memory *m = &b->memory;
    for (int i = 0; i < N_BATCHES; i++)
        TRY(NN_NEW(m, &b->keys[i], b->n));
    TRY(NN_NEW(m, &b->slot, b->n));
    TRY(NN_NEW(m, &b->is_new, b->n));
    TRY(NN_NEW(m, &b->counts, PLACED_COUNTS));
    TRY(NN_NEW(m, &b->rows, 2 * b->n * b->dim));
    TRY(NN_NEW_HOST(m, &b->host, b->n + BAG));
    return NN_NEW_HOST(m, &b->host_slot, b->n);
}

static status measure_all(embed_bench *b) {
    TRY(make_buffers(b));
    TRY(for_sizes(b, bench_probe));
    TRY(embed_bench_keys(b));
    TRY(for_sizes(b, bench_pool));
    return embed_bench_steps(b);
}

static status run(embed_bench *b, const work *w) {
    show_style style = show_stdout_style();
    b->be = w->be;
    b->v = w->be->tables;
    b->workers = w->workers;
    b->salt = clock_ns() % 1000000007;
    b->n = keys_a_call(b);
    if (!b->is_json)
        printf("%sDynamic tables%s on %s: rows of %" PRId64 " floats, %" PRId64 " keys a call, %d "
               "threads\n\n",
               style.bold, style.plain, b->be->name, b->dim, b->n, pool_n_threads(w->workers));
    nn_memory_init(&b->memory, b->be);
    status st = measure_all(b);
    nn_memory_fini(&b->memory);
    return st;
}

status bench_embedding(int argc, char **argv) {
    embed_bench b = {.max_gib = 4, .seconds = 1, .batch = 1 << 20, .dim = 64};
    const char *device = "auto";
    const arg_option options[] = {
        OPT_TEXT("--device", &device, "NAME", WORK_DEVICES),
        OPT_DOUBLE("--max-gib", &b.max_gib, "G",
                   "Largest index or row memory, in GiB (default 4)."),
        OPT_INT("--batch", &b.batch, "N", 64, 1 << 26, "Keys per call (default 1048576)."),
        OPT_INT("--dim", &b.dim, "D", 1, 4096, "Floats per row (default 64)."),
        OPT_INT(
            "--slots", &b.slots, "N", 4096, (int64_t)1 << 40,
            "Slots of the tables with rows (default: 2^26 on a GPU, 1 GiB of rows on the CPU)."),
        OPT_DOUBLE("--seconds", &b.seconds, "S", "Seconds per figure, up to 60 (default 1)."),
        OPT_FLAG("--json", &b.is_json, "Print one JSON object per figure."),
        {0},
    };
    const arg_spec spec = {
        .usage = "hstu bench embedding [options]",
        .summary =
            "Measure dynamic embedding tables: index lookups, rows, inserts with evictions, rows "
            "in host memory, pooling and whole steps. Each is checked first. On a GPU with the "
            "default sizes, finds and inserts are compared with HierarchicalKV's figures.",
        .options = options};
    work w;
    ARGS_PARSE(&spec, NULL, NULL);
    if (!(b.seconds > 0 && b.seconds <= 60 && b.max_gib > 0 && b.max_gib <= 1024))
        return fail(ERR_USAGE, "--seconds is more than 0 and up to 60, --max-gib up to 1024");
    TRY(work_open(&w, NULL, device));
    status st = run(&b, &w);
    work_close(&w);
    return st;
}
