/* hstu bench embedding: dynamic embedding tables: lookups in the index, rows, inserts with
 * evictions, rows in host memory, pooled lookups and whole steps.  Here: the command, lookups in
 * the index alone, pooled lookups and steps.
 *
 * Every call is checked before it is timed, on keys drawn for this run.  On a GPU, with the default
 * sizes, find and insert stand beside the figures of HierarchicalKV's own benchmark. */
#include "cli/bench/embedding.h"

enum { N_SIZES = 3, FILL_BUCKETS = 4096, MAX_DRAWN_PASSES = 5 };

static double if_known(double x) {
    return x > 0 ? x : NAN;
}

static status report(embed_bench *b, const embed_figure *f) {
    bool is_gpu = !b->be->is_host;
    TRY(BENCH_ROW(
        &b->io, COLUMN("", "  -36", "what", f->what), COLUMN("size", " -16", "size", f->size),
        MEMBER("dim", b->dim), MEMBER("keys_a_call", b->n), MEMBER("per_s", f->per_s),
        COLUMN("M/s", " 9.1f", NULL, f->per_s / 1e6), COLUMN("ms", " 9.4f", "ms", if_known(f->ms)),
        COLUMN("GB/s", " 8.2f", NULL, if_known(f->per_s * f->bytes / 1e9)),
        MEMBER("bytes_per_s", if_known(f->per_s * f->bytes)),
        MEMBER("peer_per_s", if_known(f->peer * EMBED_GIBI)),
        COLUMN(is_gpu ? "Gi/s" : NULL, " 8.3f", NULL, f->per_s / EMBED_GIBI),
        COLUMN(is_gpu ? "x HierarchicalKV" : NULL, " 16.2f", "ratio",
               f->per_s / EMBED_GIBI / if_known(f->peer)),
        COLUMN("checked", " 11.0f", "n_checked", if_known((double)f->n_checked)),
        COLUMN("wrong", " 7.0f", "n_wrong", f->n_checked > 0 ? (double)f->n_wrong : NAN)));
    if (f->n_wrong == 0) return OK;
    return fail(ERR_FORMAT, "%s: %" PRId64 " of %" PRId64 " values are wrong", f->what, f->n_wrong,
                f->n_checked);
}

static status for_batches(timing_fn fn, void *ctx) {
    for (int i = 0; i < N_BATCHES && fn != NULL; i++)
        TRY(fn(ctx, i));
    return OK;
}

status embed_bench_time(embed_bench *b, embed_calls c, embed_figure f) {
    double took[TIMING_MAX], sum = 0;
    int most = c.before != NULL ? MAX_DRAWN_PASSES : TIMING_MAX, n = -1;
    for (; n < most && (n < 1 || sum < b->seconds); n++) {
        TRY(for_batches(c.before, c.ctx));
        TRY(b->be->ops->sync(b->be));
        uint64_t start = clock_ns();
        TRY(for_batches(c.call, c.ctx));
        TRY(b->be->ops->sync(b->be));
        if (n >= 0) sum += took[n] = (double)(clock_ns() - start) / 1e9;
        TRY(for_batches(c.after, c.ctx));
    }
    f.ms = 1e3 * median(took, n) / N_BATCHES;
    f.per_s = 1e3 * (double)b->n / f.ms;
    return report(b, &f);
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
static status fill_index(embed_bench *b, int64_t n_buckets) {
    table_level *l = &b->level;
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
static status draw_keys(embed_bench *b, int hits, int round) {
    const table_level *l = &b->level;
    int64_t n_known = l->n_buckets * TABLE_SLOTS;
    for (int64_t i = 0; i < b->n; i++) {
        int64_t s = draw_slot(b, n_known, (int64_t)round * b->n + i);
        int64_t bucket = s / TABLE_SLOTS, j = s % TABLE_SLOTS;
        b->host[i] = bucket_key(l->n_buckets, bucket, i % 10 < hits ? j : 64 + round * 64 + j);
    }
    return b->be->ops->copy_in(b->be, b->keys[round], b->host, (size_t)b->n * 8);
}

static status probe(void *ctx, int round) {
    embed_bench *b = ctx;
    table_find_args a = {.n = b->n, .keys = b->keys[round], .slot = b->slot};
    return b->v->find(b->be, &b->level, &a);
}

/* The slots must be those that the keys were made from. */
static status check_probe(embed_bench *b, int hits) {
    TRY(probe(b, 0));
    TRY(b->be->ops->copy_out(b->be, b->host_slot, b->slot, (size_t)b->n * 8));
    for (int64_t i = 0; i < b->n; i++) {
        int64_t want = i % 10 < hits ? draw_slot(b, b->level.n_buckets * TABLE_SLOTS, i) : -1;
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

static status bench_memory(embed_bench *b, const char *size) {
    byte_ctx c = {.memory = b->level.index,
                  .bytes = (uint64_t)b->level.n_buckets * TABLE_BUCKET_BYTES};
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
    return report(b, &f);
}

static status probe_index(embed_bench *b, double gib, const char *size) {
    int64_t n_buckets = (int64_t)(gib * EMBED_GIBI / TABLE_BUCKET_BYTES);
    TRY(fill_index(b, n_buckets < 64 ? 64 : n_buckets));
    for (int hits = 10; hits >= 6; hits -= 4) {
        for (int r = 0; r < N_BATCHES; r++)
            TRY(draw_keys(b, hits, r));
        TRY(check_probe(b, hits));
        embed_figure f = {.what = hits == 10 ? "find slots, all hit" : "find slots, 60 % hit",
                          .size = size,
                          .n_checked = b->n};
        TRY(embed_bench_time(b, (embed_calls){.call = probe, .ctx = b}, f));
    }
    return bench_memory(b, size);
}

/* Pooled lookups: sums of bags of rows. */

static status pool_call(void *ctx, int round) {
    embed_bench *b = ctx;
    table_pool_args a = {.n = b->n,
                         .n_bags = b->n / BAG,
                         .offsets = b->offsets,
                         .slot = (const int64_t *)b->keys[round],
                         .dim = (int32_t)b->dim,
                         .y = b->rows};
    return b->v->pool(b->be, &b->level, &a);
}

static status fill_ones(embed_bench *b, size_t n_bytes) {
    size_t bytes = 1 << 22;
    float *ones;
    TRY(mem_alloc_raw((void **)&ones, bytes, 1));
    for (size_t i = 0; i < bytes / sizeof *ones; i++)
        ones[i] = 1;
    status st = OK;
    for (size_t at = 0; st == OK && at < n_bytes; at += bytes)
        st = b->be->ops->copy_in(b->be, b->level.rows + at, ones,
                                 n_bytes - at < bytes ? n_bytes - at : bytes);
    mem_free(ones);
    return st;
}

/* All rows are 1, so every sum is the number of rows. */
static status pool_rows(embed_bench *b, double gib, const char *size) {
    int64_t row_bytes = embed_bench_row_bytes(b), n_bags = b->n / BAG;
    int64_t n_rows = (int64_t)(gib * EMBED_GIBI) / row_bytes;
    void *rows = NULL;
    embed_figure f = {.what = "pooled gather, bags of 32",
                      .size = size,
                      .bytes = (double)b->dim * 4,
                      .n_checked = n_bags * b->dim};
    if (n_rows < 1) n_rows = 1;
    TRY(b->v->alloc(b->be, &rows, (size_t)(n_rows * row_bytes), TABLE_ON_DEVICE));
    b->level = (table_level){.row_bytes = row_bytes, .rows = rows};
    TRY(fill_ones(b, (size_t)(n_rows * row_bytes)));
    for (int64_t i = 0; i <= n_bags; i++)
        b->host[i] = (uint64_t)(i * BAG);
    TRY(b->be->ops->copy_in(b->be, b->offsets, b->host, (size_t)(n_bags + 1) * 8));
    for (int r = 0; r < N_BATCHES; r++) {
        for (int64_t i = 0; i < b->n; i++)
            b->host[i] = (uint64_t)draw_slot(b, n_rows, (int64_t)r * b->n + i);
        TRY(b->be->ops->copy_in(b->be, b->keys[r], b->host, (size_t)b->n * 8));
    }
    TRY(pool_call(b, 0));
    TRY(b->be->ops->copy_out(b->be, b->sums, b->rows, (size_t)f.n_checked * sizeof *b->sums));
    for (int64_t i = 0; i < f.n_checked; i++)
        f.n_wrong += b->sums[i] != (float)BAG;
    return embed_bench_time(b, (embed_calls){.call = pool_call, .ctx = b}, f);
}

/* Whole steps through src/embed, table by table: dedup, find or insert, staging, update.  Ids are
 * in host memory and follow a power law; ten tables at once, with rows twice as long as elsewhere
 * in this bench, is the workload that dynamicemb and FBGEMM publish. */

enum { N_TABLES = 10 };

/* Draws ids by a power law of exponent 1.05, over as many ids as the table has slots, by inverting
 * its distribution. */
static void draw_zipf(const embed_bench *b, uint64_t *ids, int64_t n, int64_t n_ids) {
    double top = pow((double)n_ids + 1, -0.05);
    for (int64_t i = 0; i < n; i++) {
        double u = rng_uniform64((uint32_t)(table_hash(b->salt + (uint64_t)i) >> 32),
                                 (uint32_t)table_hash(b->salt + (uint64_t)i));
        double x = pow(1 - u * (1 - top), -20);
        ids[i] = table_hash((uint64_t)x); /* ids are no small numbers */
    }
}

typedef struct tables_ctx {
    embed_bench *b;
    int n_tables;
    bool is_evaluation; /* rows are read, not updated */
    int64_t step;
    embed_table *t[N_TABLES];
    int64_t begin[N_TABLES + 1];
    uint64_t *ids;       /* (N_BATCHES, n) host */
    uint64_t *on_device; /* the same */
    nn_memory memory;
} tables_ctx;

static int64_t ten_dim(const embed_bench *b) {
    return 2 * b->dim;
}

/* For each table: fetches its share of the ids and updates the rows. */
static status step_tables(void *ctx, int round) {
    tables_ctx *c = ctx;
    embed_step_args args = {.lr = 0.01f, .eps = 1e-6f, .step = ++c->step};
    for (int k = 0; k < c->n_tables; k++) {
        const embed_batch *fetched;
        TRY(embed_fetch(c->t[k], c->is_evaluation ? FETCH_ZERO : FETCH_INSERT,
                        c->begin[k + 1] - c->begin[k], c->ids + round * c->b->n + c->begin[k], NULL,
                        &fetched));
        if (!c->is_evaluation) TRY(embed_update(c->t[k], c->b->rows, &args));
    }
    return OK;
}

static status look_up_tables(void *ctx, int round) {
    tables_ctx *c = ctx;
    return embed_lookup(c->t, N_TABLES, c->begin, c->on_device + round * c->b->n, c->b->rows, NULL);
}

/* A lookup must read the same rows as a find. */
static status check_table(tables_ctx *c, int k, const float *y, float *want, embed_figure *f) {
    int64_t dim = ten_dim(c->b), n = (c->begin[k + 1] - c->begin[k]) * dim;
    TRY(embed_find(c->t[k], c->begin[k + 1] - c->begin[k], c->ids + c->begin[k], (int32_t)dim, want,
                   NULL));
    for (int64_t i = 0; i < n; i++)
        f->n_wrong += y[c->begin[k] * dim + i] != want[i];
    f->n_checked += n;
    return OK;
}

static status check_lookup(tables_ctx *c, embed_figure *f) {
    embed_bench *b = c->b;
    int64_t n = b->n * ten_dim(b);
    float *y, *want;
    TRY(NN_NEW_HOST(&c->memory, &y, n));
    TRY(NN_NEW_HOST(&c->memory, &want, n));
    TRY(look_up_tables(c, 0));
    TRY(b->be->ops->copy_out(b->be, y, b->rows, (size_t)n * sizeof *y));
    for (int k = 0; k < N_TABLES; k++)
        TRY(check_table(c, k, y, want, f));
    return OK;
}

/* Tables that share the slots, and ids for them. */
static status make_tables(tables_ctx *c, int32_t dim, opt_kind opt) {
    embed_bench *b = c->b;
    int64_t all = b->slots > 0 ? b->slots : (int64_t)(b->max_gib * 4194304 / 4);
    int64_t n_slots = all / c->n_tables < 4096 ? 4096 : all / c->n_tables;
    embed_config shape = {.dim = dim,
                          .opt = opt,
                          .policy = POLICY_LRU,
                          .capacity = {n_slots, 0},
                          .max_batch = b->n,
                          .first = FIRST_UNIFORM,
                          .first_scale = 0.1f};
    TRY(NN_NEW_HOST(&c->memory, &c->ids, N_BATCHES * b->n));
    draw_zipf(b, c->ids, N_BATCHES * b->n, n_slots);
    for (int k = 0; k < c->n_tables; k++) {
        c->begin[k + 1] = b->n * (k + 1) / c->n_tables;
        TRY(embed_create(&c->t[k], b->be, &shape));
    }
    return OK;
}

static status run_one(tables_ctx *c) {
    embed_bench *b = c->b;
    TRY(make_tables(c, (int32_t)b->dim, OPT_ROWWISE_ADAGRAD));
    TRY(embed_bench_time(b, (embed_calls){.call = step_tables, .ctx = c},
                         (embed_figure){"ids of a training step, Zipf 1.05", .size = ""}));
    c->is_evaluation = true;
    return embed_bench_time(b, (embed_calls){.call = step_tables, .ctx = c},
                            (embed_figure){"ids of an evaluation", .size = ""});
}

static status run_ten(tables_ctx *c) {
    embed_bench *b = c->b;
    int64_t n_ids = N_BATCHES * b->n;
    embed_figure f = {"10 tables, evaluation", .size = "", .bytes = (double)ten_dim(b) * 4};
    TRY(make_tables(c, (int32_t)ten_dim(b), OPT_SGD));
    TRY(NN_NEW(&c->memory, &c->on_device, n_ids));
    TRY(b->be->ops->copy_in(b->be, c->on_device, c->ids, (size_t)n_ids * sizeof *c->ids));
    TRY(embed_bench_time(b, (embed_calls){.call = step_tables, .ctx = c},
                         (embed_figure){"10 tables, a step of SGD", .size = ""}));
    TRY(check_lookup(c, &f));
    return embed_bench_time(b, (embed_calls){.call = look_up_tables, .ctx = c}, f);
}

static status bench_tables(embed_bench *b, int n_tables, status (*run)(tables_ctx *c)) {
    tables_ctx c = {.b = b, .n_tables = n_tables};
    nn_memory_init(&c.memory, b->be);
    status st = run(&c);
    for (int k = 0; k < n_tables; k++)
        embed_destroy(c.t[k]);
    nn_memory_fini(&c.memory);
    return st;
}

/* The sizes to measure, of which the first is cut to max_gib. */
static status for_sizes(embed_bench *b,
                        status (*measure)(embed_bench *b, double gib, const char *size)) {
    static const double sizes[N_SIZES] = {0.25, 1, 4};
    for (int i = 0; i < N_SIZES; i++) {
        double gib = fmin(sizes[i], b->max_gib);
        if (i > 0 && sizes[i] > b->max_gib) continue;
        status st = measure(b, gib, show_printf("%.3g GiB", gib));
        embed_level_destroy(b, &b->level, TABLE_ON_DEVICE);
        TRY(st);
    }
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
    TRY(NN_NEW(m, &b->offsets, b->n / BAG + 1));
    TRY(NN_NEW_HOST(m, &b->sums, b->n / BAG * b->dim));
    TRY(NN_NEW_HOST(m, &b->host, b->n + BAG));
    return NN_NEW_HOST(m, &b->host_slot, b->n);
}

static status measure_all(embed_bench *b) {
    TRY(make_buffers(b));
    TRY(for_sizes(b, probe_index));
    TRY(embed_bench_keys(b));
    TRY(for_sizes(b, pool_rows));
    TRY(bench_tables(b, 1, run_one));
    return bench_tables(b, N_TABLES, run_ten);
}

static status run(void *ctx) {
    embed_bench *b = ctx;
    b->be = b->io.be;
    b->v = b->be->tables;
    b->workers = b->io.workers;
    b->salt = clock_ns() % 1000000007;
    b->n = keys_a_call(b);
    bench_title(&b->io,
                "Dynamic tables on %s: rows of %" PRId64 " floats, %" PRId64
                " keys a call, %d threads",
                b->be->name, b->dim, b->n, pool_n_threads(b->workers));
    nn_memory_init(&b->memory, b->be);
    status st = measure_all(b);
    nn_memory_fini(&b->memory);
    return st;
}

status bench_embedding(int argc, char **argv) {
    embed_bench b = {.io = {.name = "embedding", .device = "auto"},
                     .max_gib = 4,
                     .seconds = 1,
                     .batch = 1 << 20,
                     .dim = 64};
    const arg_option options[] = {
        OPT_TEXT("--device", &b.io.device, "NAME", WORK_DEVICES),
        OPT_DOUBLE("--max-gib", &b.max_gib, "G",
                   "Largest index or row memory, in GiB (default 4)."),
        OPT_INT("--batch", &b.batch, "N", 64, 1 << 26, "Keys per call (default 1048576)."),
        OPT_INT("--dim", &b.dim, "D", 1, 4096, "Floats per row (default 64)."),
        OPT_INT(
            "--slots", &b.slots, "N", 4096, (int64_t)1 << 40,
            "Slots of the tables with rows (default: 2^26 on a GPU, 1 GiB of rows on the CPU)."),
        OPT_DOUBLE("--seconds", &b.seconds, "S", "Seconds per figure, up to 60 (default 1)."),
        BENCH_JSON(&b.io),
        {0},
    };
    const arg_spec spec = {
        .usage = "hstu bench embedding [options]",
        .summary =
            "Measure dynamic embedding tables: index lookups, rows, inserts with evictions, rows "
            "in host memory, pooling and whole steps. Each is checked first. On a GPU with the "
            "default sizes, finds and inserts are compared with HierarchicalKV's figures.",
        .options = options};
    ARGS_PARSE(&spec, NULL, NULL);
    if (!(b.seconds > 0 && b.seconds <= 60 && b.max_gib > 0 && b.max_gib <= 1024))
        return fail(ERR_USAGE, "--seconds is more than 0 and up to 60, --max-gib up to 1024");
    return bench_run(&b.io, run, &b);
}
